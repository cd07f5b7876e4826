/* ---- layernorm, rmsnorm: a warp has a row, a lane eight adjacent elements at a time ---- */
/* A block has TOKENS rows at a time, which stay in caches while they are read twice: for columns'
 * sums, i.e. gradients of bias and gain (four columns a thread), and for dx (a row a warp). */
__global__ void __launch_bounds__(32 * TOKENS, 2)
    fast_norm_backward_kernel(const __grid_constant__ Norm s, Results dx, float *g_sums,
                              float *gh_sums, int64_t rows, int accumulate)
{
    const int64_t n = s.n;
    const int64_t each = s.aligned && s.x.bf16 && s.g.bf16 ? 4 : 1;
    for (int64_t group = blockIdx.x; group * TOKENS < rows; group += gridDim.x) {
        const int64_t first = group * TOKENS, r = first + threadIdx.x / 32;
        for (int64_t j = threadIdx.x * each; (g_sums || gh_sums) && j < n; j += each * blockDim.x) {
            float sum[4] = {}, gh[4] = {};
            if (each == 4)
                group_sums<4, true>(s.g, s.x, s.saved, s.center, first, rows, n, j, sum, gh);
            else
                group_sums<1, true>(s.g, s.x, s.saved, s.center, first, rows, n, j, sum, gh);
            if (g_sums)
                write_vec<4>({ g_sums, NULL }, group * n + j, each, each == 4, sum);
            if (gh_sums)
                write_vec<4>({ gh_sums, NULL }, group * n + j, each, each == 4, gh);
        }
        if (r < rows && wanted(dx))
            norm_gradient_of_row<8>(r, s, dx, accumulate);
    }
}

void layernorm_by(const gckpt_call *original, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)original->attributes;
    const Norm s = norm_of(original);
    const int64_t n = s.n, rows = gckpti_rows(&original->shape);
    if (!backward)
        return for_each_row<norm_row<8>>(original, rows, s, gckpti_norm_epsilon(o),
                                         out_of(original));
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    Workspace workspace = { (char *)call->workspace, 0 };
    ColSum normed = {}, g_sums = {};
    if (o->gain && wanted(call->in[o->gain]))
        normed = column_of(workspace, rows, n, call->in[o->gain]);
    if (o->bias && wanted(call->in[o->bias]))
        g_sums = column_of(workspace, rows, n, call->in[o->bias]);
    run<fast_norm_backward_kernel>(call, blocks_for(rows, TOKENS), 32 * TOKENS, 0, s,
                                   grad_of(call->in[0]), g_sums.parts, normed.parts, rows,
                                   call->in[0].accumulate);
    add_groups(call, g_sums, normed, rows, n);
}

gckpt_result layernorm_workspace(gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    Workspace backward = { NULL, 0 };
    for (int i : { o->gain, o->bias })
        if (i)
            column_of(backward, gckpti_rows(x), gckpti_last(x), call->in[i]);
    call->workspace_backward = backward.used;
    call->mixes_rows |= (o->gain || o->bias) && gckpti_rows(x) % TOKENS != 0;
    return GCKPT_OK;
}

} // namespace fast
