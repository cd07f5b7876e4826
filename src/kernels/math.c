/* ---- one row: sums and maxima in 32 lanes; one step of an optimiser ---- */
/* exp of x <= GCKPTI_EXP_MAX (no check for overflow) */
GCKPTI_INLINED FLOATS V(exp_below)(FLOATS x)
{
    FLOATS r, t, p = V(exp_reduce)(V(vmax)(V(set1)(GCKPTI_EXP_MIN), x), &r, &t);
    return V(exp_scale)(p, r, t);
}

/* exp of one number: a whole vector would take longer where fma is emulated in each lane. */
static GCKPTI_TARGET float V(exp_scalar)(float x) { return V(exp)(V(set1)(x))[0]; }
GCKPTI_ISA_NOINLINE FLOATS V(log_noinline)(FLOATS x) { return V(log)(x); }
GCKPTI_ISA_NOINLINE FLOATS V(tanh_noinline)(FLOATS x) { return V(tanh)(x); }
static GCKPTI_TARGET float V(log_scalar)(float x) { return V(log_noinline)(V(set1)(x))[0]; }

/* Returns `sum` plus (MAX: the larger of it and) elements at..at+W-1, of which `left` exist. */
GCKPTI_INLINED FLOATS V(term)(const gckpti_row_args *row, int64_t at, int64_t left, FLOATS sum)
{
    FLOATS x = V(load_n)(row->x + at, left), y;
    if (row->kind == GCKPTI_ROW_SUM)
        return x - V(set1)(row->first) + sum;
    if (row->kind == GCKPTI_ROW_PRODUCTS)
        return V(fma)(x, V(load_n)(row->y + at, left), V(zero)()) + sum;
    if (row->kind == GCKPTI_ROW_MAX)
        return V(vmax)(x, sum);
    if (row->kind == GCKPTI_ROW_DOT)
        return V(fma)(x, V(load_n)(row->y + at, left), sum);
    if (row->kind == GCKPTI_ROW_EXP) {
        x = V(exp)(x - V(set1)(row->mean));
        if (row->out)
            V(store_n)(row->out + at, x, left);
        return sum + x;
    }
    x = x - V(set1)(row->first) - V(set1)(row->mean);
    if (row->kind == GCKPTI_ROW_SQUARES)
        return V(fma)(x, x, sum);
    x = x * V(set1)(row->rstd);
    y = V(load_n)(row->y + at, left);
    if (row->z)
        y = V(fma)(y, V(load_n)(row->z + at, left), V(zero)());
    return V(fma)(y, x, sum);
}

/* Folds the 32 lanes of a row, halving their number each time, to their sum or maximum. */
GCKPTI_INLINED float V(fold)(FLOATS *lane, int largest)
{
    GCKPTI_UNROLL
    for (int i = 32 / W - 1; i > 0; i--) { /* one loop, or gcc keeps lanes in memory */
        const int to = i - (i < 2 ? 1 : i < 4 ? 2 : 4);
        lane[to] = (largest ? V(vmax) : V(add))(lane[i], lane[to]);
    }
    return largest ? V(fold_max)(lane[0]) : V(fold_sum)(lane[0]);
}

/* Reduces a row of n elements in 32 lanes, as row->kind says. */
GCKPTI_INLINED float V(reduce)(const gckpti_row_args *row, int64_t n)
{
    enum { LANES = 32 / W };
    const int largest = row->kind == GCKPTI_ROW_MAX;
    const FLOATS start = V(set1)(largest ? -GCKPTI_INFINITY : 0.0f);
    FLOATS lane[LANES];
    int64_t at = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = start;
    for (; at + 32 <= n; at += 32) {
        GCKPTI_UNROLL
        for (int i = 0; i < LANES; i++)
            lane[i] = V(term)(row, at + W * i, W, lane[i]);
    }
    GCKPTI_UNROLL
    for (int i = 0; i < LANES; i++, at += W)
        if (at < n)
            lane[i] = V(blend_n)(n - at, V(term)(row, at, n - at, lane[i]), lane[i]);
    return V(fold)(lane, largest);
}

static GCKPTI_TARGET float V(dot)(const float *x, const float *y, int64_t n)
{
    const gckpti_row_args row = { GCKPTI_ROW_DOT, x, y, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(sum)(const float *x, int64_t n, float first)
{
    const gckpti_row_args row = { GCKPTI_ROW_SUM, x, NULL, NULL, NULL, first, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(row_max)(const float *x, int64_t n)
{
    const gckpti_row_args row = { GCKPTI_ROW_MAX, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

/* gckpti_online: p[j] = exp(x[j] - max); p may be x, or NULL. */
static GCKPTI_TARGET float V(online_softmax)(const float *x, float *p, int64_t n, int first,
                                             float *max, float *sum)
{
    gckpti_row_args row = { GCKPTI_ROW_EXP, x, NULL, NULL, p, 0.0f, 0.0f, 0.0f };
    float factor = 0.0f, added;
    float largest = V(row_max)(x, n);
    largest = first || largest > *max ? largest : *max;
    row.mean = gckpti_shift(largest);
    if (!first)
        factor = V(exp_scalar)(*max - row.mean);
    added = V(reduce)(&row, n);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = largest;
    return factor;
}

/* gckpti_put_product and gckpti_axpy for vectors */
GCKPTI_INLINED void V(put_product)(float *d, FLOATS a, FLOATS b, int accumulate, int64_t n)
{
    if (accumulate)
        a = V(fma)(a, b, V(load_n)(d, n));
    else
        a = a * b;
    V(store_n)(d, a, n);
}

static GCKPTI_TARGET void V(divide)(float *x, float divisor, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(x + i, V(load_n)(x + i, n - i) / V(set1)(divisor), n - i);
}

static GCKPTI_TARGET void V(add_to)(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(to + i, V(load_n)(to + i, n - i) + V(load_n)(from + i, n - i), n - i);
}

/* gckpti_plain_update_block in one pass: sum and quotient stay in registers unless they are
 * outputs. Divisions by powers of two are multiplications, which round the same. */
static GCKPTI_TARGET float V(update)(const gckpt_update_pass *p, const float *extra, int64_t at,
                                     int64_t n, int update)
{
    enum { LANES = 32 / W };
    const gckpt_update_constants a = p->rates;
    const FLOATS count = V(set1)(p->count > 0 ? p->count : 1.0f), inverse = V(set1)(1.0f) / count;
    const int exact = !(p->count > 0) || gckpti_bits(p->count) << 9 == 0;
    const int kind = update ? (int)p->optimiser : -1, back = p->write_back && p->count > 0;
    const int keep = extra && !back && (!update || p->write_back);
    float *g = p->gradient + at, *w = p->values, *m = p->state[0], *v = p->state[1];
    FLOATS lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = V(zero)();
    for (int64_t i = 0; i < n; i += W) {
        int64_t left = n - i;
        FLOATS x = V(load_n)(g + i, left), w1, m1, v1;
        if (extra)
            x = x + V(load_n)(extra + i, left);
        if (keep)
            V(store_n)(g + i, x, left);
        x = exact ? x * inverse : x / count;
        lane[i / W % LANES] = V(fma)(x, x, lane[i / W % LANES]);
        if (back)
            V(store_n)(g + i, x, left);
        if (kind < 0)
            continue;
        w1 = V(load_n)(w + at + i, left);
        if (kind == GCKPT_ADAMW) {
            m1 = V(load_n)(m + at + i, left), v1 = V(load_n)(v + at + i, left);
            V(step_adamw)(&a, x, &w1, &m1, &v1);
            V(store_n)(m + at + i, m1, left), V(store_n)(v + at + i, v1, left);
        } else if (kind == GCKPT_MOMENTUM) {
            m1 = V(load_n)(m + at + i, left);
            V(step_momentum)(&a, p->momentum, x, &w1, &m1);
            V(store_n)(m + at + i, m1, left);
        } else
            V(step_sgd)(&a, x, &w1);
        V(store_n)(w + at + i, w1, left);
    }
    return V(fold)(lane, 0);
}

/* gckpti_softcap of n elements of x, in place. */
static GCKPTI_TARGET void V(softcap)(float *x, int64_t n, float times, float cap)
{
    const FLOATS scale = V(set1)(times), most = V(set1)(cap), zero = V(zero)();
    for (int64_t i = 0; i < n; i += W) {
        const FLOATS y = V(tanh_noinline)(V(fma)(V(load_n)(x + i, n - i), scale, zero));
        V(store_n)(x + i, V(fma)(y, most, zero), n - i);
    }
}

/* Returns x times gckpti_softcap_deriv(score, cap), where `inverse` is 1 / cap. */
GCKPTI_INLINED FLOATS V(softcap_deriv)(FLOATS x, FLOATS score, FLOATS inverse)
{
    const FLOATS y = score * inverse;
    return x * V(fnma)(y, y, V(set1)(1.0f));
}

/* Prefetches elements at..at+W-1 after the hints' pointers, once for each cache line. */
GCKPTI_INLINED void V(prefetch)(const gckpti_hints *a, int64_t at)
{
    if (at & 31 & -W)
        return;
    __builtin_prefetch(a->x + 2 * at, 0, 2);
    __builtin_prefetch(a->y + 2 * at, 0, 2);
    __builtin_prefetch(a->z + 2 * at, 0, 2);
}
