#include "bf16/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
/* ---- attention: a work item is 64 queries of a head (forward), heads that share keys (backward)
 * ---- */
static void gckpti_attention_item(void *context, int64_t i, int64_t worker)
{
    gckpti_attn h = *(const gckpti_attn *)context;
    const gckpt_call *call = h.call;
    const gckpti_attention_kernels *kernels = gckpti_attention_kernels_of(call, h.mixed);
    const int backward = call->grad_out || call->grad_out_bf16;
    const int64_t block = h.blocks - 1 - i % h.blocks; /* causal: the last queries cost most */
    float *scratch = (float *)call->workspace;
    scratch += worker * gckpti_attention_workspace(call, h.t, h.shared_keys, h.d, backward);
    i = backward ? i * h.group : i / h.blocks;
    if (!gckpti_attn_set_row(&h, i / h.heads))
        return;
    for (int64_t end = i + h.group; backward && i < end; i++)
        kernels->backward(&h, i / h.heads, i % h.heads, scratch);
    if (!backward)
        kernels->forward(&h, i / h.heads, i % h.heads, block * GCKPTI_QK_TILE, scratch);
}

static void gckpti_fast_attention(const gckpt_call *call, int backward, gckpti_attn h)
{
    int64_t items = call->shape.d[0] * h.heads / h.group, cost = h.group * h.t * h.s * h.d;
    if (!backward) {
        items *= h.group * h.blocks;
        cost = (gckpti_min(h.t, GCKPTI_QK_TILE) + 8) * gckpti_min(h.visible.keys, h.window) *
               h.d; /* 8: loads */
    }
    gckpt_parallel(call, items, cost, gckpti_attention_item, &h);
}

GCKPTI_OP_KERNELS(fast_attention,
                  gckpti_fast_attention(call, backward, gckpti_attention_begin(call, backward)))
#endif
