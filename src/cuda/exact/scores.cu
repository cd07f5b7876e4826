/* A block takes 64 queries of a head (for dk and dv: 64 keys) through tiles of 64 keys (queries) in
 * ascending order. Both are in shared memory, in rows that are WIDTH + 4 floats apart, so that the
 * float4 of eight rows are in different banks. Thread (ty, tx) has R of the 64 rows, ty, ty + 64 /
 * R, .., and 4 of the 64 scores of each row, tx, tx + 16, ..: for the sum of a row's exponentials
 * (5d), lanes tx and tx + 16 are in one thread, and the 16 threads of the row add their sums. A
 * thread has N = WIDTH / 16 of the WIDTH columns of a result (if rows are keys, of rows R ty..).
 * A float4 of R rows and of 4 rows give 16 R terms: with R = 8, 12 loads for 128 terms.
 * Heads up to 64 use WIDTH 64 and R 8 (128 threads), larger ones WIDTH 128 and R 4 (256 threads).
 * Beyond 128, a block has a slice of 128 columns of the result and computes all scores for it.
 * MIXED: bf16 plans (5l). Operands are rounded when they enter shared memory; terms are flushed and
 * added in blocks, which a tile never divides. As an element has three registers, R is 4. */
enum { TILE = GCKPTI_KEY_TILE, SCORES = TILE + 4 /* floats from row to row of scores */ };

/* Visible keys (gckpti_visible_keys) at position 0 of a cache; at_position adds the position. */
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

__device__ inline Keys at_position(const Keys &k)
{
    int more = k.params ? (int)k.params->position : 0;
    return { k.count + more, k.ahead + more, NULL };
}

/* What exact and fast kernels of attention read. */
struct Heads {
    int t, s, heads, d, group; /* group: heads per key head */
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
    Heads a = { (int)h.t, (int)h.s, (int)h.heads, (int)h.d, (int)h.group, h.scale };
    a.lengths = call->inputs == 4 ? call->in[3].index : NULL;
    a.saved = (float *)call->saved;
    for (int i = 0; i < 3; i++)
        a.accumulate[i] = wanted(call->in[i]) && call->in[i].accumulate;
    return a;
}

struct Attention : Heads {
    const float *q, *k, *v, *g;
    float *out, *dq, *dk, *dv;
    int64_t c, kc; /* columns of all heads; columns of all key heads */
    int slices, window;
    float after, times, cap; /* factors after, before the cap */
    gckpti_attn_mask mask;
    float *dmask;
};

/* Returns the mask of query i from key j on, or NULL if there is no mask or no such query. */
__device__ inline const float *mask_row(const Attention &a, int64_t row, int head, int i, int j)
{
    const int64_t *step = a.mask.step;
    return a.mask.x && i < a.t
               ? a.mask.x + row * step[0] + head * step[1] + i * step[2] + j * step[3]
               : NULL;
}

/* Returns a copy of `a` whose row length c and number of heads are those of the keys. */
template <class A> __device__ inline A as_keys(const A &a)
{
    A k = a;
    k.c = a.kc;
    k.heads = a.heads / a.group;
    return k;
}

__device__ inline Keys keys_of_row(const Keys &k, const int32_t *lengths, int64_t row)
{
    Keys now = at_position(k);
    now.count = lengths ? lengths[row] : now.count;
    return now;
}

/* A block's part: a tile of a head in a row of the batch, columns from slice * WIDTH on. */
struct HeadTile {
    int64_t row;
    int tile, head, slice;
};

/* Returns this block's part. Queries run backwards, so that those with most keys come first. */
__device__ HeadTile head_tile_of(const Attention &a, int tiles, bool backwards)
{
    const int i = (int)blockIdx.x / a.slices, tile = i % tiles, head = i / tiles;
    return { head / a.heads, backwards ? tiles - 1 - tile : tile, head % a.heads,
             (int)blockIdx.x % a.slices };
}

/* Loads rows first..first+63 of x (which has `rows` rows), columns e0..e0+WIDTH-1 of the head's d;
 * elements that do not exist become +0. */
template <int R, int WIDTH, bool MIXED>
__device__ void fetch_tile(float *to, const float *x, const Attention &a, int first, int rows,
                           int e0)
{
    const Matrix<float> m = { x, a.c, a.aligned };
    stage_tile<TILE, WIDTH, 16 * TILE / R, Padded<WIDTH + 4>, MIXED>(m, first, rows, e0, a.d, to);
}

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

/* Returns true if a query that is `lag` rows after a key sees it. */
__device__ bool is_visible(int lag, int window) { return (unsigned)lag < (unsigned)window; }

/* Adds terms to chains over keys in o, for this thread's rows: p_j v_j, j = 0..keys-1. Row i has no
 * terms of keys after i + visible, or before the window that ends there. */
template <int R, int N, bool MIXED>
__device__ void sum_over_keys(float (&o)[R][N], const float *p, const float *v, int keys,
                              int visible, int window)
{
    constexpr int ROW = 16 * N + 4, STEP = TILE / R, PAIR = 1 + MIXED; /* even, odd terms */
    const int row = (int)threadIdx.x / 16;
    Block<R, N, MIXED> block;
    float y[N];
    int j = 0;
    p += row * SCORES;
    block.begin();
#pragma unroll 1
    for (const int common = is_visible(visible + TILE - 1, window) ? min(keys, visible + 1) : 0;
         j + 4 <= common; j += 4) {
        block.start_block(o, j);
        Vec<float, 4> x[R];
        UNROLLED(r, R)
        x[r] = load<4>(p + STEP * r * SCORES + j);
        UNROLLED(k, 4)
        {
            load_columns(y, v + (j + k) * ROW);
            UNROLLED(r, R)
            block.term(o, k, r, x[r].v[k], y);
        }
    }
#pragma unroll 1
    for (; j < keys; j += PAIR) {
        block.start_block(o, j);
        UNROLLED(k, PAIR)
        {
            if (j + k >= keys)
                break;
            load_columns(y, v + (j + k) * ROW);
            UNROLLED(r, R)
            {
                float x = p[STEP * r * SCORES + j + k];
                block.term(o, k, r, x, y, is_visible(row + STEP * r + visible - j - k, window));
            }
        }
    }
    block.end(o, true);
}

/* Adds terms to chains over queries in o, for this thread's rows, which are keys: p_i g_i, i =
 * 0..queries-1. Key j has terms of `window` queries (or all later ones) from j - visible on. */
template <int R, int N, bool MIXED>
__device__ void sum_over_queries(float (&o)[R][N], const float *p, const float *g, int queries,
                                 int visible, int window)
{
    constexpr int ROW = 16 * N + 4, PAIR = 1 + MIXED;
    const int row = (int)threadIdx.x / 16 * R;
    const bool all = visible >= TILE - 1 && is_visible(visible + TILE - 1, window);
    Block<R, N, MIXED> block;
    p += row;
    block.begin();
#pragma unroll(MIXED ? 1 : 4)
    for (int i0 = 0; i0 < queries; i0 += PAIR) {
        block.start_block(o, i0);
#pragma unroll
        for (int k = 0, i = i0; k < PAIR; k++, i++) {
            if (i >= queries)
                break;
            float x[R], y[N];
            UNROLL for (int r = 0; r < R; r += 4) read_vec<4>(p + i * SCORES, r, 4, true, x + r);
            load_columns(y, g + i * ROW);
            UNROLLED(r, R)
            block.term(o, k, r, x[r], y, all || is_visible(i + visible - row - r, window));
        }
    }
    block.end(o, true);
}

/* Loads initial values of chains: this thread's rows first, first + STEP, .. of a result x of
 * `rows` rows, columns from e0 on of the head. */
template <int R, int N, int STEP, bool MIXED>
__device__ void init_rows(float (&o)[R][N], const float *x, const Attention &a, int first, int rows,
                          int e0, int accumulate)
{
    UNROLLED(r, R) UNROLLED(n, N)
    {
        const int e = e0 + column_of(n), row = first + STEP * r;
        o[r][n] = accumulate && row < rows && e < a.d ? x[row * a.c + e] : 0.0f;
        o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n]) : o[r][n];
    }
}

/* Stores the elements that init_rows loads. */
template <int R, int N, int STEP>
__device__ void store_rows(const float (&o)[R][N], float *x, const Attention &a, int first,
                           int rows, int e0)
{
    UNROLLED(r, R) UNROLL for (int n = 0; n < N; n += 4)
    {
        const int e = e0 + column_of(n), row = first + STEP * r;
        if (row < rows)
            write_vec<4>(Results{ x, NULL }, row * a.c + e, a.d - e, a.aligned, &o[r][n]);
    }
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
