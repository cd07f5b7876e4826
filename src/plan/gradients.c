#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- the model's gradients: their uses, sums and memory, for a fixed order of backwards ---- */
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
    size_t sums = p->virtual_ranks > 1 ? n * (size_t)(3 + p->tree_depth) : n; /* gckpti_reduction */
    p->gradient = (gckpti_gradient *)gckpti_scratch_alloc(&p->scratch, sums, sizeof *p->gradient);
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
            const gckpti_target target = { u, -1, -1, *first };
            p->target[p->node[u].target + i] = target;
            *first = p->node[u].target + i;
        }
    }
}

static int gckpti_gradient_new(gckpti_planner *p, const gckpt_tensor *t, size_t size, int index)
{
    gckpti_gradient *v = &p->gradient[p->gradients];
    v->id = t->id;
    v->owner = v->next_alias = -1;
    v->first = v->last = index;
    v->alias_root = v->last_alias = v->first_live = p->gradients;
    v->kind = gckpti_is_use_sum(t) ? GCKPT_BUFFER_PARAMETER_GRADIENT : GCKPT_BUFFER_GRADIENT;
    v->size = size;
    return p->gradients++;
}

/* Returns whether a target belongs to the body. */
GCKPTI_FN int gckpti_is_in_body(const gckpti_planner *p, int target)
{
    return p->target[target].node >= p->prologue;
}

static int gckpti_is_larger(const gckpti_planner *p, int id, int than)
{
    return gckpti_elements(&p->tensors[id]->shape) > gckpti_elements(&p->tensors[than]->shape);
}

/* Returns a backward after `index` that adds to `id`'s gradient (of an activation the next one; of
 * a sum over uses one in the body if possible), else INT32_MAX (also for id -1). */
static int gckpti_next_write(const gckpti_planner *p, int id, int index)
{
    for (int k = id < 0 ? -1 : p->first_use[id]; k >= 0; k = p->target[k].next)
        if (p->node[p->target[k].node].backward_index > index)
            return p->node[p->target[k].node].backward_index;
    return INT32_MAX;
}

/* Finds the backwards of the body that REDUCEs follow: each is the last to write some gradient. */
static void gckpti_list_reductions(gckpti_planner *p)
{
    size_t n = (size_t)p->n;
    p->reduction = (gckpti_reduction *)gckpti_scratch_alloc(&p->scratch, n, sizeof *p->reduction);
    p->reduction_of = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    if (p->failed)
        return;
    memset(p->reduction_of, 0xff, n * sizeof(int));
    for (int r = 0; r < p->body_backwards; r++) {
        gckpti_node *u = &p->node[p->backward[r]];
        const gckpt_tensor *t = p->tensors[u->id];
        u->reduce = p->reductions;
        for (int i = 0; i < t->inputs; i++) {
            const gckpt_tensor *q = t->in[i]->base;
            const gckpti_reduction sum = { q->id, -1, -1, -1 };
            if (!p->active[q->id] || !gckpti_is_use_sum(q) || gckpti_is_repeated(t, i) ||
                gckpti_next_write(p, q->id, r) < p->body_backwards)
                continue;
            int k = p->reductions++; /* the largest last: it overlaps the next backward */
            for (; k > u->reduce && gckpti_is_larger(p, p->reduction[k - 1].id, q->id); k--)
                p->reduction[k] = p->reduction[k - 1];
            p->reduction[k] = sum;
        }
        u->reduces = p->reductions - u->reduce;
        for (int k = u->reduce; k < p->reductions; k++)
            p->reduction_of[p->reduction[k].id] = k;
    }
}

/* Adds a gradient that lives through the whole step. Returns its index. */
static int gckpti_add_resident(gckpti_planner *p, const gckpt_tensor *t, size_t size)
{
    int v = gckpti_gradient_new(p, t, size, 0);
    p->gradient[v].resident = 1;
    p->gradient[v].last = p->backwards + 1;
    return v;
}

/* Adds the gradients that live all step in a plan that accumulates: an accumulator for each use,
 * and the partial sums of the reduction over virtual ranks. */
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
                gckpti_add_resident(p, q, arrays * gckpti_tensor_bytes(p, q, 0));
        }
    }
    for (int k = 0; k < p->tree_depth * p->reductions; k++) {
        gckpti_reduction *sum = &p->reduction[k / p->tree_depth];
        const gckpt_tensor *t = p->tensors[sum->id];
        int v = gckpti_add_resident(p, t, gckpti_tensor_bytes(p, t, 0));
        p->gradient[v].kind = GCKPT_BUFFER_REDUCTION;
        sum->partials = k % p->tree_depth ? sum->partials : v;
    }
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
            p, q, so_far < 0 ? gckpti_gradient_bytes(p, q) : gckpti_tensor_bytes(p, q, 0),
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

/* Returns whether the ranks need only their shards of a parameter's gradient after its REDUCE. */
GCKPTI_FN int gckpti_is_scattered(const gckpti_planner *p, int id)
{
    int use = p->first_use[id];
    while (use >= 0 && gckpti_is_in_body(p, use))
        use = p->target[use].next;
    return use < 0 && gckpti_is_updated(p, id) &&
           gckpti_is_sharded(gckpti_update_shard(p, p->tensors[id]));
}

/* Adds receive buffers, and shards of sums that are stored apart. Receive buffers live until the
 * next backward that is followed by REDUCEs, since collectives may be in flight until then. */
static void gckpti_add_recv_buffers(gckpti_planner *p)
{
    for (int r = 0; r < p->body_backwards && p->g->store->ranks > 1; r++) {
        const gckpti_node *u = &p->node[p->backward[r]];
        int recv = -1;
        for (int k = u->reduce; k < u->reduce + u->reduces; k++) {
            gckpti_reduction *sum = &p->reduction[k];
            const gckpt_tensor *t = p->tensors[sum->id];
            size_t half = (size_t)gckpti_shard_of(gckpti_elements(&t->shape), 0, 2).count * 4;
            recv = recv < 0 ? gckpti_gradient_new(p, t, 0, r) : recv;
            gckpti_gradient *buffer = &p->gradient[recv];
            buffer->kind = GCKPT_BUFFER_REDUCTION;
            buffer->id = half > buffer->size ? sum->id : buffer->id;
            buffer->size = half > buffer->size ? half : buffer->size;
            sum->recv = recv;
            if (!p->accumulates && p->g->store->shard >= GCKPT_SHARD_GRADIENTS &&
                gckpti_is_scattered(p, sum->id)) {
                sum->shard = gckpti_gradient_new(p, t, gckpti_shard_bytes(p, t), r);
                p->gradient[sum->shard].last = p->backwards - 1;
            }
        }
    }
    for (int r = p->body_backwards, last = r; r-- > 0;) {
        const gckpti_node *u = &p->node[p->backward[r]];
        for (int k = u->reduce; k < u->reduce + u->reduces; k++) {
            const gckpti_reduction *sum = &p->reduction[k];
            if (sum->recv >= 0)
                p->gradient[sum->recv].last = last;
            if (sum->shard >= 0)
                p->gradient[p->total[sum->id]].last = last;
        }
        last = u->reduces > 0 ? r : last;
    }
}

/* Models all gradients: targets, sums, shared bytes. */
GCKPTI_FN void gckpti_model_gradients(gckpti_planner *p)
{
    if (p->virtual_ranks > 1)
        gckpti_list_reductions(p);
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
    gckpti_add_recv_buffers(p);
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
