#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- attention: an item is a block of queries of one head (forward), a head (backward) ---- */
static gckpti_heads gckpti_heads_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2], d = c / o->heads;
    gckpti_heads h = { call,
                       t,
                       call->in[1].shape.d[1],
                       c,
                       d,
                       gckpti_attention_wide(call, d),
                       o->heads,
                       (t + GCKPTI_BLOCK - 1) / GCKPTI_BLOCK,
                       gckpti_attention_keys(call),
                       gckpti_is_mixed(call),
                       1.0f / gckpti_sqrt((float)d) };
    return h;
}

/* Those of a bf16 plan want a processor that can flush subnormals as x86 does; else the plain ones
 * run, an item being a head. */
static int gckpti_attention_is_fast(const gckpt_call *call)
{
    return !gckpti_is_mixed(call) || gckpti_mixed_of(gckpti_kernels_of(call))->attention_forward;
}

static void gckpti_attention_plain_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    int backward = h->call->grad_out || h->call->grad_out_bf16;
    float *rest =
        (float *)h->call->work + worker * gckpti_attention_room(h->call, h->t, h->d, backward);
    if (backward)
        gckpti_attention_gradients(h->call, i, rest);
    else
        gckpti_attention_queries(h->call, i * h->t, (i + 1) * h->t, rest);
}

static void gckpti_attention_forward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    const gckpti_kernels *by = gckpti_kernels_of(h->call);
    int64_t room = worker * gckpti_attention_room(h->call, h->t, h->d, 0);
    int64_t block = h->blocks - 1 - i % h->blocks; /* causal: those with most work first */
    i /= h->blocks;
    (h->mixed ? gckpti_mixed_of(by)->attention_forward : by->attention_forward)(
        h, i / h->heads, i % h->heads, block * GCKPTI_BLOCK, (float *)h->call->work + room);
}

GCKPTI_FN void gckpti_fast_attention_forward(const gckpt_call *call)
{
    gckpti_heads h = gckpti_heads_of(call);
    if (gckpti_attention_is_fast(call))
        gckpt_parallel(call, call->shape.d[0] * h.heads * h.blocks,
                       (gckpti_min(h.t, GCKPTI_BLOCK) + 8) * h.sight.keys * h.d, /* 8: to read */
                       gckpti_attention_forward_item, &h);
    else
        gckpt_parallel(call, call->shape.d[0] * h.heads, 16 * h.t * h.sight.keys * h.d,
                       gckpti_attention_plain_item, &h);
}

static void gckpti_attention_backward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    const gckpti_kernels *by = gckpti_kernels_of(h->call);
    int64_t room = worker * gckpti_attention_room(h->call, h->t, h->d, 1);
    (h->mixed ? gckpti_mixed_of(by)->attention_backward : by->attention_backward)(
        h, i / h->heads, i % h->heads, (float *)h->call->work + room);
}

GCKPTI_FN void gckpti_fast_attention_backward(const gckpt_call *call)
{
    gckpti_heads h = gckpti_heads_of(call);
    int fast = gckpti_attention_is_fast(call);
    if (!fast)
        gckpti_attention_start(call);
    gckpt_parallel(call, call->shape.d[0] * h.heads, h.t * h.s * h.d,
                   fast ? gckpti_attention_backward_item : gckpti_attention_plain_item, &h);
}

/* ---- gather: an item is an entry of axis 0 ---- */
GCKPTI_FN void gckpti_fast_gather_forward(const gckpt_call *call)
{
    gckpti_each(call, call->shape.d[0], call->shape.d[1] * call->shape.d[2], gckpti_gather_entry);
}

GCKPTI_FN void gckpti_fast_gather_backward(const gckpt_call *call)
{
    int64_t work = (call->in[0].shape.d[1] + 4 * call->shape.d[1]) * call->shape.d[2];
    if (call->in[0].grad)
        gckpti_each(call, call->shape.d[0], work, gckpti_gather_entry_back);
}
#endif
