#ifndef GCKPT_NO_IMAGES
/* ---- Windows: images are (B,H,W,C), signals (B,T,C), channels last like all features. A signal is
 * an image with H = 1; its sizes are at index [1]: { .padding = { 0, 1 } }. A field of 0, or a
 * NULL window, selects the default: { .stride = { 2, 2 }, .padding = { 1, 1 } }. ---- */
typedef struct {
    int size[2];           /* pools: rows and columns of a window; convolutions: 0, as w has them */
    int stride[2];         /* distance between windows; default: convolutions 1, pools size */
    int padding[2];        /* zeros at both ends of H and W (max pools: ignored); default 0 */
    int dilation[2];       /* distance between neighbours within a window; default 1 */
    int groups;            /* convolutions: groups of channels (I: depthwise); default 1 */
    int output_padding[2]; /* transposed convolutions: rows and columns added at the end */
    int ceil;              /* pools: if nonzero, the last window may end after the padding */
    int exclude_padding;   /* average_pool: if nonzero, means are of elements of x alone */
} gckpt_window;
/* Convolution: x (B,H,W,I), w (KH,KW,I/groups,O), bias (O) or NULL -> (B,P,Q,O), P = (H + 2 padding
 * - dilation (KH - 1) - 1) / stride + 1. It is the correlation of x with w; a 1x1 w runs as
 * gckpt_linear. PyTorch's weights are (O,I,KH,KW): permute them (2,3,1,0), as layers_pytorch_load
 * of examples/layers.h does. */
GCKPT_API gckpt_tensor *gckpt_conv2d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window);
/* Convolution of signals, gckpt_conv2d with an H of 1; x (B,T,I), w (K,I/groups,O) -> (B,P,O). */
GCKPT_API gckpt_tensor *gckpt_conv1d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window);
/* Transposed convolution, the adjoint of a conv2d with this w (KH,KW,O/groups,I): x (B,H,W,I), bias
 * (O) or NULL -> (B,P,Q,O), P = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding +
 * 1. PyTorch's weights (I,O,KH,KW) are permuted (2,3,1,0). */
GCKPT_API gckpt_tensor *gckpt_conv2d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window);
GCKPT_API gckpt_tensor *gckpt_conv1d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window);
/* Pools: (B,H,W,C) -> (B,P,Q,C), or (B,T,C) -> (B,P,C), P = (H + 2 padding - dilation (size - 1) -
 * 1) / stride + 1, rounded down or, with ceil, up unless the last window then begins after x. max:
 * the maximum of each window, NaN if one is; the first maximum gets the gradient. average: the
 * mean, counting zeros of the padding unless exclude_padding is set. */
GCKPT_API gckpt_tensor *gckpt_max_pool(gckpt_tensor *x, const gckpt_window *window);
GCKPT_API gckpt_tensor *gckpt_average_pool(gckpt_tensor *x, const gckpt_window *window);
/* Resizes images (B,H,W,C) -> (B,height,width,C): GCKPT_NEAREST takes the nearest pixel (rounded
 * down), GCKPT_BILINEAR interpolates with the outer edges of both images aligned, _ALIGNED with the
 * centres of their corner pixels aligned (align_corners=True). As PyTorch's interpolate. */
typedef enum { GCKPT_NEAREST, GCKPT_BILINEAR, GCKPT_BILINEAR_ALIGNED } gckpt_upsampling;
GCKPT_API gckpt_tensor *gckpt_upsample(gckpt_tensor *x, int64_t height, int64_t width,
                                       gckpt_upsampling how);
/* Layernorm of each row of x (B,..,C) over all positions of each of `groups` equal ranges of
 * channels, 2 values or more; gain, bias (C) or NULL; an epsilon of 0 selects 1e-5. groups = C:
 * instance norm. Wu & He 2018. */
GCKPT_API gckpt_tensor *gckpt_groupnorm(gckpt_tensor *x, int groups, gckpt_tensor *gain,
                                        gckpt_tensor *bias, float epsilon);
/* Batch norm: (x - m) * rsqrt(v + epsilon) * gain + bias for each channel; m and v are measured
 * over all other axes in training, and are `mean` and `variance` in INFERENCE plans. So results
 * depend on the rows of the micro-batch (gckpt_plan_split_exact returns 0), and training refuses
 * one value per channel. `mean` and `variance` are gckpt_running (C), usually from 0 and 1,
 * momentum 0.1; a training step updates them (with the unbiased variance). An epsilon of 0 selects
 * 1e-5; Keras has 1e-3. Ioffe & Szegedy 2015. */
GCKPT_API gckpt_tensor *gckpt_batchnorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        gckpt_tensor *mean, gckpt_tensor *variance, float epsilon);
#endif /* GCKPT_NO_IMAGES */
