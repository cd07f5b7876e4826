#ifndef GCKPT_NO_RANKS
#include "run/internal.h"
#include "num/num.h"

/* =================================================================================================
 * exchange: collectives of several processes, by exchanges between pairs
 *
 * There are N = 2^k ranks. A sum over ranks goes by a fixed binary tree: first over ranks that
 * differ in bit 0 of their number, then in bit 1, and so on (a + b = b + a, so each rank adds its
 * partner's floats to its own). At each level a rank sends its partner the half of a gradient that
 * the partner will keep (recursive halving), so that each ends with its shard (gckpti_shard_range)
 * of the sum. A gather goes the other way (recursive doubling). Each way a rank sends (N - 1) / N
 * of the elements, the minimum. Small arrays are exchanged whole at each level.
 * ============================================================================================== */
/* Calls transport.abort, and ends all communication. */
GCKPTI_FN void gckpti_abort_comm(gckpti_comm *comm)
{
    if (!comm->aborted && comm->transport->abort)
        comm->transport->abort(comm->transport->user);
    comm->aborted = 1;
    comm->busy = comm->tree.bit = 0;
}

/* Starts to send host memory to rank `peer`, and to receive from it. */
GCKPTI_FN void gckpti_exchange(gckpti_comm *comm, int peer, const void *send, size_t send_bytes,
                               void *receive, size_t recv_bytes)
{
    comm->peer = peer; /* also without bytes, since errors name this rank */
    if (comm->aborted || send_bytes + recv_bytes == 0)
        return;
    comm->bytes_sent += send_bytes;
    comm->busy = 1;
    if (!comm->transport->exchange(comm->transport->user, peer, send, send_bytes, receive,
                                   recv_bytes))
        gckpti_abort_comm(comm);
}

/* Returns 1 if no exchange is in progress (or aborted), else 0. */
static int gckpti_is_done(gckpti_comm *comm)
{
    const gckpt_backend *b = comm->backend;
    int (*poll)(void *) = comm->waiting ? comm->transport->enqueued_done : comm->transport->done;
    int done = !comm->busy || !poll ? 1 : poll(comm->transport->user);
    if (done < 0)
        gckpti_abort_comm(comm);
    else if (done && comm->busy && comm->copy_to)
        gckpti_copy_in(b, comm->copy_to, comm->recv_buf, comm->recv_bytes);
    if (done)
        comm->busy = 0;
    return done != 0;
}

/* Waits for the exchange in progress. Returns 0 if it failed or timed out: then `aborted` is 1. */
GCKPTI_FN int gckpti_wait_exchange(gckpti_comm *comm)
{
    const gckpt_transport *transport = comm->transport;
    double start = transport && transport->clock ? transport->clock(transport->user) : 0;
    while (!gckpti_is_done(comm))
        if (transport->clock && transport->timeout > 0 &&
            transport->clock(transport->user) - start > transport->timeout)
            gckpti_abort_comm(comm);
    return !comm->aborted;
}

GCKPTI_FN void gckpti_wait_in_flight(const gckpt_exec *e, size_t copied_in)
{
    gckpti_comm *comm = e->group ? &e->group->comm : NULL;
    if (!comm || !comm->in_flight)
        return;
    const size_t least = (size_t)1 << 19, most = 32 * least; /* see copy_in in api.h */
    comm->copied_in += copied_in < least ? least : copied_in;
    if (copied_in && comm->copied_in < most)
        return;
    comm->copied_in = 0;
    comm->copy_to = NULL;
    comm->waiting = comm->busy = !comm->aborted;
    gckpti_wait_exchange(comm);
    comm->waiting = comm->in_flight = 0;
}

/* Starts to send n floats and to receive m. */
static void gckpti_exchange_floats(gckpti_comm *comm, int peer, const float *from, int64_t n,
                                   float *to, int64_t m)
{
    const gckpt_backend *b = comm->backend;
    const int copies = GCKPTI_OF(b, own_memory) && !comm->transport->device_aware;
    const gckpti_pending *tree = &comm->tree; /* later levels of a gather pass on received floats */
    const int is_own = tree->kind != GCKPTI_ALL_GATHER || tree->bit == comm->ranks / 2;
    const size_t size = (size_t)n * sizeof *from;
    void *out = copies ? (void *)comm->send_buf : (void *)(uintptr_t)from;
    void *in = copies ? (void *)comm->recv_buf : (void *)to;
    comm->recv_bytes = (size_t)m * sizeof *to;
    comm->copy_to = copies ? to : NULL;
    if (comm->queue) {
        comm->peer = -1; /* if it fails later, any rank may be the cause */
        comm->bytes_sent += size;
        if (n + m > 0 && !comm->transport->enqueue(comm->transport->user, comm->queue, peer, from,
                                                   size, to, comm->recv_bytes))
            gckpti_abort_comm(comm);
        return;
    }
    if (copies && n)
        gckpti_copy_out(b, out, from, size);
    else if (GCKPTI_OF(b, own_memory) && is_own)
        (void)gckpti_finish(b); /* every later call returns the error again */
    gckpti_exchange(comm, peer, out, size, in, comm->recv_bytes);
}

/* Merges all ranks' `bytes` bytes into `mine`; stops if an exchange fails (comm->aborted). */
GCKPTI_FN void gckpti_merge_all(gckpti_comm *comm, void *mine, size_t bytes, gckpti_merge_fn merge)
{
    comm->copy_to = NULL;
    for (int bit = 1; bit < comm->ranks && !comm->aborted; bit *= 2) {
        gckpti_exchange(comm, comm->rank ^ bit, mine, bytes, comm->recv_buf, bytes);
        if (gckpti_wait_exchange(comm))
            merge(mine, comm->recv_buf, bytes);
    }
}

/* ---- collectives of large arrays, level by level, overlapped with computation ---- */
static void gckpti_exchange_level(gckpti_comm *comm)
{
    gckpti_pending *tree = &comm->tree;
    const int peer = comm->rank ^ tree->bit;
    const int parts = tree->n > GCKPT_UPDATE_BLOCK ? 2 * tree->bit : 1; /* or all */
    const gckpti_shard_range mine = gckpti_shard_of(tree->n, comm->rank, parts);
    const gckpti_shard_range theirs = gckpti_shard_of(tree->n, peer, parts);
    const int64_t first = theirs.first, n = theirs.count;
    tree->first = mine.first;
    tree->count = mine.count;
    if (tree->kind == GCKPTI_ALL_GATHER)
        gckpti_exchange_floats(comm, peer, tree->x + tree->first, tree->count, tree->x + first, n);
    else
        gckpti_exchange_floats(comm, peer, tree->x + first, n, tree->workspace, tree->count);
}

/* Starts a collective; the caller completes it before any other exchange. Sums need a
 * workspace for the larger half of the floats (up to GCKPT_UPDATE_BLOCK: for all). */
static void gckpti_begin_tree(gckpti_comm *comm, const gckpti_pending *pending)
{
    gckpti_pending *tree = &comm->tree;
    *tree = *pending;
    tree->bit = comm->aborted ? 0 : tree->kind == GCKPTI_ALL_GATHER ? comm->ranks / 2 : 1;
    if (tree->bit)
        gckpti_exchange_level(comm);
}

/* Advances the collective: if wait is nonzero, to its end; if 0, as far as it can without waiting.
 * If c is NULL, stops before the first addition. Returns 1 if the collective is complete. */
static int gckpti_poll_tree(gckpti_comm *comm, const gckpt_call *c, int wait)
{
    gckpti_pending *tree = &comm->tree;
    while (tree->bit && (wait ? gckpti_wait_exchange(comm) : gckpti_is_done(comm)) && tree->bit) {
        if (!c && tree->kind != GCKPTI_ALL_GATHER)
            return 0;
        if (tree->kind == GCKPTI_ALL_GATHER) {
            tree->bit /= 2;
        } else {
            GCKPTI_OF(comm->backend, add)(c, tree->x + tree->first, tree->workspace, tree->count);
            tree->bit *= 2;
            if (tree->bit == comm->ranks) {
                int is_sharded = tree->kind == GCKPTI_ALL_REDUCE && tree->n > GCKPT_UPDATE_BLOCK;
                tree->kind = GCKPTI_ALL_GATHER;
                tree->bit = is_sharded ? comm->ranks / 2 : 0;
            }
        }
        if (tree->bit)
            gckpti_exchange_level(comm);
        else if (tree->shard)
            gckpti_copy(comm->backend, tree->shard, tree->x + tree->first,
                        (size_t)tree->count * sizeof(float));
    }
    return !tree->bit;
}

/* Advances pending collectives; waits while more than max_pending are left. NULL c: no addition. */
static void gckpti_poll_pending(gckpti_process_group *group, const gckpt_call *c, int max_pending)
{
    gckpti_comm *comm = &group->comm;
    gckpti_pending *list = group->pending;
    if (comm->uses_queue && group->pending_count > max_pending) {
        GCKPTI_OF(comm->backend, wait_comm_queue)(GCKPTI_OF(comm->backend, context), max_pending);
        const int done = group->pending_count - max_pending;
        memmove(list, list + done, (size_t)max_pending * sizeof *list);
        group->pending_count = max_pending;
    }
    while (!comm->uses_queue && group->pending_count &&
           gckpti_poll_tree(comm, c, group->pending_count > max_pending)) {
        memmove(list, list + 1, (size_t)--group->pending_count * sizeof *list);
        if (group->pending_count)
            gckpti_begin_tree(comm, list);
    }
}

GCKPTI_FN void gckpti_wait_pending(gckpt_exec *e, int max_pending)
{
    gckpt_call c;
    if (!e->group->pending_count)
        return;
    gckpti_init_call(e, &c);
    gckpti_poll_pending(e->group, &c, max_pending);
}

/* runner.poll: kernels call it between chunks of items, so that pending collectives advance. */
GCKPTI_FN void gckpti_poll_in_kernel(void *group_context)
{
    gckpti_process_group *group = (gckpti_process_group *)group_context;
    if (group->comm.tree.bit)
        gckpti_poll_pending(group, NULL, GCKPTI_MAX_PENDING);
}

/* Starts a collective, appends it to the pending ones, or (uses_queue) enqueues it completely. */
GCKPTI_FN void gckpti_start_collective(gckpt_exec *e, const gckpti_pending *pending)
{
    gckpti_process_group *group = e->group;
    gckpti_comm *comm = &group->comm;
    const gckpt_backend *b = comm->backend;
    gckpt_call c;
    gckpti_init_call(e, &c);
    gckpti_poll_pending(group, &c, GCKPTI_MAX_PENDING - 1);
    group->pending[group->pending_count++] = *pending;
    comm->queue = comm->uses_queue ? GCKPTI_OF(b, use_comm_queue)(GCKPTI_OF(b, context), 1) : NULL;
    if (group->pending_count == 1 || comm->queue)
        gckpti_begin_tree(comm, pending);
    if (comm->queue) {
        comm->in_flight = gckpti_poll_tree(comm, &c, 0); /* enqueues all levels without waiting */
        GCKPTI_OF(b, use_comm_queue)(GCKPTI_OF(b, context), 0);
        comm->queue = NULL;
    }
    const unsigned reads = gckpti_debug(e) & (GCKPT_DEBUG_FINITE | GCKPT_DEBUG_POISON);
    gckpti_poll_pending(group, &c, reads ? 0 : GCKPTI_MAX_PENDING); /* they read the floats now */
}
#endif
