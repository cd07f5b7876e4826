/* A warp has a row; its lanes are the 32 of the manual's 5d. They read 128 bytes at a time, and a
 * row that is read again is in the L1. 8,000 rows are 60 warps for each of 132 multiprocessors. */

/* Returns the maximum by gckpti_max's tree (of +0 and -0 it takes the first), in all lanes. */
__device__ float warp_max(float lane)
{
    for (int h = 16; h; h /= 2) {
        float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}

/* Computes exponentials twice instead of storing and reading them. LOG (log_softmax) takes classes
 * in one pass, as gckpti_online does. y may be x. */
template <bool LOG> __device__ void softmax_of_row(int64_t r, const float *x, float *y, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    const float *from = x + r * n;
    float max = -INFINITY;
    for (int64_t i = lane; i < n; i += 32)
        max = from[i] > max ? from[i] : max;
    max = warp_max(max);
    const float shift = gckpti_shift(max);
    float sum =
        lanes_sum(n, [&](float all, int64_t i) { return all + gckpti_exp(from[i] - shift); });
    max = LOG ? max : shift;
    gckpti_softmax_end(&max, &sum);
    sum = LOG ? gckpti_log(sum) : sum;
    for (int64_t i = lane; i < n; i += 32)
        y[r * n + i] = LOG ? from[i] - max - sum : gckpti_exp(from[i] - max) / sum;
}

/* Computes d, the gradient of x. d may be g: the last lane that reads an element also writes it. */
template <bool LOG>
__device__ void softmax_gradient_of_row(int64_t r, const float *y, const float *g, float *d,
                                        int64_t n, int accumulate)
{
    y += r * n, g += r * n, d += r * n;
    const float sum = lanes_sum(
        n, [&](float all, int64_t i) { return LOG ? all + g[i] : gckpti_fma(g[i], y[i], all); });
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        if (LOG)
            gckpti_put(&d[i], gckpti_fma(-gckpti_exp(y[i]), sum, g[i]), accumulate);
        else
            gckpti_put_product(&d[i], y[i], g[i] - sum, accumulate);
}

template <bool LOG> void softmax_by(const gckpt_call *call, bool backward)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    if (!backward)
        for_each_row<softmax_of_row<LOG>>(call, rows, x->data, call->out, n);
    else if (x->grad)
        for_each_row<softmax_gradient_of_row<LOG>>(call, rows, call->out, call->grad_out, x->grad,
                                                   n, x->accumulate);
}
