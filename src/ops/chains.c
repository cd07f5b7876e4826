#include "ops/own.h"

/* =================================================================================================
 * layers: embed, matmul, linear, norms, attention, rotary, losses
 *
 * The plain kernels here are the definition of the numbers (manual, 5); a faster kernel must return
 * the same bits. "Chain": d = fma(a, b, d), one product after the other, from d's present value.
 * "Lanes": the 32 partial sums of gckpti_sum. "put(a, b)": gckpti_put_product, d = a b or d += a b.
 * "Mixed": of bf16 plans, whose products have factors rounded to bf16 and chains in f32.
 * ============================================================================================== */

GCKPTI_FN uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward)
{
    int wanted = 0;
    for (int i = 0; i < call->inputs; i++)
        wanted += call->in[i].grad != NULL;
    return wanted > 1 ? 2 * forward : forward;
}

GCKPTI_FN int64_t gckpti_multiple(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

GCKPTI_FN int64_t gckpti_product_room(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 16777216.0)
        return 0;
    return (gckpti_min(gckpti_multiple(n, GCKPTI_PANEL), GCKPTI_NC) + GCKPTI_STRIP) *
           gckpti_min(gckpti_multiple(k, 16), GCKPTI_KC);
}

GCKPTI_FN int64_t gckpti_mixed_room(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 4194304.0)
        return 0;
    int64_t rows = gckpti_min(gckpti_multiple(m, GCKPTI_STRIP), GCKPTI_MIXED_ROWS);
    int64_t links = gckpti_min(gckpti_multiple(k, 16), GCKPTI_MIXED_LINKS);
    int64_t rest = k > links ? rows * gckpti_min(gckpti_multiple(n, GCKPTI_PANEL), GCKPTI_NC)
                             : (int64_t)8 * GCKPTI_PANEL;
    return (rows + GCKPTI_PANEL) * links / 2 + rest;
}

/* Either, as the call's plan needs it; in floats for all threads. */
GCKPTI_FN int64_t gckpti_product_scratch(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    if (gckpti_is_plain(call))
        return 0;
    return call->threads *
           (gckpti_is_mixed(call) ? gckpti_mixed_room(m, n, k) : gckpti_product_room(m, n, k));
}

/* A product forward (m,k) (k,n) and its two gradients; that of b may be either way round, for which
 * f32 plans have room in any case. */
GCKPTI_FN void gckpti_matmul_work(gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    int turned = gckpti_is_mixed(call) ? *(const int *)call->attributes : k > n;
    int64_t da = gckpti_product_scratch(call, m, k, n);
    int64_t db =
        turned ? gckpti_product_scratch(call, n, k, m) : gckpti_product_scratch(call, k, n, m);
    call->work_forward = (size_t)gckpti_product_scratch(call, m, n, k) * sizeof(float);
    call->work_backward = (size_t)(da > db ? da : db) * sizeof(float);
}

GCKPTI_FN int64_t gckpti_attention_wide(const gckpt_call *call, int64_t d)
{
    return gckpti_multiple(d, gckpti_is_mixed(call) ? 16 : 32);
}

GCKPTI_FN int64_t gckpti_attention_room(const gckpt_call *call, int64_t t, int64_t d, int backward)
{
    int64_t wide = gckpti_attention_wide(call, d), along = GCKPTI_KEY_TILE * wide;
    int64_t across = GCKPTI_KEY_TILE * (d + 16), scores = GCKPTI_KEY_TILE * GCKPTI_KEY_TILE;
    if (gckpti_is_plain(call))
        return backward ? (t + 2 * GCKPTI_KEY_TILE + 2) * d : d;
    if (gckpti_is_mixed(call))
        return backward
                   ? 4 * along + 5 * scores / 2 + gckpti_multiple(t, GCKPTI_KEY_TILE) * (wide + 1)
                   : 2 * along + scores;
    return backward ? 2 * across + 3 * along + 2 * scores : across + along + scores;
}

GCKPTI_FN void gckpti_start(float *d, int64_t n, int accumulate)
{
    if (!accumulate)
        memset(d, 0, (size_t)n * sizeof *d);
}
