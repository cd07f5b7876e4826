#include "axes/axes.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_AXES
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

static void gckpti_permute_move(gckpti_iter *it, const gckpt_call *call, int i)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[i].shape, none = gckpt_shape1(1);
    const gckpt_shape *const shapes[4] = { x, x, NULL, NULL };
    int64_t step[4] = { 0, 1, 0, 0 };
    gckpti_iter_over(it, &none, shapes);
    for (int k = x->n; k-- > 0; step[1] *= call->shape.d[k]) {
        step[0] = gckpti_split_at(x, p->axes[k]).inner;
        gckpti_iter_add_axis(it, call->shape.d[k], step);
    }
}
GCKPTI_OP_KERNELS(permute, gckpti_run_moves(call, backward, 1, gckpti_permute_move))
GCKPTI_DESC(permute, gckpti_permute_shape, NULL, 0, 0);
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
    int axis = gckpti_axis_of(call, "concat", *(const int *)call->attributes);
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
static void gckpti_concat_move(gckpti_iter *it, const gckpt_call *call, int i)
{
    const int axis = *(const int *)call->attributes, at = axis < 0 ? axis + call->shape.n : axis;
    int64_t begin = 0;
    for (int k = 0; k < i; k++)
        begin += call->in[k].shape.d[at];
    gckpti_block_axes(it, call, i, 1, at, begin);
}
GCKPTI_OP_KERNELS(concat, gckpti_run_moves(call, backward, call->inputs, gckpti_concat_move))
static int gckpti_concat_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    const gckpt_receptive_field same = { call->inputs, 1, 0, 1, 0.0f };
    const int axis = *(const int *)attr;
    *field = same;
    return (axis < 0 ? axis + call->shape.n : axis) > 1;
}
GCKPTI_DESC_FIELD(concat, gckpti_concat_shape, NULL, gckpti_concat_field, 0, 0);
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis)
{
    gckpt_tensor *t = gckpt_apply(&gckpti_op_concat, x, n, &axis, sizeof axis);
    if (t)
        t->variable = x[n - 1]->variable;
    return t;
}

/* pad: y is x with `before` and `after` elements at the ends of an axis: `value`, or copies. dx is
 * g in x; then each element adds g of its copies in the order of their places. */
static gckpt_result gckpti_pad_shape(gckpt_call *call)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    int axis = gckpti_axis_of(call, "pad", p->axis);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    const int64_t n = call->shape.d[axis];
    if (p->mode == GCKPT_PAD_REFLECT && (p->before >= n || p->after >= n))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "pad: axis %i of %S reflects at most %I elements, not %i and %i", axis,
                          &call->shape, n - 1, p->before, p->after);
    call->shape.d[axis] += (int64_t)p->before + p->after;
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
/* Iterates over x and its place in y (part 0), or over the copies before (1) or after it (2). */
static void gckpti_pad_move(gckpti_iter *it, const gckpt_call *call, int part)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpti_axis_split x = gckpti_split_at(&call->in[0].shape, p->axis);
    const int64_t n = x.inner, all = p->before + x.size + p->after;
    const int64_t count = part == 0 ? x.size : part == 1 ? p->before : p->after;
    const int64_t place = part == 0 ? p->before : part == 1 ? 0 : p->before + x.size;
    const int64_t to_next = part == 0 ? n : p->mode == GCKPT_PAD_REFLECT ? -n : 0;
    const int64_t step[3][4] = { { 1, 1 }, { to_next, n }, { x.size * n, all * n } };
    const gckpt_shape one = gckpt_shape1(1);
    const gckpt_shape *const shapes[4] = { &one, &one, NULL, NULL };
    gckpti_iter_over(it, &one, shapes);
    gckpti_iter_add_axis(it, n, step[0]);
    gckpti_iter_add_axis(it, count, step[1]);
    gckpti_iter_add_axis(it, x.outer, step[2]);
    it->offset[0] = gckpti_pad_source(p, x.size, place) * n, it->offset[1] = place * n;
}
static void gckpti_run_pad(const gckpt_call *call, int backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    if (!backward && p->mode == GCKPT_PAD_VALUE)
        gckpti_cpu_fill(call, call->out, gckpti_bits(p->value), gckpti_elements(&call->shape));
    gckpti_run_moves(call, backward, p->mode == GCKPT_PAD_VALUE ? 1 : 3, gckpti_pad_move);
}
GCKPTI_OP_KERNELS(pad, gckpti_run_pad(call, backward))
GCKPTI_DESC(pad, gckpti_pad_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_pad(gckpt_tensor *x, int axis, int64_t before, int64_t after,
                                  gckpt_pad_mode mode, float value)
{
    const gckpti_pad p = { axis, (int)before, (int)after, value, (int)mode };
    if (x && (before < 0 || before != p.before || after < 0 || after != p.after))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "pad: %I and %I elements: each must be 0 to 2^31 - 1; gckpt_slice "
                           "takes elements away",
                           before, after);
    if (x && ((unsigned)mode > GCKPT_PAD_REPLICATE))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "pad: mode %i is none of GCKPT_PAD_VALUE (0) to _REPLICATE (2)",
                           (int)mode);
    return gckpt_apply(&gckpti_op_pad, &x, 1, &p, sizeof p);
}

/* sum and mean over an axis, which is removed. The last axis is summed in 32 lanes (5d), the rows
 * of another axis in order, from +0. A mean divides once, at the end; dx = g, or g / size. */
static gckpt_result gckpti_reduce_shape(gckpt_call *call, const char *op, int64_t most,
                                        size_t saved)
{
    int axis = gckpti_axis_of(call, op, *(const int *)call->attributes);
    if (axis < 0)
        return GCKPT_E_ARG;
    if (call->in[0].shape.d[axis] > most)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: the axis of %S is longer than 2^31 - 1", op,
                          &call->in[0].shape);
    call->shape = call->in[0].shape;
    call->shape.n--;
    for (int i = axis; i < call->shape.n; i++)
        call->shape.d[i] = call->shape.d[i + 1];
    call->mixes_rows = axis == 0;
    if (gckpti_shape_fits(&call->shape))
        call->saved_bytes = (size_t)gckpti_elements(&call->shape) * saved;
    return GCKPT_OK;
}
/* Defines gckpti_<op>_shape: the longest axis, and the bytes saved for each result. */
#define GCKPTI_REDUCE_SHAPE(op, most, saved)                                                       \
    GCKPTI_UNUSED static gckpt_result gckpti_##op##_shape(gckpt_call *call)                        \
    {                                                                                              \
        return gckpti_reduce_shape(call, #op, most, saved);                                        \
    }
GCKPTI_REDUCE_SHAPE(sum, INT64_MAX, 0)
GCKPTI_REDUCE_SHAPE(mean, INT64_MAX, 0)
GCKPTI_REDUCE_SHAPE(max, INT32_MAX, sizeof(int32_t))
GCKPTI_REDUCE_SHAPE(argmax, INT32_MAX, 0)
/* Sums the axis, which is the first or the second of the plane, if it has several elements. */
static void gckpti_reduce_plane(const gckpti_strided *s)
{
    const int axis = *(const int *)s->call->attributes, innermost = s->it.step[1][0] == 0;
    const int64_t n = s->it.size[innermost];
    const float *x = s->loops->in[0] + s->it.offset[0];
    float *d = s->loops->to + s->it.offset[1];
    if (innermost && (axis == -1 || axis == s->call->shape.n)) {
        for (int64_t r = 0; r < n; r++, x += s->it.step[0][1])
            d[r] = GCKPTI_KERNEL_OF(s->call, sum, gckpti_sum_from)(x, s->it.size[0], 0.0f);
    } else {
        memset(d, 0, (size_t)n * sizeof *d);
        gckpti_move_plane(s);
    }
    if (*s->loops->in[1] > 1.0f)
        GCKPTI_KERNEL_OF(s->call, divide, gckpti_divide)(d, *s->loops->in[1], n);
}

/* Runs sum or mean. Backward: passes g, or g / size for a mean, to each element. */
static void gckpti_run_reduction(const gckpt_call *call, int backward, int mean)
{
    const gckpt_arg *x = &call->in[0];
    const int axis = *(const int *)call->attributes, at = axis < 0 ? axis + x->shape.n : axis;
    const float size = mean ? (float)x->shape.d[at] : 1.0f;
    gckpt_shape sums = x->shape, one = gckpt_shape1(1);
    const gckpt_shape *const shapes[2][4] = {
        { &x->shape, &sums, NULL, NULL }, { &x->shape, mean ? &one : &x->shape, &sums, &x->shape }
    };
    gckpti_strided s;
    sums.d[at] = 1;
    s.call = call, s.plane = backward ? gckpti_loop_plane : gckpti_reduce_plane;
    s.to = backward ? 3 : 1, s.count = 0, s.cost = 4, s.loops->comp = NULL;
    gckpti_iter_over(&s.it, &x->shape, shapes[backward]);
    s.loops->in[0] = x->data, s.loops->in[1] = &size, s.loops->to = call->out;
    s.loops->accumulate = !backward || x->accumulate;
    if (backward) { /* x is not read, nor is the size by a sum */
        s.loops->in[0] = s.loops->to = x->grad, s.loops->in[2] = call->grad_out;
        s.loops->in[1] = mean ? &size : x->grad;
        gckpti_add_loop(&s, mean ? GCKPTI_KIND_div : GCKPTI_KIND_add, 0,
                        mean ? gckpti_numerator_gradient : gckpti_identity_gradient, s.it.size[0]);
    }
    if (s.loops->to)
        gckpti_run_strided(&s);
}
GCKPTI_OP_KERNELS(sum, gckpti_run_reduction(call, backward, 0))
GCKPTI_OP_KERNELS(mean, gckpti_run_reduction(call, backward, 1))
GCKPTI_DESC(sum, gckpti_sum_shape, gckpti_flops_1, 0, 0);
GCKPTI_DESC(mean, gckpti_mean_shape, gckpti_flops_1, 0, 0);
GCKPTI_BUILDER(sum, int, (gckpt_tensor * x, int axis), axis)
GCKPTI_BUILDER(mean, int, (gckpt_tensor * x, int axis), axis)
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

/* max and argmax over an axis, which is removed: the element that precedes all others. top_k and
 * top_k_indices: the k elements that precede all others, in order. The results of argmax and
 * top_k_indices, and `saved` of max and top_k, are indices. dx = g there, else 0. */
static gckpt_result gckpti_top_k_shape(gckpt_call *call)
{
    const int *o = (const int *)call->attributes; /* axis, k */
    const gckpt_result result = gckpti_reduce_shape(call, "top_k", INT32_MAX, 0);
    const int axis = o[0] < 0 ? o[0] + call->in[0].shape.n : o[0];
    if (result != GCKPT_OK)
        return result;
    call->shape = call->in[0].shape;
    if (o[1] < 1 || o[1] > call->shape.d[axis])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "top_k: k = %i must be 1 to %I, the elements of axis %i of %S", o[1],
                          call->shape.d[axis], axis, &call->shape);
    call->shape.d[axis] = o[1];
    call->saved_bytes = (size_t)gckpti_elements(&call->shape) * sizeof(int32_t); /* of top_k */
    return GCKPT_OK;
}

/* The results of max, argmax, top_k and top_k_indices (k of them) on an axis; out and index may be
 * NULL. A work item is an entry of the axes before the axis; it takes some columns at a time. */
enum { GCKPTI_MAX_COLUMNS = 32 };
typedef struct {
    const gckpt_call *call;
    gckpti_axis_split v;
    float *out;
    int32_t *index;
    int64_t k;
} gckpti_max_state;

/* Replaces last[c], for each of n columns, by the element that precedes all others that do not
 * precede element last[c], nor are it; last[c] is -1 for none. */
static inline void gckpti_next_largest(const gckpti_axis_split *v, const float *x, int64_t n,
                                       int32_t *last)
{
    float limit[GCKPTI_MAX_COLUMNS], most[GCKPTI_MAX_COLUMNS];
    int32_t best[GCKPTI_MAX_COLUMNS];
    for (int64_t c = 0; c < n; c++)
        limit[c] = last[c] < 0 ? 0.0f : x[last[c] * v->inner + c], best[c] = -1, most[c] = 0.0f;
    for (int64_t i = 0; i < v->size; i++, x += v->inner)
        for (int64_t c = 0; c < n; c++)
            if ((best[c] < 0 || !(x[c] <= most[c])) && (best[c] < 0 || most[c] == most[c]) &&
                (last[c] < 0 || gckpti_precedes(limit[c], last[c], x[c], i)))
                best[c] = (int32_t)i, most[c] = x[c];
    memcpy(last, best, (size_t)n * sizeof *best);
}

static void gckpti_max_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_max_state *s = (const gckpti_max_state *)context;
    const gckpt_arg *to = &s->call->in[0];
    const float *g = s->call->grad_out;
    const int64_t inner = s->v.inner, first = i * s->v.size * inner;
    (void)worker;
    if (g)
        gckpti_zero_unless(to->grad + first, s->v.size * inner, to->accumulate);
    for (int64_t c = 0, n; c < inner; c += n) {
        int32_t best[GCKPTI_MAX_COLUMNS];
        n = gckpti_min(inner - c, GCKPTI_MAX_COLUMNS);
        for (int64_t e = 0; e < n; e++)
            best[e] = -1;
        for (int64_t at = i * s->k * inner + c, end = at + s->k * inner; at < end; at += inner) {
            for (int64_t e = 0; g && e < n; e++)
                gckpti_put(&to->grad[first + s->index[at + e] * inner + c + e], g[at + e],
                           to->accumulate);
            if (g)
                continue;
            if (n == 1) /* inlined with this constant, it keeps the largest in registers */
                gckpti_next_largest(&s->v, to->data + first + c, 1, best);
            else
                gckpti_next_largest(&s->v, to->data + first + c, n, best);
            for (int64_t e = 0; s->out && e < n; e++)
                s->out[at + e] = to->data[first + best[e] * inner + c + e];
            if (s->index)
                memcpy(s->index + at, best, (size_t)n * sizeof *best);
        }
    }
}

static void gckpti_run_max(const gckpt_call *call, float *out, void *index, int k)
{
    const gckpt_arg *x = &call->in[0];
    gckpti_max_state s = { call, gckpti_split_at(&x->shape, *(const int *)call->attributes), out,
                           (int32_t *)index, k };
    if (!call->grad_out || x->grad)
        gckpt_parallel(call, s.v.outer, 4 * s.v.size * s.v.inner * k, gckpti_max_item, &s);
}
GCKPTI_OP_KERNELS(max, (void)backward; gckpti_run_max(call, call->out, call->saved, 1))
GCKPTI_OP_KERNELS(top_k, (void)backward;
                  gckpti_run_max(call, call->out, call->saved, ((const int *)call->attributes)[1]))
GCKPTI_FN void gckpti_argmax_forward(const gckpt_call *call)
{
    gckpti_run_max(call, NULL, call->out, 1);
}
GCKPTI_FN void gckpti_top_k_indices_forward(const gckpt_call *call)
{
    gckpti_run_max(call, NULL, call->out, ((const int *)call->attributes)[1]);
}
static uint64_t gckpti_top_k_flops(const gckpt_call *call)
{
    return gckpti_flops_1(call) * (uint64_t)((const int *)call->attributes)[1];
}
static int64_t gckpti_argmax_limit(const gckpt_call *call, int i)
{
    return (void)i, gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes).size;
}
GCKPTI_DESC(max, gckpti_max_shape, gckpti_flops_1, 0, GCKPT_SAVED);
GCKPTI_DESC_ALL(argmax, NULL, gckpti_argmax_shape, gckpti_flops_1, NULL, gckpti_argmax_limit, NULL,
                GCKPTI_INDICES, 0);
GCKPTI_DESC(top_k, gckpti_top_k_shape, gckpti_top_k_flops, 0, GCKPT_SAVED);
GCKPTI_DESC_ALL(top_k_indices, NULL, gckpti_top_k_shape, gckpti_top_k_flops, NULL,
                gckpti_argmax_limit, NULL, GCKPTI_INDICES, 0);
GCKPTI_BUILDER(max, int, (gckpt_tensor * x, int axis), axis)
GCKPTI_BUILDER(argmax, int, (gckpt_tensor * x, int axis), axis)
GCKPT_API gckpt_tensor *gckpt_top_k(gckpt_tensor *x, int axis, int k, gckpt_tensor **indices)
{
    const int o[2] = { axis, k };
    gckpt_tensor *values = gckpt_apply(&gckpti_op_top_k, &x, 1, o, sizeof o);
    if (indices)
        *indices = values ? gckpt_apply(&gckpti_op_top_k_indices, &x, 1, o, sizeof o) : NULL;
    return values;
}

/* gather: as embed (ops/embed.c), but each sample has its own table. */
static gckpt_result gckpti_gather_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *index = &call->in[1].shape;
    if (x->n != 3 || index->n != 2 || x->d[0] != index->d[0])
        return gckpt_fail(call, GCKPT_E_SHAPE, "gather: x %S, index %S must be (B,N,C), (B,M)", x,
                          index);
    call->shape = *x;
    call->shape.d[1] = index->d[1];
    return GCKPT_OK;
}
GCKPTI_OP_KERNELS(gather, gckpti_run_take(call, backward))
GCKPTI_DESC_WITH(gather, gckpti_gather_shape, NULL, NULL, gckpti_table_rows, GCKPT_INDEX(1),
                 GCKPT_IN(1));
GCKPTI_BINARY_BUILDER(gather)
#endif
