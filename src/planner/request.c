#ifndef GCKPT_SMALL
#include "planner/internal.h"
#include "graph/graph.h"

/* Returns the variant of the least proven cost in `arena` bytes, which usually wins, or one without
 * memory for its bounds. */
GCKPTI_FN gckpti_planner *gckpti_first_variant(gckpti_planner *first, size_t arena)
{
    gckpti_planner *best = first;
    gckpti_open_bounds(first);
    for (gckpti_planner *p = first; p && !best->failed; p = p->next)
        if (p->failed || gckpti_proven_cost(p, arena) < gckpti_proven_cost(best, arena))
            best = p;
    return best;
}

/* Plans the variants in the list from `first` on in a mode. Returns the one whose plan costs least
 * in `arena` bytes, or NULL if none fits or *result is an error. Sets *needed to the fewest bytes
 * of a plan that can be addressed. */
static gckpti_planner *gckpti_plan_variants(gckpti_planner *first, gckpt_mode mode, size_t arena,
                                            size_t *needed, gckpt_result *result)
{
    const int searches = mode == GCKPT_OPTIMAL;
    gckpti_planner *best = NULL, *start = searches ? gckpti_first_variant(first, arena) : first,
                   *p = start;
    *needed = SIZE_MAX;
    do {
        const gckpti_lowered *plan = &p->best, *least = best ? &best->best : NULL;
        size_t bytes = best ? SIZE_MAX : *needed;
        *result = p->failed  ? GCKPT_E_MEMORY
                  : searches ? gckpti_plan_optimal(p, arena, least, &bytes)
                             : gckpti_plan_mode(p, mode);
        if (*result != GCKPT_OK && !gckpti_is_too_large(p, *result))
            return NULL;
        if (*result == GCKPT_OK && !searches)
            bytes = plan->arena;
        const int better = !least || plan->cost < least->cost ||
                           (plan->cost == least->cost && plan->arena < least->arena);
        gckpti_planner *worse = better && bytes <= arena ? best : p;
        best = worse == p ? best : p;
        if (worse && searches)
            gckpti_planner_release(worse);
        *needed = bytes < *needed ? bytes : *needed;
        p = p->next ? p->next : first;
    } while (p != start);
    *result = GCKPT_OK;
    return best;
}

/* Plans the request with the variants in the list from `first` on. If it returns NULL, *result is
 * the error, or GCKPT_OK if the budget is too small; then *least bytes would suffice. */
static gckpt_plan *gckpti_plan_request(gckpti_planner *first, gckpt_result *result, size_t *least)
{
    const size_t resident = gckpti_resident_bytes(first, NULL), budget = first->desc->budget;
    const size_t left = !budget ? SIZE_MAX : budget > resident ? budget - resident : 0;
    const size_t arena = left < PTRDIFF_MAX ? left : (size_t)PTRDIFF_MAX;
    const int automatic = first->desc->mode == GCKPT_AUTO;
    gckpt_mode mode = automatic ? GCKPT_STORE_ALL : first->desc->mode;
    size_t needed;
    gckpti_planner *best = gckpti_plan_variants(first, mode, arena, &needed, result);
    if (*result == GCKPT_OK && automatic && GCKPTI_RUNS_SEARCH && budget &&
        !(best && best->best.cost <= first->least_cost)) {
        mode = GCKPT_OPTIMAL;
        best = gckpti_plan_variants(first, mode, arena, &needed, result);
    }
    best = budget && budget < resident ? NULL : best;
    *least = resident + needed;
    if (*result == GCKPT_OK && needed == SIZE_MAX)
        *result = GCKPT_E_MEMORY;
    if (!best || *result != GCKPT_OK)
        return NULL;
    gckpt_plan *plan = gckpti_encode_plan(best, mode);
    *result = plan ? GCKPT_OK : GCKPT_E_MEMORY;
    return plan;
}

/* Sets *cost, which no schedule within `bytes` can undercut, and *least, the bytes that every
 * schedule needs: minima over all variants. */
GCKPTI_FN gckpt_result gckpti_prove(const gckpti_planner *first, size_t bytes, uint64_t *cost,
                                    size_t *least)
{
    const size_t resident = gckpti_resident_bytes(first, NULL);
    *cost = UINT64_MAX;
    *least = SIZE_MAX;
    for (const gckpti_planner *p = first; p; p = p->next) {
        if (p->failed)
            return GCKPT_E_MEMORY;
        const uint64_t p_cost = gckpti_proven_cost(p, bytes - resident);
        const size_t p_least = resident + gckpti_proven_bytes(p);
        *cost = p_cost < *cost ? p_cost : *cost;
        *least = p_least < *least ? p_least : *least;
    }
    return GCKPT_OK;
}

/* Sets a plan's proven bounds for `budget` (if 0, for the plan's own bytes). If out of memory, sets
 * weak bounds that hold for every plan, since the plan itself is complete. */
GCKPTI_FN void gckpti_prove_plan(const gckpti_planner *first, size_t budget, gckpt_plan *plan)
{
    const size_t bytes = budget ? budget : gckpt_plan_bytes(plan);
    if (gckpti_prove(first, bytes, &plan->proven_cost, &plan->proven_bytes) == GCKPT_OK)
        return;
    plan->proven_cost = first->least_cost;
    plan->proven_bytes = gckpti_resident_bytes(first, NULL);
}

GCKPT_API gckpt_plan *gckpt_plan_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc)
{
    gckpt_plan_desc d;
    gckpti_planner p;
    gckpt_plan *plan = NULL;
    size_t least = 0;
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    memset(&d, 0, sizeof d);
    memset(&p, 0, sizeof p);
    if (desc)
        d = *desc;
    gckpti_allocator memory = gckpti_allocator_of(&d.memory);
    gckpt_result result = gckpti_planner_open(&p, &memory, graph, terms, count, &d);
    if (GCKPTI_HAS_VARIANTS && result == GCKPT_OK)
        result = gckpti_add_variants(&p);
    if (result == GCKPT_OK)
        plan = gckpti_plan_request(&p, &result, &least);
    gckpti_planner_report(&p, result);
    if (plan) {
        int budget = d.mode == GCKPT_AUTO || d.mode == GCKPT_OPTIMAL;
        gckpti_open_bounds(&p);
        gckpti_prove_plan(&p, budget ? d.budget : 0, plan);
    }
    gckpti_planner_free(&p);
    if (result == GCKPT_OK && !plan && !p.failed)
        gckpti_budget_error(&p, d.budget, least);
    return gckpti_plan_compact(plan);
}
#endif
