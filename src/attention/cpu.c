#include "attention/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_ATTENTION)
/* ---- rotary: a work item is 16 positions of the table of cos and sin; then a row ---- */
enum { GCKPTI_POSITIONS = 16 };

static void gckpti_rotary_positions(const gckpt_call *call, int64_t i)
{
    const int64_t t = call->shape.d[1], first = i * GCKPTI_POSITIONS;
    gckpti_rotary_table(call, first, gckpti_min(first + GCKPTI_POSITIONS, t));
}

static void gckpti_fast_rotary(const gckpt_call *call, int backward)
{
    const int64_t n = gckpti_last(&call->shape), t = call->shape.d[1];
    if (!(backward ? call->in[0].grad : call->out))
        return;
    gckpti_for_each(call, (t + GCKPTI_POSITIONS - 1) / GCKPTI_POSITIONS,
                    16 * GCKPTI_POSITIONS * n / ((const gckpti_rotary *)call->attributes)->heads,
                    gckpti_rotary_positions);
    gckpti_for_each(call, gckpti_rows(&call->shape), 2 * n,
                    gckpti_kernels_of(call)->attention->rotary);
}
GCKPTI_OP_KERNELS(fast_rotary, gckpti_fast_rotary(call, backward))

/* ---- attention: a work item is a block of queries of a head, or all heads that share keys ---- */
GCKPTI_OP_KERNELS(fast_attention,
                  gckpti_run_attention(call, backward, gckpti_attention_kernels_of(call), call))
#endif
