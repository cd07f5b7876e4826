/* ---- attention ----
 * Scores lie transposed, [key][query], so that a query's softmax runs down a lane of the vectors:
 * no sum crosses one, and each keeps the order of the row's 32 lanes. Blocks of 64 queries meet
 * blocks of 64 keys; what their products read is packed, rows of `wide` floats. */
#if GCKPTI_ISA == 2
#define GCKPTI_BAND 6
#else
#define GCKPTI_BAND 8
#endif

/* At most GCKPTI_BAND rows and 2 W columns of c. They take the links first..end-1, of which those
 * before `all` and from `rest` on are corners: row i has the links i + low.., `span` of them. b is
 * read in whole vectors. */
typedef struct {
    int64_t rows, cols, first, all, rest, end, low, span;
    const float *a, *b, *factor;
    float *c;
} V(part);

/* What stays in registers meanwhile: where b and a's rows stand, and c. */
typedef struct {
    const float *b, *a[GCKPTI_BAND];
    FLOATS low[GCKPTI_BAND], high[GCKPTI_BAND];
} V(chains);

/* Links p..end-1. (Seven parameters: two of them constants.) */
GCKPTI_INLINED void V(band_links)(const gckpti_band *s, const V(part) *t, int vectors, int corner,
                                  int64_t p, int64_t end, V(chains) *u)
{
    for (; p < end; p++, u->b += s->b_step) {
        const FLOATS b0 = V(load)(u->b), b1 = vectors > 1 ? V(load)(u->b + W) : b0;
        GCKPTI_UNROLL
        for (int i = 0; i < GCKPTI_BAND; i++) {
            const FLOATS x = V(set1)(*u->a[i]);
            u->a[i] += s->a_step;
            if (corner && (uint64_t)(p - t->low - i) >= (uint64_t)t->span)
                continue;
            u->low[i] = V(fma)(x, b0, u->low[i]);
            if (vectors > 1)
                u->high[i] = V(fma)(x, b1, u->high[i]);
        }
    }
}

/* c += chain of a(i,p) b(p) (from +0 if `fresh`). rows and n, its columns, are those of
 * t, but constants where they can be, as `vectors` is. */
GCKPTI_INLINED void V(band_of)(const gckpti_band *s, const V(part) *t, int64_t rows, int64_t n,
                               int vectors)
{
    V(chains) u;
    u.b = t->b;
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_BAND; i++) {
        const float *c = t->c + i * s->c_row;
        u.a[i] = t->a + (i < rows ? i : 0) * s->a_row;
        u.low[i] = u.high[i] = V(zero)();
        if (!s->fresh && i < rows) {
            u.low[i] = V(load_n)(c, n);
            if (vectors > 1)
                u.high[i] = V(load_n)(c + W, n - W);
            if (t->factor)
                u.low[i] = u.low[i] * t->factor[i], u.high[i] = u.high[i] * t->factor[i];
        }
    }
    V(band_links)(s, t, vectors, 1, t->first, t->all, &u);
    V(band_links)(s, t, vectors, 0, t->all, t->rest, &u);
    V(band_links)(s, t, vectors, 1, t->rest, t->end, &u);
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_BAND; i++)
        if (i < rows) {
            float *c = t->c + i * s->c_row;
            V(store_n)(c, u.low[i], n);
            if (vectors > 1)
                V(store_n)(c + W, u.high[i], n - W);
        }
}

/* Columns from..end-1 of rows of a token of the head of keys each, into L2. */
GCKPTI_INLINED void V(fetch_rows)(const gckpti_heads *h, const float *x, int64_t rows, int64_t from,
                                  int64_t end)
{
    for (end = gckpti_min(end, h->d); rows > 0; rows--, x += h->kc)
        for (int64_t j = from; j < end; j += 16)
            __builtin_prefetch(x + j, 0, 2);
}

/* Of k links, from c's row i on, what the diagonal and the window leave. */
GCKPTI_INLINED void V(band_range)(const gckpti_band *s, int64_t i, int64_t k, V(part) *t)
{
    const int64_t window = s->of->window, to = s->edge == GCKPTI_LINKS_TO;
    int64_t at[4];
    t->first = t->all = 0, t->rest = t->end = k, t->span = window;
    t->low = to ? i + s->diagonal + 1 - window : i - s->diagonal;
    if (s->edge == GCKPTI_COLUMNS_FROM || (t->low + t->rows <= 1 && t->low + window >= k))
        return;
    at[0] = t->low, at[1] = t->low + t->rows - 1, at[2] = t->low + window;
    at[3] = at[2] + t->rows - 1;
    for (int j = 0; j < 4; j++)
        at[j] = at[j] < 0 ? 0 : gckpti_min(at[j], k);
    t->first = at[0], t->all = at[1], t->end = at[3];
    t->rest = at[2] > at[1] ? at[2] : at[1];
}

/* c (m,n) += chains of k links, or what the diagonal leaves of these. (What is the same for all of
 * a head is in s; the rest is another at each call, so a struct of it would be filled for one.) */
static GCKPTI_TARGET void V(bands)(const gckpti_band *s, int64_t m, int64_t n, int64_t k,
                                   const float *a, const float *b, float *c)
{
    for (int64_t i = 0; i < m; i += GCKPTI_BAND) {
        V(part) t = { gckpti_min(m - i, GCKPTI_BAND), 0, 0, 0, 0, 0, 0, 0, NULL, NULL,
                      s->factor ? s->factor + i : NULL, NULL };
        int64_t at = s->edge == GCKPTI_COLUMNS_FROM && i > s->diagonal ? i - s->diagonal : 0;
        V(band_range)(s, i, k, &t);
        if (t.first >= t.end && !s->fresh)
            continue;
        t.a = a + i * s->a_row + t.first * s->a_step;
        for (int64_t j = at / W * W; j < n; j += 2 * W) {
            if (s->next)
                V(fetch_rows)(s->of, s->next + i * s->of->kc, t.rows, j, j + 2 * W);
            t.b = b + t.first * s->b_step + j, t.c = c + i * s->c_row + j;
            t.cols = gckpti_min(n - j, 2 * W);
            if (t.rows == GCKPTI_BAND && t.cols == 2 * W)
                V(band_of)(s, &t, GCKPTI_BAND, 2 * W, 2);
            else if (t.rows == GCKPTI_BAND && t.cols == W)
                V(band_of)(s, &t, GCKPTI_BAND, W, 1);
            else if (t.cols > W)
                V(band_of)(s, &t, t.rows, t.cols, 2);
            else
                V(band_of)(s, &t, t.rows, t.cols, 1);
        }
    }
}

/* Rows of a token of the head each, `c` apart, side by side: d[i * wide + j]. */
static GCKPTI_TARGET void V(gather)(const gckpti_heads *h, const float *x, int64_t c, int64_t rows,
                                    float *d)
{
    for (int64_t i = 0; i < rows; i++, x += c, d += h->wide)
        for (int64_t j = 0; j < h->d; j += W)
            V(store)(d + j, V(load_n)(x + j, h->d - j));
}
