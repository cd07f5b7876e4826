/* Terms of a row's sum, each a product of two factors. */
struct Plain {
    const float *x;
    __device__ void operator()(int64_t i, float *v) const { v[0] = x[i], v[1] = 1.0f; }
};

/* w a b; if w is 0 or NaN, w. */
template <gckpti_loss_kind KIND, bool WEIGHTED> struct ElementLoss {
    gckpti_element_loss e;
    __device__ void operator()(int64_t i, float *v) const
    {
        const float w = WEIGHTED ? gckpti_element_weight(&e, i) : 1.0f;
        const float y = KIND == GCKPTI_LOSS_SUM ? 0.0f : e.y[i];
        const float a = gckpti_element_factors(KIND, e.x[i], y, e.delta, &v[1]);
        const bool counts = w > 0.0f || w < 0.0f;
        v[0] = counts ? w * a : w;
        v[1] = counts ? v[1] : 1.0f;
    }
};

/* Returns the sum of row r of n elements by a warp, in the 32 lanes of the manual's 5d. */
template <class F> __device__ float row_sum(int64_t r, const F &f, int64_t n)
{
    const int64_t lane = threadIdx.x % 32;
    float sum = 0.0f;
    add_terms<8>((n - lane + 31) / 32,
                 [&](int64_t k, float *v) { f(r * n + lane + 32 * k, v); },
                 [&](const float *v) { sum = gckpti_fma(v[0], v[1], sum); });
    return warp_sum(sum);
}

template <class F>
__device__ void sum_of_row(int64_t r, const F &f, float *out, int64_t n, float divisor)
{
    const float sum = row_sum(r, f, n);
    if (threadIdx.x % 32 == 0)
        out[r] = sum / divisor;
}

/* Computes the gradient of weight r from the sum of the losses that it multiplies. */
template <class F>
__device__ void weight_gradient(int64_t r, const F &losses, const gckpt_arg &weights, int64_t n,
                                const StepParams *params)
{
    const float sum = row_sum(r, losses, n);
    if (threadIdx.x % 32 == 0)
        gckpti_put_product(&weights.grad[r], sum, params->loss_scale, weights.accumulate);
}
