#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LOSSES)
GCKPTI_BOTH_WAYS(fast_cross_entropy_with,
                 gckpti_cross_entropy_by(call, backward, gckpti_fast_loss(call)))
GCKPTI_BOTH_WAYS(fast_soft_cross_entropy,
                 gckpti_cross_entropy_by(call, backward, gckpti_fast_loss(call)))
GCKPTI_BOTH_WAYS(fast_mean_squared_error_with,
                 gckpti_errors_by(call, backward, GCKPTI_SQUARED,
                 gckpti_fast_errors(call)))
GCKPTI_BOTH_WAYS(fast_huber,
                 gckpti_errors_by(call, backward, GCKPTI_HUBER, gckpti_fast_errors(call)))
GCKPTI_BOTH_WAYS(fast_binary_cross_entropy,
                 gckpti_errors_by(call, backward, GCKPTI_BINARY,
                 gckpti_fast_errors(call)))
#endif
