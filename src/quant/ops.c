#include "ops/internal.h"

#ifndef GCKPT_NO_QUANT
static void gckpti_dequantise_item(void *context, int64_t i, int64_t worker)
{
    const gckpt_dequantisation *u = (const gckpt_dequantisation *)context;
    int64_t at = i * GCKPTI_GRAIN_SIZE;
    (void)worker;
    gckpti_dequantise(u, at, gckpti_min(u->n - at, GCKPTI_GRAIN_SIZE), u->to + at);
}

GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant)
{
    gckpt_dequantisation u = *quant;
    gckpt_parallel(call, GCKPTI_GRAINS(u.n), gckpti_dequantise_item, &u);
}

/* Computes a product; dequantises parts of b's rows. The bits do not depend on the parts' size. */
GCKPTI_FN void gckpti_fp32_quant(const gckpti_product *t)
{
    enum { CHUNK = 64 >> GCKPTI_IS_SMALL };
    const gckpt_dequantisation *u = t->b.quant;
    const int along_k = t->b.stride != 1; /* nonzero if k is the contiguous axis of b */
    const int64_t width = along_k ? t->k : t->n;
    float w[CHUNK];
    for (int64_t i = 0; i < t->m * t->n && !t->accumulate; i++)
        t->c[i] = t->initial ? t->initial[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < t->n * t->k; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min((int)CHUNK, width - first);
        gckpti_dequantise(u, at, n, w);
        for (int64_t i = 0; i < t->m; i++) {
            const float *a = t->a.f32 + i * t->a.stride + (along_k ? first : row) * t->a.k_stride;
            float *c = t->c + i * t->n + (along_k ? row : first);
            if (!along_k)
                gckpti_axpy(*a, w, n, c);
            for (int64_t p = 0; along_k && p < n; p++)
                *c = gckpti_fma(a[p * t->a.k_stride], w[p], *c);
        }
    }
}
#endif
