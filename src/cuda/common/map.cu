/* Computes d[i] = f(a[i], b[i]). If d is f32 and the result accumulates, f itself adds to d[i]; if
 * D may be bf16, write_vec adds before rounding. A thread reads and writes only its elements, so d
 * may be a or b. F::READS says whether f reads a or both. */
enum { READS_A, READS_BOTH };

template <int N, class F, class A, class D>
__global__ void map_kernel(F f, A a, A b, D d, int64_t n, int accumulate)
{
    constexpr bool ROUNDED = !std::is_pointer<D>::value;
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t i = vec * N, left = n - i;
        float x[N] = {}, y[N] = {}, z[N] = {};
        read_vec<N>(a, i, left, true, x);
        if (F::READS == READS_BOTH)
            read_vec<N>(b, i, left, true, y);
        if (!ROUNDED && accumulate)
            read_vec<N>(d, i, left, true, z);
        UNROLL for (int k = 0; k < N; k++) f(&z[k], x[k], y[k], ROUNDED ? 0 : accumulate);
        write_vec<N>(results_at(d), i, left, true, z, ROUNDED ? accumulate : 0);
    }
}

/* Runs map_kernel by vectors of N if all are aligned, else of 1. If d is NULL, does nothing. */
template <int N, class F, class A, class D>
void map_vecs(const gckpt_call *call, F f, A a, A b, D d, int64_t n, int accumulate)
{
    if (wanted(d) && n > 0 && aligned(a) && aligned(b) && aligned(d))
        RUN_EACH(call, (map_kernel<N, F, A, D>), (n + N - 1) / N, f, a, b, d, n, accumulate);
    else if (wanted(d) && n > 0)
        RUN_EACH(call, (map_kernel<1, F, A, D>), n, f, a, b, d, n, accumulate);
}

/* Runs map_kernel on operands of f32 or, if BF16, of f32 or bf16. */
template <bool BF16, class F>
void map(const gckpt_call *call, F f, const Values &a, const Values &b, const Results &d, int64_t n,
         int accumulate)
{
    if constexpr (BF16)
        map_vecs<8>(call, f, a, b, d, n, accumulate);
    else
        map_vecs<4>(call, f, a.f32, b.f32, d.f32, n, accumulate);
}

/* Compute out = f(a, b); the gradient of x, which has the layout of a and b. */
template <bool BF16 = false, class F>
void map_out(const gckpt_call *call, F f, const Values &a, const Values &b)
{
    map<BF16>(call, f, a, b, out_of(call), gckpti_elements(&call->shape), 0);
}

template <bool BF16 = false, class F>
void map_gradient(const gckpt_call *call, const gckpt_arg &x, F f, const Values &a, const Values &b)
{
    map<BF16>(call, f, a, b, grad_of(x), gckpti_elements(&x.shape), x.accumulate);
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
    map<false>(call, Copy(), { from, NULL }, NONE, { to, NULL }, n, 1);
}
