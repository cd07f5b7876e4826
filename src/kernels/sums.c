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

/* ---- max_pool: as gckpti_max_window ---- */
static GCKPTI_TARGET void V(max_window)(const gckpti_pooling *s, const float *x, int64_t p,
                                        int64_t q, float *y, uint16_t *tap)
{
    int64_t h, w, h_end, w_end, h_begin = gckpti_taps(s, 0, p, &h, &h_end);
    int64_t w_begin = gckpti_taps(s, 1, q, &w, &w_end), n = s->channels;
    for (int64_t c = 0; c < n; c += W) {
        const INTS none = V(bits)(V(zero)());
        INTS at = none + (uint32_t)(h_begin * s->o.size[1] + w_begin);
        FLOATS best = V(load_n)(x + ((h + h_begin) * s->in[1] + w + w_begin) * n + c, n - c);
        for (int64_t i = h_begin; i < h_end; i++)
            for (int64_t j = w_begin; j < w_end; j++) {
                FLOATS v = V(load_n)(x + ((h + i) * s->in[1] + w + j) * n + c, n - c);
                INTS take = (INTS)(best == best) & ~(INTS)(v <= best);
                best = V(floats)((take & V(bits)(v)) | (~take & V(bits)(best)));
                at = (take & (none + (uint32_t)(i * s->o.size[1] + j))) | (~take & at);
            }
        if (y)
            V(store_n)(y + c, best, n - c);
        for (int64_t k = 0; tap && k < W && k < n - c; k++)
            tap[c + k] = (uint16_t)at[k];
    }
}

/* ---- groupnorm, batchnorm: sums over places of 4 vectors of channels stay in registers ---- */
#define GCKPTI_EACH_SUM(X) X(0) X(1) X(2) X(3)
/* Channels j..j+n-1, at most 4 vectors; kind: 0 of x, 1 of (x - mean)^2, 2 of g, 3 also of g h. */
GCKPTI_INLINED void V(channel_sums_of)(const gckpti_channel_pass *p, int64_t j, int64_t n, int kind)
{
    const float *from = kind < 2 ? p->x : p->g;
    const FLOATS zero = V(zero)();
#define GCKPTI_LEFT(i) (n - W * (i))
#define GCKPTI_SUM_START(i)                                                                        \
    FLOATS s##i = zero, s_low##i = zero, t##i = zero, t_low##i = zero, mean##i = zero,             \
           rstd##i = zero;                                                                         \
    if ((kind == 1 || kind == 3) && GCKPTI_LEFT(i) > 0)                                            \
        mean##i = V(load_n)(p->mean + j + W * (i), GCKPTI_LEFT(i));                                \
    if (kind == 3 && GCKPTI_LEFT(i) > 0)                                                           \
        rstd##i = V(load_n)(p->rstd + j + W * (i), GCKPTI_LEFT(i));
#define GCKPTI_SUM_PLACE(i)                                                                        \
    if (GCKPTI_LEFT(i) > 0) {                                                                      \
        FLOATS a = V(load_n)(from + at + W * (i), GCKPTI_LEFT(i));                                 \
        if (kind == 1) {                                                                           \
            a = a - mean##i;                                                                       \
            a = V(fma)(a, a, zero);                                                                \
        }                                                                                          \
        V(sum_add)(&s##i, &s_low##i, a);                                                           \
        if (kind == 3) {                                                                           \
            FLOATS h = V(load_n)(p->x + at + W * (i), GCKPTI_LEFT(i)) - mean##i;                   \
            V(sum_add)(&t##i, &t_low##i, V(fma)(a, h * rstd##i, zero));                            \
        }                                                                                          \
    }
#define GCKPTI_SUM_END(i)                                                                          \
    V(sum_store)(p->s, j + W * (i), s##i, GCKPTI_LEFT(i));                                         \
    if (kind == 3)                                                                                 \
        V(sum_store)(p->t, j + W * (i), t##i, GCKPTI_LEFT(i));                                     \
    (void)t_low##i, (void)rstd##i, (void)mean##i;
    GCKPTI_EACH_SUM(GCKPTI_SUM_START)
    for (int64_t place = 0, at = j; place < p->places; place++, at += p->channels) {
        GCKPTI_EACH_SUM(GCKPTI_SUM_PLACE)
    }
    GCKPTI_EACH_SUM(GCKPTI_SUM_END)
#undef GCKPTI_LEFT
#undef GCKPTI_SUM_START
#undef GCKPTI_SUM_PLACE
#undef GCKPTI_SUM_END
}
#undef GCKPTI_EACH_SUM

static GCKPTI_TARGET void V(channel_sums)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = gckpti_min(end - j, 4 * W);
        if (p->g && p->t)
            V(channel_sums_of)(p, j, n, 3);
        else if (p->g)
            V(channel_sums_of)(p, j, n, 2);
        else if (p->mean)
            V(channel_sums_of)(p, j, n, 1);
        else
            V(channel_sums_of)(p, j, n, 0);
    }
}

static GCKPTI_TARGET void V(channel_out)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    for (int64_t place = 0; place < p->places; place++)
        for (int64_t c = first, at = place * p->channels + first; c < end; c += W, at += W) {
            FLOATS y = V(load_n)(p->rstd + c, end - c);
            FLOATS h = V(load_n)(p->x + at, end - c) - V(load_n)(p->mean + c, end - c);
            if (p->gain)
                h = h * y, y = V(load_n)(p->gain + c, end - c);
            if (p->bias)
                y = V(fma)(h, y, V(load_n)(p->bias + c, end - c));
            else
                y = h * y;
            V(store_n)(p->to + at, y, end - c);
        }
}

static GCKPTI_TARGET void V(channel_dx)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    const FLOATS zero = V(zero)();
    for (int64_t place = 0; place < p->places; place++)
        for (int64_t c = first, at = place * p->channels + first; c < end; c += W, at += W) {
            const FLOATS rstd = V(load_n)(p->rstd + c, end - c);
            FLOATS h = V(load_n)(p->x + at, end - c) - V(load_n)(p->mean + c, end - c);
            FLOATS u = V(load_n)(p->g + at, end - c);
            if (p->gain)
                u = V(fma)(u, V(load_n)(p->gain + c, end - c), zero);
            u = V(fnma)(h * rstd, V(load_n)(p->t + c, end - c), u - V(load_n)(p->s + c, end - c));
            V(put)(p->to + at, rstd, u, p->accumulate, end - c);
        }
}
