/* ---- >>common -------------------------------------------------------------------------------
 * Kernels that only move memory have a thread for each part of it: 16 bytes at a time if all
 * addresses are multiples of 16, else one element. */
template <class T, int N>
struct alignas(N < 16 / (int)sizeof(T) ? (size_t)N * sizeof(T) : 16) Vec {
    T v[N];
};

template <int N, class T> __device__ Vec<T, N> load(const T *at)
{
    return *(const Vec<T, N> *)(const void *)at;
}

template <class T, int N> __device__ void store(T *at, const Vec<T, N> &vec)
{
    *(Vec<T, N> *)(void *)at = vec;
}

/* Most kernels are a function F(i, arguments..). for_each calls it for i = 0..n-1, each in a
 * thread, THREADS to a block; for_each_row calls it for each of n rows in the LANES = 32 threads of
 * a warp. */
template <auto F, int LANES, class... A> __global__ void each_kernel(int64_t n, A... a)
{
    for (EACH(i, n * LANES))
        F(i / LANES, a...);
}
template <auto F, int THREADS = 256, class... A>
void for_each(const gckpt_call *call, int64_t n, const A &...a)
{
    run<each_kernel<F, 1, A...>>(call, blocks_for(n, THREADS), THREADS, 0, n, a...);
}
template <auto F, int THREADS = 256, class... A>
void for_each_row(const gckpt_call *call, int64_t n, const A &...a)
{
    run<each_kernel<F, 32, A...>>(call, blocks_for(32 * n, THREADS), THREADS, 0, n, a...);
}

/* Calls f.at<N>(i) for elements i..i + N - 1 of n, and f.at<1>(i) for each of the last n % N. N is
 * more than 1 only if all addresses are aligned for vectors of N. */
template <int N, class F> __global__ void vecs_kernel(F f, int64_t n)
{
    for (EACH(i, n / N))
        f.template at<N>(i * N);
    for (EACH(i, n % N))
        f.template at<1>(n / N * N + i);
}

template <int N, class F> void for_each_vec(const gckpt_call *call, F f, int64_t n, bool aligned)
{
    if (aligned && n > 0)
        run_each<vecs_kernel<N, F>>(call, (n + N - 1) / N, f, n);
    else if (n > 0)
        run_each<vecs_kernel<1, F>>(call, n, f, n);
}

/* Adds the value of lane j ^ h to lane j for h = 16, 8, 4, 2, 1. All lanes end with the same sum,
 * as a + b = b + a. With h = 8, each 16 adjacent lanes have a sum. */
__device__ inline float warp_sum(float lane, int h = 16)
{
    for (; h; h /= 2)
        lane += __shfl_xor_sync(0xffffffffu, lane, h);
    return lane;
}

/* Returns the sum of n elements by a warp, in the 32 lanes of the manual's 5d: f(sum, i) returns
 * the lane's sum with element i. A lane loads AHEAD elements at a time. */
template <int AHEAD = 4, class F> __device__ inline float lanes_sum(int64_t n, F f)
{
    float sum = 0.0f;
#pragma unroll AHEAD
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum = f(sum, i);
    return warp_sum(sum);
}

/* Operands and results, in f32 or bf16: one pointer is set. Operands with none read as 0. */
struct Values {
    const float *f32;
    const uint16_t *bf16;
};
struct Results {
    float *f32;
    uint16_t *bf16;
    __host__ __device__ operator Values() const { return { f32, bf16 }; }
};

Values value_of(const gckpt_arg &arg) { return { arg.data, arg.bf16 }; }
Values grad_out_of(const gckpt_call *call) { return { call->grad_out, call->grad_out_bf16 }; }
Results grad_of(const gckpt_arg &arg) { return { arg.grad, arg.grad_bf16 }; }
Results out_of(const gckpt_call *call) { return { call->out, call->out_bf16 }; }
const Values NONE = { NULL, NULL };

__host__ __device__ inline bool wanted(const Values &x) { return x.f32 || x.bf16; }
bool wanted(const gckpt_arg &arg) { return wanted(grad_of(arg)); }

/* Returns true if the addresses of all arguments are multiples of 16. NULL counts as a multiple. */
bool is_aligned(const void *x) { return ((uintptr_t)x & 15) == 0; }
bool is_aligned(const Values &x) { return is_aligned(x.f32) && is_aligned(x.bf16); }
template <class... A> bool aligned(const A &...x) { return (is_aligned(x) && ...); }

__device__ inline float value_at(const Values &x, int64_t i)
{
    return x.bf16 ? gckpti_from_bf16(x.bf16[i]) : x.f32 ? x.f32[i] : 0.0f;
}

__device__ inline float value_at(const float *x, int64_t i) { return x[i]; }

/* Returns an element of values whose type is known, without a branch. */
template <bool BF16> __device__ inline float value_as(const Values &x, int64_t i)
{
    return BF16 ? gckpti_from_bf16(x.bf16[i]) : x.f32[i];
}

__device__ inline void put_at(const Results &y, int64_t i, float v)
{
    if (y.bf16)
        y.bf16[i] = gckpti_to_bf16(v);
    else
        y.f32[i] = v;
}

/* Loads N elements from index i on; their address must be aligned for a Vec of N. */
template <int N> __device__ inline Vec<float, N> load(const Values &x, int64_t i)
{
    Vec<float, N> v = {};
    if (x.bf16) {
        const Vec<uint16_t, N> half = load<N>(x.bf16 + i);
        UNROLLED(k, N) v.v[k] = gckpti_from_bf16(half.v[k]);
    } else if (x.f32) {
        v = load<N>(x.f32 + i);
    }
    return v;
}

template <int N> __device__ inline Vec<float, N> load(const float *x, int64_t i)
{
    return load<N>(x + i);
}

template <int N> __device__ inline void store(const Results &y, int64_t i, const Vec<float, N> &v)
{
    if (y.bf16) {
        Vec<uint16_t, N> half;
        UNROLL for (int k = 0; k + 1 < N; k += 2)
        {
            const uint32_t pair = gckpti_to_bf16_pair(v.v[k], v.v[k + 1]);
            half.v[k] = (uint16_t)pair, half.v[k + 1] = (uint16_t)(pair >> 16);
        }
        if (N % 2)
            half.v[N - 1] = gckpti_to_bf16(v.v[N - 1]);
        store(y.bf16 + i, half);
    } else {
        store(y.f32 + i, v);
    }
}

/* read_vec loads N elements from index i on, of which `left` exist, and sets the others to 0;
 * write_vec stores those that exist. aligned: the address is a multiple of 16. */
template <int N, class X>
__device__ inline void read_vec(const X &x, int64_t i, int64_t left, bool aligned, float *v)
{
    if (aligned && left >= N) {
        const Vec<float, N> vec = load<N>(x, i);
        UNROLLED(k, N) v[k] = vec.v[k];
        return;
    }
    UNROLLED(k, N) v[k] = k < left ? value_at(x, i + k) : 0.0f;
}

template <int N>
__device__ __forceinline__ void write_vec(const Results &y, int64_t i, int64_t left, bool aligned,
                                          const float *v, int accumulate = 0)
{
    if (aligned && left >= N) {
        Vec<float, N> vec = {};
        if (accumulate)
            vec = load<N>(y, i);
        UNROLLED(k, N) vec.v[k] = accumulate ? v[k] + vec.v[k] : v[k];
        store(y, i, vec);
        return;
    }
    UNROLLED(k, N) if (k < left)
        put_at(y, i + k, accumulate ? v[k] + value_at(y, i + k) : v[k]);
}
