#pragma once
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"
#include "ops/ops.h"

/* =================================================================================================
 * >>cpu: plain kernels, and vector kernels with the same bits
 *
 * The functions gckpti_cpu_.. (cpu/calls.c) do the work between ops as the numeric specification
 * defines it, by vector kernels if the call has any. gckpti_kernels (ops/kernels.h) is the table of
 * vector kernels, one for each instruction set, defined in kernels/ and chosen when an executor is
 * created; so a plain `cc -O2` is enough. Ops split a call into work items for threads (a row, a
 * block of a matrix, a head).
 * ============================================================================================== */

#if GCKPTI_HAS_FAST
/* Returns where chains of row i start, from column j on: in c, in t->initial, or NULL for +0. */
static inline const float *gckpti_chain_starts(const gckpti_product *t, int64_t i, int64_t j)
{
    if (t->accumulate)
        return t->c + i * t->c_stride + j;
    return t->initial ? t->initial + i * t->initial_stride + j : NULL;
}

/* Block sizes of a product in L2: blocks of b have nc columns and kc terms. */
typedef struct {
    int64_t kc, nc;
    int in_place; /* nonzero: full vectors of b are read in place, not packed */
    int packs_a;  /* nonzero: a is packed, GCKPTI_STRIP rows at a time */
} gckpti_blocking;

/* A tile keeps its rows of c in registers while it adds k terms; columns of b are adjacent. */
typedef struct {
    int64_t k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step;
    const float *from;
    int64_t from_row;
    float *c;
    int64_t c_row;
    int64_t last;        /* columns of the last vector */
    const float *next_c; /* the next tile of c, to be prefetched */
} gckpti_tile;

/* ---- cpu/products.c: a product, in blocks that threads take ---- */
GCKPTI_FN void gckpti_fp32_fast(const gckpt_call *call, const gckpti_product *product);

#ifdef GCKPTI_SEPARATE_TU
extern GCKPTI_DATA const gckpti_kernels gckpti_kernels_any, gckpti_kernels_avx2,
    gckpti_kernels_avx512;
#endif
#endif

/* ---- cpu/calls.c ---- */
/* Sets *kernels to the kernels of an instruction set (NULL if plain). Returns 0 if processor or
 * build lacks the set, or if its kernels return other bits than the plain ones. */
GCKPTI_FN int gckpti_cpu_has(gckpt_isa isa, const void **kernels);
