/* ---- sums over rows, from the first to the last: bias += g, gain += g * normalised x, as
 * gckpti_sum_add does; those of 4 vectors of columns stay in registers ---- */
GCKPTI_INLINED void V(sum_add)(FLOATS *sum, FLOATS *low, FLOATS x)
{
    FLOATS y = x - *low, s = *sum + y;
    *low = s - *sum - y;
    *sum = s;
}

GCKPTI_INLINED FLOATS V(sum_load)(const float *x, int64_t at, int64_t n)
{
    return x && n > 0 ? V(load_n)(x + at, n) : V(zero)();
}

GCKPTI_INLINED void V(sum_store)(float *d, int64_t at, FLOATS x, int64_t n)
{
    if (d && n > 0)
        V(store_n)(d + at, x, n);
}

/* n floats from x[at] on, or, where there is no x, bf16 from narrow[at] on. */
GCKPTI_INLINED FLOATS V(load_wide)(const float *x, const uint16_t *narrow, int64_t at, int64_t n)
{
    if (__builtin_expect(gckpti_is_wide(x), 1)) /* else gcc jumps at each vector */
        return V(load_n)(x + at, n);
    return V(stored)(GCKPT_STORED_BF16, narrow + at, 0, V(zero)(), n);
}

/* Columns j..j+n-1, n being `vectors` whole vectors, or less than one; `gain` (0: none) and the
 * number of vectors, at most 4, are constants. */
GCKPTI_INLINED void V(columns_of)(const gckpti_columns *s, int64_t j, int64_t n, int vectors,
                                  int gain)
{
    const int64_t c = gckpti_last(&s->call->shape), rows = gckpti_rows(&s->call->shape);
    const uint16_t *narrow = s->call->grad_out_bf16;
    const gckpt_arg *in = s->call->in;
    const int64_t each = vectors > 1 ? W : n;
    gckpti_row row = { GCKPTI_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    FLOATS b[4], b_low[4], g[4], g_low[4];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        b[i] = V(sum_load)(s->bias, j + W * i, each);
        g[i] = V(sum_load)(s->gain, j + W * i, each);
        b_low[i] = V(sum_load)(s->bias_low, j + W * i, each);
        g_low[i] = V(sum_load)(s->gain_low, j + W * i, each);
    }
    for (int64_t r = 0, at = j; r < rows; r++, at += c) {
        if (gain)
            row = gckpti_norm_row(s->call, r);
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            FLOATS x = V(load_wide)(s->call->grad_out, narrow, at + W * i, each);
            if (s->bias)
                V(sum_add)(&b[i], &b_low[i], x);
            if (gain) {
                FLOATS h = V(load_wide)(in->data, in->bf16, at + W * i, each);
                h = (h - row.first - row.mean) * row.rstd;
                V(sum_add)(&g[i], &g_low[i], V(fma)(x, h, V(zero)()));
            }
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        V(sum_store)(s->bias, j + W * i, b[i], each);
        V(sum_store)(s->gain, j + W * i, g[i], each);
        V(sum_store)(s->bias_low, j + W * i, b_low[i], each);
        V(sum_store)(s->gain_low, j + W * i, g_low[i], each);
    }
}

static GCKPTI_TARGET void V(columns)(const gckpti_columns *s, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = end - j < 4 * W ? gckpti_min(end - j, W) : 4 * W;
        if (n < 4 * W)
            V(columns_of)(s, j, n, 1, s->gain != NULL);
        else if (s->gain)
            V(columns_of)(s, j, n, 4, 1);
        else
            V(columns_of)(s, j, n, 4, 0);
    }
}
