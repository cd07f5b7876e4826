/* =================================================================================================
 * >>kernels: written once, compiled once for each instruction set
 *
 * The header includes itself here: GCKPTI_ISA says for which. V(name) is gckpti_<name> with the
 * instruction set's ending; FLOATS is a vector of W floats, INTS one of as many uint32_t; + - * /
 * & | ^ << >> are the compiler's. Vectors and tiles go over rows and columns, so that every chain
 * and every one of a row's 32 lanes keeps its order.
 * ============================================================================================== */
/* g++ (bug 105593) warns of lanes that its own headers leave undefined, gcc -O1 of what is set lane
 * by lane. */
#if (defined(__cplusplus) || !GCKPTI_OPTIMISED) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma push_macro("V")
#pragma push_macro("W")
#pragma push_macro("FLOATS")
#pragma push_macro("INTS")
#undef V
#undef W
#undef FLOATS
#undef INTS
#if GCKPTI_ISA == 3 /* AVX-512 */
#define W             16
#define V(name)       gckpti_##name##_avx512
#define GCKPTI_TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define FLOATS        __m512
#define GCKPTI_MM(of) _mm512_##of
#elif GCKPTI_ISA == 2
#define W             8
#define V(name)       gckpti_##name##_avx2
#define GCKPTI_TARGET __attribute__((target("avx2,fma")))
#define FLOATS        __m256
#define GCKPTI_MM(of) _mm256_##of
#elif GCKPTI_ISA == 1
#define W       4
#define V(name) gckpti_##name##_neon
#define GCKPTI_TARGET
#define FLOATS float32x4_t
#else
#define W       4
#define V(name) gckpti_##name##_any
#define GCKPTI_TARGET
#define FLOATS gckpti_floats
typedef float gckpti_floats __attribute__((vector_size(16)));
#endif
typedef uint32_t V(ints) __attribute__((vector_size(4 * W)));
#define INTS V(ints)
/* Opened where they are called: ALWAYS, and INLINED where all is optimised. Where not (-O0), gcc
 * still opens the first and compiles what is hot, up to kernels/online, at -O1; clang, which
 * cannot, opens none. All of them opened, not optimised, would be 8 (gcc) or 16 MB. */
#if GCKPTI_OPTIMISED || !defined(__clang__)
#define GCKPTI_ALWAYS static inline __attribute__((always_inline)) GCKPTI_TARGET
#else
#define GCKPTI_ALWAYS static inline GCKPTI_TARGET
#endif
#if GCKPTI_OPTIMISED
#define GCKPTI_INLINED GCKPTI_ALWAYS
#else
#define GCKPTI_INLINED static inline GCKPTI_TARGET
#endif
#if !GCKPTI_OPTIMISED && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O1")
#endif

/* ---- vectors ---- */
GCKPTI_ALWAYS FLOATS V(load)(const float *x)
{
    FLOATS a;
    memcpy(&a, x, sizeof a);
    return a;
}
GCKPTI_ALWAYS void V(store)(float *x, FLOATS a) { memcpy(x, &a, sizeof a); }

/* set1: x in all lanes; load_n, store_n: the first n floats (all if n > W), the others read as 0;
 * max and min: b if either is NaN; fnma: c - a * b; upto: a in the first n lanes, then b; less:
 * a < b ? c : d; fold_sum, fold_max: lane j with lane j + W / 2 and so on */
#if GCKPTI_X86 && GCKPTI_ISA >= 2
GCKPTI_ALWAYS FLOATS V(set1)(float x) { return GCKPTI_MM(set1_ps)(x); }
GCKPTI_ALWAYS FLOATS V(sqrt)(FLOATS a) { return GCKPTI_MM(sqrt_ps)(a); }
GCKPTI_ALWAYS FLOATS V(max)(FLOATS a, FLOATS b) { return GCKPTI_MM(max_ps)(a, b); }
GCKPTI_ALWAYS FLOATS V(min)(FLOATS a, FLOATS b) { return GCKPTI_MM(min_ps)(a, b); }
GCKPTI_ALWAYS FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return GCKPTI_MM(fmadd_ps)(a, b, c); }
GCKPTI_ALWAYS FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c) { return GCKPTI_MM(fnmadd_ps)(a, b, c); }
GCKPTI_ALWAYS float V(fold_sum8)(__m256 a)
{
    __m128 b = _mm256_extractf128_ps(a, 1) + _mm256_castps256_ps128(a);
    b = _mm_movehl_ps(b, b) + b;
    return _mm_cvtss_f32(_mm_shuffle_ps(b, b, 1) + b);
}
GCKPTI_ALWAYS float V(fold_max8)(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
    b = _mm_max_ps(_mm_movehl_ps(b, b), b);
    return _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps(b, b, 1), b));
}
#endif
#if GCKPTI_ISA == 3
#define GCKPTI_MASK(n) ((__mmask16)((1u << (n)) - 1u))
GCKPTI_ALWAYS FLOATS V(load_n)(const float *x, int64_t n)
{
    return n >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(GCKPTI_MASK(n), x);
}
GCKPTI_ALWAYS void V(store_n)(float *x, FLOATS a, int64_t n)
{
    if (n >= 16)
        _mm512_storeu_ps(x, a);
    else
        _mm512_mask_storeu_ps(x, GCKPTI_MASK(n), a);
}
GCKPTI_ALWAYS FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    return n >= 16 ? a : _mm512_mask_mov_ps(b, GCKPTI_MASK(n), a);
}
GCKPTI_ALWAYS FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm512_mask_mov_ps(d, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), c);
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a)
{
    return V(fold_sum8)(_mm512_extractf32x8_ps(a, 1) + _mm512_castps512_ps256(a));
}
GCKPTI_ALWAYS float V(fold_max)(FLOATS a)
{
    return V(fold_max8)(_mm256_max_ps(_mm512_extractf32x8_ps(a, 1), _mm512_castps512_ps256(a)));
}
#undef GCKPTI_MASK
#elif GCKPTI_ISA == 2
#define GCKPTI_MASK(n)                                                                             \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
GCKPTI_ALWAYS FLOATS V(load_n)(const float *x, int64_t n)
{
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, GCKPTI_MASK(n));
}
GCKPTI_ALWAYS void V(store_n)(float *x, FLOATS a, int64_t n)
{
    if (n >= 8)
        _mm256_storeu_ps(x, a);
    else
        _mm256_maskstore_ps(x, GCKPTI_MASK(n), a);
}
GCKPTI_ALWAYS FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    return n >= 8 ? a : _mm256_blendv_ps(b, a, _mm256_castsi256_ps(GCKPTI_MASK(n)));
}
GCKPTI_ALWAYS FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm256_blendv_ps(d, c, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a) { return V(fold_sum8)(a); }
GCKPTI_ALWAYS float V(fold_max)(FLOATS a) { return V(fold_max8)(a); }
#undef GCKPTI_MASK
#else
GCKPTI_ALWAYS FLOATS V(load_n)(const float *x, int64_t n)
{
    float a[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    memcpy(a, x, (size_t)(n < 4 ? n : 4) * sizeof *a);
    return V(load)(a);
}
GCKPTI_ALWAYS void V(store_n)(float *x, FLOATS a, int64_t n)
{
    memcpy(x, &a, (size_t)(n < 4 ? n : 4) * sizeof *x);
}
GCKPTI_ALWAYS FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    memcpy(&b, &a, (size_t)(n < 4 ? n : 4) * sizeof(float));
    return b;
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a) { return (a[0] + a[2]) + (a[1] + a[3]); }
GCKPTI_ALWAYS float V(fold_max)(FLOATS a)
{
    float b = a[2] > a[0] ? a[2] : a[0], c = a[3] > a[1] ? a[3] : a[1];
    return c > b ? c : b;
}
#if GCKPTI_ISA == 1
GCKPTI_ALWAYS FLOATS V(set1)(float x) { return vdupq_n_f32(x); }
GCKPTI_ALWAYS FLOATS V(sqrt)(FLOATS a) { return vsqrtq_f32(a); }
GCKPTI_ALWAYS FLOATS V(max)(FLOATS a, FLOATS b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
GCKPTI_ALWAYS FLOATS V(min)(FLOATS a, FLOATS b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
GCKPTI_ALWAYS FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return vfmaq_f32(c, a, b); }
GCKPTI_ALWAYS FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c) { return vfmsq_f32(c, a, b); }
GCKPTI_ALWAYS FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return vbslq_f32(vcltq_f32(a, b), c, d);
}
#else
/* Lane by lane what C has no operator for. */
#define GCKPTI_LANEWISE(name, parameters, result)                                                  \
    GCKPTI_ALWAYS FLOATS V(name) parameters                                                        \
    {                                                                                              \
        for (int i = 0; i < 4; i++)                                                                \
            a[i] = result;                                                                         \
        return a;                                                                                  \
    }
GCKPTI_LANEWISE(sqrt, (FLOATS a), gckpti_sqrt(a[i]))
GCKPTI_LANEWISE(max, (FLOATS a, FLOATS b), a[i] > b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(min, (FLOATS a, FLOATS b), a[i] < b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(fma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(a[i], b[i], c[i]))
GCKPTI_LANEWISE(fnma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(-a[i], b[i], c[i]))
GCKPTI_LANEWISE(less, (FLOATS a, FLOATS b, FLOATS c, FLOATS d), a[i] < b[i] ? c[i] : d[i])
#undef GCKPTI_LANEWISE
GCKPTI_ALWAYS FLOATS V(set1)(float x)
{
    FLOATS a = { x, x, x, x };
    return a;
}
#endif
#endif
GCKPTI_ALWAYS FLOATS V(zero)(void) { return V(set1)(0.0f); }
GCKPTI_ALWAYS FLOATS V(add)(FLOATS a, FLOATS b) { return a + b; }
GCKPTI_ALWAYS INTS V(bits)(FLOATS a) { return (INTS)a; }
GCKPTI_ALWAYS FLOATS V(floats)(INTS a) { return (FLOATS)a; }
GCKPTI_ALWAYS FLOATS V(both)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) & V(bits)(b)); }
GCKPTI_ALWAYS FLOATS V(either)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) | V(bits)(b)); }
GCKPTI_ALWAYS FLOATS V(differ)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) ^ V(bits)(b)); }
/* a == b ? c : d */
GCKPTI_ALWAYS FLOATS V(equal)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    INTS mask = (INTS)(a == b);
    return V(floats)((mask & V(bits)(c)) | (~mask & V(bits)(d)));
}
GCKPTI_ALWAYS FLOATS V(exponent)(INTS n) { return V(floats)(n << 23); } /* 2^(n - 127) */

#if GCKPTI_ISA == 3
/* gckpti_from_f16: the instruction, but every NaN is the one that we have. */
GCKPTI_ALWAYS FLOATS V(half)(__m256i x)
{
    const FLOATS a = _mm512_cvtph_ps(x);
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), V(set1)(GCKPTI_NAN));
}
#endif

/* Of W words: -128..127, as their lowest 8 bits say, by 2^23 + 128 + that. */
GCKPTI_ALWAYS FLOATS V(low_byte)(INTS word)
{
    return V(floats)((word & 255) ^ 0x4b000080) - V(set1)(8388736.0f);
}

/* gckpti_from_f16 of their lowest 16 bits */
GCKPTI_ALWAYS FLOATS V(low_half)(INTS word)
{
#if GCKPTI_ISA == 3
    return V(half)(_mm512_cvtepi32_epi16((__m512i)word));
#else
    const FLOATS most = V(set1)(65536.0f), sign = V(floats)((word & 0x8000) << 16);
    const FLOATS x = V(floats)((word & 0x7fff) << 13) * V(set1)(5.192296858534828e33f);
    const FLOATS large =
        V(less)(most, x, V(set1)(GCKPTI_NAN), V(either)(V(set1)(GCKPTI_INFINITY), sign));
    return V(less)(x, most, V(either)(x, sign), large);
#endif
}

/* W elements at b as `storage` (a constant, not F32) has them; I8: times scale. */
GCKPTI_ALWAYS FLOATS V(widened)(int storage, const void *b, FLOATS scale)
{
    INTS word;
#if GCKPTI_ISA == 3
    if (storage == GCKPT_STORED_I8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)b))) *
               scale;
    if (storage == GCKPT_STORED_F16)
        return V(half)(_mm256_loadu_si256((const __m256i *)b));
    word = (INTS)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)b));
#elif GCKPTI_ISA == 2
    if (storage == GCKPT_STORED_I8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)b))) *
               scale;
    word = (INTS)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)b));
#else
    unsigned char byte[W];
    uint16_t half[W];
    if (storage == GCKPT_STORED_I8) {
        memcpy(byte, b, sizeof byte);
        for (int i = 0; i < W; i++)
            word[i] = byte[i];
        return V(low_byte)(word) * scale;
    }
    memcpy(half, b, sizeof half);
    for (int i = 0; i < W; i++)
        word[i] = half[i];
#endif
    return storage == GCKPT_STORED_F16 ? V(low_half)(word) : V(floats)(word << 16);
}

/* Elements at..at+W-1, of which `left` exist, of what stands at b; storage: a constant. */
GCKPTI_ALWAYS FLOATS V(stored)(int storage, const void *b, int64_t at, FLOATS scale, int64_t left)
{
    const int each = storage == GCKPT_STORED_I8 ? 1 : 2;
    const unsigned char *x = (const unsigned char *)b + at * each;
    if (storage == GCKPT_STORED_F32)
        return V(load_n)((const float *)b + at, left);
    if (left >= W)
        return V(widened)(storage, x, scale);
    unsigned char some[2 * W] = { 0 };
    for (int64_t i = 0; i < 2 * W && i < left * each; i++)
        some[i] = x[i];
    return V(widened)(storage, some, scale);
}

/* `turn`: vector r[p] gets s[i * row + p], i < W, for 4 columns p. Where there are instructions for
 * it `quads` loads 4 floats of rows 0, 4, ... side by side, and each quad turns within itself. */
#if GCKPTI_ISA == 3
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
GCKPTI_ALWAYS FLOATS V(quads)(const float *s, int64_t row)
{
    __m512 r = _mm512_castps128_ps512(_mm_loadu_ps(s));
    r = _mm512_insertf32x4(r, _mm_loadu_ps(s + 4 * row), 1);
    r = _mm512_insertf32x4(r, _mm_loadu_ps(s + 8 * row), 2);
    return _mm512_insertf32x4(r, _mm_loadu_ps(s + 12 * row), 3);
}
#elif GCKPTI_ISA == 2
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 3
GCKPTI_ALWAYS FLOATS V(quads)(const float *s, int64_t row)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s)), _mm_loadu_ps(s + 4 * row),
                                1);
}
#elif GCKPTI_ISA == 1
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
#else
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 2
#endif
GCKPTI_ALWAYS void V(turn)(const float *s, int64_t row, FLOATS *r)
{
#if GCKPTI_ISA >= 2
    FLOATS r0 = V(quads)(s, row), r1 = V(quads)(s + row, row);
    FLOATS r2 = V(quads)(s + 2 * row, row), r3 = V(quads)(s + 3 * row, row);
    FLOATS l01 = GCKPTI_MM(unpacklo_ps)(r0, r1), h01 = GCKPTI_MM(unpackhi_ps)(r0, r1);
    FLOATS l23 = GCKPTI_MM(unpacklo_ps)(r2, r3), h23 = GCKPTI_MM(unpackhi_ps)(r2, r3);
    r[0] = GCKPTI_MM(shuffle_ps)(l01, l23, 0x44), r[1] = GCKPTI_MM(shuffle_ps)(l01, l23, 0xee);
    r[2] = GCKPTI_MM(shuffle_ps)(h01, h23, 0x44), r[3] = GCKPTI_MM(shuffle_ps)(h01, h23, 0xee);
#else
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < W; i++)
            r[p][i] = s[i * row + p];
#endif
}

/* d[p * d_row + i] = s[i * row + p] for i < W and p < n, a multiple of 4 */
static GCKPTI_TARGET void V(transpose)(const float *s, int64_t row, int64_t n, float *d,
                                       int64_t d_row)
{
    for (int64_t q = 0; q < n; q += 4) {
        FLOATS r[4];
        V(turn)(s + q, row, r);
        V(store)(d, r[0]), V(store)(d + d_row, r[1]); /* a loop would keep r in memory */
        V(store)(d + 2 * d_row, r[2]), V(store)(d + 3 * d_row, r[3]);
        d += 4 * d_row;
    }
}
