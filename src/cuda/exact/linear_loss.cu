/* ---- linear_cross_entropy, in blocks of 2048 x 4096 logits: 32 MiB, most of which stays in an
 * H200's L2, and 512 tiles of 128 x 128 for its 132 multiprocessors. ---- */
enum { LOGIT_ROWS = 2048, LOGIT_CLASSES = 4 * GCKPTI_LOSS_CHUNK };

/* In the workspace: logits; `dx`: in a forward the states of rows, then `saved`: the losses. */
gckpti_loss_layout logit_layout(const gckpt_call *call, bool backward)
{
    const int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    gckpti_loss_layout p = { gckpti_min(rows, LOGIT_ROWS),
                             gckpti_min(call->in[1].shape.d[0], LOGIT_CLASSES), 0, 0, 0, 0 };
    p.dx = gckpti_ceil_to(p.block * p.chunk, 4), p.saved = p.dx + 3 * p.block;
    p.size = !backward ? p.saved + rows : p.dx + (call->precision != GCKPT_FP32 ? p.block * c : 0);
    return p;
}

int64_t linear_cross_entropy_workspace(const gckpt_call *call, bool backward)
{
    return logit_layout(call, backward).size;
}

__device__ void cap_at(int64_t i, float *x, float times, float cap)
{
    x[i] = gckpti_softcap(x[i], times, cap);
}

/* Runs a block of rows from `row` on; returns their number. Computes logits = x w' and the rows'
 * losses; backward: d, the logits' gradient, dx += d w, dw += d' x. In bf16 plans dx is in the
 * workspace, since it is rounded once, after the last class. */
int64_t logit_block(const gckpt_call *call, const gckpti_loss_layout &layout, int64_t row,
                    int backward)
{
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    const int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = row * c;
    const int64_t sample = gckpti_sample_rows(&x->shape);
    const int64_t rows = gckpti_loss_block_rows(call, row, layout.block);
    float *workspace = (float *)call->workspace, *saved = (float *)call->saved;
    float *dw = backward ? w->grad : NULL, *dx = backward && x->grad ? x->grad + at : NULL;
    uint16_t *grad = backward && x->grad_bf16 ? x->grad_bf16 + at : NULL;
    Classes l = { workspace, call->in[2].index + row };
    l.saved = saved ? saved + 2 * row : NULL;
    l.losses = workspace + layout.saved + row, l.state = workspace + layout.dx; /* forward */
    l.rows = rows, l.classes = v, l.cap = gckpti_linear_loss_cap(call), l.dx = workspace;
    if (grad)
        dx = workspace + layout.dx;
    if (grad && x->accumulate)
        widen(call, grad, dx, rows * c);
    for (l.first = 0; l.first < v; l.first += l.n) {
        l.n = gckpti_min(v - l.first, layout.chunk);
        const gckpti_factors f = { rows, l.n, c,
                                   gckpti_operand_of(gckpti_arg_values(x), at, c, 1, 0),
                                   gckpti_operand_of(gckpti_arg_values(w), l.first * c, c, 1, 0),
                                   gckpti_matrix(workspace, l.n, 1), 1, 1, sample, row % sample,
                                   NULL };
        gckpti_run_factors(call, products, &f, 0, gckpti_f32_destination(workspace), 0);
        if (l.cap > 0.0f)
            for_each<cap_at>(call, rows * l.n, workspace, 1.0f / l.cap, l.cap);
        if (!backward)
            for_each_row<loss_of_row>(call, rows, l);
        else
            for_each_row<loss_gradients_of_row<false>>(call, rows, l, params_of(call));
        gckpti_run_factors(call, products, &f, 1, gckpti_f32_destination(dx),
                           x->accumulate || l.first > 0);
        if (dw)
            gckpti_run_factors(call, products, &f, 2, gckpti_f32_destination(dw + l.first * c),
                               w->accumulate || row > 0);
    }
    if (grad)
        narrow(call, dx, grad, rows * c);
    return rows;
}

void linear_cross_entropy_by(const gckpt_call *call, bool backward)
{
    const gckpti_loss_layout layout = logit_layout(call, backward);
    const int64_t rows = gckpti_rows(&call->in[0].shape);
    for (int64_t row = 0; row < rows;)
        row += logit_block(call, layout, row, backward);
    if (!backward)
        add_losses(call, (float *)call->workspace + layout.saved, call->in[2].index, rows, 1);
}
