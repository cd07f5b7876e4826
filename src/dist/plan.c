#if !defined(GCKPT_NO_RANKS) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- plans of several virtual ranks: reductions of gradients, shards, receive buffers ---- */
static int gckpti_is_larger(const gckpti_planner *p, int id, int than)
{
    return gckpti_elements(&p->tensors[id]->shape) > gckpti_elements(&p->tensors[than]->shape);
}

/* Finds the backwards of the body that REDUCEs follow: each is the last to write some gradient. */
GCKPTI_FN void gckpti_list_reductions(gckpti_planner *p)
{
    size_t n = (size_t)p->n;
    if (p->virtual_ranks == 1)
        return;
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

/* Adds the partial sums of each reduction, which live through the whole step. */
GCKPTI_FN void gckpti_add_partial_sums(gckpti_planner *p)
{
    for (int k = 0; k < p->tree_depth * p->reductions; k++) {
        gckpti_reduction *sum = &p->reduction[k / p->tree_depth];
        const gckpt_tensor *t = p->tensors[sum->id];
        int v = gckpti_add_resident(p, t, gckpti_tensor_bytes(p, t, 0));
        p->gradient[v].kind = GCKPT_BUFFER_REDUCTION;
        sum->partials = k % p->tree_depth ? sum->partials : v;
    }
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
GCKPTI_FN void gckpti_add_recv_buffers(gckpti_planner *p)
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

/* Checks the numbers of virtual ranks and ranks. */
GCKPTI_FN gckpt_result gckpti_check_vranks(gckpt_graph *g, const gckpt_plan_desc *d)
{
    int vranks = d->ranks.virtual_ranks ? d->ranks.virtual_ranks : 1, ranks = g->store->ranks;
    if (vranks & (vranks - 1))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.ranks.virtual_ranks is %i: must be a power of two", vranks);
    if (d->mode == GCKPT_INFERENCE)
        return GCKPT_OK;
    if (ranks > vranks)
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: %i ranks, %i virtual ranks: each rank needs at least one: set "
            "desc.ranks.virtual_ranks to %i or more, the same for any number of ranks",
            ranks, vranks, ranks);
    if (vranks > 1 && d->update_in_backward)
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: update_in_backward needs desc.ranks.virtual_ranks 1: gradients are "
            "complete only when those of all %i virtual ranks are added",
            vranks);
    return GCKPT_OK;
}
#endif
