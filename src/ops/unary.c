#include "ops/internal.h"

/* ---- elementwise ops of one input: y = f(x). The rule of dx, with a derivative f' at x or y: g f'
 * (product); g / f', f' of the inverse function (quotient); g if f' > 0, else +0 (masked). o: the
 * attributes. out may be in's buffer, and grad grad_out's. */
static gckpt_result gckpti_unary_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

GCKPTI_INLINE void gckpti_unary_forward(const gckpt_call *call, float (*f)(float x, const float *o))
{
    const float *x = call->in[0].data, *o = (const float *)call->attributes;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = f(x[i], o);
}

GCKPTI_INLINE void gckpti_unary_backward(const gckpt_call *call, unsigned needs,
                                         float (*deriv)(float at, const float *o),
                                         void (*rule)(float *d, float g, float df, int accumulate))
{
    const float *at = needs & GCKPT_OUT ? call->out : call->in[0].data;
    const float *o = (const float *)call->attributes;
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        rule(&d[i], call->grad_out[i], deriv(at[i], o), call->in[0].accumulate);
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
/* Defines the descriptor and the builder of an op without attributes. */
#define GCKPTI_SIMPLE_OP(name, shape, flops, granularity, needs)                                   \
    GCKPTI_DESC(name, GCKPTI_FAST, shape, flops, GCKPTI_INPLACE_FLAGS | (granularity), needs);     \
    GCKPTI_UNARY_BUILDER(name)
/* Defines kernels from gckpti_value_<name> and gckpti_deriv_<name>, a function of x or y (`needs`);
 * rule: product, quotient or masked. */
#define GCKPTI_UNARY_KERNELS(name, rule, needs)                                                    \
    GCKPTI_OP_KERNELS(name, backward ? gckpti_unary_backward(call, needs, gckpti_deriv_##name,     \
                                                             gckpti_put_##rule)                    \
                                     : gckpti_unary_forward(call, gckpti_value_##name))
#define GCKPTI_WITHOUT_ATTRIBUTES(to, from)                                                        \
    GCKPTI_INLINE float to(float x, const float *o) { return (void)o, from(x); }
#define GCKPTI_UNARY_OP(name, rule, flops, needs)                                                  \
    GCKPTI_WITHOUT_ATTRIBUTES(gckpti_value_##name, gckpti_##name)                                  \
    GCKPTI_WITHOUT_ATTRIBUTES(gckpti_deriv_##name, gckpti_##name##_deriv)                          \
    GCKPTI_UNARY_KERNELS(name, rule, needs)                                                        \
    GCKPTI_SIMPLE_OP(name, gckpti_unary_shape, flops, GCKPTI_IS_ELEMENTWISE, needs)

/* Formulas are in num/formulas.h. relu: dx = g where y > 0, else +0 (stored or added) */
GCKPTI_INLINE float gckpti_relu_deriv(float y) { return y; }
GCKPTI_UNARY_OP(relu, masked, NULL, GCKPT_OUT)

GCKPTI_UNARY_OP(gelu, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_UNARY_OP(gelu_erf, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_UNARY_OP(silu, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_UNARY_OP(tanh, product, gckpti_flops_20, GCKPT_OUT)
GCKPTI_UNARY_OP(sigmoid, product, gckpti_flops_20, GCKPT_OUT)

/* exp: the derivative is y */
GCKPTI_INLINE float gckpti_exp_deriv(float y) { return y; }
GCKPTI_UNARY_OP(exp, product, gckpti_flops_20, GCKPT_OUT)

/* log: dx = g / x;  sqrt: dx = g / (2 y), inf at 0 */
GCKPTI_INLINE float gckpti_log_deriv(float x) { return x; }
GCKPTI_UNARY_OP(log, quotient, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_INLINE float gckpti_sqrt_deriv(float y) { return y + y; }
GCKPTI_UNARY_OP(sqrt, quotient, gckpti_flops_8, GCKPT_OUT)

GCKPTI_UNARY_OP(abs, product, NULL, GCKPT_IN(0))
GCKPTI_UNARY_OP(softplus, product, gckpti_flops_20, GCKPT_OUT)
GCKPTI_UNARY_OP(sin, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_UNARY_OP(cos, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_UNARY_OP(reciprocal, product, gckpti_flops_8, GCKPT_OUT)
#undef GCKPTI_UNARY_OP
#undef GCKPTI_WITHOUT_ATTRIBUTES

/* pow: y = x^e; the derivative is e x^(e - 1), e - 1 being rounded; if e is 0, dx = +0. */
static gckpt_result gckpti_pow_shape(gckpt_call *call)
{
    float e = *(const float *)call->attributes;
    return e != e ? gckpt_fail(call, GCKPT_E_ARG, "pow: the exponent is NaN")
                  : gckpti_unary_shape(call);
}
GCKPTI_INLINE float gckpti_value_pow(float x, const float *e) { return gckpti_pow_dispatch(x, *e); }
GCKPTI_INLINE float gckpti_deriv_pow(float x, const float *e)
{
    return *e * gckpti_pow_dispatch(x, *e - 1.0f);
}
static void gckpti_pow_gradient(const gckpt_call *call)
{
    if (*(const float *)call->attributes == 0.0f) /* x^0 is constant: masked gives +0 */
        gckpti_unary_backward(call, GCKPT_IN(0), gckpti_deriv_pow, gckpti_put_masked);
    else
        gckpti_unary_backward(call, GCKPT_IN(0), gckpti_deriv_pow, gckpti_put_product);
}
GCKPTI_OP_KERNELS(pow, backward ? gckpti_pow_gradient(call)
                                : gckpti_unary_forward(call, gckpti_value_pow))
GCKPTI_DESC(pow, GCKPTI_FAST, gckpti_pow_shape, gckpti_flops_20, GCKPTI_UNARY_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent)
{
    return gckpt_apply(&gckpti_op_pow, &x, 1, &exponent, sizeof exponent);
}

/* clamp: y = min(max(x, low), high); NaN and -0 stay; dx = g where low < x < high, else +0. o: low,
 * high. (In bf16 plans y is rounded; it can lie between low and high where x does not.) */
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
GCKPTI_INLINE float gckpti_value_clamp(float x, const float *o)
{
    return gckpti_vmin(o[1], gckpti_vmax(o[0], x));
}
GCKPTI_INLINE float gckpti_deriv_clamp(float x, const float *o)
{
    return x > o[0] && x < o[1] ? 1.0f : 0.0f;
}
GCKPTI_UNARY_KERNELS(clamp, masked, GCKPT_IN(0))
GCKPTI_DESC(clamp, GCKPTI_FAST, gckpti_clamp_shape, NULL, GCKPTI_UNARY_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_clamp(gckpt_tensor *x, float low, float high)
{
    const float o[2] = { low, high };
    return gckpt_apply(&gckpti_op_clamp, &x, 1, o, sizeof o);
}

/* leaky_relu: y = x if x > 0, else slope x;  derivative 1 if y > 0, else slope. o: slope */
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
GCKPTI_INLINE float gckpti_value_leaky_relu(float x, const float *o) { return x > 0 ? x : *o * x; }
GCKPTI_INLINE float gckpti_deriv_leaky_relu(float y, const float *o) { return y > 0 ? 1.0f : *o; }
GCKPTI_UNARY_KERNELS(leaky_relu, product, GCKPT_OUT)
#undef GCKPTI_UNARY_KERNELS
GCKPTI_DESC(leaky_relu, GCKPTI_FAST, gckpti_leaky_relu_shape, NULL, GCKPTI_UNARY_FLAGS, GCKPT_OUT);
GCKPT_API gckpt_tensor *gckpt_leaky_relu(gckpt_tensor *x, float slope)
{
    return gckpt_apply(&gckpti_op_leaky_relu, &x, 1, &slope, sizeof slope);
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
static void gckpti_softmax_rows(const gckpt_call *call, int log)
{
    int64_t n = gckpti_last(&call->shape), end = gckpti_elements(&call->shape);
    for (int64_t at = 0; at < end; at += n) {
        const float *x = call->in[0].data + at;
        float *y = call->out + at, max, sum;
        gckpti_online(x, log ? NULL : y, n, 1, &max, &sum);
        gckpti_softmax_end(&max, &sum);
        float log_sum = log ? gckpti_log(sum) : 0.0f;
        for (int64_t j = 0; j < n; j++)
            y[j] = log ? x[j] - max - log_sum : y[j] / sum;
    }
}
static void gckpti_softmax_gradients(const gckpt_call *call, int log)
{
    int64_t n = gckpti_last(&call->shape), end = gckpti_elements(&call->shape);
    for (int64_t at = 0; call->in[0].grad && at < end; at += n) {
        const float *y = call->out + at, *g = call->grad_out + at;
        float *d = call->in[0].grad + at, sum = log ? gckpti_sum(g, n) : gckpti_dot(g, y, n);
        if (log)
            for (int64_t j = 0; j < n; j++)
                gckpti_put(&d[j], gckpti_fma(-gckpti_exp(y[j]), sum, g[j]), call->in[0].accumulate);
        else
            for (int64_t j = 0; j < n; j++)
                gckpti_put_product(&d[j], y[j], g[j] - sum, call->in[0].accumulate);
    }
}
GCKPTI_UNUSED static gckpt_result gckpti_softmax_shape(gckpt_call *call)
{
    call->mixes_rows = call->in[0].shape.n < 2; /* then the only axis is the batch */
    return gckpti_unary_shape(call);
}
GCKPTI_OP_KERNELS(softmax, (backward ? gckpti_softmax_gradients : gckpti_softmax_rows)(call, 0))
GCKPTI_OP_KERNELS(log_softmax, (backward ? gckpti_softmax_gradients : gckpti_softmax_rows)(call, 1))
GCKPTI_SIMPLE_OP(softmax, gckpti_softmax_shape, gckpti_flops_20, GCKPTI_IS_ROWWISE, GCKPT_OUT)
GCKPTI_SIMPLE_OP(log_softmax, gckpti_softmax_shape, gckpti_flops_20, GCKPTI_IS_ROWWISE, GCKPT_OUT)
#undef GCKPTI_SIMPLE_OP

/* scale: y = factor x;  dx = factor g */
static void gckpti_run_scale(const gckpt_call *call, int backward)
{
    float factor = *(const float *)call->attributes;
    gckpti_io p = gckpti_io_of(call, backward);
    for (int64_t i = 0; i < p.n; i++)
        gckpti_put_product(&p.to[i], factor, p.from[i], p.accumulate);
}
GCKPTI_OP_KERNELS(scale, gckpti_run_scale(call, backward))
GCKPTI_DESC(scale, GCKPTI_PLAIN, gckpti_unary_shape, NULL, GCKPTI_UNARY_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor)
{
    return gckpt_apply(&gckpti_op_scale, &x, 1, &factor, sizeof factor);
}

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
    const gckpti_io io = d.io;
    uint32_t block[4] = { 0, 0, 0, 0 };
    if (!gckpti_is_training(call)) { /* inference has no backward */
        gckpti_detach_forward(call);
        return;
    }
    for (int64_t i = 0; i < io.n; i++) {
        const uint64_t at = d.offset + (uint64_t)i;
        if (i == 0 || at % 4 == 0)
            gckpti_philox(d.random.key, at / 4, d.random.stream, d.random.step, block);
        if (block[at % 4] >> 8 >= d.threshold)
            gckpti_put_product(&io.to[i], d.scale, io.from[i], io.accumulate);
        else
            gckpti_put(&io.to[i], 0.0f, io.accumulate);
    }
}
GCKPTI_OP_KERNELS(dropout, gckpti_run_dropout(call, backward))
GCKPTI_DESC(dropout, GCKPTI_FAST, gckpti_dropout_shape, gckpti_flops_20, GCKPTI_INPLACE_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p)
{
    return p <= 0.0f ? x : gckpt_apply(&gckpti_op_dropout, &x, 1, &p, sizeof p);
}
