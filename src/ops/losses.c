#include "ops/internal.h"

/* ---- cross_entropy: sum over rows of -log softmax(x)[target] ----
 * Classes go through gckpti_online in chunks of 1024; maximum and log of the sum stay separate, so
 * that logits of +-1e4 lose nothing. A row's loss is log(sum) - (x[target] - max), added in double.
 * Rows with target < 0 are ignored. saved (rows,2): max, log(sum); 0, 0 for ignored rows.
 * dx_j = put(p_j - (j == target), scale), scale = loss_scale, p_j = exp((x_j - max) - log(sum));
 * for ignored rows, +0 is stored or nothing added. */
/* ---- losses of elements, each a product a b of factors a and b; count = elements ----
 *   sum_loss              1 x                                    dx = 1
 *   mean_squared_error    d d, d = x - y                         dx = 2 d
 * dy = -dx. A sample's sum is by lanes, lane = fma(a, b, lane); sums of samples are added in
 * double; gradients are put(dx, loss_scale). Weights and other losses: ops/weighted.c. */
/* Fails unless the weights of a loss have the first axes of `all`. */
static gckpt_result gckpti_weights_fit(gckpt_call *call, const char *name, const gckpt_shape *all)
{
    const gckpt_shape *w = &call->in[2].shape;
    int fits = w->n >= 1 && w->n <= all->n;
    for (int i = 0; fits && i < w->n; i++)
        fits = w->d[i] == all->d[i];
    return fits ? GCKPT_OK
                : gckpt_fail(call, GCKPT_E_SHAPE,
                             "%s: weights %S must have the first axes of %S, one or more of them; "
                             "gckpt_reshape takes away axes of size 1",
                             name, w, all);
}

GCKPTI_FN gckpti_element_loss gckpti_element_loss_of(const gckpt_call *call, gckpti_loss_kind kind)
{
    const gckpt_shape *s = &call->in[0].shape;
    gckpti_element_loss e = { call, kind, gckpti_elements(s), 1, call->in[0].data, NULL, NULL, 0 };
    e.y = call->inputs > 1 ? call->in[1].data : NULL;
    if (gckpti_has_weights(call)) {
        e.weights = call->in[2].data;
        e.per_weight = e.n / gckpti_elements(&call->in[2].shape);
    }
    e.n /= s->n ? s->d[0] : 1;
    if (call->attributes)
        e.delta = *(const float *)call->attributes;
    return e;
}

/* ---- rows of losses over classes ---- */

/* Returns the target of row r of the block (if < 0, ignored), or 0 if there are no targets. */
static int64_t gckpti_loss_target(const gckpti_loss *loss, int64_t r)
{
    return loss->targets ? loss->targets[loss->row + r] : 0;
}

/* Returns the unweighted loss of row r, whose target has this logit. */
static float gckpti_loss_of_row(const gckpti_loss *loss, int64_t r, float logit, float max,
                                float log_sum)
{
    const float nll = log_sum - (logit - max);
    if (gckpti_loss_reads_all(loss)) {
        const float *t = loss->soft ? loss->soft + (loss->row + r) * loss->v : NULL;
        const gckpti_class_row c = { max, log_sum, t, 0.0f, 0.0f, 0.0f, 0, 0.0f, 0.0f, -1 };
        const float *x = gckpti_f32(loss->x) + (loss->begin + r) * loss->n,
                    smoothing = loss->e.delta;
        const float sum = loss->classes->surprisal(x, loss->v, &c);
        return t ? sum
                 : gckpti_fma(smoothing / (float)loss->v, sum, gckpti_mul(1.0f - smoothing, nll));
    }
    return (void)loss, (void)r, nll;
}

GCKPTI_FN void gckpti_loss_forward_row(void *context, int64_t r, int64_t worker)
{
    gckpti_loss *loss = (gckpti_loss *)context;
    const int64_t target = gckpti_loss_target(loss, r), at = target - loss->first;
    const int64_t begin = (loss->begin + r) * loss->n;
    float wide[GCKPTI_SCRATCH(GCKPTI_LOSS_CHUNK)];
    (void)worker;
    if (target < 0) {
        loss->max[r] = loss->sum[r] = 0.0f;
        return;
    }
    for (int64_t j = 0, n; j < loss->n; j += n) {
        n = gckpti_min(loss->n - j, GCKPTI_LOSS_CHUNK);
        const float *x = gckpti_read(loss->call, loss->x, begin + j, n, wide);
        loss->classes->online(x, NULL, n, loss->first + j == 0, &loss->max[r],
                                      &loss->sum[r]);
        if ((uint64_t)(at - j) < (uint64_t)n)
            loss->value[r] = x[at - j];
    }
    if (loss->first + loss->n < loss->v)
        return;
    gckpti_softmax_end(&loss->max[r], &loss->sum[r]);
    loss->sum[r] = loss->classes->log(loss->sum[r]);
    loss->value[r] = gckpti_loss_of_row(loss, r, loss->value[r], loss->max[r], loss->sum[r]);
}

#if GCKPTI_HAS_FAST
/* Computes the forward of GCKPTI_FEW_ROWS rows of at most GCKPTI_FEW_CLASSES logits. */
static void gckpti_few_classes_item(void *context, int64_t i, int64_t worker)
{
    gckpti_loss *loss = (gckpti_loss *)context;
    const int64_t first = i * GCKPTI_FEW_ROWS, n = loss->n;
    const int64_t rows = gckpti_min(loss->rows - first, GCKPTI_FEW_ROWS);
    const float *x = gckpti_f32(loss->x) + (loss->begin + first) * n;
    (void)worker;
    gckpti_kernels_of(loss->call)->few_classes(x, rows, n, loss->max + first, loss->sum + first);
    for (int64_t r = first; r < first + rows; r++, x += n) {
        const int64_t target = gckpti_loss_target(loss, r);
        if (target < 0)
            loss->max[r] = loss->sum[r] = 0.0f;
        else
            loss->value[r] = gckpti_loss_of_row(loss, r, x[target], loss->max[r], loss->sum[r]);
    }
}
#endif

static void gckpti_soft_targets_grad(const gckpti_loss *loss, const float *x, float *d, float w,
                                     const gckpti_class_row *c)
{
    int accumulate = loss->call->in[1].accumulate;
    if (w == 0.0f)
        gckpti_zero_unless(d, loss->v, accumulate);
    for (int64_t j = 0; j < loss->v && !(w == 0.0f); j++)
        gckpti_put_product(&d[j], c->log_sum - (x[j] - c->max), c->scale, accumulate);
}

/* Computes row r's gradient: n classes at once or, if logits or gradient are narrow, in chunks. */
GCKPTI_FN void gckpti_loss_backward_row(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *loss = (const gckpti_loss *)context;
    const int64_t target = gckpti_loss_target(loss, r), begin = (loss->begin + r) * loss->n;
    const int narrow = gckpti_halves(loss->x) || gckpti_halves(loss->d);
    const int64_t most = narrow ? (int64_t)GCKPTI_LOSS_CHUNK : loss->n;
    const float *saved = loss->saved + 2 * r;
    float w = 1.0f, wide[GCKPTI_SCRATCH(GCKPTI_LOSS_CHUNK)],
          gradient[GCKPTI_SCRATCH(GCKPTI_LOSS_CHUNK)];
    gckpti_class_row c = { saved[0], saved[1], NULL, 0.0f, 1.0f, 0.0f, 0, loss->cap, 0.0f, -1 };
    c.uniform = loss->e.delta / (float)loss->v, c.target = c.uniform + (1.0f - loss->e.delta);
    if (gckpti_has_weights(loss->call))
        w = gckpti_element_weight(&loss->e, loss->row + r);
    c.scale = w * loss->call->loss_scale, c.accumulate = loss->accumulate;
    (void)worker;
    if (gckpti_loss_soft(loss)) {
        const int64_t at = (loss->row + r) * loss->v;
        float *dt = loss->call->in[1].grad;
        c.targets = loss->soft + at;
        c.target_sum =
            w == 0.0f ? 0.0f : gckpti_sum_from(c.targets, loss->v, 0.0f); /* not read if w = 0 */
        if (dt)
            gckpti_soft_targets_grad(loss, gckpti_f32(loss->x) + begin, dt + at, w, &c);
    }
    for (int64_t j = 0, n; j < loss->n && gckpti_is_set(loss->d); j += n) {
        n = gckpti_min(loss->n - j, most);
        float *d = gckpti_open(loss->call, loss->d, begin + j, n, loss->accumulate, gradient);
        c.at = gckpti_loss_soft(loss) ? -1 : target - loss->first - j;
        if (target < 0 || w == 0.0f)
            gckpti_zero_unless(d, n, loss->accumulate);
        else
            loss->classes->gradient(gckpti_read(loss->call, loss->x, begin + j, n, wide), d, n, &c);
        gckpti_close(loss->call, loss->d, begin + j, n, d);
    }
}

/* ---- all losses: blocks of rows ---- */
static void gckpti_element_loss_row(void *context, int64_t r, int64_t worker)
{
    gckpti_loss *loss = (gckpti_loss *)context;
    (void)worker;
    if (loss->backward)
        loss->element->gradients(&loss->e, loss->row + r);
    else
        loss->value[r] = loss->element->sum(&loss->e, loss->row + r);
}

/* Computes the gradient of weight k, the sum of the losses it multiplies; the block is all rows. */
static void gckpti_loss_weight_item(void *context, int64_t k, int64_t worker)
{
    const gckpti_loss *loss = (const gckpti_loss *)context;
    const gckpt_arg *w = &loss->call->in[2];
    gckpti_element_loss e = loss->e;
    float lane[32] = { 0.0f }, sum = 0.0f;
    (void)worker;
    e.n = e.per_weight, e.weights = NULL;
    if (e.kind != GCKPTI_LOSS_CLASSES)
        sum = loss->element->sum(&e, k);
    for (int64_t i = 0, r = k * e.n; i < e.n && e.kind == GCKPTI_LOSS_CLASSES; i++, r++) {
        const int64_t target = gckpti_loss_target(loss, r);
        if (target >= 0)
            lane[i & 31] += gckpti_loss_of_row(loss, r, gckpti_f32(loss->x)[r * loss->n + target],
                                               loss->saved[2 * r], loss->saved[2 * r + 1]);
    }
    gckpti_put_product(&w->grad[k], sum + gckpti_lanes_sum(lane), loss->call->loss_scale,
                       w->accumulate);
}

GCKPTI_FN void gckpti_loss_begin_block(gckpti_loss *loss, int64_t row, int64_t rows)
{
    loss->row = row, loss->rows = rows, loss->counted = loss->targets ? 0 : rows;
    loss->saved = loss->call->saved ? (float *)loss->call->saved + 2 * row : NULL;
    for (int64_t r = 0; loss->targets && r < rows; r++)
        loss->counted += gckpti_loss_target(loss, r) >= 0;
}

/* Adds the losses of the block's rows, value[], to the call's sum, and writes `saved`. */
GCKPTI_FN void gckpti_loss_finish_block(const gckpti_loss *loss)
{
    const gckpt_call *call = loss->call;
    for (int64_t r = 0; call->loss_sum && r < loss->rows; r++) {
        float value = loss->value[r];
        if (gckpti_has_weights(call) && loss->e.kind == GCKPTI_LOSS_CLASSES)
            value = gckpti_weighted(gckpti_element_weight(&loss->e, loss->row + r), value);
        if (gckpti_loss_target(loss, r) >= 0)
            *call->loss_sum += (double)value;
    }
    if (call->loss_count)
        *call->loss_count +=
            loss->e.kind == GCKPTI_LOSS_CLASSES ? loss->counted : loss->rows * loss->n;
    for (int64_t r = 0; loss->saved && r < loss->rows; r++)
        loss->saved[2 * r] = loss->max[r], loss->saved[2 * r + 1] = loss->sum[r];
}

/* Runs each row, block by block; in a backward, then computes the weights' gradient. */
GCKPTI_FN void gckpti_run_loss(const gckpt_call *call, int backward, gckpti_loss_kind kind,
                               const gckpti_element_kernels *element,
                               const gckpti_class_kernels *classes)
{
    const gckpt_arg *x = &call->in[0], *y = &call->in[1];
    const int wanted = !backward || gckpti_is_set(gckpti_arg_gradient(x)) || y->grad;
    void (*row_item)(void *context, int64_t i, int64_t worker) = gckpti_element_loss_row;
    gckpti_loss loss;
    memset(&loss, 0, offsetof(gckpti_loss, max));
    loss.call = call, loss.backward = backward, loss.element = element, loss.classes = classes;
    loss.e = gckpti_element_loss_of(call, kind), loss.n = loss.e.n;
    int64_t rows = gckpti_elements(&x->shape) / loss.n;
    if (classes) {
        row_item = backward ? gckpti_loss_backward_row : gckpti_loss_forward_row;
        loss.n = loss.v = gckpti_last(&x->shape), rows = gckpti_rows(&x->shape);
        loss.e.per_weight /= loss.v, loss.accumulate = x->accumulate;
        loss.targets = y->index, loss.soft = y->data;
        loss.x = gckpti_arg_values(x), loss.d = gckpti_arg_gradient(x);
    }
    const int64_t most = backward ? rows : (int64_t)GCKPTI_LOSS_MAX_ROWS;
    for (int64_t row = 0; row < rows; row += most) {
        gckpti_loss_begin_block(&loss, row, gckpti_min(rows - row, most));
        loss.begin = row;
#if GCKPTI_HAS_FAST
        if (classes && !backward && call->kernels && loss.n <= GCKPTI_FEW_CLASSES &&
            !gckpti_halves(loss.x))
            gckpt_parallel(call, (loss.rows - 1) / GCKPTI_FEW_ROWS + 1,
                           16 * loss.n * GCKPTI_FEW_ROWS, gckpti_few_classes_item, &loss);
        else
#endif
            if (wanted)
            gckpt_parallel(call, loss.rows, 16 * loss.n, row_item, &loss);
        if (!backward)
            gckpti_loss_finish_block(&loss);
    }
    if (gckpti_has_weights(call) && backward && call->in[2].grad)
        gckpt_parallel(call, gckpti_elements(&call->in[2].shape),
                       (classes ? 4 * loss.n : 16) * loss.e.per_weight, gckpti_loss_weight_item,
                       &loss);
}

GCKPTI_FN gckpt_result gckpti_targets_fail(gckpt_call *call, const char *name,
                                           const gckpt_shape *targets, const gckpt_shape *expected,
                                           const char *input, const gckpt_shape *x)
{
    const int alike =
        targets->n != expected->n && gckpti_elements(targets) == gckpti_elements(expected);
    return gckpt_fail(call, GCKPT_E_SHAPE, "%s: targets %S must be %S for %s %S: %s", name, targets,
                      expected, input, x, alike ? "use gckpt_reshape" : "declare and feed them so");
}

GCKPTI_FN gckpt_result gckpti_classes_shape(gckpt_call *call, const char *name, int soft)
{
    const gckpt_shape *x = &call->in[0].shape, *targets = &call->in[1].shape;
    gckpt_shape rows = *x;
    rows.n--;
    if (x->n < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: logits %S must be (..,V)", name, x);
    if (!gckpti_same_shape(soft ? x : &rows, targets))
        return gckpti_targets_fail(call, name, targets, soft ? x : &rows, "logits", x);
    call->saved_bytes = (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->mixes_rows = x->n < 2;
    call->elements_per_count = soft ? gckpti_last(x) : 0;
    if (gckpti_has_weights(call))
        return gckpti_weights_fit(call, name, &rows);
    return GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_element_loss_shape(gckpt_call *call, const char *name)
{
    const gckpt_shape *x = &call->in[0].shape, *y = &call->in[1].shape;
    if (call->inputs > 1 && !gckpti_same_shape(x, y))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: prediction %S, target %S differ", name, x, y);
    if (gckpti_has_weights(call))
        return gckpti_weights_fit(call, name, x);
    return GCKPT_OK;
}

static gckpt_result gckpti_cross_entropy_shape(gckpt_call *call)
{
    return gckpti_classes_shape(call, "cross_entropy", 0);
}
GCKPTI_FN int64_t gckpti_cross_entropy_classes(const gckpt_call *call, int i)
{
    (void)i;
    return gckpti_last(&call->in[0].shape);
}

GCKPTI_OP_KERNELS(cross_entropy, GCKPTI_RUN_CLASSES(call, backward))
GCKPTI_DESC_WITH(cross_entropy, gckpti_cross_entropy_shape, gckpti_flops_13, NULL,
                 gckpti_cross_entropy_classes,
                 GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS | GCKPTI_TAKES_ALL_BF16 | GCKPT_INDEX(1),
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED);

GCKPTI_ELEMENT_LOSS(sum_loss, GCKPTI_LOSS_SUM, gckpti_flops_1, 0);
GCKPTI_ELEMENT_LOSS(mean_squared_error, GCKPTI_LOSS_SQUARED, gckpti_flops_3, GCKPTI_READS_XY(0),
                    GCKPTI_READS_XY(0));
GCKPTI_BUILDER_0(sum_loss)
