/* Iterates over the result and inputs i and j. */
Axes broadcast_axes(const gckpt_call *call, int i, int j)
{
    return axes_over(call->shape, call->in[i].shape, call->in[j].shape, true);
}

/* Returns the values of an input, or the words of an i32 one. */
Values words_of(const gckpt_arg &x)
{
    return x.index ? Values{ (const float *)(const void *)x.index, NULL } : value_of(x);
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
template <bool BF16 = false>
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i];
    const Values g = grad_out_of(call), x = reads & GCKPT_IN(i) ? value_of(*in) : NONE;
    const Values at = reads & GCKPT_IN(other) ? words_of(call->in[other]) : NONE;
    if (!wanted(*in) || (in->grad == g.f32 && in->grad_bf16 == g.bf16)) /* g is in place already */
        return;
    Axes axes = broadcast_axes(call, i, other);
    if (in->compensation)
        sums(call, axes, { { rule }, g, at, x, sum_of(*in) });
    else
        map<BF16>(call, axes, Gradient{ rule }, grad_of(*in), g, at, x, in->accumulate);
}

/* Computes a op b. */
template <auto F> struct Binary {
    __device__ void operator()(float *d, float a, float b, float, int) const { *d = F(a, b); }
};

/* Defines how an op of GCKPTI_BINARY_OPS runs. grad_a, reads_a: the rule of the first input's
 * gradient, and the inputs that this rule reads. */
#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    template <bool BF16> void name##_by(const gckpt_call *call, bool backward)                     \
    {                                                                                              \
        const gckpt_arg *in = call->in;                                                            \
        if (!backward)                                                                             \
            return map<BF16>(call, broadcast_axes(call, 0, 1), Binary<gckpti_##name##_value>(),    \
                             out_of(call), value_of(in[0]), value_of(in[1]), NONE, 0);             \
        broadcast_gradient<BF16>(call, 0, 1, GRAD_##grad_a, reads_a);                              \
        broadcast_gradient<BF16>(call, 1, 0, GRAD_##grad_b, reads_b);                              \
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
    Values self = value_of(*rest);
    const Where f = { call->in[0].index != NULL, taken == 1 };
    if (gckpti_elements(&rest->shape) != n) {
        map(call, broadcast_axes(call, 3 - taken, 0), Copy(), out_of(call), self, NONE, NONE, 0);
        self = value_out_of(call);
    }
    map(call, broadcast_axes(call, taken, 0), f, out_of(call), value_of(call->in[taken]),
        words_of(call->in[0]), self, 0);
}

void where_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return where_forward(call);
    const bool is_i32 = call->in[0].index != NULL;
    const gckpt_arg *condition = &call->in[0];
    if (condition->grad && !condition->accumulate)
        fill(call, condition->grad, 0, gckpti_elements(&condition->shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}
