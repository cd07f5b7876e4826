#ifndef GCKPT_NO_ATTENTION
/* ---- attention ---- Scores are stored as (key,query): the softmax of a query then runs down a
 * vector lane, no sum crosses lanes, and sums keep the order of the row's 32 lanes. Tiles are 64
 * queries by 64 keys; the operands of their products are packed, in rows of d_vec floats. The
 * products use V(tiles): terms of all rows of a tile, and row by row those of some rows. */
/* The terms first..end-1 of some rows of c; all rows add those from `full` to `full_end`, row i of
 * the others only `span` terms from i + low on. */
typedef struct {
    int64_t first, full, full_end, end, low, span;
} V(attn_part);

/* Returns x, or 0 or k if x is not between them. */
GCKPTI_INLINED int64_t V(within)(int64_t x, int64_t k) { return x < 0 ? 0 : gckpti_min(x, k); }

/* Returns which of k terms the diagonal and the window leave for `rows` rows of c from row i on. */
GCKPTI_INLINED V(attn_part)
    V(attn_range)(const gckpti_attn_gemm *s, int64_t i, int64_t rows, int64_t k)
{
    const int64_t window = s->attn->window;
    const int64_t low = s->edge == GCKPTI_TERMS_TO ? i + s->diagonal + 1 - window : i - s->diagonal;
    V(attn_part) t = { 0, 0, k, k, low, window };
    if (s->edge == GCKPTI_COLUMNS_FROM || (low + rows <= 1 && low + window >= k))
        return t;
    t.first = V(within)(low, k), t.full = V(within)(low + rows - 1, k);
    t.full_end = V(within)(low + window, k), t.end = V(within)(low + window + rows - 1, k);
    t.full_end = t.full_end > t.full ? t.full_end : t.full;
    return t;
}

/* Adds the terms first..end-1 of `rows` rows of `all` to n columns, a panel at a time. */
static GCKPTI_TARGET void V(attn_add)(const gckpti_tile *all, int64_t rows, int64_t n,
                                      int64_t first, int64_t end)
{
    gckpti_tile u = *all;
    u.k = end - first, u.a += first * u.a_step, u.b += first * u.b_step;
    for (int64_t j = 0, width; j < n; j += width) {
        width = V(panel_width)(n, j);
        u.last = gckpti_min(n - j - width + W, W);
        V(tiles)[width / W - 1][rows - 1](&u);
        u.b += width, u.c += width, u.from = u.from ? u.c : NULL;
    }
}

/* Adds terms from `begin` to `end` that not all rows have, row by row. */
static GCKPTI_TARGET void V(attn_corner)(const V(attn_part) * t, gckpti_tile u, int64_t rows,
                                         int64_t n, int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < rows; i++, u.a += u.a_row, u.c += u.c_row) {
        const int64_t to = t->low + i + t->span, last = gckpti_min(to, end);
        const int64_t first = t->low + i > begin ? t->low + i : begin;
        u.from = u.from ? u.c : NULL;
        V(attn_add)(&u, 1, n, first, last > first ? last : first);
    }
}

/* c (m,n) += chains of k terms, or of those terms that diagonal and window leave; from +0 if
 * s->from_zero. b is read in whole vectors. */
static GCKPTI_TARGET void V(attn_gemm)(const gckpti_attn_gemm *s, int64_t m, int64_t n, int64_t k,
                                       const float *a, const float *b, float *c)
{
    for (int64_t i = 0, rows; i < m; i += rows) {
        const int64_t skipped =
            s->edge == GCKPTI_COLUMNS_FROM && i > s->diagonal ? (i - s->diagonal) / W * W : 0;
        float *to = c + i * s->c_row + skipped;
        gckpti_tile u = { 0,  a,        s->a_row, s->a_step, b, s->b_step,
                          to, s->c_row, to,       s->c_row,  W, NULL };
        u.a += i * s->a_row, u.b += skipped, u.from = s->from_zero ? NULL : to;
        rows = gckpti_min(m - i, GCKPTI_TILE_ROWS);
        const V(attn_part) t = V(attn_range)(s, i, rows, k);
        if (t.first >= t.end && !s->from_zero)
            continue;
        if (t.first < t.full) {
            V(attn_corner)(&t, u, rows, n, t.first, t.full);
            u.from = to;
        }
        if (t.full < t.full_end || !u.from)
            V(attn_add)(&u, rows, n - skipped, t.full, t.full_end);
        u.from = to;
        if (t.full_end < t.end)
            V(attn_corner)(&t, u, rows, n, t.full_end, t.end);
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

GCKPTI_INLINED void V(rescale)(float *out, float factor, int64_t d)
{
    for (int64_t e = 0; factor != 1.0f && e < d; e += W)
        V(store_n)(out + e, V(load_n)(out + e, d - e) * V(set1)(factor), d - e);
}
#endif
