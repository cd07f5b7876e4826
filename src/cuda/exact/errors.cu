/* One warp adds the rows' losses in their order, in binary64; its lanes read 32 of them at a time,
 * and all have the same chain. */
__global__ void add_losses_kernel(const float *losses, int64_t rows, int64_t count, double *sum,
                                  int64_t *counted)
{
    int lane = (int)threadIdx.x;
    double total = sum ? *sum : 0.0;
    float next = sum && lane < rows ? losses[lane] : 0.0f;
    for (int64_t r = 0; r < rows && sum; r += 32) {
        float own = next;
        next = r + 32 + lane < rows ? losses[r + 32 + lane] : 0.0f;
        for (int k = 0; k < 32 && r + k < rows; k++)
            total += (double)__shfl_sync(0xffffffffu, own, k);
    }
    if (lane == 0 && sum)
        *sum = total;
    if (lane == 0 && counted)
        *counted += count;
}

/* To the call's sum and count (NULL: not wanted) go `rows` losses in the device's memory. */
void add_losses(const gckpt_call *call, const float *losses, int64_t rows, int64_t count)
{
    if (call->loss_sum || call->loss_count)
        RUN(call, add_losses_kernel, dim3(1), 32, 0, losses, rows, count, call->loss_sum,
            call->loss_count);
}

/* A loss's rows: entries of axis 0. */
int64_t loss_rows(const gckpt_call *call)
{
    return call->in[0].shape.n ? call->in[0].shape.d[0] : 1;
}

/* work: a float a row. */
template <class F> void sum_of_loss(const gckpt_call *call, F f)
{
    int64_t rows = loss_rows(call), n = gckpti_elements(&call->in[0].shape);
    float *losses = (float *)call->work;
    if (call->loss_sum)
        row_sums(call, f, losses, rows, n / rows, 1.0f);
    add_losses(call, losses, rows, n);
}

void sum_loss_forward(const gckpt_call *call) { sum_of_loss(call, Plain{ call->in[0].data }); }
void mean_squared_error_forward(const gckpt_call *call)
{
    sum_of_loss(call, Squares{ call->in[0].data, call->in[1].data });
}

struct LossScale {
    static constexpr int READS = READS_NONE;
    const Moment *now;
    __device__ void operator()(float *d, float, float, int accumulate) const
    {
        gckpti_put(d, now->loss_scale, accumulate);
    }
};

void sum_loss_backward(const gckpt_call *call)
{
    LossScale f = { moment_of(call) };
    map(call, f, NULL, NULL, call->in[0].grad, gckpti_elements(&call->in[0].shape),
        call->in[0].accumulate);
}

struct Difference {
    static constexpr int READS = READS_BOTH;
    float twice; /* 2, or -2 */
    const Moment *now;
    __device__ void operator()(float *d, float x, float y, int accumulate) const
    {
        gckpti_put_product(d, twice * (x - y), now->loss_scale, accumulate);
    }
};

void mean_squared_error_backward(const gckpt_call *call)
{
    const float *x = call->in[0].data, *y = call->in[1].data;
    int64_t n = gckpti_elements(&call->in[0].shape);
    Difference up = { 2.0f, moment_of(call) }, down = { -2.0f, up.now };
    map(call, up, x, y, call->in[0].grad, n, call->in[0].accumulate);
    map(call, down, x, y, call->in[1].grad, n, call->in[1].accumulate);
}

/* ---- losses of elements that may have weights ---- */
__global__ void errors_backward_kernel(gckpti_errors e, float *dx, float *dy, const Moment *now,
                                       int64_t n, int x_accumulate, int y_accumulate)
{
    for (EACH(i, n)) {
        float w = gckpti_error_weight(&e, i), x = e.x[i];
        float d = gckpti_error_slope(e.kind, x, e.y[i], e.delta);
        if (dx)
            gckpti_put_product(&dx[i], gckpti_weighted(w, d), now->loss_scale, x_accumulate);
        if (e.kind == GCKPTI_BINARY)
            d = x;
        if (dy)
            gckpti_put_product(&dy[i], gckpti_weighted(w, -d), now->loss_scale, y_accumulate);
    }
}

/* d = loss_scale * x */
struct ByLossScale {
    static constexpr int READS = READS_A;
    const Moment *now;
    __device__ void operator()(float *d, float x, float, int accumulate) const
    {
        gckpti_put_product(d, x, now->loss_scale, accumulate);
    }
};

/* The gradient of weights, from sums of the losses behind each. */
void weights_gradient(const gckpt_call *call, const float *sums)
{
    ByLossScale f = { moment_of(call) };
    map(call, f, sums, NULL, call->in[2].grad, gckpti_elements(&call->in[2].shape),
        call->in[2].accumulate);
}

void errors_forward(const gckpt_call *call, gckpti_error_kind kind)
{
    sum_of_loss(call, Errors{ gckpti_errors_of(call, kind) });
}

/* work: a float a weight. */
void errors_backward(const gckpt_call *call, gckpti_error_kind kind)
{
    Errors f = { gckpti_errors_of(call, kind) };
    const gckpt_arg *x = &call->in[0], *y = &call->in[1];
    int64_t n = gckpti_elements(&x->shape), share = f.e.share;
    if (x->grad || y->grad)
        RUN(call, errors_backward_kernel, blocks_for(n, 256), 256, 0, f.e, x->grad, y->grad,
            moment_of(call), n, x->accumulate, y->accumulate);
    if (!call->in[2].grad)
        return;
    f.e.weights = NULL;
    row_sums(call, f, (float *)call->work, n / share, share, 1.0f);
    weights_gradient(call, (float *)call->work);
}

#define ERRORS(name, kind)                                                                         \
    void name##_forward(const gckpt_call *call) { errors_forward(call, kind); }                    \
    void name##_backward(const gckpt_call *call) { errors_backward(call, kind); }
ERRORS(mean_squared_error_with, GCKPTI_SQUARED)
ERRORS(huber, GCKPTI_HUBER)
ERRORS(binary_cross_entropy, GCKPTI_BINARY)
#undef ERRORS
