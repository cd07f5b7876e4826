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

/* Adds a gradient that begins at backward `index`. Returns its index. */
GCKPTI_FN int gckpti_gradient_new(gckpti_planner *p, const gckpt_tensor *t, size_t size, int index)
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
typedef struct {
    int to, next;
} gckpti_edge;
typedef struct {
    const gckpti_planner *p;
    int *wait_count, *first_edge; /* by node: backwards it waits for, -1 if it ran; first edge */
    gckpti_edge *edge;            /* edges to nodes that wait for it */
    int edges;
} gckpti_ordering;

static void gckpti_order_edge(gckpti_ordering *o, int from, int to)
{
    const gckpti_edge edge = { to, o->first_edge[from] };
    if (from == to || to < o->p->prologue)
        return;
    o->edge[o->edges] = edge;
    o->first_edge[from] = o->edges++;
    o->wait_count[to]++;
}

/* Finds the edges among the body's backwards. */
static void gckpti_order_edges(gckpti_ordering *o)
{
    const gckpti_planner *p = o->p;
    memset(o->first_edge, 0xff, (size_t)p->nodes * sizeof(int));
    for (int id = 0; id < p->n; id++) {
        int unordered = gckpti_is_use_sum(p->tensors[id]),
            k = p->active[id] ? p->first_use[id] : -1;
        for (int n = 0, u; k >= 0 && (u = p->target[k].node) >= p->prologue; n++) {
            int next = p->target[k].next, later = next;
            if (unordered && n == 0 && next >= 0)
                later = p->target[next].next;
            if (later >= 0 && !(unordered && p->accumulates))
                gckpti_order_edge(o, u, p->target[later].node);
            if (p->active[id] & GCKPTI_HAS_BACKWARD)
                gckpti_order_edge(o, u, p->node_of[id]);
            k = next;
        }
    }
}

/* Takes the user's order as far as it is valid. Returns the number of backwards that it has. */
static int gckpti_order_user(gckpti_planner *p)
{
    gckpti_ordering o = { p, NULL, NULL, NULL, 0 };
    size_t n = (size_t)p->nodes, edges = 2 * (size_t)p->targets;
    int count = 0;
    o.wait_count = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.first_edge = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.edge = (gckpti_edge *)gckpti_scratch_alloc(&p->scratch, edges, sizeof *o.edge);
    if (p->failed)
        return 0;
    gckpti_order_edges(&o);
    for (int i = 0; i < p->desc->schedule.count; i++) {
        gckpt_instruction in = p->desc->schedule.instructions[i];
        int u = in.kind == GCKPT_BACKWARD && in.id >= 0 && in.id < p->n ? p->node_of[in.id] : -1;
        if (u < p->prologue || p->node[u].backward_index < 0 || o.wait_count[u] != 0)
            continue;
        for (int e = o.first_edge[u]; e >= 0; e = o.edge[e].next)
            o.wait_count[o.edge[e].to]--;
        o.wait_count[u] = -1;
        p->node[u].backward_index = count;
        p->backward[count++] = u;
    }
    return count;
}

/* Orders the backwards: sets p->backward and backward_index, which is INT32_MAX at first. */
GCKPTI_FN void gckpti_order_backwards(gckpti_planner *p)
{
    if (p->desc->mode == GCKPT_SCHEDULE)
        p->backwards = gckpti_order_user(p);
    for (int u = p->nodes; u-- > 0;) {
        gckpti_node *q = &p->node[u];
        p->body_backwards += q->backward_index >= 0 && u >= p->prologue;
        if (q->backward_index != INT32_MAX)
            continue;
        q->backward_index = p->backwards;
        p->backward[p->backwards++] = u;
    }
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
