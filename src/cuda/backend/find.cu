/* Runs F under the device's lock. PENDING: F may fuse its op with pending launches. */
template <auto F, bool PENDING, auto... MORE> void locked(const gckpt_call *call)
{
    DeviceLock lock(device_of(call), PENDING);
    F(call, MORE...);
}
template <auto FORWARD, auto BACKWARD> void either(const gckpt_call *call, bool backward)
{
    backward ? BACKWARD(call) : FORWARD(call);
}
template <auto F, class... A> void locked_with(const gckpt_call *call, A... arguments)
{
    DeviceLock lock(device_of(call));
    F(call, arguments...);
}

/* Sets the workspace: COUNT words of 4 bytes. */
template <int64_t COUNT(const gckpt_call *, bool)> gckpt_result set_words(gckpt_call *call)
{
    call->workspace_forward = 4 * (size_t)COUNT(call, false);
    call->workspace_backward = 4 * (size_t)COUNT(call, true);
    return GCKPT_OK;
}
int64_t no_workspace(const gckpt_call *, bool) { return 0; }

struct OpKernels {
    const char *op;
    gckpt_kernel forward, backward;
    gckpt_result (*workspace)(gckpt_call *); /* NULL: that of the processor */
};

/* clang-format off */
/* Rows: an op that runs F(call, backward), by default NAME_by. OP_WORDS: AS_workspace returns the
 * number of words of its workspace. */
#define ROW(name, workspace, ...)                                                                  \
    { #name, locked<__VA_ARGS__, false, false>, locked<__VA_ARGS__, false, true>, workspace },
#define OP(name)                  ROW(name, NULL, name##_by)
#define OP_AS(name, ...)          ROW(name, NULL, __VA_ARGS__)
#define OP_WORDS(name, as, ...)   ROW(name, set_words<as##_workspace>, __VA_ARGS__)
#define OP_LOSS(name, kind)       OP_WORDS(name, element_loss, element_loss_by<GCKPTI_LOSS_##kind>)
#define OP_OF(name, ...)          OP(name)
const OpKernels EXACT_OPS[] = {
    GCKPTI_UNARY_OPS(OP_OF) GCKPTI_UNARY_OPS_WITH(OP_OF) GCKPTI_BINARY_OPS(OP_OF)
    GCKPTI_IF_ACTIVATIONS(OP(where)) OP(dropout) OP(detach) OP(from_u8) OP(slice) OP(rotary)
    OP(cache) OP_AS(linear, products_by<gckpti_run_matmul, products>)
    OP_AS(matmul, products_by<gckpti_run_matmul, products>)
    OP(layernorm) OP_AS(rmsnorm, layernorm_by)
    OP_AS(softmax, softmax_by<false>) OP_AS(log_softmax, softmax_by<true>)
    OP_WORDS(embed, embed, embed_by) OP_WORDS(gather, embed, embed_by)
    OP_WORDS(attention, attention, attention_by)
    OP_WORDS(masked_attention, attention, masked_attention_by)
    OP_LOSS(sum_loss, SUM) OP_LOSS(huber, HUBER) OP_LOSS(binary_cross_entropy, BINARY)
    OP_LOSS(mean_squared_error, SQUARED) OP_LOSS(mean_squared_error_with, SQUARED)
    OP_WORDS(cross_entropy, cross_entropy, cross_entropy_by)
    OP_WORDS(cross_entropy_with, cross_entropy, cross_entropy_by)
    OP_WORDS(soft_cross_entropy, cross_entropy, cross_entropy_by)
    OP_WORDS(linear_cross_entropy, linear_cross_entropy, linear_cross_entropy_by)
#ifndef GCKPT_NO_AXES
    OP_AS(permute, moves_by<gckpti_permute_move>) OP_AS(concat, moves_by<gckpti_concat_move>)
    OP(pad) OP_AS(sum, sum_by<false>) OP_AS(mean, sum_by<true>)
    OP_AS(broadcast_matmul, products_by<gckpti_broadcast_matmul_run, products>)
    OP_AS(max, max_by<true, false>) OP_AS(argmax, max_by<false, false>)
    OP_AS(top_k, max_by<true, true>) OP_AS(top_k_indices, max_by<false, true>)
#endif
#ifndef GCKPT_NO_IMAGES
    OP_AS(upsample, windows_by<UPSAMPLE>) OP_AS(max_pool, windows_by<MAX_POOL>)
    OP_WORDS(average_pool, no, windows_by<AVERAGE_POOL>)
    OP_WORDS(conv2d, no, products_by<gckpti_run_conv, conv>)
    OP_WORDS(groupnorm, groupnorm, either<groupnorm_forward, groupnorm_backward>)
    OP_WORDS(batchnorm, groupnorm, either<groupnorm_forward, groupnorm_backward>)
#endif
#ifndef GCKPT_NO_RECURRENT
    OP_WORDS(gru, cells, cells_by<gckpti_gru_gates_at, gckpti_gru_gate_grads_at>)
    OP_WORDS(lstm, cells, cells_by<gckpti_lstm_gates_at, gckpti_lstm_gate_grads_at>)
    OP_WORDS(gru_reset_before, cells, cells_by<gckpti_reset_gates_at, gckpti_new_gate_grads_at,
                                               gckpti_new_gates_at, gckpti_reset_gate_grads_at>)
    OP_WORDS(delta_rule, delta, delta_rule_by) OP_AS(delta_state, delta_rule_by)
#endif
};
#undef ROW

/* Ops of GCKPT_BF16_FAST, like ROW. FAST: ops with a file in fast/. */
#define FAST(name, of) FAST_BY(name, fast::of##_workspace, fast::of##_by)
#define FAST_BY(name, workspace, ...)                                                              \
    { #name, locked<__VA_ARGS__, true, false>, locked<__VA_ARGS__, true, true>, workspace },
const OpKernels FAST_OPS[] = {
    FAST_BY(linear, fast::linear_workspace, either<fast::linear_forward, fast::linear_backward>)
    FAST(linear_cross_entropy, linear_cross_entropy)
    FAST(layernorm, layernorm) FAST(rmsnorm, layernorm)
    FAST(attention, attention) FAST_BY(add, fast::add_workspace, fast::fused_add_by)
    FAST_BY(sub, fast::same_shape_workspace, sub_by)
    FAST_BY(mul, fast::same_shape_workspace, mul_by)
    FAST_BY(gelu, NULL, fast::gelu_by) GCKPTI_IF_ACTIVATIONS(FAST_BY(gelu_erf, NULL, gelu_erf_by))
    FAST_BY(silu, NULL, silu_by) FAST_BY(tanh, NULL, tanh_by)
    FAST_BY(sigmoid, NULL, sigmoid_by) FAST_BY(relu, NULL, relu_by)
    FAST_BY(scale, NULL, scale_by) FAST_BY(slice, NULL, slice_by)
    FAST_BY(rotary, NULL, rotary_by) FAST_BY(dropout, NULL, dropout_by)
};
/* clang-format on */

template <size_t N> const OpKernels *row_of(const OpKernels (&ops)[N], const gckpt_op *op)
{
    for (const OpKernels &row : ops)
        if (op->flags & GCKPTI_BUILTIN_OP && !strcmp(op->name, row.op))
            return &row;
    return NULL;
}

template <const auto &OPS> gckpt_kernel find(void *, const gckpt_op *op, gckpt_kind kind)
{
    const OpKernels *row = row_of(OPS, op);
    return !row ? NULL : kind == GCKPT_FORWARD ? row->forward : row->backward;
}

gckpt_result workspace(void *, const gckpt_op *op, gckpt_call *call)
{
    const OpKernels *row = call->precision == GCKPT_BF16_FAST ? row_of(FAST_OPS, op) : NULL;
    if (!row || !row->workspace)
        row = row_of(EXACT_OPS, op);
    return row && row->workspace ? row->workspace(call) : GCKPT_OK;
}
