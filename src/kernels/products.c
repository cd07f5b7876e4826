/* ---- products (method: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication",
 * 2008) ---- */
#if GCKPTI_X86 && !defined(GCKPTI_IN_REGISTER) /* tests define it: emulation lacks registers */
#define GCKPTI_IN_REGISTER(x) __asm__("" : "+v"(x));
#elif !defined(GCKPTI_IN_REGISTER)
#define GCKPTI_IN_REGISTER(x)
#endif

/* Flushes values below 2^-126 in magnitude to zero, unless the processor itself does so (x86). */
GCKPTI_ALWAYS FLOATS V(flushed)(FLOATS x)
{
#if GCKPTI_X86
    return x;
#else
    const INTS u = V(bits)(x), normal = (INTS)((u & 0x7f800000u) != 0);
    return V(floats)(u & (normal | 0x80000000u));
#endif
}

/* Load and store `vectors` (a constant) vectors, of which the last has `last` columns. */
GCKPTI_ALWAYS void V(tile_load)(const float *x, int vectors, int64_t last, FLOATS *row)
{
    GCKPTI_UNROLL
    for (int j = 0; j < vectors; j++)
        row[j] = j + 1 < vectors ? V(load)(x + W * j) : V(load_n)(x + W * j, last);
}
GCKPTI_ALWAYS void V(tile_store)(float *x, int vectors, int64_t last, const FLOATS *row)
{
    GCKPTI_UNROLL
    for (int j = 0; j + 1 < vectors; j++)
        V(store)(x + W * j, row[j]);
    V(store_n)(x + W * (vectors - 1), row[vectors - 1], last);
}

/* Computes a tile of c, at most 8 rows and 3 vectors: starts at `from`, or +0 if that is NULL; for
 * each term and row, multiplies an element of a by b's vectors. The last one has t->last columns.
 * rows, vectors and block are constants. If block is 1 (mixed), a tile has at most 4 rows, and
 * each of t->k iterations takes two terms: sum[0..3] are chains of the even ones, sum[4..7] of the
 * odd ones. These chains start at +0, and their sum is added to `from`. */
GCKPTI_ALWAYS void V(tile)(const gckpti_tile *t, int rows, int vectors, int block)
{
    const int64_t row = t->a_row, step = t->a_step, b_step = t->b_step;
    const float *a = t->a, *a4 = a + (rows > 4 ? 4 * row : block), *b = t->b, *from = t->from;
    float *c = t->c;
    FLOATS sum[8][3];
    GCKPTI_UNROLL
    for (int i = 0; i < 8; i++) {
        sum[i][0] = sum[i][1] = sum[i][2] = V(zero)();
        if (i < rows && from && !block)
            V(tile_load)(from + i * t->from_row, vectors, t->last, sum[i]);
    }
    if (rows == GCKPTI_TILE_ROWS && !block && t->next_c) {
        const float *next = t->next_c;
        for (int i = 0; i < rows; i++, next += t->c_row) {
            for (int j = 0; j < vectors * W; j += 16)
                __builtin_prefetch(next + j, 1, 3);
            __builtin_prefetch(next + vectors * W - 1, 1, 3);
        }
    }
    for (int64_t p = t->k; p > 0; p--) {
        GCKPTI_UNROLL
        for (int odd = 0; odd <= block; odd++, b += b_step) {
            FLOATS b0 = V(load)(b);
            FLOATS b1 = vectors > 1 ? V(load)(b + W) : b0;
            FLOATS b2 = vectors > 2 ? V(load)(b + 2 * W) : b0;
            if (block) { /* else gcc loads b in each row that uses it */
                GCKPTI_IN_REGISTER(b0) GCKPTI_IN_REGISTER(b1) GCKPTI_IN_REGISTER(b2)
            }
            GCKPTI_UNROLL
            for (int i = 4 * odd; i < 4 * odd + rows; i++) {
                const FLOATS x = V(set1)((i & 4 ? a4 : a)[(i & 3) * row]);
                sum[i][0] = V(fma)(x, b0, sum[i][0]);
                if (vectors > 1)
                    sum[i][1] = V(fma)(x, b1, sum[i][1]);
                if (vectors > 2)
                    sum[i][2] = V(fma)(x, b2, sum[i][2]);
            }
        }
        a += step, a4 += step;
    }
    GCKPTI_UNROLL
    for (int i = 0; i < rows; i++, c += t->c_row) {
        GCKPTI_UNROLL
        for (int j = 0; j < vectors && block; j++) {
            const FLOATS both = V(flushed)(sum[i][j] + sum[(i + 4) % 8][j]);
            const FLOATS x = V(flushed)(V(load)(from + i * t->from_row + W * j));
            V(store)(c + W * j, V(flushed)(x + both));
        }
        if (!block)
            V(tile_store)(c, vectors, t->last, sum[i]);
    }
}

#define GCKPTI_NARROW_SIZES(X, v) X(1, v) X(2, v) X(3, v) X(4, v) X(5, v) X(6, v) X(7, v) X(8, v)
#if GCKPTI_TILE_ROWS == 8
#define GCKPTI_TILE_SIZES GCKPTI_NARROW_SIZES
#else
#define GCKPTI_TILE_SIZES(X, v) X(1, v) X(2, v) X(3, v) X(4, v)
#endif
#define GCKPTI_TILE_BODY(r, v)                                                                     \
    static GCKPTI_TARGET void V(tile_##r##_##v)(const gckpti_tile *t) { V(tile)(t, r, v, 0); }
#define GCKPTI_TILE_NAME(r, v) V(tile_##r##_##v),
GCKPTI_NARROW_SIZES(GCKPTI_TILE_BODY, 1)
GCKPTI_TILE_SIZES(GCKPTI_TILE_BODY, 2)
#if GCKPTI_TILE_VECTORS == 3
GCKPTI_TILE_SIZES(GCKPTI_TILE_BODY, 3)
#endif
static void (*const V(tiles)[GCKPTI_TILE_VECTORS][GCKPTI_NARROW_ROWS])(const gckpti_tile *t) = {
    { GCKPTI_NARROW_SIZES(GCKPTI_TILE_NAME, 1) },
    { GCKPTI_TILE_SIZES(GCKPTI_TILE_NAME, 2) },
#if GCKPTI_TILE_VECTORS == 3
    { GCKPTI_TILE_SIZES(GCKPTI_TILE_NAME, 3) },
#endif
};
#undef GCKPTI_TILE_SIZES
#undef GCKPTI_NARROW_SIZES
#undef GCKPTI_TILE_BODY
#undef GCKPTI_TILE_NAME

/* Packs a panel: d[p * width + j] = b(p, j), p < k, j < width; 0 for j >= n > width - W. Writes up
 * to W - 1 rows too many. (Seven parameters, here and below, stay in registers; a struct of them
 * would have to be filled for each panel.) */
static GCKPTI_TARGET void V(pack)(const float *b, int64_t step, int64_t col, int64_t n, int64_t k,
                                  float *d, int64_t width)
{
    if (step != 1 && col != 1)
        for (; k > 0; k--, b += step, d += width)
            for (int64_t j = 0; j < width; j++)
                d[j] = j < n ? b[j * col] : 0.0f;
    else if (step != 1)
        for (const int64_t last = width - W; k > 0; k--, b += step, d += width) {
            for (int64_t j = 0; j < last; j += W)
                V(store)(d + j, V(load)(b + j));
            V(store)(d + last, V(load_n)(b + last, n - last));
        }
    else
        for (int64_t j = 0; j < width; j += W)
            for (int64_t p = 0; p < k; p += W) {
                const float *s = b + j * col + p;
                int64_t row = col, terms = gckpti_min(k - p, W);
                float edge[W * W];
                if (n - j < W || terms % 4 != 0) {
                    for (int64_t i = 0; i < W; i++) {
                        FLOATS x = V(zero)();
                        if (i < n - j)
                            x = V(load_n)(s + i * col, k - p);
                        V(store)(edge + i * W, x);
                    }
                    s = edge, row = W, terms = W;
                }
                V(transpose)(s, row, terms, d + p * width + j, width);
            }
}

/* Returns the width of the panel, of n columns, that begins at column `at`: GCKPTI_TILE_VECTORS
 * vectors; the last panel has the rest. If the rest is 1 vector and a panel has 3, the panel before
 * the last gives it one, since so few chains would be slow. */
GCKPTI_INLINED int64_t V(panel_width)(int64_t n, int64_t at)
{
    const int64_t left = n - at, most = GCKPTI_TILE_VECTORS * W;
    if (left > most)
        return GCKPTI_TILE_VECTORS > 2 && left <= most + W ? most - W : most;
    return gckpti_ceil_to(left, W);
}

/* Packs terms 0..k-1 of n columns at b; the panel of column j goes to d + j * deep. If in_place is
 * nonzero, packs only a panel whose last vector is not full. Takes 8 terms at a time if rows of b
 * are contiguous (few pages, long runs), else all, since a transposing V(pack) may write W rows. */
static GCKPTI_TARGET void V(pack_panels)(const gckpti_product *t, const float *b, int64_t n,
                                         int64_t k, int in_place, float *d, int64_t deep)
{
    const int64_t chunk = t->b.stride == 1 && t->b.k_stride != 1 ? 8 : deep;
    for (int64_t p = 0; p < k; p += chunk)
        for (int64_t j = 0, width; j < n; j += width) {
            const float *from = b + p * t->b.k_stride + j * t->b.stride;
            const int64_t terms = gckpti_min(k - p, chunk), cols = n - j;
            float *to = d + j * deep + p * (width = V(panel_width)(n, j));
            if (!in_place || cols < width)
                V(pack)
            (from, t->b.k_stride, t->b.stride, gckpti_min(cols, width), terms, to, width);
        }
}

/* Packs n <= GCKPTI_STRIP adjacent rows of a; the tile from row i on goes to d + i * deep. */
static GCKPTI_TARGET void V(pack_strip)(const float *a, int64_t step, int64_t n, int64_t k,
                                        float *d, int64_t deep)
{
    for (int64_t p = 0; p < k; p++, a += step, d += GCKPTI_TILE_ROWS)
        if (n == GCKPTI_STRIP)
            for (int64_t i = 0; i < GCKPTI_STRIP; i += GCKPTI_TILE_ROWS)
                memcpy(d + i * deep, a + i, GCKPTI_TILE_ROWS * sizeof(float));
        else
            for (int64_t i = 0; i < n; i++)
                d[i / GCKPTI_TILE_ROWS * (deep - 1) * GCKPTI_TILE_ROWS + i] = a[i];
}

/* Chooses block sizes. As measured, b is packed unless few rows use it and its last vector is full;
 * if vectors are shorter than 64 bytes, an a with adjacent rows is also packed, since few rows some
 * KB apart stay in L1. If k is small and a's terms are adjacent, a block of b is one panel wide: it
 * stays in L1. */
static gckpti_blocking V(blocking)(const gckpti_product *t, int64_t rows, int64_t floats)
{
    const int64_t few = t->b.k_stride % 512 ? 128 : 16;
    const int64_t deepest = gckpti_min(t->a.k_stride == 1 ? GCKPTI_KC : GCKPTI_KC_STRIDED,
                                       floats / (GCKPTI_PANEL + GCKPTI_STRIP) / 16 * 16);
    const int64_t blocks = t->k <= deepest ? 1 : (t->k + deepest - 1) / deepest;
    gckpti_blocking sizes;
    sizes.kc = blocks == 1 ? t->k : (t->k + blocks - 1) / blocks;
    sizes.kc = t->k ? gckpti_ceil_to(sizes.kc, 16) : 16;
    sizes.nc = GCKPTI_PANEL;
    if (t->a.k_stride != 1 || t->k > GCKPTI_KC_STRIDED)
        sizes.nc =
            gckpti_min(GCKPTI_NC, (floats / sizes.kc - GCKPTI_STRIP) / GCKPTI_PANEL * GCKPTI_PANEL);
    sizes.in_place = t->b.stride == 1 && !gckpti_has_compressed(&t->b) && rows <= few;
    sizes.packs_a = W < 16 && t->a.k_stride != 1 && t->a.stride == 1 && rows > GCKPTI_STRIP;
    return sizes;
}
