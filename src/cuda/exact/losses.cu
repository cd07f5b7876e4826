/* The next chunk of a row's classes, n <= 1024 of them, as gckpti_online without p; they stay in
 * registers. Places behind the last hold -inf, whose exponential, +0, adds nothing. */
__device__ void online_chunk(const float *x, int64_t n, bool first, float *max, float *sum)
{
    const int lane = (int)threadIdx.x % 32;
    float held[GCKPTI_LOSS_CHUNK / 32], top = -INFINITY, added = 0.0f;
#pragma unroll
    for (int k = 0; k < GCKPTI_LOSS_CHUNK / 32; k++) {
        held[k] = lane + 32 * k < n ? x[lane + 32 * k] : -INFINITY;
        top = held[k] > top ? held[k] : top;
    }
    const float factor = gckpti_online_factor(warp_max(top), first, max);
    const float shift = gckpti_shift(*max);
#pragma unroll
    for (int k = 0; k < GCKPTI_LOSS_CHUNK / 32; k++)
        added += gckpti_exp(held[k] - shift);
    *sum = gckpti_online_sum(*sum, first, factor, warp_sum(added));
}

/* Rows of a loss over classes, some of their classes. */
struct LossPart {
    const float *x;        /* (rows,n): logits of classes first..first+n-1 of `classes` */
    const int32_t *target; /* (rows) */
    float *aux;            /* (rows,2): max, log(sum); forward: NULL when not wanted */
    float *state, *losses; /* forward: (rows,3): max, sum, logit of the target, so far; (rows) */
    int64_t rows, first, n, classes;
    float cap; /* of logits, which have it already; 0: none */
};

/* A row left out adds -0 to the sum of losses, which changes no sum. */
__global__ void loss_forward_kernel(LossPart l)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, l.rows)) {
        const float *x = l.x + r * l.n;
        const int64_t target = l.target[r], at = target - l.first;
        float *state = l.state + 3 * r, max = 0.0f, sum = 1.0f, hit = 0.0f;
        if (l.first > 0)
            max = state[0], sum = state[1], hit = state[2];
        __syncwarp();
        for (int64_t j = 0; target >= 0 && j < l.n; j += GCKPTI_LOSS_CHUNK)
            online_chunk(x + j, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), l.first + j == 0, &max,
                         &sum);
        if (target >= 0 && at >= 0 && at < l.n)
            hit = x[at];
        if (l.first + l.n < l.classes) {
            if (lane < 3)
                state[lane] = lane == 0 ? max : lane == 1 ? sum : hit;
            continue;
        }
        gckpti_softmax_end(&max, &sum);
        float log_sum = gckpti_log(sum);
        if (lane == 0)
            l.losses[r] = target >= 0 ? log_sum - (hit - max) : -0.0f;
        if (l.aux && lane < 2)
            l.aux[2 * r + lane] = lane == 0 ? max : log_sum;
    }
}

/* d may be x. */
__global__ void loss_backward_kernel(LossPart l, float *d, const Moment *moment, int accumulate)
{
    enum { AT_ONCE = 4 };
    const float scale = moment->loss_scale;
    for (EACH_ROW(r, l.rows)) {
        const int64_t target = l.target[r] - l.first, end = r * l.n + l.n;
        const bool out = l.target[r] < 0;
        const float max = l.aux[2 * r], log_sum = l.aux[2 * r + 1];
        for (int64_t i = r * l.n + threadIdx.x % 32; i < end; i += 32 * AT_ONCE) {
            float x[AT_ONCE];
            for (int k = 0; k < AT_ONCE; k++)
                x[k] = !out && i + 32 * k < end ? l.x[i + 32 * k] : 0.0f;
            for (int k = 0; k < AT_ONCE && i + 32 * k < end; k++) {
                int64_t at = i + 32 * k;
                float p = gckpti_exp((x[k] - max) - log_sum);
                p = at - r * l.n == target ? p - 1.0f : p;
                if (l.cap > 0.0f)
                    p *= gckpti_capped_slope(x[k], l.cap);
                if (out && !accumulate)
                    d[at] = 0.0f;
                if (!out)
                    gckpti_put_product(&d[at], p, scale, accumulate);
            }
        }
    }
}

void cross_entropy_forward(const gckpt_call *call)
{
    int64_t v = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    float *losses = (float *)call->work;
    LossPart l = { call->in[0].data, call->in[1].index, NULL, NULL, losses, rows, 0, v, v, 0.0f };
    l.aux = (float *)call->aux;
    RUN(call, loss_forward_kernel, blocks_for(32 * rows, 256), 256, 0, l);
    add_losses(call, losses, call->in[1].index, rows, 1);
}

void cross_entropy_backward(const gckpt_call *call)
{
    int64_t v = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    LossPart l = { call->in[0].data, call->in[1].index, NULL, NULL, NULL, rows, 0, v, v, 0.0f };
    l.aux = (float *)call->aux;
    if (call->in[0].grad)
        RUN(call, loss_backward_kernel, blocks_for(32 * rows, 256), 256, 0, l, call->in[0].grad,
            moment_of(call), call->in[0].accumulate);
}
