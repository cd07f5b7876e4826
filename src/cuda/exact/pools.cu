#ifndef GCKPT_NO_IMAGES
/* ---- max_pool, average_pool: a thread a result (forward), an element of dx (backward) ---- */
template <class I> struct Pool { /* [0]: rows, [1]: columns */
    I size[2], stride[2], padding[2], in[2], out[2], c;
    float taps;
};

template <class I> Pool<I> pool_of(const gckpti_pooling *p)
{
    Pool<I> s = {};
    for (int i = 0; i < 2; i++) {
        s.size[i] = p->o.size[i], s.stride[i] = p->o.stride[i], s.padding[i] = p->o.padding[i];
        s.in[i] = (I)p->in[i], s.out[i] = (I)p->out[i];
    }
    s.c = (I)p->channels;
    s.taps = (float)p->o.size[0] * (float)p->o.size[1];
    return s;
}

template <class I, bool MAX>
__global__ void pool_forward_kernel(Pool<I> s, const float *x, float *y, uint16_t *tap, int64_t n)
{
    for (EACH(e, n)) {
        const I place = (I)e / s.c, line = place / s.out[1], image = line / s.out[0];
        const I h = (line - image * s.out[0]) * s.stride[0] - s.padding[0];
        const I w = (place - line * s.out[1]) * s.stride[1] - s.padding[1];
        const float *from = x + image * s.in[0] * s.in[1] * s.c + ((I)e - place * s.c);
        float best = 0.0f;
        I at = -1;
        for (I a = h < 0 ? -h : 0; a < s.size[0] && h + a < s.in[0]; a++)
            for (I b = w < 0 ? -w : 0; b < s.size[1] && w + b < s.in[1]; b++) {
                const float v = from[((h + a) * s.in[1] + w + b) * s.c];
                if (!MAX)
                    best += v;
                else if (at < 0 || (best == best && !(v <= best)))
                    best = v, at = a * s.size[1] + b;
            }
        if (y)
            y[e] = MAX ? best : best / s.taps;
        if (MAX && tap)
            tap[e] = (uint16_t)at;
    }
}

/* The first window along an axis that meets `at`. */
template <class I> __device__ I first_window(const Pool<I> &s, int axis, I at)
{
    const I low = at + s.padding[axis] - s.size[axis] + s.stride[axis];
    return low < s.stride[axis] ? 0 : low / s.stride[axis];
}

/* Windows that meet an element come in order. */
template <class I, bool MAX>
__global__ void pool_backward_kernel(Pool<I> s, float *dx, const float *g, const uint16_t *tap,
                                     int64_t n, int accumulate)
{
    for (EACH(e, n)) {
        const I place = (I)e / s.c, line = place / s.in[1], image = line / s.in[0];
        const I h = line - image * s.in[0] + s.padding[0], w = place - line * s.in[1] + s.padding[1];
        const I left = first_window(s, 1, w - s.padding[1]), c = (I)e - place * s.c;
        float d = accumulate ? dx[e] : 0.0f;
        for (I p = first_window(s, 0, h - s.padding[0]); p < s.out[0] && p * s.stride[0] <= h; p++)
            for (I q = left; q < s.out[1] && q * s.stride[1] <= w; q++) {
                const I at = ((image * s.out[0] + p) * s.out[1] + q) * s.c + c;
                if (!MAX)
                    d += g[at] / s.taps;
                else if (tap[at] == (h - p * s.stride[0]) * s.size[1] + w - q * s.stride[1])
                    d += g[at];
            }
        dx[e] = d;
    }
}

template <class I, bool MAX>
void pool_in(const gckpt_call *call, const gckpti_pooling *p, int backward)
{
    const gckpt_arg *x = &call->in[0];
    const Pool<I> s = pool_of<I>(p);
    const int64_t n = gckpti_elements(backward ? &x->shape : &call->shape);
    uint16_t *tap = MAX ? (uint16_t *)call->aux : NULL;
    if (!backward)
        RUN(call, (pool_forward_kernel<I, MAX>), blocks_for(n, 256), 256, 0, s, x->data, call->out,
            tap, n);
    else if (x->grad)
        RUN(call, (pool_backward_kernel<I, MAX>), blocks_for(n, 256), 256, 0, s, x->grad,
            call->grad_out, tap, n, x->accumulate);
}

template <bool MAX> void pool(const gckpt_call *call, int backward)
{
    const gckpti_pooling p = gckpti_pooling_of(call);
    int64_t most = larger(gckpti_elements(&call->in[0].shape), gckpti_elements(&call->shape));
    for (int i = 0; i < 2; i++) /* a window may begin before, and reach beyond, x */
        most = larger(most, p.in[i] + 2 * (int64_t)p.o.size[i] + p.o.stride[i]);
    most < GCKPT_CUDA_WIDE ? pool_in<int32_t, MAX>(call, &p, backward)
                           : pool_in<int64_t, MAX>(call, &p, backward);
}

void max_pool_forward(const gckpt_call *call) { pool<true>(call, 0); }
void max_pool_backward(const gckpt_call *call) { pool<true>(call, 1); }
void average_pool_forward(const gckpt_call *call) { pool<false>(call, 0); }
void average_pool_backward(const gckpt_call *call) { pool<false>(call, 1); }
#endif
