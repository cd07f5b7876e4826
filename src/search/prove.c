#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
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

GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    gckpt_mode mode = p->desc->mode;
    int searched = mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL;
    int64_t limit = b->padding + (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_cost(gckpti_bound_time(p, limit, searched), b->base_cost);
}

GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    int64_t least = b->min_bytes - b->padding;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}
#endif
