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
    return V(stored)(GCKPT_STORAGE_BF16, narrow + at, 0, V(zero)(), n);
}

/* Where vector i of n columns begins: of 4 at most, what is missing is the first once more. */
GCKPTI_INLINED int64_t V(sum_at)(int64_t j, int64_t n, int i) { return W * i < n ? j + W * i : j; }

/* Columns of a block from j on that go together: whole vectors, at most 4, or what is left. */
GCKPTI_INLINED int64_t V(sum_columns)(int64_t left)
{
    return left < W ? left : gckpti_min(left, 4 * W) / W * W;
}

/* Columns j..j+n-1, n being whole vectors (`vectors` is 4) or less than one (1); `gain` (0: none)
 * and `vectors` are constants. */
GCKPTI_INLINED void V(columns_of)(const gckpti_columns *s, int64_t j, int64_t n, int vectors,
                                  int gain)
{
    const int64_t c = gckpti_last(&s->call->shape), rows = gckpti_rows(&s->call->shape);
    const uint16_t *narrow = s->call->grad_out_bf16;
    const gckpt_arg *in = s->call->in;
    const int64_t each = vectors > 1 ? W : n;
    gckpti_row row = { GCKPTI_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    FLOATS b[4], b_low[4], g[4], g_low[4];
    int64_t at[4];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        at[i] = V(sum_at)(j, n, i);
        b[i] = V(sum_load)(s->bias, at[i], each);
        g[i] = V(sum_load)(s->gain, at[i], each);
        b_low[i] = V(sum_load)(s->bias_low, at[i], each);
        g_low[i] = V(sum_load)(s->gain_low, at[i], each);
    }
    for (int64_t r = 0, here = 0; r < rows; r++, here += c) {
        if (gain)
            row = gckpti_norm_row(s->call, r);
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            FLOATS x = V(load_wide)(s->call->grad_out, narrow, here + at[i], each);
            if (s->bias)
                V(sum_add)(&b[i], &b_low[i], x);
            if (gain) {
                FLOATS h = V(load_wide)(in->data, in->bf16, here + at[i], each);
                h = (h - row.first - row.mean) * row.rstd;
                V(sum_add)(&g[i], &g_low[i], V(fma)(x, h, V(zero)()));
            }
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        V(sum_store)(s->bias, at[i], b[i], each);
        V(sum_store)(s->gain, at[i], g[i], each);
        V(sum_store)(s->bias_low, at[i], b_low[i], each);
        V(sum_store)(s->gain_low, at[i], g_low[i], each);
    }
}

static GCKPTI_TARGET void V(columns)(const gckpti_columns *s, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = V(sum_columns)(end - j);
        if (n < W)
            V(columns_of)(s, j, n, 1, s->gain != NULL);
        else if (s->gain)
            V(columns_of)(s, j, n, 4, 1);
        else
            V(columns_of)(s, j, n, 4, 0);
    }
}
