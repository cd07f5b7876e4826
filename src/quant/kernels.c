#ifndef GCKPT_NO_QUANT
/* ---- products with a quantised b ---- */
GCKPTI_ALWAYS void V(dequantise_row)(int storage, const void *b, int64_t n, float *x)
{
    int64_t i = 0;
    for (; i + W <= n; i += W)
        V(store)(x + i, V(dequantised)(storage, (const uint16_t *)b + i));
    if (i < n)
        V(store_n)(x + i, V(load_wide)(storage, b, i, n - i), n - i);
}

/* Returns nonzero if blocks begin at the same columns in all rows of n elements, `row` apart, from
 * element `at` of u on, and none but the last one of a row is short. */
GCKPTI_ALWAYS int V(is_regular)(const gckpti_compressed *u, int64_t at, int64_t row, int64_t n)
{
    if (u->row % GCKPTI_QUANT_BLOCK == 0)
        return row % GCKPTI_QUANT_BLOCK == 0;
    return row % u->row == 0 && at % u->row + n <= u->row;
}

/* Dequantises n elements of `rows` rows of u, `row` apart, from element `at` on, to rows of `width`
 * floats; prefetches the same number of rows after them. */
static GCKPTI_TARGET void V(decompress)(const gckpti_compressed *u, int64_t at, int64_t row,
                                        int64_t rows, int64_t n, float *x, int64_t width)
{
    const int blocks = u->storage >= GCKPT_STORAGE_I8, each = blocks ? 1 : 2;
    const int storage = (int)u->storage, regular = blocks && V(is_regular)(u, at, row, n);
    const int64_t apart = gckpti_storage_bytes(storage, u->row, row), ahead = rows * apart;
    const unsigned k = blocks ? (unsigned)(at % u->row % GCKPTI_QUANT_BLOCK) : 0;
    const unsigned char *b = gckpti_compressed_at(u, at - k);
    const float *const start = x;
    for (int64_t done; rows > 0; rows -= done, x += done * width, b += done * apart) {
        done = rows >= 8 && regular && k % W == 0 ? 8 : 1;
        for (int64_t p = 0; p < done; p++)
            for (int64_t i = 0; i < n * each; i += 64)
                __builtin_prefetch(b + p * apart + ahead + i, 0, 2);
        if (storage == GCKPT_STORAGE_BF16)
            V(dequantise_row)(GCKPT_STORAGE_BF16, b, n, x);
        else if (storage == GCKPT_STORAGE_F16)
            V(dequantise_row)(GCKPT_STORAGE_F16, b, n, x);
        else if (!regular || k % W)
            gckpti_decompress(u, at + (x - start) / width * row, n, x);
        else if (storage == GCKPT_STORAGE_I8)
            V(dequantise_blocks)(GCKPT_STORAGE_I8, b, k, n, x, (int)done, apart, width);
        else
            V(dequantise_blocks)(GCKPT_STORAGE_I4, b, k, n, x, (int)done, apart, width);
    }
}

/* V(pack_panels) of a quantised b: all panels, terms p.., columns from j on. */
static GCKPTI_TARGET void V(pack_compressed)(const gckpti_product *t, int64_t p, int64_t j,
                                             int64_t n, int64_t k, float *d, int64_t deep)
{
    enum { TERMS = 64, BUFFER = GCKPTI_PANEL * TERMS };
    float buffer[BUFFER];
    const int64_t chunk = t->b.stride == 1 ? 8 : TERMS;
    for (int64_t l = 0; l < k; l += chunk)
        for (int64_t at = 0, width; at < n; at += width) {
            width = V(panel_width)(n, at);
            const int64_t cols = gckpti_min(n - at, width), terms = gckpti_min(k - l, chunk);
            float *to = d + at * deep + l * width;
            if (t->b.stride == 1) {
                V(decompress)
                (t->b.compressed, (p + l) * t->b.k_stride + j + at, t->b.k_stride, terms, cols, to,
                 width);
                for (int64_t i = 0; cols < width && i < terms; i++)
                    memset(to + i * width + cols, 0, (size_t)(width - cols) * sizeof *to);
            } else {
                V(decompress)
                (t->b.compressed, (j + at) * t->b.stride + p + l, t->b.stride, cols, terms, buffer,
                 TERMS);
                V(pack)(buffer, 1, TERMS, cols, terms, to, width);
            }
        }
}

/* V(gemv_dot) of columns j0.. of a quantised b: 32 columns at a time (blocks: 64 with AVX-512), if
 * their terms are whole words or blocks; else they are dequantised to the stack. */
static GCKPTI_TARGET void V(compressed_dot)(const gckpti_compressed *u, int64_t j0,
                                            const V(gemv) * gemv)
{
    enum { TERMS = 64, COLS = 32, MOST = W < 16 ? 32 : 64 };
    const float *b = (const float *)u->quantised;
    float buffer[TERMS * COLS];
    const int blocks = u->storage >= GCKPT_STORAGE_I8;
    const int words = gemv->k % 16 == 0 && (uintptr_t)b % sizeof *b == 0;
    const int whole = gemv->row == gemv->k && gemv->k < 1 << 27 && u->row == gemv->k;
    const int direct = gckpti_little_endian() && gemv->a_step == 1 && (blocks ? whole : words);
    const int64_t most = blocks ? MOST : COLS, terms = TERMS * COLS / most;
    V(gemv) t = *gemv;
    for (int64_t j = 0; j < gemv->n; j += t.n) {
        int64_t p = 0;
        t.n = gckpti_min(gemv->n - j, most), t.c = gemv->c + j;
        t.from = gemv->from ? gemv->from + j : NULL;
        if (t.n == most && direct && blocks) {
            t.k = gemv->k / GCKPTI_QUANT_BLOCK, p = t.k * GCKPTI_QUANT_BLOCK;
            t.row = gckpti_storage_bytes((int)u->storage, u->row, gemv->k);
            t.b = (const char *)u->quantised + (j0 + j) * t.row;
            t.next = (const char *)t.b + gckpti_min(most, gemv->n - most - j) * t.row;
            if (u->storage == GCKPT_STORAGE_I4)
                V(gemv_dot_blocks)(GCKPT_STORAGE_I4, MOST / W, &t);
            else
                V(gemv_dot_blocks)(GCKPT_STORAGE_I8, MOST / W, &t);
            t.from = t.c;
        }
        if (t.n == COLS && direct && !blocks) {
            t.k = gemv->k / 2, t.row = gemv->row / 2;
            t.b = b + (j0 + j) * t.row;
            t.next = b + (j0 + gckpti_min(j + COLS, gemv->n - COLS)) * t.row;
            if (u->storage == GCKPT_STORAGE_BF16)
                V(gemv_dot_of)(GCKPT_STORAGE_BF16, COLS / W, &t);
            else
                V(gemv_dot_of)(GCKPT_STORAGE_F16, COLS / W, &t);
            continue;
        }
        for (; p < gemv->k; p += t.k, t.from = t.c) {
            t.k = gckpti_min(gemv->k - p, terms), t.a = gemv->a + p * t.a_step;
            V(decompress)(u, (j0 + j) * gemv->row + p, gemv->row, t.n, t.k, buffer, terms);
            t.b = buffer, t.row = terms, t.next = NULL;
            V(gemv_dot)(&t);
        }
        t.a = gemv->a;
    }
}

/* V(gemv_axpy) of 8 terms that are read in place: the first *n of gemv's columns, from element `at`
 * of u on. Sets *n to a multiple of a vector or block, unless blocks are divided. */
GCKPTI_ALWAYS void V(direct_axpy)(const gckpti_compressed *u, int64_t at, V(gemv) t, int64_t *n)
{
    const int blocks = u->storage >= GCKPT_STORAGE_I8, each = blocks ? GCKPTI_QUANT_BLOCK : W;
    if (blocks && (at % u->row % each || !V(is_regular)(u, at, t.row, t.n)))
        return;
    *n = t.n = t.n / each * each;
    t.b = gckpti_compressed_at(u, at);
    t.row = blocks ? gckpti_storage_bytes((int)u->storage, u->row, t.row) : t.row;
    if (u->storage == GCKPT_STORAGE_BF16)
        V(gemv_axpy_of)(GCKPT_STORAGE_BF16, 8, &t);
    else if (u->storage == GCKPT_STORAGE_F16)
        V(gemv_axpy_of)(GCKPT_STORAGE_F16, 8, &t);
    else if (u->storage == GCKPT_STORAGE_I8)
        V(gemv_axpy_blocks)(GCKPT_STORAGE_I8, &t);
    else
        V(gemv_axpy_blocks)(GCKPT_STORAGE_I4, &t);
}

/* V(gemv_axpy) of columns j0.. of a quantised b: 8 terms in place where that can be, else they are
 * dequantised. */
static GCKPTI_TARGET void V(compressed_axpy)(const gckpti_compressed *u, int64_t j0,
                                             const V(gemv) * gemv)
{
    enum { COLS = 256 };
    float buffer[8 * COLS];
    V(gemv) t = *gemv;
    for (int64_t p = 0; p < gemv->k; p += t.k, t.a += t.k * t.a_step) {
        const int64_t at = p * gemv->row + j0;
        int64_t j = 0;
        t.k = gckpti_min(gemv->k - p, 8), t.n = gemv->n, t.row = gemv->row, t.c = gemv->c;
        if (t.k == 8)
            V(direct_axpy)(u, at, t, &j);
        for (; j < gemv->n; j += t.n) {
            t.n = gckpti_min(gemv->n - j, COLS), t.c = gemv->c + j;
            V(decompress)(u, at + j, gemv->row, t.k, t.n, buffer, COLS);
            t.b = buffer, t.row = COLS;
            V(gemv_axpy)(&t);
        }
    }
}
#endif
