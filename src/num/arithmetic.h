#pragma once
#include "base/base.h"

/* GCKPTI_FMA: 1 if the fma builtin is one instruction; 2 if clang would call libm's fmaf, which may
 * be wrong (no glibc and -fmath-errno: firmware, musl), so that assembly is used; 0 if fma is
 * emulated. GCKPT_FORCE_SOFT_FMA selects emulation and the integer square root, for tests. */
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

/* Marks functions that are not inlined, since they are long or rarely called. */
#if defined(__GNUC__) && !defined(__CUDACC__) && !GCKPTI_IS_SMALL
#define GCKPTI_NOINLINE GCKPTI_UNUSED static __attribute__((noinline))
#define GCKPTI_RARE     __attribute__((cold))
#else
#define GCKPTI_NOINLINE GCKPTI_INLINE
#define GCKPTI_RARE
#endif

/* Returns a*b + c, rounded once. Emulation: the product is exact in double; the sum s is off by at
 * most half an ulp of double, and rounding s to float goes wrong only if s looks like a tie (its
 * low 29 bits) or is subnormal as a float. Then the error e of s (Knuth's TwoSum) decides: an
 * inexact s with an even last bit moves one step towards the exact sum ("round to odd": Boldo and
 * Melquiond 2008), after which rounding to float is right. */
#if !GCKPTI_FMA
GCKPTI_RARE GCKPTI_NOINLINE double gckpti_round_odd(double p, double c, double s)
{
    uint64_t u = gckpti_bits64(s);
    double t = s - p, e = (p - (s - t)) + (c - t);
    return (e < 0 || e > 0) && !(u & 1) ? gckpti_double((e > 0) == (s > 0) ? u + 1 : u - 1) : s;
}
#endif
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
    if ((u & 0x1fffffffu) == 0x10000000u || (u << 1) < UINT64_C(0x7020000000000000))
        s = gckpti_round_odd(p, (double)c, s);
    return (float)s;
#endif
}

/* Returns a*b, which no compiler can contract with an addition; a result of -0 becomes +0. (In
 * double, the product is exact.) */
GCKPTI_INLINE float gckpti_mul(float a, float b)
{
    return GCKPTI_FMA ? gckpti_fma(a, b, 0.0f) : (float)((double)a * (double)b + 0.0);
}

/* Returns m's root, to nearest, in `digits` binary digits; m's top two bits give the first. */
GCKPTI_INLINE uint64_t gckpti_isqrt(uint64_t m, int digits)
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
    return root + (rest > root); /* no square root is a tie */
}

/* Returns the square root, correctly rounded. */
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
    uint32_t tiny = gckpti_bits(x) < 0x00800000u; /* scale subnormals by 2^24 */
    uint32_t u = gckpti_bits(tiny ? x * 16777216.0f : x);
    uint32_t e = (u >> 23) + 129u - 24u * tiny; /* exponent + 256 */
    uint64_t m = (uint64_t)((u & 0x007fffffu) | 0x00800000u) << (39u + (e & 1));
    return gckpti_float(((e / 2 - 2u) << 23) + (uint32_t)gckpti_isqrt(m, 24));
#endif
}

/* Returns the square root in double, correctly rounded: in integers, as a step takes only one. */
GCKPTI_INLINE double gckpti_sqrt_double(double x)
{
    uint64_t u = gckpti_bits64(x);
    if (!(x > 0.0) || u >= UINT64_C(0x7ff0000000000000))
        return x < 0.0 ? gckpti_double(UINT64_C(0x7ff8000000000000)) : x;
    uint32_t tiny = u < UINT64_C(0x0010000000000000);
    u = gckpti_bits64(tiny ? x * 18014398509481984.0 : x); /* x 2^54 */
    uint32_t e = (uint32_t)(u >> 52) + 1025u - 54u * tiny; /* exponent + 2048 */
    uint64_t m = (u & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x0010000000000000);
    return gckpti_double(((uint64_t)(e / 2 - 2u) << 52) + gckpti_isqrt(m << (10u + (e & 1)), 53));
}

GCKPTI_INLINE float gckpti_rsqrt(float x) { return 1.0f / gckpti_sqrt(x); }

/* Constants of num/formulas.h. ln 2 = LN2_HI + LN2_LO; adding ROUND rounds to an integer. */
#define GCKPTI_LOG2E   1.44269504f
#define GCKPTI_LN2_HI  0.693147182f
#define GCKPTI_LN2_LO  (-1.90465432e-9f)
#define GCKPTI_ROUND   12582912.0f
#define GCKPTI_EXP_MIN (-104.0f) /* exp(x) is 0 for smaller x */
#define GCKPTI_EXP_MAX 89.0f     /* exp(x) is inf for greater x */

#define GCKPTI_SELU_HIGH 1.05070102f /* selu: its scale, and scale 1.67326324 */
#define GCKPTI_SELU_LOW  1.75809932f
#define GCKPTI_TANH_MAX  20.0f     /* here tanh (taken at 2|x|) and softplus's derivative are 1 */
#define GCKPTI_SIN_SPLIT 131072.0f /* see V(sin_shifted) */

#define GCKPTI_GELU_C1 0.797884561f  /* sqrt(2/pi) */
#define GCKPTI_GELU_C3 0.0356774081f /* sqrt(2/pi) * 0.044715 */

/* Returns 0 if y is not an integer, 1 if it is odd, 2 if it is even (as from 2^24 on). */
GCKPTI_INLINE int gckpti_parity(float y)
{
    int large = y >= 16777216.0f || y <= -16777216.0f;
    int32_t n = large || y != y ? 0 : (int32_t)y;
    return large ? 2 : (float)n != y ? 0 : 2 - (n & 1);
}

/* An angle: quadrants and hi + lo, |hi| <= pi/4; before gckpti_radians, 2^62 is a quadrant. */
typedef struct {
    uint32_t quadrant;
    float hi, lo;
} gckpti_angle;

/* Returns the angle p, of which 2^64 is a full circle; hi + lo are in the units of p. */
GCKPTI_INLINE gckpti_angle gckpti_angle_units(uint64_t p)
{
    gckpti_angle r;
    r.quadrant = (uint32_t)((p + (UINT64_C(1) << 61)) >> 62);
    p -= (uint64_t)r.quadrant << 62;
    /* in two halves, the upper one signed: gcc -m32 may keep a converted int64_t, unrounded, in an
     * x87 register */
    double angle = (double)(int32_t)(uint32_t)(p >> 31) * 2147483648.0;
    angle += (double)(int32_t)(p & 0x7fffffffu);
    r.hi = (float)angle, r.lo = (float)(angle - (double)r.hi);
    return r;
}

/* Converts an angle from units to radians. */
GCKPTI_INLINE gckpti_angle gckpti_radians(gckpti_angle r)
{
    const float a = r.hi, b = r.lo;
    r.hi = gckpti_mul(a, 3.40612167e-19f); /* pi/2 * 2^-62 */
    r.lo = gckpti_fma(a, 3.40612167e-19f, -r.hi);
    r.lo = gckpti_fma(b, 3.40612167e-19f, gckpti_fma(a, -9.4783968e-27f, r.lo));
    return r;
}

enum { GCKPTI_SMALL_ANGLE = 0x3f490fda }; /* the bits of pi/4, rounded down */

/* Reduces a finite x beyond pi/4, with bits u: x * 2/pi modulo 4, in integers (Payne and Hanek).
 * That takes 96 bits of 2/pi, from the bit on whose product with x has the weight 2. */
GCKPTI_NOINLINE gckpti_angle gckpti_angle_large(uint32_t u)
{
    static const uint32_t two_over_pi[8] = { 0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                             0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu };
    uint32_t offset = (u >> 23) - 120u;
    const uint32_t *word = two_over_pi + offset / 32;
    uint64_t m = (u & 0x007fffffu) | 0x00800000u, v[3];
    for (int i = 0; i < 3; i++)
        v[i] = ((uint64_t)word[i] << 32 | word[i + 1]) >> (32 - offset % 32) & 0xffffffffu;
    return gckpti_angle_units((m * v[0] << 32) + m * v[1] + (m * v[2] >> 32));
}

/* Returns the angle of |x|, or NaN if x is not finite. */
GCKPTI_NOINLINE gckpti_angle gckpti_angle_of(float x)
{
    uint32_t u = gckpti_bits(x) & 0x7fffffffu;
    gckpti_angle r = { 0, u < 0x7f800000u ? gckpti_float(u) : GCKPTI_NAN, 0.0f };
    return u > GCKPTI_SMALL_ANGLE && u < 0x7f800000u ? gckpti_radians(gckpti_angle_large(u)) : r;
}
