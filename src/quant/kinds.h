#pragma once
#include "store/store.h"

/* Functions by which layer store reads and writes quantised values. */

/* I4: values per block; bytes per block (2 for the scale); greatest magnitude: 8 * 65504. */
enum { GCKPTI_INT4_BLOCK = 32, GCKPTI_INT4_BYTES = 18, GCKPTI_INT4_MAX = 524032 };

#ifndef GCKPT_NO_QUANT
/* Dequantises elements at..at+n-1 of u to x. The source may be at the end of x: an element is read
 * before it is overwritten. Without scales, all scales are 1. */
GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x);

/* Returns u without the elements before `at`, the start of a row or block. */
GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at);

/* Returns a description of a parameter's values on the host, without destination. */
GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q);

/* Converts n values from element `at` on to floats. */
GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* Quantises n floats into q's memory from element `at` on: if rows are scaled a row, with its
 * scale; else whole blocks. Returns 0 if a float is too large. */
GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x);
#else
#define gckpti_dequantise(u, at, n, x)    ((void)(u), (void)(at), (void)(x))
#define gckpti_quant_from(u, at)          ((void)(at), *(u))
#define gckpti_dequantise_at(q, at, n, x) ((void)0)
#define gckpti_quantise_row(q, at, n, x)  ((void)(q), 0)
#endif
