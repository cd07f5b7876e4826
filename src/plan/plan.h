#pragma once
#include "base/base.h"
#include "store/store.h"
#include "tiles/tiles.h"

/* =================================================================================================
 * >>plan: the model of a request, schedules, lowered plans, placement of buffers, encoded plans
 *
 * Planning runs these steps. Each step reads only the results of the steps above it:
 *   model        of one variant (lowering of ops, fused groups) of a request (graph, loss
 *                terms, desc): its nodes, their cost, the memory of gradients; then read-only
 *   schedule     a list of entries (see below). Builders (store-all, memory-poor, segments, the
 *                user, the search) write the body; gckpti_finish_schedule adds the other
 *                parts and applies gckpt_keep (must_save) and gckpt_recompute (must_recompute).
 *   live ranges  gckpti_find_live_ranges scans a schedule once, from its end. It removes forwards
 *                whose results nobody reads, and finds live ranges, live bytes and cost.
 *   lower        the instructions, the buffers that are their operands, and the live bytes at each
 *                instruction. A value may take over the buffer of an input that dies there.
 *   place        an offset in the arena for each buffer
 *   prefetch     lowers once more, with gathers that begin earlier
 *   encode       the plan: constant data without pointers into the graph
 * Features (dist, rounding, row tiles, copies to slower memory) add to these steps by passes, one
 * function per feature, called at the stages of gckpti_plan_stage (plan/internal.h, plan/passes.h).
 *
 * A schedule is an array of int. With n = p->nodes and 0 <= u < n, an entry is
 *     u         the forward of node u; every forward of u but the first is a recompute
 *     ~u        the backward of node u
 *     u + n     copies the results of u back from slower memory (gckpti_is_copy_back)
 *     u + 2n    keeps results of u that are being copied there live until here
 * Schedules of 3 nodes:
 *     0 1 2 ~2 ~1 ~0      stores everything
 *     0 1 2 ~2 1 ~1 ~0    drops the results of node 1 and recomputes them
 * The prologue of a schedule computes values that depend on parameters only, once a step. The body
 * runs once per micro-batch. The epilogue, once a step, runs the prologue's backwards and the
 * updates.
 *
 * The arena of the first schedule, if each value (v) and gradient (g) is one unit of bytes and a
 * backward reads the inputs of its node. A buffer is a rectangle: its width is its live range, its
 * height its bytes. Rectangles never overlap, but g0 may take the place of v1, which is dead:
 *     offset 2 |          [ v2 ][ g1   g1 ]        peak and arena: 3 units
 *            1 |     [ v1   v1   v1 ][ g0   g0 ]
 *            0 |[ v0   v0   v0   v0   v0 ]
 *     entry       0    1    2   ~2   ~1   ~0
 *
 * If the batch is larger than the graph's rows, the plan `accumulates`: a parameter gradient lives
 * through the whole step, in one accumulator per use (manual, 5f). The compensation of a sum over
 * rows follows its accumulator (5e).
 *
 * Terms, here and in search:
 *   node            an op that every plan runs, or a staged parameter (one copied into the arena)
 *   position        index of an entry in a schedule
 *   backward_index  position of a backward in the order of all backwards
 *   definition      the results of one forward or copy back; its uses end before the next one
 *   peak            of a schedule or lowered plan: its greatest live bytes
 * ============================================================================================== */

/* ---- plan/plan.c ---- */
/* Types of flags, ids and indices in plans: small in builds that only run compiled plans. */
#if GCKPTI_IS_SMALL
typedef unsigned char gckpti_byte;
typedef int16_t gckpti_id;
typedef uint16_t gckpti_offset;
#else
typedef int gckpti_byte, gckpti_id;
typedef size_t gckpti_offset;
#endif
typedef int64_t gckpti_extent; /* size of an axis; plans printed as C use this name */
#define GCKPTI_NAMELESS ((gckpti_offset)GCKPTI_NO_OFFSET)

typedef struct {
    const gckpt_op *op;
    const void *data; /* values of a constant; in a fused group the gckpt_op of its last op */
    size_t saved_bytes;
    gckpti_offset attributes, attribute_bytes; /* attributes: index of the first word */
    gckpti_offset shape;                       /* index into `sizes`; with all rows */
    gckpti_offset name;                        /* offset into `names`, or GCKPTI_NAMELESS */
    gckpti_id base;
    gckpti_id index; /* index of the parameter or input; -1 for an op that does not run */
    gckpti_id in[GCKPT_MAX_INPUTS];
    gckpti_byte kind, inputs, type, batch_invariant, rounding; /* rounding: GCKPTI_ROUNDED, .. */
    gckpti_byte compensated; /* bit i: the gradient of input i is a compensated sum */
} gckpti_plan_node;

/* More about a node. The executor reads only host_value and host_saved. */
typedef struct {
    gckpt_cost cost;
    size_t host_value, host_saved; /* offsets in slower memory, or GCKPTI_NO_OFFSET */
} gckpti_node_info;

typedef struct {
    int64_t elements;
    uint32_t init[3];  /* bits of gckpt_init */
    uint32_t momentum; /* bits of the momentum of a gckpt_running */
    gckpti_offset name;
    gckpti_id node;
    gckpti_id store_index; /* in the store that the plan was made with */
    gckpti_id running;     /* number of ops that update it as a running statistic; 0 means none */
    gckpti_byte trained, external; /* external: the program owns its values */
    gckpti_byte storage;           /* gckpt_storage */
    gckpti_byte slots;             /* number of its optimiser states */
    size_t state_bytes;            /* as in gckpti_param */
} gckpti_plan_param;

/* Returns whether plan->mixer would normalise one value per channel in a single row. */
GCKPTI_FN int gckpti_mixer_measures_one(const gckpt_plan *p);

typedef struct {
    unsigned char kind, first; /* gckpt_kind; nonzero for the first forward of the tensor */
    /* accumulate: bit i: adds to the gradient of input i. zero: bit i: sets that gradient to zero
     * first. REDUCE: accumulate is 1 if a part of the sum suffices; UPDATE: if it reads one. */
    unsigned char accumulate, zero;
    gckpti_id id;           /* tensor; UPDATE: index of the parameter; NEXT, BARRIER: 0 */
    gckpti_id uses;         /* number of accumulators that it adds up first */
    gckpti_offset operands; /* index of its first operand (gckpti_operands_of) */
} gckpti_ins;

/* The operands of an instruction: offsets into the arena (in a lowered plan: indices of buffers),
 * or GCKPTI_NO_OFFSET. After a REDUCE, UPDATE and BACKWARD add up only uses in the epilogue. */
typedef struct {
    size_t out, saved;
    size_t workspace; /* REDUCE: receive buffer */
    size_t gradient;  /* of the output; UPDATE: of the parameter, or its part; REDUCE: the first */
                      /* accumulator of the body's uses, which then holds the sum */
    size_t part;      /* REDUCE: destination of this process's part of the sum, if it is moved */
    struct {
        size_t value, gradient, total; /* with a total, `gradient` is scratch added to it */
    } in[GCKPT_MAX_INPUTS];
    const size_t *addends; /* the other uses - 1 accumulators; then partial sums or a workspace */
} gckpti_operands;

/* The kinds of instructions, in the order of gckpt_kind: X(kind, the executor's handler, operands).
 * Operands are stored in this order: out, saved, workspace, gradient, part; the value, or the
 * value, gradient and total, of each input; addends and what follows them. */
enum {
    GCKPTI_TAKES_OUT = 1,
    GCKPTI_TAKES_SAVED = 2,
    GCKPTI_TAKES_WORKSPACE = 4,
    GCKPTI_TAKES_GRADIENT = 8,
    GCKPTI_TAKES_PART = 16,
    GCKPTI_TAKES_VALUES = 32,
    GCKPTI_TAKES_GRADIENTS = 64, /* and totals */
    GCKPTI_DEFINES = 128,        /* it writes its node's value and saved data */
    GCKPTI_TAKES_RESULT = GCKPTI_TAKES_OUT | GCKPTI_TAKES_SAVED,
    GCKPTI_TAKES_FORWARD = GCKPTI_TAKES_RESULT | GCKPTI_TAKES_WORKSPACE | GCKPTI_TAKES_VALUES,
    GCKPTI_TAKES_BACKWARD = GCKPTI_TAKES_FORWARD | GCKPTI_TAKES_GRADIENT | GCKPTI_TAKES_GRADIENTS,
    GCKPTI_TAKES_SUM = GCKPTI_TAKES_WORKSPACE | GCKPTI_TAKES_GRADIENT | GCKPTI_TAKES_PART
};
#define GCKPTI_KINDS(X)                                                                            \
    X(FORWARD, gckpti_run_op, GCKPTI_TAKES_FORWARD | GCKPTI_DEFINES)                               \
    X(BACKWARD, gckpti_run_op, GCKPTI_TAKES_BACKWARD)                                              \
    X(UPDATE, gckpti_run_update, GCKPTI_TAKES_GRADIENT)                                            \
    X(OFFLOAD, gckpti_run_copies, GCKPTI_TAKES_RESULT)                                             \
    X(RELOAD, gckpti_run_copies, GCKPTI_TAKES_RESULT | GCKPTI_DEFINES)                             \
    X(REDUCE, gckpti_run_reduce, GCKPTI_TAKES_SUM)                                                 \
    X(OFFLOAD_DONE, gckpti_run_copies, GCKPTI_TAKES_RESULT)                                        \
    X(BEGIN, gckpti_run_begin, 0)                                                                  \
    X(NEXT, gckpti_run_next, 0)                                                                    \
    X(BARRIER, gckpti_run_barrier, 0)

/* Returns whether instructions of a kind define results (GCKPTI_DEFINES). */
GCKPTI_FN int gckpti_defines(int kind);

/* Reads the operands of an instruction of a tensor with this number of inputs. */
GCKPTI_FN void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                                  gckpti_operands *o);

/* The choices that are made before there is a schedule. All 0 means the graph as built. */
typedef struct {
    int lowering;  /* lowering of the ops that have several (linear_loss/plan.c) */
    int fused;     /* ops without gradients run in fused groups (gckpti_fuse_ops) */
    int no_copies; /* copies nothing to slower memory, although the request allows it */
} gckpti_variant;

typedef struct {
    int id;
    uint32_t weight; /* bits of a float */
    int regulariser;
    int64_t sample_size; /* elements of input 0 that count as one, or 1 */
} gckpti_plan_term;

typedef struct {
    int id, gradient;
    size_t offset;
} gckpti_plan_fetch;

/* backend_id of plans without a backend. */
enum { GCKPTI_BACKEND_CPU, GCKPTI_BACKEND_PLAIN };

/* The scalars of a plan, in the order of plans printed as C. A change of any type of this section
 * is a change of GCKPT_PLAN_FORMAT. */
/* clang-format off */
#define GCKPTI_PLAN_NUMBERS(X)                                                                     \
    X(uint64_t, hash) X(uint64_t, check) /* gckpt_plan_info; of that and the ops that run */       \
    X(uint64_t, cost) X(uint64_t, least_cost) X(uint64_t, proven_cost)                             \
    X(uint64_t, hidden) /* cost of copies that overlap computation */                              \
    X(uint64_t, host_cost) X(int64_t, batch) X(int64_t, rows)                                      \
    X(int, format) X(int, contract) /* GCKPT_PLAN_FORMAT, GCKPT_CONTRACT */                        \
    X(gckpt_mode, mode) X(gckpt_optimiser, optimiser)                                              \
    X(int, update_in_backward) X(int, threads) X(int, backend_id) X(gckpt_precision, precision)    \
    X(int, lowering) X(int, fused)      /* gckpti_variant */                                       \
    GCKPTI_DIST_NUMBERS(X) X(int, overlaps_copies) X(int, accumulates)                             \
    X(int, compressed)           /* nonzero if the storage of some parameter is compressed */      \
    X(int, mixer)                /* a node that mixes rows, or -1 */                               \
    X(int, body) X(int, epilogue) /* first instruction of body, epilogue */                        \
    X(size_t, alignment) X(size_t, proven_bytes)                                                   \
    X(size_t, host_bytes) /* bytes of slower memory */                                             \
    X(size_t, term_count) X(size_t, arena) X(size_t, peak) X(size_t, inputs)                       \
    X(size_t, node_count) X(size_t, param_count) X(size_t, length) X(size_t, operand_count)        \
    X(size_t, fetch_count) X(size_t, word_count) X(size_t, size_count) X(size_t, name_bytes)

/* The arrays of a plan: type, name, length, and 1 if only reports read it (GCKPT_SMALL: NULL). */
#define GCKPTI_PLAN_ARRAYS(X)                                                                      \
    X(gckpti_plan_node, nodes, node_count, 0)                                                      \
    X(gckpti_node_info, info, node_count, 1) /* by node */                                         \
    X(gckpti_extent, sizes, size_count, 0) /* shapes, shared by nodes: axes, then sizes */         \
    X(gckpti_plan_param, params, param_count, 0)                                                   \
    X(gckpti_ins, ins, length, 0)                                                                  \
    X(size_t, live_bytes, length, 1) /* at each instruction */                                     \
    X(size_t, operands, operand_count, 0) /* of all instructions */                                \
    X(gckpti_plan_term, terms, term_count, 0)                                                      \
    X(gckpti_plan_fetch, fetches, fetch_count, 0)                                                  \
    X(gckpt_buffer, buffers, buffer_count, 1) /* in the order they begin */                        \
    X(uint32_t, words, word_count, 0) /* attributes */                                             \
    X(char, names, name_bytes, 0)
/* clang-format on */

/* A plan: one block of memory, or constants of a program. Its arrays refer to each
 * other by index:
 *     ins[x].id ---------> nodes[]     .op         kernels, of constant code
 *                                      .in, .base  other nodes; base: the one that a view views
 *                                      .shape ---> sizes[]   number of axes, the size of each
 *                                      .attributes words[]   attributes of the op
 *                                      .name ----> names     text
 *                                      .index ---> params[]  of a parameter; of an input its number
 *     ins[x].operands ---> operands[]  offsets of its buffers in the arena (gckpti_operands_of)
 *     ins[0, body) are the prologue, [epilogue, length) the epilogue; the body begins with
 *     a BEGIN and ends with a NEXT
 * 1. in[i] < id and base <= id: nodes are in topological order.
 * 2. No two buffers that are live at one instruction overlap (tests/plan_check.h).
 * 3. Only reports and devices read info, live_bytes and buffers; GCKPT_SMALL leaves them out. */
#define GCKPTI_NUMBER(type, name)                 type name;
#define GCKPTI_ARRAY(type, name, count, optional) const type *name;
struct gckpt_plan {
    gckpti_object object;
    gckpti_allocator memory;
    void *block; /* the plan itself; NULL means constants of a program */
    GCKPTI_PLAN_NUMBERS(GCKPTI_NUMBER)
    size_t buffer_count, kind_bytes[GCKPT_BYTES_KINDS];
    GCKPTI_PLAN_ARRAYS(GCKPTI_ARRAY)
};
#undef GCKPTI_NUMBER
#undef GCKPTI_ARRAY

/* Returns the node of an instruction (UPDATE: of its parameter), or -1 for NEXT and BARRIER. */
GCKPTI_FN int gckpti_ins_node(const gckpt_plan *plan, const gckpti_ins *ins);

/* Returns the bytes of a node's value in the arena; for an input, the bytes that are fed. */
GCKPTI_FN size_t gckpti_planned_bytes(const gckpt_plan *p, const gckpti_plan_node *q);

/* Return a node's shape and its number of elements, with all rows of the micro-batch. */
GCKPTI_FN gckpt_shape gckpti_planned_shape(const gckpt_plan *p, const gckpti_plan_node *q);
GCKPTI_FN int64_t gckpti_planned_elements(const gckpt_plan *p, const gckpti_plan_node *q);

/* Returns a node's name for errors: its own, else its op's, else "". */
GCKPTI_FN const char *gckpti_planned_name(const gckpt_plan *plan, int id);

/* Extends a hash by a node of a plan as it runs (plan->check). */
GCKPTI_FN uint64_t gckpti_hash_plan_node(uint64_t hash, const gckpt_plan *p, size_t i);

/* A bit of `rounding` (others: GCKPTI_ROUNDED, ..): with fast kernels, the op's bits depend on the
 * size of the micro-batch. */
enum { GCKPTI_MIXES = 16 };

/* Scope of a gradient that is a compensated sum over rows of the batch or over repetitions. IN_OP:
 * one instruction computes the sum; its compensation is in the workspace. IN_STEP (plans that
 * accumulate): the sum continues through the step; its compensation follows the accumulator. */
enum { GCKPTI_SUM_IN_OP = 1, GCKPTI_SUM_IN_STEP = 2 };

/* Copies a plan and its arrays into one block, unless that is NULL. Returns its bytes. The plan may
 * be a block that overlaps the new one at a higher address. */
GCKPTI_FN size_t gckpti_plan_copy(void *block, const gckpt_plan *from);

/* Returns the input whose elements a loss counts; of i32 elements only those that are >= 0. */
GCKPTI_FN int gckpti_counted_input(const gckpt_op *op);

/* Returns sum + more, saturating, since a user's schedule may repeat a forward without limit. */
static inline uint64_t gckpti_add_cost(uint64_t sum, uint64_t more)
{
    return more < UINT64_MAX - sum ? sum + more : UINT64_MAX;
}

/* Returns the cost of copying bytes, rounded up: one copy never costs more than two half copies. */
GCKPTI_FN uint64_t gckpti_transfer_cost(uint64_t cost_per_mib, int64_t bytes);

#ifndef GCKPT_SMALL
/* Code that only some parts need: passes of planning; parameters that are staged, i.e. copied into
 * the arena for ops that read them; several variants of a request. An edition without all of these
 * parts lacks the code that these conditions enclose (src/EDITIONS). */
#define GCKPTI_HAS_PASSES   1
#define GCKPTI_HAS_STAGED   1
#define GCKPTI_HAS_VARIANTS 1

/* Optional parts that plans and requests may need: X(part, 1 if GCKPT_SMALL has it, condition that
 * plan p needs it, what p then has, condition that request d needs it, setting of d without it). */
#define GCKPTI_PART_USES(X)                                                                        \
    X(TRAINING, 1, p->mode != GCKPT_INFERENCE, "gradients", d->mode != GCKPT_INFERENCE,            \
      "mode to GCKPT_INFERENCE")                                                                   \
    X(RANKS, 0, p->virtual_ranks > 1, "virtual ranks", (unsigned)d->ranks.virtual_ranks > 1,       \
      "ranks.virtual_ranks to 0")                                                                  \
    X(FETCH, 1, p->fetch_count, "tensors to fetch", d->fetch.count > 0, "fetch.count to 0")        \
    X(QUANT, 1, p->compressed, "quantised parameters", 0, "")                                      \
    X(TILES, 1, p->fused, "fused groups of ops", 0, "")                                            \
    X(BF16, 0, p->precision != GCKPT_FP32, "precision GCKPT_BF16",                                 \
      d->bf16.precision != GCKPT_FP32, "bf16.precision to GCKPT_FP32")                             \
    X(OFFLOAD, 0, p->host_bytes, "copies to slower memory",                                        \
      d->offload.bytes || d->offload.overlap, "offload.bytes and overlap to 0")                    \
    X(DEVICES, 0, p->backend_id > GCKPTI_BACKEND_PLAIN, "backends", d->backend, "backend to NULL")

/* The number of lowerings of an op (0 is the op as built). */
enum { GCKPTI_LOWERINGS = GCKPTI_WITH_LINEAR_LOSS ? 4 : 1 };

/* ---- the model, schedules, lowered plans, and the planner that owns them ---- */
/* A node. Nodes are in topological order, those of the prologue first. */
typedef struct {
    int id;
    int in, inputs;     /* edges[in..]: nodes whose values the forward reads, each once */
    int read, reads;    /* edges[read..]: nodes whose values the backward reads */
    int backward_index; /* -1 if it has no backward */
    int target;         /* target[target..]: where its backward writes gradients, by input */
    int64_t out, saved, workspace;  /* bytes of its results and its forward's workspace, aligned */
    uint64_t cost;                  /* cost of the forward */
    unsigned char accumulate, zero; /* as in gckpti_ins */
    unsigned char reads_saved;      /* the backward reads `saved` */
    unsigned char runs_once;        /* runs once: must_save, a side effect, or in the prologue */
    unsigned char side_effect;      /* its first forward stays, even if nobody reads it */
    unsigned char must_recompute;   /* recomputed for the backwards */
    unsigned char fetched;          /* its last value is read at the end */
    unsigned char in_place;         /* bit i: may overwrite the value of edges[in + i] */
    unsigned char can_copy;         /* its results may be copied to slower memory and back */
} gckpti_node;

/* The memory of a gradient: it depends on the order of backwards, but not on the schedule. */
typedef struct {
    int id, owner;   /* tensor; owner: activation whose complete gradient this is, or -1 */
    int first, last; /* backward_index of the first write and of the last use; last may be */
                     /* p->backwards (end of the body) or p->backwards + 1 (end of the step) */
    int resident;    /* lives through the whole step */
    /* Gradients that share their bytes form a list, in the order they begin. */
    int alias_root, next_alias; /* first gradient of the list, itself if alone; the next one */
    int last_alias, first_live; /* root: the list's last gradient; its first one still in use */
    int last_use;               /* of the root: the last use of the whole list */
    int result;                 /* the gradient that an UPDATE reads instead of this one: itself */
    gckpt_buffer_kind kind;
    size_t size;
} gckpti_gradient;

/* Where a node's backward writes the gradient of an input. Fields are indices, or -1. */
typedef struct {
    int node, gradient;
    int total;   /* if >= 0, `gradient` is scratch that is added to this gradient */
    int reduced; /* an instruction of the body adds it up, before the UPDATE */
    int next; /* the next target of the same tensor's gradient, in the order of addition, or -1 */
} gckpti_target;

/* A schedule with its live ranges (gckpti_find_live_ranges). Arrays are by position. */
typedef struct {
    int *entry, length;
    int *value_end, *saved_end; /* last uses of the results that an entry defines, or -1 */
    int *copied_parts;          /* parts (GCKPTI_VALUE, ..) copied after a forward, or kept live */
    int64_t *live_bytes, peak;  /* peak INT64_MAX: copies more bytes than the limit */
    uint64_t recompute_cost;    /* of all forwards but the first of each node */
    uint64_t transfer_cost;     /* of copies */
    uint64_t overhead;          /* recompute_cost + transfer_cost scaled by p->copy_cost */
    int64_t host_bytes;         /* bytes of slower memory */
} gckpti_schedule;

/* State of a node in a pass over a schedule, about its current definition (-1 if none). */
typedef struct {
    int64_t out, saved;       /* bytes */
    int64_t stamp;            /* search: the last stamp that it got */
    uint64_t ready;           /* gckpti_schedule_time: when its copy back has finished */
    int value_end, saved_end; /* last uses */
    int start, prev_use;      /* its forward; the use before this one, or start */
    int run_count;            /* forwards before the position */
    int persistent;           /* it is in the prologue, and every micro-batch reads its value */
    int awaited_parts;        /* parts that are copied back later */
    int copied_parts;         /* parts that are ever copied */
    int dropped;              /* its result was dropped (must_recompute) */
} gckpti_node_state;

/* A lowered plan: the instructions of a schedule and their buffers. It owns its arrays. */
typedef struct {
    gckpti_scratch scratch;
    gckpti_schedule sched;
    int *entry_ins;    /* by position, and for the schedule's end: first instruction */
    int *backward_ins; /* by backward_index: the instruction; then the body's last, the end */
    gckpti_ins *ins;
    size_t *live_bytes;            /* by instruction */
    size_t length;      /* number of instructions */
    int body, epilogue; /* first instructions of these parts */
    int has_updates;               /* a BARRIER and an UPDATE are among them */
    gckpt_buffer *buffers;         /* in the order they begin */
    size_t buffer_count;
    size_t *operands; /* indices of buffers */
    size_t operand_count, operand_capacity;
    int *value, *saved, *gradient; /* buffer by position (gradient: by gradient), or -1 */
    int *latest_def;               /* by node: position of the current definition */
    size_t peak, arena, kind_bytes[GCKPT_BYTES_KINDS];
    double peak_estimate;            /* the peak even if it exceeds the address space */
    uint64_t cost, hidden;           /* hidden: cost of copies that overlap computation */
    size_t *host_offset, host_bytes; /* [2u], [2u + 1]: of u's value and saved; bytes of all */
} gckpti_lowered;

/* Bits of p->active[id]: tensor id gets a gradient; its backward runs, since an input gets one. */
enum { GCKPTI_HAS_GRADIENT = 1, GCKPTI_HAS_BACKWARD = 2 };

typedef struct gckpti_planner {
    struct gckpti_planner *next; /* of the request's next variant, or NULL */
    gckpt_graph *g;
    const gckpt_tensor **tensors; /* the graph's, or their replacements */
    const gckpt_plan_desc *desc;
    const gckpt_term *terms;
    gckpti_variant variant;
    uint64_t base_cost, forward_cost; /* cost of a step without recomputes; of its forwards */
    uint64_t least_cost;              /* least cost of all variants without recomputes */
    int term_count, n, threads;       /* n: tensors */
    int plain, accumulates, inference;
    size_t alignment;
    gckpti_allocator *memory;
    int failed; /* an allocation failed */
    gckpti_scratch scratch;
    /* The model. */
    unsigned char *active, *rounding; /* by id: GCKPTI_HAS_GRADIENT, ..; GCKPTI_ROUNDED, .. */
    size_t *workspace_forward, *workspace_backward;
    gckpt_cost *cost, *model_cost;      /* model_cost: without desc.costs */
    const gckpt_cost *built_model_cost; /* of the ops as built; NULL in variant 0 */
    gckpti_node *node;
    int nodes, prologue;                /* the first `prologue` nodes are computed once a step */
    int recompute_count;                /* nodes with must_recompute */
    int can_copy;                       /* results of some node may be copied out and back */
    int64_t host_limit, max_host_limit; /* bytes of slower memory: in this search; at most */
    int overlap;                        /* copies overlap computation: costs are times */
    int copy_cost;                      /* weight of copies in the search (gckpti_scaled_cost) */
    int *node_of;                       /* node by id, or -1 */
    int *edges, edge_count;
    int *backward, backwards, body_backwards; /* nodes by backward_index; all; in the body */
    gckpti_gradient *gradient;
    int gradients;
    gckpti_target *target;
    int targets;
    struct gckpti_dist_model *dist;          /* reductions of gradients (dist/plan.h), or NULL */
    int64_t *gradient_at, *gradient_between; /* by backward_index: bytes of gradients */
    struct gckpti_bound *bound; /* by decreasing copy_cost; NULL at first */
    int *first_use;             /* by id: the first gckpti_target of its gradient, or -1 */
    int *total;                 /* by id: the gradient that sums all its uses, or -1 */
    int unused;                 /* no op has the variant's lowering, or no group is fused */
    int *late, *late_index;     /* nodes in late order (gckpti_find_late); position by node */
    int *needed_by;             /* by node: first backward that needs it */
    /* By node, for one pass over a schedule. */
    gckpti_node_state *state;
    int *queue;                         /* nodes to recompute (gckpti_recompute_dropped) */
    unsigned char *computed;            /* by node: it has run */
    int *entries;                       /* output of a builder: the body of a schedule */
    size_t entry_count, entry_capacity; /* entry_count is 0 between two builders */
    gckpti_lowered lowered, best;       /* the latest lowered plan; the best one so far */
    gckpti_scratch temp;                /* memory for one pass; the next pass clears it */
    double store_all_peak;              /* estimated peak of store-all; 0 means not known yet */
} gckpti_planner;

/* ---- plan/tensors.c ---- */
GCKPTI_FN int gckpti_is_loss(const gckpt_tensor *t);

/* Returns whether the tensor is a parameter that a step changes. */
GCKPTI_FN int gckpti_is_updated(const gckpti_planner *p, int id);

/* Returns the bytes of t's value in the arena. */
GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t);

/* ---- plan/model.c ---- */
/* The largest peak of store-all for which the search runs; so sums of bytes stay below 2^63. */
#define GCKPTI_SEARCH_LIMIT 17592186044416.0

/* Build a planner's model: first the lowering of ops, the tensors with gradients, each op's bytes
 * and cost (skipped if no op has the lowering); then nodes, gradients and the late order. */
GCKPTI_FN gckpt_result gckpti_model_ops(gckpti_planner *p);
GCKPTI_FN gckpt_result gckpti_model_nodes(gckpti_planner *p);

/* ---- plan/builders.c ---- */
/* Appends an entry to p->entries; sets p->failed if it is out of memory. */
GCKPTI_FN void gckpti_emit(gckpti_planner *p, int entry);

/* Builds the schedule that runs each forward once, in the order of creation, then the backwards. */
GCKPTI_FN void gckpti_build_store_all(gckpti_planner *p);

/* Emits the nodes of p->late, from index *next on, that backward r needs. */
GCKPTI_FN void gckpti_emit_late(gckpti_planner *p, int *next, int r);

/* Builds a schedule of late forwards. If group is 0, values are kept until their last use; if < 0,
 * every backward recomputes all (memory-poor); if > 0, the first backward in each group of `group`
 * nodes recomputes the group: Chen's uniform segments. */
GCKPTI_FN void gckpti_build_late(gckpti_planner *p, int group);

enum { GCKPTI_OUTSIDE = -2 };

/* Returns the segment directly inside `segment` (inside the body, if -1) that has node u (or, of a
 * staged parameter, its first reader); -1 if there is none, GCKPTI_OUTSIDE if `segment` does not
 * have it either. group is gckpti_build_segments's, <= 0. */
GCKPTI_FN int gckpti_child_segment(const gckpti_planner *p, int group, int segment, int u);

/* Builds nested segments (Chen 2016): recomputes the inside of a segment right before its
 * backwards, then its child segments one by one, except one at the end, which is still there. If
 * group is 0, segments are the user's; if -n, n outermost ones each; if n > 0, they are uniform, of
 * n nodes (gckpti_build_late). */
GCKPTI_FN void gckpti_build_segments(gckpti_planner *p, int group);

/* ---- plan/schedule.c ---- */
static inline int gckpti_entry_node(const gckpti_planner *p, int entry)
{
    return entry < 0 ? ~entry : entry >= p->nodes ? entry % p->nodes : entry;
}

static inline const int *gckpti_entry_reads(const gckpti_planner *p, int entry, int *count)
{
    const gckpti_node *u = &p->node[gckpti_entry_node(p, entry)];
    *count = entry < 0 ? u->reads : entry >= p->nodes ? 0 : u->inputs;
    return p->edges + (entry < 0 ? u->read : u->in);
}

/* Reserves space for `length` entries, keeping the contents. Returns 0 if it is out of memory. */
GCKPTI_FN int gckpti_schedule_reserve(gckpti_scratch *scratch, gckpti_schedule *s, int length);

/* Completes a body to a schedule, with its live ranges. Returns 0 if it is out of memory. */
GCKPTI_FN int gckpti_finish_schedule(gckpti_planner *p, const int *entries, int length,
                                     gckpti_scratch *scratch, gckpti_schedule *s);

GCKPTI_FN void gckpti_reset_states(gckpti_planner *p);

/* Removes forwards that nobody reads, except the first of a loss or side effect, and fills in the
 * rest of the schedule. Sizes are rounded up to the alignment. */
GCKPTI_FN void gckpti_find_live_ranges(gckpti_planner *p, gckpti_schedule *s);

/* One step of a scan from the end, at entry i and position x. Each value of a node >= `first` that
 * entry i reads has its last use here, unless it has a later one. Adds the bytes of such values to
 * *live. Returns whether the result of i may take over the bytes of a value that dies here. */
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

/* Ends the live range of v's definition, reached by the scan from the end. Returns its bytes. */
static inline int64_t gckpti_end_live_range(gckpti_node_state *v)
{
    int64_t bytes = (v->value_end < 0 ? 0 : v->out) + (v->saved_end < 0 ? 0 : v->saved);
    v->value_end = v->saved_end = -1;
    return bytes;
}

static inline uint64_t gckpti_entry_cost(const gckpti_planner *p, int entry)
{
    return entry < 0 ? p->cost[p->node[~entry].id].backward : p->node[entry].cost;
}

/* ---- plan/lowered.c, plan/place.c, plan/builders.c ---- */
/* Lowers the body of a schedule to p->lowered, without offsets. Returns E_MEMORY without p->failed
 * if the peak is more than this machine can address (gckpti_is_too_large). */
GCKPTI_FN gckpt_result gckpti_lower_schedule(gckpti_planner *p, const int *entries, int length);

/* Places the buffers of p->lowered and sets its arena: the smallest that it finds, or the first of
 * at most `enough` bytes. Errors: as gckpti_lower_schedule. */
GCKPTI_FN gckpt_result gckpti_place_buffers(gckpti_planner *p, size_t enough);

/* Lowers the schedule of a mode. Modes that recompute nothing have store-all's schedule, which also
 * sets p->store_all_peak. */
GCKPTI_FN gckpt_result gckpti_lower_mode(gckpti_planner *p, gckpt_mode mode);

/* Returns whether a result only means that this schedule exceeds the address space. */
GCKPTI_FN int gckpti_is_too_large(const gckpti_planner *p, gckpt_result result);

/* Swaps p->lowered and p->best. */
GCKPTI_FN void gckpti_keep_lowered(gckpti_planner *p);

/* Returns the ops in a segment of GCKPT_SQRT: the user's, or the root of the ops (Chen 2016). */
GCKPTI_FN int gckpti_segment_size(const gckpti_planner *p);

/* Lowers and places the schedule of a mode as p->best. */
GCKPTI_FN gckpt_result gckpti_plan_mode(gckpti_planner *p, gckpt_mode mode);

/* ---- plan/encode.c ---- */
/* Returns the bytes of parameters, of the optimiser state they have or will have, and of variables,
 * saturating at SIZE_MAX. If not NULL, kind_bytes gets the first two. */
GCKPTI_FN size_t gckpti_resident_bytes(const gckpti_planner *p, size_t *kind_bytes);

/* Moves a plan in a caller's block to the block's beginning, over the memory that planning used. */
GCKPTI_FN gckpt_plan *gckpti_plan_compact(gckpt_plan *plan);

/* Returns the plan of p->best, which is placed, or NULL if it is out of memory. */
GCKPTI_FN gckpt_plan *gckpti_encode_plan(gckpti_planner *p, gckpt_mode mode);
#endif /* GCKPT_SMALL */

#include "dist/plan.h"
#include "bf16/plan.h"
#include "offload/plan.h"
#include "devices/plan.h"
