#include "ops/internal.h"

#ifndef GCKPT_NO_QUANT
static void gckpti_dequantise_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_compressed *u = (const gckpti_compressed *)context;
    int64_t at = i * GCKPTI_GRAIN_SIZE;
    (void)worker;
    gckpti_decompress(u, at, gckpti_min(u->n - at, GCKPTI_GRAIN_SIZE), u->to + at);
}

GCKPTI_FN void gckpti_decompress_all(const gckpt_call *call, const gckpti_compressed *all)
{
    gckpti_compressed u = *all;
    gckpt_parallel(call, GCKPTI_GRAINS(u.n), gckpti_dequantise_item, &u);
}

/* Makes u an operand (u may be NULL); bf16 counts as compressed in f32 plans. */
static void gckpti_use_compressed(const gckpt_call *call, const gckpti_compressed *u,
                                  gckpti_operand *x)
{
    if (u && gckpti_is_mixed(call) && u->storage == GCKPT_STORAGE_BF16)
        x->halves = (const uint16_t *)u->quantised;
    else
        x->compressed = u;
}

/* Computes a product; decompresses parts of b's rows. The bits do not depend on the parts' size. */
GCKPTI_FN void gckpti_fp32_compressed(const gckpti_product *t)
{
    enum { CHUNK = 64 >> GCKPTI_IS_SMALL };
    const gckpti_compressed *u = t->b.compressed;
    const int along_k = t->b.stride != 1; /* nonzero if k is the contiguous axis of b */
    const int64_t width = along_k ? t->k : t->n;
    float w[CHUNK];
    for (int64_t i = 0; i < t->m * t->n && !t->accumulate; i++)
        t->c[i] = t->initial ? t->initial[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < t->n * t->k; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min((int)CHUNK, width - first);
        gckpti_decompress(u, at, n, w);
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
