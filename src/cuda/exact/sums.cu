/* Sums whose order is that of the terms' places in g: of each column all rows, one after the other.
 * steps: 0 of g, 1 of `other`. A term is g * other, or sign * g, or by a rule, `own`
 * lying as the sums do; low NULL: sums are plain. */
template <class I> struct Sums {
    Rule rule;
    Values g;
    const float *other, *own;
    float sign, divide;
    Results sum;
    float *low;
    int accumulate;
    Axes<I> column, row; /* which sums() fills in, as their numbers */
    int64_t columns, rows;
};

template <class I, bool RULED>
__device__ float term_of(const Sums<I> &s, const Place<I> &column, float own, int64_t row)
{
    Place<I> more = place(s.row, (I)row);
    float g = value_at(s.g, column.at0 + more.at0), factor = 1.0f;
    if (RULED) {
        PairGradient f = { s.rule, 1.0f };
        g = f.product_of(g, s.other[column.at1 + more.at1], own, &factor);
        return s.rule >= WHERE ? g : gckpti_mul(g, factor);
    }
    return s.other ? gckpti_mul(g, s.other[column.at1 + more.at1]) : s.sign * g;
}

__device__ inline void add_term(bool lows, float *sum, float *low, float x)
{
    if (lows) /* by ?: the address would put low in memory */
        gckpti_sum_add(sum, low, x);
    else
        gckpti_sum_add(sum, NULL, x);
}

template <class I> __device__ void put_sum(const Sums<I> &s, int64_t column, float sum, float low)
{
    put_at(s.sum, column, sum / s.divide);
    if (s.low)
        s.low[column] = low;
}

/* A thread a column, 8 terms under way; neighbours read neighbours. For many columns. */
template <class I, bool RULED>
__global__ void sums_by_thread_kernel(const __grid_constant__ Sums<I> s)
{
    for (EACH(c, s.columns)) {
        Place<I> at = place(s.column, (I)c);
        float own = RULED && s.own ? s.own[c] : 0.0f;
        float sum = s.accumulate ? value_at(s.sum, c) : 0.0f, low = s.low ? s.low[c] : 0.0f;
        for (int64_t r = 0; r < s.rows; r += 8) {
            float x[8];
            for (int k = 0; k < 8; k++)
                x[k] = r + k < s.rows ? term_of<I, RULED>(s, at, own, r + k) : 0.0f;
            for (int k = 0; k < 8 && r + k < s.rows; k++)
                add_term(s.low, &sum, &low, x[k]);
        }
        put_sum(s, c, sum, low);
    }
}

/* A block has 32 columns. Its warps bring 64 rows of them to shared memory, neighbours in g by
 * neighbouring lanes (along: they are rows, else columns), while the first warp adds the 64 before,
 * a lane a column. A column is one chain of four additions for each term (5e), some 16 cycles, and
 * no number of threads makes it shorter: few columns of many rows do not fill the chip. */
enum { SUM_ROWS = 64, SUM_WARPS = 8, SUM_EACH = SUM_ROWS / SUM_WARPS };
template <class I, bool RULED>
__global__ void sums_by_block_kernel(const __grid_constant__ Sums<I> s, int along)
{
    SHARED(float, tile, [2][SUM_ROWS][33]);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * 32, own = first + lane;
    int columns = s.columns - first < 32 ? (int)(s.columns - first) : 32;
    bool adds = warp == 0 && lane < columns;
    float sum = adds && s.accumulate ? value_at(s.sum, own) : 0.0f,
          low = adds && s.low ? s.low[own] : 0.0f;
    Place<I> at[SUM_EACH / 2]; /* of the columns this thread brings */
    float its[SUM_EACH / 2];
    for (int k = 0; k < SUM_EACH / 2; k++) {
        int column = along ? warp + SUM_WARPS * k : lane;
        int64_t c = first + (column < columns ? column : 0);
        at[k] = place(s.column, (I)c);
        its[k] = RULED && s.own ? s.own[c] : 0.0f;
    }
    for (int64_t r = -SUM_ROWS; r < s.rows; r += SUM_ROWS) {
        float x[SUM_EACH];
        int64_t next = r + SUM_ROWS;
        int buffer = (int)(next / SUM_ROWS % 2);
        for (int k = 0; k < SUM_EACH; k++) {
            int column = along ? warp + SUM_WARPS * (k % 4) : lane;
            int64_t row = next + (along ? lane + 32 * (k / 4) : warp + SUM_WARPS * k);
            x[k] = column < columns && row < s.rows
                       ? term_of<I, RULED>(s, at[k % 4], its[k % 4], row)
                       : 0.0f;
        }
        int rows = s.rows - r < SUM_ROWS ? (int)(s.rows - r) : SUM_ROWS;
#pragma unroll 16
        for (int k = 0; k < rows && adds && r >= 0; k++)
            add_term(s.low, &sum, &low, tile[1 - buffer][k][lane]);
        for (int k = 0; k < SUM_EACH; k++) {
            int column = along ? warp + SUM_WARPS * (k % 4) : lane;
            int row = along ? lane + 32 * (k / 4) : warp + SUM_WARPS * k;
            tile[buffer][row][column] = x[k];
        }
        __syncthreads();
    }
    if (adds)
        put_sum(s, own, sum, low);
}

template <class I, bool RULED> void sums_in(const gckpt_call *call, const Sums<int64_t> &s)
{
    Sums<I> t = { s.rule, s.g, s.other, s.own, s.sign, s.divide, s.sum, s.low, s.accumulate,
                  axes_in<I>(s.column, 1), axes_in<I>(s.row, 1), s.columns, s.rows };
    bool along = s.row.n && s.row.step[0][0] == 1;
    if (!along && (s.rows <= SUM_ROWS || s.columns >= 1 << 17)) /* these fill the chip */
        RUN_EACH(call, (sums_by_thread_kernel<I, RULED>), s.columns, t);
    else
        RUN(call, (sums_by_block_kernel<I, RULED>), dim3((unsigned)((s.columns + 31) / 32)),
            32 * SUM_WARPS, 0, t, along);
}

/* Of g at all places of `axes` (steps: 0 of g, 1 of the sum, 2 of other). */
void sums(const gckpt_call *call, const Axes<int64_t> &axes, Sums<int64_t> s)
{
    s.columns = s.rows = 1;
    for (int k = 0; k < axes.n; k++) {
        Axes<int64_t> *to = axes.step[1][k] ? &s.column : &s.row;
        to->size[to->n] = axes.size[k];
        to->step[0][to->n] = axes.step[0][k];
        to->step[1][to->n++] = axes.step[2][k];
        *(axes.step[1][k] ? &s.columns : &s.rows) *= axes.size[k];
    }
    if (s.rule)
        small(axes) ? sums_in<uint32_t, true>(call, s) : sums_in<int64_t, true>(call, s);
    else
        small(axes) ? sums_in<uint32_t, false>(call, s) : sums_in<int64_t, false>(call, s);
}
