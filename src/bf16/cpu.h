#pragma once
#include "cpu/cpu.h"

/* AMX kernels need an assembler that knows AMX, and Linux, for the system call for permission. */
#if GCKPTI_AVX512 && defined(__linux__) && !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_AMX) &&    \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define GCKPTI_AMX 1
#else
#define GCKPTI_AMX 0
#endif

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_BF16)
static inline void gckpti_mixed_configure(const gckpti_mixed_kernels *kernels, int start)
{
    if (kernels->configure)
        kernels->configure(start);
}

/* Returns whether tiles can read x, m rows of operand a, in place if all its blocks are whole. */
static inline int gckpti_is_in_place(const gckpti_mixed_kernels *kernels, const gckpti_operand *x,
                                     int64_t m)
{
    return x->halves && x->k_stride == 1 && m % kernels->tiles[0].row_step == 0 &&
           2 * x->stride % kernels->align == 0 &&
           (int64_t)((uintptr_t)x->halves & 63) % kernels->align == 0;
}

/* c (m,n) of packed operands; `tile` describes all of c; if c is NULL, only c_bf16 is written.
 * min_exponent: the least exponent of a, or 0 if not computed yet. */
typedef struct {
    const gckpti_mixed_kernels *kernels;
    gckpti_mixed_tile tile;
    int64_t n;
    int chain;
    uint32_t min_exponent;
} gckpti_packed_product;

/* ---- bf16/cpu.c ---- */
GCKPTI_FN void gckpti_mixed_fast(const gckpt_call *call, const gckpti_product *t);
GCKPTI_FN void gckpti_mixed_multiply(gckpti_packed_product *s);
#endif

#ifndef GCKPT_NO_BF16
/* Entries of tables that bf16 plans need; vectors of a gckpti_source. */
#define GCKPTI_IF_MIXED(x)           x
#define GCKPTI_LOAD_VALUES(x, at, n) V(load_any)((x).f32, (x).halves, at, n)
#else
#define GCKPTI_IF_MIXED(x)           NULL
#define GCKPTI_LOAD_VALUES(x, at, n) V(load_n)((x) + (at), n)
#endif
