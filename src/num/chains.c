#include "num/num.h"

GCKPTI_FN void gckpti_axpy_rows(const float *a, int64_t a_step, const float *b, int64_t b_step,
                                int64_t n, int64_t k, float *d)
{
    for (; n > 3 && k > 0; n -= 4, d += 4, b += 4) {
        const float *x = a, *y = b;
        float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
        int64_t p = k;
        do {
            d0 = gckpti_fma(*x, y[0], d0), d1 = gckpti_fma(*x, y[1], d1);
            d2 = gckpti_fma(*x, y[2], d2), d3 = gckpti_fma(*x, y[3], d3);
            x += a_step, y += b_step;
        } while (--p > 0);
        d[0] = d0, d[1] = d1, d[2] = d2, d[3] = d3;
    }
    for (; n > 0; n--, d++, b++)
        for (int64_t p = 0; p < k; p++)
            *d = gckpti_fma(a[p * a_step], b[p * b_step], *d);
}

GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d)
{
    for (; n > 3 && k > 0; n -= 4, d += 4) {
        const float *x = a, *b0 = b, *b1 = b0 + stride, *b2 = b1 + stride, *b3 = b2 + stride;
        float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
        int64_t p = k;
        b = b3 + stride;
        do {
            d0 = gckpti_fma(*x, *b0++, d0), d1 = gckpti_fma(*x, *b1++, d1);
            d2 = gckpti_fma(*x, *b2++, d2), d3 = gckpti_fma(*x, *b3++, d3);
            x += a_step;
        } while (--p > 0);
        d[0] = d0, d[1] = d1, d[2] = d2, d[3] = d3;
    }
    for (; n > 0; n--, b += stride, d++)
        gckpti_axpy_rows(a, a_step, b, 1, 1, k, d);
}
