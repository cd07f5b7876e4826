#include "ops/own.h"

/* ---- losses of elements, each a product a b of two factors; count = elements ----
 *   sum_loss              1 x                                    dx = 1
 *   mean_squared_error    d d, d = x - y                         dx = 2 d
 *   huber                 (d/2) d; from |d| = delta on           dx = d, but -delta to delta
 *                         delta (|d| - delta/2)
 *   binary_cross_entropy  1 (fma(-x, y, max(x, 0)) + log(1 + exp(-|x|)))
 *                                                                dx = 1 / (1 + exp(-x)) - y
 * dy = -dx, but -x in the last. One sum by lanes for each entry of axis 0, lane = fma(w a, b,
 * lane), these added in double; gradients put(w dx, loss_scale). Without weights w is 1; where it
 * is 0 it adds +0 and passes 0 on, whatever x and y are. dw = put(sum of a b by lanes over what is
 * behind the weight, loss_scale). */

GCKPTI_FN gckpti_errors gckpti_errors_of(const gckpt_call *call, gckpti_error_kind kind)
{
    const gckpt_shape *shape = &call->in[0].shape;
    gckpti_errors e = { call, kind, gckpti_elements(shape), 1, call->in[0].data, NULL, NULL, 0 };
    e.y = call->inputs > 1 ? call->in[1].data : NULL;
    if (gckpti_has_weights(call)) {
        e.weights = call->in[2].data;
        e.share = e.n / gckpti_elements(&call->in[2].shape);
    }
    e.n /= shape->n ? shape->d[0] : 1;
    if (call->attributes)
        e.delta = *(const float *)call->attributes;
    return e;
}

static float gckpti_errors_forward(const gckpti_errors *e, int64_t row)
{
    float lane[32] = { 0.0f };
    for (int64_t i = 0, at = row * e->n; i < e->n; i++, at++) {
        float b, w = gckpti_error_weight(e, at), *sum = &lane[i & 31];
        float a = gckpti_error_factors(e->kind, e->x[at], e->y ? e->y[at] : 0.0f, e->delta, &b);
        *sum = w > 0.0f || w < 0.0f ? gckpti_fma(w * a, b, *sum) : *sum + w;
    }
    return gckpti_lanes_sum(lane);
}

static void gckpti_errors_backward(const gckpti_errors *e, int64_t row)
{
    const gckpt_arg *x = &e->call->in[0], *y = &e->call->in[1];
    float scale = e->call->loss_scale;
    for (int64_t i = row * e->n; i < (row + 1) * e->n; i++) {
        float p = e->x ? e->x[i] : 0.0f, w = gckpti_error_weight(e, i); /* sum_loss has no data */
        float d = gckpti_error_slope(e->kind, p, e->y ? e->y[i] : 0.0f, e->delta);
        if (x->grad)
            gckpti_put_product(&x->grad[i], gckpti_weighted(w, d), scale, x->accumulate);
        if (y->grad)
            gckpti_put_product(
                &y->grad[i], gckpti_weighted(w, gckpti_error_is(e->kind, GCKPTI_BINARY) ? -p : -d),
                scale, y->accumulate);
    }
}

/* Rows of a call, some of them at a time. */
typedef struct {
    gckpti_errors e;
    gckpti_error_kernels by;
    int64_t row;
    float sum[GCKPTI_LOSS_ROWS_MOST];
} gckpti_error_rows;

static void gckpti_errors_item(void *context, int64_t i, int64_t worker)
{
    gckpti_error_rows *s = (gckpti_error_rows *)context;
    (void)worker;
    s->sum[i] = s->by.forward(&s->e, s->row + i);
}

static void gckpti_errors_backward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_error_rows *s = (const gckpti_error_rows *)context;
    (void)worker;
    s->by.backward(&s->e, i);
}

static void gckpti_errors_weight_item(void *context, int64_t k, int64_t worker)
{
    const gckpti_errors *e = &((const gckpti_error_rows *)context)->e;
    const gckpt_arg *w = &e->call->in[2];
    float lane[32] = { 0.0f };
    (void)worker;
    for (int64_t i = 0; i < e->share; i++) {
        int64_t at = k * e->share + i;
        float b, a = gckpti_error_factors(e->kind, e->x[at], e->y[at], e->delta, &b);
        lane[i & 31] = gckpti_fma(a, b, lane[i & 31]);
    }
    gckpti_put_product(&w->grad[k], gckpti_lanes_sum(lane), e->call->loss_scale, w->accumulate);
}

GCKPTI_FN void gckpti_errors_by(const gckpt_call *call, int backward, gckpti_error_kind kind,
                                gckpti_error_kernels by)
{
    const gckpt_shape *shape = &call->in[0].shape;
    gckpti_error_rows s;
    s.e = gckpti_errors_of(call, kind), s.by = by;
    int64_t rows = shape->n ? shape->d[0] : 1, each = GCKPTI_LOSS_ROWS_MOST, n = s.e.n;
    for (s.row = 0; s.row < rows && !backward; s.row += each) {
        int64_t some = gckpti_min(rows - s.row, each);
        by.each(call, some, 16 * n, gckpti_errors_item, &s);
        for (int64_t r = 0; r < some; r++)
            gckpti_loss_add(call, s.sum[r], n);
    }
    if (backward && (call->in[0].grad || call->in[1].grad))
        by.each(call, rows, 16 * n, gckpti_errors_backward_item, &s);
    if (backward && gckpti_has_weights(call) && call->in[2].grad)
        by.each(call, rows * n / s.e.share, 16 * s.e.share, gckpti_errors_weight_item, &s);
}

GCKPTI_FN gckpti_error_kernels gckpti_plain_errors(void)
{
    gckpti_error_kernels by = { gckpti_in_turn, gckpti_errors_forward, gckpti_errors_backward };
    return by;
}

GCKPTI_FN gckpt_result gckpti_errors_shape(gckpt_call *call, const char *name)
{
    const gckpt_shape *x = &call->in[0].shape, *y = &call->in[1].shape;
    const float *delta = (const float *)call->attributes;
    if (call->inputs > 1 && !gckpti_same_shape(x, y))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: prediction %S, target %S differ", name, x, y);
    if (delta && !(*delta > 0.0f && *delta <= FLT_MAX))
        return gckpt_fail(call, GCKPT_E_ARG, "%s: delta %g must be above 0, and finite", name,
                          (double)*delta);
    return gckpti_weights_fit(call, name, x);
}

GCKPTI_ERRORS(sum_loss, GCKPTI_SUMMED, gckpti_flops_1, 0);
GCKPTI_ERRORS(mean_squared_error, GCKPTI_SQUARED, gckpti_flops_3, GCKPTI_READS_MORE(0),
              GCKPTI_READS_MORE(0));

GCKPT_API gckpt_tensor *gckpt_sum_loss(gckpt_tensor *x)
{
    return gckpt_apply(&gckpti_op_sum_loss, &x, 1, NULL, 0);
}

GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target)
{
    gckpt_tensor *in[2] = { prediction, target };
    return gckpt_apply(&gckpti_op_mean_squared_error, in, 2, NULL, 0);
}
