#pragma once
#include "base/base.h"
#include "store/store.h"
#include "cpu/cpu.h"
#include "plan/plan.h"

GCKPTI_COLD_END /* since ask */

    /* =================================================================================================
 * >>run: an executor: runs a plan over one arena, steps, streams
 *
 * An executor interprets: for each instruction it fills a gckpt_call with addresses (operands in
 * the arena, leaves where they are) and hands it to the kernel that its backend found for the op.
 * A step, from gckpt_step to a kernel and an update:
 *   gckpt_step          (train) by gckpti_prepare_step (step): refuses what does not fit the plan;
 *                       gckpti_take_feeds (feeds) checks the rows and counts what losses will.
 *   gckpti_run          (advance) wakes a team of threads and calls gckpti_advance to the end; at
 *                       the epilogue that turns back to the body while there are rows.
 *   gckpti_run_forward  (advance), _backward: call fills in shapes and addresses, mixed has f32
 *                       copies of bf16 operands. The op's kernel runs, perhaps in pieces (portions)
 *                       or, where the backend has none, on copies (host).
 *   gckpti_run_copies   (host) OFFLOAD, RELOAD; gckpti_run_reduce (rounds) REDUCE.
 *   gckpti_run_update   (update) a pass over a parameter. Before the first of them losses settle
 *                       what was counted, and a step that clips finishes all gradients.
 *   gckpti_finish_step  (step) waits for the backend, reads the losses, takes the norm, reports.
 *
 * Read train, step and advance first. The others:
 *   open                an executor is made, bound to a store, and freed
 *   backend             which one it has, and kernels of it; what that may repeat by itself
 *   memory              what takes how much memory, and lies where in it; that memory itself
 *   call                addresses of operands; calls that have none yet
 *   picks, caches       gckpt_fetch and gckpt_collect; what attention keeps of earlier positions
 *   crew, rounds        this rank among others, and what they send each other; leaves
 *   debug               what desc.debug asks for
 *
 * What lies in the arena, or where the backend has a parameter, a feed or a loss's sum, is read and
 * written only by calls of the backend (gckpti_backend): the host may not be able to.
 * Where a step goes by leaves or ranks there is e->crew: it runs in rounds, leaf by leaf. In the
 * last round of each the leaf's sums join those that wait (gckpti_run_reduce), in the last of all
 * those of the other ranks. Ranks meet at the beginning of a call, behind the body and before and
 * after the updates (gckpti_agree). What one of them failed with is told there; until then it
 * drains: it takes part in all exchanges and computes nothing (gckpti_defer_error, gckpti_skips). What
 * crew and rounds have for the other files does what one rank with one leaf needs where there is no
 * crew, so nobody asks.
 *
 * Words: given: what no op makes (parameter, input, constant). Leaf: rows of a batch whose
 * sums are joined by a tree. Round: a micro-batch of a leaf, hollow where a rank has none; to round
 * is to bf16. Copies: of feeds and operands on the host (blocks.host), or in f32 (plan/mixed.c).
 * Far: in slower memory (offload); due: the instruction that must wait for a copy. Crew: leaves
 * and ranks of a step; peers: exchanges with other ranks; meeting: all tell whether they failed.
 * ============================================================================================== */

    /* ---- run/open.c ---- */
    /* STREAMING: rows may come; then the step is RUNNING to its end, as others are all the time. */
    enum {
        GCKPTI_IDLE,
        GCKPTI_RUNNING,
        GCKPTI_STREAMING
    };

/* What a run is for: a step; one whose rows stream in, so that nothing is known of those to come;
 * what of a step comes before its first update; all of it but updates; a call without training. */
typedef enum {
    GCKPTI_GOAL_STEP,
    GCKPTI_GOAL_STREAM,
    GCKPTI_GOAL_GRADIENTS,
    GCKPTI_GOAL_NO_UPDATES,
    GCKPTI_GOAL_FORWARD
} gckpti_goal;

typedef struct { /* what a loss's kernels add to, in the backend's memory */
    double sum;
    int64_t count;
} gckpti_loss_total;

/* ---- run/exchange.c, run/group.c, run/micro_batches.c ---- */
enum { GCKPTI_MUST_MATCH = 7 };

/* What ranks tell each other when they meet: the first failure of all, or what must be alike: the
 * call, with the number of the meeting above its lowest byte; rows; step; seed; what is run; hyper;
 * values that all have whole. */
typedef struct {
    int32_t result, rank; /* rank: the one that failed, or the lowest so far; -1: they differ */
    uint64_t must_match[GCKPTI_MUST_MATCH];
    char text[GCKPTI_TEXT_BYTES];
} gckpti_status;

/* What is under way, level by level: partners differ in bit `bit`. SCATTER: a sum of which each
 * rank gets its share; SUM_ALL: one that all get whole; GATHER: brings shares together; ENGINE: a
 * sum by the program's own all_reduce. */
typedef enum {
    GCKPTI_REDUCE_SCATTER,
    GCKPTI_ALL_REDUCE,
    GCKPTI_ALL_GATHER,
    GCKPTI_FAST_REDUCE
} gckpti_collective;

typedef struct {
    gckpti_collective kind;
    float *x, *workspace; /* n floats; room for what comes and is added to them */
    float *shard;    /* as a flight's */
    /* count of them, from first on, are this rank's after this level; of GATHER before it */
    int64_t n, first, count;
    int bit; /* 0: nothing is under way */
} gckpti_tree;

/* What instructions have begun, a sum of a REDUCE or a gather, and is to be over before instruction
 * `due`: the first that reads what is gathered; of a sum the next REDUCE or the first update. The
 * share of a sum goes to `shard` in the end; NULL: it stays. */
enum { GCKPTI_MAX_PENDING = 8 };
typedef struct {
    gckpti_collective kind;
    int due;
    float *x, *workspace, *shard;
    int64_t n;
} gckpti_pending;

/* This rank and what it has under way with the others. */
typedef struct {
    const gckpt_transport *transport; /* NULL: there is one rank */
    const gckpt_backend *backend;     /* where floats lie */
    int rank, ranks;
    int busy, peer, aborted; /* broken: an exchange failed, there will be none any more */
    int uses_queue; /* floats are exchanged in a queue of the backend's: no host waits, and */
    int in_flight, waiting; /* something was since all was known to be over; that is waited for */
    void *queue;      /* it is just now */
    size_t copied_in; /* bytes copied in since */
    unsigned char *send_buf, *recv_buf; /* room on the host */
    void *copy_to; /* what comes in is to be copied there, from the host; NULL: it is not */
    size_t recv_bytes;
    uint64_t bytes_sent;
    gckpti_tree tree;
    gckpti_status status;
} gckpti_comm;

/* Where a step of several leaves is, and this rank among others. A leaf takes as many rounds as the
 * largest of those that other ranks run at this time has micro-batches, one at least; those that
 * are `hollow` run only what takes part in exchanges. So does a rank that failed, to the next
 * meeting of all. */
typedef struct gckpti_process_group {
    gckpti_comm comm;
    int micro_done;  /* rounds of the leaf that are done */
    int in_body;     /* 1: rounds still run; 0: the step is behind them */
    int last_micro;  /* this round is the last of its leaf */
    int padding;     /* it has no rows */
    int call_ended;  /* a meeting has ended the call; until the next one begins */
    int squares_summed;   /* square sums are */
    int losses_summed;    /* losses are, over leaves and ranks */
    int replicas_checked; /* values that all have whole were compared */
    int agree_count;      /* how often all met */
    int pending_count; /* how many there are, in the order they were begun; the first is under way */
    gckpti_pending pending[GCKPTI_MAX_PENDING];
    uint64_t exchange_hash; /* hash of what is run */
    gckpti_loss_total *totals;
    size_t buffer_bytes; /* bytes of peers.out, and of peers.in */
} gckpti_process_group;

typedef struct {
    gckpt_kernel forward, backward; /* of an op; NULL: the backend has none, the host runs it */
    const void *data; /* given, or of a cache: its values, where the backend has them */
} gckpti_exec_node;

typedef struct {
    int index;     /* in the store */
    int store_order;     /* not its own: params[i].nth is the one that is i-th in the store */
    int slots_before;    /* state arrays before this executor was made */
    size_t first_square; /* its first block's in update.squares */
} gckpti_exec_param;

typedef struct {      /* run/mixed: a parameter's bf16 copy */
    uint16_t *values; /* NULL: there is none */
    uint32_t changes; /* changes that the parameter had seen by then; 0: it is not made */
} gckpti_bf16_copy;

typedef struct {
    int node;                  /* of the plan; -1: no instruction reads it */
    const unsigned char *feed; /* the program's rows, or copies of them, from feeds.first on */
    unsigned char *copy, *backend_copy; /* desc.copy_feeds; a micro-batch in memory of its own */
} gckpti_exec_input;

typedef struct {
    float *to;   /* gckpt_collect; NULL: it is not collected */
    size_t size; /* floats that are there */
    float *copy; /* own memory: what gckpt_fetch returns */
} gckpti_exec_fetch;

typedef struct {
    gckpti_loss_total total; /* a copy */
    int64_t expected;       /* counted from the feeds; -1: it was not */
} gckpti_exec_term;

/* By who writes it. A table's length is that of the plan's. */
struct gckpt_exec {
    gckpti_object object;
    gckpti_allocator memory;
    const gckpt_plan *plan; /* its own copy, or a constant of the program */
    gckpt_store *store;
    gckpt_exec_desc desc;
    struct {                   /* backend, open */
#ifndef GCKPT_SMALL
        gckpt_backend backend; /* complete */
#endif
        gckpti_binding binding;
        const void *kernels; /* of that instruction set, for the processor's backends */
        gckpti_runner runner;
        int in_call; /* a call is under way */
        gckpt_isa isa;
        int team; /* threads of a run */
    } device;
    struct { /* memory */
        unsigned char *host,
            *backend; /* all of it; own: what lies in memory of the backend's own */
        size_t host_size, backend_size;
        unsigned char *arena, *caches; /* in one of them, unless given, or another's */
        unsigned char *host_scratch;   /* own memory: what the host looks at or works on just now */
    } blocks;
    struct { /* memory, open; if given, or a cache, `data` by who has it */
        gckpti_exec_node *nodes;
        gckpti_exec_param *params;
        gckpti_bf16_copy *bf16_copies; /* of a plan with copies, by parameter */
    } tables;
    struct {                    /* step, advance: where this step is */
        uint64_t number, quantise_count; /* the store's when it began */
        int64_t rows;           /* so far, those of all ranks */
        int64_t first_row;      /* of this rank's */
        int64_t row, row_end;   /* this micro-batch; end of the rows fed */
        int64_t vrank_end;      /* end of those of this leaf that are here */
        int vrank;              /* number of this rank's that is run */
        int prologue_done;      /* a micro-batch is done: the prologue is not run again */
        int state;              /* GCKPTI_IDLE, .. */
        gckpti_goal goal;
        int pc, finished; /* finished: it came to its end */
    } step;
    struct { /* feeds */
        gckpti_exec_input *inputs;
        int64_t first_row; /* row of the feeds */
    } feeds;
    struct { /* feeds, of losses */
        gckpti_exec_term *terms;
        gckpti_loss_total *totals; /* by term and leaf */
        unsigned char finalized; /* what they counted was checked, or promised: a step may update */
        unsigned char valid;     /* `seen` is what the last call came to */
    } losses;
    struct { /* update */
        double grad_norm;
        double bias_correction[2]; /* 1 - beta^number, */
        uint64_t bias_step;        /* of the update with this number, or 0 */
        gckpt_hyper hyper;
        float clip_scale;
        float *squares; /* square sums by block, of all parameters */
        size_t square_count;
        uint32_t *nonfinite; /* the backend's: one of them is not; NULL: the host looks itself */
        unsigned char grads_cleared; /* accumulators of this step are */
        unsigned char begun;       /* a parameter was changed, or the sums were divided */
        unsigned char writes_back; /* divided gradients: one is read, or the backend does anyway */
    } update;
#ifndef GCKPT_SMALL
    struct {                      /* advance: micro-batches that the backend repeats, or parts */
        gckpt_loss_scale *scales; /* by term */
        unsigned char supported;  /* it may, */
        unsigned char enabled;    /* and is asked to: this run is not in pieces; */
        unsigned char active;     /* it had none, and is told at this one's end */
        int begin, end;           /* instructions of the part that was asked for last */
    } capture;
#endif
    struct {                /* host */
        unsigned char *host;   /* what is offloaded, unless the program has callbacks for it */
        int by_backend, async; /* the backend moves it; copies are begun, to be waited for later */
        int *due,
            pending_count; /* what instruction is to wait, of each copy that was begun, in order */
    } offload;
#ifndef GCKPT_NO_RANKS
    struct gckpti_process_group *group; /* NULL: one leaf and one rank */
#endif
#ifndef GCKPT_NO_FETCH
    gckpti_exec_fetch *fetches; /* by pick of the plan */
#endif
#ifndef GCKPT_NO_CACHES
    struct {
        gckpt_exec *owner;               /* whose they are: this executor, if they are its own */
        int64_t capacity, new_positions; /* positions of each; those that a call adds */
        int64_t position, rows; /* what they hold: positions, of so many rows of the batch */
        int64_t max_written;    /* calls came as far since position 0 */
    } caches;
#endif
#ifndef GCKPT_NO_DEBUG
    struct {
        uint64_t *hashes; /* GCKPT_DEBUG_RECOMPUTE: by node, value and aux */
        size_t high_water; /* GCKPT_DEBUG_MEASURE */
        int poisoned_steps;
    } debug;
#endif
};

/* What it runs on. */
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
/* run/exchange.c: before the host waits for the backend, or (brought) has copied in so much that it
 * might: until what other ranks have a part in is over, or given up after the engine's timeout. */
GCKPTI_FN void gckpti_wait_in_flight(const gckpt_exec *e, size_t copied_in);
#else
#define gckpti_wait_in_flight(e, copied_in) ((void)(e), (void)(copied_in))
#endif

/* Bytes between the host and where the backend has them. */
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

/* Rows stream in: how many, and what losses will count, is not known before the end. */
static inline int gckpti_is_streaming(const gckpt_exec *e)
{
    return e->step.goal == GCKPTI_GOAL_STREAM;
}

/* A plan of inference, the only one that a build without training runs. */
static inline int gckpti_is_inference(const gckpt_plan *p)
{
    return !GCKPTI_RUNS_TRAINING || p->mode == GCKPT_INFERENCE;
}

/* The plan's parameter i, in the store. */
static inline gckpti_param *gckpti_param_of(const gckpt_exec *e, int i)
{
    return &e->store->params[e->tables.params[i].index];
}

/* ---- run/call.c ---- */
/* Where a parameter's values (slot -1) or one of its state arrays are for this executor. */
GCKPTI_FN float *gckpti_exec_array(const gckpt_exec *e, const gckpti_param *q, int slot);

/* What lies at an offset into the arena; NULL: GCKPTI_NO_OFFSET. */
GCKPTI_FN float *gckpti_arena_f32(const gckpt_exec *e, size_t offset);

/* Rows of the micro-batch that is run. */
GCKPTI_FN int64_t gckpti_micro_rows(const gckpt_exec *e);

/* A call without op or inputs, all operands cleared: to become an op's, or for what is done between
 * ops (for which gckpti_init_opless_call, which leaves operands as they are, is enough). */
GCKPTI_FN void gckpti_init_call(const gckpt_exec *e, gckpt_call *c);

/* ---- run/backend.c ---- */
/* Until all that was asked of the backend is done. */
GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e);

/* ---- run/host.c ---- */
/* n floats as the host can read them: where they are, or a copy in blocks.borrowed: until that is
 * used again, here, by a kernel that runs on the host, for what is offloaded or unpacked. */
GCKPTI_FN const float *gckpti_host_floats(const gckpt_exec *e, const float *x, size_t n);

/* ---- run/feeds.c ---- */
/* Points the plan's inputs to the rows of this micro-batch, or copies these to the backend. */
GCKPTI_FN void gckpti_feed_rows(gckpt_exec *e);

/* Of the first loss in this step; from its feeds, or, once it was read, as it counted itself. */
GCKPTI_FN int64_t gckpti_loss_count(const gckpt_exec *e);

/* ---- run/update.c ---- */
/* The gradients an update finds: sums in their accumulators, or divided already. */
typedef enum { GCKPTI_GRAD_SUMS, GCKPTI_GRAD_DIVIDED } gckpti_grad_state;

#ifndef GCKPT_NO_TRAINING
/* Updates a parameter; what is missing from sums to a divided gradient is done on the way. */
GCKPTI_OWN_FRAME GCKPTI_FN void gckpti_run_update(gckpt_exec *e, const gckpti_ins *ins,
                                                  gckpti_grad_state grad_state);
/* run/train.c: of GCKPTI_GOAL_GRADIENTS: divides them, takes their norm, and finishes the step. */
GCKPTI_FN gckpt_result gckpti_finish_grad_step(gckpt_exec *e, gckpt_report *report);
#endif

/* ---- run/advance.c ---- */
/* Runs one instruction and moves on. c: all of a run's instructions have the same call, bare before
 * the first one. Returns MORE, OK where the goal is reached (or at the end of the rows at hand when
 * streaming), CANCELLED or an error; with these two e is idle. */
GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c);

/* Calls `job`, which advances, with a team; then waits for copies that are under way. *result: what
 * the job came to, and what this returns. */
GCKPTI_FN gckpt_result gckpti_run_in_team(gckpt_exec *e, void (*job)(void *context), void *context,
                                          gckpt_result *result);

/* As gckpti_advance, but so many instructions at most, with a team. INT64_MAX: this run is
 * not in pieces, so the backend may repeat micro-batches. */
GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions);

/* ---- run/step.c ---- */
/* 1, and an error: other ranks are within a step that is under way, so it cannot be left. One rank
 * may begin another step, or anything, at any time: 0. */
GCKPTI_FN int gckpti_is_under_way(gckpt_exec *e);

/* Marks a call as under way, until on.entered is 0 again; E_ARG if one is, or the store is gone. */
GCKPTI_FN gckpt_result gckpti_enter_call(gckpt_exec *e);

/* Everything before the first instruction of a run over `rows` rows (STREAM: none yet). */
GCKPTI_FN gckpt_result gckpti_prepare_step(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                           int64_t rows, gckpti_goal goal,
                                           const gckpt_hyper *hyper);

/* The end of a run that reached its goal: waits for the backend, adds up the losses, counts the
 * step, and reports. */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report);

/* ---- run/group.c ---- */
/* Calls that all ranks make. */
typedef enum {
    GCKPTI_CALL_NONE,
    GCKPTI_CALL_STEP,
    GCKPTI_CALL_STREAM,
    GCKPTI_CALL_GATHER,
    GCKPTI_CALL_SAVE
} gckpti_group_call;

#ifndef GCKPT_NO_RANKS
/* How many micro-batches the last `rows` of this rank's rows are, up to step.row_end: a leaf's last
 * may be short. */
GCKPTI_FN int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows);

/* All ranks meet in a call, with a number that must be alike, and with what it has come to here. */
GCKPTI_FN gckpt_result gckpti_agree_on_call(gckpt_exec *e, gckpti_group_call call, int64_t number,
                                            gckpt_result result);

/* Merges each rank's bytes, 64 KB at most, with those of all others. */
typedef void (*gckpti_merge_fn)(void *mine, const void *received, size_t bytes);
GCKPTI_FN gckpt_result gckpti_merge_ranks(gckpt_exec *e, void *mine, size_t bytes,
                                          gckpti_merge_fn merge);

/* The rank whose share has element `at`. */
GCKPTI_FN int gckpti_shard_owner(int64_t elements, int64_t index, int ranks);
#else
static inline int64_t gckpti_count_micro_batches(const gckpt_exec *e, int64_t rows)
{
    return (rows + e->plan->rows - 1) / e->plan->rows;
}
#endif
