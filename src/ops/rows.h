/* ---- rows: sums and maxima in 32 lanes (num/sums.h) ----
 * Loops for W floats at once; with W = 1 they are the plain kernels. Vectors extend over elements
 * of a row, or over rows or columns, never along a chain, so every W gives the same bits. */
/* Returns `sum` plus (MAX: the larger of it and) elements at..at+W-1, of which `left` exist. */
GCKPTI_INLINED FLOATS V(term)(const gckpti_row_args *row, int64_t at, int64_t left, FLOATS sum)
{
    FLOATS x = V(load_n)(row->x + at, left), y;
    if (row->kind == GCKPTI_ROW_SUM)
        return x - V(set1)(row->first) + sum;
    if (row->kind == GCKPTI_ROW_PRODUCTS)
        return V(fma)(x, V(load_n)(row->y + at, left), V(zero)()) + sum;
    if (row->kind == GCKPTI_ROW_MAX)
        return V(vmax)(x, sum);
    if (row->kind == GCKPTI_ROW_DOT)
        return V(fma)(x, V(load_n)(row->y + at, left), sum);
    if (row->kind == GCKPTI_ROW_EXP) {
        x = V(exp)(x - V(set1)(row->mean));
        if (row->out)
            V(store_n)(row->out + at, x, left);
        return sum + x;
    }
    x = x - V(set1)(row->first) - V(set1)(row->mean);
    if (row->kind == GCKPTI_ROW_SQUARES)
        return V(fma)(x, x, sum);
    x = x * V(set1)(row->rstd);
    y = V(load_n)(row->y + at, left);
    if (row->z)
        y = V(fma)(y, V(load_n)(row->z + at, left), V(zero)());
    return V(fma)(y, x, sum);
}

/* Folds a row's 32 lanes, by halves, to their sum or maximum; by one loop, or gcc spills them. */
GCKPTI_INLINED float V(fold)(FLOATS *lane, int largest)
{
    GCKPTI_UNROLL
    for (int h = 16 / W, i = 32 / W - 1; i > 0; h = i-- > h ? h : h / 2)
        lane[i - h] = largest ? V(vmax)(lane[i], lane[i - h]) : V(add)(lane[i], lane[i - h]);
    return largest ? V(fold_max)(lane[0]) : V(fold_sum)(lane[0]);
}

/* Reduces a row of n elements in 32 lanes, as row->kind says. */
GCKPTI_INLINED float V(reduce)(const gckpti_row_args *row, int64_t n)
{
    enum { LANES = 32 / W };
    const int largest = row->kind == GCKPTI_ROW_MAX;
    const FLOATS start = V(set1)(largest ? -GCKPTI_INFINITY : 0.0f);
    FLOATS lane[LANES];
    int64_t at = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = start;
    for (; !GCKPTI_IS_SMALL && at + 32 <= n; at += 32) {
        GCKPTI_UNROLL
        for (int i = 0; i < LANES; i++)
            lane[i] = V(term)(row, at + W * i, W, lane[i]);
    }
#if GCKPTI_ISA == -1
    for (; at < n; at++)
        lane[(uint32_t)at % 32] = V(term)(row, at, 1, lane[(uint32_t)at % 32]);
#else
    GCKPTI_UNROLL
    for (int i = 0; i < LANES; i++, at += W)
        if (at < n)
            lane[i] = V(blend_n)(n - at, V(term)(row, at, n - at, lane[i]), lane[i]);
#endif
    return V(fold)(lane, largest);
}

/* Returns the sum of x[j] - first. */
GCKPTI_KERNEL float V(sum_from)(const float *x, int64_t n, float first)
{
    const gckpti_row_args row = { GCKPTI_ROW_SUM, x, NULL, NULL, NULL, first, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

GCKPTI_ISA_NOINLINE FLOATS V(log_noinline)(FLOATS x) { return V(log)(x); }
GCKPTI_KERNEL float V(log_scalar)(float x) { return GCKPTI_LANE(V(log_noinline)(V(set1)(x)), 0); }

GCKPTI_KERNEL float V(dot)(const float *x, const float *y, int64_t n)
{
    const gckpti_row_args row = { GCKPTI_ROW_DOT, x, y, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

/* Returns the greatest element, or -inf if n is 0. Ignores NaN, which callers meet in x later. */
GCKPTI_KERNEL float V(row_max)(const float *x, int64_t n)
{
    const gckpti_row_args row = { GCKPTI_ROW_MAX, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

/* A step of the online softmax (Milakov & Gimelshein 2018) for n scores x: max' = max(max, x), p =
 * exp(x - shift(max')), sum' = fma(sum, factor, sum of p by lanes); returns factor = exp(max -
 * shift(max')). In the first step max' = max(x), sum' = sum of p. p may be x, or NULL. */
GCKPTI_KERNEL float V(online)(const float *x, float *p, int64_t n, int first, float *max,
                              float *sum)
{
    gckpti_row_args row = { GCKPTI_ROW_EXP, x, NULL, NULL, p, 0.0f, 0.0f, 0.0f };
    float factor = 0.0f, added;
    float largest = V(row_max)(x, n);
    largest = first || largest > *max ? largest : *max;
    row.mean = gckpti_shift(largest);
    if (!first)
        factor = GCKPTI_LANE(V(exp)(V(set1)(*max - row.mean)), 0);
    added = V(reduce)(&row, n);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = largest;
    return factor;
}

GCKPTI_UNUSED static const gckpti_class_kernels V(class_loss_kernels) = {
    V(online), GCKPTI_IF_LOSSES(V(surprisal)), GCKPTI_IF_TRAINING(V(class_gradients)),
    V(log_scalar),
#ifndef GCKPT_NO_LINEAR_LOSS
    V(softcaps)
#endif
};

GCKPTI_KERNEL void V(divide)(float *x, float divisor, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(x + i, V(load_n)(x + i, n - i) / V(set1)(divisor), n - i);
}

GCKPTI_KERNEL void V(add_into)(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(to + i, V(load_n)(to + i, n - i) + V(load_n)(from + i, n - i), n - i);
}

/* Updates n elements of a pass from `at` on; extra: the last part of the gradient, still to add, or
 * NULL. Returns the sum of the gradient's squares. Sum and quotient of the gradient are stored only
 * if they are outputs. Divisions by powers of two are multiplications, which round the same. */
GCKPTI_KERNEL float V(update_block)(const gckpt_update_pass *p, const float *extra, int64_t at,
                                    int64_t n, int update)
{
    enum { LANES = 32 / W };
    const gckpt_update_constants copy = p->rates, *a = GCKPTI_IS_SMALL ? &p->rates : &copy;
    const FLOATS count = V(set1)(p->count > 0 ? p->count : 1.0f), inverse = V(set1)(1.0f) / count;
    const int exact = !GCKPTI_IS_SMALL && (!(p->count > 0) || gckpti_bits(p->count) << 9 == 0);
    const int kind = update ? (int)p->optimiser : -1, back = p->write_back && p->count > 0;
    const int keep = extra && !back && (!update || p->write_back);
    float *g = p->gradient + at, *w = p->values, *m = p->state[0], *v = p->state[1];
    FLOATS lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = V(zero)();
    for (int64_t i = 0; i < n; i += W) {
        int64_t left = n - i;
        FLOATS x = V(load_n)(g + i, left), w1, m1, v1;
        if (extra)
            x = x + V(load_n)(extra + i, left);
        if (keep)
            V(store_n)(g + i, x, left);
        x = exact ? x * inverse : x / count;
        FLOATS *sum = &lane[(uint32_t)(i / W) % LANES];
        *sum = V(fma)(x, x, *sum);
        if (back)
            V(store_n)(g + i, x, left);
        if (kind < 0)
            continue;
        w1 = V(load_n)(w + at + i, left);
        if (kind == GCKPT_ADAMW) {
            m1 = V(load_n)(m + at + i, left), v1 = V(load_n)(v + at + i, left);
            V(step_adamw)(a, x, &w1, &m1, &v1);
            V(store_n)(m + at + i, m1, left), V(store_n)(v + at + i, v1, left);
        } else if (kind == GCKPT_MOMENTUM) {
            m1 = V(load_n)(m + at + i, left);
            V(step_momentum)(a, p->momentum, x, &w1, &m1);
            V(store_n)(m + at + i, m1, left);
        } else
            V(step_sgd)(a, x, &w1);
        V(store_n)(w + at + i, w1, left);
    }
    return V(fold)(lane, 0);
}

/* Computes elements first..end-1 of a dropout (ops/unary.c). */
GCKPTI_KERNEL void V(dropout_elements)(const gckpti_dropout *d, int64_t first, int64_t end)
{
    const FLOATS factor = V(set1)(d->scale);
    uint32_t words[5 * W] = { 0 }; /* 4 W elements, and elements read after them */
    uint64_t at = (d->offset + (uint64_t)first) / 4;
    int64_t i = first - (int64_t)((d->offset + (uint64_t)first) % 4); /* start of block `at` */
    for (int64_t n; first < end; i += 4 * W, at += W) {
        INTS word[4];
        V(philox)(d->random.key, at, d->random.stream, d->random.step, word);
        for (int k = 0; k < 4 * W; k++)
            words[k] = GCKPTI_LANE(word[k % 4], k / 4);
        for (; first < end && first < i + 4 * W; first += n) {
            n = W == 1 ? 1 : gckpti_min(gckpti_min(end, i + 4 * W) - first, W);
            memcpy(word, words + (first - i), sizeof *word);
            const INTS kept = GCKPTI_MASK_OF(*word >> 8 >= d->threshold);
            const FLOATS x = V(floats)(V(bits)(V(load_n)(d->loop.in[0] + first, n)) & kept);
            V(put_product_n)(d->loop.to + first, factor, x, d->loop.accumulate, n);
        }
    }
}

/* ---- softmax, layernorm and rmsnorm: one row ---- */
GCKPTI_KERNEL void V(softmax_row)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    float max, sum, *y = call->out + r * n;
    V(online)(call->in[0].data + r * n, y, n, 1, &max, &sum);
    gckpti_softmax_end(&max, &sum);
    V(divide)(y, sum, n);
}

GCKPTI_KERNEL void V(softmax_row_grad)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *y = call->out + r * n, *g = call->grad_out + r * n;
    float *d = call->in[0].grad + r * n;
    const FLOATS dot = V(set1)(V(dot)(g, y, n));
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS x = V(load_n)(g + j, n - j) - dot;
        V(put_product_n)(d + j, V(load_n)(y + j, n - j), x, call->in[0].accumulate, n - j);
    }
}

/* Formulas and saved of layernorm and rmsnorm: see ops/norms.c. */
GCKPTI_KERNEL void V(norm_row)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape);
    const float *gain = o->gain ? call->in[o->gain].data : NULL, *x = call->in[0].data + r * n;
    const float *bias = o->bias ? call->in[o->bias].data : NULL;
    gckpti_row_args row = { GCKPTI_ROW_SQUARES, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    if (o->center) {
        row.first = x[0];
        row.first += V(sum_from)(x, n, x[0]) / (float)n;
        row.mean = V(sum_from)(x, n, row.first) / (float)n;
    }
    row.rstd = gckpti_rsqrt(V(reduce)(&row, n) / (float)n + gckpti_norm_epsilon(o));
    const FLOATS center = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first), neg_zero = V(set1)(-0.0f);
    for (int64_t j = 0; call->out && j < n; j += W) {
        FLOATS h = V(load_n)(x + j, n - j) - first - center, y = rstd, b = neg_zero;
        if (gain)
            h = h * rstd, y = V(load_n)(gain + j, n - j);
        if (bias)
            b = V(load_n)(bias + j, n - j);
        V(store_n)(call->out + r * n + j, V(fma)(h, y, b), n - j);
    }
    float *saved = (float *)call->saved;
    if (saved && o->center) {
        saved[3 * r] = row.first;
        saved[3 * r + 1] = row.mean;
    }
    if (saved)
        saved[o->center ? 3 * r + 2 : r] = row.rstd;
}

GCKPTI_KERNEL void V(norm_row_grad)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpti_row_args row = gckpti_norm_row_args(call, r);
    int64_t n = gckpti_last(&call->shape);
    const FLOATS mean = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first), zero = V(zero)();
    const gckpti_row_args products = {
        GCKPTI_ROW_PRODUCTS, row.y, row.z, NULL, NULL, 0.0f, 0.0f, 0.0f
    };
    float sum = !o->center ? 0.0f : row.z ? V(reduce)(&products, n) : V(sum_from)(row.y, n, 0.0f);
    const FLOATS a = V(set1)(sum / (float)n);
    const FLOATS b = V(set1)(V(reduce)(&row, n) / (float)n);
    for (int64_t j = 0; j < n; j += W) {
        FLOATS h = V(load_n)(row.x + j, n - j) - first;
        FLOATS u = V(load_n)(row.y + j, n - j);
        if (row.z)
            u = V(fma)(u, V(load_n)(row.z + j, n - j), zero);
        h = (h - mean) * rstd;
        u = V(fnma)(h, b, u - a);
        V(put_product_n)(call->in[0].grad + r * n + j, rstd, u, call->in[0].accumulate, n - j);
    }
}
