/* ---- attention ----
 * Scores lie transposed, [key][query], so that a query's softmax runs down a lane of the vectors:
 * no sum crosses one, and each keeps the order of the row's 32 lanes. Blocks of 64 queries meet
 * blocks of 64 keys; what their products read is packed, rows of `wide` floats. */
#if GCKPTI_ISA == 2
#define GCKPTI_BAND        6
#define GCKPTI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define GCKPTI_BAND        8
#define GCKPTI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif

/* c += chain of a(i,p) b(p) (from +0 if `fresh`), over at most GCKPTI_BAND rows and `vectors` (1
 * or 2, a constant) of columns: k links, and at the diagonal a corner of links that not all rows
 * have: row i the links 0..i - late of it, after the others, or i - late.. of it, before them. b is
 * read in whole vectors. */
GCKPTI_INLINED void V(band_of)(const gckpti_band *s, int64_t rows, int vectors, int64_t n,
                               int64_t k, int64_t corner, int64_t late, const float *a,
                               const float *b, float *c, const float *factor)
{
    const int64_t a_step = s->a_step, b_step = s->b_step, c_row = s->c_row;
#define GCKPTI_ROW_START(i)                                                                        \
    const float *a##i = a + ((i) < rows ? (i) : 0) * s->a_row;                                     \
    FLOATS l##i = V(zero)(), h##i = l##i;                                                          \
    if (!s->fresh && (i) < rows) {                                                                 \
        l##i = V(load_n)(c + (i)*c_row, n);                                                        \
        if (vectors > 1)                                                                           \
            h##i = V(load_n)(c + (i)*c_row + W, n - W);                                            \
        if (factor)                                                                                \
            l##i = l##i * V(set1)(factor[i]), h##i = h##i * V(set1)(factor[i]);                    \
    }
#define GCKPTI_ROW_LINK(i)                                                                         \
    x = V(set1)(*a##i), a##i += a_step;                                                            \
    l##i = V(fma)(x, b0, l##i);                                                                    \
    if (vectors > 1)                                                                               \
        h##i = V(fma)(x, b1, h##i);
#define GCKPTI_ROW_CORNER(i)                                                                       \
    x = V(set1)(*a##i), a##i += a_step;                                                            \
    if (s->edge == GCKPTI_LINKS_TO ? p + late <= (i) : p + late >= (i))                            \
        l##i = V(fma)(x, b0, l##i), h##i = vectors > 1 ? V(fma)(x, b1, h##i) : h##i;
#define GCKPTI_ROW_STORE(i)                                                                        \
    if ((i) < rows) {                                                                              \
        V(store_n)(c + (i)*c_row, l##i, n);                                                        \
        if (vectors > 1)                                                                           \
            V(store_n)(c + (i)*c_row + W, h##i, n - W);                                            \
    }
#define GCKPTI_LINKS(count, ROW)                                                                   \
    for (int64_t p = 0; p < (count); p++, b += b_step) {                                           \
        FLOATS x, b0 = V(load)(b), b1 = vectors > 1 ? V(load)(b + W) : b0;                         \
        GCKPTI_EACH_ROW(ROW)                                                                       \
    }
    GCKPTI_EACH_ROW(GCKPTI_ROW_START)
    if (s->edge == GCKPTI_LINKS_FROM)
        GCKPTI_LINKS(corner, GCKPTI_ROW_CORNER)
    GCKPTI_LINKS(k, GCKPTI_ROW_LINK)
    if (s->edge == GCKPTI_LINKS_TO)
        GCKPTI_LINKS(corner, GCKPTI_ROW_CORNER)
    GCKPTI_EACH_ROW(GCKPTI_ROW_STORE)
#undef GCKPTI_ROW_START
#undef GCKPTI_ROW_LINK
#undef GCKPTI_ROW_CORNER
#undef GCKPTI_ROW_STORE
#undef GCKPTI_LINKS
}

static GCKPTI_TARGET void V(band)(const gckpti_band *s, int64_t rows, int64_t n, int64_t k,
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
