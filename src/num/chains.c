#include "num/num.h"

GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d)
{
    for (int64_t j0 = 0; j0 < n; j0 += 4) {
        const float *row[4];
        float sum[4];
        for (int i = 0; i < 4; i++) {
            int64_t j = j0 + i < n ? j0 + i : n - 1;
            row[i] = b + j * stride;
            sum[i] = d[j];
        }
        const float *at = a, *end = row[0] + k;
        for (; row[0] < end; at += a_step)
            for (int i = 0; i < 4; i++)
                sum[i] = gckpti_fma(*at, *row[i]++, sum[i]);
        for (int i = 0; i < 4 && j0 + i < n; i++)
            d[j0 + i] = sum[i];
    }
}

GCKPTI_FN void gckpti_from_bf16s(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_from_bf16(x[i]);
}

GCKPTI_FN void gckpti_to_bf16s(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}
