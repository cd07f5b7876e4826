#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- attention: an item is a block of queries of one head (forward), a head (backward) ---- */
static void gckpti_attention_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    const gckpt_call *call = h->call;
    const gckpti_kernels *by = gckpti_kernels_of(call);
    const gckpti_mixed_kernels *mixed = gckpti_mixed_of(by);
    const int backward = call->grad_out || call->grad_out_bf16;
    float *room = (float *)call->work;
    room += worker * gckpti_attention_room(call, h->t, h->d, backward);
    if (h->mixed)
        gckpti_mixed_ready(mixed, 1);
    if (backward) {
        (h->mixed ? mixed->attention_backward : by->attention_backward)(h, i / h->heads,
                                                                        i % h->heads, room);
    } else {
        int64_t block = h->blocks - 1 - i % h->blocks; /* causal: those with most work first */
        i /= h->blocks;
        (h->mixed ? mixed->attention_forward : by->attention_forward)(
            h, i / h->heads, i % h->heads, block * GCKPTI_BLOCK, room);
    }
    if (h->mixed)
        gckpti_mixed_ready(mixed, 0);
}

static void gckpti_attention_run(const gckpt_call *call, int backward, gckpti_heads h)
{
    int64_t items = call->shape.d[0] * h.heads, work = h.t * h.s * h.d;
    if (!backward) {
        items *= h.blocks;
        work = (gckpti_min(h.t, GCKPTI_BLOCK) + 8) * h.sight.keys * h.d; /* 8: to read */
    }
    gckpt_parallel(call, items, work, gckpti_attention_item, &h);
}

GCKPTI_BOTH_WAYS(fast_attention, gckpti_attention_run(call, backward, gckpti_heads_of(call)))
#endif
