/* Sums of rows of x (rows,n), f32 or bf16, in the order of rows (manual, 5e); a thread has a
 * column. It waits for its own four additions a row, not for memory: the next rows are read
 * meanwhile. A warp is a block, so that they spread over all processors. */
__global__ void sum_rows_kernel(const float *x, const uint16_t *bf16, int64_t rows, int64_t n,
                                float *sum, float *low, int accumulate)
{
    enum { AHEAD = 32 };
    int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float next[AHEAD], s, l;
    if (j >= n)
        return;
    s = accumulate ? sum[j] : 0.0f;
    l = low ? low[j] : 0.0f;
    for (int64_t r = -AHEAD; r < rows; r += AHEAD) {
        float here[AHEAD];
        UNROLL for (int i = 0; i < AHEAD; i++)
        {
            int64_t at = r + AHEAD + i < rows ? (r + AHEAD + i) * n + j : j;
            here[i] = next[i];
            next[i] = x ? x[at] : gckpti_from_bf16(bf16[at]);
        }
        UNROLL for (int i = 0; i < AHEAD; i++) if (r + i >= 0 && r + i < rows)
            gckpti_sum_add(&s, low ? &l : NULL, here[i]);
    }
    sum[j] = s;
    if (low)
        low[j] = l;
}

void bias_gradient(const gckpt_call *call, const gckpt_arg *bias, int64_t rows, int64_t n)
{
    RUN(call, sum_rows_kernel, dim3((unsigned)((n + 31) / 32)), 32, 0, call->grad_out,
        call->grad_out_bf16, rows, n, bias->grad, bias->low, bias->accumulate);
}

void linear_forward(const gckpt_call *call) { gckpti_linear_out(call, products); }

void linear_backward(const gckpt_call *call)
{
    gckpti_linear_gradients(call, products);
    if (call->inputs == 3 && call->in[2].grad)
        bias_gradient(call, &call->in[2], gckpti_rows(&call->shape), gckpti_last(&call->shape));
}
