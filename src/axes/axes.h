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

/* Returns which elements of input i and of the result correspond, as an iterator over both. */
typedef gckpti_iter gckpti_move_fn(const gckpt_call *call, int i);
GCKPTI_FN gckpti_iter gckpti_permute_move(const gckpt_call *call, int i);
GCKPTI_FN gckpti_iter gckpti_concat_move(const gckpt_call *call, int i);
GCKPTI_FN gckpti_iter gckpti_pad_move(const gckpt_call *call, int i);
GCKPTI_FN gckpti_iter gckpti_sum_move(const gckpt_call *call, int i);
#endif
