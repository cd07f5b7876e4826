#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- bytes of values and gradients; copies and low parts of sums in front of a workspace ---- */
GCKPTI_FN size_t gckpti_bytes(const gckpti_planner *p, const gckpt_tensor *t, int narrow)
{
    return (size_t)gckpti_elements(&t->shape) *
           (p->rounding[t->base->id] & narrow ? 2 : sizeof(float));
}

GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_VALUE);
}

GCKPTI_FN size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_GRADIENT);
}

GCKPTI_FN void gckpti_copy_add(gckpti_copies *c, size_t *at, int64_t elements)
{
    *at = gckpti_round_up(c->bytes, 64);
    c->bytes = *at + (size_t)elements * sizeof(float);
}

GCKPTI_FN int gckpti_sum_kind(const gckpt_op *op, int i, int batchless, const gckpt_shape *shape,
                              int batchless_in, const gckpt_shape *in, int looped)
{
    if (!(op->needs[i] & GCKPT_SUMS))
        return 0;
    if (batchless_in && !batchless)
        return looped ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
    return gckpti_elements(in) != gckpti_elements(shape) ? GCKPTI_SUM_HERE : 0;
}

GCKPTI_FN int gckpti_sums(const gckpti_planner *p, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i];
    return gckpti_sum_kind(t->op, i, t->batchless, &t->shape, q->batchless, &q->shape, p->looped);
}

/* Bytes of an op's copies and low parts in front of its workspace, forward or backward. */
GCKPTI_FN size_t gckpti_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t, int backward)
{
    size_t low;
    gckpti_copies c;
    gckpti_plan_copies(p, t, backward, &c);
    for (int i = 0; i < t->inputs && backward; i++)
        if (p->active[t->in[i]->base->id] && gckpti_sums(p, t, i) == GCKPTI_SUM_HERE)
            gckpti_copy_add(&c, &low, gckpti_elements(&t->in[i]->shape));
    return c.bytes;
}
