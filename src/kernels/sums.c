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

/* n floats from x[at] on, or, where there is no x, bf16 from narrow[at_narrow] on. */
GCKPTI_INLINED FLOATS V(load_wide)(const float *x, int64_t at, const uint16_t *narrow,
                                   int64_t at_narrow, int64_t n)
{
    if (gckpti_is_wide(x))
        return V(load_n)(x + at, n);
    return V(stored)(GCKPT_STORED_BF16, narrow + at_narrow, 0, V(zero)(), n);
}

#define GCKPTI_EACH_SUM(X) X(0) X(1) X(2) X(3)
/* Columns j..j+n-1, at most 4 vectors; gain, bias: whether there is one, constants if it pays. */
GCKPTI_INLINED void V(columns_of)(const gckpti_columns *s, int64_t j, int64_t n, int gain, int bias)
{
    const int64_t c = gckpti_last(&s->call->shape), rows = gckpti_rows(&s->call->shape);
    const float *g = s->call->grad_out;
    const uint16_t *narrow = s->call->grad_out_bf16, *x_narrow = s->call->in[0].bf16;
    int64_t at = j;
#define GCKPTI_LEFT(i) (n - W * (i))
#define GCKPTI_SUM_START(i)                                                                        \
    FLOATS bias##i = V(sum_load)(s->bias, j + W * (i), GCKPTI_LEFT(i));                            \
    FLOATS gain##i = V(sum_load)(s->gain, j + W * (i), GCKPTI_LEFT(i));                            \
    FLOATS bias_low##i = V(sum_load)(s->bias_low, j + W * (i), GCKPTI_LEFT(i));                    \
    FLOATS gain_low##i = V(sum_load)(s->gain_low, j + W * (i), GCKPTI_LEFT(i));
#define GCKPTI_SUM_ROW(i)                                                                          \
    if (GCKPTI_LEFT(i) > 0) {                                                                      \
        FLOATS x = V(load_wide)(g, at + W * (i), narrow, at + W * (i), GCKPTI_LEFT(i));            \
        if (bias)                                                                                  \
            V(sum_add)(&bias##i, &bias_low##i, x);                                                 \
        if (gain) {                                                                                \
            FLOATS h = V(load_wide)(row.x, j + W * (i), x_narrow, at + W * (i), GCKPTI_LEFT(i));   \
            h = h - first - mean;                                                                  \
            x = V(fma)(x, h * rstd, zero);                                                         \
            V(sum_add)(&gain##i, &gain_low##i, x);                                                 \
        }                                                                                          \
    }
#define GCKPTI_SUM_END(i)                                                                          \
    V(sum_store)(s->bias, j + W * (i), bias##i, GCKPTI_LEFT(i));                                   \
    V(sum_store)(s->gain, j + W * (i), gain##i, GCKPTI_LEFT(i));                                   \
    V(sum_store)(s->bias_low, j + W * (i), bias_low##i, GCKPTI_LEFT(i));                           \
    V(sum_store)(s->gain_low, j + W * (i), gain_low##i, GCKPTI_LEFT(i));
    gckpti_row row = { GCKPTI_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    const FLOATS zero = V(zero)();
    GCKPTI_EACH_SUM(GCKPTI_SUM_START)
    for (int64_t r = 0; r < rows; r++, at += c) {
        if (gain)
            row = gckpti_norm_row(s->call, r);
        const FLOATS mean = V(set1)(row.mean), rstd = V(set1)(row.rstd);
        const FLOATS first = V(set1)(row.first);
        GCKPTI_EACH_SUM(GCKPTI_SUM_ROW)
        (void)mean, (void)rstd, (void)first;
    }
    GCKPTI_EACH_SUM(GCKPTI_SUM_END)
#undef GCKPTI_LEFT
#undef GCKPTI_SUM_START
#undef GCKPTI_SUM_ROW
#undef GCKPTI_SUM_END
}
#undef GCKPTI_EACH_SUM

static GCKPTI_TARGET void V(columns)(const gckpti_columns *s, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = gckpti_min(end - j, 4 * W);
        if (!s->gain && n == 4 * W)
            V(columns_of)(s, j, 4 * W, 0, 1);
        else
            V(columns_of)(s, j, n, s->gain != NULL, s->bias != NULL);
    }
}
