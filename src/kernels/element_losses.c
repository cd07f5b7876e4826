/* ---- losses of elements: one entry of axis 0, by the steps of gckpti_plain_element_sum ---- */
/* Runs one of four loops in which the kind of loss is a constant: a loop that checks the kind for
 * every vector takes 1.5 times as long. */
#define GCKPTI_OF_KIND(run)                                                                        \
    (gckpti_loss_is(e->kind, GCKPTI_LOSS_SUM)      ? V(run)(e, GCKPTI_LOSS_SUM, row)               \
     : gckpti_loss_is(e->kind, GCKPTI_LOSS_HUBER)  ? V(run)(e, GCKPTI_LOSS_HUBER, row)             \
     : gckpti_loss_is(e->kind, GCKPTI_LOSS_BINARY) ? V(run)(e, GCKPTI_LOSS_BINARY, row)            \
                                                   : V(run)(e, GCKPTI_LOSS_SQUARED, row))

/* Returns weights of W elements, of which n exist; before *until, all elements have these. */
GCKPTI_INLINED FLOATS V(element_weights)(const gckpti_element_loss *e, int64_t at, int64_t n,
                                         int64_t *until)
{
    float w[W];
    if (e->per_weight == 1)
        return V(load_n)(e->weights + at, n);
    const int64_t first = at / e->per_weight;
    if (at + n <= (first + 1) * e->per_weight) {
        *until = (first + 1) * e->per_weight;
        return V(set1)(e->weights[first]);
    }
    for (int64_t i = 0; i < W; i++)
        w[i] = e->weights[(at + (i < n ? i : 0)) / e->per_weight];
    return V(load)(w);
}

/* Returns `sum` plus the losses, times w, of W elements, n of which exist. */
GCKPTI_INLINED FLOATS V(element_loss_add)(const gckpti_element_loss *e, gckpti_loss_kind kind,
                                          int64_t at, int64_t n, FLOATS w, FLOATS sum)
{
    const int summed = gckpti_loss_is(kind, GCKPTI_LOSS_SUM);
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), delta = V(set1)(e->delta);
    FLOATS x = V(load_n)(e->x + at, n), y = summed ? zero : V(load_n)(e->y + at, n);
    FLOATS a = x - y, b = a;
    if (gckpti_loss_is(kind, GCKPTI_LOSS_HUBER)) {
        const FLOATS size = V(abs)(a);
        b = V(if_less)(size, delta, a, size - 0.5f * e->delta);
        a = V(if_less)(size, delta, 0.5f * a, delta);
    } else if (gckpti_loss_is(kind, GCKPTI_LOSS_BINARY)) {
        b = V(fma)(-x, y, V(vmax)(x, zero)) + V(log1p)(V(exp)(-V(abs)(x)));
        a = one;
    } else if (summed)
        a = one;
    return V(if_less)(zero, V(abs)(w), V(fma)(w * a, b, sum), sum + w);
}

GCKPTI_INLINED float V(element_loss_forward_of)(const gckpti_element_loss *e, gckpti_loss_kind kind,
                                                int64_t row)
{
    float lane[32] = { 0.0f };
    FLOATS w = V(set1)(1.0f);
    int64_t until = e->weights ? -1 : INT64_MAX;
    for (int64_t i = 0; i < e->n; i += W) {
        const int64_t at = row * e->n + i, n = gckpti_min(e->n - i, W);
        float *to = lane + i % 32;
        if (at + n > until)
            w = V(element_weights)(e, at, n, &until);
        V(store_n)(to, V(element_loss_add)(e, kind, at, n, w, V(load)(to)), n);
    }
    return gckpti_lanes_sum(lane);
}

static GCKPTI_TARGET float V(element_loss_forward)(const gckpti_element_loss *e, int64_t row)
{
    return GCKPTI_OF_KIND(element_loss_forward_of);
}

/* Puts w d into the gradients of n <= W elements; puts 0 where the weight w is 0. */
GCKPTI_INLINED void V(element_loss_put)(const gckpti_element_loss *e, const gckpt_arg *to,
                                        int64_t at, int64_t n, FLOATS w, FLOATS d)
{
    if (to->grad)
        V(put_product)
    (to->grad + at, V(if_less)(V(zero)(), V(abs)(w), w * d, w), V(set1)(e->call->loss_scale),
     to->accumulate, n);
}

GCKPTI_INLINED void V(element_loss_backward_of)(const gckpti_element_loss *e, gckpti_loss_kind kind,
                                                int64_t row)
{
    const int binary = gckpti_loss_is(kind, GCKPTI_LOSS_BINARY);
    const FLOATS delta = V(set1)(e->delta);
    FLOATS w = V(set1)(1.0f);
    int64_t until = e->weights ? -1 : INT64_MAX;
    for (int64_t at = row * e->n, end = at + e->n; at < end; at += W) {
        const int64_t n = gckpti_min(end - at, W);
        FLOATS x = V(zero)(), y = x, d = V(set1)(1.0f);
        if (at + n > until)
            w = V(element_weights)(e, at, n, &until);
        if (!gckpti_loss_is(kind, GCKPTI_LOSS_SUM)) {
            x = V(load_n)(e->x + at, n), y = V(load_n)(e->y + at, n);
            d = x - y;
        }
        if (gckpti_loss_is(kind, GCKPTI_LOSS_SQUARED))
            d = 2.0f * d;
        else if (gckpti_loss_is(kind, GCKPTI_LOSS_HUBER))
            d = V(if_less)(d, -delta, -delta, V(if_less)(delta, d, delta, d));
        else if (binary)
            d = V(sigmoid)(x) - y;
        V(element_loss_put)(e, &e->call->in[0], at, n, w, d);
        if (!gckpti_loss_is(kind, GCKPTI_LOSS_SUM))
            V(element_loss_put)(e, &e->call->in[1], at, n, w, binary ? -x : -d);
    }
}

static GCKPTI_TARGET void V(element_loss_backward)(const gckpti_element_loss *e, int64_t row)
{
    GCKPTI_OF_KIND(element_loss_backward_of);
}
#undef GCKPTI_OF_KIND
