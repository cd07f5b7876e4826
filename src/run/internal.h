#pragma once
#include "run/run.h"

/* Declarations shared by the files of run. Stubs of disabled features do nothing and return their
 * `result` argument; a stub is a macro where a function would not fit on one line. */

/* ---- run/memory.c ---- */
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

typedef struct { /* a bump allocator; base NULL means it only counts bytes */
    unsigned char *base;
    size_t used;
} gckpti_bump;

/* Allocates n * size aligned bytes; NULL if base is NULL. `used` stops at PTRDIFF_MAX / 2. */
GCKPTI_FN void *gckpti_bump_alloc(gckpti_bump *bump, size_t n, size_t size);

/* ---- run/open.c ---- */
/* Checks that the store's parameter q has the storage and state that parameter i of the plan needs.
 * If in_step is 0, e is being created, and its store gets the error; else e gets it. */
GCKPTI_FN gckpt_result gckpti_check_plan_param(gckpt_exec *e, int i, const gckpti_param *q,
                                               int in_step);

/* Copies a parameter's newest values and state to where this executor reads them. */
GCKPTI_FN gckpt_result gckpti_sync_param(gckpt_exec *e, gckpti_param *q, int in_step);

/* Nonzero if gckpt_forward refuses initial values (unless desc.allow_initial is set). */
enum { GCKPTI_CHECKS_INITIAL = GCKPTI_TEXT_BYTES > 1 };

/* Runs an instruction. All instructions of a run share the call c; with GCKPT_SMALL it is NULL. */
typedef gckpt_result (*gckpti_handler)(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);

/* ---- run/memory.c, run/feeds.c ---- */
/* Returns how input i's gradient sum is compensated: GCKPTI_SUM_IN_OP, _IN_STEP, or 0 (not). */
static inline int gckpti_sum_mode(const gckpt_plan *p, const gckpti_plan_node *node, int i)
{
    int in_step = p->accumulates && !node->batch_invariant && p->nodes[node->in[i]].batch_invariant;
    return !(node->compensated >> i & 1) ? 0 : in_step ? GCKPTI_SUM_IN_STEP : GCKPTI_SUM_IN_OP;
}

/* Ends a micro-batch, if there is no process group, and prepares the next one, if there is one.
 * Returns MORE if the rows so far are done and more may stream in. */
GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e);

/* If gradients accumulate over micro-batches, sets to +0 the accumulators (and compensations) of
 * batch-invariant nodes to which instructions before `end` add. */
GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end);

#ifdef GCKPT_NO_TRAINING /* plans for inference have no updates */
#define gckpti_run_checked_update ((gckpti_handler)0)
#define gckpti_count_step(...)    ((const gckpti_plan_param *)0)
#endif

/* ---- dist/exchange.c, dist/group.c, dist/micro_batches.c ---- */
#ifndef GCKPT_NO_RANKS
/* Returns 1 if the plan needs a process group. */
static inline int gckpti_has_group(const gckpt_plan *p)
{
    return p->virtual_ranks > 1 || p->ranks > 1;
}
static inline gckpti_process_group *gckpti_group_of(const gckpt_exec *e) { return e->group; }

/* Returns how many virtual ranks this rank runs: its part, or all if every rank runs all rows. */
static inline int gckpti_local_vranks(const gckpt_plan *p)
{
    return p->virtual_ranks < p->ranks ? p->virtual_ranks : p->virtual_ranks / p->ranks;
}

/* Returns 1 if rows are divided among ranks, 0 if every rank runs all rows (text generation). */
static inline int gckpti_is_data_parallel(const gckpt_plan *p)
{
    return p->ranks > 1 && p->virtual_ranks >= p->ranks;
}

/* Errors that could end a step on this rank only must go through gckpti_defer_error or gckpti_agree
 * (invariant 2 of run.h). The text is in e (in the store while e is being created). */

/* Allocates e->group with its tables. */
GCKPTI_FN void gckpti_alloc_group(gckpt_exec *e, gckpti_bump *bump);

/* Checks desc.transport, and initialises e->group->comm. */
GCKPTI_FN gckpt_result gckpti_bind_group(gckpt_exec *e);

/* Called when e is freed: if a step is in progress, aborts it on the other ranks. */
GCKPTI_FN void gckpti_abort_step(gckpt_exec *e);

/* Runs the barrier before the first instruction, with this rank's result; must_match must be equal
 * on all ranks. Then sums the losses' expected counts over ranks, unless rows is 0 (stream), for
 * which gckpti_end_stream sums them. */
GCKPTI_FN gckpt_result gckpti_agree_on_step(gckpt_exec *e, int64_t rows, gckpt_result result);

/* Handles a result between two barriers. Stores a local failure for the next barrier and returns
 * OK: the step goes on. If an exchange failed, sets e idle and returns GCKPT_E_PEER, whatever
 * `result` is. With one rank, or if no barrier follows, returns `result`. */
GCKPTI_FN gckpt_result gckpti_defer_error(gckpt_exec *e, gckpt_result result);

/* Returns the failure stored for the next barrier, or OK. */
GCKPTI_FN gckpt_result gckpti_local_failure(gckpt_exec *e);

/* The status barrier: waits for all collectives and all ranks. Returns OK if every rank passes OK;
 * else ends the step on all ranks (states become idle) with the error of the lowest failed rank. */
GCKPTI_FN gckpt_result gckpti_agree(gckpt_exec *e, gckpt_result result);

/* Prepares the next lockstep micro-batch (step.pc, feeds). Returns 0 if the step has none left, or
 * its rows have not streamed in. Must be called when a step begins and when rows were added. */
GCKPTI_FN int gckpti_prepare_micro_batch(gckpt_exec *e);

/* Ends a micro-batch (step.pc is at the epilogue) and prepares the next one or, after the last,
 * runs a barrier and sums losses. Returns MORE if more rows of a stream must come first. */
GCKPTI_FN gckpt_result gckpti_end_micro_batch(gckpt_exec *e);

/* run/feeds.c: Returns 1 if feeds determine all counts, so that a backend's need not be read. */
GCKPTI_FN int gckpti_has_known_counts(const gckpt_exec *e);

/* Sums losses over virtual ranks and ranks, once a step; waits for the backend and all ranks. */
GCKPTI_FN gckpt_result gckpti_sum_losses(gckpt_exec *e);

/* Ends a stream: runs a barrier, counts the rows of all ranks, prepares the last micro-batch. */
GCKPTI_FN gckpt_result gckpti_end_stream(gckpt_exec *e);

/* Polls pending collectives and waits for those that are due at this instruction. Then returns 1 if
 * this rank must not run it (invariant 1 of run.h). Must be called again after desc.progress. */
GCKPTI_FN int gckpti_sync_then_skips(gckpt_exec *e, const gckpti_ins *ins);

/* Returns the end of the part of a micro-batch, from step.pc on, which can be replayed because no
 * collective starts or is due in it; step.pc for an empty part. *part becomes its unique number. */
GCKPTI_FN int gckpti_capture_part_end(gckpt_exec *e, int64_t *part);

/* Runs a REDUCE. The sum over ranks that it starts overlaps the instructions that follow. */
GCKPTI_FN gckpt_result gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);

/* Sums update.squares over all ranks, once a step, before the norm is computed. */
GCKPTI_FN void gckpti_sum_squares(gckpt_exec *e);

/* Starts to gather a parameter's shards from all ranks to `to`. Returns 0 if it is not sharded. */
GCKPTI_FN int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *shard,
                                float *to);

/* Restricts a pass over a parameter to the shard that this rank updates. */
GCKPTI_FN void gckpti_restrict_to_shard(const gckpt_exec *e, const gckpti_ins *ins,
                                 gckpt_update_pass *pass);

/* Starts to gather the updated shards of a parameter whose values every rank needs whole. */
GCKPTI_FN void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q);
#else /* one rank with one virtual rank */
static inline gckpti_process_group *gckpti_group_of(const gckpt_exec *e)
{
    return (void)e, (gckpti_process_group *)0;
}
static inline int gckpti_local_vranks(const gckpt_plan *p) { return (void)p, 1; }
static inline void gckpti_alloc_group(gckpt_exec *e, gckpti_bump *bump) { (void)e, (void)bump; }
static inline gckpt_result gckpti_bind_group(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline void gckpti_abort_step(gckpt_exec *e) { (void)e; }
#define gckpti_agree_on_step(e, rows, result) (result)
static inline gckpt_result gckpti_defer_error(gckpt_exec *e, gckpt_result r) { return (void)e, r; }
static inline gckpt_result gckpti_local_failure(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline gckpt_result gckpti_agree(gckpt_exec *e, gckpt_result r) { return (void)e, r; }
static inline int gckpti_prepare_micro_batch(gckpt_exec *e) { return gckpti_feed_rows(e), 1; }
static inline gckpt_result gckpti_end_micro_batch(gckpt_exec *e) { return gckpti_next_rows(e); }
static inline gckpt_result gckpti_sum_losses(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline gckpt_result gckpti_end_stream(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline int gckpti_sync_then_skips(gckpt_exec *e, const gckpti_ins *i)
{
    return (void)e, (void)i, 0;
}
#define gckpti_capture_part_end(e, part)      0
#define gckpti_run_reduce ((gckpti_handler)0)
static inline void gckpti_sum_squares(gckpt_exec *e) { (void)e; }
#define gckpti_run_gather(...)                0
#define gckpti_restrict_to_shard(...)                ((void)0)
static inline void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q) { (void)e, (void)q; }
#endif

/* ---- offload/copies.c ---- */
#ifndef GCKPT_SMALL
/* Waits for pending copies that are due at instruction x or before, and for those started before
 * them. Returns `result` or, if that is OK or MORE, the error of a copy. */
GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result);

/* Runs an OFFLOAD, RELOAD or OFFLOAD_DONE. */
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);
#else /* plans of firmware have none */
#define gckpti_wait_copies(e, x, result) ((void)(x), (result))
#define gckpti_run_copies                ((gckpti_handler)0)
#endif

/* ---- fetch/run.c ---- */
#ifndef GCKPT_NO_FETCH
/* Allocates the table of fetches and, if the backend has own memory, gckpt_fetch's host copies. */
GCKPTI_FN void gckpti_alloc_fetches(gckpt_exec *e, gckpti_bump *bump);

/* Returns 1 if a parameter's gradient is fetched, so that updates must store divided gradients. */
GCKPTI_FN int gckpti_has_gradient_fetch(const gckpt_plan *p);

/* Checks that gckpt_collect's arrays have space for `rows` rows, all that this rank's step has. */
GCKPTI_FN gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows);

/* After the body's last instruction, copies the micro-batch's rows to gckpt_collect's arrays. */
GCKPTI_FN void gckpti_collect_rows(gckpt_exec *e);

/* At the end of a step, adds up those fetched gradients for which the plan has no instruction. */
GCKPTI_FN void gckpti_sum_fetched_grads(gckpt_exec *e);
#else
static inline void gckpti_alloc_fetches(gckpt_exec *e, gckpti_bump *bump) { (void)e, (void)bump; }
static inline int gckpti_has_gradient_fetch(const gckpt_plan *p) { return (void)p, 0; }
#define gckpti_check_collected(e, rows) ((void)(rows), GCKPT_OK)
static inline void gckpti_collect_rows(gckpt_exec *e) { (void)e; }
static inline void gckpti_sum_fetched_grads(gckpt_exec *e) { (void)e; }
#endif

/* ---- cache/run.c ---- */
#ifndef GCKPT_NO_CACHES
/* Clears a new executor's caches, or checks and uses those of another one. */
GCKPTI_FN gckpt_result gckpti_bind_caches(gckpt_exec *e);

/* Checks that the caches have space for the positions that a forward of `rows` rows adds. */
GCKPTI_FN gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows);

/* Returns the positions in the caches before this call; 0 if there are no caches. */
static inline int64_t gckpti_position(const gckpt_exec *e)
{
    return e->caches.owner ? e->caches.owner->caches.position : 0;
}

/* Records up to which position calls wrote: beyond a cache's length, the oldest are overwritten. */
static inline void gckpti_mark_written(const gckpt_exec *e)
{
    const int64_t end = gckpti_position(e) + e->caches.new_positions;
    if (e->caches.owner->caches.max_written < end)
        e->caches.owner->caches.max_written = end;
}

/* Records a successful forward of `rows` rows. */
GCKPTI_FN void gckpti_add_positions(gckpt_exec *e, int64_t rows);
#else
static inline gckpt_result gckpti_bind_caches(gckpt_exec *e) { return (void)e, GCKPT_OK; }
#define gckpti_check_caches(...) GCKPT_OK
static inline int64_t gckpti_position(const gckpt_exec *e) { return (void)e, 0; }
static inline void gckpti_mark_written(const gckpt_exec *e) { (void)e; }
static inline void gckpti_add_positions(gckpt_exec *e, int64_t rows) { (void)e, (void)rows; }
#endif

/* ---- bf16/run.c ---- */
/* Returns the random stream that rounds a node's value (which 0) or the gradient that its backward
 * passes to input i (which 1 + i). Dropout uses the streams below 2^31. */
static inline uint32_t gckpti_rng_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

/* Converts n bf16 to floats at x or, for GCKPT_WIDEN_ADD, adds them to x. */
static inline void gckpti_widen(const gckpt_exec *e, const gckpt_call *c,
                                gckpt_conversion_kind kind, const uint16_t *from, float *x,
                                int64_t n)
{
    const gckpt_conversion widening = { kind, x, from, NULL, n, 0 };
    gckpti_backend(e)->convert(c, &widening);
}

/* Rounds n floats to bf16, written to `to` or, if that is NULL, as floats in place. */
static inline void gckpti_round_bf16(const gckpt_exec *e, const gckpt_call *c, uint32_t stream,
                                     float *x, uint16_t *to, int64_t n)
{
    const gckpt_conversion rounding = { to ? GCKPT_NARROW : GCKPT_ROUND, x, NULL, to, n, stream };
    gckpti_backend(e)->convert(c, &rounding);
}

#ifndef GCKPT_NO_BF16
/* Sets the operands of a call that the plan stores as bf16: as bf16, if the op's kernel takes them
 * so in this plan, else as an f32 copy in the arena. */
GCKPTI_FN void gckpti_mixed_operands(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, gckpt_call *c);

/* Places the bf16 copies of parameters in memory from `base` on. gckpti_bf16_copy_of returns the
 * copy of parameter i, or NULL. gckpti_mark_bf16_fresh records that this copy is up to date. */
GCKPTI_FN void gckpti_set_bf16_copies(gckpt_exec *e, unsigned char *base);
static inline uint16_t *gckpti_bf16_copy_of(const gckpt_exec *e, int i)
{
    return e->tables.bf16_copies ? e->tables.bf16_copies[i].values : NULL;
}
GCKPTI_FN void gckpti_mark_bf16_fresh(const gckpt_exec *e, int i);

/* Runs a kernel that takes floats on bf16 operands, strip by strip. */
GCKPTI_FN void gckpti_run_strips(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *call,
                                 gckpt_kernel kernel);
#else /* no bf16 */
#define gckpti_mixed_operands(...)  ((void)0)
#define gckpti_set_bf16_copies(...) ((void)0)
#define gckpti_bf16_copy_of(...)    NULL
#define gckpti_mark_bf16_fresh(...) ((void)0)
#define gckpti_run_strips(...)      ((void)0)
#endif

/* ---- tiles/run.c ---- */
#ifndef GCKPT_NO_TILES
/* Runs a fused group. */
GCKPTI_FN void gckpti_fused_forward(const gckpt_call *call);
static inline int gckpti_is_fused_op(const gckpt_op *op) { return op == &gckpti_op_fused; }
#else
#define gckpti_fused_forward   NULL
#define gckpti_is_fused_op(op) ((void)(op), 0)
#endif

/* ---- run/capture.c: micro-batches, or parts, that the backend captures and replays ---- */
#ifndef GCKPT_SMALL
GCKPTI_FN void gckpti_alloc_capture(gckpt_exec *e, gckpti_bump *bump);

/* Sets capture.supported. Must be called after the ops' kernels were chosen. */
GCKPTI_FN void gckpti_init_capture(gckpt_exec *e);

/* Makes the backend discard its captures of this executor. */
GCKPTI_FN void gckpti_discard_captures(const gckpt_exec *e);

/* If `whole` is 1, enables capture and replay for a run to the step's end; if 0, disables both. */
GCKPTI_FN void gckpti_enable_capture(gckpt_exec *e, int whole);

/* Returns 1 if a micro-batch, or a part of one, begins at step.pc and the backend replayed it: then
 * step.pc is after it. Returns 0 if the instruction must run; the backend may capture from there
 * on, unless a regulariser's gradient needs a count that is not known yet. */
GCKPTI_FN int gckpti_replay(gckpt_exec *e);

static inline int gckpti_is_capturing(const gckpt_exec *e) { return e->capture.active; }

/* Returns 1 if step.pc is the end of the part that is captured. */
GCKPTI_FN int gckpti_is_capture_end(const gckpt_exec *e);

/* Ends a capture, if one is active. If the backend could not capture, nothing was computed: moves
 * step.pc back to the capture's begin, and disables captures for good. */
GCKPTI_FN void gckpti_end_capture(gckpt_exec *e);
#else
static inline void gckpti_alloc_capture(gckpt_exec *e, gckpti_bump *bump) { (void)e, (void)bump; }
static inline void gckpti_init_capture(gckpt_exec *e) { (void)e; }
static inline void gckpti_discard_captures(const gckpt_exec *e) { (void)e; }
static inline void gckpti_enable_capture(gckpt_exec *e, int whole) { (void)e, (void)whole; }
static inline int gckpti_replay(gckpt_exec *e) { return (void)e, 0; }
static inline int gckpti_is_capturing(const gckpt_exec *e) { return (void)e, 0; }
static inline int gckpti_is_capture_end(const gckpt_exec *e) { return (void)e, 0; }
static inline void gckpti_end_capture(gckpt_exec *e) { (void)e; }
#endif

/* Returns 1 if x is neither a NaN nor an infinity. */
static inline int gckpti_is_finite(double x) { return x - x == 0; }

/* ---- tools/debug.c: no effect without a bit of desc.debug, except gckpti_check_recompute ---- */
#ifndef GCKPT_NO_DEBUG
/* RECOMPUTE: Allocates hashes of values. Checks that an instruction computed, or a reload loaded,
 * the same value as before. */
GCKPTI_FN void gckpti_alloc_hashes(gckpt_exec *e, gckpti_bump *bump);
GCKPTI_FN gckpt_result gckpti_check_recompute(gckpt_exec *e, const gckpti_ins *ins,
                                              const gckpt_call *c, const uint16_t *narrow);

/* RECOMPUTE: Checks that a RELOAD loaded the value that was offloaded. */
GCKPTI_FN gckpt_result gckpti_check_reload(gckpt_exec *e, const gckpti_ins *ins);

/* POISON: Overwrites the buffers that end with instruction step.pc. */
GCKPTI_FN void gckpti_poison_dead(gckpt_exec *e);

/* MEASURE, POISON: Overwrites the arena before a step; measures the bytes that the step wrote. */
GCKPTI_FN void gckpti_measure_start(gckpt_exec *e);
GCKPTI_FN void gckpti_measure_end(gckpt_exec *e);

/* FINITE: Returns the kinds (NaN, infinity) that an instruction will read. The functions after it
 * report an error: _check_finite if the instruction made a new kind; _update for a gradient or, if
 * `done`, for the new values and state; _params and _feeds at the beginning of a step. */
GCKPTI_FN unsigned gckpti_nonfinite_kinds(const gckpt_exec *e, const gckpti_ins *ins);
GCKPTI_FN gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read);
GCKPTI_FN gckpt_result gckpti_check_finite_update(gckpt_exec *e, const gckpti_ins *ins,
                                                  const gckpt_update_pass *pass, int done);
GCKPTI_FN gckpt_result gckpti_check_finite_params(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_finite_feeds(gckpt_exec *e, int64_t rows);
#else
static inline void gckpti_alloc_hashes(gckpt_exec *e, gckpti_bump *bump) { (void)e, (void)bump; }
#define gckpti_check_recompute(...)       GCKPT_OK
static inline void gckpti_poison_dead(gckpt_exec *e) { (void)e; }
static inline void gckpti_measure_start(gckpt_exec *e) { (void)e; }
static inline void gckpti_measure_end(gckpt_exec *e) { (void)e; }
#define gckpti_nonfinite_kinds(...)       0u
#define gckpti_check_finite(e, ins, read) ((void)(read), (gckpt_result)GCKPT_OK)
#define gckpti_check_finite_update(e, ins, pass, done) ((void)(done), GCKPT_OK)
#define gckpti_check_reload(...)          GCKPT_OK
static inline gckpt_result gckpti_check_finite_params(gckpt_exec *e) { return (void)e, GCKPT_OK; }
#define gckpti_check_finite_feeds(...)    GCKPT_OK
#endif

/* ---- quant/run.c ---- */
#ifndef GCKPT_NO_QUANT
GCKPTI_FN void gckpti_run_dequantise(const gckpt_exec *e, const gckpti_param *q,
                                     const float *values, float *to, gckpt_call *c);
GCKPTI_FN void gckpti_set_quant_operand(const gckpt_exec *e, const gckpti_plan_node *node, int kind,
                                        gckpt_call *c, gckpt_dequantisation *quant);
#else
#define gckpti_run_dequantise(e, q, values, to, c)        ((void)(c))
#define gckpti_set_quant_operand(e, node, kind, c, quant) ((void)(quant))
#endif

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for separately compiled files, as in the tests. In gradckpt.h functions are defined
 * before they are used. The comments are at the definitions. */

#ifndef GCKPT_NO_RANKS
/* dist/exchange.c */
GCKPTI_FN void gckpti_abort_comm(gckpti_comm *comm);
GCKPTI_FN void gckpti_exchange(gckpti_comm *comm, int peer, const void *send, size_t send_bytes,
                               void *receive, size_t recv_bytes);
GCKPTI_FN int gckpti_wait_exchange(gckpti_comm *comm);
GCKPTI_FN void gckpti_merge_all(gckpti_comm *comm, void *mine, size_t bytes, gckpti_merge_fn merge);
GCKPTI_FN void gckpti_wait_pending(gckpt_exec *e, int max_pending);
GCKPTI_FN void gckpti_poll_in_kernel(void *group_context);
GCKPTI_FN void gckpti_start_collective(gckpt_exec *e, const gckpti_pending *pending);

/* dist/group.c */
GCKPTI_FN size_t gckpti_comm_buffer_bytes(const gckpt_exec *e);
#endif

/* run/call.c */
GCKPTI_FN void *gckpti_arena_ptr(const gckpt_exec *e, size_t offset);
GCKPTI_FN uint16_t *gckpti_arena_bf16(const gckpt_exec *e, size_t offset);
GCKPTI_FN gckpt_shape gckpti_node_shape(const gckpt_exec *e, const gckpti_plan_node *node,
                                        int64_t rows);
GCKPTI_FN void gckpti_init_opless_call(const gckpt_exec *e, gckpt_call *c);
GCKPTI_FN void gckpti_set_op_call(const gckpt_exec *e, const gckpti_plan_node *node, int id,
                                  int64_t rows, gckpt_call *c);
GCKPTI_FN void gckpti_init_op_call(const gckpt_exec *e, const gckpti_plan_node *node, int id,
                                   int64_t rows, gckpt_call *c);

/* run/backend.c */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e);
GCKPTI_FN gckpti_exec_node gckpti_op_kernels(const gckpt_exec *e, const gckpti_plan_node *node);

/* run/memory.c */
GCKPTI_FN size_t gckpti_row_bytes(const gckpt_plan *p, const gckpti_plan_node *q);
GCKPTI_FN const char *gckpti_memory_hint(const gckpt_exec *e);
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes);
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e);

/* run/layout.c */
GCKPTI_FN gckpt_result gckpti_alloc_exec(gckpt_exec *e);

/* run/host.c */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call);

/* run/feeds.c */
GCKPTI_FN gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                         int64_t rows);
GCKPTI_FN void gckpti_copy_feeds(gckpt_exec *e, int64_t rows);
GCKPTI_FN const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_plan_node *q);

/* run/losses.c */
GCKPTI_FN int gckpti_term_of(const gckpt_plan *p, int id);
GCKPTI_FN gckpti_loss_total *gckpti_running_loss(const gckpt_exec *e, int term);
GCKPTI_FN float gckpti_loss_scale(gckpt_exec *e, int term);
GCKPTI_FN void gckpti_expect_counts(gckpt_exec *e, int64_t rows);
GCKPTI_FN void gckpti_init_counts(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_same_counts(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_counts(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_finalize_counts(gckpt_exec *e);

/* run/update.c */
GCKPTI_FN gckpt_result gckpti_finish_gradients(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_run_checked_update(gckpt_exec *e, const gckpti_ins *ins,
                                                 gckpt_call *c);
GCKPTI_FN const gckpti_plan_param *gckpti_count_step(gckpt_exec *e);

/* run/instructions.c */
GCKPTI_FN gckpt_result gckpti_run_instruction(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);

/* run/step.c */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows);
GCKPTI_FN gckpt_result gckpti_add_rows(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                       int64_t rows);
GCKPTI_FN gckpt_result gckpti_run_step(gckpt_exec *e, int64_t instructions, gckpt_report *report);
#endif
