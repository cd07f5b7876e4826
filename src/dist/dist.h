#pragma once
#include "base/base.h"
#include "store/store.h"
#include "plan/plan.h"

#ifndef GCKPT_NO_RANKS
/* =================================================================================================
 * >>dist: several processes, virtual ranks, shards
 *
 * The process group (e->group; NULL if there is one rank with one virtual rank). Each rank runs
 * its virtual ranks one after the other, all ranks in lockstep; here 2 ranks with 2 each:
 *   rank 0:  B | m m r | m m R | B updates B      m: micro-batch, p: padding (one without rows)
 *   rank 1:  B | m p r | m m R | B updates B      r, R: REDUCE. r adds a virtual rank's sum to the
 *                                                 rank's; R starts the sum over ranks. B: barrier
 * 1. All ranks start the same collectives in the same order, that of the instructions. A rank
 *    without rows, or one that failed, takes part in them but computes nothing: it skips all
 *    instructions except REDUCEs and those of parameters (gckpti_sync_then_skips).
 * 2. A failure on one rank is stored (gckpti_defer_error). The next status barrier (gckpti_agree)
 *    ends the step on all ranks with the error of the lowest rank that failed.
 * 3. Collectives run one after the other, in the order of their start. Each is complete before an
 *    instruction that needs it (gckpti_needs); all are complete at a barrier.
 * 4. A failed exchange aborts the communication for good: every later call returns GCKPT_E_PEER.
 * The functions of group.c and micro_batches.c also work without a group: callers need no check.
 * ============================================================================================== */

/* Calls that all ranks make together. */
typedef enum {
    GCKPTI_CALL_NONE,
    GCKPTI_CALL_STEP,
    GCKPTI_CALL_GATHER,
    GCKPTI_CALL_SAVE
} gckpti_group_call;

enum { GCKPTI_MUST_MATCH = 7 };

/* The failure of the lowest rank that failed or, without one, numbers that ranks must agree on:
 * the call, rows, step, seed, hashes of exchanges, of hyper, of replicas. */
typedef struct {
    int32_t result, rank; /* that failed; else the lowest merged; -1 if numbers differ */
    uint64_t must_match[GCKPTI_MUST_MATCH];
    char text[GCKPTI_TEXT_BYTES];
} gckpti_status;

typedef enum {
    GCKPTI_REDUCE_SCATTER, /* a sum of which each rank gets its shard */
    GCKPTI_ALL_REDUCE,
    GCKPTI_ALL_GATHER /* every rank gets the shards of all ranks */
} gckpti_collective;

/* A collective that a REDUCE or a gather started: it waits, or is in progress (pending[0]). */
enum { GCKPTI_MAX_PENDING = 8 };
typedef struct {
    gckpti_collective kind; /* an ALL_REDUCE becomes an ALL_GATHER when its shards are summed */
    size_t offset;          /* of gathered values in the arena, or GCKPTI_NO_OFFSET */
    float *x, *workspace;   /* n floats; of a sum: received floats, which are added to x */
    float *shard;           /* where to copy this rank's shard of the sum; NULL means nowhere */
    int64_t n;
    int bit; /* 1, 2, 4, ..: the level, where ranks exchange whose numbers differ in it; else 0 */
    int64_t first, count; /* this rank's floats in x after a level of a sum (gather: before) */
} gckpti_pending;

/* Communication of this rank with the others, and progress of a step of several virtual ranks or
 * ranks. All ranks begin their next virtual rank at the same time; the one with most rows decides
 * how many lockstep micro-batches it takes (>= 1). */
typedef struct gckpti_process_group {
    const gckpt_transport *transport; /* NULL means there is one rank */
    const gckpt_backend *backend;     /* the floats are in its memory */
    int rank, ranks;
    int busy;         /* nonzero while an exchange is in progress */
    int peer;         /* the other rank of the last exchange; -1 means any rank */
    int aborted;      /* an exchange failed, so no other is started */
    int uses_queue;   /* exchanges of floats are enqueued in a queue of the backend */
    int in_flight;    /* exchanges were enqueued since the host last waited for them */
    int waiting;      /* the host waits for enqueued exchanges now */
    void *queue;      /* that queue while gckpti_start_collective fills it, else NULL */
    size_t copied_in; /* bytes copied to the backend since the host last waited */
    unsigned char *send_buf, *recv_buf; /* host memory */
    size_t buffer_bytes;                /* of each of the two */
    void *copy_to; /* where in backend memory recv_buf is copied after the exchange, or NULL */
    size_t recv_bytes;
    uint64_t bytes_sent;
    int pending_count; /* entries of `pending`, oldest first; pending[0] is in progress */
    gckpti_pending pending[GCKPTI_MAX_PENDING];
    gckpti_status status; /* for the next status barrier */
    int call_ended;       /* a status barrier ended the call with an error */
    int first_vrank;      /* the first virtual rank of this rank */
    int vrank;            /* current virtual rank, counted from 0 on each rank */
    int64_t vrank_end;    /* end of its rows */
    int micro_left;       /* its lockstep micro-batches that are not done; 0 before it begins */
    int squares_summed;   /* update.squares are summed over ranks */
    int losses_summed;    /* losses are summed over virtual ranks and ranks */
    int replicas_checked; /* hashes of values that are not sharded were compared */
    struct gckpti_loss_total *totals;       /* host copy of the totals of all virtual ranks */
    struct gckpti_loss_total *totals_begin; /* e->losses.totals of the first virtual rank */
} gckpti_process_group;

/* The row of GCKPTI_EXEC_STRUCTS (run/run.h). */
#define GCKPTI_DIST_STRUCTS(X, p) X((p)->virtual_ranks > 1, gckpti_process_group)

/* Returns the process group of an executor, or NULL. */
#define gckpti_group_of(e) ((e)->group)

/* Returns the end of the rows that the current micro-batch may have. */
#define gckpti_rows_end(e) ((e)->group ? (e)->group->vrank_end : (e)->step.row_end)

/* Returns how many of a step's rows this rank runs; step.first_row is the first one. */
#define gckpti_own_rows(e, rows)                                                                   \
    gckpt_plan_rank_rows((e)->plan, rows, (e)->store->rank, &(e)->step.first_row)

/* Returns 1, with an error, if a step of several ranks is in progress: the caller must end it
 * first. A step of one rank can be abandoned at any time. */
GCKPTI_FN int gckpti_is_under_way(gckpt_exec *e);

/* Waits for enqueued collectives, or aborts after the transport's timeout. Must be called before
 * the host waits for the backend or copies copied_in bytes to it (which may wait). */
GCKPTI_FN void gckpti_wait_in_flight(const gckpt_exec *e, size_t copied_in);

/* Returns the number of micro-batches of the last `rows` rows of this rank, up to step.row_end. The
 * last one of each virtual rank may have fewer rows than the others. */
GCKPTI_FN int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows);

/* Runs the status barrier that begins a call. `call` and `number` must be equal on all ranks. */
GCKPTI_FN gckpt_result gckpti_agree_on_call(gckpt_exec *e, gckpti_group_call call, int64_t number,
                                            gckpt_result result);

/* Handles a result between two barriers. Stores a local failure for the next barrier and returns
 * OK: the step goes on. If an exchange failed, sets e idle and returns GCKPT_E_PEER, whatever
 * `result` is. With one rank, or if no barrier follows, returns `result`. */
GCKPTI_FN gckpt_result gckpti_defer_error(gckpt_exec *e, gckpt_result result);

/* Returns *n floats from element `at` of a parameter's values or state. Unless e is NULL, all
 * ranks call it, and the rank that has the floats sends them to all; NULL then is an error of e. If
 * e is NULL, refuses a sharded array; NULL then is an error of s. */
GCKPTI_FN const float *gckpti_gather_chunk(gckpt_exec *e, gckpt_store *s, const gckpti_param *q,
                                           int slot, int64_t at, float scratch[GCKPTI_CHUNK],
                                           int64_t *n);

/* Runs a status barrier of a save, unless e is NULL. */
GCKPTI_FN gckpt_result gckpti_agree_on_save(gckpt_exec *e, gckpt_result result);

/* Merges the bytes of another rank into `mine`. */
typedef void (*gckpti_merge_fn)(void *mine, const void *received, size_t bytes);
#else /* one rank with one virtual rank */
#define GCKPTI_DIST_STRUCTS(X, p)
#define gckpti_group_of(e)                    ((void)(e), 0)
#define gckpti_rows_end(e)                    ((e)->step.row_end)
#define gckpti_count_micro_batches(e, n)      (((n) + (e)->plan->rows - 1) / (e)->plan->rows)
#define gckpti_is_under_way(e)                0
#define gckpti_own_rows(e, rows)              ((e)->step.first_row = 0, (rows))
#define gckpti_agree_on_step(e, rows, result) (result)
#define gckpti_agree(e, result)               (result)
#define gckpti_defer_error(e, result)         (result)
#define gckpti_prepare_micro_batch            gckpti_feed_rows
#define gckpti_end_micro_batch                gckpti_next_rows
#define gckpti_sum_losses(e)                  GCKPT_OK
#define gckpti_run_reduce                     ((gckpti_handler)0)
#define gckpti_sum_squares(e)                 ((void)0)
#define gckpti_run_gather(...)                0
#define gckpti_gather_updated(...)            ((void)0)
#define gckpti_restrict_pass(...)             ((void)0)
#define gckpti_wait_in_flight(e, copied_in)   ((void)(e), (void)(copied_in))
#define gckpti_agree_on_save(e, result)       (result)
#define gckpti_gather_chunk(e, ...)           gckpti_floats_at(__VA_ARGS__)
#endif
