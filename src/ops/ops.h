#pragma once
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"
#include "ops/products.h"
#include "activations/activations.h"

GCKPTI_COLD_END /* begun in store/names.c */

/* =================================================================================================
 * >>ops: each op's shape rule, forward, backward, descriptor and builder
 *
 * An op is one block of source: a comment with its formula; the shape rule, a pure function of
 * in[].shape; forward; backward; the descriptor (gckpt_op): what each input's gradient reads
 * (needs), which buffers may share bytes (flags); the public builder: it only calls gckpt_apply,
 * which calls the shape rule.
 *
 * A product g * derivative is rounded and stored if it is the first contribution to a gradient
 * element, else added by one fma (manual, 5a and 5f).
 *
 * GCKPTI_OPS lists all ops. The kernels of this folder are plain C and define the numbers (manual,
 * 5); those of cpu return the same bits faster. Data of both are declared here, as rows of losses.
 * ============================================================================================== */

/* ---- the list of ops; flags of their descriptors ---- */
/* clang-format off */
/* Calls X(op, part) for each op; a switch can leave out a part other than CORE. */
#define GCKPTI_OPS(X)                                                                              \
    X(relu, CORE) X(gelu, CORE) X(gelu_erf, ACTIVATIONS) X(silu, CORE) X(tanh, CORE)               \
    X(sigmoid, CORE) X(softmax, CORE) X(log_softmax, ACTIVATIONS) X(exp, CORE) X(log, CORE)        \
    X(sqrt, CORE) X(abs, ACTIVATIONS) X(reciprocal, ACTIVATIONS) X(pow, ACTIVATIONS)               \
    X(clamp, ACTIVATIONS) X(leaky_relu, ACTIVATIONS) X(softplus, ACTIVATIONS) X(elu, ACTIVATIONS)  \
    X(selu, ACTIVATIONS) X(mish, ACTIVATIONS) X(hardswish, ACTIVATIONS) X(prelu, ACTIVATIONS)      \
    X(sin, ACTIVATIONS) X(cos, ACTIVATIONS) X(detach, CORE) X(scale, CORE) X(dropout, CORE)        \
    X(from_u8, ACTIVATIONS) X(add, CORE) X(sub, CORE) X(mul, CORE) X(div, CORE)                    \
    X(maximum, ACTIVATIONS) X(minimum, ACTIVATIONS) X(where, ACTIVATIONS) X(permute, AXES)         \
    X(slice, CORE) X(concat, AXES) X(pad, AXES) X(sum, AXES) X(mean, AXES) X(max, AXES)            \
    X(argmax, AXES) X(cache, CACHES) X(embed, CORE) X(matmul, CORE) X(top_k, AXES)                 \
    X(top_k_indices, AXES) X(gru_reset_before, RECURRENT) X(broadcast_matmul, AXES)                \
    X(linear, CORE) X(layernorm, CORE) X(rmsnorm, CORE) X(attention, ATTENTION)                    \
    X(masked_attention, ATTENTION) X(rotary, ATTENTION) X(cross_entropy, CORE)                     \
    X(linear_cross_entropy, LINEAR_LOSS) X(cross_entropy_with, LOSSES)                             \
    X(soft_cross_entropy, LOSSES) X(mean_squared_error, CORE) X(mean_squared_error_with, LOSSES)   \
    X(huber, LOSSES) X(binary_cross_entropy, LOSSES) X(sum_loss, CORE) X(gather, AXES)             \
    X(gru, RECURRENT) X(lstm, RECURRENT) X(delta_rule, RECURRENT) X(max_pool, IMAGES)              \
    X(average_pool, IMAGES) X(upsample, IMAGES) X(groupnorm, IMAGES) X(batchnorm, IMAGES)          \
    X(conv2d, IMAGES) X(delta_state, RECURRENT)
/* clang-format on */

#define GCKPTI_IF_TRAINING(x) (GCKPTI_WITH_TRAINING ? (x) : NULL)

/* Returns whether the plan trains: dropout masks are random, statistics are the batch's. */
static inline int gckpti_is_training(const gckpt_call *call)
{
    return GCKPTI_WITH_TRAINING && call->training;
}

/* GCKPTI_BUILTIN_<op>, for each built-in op, is the flag GCKPTI_BUILTIN_OP. */
#define GCKPTI_BUILTIN(name, part) GCKPTI_BUILTIN_##name = 1 << 20,
enum { GCKPTI_OPS(GCKPTI_BUILTIN) GCKPTI_BUILTIN_OP = 1 << 20 };
#undef GCKPTI_BUILTIN

#ifdef GCKPTI_SEPARATE_TU
#define GCKPTI_DECLARE(name, part)                                                                 \
    GCKPTI_FN void gckpti_##name##_forward(const gckpt_call *call);                                \
    GCKPTI_FN void gckpti_##name##_backward(const gckpt_call *call);                               \
    extern GCKPTI_DATA const gckpt_op gckpti_op_##name;
GCKPTI_OPS(GCKPTI_DECLARE)
#undef GCKPTI_DECLARE
#endif

/* Flag of a loss with a lowering that computes the loss in the backward (linear_loss/ops.c). */
enum { GCKPTI_BACKWARD_LOSS = 1 << 21 };

/* Like GCKPT_TAKES_BF16 for all inputs, but only in CPU kernels; other backends get f32 copies.
 * This flag and the next two use bits of GCKPT_INDEX(4..6): these ops have fewer inputs. */
enum { GCKPTI_TAKES_ALL_BF16 = 1 << 30 };

/* Flags of ops that work element by element (if no input is repeated) or row by row: in mixed
 * plans the CPU runs them on strips, with f32 copies on the stack. They use no workspace. */
enum { GCKPTI_IS_ELEMENTWISE = 1 << 29, GCKPTI_IS_ROWWISE = 1 << 28 };

/* Returns the cost of a product's gradients: `forward` for each required gradient, two at most. */
GCKPTI_FN uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward);

GCKPTI_INLINE void gckpti_put_product(float *d, float a, float b, int accumulate)
{
    *d = accumulate ? gckpti_fma(a, b, *d) : a * b;
}

/* ---- ops/loops.h ---- */
/* Reductions of a row, in 32 lanes as in num/sums.h. */
enum {
    GCKPTI_ROW_SUM,
    GCKPTI_ROW_MAX,
    GCKPTI_ROW_DOT,
    GCKPTI_ROW_PRODUCTS,
    GCKPTI_ROW_SQUARES,
    GCKPTI_ROW_EXP,
    GCKPTI_ROW_NORM
};

typedef struct {
    int kind; /* the terms. SUM: x - first; DOT: x y by fma; PRODUCTS: x y, rounded;
               * MAX: maximum of x; EXP: exp(x - mean); with d = (x - first) - mean,
               * SQUARES: d^2; NORM: d rstd y, or d rstd (y z) if z is not NULL */
    const float *x, *y, *z;
    float *out; /* EXP: receives exp(x - mean), or NULL */
    float first, mean, rstd;
} gckpti_row_args;

/* A loop that stores, or adds to, n elements of `to`; o: the attributes; in: x, y and g. Forward: x
 * and y are the inputs. Backward: g is the output's gradient, x the result or input at which the
 * derivative is taken; of a binary op, x is the input itself and y the other input. where: x is the
 * condition; forward, y is a and g is b. */
typedef struct {
    const float *in[3], *o;
    float *to, *comp;    /* comp: compensation of the sums in `to`, of plain loops, or NULL */
    int64_t n, steps[4]; /* steps in x, y, g and, of sums, `to`: 1, or 0 to repeat an element */
    int accumulate;
    int shift, second; /* where: 1 for a condition in f32, 1 for the gradient of b */
} gckpti_loop;
typedef void (*gckpti_loop_fn)(const gckpti_loop *loop);

/* Returns the loop of an op of one input. reads: what its gradient reads, GCKPT_IN(0), GCKPT_OUT or
 * 0 for only the output's gradient, which then is x. */
static inline gckpti_loop gckpti_loop_of(const gckpt_call *call, int backward, unsigned reads)
{
    const gckpt_arg *x = &call->in[0];
    const float *from = !backward || reads & GCKPT_IN(0) ? x->data
                        : reads                          ? call->out
                                                         : call->grad_out;
    gckpti_loop loop;
    memset(&loop, 0, sizeof loop);
    loop.in[0] = loop.in[1] = from, loop.in[2] = backward ? call->grad_out : from;
    loop.o = (const float *)call->attributes;
    loop.to = backward ? x->grad : call->out, loop.n = gckpti_elements(&call->shape);
    loop.accumulate = backward && x->accumulate;
    loop.steps[0] = loop.steps[1] = loop.steps[2] = 1;
    return loop;
}

/* clang-format off */
/* Elementwise ops of one input: name, cost, what the gradient reads, y as a function of x, the rule
 * of dx, its argument df as a function of x (of the result, called x there, if the gradient reads
 * GCKPT_OUT). Rules: product: g df; quotient: g / df; masked: g if df > 0, else +0. */
#define GCKPTI_UNARY_OPS(X)                                                                        \
    X(relu, NULL, GCKPT_OUT, V(vmax)(V(zero)(), x), masked, x) /* NaN and -0 stay */               \
    X(gelu, gckpti_flops_20, GCKPT_IN(0), V(gelu)(x), product, V(gelu_deriv)(x))                   \
    X(silu, gckpti_flops_20, GCKPT_IN(0), V(silu)(x), product, V(silu_deriv)(x))                   \
    X(tanh, gckpti_flops_20, GCKPT_OUT, V(tanh)(x), product, V(tanh_deriv)(x))                     \
    X(sigmoid, gckpti_flops_20, GCKPT_OUT, V(sigmoid)(x), product, V(sigmoid_deriv)(x))            \
    X(exp, gckpti_flops_20, GCKPT_OUT, V(exp)(x), product, x)                                      \
    X(log, gckpti_flops_20, GCKPT_IN(0), V(log)(x), quotient, x)                                   \
    X(sqrt, gckpti_flops_8, GCKPT_OUT, V(sqrt)(x), quotient, x + x) /* dx is inf at 0 */           \
    GCKPTI_MORE_UNARY_OPS(X)
/* Ops with attributes o, and those without a builder of their own (of gckpt_activation, gckpt_pow):
 * also how many attributes, the condition that they meet, and the error if they do not. */
#define GCKPTI_UNARY_OPS_WITH(X)                                                                   \
    X(scale, NULL, 0, o[0] * x, product, V(set1)(o[0]), 1, 1, "")                                  \
    GCKPTI_MORE_UNARY_OPS_WITH(X)
/* Gradients of an input of a binary op: name, rule (as above, or passed: g alone), the arguments of
 * the rule: g, and a factor or divisor. x: the input; y: the other input. */
#define GCKPTI_BINARY_GRADS(X)                                                                     \
    X(identity, passed, g, g)                                                                      \
    X(negate, passed, -g, g)                                                                       \
    X(times_other, product, g, y)                                                                  \
    X(numerator, quotient, g, y)                                                                   \
    X(denominator, product, -g, y / x / x)                                                         \
    GCKPTI_MORE_BINARY_GRADS(X)
/* Elementwise ops of two inputs, which are broadcast: name, cost, flags, value, then for both
 * inputs the gradient and what it reads (maximum and minimum: docs/numerics.md, r1). */
#define GCKPTI_BINARY_OPS(X)                                                                       \
    X(add, NULL, GCKPT_PASSES_GRAD(0) | GCKPT_PASSES_GRAD(1), x + y, identity, 0, identity, 0)     \
    X(sub, NULL, GCKPT_PASSES_GRAD(0), x - y, identity, 0, negate, 0)                              \
    X(mul, NULL, 0, (x * y), times_other, GCKPT_IN(1), times_other, GCKPT_IN(0))                   \
    X(div, gckpti_flops_8, 0, x / y, numerator, GCKPT_IN(1), denominator, GCKPTI_BOTH_INPUTS)      \
    GCKPTI_MORE_BINARY_OPS(X)
enum { GCKPTI_BOTH_INPUTS = 3 }; /* GCKPT_IN(0) | GCKPT_IN(1) */
/* clang-format on */

/* dropout: element i is x times `scale` if the upper 24 bits of random word offset + i (Philox,
 * four words to a block) are at least `threshold`; else it is +0. */
typedef struct {
    gckpti_loop loop; /* x or g, and y or dx; n is 0 if dx is not required */
    float scale;
    uint32_t threshold;
    uint64_t offset;
    gckpti_random random;
} gckpti_dropout;

/* Compares u >= p in integers: u is a multiple of 2^-24. */
static inline gckpti_dropout gckpti_dropout_of(const gckpt_call *call, int backward)
{
    const float p = *(const float *)call->attributes, limit = p > 0.0f ? p * 16777216.0f : 0.0f;
    const gckpti_random random = { call->seed, (uint32_t)call->id, (uint32_t)call->step };
    gckpti_dropout d = { gckpti_loop_of(call, backward, 0), 1.0f / (1.0f - p), (uint32_t)limit, 0,
                         random };
    d.threshold += (float)d.threshold < limit;
    d.offset = (uint64_t)call->first_row * (uint64_t)(d.loop.n / call->rows);
    d.loop.n = d.loop.to ? d.loop.n : 0;
    return d;
}

/* Defines an op's forward and backward by one expression, `run`, which reads `backward`: 0 or 1. */
#define GCKPTI_OP_KERNELS(name, run)                                                               \
    GCKPTI_FN void gckpti_##name##_forward(const gckpt_call *call)                                 \
    {                                                                                              \
        const int backward = 0;                                                                    \
        run;                                                                                       \
    }                                                                                              \
    GCKPTI_FN void gckpti_##name##_backward(const gckpt_call *call)                                \
    {                                                                                              \
        const int backward = 1;                                                                    \
        run;                                                                                       \
    }

/* Adds x to element i of arg's gradient, with compensation if the plan has one for it. */
GCKPTI_INLINE void gckpti_add_to_grad(const gckpt_arg *arg, int64_t i, float x)
{
    gckpti_sum_add(&arg->grad[i], arg->compensation ? arg->compensation + i : NULL, x);
}

/* ---- ops/broadcast.c ---- */
/* Walks through axes of up to four tensors at once, innermost axis first. Adjacent axes are merged
 * where all tensors cross them with a single step: equal shapes are one axis, and (B,T,C) with (C)
 * has axes of C and of B*T. */
typedef struct {
    int n, tensors;
    int64_t size[GCKPT_MAX_DIMS], step[4][GCKPT_MAX_DIMS], index[GCKPT_MAX_DIMS];
    int64_t offset[4]; /* the element of each tensor that the iterator has reached */
} gckpti_iter;

/* Begins to iterate over `axes` of tensors of these shapes, up to the first NULL. Axes match from
 * the last; a size of 1 or a missing axis is repeated (step 0). */
GCKPTI_FN void gckpti_iter_over(gckpti_iter *it, const gckpt_shape *axes,
                                const gckpt_shape *const shapes[4]);

/* Iterates over elements of an input (tensor 0) and the result (tensor 1) of part i of a move. */
typedef void gckpti_move_fn(gckpti_iter *it, const gckpt_call *call, int i);

/* A loop over `it`: runs `plane` on the two innermost axes. Threads share an axis along which
 * tensor `to`, which is written, has a step: so one thread adds the terms of a sum, in order.
 * Loops of elementwise ops: x, y, g and `to` are tensors 0 to 3. Moves: x and `to` of the first
 * loop are tensors !to and `to`. */
typedef struct gckpti_strided {
    const gckpt_call *call;
    void (*plane)(const struct gckpti_strided *s);
    int to, count; /* count: loops that run together; in firmware one does */
    gckpti_loop loops[2];
    gckpti_loop_fn run[2];
    void (*vectors)(const gckpti_loop *s, gckpti_loop_fn loop); /* runs `run` by vectors; or NULL */
    float *comp;  /* compensation of the sums in `to` of the first loop, or NULL */
    int64_t cost; /* of an element */
    int axis;     /* which work items divide */
    int64_t each; /* indices of it in a work item */
    gckpti_iter it;
} gckpti_strided;

/* ---- ops/axis.c ---- */
typedef struct {
    uint32_t begin[2], end[2]; /* low and high word of an int64_t: attributes are words */
    int axis;
    int relative; /* if nonzero, the call's position is added; omitted if 0; of a variable: T */
} gckpti_slice;

/* ---- ops/embed.c ---- */
/* Returns the index of the table row that row r of the output copies. */
GCKPTI_INLINE int64_t gckpti_source_row(const gckpt_call *call, int64_t r)
{
    const gckpt_shape *table = &call->in[0].shape;
    int64_t first = table->n == 3 ? r / call->shape.d[1] * table->d[1] : 0;
    return first + call->in[1].index[r];
}

/* ---- ops/norms.c ---- */
typedef struct {
    int center;     /* if nonzero, the mean is subtracted; or the number of groups */
    int gain, bias; /* index of the input; 0 means none */
    float epsilon;  /* omitted if it is 1e-5 */
} gckpti_norm;

/* Adds a norm to the graph. in: n inputs, then gain and bias, which may be NULL; an epsilon of 0
 * selects 1e-5. */
GCKPTI_FN gckpt_tensor *gckpti_norm_new(const gckpt_op *op, gckpt_tensor **in, int n, int center,
                                        float epsilon);

GCKPTI_INLINE float gckpti_norm_epsilon(const gckpti_norm *o)
{
    return o->epsilon > 0.0f ? o->epsilon : 1e-5f;
}

/* Returns arguments for sum(u h) of a row in a norm's backward. x, y: NULL if halves. */
GCKPTI_INLINE gckpti_row_args gckpti_norm_row_args(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const float *saved = (const float *)call->saved + (o->center ? 3 * r : r);
    int64_t at = r * gckpti_last(&call->shape);
    gckpti_row_args row = { GCKPTI_ROW_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    row.x = call->in[0].data ? call->in[0].data + at : NULL;
    row.y = call->grad_out ? call->grad_out + at : NULL;
    row.z = o->gain ? call->in[o->gain].data : NULL;
    if (o->center) {
        row.first = *saved++;
        row.mean = *saved++;
    }
    row.rstd = *saved;
    return row;
}

/* ---- ops/losses.c ---- */
/* Returns whether cap is 0 or 1e-30..1e30, where scores and 1 / cap keep their digits. */
static inline int gckpti_is_valid_cap(float cap)
{
    return cap >= 1e-30f ? cap <= 1e30f : cap >= 0.0f && cap <= 0.0f;
}

/* Returns w x, or w if w is 0 or NaN, whatever x is. (-0 changes no sum that began at +0.) */
GCKPTI_INLINE float gckpti_weighted(float w, float x) { return w > 0.0f || w < 0.0f ? w * x : w; }

/* Losses of elements, then GCKPTI_LOSS_CLASSES: losses of rows over classes. */
typedef enum {
    GCKPTI_LOSS_SUM,
    GCKPTI_LOSS_SQUARED,
    GCKPTI_LOSS_HUBER,
    GCKPTI_LOSS_BINARY,
    GCKPTI_LOSS_CLASSES
} gckpti_loss_kind;

#ifndef GCKPT_NO_LOSSES
#define GCKPTI_IF_LOSSES(x) x
#else
#define GCKPTI_IF_LOSSES(x) NULL
#endif

typedef struct gckpti_element_loss {
    const gckpt_call *call;
    gckpti_loss_kind kind;
    int64_t n, per_weight;        /* elements of a sample; elements that share a weight */
    const float *x, *y, *weights; /* y and weights may be NULL */
    float delta;
} gckpti_element_loss;

GCKPTI_INLINE float gckpti_element_weight(const gckpti_element_loss *e, int64_t i)
{
    return e->weights ? e->weights[i / e->per_weight] : 1.0f;
}

/* Data from which the loss and the gradient of a row of logits follow. */
typedef struct gckpti_class_row {
    float max, log_sum;
    const float *targets;      /* of each class; if NULL, each is `uniform` or, in surprisal, 1 */
    float uniform, target_sum; /* target_sum: sum of the targets of all classes */
    float scale;
    int accumulate;
    float cap;    /* softcap already applied to the logits; 0 means none */
    float target; /* the target of class `at`, if it is one of the logits */
    int64_t at;
} gckpti_class_row;

typedef struct { /* return the loss of a sample; compute its gradients */
    float (*sum)(const gckpti_element_loss *e, int64_t row);
    void (*gradients)(const gckpti_element_loss *e, int64_t row);
} gckpti_element_kernels;

typedef struct { /* the kernels of a row of logits (ops/loops.h, ops/rows.h) */
    float (*online)(const float *x, float *p, int64_t n, int first, float *max, float *sum);
    float (*surprisal)(const float *x, int64_t n, const gckpti_class_row *c);
    void (*gradient)(const float *x, float *d, int64_t n, const gckpti_class_row *c);
    float (*log)(float x);
#ifndef GCKPT_NO_LINEAR_LOSS
    void (*cap)(float *x, int64_t n, float scale, float cap); /* gckpti_softcap of x */
#endif
} gckpti_class_kernels;

/* Runs a loss; one of `element` and `classes` is NULL. */
GCKPTI_FN void gckpti_run_loss(const gckpt_call *call, int backward, gckpti_loss_kind kind,
                               const gckpti_element_kernels *element,
                               const gckpti_class_kernels *classes);

#include "bf16/ops.h"
#include "num/plain_begin.h"
#include "ops/loops.h"
#include "ops/rows.h"
#include "activations/loops.h"
#include "num/plain_end.h"
