#pragma once
#include "base/base.h"
#include "store/store.h"
#include "cpu/cpu.h"
#include "plan/plan.h"
#include "training/training.h"
#include "dist/dist.h"
#include "fetch/fetch.h"
#include "cache/cache.h"
#include "bf16/bf16.h"
#include "tiles/tiles.h"
#include "offload/offload.h"
#include "devices/devices.h"
#include "tools/tools.h"

GCKPTI_COLD_END /* begun by planner */

/* =================================================================================================
 * >>run: the executor: runs a plan over one arena; steps, streams
 *
 * The executor interprets a plan. For each instruction it fills a gckpt_call with the addresses of
 * the operands (in the arena, or where parameters, inputs and constants are) and passes it to the
 * kernel that the backend has for the op. docs/architecture.md, "A step", names the functions from
 * gckpt_step to a kernel and an update; read step and advance first. A feature with a state in the
 * executor is a module (src/dist, src/fetch, ..): one function that the core calls at each
 * gckpti_event (internal.h), listed in run/modules.h. Only calls of the backend (gckpti_backend)
 * read or write the arena and the backend's copies of parameters, feeds and loss sums: the host may
 * have no access.
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
 * 1. A step begins in IDLE. A call that begins a step first abandons the step in progress, or is
 *    refused (gckpti_is_under_way).
 * 2. In STREAMING, each gckpt_step_add runs the body on its rows and returns before the epilogue.
 *    If it refuses its rows or feeds, the state and the sums so far stay as they are.
 * 3. In RUNNING all rows are fed.
 * 4. A step that fails or is cancelled before its first update changes no parameter. */
enum { GCKPTI_IDLE, GCKPTI_RUNNING, GCKPTI_STREAMING };

/* The purpose of a run, which decides where it stops. */
typedef enum {
    GCKPTI_GOAL_STEP,
    GCKPTI_GOAL_STREAM,    /* a step whose rows stream in: their number is unknown until its end */
    GCKPTI_GOAL_GRADIENTS, /* all of a step before its first update */
    GCKPTI_GOAL_FORWARD    /* inference */
} gckpti_goal;

/* The sum and count of a loss, to which its kernels add, in backend memory. */
typedef struct gckpti_loss_total {
    double sum;
    int64_t count;
} gckpti_loss_total;

typedef struct {
    gckpt_kernel forward, backward; /* kernels of an op; NULL if the host must run the op */
    const void *data; /* values of a parameter, input, constant or variable, in backend memory */
} gckpti_exec_node;

typedef struct {
    int index;           /* index in the store */
    int store_order;     /* params[i].store_order: plan index of the i-th in the store's order */
    int slots_before;    /* state arrays before this executor was created */
    size_t first_square; /* index in update.squares of its first block */
} gckpti_exec_param;

typedef struct {
    int node;                    /* node of the plan; -1 if no instruction reads the input */
    const unsigned char *feed;   /* the caller's rows, from feeds.first_row on */
    unsigned char *backend_copy; /* a micro-batch's rows in backend memory, or NULL */
} gckpti_exec_input;

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
        gckpti_binding binding;
        const void *kernels; /* of device.isa, for the CPU backends */
        gckpti_runner runner;
        int in_call; /* a call is in progress */
        gckpt_isa isa;
        int team;    /* number of threads of a run */
        int watched; /* a module follows each instruction (GCKPTI_ON_REACH) */
    } device;
    struct {                           /* memory */
        unsigned char *host, *backend; /* the two blocks; backend: NULL unless it has own memory */
        size_t host_size, backend_size;
        unsigned char *arena;        /* in a block, the caller's, or another executor's */
        unsigned char *host_scratch; /* host copies, if the backend has own memory */
    } blocks;
    struct { /* memory, open; nodes[..].data: also step, feeds, modules */
        gckpti_exec_node *nodes;
        gckpti_exec_param *params;
    } tables;
    struct {                     /* step, advance: progress of this step */
        uint64_t number;         /* the store's step when this step began */
        uint64_t storage_changes; /* the store's storage_changes at that time */
        int64_t rows;            /* rows of the step so far */
        int64_t first_row;       /* the first of them that this executor runs */
        int64_t row, row_end;    /* first row of this micro-batch; end of the rows fed */
        int64_t position;        /* gckpt_position before this call */
        int prologue_done;       /* the prologue has run: later micro-batches skip it */
        int state;               /* GCKPTI_IDLE, .. */
        int to_end;              /* the run in progress goes to the end of the step */
        gckpti_goal goal;
        int pc, finished; /* next instruction; the step succeeded */
    } step;
    struct { /* feeds */
        gckpti_exec_input *inputs;
        int64_t first_row; /* row of the batch with which the feeds begin */
    } feeds;
    struct { /* feeds, of losses */
        gckpti_exec_term *terms;
        gckpti_loss_total *totals; /* by term: those to which losses add now */
        size_t total_count;        /* of totals: term_count, unless a module needs more */
        unsigned char valid;       /* terms[..].total are results of the last call */
    } losses;
    struct { /* update */
        double grad_norm;
        gckpt_hyper options;
        float clip_scale;
        float *squares; /* sums of squared gradients by block, of all parameters */
        size_t square_count;
        unsigned char begun;       /* a parameter was changed, or gradients were divided */
        unsigned char writes_back; /* divided gradients are stored */
        unsigned char all_first;   /* all gradients are divided before the first update */
    } update;
    /* The states of modules. */
#ifndef GCKPT_NO_RANKS
    gckpti_process_group *group; /* dist/dist.h, or NULL */
#endif
#ifndef GCKPT_NO_FETCH
    gckpti_exec_fetch *fetches; /* one for each fetch of the plan */
#endif
#ifndef GCKPT_NO_CACHES
    gckpti_cache_state caches;
#endif
#ifndef GCKPT_NO_OFFLOAD
    gckpti_offload_state offload;
#endif
#ifndef GCKPT_NO_DEVICES
    gckpti_device_state devices;
#endif
#ifndef GCKPT_NO_DEBUG
    gckpti_debug_state debug;
#endif
};

/* The structs in the memory of an executor of plan p: X(number, type). */
#define GCKPTI_EXEC_STRUCTS(X, p)                                                                  \
    X(1, gckpt_exec) X((p)->node_count, gckpti_exec_node) X((p)->param_count, gckpti_exec_param)   \
    X((p)->inputs, gckpti_exec_input) X((p)->term_count, gckpti_exec_term)                         \
    X((p)->fetch_count, gckpti_exec_fetch) GCKPTI_DIST_STRUCTS(X, p)

/* Changes the state of a step; GCKPT_ASSERT checks that the change is in the drawing above. */
static inline void gckpti_set_state(gckpt_exec *e, int state)
{
    GCKPT_ASSERT(state == GCKPTI_IDLE || e->step.state == GCKPTI_IDLE ||
                 (state == GCKPTI_RUNNING && e->step.state == GCKPTI_STREAMING));
    GCKPT_ASSERT(state == GCKPTI_IDLE ||
                 e->step.pc == (e->step.state == GCKPTI_IDLE ? 0 : e->plan->epilogue));
    e->step.state = state;
}

/* Returns nonzero if a module follows each instruction; firmware has no such module. */
static inline int gckpti_is_watched(const gckpt_exec *e)
{
    return GCKPTI_RUNS_BACKENDS && e->device.watched;
}

/* Copies n bytes between the host and the backend's memory. */
static inline void gckpti_from_backend(const gckpt_exec *e, void *to, const void *from, size_t n)
{
    gckpti_wait_in_flight(e, 0);
    gckpti_copy_out(gckpti_backend(e), to, from, n);
}
static inline void gckpti_to_backend(const gckpt_exec *e, void *to, const void *from, size_t n)
{
    gckpti_wait_in_flight(e, n);
    gckpti_copy_in(gckpti_backend(e), to, from, n);
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

/* ---- run/open.c ---- */
/* Returns the reason why such a plan cannot run (another header or other ops made it), or NULL. */
GCKPTI_FN const char *gckpti_plan_problem(const gckpt_plan *p);

/* ---- run/call.c ---- */
GCKPTI_FN float *gckpti_arena_f32(const gckpt_exec *e, size_t offset);

/* ---- run/feeds.c ---- */

/* Returns the first loss's count in this step: computed from the feeds, or the one last read. */
GCKPTI_FN int64_t gckpti_loss_count(const gckpt_exec *e);
