/* ---- elementwise ops ---- */
/* The value of an elementwise op; of curves y is not used. o: its attributes. */
GCKPTI_INLINED FLOATS V(value)(int kind, FLOATS x, FLOATS y, const float *o)
{
    if (kind == GCKPTI_KIND_add)
        return x + y;
    if (kind == GCKPTI_KIND_sub)
        return x - y;
    if (kind == GCKPTI_KIND_mul)
        return x * y;
    if (kind == GCKPTI_KIND_div)
        return x / y;
    if (kind == GCKPTI_KIND_maximum)
        return V(equal)(y, y, V(less)(x, y, y, x), y);
    if (kind == GCKPTI_KIND_minimum)
        return V(equal)(y, y, V(less)(y, x, y, x), y);
    if (kind == GCKPTI_KIND_relu)
        return V(relu)(x);
    if (kind == GCKPTI_KIND_gelu)
        return V(gelu)(x);
    if (kind == GCKPTI_KIND_gelu_erf)
        return V(gelu_erf)(x);
    if (kind == GCKPTI_KIND_tanh)
        return V(tanh)(x);
    if (kind == GCKPTI_KIND_exp)
        return V(exp)(x);
    if (kind == GCKPTI_KIND_log)
        return V(log)(x);
    if (kind == GCKPTI_KIND_sqrt)
        return V(sqrt)(x);
    if (kind == GCKPTI_KIND_abs)
        return V(abs)(x);
    if (kind == GCKPTI_KIND_reciprocal)
        return V(reciprocal)(x);
    if (kind == GCKPTI_KIND_pow)
        return V(power)(x, o[0]);
    if (kind == GCKPTI_KIND_clamp) {
        x = V(less)(x, V(set1)(o[0]), V(set1)(o[0]), x);
        return V(less)(V(set1)(o[1]), x, V(set1)(o[1]), x);
    }
    return kind == GCKPTI_KIND_silu ? V(silu)(x) : V(sigmoid)(x);
}

/* By this the gradient is multiplied. Some take their slope at the result (see slopes); mul's is
 * the other input. */
GCKPTI_INLINED FLOATS V(slope)(int kind, FLOATS x, const float *o)
{
    if (kind == GCKPTI_KIND_abs)
        return V(abs_slope)(x);
    if (kind == GCKPTI_KIND_reciprocal)
        return V(reciprocal_slope)(x);
    if (kind == GCKPTI_KIND_pow)
        return o[0] * V(power)(x, o[0] - 1.0f);
    if (kind == GCKPTI_KIND_tanh)
        return V(tanh_slope)(x);
    if (kind == GCKPTI_KIND_sigmoid)
        return V(sigmoid_slope)(x);
    if (kind == GCKPTI_KIND_silu)
        return V(silu_slope)(x);
    if (kind == GCKPTI_KIND_gelu)
        return V(gelu_slope)(x);
    if (kind == GCKPTI_KIND_gelu_erf)
        return V(gelu_erf_slope)(x);
    return x; /* exp, mul */
}

/* An elementwise op has a loop for each kind, so that `kind` is a constant in it. */
static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const float *x = call->in[0].data, *y = call->in[kind < GCKPTI_PAIR ? 0 : 1].data;
    const float *o = (const float *)call->attributes;
    float *out = call->out;
    int64_t n = gckpti_elements(&call->shape);
    const gckpti_ahead ahead = gckpti_ahead_of(call, x, call->in[0].bf16, call->out_bf16,
                                               kind < GCKPTI_PAIR ? NULL : call->in[1].bf16);
#define GCKPTI_KIND(name)                                                                          \
    case GCKPTI_KIND_##name:                                                                       \
        for (int64_t j = 0; j < n; j += W) {                                                       \
            const int k = GCKPTI_KIND_##name;                                                      \
            V(fetch)(&ahead, j);                                                                   \
            FLOATS u = V(load_n)(x + j, n - j), v = k < GCKPTI_PAIR ? u : V(load_n)(y + j, n - j); \
            V(store_n)(out + j, V(value)(k, u, v, o), n - j);                                      \
        }                                                                                          \
        break;
    switch (kind) {
        GCKPTI_CURVES(GCKPTI_KIND)
        GCKPTI_PAIRS(GCKPTI_KIND)
    }
#undef GCKPTI_KIND
}

/* gckpti_put */
GCKPTI_INLINED void V(put_sum)(float *d, FLOATS g, int accumulate, int64_t n)
{
    if (accumulate)
        g = V(load_n)(d, n) + g;
    V(store_n)(d, g, n);
}

/* d (+)= g times the slope, or over it, or g where it is not lost. x: where the slope is taken; of
 * pairs the other input, y being the own one. second: the input is the second one. */
GCKPTI_INLINED void V(put_slope)(int kind, int second, float *d, FLOATS g, FLOATS x, FLOATS y,
                                 const float *o, int accumulate, int64_t n)
{
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f);
    if (kind == GCKPTI_KIND_clamp) {
        g = V(less)(V(set1)(o[0]), x, V(less)(x, V(set1)(o[1]), g, zero), zero);
        V(put_sum)(d, g, accumulate, n);
    } else if (kind == GCKPTI_KIND_relu)
        V(put_sum)(d, V(less)(zero, x, g, zero), accumulate, n);
    else if (kind == GCKPTI_KIND_sqrt)
        V(put_sum)(d, g / (x + x), accumulate, n);
    else if (kind == GCKPTI_KIND_log || (kind == GCKPTI_KIND_div && !second))
        V(put_sum)(d, g / x, accumulate, n);
    else if (kind == GCKPTI_KIND_div)
        V(put)(d, -g, x / y / y, accumulate, n);
    else if (kind == GCKPTI_KIND_maximum)
        V(put)(d, V(less)(y, x, zero, g), V(equal)(x, y, V(set1)(0.5f), one), accumulate, n);
    else if (kind == GCKPTI_KIND_minimum)
        V(put)(d, V(less)(x, y, zero, g), V(equal)(x, y, V(set1)(0.5f), one), accumulate, n);
    else if (kind == GCKPTI_KIND_pow && o[0] == 0.0f)
        V(put_sum)(d, zero, accumulate, n);
    else
        V(put)(d, g, V(slope)(kind, x, o), accumulate, n);
}

/* The gradient of input i. */
static GCKPTI_TARGET void V(slopes)(const gckpt_call *call, int kind, int i)
{
    const int64_t at_out = 1 << GCKPTI_KIND_relu | 1 << GCKPTI_KIND_tanh |
                           1 << GCKPTI_KIND_sigmoid | 1 << GCKPTI_KIND_exp | 1 << GCKPTI_KIND_sqrt |
                           1 << GCKPTI_KIND_reciprocal;
    const int both = (kind == GCKPTI_KIND_div && i) || kind > GCKPTI_KIND_div;
    const float *x = at_out >> kind & 1 ? call->out : call->in[kind < GCKPTI_PAIR ? 0 : 1 - i].data;
    const float *y = both ? call->in[i].data : x, *g = call->grad_out;
    const float *o = (const float *)call->attributes;
    float *d = call->in[i].grad;
    int64_t n = gckpti_elements(&call->shape);
    int accumulate = call->in[i].accumulate;
    const gckpti_ahead ahead = gckpti_ahead_of(
        call, g,
        at_out >> kind & 1 ? call->out_bf16 : call->in[kind < GCKPTI_PAIR ? 0 : 1 - i].bf16,
        call->grad_out_bf16, call->in[i].grad_bf16);
#define GCKPTI_KIND(name)                                                                          \
    case GCKPTI_KIND_##name:                                                                       \
        for (int64_t j = 0; j < n; j += W) {                                                       \
            V(fetch)(&ahead, j);                                                                   \
            V(put_slope)                                                                           \
            (GCKPTI_KIND_##name, i, d + j, V(load_n)(g + j, n - j), V(load_n)(x + j, n - j),       \
             V(load_n)(y + j, n - j), o, accumulate, n - j);                                       \
        }                                                                                          \
        break;
    switch (kind) {
        GCKPTI_CURVES(GCKPTI_KIND)
        GCKPTI_KIND(mul)
        GCKPTI_KIND(div)
        GCKPTI_KIND(maximum)
        GCKPTI_KIND(minimum)
    }
#undef GCKPTI_KIND
}

static GCKPTI_TARGET void V(elementwise_backward)(const gckpt_call *call, int kind)
{
    if (kind == GCKPTI_KIND_add || kind == GCKPTI_KIND_sub)
        (kind == GCKPTI_KIND_add ? gckpti_add_backward : gckpti_sub_backward)(call);
    else
        for (int i = 0; i < call->inputs; i++)
            if (call->in[i].grad)
                V(slopes)(call, kind, i);
}
