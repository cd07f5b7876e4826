#if !defined(GCKPT_NO_LINEAR_LOSS) && !defined(GCKPT_SMALL)
#include "linear_loss/linear_loss.h"
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- lowerings of losses: other ops of the same bits, which take fewer bytes or cost less ---- */
/* Makes t, a copy of a cross_entropy of x @ w (w stored transposed), the linear_cross_entropy of x
 * and w. Returns 0 if t is another op, or if the logits must exist: something else reads, keeps or
 * rounds them. Gradients of x and w then come from t, so no op in between may add to them. */
static int gckpti_join_loss(const gckpti_planner *p, gckpt_tensor *t)
{
    const gckpt_tensor *logits = t->in[0];
    if (t->op != &gckpti_op_cross_entropy || logits->base != logits || logits->inputs != 2 ||
        (logits->op != &gckpti_op_matmul && logits->op != &gckpti_op_linear) ||
        !*(const int *)logits->attributes || logits->mixes_rows || logits->batch_invariant ||
        logits->in[1]->shape.n != 2 || !logits->in[1]->batch_invariant || logits->must_save ||
        logits->must_recompute || p->rounding[logits->id])
        return 0;
    gckpt_tensor *x = logits->in[0], *w = logits->in[1];
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (p->desc->fetch.specs[i].tensor && p->desc->fetch.specs[i].tensor->base == logits)
            return 0;
    for (int i = logits->id + 1; i < p->n; i++) {
        const gckpt_tensor *user = p->g->tensors[i];
        for (int k = 0; i != t->id && user->kind == GCKPTI_OP && k < user->inputs; k++) {
            const gckpt_tensor *q = user->in[k]->base;
            if (q == logits || (i < t->id && (q == x->base || q == w->base)))
                return 0;
        }
    }
    t->op = &gckpti_op_linear_cross_entropy;
    t->in[2] = t->in[1], t->in[1] = w, t->in[0] = x;
    t->inputs = 3;
    return 1;
}

/* Replaces losses by the lowering number p->variant.lowering, of the same bits: a cross_entropy and
 * its linear layer become a linear_cross_entropy, which computes each logit once, for a block of
 * rows at a time, or twice (the last one). Backends' fast kernels have the first, of 4096 rows. */
static void gckpti_take_lowering(gckpti_planner *p)
{
    static const int rows[2][GCKPTI_LOWERINGS - 1] = { { 256, 64, 0 }, { 4096, 0, 0 } };
    const int block_rows = rows[p->desc->backend != NULL][p->variant.lowering - 1];
    p->unused = 1;
    for (int i = 0; i < p->n && !p->failed; i++) {
        gckpt_tensor t = *p->g->tensors[i];
        gckpti_linear_loss o = { 0, 0.0f };
        if (t.kind != GCKPTI_OP || t.batch_invariant || !(p->active[i] & GCKPTI_HAS_BACKWARD) ||
            (!gckpti_join_loss(p, &t) && (t.op != &gckpti_op_linear_cross_entropy || !block_rows)))
            continue;
        if (block_rows) {
            if (t.attribute_bytes)
                o = *(const gckpti_linear_loss *)t.attributes;
            o.block_rows = block_rows;
            t.attributes = gckpti_scratch_copy(&p->scratch, &o, 1, sizeof o);
            t.attribute_bytes = o.cap > 0.0f ? sizeof o : offsetof(gckpti_linear_loss, cap);
            t.saved_bytes = 0;
        }
        p->tensors[i] = (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &t, 1, sizeof t);
        p->unused = 0;
    }
    if (!p->unused && !p->failed)
        gckpti_find_active(p);
}

GCKPTI_PASSES(linear_loss)
{
    (void)arg;
    if (stage == GCKPTI_PASS_ACTIVE && p->variant.lowering)
        gckpti_take_lowering(p);
    for (int i = 0; i < p->n && stage == GCKPTI_PASS_OPS && !p->unused; i++) {
        const gckpt_tensor *t = p->tensors[i], *built = p->g->tensors[i];
        if (t == built)
            continue;
        if (p->desc->backend && !gckpti_runs_fast(p->rounding[i]))
            p->unused = 1; /* e.g. exact, or a fast kernel that declined a softcap */
        const int replaced[2] = { i, built->in[0]->base->id };
        const int n = t->in[0]->base == built->in[0]->base ? 1 : 2;
        p->cost[i] = gckpti_replacement_cost(p, p->model_cost[i], replaced, n);
    }
    return GCKPT_OK;
}
#endif
