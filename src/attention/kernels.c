#ifndef GCKPT_NO_ATTENTION
/* ---- attention ---- Scores are stored as (key,query): the softmax of a query then runs down a
 * vector lane, no sum crosses lanes, and sums keep the order of the row's 32 lanes. Tiles are 64
 * queries by 64 keys; the operands of their products are packed, in rows of whole vectors. The
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

GCKPTI_INLINED void V(rescale)(float *out, float factor, int64_t d)
{
    for (int64_t e = 0; factor != 1.0f && e < d; e += W)
        V(store_n)(out + e, V(load_n)(out + e, d - e) * V(set1)(factor), d - e);
}

/* Computes query i of a head by itself, as of a text that is generated token by token: its scores
 * are a row, not a column. */
static GCKPTI_TARGET void V(attention_query)(const gckpti_attn *h, int64_t head, int64_t i)
{
    const gckpt_call *call = h->call;
    int64_t at = gckpti_attn_at_q(h, head) + i * h->c, keys = gckpti_attn_at_k(h, head);
    const float *q = call->in[0].data + at, scale = gckpti_attn_post_scale(h);
    float p[GCKPTI_QK_TILE] = { 0.0f }, max = 0.0f, sum = 0.0f;
    float *out = call->out ? call->out + at : NULL, *saved = (float *)call->saved;
    int64_t visible = gckpti_min(h->visible.keys, i + 1 + h->visible.ahead);
    const int64_t first = gckpti_attn_first_tile(h, i);
    if (out)
        memset(out, 0, (size_t)h->d * sizeof *out);
    for (int64_t j = first; j < visible; j += GCKPTI_QK_TILE) {
        const int64_t n = gckpti_min(visible - j, GCKPTI_QK_TILE),
                      at_j = keys + gckpti_attn_offset(h, j);
        const int64_t from = gckpti_attn_masked(h, i, j, n);
        const float *k = call->in[1].data + at_j, *v = call->in[2].data + at_j;
        const V(gemv) scores = { h->d, n, q, 1, k, h->kv_c, NULL, p, v };
        const V(gemv)
            values = { n - from, h->d, p + from, 1, v + from * h->kv_c, h->kv_c, NULL, out, NULL };
        V(gemv_dot)(&scores);
        if (h->cap > 0.0f)
            V(softcaps)(p, n, h->dot_scale, h->cap);
        for (int64_t e = 0; e < n; e += W)
            V(store)(p + e, V(fma)(V(load)(p + e), V(set1)(scale), V(zero)()));
        for (int64_t e = 0; h->mask.x && e < n; e++)
            p[e] = gckpti_attn_plus_mask(h, p[e], head, i, j + e);
        for (int64_t e = 0; e < from; e++)
            p[e] = -GCKPTI_INFINITY;
        float factor = V(online)(p, p, n, j == first, &max, &sum);
        if (!out)
            continue;
        if (j > first)
            V(rescale)(out, factor, h->d);
        V(gemv_axpy)(&values);
    }
    gckpti_softmax_end(&max, &sum);
    if (out)
        V(divide)(out, sum, h->d);
    if (saved)
        saved[head * h->t + i] = max + V(log_scalar)(sum);
}
#endif
