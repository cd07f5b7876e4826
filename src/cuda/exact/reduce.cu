/* Terms of a row's sum: add() adds the VALUES values that read() reads. +0 changes no sum. */
struct Plain { /* x */
    static constexpr int VALUES = 1;
    const float *x;
    __device__ void read(float *v, int64_t i) const { v[0] = x[i]; }
    __device__ float add(const float *v, float sum) const { return sum + v[0]; }
};

struct ElementLoss { /* w a b; if w is 0 or NaN, w */
    static constexpr int VALUES = 2;
    gckpti_element_loss e;
    __device__ void read(float *v, int64_t i) const
    {
        float w = gckpti_element_weight(&e, i);
        float a = gckpti_element_factors(e.kind, e.x[i], e.y ? e.y[i] : 0.0f, e.delta, &v[1]);
        bool counts = w > 0.0f || w < 0.0f;
        v[0] = counts ? w * a : w;
        v[1] = counts ? v[1] : 1.0f;
    }
    __device__ float add(const float *v, float sum) const { return gckpti_fma(v[0], v[1], sum); }
};

/* Sums rows of n elements, a warp a row, and divides each sum by `divisor`. */
template <class F>
__device__ void sum_of_row(int64_t r, const F &f, float *out, int64_t n, float divisor)
{
    const float sum = lanes_sum<8>(n, [&](float all, int64_t i) {
        float v[F::VALUES];
        f.read(v, r * n + i);
        return f.add(v, all);
    });
    if (threadIdx.x % 32 == 0)
        out[r] = sum / divisor;
}

/* Sums rows with a block for each row, if rows are few and long: its warps copy some thousand
 * elements to shared memory while the first warp adds the previous ones. 128 terms in each lane
 * take about as long as reading memory. */
enum { LONG = 4096, LONG_THREADS = 512, LONG_ROW = 2 * LONG };
template <class F>
__global__ void long_row_sums_kernel(F f, float *out, int64_t n, float divisor)
{
    enum { PER_STEP = LONG / F::VALUES };
    SHARED(float, tile, [2][PER_STEP][F::VALUES]);
    int64_t row = blockIdx.x * n;
    int thread = (int)threadIdx.x;
    float sum = 0.0f;
    for (int64_t i = -PER_STEP; i < n; i += PER_STEP) {
        int now = i / PER_STEP & 1 ? 1 : 0;
        float v[PER_STEP / LONG_THREADS][F::VALUES] = {};
        for (int k = 0; k < PER_STEP / LONG_THREADS; k++) {
            int64_t at = i + PER_STEP + k * LONG_THREADS + thread;
            if (at < n)
                f.read(v[k], row + at);
        }
#pragma unroll 16
        for (int k = thread; k < PER_STEP && thread < 32 && i >= 0; k += 32)
            sum = f.add(tile[now][k], sum);
        for (int k = 0; k < PER_STEP / LONG_THREADS; k++)
            for (int j = 0; j < F::VALUES; j++)
                tile[!now][k * LONG_THREADS + thread][j] = v[k][j];
        __syncthreads();
    }
    if (thread >= 32)
        return;
    sum = warp_sum(sum);
    if (thread == 0)
        out[blockIdx.x] = sum / divisor;
}

template <class F>
void row_sums(const gckpt_call *call, F f, float *out, int64_t rows, int64_t n, float divisor)
{
    if (n >= LONG_ROW && rows < 1024) /* with more rows, a warp per row fills the chip */
        run<long_row_sums_kernel<F>>(call, dim3((unsigned)rows), LONG_THREADS, 0, f, out, n,
                                     divisor);
    else
        for_each_row<sum_of_row<F>>(call, rows, f, out, n, divisor);
}
