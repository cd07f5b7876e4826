#pragma once
#include "num/sums.h"

/* Adds the next term of n chains: d[j] = fma(s, x[j], d[j]). */
GCKPTI_INLINE void gckpti_axpy(float s, const float *x, int64_t n, float *d)
{
    for (; n > 0; n--, x++, d++)
        *d = gckpti_fma(s, *x, *d);
}

/* Adds k terms to n chains: d[j] += a[p * a_step] b[p * b_step + j], p = 0..k-1 ascending. Runs
 * four chains interleaved, since one chain alone waits for each fma. (Single variables, as -Os
 * keeps no array in registers; seven parameters: three arrays, two steps, two sizes.) */
GCKPTI_FN void gckpti_axpy_rows(const float *a, int64_t a_step, const float *b, int64_t b_step,
                                int64_t n, int64_t k, float *d);
/* Adds k terms to n chains along rows of b: d[j] += a[p * a_step] b[j * stride + p]. k may be 0. */
GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d);
