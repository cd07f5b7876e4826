#include "ops/own.h"

#ifndef GCKPT_NO_BF16
GCKPTI_FN int gckpti_own_flag(const gckpt_op *op, int flag)
{
    return op->flags & GCKPTI_OWN_ROW && op->flags & (unsigned)flag;
}

/* ---- products of bf16 plans, one element after the other (see ops/products) ---- */
/* Where a chain starts. */
static float gckpti_mixed_start(const gckpti_product *t, int64_t at, int64_t j)
{
    if (t->accumulate)
        return t->c ? t->c[at] : gckpti_from_bf16(t->c_bf16[at]);
    return t->start ? t->start[j] : 0.0f;
}

GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    (void)call;
    for (int64_t i = 0; i < t->batch * t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            int64_t a = i / t->m * t->a.next + i % t->m * t->a.row, at = i * t->n + j;
            int64_t b = i / t->m * t->b.next + j * t->b.row;
            float d = gckpti_flush(gckpti_mixed_start(t, at, j));
            for (int64_t p = 0; p < t->k; p++, a += t->a.step, b += t->b.step)
                d = gckpti_mixed_link(gckpti_factor_at(&t->a, a), gckpti_factor_at(&t->b, b), d);
            if (t->c)
                t->c[at] = d;
            else
                t->c_bf16[at] = gckpti_to_bf16(d);
        }
}
#endif
