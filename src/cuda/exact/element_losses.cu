/* Sums losses as one binary64 chain over rows (5e). All lanes of the only warp add the same terms,
 * while they read the next rows. Adds `each` to *count for each row except those with an ignored
 * target. */
__global__ void loss_sum_kernel(const float *losses, const int32_t *target, int64_t rows,
                                int64_t each, double *sum, int64_t *count)
{
    enum { AHEAD = 8, STEP = 32 * AHEAD };
    double total = sum ? *sum : 0.0;
    int counted = 0;
    float x[AHEAD], next[AHEAD] = {};
    for (int64_t first = -STEP; first < rows; first += STEP) {
        UNROLLED(k, AHEAD) {
            const int64_t r = first + STEP + 32 * k + threadIdx.x;
            counted += r < rows && (!target || target[r] >= 0);
            x[k] = next[k], next[k] = r < rows ? losses[r] : -0.0f; /* which changes no sum */
        }
        UNROLL for (int k = 0; k < AHEAD && first >= 0; k++)
            for (int lane = 0; lane < 32; lane++)
                total += (double)__shfl_sync(0xffffffffu, x[k], lane);
    }
    for (int h = 16; h; h /= 2)
        counted += __shfl_xor_sync(0xffffffffu, counted, h);
    if (threadIdx.x == 0 && sum)
        *sum = total;
    if (threadIdx.x == 0 && count)
        *count += counted * each;
}

/* Adds `rows` losses in device memory to the call's sum and count, each of which may be NULL. */
void add_losses(const gckpt_call *call, const float *losses, const int32_t *target, int64_t rows,
                int64_t each)
{
    if (call->loss_sum || call->loss_count)
        run<loss_sum_kernel>(call, 1, 32, 0, losses, target, rows, each, call->loss_sum,
            call->loss_count);
}

/* Returns the number of a loss's rows: the size of axis 0. */
int64_t loss_rows(const gckpt_call *call)
{
    return call->in[0].shape.n ? call->in[0].shape.d[0] : 1;
}

/* d = loss_scale * x */
struct ByLossScale {
    const StepParams *params;
    __device__ void operator()(float *d, float x, float, float, int accumulate) const
    {
        gckpti_put_product(d, x, params->loss_scale, accumulate);
    }
};

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

/* Computes the gradient of weights from the sums of the losses that each weight multiplies. */
void weights_gradient(const gckpt_call *call, const float *sums)
{
    map_gradient(call, call->in[2], ByLossScale{ params_of(call) }, { sums, NULL }, NONE);
}

/* Forward: a float for each row; backward: one for each weight. */
int64_t element_loss_workspace(const gckpt_call *call, bool backward)
{
    const gckpt_shape *weights = &call->in[2].shape;
    return !backward ? loss_rows(call) : call->inputs == 3 ? gckpti_elements(weights) : 0;
}

template <gckpti_loss_kind KIND> void element_loss_by(const gckpt_call *call, bool backward)
{
    ElementLoss f = { gckpti_element_loss_of(call, KIND) };
    const gckpt_arg *x = &call->in[0], *y = &call->in[1];
    int64_t n = gckpti_elements(&x->shape), per_weight = f.e.per_weight, rows = loss_rows(call);
    float *sums = (float *)call->workspace;
    if (!backward && call->loss_sum)
        row_sums(call, f, sums, rows, n / rows, 1.0f);
    if (!backward)
        return add_losses(call, sums, NULL, rows, n / rows);
    if (x->grad || y->grad)
        for_each<element_loss_gradients_at>(call, n, f.e, x->grad, y->grad, params_of(call),
                                            x->accumulate, y->accumulate);
    if (!call->in[2].grad)
        return;
    f.e.weights = NULL;
    row_sums(call, f, sums, n / per_weight, per_weight, 1.0f);
    weights_gradient(call, sums);
}

