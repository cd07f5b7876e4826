/* ref.h - reference implementations of the ops of gradckpt.h, in double precision and written in the plainest way.
 *
 * They use nothing of the library. A call with a NULL value returns NULL, so that one function can either
 * build a graph or evaluate the reference (see test_ops.c). Values live until ref_reset(). i32 values are
 * stored as doubles. The value of a loss has n = 0 axes; its v[0] is the sum, its v[1] the count. */
#ifndef TESTS_REF_H
#define TESTS_REF_H
#include <stddef.h>

typedef struct {
    int n;
    long d[6];
    double *v;
} ref_value;

void ref_reset(void);                                           /* frees all values */
/* returns a value with n axes of sizes d[], filled with zeros */
ref_value *ref_new(int n, const long *d);
long ref_elements(const ref_value *x);

ref_value *ref_embed(const ref_value *table, const ref_value *index);
ref_value *ref_gather(const ref_value *x, const ref_value *index);
/* The recurrent layers read p = x wx + bias of shape (B,T,G), G columns for all gates; an initial state h0 or c0 of
 * NULL means zeros, lengths of NULL mean T. before: nonzero if the reset gate comes before the product. */
ref_value *ref_gru(const ref_value *p, const ref_value *wh, const ref_value *bh,
                   const ref_value *h0, const ref_value *lengths, int before);
ref_value *ref_lstm(const ref_value *p, const ref_value *wh, const ref_value *h0,
                    const ref_value *c0, const ref_value *lengths);
ref_value *ref_matmul(const ref_value *a, const ref_value *b, int transposed);
ref_value *ref_linear(const ref_value *x, const ref_value *w, const ref_value *bias,
                      int transposed);
/* Options of a convolution of x (B,H,W,I) with w (KH,KW,I/groups,O), or if transposed (KH,KW,O/groups,I). [0] of a
 * pair is for the rows of an image, [1] for its columns. */
typedef struct { int stride[2], padding[2], dilation[2], groups, more[2], transposed; } ref_window;
ref_value *ref_convolution(const ref_value *x, const ref_value *w, const ref_value *bias,
                           const ref_window *z);
ref_value *ref_layernorm(const ref_value *x, const ref_value *gain, const ref_value *bias,
                         double epsilon);
ref_value *ref_rmsnorm(const ref_value *x, const ref_value *gain, double epsilon);
/* Group norm of x in `groups` groups of channels; groups = 0 selects batch norm, with statistics over all axes except
 * the last. */
ref_value *ref_groupnorm(const ref_value *x, long groups, const ref_value *gain, const ref_value *bias);
/* Pools x (B,H,W,C), or (B,W,C) as if H = 1, by the maximum (average 0) or by the mean, which counts zeros of the
 * padding (average 1) or not (average 2). ceil: whether the number of windows is rounded up. */
ref_value *ref_pool(const ref_value *x, const int *size, const int *stride, const int *padding, const int *dilation,
                    int ceil, int average);
/* applies f to each element */
ref_value *ref_map(const ref_value *x, double (*f)(double));
ref_value *ref_leaky_relu(const ref_value *x, double slope);
ref_value *ref_elu(const ref_value *x, double alpha);
/* Returns a where the condition is not 0, else b; operands broadcast as in ref_binary. */
ref_value *ref_where(const ref_value *condition, const ref_value *a, const ref_value *b);
ref_value *ref_pow(const ref_value *x, double exponent);
ref_value *ref_clamp(const ref_value *x, double low, double high);
ref_value *ref_softmax(const ref_value *x);
ref_value *ref_log_softmax(const ref_value *x);
/* Options of the mask of an attention. lengths: number of keys that each batch row attends to, or NULL for all keys.
 * mask: added to the scores (B,heads,T,S), broadcast, unless NULL. Another field that is 0 selects the default of gckpt_attention_desc. */
typedef struct { int heads, key_heads, causal; const ref_value *lengths; long window; double cap, scale; const ref_value *mask; } ref_mask;
ref_value *ref_attention(const ref_value *q, const ref_value *k, const ref_value *v, const ref_mask *o);
/* The gated delta rule: heads of v, decay and beta; key_heads of q and k; a scale of 0 selects the default. */
ref_value *ref_delta(const ref_value *q, const ref_value *k, const ref_value *v, const ref_value *decay,
                     const ref_value *beta, int heads, int key_heads, double scale);
ref_value *ref_cap(const ref_value *x, double cap);
/* Options of rotary positions. frequencies: radians per position, or NULL to compute them from base. Another field
 * that is 0 selects the default of gckpt_rotary_desc. */
typedef struct { int heads; double base; long first, turned; const float *frequencies; double scale; } ref_rotation;
ref_value *ref_rotary(const ref_value *x, const ref_rotation *by);
ref_value *ref_positions(const ref_value *x, const ref_value *table, long first);
/* Applies op to each pair of elements: '+', '-', '*', '/', '>' (maximum) or '<' (minimum). */
ref_value *ref_binary(char op, const ref_value *a, const ref_value *b);
ref_value *ref_scale(const ref_value *x, double factor);
ref_value *ref_reshape(const ref_value *x, int n, const long *d);         /* one size may be -1 */
ref_value *ref_permute(const ref_value *x, const int *axes);
ref_value *ref_slice(const ref_value *x, int axis, long begin, long end);
ref_value *ref_concat(const ref_value *const *x, int n, int axis);
ref_value *ref_reduce(const ref_value *x, int axis, int mean);
ref_value *ref_pad(const ref_value *x, int axis, long before, long after, int mode, double value);
/* Returns the maxima along the axis; if number is nonzero, returns the index of each (first) maximum instead. */
ref_value *ref_max(const ref_value *x, int axis, int number);
/* Returns the k largest elements along an axis, of equal ones the first, or, if number is nonzero, their indices. */
ref_value *ref_top_k(const ref_value *x, int axis, int k, int number);
/* Resizes the images x (B,H,W,C). how: 0 for the nearest pixel, 1 for bilinear, 2 for bilinear with aligned corners. */
ref_value *ref_upsample(const ref_value *x, long height, long width, int how);

ref_value *ref_cross_entropy(const ref_value *logits, const ref_value *targets);
ref_value *ref_mean_squared_error(const ref_value *prediction, const ref_value *target);
ref_value *ref_sum_loss(const ref_value *x);
/* Cross-entropy with weights. weights: one for each element of the targets' leading axes, or NULL. Targets of shape
 * (..,V) are soft: one probability per class. */
ref_value *ref_cross_entropy_with(const ref_value *logits, const ref_value *targets,
                                  const ref_value *weights, double smoothing);
/* Returns the weighted sum of f(prediction, target, option). */
ref_value *ref_errors(const ref_value *prediction, const ref_value *target,
                      const ref_value *weights, double (*f)(double x, double y, double option),
                      double option);
double ref_squared(double x, double y, double unused);
double ref_huber(double x, double y, double delta);
double ref_binary_entropy(double x, double y, double unused);

#endif
