#pragma once
#include "base/base.h"
#include "store/store.h"
#include "cpu/cpu.h"
#include "plan/plan.h"

GCKPTI_COLD_END /* begun by planner */

/* =================================================================================================
 * >>run: the executor: runs a plan over one arena; steps, streams
 *
 * The executor interprets a plan. For each instruction it fills a gckpt_call with the addresses of
 * the operands (in the arena, or where parameters, inputs and constants are) and passes it to the
 * kernel that the backend has for the op. From gckpt_step to a kernel and an update:
 *   gckpt_step          (train) gckpti_prepare_step (step) checks the request against the plan;
 *                       gckpti_take_feeds (feeds) checks the rows and predicts the losses' counts.
 *   gckpti_run          (advance) starts a team of threads and calls gckpti_advance to the end.
 *                       At the epilogue it jumps back to the body while there are rows.
 *   gckpti_handlers     (instructions) by kind: the function that runs an instruction
 *   gckpti_run_forward  (instructions), _backward: `call` sets shapes and addresses, bf16/run makes
 *                       f32 copies of bf16 operands. The op's kernel runs, in strips if the plan
 *                       says so, or on host copies if the backend has no kernel for it (host).
 *   gckpti_run_copies   (offload/copies) OFFLOAD, RELOAD; gckpti_run_reduce (dist/micro_batches).
 *   gckpti_run_update   (update) a pass over a parameter. Before the first one the losses' counts
 *                       are final; a step that clips finishes all gradients first.
 *   gckpti_finish_step  (step) waits for the backend, reads the losses, takes the norm, reports.
 * Read train, step and advance first. Only calls of the backend (gckpti_backend) read or write the
 * arena and the backend's copies of parameters, feeds and loss sums: the host may have no access.
 *
 * The process group (e->group; NULL if there is one rank with one virtual rank). Each rank runs
 * its virtual ranks one after the other, all ranks in lockstep; here 2 ranks with 2 each:
 *   rank 0:  B | m m r | m m R | B updates B      m: micro-batch, p: padding (one without rows)
 *   rank 1:  B | m p r | m m R | B updates B      r, R: REDUCE. r adds a virtual rank's sum to the
 *                                                 rank's; R starts the sum over ranks. B: barrier
 * 1. All ranks start the same collectives in the same order, that of the instructions. A rank
 *    without rows, or one that failed, takes part in them but computes nothing (see advance.c).
 * 2. A failure on one rank is stored (gckpti_defer_error). The next status barrier (gckpti_agree)
 *    ends the step on all ranks with the error of the lowest rank that failed.
 * 3. Collectives run one after the other, in the order of their start. Each is complete before its
 *    instruction `due`; all are complete at a barrier.
 * 4. A failed exchange aborts the communication for good: every later call returns GCKPT_E_PEER.
 * The functions of group.c and micro_batches.c also work without a group: callers need no check.
 * ============================================================================================== */

/* ---- run/open.c ---- */
/* The states of a step. e->step.pc is the next instruction.
 *
 *            gckpt_step_begin               gckpt_step_end
 *     IDLE ------------------> STREAMING ------------------> RUNNING
 *      | ^      (pc = 0)           |     (pc = epilogue)       ^ |
 *      | +-------------------------+ failure                   | |
 *      |                                                       | |
 *      +---- gckpt_step, _step_start, _gradients, _forward ----+ |
 *        ^                      (pc = 0)                         |
 *        +-------------------------------------------------------+
 *                   last instruction done, or failure
 *
 * 1. A step begins in IDLE. With one rank, a call that begins a step first abandons the step in
 *    progress; with several ranks it is refused, because the other ranks are within that step.
 * 2. In STREAMING, each gckpt_step_add runs the body on its rows and returns before the epilogue.
 *    If it refuses its rows or feeds, the state and the sums so far stay as they are.
 * 3. In RUNNING all rows are fed. At the epilogue, pc returns to the body while there are rows.
 * 4. A step that fails or is cancelled before its first update changes no parameter. */
enum { GCKPTI_IDLE, GCKPTI_RUNNING, GCKPTI_STREAMING };

/* The purpose of a run, which decides where it stops. */
typedef enum {
    GCKPTI_GOAL_STEP,
    GCKPTI_GOAL_STREAM,     /* a step whose rows stream in: their number is unknown until its end */
    GCKPTI_GOAL_GRADIENTS,  /* all of a step before its first update */
    GCKPTI_GOAL_NO_UPDATES, /* all of a step except updates */
    GCKPTI_GOAL_FORWARD     /* inference */
} gckpti_goal;

typedef struct { /* sum and count of a loss, to which its kernels add, in backend memory */
    double sum;
    int64_t count;
} gckpti_loss_total;

/* ---- dist/exchange.c, dist/group.c, dist/micro_batches.c ---- */
enum { GCKPTI_MUST_MATCH = 7 };

/* The failure of the lowest rank that failed or, without one, numbers that ranks must agree on:
 * 256 agree_count + the call, rows, step, seed, exchange_hash, hashes of hyper and of replicas. */
typedef struct {
    int32_t result, rank; /* that failed; else the lowest merged; -1: numbers differ */
    uint64_t must_match[GCKPTI_MUST_MATCH];
    char text[GCKPTI_TEXT_BYTES];
} gckpti_status;

typedef enum {
    GCKPTI_REDUCE_SCATTER, /* a sum of which each rank gets its shard */
    GCKPTI_ALL_REDUCE,
    GCKPTI_ALL_GATHER, /* every rank gets the shards of all ranks */
    GCKPTI_FAST_REDUCE /* an all-reduce by the transport's own all_reduce */
} gckpti_collective;

/* The collective in progress. At a level, two ranks exchange whose numbers differ in bit `bit`. */
typedef struct {
    gckpti_collective kind;
    float *x, *workspace;    /* n floats; received floats, which are added to x */
    float *shard;            /* as in gckpti_pending */
    int64_t n, first, count; /* this rank's floats in x after a level of a sum (gather: before) */
    int bit;                 /* 1, 2, 4, ..: the level; 0 if no collective is in progress */
} gckpti_tree;

/* A collective that a REDUCE or a gather started. */
enum { GCKPTI_MAX_PENDING = 8 };
typedef struct {
    gckpti_collective kind;
    int due; /* the first instruction that reads a gather; after a sum the next REDUCE or UPDATE */
    float *x, *workspace;
    float *shard; /* where to copy this rank's shard of the sum; NULL means nowhere */
    int64_t n;
} gckpti_pending;

/* Communication of this rank with the others. */
typedef struct {
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
    void *copy_to; /* where in backend memory recv_buf is copied after the exchange, or NULL */
    size_t recv_bytes;
    uint64_t bytes_sent;
    gckpti_tree tree;
    gckpti_status status; /* for the next status barrier */
} gckpti_comm;

/* Progress of a step of several virtual ranks or ranks. All ranks begin their next virtual rank at
 * the same time; the one with most rows decides how many lockstep micro-batches it takes (>= 1). */
typedef struct gckpti_process_group {
    gckpti_comm comm;
    int micro_done;       /* lockstep micro-batches of this virtual rank that are done */
    int in_body;          /* 0 means the last micro-batch of the step is done */
    int last_micro;       /* this micro-batch is the last of its virtual rank */
    int padding;          /* this micro-batch has no rows on this rank */
    int call_ended;       /* a status barrier ended the call with an error */
    int squares_summed;   /* update.squares are summed over ranks */
    int losses_summed;    /* losses are summed over virtual ranks and ranks */
    int replicas_checked; /* hashes of values that are not sharded were compared */
    int agree_count;      /* number of status barriers */
    int pending_count;    /* entries of `pending`, oldest first; pending[0] is in progress */
    gckpti_pending pending[GCKPTI_MAX_PENDING];
    uint64_t exchange_hash; /* result of gckpti_hash_exchanges */
    gckpti_loss_total *totals;
    size_t buffer_bytes; /* of comm.send_buf, and of comm.recv_buf */
} gckpti_process_group;

typedef struct {
    gckpt_kernel forward, backward; /* kernels of an op; NULL if the host must run the op */
    const void *data; /* values of a parameter, input, constant or cache, in backend memory */
} gckpti_exec_node;

typedef struct {
    int index;           /* index in the store */
    int store_order;     /* params[i].store_order: plan index of the i-th in the store's order */
    int slots_before;    /* state arrays before this executor was created */
    size_t first_square; /* index in update.squares of its first block */
} gckpti_exec_param;

typedef struct {      /* bf16/run: a parameter's bf16 copy */
    uint16_t *values; /* NULL without a copy */
    uint32_t changes; /* parameter's `changes` when it was copied; 0 means never */
} gckpti_bf16_copy;

typedef struct {
    int node;                    /* node of the plan; -1 if no instruction reads the input */
    const unsigned char *feed;   /* rows from feeds.first_row on: the caller's, or `copy` */
    unsigned char *copy;         /* host copy of a step's rows (desc.copy_feeds), or NULL */
    unsigned char *backend_copy; /* a micro-batch's rows in backend memory, or NULL */
} gckpti_exec_input;

typedef struct {
    float *to;   /* destination given to gckpt_collect, or NULL */
    size_t size; /* floats at `to` */
    float *copy; /* host copy that gckpt_fetch returns, if the backend has own memory */
} gckpti_exec_fetch;

typedef struct {
    gckpti_loss_total total; /* host copy */
    int64_t expected;        /* count computed from the feeds; -1 means unknown */
} gckpti_exec_term;

/* The executor. The comment at a group of fields names the files of run/ that write the group. */
struct gckpt_exec {
    gckpti_object object;
    gckpti_allocator memory;
    const gckpt_plan *plan; /* a copy, or a constant of the program */
    gckpt_store *store;
    gckpt_exec_desc desc;
    struct { /* backend, open */
#ifndef GCKPT_SMALL
        gckpt_backend backend; /* desc.backend or a CPU backend, with all functions set */
#endif
        gckpti_binding binding;
        const void *kernels; /* of device.isa, for the CPU backends */
        gckpti_runner runner;
        int in_call; /* a call is in progress */
        gckpt_isa isa;
        int team; /* number of threads of a run */
    } device;
    struct {                           /* memory */
        unsigned char *host, *backend; /* the two blocks; backend: NULL unless it has own memory */
        size_t host_size, backend_size;
        unsigned char *arena, *caches; /* in a block, the caller's, or another executor's */
        unsigned char *host_scratch;   /* host copies, if the backend has own memory */
    } blocks;
    struct { /* memory, open; nodes[..].data: also step, feeds, caches */
        gckpti_exec_node *nodes;
        gckpti_exec_param *params;
        gckpti_bf16_copy *bf16_copies; /* one for each parameter, or NULL */
    } tables;
    struct {                     /* step, advance: progress of this step */
        uint64_t number;         /* the store's step when this step began */
        uint64_t quantise_count; /* the store's quantise_count at that time */
        int64_t rows;            /* rows of all ranks so far */
        int64_t first_row;       /* this rank's first row */
        int64_t row, row_end;    /* first row of this micro-batch; end of the rows fed */
        int64_t vrank_end;       /* end of the rows of this virtual rank that were fed */
        int vrank;               /* current virtual rank, counted from 0 on each rank */
        int prologue_done;       /* the prologue has run: later micro-batches skip it */
        int state;               /* GCKPTI_IDLE, .. */
        gckpti_goal goal;
        int pc, finished; /* next instruction; the step succeeded */
    } step;
    struct { /* feeds */
        gckpti_exec_input *inputs;
        int64_t first_row; /* row of the batch with which the feeds begin */
    } feeds;
    struct { /* feeds, of losses */
        gckpti_exec_term *terms;
        gckpti_loss_total *totals; /* one for each loss term and virtual rank */
        unsigned char finalized;   /* counts are checked, or known: updates may begin */
        unsigned char valid;       /* terms[..].total are results of the last call */
    } losses;
    struct { /* update */
        double grad_norm;
        double bias_correction[2]; /* 1 - beta1^bias_step, 1 - beta2^bias_step */
        uint64_t bias_step;        /* update number for which bias_correction was computed, or 0 */
        gckpt_hyper hyper;
        float clip_scale;
        float *squares; /* sums of squared gradients by block, of all parameters */
        size_t square_count;
        uint32_t *nonfinite; /* backend's flag of a bad square sum; if NULL, the host checks */
        unsigned char grads_cleared; /* this step's accumulators are cleared */
        unsigned char begun;         /* a parameter was changed, or gradients were divided */
        unsigned char writes_back;   /* divided gradients are stored */
    } update;
#ifndef GCKPT_SMALL
    struct { /* capture: micro-batches, or parts of them, that the backend replays */
        gckpt_loss_scale *scales; /* one for each loss term */
        unsigned char supported;  /* the backend can replay */
        unsigned char enabled;    /* captures are allowed: this run goes to the step's end */
        unsigned char active;     /* instructions begin to end are being captured */
        int begin, end;           /* the part last replayed or captured */
    } capture;
#endif
    struct {                 /* host */
        unsigned char *host; /* offloaded values; NULL means desc.offload stores them */
        int by_backend;      /* the backend copies */
        int async;           /* copies are started first and waited for later */
        int *due;            /* for each pending copy, oldest first: the waiting instruction */
        int pending_count;
    } offload;
#ifndef GCKPT_NO_RANKS
    struct gckpti_process_group *group; /* NULL means one rank with one virtual rank */
#endif
#ifndef GCKPT_NO_FETCH
    gckpti_exec_fetch *fetches; /* one for each fetch of the plan */
#endif
#ifndef GCKPT_NO_CACHES
    struct {
        gckpt_exec *owner;      /* the executor that has the caches: this one, or desc.caches_of */
        int64_t capacity;       /* positions of each cache */
        int64_t new_positions;  /* positions that a call adds */
        int64_t position, rows; /* positions in the caches, for this many rows of the batch */
        int64_t max_written;    /* highest position since the caches were empty */
    } caches;
#endif
#ifndef GCKPT_NO_DEBUG
    struct {
        uint64_t *hashes;  /* GCKPT_DEBUG_RECOMPUTE: two for each node: of value and saved */
        size_t high_water; /* GCKPT_DEBUG_MEASURE: end of the bytes that steps wrote */
        int poisoned_steps;
    } debug;
#endif
};

/* Changes the state of a step; GCKPT_ASSERT checks that the change is in the drawing above. */
static inline void gckpti_set_state(gckpt_exec *e, int state)
{
    GCKPT_ASSERT(state == GCKPTI_IDLE || e->step.state == GCKPTI_IDLE ||
                 (state == GCKPTI_RUNNING && e->step.state == GCKPTI_STREAMING));
    GCKPT_ASSERT(state == GCKPTI_IDLE ||
                 e->step.pc == (e->step.state == GCKPTI_IDLE ? 0 : e->plan->epilogue));
    e->step.state = state;
}

/* Returns the backend, which has all functions set. */
static inline const gckpt_backend *gckpti_backend(const gckpt_exec *e)
{
#ifndef GCKPT_SMALL
    return &e->device.backend;
#else
    return (void)e, &gckpti_backend_plain;
#endif
}

enum { GCKPTI_RUNS_DEBUG = GCKPTI_WITH_DEBUG, GCKPTI_RUNS_BACKENDS = GCKPTI_WITH_BACKENDS };

static inline unsigned gckpti_debug(const gckpt_exec *e)
{
    return GCKPTI_WITH_DEBUG ? e->desc.debug : 0;
}

#ifndef GCKPT_NO_RANKS
/* dist/exchange.c: Waits for enqueued collectives, or aborts after the transport's timeout. Must be
 * called before the host waits for the backend or copies copied_in bytes to it (which may wait). */
GCKPTI_FN void gckpti_wait_in_flight(const gckpt_exec *e, size_t copied_in);
#else
#define gckpti_wait_in_flight(e, copied_in) ((void)(e), (void)(copied_in))
#endif

/* Copies n bytes between the host and the backend's memory. */
static inline void gckpti_from_backend(const gckpt_exec *e, void *to, const void *from, size_t n)
{
    gckpti_wait_in_flight(e, 0);
    gckpti_backend(e)->copy_out(gckpti_backend(e)->context, to, from, n);
}
static inline void gckpti_to_backend(const gckpt_exec *e, void *to, const void *from, size_t n)
{
    gckpti_wait_in_flight(e, n);
    gckpti_backend(e)->copy_in(gckpti_backend(e)->context, to, from, n);
}

/* Returns 1 if rows stream in: neither their number nor the losses' counts are known yet. */
static inline int gckpti_is_streaming(const gckpt_exec *e)
{
    return e->step.goal == GCKPTI_GOAL_STREAM;
}

/* Returns 1 for an inference plan, the only kind that a build without training runs. */
static inline int gckpti_is_inference(const gckpt_plan *p)
{
    return !GCKPTI_RUNS_TRAINING || p->mode == GCKPT_INFERENCE;
}

/* Returns the store's entry of the plan's parameter i. */
static inline gckpti_param *gckpti_param_of(const gckpt_exec *e, int i)
{
    return &e->store->params[e->tables.params[i].index];
}

/* ---- run/call.c ---- */
/* Returns a parameter's values (slot -1) or state array `slot`, in the backend's memory. */
GCKPTI_FN float *gckpti_exec_array(const gckpt_exec *e, const gckpti_param *q, int slot);

/* Returns the address of an offset into the arena; NULL for GCKPTI_NO_OFFSET. */
GCKPTI_FN float *gckpti_arena_f32(const gckpt_exec *e, size_t offset);

/* Returns the rows of the current micro-batch. */
GCKPTI_FN int64_t gckpti_micro_rows(const gckpt_exec *e);

/* Initialises a call without op and inputs; all operands are NULL. gckpti_set_op_call makes it an
 * op's. Between ops, gckpti_init_opless_call is enough, which leaves the operands unchanged. */
GCKPTI_FN void gckpti_init_call(const gckpt_exec *e, gckpt_call *c);

/* ---- run/backend.c ---- */
/* Waits until the backend has finished all its work; returns its error. */
GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e);

/* ---- run/host.c ---- */
/* Returns n floats that the host can read: x, or a copy in blocks.host_scratch. The copy is valid
 * until the next call, a kernel on the host, or a copy of an offloaded value uses that memory. */
GCKPTI_FN const float *gckpti_host_floats(const gckpt_exec *e, const float *x, size_t n);

/* ---- run/feeds.c ---- */
/* Points the plan's inputs to the rows of this micro-batch, or copies these rows to the backend. */
GCKPTI_FN void gckpti_feed_rows(gckpt_exec *e);

/* Returns the first loss's count in this step: computed from the feeds, or the one last read. */
GCKPTI_FN int64_t gckpti_loss_count(const gckpt_exec *e);

/* ---- run/update.c ---- */
/* State of a gradient when its UPDATE runs: sums to be added up, or added up and divided. */
typedef enum { GCKPTI_GRAD_SUMS, GCKPTI_GRAD_DIVIDED } gckpti_grad_state;

#ifndef GCKPT_NO_TRAINING
/* Updates a parameter. GCKPTI_GRAD_SUMS: first adds up the addends of its gradient and divides. */
GCKPTI_OWN_FRAME GCKPTI_FN void gckpti_run_update(gckpt_exec *e, const gckpti_ins *ins,
                                                  gckpti_grad_state grad_state);
/* run/train.c: Ends a run of gckpt_gradients: divides gradients and computes their norm. */
GCKPTI_FN gckpt_result gckpti_finish_grad_step(gckpt_exec *e, gckpt_report *report);
#endif

/* ---- run/advance.c ---- */
/* Runs one instruction; all of a run share the call c (gckpti_init_call). Returns GCKPT_MORE if the
 * run goes on, OK at its goal (or a stream's last row so far), else an error; then e is idle. */
GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c);

/* Runs `job`, which calls gckpti_advance, in a team of threads, then waits for pending copies. The
 * job sets *result; an error of a copy replaces it. Returns *result. */
GCKPTI_FN gckpt_result gckpti_run_in_team(gckpt_exec *e, void (*job)(void *context), void *context,
                                          gckpt_result *result);

/* Calls gckpti_advance in a team, at most `instructions` times. INT64_MAX means that the run goes
 * to the end of the step, so that the backend may replay micro-batches. */
GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions);

/* ---- run/step.c ---- */
/* Returns 1, with an error, if a step of several ranks is in progress: the caller must end it
 * first. A step of one rank can be abandoned at any time. */
GCKPTI_FN int gckpti_is_under_way(gckpt_exec *e);

/* Sets device.in_call, which the caller clears. Fails if a call runs or the store was freed. */
GCKPTI_FN gckpt_result gckpti_enter_call(gckpt_exec *e);

/* Does all work before the first instruction of a run over `rows` rows (0 if rows stream in). */
GCKPTI_FN gckpt_result gckpti_prepare_step(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                           int64_t rows, gckpti_goal goal,
                                           const gckpt_hyper *hyper);

/* Ends a run: waits for the backend, adds up the losses, counts the step, fills the report. */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report);

/* ---- dist/group.c ---- */
/* Calls that all ranks make together. */
typedef enum {
    GCKPTI_CALL_NONE,
    GCKPTI_CALL_STEP,
    GCKPTI_CALL_STREAM,
    GCKPTI_CALL_GATHER,
    GCKPTI_CALL_SAVE
} gckpti_group_call;

#ifndef GCKPT_NO_RANKS
/* Returns the number of micro-batches of the last `rows` rows of this rank, up to step.row_end. The
 * last one of each virtual rank may have fewer rows than the others. */
GCKPTI_FN int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows);

/* Runs the status barrier that begins a call. `call` and `number` must be equal on all ranks. */
GCKPTI_FN gckpt_result gckpti_agree_on_call(gckpt_exec *e, gckpti_group_call call, int64_t number,
                                            gckpt_result result);

/* Merges each rank's bytes, 64 KB at most, with those of all others. */
typedef void (*gckpti_merge_fn)(void *mine, const void *received, size_t bytes);
GCKPTI_FN gckpt_result gckpti_merge_ranks(gckpt_exec *e, void *mine, size_t bytes,
                                          gckpti_merge_fn merge);

/* Returns the rank whose shard has element `index`. */
GCKPTI_FN int gckpti_shard_owner(int64_t elements, int64_t index, int ranks);
#else
static inline int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows)
{
    return (rows + e->plan->rows - 1) / e->plan->rows;
}
#endif
