#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>num: fma, exp, log, pow, tanh, erf, sin, cos, halves, sums, Philox, hash
 *
 * Everything that could differ between two machines, made the same: one fused multiply-add, our own
 * transcendentals on top of it, one order for every sum, counter-based random numbers, one hash.
 *
 * The rule that keeps the bits equal under any compiler: a product never feeds an addition, except
 *   - inside gckpti_fma, which rounds once by definition;
 *   - where the product is exact (powers of two; two floats multiplied in double), so that it does
 *     not matter whether the compiler contracts it. A value that leaves a function as a product
 *     could be contracted after inlining, so such results go through gckpti_mul.
 * Polynomials are minimax fits (Lawson's weighted least squares in 40 digits, coefficients rounded
 * to float one after the other, the rest refitted); "fit 2^-28" is the fit's own relative error.
 * A vector version mirrors exp, tanh and erf operation by operation: selects are written as
 * x < a ? a : x, which is what min and max instructions do, also for NaN.
 * ============================================================================================== */

/* ---- num/arithmetic.c ---- */
/* 1: the builtin is one instruction; 2: clang would call libm's fmaf, which may be wrong (no glibc
 * and -fmath-errno: firmware, musl), so the instruction is written out; 0: emulation.
 * GCKPT_FORCE_SOFT_FMA chooses the emulation and the integer square root, for tests. */
#ifndef GCKPTI_FMA
#if defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||                                         \
    !(defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define GCKPTI_FMA 0
#elif !defined(__clang__) || defined(__NO_MATH_ERRNO__) || defined(__GLIBC__)
#define GCKPTI_FMA 1
#elif defined(__aarch64__) || defined(__arm__) || defined(__x86_64__)
#define GCKPTI_FMA 2
#else
#define GCKPTI_FMA 0
#endif
#endif

GCKPTI_INLINE uint32_t gckpti_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

GCKPTI_INLINE float gckpti_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

GCKPTI_INLINE uint64_t gckpti_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

GCKPTI_INLINE double gckpti_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define GCKPTI_INFINITY gckpti_float(0x7f800000u)
#define GCKPTI_NAN      gckpti_float(0x7fc00000u)

/* a*b + c, rounded once. The emulation: the product is exact in double, the sum s is off by at most
 * half an ulp of double, and rounding s to float goes wrong only when s looks like a tie (its low
 * 29 bits) or is subnormal as a float. Then the error e of s (Knuth's TwoSum) decides: an inexact s
 * with an even last bit moves one step towards the exact sum ("round to odd": Boldo and Melquiond
 * 2008), after which the second rounding is right. */
GCKPTI_INLINE float gckpti_fma(float a, float b, float c)
{
#if GCKPTI_FMA == 3
    return fmaf(a, b, c);
#elif GCKPTI_FMA == 1
    return __builtin_fmaf(a, b, c);
#elif GCKPTI_FMA == 2 && defined(__aarch64__)
    __asm__("fmadd %s0, %s1, %s2, %s0" : "+w"(c) : "w"(a), "w"(b));
    return c;
#elif GCKPTI_FMA == 2 && defined(__arm__)
    __asm__("vfma.f32 %0, %1, %2" : "+t"(c) : "t"(a), "t"(b));
    return c;
#elif GCKPTI_FMA == 2
    __asm__("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
#else
    double p = (double)a * (double)b, s = p + (double)c;
    uint64_t u = gckpti_bits64(s);
    if ((u & 0x1fffffffu) == 0x10000000u || (u << 1) < UINT64_C(0x7020000000000000)) {
        double t = s - p, e = (p - (s - t)) + ((double)c - t);
        if ((e < 0 || e > 0) && !(u & 1))
            s = gckpti_double((e > 0) == (s > 0) ? u + 1 : u - 1);
    }
    return (float)s;
#endif
}

/* condition ? a : b by a mask: both sides are computed, so that a loop over it vectorises. */
GCKPTI_INLINE float gckpti_select(int condition, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return gckpti_float((gckpti_bits(a) & mask) | (gckpti_bits(b) & ~mask));
}

/* a*b, out of reach of contraction; a result of -0 becomes +0. */
GCKPTI_INLINE float gckpti_mul(float a, float b) { return gckpti_fma(a, b, 0.0f); }

/* Square root of m in binary digits, rounded to nearest; m's top two bits make its first digit. */
GCKPTI_INLINE uint64_t gckpti_root(uint64_t m, int digits)
{
    uint64_t root = 0, rest = 0;
    for (int i = 0; i < digits; i++) {
        rest = rest << 2 | m >> 62;
        m <<= 2;
        root <<= 1;
        if (rest > root << 1) {
            rest -= root << 1 | 1;
            root |= 1;
        }
    }
    return root + (rest > root); /* a square root is never a tie */
}

/* Correctly rounded square root. */
GCKPTI_INLINE float gckpti_sqrt(float x)
{
#if GCKPTI_SQRT == 3
    return sqrtf(x);
#elif GCKPTI_SQRT == 1
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#elif GCKPTI_SQRT == 2
    return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0);
#elif GCKPTI_SQRT == 4 && defined(__riscv)
    __asm__("fsqrt.s %0, %1" : "=f"(x) : "f"(x));
    return x;
#elif GCKPTI_SQRT == 4
    __asm__("vsqrt.f32 %0, %1" : "=t"(x) : "t"(x));
    return x;
#else
    if (!(x > 0.0f) || x >= GCKPTI_INFINITY)
        return x < 0.0f ? GCKPTI_NAN : x;
    uint32_t tiny = gckpti_bits(x) < 0x00800000u; /* subnormals are scaled by 2^24 */
    uint32_t u = gckpti_bits(tiny ? x * 16777216.0f : x);
    uint32_t e = (u >> 23) + 129u - 24u * tiny; /* exponent + 256 */
    uint64_t m = (uint64_t)((u & 0x007fffffu) | 0x00800000u) << (39u + (e & 1));
    return gckpti_float(((e / 2 - 2u) << 23) + (uint32_t)gckpti_root(m, 24));
#endif
}

/* The same in double. */
GCKPTI_INLINE double gckpti_sqrt_double(double x)
{
#if GCKPTI_SQRT == 3
    return sqrt(x);
#elif GCKPTI_SQRT == 1
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
#elif GCKPTI_SQRT == 2
    return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0);
#else
    uint64_t u = gckpti_bits64(x);
    if (!(x > 0.0) || u >= UINT64_C(0x7ff0000000000000))
        return x < 0.0 ? gckpti_double(UINT64_C(0x7ff8000000000000)) : x;
    uint32_t tiny = u < UINT64_C(0x0010000000000000);
    u = gckpti_bits64(tiny ? x * 18014398509481984.0 : x); /* 2^54 */
    uint32_t e = (uint32_t)(u >> 52) + 1025u - 54u * tiny; /* exponent + 2048 */
    uint64_t m = (u & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x0010000000000000);
    return gckpti_double(((uint64_t)(e / 2 - 2u) << 52) + gckpti_root(m << (10u + (e & 1)), 53));
#endif
}

GCKPTI_INLINE float gckpti_rsqrt(float x) { return 1.0f / gckpti_sqrt(x); }

/* Shared with the vector kernels. ln 2 = LN2_HI + LN2_LO; adding ROUND rounds to an integer. */
#define GCKPTI_LOG2E   1.44269504f
#define GCKPTI_LN2_HI  0.693147182f
#define GCKPTI_LN2_LO  (-1.90465432e-9f)
#define GCKPTI_ROUND   12582912.0f
#define GCKPTI_EXP_MIN (-104.0f) /* exp is 0 below, */
#define GCKPTI_EXP_MAX 89.0f     /* inf above */

/* (exp(r) - 1 - r) / r^2 on [-0.347, 0.347], fit 2^-28 of exp(r) */
GCKPTI_TABLE float gckpti_exp_c[5] = { 0.49999994f, 0.166665211f, 0.041668281f, 0.0083686905f,
                                       0.00138194906f };

/* (tanh(x)/x - 1) / x^2 in x^2, |x| <= 1, fit 2^-28 */
GCKPTI_TABLE float gckpti_tanh_c[7] = { -0.333332956f,   0.133323461f,    -0.0538798459f,
                                        0.0214866754f,   -0.00794600882f, 0.00230121962f,
                                        -0.000358392805f };

#define GCKPTI_TANH_SPLIT 1.0f
#define GCKPTI_TANH_MAX   20.0f /* of 2|x|: tanh is 1 from 9.02 on */

/* erf(x)/x - 1 in x^2, |x| <= 1, fit 2^-29 */
GCKPTI_TABLE float gckpti_erf_c[7] = { 0.128379166f,   -0.37612626f,  0.112835787f,
                                       -0.0268533472f, 0.0051871622f, -0.00079978531f,
                                       7.80690316e-05f };

/* -log(erfc(x))/x in x, 1 <= x <= 4, fit 2^-31 of erf */
GCKPTI_TABLE float gckpti_erfc_c[7] = { 1.1286943f,     0.634969711f,   0.106530547f,
                                        -0.0240097791f, 0.00375733338f, -0.000350555201f,
                                        1.39585973e-05f };

#define GCKPTI_ERF_SPLIT 1.0f
#define GCKPTI_ERF_MAX   4.0f

/* ---- num/math.c ---- */
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

/* ---- num/random.c ---- */
/* base^n by squaring. volatile keeps the last product away from a caller's 1 - powi(...). */
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
 * bits, a function of key and counter only, so any element can be drawn again, in any order. */
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

/* A random word as a float in [0,1): its 24 high bits. */
GCKPTI_INLINE float gckpti_uniform(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 5.9604644775390625e-8f;
}

GCKPTI_INLINE int64_t gckpti_min(int64_t a, int64_t b) { return a < b ? a : b; }
GCKPTI_FN double gckpti_size(double x);

/* ---- num/halves.c ---- */
GCKPTI_INLINE float gckpti_flush(float x) /* subnormals to zero */
{
    uint32_t u = gckpti_bits(x);
    return u & 0x7f800000u ? x : gckpti_float(u & 0x80000000u);
}

/* d = a*b + c, a link of a bf16 plan's chains (manual, 5l), of nothing subnormal, when it is not
 * above 2^-126 in size. There fma rounds to fewer than 24 bits: whether its 2^-126 was less, and
 * becomes a zero like what is below, the same sum at 2^64 times the scale tells. */
GCKPTI_DEVICE GCKPTI_FN float gckpti_small_link(float a, float b, float c, float d);

GCKPTI_INLINE float gckpti_flushed_fma(float a, float b, float c)
{
    const float d = gckpti_fma(a, b, c);
    return gckpti_bits(d) << 1 > 0x01000000u ? d : gckpti_small_link(a, b, c, d);
}

/* `more` is added to the half that is cut off: 0x7fff + the last bit kept, or 16 random bits. */
GCKPTI_INLINE uint16_t gckpti_halve(uint32_t u, uint32_t more)
{
    if (!(u & 0x7f800000u))
        return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + more) >> 16);
}

GCKPTI_INLINE uint16_t gckpti_to_bf16(float x)
{
    uint32_t u = gckpti_bits(x);
    return gckpti_halve(u, 0x7fffu + (u >> 16 & 1));
}

GCKPTI_INLINE float gckpti_from_bf16(uint16_t x) { return gckpti_float((uint32_t)x << 16); }

GCKPTI_INLINE uint16_t gckpti_to_f16(float x)
{
    uint32_t u = gckpti_bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return 0x7e00u;
    if (u < 0x38800000u) /* below 2^-14: counted in units of 2^-24, by adding 2^23 of them */
        return (uint16_t)(sign |
                          (gckpti_bits(gckpti_float(u) * 16777216.0f + 8388608.0f) & 0x7ffu));
    return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1) - 0x38000000u) >> 13);
}

/* Without branches, for vectors: 2^112 is the quotient of the units, infinity and NaN follow. */
GCKPTI_INLINE float gckpti_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t u = gckpti_bits(gckpti_float(rest) * 5192296858534827628530496329220096.0f);
    u |= sign | (rest >= 0x0f800000u ? 0x7f800000u : 0u);
    return gckpti_float(rest > 0x0f800000u ? 0x7fc00000u : u);
}

/* Two words to two independent standard normal values (Box and Muller), magnitude at most 5.77:
 * r = sqrt(-2 log((top 24 bits of a + 1) / 2^24)); mul(r, cos), mul(r, sin) of mul(2 pi, u(b)). */
GCKPTI_INLINE void gckpti_normal(uint32_t a, uint32_t b, float out[2])
{
    float s, c, u = (float)(int32_t)((a >> 8) + 1) * 5.9604644775390625e-8f; /* (0,1] */
    float r = gckpti_sqrt(-2.0f * gckpti_log(u));
    gckpti_sincos(gckpti_mul(6.28318531f, gckpti_uniform(b)), &s, &c);
    out[0] = gckpti_mul(r, c);
    out[1] = gckpti_mul(r, s);
}

/* ---- num/sums.c ---- */
/* Row reductions: 32 lanes from +0, lane i takes elements i, i+32, ...; then a tree of halves. */
GCKPTI_INLINE float gckpti_lanes_sum(float lane[32])
{
    for (int half = 16; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

GCKPTI_INLINE float gckpti_sum(const float *x, int64_t n)
{
    float lane[32] = { 0.0f };
    int64_t k = 0;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] += x[k + i];
    for (int i = 0; k + i < n; i++)
        lane[i] += x[k + i];
    return gckpti_lanes_sum(lane);
}

GCKPTI_INLINE float gckpti_dot(const float *x, const float *y, int64_t n)
{
    float lane[32] = { 0.0f };
    int64_t k = 0;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] = gckpti_fma(x[k + i], y[k + i], lane[i]);
    for (int i = 0; k + i < n; i++)
        lane[i] = gckpti_fma(x[k + i], y[k + i], lane[i]);
    return gckpti_lanes_sum(lane);
}

/* Greatest element, -inf when n is 0. A NaN is passed over (what reads the row next meets it). */
GCKPTI_INLINE float gckpti_max(const float *x, int64_t n)
{
    float lane[32];
    int64_t k = 0;
    for (int i = 0; i < 32; i++)
        lane[i] = -GCKPTI_INFINITY;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] = x[k + i] > lane[i] ? x[k + i] : lane[i];
    for (int i = 0; k + i < n; i++)
        lane[i] = x[k + i] > lane[i] ? x[k + i] : lane[i];
    for (int half = 16; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
    return lane[0];
}

/* What a softmax subtracts from scores whose greatest is `top`; where all are -inf, nothing, and in
 * the end their sum 0 is taken as 1, so that all probabilities are 0 (manual, 5h). */
GCKPTI_INLINE float gckpti_shift(float top) { return top > -GCKPTI_INFINITY ? top : 0.0f; }

GCKPTI_INLINE void gckpti_softmax_end(float *max, float *sum)
{
    if (*sum == 0.0f)
        *max = 0.0f, *sum = 1.0f;
}

/* One step of the online softmax (Milakov & Gimelshein 2018), over n scores x: max' = max(max, x),
 * factor = exp(max - shift(max')), p = exp(x - shift(max')), sum = fma(sum, factor, sum of p by
 * lanes); the first step takes max' = max(x), sum = sum of p. p may be x, or NULL. Returns the
 * factor (first: 0). */
GCKPTI_INLINE float gckpti_online(const float *x, float *p, int64_t n, int first, float *max,
                                  float *sum)
{
    float top = gckpti_max(x, n), factor = 0.0f;
    if (!first) {
        top = top > *max ? top : *max;
        factor = gckpti_exp(*max - gckpti_shift(top));
    }
    float shift = gckpti_shift(top), lane[32] = { 0.0f };
    for (int64_t j = 0; j < n; j++) {
        float e = gckpti_exp(x[j] - shift);
        lane[j & 31] += e;
        if (p)
            p[j] = e;
    }
    float added = gckpti_lanes_sum(lane);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = top;
    return factor;
}

/* FNV-1a, 64 bits, from GCKPTI_FNV_START. Floats go in as little-endian words, every NaN as one. */
#define GCKPTI_FNV_START UINT64_C(0xcbf29ce484222325)

GCKPTI_INLINE uint64_t gckpti_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The lowest `bits` of a number, in bytes, lowest first. */
GCKPTI_INLINE uint64_t gckpti_fnv_bits(uint64_t hash, uint64_t value, int bits)
{
    for (int i = 0; i < bits; i += 8)
        hash = (hash ^ (value >> i & 0xffu)) * UINT64_C(0x100000001b3);
    return hash;
}

/* Most numbers are a byte; the seven zeros behind it are multiplications only. */
GCKPTI_INLINE uint64_t gckpti_fnv_number(uint64_t hash, uint64_t value)
{
    return value < 256 ? (hash ^ value) * UINT64_C(0x1efac7090aef4a21)
                       : gckpti_fnv_bits(hash, value, 64);
}

GCKPTI_INLINE uint64_t gckpti_hash_floats(uint64_t hash, const float *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        hash = gckpti_fnv_bits(hash, x[k] != x[k] ? 0x7fc00000u : gckpti_bits(x[k]), 32);
    return hash;
}

/* 0 when this build keeps the contract; 1 subnormals are flushed to zero (-ffast-math at link
 * time), 2 fma is wrong, 3 sums are re-associated, 4 another result differs. volatile: the machine
 * is asked, not the compiler. */
GCKPTI_INLINE int gckpti_self_test(void)
{
    static const float fma_case[3][3] = { { 0.9474001f, 4.639901e-7f, -0.24325085f },
                                          { -1.9369631e13f, 2.1513551e-7f, -1.7354427e-24f },
                                          { -4.1369128e-25f, 1.69365241e-21f, 9.18382988e-41f } };
    static const uint32_t fma_result[3] = { 0xbe7916a3u, 0xca7e56dfu, 0x00010001u };
    volatile float small = 1e-30f, tiny = 1e-10f, big = 33554432.0f, one = 1.0f;
    volatile float product = small * tiny;
    if (gckpti_bits(product) != 0x000116c2u)
        return 1;
    for (int i = 0; i < 3; i++) {
        volatile float a = fma_case[i][0], b = fma_case[i][1], c = fma_case[i][2];
        if (gckpti_bits(gckpti_fma(a, b, c)) != fma_result[i])
            return 2;
    }
    float sum = big, step = one;
    if ((step + sum) - sum != 0.0f || (step - sum) + sum != 0.0f)
        return 3;
    uint64_t hash = GCKPTI_FNV_START;
    if (GCKPTI_LEAN) /* nothing is called that the plan does not need */
        return 0;
    for (int i = 0; i < 64; i++) {
        volatile float input = (float)(i - 32) * 0.40625f;
        float x = input, a = x * x + 0.015625f; /* exact */
        float y[8] = { gckpti_exp(8.0f * x), gckpti_log(a),         gckpti_tanh(0.25f * x),
                       gckpti_erf(0.5f * x), gckpti_sin(97.0f * x), gckpti_cos(a * a * a),
                       gckpti_pow(a, x),     gckpti_rsqrt(a) };
        hash = gckpti_hash_floats(hash, y, 8);
    }
    return hash == UINT64_C(0x2d05651250eb440d) ? 0 : 4;
}

/* ---- num/chains.c ---- */
/* The next link of n chains: d[j] = fma(s, x[j], d[j]). */
GCKPTI_INLINE void gckpti_link(float s, const float *x, int64_t n, float *d)
{
    for (const float *end = x + n; x < end; x++, d++)
        *d = gckpti_fma(s, *x, *d);
}

/* n whole chains: d[j] += a[p * a_step] b[j * stride + p], p = 0..k-1 ascending. Four go side by
 * side, since one alone would wait for each fma to finish; at the end the last is repeated and not
 * stored. */
GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d);
GCKPTI_FN void gckpti_from_bf16s(const uint16_t *x, float *y, int64_t n);
GCKPTI_FN void gckpti_to_bf16s(const float *x, uint16_t *y, int64_t n);
