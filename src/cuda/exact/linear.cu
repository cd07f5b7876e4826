/* A sum over rows in their order (5e), as a thread keeps it. */
struct Sum {
    float *at, *low; /* at NULL: not wanted; low NULL: without */
    int accumulate;
};

enum { NORM_COLUMNS = 32, NORM_ROWS = 64 };

/* Sums over rows of two terms, and of images, which rows of blocks have, one by one. The additions
 * of a column wait for each other, so that time is rows times the latency of four additions. To
 * wait for nothing else, warps 0 and 1 add up 32 columns of one of the two from shared memory; the
 * next 64 rows are under way by all eight. FRESH: with low parts from +0, which are not kept. */
template <class T>
__global__ void column_sums_kernel(T of, Sum first, Sum second, int64_t rows, int64_t n)
{
    SHARED(float, tile, [2][2][NORM_ROWS][NORM_COLUMNS]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t across = (n + NORM_COLUMNS - 1) / NORM_COLUMNS, image = blockIdx.x / across;
    const int64_t column = (blockIdx.x - image * across) * NORM_COLUMNS + lane;
    const int64_t to = image * n + column;
    const Sum mine = warp == 0 ? first : second;
    const bool adds = warp < 2 && mine.at && column < n;
    float sum = adds && mine.accumulate ? mine.at[to] : 0.0f;
    float low = adds && mine.low ? mine.low[to] : 0.0f, term[NORM_ROWS / 8][2];
    of.begin(image, column < n ? column : 0);
    for (int64_t from = -NORM_ROWS; from < rows; from += NORM_ROWS) {
        int now = (int)(from / NORM_ROWS & 1);
        for (int k = 0; k < NORM_ROWS / 8; k++) { /* of the next rows */
            int64_t r = from + NORM_ROWS + 8 * k + warp;
            term[k][0] = term[k][1] = 0.0f;
            if (r < rows && column < n)
                of(r, column, term[k]);
        }
        const float(*line)[NORM_COLUMNS] = tile[now][warp % 2];
        int count = (int)(rows - from < NORM_ROWS ? rows - from : NORM_ROWS);
#pragma unroll 8
        for (int k = 0; k < count && adds && from >= 0; k++)
            add_term(T::FRESH || mine.low, &sum, &low, line[k][lane]);
        for (int k = 0; k < NORM_ROWS / 8; k++)
            for (int which = 0; which < 2; which++)
                tile[!now][which][8 * k + warp][lane] = term[k][which];
        __syncthreads();
    }
    if (adds)
        mine.at[to] = sum;
    if (adds && mine.low)
        mine.low[to] = low;
}

/* Of x (rows,n), f32 or bf16. */
struct RowTerms {
    static constexpr bool FRESH = false;
    const float *x;
    const uint16_t *bf16;
    int64_t n;
    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    __device__ __forceinline__ void operator()(int64_t r, int64_t column, float *term) const
    {
        const int64_t at = r * n + column;
        term[0] = x ? x[at] : gckpti_from_bf16(bf16[at]);
    }
};

Sum sum_of(const gckpt_arg &x) { return { x.grad, x.low, x.accumulate }; }

/* i 0: there is none. */
Sum sum_of(const gckpt_call *call, int i) { return i ? sum_of(call->in[i]) : Sum{}; }

template <class T>
void column_sums(const gckpt_call *call, const T &of, Sum first, Sum second, int64_t rows,
                 int64_t n, int64_t images = 1)
{
    const int64_t blocks = (n + NORM_COLUMNS - 1) / NORM_COLUMNS * images;
    if (first.at || second.at)
        RUN(call, column_sums_kernel<T>, dim3((unsigned)blocks), 256, 0, of, first, second, rows,
            n);
}

/* The third input's, of all rows of g. */
void bias_gradient(const gckpt_call *call)
{
    const RowTerms of = { call->grad_out, call->grad_out_bf16, gckpti_last(&call->shape) };
    if (call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}

void linear_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return gckpti_linear_out(call, products);
    gckpti_linear_gradients(call, products);
    bias_gradient(call);
}
BOTH_WAYS(linear, linear_by)
