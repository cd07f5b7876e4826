/* ---- attention ----
 * Scores lie transposed, [key][query], so that a query's softmax runs down a lane of the vectors:
 * no sum crosses one, and each keeps the order of the row's 32 lanes. Blocks of 64 queries meet
 * blocks of 64 keys; what their products read is packed, rows of `wide` floats. */
#if GCKPTI_ISA == 2
#define GCKPTI_BAND 6
#else
#define GCKPTI_BAND 8
#endif

/* Links of the band below, `count` of them: of all rows, or in a corner of those that have them.
 * Where a's rows and b stand and c's registers are the caller's. */
GCKPTI_INLINED void V(band_links)(const gckpti_band *s, int vectors, int64_t count, int corner,
                                  int64_t late, const float **b, const float **a, FLOATS *low,
                                  FLOATS *high)
{
    for (int64_t p = late; p < late + count; p++, *b += s->b_step) {
        const FLOATS b0 = V(load)(*b), b1 = vectors > 1 ? V(load)(*b + W) : b0;
        GCKPTI_UNROLL
        for (int i = 0; i < GCKPTI_BAND; i++) {
            const FLOATS x = V(set1)(*a[i]);
            a[i] += s->a_step;
            if (corner && (s->edge == GCKPTI_LINKS_TO ? p > i : p < i))
                continue;
            low[i] = V(fma)(x, b0, low[i]);
            if (vectors > 1)
                high[i] = V(fma)(x, b1, high[i]);
        }
    }
}

/* c += chain of a(i,p) b(p) (from +0 if `fresh`), over at most GCKPTI_BAND rows and `vectors` (1
 * or 2, a constant) of columns: k links, and at the diagonal a corner of links that not all rows
 * have: row i the links 0..i - late of it, after the others, or i - late.. of it, before them. b is
 * read in whole vectors. */
GCKPTI_INLINED void V(band_of)(const gckpti_band *s, int64_t rows, int vectors, int64_t n,
                               int64_t k, int64_t corner, int64_t late, const float *a,
                               const float *b, float *c, const float *factor)
{
    const int64_t c_row = s->c_row;
    const float *at[GCKPTI_BAND];
    FLOATS low[GCKPTI_BAND], high[GCKPTI_BAND];
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_BAND; i++) {
        at[i] = a + (i < rows ? i : 0) * s->a_row;
        low[i] = high[i] = V(zero)();
        if (!s->fresh && i < rows) {
            low[i] = V(load_n)(c + i * c_row, n);
            if (vectors > 1)
                high[i] = V(load_n)(c + i * c_row + W, n - W);
            if (factor)
                low[i] = low[i] * factor[i], high[i] = high[i] * factor[i];
        }
    }
    if (s->edge == GCKPTI_LINKS_FROM)
        V(band_links)(s, vectors, corner, 1, late, &b, at, low, high);
    V(band_links)(s, vectors, k, 0, 0, &b, at, low, high);
    if (s->edge == GCKPTI_LINKS_TO)
        V(band_links)(s, vectors, corner, 1, late, &b, at, low, high);
    GCKPTI_UNROLL
    for (int i = 0; i < GCKPTI_BAND; i++)
        if (i < rows) {
            V(store_n)(c + i * c_row, low[i], n);
            if (vectors > 1)
                V(store_n)(c + i * c_row + W, high[i], n - W);
        }
}

GCKPTI_INLINED void V(band)(const gckpti_band *s, int64_t rows, int64_t n, int64_t k,
                                int64_t corner, int64_t late, const float *a, const float *b,
                                float *c, const float *factor)
{
    if (rows == GCKPTI_BAND && n == 2 * W)
        V(band_of)(s, GCKPTI_BAND, 2, 2 * W, k, corner, late, a, b, c, factor);
    else if (rows == GCKPTI_BAND && n == W)
        V(band_of)(s, GCKPTI_BAND, 1, W, k, corner, late, a, b, c, factor);
    else if (n > W)
        V(band_of)(s, rows, 2, n, k, corner, late, a, b, c, factor);
    else
        V(band_of)(s, rows, 1, n, k, corner, late, a, b, c, factor);
}

/* Columns from..end-1 of rows of a token of the head each, into L2. */
GCKPTI_INLINED void V(fetch_rows)(const gckpti_heads *h, const float *x, int64_t rows, int64_t from,
                                  int64_t end)
{
    for (end = gckpti_min(end, h->d); rows > 0; rows--, x += h->c)
        for (int64_t j = from; j < end; j += 16)
            __builtin_prefetch(x + j, 0, 2);
}

/* The same for what the diagonal leaves of c (m,n). */
static GCKPTI_TARGET void V(bands)(const gckpti_band *s, int64_t m, int64_t n, int64_t k,
                                   const float *a, const float *b, float *c)
{
    for (int64_t i = 0; i < m; i += GCKPTI_BAND) {
        int64_t rows = gckpti_min(m - i, GCKPTI_BAND), links = k, skip = 0, corner = 0;
        int64_t at = s->edge == GCKPTI_LINKS_TO ? i + s->diagonal : i - s->diagonal;
        int64_t late = at < 0 ? -at : 0;
        at = at < 0 ? 0 : at;
        if (s->edge != GCKPTI_COLUMNS_FROM) {
            at = gckpti_min(at, k);
            corner = rows > late ? gckpti_min(k - at, rows - late) : 0;
            links = s->edge == GCKPTI_LINKS_TO ? at : k - at - corner;
            skip = s->edge == GCKPTI_LINKS_TO ? 0 : at;
            at = 0;
        }
        if (links + corner == 0 && !s->fresh)
            continue;
        const float *from = a + i * s->a_row + skip * s->a_step, *by = b + skip * s->b_step;
        for (int64_t j = at / W * W; j < n; j += 2 * W) {
            if (s->next)
                V(fetch_rows)(s->of, s->next + i * s->of->c, rows, j, j + 2 * W);
            V(band)
            (s, rows, gckpti_min(n - j, 2 * W), links, corner, late, from, by + j,
             c + i * s->c_row + j, s->factor ? s->factor + i : NULL);
        }
    }
}

/* Rows of a token of the head each, side by side: d[i * wide + j]. */
static GCKPTI_TARGET void V(gather)(const gckpti_heads *h, const float *x, int64_t rows, float *d)
{
    for (int64_t i = 0; i < rows; i++, x += h->c, d += h->wide)
        for (int64_t j = 0; j < h->d; j += W)
            V(store)(d + j, V(load_n)(x + j, h->d - j));
}
