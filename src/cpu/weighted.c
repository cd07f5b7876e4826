#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LOSSES)
GCKPTI_FAST_LOSS(cross_entropy_with, GCKPTI_LOSS_CLASSES)
GCKPTI_FAST_LOSS(soft_cross_entropy, GCKPTI_LOSS_CLASSES)
GCKPTI_FAST_LOSS(mean_squared_error_with, GCKPTI_LOSS_SQUARED)
GCKPTI_FAST_LOSS(huber, GCKPTI_LOSS_HUBER)
GCKPTI_FAST_LOSS(binary_cross_entropy, GCKPTI_LOSS_BINARY)
#endif
