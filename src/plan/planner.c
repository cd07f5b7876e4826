#include "plan/own.h"
#include "graph/graph.h"

/* ---- the model of a request, made once and then only read; and the planner that holds it ---- */

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
    return p->g->store->params[t->index].p.storage != GCKPT_STORED_F32 &&
           (d->mode != GCKPT_INFERENCE || d->backend || d->precision != GCKPT_FP32 || t->floats);
}

/* Bytes of the largest share of a tensor's floats: rank 0's. All plan with that. */
GCKPTI_FN size_t gckpti_share_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    int64_t first;
    return sizeof(float) *
           (size_t)gckpti_share(gckpti_elements(&t->shape), 0, p->g->store->ranks, &first);
}
