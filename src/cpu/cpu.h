#pragma once
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"
#include "ops/ops.h"

/* =================================================================================================
 * >>cpu: plain kernels, and vector kernels with the same bits
 *
 * gckpti_cpu_fill, _add, _convert and _update do the work between ops as the numeric specification
 * defines it, by vector kernels if the call has any. Ops run by their plain kernels, or by the fast
 * ones, which differ only in speed.
 *
 * The fast kernels are gckpti_fast_<op>_forward and _backward, which return the bits of
 * gckpti_<op>_forward and _backward. They split a call into work items for threads (a row, a block
 * of a matrix, a head). Entries of gckpti_kernels compute the items: one table for each instruction
 * set, defined in kernels/, chosen when an executor is created; so a plain `cc -O2` is enough.
 * ============================================================================================== */

/* ---- bf16/convert.c ---- */
/* The state of a conversion; its element i is element offset + i of the whole batch. */
typedef struct {
    const gckpt_call *call;
    const gckpt_conversion *c;
    gckpti_random random;
    uint64_t offset;
} gckpti_convert_state;

/* Entries of tables, NULL with GCKPT_NO_BF16; calls that are omitted with GCKPT_NO_QUANT. */
#ifndef GCKPT_NO_BF16
#define GCKPTI_IF_BF16(x) x
#else
#define GCKPTI_IF_BF16(x) NULL
#endif
#ifndef GCKPT_NO_QUANT
#define GCKPTI_IF_QUANTISED(call) call
#else
#define GCKPTI_IF_QUANTISED(call) (void)0
#endif

#if GCKPTI_HAS_FAST
/* AVX512-BF16 kernels need a compiler that knows the instructions; clang 16 and 17 crash. */
#if !defined(GCKPT_NO_BF16) && GCKPTI_AVX512 &&                                                    \
    ((defined(__clang__) && __clang_major__ >= 11 && __clang_major__ / 2 != 8) ||                  \
     (!defined(__clang__) && __GNUC__ >= 10))
#define GCKPTI_AVX512_BF16 1
#else
#define GCKPTI_AVX512_BF16 0
#endif
/* AMX kernels need an assembler that knows AMX, and Linux, for the system call for permission. */
#if GCKPTI_AVX512_BF16 && defined(__linux__) && !defined(GCKPT_NO_AMX) &&                          \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define GCKPTI_AMX 1
#else
#define GCKPTI_AMX 0
#endif

/* Returns x from element `at` on. */
static inline gckpti_operand gckpti_operand_at(const gckpti_operand *x, int64_t at)
{
    gckpti_operand y = *x;
    y.f32 = x->f32 ? x->f32 + at : NULL, y.bf16 = x->bf16 ? x->bf16 + at : NULL;
    return y;
}

/* Returns where chains of row i start, from column j on: in c, in t->initial, or NULL for +0. */
static inline const float *gckpti_chain_starts(const gckpti_product *t, int64_t i, int64_t j)
{
    if (t->accumulate)
        return t->c + i * t->c_stride + j;
    return t->initial ? t->initial + i * t->initial_stride + j : NULL;
}

/* Block of c: rows i0..i1-1, columns j0..j1-1 of matrix `matrix`; item: index among all blocks. */
typedef struct {
    int64_t i0, i1, j0, j1, matrix, item;
} gckpti_c_block;

/* Data to prefetch to L2: `rows` rows of `width` bytes, `row` apart, from byte `at` of row x on;
 * `pace` lines per tile (f32), per 4 rows (bf16), or per block of a tile (AMX, which sets it). */
typedef struct {
    const char *x;
    int64_t row, rows, width, at, pace;
} gckpti_prefetch;

static inline gckpti_prefetch gckpti_prefetch_of(const gckpti_operand *x, int64_t at, int64_t row,
                                                 int64_t rows, int64_t width)
{
    const int narrow = gckpti_has_bf16(x->bf16), quant = gckpti_has_quant(x);
    const int size = quant ? 1 : narrow ? 2 : 4, storage = quant ? (int)x->quant->storage : 0;
    const void *base = quant    ? x->quant->quantised
                       : narrow ? (const void *)x->bf16
                                : (const void *)x->f32;
    gckpti_prefetch f = { (const char *)base, row * size, rows, width * size, 0, 1 };
    f.x += quant ? gckpti_storage_bytes(storage, at) : at * size;
    f.row = quant ? gckpti_storage_bytes(storage, row) : f.row;
    f.width = quant ? gckpti_storage_bytes(storage, width) : f.width;
    return f;
}

static inline void gckpti_prefetch_some(gckpti_prefetch *f)
{
    for (int64_t n = f->rows > 0 ? f->pace : 0; n > 0; n--) {
        __builtin_prefetch(f->x + f->at, 0, 2);
        f->at += 64;
        if (f->at >= f->width) {
            f->at = 0, f->x += f->row;
            if (--f->rows == 0)
                break;
        }
    }
}

typedef struct {
    const gckpt_call *call;
    float *gain, *bias;
    float *gain_comp, *bias_comp;
} gckpti_column_sums;

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
    const float *row_scale; /* f32: NULL, or a factor of each row of c before its first term */
    const gckpti_attn *attn;
    const float *prefetch; /* f32: NULL, or rows to prefetch: as many as c has */
} gckpti_attn_gemm;

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

/* Packed operands of products in bf16 plans (manual, 5l): a as rows of bf16 in blocks of 32 terms;
 * b as panels of words of two terms, whose order the kernels choose; a block is 16 rows of a panel.
 * Partial blocks are padded with -0 x +0, which changes no chain, not even one at -0. */
enum gckpti_words {
    GCKPTI_WORDS_PAIRS,       /* word q has the terms 2 q (first in memory) and 2 q + 1 */
    GCKPTI_WORDS_INTERLEAVED, /* q even: 2 q + 2 (lower half), 2 q; q odd: 2 q + 1, 2 q - 1 */
    GCKPTI_WORDS_SWAPPED      /* 2 q + 1 (lower half) and 2 q */
};

/* A tile: m rows and `width` (16, 32 or 48) columns of c add `blocks` blocks of terms; the last has
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

/* A tile kernel: most rows (multiples of row_step), most columns (a panel of b may be wider:
 * b_row); `words`: the order of both operands' terms, one of gckpti_words. */
typedef struct {
    int rows, columns, row_step, words;
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
 * (1) and after (0) the tiles of an item. align: alignment in bytes of rows of an a in place; 0 if
 * a is always packed. pack_a writes lane i to d + i * row; pack_b writes a panel, +0 after n. */
typedef struct {
    gckpti_tile_kernel tiles[2];
    void (*configure)(int start);
    int64_t align;
    void (*pack_a)(const gckpti_pack_lanes *s, int words, uint16_t *d, int64_t row);
    void (*pack_b)(const gckpti_pack_lanes *s, int words, uint32_t *d, int64_t width);
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
    void (*attention_forward)(const gckpti_attn *h, int64_t row, int64_t head, int64_t first,
                              float *scratch);
    void (*attention_backward)(const gckpti_attn *h, int64_t row, int64_t head, float *scratch);
} gckpti_mixed_kernels;

static inline void gckpti_mixed_configure(const gckpti_mixed_kernels *kernels, int start)
{
    if (kernels->configure)
        kernels->configure(start);
}

/* Returns whether tiles can read x, rows of operand a, in place if all its blocks are whole. */
static inline int gckpti_is_in_place(const gckpti_mixed_kernels *kernels, const gckpti_operand *x)
{
    return kernels->align && x->bf16 && x->k_stride == 1 && 2 * x->stride % kernels->align == 0 &&
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
#ifndef GCKPT_NO_BF16
GCKPTI_FN void gckpti_mixed_multiply(gckpti_packed_product *s);
#endif

/* ---- cpu/rows.c ---- */
#define GCKPTI_BINARY_OPS(X) X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(where)

#define GCKPTI_KIND(name)                                         GCKPTI_KIND_##name,
#define GCKPTI_UNARY_KIND(name, flops, reads, value, rule, deriv) GCKPTI_KIND_##name,
/* Elementwise ops; from GCKPTI_FIRST_BINARY on, they have two inputs. */
enum {
    GCKPTI_UNARY_OPS(GCKPTI_UNARY_KIND) GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_KIND)
        GCKPTI_BINARY_OPS(GCKPTI_KIND) GCKPTI_FIRST_BINARY = GCKPTI_KIND_add,
    GCKPTI_ELEMENTS = 4096
};
#undef GCKPTI_KIND
#undef GCKPTI_UNARY_KIND

/* ---- the kernels of an instruction set (folder kernels/) ---- */
/* The table of kernels of an instruction set; optional kernels come last (kernels/table.c). */
typedef struct {
    void (*product_block)(const gckpti_product *t, const gckpti_c_block *block, float *pack,
                          int64_t scratch);
    void (*divide)(float *x, float divisor, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
    float (*update)(const gckpt_update_pass *p, const float *more, int64_t block, int64_t n,
                    int update);
    void (*add)(float *to, const float *from, int64_t n); /* to += from */
    void (*elementwise_forward)(const gckpt_call *call, int kind);
    void (*elementwise_backward)(const gckpt_call *call, int kind);
    void (*softmax_forward)(const gckpt_call *call, int64_t row);
    void (*softmax_backward)(const gckpt_call *call, int64_t row);
    void (*log_softmax_forward)(const gckpt_call *call, int64_t row);
    void (*log_softmax_backward)(const gckpt_call *call, int64_t row);
    void (*norm_forward)(const gckpt_call *call, int64_t row);
    void (*norm_backward)(const gckpt_call *call, int64_t row);
    void (*rotary)(const gckpt_call *call, int64_t row); /* forward and backward */
    void (*column_sums)(const gckpti_column_sums *s, int64_t first, int64_t end);
    void (*attention_forward)(const gckpti_attn *h, int64_t row, int64_t head, int64_t first,
                              float *scratch);
    void (*attention_backward)(const gckpti_attn *h, int64_t row, int64_t head, float *scratch);
    const gckpti_element_kernels *element_losses;
    const gckpti_class_kernels *class_losses;
    void (*dropout)(const gckpti_dropout *d, int64_t first, int64_t end);
    gckpti_init_fn *draw;
    void (*round_stochastic)(const gckpti_convert_state *s, int64_t first, int64_t end);
    const gckpti_mixed_kernels *mixed;
    const struct gckpti_image_kernels *images; /* NULL with GCKPT_NO_IMAGES */
    const struct gckpti_cell_loops *recurrent; /* NULL with GCKPT_NO_RECURRENT */
} gckpti_kernels;

static inline const gckpti_kernels *gckpti_kernels_of(const gckpt_call *call)
{
    return (const gckpti_kernels *)call->kernels;
}

/* Returns the kernels of bf16 plans; all entries are NULL in a build without bf16 plans. */
static inline const gckpti_mixed_kernels *gckpti_mixed_of(const gckpti_kernels *kernels)
{
    static const gckpti_mixed_kernels none = {
        { { 0, 0, 0, 0, NULL }, { 0, 0, 0, 0, NULL } }, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL
    };
    return GCKPTI_WITH_BF16 ? kernels->mixed : &none;
}

#ifdef GCKPTI_SEPARATE_TU
extern GCKPTI_DATA const gckpti_kernels gckpti_kernels_any, gckpti_kernels_neon,
    gckpti_kernels_avx2, gckpti_kernels_avx512, gckpti_kernels_bf16, gckpti_kernels_amx;
#endif
#endif

/* ---- cpu/calls.c ---- */
/* Sets *kernels to the kernels of an instruction set (NULL if plain). Returns 0 if processor or
 * build lacks the set, or if its kernels return other bits than the plain ones. */
GCKPTI_FN int gckpti_cpu_has(gckpt_isa isa, const void **kernels);

/* Returns the switch that leaves `isa` out of this build, in brackets for an error text, or "". */
static inline const char *gckpti_isa_left_out(gckpt_isa isa)
{
    (void)isa;
#if defined(GCKPT_NO_FAST)
    return " (GCKPT_NO_FAST)";
#elif defined(GCKPT_NO_AVX2)
    return isa >= GCKPT_ISA_AVX2 ? " (GCKPT_NO_AVX2)" : "";
#elif defined(GCKPT_NO_AVX512)
    return isa >= GCKPT_ISA_AVX512 ? " (GCKPT_NO_AVX512)" : "";
#elif defined(GCKPT_NO_AMX)
    return isa == GCKPT_ISA_AMX ? " (GCKPT_NO_AMX)" : "";
#else
    return "";
#endif
}
