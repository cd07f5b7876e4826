#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- losses: an item is a row, or an entry of axis 0 (of products, as in matmul) ---- */
GCKPTI_FN gckpti_loss_kernels gckpti_fast_loss(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_loss_kernels by = { { k->errors_forward, k->errors_backward },
                               gckpti_fast_products(call),
                               k->online,
                               k->surprisal,
                               k->classes_backward,
                               gckpti_mixed_of(k)->widen,
                               gckpti_mixed_of(k)->narrow,
                               k->exp,
                               k->log,
                               k->cap };
    return by;
}

GCKPTI_BOTH_WAYS(fast_linear_cross_entropy,
                 gckpti_linear_cross_entropy_by(call, backward, gckpti_fast_loss))
GCKPTI_FAST_CLASSES(cross_entropy)
GCKPTI_FAST_ERRORS(sum_loss, GCKPTI_SUMMED)
GCKPTI_FAST_ERRORS(mean_squared_error, GCKPTI_SQUARED)
#endif
