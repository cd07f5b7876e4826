#pragma once
#include "ops/ops.h"

/* Permutations, concatenations, pads, sums, means and maxima of axes (GCKPT_NO_AXES). */
#ifndef GCKPT_NO_AXES
typedef struct {
    int n, axes[GCKPT_MAX_DIMS];
} gckpti_permute;

typedef struct {
    int axis, before, after;
    float value;
    int mode; /* a gckpt_pad_mode */
} gckpti_pad;

/* Returns whether element i, of value v, comes before element j, of value w, in max and top_k: NaN
 * come first, then larger values; of equal ones, the lower index. */
GCKPTI_INLINE int gckpti_precedes(float v, int64_t i, float w, int64_t j)
{
    if (v != v || w != w)
        return v != v && (w == w || i < j);
    return v > w || (!(v < w) && i < j);
}

/* Returns the index, of n, of the element that is at `place` of the padded axis. */
GCKPTI_INLINE int64_t gckpti_pad_source(const gckpti_pad *p, int64_t n, int64_t place)
{
    const int64_t i = place - p->before, reflects = p->mode == GCKPT_PAD_REFLECT;
    return i < 0 ? -i * reflects : i >= n ? n - 1 - (i - n + 1) * reflects : i;
}

/* ---- axes/matmul.c ---- */
/* Adds a product of a and b, which may be vectors and whose leading axes are broadcast, to the
 * graph. */
GCKPTI_FN gckpt_tensor *gckpti_matmul_of(gckpt_tensor *a, gckpt_tensor *b, int transposed);
#else
#define gckpti_matmul_of(a, b, transposed)                                                         \
    gckpti_linear_new(&gckpti_op_matmul, a, b, NULL, transposed)
#endif
