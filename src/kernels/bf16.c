#ifndef GCKPT_NO_BF16
/* ---- bf16 ---- */
GCKPTI_INLINED FLOATS V(load_bf16)(const uint16_t *x, int64_t n)
{
    return V(stored)(GCKPT_STORED_BF16, x, 0, V(zero)(), n);
}

static GCKPTI_TARGET void V(widen)(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(y + i, V(load_bf16)(x + i, n - i), n - i);
}

/* gckpti_to_bf16: to nearest even; NaN stays NaN, subnormals become zeros of their sign. */
static GCKPTI_TARGET void V(narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    const __m256i all = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000);
    const __m256i quiet = _mm256_set1_epi32(0x400000), least = _mm256_set1_epi32(0x7fffff);
    for (; i + 8 <= n; i += 8) {
        __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i size = _mm256_and_si256(u, all),
                odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
        __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, half));
        r = _mm256_blendv_epi8(r, _mm256_or_si256(u, quiet), _mm256_cmpgt_epi32(size, inf));
        r = _mm256_blendv_epi8(_mm256_andnot_si256(all, u), r, _mm256_cmpgt_epi32(size, least));
        r = _mm256_srli_epi32(r, 16);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 8);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_castsi256_si128(r));
    }
#endif
    for (; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
/* As gckpti_mixed_kernels says. Subnormals are flushed (x86 does so after rounding, as its bf16
 * instructions do). */
static GCKPTI_TARGET void V(mixed_tile)(const gckpti_mixed_tile *t)
{
    enum { THREE = W > 8 }; /* vectors of 4 rows, as registers allow; else two */
    const FLOATS upper = V(set1)(gckpti_float(0xffff0000u));
    const unsigned mode = _mm_getcsr();
    const int64_t row = t->a_row;
    float c[8 * GCKPTI_PANEL];
    _mm_setcsr(mode | 0x8040u);
    for (int64_t i = 0; i < 8; i += 4)
        for (int64_t j = 0; j < t->width; j += (2 + THREE) * W) {
            const int64_t second = j + W < t->width ? W : 0;
            const int64_t third = THREE && j + 2 * W < t->width ? 2 * W : second;
            const uint16_t *a = t->a + i * row;
            const uint32_t *b = t->b + j;
#define GCKPTI_MIXED_EACH(X) X(0) X(1) X(2) X(3)
#define GCKPTI_MIXED_LOAD(r)                                                                       \
    FLOATS c##r = V(zero)(), d##r = c##r, e##r = c##r;                                             \
    if (t->from) {                                                                                 \
        const float *from = t->from + (i + r) * t->from_row + j;                                   \
        c##r = V(load)(from), d##r = V(load)(from + second), e##r = V(load)(from + third);         \
    }
#define GCKPTI_MIXED_STEP(r)                                                                       \
    memcpy(&word, a + r * row, sizeof word);                                                       \
    x = V(set1)(word), y = V(floats)(V(bits)(x) << 16), x = V(both)(x, upper);                     \
    c##r = V(fma)(y, h0, c##r), d##r = V(fma)(y, h1, d##r);                                        \
    c##r = V(fma)(x, l0, c##r), d##r = V(fma)(x, l1, d##r);                                        \
    if (THREE)                                                                                     \
        e##r = V(fma)(x, l2, V(fma)(y, h2, e##r));
#define GCKPTI_MIXED_STORE(r)                                                                      \
    to = c + (i + r) * GCKPTI_PANEL + j;                                                           \
    V(store)(to, c##r), V(store)(to + second, d##r);                                               \
    if (THREE)                                                                                     \
        V(store)(to + third, e##r);
            GCKPTI_MIXED_EACH(GCKPTI_MIXED_LOAD)
            for (int64_t p = 0; p < t->pairs; p++, a += t->a_step, b += t->width) {
                FLOATS x, y, h0, h1, h2;
                float word;
                memcpy(&h0, b, sizeof h0), memcpy(&h1, b + second, sizeof h1);
                memcpy(&h2, b + third, sizeof h2);
                FLOATS l0 = V(floats)(V(bits)(h0) << 16), l1 = V(floats)(V(bits)(h1) << 16);
                FLOATS l2 = V(floats)(V(bits)(h2) << 16);
                h0 = V(both)(h0, upper), h1 = V(both)(h1, upper), h2 = V(both)(h2, upper);
                GCKPTI_MIXED_EACH(GCKPTI_MIXED_STEP)
            }
            float *to;
            GCKPTI_MIXED_EACH(GCKPTI_MIXED_STORE)
#undef GCKPTI_MIXED_EACH
#undef GCKPTI_MIXED_LOAD
#undef GCKPTI_MIXED_STEP
#undef GCKPTI_MIXED_STORE
        }
    _mm_setcsr(mode);
    for (int64_t i = 0; i < 8; i++)
        if (t->c_bf16)
            V(narrow)(c + i * GCKPTI_PANEL, t->c_bf16 + i * t->c_row, t->width);
        else
            memcpy(t->c + i * t->c_row, c + i * GCKPTI_PANEL, (size_t)t->width * sizeof *c);
}

/* As gckpti_mixed_kernels says: 8 lanes of 32 links at a time, as they lie, then as words. */
static GCKPTI_TARGET void V(mixed_pack)(const gckpti_factor *x, int64_t at, int64_t n, int64_t k,
                                        int as_a, uint32_t *d, int64_t width)
{
    const int64_t lane = x->row == 1 ? 1 : 32, link = x->row == 1 ? 8 : 1;
    for (int64_t p = 0; p < k; p += 32)
        for (int64_t i = 0; i < gckpti_multiple(n, width); i += 8) {
            uint16_t u[8 * 32] = { 0 }, *line = u;
            int64_t links = gckpti_min(k - p, 32), lanes = i < n ? gckpti_min(n - i, 8) : 0;
            int64_t from = at + i * x->row + p * x->step, run = lane == 1 ? lanes : links;
            for (int64_t l = lane == 1 ? links : lanes; l > 0; l--, line += lane == 1 ? 8 : 32) {
                if (x->bf16)
                    memcpy(line, x->bf16 + from, (size_t)run * sizeof *u);
                else
                    V(narrow)(x->f32 + from, line, run);
                from += lane == 1 ? x->step : x->row;
            }
            for (int64_t l = 0; l < 8 && links % 2 && as_a; l++)
                u[l * lane + links * link] = 0x8000;
            uint32_t *to = d + (i / width * ((k + 1) / 2) + p / 2) * width + i % width;
            for (int64_t q = 0; q < (links + 1) / 2; q++, to += width)
                for (int64_t l = 0; l < 8; l++) {
                    const uint16_t *first = u + l * lane + 2 * q * link;
                    to[l] = as_a ? first[0] | (uint32_t)first[link] << 16
                                 : first[link] | (uint32_t)first[0] << 16;
                }
        }
}
#endif

#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
#define GCKPTI_TARGET_BF16                                                                         \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma")))
#define GCKPTI_INLINED_BF16 static inline __attribute__((always_inline)) GCKPTI_TARGET_BF16
/* As gckpti_to_bf16: subnormals become zeros, NaN stays NaN. */
GCKPTI_INLINED_BF16 void gckpti_mixed_store(uint16_t *to, __m512 x)
{
    const __m256i words = (__m256i)_mm512_cvtneps_pbh(x);
    memcpy(to, &words, sizeof words);
}

/* vdpbf16ps takes the upper halves first: c = fma(l, l', fma(h, h', c)), subnormals flushed. So a's
 * words are turned round, in a general register: vectors have no unit to spare here. */
static GCKPTI_TARGET_BF16 void gckpti_mixed_tile_bf16(const gckpti_mixed_tile *t)
{
    const int64_t second = t->width > 16 ? 16 : 0, third = t->width > 32 ? 32 : second;
    const int64_t row = t->a_row, step = t->a_step, width = t->width;
    const uint16_t *a = t->a, *a3 = a + 3 * row;
    const uint32_t *b = t->b;
    gckpti_fetch f = { NULL, 0, 0, 0, 0, 0 };
    if (t->fetch)
        f = *t->fetch;
    for (int64_t i = 0; i < 8 && t->next; i++)
        for (int64_t j = 0; j < width; j += 16)
            __builtin_prefetch(t->next + i * t->c_row + j);
#define GCKPTI_MIXED_EACH(X)                                                                       \
    X(0, a)                                                                                        \
    X(1, a + row)                                                                                  \
    X(2, a + 2 * row)                                                                              \
    X(3, a3) X(4, a + 4 * row) X(5, a3 + 2 * row) X(6, a + 6 * row) X(7, a3 + 4 * row)
#define GCKPTI_MIXED_LOAD(i, at)                                                                   \
    __m512 l##i = _mm512_setzero_ps(), m##i = l##i, h##i = l##i;                                   \
    if (t->from) {                                                                                 \
        const float *from = t->from + (i)*t->from_row;                                             \
        l##i = _mm512_loadu_ps(from), m##i = _mm512_loadu_ps(from + second);                       \
        h##i = _mm512_loadu_ps(from + third);                                                      \
    }
#define GCKPTI_MIXED_STEP(i, at)                                                                   \
    memcpy(&word, at, sizeof word);                                                                \
    x = (__m512bh)_mm512_set1_epi32((int)(word << 16 | word >> 16));                               \
    l##i = _mm512_dpbf16_ps(l##i, x, (__m512bh)b0);                                                \
    m##i = _mm512_dpbf16_ps(m##i, x, (__m512bh)b1);                                                \
    h##i = _mm512_dpbf16_ps(h##i, x, (__m512bh)b2);
#define GCKPTI_MIXED_STORE(i, at)                                                                  \
    if (t->c_bf16) {                                                                               \
        uint16_t *to = t->c_bf16 + (i)*t->c_row;                                                   \
        gckpti_mixed_store(to, l##i), gckpti_mixed_store(to + second, m##i);                       \
        gckpti_mixed_store(to + third, h##i);                                                      \
    } else {                                                                                       \
        float *to = t->c + (i)*t->c_row;                                                           \
        _mm512_storeu_ps(to, l##i), _mm512_storeu_ps(to + second, m##i);                           \
        _mm512_storeu_ps(to + third, h##i);                                                        \
    }
    GCKPTI_MIXED_EACH(GCKPTI_MIXED_LOAD)
    for (int64_t pairs = t->pairs; pairs > 0; pairs--, a += step, a3 += step, b += width) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + second);
        __m512i b2 = _mm512_loadu_si512(b + third);
        __m512bh x;
        uint32_t word;
        if (f.rows > 0) {
            __builtin_prefetch(f.x + f.at, 0, 2);
            f.at += 64;
            if (f.at >= f.width)
                f.at = 0, f.x += f.row, f.rows--;
        }
        GCKPTI_MIXED_EACH(GCKPTI_MIXED_STEP)
    }
    if (t->fetch)
        *t->fetch = f;
    GCKPTI_MIXED_EACH(GCKPTI_MIXED_STORE)
#undef GCKPTI_MIXED_EACH
#undef GCKPTI_MIXED_LOAD
#undef GCKPTI_MIXED_STEP
#undef GCKPTI_MIXED_STORE
}

static GCKPTI_TARGET_BF16 void gckpti_mixed_narrow_bf16(const float *x, uint16_t *y, int64_t n)
{
    for (; n >= 16; n -= 16, x += 16, y += 16)
        gckpti_mixed_store(y, _mm512_loadu_ps(x));
    V(narrow)(x, y, n);
}

/* 16 elements from x[low] where `mask` says so, then 16 from x[high]; 0 for the others. */
GCKPTI_INLINED_BF16 __m512i gckpti_mixed_load(const gckpti_factor *x, int64_t low, int64_t high,
                                              __mmask16 mask, __mmask16 high_mask)
{
    if (x->bf16)
        return _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, x->bf16 + low)),
            _mm256_maskz_loadu_epi16(high_mask, x->bf16 + high), 1);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high_mask, x->f32 + high),
                                        _mm512_maskz_loadu_ps(mask, x->f32 + low));
}

GCKPTI_INLINED_BF16 __mmask16 gckpti_mixed_mask(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : n > 0 ? (__mmask16)((1u << n) - 1u) : (__mmask16)0;
}

/* 4 lanes of 32 links, those of a word turned round: v[w], 128 bits q: word 4 q + w of each. */
GCKPTI_INLINED_BF16 void gckpti_mixed_four(const gckpti_factor *x, int64_t at, int64_t lanes,
                                           int64_t links, __m512i *v)
{
    const __mmask16 low = gckpti_mixed_mask(links), high = gckpti_mixed_mask(links - 16);
#define GCKPTI_MIXED_LANE(l)                                                                       \
    _mm512_rol_epi32(gckpti_mixed_load(x, at + (l)*x->row, at + (l)*x->row + 16,                   \
                                       (l) < lanes ? low : (__mmask16)0,                           \
                                       (l) < lanes ? high : (__mmask16)0),                         \
                     16)
    __m512i r0 = GCKPTI_MIXED_LANE(0), r1 = GCKPTI_MIXED_LANE(1);
    __m512i r2 = GCKPTI_MIXED_LANE(2), r3 = GCKPTI_MIXED_LANE(3);
#undef GCKPTI_MIXED_LANE
    __m512i l01 = _mm512_unpacklo_epi32(r0, r1), h01 = _mm512_unpackhi_epi32(r0, r1);
    __m512i l23 = _mm512_unpacklo_epi32(r2, r3), h23 = _mm512_unpackhi_epi32(r2, r3);
    v[0] = _mm512_unpacklo_epi64(l01, l23), v[1] = _mm512_unpackhi_epi64(l01, l23);
    v[2] = _mm512_unpacklo_epi64(h01, h23), v[3] = _mm512_unpackhi_epi64(h01, h23);
}

/* Words 0, 4, 8 and 12 of 16 lanes from v[w] of these, of `pairs` that there are. */
GCKPTI_INLINED_BF16 void gckpti_mixed_turn(__m512i v0, __m512i v1, __m512i v2, __m512i v3,
                                           int64_t pairs, uint32_t *d, int64_t width)
{
    __m512i l01 = _mm512_shuffle_i32x4(v0, v1, 0x44), h01 = _mm512_shuffle_i32x4(v0, v1, 0xee);
    __m512i l23 = _mm512_shuffle_i32x4(v2, v3, 0x44), h23 = _mm512_shuffle_i32x4(v2, v3, 0xee);
    if (pairs > 0)
        _mm512_storeu_si512(d, _mm512_shuffle_i32x4(l01, l23, 0x88));
    if (pairs > 4)
        _mm512_storeu_si512(d + 4 * width, _mm512_shuffle_i32x4(l01, l23, 0xdd));
    if (pairs > 8)
        _mm512_storeu_si512(d + 8 * width, _mm512_shuffle_i32x4(h01, h23, 0x88));
    if (pairs > 12)
        _mm512_storeu_si512(d + 12 * width, _mm512_shuffle_i32x4(h01, h23, 0xdd));
}

/* As gckpti_mixed_kernels says; where links lie side by side, it is one panel. */
static GCKPTI_TARGET_BF16 void gckpti_mixed_pack_bf16(const gckpti_factor *x, int64_t at, int64_t n,
                                                      int64_t k, int as_a, uint32_t *d,
                                                      int64_t width)
{
    /* half l of a word of lane l comes from element l of the one link, the other from 16 + l */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pair = _mm512_add_epi32(_mm512_or_si512(lane, _mm512_slli_epi32(lane, 16)),
                                          _mm512_set1_epi32(as_a ? 16 << 16 : 16));
    const __m512i odd = _mm512_set1_epi32(as_a && k % 2 ? (int)0x80000000u : 0);
    for (int64_t first = 0; first < n && x->row == 1; first += width)
        for (int64_t p = 0; p < k; p += 2, d += width)
            for (int64_t i = 0; i < width; i += 16) {
                int64_t from = at + first + i + p * x->step;
                __mmask16 mask = gckpti_mixed_mask(n - first - i);
                __m512i words = gckpti_mixed_load(x, from, from + x->step, mask,
                                                  p + 1 < k ? mask : (__mmask16)0);
                words = _mm512_permutexvar_epi16(pair, words);
                if (p + 1 == k)
                    words = _mm512_or_si512(words, odd);
                _mm512_storeu_si512(d + i, words);
            }
    for (int64_t i = 0; i < width && x->row != 1; i += 16)
        for (int64_t p = 0; p < k; p += 32) {
            int64_t from = at + i * x->row + p, pairs = (k - p + 1) / 2;
            uint32_t *to = d + p / 2 * width + i;
            __m512i v[4], u[4], y[4], z[4];
            gckpti_mixed_four(x, from, n - i, k - p, v);
            gckpti_mixed_four(x, from + 4 * x->row, n - i - 4, k - p, u);
            gckpti_mixed_four(x, from + 8 * x->row, n - i - 8, k - p, y);
            gckpti_mixed_four(x, from + 12 * x->row, n - i - 12, k - p, z);
            gckpti_mixed_turn(v[0], u[0], y[0], z[0], pairs, to, width);
            gckpti_mixed_turn(v[1], u[1], y[1], z[1], pairs - 1, to + width, width);
            gckpti_mixed_turn(v[2], u[2], y[2], z[2], pairs - 2, to + 2 * width, width);
            gckpti_mixed_turn(v[3], u[3], y[3], z[3], pairs - 3, to + 3 * width, width);
        }
}

#undef GCKPTI_TARGET_BF16
#undef GCKPTI_INLINED_BF16
#endif
#endif
