#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- cross_entropy, linear_cross_entropy: an item is a row (of products, as in matmul) ---- */
GCKPTI_FN gckpti_loss_kernels gckpti_fast_loss(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_loss_kernels by = { gckpti_fast_products(call),
                               gckpt_parallel,
                               k->online,
                               k->surprisal,
                               k->classes_backward,
                               gckpti_mixed_of(k)->widen,
                               gckpti_mixed_of(k)->narrow,
                               k->exp,
                               k->log };
    return by;
}

GCKPTI_BOTH_WAYS(fast_cross_entropy,
                 gckpti_cross_entropy_by(call, backward, gckpti_fast_loss(call)))
GCKPTI_BOTH_WAYS(fast_linear_cross_entropy,
                 gckpti_linear_cross_entropy_by(call, backward, gckpti_fast_loss(call)))

/* ---- losses of elements: an item is an entry of axis 0 ---- */
GCKPTI_FN gckpti_error_kernels gckpti_fast_errors(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_error_kernels by = { gckpt_parallel, k->errors_forward, k->errors_backward };
    return by;
}

GCKPTI_BOTH_WAYS(fast_sum_loss,
                 gckpti_errors_by(call, backward, GCKPTI_SUMMED, gckpti_fast_errors(call)))
GCKPTI_BOTH_WAYS(fast_mean_squared_error,
                 gckpti_errors_by(call, backward, GCKPTI_SQUARED,
                 gckpti_fast_errors(call)))
#endif
