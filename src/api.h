#ifndef GRADCKPT_H
#define GRADCKPT_H

/* >>api: types, errors, memory ----------------------------------------------------------------- */
#include <stddef.h>
#include <stdint.h>

#define GCKPT_VERSION_MAJOR    0
#define GCKPT_VERSION_MINOR    2
#define GCKPT_VERSION_REVISION 0
#define GCKPT_CONTRACT         5  /* version of the numeric specification (manual, 5) */
#define GCKPT_PLAN_FORMAT      21 /* version of printed plans */

/* The options below imply others (manual, 4). */
#ifdef GCKPT_SMALL
#undef GCKPT_NO_HEAP
#define GCKPT_NO_HEAP
#undef GCKPT_NO_STDIO
#define GCKPT_NO_STDIO
#undef GCKPT_NO_FAST
#define GCKPT_NO_FAST
#undef GCKPT_NO_TEXT
#define GCKPT_NO_TEXT
#undef GCKPT_NO_SEARCH
#define GCKPT_NO_SEARCH
#undef GCKPT_NO_DEBUG
#define GCKPT_NO_DEBUG
#undef GCKPT_NO_BF16
#define GCKPT_NO_BF16
#undef GCKPT_NO_EXPORT
#define GCKPT_NO_EXPORT
#undef GCKPT_NO_OFFLOAD
#define GCKPT_NO_OFFLOAD
#undef GCKPT_NO_DEVICES
#define GCKPT_NO_DEVICES
#pragma push_macro("int64_t")
#define int64_t int32_t /* sizes and counts have 4 bytes in this file */
#endif
#ifdef GCKPT_NO_TRAINING
#undef GCKPT_NO_SEARCH
#define GCKPT_NO_SEARCH
#endif
#ifdef GCKPT_NO_SEARCH
#undef GCKPT_NO_FRONTIER
#define GCKPT_NO_FRONTIER
#endif
#ifdef GCKPT_NO_AVX2
#undef GCKPT_NO_AVX512
#define GCKPT_NO_AVX512
#endif
#ifdef GCKPT_NO_FILES
#undef GCKPT_NO_STDIO
#define GCKPT_NO_STDIO
#endif

#ifndef GCKPT_API
#if defined(GCKPT_STATIC) && defined(__GNUC__)
#define GCKPT_API static __attribute__((unused))
#elif defined(GCKPT_STATIC)
#define GCKPT_API static
#else
#define GCKPT_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gckpt_store gckpt_store;       /* named parameters and optimiser state */
typedef struct gckpt_graph gckpt_graph;       /* tensors and ops for one set of shapes */
typedef struct gckpt_tensor gckpt_tensor;     /* a value in a graph: its op, shape, name */
typedef struct gckpt_plan gckpt_plan;         /* schedule and offsets: constant data */
typedef struct gckpt_frontier gckpt_frontier; /* the least cost for every budget */
typedef struct gckpt_exec gckpt_exec;         /* a plan bound to memory, a store and a backend */
typedef struct gckpt_backend gckpt_backend;   /* functions that run a plan's ops on one device */

/* Results. Only those that begin with E_ are errors. */
#define GCKPT_RESULTS(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(MORE, "more instructions to run")                                                            \
    X(CANCELLED, "cancelled by the progress callback; nothing was changed")                        \
    X(OTHER_CONTRACT, "loaded; but made under another version of the numeric contract")            \
    X(UNRESOLVED, "rounding hides what was to be checked")                                         \
    X(SKIPPED, "skipped: the gradient is not finite; nothing was changed")                         \
    X(E_SHAPE, "shapes do not fit")                                                                \
    X(E_ARG, "a wrong argument")                                                                   \
    X(E_MEMORY, "out of memory")                                                                   \
    X(E_BUDGET, "the byte budget is too small")                                                    \
    X(E_DATA, "wrong data")                                                                        \
    X(E_FILE, "a file could not be read or written")                                               \
    X(E_BACKEND, "this build or processor breaks the numeric contract")                            \
    X(E_PEER, "another rank does not answer")
#define GCKPT_RESULT_ENUM(name, text) GCKPT_##name,
typedef enum { GCKPT_RESULTS(GCKPT_RESULT_ENUM) GCKPT_RESULT_COUNT } gckpt_result;
#undef GCKPT_RESULT_ENUM

/* Returns the last error of a store, graph, plan or executor, or GCKPT_OK; GCKPT_E_MEMORY for NULL
 * (gckpt_error_text then says which object has the real error). */
GCKPT_API gckpt_result gckpt_error(const void *object);
/* Returns the text of the object's error: place, cause, and a request that would have worked. Never
 * NULL; valid until the object's next error. */
GCKPT_API const char *gckpt_error_text(const void *object);
/* Returns a result in words, e.g. "out of memory". */
GCKPT_API const char *gckpt_result_text(gckpt_result result);

/* The allocator of an object. All zero selects realloc and free (GCKPT_REALLOC). */
typedef struct {
    /* Allocates (ptr NULL), resizes, or, if new_size is 0, frees; returns NULL if it fails. */
    void *(*resize)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;   /* for resize */
    void *memory; /* if not NULL, all memory comes from this block (at any address) instead */
    size_t size;  /* bytes in the block */
} gckpt_memory;

/* Shapes are row-major. Axis 0 of every input is the batch. */
#define GCKPT_MAX_DIMS   6
#define GCKPT_MAX_INPUTS 8 /* of an op */
typedef struct {
    int n;                     /* number of axes */
    int64_t d[GCKPT_MAX_DIMS]; /* sizes, the outermost axis first */
} gckpt_shape;
/* Type of a tensor's elements. U8, unsigned bytes, is for inputs that gckpt_from_u8 reads. */
typedef enum { GCKPT_F32, GCKPT_I32, GCKPT_U8 } gckpt_type;
#include "bf16/api.h"
GCKPT_API gckpt_shape gckpt_shape1(int64_t a);                                  /* (a) */
GCKPT_API gckpt_shape gckpt_shape2(int64_t a, int64_t b);                       /* (a,b) */
GCKPT_API gckpt_shape gckpt_shape3(int64_t a, int64_t b, int64_t c);            /* (a,b,c) */
GCKPT_API gckpt_shape gckpt_shape4(int64_t a, int64_t b, int64_t c, int64_t d); /* (a,b,c,d) */

/* >>api-store -------------------------------------------------------------------------------------
 * A store begins empty; gckpt_param adds parameters to it, or finds them. Values are created when
 * needed: by gckpt_exec_new, gckpt_store_get and loading; if memory runs out, they return E_MEMORY
 * and name the bytes. A call that takes a const store changes nothing (threads: manual, 10). */
typedef struct {
    gckpt_memory memory;
    uint64_t seed; /* seed of initial values and dropout; default 0 */
} gckpt_store_desc;
/* Creates a store, which must outlive its graphs and executors. desc NULL selects all defaults.
 * Returns NULL if there is no memory. */
GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc);
/* Frees a store. Its graphs and executors can then only be freed. */
GCKPT_API void gckpt_store_free(gckpt_store *store);

/* Freezes (if frozen is 0, unfreezes) parameters whose whole name matches `pattern`: '*' matches
 * any characters, '?' one ("h.*.mlp.*"). E_ARG if none matches. Affects later plans. */
GCKPT_API gckpt_result gckpt_store_freeze(gckpt_store *store, const char *pattern, int frozen);
/* For matching parameters, sets the factors by which a step multiplies gckpt_hyper.lr and
 * weight_decay: 0 or more (else E_ARG). Defaults: lr_scale 1; decay_scale 1 for parameters of two
 * or more axes, 0 for vectors (biases, gains). Applies from the next update. */
GCKPT_API gckpt_result gckpt_store_group(gckpt_store *store, const char *pattern, float lr_scale,
                                         float decay_scale);
/* Clears the optimiser state of matching parameters, for example to change the optimiser: frees it,
 * or only sets it to zero if an executor uses the store, or the store is in a block of memory. */
GCKPT_API gckpt_result gckpt_store_reset(gckpt_store *store, const char *pattern);
/* Adds parameter `name`, which must not exist yet. Its values stay at `values` (a float for each
 * element of `shape`, e.g. in flash or an mmapped file), which must outlive the store. If writable
 * is nonzero, training changes them in place; if 0, the parameter is always frozen. */
GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable);

#include "quant/api.h"
/* Parameters are numbered 0, 1, ... in creation order. */
typedef struct {
    const char *name;
    gckpt_shape shape;
    int64_t elements;
    float *values;               /* may be written (gckpt_store_push); NULL if not stored as F32 */
    float *state[4];             /* optimiser state: AdamW [0] m, [1] v; NULL before it exists */
    size_t state_bytes;          /* bytes of state[0], or 0 if it has the parameter's shape */
    int frozen;                  /* nonzero if no step changes it */
    float lr_scale, decay_scale; /* gckpt_store_group */
    gckpt_storage storage;       /* format of the values */
    const void *quantised;       /* values in the format `storage`; NULL if that is F32 */
    int64_t first, count;        /* range that this process updates (gckpt_store_ranks) */
} gckpt_parameter;
GCKPT_API int gckpt_store_count(const gckpt_store *store); /* number of parameters */
/* Describe parameter `index`; return E_ARG if there is no such index. get creates missing values
 * (or returns E_MEMORY); peek leaves their addresses NULL. */
GCKPT_API gckpt_result gckpt_store_get(gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API gckpt_result gckpt_store_peek(const gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name); /* index or -1 */
/* Synchronise the host's copy of matching parameters with a backend that has its own memory.
 * gckpt_store_pull copies the newest values and state to the host. gckpt_store_push declares that
 * the program wrote the host's copy, so that the next step uses it. gckpt_store_get pulls and
 * pushes. On the CPU, call push only after writing initial values at a pointer of
 * gckpt_store_peek. */
GCKPT_API gckpt_result gckpt_store_pull(gckpt_store *store, const char *pattern);
GCKPT_API gckpt_result gckpt_store_push(gckpt_store *store, const char *pattern);
/* Returns the bytes of all values, created or not, and of the state that exists. */
GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store);
GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store); /* number of updates so far */
/* Returns the FNV-1a 64 hash of all values, created or not, in creation order (manual, 5k); 0 if
 * this process has only a part of them (gckpt_gather_values). */
GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store);

/* Callbacks that read or write the next `size` bytes and return the number of bytes done. Fewer
 * than `size` means the end of the data, or an error. */
typedef size_t (*gckpt_read_fn)(void *user, void *bytes, size_t size);
typedef size_t (*gckpt_write_fn)(void *user, const void *bytes, size_t size);
#include "files/api.h"
#include "notes/api.h"

/* >>api-graph -------------------------------------------------------------------------------------
 * A graph belongs to a store and must be freed before it. Tensors live as long as their graph. */
/* Creates a graph. memory NULL selects the heap. Returns NULL after an error, kept by the store. */
GCKPT_API gckpt_graph *gckpt_graph_new(gckpt_store *store, const gckpt_memory *memory);
GCKPT_API void gckpt_graph_free(gckpt_graph *graph); /* plans and executors remain valid */
/* Adds an input, whose data the caller feeds to each step. Axis 0 is the batch; its size, the
 * micro-batch, is the same for all inputs of a graph. Names of inputs are unique in a graph. */
GCKPT_API gckpt_tensor *gckpt_input(gckpt_graph *graph, const char *name, gckpt_type type,
                                    gckpt_shape shape);
/* Adds constant data without a batch axis. `data` must outlive graph, plans and executors. */
GCKPT_API gckpt_tensor *gckpt_constant(gckpt_graph *graph, const char *name, gckpt_type type,
                                       gckpt_shape shape, const void *data);
/* Adds parameter `name` of the store, which is created if it does not exist. A second call with the
 * same name returns the same parameter, which ties weights. Initial values are constant + normal *
 * N(0,1) + uniform * U(-1,1), a function of the store's seed and the name only. */
typedef struct {
    float normal, uniform, constant;
} gckpt_init;
GCKPT_API gckpt_tensor *gckpt_param(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                    gckpt_init init);
#ifndef GCKPT_NO_IMAGES
/* Adds a parameter that is measured, not trained: running statistics. Ops that measure
 * (gckpt_batchnorm) give a value for each micro-batch; at its end a step moves the parameter by
 * `momentum` (0 to 1) of the way to the mean of these values, weighted by rows (its gradient, when
 * fetched). Only such ops and gckpt_detach can read it. It has no optimiser state and no part in
 * norm, clipping, decay and gradient checks (examples/gradcheck.h). */
GCKPT_API gckpt_tensor *gckpt_running(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                      gckpt_init init, float momentum);
#endif

GCKPT_API gckpt_graph *gckpt_graph_of(const gckpt_tensor *tensor); /* NULL for NULL */
GCKPT_API gckpt_shape gckpt_shape_of(const gckpt_tensor *tensor);  /* n = -1 for NULL */
/* Returns the tensor's id, or -1 for NULL. A graph that is built again has the same ids. */
GCKPT_API int gckpt_id(const gckpt_tensor *tensor);
/* Names the tensor for messages and printed plans (the text is copied); returns the tensor. */
GCKPT_API gckpt_tensor *gckpt_name(gckpt_tensor *tensor, const char *name);
/* One tensor of a graph. Ids follow the order of creation (examples/pictures.h draws graphs). */
typedef struct {
    const char *op;   /* "input", "constant", "param", "reshape", or the name of the op */
    const char *name; /* "" if it has none */
    gckpt_shape shape;
    gckpt_type type;
    int loss;                    /* nonzero if it is a loss, a (sum, count) pair */
    int batch_invariant;         /* nonzero if it depends on no input */
    int inputs;                  /* number of tensors that its op reads */
    int input[GCKPT_MAX_INPUTS]; /* ids of these tensors */
    const void *data;            /* values, if it is a constant */
    const void *attributes;      /* the copy of its op's attributes, or NULL: 4-byte words, as */
    size_t attribute_bytes;      /* printed plans have them (examples/onnx.h), and their bytes */
} gckpt_node;
GCKPT_API int gckpt_graph_size(const gckpt_graph *graph); /* highest id + 1; 0 for NULL */
/* Describes the tensor with this id; returns E_ARG without one. Texts live as long as the graph. */
GCKPT_API gckpt_result gckpt_graph_node(const gckpt_graph *graph, int id, gckpt_node *out);

/* >>api-ops ---------------------------------------------------------------------------------------
 * x has any shape (..,C) and is f32 unless noted. Shapes that do not fit are E_SHAPE, an error of
 * the graph; the op then returns NULL. */
/* table (V,C), index i32 (..) -> (..,C): table[index[i]] for each i. Not in 0..V-1: E_DATA. */
GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index);
/* Matrix product a (..,M,K) x b (..,K,N) -> (..,M,N). Leading axes broadcast: they match from the
 * last, and axes of size 1 or missing are repeated, not copied. A vector a is a row, a vector b a
 * column, without an axis in the result. GCKPT_NO_AXES: leading axes are equal, or b is (K,N). */
GCKPT_API gckpt_tensor *gckpt_matmul(gckpt_tensor *a, gckpt_tensor *b);
/* Matrix product with b transposed: a (..,M,K) x b (..,N,K) -> (..,M,N), like gckpt_matmul. */
GCKPT_API gckpt_tensor *gckpt_matmul_transposed(gckpt_tensor *a, gckpt_tensor *b);
/* Matrix product x (..,I) x w (I,O) + bias (O) -> (..,O). bias may be NULL. */
GCKPT_API gckpt_tensor *gckpt_linear(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias);
/* Matrix product x (..,I) x w' + bias with w as (O,I), as PyTorch stores it -> (..,O). */
GCKPT_API gckpt_tensor *gckpt_linear_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias);
/* (x - mean) * rsqrt(variance + epsilon) * gain + bias over the last axis; gain and bias are (C) or
 * NULL; an epsilon of 0 selects 1e-5. Ba 2016. */
GCKPT_API gckpt_tensor *gckpt_layernorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        float epsilon);
/* x * rsqrt(mean(x^2) + epsilon) * gain over the last axis; gain is (C) or NULL; an epsilon of 0
 * selects 1e-5. Zhang & Sennrich 2019. */
GCKPT_API gckpt_tensor *gckpt_rmsnorm(gckpt_tensor *x, gckpt_tensor *gain, float epsilon);
GCKPT_API gckpt_tensor *gckpt_relu(gckpt_tensor *x); /* max(x, 0) */
/* x/2 (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))), the approximation of gckpt_gelu_erf by tanh */
GCKPT_API gckpt_tensor *gckpt_gelu(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_silu(gckpt_tensor *x);    /* x / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_tanh(gckpt_tensor *x);    /* tanh(x) = 1 - 2 / (exp(2x) + 1) */
GCKPT_API gckpt_tensor *gckpt_sigmoid(gckpt_tensor *x); /* 1 / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_softmax(gckpt_tensor *x); /* exp(x) / sum of exp(x) over last axis */
GCKPT_API gckpt_tensor *gckpt_exp(gckpt_tensor *x);     /* e^x of each element */
GCKPT_API gckpt_tensor *gckpt_log(gckpt_tensor *x);     /* natural log; -inf at 0, NaN for x<0 */
GCKPT_API gckpt_tensor *gckpt_sqrt(gckpt_tensor *x);    /* square root; gradient inf at x = 0 */
/* Returns x; its gradient does not flow back into the ops that compute x. */
GCKPT_API gckpt_tensor *gckpt_detach(gckpt_tensor *x);
#include "activations/api.h"
#include "attention/api.h"
#include "images/api.h"
#include "recurrent/api.h"
#include "cache/api.h"
/* Elementwise a op b. Broadcasts: matches axes from the last, repeats axes of size 1 or missing. */
GCKPT_API gckpt_tensor *gckpt_add(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_sub(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_mul(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_div(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor); /* factor * x, elementwise */
/* Zeroes each element with probability p and scales the others by 1/(1-p) (Srivastava 2014);
 * returns x in INFERENCE plans. The mask is a function of the store's seed, the step, the tensor's
 * id and the element's index in the whole batch. */
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p);
/* Returns the same elements in another shape, at no cost. One size may be -1 and is computed. */
GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape);
/* Takes elements begin..end-1 along an axis. Negative axis, begin or end count from the end. */
GCKPT_API gckpt_tensor *gckpt_slice(gckpt_tensor *x, int axis, int64_t begin, int64_t end);
#include "axes/api.h"

/* >>api-losses ------------------------------------------------------------------------------------
 * A loss is a (sum, count) pair; only a gckpt_term can use it (manual, 3). */
/* weights (f32; NULL means all 1) have the first axes, one or more, of the rows ((..) of (..,V),
 * for cross-entropies) or of the elements, and each scales the losses at its index. They scale the
 * sum, not the count (valid targets, rows or elements). A weight of 0 removes its losses, even NaN
 * and infinities, and passes no gradient. For weights by class, gckpt_embed a (V,1) table by the
 * targets (none negative) and reshape. GCKPT_NO_LOSSES: weights must be NULL and smoothing 0.
 *
 * logits (..,V), targets i32 (..): sum of -log softmax[target]; count = targets >= 0, as rows with
 * a negative target are ignored. With smoothing, 0 to 1, the target distribution is 1 - smoothing
 * for the target plus smoothing / V for every class (Szegedy 2015). */
GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                            gckpt_tensor *weights, float smoothing);
#include "linear_loss/api.h"
/* Sum of (prediction - target)^2 over elements; count = elements. */
GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target,
                                                 gckpt_tensor *weights);
/* Makes a loss of any tensor: the sum of its elements, count = elements, e.g. for a regulariser:
 * gckpt_sum_loss(gckpt_mul(w, w)). */
GCKPT_API gckpt_tensor *gckpt_sum_loss(gckpt_tensor *x);
#ifndef GCKPT_NO_LOSSES
/* Cross-entropy with soft targets: logits and targets (f32) (..,V): sum over rows of -sum_j
 * target_j log softmax_j; count = rows. Targets may have any sum; at 0 a logit may be -inf. */
GCKPT_API gckpt_tensor *gckpt_soft_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                 gckpt_tensor *weights);
/* Elementwise with targets t (f32) in [0,1]: sum of -(t log s + (1 - t) log(1 - s)) with s =
 * sigmoid(x), as max(x, 0) - x t + log(1 + exp(-|x|)), without overflow; count = elements. */
GCKPT_API gckpt_tensor *gckpt_binary_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                   gckpt_tensor *weights);
/* Sum over elements of d^2 / 2 if |d| < delta, else delta (|d| - delta / 2), with d = prediction -
 * target and delta > 0 (Huber 1964); count = elements. */
GCKPT_API gckpt_tensor *gckpt_huber(gckpt_tensor *prediction, gckpt_tensor *target,
                                    gckpt_tensor *weights, float delta);
#endif /* GCKPT_NO_LOSSES */
typedef struct {
    gckpt_tensor *loss;
    float weight;
    int regulariser; /* nonzero: a function of parameters only, added once a step, not divided */
} gckpt_term;

/* >>api-segments ----------------------------------------------------------------------------------
 * GCKPT_SEGMENTS plans recompute the inner values of a segment in the backward. Segments may nest.
 * Chen 2016. */
/* Builds block(x, user) as one segment and returns its result; if x is NULL, only returns NULL. */
typedef gckpt_tensor *(*gckpt_block_fn)(gckpt_tensor *x, void *user);
GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block_fn block, gckpt_tensor *x, void *user);
GCKPT_API void gckpt_segment_begin(gckpt_graph *graph); /* begins a segment */
GCKPT_API void gckpt_segment_end(gckpt_graph *graph);   /* ends the innermost segment */
/* Set a policy for x, which every plan obeys; both return x. */
GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x);      /* computed once, then kept in memory */
#ifndef GCKPT_NO_SCHEDULES
GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x); /* recomputed for the backward */
#endif

/* >>api-user-ops ----------------------------------------------------------------------------------
 * A user's op has a gckpt_op as the built-in ops have; docs/architecture.md writes one. Kernels get
 * the shapes of the present micro-batch. */
typedef struct gckpt_call gckpt_call;
typedef struct {
    const float *data;    /* values; NULL in shape() and for a backward that does not need them */
    const int32_t *index; /* values of an i32 tensor */
    float *grad;          /* backward: where to write this input's gradient; NULL if not needed */
    int accumulate;       /* if nonzero, add to grad (or start sums from it); if 0, overwrite it */
    float *compensation;  /* GCKPT_SUMS: Kahan compensation of grad's sums; NULL for plain sums */
    gckpt_shape shape;    /* shape of the input */
    const uint16_t *bf16; /* bf16 plans: the values, where data is NULL (GCKPT_TAKES_BF16) */
    uint16_t *grad_bf16;  /* bf16 plans: where to write the gradient; grad is then NULL */
    const uint8_t *bytes; /* values of a u8 tensor (GCKPT_IS_U8) */
} gckpt_arg;
struct gckpt_call {
    int inputs; /* number of inputs */
    gckpt_arg in[GCKPT_MAX_INPUTS];
    gckpt_shape shape;      /* shape of the output */
    float *out;             /* where a forward writes the output, or NULL; backward: the output */
    const float *grad_out;  /* backward: the gradient of the output; else, and for losses, NULL */
    void *saved;            /* where a forward saves data, or NULL; backward: that data */
    void *workspace;        /* scratch for this instruction only */
    const void *attributes; /* the copy of the attributes that gckpt_apply was given */
    /* set by shape(): */
    size_t saved_bytes, workspace_forward, workspace_backward;
    int mixes_rows;             /* nonzero if it moves the batch axis or combines rows, so that
                                 * another split of the batch gives other bits */
    int64_t elements_per_count; /* losses without i32 inputs: elements per count; 0 means 1 */
    /* set for kernels: */
    int64_t first_row;         /* first row of this micro-batch in the step's batch */
    int64_t rows;              /* rows in this micro-batch; 1 (first_row 0) if batch-invariant */
    int64_t position;          /* gckpt_position */
    uint64_t seed, step;       /* seed and step of the store: keys of random numbers */
    int id;                    /* id of the tensor */
    int threads;               /* most threads of this call, for gckpt_parallel */
    int plain;                 /* nonzero for plain kernels' workspace (desc.kernels.plain) */
    int training;              /* 0 in INFERENCE plans, else 1 */
    gckpt_precision precision; /* precision to compute in; also set for shape() when planning */
    unsigned rounded;          /* values that are rounded: GCKPT_IN(i), GCKPT_OUT for grad_out */
    uint16_t *out_bf16;        /* GCKPT_TAKES_BF16: where to write the output; out is NULL */
    const uint16_t *grad_out_bf16; /* GCKPT_TAKES_BF16: output's gradient; grad_out is NULL */
    double *loss_sum;              /* losses, forward: add the sum here; NULL in a recompute */
    int64_t *loss_count;           /* losses, forward: add the count here */
    float loss_scale;              /* losses, backward: the gradient of the sum */
    const void *compressed;        /* private: the parameter that is read as it is stored */
    const void *runner;            /* private: how threads are started */
    const void *kernels;           /* private: the kernels of an instruction set */
    void *backend;                 /* the backend's context (gckpt_backend); NULL on the CPU */
    void *graph;                   /* private: where gckpt_fail reports */
};
/* Flags in needs[i]: the gradient of input i reads input i, the output, or `saved`. */
#define GCKPT_IN(i) (1u << (i))
#define GCKPT_OUT   (1u << 8)
#define GCKPT_SAVED (1u << 9)
/* needs[i]: the gradient of input i is a sum over rows (bias, gain, broadcasting). If
 * `compensation` (as many floats as grad, +0 at first) is not NULL, set grad to +0 unless
 * `accumulate`, then add each x by gckpt_sum_add(&grad[k], &compensation[k], x). */
#define GCKPT_SUMS (1u << 10)
/* needs[i]: input i is a gckpt_running, and its gradient is the statistic measured in this
 * micro-batch, times rows. If call->training is 0, use the input. Mixes rows in training. */
#define GCKPT_UPDATES_RUNNING (1u << 11)
#define GCKPT_IS_U8           (1u << 13) /* needs[i]: input i is u8 and gets no gradient */
/* flags: */
#define GCKPT_INPLACE(i) (1u << (i)) /* flag: out may be the memory of input i (elementwise) */
/* If shapes agree, the gradient of input i is grad_out; if grad == grad_out, backward skips it. */
#define GCKPT_PASSES_GRAD(i) (1u << (8 + (i)))
#define GCKPT_INPLACE_GRAD   (1u << 16) /* flag: in[0].grad may be grad_out (elementwise) */
/* Flag: the op is a (sum, count) loss; shape() leaves shape.n = 0. In a plan with other losses its
 * count must be the elements of input 0 / elements_per_count, or, if it has i32 inputs, the number
 * of elements >= 0 of the last i32 input. */
#define GCKPT_LOSS             (1u << 17)
#define GCKPT_COUNT_FROM_FEEDS (1u << 23) /* flag: this count is known before a step */
#define GCKPT_SIDE_EFFECT      (1u << 18) /* flag: forward runs exactly once a micro-batch */
#define GCKPT_INDEX(i)   (1u << (24 + (i))) /* flag: input i is i32 (not f32 or u8) */
/* The rows (indices of axis 1 of (B,H,..)) that output row y reads in each of the first `inputs`
 * inputs: y * stride - padding to y * stride - padding + size - 1. */
typedef struct {
    int inputs;
    int32_t stride, padding, size;
    float fill; /* value of rows outside the input */
} gckpt_receptive_field;
typedef struct {
    const char *name;
    /* Sets shape, saved_bytes and workspace from in[].shape; or returns gckpt_fail(..). */
    gckpt_result (*shape)(gckpt_call *call);
    void (*forward)(const gckpt_call *call);   /* computes out from in[] */
    void (*backward)(const gckpt_call *call);  /* NULL if the op has no gradients */
    uint64_t (*flops)(const gckpt_call *call); /* of the forward; NULL selects out's elements */
    /* Returns the exclusive upper bound of the values of i32 input i, which must not be negative
     * (except the last i32 input of a loss: negative targets are ignored). Values that are fed are
     * checked by each step before anything runs (E_DATA); those that an op computes when the node
     * is added (E_SHAPE). NULL, or a result of 0, checks nothing. */
    int64_t (*classes)(const gckpt_call *call, int i);
    unsigned needs[GCKPT_MAX_INPUTS]; /* GCKPT_IN, ..: read by the gradient of in[i] */
    unsigned flags;                   /* GCKPT_INPLACE, .. */
    /* Returns the flops of the backward. in[i].grad is NULL if it is not computed, and must not be
     * dereferenced. NULL selects the forward's flops, twice if it computes several gradients. */
    uint64_t (*flops_backward)(const gckpt_call *call);
    /* Sets *rows, changes the copied attributes so that shape() and forward take rows of `fill` as
     * rows of the input, and returns 1. A plan may then run the forward in row tiles (manual, 7),
     * with the same bits and saved NULL. If 0 or NULL, no plan does. */
    int (*receptive_field)(const gckpt_call *call, void *attributes, gckpt_receptive_field *rows);
} gckpt_op;
/* Adds a node for `op`, whose descriptor must outlive graph, plans and executors. Inputs must be of
 * one graph; if one is NULL, returns NULL. Attributes are copied; printed plans contain them as
 * 4-byte words (int, int32_t, uint32_t, float) and name the descriptor's variable op->name. */
GCKPT_API gckpt_tensor *gckpt_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                    const void *attributes, size_t attribute_bytes);
/* Adds x to *sum with Kahan compensation (a plain sum if compensation is NULL). Kahan 1965. */
GCKPT_API void gckpt_sum_add(float *sum, float *compensation, float x);
/* ---- Building blocks of the built-in kernels: the same bits on every executor. ----
 *
 * Calls item(context, i, worker) once for each i in 0..items-1, in any order, on up to
 * call->threads threads, and returns when all are done. No item may write memory that another one
 * reads or writes. `worker`, 0..call->threads-1, differs between items that run at the same time:
 * scratch may have a part for each. cost: about the multiply-adds of an item; if all together cost
 * little, no thread is woken. Within an item, pass a copy of call with threads 1. */
GCKPT_API void gckpt_parallel(const gckpt_call *call, int64_t items, int64_t cost,
                              void (*item)(void *context, int64_t i, int64_t worker),
                              void *context);
/* Returns a * b + c, rounded once (manual, 5a); for many, use the functions below. */
GCKPT_API float gckpt_fma(float a, float b, float c);
/* Returns x[0] y[0] + x[1] y[1] + ..., in 32 lanes (manual, 5d). */
GCKPT_API float gckpt_dot(const gckpt_call *call, const float *x, const float *y, int64_t n);
/* C (m,n) = A (m,k) B (k,n): each element is one chain of fma over k ascending (manual, 5c).
 * Strides count elements and may have any value: A(i,p) = a[i * a_row + p * a_col]. Fast if c_row
 * or c_col is 1 and C overlaps neither A nor B; faster still if A and B have a stride of 1. */
typedef struct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row, b_col;
    float *c;
    int64_t c_row, c_col;
    int accumulate;  /* if nonzero, chains start from C's values; if 0, from +0 */
    void *workspace; /* gckpt_product_workspace bytes; may be part of call->workspace */
} gckpt_product_desc;
GCKPT_API void gckpt_product(const gckpt_call *call, const gckpt_product_desc *desc);
/* For shape(): returns the bytes of workspace for products of at most m, n and k; may be 0. */
GCKPT_API size_t gckpt_product_workspace(const gckpt_call *call, int64_t m, int64_t n, int64_t k);
/* For shape(): records an error and returns `result`. Format: %s text, %i int, %I int64_t, %u
 * uint64_t, %z size_t, %g double, %S const gckpt_shape *, %T const gckpt_tensor *. */
GCKPT_API gckpt_result gckpt_fail(gckpt_call *call, gckpt_result result, const char *format, ...);

/* >>api-plans -------------------------------------------------------------------------------------
 * A plan is made for one request: graph, loss terms, desc, and which parameters are frozen and how
 * they are stored. Running it with anything else is refused. */
typedef enum {
    GCKPT_AUTO,        /* as STORE_ALL; if the budget is too small for that, as OPTIMAL */
    GCKPT_STORE_ALL,   /* recomputes nothing */
    GCKPT_MEMORY_POOR, /* recomputes everything for each backward */
    GCKPT_SEGMENTS,    /* recomputes the inner values of the user's segments */
    GCKPT_SQRT,        /* uniform segments of sqrt(n) of the n ops, or of schedule.segment_size */
    GCKPT_OPTIMAL,     /* the least cost within the budget, then the fewest bytes */
    GCKPT_SCHEDULE,    /* the order in desc.schedule */
    GCKPT_INFERENCE    /* forward only: losses and fetched tensors */
} gckpt_mode;
typedef enum { GCKPT_ADAMW, GCKPT_SGD, GCKPT_MOMENTUM, GCKPT_CUSTOM_OPTIMISER } gckpt_optimiser;
typedef enum {
    GCKPT_FORWARD,
    GCKPT_BACKWARD,
    GCKPT_UPDATE,
    GCKPT_OFFLOAD,     /* copies the result of the preceding forward to slower memory */
    GCKPT_RELOAD,      /* copies an offloaded result back, perhaps to another offset */
    GCKPT_REDUCE,      /* adds up the gradient sums of the virtual ranks, on all ranks */
    GCKPT_OFFLOAD_DONE, /* ends the use of an offload's bytes; what overwrites them waits for it */
    GCKPT_BEGIN,        /* begins a micro-batch: feeds its rows; a backend may then run its body */
    GCKPT_NEXT,         /* ends a micro-batch: the body runs again while the step has rows */
    GCKPT_BARRIER       /* before the first update: on all ranks all gradients are complete */
} gckpt_kind;
/* The names of these kinds, in their order: const char *names[] = { GCKPT_KIND_NAMES }; */
#define GCKPT_KIND_NAMES                                                                           \
    "forward", "backward", "update", "offload", "reload", "reduce", "offload_done", "begin",       \
        "next", "barrier"
typedef struct {
    gckpt_kind kind;
    int id; /* id of the tensor; UPDATE: of the parameter; BEGIN, NEXT, BARRIER: -1 */
} gckpt_instruction;
/* Cost of one op over one micro-batch, in any unit that is the same for all ops of the graph. */
typedef struct {
    uint64_t forward, backward;
} gckpt_cost;
#include "dist/api.h"
#include "fetch/api.h"
#include "offload/api.h"

/* All zero, or a NULL desc, selects the defaults. */
typedef struct {
    gckpt_mode mode; /* default GCKPT_AUTO */
    size_t budget;   /* most bytes of gckpt_plan_bytes; 0 (default) sets no limit */
    int64_t batch;   /* most rows of a step, at least the graph's; 0 selects the graph's */
    int threads;     /* most threads of a step; 0 selects 1 */
    gckpt_optimiser optimiser; /* default GCKPT_ADAMW */
    int custom_state;          /* GCKPT_CUSTOM_OPTIMISER: floats of state per element, 0..4 */
    /* GCKPT_CUSTOM_OPTIMISER with another state, at state[0]: returns its bytes for a parameter of
     * this size (gckpt_update), always the same. Needs whole updates: GCKPT_SHARD_NONE. */
    size_t (*state_bytes)(void *user, const char *name, int64_t rows, int64_t columns);
    /* GCKPT_CUSTOM_OPTIMISER: returns the bytes of an update's gckpt_update.call->workspace. */
    size_t (*workspace_bytes)(void *user, const char *name, int64_t rows, int64_t columns);
    void *user; /* passed to state_bytes and workspace_bytes */
    /* If nonzero, updates each parameter as soon as its gradient is complete, which saves gradient
     * bytes but excludes clipping. If 0 (default), updates run at the end of a step. */
    int update_in_backward;
    /* Backend that will run the plan; NULL selects the CPU. The table must live until the plan is
     * made. kernels.plain is then ignored, and the plan is neither saved nor printed as C. */
    const gckpt_backend *backend;
    /* For planning (freed afterwards) and for the plan. If it is a block (memory.memory), the plan
     * lies at its beginning, in gckpt_plan_kind_bytes(plan, GCKPT_BYTES_TABLES) bytes after at most
     * 15 for alignment; the rest is free. */
    gckpt_memory memory;
    gckpt_rank_options ranks;
    gckpt_offload_options offload;
    gckpt_bf16_options bf16;
    gckpt_fetch_options fetch;
    struct {
        /* GCKPT_SCHEDULE: forwards (any number of each) and backwards, in any order in which a
         * backward follows the backwards of its result's readers and those that precede it in the
         * sums of gradients (manual, 5f), e.g. reverse order. Other instructions are inserted. */
        const gckpt_instruction *instructions;
        int count; /* length of instructions */
        /* GCKPT_SQRT: the ops in a segment; -n puts n of the user's outermost segments into one
         * segment; 0 (default) selects sqrt(n) of the n ops. */
        int segment_size;
        /* If nonzero, runs the ops of the graph as built. If 0 (default), AUTO, OPTIMAL and
         * frontiers choose lowerings of ops with the same bits (manual, 9). */
        int as_built;
    } schedule;
    struct {
        /* Costs of the graph as built, by id (examples/tune.h). NULL selects a model, the same on
         * every machine: the larger of flops and 10 x bytes moved, + 16384 an instruction. */
        const gckpt_cost *by_id;
        int count; /* length of by_id: highest id + 1 */
    } costs;
    struct {
        /* If nonzero, the plan is for plain kernels and their workspace, as GCKPT_NO_FAST builds
         * need it (they always set it). Slow in other builds. Default 0. */
        int plain;
        /* If nonzero, a FORWARD of a parameter copies its value into the arena, where ops read it,
         * as for a storage that an op does not read (manual, 9). The copy is planned like any
         * value: it may be dropped and copied again; gckpt_keep and gckpt_recompute apply; a
         * schedule may place it, else it precedes its first use. Editions without a part that
         * needs such copies ignore it. Default 0. */
        int stage_parameters;
        size_t alignment; /* alignment of every offset; a power of two; 0 selects 64 */
    } kernels;
} gckpt_plan_desc;
#ifndef GCKPT_SMALL
/* Makes a plan that minimises the sum of `count` loss terms; the first term's count divides
 * gradients (manual, 3). INFERENCE plans may have none. The graph may be freed afterwards. Returns
 * NULL after an error, which the graph then has. */
GCKPT_API gckpt_plan *gckpt_plan_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc);
#endif
GCKPT_API void gckpt_plan_free(const gckpt_plan *plan); /* executors remain valid */
/* Returns the bytes of all values that stay between steps + the step arena (manual, 6). */
GCKPT_API size_t gckpt_plan_bytes(const gckpt_plan *plan);
enum {
    GCKPT_BYTES_PARAMETERS,
    GCKPT_BYTES_STATE,
    GCKPT_BYTES_GRADIENTS,
    GCKPT_BYTES_ACTIVATIONS,
    GCKPT_BYTES_WORKSPACE,
    GCKPT_BYTES_TABLES,
    GCKPT_BYTES_CACHES,
    GCKPT_BYTES_REDUCTION,
    GCKPT_BYTES_GATHERED,   /* gckpt_shard explains these two */
    GCKPT_BYTES_HOST_STATE, /* not in gckpt_plan_bytes: gckpt_offload_options.state */
    GCKPT_BYTES_KINDS
};
/* Returns the bytes of one kind. Kinds in the arena (gradients of parameters, activations and their
 * gradients, workspace, ..) are counted where the live sum is greatest: they add up to the peak. */
GCKPT_API size_t gckpt_plan_kind_bytes(const gckpt_plan *plan, int kind);
/* What a plan needs and costs: a result of gckpt_plan_describe. */
typedef struct {
    size_t arena;     /* bytes of the step arena */
    size_t peak;      /* greatest sum of live arena bytes */
    size_t offloaded; /* bytes of slower memory used */
    double recompute; /* cost of recomputes / forwards */
    /* cost is the cost (gckpt_cost) of a micro-batch: forwards, recomputes, backwards, and copies
     * to slower memory and back minus their hidden cost. hidden_cost is the part of the copies'
     * cost that overlaps computation. overhead is cost / (least cost without recomputes, in any
     * lowering that may be chosen (manual, 7)) - 1. */
    uint64_t cost, hidden_cost;
    double overhead;
    /* Lower bounds for all schedules: none within the budget has a cost below proven_cost, and none
     * has a gckpt_plan_bytes below proven_bytes. The budget is desc.budget for AUTO and OPTIMAL,
     * the argument of gckpt_frontier_plan, and otherwise the plan's own bytes. gap is (cost -
     * proven_cost) / cost of a store-all plan; 0 means optimal. The true minimum can be higher than
     * the bounds, above all with few bytes, where forwards must run a third time. */
    uint64_t proven_cost;
    size_t proven_bytes;
    double gap;
    /* The cost of a step of desc.batch rows: all micro-batches (short ones in proportion) plus once
     * the batch-invariant ops; UINT64_MAX if it is that or more. In seconds: manual, 7. */
    uint64_t step_cost;
    int64_t rows;           /* rows of a micro-batch */
    int64_t batch;          /* most rows of a step */
    int update_in_backward; /* 1 if it updates in the backward */
    gckpt_mode mode;        /* the mode that AUTO chose */
    const char *mode_name;  /* e.g. "store-all" */
    int instructions;       /* number of instructions */
    int buffers;            /* number of buffers */
    /* A hash of the plan's graph (ops, attributes, shapes, types, edges, names of inputs, constants
     * and parameters). It is the same on every machine and for every plan of the graph. */
    uint64_t hash;
} gckpt_plan_info;
/* Returns the figures of a plan; all are 0 if it is NULL. Takes time in proportion to the number of
 * instructions. */
GCKPT_API gckpt_plan_info gckpt_plan_describe(const gckpt_plan *plan);
/* Describes instruction i, from 0. Returns E_ARG, as the calls below, if i is out of range.
 * (examples/print.h prints plans and frontiers, examples/pictures.h draws them.) */
GCKPT_API gckpt_result gckpt_plan_get(const gckpt_plan *plan, int i, gckpt_instruction *out);
/* Cost and bytes of instruction i. */
typedef struct {
    uint64_t cost; /* gckpt_cost; 0 for an update or a reduce */
    size_t live;   /* bytes of the arena that are in use while it runs */
    int recompute; /* nonzero for a forward that has run before in the micro-batch */
    size_t moved;  /* bytes that it copies to slower memory or back */
    int once;      /* nonzero if it runs once a step, not in each micro-batch */
} gckpt_usage;
GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out);
/* Returns 1 if every split of the batch gives the same bits (not for GCKPT_BF16_FAST: manual, 5m),
 * else 0 and in *op the op that mixes rows. */
GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op);
/* Buffers of the step arena, in the order they begin. The sizes of the
 * buffers in use at an instruction add up to gckpt_usage.live; such buffers do not overlap. */
typedef enum {
    GCKPT_BUFFER_VALUE,
    GCKPT_BUFFER_SAVED,              /* saved by a forward for its backward */
    GCKPT_BUFFER_GRADIENT,           /* gradient of an activation */
    GCKPT_BUFFER_PARAMETER_GRADIENT, /* gradient of a parameter or another batch-invariant tensor */
    GCKPT_BUFFER_WORKSPACE,          /* workspace of one instruction */
    GCKPT_BUFFER_REDUCTION           /* partial sum or receive buffer of a REDUCE */
} gckpt_buffer_kind;
typedef struct {
    int start, end;      /* its first and last instruction; at the end, last is their number */
    size_t offset, size; /* bytes */
    int id;              /* tensor; if several share the buffer (in place), the first */
    gckpt_buffer_kind kind;
} gckpt_buffer;
/* Describes buffer i. */
GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out);
/* Returns the tensor's name, or if it has none its op's, or ""; valid as long as the plan. */
GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id);
GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id); /* name of its op as it runs */

/* Creates the plan's parameters in the store as gckpt_param did when the graph was built: in the
 * same order, with the same initial values if the seed is. Existing parameters are not changed. */
GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store);

#include "export/api.h"
#include "tools/api.h"

/* ---- work between kernels ---- */
typedef void (*gckpt_kernel)(const gckpt_call *call);

/* Constants of an update, for the formulas in num/formulas: g is the divided gradient times
 * `scale` (of clipping), d is `decay`; rest1 = 1 - beta1; correct2 = 1 / (1 - beta2^t). */
typedef struct {
    float scale, decay, beta1, rest1, beta2, rest2, eps, rate, correct2;
} gckpt_update_constants;
/* One pass over a parameter (manual, 5g). For each block of GCKPT_UPDATE_BLOCK elements, in order:
 * adds the further accumulators to the first, which keeps the sum (if `update`, it need not);
 * divides the sum; takes its square sum; updates the parameter with it. */
enum { GCKPT_UPDATE_BLOCK = 4096 };
typedef struct {
    int64_t elements;
    float *gradient;    /* the first accumulator */
    const void *base;   /* further accumulators are at base + more[i] bytes */
    const size_t *more; /* host memory */
    int adds;           /* length of more */
    float count;        /* divisor; 0 if the sum is already divided */
    int write_back;     /* if nonzero, `gradient` gets the quotient; if 0, the sum */
    float *squares;     /* receives square sums, by block; may be NULL */
    int update;         /* if 0, nothing is updated and the fields below are unused */
    gckpt_optimiser optimiser;
    float *values, *state[4];
    float momentum;
    gckpt_update_constants rates;
} gckpt_update_pass;

#include "devices/api.h"

/* >>api-run ------------------------------------------------------------------------------------ */
/* Options of one step. A value that is not finite or out of range is refused by its name. */
typedef struct {
    float lr;                /* learning rate, 0 or more; no default: 0 changes only the state */
    float weight_decay;      /* decoupled, 0 or more; multiplied by the parameter's decay_scale */
    float beta1, beta2, eps; /* AdamW; 0 selects 0.9, 0.999, 1e-8; a negative beta means 0 */
    float momentum;          /* MOMENTUM; 0 selects 0.9 */
    float clip;              /* greatest global gradient norm; 0 disables clipping */
} gckpt_hyper;
#ifndef GCKPT_NO_TRAINING
GCKPT_API gckpt_hyper gckpt_hyper_lr(float lr); /* sets lr; all others 0 */
#endif
/* One update by a user's optimiser; called once per parameter and step. */
typedef struct {
    const char *name;
    int64_t elements, first;     /* gckpt_parameter.count, .first */
    int64_t rows, columns;       /* columns: the last axis; rows: all others (vectors: 1) */
    float *values;               /* to be updated */
    const float *gradient;       /* divided by the count, before clipping */
    float *state[4];             /* to be updated; 0 at first */
    const gckpt_call *call;      /* for gckpt_product, gckpt_parallel, gckpt_dot; its workspace */
    float clip_scale;            /* factor for the gradient (clipping) */
    float lr_scale, decay_scale; /* gckpt_store_group */
    uint64_t step;               /* number of this update of the state (none: of the store) */
    const gckpt_hyper *options;    /* options of this step */
} gckpt_update;
/* Passed to a progress callback before each instruction. If it returns 1, the step is cancelled,
 * unless its BARRIER has run: a step changes all parameters or none. */
typedef struct {
    int instruction, instructions; /* index and number */
    int64_t first_row, rows;       /* of the micro-batch */
    gckpt_kind kind;
    const char *name;
} gckpt_progress;

/* Instruction sets with kernels; all give the same bits. */
typedef enum {
    GCKPT_ISA_AUTO,  /* the fastest that the processor has */
    GCKPT_ISA_PLAIN, /* the plain kernels: the definition of the numbers */
    GCKPT_ISA_C,     /* the fast kernels in plain C, of vectors of 4 floats */
    GCKPT_ISA_NEON,  /* the same, which compilers make of NEON on ARM64 */
    GCKPT_ISA_AVX2, /* AVX2 and FMA */
    GCKPT_ISA_AVX512,
    GCKPT_ISA_AMX, /* AVX512, and AMX for products of bf16 plans; AUTO selects it for these only */
    GCKPT_ISA_COUNT
} gckpt_isa;
/* All zero, or a NULL desc, selects the defaults. */
typedef struct {
    gckpt_memory memory; /* memory of the executor; includes the arena if `arena` is NULL */
    /* Step arena of gckpt_plan_info.arena bytes, aligned to the plan's alignment; NULL (default)
     * allocates it. Executors may share it if at most one is within a step at any time. */
    void *arena;
    size_t arena_size; /* bytes of arena */
    unsigned debug;    /* GCKPT_DEBUG_..; default 0 */
    gckpt_isa isa;     /* kernels to use, for tests; E_ARG if they cannot run here; default AUTO */
    /* The backend of the plan, which must outlive the executor; NULL selects the CPU. `arena` is
     * then in its memory, and so are parameters and state until its last executor is freed. */
    const gckpt_backend *backend;
    /* If nonzero, a step whose gradient norm is not finite changes nothing (values, state, step)
     * and returns SKIPPED; the error text names a parameter, and the report is filled in. Costs a
     * pass over the gradients, as clipping does; E_ARG if the plan updates in the backward. */
    int skip_nonfinite;
    gckpt_exec *caches_of; /* executor whose caches to use (gckpt_cache), or NULL */
    /* Copies to slower memory (gckpt_offload_options); NULL (default) uses host memory. */
    size_t (*offload)(void *user, size_t at, const void *from, size_t bytes);
    size_t (*reload)(void *user, size_t at, void *to, size_t bytes);
    int (*wait)(void *user, int later);
    const gckpt_transport *transport; /* required if several processes train together */
    int (*progress)(void *user, const gckpt_progress *);        /* before each instruction */
    void (*custom_optimiser)(void *user, const gckpt_update *); /* GCKPT_CUSTOM_OPTIMISER */
    void *user;                                                 /* passed to the callbacks */
    /* Thread pool of the program, used if the plan's threads > 1. Calls body(context, 0..n-1) in
     * any order and returns when all are done. NULL (default) selects OpenMP if compiled in, else
     * one thread. With OpenMP a whole call (gckpt_step, gckpt_forward, ..) is one parallel region,
     * unless the step is too small to gain; callbacks run in it on the calling thread. */
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context);
    /* If nonzero, gckpt_forward also runs with initial values. If 0 (default), it returns E_ARG and
     * names the parameter, unless each one was loaded, bound (gckpt_store_external,
     * gckpt_store_map), part of a plan that took a step (frozen or not), returned by
     * gckpt_store_get, or pushed (gckpt_store_push). GCKPT_NO_TEXT checks nothing. */
    int allow_initial;
} gckpt_exec_desc;
/* Creates an executor, and in the store all missing values and optimiser state (after an error
 * none). Refuses state of another optimiser or size (gckpt_store_reset clears it). The plan is
 * copied (except a C constant) and may be freed. Returns NULL after an error, which the store then
 * has. */
GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc);
GCKPT_API void gckpt_exec_free(gckpt_exec *exec); /* values and state stay in the store */
/* Return the bytes of a block (gckpt_memory.memory) that suffice. gckpt_store_need: for a store
 * with all that the plan needs, built by its graph or by gckpt_plan_params; with plan NULL, for a
 * store without parameters. Notes, and values used before all parameters exist, take more.
 * gckpt_exec_need: for an executor with this desc, whose memory is ignored. SIZE_MAX means that the
 * bytes exceed all memory, or that isa or backend is not available. */
GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan);
GCKPT_API size_t gckpt_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc);

typedef struct {
    int input;        /* gckpt_id */
    const void *data; /* values of all rows of the step */
} gckpt_feed;
typedef struct {
    double loss; /* total of weight * sum / count (regulariser: weight * sum); 0 if count is 0 */
    double grad_norm; /* norm of the divided gradients, before clipping */
    int64_t count;    /* count of the first loss; if 0, nothing was changed */
    uint64_t step;    /* updates done, this one included */
} gckpt_report;
/* Returns one loss of the last call that reports (even one that was SKIPPED): the sum of term
 * number `term` over all rows and micro-batches, and the number of targets, rows or elements
 * counted, without its weight. Returns E_ARG if there is no such term, no such call yet, one is
 * under way, or the last one failed. */
GCKPT_API gckpt_result gckpt_term_loss(gckpt_exec *exec, int term, double *sum, int64_t *count);
/* Runs an INFERENCE plan over any number of rows; losses are summed over all of them. */
GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report);
#ifndef GCKPT_NO_TRAINING
/* Runs a step of `rows` rows: all micro-batches, division, clipping, update. report may be NULL. */
GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *options, gckpt_report *report);
/* Run a step whose rows arrive in parts (a sensor), with the bits of one gckpt_step over all of
 * them: begin, add for each part, end. Feeds are read during the call only. desc.batch must exceed
 * the graph's rows, and no loss but the first may count targets (regularisers do not). */
GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *options);
GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows);
GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report);
/* Run a step in slices of instructions: call start, then run_some until it no longer returns
 * GCKPT_MORE. Feeds must stay in place. Starting another step abandons this one, but not the
 * updates that it has done. */
GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *options);
GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report);
GCKPT_API gckpt_instruction
gckpt_next_instruction(const gckpt_exec *exec); /* at the end of the step a FORWARD of id -1 */
/* Computes gradients as gckpt_step does, without an update: parameters, state and step stay, to the
 * bit; dropout uses the masks of the next step. Read them by gckpt_fetch and gckpt_collect. Returns
 * E_ARG if the plan updates in the backward. */
GCKPT_API gckpt_result gckpt_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, gckpt_report *report);
/* Returns the learning rate at `step` (from 0): linear warm-up over `warmup` steps to `lr`, then
 * half a cosine to `min_lr` at `steps`. Loshchilov & Hutter 2017. */
GCKPT_API float gckpt_lr_cosine(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                float min_lr);
#endif                                                      /* GCKPT_NO_TRAINING */
GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec); /* the set that an executor uses */
GCKPT_API int gckpt_isa_available(gckpt_isa isa); /* nonzero if build and processor have it */
/* Returns the number of threads that this build can use: OpenMP's, or 1. */
GCKPT_API int gckpt_threads(void);

#ifdef __cplusplus
}
#endif
#ifdef GCKPT_SMALL
#pragma pop_macro("int64_t")
#endif
#endif /* GRADCKPT_H */
