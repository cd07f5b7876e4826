#include "ops/internal.h"
#include "graph/graph.h"

/* ---- strided iterator over a tensor in row-major order, with two other tensors at their own
 * steps. Axis 0 is the innermost. Adjacent axes are merged if both other tensors cross them with a
 * single step: equal shapes are one run, and (B,T,C) with (C) is B*T runs of C. */

GCKPTI_FN void gckpti_iter_begin(gckpti_iter *it)
{
    memset(it, 0, sizeof *it);
    it->size[0] = 1; /* a scalar is one run of one element */
}

GCKPTI_FN void gckpti_iter_add_axis(gckpti_iter *it, int64_t size, int64_t step0, int64_t step1)
{
    int k = it->n - 1;
    if (size == 1)
        return;
    if (k >= 0 && step0 == it->size[k] * it->step[0][k] && step1 == it->size[k] * it->step[1][k]) {
        it->size[k] *= size;
        return;
    }
    k = it->n++;
    it->size[k] = size;
    it->step[0][k] = step0;
    it->step[1][k] = step1;
}

/* Advances to the next run of size[0] elements; returns 0 at the end. */
static int gckpti_iter_next(gckpti_iter *it)
{
    for (int k = 1; k < it->n; k++) {
        it->offset[0] += it->step[0][k];
        it->offset[1] += it->step[1][k];
        if (++it->index[k] < it->size[k])
            return 1;
        it->index[k] = 0;
        it->offset[0] -= it->size[k] * it->step[0][k];
        it->offset[1] -= it->size[k] * it->step[1][k];
    }
    return 0;
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

GCKPTI_FN void gckpti_broadcast_iter(gckpti_iter *it, const gckpt_call *call, int second)
{
    int64_t stride[2] = { 1, 1 }, step[2];
    gckpti_iter_begin(it);
    for (int k = 1; k <= call->shape.n; k++) {
        for (int i = 0; i < 2; i++) {
            const gckpt_shape *s = &call->in[i ? second : 0].shape;
            int64_t size = k <= s->n ? s->d[s->n - k] : 1;
            step[i] = size == 1 ? 0 : stride[i];
            stride[i] *= size;
        }
        gckpti_iter_add_axis(it, call->shape.d[call->shape.n - k], step[0], step[1]);
    }
}

/* A run of n elements of a gradient d. `step` is that of d, comp and self; it is 1 without comp. */
typedef struct {
    const float *g, *self, *other;
    float *d, *comp;
    int64_t n, step, other_step; /* the step of g is 1 */
    int accumulate;
} gckpti_grad_span;

/* Adds fn(..), times *factor if fn sets it, to each element of d. */
static inline void gckpti_grad_span_add(const gckpti_grad_span *r, int reads_self, int reads_other,
                                       float (*fn)(float g, float self, float other, float *factor))
{
    const int64_t n = r->n, step = r->step, other_step = r->other_step;
    const float *g = r->g, *self = r->self, *other = r->other;
    float *d = r->d, *comp = r->comp, factor = 1.0f;
    if (comp)
        for (int64_t j = 0; j < n; j++) {
            float u = fn(g[j], reads_self ? self[j * step] : 0.0f,
                         reads_other ? other[j * other_step] : 0.0f, &factor);
            gckpti_sum_add(&d[j * step], &comp[j * step], reads_other ? gckpti_mul(u, factor) : u);
        }
    else
        for (int64_t j = 0; j < n; j++) {
            float u = fn(g[j], reads_self ? self[j] : 0.0f,
                         reads_other ? other[j * other_step] : 0.0f, &factor);
            if (reads_other)
                gckpti_put_product(&d[j], u, factor, r->accumulate);
            else
                gckpti_put(&d[j], u, r->accumulate);
        }
}
#define GCKPTI_BINARY_GRAD(name, reads_self, reads_other)                                          \
    static void gckpti_grad_span_##name(const gckpti_grad_span *r)                                 \
    {                                                                                              \
        gckpti_grad_span_add(r, reads_self, reads_other, gckpti_grad_##name);                      \
    }
GCKPTI_BINARY_GRAD(identity, 0, 0)
GCKPTI_BINARY_GRAD(negate, 0, 0)
GCKPTI_BINARY_GRAD(product, 0, 1)
GCKPTI_BINARY_GRAD(numerator, 0, 1)
GCKPTI_BINARY_GRAD(denominator, 1, 1)
GCKPTI_BINARY_GRAD(maximum, 1, 1)
GCKPTI_BINARY_GRAD(minimum, 1, 1)
#undef GCKPTI_BINARY_GRAD

/* Computes input i's gradient, run by run. */
static void gckpti_binary_gradient(const gckpt_call *call, int i,
                                   void (*add)(const gckpti_grad_span *r))
{
    const gckpt_arg *in = &call->in[i], *other = &call->in[1 - i];
    gckpti_grad_span r = { call->grad_out, NULL, NULL, NULL, NULL, 0, 0, 0, in->accumulate };
    gckpti_iter it;
    if (!in->grad || in->grad == call->grad_out) /* not required, or its buffer is g's */
        return;
    gckpti_broadcast_iter(&it, call, 1);
    r.n = it.size[0], r.step = it.step[i][0], r.other_step = it.step[1 - i][0];
    if (in->compensation && !in->accumulate)
        memset(in->grad, 0, (size_t)gckpti_elements(&in->shape) * sizeof(float));
    do {
        r.d = in->grad + it.offset[i],
        r.comp = in->compensation ? in->compensation + it.offset[i] : NULL;
        r.self = in->data ? in->data + it.offset[i] : NULL;
        r.other = other->data ? other->data + it.offset[1 - i] : NULL;
        add(&r);
        r.g += r.n;
    } while (gckpti_iter_next(&it));
}

/* Computes out = f(a, b), run by run. */
static inline void gckpti_binary_forward(const gckpt_call *call, float (*f)(float a, float b))
{
    gckpti_iter it;
    float *o = call->out;
    gckpti_broadcast_iter(&it, call, 1);
    int64_t n = it.size[0], sa = it.step[0][0], sb = it.step[1][0];
    do {
        const float *a = call->in[0].data + it.offset[0], *b = call->in[1].data + it.offset[1];
        for (int64_t j = 0; j < n; j++)
            o[j] = f(a[j * sa], b[j * sb]);
        o += n;
    } while (gckpti_iter_next(&it));
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
/* Defines a binary op; `first`, `second`: the inputs that the gradient of a, of b reads. */
#define GCKPTI_BINARY_OP(name, grad_first, grad_second, flops, flags, first, second)               \
    GCKPTI_OP_KERNELS(name,                                                                        \
                      backward ? (gckpti_binary_gradient(call, 0, gckpti_grad_span_##grad_first),  \
                                  gckpti_binary_gradient(call, 1, gckpti_grad_span_##grad_second)) \
                               : gckpti_binary_forward(call, gckpti_binary_##name))                \
    GCKPTI_DESC(name, GCKPTI_FAST, gckpti_broadcast_shape, flops,                                  \
                GCKPT_INPLACE(0) | GCKPT_INPLACE(1) | GCKPTI_IS_ELEMENTWISE | (flags),             \
                (first) | GCKPT_SUMS, (second) | GCKPT_SUMS);                                      \
    GCKPTI_BINARY_BUILDER(name)

/* add: da = g, db = g.  sub: da = g, db = -g.  mul: da = g b, db = g a.
 * div: y = a / b;  da = g / b, db = -g ((a / b) / b)
 * maximum: NaN if a or b is NaN, a if they are equal;  da = g where a > b, g/2 where a = b, +0
 * where a < b, g where a or b is NaN.  minimum: the same with < in place of >. */
GCKPTI_INLINE float gckpti_binary_add(float a, float b) { return a + b; }
GCKPTI_INLINE float gckpti_binary_sub(float a, float b) { return a - b; }
GCKPTI_INLINE float gckpti_binary_mul(float a, float b) { return a * b; }
GCKPTI_INLINE float gckpti_binary_div(float a, float b) { return a / b; }

#define GCKPTI_BOTH_INPUTS (GCKPT_IN(0) | GCKPT_IN(1))
GCKPTI_BINARY_OP(add, identity, identity, NULL, GCKPT_PASSES_GRAD(0) | GCKPT_PASSES_GRAD(1), 0, 0)
GCKPTI_BINARY_OP(sub, identity, negate, NULL, GCKPT_PASSES_GRAD(0), 0, 0)
GCKPTI_BINARY_OP(mul, product, product, NULL, 0, GCKPT_IN(1), GCKPT_IN(0))
GCKPTI_BINARY_OP(div, numerator, denominator, gckpti_flops_8, 0, GCKPT_IN(1), GCKPTI_BOTH_INPUTS)
GCKPTI_BINARY_OP(maximum, maximum, maximum, NULL, 0, GCKPTI_BOTH_INPUTS, GCKPTI_BOTH_INPUTS)
GCKPTI_BINARY_OP(minimum, minimum, minimum, NULL, 0, GCKPTI_BOTH_INPUTS, GCKPTI_BOTH_INPUTS)
#undef GCKPTI_BOTH_INPUTS
#undef GCKPTI_BINARY_OP

/* where: y = a where the condition is not 0 (NaN is not 0), else b;  da = g where a is selected, db
 * = g where b is, else +0 (stored or added). Only selected elements are read: y may share memory
 * with a or b. */
static void gckpti_where_take(const gckpt_call *call, int i, int backward)
{
    const gckpt_arg *c = &call->in[0], *in = &call->in[i];
    gckpti_iter it;
    int64_t o = 0;
    if (backward && !in->grad)
        return;
    if (in->compensation || i == 0)
        gckpti_zero_unless(in->grad, gckpti_elements(&in->shape), in->accumulate);
    if (i == 0) /* the condition's gradient is 0 */
        return;
    gckpti_broadcast_iter(&it, call, i);
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
    while (gckpti_iter_next(&it));
}
GCKPTI_OP_KERNELS(where, for (int i = !backward; i < 3; i++) gckpti_where_take(call, i, backward))
GCKPTI_DESC(where, GCKPTI_FAST, gckpti_broadcast_shape, NULL,
            GCKPT_INPLACE(1) | GCKPT_INPLACE(2) | GCKPTI_IS_ELEMENTWISE, GCKPTI_ANY_TYPE,
            GCKPT_IN(0) | GCKPT_SUMS, GCKPT_IN(0) | GCKPT_SUMS);
GCKPT_API gckpt_tensor *gckpt_where(gckpt_tensor *condition, gckpt_tensor *a, gckpt_tensor *b)
{
    const int kind = condition && condition->type == GCKPT_F32 ? condition->base->kind : -1;
    const int depends = kind == GCKPTI_OP || kind == GCKPTI_PARAM; /* it may depend on parameters */
    gckpt_tensor *in[3] = { depends ? gckpt_detach(condition) : condition, a, b };
    return gckpt_apply(&gckpti_op_where, in, 3, NULL, 0);
}

/* ---- permute: axis i of the result is axis axes[i] of x; dx is g with its axes moved back. */

/* Shape rule: `axes` has each axis once. Moving the batch axis mixes rows. */
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

GCKPTI_FN void gckpti_permute_iter(gckpti_iter *it, const gckpt_call *call)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    gckpti_iter_begin(it);
    for (int i = x->n; i-- > 0;) {
        int64_t step = 1;
        for (int k = (p->axes[i] < 0 ? p->axes[i] + x->n : p->axes[i]) + 1; k < x->n; k++)
            step *= x->d[k];
        gckpti_iter_add_axis(it, call->shape.d[i], step, 0);
    }
}
static inline void gckpti_run_permute(const gckpt_call *call, int backward)
{
    gckpti_iter it;
    const gckpt_arg *x = &call->in[0];
    const float *g = call->grad_out;
    float *o = call->out;
    if (backward && !x->grad)
        return;
    gckpti_permute_iter(&it, call);
    do {
        float *to = backward ? x->grad + it.offset[0] : NULL;
        for (int64_t j = 0; j < it.size[0] && !backward; j++)
            *o++ = x->data[it.offset[0] + j * it.step[0][0]];
        if (backward && x->accumulate)
            for (int64_t j = 0; j < it.size[0]; j++)
                to[j * it.step[0][0]] += *g++;
        else if (backward)
            for (int64_t j = 0; j < it.size[0]; j++)
                to[j * it.step[0][0]] = *g++;
    } while (gckpti_iter_next(&it));
}
GCKPTI_OP_KERNELS(permute, gckpti_run_permute(call, backward))
GCKPTI_DESC(permute, GCKPTI_PLAIN, gckpti_permute_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n)
{
    gckpti_permute p = { axes ? n : 0, { 0 } };
    for (int i = 0; i < p.n && i < GCKPT_MAX_DIMS; i++)
        p.axes[i] = axes[i];
    return gckpt_apply(&gckpti_op_permute, &x, 1, &p, sizeof p);
}
