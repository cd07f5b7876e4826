#ifndef GCKPT_NO_AXES
struct Quotient { /* a / divisor */
    float divisor;
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, divisor != 1.0f ? a / divisor : a, accumulate);
    }
};

__device__ void sum_of_row(int64_t r, const float *x, float *out, int64_t n, float divisor)
{
    gckpti_store_n_warp(out + r, gckpti_sum_from_warp(x + r * n, n, 0.0f) / divisor, 1);
}

/* Reduces the last axis by lanes, any other axis row by row. Backward: gives each element the
 * gradient of its sum or mean. */
template <bool MEAN> void sum_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int axis = *(const int *)call->attributes;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, axis);
    const float divisor = MEAN ? (float)v.size : 1.0f;
    gckpt_shape each = x->shape;
    each.d[axis < 0 ? axis + each.n : axis] = 1;
    if (backward)
        map(call, iterate(x->shape, x->shape, each, each, each), Quotient{ divisor }, grad_of(*x),
            grad_out_of(call), NONE, NONE, x->accumulate);
    else if (axis == -1 || axis == x->shape.n - 1)
        for_each_row<sum_of_row>(call, v.outer, x->data, call->out, v.size, divisor);
    else
        sums(call, iterate(x->shape, each, x->shape, x->shape, x->shape),
             { {}, { GRAD_identity }, value_of(*x), NONE, NONE },
             { out_of(call), NULL, 0, divisor });
}

/* ---- max, argmax, top_k: the k elements that come first in the order of gckpti_precedes ---- */
/* Computes the results of line i. Each is the first element of those after the one before it. */
__device__ void max_of(int64_t i, const gckpti_axis_split &v, const float *x, float *out,
                       int32_t *index, int k)
{
    const float *from = x + i / v.inner * v.size * v.inner + i % v.inner;
    int64_t to = i / v.inner * k * v.inner + i % v.inner;
    float limit = 0.0f;
    int32_t last = -1;
    for (int result = 0; result < k; result++, to += v.inner) {
        float best = 0.0f;
        int32_t at = -1;
        for (int32_t n = lane_index(); n < v.size; n += 32) {
            const float value = from[n * v.inner];
            if ((last < 0 || gckpti_precedes(limit, last, value, n)) &&
                (at < 0 || gckpti_precedes(value, n, best, at)))
                best = value, at = n;
        }
        for (int h = 16; h; h /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, h);
            const int32_t n = __shfl_xor_sync(0xffffffffu, at, h);
            if (n >= 0 && (at < 0 || gckpti_precedes(other, n, best, at)))
                best = other, at = n;
        }
        limit = best, last = at;
        if (lane_index() == 0 && out)
            out[to] = best;
        if (lane_index() == 0 && index)
            index[to] = at;
    }
}

/* Passes the gradient of result e, one of a line's k, to its element. */
__device__ void max_gradient_at(int64_t e, const gckpti_axis_split &v, const gckpt_arg &x,
                                const float *g, const int32_t *index, int k)
{
    const int64_t at = (e / v.inner / k * v.size + index[e]) * v.inner + e % v.inner;
    gckpti_put(&x.grad[at], g[e], x.accumulate);
}

/* Computes values and their indices or, backward, the gradient; without VALUES, only indices. A
 * line has one result or, if MANY, as many as the second attribute. */
template <bool VALUES, bool MANY> void max_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int *o = (const int *)call->attributes, k = MANY ? o[1] : 1;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, o[0]);
    const int64_t lines = v.outer * v.inner;
    float *out = VALUES ? call->out : NULL;
    int32_t *index = (int32_t *)(VALUES ? call->saved : call->out);
    if (!backward)
        return for_each_row<max_of>(call, lines, v, x->data, out, index, k);
    if (x->grad && !x->accumulate)
        fill(call, x->grad, 0, gckpti_elements(&x->shape));
    if (x->grad)
        for_each<max_gradient_at>(call, lines * k, v, *x, call->grad_out, index, k);
}
#endif
