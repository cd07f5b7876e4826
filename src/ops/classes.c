#include "ops/own.h"

/* ---- cross_entropy: sum over rows of -log softmax(x)[target] ----
 * Classes go through gckpti_online in chunks of 1024; maximum and log of the sum stay apart, so
 * that logits of +-1e4 lose nothing. A row's loss is log(sum) - (x[target] - max), added in double.
 * Rows with target < 0 are left out. aux (rows,2): max, log(sum); 0, 0 for rows left out.
 * dx_j = put(p_j - (j == target), loss_scale), p_j = exp((x_j - max) - log(sum)); rows left out
 * store +0 or add nothing.
 * ---- cross_entropy_with, soft_cross_entropy: the same with s_j = log(sum) - (x_j - max) ----
 * smoothing e: fma(e / V, sum of s by lanes, mul(1 - e, s_target)); dx_j = put(p_j - e / V, ..),
 * the target's put(p_j - ((1 - e) + e / V), ..). soft: lanes fma(t_j, s_j, lane), a t_j of 0 adding
 * nothing even where s_j is infinite; dx_j = put(fma(p_j, sum of t, -t_j), ..), dt_j = put(s_j,
 * ..). A row's weight w multiplies its loss, and loss_scale; a weight of 0 makes the
 * row's loss and dx 0, whatever its logits are; the row counts. dw = put(sum of the losses behind
 * it by lanes, loss_scale). */
GCKPTI_FN int gckpti_targets_fit(const gckpt_shape *x, const gckpt_shape *targets)
{
    gckpt_shape rows = *x;
    rows.n--;
    return x->n >= 1 && gckpti_same_shape(&rows, targets);
}

/* Whether a loss's input 2, if there is one, has the first axes of `all`. */
GCKPTI_FN gckpt_result gckpti_weights_fit(gckpt_call *call, const char *name,
                                          const gckpt_shape *all)
{
    const gckpt_shape *w = &call->in[2].shape;
    int fits = call->inputs < 3 || (w->n >= 1 && w->n <= all->n);
    for (int i = 0; call->inputs == 3 && fits && i < w->n; i++)
        fits = w->d[i] == all->d[i];
    return fits ? GCKPT_OK
                : gckpt_fail(call, GCKPT_E_SHAPE,
                             "%s: weights %S must have the first axes of %S, one or more of them; "
                             "gckpt_reshape takes away axes of size 1",
                             name, w, all);
}

GCKPTI_FN void gckpti_loss_add(const gckpt_call *call, float loss, int64_t count)
{
    if (call->loss_sum)
        *call->loss_sum += (double)loss;
    if (call->loss_count)
        *call->loss_count += count;
}

GCKPTI_FN void gckpti_in_turn(const gckpt_call *call, int64_t n, int64_t work,
                              void (*body)(void *context, int64_t i, int64_t worker), void *context)
{
    (void)call, (void)work;
    for (int64_t i = 0; i < n; i++)
        body(context, i, 0);
}

static float gckpti_plain_surprisal(const float *x, int64_t n, const gckpti_classes *c)
{
    float lane[32] = { 0.0f };
    for (int64_t j = 0; j < n; j++) {
        float s = c->log_sum - (x[j] - c->max), t = c->targets ? c->targets[j] : 1.0f;
        float *sum = &lane[j & 31];
        *sum = t > 0.0f || t < 0.0f ? gckpti_fma(t, s, *sum) : *sum + t;
    }
    return gckpti_lanes_sum(lane);
}

static void gckpti_plain_classes(const float *x, float *d, int64_t n, const gckpti_classes *c)
{
    for (int64_t j = 0; j < n; j++) {
        float t = c->targets ? c->targets[j] : c->other;
        float p = gckpti_exp((x[j] - c->max) - c->log_sum);
        gckpti_put_product(&d[j], gckpti_fma(p, c->mass, -t), c->scale, c->accumulate);
    }
}

GCKPTI_FN gckpti_loss_kernels gckpti_plain_loss(gckpti_product_run product)
{
    gckpti_loss_kernels by = { product,
                               gckpti_in_turn,
                               gckpti_online,
                               gckpti_plain_surprisal,
                               gckpti_plain_classes,
                               gckpti_from_bf16s,
                               gckpti_to_bf16s,
                               gckpti_exp,
                               gckpti_log };
    return by;
}

/* The target of the block's row r, 0 without one; < 0: the row is left out. */
static int64_t gckpti_loss_target(const gckpti_loss *l, int64_t r)
{
    return l->targets ? l->targets[l->row + r] : 0;
}

GCKPTI_FN float gckpti_loss_of(const gckpti_loss *l, int64_t r, const float *x, float logit,
                               float max, float log_sum)
{
    gckpti_classes c = { max, log_sum, NULL, 0, 0, 0, 0 };
    if (gckpti_loss_soft(l)) {
        c.targets = l->soft + (l->row + r) * l->v;
        return l->by.surprisal(x, l->v, &c);
    }
    float loss = log_sum - (logit - max), smoothing = gckpti_loss_smoothing(l);
    return smoothing > 0.0f ? gckpti_fma(smoothing / (float)l->v, l->by.surprisal(x, l->v, &c),
                                         gckpti_mul(1.0f - smoothing, loss))
                            : loss;
}

/* The forward of row r: its classes before `first`, and the n of x. */
static void gckpti_loss_forward_classes(gckpti_loss *l, int64_t r, const float *x, int64_t first,
                                        int64_t n)
{
    int64_t at = gckpti_loss_target(l, r) - first;
    if (at >= 0 && at < n)
        l->hit[r] = x[at];
    for (int64_t j = 0; j < n; j += GCKPTI_LOSS_CHUNK)
        l->by.online(x + j, NULL, gckpti_min(n - j, GCKPTI_LOSS_CHUNK), first + j == 0, &l->max[r],
                     &l->sum[r]);
    if (first + n < l->v)
        return;
    gckpti_softmax_end(&l->max[r], &l->sum[r]);
    l->sum[r] = l->by.log(l->sum[r]);
    l->hit[r] = gckpti_loss_of(l, r, x, l->hit[r], l->max[r], l->sum[r]);
}

GCKPTI_FN void gckpti_loss_forward_row(void *context, int64_t r, int64_t worker)
{
    gckpti_loss *l = (gckpti_loss *)context;
    (void)worker;
    if (gckpti_loss_target(l, r) >= 0)
        gckpti_loss_forward_classes(l, r, l->x + r * l->n, l->first, l->n);
}

/* As above, of bf16 logits; all their classes. */
static void gckpti_loss_forward_narrow(void *context, int64_t r, int64_t worker)
{
    gckpti_loss *l = (gckpti_loss *)context;
    float x[GCKPTI_LOSS_CHUNK];
    (void)worker;
    for (int64_t j = 0, n; j < l->v && gckpti_loss_target(l, r) >= 0; j += n) {
        n = gckpti_min(l->v - j, GCKPTI_LOSS_CHUNK);
        l->by.widen(l->x_bf16 + r * l->v + j, x, n);
        gckpti_loss_forward_classes(l, r, x, j, n);
    }
}

/* The gradient of a row's soft targets. */
static void gckpti_loss_soft_row(const gckpti_loss *l, const float *x, float *d, float w,
                                 const gckpti_classes *c)
{
    int accumulate = l->call->in[1].accumulate;
    if (w == 0.0f)
        gckpti_start(d, l->v, accumulate);
    for (int64_t j = 0; j < l->v && !(w == 0.0f); j++)
        gckpti_put_product(&d[j], c->log_sum - (x[j] - c->max), c->scale, accumulate);
}

/* The backward of row r, of n classes from `first` on: d from x, the target's apart. */
static void gckpti_loss_backward_classes(const gckpti_loss *l, int64_t r, const float *x, float *d,
                                         int64_t first, int64_t n)
{
    const float *aux = l->aux + 2 * r;
    float logit = 0.0f, held = 0.0f;
    float w = gckpti_loss_weight(l, r), other = gckpti_loss_smoothing(l) / (float)l->v;
    int64_t target = gckpti_loss_target(l, r), at = target - first;
    int here = !gckpti_loss_soft(l) && at >= 0 && at < n;
    gckpti_classes c = { aux[0], aux[1], NULL, other, 1.0f, 0.0f, l->accumulate };
    c.scale = w * l->call->loss_scale;
    if (gckpti_loss_soft(l) && l->call->in[1].grad)
        gckpti_loss_soft_row(l, x, l->call->in[1].grad + (l->row + r) * l->v, w, &c);
    if (!d || target < 0 || w == 0.0f) {
        if (d)
            gckpti_start(d, n, l->accumulate);
        return;
    }
    if (gckpti_loss_soft(l)) {
        c.targets = l->soft + (l->row + r) * l->v;
        c.mass = gckpti_sum(c.targets, l->v);
    }
    if (here) /* d may be x; what it held the target's own contribution is added to */
        logit = x[at], held = d[at];
    l->by.gradient(x, d, n, &c);
    if (here) {
        d[at] = held;
        gckpti_put_product(&d[at],
                           l->by.exp((logit - aux[0]) - aux[1]) -
                               ((1.0f - gckpti_loss_smoothing(l)) + other),
                           c.scale, l->accumulate);
    }
}

GCKPTI_FN void gckpti_loss_backward_row(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *l = (const gckpti_loss *)context;
    float *d = l->d ? l->d + r * l->n : NULL;
    (void)worker;
    gckpti_loss_backward_classes(l, r, l->x + r * l->n, d, l->first, l->n);
}

/* As above, where logits or their gradient are bf16 (the other may be f32); all their classes. */
static void gckpti_loss_backward_narrow(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *l = (const gckpti_loss *)context;
    float wide[GCKPTI_LOSS_CHUNK], gradient[GCKPTI_LOSS_CHUNK];
    (void)worker;
    for (int64_t j = 0, n; j < l->v; j += n) {
        int64_t at = r * l->v + j;
        n = gckpti_min(l->v - j, GCKPTI_LOSS_CHUNK);
        if (l->x_bf16)
            l->by.widen(l->x_bf16 + at, wide, n);
        if (l->d_bf16 && l->accumulate)
            l->by.widen(l->d_bf16 + at, gradient, n);
        gckpti_loss_backward_classes(l, r, l->x_bf16 ? wide : l->x + at,
                                     l->d_bf16 ? gradient : l->d + at, j, n);
        if (l->d_bf16)
            l->by.narrow(gradient, l->d_bf16 + at, n);
    }
}

/* The gradient of weight k: l is at row 0. */
static void gckpti_loss_weight_item(void *context, int64_t k, int64_t worker)
{
    const gckpti_loss *l = (const gckpti_loss *)context;
    const gckpt_arg *w = &l->call->in[2];
    float lane[32] = { 0.0f };
    (void)worker;
    for (int64_t i = 0; i < l->share; i++) {
        int64_t r = k * l->share + i, target = gckpti_loss_target(l, r);
        const float *x = l->x + r * l->n;
        if (target >= 0)
            lane[i & 31] += gckpti_loss_of(l, r, x, x[target], l->aux[2 * r], l->aux[2 * r + 1]);
    }
    gckpti_put_product(&w->grad[k], gckpti_lanes_sum(lane), l->call->loss_scale, w->accumulate);
}

GCKPTI_FN void gckpti_loss_begin(gckpti_loss *l, int64_t row, int64_t rows)
{
    l->row = row, l->rows = rows, l->counted = 0;
    l->aux = l->call->aux ? (float *)l->call->aux + 2 * row : NULL;
    for (int64_t r = 0; r < rows; r++) {
        l->counted += gckpti_loss_target(l, r) >= 0;
        l->max[r] = l->sum[r] = l->hit[r] = 0.0f; /* of rows left out */
    }
}

/* The losses of the block's rows, and aux for the backward. */
GCKPTI_FN void gckpti_loss_finish(const gckpti_loss *l)
{
    for (int64_t r = 0; r < l->rows; r++) {
        if (gckpti_loss_target(l, r) >= 0)
            gckpti_loss_add(l->call, gckpti_weighted(gckpti_loss_weight(l, r), l->hit[r]), 1);
        if (l->aux)
            l->aux[2 * r] = l->max[r], l->aux[2 * r + 1] = l->sum[r];
    }
}

GCKPTI_FN gckpt_result gckpti_classes_shape(gckpt_call *call, const char *name)
{
    const gckpt_shape *x = &call->in[0].shape, *targets = &call->in[1].shape;
    if (!gckpti_targets_fit(x, targets))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: logits %S, targets %S must be (..,V), (..)",
                          name, x, targets);
    call->aux_bytes = (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->mixes_rows = x->n < 2;
    return gckpti_weights_fit(call, name, targets);
}
static gckpt_result gckpti_cross_entropy_shape(gckpt_call *call)
{
    return gckpti_classes_shape(call, "cross_entropy");
}
GCKPTI_FN void gckpti_cross_entropy_by(const gckpt_call *call, int backward, gckpti_loss_kernels by)
{
    void (*body)(void *context, int64_t i, int64_t worker) =
        backward ? gckpti_loss_backward_row : gckpti_loss_forward_row;
    const gckpt_arg *x = &call->in[0], *w = &call->in[2];
    int64_t v = gckpti_last(&x->shape), rows = gckpti_rows(&x->shape), weights = 0;
    gckpti_loss l;
    memset(&l, 0, offsetof(gckpti_loss, max));
    l.call = call, l.by = by, l.n = l.v = v, l.accumulate = x->accumulate;
    l.targets = call->in[1].index, l.soft = call->in[1].data;
    if (gckpti_has_weights(call)) {
        weights = gckpti_elements(&w->shape);
        l.weights = w->data, l.share = rows / weights;
    }
    if (call->attributes)
        l.smoothing = *(const float *)call->attributes;
    int wanted = !backward || x->grad || x->grad_bf16 || call->in[1].grad;
    if (gckpti_is_narrow(x->bf16) || gckpti_is_narrow(x->grad_bf16))
        body = backward ? gckpti_loss_backward_narrow : gckpti_loss_forward_narrow;
    for (int64_t row = 0; row < rows && wanted; row += GCKPTI_LOSS_ROWS_MOST) {
        gckpti_loss_begin(&l, row, gckpti_min(rows - row, GCKPTI_LOSS_ROWS_MOST));
        l.x = x->data ? x->data + row * v : NULL, l.d = x->grad ? x->grad + row * v : NULL;
        l.x_bf16 = x->bf16 ? x->bf16 + row * v : NULL;
        l.d_bf16 = x->grad_bf16 ? x->grad_bf16 + row * v : NULL;
        by.each(call, l.rows, 16 * v, body, &l);
        if (!backward)
            gckpti_loss_finish(&l);
    }
    if (!backward || !weights || !w->grad)
        return;
    l.row = 0, l.x = x->data, l.aux = (float *)call->aux;
    by.each(call, weights, 4 * v * l.share, gckpti_loss_weight_item, &l);
}

GCKPTI_BOTH_WAYS(cross_entropy,
                 gckpti_cross_entropy_by(call, backward, gckpti_plain_loss(NULL)))
GCKPTI_FN int64_t gckpti_cross_entropy_classes(const gckpt_call *call, int i)
{
    (void)i;
    return gckpti_last(&call->in[0].shape);
}

GCKPTI_ROW_WITH(cross_entropy, GCKPTI_FAST, gckpti_cross_entropy_shape, gckpti_flops_13, NULL,
                gckpti_cross_entropy_classes,
                GCKPT_LOSS | GCKPT_COUNTS_FEEDS | GCKPTI_NARROW | GCKPT_INDEX(1),
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX);
GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets)
{
    gckpt_tensor *in[2] = { logits, targets };
    return gckpt_apply(&gckpti_op_cross_entropy, in, 2, NULL, 0);
}
