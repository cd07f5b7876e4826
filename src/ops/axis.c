#include "cache/cache.h"
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

/* Copies a plane to tensor `to` or, if the loop accumulates, adds it. */
static void gckpti_move_plane(const gckpti_strided *s)
{
    const int64_t n = s->it.size[0], *d_step = s->it.step[s->to], *x_step = s->it.step[!s->to];
    float *d = s->loops->to + s->it.offset[s->to];
    const float *x = s->loops->in[0] + s->it.offset[!s->to];
    const int dense = d_step[0] == 1 && x_step[0] == 1;
    const int64_t most = dense ? n : 32; /* else the cache lines of a part serve the next rows */
    for (int64_t j = 0; j < n; j += most)
        for (int64_t row = 0; row < s->it.size[1]; row++) {
            float *to = d + j * d_step[0] + row * d_step[1];
            const float *from = x + j * x_step[0] + row * x_step[1];
            const int64_t part = gckpti_min(n - j, most);
            if (dense && !s->loops->accumulate)
                memcpy(to, from, (size_t)n * sizeof *to);
            else if (dense && n >= GCKPTI_LONG_ROW)
                GCKPTI_KERNEL_OF(s->call, add, gckpti_add_into)(to, from, n);
            else
                for (int64_t k = 0; k < part; k++, to += d_step[0], from += x_step[0])
                    *to = s->loops->accumulate ? *to + *from : *from;
        }
}

/* Runs an op that moves elements, in n parts: part i from input i to the result or, backward, from
 * the result's gradient to that of input i. Parts after the last input add to the first one. */
static void gckpti_run_moves(const gckpt_call *call, int backward, int n, gckpti_move_fn *axes)
{
    for (int i = 0; i < n; i++) {
        const int more = i >= call->inputs;
        const gckpt_arg *x = &call->in[more ? 0 : i];
        gckpti_strided s;
        s.call = call, s.plane = gckpti_move_plane, s.to = !backward, s.cost = 4;
        axes(&s.it, call, i);
        s.loops->in[0] = backward ? call->grad_out : x->data;
        s.loops->to = backward ? x->grad : call->out;
        s.loops->accumulate = backward && (x->accumulate || more);
        if (s.loops->to)
            gckpti_run_strided(&s);
    }
}

/* Iterates over input i and the result. Tensor `of`, 0 for the input, contains the other
 * one as a block, from index `begin` of an axis on. */
static void gckpti_block_axes(gckpti_iter *it, const gckpt_call *call, int i, int of, int axis,
                              int64_t begin)
{
    const gckpt_shape *x = &call->in[i].shape, *const shapes[4] = { x, &call->shape, NULL, NULL };
    gckpti_iter_over(it, of ? x : &call->shape, shapes);
    it->offset[of] = begin * gckpti_split_at(x, axis).inner;
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
static void gckpti_slice_move(gckpti_iter *it, const gckpt_call *call, int i)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    gckpti_block_axes(it, call, i, 0, p->axis,
                      gckpti_join_words(p->begin) + (p->relative ? call->position : 0));
}
static void gckpti_run_slice(const gckpt_call *call, int backward)
{
    const gckpt_arg *x = &call->in[0];
    if (gckpti_latest_rows(call))
        return;
    if (backward && x->grad)
        gckpti_zero_unless(x->grad, gckpti_elements(&x->shape), x->accumulate);
    if (!backward && gckpti_call_compressed(call)) { /* then the axis is the first one */
        gckpti_iter it;
        gckpti_slice_move(&it, call, 0);
        gckpti_decompress(gckpti_call_compressed(call), it.offset[0], gckpti_elements(&call->shape),
                          call->out);
        return;
    }
    gckpti_run_moves(call, backward, 1, gckpti_slice_move);
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
    const gckpt_tensor *v = x ? x->variable : NULL;
    return gckpti_slice_of(x, axis, begin, end, v ? (int)v->in[0]->shape.d[1] : 0);
}
