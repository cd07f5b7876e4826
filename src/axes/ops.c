#include "axes/axes.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_AXES
/* ---- ops that move or combine elements along axes. An axis divides a tensor into (outer, size,
 * inner), where `size` is that of the axis ---- */

/* Copies s to d or, if `accumulate`, adds it, on two axes; s is the tensor `from` of `it`. */
static void gckpti_put_plane(const gckpti_iter *it, int from, float *d, const float *s,
                             int accumulate)
{
    const int64_t n = it->size[0], d_step = it->step[!from][0], s_step = it->step[from][0];
    const int64_t d_next = it->step[!from][1], s_next = it->step[from][1];
    const int dense = d_step == 1 && s_step == 1;
    int64_t rows = it->size[1];
    for (; dense && !accumulate && rows > 0; rows--, d += d_next, s += s_next)
        memcpy(d, s, (size_t)n * sizeof *d);
    for (; rows > 0; rows--, d += d_next, s += s_next)
        if (dense)
            for (int64_t j = 0; j < n; j++)
                d[j] += s[j];
        else if (accumulate)
            for (int64_t j = 0; j < n; j++)
                d[j * d_step] += s[j * s_step];
        else
            for (int64_t at = 0, x = 0; at != n * d_step; at += d_step, x += s_step)
                d[at] = s[x];
}

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

/* permute: axis i of the result is axis axes[i] of x; moving the batch axis mixes rows. */
static gckpt_result gckpti_permute_shape(gckpt_call *call)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    unsigned seen = 0;
    if (p->n != x->n)
        return gckpt_fail(call, GCKPT_E_ARG, "permute: %i axes given, %S has %i: name each once",
                          p->n, x, x->n);
    call->shape = *x;
    for (int i = 0; i < x->n; i++) {
        int axis = p->axes[i] < 0 ? p->axes[i] + x->n : p->axes[i];
        if (axis < 0 || axis >= x->n || seen >> axis & 1u)
            return gckpt_fail(call, GCKPT_E_ARG,
                              "permute: axes[%i] = %i is repeated or not in %S: "
                              "name each axis once",
                              i, p->axes[i], x);
        seen |= 1u << axis;
        call->shape.d[i] = x->d[axis];
        if (i == 0 && axis != 0)
            call->mixes_rows = 1;
    }
    return GCKPT_OK;
}

GCKPTI_FN gckpti_iter gckpti_permute_move(const gckpt_call *call, int i)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape, none = gckpt_shape1(1);
    gckpti_iter it = gckpti_iter_over(&none, x, x);
    int64_t step = 1;
    for (int k = x->n; k-- > 0; step *= call->shape.d[k])
        gckpti_iter_add_axis(&it, call->shape.d[k], gckpti_split_at(x, p->axes[k]).inner, step);
    return it;
}
GCKPTI_OP_KERNELS(permute, gckpti_run_moves(call, backward, 0, gckpti_permute_move))
GCKPTI_DESC(permute, GCKPTI_PLAIN, gckpti_permute_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n)
{
    gckpti_permute p = { axes ? n : 0, { 0 } };
    for (int i = 0; i < p.n && i < GCKPT_MAX_DIMS; i++)
        p.axes[i] = axes[i];
    return gckpt_apply(&gckpti_op_permute, &x, 1, &p, sizeof p);
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
GCKPTI_FN gckpti_iter gckpti_concat_move(const gckpt_call *call, int i)
{
    const int axis = *(const int *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape;
    gckpti_iter it = gckpti_iter_over(x, x, &call->shape);
    while (i-- > 0) {
        const gckpti_axis_split before = gckpti_split_at(&call->in[i].shape, axis);
        it.offset[1] += before.size * before.inner;
    }
    return it;
}
GCKPTI_OP_KERNELS(concat, gckpti_run_moves(call, backward, 0, gckpti_concat_move))
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
        if (GCKPTI_HAS_CACHES && x[i]->cache_capacity &&
            (i < n - 1 || (axis != 1 && axis != 1 - t->shape.n)))
            return gckpti_fail_cached(t->graph, "concat", x[i]);
        t->cache_capacity = x[i]->cache_capacity;
    }
    return t;
}

/* pad: y is x with `before` and `after` elements `value` at the ends of an axis; dx is g in x. */
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
GCKPTI_FN gckpti_iter gckpti_pad_move(const gckpt_call *call, int i)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape;
    gckpti_iter it = gckpti_iter_over(x, x, &call->shape);
    it.offset[1] = p->before * gckpti_split_at(x, p->axis).inner;
    return it;
}
static void gckpti_run_pad(const gckpt_call *call, int backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, p->axis);
    const int64_t n = v.size * v.inner, at = p->before * v.inner, all = n + at + p->after * v.inner;
    for (int64_t i = 0; !backward && i < v.outer; i++)
        for (int64_t j = 0; j < all - n; j++)
            call->out[i * all + (j < at ? j : j + n)] = p->value;
    gckpti_run_moves(call, backward, 0, gckpti_pad_move);
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
GCKPTI_FN gckpti_iter gckpti_sum_move(const gckpt_call *call, int i)
{
    const int axis = *(const int *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape;
    gckpt_shape sums = *x;
    sums.d[axis < 0 ? axis + x->n : axis] = 1;
    return gckpti_iter_over(x, x, &sums);
}
/* Runs sum or mean. Forward: sums the last axis by lanes, another axis row by row. Backward: passes
 * g, or g / size for a mean, to each element of the axis. */
static void gckpti_run_reduction(const gckpt_call *call, int backward, int mean)
{
    const gckpt_arg *x = &call->in[0];
    const int axis = *(const int *)call->attributes;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, axis);
    const int64_t n = v.outer * v.inner;
    const int last = axis == -1 || axis == x->shape.n - 1;
    const float size = mean ? (float)v.size : 1.0f;
    gckpti_iter it = gckpti_sum_move(call, 0);
    float *d = x->grad;
    if (backward) {
        do {
            const float *g = call->grad_out + it.offset[1];
            for (int64_t j = 0; d && j < it.size[0]; j++, g += it.step[1][0])
                gckpti_put(d++, *g / size, x->accumulate);
        } while (gckpti_iter_next(&it, 1));
        return;
    }
    for (int64_t i = 0; last && i < n; i++)
        call->out[i] = gckpti_sum_from(x->data + i * v.size, v.size, 0.0f);
    if (!last) {
        gckpti_zero_unless(call->out, n, 0);
        gckpti_run_moves(call, 0, 1, gckpti_sum_move);
    }
    for (int64_t i = 0; mean && i < n; i++)
        call->out[i] = call->out[i] / size;
}
GCKPTI_OP_KERNELS(sum, gckpti_run_reduction(call, backward, 0))
GCKPTI_OP_KERNELS(mean, gckpti_run_reduction(call, backward, 1))
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
GCKPT_API gckpt_tensor *gckpt_global_average_pool(gckpt_tensor *x)
{
    if (x && x->shape.n < 3)
        return gckpti_fail(x->graph, GCKPT_E_SHAPE,
                           "global_average_pool: x %S has no axes between batch and channels",
                           &x->shape);
    return x ? gckpt_mean(gckpt_reshape(x, gckpt_shape3(x->shape.d[0], -1, gckpti_last(&x->shape))),
                          1)
             : NULL;
}

/* max and argmax over an axis, which is removed: the first element that no other exceeds, or the
 * first NaN. argmax and max's `saved` are its index. dx = g there, else 0. Items: <= 16 results. */
enum { GCKPTI_MAX_ITEM = 16 };
typedef struct {
    const gckpt_call *call;
    gckpti_axis_split v;
    int64_t chunks; /* items for each outer index */
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
#endif
