#include "ops/internal.h"

/* ---- elementwise ops of one input (GCKPTI_UNARY_OPS); out may be in's buffer, and grad grad_out's
 * ---- */
static gckpt_result gckpti_unary_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

static void gckpti_run_unary(const gckpt_call *call, int backward, unsigned reads,
                             gckpti_loop_fn run)
{
    const gckpti_loop loop = gckpti_loop_of(call, backward, reads);
    if (loop.to)
        run(&loop);
}

#define GCKPTI_INPLACE_FLAGS (GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD)
#define GCKPTI_UNARY_FLAGS   (GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ELEMENTWISE)
#ifndef GCKPTI_NO_GRAPH
#define GCKPTI_UNARY_BUILDER(name)                                                                 \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x)                                          \
    {                                                                                              \
        return gckpt_apply(&gckpti_op_##name, &x, 1, NULL, 0);                                     \
    }
#else
#define GCKPTI_UNARY_BUILDER(name)
#endif
#define GCKPTI_UNARY_KERNELS(name, reads)                                                          \
    GCKPTI_OP_KERNELS(                                                                             \
        name, gckpti_run_unary(call, backward, reads,                                              \
                               backward ? gckpti_##name##_gradients : gckpti_##name##_values))
#define GCKPTI_UNARY_OP(name, flops, reads, value, rule, deriv)                                    \
    GCKPTI_UNARY_KERNELS(name, reads)                                                              \
    GCKPTI_DESC(name, GCKPTI_FAST, gckpti_unary_shape, flops, GCKPTI_UNARY_FLAGS, reads);          \
    GCKPTI_UNARY_BUILDER(name)
GCKPTI_UNARY_OPS(GCKPTI_UNARY_OP)
#undef GCKPTI_UNARY_OP

/* pow: y = x^e; the derivative is e x^(e - 1), e - 1 being rounded; if e is 0, dx = +0. */
static gckpt_result gckpti_pow_shape(gckpt_call *call)
{
    float e = *(const float *)call->attributes;
    return e != e ? gckpt_fail(call, GCKPT_E_ARG, "pow: the exponent is NaN")
                  : gckpti_unary_shape(call);
}
static void gckpti_run_pow(const gckpt_call *call, int backward)
{
    const gckpti_loop loop = gckpti_loop_of(call, backward, GCKPT_IN(0));
    if (loop.to && backward && *loop.o == 0.0f)
        for (int64_t i = 0; i < loop.n; i++)
            gckpti_put(&loop.to[i], 0.0f, loop.accumulate);
    else if (loop.to)
        (backward ? gckpti_pow_gradients : gckpti_pow_values)(&loop);
}
GCKPTI_OP_KERNELS(pow, gckpti_run_pow(call, backward))
GCKPTI_DESC(pow, GCKPTI_FAST, gckpti_pow_shape, gckpti_flops_20, GCKPTI_UNARY_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent)
{
    return gckpt_apply(&gckpti_op_pow, &x, 1, &exponent, sizeof exponent);
}

/* clamp: NaN and -0 stay; dx = g where low < x < high. (In bf16 plans y is rounded; it can lie
 * between low and high where x does not.) */
static gckpt_result gckpti_clamp_shape(gckpt_call *call)
{
    const float *o = (const float *)call->attributes;
    if (!(o[0] <= o[1]))
        return gckpt_fail(call, GCKPT_E_ARG,
                          "clamp: low = %g must not be above high = %g (nor one of them NaN); an "
                          "infinite one is no limit",
                          (double)o[0], (double)o[1]);
    return gckpti_unary_shape(call);
}
GCKPTI_UNARY_KERNELS(clamp, GCKPT_IN(0))
GCKPTI_DESC(clamp, GCKPTI_FAST, gckpti_clamp_shape, NULL, GCKPTI_UNARY_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_clamp(gckpt_tensor *x, float low, float high)
{
    const float o[2] = { low, high };
    return gckpt_apply(&gckpti_op_clamp, &x, 1, o, sizeof o);
}

static gckpt_result gckpti_leaky_relu_shape(gckpt_call *call)
{
    const float slope = *(const float *)call->attributes;
    return slope >= 0.0f && slope < GCKPTI_INFINITY
               ? gckpti_unary_shape(call)
               : gckpt_fail(call, GCKPT_E_ARG,
                            "leaky_relu: slope = %g must be finite and 0 or above (if negative: "
                            "relu(x) - slope * relu(-x))",
                            (double)slope);
}
GCKPTI_UNARY_KERNELS(leaky_relu, GCKPT_OUT)
GCKPTI_UNARY_KERNELS(scale, 0)
#undef GCKPTI_UNARY_KERNELS
GCKPTI_DESC(leaky_relu, GCKPTI_FAST, gckpti_leaky_relu_shape, NULL, GCKPTI_UNARY_FLAGS, GCKPT_OUT);
GCKPT_API gckpt_tensor *gckpt_leaky_relu(gckpt_tensor *x, float slope)
{
    return gckpt_apply(&gckpti_op_leaky_relu, &x, 1, &slope, sizeof slope);
}

GCKPTI_DESC(scale, GCKPTI_FAST, gckpti_unary_shape, NULL, GCKPTI_UNARY_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor)
{
    return gckpt_apply(&gckpti_op_scale, &x, 1, &factor, sizeof factor);
}

/* detach: y = x, in place if no later op reads x. */
GCKPTI_FN void gckpti_detach_forward(const gckpt_call *call)
{
    if (call->out != call->in[0].data)
        memcpy(call->out, call->in[0].data, (size_t)gckpti_elements(&call->shape) * sizeof(float));
}
GCKPTI_DESC_ALL(detach, NULL, GCKPTI_PLAIN, gckpti_unary_shape, NULL, NULL, NULL, NULL,
                GCKPT_INPLACE(0) | GCKPTI_IS_ELEMENTWISE, 0);
GCKPT_API gckpt_tensor *gckpt_detach(gckpt_tensor *x)
{
    return gckpt_apply(&gckpti_op_detach, &x, 1, NULL, 0);
}

/* from_u8: y = fma(x, scale, shift) of a byte x, without a gradient. o: scale, shift */
static gckpt_result gckpti_from_u8_shape(gckpt_call *call)
{
    const float *o = (const float *)call->attributes;
    if (!(o[0] - o[0] == 0.0f) || !(o[1] - o[1] == 0.0f))
        return gckpt_fail(call, GCKPT_E_ARG, "from_u8: scale = %g and shift = %g must be finite",
                          (double)o[0], (double)o[1]);
    return gckpti_unary_shape(call);
}
GCKPTI_FN void gckpti_from_u8_forward(const gckpt_call *call)
{
    const float *o = (const float *)call->attributes;
    const int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = gckpti_fma((float)call->in[0].bytes[i], o[0], o[1]);
}
GCKPTI_DESC_ALL(from_u8, NULL, GCKPTI_PLAIN, gckpti_from_u8_shape, NULL, NULL, NULL, NULL,
                GCKPTI_IS_ELEMENTWISE, GCKPT_IS_U8);
GCKPT_API gckpt_tensor *gckpt_from_u8(gckpt_tensor *x, float scale, float shift)
{
    const float o[2] = { scale, shift };
    return gckpt_apply(&gckpti_op_from_u8, &x, 1, o, sizeof o);
}

/* softmax over the last axis: y = exp(x - max) / sum(exp(x - max));  dx = y (g - sum(g y)).
 * log_softmax: y = (x - max) - log(sum), rows of -inf stay;  dx = g - exp(y) sum(g) = fma(-exp(y),
 * sum, g). Sums of a row are computed first, so that y may share x's buffer, and dx g's. */
GCKPTI_UNUSED static gckpt_result gckpti_softmax_shape(gckpt_call *call)
{
    call->mixes_rows = call->in[0].shape.n < 2; /* then the only axis is the batch */
    return gckpti_unary_shape(call);
}
GCKPTI_OP_KERNELS(softmax,
                  gckpti_run_rows(call, backward ? gckpti_softmax_row_grad : gckpti_softmax_row))
GCKPTI_OP_KERNELS(log_softmax, gckpti_run_rows(call, backward ? gckpti_log_softmax_row_grad
                                                              : gckpti_log_softmax_row))
GCKPTI_DESC(softmax, GCKPTI_FAST, gckpti_softmax_shape, gckpti_flops_20,
            GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ROWWISE, GCKPT_OUT);
GCKPTI_DESC(log_softmax, GCKPTI_FAST, gckpti_softmax_shape, gckpti_flops_20,
            GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ROWWISE, GCKPT_OUT);
GCKPTI_UNARY_BUILDER(softmax)
GCKPTI_UNARY_BUILDER(log_softmax)

/* dropout: y = x / (1 - p) where u >= p, else 0;  dx = g / (1 - p) or 0, with the mask computed
 * again: puts of (1 / (1 - p)) x or g, or of +0. u is uniform in [0,1), four to a Philox block,
 * numbered by the element's index in the whole batch (manual, 5j). */
static gckpt_result gckpti_dropout_shape(gckpt_call *call)
{
    float p = *(const float *)call->attributes;
    if (!(p < 1.0f))
        return gckpt_fail(call, GCKPT_E_ARG, "dropout: p = %g must be below 1 (0 switches it off)",
                          (double)p);
    return gckpti_unary_shape(call);
}
static void gckpti_run_dropout(const gckpt_call *call, int backward)
{
    const gckpti_dropout d = gckpti_dropout_of(call, backward);
    const gckpti_loop loop = d.loop;
    uint32_t block[4] = { 0, 0, 0, 0 };
    if (!gckpti_is_training(call)) { /* inference has no backward */
        gckpti_detach_forward(call);
        return;
    }
    for (int64_t i = 0; i < loop.n; i++) {
        const uint64_t at = d.offset + (uint64_t)i;
        if (i == 0 || at % 4 == 0)
            gckpti_philox(d.random.key, at / 4, d.random.stream, d.random.step, block);
        if (block[at % 4] >> 8 >= d.threshold)
            gckpti_put_product(&loop.to[i], d.scale, loop.x[i], loop.accumulate);
        else
            gckpti_put(&loop.to[i], 0.0f, loop.accumulate);
    }
}
GCKPTI_OP_KERNELS(dropout, gckpti_run_dropout(call, backward))
GCKPTI_DESC(dropout, GCKPTI_FAST, gckpti_dropout_shape, gckpti_flops_20, GCKPTI_INPLACE_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p)
{
    return p <= 0.0f ? x : gckpt_apply(&gckpti_op_dropout, &x, 1, &p, sizeof p);
}
