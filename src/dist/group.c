#ifndef GCKPT_NO_RANKS
#include "run/internal.h"
#include "num/num.h"

/* Returns the bytes of send_buf: for small arrays or, if the host copies floats, half a big one. */
GCKPTI_FN size_t gckpti_comm_buffer_bytes(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_transport *transport = e->desc.transport;
    const int copies =
        GCKPTI_OF(gckpti_backend(e), own_memory) && transport && !transport->device_aware;
    size_t most = 16 * GCKPT_UPDATE_BLOCK, squares = e->update.square_count * sizeof(float);
    const size_t totals = p->term_count * sizeof(gckpti_loss_total);
    most = most > squares ? most : squares;
    most = most > totals ? most : totals;
    for (size_t id = 0; id < p->node_count && copies; id++) {
        int64_t n = gckpti_planned_elements(p, &p->nodes[id]);
        if (n > GCKPT_UPDATE_BLOCK)
            n = gckpti_shard_of(n, 0, 2).count;
        if (p->nodes[id].batch_invariant && (size_t)n * sizeof(float) > most)
            most = (size_t)n * sizeof(float);
    }
    return most;
}

GCKPTI_FN void gckpti_alloc_group(gckpt_exec *e, gckpti_bump *bump)
{
    const gckpt_plan *p = e->plan;
    const size_t several = p->ranks > 1, vranks = (size_t)gckpti_local_vranks(p);
    const size_t totals = e->losses.total_count *= vranks;
    gckpti_process_group counted, *group;
    e->group = (gckpti_process_group *)gckpti_bump_alloc(bump, 1, sizeof *group);
    group = e->group ? e->group : &counted;
    group->buffer_bytes = several ? gckpti_comm_buffer_bytes(e) : 0;
    group->send_buf = (unsigned char *)gckpti_bump_alloc(bump, group->buffer_bytes, 1);
    group->recv_buf = (unsigned char *)gckpti_bump_alloc(bump, group->buffer_bytes, 1);
    group->totals = (gckpti_loss_total *)gckpti_bump_alloc(bump, totals, sizeof(gckpti_loss_total));
}

/* Checks plan, store and desc.transport, and initialises e->group. */
GCKPTI_FN gckpt_result gckpti_bind_group(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpt_store *s = e->store;
    const gckpt_transport *transport = p->ranks > 1 ? e->desc.transport : NULL;
    if (p->ranks != gckpti_ranks_of(s) || p->shard != s->shard)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan was made for %i ranks and shard %i, the store is for "
                            "%i and %i (gckpt_store_ranks): make a new plan",
                            p->ranks, (int)p->shard, gckpti_ranks_of(s), (int)s->shard);
    if (p->ranks > 1 && (!transport || !transport->exchange || transport->rank != s->rank ||
                         transport->size != gckpti_ranks_of(s)))
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the store is rank %i of %i: desc.transport must have this "
                            "rank and size, and exchange",
                            s->rank, gckpti_ranks_of(s));
    if (!e->group)
        return GCKPT_OK;
    gckpti_process_group *group = e->group;
    group->totals_begin = e->losses.totals;
    group->first_vrank = gckpti_is_data_parallel(p) ? s->rank * gckpti_local_vranks(p) : 0;
    group->transport = transport;
    group->backend = gckpti_backend(e);
    group->rank = group->status.rank = s->rank;
    group->ranks = p->ranks;
    group->uses_queue = transport && GCKPTI_OF(group->backend, use_comm_queue) &&
                        GCKPTI_OF(group->backend, wait_comm_queue) && transport->enqueue &&
                        transport->enqueued_done && transport->abort;
    return GCKPT_OK;
}

GCKPTI_FN int gckpti_is_under_way(gckpt_exec *e)
{
    if (e->plan->ranks < 2 || e->step.state == GCKPTI_IDLE)
        return 0;
    gckpti_error(e, GCKPT_E_ARG,
                 "step: one is under way, and all ranks run it: end that step first");
    return 1;
}

/* Errors that could end a step on this rank only must go through gckpti_defer_error or gckpti_agree
 * (invariant 2 of dist.h). The text is in e (in the store while e is being created). */

GCKPTI_FN gckpt_result gckpti_defer_error(gckpt_exec *e, gckpt_result result)
{
    if (!e->group)
        return result;
    gckpti_process_group *group = e->group;
    if (group->aborted) {
        group->call_ended = 1;
        gckpti_set_state(e, GCKPTI_IDLE);
        const char *changed = ", and parameters may have changed: load a checkpoint";
        return gckpti_error(e, GCKPT_E_PEER,
                            "%s%i does not answer: it ended, hangs or cannot be reached; free "
                            "this executor%s",
                            group->peer < 0 ? "one of ranks 0 to " : "rank ",
                            group->peer < 0 ? group->ranks - 1 : group->peer,
                            e->update.begun ? changed : "");
    }
    if (result == GCKPT_OK || group->ranks == 1 || group->call_ended)
        return result;
    if (group->status.result == GCKPT_OK) {
        group->status.result = (int32_t)result;
        memcpy(group->status.text, e->object.text, sizeof group->status.text);
    }
    return GCKPT_OK;
}

/* Merges two ranks' statuses: keeps the failure of the lower rank, or the first mismatch. */
static void gckpti_merge_statuses(void *mine, const void *received, size_t bytes)
{
    static const char *const names[GCKPTI_MUST_MATCH] = {
        "the call they make",
        "rows",
        "the store's step",
        "the store's seed",
        "plans, or how they are run",
        "hyper",
        "values that should be the same on all ranks"
    };
    gckpti_status *a = (gckpti_status *)mine;
    const gckpti_status *b = (const gckpti_status *)received;
    int32_t low = a->rank < b->rank ? a->rank : b->rank, high = a->rank + b->rank - low;
    if (b->result != GCKPT_OK && (a->result == GCKPT_OK || b->rank < a->rank))
        memcpy(a, b, bytes);
    for (int i = 0; a->result == GCKPT_OK && i < GCKPTI_MUST_MATCH; i++) {
        gckpti_object text;
        if (a->must_match[i] == b->must_match[i])
            continue;
        memset(&text, 0, sizeof text);
        a->result = (int32_t)gckpti_error(&text, GCKPT_E_ARG, "ranks %i and %i differ in %s",
                                          (int)low, (int)high, names[i]);
        memcpy(a->text, text.text, sizeof a->text);
        low = -1;
    }
    if (a->result == GCKPT_OK || low < 0)
        a->rank = low;
}

/* The status barrier: waits for all collectives and all ranks. Returns OK if every rank passes OK;
 * else ends the step on all ranks (states become idle) with the error of the lowest failed rank. */
GCKPTI_FN gckpt_result gckpti_agree(gckpt_exec *e, gckpt_result result)
{
    if (!e->group)
        return result;
    gckpti_process_group *group = e->group;
    if (group->ranks == 1 || group->call_ended)
        return result;
    (void)gckpti_defer_error(e, result);
    gckpti_wait_pending(e, 0);
    GCKPT_ASSERT(group->pending_count == 0 || group->aborted);
    gckpti_merge_all(group, &group->status, sizeof group->status, gckpti_merge_statuses);
    const gckpti_status agreed = group->status;
    memset(&group->status, 0, sizeof group->status);
    group->status.rank = group->rank;
    if (group->aborted)
        return gckpti_defer_error(e, GCKPT_OK);
    if (agreed.result == GCKPT_OK)
        return GCKPT_OK;
    group->call_ended = 1;
    gckpti_set_state(e, GCKPTI_IDLE);
    return agreed.rank < 0 ? gckpti_error(e, (gckpt_result)agreed.result, "%s", agreed.text)
                           : gckpti_error(e, (gckpt_result)agreed.result, "rank %i: %s",
                                          (int)agreed.rank, agreed.text);
}

GCKPTI_FN gckpt_result gckpti_agree_on_call(gckpt_exec *e, gckpti_group_call call, int64_t number,
                                            gckpt_result result)
{
    if (!e->group)
        return result;
    const uint64_t must_match[2] = { (uint64_t)call, (uint64_t)number };
    e->group->call_ended = 0;
    memcpy(e->group->status.must_match, must_match, sizeof must_match);
    return gckpti_agree(e, result);
}

GCKPTI_FN gckpt_result gckpti_agree_on_save(gckpt_exec *e, gckpt_result result)
{
    if (!e || (e->group && e->group->call_ended)) /* by a failure: no barrier follows */
        return result;
    if (result != GCKPT_OK)
        gckpti_error(e, result, "%s", gckpt_error_text(e->store));
    return gckpti_agree_on_call(e, GCKPTI_CALL_SAVE, 0, result);
}

GCKPT_API uint64_t gckpt_exec_bytes_sent(const gckpt_exec *exec)
{
    return exec && exec->group ? exec->group->bytes_sent : 0;
}

GCKPTI_FN const float *gckpti_gather_chunk(gckpt_exec *e, gckpt_store *s, const gckpti_param *q,
                                           int slot, int64_t at, float scratch[GCKPTI_CHUNK],
                                           int64_t *n)
{
    const gckpti_shard_range mine = gckpti_array_shard(s, q, slot);
    if (!gckpti_is_sharded(mine))
        return gckpti_floats_at(s, q, slot, at, scratch, n);
    if (!e) {
        gckpti_error(s, GCKPT_E_ARG,
                     "save: this rank has only a shard of \"%s\"%s; gckpt_ranks_save writes all "
                     "ranks' shards",
                     q->p.name, slot < 0 ? "" : gckpti_suffixes[slot]);
        return NULL;
    }
    gckpti_process_group *group = e->group;
    float *out = (float *)(void *)group->send_buf;
    int owner = 0;
    gckpti_shard_range shard = gckpti_shard_of(mine.total, owner, gckpti_ranks_of(s));
    while (at < shard.first || at - shard.first >= shard.count)
        shard = gckpti_shard_of(mine.total, ++owner, gckpti_ranks_of(s));
    *n = gckpti_min(shard.first + shard.count - at,
                    (int64_t)(e->group->buffer_bytes / sizeof(float)));
    for (int64_t i = 0, count; i < *n && owner == group->rank; i += count) {
        const float *x = gckpti_floats_at(s, q, slot, at + i, scratch, &count);
        count = gckpti_min(count, *n - i);
        memcpy(out + i, x, (size_t)count * sizeof *x);
    }
    for (int bit = 1; bit < group->ranks && !group->aborted; bit *= 2) {
        const int has = (group->rank ^ owner) < bit, gets = (group->rank ^ bit ^ owner) < bit;
        const size_t bytes = (size_t)*n * sizeof *out;
        gckpti_exchange(group, group->rank ^ bit, out, has ? bytes : 0, out, gets ? bytes : 0);
        gckpti_wait_exchange(group);
    }
    return gckpti_defer_error(e, GCKPT_OK) == GCKPT_OK ? out : NULL;
}

GCKPT_API gckpt_result gckpt_gather_values(gckpt_exec *exec, int index, float *to, uint64_t *hash)
{
    float scratch[GCKPTI_CHUNK];
    uint64_t sum = GCKPTI_FNV_START;
    gckpt_result result = GCKPT_OK;
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    const int count = (int)exec->store->count, last = index < 0 ? count - 1 : index;
    if (index < -1 || index >= count || (index < 0 && to))
        result = gckpti_error(exec, GCKPT_E_ARG, "gather: no parameter has index %i", index);
    result = gckpti_agree_on_call(exec, GCKPTI_CALL_GATHER, index, result);
    for (int i = index < 0 ? 0 : index; i <= last && result == GCKPT_OK; i++) {
        const gckpti_param *q = &exec->store->params[i];
        for (int64_t at = 0, n; at < q->p.elements && result == GCKPT_OK; at += n) {
            const float *x =
                gckpti_gather_chunk(exec, exec->store, q, GCKPTI_VALUES, at, scratch, &n);
            result = x ? GCKPT_OK : GCKPT_E_PEER;
            if (x && to)
                memcpy(to + at, x, (size_t)n * sizeof *x);
            if (x && hash)
                sum = gckpti_hash_floats(sum, x, n);
        }
    }
    if (hash)
        *hash = result == GCKPT_OK ? sum : 0;
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}

GCKPTI_FN int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows)
{
    int64_t n = e->group ? 0 : (rows + e->plan->rows - 1) / e->plan->rows;
    for (int i = 0; e->group && i < gckpti_local_vranks(e->plan); i++)
        n += gckpti_vrank_micro_batches(e->plan, e->step.rows, e->group->first_vrank + i);
    return n;
}
#endif
