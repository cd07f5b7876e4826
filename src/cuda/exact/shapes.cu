/* ---- permute ---- s is contiguous along axis p, d along axis q: a block of 32 x 8 threads
 * transposes 32 x 32 in shared memory, so that warps read and write 128 contiguous bytes. */
struct Transpose {
    Axes rest;                    /* all other axes */
    int64_t p, q, p_step, q_step; /* sizes of p and q; step of p in d; step of q in s */
};

__global__ void transpose_kernel(const __grid_constant__ Transpose t, float *d, const float *s,
                                 int64_t tiles, int accumulate)
{
    SHARED(float, tile, [32][33]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t across = (t.p + 31) / 32, down = (t.q + 31) / 32;
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const int64_t p = i % across * 32, q = i / across % down * 32;
        const Offsets at = t.rest.at(i / across / down);
        for (int k = warp; k < 32; k += 8)
            if (p + lane < t.p && q + k < t.q)
                tile[k][lane] = s[at.at1 + (q + k) * t.q_step + p + lane];
        __syncthreads();
        for (int k = warp; k < 32; k += 8)
            if (p + k < t.p && q + lane < t.q)
                gckpti_put(&d[at.at0 + (p + k) * t.p_step + q + lane], tile[lane][k], accumulate);
        __syncthreads();
    }
}

/* Copies s to d, or adds it; the contiguous axes of s and of d may differ. */
void transpose(const gckpt_call *call, const Axes &x, float *d, const float *s, int accumulate)
{
    int p = 0, q = 0;
    for (int k = 0; k < x.n; k++) {
        p = x.step[1][k] == 1 ? k : p;
        q = x.step[0][k] == 1 ? k : q;
    }
    if (p == q)
        return map(call, x, Copy(), { d, NULL }, { s, NULL }, NONE, NONE, accumulate);
    Transpose t = { {}, x.size[p], x.size[q], x.step[0][p], x.step[1][q] };
    for (int k = 0; k < x.n; k++) {
        if (k == p || k == q)
            continue;
        t.rest.size[t.rest.n] = x.size[k];
        t.rest.step[0][t.rest.n] = x.step[0][k];
        t.rest.step[1][t.rest.n++] = x.step[1][k];
    }
    const int64_t tiles = (t.p + 31) / 32 * ((t.q + 31) / 32) * t.rest.count();
    run<transpose_kernel>(call, blocks_for(tiles, 1), 256, 0, t, d, s, tiles, accumulate);
}

/* ---- slice, pad, concat: one tensor is a part of each block of another one ---- */
struct Part { /* n elements from `begin` on of each of `blocks` blocks of `whole` elements */
    int64_t blocks, whole, begin, n;
};

/* Returns the part of `whole` that has `size` positions of an axis, from `first` on. */
Part part_of(const gckpt_shape *whole, int axis, int64_t first, int64_t size)
{
    const gckpti_axis_split v = gckpti_split_at(whole, axis);
    return { v.outer, v.size * v.inner, first * v.inner, size * v.inner };
}

/* Copies or adds the elements of a part to the whole tensor, or back. fills: also sets the other
 * elements of the whole tensor to `rest`. */
struct PartMove {
    Values x;
    Results y;
    Part p;
    float rest;
    bool to_whole, fills;
    int accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t size = fills ? p.whole : p.n, block = i / size;
        const int64_t j = i - block * size - (fills ? p.begin : 0);
        const int64_t part = block * p.n + j, whole = block * p.whole + p.begin + j;
        Vec<float, N> v;
        UNROLLED(k, N) v.v[k] = rest;
        if (j >= 0 && j < p.n)
            v = load<N>(x, to_whole ? part : whole);
        write_vec<N>(y, to_whole ? whole : part, N, true, v.v, accumulate);
    }
};

/* Moves input i to the result or, backward, the result's gradient to that of input i. in_result:
 * the input is part p of the result; otherwise the result is part p of the input. A whole tensor of
 * one part is filled up by `rest`. */
void move_part(const gckpt_call *call, bool backward, int i, const Part &p, bool in_result,
               float rest = 0.0f)
{
    const gckpt_arg &in = call->in[i];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    const bool to_whole = in_result != backward, accumulate = backward && in.accumulate;
    const bool fills = to_whole && call->inputs == 1 && !accumulate;
    const PartMove move = { x, y, p, rest, to_whole, fills, accumulate };
    const int64_t n = wanted(y) ? p.blocks * (fills ? p.whole : p.n) : 0;
    const int64_t sizes = p.whole | p.begin | p.n;
    if (sizes % 8 == 0)
        for_each_vec<8>(call, move, n, aligned(x, y));
    else
        for_each_vec<4>(call, move, n, sizes % 4 == 0 && aligned(x, y));
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpti_slice *o = (const gckpti_slice *)call->attributes;
    const int64_t begin = gckpti_join_words(o->begin), n = gckpti_join_words(o->end) - begin;
    const int64_t moved = o->relative ? call->position : 0; /* in a table; never in a capture */
    const Part p = part_of(&call->in[0].shape, o->axis, begin + moved, n);
    move_part(call, backward, 0, p, false);
}
