#include "ops/own.h"

GCKPTI_FN uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward)
{
    int wanted = 0;
    for (int i = 0; i < call->inputs; i++)
        wanted += call->in[i].grad != NULL;
    return wanted > 1 ? 2 * forward : forward;
}

/* Flops for each element of the first input; a transcendental is worth about 20 additions. */
#define GCKPTI_FLOPS(count)                                                                        \
    GCKPTI_FN uint64_t gckpti_flops_##count(const gckpt_call *call)                                \
    {                                                                                              \
        return count * (uint64_t)gckpti_elements(&call->in[0].shape);                              \
    }
GCKPTI_FLOPS(1)
GCKPTI_FLOPS(3)
GCKPTI_FLOPS(8)
GCKPTI_FLOPS(13)
GCKPTI_FLOPS(20)
#undef GCKPTI_FLOPS
