#if !defined(GCKPT_NO_SEARCH) && !defined(GCKPT_NO_OFFLOAD)
#include "offload/internal.h"
#include "base/base.h"

/* ---- what the search knows of slower memory: the price of a copy, strategies, and schedules whose
 * copies overlap computation ---- */
/* Returns the cost of an offload and a reload of `bytes`, at the search's copy cost. */
static uint64_t gckpti_round_trip_cost(const gckpti_search *s, int64_t bytes)
{
    return gckpti_scaled_cost(s->p->copy_cost,
                              2 * gckpti_transfer_cost(s->p->desc->offload.cost, bytes));
}

/* Returns that cost for a node's results, or UINT64_MAX if the current schedule may not offload
 * them. */
GCKPTI_FN uint64_t gckpti_copy_cost(const gckpti_search *s, int node, int64_t bytes)
{
    return s->p->node[node].can_copy && s->now.host_bytes <= s->p->host_limit - bytes
               ? gckpti_round_trip_cost(s, bytes)
               : UINT64_MAX;
}

/* Returns the cost of reloading, with its offload, what is read of u's definition at x. */
GCKPTI_FN uint64_t gckpti_restore_cost(const gckpti_search *s, int u, int x)
{
    const int parts = gckpti_parts(s->now.value_end[x], s->now.saved_end[x]);
    return gckpti_round_trip_cost(s, gckpti_parts_bytes(&s->p->node[u], parts));
}

/* Strategies: { copy cost, n }: at most n eighths of the bytes may be offloaded that could be
 * copied to the host and back during a step without recomputes; n = 0 leaves only the request's
 * limit. Such a limit offloads some of many similar values and recomputes others. */
static const signed char gckpti_strategies[GCKPTI_STRATEGIES][2] = {
    { GCKPTI_FULL_COPY_COST, 0 }, { 1, 0 }, { 0, 0 }, { 0, 4 }, { 0, 3 }, { 0, 2 }
};

/* Sets the weight of copies and the limit of slower memory for a strategy. */
GCKPTI_FN void gckpti_begin_strategy(gckpti_planner *p, int strategy)
{
    const uint64_t copied = p->desc->offload.cost / 512 + 1; /* of 1024 bytes there and back */
    const uint64_t most = p->base_cost / copied * (uint64_t)gckpti_strategies[strategy][1];
    p->copy_cost = gckpti_strategies[strategy][0];
    p->host_limit =
        most && most < (uint64_t)(p->max_host_limit >> 7) ? (int64_t)most << 7 : p->max_host_limit;
}

/* ---- overlapping copies with computation: offloaded values stay live until copied, and
 * reloads start early, as far as the limit allows (plan/time) ---- */
/* Returns the position to which the reload at position x moves: where, by the clock s->saving, it
 * starts at time `start`, or later if the limit demands it. Adds its bytes from there on. */
static int gckpti_place_reload(gckpti_search *s, int x, uint64_t start, int64_t limit)
{
    const gckpti_planner *p = s->p;
    gckpti_schedule *now = &s->now;
    const int node = gckpti_entry_node(p, now->entry[x]);
    const int64_t bytes =
        gckpti_parts_bytes(&p->node[node], gckpti_parts(now->value_end[x], now->saved_end[x]));
    int to = x;
    for (; to > 0 && s->saving[to] > start && now->live_bytes[to - 1] + bytes <= limit; to--) {
        int count, i = now->entry[to - 1], uses = gckpti_entry_node(p, i) == node;
        for (const int *edges = gckpti_entry_reads(p, i, &count); count-- > 0;)
            uses = uses || edges[count] == node;
        if (uses)
            break;
        now->live_bytes[to - 1] += bytes;
    }
    return to;
}

/* Sets s->next to the current schedule with earlier reloads. From the last one on, each starts as
 * late as it still ends before its reader and the next copy, if no copy waited. */
static void gckpti_advance_reloads(gckpti_search *s, int64_t limit)
{
    const gckpti_planner *p = s->p;
    const gckpti_schedule *now = &s->now;
    uint64_t due = UINT64_MAX;
    size_t n = 0;
    int y = 0;
    s->saving[0] = 0;
    for (int x = 0; x < now->length; x++)
        s->saving[x + 1] =
            s->saving[x] + (now->entry[x] < p->nodes ? gckpti_entry_cost(p, now->entry[x]) : 0);
    for (int x = now->length; x-- > 0;) {
        if (!gckpti_is_copy_back(p, now->entry[x]))
            continue;
        const int u = gckpti_entry_node(p, now->entry[x]);
        int reader = x + 1, found = 0, count;
        for (; reader < now->length && !found; reader += !found) {
            found = now->entry[reader] == ~u;
            for (const int *edges = gckpti_entry_reads(p, now->entry[reader], &count); count-- > 0;)
                found = found || edges[count] == u;
        }
        uint64_t cost = gckpti_parts_cost(p, u, gckpti_parts(now->value_end[x], now->saved_end[x]));
        due = due < s->saving[reader] ? due : s->saving[reader];
        due = due > cost ? due - cost : 0;
        s->insert[n].key = (uint64_t)gckpti_place_reload(s, x, due, limit) << 32 | (uint64_t)x;
        due = due > s->saving[s->insert[n].key >> 32] ? due : s->saving[s->insert[n].key >> 32];
        s->insert[n++].value = now->entry[x];
    }
    gckpti_sort_keys(s->insert, s->insert + n, n);
    for (size_t k = 0; y < now->length; y++) {
        for (; k < n && (int)(s->insert[k].key >> 32) == y; k++)
            s->next.entry[s->next.length++] = s->insert[k].value;
        if (!gckpti_is_copy_back(p, now->entry[y]))
            s->next.entry[s->next.length++] = now->entry[y];
    }
}

/* Returns the candidate's schedule with copies that overlap computation, in its limit, or NULL if
 * it has no copies or none that can. */
GCKPTI_FN gckpti_candidate *gckpti_overlap_copies(gckpti_search *s, gckpti_candidate *candidate)
{
    const int64_t limit = candidate->limit;
    if (!s->p->overlap || candidate->transfer_cost == 0 || candidate->overlaps)
        return NULL;
    if (candidate->overlapped)
        return candidate->overlapped;
    candidate->overlapped =
        (gckpti_candidate *)gckpti_scratch_alloc(&s->scratch, 1, sizeof *candidate);
    if (!candidate->overlapped || !gckpti_candidate_load(s, candidate))
        return NULL;
    candidate->overlapped->overlaps = 1;
    for (int pass = 0; pass < 2; pass++) {
        const size_t n = 2 * (size_t)s->now.length + 1;
        if (!gckpti_schedule_reserve(&s->scratch, &s->next, (int)n) ||
            !gckpti_reserve(&s->scratch, &s->insert, 2 * n, sizeof *s->insert) ||
            !gckpti_reserve(&s->scratch, &s->saving, n, sizeof *s->saving))
            return NULL;
        s->next.length = 0;
        if (pass == 0)
            (void)gckpti_schedule_time(s->p, &s->now, limit, &s->next);
        else
            gckpti_advance_reloads(s, limit);
        gckpti_accept_next(s);
        gckpti_evaluate(s, &s->now);
        gckpti_reapply_policy(s);
    }
    if (s->now.peak <= limit && !s->p->failed)
        gckpti_candidate_store(s, candidate->overlapped, &s->now);
    return candidate->overlapped;
}
#endif
