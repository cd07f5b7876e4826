/* ---- one vector of a gradient, n <= W elements: put_n, and the rules of op lists (ops.h) ---- */
GCKPTI_INLINED void V(put_n)(float *d, FLOATS x, int accumulate, int64_t n)
{
    if (accumulate)
        x = V(load_n)(d, n) + x;
    V(store_n)(d, x, n);
}

GCKPTI_INLINED void V(put_passed_n)(float *d, FLOATS g, FLOATS any, int accumulate, int64_t n)
{
    (void)any;
    V(put_n)(d, g, accumulate, n);
}

GCKPTI_INLINED void V(put_product_n)(float *d, FLOATS a, FLOATS b, int accumulate, int64_t n)
{
    if (accumulate)
        a = V(fma)(a, b, V(load_n)(d, n));
    else
        a = a * b;
    V(store_n)(d, a, n);
}

GCKPTI_INLINED void V(put_quotient_n)(float *d, FLOATS a, FLOATS b, int accumulate, int64_t n)
{
    V(put_n)(d, a / b, accumulate, n);
}

GCKPTI_INLINED void V(put_masked_n)(float *d, FLOATS g, FLOATS mask, int accumulate, int64_t n)
{
    V(put_n)(d, V(if_less)(V(zero)(), mask, g, V(zero)()), accumulate, n);
}

/* ---- elementwise ops of one input: functions and loops for each op of GCKPTI_UNARY_OPS ---- */
/* Defines an op's value at x, its slope (the derivative) at x or the result, and a loop of each. */
#define GCKPTI_UNARY_LOOPS(name, flops, reads, value, rule, deriv)                                 \
    GCKPTI_INLINED FLOATS V(name##_value)(FLOATS x, const float *o) { return (void)o, value; }     \
    GCKPTI_INLINED FLOATS V(name##_slope)(FLOATS x, const float *o)                                \
    {                                                                                              \
        return (void)x, (void)o, deriv;                                                            \
    }                                                                                              \
    GCKPTI_KERNEL void V(name##_values)(const gckpti_loop *loop)                                   \
    {                                                                                              \
        const gckpti_loop s = *loop; /* a copy that no store can alias */                          \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            V(store_n)(s.to + j, V(name##_value)(V(load_n)(s.in[0] + j, W), s.o), W);              \
        }                                                                                          \
    }                                                                                              \
    GCKPTI_KERNEL void V(name##_gradients)(const gckpti_loop *loop)                                \
    {                                                                                              \
        const gckpti_loop s = *loop;                                                               \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            const FLOATS df = V(name##_slope)(V(load_n)(s.in[0] + j, W), s.o);                     \
            V(put_##rule##_n)(s.to + j, V(load_n)(s.in[2] + j, W), df, s.accumulate, W);           \
        }                                                                                          \
    }
#define GCKPTI_UNARY_LOOPS_WITH(name, flops, reads, value, rule, deriv, ...)                       \
    GCKPTI_UNARY_LOOPS(name, flops, reads, value, rule, deriv)
GCKPTI_UNARY_OPS(GCKPTI_UNARY_LOOPS)
GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_LOOPS_WITH)
#undef GCKPTI_UNARY_LOOPS
#undef GCKPTI_UNARY_LOOPS_WITH

/* ---- elementwise ops of two inputs: a loop for each line of GCKPTI_BINARY_OPS and _GRADS ---- */
/* Returns W elements of operand i from j on; a repeated operand has W copies (V(run_loop)). */
#define GCKPTI_OPERAND(i) V(load_n)(s.in[i] + j * s.steps[i], W)
#define GCKPTI_BINARY_LOOP(name, flops, flags, value, ...)                                         \
    GCKPTI_INLINED FLOATS V(name##_value)(FLOATS x, FLOATS y) { return value; }                    \
    GCKPTI_KERNEL void V(name##_values)(const gckpti_loop *loop)                                   \
    {                                                                                              \
        const gckpti_loop s = *loop;                                                               \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            V(store_n)(s.to + j, V(name##_value)(GCKPTI_OPERAND(0), GCKPTI_OPERAND(1)), W);        \
        }                                                                                          \
    }
GCKPTI_BINARY_OPS(GCKPTI_BINARY_LOOP)
#undef GCKPTI_BINARY_LOOP

/* Whether terms of sums are first added to +0, so that no compiler contracts them with the sum. */
enum { V(adds_passed) = 0, V(adds_product) = 1, V(adds_quotient) = 1 };
/* Defines a put (store or add) of W elements of a gradient, and its loop; `sums` is a constant. */
#define GCKPTI_GRADIENT_LOOP(name, rule, a, b)                                                     \
    GCKPTI_INLINED void V(name##_put)(float *d, FLOATS g, FLOATS x, FLOATS y, int accumulate)      \
    {                                                                                              \
        (void)x, (void)y;                                                                          \
        V(put_##rule##_n)(d, a, b, accumulate, W);                                                 \
    }                                                                                              \
    GCKPTI_INLINED void V(name##_gradient_of)(const gckpti_loop *loop, int sums)                   \
    {                                                                                              \
        const gckpti_loop s = *loop;                                                               \
        for (int64_t j = 0; j < s.n; j += W) {                                                     \
            float term[W] = { 0.0f }, *to = sums ? term : s.to + j;                                \
            const FLOATS x = GCKPTI_OPERAND(0), y = GCKPTI_OPERAND(1);                             \
            V(name##_put)(to, GCKPTI_OPERAND(2), x, y, sums ? V(adds_##rule) : s.accumulate);      \
            if (sums)                                                                              \
                gckpti_sum_add(&s.to[j * s.steps[3]], &s.comp[j * s.steps[3]], *term);             \
        }                                                                                          \
    }                                                                                              \
    GCKPTI_KERNEL void V(name##_gradient)(const gckpti_loop *loop)                                 \
    {                                                                                              \
        const int sums = GCKPTI_ISA < 0 && loop->comp;                                             \
        sums ? V(name##_gradient_of)(loop, 1) : V(name##_gradient_of)(loop, 0);                    \
    }
GCKPTI_BINARY_GRADS(GCKPTI_GRADIENT_LOOP)
#undef GCKPTI_GRADIENT_LOOP

GCKPTI_ISA_NOINLINE FLOATS V(tanh_noinline)(FLOATS x) { return V(tanh)(x); }

/* Return cap tanh(x scale); its derivative / (cap scale) at a result `score`; inverse: 1 / cap. */
GCKPTI_INLINED FLOATS V(softcap)(FLOATS x, float scale, float cap)
{
    const FLOATS y = V(tanh_noinline)(V(fma)(x, V(set1)(scale), V(zero)()));
    return V(fma)(V(set1)(cap), y, V(zero)());
}
GCKPTI_INLINED FLOATS V(softcap_deriv)(FLOATS score, FLOATS inverse)
{
    const FLOATS y = score * inverse;
    return V(fnma)(y, y, V(set1)(1.0f));
}

/* Applies softcap to n elements of x, in place. */
GCKPTI_KERNEL void V(softcaps)(float *x, int64_t n, float scale, float cap)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(x + i, V(softcap)(V(load_n)(x + i, n - i), scale, cap), n - i);
}

/* ---- losses over classes: one row of n logits (ops/losses.c) ---- */
/* Computes the gradient d of n logits x. A class `at` among them has its gradient computed by
 * itself, from the old d[at] (d may be x). */
GCKPTI_KERNEL void V(class_gradients)(const float *x, float *d, int64_t n,
                                      const gckpti_class_row *c)
{
    const FLOATS max = V(set1)(c->max), log_sum = V(set1)(c->log_sum), scale = V(set1)(c->scale);
    const FLOATS mass = V(set1)(c->target_sum), uniform = V(set1)(c->uniform);
    const int here = (uint64_t)c->at < (uint64_t)n;
    const float logit = here ? x[c->at] : 0.0f, held = here ? d[c->at] : 0.0f;
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS y = V(load_n)(x + j, n - j);
        const FLOATS t =
            GCKPTI_WITH_LOSSES && c->targets ? V(load_n)(c->targets + j, n - j) : uniform;
        FLOATS p = V(fma)(V(exp)(y - max - log_sum), mass, -t);
        if (GCKPTI_WITH_LINEAR_LOSS && c->cap > 0.0f)
            p = p * V(softcap_deriv)(y, V(set1)(1.0f / c->cap));
        V(put_product_n)(d + j, p, scale, c->accumulate, n - j);
    }
    if (!here)
        return;
    float p = GCKPTI_LANE(V(exp)(V(set1)(logit) - max - log_sum), 0) - c->target;
    if (GCKPTI_WITH_LINEAR_LOSS && c->cap > 0.0f)
        p *= gckpti_softcap_deriv(logit, 1.0f / c->cap);
    d[c->at] = held;
    gckpti_put_product(&d[c->at], p, c->scale, c->accumulate);
}

#ifndef GCKPT_NO_LOSSES
GCKPTI_KERNEL float V(surprisal)(const float *x, int64_t n, const gckpti_class_row *c)
{
    const FLOATS max = V(set1)(c->max), log_sum = V(set1)(c->log_sum), one = V(set1)(1.0f);
    float lane[32] = { 0.0f };
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS s = log_sum - (V(load_n)(x + j, n - j) - max);
        const FLOATS t = c->targets ? V(load_n)(c->targets + j, n - j) : one;
        float *sum = lane + (uint32_t)j % 32;
        const FLOATS old = V(load_n)(sum, W), next = V(fma)(t, s, old);
        V(store_n)(sum, V(if_less)(V(zero)(), V(abs)(t), next, old + t), n - j);
    }
    return gckpti_lanes_sum(lane);
}
#endif

/* ---- losses of elements (formulas: ops/losses.c): one entry of axis 0 ---- */
/* Returns factor a of an element's loss a b, and sets *b. */
GCKPTI_INLINED FLOATS V(element_factors)(gckpti_loss_kind kind, FLOATS x, FLOATS y, float delta,
                                         FLOATS *b)
{
    const FLOATS d = x - y;
    *b = d;
    if (GCKPTI_WITH_LOSSES && kind == GCKPTI_LOSS_HUBER) {
        const FLOATS size = V(abs)(d), limit = V(set1)(delta);
        *b = V(if_less)(size, limit, d, size - 0.5f * delta);
        return V(if_less)(size, limit, 0.5f * d, limit);
    }
    if (GCKPTI_WITH_LOSSES && kind == GCKPTI_LOSS_BINARY)
        *b = V(fma)(-x, y, V(vmax)(x, V(zero)())) + V(log1p)(V(exp)(-V(abs)(x)));
    return (void)delta, kind == GCKPTI_LOSS_SQUARED ? d : V(set1)(1.0f);
}

/* Returns the derivative of an element's loss by x. */
GCKPTI_INLINED FLOATS V(element_deriv)(gckpti_loss_kind kind, FLOATS x, FLOATS y, float delta)
{
    const FLOATS d = x - y;
    if (GCKPTI_WITH_LOSSES && kind == GCKPTI_LOSS_HUBER) {
        const FLOATS limit = V(set1)(delta);
        return V(if_less)(d, -limit, -limit, V(if_less)(limit, d, limit, d));
    }
    if (GCKPTI_WITH_LOSSES && kind == GCKPTI_LOSS_BINARY)
        return V(sigmoid)(x) - y;
    if (kind == GCKPTI_LOSS_SUM)
        return V(set1)(1.0f);
    return (void)delta, 2.0f * d;
}

/* Runs, for vectors, one of four loops in which the kind of loss is a constant: a loop that checks
 * the kind for every vector takes 1.5 times as long. */
#if GCKPTI_ISA < 0
#define GCKPTI_OF_KIND(run) run(e, e->kind, row)
#else
#define GCKPTI_OF_KIND(run)                                                                        \
    (e->kind == GCKPTI_LOSS_SUM                            ? run(e, GCKPTI_LOSS_SUM, row)          \
     : e->kind == GCKPTI_LOSS_SQUARED                      ? run(e, GCKPTI_LOSS_SQUARED, row)      \
     : GCKPTI_WITH_LOSSES && e->kind == GCKPTI_LOSS_BINARY ? run(e, GCKPTI_LOSS_BINARY, row)       \
                                                           : run(e, GCKPTI_LOSS_HUBER, row))
#endif

/* Returns the weights, if there are any, of n <= W elements from `at` on. */
GCKPTI_INLINED FLOATS V(element_weights)(const gckpti_element_loss *e, int64_t at, int64_t n)
{
    if (e->per_weight == 1)
        return V(load_n)(e->weights + at, n);
    const int64_t first = at / e->per_weight, last = (at + n - 1) / e->per_weight;
    float w[W];
    for (int64_t i = 0; i < W && first < last; i++)
        w[i] = e->weights[(at + (i < n ? i : 0)) / e->per_weight];
    return first < last ? V(load_n)(w, W) : V(set1)(e->weights[first]);
}

GCKPTI_INLINED float V(element_loss_forward_of)(const gckpti_element_loss *e, gckpti_loss_kind kind,
                                                int64_t row)
{
    const int summed = kind == GCKPTI_LOSS_SUM;
    float lane[32] = { 0.0f };
    for (int64_t i = 0; i < e->n; i += W) {
        const int64_t at = row * e->n + i, n = W == 1 ? 1 : gckpti_min(e->n - i, W);
        const FLOATS x = V(load_n)(e->x + at, n), sum = V(load_n)(lane + (uint32_t)i % 32, W);
        FLOATS a, b;
        a = V(element_factors)(kind, x, summed ? V(zero)() : V(load_n)(e->y + at, n), e->delta, &b);
        if (GCKPTI_WITH_LOSSES && e->weights) {
            /* Adds weights 0 and NaN, whatever a and b are. */
            const FLOATS w = V(element_weights)(e, at, n), size = V(abs)(w);
            a = V(if_less)(V(zero)(), size, w * a, w);
            b = V(if_less)(V(zero)(), size, b, V(set1)(1.0f));
        }
        V(store_n)(lane + (uint32_t)i % 32, V(fma)(a, b, sum), n);
    }
    return gckpti_lanes_sum(lane);
}

GCKPTI_KERNEL float V(element_loss_forward)(const gckpti_element_loss *e, int64_t row)
{
    return GCKPTI_OF_KIND(V(element_loss_forward_of));
}

/* Puts d loss_scale into the gradients of n <= W elements. */
GCKPTI_INLINED void V(element_loss_put)(const gckpti_element_loss *e, const gckpt_arg *to,
                                        int64_t at, int64_t n, FLOATS d)
{
    if (to->grad)
        V(put_product_n)(to->grad + at, d, V(set1)(e->call->loss_scale), to->accumulate, n);
}

GCKPTI_INLINED void V(element_loss_backward_of)(const gckpti_element_loss *e, gckpti_loss_kind kind,
                                                int64_t row)
{
    for (int64_t at = row * e->n, end = at + e->n; at < end; at += W) {
        const int64_t n = W == 1 ? 1 : gckpti_min(end - at, W);
        FLOATS x = V(zero)(), y = x, d, dy;
        if (kind != GCKPTI_LOSS_SUM) /* whose derivative reads neither x nor y */
            x = V(load_n)(e->x + at, n), y = V(load_n)(e->y + at, n);
        d = V(element_deriv)(kind, x, y, e->delta);
        dy = GCKPTI_WITH_LOSSES && kind == GCKPTI_LOSS_BINARY ? -x : -d;
        if (GCKPTI_WITH_LOSSES && e->weights) {
            const FLOATS w = V(element_weights)(e, at, n), size = V(abs)(w);
            d = V(if_less)(V(zero)(), size, w * d, w), dy = V(if_less)(V(zero)(), size, w * dy, w);
        }
        V(element_loss_put)(e, &e->call->in[0], at, n, d);
        if (kind != GCKPTI_LOSS_SUM)
            V(element_loss_put)(e, &e->call->in[1], at, n, dy);
    }
}

GCKPTI_KERNEL void V(element_loss_backward)(const gckpti_element_loss *e, int64_t row)
{
    GCKPTI_OF_KIND(V(element_loss_backward_of));
}
#undef GCKPTI_OF_KIND
GCKPTI_UNUSED static const gckpti_element_kernels V(element_loss_kernels) = {
    V(element_loss_forward), GCKPTI_IF_TRAINING(V(element_loss_backward))
};

/* ---- sums over rows, added as by gckpti_sum_add, of several vectors of columns at a time ---- */
#if GCKPTI_ISA >= 0
GCKPTI_INLINED void V(sum_add)(FLOATS *sum, FLOATS *comp, FLOATS x)
{
    FLOATS y = x - *comp, s = *sum + y;
    *comp = s - *sum - y;
    *sum = s;
}
#endif

GCKPTI_INLINED FLOATS V(sum_load)(const float *x, int64_t at, int64_t n)
{
    return x && n > 0 ? V(load_n)(x + at, n) : V(zero)();
}

GCKPTI_INLINED void V(sum_store)(float *d, int64_t at, FLOATS x, int64_t n)
{
    if (d && n > 0)
        V(store_n)(d + at, x, n);
}

/* Returns the column at which vector i of n columns from j on begins, or j if there is none. */
GCKPTI_INLINED int64_t V(col_at)(int64_t j, int64_t n, int i) { return W * i < n ? j + W * i : j; }

/* Vectors of columns that are summed at once: in registers, or a cache line of plain floats. */
#define GCKPTI_COLUMN_VECTORS (W > 1 ? 4 : 16)

/* Returns how many of the columns left are summed at once: whole vectors, or all if < W. */
GCKPTI_INLINED int64_t V(sum_columns)(int64_t left)
{
    return left < W ? left : gckpti_min(left, GCKPTI_COLUMN_VECTORS * W) / W * W;
}
