#pragma once
#include "plan/plan.h"

/* Returns the random stream that rounds a node's value (which 0) or the gradient that its backward
 * passes to input i (which 1 + i). Dropout uses the streams below 2^31. */
static inline uint32_t gckpti_rng_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

typedef struct {      /* a parameter's bf16 copy */
    uint16_t *values; /* NULL without a copy */
    uint32_t changes; /* parameter's `changes` when it was copied; 0 means never */
} gckpti_bf16_copy;

#ifdef GCKPT_NO_BF16
#define gckpti_widen(e, c, kind, from, x, n)          ((void)(from), (void)(n))
#define gckpti_round_bf16(e, c, stream, x, narrow, n) ((void)(narrow), (void)(n))
#define gckpti_mixed_operands(e, ins, o, c)           ((void)(o))
#define gckpti_bf16_copy_of(e, i)                     NULL
#define gckpti_mark_bf16_fresh(e, i)                  ((void)0)
#define gckpti_run_strips(e, ins, c, kernel)          ((void)(kernel))
#endif
