#include "num/num.h"

GCKPT_API uint16_t gckpt_to_bf16(float x) { return gckpti_to_bf16(x); }
GCKPT_API float gckpt_from_bf16(uint16_t x) { return gckpti_from_bf16(x); }
