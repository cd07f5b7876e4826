#pragma once
#include "plan/plan.h"

#ifndef GCKPT_NO_BF16
/* ---- bf16 plans: roundings, and the kernels that take bf16 (bf16/plan.c) ---- */
/* Bits of `rounding`; GCKPTI_MIXES (16) is another one. */
enum {
    GCKPTI_ROUNDED = 1,       /* value and gradient are rounded to bf16 */
    GCKPTI_BF16_VALUE = 2,    /* the value is bf16 in the arena */
    GCKPTI_BF16_GRADIENT = 4, /* the gradient is bf16 in the arena */
    GCKPTI_IN_STRIPS = 8,     /* the kernel runs in strips (bf16/run.c) */
    GCKPTI_PRECISION = 32     /* factor of the op's gckpt_precision in `rounding` */
};

static inline gckpt_precision gckpti_precision_of(int rounding)
{
    return (gckpt_precision)(rounding / GCKPTI_PRECISION);
}

/* Return the bytes of an element of a node's value, and of its gradient. */
static inline size_t gckpti_value_size(int rounding)
{
    return rounding & GCKPTI_BF16_VALUE ? 2 : 4;
}
static inline size_t gckpti_gradient_size(int rounding)
{
    return rounding & GCKPTI_BF16_GRADIENT ? 2 : 4;
}

/* The most floats in strips. An elementwise op has up to six operands there, a rowwise op three. */
enum {
    GCKPTI_STRIP_FLOATS = 2048, /* of one operand, unless a single row is longer */
    GCKPTI_STRIP_BUFFER = 6 * GCKPTI_STRIP_FLOATS, /* of all operands of an op */
    GCKPTI_STRIP_ROW = 2 * GCKPTI_STRIP_FLOATS     /* of a row */
};

/* These tell whether a plan, or a request, uses bf16, and whether a node with this rounding runs a
 * backend's fast kernel. The last is the widest instruction set from which a plan gains. */
#define gckpti_is_bf16_plan(p)  ((p)->precision != GCKPT_FP32)
#define gckpti_is_rounded(desc) ((desc)->bf16.precision != GCKPT_FP32)
#define gckpti_runs_fast(bits)  (gckpti_precision_of(bits) == GCKPT_BF16_FAST)
#define gckpti_widest_isa(p)    (gckpti_is_bf16_plan(p) ? GCKPT_ISA_AMX : GCKPT_ISA_AVX512)

/* Returns the offsets of fp32 copies for a FORWARD or BACKWARD in a bf16 plan: [2 * i] of input i's
 * value, [2 * i + 1] of its gradient, then of the output's. GCKPTI_NO_OFFSET means no copy. */
static inline const size_t *gckpti_f32_copies(const gckpti_ins *ins, const gckpti_operands *o)
{
    return o->addends + ins->uses - 1;
}
#else
#define gckpti_value_size(rounding)               ((void)(rounding), sizeof(float))
#define gckpti_gradient_size(rounding)            ((void)(rounding), sizeof(float))
#define gckpti_is_rounded(desc)                   0
#define gckpti_runs_fast(bits)                    0
#define gckpti_widest_isa(p)                      GCKPT_ISA_AVX512
#define gckpti_first_precision(p, t)              GCKPT_FP32
#define gckpti_mark_operands(p, t, call)          ((void)0)
#define gckpti_falls_back(call, precision)        ((void)(precision), 0)
#define gckpti_mark_precision(...)                ((void)0)
#define gckpti_place_copies(p, t, backward, copy) ((void)(copy), (size_t)0)
#define gckpti_copy_operands(p, kind, t)          ((size_t)0)
#endif
