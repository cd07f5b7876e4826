/* unary.h - the elementwise ops of one input without attributes, as tests need them. Tests that go through all ops
 * use this list, so a new op is one line here and a row of GCKPTI_UNARY_OPS (src/ops/ops.h).
 *
 * X(name, what the backward reads besides the gradient: PC_0 the input, PC_O the output; where finite differences
 * apply: SMOOTH, KINKED (not at 0), POSITIVE (only for x > 0), STEEP (only for small x); the value in binary64;
 * the equivalent in PyTorch, which make ops-page writes into docs/ops.md) */
#ifndef UNARY_H
#define UNARY_H

/* clang-format off */
#define UNARY_TESTS(X)                                                                                                 \
    X(relu, PC_O, KINKED, x > 0 ? x : 0, "F.relu")                                                                     \
    X(softplus, PC_O, SMOOTH, log1p(exp(x)), "F.softplus")                                                             \
    X(gelu, PC_0, SMOOTH, x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))), "F.gelu(approximate='tanh')") \
    X(gelu_erf, PC_0, SMOOTH, x / 2 * (1 + erf(x * 0.70710678118654752440)), "F.gelu")                                 \
    X(silu, PC_0, SMOOTH, x / (1 + exp(-x)), "F.silu")                                                                 \
    X(tanh, PC_O, SMOOTH, tanh(x), "torch.tanh")                                                                       \
    X(sigmoid, PC_O, SMOOTH, 1 / (1 + exp(-x)), "torch.sigmoid")                                                       \
    X(exp, PC_O, STEEP, exp(x), "torch.exp")                                                                           \
    X(log, PC_0, POSITIVE, log(x), "torch.log")                                                                        \
    X(sqrt, PC_O, POSITIVE, sqrt(x), "torch.sqrt")                                                                     \
    X(abs, PC_0, KINKED, fabs(x), "torch.abs")                                                                         \
    X(reciprocal, PC_O, POSITIVE, 1 / x, "torch.reciprocal")                                                           \
    X(sin, PC_0, SMOOTH, sin(x), "torch.sin")                                                                          \
    X(cos, PC_0, SMOOTH, cos(x), "torch.cos")                                                                          \
    X(mish, PC_0, SMOOTH, x * tanh(log1p(exp(x))), "F.mish")                                                           \
    X(selu, PC_0, KINKED, x > 0 ? 1.0507009873554805 * x : 1.7580993408473766 * expm1(x), "F.selu")                    \
    X(hardswish, PC_0, KINKED, x * fmin(fmax(x + 3, 0), 6) / 6, "F.hardswish")
/* clang-format on */

/* Those that gckpt_activation or gckpt_pow makes, as functions like the others. */
static inline gckpt_tensor *gckpt_reciprocal(gckpt_tensor *x)
{
    return gckpt_pow(x, -1);
}
#define UNARY_ACTIVATION(name, KIND) \
    static inline gckpt_tensor *gckpt_##name(gckpt_tensor *x) { return gckpt_activation(x, KIND, 0); }
UNARY_ACTIVATION(softplus, GCKPT_SOFTPLUS)
UNARY_ACTIVATION(selu, GCKPT_SELU)
UNARY_ACTIVATION(mish, GCKPT_MISH)
UNARY_ACTIVATION(hardswish, GCKPT_HARDSWISH)

#endif
