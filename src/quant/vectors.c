#if !defined(GCKPT_NO_QUANT) || !defined(GCKPT_NO_BF16)
/* ---- vectors of elements that are stored as bf16, f16 or int8 ---- */
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
GCKPTI_ALWAYS FLOATS V(load_wide)(int storage, const void *b, int64_t at, FLOATS scale,
                                  int64_t left)
{
    const int each = storage == GCKPT_STORAGE_I8 ? 1 : 2;
    const unsigned char *x = (const unsigned char *)b + at * each;
    if (left >= W)
        return V(dequantised)(storage, x, scale);
    return V(dequantised_part)(storage, x, scale, left * each);
}

/* ---- dot products of words of such elements ---- */
/* Adds the 2 terms (I8: 4) of each word of b, lowest bits first, to sum. */
GCKPTI_ALWAYS FLOATS V(word_terms)(int storage, FLOATS words, FLOATS scale, const float *x,
                                   FLOATS sum)
{
    const INTS word = V(bits)(words);
    const unsigned each = storage == GCKPT_STORAGE_I8 ? 4 : 2;
    GCKPTI_UNROLL
    for (unsigned k = 0; k < each; k++) {
        const INTS low = word >> (32 / each * k);
        FLOATS y = V(floats)(k ? word & 0xffff0000u : word << 16);
        if (storage == GCKPT_STORAGE_F16)
            y = V(low_half)(low);
        if (storage == GCKPT_STORAGE_I8)
            y = V(low_byte)(low) * scale;
        sum = V(fma)(V(set1)(x[k]), y, sum);
    }
    return sum;
}

/* Adds the terms of 4 words of `vectors` vectors of columns; word q of vector i is
 * words[4 * i + q]. Does nothing for floats. */
GCKPTI_ALWAYS void V(dot_words)(int storage, int vectors, const FLOATS *words, const float *scales,
                                const float *x, FLOATS *sum)
{
    const int each = storage == GCKPT_STORAGE_I8 ? 4 : 2;
    FLOATS scale[32 / W];
    if (storage == GCKPT_STORAGE_F32)
        return;
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        scale[i] = storage == GCKPT_STORAGE_I8 ? V(load)(scales + W * i) : V(zero)();
    GCKPTI_UNROLL
    for (int q = 0; q < 4; q++) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++)
            sum[i] = V(word_terms)(storage, words[4 * i + q], scale[i], x + q * each, sum[i]);
    }
}
#endif
