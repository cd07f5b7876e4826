/* test_numerics.c - tests the functions of src/num against libm, against their definitions, and against a recorded
 * hash.
 *
 * The golden hash at the end matters most: with every compiler, flag and machine, it must be the same number. A second
 * build with GCKPT_FORCE_SOFT_FMA tests the emulated fma and the integer square root. */
#include "ops/ops.h"
#include "check.h"
#include <math.h>
#include <stdlib.h>

#define FNV_START UINT64_C(0xcbf29ce484222325)

static uint64_t random_state = UINT64_C(0x9e3779b97f4a7c15);
static uint32_t random32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 24);
}

static float with_exponent(uint32_t u, uint32_t exponent)
{
    return gckpti_float((u & 0x807fffffu) | exponent << 23);
}

static int same(float a, float b)
{
    return (a != a && b != b) || gckpti_bits(a) == gckpti_bits(b);
}

/* Returns |got - want| in units of the distance between floats next to `want`. */
static double ulps(float got, double want)
{
    int e;
    if (got != got || want != want)
        return got != got && want != want ? 0 : 1e30;
    if (fabs(want) >= 340282356779733661637539395458142568448.0) /* this rounds to infinity */
        return fabs((double)got) > 3.4028235e38 && (got > 0) == (want > 0) ? 0 : 1e30;
    if (fabs((double)got) > 3.4028235e38)
        return 1e30;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
}

/* ---- fma ---- */
static float fma_reference(float a, float b, float c) /* rounds to odd in double, and then to nearest in float */
{
    volatile double p = (double)a * (double)b, s = p + (double)c, t = s - p, w = s - t;
    volatile double e = (p - w) + ((double)c - t);
    double r = s;
    uint64_t u = gckpti_bits64(r);
    if (e == e && e != 0 && !(u & 1))
        r = gckpti_double((e > 0) == (r > 0) ? u + 1 : u - 1);
    return (float)r;
}

static long fma_bad;
static void fma_check(float a, float b, float c)
{
    float got = gckpti_fma(a, b, c), want = fma_reference(a, b, c);
    int ok = same(got, want);
#ifdef __GLIBC__
    ok = ok && same(got, fmaf(a, b, c)); /* in other C libraries than glibc, fmaf may be inexact */
#endif
    if (!ok && fma_bad++ < 5)
        fprintf(stderr, "fma(%08x, %08x, %08x) = %08x, want %08x\n", (unsigned)gckpti_bits(a),
                (unsigned)gckpti_bits(b), (unsigned)gckpti_bits(c), (unsigned)gckpti_bits(got),
                (unsigned)gckpti_bits(want));
}

static void test_fma(void)
{
    static const uint32_t special[] = {
        0,          1,          2,          3,          0x007fffff, 0x00800000, 0x00800001,
        0x33800000, 0x34000000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x40000000, 0x4b7fffff,
        0x4b800001, 0x5f000000, 0x7f7fffff, 0x7f000000, 0x7f800000, 0x7fc00000
    };
    const int most = check_iterations(1000000), some = check_iterations(300000);
    int n = (int)(sizeof special / sizeof special[0]);
    for (int i = 0; i < n * n * n; i++)
        for (uint32_t signs = 0; signs < 8; signs++)
            fma_check(gckpti_float(special[i % n] | signs << 31),
                      gckpti_float(special[i / n % n] | signs >> 1 << 31),
                      gckpti_float(special[i / n / n] | signs >> 2 << 31));
    for (int i = 0; i < most; i++) /* arbitrary bits */
        fma_check(gckpti_float(random32()), gckpti_float(random32()), gckpti_float(random32()));
    for (int i = 0; i < most; i++) { /* comparable magnitudes */
        uint32_t e = 100 + random32() % 55, f = 100 + random32() % 55;
        float a = with_exponent(random32(), e), b = with_exponent(random32(), f);
        fma_check(a, b, with_exponent(random32(), e + f - 127 - 30 + random32() % 60));
    }
    for (int i = 0; i < most; i++) { /* operands with few bits, so that results are near ties */
        uint32_t e = 80 + random32() % 90, mask = 0xffffffffu << (random32() % 24);
        float a = with_exponent(random32() & mask, e),
              b = with_exponent(random32() & ~(mask >> 12), 127);
        float c = with_exponent(random32() & (0xffffffffu << (random32() % 24)),
                                e - 60 + random32() % 85);
        fma_check(a, b, c);
        fma_check(c, 1.0f, a * gckpti_float((103 + random32() % 3) << 23));
        fma_check(a, gckpti_float(0x3f800001u + random32() % 4), c);
    }
    for (int i = 0; i < most; i++) { /* subnormal results */
        uint32_t e = 1 + random32() % 126, f = 127 - e + random32() % 26;
        f = f > 25 ? f - 25 : 1;
        float a = with_exponent(random32(), e), b = with_exponent(random32(), f);
        fma_check(a, b, with_exponent(random32(), random32() % 4 ? 0 : random32() % 3));
        b = with_exponent(random32() & 0xffff8000u, 102 + random32() % 26);
        a = with_exponent(random32() & 0xffffff00u, random32() % 27);
        fma_check(a, b, gckpti_float((random32() & 0x80000fffu)));
        fma_check(a, b, 0.0f);
    }
    for (uint32_t j = 0; j < 200000; j++) {        /* results next to the tie between two subnormal numbers */
        uint32_t k = 1 + j % 1500, sign = j << 31; /* a*b is about 2^-150 (1 - 2k^2 2^-46) */
        float a = gckpti_float(0x20000000u - 2 * k), b = gckpti_float((0x14000000u + k) | sign);
        fma_check(a, b, gckpti_float((random32() & 0x807fffffu) | 0x00400000u));
        fma_check(a, gckpti_float(0x14000000u | sign), gckpti_float(random32() & 0x807fffffu));
        fma_check(b, gckpti_float(0x20000000u + k), gckpti_float(random32() & 0x80ffffffu));
    }
    for (int i = 0; i < some; i++) { /* around overflow */
        float a = with_exponent(random32() | 0x7fff00u, 190),
              b = with_exponent(random32() & 0x800000ffu, 190);
        fma_check(a, b, with_exponent(random32(), 228 + random32() % 27));
        fma_check(a, 1.0f, with_exponent(random32(), 254));
        fma_check(gckpti_float(0x7f7fffffu), 1.0f,
                  with_exponent(random32() & 0x807f0000u, 225 + random32() % 6));
    }
    CHECK_MSG(fma_bad == 0, "fma: %ld wrong", fma_bad);
}

static void test_sqrt(void)
{
    const int most = check_iterations(1000000);
    long bad = 0, bad_double = 0;
    for (int i = 0; i < most; i++) {
        float x = gckpti_float(random32() & (i % 8 ? 0x7fffffffu : 0x00ffffffu));
        bad += !same(gckpti_sqrt(x), sqrtf(x));
        uint64_t u = (uint64_t)random32() << 32 | random32();
        double d = gckpti_double(i % 4 ? u >> 1 : u >> (12 + random32() % 52)),
               r = gckpti_sqrt_double(d);
        bad_double += !(d != d ? r != r : gckpti_bits64(r) == gckpti_bits64(sqrt(d)));
    }
    for (uint32_t i = 1; i < 4096; i++) { /* squares and their neighbours */
        float x = (float)i * (float)i;
        for (uint32_t j = 0; j < 3; j++) {
            float y = gckpti_float(gckpti_bits(x) - 1 + j);
            bad += !same(gckpti_sqrt(y), sqrtf(y));
        }
    }
    CHECK_MSG(bad == 0, "sqrt: %ld wrong", bad);
    CHECK_MSG(bad_double == 0, "sqrt_double: %ld wrong", bad_double);
    CHECK(same(gckpti_sqrt(-0.0f), -0.0f) && gckpti_sqrt(-1.0f) != gckpti_sqrt(-1.0f));
    CHECK(gckpti_sqrt_double(-1.0) != gckpti_sqrt_double(-1.0) && gckpti_sqrt_double(0.0) == 0.0);
    CHECK(gckpti_sqrt(INFINITY) == INFINITY &&
          gckpti_sqrt_double((double)INFINITY) == (double)INFINITY);
    CHECK(gckpti_rsqrt(4.0f) == 0.5f && gckpti_rsqrt(0.0f) == INFINITY);
}

/* ---- transcendentals ---- */

/* For larger arguments, sin and cos of libm are too inaccurate to compare with: MinGW uses the x87's, whose pi has 66
 * bits. */
#if defined(_WIN32)
static const float max_angle = 1e6f;
#else
static const float max_angle = INFINITY;
#endif

/* Measures the largest error of f compared with g, over random arguments of every binade, and over a sweep of [low,
 * high]. */
static void accuracy(const char *name, float (*f)(float), double (*g)(double), float low,
                     float high, int odd, double limit)
{
    const int any = check_iterations(200000);
    double worst = 0;
    float at = 0;
    for (int k = 0; k < 3 * any; k++) {
        float x =
            k < any
                ? gckpti_float(random32())
                : (float)((double)low + ((double)high - (double)low) * (random32() / 4294967296.0));
        double e;
        if (x != x || ((g == sin || g == cos) && !(fabsf(x) <= max_angle)))
            continue;
        e = ulps(f(x), g((double)x));
        if (odd && !same(f(-x), -f(x)))
            e = 1e30;
        if (e > worst) {
            worst = e;
            at = x;
        }
    }
    printf("  %-5s max error %.3f ulp, at %.9g\n", name, worst, (double)at);
    CHECK_MSG(worst <= limit, "%s(%.9g): %g ulp, limit %g", name, (double)at, worst, limit);
}

static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static float softplus_deriv(float x) { return gckpti_softplus_deriv(gckpti_softplus(x)); }

static void test_accuracy(void)
{
    accuracy("exp", gckpti_exp, exp, -104.0f, 89.0f, 0, 1.0);
    accuracy("exp", gckpti_exp, exp, -1.0f, 1.0f, 0, 1.0);
    accuracy("exp", gckpti_exp, exp, -20.0f, 0.0f, 0, 1.0);
    accuracy("log", gckpti_log, log, 0.25f, 4.0f, 0, 0.9);
    accuracy("log", gckpti_log, log, 0.0f, 1000.0f, 0, 0.9);
    accuracy("tanh", gckpti_tanh, tanh, -1.5f, 1.5f, 1, 1.2);
    accuracy("tanh", gckpti_tanh, tanh, -10.0f, 10.0f, 1, 1.2);
    accuracy("erf", gckpti_erf, erf, -1.5f, 1.5f, 1, 1.2);
    accuracy("erf", gckpti_erf, erf, -5.0f, 5.0f, 1, 1.2);
    accuracy("sin", gckpti_sin, sin, -10.0f, 10.0f, 1, 0.8);
    accuracy("sin", gckpti_sin, sin, -1e6f, 1e6f, 1, 0.8);
    accuracy("cos", gckpti_cos, cos, -10.0f, 10.0f, 0, 0.8);
    accuracy("cos", gckpti_cos, cos, -1e6f, 1e6f, 0, 0.8);

    accuracy("softplus", gckpti_softplus, softplus, -104.0f, 40.0f, 0, 2.9);
    accuracy("softplus", gckpti_softplus, softplus, -1.0f, 1.0f, 0, 2.9);
    accuracy("its slope", softplus_deriv, sigmoid, -104.0f, 40.0f, 0, 3.6);
    accuracy("its slope", softplus_deriv, sigmoid, -1.0f, 1.0f, 0, 3.6);

    double worst_sin = 0, worst_cos = 0, worst_pow = 0; /* arguments next to multiples of pi/2 */
    for (int k = 1; k < 700000; k += 3) {
        float x =
            gckpti_float(gckpti_bits((float)(k * 1.57079632679489661923)) - 1 + (uint32_t)k % 3);
        double e = ulps(gckpti_sin(x), sin((double)x));
        worst_sin = e > worst_sin ? e : worst_sin;
        e = ulps(gckpti_cos(x), cos((double)x));
        worst_cos = e > worst_cos ? e : worst_cos;
    }
    CHECK_MSG(worst_sin <= 0.8 && worst_cos <= 0.8, "near k pi/2: sin %g, cos %g ulp", worst_sin,
              worst_cos);
    for (int k = 0, end = check_iterations(600000); k < end; k++) {
        float x, y;
        switch (k % 4) {
        case 0:
            x = gckpti_float(random32() & 0x7fffffffu);
            y = with_exponent(random32(), 110 + random32() % 30);
            break;
        case 1:
            x = 1.0f + (float)(int32_t)random32() * 1e-10f;
            y = (float)(int32_t)random32() * 1e-7f;
            break;
        case 2:
            x = gckpti_float(random32() & 0x007fffffu);
            y = (float)(int32_t)random32() * 1e-9f;
            break;
        default:
            x = (float)random32() * 1e-6f;
            y = (float)(int32_t)random32() * 1e-8f;
            break;
        }
        if (x != x)
            continue;
        if (k % 3 == 0) { /* a negative base, for which y must be an integer */
            x = -x;
            y = (float)(int32_t)y;
        }
        double e = ulps(gckpti_pow(x, y), pow((double)x, (double)y));
        if (e > 1.0 && e > worst_pow)
            fprintf(stderr, "pow(%.9g, %.9g): %g ulp\n", (double)x, (double)y, e);
        worst_pow = e > worst_pow ? e : worst_pow;
    }
    printf("  pow   max error %.3f ulp; near k pi/2: sin %.3f, cos %.3f\n", worst_pow, worst_sin,
           worst_cos);
    CHECK_MSG(worst_pow <= 1.0, "pow: %g ulp", worst_pow);
}

static void test_dense(void)
{
    double worst_exp = 0, worst_tanh = 0;
    long order = 0; /* counts the steps at which exp(-x) increases although x increases */
    for (uint32_t u = 0x3c000000u; u < 0x42d00000u; u += 173) { /* 2^-7 .. 104 */
        float x = gckpti_float(u);
        double e = ulps(gckpti_exp(-x), exp(-(double)x));
        worst_exp = e > worst_exp ? e : worst_exp;
        order += gckpti_exp(-gckpti_float(u + 173)) > gckpti_exp(-x);
    }
    for (uint32_t u = 0x3c000000u; u < 0x41100000u; u += 97) { /* 2^-7 .. 9 */
        float x = gckpti_float(u);
        double e = ulps(gckpti_tanh(x), tanh((double)x));
        worst_tanh = e > worst_tanh ? e : worst_tanh;
    }
    printf("  dense sweeps: exp %.3f, tanh %.3f ulp\n", worst_exp, worst_tanh);
    CHECK_MSG(worst_exp <= 1.0, "exp: %g ulp", worst_exp);
    CHECK_MSG(worst_tanh <= 1.2, "tanh: %g ulp", worst_tanh);
    CHECK(order == 0);
}

/* Tests the cases of Annex F of the C standard for pow: all pairs of special values and of the neighbours of values
 * at which results change. */
static void test_pow_cases(void)
{
    const float inf = INFINITY, tiny = gckpti_float(1);
    const float at[] = { 0.0f,  tiny, 1e-30f, 0.5f,      1.0f,      1.5f,      2.0f,  3.0f,
                         2.5f,  4.0f, 1e9f,   8388607.0f, 8388609.0f, 16777215.0f, 16777216.0f,
                         1e30f, inf,  NAN };
    const int n = (int)(sizeof at / sizeof *at);
    for (int i = 0; i < 4 * n * n; i++) {
        float x = at[i / 4 % n], y = at[i / 4 / n];
        x = i & 1 ? -x : x;
        y = i & 2 ? -y : y;
        double right = pow((double)x, (double)y);
        float got = gckpti_pow(x, y), nearest = (float)right;
        int fine = same(got, nearest) || (!signbit(got) == !signbit(nearest) && ulps(got, right) <= 1);
        CHECK_MSG(fine, "pow(%.9g, %.9g): %.9g, C has %.9g", (double)x, (double)y, (double)got,
                  (double)nearest);
    }
}

static void test_special_values(void)
{
    float inf = INFINITY, nan = gckpti_float(0x7fc00000u), tiny = gckpti_float(1);
    CHECK(gckpti_exp(0.0f) == 1.0f && gckpti_exp(-0.0f) == 1.0f && gckpti_exp(inf) == inf);
    CHECK(same(gckpti_exp(-inf), 0.0f) && same(gckpti_exp(-1e30f), 0.0f) &&
          gckpti_exp(89.0f) == inf);
    CHECK(gckpti_exp(-103.0f) == tiny && gckpti_exp(-104.0f) == 0.0f && gckpti_exp(tiny) == 1.0f);
    CHECK(same(gckpti_log(1.0f), 0.0f) && gckpti_log(0.0f) == -inf && gckpti_log(-0.0f) == -inf);
    CHECK(gckpti_log(inf) == inf && same(gckpti_log(-1.0f), nan) && same(gckpti_log(-inf), nan));
    CHECK(gckpti_tanh(inf) == 1.0f && gckpti_tanh(-inf) == -1.0f &&
          same(gckpti_tanh(-0.0f), -0.0f));
    CHECK(gckpti_tanh(tiny) == tiny && same(gckpti_tanh(0.0f), 0.0f) && gckpti_tanh(9.5f) == 1.0f);
    CHECK(gckpti_erf(inf) == 1.0f && gckpti_erf(-inf) == -1.0f && same(gckpti_erf(-0.0f), -0.0f));
    CHECK(gckpti_erf(tiny) == tiny && same(gckpti_erf(0.0f), 0.0f) && gckpti_erf(3.95f) == 1.0f);
    CHECK(same(gckpti_sin(-0.0f), -0.0f) && same(gckpti_sin(0.0f), 0.0f) &&
          gckpti_cos(0.0f) == 1.0f);
    CHECK(gckpti_sin(tiny) == tiny && same(gckpti_sin(inf), nan) && same(gckpti_cos(-inf), nan));
    CHECK(same(gckpti_exp(nan), nan) && same(gckpti_log(nan), nan) && same(gckpti_tanh(nan), nan));
    CHECK(gckpti_softplus(inf) == inf && same(gckpti_softplus(-inf), 0.0f) && same(gckpti_softplus(nan), nan));
    CHECK(gckpti_softplus_deriv(inf) == 1 && gckpti_softplus_deriv(17.5f) == 1 &&
          same(gckpti_softplus_deriv(0.0f), 0.0f) && same(gckpti_softplus_deriv(nan), nan));
    CHECK(gckpti_softplus(20.5f) == 20.5f && gckpti_softplus(17.5f) == 17.5f && gckpti_softplus(-103.0f) == tiny);
    CHECK(same(gckpti_erf(nan), nan) && same(gckpti_sin(nan), nan) && same(gckpti_cos(nan), nan));
    CHECK(gckpti_pow(2.0f, 10.0f) == 1024.0f && gckpti_pow(9.0f, 0.5f) == 3.0f &&
          gckpti_pow(2.0f, -149.0f) == tiny);
    CHECK(gckpti_pow(0.0f, 2.0f) == 0.0f && gckpti_pow(0.0f, -2.0f) == inf &&
          gckpti_pow(0.0f, 0.0f) == 1.0f);
    CHECK(gckpti_pow(inf, 2.0f) == inf && gckpti_pow(inf, -2.0f) == 0.0f &&
          gckpti_pow(nan, 0.0f) == 1.0f);
    CHECK(gckpti_pow(2.0f, inf) == inf && gckpti_pow(2.0f, -inf) == 0.0f &&
          gckpti_pow(0.5f, inf) == 0.0f);
    CHECK(gckpti_pow(1.0f, inf) == 1.0f && same(gckpti_pow(2.0f, nan), nan));
    CHECK(gckpti_pow_dispatch(1.2f, 1.0f) == 1.2f && gckpti_pow_dispatch(1.2f, 2.0f) == 1.2f * 1.2f &&
          gckpti_pow_dispatch(1.2f, 3.0f) == 1.2f * 1.2f * 1.2f);
    CHECK(gckpti_pow_dispatch(1.2f, 2.5f) == gckpti_pow(1.2f, 2.5f) &&
          gckpti_pow_dispatch(1.2f, -3.0f) == gckpti_pow(1.2f, -3.0f));
    CHECK(gckpti_pow(2.0f, 3e38f) == inf && gckpti_pow(2.0f, 128.0f) == inf &&
          gckpti_pow(2.0f, 127.0f) < inf);
    CHECK(gckpti_powi(0.5, 3) == 0.125 && gckpti_powi(0.9, 0) == 1.0 &&
          gckpti_powi(-2.0, 5) == -32.0);
    CHECK(fabs(gckpti_powi(0.999, 1000) / pow(0.999, 1000) - 1) < 1e-12 &&
          gckpti_powi(0.9, 1000000000) == 0.0);
}

/* ---- random numbers, reductions, hashes ---- */
static void test_philox(void)
{
    static const uint32_t known[3][10] = {
        /* from Random123's kat_vectors */
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
          0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
          0x94fdcceb, 0x5001e420, 0x24126ea1 }
    };
    uint32_t out[4];
    for (int i = 0; i < 3; i++) {
        const uint32_t *k = known[i];
        gckpti_philox((uint64_t)k[5] << 32 | k[4], (uint64_t)k[1] << 32 | k[0], k[2], k[3], out);
        CHECK(memcmp(out, k + 6, sizeof out) == 0);
    }
    CHECK(gckpti_uniform(0) == 0.0f &&
          gckpti_uniform(0xffffffffu) == 1.0f - 5.9604644775390625e-8f);

    double sum = 0, square = 0, fourth = 0, uniform = 0;
    int n = 200000;
    for (int i = 0; i < n; i++) {
        float pair[2];
        gckpti_philox(7, (uint64_t)i, 1, 0, out);
        gckpti_normal(out[0], out[1], pair);
        for (int j = 0; j < 2; j++) {
            double x = (double)pair[j];
            sum += x;
            square += x * x;
            fourth += x * x * x * x;
        }
        uniform += (double)gckpti_uniform(out[2]);
    }
    CHECK(fabs(sum / (2 * n)) < 0.01 && fabs(square / (2 * n) - 1) < 0.01 &&
          fabs(fourth / (2 * n) - 3) < 0.06);
    CHECK(fabs(uniform / n - 0.5) < 0.003);
    float low[2], high[2];
    gckpti_normal(0, 0, low);
    gckpti_normal(0xffffffffu, 0x80000000u, high);
    CHECK(low[0] > 5.7f && low[0] < 5.8f && high[0] == 0.0f && high[1] == 0.0f);
}

static void test_reductions(void)
{
    static float x[1000], y[1000];
    for (int i = 0; i < 1000; i++) {
        x[i] = with_exponent(random32(), 110 + random32() % 30);
        y[i] = with_exponent(random32(), 110 + random32() % 30);
    }
    for (int n = 0; n <= 1000; n += n < 100 ? 1 : 75) {
        float sum[32], dot[32], best = -INFINITY;
        for (int i = 0; i < 32; i++) {
            sum[i] = dot[i] = 0.0f;
            for (int k = i; k < n; k += 32) {
                sum[i] = sum[i] + x[k];
                dot[i] = fma_reference(x[k], y[k], dot[i]);
                best = x[k] > best ? x[k] : best;
            }
        }
        for (int half = 16; half > 0; half /= 2)
            for (int i = 0; i < half; i++) {
                sum[i] = sum[i] + sum[i + half];
                dot[i] = dot[i] + dot[i + half];
            }
        CHECK(same(gckpti_sum_from(x, n, 0.0f), sum[0]) && same(gckpti_dot(x, y, n), dot[0]) &&
              gckpti_row_max(x, n) == best);
    }
    float one = gckpti_float(0xffc00001u), other = gckpti_float(0x7fc00000u), zero = -0.0f;
    CHECK(same(gckpti_sum_from(&zero, 1, 0.0f), 0.0f));
    CHECK(gckpti_hash_floats(1, &one, 1) == gckpti_hash_floats(1, &other, 1));
    CHECK(gckpti_fnv(FNV_START, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    one = gckpti_float(0x04030201u);
    CHECK(gckpti_hash_floats(FNV_START, &one, 1) ==
          gckpti_fnv(FNV_START, "\1\2\3\4", 4));
}

/* Computes a hash over the results of every function for fixed bit patterns; it must be the same number with all
 * compilers and on all machines. */
static void test_golden(void)
{
    uint64_t hash = FNV_START;
    for (uint32_t i = 0; i < 200000; i++) {
        float x = gckpti_float(i * 21474u), y[13],
              wide = ((float)(int32_t)i - 100000.0f) * 0.0009765625f;
        uint32_t bits[4];
        float in[2] = { x, wide };
        for (int j = 0; j < 2; j++) {
            float *out = y + 6 * j;
            out[0] = gckpti_exp(in[j]);
            out[1] = gckpti_log(in[j]);
            out[2] = gckpti_tanh(in[j]);
            out[3] = gckpti_erf(in[j]);
            gckpti_sincos(in[j], &out[4], &out[5]);
        }
        y[12] = gckpti_pow(x < 0 ? -x : x, wide);
        hash = gckpti_hash_floats(hash, y, 13);
        gckpti_philox(i, i, i, i, bits);
        gckpti_normal(bits[0], bits[1], y);
        y[2] = gckpti_fma(x, wide, y[0]);
        y[3] = gckpti_sqrt(x);
        y[4] = (float)gckpti_sqrt_double((double)y[3] * 1.1);
        y[5] = (float)(1.0 - gckpti_powi(0.999, i));
        hash = gckpti_hash_floats(hash, y, 6);
    }
    printf("  golden %016llx, self test %d\n", (unsigned long long)hash, gckpti_self_test());
    CHECK(hash == UINT64_C(0x26f1d28df0ab6fd2));
    CHECK(gckpti_self_test() == 0);
}

int main(void)
{
    test_fma();
    test_sqrt();
    test_accuracy();
    test_dense();
    test_pow_cases();
    test_special_values();
    test_philox();
    test_reductions();
    test_golden();
    return check_report("numerics");
}
