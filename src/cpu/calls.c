#include "cpu/internal.h"

GCKPTI_FN void gckpti_cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

typedef struct { /* context of the work items of an update pass */
    const gckpt_call *call;
    const gckpt_update_pass *pass;
    void (*add)(float *to, const float *from, int64_t n);
    float (*block)(const gckpt_update_pass *p, const float *addend, int64_t at, int64_t n,
                   int update);
} gckpti_update_state;

static void gckpti_cpu_update_item(void *context, int64_t b, int64_t worker)
{
    const gckpti_update_state *s = (const gckpti_update_state *)context;
    const gckpt_update_pass *p = s->pass;
    const int64_t size = GCKPT_UPDATE_BLOCK, at = b * size, n = gckpti_min(p->elements - at, size);
    const float *last = NULL;
    (void)worker;
    for (int u = 0; u < p->adds; u++) {
        const void *addend = (const char *)p->base + p->more[u];
        if (last)
            s->add(p->gradient + at, last, n);
        last = (const float *)addend + at;
    }
    float squares = s->block(p, last, at, n, p->update);
    if (p->squares)
        p->squares[b] = squares;
}

GCKPTI_FN void gckpti_cpu_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    gckpti_update_state s = { call, pass, GCKPTI_KERNEL_OF(call, add, gckpti_add_into),
                              GCKPTI_KERNEL_OF(call, update, gckpti_update_block) };
    gckpt_parallel(call, (pass->elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK,
                   4 * GCKPT_UPDATE_BLOCK, gckpti_cpu_update_item, &s);
}

GCKPTI_FN int gckpti_cpu_has(gckpt_isa isa, const void **kernels)
{
    *kernels = NULL;
#if GCKPTI_HAS_FAST
    if (isa >= GCKPT_ISA_C && isa < GCKPT_ISA_COUNT)
        *kernels = gckpti_kernels_for(isa);
#endif
    return *kernels || isa == GCKPT_ISA_PLAIN;
}

/* ---- functions for the kernels of users' ops (documented in api.h) ---- */
GCKPT_API float gckpt_fma(float a, float b, float c) { return gckpti_fma(a, b, c); }

GCKPT_API float gckpt_dot(const gckpt_call *call, const float *x, const float *y, int64_t n)
{
    return (call ? GCKPTI_KERNEL_OF(call, dot, gckpti_dot) : gckpti_dot)(x, y, n);
}

/* Returns bytes also for the transposed product, which gckpt_product may compute instead. */
GCKPT_API size_t gckpt_product_workspace(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    int64_t one = gckpti_product_workspace(m, n, k), other = gckpti_product_workspace(n, m, k);
    if (!call || call->plain)
        return 0;
    return (size_t)(one > other ? one : other) * (size_t)call->threads * sizeof(float);
}

/* Kernels need adjacent elements in a row of c, plain ones also in a row or a column of b. If c's
 * columns are adjacent, transposes; without adjacent elements, computes column after column. */
GCKPT_API void gckpt_product(const gckpt_call *call, const gckpt_product_desc *desc)
{
    if (!call || !desc || desc->m <= 0 || desc->n <= 0)
        return;
    gckpt_product_desc t = *desc;
    if (t.c_col != 1 && t.c_row == 1) { /* C' = B' A' */
        t.m = desc->n, t.a = desc->b, t.a_row = desc->b_col, t.a_col = desc->b_row;
        t.n = desc->m, t.b = desc->a, t.b_row = desc->a_col, t.b_col = desc->a_row;
        t.c_row = desc->c_col, t.c_col = 1;
    }
    const int whole = t.c_col == 1 && (call->kernels || t.b_col == 1 || t.b_row == 1);
    for (int64_t j = 0, n = whole ? t.n : 1; j < t.n; j += n) {
        const gckpti_operand a = gckpti_matrix(t.a, t.a_row, t.a_col);
        const gckpti_operand b = gckpti_matrix(t.b + j * t.b_col, n > 1 ? t.b_col : 1, t.b_row);
        gckpti_product p = gckpti_product_of(t.m, n, t.k, a, b, t.c + j * t.c_col);
        p.accumulate = t.accumulate, p.c_stride = t.c_row, p.workspace = t.workspace;
        GCKPTI_KERNEL_OF(call, product, gckpti_fp32_plain)(call, &p);
    }
}
