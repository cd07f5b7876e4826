#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- the uses of a gradient: backwards that write it ---- */
/* Returns whether t's gradient is a sum over uses (manual, 5f): t is batch-invariant. Each use has
 * an accumulator in a plan that accumulates; in others each use after the first has scratch. */
GCKPTI_FN int gckpti_is_use_sum(const gckpt_tensor *t) { return t->batch_invariant; }

/* Numbers the targets, and links those of one tensor's gradient in order of addition (5f): of users
 * that depend on the batch, then of others, both in reverse order; inputs of one op ascending. */
GCKPTI_FN void gckpti_list_uses(gckpti_planner *p)
{
    size_t ids = (size_t)p->n * sizeof(int), n = 0;
    for (int u = 0; u < p->nodes; u++)
        n += p->node[u].backward_index < 0 ? 0 : (size_t)p->tensors[p->node[u].id]->inputs;
    p->gradient = (gckpti_gradient *)gckpti_scratch_alloc(&p->scratch, n, sizeof *p->gradient);
    p->target = (gckpti_target *)gckpti_scratch_alloc(&p->scratch, n, sizeof *p->target);
    memset(p->first_use, 0xff, ids);
    memset(p->total, 0xff, ids);
    for (int u = 0; u < p->nodes && !p->failed; u++) { /* the list begins with the last */
        const gckpt_tensor *t = p->tensors[p->node[u].id];
        if (p->node[u].backward_index < 0)
            continue;
        p->node[u].target = p->targets;
        p->targets += t->inputs;
        for (int i = t->inputs; i-- > 0;) {
            int *first = &p->first_use[t->in[i]->base->id];
            const gckpti_target target = { u, -1, -1, 0, *first };
            p->target[p->node[u].target + i] = target;
            *first = p->node[u].target + i;
        }
    }
}

/* Adds a gradient that begins at backward `index`. Returns its index. */
GCKPTI_FN int gckpti_gradient_new(gckpti_planner *p, const gckpt_tensor *t, size_t size, int index)
{
    gckpti_gradient *v = &p->gradient[p->gradients];
    v->id = t->id;
    v->owner = v->next_alias = -1;
    v->first = v->last = index;
    v->alias_root = v->last_alias = v->first_live = v->result = p->gradients;
    v->kind = gckpti_is_use_sum(t) ? GCKPT_BUFFER_PARAMETER_GRADIENT : GCKPT_BUFFER_GRADIENT;
    v->size = size;
    return p->gradients++;
}

GCKPTI_FN int gckpti_is_in_body(const gckpti_planner *p, int target)
{
    return p->target[target].node >= p->prologue;
}

/* Returns a backward after `index` that adds to `id`'s gradient (of an activation the next one; of
 * a sum over uses one in the body if possible), else INT32_MAX (also for id -1). */
GCKPTI_FN int gckpti_next_write(const gckpti_planner *p, int id, int index)
{
    for (int k = id < 0 ? -1 : p->first_use[id]; k >= 0; k = p->target[k].next)
        if (p->node[p->target[k].node].backward_index > index)
            return p->node[p->target[k].node].backward_index;
    return INT32_MAX;
}

/* Adds a gradient that lives through the whole step. Returns its index. */
GCKPTI_FN int gckpti_add_resident(gckpti_planner *p, const gckpt_tensor *t, size_t size)
{
    int v = gckpti_gradient_new(p, t, size, 0);
    p->gradient[v].resident = 1;
    p->gradient[v].last = p->backwards + 1;
    return v;
}

/* ---- the order of backwards: the reverse of creation, or that of the user's schedule ----
 * A backward comes after the backwards of all users of its result. Contributions to an activation's
 * gradient come in the contract's order (manual, 5f), since each one continues the sum as a chain
 * of fma. Contributions to a sum over uses are computed apart: in any order if the plan
 * accumulates; else the first two may change places, since a + b = b + a. The prologue's backwards
 * come last, in the reverse of creation. */
/* Orders the backwards: sets p->backward and backward_index, which is INT32_MAX at first. */
GCKPTI_FN gckpt_result gckpti_order_backwards(gckpti_planner *p)
{
    gckpt_result result = gckpti_pass(p, GCKPTI_PASS_ORDER, NULL);
    for (int u = p->nodes; u-- > 0;) {
        gckpti_node *q = &p->node[u];
        p->body_backwards += q->backward_index >= 0 && u >= p->prologue;
        if (q->backward_index != INT32_MAX)
            continue;
        q->backward_index = p->backwards;
        p->backward[p->backwards++] = u;
    }
    return result;
}

/* ---- the order of late forwards ---- */
/* Finds p->late, the body's forwards, each right before the first backward that needs it
 * (p->needed_by). So the values of one loss are dead before the next loss is computed. Side effects
 * keep their order, as do losses that updates wait for. */
GCKPTI_FN void gckpti_find_late(gckpti_planner *p)
{
    size_t n = (size_t)p->nodes, from = (size_t)p->prologue;
    int fixed = 0;
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_alloc(&p->scratch, 2 * n, sizeof *key);
    p->late = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    p->late_index = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    p->needed_by = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    if (p->failed)
        return;
    for (int u = 0; u < p->nodes; u++) {
        fixed = fixed || (p->node[u].side_effect && !gckpti_is_loss(p->tensors[p->node[u].id]));
        p->needed_by[u] = INT32_MAX;
    }
    for (int u = p->prologue; u < p->nodes; u++) { /* nodes that a backward reads */
        const gckpti_node *q = &p->node[u];
        for (int k = q->read; k < q->read + q->reads && q->backward_index >= 0; k++)
            gckpti_set_min(&p->needed_by[p->edges[k]], q->backward_index);
        if (q->backward_index >= 0 && (q->side_effect || q->reads_saved))
            gckpti_set_min(&p->needed_by[u], q->backward_index);
    }
    for (int u = p->nodes; u-- > p->prologue;) { /* nodes that a needed node reads */
        const gckpti_node *q = &p->node[u];
        if (fixed || p->needed_by[u] == INT32_MAX ||
            (q->side_effect && p->desc->update_in_backward))
            p->needed_by[u] = 0;
        for (int k = q->in; k < q->in + q->inputs; k++)
            gckpti_set_min(&p->needed_by[p->edges[k]], p->needed_by[u]);
        key[u].value = u;
        key[u].key = (uint64_t)p->needed_by[u];
    }
    gckpti_sort_keys(key + from, key + n, n - from);
    for (size_t i = from; i < n; i++) {
        p->late[i] = key[i].value;
        p->late_index[key[i].value] = (int)i;
    }
}

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
    (void)gckpti_pass(p, GCKPTI_PASS_ACCUMULATORS, NULL);
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

/* Returns the bytes by a callback of the desc, or 0 if no user's optimiser updates t. */
GCKPTI_FN size_t gckpti_custom_bytes(const gckpti_planner *p, const gckpt_tensor *t,
                                     size_t (*callback)(void *, const char *, int64_t, int64_t))
{
    const int calls = callback && p->desc->optimiser == GCKPT_CUSTOM_OPTIMISER && !t->running;
    const char *name = p->g->store->params[t->index].p.name;
    return calls ? callback(p->desc->user, name, gckpti_rows(&t->shape), gckpti_last(&t->shape))
                 : 0;
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
    for (int i = 0; i < p->n; i++) /* updates use the workspace of the backward before them */
        if (gckpti_is_updated(p, i)) {
            int *last = &p->gradient[p->total[i]].last, r = p->backwards - 1;
            if (!p->accumulates && !p->desc->update_in_backward)
                *last = r;
            size_t bytes = gckpti_custom_bytes(p, p->tensors[i], p->desc->workspace_bytes) +
                           gckpti_state_workspace(p, p->tensors[i]);
            size_t *most = &p->workspace_backward[p->node[p->backward[*last < r ? *last : r]].id];
            *most = bytes > *most ? bytes : *most;
        }
    (void)gckpti_pass(p, GCKPTI_PASS_GRADIENTS, NULL);
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
