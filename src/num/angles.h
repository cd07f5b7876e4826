#pragma once
#include "num/arithmetic.h"
#ifdef GCKPTI_ROOMS
#pragma push_macro("GCKPTI_ISA")
#undef GCKPTI_ISA
#define GCKPTI_ISA (-1)
#include "num/vectors.h"
#include "num/formulas.h"
#undef GCKPTI_ISA
#pragma pop_macro("GCKPTI_ISA")
#endif

/* An angle: quadrants and hi + lo, |hi| <= pi/4. */
typedef struct {
    uint32_t quadrant;
    float hi, lo;
} gckpti_angle;

/* The angle of p, a turn being 2^64. */
GCKPTI_INLINE gckpti_angle gckpti_angle_of(uint64_t p)
{
    gckpti_angle r;
    r.quadrant = (uint32_t)((p + (UINT64_C(1) << 61)) >> 62);
    p -= (uint64_t)r.quadrant << 62;
    /* by 31-bit halves: gcc -m32 may keep a converted int64_t in an x87 register, unrounded */
    uint64_t size = p >> 63 ? 0 - p : p;
    double angle = (double)(int32_t)(size >> 31) * 2147483648.0;
    angle += (double)(int32_t)(size & 0x7fffffffu);
    angle = p >> 63 ? -angle : angle;
    float a = (float)angle, b = (float)(angle - (double)a);
    r.hi = gckpti_mul(a, 3.40612167e-19f); /* pi/2 * 2^-62 */
    r.lo = gckpti_fma(a, 3.40612167e-19f, -r.hi);
    r.lo = gckpti_fma(b, 3.40612167e-19f, gckpti_fma(a, -9.4783968e-27f, r.lo));
    return r;
}

GCKPTI_INLINE void gckpti_sincos_of(gckpti_angle r, float *sine, float *cosine)
{
    float s = gckpti_sine(r.hi, r.lo), c = gckpti_cosine(r.hi, r.lo);
    uint32_t flip = (r.quadrant & 2) << 30;
    *sine = gckpti_float(gckpti_bits(r.quadrant & 1 ? c : s) ^ flip);
    *cosine = gckpti_float(gckpti_bits(r.quadrant & 1 ? -s : c) ^ flip);
}

/* The angle of |x|; NaN where x is not finite. Beyond pi/4, x * 2/pi modulo 4 is taken in integers
 * (Payne and Hanek): 96 bits of 2/pi are enough, from the one on whose product with x has the
 * weight 2. */
GCKPTI_TABLE uint32_t gckpti_two_over_pi[8] = { 0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                                0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu };
GCKPTI_INLINE gckpti_angle gckpti_angle_in(float x)
{
    uint32_t u = gckpti_bits(x) & 0x7fffffffu;
    gckpti_angle r = { 0, u < 0x7f800000u ? gckpti_float(u) : GCKPTI_NAN, 0.0f };
    if (u > 0x3f490fdau && u < 0x7f800000u) {
        uint32_t offset = (u >> 23) - 120u;
        const uint32_t *word = gckpti_two_over_pi + offset / 32;
        uint64_t m = (u & 0x007fffffu) | 0x00800000u, v[3];
        for (int i = 0; i < 3; i++)
            v[i] = ((uint64_t)word[i] << 32 | word[i + 1]) >> (32 - offset % 32) & 0xffffffffu;
        r = gckpti_angle_of((m * v[0] << 32) + m * v[1] + (m * v[2] >> 32));
    }
    return r;
}

/* Sine and cosine of any finite x. */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    gckpti_sincos_of(gckpti_angle_in(x), sine, cosine);
    *sine = gckpti_float(gckpti_bits(*sine) ^ (gckpti_bits(x) & 0x80000000u));
}

GCKPTI_INLINE float gckpti_sin(float x)
{
    float s, c;
    gckpti_sincos(x, &s, &c);
    return s;
}

GCKPTI_INLINE float gckpti_cos(float x)
{
    float s, c;
    gckpti_sincos(x, &s, &c);
    return c;
}
