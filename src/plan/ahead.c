#ifndef GCKPT_NO_RANKS
#include "plan/own.h"

/* ---- ahead: gathers of cut values begin before they are read, in bytes that are left ---- */
/* By a model in which ranks exchange one thing after the other, beside what is computed, which
 * waits at a gather's first reader. Gathers keep their order and none begins later, so none is over
 * later; a sum may have to wait for one of them. Times are work. */
typedef struct {
    int at, to;     /* its item; before which item it is to stand */
    uint64_t begin; /* when it begins at the latest, if nothing is to wait for it */
} gckpti_gathering;

/* Work of the link: of the gather of item i; 0: it is none. */
static uint64_t gckpti_gather_work(const gckpti_planner *p, int i)
{
    const gckpt_tensor *t = p->tensors[p->unit[gckpti_unit_of(p, i)].id];
    const size_t whole = gckpti_value_bytes(p, t);
    return i >= p->prologue && i < p->units && gckpti_is_gathered(p, t)
               ? gckpti_copy_work(p->desc->link_cost, (int64_t)(whole - gckpti_share_bytes(p, t)))
               : 0;
}

/* The first item behind x that reads what the unit of item x makes. */
static int gckpti_first_read(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    for (int y = x + 1, count; y < s->length; y++)
        for (const int *links = gckpti_reads(p, s->item[y], &count); count-- > 0;)
            if (links[count] == s->item[x])
                return y;
    return s->length;
}

/* Lists the gathers of the body of p->best, n of them, with the latest times at which they begin;
 * before[x]: work of what is computed before item x. */
static int gckpti_list_gathers(const gckpti_planner *p, gckpti_gathering *g, uint64_t *before)
{
    const gckpti_schedule *s = &p->best.s;
    uint64_t over = UINT64_MAX; /* when the link is needed for the next one */
    int n = 0;
    for (int x = 0; x < s->length; x++) {
        const int i = s->item[x], u = gckpti_unit_of(p, i);
        const uint64_t link = gckpti_gather_work(p, i);
        before[x + 1] = gckpti_add_work(before[x], i < 0    ? p->cost[p->unit[u].id].backward
                                                   : i == u ? p->unit[u].cost - link
                                                            : 0);
        if (link)
            g[n++].at = x;
    }
    for (int k = n; k-- > 0;) {
        const int x = g[k].at;
        const uint64_t read = before[gckpti_first_read(p, s, x)], own = before[x + 1] - before[x];
        const uint64_t link = gckpti_gather_work(p, s->item[x]);
        over = over < read ? over : read;
        over = over > link ? over - link : 0;
        g[k].begin = over > own ? over - own : 0;
    }
    return n;
}

/* Each gather goes, in their order, as far ahead as its latest begin and `most` live bytes say, but
 * not before the last use of what was gathered before. Returns how many of them move. */
static int gckpti_move_gathers(gckpti_planner *p, gckpti_gathering *g, int n,
                               const uint64_t *before, size_t most)
{
    const gckpti_draft *d = &p->best;
    const gckpti_schedule *s = &d->s;
    int moved = 0, low = p->prologue;
    size_t *live = (size_t *)gckpti_scratch_take(&p->pass, (size_t)s->length, sizeof *live);
    int *used = (int *)gckpti_scratch_take(&p->pass, (size_t)p->units, sizeof *used);
    for (int x = 0; x < s->length && !p->failed; x++)
        for (int y = d->place[x]; y < d->place[x + 1]; y++)
            live[x] = d->live[y] > live[x] ? d->live[y] : live[x];
    for (int k = 0; k < n && !p->failed; k++) {
        const int x = g[k].at, u = s->item[x];
        const size_t bytes = gckpti_value_bytes(p, p->tensors[p->unit[u].id]);
        low = low > used[u] ? low : used[u];
        g[k].to = x;
        for (int y = x; y-- > low && before[y + 1] > g[k].begin && live[y] + bytes <= most;) {
            live[y] += bytes;
            g[k].to = y;
        }
        moved += g[k].to < x;
        low = g[k].to;
        used[u] = s->value_end[x] + 1;
    }
    return moved;
}

/* Drafts p->best with gathers moved so. 0: none moves, or there is no memory. */
static int gckpti_draft_ahead(gckpti_planner *p, size_t most, gckpt_result *result)
{
    const gckpti_schedule *s = &p->best.s;
    const size_t length = (size_t)s->length + 1;
    gckpti_scratch_clear(&p->pass);
    gckpti_gathering *g = (gckpti_gathering *)gckpti_scratch_take(&p->pass, length, sizeof *g);
    uint64_t *before = (uint64_t *)gckpti_scratch_take(&p->pass, length, sizeof *before);
    int n = p->failed ? 0 : gckpti_list_gathers(p, g, before), next = 0, at = 0;
    if (!n || !gckpti_move_gathers(p, g, n, before, most))
        return 0;
    for (int x = p->prologue; x < s->length; x++) {
        const int i = s->item[x];
        for (; next < n && g[next].to == x; next++)
            gckpti_emit(p, s->item[g[next].at]);
        if (at < n && g[at].at == x)
            at++;
        else if (i >= 0 || p->unit[~i].nth < p->body_backwards)
            gckpti_emit(p, i);
    }
    *result = gckpti_make_draft(p, p->made, (int)p->made_length);
    p->made_length = 0;
    return !p->failed;
}

GCKPTI_FN gckpt_result gckpti_gather_ahead(gckpti_planner *p, size_t arena)
{
    size_t most = arena;
    gckpt_result result = GCKPT_OK;
    for (int tries = p->desc->overlap_communication && p->desc->mode != GCKPT_SCHEDULE ? 4 : 0;
         tries > 0 && result == GCKPT_OK && gckpti_draft_ahead(p, most, &result); tries--) {
        if (result == GCKPT_OK)
            result = gckpti_place_draft(p);
        if (result == GCKPT_OK && p->draft.arena <= arena) {
            gckpti_keep_draft(p);
            break;
        }
        most -= p->draft.arena - arena < most ? p->draft.arena - arena : most;
    }
    return p->failed ? GCKPT_E_MEMORY : gckpti_too_large(p, result) ? GCKPT_OK : result;
}
#endif
