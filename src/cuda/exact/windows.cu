#ifndef GCKPT_NO_IMAGES
/* ---- pools, upsample ---- A result reads a window of an image: taps of lines times taps of
 * columns. A thread computes a result or, backward, an element of dx, to which it adds the
 * gradients of the windows and taps that read it, in their order. */
enum WindowKind { MAX_POOL, AVERAGE_POOL, UPSAMPLE };
struct Windows { /* sizes: rows and columns of x and of the result; channels */
    int64_t in[2], out[2], c;
    int mode; /* of an upsample */
    gckpti_pool_state pool;
};

/* Taps begin to end - 1 of a result along an axis read elements first + tap * apart. */
struct Taps {
    int64_t begin, end, first, apart, last, counted; /* last: of the last tap, perhaps outside x */
    float weight[2];
    __device__ int64_t at(int64_t tap) const { return first + tap * apart; }
};

template <WindowKind KIND> __device__ Taps taps_of(const Windows &s, int axis, int64_t result)
{
    if (KIND == UPSAMPLE) {
        const gckpti_interp p = gckpti_interp_of(s.mode, s.in[axis], s.out[axis], result);
        const int64_t apart = p.index[1] - p.index[0];
        return { 0, p.n, p.index[0], apart, p.index[p.n - 1], 0, { p.weight[0], p.weight[1] } };
    }
    const gckpti_pool &o = s.pool.o;
    const int64_t first = result * o.stride[axis] - o.padding[axis], apart = o.dilation[axis];
    const gckpti_pool_taps taps = gckpti_pool_taps_of(&s.pool, axis, first);
    return { taps.begin, taps.end, first, apart, first + (o.size[axis] - 1) * apart, taps.counted };
}

template <WindowKind KIND>
__device__ void window_at(int64_t e, const Windows &s, const float *x, float *y, uint16_t *saved)
{
    const int64_t pixel = e / s.c, line = pixel / s.out[1], image = line / s.out[0];
    const Taps rows = taps_of<KIND>(s, 0, line % s.out[0]);
    const Taps columns = taps_of<KIND>(s, 1, pixel % s.out[1]);
    float sum = 0.0f;
    int64_t best = -1;
    for (int64_t a = rows.begin; a < rows.end; a++)
        for (int64_t b = columns.begin; b < columns.end; b++) {
            const int64_t from = (image * s.in[0] + rows.at(a)) * s.in[1] + columns.at(b);
            const float v = x[from * s.c + e % s.c];
            if (KIND == UPSAMPLE)
                sum = s.mode == GCKPT_NEAREST
                          ? v
                          : gckpti_fma(rows.weight[a] * columns.weight[b], v, sum);
            else if (KIND == AVERAGE_POOL)
                sum += v;
            else if (best < 0 || (sum == sum && !(v <= sum)))
                sum = v, best = a * s.pool.o.size[1] + b;
        }
    if (KIND == AVERAGE_POOL)
        sum /= (float)rows.counted * (float)columns.counted;
    if (y)
        y[e] = sum;
    if (KIND == MAX_POOL && saved)
        saved[e] = (uint16_t)best;
}

/* Returns the first result along an axis that may read element `at`. */
template <WindowKind KIND> __device__ int64_t first_reader(const Windows &s, int axis, int64_t at)
{
    int64_t low = 0, high = s.out[axis];
    while (low < high) {
        const int64_t i = (low + high) / 2;
        if (taps_of<KIND>(s, axis, i).last < at)
            low = i + 1;
        else
            high = i;
    }
    return low;
}

template <WindowKind KIND>
__device__ void window_gradient_at(int64_t e, const Windows &s, const gckpt_arg &x, const float *g,
                                   const uint16_t *saved)
{
    const int64_t pixel = e / s.c, w = pixel % s.in[1], h = pixel / s.in[1] % s.in[0];
    const int64_t image = pixel / s.in[1] / s.in[0], left = first_reader<KIND>(s, 1, w);
    float d = x.accumulate ? x.grad[e] : 0.0f;
    for (int64_t i = first_reader<KIND>(s, 0, h); i < s.out[0]; i++) {
        const Taps rows = taps_of<KIND>(s, 0, i);
        for (int64_t j = left; j < s.out[1] && rows.first <= h; j++) {
            const Taps columns = taps_of<KIND>(s, 1, j);
            const int64_t at = ((image * s.out[0] + i) * s.out[1] + j) * s.c + e % s.c;
            if (columns.first > w)
                break;
            for (int64_t a = rows.begin; a < rows.end; a++)
                for (int64_t b = columns.begin; b < columns.end && rows.at(a) == h; b++) {
                    if (columns.at(b) != w ||
                        (KIND == MAX_POOL && saved[at] != a * s.pool.o.size[1] + b))
                        continue;
                    if (KIND == UPSAMPLE)
                        d = gckpti_fma(rows.weight[a] * columns.weight[b], g[at], d);
                    else
                        d += KIND == MAX_POOL
                                 ? g[at]
                                 : g[at] / ((float)rows.counted * (float)columns.counted);
                }
        }
        if (rows.first > h)
            break;
    }
    x.grad[e] = d;
}

template <WindowKind KIND> void windows_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &x = call->in[0];
    const int64_t *in = x.shape.d, *out = call->shape.d;
    Windows s = { { in[1], in[2] }, { out[1], out[2] }, in[3] };
    if (KIND == UPSAMPLE) {
        s.mode = ((const gckpti_upsample *)call->attributes)->mode;
    } else { /* of images or of lines (B,T,C) */
        const gckpti_pool_state p = gckpti_pool_state_of(call);
        s = { { p.in[0], p.in[1] }, { p.out[0], p.out[1] }, p.channels, 0, p };
    }
    if (!backward)
        for_each<window_at<KIND>>(call, gckpti_elements(&call->shape), s, x.data, call->out,
                                  (uint16_t *)call->saved);
    else if (x.grad)
        for_each<window_gradient_at<KIND>>(call, gckpti_elements(&x.shape), s, x, call->grad_out,
                                           (const uint16_t *)call->saved);
}
#endif
