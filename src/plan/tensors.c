#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- what planning asks of a tensor ---- */
GCKPTI_FN int gckpti_is_loss(const gckpt_tensor *t) { return t->op && t->op->flags & GCKPT_LOSS; }

/* A parameter of which other ranks have most values: they are gathered in the arena. */
GCKPTI_FN int gckpti_is_gathered(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_store *s = p->g->store;
    return t->kind == GCKPTI_PARAM &&
           gckpti_is_sharded(gckpti_array_share(s, &s->params[t->index], GCKPTI_VALUES));
}

GCKPTI_FN int gckpti_is_staged(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_plan_desc *d = p->desc;
    if (t->kind != GCKPTI_PARAM || d->stage_parameters || gckpti_is_gathered(p, t))
        return t->kind == GCKPTI_PARAM;
    return gckpti_is_packed((int)p->g->store->params[t->index].p.storage) &&
           (d->backend || t->floats);
}

/* What ranks share of a parameter's updates. All plan with the largest share. */
GCKPTI_FN gckpti_share gckpti_update_share(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_store *s = p->g->store;
    return gckpti_array_share(s, &s->params[t->index], 0);
}

GCKPTI_FN size_t gckpti_share_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return sizeof(float) * (size_t)gckpti_update_share(p, t).room;
}

GCKPTI_FN int gckpti_is_updated(const gckpti_planner *p, int id)
{
    const gckpt_tensor *t = p->tensors[id];
    return t->kind == GCKPTI_PARAM && p->active[id] && !p->g->store->params[t->index].p.frozen;
}

/* What t's backward reads: GCKPT_IN, GCKPT_OUT, GCKPT_SAVED bits. Indices that an op gave it may read
 * without saying so, since those that are fed are always there. */
GCKPTI_FN unsigned gckpti_needs(const gckpti_planner *p, const gckpt_tensor *t)
{
    unsigned mask = 0;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id])
            mask |= t->op->needs[i];
    for (int i = 0; i < t->inputs; i++)
        if (t->in[i]->type == GCKPT_I32 && t->in[i]->base->kind == GCKPTI_OP)
            mask |= GCKPT_IN(i);
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

/* ---- bytes of values and gradients; copies and low parts of sums in front of a workspace ---- */
GCKPTI_FN size_t gckpti_bytes(const gckpti_planner *p, const gckpt_tensor *t, int narrow)
{
    return (size_t)gckpti_elements(&t->shape) *
           (p->rounding[t->base->id] & narrow ? 2
            : t->type == GCKPT_U8             ? 1
                                              : sizeof(float));
}

GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_VALUE);
}

GCKPTI_FN size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_GRADIENT);
}

/* Adds room for as many floats as t has behind *bytes. Returns where it begins. */
GCKPTI_FN size_t gckpti_add_floats(size_t *bytes, const gckpt_tensor *t)
{
    size_t at = gckpti_round_up(*bytes, 64);
    *bytes = at + sizeof(float) * (size_t)gckpti_elements(&t->shape);
    return at;
}

GCKPTI_FN int gckpti_sums(const gckpti_planner *p, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i];
    const int rows = q->batchless && !t->batchless; /* over all of the batch */
    const int one = /* added to each; as many elements alone are gru's bias, 3 H, of 3 steps, too */
        gckpti_elements(&q->shape) == gckpti_elements(&t->shape) &&
        gckpti_last(&q->shape) == gckpti_last(&t->shape);
    if (!(t->op->needs[i] & GCKPT_SUMS) || (!rows && one))
        return 0;
    return rows && p->looped ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
}

/* Bytes of an op's copies and low parts in front of its workspace, forward or backward. */
GCKPTI_FN size_t gckpti_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t, int backward)
{
    size_t copy[2 * GCKPT_MAX_INPUTS + 2], bytes = gckpti_find_copies(p, t, backward, copy);
    for (int i = 0; i < t->inputs && backward; i++)
        if (p->active[t->in[i]->base->id] && gckpti_sums(p, t, i) == GCKPTI_SUM_HERE)
            gckpti_add_floats(&bytes, t->in[i]);
    return bytes;
}

/* ---- work: of ops, by the cost model, and of copies; sums of it ---- */
GCKPTI_FN uint64_t gckpti_add_work(uint64_t sum, uint64_t more)
{
    return more < UINT64_MAX - sum ? sum + more : UINT64_MAX;
}

GCKPTI_FN int gckpti_parts(int value_end, int aux_end)
{
    return (value_end < 0 ? 0 : GCKPTI_VALUE) | (aux_end < 0 ? 0 : GCKPTI_AUX);
}

GCKPTI_FN int64_t gckpti_parts_bytes(const gckpti_unit *u, int parts)
{
    return (parts & GCKPTI_VALUE ? u->out : 0) + (parts & GCKPTI_AUX ? u->aux : 0);
}

GCKPTI_FN uint64_t gckpti_copy_work(uint64_t offload_work, int64_t bytes)
{
    uint64_t most = UINT64_MAX / 4, n = (uint64_t)bytes, whole = n >> 20, rest = n & 0xfffff;
    if (n && (offload_work > most >> 20 || (whole && offload_work > most / whole)))
        return most;
    return whole * offload_work + ((rest * offload_work + 0xfffff) >> 20);
}

GCKPTI_FN uint64_t gckpti_parts_work(const gckpti_planner *p, int unit, int parts)
{
    return gckpti_copy_work(p->desc->offload_cost, gckpti_parts_bytes(&p->unit[unit], parts));
}
