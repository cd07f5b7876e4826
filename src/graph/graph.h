#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>graph: tensors, views, segments; gckpt_apply
 *
 * Tensors are numbered in creation order, which is a topological order. A tensor is a graph leaf
 * (input, parameter, constant), the output of an op, or a view: another shape of its base's bytes,
 * of which plan and executor read only the shape. A batch-invariant tensor depends on no input and
 * has no batch axis. gckpt_apply adds ops; a graph keeps its first error (gckpti_fail).
 * ============================================================================================== */

/* ---- graph/tensor.c ---- */
enum { GCKPTI_OP, GCKPTI_INPUT, GCKPTI_PARAM, GCKPTI_CONSTANT, GCKPTI_VIEW };

struct gckpt_tensor {
    gckpt_graph *graph;
    gckpt_tensor *base; /* tensor that owns the bytes: itself, unless this is a view */
    const gckpt_op *op;
    gckpt_tensor *in[GCKPT_MAX_INPUTS];
    const void *attributes, *data; /* data: values of a constant */
    const char *name;              /* name, or NULL */
    size_t attribute_bytes, saved_bytes;
    gckpt_shape shape;
    gckpt_type type;
    int id, kind, inputs;
    gckpt_init init; /* initial values of a parameter */
    float momentum;  /* momentum of a gckpt_running */
    int running;     /* nonzero if it is a gckpt_running */
    int index;       /* of the parameter in the store; planner: last op of its fused group, or -1 */
    int segment;     /* innermost segment that has it, or -1 */
    int batch_invariant, must_save, must_recompute;
    int f32_uses;   /* parameter: number of uses that cannot read compressed values */
    int mixes_rows; /* 0, or GCKPTI_MIXES_*: when splits of the batch change results */
    const gckpt_tensor *variable; /* the variable whose rows are last on axis 1, or NULL */
};

/* When an op mixes rows of the batch; an op that measures statistics does so in training only. */
enum { GCKPTI_MIXES_ALWAYS = 1, GCKPTI_MIXES_IN_TRAINING = 2 };

typedef struct {
    int parent, ordinal; /* ordinal: index among the outermost segments, or -1 */
} gckpti_segment;

struct gckpt_graph {
    gckpti_object object;
    gckpti_allocator memory;
    gckpt_store *store;
    gckpti_scratch scratch; /* has all memory of the graph; tensors never move */
    int no_memory;          /* nonzero after the scratch ran out of memory */
    gckpt_tensor **tensors;
    gckpti_segment *segments;
    size_t count, segment_count;
    int segment;                  /* the open segment, or -1 */
    int top_segments;             /* number of outermost segments */
    int64_t rows;                 /* rows of every input; 0 before the first input */
    const gckpt_tensor *variable; /* its first variable, or NULL */
    /* Checks each new op of a graph with variables (op NULL: a view of another shape). Returns 0
     * after an error. */
    int (*check_op)(const gckpt_op *op, gckpt_tensor *const *in, int n, const void *attributes);
};

/* Sets the error of a graph unless it has one; returns NULL. */
GCKPTI_FN gckpt_tensor *gckpti_fail(gckpt_graph *g, gckpt_result result, const char *format, ...);

/* Flag in gckpt_op.needs: the input may be i32 instead of f32. */
enum { GCKPTI_ANY_TYPE = 1 << 12 };

/* Flag of an op whose result is a variable (a variable tensor of TensorFlow Lite): the executor
 * keeps it from call to call, outside the arena. in[0] is the rows of axis 1 that a call adds. */
enum { GCKPTI_VARIABLE = 1 << 22 };
static inline int gckpti_is_variable(const gckpt_op *op)
{
    return op && op->flags & GCKPTI_VARIABLE;
}

/* Flag of an op whose result is i32, each element below classes(); it has no backward. In a loss,
 * this bit is GCKPTI_BACKWARD_LOSS. */
enum { GCKPTI_INDICES = 1 << 21 };

/* ---- graph/apply.c ---- */
/* Returns a call with which an op's shape() can be called: one thread, FP32. */
GCKPTI_FN gckpt_call gckpti_shape_call(gckpt_tensor *const *in, int n, const void *attributes);

/* Returns whether an op updates running statistics. */
GCKPTI_FN int gckpti_has_running(const gckpt_op *op);
