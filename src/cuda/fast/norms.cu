/* ---- layernorm, rmsnorm: a warp has a row, a lane eight adjacent elements at a time ---- */
struct Norm { /* a layernorm or, if center is 0, an rmsnorm; gain and bias may be empty */
    int center;
    int64_t n; /* elements of a row */
    Values x, gain, bias, g;
    float *saved;
    bool aligned; /* rows, gain and bias begin at multiples of 16 bytes */
};

Norm norm_of(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_arg *in = call->in;
    Norm s = { o->center, gckpti_last(&call->shape), value_of(in[0]) };
    s.gain = o->gain ? value_of(in[o->gain]) : NONE;
    s.bias = o->bias ? value_of(in[o->bias]) : NONE;
    s.g = grad_out_of(call), s.saved = (float *)call->saved;
    s.aligned = s.n % 8 == 0 && aligned(s.x, s.gain, s.bias, s.g, out_of(call), grad_of(in[0]));
    return s;
}

enum { AT_ONCE = 8 }; /* adjacent elements that a lane has */

/* Returns the sum over a row by a warp: f(sum, x) returns the sum with x. */
template <class F> __device__ __forceinline__ float norm_sum(const Norm &s, int64_t r, F f)
{
    float sum = 0.0f, x[AT_ONCE];
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        UNROLLED(k, AT_ONCE) sum = i + k < s.n ? f(sum, x[k]) : sum;
    }
    return warp_sum(sum);
}

/* The mean is uncorrected: x has 8 bits. */
__device__ void norm_row(int64_t r, const Norm &s, float epsilon, const Results &out)
{
    const int lane = (int)threadIdx.x % 32;
    Normed o = {};
    if (s.center) {
        o.c = value_at(s.x, r * s.n);
        o.c += norm_sum(s, r, [&](float sum, float x) { return sum + (x - o.c); }) / (float)s.n;
    }
    const float squares = norm_sum(
        s, r, [&](float sum, float x) { return gckpti_fma(x - o.c, x - o.c, sum); });
    o.rstd = gckpti_rsqrt(squares / (float)s.n + epsilon);
    for (int64_t i = lane * AT_ONCE; wanted(out) && i < s.n; i += 32 * AT_ONCE) {
        float x[AT_ONCE], gain[AT_ONCE], bias[AT_ONCE];
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        read_vec<AT_ONCE>(s.gain, i, s.n - i, s.aligned, gain);
        read_vec<AT_ONCE>(s.bias, i, s.n - i, s.aligned, bias);
        UNROLLED(k, AT_ONCE) x[k] = norm_out(x[k] - o.c, o.rstd, wanted(s.gain) ? gain : NULL,
                                       wanted(s.bias) ? bias : NULL, k);
        write_vec<AT_ONCE>(out, r * s.n + i, s.n - i, s.aligned, x);
    }
    if (s.saved && s.center && lane < 3)
        s.saved[3 * r + lane] = lane == 0 ? o.c : lane == 1 ? o.mean : o.rstd;
    if (s.saved && !s.center && lane == 0)
        s.saved[r] = o.rstd;
}

__device__ void norm_gradient_of_row(int64_t r, const Norm &s, const Results &dx, int accumulate)
{
    const Normed o = normed(s.saved, r, s.center);
    float h[AT_ONCE], u[AT_ONCE]; /* h: normalised x; u: g gain */
    float gain[AT_ONCE], a = 0.0f, b = 0.0f;
    const auto read = [&](int64_t i) {
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, h);
        read_vec<AT_ONCE>(s.g, r * s.n + i, s.n - i, s.aligned, u);
        read_vec<AT_ONCE>(s.gain, i, s.n - i, s.aligned, gain);
        UNROLLED(k, AT_ONCE) h[k] = o.normalised(h[k]);
        UNROLLED(k, AT_ONCE) u[k] = wanted(s.gain) ? gckpti_mul(u[k], gain[k]) : u[k];
    };
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        read(i);
        UNROLLED(k, AT_ONCE) if (i + k < s.n)
            a += u[k], b = gckpti_fma(u[k], h[k], b);
    }
    a = s.center ? warp_sum(a) / (float)s.n : 0.0f;
    b = warp_sum(b) / (float)s.n;
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        float d[AT_ONCE] = {};
        read(i);
        if (accumulate)
            read_vec<AT_ONCE>(dx, r * s.n + i, s.n - i, s.aligned, d);
        UNROLLED(k, AT_ONCE)
            gckpti_put_product(&d[k], o.rstd, gckpti_fma(-h[k], b, u[k] - a), accumulate);
        write_vec<AT_ONCE>(dx, r * s.n + i, s.n - i, s.aligned, d);
    }
}

/* A block has TOKENS rows at a time, which stay in caches while they are read twice: for columns'
 * sums, i.e. gradients of bias and gain (four columns a thread), and for dx (a row a warp). */
__global__ void __launch_bounds__(32 * TOKENS, 2)
    fast_norm_backward_kernel(const __grid_constant__ Norm s, Results dx, float *g_sums,
                              float *gh_sums, int64_t rows, int accumulate)
{
    const int64_t n = s.n, each = s.aligned && s.x.bf16 && s.g.bf16 ? 4 : 1;
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
            norm_gradient_of_row(r, s, dx, accumulate);
    }
}

void layernorm_by(const gckpt_call *original, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)original->attributes;
    const Norm s = norm_of(original);
    const int64_t n = s.n, rows = gckpti_rows(&original->shape);
    if (!backward)
        return for_each_row<norm_row>(original, rows, s, gckpti_norm_epsilon(o),
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
