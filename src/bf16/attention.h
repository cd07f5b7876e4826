#pragma once
#include "attention/attention.h"

#ifndef GCKPT_NO_ATTENTION
#ifndef GCKPT_NO_BF16
GCKPTI_FN int64_t gckpti_mixed_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                                   int64_t d, int backward);
/* Load n rows of a head's gradient of input i, from element `at` on, to x, in rows of `row` floats
 * (+0 unless it accumulates), and store them. */
GCKPTI_FN void gckpti_attn_load_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                     int64_t row);
GCKPTI_FN void gckpti_attn_store_grad(const gckpti_attn *h, int i, int64_t at, int64_t n,
                                      const float *x, int64_t row);
/* Stores n rows of a head's gradient, in rows of D floats, unless x is NULL; zeros become +0. */
GCKPTI_FN void gckpti_attn_end_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x);
#else
#define gckpti_mixed_attention_workspace(call, t, s, d, backward) 0
#define gckpti_attn_load_grad(h, i, at, n, x, row)                ((void)(n), (void)(x))
#define gckpti_attn_end_grad(h, i, at, n, x)                      ((void)0)
#endif
#endif
