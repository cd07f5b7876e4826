#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- what is proven of a model, by its bounds at all prices of copies (search/bound) ----
 * Where copies run beside what is computed (gckpti_planner.beside), neither of the two engines is
 * done before its own work is: with C computed and M copied a schedule takes at least the time
 * ((8 - a) C + a M) / 8, for each a. That is (8 - a) / 8 of C + M a / (8 - a), which cuts bound:
 * copies have a price there. (Rounded down unit by unit, which only lowers it.) With a of 0 to 4: M
 * is rarely more than C. */
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
        cost -= cost / 8 * (uint64_t)k + cost % 8 * (uint64_t)k / 8; /* (8 - k) / 8, rounded up */
        cost = cost > b->base_cost ? cost - b->base_cost : 0;
        most = cost > most ? cost : most;
    }
    return most;
}

GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena)
{
    const gckpti_bound *b = p->bound; /* at the whole price */
    gckpt_mode mode = p->desc->mode;
    int searched = mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL;
    int64_t limit = b->padding + (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_cost(gckpti_bound_time(p, limit, searched), b->base_cost);
}

GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p)
{
    const gckpti_bound *b = p->bound; /* at the whole price */
    int64_t least = b->min_bytes - b->padding;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}
#endif
