#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- what the search knows of slower memory: the price of a copy, strategies, bounds for copies
 * that overlap computation, and the schedule with such copies ---- */
/* Returns the cost of an offload and a reload of `bytes`, at the search's copy cost. */
GCKPTI_FN uint64_t gckpti_round_trip_cost(const gckpti_search *s, int64_t bytes)
{
    return gckpti_scaled_cost(s->p->copy_cost,
                              2 * gckpti_transfer_cost(s->p->desc->offload.cost, bytes));
}

/* Returns that cost for a node's results, or UINT64_MAX if the current schedule may not offload
 * them. */
GCKPTI_FN uint64_t gckpti_copy_cost(const gckpti_search *s, int node, int64_t bytes)
{
    return s->p->node[node].can_offload && s->now.host_bytes <= s->p->host_limit - bytes
               ? gckpti_round_trip_cost(s, bytes)
               : UINT64_MAX;
}

/* Strategies: { copy cost, n }: at most n eighths of the bytes may be offloaded that could be
 * copied to the host and back during a step without recomputes; n = 0 leaves only the request's
 * limit. Such a limit offloads some of many similar values and recomputes others. */
static const signed char gckpti_strategies[][2] = {
    { GCKPTI_FULL_COPY_COST, 0 }, { 1, 0 }, { 0, 0 }, { 0, 4 }, { 0, 3 }, { 0, 2 }
};

GCKPTI_FN int gckpti_count_strategies(const gckpti_planner *p)
{
    return p->overlap ? (int)(sizeof gckpti_strategies / sizeof *gckpti_strategies) : 1;
}

/* Sets the weight of copies and the limit of slower memory for a strategy. */
GCKPTI_FN void gckpti_begin_strategy(gckpti_planner *p, int strategy)
{
    const uint64_t copied = p->desc->offload.cost / 512 + 1; /* of 1024 bytes there and back */
    const uint64_t most = p->base_cost / copied * (uint64_t)gckpti_strategies[strategy][1];
    p->copy_cost = gckpti_strategies[strategy][0];
    p->host_limit =
        most && most < (uint64_t)(p->max_host_limit >> 7) ? (int64_t)most << 7 : p->max_host_limit;
}

/* ---- lower bounds from the bounds for all copy costs (search/bound) ----
 * If copies overlap computation (gckpti_planner.overlap), a schedule that computes for C and copies
 * for M takes at least max(C, M), hence at least ((8 - a) C + a M) / 8 for each a. That is
 * (8 - a) / 8 of C + M a / (8 - a), which cuts bound with that copy cost. (It is rounded down per
 * node, which only lowers the bound.) a is 0 to 4, since M rarely exceeds C. */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p)
{
    for (; p; p = p->next) {
        if (p->bound)
            continue;
        const size_t copy_costs = (size_t)(GCKPTI_COPY_COSTS - gckpti_lowest_copy_cost(p));
        p->bound = (gckpti_bound *)gckpti_scratch_alloc(&p->scratch, copy_costs, sizeof *p->bound);
        for (int k = gckpti_lowest_copy_cost(p); k < GCKPTI_COPY_COSTS && p->bound; k++)
            gckpti_bound_open(&p->bound[GCKPTI_FULL_COPY_COST - k], p, k, &p->scratch);
    }
}

GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit, int all)
{
    uint64_t most = 0;
    int decider;
    for (int k = gckpti_lowest_copy_cost(p); k < GCKPTI_COPY_COSTS; k++) {
        gckpti_bound *b = &p->bound[GCKPTI_FULL_COPY_COST - k];
        uint64_t cost =
            all ? gckpti_bound_cost(b, limit, &decider) : gckpti_hulls_cost(b, limit, &decider);
        if (cost == UINT64_MAX || !p->overlap)
            return cost;
        cost = gckpti_add_cost(cost, b->base_cost);
        cost -= cost / 8 * (uint64_t)k + cost % 8 * (uint64_t)k / 8; /* x (8 - k) / 8, rounded up */
        cost = cost > b->base_cost ? cost - b->base_cost : 0;
        most = cost > most ? cost : most;
    }
    return most;
}
#endif
