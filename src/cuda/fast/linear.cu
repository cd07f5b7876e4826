/* ---- sums over tokens: of a bias, a gain ---- */
/* A block has 32 columns, a warp TOKENS rows of them at a time; then the first warp adds the groups
 * to the sums in their order, with low parts. aux NULL: sums g; else g (x - c - mean) rstd, with
 * `each` of these per row (a norm's aux). */
__global__ void column_sums_kernel(Values g, int64_t rows, int64_t n, Values x, const float *aux,
                                   int each, int accumulate, Results sums, float *low)
{
    SHARED(float, group, [16][32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t j = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0.0f, rest = 0.0f;
    if (warp == 0 && j < n) {
        sum = accumulate ? value_at(sums, j) : 0.0f;
        rest = low ? low[j] : 0.0f;
    }
    for (int64_t first = 0; first < rows; first += 16 * TOKENS) {
        int64_t r = first + warp * TOKENS, end = r + TOKENS < rows ? r + TOKENS : rows;
        float part = 0.0f;
        for (; r < end && j < n; r++) {
            float v = value_at(g, r * n + j);
            if (aux) {
                const float *a = aux + r * each;
                float c = each == 3 ? a[0] : 0.0f, mean = each == 3 ? a[1] : 0.0f;
                v *= gckpti_centered(value_at(x, r * n + j), c, mean) * a[each - 1];
            }
            part += v;
        }
        group[warp][lane] = part;
        __syncthreads();
        for (int w = 0; warp == 0 && w < 16 && first + w * TOKENS < rows; w++)
            gckpti_sum_add(&sum, &rest, group[w][lane]);
        __syncthreads();
    }
    if (warp == 0 && j < n) {
        put_at(sums, j, sum);
        if (low)
            low[j] = rest;
    }
}

void column_sums(const gckpt_call *call, const gckpt_arg &to, Values x, const float *aux, int each)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, column_sums_kernel, dim3((unsigned)((n + 31) / 32)), 512, 0, grad_out_of(call), rows,
        n, x, aux, each, to.accumulate, grad_of(to), to.low);
}

/* ---- linear: out (rows,n) = x (rows,k) w + bias ---- */
void linear_forward(const gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    int transposed = *(const int *)call->attributes;
    Room room = { (char *)call->work, 0 };
    const uint16_t *x = factor(call, room, value_of(call->in[0]), s.m * s.k);
    const uint16_t *w = factor(call, room, value_of(call->in[1]), s.n * s.k);
    mma_product(call,
                mma_of(s.m, s.n, s.k, matrix(x, s.k), matrix(w, transposed ? s.k : s.n),
                       value_of(call->in[2]), 0, out_of(call)),
                1, transposed);
}

void linear_backward(const gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    const gckpt_arg *in = call->in;
    int transposed = *(const int *)call->attributes;
    Room room = { (char *)call->work, 0 };
    const Matrix<uint16_t> g = matrix(factor(call, room, grad_out_of(call), s.m * s.n), s.n);
    if (wanted(in[0])) {
        const uint16_t *w = factor(call, room, value_of(in[1]), s.n * s.k);
        mma_product(call,
                    mma_of(s.m, s.k, s.n, g, matrix(w, transposed ? s.k : s.n), NONE,
                           in[0].accumulate, grad_of(in[0])),
                    1, !transposed);
    }
    if (wanted(in[1])) {
        const Matrix<uint16_t> x = matrix(factor(call, room, value_of(in[0]), s.m * s.k), s.k);
        mma_product(call,
                    transposed
                        ? mma_of(s.n, s.k, s.m, g, x, NONE, in[1].accumulate, grad_of(in[1]))
                        : mma_of(s.k, s.n, s.m, x, g, NONE, in[1].accumulate, grad_of(in[1])),
                    0, 0);
    }
    if (call->inputs == 3 && wanted(in[2]))
        column_sums(call, in[2], NONE, NULL, 0);
}

gckpt_result linear_room(gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    Values x = value_of(call->in[0]), w = value_of(call->in[1]), g = grad_out_of(call);
    Room forward = { NULL, 0 }, backward = { NULL, 0 };
    factor(call, forward, x, s.m * s.k);
    factor(call, forward, w, s.n * s.k);
    factor(call, backward, g, s.m * s.n);
    factor(call, backward, w, s.n * s.k);
    factor(call, backward, x, s.m * s.k);
    call->work_forward = forward.used;
    call->work_backward = backward.used;
    call->mixes_rows |= s.m % TOKENS != 0;
    return GCKPT_OK;
}
