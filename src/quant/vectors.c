#if !defined(GCKPT_NO_QUANT) || !defined(GCKPT_NO_BF16)
/* ---- vectors of elements that are stored as bf16 or f16, and of bytes ---- */
#if GCKPTI_ISA == 3
/* gckpti_from_f16 by an instruction, but every NaN becomes the one NaN of that function. */
GCKPTI_ALWAYS FLOATS V(half)(__m256i x)
{
    const FLOATS a = _mm512_cvtph_ps(x);
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), V(set1)(GCKPTI_NAN));
}
#endif

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

/* Returns W signed bytes at b as floats. */
GCKPTI_ALWAYS FLOATS V(signed_bytes)(const unsigned char *b)
{
#if GCKPTI_ISA == 3
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b)));
#elif GCKPTI_ISA == 2
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)b)));
#else
    return V(floats)((V(bytes)(b) ^ 0x4b000080)) - V(set1)(8388736.0f);
#endif
}

/* Returns W elements at b as floats. storage: a constant, BF16 or F16. */
GCKPTI_ALWAYS FLOATS V(dequantised)(int storage, const void *b)
{
    INTS word;
#if GCKPTI_ISA == 3
    if (storage == GCKPT_STORAGE_F16)
        return V(half)(_mm256_loadu_si256((const __m256i *)b));
    word = (INTS)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)b));
#elif GCKPTI_ISA == 2
    word = (INTS)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)b));
#else
    uint16_t half[W];
    memcpy(half, b, sizeof half);
    for (int i = 0; i < W; i++)
        word[i] = half[i];
#endif
    return storage == GCKPT_STORAGE_F16 ? V(low_half)(word) : V(floats)(word << 16);
}

/* Returns the first n elements of x as floats; the other elements are 0. */
GCKPTI_ISA_NOINLINE FLOATS V(dequantised_part)(int storage, const uint16_t *x, int64_t n)
{
    uint16_t padded[W] = { 0 };
    memcpy(padded, x, (size_t)n * sizeof *x);
    return storage == GCKPT_STORAGE_F16 ? V(dequantised)(GCKPT_STORAGE_F16, padded)
                                        : V(dequantised)(GCKPT_STORAGE_BF16, padded);
}

/* Dequantises elements at..at+W-1 of b; `left` of them exist; storage: a constant, BF16 or F16. */
GCKPTI_ALWAYS FLOATS V(load_wide)(int storage, const void *b, int64_t at, int64_t left)
{
    const uint16_t *x = (const uint16_t *)b + at;
    return left >= W ? V(dequantised)(storage, x) : V(dequantised_part)(storage, x, left);
}

/* ---- dot products of words of such elements ---- */
/* Adds the 8 terms of 4 words, lowest bits first, of `vectors` vectors of columns; word q of vector
 * i is words[4 * i + q]. Does nothing for floats. */
GCKPTI_ALWAYS void V(dot_words)(int storage, int vectors, const FLOATS *words, const float *x,
                                FLOATS *sum)
{
    GCKPTI_UNROLL
    for (unsigned k = 0; k < 8 && storage != GCKPT_STORAGE_F32; k++) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            const INTS word = V(bits)(words[4 * i + (int)k / 2]);
            FLOATS y = V(floats)(k % 2 ? word & 0xffff0000u : word << 16);
            if (storage == GCKPT_STORAGE_F16)
                y = V(low_half)(word >> (16 * (k % 2)));
            sum[i] = V(fma)(V(set1)(x[k]), y, sum[i]);
        }
    }
}
#endif
