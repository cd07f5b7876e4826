/* ---- exp, tanh, erf, log, pow, and unary ops made of them, operation by operation ----
 * Polynomials are minimax fits (Lawson's weighted least squares in 40 digits, coefficients rounded
 * to float one by one, the rest refitted); "fit 2^-28" is the polynomial's relative error. */

/* Returns p x^5 + c[4] x^4 + ... + c[0] by five steps of Horner's rule. */
GCKPTI_INLINED FLOATS V(horner)(FLOATS p, FLOATS x, const float *c)
{
    p = V(fma)(V(fma)(p, x, V(set1)(c[4])), x, V(set1)(c[3]));
    p = V(fma)(V(fma)(p, x, V(set1)(c[2])), x, V(set1)(c[1]));
    return V(fma)(p, x, V(set1)(c[0]));
}

/* Evaluates c[6] x^6 + ... + c[0] by six steps of Horner's rule. */
GCKPTI_INLINED FLOATS V(horner7)(FLOATS x, const float *c)
{
    return V(horner)(V(fma)(V(set1)(c[6]), x, V(set1)(c[5])), x, c);
}

/* Returns (exp(r) - 1) / r for |r| <= ln(2)/2: fit 2^-28 of exp(r) on [-0.347, 0.347] */
GCKPTI_INLINED FLOATS V(exp_poly)(FLOATS r)
{
    static const float c[6] = { 1.0f,         0.49999994f,   0.166665211f,
                                0.041668281f, 0.0083686905f, 0.00138194906f };
    return V(horner)(V(set1)(c[5]), r, c);
}

/* Reduction of exp(x) = 2^n (1 + r p): n = nearest integer to x/ln(2), *t = n + ROUND, *r = x - n
 * ln(2) (Cody and Waite; with an fma x - n*LN2_HI is exact). Returns p = (exp(r) - 1) / r. */
GCKPTI_INLINED FLOATS V(exp_reduce)(FLOATS x, FLOATS *r, FLOATS *t)
{
    *t = V(fma)(x, V(set1)(GCKPTI_LOG2E), V(set1)(GCKPTI_ROUND));
    FLOATS n = *t - GCKPTI_ROUND;
    *r = V(fma)(n, V(set1)(-GCKPTI_LN2_HI), x);
    *r = V(fma)(n, V(set1)(-GCKPTI_LN2_LO), *r);
    return V(exp_poly)(*r);
}
GCKPTI_INLINED INTS V(rounded_int)(FLOATS t) { return V(bits)(t) - gckpti_bits(GCKPTI_ROUND); }

/* Returns 2^n (1 + r p), by 2^half 2^(n - half), for results outside the normal range. */
GCKPTI_INLINED FLOATS V(exp_scale)(FLOATS p, FLOATS r, FLOATS t)
{
#if GCKPTI_ISA == 3 /* one instruction, also one rounding */
    return _mm512_scalef_ps(V(fma)(r, p, V(set1)(1.0f)), t - GCKPTI_ROUND);
#else
    INTS n = V(rounded_int)(t) + 254u, half = n >> 1;
    FLOATS s = V(from_exponent)(half);
    return V(fma)(V(fma)(r * s, p, s), V(from_exponent)(n - half), V(zero)());
#endif
}

GCKPTI_INLINED FLOATS V(exp)(FLOATS x)
{
    FLOATS r, t, p;
    x = V(vmin)(V(set1)(GCKPTI_EXP_MAX), V(vmax)(V(set1)(GCKPTI_EXP_MIN), x));
    p = V(exp_reduce)(x, &r, &t);
    return V(exp_scale)(p, r, t);
}

/* tanh: x + x^3 P(x^2) near 0, else 1 - 2/(exp(2x) + 1), exp(2x) + 1 = r p 2^n + (2^n + 1) */
GCKPTI_INLINED FLOATS V(tanh)(FLOATS x)
{
    /* P: (tanh(x)/x - 1) / x^2 by powers of x^2, |x| <= 1, fit 2^-28 */
    static const float c[7] = { -0.333332956f,   0.133323461f,   -0.0538798459f,  0.0214866754f,
                                -0.00794600882f, 0.00230121962f, -0.000358392805f };
    FLOATS a = V(abs)(x), z = a * a, r, t, p, s;
    FLOATS inner = V(fma)(a * z, V(horner7)(z, c), a);
    p = V(exp_reduce)(V(vmin)(V(set1)(GCKPTI_TANH_MAX), a + a), &r, &t);
    s = V(from_exponent)(V(rounded_int)(t) + 127u);
    p = 1.0f - 2.0f / V(fma)(r * s, p, s + 1.0f);
    return V(bit_or)(V(if_less)(a, V(set1)(1.0f), inner, p), V(sign_bit)(x));
}

/* erf: x + x P(x^2) near 0, else 1 - exp(-x Q(x)), where exp(-u) = 2^n + r p 2^n */
GCKPTI_INLINED FLOATS V(erf)(FLOATS x)
{
    /* P: erf(x)/x - 1 by powers of x^2, |x| <= 1, fit 2^-29 */
    static const float middle[7] = { 0.128379166f,  -0.37612626f,    0.112835787f,   -0.0268533472f,
                                     0.0051871622f, -0.00079978531f, 7.80690316e-05f };
    /* Q: -log(erfc(x))/x by powers of x, 1 <= x <= 4, fit 2^-31 of erf */
    static const float tail[7] = { 1.1286943f,     0.634969711f,     0.106530547f,   -0.0240097791f,
                                   0.00375733338f, -0.000350555201f, 1.39585973e-05f };
    FLOATS a = V(abs)(x), b = V(vmin)(V(set1)(4.0f), a), r, t, p, s;
    FLOATS inner = V(fma)(a, V(horner7)(a * a, middle), a);
    p = V(fma)(V(horner7)(b, tail), -b, V(zero)());
    p = V(exp_reduce)(p, &r, &t);
    s = V(from_exponent)(V(rounded_int)(t) + 127u);
    p = V(fnma)(r * s, p, 1.0f - s);
    return V(bit_or)(V(if_less)(a, V(set1)(1.0f), inner, p), V(sign_bit)(x));
}

/* Splits a finite x > 0 into m * 2^n, 2/3 <= m < 4/3; a subnormal is scaled by 2^23 first. */
GCKPTI_INLINED FLOATS V(frexp)(FLOATS x, FLOATS *n)
{
    const FLOATS least = V(set1)(1.17549435e-38f);
    const INTS u = V(bits)(V(if_less)(x, least, x * 8388608.0f, x)) + 0x00555555u;
    *n = V(if_less)(x, least, V(set1)(8388608.0f + 150.0f), V(set1)(8388608.0f + 127.0f));
    *n = V(floats)((u >> 23) + 0x4b000000u) - *n; /* these bits are 2^23 + n */
    return V(floats)((u & 0x007fffffu) + 0x3f2aaaabu);
}

/* log(x) = n ln(2) + log(1 + f), ln(2) = 0.693359375 - 2.1219444e-4: n times the first is exact. */
GCKPTI_INLINED FLOATS V(log)(FLOATS x)
{
    /* (log(1+f) - f + f^2/2) / f^3 by powers of f on [-1/3, 1/3], fit 2^-30 of log(1+f) */
    static const float c[9] = { 0.333333343f,  -0.249998271f, 0.199996814f,
                                -0.166792959f, 0.143027171f,  -0.121994182f,
                                0.107695557f,  -0.128301099f, 0.119584598f };
    const FLOATS zero = V(zero)(), inf = V(set1)(GCKPTI_INFINITY);
    FLOATS n, f = V(frexp)(x, &n) - 1.0f, f2 = f * f, high, low, y;
    FLOATS p = V(fma)(V(fma)(V(set1)(c[8]), f, V(set1)(c[7])), f, V(set1)(c[6]));
    p = V(horner)(V(fma)(p, f, V(set1)(c[5])), f, c);
    high = V(fma)(n, V(set1)(0.693359375f), f);
    low = f - (high - n * 0.693359375f); /* the rounding error of the line above */
    low = V(fma)(V(set1)(-0.5f), f2, V(fma)(n, V(set1)(-2.12194440e-4f), low));
    y = high + V(fma)(f * f2, p, low);
    y = V(if_less)(zero, x, y, V(if_less)(x, zero, V(set1)(GCKPTI_NAN), -inf));
    return V(if_less)(x, inf, y, x);
}

/* Returns log(1 + x) for 0 <= x <= 1. The factor x / (u - 1) corrects the rounding of u = 1 + x;
 * its denominator is exact (Kahan). */
GCKPTI_INLINED FLOATS V(log1p)(FLOATS x)
{
    const FLOATS one = V(set1)(1.0f), u = one + x;
    return V(if_less)(one, u, V(fma)(V(log)(u), x / (u - one), V(zero)()), x);
}

/* x^e as C's pow: for a negative x NaN, unless e is whole (-inf gives inf or 0); the sign of x
 * stays if e is odd. log|x| is kept to about 2^-37 in doubles: log(m) = s + s^3/D(s^2), s =
 * 2(m-1)/(m+1) (atanh's series), D = 12 - 1.8 s^2 - ..., fit 2^-40. Products of doubles that are
 * added have two 24-bit factors: they are exact. */
GCKPTI_ISA_NOINLINE FLOATS V(pow)(FLOATS x, float e)
{
    const float limited = e > 1e30f ? 1e30f : e < -1e30f ? -1e30f : e;
    const FLOATS zero = V(zero)(), inf = V(set1)(GCKPTI_INFINITY), nan = V(set1)(GCKPTI_NAN);
    const int parity = gckpti_parity(e);
    GCKPTI_DOUBLES m, k, s, d, l, high, low;
    FLOATS n, t, u, r, a = V(abs)(x);
    if (e == 0.0f)
        return V(set1)(1.0f);
    if (e != e)
        return V(if_equal)(x, V(set1)(1.0f), x, V(set1)(e));
#if GCKPTI_ISA < 0 /* a single lane */
    if (parity == 0 && x < zero && x > -inf)
        return nan;
#endif
    V(to_doubles)(V(frexp)(a, &n), &m);
    V(to_doubles)(n, &k);
    s = 2.0 * (m - 1.0) / (m + 1.0);
    l = s * s;
    u = V(to_floats)(&l);
    V(to_doubles)(u, &m);
    t = V(fma)(V(set1)(-0.00684453873f), u, V(set1)(-0.0514065102f));
    V(to_doubles)(V(fma)(t, u, V(set1)(-1.80000055f)), &d);
    l = s + s * s * s / (m * d + 12.0);
    l = k * (double)GCKPTI_LN2_HI + (l + k * (double)GCKPTI_LN2_LO);
    V(to_doubles)(V(to_floats)(&l), &high);
    l = l - high;
    V(to_doubles)(V(to_floats)(&l), &low);
    l = (double)limited * high + (double)limited * low;
    u = V(to_floats)(&l);
    t = V(fma)(u, V(set1)(GCKPTI_LOG2E), V(set1)(GCKPTI_ROUND));
    V(to_doubles)(t - GCKPTI_ROUND, &k);
    l = (l - k * (double)GCKPTI_LN2_HI) - k * (double)GCKPTI_LN2_LO;
    r = V(to_floats)(&l);
    r = V(exp_scale)(V(exp_poly)(r), r, t);
    r = V(if_less)(u, V(set1)(GCKPTI_EXP_MIN), zero,
                   V(if_less)(V(set1)(GCKPTI_EXP_MAX), u, inf, r));
    r = V(if_less)(a, inf, V(if_less)(zero, a, r, e > 0.0f ? zero : inf), e > 0.0f ? inf : zero);
    if (parity == 1)
        r = V(bit_or)(r, V(sign_bit)(x));
    if (parity == 0)
        r = V(if_less)(x, zero, V(if_less)(-inf, x, nan, r), r);
    return V(if_equal)(x, x, r, x);
}

/* Returns x^e, with one rounding if e is 1 or 2; x x x if e is 3. */
GCKPTI_INLINED FLOATS V(pow_dispatch)(FLOATS x, float e)
{
    if (e == 1.0f)
        return x;
    if (e == 2.0f)
        return x * x;
    if (e == 3.0f)
        return x * x * x;
    return V(pow)(x, e);
}

/* gelu: u = sqrt(2/pi) (x + 0.044715 x^3), t = tanh(u), y = x/2 (1 + t)
 *   u = x fma(x^2, C3, C1), y = fma(x/2, t, x/2)
 * derivative: (1 + t)/2 + x/2 (1 - t^2) u',  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
 *   fma(x/2 fma(-t, t, 1), u', fma(1/2, t, 1/2)),  u' = fma(x^2, 3 C3, C1)
 * Hendrycks & Gimpel 2016. */
GCKPTI_INLINED FLOATS V(gelu_cubic)(FLOATS x, float c3)
{
    return V(fma)(x * x, V(set1)(c3), V(set1)(GCKPTI_GELU_C1));
}
GCKPTI_INLINED FLOATS V(gelu)(FLOATS x)
{
    FLOATS t = V(tanh)(x * V(gelu_cubic)(x, GCKPTI_GELU_C3)), half = 0.5f * x;
    return V(fma)(half, t, half);
}
GCKPTI_INLINED FLOATS V(gelu_deriv)(FLOATS x)
{
    const FLOATS half = V(set1)(0.5f);
    FLOATS t = V(tanh)(x * V(gelu_cubic)(x, GCKPTI_GELU_C3));
    FLOATS u = half * x * V(fnma)(t, t, V(set1)(1.0f));
    return V(fma)(u, V(gelu_cubic)(x, 3.0f * GCKPTI_GELU_C3), V(fma)(half, t, half));
}

/* gelu_erf: e = erf(0.707106781 x), y = x/2 (1 + e);  y' = (1 + e)/2 + x exp(-x^2/2) / sqrt(2 pi)
 *   fma(x/2, e, x/2);  fma(0.398942280 x, exp((-x/2) x), fma(1/2, e, 1/2)) */
GCKPTI_INLINED FLOATS V(gelu_erf)(FLOATS x)
{
    FLOATS e = V(erf)(0.707106781f * x), half = 0.5f * x;
    return V(fma)(half, e, half);
}
GCKPTI_INLINED FLOATS V(gelu_erf_deriv)(FLOATS x)
{
    const FLOATS half = V(set1)(0.5f);
    FLOATS e = V(fma)(half, V(erf)(0.707106781f * x), half);
    return V(fma)(0.398942280f * x, V(exp)(-0.5f * x * x), e);
}

/* tanh: derivative 1 - y^2 = fma(-y, y, 1) */
GCKPTI_INLINED FLOATS V(tanh_deriv)(FLOATS y) { return V(fnma)(y, y, V(set1)(1.0f)); }

/* sigmoid: y = 1 / (1 + exp(-x)), derivative y - y^2 = fma(-y, y, y) */
GCKPTI_INLINED FLOATS V(sigmoid)(FLOATS x) { return 1.0f / (1.0f + V(exp)(-x)); }
GCKPTI_INLINED FLOATS V(sigmoid_deriv)(FLOATS y) { return V(fnma)(y, y, y); }

/* silu: s = 1 / (1 + exp(-x)), y = x s = x / (1 + exp(-x));  y' = s + x s (1 - s)
 *   = fma(x s, 1 - s, s). Elfwing 2017. */
GCKPTI_INLINED FLOATS V(silu)(FLOATS x) { return x / (1.0f + V(exp)(-x)); }
GCKPTI_INLINED FLOATS V(silu_deriv)(FLOATS x)
{
    FLOATS s = V(sigmoid)(x);
    return V(fma)(x * s, 1.0f - s, s);
}

/* softplus: y = max(x, 0) + log(1 + exp(-|x|));  derivative: sigmoid(x) = 1 - exp(-y)
 *   = (1 - 2^n) - r p 2^n, where -y = n ln(2) + r: accurate to the last place even for a small y */
GCKPTI_ISA_NOINLINE FLOATS V(softplus)(FLOATS x)
{
    return V(vmax)(V(zero)(), x) + V(log1p)(V(exp)(-V(abs)(x)));
}
GCKPTI_ISA_NOINLINE FLOATS V(softplus_deriv)(FLOATS y)
{
    FLOATS r, t, p = V(exp_reduce)(-V(vmin)(V(set1)(GCKPTI_TANH_MAX), y), &r, &t);
    FLOATS s = V(from_exponent)(V(rounded_int)(t) + 127u);
    return V(fnma)(r * s, p, 1.0f - s);
}

/* elu: y = high x for x >= 0, else low (exp(x) - 1);  derivative: high for x > 0, else low exp(x)
 * (Clevert 2016). The difference is -V(softplus_deriv)(-x). */
GCKPTI_ISA_NOINLINE FLOATS V(elu)(FLOATS x, float high, float low)
{
    const FLOATS zero = V(zero)();
    return V(if_less)(x, zero, -low * V(softplus_deriv)(-V(vmin)(zero, x)), high * x);
}
GCKPTI_ISA_NOINLINE FLOATS V(elu_deriv)(FLOATS x, float high, float low)
{
    const FLOATS zero = V(zero)();
    return V(if_less)(zero, x, V(set1)(high), low * V(exp)(V(vmin)(zero, x)));
}

/* mish: c = max(min(x, 20), -105), w = exp(c), d = w (w + 2) + 2, t = w (w + 2) / d, y = x t, as
 * t is tanh(log(1 + w));  derivative: t + x (1 - t^2) w / (1 + w) = fma(4 c w / d, (1 + w) / d, t)
 * (Misra 2019) */
GCKPTI_INLINED FLOATS V(mish_terms)(FLOATS x, FLOATS *c, FLOATS *w, FLOATS *d)
{
    *c = V(vmax)(V(set1)(-105.0f), V(vmin)(V(set1)(GCKPTI_TANH_MAX), x));
    *w = V(exp)(*c);
    *d = V(fma)(*w, *w + 2.0f, V(set1)(2.0f));
    return V(fma)(*w, *w + 2.0f, V(zero)()) / *d;
}
GCKPTI_ISA_NOINLINE FLOATS V(mish)(FLOATS x)
{
    FLOATS c, w, d;
    return x * V(mish_terms)(x, &c, &w, &d);
}
GCKPTI_ISA_NOINLINE FLOATS V(mish_deriv)(FLOATS x)
{
    FLOATS c, w, d, t = V(mish_terms)(x, &c, &w, &d);
    return V(fma)(4.0f * c * w / d, (1.0f + w) / d, t);
}

/* hardswish: y = x min(max(x + 3, 0), 6) / 6;  derivative: 0 for x <= -3, 1 for x >= 3, else x / 3
 * + 1/2 (Howard 2019) */
GCKPTI_INLINED FLOATS V(hardswish)(FLOATS x)
{
    return x * V(vmin)(V(set1)(6.0f), V(vmax)(V(zero)(), x + 3.0f)) / 6.0f;
}
GCKPTI_INLINED FLOATS V(hardswish_deriv)(FLOATS x)
{
    const FLOATS low = V(set1)(-3.0f), high = V(set1)(3.0f), c = V(vmin)(high, V(vmax)(low, x));
    const FLOATS slope = V(if_equal)(c, high, V(set1)(1.0f), c / 3.0f + 0.5f);
    return V(if_equal)(c, low, V(zero)(), slope);
}

/* Sine and (below) cosine of a gckpti_angle hi + lo, |hi| <= pi/4; fit 2^-32, 2^-33. */
GCKPTI_INLINED FLOATS V(sine)(FLOATS hi, FLOATS lo)
{
    FLOATS z = hi * hi, p = V(fma)(V(set1)(2.83239228e-06f), z, V(set1)(-0.000198530586f));
    p = V(fma)(V(fma)(p, z, V(set1)(0.0083333794f)), z, V(set1)(-0.166666672f));
    return hi + V(fma)(hi * z, p, V(fma)(-0.5f * z, lo, lo));
}
GCKPTI_INLINED FLOATS V(cosine)(FLOATS hi, FLOATS lo)
{
    const FLOATS z = hi * hi, half = V(set1)(-0.5f);
    FLOATS p = V(fma)(V(set1)(2.44320927e-05f), z, V(set1)(-0.00138873083f));
    FLOATS c = V(fma)(half, z, V(set1)(1.0f)), e = (1.0f - c) + half * z; /* c's rounding error */
    e = V(fma)(-hi, lo, V(fma)(half, V(fma)(hi, hi, -z), e));             /* and the error of z */
    return c + V(fma)(z * z, V(fma)(p, z, V(set1)(0.0416666456f)), e);
}

#if GCKPTI_ISA == -1
GCKPTI_ISA_NOINLINE void gckpti_sincos_of(gckpti_angle r, float *sine, float *cosine)
{
    float s = gckpti_sine(r.hi, r.lo), c = gckpti_cosine(r.hi, r.lo);
    uint32_t flip = (r.quadrant & 2) << 30;
    *sine = gckpti_float(gckpti_bits(r.quadrant & 1 ? c : s) ^ flip);
    *cosine = gckpti_float(gckpti_bits(r.quadrant & 1 ? -s : c) ^ flip);
}
#endif

/* Returns sin(x + shift pi/2). |x| = n pi/2 + hi + lo: up to GCKPTI_SIN_SPLIT by Cody and Waite
 * (three-part pi/2; the first difference is exact, lo has later errors), above in integers. */
GCKPTI_ISA_NOINLINE FLOATS V(sin_shifted)(FLOATS x, uint32_t shift)
{
    const FLOATS a = V(abs)(x), t = V(fma)(a, V(set1)(0.636619747f), V(set1)(GCKPTI_ROUND));
    const FLOATS n = t - GCKPTI_ROUND, rest = V(fma)(n, V(set1)(-1.57079637f), a);
    const FLOATS p2 = V(set1)(4.37113883e-8f), w = V(fma)(n, p2, V(zero)());
    FLOATS hi = rest + w, b = hi - rest, lo = (rest - (hi - b)) + (w - b), y;
    lo = V(fma)(n, V(set1)(1.71512451e-15f), lo + V(fma)(n, p2, -w));
#if GCKPTI_ISA < 0
    const gckpti_angle first = { gckpti_bits(t), hi, lo };
    gckpti_angle r = a <= GCKPTI_SIN_SPLIT ? first : gckpti_angle_of(x);
    r.quadrant += shift;
    gckpti_sincos_of(r, &y, &b);
#else
    const INTS at = V(bits)(t) + shift;
    y = V(floats)(V(bits)(V(sine)(hi, lo)) & ((at & 1u) - 1u));
    y = V(bit_or)(y, V(floats)(V(bits)(V(cosine)(hi, lo)) & (0u - (at & 1u))));
    y = V(floats)(V(bits)(y) ^ ((at & 2u) << 30));
#endif
    y = V(floats)(V(bits)(y) ^ (V(bits)(V(sign_bit)(x)) & ((shift & 1u) - 1u)));
#if GCKPTI_ISA >= 0
    if (V(fold_max)(V(vmin)(a, V(set1)(FLT_MAX))) > GCKPTI_SIN_SPLIT)
        for (int i = 0; i < W; i++)
            y[i] = a[i] > GCKPTI_SIN_SPLIT ? gckpti_sin_shifted(x[i], shift) : y[i];
#endif
    return y;
}
GCKPTI_INLINED FLOATS V(sin)(FLOATS x) { return V(sin_shifted)(x, 0); }
GCKPTI_INLINED FLOATS V(cos)(FLOATS x) { return V(sin_shifted)(x, 1); }

/* abs: the derivative is 1 or -1; 0 if x is 0 or NaN */
GCKPTI_INLINED FLOATS V(abs_deriv)(FLOATS x)
{
    return V(if_less)(V(zero)(), V(abs)(x), V(bit_or)(V(set1)(1.0f), V(sign_bit)(x)), V(zero)());
}

/* With decayed = fma(-d, w, w), d = (lr weight_decay) decay_scale; lr is hyper.lr times lr_scale:
 *   SGD       w = fma(-lr, g, decayed)
 *   momentum  m = fma(momentum, m, g), w = fma(-lr, m, decayed)
 *   AdamW     m = fma(b1, m, (1 - b1) g), v = fma(b2, v, (1 - b2) (g g)),
 *             w = fma(-lr / (1 - b1^t), m / (sqrt(v c) + eps), decayed), c = 1 / (1 - b2^t)
 *             (Loshchilov & Hutter 2019)
 * t counts the parameter's updates from 1. 1 - b1, 1 - b2, lr / (1 - b1^t) and c are computed in
 * binary64 from the floats b1, b2, lr, powers by squaring (gckpti_powi), and rounded once. */
GCKPTI_INLINED FLOATS V(decayed)(const gckpt_update_constants *a, FLOATS w)
{
    return V(fma)(V(set1)(-a->decay), w, w);
}
GCKPTI_INLINED void V(step_sgd)(const gckpt_update_constants *a, FLOATS g, FLOATS *w)
{
    *w = V(fma)(V(set1)(-a->rate), g * a->scale, V(decayed)(a, *w));
}
GCKPTI_INLINED void V(step_momentum)(const gckpt_update_constants *a, float momentum, FLOATS g,
                                     FLOATS *w, FLOATS *m)
{
    *m = V(fma)(V(set1)(momentum), *m, g * a->scale);
    *w = V(fma)(V(set1)(-a->rate), *m, V(decayed)(a, *w));
}
GCKPTI_INLINED void V(step_adamw)(const gckpt_update_constants *a, FLOATS g, FLOATS *w, FLOATS *m,
                                  FLOATS *v)
{
    FLOATS d = g * a->scale;
    *m = V(fma)(V(set1)(a->beta1), *m, a->rest1 * d);
    *v = V(fma)(V(set1)(a->beta2), *v, a->rest2 * (d * d));
    d = *m / (V(sqrt)(*v * a->correct2) + a->eps);
    *w = V(fma)(V(set1)(-a->rate), d, V(decayed)(a, *w));
}
