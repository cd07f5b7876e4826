#pragma once
#include "images/images.h"
#include "cpu/cpu.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_IMAGES)
/* A product of a convolution: operand a (DW: its transpose) is the virtual matrix of all windows,
 * with rows (image, i, j) and terms (tap, channel); in DW, t.m counts terms, t.k rows. Distances in
 * floats: `image` and `width` of images and their lines; `step` of results, `tap` of taps in a
 * line, the first tap at `first`; tap_len floats are adjacent: a tap's channels or, if taps are
 * adjacent, a line of taps. line_taps: such runs per line of w. */
typedef struct {
    gckpti_product t; /* a is not used; if t.b.k_stride is 1, b is that of tap 0 */
    int kind;
    const gckpti_conv_sizes *z;
    gckpti_axis_map r[2];
    const float *from;
    int64_t image, width, step, tap, first, tap_len, line_taps;
    int64_t from_next, c_next; /* from a group's data to the next group's */
} gckpti_conv_gemm;

/* Returns the offset of row i of t in c, or in an array of c's shape. */
static inline int64_t gckpti_conv_gemm_c(const gckpti_conv_gemm *s, int64_t i)
{
    const int64_t *side = s->kind == GCKPTI_CONV_UP ? s->z->image : s->z->windows;
    const gckpti_axis_map *r = s->r;
    int64_t line = i / r[1].results;
    if (s->kind == GCKPTI_CONV_DW)
        return i * s->t.c_stride;
    line = line / r[0].results * side[0] + r[0].out_first + line % r[0].results * r[0].out_step;
    return (line * side[1] + r[1].out_first + i % r[1].results * r[1].out_step) * s->t.c_stride;
}

/* Returns the offset in b of tap `tap` of this product. */
static inline int64_t gckpti_conv_gemm_b(const gckpti_conv_gemm *s, int64_t tap)
{
    const int64_t ky = tap / s->r[1].taps, kx = tap % s->r[1].taps;
    return gckpti_conv_tap(s->z, s->r, ky, kx) * s->z->group_c * s->z->o;
}

/* The kernels of an instruction set. */
typedef struct gckpti_image_kernels {
    void (*conv_block)(const gckpti_conv_gemm *s, const gckpti_c_block *block, float *pack,
                       int64_t scratch);
    gckpti_multiply_add_fn multiply_add;
    gckpti_windows_fn max_windows, average_windows;
    gckpti_channel_kernels channels;
    gckpti_scaled_add_fn scaled_add;
} gckpti_image_kernels;
#endif
