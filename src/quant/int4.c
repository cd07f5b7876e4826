#ifndef GCKPT_NO_QUANT
/* ---- int4 blocks (store/store.h): a scale in f16, then bytes of two values each ---- */
/* Returns the lowest 4 bits u of each word as u - 8, by a table or (2^23 + u) - (2^23 + 8). */
GCKPTI_ALWAYS FLOATS V(low_int4)(INTS word)
{
#if GCKPTI_ISA == 3
    const FLOATS all = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps((__m512i)word, all);
#else
    return V(floats)((word & 15) | 0x4b000000) - V(set1)(8388616.0f);
#endif
}

/* Returns a table for V(int4_lookup): all 16 values times the scale, or (no lookup) the scale. */
GCKPTI_ALWAYS FLOATS V(int4_table)(const unsigned char *b)
{
    const uint16_t half = (uint16_t)(b[0] | b[1] << 8);
#if GCKPTI_ISA == 3
    const FLOATS all = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return all * _mm512_cvtph_ps(_mm256_set1_epi16((short)half));
#else
    return V(set1)(gckpti_from_f16(half));
#endif
}

GCKPTI_ALWAYS FLOATS V(int4_lookup)(INTS word, FLOATS table)
{
#if GCKPTI_ISA == 3
    return _mm512_permutexvar_ps((__m512i)word, table);
#else
    return V(low_int4)(word) * table;
#endif
}

/* Dequantises elements at..at+n-1 of int4 blocks to x; `at` is a multiple of W. */
GCKPTI_ALWAYS void V(dequantise_int4)(const unsigned char *quant, int64_t at, int64_t n, float *x)
{
    const unsigned char *b = quant + gckpti_file_count(GCKPT_STORAGE_I4, at);
    for (unsigned k = (unsigned)at % GCKPTI_INT4_BLOCK; n > 0; k = 0, b += GCKPTI_INT4_BYTES) {
        const FLOATS table = V(int4_table)(b);
        for (; k < GCKPTI_INT4_BLOCK && n > 0; k += W, n -= W, x += W) {
            const FLOATS y = V(int4_lookup)(V(bytes)(b + 2 + k % 16) >> (k / 16 * 4), table);
            if (n >= W)
                V(store)(x, y);
            else
                V(store_n)(x, y, n);
        }
    }
}

/* Returns the scales of W blocks, which are `row` bytes apart. */
GCKPTI_ALWAYS FLOATS V(int4_scales)(const unsigned char *b, int64_t row)
{
    INTS word;
#if GCKPTI_ISA == 3 && GCKPTI_OPTIMISED /* else a macro with warnings */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    word =
        (INTS)_mm512_i32gather_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)row)), b, 1);
#else
    for (int i = 0; i < W; i++)
        word[i] = (uint32_t)(b[i * row] | b[i * row + 1] << 8);
#endif
    return V(low_half)(word);
}

/* Adds 4 terms, 4 apart: the low halves of the bytes of `word`, to `vectors` vectors of columns. */
GCKPTI_ALWAYS void V(int4_terms)(int vectors, const INTS *word, const FLOATS *scale, const float *x,
                                 FLOATS *sum)
{
    GCKPTI_UNROLL
    for (int k = 0; k < 4; k++) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            const FLOATS y = V(low_int4)(word[4 * i] >> (8 * (unsigned)k)) * scale[i];
            sum[i] = V(fma)(V(set1)(x[k]), y, sum[i]);
        }
    }
}

/* V(gemv_dot) of gemv->n columns in `vectors` (a constant) vectors, on little-endian processors. A
 * row of b has gemv->k blocks in gemv->row bytes. Terms of a block are the low halves of its bytes,
 * then the high halves. */
GCKPTI_ALWAYS void V(gemv_dot_int4)(int vectors, const V(gemv) * gemv)
{
    const V(gemv) t = *gemv;
    const unsigned char *b = (const unsigned char *)t.b;
    FLOATS sum[64 / W], scale[64 / W], r[4];
    INTS word[4 * (64 / W)];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        sum[i] = t.from ? V(load)(t.from + W * i) : V(zero)();
    for (int64_t p = 0; p < t.k; p++, b += GCKPTI_INT4_BYTES) {
        const float *x = t.a + GCKPTI_INT4_BLOCK * p;
        const char *lines = (const char *)t.next + p / 3 * (3 * GCKPTI_INT4_BYTES);
        for (int64_t i = p % 3; i < vectors * W; i += 3)
            __builtin_prefetch(lines + i * t.row, 0, 2);
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            scale[i] = V(int4_scales)(b + W * i * t.row, t.row);
            V(transpose4)(b + W * i * t.row + 2, t.row, r);
            GCKPTI_UNROLL
            for (int q = 0; q < 4; q++)
                word[4 * i + q] = V(bits)(r[q]);
        }
        for (int high = 0; high < 2; high++) {
#if GCKPTI_ISA == 3 /* with fewer registers the loop is as fast, and half the code */
            GCKPTI_UNROLL
#endif
            for (int q = 0; q < 4; q++)
                V(int4_terms)(vectors, word + q, scale, x + 16 * high + 4 * q, sum);
            GCKPTI_UNROLL
            for (int i = 0; i < 4 * vectors; i++)
                word[i] = word[i] >> 4;
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        V(store)(t.c + W * i, sum[i]);
}

/* V(gemv_axpy) of 8 terms: gemv->n columns in whole int4 blocks, gemv->row bytes per row of b;
 * prefetches the next 8 terms. */
GCKPTI_ALWAYS void V(gemv_axpy_int4)(const V(gemv) * gemv)
{
    const V(gemv) t = *gemv;
    const unsigned char *b = (const unsigned char *)t.b;
    FLOATS x[8], table[8];
    GCKPTI_UNROLL
    for (int p = 0; p < 8; p++)
        x[p] = V(set1)(t.a[p * t.a_step]);
    for (int64_t j = 0; j < t.n; j += GCKPTI_INT4_BLOCK, b += GCKPTI_INT4_BYTES) {
        GCKPTI_UNROLL
        for (int p = 0; p < 8; p++) {
            table[p] = V(int4_table)(b + p * t.row);
            __builtin_prefetch(b + (8 + p) * t.row, 0, 2);
        }
        for (int i = 0; i < GCKPTI_INT4_BLOCK / 2; i += W) {
            float *c = t.c + j + i, *d = c + GCKPTI_INT4_BLOCK / 2;
            FLOATS low = V(load)(c), high = V(load)(d);
            GCKPTI_UNROLL
            for (int p = 0; p < 8; p++) {
                const INTS word = V(bytes)(b + p * t.row + 2 + i);
                low = V(fma)(x[p], V(int4_lookup)(word, table[p]), low);
                high = V(fma)(x[p], V(int4_lookup)(word >> 4, table[p]), high);
            }
            V(store)(c, low), V(store)(d, high);
        }
    }
}
#endif
