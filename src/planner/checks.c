#ifndef GCKPT_SMALL
#include "planner/internal.h"
#include "store/store.h"
#include "graph/graph.h"

/* A fault for which a request is refused: whether the request has it, and the error's text. */
typedef struct {
    int found;
    const char *text;
} gckpti_fault;

/* Returns the text of the first fault that was found, or NULL. */
static const char *gckpti_first_fault(const gckpti_fault *fault, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fault[i].found)
            return fault[i].text;
    return NULL;
}
#define GCKPTI_FIRST_FAULT(faults) gckpti_first_fault(faults, sizeof(faults) / sizeof *(faults))

static gckpt_result gckpti_check_term(gckpt_graph *g, const gckpt_term *terms, int i, int inference)
{
    const gckpt_tensor *t = terms[i].loss;
    const float weight = terms[i].weight;
    const int regulariser = terms[i].regulariser;
    if (!t && g->count)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: the loss of term %i is NULL, as ops that are given NULL "
                            "return NULL; the last tensor that was made in this graph is %T",
                            i, g->tensors[g->count - 1]);
    if (!t || t->graph != g)
        return gckpti_error(g, GCKPT_E_ARG, "plan: the loss of term %i is %s", i,
                            t ? "of another graph" : "NULL, and the graph has no tensor");
    const gckpti_fault faults[] = {
        { !gckpti_is_loss(t), "plan: term %i: %T is not a loss; gckpt_sum_loss makes one of it" },
        { i == 0 && (regulariser || t->batch_invariant) && !inference,
          "plan: term 0 must depend on an input: its count divides gradients" },
        { !(weight >= -FLT_MAX && weight <= FLT_MAX), "plan: the weight of term %i is not finite" },
        { regulariser && !t->batch_invariant,
          "plan: term %i: a regulariser may depend on parameters only, %T depends on inputs" },
        { !regulariser && t->batch_invariant,
          "plan: term %i: %T depends on parameters only; mark it as regulariser" }
    };
    const char *fault = GCKPTI_FIRST_FAULT(faults);
    if (fault)
        return gckpti_error(g, GCKPT_E_ARG, fault, i, t);
    for (int k = 0; k < i; k++)
        if (terms[k].loss == t)
            return gckpti_error(g, GCKPT_E_ARG, "plan: terms %i and %i are the same loss", k, i);
    return GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_check_request(gckpt_graph *g, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d)
{
    const size_t alignment = d->kernels.alignment;
    const int inference = d->mode == GCKPT_INFERENCE;
    const gckpti_range ranges[] = {
        { "mode", (int)d->mode, 0, GCKPT_INFERENCE },
        { "optimiser", (int)d->optimiser, 0, GCKPT_CUSTOM_OPTIMISER },
        { "custom_state", d->custom_state, 0, 4 },
        { "threads", d->threads, 0, 1024 },
        { "schedule.segment_size", d->schedule.segment_size, -INT32_MAX, INT32_MAX },
        { "batch", d->batch, 0, INT64_MAX },
        { "update_in_backward", d->update_in_backward, 0, 1 },
        { "fetch.count", d->fetch.count, 0, INT32_MAX }
    };
    if (!gckpti_check_ranges(g, "plan", ranges, sizeof ranges / sizeof *ranges))
        return GCKPT_E_ARG;
    const gckpti_fault faults[] = {
#define GCKPTI_PART_USE(part, in_small, in_plan, what, in_desc, change)                            \
    { !GCKPTI_RUNS_##part && (in_desc),                                                            \
      "plan: this build leaves out " what " (GCKPT_NO_" #part "): set desc." change },
        GCKPTI_PART_USES(GCKPTI_PART_USE)
#undef GCKPTI_PART_USE
        { (d->mode == GCKPT_OPTIMAL && !GCKPTI_RUNS_SEARCH) ||
              (d->mode == GCKPT_SCHEDULE && !GCKPTI_RUNS_SCHEDULES),
          "plan: this build leaves out the mode (GCKPT_OPTIMAL by GCKPT_NO_SEARCH, GCKPT_SCHEDULE "
          "by GCKPT_NO_SCHEDULES); it has the other modes" },
        { (alignment & (alignment - 1)) || alignment > 65536 ||
              (alignment && alignment < sizeof(float)),
          "plan: desc.kernels.alignment must be a power of two from 4 to 65536" },
        { count < 0 || (count > 0 && !terms),
          "plan: terms is NULL, or their count is negative; give both" },
        { d->fetch.count > 0 && !d->fetch.specs,
          "plan: desc.fetch.count is not 0, but desc.fetch.specs is NULL" },
        { !inference && d->batch && d->batch < g->rows,
          "plan: desc.batch is %I, but the graph has %I rows: build it with fewer, or leave "
          "desc.batch 0 (steps may have fewer rows)" },
        { count == 0 && (!inference || d->fetch.count == 0),
          "plan: training needs at least one loss term; inference a term or a fetch" },
        { d->costs.by_id && (d->costs.count < 0 || (size_t)d->costs.count != g->count),
          "plan: desc.costs must have a cost for each tensor of the graph (gckpt_graph_size)" },
        { g->segment >= 0, "plan: a segment is still open; gckpt_segment_end is missing" },
        { d->update_in_backward && (inference || d->batch > g->rows),
          "plan: update_in_backward needs the whole batch in one micro-batch (batch %I, the graph "
          "has %I rows)" }
    };
    const char *fault = GCKPTI_FIRST_FAULT(faults);
    if (fault)
        return gckpti_error(g, GCKPT_E_ARG, fault, d->batch, g->rows);
    for (int i = 0; i < count; i++)
        if (gckpti_check_term(g, terms, i, inference) != GCKPT_OK)
            return GCKPT_E_ARG;
    return GCKPT_OK;
}

/* Returns 1 if no instruction adds up t's fetched gradient, which has an accumulator for each use:
 * t is not trained, depends on nothing that gets a gradient, and does not depend on the batch. */
static int gckpti_is_never_added(const gckpti_planner *p, const gckpt_tensor *t)
{
    int uses = 0;
    for (int id = 0; id < p->n; id++)
        for (int k = 0; p->active[id] & GCKPTI_HAS_BACKWARD && k < p->tensors[id]->inputs; k++)
            uses += p->tensors[id]->in[k]->base == t;
    return uses > 1 && t->batch_invariant && !gckpti_is_updated(p, t->id) &&
           !(p->active[t->id] & GCKPTI_HAS_BACKWARD) &&
           (p->accumulates || p->dist);
}

/* Checks that every fetch has a value or a gradient in the arena. */
GCKPTI_FN gckpt_result gckpti_check_fetches(gckpti_planner *p)
{
    for (int i = 0; i < p->desc->fetch.count; i++) {
        const gckpt_tensor *t = p->desc->fetch.specs[i].tensor;
        const int gradient = p->desc->fetch.specs[i].gradient;
        if (!t || t->graph != p->g)
            return gckpti_error(p->g, GCKPT_E_ARG, "plan: fetch %i is %s", i,
                                t ? "of another graph" : "NULL");
        const int loss = gckpti_is_loss(t);
        const gckpti_fault faults[] = {
            { !gradient && (t->base->kind != GCKPTI_OP || loss || t->variable),
              "plan: fetch %i: %T is not the result of an op (values of inputs are the caller's, "
              "of parameters the store's, of losses the report's, of caches the executor's)" },
            { gradient && p->inference,
              "plan: fetch %i: %T has no gradient, as a GCKPT_INFERENCE plan has no gradients; "
              "plan for training, and gckpt_gradients changes nothing" },
            { gradient && t->type == GCKPT_I32, "plan: fetch %i: %T has no gradient: it is i32" },
            { gradient && t->type == GCKPT_U8, "plan: fetch %i: %T has no gradient: it is u8" },
            { gradient && loss, "plan: fetch %i: %T has no gradient: it is a loss" },
            { gradient && !p->active[t->base->id],
              "plan: fetch %i: %T has no gradient: no loss of the plan depends on it, or only "
              "through ops without a backward" },
            { gradient && gckpti_is_never_added(p, t->base),
              "plan: fetch %i: %T is not trained, and several ops read it, so its gradient needs "
              "the batch in one micro-batch: set desc.batch to 0 and one virtual rank" }
        };
        const char *fault = GCKPTI_FIRST_FAULT(faults);
        if (fault)
            return gckpti_error(p->g, GCKPT_E_ARG, fault, i, t);
    }
    return GCKPT_OK;
}
#endif
