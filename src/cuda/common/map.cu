/* ---- elementwise kernels: out = f(a, b, self), in the order of the result ---- */
/* The element of each tensor that belongs to an element of the result. */
struct Offsets {
    int64_t at0, at1, at2; /* of the result and `self`; of a; of b */
};

/* All tensors have the layout of the result, which has n elements. */
struct Dense {
    static constexpr bool ENDS_IN_VECS = false; /* n may be no multiple of N */
    int64_t n;
    __device__ Offsets at(int64_t i) const { return { i, i, i }; }
    __device__ int64_t step_of(int) const { return 1; }
    int64_t count() const { return n; }
    bool in_vecs(int) const { return true; }
};

/* A strided iterator over three tensors, innermost axis first: step[0] is the step in the result,
 * step[1] and step[2] are those in two operands (0 if the operand is repeated). Each axis except
 * the last costs a division, of 32 bits where the numbers are that small. */
struct Axes {
    static constexpr bool ENDS_IN_VECS = true;
    int n;
    int64_t size[GCKPT_MAX_DIMS], step[3][GCKPT_MAX_DIMS];

    __device__ Offsets at(int64_t i) const
    {
        Offsets p = { 0, 0, 0 };
        for (int k = 0; k < n; k++) {
            const int64_t next = k + 1 < n ? i / size[k] : 0, j = i - next * size[k];
            p.at0 += j * step[0][k], p.at1 += j * step[1][k], p.at2 += j * step[2][k];
            i = next;
        }
        return p;
    }
    __device__ int64_t step_of(int tensor) const { return step[tensor][0]; }
    int64_t count() const
    {
        int64_t all = 1;
        for (int k = 0; k < n; k++)
            all *= size[k];
        return all;
    }
    /* Returns true if the innermost axis can be read and written by whole vectors of N. */
    bool in_vecs(int N) const
    {
        bool vecs = n && size[0] % N == 0 && step[0][0] == 1;
        for (int t = 0; t < 3; t++) {
            const bool repeated = step[t][0] == 0;
            vecs = vecs && (repeated || step[t][0] == 1);
            for (int k = 1; k < n; k++)
                vecs = vecs && (repeated || step[t][k] % N == 0);
        }
        return vecs;
    }
};

/* A thread computes N elements of d; elements that are repeated come from caches. b and self, which
 * has the layout of d, may be NULL. If d is f32 and the result accumulates, f itself adds to d[i];
 * if D may be bf16, write_vec adds before rounding. A thread reads an element of d's layout before
 * it writes that element, and no other thread does, so d may be such an operand. */
template <int N, class X, class F, class A, class D>
__global__ void map_kernel(const __grid_constant__ X axes, F f, D d, A a, A b, A self, int64_t n,
                           int accumulate)
{
    constexpr bool ROUNDED = !std::is_pointer<D>::value;
    const auto read = [](const A &of, int64_t at, int64_t step, int64_t left, float *v) {
        if (step)
            return read_vec<N>(of, at, left, true, v);
        UNROLL for (int k = 0; k < N; k++) v[k] = value_at(of, at);
    };
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t left = X::ENDS_IN_VECS ? N : n - vec * N;
        const Offsets at = axes.at(vec * N);
        float x[N] = {}, y[N] = {}, w[N] = {}, z[N] = {};
        read(a, at.at1, axes.step_of(1), left, x);
        if (wanted(b))
            read(b, at.at2, axes.step_of(2), left, y);
        if (wanted(self))
            read_vec<N>(self, at.at0, left, true, w);
        if (!ROUNDED && accumulate)
            read_vec<N>(d, at.at0, left, true, z);
        UNROLL for (int k = 0; k < N; k++) f(&z[k], x[k], y[k], w[k], ROUNDED ? 0 : accumulate);
        write_vec<N>(results_at(d), at.at0, left, true, z, ROUNDED ? accumulate : 0);
    }
}

/* Runs map_kernel by vectors of N if all are aligned, else of 1. If d is NULL, does nothing. */
template <int N, class X, class F, class A, class D>
void map_vecs(const gckpt_call *call, const X &axes, F f, D d, A a, A b, A self, int accumulate)
{
    const int64_t n = axes.count();
    if (wanted(d) && n > 0 && axes.in_vecs(N) && aligned(a, b, self, d))
        run_each<map_kernel<N, X, F, A, D>>(call, (n + N - 1) / N, axes, f, d, a, b, self, n,
                                            accumulate);
    else if (wanted(d) && n > 0)
        run_each<map_kernel<1, X, F, A, D>>(call, n, axes, f, d, a, b, self, n, accumulate);
}

/* Runs map_kernel on operands of f32 or, if BF16, of f32 or bf16. axes: Dense or Axes. */
template <bool BF16 = false, class X, class F>
void map(const gckpt_call *call, const X &axes, F f, const Results &d, const Values &a,
         const Values &b, const Values &self, int accumulate)
{
    if constexpr (BF16)
        map_vecs<8>(call, axes, f, d, a, b, self, accumulate);
    else
        map_vecs<4>(call, axes, f, d.f32, a.f32, b.f32, self.f32, accumulate);
}

/* Compute out = f(a, b); the gradient of x, which has the layout of a and b. */
template <bool BF16 = false, class F>
void map_out(const gckpt_call *call, F f, const Values &a, const Values &b)
{
    map<BF16>(call, Dense{ gckpti_elements(&call->shape) }, f, out_of(call), a, b, NONE, 0);
}

template <bool BF16 = false, class F>
void map_gradient(const gckpt_call *call, const gckpt_arg &x, F f, const Values &a, const Values &b)
{
    map<BF16>(call, Dense{ gckpti_elements(&x.shape) }, f, grad_of(x), a, b, NONE, x.accumulate);
}

struct Copy {
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, Dense{ n }, Copy(), { to, NULL }, { from, NULL }, NONE, NONE, 1);
}
