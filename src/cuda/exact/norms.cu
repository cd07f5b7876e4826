/* Returns d = (x - c) - mean; in an rmsnorm c and mean are 0. */
__device__ float centered(float x, float c, float mean) { return (x - c) - mean; }

/* Returns y = d rstd gain + bias at element i of a row; gain and bias may be NULL. */
__device__ float norm_out(float d, float rstd, const float *gain, const float *bias, int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

/* Returns the mean of x - c over a row. */
__device__ float mean_from(const float *x, int64_t n, float c)
{
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum += x[i] - c;
    return warp_sum(sum) / (float)n;
}

__global__ void norm_forward_kernel(int center, float epsilon, const float *x, const float *gain,
                                    const float *bias, float *out, float *saved, int64_t rows,
                                    int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float c = 0.0f, mean = 0.0f, squares = 0.0f;
        if (center) {
            c = from[0] + mean_from(from, n, from[0]);
            mean = mean_from(from, n, c);
        }
        for (int64_t i = lane; i < n; i += 32) {
            float d = centered(from[i], c, mean);
            squares = gckpti_fma(d, d, squares);
        }
        float rstd = gckpti_rsqrt(warp_sum(squares) / (float)n + epsilon);
        for (int64_t i = lane; out && i < n; i += 32) {
            const float d = centered(from[i], c, mean);
            out[r * n + i] = norm_out(d, rstd, gain, bias, i);
        }
        if (saved && center && lane < 3)
            saved[3 * r + lane] = lane == 0 ? c : lane == 1 ? mean : rstd;
        if (saved && !center && lane == 0)
            saved[r] = rstd;
    }
}

/* What the forward saved for a row. */
struct Normed {
    float c, mean, rstd;
};

__device__ Normed normed(const float *saved, int64_t r, int center)
{
    if (center)
        return { saved[3 * r], saved[3 * r + 1], saved[3 * r + 2] };
    return { 0.0f, 0.0f, saved[r] };
}

__global__ void norm_backward_kernel(int center, const float *x, const float *gain,
                                     const float *saved, const float *g, float *dx, int64_t rows,
                                     int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n, *g_row = g + r * n;
        const Normed o = normed(saved, r, center);
        float a = 0.0f, b = 0.0f;
        for (int64_t i = lane; i < n; i += 32) {
            float u = gain ? gckpti_mul(g_row[i], gain[i]) : g_row[i];
            a += u;
            b = gckpti_fma(u, centered(from[i], o.c, o.mean) * o.rstd, b);
        }
        a = center ? warp_sum(a) / (float)n : 0.0f;
        b = warp_sum(b) / (float)n;
        for (int64_t i = lane; i < n; i += 32) {
            float h = centered(from[i], o.c, o.mean) * o.rstd;
            float u = gain ? gckpti_mul(g_row[i], gain[i]) : g_row[i];
            gckpti_put_product(&dx[r * n + i], o.rstd, gckpti_fma(-h, b, u - a), accumulate);
        }
    }
}

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    int center;
    const float *x, *saved, *g;
    bool gain;
    int64_t n;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        term[1] = g[r * n + column];
        if (gain) {
            const Normed o = normed(saved, r, center);
            term[0] = gckpti_mul(term[1], centered(x[r * n + column], o.c, o.mean) * o.rstd);
        }
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    const float *gain_data = o->gain ? call->in[o->gain].data : NULL, *g = call->grad_out;
    float *saved = (float *)call->saved;
    const Sum gain = sum_of(call, o->gain);
    if (!backward)
        RUN_ROWS(call, norm_forward_kernel, rows, o->center, gckpti_norm_epsilon(o), x->data,
                 gain_data, o->bias ? call->in[o->bias].data : NULL, call->out, saved, rows, n);
    else
        column_sums(call, NormTerms{ {}, o->center, x->data, saved, g, wanted(gain.at), n }, gain,
                    sum_of(call, o->bias), rows, n);
    if (backward && x->grad)
        RUN_ROWS(call, norm_backward_kernel, rows, o->center, x->data, gain_data, saved, g, x->grad,
                 rows, n, x->accumulate);
}
