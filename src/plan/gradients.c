#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- the model's gradients: their sums and memory, for a fixed order of backwards ---- */
/* Adds the gradients that live all step in a plan that accumulates: an accumulator for each use,
 * and the partial sums of a reduction. */
static void gckpti_add_accumulators(gckpti_planner *p)
{
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        for (int k = 0; p->active[i] & GCKPTI_HAS_BACKWARD && k < t->inputs; k++) {
            const gckpt_tensor *q = t->in[k]->base;
            if (!p->active[q->id] || !gckpti_is_use_sum(q))
                continue;
            size_t arrays = gckpti_sum_scope(p, t, k) == GCKPTI_SUM_IN_STEP ? 2u : 1u;
            p->target[p->node[p->node_of[i]].target + k].gradient =
                gckpti_add_resident(p, q, arrays * gckpti_f32_bytes(q));
        }
    }
    gckpti_pass(p, GCKPTI_PASS_ACCUMULATORS, NULL);
    for (int id = 0; id < p->n; id++)
        if (p->active[id] && gckpti_is_use_sum(p->tensors[id]) && p->first_use[id] >= 0)
            p->total[id] = p->target[p->first_use[id]].gradient;
}

/* Finds where the backward of node u writes the gradient of input i of its op t. If the plan
 * accumulates, a sum over uses has an accumulator already. Else the first use defines the gradient
 * (set to zero if it is a sum over uses). A later use adds in place, or, in a sum over uses or if
 * the op has the input twice, is scratch that is added to the gradient (total). */
static void gckpti_find_target(gckpti_planner *p, gckpti_node *u, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i]->base;
    gckpti_target *target = &p->target[u->target + i];
    int sums = gckpti_is_use_sum(q), *total = &p->total[q->id], so_far = *total;
    unsigned char bit = (unsigned char)(1u << i);
    if (!p->active[q->id])
        return;
    if (sums && p->accumulates) {
        u->accumulate |= bit;
        return;
    }
    if (so_far >= 0 && !sums && !gckpti_is_repeated(t, i)) {
        target->gradient = so_far;
        u->accumulate |= bit;
    } else {
        target->total = so_far;
        target->gradient = gckpti_gradient_new(
            p, q, so_far < 0 ? gckpti_gradient_bytes(p, q) : gckpti_f32_bytes(q),
            u->backward_index);
        if (sums) {
            u->accumulate |= bit;
            u->zero |= bit;
        }
    }
    if (so_far < 0) {
        *total = target->gradient;
        p->gradient[*total].owner = sums ? -1 : q->id;
    }
    p->gradient[*total].last = u->backward_index;
}

/* Lets gradient v, which begins at backward `index`, share w's bytes if they have one size. If copy
 * is 1, the op passes w's values on: gradients with these bytes may live until one of them is
 * written again; by then the others must be dead. If 0, all must end at `index`. */
static void gckpti_alias_gradient(gckpti_planner *p, int v, int w, int index, int copy)
{
    gckpti_gradient *all = p->gradient;
    if (v < 0 || w < 0 || all[v].size != all[w].size ||
        gckpti_elements(&p->tensors[all[v].id]->shape) !=
            gckpti_elements(&p->tensors[all[w].id]->shape))
        return;
    gckpti_gradient *root = &all[all[w].alias_root];
    if (!copy && root->last_use != index)
        return;
    while (copy && all[root->first_live].last < index) /* dead, as nobody writes it any more */
        root->first_live = all[root->first_live].next_alias;
    for (int m = root->first_live; copy && m >= 0; m = all[m].next_alias)
        if (all[v].last >= gckpti_next_write(p, all[m].owner, index) ||
            all[m].last >= gckpti_next_write(p, all[v].owner, index))
            return;
    all[root->last_alias].next_alias = v;
    root->last_alias = v;
    root->last_use = all[v].last > root->last_use ? all[v].last : root->last_use;
    all[v].alias_root = all[w].alias_root;
}

/* Lets the backward of node u write into its incoming gradient where its op allows it. */
static void gckpti_alias_targets(gckpti_planner *p, const gckpti_node *u)
{
    const gckpt_tensor *t = p->tensors[u->id];
    int incoming = p->total[u->id];
    for (int i = 0; i < t->inputs && !gckpti_is_use_sum(t); i++) {
        const gckpt_tensor *q = t->in[i]->base;
        int repeated = 0;
        for (int k = 0; k < t->inputs; k++)
            repeated = repeated || (k != i && t->in[k]->base == q);
        if (gckpti_is_use_sum(q) || !p->active[q->id] || u->accumulate & (1u << i) || repeated)
            continue;
        int v = p->target[u->target + i].gradient;
        if (t->op->flags & GCKPT_PASSES_GRAD(i))
            gckpti_alias_gradient(p, v, incoming, u->backward_index, 1);
        else if (t->op->flags & GCKPT_INPLACE_GRAD && i == 0)
            gckpti_alias_gradient(p, v, incoming, u->backward_index, 0);
    }
}

/* Sums the bytes of gradients and of backwards' workspaces, rounded up, by backward_index.
 * gradient_at: during the backward; gradient_between: between it and the one before. */
static void gckpti_sum_gradient_bytes(gckpti_planner *p)
{
    size_t n = (size_t)p->backwards + 3;
    p->gradient_at = (int64_t *)gckpti_scratch_alloc(&p->scratch, n, sizeof *p->gradient_at);
    p->gradient_between = (int64_t *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int64_t));
    for (int v = 0; v < p->gradients && !p->failed; v++) {
        const gckpti_gradient *q = &p->gradient[v];
        int64_t size = gckpti_model_size(p, q->size);
        if (q->alias_root != v)
            continue;
        p->gradient_at[q->first] += size;
        p->gradient_at[q->last_use + 1] -= size;
        p->gradient_between[q->resident ? q->first : q->first + 1] += size;
        p->gradient_between[q->last_use + 1] -= size;
    }
    for (int r = 1; r <= p->backwards && !p->failed; r++) {
        p->gradient_at[r] += p->gradient_at[r - 1];
        p->gradient_between[r] += p->gradient_between[r - 1];
    }
    for (int r = 0; r < p->backwards && !p->failed; r++)
        p->gradient_at[r] +=
            gckpti_model_size(p, p->workspace_backward[p->node[p->backward[r]].id]);
}

/* Models all gradients: targets, sums, shared bytes. */
GCKPTI_FN void gckpti_model_gradients(gckpti_planner *p)
{
    if (p->failed)
        return;
    if (p->accumulates)
        gckpti_add_accumulators(p);
    for (int r = 0; r < p->backwards; r++) {
        gckpti_node *u = &p->node[p->backward[r]];
        const gckpt_tensor *t = p->tensors[u->id];
        int total = p->total[u->id];
        if (total >= 0 && !p->gradient[total].resident)
            p->gradient[total].last = r;
        for (int i = 0; i < t->inputs; i++)
            gckpti_find_target(p, u, t, i);
    }
    for (int i = 0; i < p->n; i++) /* an update at the end of the step reads it */
        if (gckpti_is_updated(p, i) && !p->accumulates && !p->desc->update_in_backward)
            p->gradient[p->total[i]].last = p->backwards - 1;
    gckpti_pass(p, GCKPTI_PASS_GRADIENTS, NULL);
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (p->desc->fetch.specs[i].gradient)
            p->gradient[p->total[p->desc->fetch.specs[i].tensor->base->id]].last = p->backwards + 1;
    for (int v = 0; v < p->gradients; v++)
        p->gradient[v].last_use = p->gradient[v].last;
    for (int r = 0; r < p->backwards; r++)
        gckpti_alias_targets(p, &p->node[p->backward[r]]);
    gckpti_sum_gradient_bytes(p);
}

/* Returns the bytes of an op's fp32 copies and compensations, forward or backward. */
GCKPTI_FN size_t gckpti_f32_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t, int backward)
{
    size_t copy[2 * GCKPT_MAX_INPUTS + 2], bytes = gckpti_place_copies(p, t, backward, copy);
    for (int i = 0; i < t->inputs && backward; i++)
        if (p->active[t->in[i]->base->id] && gckpti_sum_scope(p, t, i) == GCKPTI_SUM_IN_OP)
            gckpti_add_floats(&bytes, t->in[i]);
    return bytes;
}
#endif
