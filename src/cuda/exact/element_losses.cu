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
__device__ void element_loss_gradients_at(int64_t i, const gckpti_element_loss &e, float *dx,
                                          float *dy, const StepParams *params, int x_accumulate,
                                          int y_accumulate)
{
    float w = gckpti_element_weight(&e, i), x = e.x ? e.x[i] : 0.0f;
    float d = gckpti_element_deriv(e.kind, x, e.y ? e.y[i] : 0.0f, e.delta);
    if (dx)
        gckpti_put_product(&dx[i], gckpti_weighted(w, d), params->loss_scale, x_accumulate);
    if (e.kind == GCKPTI_LOSS_BINARY)
        d = x;
    if (dy)
        gckpti_put_product(&dy[i], gckpti_weighted(w, -d), params->loss_scale, y_accumulate);
}

int64_t element_loss_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 0 : loss_rows(call);
}

template <gckpti_loss_kind KIND> void element_loss_by(const gckpt_call *call, bool backward)
{
    const ElementLoss<KIND, true> weighted = { gckpti_element_loss_of(call, KIND) };
    const ElementLoss<KIND, false> plain = { weighted.e };
    const gckpt_arg *x = &call->in[0], *y = &call->in[1], *weights = &call->in[2];
    const int64_t n = gckpti_elements(&x->shape), each = plain.e.per_weight, rows = loss_rows(call);
    float *losses = (float *)call->workspace;
    if (!backward && call->loss_sum && plain.e.weights)
        for_each_row<sum_of_row<decltype(weighted)>>(call, rows, weighted, losses, n / rows, 1.0f);
    else if (!backward && call->loss_sum)
        for_each_row<sum_of_row<decltype(plain)>>(call, rows, plain, losses, n / rows, 1.0f);
    if (!backward)
        return add_losses(call, losses, NULL, rows, n / rows);
    if (x->grad || y->grad)
        for_each<element_loss_gradients_at>(call, n, plain.e, x->grad, y->grad, params_of(call),
                                            x->accumulate, y->accumulate);
    if (weights->grad)
        for_each_row<weight_gradient<decltype(plain)>>(call, n / each, plain, *weights, each,
                                                       params_of(call));
}
