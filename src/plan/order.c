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

/* Returns whether a target belongs to the body. */
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
/* Returns whether the body's backward u may come next in the user's order: backwards of all users
 * of its result have run, as have those that add to one of its gradients before it. Of a sum over
 * uses the first two may change places; if the plan accumulates, all may. */
static int gckpti_is_next(const gckpti_planner *p, int u)
{
    const gckpti_node *q = &p->node[u];
    const gckpt_tensor *t = p->tensors[q->id];
    for (int k = p->first_use[q->id]; k >= 0 && gckpti_is_in_body(p, k); k = p->target[k].next)
        if (p->node[p->target[k].node].backward_index == INT32_MAX)
            return 0;
    for (int i = 0; i < t->inputs; i++) {
        const gckpt_tensor *in = t->in[i]->base;
        int n = 0, waits = 0;
        for (int k = p->first_use[in->id]; k != q->target + i; k = p->target[k].next, n++)
            waits |=
                p->target[k].node != u && p->node[p->target[k].node].backward_index == INT32_MAX;
        if (waits && p->active[in->id] && !(gckpti_is_use_sum(in) && (p->accumulates || n == 1)))
            return 0;
    }
    return 1;
}

/* Checks the instructions of the user's schedule, and takes its order of backwards. */
static gckpt_result gckpti_order_user(gckpti_planner *p)
{
    for (int i = 0; i < p->desc->schedule.count; i++) {
        const gckpt_instruction in = p->desc->schedule.instructions[i];
        const gckpt_tensor *t = in.id < 0 || in.id >= p->n ? NULL : p->tensors[in.id];
        const int copies = t && gckpti_is_staged(p, t) && in.kind == GCKPT_FORWARD;
        if (!copies && (!t || t->kind != GCKPTI_OP || in.kind == GCKPT_UPDATE ||
                        in.kind == GCKPT_REDUCE || (unsigned)in.kind > GCKPT_OFFLOAD_DONE))
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "schedule: instruction %i: id %i is no op that its kind can run", i,
                                in.id);
        const int u = p->node_of[in.id];
        if (in.kind >= GCKPT_OFFLOAD && u >= 0 && !p->node[u].can_offload)
            return gckpti_error(
                p->g, GCKPT_E_ARG,
                "schedule: instruction %i: %T cannot be offloaded: desc.offload.bytes "
                "is 0, update_in_backward is set, the tensor has gckpt_recompute, or "
                "it depends on parameters only",
                i, t);
        if (in.kind != GCKPT_BACKWARD || u < p->prologue || p->node[u].backward_index < 0)
            continue;
        if (p->node[u].backward_index != INT32_MAX || !gckpti_is_next(p, u))
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "schedule: instruction %i: backward of %T is repeated, or precedes "
                                "that of one of its readers, or of an op that adds to the same "
                                "gradient first (readers in reverse order of creation)",
                                i, t);
        p->node[u].backward_index = p->backwards;
        p->backward[p->backwards++] = u;
    }
    return GCKPT_OK;
}

/* Orders the backwards: sets p->backward and backward_index, which is INT32_MAX at first. */
GCKPTI_FN gckpt_result gckpti_order_backwards(gckpti_planner *p)
{
    gckpt_result result = p->desc->mode == GCKPT_SCHEDULE ? gckpti_order_user(p) : GCKPT_OK;
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
/* Finds p->late, the body's forwards, each as late as possible: before the first backward that
 * needs it (p->needed_by), and right before its first reader if that is more than APART nodes away.
 * So the values of one loss are dead before the next loss is computed. Side effects keep their
 * order, as do losses that updates wait for. */
GCKPTI_FN void gckpti_find_late(gckpti_planner *p)
{
    enum { APART = 8 }; /* a first reader more than this many nodes away is far */
    size_t n = (size_t)p->nodes, from = (size_t)p->prologue;
    int fixed = 0;
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_alloc(&p->scratch, 2 * n, sizeof *key);
    p->late = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    p->late_index = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    p->needed_by = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    int *reader = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    int *before = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int)); /* its successor */
    for (int u = 0; u < p->nodes && !p->failed; u++) {
        fixed = fixed || (p->node[u].side_effect && !gckpti_is_loss(p->tensors[p->node[u].id]));
        reader[u] = before[u] = u;
        p->needed_by[u] = INT32_MAX;
    }
    for (int u = p->prologue; u < p->nodes && !p->failed; u++) { /* nodes that a backward reads */
        const gckpti_node *q = &p->node[u];
        for (int k = q->read; k < q->read + q->reads && q->backward_index >= 0; k++)
            gckpti_set_min(&p->needed_by[p->edges[k]], q->backward_index);
        if (q->backward_index >= 0 && (q->side_effect || q->reads_saved))
            gckpti_set_min(&p->needed_by[u], q->backward_index);
    }
    for (int u = p->nodes; u-- > p->prologue && !p->failed;) { /* nodes that a needed node reads */
        const gckpti_node *q = &p->node[u];
        if (fixed || p->needed_by[u] == INT32_MAX ||
            (q->side_effect && p->desc->update_in_backward))
            p->needed_by[u] = 0;
        before[u] = fixed || reader[u] - u <= APART ? u : before[u];
        for (int k = q->in; k < q->in + q->inputs; k++) {
            int v = p->edges[k];
            gckpti_set_min(&p->needed_by[v], p->needed_by[u]);
            before[v] = before[v] == v ? before[u] : before[v];
            gckpti_set_min(&before[v], before[u]);
            reader[v] = u;
        }
        key[u].value = u;
        key[u].key = (uint64_t)p->needed_by[u] << 32 | (uint64_t)before[u];
    }
    if (p->failed)
        return;
    gckpti_sort_keys(key + from, key + n, n - from);
    for (size_t i = from; i < n; i++) {
        p->late[i] = key[i].value;
        p->late_index[key[i].value] = (int)i;
    }
}
#endif
