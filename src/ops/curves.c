#include "ops/own.h"

/* ---- elementwise ops of one input: y = f(x), dx = g * slope, the slope taken at x or at y, or g
 * over the inverse function's slope, rounded once. Kernels go element by element, so that out may
 * be in, and grad may be grad_out. */
static gckpt_result gckpti_unary_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

GCKPTI_INLINE void gckpti_unary_forward(const gckpt_call *call, float (*f)(float x))
{
    const float *x = call->in[0].data;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = f(x[i]);
}

GCKPTI_INLINE void gckpti_unary_backward(const gckpt_call *call, unsigned needs,
                                         float (*slope)(float at),
                                         void (*put)(float *d, float a, float b, int accumulate))
{
    const float *at = needs & GCKPT_OUT ? call->out : call->in[0].data;
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        put(&d[i], call->grad_out[i], slope(at[i]), call->in[0].accumulate);
}

#define GCKPTI_UNARY_FLAGS (GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD)
#define GCKPTI_CURVE_FLAGS (GCKPTI_UNARY_FLAGS | GCKPTI_BY_ELEMENT)
/* Row and builder of an op without attributes. */
#define GCKPTI_UNARY(name, shape, flops, portions, needs)                                          \
    GCKPTI_ROW(name, GCKPTI_FAST, shape, flops, GCKPTI_UNARY_FLAGS | (portions), needs);           \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x)                                          \
    {                                                                                              \
        return gckpt_apply(&gckpti_op_##name, &x, 1, NULL, 0);                                     \
    }
/* All of an op from gckpti_<name> and gckpti_<name>_slope, which is taken at what needs says; rule:
 * product or quotient. */
#define GCKPTI_CURVE(name, rule, flops, needs)                                                     \
    GCKPTI_FN void gckpti_##name##_forward(const gckpt_call *call)                                 \
    {                                                                                              \
        gckpti_unary_forward(call, gckpti_##name);                                                 \
    }                                                                                              \
    GCKPTI_FN void gckpti_##name##_backward(const gckpt_call *call)                                \
    {                                                                                              \
        gckpti_unary_backward(call, needs, gckpti_##name##_slope, gckpti_put_##rule);              \
    }                                                                                              \
    GCKPTI_UNARY(name, gckpti_unary_shape, flops, GCKPTI_BY_ELEMENT, needs)

/* Formulas: num/formulas. relu: dx = g where y > 0, else +0 (stored or added) */
GCKPTI_FN void gckpti_relu_forward(const gckpt_call *call)
{
    gckpti_unary_forward(call, gckpti_relu);
}
GCKPTI_FN void gckpti_relu_backward(const gckpt_call *call)
{
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        gckpti_put(&d[i], call->out[i] > 0.0f ? call->grad_out[i] : 0.0f, call->in[0].accumulate);
}
GCKPTI_UNARY(relu, gckpti_unary_shape, NULL, GCKPTI_BY_ELEMENT, GCKPT_OUT)

GCKPTI_CURVE(gelu, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_CURVE(gelu_erf, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_CURVE(silu, product, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_CURVE(tanh, product, gckpti_flops_20, GCKPT_OUT)
GCKPTI_CURVE(sigmoid, product, gckpti_flops_20, GCKPT_OUT)

/* exp: slope y */
GCKPTI_INLINE float gckpti_exp_slope(float y) { return y; }
GCKPTI_CURVE(exp, product, gckpti_flops_20, GCKPT_OUT)

/* log: dx = g / x;  sqrt: dx = g / (2 y), inf at 0 */
GCKPTI_INLINE float gckpti_log_slope(float x) { return x; }
GCKPTI_CURVE(log, quotient, gckpti_flops_20, GCKPT_IN(0))
GCKPTI_INLINE float gckpti_sqrt_slope(float y) { return y + y; }
GCKPTI_CURVE(sqrt, quotient, gckpti_flops_8, GCKPT_OUT)

GCKPTI_CURVE(abs, product, NULL, GCKPT_IN(0))
GCKPTI_CURVE(reciprocal, product, gckpti_flops_8, GCKPT_OUT)
#undef GCKPTI_CURVE

/* pow: y = x^e, slope e x^(e - 1), e - 1 rounded; where e is 0, dx = +0. */
static gckpt_result gckpti_pow_shape(gckpt_call *call)
{
    float e = *(const float *)call->attributes;
    return e != e ? gckpt_fail(call, GCKPT_E_ARG, "pow: the exponent is NaN")
                  : gckpti_unary_shape(call);
}
GCKPTI_FN void gckpti_pow_forward(const gckpt_call *call)
{
    float e = *(const float *)call->attributes;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = gckpti_power(call->in[0].data[i], e);
}
GCKPTI_FN void gckpti_pow_backward(const gckpt_call *call)
{
    float e = *(const float *)call->attributes, *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        if (e == 0.0f)
            gckpti_put(&d[i], 0.0f, call->in[0].accumulate);
        else
            gckpti_put_product(&d[i], call->grad_out[i],
                               e * gckpti_power(call->in[0].data[i], e - 1.0f),
                               call->in[0].accumulate);
}
GCKPTI_ROW(pow, GCKPTI_FAST, gckpti_pow_shape, gckpti_flops_20, GCKPTI_CURVE_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent)
{
    return gckpt_apply(&gckpti_op_pow, &x, 1, &exponent, sizeof exponent);
}

/* clamp: y = min(max(x, low), high), NaN and -0 stay; dx = g where low < x < high, else +0. (In
 * bf16 plans y is rounded, and may lie between low and high where x does not.) */
static gckpt_result gckpti_clamp_shape(gckpt_call *call)
{
    const gckpti_clamp *o = (const gckpti_clamp *)call->attributes;
    if (!(o->low <= o->high))
        return gckpt_fail(call, GCKPT_E_ARG,
                          "clamp: low = %g must not be above high = %g (nor one of them NaN); an "
                          "infinite one is no limit",
                          (double)o->low, (double)o->high);
    return gckpti_unary_shape(call);
}
GCKPTI_FN void gckpti_clamp_forward(const gckpt_call *call)
{
    const gckpti_clamp *o = (const gckpti_clamp *)call->attributes;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++) {
        float x = call->in[0].data[i];
        x = x < o->low ? o->low : x;
        call->out[i] = x > o->high ? o->high : x;
    }
}
GCKPTI_FN void gckpti_clamp_backward(const gckpt_call *call)
{
    const gckpti_clamp *o = (const gckpti_clamp *)call->attributes;
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++) {
        float x = call->in[0].data[i];
        int inside = x > o->low && x < o->high;
        gckpti_put(&d[i], inside ? call->grad_out[i] : 0.0f, call->in[0].accumulate);
    }
}
GCKPTI_ROW(clamp, GCKPTI_FAST, gckpti_clamp_shape, NULL, GCKPTI_CURVE_FLAGS, GCKPT_IN(0));
GCKPT_API gckpt_tensor *gckpt_clamp(gckpt_tensor *x, float low, float high)
{
    gckpti_clamp o = { low, high };
    return gckpt_apply(&gckpti_op_clamp, &x, 1, &o, sizeof o);
}

/* detach: y = x, in place where nothing else reads x later. */
GCKPTI_FN void gckpti_detach_forward(const gckpt_call *call)
{
    if (call->out != call->in[0].data)
        memcpy(call->out, call->in[0].data, (size_t)gckpti_elements(&call->shape) * sizeof(float));
}
/* clang-format off */
GCKPTI_DATA const gckpt_op gckpti_op_detach = {
    "detach", gckpti_unary_shape, gckpti_detach_forward, NULL, NULL, NULL, { 0 },
    GCKPT_INPLACE(0) | GCKPTI_BY_ELEMENT | GCKPTI_OWN_detach, NULL, NULL, NULL
};
/* clang-format on */
GCKPT_API gckpt_tensor *gckpt_detach(gckpt_tensor *x)
{
    return gckpt_apply(&gckpti_op_detach, &x, 1, NULL, 0);
}

/* softmax over the last axis: y = exp(x - max) / sum(exp(x - max));  dx = y (g - sum(g y)).
 * A row is read to its end before it is written, so the bytes may coincide here too. */
GCKPTI_FN void gckpti_softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = call->in[0].data + r * n;
        float *y = call->out + r * n, max = gckpti_shift(gckpti_max(x, n));
        for (int64_t j = 0; j < n; j++)
            y[j] = gckpti_exp(x[j] - max);
        float sum = gckpti_sum(y, n);
        gckpti_softmax_end(&max, &sum);
        for (int64_t j = 0; j < n; j++)
            y[j] = y[j] / sum;
    }
}
GCKPTI_FN void gckpti_softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; call->in[0].grad && r < rows; r++) {
        const float *y = call->out + r * n, *g = call->grad_out + r * n;
        float *d = call->in[0].grad + r * n, dot = gckpti_dot(g, y, n);
        for (int64_t j = 0; j < n; j++)
            gckpti_put_product(&d[j], y[j], g[j] - dot, call->in[0].accumulate);
    }
}
static gckpt_result gckpti_softmax_shape(gckpt_call *call)
{
    call->mixes_rows = call->in[0].shape.n < 2; /* then its only axis is the batch */
    return gckpti_unary_shape(call);
}

GCKPTI_UNARY(softmax, gckpti_softmax_shape, gckpti_flops_20, GCKPTI_BY_ROW, GCKPT_OUT)

/* log_softmax: y = (x - max) - log(sum), where all are -inf they stay;  dx = g - exp(y) sum(g),
 * which is fma(-exp(y), sum, g). The row's sums come first: bytes may coincide. */
GCKPTI_FN void gckpti_log_softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = call->in[0].data + r * n;
        float *y = call->out + r * n, max, sum;
        gckpti_online(x, NULL, n, 1, &max, &sum);
        gckpti_softmax_end(&max, &sum);
        sum = gckpti_log(sum);
        for (int64_t j = 0; j < n; j++)
            y[j] = x[j] - max - sum;
    }
}
GCKPTI_FN void gckpti_log_softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; call->in[0].grad && r < rows; r++) {
        const float *y = call->out + r * n, *g = call->grad_out + r * n;
        float *d = call->in[0].grad + r * n, sum = gckpti_sum(g, n);
        for (int64_t j = 0; j < n; j++)
            gckpti_put(&d[j], gckpti_fma(-gckpti_exp(y[j]), sum, g[j]), call->in[0].accumulate);
    }
}
GCKPTI_UNARY(log_softmax, gckpti_softmax_shape, gckpti_flops_20, GCKPTI_BY_ROW, GCKPT_OUT)
#undef GCKPTI_UNARY

/* scale: y = factor x;  dx = factor g */
static void gckpti_scale_by(const gckpt_call *call, const float *x, float *y, int accumulate)
{
    float factor = *(const float *)call->attributes;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; y && i < n; i++)
        gckpti_put_product(&y[i], factor, x[i], accumulate);
}
GCKPTI_FN void gckpti_scale_forward(const gckpt_call *call)
{
    gckpti_scale_by(call, call->in[0].data, call->out, 0);
}
GCKPTI_FN void gckpti_scale_backward(const gckpt_call *call)
{
    gckpti_scale_by(call, call->grad_out, call->in[0].grad, call->in[0].accumulate);
}
GCKPTI_ROW(scale, GCKPTI_PLAIN, gckpti_unary_shape, NULL, GCKPTI_CURVE_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor)
{
    return gckpt_apply(&gckpti_op_scale, &x, 1, &factor, sizeof factor);
}

/* dropout: y = x / (1 - p) where u >= p, else 0;  dx = g / (1 - p) or 0, the mask drawn again: puts
 * of (1 / (1 - p)) x or g, and of +0.
 * u is uniform in [0,1), four to a Philox block, numbered by the element in the whole batch (5j): a
 * micro-batch may begin inside a block. */
static gckpt_result gckpti_dropout_shape(gckpt_call *call)
{
    float p = *(const float *)call->attributes;
    call->shape = call->in[0].shape;
    if (!(p < 1.0f))
        return gckpt_fail(call, GCKPT_E_ARG, "dropout: p = %g must be below 1 (0 switches it off)",
                          (double)p);
    return GCKPT_OK;
}
/* y = x where the mask, drawn from seed, step and tensor, lets it pass; backward: g for x. */
static void gckpti_dropout_mask(const gckpt_call *call, const float *x, float *y, int accumulate)
{
    float p = *(const float *)call->attributes, factor = 1.0f / (1.0f - p);
    int64_t n = gckpti_elements(&call->shape);
    uint64_t first = call->row ? (uint64_t)call->row * (uint64_t)(n / call->rows) : 0;
    uint32_t block[4] = { 0, 0, 0, 0 };
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = first + (uint64_t)i;
        if (i == 0 || at % 4 == 0)
            gckpti_philox(call->seed, at / 4, (uint32_t)call->id, (uint32_t)call->step, block);
        if (gckpti_uniform(block[at % 4]) >= p)
            gckpti_put_product(&y[i], factor, x[i], accumulate);
        else
            gckpti_put(&y[i], 0.0f, accumulate);
    }
}
GCKPTI_FN void gckpti_dropout_forward(const gckpt_call *call)
{
    if (call->training)
        gckpti_dropout_mask(call, call->in[0].data, call->out, 0);
    else
        gckpti_detach_forward(call);
}
GCKPTI_FN void gckpti_dropout_backward(const gckpt_call *call) /* only training plans have one */
{
    if (call->in[0].grad)
        gckpti_dropout_mask(call, call->grad_out, call->in[0].grad, call->in[0].accumulate);
}
GCKPTI_ROW(dropout, GCKPTI_PLAIN, gckpti_dropout_shape, gckpti_flops_20, GCKPTI_UNARY_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p)
{
    return p <= 0.0f ? x : gckpt_apply(&gckpti_op_dropout, &x, 1, &p, sizeof p);
}
