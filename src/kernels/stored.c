#ifndef GCKPT_NO_PACK
/* ---- products whose b is read as it is stored ---- */
/* n stored values at b, as gckpti_unpack. storage: a constant. */
GCKPTI_ALWAYS void V(unpack_row)(int storage, const unsigned char *b, float scale, int64_t n,
                                 float *x)
{
    const int each = storage == GCKPT_STORED_I8 ? 1 : 2;
    const FLOATS s = V(set1)(scale);
    int64_t i = 0;
    for (; i + W <= n; i += W)
        V(store)(x + i, V(widened)(storage, b + i * each, s));
    if (i < n)
        V(store_n)(x + i, V(stored)(storage, b, i, s, n - i), n - i);
}

/* `rows` of u, `row` elements apart, the first from element `at` on: n elements of each, as
 * gckpti_unpack, to rows of `width` floats; as many rows that come then are fetched. */
static GCKPTI_TARGET void V(unpack)(const gckpt_unpacking *u, int64_t at, int64_t row, int64_t rows,
                                    int64_t n, float *x, int64_t width)
{
    const int each = u->storage == GCKPT_STORED_I8 ? 1 : 2, storage = (int)u->storage;
    const int64_t ahead = rows * row * each;
    const unsigned char *b = (const unsigned char *)u->packed + at * each;
    for (; rows > 0; rows--, at += row, x += width, b += row * each) {
        for (int64_t i = 0; i < n * each; i += 64)
            __builtin_prefetch(b + ahead + i, 0, 2);
        if (storage == GCKPT_STORED_BF16)
            V(unpack_row)(GCKPT_STORED_BF16, b, 0.0f, n, x);
        else if (storage == GCKPT_STORED_F16)
            V(unpack_row)(GCKPT_STORED_F16, b, 0.0f, n, x);
        else if (u->scales && at + n <= (at / u->row + 1) * u->row)
            V(unpack_row)(GCKPT_STORED_I8, b, u->scales[at / u->row], n, x);
        else
            gckpti_unpack(u, at, n, x);
    }
}

/* V(pack_panels) of all panels, links p.., columns from j on, of b as it is stored. */
static GCKPTI_TARGET void V(pack_stored)(const gckpti_product *t, int64_t p, int64_t j, int64_t n,
                                         int64_t k, float *d, int64_t deep)
{
    enum { LINKS = 64, ROOM = GCKPTI_PANEL * LINKS };
    float room[ROOM];
    const int64_t some = t->b.row == 1 ? 8 : LINKS;
    for (int64_t l = 0; l < k; l += some)
        for (int64_t q = 0, at, width; at = V(panel)(n, q), at < n; q++) {
            width = V(panel)(n, q + 1) - at;
            const int64_t cols = gckpti_min(n - at, width), links = gckpti_min(k - l, some);
            float *to = d + at * deep + l * width;
            if (t->b.row == 1) {
                V(unpack)
                (t->b.stored, (p + l) * t->b.step + j + at, t->b.step, links, cols, to, width);
                for (int64_t i = 0; cols < width && i < links; i++)
                    memset(to + i * width + cols, 0, (size_t)(width - cols) * sizeof *to);
            } else {
                V(unpack)
                (t->b.stored, (j + at) * t->b.row + p + l, t->b.row, cols, links, room, LINKS);
                V(pack)(room, 1, LINKS, cols, links, to, width);
            }
        }
}

/* 8 links from p on of n columns of c, whole vectors, b being as it is stored; I8: a scale for each
 * link. */
GCKPTI_ALWAYS void V(sweep_stored)(const gckpti_product *t, const float *a, int64_t p,
                                          int64_t j, int64_t n, float *c)
{
    const gckpt_unpacking *u = t->b.stored;
#define GCKPTI_SWEEP_SOME(kind, each, scales)                                                      \
    if (u->storage == kind)                                                                        \
        V(sweep_of)                                                                                \
    (kind, scales, a, t->a.step, (const char *)u->packed + (p * t->b.step + j) * (each),           \
     t->b.step, 8, n, c);
    GCKPTI_SWEEP_SOME(GCKPT_STORED_BF16, 2, NULL)
    GCKPTI_SWEEP_SOME(GCKPT_STORED_F16, 2, NULL)
    GCKPTI_SWEEP_SOME(GCKPT_STORED_I8, 1, u->scales + p)
#undef GCKPTI_SWEEP_SOME
}

/* Columns j.. of a row of c, 32 of them, from rows of b as they are stored, in whole words. 0: they
 * are not such. */
static GCKPTI_TARGET int V(dots_stored)(const gckpti_product *t, const float *a, int64_t j,
                                        const float *from, float *c)
{
    const gckpt_unpacking *u = t->b.stored;
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
    if (!low || t->a.step != 1 || t->k % 16 || (uintptr_t)b % sizeof *b)
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
    enum { LINKS = 64, COLS = 32, ROOM = LINKS * COLS };
    const gckpt_unpacking *u = t->b.stored;
    const int whole = u->storage != GCKPT_STORED_I8 || u->row == (t->b.step == 1 ? t->k : t->n);
    float room[ROOM];
    for (int64_t j = j0, n; t->b.step == 1 && j < j1;
         j += n, c += n, from = from ? from + n : NULL) {
        n = gckpti_min(j1 - j, COLS);
        if (n == COLS && whole && V(dots_stored)(t, a, j, from, c))
            continue;
        for (int64_t p = 0, k; p < t->k; p += k) {
            k = gckpti_min(t->k - p, LINKS);
            V(unpack)(u, j * t->b.row + p, t->b.row, n, k, room, LINKS);
            V(dots)(a + p * t->a.step, t->a.step, room, LINKS, k, n, p ? c : from, c, NULL);
        }
    }
    for (int64_t p = 0, k; t->b.step != 1 && p < t->k; p += k, a += k * t->a.step) {
        int64_t j = j0, n = (j1 - j0) / W * W;
        k = gckpti_min(t->k - p, 8);
        if (k == 8 && whole)
            V(sweep_stored)(t, a, p, j, n, c), j += n;
        for (; j < j1; j += n) {
            n = gckpti_min(j1 - j, ROOM / 8);
            V(unpack)(u, p * t->b.step + j, t->b.step, k, n, room, ROOM / 8);
            V(sweep)(a, t->a.step, room, ROOM / 8, k, n, c + (j - j0));
        }
    }
}
#endif
