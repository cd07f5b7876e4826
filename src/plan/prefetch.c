#ifndef GCKPT_NO_RANKS
#include "plan/internal.h"

/* ---- ahead: gathers of cut values begin before they are read, in bytes that are left ---- */
/* By a model in which ranks exchange one thing after the other, beside what is computed, which
 * waits at a gather's first reader. Gathers keep their order and none begins later, so none is over
 * later; a sum may have to wait for one of them. Times are work. */
typedef struct {
    int from, to;    /* its item; before which item it is to stand */
    uint64_t latest; /* when it begins at the latest, if nothing is to wait for it */
} gckpti_gather;

/* Work of the link: of the gather of item i; 0: it is none. */
static uint64_t gckpti_gather_cost(const gckpti_planner *p, int i)
{
    const gckpt_tensor *t = p->tensors[p->node[gckpti_entry_node(p, i)].id];
    const size_t whole = gckpti_value_bytes(p, t);
    return i >= p->prologue && i < p->nodes && gckpti_is_gathered(p, t)
               ? gckpti_transfer_cost(p->desc->link_cost,
                                      (int64_t)(whole - gckpti_shard_bytes(p, t)))
               : 0;
}

/* The first item behind x that reads what the unit of item x makes. */
static int gckpti_first_read(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    for (int y = x + 1, count; y < s->length; y++)
        for (const int *edges = gckpti_entry_reads(p, s->entry[y], &count); count-- > 0;)
            if (edges[count] == s->entry[x])
                return y;
    return s->length;
}

/* Lists the gathers of the body of p->best, n of them, with the latest times at which they begin;
 * before[x]: work of what is computed before item x. */
static int gckpti_list_gathers(const gckpti_planner *p, gckpti_gather *gathers, uint64_t *before)
{
    const gckpti_schedule *s = &p->best.sched;
    uint64_t deadline = UINT64_MAX; /* when the link is needed for the next one */
    int n = 0;
    for (int x = 0; x < s->length; x++) {
        const int i = s->entry[x], u = gckpti_entry_node(p, i);
        const uint64_t transfer = gckpti_gather_cost(p, i);
        before[x + 1] = gckpti_add_cost(before[x], i < 0    ? p->cost[p->node[u].id].backward
                                                   : i == u ? p->node[u].cost - transfer
                                                            : 0);
        if (transfer)
            gathers[n++].from = x;
    }
    for (int k = n; k-- > 0;) {
        const int x = gathers[k].from;
        const uint64_t read = before[gckpti_first_read(p, s, x)],
                       compute = before[x + 1] - before[x];
        const uint64_t transfer = gckpti_gather_cost(p, s->entry[x]);
        deadline = deadline < read ? deadline : read;
        deadline = deadline > transfer ? deadline - transfer : 0;
        gathers[k].latest = deadline > compute ? deadline - compute : 0;
    }
    return n;
}

/* Each gather goes, in their order, as far ahead as its latest begin and `most` live bytes say, but
 * not before the last use of what was gathered before. Returns how many of them move. */
static int gckpti_move_gathers(gckpti_planner *p, gckpti_gather *gathers, int n,
                               const uint64_t *before, size_t most)
{
    const gckpti_lowered *d = &p->best;
    const gckpti_schedule *s = &d->sched;
    int moved = 0, earliest = p->prologue;
    size_t *live = (size_t *)gckpti_scratch_alloc(&p->temp, (size_t)s->length, sizeof *live);
    int *used = (int *)gckpti_scratch_alloc(&p->temp, (size_t)p->nodes, sizeof *used);
    for (int x = 0; x < s->length && !p->failed; x++)
        for (int y = d->entry_ins[x]; y < d->entry_ins[x + 1]; y++)
            live[x] = d->live_bytes[y] > live[x] ? d->live_bytes[y] : live[x];
    for (int k = 0; k < n && !p->failed; k++) {
        const int x = gathers[k].from, u = s->entry[x];
        const size_t bytes = gckpti_value_bytes(p, p->tensors[p->node[u].id]);
        earliest = earliest > used[u] ? earliest : used[u];
        gathers[k].to = x;
        for (int y = x;
             y-- > earliest && before[y + 1] > gathers[k].latest && live[y] + bytes <= most;) {
            live[y] += bytes;
            gathers[k].to = y;
        }
        moved += gathers[k].to < x;
        earliest = gathers[k].to;
        used[u] = s->value_end[x] + 1;
    }
    return moved;
}

/* Drafts p->best with gathers moved so. 0: none moves, or there is no memory. */
static int gckpti_lower_prefetched(gckpti_planner *p, size_t most, gckpt_result *result)
{
    const gckpti_schedule *s = &p->best.sched;
    const size_t length = (size_t)s->length + 1;
    gckpti_scratch_clear(&p->temp);
    gckpti_gather *gathers =
        (gckpti_gather *)gckpti_scratch_alloc(&p->temp, length, sizeof *gathers);
    uint64_t *before = (uint64_t *)gckpti_scratch_alloc(&p->temp, length, sizeof *before);
    int n = p->failed ? 0 : gckpti_list_gathers(p, gathers, before), next = 0, passed = 0;
    if (!n || !gckpti_move_gathers(p, gathers, n, before, most))
        return 0;
    for (int x = p->prologue; x < s->length; x++) {
        const int i = s->entry[x];
        for (; next < n && gathers[next].to == x; next++)
            gckpti_emit(p, s->entry[gathers[next].from]);
        if (passed < n && gathers[passed].from == x)
            passed++;
        else if (i >= 0 || p->node[~i].backward_index < p->body_backwards)
            gckpti_emit(p, i);
    }
    *result = gckpti_lower_schedule(p, p->entries, (int)p->entry_count);
    p->entry_count = 0;
    return !p->failed;
}

GCKPTI_FN gckpt_result gckpti_prefetch_gathers(gckpti_planner *p, size_t arena)
{
    size_t most = arena;
    gckpt_result result = GCKPT_OK;
    for (int iterations = p->desc->overlap_communication && p->desc->mode != GCKPT_SCHEDULE ? 4 : 0;
         iterations > 0 && result == GCKPT_OK && gckpti_lower_prefetched(p, most, &result);
         iterations--) {
        if (result == GCKPT_OK)
            result = gckpti_place_buffers(p);
        if (result == GCKPT_OK && p->lowered.arena <= arena) {
            gckpti_keep_lowered(p);
            break;
        }
        most -= p->lowered.arena - arena < most ? p->lowered.arena - arena : most;
    }
    return p->failed ? GCKPT_E_MEMORY : gckpti_is_too_large(p, result) ? GCKPT_OK : result;
}
#endif
