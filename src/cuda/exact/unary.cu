/* Computes an element of y = F(x, o) as gradckpt.h does. o: the N attributes. */
template <auto F, int N = 0> struct Unary {
    static constexpr int READS = READS_A, ATTRIBUTES = N;
    float o[N + 1];
    __device__ void operator()(float *d, float x, float, int) const { *d = F(x, o); }
};

/* PUT stores or adds g * DERIV(at, o) in an element of dx. at: x, or y if DERIV takes y. */
template <auto DERIV, auto PUT, int N = 0> struct UnaryGrad {
    static constexpr int READS = READS_BOTH, ATTRIBUTES = N;
    float o[N + 1];
    __device__ void operator()(float *d, float at, float g, int accumulate) const
    {
        PUT(d, g, DERIV(at, o), accumulate, 1);
    }
};

template <class F> F by_attributes(const gckpt_call *call)
{
    F f = {};
    for (int i = 0; i < F::ATTRIBUTES; i++)
        f.o[i] = ((const float *)call->attributes)[i];
    return f;
}

/* Computes x's gradient by f from a and b, which have the layout of x. */
template <class F>
void map_gradient(const gckpt_call *call, const gckpt_arg &x, F f, const float *a, const float *b)
{
    map(call, f, a, b, x.grad, gckpti_elements(&x.shape), x.accumulate);
}

template <class F> void map_forward(const gckpt_call *call, F f)
{
    map(call, f, call->in[0].data, NULL, call->out, gckpti_elements(&call->shape), 0);
}

#define UNARY_WITH(name, flops, reads, value, rule, deriv, n, ...)                                 \
    void name##_forward(const gckpt_call *call)                                                    \
    {                                                                                              \
        map_forward(call, by_attributes<Unary<gckpti_##name##_value, n>>(call));                   \
    }                                                                                              \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        using Gradient = UnaryGrad<gckpti_##name##_slope, gckpti_put_##rule##_n, n>;               \
        map_gradient(call, call->in[0], by_attributes<Gradient>(call),                             \
                     gckpti_loop_of(call, 1, reads).x, call->grad_out);                            \
    }
#define UNARY(name, flops, reads, value, rule, deriv)                                              \
    UNARY_WITH(name, flops, reads, value, rule, deriv, 0, )
GCKPTI_UNARY_OPS(UNARY)
GCKPTI_UNARY_OPS_WITH(UNARY_WITH)
#undef UNARY
#undef UNARY_WITH

void detach_forward(const gckpt_call *call)
{
    const Values x = value_of(call->in[0]);
    const Results y = out_of(call);
    if (x.f32 != y.f32 || x.bf16 != y.bf16)
        map(call, Copy(), x, NONE, y, gckpti_elements(&call->shape), 0);
}

__global__ void from_u8_kernel(const uint8_t *x, float scale, float shift, float *out, int64_t n)
{
    for (EACH(i, n))
        out[i] = gckpti_fma((float)x[i], scale, shift);
}

void from_u8_forward(const gckpt_call *call)
{
    const float *o = (const float *)call->attributes;
    const int64_t n = gckpti_elements(&call->shape);
    RUN_EACH(call, from_u8_kernel, n, call->in[0].bytes, o[0], o[1], call->out, n);
}

/* Four elements of the batch share a block of random bits; a vector may begin within these four. */
struct DropoutMask {
    float p, factor;
    int64_t each; /* elements of a row */
    int id;
    const StepParams *params;
    Values x;
    Results y;
    int accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> from = load<N>(x, i), to = {};
        uint64_t at = (uint64_t)(i + params->first_row * each);
        uint32_t word[4];
        if (accumulate)
            to = load<N>(y, i);
        for (int k = 0; k < N; k++, at++) {
            if (k == 0 || at % 4 == 0)
                gckpti_philox(params->seed, at / 4, (uint32_t)id, (uint32_t)params->step, word);
            if (gckpti_uniform(word_at(word, at)) >= p)
                gckpti_put_product(&to.v[k], factor, from.v[k], accumulate);
            else
                gckpti_put(&to.v[k], 0.0f, accumulate);
        }
        store(y, i, to);
    }
};

void dropout_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    if (!backward && !call->training)
        return detach_forward(call);
    const int64_t n = gckpti_elements(&call->shape), each = n / call->rows;
    const float p = *(const float *)call->attributes;
    const DropoutMask o = { p, 1.0f / (1.0f - p),        each, call->id, params_of(call), x,
                            y, backward && in.accumulate };
    for_each_vec<8>(call, o, wanted(y) ? n : 0, aligned(x) && aligned(y));
}
BOTH_PASSES(dropout, dropout_by)
