/* Returns the values of an input, or the words of an i32 one. */
Values words_of(const gckpt_arg &x)
{
    return x.index ? Values{ (const float *)(const void *)x.index, NULL } : value_of(x);
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i], *from = &call->in[other];
    const Values g = grad_out_of(call), x = reads & GCKPT_IN(i) ? value_of(*in) : NONE;
    const Values y = reads & GCKPT_IN(other) ? words_of(*from) : NONE;
    if (!wanted(*in) || (in->grad == g.f32 && in->grad_bf16 == g.bf16)) /* g is in place already */
        return;
    const gckpti_iter it = iterate(call->shape, in->shape, call->shape, from->shape, in->shape);
    if (in->compensation)
        sums(call, it, { {}, { rule }, g, y, x }, sum_of(*in));
    else
        map(call, it, Gradient{ rule }, grad_of(*in), g, y, x, in->accumulate);
}

/* Computes a op b. */
template <auto F> struct Binary {
    __device__ void operator()(float *d, float a, float b, float, int) const { *d = F(a, b); }
};

/* Defines how an op of GCKPTI_BINARY_OPS runs. grad_a, reads_a: the rule of the first input's
 * gradient, and the inputs that this rule reads. */
#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    void name##_by(const gckpt_call *call, bool backward)                                          \
    {                                                                                              \
        const gckpt_arg &a = call->in[0], &b = call->in[1];                                        \
        if (!backward)                                                                             \
            return map(call, iterate(call->shape, call->shape, a.shape, b.shape, b.shape),         \
                       Binary<gckpti_##name##_value>(), out_of(call), value_of(a), value_of(b));   \
        broadcast_gradient(call, 0, 1, GRAD_##grad_a, reads_a);                                    \
        broadcast_gradient(call, 1, 0, GRAD_##grad_b, reads_b);                                    \
    }
GCKPTI_BINARY_OPS(BINARY)
#undef BINARY

struct Where { /* a where the condition is true, else b */
    bool is_i32;
    __device__ void operator()(float *d, float condition, float a, float b, int) const
    {
        *d = holds(condition, is_i32) ? a : b;
    }
};

void where_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *in = call->in;
    const bool is_i32 = in[0].index != NULL;
    if (!backward)
        return map(call, iterate(call->shape, call->shape, in[0].shape, in[1].shape, in[2].shape),
                   Where{ is_i32 }, out_of(call), words_of(in[0]), value_of(in[1]),
                   value_of(in[2]));
    if (in[0].grad && !in[0].accumulate)
        fill(call, in[0].grad, 0, gckpti_elements(&in[0].shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}
