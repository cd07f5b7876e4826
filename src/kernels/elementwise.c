/* ---- elementwise ops ---- */
/* The loops of each op (ops/loops.h), by GCKPTI_KIND_.., and what the gradient of an op of one
 * input reads. */
#define GCKPTI_UNARY_LOOPS(name, flops, reads, ...)                                                \
    { V(name##_values), { GCKPTI_IF_TRAINING(V(name##_gradients)), NULL }, reads },
#define GCKPTI_BINARY_LOOPS(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)           \
    { V(name##_values),                                                                            \
      { GCKPTI_IF_TRAINING(V(grad_a##_gradient)), GCKPTI_IF_TRAINING(V(grad_b##_gradient)) },      \
      0 },
static const struct {
    gckpti_loop_fn values, gradients[2];
    unsigned reads;
} V(elementwise)[] = { GCKPTI_UNARY_OPS(GCKPTI_UNARY_LOOPS)
                           GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_LOOPS)
                               GCKPTI_BINARY_OPS(GCKPTI_BINARY_LOOPS) };
#undef GCKPTI_UNARY_LOOPS
#undef GCKPTI_BINARY_LOOPS

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
    gckpti_loop s = gckpti_loop_of(call, 0, 0);
    s.y = call->in[kind >= GCKPTI_FIRST_BINARY].data;
    if (kind == GCKPTI_KIND_where)
        V(where_select)(call, -1);
    else
        V(run_loop)(&s, V(elementwise)[kind].values);
}

static GCKPTI_TARGET void V(elementwise_grad)(const gckpt_call *call, int kind, int i)
{
    const gckpt_arg *self = &call->in[i];
    gckpti_loop s = gckpti_loop_of(call, 1, V(elementwise)[kind].reads);
    if (kind >= GCKPTI_FIRST_BINARY) { /* a NULL array is not used */
        s.x = self->data ? self->data : s.g;
        s.y = call->in[1 - i].data ? call->in[1 - i].data : s.g;
    }
    s.to = self->grad, s.accumulate = self->accumulate;
    V(run_loop)(&s, V(elementwise)[kind].gradients[i]);
}

static GCKPTI_TARGET void V(elementwise_backward)(const gckpt_call *call, int kind)
{
    for (int i = 0; i < call->inputs; i++)
        if (kind == GCKPTI_KIND_where && call->in[i].grad)
            V(where_select)(call, i);
        else if (call->in[i].grad &&
                 (kind < GCKPTI_FIRST_BINARY || call->in[i].grad != call->grad_out))
            V(elementwise_grad)(call, kind, i);
}
