#pragma once
#include "num/random.h"

/* bf16 is the upper half of a float. Conversions round to nearest even; subnormals become zeros of
 * the same sign, NaN stays a (quiet) NaN, as with processors' instructions. */
GCKPTI_INLINE uint16_t gckpti_to_bf16(float x)
{
    uint32_t u = gckpti_bits(x);
    if (!(u & 0x7f800000u))
        return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

GCKPTI_INLINE float gckpti_from_bf16(uint16_t x) { return gckpti_float((uint32_t)x << 16); }

#ifndef GCKPT_NO_BF16
static inline void gckpti_from_bf16s(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_from_bf16(x[i]);
}

static inline void gckpti_to_bf16s(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

GCKPTI_INLINE float gckpti_flush_to_zero(float x) /* zeroes subnormals */
{
    uint32_t u = gckpti_bits(x);
    return u & 0x7f800000u ? x : gckpti_float(u & 0x80000000u);
}

/* Returns d = a*b + c, a term of a chain in a bf16 plan (manual, 5l), flushed to zero below 2^-126;
 * no operand is subnormal, |d| <= 2^-126. There fma rounds to fewer than 24 bits and may round a
 * smaller sum up to 2^-126: the sum scaled by 2^64 shows whether it is smaller. */
GCKPTI_DEVICE GCKPTI_FN float gckpti_tiny_fma(float a, float b, float c, float d);

GCKPTI_INLINE float gckpti_flushed_fma(float a, float b, float c)
{
    const float d = gckpti_fma(a, b, c);
    return gckpti_bits(d) << 1 > 0x01000000u ? d : gckpti_tiny_fma(a, b, c, d);
}
#endif
