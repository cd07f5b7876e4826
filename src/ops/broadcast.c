#include "ops/internal.h"
#include "graph/graph.h"

/* ---- the iterator of all ops that broadcast or move elements (ops.h) ---- */
typedef struct {
    int64_t outer, size, inner;
} gckpti_axis_split;

/* Returns the sizes before, at and after `axis` of s; a negative axis counts from the last. */
static gckpti_axis_split gckpti_split_at(const gckpt_shape *s, int axis)
{
    gckpti_axis_split v = { 1, 1, 1 };
    if (axis < 0)
        axis += s->n;
    for (int i = 0; i < s->n; i++)
        *(i < axis ? &v.outer : i == axis ? &v.size : &v.inner) *= s->d[i];
    return v;
}

/* Adds an axis; the caller adds the innermost axis first. */
static void gckpti_iter_add_axis(gckpti_iter *it, int64_t size, int64_t step0, int64_t step1)
{
    int k = it->n - 1;
    if (size == 1)
        return;
    if (k < 0 || step0 != it->size[k] * it->step[0][k] || step1 != it->size[k] * it->step[1][k])
        k = it->n++, it->size[k] = 1, it->step[0][k] = step0, it->step[1][k] = step1;
    it->size[k] *= size;
}

GCKPTI_FN gckpti_iter gckpti_iter_over(const gckpt_shape *axes, const gckpt_shape *a,
                                       const gckpt_shape *b)
{
    int64_t stride[2] = { 1, 1 }, step[2];
    gckpti_iter it;
    memset(&it, 0, sizeof it);
    it.size[0] = it.size[1] = it.step[0][0] = it.step[1][0] = 1; /* one element */
    for (int k = 1; k <= axes->n; k++) {
        for (int i = 0; i < 2; i++) {
            const gckpt_shape *s = i ? b : a;
            const int64_t size = k <= s->n ? s->d[s->n - k] : 1;
            step[i] = size == 1 ? 0 : stride[i];
            stride[i] *= size;
        }
        gckpti_iter_add_axis(&it, axes->d[axes->n - k], step[0], step[1]);
    }
    return it;
}

/* Advances along the axes from `axis` on; the caller walks those before. Returns 0 at the end. */
static int gckpti_iter_next(gckpti_iter *it, int axis)
{
    for (int k = axis; k < it->n; k++) {
        const int ends = ++it->index[k] == it->size[k];
        for (int t = 0; t < 2; t++)
            it->offset[t] += it->step[t][k] * (ends ? 1 - it->size[k] : 1);
        if (!ends)
            return 1;
        it->index[k] = 0;
    }
    return 0;
}

#if GCKPTI_HAS_FAST
static void gckpti_strided_item(void *context, int64_t i, int64_t worker)
{
    gckpti_strided s = *(const gckpti_strided *)context;
    (void)worker;
    s.it.size[s.axis] = gckpti_min(s.it.size[s.axis] - i * s.each, s.each);
    for (int t = 0; t < 2; t++)
        s.it.offset[t] += i * s.each * s.it.step[t][s.axis];
    do
        s.plane(&s);
    while (gckpti_iter_next(&s.it, 2));
}
#endif

static void gckpti_run_strided(gckpti_strided *s)
{
#if GCKPTI_HAS_FAST
    const int64_t *size = s->it.size, *step = s->it.step[s->to];
    int64_t n = 1, axis = 0;
    for (int k = s->it.n; k-- > 0; n *= size[k]) /* the outermost of 16 or more, or the longest */
        if (step[k] && (!axis || (size[axis] < 16 && size[k] > size[axis])))
            axis = k;
    s->axis = axis, s->each = 1 + (size[axis] << 14) / n; /* 2^14 elements */
    s->each = !step[axis] ? size[axis] : axis < 2 ? gckpti_ceil_to(s->each, 64) : s->each;
    gckpt_parallel(s->call, (size[axis] + s->each - 1) / s->each, 4 * s->each * n / size[axis],
                   gckpti_strided_item, s);
#else
    do
        s->plane(s);
    while (gckpti_iter_next(&s->it, 2));
#endif
}

/* ---- binary ops with broadcasting: axes match from the last; a size of 1 or a missing axis is
 * repeated. The gradient of a repeated input sums over the repetitions, in the row-major order of
 * the output, compensated; the next micro-batch continues this sum (manual, 5e). */
static gckpt_result gckpti_broadcast_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    for (int i = 1; i < call->inputs; i++) {
        const gckpt_shape a = call->shape, *b = &call->in[i].shape;
        call->shape = a.n >= b->n ? a : *b;
        for (int k = 1; k <= a.n && k <= b->n; k++) {
            int64_t da = a.d[a.n - k], db = b->d[b->n - k];
            if (da != db && da != 1 && db != 1)
                return gckpt_fail(call, GCKPT_E_SHAPE,
                                  "broadcast: %S with %S: sizes %I and %I differ "
                                  "(matched from the last axis; only 1 is repeated)",
                                  &a, b, da, db);
            call->shape.d[call->shape.n - k] = da == 1 ? db : da;
        }
    }
    return GCKPT_OK;
}

#if GCKPTI_HAS_FAST
/* Returns whether vector loops run on the whole arrays: no input is repeated, and no gradient is a
 * compensated sum. */
static int gckpti_is_flat(const gckpt_call *call)
{
    const int64_t n = gckpti_elements(&call->shape);
    int k = 0;
    while (k < call->inputs && gckpti_elements(&call->in[k].shape) == n &&
           !call->in[k].compensation)
        k++;
    return call->kernels && k == call->inputs;
}

/* Computes the gradient of x, repeated as whole rows of n, if that is the sum of g: a bias's. */
static void gckpti_sum_repeated(const gckpt_call *call, const gckpt_arg *x, int64_t n)
{
    gckpt_call c = *call;
    c.shape = gckpt_shape2(gckpti_elements(&call->shape) / n, n);
    c.in[1] = *x;
    gckpti_run_column_sums(&c, 0, 1);
}

/* Adds a plane, at s, to the sums of its rows: column by column, so that 64 rows do not wait for
 * each other. Leaves s and the iterator at the last row. */
static void gckpti_sum_rows(gckpti_iter *it, gckpti_loop *s, gckpti_loop_fn loop)
{
    const int64_t n = it->size[0], last = it->size[1] - 1, *y_step = it->step[1];
    gckpti_loop part = *s;
    part.steps[0] = 1, part.steps[1] = y_step[1], part.steps[2] = n;
    for (int64_t r = 0; r <= last; r += part.n)
        for (int64_t j = 0; j < n; j++) {
            part.n = gckpti_min(last + 1 - r, 64), part.g = s->g + r * n + j;
            part.x = s->x + r, part.y = s->y + r * y_step[1] + j * y_step[0];
            part.to = s->to + r, part.comp = s->comp + r;
            loop(&part);
        }
    s->g += last * n, it->index[1] = last;
    for (int t = 0; t < 2; t++)
        it->offset[t] += last * it->step[t][1];
}

/* Runs vector loops over whole arrays: of values, or of the required gradients. */
static void gckpti_run_flat(const gckpt_call *call, int backward, int kind)
{
    gckpti_flat_loop f[2];
    int count = 0;
    for (int i = 0; i <= backward; i++) {
        const gckpt_arg *x = &call->in[i], *y = &call->in[1 - i];
        gckpti_loop s = { x->data, y->data, call->grad_out, NULL, backward ? x->grad : call->out,
                          NULL, gckpti_elements(&call->shape), { 1, 1 }, x->accumulate };
        s.accumulate &= backward;
        if (!s.to || s.to == s.g) /* not required, or g itself (PASSES_GRAD) */
            continue;
        s.x = s.x ? s.x : s.g, s.y = s.y ? s.y : s.g; /* the loop does not read a NULL array */
        f[count].loop = s, f[count].input = backward ? i : -1, f[count++].run = NULL;
    }
    gckpti_run_loops(call, f, count, kind);
}

/* Runs vector loops of contiguous arrays: x is the condition, y and g are a and b, or g is that of
 * y. steps: the shift that clears the sign of a condition in f32; 1 for the gradient of b. */
static void gckpti_where_flat(const gckpt_call *call, int backward)
{
    const gckpt_arg *c = &call->in[0];
    const void *condition = c->index ? (const void *)c->index : (const void *)c->data;
    gckpti_flat_loop f[2];
    int count = 0;
    for (int i = 1; i <= 1 + backward; i++) {
        const gckpt_arg *in = &call->in[i];
        gckpti_loop s = { (const float *)condition, call->in[1].data, call->in[2].data, NULL,
                          call->out, NULL, gckpti_elements(&call->shape), { !c->index, i == 2 },
                          0 };
        if (backward)
            s.y = s.g = call->grad_out, s.to = in->grad, s.accumulate = in->accumulate;
        if (s.to)
            f[count].loop = s, f[count].input = backward ? i - 1 : -1, f[count++].run = NULL;
    }
    gckpti_run_loops(call, f, count, GCKPTI_KIND_where);
}

#else
#define gckpti_is_flat(call)                    0
#define gckpti_run_flat(call, backward, kind)   ((void)0)
#define gckpti_where_flat(call, backward)       ((void)0)
#endif

/* Computes values or, if `backward`, input i's gradient, by a `loop` along the innermost axis. */
static void gckpti_run_binary(const gckpt_call *call, int backward, int i, gckpti_loop_fn loop)
{
    const gckpt_arg *x = &call->in[i], *y = &call->in[1 - i];
    gckpti_iter it;
    gckpti_loop s;
    if (backward &&
        (!x->grad || x->grad == call->grad_out)) /* not required, or g itself (PASSES_GRAD) */
        return;
    it = gckpti_iter_over(&call->shape, &x->shape, &y->shape);
#if GCKPTI_HAS_FAST
    if (backward && call->kernels && x->compensation && it.step[0][0] == 1 &&
        it.size[0] == gckpti_elements(&x->shape) && loop == gckpti_identity_gradient) {
        gckpti_sum_repeated(call, x, it.size[0]);
        return;
    }
#endif
    if (backward && x->compensation)
        gckpti_zero_unless(x->grad, gckpti_elements(&x->shape), x->accumulate);
    memset(&s, 0, sizeof s);
    s.n = it.size[0], s.steps[0] = it.step[0][0], s.steps[1] = it.step[1][0], s.steps[2] = 1;
    s.g = call->grad_out, s.to = call->out, s.accumulate = x->accumulate;
    do {
        s.x = x->data ? x->data + it.offset[0] : s.g; /* `loop` does not read a NULL array */
        s.y = y->data ? y->data + it.offset[1] : s.g;
        if (backward)
            s.to = x->grad + it.offset[0];
        if (x->compensation)
            s.comp = x->compensation + it.offset[0];
#if GCKPTI_HAS_FAST
        if (backward && s.comp && !it.step[0][0] && it.step[0][1])
            gckpti_sum_rows(&it, &s, loop);
        else
#endif
            loop(&s);
        if (backward)
            s.g += s.n;
        s.to += s.n;
    } while (gckpti_iter_next(&it, 1));
}

#ifndef GCKPTI_NO_GRAPH
#define GCKPTI_BINARY_BUILDER(name)                                                                \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *a, gckpt_tensor *b)                         \
    {                                                                                              \
        return gckpti_apply_to(&gckpti_op_##name, a, b, NULL, NULL, 0);                            \
    }
#else
#define GCKPTI_BINARY_BUILDER(name)
#endif
#define GCKPTI_BINARY_OP(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)              \
    GCKPTI_OP_KERNELS(                                                                             \
        name, if (gckpti_is_flat(call)) gckpti_run_flat(call, backward, GCKPTI_KIND_##name);       \
        else backward ? (gckpti_run_binary(call, 1, 0, gckpti_##grad_a##_gradient),                \
                         gckpti_run_binary(call, 1, 1, gckpti_##grad_b##_gradient))                \
                      : gckpti_run_binary(call, 0, 0, gckpti_##name##_values))                     \
    GCKPTI_DESC(name, gckpti_broadcast_shape, flops,                                               \
                GCKPT_INPLACE(0) | GCKPT_INPLACE(1) | GCKPTI_IS_ELEMENTWISE | (flags),             \
                (reads_a) | GCKPT_SUMS, (reads_b) | GCKPT_SUMS);                                   \
    GCKPTI_BINARY_BUILDER(name)
GCKPTI_BINARY_OPS(GCKPTI_BINARY_OP)
#undef GCKPTI_BINARY_OP

/* where: y = a where the condition is not 0 (NaN is not 0), else b. da = g where a is selected and
 * db = g where b is, else +0, stored or added. Only selected elements are read, so y may share
 * memory with a or b. */
static void gckpti_where_take(const gckpt_call *call, int i, int backward)
{
    const gckpt_arg *c = &call->in[0], *in = &call->in[i];
    gckpti_iter it = gckpti_iter_over(&call->shape, &c->shape, &in->shape);
    int64_t o = 0;
    if (backward && !in->grad)
        return;
    if (in->compensation)
        gckpti_zero_unless(in->grad, gckpti_elements(&in->shape), in->accumulate);
    do
        for (int64_t j = 0; j < it.size[0]; j++, o++) {
            const int64_t at = it.offset[1] + j * it.step[1][0],
                          k = it.offset[0] + j * it.step[0][0];
            const int taken = (c->index ? c->index[k] != 0 : c->data[k] != 0.0f) == (i == 1);
            const float g = backward && taken ? call->grad_out[o] : 0.0f;
            if (in->compensation)
                gckpti_sum_add(&in->grad[at], &in->compensation[at], g);
            else if (backward)
                gckpti_put(&in->grad[at], g, in->accumulate);
            else if (taken)
                call->out[o] = in->data[at];
        }
    while (gckpti_iter_next(&it, 1));
}

static void gckpti_run_where(const gckpt_call *call, int backward)
{
    if (backward) /* the condition's gradient is 0 */
        gckpti_zero_gradients(call, 0, 1);
    if (gckpti_is_flat(call))
        gckpti_where_flat(call, backward);
    else
        for (int i = 1; i < 3; i++)
            gckpti_where_take(call, i, backward);
}
GCKPTI_OP_KERNELS(where, gckpti_run_where(call, backward))
GCKPTI_DESC(where, gckpti_broadcast_shape, NULL,
            GCKPT_INPLACE(1) | GCKPT_INPLACE(2) | GCKPTI_IS_ELEMENTWISE, GCKPTI_ANY_TYPE,
            GCKPT_IN(0) | GCKPT_SUMS, GCKPT_IN(0) | GCKPT_SUMS);
GCKPT_API gckpt_tensor *gckpt_where(gckpt_tensor *condition, gckpt_tensor *a, gckpt_tensor *b)
{
    const int kind = condition && condition->type == GCKPT_F32 ? condition->base->kind : -1;
    const int depends = kind == GCKPTI_OP || kind == GCKPTI_PARAM; /* it may depend on parameters */
    gckpt_tensor *in[3] = { depends ? gckpt_detach(condition) : condition, a, b };
    return gckpt_apply(&gckpti_op_where, in, 3, NULL, 0);
}
