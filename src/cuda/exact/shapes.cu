/* Copies s / divisor to d, or adds it to d; step[0] is for d, step[1] for s. */
void copy_axes(const gckpt_call *call, const Axes<int64_t> &x, float *d, const float *s,
               float divisor, int accumulate)
{
    combine(call, x, Quotient{ divisor }, { d, NULL }, { s, NULL }, NONE, NONE, accumulate);
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

/* Moves the elements of each input to the result or, backward, those of the result's gradient to
 * the gradients of the inputs. */
template <gckpti_iter MOVE(const gckpt_call *, int)>
void move_by(const gckpt_call *call, bool backward)
{
    for (int i = 0; i < call->inputs; i++) {
        const gckpt_arg *x = &call->in[i];
        const gckpti_iter w = MOVE(call, i);
        float *to = backward ? x->grad : call->out;
        const float *from = backward ? call->grad_out : x->data;
        if (to)
            transpose(call, axes_of(w, !backward, false), to + w.offset[!backward],
                      from + w.offset[backward], backward && x->accumulate);
    }
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    if (backward && x->grad && !x->accumulate)
        fill(call, x->grad, 0, gckpti_elements(&x->shape));
    move_by<gckpti_slice_move>(call, backward);
}
