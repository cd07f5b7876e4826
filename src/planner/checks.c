#ifndef GCKPT_SMALL
#include "planner/internal.h"
#include "store/store.h"
#include "graph/graph.h"

/* Checks loss term i of a request. */
static gckpt_result gckpti_check_term(gckpt_graph *g, const gckpt_term *terms, int i, int inference)
{
    const gckpt_tensor *t = terms[i].loss;
    if (!t && g->count)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: the loss of term %i is NULL, as ops that are given NULL "
                            "return NULL; the last tensor that was made in this graph is %T",
                            i, g->tensors[g->count - 1]);
    if (!t || t->graph != g)
        return gckpti_error(g, GCKPT_E_ARG, "plan: the loss of term %i is %s", i,
                            t ? "of another graph" : "NULL, and the graph has no tensor");
    if (!gckpti_is_loss(t))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: term %i: %T is not a loss; gckpt_sum_loss makes one of it", i,
                            t);
    if (i == 0 && (terms[0].regulariser || t->batch_invariant) && !inference)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: term 0 must depend on an input: its count divides gradients");
    if (!(terms[i].weight >= -FLT_MAX && terms[i].weight <= FLT_MAX))
        return gckpti_error(g, GCKPT_E_ARG, "plan: the weight of term %i is not finite", i);
    if (terms[i].regulariser && !t->batch_invariant)
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: term %i: a regulariser may depend on parameters only, %T depends on "
            "inputs",
            i, t);
    if (!terms[i].regulariser && t->batch_invariant)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: term %i: %T depends on parameters only; mark it as regulariser",
                            i, t);
    for (int k = 0; k < i; k++)
        if (terms[k].loss == t)
            return gckpti_error(g, GCKPT_E_ARG, "plan: terms %i and %i are the same loss", k, i);
    return GCKPT_OK;
}

/* Checks the fields of a desc that can be checked without the graph. */
static gckpt_result gckpti_check_desc(gckpt_graph *g, const gckpt_plan_desc *d)
{
    const gckpti_range ranges[] = {
        { "mode", (int)d->mode, 0, GCKPT_INFERENCE },
        { "optimiser", (int)d->optimiser, 0, GCKPT_CUSTOM_OPTIMISER },
        { "custom_state", d->custom_state, 0, 4 },
        { "threads", d->threads, 0, 1024 },
        { "ranks.virtual_ranks", d->ranks.virtual_ranks, 0, GCKPTI_MAX_VRANKS },
        { "schedule.segment_size", d->schedule.segment_size, -INT32_MAX, INT32_MAX },
        { "batch", d->batch, 0, INT64_MAX },
        { "bf16.precision", (int)d->bf16.precision, 0, GCKPT_BF16_FAST },
        { "update_in_backward", d->update_in_backward, 0, 2 },
        { "fetch.count", d->fetch.count, 0, INT32_MAX }
    };
    if (!gckpti_check_ranges(g, "plan", ranges, sizeof ranges / sizeof *ranges))
        return GCKPT_E_ARG;
    if (gckpti_check_vranks(g, d) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (d->mode != GCKPT_INFERENCE && !GCKPTI_RUNS_TRAINING)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: %s: this build (GCKPT_NO_TRAINING) makes GCKPT_INFERENCE only",
                            gckpt_mode_name(d->mode));
    if (d->fetch.count > 0 && !GCKPTI_RUNS_FETCHES)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.fetch: this build cannot fetch tensors (GCKPT_NO_FETCH)");
    if ((d->offload.bytes || d->offload.overlap) && !GCKPTI_RUNS_OFFLOAD)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.offload: this build leaves out copies to slower memory "
                            "(GCKPT_NO_OFFLOAD): set offload.bytes and overlap to 0");
    if (d->backend && !GCKPTI_RUNS_DEVICES)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.backend: this build leaves out backends "
                            "(GCKPT_NO_DEVICES): set it to NULL, which plans for the processor");
    if (!gckpti_has_precision(d->bf16.precision))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.bf16.precision asks for bf16, which this build leaves out "
                            "(GCKPT_NO_BF16)");
    if (d->mode == GCKPT_OPTIMAL && !GCKPTI_HAS_SEARCH)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: GCKPT_OPTIMAL needs the search, which this build leaves out "
                            "(GCKPT_NO_SEARCH); it has the other modes");
    if (d->bf16.precision == GCKPT_BF16_FAST && !gckpti_has_fast_kernel(d->backend, NULL))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: %s has no kernels of GCKPT_BF16_FAST; GCKPT_BF16 takes the same "
                            "bytes and runs everywhere",
                            gckpti_backend_name(d->backend));
    if (d->kernels.alignment & (d->kernels.alignment - 1) || d->kernels.alignment > 65536 ||
        (d->kernels.alignment && d->kernels.alignment < sizeof(float)))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: alignment %z must be a power of two from 4 to 65536",
                            d->kernels.alignment);
    return GCKPT_OK;
}

/* Checks a request before any planning. */
GCKPTI_FN gckpt_result gckpti_check_request(gckpt_graph *g, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d)
{
    int inference = d->mode == GCKPT_INFERENCE;
    if (gckpti_check_desc(g, d) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (count < 0 || (count > 0 && !terms))
        return gckpti_error(g, GCKPT_E_ARG, "plan: terms is %s, their count %i; give both",
                            terms ? "there" : "NULL", count);
    if (d->fetch.count > 0 && !d->fetch.specs)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.fetch.count is %i, desc.fetch.specs is NULL",
                            d->fetch.count);
    if (d->mode == GCKPT_SCHEDULE && (!d->schedule.instructions || d->schedule.count <= 0))
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: GCKPT_SCHEDULE needs desc.schedule.instructions and, as its length, "
            "desc.schedule.count; they are %s and %i",
            d->schedule.instructions ? "there" : "NULL", d->schedule.count);
    if (!inference && d->batch && d->batch < g->rows)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.batch is %I, but the graph has %I rows: build it with at "
                            "most %I, or leave desc.batch 0 (steps may have fewer rows)",
                            d->batch, g->rows, d->batch);
    if (count == 0 && (!inference || d->fetch.count == 0))
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: training needs at least one loss term; inference a term or a fetch");
    if (g->cache_capacity && (!inference || d->bf16.precision == GCKPT_BF16_STOCHASTIC))
        return gckpti_error(g, GCKPT_E_ARG,
                            inference
                                ? "plan: with stochastic rounding, calls with caches would not "
                                  "give the bits of one call over all positions; use GCKPT_BF16"
                                : "plan: gckpt_cache is for GCKPT_INFERENCE; build the graph "
                                  "that is trained without it");
    if (d->costs.by_id && (d->costs.count < 0 || (size_t)d->costs.count != g->count))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: costs are given for %i tensors; the graph has %z",
                            d->costs.count, g->count);
    if (g->segment >= 0)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: a segment is still open; gckpt_segment_end is missing");
    for (int i = 0; i < count; i++)
        if (gckpti_check_term(g, terms, i, inference) != GCKPT_OK)
            return GCKPT_E_ARG;
    if (d->update_in_backward == GCKPT_IF_USEFUL)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: set update_in_backward to 0 or 1; only gckpt_fit can choose it");
    if (d->update_in_backward && (inference || (d->batch > g->rows)))
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: update_in_backward needs the whole batch in one micro-batch (batch %I, the "
            "graph has %I rows)",
            d->batch, g->rows);
    return GCKPT_OK;
}

/* Reports why the tensor of fetch i has no gradient. seen[id], first 0, marks its dependants. */
static gckpt_result gckpti_report_no_gradient(const gckpti_planner *p, int i, unsigned char *seen)
{
    const gckpt_tensor *t = p->desc->fetch.specs[i].tensor, *end = NULL;
    int reaches_loss = 0;
    if (p->inference)
        return gckpti_error(p->g, GCKPT_E_ARG,
                            "plan: fetch %i: a GCKPT_INFERENCE plan has no gradients; plan for "
                            "training, and gckpt_gradients changes nothing (%T)",
                            i, t);
    if (t->type != GCKPT_F32 || gckpti_is_loss(t))
        return gckpti_error(p->g, GCKPT_E_ARG, "plan: fetch %i: %T has no gradient: it is %s", i, t,
                            t->type == GCKPT_I32  ? "i32"
                            : t->type == GCKPT_U8 ? "u8"
                                                  : "a loss");
    seen[t->base->id] = 1;
    for (int id = 0; id < p->n; id++) {
        const gckpt_tensor *user = p->tensors[id];
        for (int k = 0; user->kind == GCKPTI_OP && k < user->inputs; k++) {
            seen[id] |= seen[user->in[k]->base->id];
            end = seen[user->in[k]->base->id] && !user->op->backward ? user : end;
        }
    }
    for (int k = 0; k < p->term_count; k++)
        reaches_loss = reaches_loss || seen[p->terms[k].loss->id];
    return gckpti_error(p->g, GCKPT_E_ARG,
                        reaches_loss && end
                            ? "plan: fetch %i: %T has no gradient: all that leads from it to a "
                              "loss passes ops without a backward, like %T"
                            : "plan: fetch %i: %T has no gradient: no loss of the plan depends on "
                              "it",
                        i, t, end);
}

/* Checks that every fetch has a value or a gradient in the arena. */
GCKPTI_FN gckpt_result gckpti_check_fetches(gckpti_planner *p)
{
    for (int i = 0; i < p->desc->fetch.count; i++) {
        const gckpt_tensor *t = p->desc->fetch.specs[i].tensor;
        if (!t || t->graph != p->g)
            return gckpti_error(p->g, GCKPT_E_ARG, "plan: fetch %i is %s", i,
                                t ? "of another graph" : "NULL");
        if (!p->desc->fetch.specs[i].gradient &&
            (t->base->kind != GCKPTI_OP || gckpti_is_loss(t) || t->cache_capacity))
            return gckpti_error(
                p->g, GCKPT_E_ARG,
                "plan: fetch %i: %T is not the result of an op (values of inputs are the "
                "caller's, of parameters the store's, of losses the report's, of caches the "
                "executor's)",
                i, t);
        if (p->desc->fetch.specs[i].gradient && gckpti_is_updated(p, t->base->id) &&
            gckpti_is_sharded(
                gckpti_array_shard(p->g->store, &p->g->store->params[t->base->index], 0)))
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "plan: fetch %i: each rank has only its shard of the gradient of "
                                "%T; with GCKPT_SHARD_NONE it is whole",
                                i, t);
        if (p->desc->fetch.specs[i].gradient && (!p->active[t->base->id] || gckpti_is_loss(t))) {
            unsigned char *seen =
                (unsigned char *)gckpti_scratch_alloc(&p->scratch, (size_t)p->n, 1);
            return seen ? gckpti_report_no_gradient(p, i, seen) : GCKPT_E_MEMORY;
        }
    }
    return GCKPT_OK;
}
#endif
