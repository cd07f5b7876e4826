#pragma once
#include "num/arithmetic.h"
#include "num/plain_begin.h"
#include "num/vectors.h"
#include "num/formulas.h"
#include "num/plain_end.h"

/* Sine and cosine of a finite x, for initial values and schedules. (The ops sin and cos, in
 * num/formulas.h, came later and return other bits.) */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    gckpti_sincos_of(gckpti_angle_of(x), sine, cosine);
    *sine = gckpti_float(gckpti_bits(*sine) ^ (gckpti_bits(x) & 0x80000000u));
}

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
