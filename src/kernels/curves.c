/* ---- elementwise ops: a loop for each, over whole vectors ---- */
/* to (+)= what the loop says of x and y, n of them, and of the op's attributes o. Forward: of the
 * inputs, a curve's twice. Backward: of the gradient g that comes, where x is where the slope is
 * taken, at the result or the input; of pairs the other input, y being the own one. */
typedef struct {
    const float *x, *y, *g, *o;
    float *to;
    int64_t n;
    int kind, accumulate;
    gckpti_ahead ahead;
} V(piece);

#define GCKPTI_LOOP(name, statement)                                                               \
    case GCKPTI_KIND_##name:                                                                       \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            const FLOATS x = V(load)(s.x + j), y = V(load)(s.y + j);                               \
            V(fetch)(&s.ahead, j);                                                                 \
            statement;                                                                             \
            (void)y;                                                                               \
        }                                                                                          \
        break;

static GCKPTI_TARGET void V(values)(const V(piece) *piece)
{
    const V(piece) s = *piece; /* which no store changes */
#define GCKPTI_VALUE(name, value) GCKPTI_LOOP(name, V(store)(s.to + j, value))
    switch (s.kind) {
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
        GCKPTI_VALUE(pow, V(power)(x, s.o[0]))
        GCKPTI_VALUE(clamp, V(lowest)(V(set1)(s.o[1]), V(highest)(V(set1)(s.o[0]), x)))
        GCKPTI_VALUE(leaky_relu, V(less)(V(zero)(), x, x, s.o[0] * x))
        GCKPTI_VALUE(softplus, V(softplus)(x))
        GCKPTI_VALUE(sin, V(sin)(x))
        GCKPTI_VALUE(cos, V(cos)(x))
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

/* g times a slope, or g changed. */
static GCKPTI_TARGET void V(slopes)(const V(piece) *piece)
{
    const V(piece) s = *piece;
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), half = V(set1)(0.5f);
#define GCKPTI_PUT_BY(name, value, slope)                                                          \
    GCKPTI_LOOP(name, const FLOATS g = V(load)(s.g + j);                                           \
                V(put)(s.to + j, value, slope, s.accumulate, W))
#define GCKPTI_PUT(name, value)                                                                    \
    GCKPTI_LOOP(name, const FLOATS g = V(load)(s.g + j);                                           \
                V(put_sum)(s.to + j, value, s.accumulate, W))
#define GCKPTI_SLOPE(name) GCKPTI_PUT_BY(name, g, V(name##_slope)(x))
    switch (s.kind) {
        GCKPTI_SLOPE(gelu)
        GCKPTI_SLOPE(gelu_erf)
        GCKPTI_SLOPE(silu)
        GCKPTI_SLOPE(tanh)
        GCKPTI_SLOPE(sigmoid)
        GCKPTI_SLOPE(abs)
        GCKPTI_SLOPE(reciprocal)
        GCKPTI_SLOPE(softplus)
        GCKPTI_SLOPE(sin)
        GCKPTI_SLOPE(cos)
        GCKPTI_PUT_BY(leaky_relu, g, V(less)(zero, x, one, V(set1)(s.o[0])))
        GCKPTI_PUT_BY(exp, g, x)
        GCKPTI_PUT(log, g / x)
        GCKPTI_PUT(sqrt, g / (x + x))
        GCKPTI_PUT(relu, V(less)(zero, x, g, zero))
        GCKPTI_PUT(clamp, V(less)(V(set1)(s.o[0]), x, V(less)(x, V(set1)(s.o[1]), g, zero), zero))
        GCKPTI_PUT_BY(pow, g, s.o[0] * V(power)(x, s.o[0] - 1.0f))
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

/* Elements after the last whole vector go through one of their own. */
static GCKPTI_TARGET void V(piece_run)(V(piece) *s, void (*loops)(const V(piece) *piece))
{
    const int64_t left = s->n % W, at = s->n - left;
    float x[W], y[W], g[W], all[W], *to = s->to + at;
    s->n = at;
    if (at)
        loops(s);
    if (!left)
        return;
    V(store)(x, V(load_n)(s->x + at, left));
    V(store)(y, V(load_n)(s->y + at, left));
    V(store)(g, V(load_n)(s->g ? s->g + at : x, left));
    V(store)(all, V(load_n)(s->accumulate ? to : x, left));
    s->x = x, s->y = y, s->g = g, s->to = all, s->n = W;
    loops(s);
    V(store_n)(to, V(load)(all), left);
}

/* where: forward (i -1), or the gradient of input i. Of f32 conditions the sign is shifted out. */
static GCKPTI_TARGET void V(choose)(const gckpt_call *call, int i)
{
    const gckpt_arg *c = &call->in[0], *in = &call->in[i > 0 ? i : 0];
    const void *words = c->index ? (const void *)c->index : (const void *)c->data;
    const float *x = (const float *)words, *a = i > 0 ? call->grad_out : call->in[1].data;
    const int64_t n = gckpti_elements(&call->shape);
    if (i == 0)
        gckpti_start(in->grad, n, in->accumulate);
    for (int64_t at = 0, left = n; left > 0 && i; at += W, left -= W) {
        INTS rest = (INTS)(V(bits)(V(load_n)(x + at, left)) << !c->index == 0) ^ (0u - (i == 2));
        FLOATS y = i > 0 ? V(zero)() : V(load_n)(call->in[2].data + at, left);
        y = V(floats)((rest & V(bits)(y)) | (~rest & V(bits)(V(load_n)(a + at, left))));
        if (i > 0)
            V(put_sum)(in->grad + at, y, in->accumulate, left);
        else
            V(store_n)(call->out + at, y, left);
    }
}

static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const gckpt_arg *x = &call->in[0], *y = &call->in[kind >= GCKPTI_PAIR];
    V(piece) s = { x->data, y->data, NULL, (const float *)call->attributes, call->out,
                   gckpti_elements(&call->shape), kind, 0,
                   gckpti_ahead_of(call, x->data, x->bf16, call->out_bf16,
                                   x == y ? NULL : y->bf16) };
    if (kind == GCKPTI_KIND_where)
        V(choose)(call, -1);
    else
        V(piece_run)(&s, V(values));
}

static GCKPTI_TARGET void V(elementwise_slopes)(const gckpt_call *call, int kind, int i)
{
    const int by_out = kind < GCKPTI_AT_X;
    const gckpt_arg *own = &call->in[i], *at = &call->in[kind < GCKPTI_PAIR ? 0 : 1 - i];
    const float *x = by_out ? call->out : at->data;
    const int divisor = kind == GCKPTI_KIND_div && i, both = divisor || kind > GCKPTI_KIND_div;
    V(piece) s = { x, both ? own->data : x, call->grad_out, (const float *)call->attributes,
                   own->grad, gckpti_elements(&call->shape), divisor ? GCKPTI_KIND_divisor : kind,
                   own->accumulate,
                   gckpti_ahead_of(call, call->grad_out, by_out ? call->out_bf16 : at->bf16,
                                   call->grad_out_bf16, own->grad_bf16) };
    V(piece_run)(&s, V(slopes));
}

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
            if (call->in[i].grad && kind != GCKPTI_KIND_where)
                V(elementwise_slopes)(call, kind, i);
            else if (call->in[i].grad)
                V(choose)(call, i);
}
