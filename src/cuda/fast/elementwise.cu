/* ---- elementwise ---- */
__device__ inline float gelu_value(float x, const float *) { return gelu_of(x); }
__device__ inline float gelu_deriv(float x, const float *) { return gelu_deriv_of(x); }

void gelu_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = value_of(in), g = grad_out_of(call);
    if (backward ? !in.accumulate && try_fuse(call, GELU_GRAD, g, x, grad_of(in))
                 : try_fuse(call, GELU, x, NONE, out_of(call)))
        return;
    unary_by<gelu_value, gelu_deriv, gckpti_put_product_n, GCKPT_IN(0), 0, true>(call, backward);
}

/* ---- add, sub and mul of two tensors of the same shape (add: or the second one has just the last
 * axes of the first one); exact kernels run other shapes ---- */
template <auto F> struct Both {
    __device__ void operator()(float *d, float x, float y, float, int) const { *d = F(x, y); }
};

template <auto F> void combine_forward(const gckpt_call *call)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    combine<true>(call, broadcast_axes(call, 0, 1), Both<F>(), out_of(call), a, b, NONE, 0);
}

/* Computes input i's gradient: g, -g or other * g. If it is in the memory of g, it is g already. */
template <auto F> void combine_backward(const gckpt_call *call, int i, Values other)
{
    const gckpt_arg &x = call->in[i];
    const Values g = grad_out_of(call);
    if (wanted(x) && (x.grad != g.f32 || x.grad_bf16 != g.bf16))
        combine<true>(call, broadcast_axes(call, 0, 0), Both<F>(), grad_of(x), other, g, NONE,
                      x.accumulate);
}

void add_by(const gckpt_call *call, bool backward)
{
    constexpr auto SUM = gckpti_add_value;
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    const bool repeated = call->in[1].shape.n < call->shape.n;
    if (!backward && (repeated || (!try_fuse(call, PLUS, a, b, out_of(call)) &&
                                   !try_fuse(call, PLUS, b, a, out_of(call)))))
        return combine_forward<SUM>(call);
    if (!backward)
        return;
    combine_backward<SUM>(call, 0, NONE);
    if (repeated)
        broadcast_gradient(call, 1, 0, GRAD_identity, 0);
    else
        combine_backward<SUM>(call, 1, NONE);
}

void sub_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return combine_forward<gckpti_sub_value>(call);
    combine_backward<gckpti_add_value>(call, 0, NONE);
    combine_backward<gckpti_sub_value>(call, 1, NONE);
}

void mul_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return combine_forward<gckpti_mul_value>(call);
    combine_backward<gckpti_mul_value>(call, 0, value_of(call->in[1]));
    combine_backward<gckpti_mul_value>(call, 1, value_of(call->in[0]));
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

/* Input 1 may have just the last axes of input 0. */
gckpt_result add_workspace(gckpt_call *call)
{
    const gckpt_shape *a = &call->shape, *b = &call->in[1].shape;
    bool last = b->n < a->n && gckpti_same_shape(&call->in[0].shape, a) &&
                (gckpti_elements(b) < gckpti_elements(a) || !call->in[1].bf16);
    for (int k = 1; k <= b->n; k++)
        last = last && b->d[b->n - k] == a->d[a->n - k];
    return last ? GCKPT_OK : same_shape_workspace(call);
}

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

/* Moves the elements of parts. backward: x is the gradient of the parts; fills: also sets the other
 * elements of y to 0. */
struct SliceMove {
    Values x;
    Results y;
    Part p;
    int backward, fills, accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t size = fills ? p.whole : p.n, block = i / size;
        const int64_t j = i - block * size - (fills ? p.begin : 0);
        const int64_t part = block * p.n + j, whole = block * p.whole + p.begin + j;
        Vec<float, N> v = {};
        if (j >= 0 && j < p.n)
            v = load<N>(x, backward ? part : whole);
        write_vec<N>(y, backward ? whole : part, N, true, v.v, accumulate);
    }
};

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    const Part p = slice_part(call);
    const bool accumulate = backward && in.accumulate, fills = backward && !accumulate;
    for_each_vec<8>(call, SliceMove{ x, y, p, backward, fills, accumulate },
                    wanted(y) ? p.blocks * (fills ? p.whole : p.n) : 0,
                    p.whole % 8 == 0 && p.begin % 8 == 0 && p.n % 8 == 0 && aligned(x) &&
                        aligned(y));
}
