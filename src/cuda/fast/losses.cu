/* ---- linear_cross_entropy: logits (rows,V) = x w' ---- LOSS_CLASSES classes of a block of rows at
 * a time. As built, the forward stores no logits, and the backward computes them again. In the
 * lowering (linear_loss/plan.c) the forward only counts rows; the backward computes all logits of a
 * block once and stores them, then the losses, then the gradients. Bits are equal, as one kernel
 * computes all logits and stores them as f32. Then they become their gradients in place, as bf16:
 * an operand of the products dx and dw. */
enum { LOSS_ROWS = 4096, LOSS_CLASSES = 4096 }; /* the forward takes 4 * LOSS_ROWS rows */

/* Merges maxima and sums of a chunk's groups of 64 classes, in order; a thread has a row. */
__device__ void merge_loss_row(int64_t r, const Loss &l, int groups, float *saved, float *losses,
                               int64_t rows, bool end)
{
    RowLoss *state = l.state;
    float max = l.first ? state[r].max : -INFINITY, sum = l.first ? state[r].sum : 0.0f;
#pragma unroll 8
    for (int k = 0; k < groups; k++) {
        const float *part = l.parts + 2 * (k * rows + r);
        float top = part[0] > max ? part[0] : max, shift = gckpti_shift(top);
        sum = gckpti_fma(sum, exp2_of((max - shift) * LOG2E),
                         part[1] * exp2_of((part[0] - shift) * LOG2E));
        max = top;
    }
    if (end) {
        gckpti_softmax_end(&max, &sum);
        float log_sum = gckpti_log(sum);
        losses[r] = l.target[r] >= 0 ? log_sum - (state[r].logit - max) : 0.0f;
        if (saved)
            saved[2 * r] = max, saved[2 * r + 1] = log_sum;
    } else {
        state[r].max = max, state[r].sum = sum;
    }
}

/* Adds the number of rows whose targets are not ignored to *count; a warp counts. */
__device__ void count_targets(int64_t, const int32_t *target, int64_t rows, int64_t *count)
{
    int64_t counted = 0;
#pragma unroll 8
    for (int64_t r = threadIdx.x; r < rows; r += 32)
        counted += target[r] >= 0;
    for (int with = 16; with; with /= 2)
        counted += __shfl_xor_sync(0xffffffffu, counted, with);
    if (threadIdx.x == 0)
        *count += counted;
}

/* Replaces n logits of a row, classes l.first.., by their gradients in bf16, which begin where the
 * logits do. A block has a row, a thread 8 classes. */
__global__ void __launch_bounds__(LOSS_CLASSES / 8)
    logit_gradients_kernel(float *logits, int64_t row, int64_t n, Loss l, const float *saved,
                           const StepParams *params)
{
    const int64_t r = blockIdx.x, j = (int64_t)threadIdx.x * 8, target = l.target[r];
    const float max = saved[2 * r], log_sum = saved[2 * r + 1], scale = params->loss_scale;
    float v[8];
    read_vec<8>(Values{ logits, NULL }, r * row + j, n - j, true, v);
    __syncthreads(); /* all logits of the row have been read */
    UNROLLED(k, 8) {
        float grad = exp2_of(((v[k] - max) - log_sum) * LOG2E);
        grad = j + k == target - l.first ? grad - 1.0f : grad;
        v[k] = target < 0 ? 0.0f : grad * scale;
    }
    write_vec<8>({ NULL, (uint16_t *)(void *)logits }, 2 * r * row + j, n - j, true, v);
}

struct LossSizes {
    bool once; /* the lowering: each logit is computed once */
    int64_t rows, c, v;
    int64_t block, chunk; /* most rows, most classes at a time */
    int64_t row;          /* elements between rows of stored logits: a multiple of 8 */
};

LossSizes loss_sizes(const gckpt_call *call, bool backward)
{
    const int64_t rows = gckpti_rows(&call->in[0].shape), v = call->in[1].shape.d[0];
    const int64_t once = gckpti_linear_loss_block(call), chunk = gckpti_min(v, LOSS_CLASSES);
    const int64_t block = once ? once : backward ? LOSS_ROWS : 4 * LOSS_ROWS;
    return { once > 0, rows, gckpti_last(&call->in[0].shape), v, gckpti_min(rows, block), chunk,
             gckpti_ceil_to(once ? v : chunk, 8) };
}

/* The arrays in the workspace. */
struct LossBuffers {
    const uint16_t *x, *w; /* w: all weights as bf16, or NULL */
    uint16_t *some;        /* weights of a chunk as bf16 */
    float *logits, *dx;    /* of a block; logits of a chunk or, in the lowering, of all classes */
    float *parts, *losses, *saved;
    RowLoss *state;
};

LossBuffers loss_buffers(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const LossSizes s = loss_sizes(call, backward);
    const auto floats = [&](int64_t n) { return (float *)bump_alloc(workspace, (size_t)n * 4); };
    LossBuffers r = {};
    r.x = operand(call, workspace, value_of(call->in[0]), s.rows * s.c);
    if (s.once || call->in[1].bf16)
        r.w = operand(call, workspace, value_of(call->in[1]), s.v * s.c);
    else
        r.some = (uint16_t *)bump_alloc(workspace, (size_t)(s.chunk * s.c) * 2);
    r.parts = floats((s.chunk + 127) / 128 * 4 * s.block);
    r.state = (RowLoss *)(void *)floats(3 * s.block);
    if (s.once || !backward)
        r.losses = floats(s.block);
    if (s.once)
        r.saved = floats(2 * s.block);
    if (backward)
        r.logits = floats(s.block * s.row), r.dx = floats(s.block * s.c);
    return r;
}

/* A block of rows. */
struct LossBlock {
    const gckpt_call *call;
    const LossSizes &s;
    const LossBuffers &r;
    int64_t row, rows; /* the first one, their number */
    float *saved;
    Matrix<uint16_t> x;

    Loss loss(int64_t first) const
    {
        return { call->in[2].index + row, (int)first, r.parts, r.state };
    }
    Matrix<uint16_t> weights(int64_t first, int64_t n) const
    {
        if (r.some)
            narrow(call, call->in[1].data + first * s.c, r.some, n * s.c);
        return matrix(r.some ? r.some : r.w + first * s.c, s.c);
    }
    /* Computes logits, and maxima and sums of 64 classes. Stores the logits unless `to` is NULL. */
    void logits(const Matrix<uint16_t> &some, int64_t first, int64_t n, float *to) const
    {
        MmaProduct p = mma_of(rows, n, s.c, x, some, NONE, 0, { to, NULL });
        p.loss = loss(first), p.c_row = (int)s.row, p.aligned = true;
        run_mma_tile<128, 1, 1, ROW_STATS>(call, p);
    }
    void losses(void) const /* in the lowering, also stores the logits */
    {
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            logits(weights(first, n), first, n, s.once ? r.logits + first : NULL);
            for_each<merge_loss_row, 64>(call, rows, loss(first), (int)((n + 127) / 128 * 2), saved,
                                         r.losses, rows, first + n == s.v);
        }
        add_losses(call, r.losses, call->in[2].index + row, rows, 1);
    }
    void gradients(const StepParams *params) const
    {
        const gckpt_arg *in = &call->in[0], *w = &call->in[1];
        const int64_t at = row * s.c, size = rows * s.c;
        float *dx = in->grad_bf16 ? r.dx : in->grad ? in->grad + at : NULL;
        if (in->grad_bf16 && in->accumulate)
            widen(call, in->grad_bf16 + at, dx, size);
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            float *z = r.logits + (s.once ? first : 0);
            const Matrix<uint16_t> some = weights(first, n);
            const Matrix<uint16_t> d = matrix((const uint16_t *)(void *)z, 2 * s.row);
            if (!s.once)
                logits(some, first, n, z);
            run<logit_gradients_kernel>(call, dim3((unsigned)rows), (int)((n + 255) / 256 * 32), 0,
                                        z, s.row, n, loss(first), saved, params);
            if (dx)
                mma_product(call,
                            mma_of(rows, s.c, n, d, some, NONE, in->accumulate || first > 0,
                                   { dx, NULL }),
                            1, 0);
            if (w->grad)
                mma_product(call,
                            mma_of(n, s.c, rows, d, x, NONE, w->accumulate || row > 0,
                                   { w->grad + first * s.c, NULL }),
                            0, 0);
        }
        if (in->grad_bf16)
            narrow(call, dx, in->grad_bf16 + at, size);
    }
};

void linear_cross_entropy_by(const gckpt_call *original, bool backward)
{
    const gckpt_call adjusted = backward ? drop_zero_fills(original) : *original;
    const gckpt_call *call = &adjusted;
    const LossSizes s = loss_sizes(call, backward);
    Workspace workspace = { (char *)call->workspace, 0 };
    if (s.once && !backward) {
        if (call->loss_count)
            for_each_row<count_targets>(call, 1, call->in[2].index, s.rows, call->loss_count);
        return;
    }
    const LossBuffers r = loss_buffers(call, workspace, backward);
    const StepParams *params = backward ? params_of(call) : NULL;
    for (int64_t row = 0; row < s.rows; row += s.block) {
        float *saved = call->saved ? (float *)call->saved + 2 * row : r.saved;
        const LossBlock b = { call, s, r, row, gckpti_min(s.rows - row, s.block), saved,
                              matrix(r.x + row * s.c, s.c) };
        if (s.once || !backward)
            b.losses();
        if (backward)
            b.gradients(params);
    }
}

gckpt_result linear_cross_entropy_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    if (gckpti_linear_loss_cap(call) > 0.0f) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    if (!gckpti_linear_loss_block(call))
        loss_buffers(call, forward, false);
    loss_buffers(call, backward, true);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    call->mixes_rows |= gckpti_rows(&call->in[0].shape) % TOKENS != 0;
    return GCKPT_OK;
}
