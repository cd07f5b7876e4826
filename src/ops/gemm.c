#include "ops/internal.h"

typedef struct {
    const gckpt_call *call;
    void (*item)(const gckpt_call *call, int64_t i);
} gckpti_call_items;

static void gckpti_call_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_call_items *s = (const gckpti_call_items *)context;
    (void)worker;
    s->item(s->call, i);
}

GCKPTI_FN void gckpti_for_each(const gckpt_call *call, int64_t n, int64_t cost,
                               void (*item)(const gckpt_call *call, int64_t i))
{
    gckpti_call_items s = { call, item };
    gckpt_parallel(call, n, cost, gckpti_call_item, &s);
}

GCKPTI_FN uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward)
{
    int wanted = 0;
    for (int i = 0; i < call->inputs; i++)
        wanted += call->in[i].grad != NULL;
    return wanted > 1 ? 2 * forward : forward;
}

GCKPTI_FN int64_t gckpti_product_workspace(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 16777216.0)
        return 0;
    return (gckpti_min(gckpti_ceil_to(n, GCKPTI_PANEL), GCKPTI_NC) + GCKPTI_STRIP) *
           gckpti_min(gckpti_ceil_to(k, 16), GCKPTI_KC);
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

/* Returns the floats of workspace for a product in this call's plan (f32 or bf16), all threads. */
static int64_t gckpti_threads_workspace(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    if (gckpti_is_plain(call))
        return 0;
    return call->threads * (gckpti_is_mixed(call) ? gckpti_mixed_workspace(m, n, k)
                                                  : gckpti_product_workspace(m, n, k));
}

/* Zeroes the gradients of inputs first..end-1, unless they accumulate. */
static void gckpti_zero_gradients(const gckpt_call *call, int first, int end)
{
    for (int i = first; i < end; i++)
        if (call->in[i].grad)
            gckpti_zero_unless(call->in[i].grad, gckpti_elements(&call->in[i].shape),
                               call->in[i].accumulate);
}

/* Makes u's quantised data an operand (u may be NULL); bf16 counts as quantised in f32 plans. */
static void gckpti_operand_set_quant(const gckpt_call *call, const gckpt_dequantisation *u,
                                     gckpti_operand *x)
{
    const int is_bf16 = u && gckpti_is_mixed(call) && u->storage == GCKPT_STORAGE_BF16;
    if (is_bf16)
        x->bf16 = (const uint16_t *)u->quantised;
    else
        x->quant = u;
}

/* Sets all fields of t except a, b, k_period and k_offset. */
static void gckpti_set_product(const gckpt_call *call, gckpti_product *t, int64_t batch, int64_t m,
                               int64_t n, int64_t k, float *c, uint16_t *c_bf16)
{
    t->batch = batch, t->m = m, t->n = n, t->k = k;
    t->initial = NULL, t->initial_stride = 0, t->accumulate = 0;
    t->c = c, t->c_bf16 = c_bf16, t->c_stride = n, t->workspace = call->workspace;
}

/* Computes an f32 product: chains of a row together if columns of b are adjacent, else singly. */
static void gckpti_fp32_plain(const gckpt_call *call, const gckpti_product *t)
{
    float *c = t->c;
    (void)call;
    const int quant = gckpti_has_quant(&t->b);
    if (quant)
        gckpti_fp32_quant(t);
    for (int64_t matrix = 0; matrix < t->batch && !quant; matrix++)
        for (int64_t i = 0; i < t->m; i++, c += t->n) {
            const float *a = t->a.f32 + matrix * t->a.batch_stride + i * t->a.stride;
            const float *b = t->b.f32 + matrix * t->b.batch_stride;
            if (t->initial)
                memcpy(c, t->initial, (size_t)t->n * sizeof *c);
            else
                gckpti_zero_unless(c, t->n, t->accumulate);
            if (t->b.stride != 1)
                gckpti_chains(a, t->a.k_stride, b, t->b.stride, t->n, t->k, c);
            else
                gckpti_axpy_rows(a, t->a.k_stride, b, t->b.k_stride, t->n, t->k, c);
        }
}
