#ifndef GCKPT_SMALL
#include "planner/internal.h"
#include "graph/graph.h"

/* Initialises the lowered plans of a planner. */
GCKPTI_FN void gckpti_planner_reset(gckpti_planner *p)
{
    memset(&p->lowered, 0, sizeof p->lowered);
    p->lowered.scratch = p->temp = gckpti_scratch_new(p->memory, &p->failed);
    p->best = p->lowered;
}

/* Frees the memory of schedules and lowered plans, but not the model. */
GCKPTI_FN void gckpti_planner_release(gckpti_planner *p)
{
    gckpti_delete(p->memory, p->entries, p->entry_capacity, sizeof *p->entries);
    gckpti_scratch_free(&p->lowered.scratch);
    gckpti_scratch_free(&p->best.scratch);
    gckpti_scratch_free(&p->temp);
    p->entries = NULL;
    p->entry_capacity = 0;
}

/* Frees a planner and those of the variants after it. */
GCKPTI_FN void gckpti_planner_free(gckpti_planner *p)
{
    for (gckpti_planner *q = p, *next; q; q = next) {
        next = q->next;
        gckpti_planner_release(q);
        gckpti_scratch_free(&q->scratch);
        if (q != p)
            gckpti_delete(p->memory, q, 1, sizeof *q);
    }
    p->next = NULL;
}

/* Checks a request and builds the model of p->variant, or none if no op uses that. The other
 * fields of p are 0 at first. The caller always frees p. */
GCKPTI_FN gckpt_result gckpti_planner_open(gckpti_planner *p, gckpti_allocator *memory,
                                           gckpt_graph *graph, const gckpt_term *terms, int count,
                                           const gckpt_plan_desc *d)
{
    p->memory = memory;
    p->g = graph;
    p->desc = d;
    p->terms = terms;
    p->term_count = count;
    p->n = (int)graph->count;
    p->threads = d->threads ? d->threads : 1;
    p->alignment = d->kernels.alignment ? d->kernels.alignment : 64;
    p->inference = d->mode == GCKPT_INFERENCE;
    p->accumulates = !p->inference && d->batch > graph->rows;
    p->plain = !GCKPTI_RUNS_FAST || d->kernels.plain != 0 || d->backend;
    gckpti_planner_reset(p);
    gckpt_result result = gckpti_check_request(graph, terms, count, d);
    if (result == GCKPT_OK)
        result = gckpti_model_ops(p);
    if (result != GCKPT_OK || p->unused)
        return result;
    int trains = p->inference;
    for (int i = 0; i < p->n; i++)
        trains = trains || p->active[i];
    result = gckpti_check_fetches(p);
    if (result == GCKPT_OK && !trains)
        result = gckpti_error(p->g, GCKPT_E_ARG,
                              "plan: no trainable parameter leads to a loss (all frozen?) and "
                              "no gradient is fetched; there is nothing to train");
    if (result == GCKPT_OK)
        result = gckpti_model_nodes(p);
    return result != GCKPT_OK || gckpti_resident_bytes(p, NULL) <= PTRDIFF_MAX
               ? result
               : gckpti_error(p->g, GCKPT_E_MEMORY,
                              "plan: the values that are kept between steps have more bytes than "
                              "this machine can address; use a smaller network");
}

/* Returns the bytes that an op takes in addition to its operands, forward and backward. */
static size_t gckpti_extra_bytes(const gckpti_planner *p, int id)
{
    size_t forward = p->workspace_forward[id], backward = p->workspace_backward[id];
    return p->tensors[id]->saved_bytes + (forward > backward ? forward : backward);
}

/* Returns whether an op of q, another variant of p's request, costs less or takes fewer bytes. */
static int gckpti_is_cheaper(const gckpti_planner *q, const gckpti_planner *p)
{
    int better = p->nodes != q->nodes || p->edge_count != q->edge_count;
    for (int i = 0; i < p->n && !better; i++)
        better =
            q->cost[i].forward + q->cost[i].backward < p->cost[i].forward + p->cost[i].backward ||
            gckpti_extra_bytes(q, i) < gckpti_extra_bytes(p, i);
    return better;
}

/* Appends the planner of variant v of p's request to the list, if v applies and some op costs less
 * or takes fewer bytes than in each variant of the list with the same no_copies. */
static gckpt_result gckpti_add_variant(gckpti_planner *p, gckpti_variant v)
{
    gckpti_planner *q = (gckpti_planner *)gckpti_new(p->memory, 1, sizeof *q), *last = p;
    p->failed = !q;
    if (!q)
        return GCKPT_E_MEMORY;
    q->variant = v;
    q->built_model_cost = p->model_cost;
    const gckpt_result result =
        gckpti_planner_open(q, p->memory, p->g, p->terms, p->term_count, p->desc);
    int of_use = result == GCKPT_OK && !q->unused;
    for (const gckpti_planner *r = p; r && of_use; r = r->next)
        of_use = r->variant.no_copies != v.no_copies || gckpti_is_cheaper(q, r);
    p->failed = result == GCKPT_E_MEMORY;
    if (of_use) {
        while (last->next)
            last = last->next;
        last->next = q;
        p->least_cost = q->least_cost < p->least_cost ? q->least_cost : p->least_cost;
        return GCKPT_OK;
    }
    gckpti_planner_free(q);
    gckpti_delete(p->memory, q, 1, sizeof *q);
    return result;
}

/* Returns 0 if no ops can be fused over row tiles, 1 if perhaps (certainty would take memory). */
static int gckpti_may_fuse(const gckpti_planner *p)
{
    int ops = 0;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        ops += t->kind == GCKPTI_OP && !t->batch_invariant && !p->active[i] && t->shape.n > 2;
    }
    return ops > 1;
}

/* Appends planners for the other variants that a request may choose from: lowerings, fused groups
 * (of the CPU), and all of these without copies, where a search may find better plans. */
GCKPTI_FN gckpt_result gckpti_add_variants(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    const int optimal = d->mode == GCKPT_AUTO || d->mode == GCKPT_OPTIMAL;
    const int rewrites = !d->schedule.as_built, lowers = optimal && rewrites;
    const int fuses = GCKPTI_RUNS_TILES && !gckpti_is_rounded(d) && !d->backend && rewrites &&
                      (lowers || p->inference) && gckpti_may_fuse(p);
    gckpt_result result = GCKPT_OK;
    for (int k = 1; k < 4 * GCKPTI_LOWERINGS && result == GCKPT_OK; k++) {
        const gckpti_variant v = { k % GCKPTI_LOWERINGS, k / GCKPTI_LOWERINGS % 2,
                                   k / GCKPTI_LOWERINGS / 2 };
        if ((!v.lowering || lowers) && (!v.fused || fuses) &&
            (!v.no_copies || (optimal && p->host_limit > 0)))
            result = gckpti_add_variant(p, v);
    }
    for (gckpti_planner *q = p->next; q; q = q->next)
        q->least_cost = p->least_cost;
    return result;
}

/* Reports the result of a planner on its graph, unless an error is there already. */
GCKPTI_FN void gckpti_planner_report(const gckpti_planner *p, gckpt_result result)
{
    int failed = 0;
    for (const gckpti_planner *q = p; q; q = q->next)
        failed = failed || q->failed;
    if (failed) {
        gckpti_error(p->g, GCKPT_E_MEMORY, "plan: no memory to plan %z tensors", p->g->count);
        gckpti_hint_block(p->g, "plan", p->memory, 0);
    } else if (result == GCKPT_OK) {
        gckpti_ok(p->g);
    }
}

/* Reports that a budget is too small, with the least budget. */
GCKPTI_FN void gckpti_budget_error(const gckpti_planner *p, size_t budget, size_t least)
{
    gckpt_mode mode = p->desc->mode;
    int searched = GCKPTI_RUNS_SEARCH ? mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL : 0;
    gckpti_error(p->g, GCKPT_E_BUDGET,
                 "budget %z bytes is too small: this graph needs at least %z%s", budget, least,
                 mode == GCKPT_INFERENCE || searched
                     ? ""
                     : " in this mode (others may need less; GCKPT_AUTO with the search, which "
                       "GCKPT_NO_SEARCH leaves out, needs least)");
}
#endif
