#pragma once
#include "store/store.h"

/* The storage kinds of quantised values, and functions that layer store calls. */

#ifndef GCKPT_NO_QUANT
GCKPTI_FN void gckpti_read_bf16(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_bf16(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_f16(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_f16(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_int8(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_int8(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_int4(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_int4(const float *x, int64_t n, float scale, void *to);
#define GCKPTI_MODULE_KINDS                                                                        \
    { "BF16", "BF16", 2, 1, 2, 0, 0, 1e300, "", gckpti_read_bf16, gckpti_write_bf16 },             \
    { "F16", "F16", 2, 1, 2, 0, 0, 65504, "beyond 65504", gckpti_read_f16, gckpti_write_f16 },     \
    { "I8", "I8", 1, 1, 1, 1, 1, 3e38, "not finite", gckpti_read_int8, gckpti_write_int8 },        \
    { "I4", "U8", 1, GCKPTI_INT4_BLOCK, GCKPTI_INT4_BYTES, 1, 0, GCKPTI_INT4_MAX,                  \
      "beyond 524032, or not finite", gckpti_read_int4, gckpti_write_int4 },

/* Quantises the values of `from` (or its initial values, if it has none) into the memory of `to`.
 * Returns 0 if a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);

/* Rounds *n initial values (lowered to end in the row) from `at` on, in x, as q's storage does. */
GCKPTI_FN void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     int64_t *n, float *x);

#ifdef GCKPTI_SEPARATE_TU
/* quant/rows.c, which has the comments */
GCKPTI_FN float gckpti_row_scale(uint32_t max_bits);
GCKPTI_FN uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n);
GCKPTI_FN int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x,
                                 float scale);
#endif
#else
#define GCKPTI_MODULE_KINDS
#define gckpti_init_quantised(s, q, at, n, x) ((void)0)
#define gckpti_values_copy(s, from, to)       ((void)(s), 1)
#endif
