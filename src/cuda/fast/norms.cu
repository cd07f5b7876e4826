/* ---- layernorm, rmsnorm: a warp has a row, a lane eight adjacent elements at a time ---- As in
 * exact/norms.cu, but the mean, c = x_0 + mean(x - x_0), is uncorrected: x has 8 bits. */
__global__ void __launch_bounds__(256, 5)
    fast_norm_forward_kernel(int center, float epsilon, Values x, Values gain, Values bias,
                             Results out, float *saved, int64_t rows, int64_t n, bool aligned)
{
    int lane = threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; r < rows; r += warps) {
        float first = center ? value_at(x, r * n) : 0.0f, c = 0.0f, sum = 0.0f, v[8], a[8], b[8];
        int64_t end = (r + 1) * n;
        for (int64_t i = r * n + lane * 8; center && i < end; i += 256) {
            read_vec<8>(x, i, end - i, aligned, v);
            for (int k = 0; k < 8 && i + k < end; k++)
                sum += v[k] - first;
        }
        if (center)
            c = first + warp_sum(sum) / (float)n;
        sum = 0.0f;
        for (int64_t i = r * n + lane * 8; i < end; i += 256) {
            read_vec<8>(x, i, end - i, aligned, v);
            for (int k = 0; k < 8 && i + k < end; k++)
                sum = gckpti_fma(v[k] - c, v[k] - c, sum);
        }
        float rstd = gckpti_rsqrt(warp_sum(sum) / (float)n + epsilon);
        for (int64_t i = lane * 8; wanted(out) && i < n; i += 256) {
            read_vec<8>(x, r * n + i, n - i, aligned, v);
            read_vec<8>(gain, i, n - i, false, a);
            read_vec<8>(bias, i, n - i, false, b);
            for (int k = 0; k < 8; k++)
                v[k] = gckpti_fma((v[k] - c) * rstd, gain.f32 || gain.bf16 ? a[k] : 1.0f, b[k]);
            write_vec<8>(out, r * n + i, n - i, aligned, v);
        }
        if (saved && center && lane < 3)
            saved[3 * r + lane] = lane == 0 ? c : lane == 1 ? 0.0f : rstd;
        if (saved && !center && lane == 0)
            saved[r] = rstd;
    }
}

/* A block has TOKENS rows at a time, which stay in caches while they are read twice: for columns'
 * sums, i.e. gradients of bias and gain (four columns a thread), and for dx (a row a warp). */
__global__ void __launch_bounds__(32 * TOKENS, 2)
    fast_norm_backward_kernel(int center, Values x, Values gain, const float *saved, Values g,
                              Results dx, float *g_sums, float *gh_sums, int64_t rows, int64_t n,
                              bool aligned, int accumulate)
{
    int lane = threadIdx.x % 32, gains = gain.f32 || gain.bf16;
    const int each = aligned && x.bf16 && g.bf16 ? 4 : 1;
    for (int64_t group = blockIdx.x; group * TOKENS < rows; group += gridDim.x) {
        const int64_t first = group * TOKENS, r = first + threadIdx.x / 32;
        float v[8], u[8], w[8], a = 0.0f, b = 0.0f;
        for (int64_t j = threadIdx.x * each; (g_sums || gh_sums) && j < n; j += each * blockDim.x) {
            float sum[4] = {}, gh[4] = {};
            if (each == 4)
                group_sums<4, true>(g, x, saved, center, first, rows, n, j, sum, gh);
            else
                group_sums<1, true>(g, x, saved, center, first, rows, n, j, sum, gh);
            if (g_sums)
                write_vec<4>({ g_sums, NULL }, group * n + j, each, each == 4, sum);
            if (gh_sums)
                write_vec<4>({ gh_sums, NULL }, group * n + j, each, each == 4, gh);
        }
        if (r >= rows || !wanted(dx))
            continue;
        const Normed o = normed(saved, r, center);
        for (int64_t i = lane * 8; i < n; i += 256) {
            read_vec<8>(x, r * n + i, n - i, aligned, v);
            read_vec<8>(g, r * n + i, n - i, aligned, u);
            read_vec<8>(gain, i, n - i, false, w);
            for (int k = 0; k < 8 && i + k < n; k++) {
                u[k] *= gains ? w[k] : 1.0f;
                a += u[k];
                b = gckpti_fma(u[k], (v[k] - o.c) * o.rstd, b);
            }
        }
        a = center ? warp_sum(a) / (float)n : 0.0f;
        b = warp_sum(b) / (float)n;
        for (int64_t i = lane * 8; i < n; i += 256) {
            read_vec<8>(x, r * n + i, n - i, aligned, v);
            read_vec<8>(g, r * n + i, n - i, aligned, u);
            read_vec<8>(gain, i, n - i, false, w);
            for (int k = 0; k < 8; k++)
                v[k] = o.rstd *
                       gckpti_fma(-(v[k] - o.c) * o.rstd, b, u[k] * (gains ? w[k] : 1.0f) - a);
            write_vec<8>(dx, r * n + i, n - i, aligned, v, accumulate);
        }
    }
}

Values norm_input(const gckpt_call *call, int i) { return i ? value_of(call->in[i]) : NONE; }

void layernorm_forward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    Values x = value_of(call->in[0]);
    const Results out = out_of(call);
    run<fast_norm_forward_kernel>(call, blocks_for(32 * rows, 256), 256, 0, o->center,
        gckpti_norm_epsilon(o), x, norm_input(call, o->gain), norm_input(call, o->bias), out,
        (float *)call->saved, rows, n, n % 8 == 0 && aligned(x, out));
}

void layernorm_backward(const gckpt_call *original)
{
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const float *saved = (const float *)call->saved;
    Values x = value_of(call->in[0]), g = grad_out_of(call);
    Results dx = grad_of(call->in[0]);
    Workspace workspace = { (char *)call->workspace, 0 };
    ColSum normed = {}, g_sums = {};
    if (o->gain && wanted(call->in[o->gain]))
        normed = column_of(workspace, rows, n, call->in[o->gain]);
    if (o->bias && wanted(call->in[o->bias]))
        g_sums = column_of(workspace, rows, n, call->in[o->bias]);
    run<fast_norm_backward_kernel>(call, blocks_for(rows, TOKENS), 32 * TOKENS, 0, o->center, x,
        norm_input(call, o->gain), saved, g, dx, g_sums.parts, normed.parts, rows, n,
        n % 8 == 0 && aligned(x, g, dx), call->in[0].accumulate);
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
