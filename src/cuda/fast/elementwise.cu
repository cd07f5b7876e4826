/* ---- elementwise ---- */
__device__ inline float gelu_value(float x, const float *) { return gelu_of(x); }
__device__ inline float gelu_deriv(float x, const float *) { return gelu_deriv_of(x); }

void gelu_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = value_of(in), g = grad_out_of(call);
    if (backward ? !in.accumulate && try_fuse(call, GELU_GRAD, g, x, grad_of(in))
                 : try_fuse(call, GELU, x, NONE, out_of(call)))
        return;
    unary_by<gelu_value, gelu_deriv, gckpti_put_product_n>(call, backward, GCKPT_IN(0), 0);
}

/* ---- add, sub and mul of two bf16 tensors of the same shape (add: or the second one has just the
 * last axes of the first one); exact kernels run other shapes ---- */
void fused_add_by(const gckpt_call *call, bool backward)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    if (backward || call->in[1].shape.n < call->shape.n ||
        (!try_fuse(call, PLUS, a, b, out_of(call)) && !try_fuse(call, PLUS, b, a, out_of(call))))
        add_by(call, backward);
}

/* Exact kernels (GCKPT_BF16) run all but two bf16 inputs of the result's shape. With micro-batches
 * of one row a batch-invariant input may have that shape, but its gradient is a compensated sum. */
gckpt_result same_shape_workspace(gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!gckpti_same_shape(&call->in[i].shape, &call->shape) || !call->in[i].bf16)
            call->precision = GCKPT_BF16;
    return GCKPT_OK;
}

/* Input 1 may have just the last axes of input 0. */
gckpt_result add_workspace(gckpt_call *call)
{
    const gckpt_shape *a = &call->shape, *b = &call->in[1].shape;
    bool last = b->n < a->n && gckpti_same_shape(&call->in[0].shape, a) &&
                (gckpti_elements(b) < gckpti_elements(a) || !call->in[1].bf16);
    for (int k = 1; k <= b->n; k++)
        last = last && b->d[b->n - k] == a->d[a->n - k];
    return last ? GCKPT_OK : same_shape_workspace(call);
}
