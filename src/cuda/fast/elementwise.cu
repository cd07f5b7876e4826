/* ---- elementwise, eight elements a thread ---- */
/* v = x[at..at+7], those past n as 0; aligned: 16 bytes can be read at once. */
__device__ inline void get_eight(const Values &x, int64_t at, int64_t n, int aligned, float v[8])
{
    if (aligned && at + 8 <= n && x.narrow) {
        uint4 word = *(const uint4 *)(const void *)(x.narrow + at);
        const uint32_t pair[4] = { word.x, word.y, word.z, word.w };
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = gckpti_float(i % 2 ? pair[i / 2] & 0xffff0000u : pair[i / 2] << 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = at + i < n ? get(x, at + i) : 0.0f;
}

__device__ inline void put_eight(const Results &y, int64_t at, int64_t n, int aligned,
                                 int accumulate, float v[8])
{
    if (accumulate) {
        float held[8];
        get_eight({ y.wide, y.narrow }, at, n, aligned, held);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] += held[i];
    }
    if (aligned && at + 8 <= n && y.narrow) {
        uint4 word = { pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]) };
        *(uint4 *)(void *)(y.narrow + at) = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (at + i < n)
            put(y, at + i, v[i]);
}

int aligned_16(const void *a, const void *b = NULL, const void *c = NULL)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

/* d = f(a, b), or += */
template <class F>
__global__ void map_kernel(F f, Values a, Values b, Results d, int64_t n, int aligned,
                           int accumulate)
{
    for (EACH(i, (n + 7) / 8)) {
        float x[8], y[8];
        get_eight(a, i * 8, n, aligned, x);
        get_eight(b, i * 8, n, aligned, y);
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[k] = f(x[k], y[k]);
        put_eight(d, i * 8, n, aligned, accumulate, x);
    }
}

template <class F>
void map(const gckpt_call *call, F f, Values a, Values b, Results d, int accumulate)
{
    int64_t n = gckpti_elements(&call->shape);
    if (d.wide || d.narrow)
        RUN(call, map_kernel<F>, blocks_for((n + 7) / 8, 256), 256, 0, f, a, b, d, n,
            aligned_16(a.narrow, b.narrow, d.narrow), accumulate);
}

template <float (*F)(float)> struct Curve {
    __device__ float operator()(float x, float) const { return F(x); }
};
template <float (*SLOPE)(float)> struct CurveSlope {
    __device__ float operator()(float at, float g) const { return g * SLOPE(at); }
};

#define CURVE(name, at)                                                                            \
    void name##_forward(const gckpt_call *call)                                                    \
    {                                                                                              \
        map(call, Curve<gckpti_##name>(), value_of(call->in[0]), { NULL, NULL },                   \
            { call->out, call->out_bf16 }, 0);                                                     \
    }                                                                                              \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        map(call, CurveSlope<gckpti_##name##_slope>(), at, grad_out_of(call),                      \
            grad_of(call->in[0]), call->in[0].accumulate);                                         \
    }
CURVE(gelu, value_of(call->in[0]))
CURVE(gelu_erf, value_of(call->in[0]))
CURVE(silu, value_of(call->in[0]))
CURVE(tanh, (Values{ call->out, call->out_bf16 }))
CURVE(sigmoid, (Values{ call->out, call->out_bf16 }))
#undef CURVE

struct ReluSlope {
    __device__ float operator()(float y, float g) const { return y > 0.0f ? g : 0.0f; }
};
struct Factor {
    float factor;
    __device__ float operator()(float x, float) const { return factor * x; }
};

void relu_forward(const gckpt_call *call)
{
    map(call, Curve<gckpti_relu>(), value_of(call->in[0]), { NULL, NULL },
        { call->out, call->out_bf16 }, 0);
}

void relu_backward(const gckpt_call *call)
{
    map(call, ReluSlope(), { call->out, call->out_bf16 }, grad_out_of(call), grad_of(call->in[0]),
        call->in[0].accumulate);
}

void scale_forward(const gckpt_call *call)
{
    Factor f = { *(const float *)call->attributes };
    map(call, f, value_of(call->in[0]), { NULL, NULL }, { call->out, call->out_bf16 }, 0);
}

void scale_backward(const gckpt_call *call)
{
    Factor f = { *(const float *)call->attributes };
    map(call, f, grad_out_of(call), { NULL, NULL }, grad_of(call->in[0]), call->in[0].accumulate);
}

/* ---- sums and products of two tensors of one shape; what broadcasts is declined ---- */
struct Plus {
    __device__ float operator()(float x, float y) const { return x + y; }
};
struct Minus {
    __device__ float operator()(float x, float y) const { return x - y; }
};
struct Times {
    __device__ float operator()(float x, float y) const { return x * y; }
};

template <class F> void combine_forward(const gckpt_call *call, F f)
{
    map(call, f, value_of(call->in[0]), value_of(call->in[1]), { call->out, call->out_bf16 }, 0);
}

/* Input i's gradient: 0 + g, 0 - g or other g; it may be what comes in, passed on. */
template <class F> void combine_backward(const gckpt_call *call, int i, F f, Values other)
{
    const Values g = grad_out_of(call);
    Results d = grad_of(call->in[i]);
    if (d.wide != g.wide || d.narrow != g.narrow)
        map(call, f, other, g, d, call->in[i].accumulate);
}

gckpt_result alike_room(gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!gckpti_same_shape(&call->in[i].shape, &call->shape))
            call->precision = GCKPT_BF16;
    return GCKPT_OK;
}

void add_forward(const gckpt_call *call) { combine_forward(call, Plus()); }
void sub_forward(const gckpt_call *call) { combine_forward(call, Minus()); }
void mul_forward(const gckpt_call *call) { combine_forward(call, Times()); }
void add_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Plus(), { NULL, NULL });
    combine_backward(call, 1, Plus(), { NULL, NULL });
}
void sub_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Plus(), { NULL, NULL });
    combine_backward(call, 1, Minus(), { NULL, NULL });
}
void mul_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Times(), value_of(call->in[1]));
    combine_backward(call, 1, Times(), value_of(call->in[0]));
}
gckpt_result add_room(gckpt_call *call) { return alike_room(call); }
gckpt_result sub_room(gckpt_call *call) { return alike_room(call); }
gckpt_result mul_room(gckpt_call *call) { return alike_room(call); }

/* ---- slice: a part of each block, to a tensor of parts or from one ---- */
/* unit: elements that are moved at once, 8 or 1; sizes count units. backward: x is the gradient of
 * the parts, of y the rest becomes 0 if it does not accumulate. */
__global__ void slice_kernel(Values x, Results y, Part p, int64_t units, int unit, int backward,
                             int accumulate)
{
    for (EACH(i, units)) {
        int64_t size = backward && !accumulate ? p.whole : p.n, at = i / size, j = i % size;
        int64_t part = at * p.n + j, whole = at * p.whole + p.begin + j, here = 1;
        if (backward && !accumulate)
            part -= p.begin, whole -= p.begin, here = j >= p.begin && j < p.begin + p.n;
        int64_t from = (backward ? part : whole) * unit, to = (backward ? whole : part) * unit;
        if (unit == 8) {
            float v[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
            if (here)
                get_eight(x, from, from + 8, 1, v);
            put_eight(y, to, to + 8, 1, accumulate, v);
        } else {
            float v = here ? get(x, from) : 0.0f;
            put(y, to, accumulate ? held(y, to) + v : v);
        }
    }
}

void slice_by(const gckpt_call *call, Values x, Results y, int backward, int accumulate)
{
    Part p = slice_part(call);
    int unit =
        p.whole % 8 == 0 && p.begin % 8 == 0 && p.n % 8 == 0 && aligned_16(x.narrow, y.narrow) ? 8
                                                                                               : 1;
    int64_t units = p.blocks * (backward && !accumulate ? p.whole : p.n) / unit;
    p.whole /= unit, p.begin /= unit, p.n /= unit;
    if (y.wide || y.narrow)
        RUN(call, slice_kernel, blocks_for(units, 256), 256, 0, x, y, p, units, unit, backward,
            accumulate);
}

void slice_forward(const gckpt_call *call)
{
    slice_by(call, value_of(call->in[0]), { call->out, call->out_bf16 }, 0, 0);
}

void slice_backward(const gckpt_call *call)
{
    slice_by(call, grad_out_of(call), grad_of(call->in[0]), 1, call->in[0].accumulate);
}
