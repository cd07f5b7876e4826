#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD_BEGIN

/* ---- alternative lowerings of an op: the same bits, with other bytes and another cost ---- */
/* Turns t, a copy of a loss, into its lowering number `lowering`; returns 0 if it has none.
 * Lowerings of a cross entropy compute each logit of a linear layer once, `rows` rows at a time;
 * the last one computes each logit twice. */
static int gckpti_set_lowering(gckpti_planner *p, gckpt_tensor *t, int lowering)
{
    enum { LAST = GCKPTI_LOWERINGS - 1 };
    static const int rows[LAST - 1] = { 256, 64, 16 };
    gckpti_linear_loss o = { 0, 0.0f };
    const gckpt_tensor *logits = t->in[0];
    if (t->op == &gckpti_op_cross_entropy) {
        if ((logits->op != &gckpti_op_matmul && logits->op != &gckpti_op_linear) ||
            logits->inputs != 2 || !*(const int *)logits->attributes || logits->mixes_rows ||
            logits->batch_invariant || logits->in[1]->shape.n != 2 ||
            !logits->in[1]->batch_invariant)
            return 0;
        t->op = &gckpti_op_linear_cross_entropy;
        t->in[2] = t->in[1], t->in[1] = logits->in[1], t->in[0] = logits->in[0];
        t->inputs = 3;
    } else if (t->op != &gckpti_op_linear_cross_entropy || lowering == LAST) {
        return 0;
    }
    if (lowering < LAST) {
        if (t->attribute_bytes)
            o = *(const gckpti_linear_loss *)t->attributes;
        o.block_rows = rows[lowering - 1];
        t->attributes = gckpti_scratch_copy(&p->scratch, &o, 1, sizeof o);
        t->attribute_bytes = o.cap > 0.0f ? sizeof o : offsetof(gckpti_linear_loss, cap);
        t->saved_bytes = 0;
    }
    return 1;
}

/* Returns whether `alt` may run instead of t. The input of t that alt does not read is then not
 * computed: nothing else may read it, and it must not be rounded. Gradients of that input's inputs
 * then come from t, so no op in between may add to them. */
static int gckpti_can_lower(const gckpti_planner *p, const gckpt_tensor *t, const gckpt_tensor *alt)
{
    const gckpt_tensor *replaced = t->in[0]->base;
    if (t->batch_invariant || !(p->active[t->id] & GCKPTI_HAS_BACKWARD) ||
        p->desc->bf16.precision == GCKPT_BF16_FAST)
        return 0; /* fast kernels of a backend have no other lowering */
    if (alt->in[0]->base == replaced)
        return 1;
    if (replaced->must_save || replaced->must_recompute || p->rounding[replaced->id])
        return 0;
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (p->desc->fetch.specs[i].tensor && p->desc->fetch.specs[i].tensor->base == replaced)
            return 0;
    for (int i = replaced->id + 1; i < p->n; i++) {
        const gckpt_tensor *user = p->g->tensors[i];
        for (int k = 0; user != t && user->kind == GCKPTI_OP && k < user->inputs; k++) {
            const gckpt_tensor *q = user->in[k]->base;
            if (q == replaced || (i < t->id && (q == alt->in[0]->base || q == alt->in[1]->base)))
                return 0;
        }
    }
    return 1;
}

/* Replaces ops by the lowering number of p->variant, or by their last one if they have fewer. */
GCKPTI_FN void gckpti_take_lowering(gckpti_planner *p)
{
    for (int i = 0; i < p->n && !p->failed; i++) {
        const gckpt_tensor *t = p->g->tensors[i];
        for (int k = gckpti_is_loss(t) ? p->variant.lowering : 0; k > 0; k--) {
            gckpt_tensor alt = *t;
            if (!gckpti_set_lowering(p, &alt, k) || (alt.attribute_bytes && !alt.attributes) ||
                !gckpti_can_lower(p, t, &alt))
                continue;
            p->tensors[i] =
                (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &alt, 1, sizeof alt);
            p->has_lowering = p->has_lowering || k == p->variant.lowering;
            break;
        }
    }
}

/* Returns the bytes that an op takes in addition to its operands, forward and backward. */
static size_t gckpti_op_extra_bytes(const gckpti_planner *p, int id)
{
    size_t forward = p->workspace_forward[id], backward = p->workspace_backward[id];
    return p->tensors[id]->saved_bytes + (forward > backward ? forward : backward);
}

GCKPTI_FN int gckpti_is_cheaper(const gckpti_planner *q, const gckpti_planner *p)
{
    int better = p->nodes != q->nodes || p->edge_count != q->edge_count;
    for (int i = 0; i < p->n && !better; i++)
        better =
            q->cost[i].forward + q->cost[i].backward < p->cost[i].forward + p->cost[i].backward ||
            gckpti_op_extra_bytes(q, i) < gckpti_op_extra_bytes(p, i);
    return better;
}

GCKPTI_COLD_END
#endif
