#pragma once
#include "base/base.h"
#include "store/store.h"

/* =================================================================================================
 * >>plan: the model of a request, schedules, drafts, layout, plans
 *
 * From a request to a plan each step is a function of the one before:
 *   model     what is known of one variant of a request (forms of ops, an order of backwards)
 *             before there is a schedule: gradients, their memory and lives, too; then only read
 *   schedule  a list of items. Makers (store-all, memory-poor, segments, the user, a file, search)
 *             write the body; gckpti_finish_schedule adds the rest and what pins ask for.
 *   lives     one walk over a schedule from its end (gckpti_find_live_ranges), for drafts and for the
 *             search: it drops every forward nobody reads, so that a recompute stops at the last
 *             value that is needed, and finds how long each result lives, bytes and work.
 *   draft     what a schedule comes to: instructions, the buffers they use as operands, how long
 *             each buffer lives, the bytes live at each instruction, the work. A value may take
 *             over the buffer of one that dies where it begins.
 *   place     an offset for each buffer.
 *   ahead     gathers that begin earlier: another draft.
 *   encode    the plan: constant data that points to no graph.
 * The calls, in their order; each needs those above it:
 *   gckpti_build_model (planner/planner.c) of a planner whose request is filled in and checked:
 *     gckpti_model_ops, gckpti_model_nodes
 *   gckpti_plan_mode (planner/request.c): a maker, gckpti_lower_schedule, gckpti_place_buffers,
 *     gckpti_keep_lowered; or gckpti_search_open, gckpti_find_best, gckpti_place_candidate (search)
 *   gckpti_prefetch_gathers
 *   gckpti_encode_plan
 * A draft owns its arrays (its numbers of units and gradients are the model's); gckpti_planner has
 * the model, what is proven about it (search), and two drafts, the latest and the best so far.
 *
 * A schedule has three parts. The prologue computes what depends on parameters only, once a step;
 * the body runs for each micro-batch; the epilogue sends gradients through the prologue's ops and
 * updates. A plan whose batch is larger than the graph's rows is "looped": parameter gradients live
 * through the whole step, one accumulator per use (manual, 5f), with its low part behind it where
 * it is a sum over rows (5e).
 *
 * Words, here and in search:
 *   request  graph, terms and desc of a gckpt_plan_new
 *   unit     an op that every plan runs, or a staged parameter: one that is copied into the arena
 *   nth      of a backward: its place in the order of backwards
 *   item     of a schedule: u the forward of unit u (it may be there again), ~u its backward,
 *            u + units a reload, u + 2 units a hold: what is offloaded lives at least until there
 *   version  of a unit's results: a forward makes it, uses up to the next one read it
 *   turn     of a unit: its place in p->late; of a block: when it is placed
 *   bound    of a draft: its greatest live bytes; gckpti_bound: what is proven of all schedules
 *   far      in slower memory: offloaded
 *   pins     gckpt_keep, gckpt_recompute: what a user asks of a tensor's schedule
 * ============================================================================================== */

/* ---- plan/types.c ---- */
/* Numbers that plans store: flags, ids, places in arrays; small where only compiled plans run. */
#if GCKPTI_IS_SMALL
typedef unsigned char gckpti_byte;
typedef int16_t gckpti_id;
typedef uint16_t gckpti_offset;
#else
typedef int gckpti_byte, gckpti_id;
typedef size_t gckpti_offset;
#endif
typedef int64_t gckpti_extent; /* of an axis; what is printed as C knows it by this name */
#define GCKPTI_NAMELESS ((gckpti_offset)GCKPTI_NO_OFFSET)

typedef struct {
    const gckpt_op *op;
    const void *data; /* of constants; of bands the gckpt_op of the last op */
    size_t saved_bytes;
    gckpti_offset attributes, attribute_bytes; /* first of the plan's words */
    gckpti_offset shape; /* of the plan's sizes, with all rows of the micro-batch */
    gckpti_offset name;  /* offset into the plan's names; GCKPTI_NAMELESS: none */
    gckpti_id base;
    gckpti_id index; /* of the parameter or input in the plan; -1: of an op that does not run */
    gckpti_id in[GCKPT_MAX_INPUTS];
    gckpti_byte kind, inputs, type, batch_invariant, rounding; /* rounding: GCKPTI_ROUNDED, .. */
    gckpti_byte compensated; /* bit i: the gradient of input i is a sum with a low part */
} gckpti_plan_node;

/* What else is known of a node. To run a plan, only where it offloads to is read. */
typedef struct {
    gckpt_cost cost;
    size_t host_value,
        host_saved; /* where slower memory has what is offloaded; GCKPTI_NO_OFFSET: nowhere */
    uint64_t hash; /* of the graph up to it as it was built; the node has the form that runs */
} gckpti_plan_info;

typedef struct {
    int64_t elements;
    uint32_t init[3];  /* bits of gckpt_init */
    uint32_t momentum; /* of a gckpt_running, bits */
    gckpti_offset name;
    gckpti_id node;
    gckpti_id store_index; /* its number in the store it was planned with */
    gckpti_id running;     /* not trained but measured by so many ops; 0: neither */
    gckpti_byte trained;
    gckpti_byte external; /* its values are the program's */
    gckpti_byte storage;  /* gckpt_storage */
} gckpti_plan_param;

/* Whether a step changes it: it is trained, or measured. */
GCKPTI_FN int gckpti_has_update(const gckpti_plan_param *q);

typedef struct {
    unsigned char kind;  /* gckpt_kind */
    unsigned char first; /* the first forward of its tensor */
    /* bit i: input i's gradient is added to; is cleared before. REDUCE: `accumulate` is 1 where
     * each rank needs its share of the sum only. */
    unsigned char accumulate, zero;
    gckpti_id id;        /* tensor; UPDATE: parameter of the plan */
    gckpti_id uses;      /* accumulators to add up first */
    gckpti_offset operands; /* where its offsets begin: gckpti_operands_of */
} gckpti_ins;

/* Where an instruction's operands lie, by name: offsets into the arena (in a draft: its buffers),
 * or GCKPTI_NO_OFFSET. `gradient` is that of the output, of an UPDATE the parameter's (or its shard); it
 * has uses - 1 `more` accumulators. An input's gradient that has a `total` is scratch, to be added
 * to that. REDUCE: `gradient` is the first accumulator of the tensor's uses in the body, where the
 * sum is in the end; `more` are the others, then the sums of leaves that wait (gckpti_tree_depth);
 * `work`: room for what another rank sends; `shard`: where this rank's share of the sum goes, NONE:
 * it stays where it is. Of what is reduced, UPDATE and BACKWARD add up the epilogue's uses only. */
typedef struct {
    size_t out, saved, workspace, gradient, shard;
    struct {
        size_t value, gradient, total;
    } in[GCKPT_MAX_INPUTS];
    const size_t *addends;
} gckpti_operands;

/* Names them in the order they are stored: FORWARD: out, aux, work, values; BACKWARD: out, aux,
 * work, gradient, then value, gradient, total of each input, more; UPDATE: gradient, more; OFFLOAD,
 * RELOAD, HOLD: out, aux; REDUCE: work, gradient, shard, more, waiting sums. */
GCKPTI_FN void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                                  gckpti_operands *o);

/* Behind the operands of a FORWARD or BACKWARD of a bf16 plan (plan/mixed.c): where its kernel has
 * as floats what is bf16 in the arena; NONE: it takes that as it is. Of input i [2 * i] is the
 * value's copy, [2 * i + 1] the gradient's; behind them the output's. */
static inline const size_t *gckpti_f32_copies(const gckpti_ins *ins, const gckpti_operands *o)
{
    return o->addends + ins->uses - 1;
}

/* Of a run of ops in bands of rows (plan/fused_op.c), the op `bands` in place of its last one:
 * its attributes, behind it steps, links and, from byte `own`, the last op's own. Its node's `data`
 * is that op's row. Its inputs are those of the run, without parameters, which ops find as ever. */
typedef struct {
    int32_t steps, edges, tile_rows,
        ranges_offset; /* rows: of a band; at: in the workspace, gckpti_row_range */
    int32_t inputs, last_offset, last_inputs,
        last_in[GCKPT_MAX_INPUTS]; /* in: the last op's, as it was built */
    uint32_t kiloflops;
} gckpti_fused;
typedef struct {
    int32_t id, height, width; /* id -1: it copies an input; height: rows; width: floats of one */
    int32_t offset, workspace; /* its rows, its kernel's, in the workspace; in place of step ~at */
    int32_t edge, edges;       /* links[link..]: what it reads that has rows, or is an input */
    uint32_t padding;          /* what rows of a padding have, bits of a float */
} gckpti_fused_step;
typedef struct {
    int32_t input, from, stride, before,
        reach; /* from: a step, ~input of the run; reach 0: whole */
} gckpti_fused_edge;
typedef struct {
    int32_t low, high;  /* the rows that are there */
    int32_t drop, need; /* of the next band: rows below drop go, there are those before need */
} gckpti_row_range;
/* Room for the call of an op of a run, in front of them: stacks of firmware are short. */
enum { GCKPTI_FUSED_CALL = 1536 };
typedef char
    gckpti_fused_call_fits[sizeof(gckpt_call) + GCKPTI_ALIGN <= GCKPTI_FUSED_CALL ? 1 : -1];

/* The first row that is not there yet, and the last + 1 that is made for the next band. */
static inline int32_t gckpti_tile_first(const gckpti_row_range *range)
{
    return range->high > 0 ? range->high : 0;
}
static inline int32_t gckpti_tile_end(const gckpti_fused_step *step, const gckpti_row_range *range)
{
    return range->need < step->height ? range->need : step->height;
}

/* What a request leaves open before there is any schedule; all 0: the graph as it was built. */
typedef struct {
    int lowering; /* of the ops that have several (gckpti_take_lowering) */
    int order; /* of backwards; 0: reverse order of creation */
    int fused; /* runs of ops without gradients are bands (gckpti_fuse_ops) */
    int no_offload; /* nothing is offloaded, though the request allows it */
} gckpti_variant;

typedef struct {
    int id;
    uint32_t weight; /* bits of a float */
    int regulariser;
    int64_t sample_size;   /* elements of input 0 that count as one, or 1 */
    gckpt_cost built_cost; /* of the op that was built, if not of the one that runs */
} gckpti_plan_term;

typedef struct {
    int id, gradient;
    size_t offset;
} gckpti_plan_fetch;

/* One block of memory holds it all, or (gckpt_plan_c) the program's constants do. A change of any
 * of these types is a change of GCKPT_PLAN_FORMAT. */
/* What its workspace is for: fast kernels, plain ones, a backend's (gckpti_backend_id). Forms of ops;
 * 0 is the graph as it was built. Leaves of a batch, at most: squares fit into 32 bits. */
enum { GCKPTI_BACKEND_CPU, GCKPTI_BACKEND_PLAIN };
enum { GCKPTI_LOWERINGS = 5, GCKPTI_MAX_VRANKS = 32768 };

/* The numbers of a plan, in their order: declared below, printed as C in this order, and those with
 * a limit, the most that a file may have, are what files have of them (export/file.c). */
/* clang-format off */
#define GCKPTI_PLAN_NUMBERS(X)                                                                     \
    X(uint64_t, hash, 0) X(uint64_t, check, 0) /* gckpt_plan_hash; the same of what runs */        \
    X(uint64_t, cost, 0) X(uint64_t, least_cost, UINT64_MAX) X(uint64_t, proven_cost, UINT64_MAX)  \
    X(uint64_t, hidden, 0) /* work of copies beside what is computed */                            \
    X(uint64_t, offload_cost, UINT64_MAX) X(uint64_t, comm_cost, UINT64_MAX)                       \
    X(int64_t, batch, INT64_MAX) X(int64_t, rows, 0)                                               \
    X(int, format, 0) X(int, contract, 0) /* GCKPT_PLAN_FORMAT, GCKPT_CONTRACT */                  \
    X(gckpt_mode, mode, GCKPT_INFERENCE) X(gckpt_optimiser, optimiser, GCKPT_CUSTOM_OPTIMISER)        \
    X(int, state_slots, 4) X(int, update_in_backward, 1) X(int, threads, 1024)                     \
    X(int, backend_id, GCKPTI_BACKEND_PLAIN) X(gckpt_precision, precision, GCKPT_BF16_STOCHASTIC)        \
    X(int, lowering, GCKPTI_LOWERINGS - 1) X(int, fused, 1)      /* gckpti_variant */                      \
    X(int, virtual_ranks, GCKPTI_MAX_VRANKS) X(int, ranks, INT32_MAX) /* 1, 1: REDUCE does not occur */       \
    X(gckpt_shard, shard, GCKPT_SHARD_VALUES) X(int, overlap_offload, 1) X(int, accumulates, 0)          \
    X(int, bf16_weights, 1)              /* products read copies of parameters */                  \
    X(int, quantised, 0)                    /* some parameter is */                                   \
    X(int, mixer, 0)                     /* node that mixes rows, or -1 */                         \
    X(int, body, 0) X(int, epilogue, 0)  /* where these parts of the list begin */                 \
    X(size_t, alignment, 65536) X(size_t, proven_bytes, SIZE_MAX)                                  \
    X(size_t, offloaded, PTRDIFF_MAX / 2) /* bytes of slower memory */                             \
    X(size_t, term_count, INT32_MAX) X(size_t, arena, 0) X(size_t, peak, 0) X(size_t, inputs, 0)  \
    X(size_t, node_count, 0) X(size_t, param_count, 0) X(size_t, length, 0)                        \
    X(size_t, operand_count, 0) X(size_t, fetch_count, 0) X(size_t, word_count, 0)                  \
    X(size_t, size_count, 0) X(size_t, name_bytes, 0)

/* Its arrays, by type and count; 1: what only tells of it, and is NULL where that is left out
 * (GCKPT_SMALL). */
#define GCKPTI_PLAN_ARRAYS(X)                                                                      \
    X(gckpti_plan_node, nodes, node_count, 0)                                                           \
    X(gckpti_plan_info, info, node_count, 1) /* by node */                                              \
    X(gckpti_extent, sizes, size_count, 0) /* shapes, which nodes share: axes, then their sizes */ \
    X(gckpti_plan_param, params, param_count, 0)                                                   \
    X(gckpti_ins, ins, length, 0)                                                                 \
    X(size_t, live_bytes, length, 1) /* bytes live while an instruction runs */                          \
    X(size_t, operands, operand_count, 0) /* of all instructions */                                \
    X(gckpti_plan_term, terms, term_count, 0)                                                      \
    X(gckpti_plan_fetch, fetches, fetch_count, 0)                                                      \
    X(gckpt_buffer, buffers, buffer_count, 1) /* by end */
/* clang-format on */

#define GCKPTI_NUMBER(type, name, most)        type name;
#define GCKPTI_ARRAY(type, name, count, optional) const type *name;
struct gckpt_plan {
    gckpti_object object;
    gckpti_allocator memory;
    void *block; /* this; NULL: a constant of the program */
    GCKPTI_PLAN_NUMBERS(GCKPTI_NUMBER)
    size_t buffer_count, kind_bytes[GCKPT_BYTES_KINDS];
    double recompute;
    GCKPTI_PLAN_ARRAYS(GCKPTI_ARRAY)
    const uint32_t *words; /* attributes */
    const char *names;
};
#undef GCKPTI_NUMBER
#undef GCKPTI_ARRAY

/* What plans may have that run in this build. */
enum {
    GCKPTI_RUNS_TRAINING = GCKPTI_WITH_TRAINING,
    GCKPTI_RUNS_RANKS = GCKPTI_WITH_RANKS,
    GCKPTI_RUNS_FETCHES = GCKPTI_WITH_FETCH,
    GCKPTI_RUNS_CACHES = GCKPTI_WITH_CACHES,
    GCKPTI_RUNS_FUSED = GCKPTI_WITH_TILES,
    GCKPTI_RUNS_BUILT = GCKPTI_WITH_PLANNER /* those that were made here; else constants */
};

/* The node that an instruction is about; an update's is its parameter's. */
GCKPTI_FN int gckpti_ins_node(const gckpt_plan *plan, const gckpti_ins *ins);

/* Bytes of a node's value in the arena, or as it is fed. */
GCKPTI_FN size_t gckpti_planned_bytes(const gckpt_plan *p, const gckpti_plan_node *q);

/* A node's shape, and its elements, with all rows of the micro-batch. */
GCKPTI_FN gckpt_shape gckpti_planned_shape(const gckpt_plan *p, const gckpti_plan_node *q);
GCKPTI_FN int64_t gckpti_planned_elements(const gckpt_plan *p, const gckpti_plan_node *q);

/* For errors: as it was named, else its op's name, else "". */
GCKPTI_FN const char *gckpti_planned_name(const gckpt_plan *plan, int id);

/* Sums that wait in the binary counter of so many leaves, a power of two. */
GCKPTI_FN int gckpti_tree_depth(int vranks);

/* The first row of a leaf: the least r with floor(r leaves / batch) >= leaf. */
GCKPTI_FN int64_t gckpti_vrank_first_row(int64_t batch, int vranks, int64_t vrank);

/* What the rows of a step of `rows` rows are cut into leaves as. */
GCKPTI_FN int64_t gckpti_vrank_batch(const gckpt_plan *p, int64_t rows);

/* How many of a step's rows a leaf has. */
GCKPTI_FN int64_t gckpti_vrank_rows(const gckpt_plan *p, int64_t rows, int64_t vrank);

/* Returns whether op is batch norm of one value per channel in each of `rows` rows of a shape. */
GCKPTI_FN int gckpti_is_single_norm(const gckpt_op *op, const gckpt_shape *shape, int64_t rows);

/* Returns whether plan->mixer would normalise one value per channel in a step of so many rows. */
GCKPTI_FN int gckpti_has_single_norm(const gckpt_plan *p, int64_t rows);

/* A hash goes on with each tensor of a graph (of a plan: each node, as it runs: gckpt_plan.check),
 * then with leaves, which bits depend on too. */
GCKPTI_FN uint64_t gckpti_hash_tensor(uint64_t hash, const gckpt_tensor *t);
GCKPTI_FN uint64_t gckpti_hash_plan_node(uint64_t hash, const gckpt_plan *p, size_t i);
GCKPTI_FN uint64_t gckpti_hash_vranks(uint64_t hash, int vranks);

/* ---- the model, schedules, drafts, and the planner that has them ---- */
/* A unit. Units are numbered so that inputs come before users, those of the prologue first. */
typedef struct {
    int id;
    int in, inputs;         /* links[in..]: units whose values the forward reads, each once */
    int read, reads;        /* links[read..]: units whose values the backward reads */
    int backward_index;     /* of its backward; -1: none */
    int target;             /* target[target..]: where its backward puts gradients, by input */
    int64_t out, saved,
        workspace;          /* bytes of its results; of its forward's workspace; rounded up */
    uint64_t cost;          /* of the forward */
    int reduce, reduces;    /* reduction[reduce..]: behind its backward */
    unsigned char accumulate, zero; /* of its backward, as gckpti_ins has them */
    unsigned char reads_saved;      /* the backward does */
    unsigned char runs_once;        /* computed once: pins, side effects, the prologue */
    unsigned char side_effect;      /* the first forward stays, read or not */
    unsigned char must_recompute;   /* gckpt_recompute: computed anew for the backwards */
    unsigned char fetched;          /* its last value is read at the end */
    unsigned char in_place;         /* bit i: the result may replace the value of links[in + i] */
    unsigned char can_offload;      /* what it leaves may be offloaded */
} gckpti_node;

/* A REDUCE: sums of leaves of a tensor's gradient, behind the last backward of the body that adds
 * to it. Numbers of gradients, or -1. */
typedef struct {
    int id;
    int partials; /* the first of p->levels sums that wait */
    int recv;     /* room for another rank's part, of all that are behind one backward */
    int shard; /* this rank's share of the sum, if that leaves the rest */
} gckpti_reduction;

/* Memory of a gradient. Backwards have a fixed order, their ranks, so all but its place in a
 * schedule is known before there is one. */
typedef struct {
    int id, owner;   /* the tensor it is for; the activation whose whole gradient it is, or -1 */
    int first, last; /* ranks of the backwards that write it first and use it last; last may be */
                     /* p->backwards, the end of the body, or one more, the end of the step */
    int resident;    /* it lives through the whole step */
    /* Gradients that have the same bytes (one is written in place of another, or is passed on) are
     * a list that begins at `storage`, by the backward they begin at. Of a gradient: */
    int alias_root, next_alias; /* where its list begins, itself if it is alone; the next in it */
    int last_alias, first_live,
        last_use; /* of the one that begins it: last; first still used; their last use */
    gckpt_buffer_kind kind;
    size_t size;
} gckpti_gradient;

/* Where the backward of a unit puts the gradient of an input; with a total it is scratch to be
 * added to that. Numbers of gradients, or -1. */
typedef struct {
    int node, gradient, total;
    int next; /* target for the gradient of the same tensor, as the contract adds them, or -1 */
} gckpti_target;

/* A schedule, and how long what it makes lives (gckpti_find_live_ranges): by position. What a reload
 * brings back is offloaded right behind the last forward before it: that is no item. */
typedef struct {
    int *entry, length; /* u: forward of unit u; ~u: its backward; u + units: reload; hold */
    int *value_end, *saved_end; /* of a forward or a reload: last uses of what it makes, or -1 */
    int *offload_parts;         /* of a forward: GCKPTI_VALUE, ..: what is offloaded behind it; */
                                /* of a hold: what of that it keeps */
    int64_t *live_bytes, peak;  /* bytes; INT64_MAX: more is offloaded than may be */
    uint64_t recompute_cost,
        transfer_cost;  /* cost of all forwards but the first ones; of copies; */
    uint64_t overhead;  /* of both, at the search's price of copies */
    int64_t host_bytes; /* bytes of slower memory */
} gckpti_schedule;

/* A schedule's items in little memory: runs, in which each item is one more than the one before. */
typedef struct {
    int first, count;
} gckpti_span;

/* What a pass over a schedule notes of a unit; of its version where the pass is, or -1 for none. */
typedef struct {
    int64_t out, saved;       /* bytes */
    int64_t stamp;            /* search: the stamp of the last closure that has seen it */
    uint64_t ready;           /* gckpti_schedule_time: when its reload has come */
    int value_end, saved_end; /* last uses */
    int start, prev_use;      /* its forward; the use before, or start */
    int run_count;            /* forwards before the position */
    int touched;            /* search: moves chosen so far compute or read it */
    int persistent;         /* of the prologue, and every micro-batch reads its value */
    int reload_parts,
        offload_parts; /* parts that a later reload brings back; that are ever offloaded */
    int dropped;       /* pins: its result is let go */
} gckpti_node_state;

/* What a schedule comes to: instructions, and the buffers they use, yet to be placed. It owns all
 * it points to. */
typedef struct {
    gckpti_scratch scratch;
    gckpti_schedule sched;
    int *entry_ins;    /* by item of the schedule: its instruction; of its end, too */
    int *backward_ins; /* by nth: its instruction; then the last of the body, and the end */
    gckpti_ins *ins;
    size_t *live_bytes;            /* bytes, by instruction */
    size_t length, body, epilogue; /* instructions; where these parts begin */
    gckpt_buffer *buffers;         /* in the order they begin */
    size_t buffer_count;
    size_t *operands; /* numbers of buffers */
    size_t operand_count;
    int *value, *saved, *gradient; /* buffers, by position and by gradient; -1: none */
    int *
        latest_def; /* by unit: has it run; when buffers are listed: where what is read now was made */
    size_t peak, arena, kind_bytes[GCKPT_BYTES_KINDS];
    double peak_estimate;  /* the bound, even when this machine cannot address it */
    uint64_t cost, hidden; /* hidden: of copies, beside what is computed */
    size_t *host_offset,
        offloaded; /* far[2u], [2u + 1]: where that has a unit's value, aux; its bytes */
} gckpti_lowered;

typedef struct {
    int segment, begin, last; /* entries low to at of the body, yet to be written */
} gckpti_segment_frame;

typedef struct gckpti_planner {
    struct gckpti_planner *next; /* of the request's next variant, or NULL */
    gckpt_graph *g;
    const gckpt_tensor **tensors; /* the graph's, or what runs instead */
    const gckpt_plan_desc *desc;
    const gckpt_term *terms;
    gckpti_variant variant;
    uint64_t base_cost, forward_cost; /* of a step that computes nothing twice; of its forwards */
    uint64_t least_cost;              /* the same, whatever the variant */
    uint64_t fast_cost; /* if nonzero, a search that finds no plan lowers `fast` to the fewest */
    size_t fast_bytes;  /* bytes of an arena in which it finds no more work than that */
    int term_count, n, threads;      /* n: tensors */
    int plain, accumulates,
        inference; /* no fast kernels; several micro-batches; nothing is trained */
    int orders; /* bit i: order i of backwards may take fewer bytes than order 0, which it has */
    size_t alignment;
    gckpti_allocator *memory;
    int failed; /* out of memory somewhere */
    gckpti_scratch scratch;
    /* the model */
    unsigned char *active, *rounding; /* by id: GCKPTI_HAS_GRADIENT, ..; GCKPTI_ROUNDED, .. */
    size_t *workspace_forward, *workspace_backward;
    gckpt_cost *cost, *model_cost; /* model: by the model, whatever desc.costs say */
    const gckpt_cost *built_cost,
        *built_model_cost; /* the same of the graph as it was built, if it is not */
    int *body, body_count; /* ids of what a body's schedule is made of, read by anybody or not */
    gckpti_node *node;
    int nodes, prologue;                /* prologue: the first units, computed once a step */
    int recompute_count;                /* how many have gckpt_recompute */
    int can_offload;                    /* whether some may be offloaded, */
    int64_t host_limit, max_host_limit; /* to so many bytes, in the present search; at the most; */
    int overlap;                        /* copies run beside what is computed: work is a time */
    int copy_cost;                      /* of copies, to the search (gckpti_scaled_cost) */
    int *node_of;                       /* unit of a tensor id, or -1 */
    int *edges, edge_count;
    int *backward, backwards, body_backwards; /* units by nth; how many; of these, the body's */
    gckpti_gradient *gradient;
    int gradients;
    gckpti_target *target;
    int targets;
    int virtual_ranks, tree_depth;           /* of a step; sums of a rank's own that may wait */
    gckpti_reduction *reduction;             /* in the order of their backwards */
    int reductions, *reduction_of;           /* by id, or -1 */
    int64_t *gradient_at, *gradient_between; /* bytes of gradients, by nth */
    struct gckpti_bound *bound; /* by price, the whole one first; NULL: not asked yet */
    int *first_use; /* by id: the first target for its gradient, as the contract has it, or -1 */
    int *total;     /* by id: the gradient that all of it is added up in, or -1 */
    int has_lowering;           /* some op has the variant's form */
    int has_fused, *fused_into; /* some run is in bands; by id: the last op of its run, or -1 */
    int *late, *late_index,
        *needed_by; /* gckpti_find_late: units in its order; by unit: turns, first ranks */
    /* by unit, for one pass over a schedule, nothing from one to the next but what is marked */
    gckpti_node_state *state;
    int *queue; /* of pins (gckpti_recompute_dropped): what to compute again */
    unsigned char *computed;           /* has it run */
    gckpti_segment_frame *segment_stack; /* gckpti_build_segments: the segments it is in */
    int *entries;                        /* what a maker writes: the body of a schedule, */
    size_t entry_count, entry_capacity;  /* empty between two makers */
    gckpti_lowered lowered, best;        /* the latest; the one to keep */
    gckpti_scratch temp;   /* for one pass over a draft, cleared by the next that needs it */
    double store_all_peak; /* of store-all; 0: not drafted yet */
} gckpti_planner;

/* ---- plan/tensors.c ---- */
GCKPTI_FN int gckpti_is_loss(const gckpt_tensor *t); /* its op is one */

/* A parameter that ops read in the arena: gathered ones, or by desc.stage_parameters all; packed
 * ones, unless the processor's kernels of all that reads them take what is stored. */
GCKPTI_FN int gckpti_is_staged(const gckpti_planner *p, const gckpt_tensor *t);

/* A parameter that is updated: trained or measured. */
GCKPTI_FN int gckpti_is_updated(const gckpti_planner *p, int id);

/* Bits of `rounding`; those of bf16 plans are 0 where there are none. Of a tensor: its value and
 * gradient are rounded; they are bf16 in the arena. Of an op: its kernel runs in portions
 * (run/mixed.c); fast kernels tie its bits to the micro-batch; from PRECISION on, what it computes
 * in. */
enum {
    GCKPTI_ROUNDED = 1 * GCKPTI_WITH_BF16,
    GCKPTI_BF16_VALUE = 2 * GCKPTI_WITH_BF16,
    GCKPTI_BF16_GRADIENT = 4 * GCKPTI_WITH_BF16,
    GCKPTI_IN_STRIPS = 8 * GCKPTI_WITH_BF16,
    GCKPTI_MIXES = 16,
    GCKPTI_PRECISION = 32 * GCKPTI_WITH_BF16
};

static inline gckpt_precision gckpti_precision_of(int rounding)
{
    return (gckpt_precision)(GCKPTI_WITH_BF16 ? rounding >> 5 : 0);
}

/* Bytes of t's values in the arena. */
GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t);

/* Floats of an operand's portion, of all (at most six; three if they are rows), and of a row. */
enum {
    GCKPTI_STRIP_FLOATS = 2048,
    GCKPTI_STRIP_BUFFER = 6 * GCKPTI_STRIP_FLOATS,
    GCKPTI_STRIP_ROW = 2 * GCKPTI_STRIP_FLOATS
};

/* Whether the gradient of an op's input is a sum with a low part, over rows of the batch or over
 * repetitions. HERE: it begins and ends with the instruction, its low part lies in the workspace;
 * ON: in a looped plan it goes on through the step, its low part lies behind the accumulator. */
enum { GCKPTI_SUM_IN_OP = 1, GCKPTI_SUM_IN_STEP = 2 };

/* ---- plan/mixed.c ---- */
/* Whether it is a bf16 plan; whether there may be such. */
static inline int gckpti_is_bf16_plan(const gckpt_plan *p)
{
    return GCKPTI_WITH_BF16 && p->precision != GCKPT_FP32;
}
static inline int gckpti_has_precision(gckpt_precision precision)
{
    return GCKPTI_WITH_BF16 || precision == GCKPT_FP32;
}
/* Without copies of parameters, which are had where bytes are left. */
static inline size_t gckpti_required_bytes(const gckpt_plan *p)
{
    return gckpt_plan_bytes(p) - p->kind_bytes[GCKPT_BYTES_COPIES];
}
#ifndef GCKPT_NO_BF16
/* The parameter of which a node's op reads a bf16 copy; -1: none. What that of one takes. */
GCKPTI_FN int gckpti_bf16_weight(const gckpt_plan *plan, const gckpti_plan_node *node);
GCKPTI_FN size_t gckpti_bf16_bytes(const gckpt_plan *plan, size_t param);
#endif

/* Work only adds up to what can be counted: a user's schedule may repeat a forward at will. */
GCKPTI_FN uint64_t gckpti_add_cost(uint64_t sum, uint64_t more);

/* Parts of what a forward leaves, as they are read and offloaded: those that have a last use (not
 * -1), and their bytes. */
enum { GCKPTI_VALUE = 1, GCKPTI_SAVED = 2 };
GCKPTI_FN int gckpti_parts(int value_end, int saved_end);
GCKPTI_FN int64_t gckpti_parts_bytes(const gckpti_node *u, int parts);

/* Work of copying so many bytes to slower memory or back, rounded up: two copies never have less
 * than one of all their bytes. */
GCKPTI_FN uint64_t gckpti_transfer_cost(uint64_t cost_per_mib, int64_t bytes);

/* Of an offload or a reload of such parts of a unit. */
GCKPTI_FN uint64_t gckpti_parts_cost(const gckpti_planner *p, int node, int parts);

/* What a search for less time takes copies for: at price a, a / (8 - a) of their work. */
enum { GCKPTI_FULL_COPY_COST = 4, GCKPTI_COPY_COSTS };
static inline uint64_t gckpti_scaled_cost(int copy_cost, uint64_t cost)
{
    uint64_t divisor = 8 - (uint64_t)copy_cost, factor = (uint64_t)copy_cost;
    return cost / divisor * factor + cost % divisor * factor / divisor;
}

/* The lowest price for which something is proven: none, or the whole one. */
static inline int gckpti_lowest_copy_cost(const gckpti_planner *p)
{
    return p->overlap ? 0 : GCKPTI_FULL_COPY_COST;
}

/* Whether some op has the variant's form, some run is in bands. */
static inline int gckpti_variant_applies(const gckpti_planner *p)
{
    return (!p->variant.lowering || p->has_lowering) && (!p->variant.fused || p->has_fused);
}

/* Whether q's model, of another form of p's request, is worth a search: some op of it has less work
 * or fewer bytes. */
GCKPTI_FN int gckpti_is_cheaper(const gckpti_planner *q, const gckpti_planner *p);

/* ---- plan/fused_op.c ---- */
#ifndef GCKPT_NO_TILES
/* What the next band, to row `end` of the output, needs and lets go, by step. */
GCKPTI_FN void gckpti_next_tile(const gckpti_fused *b, const gckpti_fused_step *step,
                                const gckpti_fused_edge *edges, gckpti_row_range *range,
                                int32_t end);

/* Runs a run; in run. */
GCKPTI_FN void gckpti_fused_forward(const gckpt_call *call);
#endif

/* ---- plan/order.c, plan/model.c ---- */
enum { GCKPTI_ORDER_COUNT = 3 }; /* orders of backwards; 0 is the reverse of creation */

/* Bytes of a store-all plan that are searched below, at most: sums stay below 2^63. */
#define GCKPTI_SEARCH_LIMIT 17592186044416.0

/* The model of a planner, in two steps: the form of ops, what gets a gradient, bytes and work of
 * each op (of ops that are not offered nothing else); then units, gradients, the late order. */
GCKPTI_FN gckpt_result gckpti_model_ops(gckpti_planner *p);
GCKPTI_FN gckpt_result gckpti_model_nodes(gckpti_planner *p);

/* ---- plan/builders.c ---- */
/* Appends an item to p->made; p->failed where there is no memory. */
GCKPTI_FN void gckpti_emit(gckpti_planner *p, int entry);

/* Each forward once, as they were created, then the backwards. */
GCKPTI_FN void gckpti_build_store_all(gckpti_planner *p);

/* Emits those of p->late from number *next on that the r-th backward needs. */
GCKPTI_FN void gckpti_emit_late(gckpti_planner *p, int *next, int r);

/* Late forwards, each kept till its last use (group 0), or computed anew with every backward (less
 * than 0: memory-poor), or where backwards enter a group of so many: Chen's uniform segments, for
 * any order of backwards. */
GCKPTI_FN void gckpti_build_late(gckpti_planner *p, int group);

/* Chen 2016, nested: a segment's inside is computed again just before its backwards, then its child
 * segments in turn. A segment at the very end of what was just computed is still there. group 0:
 * the user's segments, -n: of n of the outermost ones each (both for order 0); n > 0: uniform, of n
 * units (gckpti_build_late). */
GCKPTI_FN void gckpti_build_segments(gckpti_planner *p, int group);

/* ---- plan/schedule.c ---- */
/* Whether an item of a schedule is a hold; a reload; the unit of an item. */
GCKPTI_FN int gckpti_is_offload_done(const gckpti_planner *p, int entry);
GCKPTI_FN int gckpti_is_reload(const gckpti_planner *p, int entry);

static inline int gckpti_entry_node(const gckpti_planner *p, int entry)
{
    return entry < 0 ? ~entry : entry >= p->nodes ? entry % p->nodes : entry;
}

/* The units whose values an item of a schedule reads. */
static inline const int *gckpti_entry_reads(const gckpti_planner *p, int entry, int *count)
{
    const gckpti_node *u = &p->node[gckpti_entry_node(p, entry)];
    *count = entry < 0 ? u->reads : entry >= p->nodes ? 0 : u->inputs;
    return p->edges + (entry < 0 ? u->read : u->in);
}

/* Room for a schedule of `length` items; what it held stays. 0: out of memory. */
GCKPTI_FN int gckpti_schedule_reserve(gckpti_scratch *scratch, gckpti_schedule *s, int length);

/* Writes items as runs; NULL: only counts these. Returns how many there are. */
GCKPTI_FN int gckpti_to_spans(const int *entry, int length, gckpti_span *spans);

/* Writes the `length` items of runs. */
GCKPTI_FN void gckpti_from_spans(const gckpti_span *spans, int length, int *entry);

/* Makes a schedule of a body: with pins, without what nobody reads; its lives. 0: no memory. */
GCKPTI_FN int gckpti_finish_schedule(gckpti_planner *p, const int *entries, int length,
                                     gckpti_scratch *scratch, gckpti_schedule *s);

/* Begins a pass: forgets what the one before noted. */
GCKPTI_FN void gckpti_reset_states(gckpti_planner *p);

/* Drops what nobody reads; losses and side effects stay in their first forward. Finds the lives of
 * what is left: all of a schedule but its items. Sizes are rounded up to the alignment. */
GCKPTI_FN void gckpti_find_live_ranges(gckpti_planner *p, gckpti_schedule *s);

/* A step of a walk from the end: item i at position x uses values, and its aux, for the last time
 * unless they are used behind it, of units from `first` on. Adds their bytes to *live; returns
 * whether what i makes may take over the bytes of one that dies here. */
static inline int gckpti_mark_uses(const gckpti_planner *p, int first, int i, int x, int64_t *live)
{
    gckpti_node_state *state = p->state;
    int count, in_place = 0;
    const int *edges = gckpti_entry_reads(p, i, &count);
    const gckpti_node *u = &p->node[gckpti_entry_node(p, i)];
    for (int k = 0; k < count; k++) {
        gckpti_node_state *q = &state[edges[k]];
        if (q->value_end >= 0 || edges[k] < first)
            continue;
        q->value_end = x;
        *live += q->out;
        in_place |= u->in_place >> k;
    }
    if (i < 0 && u->reads_saved && state[~i].saved_end < 0) {
        state[~i].saved_end = x;
        *live += state[~i].saved;
    }
    return in_place & 1;
}

/* Likewise: where a version begins, it lives no more. Returns its bytes. */
static inline int64_t gckpti_end_live_range(gckpti_node_state *v)
{
    int64_t bytes = (v->value_end < 0 ? 0 : v->out) + (v->saved_end < 0 ? 0 : v->saved);
    v->value_end = v->saved_end = -1;
    return bytes;
}

/* ---- plan/time.c ---- */
/* Work of unit u's backward, or of its forward. */
static inline uint64_t gckpti_entry_cost(const gckpti_planner *p, int entry)
{
    return entry < 0 ? p->cost[p->node[~entry].id].backward : p->node[entry].cost;
}

/* The time of a schedule whose lives were found. With `to` (its length is 0, with room for twice
 * the items) what is offloaded is held, which is written there, as long as it is copied and a limit
 * of live bytes has room. */
GCKPTI_FN uint64_t gckpti_schedule_time(gckpti_planner *p, gckpti_schedule *s, int64_t limit,
                                        gckpti_schedule *out);

/* ---- plan/lowered.c, plan/place.c, plan/builders.c ---- */
/* Drafts the body of a schedule: p->draft, all but offsets, in place of what it was. E_MEMORY and
 * not p->failed: more bytes than this machine can address (gckpti_is_too_large). */
GCKPTI_FN gckpt_result gckpti_lower_schedule(gckpti_planner *p, const int *entries, int length);

/* The same of a schedule of `length` items in runs. */
GCKPTI_FN gckpt_result gckpti_lower_spans(gckpti_planner *p, const gckpti_span *spans, int length);

/* Places the draft's buffers: p->draft.arena. Results as above. */
GCKPTI_FN gckpt_result gckpti_place_buffers(gckpti_planner *p);

/* The draft of a mode; of those that compute nothing twice (INFERENCE too) store-all's. group: of
 * SQRT, as gckpti_build_segments has it. STORE_ALL notes p->most. */
GCKPTI_FN gckpt_result gckpti_lower_mode(gckpti_planner *p, gckpt_mode mode, int group);

/* Whether that result says only that this machine cannot address so much: a schedule with fewer
 * bytes may be a plan. */
GCKPTI_FN int gckpti_is_too_large(const gckpti_planner *p, gckpt_result result);

/* Makes p->draft the best one, p->best; what that was is p->draft, to be overwritten. */
GCKPTI_FN void gckpti_keep_lowered(gckpti_planner *p);

/* The i-th uniform segmentation: groups of 1, 2, ... ops, then of 1, 2, ... of the user's outermost
 * segments. 0: it may be left out: of long graphs one group is tried for each number of segments,
 * and the one before has as many. */
GCKPTI_FN int gckpti_group_size(const gckpti_planner *p, size_t i);

/* Drafts a mode, placed: p->best. */
GCKPTI_FN gckpt_result gckpti_plan_mode(gckpti_planner *p, gckpt_mode mode);

/* ---- plan/prefetch.c ---- */
#ifndef GCKPT_NO_RANKS
/* desc.link_beside: gathers of p->best begin as much ahead of their readers as hides them, where
 * its arena stays within `arena` bytes. */
GCKPTI_FN gckpt_result gckpti_prefetch_gathers(gckpti_planner *p, size_t arena);
#else
#define gckpti_prefetch_gathers(p, arena) ((void)(arena), GCKPT_OK)
#endif

/* ---- plan/encode.c ---- */
/* Copies a plan and its arrays, wherever these lie, into one block; NULL block: nothing. Returns
 * its bytes. What is one block already may overlap it, further back. */
GCKPTI_FN size_t gckpti_plan_copy(void *block, const gckpt_plan *from);

/* gckpt_plan.made_for: whose workspace it has; above these the hash of a backend's name. */
#ifdef GCKPT_NO_FAST
enum { GCKPTI_ALWAYS_PLAIN = 1 };
#else
enum { GCKPTI_ALWAYS_PLAIN = 0 };
#endif
GCKPTI_FN int gckpti_backend_id(const gckpt_backend *backend, int plain);

/* Bytes of the store: parameters, and the state they have or will get; and those of caches: their
 * sum, SIZE_MAX if that cannot be counted. kind_bytes (or NULL) gets each, and padding is added to
 * what it has of that. */
GCKPTI_FN size_t gckpti_resident_bytes(const gckpti_planner *p, size_t *kind_bytes);

/* In a caller's block a plan lies behind what planning took: moves it to the beginning. */
GCKPTI_FN gckpt_plan *gckpti_plan_compact(gckpt_plan *plan);

/* The numbers of a draft's buffers as a plan has them: by end; then smaller, then younger. NULL
 * without memory. */
GCKPTI_FN int *gckpti_buffers_by_end(gckpti_planner *p, const gckpti_lowered *d);

/* Which input's elements a loss counts; of an i32 input those that are not ignored. */
GCKPTI_FN int gckpti_counted_input(const gckpt_op *op);

/* The plan of a draft that is placed, written where it stays; NULL without memory. */
GCKPTI_FN gckpt_plan *gckpti_encode_plan(gckpti_planner *p, const gckpti_lowered *d,
                                         gckpt_mode mode);
