/* ---- elementwise ops ---- */
/* The loops of ops of two inputs; those of one input are in ops/loops.h. */
#define GCKPTI_BINARY_LOOP(name, value)                                                            \
    static GCKPTI_TARGET void V(name)(const gckpti_loop *loop)                                     \
    {                                                                                              \
        const gckpti_loop s = *loop; /* a copy that no store can alias */                          \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            const FLOATS x = V(load)(s.x + j), y = V(load)(s.y + j);                               \
            V(prefetch_next)(&s.ahead, j);                                                         \
            value;                                                                                 \
            (void)y;                                                                               \
        }                                                                                          \
    }
#define GCKPTI_VALUES(name, value) GCKPTI_BINARY_LOOP(name##_values, V(store)(s.to + j, value))
/* Stores or adds a times b (product) or a / b (quotient). */
#define GCKPTI_GRADIENTS(name, rule, a, b)                                                         \
    GCKPTI_BINARY_LOOP(name##_gradients, const FLOATS g = V(load)(s.g + j);                        \
                       V(put_##rule##_n)(s.to + j, a, b, s.accumulate, W))
GCKPTI_VALUES(add, x + y)
GCKPTI_VALUES(sub, x - y)
GCKPTI_VALUES(mul, (x * y))
GCKPTI_VALUES(div, x / y)
GCKPTI_VALUES(maximum, V(if_equal)(y, y, V(if_less)(x, y, y, x), y))
GCKPTI_VALUES(minimum, V(if_equal)(y, y, V(if_less)(y, x, y, x), y))
GCKPTI_GRADIENTS(mul, product, g, x)
GCKPTI_GRADIENTS(div, quotient, g, x)
GCKPTI_GRADIENTS(divisor, product, -g, x / y / y)
GCKPTI_GRADIENTS(maximum, product, V(if_less)(y, x, V(zero)(), g),
                 V(if_equal)(x, y, V(set1)(0.5f), V(set1)(1.0f)))
GCKPTI_GRADIENTS(minimum, product, V(if_less)(x, y, V(zero)(), g),
                 V(if_equal)(x, y, V(set1)(0.5f), V(set1)(1.0f)))
#undef GCKPTI_VALUES
#undef GCKPTI_GRADIENTS
#undef GCKPTI_BINARY_LOOP

/* The loops of each op, by GCKPTI_KIND_.., and what the gradient of an op of one input reads. */
#define GCKPTI_LOOPS(name, reads)                                                                  \
    { V(name##_values), GCKPTI_IF_TRAINING(V(name##_gradients)), reads },
#define GCKPTI_UNARY_LOOPS(name, flops, reads, value, rule, deriv) GCKPTI_LOOPS(name, reads)
static const struct {
    gckpti_loop_fn values, gradients;
    unsigned reads;
} V(elementwise)[] = { GCKPTI_UNARY_OPS(GCKPTI_UNARY_LOOPS)
                           GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_LOOPS){ V(add_values), NULL, 0 },
                       { V(sub_values), NULL, 0 },
                       GCKPTI_LOOPS(mul, 0) GCKPTI_LOOPS(div, 0) GCKPTI_LOOPS(maximum, 0)
                           GCKPTI_LOOPS(minimum, 0) };
#undef GCKPTI_LOOPS
#undef GCKPTI_UNARY_LOOPS

/* Runs a loop; elements after the last whole vector are computed as one padded vector. */
static GCKPTI_TARGET void V(run_loop)(gckpti_loop *s, gckpti_loop_fn loop)
{
    const int64_t left = s->n % W, at = s->n - left;
    float x[W], y[W], g[W], all[W], *to = s->to + at;
    s->n = at;
    if (at)
        loop(s);
    if (!left)
        return;
    V(store)(x, V(load_n)(s->x + at, left));
    V(store)(y, V(load_n)(s->y + at, left));
    V(store)(g, V(load_n)(s->g ? s->g + at : x, left));
    V(store)(all, V(load_n)(s->accumulate ? to : x, left));
    s->x = x, s->y = y, s->g = g, s->to = all, s->n = W;
    loop(s);
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
            V(put_n)(in->grad + at, y, in->accumulate, left);
        else
            V(store_n)(call->out + at, y, left);
    }
}

static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const gckpt_arg *x = &call->in[0], *y = &call->in[kind >= GCKPTI_FIRST_BINARY];
    gckpti_loop s = gckpti_loop_of(call, 0, 0);
    s.y = y->data;
    s.ahead = gckpti_hints_of(call, x->data, x->bf16, call->out_bf16, x == y ? NULL : y->bf16);
    if (kind == GCKPTI_KIND_where)
        V(where_select)(call, -1);
    else
        V(run_loop)(&s, V(elementwise)[kind].values);
}

static GCKPTI_TARGET void V(elementwise_grad)(const gckpt_call *call, int kind, int i)
{
    const gckpt_arg *self = &call->in[i], *at = &call->in[kind < GCKPTI_FIRST_BINARY ? 0 : 1 - i];
    const unsigned reads = V(elementwise)[kind].reads;
    const int divisor = kind == GCKPTI_KIND_div && i;
    gckpti_loop s = gckpti_loop_of(call, 1, reads);
    const uint16_t *x_bf16 = reads & GCKPT_OUT ? call->out_bf16 : at->bf16;
    if (kind >= GCKPTI_FIRST_BINARY)
        s.x = at->data, s.y = self->data ? self->data : s.x;
    s.to = self->grad, s.accumulate = self->accumulate;
    s.ahead = gckpti_hints_of(call, call->grad_out, x_bf16, call->grad_out_bf16, self->grad_bf16);
    V(run_loop)(&s, divisor ? V(divisor_gradients) : V(elementwise)[kind].gradients);
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
