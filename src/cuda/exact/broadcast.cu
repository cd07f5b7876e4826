/* Iterates over the result and inputs i and j. */
Axes<int64_t> broadcast_axes(const gckpt_call *call, int i, int j)
{
    const gckpt_arg *in = call->in;
    return axes_of(gckpti_iter_over(&call->shape, &in[i].shape, &in[j].shape), 0, true);
}

void broadcast_forward(const gckpt_call *call, BinaryOp op)
{
    const gckpt_arg *in = call->in;
    combine(call, broadcast_axes(call, 0, 1), Binary{ op }, call->out, in[0].data, in[1].data, NULL,
            0);
}

/* Returns the values of an input, or the words of an i32 one. */
const float *words_of(const gckpt_arg &x)
{
    return x.index ? (const float *)(const void *)x.index : x.data;
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i], *y = &call->in[other];
    const float *x = reads & GCKPT_IN(i) ? in->data : NULL;
    const float *at = reads & GCKPT_IN(other) ? words_of(*y) : NULL;
    if (!wanted(*in) || (in->grad && in->grad == call->grad_out)) /* g is in place already */
        return;
    Axes<int64_t> axes = broadcast_axes(call, i, other);
    if (in->compensation)
        sums(call, axes, { { rule }, grad_out_of(call), at, x, sum_of(*in) });
    else
        combine(call, axes, Gradient{ rule }, in->grad, call->grad_out, at, x, in->accumulate);
}

#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    void name##_forward(const gckpt_call *call) { broadcast_forward(call, OP_##name); }            \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        broadcast_gradient(call, 0, 1, GRAD_##grad_a, reads_a);                                    \
        broadcast_gradient(call, 1, 0, GRAD_##grad_b, reads_b);                                    \
    }
GCKPTI_BINARY_OPS(BINARY)
#undef BINARY

/* Computes a where the condition equals on_true, and `self` elsewhere. */
struct Where {
    bool is_i32, on_true;
    __device__ void operator()(float *d, float a, float condition, float self, int) const
    {
        *d = holds(condition, is_i32) == on_true ? a : self;
    }
};

/* Selects from input `taken`, else `rest`. If both are repeated, expands `rest` into out first. */
void where_forward(const gckpt_call *call)
{
    const int64_t n = gckpti_elements(&call->shape);
    const bool repeated = gckpti_elements(&call->in[1].shape) != n;
    const int taken = repeated || gckpti_elements(&call->in[2].shape) == n ? 1 : 2;
    const gckpt_arg *rest = &call->in[3 - taken];
    const float *self = rest->data;
    const Where f = { call->in[0].index != NULL, taken == 1 };
    if (gckpti_elements(&rest->shape) != n) {
        combine(call, broadcast_axes(call, 3 - taken, 0), Quotient{ 1.0f }, call->out, self, NULL,
                NULL, 0);
        self = call->out;
    }
    combine(call, broadcast_axes(call, taken, 0), f, call->out, call->in[taken].data,
            words_of(call->in[0]), self, 0);
}

void where_backward(const gckpt_call *call)
{
    const bool is_i32 = call->in[0].index != NULL;
    const gckpt_arg *condition = &call->in[0];
    if (condition->grad && !condition->accumulate)
        fill(call, condition->grad, 0, gckpti_elements(&condition->shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}
