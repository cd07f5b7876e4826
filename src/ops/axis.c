#include "ops/internal.h"
#include "graph/graph.h"

GCKPTI_FN int gckpti_axis(gckpt_call *call, const char *op, int axis)
{
    const gckpt_shape *s = &call->in[0].shape;
    if (axis >= -s->n && axis < s->n)
        return axis < 0 ? axis + s->n : axis;
    gckpt_fail(call, GCKPT_E_ARG, "%s: %S has no axis %i: -%i to %i are possible", op, s, axis,
               s->n, s->n - 1);
    return -1;
}

/* Copies (d = s) or, if `accumulate`, adds (d += s) `blocks` runs of n floats at fixed steps. */
static void gckpti_put_blocks(float *d, int64_t d_step, const float *s, int64_t s_step,
                              int64_t blocks, int64_t n, int accumulate)
{
    for (int64_t i = 0; i < blocks; i++, d += d_step, s += s_step)
        if (accumulate)
            for (int64_t j = 0; j < n; j++)
                d[j] += s[j];
        else
            memcpy(d, s, (size_t)n * sizeof *d);
}

/* slice: y is elements begin..end-1 of x along an axis; if `relative`, call->position is added to
 * both. dx is g in this range, 0 elsewhere. A slice of the batch axis mixes rows. */
static gckpt_result gckpti_slice_shape(gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    int64_t begin = gckpti_join_words(p->begin), end = gckpti_join_words(p->end);
    int axis = gckpti_axis(call, "slice", p->axis);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    if (begin < 0 || begin >= end || end > call->shape.d[axis])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "slice: %I to %I, counted from 0, of axis %i of %S: needs "
                          "0 <= begin < end <= %I; negative ones count from the end",
                          begin, end, axis, &call->in[0].shape, call->shape.d[axis]);
    call->shape.d[axis] = end - begin;
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
/* Forward: copies the slice. Backward: adds g to it, or writes g there and 0 elsewhere. */
static void gckpti_run_slice(const gckpt_call *call, int backward)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    gckpti_axis_split v = gckpti_split_at(&x->shape, p->axis);
    int64_t begin = gckpti_join_words(p->begin), n = (gckpti_join_words(p->end) - begin) * v.inner;
    int64_t all = v.size * v.inner, at = (begin + (p->relative ? call->position : 0)) * v.inner;
    const gckpt_dequantisation *quant = gckpti_call_quant(call);
    if (backward && x->grad) {
        gckpti_zero_unless(x->grad, v.outer * all, x->accumulate);
        gckpti_put_blocks(x->grad + at, all, call->grad_out, n, v.outer, n, x->accumulate);
    } else if (!backward && quant)
        gckpti_dequantise(quant, at, n, call->out);
    else if (!backward)
        gckpti_put_blocks(call->out, n, x->data + at, all, v.outer, n, 0);
}
GCKPTI_OP_KERNELS(slice, gckpti_run_slice(call, backward))
static int gckpti_slice_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    const gckpti_slice *p = (const gckpti_slice *)attr;
    const gckpt_receptive_field same = { 1, 1, 0, 1, 0.0f };
    *field = same;
    return !p->relative && (p->axis < 0 ? p->axis + call->shape.n : p->axis) > 1;
}
GCKPTI_DESC_FIELD(slice, GCKPTI_PLAIN, gckpti_slice_shape, NULL, gckpti_slice_field, 0, 0);
GCKPTI_FN gckpt_tensor *gckpti_slice_of(gckpt_tensor *x, int axis, int64_t begin, int64_t end,
                                        int relative)
{
    gckpti_slice p;
    memset(&p, 0, sizeof p);
    const int64_t size = x ? gckpti_split_at(&x->shape, axis).size : 0;
    begin += begin < 0 && begin >= -size ? size : 0;
    end += end < 0 && end >= -size ? size : 0;
    p.begin[0] = (uint32_t)begin, p.begin[1] = (uint32_t)((uint64_t)begin >> 32);
    p.end[0] = (uint32_t)end, p.end[1] = (uint32_t)((uint64_t)end >> 32);
    p.axis = axis;
    p.relative = relative;
    gckpt_tensor *t = gckpt_apply(&gckpti_op_slice, &x, 1, &p,
                                  relative ? sizeof p : offsetof(gckpti_slice, relative));
    if (t && axis == 0)
        x->f32_uses--;
    return t;
}
GCKPT_API gckpt_tensor *gckpt_slice(gckpt_tensor *x, int axis, int64_t begin, int64_t end)
{
    return gckpti_slice_of(x, axis, begin, end, 0);
}
