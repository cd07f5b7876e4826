/* A block takes 64 rows of a head (queries or, for dk and dv, keys) through tiles of 64 columns
 * (keys, queries) in ascending order. Both are in shared memory, in lines that are WIDTH + 4 floats
 * apart, so that the float4 of eight lines are in different banks. Thread (ty, tx) has R of the 64
 * rows, ty, ty + 64 / R, .., and 4 of the 64 scores of each row, tx, tx + 16, ..: for the sum of a
 * row's exponentials (5d), lanes tx and tx + 16 are in one thread, and the 16 threads of the row
 * add their sums. A thread has N = WIDTH / 16 of the WIDTH columns of a result.
 * A float4 of R rows and of 4 columns give 16 R terms: with R = 8, 12 loads for 128 terms.
 * Heads up to 64 use WIDTH 64 and R 8 (128 threads), larger ones WIDTH 128 and R 4 (256 threads).
 * Beyond 128, a block has a slice of 128 columns of the result and computes all scores for it.
 * MIXED: bf16 plans (5l). Operands are rounded when they enter shared memory; terms are flushed and
 * added in blocks, which a tile never divides. As an element has three registers, R is 4. */
enum { TILE = GCKPTI_KEY_TILE, SCORES = TILE + 4 /* floats from row to row of scores */ };

/* Visible keys (gckpti_visible_keys) at position 0 of a cache; keys_of_row adds the position. */
struct Keys {
    int count, ahead;
    const StepParams *params; /* NULL adds nothing */
};

Keys keys_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    gckpt_call start = *call;
    start.position = 0;
    gckpti_visible visible = gckpti_visible_keys(&start);
    const StepParams *now = gckpti_uses_position(o) ? params_of(call) : NULL;
    return { (int)visible.keys, (int)visible.ahead, now };
}

__device__ inline Keys keys_of_row(const Keys &k, const int32_t *lengths, int64_t row)
{
    const int more = k.params ? (int)k.params->position : 0;
    return { lengths ? lengths[row] : k.count + more, k.ahead + more, NULL };
}

/* What exact and fast kernels of attention read. */
struct Heads {
    int t, s, heads, d, group; /* group: heads per key head */
    int64_t c, kc;             /* columns of all heads; columns of all key heads */
    int window;                /* most keys that a query sees */
    float scale;               /* of gradients */
    const int32_t *lengths;    /* NULL if all keys count */
    bool aligned;              /* rows of a head begin at multiples of 16 bytes */
    int accumulate[3];
    float *saved;       /* (B,heads,T): max + log(sum) */
    const float *delta; /* (B,heads,T): dot(g, out) */
    Keys keys;
};

Heads heads_of(const gckpt_call *call)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const int window = (int)gckpti_min(h.window, INT32_MAX);
    Heads a = { (int)h.t, (int)h.s, (int)h.heads, (int)h.d, (int)h.group,
                h.c,      h.kv_c,   window,       h.scale };
    a.lengths = call->inputs == 4 ? call->in[3].index : NULL;
    a.saved = (float *)call->saved;
    for (int i = 0; i < 3; i++)
        a.accumulate[i] = wanted(call->in[i]) && call->in[i].accumulate;
    return a;
}

struct Attention : Heads {
    const float *q, *k, *v, *g;
    float *out, *dq, *dk, *dv;
    int slices;
    float after, times, cap; /* factors after, before the cap */
    gckpti_attn_mask mask;
};

/* Returns true if a query that is `lag` rows after a key sees it. */
__device__ bool is_visible(int lag, int window) { return (unsigned)lag < (unsigned)window; }

/* A block's part: 64 rows of a head (queries or, if KEYS, keys of a key head), and tiles of N
 * columns (keys; queries of each head of the group) that one of the rows sees. */
template <bool KEYS, int N = TILE> struct HeadRows {
    const Heads &h;
    int64_t rows_at, columns_at; /* offsets of row 0 and column 0 of the heads */
    int batch_row, head, first;  /* first row */
    Keys visible;
    int begin, end, tiles; /* first column, in whole tiles; after the last one; number of tiles */

    __device__ __forceinline__ HeadRows(const Heads &of, int block) : h(of)
    {
        const int down = (count() + TILE - 1) / TILE, tile = block % down;
        const int heads = KEYS ? h.heads / h.group : h.heads;
        batch_row = block / down / heads, head = block / down % heads;
        const int64_t all = batch_row, group = h.group;
        const int64_t queries = all * h.t * h.c + head * (KEYS ? group : 1) * h.d;
        const int64_t keys = all * h.s * h.kc + (KEYS ? head : head / group) * h.d;
        rows_at = KEYS ? keys : queries, columns_at = KEYS ? queries : keys;
        first = TILE * (KEYS ? tile : down - 1 - tile); /* queries with most keys come first */
        visible = keys_of_row(h.keys, h.lengths, batch_row);
        begin = KEYS ? first - visible.ahead : first + visible.ahead + 1 - h.window;
        begin = max(begin, 0) / N * N;
        end = KEYS ? (int)gckpti_min(h.t, (int64_t)first - visible.ahead + TILE - 1 + h.window)
                   : min(visible.count, first + visible.ahead + TILE);
        tiles = KEYS && first >= visible.count ? 0 : (max(end - begin, 0) + N - 1) / N;
    }
    /* Return the number of all rows; elements from row to row; how many tiles to compute. */
    __device__ int count() const { return KEYS ? h.s : h.t; }
    __device__ int64_t stride() const { return KEYS ? h.kc : h.c; }
    __device__ int steps() const { return tiles * (KEYS ? h.group : 1); }
    /* Return the first column of a step; the number of its columns; the head of its queries. */
    __device__ int column(int step) const { return begin + (KEYS ? step % tiles : step) * N; }
    __device__ int columns(int step) const { return min(end - column(step), N); }
    __device__ int query_head(int step) const
    {
        return KEYS ? head * h.group + step / tiles : head;
    }
    /* Returns the index, in (B,heads,T), of that head's first query. */
    __device__ int64_t first_query(int step) const
    {
        return ((int64_t)batch_row * h.heads + query_head(step)) * h.t;
    }
    /* Returns how many rows after its key the query of (row 0, column 0) is. */
    __device__ int lag(int step) const
    {
        return KEYS ? column(step) + visible.ahead - first : first + visible.ahead - column(step);
    }
    /* Copy columns e.. of the heads' d to shared memory; elements outside become 0. Keys may be
     * a ring. */
    template <int WIDTH, int THREADS, class LAYOUT, bool MIXED, class T>
    __device__ __forceinline__ void stage_rows(const T *x, int e, T *tile) const
    {
        const Matrix<T> m = { x + rows_at, stride(), h.aligned };
        stage_tile<TILE, WIDTH, THREADS, LAYOUT, MIXED>(m, first, KEYS ? visible.count : h.t, e,
                                                        h.d, tile);
    }
    template <int WIDTH, int THREADS, class LAYOUT, bool MIXED, class T>
    __device__ __forceinline__ void stage_columns(const T *x, int step, int e, T *tile) const
    {
        const int64_t at = columns_at + (KEYS ? (int64_t)(step / tiles) * h.d : 0);
        const Matrix<T> m = { x + at, KEYS ? h.c : h.kc, h.aligned };
        const int line = KEYS ? column(step) : column(step) % h.s;
        stage_tile<N, WIDTH, THREADS, LAYOUT, MIXED>(m, line, line + columns(step), e, h.d, tile);
    }
};

/* Continues the chains s over n columns: this thread's R rows of a times 4 rows of b. MIXED: up to
 * 3 more terms, which are zeros: they change only signs of zeros, on which nothing depends. */
template <int R, int WIDTH, bool MIXED>
__device__ void dots(float (&s)[R][4], const float *a, const float *b, int n)
{
    constexpr int ROW = WIDTH + 4, STEP = TILE / R;
    Block<R, 4, MIXED> block;
    a += threadIdx.x / 16 * ROW;
    b += threadIdx.x % 16 * ROW;
    n = min(MIXED ? (n + 3) / 4 * 4 : n, WIDTH);
    block.begin();
    int e = 0;
#pragma unroll 1
    for (; e + 4 <= n; e += 4) {
        block.start_block(s, e);
        Vec<float, 4> y[4];
        UNROLLED(c, 4)
        y[c] = load<4>(b + 16 * c * ROW + e);
        UNROLLED(r, R)
        {
            const Vec<float, 4> x = load<4>(a + STEP * r * ROW + e);
            UNROLLED(k, 4)
            {
                const float z[4] = { y[0].v[k], y[1].v[k], y[2].v[k], y[3].v[k] };
                block.term(s, k, r, x.v[k], z);
            }
        }
    }
    for (; !MIXED && e < n; e++) {
        const float *z = b + e, w[4] = { z[0], z[16 * ROW], z[32 * ROW], z[48 * ROW] };
        UNROLLED(r, R)
        block.term(s, 0, r, a[STEP * r * ROW + e], w);
    }
    block.end(s);
}

/* Returns the column of a thread's element n: four are adjacent, the next four are 64 further. */
__device__ int column_of(int n) { return (int)threadIdx.x % 16 * 4 + n % 4 + n / 4 * 64; }

/* Loads this thread's columns of a row of x. */
template <int N> __device__ void load_columns(float (&y)[N], const float *x)
{
    UNROLL for (int n = 0; n < N; n += 4) read_vec<4>(x, column_of(n), 4, true, y + n);
}

template <int R, bool MIXED> __device__ void store_scores(float *to, const float (&x)[R][4])
{
    to += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
    UNROLLED(r, R) UNROLLED(c, 4) to[TILE / R * r * SCORES + 16 * c] = rounded<MIXED>(x[r][c]);
}

/* Returns the maximum of x over 2 h adjacent lanes, which share a row. */
__device__ inline float row_max(float x, int h = 8)
{
    for (; h; h /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, h));
    return x;
}
