/* Where the sum of a column over rows, in their order (manual, 5e), begins and is stored. */
struct Sum {
    Results at; /* empty: the sum is not required */
    float *comp; /* NULL if not compensated */
    int accumulate;
    float divisor = 1.0f;
};

Sum sum_to(float *at) { return { { at, NULL } }; }
Sum sum_of(const gckpt_arg &x) { return { grad_of(x), x.compensation, x.accumulate }; }

/* Returns the sum for input i's gradient, or an empty one if i is 0, which means no input. */
Sum sum_of(const gckpt_call *call, int i) { return i ? sum_of(call->in[i]) : Sum{}; }

/* A sum in registers, which begins where its Sum does. fresh: it is compensated, stored or not, and
 * its compensation is +0 unless it accumulates. */
struct RunningSum {
    const Sum &to;
    int64_t column;
    bool compensated;
    float sum, comp;
    __device__ RunningSum(const Sum &s, int64_t c, bool fresh) : to(s), column(c)
    {
        compensated = fresh || s.comp;
        sum = wanted(s.at) && s.accumulate ? value_at(s.at, c) : 0.0f;
        comp = s.comp && (s.accumulate || !fresh) ? s.comp[c] : 0.0f;
    }
    __device__ void add(float x)
    {
        float next = comp;
        gckpti_sum_add(&sum, &next, x);
        comp = compensated ? next : comp; /* +0 changes no term */
    }
    __device__ void end(void) const
    {
        if (wanted(to.at))
            put_at(to.at, column, sum / to.divisor);
        if (wanted(to.at) && to.comp)
            to.comp[column] = comp;
    }
};

/* Base of the terms of sums over rows, a sum a column. Column is a thread's data about a column.
 * FRESH: see RunningSum. MIXED: terms may be read from bf16. AHEAD: see add_terms. */
struct Terms {
    static constexpr bool FRESH = false, MIXED = false;
    static constexpr int AHEAD = 32;
    typedef int64_t Column;
    __device__ static int64_t column_of(int64_t column, int64_t) { return column; }
};

/* Calls add(terms) for terms 0 to n - 1, in order, of which read(i, terms) sets up to two. Reads
 * AHEAD of them while it adds the previous ones, as a sum is a chain. If read() has no branch, all
 * its loads begin before the first one is complete. */
template <int AHEAD = 32, class READ, class ADD>
__device__ __forceinline__ void add_terms(int64_t n, const READ &read, const ADD &add)
{
    float term[AHEAD][2], next[AHEAD][2];
    const auto fetch = [&](int64_t i) {
        UNROLLED(k, AHEAD) next[k][0] = next[k][1] = 0.0f;
        UNROLLED(k, AHEAD) read(gckpti_min(i + k, n - 1), next[k]);
    };
    if (n > 0)
        fetch(0);
    for (int64_t i = 0; i < n; i += AHEAD) {
        UNROLLED(k, AHEAD) term[k][0] = next[k][0], term[k][1] = next[k][1];
        if (i + AHEAD < n)
            fetch(i + AHEAD);
        UNROLLED(k, AHEAD) if (i + k < n) add(term[k]);
    }
}

/* Computes one or two sums of each column over the rows of planes: of.read(column, row, terms) sets
 * their terms. A thread has a column. Four additions per term (5e) are about 16 cycles, so few
 * columns of many rows do not fill the chip. */
template <class T, bool BF16>
__global__ void column_sums_kernel(const __grid_constant__ T of, const __grid_constant__ Sum first,
                                   const __grid_constant__ Sum second, int64_t planes,
                                   int64_t rows, int64_t n)
{
    for (EACH(c, n)) {
        RunningSum a(first, c, T::FRESH), b(second, c, T::FRESH);
        for (int64_t plane = 0; plane < planes; plane++) {
            const typename T::Column column = of.column_of(c, plane);
            add_terms<T::AHEAD>(
                rows, [&](int64_t r, float *term) { of.template read<BF16>(column, r, term); },
                [&](const float *term) { a.add(term[0]), b.add(term[1]); });
        }
        a.end(), b.end();
    }
}

template <class T>
void column_sums(const gckpt_call *call, const T &of, const Sum &first, const Sum &second,
                 int64_t rows, int64_t n, int64_t planes = 1)
{
    if (!wanted(first.at) && !wanted(second.at))
        return;
    if constexpr (T::MIXED) {
        if (of.is_bf16())
            return run<column_sums_kernel<T, true>>(call, blocks_for(n, 32), 32, 0, of, first,
                                                    second, planes, rows, n);
    }
    run<column_sums_kernel<T, false>>(call, blocks_for(n, 32), 32, 0, of, first, second, planes,
                                      rows, n);
}

/* Terms of sums of g, by a rule of gradients. `self` is indexed like the sums; it may be NONE, and
 * so may `other`. sums() sets the last fields: axes of the sums; axes over which they sum, of which
 * the innermost has these steps in g and `other`. */
struct Sums : Terms {
    static constexpr bool MIXED = true;
    static constexpr int AHEAD = 16; /* its terms are long */
    struct Column {
        int64_t g, other;
        float self;
    };
    Gradient rule;
    Values g, other, self;
    gckpti_iter column, plane;
    int64_t step[2];

    __device__ Column column_of(int64_t c, int64_t p) const
    {
        const Places at = places_of(column, c), first = places_of(plane, p);
        return { at.at[1] + first.at[1], at.at[2] + first.at[2], value_at(self, c) };
    }
    bool is_bf16(void) const { return g.bf16; }
    template <bool BF16> __device__ void read(const Column &c, int64_t r, float *term) const
    {
        const float x = value_as<BF16>(g, c.g + r * step[0]);
        rule(term, x, value_at(other, c.other + r * step[1]), c.self, 1); /* *term was +0 */
    }
};

/* Sums g, tensor 1 of the iterator, to tensor 0; `other` is tensor 2. */
void sums(const gckpt_call *call, const gckpti_iter &it, Sums s, const Sum &to)
{
    int64_t rows = 1;
    s.column.n = s.plane.n = 0, s.column.tensors = s.plane.tensors = 4;
    s.step[0] = s.step[1] = 0;
    for (int k = 0; k < it.n; k++) {
        const int64_t step[4] = { it.step[0][k], it.step[1][k], it.step[2][k], 0 };
        if (!step[0] && rows == 1)
            rows = it.size[k], s.step[0] = step[1], s.step[1] = step[2];
        else
            gckpti_iter_add_axis(step[0] ? &s.column : &s.plane, it.size[k], step);
    }
    column_sums(call, s, to, {}, rows, count_of(s.column), count_of(s.plane));
}
