#pragma once
#include "attention/attention.h"
#include "bf16/cpu.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_ATTENTION)
enum { /* parts of a product's tile that row i needs if query i sees the keys up to i + d: */
       GCKPTI_QK_TILE = GCKPTI_KEY_TILE,
       GCKPTI_TERMS_TO,    /* row i needs terms 0..i + d */
       GCKPTI_TERMS_FROM,  /* row i needs terms from i - d on */
       GCKPTI_COLUMNS_TO,  /* row i needs columns 0..i + d */
       GCKPTI_COLUMNS_FROM /* row i needs columns from i - d on */
};

typedef struct {
    int64_t a_row, a_step, b_step, c_row;
    int edge, from_zero;
    int64_t diagonal;
    const gckpti_attn *attn;
} gckpti_attn_gemm;
#endif
