#include "planner/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_FRONTIER
/* ---- the frontier ---- */

GCKPT_API void gckpt_frontier_free(gckpt_frontier *f)
{
    if (!f)
        return;
    gckpti_allocator a = f->memory;
    gckpti_planner_free(&f->p);
    gckpti_delete(&a, f, 1, sizeof *f);
}

/* Copies the arrays that desc points to into the frontier. */
static gckpt_result gckpti_frontier_copy(gckpt_frontier *f)
{
    gckpti_planner *p = &f->p;
    gckpt_plan_desc *d = &f->desc;
    gckpti_scratch *s = &p->scratch;
    if (d->costs.by_id)
        d->costs.by_id = (gckpt_cost *)gckpti_scratch_copy(s, d->costs.by_id, (size_t)p->n,
                                                           sizeof *d->costs.by_id);
    d->fetch.specs = (gckpt_fetch_spec *)gckpti_scratch_copy(
        s, d->fetch.specs, (size_t)d->fetch.count, sizeof *d->fetch.specs);
    p->terms =
        (gckpt_term *)gckpti_scratch_copy(s, p->terms, (size_t)p->term_count, sizeof *p->terms);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* Adds the points of a variant's search that improve on those found before. */
static gckpt_result gckpti_frontier_add(gckpt_frontier *f, gckpti_search *s)
{
    gckpti_planner *p = s->p;
    uint64_t forward = p->forward_cost, least = p->least_cost;
    size_t least_bytes = SIZE_MAX;
    for (size_t i = 0; i < f->count; i++)
        if (f->solutions[i].point.bytes - f->resident < least_bytes)
            least_bytes = f->solutions[i].point.bytes - f->resident;
    gckpt_result result = gckpti_lower_min_budget(s, &least_bytes);
    if (result == GCKPT_OK && least_bytes == SIZE_MAX)
        result = GCKPT_E_MEMORY; /* no plan can be addressed; the error text is set */
    for (size_t budget = SIZE_MAX; result == GCKPT_OK && budget > 0 && budget >= least_bytes;) {
        const gckpti_candidate *candidate = &s->winner;
        uint64_t cost = UINT64_MAX; /* of the cheapest point within the budget; its bytes */
        size_t bytes = least_bytes;
        for (size_t i = 0; i < f->count; i++)
            if (f->solutions[i].point.bytes - f->resident <= budget &&
                f->solutions[i].point.cost < cost) {
                cost = f->solutions[i].point.cost;
                bytes = f->solutions[i].point.bytes - f->resident;
            }
        result = gckpti_find_best(s, budget, cost, bytes);
        const size_t arena = candidate->arena;
        const size_t spacing = p->nodes > GCKPTI_SMALL_N ? (arena - least_bytes) / 40 : 0;
        budget = arena > least_bytes ? arena - 1 - spacing : 0;
        if (result != GCKPT_OK || candidate->length == 0)
            continue;
        cost = p->base_cost + candidate->time;
        double recompute = forward ? (double)candidate->recompute_cost / (double)forward : 0;
        gckpti_solution next = {
            { f->resident + arena, cost, recompute, 0, 0 }, p, NULL, candidate->length
        };
        next.point.overhead = least ? (double)(cost - least) / (double)least : 0;
        next.entry = (int *)gckpti_scratch_copy(&p->scratch, candidate->entry,
                                                (size_t)candidate->length, sizeof(int));
        if (!next.entry || !gckpti_reserve(&f->p.scratch, &f->solutions, f->count, sizeof next))
            return GCKPT_E_MEMORY;
        f->solutions[f->count++] = next;
    }
    f->info.complete = f->info.complete && !s->incomplete;
    return result;
}

/* Orders solutions by bytes, then cost, then variant. */
static int gckpti_solution_before(const void *first, const void *second, const void *context)
{
    const gckpti_solution *a = (const gckpti_solution *)first, *b = (const gckpti_solution *)second;
    (void)context;
    if (a->point.bytes != b->point.bytes)
        return a->point.bytes < b->point.bytes;
    const gckpti_variant *v = &a->p->variant, *w = &b->p->variant;
    return a->point.cost != b->point.cost ? a->point.cost < b->point.cost
           : v->lowering != w->lowering   ? v->lowering < w->lowering
                                          : v->no_copies < w->no_copies;
}

/* Searches all variants, places the schedules, and keeps the points that no other dominates. */
static gckpt_result gckpti_frontier_search(gckpt_frontier *f)
{
    gckpt_result result = GCKPT_OK;
    f->resident = gckpti_resident_bytes(&f->p, NULL);
    f->info.complete = 1;
    gckpti_planner *start = gckpti_first_variant(&f->p, SIZE_MAX), *p = start;
    do {
        for (int k = 0; k < (p->overlap ? GCKPTI_STRATEGIES : 1) && result == GCKPT_OK; k++) {
            gckpti_search s;
            result = gckpti_search_open(&s, p, k);
            if (result == GCKPT_OK)
                result = gckpti_frontier_add(f, &s);
            gckpti_scratch_free(&s.scratch);
        }
        gckpti_planner_release(p);
        p = p->next ? p->next : &f->p;
    } while (p != start && result == GCKPT_OK);
    const size_t found = f->count;
    gckpti_sort(f->solutions, found, sizeof *f->solutions, gckpti_solution_before, NULL);
    f->count = 0;
    for (size_t i = 0; i < found; i++)
        if (!f->count || f->solutions[i].point.cost < f->solutions[f->count - 1].point.cost)
            f->solutions[f->count++] = f->solutions[i];
    f->info.points = (int)f->count;
    uint64_t proven = 0; /* a point's bound also holds in fewer bytes */
    for (size_t i = f->count; result == GCKPT_OK && i-- > 0;) {
        gckpt_point *point = &f->solutions[i].point;
        result = gckpti_prove(&f->p, point->bytes, &point->proven_cost, &f->info.proven_bytes);
        if (point->proven_cost < proven)
            point->proven_cost = proven;
        proven = point->proven_cost;
    }
    return result;
}

GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc)
{
    gckpt_plan_desc d;
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
    gckpti_allocator memory = gckpti_allocator_of(&d.memory);
    if (d.mode == GCKPT_INFERENCE || d.memory.memory) {
        gckpti_error(graph, GCKPT_E_ARG, "frontier: %s",
                     d.memory.memory
                         ? "its plans would overwrite it in a block of memory; use the heap"
                         : "an inference plan recomputes nothing");
        return NULL;
    }
    d.mode = GCKPT_OPTIMAL;
    d.budget = 0;
    gckpt_frontier *f = (gckpt_frontier *)gckpti_new(&memory, 1, sizeof *f);
    if (!f) {
        gckpti_error(graph, GCKPT_E_MEMORY, "plan: no memory to plan %z tensors", graph->count);
        return NULL;
    }
    f->object.magic = GCKPTI_MAGIC;
    f->memory = memory;
    f->desc = d;
    gckpt_result result = gckpti_planner_open(&f->p, &f->memory, graph, terms, count, &f->desc);
    if (result == GCKPT_OK)
        result = gckpti_frontier_copy(f);
    if (result == GCKPT_OK)
        result = gckpti_add_variants(&f->p);
    if (result == GCKPT_OK)
        result = gckpti_frontier_search(f);
    gckpti_planner_report(&f->p, result);
    if (result == GCKPT_OK)
        return f;
    gckpt_frontier_free(f);
    return NULL;
}

GCKPT_API gckpt_frontier_info gckpt_frontier_describe(const gckpt_frontier *f)
{
    gckpt_frontier_info info;
    memset(&info, 0, sizeof info);
    return f ? f->info : info;
}

GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *f, int i, gckpt_point *out)
{
    if (!f || !out || i < 0 || (size_t)i >= f->count)
        return GCKPT_E_ARG;
    *out = f->solutions[i].point;
    return GCKPT_OK;
}

GCKPT_API int gckpt_frontier_find(const gckpt_frontier *f, size_t budget)
{
    int found = -1;
    for (size_t i = 0; f && i < f->count && (!budget || f->solutions[i].point.bytes <= budget); i++)
        found = (int)i;
    return found;
}

GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *f, size_t budget)
{
    if (!f || f->p.g->object.sticky != GCKPT_OK)
        return NULL;
    int i = gckpt_frontier_find(f, budget);
    if (i < 0) {
        gckpti_budget_error(&f->p, budget, f->count ? f->solutions[0].point.bytes : 0);
        return NULL;
    }
    gckpti_allocator memory = f->memory;
    gckpti_planner p = *f->solutions[i].p; /* a copy that shares the model and the arrays */
    p.memory = &memory;
    p.next = NULL;
    p.failed = 0; /* if set, only a proof ran out of memory */
    gckpti_planner_reset(&p);
    gckpt_result result = gckpti_lower_schedule(&p, f->solutions[i].entry, f->solutions[i].length);
    if (result == GCKPT_OK)
        result = gckpti_place_buffers(&p, f->solutions[i].point.bytes - f->resident);
    gckpti_keep_lowered(&p);
    gckpt_plan *plan = result == GCKPT_OK ? gckpti_encode_plan(&p, GCKPT_OPTIMAL) : NULL;
    if (plan) {
        const gckpt_point *next =
            budget && (size_t)i + 1 < f->count ? &f->solutions[i + 1].point : NULL;
        gckpti_prove_plan(&f->p, budget, plan);
        if (next && next->proven_cost > plan->proven_cost)
            plan->proven_cost = next->proven_cost;
    }
    gckpti_planner_release(&p);
    gckpti_planner_report(&p, result);
    return plan;
}
#endif
