/* What the forward saves for a row: c, close to the mean; the mean of x - c; 1 / deviation. In an
 * rmsnorm c and mean are 0, and only rstd is saved. */
struct Normed {
    float c, mean, rstd;
    __device__ float centered(float x) const { return (x - c) - mean; }
    __device__ float normalised(float x) const { return centered(x) * rstd; }
};

__device__ Normed normed(const float *saved, int64_t r, int center)
{
    const float *row = saved + (center ? 3 * r : r);
    const float c = row[0], mean = row[center ? 1 : 0], rstd = row[center ? 2 : 0];
    return { center ? c : 0.0f, center ? mean : 0.0f, rstd };
}

/* Returns y = d rstd gain + bias at element i of a row; gain and bias may be NULL. */
__device__ float norm_out(float d, float rstd, const float *gain, const float *bias, int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

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

/* Returns s, with operands that are known to be in f32 if N is 1 (exact kernels). */
template <int N> __device__ __forceinline__ Norm typed(Norm s)
{
    if (N == 1)
        s.x.bf16 = s.gain.bf16 = s.bias.bf16 = s.g.bf16 = NULL;
    return s;
}

/* Returns the sum over a row by a warp: f(sum, x) returns the sum with x. A lane has N adjacent
 * elements at a time; with N = 1, lanes are the 32 of the manual's 5d. */
template <int N, class F> __device__ __forceinline__ float norm_sum(const Norm &s, int64_t r, F f)
{
    float sum = 0.0f, x[N];
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        UNROLLED(k, N) sum = i + k < s.n ? f(sum, x[k]) : sum;
    }
    return warp_sum(sum);
}

/* N = 8: of GCKPT_BF16_FAST, where the mean is uncorrected: x has 8 bits. */
template <int N>
__device__ void norm_row(int64_t r, const Norm &norm, float epsilon, const Results &out)
{
    const Norm s = typed<N>(norm);
    const int lane = (int)threadIdx.x % 32;
    Normed o = {};
    const auto mean_from = [&](float c) {
        return norm_sum<N>(s, r, [&](float sum, float x) { return sum + (x - c); }) / (float)s.n;
    };
    if (s.center) {
        const float first = value_at(s.x, r * s.n);
        o.c = first + mean_from(first);
        o.mean = N == 1 ? mean_from(o.c) : 0.0f;
    }
    const float squares = norm_sum<N>(s, r, [&](float sum, float x) {
        const float d = o.centered(x);
        return gckpti_fma(d, d, sum);
    });
    o.rstd = gckpti_rsqrt(squares / (float)s.n + epsilon);
    for (int64_t i = lane * N; wanted(out) && i < s.n; i += 32 * N) {
        float x[N], gain[N], bias[N];
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        read_vec<N>(s.gain, i, s.n - i, s.aligned, gain);
        read_vec<N>(s.bias, i, s.n - i, s.aligned, bias);
        UNROLLED(k, N) x[k] = norm_out(o.centered(x[k]), o.rstd, wanted(s.gain) ? gain : NULL,
                                       wanted(s.bias) ? bias : NULL, k);
        write_vec<N>(out, r * s.n + i, s.n - i, s.aligned, x);
    }
    if (s.saved && s.center && lane < 3)
        s.saved[3 * r + lane] = lane == 0 ? o.c : lane == 1 ? o.mean : o.rstd;
    if (s.saved && !s.center && lane == 0)
        s.saved[r] = o.rstd;
}

template <int N>
__device__ void norm_gradient_of_row(int64_t r, const Norm &norm, const Results &dx, int accumulate)
{
    const Norm s = typed<N>(norm);
    const Normed o = normed(s.saved, r, s.center);
    float h[N], u[N], gain[N], a = 0.0f, b = 0.0f; /* h: normalised x; u: g gain */
    const auto read = [&](int64_t i) {
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, h);
        read_vec<N>(s.g, r * s.n + i, s.n - i, s.aligned, u);
        read_vec<N>(s.gain, i, s.n - i, s.aligned, gain);
        UNROLLED(k, N) h[k] = o.normalised(h[k]);
        UNROLLED(k, N) u[k] = wanted(s.gain) ? gckpti_mul(u[k], gain[k]) : u[k];
    };
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        read(i);
        UNROLLED(k, N) if (i + k < s.n)
            a += u[k], b = gckpti_fma(u[k], h[k], b);
    }
    a = s.center ? warp_sum(a) / (float)s.n : 0.0f;
    b = warp_sum(b) / (float)s.n;
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        float d[N] = {};
        read(i);
        if (accumulate)
            read_vec<N>(dx, r * s.n + i, s.n - i, s.aligned, d);
        UNROLLED(k, N)
            gckpti_put_product(&d[k], o.rstd, gckpti_fma(-h[k], b, u[k] - a), accumulate);
        write_vec<N>(dx, r * s.n + i, s.n - i, s.aligned, d);
    }
}

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    Norm s;
    template <bool> __device__ void read(int64_t column, int64_t r, float *term) const
    {
        const int64_t at = r * s.n + column;
        term[1] = s.g.f32[at];
        term[0] = gckpti_mul(term[1], normed(s.saved, r, s.center).normalised(s.x.f32[at]));
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    const Sum gain = sum_of(call, o->gain), bias = sum_of(call, o->bias);
    const RowTerms<> g = { {}, NONE, grad_out_of(call), gckpti_last(&call->shape) };
    const Norm s = norm_of(call);
    if (!backward)
        return for_each_row<norm_row<1>>(call, rows, s, gckpti_norm_epsilon(o), out_of(call));
    if (wanted(gain.at)) /* else x and saved may be gone */
        column_sums(call, NormTerms{ {}, s }, gain, bias, rows, s.n);
    else
        column_sums(call, g, {}, bias, rows, s.n);
    if (x->grad)
        for_each_row<norm_gradient_of_row<1>>(call, rows, s, grad_of(*x), x->accumulate);
}
