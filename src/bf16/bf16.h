#pragma once
#include "plan/plan.h"

typedef struct {      /* a parameter's bf16 copy */
    uint16_t *values; /* NULL without a copy */
    uint32_t changes; /* parameter's `changes` when it was copied; 0 means never */
} gckpti_bf16_copy;

#ifdef GCKPT_NO_BF16
#define gckpti_end_mixed_output(e, ins, o, c)      ((void)(o))
#define gckpti_end_mixed_gradient(e, ins, o, c, i) ((void)(o))
#define gckpti_mixed_operands(e, ins, o, c)        ((void)(o))
#define gckpti_bf16_copy_of(e, i)                  NULL
#define gckpti_mark_bf16_fresh(e, i)               ((void)0)
#define gckpti_run_strips(e, ins, c, kernel)       0
#endif
