/* ---- >>between -------------------------------------------------------------------------------
 * Kernels that only move memory have threads for all of it in flight: a thread takes 16 bytes at a
 * time where all addresses are multiples of 16, else one element. */
template <class T, int N>
struct alignas(N < 16 / (int)sizeof(T) ? (size_t)N * sizeof(T) : 16) Pack {
    T v[N];
};

template <int N, class T> __device__ Pack<T, N> load(const T *at)
{
    return *(const Pack<T, N> *)(const void *)at;
}

template <class T, int N> __device__ void store(T *at, const Pack<T, N> &pack)
{
    *(Pack<T, N> *)(void *)at = pack;
}

/* Multiples of 16, all of them; NULL is one. */
bool wide(const void *a, const void *b = NULL, const void *c = NULL)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) & 15) == 0;
}

/* for (EACH_ROW(r, rows)): the warps of the grid share the rows. A grid: blocks_for(32 * rows). */
#define EACH_ROW(r, rows)                                                                          \
    int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;                             \
    r < (rows);                                                                                    \
    r += (int64_t)gridDim.x * blockDim.x / 32

/* Lane j += lane j + h for h = 16, 8, 4, 2, 1; as a + b = b + a, each lane ends with the sum. */
__device__ float warp_sum(float lane)
{
    for (int h = 16; h; h /= 2)
        lane += __shfl_xor_sync(0xffffffffu, lane, h);
    return lane;
}

/* d[i] = f(a[i], b[i]); f also gets d[i], if it is to be accumulated. An element is one thread's,
 * so that bytes may coincide. F::READS: which of a and b there are. */
enum { READS_NONE, READS_A, READS_BOTH };

template <int N, class F>
__device__ void map_at(const F &f, const float *a, const float *b, float *d, int64_t i,
                       int accumulate)
{
    Pack<float, N> x = {}, y = {}, z = {};
    if (F::READS >= READS_A)
        x = load<N>(a + i);
    if (F::READS >= READS_BOTH)
        y = load<N>(b + i);
    if (accumulate)
        z = load<N>(d + i);
    for (int k = 0; k < N; k++)
        f(&z.v[k], x.v[k], y.v[k], accumulate);
    store(d + i, z);
}

template <int N, class F>
__global__ void map_kernel(F f, const float *a, const float *b, float *d, int64_t n, int accumulate)
{
    for (EACH(i, n / N))
        map_at<N>(f, a, b, d, i * N, accumulate);
    for (EACH(i, n % N))
        map_at<1>(f, a, b, d, n / N * N + i, accumulate);
}

/* d NULL: nobody wants it. */
template <class F>
void map(const gckpt_call *call, F f, const float *a, const float *b, float *d, int64_t n,
         int accumulate)
{
    if (!d || n < 1)
        return;
    if (wide(a, b, d))
        RUN(call, (map_kernel<4, F>), blocks_for((n + 3) / 4, 256), 256, 0, f, a, b, d, n,
            accumulate);
    else
        RUN(call, (map_kernel<1, F>), blocks_for(n, 256), 256, 0, f, a, b, d, n, accumulate);
}

template <int N> __global__ void fill_kernel(uint32_t *to, uint32_t word, int64_t n)
{
    Pack<uint32_t, N> pack;
    for (int k = 0; k < N; k++)
        pack.v[k] = word;
    for (EACH(i, n / N))
        store(to + i * N, pack);
    for (EACH(i, n % N))
        to[n / N * N + i] = word;
}

void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    if (n > 0 && wide(to))
        RUN(call, fill_kernel<4>, blocks_for((n + 3) / 4, 256), 256, 0, (uint32_t *)to, word, n);
    else if (n > 0)
        RUN(call, fill_kernel<1>, blocks_for(n, 256), 256, 0, (uint32_t *)to, word, n);
}

struct Copy {
    static constexpr int READS = READS_A;
    __device__ void operator()(float *d, float a, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, Copy(), from, NULL, to, n, 1);
}
