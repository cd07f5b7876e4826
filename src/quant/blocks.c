#ifndef GCKPT_NO_QUANT
/* ---- blocks (quant/api.h): an f16 scale; bytes of a value (I8), or of two and a zero (I4) ---- */
/* Returns 4 bits of each word, from bit `at` on, less a zero point / 16: these are 16ths of a float
 * of 2^19 and more, in which the zero point is given (V(int4_zero)). */
GCKPTI_ALWAYS FLOATS V(int4)(INTS word, unsigned at, FLOATS zero)
{
    const INTS high = at < 4 ? word << (4 - at) : word >> (at - 4);
    return V(floats)((high & 0xf0) | 0x49000000) - zero;
}

/* Returns the zero point of a block of I4 for V(int4). */
GCKPTI_ALWAYS FLOATS V(int4_zero)(const unsigned char *b)
{
    return V(set1)(524288 + (float)b[GCKPTI_INT4_ZERO] / 16);
}

/* Converts byte k of each word, a signed n, to n 2^V(byte_shift) (with AVX2, where a shuffle
 * makes it the highest byte); if need be by (2^23 + 128 + n) - (2^23 + 128). */
enum { V(byte_shift) = GCKPTI_ISA == 2 ? 24 : 0 };
GCKPTI_ALWAYS FLOATS V(word_byte)(INTS word, unsigned k)
{
#if GCKPTI_ISA == 3
    return _mm512_cvtepi32_ps(_mm512_srai_epi32((__m512i)(word << (24 - 8 * k)), 24));
#elif GCKPTI_ISA == 2
    const INTS first = { 0, 4, 8, 12, 0, 4, 8, 12 }; /* byte of each word */
    const __m256i highest = (__m256i)((first + k) << 24 | 0x808080);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8((__m256i)word, highest));
#else
    return V(floats)((word >> (8 * k) & 255) ^ 0x4b000080) - V(set1)(8388736.0f);
#endif
}

/* Returns a block's scale for V(block_values); with lookups (I4) all 16 values times it. */
GCKPTI_ALWAYS FLOATS V(block_table)(int storage, const unsigned char *b, float scale)
{
#if GCKPTI_ISA == 3
    const FLOATS all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (storage == GCKPT_STORAGE_I4)
        return (all - V(set1)((float)b[GCKPTI_INT4_ZERO] / 16)) * V(set1)(scale);
#endif
    (void)storage, (void)b;
    return V(set1)(scale);
}

/* Returns values k..k+W-1 of a block, whose table is given; k is a multiple of W. */
GCKPTI_ALWAYS FLOATS V(block_values)(int storage, const unsigned char *b, unsigned k, FLOATS table)
{
    if (storage == GCKPT_STORAGE_I8)
        return V(signed_bytes)(b + 2 + k) * table;
    const INTS word = V(bytes)(b + 2 + k % 16);
#if GCKPTI_ISA == 3
    return _mm512_permutexvar_ps((__m512i)(word >> (k / 16 * 4)), table);
#else
    return V(int4)(word, k / 16 * 4, V(int4_zero)(b)) * table;
#endif
}

/* Returns values k..k+n-1 of a block, which may end with them; the others are 0. */
GCKPTI_ALWAYS FLOATS V(last_values)(int storage, const unsigned char *b, unsigned k, int64_t n,
                                    FLOATS table)
{
    unsigned char padded[2 + W] = { 0 };
    if (storage == GCKPT_STORAGE_I4) /* never short */
        return V(block_values)(storage, b, k, table);
    memcpy(padded + 2, b + 2 + k, (size_t)n);
    return V(block_values)(storage, padded, 0, table);
}

#define GCKPTI_HALF(i) (int16_t) gckpti_half_at(b + (i)*row, 0) /* the first 2 bytes of row i */
#define GCKPTI_GATHER  (GCKPTI_ISA == 3 && GCKPTI_OPTIMISED)

/* Returns the first 2 bytes of W blocks, which are `row` bytes apart, as the lowest 16 bits of
 * words, or with GCKPTI_GATHER the first 4 bytes. */
GCKPTI_ALWAYS INTS V(block_words)(const unsigned char *b, int64_t row)
{
    INTS word;
#if GCKPTI_GATHER /* else a macro with warnings */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    word =
        (INTS)_mm512_i32gather_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)row)), b, 1);
#elif GCKPTI_ISA == 2 /* gcc would set lanes in memory, which is slower */
    __m128i half = _mm_cvtsi32_si128((uint16_t)GCKPTI_HALF(0));
    half = _mm_insert_epi16(half, GCKPTI_HALF(1), 1);
    half = _mm_insert_epi16(half, GCKPTI_HALF(2), 2);
    half = _mm_insert_epi16(half, GCKPTI_HALF(3), 3);
    half = _mm_insert_epi16(half, GCKPTI_HALF(4), 4);
    half = _mm_insert_epi16(half, GCKPTI_HALF(5), 5);
    half = _mm_insert_epi16(half, GCKPTI_HALF(6), 6);
    half = _mm_insert_epi16(half, GCKPTI_HALF(7), 7);
    word = (INTS)_mm256_cvtepu16_epi32(half);
#else
    for (int i = 0; i < W; i++)
        word[i] = (uint32_t)(b[i * row] | b[i * row + 1] << 8);
#endif
    return word;
}

/* Returns the scales of W blocks, of whose words V(low_half) reads the lowest 16 bits. */
GCKPTI_ALWAYS FLOATS V(block_scales)(const unsigned char *b, int64_t row)
{
    return V(low_half)(V(block_words)(b, row));
}

/* Returns the zero points of W blocks of I4, for V(int4): the last bytes that are read. */
GCKPTI_ALWAYS FLOATS V(block_zeros)(const unsigned char *b, int64_t row)
{
    enum { BYTES = GCKPTI_GATHER ? 4 : 2 };
    const INTS word = V(block_words)(b + GCKPTI_INT4_ZERO + 1 - BYTES, row);
    return V(floats)(word >> (8 * BYTES - 8) | 0x49000000);
}

/* Sets the scales of 8 blocks, which are `row` bytes apart. */
GCKPTI_ALWAYS void V(eight_scales)(const unsigned char *b, int64_t row, float *scale)
{
#if GCKPTI_ISA == 3
    const __m128i halves =
        _mm_setr_epi16(GCKPTI_HALF(0), GCKPTI_HALF(1), GCKPTI_HALF(2), GCKPTI_HALF(3),
                       GCKPTI_HALF(4), GCKPTI_HALF(5), GCKPTI_HALF(6), GCKPTI_HALF(7));
    _mm256_storeu_ps(scale,
                     _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(halves))));
#else
    for (int p = 0; p < 8; p += W)
        V(store)(scale + p, V(block_scales)(b + p * row, row));
#endif
}

#undef GCKPTI_HALF
#undef GCKPTI_GATHER

/* Dequantises n values of blocks to x, from value k of block b on, and of rows - 1 (0 or 7) more
 * rows, `apart` bytes apart, to rows of `width`; k is a multiple of W; storage: a constant. */
GCKPTI_ALWAYS void V(dequantise_blocks)(int storage, const unsigned char *b, unsigned k, int64_t n,
                                        float *x, int rows, int64_t apart, int64_t width)
{
    const int bytes = storage == GCKPT_STORAGE_I8 ? GCKPTI_INT8_BYTES : GCKPTI_INT4_BYTES;
    float scale[8];
    for (int64_t count; n > 0; n -= count, x += count, k = 0, b += bytes) {
        count = gckpti_min(n, GCKPTI_QUANT_BLOCK - k);
        if (rows == 8)
            V(eight_scales)(b, apart, scale);
        else
            scale[0] = gckpti_block_scale(b);
        for (int p = 0; p < rows; p++) {
            const unsigned char *from = b + p * apart;
            const FLOATS table = V(block_table)(storage, from, scale[p]);
            float *to = x + p * width;
            for (unsigned i = 0; i < count; i += W) {
                const int64_t left = count - i;
                if (left >= W)
                    V(store)(to + i, V(block_values)(storage, from, k + i, table));
                else
                    V(store_n)(to + i, V(last_values)(storage, from, k + i, left, table), left);
            }
        }
    }
}

/* Words of a block's 32 terms that are read at once: with AVX-512 as many as stay in registers, in
 * loops that are unrolled; with fewer registers loops are as fast, and half the code. */
enum { V(words) = GCKPTI_ISA == 3 ? 4 : 8 };
#if GCKPTI_ISA == 3
#define GCKPTI_UNROLL_WORDS GCKPTI_UNROLL
#else
#define GCKPTI_UNROLL_WORDS
#endif

/* Sets `word` to words first to first + V(words) - 1 of W blocks, which are `row` bytes apart: of
 * I8, 4 values each; of I4, two: words 0 to 3 have them in their low halves, words 4 to 7 are these
 * shifted, of which the first ones are in `word` if first is not 0. */
GCKPTI_ALWAYS void V(block_rows)(int storage, const unsigned char *b, int64_t row, int first,
                                 FLOATS *word)
{
    const int int8 = storage == GCKPT_STORAGE_I8, more = V(words) > 4;
    if (int8 || first == 0)
        V(transpose4)(b + 2 + 4 * first, row, word);
    if (int8 && V(words) > 4)
        V(transpose4)(b + 18, row, word + 4);
    GCKPTI_UNROLL
    for (int q = 0; q < 4; q++)
        if (!int8 && (more || first))
            word[V(words) - 4 + q] = V(floats)(V(bits)(word[q]) >> 4);
}

/* Adds 4 terms, 4 apart, to `vectors` vectors of columns: bytes of words, or their low halves.
 * head: the scale and the zero point (I4) of each vector. */
GCKPTI_ALWAYS void V(block_terms)(int storage, int vectors, const FLOATS *words, const FLOATS *head,
                                  const float *x, FLOATS *sum)
{
    GCKPTI_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            const INTS word = V(bits)(words[V(words) * i]);
            FLOATS y;
            if (storage == GCKPT_STORAGE_I8)
                y = V(word_byte)(word, k);
            else
                y = V(int4)(word, 8 * k, head[2 * i + 1]);
            sum[i] = V(fma)(V(set1)(x[k]), y * head[2 * i], sum[i]);
        }
    }
}

/* V(gemv_dot) of gemv->n columns in `vectors` (a constant) vectors, on little-endian processors. A
 * row of b has gemv->k blocks in gemv->row bytes. The first 16 terms of an I4 block are the low
 * halves of its bytes, the others the high halves. */
GCKPTI_ALWAYS void V(gemv_dot_blocks)(int storage, int vectors, const V(gemv) * gemv)
{
    const int int8 = storage == GCKPT_STORAGE_I8;
    const int bytes = int8 ? GCKPTI_INT8_BYTES : GCKPTI_INT4_BYTES;
    const V(gemv) t = *gemv;
    const unsigned char *b = (const unsigned char *)t.b, *next = (const unsigned char *)t.next;
    FLOATS sum[64 / W], head[2 * (64 / W)], word[V(words) * (64 / W)];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        sum[i] = t.from ? V(load)(t.from + W * i) : V(zero)();
    for (int64_t p = 0; p < t.k; p++, b += bytes) {
        const float *x = t.a + GCKPTI_QUANT_BLOCK * p;
        GCKPTI_UNROLL_WORDS
        for (int i = 0; i < vectors; i++, next += W * bytes) {
            head[2 * i] = V(block_scales)(b + W * i * t.row, t.row) *
                          V(set1)(int8 ? 1.0f / (1 << V(byte_shift)) : 1.0f);
            if (!int8)
                head[2 * i + 1] = V(block_zeros)(b + W * i * t.row, t.row);
            for (int j = 0; j < W * bytes; j += 64) /* the next rows: no gaps */
                __builtin_prefetch(next + j, 0, 2);
        }
        for (int first = 0; first < 8; first += V(words)) {
            GCKPTI_UNROLL_WORDS
            for (int i = 0; i < vectors; i++)
                V(block_rows)(storage, b + W * i * t.row, t.row, first, word + V(words) * i);
            GCKPTI_UNROLL_WORDS
            for (int q = 0; q < V(words); q++)
                V(block_terms)(storage, vectors, word + q, head, x + 4 * (first + q), sum);
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++)
        V(store)(t.c + W * i, sum[i]);
}

#undef GCKPTI_UNROLL_WORDS

/* V(gemv_axpy) of 8 terms: gemv->n columns in whole blocks, gemv->row bytes per row of b;
 * prefetches the next 8 terms. */
GCKPTI_ALWAYS void V(gemv_axpy_blocks)(int storage, const V(gemv) * gemv)
{
    const int bytes = storage == GCKPT_STORAGE_I8 ? GCKPTI_INT8_BYTES : GCKPTI_INT4_BYTES;
    const V(gemv) t = *gemv;
    const unsigned char *b = (const unsigned char *)t.b;
    enum { STRIP = 16, VECTORS = GCKPTI_QUANT_BLOCK / W };
    float scales[8 * STRIP], x[8]; /* scales of a strip of blocks, which are converted at once */
    for (int p = 0; p < 8; p++)
        x[p] = t.a[p * t.a_step];
    for (float *c = t.c, *const end = t.c + t.n; c < end;) {
        const int64_t strip = gckpti_min(STRIP, (end - c) / GCKPTI_QUANT_BLOCK);
        for (int64_t i = 0; i < strip; i++)
            V(eight_scales)(b + i * bytes, t.row, scales + 8 * i);
        for (const float *scale = scales; scale < scales + 8 * strip; scale += 8, b += bytes) {
            /* a block is about half a cache line: every other one is prefetched */
            const int64_t next = (8 - (scale - scales) / 8 % 2) * t.row;
            FLOATS sum[VECTORS];
            GCKPTI_UNROLL
            for (int v = 0; v < VECTORS; v++)
                sum[v] = V(load)(c + v * W);
            GCKPTI_UNROLL
            for (int p = 0; p < 8; p++) {
                const unsigned char *row = b + p * t.row;
                const FLOATS table = V(block_table)(storage, row, scale[p]);
                if (p % 2)
                    __builtin_prefetch(row + next, 0, 2);
                GCKPTI_UNROLL
                for (int v = 0; v < VECTORS; v++)
                    sum[v] =
                        V(fma)(V(set1)(x[p]),
                               V(block_values)(storage, row, (unsigned)(v * W), table), sum[v]);
            }
            GCKPTI_UNROLL
            for (int v = 0; v < VECTORS; v++, c += W)
                V(store)(c, sum[v]);
        }
    }
}
#endif
