/* A row is a warp's, whose lanes are the contract's 32 (5d): they read 128 bytes of it at a time,
 * and what a row is read for again lies in the L1. 8,000 rows are 60 warps for each of 132 SMs. */

/* gckpti_max's tree (of +0 and -0 it takes the first), for all lanes. */
__device__ float warp_max(float lane)
{
    for (int h = 16; h; h /= 2) {
        float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}

/* Exponentials are computed twice rather than stored and read. y may be x. */
__global__ void softmax_forward_kernel(const float *x, float *y, int64_t rows, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float max = -INFINITY, sum = 0.0f;
        for (int64_t i = lane; i < n; i += 32)
            max = from[i] > max ? from[i] : max;
        max = gckpti_shift(warp_max(max));
        for (int64_t i = lane; i < n; i += 32)
            sum += gckpti_exp(from[i] - max);
        sum = warp_sum(sum);
        gckpti_softmax_end(&max, &sum);
        for (int64_t i = lane; i < n; i += 32)
            y[r * n + i] = gckpti_exp(from[i] - max) / sum;
    }
}

void softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, softmax_forward_kernel, blocks_for(32 * rows, 256), 256, 0, call->in[0].data,
        call->out, rows, n);
}

/* d may be g: an element is read last by the lane that writes it. */
__global__ void softmax_backward_kernel(const float *y, const float *g, float *d, int64_t rows,
                                        int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        float dot = 0.0f;
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            dot = gckpti_fma(g[i], y[i], dot);
        dot = warp_sum(dot);
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            gckpti_put_product(&d[i], y[i], g[i] - dot, accumulate);
    }
}

void softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    if (call->in[0].grad)
        RUN(call, softmax_backward_kernel, blocks_for(32 * rows, 256), 256, 0, call->out,
            call->grad_out, call->in[0].grad, rows, n, call->in[0].accumulate);
}

/* Classes in one step, as gckpti_online takes them. y may be x. */
__global__ void log_softmax_forward_kernel(const float *x, float *y, int64_t rows, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float max = -INFINITY, sum = 0.0f;
        for (int64_t i = lane; i < n; i += 32)
            max = from[i] > max ? from[i] : max;
        max = warp_max(max);
        for (int64_t i = lane; i < n; i += 32)
            sum += gckpti_exp(from[i] - gckpti_shift(max));
        sum = warp_sum(sum);
        gckpti_softmax_end(&max, &sum);
        sum = gckpti_log(sum);
        for (int64_t i = lane; i < n; i += 32)
            y[r * n + i] = from[i] - max - sum;
    }
}

void log_softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, log_softmax_forward_kernel, blocks_for(32 * rows, 256), 256, 0, call->in[0].data,
        call->out, rows, n);
}

/* d may be g. */
__global__ void log_softmax_backward_kernel(const float *y, const float *g, float *d, int64_t rows,
                                            int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        float sum = 0.0f;
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            sum += g[i];
        sum = warp_sum(sum);
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            gckpti_put(&d[i], gckpti_fma(-gckpti_exp(y[i]), sum, g[i]), accumulate);
    }
}

void log_softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    if (call->in[0].grad)
        RUN(call, log_softmax_backward_kernel, blocks_for(32 * rows, 256), 256, 0, call->out,
            call->grad_out, call->in[0].grad, rows, n, call->in[0].accumulate);
}
