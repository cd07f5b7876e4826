#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LOSSES)
/* ---- cross_entropy_with, soft_cross_entropy: as cross_entropy ---- */
GCKPTI_BOTH_WAYS(fast_cross_entropy_with, gckpti_cross_entropy_by, gckpti_fast_loss(call))
GCKPTI_BOTH_WAYS(fast_soft_cross_entropy, gckpti_cross_entropy_by, gckpti_fast_loss(call))

/* ---- losses of elements: an item is an entry of axis 0 ---- */
static gckpti_error_kernels gckpti_fast_errors(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_error_kernels by = { gckpt_parallel, k->errors_forward, k->errors_backward };
    return by;
}

GCKPTI_BOTH_WAYS(fast_sum_loss, gckpti_errors_by, GCKPTI_SUMMED, gckpti_fast_errors(call))
GCKPTI_BOTH_WAYS(fast_mean_squared_error, gckpti_errors_by, GCKPTI_SQUARED,
                 gckpti_fast_errors(call))
GCKPTI_BOTH_WAYS(fast_mean_squared_error_with, gckpti_errors_by, GCKPTI_SQUARED,
                 gckpti_fast_errors(call))
GCKPTI_BOTH_WAYS(fast_huber, gckpti_errors_by, GCKPTI_HUBER, gckpti_fast_errors(call))
GCKPTI_BOTH_WAYS(fast_binary_cross_entropy, gckpti_errors_by, GCKPTI_BINARY,
                 gckpti_fast_errors(call))
#endif
