#ifndef GCKPT_SMALL
#include "planner/internal.h"
#include "graph/graph.h"

/* Returns the bytes of the budget that remain for the arena, at most PTRDIFF_MAX. Sets *fits to 0
 * if the resident bytes alone exceed the budget. */
static size_t gckpti_arena_budget(const gckpti_planner *p, int *fits)
{
    size_t resident = gckpti_resident_bytes(p, NULL);
    size_t budget = p->desc->budget ? p->desc->budget : SIZE_MAX;
    size_t left = budget > resident ? budget - resident : 0;
    *fits = budget >= resident;
    return left < PTRDIFF_MAX ? left : (size_t)PTRDIFF_MAX;
}

/* Returns the variant of least proven cost (opens the bounds of all variants). */
static gckpti_planner *gckpti_most_promising(gckpti_planner *first, size_t arena)
{
    gckpti_planner *least = first;
    gckpti_open_bounds(first);
    for (gckpti_planner *p = first; p && !p->failed; p = p->next)
        if (gckpti_proven_cost(p, arena) < gckpti_proven_cost(least, arena))
            least = p;
    return least;
}

/* Returns the variant to plan after p: `promising` is first, then the others in order. */
static gckpti_planner *gckpti_next_variant(gckpti_planner *p, const gckpti_planner *promising,
                                           gckpti_planner *first)
{
    p = p == promising ? first : p->next;
    return p == promising ? p->next : p;
}

/* Plans the request with the variants in the list from `first` on. If it returns NULL, *result is
 * the error, or GCKPT_OK if the budget is too small; then *least bytes would suffice. */
static gckpt_plan *gckpti_plan_request(gckpti_planner *first, gckpt_result *result, size_t *least)
{
    gckpt_mode mode = first->desc->mode;
    int automatic = mode == GCKPT_AUTO, fits;
    size_t arena = gckpti_arena_budget(first, &fits), needed, bytes = SIZE_MAX;
    gckpti_planner *best;
    for (mode = automatic ? GCKPT_STORE_ALL : mode;; mode = GCKPT_OPTIMAL) {
        uint64_t base_cost = UINT64_MAX; /* least cost of any variant without recomputation */
        best = NULL;
        needed = SIZE_MAX;
        gckpti_planner *promising =
            mode == GCKPT_OPTIMAL ? gckpti_most_promising(first, arena) : first;
        for (gckpti_planner *p = promising; p; p = gckpti_next_variant(p, promising, first)) {
            *result = p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
            if (p->failed)
                return NULL;
            if (mode == GCKPT_OPTIMAL) {
                if (best && best->best.cost <= gckpti_proven_cost(p, arena))
                    continue;
                *result = gckpti_plan_optimal(p, arena, &bytes);
            } else {
                *result = gckpti_plan_mode(p, mode);
                bytes = p->best.arena;
            }
            if (gckpti_is_too_large(p, *result)) /* it needs more bytes than can be addressed */
                bytes = SIZE_MAX;
            else if (*result != GCKPT_OK)
                return NULL;
            else if (p->base_cost < base_cost)
                base_cost = p->base_cost;
            const int better =
                fits && bytes <= arena &&
                (!best || p->best.cost < best->best.cost ||
                 (p->best.cost == best->best.cost && p->best.arena < best->best.arena));
            gckpti_planner *worse = better ? best : p;
            best = better ? p : best;
            if (worse && mode == GCKPT_OPTIMAL)
                gckpti_planner_release(worse);
            needed = bytes < needed ? bytes : needed;
        }
        if (!automatic || mode == GCKPT_OPTIMAL || !GCKPTI_HAS_SEARCH || !first->desc->budget ||
            (best && best->best.cost <= base_cost))
            break;
    }
    *result = !best && needed == SIZE_MAX ? GCKPT_E_MEMORY : GCKPT_OK;
    *least = gckpti_resident_bytes(first, NULL) + needed;
    if (best)
        *result = gckpti_prefetch_gathers(best, first->desc->budget ? arena : best->best.arena);
    gckpt_plan *plan = best && *result == GCKPT_OK ? gckpti_encode_plan(best, mode) : NULL;
    if (best && !plan && *result == GCKPT_OK)
        *result = GCKPT_E_MEMORY;
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
