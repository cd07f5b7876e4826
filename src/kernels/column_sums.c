/* ---- sums over rows, from the first to the last: bias += g, gain += g * normalised x, each as
 * gckpti_sum_add does; the sums of 4 vectors of columns stay in registers ---- */
/* Sums columns j..j+n-1: whole vectors (`vectors` is 4) or less than one (1). `gain` (0 for no
 * gain) and `vectors` are constants. */
GCKPTI_INLINED void V(column_sums_of)(const gckpti_column_sums *s, int64_t j, int64_t n,
                                      int vectors, int gain)
{
    const int64_t c = gckpti_last(&s->call->shape), rows = gckpti_rows(&s->call->shape);
    const gckpti_source gradient = gckpti_grad_out_of(s->call);
    const gckpti_source in = gckpti_arg_values(s->call->in);
    const int64_t each = vectors > 1 ? W : n;
    gckpti_row_args row = { GCKPTI_ROW_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    FLOATS b[4], b_comp[4], g[4], g_comp[4];
    int64_t at[4];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        at[i] = V(col_at)(j, n, i);
        b[i] = V(sum_load)(s->bias, at[i], each);
        g[i] = V(sum_load)(s->gain, at[i], each);
        b_comp[i] = V(sum_load)(s->bias_comp, at[i], each);
        g_comp[i] = V(sum_load)(s->gain_comp, at[i], each);
    }
    for (int64_t r = 0, row_start = 0; r < rows; r++, row_start += c) {
        if (gain)
            row = gckpti_norm_row_args(s->call, r);
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            FLOATS x = GCKPTI_LOAD_VALUES(gradient, row_start + at[i], each);
            if (s->bias)
                V(sum_add)(&b[i], &b_comp[i], x);
            if (gain) {
                FLOATS h = GCKPTI_LOAD_VALUES(in, row_start + at[i], each);
                h = (h - row.first - row.mean) * row.rstd;
                V(sum_add)(&g[i], &g_comp[i], V(fma)(x, h, V(zero)()));
            }
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        V(sum_store)(s->bias, at[i], b[i], each);
        V(sum_store)(s->gain, at[i], g[i], each);
        V(sum_store)(s->bias_comp, at[i], b_comp[i], each);
        V(sum_store)(s->gain_comp, at[i], g_comp[i], each);
    }
}

static GCKPTI_TARGET void V(column_sums)(const gckpti_column_sums *s, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = V(sum_columns)(end - j);
        if (n < W)
            V(column_sums_of)(s, j, n, 1, s->gain != NULL);
        else if (s->gain)
            V(column_sums_of)(s, j, n, 4, 1);
        else
            V(column_sums_of)(s, j, n, 4, 0);
    }
}
