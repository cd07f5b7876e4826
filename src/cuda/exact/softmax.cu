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
template <bool LOG>
__global__ void softmax_forward_kernel(const float *x, float *y, int64_t rows, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float max = -INFINITY, sum = 0.0f;
        for (int64_t i = lane; i < n; i += 32)
            max = from[i] > max ? from[i] : max;
        max = warp_max(max);
        const float shift = gckpti_shift(max);
        for (int64_t i = lane; i < n; i += 32)
            sum += gckpti_exp(from[i] - shift);
        sum = warp_sum(sum);
        max = LOG ? max : shift;
        gckpti_softmax_end(&max, &sum);
        sum = LOG ? gckpti_log(sum) : sum;
        for (int64_t i = lane; i < n; i += 32)
            y[r * n + i] = LOG ? from[i] - max - sum : gckpti_exp(from[i] - max) / sum;
    }
}

/* Computes d, the gradient of x. d may be g: the last lane that reads an element also writes it. */
template <bool LOG>
__global__ void softmax_backward_kernel(const float *y, const float *g, float *d, int64_t rows,
                                        int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        float sum = 0.0f;
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            sum = LOG ? sum + g[i] : gckpti_fma(g[i], y[i], sum);
        sum = warp_sum(sum);
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            if (LOG)
                gckpti_put(&d[i], gckpti_fma(-gckpti_exp(y[i]), sum, g[i]), accumulate);
            else
                gckpti_put_product(&d[i], y[i], g[i] - sum, accumulate);
    }
}

template <bool LOG> void softmax_by(const gckpt_call *call, bool backward)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    if (!backward)
        RUN_ROWS(call, softmax_forward_kernel<LOG>, rows, x->data, call->out, rows, n);
    else if (x->grad)
        RUN_ROWS(call, softmax_backward_kernel<LOG>, rows, call->out, call->grad_out, x->grad, rows,
                 n, x->accumulate);
}

