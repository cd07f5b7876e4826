/* ---- cross_entropy_with, soft_cross_entropy ---- */
struct Classes {
    const float *x, *soft, *weights; /* (rows,n), targets (rows,n), one for each `share` rows */
    const int32_t *target;           /* of the soft ones NULL */
    float *aux, *losses;
    int64_t rows, n, share;
    float smoothing;
};

Classes classes_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *targets = &call->in[1], *w = &call->in[2];
    Classes l = { x->data, targets->data, w->data, targets->index, (float *)call->aux,
                  (float *)call->work, gckpti_rows(&x->shape), gckpti_last(&x->shape), 1, 0.0f };
    l.share = call->inputs == 3 ? l.rows / gckpti_elements(&w->shape) : 1;
    l.smoothing = call->attributes ? *(const float *)call->attributes : 0.0f;
    return l;
}

__device__ float weight_of(const Classes &l, int64_t r)
{
    return l.weights ? l.weights[r / l.share] : 1.0f;
}

/* The loss of row r before its weight, as gckpti_loss_of; of one that is left out -0. */
__device__ float class_loss(const Classes &l, int64_t r, float max, float log_sum)
{
    const float *x = l.x + r * l.n, *soft = l.soft ? l.soft + r * l.n : NULL;
    float sum = 0.0f, loss = 0.0f;
    if (!soft && l.target[r] < 0)
        return -0.0f;
    for (int64_t i = threadIdx.x % 32; (soft || l.smoothing > 0.0f) && i < l.n; i += 32) {
        float s = log_sum - (x[i] - max), t = soft ? soft[i] : 1.0f;
        sum = t > 0.0f || t < 0.0f ? gckpti_fma(t, s, sum) : sum + t;
    }
    sum = warp_sum(sum);
    if (soft)
        return sum;
    loss = log_sum - (x[l.target[r]] - max);
    return l.smoothing > 0.0f ? gckpti_fma(l.smoothing / (float)l.n, sum,
                                           gckpti_mul(1.0f - l.smoothing, loss))
                              : loss;
}

__global__ void classes_forward_kernel(Classes l)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, l.rows)) {
        const bool out = l.target && l.target[r] < 0;
        float max = 0.0f, sum = 1.0f;
        for (int64_t j = 0; !out && j < l.n; j += GCKPTI_LOSS_CHUNK)
            online_chunk(l.x + r * l.n + j, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), j == 0, &max,
                         &sum);
        gckpti_softmax_end(&max, &sum);
        const float log_sum = gckpti_log(sum), loss = class_loss(l, r, max, log_sum);
        if (lane == 0)
            l.losses[r] = out ? loss : gckpti_weighted(weight_of(l, r), loss);
        if (l.aux && lane < 2)
            l.aux[2 * r + lane] = lane == 0 ? max : log_sum;
    }
}

/* dx and dt, the gradient of soft targets, may be NULL. */
__global__ void classes_backward_kernel(Classes l, float *dx, float *dt, const Moment *moment,
                                        int x_accumulate, int t_accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    const float other = l.smoothing / (float)l.n, own = 1.0f - l.smoothing + other;
    for (EACH_ROW(r, l.rows)) {
        const float w = weight_of(l, r), scale = w * moment->loss_scale;
        const int64_t target = l.target ? l.target[r] : 0;
        const bool out = target < 0 || w == 0.0f;
        const float max = l.aux[2 * r], log_sum = l.aux[2 * r + 1];
        float mass = 0.0f;
        for (int64_t i = r * l.n + lane; l.soft && !out && i < r * l.n + l.n; i += 32)
            mass += l.soft[i];
        mass = l.soft ? warp_sum(mass) : 1.0f;
        for (int64_t k = lane, i = r * l.n + lane; k < l.n; k += 32, i += 32) {
            const float x = out ? 0.0f : l.x[i] - max;
            const float t = l.soft ? l.soft[i] : k == target ? own : other;
            if (out && dx && !x_accumulate)
                dx[i] = 0.0f;
            if (out && dt && !t_accumulate)
                dt[i] = 0.0f;
            if (!out && dx)
                gckpti_put_product(&dx[i], gckpti_fma(gckpti_exp(x - log_sum), mass, -t), scale,
                                   x_accumulate);
            if (!out && dt)
                gckpti_put_product(&dt[i], log_sum - x, scale, t_accumulate);
        }
    }
}

__global__ void class_losses_kernel(Classes l)
{
    for (EACH_ROW(r, l.rows)) {
        float loss = class_loss(l, r, l.aux[2 * r], l.aux[2 * r + 1]);
        if (threadIdx.x % 32 == 0)
            l.losses[r] = loss;
    }
}

void cross_entropy_with_forward(const gckpt_call *call)
{
    Classes l = classes_of(call);
    RUN(call, classes_forward_kernel, blocks_for(32 * l.rows, 256), 256, 0, l);
    add_losses(call, l.losses, l.target, l.rows, 1);
}

/* work: a float a row and one a weight. */
void cross_entropy_with_backward(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *targets = &call->in[1];
    const dim3 grid = blocks_for(32 * gckpti_rows(&x->shape), 256);
    Classes l = classes_of(call);
    if (x->grad || targets->grad)
        RUN(call, classes_backward_kernel, grid, 256, 0, l, x->grad, targets->grad,
            moment_of(call), x->accumulate, targets->accumulate);
    if (!call->in[2].grad)
        return;
    RUN(call, class_losses_kernel, grid, 256, 0, l);
    row_sums(call, Plain{ l.losses }, l.losses + l.rows, l.rows / l.share, l.share, 1.0f);
    weights_gradient(call, l.losses + l.rows);
}

void soft_cross_entropy_forward(const gckpt_call *call) { cross_entropy_with_forward(call); }
void soft_cross_entropy_backward(const gckpt_call *call) { cross_entropy_with_backward(call); }
