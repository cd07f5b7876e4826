#include "ops/internal.h"

#ifndef GCKPT_NO_BF16
GCKPTI_DEVICE GCKPTI_FN float gckpti_tiny_fma(float a, float b, float c, float d)
{
    const float scale = 18446744073709551616.0f;
    const uint32_t u = gckpti_bits(d), x = gckpti_bits(a) << 1, y = gckpti_bits(b) << 1;
    if (u << 1 == 0x01000000u &&
        gckpti_bits(gckpti_fma(x < y ? a * scale : a, x < y ? b : b * scale, c * scale)) << 1 >=
            0x41000000u)
        return d;
    return gckpti_float(u & 0x80000000u);
}

GCKPTI_FN int gckpti_has_builtin_flag(const gckpt_op *op, int flag)
{
    return op->flags & GCKPTI_BUILTIN_OP && op->flags & (unsigned)flag;
}

GCKPTI_FN int64_t gckpti_mixed_workspace(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 4194304.0)
        return 0;
    int64_t rows = gckpti_min(gckpti_ceil_to(m, GCKPTI_STRIP), GCKPTI_MIXED_MC);
    int64_t terms = gckpti_min(gckpti_ceil_to(k, GCKPTI_K_BLOCK), GCKPTI_MIXED_KC);
    int64_t partial = k > terms ? rows * gckpti_min(gckpti_ceil_to(n, GCKPTI_PANEL), GCKPTI_NC) : 0;
    return (rows + GCKPTI_PANEL) * terms / 2 + partial;
}

/* ---- elements of matrix products in bf16 plans (manual, 5l; see ops/products.c) ---- */
/* Adds term p of two operands, whose f32 values are rounded to bf16, to d. */
static float gckpti_mixed_term(const gckpti_operand *a, const gckpti_operand *b, int64_t p, float d)
{
    const int64_t i = p * a->k_stride, j = p * b->k_stride;
    const uint16_t x = a->halves ? a->halves[i] : gckpti_to_bf16(a->f32[i]);
    const uint16_t y = b->halves ? b->halves[j] : gckpti_to_bf16(b->f32[j]);
    return gckpti_flushed_fma(gckpti_flush_to_zero(gckpti_from_bf16(x)),
                              gckpti_flush_to_zero(gckpti_from_bf16(y)), d);
}

/* Returns `element` after adding terms first..end-1, which are a block. */
static float gckpti_mixed_block(const gckpti_operand *a, const gckpti_operand *b, int64_t first,
                                int64_t end, float element)
{
    float chain[2] = { 0.0f, 0.0f };
    for (int64_t p = first; p < end; p++)
        chain[p & 1] = gckpti_mixed_term(a, b, p, chain[p & 1]);
    return gckpti_flush_to_zero(gckpti_flush_to_zero(element) +
                                gckpti_flush_to_zero(chain[0] + chain[1]));
}

GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d)
{
    const gckpti_operand x = gckpti_operand_at(&t->a, a), y = gckpti_operand_at(&t->b, b);
    if (gckpti_is_chain(t)) {
        d = gckpti_flush_to_zero(d);
        for (int64_t p = 0; p < t->k; p++)
            d = gckpti_mixed_term(&x, &y, p, d);
        return d;
    }
    for (int64_t p = 0, n; p < t->k; p += n) {
        n = gckpti_block_terms(t, p);
        if (!gckpti_has_compressed(&t->b)) {
            d = gckpti_mixed_block(&x, &y, p, p + n, d);
            continue;
        }
        float w[GCKPTI_K_BLOCK];
        const gckpti_operand row = gckpti_operand_at(&x, p * x.k_stride);
        const gckpti_operand column = gckpti_matrix(w, 0, 1);
        for (int64_t l = 0, each = y.k_stride == 1 ? n : 1; l < n; l += each)
            gckpti_decompress(y.compressed, b + (p + l) * y.k_stride, each, w + l);
        d = gckpti_mixed_block(&row, &column, 0, n, d);
    }
    return d;
}

GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    (void)call;
    for (int64_t i = 0; i < t->batch * t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            const int64_t a = i / t->m * t->a.batch_stride + i % t->m * t->a.stride,
                          at = i * t->n + j;
            const int64_t b = i / t->m * t->b.batch_stride + j * t->b.stride;
            float d = t->initial ? t->initial[j] : 0.0f;
            if (t->accumulate)
                d = t->c ? t->c[at] : gckpti_from_bf16(t->c_halves[at]);
            d = gckpti_mixed_element(t, a, b, d);
            if (t->c)
                t->c[at] = d;
            else
                t->c_halves[at] = gckpti_to_bf16(d);
        }
}
#endif
