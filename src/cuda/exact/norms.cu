template <bool LOG> void softmax_by(const gckpt_call *call, bool backward)
{
    GCKPTI_IF_ACTIVATIONS(
        if (LOG) return rows_by<gckpti_log_softmax_row_warp, gckpti_log_softmax_row_grad_warp>(
            call, backward));
    rows_by<gckpti_softmax_row_warp, gckpti_softmax_row_grad_warp>(call, backward);
}

/* What the forward saves for a row: c, close to the mean; the mean of x - c; 1 / deviation. In an
 * rmsnorm c and mean are 0, and only rstd is saved. */
struct Normed {
    float c, mean, rstd;
    __device__ float normalised(float x) const { return ((x - c) - mean) * rstd; }
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

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    const float *x, *g, *saved;
    int64_t n;
    int center;
    template <bool> __device__ void read(int64_t column, int64_t r, float *term) const
    {
        const int64_t at = r * n + column;
        term[1] = g[at];
        term[0] = gckpti_mul(term[1], normed(saved, r, center).normalised(x[at]));
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t rows = gckpti_rows(&call->shape), n = gckpti_last(&call->shape);
    const float *x = call->in[0].data, *g = call->grad_out, *saved = (const float *)call->saved;
    const Sum gain = sum_of(call, o->gain), bias = sum_of(call, o->bias);
    if (backward && wanted(gain.at)) /* else x and saved may be gone */
        column_sums(call, NormTerms{ {}, x, g, saved, n, o->center }, gain, bias, rows, n);
    else if (backward)
        column_sums(call, RowTerms<>{ {}, NONE, { g, NULL }, n }, {}, bias, rows, n);
    rows_by<gckpti_norm_row_warp, gckpti_norm_row_grad_warp>(call, backward, *o);
}
