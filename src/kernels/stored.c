#ifndef GCKPT_NO_PACK
/* ---- products whose b is read as it is stored ---- */
/* u's elements at..at+n-1, as gckpti_unpack. */
static GCKPTI_TARGET void V(unpack)(const gckpt_unpacking *u, int64_t at, int64_t n, float *x)
{
#define GCKPTI_UNPACK(kind, scale)                                                                 \
    for (int64_t i = 0; i < n; i += W)                                                             \
        V(store_n)(x + i, V(stored)(kind, u->packed, at + i, scale, n - i), n - i);
    const int64_t row = at / u->row;
    if (u->storage == GCKPT_STORED_BF16) {
        GCKPTI_UNPACK(GCKPT_STORED_BF16, V(zero)())
    } else if (u->storage == GCKPT_STORED_F16) {
        GCKPTI_UNPACK(GCKPT_STORED_F16, V(zero)())
    } else if (u->scales && at + n <= (row + 1) * u->row) {
        GCKPTI_UNPACK(GCKPT_STORED_I8, V(set1)(u->scales[row]))
    } else {
        gckpti_unpack(u, at, n, x);
    }
#undef GCKPTI_UNPACK
}

/* V(pack_panels) of all panels, links p.., columns from j on, of b as it is stored. */
static GCKPTI_TARGET void V(pack_stored)(const gckpti_product *t, int64_t p, int64_t j, int64_t n,
                                         int64_t k, float *d, int64_t deep)
{
    enum { LINKS = 64, ROOM = GCKPTI_PANEL * LINKS };
    float room[ROOM];
    const int64_t some = t->b_col == 1 ? 8 : LINKS;
    for (int64_t l = 0; l < k; l += some)
        for (int64_t q = 0, at, width; at = V(panel)(n, q), at < n; q++) {
            width = V(panel)(n, q + 1) - at;
            const int64_t cols = gckpti_min(n - at, width), links = gckpti_min(k - l, some);
            float *to = d + at * deep + l * width;
            for (int64_t i = 0; i < (t->b_col == 1 ? links : cols); i++)
                if (t->b_col == 1) {
                    V(unpack)(t->stored, (p + l + i) * t->b_step + j + at, cols, to + i * width);
                    memset(to + i * width + cols, 0, (size_t)(width - cols) * sizeof *to);
                } else {
                    V(unpack)(t->stored, (j + at + i) * t->b_col + p + l, links, room + i * LINKS);
                }
            if (t->b_col != 1)
                V(pack)(room, 1, LINKS, cols, links, to, width);
        }
}

/* V(sweep) of b as it is stored; I8: a scale for each link. */
static GCKPTI_TARGET void V(sweep_stored)(const gckpti_product *t, const float *a, int64_t j0,
                                          int64_t n, float *c)
{
    const gckpt_unpacking *u = t->stored;
#define GCKPTI_SWEEP_SOME(kind, some)                                                              \
    case kind + some: V(sweep_of)(kind, scale, a, t->a_step, b, t->b_step, some, n, c); break;
    const int each = u->storage == GCKPT_STORED_I8 ? 1 : 2;
    const unsigned char *b = (const unsigned char *)u->packed + j0 * each;
    for (int64_t p = 0, links; p < t->k; p += links) {
        const float *scale = u->scales ? u->scales + p : NULL;
        links = t->k - p >= 8 ? 8 : 1;
        switch ((int)u->storage + (int)links) {
            GCKPTI_SWEEP_SOME(GCKPT_STORED_BF16, 1)
            GCKPTI_SWEEP_SOME(GCKPT_STORED_F16, 1)
            GCKPTI_SWEEP_SOME(GCKPT_STORED_I8, 1)
            GCKPTI_SWEEP_SOME(GCKPT_STORED_BF16, 8)
            GCKPTI_SWEEP_SOME(GCKPT_STORED_F16, 8)
            GCKPTI_SWEEP_SOME(GCKPT_STORED_I8, 8)
        }
        a += links * t->a_step, b += links * t->b_step * each;
    }
#undef GCKPTI_SWEEP_SOME
}

/* Columns j.. of a row of c, 32 of them, from rows of b as they are stored, in whole words. 0: they
 * are not such. */
static GCKPTI_TARGET int V(dots_stored)(const gckpti_product *t, const float *a, int64_t j,
                                        const float *from, float *c)
{
    const gckpt_unpacking *u = t->stored;
    const int bytes = u->storage == GCKPT_STORED_I8;
    const int64_t words = t->k / (bytes ? 4 : 2), last = t->n - 32;
    const float *b = (const float *)u->packed, *next = b + gckpti_min(j + 32, last) * words;
    const uint32_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
#define GCKPTI_DOTS_SOME(kind)                                                                     \
    if (u->storage == kind)                                                                        \
        V(dots_of)                                                                                 \
    (kind, bytes ? u->scales + j : NULL, a, 1, b + j * words, words, words, 32, 1, from, c, next);
    if (!low || t->a_step != 1 || t->k % 16 || (uintptr_t)b % sizeof *b)
        return 0;
    GCKPTI_DOTS_SOME(GCKPT_STORED_BF16)
    GCKPTI_DOTS_SOME(GCKPT_STORED_F16)
    GCKPTI_DOTS_SOME(GCKPT_STORED_I8)
#undef GCKPTI_DOTS_SOME
    return 1;
}

/* V(product_row), b being as it is stored; what is not in the form for that comes as floats to the
 * stack. */
static GCKPTI_TARGET void V(stored_row)(const gckpti_product *t, const float *a, int64_t j0,
                                        int64_t j1, const float *from, float *c)
{
    enum { LINKS = 64, COLS = 32 };
    const gckpt_unpacking *u = t->stored;
    const int whole = u->storage != GCKPT_STORED_I8 || u->row == (t->b_step == 1 ? t->k : t->n);
    float room[LINKS * COLS];
    for (int64_t j = j0, n; t->b_step == 1 && j < j1;
         j += n, c += n, from = from ? from + n : NULL) {
        n = gckpti_min(j1 - j, COLS);
        if (n == COLS && whole && V(dots_stored)(t, a, j, from, c))
            continue;
        for (int64_t p = 0, k; p < t->k; p += k) {
            k = gckpti_min(t->k - p, LINKS);
            for (int64_t i = 0; i < n; i++)
                V(unpack)(u, (j + i) * t->b_col + p, k, room + i * LINKS);
            V(dots)(a + p * t->a_step, t->a_step, room, LINKS, k, n, p ? c : from, c, NULL);
        }
    }
    if (t->b_step != 1 && whole)
        V(sweep_stored)(t, a, j0, j1 - j0, c);
    else
        for (int64_t p = 0, k; t->b_step != 1 && p < t->k; p += k) {
            k = gckpti_min(t->k - p, 8);
            for (int64_t j = j0, n; j < j1; j += n) {
                n = gckpti_min(j1 - j, LINKS * COLS / 8);
                for (int64_t i = 0; i < k; i++)
                    V(unpack)(u, (p + i) * t->b_step + j, n, room + i * (LINKS * COLS / 8));
                V(sweep)(a + p * t->a_step, t->a_step, room, LINKS * COLS / 8, k, n, c + (j - j0));
            }
        }
}
#endif
