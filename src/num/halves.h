#pragma once
#include "num/random.h"

/* f16 is IEEE binary16, used for storage only. Conversions round to nearest even, keep subnormals
 * and make NaN canonical; values above 65504 are the caller's error. */
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
