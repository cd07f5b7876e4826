#pragma once
#include "num/angles.h"

/* Returns base^n by squaring. volatile: compilers must not contract the last product. */
GCKPTI_INLINE double gckpti_powi(double base, uint64_t n)
{
    volatile double result = 1.0;
    for (; n; n >>= 1) {
        if (n & 1)
            result = result * base;
        base = base * base;
    }
    return result;
}

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 random
 * bits that depend only on key and counter: each element can be computed again, in any order. */
GCKPTI_INLINE void gckpti_philox(uint64_t key, uint64_t index, uint32_t stream, uint32_t step,
                                 uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = stream, c3 = step;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Names random words: block number `index` of a stream at a step. */
typedef struct {
    uint64_t key;
    uint32_t stream, step;
} gckpti_random;

/* Converts the 24 high bits of a random word to a float in [0,1). */
GCKPTI_INLINE float gckpti_uniform(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 5.9604644775390625e-8f;
}

GCKPTI_INLINE int64_t gckpti_min(int64_t a, int64_t b) { return a < b ? a : b; }
GCKPTI_INLINE double gckpti_fabs(double x) { return x < 0 ? -x : x; }
