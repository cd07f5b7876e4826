#include "attention/attention.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_ATTENTION
/* ---- masked_attention: attention whose scores s_j get mask (f32), broadcast to (B,heads,T,S) ----
 * After scale and cap, s_j += mask_j. A key with the mask -inf has the weight +0, and its term is
 * added: its key and value must be finite. In mixed plans it computes in f32, as in others.
 * The mask's gradient: each element is a chain, from +0 or its old value, of p (dp - delta) over
 * the scores that it is added to: rows of the batch, heads, tiles of 64 queries, tiles of 64 keys,
 * queries, keys, from the outermost to the innermost. It computes scores and dp again, since
 * several heads and rows may share the mask. */

/* ---- the mask's gradient: a work item is a tile of the mask, or all queries (keys) that share its
 * elements ---- */
typedef struct {
    gckpti_attn h;
    int64_t n[4]; /* work items along rows, heads, tiles of queries, of keys: 1 where repeated */
} gckpti_mask_items;

static void gckpti_mask_tile(const gckpti_attn *h, int64_t head, int64_t i, int64_t j0,
                             float *scratch)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const int64_t end = gckpti_min(i + GCKPTI_KEY_TILE, h->t);
    const int64_t n = gckpti_min(h->s - j0, GCKPTI_KEY_TILE);
    const int64_t key = gckpti_attn_at_k(h, head) + j0 * h->kv_c;
    float score[GCKPTI_KEY_TILE], dp[GCKPTI_KEY_TILE];
    (void)scratch;
    for (; i < end; i++) {
        const int64_t at = gckpti_attn_at_q(h, head) + i * h->c;
        const float lse = ((const float *)call->saved)[head * h->t + i];
        const float delta = gckpti_dot(call->grad_out + at, call->out + at, h->d);
        gckpti_attention_dots(h, in[0].data + at, in[1].data + key, n, score);
        gckpti_attention_dots(h, call->grad_out + at, in[2].data + key, n, dp);
        for (int64_t j = 0; j < n; j++) {
            const float s = gckpti_attn_score(h, score[j]);
            const float p = gckpti_exp(gckpti_attn_plus_mask(h, s, head, i, j0 + j) - lse);
            float *d = in[3].grad + gckpti_attn_at_mask(h, head, i, j0 + j);
            *d = gckpti_fma(p, dp[j] - delta, *d);
        }
    }
}

static void gckpti_mask_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_mask_items *s = (const gckpti_mask_items *)context;
    const gckpti_attn *h = &s->h;
    const int64_t rows = h->call->shape.d[0], tile = GCKPTI_KEY_TILE, *n = s->n;
    const int64_t at_j = item % n[3] * tile, at_i = item / n[3] % n[2] * tile;
    const int64_t plane = item / n[3] / n[2];
    float *scratch = (float *)h->call->workspace;
    if (worker)
        scratch += worker * gckpti_attention_workspace(h->call, h->t, h->shared_keys, h->d, 1);
    for (int64_t b = plane / n[1]; b < rows; b += n[0])
        for (int64_t k = plane % n[1]; k < h->heads; k += n[1])
            for (int64_t i = at_i; i < h->t; i += n[2] * tile)
                for (int64_t j = at_j; j < h->s; j += n[3] * tile)
                    GCKPTI_KERNEL_OF(h->call, attention->mask, gckpti_mask_tile)
    (h, b * h->heads + k, i, j, scratch);
}

static void gckpti_run_masked_attention(const gckpt_call *call, int backward)
{
    gckpt_call f32 = *call; /* as one of attention, whose input 3 would be lengths */
    f32.precision = GCKPT_FP32, f32.inputs = 3;
    gckpti_mask_items s = { gckpti_attn_of(&f32), { 1, 1, 1, 1 } };
    const int64_t all[4] = { call->shape.d[0], s.h.heads, s.h.blocks,
                             (s.h.s + GCKPTI_KEY_TILE - 1) / GCKPTI_KEY_TILE };
    int64_t items = 1;
    for (int k = 0; k < 4; items *= s.n[k++])
        if (s.h.mask.step[k])
            s.n[k] = all[k];
    if (!backward || call->in[0].grad || call->in[1].grad || call->in[2].grad)
        gckpti_run_attention(&f32, backward);
    if (!backward || !call->in[3].grad)
        return;
    gckpti_clear_grads(call, 3, 4);
    gckpt_parallel(call->kernels ? call : NULL, items,
                   2 * call->shape.d[0] * s.h.t * s.h.s * s.h.c / items, gckpti_mask_item, &s);
}
GCKPTI_OP_KERNELS(masked_attention, gckpti_run_masked_attention(call, backward))

GCKPTI_DESC_WITH(masked_attention, gckpti_attention_shape, gckpti_attention_flops,
                 gckpti_attention_flops_backward, NULL, 0,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(3) | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED);
#endif
