/* ---- linear_cross_entropy: logits (rows,V) = x w', which never exist whole ---- LOSS_CLASSES
 * classes of LOSS_ROWS rows at a time. The forward stores no logits: where a tile is computed, it
 * becomes a maximum and a sum for each row's 64 classes. In the backward, a tile becomes the
 * gradient of its logits as bf16, an operand of the products dx and dw. */
enum { LOSS_ROWS = 4096, LOSS_CLASSES = 4096 }; /* the forward takes 4 * LOSS_ROWS rows */

/* Merges maxima and sums of a chunk's groups of 64 classes, in order; a thread has a row. */
__device__ void merge_loss_row(int64_t r, const Loss &l, int groups, float *saved, float *losses,
                               int64_t rows, bool end)
{
    RowLoss *state = l.state;
    float max = l.first ? state[r].max : -INFINITY, sum = l.first ? state[r].sum : 0.0f;
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

struct LossSizes {
    int64_t rows, c, v;
    int64_t block, chunk; /* most rows, most classes at a time */
    int64_t row; /* elements between rows of the logits' gradient: chunk, rounded up to 8 */
};

LossSizes loss_sizes(const gckpt_call *call, bool backward)
{
    int64_t rows = gckpti_rows(&call->in[0].shape), v = call->in[1].shape.d[0];
    int64_t chunk = gckpti_min(v, LOSS_CLASSES);
    int64_t block = gckpti_min(rows, backward ? LOSS_ROWS : 4 * LOSS_ROWS);
    return { rows, gckpti_last(&call->in[0].shape), v, block, chunk, (chunk + 7) / 8 * 8 };
}

/* The arrays in the workspace. */
struct LossBuffers {
    const uint16_t *x;
    uint16_t *w, *d; /* w: f32 weights of a chunk as bf16; d: logits' gradient (block x chunk) */
    float *parts, *losses, *dx;
    RowLoss *state;
};

LossBuffers loss_buffers(const gckpt_call *call, Workspace &workspace, bool backward)
{
    LossSizes s = loss_sizes(call, backward);
    LossBuffers r;
    memset(&r, 0, sizeof r);
    r.x = operand(call, workspace, value_of(call->in[0]), s.rows * s.c);
    r.w = call->in[1].bf16 ? NULL : (uint16_t *)bump_alloc(workspace, (size_t)(s.chunk * s.c) * 2);
    if (backward) {
        r.d = (uint16_t *)bump_alloc(workspace, (size_t)(s.block * s.row) * 2);
        r.dx = (float *)bump_alloc(workspace, (size_t)(s.block * s.c) * sizeof *r.dx);
    } else {
        r.parts = (float *)bump_alloc(workspace, (size_t)((s.chunk + 127) / 128 * 2 * s.block) * 8);
        r.state = (RowLoss *)bump_alloc(workspace, (size_t)s.block * sizeof *r.state);
        r.losses = (float *)bump_alloc(workspace, (size_t)s.rows * sizeof *r.losses);
    }
    return r;
}

const uint16_t *loss_weights(const gckpt_call *call, const LossBuffers &r, int64_t first, int64_t n)
{
    int64_t c = gckpti_last(&call->in[0].shape);
    const Values w = value_of(call->in[1]);
    if (w.bf16)
        return w.bf16 + first * c;
    narrow(call, w.f32 + first * c, r.w, n * c);
    return r.w;
}

/* Runs a block of rows after the other; of each, a chunk of classes after the other. */
void linear_cross_entropy_by(const gckpt_call *original, bool backward)
{
    const gckpt_call adjusted = backward ? drop_zero_fills(original) : *original;
    const gckpt_call *call = &adjusted;
    const LossSizes s = loss_sizes(call, backward);
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    Workspace workspace = { (char *)call->workspace, 0 };
    const LossBuffers r = loss_buffers(call, workspace, backward);
    const bool narrows = backward && x->grad_bf16;
    const StepParams *params = backward ? params_of(call) : NULL;
    for (int64_t row = 0, rows; row < s.rows; row += rows) {
        rows = gckpti_min(s.rows - row, s.block);
        const Matrix<uint16_t> inputs = matrix(r.x + row * s.c, s.c);
        float *saved = call->saved ? (float *)call->saved + 2 * row : NULL;
        float *dw = w->grad, *dx = narrows ? r.dx : x->grad ? x->grad + row * s.c : NULL;
        if (narrows && x->accumulate)
            widen(call, x->grad_bf16 + row * s.c, r.dx, rows * s.c);
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            const Matrix<uint16_t> some = matrix(loss_weights(call, r, first, n), s.c);
            MmaProduct p = mma_of(rows, n, s.c, inputs, some, NONE, 0, { NULL, r.d }); /* logits */
            p.loss = { call->in[2].index + row, (int)first, r.parts, r.state, saved, params };
            p.c_row = (int)s.row;
            if (!backward) {
                run_mma_tile<128, 1, 1, ROW_STATS>(call, p);
                for_each<merge_loss_row, 64>(call, rows, p.loss, (int)((n + 127) / 128 * 2), saved,
                                             r.losses + row, rows, first + n == s.v);
                continue;
            }
            run_mma_tile<128, 1, 1, GRADIENTS>(call, p);
            const Matrix<uint16_t> d = matrix((const uint16_t *)r.d, s.row);
            if (dx)
                mma_product(call,
                            mma_of(rows, s.c, n, d, some, NONE, x->accumulate || first > 0,
                                   { dx, NULL }),
                            1, 0);
            if (dw)
                mma_product(call,
                            mma_of(n, s.c, rows, d, inputs, NONE, w->accumulate || row > 0,
                                   { dw + first * s.c, NULL }),
                            0, 0);
        }
        if (narrows)
            narrow(call, r.dx, x->grad_bf16 + row * s.c, rows * s.c);
    }
    if (!backward)
        add_losses(call, r.losses, call->in[2].index, s.rows, 1);
}

gckpt_result linear_cross_entropy_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    if (gckpti_linear_loss_cap(call) > 0.0f) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    loss_buffers(call, forward, false);
    loss_buffers(call, backward, true);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    call->mixes_rows |= gckpti_rows(&call->in[0].shape) % TOKENS != 0;
    return GCKPT_OK;
}
