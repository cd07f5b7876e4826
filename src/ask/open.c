#include "ask/own.h"
#include "graph/graph.h"

/* A planner without drafts, yet. */
GCKPTI_FN void gckpti_planner_drafts(gckpti_planner *p)
{
    memset(&p->draft, 0, sizeof p->draft);
    p->draft.scratch = p->pass = gckpti_scratch_new(p->memory, &p->failed);
    p->best = p->draft;
}

/* Gives back all but the model. */
GCKPTI_FN void gckpti_planner_rest(gckpti_planner *p)
{
    gckpti_delete(p->memory, p->made, p->made_capacity, sizeof *p->made);
    gckpti_scratch_free(&p->draft.scratch);
    gckpti_scratch_free(&p->best.scratch);
    gckpti_scratch_free(&p->pass);
    p->made = NULL;
    p->made_capacity = 0;
}

GCKPTI_FN void gckpti_planner_free(gckpti_planner *p)
{
    for (gckpti_planner *q = p, *next; q; q = next) {
        next = q->next;
        gckpti_planner_rest(q);
        gckpti_scratch_free(&q->scratch);
        if (q != p)
            gckpti_delete(p->memory, q, 1, sizeof *q);
    }
    p->next = NULL;
}

GCKPTI_FN gckpt_result gckpti_make_model(gckpti_planner *p)
{
    gckpti_planner_drafts(p);
    p->most_far = p->far = p->variant.near ? 0 : p->far;
    p->beside = p->far > 0 && p->desc->overlap_offload;
    p->price = GCKPTI_WHOLE_PRICE;
    gckpt_result result = gckpti_model_ops(p);
    int trains = p->inference;
    if (result != GCKPT_OK || !gckpti_is_offered(p))
        return result;
    for (int i = 0; i < p->n; i++)
        trains = trains || p->active[i];
    result = gckpti_check_fetches(p);
    if (result == GCKPT_OK && !trains)
        result = gckpti_error(p->g, GCKPT_E_ARG,
                              "plan: no trainable parameter leads to a loss (all frozen?) and "
                              "no gradient is picked; there is nothing to train");
    if (result != GCKPT_OK)
        return result;
    result = gckpti_model_units(p);
    return result != GCKPT_OK || gckpti_resident(p, NULL) <= PTRDIFF_MAX
               ? result
               : gckpti_error(p->g, GCKPT_E_MEMORY,
                              "plan: parameters, their state and caches have more bytes than this "
                              "machine can address; use a smaller network, or shorter caches");
}

/* Rows of a request's largest leaf. */
GCKPTI_FN int64_t gckpti_largest_leaf(const gckpt_plan_desc *d, const gckpt_graph *g)
{
    int64_t batch = g && d->batch <= 0 ? g->rows : d->batch, leaves = d->virtual_ranks ? d->virtual_ranks : 1;
    return batch / leaves + (batch % leaves > 0);
}

GCKPTI_FN gckpt_result gckpti_planner_start(gckpti_planner *p, gckpti_allocator *memory,
                                            gckpt_graph *graph, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d)
{
    memset(p, 0, sizeof *p);
    p->memory = memory;
    p->g = graph;
    p->desc = d;
    p->terms = terms;
    p->term_count = count;
    p->n = (int)graph->count;
    p->threads = d->threads ? d->threads : 1;
    p->alignment = d->alignment ? d->alignment : 64;
    p->inference = d->mode == GCKPT_INFERENCE;
    p->leaves = d->virtual_ranks ? d->virtual_ranks : 1;
    p->levels = p->inference ? 0 : gckpti_levels(p->leaves / graph->store->ranks);
    p->looped = !p->inference && (p->levels > 0 || gckpti_largest_leaf(d, graph) > graph->rows);
    if (!p->inference && !d->update_in_backward)
        p->far = (int64_t)(d->offload_bytes < PTRDIFF_MAX / 2 ? d->offload_bytes
                                                              : (size_t)PTRDIFF_MAX / 2);
    p->plain = GCKPTI_ALWAYS_PLAIN || d->plain != 0 || d->backend;
    return gckpti_check_request(graph, terms, count, d);
}

/* Checks a request and readies a planner of the graph as it was built; the caller frees it either
 * way. */
GCKPTI_FN gckpt_result gckpti_planner_open(gckpti_planner *p, gckpti_allocator *memory,
                                           gckpt_graph *graph, const gckpt_term *terms, int count,
                                           const gckpt_plan_desc *d)
{
    gckpt_result result = gckpti_planner_start(p, memory, graph, terms, count, d);
    return result == GCKPT_OK ? gckpti_make_model(p) : result;
}

/* Adds the planner of one more variant of p's request behind the last one, where it is offered and
 * of use. */
static gckpt_result gckpti_add_variant(gckpti_planner *p, gckpti_planner **last, gckpti_variant v)
{
    gckpti_planner *q = (gckpti_planner *)gckpti_new(p->memory, 1, sizeof *q);
    gckpt_result result =
        q ? gckpti_planner_start(q, p->memory, p->g, p->terms, p->term_count, p->desc)
          : GCKPT_E_MEMORY;
    if (result == GCKPT_OK) {
        q->variant = v;
        q->built = p->cost;
        q->built_model = p->model;
        result = gckpti_make_model(q);
    }
    int of_use = result == GCKPT_OK && (v.order > 0 || v.near || gckpti_is_offered(q));
    for (const gckpti_planner *r = p; r && of_use && v.order == 0 && !v.near; r = r->next)
        of_use = gckpti_is_of_use(q, r);
    p->failed = result == GCKPT_E_MEMORY;
    if (of_use) {
        *last = (*last)->next = q;
        p->least_work = q->least_work < p->least_work ? q->least_work : p->least_work;
        return GCKPT_OK;
    }
    if (q)
        gckpti_planner_free(q);
    gckpti_delete(p->memory, q, 1, sizeof *q);
    return result;
}

/* Whether ops might be in a run in bands of rows: to look takes memory. */
static int gckpti_may_have_runs(const gckpti_planner *p)
{
    int ops = 0;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        ops += t->kind == GCKPTI_OP && !t->batchless && !p->active[i] && t->shape.n > 2;
    }
    return ops > 1;
}

/* Adds planners behind an open one, for the other variants that its request may choose from: forms,
 * of each the orders that promise fewer bytes, and all of these without slower memory, which a
 * search without it may find more for. Backends may have kernels of their own; what
 * OpenBLAS adds up depends on sizes. */
GCKPTI_FN gckpt_result gckpti_add_variants(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    gckpti_planner *last = p;
    gckpt_result result = GCKPT_OK;
    gckpti_variant v = { 1, 0, 0, 0 };
    int optimal = d->mode == GCKPT_AUTO || d->mode == GCKPT_OPTIMAL;
    int chooses = optimal && !d->as_built && !d->backend;
#ifdef GCKPT_OPENBLAS
    chooses = 0;
#endif
    const int bands = GCKPTI_RUNS_BANDS && !d->as_built && !d->backend &&
                      d->precision == GCKPT_FP32 && (chooses || p->inference) &&
                      gckpti_may_have_runs(p);
    for (; chooses && v.form < GCKPTI_FORMS && result == GCKPT_OK; v.form++)
        result = gckpti_add_variant(p, &last, v);
    v.bands = GCKPTI_RUNS_BANDS;
    for (const gckpti_planner *form = p, *end = last; bands && result == GCKPT_OK;
         form = form->next) {
        v.form = form->variant.form; /* of the head's as built and those of fewest bytes */
        if (v.form == 0 || v.form >= GCKPTI_FORMS - 2)
            result = gckpti_add_variant(p, &last, v);
        if (form == end)
            break;
    }
    for (const gckpti_planner *form = p; form; form = form->next)
        for (v.form = form->variant.form, v.bands = form->variant.bands, v.order = 1;
             v.order < GCKPTI_ORDER_COUNT; v.order++)
            if (form->orders >> v.order & 1 && result == GCKPT_OK)
                result = gckpti_add_variant(p, &last, v);
    for (const gckpti_planner *q = p, *end = last; optimal && p->far > 0 && result == GCKPT_OK;
         q = q->next) {
        v = q->variant;
        v.near = 1;
        result = gckpti_add_variant(p, &last, v);
        if (q == end)
            break;
    }
    for (gckpti_planner *q = p->next; q; q = q->next)
        q->least_work = p->least_work;
    return result;
}

/* Reports what a planner ended with on its graph; other errors are there already. */
GCKPTI_FN void gckpti_planner_report(const gckpti_planner *p, gckpt_result result)
{
    int failed = 0;
    for (const gckpti_planner *q = p; q; q = q->next)
        failed = failed || q->failed;
    if (failed) {
        gckpti_error(p->g, GCKPT_E_MEMORY, "plan: no memory to plan %z tensors", p->g->count);
        gckpti_tell_block(p->g, "plan", p->memory, 0);
    } else if (result == GCKPT_OK) {
        gckpti_ok(p->g);
    }
}

/* Reports that a budget is too small, the least that is not, and, if more, the bytes in which a
 * step has little more than the least work. */
GCKPTI_FN void gckpti_too_small(const gckpti_planner *p, size_t budget, size_t least, size_t fast)
{
    gckpt_mode mode = p->desc->mode;
    int searched = mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL;
    p->g->least = least;
    gckpti_error(p->g, GCKPT_E_BUDGET,
                 "budget %z bytes is too small: this graph needs at least %z%s", budget, least,
                 mode == GCKPT_INFERENCE ? ""
                 : !GCKPTI_SEARCHES ? " in this mode (GCKPT_SQRT or GCKPT_MEMORY_POOR may need "
                                      "less; a build without GCKPT_NO_SEARCH finds the least)"
                 : searched         ? ""
                                    : " in this mode (GCKPT_AUTO needs least)");
    gckpti_text text = gckpti_said(&p->g->object);
    if (fast > least)
        gckpti_text_add(&text, ", and %z for at most 1.5 times the least work", fast);
}
