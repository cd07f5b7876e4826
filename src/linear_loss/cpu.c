#include "linear_loss/linear_loss.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LINEAR_LOSS)
GCKPTI_OP_KERNELS(fast_linear_cross_entropy,
                  gckpti_run_linear_cross_entropy(call, backward, gckpti_fast_loss))
#endif
