/* ---- a row of c alone: b is read once, as it lies, and not packed ---- */
#define GCKPTI_EACH_EIGHTH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
/* c[j] += chain of a and column j of b, which has 8 links or (constants) 1, rows of n elements
 * (V(widened), then n is a multiple of W; I8: with `scales`). */
GCKPTI_ALWAYS void V(sweep_of)(int storage, const float *scales, const float *a, int64_t a_step,
                               const void *b, int64_t row, int links, int64_t n, float *c)
{
#define GCKPTI_SWEEP_START(p)                                                                      \
    const FLOATS x##p = V(set1)((p) < links ? a[(p)*a_step] : 0.0f);                               \
    const FLOATS s##p = V(set1)((p) < links && storage == GCKPT_STORED_I8 ? scales[p] : 0.0f);
#define GCKPTI_SWEEP_LINK(p)                                                                       \
    if ((p) < links)                                                                               \
        sum = V(fma)(x##p,                                                                         \
                     storage == GCKPT_STORED_F32                                                   \
                         ? V(load_n)((const float *)b + (p)*row + j, left)                         \
                         : V(widened)(storage, (const char *)b + ((p)*row + j) * each, s##p),      \
                     sum);
    const int each = storage == GCKPT_STORED_F32 ? 4 : storage == GCKPT_STORED_I8 ? 1 : 2;
    const char *next = (const char *)b + 8 * row * each;
    GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_START)
    int64_t j = 0, left = W;
    for (; j + W <= n; j += W) {
        FLOATS sum = V(load)(c + j);
        for (int64_t i = j / 16 % (4 / each) * 2 * each, end = i + 2 * each;
             links == 8 && j % 16 == 0 && i < end; i++)
            __builtin_prefetch(next + (i * row + j / (64 / each) * (64 / each)) * each, 0, 2);
        GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_LINK)
        V(store)(c + j, sum);
    }
    if (storage == GCKPT_STORED_F32 && j < n) {
        FLOATS sum = V(load_n)(c + j, left = n - j);
        GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_LINK)
        V(store_n)(c + j, sum, left);
    }
#undef GCKPTI_SWEEP_START
#undef GCKPTI_SWEEP_LINK
}

static GCKPTI_TARGET void V(sweep)(const float *a, int64_t a_step, const float *b, int64_t row,
                                   int64_t k, int64_t n, float *c)
{
    for (; k >= 8; k -= 8, a += 8 * a_step, b += 8 * row)
        V(sweep_of)(GCKPT_STORED_F32, NULL, a, a_step, b, row, 8, n, c);
    for (; k > 0; k--, a += a_step, b += row)
        V(sweep_of)(GCKPT_STORED_F32, NULL, a, a_step, b, row, 1, n, c);
}

/* The next 2 links or 4 (I8), which words of b hold, lowest first. */
GCKPTI_ALWAYS FLOATS V(word_links)(int storage, FLOATS words, FLOATS scale, const float *x,
                                   FLOATS sum)
{
    const INTS word = V(bits)(words);
    if (storage == GCKPT_STORED_BF16) {
        sum = V(fma)(V(set1)(x[0]), V(floats)(word << 16), sum);
        return V(fma)(V(set1)(x[1]), V(floats)(word & 0xffff0000u), sum);
    }
    if (storage == GCKPT_STORED_F16) {
        sum = V(fma)(V(set1)(x[0]), V(low_half)(word), sum);
        return V(fma)(V(set1)(x[1]), V(low_half)(word >> 16), sum);
    }
    sum = V(fma)(V(set1)(x[0]), V(low_byte)(word) * scale, sum);
    sum = V(fma)(V(set1)(x[1]), V(low_byte)(word >> 8) * scale, sum);
    sum = V(fma)(V(set1)(x[2]), V(low_byte)(word >> 16) * scale, sum);
    return V(fma)(V(set1)(x[3]), V(low_byte)(word >> 24) * scale, sum);
}

/* c[j] = chain of a and row j of b, k floats, from from[j] (NULL: +0), for n rows: 32, if `all` (a
 * constant), else at most W. The same number of rows, at `next`, is fetched. storage (a constant):
 * b has words of what is stored, k, a multiple of 4, in each row; I8: with `scales`. */
GCKPTI_ALWAYS void V(dots_of)(int storage, const float *scales, const float *a, int64_t a_step,
                              const float *b, int64_t row, int64_t k, int64_t n, int all,
                              const float *from, float *c, const float *next)
{
#define GCKPTI_DOT_HAS(i) ((i) == 0 || (all && W * (i) < 32))
#define GCKPTI_DOT_START(i)                                                                        \
    FLOATS sum##i = V(zero)(), scale##i = sum##i;                                                  \
    if (GCKPTI_DOT_HAS(i) && from)                                                                 \
        sum##i = V(load_n)(from + W * (i), n - W * (i));                                           \
    if (GCKPTI_DOT_HAS(i) && storage == GCKPT_STORED_I8)                                           \
        scale##i = V(load)(scales + W * (i));
#define GCKPTI_DOT_TURN(i)                                                                         \
    if (GCKPTI_DOT_HAS(i))                                                                         \
        V(turn)(b + W * (i)*row + p, row, r + 4 * (i));
#define GCKPTI_DOT_LINKS(i)                                                                        \
    GCKPTI_DOT_TURN(i)                                                                             \
    if (GCKPTI_DOT_HAS(i)) {                                                                       \
        sum##i = V(fma)(x0, r[4 * (i)], sum##i), sum##i = V(fma)(x1, r[4 * (i) + 1], sum##i);      \
        sum##i = V(fma)(x2, r[4 * (i) + 2], sum##i), sum##i = V(fma)(x3, r[4 * (i) + 3], sum##i);  \
    }
#define GCKPTI_DOT_WORD(i, q)                                                                      \
    if (GCKPTI_DOT_HAS(i))                                                                         \
        sum##i = V(word_links)(storage, r[4 * (i) + (q)], scale##i, x + (q)*each, sum##i);
#define GCKPTI_DOT_WORD_0(i) GCKPTI_DOT_WORD(i, 0)
#define GCKPTI_DOT_WORD_1(i) GCKPTI_DOT_WORD(i, 1)
#define GCKPTI_DOT_WORD_2(i) GCKPTI_DOT_WORD(i, 2)
#define GCKPTI_DOT_WORD_3(i) GCKPTI_DOT_WORD(i, 3)
#define GCKPTI_DOT_LINK(i)                                                                         \
    if (GCKPTI_DOT_HAS(i)) {                                                                       \
        float e[W] = { 0.0f };                                                                     \
        for (int64_t l = W * (i); l < W * (i) + W && l < n; l++)                                   \
            e[l - W * (i)] = b[l * row + p];                                                       \
        sum##i = V(fma)(V(set1)(a[p * a_step]), V(load)(e), sum##i);                               \
    }
#define GCKPTI_DOT_STORE(i)                                                                        \
    if (GCKPTI_DOT_HAS(i))                                                                         \
        V(store_n)(c + W * (i), sum##i, n - W * (i));
    const int each = storage == GCKPT_STORED_I8 ? 4 : storage == GCKPT_STORED_F32 ? 1 : 2;
    FLOATS r[32];
    int64_t p = 0;
    GCKPTI_EACH_EIGHTH(GCKPTI_DOT_START)
    for (; n >= W && p + 4 <= k; p += 4) {
        const float *x = a + p * each * a_step, *lines = next + p / 16 * 16;
        const FLOATS x0 = V(set1)(x[0]), x1 = V(set1)(x[a_step]);
        const FLOATS x2 = V(set1)(x[2 * a_step]), x3 = V(set1)(x[3 * a_step]);
        for (int64_t i = p / 4 % 4; all && i < 32; i += 4)
            __builtin_prefetch(lines + i * row, 0, 2);
        if (storage == GCKPT_STORED_F32) {
            GCKPTI_EACH_EIGHTH(GCKPTI_DOT_LINKS)
            continue;
        }
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_TURN)
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_WORD_0)
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_WORD_1)
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_WORD_2)
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_WORD_3)
    }
    for (; storage == GCKPT_STORED_F32 && p < k; p++) {
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_LINK)
    }
    GCKPTI_EACH_EIGHTH(GCKPTI_DOT_STORE)
#undef GCKPTI_DOT_HAS
#undef GCKPTI_DOT_START
#undef GCKPTI_DOT_TURN
#undef GCKPTI_DOT_WORD
#undef GCKPTI_DOT_WORD_0
#undef GCKPTI_DOT_WORD_1
#undef GCKPTI_DOT_WORD_2
#undef GCKPTI_DOT_WORD_3
#undef GCKPTI_DOT_LINKS
#undef GCKPTI_DOT_LINK
#undef GCKPTI_DOT_STORE
}
#undef GCKPTI_EACH_EIGHTH

/* next: as many rows that come then; NULL: the next 32 of b. */
static GCKPTI_TARGET void V(dots)(const float *a, int64_t a_step, const float *b, int64_t row,
                                  int64_t k, int64_t n, const float *from, float *c,
                                  const float *next)
{
    int64_t j = 0, some;
    for (; j + 32 <= n; j += 32)
        V(dots_of)
    (GCKPT_STORED_F32, NULL, a, a_step, b + j * row, row, k, 32, 1, from ? from + j : NULL, c + j,
     next ? next + j * row : b + gckpti_min(j + 32, n - 32) * row);
    for (; some = gckpti_min(n - j, W), j < n; j += some)
        V(dots_of)
    (GCKPT_STORED_F32, NULL, a, a_step, b + j * row, row, k, some, 0, from ? from + j : NULL, c + j,
     b);
}
