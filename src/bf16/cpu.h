#pragma once
#include "cpu/cpu.h"

/* ---- bf16/convert.c ---- */
/* The state of a conversion; its element i is element offset + i of the whole batch. */
typedef struct {
    const gckpt_call *call;
    const gckpt_conversion *c;
    gckpti_random random;
    uint64_t offset;
} gckpti_convert_state;

/* AMX kernels need an assembler that knows AMX, and Linux, for the system call for permission. */
#if GCKPTI_AVX512 && defined(__linux__) && !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_AMX) &&    \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define GCKPTI_AMX 1
#else
#define GCKPTI_AMX 0
#endif

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_BF16)
/* Packed operands of products in bf16 plans (manual, 5l): a as rows of bf16 in blocks of 32 terms;
 * b as panels of words: word q has the terms 2 q (first in memory) and 2 q + 1; a block is 16 rows
 * of a panel. Partial blocks are padded with -0 x +0, which changes no chain, not even one at -0.
 *
 * A tile: m rows and `width` (16, 32 or 48) columns of c add `blocks` blocks of terms; the last has
 * `last` terms. Row i of a is at a + i * a_row. Element (i,j) starts at from[i * from_row + j], or
 * +0 if from is NULL, and accumulates in c; it ends in c_bf16, rounded, if that is not NULL. */
typedef struct {
    int64_t m, blocks, last, a_row, width, b_row, from_row, c_row, bf16_row;
    const uint16_t *a;
    const uint32_t *b;
    const float *from;
    float *c;
    uint16_t *c_bf16;
    int64_t c_rows; /* rows of c from here on: those after the tile may be prefetched */
    gckpti_prefetch *prefetch;
} gckpti_mixed_tile;

/* A tile kernel: most rows (multiples of row_step), most columns (panels of b may be wider). */
typedef struct {
    int rows, columns, row_step;
    void (*run)(const gckpti_mixed_tile *t);
} gckpti_tile_kernel;

/* Operand x to pack: `blocks` blocks of product t, from term p on; lanes 0..n-1, which are rows of
 * a or columns of b. Term 0 of lane 0 is element `at`. In x, lanes or terms are adjacent. */
typedef struct {
    const gckpti_product *t;
    const gckpti_operand *x;
    int64_t at, n, p, blocks;
} gckpti_pack_lanes;

/* Kernels of bf16 plans. tiles: [0] for blocks, [1] for a chain. configure: NULL, or called before
 * (1) and after (0) the tiles of an item. align: alignment in bytes of rows of an a in place. pack
 * writes an a in rows of `row` words, or a panel of b that is `row` words wide, +0 after n. */
typedef struct gckpti_mixed_kernels {
    gckpti_tile_kernel tiles[2];
    void (*configure)(int start);
    int64_t align;
    void (*pack)(const gckpti_pack_lanes *s, int as_a, uint32_t *d, int64_t row);
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
    void (*round_stochastic)(const gckpti_convert_state *s, int64_t first, int64_t end);
} gckpti_mixed_kernels;

static inline void gckpti_mixed_configure(const gckpti_mixed_kernels *kernels, int start)
{
    if (kernels->configure)
        kernels->configure(start);
}

/* Returns whether tiles can read x, rows of operand a, in place if all its blocks are whole. */
static inline int gckpti_is_in_place(const gckpti_mixed_kernels *kernels, const gckpti_operand *x)
{
    return x->bf16 && x->k_stride == 1 && 2 * x->stride % kernels->align == 0 &&
           (int64_t)((uintptr_t)x->bf16 & 63) % kernels->align == 0;
}

/* c (m,n) of packed operands; `tile` describes all of c; if c is NULL, only c_bf16 is written. If a
 * is in place, rows_before rows before it are readable. start: NULL, or bf16 values at which c
 * starts, in rows like c_bf16. min_exponent: the least exponent of a, or 0 if not computed yet. */
typedef struct {
    const gckpti_mixed_kernels *kernels;
    gckpti_mixed_tile tile;
    int64_t n, rows_before;
    const uint16_t *start;
    int chain;
    uint32_t min_exponent;
    gckpti_prefetch next_prefetch; /* used after tile.prefetch is done */
} gckpti_packed_product;

/* ---- bf16/cpu.c ---- */
GCKPTI_FN void gckpti_mixed_fast(const gckpt_call *call, const gckpti_product *t);
GCKPTI_FN void gckpti_mixed_multiply(gckpti_packed_product *s);
#endif
