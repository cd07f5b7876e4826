#ifndef GCKPT_NO_IMAGES
GCKPTI_KERNEL void V(scaled_add)(float *to, float factor, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)
    (to + i, V(fma)(V(set1)(factor), V(load_n)(from + i, n - i), V(load_n)(to + i, n - i)), n - i);
}

/* ---- max_pool: y is the first tap that no other exceeds, or the first NaN ---- */
/* Computes or, in a backward, adds the gradient of the window with the taps t. */
GCKPTI_INLINED void V(max_window)(const gckpti_pool_state *s, const gckpti_taps *t)
{
    const gckpt_call *call = s->call;
    const int64_t n = s->channels, wide = s->o.size[1], line = s->in[1] * n;
    uint16_t *tap = call->saved ? (uint16_t *)call->saved + t->y : NULL;
    uint32_t index[W];
    if (s->backward) {
        const float *g = call->grad_out + t->y;
        float *dx = call->in[0].grad + t->x;
        for (int64_t c = 0; c < n; c++) {
            const int64_t h = (int64_t)(tap[c] / (uint32_t)wide), w = tap[c] - h * wide;
            dx[h * line + w * n + c] += g[c];
        }
        return;
    }
    for (int64_t c = 0; c < n; c += W) {
        const float *x = call->in[0].data + t->x + c;
        const INTS none = V(bits)(V(zero)());
        INTS at = none + (uint32_t)(t->begin[0] * wide + t->begin[1]);
        FLOATS best = V(load_n)(x + t->begin[0] * line + t->begin[1] * n, n - c);
        for (int64_t h = t->begin[0]; h < t->end[0]; h++)
            for (int64_t w = t->begin[1]; w < t->end[1]; w++) {
                FLOATS v = V(load_n)(x + h * line + w * n, n - c);
                INTS take = GCKPTI_MASK_OF(best == best) & ~GCKPTI_MASK_OF(v <= best);
                best = V(floats)((take & V(bits)(v)) | (~take & V(bits)(best)));
                at = (take & (none + (uint32_t)(h * wide + w))) | (~take & at);
            }
        if (call->out)
            V(store_n)(call->out + t->y + c, best, n - c);
        memcpy(index, &at, sizeof at);
        for (int64_t k = 0; tap && k < W && k < n - c; k++)
            tap[c + k] = (uint16_t)index[k];
    }
}

/* ---- average_pool: y is the sum of the taps / size; backward: each tap's dx += g / size ---- */
GCKPTI_INLINED void V(average_window)(const gckpti_pool_state *s, const gckpti_taps *t)
{
    const gckpt_call *call = s->call;
    const int64_t n = s->channels;
    const FLOATS size = V(set1)((float)s->o.size[0] * (float)s->o.size[1]);
    for (int64_t c = 0; c < n; c += W) {
        const int64_t left = n - c;
        FLOATS y = V(zero)();
        if (s->backward)
            y = V(load_n)(call->grad_out + t->y + c, left) / size;
        for (int64_t h = t->begin[0]; h < t->end[0]; h++)
            for (int64_t w = t->begin[1]; w < t->end[1]; w++) {
                const int64_t at = t->x + (h * s->in[1] + w) * n + c;
                float *dx = call->in[0].grad;
                if (s->backward)
                    V(put_n)(dx + at, y, 1, left);
                else
                    y = y + V(load_n)(call->in[0].data + at, left);
            }
        if (!s->backward)
            V(store_n)(call->out + t->y + c, y / size, left);
    }
}

/* Runs a function of one window for a row of windows. */
#define GCKPTI_WINDOWS(name)                                                                       \
    GCKPTI_KERNEL void V(name##s)(const gckpti_pool_state *s, int64_t row)                         \
    {                                                                                              \
        const gckpti_pool_state copy = *s; /* which no store can alias */                          \
        gckpti_taps t = gckpti_taps_of(&copy, row);                                                \
        for (int64_t q = 0; q < copy.out[1]; q++) {                                                \
            gckpti_next_taps(&copy, q, &t);                                                        \
            V(name)(&copy, &t);                                                                    \
        }                                                                                          \
    }
GCKPTI_WINDOWS(max_window)
GCKPTI_WINDOWS(average_window)
#undef GCKPTI_WINDOWS

/* ---- groupnorm, batchnorm: sums over pixels ---- */
/* Sums channels j..j+n-1 like V(column_sums_of): d = x - mean, d d, g or, if `both`, g and g h. */
GCKPTI_INLINED void V(channel_sums_of)(const gckpti_channel_pass *p, int64_t j, int64_t n,
                                       int vectors, int both)
{
    const float *from = p->g ? p->g : p->x, *x = both ? p->x : from;
    const int squares = p->squares;
    const int64_t each = vectors > 1 ? W : n, channels = p->channels;
    FLOATS s[GCKPTI_COLUMN_VECTORS], s_comp[GCKPTI_COLUMN_VECTORS], t[GCKPTI_COLUMN_VECTORS];
    FLOATS t_comp[GCKPTI_COLUMN_VECTORS], mean[GCKPTI_COLUMN_VECTORS], rstd[GCKPTI_COLUMN_VECTORS];
    int64_t at[GCKPTI_COLUMN_VECTORS];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        at[i] = V(col_at)(j, n, i);
        s[i] = s_comp[i] = t[i] = t_comp[i] = V(zero)();
        mean[i] = V(sum_load)(both || !p->g ? p->mean : NULL, at[i], each);
        rstd[i] = V(sum_load)(both ? p->rstd : NULL, at[i], each);
    }
    for (int64_t place = p->pixels; place > 0; place--, from += channels, x += channels) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            FLOATS a = V(load_n)(from + at[i], each), d = a - mean[i];
            if (both) {
                d = (V(load_n)(x + at[i], each) - mean[i]) * rstd[i];
                V(sum_add)(&s[i], &s_comp[i], a);
                V(sum_add)(&t[i], &t_comp[i], V(fma)(a, d, V(zero)()));
            } else {
                V(sum_add)(&s[i], &s_comp[i], squares ? V(fma)(d, d, V(zero)()) : d);
            }
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        V(sum_store)(p->s, at[i], s[i], each);
        V(sum_store)(both ? p->t : NULL, at[i], t[i], each);
    }
}

GCKPTI_KERNEL void V(channel_sums)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    const int both = p->g && p->t;
    for (int64_t j = first, n; j < end; j += n) {
        n = V(sum_columns)(end - j);
        if (n < W && both)
            V(channel_sums_of)(p, j, n, 1, 1);
        else if (n < W)
            V(channel_sums_of)(p, j, n, 1, 0);
        else if (both)
            V(channel_sums_of)(p, j, n, GCKPTI_COLUMN_VECTORS, 1);
        else
            V(channel_sums_of)(p, j, n, GCKPTI_COLUMN_VECTORS, 0);
    }
}

GCKPTI_KERNEL void V(channel_out)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    for (int64_t place = 0; place < p->pixels; place++)
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

GCKPTI_KERNEL void V(channel_dx)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    const FLOATS zero = V(zero)();
    for (int64_t place = 0; place < p->pixels; place++)
        for (int64_t c = first, at = place * p->channels + first; c < end; c += W, at += W) {
            const FLOATS rstd = V(load_n)(p->rstd + c, end - c);
            FLOATS h = V(load_n)(p->x + at, end - c) - V(load_n)(p->mean + c, end - c);
            FLOATS u = V(load_n)(p->g + at, end - c);
            if (p->gain)
                u = V(fma)(u, V(load_n)(p->gain + c, end - c), zero);
            u = V(fnma)(h * rstd, V(load_n)(p->t + c, end - c), u - V(load_n)(p->s + c, end - c));
            V(put_product_n)(p->to + at, rstd, u, p->accumulate, end - c);
        }
}

GCKPTI_UNUSED static const gckpti_channel_kernels V(channel_loops) = {
    V(channel_sums), V(channel_out), GCKPTI_IF_TRAINING(V(channel_dx))
};
#endif
