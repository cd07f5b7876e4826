#if GCKPTI_AVX512_BF16 && GCKPTI_ISA == 3
/* ---- bf16 kernels with the AVX-512 instructions for bf16 ---- */
#define GCKPTI_TARGET_BF16                                                                         \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma")))
#if GCKPTI_OPTIMISED
#define GCKPTI_INLINED_BF16 static inline __attribute__((always_inline)) GCKPTI_TARGET_BF16
#else
#define GCKPTI_INLINED_BF16 static inline GCKPTI_TARGET_BF16
#endif
/* Stores x as bf16, as gckpti_to_bf16 does: subnormals become zeros, NaN stays NaN. */
GCKPTI_INLINED_BF16 void gckpti_bf16_store(uint16_t *to, __m512 x)
{
    const __m256i words = (__m256i)_mm512_cvtneps_pbh(x);
    memcpy(to, &words, sizeof words);
}

/* vdpbf16ps adds the upper halves first: c = fma(l, l', fma(h, h', c)), subnormals flushed; so a
 * word has two terms of one chain, the first in its upper half. For blocks, e are the chains of
 * even words of 4 rows, o those of odd words, c the elements; for chains, e are 4 rows, o the next
 * 4. (No arrays, which gcc spills; without the barrier it may load b for each row.) */
#define GCKPTI_DOTS_EACH(X, at) X(0, at) X(1, at + row) X(2, at##2) X(3, at##2 + row)
#define GCKPTI_DOTS_ZERO(i, at) le##i = he##i = lo##i = ho##i = _mm512_setzero_ps();
#define GCKPTI_DOTS_BEGIN(i, at)                                                                   \
    __m512 le##i, he##i, lo##i, ho##i, lc##i, hc##i;                                               \
    GCKPTI_DOTS_ZERO(i, at)                                                                        \
    lc##i = _mm512_loadu_ps(from + (i)*from_row);                                                  \
    hc##i = vectors > 1 ? _mm512_loadu_ps(from + (i)*from_row + 16) : lc##i;                       \
    if (chain) {                                                                                   \
        le##i = lc##i, he##i = hc##i, lo##i = _mm512_loadu_ps(from + (4 + i) * from_row);          \
        ho##i = vectors > 1 ? _mm512_loadu_ps(from + (4 + i) * from_row + 16) : lo##i;             \
    }
#define GCKPTI_DOTS_TERMS(i, at, which)                                                            \
    memcpy(&word, at, sizeof word);                                                                \
    x = (__m512bh)_mm512_set1_epi32(word);                                                         \
    l##which##i = _mm512_dpbf16_ps(l##which##i, x, (__m512bh)b0);                                  \
    if (vectors > 1)                                                                               \
        h##which##i = _mm512_dpbf16_ps(h##which##i, x, (__m512bh)b1);
#define GCKPTI_DOTS_EVEN(i, at) GCKPTI_DOTS_TERMS(i, at, e)
#define GCKPTI_DOTS_ODD(i, at)  GCKPTI_DOTS_TERMS(i, at + 2, o)
#define GCKPTI_DOTS_NEXT(i, at) GCKPTI_DOTS_TERMS(i, at, o)
#define GCKPTI_DOTS_B                                                                              \
    b0 = _mm512_loadu_si512(b), b1 = vectors > 1 ? _mm512_loadu_si512(b + 16) : b0, b += b_row;    \
    GCKPTI_IN_REGISTER(b0) GCKPTI_IN_REGISTER(b1)
#define GCKPTI_DOTS_ADD(i, at) lc##i = lc##i + (le##i + lo##i), hc##i = hc##i + (he##i + ho##i);
#define GCKPTI_DOTS_STORE(i, at, which)                                                            \
    _mm512_storeu_ps(c + (at)*c_row, l##which##i);                                                 \
    if (vectors > 1)                                                                               \
        _mm512_storeu_ps(c + (at)*c_row + 16, h##which##i);
#define GCKPTI_DOTS_END(i, at)                                                                     \
    if (chain) {                                                                                   \
        GCKPTI_DOTS_STORE(i, i, e) GCKPTI_DOTS_STORE(i, 4 + i, o)                                  \
    } else {                                                                                       \
        GCKPTI_DOTS_STORE(i, i, c)                                                                 \
    }

/* Computes a tile's rows, a few at a time; `vectors` (of columns) and `chain` are constants. */
GCKPTI_INLINED_BF16 void gckpti_mixed_dots(const gckpti_mixed_tile *t, int vectors, int chain)
{
    static const float zeros[GCKPTI_PANEL] GCKPTI_ALIGNED = { 0.0f };
    const int64_t row = t->a_row, b_row = t->b_row, c_row = t->c_row, rows = chain ? 8 : 4;
    for (int64_t r = 0; r < t->m; r += rows) {
        const uint16_t *a = t->a + r * row, *a2 = a + 2 * row, *n = a + 4 * row, *n2 = a + 6 * row;
        const uint32_t *b = t->b;
        const int64_t from_row = t->from ? t->from_row : 0;
        const float *from = t->from ? t->from + r * from_row : zeros;
        float *c = t->c + r * c_row;
        __m512i b0, b1;
        __m512bh x;
        int word;
        for (int64_t i = 8; i < 12 && r + 12 <= t->c_rows; i++)
            for (int64_t j = 0; j < 16 * vectors; j += 16)
                __builtin_prefetch(c + i * c_row + j);
        GCKPTI_DOTS_EACH(GCKPTI_DOTS_BEGIN, a)
        for (int64_t blocks = t->blocks; blocks > 0; blocks--) {
            const int64_t terms = blocks > 1 ? (int64_t)GCKPTI_K_BLOCK : t->last;
            gckpti_prefetch_some(t->prefetch);
            for (int64_t l = 0; chain && l < terms; l += 2, a += 2, a2 += 2, n += 2, n2 += 2) {
                GCKPTI_DOTS_B
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_EVEN, a)
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_NEXT, n)
            }
            for (int64_t l = 0; !chain && l < terms; l += 4, a += 4, a2 += 4) {
                GCKPTI_DOTS_B
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_EVEN, a)
                GCKPTI_DOTS_B
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_ODD, a)
            }
            if (!chain) {
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_ADD, a)
                GCKPTI_DOTS_EACH(GCKPTI_DOTS_ZERO, a)
            }
        }
        GCKPTI_DOTS_EACH(GCKPTI_DOTS_END, a)
        for (int64_t i = 0; t->c_bf16 && i < rows; i++, c += c_row)
            for (int64_t j = 0; j < 16 * vectors; j += 16)
                gckpti_bf16_store(t->c_bf16 + (r + i) * t->bf16_row + j, _mm512_loadu_ps(c + j));
    }
}
#undef GCKPTI_DOTS_EACH
#undef GCKPTI_DOTS_ZERO
#undef GCKPTI_DOTS_BEGIN
#undef GCKPTI_DOTS_TERMS
#undef GCKPTI_DOTS_EVEN
#undef GCKPTI_DOTS_ODD
#undef GCKPTI_DOTS_NEXT
#undef GCKPTI_DOTS_B
#undef GCKPTI_DOTS_ADD
#undef GCKPTI_DOTS_STORE
#undef GCKPTI_DOTS_END

GCKPTI_INLINED_BF16 void gckpti_mixed_dots_by_width(const gckpti_mixed_tile *t, int chain)
{
    if (t->width > 16)
        gckpti_mixed_dots(t, 2, chain);
    else
        gckpti_mixed_dots(t, 1, chain);
}
static GCKPTI_TARGET_BF16 void gckpti_mixed_tile_bf16(const gckpti_mixed_tile *t)
{
    gckpti_mixed_dots_by_width(t, 0);
}
static GCKPTI_TARGET_BF16 void gckpti_mixed_chain_bf16(const gckpti_mixed_tile *t)
{
    gckpti_mixed_dots_by_width(t, 1);
}

static GCKPTI_TARGET_BF16 void gckpti_mixed_narrow_bf16(const float *x, uint16_t *y, int64_t n)
{
    for (; n >= 16; n -= 16, x += 16, y += 16)
        gckpti_bf16_store(y, _mm512_loadu_ps(x));
    V(narrow)(x, y, n);
}

/* Order of a block's terms in words, for each value of gckpti_words (cpu/cpu.h). */
static const uint16_t gckpti_mixed_term_order[3][32] = {
    { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31 },
    { 2,  0,  3,  1,  6,  4,  7,  5,  10, 8,  11, 9,  14, 12, 15, 13,
      18, 16, 19, 17, 22, 20, 23, 21, 26, 24, 27, 25, 30, 28, 31, 29 },
    { 1,  0,  3,  2,  5,  4,  7,  6,  9,  8,  11, 10, 13, 12, 15, 14,
      17, 16, 19, 18, 21, 20, 23, 22, 25, 24, 27, 26, 29, 28, 31, 30 }
};

/* Returns words of two terms, from 16 lanes by 32 terms: those of lane i or, if `across` (lanes are
 * adjacent in x), word i of each lane. across and narrow (x is bf16) are constants. */
GCKPTI_INLINED_BF16 __m512i gckpti_mixed_words(const V(subblock) * s, int i, int across, int narrow)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pair = _mm512_add_epi32(_mm512_or_si512(lane, _mm512_slli_epi32(lane, 16)),
                                          _mm512_set1_epi32(16 << 16));
    const uint16_t *term = gckpti_mixed_term_order[s->words];
    const __m512i order = across ? pair : _mm512_loadu_si512(term);
    const gckpti_operand *x = s->x;
    int64_t low = s->at + i * x->stride, high = low + 16;
    __m512i all;
    if (across)
        low = s->at + term[2 * i] * x->k_stride, high = s->at + term[2 * i + 1] * x->k_stride;
    if (narrow && !across)
        all = _mm512_loadu_si512(x->bf16 + low);
    else if (narrow)
        all = _mm512_inserti64x4(
            _mm512_castsi256_si512(
                _mm256_loadu_si256((const __m256i *)(const void *)(x->bf16 + low))),
            _mm256_loadu_si256((const __m256i *)(const void *)(x->bf16 + high)), 1);
    else
        all = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x->f32 + high),
                                           _mm512_loadu_ps(x->f32 + low));
    return _mm512_permutexvar_epi16(order, all);
}

/* Transposes 4 x 4 words in each 128-bit part q of r0 to r3; part q of v[w] has word w of each. */
GCKPTI_INLINED_BF16 void gckpti_mixed_transpose4(__m512i r0, __m512i r1, __m512i r2, __m512i r3,
                                                 __m512i *v)
{
    const __m512i l01 = _mm512_unpacklo_epi32(r0, r1), h01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i l23 = _mm512_unpacklo_epi32(r2, r3), h23 = _mm512_unpackhi_epi32(r2, r3);
    v[0] = _mm512_unpacklo_epi64(l01, l23), v[1] = _mm512_unpackhi_epi64(l01, l23);
    v[2] = _mm512_unpacklo_epi64(h01, h23), v[3] = _mm512_unpackhi_epi64(h01, h23);
}

/* Returns in v words i..i+3 of gckpti_mixed_words, transposed. */
GCKPTI_INLINED_BF16 void gckpti_mixed_four(const V(subblock) * s, int i, int across, int narrow,
                                           __m512i *v)
{
    const __m512i r0 = gckpti_mixed_words(s, i, across, narrow);
    const __m512i r1 = gckpti_mixed_words(s, i + 1, across, narrow);
    const __m512i r2 = gckpti_mixed_words(s, i + 2, across, narrow);
    const __m512i r3 = gckpti_mixed_words(s, i + 3, across, narrow);
    gckpti_mixed_transpose4(r0, r1, r2, r3, v);
}

/* Returns 8 elements from x on, followed by 8 from y on. */
GCKPTI_INLINED_BF16 __m256i gckpti_mixed_concat(const uint16_t *x, const uint16_t *y)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)x);
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)y);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
GCKPTI_INLINED_BF16 __m512 gckpti_mixed_concat_f32(const float *x, const float *y)
{
    const __m256i low = (__m256i)_mm256_loadu_ps(x), high = (__m256i)_mm256_loadu_ps(y);
    return (__m512)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Loads 8 elements into each quarter of a vector: from `at`, and 1, 2, 3 distances after `at`. */
GCKPTI_INLINED_BF16 __m512i gckpti_mixed_quarters(const gckpti_operand *x, int64_t at,
                                                  int64_t apart, int narrow)
{
    if (narrow) {
        const uint16_t *b = x->bf16 + at, *c = b + 2 * apart;
        return _mm512_inserti64x4(_mm512_castsi256_si512(gckpti_mixed_concat(b, b + apart)),
                                  gckpti_mixed_concat(c, c + apart), 1);
    }
    const float *f = x->f32 + at, *g = f + 2 * apart;
    return (__m512i)_mm512_cvtne2ps_pbh(gckpti_mixed_concat_f32(g, g + apart),
                                        gckpti_mixed_concat_f32(f, f + apart));
}

/* Stores all 16 words of pairs, transposed, to rows of `row` words. Loading by quarters needs 48
 * shuffles for adjacent lanes, 64 for adjacent terms; a transposition by rows needs 80. */
GCKPTI_INLINED_BF16 void gckpti_mixed_put_pairs(const V(subblock) * s, int across, int narrow,
                                                uint32_t *d, int64_t row)
{
    const gckpti_operand x = *s->x;
    const int64_t at = s->at;
    __m512i term[8], r[4], v[4];
    GCKPTI_UNROLL
    for (int i = 0; i < 4; i++, d += 4 * row) {
        GCKPTI_UNROLL
        for (int k = 0; k < 8; k++)
            if (across && i % 2 == 0)
                term[k] =
                    gckpti_mixed_quarters(&x, at + 4 * i + k * x.k_stride, 8 * x.k_stride, narrow);
        GCKPTI_UNROLL
        for (int k = 0; k < 4; k++)
            r[k] = !across
                       ? gckpti_mixed_quarters(&x, at + 8 * i + k * x.stride, 4 * x.stride, narrow)
                   : i % 2 ? _mm512_unpackhi_epi16(term[2 * k], term[2 * k + 1])
                           : _mm512_unpacklo_epi16(term[2 * k], term[2 * k + 1]);
        gckpti_mixed_transpose4(r[0], r[1], r[2], r[3], v);
        GCKPTI_UNROLL
        for (int k = 0; k < 4; k++)
            _mm512_storeu_si512(d + k * row, v[k]);
    }
}

/* Stores all 16 words to rows of `row` words, transposed or not. */
GCKPTI_INLINED_BF16 void gckpti_mixed_put_as(const V(subblock) * s, int across, int narrow,
                                             uint32_t *d, int64_t row)
{
    __m512i v[4], u[4], y[4], z[4];
    if (s->as_a == across && s->words == GCKPTI_WORDS_PAIRS) {
        gckpti_mixed_put_pairs(s, across, narrow, d, row);
        return;
    }
    if (s->as_a != across) {
        GCKPTI_UNROLL
        for (int i = 0; i < 16; i++) /* not transposed */
            _mm512_storeu_si512(d + i * row, gckpti_mixed_words(s, i, across, narrow));
        return;
    }
    gckpti_mixed_four(s, 0, across, narrow, v), gckpti_mixed_four(s, 4, across, narrow, u);
    gckpti_mixed_four(s, 8, across, narrow, y), gckpti_mixed_four(s, 12, across, narrow, z);
    GCKPTI_UNROLL
    for (int i = 0; i < 4; i++, d += row) {
        const __m512i l01 = _mm512_shuffle_i32x4(v[i], u[i], 0x44);
        const __m512i h01 = _mm512_shuffle_i32x4(v[i], u[i], 0xee);
        const __m512i l23 = _mm512_shuffle_i32x4(y[i], z[i], 0x44);
        const __m512i h23 = _mm512_shuffle_i32x4(y[i], z[i], 0xee);
        _mm512_storeu_si512(d, _mm512_shuffle_i32x4(l01, l23, 0x88));
        _mm512_storeu_si512(d + 4 * row, _mm512_shuffle_i32x4(l01, l23, 0xdd));
        _mm512_storeu_si512(d + 8 * row, _mm512_shuffle_i32x4(h01, h23, 0x88));
        _mm512_storeu_si512(d + 12 * row, _mm512_shuffle_i32x4(h01, h23, 0xdd));
    }
}

static GCKPTI_TARGET_BF16 void gckpti_bf16_put(const V(subblock) * s, uint32_t *d, int64_t row)
{
    const int across = s->x->stride == 1, narrow = s->x->bf16 != NULL;
    if (narrow)
        across ? gckpti_mixed_put_as(s, 1, 1, d, row) : gckpti_mixed_put_as(s, 0, 1, d, row);
    else
        across ? gckpti_mixed_put_as(s, 1, 0, d, row) : gckpti_mixed_put_as(s, 0, 0, d, row);
}

static GCKPTI_TARGET_BF16 void gckpti_mixed_pack_a_bf16(const gckpti_pack_lanes *s, int words,
                                                        uint16_t *d, int64_t row)
{
    const int64_t k = s->blocks * GCKPTI_K_BLOCK, at = s->at + s->p;
    const __m512i order = _mm512_loadu_si512(gckpti_mixed_term_order[words]);
    void *to = d;
    if (!s->x->bf16 || s->x->k_stride != 1 || s->t->k_period || s->p + k > s->t->k) {
        V(mixed_pack)(s, words, 1, (uint32_t *)to, row / 2, gckpti_bf16_put);
        return;
    }
    for (int64_t i = 0; i < s->n; i++) /* most are whole blocks */
        for (int64_t l = 0; l < k; l += GCKPTI_K_BLOCK) {
            const __m512i x = _mm512_loadu_si512(s->x->bf16 + at + i * s->x->stride + l);
            _mm512_storeu_si512(d + i * row + l, _mm512_permutexvar_epi16(order, x));
        }
}

static GCKPTI_TARGET_BF16 void gckpti_mixed_pack_b_bf16(const gckpti_pack_lanes *s, int words,
                                                        uint32_t *d, int64_t width)
{
    V(mixed_pack)(s, words, 0, d, width, gckpti_bf16_put);
}

#undef GCKPTI_TARGET_BF16
#undef GCKPTI_INLINED_BF16
#endif
