#include "plan/own.h"
#include "graph/graph.h"

/* ---- what planning asks of a tensor ---- */
GCKPTI_FN int gckpti_is_loss(const gckpt_tensor *t) { return t->op && t->op->flags & GCKPT_LOSS; }

/* A parameter of which other ranks have most values: they are gathered in the arena. */
GCKPTI_FN int gckpti_is_gathered(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_store *s = p->g->store;
    return t->kind == GCKPTI_PARAM && gckpti_array_cut(s, &s->params[t->index], GCKPTI_VALUES);
}

GCKPTI_FN int gckpti_is_staged(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_plan_desc *d = p->desc;
    if (t->kind != GCKPTI_PARAM || d->stage_parameters || gckpti_is_gathered(p, t))
        return t->kind == GCKPTI_PARAM;
    return gckpti_is_packed((int)p->g->store->params[t->index].p.storage) &&
           (d->mode != GCKPT_INFERENCE || d->backend || d->precision != GCKPT_FP32 || t->floats);
}

/* Bytes of the largest share of a tensor's floats: rank 0's. All plan with that. */
GCKPTI_FN size_t gckpti_share_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    int64_t first;
    return sizeof(float) *
           (size_t)gckpti_share(gckpti_elements(&t->shape), 0, p->g->store->ranks, &first);
}

GCKPTI_FN int gckpti_is_updated(const gckpti_planner *p, int id)
{
    const gckpt_tensor *t = p->tensors[id];
    return t->kind == GCKPTI_PARAM && p->active[id] && !p->g->store->params[t->index].p.frozen;
}

/* What t's backward reads: GCKPT_IN, GCKPT_OUT, GCKPT_AUX bits. */
GCKPTI_FN unsigned gckpti_needs(const gckpti_planner *p, const gckpt_tensor *t)
{
    unsigned mask = 0;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id])
            mask |= t->op->needs[i];
    return mask;
}

/* Input i's tensor is an earlier input of the same op too: its gradient is computed apart. */
GCKPTI_FN int gckpti_repeats(const gckpt_tensor *t, int i)
{
    for (int k = 0; k < i; k++)
        if (t->in[k]->base == t->in[i]->base)
            return 1;
    return 0;
}

/* Bytes, rounded up. What takes more than can be searched counts as so many, so that sums stay
 * whole numbers. */
GCKPTI_FN int64_t gckpti_model_size(const gckpti_planner *p, size_t bytes)
{
    const size_t most = sizeof(size_t) > 4 ? (size_t)((uint64_t)GCKPTI_SEARCHED) : SIZE_MAX / 2;
    return (int64_t)gckpti_round_up(bytes < most ? bytes : most, p->alignment);
}
