#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LOSSES)
GCKPTI_FAST_CLASSES(cross_entropy_with)
GCKPTI_FAST_CLASSES(soft_cross_entropy)
GCKPTI_FAST_ELEMENT_LOSS(mean_squared_error_with, GCKPTI_LOSS_SQUARED)
GCKPTI_FAST_ELEMENT_LOSS(huber, GCKPTI_LOSS_HUBER)
GCKPTI_FAST_ELEMENT_LOSS(binary_cross_entropy, GCKPTI_LOSS_BINARY)
#endif
