#ifndef GCKPT_NO_AXES
/* Permutes the n axes: axis i of the result is axis axes[i] of x. */
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n);
/* Concatenates n <= GCKPT_MAX_INPUTS tensors along an axis. */
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis);
typedef enum {
    GCKPT_PAD_VALUE,    /* equal to `value` */
    GCKPT_PAD_REFLECT,  /* the inner neighbours of the end in reverse order; fewer than x has */
    GCKPT_PAD_REPLICATE /* equal to the element at the end */
} gckpt_pad_mode;
/* Adds `before` and `after` (0 or more) elements at the ends of an axis, as `mode` says. */
GCKPT_API gckpt_tensor *gckpt_pad(gckpt_tensor *x, int axis, int64_t before, int64_t after,
                                  gckpt_pad_mode mode, float value);
GCKPT_API gckpt_tensor *gckpt_sum(gckpt_tensor *x, int axis);  /* sum over an axis; removes it */
GCKPT_API gckpt_tensor *gckpt_mean(gckpt_tensor *x, int axis); /* mean over an axis; removes it */
/* The mean over all axes between batch and channels: (B,..,C) -> (B,C). */
GCKPT_API gckpt_tensor *gckpt_global_average_pool(gckpt_tensor *x);
/* Maximum over an axis; removes it. NaN if an element is. The first maximum gets the gradient. */
GCKPT_API gckpt_tensor *gckpt_max(gckpt_tensor *x, int axis);
/* The index (i32) of the element that gckpt_max returns; no gradient passes. Only gckpt_fetch and
 * ops that take indices may read the result (E_SHAPE if `axis` is longer than their table). */
GCKPT_API gckpt_tensor *gckpt_argmax(gckpt_tensor *x, int axis);
/* The k largest elements along an axis in descending order, in k * size comparisons; NaN are first,
 * of equal ones the lower index. The gradient goes to them. Unless `indices` is NULL, sets *indices
 * to their indices (i32), which may be used as those of gckpt_argmax. */
GCKPT_API gckpt_tensor *gckpt_top_k(gckpt_tensor *x, int axis, int k, gckpt_tensor **indices);
/* x (B,N,C), index i32 (B,M) -> (B,M,C): row index[b][m] of x[b]. Indices not in 0..N-1: E_DATA. */
GCKPT_API gckpt_tensor *gckpt_gather(gckpt_tensor *x, gckpt_tensor *index);
#endif /* GCKPT_NO_AXES */
