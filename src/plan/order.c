#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- the order of backwards ----
 * A backward comes after the backwards of all users of its result. Contributions to an activation's
 * gradient come in the contract's order (manual, 5f), since each one continues the sum as a chain
 * of fma. Contributions to a sum over uses are computed apart: in any order if the plan
 * accumulates; else the first two may change places, since a + b = b + a.
 *   order 0  the reverse of creation
 *   order 1  greedy: the ready backward of the lowest peak that does not increase the live bytes;
 *            else the latest to be ready, to finish a branch. Values count until their last use.
 *   order 2  the same with gradients only, for schedules that recompute values
 * A user's schedule has its own. The prologue's backwards come last, in reverse. */
typedef struct {
    int to, next;
} gckpti_edge;
typedef struct {
    gckpti_planner *p;
    int *wait_count, *first_edge;         /* by node: backwards it waits for; its first edge */
    int *reads_left;                      /* by node: backwards that have yet to read its value */
    gckpti_edge *edge;                    /* edges to nodes that wait for it */
    unsigned char *has_gradient;          /* by id: its gradient exists */
    int *ready;                           /* nodes that wait for no backward */
    int edges, ready_count, count_values; /* count_values: bytes of values count */
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

/* Resets the ordering: finds the edges among the body's backwards, and which of them are ready. */
static void gckpti_order_begin(gckpti_ordering *o)
{
    const gckpti_planner *p = o->p;
    o->edges = o->ready_count = 0;
    memset(o->has_gradient, 0, (size_t)p->n);
    memset(o->first_edge, 0xff, (size_t)p->nodes * sizeof(int));
    memset(o->wait_count, 0, (size_t)p->nodes * sizeof(int));
    memset(o->reads_left, 0, (size_t)p->nodes * sizeof(int));
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
    for (int u = 0; u < p->nodes; u++) {
        const gckpti_node *q = &p->node[u];
        if (q->backward_index >= 0 && u >= p->prologue && o->wait_count[u] == 0)
            o->ready[o->ready_count++] = u;
        for (int k = q->read; k < q->read + q->reads && q->backward_index >= 0; k++)
            o->reads_left[p->edges[k]]++;
    }
}

/* Returns the bytes of a gradient, or 0 if no order changes its live range. */
static int64_t gckpti_order_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    int fixed = gckpti_is_use_sum(t) && (p->accumulates || p->desc->update_in_backward);
    return gckpti_is_loss(t) || fixed ? 0 : gckpti_model_size(p, gckpti_gradient_bytes(p, t));
}

/* Returns how many bytes the backward of node u frees. *peak: how many more bytes are live while it
 * runs than before, including the values it reads unless count_values already counts them. */
static int64_t gckpti_order_freed(const gckpti_ordering *o, int u, int64_t *peak)
{
    const gckpti_planner *p = o->p;
    const gckpti_node *q = &p->node[u];
    const gckpt_tensor *t = p->tensors[q->id];
    int64_t added = 0, last = q->reads_saved ? q->saved : 0, reads = last;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id] && !o->has_gradient[t->in[i]->base->id] &&
            !gckpti_is_repeated(t, i))
            added += gckpti_order_bytes(p, t->in[i]->base);
    for (int k = q->read; k < q->read + q->reads; k++) {
        int v = p->edges[k];
        reads += p->node[v].out;
        last += o->reads_left[v] == 1 && v >= p->prologue ? p->node[v].out : 0;
    }
    *peak =
        added + gckpti_model_size(p, p->workspace_backward[q->id]) + (o->count_values ? 0 : reads);
    return gckpti_order_bytes(p, t) - added + (o->count_values ? last : 0);
}

/* Runs the backward of node u: updates which gradients exist, reads_left and ready. */
static void gckpti_order_run(gckpti_ordering *o, int u)
{
    const gckpti_node *q = &o->p->node[u];
    const gckpt_tensor *t = o->p->tensors[q->id];
    for (int i = 0; i < t->inputs; i++)
        o->has_gradient[t->in[i]->base->id] = 1;
    for (int k = q->read; k < q->read + q->reads; k++)
        o->reads_left[o->p->edges[k]]--;
    for (int e = o->first_edge[u]; e >= 0; e = o->edge[e].next)
        if (--o->wait_count[o->edge[e].to] == 0)
            o->ready[o->ready_count++] = o->edge[e].to;
    o->wait_count[u] = -1;
}

/* Returns the index in `ready` of the next backward. Considers only the newest. */
static int gckpti_order_choose(const gckpti_ordering *o)
{
    int64_t peak, least = INT64_MAX;
    int best = o->ready_count - 1;
    for (int i = o->ready_count; i-- > 0 && i > o->ready_count - 64 && o->ready_count > 1;)
        if (gckpti_order_freed(o, o->ready[i], &peak) >= 0 && peak < least) {
            least = peak;
            best = i;
        }
    return best;
}

/* Finds an order; if `given` is 1, only measures `order`. *most: its peak above the bytes at the
 * start. Returns whether there was a choice. */
static int gckpti_order_find(gckpti_ordering *o, int count_values, int given, int *order,
                             int64_t *most)
{
    int64_t live = 0, peak;
    int choice = 0;
    *most = 0, o->count_values = count_values;
    gckpti_order_begin(o);
    for (int r = 0; r < o->p->body_backwards; r++) {
        int i = given ? 0 : gckpti_order_choose(o);
        choice = choice || o->ready_count > 1;
        if (!given) {
            order[r] = o->ready[i];
            for (o->ready_count--; i < o->ready_count; i++)
                o->ready[i] = o->ready[i + 1];
        }
        int64_t freed = gckpti_order_freed(o, order[r], &peak);
        *most = live + peak > *most ? live + peak : *most;
        live -= freed;
        gckpti_order_run(o, order[r]);
    }
    return choice;
}

/* Takes the user's order as far as it is valid, then the rest in reverse. */
static void gckpti_order_user(gckpti_ordering *o)
{
    gckpti_planner *p = o->p;
    int n = 0;
    gckpti_order_begin(o);
    for (int i = 0; i < p->desc->schedule.count; i++) {
        gckpt_instruction in = p->desc->schedule.instructions[i];
        int u = in.kind == GCKPT_BACKWARD && in.id >= 0 && in.id < p->n ? p->node_of[in.id] : -1;
        if (u < p->prologue || p->node[u].backward_index < 0 || o->wait_count[u] != 0)
            continue;
        gckpti_order_run(o, u);
        p->backward[n++] = u;
    }
    for (int u = p->nodes; u-- > p->prologue;)
        if (p->node[u].backward_index >= 0 && o->wait_count[u] >= 0)
            p->backward[n++] = u;
}

/* Finds the variant's order, or for order 0 which others may take fewer bytes (p->orders). */
static void gckpti_order_compare(gckpti_ordering *o)
{
    gckpti_planner *p = o->p;
    size_t n = (size_t)p->body_backwards, bytes = n * sizeof(int);
    int64_t most, least;
    int chosen = p->variant.order;
    int *order = (int *)gckpti_scratch_alloc(&p->scratch, 2 * n, sizeof *order);
    if (chosen && order)
        gckpti_order_find(o, chosen == 1, 0, p->backward, &least);
    for (int k = 1; k < GCKPTI_ORDER_COUNT && !chosen && order; k++, order += n) {
        if (!gckpti_order_find(o, k == 1, 0, order, &least))
            return;
        if (!memcmp(order, p->backward, bytes) || (p->orders && !memcmp(order, order - n, bytes)))
            continue;
        gckpti_order_find(o, k == 1, 1, p->backward, &most);
        p->orders |= (least < most) << k;
    }
}

/* Orders the backwards: sets p->backward and backward_index. */
GCKPTI_FN void gckpti_order_backwards(gckpti_planner *p)
{
    gckpti_ordering o;
    size_t n = (size_t)p->nodes + 1, edges = 2 * (size_t)p->targets;
    gckpt_mode mode = p->desc->mode;
    memset(&o, 0, sizeof o);
    o.p = p;
    o.wait_count = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.first_edge = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.reads_left = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.ready = (int *)gckpti_scratch_alloc(&p->scratch, n, sizeof(int));
    o.has_gradient = (unsigned char *)gckpti_scratch_alloc(&p->scratch, (size_t)p->n, 1);
    o.edge = (gckpti_edge *)gckpti_scratch_alloc(&p->scratch, edges, sizeof *o.edge);
    for (int u = p->nodes; u-- > 0 && !p->failed;)
        if (p->node[u].backward_index >= 0) {
            p->backward[p->backwards++] = u;
            p->body_backwards += u >= p->prologue;
        }
    if (!p->failed && mode == GCKPT_SCHEDULE)
        gckpti_order_user(&o);
    else if (!p->failed && (mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL) &&
             !p->desc->schedule.as_built)
        gckpti_order_compare(&o);
    for (int r = 0; r < p->backwards; r++)
        p->node[p->backward[r]].backward_index = r;
}
#endif
