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
    gckpti_product t; /* of a only batch_stride is used; if t.b.k_stride is 1, b is that of tap 0 */
    const gckpti_conv *conv;
    const float *from;
    int64_t image, width, step, tap, first, tap_len, line_taps;
} gckpti_conv_gemm;

/* A convolution whose groups have few channels. The channels are divided into `blocks` of `width`.
 * A work item computes `each` results of one block or, for DW, `taps` taps over all windows. */
enum {
    GCKPTI_GROUPED_CHANNELS = 1024, /* at most, of a block */
    GCKPTI_TILE_WINDOWS = 4,
    GCKPTI_TILE_TAPS = 32,        /* at most; more taps take several passes */
    GCKPTI_LARGE_FLOATS = 1 << 20 /* larger images are prefetched */
};
typedef struct {
    const gckpti_conv *conv;
    int64_t each, blocks, width, taps;
    int packs; /* if nonzero, an item copies its w */
} gckpti_grouped;

/* A tile: successive results, or for DW successive windows, of n channels from channel c on. It has
 * a pointer to each operand of their chains, for taps first to first + taps - 1. */
typedef struct {
    const float *from[GCKPTI_TILE_TAPS][GCKPTI_TILE_WINDOWS], *w[GCKPTI_TILE_TAPS];
    const float *start[GCKPTI_TILE_WINDOWS]; /* DW: the windows */
    float *to[GCKPTI_TILE_WINDOWS], *dw[GCKPTI_TILE_TAPS];
    const float *zeros; /* for taps outside the image and results after the last */
    float *unused;      /* the place of results after the last */
    int64_t c, n, first, taps, windows, w_term;       /* w_term: between a group's terms of w */
    int64_t y[GCKPTI_TILE_TAPS], x[GCKPTI_TILE_TAPS]; /* of the taps, from tap (0,0) */
    int64_t offset[GCKPTI_TILE_TAPS];                 /* in floats, of (y,x) */
    int64_t row, i, j;                                /* the next result: (i,j) of image `row` */
} gckpti_grouped_tile;

/* Prepares tiles from result `at` on; pack: w if an item copies it, or NULL. */
GCKPTI_FN void gckpti_grouped_begin(const gckpti_conv *s, gckpti_grouped_tile *tile,
                                    const float *pack, int64_t at);

/* Sets the next tile, of at most `left` results, or returns 0 if there is none. */
GCKPTI_FN int gckpti_grouped_next(const gckpti_conv *s, gckpti_grouped_tile *tile, int64_t left);

/* The kernels of an instruction set. */
typedef struct gckpti_image_kernels {
    void (*conv_block)(const gckpti_conv_gemm *s, const gckpti_c_block *block, float *pack,
                       int64_t scratch);
    void (*conv_grouped)(void *grouped, int64_t item, int64_t worker);
    int64_t lanes; /* of a vector */
    void (*pool_row)(const gckpti_pool_state *s, int64_t row);
    const gckpti_channel_kernels *channels;
    void (*upsample_row)(const gckpt_call *call, int64_t row);
    gckpti_conv_fn conv;
} gckpti_image_kernels;

GCKPTI_FN void gckpti_conv_fast(const gckpt_call *call, gckpti_conv *s); /* images/cpu.c */
#endif
#endif
