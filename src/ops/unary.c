#include "ops/internal.h"

/* ---- elementwise ops of one input (GCKPTI_UNARY_OPS); out may be in's buffer, and grad grad_out's
 * ---- */
static gckpt_result gckpti_unary_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

/* Defines gckpti_<name>_shape of an op with n attributes o, which must meet a condition. */
#define GCKPTI_CHECKED_SHAPE(name, n, is_valid, problem)                                           \
    GCKPTI_UNUSED static gckpt_result gckpti_##name##_shape(gckpt_call *call)                      \
    {                                                                                              \
        const float *o = (const float *)call->attributes;                                          \
        return is_valid ? gckpti_unary_shape(call)                                                 \
                        : gckpt_fail(call, GCKPT_E_ARG, #name ": " problem, (double)o[0],          \
                                     (double)o[(n)-1]);                                            \
    }

static void gckpti_run_unary(const gckpt_call *call, int backward, unsigned reads, int kind,
                             gckpti_loop_fn plain)
{
    gckpti_strided s;
    s.loops[0] = gckpti_loop_of(call, backward, reads), s.call = call, s.count = 0, s.cost = 16;
    gckpti_add_loop(&s, kind, backward - 1, plain, s.loops->n);
    if (s.loops->to)
        gckpti_run_flat(&s);
}

#define GCKPTI_INPLACE_FLAGS (GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD)
#define GCKPTI_UNARY_DESC(name, shape, flops, reads)                                               \
    GCKPTI_OP_KERNELS(                                                                             \
        name, gckpti_run_unary(call, backward, reads, GCKPTI_KIND_##name,                          \
                               backward ? gckpti_##name##_gradients : gckpti_##name##_values))     \
    GCKPTI_DESC(name, shape, flops, GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ELEMENTWISE, reads);
#define GCKPTI_UNARY_OP(name, flops, reads, ...)                                                   \
    GCKPTI_UNARY_DESC(name, gckpti_unary_shape, flops, reads)                                      \
    GCKPTI_BUILDER_0(name)
#define GCKPTI_UNARY_OP_WITH(name, flops, reads, value, rule, deriv, n, is_valid, problem)         \
    GCKPTI_CHECKED_SHAPE(name, n, is_valid, problem)                                               \
    GCKPTI_UNARY_DESC(name, gckpti_##name##_shape, flops, reads)
GCKPTI_UNARY_OPS(GCKPTI_UNARY_OP)
GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_OP_WITH)
GCKPTI_BUILDER(scale, float, (gckpt_tensor * x, float o0), o0)

/* detach: y = x, in place if no later op reads x. */
GCKPTI_FN void gckpti_detach_forward(const gckpt_call *call)
{
    if (call->out != call->in[0].data)
        memcpy(call->out, call->in[0].data, (size_t)gckpti_elements(&call->shape) * sizeof(float));
}
GCKPTI_DESC_ALL(detach, NULL, gckpti_unary_shape, NULL, NULL, NULL, NULL,
                GCKPT_INPLACE(0) | GCKPTI_IS_ELEMENTWISE, 0);
GCKPTI_BUILDER_0(detach)

/* softmax over the last axis: y = exp(x - max) / sum(exp(x - max));  dx = y (g - sum(g y)).
 * Sums of a row are computed first, so that y may share x's buffer, and dx g's. */
GCKPTI_UNUSED static gckpt_result gckpti_softmax_shape(gckpt_call *call)
{
    call->mixes_rows = call->in[0].shape.n < 2; /* then the only axis is the batch */
    return gckpti_unary_shape(call);
}
GCKPTI_OP_KERNELS(softmax, gckpti_run_rows(call, GCKPTI_ROW_OF(softmax)))
GCKPTI_DESC(softmax, gckpti_softmax_shape, gckpti_flops_20,
            GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ROWWISE, GCKPT_OUT);
GCKPTI_BUILDER_0(softmax)

/* dropout: y = x / (1 - p) where u >= p, else 0;  dx = g / (1 - p) or 0, with the mask computed
 * again: puts of (1 / (1 - p)) x or g, or of +0. u is uniform in [0,1), four to a Philox block,
 * numbered by the element's index in the whole batch (manual, 5j). */
GCKPTI_CHECKED_SHAPE(dropout, 1, (*o < 1.0f), "p = %g must be below 1 (0 switches it off)")
static void gckpti_dropout_item(const gckpt_call *call, int64_t i)
{
    const gckpti_dropout d = gckpti_dropout_of(call, call->grad_out != NULL);
    const int64_t at = i * GCKPTI_ELEMENTS, end = gckpti_min(at + GCKPTI_ELEMENTS, d.loop.n);
    GCKPTI_KERNEL_OF(call, dropout, gckpti_dropout_elements)(&d, at, end);
}

static void gckpti_run_dropout(const gckpt_call *call, int backward)
{
    const int64_t each = GCKPTI_ELEMENTS, n = gckpti_elements(&call->shape);
    if (backward || gckpti_is_training(call)) /* inference has no backward */
        gckpti_for_each(call, (n + each - 1) / each, 16 * each, gckpti_dropout_item);
    else
        gckpti_detach_forward(call);
}
GCKPTI_OP_KERNELS(dropout, gckpti_run_dropout(call, backward))
GCKPTI_DESC(dropout, gckpti_dropout_shape, gckpti_flops_20, GCKPTI_INPLACE_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p)
{
    return p <= 0.0f ? x : gckpt_apply(&gckpti_op_dropout, &x, 1, &p, sizeof p);
}
