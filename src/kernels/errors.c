/* ---- losses of elements: an entry of axis 0, by the steps of gckpti_plain_sum ---- */
GCKPTI_INLINED FLOATS V(error_weights)(const gckpti_errors *e, int64_t at, int64_t n)
{
    float w[W];
    if (!e->weights)
        return V(set1)(1.0f);
    if (e->share == 1)
        return V(load_n)(e->weights + at, n);
    if ((at + n - 1) / e->share == at / e->share)
        return V(set1)(e->weights[at / e->share]);
    for (int64_t i = 0; i < W; i++)
        w[i] = e->weights[(at + (i < n ? i : 0)) / e->share];
    return V(load)(w);
}

/* The loss of W elements of which n exist, added to `sum`. */
GCKPTI_INLINED FLOATS V(error_add)(const gckpti_errors *e, int64_t at, int64_t n, FLOATS sum)
{
    const int summed = gckpti_error_is(e->kind, GCKPTI_SUMMED);
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), delta = V(set1)(e->delta);
    FLOATS x = V(load_n)(e->x + at, n), y = summed ? zero : V(load_n)(e->y + at, n);
    FLOATS w = V(error_weights)(e, at, n), a = x - y, b = a;
    if (gckpti_error_is(e->kind, GCKPTI_HUBER)) {
        const FLOATS size = V(abs)(a);
        b = V(less)(size, delta, a, size - 0.5f * e->delta);
        a = V(less)(size, delta, 0.5f * a, delta);
    } else if (gckpti_error_is(e->kind, GCKPTI_BINARY)) {
        b = V(fma)(-x, y, V(highest)(x, zero)) + V(log1p)(V(exp)(-V(abs)(x)));
        a = one;
    } else if (summed)
        a = one;
    return V(less)(zero, V(abs)(w), V(fma)(w * a, b, sum), sum + w);
}

static GCKPTI_TARGET float V(errors_forward)(const gckpti_errors *e, int64_t row)
{
    float lane[32] = { 0.0f };
    for (int64_t i = 0; i < e->n; i += W) {
        float *to = lane + i % 32;
        V(store_n)(to, V(error_add)(e, row * e->n + i, e->n - i, V(load)(to)), e->n - i);
    }
    return gckpti_lanes_sum(lane);
}

/* Of W elements of which n exist: w d, which a weight 0 passes on as 0. */
GCKPTI_INLINED void V(error_put)(const gckpti_errors *e, const gckpt_arg *to, int64_t at, int64_t n,
                                 FLOATS d)
{
    const FLOATS w = V(error_weights)(e, at, n);
    if (to->grad)
        V(put)(to->grad + at, V(less)(V(zero)(), V(abs)(w), w * d, w),
               V(set1)(e->call->loss_scale), to->accumulate, n);
}

static GCKPTI_TARGET void V(errors_backward)(const gckpti_errors *e, int64_t row)
{
    const gckpti_error_kind kind = e->kind;
    const FLOATS delta = V(set1)(e->delta);
    for (int64_t at = row * e->n, end = at + e->n; at < end; at += W) {
        const int64_t n = end - at;
        FLOATS x = V(zero)(), y = x, d = V(set1)(1.0f);
        if (!gckpti_error_is(kind, GCKPTI_SUMMED)) {
            x = V(load_n)(e->x + at, n), y = V(load_n)(e->y + at, n);
            d = x - y;
        }
        if (gckpti_error_is(kind, GCKPTI_SQUARED))
            d = 2.0f * d;
        else if (gckpti_error_is(kind, GCKPTI_HUBER))
            d = V(less)(d, -delta, -delta, V(less)(delta, d, delta, d));
        else if (gckpti_error_is(kind, GCKPTI_BINARY))
            d = V(sigmoid)(x) - y;
        V(error_put)(e, &e->call->in[0], at, n, d);
        V(error_put)(e, &e->call->in[1], at, n, gckpti_error_is(kind, GCKPTI_BINARY) ? -x : -d);
    }
}
