#include "bf16/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
/* ---- losses: a work item is a row of logits, or an entry of axis 0 (losses of elements) ---- */
GCKPTI_FN gckpti_loss_kernels gckpti_fast_loss(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    const gckpti_loss_kernels kernels = { k->element_losses, k->class_losses,
                                          gckpti_fast_products(call),
                                          GCKPTI_IF_BF16(k->mixed->widen),
                                          GCKPTI_IF_BF16(k->mixed->narrow) };
    return kernels;
}

GCKPTI_FAST_LOSS(cross_entropy, GCKPTI_LOSS_CLASSES)
GCKPTI_FAST_LOSS(sum_loss, GCKPTI_LOSS_SUM)
GCKPTI_FAST_LOSS(mean_squared_error, GCKPTI_LOSS_SQUARED)
#endif
