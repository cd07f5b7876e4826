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
