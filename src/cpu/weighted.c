#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_LOSSES)
GCKPTI_FAST_CLASSES(cross_entropy_with)
GCKPTI_FAST_CLASSES(soft_cross_entropy)
GCKPTI_FAST_ERRORS(mean_squared_error_with, GCKPTI_SQUARED)
GCKPTI_FAST_ERRORS(huber, GCKPTI_HUBER)
GCKPTI_FAST_ERRORS(binary_cross_entropy, GCKPTI_BINARY)
#endif
