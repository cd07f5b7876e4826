#pragma once
#include "images/images.h"
#include "ops/kernels.h"

#ifndef GCKPT_NO_IMAGES
#if GCKPTI_HAS_FAST
/* A product of a convolution: operand a (DW: its transpose) is the virtual matrix of all windows,
 * with rows (image, i, j) and terms (tap, channel); in DW, t.m counts terms, t.k rows. Distances in
 * floats: `image` and `width` of images and their lines; `step` of results, `tap` of taps in a
 * line, the first tap at `first`; tap_len floats are adjacent: a tap's channels or, if taps are
 * adjacent, a line of taps. line_taps: such runs per line of w. */
typedef struct {
    gckpti_product t; /* a is not used; if t.b.k_stride is 1, b is that of tap 0 */
    const gckpti_conv *conv;
    const float *from;
    int64_t image, width, step, tap, first, tap_len, line_taps;
    int64_t from_next, c_next; /* from a group's data to the next group's */
} gckpti_conv_gemm;

/* A convolution in small groups, with as many channels as results in each. An item has `each` tiles
 * of dw, of `width` channels, or `each` lines of results, of all channels or 1 of `blocks`. */
enum { GCKPTI_GROUPED_MOST = 16, GCKPTI_DW_TAPS = 3, GCKPTI_DW_COLUMNS = 4 };
typedef struct {
    const gckpt_call *call;
    const gckpti_conv *conv;
    int64_t each, blocks, tiles, width;
} gckpti_grouped;

/* The kernels of an instruction set. */
typedef struct gckpti_image_kernels {
    void (*conv_block)(const gckpti_conv_gemm *s, const gckpti_c_block *block, float *pack,
                       int64_t scratch);
    void (*conv_grouped)(const gckpti_grouped *s, int64_t item);
    int64_t lanes; /* of a vector */
    gckpti_windows_fn max_windows, average_windows;
    const gckpti_channel_kernels *channels;
    gckpti_scaled_add_fn scaled_add;
    gckpti_conv_fn conv;
} gckpti_image_kernels;

GCKPTI_FN void gckpti_conv_fast(const gckpt_call *call, gckpti_conv *s); /* images/cpu.c */
#endif
#endif
