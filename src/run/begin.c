#include "run/own.h"
#include "graph/graph.h"

/* As many rows as the plan takes in a step or call. */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    int inference = p->mode == GCKPT_INFERENCE;
    const gckpti_crew *g = gckpti_crew_of(e);
    int64_t end = e->step.streamed && g ? g->end : p->batch, own = rows;
    if (rows < 1 || (!inference && rows > end - e->step.row_end))
        return gckpti_error(
            e, GCKPT_E_ARG, "step: %I rows; this plan takes 1 to %I in a step%s", rows, p->batch,
            e->step.row_end ? " (all calls of the step together)" : " (desc.batch)");
    const gckpt_op *mixer = p->mixer < 0 ? NULL : p->nodes[p->mixer].op;
    int whole = p->mixer >= 0 && (e->step.streamed || !mixer || !gckpti_hands_in(mixer));
    int64_t rest = rows % p->rows;
    for (int leaf = 0; leaf < p->leaves && g && !rest; leaf++)
        rest = gckpti_leaf_rows(p, e->step.streamed ? p->batch : rows, leaf) % p->rows;
    if (whole && rest) /* the last one may be short where rows mix by statistics */
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: %I rows in %i leaves: each must be a multiple of the micro-batch of %I, because "
            "%s #%i mixes rows",
            rows, p->leaves, p->rows, gckpti_node_name(p, p->mixer), p->mixer);
    if (!e->step.streamed)
        own = gckpti_crew_rows(e, rows);
    return gckpti_check_collected(e, own + e->step.row_end - (g ? g->first : 0));
}

/* Finite and in range, each of them. */
static gckpt_result gckpti_check_hyper(gckpt_exec *e, const gckpt_hyper *h)
{
    const struct {
        const char *name;
        float value, low, high;
    } fields[] = { { "lr", h->lr, 0, FLT_MAX },
                   { "weight_decay", h->weight_decay, 0, FLT_MAX },
                   { "beta1", h->beta1, -1, 0.9999999f },
                   { "beta2", h->beta2, -1, 0.9999999f },
                   { "eps", h->eps, 0, 1 },
                   { "momentum", h->momentum, -1, 1 },
                   { "clip", h->clip, 0, FLT_MAX } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= fields[i].low && fields[i].value <= fields[i].high)) /* or NaN */
            return gckpti_error(e, GCKPT_E_ARG, "step: hyper.%s is %g; it must be from %g to %g%s",
                                fields[i].name, (double)fields[i].value, (double)fields[i].low,
                                (double)fields[i].high,
                                i ? "" : " (a term of negative weight is maximised)");
    return GCKPT_OK;
}

/* The plan's parameters: as they were when it was made, and their newest values where this executor
 * reads them. */
static gckpt_result gckpti_begin_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        gckpti_param *q = &e->store->params[e->bound.params[i].index];
        if (p->params[i].storage != (gckpti_byte)q->p.storage)
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" is stored as %s, the plan was made for %s; make a "
                                "new plan",
                                q->p.name, gckpti_storage_name(q->p.storage),
                                gckpti_storage_name((gckpt_storage)p->params[i].storage));
        if (gckpti_updates(&p->params[i]) && q->p.frozen)
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" was frozen after planning; make a new plan",
                                p->names + p->params[i].name);
        if (p->params[i].trained && gckpti_others_state(p, q))
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" got state of another optimiser after this executor "
                                "was made; gckpt_store_reset clears it",
                                p->names + p->params[i].name);
        if (gckpti_bring(e, q) != GCKPT_OK)
            return gckpti_error(e, GCKPT_E_MEMORY, "step: %s has no memory for \"%s\"%s",
                                gckpti_on(e)->name, p->names + p->params[i].name,
                                gckpti_shortage(e));
        const void **data = &e->bound.nodes[p->params[i].node].data;
        if (*data != gckpti_values_here(e, q, -1))
            gckpti_forget(e);
        *data = gckpti_values_here(e, q, -1);
        int cut = gckpti_array_cut(e->store, q, GCKPTI_VALUES);
        if (gckpti_debug(e) & GCKPT_DEBUG_FINITE &&
            gckpti_check_leaf(e, p->params[i].node, *data, cut ? q->p.first : 0,
                              cut ? q->p.count : q->p.elements, p->params[i].trained) != GCKPT_OK)
            return GCKPT_E_DATA;
    }
    for (size_t i = 0; i < p->node_count && gckpti_debug(e) & GCKPT_DEBUG_FINITE; i++)
        if (p->nodes[i].kind == GCKPTI_CONSTANT &&
            gckpti_check_leaf(e, (int)i, e->bound.nodes[i].data, 0,
                              gckpti_elements(&p->nodes[i].shape), 0) != GCKPT_OK)
            return GCKPT_E_DATA;
    return GCKPT_OK;
}

/* The beginning that steps, streams and forwards share: what they ask for fits the plan, and all
 * that belongs to a step is as before its first instruction. */
GCKPTI_FN gckpt_result gckpti_begin(gckpt_exec *e, const gckpt_hyper *hyper, int inference)
{
    const gckpt_plan *p = e->plan;
    e->step.state = GCKPTI_IDLE;
    gckpti_join(e); /* of a step that was abandoned */
    if (inference != (p->mode == GCKPT_INFERENCE))
        return gckpti_error(e, GCKPT_E_ARG,
                            inference
                                ? "forward: this plan trains; make one with GCKPT_INFERENCE"
                                : "step: this plan is for GCKPT_INFERENCE; gckpt_forward runs it");
    if (!inference && !hyper)
        return gckpti_error(e, GCKPT_E_ARG, "step: hyper is NULL");
    if (!inference && gckpti_check_hyper(e, hyper) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (!inference && p->update_in_backward && hyper->clip > 0)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: clip needs all gradients before the first update; this plan updates in "
            "the backward (desc.update_in_backward)");
    gckpt_result result = gckpti_begin_params(e);
    if (result != GCKPT_OK)
        return result;
    if (hyper)
        e->update.hyper = *hyper;
    e->update.unbiased = 0;
    e->step.number = e->store->step;
    e->step.packs = e->store->packs;
    e->step.streamed = 0;
    e->losses.settled = 0;
    e->update.begun = 0;
    e->step.row = e->step.row_end = e->feeds.first = 0;
    e->update.grad_norm = 0;
    e->update.clip_scale = 1;
    return gckpti_ok(e);
}

/* When nothing can refuse the step any more. Its rows are not fed yet. */
GCKPTI_FN void gckpti_start_step(gckpt_exec *e)
{
    gckpti_measure_start(e);
    e->step.pc = e->step.finished = 0;
    e->update.cleared = 0;
    gckpti_fill(e, e->losses.totals, 0,
                e->plan->term_count * (size_t)gckpti_own_leaves(e->plan) *
                    sizeof *e->losses.totals);
}

GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->looped; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_at(e, o.in[i].gradient);
            int64_t n = gckpti_elements(&q->shape);
            if (sum && q->batchless)
                gckpti_fill(e, sum, 0,
                            4 * (size_t)(gckpti_sums_of(p, node, i) == GCKPTI_SUM_ON ? 2 * n : n));
        }
    }
}
