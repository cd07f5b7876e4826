/* ---- products with a single row of c: b is read once, in place, and not packed ---- */
/* Adds k terms to columns 0..n-1 of c. A row of b has all terms of a column (V(gemv_dot)) or one
 * term of all columns (V(gemv_axpy)). b has floats or, if the constant `storage` says so,
 * compressed values: then k is a multiple of 4 terms (dot) or n of a vector (axpy). */
typedef struct {
    int64_t k, n;
    const float *a;
    int64_t a_step;
    const void *b;
    int64_t row;       /* distance of rows of b, in elements or (dot, compressed) words */
    const float *from; /* dot: where chains start, or NULL for +0; axpy: chains start in c */
    float *c;
    const void *next; /* dot: NULL, or rows of b to prefetch for the next call */
} V(gemv);

/* Adds `terms` terms to W (or `left`) columns from j on; x: those terms of a. */
GCKPTI_ALWAYS void V(axpy_vector)(int storage, int terms, const V(gemv) * t, int64_t j,
                                  int64_t left, const FLOATS *x)
{
    FLOATS sum = V(load_n)(t->c + j, left);
    GCKPTI_UNROLL
    for (int p = 0; p < terms; p++) {
        const int64_t at = p * t->row + j;
        FLOATS y = V(zero)();
        if (storage == GCKPT_STORAGE_F32)
            y = V(load_n)((const float *)t->b + at, left);
        else
            GCKPTI_IF_COMPRESSED(y = V(load_wide)(storage, t->b, at, left));
        sum = V(fma)(x[p], y, sum);
    }
    V(store_n)(t->c + j, sum, left);
}

/* Adds 8 terms or 1 (`terms`, a constant) to all columns, and prefetches the next 8 terms of b. */
GCKPTI_ALWAYS void V(gemv_axpy_of)(int storage, int terms, const V(gemv) * gemv)
{
    const V(gemv) t = *gemv; /* a copy that no store can alias */
    const int each = storage == GCKPT_STORAGE_F32 ? 4 : 2;
    const char *next = (const char *)t.b + 8 * t.row * each;
    FLOATS x[8];
    int64_t j = 0;
    GCKPTI_UNROLL
    for (int p = 0; p < terms; p++)
        x[p] = V(set1)(t.a[p * t.a_step]);
    for (; j + W <= t.n; j += W) {
        for (int64_t i = j / 16 % (4 / each) * 2 * each, end = i + 2 * each;
             terms == 8 && j % 16 == 0 && i < end; i++)
            __builtin_prefetch(next + (i * t.row + j / (64 / each) * (64 / each)) * each, 0, 2);
        V(axpy_vector)(storage, terms, &t, j, W, x);
    }
    if (storage == GCKPT_STORAGE_F32 && j < t.n)
        V(axpy_vector)(storage, terms, &t, j, t.n - j, x);
}

static GCKPTI_TARGET void V(gemv_axpy)(const V(gemv) * gemv)
{
    V(gemv) t = *gemv;
    const float *b = (const float *)t.b;
    for (; t.k >= 8; t.k -= 8, t.a += 8 * t.a_step, t.b = b += 8 * t.row)
        V(gemv_axpy_of)(GCKPT_STORAGE_F32, 8, &t);
    for (; t.k > 0; t.k--, t.a += t.a_step, t.b = b += t.row)
        V(gemv_axpy_of)(GCKPT_STORAGE_F32, 1, &t);
}

/* Adds all terms to W * vectors (a constant) columns or, if vectors is 1, to at most W. Floats are
 * read a cache line of a row at a time, since a line of each of many rows may not stay in L1. */
GCKPTI_ALWAYS void V(gemv_dot_of)(int storage, int vectors, const V(gemv) * gemv)
{
    const V(gemv) t = *gemv;
    const int each = storage == GCKPT_STORAGE_F32 ? 1 : 2;
    const float *b = (const float *)t.b;
    FLOATS sum[32 / W];
    int64_t p = 0;
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        sum[i] = t.from ? V(load_n)(t.from + W * i, t.n - W * i) : V(zero)();
    }
    for (int64_t quads; t.n >= W && p + 4 <= t.k; p += 4 * quads) {
        const float *x = t.a + p * each * t.a_step;
        const float *lines = t.next ? (const float *)t.next + p / 16 * 16 : NULL;
        FLOATS r[4 * (32 / W)];
        quads = storage == GCKPT_STORAGE_F32 && p + 16 <= t.k ? 4 : 1;
        for (int64_t i = p / 4 % (4 / quads); lines && i < W * vectors; i += 4 / quads)
            __builtin_prefetch(lines + i * t.row, 0, 2);
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++)
            for (int64_t l = 0; l < 4 * quads; l += 4) {
                V(transpose4)(b + W * i * t.row + p + l, 4 * t.row, r + 4 * i);
                GCKPTI_UNROLL
                for (int q = 0; q < 4 && storage == GCKPT_STORAGE_F32; q++)
                    sum[i] = V(fma)(V(set1)(x[(l + q) * t.a_step]), r[4 * i + q], sum[i]);
            }
        GCKPTI_IF_COMPRESSED(V(dot_words)(storage, vectors, r, x, sum));
    }
    for (; storage == GCKPT_STORAGE_F32 && p < t.k; p++) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            float e[W] = { 0.0f };
            for (int64_t l = W * i; l < W * i + W && l < t.n; l++)
                e[l - W * i] = b[l * t.row + p];
            sum[i] = V(fma)(V(set1)(t.a[p * t.a_step]), V(load)(e), sum[i]);
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        V(store_n)(t.c + W * i, sum[i], t.n - W * i);
}

static GCKPTI_TARGET void V(gemv_dot)(const V(gemv) * gemv)
{
    enum { VECTORS = W < 8 ? 2 : 1 }; /* so few rows of b that the processor prefetches them all */
    V(gemv) t = *gemv;
    for (int64_t j = 0; j < gemv->n; j += t.n) {
        t.n = gckpti_min(gemv->n - j, gemv->n - j < VECTORS * W ? W : VECTORS * W);
        t.b = (const float *)gemv->b + j * t.row, t.c = gemv->c + j;
        t.from = gemv->from ? gemv->from + j : NULL;
        t.next = gemv->next ? (const float *)gemv->next + j * t.row : NULL;
        if (VECTORS > 1 && t.n == VECTORS * W)
            V(gemv_dot_of)(GCKPT_STORAGE_F32, VECTORS, &t);
        else
            V(gemv_dot_of)(GCKPT_STORAGE_F32, 1, &t);
    }
}
