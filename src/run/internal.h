#pragma once
#include "run/run.h"

/* What the files of run share; no other folder uses it. What stands in the place of a part that is
 * left out does nothing, finds nothing, and hands on the result it is given; it is a macro where a
 * function would take more than a line. */

/* ---- run/memory.c ---- */
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

/* Memory that is cut into pieces; base NULL: they are only counted. */
typedef struct {
    unsigned char *base;
    size_t used;
} gckpti_bump;

/* The next n * size bytes of a block, aligned; more than PTRDIFF_MAX / 2 becomes that. NULL: only
 * counted. */
GCKPTI_FN void *gckpti_bump_alloc(gckpti_bump *bump, size_t n, size_t size);

/* ---- run/open.c ---- */
/* The plan's parameter i: is it as it was when the plan was made? begun: a step begins, else the
 * executor is being made, and the error is its store's. */
GCKPTI_FN gckpt_result gckpti_check_plan_param(gckpt_exec *e, int i, const gckpti_param *q,
                                               int in_step);

/* Brings a parameter's newest values and state to where this executor has them. */
GCKPTI_FN gckpt_result gckpti_sync_param(gckpt_exec *e, gckpti_param *q, int in_step);

/* Whether gckpt_forward checks that values are not initial ones (desc.allow_initial). */
enum { GCKPTI_CHECKS_INITIAL = GCKPTI_TEXT_BYTES > 1 };

/* ---- run/update.c, run/advance.c, run/step.c: defined further down than they are used ---- */
/* At the end of a micro-batch, of one leaf and one rank: to the next one, or behind the last. MORE:
 * the rows at hand are done, others may come. */
GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e);

/* Looped plans: the accumulators of parameters' gradients (and those of functions of parameters)
 * that instructions before `end` add to, with their low parts, start at +0. */
GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end);

#ifndef GCKPT_NO_TRAINING
/* A pass that takes a gradient from sums to what an update needs, with its square sums. */
GCKPTI_FN void gckpti_init_pass(const gckpt_exec *e, const gckpti_ins *ins,
                                gckpt_update_pass *pass);
#else /* plans of inference come to none of this */
#define gckpti_init_pass(e, ins, pass)  memset(pass, 0, sizeof *(pass))
#define gckpti_run_checked_update(...)  GCKPT_OK
#define gckpti_count_step(...)          ((const gckpti_plan_param *)0)
#endif

/* ---- run/exchange.c, run/group.c, run/micro_batches.c ---- */
#ifndef GCKPT_NO_RANKS
/* Leaves and ranks there are, and what a step has of them: NULL: one leaf and one rank. */
static inline int gckpti_has_group(const gckpt_plan *p)
{
    return p->virtual_ranks > 1 || p->ranks > 1;
}
static inline gckpti_process_group *gckpti_group_of(const gckpt_exec *e) { return e->group; }

/* Leaves whose sums are made here: this rank's, or all where every rank runs all rows. */
static inline int gckpti_local_vranks(const gckpt_plan *p)
{
    return p->virtual_ranks < p->ranks ? p->virtual_ranks : p->virtual_ranks / p->ranks;
}

/* Ranks have leaves of their own: else each runs all rows, as generating does. */
static inline int gckpti_is_data_parallel(const gckpt_plan *p)
{
    return p->ranks > 1 && p->virtual_ranks >= p->ranks;
}

/* All of these but `tables` and `bind` find the executor complete, and the last three a parameter's
 * pass or values. Whether a step goes on all ranks decide together (see run.h): whatever could end
 * it on this one goes through gckpti_defer_error, or gckpti_agree. An error's text is in the executor or,
 * while that is being made, in its store.
 *
 * An executor is made: carves e->crew and its tables. */
GCKPTI_FN void gckpti_alloc_group(gckpt_exec *e, gckpti_bump *bump);

/* Its parameters are found: joins the others by desc.ranks, or says what that lacks. */
GCKPTI_FN gckpt_result gckpti_bind_group(gckpt_exec *e);

/* It is freed, in a step perhaps: lets the others go on. */
GCKPTI_FN void gckpti_abort_step(gckpt_exec *e);

/* Before the first instruction: all meet, with what it has come to here; rows, step, seed, plan and
 * hyper must be alike. Then what losses will count is that of all ranks; of a stream, where `rows`
 * is 0, only when gckpti_end_stream was called. */
GCKPTI_FN gckpt_result gckpti_agree_on_step(gckpt_exec *e, int64_t rows, gckpt_result result);

/* What a result comes to between meetings. OK: the step goes on; a failure of this rank's own is
 * kept for the meeting. GCKPT_E_PEER, and e is idle: an exchange failed (called with OK, it asks
 * for that). Where there is one rank, or no meeting to come, the result itself. */
GCKPTI_FN gckpt_result gckpti_defer_error(gckpt_exec *e, gckpt_result result);

/* The failure that this rank keeps for the meeting; OK: there is none. */
GCKPTI_FN gckpt_result gckpti_local_failure(gckpt_exec *e);

/* All ranks meet: OK if all come with it. Else the step is over on each of them, e is idle, and all
 * return the failure of the lowest rank that has one. The rest as of gckpti_defer_error. */
GCKPTI_FN gckpt_result gckpti_agree(gckpt_exec *e, gckpt_result result);

/* Readies the next round (step.pc, feeds): when a step has begun, and when rows were added to a
 * stream. 0: there is none, or not yet. next_round and end_stream do it themselves. */
GCKPTI_FN int gckpti_set_micro_batch(gckpt_exec *e);

/* At the end of a round, step.pc at the epilogue: readies the next one; behind the last, sums
 * losses over leaves and ranks and meets. MORE: a stream has no more rows yet. */
GCKPTI_FN gckpt_result gckpti_next_micro_batch(gckpt_exec *e);

/* run/feeds.c: all losses have promised what they count, and lie where the host does not see. */
GCKPTI_FN int gckpti_has_known_counts(const gckpt_exec *e);

/* Sums of losses, over leaves and ranks, once a step: behind the last round or, where nobody needs
 * them before, at the step's end; the backend is waited for. Meets. */
GCKPTI_FN gckpt_result gckpti_sum_losses(gckpt_exec *e);

/* gckpt_step_end: meets, counts the rows that came in on all ranks, readies the last round. */
GCKPTI_FN gckpt_result gckpti_end_stream(gckpt_exec *e);

/* Before each instruction, and again when the user's callback was asked, which may have failed this
 * rank: 1: it is not to be run here. Lets what is under way go on, and waits for what is due. */
GCKPTI_FN int gckpti_skips(gckpt_exec *e, const gckpti_ins *ins);

/* Where the part of a round that begins at step.pc and needs nobody but the backend ends: where an
 * exchange begins or is due; and a number that tells it apart. step.pc: there is none. */
GCKPTI_FN int gckpti_capture_part_end(gckpt_exec *e, int64_t *part);

/* Runs a REDUCE; a sum over ranks goes on while what comes next is run. So does a gather. Ranks
 * exchange in one order, that of the instructions which began it: what begins while something is
 * under way follows when that is over, and whatever ranks exchange at once waits for all of it. */
GCKPTI_FN void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins);

/* Before the norm is taken: update.squares become those of all ranks; once a step. */
GCKPTI_FN void gckpti_sum_squares(gckpt_exec *e);

/* A parameter is staged: begins to bring the shares of all ranks to `to`. 0: it is not cut, nothing
 * was done. */
GCKPTI_FN int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *shard,
                                float *to);

/* Narrows a pass over a parameter to what this rank updates. */
GCKPTI_FN void gckpti_shard_pass(const gckpt_exec *e, const gckpti_ins *ins,
                                 gckpt_update_pass *pass);

/* A parameter was updated: where each rank has all its values, begins to bring them together. */
GCKPTI_FN void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q);
#else /* one leaf and one rank */
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
static inline int gckpti_set_micro_batch(gckpt_exec *e) { return gckpti_feed_rows(e), 1; }
static inline gckpt_result gckpti_next_micro_batch(gckpt_exec *e) { return gckpti_next_rows(e); }
static inline gckpt_result gckpti_sum_losses(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline gckpt_result gckpti_end_stream(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline int gckpti_skips(gckpt_exec *e, const gckpti_ins *i) { return (void)e, (void)i, 0; }
#define gckpti_capture_part_end(e, part)      0
static inline void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *i) { (void)e, (void)i; }
static inline void gckpti_sum_squares(gckpt_exec *e) { (void)e; }
#define gckpti_run_gather(...)             0
#define gckpti_shard_pass(...)                ((void)0)
static inline void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q) { (void)e, (void)q; }
#endif

/* ---- run/fetches.c ---- */
#ifndef GCKPT_NO_FETCH
/* Carves the table of picks, and beside memory of a backend's own what gckpt_fetch returns. */
GCKPTI_FN void gckpti_alloc_fetches(gckpt_exec *e, gckpti_bump *bump);

/* Whether updates must leave divided gradients where they are, since one of them is picked. */
GCKPTI_FN int gckpti_has_gradient_fetch(const gckpt_plan *p);

/* Before rows are fed, and by gckpt_collect: has what is collected room for so many, those of this
 * rank in the step up to then? Changes nothing. */
GCKPTI_FN gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows);

/* Behind the body's last instruction, step.row at the micro-batch: copies these, else nothing. */
GCKPTI_FN void gckpti_collect_rows(gckpt_exec *e);

/* At the end of a step: adds up gradients that no instruction does. */
GCKPTI_FN void gckpti_sum_fetched_grads(gckpt_exec *e);
#else
static inline void gckpti_alloc_fetches(gckpt_exec *e, gckpti_bump *bump) { (void)e, (void)bump; }
static inline int gckpti_has_gradient_fetch(const gckpt_plan *p) { return (void)p, 0; }
#define gckpti_check_collected(e, rows) ((void)(rows), GCKPT_OK)
static inline void gckpti_collect_rows(gckpt_exec *e) { (void)e; }
static inline void gckpti_sum_fetched_grads(gckpt_exec *e) { (void)e; }
#endif

/* ---- run/caches.c ---- */
#ifndef GCKPT_NO_CACHES
/* An executor is made and has its memory: clears the caches, or finds another's. */
GCKPTI_FN gckpt_result gckpti_bind_caches(gckpt_exec *e);

/* Before a forward takes its feeds: is there room for what it adds? Changes nothing. */
GCKPTI_FN gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows);

/* Positions that the caches hold before this call; 0 where there are none yet. */
static inline int64_t gckpti_position(const gckpt_exec *e)
{
    return e->caches.owner ? e->caches.owner->caches.position : 0;
}

/* Nothing refuses a forward any more: what it adds is written over what windows let go. */
static inline void gckpti_mark_written(const gckpt_exec *e)
{
    const int64_t end = gckpti_position(e) + e->caches.new_positions;
    if (e->caches.owner->caches.max_written < end)
        e->caches.owner->caches.max_written = end;
}

/* A forward of so many rows has succeeded. */
GCKPTI_FN void gckpti_add_positions(gckpt_exec *e, int64_t rows);
#else
static inline gckpt_result gckpti_bind_caches(gckpt_exec *e) { return (void)e, GCKPT_OK; }
#define gckpti_check_caches(...) GCKPT_OK
static inline int64_t gckpti_position(const gckpt_exec *e) { return (void)e, 0; }
static inline void gckpti_mark_written(const gckpt_exec *e) { (void)e; }
static inline void gckpti_add_positions(gckpt_exec *e, int64_t rows) { (void)e, (void)rows; }
#endif

/* ---- run/mixed.c ---- */
/* The value of an op is stream 0, what its backward sends to input i is 1 + i; dropout has the
 * streams below 2^31. */
static inline uint32_t gckpti_rng_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

/* n floats at x become what bf16 at `from` are, or (GCKPT_WIDEN_ADD) that is added to them. */
static inline void gckpti_widen(const gckpt_exec *e, const gckpt_call *c,
                                gckpt_conversion_kind kind, const uint16_t *from, float *x,
                                int64_t n)
{
    const gckpt_conversion widening = { kind, x, from, NULL, n, 0 };
    gckpti_backend(e)->convert(c, &widening);
}

/* Rounds n floats to bf16, at `to`, or, if that is NULL, in place. */
static inline void gckpti_round_bf16(const gckpt_exec *e, const gckpt_call *c, uint32_t stream,
                                     float *x, uint16_t *to, int64_t n)
{
    const gckpt_conversion rounding = { to ? GCKPT_NARROW : GCKPT_ROUND, x, NULL, to, n, stream };
    gckpti_backend(e)->convert(c, &rounding);
}

#ifndef GCKPT_NO_BF16
/* Of a call as one of an f32 plan is: what is bf16 as the plan has it for the kernel, as bf16 or as
 * floats in a copy. */
GCKPTI_FN void gckpti_mixed_operands(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, gckpt_call *c);

/* Copies of parameters (the plan's bf16_weights) lie from here on. That of parameter i, which is
 * written where it is updated; NULL: it has none. It is as new as the parameter. */
GCKPTI_FN void gckpti_set_bf16_copies(gckpt_exec *e, unsigned char *base);
static inline uint16_t *gckpti_bf16_copy_of(const gckpt_exec *e, int i)
{
    return e->tables.bf16_copies ? e->tables.bf16_copies[i].values : NULL;
}
GCKPTI_FN void gckpti_mark_bf16_fresh(const gckpt_exec *e, int i);

/* Runs a kernel that takes floats on operands that are bf16, portion by portion. */
GCKPTI_FN void gckpti_run_strips(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *call,
                                 gckpt_kernel kernel);
#else /* nothing is bf16, nor rounded */
#define gckpti_mixed_operands(...) ((void)0)
#define gckpti_set_bf16_copies(...) ((void)0)
#define gckpti_bf16_copy_of(...)    NULL
#define gckpti_mark_bf16_fresh(...) ((void)0)
#define gckpti_run_strips(...)      ((void)0)
#endif

/* ---- run/capture.c: micro-batches, or parts of them, that the backend repeats ---- */
#ifndef GCKPT_SMALL
GCKPTI_FN void gckpti_alloc_capture(gckpt_exec *e, gckpti_bump *bump);

/* When all is bound: whether it may be asked to. */
GCKPTI_FN void gckpti_init_capture(gckpt_exec *e);

/* What it recorded holds no longer. */
GCKPTI_FN void gckpti_discard_captures(const gckpt_exec *e);

/* A run begins, to the step's end (whole) or a piece of it, in which nothing is asked. */
GCKPTI_FN void gckpti_enable_capture(gckpt_exec *e, int whole);

/* Before an instruction: 1: a micro-batch or a part begins here, and the backend has done all of
 * it, as it recorded it; step.pc is behind it. 0: the instruction is to be run, and what begins
 * with it recorded, unless a regulariser's gradient waits for a count: then it is not asked. */
GCKPTI_FN int gckpti_replay(gckpt_exec *e);

GCKPTI_FN int gckpti_is_capturing(const gckpt_exec *e);

/* step.pc is behind what is recorded. */
GCKPTI_FN int gckpti_is_capture_end(const gckpt_exec *e);

/* The end of what is recorded, if anything is. If the backend could not, nothing was done yet: it
 * is run after all (step.pc), and the backend is asked no more. */
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

/* No NaN, no infinity. */
static inline int gckpti_is_finite(double x) { return x - x == 0; }

/* ---- run/debug.c: all but gckpti_check_recompute do nothing unless their bit of desc.debug is set ---- */
#ifndef GCKPT_NO_DEBUG
/* RECOMPUTE: carves hashes of values; what an instruction has made, or a reload brought, must be
 * what it was. */
GCKPTI_FN void gckpti_alloc_hashes(gckpt_exec *e, gckpti_bump *bump);
GCKPTI_FN gckpt_result gckpti_check_recompute(gckpt_exec *e, const gckpti_ins *ins,
                                              const gckpt_call *c, const uint16_t *narrow);

/* PAINT: what died with instruction step.pc. */
GCKPTI_FN void gckpti_poison_dead(gckpt_exec *e);

/* MEASURE, PAINT: before a step; after it. */
GCKPTI_FN void gckpti_measure_start(gckpt_exec *e);
GCKPTI_FN void gckpti_measure_end(gckpt_exec *e);

/* FINITE: what kinds an instruction is about to read; what it wrote, when it had read these; a
 * parameter's gradient before its update, and what that made of it; the parameters and constants
 * that a step begins with; what is fed. */
GCKPTI_FN unsigned gckpti_nonfinite_kinds(const gckpt_exec *e, const gckpti_ins *ins);
GCKPTI_FN gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read);
GCKPTI_FN gckpt_result gckpti_check_finite_update(gckpt_exec *e, const gckpti_ins *ins, int done);
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
#define gckpti_check_finite_update(...)   GCKPT_OK
static inline gckpt_result gckpti_check_finite_params(gckpt_exec *e) { return (void)e, GCKPT_OK; }
#define gckpti_check_finite_feeds(...)    GCKPT_OK
#endif

/* ---- run/quant.c ---- */
#ifndef GCKPT_NO_QUANT
GCKPTI_FN void gckpti_run_dequantise(const gckpt_exec *e, const gckpti_param *q,
                                     const float *values, float *to, gckpt_call *c);
GCKPTI_FN void gckpti_set_quant_operand(const gckpt_exec *e, const gckpti_plan_node *node, int kind,
                                        gckpt_call *c, gckpt_dequantisation *quant);
#else
#define gckpti_run_dequantise(e, q, here, to, c)          ((void)(c))
#define gckpti_set_quant_operand(e, node, kind, c, quant) ((void)(quant))
#endif

#ifdef GCKPTI_SEPARATE_TU
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

#ifndef GCKPT_NO_RANKS
/* run/exchange.c */
GCKPTI_FN void gckpti_abort_comm(gckpti_comm *comm);
GCKPTI_FN void gckpti_exchange(gckpti_comm *comm, int peer, const void *send, size_t send_bytes,
                               void *receive, size_t recv_bytes);
GCKPTI_FN int gckpti_wait_exchange(gckpti_comm *comm);
GCKPTI_FN void gckpti_merge_all(gckpti_comm *comm, void *mine, size_t bytes, gckpti_merge_fn merge);
GCKPTI_FN void gckpti_wait_pending(gckpt_exec *e, int max_pending);
GCKPTI_FN void gckpti_poll_in_kernel(void *group_context);
GCKPTI_FN void gckpti_start_collective(gckpt_exec *e, const gckpti_pending *pending);

/* run/group.c */
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
GCKPTI_FN gckpt_result gckpti_alloc_exec(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e);

/* run/host.c */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call);
GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result);
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins);

/* run/feeds.c */
GCKPTI_FN gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                         int64_t rows);
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
GCKPTI_FN gckpt_result gckpti_run_checked_update(gckpt_exec *e, const gckpti_ins *ins);
GCKPTI_FN const gckpti_plan_param *gckpti_count_step(gckpt_exec *e);

/* run/step.c */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows);
GCKPTI_FN gckpt_result gckpti_add_rows(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                       int64_t rows);
GCKPTI_FN gckpt_result gckpti_run_step(gckpt_exec *e, int64_t instructions, gckpt_report *report);
#endif
