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

/* The terms of sums over rows of x and of y (rows,n), which have one type. One of them may be NONE;
 * then its terms are those of the other one, and are not used. KEPT: fp32, and see Terms::FRESH. */
template <bool KEPT = false> struct RowTerms : Terms {
    static constexpr bool FRESH = KEPT, MIXED = !KEPT;
    Values x, y;
    int64_t n;
    bool is_bf16(void) const { return x.bf16 || y.bf16; }
    template <bool BF16> __device__ void read(int64_t column, int64_t r, float *term) const
    {
        term[0] = value_as<BF16>(wanted(x) ? x : y, r * n + column);
        term[1] = value_as<BF16>(wanted(y) ? y : x, r * n + column);
    }
};
