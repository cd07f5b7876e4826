#ifndef GCKPT_NO_RANKS
#include "plan/own.h"
#include "graph/graph.h"

/* ---- ahead: gathers of cut values begin before they are read, in bytes that are left ---- */
/* What ranks exchange runs beside what is computed, one thing after the other, in the order of the
 * instructions that begin it; what is computed waits at the first item that reads what is gathered,
 * and a REDUCE for the one before. Times are work. */
typedef struct {
    int at, to;     /* its item; before which item it is to stand */
    uint64_t begin; /* when it begins at the latest, if nothing is to wait for it */
} gckpti_gathering;

/* Work of the link: of the gather of a unit, of a REDUCE. */
static uint64_t gckpti_gather_work(const gckpti_planner *p, int unit)
{
    const gckpt_tensor *t = p->tensors[p->unit[unit].id];
    const size_t whole = gckpti_value_bytes(p, t);
    return gckpti_is_gathered(p, t)
               ? gckpti_copy_work(p->desc->link_work, (int64_t)(whole - gckpti_share_bytes(p, t)))
               : 0;
}

static uint64_t gckpti_reduce_work(const gckpti_planner *p, int id)
{
    const int64_t n = gckpti_elements(&p->tensors[id]->shape);
    const int64_t share = gckpti_share_of(n, 0, p->g->store->ranks).count;
    return gckpti_copy_work(p->desc->link_work, (gckpti_scatters(p, id) ? 4 : 8) * (n - share));
}

/* Of an item, without what others do beside it. */
static uint64_t gckpti_own_work(const gckpti_planner *p, int item)
{
    const int u = gckpti_unit_of(p, item);
    return item < 0    ? p->cost[p->unit[u].id].backward
           : item == u ? p->unit[u].cost - gckpti_gather_work(p, u)
                       : 0;
}

/* The time of a schedule. */
static uint64_t gckpti_time_beside(gckpti_planner *p, const gckpti_schedule *s)
{
    uint64_t now = 0, link = 0, sum = 0; /* link, sum: when it, or the latest sum, is over */
    gckpti_scratch_clear(&p->pass);
    uint64_t *over = (uint64_t *)gckpti_scratch_take(&p->pass, (size_t)p->units, sizeof *over);
    for (int x = 0; x < s->length && over; x++) {
        const int i = s->item[x], u = gckpti_unit_of(p, i);
        int count;
        for (const int *links = gckpti_reads(p, i, &count); count-- > 0;)
            now = over[links[count]] > now ? over[links[count]] : now;
        now = gckpti_add_work(now, gckpti_own_work(p, i));
        link = link > now ? link : now;
        if (i == u)
            over[u] = link = gckpti_add_work(link, gckpti_gather_work(p, u));
        for (int k = 0; i < 0 && k < p->unit[u].reduces && !p->looped; k++) {
            now = now > sum ? now : sum;
            link = link > now ? link : now;
            const int id = p->reduction[p->unit[u].reduce + k].id;
            sum = link = gckpti_add_work(link, gckpti_reduce_work(p, id));
        }
    }
    return now > link ? now : link;
}

/* The first item behind x that reads what the unit of item x makes. */
static int gckpti_first_read(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    for (int y = x + 1; y < s->length; y++) {
        int count;
        for (const int *links = gckpti_reads(p, s->item[y], &count); count-- > 0;)
            if (links[count] == s->item[x])
                return y;
    }
    return s->length;
}

/* Lists the gathers of the body of p->best, n of them, with the latest times at which they begin;
 * before[x]: work of what stands before item x. */
static int gckpti_list_gathers(const gckpti_planner *p, gckpti_gathering *g, uint64_t *before)
{
    const gckpti_schedule *s = &p->best.s;
    uint64_t latest = UINT64_MAX;
    int n = 0;
    for (int x = 0; x < s->length; x++) {
        const int i = s->item[x];
        before[x + 1] = gckpti_add_work(before[x], gckpti_own_work(p, i));
        if (i >= p->prologue && i < p->units && gckpti_is_gathered(p, p->tensors[p->unit[i].id]))
            g[n++].at = x;
    }
    for (int k = n; k-- > 0;) {
        const uint64_t read = before[gckpti_first_read(p, s, g[k].at)],
                       work = gckpti_gather_work(p, s->item[g[k].at]);
        latest = latest < read ? latest : read;
        g[k].begin = latest = latest > work ? latest - work : 0;
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
    size_t *live =
        (size_t *)gckpti_scratch_take(&p->pass, (size_t)s->length + 1, sizeof *live);
    int *free_at = (int *)gckpti_scratch_take(&p->pass, (size_t)p->units, sizeof *free_at);
    for (int x = 0; x < s->length && !p->failed; x++)
        for (int y = d->place[x]; y < d->place[x + 1]; y++)
            live[x] = d->live[y] > live[x] ? d->live[y] : live[x];
    for (int k = 0; k < n && !p->failed; k++) {
        const int x = g[k].at, u = s->item[x];
        const size_t bytes = gckpti_value_bytes(p, p->tensors[p->unit[u].id]);
        int y = x;
        low = low > free_at[u] ? low : free_at[u];
        for (; y > low && before[y] > g[k].begin && live[y - 1] <= most &&
               bytes <= most - live[y - 1];
             y--)
            live[y - 1] += bytes;
        free_at[u] = s->value_end[x] + 1;
        moved += y < x;
        g[k].to = low = y;
    }
    return moved;
}

/* What p->best would be with its gathers moved so: a body, in p->made. 0: it is that. */
static int gckpti_make_ahead(gckpti_planner *p, size_t most)
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
        if (i < 0 && p->unit[~i].nth >= p->body_backwards) /* the epilogue is not made */
            break;
        for (; next < n && g[next].to == x; next++)
            gckpti_emit(p, s->item[g[next].at]);
        if (at < n && g[at].at == x)
            at++;
        else
            gckpti_emit(p, i);
    }
    return !p->failed;
}

GCKPTI_FN gckpt_result gckpti_gather_ahead(gckpti_planner *p, size_t arena)
{
    size_t most = arena;
    gckpt_result result = GCKPT_OK;
    if (!p->desc->link_beside || p->desc->mode == GCKPT_SCHEDULE)
        return GCKPT_OK;
    for (int tries = 4; tries > 0 && gckpti_make_ahead(p, most); tries--) {
        result = gckpti_make_draft(p, p->made, (int)p->made_length);
        p->made_length = 0;
        if (result == GCKPT_OK)
            result = gckpti_place_draft(p);
        if (result != GCKPT_OK)
            break;
        if (p->draft.arena <= arena) { /* with fewer bytes ahead it would have less time, if any */
            if (gckpti_time_beside(p, &p->draft.s) < gckpti_time_beside(p, &p->best.s))
                gckpti_keep_draft(p);
            break;
        }
        most -= p->draft.arena - arena < most ? p->draft.arena - arena : most;
    }
    return p->failed ? GCKPT_E_MEMORY : gckpti_too_large(p, result) ? GCKPT_OK : result;
}
#endif
