#pragma once
#include "num/arithmetic.h"

/* (exp(r) - 1) / r for |r| <= ln(2)/2 */
GCKPTI_INLINE float gckpti_exp_poly(float r)
{
    const float *c = gckpti_exp_c;
    float p = gckpti_fma(c[4], r, c[3]);
    p = gckpti_fma(gckpti_fma(p, r, c[2]), r, c[1]);
    p = gckpti_fma(p, r, c[0]);
    return gckpti_fma(p, r, 1.0f);
}

/* exp(x) = 2^n (1 + r p): n the nearest integer to x/ln(2), r = x - n ln(2) (Cody and Waite; with
 * an fma x - n*LN2_HI is exact); p = (exp(r) - 1) / r is returned. */
GCKPTI_INLINE float gckpti_exp_reduce(float x, float *r, uint32_t *n)
{
    float t = gckpti_fma(x, GCKPTI_LOG2E, GCKPTI_ROUND), k = t - GCKPTI_ROUND;
    *n = gckpti_bits(t) - gckpti_bits(GCKPTI_ROUND);
    *r = gckpti_fma(k, -GCKPTI_LN2_LO, gckpti_fma(k, -GCKPTI_LN2_HI, x));
    return gckpti_exp_poly(*r);
}

/* 2^n * (1 + r p) in two steps, for results beyond either end of the normal range */
GCKPTI_INLINE float gckpti_exp_scale(float p, float r, uint32_t n)
{
    uint32_t half = (n + 254u) >> 1;
    float s = gckpti_float(half << 23);
    return gckpti_mul(gckpti_fma(r * s, p, s), gckpti_float((n + 254u - half) << 23));
}

/* Five more steps of Horner's: p z^5 + c[4] z^4 + ... + c[0]. */
GCKPTI_INLINE float gckpti_horner(float p, float z, const float *c)
{
    p = gckpti_fma(gckpti_fma(p, z, c[4]), z, c[3]);
    p = gckpti_fma(gckpti_fma(p, z, c[2]), z, c[1]);
    return gckpti_fma(p, z, c[0]);
}

GCKPTI_INLINE float gckpti_exp(float x)
{
    uint32_t n;
    float r, p;
    x = x < GCKPTI_EXP_MIN ? GCKPTI_EXP_MIN : x;
    x = x > GCKPTI_EXP_MAX ? GCKPTI_EXP_MAX : x;
    p = gckpti_exp_reduce(x, &r, &n);
    return gckpti_exp_scale(p, r, n);
}

/* x + x^3 P(x^2) near 0, else 1 - 2/(exp(2x) + 1), where exp(2x) + 1 = r p 2^n + (2^n + 1) */
GCKPTI_INLINE float gckpti_tanh(float x)
{
    const float *c = gckpti_tanh_c;
    uint32_t n, sign = gckpti_bits(x) & 0x80000000u;
    float a = gckpti_float(gckpti_bits(x) ^ sign), z = a * a;
    float p = gckpti_horner(gckpti_fma(c[6], z, c[5]), z, c);
    float small = gckpti_fma(a * z, p, a);
    float r, b = a + a;
    b = b > GCKPTI_TANH_MAX ? GCKPTI_TANH_MAX : b;
    p = gckpti_exp_reduce(b, &r, &n);
    float s = gckpti_float((n + 127u) << 23);
    float large = 1.0f - 2.0f / gckpti_fma(r * s, p, s + 1.0f);
    return gckpti_float(gckpti_bits(gckpti_select(a < GCKPTI_TANH_SPLIT, small, large)) | sign);
}

/* x + x P(x^2) near 0, else 1 - exp(-x Q(x)), where exp(-u) = 2^n + r p 2^n */
GCKPTI_INLINE float gckpti_erf(float x)
{
    const float *c = gckpti_erf_c, *d = gckpti_erfc_c;
    uint32_t n, sign = gckpti_bits(x) & 0x80000000u;
    float a = gckpti_float(gckpti_bits(x) ^ sign), z = a * a;
    float p = gckpti_horner(gckpti_fma(c[6], z, c[5]), z, c);
    float small = gckpti_fma(a, p, a);
    float r, b = a > GCKPTI_ERF_MAX ? GCKPTI_ERF_MAX : a;
    float u = gckpti_horner(gckpti_fma(d[6], b, d[5]), b, d);
    p = gckpti_exp_reduce(gckpti_mul(u, -b), &r, &n);
    float s = gckpti_float((n + 127u) << 23);
    float large = gckpti_fma(-r * s, p, 1.0f - s);
    return gckpti_float(gckpti_bits(gckpti_select(a < GCKPTI_ERF_SPLIT, small, large)) | sign);
}

/* x = m * 2^n with 2/3 <= m < 4/3, for finite x > 0 */
GCKPTI_INLINE float gckpti_split(float x, float *n)
{
    int tiny = x < 1.17549435e-38f; /* a subnormal is scaled by 2^23 first */
    uint32_t u = gckpti_bits(tiny ? x * 8388608.0f : x) + 0x00555555u;
    *n = (float)((int32_t)(u >> 23) - (tiny ? 150 : 127));
    return gckpti_float((u & 0x007fffffu) + 0x3f2aaaabu);
}

/* (log(1+f) - f + f^2/2) / f^3 on [-1/3, 1/3], fit 2^-30 of log(1+f) */
GCKPTI_TABLE float gckpti_log_c[9] = { 0.333333343f,  -0.249998271f, 0.199996814f,
                                       -0.166792959f, 0.143027171f,  -0.121994182f,
                                       0.107695557f,  -0.128301099f, 0.119584598f };

/* log(x) = n ln(2) + log(1 + f), ln(2) = 0.693359375 - 2.1219444e-4: n times the first is exact. */
GCKPTI_INLINE float gckpti_log(float x)
{
    const float *c = gckpti_log_c;
    float n, f = gckpti_split(x, &n) - 1.0f, f2 = f * f;
    float p = gckpti_fma(gckpti_fma(c[8], f, c[7]), f, c[6]);
    p = gckpti_horner(gckpti_fma(p, f, c[5]), f, c);
    float high = gckpti_fma(n, 0.693359375f, f);
    float low = f - (high - n * 0.693359375f); /* what the line above rounded away */
    low = gckpti_fma(-0.5f, f2, gckpti_fma(n, -2.12194440e-4f, low));
    float y = high + gckpti_fma(f * f2, p, low);
    y = x > 0.0f ? y : x < 0.0f || x != x ? GCKPTI_NAN : -GCKPTI_INFINITY;
    return x < GCKPTI_INFINITY ? y : x;
}

/* 0: y is no integer; 1: an odd one; 2: an even one, as all are from 2^24 on */
GCKPTI_INLINE int gckpti_whole(float y)
{
    int large = y >= 16777216.0f || y <= -16777216.0f;
    int32_t n = large || y != y ? 0 : (int32_t)y;
    return large ? 2 : (float)n != y ? 0 : 2 - (n & 1);
}

/* log(1 + x) for 0 <= x <= 1: what u = 1 + x rounds away is made up for by x / (u - 1), whose
 * denominator is exact (Kahan). */
GCKPTI_INLINE float gckpti_log1p(float x)
{
    float u = 1.0f + x;
    return u > 1.0f ? gckpti_mul(gckpti_log(u), x / (u - 1.0f)) : x;
}

/* x^y, in all of C's cases: of a negative x only for whole y (else NaN, but inf or 0 of -inf), and
 * its sign stays where y is odd. log|x| is kept to about 2^-37 in doubles: log(m) = s + s^3/D(s^2),
 * s = 2(m-1)/(m+1) (atanh's series), D = 12 - 1.8 s^2 - ..., fit 2^-40. Double products that meet
 * an addition have two 24-bit factors: they are exact. */
GCKPTI_INLINE float gckpti_pow(float x, float y)
{
    uint32_t sign = gckpti_bits(x) & 0x80000000u;
    int whole = sign ? gckpti_whole(y) : 2;
    if (x == 1.0f || y == 0.0f)
        return 1.0f;
    if (x != x || y != y || (!whole && x < 0.0f && x > -GCKPTI_INFINITY))
        return GCKPTI_NAN;
    x = gckpti_float(gckpti_bits(x) ^ sign);
    sign = whole == 1 ? sign : 0;
    if (x == 0.0f || x >= GCKPTI_INFINITY)
        return gckpti_float(sign | ((x == 0.0f) == (y > 0.0f) ? 0 : 0x7f800000u));
    float n;
    double m = (double)gckpti_split(x, &n), s = 2.0 * (m - 1.0) / (m + 1.0);
    float u = (float)(s * s);
    float d = gckpti_fma(gckpti_fma(-0.00684453873f, u, -0.0514065102f), u, -1.80000055f);
    double l = s + s * s * s / ((double)u * (double)d + 12.0), k = (double)n;
    l = k * (double)GCKPTI_LN2_HI + (l + k * (double)GCKPTI_LN2_LO);
    float high = (float)l, low = (float)(l - (double)high);
    y = y > 1e30f ? 1e30f : y < -1e30f ? -1e30f : y;
    double z = (double)y * (double)high + (double)y * (double)low;
    z = z < (double)GCKPTI_EXP_MIN ? (double)GCKPTI_EXP_MIN : z;
    z = z > (double)GCKPTI_EXP_MAX ? (double)GCKPTI_EXP_MAX : z;
    float t = gckpti_fma((float)z, GCKPTI_LOG2E, GCKPTI_ROUND);
    k = (double)(t - GCKPTI_ROUND);
    z = (z - k * (double)GCKPTI_LN2_HI) - k * (double)GCKPTI_LN2_LO;
    float r = (float)z;
    r = gckpti_exp_scale(gckpti_exp_poly(r), r, gckpti_bits(t) - gckpti_bits(GCKPTI_ROUND));
    return gckpti_float(gckpti_bits(r) | sign);
}

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

/* Both from polynomials within a quadrant, hi + lo being the angle there. */
GCKPTI_INLINE void gckpti_sincos_of(gckpti_angle r, float *sine, float *cosine)
{
    float hi = r.hi, lo = r.lo, z = hi * hi;
    float p = gckpti_fma(2.83239228e-06f, z, -0.000198530586f); /* fit 2^-32 */
    p = gckpti_fma(p, z, 0.0083333794f);
    p = gckpti_fma(p, z, -0.166666672f);
    float s = hi + gckpti_fma(hi * z, p, gckpti_fma(-0.5f * z, lo, lo));
    p = gckpti_fma(2.44320927e-05f, z, -0.00138873083f); /* fit 2^-33 */
    p = gckpti_fma(p, z, 0.0416666456f);
    float c = gckpti_fma(-0.5f, z, 1.0f), e = (1.0f - c) - 0.5f * z;       /* c's rounding error */
    e = gckpti_fma(-hi, lo, gckpti_fma(-0.5f, gckpti_fma(hi, hi, -z), e)); /* and z's */
    c = c + gckpti_fma(z * z, p, e);
    uint32_t flip = (r.quadrant & 2) << 30;
    *sine = gckpti_float(gckpti_bits(r.quadrant & 1 ? c : s) ^ flip);
    *cosine = gckpti_float(gckpti_bits(r.quadrant & 1 ? -s : c) ^ flip);
}

/* Sine and cosine of any finite x. Beyond pi/4, x * 2/pi modulo 4 is taken in integers (Payne and
 * Hanek): 96 bits of 2/pi are enough, from the one on whose product with x has the weight 2. */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    static const uint32_t two_over_pi[8] = { 0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                             0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu };
    uint32_t u = gckpti_bits(x) & 0x7fffffffu;
    gckpti_angle r = { 0, gckpti_float(u), 0.0f };
    if (u >= 0x7f800000u) {
        *sine = *cosine = GCKPTI_NAN;
        return;
    }
    if (u > 0x3f490fdau) {
        uint32_t offset = (u >> 23) - 120u;
        const uint32_t *word = two_over_pi + offset / 32;
        uint64_t m = (u & 0x007fffffu) | 0x00800000u, v[3];
        for (int i = 0; i < 3; i++)
            v[i] = ((uint64_t)word[i] << 32 | word[i + 1]) >> (32 - offset % 32) & 0xffffffffu;
        r = gckpti_angle_of((m * v[0] << 32) + m * v[1] + (m * v[2] >> 32));
    }
    gckpti_sincos_of(r, sine, cosine);
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
