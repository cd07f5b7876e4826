#pragma once
#include "ops/ops.h"

/* Convolutions, pools, upsample, groupnorm and batchnorm: attributes, states of calls, kernels. */
#ifndef GCKPT_NO_IMAGES
/* ---- images/pools.c ---- */
typedef struct {
    int size[2], stride[2], padding[2], dilation[2], ceil, exclude_padding; /* of gckpt_window */
} gckpti_pool;

/* The state of a pool: rows and columns of x (in) and y (out), channels. */
typedef struct {
    gckpti_pool o;
    int64_t images, in[2], out[2], channels;
    const gckpt_call *call;
    int max, backward;
    int stores; /* nonzero if dx is stored, not added to: each element is in one window */
} gckpti_pool_state;

/* Taps begin..end-1 of a window are within x on one axis; a mean divides by `counted` of them. */
typedef struct {
    int64_t begin, end, counted;
} gckpti_pool_taps;

/* Returns the number of taps, 0 to size, `dilation` apart, that are nearer than `distance`. */
GCKPTI_INLINE int64_t gckpti_pool_nearer(int64_t distance, int64_t dilation, int64_t size)
{
    const int64_t taps = dilation == 1 ? distance : (distance + dilation - 1) / dilation;
    return distance <= 0 ? 0 : gckpti_min(taps, size);
}

/* Returns the taps of the window whose first tap is at `first`, an index of x or negative. */
GCKPTI_INLINE gckpti_pool_taps gckpti_pool_taps_of(const gckpti_pool_state *s, int axis,
                                                   int64_t first)
{
    const int64_t apart = s->o.dilation[axis], size = s->o.size[axis], end = s->in[axis] - first;
    gckpti_pool_taps taps;
    taps.begin = gckpti_pool_nearer(-first, apart, size);
    taps.end = gckpti_pool_nearer(end, apart, size);
    taps.counted = s->o.exclude_padding ? taps.end - taps.begin
                                        : gckpti_pool_nearer(end + s->o.padding[axis], apart, size);
    return taps;
}

/* ---- images/upsample.c ---- */
typedef struct {
    int size[2]; /* of the result: rows, columns */
    int mode;
} gckpti_upsample;

typedef struct { /* n (1 or 2) source positions along an axis, and their weights */
    int64_t index[2];
    float weight[2];
    int n;
} gckpti_interp;

/* Returns the source positions, of `size`, from which result i of n is interpolated. */
GCKPTI_INLINE gckpti_interp gckpti_interp_of(int mode, int64_t size, int64_t n, int64_t i)
{
    const int aligned = mode == GCKPT_BILINEAR_ALIGNED && n > 1;
    const float half = mode == GCKPT_BILINEAR ? 0.5f : 0.0f;
    const float ratio = (float)(size - aligned) / (float)(n - aligned);
    const float p = gckpti_mul(ratio, (float)i + half) - half;
    const int64_t at = gckpti_min((int64_t)p, size - 1), next = gckpti_min(at + 1, size - 1);
    const float fraction = mode == GCKPT_NEAREST || p < 0.0f ? 0.0f : p - (float)at;
    const gckpti_interp x = { { at, next }, { 1.0f - fraction, fraction }, 1 + (fraction > 0.0f) };
    return x;
}

/* ---- images/channels.c ---- */
typedef struct gckpti_channel_pass { /* a pass over an image; unused fields are NULL */
    const float *x, *g;
    const float *gain, *bias; /* one value per channel, as in all arrays below */
    float *mean, *rstd;
    float *s, *t; /* sums of x - mean, of its squares, or of g and g h; or their means */
    float *to;    /* the result: y or dx */
    int64_t pixels, channels;
    int squares, accumulate;
} gckpti_channel_pass;

/* Kernels for channels first..end-1 of a pass. */
typedef void (*gckpti_channel_fn)(const gckpti_channel_pass *p, int64_t first, int64_t end);
typedef struct {
    gckpti_channel_fn sums, out, dx;
} gckpti_channel_kernels;

/* ---- images/conv.c ---- */
typedef struct {
    gckpt_window window;
    int transposed;
} gckpti_conv2d;

typedef struct { /* index 0 means rows, index 1 columns */
    gckpt_window window;
    int64_t rows, image[2], windows[2], taps[2];
    int64_t c, o, group_c, group_o;
} gckpti_conv_sizes;

/* One axis. Tap k of result i reads element i * stride + k * dilation + first of an axis of `size`.
 * Result i is output out_first + i * out_step; tap k is tap_first + k * tap_step of w. */
typedef struct {
    int64_t size, results, taps;
    int64_t stride, dilation, first;
    int64_t out_first, out_step, tap_first, tap_step;
} gckpti_axis_map;

enum { GCKPTI_CONV_DOWN, GCKPTI_CONV_UP, GCKPTI_CONV_DW };

/* Returns whether a group has few channels and as many results: see images/grouped.c. */
GCKPTI_FN int gckpti_conv_is_grouped(const gckpti_conv_sizes *z);

/* Returns floats of workspace: a product's, and space for rows of a that a convolution gathers. */
GCKPTI_FN int64_t gckpti_conv_workspace(int64_t m, int64_t n, int64_t k);

/* Returns the index in w of tap (ky,kx) of r. */
GCKPTI_FN int64_t gckpti_conv_tap(const gckpti_conv_sizes *z, const gckpti_axis_map *r, int64_t ky,
                                  int64_t kx);

/* Work of one kind, for UP of one phase. For DW, `from` is the image, w the windows, out is dw. */
typedef struct {
    const gckpti_conv_sizes *z;
    gckpti_axis_map r[2];
    int kind, accumulate;
    const float *from, *start, *w;
    float *out;
} gckpti_conv;

/* Returns the index, among all pixels (UP) or windows, of result (i,j) of image `row`. */
GCKPTI_INLINE int64_t gckpti_conv_place_of(const gckpti_conv *s, int64_t row, int64_t i, int64_t j)
{
    const int64_t *side = s->kind == GCKPTI_CONV_UP ? s->z->image : s->z->windows;
    const gckpti_axis_map *r = s->r;
    return (row * side[0] + r[0].out_first + i * r[0].out_step) * side[1] + r[1].out_first +
           j * r[1].out_step;
}

/* Returns gckpti_conv_place_of result i of all rows. */
GCKPTI_INLINE int64_t gckpti_conv_place(const gckpti_conv *s, int64_t i)
{
    const int64_t lines = s->r[0].results, columns = s->r[1].results, line = i / columns;
    return gckpti_conv_place_of(s, line / lines, line % lines, i % columns);
}

/* Computes the results, phase by phase, then dw: `run` reads from s->kind what to compute. */
typedef void (*gckpti_conv_fn)(const gckpt_call *call, gckpti_conv *s);
GCKPTI_FN void gckpti_run_conv(const gckpt_call *call, int backward, gckpti_conv_fn run);
#include "num/plain_begin.h"
#include "images/loops.h"
#include "num/plain_end.h"
#define GCKPTI_IF_IMAGES(x) x
#else
#define GCKPTI_IF_IMAGES(x) NULL
#endif
