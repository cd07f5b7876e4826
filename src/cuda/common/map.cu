/* ---- elementwise kernels: out = f(a, b, self), in the order of the result ---- */
/* The element of each tensor that belongs to an element of the result. */
struct Offsets {
    int64_t at0, at1, at2; /* of the result and `self`; of a; of b */
};

/* A strided iterator over three tensors, innermost axis first: step[0] is the step in the result,
 * step[1] and step[2] are those in two operands (0 if the operand is repeated). Each axis except
 * the last costs a division, of 32 bits where the numbers are that small. */
struct Axes {
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
    int64_t count() const
    {
        int64_t all = 1;
        for (int k = 0; k < n; k++)
            all *= size[k];
        return all;
    }
    /* Returns true if the innermost axis can be read and written by vectors of N, of which only the
     * last one of all may lack elements. */
    bool in_vecs(int N) const
    {
        bool vecs = n && (n == 1 || size[0] % N == 0) && step[0][0] == 1;
        for (int t = 0; t < 3; t++) {
            const bool repeated = step[t][0] == 0;
            vecs = vecs && (repeated || step[t][0] == 1);
            for (int k = 1; k < n; k++)
                vecs = vecs && (repeated || step[t][k] % N == 0);
        }
        return vecs;
    }
};

/* Returns the axes of three tensors of n elements that all have the layout of the result. */
Axes dense(int64_t n) { return { 1, { n }, { { 1 }, { 1 }, { 1 } } }; }

/* A thread computes N elements of d; elements that are repeated come from caches. b and self, which
 * has the layout of d, may be empty. If the result accumulates, f itself adds to d[i], before it is
 * rounded. A thread reads an element of d's layout before it writes that element, and no other
 * thread does, so d may be such an operand. */
template <int N, class F>
__global__ void map_kernel(const __grid_constant__ Axes axes, F f, Results d, Values a, Values b,
                           Values self, int64_t n, int accumulate)
{
    const auto read = [](const Values &of, int64_t at, int64_t step, int64_t left, float *v) {
        if (step)
            return read_vec<N>(of, at, left, true, v);
        UNROLLED(k, N) v[k] = value_at(of, at);
    };
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t left = n - vec * N;
        const Offsets at = axes.at(vec * N);
        float x[N] = {}, y[N] = {}, w[N] = {}, z[N] = {};
        read(a, at.at1, axes.step[1][0], left, x);
        if (wanted(b))
            read(b, at.at2, axes.step[2][0], left, y);
        if (wanted(self))
            read_vec<N>(self, at.at0, left, true, w);
        if (accumulate)
            read_vec<N>(d, at.at0, left, true, z);
        UNROLLED(k, N) f(&z[k], x[k], y[k], w[k], accumulate);
        write_vec<N>(d, at.at0, left, true, z);
    }
}

/* Runs map_kernel by vectors of N if all are aligned, else of 1. */
template <int N, class F>
void map_vecs(const gckpt_call *call, const Axes &axes, F f, const Results &d, const Values &a,
              const Values &b, const Values &self, int accumulate)
{
    const int64_t n = axes.count();
    if (N > 1 && !(axes.in_vecs(N) && aligned(a, b, self, d)))
        map_vecs<1>(call, axes, f, d, a, b, self, accumulate);
    else if (n > 0)
        run_each<map_kernel<N, F>>(call, (n + N - 1) / N, axes, f, d, a, b, self, n, accumulate);
}

/* Computes d = f(a, b, self), 16 bytes of d a thread. If d is empty, does nothing. */
template <class F>
void map(const gckpt_call *call, const Axes &axes, F f, const Results &d, const Values &a,
         const Values &b, const Values &self, int accumulate)
{
    if (d.bf16)
        map_vecs<8>(call, axes, f, d, a, b, self, accumulate);
    else if (d.f32)
        map_vecs<4>(call, axes, f, d, a, b, self, accumulate);
}

/* Compute out = f(a, b); the gradient of x, which has the layout of a and b. */
template <class F> void map_out(const gckpt_call *call, F f, const Values &a, const Values &b)
{
    map(call, dense(gckpti_elements(&call->shape)), f, out_of(call), a, b, NONE, 0);
}

template <class F>
void map_gradient(const gckpt_call *call, const gckpt_arg &x, F f, const Values &a, const Values &b)
{
    map(call, dense(gckpti_elements(&x.shape)), f, grad_of(x), a, b, NONE, x.accumulate);
}

struct Copy {
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { from, NULL }, NONE, NONE, 1);
}
