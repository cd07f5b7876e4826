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
GCKPTI_FN void gckpti_abort_comm(gckpti_process_group *group)
{
    if (!group->aborted && group->transport->abort)
        group->transport->abort(group->transport->user);
    group->aborted = 1;
    group->busy = 0;
}

/* Starts to send host memory to rank `peer`, and to receive from it. */
GCKPTI_FN void gckpti_exchange(gckpti_process_group *group, int peer, const void *send,
                               size_t send_bytes, void *receive, size_t recv_bytes)
{
    group->peer = peer; /* also without bytes, since errors name this rank */
    if (group->aborted || send_bytes + recv_bytes == 0)
        return;
    group->bytes_sent += send_bytes;
    group->busy = 1;
    if (!group->transport->exchange(group->transport->user, peer, send, send_bytes, receive,
                                    recv_bytes))
        gckpti_abort_comm(group);
}

/* Returns 1 if no exchange is in progress (or aborted), else 0. */
static int gckpti_is_done(gckpti_process_group *group)
{
    const gckpt_backend *b = group->backend;
    int (*poll)(void *) = group->waiting ? group->transport->enqueued_done : group->transport->done;
    int done = !group->busy || !poll ? 1 : poll(group->transport->user);
    if (done < 0)
        gckpti_abort_comm(group);
    else if (done && group->busy && group->copy_to)
        gckpti_copy_in(b, group->copy_to, group->recv_buf, group->recv_bytes);
    if (done)
        group->busy = 0;
    return done != 0;
}

/* Waits for the exchange in progress. Returns 0 if it failed or timed out: then `aborted` is 1. */
GCKPTI_FN int gckpti_wait_exchange(gckpti_process_group *group)
{
    const gckpt_transport *transport = group->transport;
    double start = transport && transport->clock ? transport->clock(transport->user) : 0;
    while (!gckpti_is_done(group))
        if (transport->clock && transport->timeout > 0 &&
            transport->clock(transport->user) - start > transport->timeout)
            gckpti_abort_comm(group);
    return !group->aborted;
}

GCKPTI_FN void gckpti_wait_in_flight(const gckpt_exec *e, size_t copied_in)
{
    gckpti_process_group *group = e->group;
    if (!group || !group->in_flight)
        return;
    const size_t least = (size_t)1 << 19, most = 32 * least; /* see copy_in in api.h */
    group->copied_in += copied_in < least ? least : copied_in;
    if (copied_in && group->copied_in < most)
        return;
    group->copied_in = 0;
    group->copy_to = NULL;
    group->waiting = group->busy = !group->aborted;
    gckpti_wait_exchange(group);
    group->waiting = group->in_flight = 0;
}

/* Starts to send n floats and to receive m, for a collective. */
static void gckpti_exchange_floats(gckpti_process_group *group, const gckpti_pending *tree,
                                   const float *from, int64_t n, float *to, int64_t m)
{
    const gckpt_backend *b = group->backend;
    const int copies = GCKPTI_OF(b, own_memory) && !group->transport->device_aware;
    /* later levels of a gather pass on received floats */
    const int is_own = tree->kind != GCKPTI_ALL_GATHER || tree->bit == group->ranks / 2;
    const int peer = group->rank ^ tree->bit;
    const size_t size = (size_t)n * sizeof *from;
    void *out = copies ? (void *)group->send_buf : (void *)(uintptr_t)from;
    void *in = copies ? (void *)group->recv_buf : (void *)to;
    group->recv_bytes = (size_t)m * sizeof *to;
    group->copy_to = copies ? to : NULL;
    if (group->queue) {
        group->peer = -1; /* if it fails later, any rank may be the cause */
        group->bytes_sent += size;
        if (n + m > 0 && !group->transport->enqueue(group->transport->user, group->queue, peer,
                                                    from, size, to, group->recv_bytes))
            gckpti_abort_comm(group);
        return;
    }
    if (copies && n)
        gckpti_copy_out(b, out, from, size);
    else if (GCKPTI_OF(b, own_memory) && is_own)
        (void)gckpti_finish(b); /* every later call returns the error again */
    gckpti_exchange(group, peer, out, size, in, group->recv_bytes);
}

/* Merges all ranks' `bytes` bytes into `mine`; stops if an exchange fails (group->aborted). */
GCKPTI_FN void gckpti_merge_all(gckpti_process_group *group, void *mine, size_t bytes,
                                gckpti_merge_fn merge)
{
    group->copy_to = NULL;
    for (int bit = 1; bit < group->ranks && !group->aborted; bit *= 2) {
        gckpti_exchange(group, group->rank ^ bit, mine, bytes, group->recv_buf, bytes);
        if (gckpti_wait_exchange(group))
            merge(mine, group->recv_buf, bytes);
    }
}

/* ---- collectives of large arrays, level by level, overlapped with computation ---- */
static void gckpti_exchange_level(gckpti_process_group *group, gckpti_pending *tree)
{
    const int parts = tree->n > GCKPT_UPDATE_BLOCK ? 2 * tree->bit : 1; /* or all */
    const gckpti_shard_range mine = gckpti_shard_of(tree->n, group->rank, parts);
    const gckpti_shard_range theirs = gckpti_shard_of(tree->n, group->rank ^ tree->bit, parts);
    float *own = tree->x + mine.first, *other = tree->x + theirs.first;
    tree->first = mine.first;
    tree->count = mine.count;
    if (tree->kind == GCKPTI_ALL_GATHER)
        gckpti_exchange_floats(group, tree, own, mine.count, other, theirs.count);
    else
        gckpti_exchange_floats(group, tree, other, theirs.count, tree->workspace, mine.count);
}

/* Starts a collective; the caller completes it before any other exchange. Sums need a
 * workspace for the larger half of the floats (up to GCKPT_UPDATE_BLOCK: for all). */
static void gckpti_begin_tree(gckpti_process_group *group, gckpti_pending *tree)
{
    tree->bit = tree->kind == GCKPTI_ALL_GATHER ? group->ranks / 2 : 1;
    if (!group->aborted)
        gckpti_exchange_level(group, tree);
}

/* Advances the collective: if wait is nonzero, to its end; if 0, as far as it can without waiting.
 * If c is NULL, stops before the first addition. Returns 1 if the collective is complete, or
 * aborted. */
static int gckpti_poll_tree(gckpti_process_group *group, gckpti_pending *tree, const gckpt_call *c,
                            int wait)
{
    while (tree->bit && (wait ? gckpti_wait_exchange(group) : gckpti_is_done(group)) &&
           !group->aborted) {
        if (!c && tree->kind != GCKPTI_ALL_GATHER)
            return 0;
        if (tree->kind == GCKPTI_ALL_GATHER) {
            tree->bit /= 2;
        } else {
            GCKPTI_OF(group->backend, add)(c, tree->x + tree->first, tree->workspace, tree->count);
            tree->bit *= 2;
            if (tree->bit == group->ranks) {
                int is_sharded = tree->kind == GCKPTI_ALL_REDUCE && tree->n > GCKPT_UPDATE_BLOCK;
                tree->kind = GCKPTI_ALL_GATHER;
                tree->bit = is_sharded ? group->ranks / 2 : 0;
            }
        }
        if (tree->bit)
            gckpti_exchange_level(group, tree);
        else if (tree->shard)
            gckpti_copy(group->backend, tree->shard, tree->x + tree->first,
                        (size_t)tree->count * sizeof(float));
    }
    return !tree->bit || group->aborted;
}

/* Advances pending collectives; waits while more than max_pending are left. NULL c: no addition. */
static void gckpti_poll_pending(gckpti_process_group *group, const gckpt_call *c, int max_pending)
{
    gckpti_pending *list = group->pending;
    const int done = group->pending_count - max_pending;
    if (group->uses_queue && done > 0) {
        GCKPTI_OF(group->backend, wait_comm_queue)(GCKPTI_OF(group->backend, context), max_pending);
        memmove(list, list + done, (size_t)max_pending * sizeof *list);
        group->pending_count = max_pending;
    }
    while (!group->uses_queue && group->pending_count &&
           gckpti_poll_tree(group, list, c, group->pending_count > max_pending)) {
        memmove(list, list + 1, (size_t)--group->pending_count * sizeof *list);
        if (group->pending_count)
            gckpti_begin_tree(group, list);
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
GCKPTI_FN void gckpti_poll_in_kernel(void *group)
{
    gckpti_poll_pending((gckpti_process_group *)group, NULL, GCKPTI_MAX_PENDING);
}

/* Starts a collective, appends it to the pending ones, or (uses_queue) enqueues it completely. */
GCKPTI_FN void gckpti_start_collective(gckpt_exec *e, const gckpti_pending *pending)
{
    gckpti_process_group *group = e->group;
    const gckpt_backend *b = group->backend;
    gckpt_call c;
    gckpti_init_call(e, &c);
    gckpti_poll_pending(group, &c, GCKPTI_MAX_PENDING - 1);
    gckpti_pending *tree = &group->pending[group->pending_count++];
    *tree = *pending;
    if (group->uses_queue) {
        group->queue = GCKPTI_OF(b, use_comm_queue)(GCKPTI_OF(b, context), 1);
        gckpti_begin_tree(group, tree);
        group->in_flight = gckpti_poll_tree(group, tree, &c, 0); /* all levels, without waiting */
        GCKPTI_OF(b, use_comm_queue)(GCKPTI_OF(b, context), 0);
        group->queue = NULL;
    } else if (group->pending_count == 1) {
        gckpti_begin_tree(group, tree);
    }
    const unsigned reads = gckpti_debug(e) & (GCKPT_DEBUG_FINITE | GCKPT_DEBUG_POISON);
    gckpti_poll_pending(group, &c, reads ? 0 : GCKPTI_MAX_PENDING); /* they read the floats now */
}
#endif
