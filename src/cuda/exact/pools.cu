#ifndef GCKPT_NO_IMAGES
/* ---- max_pool, average_pool: a thread for each result (backward: each element of dx) ---- */
template <bool MAX>
__device__ void pool_at(int64_t e, const gckpti_pool_state &s, const float *x, float *y,
                        uint16_t *tap)
{
    const int64_t place = e / s.channels, line = place / s.out[1], image = line / s.out[0];
    const int64_t h = (line - image * s.out[0]) * s.o.stride[0] - s.o.padding[0];
    const int64_t w = (place - line * s.out[1]) * s.o.stride[1] - s.o.padding[1];
    const float *from = x + image * s.in[0] * s.in[1] * s.channels + (e - place * s.channels);
    const gckpti_pool_taps rows = gckpti_pool_taps_of(&s, 0, h);
    const gckpti_pool_taps columns = gckpti_pool_taps_of(&s, 1, w);
    float best = 0.0f;
    int64_t at = -1;
    for (int64_t a = rows.begin; a < rows.end; a++)
        for (int64_t b = columns.begin; b < columns.end; b++) {
            const int64_t in = (h + a * s.o.dilation[0]) * s.in[1] + w + b * s.o.dilation[1];
            const float v = from[in * s.channels];
            if (!MAX)
                best += v;
            else if (at < 0 || (best == best && !(v <= best)))
                best = v, at = a * s.o.size[1] + b;
        }
    if (y)
        y[e] = MAX ? best : best / ((float)rows.counted * (float)columns.counted);
    if (MAX && tap)
        tap[e] = (uint16_t)at;
}

/* Returns the first window along an axis that covers position `at`, counted with the padding. */
__device__ int64_t first_window(const gckpti_pool_state &s, int axis, int64_t at)
{
    const int64_t last = at - (s.o.size[axis] - 1) * (int64_t)s.o.dilation[axis];
    return last <= 0 ? 0 : (last - 1) / s.o.stride[axis] + 1;
}

/* Adds the gradients of the windows that cover an element, in the order of the windows. */
template <bool MAX>
__device__ void pool_gradient_at(int64_t e, const gckpti_pool_state &s, float *dx, const float *g,
                                 const uint16_t *tap, int accumulate)
{
    const int64_t place = e / s.channels, line = place / s.in[1], image = line / s.in[0];
    const int64_t h = line - image * s.in[0] + s.o.padding[0];
    const int64_t w = place - line * s.in[1] + s.o.padding[1];
    const int64_t left = first_window(s, 1, w);
    float d = accumulate ? dx[e] : 0.0f;
    for (int64_t p = first_window(s, 0, h); p < s.out[0] && p * s.o.stride[0] <= h; p++)
        for (int64_t q = left; q < s.out[1] && q * s.o.stride[1] <= w; q++) {
            const int64_t y = h - p * s.o.stride[0], x = w - q * s.o.stride[1];
            const int64_t number = y / s.o.dilation[0] * s.o.size[1] + x / s.o.dilation[1];
            const int64_t at =
                ((image * s.out[0] + p) * s.out[1] + q) * s.channels + e - place * s.channels;
            if (y % s.o.dilation[0] || x % s.o.dilation[1] || (MAX && tap[at] != number))
                continue;
            const int64_t rows = gckpti_pool_taps_of(&s, 0, h - y - s.o.padding[0]).counted;
            const int64_t columns = gckpti_pool_taps_of(&s, 1, w - x - s.o.padding[1]).counted;
            d += MAX ? g[at] : g[at] / ((float)rows * (float)columns);
        }
    dx[e] = d;
}

template <bool MAX> void pool_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int64_t n = gckpti_elements(backward ? &x->shape : &call->shape);
    if (!backward)
        for_each<pool_at<MAX>>(call, n, gckpti_pool_state_of(call), x->data, call->out,
                               (uint16_t *)call->saved);
    else if (x->grad)
        for_each<pool_gradient_at<MAX>>(call, n, gckpti_pool_state_of(call), x->grad,
                                        call->grad_out, (const uint16_t *)call->saved,
                                        x->accumulate);
}

#endif
