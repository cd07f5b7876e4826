/* ---- binary ops with broadcasting, and all copies between shapes ---- Axes iterates over three
 * tensors at once, innermost axis first: step[0] is the step in the result, step[1] and step[2] are
 * those in two operands (0 if the operand is repeated). The type I has 32 bits if they suffice, as
 * each axis except the last costs a division. */
template <class I> struct Axes {
    int n;
    I size[GCKPT_MAX_DIMS], step[3][GCKPT_MAX_DIMS];
};

template <class I> struct Offsets {
    I at0, at1, at2;
};

template <class I> __device__ Offsets<I> offsets_of(const Axes<I> &x, I i)
{
    Offsets<I> p = { 0, 0, 0 };
    for (int k = 0; k < x.n; k++) {
        I next = k + 1 < x.n ? i / x.size[k] : 0, j = i - next * x.size[k];
        p.at0 += j * x.step[0][k];
        p.at1 += j * x.step[1][k];
        p.at2 += j * x.step[2][k];
        i = next;
    }
    return p;
}

/* Returns the axes of an iterator. Its tensors, number `first` before the other one, get the last
 * steps: step[1] and step[2] after those of a dense result, or step[0] and step[1] without one. */
Axes<int64_t> axes_of(const gckpti_iter &w, int first, bool dense)
{
    Axes<int64_t> x = {};
    int64_t size = 1;
    x.n = w.n;
    for (int k = 0; k < w.n; size *= w.size[k++]) {
        x.size[k] = w.size[k];
        x.step[0][k] = size;
        x.step[dense][k] = w.step[first][k];
        x.step[dense + 1][k] = w.step[!first][k];
    }
    return x;
}

int64_t count_of(const Axes<int64_t> &x)
{
    int64_t n = 1;
    for (int k = 0; k < x.n; k++)
        n *= x.size[k];
    return n;
}

/* Returns true if 32-bit indices suffice. */
bool fits_int32(const Axes<int64_t> &x)
{
    bool fits = count_of(x) < GCKPT_CUDA_WIDE;
    for (int t = 0; t < 3; t++) {
        int64_t last = 0;
        for (int k = 0; k < x.n; k++)
            last += (x.size[k] - 1) * x.step[t][k];
        fits = fits && last < GCKPT_CUDA_WIDE;
    }
    return fits;
}

/* Returns the axes with index type I, and the innermost axis counted in vectors of `vec`. */
template <class I> Axes<I> axes_in(const Axes<int64_t> &x, int vec)
{
    Axes<I> y = {};
    y.n = x.n;
    for (int k = 0; k < x.n; k++) {
        y.size[k] = (I)(k ? x.size[k] : x.size[k] / vec);
        for (int t = 0; t < 3; t++)
            y.step[t][k] = (I)(k ? x.step[t][k] : x.step[t][k] * vec);
    }
    return y;
}

/* Loads N adjacent elements or, if step is 0, one element N times. */
template <int N, class X, class I> __device__ Vec<float, N> load_broadcast(const X &x, I at, I step)
{
    Vec<float, N> y;
    if (step)
        return load<N>(x, at);
    for (int k = 0; k < N; k++)
        y.v[k] = value_at(x, at);
    return y;
}

#define NAME(name, ...) BINARY_##name,
enum BinaryOp { GCKPTI_BINARY_OPS(NAME) };
#undef NAME

/* Computes a op b. */
struct Binary {
    BinaryOp op;
    __device__ void operator()(float *d, float a, float b, float, int) const
    {
        switch (op) {
#define VALUE(name, ...)                                                                           \
    case BINARY_##name:                                                                            \
        *d = gckpti_##name##_value(a, b);                                                          \
        break;
            GCKPTI_BINARY_OPS(VALUE)
#undef VALUE
        }
    }
};

struct Quotient { /* a / divisor */
    float divisor;
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, divisor != 1.0f ? a / divisor : a, accumulate);
    }
};

/* Returns true if an element of a condition, f32 or i32, is not 0; -0 counts as 0. */
__device__ inline bool holds(float word, bool is_i32)
{
    return (gckpti_bits(word) & (is_i32 ? 0xffffffffu : 0x7fffffffu)) != 0;
}

/* Rules of gradients: rows of GCKPTI_BINARY_GRADS, or those of op `where`, which pass g where the
 * condition `other` is true (WHERE) or false (ELSEWHERE). */
#define NAME(name, ...) GRAD_##name,
enum Rule { GCKPTI_BINARY_GRADS(NAME) WHERE, ELSEWHERE, WHERE_I32, ELSEWHERE_I32 };
#undef NAME
struct Gradient {
    Rule rule;
    __device__ void operator()(float *d, float g, float other, float self, int accumulate) const
    {
        switch (rule) {
#define PUT(name, ...)                                                                             \
    case GRAD_##name:                                                                              \
        gckpti_##name##_put(d, g, self, other, accumulate);                                        \
        break;
            GCKPTI_BINARY_GRADS(PUT)
#undef PUT
        default:
            if (holds(other, rule >= WHERE_I32) != ((rule - WHERE) % 2 == 0))
                g = 0.0f;
            gckpti_put(d, g, accumulate);
        }
    }
};

/* Computes d = f(a, b), N elements in each thread, in the order of d; elements that are repeated
 * come from caches. b may be NULL, and so may `self`, an operand with the layout of d. Accumulates
 * as map_kernel does. */
template <int N, class I, class F, class A, class D>
__global__ void combine_kernel(const __grid_constant__ Axes<I> axes, F f, D d, A a, A b, A self,
                               int64_t vecs, int accumulate)
{
    constexpr bool ROUNDED = !std::is_pointer<D>::value;
    for (EACH(i, vecs)) {
        Offsets<I> at = offsets_of(axes, (I)i);
        Vec<float, N> x = load_broadcast<N>(a, at.at1, axes.step[1][0]), y = {}, z = {}, w = {};
        if (wanted(b))
            y = load_broadcast<N>(b, at.at2, axes.step[2][0]);
        if (wanted(self))
            w = load<N>(self, at.at0);
        if (!ROUNDED && accumulate)
            z = load<N>(d, at.at0);
        for (int k = 0; k < N; k++)
            f(&z.v[k], x.v[k], y.v[k], w.v[k], ROUNDED ? 0 : accumulate);
        write_vec<N>(results_at(d), at.at0, N, true, z.v, ROUNDED ? accumulate : 0);
    }
}

template <int N, class F, class A, class D>
void combine_vecs(const gckpt_call *call, const Axes<int64_t> &x, F f, D d, A a, A b, A self,
                  int accumulate)
{
    const int64_t n = count_of(x);
    bool vecs = aligned(d) && aligned(a) && aligned(b) && aligned(self) && x.n &&
                x.size[0] % N == 0 && x.step[0][0] == 1;
    for (int t = 0; t < 3; t++) {
        const bool repeated = x.step[t][0] == 0;
        vecs = vecs && (repeated || x.step[t][0] == 1);
        for (int k = 1; k < x.n; k++)
            vecs = vecs && (repeated || x.step[t][k] % N == 0);
    }
#define COMBINE(N, I)                                                                              \
    RUN_EACH(call, (combine_kernel<N, I, F, A, D>), n / N, axes_in<I>(x, N), f, d, a, b, self,     \
             n / N, accumulate)
    if (vecs && fits_int32(x))
        COMBINE(N, uint32_t);
    else if (vecs)
        COMBINE(N, int64_t);
    else if (fits_int32(x))
        COMBINE(1, uint32_t);
    else
        COMBINE(1, int64_t);
#undef COMBINE
}

/* Runs combine_kernel on operands of f32 or, if BF16, of f32 or bf16. */
template <bool BF16 = false, class F>
void combine(const gckpt_call *call, const Axes<int64_t> &x, F f, const Results &d, const Values &a,
             const Values &b, const Values &self, int accumulate)
{
    if constexpr (BF16)
        combine_vecs<8>(call, x, f, d, a, b, self, accumulate);
    else
        combine_vecs<4>(call, x, f, d.f32, a.f32, b.f32, self.f32, accumulate);
}
