/* avx512.h - emulates AVX-512 on a processor that has only AVX2, so that the AVX-512 kernels can be tested there. It
 * defines the intrinsics that src/kernels uses, in AVX2 and C, after Intel's manual.
 *
 * The header must be included before any file of src/ (-include). It replaces the compiler's header: kernels for
 * AVX-512 are compiled for AVX2, and __builtin_cpu_supports reports AVX-512. */
#ifndef AVX512_H
#define AVX512_H
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#pragma GCC diagnostic ignored "-Wpsabi"

#define AVX512_TARGET __attribute__((__target__("avx2,fma,f16c")))
#define AVX512_FN     static inline __attribute__((always_inline, unused)) AVX512_TARGET
#define GCKPTI_IN_REGISTER(x) /* empty here, since no register has 64 bytes; defined in kernels/products.c */
/* These functions are not inlined, so that compilers finish sooner. */
#define AVX512_CALLED static __attribute__((noinline, unused)) AVX512_TARGET
typedef double avx512_doubles __attribute__((vector_size(32)));
typedef float avx512_four __attribute__((vector_size(16)));
/* Vectors have only 32 bytes, since gcc would compare vectors of 64 bytes element by element. */
typedef int32_t avx512_words __attribute__((vector_size(32)));
typedef int32_t avx512_ints __attribute__((vector_size(64)));
typedef uint64_t avx512_quads __attribute__((vector_size(64)));
typedef union {
    __m512 f;
    __m512i i;
    avx512_words words[2];
    __m256 half[2];
    __m256i ihalf[2];
    __m128i quarter[4];
    avx512_four four[4];
    int32_t word[16];
    uint16_t bf16[32];
} avx512_any;

AVX512_FN __m512 avx512_ps(__m256 low, __m256 high)
{
    avx512_any x;
    x.half[0] = low, x.half[1] = high;
    return x.f;
}
AVX512_FN __m512i avx512_si(__m256i low, __m256i high)
{
    avx512_any x;
    x.ihalf[0] = low, x.ihalf[1] = high;
    return x.i;
}
AVX512_FN __m256 avx512_part(__m512 x, int n)
{
    avx512_any a;
    a.f = x;
    return a.half[n];
}
AVX512_FN __m256i avx512_ipart(__m512i x, int n)
{
    avx512_any a;
    a.i = x;
    return a.ihalf[n];
}
#define AVX512_LOW(x)  avx512_part(x, 0)
#define AVX512_HIGH(x) avx512_part(x, 1)

/* Defines avx512_NAME(a), which applies the AVX2 intrinsic _mm256_NAME to both halves of a. */
#define AVX512_FLOATS1(name)                                                                       \
    AVX512_FN __m512 avx512_##name(__m512 a)                                                       \
    {                                                                                              \
        return avx512_ps(_mm256_##name(AVX512_LOW(a)), _mm256_##name(AVX512_HIGH(a)));             \
    }
#define AVX512_FLOATS2(name)                                                                       \
    AVX512_FN __m512 avx512_##name(__m512 a, __m512 b)                                             \
    {                                                                                              \
        return avx512_ps(_mm256_##name(AVX512_LOW(a), AVX512_LOW(b)),                              \
                         _mm256_##name(AVX512_HIGH(a), AVX512_HIGH(b)));                           \
    }
#define AVX512_FLOATS3(name)                                                                       \
    AVX512_FN __m512 avx512_##name(__m512 a, __m512 b, __m512 c)                                   \
    {                                                                                              \
        return avx512_ps(_mm256_##name(AVX512_LOW(a), AVX512_LOW(b), AVX512_LOW(c)),               \
                         _mm256_##name(AVX512_HIGH(a), AVX512_HIGH(b), AVX512_HIGH(c)));           \
    }
#define AVX512_INTS2(name)                                                                         \
    AVX512_FN __m512i avx512_##name(__m512i a, __m512i b)                                          \
    {                                                                                              \
        return avx512_si(_mm256_##name(avx512_ipart(a, 0), avx512_ipart(b, 0)),                    \
                         _mm256_##name(avx512_ipart(a, 1), avx512_ipart(b, 1)));                   \
    }
AVX512_FLOATS1(sqrt_ps)
AVX512_FLOATS2(max_ps)
AVX512_FLOATS2(min_ps)
AVX512_FLOATS2(unpacklo_ps)
AVX512_FLOATS2(unpackhi_ps)
AVX512_FLOATS3(fmadd_ps)
AVX512_FLOATS3(fnmadd_ps)
AVX512_INTS2(add_epi32)
AVX512_INTS2(mullo_epi32)
AVX512_INTS2(unpacklo_epi16)
AVX512_INTS2(unpackhi_epi16)
AVX512_INTS2(unpacklo_epi32)
AVX512_INTS2(unpackhi_epi32)
AVX512_INTS2(unpacklo_epi64)
AVX512_INTS2(unpackhi_epi64)
AVX512_INTS2(mul_epu32)

/* ---- setting lanes: all equal, listed one by one, or loaded from memory ---- */
AVX512_FN __m512 avx512_set1_ps(float x) { return avx512_ps(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
AVX512_FN __m512i avx512_set1_epi32(int x)
{
    return avx512_si(_mm256_set1_epi32(x), _mm256_set1_epi32(x));
}
AVX512_FN __m512 avx512_loadu_ps(const void *at)
{
    __m512 x;
    memcpy(&x, at, sizeof x);
    return x;
}
AVX512_FN void avx512_storeu_ps(void *at, __m512 x) { memcpy(at, &x, sizeof x); }
AVX512_FN void avx512_storeu_si512(void *at, __m512i x) { memcpy(at, &x, sizeof x); }
/* Like the instruction, faults at addresses that are not multiples of the vector's size. */
AVX512_FN void avx512_stream_si512(void *at, __m512i x)
{
    if ((uintptr_t)at % 64)
        __builtin_trap();
    memcpy(at, &x, sizeof x);
}
#define AVX512_LIST(type, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf)          \
    ((type){ x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf })

/* ---- masks: bit n of a mask is lane n ---- */
AVX512_FN avx512_any avx512_lanes(__mmask16 mask) /* returns -1 in lanes of the mask, 0 elsewhere */
{
    const avx512_words bit = { 1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7 };
    avx512_any on;
    for (int i = 0; i < 2; i++)
        on.words[i] = (avx512_words)(((avx512_words)_mm256_set1_epi32(mask >> 8 * i) & bit) == bit);
    return on;
}
AVX512_FN __m512 avx512_mask_mov_ps(__m512 a, __mmask16 mask, __m512 b)
{
    const avx512_any on = avx512_lanes(mask);
    return avx512_ps(_mm256_blendv_ps(AVX512_LOW(a), AVX512_LOW(b), on.half[0]),
                     _mm256_blendv_ps(AVX512_HIGH(a), AVX512_HIGH(b), on.half[1]));
}
AVX512_FN __m512 avx512_maskz_loadu_ps(__mmask16 mask, const float *at)
{
    const avx512_any on = avx512_lanes(mask);
    return avx512_ps(_mm256_maskload_ps(at, on.ihalf[0]), _mm256_maskload_ps(at + 8, on.ihalf[1]));
}
AVX512_FN void avx512_mask_storeu_ps(float *at, __mmask16 mask, __m512 x)
{
    const avx512_any on = avx512_lanes(mask);
    _mm256_maskstore_ps(at, on.ihalf[0], AVX512_LOW(x));
    _mm256_maskstore_ps(at + 8, on.ihalf[1], AVX512_HIGH(x));
}

/* ---- moving lanes ---- */
AVX512_FN __m512 avx512_permutexvar_ps(__m512i order, __m512 x)
{
    avx512_any r;
    for (int i = 0; i < 2; i++) {
        const __m256i at = avx512_ipart(order, i);
        r.half[i] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(AVX512_LOW(x), at),
                                     _mm256_permutevar8x32_ps(AVX512_HIGH(x), at),
                                     _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
    }
    return r.f;
}
AVX512_CALLED __m512i avx512_permutexvar_epi16(__m512i order, __m512i x)
{
    avx512_any at, from, to;
    at.i = order, from.i = x;
    for (int i = 0; i < 32; i++)
        to.bf16[i] = from.bf16[at.bf16[i] & 31];
    return to.i;
}
AVX512_FN __m512 avx512_insertf32x4(__m512 x, __m128 part, int n)
{
    avx512_any r;
    r.f = x, r.quarter[n] = _mm_castps_si128(part);
    return r.f;
}
AVX512_CALLED __m512i avx512_i32gather_epi32(__m512i at, const void *from, int each)
{
    avx512_any x;
    x.i = at;
    for (int i = 0; i < 16; i++)
        memcpy(&x.word[i], (const char *)from + (int64_t)x.word[i] * each, sizeof x.word[i]);
    return x.i;
}

/* ---- conversions ---- */
#define AVX512_WIDER(name) /* converts 16 numbers, 8 at a time */                                            \
    AVX512_FN __m512i avx512_##name(__m128i x)                                                     \
    {                                                                                              \
        return avx512_si(_mm256_##name(x), _mm256_##name(_mm_unpackhi_epi64(x, x)));               \
    }
AVX512_WIDER(cvtepi8_epi32)
AVX512_WIDER(cvtepu8_epi32)
AVX512_FN __m512i avx512_cvtepu16_epi32(__m256i x)
{
    return avx512_si(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                     _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}
AVX512_FN __m512 avx512_cvtepi32_ps(__m512i x)
{
    return avx512_ps(_mm256_cvtepi32_ps(avx512_ipart(x, 0)), _mm256_cvtepi32_ps(avx512_ipart(x, 1)));
}
AVX512_FN __m512 avx512_cvtph_ps(__m256i x)
{
    return avx512_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
AVX512_CALLED __m256i avx512_cvtepi32_epi16(__m512i x) /* keeps the lower 16 bits of each lane */
{
    avx512_any all, r;
    all.i = x;
    for (int i = 0; i < 16; i++)
        r.bf16[i] = all.bf16[2 * i];
    return r.ihalf[0];
}
/* Returns x 2^floor(n), rounded once; the product is exact in doubles. */
AVX512_CALLED __m512 avx512_scalef_ps(__m512 x, __m512 n)
{
    avx512_any a, by;
    a.f = x, by.f = n;
    for (int i = 0; i < 4; i++) {
        const __m128 most = _mm_set1_ps(600), least = _mm_set1_ps(-600);
        const __m128 whole = _mm_min_ps(_mm_max_ps(_mm_floor_ps((__m128)by.four[i]), least), most);
        const __m256i e = _mm256_cvtepi32_epi64(_mm_cvttps_epi32(whole));
        const __m256i power = _mm256_slli_epi64(_mm256_add_epi64(e, _mm256_set1_epi64x(1023)), 52);
        const __m256d wide = _mm256_cvtps_pd((__m128)a.four[i]);
        a.four[i] = (avx512_four)_mm256_cvtpd_ps(_mm256_mul_pd(wide, _mm256_castsi256_pd(power)));
    }
    return a.f;
}

/* ---- bf16 ---- */
/* Rounds to bf16, to nearest with ties to even. Subnormals become zeros, and a NaN becomes a quiet NaN. */
AVX512_CALLED __m256i avx512_cvtneps_pbh(__m512 x)
{
    avx512_any a;
    a.f = x;
    for (int i = 0; i < 2; i++) {
        const avx512_words u = a.words[i], size = u & 0x7fffffff, odd = (u >> 16) & 1;
        const avx512_words nan = size > 0x7f800000, normal = size > 0x7fffff;
        const avx512_words sum = (avx512_words)_mm256_add_epi32((__m256i)u, (__m256i)(odd + 0x7fff));
        const avx512_words rounded = (normal & sum) | (~normal & u & ~0x7fffffff);
        a.words[i] = ((nan & (u | 0x400000)) | (~nan & rounded)) >> 16;
    }
    return avx512_cvtepi32_epi16(a.i);
}
AVX512_FN __m512i avx512_cvtne2ps_pbh(__m512 high, __m512 low)
{
    return avx512_si(avx512_cvtneps_pbh(low), avx512_cvtneps_pbh(high));
}

static inline int avx512_supports(const char *what)
{
    const int avx2 = __builtin_cpu_supports("avx2"), fma = __builtin_cpu_supports("fma");
    return !strcmp(what, "fma") ? fma : !strcmp(what, "avx2") ? avx2 : avx2 && fma;
}

/* ---- macros that replace the compiler's intrinsics ---- */
#undef _mm512_set1_ps
#undef _mm512_setr_ps
#undef _mm512_set1_epi32
#undef _mm512_setr_epi32
#undef _mm512_loadu_ps
#undef _mm512_storeu_ps
#undef _mm512_storeu_si512
#undef _mm512_stream_si512
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_mask_mov_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_sqrt_ps
#undef _mm512_max_ps
#undef _mm512_min_ps
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#undef _mm512_scalef_ps
#undef _mm512_add_epi32
#undef _mm512_mullo_epi32
#undef _mm512_or_si512
#undef _mm512_slli_epi32
#undef _mm512_srai_epi32
#undef _mm512_srli_epi64
#undef _mm512_mul_epu32
#undef _mm512_mask_mov_epi32
#undef _mm512_unpacklo_ps
#undef _mm512_unpackhi_ps
#undef _mm512_unpacklo_epi16
#undef _mm512_unpackhi_epi16
#undef _mm512_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#undef _mm512_unpacklo_epi64
#undef _mm512_unpackhi_epi64
#undef _mm512_shuffle_ps
#undef _mm512_permutexvar_ps
#undef _mm512_permutexvar_epi16
#undef _mm512_i32gather_epi32
#undef _mm512_insertf32x4
#undef _mm512_inserti64x4
#undef _mm512_extractf32x8_ps
#undef _mm512_castps128_ps512
#undef _mm512_castps512_ps256
#undef _mm512_castsi256_si512
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtph_ps
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#define _mm512_set1_ps avx512_set1_ps
#define _mm512_setr_ps(...) AVX512_LIST(__m512, __VA_ARGS__)
#define _mm512_set1_epi32 avx512_set1_epi32
#define _mm512_setr_epi32(...) ((__m512i)AVX512_LIST(avx512_ints, __VA_ARGS__))
#define _mm512_loadu_ps avx512_loadu_ps
#define _mm512_storeu_ps avx512_storeu_ps
#define _mm512_storeu_si512 avx512_storeu_si512
#define _mm512_stream_si512 avx512_stream_si512
#define _mm512_maskz_loadu_ps avx512_maskz_loadu_ps
#define _mm512_mask_storeu_ps avx512_mask_storeu_ps
#define _mm512_mask_mov_ps avx512_mask_mov_ps
#define _mm512_sqrt_ps avx512_sqrt_ps
#define _mm512_max_ps avx512_max_ps
#define _mm512_min_ps avx512_min_ps
#define _mm512_fmadd_ps avx512_fmadd_ps
#define _mm512_fnmadd_ps avx512_fnmadd_ps
#define _mm512_scalef_ps avx512_scalef_ps
#define _mm512_add_epi32 avx512_add_epi32
#define _mm512_mullo_epi32 avx512_mullo_epi32
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_slli_epi32(a, n) ((__m512i)((avx512_ints)(a) << (n)))
#define _mm512_srai_epi32(a, n) ((__m512i)((avx512_ints)(a) >> (n)))
#define _mm512_srli_epi64(a, n) ((__m512i)((avx512_quads)(a) >> (n)))
#define _mm512_mul_epu32 avx512_mul_epu32
#define _mm512_mask_mov_epi32(a, mask, b)                                                          \
    ((__m512i)avx512_mask_mov_ps((__m512)(a), mask, (__m512)(b)))
#define _mm512_unpacklo_ps avx512_unpacklo_ps
#define _mm512_unpackhi_ps avx512_unpackhi_ps
#define _mm512_unpacklo_epi16 avx512_unpacklo_epi16
#define _mm512_unpackhi_epi16 avx512_unpackhi_epi16
#define _mm512_unpacklo_epi32 avx512_unpacklo_epi32
#define _mm512_unpackhi_epi32 avx512_unpackhi_epi32
#define _mm512_unpacklo_epi64 avx512_unpacklo_epi64
#define _mm512_unpackhi_epi64 avx512_unpackhi_epi64
#define _mm512_permutexvar_ps avx512_permutexvar_ps
#define _mm512_permutexvar_epi16 avx512_permutexvar_epi16
#define _mm512_i32gather_epi32 avx512_i32gather_epi32
#define _mm512_insertf32x4 avx512_insertf32x4
#define _mm512_inserti64x4(a, b, n) avx512_si(avx512_ipart(a, 0), b) /* replaces the upper half of a by b */
#define _mm512_extractf32x8_ps(a, n) avx512_part(a, n)
#define _mm512_castps128_ps512(a) avx512_insertf32x4(avx512_set1_ps(0), a, 0)
#define _mm512_castps512_ps256(a) avx512_part(a, 0)
#define _mm512_castsi256_si512(a) avx512_si(a, a)
#define _mm512_cvtepi8_epi32 avx512_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 avx512_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 avx512_cvtepu16_epi32
#define _mm512_cvtepi32_ps avx512_cvtepi32_ps
#define _mm512_cvtepi32_epi16 avx512_cvtepi32_epi16
#define _mm512_cvtph_ps avx512_cvtph_ps
#define _mm512_cvtneps_pbh avx512_cvtneps_pbh
#define _mm512_cvtne2ps_pbh avx512_cvtne2ps_pbh
#define _mm512_cmp_ps_mask(a, b, how) /* `how` is a constant */                                       \
    ((__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps(AVX512_LOW(a), AVX512_LOW(b), how)) |            \
                 _mm256_movemask_ps(_mm256_cmp_ps(AVX512_HIGH(a), AVX512_HIGH(b), how)) << 8))
#define _mm512_shuffle_ps(a, b, which)                                                             \
    avx512_ps(_mm256_shuffle_ps(AVX512_LOW(a), AVX512_LOW(b), which),                              \
              _mm256_shuffle_ps(AVX512_HIGH(a), AVX512_HIGH(b), which))
#define target(...)                 __target__("avx2,fma,f16c")
#define __builtin_cpu_supports(what) avx512_supports(what)
#endif
#endif
