#pragma once
#include "ops/ops.h"

#ifndef GCKPT_NO_LINEAR_LOSS
/* ---- linear_loss/ops.c ---- */
typedef struct {
    int block_rows; /* 0, or rows per block in the lowering (linear_loss/plan.c) */
    float cap;      /* softcap of the logits; omitted if 0 */
} gckpti_linear_loss;

static inline int gckpti_linear_loss_block(const gckpt_call *call)
{
    return call->attributes ? ((const gckpti_linear_loss *)call->attributes)->block_rows : 0;
}
static inline float gckpti_linear_loss_cap(const gckpt_call *call)
{
    return call->attributes ? ((const gckpti_linear_loss *)call->attributes)->cap : 0.0f;
}
#else
#define gckpti_linear_loss_block(call) 0
#endif
