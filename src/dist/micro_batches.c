#ifndef GCKPT_NO_RANKS
#include "run/internal.h"
#include "num/num.h"
#include "graph/graph.h"

static void gckpti_merge_totals(void *mine, const void *received, size_t bytes)
{
    gckpti_loss_total *a = (gckpti_loss_total *)mine;
    const gckpti_loss_total *b = (const gckpti_loss_total *)received;
    for (size_t i = 0; i < bytes / sizeof *a; i++) {
        a[i].sum += b[i].sum;
        a[i].count += b[i].count;
    }
}

/* Sums group->totals over ranks if they divide the rows. */
static void gckpti_all_reduce_totals(gckpt_exec *e)
{
    gckpti_process_group *group = e->group;
    if (gckpti_is_data_parallel(e->plan))
        gckpti_merge_all(group, group->totals, e->plan->term_count * sizeof *group->totals,
                         gckpti_merge_totals);
}

/* Returns a hash of all settings on which the order and the results of exchanges depend. */
static uint64_t gckpti_hash_exchanges(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const uint64_t settings[] = { (uint64_t)p->batch,
                                  (uint64_t)p->precision,
                                  (uint64_t)p->optimiser,
                                  e->desc.skip_nonfinite != 0,
                                  gckpti_debug(e) & GCKPT_DEBUG_FINITE,
                                  (uint64_t)e->group->uses_queue };
    uint64_t hash = gckpti_fnv(p->check, settings, sizeof settings);
    for (size_t i = 0; i < p->term_count; i++) {
        hash = gckpti_fnv_number(hash, (uint64_t)p->terms[i].id);
        hash = gckpti_fnv_number(hash, p->terms[i].weight);
    }
    for (size_t x = 0; x < p->length; x++)
        hash = gckpti_fnv_number(hash, (uint64_t)p->ins[x].id * 16 + (uint64_t)p->ins[x].kind);
    return hash;
}

/* Returns a hash of all values and optimiser state of which every rank has a full copy. */
static uint64_t gckpti_hash_replicated(const gckpt_exec *e)
{
    const gckpt_store *s = e->store;
    uint64_t hash = GCKPTI_FNV_START;
    for (size_t i = 0; i < e->plan->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        hash = gckpti_fnv_number(hash, q->updates);
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.lr_scale));
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.decay_scale));
        gckpti_pull(s, q);
        for (int slot = -1; slot < gckpti_state_slots(q); slot++)
            if (q->p.storage == GCKPT_STORAGE_F32 && !gckpti_is_part(s, q, slot))
                hash = gckpti_fnv(hash, gckpti_array(q, slot), gckpti_array_bytes(s, q, slot + 1));
    }
    return hash;
}

/* Runs the barrier before the first instruction, with this rank's result; must_match must be equal
 * on all ranks. Then sums the losses' expected counts over ranks. */
GCKPTI_FN gckpt_result gckpti_agree_on_step(gckpt_exec *e, int64_t rows, gckpt_result result)
{
    if (!e->group)
        return result;
    gckpti_process_group *group = e->group;
    uint64_t *must_match = group->status.must_match;
    group->vrank = group->micro_left = group->squares_summed = group->losses_summed = 0;
    e->losses.totals = group->totals_begin;
    must_match[2] = e->store->step;
    must_match[3] = e->store->seed;
    must_match[4] = gckpti_hash_exchanges(e);
    must_match[5] = gckpti_fnv(GCKPTI_FNV_START, &e->update.options, sizeof e->update.options);
    if (!group->replicas_checked && group->ranks > 1 && result == GCKPT_OK)
        must_match[6] = gckpti_hash_replicated(e);
    result = gckpti_agree_on_call(e, GCKPTI_CALL_STEP, rows, result);
    if (result != GCKPT_OK)
        return result;
    group->replicas_checked = 1;
    for (size_t i = 0; i < e->plan->term_count; i++) {
        const gckpti_loss_total expected = { 0, e->losses.terms[i].expected };
        group->totals[i] = expected;
    }
    gckpti_all_reduce_totals(e);
    for (size_t i = 0; i < e->plan->term_count; i++)
        if (e->losses.terms[i].expected >= 0)
            e->losses.terms[i].expected = group->totals[i].count;
    return gckpti_defer_error(e, GCKPT_OK);
}

/* Returns 1 if this micro-batch has no rows on this rank. */
static int gckpti_is_padding(const gckpt_exec *e) { return e->step.row == e->group->vrank_end; }

/* Feeds the next lockstep micro-batch of the current virtual rank. */
GCKPTI_FN void gckpti_prepare_micro_batch(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpti_process_group *group = e->group;
    if (group)
        group->vrank_end =
            gckpti_vrank_begin(p, e->step.rows, group->first_vrank + group->vrank + 1);
    if (group && !group->micro_left) { /* as many as the rank with most has, at least one */
        int64_t most = 1;
        for (int v = group->vrank; v < p->virtual_ranks; v += gckpti_local_vranks(p)) {
            const int64_t n = gckpti_vrank_micro_batches(p, e->step.rows, v);
            most = n > most ? n : most;
        }
        group->micro_left = (int)most;
    }
    if (!group || !gckpti_is_padding(e))
        gckpti_feed_rows(e);
}

/* Sums losses over virtual ranks and ranks, once a step; waits for the backend and all ranks. */
GCKPTI_FN gckpt_result gckpti_sum_losses(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpti_process_group *group = e->group;
    if (!group || group->losses_summed || !e->step.rows)
        return GCKPT_OK;
    group->losses_summed = 1;
    gckpti_wait_pending(e, 0);
    gckpt_result result = gckpti_wait_backend(e);
    const size_t terms = p->term_count, n = e->losses.total_count;
    gckpti_loss_total *t = group->totals;
    gckpti_from_backend(e, t, group->totals_begin, n * sizeof *t);
    for (size_t stride = terms; stride < n; stride *= 2) /* levels of the tree */
        for (size_t k = 0; k < n; k += 2 * stride)
            gckpti_merge_totals(&t[k], &t[k + stride], terms * sizeof *t);
    result = gckpti_agree(e, result);
    if (result != GCKPT_OK)
        return result;
    gckpti_all_reduce_totals(e);
    for (size_t i = 0; i < p->term_count; i++)
        e->losses.terms[i].total = group->totals[i];
    return gckpti_defer_error(e, GCKPT_OK);
}

/* Ends a micro-batch; step.pc then is where the next one begins. After the last, runs a barrier and
 * sums losses. */
GCKPTI_FN gckpt_result gckpti_end_micro_batch(gckpt_exec *e)
{
    if (!e->group)
        return gckpti_next_rows(e);
    gckpti_process_group *group = e->group;
    const int vranks = gckpti_local_vranks(e->plan);
    e->step.row += gckpti_micro_rows(e);
    e->step.prologue_done = 1;
    if (--group->micro_left == 0 && ++group->vrank < vranks) {
        e->losses.totals += e->plan->term_count;
        gckpti_clear_accumulators(e, (size_t)e->plan->epilogue);
    }
    if (group->vrank < vranks) {
        e->step.pc = gckpti_is_inference(e->plan) ? 0 : e->plan->body;
        return GCKPT_OK;
    }
    e->losses.totals = group->totals_begin;
    const int deferred = e->plan->ranks == 1 || group->uses_queue;
    const int known = gckpti_has_known_counts(e) && e->losses.terms[0].expected >= 0;
    return deferred && known ? gckpti_agree(e, GCKPT_OK) : gckpti_sum_losses(e);
}

/* Returns 1 if instruction x must wait for a pending collective: for gathered values, if one of its
 * operands is at their offset; for a sum, if it is a REDUCE, BARRIER or UPDATE. */
static int gckpti_needs(const gckpt_plan *p, int x, const gckpti_pending *pending)
{
    const int kind = p->ins[x].kind;
    return pending->workspace
               ? kind == GCKPT_REDUCE || kind == GCKPT_BARRIER || kind == GCKPT_UPDATE
               : gckpti_has_operand(p, x, pending->offset);
}

/* Polls pending collectives and waits for those that step.pc needs. Returns 1 if this rank must not
 * run the instruction (invariant 1 of dist.h). */
static int gckpti_sync_then_skips(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_ins *ins = &p->ins[e->step.pc];
    const gckpti_process_group *group = e->group;
    const int node = gckpti_ins_node(p, ins);
    int padding = e->step.pc >= p->body && e->step.pc < p->epilogue && gckpti_is_padding(e);
    int n = group->pending_count;
    while (n > 0 && !gckpti_needs(p, e->step.pc, &group->pending[n - 1]))
        n--;
    gckpti_wait_pending(e, group->pending_count - n);
    const int shared = !GCKPTI_OF(gckpti_backend(e), own_memory);
    const int polls = shared && (e->device.runner.team || p->threads == 1);
    e->device.runner.poll = group->pending_count && polls ? gckpti_poll_in_kernel : NULL;
    e->device.runner.poll_context = e->group;
    int skips = padding || (group->status.result != GCKPT_OK && !e->update.begun);
    if (ins->kind == GCKPT_REDUCE)
        skips = group->micro_left > 1;
    else if (node < 0 || p->nodes[node].kind == GCKPTI_PARAM) /* a gather or an update */
        skips = 0;
    return skips;
}

/* Adds up a gradient's accumulators of this virtual rank, then partial sums of earlier ones, like
 * the carries of a binary counter. On the last virtual rank, starts the sum over ranks. */
GCKPTI_FN gckpt_result gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    int64_t n = gckpti_planned_elements(p, &p->nodes[ins->id]);
    int level = 0, last_vrank = e->group->vrank + 1 == gckpti_local_vranks(p);
    gckpti_operands o;
    gckpt_call call, *c = &call;
    gckpti_init_call(e, c);
    gckpti_operands_of(p->operands, ins, 0, &o);
    float *sum = gckpti_arena_f32(e, o.gradient);
    const size_t *carries = o.addends + ins->uses - 1;
    if (gckpti_is_padding(e) && !p->accumulates) /* no backward wrote it */
        GCKPTI_OF(gckpti_backend(e), fill)(c, sum, 0, n);
    for (int u = 1; u < ins->uses && (p->accumulates || !gckpti_is_padding(e)); u++)
        GCKPTI_OF(gckpti_backend(e), add)(c, sum, gckpti_arena_f32(e, o.addends[u - 1]), n);
    for (; e->group->vrank >> level & 1; level++)
        GCKPTI_OF(gckpti_backend(e), add)(c, sum, gckpti_arena_f32(e, carries[level]), n);
    if (!last_vrank)
        gckpti_copy(gckpti_backend(e), gckpti_arena_f32(e, carries[level]), sum,
                    (size_t)n * sizeof *sum);
    else if (p->ranks > 1) {
        const gckpti_collective kind = ins->accumulate ? GCKPTI_REDUCE_SCATTER : GCKPTI_ALL_REDUCE;
        float *workspace = gckpti_arena_f32(e, o.workspace), *shard = gckpti_arena_f32(e, o.part);
        const gckpti_pending sums = { kind, GCKPTI_NO_OFFSET, sum, workspace, shard, n, 0, 0, 0 };
        gckpti_start_collective(e, &sums);
    }
    return GCKPT_OK;
}

/* Starts to gather a parameter's shards in x, which is in the arena at `offset` or, for NO_OFFSET,
 * in the store. */
static void gckpti_gather_shards(gckpt_exec *e, const gckpti_param *q, float *x, size_t offset)
{
    const gckpti_pending gather = {
        GCKPTI_ALL_GATHER, offset, x, NULL, NULL, q->p.elements, 0, 0, 0
    };
    gckpti_start_collective(e, &gather);
}

/* Starts to gather a parameter in the arena at `offset`. Returns 0 if it is not sharded. */
GCKPTI_FN int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *shard,
                                size_t offset)
{
    float *to = gckpti_arena_f32(e, offset);
    if (!gckpti_is_part(e->store, q, GCKPTI_VALUES))
        return 0;
    gckpti_copy(gckpti_backend(e), to + q->p.first, shard, (size_t)q->p.count * sizeof *to);
    gckpti_gather_shards(e, q, to, offset);
    return 1;
}

/* Starts to gather the updated shards of a parameter whose values every rank needs whole. */
GCKPTI_FN void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q)
{
    if (gckpti_is_part(e->store, q, 0) && !gckpti_is_part(e->store, q, GCKPTI_VALUES))
        gckpti_gather_shards(e, q, gckpti_exec_array(e, q, -1), GCKPTI_NO_OFFSET);
}

/* Restricts a pass over a parameter to the shard that this rank updates. */
GCKPTI_FN void gckpti_restrict_pass(const gckpt_exec *e, const gckpti_ins *ins,
                                    gckpt_update_pass *pass)
{
    const gckpti_param *q = gckpti_param_of(e, ins->id);
    const int64_t first = q->p.first;
    if (!gckpti_is_part(e->store, q, 0))
        return;
    pass->elements = q->p.count;
    pass->gradient += ins->accumulate ? 0 : first; /* of the whole gradient */
    pass->base = e->blocks.arena + (size_t)first * sizeof(float);
    pass->squares = pass->squares ? pass->squares + first / GCKPT_UPDATE_BLOCK : NULL;
    pass->values += gckpti_is_part(e->store, q, GCKPTI_VALUES) ? 0 : first;
}

static void gckpti_merge_floats(void *mine, const void *received, size_t bytes)
{
    gckpti_add_into((float *)mine, (const float *)received, (int64_t)(bytes / sizeof(float)));
}

/* Sums update.squares over all ranks, once a step, before the norm is computed. Each rank has the
 * sums of its shards; rank 0 also those of parameters without shards. */
GCKPTI_FN void gckpti_sum_squares(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpti_process_group *group = e->group;
    const size_t bytes = e->update.square_count * sizeof(float);
    if (p->shard == GCKPT_SHARD_NONE || group->squares_summed)
        return;
    float *squares = (float *)(void *)group->send_buf, *own = (float *)(void *)group->recv_buf;
    group->squares_summed = 1;
    gckpti_wait_pending(e, 0);
    gckpti_from_backend(e, own, e->update.squares, bytes);
    memset(squares, 0, bytes);
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        const int64_t first = q->p.first / GCKPT_UPDATE_BLOCK;
        const int64_t n = (q->p.count + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
        const size_t at = e->tables.params[i].first_square + (size_t)first;
        if (p->params[i].trained && (!group->rank || gckpti_is_part(e->store, q, 0)))
            memcpy(squares + at, own + at, (size_t)n * sizeof *squares);
    }
    gckpti_merge_all(group, squares, bytes, gckpti_merge_floats);
    gckpti_to_backend(e, e->update.squares, squares, bytes);
}

GCKPTI_MODULE(dist)
{
    switch (event) {
    case GCKPTI_ON_LAYOUT:
        if (e->plan->virtual_ranks > 1 || e->plan->ranks > 1)
            gckpti_alloc_group(e, (gckpti_bump *)arg);
        break;
    case GCKPTI_ON_BIND: e->device.watched |= e->group != NULL; return gckpti_bind_group(e);
    case GCKPTI_ON_REACH: return e->group && gckpti_sync_then_skips(e) ? GCKPT_MORE : GCKPT_OK;
    case GCKPTI_ON_GRADIENTS: gckpti_sum_squares(e); break;
    case GCKPTI_ON_FREE:
        if (e->group && e->group->transport && e->step.state != GCKPTI_IDLE)
            gckpti_abort_comm(e->group); /* ends the step on the other ranks */
        break;
    default: break;
    }
    return GCKPT_OK;
}
#endif
