#include "bf16/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
GCKPTI_OP_KERNELS(fast_attention,
                  gckpti_run_attention(call, backward, gckpti_attention_kernels_of(call), call))
#endif
