/* What the forward saves for a row: c, close to the mean; the mean of x - c; 1 / deviation. In an
 * rmsnorm c and mean are 0, and only rstd is saved. */
struct Normed {
    float c, mean, rstd;
    __device__ float centered(float x) const { return (x - c) - mean; }
    __device__ float normalised(float x) const { return centered(x) * rstd; }
};

__device__ Normed normed(const float *saved, int64_t r, int center)
{
    if (center)
        return { saved[3 * r], saved[3 * r + 1], saved[3 * r + 2] };
    return { 0.0f, 0.0f, saved[r] };
}

/* Returns y = d rstd gain + bias at element i of a row; gain and bias may be NULL. */
__device__ float norm_out(float d, float rstd, const float *gain, const float *bias, int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

struct Norm { /* a layernorm or, if center is 0, an rmsnorm; gain and bias may be NULL */
    int center;
    int64_t n; /* elements of a row */
    const float *x, *gain, *bias, *g;
    float *saved;
};

__device__ void norm_row(int64_t r, const Norm &s, float epsilon, float *out)
{
    const int lane = (int)threadIdx.x % 32;
    const float *x = s.x + r * s.n;
    Normed o = {};
    const auto mean_from = [&](float c) {
        return lanes_sum(s.n, [&](float sum, int64_t i) { return sum + (x[i] - c); }) / (float)s.n;
    };
    if (s.center) {
        o.c = x[0] + mean_from(x[0]);
        o.mean = mean_from(o.c);
    }
    const float squares = lanes_sum(s.n, [&](float sum, int64_t i) {
        const float d = o.centered(x[i]);
        return gckpti_fma(d, d, sum);
    });
    o.rstd = gckpti_rsqrt(squares / (float)s.n + epsilon);
    for (int64_t i = lane; out && i < s.n; i += 32)
        out[r * s.n + i] = norm_out(o.centered(x[i]), o.rstd, s.gain, s.bias, i);
    if (s.saved && s.center && lane < 3)
        s.saved[3 * r + lane] = lane == 0 ? o.c : lane == 1 ? o.mean : o.rstd;
    if (s.saved && !s.center && lane == 0)
        s.saved[r] = o.rstd;
}

__device__ void norm_gradient_of_row(int64_t r, const Norm &s, float *dx, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    const float *x = s.x + r * s.n, *g = s.g + r * s.n;
    const Normed o = normed(s.saved, r, s.center);
    float a = 0.0f, b = 0.0f;
    for (int64_t i = lane; i < s.n; i += 32) {
        const float u = s.gain ? gckpti_mul(g[i], s.gain[i]) : g[i];
        a += u;
        b = gckpti_fma(u, o.normalised(x[i]), b);
    }
    a = s.center ? warp_sum(a) / (float)s.n : 0.0f;
    b = warp_sum(b) / (float)s.n;
    for (int64_t i = lane; i < s.n; i += 32) {
        const float h = o.normalised(x[i]), u = s.gain ? gckpti_mul(g[i], s.gain[i]) : g[i];
        gckpti_put_product(&dx[r * s.n + i], o.rstd, gckpti_fma(-h, b, u - a), accumulate);
    }
}

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    Norm s;
    bool gain;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        term[1] = s.g[r * s.n + column];
        if (gain)
            term[0] =
                gckpti_mul(term[1], normed(s.saved, r, s.center).normalised(s.x[r * s.n + column]));
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    const Sum gain = sum_of(call, o->gain);
    const Norm s = { o->center, gckpti_last(&call->shape), x->data,
                     o->gain ? call->in[o->gain].data : NULL,
                     o->bias ? call->in[o->bias].data : NULL, call->grad_out,
                     (float *)call->saved };
    if (!backward)
        return for_each_row<norm_row>(call, rows, s, gckpti_norm_epsilon(o), call->out);
    column_sums(call, NormTerms{ {}, s, wanted(gain.at) }, gain, sum_of(call, o->bias), rows, s.n);
    if (x->grad)
        for_each_row<norm_gradient_of_row>(call, rows, s, x->grad, x->accumulate);
}
