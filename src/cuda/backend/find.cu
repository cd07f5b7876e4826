#define OPS(X)                                                                                     \
    X(where)                                                                                       \
    X(dropout) X(log_softmax) X(slice) X(rotary) X(mean_squared_error) X(huber)                    \
        X(binary_cross_entropy) X(sum_loss) X(embed) X(linear) X(softmax) X(layernorm)             \
            X(cross_entropy) X(linear_cross_entropy) X(attention)

bool is_op(const gckpt_op *op, const char *name)
{
    return op->flags & GCKPTI_BUILTIN_OP && !strcmp(op->name, name);
}

template <auto F> struct Locked;
template <class... A, void (*F)(const gckpt_call *, A...)> struct Locked<F> {
    static void run(const gckpt_call *call, A... arguments)
    {
        DeviceLock lock(device_of(call));
        F(call, arguments...);
    }
};

/* Runs F under the device's lock. F may fuse its op with, or overlap, pending launches. */
template <void (*F)(const gckpt_call *)> void locked_no_flush(const gckpt_call *call)
{
    DeviceLock lock(device_of(call), true);
    F(call);
}

/* If `op` has the name, find() returns which_forward or which_backward, under the device's lock. */
#define FOUND(name, which)                                                                         \
    if (is_op(op, #name))                                                                          \
        return kind == GCKPT_FORWARD ? Locked<which##_forward>::run : Locked<which##_backward>::run;
#define FORWARD(which)                                                                             \
    if (is_op(op, #which) && kind == GCKPT_FORWARD)                                                \
        return Locked<which##_forward>::run;

gckpt_kernel find(void *, const gckpt_op *op, gckpt_kind kind)
{
#define X(which)       FOUND(which, which)
#define ROW(name, ...) X(name)
    OPS(X)
    GCKPTI_UNARY_OPS(ROW)
    GCKPTI_UNARY_OPS_WITH(ROW) GCKPTI_BINARY_OPS(ROW) FOUND(matmul, linear)
        FOUND(rmsnorm, layernorm) FOUND(gather, embed) FOUND(cross_entropy_with, cross_entropy)
            FOUND(soft_cross_entropy, cross_entropy)
                FOUND(mean_squared_error_with, mean_squared_error)
#ifndef GCKPT_NO_AXES
                    X(permute) X(concat) X(pad) X(sum) X(mean) X(max) FORWARD(argmax)
#endif
#ifndef GCKPT_NO_IMAGES
                        X(upsample) X(conv2d) X(max_pool) X(average_pool) X(groupnorm)
                            FOUND(batchnorm, groupnorm)
#endif
#ifndef GCKPT_NO_RECURRENT
                                X(gru) X(lstm)
#endif
#undef ROW
#undef X
                                    FORWARD(from_u8) FORWARD(detach) FORWARD(cache) return NULL;
}

/* FAST_OPS: ops with kernels of GCKPT_BF16_FAST; FAST_WORKSPACES: also with NAME_workspace(). */
#define FAST_WORKSPACES(X)                                                                         \
    X(linear) X(attention) X(linear_cross_entropy) X(add) X(sub) X(mul) X(layernorm) X(rmsnorm)
#define FAST_OPS(X)                                                                                \
    FAST_WORKSPACES(X)                                                                             \
    X(gelu) X(gelu_erf) X(silu) X(tanh) X(sigmoid) X(relu) X(scale) X(slice) X(rotary) X(dropout)

gckpt_kernel find_fast(void *, const gckpt_op *op, gckpt_kind kind)
{
#define X(which)                                                                                   \
    if (is_op(op, #which))                                                                         \
        return kind == GCKPT_FORWARD ? locked_no_flush<fast::which##_forward>                      \
                                     : locked_no_flush<fast::which##_backward>;
    FAST_OPS(X)
#undef X
    return NULL;
}

gckpt_result workspace(void *, const gckpt_op *op, gckpt_call *call)
{
#define X(which)                                                                                   \
    if (call->precision == GCKPT_BF16_FAST && is_op(op, #which))                                   \
        return fast::which##_workspace(call);
    FAST_WORKSPACES(X)
#undef X
    if (is_op(op, "conv2d") || is_op(op, "average_pool"))
        call->workspace_forward = call->workspace_backward = 0;
#ifndef GCKPT_NO_IMAGES
    if (is_op(op, "groupnorm") || is_op(op, "batchnorm"))
        call->workspace_forward = call->workspace_backward =
            sizeof(float) * (size_t)channel_workspace(call);
#endif
#ifndef GCKPT_NO_RECURRENT
    if (is_op(op, "gru") || is_op(op, "lstm")) {
        call->workspace_forward = sizeof(float) * (size_t)cells_workspace(call, 0);
        call->workspace_backward = sizeof(float) * (size_t)cells_workspace(call, 1);
    }
#endif
    bool classes = is_op(op, "cross_entropy_with") || is_op(op, "soft_cross_entropy");
    if (op->flags & GCKPTI_BUILTIN_OP && op->flags & GCKPT_LOSS) { /* each row's loss, a float */
        classes = classes || is_op(op, "cross_entropy");
        int64_t n = classes ? gckpti_rows(&call->in[0].shape) : loss_rows(call);
        call->workspace_forward = (size_t)n * sizeof(float);
        if (call->inputs == 3) /* a float per weight; class losses: also one per row */
            call->workspace_backward =
                sizeof(float) * (size_t)(gckpti_elements(&call->in[2].shape) + (classes ? n : 0));
    }
    if (is_op(op, "embed") || is_op(op, "gather"))
        call->workspace_backward =
            sizeof(unsigned) *
            (size_t)lists_words(gckpti_rows(&call->in[0].shape), gckpti_rows(&call->shape));
    if (is_op(op, "linear_cross_entropy"))
        for (int backward = 0; backward < 2; backward++)
            (backward ? call->workspace_backward : call->workspace_forward) =
                (size_t)logit_sizes(call, backward).size * sizeof(float);
    if (is_op(op, "attention")) /* workspace for delta: a float for each query of each head */
        call->workspace_backward = call->saved_bytes;
    return GCKPT_OK;
}
