#pragma once
#include "num/sums.h"

/* The next link of n chains: d[j] = fma(s, x[j], d[j]). */
GCKPTI_INLINE void gckpti_link(float s, const float *x, int64_t n, float *d)
{
    for (const float *end = x + n; x < end; x++, d++)
        *d = gckpti_fma(s, *x, *d);
}

/* n whole chains: d[j] += a[p * a_step] b[j * stride + p], p = 0..k-1 ascending. Four go side by
 * side, since one alone would wait for each fma to finish; at the end the last is repeated and not
 * stored. (Seven parameters: three arrays, two steps, two sizes.) */
GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d);
GCKPTI_FN void gckpti_from_bf16s(const uint16_t *x, float *y, int64_t n);
GCKPTI_FN void gckpti_to_bf16s(const float *x, uint16_t *y, int64_t n);
