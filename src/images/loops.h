#ifndef GCKPT_NO_IMAGES
/* Computes the result at `at` of an upsample, or adds its gradient to dx; from: the pixels of the
 * taps. If their number is a constant, weights stay in registers. */
GCKPTI_INLINED void V(upsample_taps)(const gckpt_call *call, int64_t at, const int64_t *from,
                                     const float *weight, int taps)
{
    const int64_t n = call->shape.d[3];
    const float *x = call->in[0].data, *g = call->grad_out;
    float *dx = call->in[0].grad, *y = call->out + at;
    for (int64_t c = 0; g && c < n; c += W) {
        const FLOATS d = V(load_n)(g + at + c, n - c);
        GCKPTI_UNROLL
        for (int k = 0; k < taps; k++) {
            float *to = dx + from[k] + c;
            V(store_n)(to, V(fma)(V(set1)(weight[k]), d, V(load_n)(to, n - c)), n - c);
        }
    }
    for (int64_t c = 0; !g && c < n; c += W) {
        FLOATS sum = V(zero)();
        GCKPTI_UNROLL
        for (int k = 0; k < taps; k++)
            sum = V(fma)(V(set1)(weight[k]), V(load_n)(x + from[k] + c, n - c), sum);
        V(store_n)(y + c, sum, n - c);
    }
}

/* Computes row `row` of the results of an upsample, or adds its gradients to dx. */
GCKPTI_KERNEL void V(upsample_row)(const gckpt_call *call, int64_t row)
{
    const int64_t *in = call->in[0].shape.d, *out = call->shape.d, n = out[3];
    const int64_t image = row / out[1], i = row % out[1];
    const int mode = ((const gckpti_upsample *)call->attributes)->mode;
    const gckpti_interp p = gckpti_interp_of(mode, in[1], out[1], i);
    for (int64_t j = 0, at = row * out[2] * n; j < out[2]; j++, at += n) {
        const gckpti_interp q = gckpti_interp_of(mode, in[2], out[2], j);
        float weight[4];
        int64_t from[4];
        int taps = 0;
        for (int a = 0; a < p.n; a++)
            for (int b = 0; b < q.n; b++, taps++) {
                weight[taps] = p.weight[a] * q.weight[b];
                from[taps] = ((image * in[1] + p.index[a]) * in[2] + q.index[b]) * n;
            }
        if (mode == GCKPT_NEAREST && !call->grad_out)
            memcpy(call->out + at, call->in[0].data + from[0], (size_t)n * sizeof(float));
        else if (W > 1 && taps == 4)
            V(upsample_taps)(call, at, from, weight, 4);
        else
            V(upsample_taps)(call, at, from, weight, taps);
    }
}

/* ---- pools: y of row `row` of all windows or, in a backward, their gradients, added to dx ---- */
#if GCKPTI_ISA < 0
#define GCKPTI_CONVERT(x, type) (type)(x)
typedef uint16_t V(saved_taps);
#else
#define GCKPTI_CONVERT __builtin_convertvector
typedef uint16_t V(saved_taps) __attribute__((vector_size(2 * W)));
#endif
GCKPTI_INLINED void V(copy_taps)(void *to, const void *from, int64_t n)
{
    if (W > 1 && n < W)
        memcpy(to, from, (size_t)n * sizeof(uint16_t));
    else
        memcpy(to, from, W * sizeof(uint16_t));
}

/* max and backward are constants; if it were not inlined, each window would test them. */
#if GCKPTI_ISA == -1 && GCKPTI_OPTIMISED && !GCKPTI_IS_SMALL
#define GCKPTI_WINDOWS static inline __attribute__((always_inline))
#else
#define GCKPTI_WINDOWS GCKPTI_INLINED
#endif
GCKPTI_WINDOWS void V(pool_windows)(const gckpti_pool_state *s, int64_t row, int max, int backward)
{
    const gckpt_call *call = s->call;
    const int64_t n = s->channels, wide = s->o.size[1], line = s->in[1] * n;
    const int64_t down = s->o.dilation[0] * line, right = s->o.dilation[1] * n; /* to a next tap */
    const int64_t top = row % s->out[0] * s->o.stride[0] - s->o.padding[0];
    const gckpti_pool_taps rows = gckpti_pool_taps_of(s, 0, top), all = { 0, wide, wide };
    const int64_t last = s->in[1] - (wide - 1) * s->o.dilation[1] - 1; /* first tap of the last */
    const INTS none = V(bits)(V(zero)());
    const int stores = backward && s->stores;
    const int scatters = backward && max && !stores; /* writes one tap of each result */
    const int skips = scatters && (W == 1 || n < W); /* of all channels: windows' taps are unused */
    const float area = (float)rows.counted * (float)wide;
    int64_t first = -s->o.padding[1], to = row * s->out[1] * n;
    int64_t from = (row / s->out[0] * s->in[0] + top) * line + first * n;
    for (const int64_t end = to + s->out[1] * n, stride = s->o.stride[1]; to < end;
         to += n, first += stride, from += stride * n) {
        const int inside = !GCKPTI_IS_SMALL && (skips || (first >= 0 && first <= last));
        const gckpti_pool_taps columns = inside ? all : gckpti_pool_taps_of(s, 1, first);
        const int64_t h0 = rows.begin, h1 = rows.end, w0 = columns.begin, w1 = columns.end;
        const FLOATS size = V(set1)(inside ? area : (float)rows.counted * (float)columns.counted);
        uint16_t *saved = max && call->saved ? (uint16_t *)call->saved + to : NULL;
        int64_t c = 0, left = n;
        for (; left > 0 && (!scatters || (W > 1 && left >= W)); c += W, left -= W) {
            const float *x = backward ? NULL : call->in[0].data + from + c;
            float *dx = backward ? call->in[0].grad + from + c : NULL;
            V(saved_taps) index = GCKPTI_CONVERT(none, V(saved_taps));
            INTS at = none + (uint32_t)(h0 * wide + w0);
            FLOATS y = backward ? V(load_n)(call->grad_out + to + c, left) : V(zero)();
            if (backward && max)
                V(copy_taps)(&index, saved + c, left), at = GCKPTI_CONVERT(index, INTS);
            else if (backward)
                y = y / size;
            else if (max)
                y = V(load_n)(x + h0 * down + w0 * right, left);
            for (int64_t h = h0; h < h1; h++)
                for (int64_t w = w0; w < w1; w++) {
                    const int64_t e = h * down + w * right;
                    const INTS tap = none + (uint32_t)(h * wide + w);
                    const FLOATS v =
                        stores ? V(zero)() : V(load_n)(backward ? dx + e : x + e, left);
                    if (backward && max) {
                        V(store_n)(dx + e, V(select)(GCKPTI_MASK_OF(at == tap), v + y, v), left);
                    } else if (backward) {
                        V(store_n)(dx + e, v + y, left);
                    } else if (max) {
                        const INTS take = GCKPTI_MASK_OF(y == y) & ~GCKPTI_MASK_OF(v <= y);
                        y = V(select)(take, v, y), at = (take & tap) | (~take & at);
                    } else {
                        y = y + v;
                    }
                }
            if (!backward && !max)
                y = y / size;
            if (!backward && call->out)
                V(store_n)(call->out + to + c, y, left);
            index = GCKPTI_CONVERT(at, V(saved_taps));
            if (!backward && saved)
                V(copy_taps)(saved + c, &index, left);
        }
        for (; scatters && c < n; c++) {
            const uint32_t h = saved[c] / (uint32_t)wide, w = saved[c] % (uint32_t)wide;
            const int64_t e = (int64_t)h * down + (int64_t)w * right + c;
            call->in[0].grad[from + e] += call->grad_out[to + c];
        }
    }
}
#undef GCKPTI_CONVERT
#undef GCKPTI_WINDOWS

GCKPTI_KERNEL void V(pool_row)(const gckpti_pool_state *s, int64_t row)
{
    const gckpti_pool_state copy = *s; /* which no store can alias */
    if (s->backward && s->max)
        V(pool_windows)(&copy, row, 1, 1);
    else if (s->backward)
        V(pool_windows)(&copy, row, 0, 1);
    else if (s->max)
        V(pool_windows)(&copy, row, 1, 0);
    else
        V(pool_windows)(&copy, row, 0, 0);
}

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
