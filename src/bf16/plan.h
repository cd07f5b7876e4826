#pragma once
#include "plan/plan.h"

/* ---- bf16 plans: roundings, and the kernels that take bf16 (bf16/plan.c) ---- */
/* Bits of `rounding`; GCKPTI_MIXES (16) is another one. Builds without bf16 define these as 0. */
enum {
    GCKPTI_ROUNDED = 1 * GCKPTI_WITH_BF16,       /* value and gradient are rounded to bf16 */
    GCKPTI_BF16_VALUE = 2 * GCKPTI_WITH_BF16,    /* the value is bf16 in the arena */
    GCKPTI_BF16_GRADIENT = 4 * GCKPTI_WITH_BF16, /* the gradient is bf16 in the arena */
    GCKPTI_IN_STRIPS = 8 * GCKPTI_WITH_BF16,     /* the kernel runs in strips (bf16/run.c) */
    GCKPTI_PRECISION = 32 * GCKPTI_WITH_BF16 /* factor of the op's gckpt_precision in `rounding` */
};

static inline gckpt_precision gckpti_precision_of(int rounding)
{
    return (gckpt_precision)(GCKPTI_WITH_BF16 ? rounding >> 5 : 0);
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

/* Returns whether a plan is a bf16 plan. */
static inline int gckpti_is_bf16_plan(const gckpt_plan *p)
{
    return GCKPTI_WITH_BF16 && p->precision != GCKPT_FP32;
}

/* The widest instruction set from which a plan gains; whether a request is for a bf16 plan; whether
 * a node of this rounding runs a fast kernel of a backend. */
#define gckpti_widest_isa(p)    (gckpti_is_bf16_plan(p) ? GCKPT_ISA_AMX : GCKPT_ISA_AVX512)
#define gckpti_is_rounded(desc) ((desc)->bf16.precision != GCKPT_FP32)
#define gckpti_runs_fast(bits)  (gckpti_precision_of(bits) == GCKPT_BF16_FAST)

/* Rows of the checks of a request (planner/checks.c): the range of an option, a fault. */
/* clang-format off */
#define GCKPTI_PRECISION_RANGE(d) { "bf16.precision", (int)(d)->bf16.precision, 0, GCKPT_BF16_FAST }
#define GCKPTI_PRECISION_FAULT(d)                                                                  \
    { (d)->bf16.precision == GCKPT_BF16_FAST && !gckpti_has_fast_kernel((d)->backend, NULL),       \
      "plan: %s has no kernels of GCKPT_BF16_FAST; GCKPT_BF16 takes the same bytes and runs "      \
      "everywhere" }
/* clang-format on */

/* Returns the offsets of fp32 copies for a FORWARD or BACKWARD in a bf16 plan: [2 * i] of input i's
 * value, [2 * i + 1] of its gradient, then of the output's. GCKPTI_NO_OFFSET means no copy. */
static inline const size_t *gckpti_f32_copies(const gckpti_ins *ins, const gckpti_operands *o)
{
    return o->addends + ins->uses - 1;
}

#ifdef GCKPT_NO_BF16
#define gckpti_first_precision(p, t)              GCKPT_FP32
#define gckpti_mark_operands(p, t, call, narrow)  ((void)(narrow))
#define gckpti_falls_back(call, precision)        ((void)(precision), 0)
#define gckpti_mark_precision(...)                ((void)0)
#define gckpti_place_copies(p, t, backward, copy) ((void)(copy), (size_t)0)
#define gckpti_copy_operands(p, kind, t)          ((size_t)0)
#endif
