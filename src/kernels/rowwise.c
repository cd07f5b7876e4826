/* ---- softmax, layernorm and rmsnorm: one row ---- */
static GCKPTI_TARGET void V(softmax_forward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    float max, sum, *y = call->out + r * n;
    V(online_softmax)(call->in[0].data + r * n, y, n, 1, &max, &sum);
    gckpti_softmax_end(&max, &sum);
    V(divide)(y, sum, n);
}

static GCKPTI_TARGET void V(softmax_backward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *y = call->out + r * n, *g = call->grad_out + r * n;
    float *d = call->in[0].grad + r * n;
    int accumulate = call->in[0].accumulate;
    const FLOATS dot = V(set1)(V(dot)(g, y, n));
    for (int64_t j = 0; j < n; j += W)
        V(put_product)
    (d + j, V(load_n)(y + j, n - j), V(load_n)(g + j, n - j) - dot, accumulate, n - j);
}

static GCKPTI_TARGET void V(log_softmax_forward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *x = call->in[0].data + r * n;
    float max, sum, *y = call->out + r * n;
    V(online_softmax)(x, NULL, n, 1, &max, &sum);
    gckpti_softmax_end(&max, &sum);
    const FLOATS top = V(set1)(max), rest = V(set1)(V(log_scalar)(sum));
    for (int64_t j = 0; j < n; j += W)
        V(store_n)(y + j, V(load_n)(x + j, n - j) - top - rest, n - j);
}

static GCKPTI_TARGET void V(log_softmax_backward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *y = call->out + r * n, *g = call->grad_out + r * n;
    float *d = call->in[0].grad + r * n;
    const FLOATS sum = V(set1)(V(sum)(g, n, 0.0f));
    for (int64_t j = 0; j < n; j += W) {
        FLOATS p = V(exp)(V(load_n)(y + j, n - j));
        p = V(fnma)(p, sum, V(load_n)(g + j, n - j));
        V(put)(d + j, p, call->in[0].accumulate, n - j);
    }
}

/* Formulas and saved of layernorm and rmsnorm: see ops/norms.c. */
static GCKPTI_TARGET void V(norm_forward)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape);
    const float *gain = o->gain ? call->in[o->gain].data : NULL, *x = call->in[0].data + r * n;
    const float *bias = o->bias ? call->in[o->bias].data : NULL;
    gckpti_row_args row = { GCKPTI_ROW_SQUARES, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    if (o->center) {
        row.first = x[0];
        row.first += V(sum)(x, n, x[0]) / (float)n;
        row.mean = V(sum)(x, n, row.first) / (float)n;
    }
    row.rstd = gckpti_rsqrt(V(reduce)(&row, n) / (float)n + gckpti_norm_epsilon(o));
    const FLOATS center = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first), neg_zero = V(set1)(-0.0f);
    const gckpti_hints hints =
        gckpti_hints_of(call, call->in[0].data, call->in[0].bf16, call->out_bf16, NULL);
    for (int64_t j = 0; call->out && j < n; j += W) {
        V(prefetch)(&hints, r * n + j);
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

static GCKPTI_TARGET void V(norm_backward)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpti_row_args row = gckpti_norm_row_args(call, r);
    int64_t n = gckpti_last(&call->shape);
    const FLOATS mean = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first), zero = V(zero)();
    const gckpti_row_args products = {
        GCKPTI_ROW_PRODUCTS, row.y, row.z, NULL, NULL, 0.0f, 0.0f, 0.0f
    };
    float sum = !o->center ? 0.0f : row.z ? V(reduce)(&products, n) : V(sum)(row.y, n, 0.0f);
    const FLOATS a = V(set1)(sum / (float)n);
    const FLOATS b = V(set1)(V(reduce)(&row, n) / (float)n);
    const gckpti_hints hints = gckpti_hints_of(call, call->in[0].data, call->in[0].bf16,
                                               call->grad_out_bf16, call->in[0].grad_bf16);
    for (int64_t j = 0; j < n; j += W) {
        V(prefetch)(&hints, r * n + j);
        FLOATS h = V(load_n)(row.x + j, n - j) - first;
        FLOATS u = V(load_n)(row.y + j, n - j);
        if (row.z)
            u = V(fma)(u, V(load_n)(row.z + j, n - j), zero);
        h = (h - mean) * rstd;
        u = V(fnma)(h, b, u - a);
        V(put_product)(call->in[0].grad + r * n + j, rstd, u, call->in[0].accumulate, n - j);
    }
}

/* Computes row `row` of a rotary op, or of its gradient: see ops/rotary.c. */
static GCKPTI_TARGET void V(rotary)(const gckpt_call *call, int64_t row)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const int64_t n = gckpti_last(&call->shape), d = n / o->heads;
    const int64_t rotated = gckpti_rotary_columns(o, d), half = rotated / 2;
    const float *cosine = (const float *)call->workspace + row % call->shape.d[1] * rotated;
    const float *sine = cosine + half;
    const float *from = (call->grad_out ? call->grad_out : call->in[0].data) + row * n;
    float *to = (call->grad_out ? call->in[0].grad : call->out) + row * n; /* may equal `from` */
    const int accumulate = call->grad_out && call->in[0].accumulate;
    const FLOATS neg_zero = V(set1)(-0.0f);
    for (int head = 0; head < o->heads; head++, from += d, to += d) {
        for (int64_t i = 0; i < half; i += W) {
            const FLOATS a = V(load_n)(from + i, half - i), c = V(load_n)(cosine + i, half - i);
            const FLOATS b = V(load_n)(from + half + i, half - i);
            const FLOATS s = V(load_n)(sine + i, half - i);
            const FLOATS x = neg_zero - V(fma)(b, s, neg_zero), y = V(fma)(a, s, neg_zero);
            V(put)(to + i, V(fma)(a, c, x), accumulate, half - i);
            V(put)(to + half + i, V(fma)(b, c, y), accumulate, half - i);
        }
        for (int64_t i = rotated; i < d; i += W)
            V(put)(to + i, V(load_n)(from + i, d - i), accumulate, d - i);
    }
}
