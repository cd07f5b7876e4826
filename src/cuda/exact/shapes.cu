/* Copies s / divisor to d, or adds it to d; step[0] is for d, step[1] for s. */
void copy_axes(const gckpt_call *call, const Axes<int64_t> &x, float *d, const float *s,
               float divisor, int accumulate)
{
    combine(call, x, Binary{ DIVIDE, divisor }, d, s, NULL, NULL, accumulate);
}

struct Part { /* `n` floats from `begin` on of each of `blocks` blocks of `whole` floats */
    int64_t blocks, whole, begin, n;
};

/* Copies or adds a part from s to d. `which` says whether s (FROM_PLACE), d (TO_PLACE) or both have
 * other data around the part; else a tensor has the part only. */
enum { FROM_PLACE = 1, TO_PLACE = 2 };
void copy_part(const gckpt_call *call, const Part &p, int which, float *d, const float *s,
               int accumulate)
{
    const bool from = which & FROM_PLACE, to = which & TO_PLACE;
    const Axes<int64_t> x = { 2,
                              { p.n, p.blocks },
                              { { 1, to ? p.whole : p.n }, { 1, from ? p.whole : p.n } } };
    copy_axes(call, x, d + (to ? p.begin : 0), s + (from ? p.begin : 0), 1.0f, accumulate);
}

/* s is contiguous along axis p, d along axis q: a block of 32 x 8 threads transposes 32 x 32 in
 * shared memory, so that warps read and write 128 contiguous bytes. rest: all other axes. */
template <class I> struct Transpose {
    Axes<I> rest;
    I p, q, p_step, q_step; /* sizes of p and q; step of p in d; step of q in s */
};

template <class I>
__global__ void transpose_kernel(const __grid_constant__ Transpose<I> t, float *d, const float *s,
                                 int64_t tiles, int accumulate)
{
    SHARED(float, tile, [32][33]);
    I lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    I across = (t.p + 31) / 32, down = (t.q + 31) / 32;
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        I p = (I)i % across * 32, q = (I)i / across % down * 32;
        Offsets<I> at = offsets_of(t.rest, (I)i / across / down);
        for (I k = warp; k < 32; k += 8)
            if (p + lane < t.p && q + k < t.q)
                tile[k][lane] = s[at.at1 + (q + k) * t.q_step + p + lane];
        __syncthreads();
        for (I k = warp; k < 32; k += 8)
            if (p + k < t.p && q + lane < t.q)
                gckpti_put(&d[at.at0 + (p + k) * t.p_step + q + lane], tile[lane][k], accumulate);
        __syncthreads();
    }
}

template <class I>
void transpose_in(const gckpt_call *call, const Axes<int64_t> &x, int p, int q, float *d,
                  const float *s, int accumulate)
{
    Transpose<I> t = { {}, (I)x.size[p], (I)x.size[q], (I)x.step[0][p], (I)x.step[1][q] };
    int64_t tiles = (x.size[p] + 31) / 32 * ((x.size[q] + 31) / 32);
    for (int k = 0; k < x.n; k++) {
        if (k == p || k == q)
            continue;
        t.rest.size[t.rest.n] = (I)x.size[k];
        t.rest.step[0][t.rest.n] = (I)x.step[0][k];
        t.rest.step[1][t.rest.n++] = (I)x.step[1][k];
        tiles *= x.size[k];
    }
    RUN(call, transpose_kernel<I>, blocks_for(tiles, 1), 256, 0, t, d, s, tiles, accumulate);
}

/* Copies s to d, or adds it; the contiguous axes of s and of d may differ. */
void transpose(const gckpt_call *call, const Axes<int64_t> &x, float *d, const float *s,
               int accumulate)
{
    int p = 0, q = 0;
    for (int k = 0; k < x.n; k++) {
        p = x.step[1][k] == 1 ? k : p;
        q = x.step[0][k] == 1 ? k : q;
    }
    if (p == q)
        copy_axes(call, x, d, s, 1.0f, accumulate);
    else if (fits_int32(x))
        transpose_in<uint32_t>(call, x, p, q, d, s, accumulate);
    else
        transpose_in<int64_t>(call, x, p, q, d, s, accumulate);
}

void permute_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *in = &call->in[0];
    gckpti_iter w;
    gckpti_permute_iter(&w, call);
    Axes<int64_t> x = axes_of(&w);
    if (!backward)
        return transpose(call, x, call->out, in->data, 0);
    std::swap(x.step[0], x.step[1]);
    if (in->grad)
        transpose(call, x, in->grad, call->grad_out, in->accumulate);
}
BOTH_PASSES(permute, permute_by)

Part slice_part(const gckpt_call *call)
{
    const gckpti_slice *o = (const gckpti_slice *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, o->axis);
    int64_t begin = gckpti_join_words(o->begin), end = gckpti_join_words(o->end);
    int64_t moved = o->relative ? call->position : 0; /* in a table; never in a capture */
    return { v.outer, v.size * v.inner, (begin + moved) * v.inner, (end - begin) * v.inner };
}

/* Copies s to the part of d, and sets the rest of d to `value`. */
void pad_with(const gckpt_call *call, const Part &p, float *d, const float *s, float value)
{
    fill(call, d, gckpti_bits(value), p.blocks * p.whole);
    copy_part(call, p, TO_PLACE, d, s, 0);
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const Part p = slice_part(call);
    if (!backward)
        copy_part(call, p, FROM_PLACE, call->out, x->data, 0);
    else if (x->grad && x->accumulate)
        copy_part(call, p, TO_PLACE, x->grad, call->grad_out, 1);
    else if (x->grad)
        pad_with(call, p, x->grad, call->grad_out, 0.0f);
}
BOTH_PASSES(slice, slice_by)

void pad_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const gckpti_pad *o = (const gckpti_pad *)call->attributes;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, o->axis);
    const int64_t whole = gckpti_split_at(&call->shape, o->axis).size * v.inner;
    const Part p = { v.outer, whole, o->before * v.inner, v.size * v.inner };
    if (!backward)
        pad_with(call, p, call->out, x->data, o->value);
    else if (x->grad)
        copy_part(call, p, FROM_PLACE, x->grad, call->grad_out, x->accumulate);
}
BOTH_PASSES(pad, pad_by)

void concat_by(const gckpt_call *call, bool backward)
{
    const int axis = *(const int *)call->attributes;
    const gckpti_axis_split all = gckpti_split_at(&call->shape, axis);
    Part p = { all.outer, all.size * all.inner, 0, 0 };
    for (int i = 0; i < call->inputs; i++, p.begin += p.n) {
        const gckpt_arg *x = &call->in[i];
        p.n = gckpti_split_at(&x->shape, axis).size * all.inner;
        if (!backward)
            copy_part(call, p, TO_PLACE, call->out, x->data, 0);
        else if (x->grad)
            copy_part(call, p, FROM_PLACE, x->grad, call->grad_out, x->accumulate);
    }
}

BOTH_PASSES(concat, concat_by)
