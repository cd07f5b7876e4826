/* ---- attention ---- Scores are stored as (key,query): the softmax of a query then runs down a
 * vector lane, no sum crosses lanes, and sums keep the order of the row's 32 lanes. Tiles are 64
 * queries by 64 keys; the operands of their products are packed, in rows of d_vec floats. */
#if GCKPTI_ISA == 2
#define GCKPTI_ATTN_ROWS 6
#else
#define GCKPTI_ATTN_ROWS 8
#endif

/* Up to GCKPTI_ATTN_ROWS rows and 2 W columns of c. Rows add the terms first..end-1; terms before
 * `full` and from `full_end` on form triangles, of which row i has `span` terms from i + low on. b
 * is read in whole vectors. */
typedef struct {
    int64_t rows, cols, first, full, full_end, end, low, span;
    const float *a, *b, *factor;
    float *c;
} V(attn_part);

/* The loop's registers: positions in b and in each row of a, and two vectors of c for each row. */
typedef struct {
    const float *b, *a[GCKPTI_ATTN_ROWS];
    FLOATS low[GCKPTI_ATTN_ROWS], high[GCKPTI_ATTN_ROWS];
} V(chains);

/* Adds terms p..end-1 to all rows. `vectors` and `corner` are constants. */
GCKPTI_INLINED void V(attn_terms)(const gckpti_attn_gemm *s, const V(attn_part) * t, int vectors,
                                  int corner, int64_t p, int64_t end, V(chains) * acc)
{
    for (; p < end; p++, acc->b += s->b_step) {
        const FLOATS b0 = V(load)(acc->b), b1 = vectors > 1 ? V(load)(acc->b + W) : b0;
        GCKPTI_UNROLL
        for (int i = 0; i < GCKPTI_ATTN_ROWS; i++) {
            const FLOATS x = V(set1)(*acc->a[i]);
            acc->a[i] += s->a_step;
            if (corner && (uint64_t)(p - t->low - i) >= (uint64_t)t->span)
                continue;
            acc->low[i] = V(fma)(x, b0, acc->low[i]);
            if (vectors > 1)
                acc->high[i] = V(fma)(x, b1, acc->high[i]);
        }
    }
}

/* c += chains of a(i,p) b(p), from +0 if s->from_zero. rows and n are t's rows and columns, passed
 * as constants where they are known; `vectors` is a constant. */
GCKPTI_INLINED void V(attn_tile)(const gckpti_attn_gemm *s, const V(attn_part) * t, int64_t rows,
                                 int64_t n, int vectors)
{
    V(chains) acc;
    acc.b = t->b;
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_ATTN_ROWS; i++) {
        const float *c = t->c + i * s->c_row;
        acc.a[i] = t->a + (i < rows ? i : 0) * s->a_row;
        acc.low[i] = acc.high[i] = V(zero)();
        if (!s->from_zero && i < rows) {
            acc.low[i] = V(load_n)(c, n);
            if (vectors > 1)
                acc.high[i] = V(load_n)(c + W, n - W);
            if (t->factor)
                acc.low[i] = acc.low[i] * t->factor[i], acc.high[i] = acc.high[i] * t->factor[i];
        }
    }
    V(attn_terms)(s, t, vectors, 1, t->first, t->full, &acc);
    V(attn_terms)(s, t, vectors, 0, t->full, t->full_end, &acc);
    V(attn_terms)(s, t, vectors, 1, t->full_end, t->end, &acc);
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_ATTN_ROWS; i++)
        if (i < rows) {
            float *c = t->c + i * s->c_row;
            V(store_n)(c, acc.low[i], n);
            if (vectors > 1)
                V(store_n)(c + W, acc.high[i], n - W);
        }
}

/* Prefetches columns from..end-1 of `rows` rows of a head's keys to L2. */
GCKPTI_INLINED void V(prefetch_rows)(const gckpti_attn *h, const float *x, int64_t rows,
                                     int64_t from, int64_t end)
{
    for (end = gckpti_min(end, h->d); rows > 0; rows--, x += h->kv_c)
        for (int64_t j = from; j < end; j += 16)
            __builtin_prefetch(x + j, 0, 2);
}

/* Sets which of k terms the diagonal and the window leave for the rows of c from row i on. */
GCKPTI_INLINED void V(attn_range)(const gckpti_attn_gemm *s, int64_t i, int64_t k, V(attn_part) * t)
{
    const int64_t window = s->attn->window, to = s->edge == GCKPTI_TERMS_TO;
    int64_t at[4];
    t->first = t->full = 0, t->full_end = t->end = k, t->span = window;
    t->low = to ? i + s->diagonal + 1 - window : i - s->diagonal;
    if (s->edge == GCKPTI_COLUMNS_FROM || (t->low + t->rows <= 1 && t->low + window >= k))
        return;
    at[0] = t->low, at[1] = t->low + t->rows - 1, at[2] = t->low + window;
    at[3] = at[2] + t->rows - 1;
    for (int j = 0; j < 4; j++)
        at[j] = at[j] < 0 ? 0 : gckpti_min(at[j], k);
    t->first = at[0], t->full = at[1], t->end = at[3];
    t->full_end = at[2] > at[1] ? at[2] : at[1];
}

/* c (m,n) += chains of k terms, or of those terms that diagonal and window leave. */
static GCKPTI_TARGET void V(attn_gemm)(const gckpti_attn_gemm *s, int64_t m, int64_t n, int64_t k,
                                       const float *a, const float *b, float *c)
{
    for (int64_t i = 0; i < m; i += GCKPTI_ATTN_ROWS) {
        V(attn_part)
        t = { gckpti_min(m - i, GCKPTI_ATTN_ROWS),    0,   0, 0, 0, 0, 0, 0, NULL, NULL,
              s->row_scale ? s->row_scale + i : NULL, NULL };
        int64_t at = s->edge == GCKPTI_COLUMNS_FROM && i > s->diagonal ? i - s->diagonal : 0;
        V(attn_range)(s, i, k, &t);
        if (t.first >= t.end && !s->from_zero)
            continue;
        t.a = a + i * s->a_row + t.first * s->a_step;
        for (int64_t j = at / W * W; j < n; j += 2 * W) {
            if (s->prefetch)
                V(prefetch_rows)(s->attn, s->prefetch + i * s->attn->kv_c, t.rows, j, j + 2 * W);
            t.b = b + t.first * s->b_step + j, t.c = c + i * s->c_row + j;
            t.cols = gckpti_min(n - j, 2 * W);
            if (t.rows == GCKPTI_ATTN_ROWS && t.cols == 2 * W)
                V(attn_tile)(s, &t, GCKPTI_ATTN_ROWS, 2 * W, 2);
            else if (t.rows == GCKPTI_ATTN_ROWS && t.cols == W)
                V(attn_tile)(s, &t, GCKPTI_ATTN_ROWS, W, 1);
            else if (t.cols > W)
                V(attn_tile)(s, &t, t.rows, t.cols, 2);
            else
                V(attn_tile)(s, &t, t.rows, t.cols, 1);
        }
    }
}

/* Packs rows of a head, which are `c` floats apart in x, into rows of d_vec floats in d. */
static GCKPTI_TARGET void V(gather)(const gckpti_attn *h, const float *x, int64_t c, int64_t rows,
                                    float *d)
{
    for (int64_t i = 0; i < rows; i++, x += c, d += h->d_vec)
        for (int64_t j = 0; j < h->d; j += W)
            V(store)(d + j, V(load_n)(x + j, h->d - j));
}
