#include "ops/internal.h"
#include "graph/graph.h"

/* ---- ops that move or combine elements along axes. An axis divides a tensor into (outer, size,
 * inner), where `size` is that of the axis ---- */

/* Returns `axis` counted from the first axis, or records an error and returns -1. */
GCKPTI_FN int gckpti_axis_of(gckpt_call *call, const char *op, int axis)
{
    const gckpt_shape *s = &call->in[0].shape;
    if (axis >= -s->n && axis < s->n)
        return axis < 0 ? axis + s->n : axis;
    gckpt_fail(call, GCKPT_E_ARG, "%s: %S has no axis %i: -%i to %i are possible", op, s, axis,
               s->n, s->n - 1);
    return -1;
}

GCKPTI_INLINE int64_t gckpti_join_words(const uint32_t *words)
{
    return (int64_t)((uint64_t)words[1] << 32 | words[0]);
}

/* Copies s to d or, if `accumulate`, adds it, on two axes; s is the tensor `from` of `it`. */
static void gckpti_put_plane(const gckpti_iter *it, int from, float *d, const float *s,
                             int accumulate)
{
    const int64_t n = it->size[0], d_step = it->step[!from][0], s_step = it->step[from][0];
    for (int64_t row = 0; row < it->size[1]; row++) {
        if (d_step == 1 && s_step == 1 && !accumulate)
            memcpy(d, s, (size_t)n * sizeof *d);
        else if (accumulate)
            for (int64_t j = 0; j < n; j++)
                d[j * d_step] += s[j * s_step];
        else
            for (int64_t at = 0, x = 0; at != n * d_step; at += d_step, x += s_step)
                d[at] = s[x];
        d += it->step[!from][1];
        s += it->step[from][1];
    }
}

/* Returns which elements of input i and of the result correspond, as an iterator over both. */
typedef gckpti_iter gckpti_move_fn(const gckpt_call *call, int i);

/* Runs an op that moves elements. Forward: copies each input's elements to the result, or adds them
 * if `adds`. Backward: copies or adds the result's gradient to the gradients of the inputs. */
static void gckpti_run_moves(const gckpt_call *call, int backward, int adds, gckpti_move_fn *move)
{
    for (int i = 0; i < call->inputs; i++) {
        const gckpt_arg *x = &call->in[i];
        const float *from = backward ? call->grad_out : x->data;
        float *to = backward ? x->grad : call->out;
        gckpti_iter it = move(call, i);
        do
            if (to)
                gckpti_put_plane(&it, backward, to + it.offset[!backward],
                                 from + it.offset[backward], backward ? x->accumulate : adds);
        while (gckpti_iter_next(&it, 2));
    }
}

/* slice: y is elements begin..end-1 of x along an axis; if `relative`, call->position is added to
 * both. dx is g in this range, 0 elsewhere. A slice of the batch axis mixes rows. */
static gckpt_result gckpti_slice_shape(gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    int64_t begin = gckpti_join_words(p->begin), end = gckpti_join_words(p->end);
    int axis = gckpti_axis_of(call, "slice", p->axis);
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
static gckpti_iter gckpti_slice_move(const gckpt_call *call, int i)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape;
    gckpti_iter it = gckpti_iter_over(&call->shape, x, &call->shape);
    it.offset[0] = gckpti_join_words(p->begin) + (p->relative ? call->position : 0);
    it.offset[0] *= gckpti_split_at(x, p->axis).inner;
    return it;
}
static void gckpti_run_slice(const gckpt_call *call, int backward)
{
    const gckpt_arg *x = &call->in[0];
    if (backward && x->grad)
        gckpti_zero_unless(x->grad, gckpti_elements(&x->shape), x->accumulate);
    if (!backward && gckpti_call_compressed(call)) { /* then the axis is the first one */
        gckpti_decompress(gckpti_call_compressed(call), gckpti_slice_move(call, 0).offset[0],
                          gckpti_elements(&call->shape), call->out);
        return;
    }
    gckpti_run_moves(call, backward, 0, gckpti_slice_move);
}
GCKPTI_OP_KERNELS(slice, gckpti_run_slice(call, backward))
static int gckpti_slice_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    const gckpti_slice *p = (const gckpti_slice *)attr;
    (void)field; /* the same rows */
    return !p->relative && (p->axis < 0 ? p->axis + call->shape.n : p->axis) > 1;
}
GCKPTI_DESC_FIELD(slice, gckpti_slice_shape, NULL, gckpti_slice_field, 0, 0);
static gckpt_tensor *gckpti_slice_of(gckpt_tensor *x, int axis, int64_t begin, int64_t end,
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
