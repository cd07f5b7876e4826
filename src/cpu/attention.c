#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- attention: an item is a block of queries of a head (forward), heads that share keys ---- */
static void gckpti_attention_item(void *context, int64_t i, int64_t worker)
{
    gckpti_heads h = *(const gckpti_heads *)context;
    const gckpt_call *call = h.call;
    const gckpti_kernels *by = gckpti_kernels_of(call);
    const gckpti_mixed_kernels *mixed = gckpti_mixed_of(by);
    const int backward = call->grad_out || call->grad_out_bf16;
    const int64_t block = h.blocks - 1 - i % h.blocks; /* causal: those with most work first */
    float *room = (float *)call->workspace;
    room += worker * gckpti_attention_room(call, h.t, h.shared, h.d, backward);
    i = backward ? i * h.group : i / h.blocks;
    if (!gckpti_heads_see(&h, i / h.heads))
        return;
    if (h.mixed)
        gckpti_mixed_ready(mixed, 1);
    for (int64_t end = i + h.group; backward && i < end; i++)
        (h.mixed ? mixed->attention_backward : by->attention_backward)(&h, i / h.heads, i % h.heads,
                                                                       room);
    if (!backward)
        (h.mixed ? mixed->attention_forward : by->attention_forward)(&h, i / h.heads, i % h.heads,
                                                                     block * GCKPTI_BLOCK, room);
    if (h.mixed)
        gckpti_mixed_ready(mixed, 0);
}

static void gckpti_attention_run(const gckpt_call *call, int backward, gckpti_heads h)
{
    int64_t items = call->shape.d[0] * h.heads / h.group, work = h.group * h.t * h.s * h.d;
    if (!backward) {
        items *= h.group * h.blocks;
        work = (gckpti_min(h.t, GCKPTI_BLOCK) + 8) *
               gckpti_min(h.sight.keys, h.window) * h.d; /* 8: to read */
    }
    gckpt_parallel(call, items, work, gckpti_attention_item, &h);
}

GCKPTI_BOTH_WAYS(fast_attention,
                 gckpti_attention_run(call, backward, gckpti_attention_begin(call, backward)))
#endif
