/* ---- elementwise ---- Like gckpti_put_product, but rounds the product before it is added. */
__device__ inline void put_product(float *d, float a, float b, int accumulate, int64_t)
{
    gckpti_put(d, a * b, accumulate);
}

/* Compute out = f(a, b); input 0's gradient = f(at, grad_out). */
template <class F> void map_out(const gckpt_call *call, F f, const Values &a, const Values &b)
{
    map(call, f, a, b, out_of(call), gckpti_elements(&call->shape), 0);
}

template <class F> void map_grad(const gckpt_call *call, F f, const Values &at)
{
    map(call, f, at, grad_out_of(call), grad_of(call->in[0]), gckpti_elements(&call->shape),
        call->in[0].accumulate);
}

#define UNARY(name, put, at)                                                                       \
    void name##_forward(const gckpt_call *call)                                                    \
    {                                                                                              \
        map_out(call, Unary<gckpti_##name##_value>(), value_of(call->in[0]), NONE);                \
    }                                                                                              \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        map_grad(call, UnaryGrad<gckpti_##name##_slope, put>(), at);                               \
    }
using ::dropout_backward, ::dropout_forward, ::rotary_backward, ::rotary_forward; /* take bf16 */
UNARY(gelu_erf, put_product, value_of(call->in[0]))
UNARY(silu, put_product, value_of(call->in[0]))
UNARY(tanh, put_product, value_out_of(call))
UNARY(sigmoid, put_product, value_out_of(call))
UNARY(relu, gckpti_put_masked_n, value_out_of(call))
#undef UNARY

__device__ inline float gelu_value(float x, const float *) { return gelu_of(x); }
__device__ inline float gelu_deriv(float x, const float *) { return gelu_deriv_of(x); }

void gelu_forward(const gckpt_call *call)
{
    const Values x = value_of(call->in[0]);
    if (!try_fuse(call, GELU, x, NONE, out_of(call)))
        map_out(call, Unary<gelu_value>(), x, NONE);
}

void gelu_backward(const gckpt_call *call)
{
    const gckpt_arg &x = call->in[0];
    if (x.accumulate || !try_fuse(call, GELU_GRAD, grad_out_of(call), value_of(x), grad_of(x)))
        map_grad(call, UnaryGrad<gelu_deriv, put_product>(), value_of(x));
}

struct Scale {
    static constexpr int READS = READS_A;
    float factor;
    __device__ void operator()(float *d, float x, float, int accumulate) const
    {
        put_product(d, factor, x, accumulate, 1);
    }
};

void scale_by(const gckpt_call *call, bool backward)
{
    const Scale f = { *(const float *)call->attributes };
    backward ? map_grad(call, f, grad_out_of(call)) : map_out(call, f, value_of(call->in[0]), NONE);
}
BOTH_PASSES(scale, scale_by)

/* ---- add, sub and mul of two tensors of the same shape; exact kernels run other shapes ---- */
__device__ inline float plus(float x, float y) { return x + y; }
__device__ inline float minus(float x, float y) { return x - y; }
__device__ inline float times(float x, float y) { return x * y; }
template <auto F> struct Both {
    static constexpr int READS = READS_BOTH;
    __device__ void operator()(float *d, float x, float y, int accumulate) const
    {
        gckpti_put(d, F(x, y), accumulate);
    }
};

/* Computes input i's gradient: g, -g or other * g. If it is in the memory of g, it is g already. */
template <class F> void combine_backward(const gckpt_call *call, int i, F f, Values other)
{
    const Values g = grad_out_of(call);
    Results d = grad_of(call->in[i]);
    if (d.f32 != g.f32 || d.bf16 != g.bf16)
        map(call, f, other, g, d, gckpti_elements(&call->shape), call->in[i].accumulate);
}

/* Exact kernels (GCKPT_BF16) run all but two bf16 inputs of the result's shape. With micro-batches
 * of one row a batch-invariant input may have that shape, but its gradient is a compensated sum. */
gckpt_result same_shape_workspace(gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!gckpti_same_shape(&call->in[i].shape, &call->shape) || !call->in[i].bf16)
            call->precision = GCKPT_BF16;
    return GCKPT_OK;
}

/* out = a + b, where the m elements of b are repeated. */
struct BroadcastAdd {
    Values a, b;
    Results out;
    int64_t m;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> x = load<N>(a, i), y = load<N>(b, i % m);
        for (int k = 0; k < N; k++)
            x.v[k] += y.v[k];
        store(out, i, x);
    }
};

template <auto F> void combine_forward(const gckpt_call *call)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    const Results out = out_of(call);
    const int64_t m = gckpti_elements(&call->in[1].shape);
    if (call->in[1].shape.n < call->shape.n)
        for_each_vec<8>(call, BroadcastAdd{ a, b, out, m }, gckpti_elements(&call->shape),
                 m % 8 == 0 && aligned(a) && aligned(b) && aligned(out));
    else if (F != plus || (!try_fuse(call, PLUS, a, b, out) && !try_fuse(call, PLUS, b, a, out)))
        map_out(call, Both<F>(), a, b);
}

void add_forward(const gckpt_call *call) { combine_forward<plus>(call); }
void sub_forward(const gckpt_call *call) { combine_forward<minus>(call); }
void mul_forward(const gckpt_call *call) { combine_forward<times>(call); }
void add_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Both<plus>(), NONE);
    if (call->in[1].shape.n < call->shape.n)
        broadcast_gradient(call, 1, 0, GRAD_identity, 0);
    else
        combine_backward(call, 1, Both<plus>(), NONE);
}
void sub_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Both<plus>(), NONE);
    combine_backward(call, 1, Both<minus>(), NONE);
}
void mul_backward(const gckpt_call *call)
{
    combine_backward(call, 0, Both<times>(), value_of(call->in[1]));
    combine_backward(call, 1, Both<times>(), value_of(call->in[0]));
}
gckpt_result add_workspace(
    gckpt_call *call) /* input 1 may have just the last axes of input 0 */
{
    const gckpt_shape *a = &call->shape, *b = &call->in[1].shape;
    bool last = b->n < a->n && gckpti_same_shape(&call->in[0].shape, a) &&
                (gckpti_elements(b) < gckpti_elements(a) || !call->in[1].bf16);
    for (int k = 1; k <= b->n; k++)
        last = last && b->d[b->n - k] == a->d[a->n - k];
    return last ? GCKPT_OK : same_shape_workspace(call);
}
constexpr auto sub_workspace = same_shape_workspace, mul_workspace = same_shape_workspace;

/* ---- slice: copies a part of each block to a tensor of parts, or back ---- */
struct Part { /* `n` elements from `begin` on of each of `blocks` blocks of `whole` elements */
    int64_t blocks, whole, begin, n;
};

Part slice_part(const gckpt_call *call)
{
    const gckpti_slice *o = (const gckpti_slice *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, o->axis);
    int64_t begin = gckpti_join_words(o->begin), end = gckpti_join_words(o->end);
    int64_t moved = o->relative ? call->position : 0; /* in a table; never in a capture */
    return { v.outer, v.size * v.inner, (begin + moved) * v.inner, (end - begin) * v.inner };
}

/* chunk: elements that are moved at once, 8 or 1; sizes count chunks. backward: x is the gradient
 * of the parts; elements of y outside the parts become 0 unless y accumulates. */
__global__ void slice_kernel(Values x, Results y, Part p, int64_t chunks, int chunk, int backward,
                             int accumulate)
{
    for (EACH(i, chunks)) {
        int64_t size = backward && !accumulate ? p.whole : p.n, at = i / size, j = i % size;
        int64_t part = at * p.n + j, whole = at * p.whole + p.begin + j, here = 1;
        if (backward && !accumulate)
            part -= p.begin, whole -= p.begin, here = j >= p.begin && j < p.begin + p.n;
        int64_t from = (backward ? part : whole) * chunk, to = (backward ? whole : part) * chunk;
        if (chunk == 8) {
            Vec<float, 8> v = {};
            if (here)
                v = load<8>(x, from);
            write_vec<8>(y, to, 8, true, v.v, accumulate);
        } else {
            float v = here ? value_at(x, from) : 0.0f;
            put_at(y, to, accumulate ? value_at(y, to) + v : v);
        }
    }
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    Part p = slice_part(call);
    bool eight = p.whole % 8 == 0 && p.begin % 8 == 0 && p.n % 8 == 0 && aligned(x) && aligned(y);
    int chunk = eight ? 8 : 1;
    int64_t chunks = p.blocks * (backward && !in.accumulate ? p.whole : p.n) / chunk;
    p.whole /= chunk, p.begin /= chunk, p.n /= chunk;
    if (wanted(y))
        RUN(call, slice_kernel, blocks_for(chunks, 256), 256, 0, x, y, p, chunks, chunk, backward,
            backward && in.accumulate);
}
BOTH_PASSES(slice, slice_by)
