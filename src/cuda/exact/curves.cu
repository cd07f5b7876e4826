/* y = f(x), and dx by a rule from g and the slope, all three being gradckpt.h's; `at`: x, or y
 * where the slope needs it. */
template <float (*F)(float)> struct Value {
    static constexpr int READS = READS_A;
    __device__ void operator()(float *d, float x, float, int) const { *d = F(x); }
};

template <float (*SLOPE)(float), void (*PUT)(float *, float, float, int)> struct Slope {
    static constexpr int READS = READS_BOTH;
    __device__ void operator()(float *d, float at, float g, int accumulate) const
    {
        PUT(d, g, SLOPE(at), accumulate);
    }
};

/* A first input's gradient from grad_out and `at`. */
template <class F> void map_back(const gckpt_call *call, F f, const float *at)
{
    map(call, f, at, call->grad_out, call->in[0].grad, gckpti_elements(&call->shape),
        call->in[0].accumulate);
}

template <class F> void map_forward(const gckpt_call *call, F f)
{
    map(call, f, call->in[0].data, NULL, call->out, gckpti_elements(&call->shape), 0);
}

#define CURVE(name, rule, at)                                                                      \
    void name##_forward(const gckpt_call *call) { map_forward(call, Value<gckpti_##name>()); }     \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        map_back(call, Slope<gckpti_##name##_slope, gckpti_put_##rule>(), at);                     \
    }
CURVE(relu, passed, call->out)
CURVE(gelu, product, call->in[0].data)
CURVE(gelu_erf, product, call->in[0].data)
CURVE(silu, product, call->in[0].data)
CURVE(tanh, product, call->out)
CURVE(sigmoid, product, call->out)
CURVE(exp, product, call->out)
CURVE(log, quotient, call->in[0].data)
CURVE(sqrt, quotient, call->out)
CURVE(abs, product, call->in[0].data)
CURVE(reciprocal, product, call->out)
CURVE(softplus, product, call->out)
CURVE(sin, product, call->in[0].data)
CURVE(cos, product, call->in[0].data)
#undef CURVE

struct Power {
    static constexpr int READS = READS_A;
    float e;
    __device__ void operator()(float *d, float x, float, int) const { *d = gckpti_power(x, e); }
};

struct PowerGradient {
    static constexpr int READS = READS_BOTH;
    float e;
    __device__ void operator()(float *d, float x, float g, int accumulate) const
    {
        if (e == 0.0f)
            gckpti_put(d, 0.0f, accumulate);
        else
            gckpti_put_product(d, g, e * gckpti_power(x, e - 1.0f), accumulate);
    }
};

void pow_forward(const gckpt_call *call)
{
    Power f = { *(const float *)call->attributes };
    map_forward(call, f);
}

void pow_backward(const gckpt_call *call)
{
    PowerGradient f = { *(const float *)call->attributes };
    map_back(call, f, call->in[0].data);
}

/* Those with N attributes. */
template <int N, float (*F)(float, const float *)> struct ValueBy {
    static constexpr int READS = READS_A;
    float o[N];
    __device__ void operator()(float *d, float x, float, int) const { *d = F(x, o); }
};

template <int N, float (*SLOPE)(float, const float *), void (*PUT)(float *, float, float, int)>
struct SlopeBy {
    static constexpr int READS = READS_BOTH;
    float o[N];
    __device__ void operator()(float *d, float at, float g, int accumulate) const
    {
        PUT(d, g, SLOPE(at, o), accumulate);
    }
};

#define CURVE_BY(name, n, rule, at)                                                                \
    void name##_forward(const gckpt_call *call)                                                    \
    {                                                                                              \
        ValueBy<n, gckpti_value_##name> f;                                                         \
        memcpy(f.o, call->attributes, sizeof f.o);                                                 \
        map_forward(call, f);                                                                      \
    }                                                                                              \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        SlopeBy<n, gckpti_slope_##name, gckpti_put_##rule> f;                                      \
        memcpy(f.o, call->attributes, sizeof f.o);                                                 \
        map_back(call, f, at);                                                                     \
    }
CURVE_BY(clamp, 2, passed, call->in[0].data)
CURVE_BY(leaky_relu, 1, product, call->out)
#undef CURVE_BY

void detach_forward(const gckpt_call *call)
{
    if (call->out != call->in[0].data)
        map_forward(call, Copy());
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
    RUN(call, from_u8_kernel, blocks_for(n, 256), 256, 0, call->in[0].bytes, o[0], o[1], call->out,
        n);
}

template <void (*PUT)(float *, float, float, int)> struct Scale {
    static constexpr int READS = READS_A;
    float factor;
    __device__ void operator()(float *d, float x, float, int accumulate) const
    {
        PUT(d, factor, x, accumulate);
    }
};

void scale_forward(const gckpt_call *call)
{
    Scale<gckpti_put_product> f = { *(const float *)call->attributes };
    map_forward(call, f);
}

void scale_backward(const gckpt_call *call)
{
    Scale<gckpti_put_product> f = { *(const float *)call->attributes };
    map(call, f, call->grad_out, NULL, call->in[0].grad, gckpti_elements(&call->shape),
        call->in[0].accumulate);
}

/* Four elements of the batch share random bits; a pack's may begin among them. */
struct Mask {
    float p, factor;
    int64_t each; /* elements of a row */
    int id;
    const Moment *now;
};

template <int N>
__device__ void dropout_at(const Mask &o, const float *x, float *y, int64_t i, int accumulate)
{
    Pack<float, N> from = load<N>(x + i), to = {};
    uint64_t at = (uint64_t)(i + o.now->row * o.each);
    uint32_t word[4];
    if (accumulate)
        to = load<N>(y + i);
    for (int k = 0; k < N; k++, at++) {
        if (k == 0 || at % 4 == 0)
            gckpti_philox(o.now->seed, at / 4, (uint32_t)o.id, (uint32_t)o.now->step, word);
        if (gckpti_uniform(word_at(word, at)) >= o.p)
            gckpti_put_product(&to.v[k], o.factor, from.v[k], accumulate);
        else
            gckpti_put(&to.v[k], 0.0f, accumulate);
    }
    store(y + i, to);
}

template <int N>
__global__ void dropout_kernel(Mask o, const float *x, float *y, int64_t n, int accumulate)
{
    for (EACH(i, n / N))
        dropout_at<N>(o, x, y, i * N, accumulate);
    for (EACH(i, n % N))
        dropout_at<1>(o, x, y, n / N * N + i, accumulate);
}

void dropout_mask(const gckpt_call *call, const float *x, float *y, int accumulate)
{
    int64_t n = gckpti_elements(&call->shape);
    float p = *(const float *)call->attributes;
    Mask o = { p, 1.0f / (1.0f - p), n / call->rows, call->id, moment_of(call) };
    if (y && wide(x, y))
        RUN(call, dropout_kernel<4>, blocks_for((n + 3) / 4, 256), 256, 0, o, x, y, n, accumulate);
    else if (y)
        RUN(call, dropout_kernel<1>, blocks_for(n, 256), 256, 0, o, x, y, n, accumulate);
}

void dropout_forward(const gckpt_call *call)
{
    if (call->training)
        dropout_mask(call, call->in[0].data, call->out, 0);
    else
        detach_forward(call);
}

void dropout_backward(const gckpt_call *call)
{
    dropout_mask(call, call->grad_out, call->in[0].grad, call->in[0].accumulate);
}
