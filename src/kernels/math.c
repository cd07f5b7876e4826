/* ---- exp, tanh, erf and the row reductions of numerics, operation by operation ---- */
GCKPTI_INLINED FLOATS V(poly)(const float *c, int n, FLOATS x)
{
    FLOATS p = V(set1)(c[n - 1]);
#pragma GCC unroll 8
    for (int i = n - 2; i >= 0; i--)
        p = V(fma)(p, x, V(set1)(c[i]));
    return p;
}

GCKPTI_INLINED FLOATS V(exp_poly)(FLOATS r)
{
    return V(fma)(V(poly)(gckpti_exp_c, 5, r), r, V(set1)(1.0f));
}

/* exp(x) = 2^n exp(r); t holds n as an integer that is rounded off. */
GCKPTI_INLINED FLOATS V(exp_reduce)(FLOATS x, FLOATS *r, FLOATS *t)
{
    const FLOATS round = V(set1)(GCKPTI_ROUND);
    *t = V(fma)(x, V(set1)(GCKPTI_LOG2E), round);
    FLOATS k = *t - round;
    *r = V(fma)(k, V(set1)(-GCKPTI_LN2_HI), x);
    *r = V(fma)(k, V(set1)(-GCKPTI_LN2_LO), *r);
    return V(exp_poly)(*r);
}
GCKPTI_INLINED INTS V(whole)(FLOATS t) { return V(bits)(t) - V(bits)(V(set1)(GCKPTI_ROUND)); }

/* 2^n = 2^half 2^(n - half), so that neither leaves the range. */
GCKPTI_INLINED FLOATS V(exp_scale)(FLOATS p, FLOATS r, FLOATS t)
{
#if GCKPTI_ISA == 3 /* an instruction for it, which rounds once, too */
    return _mm512_scalef_ps(V(fma)(r, p, V(set1)(1.0f)), t - V(set1)(GCKPTI_ROUND));
#else
    INTS n = V(whole)(t), half = (n + 254) >> 1;
    FLOATS s = V(exponent)(half);
    p = V(fma)(r * s, p, s);
    return V(fma)(p, V(exponent)(n + 254 - half), V(zero)());
#endif
}

/* gckpti_exp of what is not above GCKPTI_EXP_MAX */
GCKPTI_INLINED FLOATS V(exp_below)(FLOATS x)
{
    FLOATS r, t, p = V(exp_reduce)(V(max)(V(set1)(GCKPTI_EXP_MIN), x), &r, &t);
    return V(exp_scale)(p, r, t);
}
GCKPTI_INLINED FLOATS V(exp)(FLOATS x) { return V(exp_below)(V(min)(V(set1)(GCKPTI_EXP_MAX), x)); }

/* gckpti_tanh, gckpti_erf: of |x|, near 0 by a polynomial, else by exp; both are computed. */
GCKPTI_INLINED FLOATS V(tanh)(FLOATS x)
{
    const FLOATS one = V(set1)(1.0f), two = V(set1)(2.0f);
    FLOATS sign = V(both)(x, V(set1)(-0.0f)), a = V(differ)(x, sign);
    FLOATS z = a * a, p = V(poly)(gckpti_tanh_c, 7, z), r, s, n;
    FLOATS small = V(fma)(a * z, p, a);
    r = V(min)(V(set1)(GCKPTI_TANH_MAX), a + a);
    p = V(exp_reduce)(r, &r, &n);
    s = V(exponent)(V(whole)(n) + 127);
    p = V(fma)(r * s, p, s + one);
    p = one - two / p;
    p = V(less)(a, V(set1)(GCKPTI_TANH_SPLIT), small, p);
    return V(either)(p, sign);
}

GCKPTI_INLINED FLOATS V(erf)(FLOATS x)
{
    const FLOATS one = V(set1)(1.0f);
    FLOATS sign = V(both)(x, V(set1)(-0.0f)), a = V(differ)(x, sign);
    FLOATS p = V(poly)(gckpti_erf_c, 7, a * a), b, r, s, n;
    FLOATS small = V(fma)(a, p, a);
    b = V(min)(V(set1)(GCKPTI_ERF_MAX), a);
    p = V(poly)(gckpti_erfc_c, 7, b);
    b = V(differ)(b, V(set1)(-0.0f));
    p = V(exp_reduce)(V(fma)(p, b, V(zero)()), &r, &n);
    s = V(exponent)(V(whole)(n) + 127);
    p = V(fnma)(r * s, p, one - s);
    return V(either)(V(less)(a, V(set1)(GCKPTI_ERF_SPLIT), small, p), sign);
}

/* gckpti_split */
GCKPTI_INLINED FLOATS V(split)(FLOATS x, FLOATS *n)
{
    const FLOATS least = V(set1)(1.17549435e-38f);
    const INTS u = V(bits)(V(less)(x, least, x * V(set1)(8388608.0f), x)) + 0x00555555;
    *n = V(less)(x, least, V(set1)(8388608.0f + 150.0f), V(set1)(8388608.0f + 127.0f));
    *n = V(floats)((u >> 23) + 0x4b000000) - *n; /* these bits are 2^23 + n */
    return V(floats)((u & 0x007fffff) + 0x3f2aaaab);
}

GCKPTI_INLINED FLOATS V(log)(FLOATS x)
{
    const FLOATS zero = V(zero)(), inf = V(set1)(GCKPTI_INFINITY);
    FLOATS n, f, f2, p, high, low;
    f = V(split)(x, &n);
    f = f - V(set1)(1.0f), f2 = f * f;
    p = V(poly)(gckpti_log_c, 9, f);
    high = V(fma)(n, V(set1)(0.693359375f), f);
    low = high - n * V(set1)(0.693359375f);
    low = f - low;
    low = V(fma)(V(set1)(-0.5f), f2, V(fma)(n, V(set1)(-2.12194440e-4f), low));
    p = high + V(fma)(f * f2, p, low);
    p = V(less)(zero, x, p, V(less)(x, zero, V(set1)(GCKPTI_NAN), zero - inf));
    return V(less)(x, inf, p, x);
}

/* Of one number: an emulated fma takes longer than the lanes that nobody asked for. */
static GCKPTI_TARGET float V(exp_of)(float x) { return V(exp)(V(set1)(x))[0]; }
static GCKPTI_TARGET float V(log_of)(float x) { return V(log)(V(set1)(x))[0]; }

/* gckpti_power, e being no NaN. The doubles of gckpti_pow are vectors too (passed by address: they
 * may be wider than any the processor has). */
typedef double V(doubles) __attribute__((vector_size(8 * W)));
#define GCKPTI_DOUBLES V(doubles)
GCKPTI_INLINED void V(wide)(FLOATS x, GCKPTI_DOUBLES *y)
{
    for (int i = 0; i < W; i++)
        (*y)[i] = (double)x[i];
}
GCKPTI_INLINED FLOATS V(narrow_doubles)(const GCKPTI_DOUBLES *y)
{
    FLOATS x = V(zero)();
    for (int i = 0; i < W; i++)
        x[i] = (float)(*y)[i];
    return x;
}
GCKPTI_INLINED FLOATS V(pow)(FLOATS x, float e)
{
    const float limited = e > 1e30f ? 1e30f : e < -1e30f ? -1e30f : e;
    const FLOATS zero = V(zero)(), inf = V(set1)(GCKPTI_INFINITY), nan = V(set1)(GCKPTI_NAN);
    const FLOATS sign = V(both)(x, V(set1)(-0.0f)), a = V(differ)(x, sign);
    const int whole = gckpti_whole(e);
    GCKPTI_DOUBLES m, k, s, d, l, high, low;
    FLOATS n, t, u, r;
    V(wide)(V(split)(a, &n), &m);
    V(wide)(n, &k);
    s = 2.0 * (m - 1.0) / (m + 1.0);
    l = s * s;
    u = V(narrow_doubles)(&l);
    V(wide)(u, &m);
    t = V(fma)(V(set1)(-0.00684453873f), u, V(set1)(-0.0514065102f));
    V(wide)(V(fma)(t, u, V(set1)(-1.80000055f)), &d);
    l = s + s * s * s / (m * d + 12.0);
    l = k * (double)GCKPTI_LN2_HI + (l + k * (double)GCKPTI_LN2_LO);
    t = V(narrow_doubles)(&l);
    V(wide)(t, &high);
    l = l - high;
    V(wide)(V(narrow_doubles)(&l), &low);
    l = (double)limited * high + (double)limited * low;
    u = V(narrow_doubles)(&l);
    t = V(fma)(u, V(set1)(GCKPTI_LOG2E), V(set1)(GCKPTI_ROUND));
    V(wide)(t - V(set1)(GCKPTI_ROUND), &k);
    l = (l - k * (double)GCKPTI_LN2_HI) - k * (double)GCKPTI_LN2_LO;
    r = V(narrow_doubles)(&l);
    r = V(exp_scale)(V(exp_poly)(r), r, t);
    r = V(less)(u, V(set1)(GCKPTI_EXP_MIN), zero, V(less)(V(set1)(GCKPTI_EXP_MAX), u, inf, r));
    r = V(less)(a, inf, V(less)(zero, a, r, e > 0.0f ? zero : inf), e > 0.0f ? inf : zero);
    if (whole == 1)
        r = V(either)(r, sign);
    if (whole == 0)
        r = V(less)(x, zero, V(less)(zero - inf, x, nan, r), r);
    return V(equal)(x, x, r, x);
}
GCKPTI_INLINED FLOATS V(power)(FLOATS x, float e)
{
    if (e == 0.0f)
        return V(set1)(1.0f);
    if (e == 1.0f)
        return x;
    if (e == 2.0f)
        return x * x;
    if (e == 3.0f)
        return x * x * x;
    return V(pow)(x, e);
}

/* A row's 32 lanes are 32 / W vectors with names: arrays of them would live in memory. */
#if W == 16
#define GCKPTI_EACH_LANE(X) X(0) X(1)
#define GCKPTI_LANES(op)    V(op)(lane1, lane0)
#elif W == 8
#define GCKPTI_EACH_LANE(X) X(0) X(1) X(2) X(3)
#define GCKPTI_LANES(op)    V(op)(V(op)(lane3, lane1), V(op)(lane2, lane0))
#else
#define GCKPTI_EACH_LANE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define GCKPTI_LANES(op)                                                                           \
    V(op)                                                                                          \
    (V(op)(V(op)(lane7, lane3), V(op)(lane5, lane1)),                                              \
     V(op)(V(op)(lane6, lane2), V(op)(lane4, lane0)))
#endif

/* What a row's elements at..at+W-1, of which `left` exist, add to their lanes. */
GCKPTI_INLINED FLOATS V(term)(const gckpti_row *row, int64_t at, int64_t left, FLOATS sum)
{
    FLOATS x = V(load_n)(row->x + at, left), y;
    if (row->kind == GCKPTI_SUM)
        return x - V(set1)(row->first) + sum;
    if (row->kind == GCKPTI_PRODUCTS)
        return V(fma)(x, V(load_n)(row->y + at, left), V(zero)()) + sum;
    if (row->kind == GCKPTI_TOP)
        return V(max)(x, sum);
    if (row->kind == GCKPTI_DOT)
        return V(fma)(x, V(load_n)(row->y + at, left), sum);
    if (row->kind == GCKPTI_EXP) {
        x = V(exp)(x - V(set1)(row->mean));
        if (row->out)
            V(store_n)(row->out + at, x, left);
        return sum + x;
    }
    x = x - V(set1)(row->first) - V(set1)(row->mean);
    if (row->kind == GCKPTI_SQUARES)
        return V(fma)(x, x, sum);
    x = x * V(set1)(row->rstd);
    y = V(load_n)(row->y + at, left);
    if (row->z)
        y = V(fma)(y, V(load_n)(row->z + at, left), V(zero)());
    return V(fma)(y, x, sum);
}

/* All terms of a row into its lanes, and these folded by halves: the sum, or the greatest. */
GCKPTI_INLINED float V(reduce)(const gckpti_row *row, int64_t n)
{
#define GCKPTI_LANE_START(i) FLOATS lane##i = start;
#define GCKPTI_LANE_TERM(i)  lane##i = V(term)(row, at + W * (i), W, lane##i);
#define GCKPTI_LANE_REST(i)                                                                        \
    if (at < n)                                                                                    \
        lane##i = V(upto)(n - at, V(term)(row, at, n - at, lane##i), lane##i);                     \
    at += W;
    const FLOATS start = V(set1)(row->kind == GCKPTI_TOP ? -GCKPTI_INFINITY : 0.0f);
    int64_t at = 0;
    GCKPTI_EACH_LANE(GCKPTI_LANE_START)
    for (; at + 32 <= n; at += 32) {
        GCKPTI_EACH_LANE(GCKPTI_LANE_TERM)
    }
    GCKPTI_EACH_LANE(GCKPTI_LANE_REST)
    return row->kind == GCKPTI_TOP ? V(fold_max)(GCKPTI_LANES(max))
                                   : V(fold_sum)(GCKPTI_LANES(add));
#undef GCKPTI_LANE_START
#undef GCKPTI_LANE_TERM
#undef GCKPTI_LANE_REST
}

/* gckpti_dot, gckpti_sum, gckpti_max */
static GCKPTI_TARGET float V(dot)(const float *x, const float *y, int64_t n)
{
    const gckpti_row row = { GCKPTI_DOT, x, y, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(sum)(const float *x, int64_t n)
{
    const gckpti_row row = { GCKPTI_SUM, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(top)(const float *x, int64_t n)
{
    const gckpti_row row = { GCKPTI_TOP, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

/* gckpti_online: p[j] = exp(x[j] - max), p may be x or NULL. */
static GCKPTI_TARGET float V(online)(const float *x, float *p, int64_t n, int first, float *max,
                                     float *sum)
{
    gckpti_row row = { GCKPTI_EXP, x, NULL, NULL, p, 0.0f, 0.0f, 0.0f };
    float factor = 0.0f, added;
    float top = V(top)(x, n);
    top = first || top > *max ? top : *max;
    row.mean = gckpti_shift(top);
    if (!first)
        factor = V(exp_of)(*max - row.mean);
    added = V(reduce)(&row, n);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = top;
    return factor;
}

/* gckpti_put_product and gckpti_link */
GCKPTI_INLINED void V(put)(float *d, FLOATS a, FLOATS b, int accumulate, int64_t n)
{
    if (accumulate)
        a = V(fma)(a, b, V(load_n)(d, n));
    else
        a = a * b;
    V(store_n)(d, a, n);
}

static GCKPTI_TARGET void V(divide)(float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(x + i, V(load_n)(x + i, n - i) / V(set1)(by), n - i);
}

static GCKPTI_TARGET void V(add_to)(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(to + i, V(load_n)(to + i, n - i) + V(load_n)(from + i, n - i), n - i);
}

/* gckpti_plain_update_block in one pass: sum and quotient stay in registers unless they are wanted.
 * By a power of two it is divided by multiplying, which rounds the same numbers. */
static GCKPTI_TARGET float V(update)(const gckpt_pass *p, const float *more, int64_t at, int64_t n,
                                     int update)
{
    enum { LANES = 32 / W };
    const gckpt_rates a = p->rates;
    const FLOATS by = V(set1)(p->count > 0 ? p->count : 1.0f), part = V(set1)(1.0f) / by;
    const int exact = !(p->count > 0) || gckpti_bits(p->count) << 9 == 0;
    const int kind = update ? (int)p->optimiser : -1, back = p->write_back && p->count > 0;
    const int keep = more && !back && (!update || p->write_back);
    float *g = p->gradient + at, *w = p->values, *m = p->state[0], *v = p->state[1];
    FLOATS lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = V(zero)();
    for (int64_t i = 0; i < n; i += W) {
        int64_t left = n - i;
        FLOATS x = V(load_n)(g + i, left), w1, m1, v1;
        if (more)
            x = x + V(load_n)(more + i, left);
        if (keep)
            V(store_n)(g + i, x, left);
        x = exact ? x * part : x / by;
        lane[i / W % LANES] = V(fma)(x, x, lane[i / W % LANES]);
        if (back)
            V(store_n)(g + i, x, left);
        if (kind < 0)
            continue;
        w1 = V(load_n)(w + at + i, left);
        w1 = V(fnma)(V(set1)(a.decay), w1, w1);
        x = x * V(set1)(a.scale);
        if (kind == GCKPT_ADAMW) {
            m1 = V(fma)(V(set1)(a.beta1), V(load_n)(m + at + i, left), V(set1)(a.rest1) * x);
            v1 = V(set1)(a.rest2) * (x * x);
            v1 = V(fma)(V(set1)(a.beta2), V(load_n)(v + at + i, left), v1);
            V(store_n)(v + at + i, v1, left);
            V(store_n)(m + at + i, m1, left);
            x = m1 / (V(sqrt)(v1 * V(set1)(a.correct2)) + V(set1)(a.eps));
        } else if (kind == GCKPT_MOMENTUM) {
            x = V(fma)(V(set1)(p->momentum), V(load_n)(m + at + i, left), x);
            V(store_n)(m + at + i, x, left);
        }
        V(store_n)(w + at + i, V(fnma)(V(set1)(a.rate), x, w1), left);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i + half] + lane[i];
    return V(fold_sum)(lane[0]);
}

/* What is ahead of elements at..at+W-1, a line at a time. */
GCKPTI_INLINED void V(fetch)(const gckpti_ahead *a, int64_t at)
{
    if (at & 31 & -W)
        return;
    __builtin_prefetch(a->x + 2 * at, 0, 2);
    __builtin_prefetch(a->y + 2 * at, 0, 2);
    __builtin_prefetch(a->z + 2 * at, 0, 2);
}
