#pragma once

/* Rows of the tables in ops/ops.h for less common activations and functions (GCKPT_NO_ACTIVATIONS).
 * clamp: in mixed plans y is rounded; it can lie between low and high where x does not. */
#ifndef GCKPT_NO_ACTIVATIONS
/* clang-format off */
#define GCKPTI_MORE_UNARY_OPS(X)                                                                   \
    X(gelu_erf, gckpti_flops_20, GCKPT_IN(0), V(gelu_erf)(x), product, V(gelu_erf_deriv)(x))       \
    X(abs, NULL, GCKPT_IN(0), V(abs)(x), product, V(abs_deriv)(x))                                 \
    X(sin, gckpti_flops_20, GCKPT_IN(0), V(sin)(x), product, V(cos)(x))                            \
    X(cos, gckpti_flops_20, GCKPT_IN(0), V(cos)(x), product, V(sin_shifted)(x, 2))
#define GCKPTI_MORE_UNARY_OPS_WITH(X)                                                              \
    X(pow, gckpti_flops_20, GCKPT_IN(0), V(pow_dispatch)(x, o[0]), product,                        \
      o[0] * V(pow_dispatch)(x, o[0] - 1.0f),                                                      \
      1, (o[0] > 0.0f || o[0] < 0.0f),                                                             \
      "the exponent %g must be a number other than 0 (x^0 is a constant 1)")                       \
    X(reciprocal, gckpti_flops_8, GCKPT_OUT, 1.0f / x, product, -x * x, 0, 1, "")                  \
    X(clamp, NULL, GCKPT_IN(0), V(vmin)(V(set1)(o[1]), V(vmax)(V(set1)(o[0]), x)), masked,         \
      V(if_less)(V(set1)(o[0]), x, o[1] - x, V(zero)()), 2, (o[0] <= o[1]),                        \
      "low = %g must not be above high = %g (nor one of them NaN); an infinite one is no limit")   \
    X(leaky_relu, NULL, GCKPT_OUT, V(if_less)(V(zero)(), x, x, o[0] * x), product,                 \
      V(if_less)(V(zero)(), x, V(set1)(1.0f), V(set1)(o[0])),                                      \
      1, (o[0] >= 0.0f && o[0] < GCKPTI_INFINITY),                                                 \
      "slope = %g must be finite and 0 or above (if negative: relu(x) - slope * relu(-x))")        \
    X(softplus, gckpti_flops_20, GCKPT_OUT, V(softplus)(x), product, V(softplus_deriv)(x),         \
      0, 1, "")                                                                                    \
    X(elu, gckpti_flops_20, GCKPT_IN(0), V(elu)(x, 1.0f, o[0]), product,                           \
      V(elu_deriv)(x, 1.0f, o[0]), 1, (o[0] - o[0] == 0.0f), "alpha = %g must be finite")          \
    X(selu, gckpti_flops_20, GCKPT_IN(0), V(elu)(x, GCKPTI_SELU_HIGH, GCKPTI_SELU_LOW), product,   \
      V(elu_deriv)(x, GCKPTI_SELU_HIGH, GCKPTI_SELU_LOW), 0, 1, "")                                \
    X(mish, gckpti_flops_20, GCKPT_IN(0), V(mish)(x), product, V(mish_deriv)(x), 0, 1, "")         \
    X(hardswish, gckpti_flops_8, GCKPT_IN(0), V(hardswish)(x), product, V(hardswish_deriv)(x),     \
      0, 1, "")
#define GCKPTI_MORE_BINARY_GRADS(X)                                                                \
    X(not_negative, product, g, V(if_less)(V(zero)(), x, V(set1)(1.0f), y))                        \
    X(negative_part, product, V(if_less)(V(zero)(), y, V(zero)(), g),                              \
      V(if_less)(V(zero)(), y, V(zero)(), y))                                                      \
    X(larger, product, V(if_less)(x, y, V(zero)(), g),                                             \
      V(if_equal)(x, y, V(set1)(0.5f), V(set1)(1.0f)))                                             \
    X(smaller, product, V(if_less)(y, x, V(zero)(), g),                                            \
      V(if_equal)(x, y, V(set1)(0.5f), V(set1)(1.0f)))
#define GCKPTI_MORE_BINARY_OPS(X)                                                                  \
    X(maximum, NULL, 0, V(if_equal)(y, y, V(vmax)(y, x), y), larger, GCKPTI_BOTH_INPUTS,           \
      larger, GCKPTI_BOTH_INPUTS)                                                                  \
    X(minimum, NULL, 0, V(if_equal)(y, y, V(vmin)(y, x), y), smaller, GCKPTI_BOTH_INPUTS,          \
      smaller, GCKPTI_BOTH_INPUTS)                                                                 \
    X(prelu, NULL, 0, V(if_less)(V(zero)(), x, x, y * x), not_negative, GCKPTI_BOTH_INPUTS,        \
      negative_part, GCKPT_IN(0))
/* clang-format on */
#define GCKPTI_IF_ACTIVATIONS(...) __VA_ARGS__
#else
#define GCKPTI_MORE_UNARY_OPS(X)
#define GCKPTI_MORE_UNARY_OPS_WITH(X)
#define GCKPTI_MORE_BINARY_GRADS(X)
#define GCKPTI_MORE_BINARY_OPS(X)
#define GCKPTI_IF_ACTIVATIONS(...)
#endif
