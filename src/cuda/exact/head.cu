/* ---- linear_cross_entropy: gckpti_linear_cross_entropy_by, on blocks of rows whose logits of some
 * classes are there at a time. 2048 x 4096 are 32 MiB, most of which stays in an H200's L2, and 512
 * tiles of 128 x 128 for its 132 multiprocessors. ---- */
enum { HEAD_ROWS = 2048, HEAD_CLASSES = 4 * GCKPTI_LOSS_CHUNK };

struct HeadParts {
    int64_t rows, classes; /* at a time, at most */
    /* in floats: what is behind the logits in work, the forward's state and losses, or the
     * backward's dx; all */
    int64_t behind, losses, size;
};

HeadParts head_parts(const gckpt_call *call, int backward)
{
    int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    HeadParts p;
    p.rows = gckpti_min(rows, HEAD_ROWS);
    p.classes = gckpti_min(call->in[1].shape.d[0], HEAD_CLASSES);
    p.behind = gckpti_multiple(p.rows * p.classes, 4);
    p.losses = p.behind + 3 * p.rows;
    p.size = backward ? p.behind : p.losses + rows;
    if (backward && call->precision != GCKPT_FP32)
        p.size += p.rows * c;
    return p;
}

__global__ void cap_kernel(float *x, int64_t n, float times, float cap)
{
    for (EACH(i, n))
        x[i] = gckpti_capped(x[i], times, cap);
}

/* A block of rows, from `row` on, of which it gives the number: logits = x w', the losses' rows;
 * backward: dx += d w, dw += d' x. In bf16 plans dx has its elements in work, since it is rounded
 * once, when all classes are added. */
int64_t head_block(const gckpt_call *call, const HeadParts *parts, int64_t row, int backward)
{
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    const int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = row * c;
    const int64_t rows = gckpti_loss_rows(call, row, parts->rows);
    float *work = (float *)call->workspace, *aux = (float *)call->saved;
    float *dw = backward ? w->grad : NULL, *dx = backward && x->grad ? x->grad + at : NULL;
    uint16_t *grad = backward && x->grad_bf16 ? x->grad_bf16 + at : NULL;
    Classes l = { work, call->in[2].index + row };
    l.aux = aux ? aux + 2 * row : NULL;
    l.losses = work + parts->losses + row, l.state = work + parts->behind; /* forward */
    l.rows = rows, l.classes = v, l.cap = gckpti_head_cap(call);
    if (grad)
        dx = work + parts->behind;
    if (grad && x->accumulate)
        widen(call, grad, dx, rows * c);
    for (l.first = 0; l.first < v; l.first += l.n) {
        l.n = gckpti_min(v - l.first, parts->classes);
        const gckpti_factor d = { work, NULL, l.n, 1, 0 };
        gckpti_product t;
        t.run = t.before = 0;
        t.a = gckpti_factor_of(x, at, c, 1, 0), t.b = gckpti_factor_of(w, l.first * c, c, 1, 0);
        gckpti_product_to(call, products, &t, rows, l.n, c, work, 0);
        if (l.cap > 0.0f)
            RUN_EACH(call, cap_kernel, rows * l.n, work, rows * l.n, 1.0f / l.cap, l.cap);
        if (!backward)
            RUN_ROWS(call, loss_forward_kernel, rows, l);
        else
            RUN_ROWS(call, loss_backward_kernel<false>, rows, l, work, (float *)NULL,
                     moment_of(call), 0, 0);
        t.a = d, t.b = gckpti_turned(&t.b);
        if (dx)
            gckpti_product_to(call, products, &t, rows, c, l.n, dx, x->accumulate || l.first > 0);
        t.b = gckpti_factor_of(x, at, c, 1, 0);
        t.a = gckpti_turned(&d), t.b = gckpti_turned(&t.b);
        t.run = gckpti_entry_rows(&x->shape), t.before = row % t.run;
        if (dw)
            gckpti_product_to(call, products, &t, l.n, c, rows, dw + l.first * c,
                              w->accumulate || row > 0);
    }
    if (grad)
        narrow(call, dx, grad, rows * c);
    return rows;
}

void linear_cross_entropy_by(const gckpt_call *call, bool backward)
{
    const HeadParts parts = head_parts(call, backward);
    const int64_t rows = gckpti_rows(&call->in[0].shape);
    for (int64_t row = 0; row < rows;)
        row += head_block(call, &parts, row, backward);
    if (!backward)
        add_losses(call, (float *)call->workspace + parts.losses, call->in[2].index, rows, 1);
}
BOTH_WAYS(linear_cross_entropy, linear_cross_entropy_by)
