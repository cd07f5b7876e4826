#ifndef GCKPT_NO_RANKS
#include "plan/internal.h"

/* ---- prefetch: gathers of sharded values begin before they are read, if there is space ---- */
/* In the model, collectives run one after another and overlap computation, which waits at the first
 * reader of a gather. Gathers keep their order, and none begins or ends later. Times are costs. */
typedef struct {
    int from, to;              /* position of the gather; position before which it moves */
    uint64_t transfer, latest; /* its communication; latest start at which no reader waits */
} gckpti_gather;

/* Returns the first position after x that reads the value of the entry at x. */
static int gckpti_first_read(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    for (int y = x + 1, count; y < s->length; y++)
        for (const int *edges = gckpti_entry_reads(p, s->entry[y], &count); count-- > 0;)
            if (edges[count] == s->entry[x])
                return y;
    return s->length;
}

/* Lists the gathers in the body of p->best, with their latest starts. Returns how many there are.
 * before[x]: cost of the computation before position x. */
static int gckpti_list_gathers(const gckpti_planner *p, gckpti_gather *gathers, uint64_t *before)
{
    const gckpti_schedule *s = &p->best.sched;
    uint64_t deadline = UINT64_MAX; /* latest start of the gather after it */
    int n = 0;
    for (int x = 0; x < s->length; x++) {
        const int i = s->entry[x], u = gckpti_entry_node(p, i);
        const int in_body = i >= p->prologue && i < p->nodes; /* a forward */
        const gckpt_tensor *t = p->tensors[p->node[u].id];
        const uint64_t transfer = in_body ? gckpti_gather_transfer(p, t) : 0;
        before[x + 1] = gckpti_add_cost(before[x], i > u ? 0 : gckpti_entry_cost(p, i) - transfer);
        gathers[n].from = x;
        gathers[n].transfer = transfer;
        n += transfer > 0;
    }
    for (int k = n; k-- > 0;) {
        const int x = gathers[k].from;
        const uint64_t read = before[gckpti_first_read(p, s, x)], cost = before[x + 1] - before[x];
        const uint64_t transfer = gathers[k].transfer;
        deadline = deadline < read ? deadline : read;
        deadline = deadline > transfer ? deadline - transfer : 0;
        gathers[k].latest = deadline > cost ? deadline - cost : 0;
    }
    return n;
}

/* Moves each gather up to its latest start, as far as live bytes stay within `most`, but not before
 * the previous gather or the last use of the node's previous value. Returns how many move. */
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

/* Lowers p->best with gathers moved. Returns 0 if none moves or it is out of memory. */
static int gckpti_lower_prefetched(gckpti_planner *p, size_t most, gckpt_result *result)
{
    const gckpti_schedule *s = &p->best.sched;
    const size_t length = (size_t)s->length + 1;
    gckpti_scratch_clear(&p->temp);
    gckpti_gather *list = (gckpti_gather *)gckpti_scratch_alloc(&p->temp, length, sizeof *list);
    uint64_t *before = (uint64_t *)gckpti_scratch_alloc(&p->temp, length, sizeof *before);
    int n = p->failed ? 0 : gckpti_list_gathers(p, list, before), next = 0, passed = 0;
    if (!n || !gckpti_move_gathers(p, list, n, before, most))
        return 0;
    for (int x = p->prologue; x < s->length; x++) {
        const int i = s->entry[x];
        for (; next < n && list[next].to == x; next++)
            gckpti_emit(p, s->entry[list[next].from]);
        if (passed < n && list[passed].from == x)
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
    for (int iterations = p->desc->ranks.overlap && p->desc->mode != GCKPT_SCHEDULE ? 4 : 0;
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
