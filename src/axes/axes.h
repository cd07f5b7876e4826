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
} gckpti_pad;
#endif
