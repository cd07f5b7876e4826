#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- properties of a tensor in a plan ---- */
GCKPTI_FN int gckpti_is_loss(const gckpt_tensor *t) { return t->op && t->op->flags & GCKPT_LOSS; }

/* Returns whether t is a parameter that ops read in the arena: a gathered one; any parameter with
 * desc.kernels.stage_parameters; or a compressed one that some reader's CPU kernel cannot read. */
GCKPTI_FN int gckpti_must_stage(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_plan_desc *d = p->desc;
    if (t->kind != GCKPTI_PARAM || d->kernels.stage_parameters || gckpti_is_gathered(p, t))
        return t->kind == GCKPTI_PARAM;
    return gckpti_is_compressed((int)p->g->store->params[t->index].p.storage) &&
           (d->backend || t->f32_uses);
}

GCKPTI_FN int gckpti_is_updated(const gckpti_planner *p, int id)
{
    const gckpt_tensor *t = p->tensors[id];
    return t->kind == GCKPTI_PARAM && p->active[id] && !p->g->store->params[t->index].p.frozen;
}

/* Returns what t's backward reads, as bits GCKPT_IN, GCKPT_OUT, GCKPT_SAVED. It includes indices
 * that an op computes, which a backward may read without a declaration. */
GCKPTI_FN unsigned gckpti_backward_needs(const gckpti_planner *p, const gckpt_tensor *t)
{
    unsigned mask = 0;
    for (int i = 0; i < t->inputs; i++) {
        const gckpt_tensor *q = t->in[i]->base;
        mask |= p->active[q->id] ? t->op->needs[i] : 0;
        mask |= t->in[i]->type == GCKPT_I32 && q->kind == GCKPTI_OP ? GCKPT_IN(i) : 0;
    }
    return mask;
}

/* Returns whether input i is also an earlier input of the op (its gradient is scratch first). */
GCKPTI_FN int gckpti_is_repeated(const gckpt_tensor *t, int i)
{
    for (int k = 0; k < i; k++)
        if (t->in[k]->base == t->in[i]->base)
            return 1;
    return 0;
}

/* Returns bytes, rounded up to the alignment, but at most GCKPTI_SEARCH_LIMIT against overflow. */
GCKPTI_FN int64_t gckpti_model_size(const gckpti_planner *p, size_t bytes)
{
    const size_t most = sizeof(size_t) > 4 ? (size_t)((uint64_t)GCKPTI_SEARCH_LIMIT) : SIZE_MAX / 2;
    return (int64_t)gckpti_round_up(bytes < most ? bytes : most, p->alignment);
}

/* ---- bytes of values and gradients; fp32 copies and compensations at a workspace's start ---- */
GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return (size_t)gckpti_elements(&t->shape) *
           (t->type == GCKPT_U8 ? 1 : gckpti_value_size(p->rounding[t->base->id]));
}

GCKPTI_FN size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return (size_t)gckpti_elements(&t->shape) * gckpti_gradient_size(p->rounding[t->base->id]);
}

GCKPTI_FN size_t gckpti_f32_bytes(const gckpt_tensor *t)
{
    return sizeof(float) * (size_t)gckpti_elements(&t->shape);
}

/* Adds space for a float for each element of t to *bytes. Returns the offset of this space. */
GCKPTI_FN size_t gckpti_add_floats(size_t *bytes, const gckpt_tensor *t)
{
    size_t offset = gckpti_round_up(*bytes, 64);
    *bytes = offset + gckpti_f32_bytes(t);
    return offset;
}

GCKPTI_FN int gckpti_sum_scope(const gckpti_planner *p, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i];
    const int rows = q->batch_invariant && !t->batch_invariant; /* a sum over the batch */
    const int one = /* one addend; not so of a bias (3 H) and an output (3, H) */
        gckpti_elements(&q->shape) == gckpti_elements(&t->shape) &&
        gckpti_last(&q->shape) == gckpti_last(&t->shape);
    if (!(t->op->needs[i] & GCKPT_SUMS) || (!rows && one))
        return 0;
    return rows && p->accumulates ? GCKPTI_SUM_IN_STEP : GCKPTI_SUM_IN_OP;
}

/* ---- cost ---- */

/* Returns about x * a / b, rounded down, for a / b that is not much more than 1; b > 0. */
GCKPTI_FN uint64_t gckpti_mul_div(uint64_t x, uint64_t a, uint64_t b)
{
    for (; a >> 31 || b >> 31; a /= 2)
        b = b / 2 + (b < 2);
    return x / b * a + x % b * a / b;
}

/* Returns the cost of an op, of which the model's cost is `model`, that replaces n ops of the graph
 * as built: `model` or, if desc.costs gives costs, these ops' costs, times (the op's cost by the
 * model / these ops' costs by the model). */
GCKPTI_FN gckpt_cost gckpti_replacement_cost(const gckpti_planner *p, gckpt_cost model,
                                             const int *id, int n)
{
    const gckpt_cost *given = p->desc->costs.by_id, *built = p->built_model_cost;
    uint64_t sum = 0, before = 0;
    if (!given)
        return model;
    for (int i = 0; i < n; i++) {
        sum = gckpti_add_cost(sum, gckpti_add_cost(given[id[i]].forward, given[id[i]].backward));
        before += built[id[i]].forward + built[id[i]].backward;
    }
    const gckpt_cost scaled = { gckpti_mul_div(sum, model.forward, before),
                                gckpti_mul_div(sum, model.backward, before) };
    return scaled;
}
#endif
