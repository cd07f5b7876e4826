#ifndef GCKPT_NO_ACTIVATIONS
GCKPT_API gckpt_tensor *gckpt_gelu_erf(gckpt_tensor *x); /* x/2 (1 + erf(x / sqrt 2)) */
/* x - max - log(sum(exp(x - max))) over the last axis: log(softmax(x)) without log(0) */
GCKPT_API gckpt_tensor *gckpt_log_softmax(gckpt_tensor *x);
typedef enum {
    GCKPT_SOFTPLUS,   /* log(1 + exp(x)), without overflow */
    GCKPT_LEAKY_RELU, /* x if x > 0, else p x; the gradient at x = 0 is p; p is finite and >= 0 */
    GCKPT_ELU,        /* x if x > 0, else p (exp(x) - 1), with a finite p, usually 1 */
    GCKPT_SELU,       /* 1.0507 elu(x) with p = 1.67326 (Klambauer 2017) */
    GCKPT_MISH,       /* x tanh(log(1 + exp(x))) (Misra 2019) */
    GCKPT_HARDSWISH   /* x min(max(x + 3, 0), 6) / 6 */
} gckpt_activation_kind;
/* Computes a less common activation, whose parameter is p; for kinds without one, p must be 0. */
GCKPT_API gckpt_tensor *gckpt_activation(gckpt_tensor *x, gckpt_activation_kind kind, float p);
GCKPT_API gckpt_tensor *gckpt_abs(gckpt_tensor *x); /* absolute value; gradient 0 at x = 0 */
GCKPT_API gckpt_tensor *gckpt_sin(gckpt_tensor *x); /* sin(x), x in radians, finite */
GCKPT_API gckpt_tensor *gckpt_cos(gckpt_tensor *x); /* cos(x), x in radians, finite */
/* x^exponent, as C's pow, for an exponent other than 0; gradient: exponent * x^(exponent - 1). An
 * exponent of -1 gives 1 / x. */
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent);
/* min(max(x, low), high) with low <= high, either of which may be infinite. NaN stays NaN. The
 * gradient is 1 where low < x < high, else 0 (also where x equals a limit). */
GCKPT_API gckpt_tensor *gckpt_clamp(gckpt_tensor *x, float low, float high);
/* Converts bytes x (u8, may be reshaped) to f32: fma(x, scale, shift), e.g. scale 1/255 and shift 0
 * for values 0 to 1. An input of bytes takes a quarter of the memory of an input of floats. */
GCKPT_API gckpt_tensor *gckpt_from_u8(gckpt_tensor *x, float scale, float shift);
/* Returns x if x > 0, else slope * x; the slope, trained or not, is broadcast: (C) or (1). */
GCKPT_API gckpt_tensor *gckpt_prelu(gckpt_tensor *x, gckpt_tensor *slope);
/* Elementwise max and min, broadcast; NaN if a or b is. If a equals b, each gets half of the
 * gradient. */
GCKPT_API gckpt_tensor *gckpt_maximum(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_minimum(gckpt_tensor *a, gckpt_tensor *b);
/* Returns a where the condition (f32 or i32) is not 0 (NaN counts as not 0), else b; all broadcast.
 * Only the chosen elements get a gradient; for all others, even NaN and inf, it is 0. */
GCKPT_API gckpt_tensor *gckpt_where(gckpt_tensor *condition, gckpt_tensor *a, gckpt_tensor *b);
#endif /* GCKPT_NO_ACTIVATIONS */
