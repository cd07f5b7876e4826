/* ---- losses of elements: an entry of axis 0, by the steps of gckpti_errors_forward ---- */
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
GCKPTI_INLINED FLOATS V(error_add)(const gckpti_errors *e, gckpti_error_kind kind, int64_t at,
                                   int64_t n, FLOATS sum)
{
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), delta = V(set1)(e->delta);
    FLOATS x = V(load_n)(e->x + at, n),
           y = gckpti_error_is(kind, GCKPTI_SUMMED) ? zero : V(load_n)(e->y + at, n);
    FLOATS w = V(error_weights)(e, at, n), a = x - y, b = a, u, size;
    if (gckpti_error_is(kind, GCKPTI_HUBER)) {
        size = V(abs)(a);
        b = V(less)(size, delta, a, size - V(set1)(0.5f * e->delta));
        a = V(less)(size, delta, V(set1)(0.5f) * a, delta);
    }
    if (gckpti_error_is(kind, GCKPTI_BINARY)) {
        size = V(floats)(V(bits)(x) | 0x80000000);
        u = V(log1p)(V(exp)(size));
        b = V(fma)(-x, y, V(highest)(x, zero)) + u;
    }
    if (gckpti_error_is(kind, GCKPTI_SUMMED) || gckpti_error_is(kind, GCKPTI_BINARY))
        a = one;
    size = V(abs)(w);
    return V(less)(zero, size, V(fma)(w * a, b, sum), sum + w);
}

GCKPTI_INLINED float V(errors_sum)(const gckpti_errors *e, gckpti_error_kind kind, int64_t row)
{
    float lane[32] = { 0.0f };
    for (int64_t i = 0; i < e->n; i += W) {
        int64_t left = gckpti_min(e->n - i, W);
        float *to = lane + i % 32;
        V(store_n)(to, V(error_add)(e, kind, row * e->n + i, left, V(load)(to)), left);
    }
    return gckpti_lanes_sum(lane);
}

GCKPTI_INLINED void V(errors_slopes)(const gckpti_errors *e, gckpti_error_kind kind, int64_t row)
{
    const gckpt_arg *to = e->call->in;
    const FLOATS delta = V(set1)(e->delta), below = -delta;
    const FLOATS scale = V(set1)(e->call->loss_scale), zero = V(zero)(), one = V(set1)(1.0f);
    for (int64_t at = row * e->n, end = at + e->n; at < end; at += W) {
        int64_t n = gckpti_min(end - at, W);
        FLOATS x = gckpti_error_is(kind, GCKPTI_SUMMED) ? zero : V(load_n)(e->x + at, n);
        FLOATS y = gckpti_error_is(kind, GCKPTI_SUMMED) ? zero : V(load_n)(e->y + at, n), d = x - y,
               back;
        FLOATS w = V(error_weights)(e, at, n), size = V(abs)(w);
        if (gckpti_error_is(kind, GCKPTI_SUMMED))
            d = one;
        if (gckpti_error_is(kind, GCKPTI_SQUARED))
            d = V(set1)(2.0f) * d;
        if (gckpti_error_is(kind, GCKPTI_HUBER))
            d = V(less)(d, below, below, V(less)(delta, d, delta, d));
        if (gckpti_error_is(kind, GCKPTI_BINARY))
            d = V(sigmoid)(x) - y;
        back = gckpti_error_is(kind, GCKPTI_BINARY) ? -x : -d;
        if (to[0].grad)
            V(put)(to[0].grad + at, V(less)(zero, size, w * d, w), scale, to[0].accumulate, n);
        if (to[1].grad)
            V(put)(to[1].grad + at, V(less)(zero, size, w * back, w), scale, to[1].accumulate, n);
    }
}

static GCKPTI_TARGET float V(errors_forward)(const gckpti_errors *e, int64_t row)
{
    if (gckpti_error_is(e->kind, GCKPTI_HUBER))
        return V(errors_sum)(e, GCKPTI_HUBER, row);
    if (gckpti_error_is(e->kind, GCKPTI_BINARY))
        return V(errors_sum)(e, GCKPTI_BINARY, row);
    return e->kind == GCKPTI_SUMMED ? V(errors_sum)(e, GCKPTI_SUMMED, row)
                                    : V(errors_sum)(e, GCKPTI_SQUARED, row);
}

static GCKPTI_TARGET void V(errors_backward)(const gckpti_errors *e, int64_t row)
{
    if (gckpti_error_is(e->kind, GCKPTI_HUBER))
        V(errors_slopes)(e, GCKPTI_HUBER, row);
    else if (gckpti_error_is(e->kind, GCKPTI_BINARY))
        V(errors_slopes)(e, GCKPTI_BINARY, row);
    else if (e->kind == GCKPTI_SUMMED)
        V(errors_slopes)(e, GCKPTI_SUMMED, row);
    else
        V(errors_slopes)(e, GCKPTI_SQUARED, row);
}
