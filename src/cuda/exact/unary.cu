/* Computes y = F(x, o), with the op's attributes o. */
template <auto F> struct Unary {
    float o[2];
    __device__ void operator()(float *d, float x, float, float, int) const { *d = F(x, o); }
};

/* PUT stores or adds g * DERIV(at, o) in an element of dx. at: x, or y if DERIV takes y. */
template <auto DERIV, auto PUT> struct UnaryGrad {
    float o[2];
    __device__ void operator()(float *d, float at, float g, float, int accumulate) const
    {
        PUT(d, g, DERIV(at, o), accumulate, 1);
    }
};

/* Runs an elementwise op of one input: a row of GCKPTI_UNARY_OPS or GCKPTI_UNARY_OPS_WITH, with n
 * attributes, whose gradient reads what `reads` says. */
template <auto VALUE, auto DERIV, auto PUT>
void unary_by(const gckpt_call *call, bool backward, unsigned reads, int n)
{
    const gckpt_arg &x = call->in[0];
    const Values g = grad_out_of(call);
    const Values at = reads & GCKPT_IN(0) ? value_of(x) : reads ? out_of(call) : g;
    const gckpti_iter it = dense(gckpti_elements(&call->shape));
    const float *o = (const float *)call->attributes;
    const float first = n > 0 ? o[0] : 0.0f, second = n > 1 ? o[1] : 0.0f;
    if (backward)
        map(call, it, UnaryGrad<DERIV, PUT>{ { first, second } }, grad_of(x), at, g, NONE,
            x.accumulate);
    else
        map(call, it, Unary<VALUE>{ { first, second } }, out_of(call), value_of(x));
}

#define UNARY_WITH(name, flops, reads, value, rule, deriv, n, ...)                                 \
    void name##_by(const gckpt_call *call, bool backward)                                          \
    {                                                                                              \
        unary_by<gckpti_##name##_value, gckpti_##name##_slope, gckpti_put_##rule##_n>(             \
            call, backward, reads, n);                                                             \
    }
#define UNARY(name, flops, reads, value, rule, deriv)                                              \
    UNARY_WITH(name, flops, reads, value, rule, deriv, 0, )
GCKPTI_UNARY_OPS(UNARY)
GCKPTI_UNARY_OPS_WITH(UNARY_WITH)
#undef UNARY
#undef UNARY_WITH

void detach_by(const gckpt_call *call, bool)
{
    const Values x = value_of(call->in[0]);
    const Results y = out_of(call);
    if (x.f32 != y.f32 || x.bf16 != y.bf16)
        map(call, dense(gckpti_elements(&call->shape)), Copy(), y, x);
}

__device__ void from_u8_at(int64_t i, const uint8_t *x, float scale, float shift, float *out)
{
    out[i] = gckpti_fma((float)x[i], scale, shift);
}

void from_u8_by(const gckpt_call *call, bool)
{
    const float *o = (const float *)call->attributes;
    for_each<from_u8_at>(call, gckpti_elements(&call->shape), call->in[0].bytes, o[0], o[1],
                         call->out);
}

/* Returns word[i % 4]; indexing by a variable would put the array into local memory. */
__device__ inline uint32_t word_at(const uint32_t word[4], uint64_t i)
{
    return i & 2 ? (i & 1 ? word[3] : word[2]) : (i & 1 ? word[1] : word[0]);
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
        return detach_by(call, false);
    const int64_t n = gckpti_elements(&call->shape), each = n / call->rows;
    const float p = *(const float *)call->attributes;
    const DropoutMask o = { p, 1.0f / (1.0f - p),        each, call->id, params_of(call), x,
                            y, backward && in.accumulate };
    for_each_vec<8>(call, o, wanted(y) ? n : 0, aligned(x, y));
}
