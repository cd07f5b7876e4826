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

/* sum_begin loads a sum, sum_end stores it. fresh: compensation is +0 unless it accumulates. */
__device__ inline float sum_begin(const Sum &s, int64_t i, bool fresh, float *comp)
{
    *comp = s.comp && (s.accumulate || !fresh) ? s.comp[i] : 0.0f;
    return s.accumulate ? value_at(s.at, i) : 0.0f;
}

__device__ inline void sum_end(const Sum &s, int64_t i, float sum, float comp)
{
    put_at(s.at, i, sum / s.divisor);
    if (s.comp)
        s.comp[i] = comp;
}

__device__ inline void add_term(bool compensated, float *sum, float *comp, float x)
{
    if (compensated) /* not ?:, which would take comp's address and put it in memory */
        gckpti_sum_add(sum, comp, x);
    else
        gckpti_sum_add(sum, NULL, x);
}

/* Base of terms of sums over rows, a sum a column. A thread reads NCOLS columns; Column: its state
 * for one. FRESH: sums are compensated, stored or not. along: rows are adjacent in memory. */
struct Terms {
    static constexpr bool FRESH = false, along = false;
    static constexpr int NCOLS = 1;
    typedef int64_t Column;
    __device__ static int64_t column_of(int64_t, int64_t column) { return column; }
};

/* A block adds up COLUMNS columns. Its threads copy 8 terms of each sum at a time to shared memory,
 * while warps 0 and 1 add the previous 8, a lane for each column of one of two sums. A column is a
 * chain of four additions per term (5e), about 16 cycles, which more threads do not shorten: few
 * columns of many rows do not fill the chip. Each image has separate sums. */
template <class T, int COLUMNS>
__global__ void column_sums_kernel(const __grid_constant__ T of, Sum first, Sum second,
                                   int64_t rows, int64_t n)
{
    enum { PER_STEP = 8, LINES = 256 / COLUMNS, STEP = PER_STEP * LINES, NCOLS = T::NCOLS };
    SHARED(float, tile, [2][2][STEP][COLUMNS + 1]);
    const int thread = (int)threadIdx.x, lane = thread % COLUMNS, line = thread / COLUMNS;
    const int64_t across = (n + COLUMNS - 1) / COLUMNS, image = blockIdx.x / across;
    const int64_t begin = (blockIdx.x - image * across) * COLUMNS, to = image * n + begin + lane;
    const int columns = (int)gckpti_min(n - begin, COLUMNS);
    const Sum mine = thread < 32 ? first : second;
    const bool adds = thread < 64 && thread % 32 < COLUMNS && lane < columns && wanted(mine.at);
    float sum = 0.0f, comp = 0.0f, term[PER_STEP][2];
    typename T::Column cols[NCOLS];
    if (adds)
        sum = sum_begin(mine, to, T::FRESH, &comp);
    UNROLLED(k, NCOLS) {
        const int column = of.along ? line + LINES * k : lane;
        cols[k] = of.column_of(image, begin + (column < columns ? column : 0));
    }
    for (int64_t from = -STEP; from < rows; from += STEP) {
        const int now = (int)(from / STEP & 1), which = thread / 32 % 2;
        UNROLLED(k, PER_STEP) { /* reads the next rows */
            const int column = of.along ? line + LINES * (k % NCOLS) : lane;
            const int row = of.along ? lane + COLUMNS * (k / NCOLS) : line + LINES * k;
            term[k][0] = term[k][1] = 0.0f;
            if (from + STEP + row < rows && column < columns)
                of(cols[k % NCOLS], from + STEP + row, term[k]);
        }
        const int count = (int)gckpti_min(rows - from, STEP);
#pragma unroll 8
        for (int k = 0; k < count && adds && from >= 0; k++)
            add_term(T::FRESH || mine.comp, &sum, &comp, tile[now][which][k][lane]);
        UNROLLED(k, PER_STEP) {
            const int column = of.along ? line + LINES * (k % NCOLS) : lane;
            const int row = of.along ? lane + COLUMNS * (k / NCOLS) : line + LINES * k;
            tile[!now][0][row][column] = term[k][0], tile[!now][1][row][column] = term[k][1];
        }
        __syncthreads();
    }
    if (adds)
        sum_end(mine, to, sum, comp);
}

template <int COLUMNS = 32, class T>
void column_sums(const gckpt_call *call, const T &of, const Sum &first, const Sum &second,
                 int64_t rows, int64_t n, int64_t images = 1)
{
    const int64_t blocks = (n + COLUMNS - 1) / COLUMNS * images;
    if (wanted(first.at) || wanted(second.at))
        run<column_sums_kernel<T, COLUMNS>>(call, dim3((unsigned)blocks), 256, 0, of, first,
            second, rows, n);
}

/* Terms of sums over rows of g, in order, by a rule of gradients. `self` is indexed like the sums;
 * it may be NONE, and so may `other`. step[0] is for g, step[1] for `other`. */
struct Sums {
    static constexpr bool FRESH = false;
    static constexpr int NCOLS = 4;
    struct Column {
        Offsets at;
        float self;
    };
    Gradient rule;
    Values g, other, self;
    Sum to;
    Axes column, row; /* sums() sets this and the fields below */
    int64_t columns, rows;
    bool along;

    __device__ Column column_of(int64_t, int64_t c) const
    {
        return { column.at(c), value_at(self, c) };
    }
    __device__ void operator()(const Column &c, int64_t r, float *term) const /* *term is +0 */
    {
        const Offsets more = row.at(r);
        rule(term, value_at(g, c.at.at0 + more.at0), value_at(other, c.at.at1 + more.at1), c.self,
             1);
    }
};

/* For many columns: each thread adds up one column, 8 loads at a time. */
__global__ void sums_by_thread_kernel(const __grid_constant__ Sums s)
{
    for (EACH(c, s.columns)) {
        const auto cols = s.column_of(0, c);
        float comp, sum = sum_begin(s.to, c, false, &comp);
        for (int64_t r = 0; r < s.rows; r += 8) {
            float x[8] = {};
            for (int k = 0; k < 8; k++)
                if (r + k < s.rows)
                    s(cols, r + k, &x[k]);
            for (int k = 0; k < 8 && r + k < s.rows; k++)
                add_term(s.to.comp, &sum, &comp, x[k]);
        }
        sum_end(s.to, c, sum, comp);
    }
}

/* Sums g over `axes`: step[0] is for g, step[1] for the sum (0 if summed), step[2] for `other`. */
void sums(const gckpt_call *call, const Axes &axes, Sums s)
{
    s.columns = s.rows = 1;
    for (int k = 0; k < axes.n; k++) {
        Axes *to = axes.step[1][k] ? &s.column : &s.row;
        to->size[to->n] = axes.size[k];
        to->step[0][to->n] = axes.step[0][k];
        to->step[1][to->n++] = axes.step[2][k];
        *(axes.step[1][k] ? &s.columns : &s.rows) *= axes.size[k];
    }
    s.along = s.row.n && s.row.step[0][0] == 1;
    if (!s.along && (s.rows <= 64 || s.columns >= 1 << 17)) /* enough threads to fill the chip */
        run_each<sums_by_thread_kernel>(call, s.columns, s);
    else
        column_sums(call, s, s.to, {}, s.rows, s.columns);
}
