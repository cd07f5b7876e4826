/* =================================================================================================
 * >>kernels: loops written once and compiled once for each instruction set
 *
 * They use the operations of num/vectors.h. Vectors and tiles run along rows and columns of
 * results, so that every chain and each of the 32 lanes of a row's sum keeps its order.
 * ============================================================================================== */
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
#elif defined(__aarch64__)
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
