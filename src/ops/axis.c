#include "ops/internal.h"
#include "graph/graph.h"

/* ---- ops along one axis treat a tensor as (outer, size, inner); `size` is the axis's ---- */

GCKPTI_FN gckpti_axis_split gckpti_split_at(const gckpt_shape *s, int axis)
{
    gckpti_axis_split v = { 1, 1, 1 };
    if (axis < 0)
        axis += s->n;
    for (int i = 0; i < s->n; i++)
        *(i < axis ? &v.outer : i == axis ? &v.size : &v.inner) *= s->d[i];
    return v;
}

/* Returns `axis` counted from the first axis, or records an error and returns -1. */
static int gckpti_axis(gckpt_call *call, const char *op, int axis)
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

/* Fails if a table of gckpt_positions has fewer rows from `first` on than the caches can hold. */
GCKPTI_FN int gckpti_check_positions(gckpt_graph *g)
{
    if (g->cache_capacity && g->min_positions && g->min_positions < g->cache_capacity)
        gckpti_fail(
            g, GCKPT_E_SHAPE,
            "positions: caches have a capacity of %I rows, but the table has %I positions from "
            "`first` on; make it larger",
            g->cache_capacity, g->min_positions);
    return g->object.sticky == GCKPT_OK;
}

/* concat: joins the inputs along an axis */
static gckpt_result gckpti_concat_shape(gckpt_call *call)
{
    int axis = gckpti_axis(call, "concat", *(const int *)call->attributes);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    for (int i = 1; i < call->inputs; i++) {
        gckpt_shape s = call->in[i].shape;
        int64_t size = s.d[axis];
        s.d[axis] = call->in[0].shape.d[axis];
        if (!gckpti_same_shape(&s, &call->in[0].shape))
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "concat: %S and %S: all sizes except that of axis %i must agree",
                              &call->in[0].shape, &call->in[i].shape, axis);
        call->shape.d[axis] += size; /* no overflow: up to 8 sizes of at most SIZE_MAX / 64 */
    }
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
/* Backward: each input's gradient is its slice of g. */
static void gckpti_run_concat(const gckpt_call *call, int backward)
{
    int axis = *(const int *)call->attributes;
    gckpti_axis_split all = gckpti_split_at(&call->shape, axis);
    int64_t row = all.size * all.inner, at = 0, n;
    for (int i = 0; i < call->inputs; i++, at += n) {
        const gckpt_arg *x = &call->in[i];
        n = gckpti_split_at(&x->shape, axis).size * all.inner;
        if (!backward)
            gckpti_put_blocks(call->out + at, row, x->data, n, all.outer, n, 0);
        else if (x->grad)
            gckpti_put_blocks(x->grad, n, call->grad_out + at, row, all.outer, n, x->accumulate);
    }
}
GCKPTI_OP_KERNELS(concat, gckpti_run_concat(call, backward))
static int gckpti_concat_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    const gckpt_receptive_field same = { call->inputs, 1, 0, 1, 0.0f };
    const int axis = *(const int *)attr;
    *field = same;
    return (axis < 0 ? axis + call->shape.n : axis) > 1;
}
GCKPTI_DESC_FIELD(concat, GCKPTI_PLAIN, gckpti_concat_shape, NULL, gckpti_concat_field,
                  GCKPTI_CACHED, 0);
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis)
{
    gckpt_tensor *t = gckpt_apply(&gckpti_op_concat, x, n, &axis, sizeof axis);
    for (int i = 0; t && i < n; i++) {
        if (x[i]->cache_window)
            return gckpti_fail(t->graph, GCKPT_E_ARG,
                               "concat: %T is a gckpt_cache_window, whose rows are not in order; "
                               "only causal attention can read it",
                               x[i]);
        if (x[i]->cache_capacity && (i < n - 1 || (axis != 1 && axis != 1 - t->shape.n)))
            return gckpti_fail_cached(t->graph, "concat", x[i]);
        t->cache_capacity = x[i]->cache_capacity;
    }
    return t;
}

/* pad: y is x between `before` and `after` elements of `value` on an axis; dx is g where x is. */
static gckpt_result gckpti_pad_shape(gckpt_call *call)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    int axis = gckpti_axis(call, "pad", p->axis);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    call->shape.d[axis] += (int64_t)p->before + p->after;
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
static void gckpti_run_pad(const gckpt_call *call, int backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    gckpti_axis_split v = gckpti_split_at(&x->shape, p->axis);
    const int64_t n = v.size * v.inner, at = p->before * v.inner, all = n + at + p->after * v.inner;
    for (int64_t i = 0; !backward && i < v.outer; i++)
        for (int64_t j = 0; j < all - n; j++)
            call->out[i * all + (j < at ? j : j + n)] = p->value;
    if (!backward)
        gckpti_put_blocks(call->out + at, all, x->data, n, v.outer, n, 0);
    else if (x->grad)
        gckpti_put_blocks(x->grad, n, call->grad_out + at, all, v.outer, n, x->accumulate);
}
GCKPTI_OP_KERNELS(pad, gckpti_run_pad(call, backward))
GCKPTI_DESC(pad, GCKPTI_PLAIN, gckpti_pad_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_pad(gckpt_tensor *x, int axis, int64_t before, int64_t after,
                                  float value)
{
    const gckpti_pad p = { axis, (int)before, (int)after, value };
    if (x && (before < 0 || before != p.before || after < 0 || after != p.after))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "pad: %I and %I elements: each must be 0 to 2^31 - 1; gckpt_slice "
                           "takes elements away",
                           before, after);
    return gckpt_apply(&gckpti_op_pad, &x, 1, &p, sizeof p);
}

/* sum and mean over an axis, which is removed. The last axis is summed in 32 lanes (5d), the rows
 * of another axis in order, from +0. A mean divides once, at the end; dx = g, or g / size. */
static gckpt_result gckpti_reduce_shape(gckpt_call *call, const char *op)
{
    int axis = gckpti_axis(call, op, *(const int *)call->attributes);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    call->shape.n--;
    for (int i = axis; i < call->shape.n; i++)
        call->shape.d[i] = call->shape.d[i + 1];
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
/* Defines gckpti_<op>_shape as `rule` with the op's name. */
#define GCKPTI_REDUCE_SHAPE(op, rule)                                                              \
    GCKPTI_UNUSED static gckpt_result gckpti_##op##_shape(gckpt_call *call)                        \
    {                                                                                              \
        return rule(call, #op);                                                                    \
    }
GCKPTI_REDUCE_SHAPE(sum, gckpti_reduce_shape)
GCKPTI_REDUCE_SHAPE(mean, gckpti_reduce_shape)
/* Sums the last axis by lanes, another axis row by row. */
static void gckpti_reduce_forward(const gckpt_call *call, int mean)
{
    int axis = *(const int *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, axis);
    const float *x = call->in[0].data;
    float *o = call->out;
    for (int64_t i = 0; i < v.outer; i++, x += v.size * v.inner, o += v.inner)
        if (axis == -1 || axis == call->in[0].shape.n - 1)
            *o = gckpti_sum_from(x, v.size, 0.0f);
        else {
            gckpti_zero_unless(o, v.inner, 0);
            gckpti_put_blocks(o, 0, x, v.inner, v.size, v.inner, 1);
        }
    for (int64_t i = 0; mean && i < v.outer * v.inner; i++)
        call->out[i] = call->out[i] / (float)v.size;
}
/* Passes g, or g / size for a mean, to each element of the axis. */
static void gckpti_reduce_backward(const gckpt_call *call, int mean)
{
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes);
    float *d = call->in[0].grad, size = mean ? (float)v.size : 1.0f;
    for (int64_t i = 0; d && i < v.outer; i++)
        for (int64_t k = 0; k < v.size; k++)
            for (int64_t j = 0; j < v.inner; j++)
                gckpti_put(d++, call->grad_out[i * v.inner + j] / size, call->in[0].accumulate);
}
GCKPTI_OP_KERNELS(sum, (backward ? gckpti_reduce_backward : gckpti_reduce_forward)(call, 0))
GCKPTI_OP_KERNELS(mean, (backward ? gckpti_reduce_backward : gckpti_reduce_forward)(call, 1))
GCKPTI_DESC(sum, GCKPTI_PLAIN, gckpti_sum_shape, gckpti_flops_1, 0, 0);
GCKPTI_DESC(mean, GCKPTI_PLAIN, gckpti_mean_shape, gckpti_flops_1, 0, 0);
GCKPT_API gckpt_tensor *gckpt_sum(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_sum, &x, 1, &axis, sizeof axis);
}
GCKPT_API gckpt_tensor *gckpt_mean(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_mean, &x, 1, &axis, sizeof axis);
}

/* max and argmax over an axis, which is removed: the first element that no other exceeds, or the
 * first NaN. argmax, and max's saved, is its index. dx = g there, else 0. Items: <= 16 results. */
enum { GCKPTI_MAX_ITEM = 16 };
typedef struct {
    const gckpt_call *call;
    gckpti_axis_split v;
    int64_t chunks; /* items per outer index */
    float *out;
    int32_t *index;
} gckpti_max_state;

static void gckpti_max_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_max_state *s = (const gckpti_max_state *)context;
    const gckpt_arg *x = &s->call->in[0];
    const float *g = s->call->grad_out;
    const int64_t inner = s->v.inner, from = item % s->chunks * GCKPTI_MAX_ITEM;
    const int64_t n = gckpti_min(inner - from, GCKPTI_MAX_ITEM),
                  to = item / s->chunks * inner + from;
    float best[GCKPTI_MAX_ITEM];
    int32_t index[GCKPTI_MAX_ITEM];
    (void)worker;
    for (int64_t i = 0, here = (to - from) * s->v.size + from; i < s->v.size; i++, here += inner)
        for (int64_t j = 0; j < n; j++)
            if (g && s->index[to + j] == i)
                gckpti_put(&x->grad[here + j], g[to + j], x->accumulate);
            else if (g)
                x->grad[here + j] = x->accumulate ? x->grad[here + j] : 0.0f;
            else if (i == 0 || (best[j] == best[j] && !(x->data[here + j] <= best[j])))
                best[j] = x->data[here + j], index[j] = (int32_t)i;
    if (s->out)
        memcpy(s->out + to, best, (size_t)n * sizeof *best);
    if (s->index && !g)
        memcpy(s->index + to, index, (size_t)n * sizeof *index);
}
static void gckpti_run_max(const gckpt_call *call, float *out, void *index)
{
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes);
    const int64_t chunks = (v.inner + GCKPTI_MAX_ITEM - 1) / GCKPTI_MAX_ITEM;
    gckpti_max_state s = { call, v, chunks, call->grad_out ? NULL : out, (int32_t *)index };
    if (!call->grad_out || call->in[0].grad)
        gckpt_parallel(call, v.outer * chunks, v.size * gckpti_min(v.inner, GCKPTI_MAX_ITEM),
                       gckpti_max_item, &s);
}
GCKPTI_OP_KERNELS(max, (void)backward; gckpti_run_max(call, call->out, call->saved))
GCKPTI_FN void gckpti_argmax_forward(const gckpt_call *call)
{
    gckpti_run_max(call, NULL, call->out);
}
static int64_t gckpti_argmax_limit(const gckpt_call *call, int i)
{
    return (void)i, gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes).size;
}
static gckpt_result gckpti_max_index_shape(gckpt_call *call, const char *op)
{
    gckpt_result result = gckpti_reduce_shape(call, op);
    if (result == GCKPT_OK && gckpti_argmax_limit(call, 0) > INT32_MAX)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: the axis of %S is longer than 2^31 - 1", op,
                          &call->in[0].shape);
    if (result == GCKPT_OK && gckpti_shape_fits(&call->shape))
        call->saved_bytes = (size_t)gckpti_elements(&call->shape) * sizeof(int32_t);
    return result;
}
GCKPTI_REDUCE_SHAPE(max, gckpti_max_index_shape)
GCKPTI_REDUCE_SHAPE(argmax, gckpti_max_index_shape)
GCKPTI_DESC(max, GCKPTI_PLAIN, gckpti_max_shape, gckpti_flops_1, 0, GCKPT_SAVED);
GCKPTI_DESC_ALL(argmax, NULL, GCKPTI_PLAIN, gckpti_argmax_shape, gckpti_flops_1, NULL,
                gckpti_argmax_limit, NULL, GCKPTI_INDICES, 0);
GCKPT_API gckpt_tensor *gckpt_max(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_max, &x, 1, &axis, sizeof axis);
}
GCKPT_API gckpt_tensor *gckpt_argmax(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_argmax, &x, 1, &axis, sizeof axis);
}
