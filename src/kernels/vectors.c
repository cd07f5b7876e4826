/* =================================================================================================
 * >>kernels: loops written once and compiled once for each instruction set
 *
 * They use the operations of num/vectors.h. Vectors and tiles run along rows and columns of
 * results, so that every chain and each of the 32 lanes of a row's sum keeps its order.
 * ============================================================================================== */
#if GCKPTI_ISA == 3
/* gckpti_from_f16 by an instruction, but every NaN becomes the one NaN of that function. */
GCKPTI_ALWAYS FLOATS V(half)(__m256i x)
{
    const FLOATS a = _mm512_cvtph_ps(x);
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), V(set1)(GCKPTI_NAN));
}
#endif

/* Converts the lowest 8 bits of each word, a signed n, to n: (2^23 + 128 + n) - (2^23 + 128). */
GCKPTI_ALWAYS FLOATS V(low_byte)(INTS word)
{
    return V(floats)((word & 255) ^ 0x4b000080) - V(set1)(8388736.0f);
}

/* Converts the lowest 16 bits of each word, an f16, to floats as gckpti_from_f16 does. */
GCKPTI_ALWAYS FLOATS V(low_half)(INTS word)
{
#if GCKPTI_ISA == 3
    return V(half)(_mm512_cvtepi32_epi16((__m512i)word));
#else
    const FLOATS most = V(set1)(65536.0f), sign_bit = V(floats)((word & 0x8000) << 16);
    const FLOATS x = V(floats)((word & 0x7fff) << 13) * V(set1)(5.192296858534828e33f);
    const FLOATS large =
        V(if_less)(most, x, V(set1)(GCKPTI_NAN), V(bit_or)(V(set1)(GCKPTI_INFINITY), sign_bit));
    return V(if_less)(x, most, V(bit_or)(x, sign_bit), large);
#endif
}

GCKPTI_ALWAYS INTS V(bytes)(const unsigned char *b)
{
#if GCKPTI_ISA == 3
    return (INTS)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b));
#elif GCKPTI_ISA == 2
    return (INTS)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)b));
#else
    INTS word;
    for (int i = 0; i < W; i++)
        word[i] = b[i];
    return word;
#endif
}

/* Returns W quantised elements at b as floats; I8: times scale. storage: a constant, not F32. */
GCKPTI_ALWAYS FLOATS V(dequantised)(int storage, const void *b, FLOATS scale)
{
    INTS word;
#if GCKPTI_ISA == 3
    if (storage == GCKPT_STORAGE_I8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)b))) *
               scale;
    if (storage == GCKPT_STORAGE_F16)
        return V(half)(_mm256_loadu_si256((const __m256i *)b));
    word = (INTS)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)b));
#elif GCKPTI_ISA == 2
    if (storage == GCKPT_STORAGE_I8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)b))) *
               scale;
    word = (INTS)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)b));
#else
    uint16_t half[W];
    if (storage == GCKPT_STORAGE_I8)
        return V(low_byte)(V(bytes)((const unsigned char *)b)) * scale;
    memcpy(half, b, sizeof half);
    for (int i = 0; i < W; i++)
        word[i] = half[i];
#endif
    return storage == GCKPT_STORAGE_F16 ? V(low_half)(word) : V(floats)(word << 16);
}

/* Returns the elements in the first `bytes` bytes of x as floats; the other elements are 0. */
GCKPTI_ISA_NOINLINE FLOATS V(dequantised_part)(int storage, const unsigned char *x, FLOATS scale,
                                               int64_t bytes)
{
    unsigned char padded[2 * W] = { 0 };
    memcpy(padded, x, (size_t)bytes);
    if (storage == GCKPT_STORAGE_I8)
        return V(dequantised)(GCKPT_STORAGE_I8, padded, scale);
    if (storage == GCKPT_STORAGE_F16)
        return V(dequantised)(GCKPT_STORAGE_F16, padded, scale);
    return V(dequantised)(GCKPT_STORAGE_BF16, padded, scale);
}

/* Dequantises elements at..at+W-1 of b; `left` of them exist; storage: a constant, not F32. */
GCKPTI_ALWAYS FLOATS V(load_quant)(int storage, const void *b, int64_t at, FLOATS scale,
                                   int64_t left)
{
    const int each = storage == GCKPT_STORAGE_I8 ? 1 : 2;
    const unsigned char *x = (const unsigned char *)b + at * each;
    if (left >= W)
        return V(dequantised)(storage, x, scale);
    return V(dequantised_part)(storage, x, scale, left * each);
}

/* transpose4: word i of vector r[p] is word p of row i, which is at s + i * row (in bytes), for i <
 * W and p < 4. Where possible, load_quads loads 4 words of rows 0, 4, .., and transposes quads. */
#if GCKPTI_ISA == 3
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
GCKPTI_ALWAYS FLOATS V(load_quads)(const char *s, int64_t row)
{
    __m512 r = _mm512_castps128_ps512(_mm_loadu_ps((const float *)(const void *)s));
    r = _mm512_insertf32x4(r, _mm_loadu_ps((const float *)(const void *)(s + 4 * row)), 1);
    r = _mm512_insertf32x4(r, _mm_loadu_ps((const float *)(const void *)(s + 8 * row)), 2);
    return _mm512_insertf32x4(r, _mm_loadu_ps((const float *)(const void *)(s + 12 * row)), 3);
}
#elif GCKPTI_ISA == 2
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 3
GCKPTI_ALWAYS FLOATS V(load_quads)(const char *s, int64_t row)
{
    const __m256 r = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)s));
    return _mm256_insertf128_ps(r, _mm_loadu_ps((const float *)(const void *)(s + 4 * row)), 1);
}
#elif GCKPTI_ISA == 1
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
#else
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 2
#endif
GCKPTI_ALWAYS void V(transpose4)(const void *from, int64_t row, FLOATS *r)
{
    const char *s = (const char *)from;
#if GCKPTI_ISA >= 2
    FLOATS r0 = V(load_quads)(s, row), r1 = V(load_quads)(s + row, row);
    FLOATS r2 = V(load_quads)(s + 2 * row, row), r3 = V(load_quads)(s + 3 * row, row);
    FLOATS l01 = GCKPTI_MM(unpacklo_ps)(r0, r1), h01 = GCKPTI_MM(unpackhi_ps)(r0, r1);
    FLOATS l23 = GCKPTI_MM(unpacklo_ps)(r2, r3), h23 = GCKPTI_MM(unpackhi_ps)(r2, r3);
    r[0] = GCKPTI_MM(shuffle_ps)(l01, l23, 0x44), r[1] = GCKPTI_MM(shuffle_ps)(l01, l23, 0xee);
    r[2] = GCKPTI_MM(shuffle_ps)(h01, h23, 0x44), r[3] = GCKPTI_MM(shuffle_ps)(h01, h23, 0xee);
#else
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < W; i++) {
            float x;
            memcpy(&x, s + i * row + 4 * p, sizeof x);
            r[p][i] = x;
        }
#endif
}

/* Transposes: d[p * d_row + i] = s[i * row + p] for i < W and p < n, a multiple of 4. */
static GCKPTI_TARGET void V(transpose)(const float *s, int64_t row, int64_t n, float *d,
                                       int64_t d_row)
{
    for (int64_t q = 0; q < n; q += 4) {
        FLOATS r[4];
        V(transpose4)(s + q, 4 * row, r);
        V(store)(d, r[0]), V(store)(d + d_row, r[1]); /* a loop would keep r in memory */
        V(store)(d + 2 * d_row, r[2]), V(store)(d + 3 * d_row, r[3]);
        d += 4 * d_row;
    }
}
