/* ---- permute ---- s is contiguous along axis p, d along axis q: a block of 32 x 8 threads
 * transposes 32 x 32 in shared memory, so that warps read and write 128 contiguous bytes. */
struct Transpose {
    gckpti_iter rest;             /* all axes of d and s, of which p and q have size 1 */
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
        const Places at = places_of(t.rest, i / across / down);
        for (int k = warp; k < 32; k += 8)
            if (p + lane < t.p && q + k < t.q)
                tile[k][lane] = s[at.at[1] + (q + k) * t.q_step + p + lane];
        __syncthreads();
        for (int k = warp; k < 32; k += 8)
            if (p + k < t.p && q + lane < t.q)
                gckpti_put(&d[at.at[0] + (p + k) * t.p_step + q + lane], tile[lane][k], accumulate);
        __syncthreads();
    }
}

#ifndef GCKPT_NO_AXES
void permute_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const float *from = backward ? call->grad_out : x->data;
    float *to = backward ? x->grad : call->out;
    const int accumulate = backward && x->accumulate;
    gckpti_iter move, it;
    int p = 0, q = 0;
    gckpti_permute_move(&move, call, 0); /* of x and of the result */
    it = move;
    for (int t = 0; t < 4; t++)
        memcpy(it.step[t], move.step[backward ? t > 0 : t == 0], sizeof *it.step);
    for (int k = 0; k < it.n; k++) {
        p = it.step[1][k] == 1 ? k : p;
        q = it.step[0][k] == 1 ? k : q;
    }
    if (p == q)
        return map(call, it, Copy(), { to, NULL }, { from, NULL }, NONE, NONE, accumulate);
    Transpose t = { it, it.size[p], it.size[q], it.step[0][p], it.step[1][q] };
    t.rest.size[p] = t.rest.size[q] = 1;
    const int64_t tiles = (t.p + 31) / 32 * ((t.q + 31) / 32) * count_of(t.rest);
    if (to)
        run<transpose_kernel>(call, blocks_for(tiles, 1), 256, 0, t, to, from, tiles, accumulate);
}
#endif

/* ---- slice, concat: one tensor is a part of each block of another one ---- */
/* Copies or adds the elements of a part to the whole tensor, or back. fills: also sets the other
 * elements of the whole tensor to 0. */
struct PartMove {
    Values x;
    Results y;
    int64_t whole, begin, n; /* the part: n elements from `begin` on of each `whole` elements */
    bool to_whole, fills;
    int accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t size = fills ? whole : n, block = i / size;
        const int64_t j = i - block * size - (fills ? begin : 0);
        const int64_t in_part = block * n + j, in_whole = block * whole + begin + j;
        Vec<float, N> v = {};
        if (j >= 0 && j < n)
            v = load<N>(x, to_whole ? in_part : in_whole);
        write_vec<N>(y, to_whole ? in_whole : in_part, N, true, v.v, accumulate);
    }
};

/* Moves each input to the result or, backward, the result's gradient to that of the input.
 * of_result: inputs are parts of the result; else the result is a part of the input. A whole tensor
 * of one part is filled up by zeros. */
void move_parts(const gckpt_call *call, bool backward, gckpti_move_fn *move, bool of_result)
{
    for (int i = 0; i < call->inputs; i++) {
        const gckpt_arg &in = call->in[i];
        gckpti_iter it;
        move(&it, call, i);
        const int64_t all[2] = { gckpti_elements(&in.shape), gckpti_elements(&call->shape) };
        const int64_t n = it.step[0][0] == it.step[1][0] ? it.size[0] : 1; /* adjacent elements */
        const int64_t whole = all[of_result] / (all[!of_result] / n), begin = it.offset[of_result];
        const Values x = backward ? grad_out_of(call) : value_of(in);
        const Results y = backward ? grad_of(in) : out_of(call);
        const bool to_whole = of_result != backward, accumulate = backward && in.accumulate;
        const bool fills = to_whole && call->inputs == 1 && !accumulate;
        const PartMove part = { x, y, whole, begin, n, to_whole, fills, accumulate };
        const int64_t moved = wanted(y) ? all[fills ? of_result : !of_result] : 0;
        for_each_vec<8>(call, part, moved, (whole | begin | n) % 8 == 0 && aligned(x, y));
    }
}

/* The latest n rows of a cache that holds `held`, some of them new; 0 before position 0. */
struct Latest {
    Values x;
    Results y;
    int64_t n, held, c, added;
};
__device__ void latest_at(int64_t i, const Latest &s, const StepParams *params)
{
    const int64_t row = i / s.c, at = params->position + s.added - s.n + row % s.n;
    Vec<float, 1> v = { { 0.0f } };
    if (at >= 0)
        v = load<1>(s.x, (row / s.n * s.held + at % s.held) * s.c + i % s.c);
    write_vec<1>(s.y, i, 1, true, v.v, 0);
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const int64_t *x = call->in[0].shape.d, *y = call->shape.d;
    const Latest s = { value_of(call->in[0]), out_of(call), y[1], x[1], y[2], p->relative };
    if (p->relative && p->axis)
        return for_each<latest_at>(call, y[0] * y[1] * y[2], s, params_of(call));
    move_parts(call, backward, gckpti_slice_move, false);
}
