/* ---- elementwise ops: a loop for each ---- */
/* x, y: of the inputs; left: elements from j on */
#define GCKPTI_LOOP(name, statement)                                                               \
    case GCKPTI_KIND_##name:                                                                       \
        for (int64_t j = 0, left = n; j < n; j += W, left -= W) {                                  \
            const FLOATS x = V(load_n)(from_x + j, left), y = V(load_n)(from_y + j, left);         \
            V(fetch)(&ahead, j);                                                                   \
            statement;                                                                             \
            (void)y;                                                                               \
        }                                                                                          \
        break;

static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const int pair = kind >= GCKPTI_PAIR;
    const float *from_x = call->in[0].data, *from_y = call->in[pair].data;
    const float *o = (const float *)call->attributes;
    const int64_t n = gckpti_elements(&call->shape);
    const gckpti_ahead ahead = gckpti_ahead_of(call, from_x, call->in[0].bf16, call->out_bf16,
                                               pair ? call->in[1].bf16 : NULL);
#define GCKPTI_VALUE(name, value) GCKPTI_LOOP(name, V(store_n)(call->out + j, value, left))
    switch (kind) {
        GCKPTI_VALUE(relu, V(relu)(x))
        GCKPTI_VALUE(gelu, V(gelu)(x))
        GCKPTI_VALUE(gelu_erf, V(gelu_erf)(x))
        GCKPTI_VALUE(silu, V(silu)(x))
        GCKPTI_VALUE(tanh, V(tanh)(x))
        GCKPTI_VALUE(sigmoid, V(sigmoid)(x))
        GCKPTI_VALUE(exp, V(exp)(x))
        GCKPTI_VALUE(log, V(log)(x))
        GCKPTI_VALUE(sqrt, V(sqrt)(x))
        GCKPTI_VALUE(abs, V(abs)(x))
        GCKPTI_VALUE(reciprocal, V(reciprocal)(x))
        GCKPTI_VALUE(pow, V(power)(x, o[0]))
        GCKPTI_VALUE(clamp, V(lowest)(V(set1)(o[1]), V(highest)(V(set1)(o[0]), x)))
        GCKPTI_VALUE(add, x + y)
        GCKPTI_VALUE(sub, x - y)
        GCKPTI_VALUE(mul, x * y)
        GCKPTI_VALUE(div, x / y)
        GCKPTI_VALUE(maximum, V(equal)(y, y, V(less)(x, y, y, x), y))
        GCKPTI_VALUE(minimum, V(equal)(y, y, V(less)(y, x, y, x), y))
    }
#undef GCKPTI_VALUE
}

/* gckpti_put */
GCKPTI_INLINED void V(put_sum)(float *d, FLOATS g, int accumulate, int64_t n)
{
    if (accumulate)
        g = V(load_n)(d, n) + g;
    V(store_n)(d, g, n);
}

/* The gradient of input i: g times a slope, or g changed. x: where the slope is taken, at the
 * result or the input; of pairs the other input, y being the own one. */
static GCKPTI_TARGET void V(slopes)(const gckpt_call *call, int kind, int i)
{
    const int64_t at_out = 1 << GCKPTI_KIND_relu | 1 << GCKPTI_KIND_tanh |
                           1 << GCKPTI_KIND_sigmoid | 1 << GCKPTI_KIND_exp | 1 << GCKPTI_KIND_sqrt |
                           1 << GCKPTI_KIND_reciprocal;
    const int by_out = at_out >> kind & 1, accumulate = call->in[i].accumulate;
    const gckpt_arg *at = &call->in[kind < GCKPTI_PAIR ? 0 : 1 - i];
    const float *from_x = by_out ? call->out : at->data, *grad = call->grad_out;
    const int both = (kind == GCKPTI_KIND_div && i) || kind > GCKPTI_KIND_div;
    const float *from_y = both ? call->in[i].data : from_x;
    const float *o = (const float *)call->attributes;
    float *to = call->in[i].grad;
    const int64_t n = gckpti_elements(&call->shape);
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), half = V(set1)(0.5f);
    const gckpti_ahead ahead = gckpti_ahead_of(call, grad, by_out ? call->out_bf16 : at->bf16,
                                               call->grad_out_bf16, call->in[i].grad_bf16);
#define GCKPTI_PUT_BY(name, value, slope)                                                          \
    GCKPTI_LOOP(name, const FLOATS g = V(load_n)(grad + j, left);                                  \
                V(put)(to + j, value, slope, accumulate, left))
#define GCKPTI_PUT(name, value)                                                                    \
    GCKPTI_LOOP(name, const FLOATS g = V(load_n)(grad + j, left);                                  \
                V(put_sum)(to + j, value, accumulate, left))
#define GCKPTI_SLOPE(name) GCKPTI_PUT_BY(name, g, V(name##_slope)(x))
    enum { GCKPTI_KIND_divisor = -1 };
    switch (kind == GCKPTI_KIND_div && i ? GCKPTI_KIND_divisor : kind) {
        GCKPTI_SLOPE(gelu)
        GCKPTI_SLOPE(gelu_erf)
        GCKPTI_SLOPE(silu)
        GCKPTI_SLOPE(tanh)
        GCKPTI_SLOPE(sigmoid)
        GCKPTI_SLOPE(abs)
        GCKPTI_SLOPE(reciprocal)
        GCKPTI_PUT_BY(exp, g, x)
        GCKPTI_PUT(log, g / x)
        GCKPTI_PUT(sqrt, g / (x + x))
        GCKPTI_PUT(relu, V(less)(zero, x, g, zero))
        GCKPTI_PUT(clamp, V(less)(V(set1)(o[0]), x, V(less)(x, V(set1)(o[1]), g, zero), zero))
        GCKPTI_PUT_BY(pow, g, o[0] * V(power)(x, o[0] - 1.0f))
        GCKPTI_PUT_BY(mul, g, x)
        GCKPTI_PUT_BY(maximum, V(less)(y, x, zero, g), V(equal)(x, y, half, one))
        GCKPTI_PUT_BY(minimum, V(less)(x, y, zero, g), V(equal)(x, y, half, one))
        GCKPTI_PUT(div, g / x)
        GCKPTI_PUT_BY(divisor, -g, x / y / y)
    }
#undef GCKPTI_PUT
#undef GCKPTI_PUT_BY
#undef GCKPTI_SLOPE
}
#undef GCKPTI_LOOP

static GCKPTI_TARGET void V(elementwise_backward)(const gckpt_call *call, int kind)
{
    if (kind == GCKPTI_KIND_add)
        gckpti_add_backward(call);
    else if (kind == GCKPTI_KIND_sub)
        gckpti_sub_backward(call);
    else if (kind == GCKPTI_KIND_pow && *(const float *)call->attributes == 0.0f)
        gckpti_pow_backward(call); /* +0 */
    else
        for (int i = 0; i < call->inputs; i++)
            if (call->in[i].grad)
                V(slopes)(call, kind, i);
}
