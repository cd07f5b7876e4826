#include "cpu/own.h"

#if GCKPTI_HAS_FAST

GCKPTI_FN const gckpti_kernels *gckpti_kernels_of(const gckpt_call *call)
{
    return (const gckpti_kernels *)call->kernels;
}

/* Items that need no scratch and nothing but the call: item(call, 0..n-1). */
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

GCKPTI_FN void gckpti_each(const gckpt_call *call, int64_t n, int64_t work,
                           void (*item)(const gckpt_call *call, int64_t i))
{
    gckpti_call_items s = { call, item };
    gckpt_parallel(call, n, work, gckpti_call_item, &s);
}

GCKPTI_FN void gckpti_each_row(const gckpt_call *call,
                               void (*row)(const gckpt_call *call, int64_t r))
{
    gckpti_each(call, gckpti_rows(&call->shape), 16 * gckpti_last(&call->shape), row);
}
#endif
