#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>graph: tensors, views, segments; gckpt_apply
 *
 * Tensors are numbered in creation order, which is a topological order. A tensor is given (input,
 * parameter, constant), the output of an op, or a view: another shape of its base's bytes, of which
 * plan and executor never see more than the shape. `batch-invariant`: it has no batch axis, since
 * it depends on no input (parameters, constants, and functions of those).
 *
 * gckpt_graph has the tensors by number, and the segments. gckpt_apply is how all ops come in; the
 * first error of a graph stays (gckpti_fail).
 * ============================================================================================== */

/* ---- graph/tensor.c ---- */
enum { GCKPTI_OP, GCKPTI_INPUT, GCKPTI_PARAM, GCKPTI_CONSTANT, GCKPTI_VIEW };

struct gckpt_tensor {
    gckpt_graph *graph;
    gckpt_tensor *base; /* whose bytes these are: itself unless a view */
    const gckpt_op *op;
    gckpt_tensor *in[GCKPT_MAX_INPUTS];
    const void *attributes, *data; /* data: of constants */
    const char *name;              /* or NULL */
    size_t attribute_bytes, saved_bytes;
    gckpt_shape shape;
    gckpt_type type;
    int id, kind, inputs;
    gckpt_init init; /* of a parameter */
    float momentum;  /* of a gckpt_running */
    int running;     /* it is one */
    int index;       /* of the parameter in the store */
    int segment;     /* innermost, -1 none */
    int batch_invariant, must_save, must_recompute;
    int f32_uses;   /* of a parameter: uses that cannot read it as it is stored */
    int mixes_rows; /* rows, so that splits of the batch are not exact: GCKPTI_ALWAYS, .. */
    int64_t
        cache_capacity;   /* of the gckpt_cache whose rows are its last ones (axis 1); 0: of none */
    int64_t cache_window; /* of the gckpt_cache_window that it is; 0: it keeps all rows */
};

/* Ops that measure mix rows by statistics, which inference has from before. */
enum { GCKPTI_MIXES_ALWAYS = 1, GCKPTI_MIXES_IN_TRAINING = 2 };

typedef struct {
    int parent, depth, ordinal; /* ordinal: among the outermost ones */
} gckpti_segment;

struct gckpt_graph {
    gckpti_object object;
    gckpti_allocator memory;
    gckpt_store *store;
    gckpti_scratch scratch; /* all it has is there, tensors never move */
    int no_memory;          /* there was no memory for more */
    gckpt_tensor **tensors;
    gckpti_segment *segments;
    size_t count, segment_count;
    int segment;            /* open now */
    int top_segments, max_depth; /* segments without a parent; levels */
    int param_limit;             /* 1 + the greatest number in the store of those it has */
    int64_t rows;           /* of every input; 0: no input yet */
    int64_t cache_capacity,
        new_positions;     /* positions its caches have room for, 0: it has none; a call adds */
    int64_t min_positions; /* the least that gckpt_positions has for them; 0: not used */
    int depends_on_rows;   /* its error depends on the rows: a graph with others may do */
    size_t min_bytes;      /* bytes that would have sufficed, after E_BUDGET */
};

enum { GCKPTI_HAS_GRAPHS = GCKPTI_WITH_PLANNER }; /* there can be graphs */

/* The first error of a graph stays. */
GCKPTI_FN gckpt_tensor *gckpti_fail(gckpt_graph *g, gckpt_result result, const char *format, ...);

#ifdef GCKPT_NO_TEXT
GCKPTI_FN gckpt_result gckpti_call_failed(const gckpt_call *call, gckpt_result result);
#define gckpti_fail(g, result, ...)                                                                \
    (0 ? gckpti_fail(g, result, __VA_ARGS__) : gckpti_graph_failed(g, result))
#define gckpt_fail(call, result, ...)                                                              \
    (0 ? gckpt_fail(call, result, __VA_ARGS__) : gckpti_call_failed(call, result))
#endif

/* needs: the input may be i32, too. */
enum { GCKPTI_ANY_TYPE = 1 << 12 };

/* Rows of a cache that are not there yet hold anything. Flag of the ops that know which these are;
 * with GCKPT_SIDE_EFFECT: of gckpt_cache, whose result has its place in the executor's caches. */
enum { GCKPTI_CACHED = 1 << 22 };
static inline int gckpti_is_cache(const gckpt_op *op)
{
    const unsigned cache = GCKPTI_CACHED | GCKPT_SIDE_EFFECT;
    return GCKPTI_WITH_CACHES && op && (op->flags & cache) == cache;
}

/* Of an op without a backward, not of losses, for which the bit means something else: its result is
 * i32, and what its row's classes() says is above all of it. */
enum { GCKPTI_INDICES = 1 << 21 };

GCKPTI_FN gckpt_tensor *gckpti_fail_cached(gckpt_graph *g, const char *what, const gckpt_tensor *x);

/* ---- graph/apply.c ---- */
/* What an op's shape() is asked with, by one thread and in FP32. */
GCKPTI_FN gckpt_call gckpti_shape_call(gckpt_tensor *const *in, int n, const void *attributes);

/* Whether an op hands in running statistics. */
GCKPTI_FN int gckpti_has_running(const gckpt_op *op);
