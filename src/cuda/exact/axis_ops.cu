#ifndef GCKPT_NO_AXES
void permute_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    float *to = backward ? x->grad : call->out;
    gckpti_iter it;
    gckpti_permute_move(&it, call, 0);
    if (to)
        transpose(call, axes_of(it, !backward, false), to, backward ? call->grad_out : x->data,
                  backward && x->accumulate);
}

/* Copies the element of which e of y is a copy. */
__device__ void pad_copy_at(int64_t e, const gckpti_pad &p, const gckpti_axis_split &v,
                            const float *x, float *y)
{
    const int64_t all = p.before + v.size + p.after, line = e / v.inner;
    const int64_t from = line / all * v.size + gckpti_pad_source(&p, v.size, line % all);
    y[e] = x[from * v.inner + e % v.inner];
}

/* Adds the gradients of the copies of element e of x, in the order of their places. */
__device__ void pad_add_at(int64_t e, const gckpti_pad &p, const gckpti_axis_split &v, float *dx,
                           const float *g)
{
    const int64_t all = p.before + v.size + p.after, line = e / v.inner, i = line % v.size;
    float d = dx[e];
    for (int64_t k = 0; k < all; k++)
        if ((k < p.before || k >= p.before + v.size) && gckpti_pad_source(&p, v.size, k) == i)
            d += g[(line / v.size * all + k) * v.inner + e % v.inner];
    dx[e] = d;
}

void pad_by(const gckpt_call *call, bool backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    const gckpti_axis_split v = gckpti_split_at(&x->shape, p->axis);
    if (p->mode != GCKPT_PAD_VALUE && !backward) {
        for_each<pad_copy_at>(call, gckpti_elements(&call->shape), *p, v, x->data, call->out);
        return;
    }
    move_parts(call, backward, gckpti_pad_move, true, p->value);
    if (p->mode != GCKPT_PAD_VALUE && x->grad)
        for_each<pad_add_at>(call, gckpti_elements(&x->shape), *p, v, x->grad, call->grad_out);
}

void concat_by(const gckpt_call *call, bool backward)
{
    move_parts(call, backward, gckpti_concat_move, true);
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
    const Axes axes = axes_over(x->shape, x->shape, each, false);
    if (backward && x->grad)
        map(call, axes, Quotient{ divisor }, grad_of(*x), grad_out_of(call), NONE, NONE,
            x->accumulate);
    else if (!backward && (axis == -1 || axis == x->shape.n - 1))
        row_sums(call, Plain{ x->data }, call->out, v.outer, v.size, divisor);
    else if (!backward)
        sums(call, axes,
             { { GRAD_identity }, { x->data }, NONE, NONE, { out_of(call), NULL, 0, divisor } });
}

/* ---- max, argmax, top_k: the k elements that come first in the order of gckpti_precedes ---- */
/* A thread computes the results of a line; on the last axis, the LANES = 32 lanes of a warp do.
 * Each result is the first element of those after the one before it. */
template <int LANES>
__device__ void max_of(int64_t e, const gckpti_axis_split &v, const float *x, float *out,
                       int32_t *index, int k)
{
    const int64_t i = e / LANES;
    const float *from = x + i / v.inner * v.size * v.inner + i % v.inner;
    int64_t to = i / v.inner * k * v.inner + i % v.inner;
    float limit = 0.0f;
    int32_t last = -1;
    for (int result = 0; result < k; result++, to += v.inner) {
        float best = 0.0f;
        int32_t at = -1;
        for (int32_t n = (int32_t)(e % LANES); n < v.size; n += LANES) {
            const float value = from[n * v.inner];
            if ((last < 0 || gckpti_precedes(limit, last, value, n)) &&
                (at < 0 || gckpti_precedes(value, n, best, at)))
                best = value, at = n;
        }
        for (int h = LANES / 2; h; h /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, h);
            const int32_t n = __shfl_xor_sync(0xffffffffu, at, h);
            if (n >= 0 && (at < 0 || gckpti_precedes(other, n, best, at)))
                best = other, at = n;
        }
        limit = best, last = at;
        if (e % LANES == 0 && out)
            out[to] = best;
        if (e % LANES == 0 && index)
            index[to] = at;
    }
}

void max_with_index(const gckpt_call *call, float *out, void *index, int k)
{
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes);
    if (v.inner == 1)
        for_each<max_of<32>>(call, v.outer * 32, v, call->in[0].data, out, (int32_t *)index, k);
    else
        for_each<max_of<1>>(call, v.outer * v.inner, v, call->in[0].data, out, (int32_t *)index, k);
}

/* Passes the gradient of result e, one of a line's k, to its element. */
__device__ void max_gradient_at(int64_t e, const gckpti_axis_split &v, const gckpt_arg &x,
                                const float *g, const int32_t *index, int k)
{
    const int64_t at = (e / v.inner / k * v.size + index[e]) * v.inner + e % v.inner;
    gckpti_put(&x.grad[at], g[e], x.accumulate);
}

void maxima_by(const gckpt_call *call, bool backward, int k)
{
    const gckpt_arg *x = &call->in[0];
    const gckpti_axis_split v = gckpti_split_at(&x->shape, *(const int *)call->attributes);
    if (!backward)
        return max_with_index(call, call->out, call->saved, k);
    if (x->grad && !x->accumulate)
        fill(call, x->grad, 0, gckpti_elements(&x->shape));
    if (x->grad)
        for_each<max_gradient_at>(call, v.outer * k * v.inner, v, *x, call->grad_out,
                                  (const int32_t *)call->saved, k);
}
int number_of(const gckpt_call *call) { return ((const int *)call->attributes)[1]; }
void max_by(const gckpt_call *call, bool backward) { maxima_by(call, backward, 1); }
void argmax_by(const gckpt_call *call, bool) { max_with_index(call, NULL, call->out, 1); }
void top_k_by(const gckpt_call *call, bool backward) { maxima_by(call, backward, number_of(call)); }
void top_k_indices_by(const gckpt_call *call, bool)
{
    max_with_index(call, NULL, call->out, number_of(call));
}
#endif
