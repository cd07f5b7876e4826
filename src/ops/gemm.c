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

/* Returns the floats of workspace for a product in this call's precision, all threads. */
static int64_t gckpti_threads_workspace(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    if (gckpti_is_plain(call))
        return 0;
    return call->threads * (gckpti_is_mixed(call) ? gckpti_mixed_workspace(m, n, k)
                                                  : gckpti_product_workspace(m, n, k));
}

/* Zeroes the gradients of inputs first..end-1, unless they accumulate. */
GCKPTI_UNUSED static void gckpti_clear_grads(const gckpt_call *call, int first, int end)
{
    for (int i = first; i < end; i++)
        if (call->in[i].grad)
            gckpti_zero_unless(call->in[i].grad, gckpti_elements(&call->in[i].shape),
                               call->in[i].accumulate);
}

/* Computes an f32 product: chains of a row together if columns of b are adjacent, else singly. */
GCKPTI_FN void gckpti_fp32_plain(const gckpt_call *call, const gckpti_product *t)
{
    float *c = t->c;
    (void)call;
    if (gckpti_has_compressed(&t->b)) {
        GCKPTI_IF_COMPRESSED(gckpti_fp32_compressed(t));
        return;
    }
    for (int64_t matrix = 0; matrix < t->batch; matrix++)
        for (int64_t i = 0; i < t->m; i++, c += t->c_stride) {
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
