/* Sums losses as one binary64 chain over rows (5e), by a thread. Adds `each` to *count for each row
 * except those with an ignored target. */
__global__ void loss_sum_kernel(const float *losses, const int32_t *target, int64_t rows,
                                int64_t each, double *sum, int64_t *count)
{
    double total = sum ? *sum : 0.0;
    int64_t counted = 0;
    const auto read = [&](int64_t r, float *v) {
        v[0] = losses[r], v[1] = target ? gckpti_float((uint32_t)target[r]) : 0.0f;
    };
    add_terms(rows, read, [&](const float *v) {
        total += (double)v[0], counted += (int32_t)gckpti_bits(v[1]) >= 0;
    });
    if (sum)
        *sum = total;
    if (count)
        *count += counted * each;
}

/* Adds `rows` losses in device memory to the call's sum and count, each of which may be NULL. */
void add_losses(const gckpt_call *call, const float *losses, const int32_t *target, int64_t rows,
                int64_t each)
{
    if (call->loss_sum || call->loss_count)
        run<loss_sum_kernel>(call, 1, 1, 0, losses, target, rows, each, call->loss_sum,
                             call->loss_count);
}

/* Returns the number of a loss's rows: the size of axis 0. */
int64_t loss_rows(const gckpt_call *call)
{
    return call->in[0].shape.n ? call->in[0].shape.d[0] : 1;
}

/* ---- losses over elements, perhaps with targets y and weights; sum_loss backward has no x ---- */
template <gckpti_loss_kind KIND>
__device__ void element_loss_of_row(int64_t r, const gckpti_element_loss &e, float *losses)
{
    gckpti_store_n_warp(losses + r, gckpti_element_loss_forward_of_warp(&e, KIND, r), 1);
}

/* Computes the gradient of weight k from the sum of the losses that it multiplies. */
template <gckpti_loss_kind KIND>
__device__ void weight_gradient(int64_t k, const gckpti_element_loss &losses,
                                const gckpt_arg &weights, const StepParams *params)
{
    const float sum = gckpti_element_loss_forward_of_warp(&losses, KIND, k);
    gckpti_put_product_n_warp(weights.grad + k, sum, params->loss_scale, weights.accumulate, 1);
}

__device__ void element_loss_gradients_at(int64_t i, const gckpti_element_loss &e,
                                          const gckpt_arg &x, const gckpt_arg &y,
                                          const StepParams *params)
{
    const float w = gckpti_element_weight(&e, i), value = e.x ? e.x[i] : 0.0f;
    float d = gckpti_element_deriv(e.kind, value, e.y ? e.y[i] : 0.0f, e.delta);
    if (x.grad)
        gckpti_put_product(&x.grad[i], gckpti_weighted(w, d), params->loss_scale, x.accumulate);
    if (e.kind == GCKPTI_LOSS_BINARY)
        d = value;
    if (y.grad)
        gckpti_put_product(&y.grad[i], gckpti_weighted(w, -d), params->loss_scale, y.accumulate);
}

int64_t element_loss_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 0 : loss_rows(call);
}

template <gckpti_loss_kind KIND> void element_loss_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &x = call->in[0], &y = call->in[1], &weights = call->in[2];
    const int64_t n = gckpti_elements(&x.shape), rows = loss_rows(call);
    float *losses = (float *)call->workspace;
    gckpti_element_loss e = gckpti_element_loss_of(call, KIND);
    if (!backward && call->loss_sum)
        for_each_row<element_loss_of_row<KIND>>(call, rows, e, losses);
    if (!backward)
        return add_losses(call, losses, NULL, rows, n / rows);
    if (x.grad || y.grad)
        for_each<element_loss_gradients_at>(call, n, e, x, y, params_of(call));
    e.n = e.per_weight, e.weights = NULL;
    if (weights.grad)
        for_each_row<weight_gradient<KIND>>(call, n / e.n, e, weights, params_of(call));
}

/* ---- losses over classes ---- */
/* Some rows and classes of a loss over classes, such as cross-entropy. */
struct Classes {
    const float *x;              /* (rows,n): logits of classes first..first+n-1 of `classes` */
    const int32_t *target;       /* (rows); NULL for soft targets */
    const float *soft, *weights; /* targets (rows,n) or NULL; weights, one for per_weight rows */
    float *saved;                  /* (rows,2): max, log(sum); NULL in a forward: not required */
    float *losses, *state; /* loss of each row; (rows,3): max, sum, target's logit so far */
    int64_t rows, first, n, classes, per_weight;
    float smoothing, cap; /* cap: the soft cap applied to the logits, or 0 */
    float *dx, *dt;       /* gradients of x, which may be x, and of soft targets, or NULL */
    int x_accumulate, t_accumulate;
};

Classes classes_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *targets = &call->in[1], *w = &call->in[2];
    Classes l = { x->data, targets->index, targets->data, w->data };
    l.saved = (float *)call->saved, l.losses = (float *)call->workspace;
    l.rows = gckpti_rows(&x->shape), l.n = l.classes = gckpti_last(&x->shape);
    l.per_weight = call->inputs == 3 ? l.rows / gckpti_elements(&w->shape) : 1;
    l.smoothing = call->attributes ? *(const float *)call->attributes : 0.0f;
    l.dx = x->grad, l.dt = targets->grad;
    l.x_accumulate = x->accumulate, l.t_accumulate = targets->accumulate;
    return l;
}

__device__ float weight_of(const Classes &l, int64_t r)
{
    return l.weights ? l.weights[r / l.per_weight] : 1.0f;
}

/* Returns the loss of row r before weighting, as gckpti_loss_of_row; logit: the target's logit. A
 * row with an ignored target gives -0, which changes no sum. */
__device__ float class_loss(const Classes &l, int64_t r, float max, float log_sum, float logit)
{
    const gckpti_class_row row = { max, log_sum, l.soft ? l.soft + r * l.n : NULL };
    const float loss = log_sum - (logit - max);
    if (!l.soft && l.target[r] < 0)
        return -0.0f;
    if (!l.soft && !(l.smoothing > 0.0f))
        return loss;
    const float sum = gckpti_surprisal_warp(l.x + r * l.n, l.n, &row);
    return l.soft ? sum
                  : gckpti_fma(l.smoothing / (float)l.n, sum, gckpti_mul(1.0f - l.smoothing, loss));
}

__device__ void loss_of_row(int64_t r, const Classes &l)
{
    const int lane = (int)threadIdx.x % 32;
    const float *x = l.x + r * l.n;
    const int64_t target = l.target ? l.target[r] : 0, at = target - l.first;
    float *state = l.state + 3 * r, max = 0.0f, sum = 1.0f, logit = 0.0f;
    if (l.first > 0)
        max = state[0], sum = state[1], logit = state[2];
    __syncwarp();
    for (int64_t j = 0; target >= 0 && j < l.n; j += GCKPTI_LOSS_CHUNK)
        gckpti_online_warp(x + j, NULL, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), l.first + j == 0,
                           &max, &sum);
    if (target >= 0 && at >= 0 && at < l.n)
        logit = x[at];
    if (l.first + l.n < l.classes) {
        if (lane < 3)
            state[lane] = lane == 0 ? max : lane == 1 ? sum : logit;
        return;
    }
    gckpti_softmax_end(&max, &sum);
    const float log_sum = gckpti_log(sum), loss = class_loss(l, r, max, log_sum, logit);
    if (lane == 0)
        l.losses[r] = target < 0 ? loss : gckpti_weighted(weight_of(l, r), loss);
    if (l.saved && lane < 2)
        l.saved[2 * r + lane] = lane == 0 ? max : log_sum;
}

/* Computes the unweighted loss of row r from its saved maximum and sum. */
__device__ void saved_loss_of_row(int64_t r, const Classes &l)
{
    const int64_t target = l.target ? l.target[r] : 0;
    const float logit = target < 0 ? 0.0f : l.x[r * l.n + target];
    const float loss = class_loss(l, r, l.saved[2 * r], l.saved[2 * r + 1], logit);
    gckpti_store_n_warp(l.losses + r, loss, 1);
}

/* Computes dx or, if SOFT, dx and dt, of which one may be NULL. Rows that do not count have 0. */
template <bool SOFT>
__device__ void loss_gradients_of_row(int64_t r, const Classes &l, const StepParams *params)
{
    enum { AT_ONCE = 4 };
    const float p_off = l.smoothing / (float)l.n, p_on = 1.0f - l.smoothing + p_off;
    const float w = weight_of(l, r), scale = w * params->loss_scale;
    const int64_t begin = r * l.n, end = begin + l.n, first = begin + threadIdx.x % 32;
    const int64_t target = SOFT ? 0 : begin + l.target[r] - l.first;
    if (w == 0.0f || (!SOFT && l.target[r] < 0)) {
        for (int64_t i = first; i < end && l.dx && !l.x_accumulate; i += 32)
            l.dx[i] = 0.0f;
        for (int64_t i = first; SOFT && i < end && l.dt && !l.t_accumulate; i += 32)
            l.dt[i] = 0.0f;
        return;
    }
    const float max = l.saved[2 * r], log_sum = l.saved[2 * r + 1];
    float mass = 1.0f;
    if (SOFT)
        mass = gckpti_sum_from_warp(l.soft + begin, l.n, 0.0f);
    for (int64_t i = first; i < end; i += 32 * AT_ONCE) {
        float x[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) /* dx may be x */
            x[k] = i + 32 * k < end ? l.x[i + 32 * k] : 0.0f;
        for (int k = 0; k < AT_ONCE && i + 32 * k < end; k++) {
            const int64_t at = i + 32 * k;
            const float t = SOFT ? l.soft[at] : at == target ? p_on : p_off, y = x[k] - max;
            float p = gckpti_fma(gckpti_exp(y - log_sum), mass, -t);
            if (l.cap > 0.0f)
                p *= gckpti_softcap_deriv(x[k], 1.0f / l.cap);
            if (!SOFT || l.dx)
                gckpti_put_product(&l.dx[at], p, scale, l.x_accumulate);
            if (SOFT && l.dt)
                gckpti_put_product(&l.dt[at], log_sum - y, scale, l.t_accumulate);
        }
    }
}

int64_t cross_entropy_workspace(const gckpt_call *call, bool backward)
{
    return !backward || call->inputs == 3 ? gckpti_rows(&call->in[0].shape) : 0;
}

void cross_entropy_by(const gckpt_call *call, bool backward)
{
    Classes l = classes_of(call);
    if (!backward) {
        for_each_row<loss_of_row>(call, l.rows, l);
        return add_losses(call, l.losses, l.target, l.rows, 1);
    }
    if (l.soft && (l.dx || l.dt))
        for_each_row<loss_gradients_of_row<true>>(call, l.rows, l, params_of(call));
    else if (l.dx)
        for_each_row<loss_gradients_of_row<false>>(call, l.rows, l, params_of(call));
    if (!call->in[2].grad)
        return;
    for_each_row<saved_loss_of_row>(call, l.rows, l);
    const gckpti_element_loss sums = { NULL, GCKPTI_LOSS_SUM, l.per_weight, 1, l.losses };
    for_each_row<weight_gradient<GCKPTI_LOSS_SUM>>(call, l.rows / l.per_weight, sums, call->in[2],
                                                   params_of(call));
}
