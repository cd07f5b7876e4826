#pragma once
#include "num/random.h"

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

/* Returns the upper half of u + bias; bias: 0x7fff plus the last kept bit, or 16 random bits. */
GCKPTI_INLINE uint16_t gckpti_bits_to_bf16(uint32_t u, uint32_t bias)
{
    if (!(u & 0x7f800000u))
        return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + bias) >> 16);
}

GCKPTI_INLINE uint16_t gckpti_to_bf16(float x)
{
    uint32_t u = gckpti_bits(x);
    return gckpti_bits_to_bf16(u, 0x7fffu + (u >> 16 & 1));
}

GCKPTI_INLINE float gckpti_from_bf16(uint16_t x) { return gckpti_float((uint32_t)x << 16); }

GCKPTI_INLINE uint16_t gckpti_to_f16(float x)
{
    uint32_t u = gckpti_bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return 0x7e00u;
    if (u < 0x38800000u) /* below 2^-14: adding 2^23 units of 2^-24 rounds */
        return (uint16_t)(sign |
                          (gckpti_bits(gckpti_float(u) * 16777216.0f + 8388608.0f) & 0x7ffu));
    return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1) - 0x38000000u) >> 13);
}

/* Converts without branches, to vectorise: scales by 2^112, then corrects infinity and NaN. */
GCKPTI_INLINE float gckpti_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t u = gckpti_bits(gckpti_float(rest) * 5192296858534827628530496329220096.0f);
    u |= sign | (rest >= 0x0f800000u ? 0x7f800000u : 0u);
    return gckpti_float(rest > 0x0f800000u ? 0x7fc00000u : u);
}

/* Converts two words to two independent standard normal values (Box and Muller), magnitude <= 5.77:
 * r = sqrt(-2 log((top 24 bits of a + 1) / 2^24)); mul(r, cos), mul(r, sin) of mul(2 pi, u(b)). */
GCKPTI_INLINE void gckpti_normal(uint32_t a, uint32_t b, float out[2])
{
    float s, c, u = (float)(int32_t)((a >> 8) + 1) * 5.9604644775390625e-8f; /* in (0,1] */
    float r = gckpti_sqrt(-2.0f * gckpti_log(u));
    gckpti_sincos(gckpti_mul(6.28318531f, gckpti_uniform(b)), &s, &c);
    out[0] = gckpti_mul(r, c);
    out[1] = gckpti_mul(r, s);
}
