/* ---- elementwise ops: a loop over whole vectors for each op ---- */
/* Data of a loop that stores in, or adds to, n elements of `to`; o: attributes. Forward: x and y
 * are the inputs (equal in unary ops). Backward: g is the output's gradient, x the result or input
 * at which the derivative is taken; of a binary op, x is the other input and y the input itself. */
typedef struct {
    const float *x, *y, *g, *o;
    float *to;
    int64_t n;
    int kind, accumulate;
    gckpti_hints ahead;
} V(args);

#define GCKPTI_LOOP(name, statement)                                                               \
    case GCKPTI_KIND_##name:                                                                       \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            const FLOATS x = V(load)(s.x + j), y = V(load)(s.y + j);                               \
            V(prefetch)(&s.ahead, j);                                                              \
            statement;                                                                             \
            (void)y;                                                                               \
        }                                                                                          \
        break;

static GCKPTI_TARGET void V(forward_loops)(const V(args) * args)
{
    const V(args) s = *args; /* a copy that no store can alias */
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
        GCKPTI_VALUE(pow, V(pow_dispatch)(x, s.o[0]))
        GCKPTI_VALUE(clamp, V(vmin)(V(set1)(s.o[1]), V(vmax)(V(set1)(s.o[0]), x)))
        GCKPTI_VALUE(leaky_relu, V(if_less)(V(zero)(), x, x, s.o[0] * x))
        GCKPTI_VALUE(softplus, V(softplus)(x))
        GCKPTI_VALUE(sin, V(sin)(x))
        GCKPTI_VALUE(cos, V(cos)(x))
        GCKPTI_VALUE(add, x + y)
        GCKPTI_VALUE(sub, x - y)
        GCKPTI_VALUE(mul, x * y)
        GCKPTI_VALUE(div, x / y)
        GCKPTI_VALUE(maximum, V(if_equal)(y, y, V(if_less)(x, y, y, x), y))
        GCKPTI_VALUE(minimum, V(if_equal)(y, y, V(if_less)(y, x, y, x), y))
    }
#undef GCKPTI_VALUE
}

GCKPTI_INLINED void V(put)(float *d, FLOATS g, int accumulate, int64_t n)
{
    if (accumulate)
        g = V(load_n)(d, n) + g;
    V(store_n)(d, g, n);
}

/* Backward: each loop stores g times a derivative, or another function of g, x and y. */
static GCKPTI_TARGET void V(backward_loops)(const V(args) * args)
{
    const V(args) s = *args;
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), half = V(set1)(0.5f);
#define GCKPTI_PUT_PRODUCT(name, value, deriv)                                                     \
    GCKPTI_LOOP(name, const FLOATS g = V(load)(s.g + j);                                           \
                V(put_product)(s.to + j, value, deriv, s.accumulate, W))
#define GCKPTI_PUT(name, value)                                                                    \
    GCKPTI_LOOP(name, const FLOATS g = V(load)(s.g + j); V(put)(s.to + j, value, s.accumulate, W))
#define GCKPTI_DERIV(name) GCKPTI_PUT_PRODUCT(name, g, V(name##_deriv)(x))
    switch (s.kind) {
        GCKPTI_DERIV(gelu)
        GCKPTI_DERIV(gelu_erf)
        GCKPTI_DERIV(silu)
        GCKPTI_DERIV(tanh)
        GCKPTI_DERIV(sigmoid)
        GCKPTI_DERIV(abs)
        GCKPTI_DERIV(reciprocal)
        GCKPTI_DERIV(softplus)
        GCKPTI_DERIV(sin)
        GCKPTI_DERIV(cos)
        GCKPTI_PUT_PRODUCT(leaky_relu, g, V(if_less)(zero, x, one, V(set1)(s.o[0])))
        GCKPTI_PUT_PRODUCT(exp, g, x)
        GCKPTI_PUT(log, g / x)
        GCKPTI_PUT(sqrt, g / (x + x))
        GCKPTI_PUT(relu, V(if_less)(zero, x, g, zero))
        GCKPTI_PUT(clamp,
                   V(if_less)(V(set1)(s.o[0]), x, V(if_less)(x, V(set1)(s.o[1]), g, zero), zero))
        GCKPTI_PUT_PRODUCT(pow, g, s.o[0] * V(pow_dispatch)(x, s.o[0] - 1.0f))
        GCKPTI_PUT_PRODUCT(mul, g, x)
        GCKPTI_PUT_PRODUCT(maximum, V(if_less)(y, x, zero, g), V(if_equal)(x, y, half, one))
        GCKPTI_PUT_PRODUCT(minimum, V(if_less)(x, y, zero, g), V(if_equal)(x, y, half, one))
        GCKPTI_PUT(div, g / x)
        GCKPTI_PUT_PRODUCT(divisor, -g, x / y / y)
    }
#undef GCKPTI_PUT
#undef GCKPTI_PUT_PRODUCT
#undef GCKPTI_DERIV
}
#undef GCKPTI_LOOP

/* Runs the loops; elements after the last whole vector are computed as one padded vector. */
static GCKPTI_TARGET void V(run_loops)(V(args) * s, void (*loops)(const V(args) * args))
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

/* where: the forward if i is -1, else the gradient of input i. -0 as a condition is 0 as well. */
static GCKPTI_TARGET void V(where_select)(const gckpt_call *call, int i)
{
    const gckpt_arg *c = &call->in[0], *in = &call->in[i > 0 ? i : 0];
    const void *words = c->index ? (const void *)c->index : (const void *)c->data;
    const float *x = (const float *)words, *a = i > 0 ? call->grad_out : call->in[1].data;
    const int64_t n = gckpti_elements(&call->shape);
    if (i == 0)
        gckpti_zero_unless(in->grad, n, in->accumulate);
    for (int64_t at = 0, left = n; left > 0 && i; at += W, left -= W) {
        INTS rest = (INTS)(V(bits)(V(load_n)(x + at, left)) << !c->index == 0) ^ (0u - (i == 2));
        FLOATS y = i > 0 ? V(zero)() : V(load_n)(call->in[2].data + at, left);
        y = V(floats)((rest & V(bits)(y)) | (~rest & V(bits)(V(load_n)(a + at, left))));
        if (i > 0)
            V(put)(in->grad + at, y, in->accumulate, left);
        else
            V(store_n)(call->out + at, y, left);
    }
}

static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const gckpt_arg *x = &call->in[0], *y = &call->in[kind >= GCKPTI_FIRST_BINARY];
    const float *o = (const float *)call->attributes;
    const int64_t n = gckpti_elements(&call->shape);
    const gckpti_hints hints =
        gckpti_hints_of(call, x->data, x->bf16, call->out_bf16, x == y ? NULL : y->bf16);
    V(args) s = { x->data, y->data, NULL, o, call->out, n, kind, 0, hints };
    if (kind == GCKPTI_KIND_where)
        V(where_select)(call, -1);
    else
        V(run_loops)(&s, V(forward_loops));
}

static GCKPTI_TARGET void V(elementwise_grad)(const gckpt_call *call, int kind, int i)
{
    const int at_out = kind < GCKPTI_FIRST_AT_INPUT;
    const gckpt_arg *self = &call->in[i], *at = &call->in[kind < GCKPTI_FIRST_BINARY ? 0 : 1 - i];
    const float *x = at_out ? call->out : at->data;
    const int divisor = kind == GCKPTI_KIND_div && i, both = divisor || kind > GCKPTI_KIND_div;
    const float *y = both ? self->data : x, *o = (const float *)call->attributes;
    const uint16_t *x_bf16 = at_out ? call->out_bf16 : at->bf16;
    const int64_t n = gckpti_elements(&call->shape);
    const gckpti_hints hints =
        gckpti_hints_of(call, call->grad_out, x_bf16, call->grad_out_bf16, self->grad_bf16);
    V(args) s = { x, y, call->grad_out, o, self->grad, n, kind, self->accumulate, hints };
    s.kind = divisor ? GCKPTI_KIND_divisor : kind;
    V(run_loops)(&s, V(backward_loops));
}

static GCKPTI_TARGET void V(elementwise_backward)(const gckpt_call *call, int kind)
{
    if (kind == GCKPTI_KIND_add)
        gckpti_add_backward(call);
    else if (kind == GCKPTI_KIND_sub)
        gckpti_sub_backward(call);
    else if (kind == GCKPTI_KIND_pow && *(const float *)call->attributes == 0.0f)
        gckpti_pow_backward(call); /* dx = +0 */
    else
        for (int i = 0; i < call->inputs; i++)
            if (call->in[i].grad && kind != GCKPTI_KIND_where)
                V(elementwise_grad)(call, kind, i);
            else if (call->in[i].grad)
                V(where_select)(call, i);
}
