#pragma once
#include "ops/kernels.h"

/* ---- operands of a call: floats or, in bf16 plans, bf16 ---- */
/* Returns whether a call is one of a bf16 plan. */
static inline int gckpti_is_mixed(const gckpt_call *call)
{
    return GCKPTI_WITH_BF16 && call->precision != GCKPT_FP32;
}

/* Elements that a kernel reads or writes; without bf16, a pointer to floats. */
#ifndef GCKPT_NO_BF16
typedef struct { /* at most one is set */
    const float *f32;
    const uint16_t *halves;
} gckpti_source;
typedef struct {
    float *f32;
    uint16_t *halves;
} gckpti_destination;

#define GCKPTI_TYPED(type, name, parameter, floats, halves)                                        \
    static inline gckpti_##type gckpti_##name(parameter)                                           \
    {                                                                                              \
        const gckpti_##type x = { floats, halves };                                                \
        return x;                                                                                  \
    }
GCKPTI_TYPED(source, arg_values, const gckpt_arg *arg, arg->data, arg->bf16)
GCKPTI_TYPED(destination, arg_gradient, const gckpt_arg *arg, arg->grad, arg->grad_bf16)
GCKPTI_TYPED(destination, out_of, const gckpt_call *call, call->out, call->out_bf16)
GCKPTI_TYPED(source, grad_out_of, const gckpt_call *call, call->grad_out, call->grad_out_bf16)
GCKPTI_TYPED(destination, f32_destination, float *to, to, NULL)
GCKPTI_TYPED(source, source_of, gckpti_destination t, t.f32, t.halves)
#undef GCKPTI_TYPED
#define gckpti_f32(x)    ((x).f32)
#define gckpti_halves(x) ((x).halves)
#else
typedef const float *gckpti_source;
typedef float *gckpti_destination;
#define gckpti_arg_values(arg)     ((arg)->data)
#define gckpti_arg_gradient(arg)   ((arg)->grad)
#define gckpti_out_of(call)        ((call)->out)
#define gckpti_grad_out_of(call)   ((call)->grad_out)
#define gckpti_f32_destination(to) (to)
#define gckpti_source_of(t)        (t)
#define gckpti_f32(x)              (x)
#define gckpti_halves(x)           ((void)(x), (uint16_t *)NULL)
#endif
#define gckpti_is_set(x) (gckpti_f32(x) || gckpti_halves(x))
/* Floats of scratch for n elements that may have to be widened (gckpti_read, gckpti_open). */
#define GCKPTI_SCRATCH(n) (GCKPTI_WITH_BF16 ? (n) : 1)

/* Sets n elements from element `at` on to +0, if there are any. */
static inline void gckpti_clear(gckpti_destination x, int64_t at, int64_t n)
{
    if (gckpti_f32(x))
        memset(gckpti_f32(x) + at, 0, (size_t)n * sizeof(float));
    if (gckpti_halves(x))
        memset(gckpti_halves(x) + at, 0, (size_t)n * sizeof(uint16_t));
}

/* Copies element i of x, which is rounded if the result is bf16, to element `to`. */
GCKPTI_INLINE void gckpti_put_element(const gckpt_arg *x, int64_t i, float *out, uint16_t *narrow,
                                      int64_t to)
{
    if (!GCKPTI_WITH_BF16 || out)
        out[to] = x->data[i];
    else
        narrow[to] = x->bf16 ? x->bf16[i] : gckpti_to_bf16(x->data[i]);
}

/* Returns x from element `at` on, as an operand of a product with the given strides. */
static inline gckpti_operand gckpti_operand_of(gckpti_source x, int64_t at, int64_t row,
                                               int64_t step, int64_t next)
{
    const float *f32 = gckpti_f32(x);
    const uint16_t *halves = gckpti_halves(x);
    const gckpti_operand y = {
        f32 ? f32 + at : NULL, halves ? halves + at : NULL, row, step, next, NULL
    };
    return y;
}

/* ---- products of bf16 plans (manual, 5l) ---- */
enum {
    GCKPTI_K_BLOCK = 32, /* terms of a block; part of the specification */
    GCKPTI_MIXED_ROWS = GCKPTI_WITH_BF16 ? GCKPTI_K_BLOCK : 1
};

#ifndef GCKPT_NO_BF16
enum {
    GCKPTI_MIXED_MC = 256,            /* rows of c per panel of b (see gckpti_mixed_limits) */
    GCKPTI_MIXED_KC = 256,            /* k-terms per pass (twice that if a is in place) */
    GCKPTI_MIXED_A = 768 * 1024,      /* bytes of an a in place that are read once per panel */
    GCKPTI_MIXED_STREAM = 1024 * 1024 /* larger results are stored directly to memory */
};

/* Returns x from element `at` on. */
static inline gckpti_operand gckpti_operand_at(const gckpti_operand *x, int64_t at)
{
    gckpti_operand y = *x;
    y.f32 = x->f32 ? x->f32 + at : NULL, y.halves = x->halves ? x->halves + at : NULL;
    return y;
}

/* Return whether t's elements are one chain each; the terms of the block (or chain) at term p. */
GCKPTI_INLINE int gckpti_is_chain(const gckpti_product *t)
{
    return t->k_period > 0 && t->k_period < GCKPTI_K_BLOCK;
}
GCKPTI_INLINE int64_t gckpti_block_terms(const gckpti_product *t, int64_t p)
{
    const int one_period = !t->k_period || gckpti_is_chain(t);
    const int64_t left = one_period ? t->k : t->k_period - (t->k_offset + p) % t->k_period;
    return gckpti_min(gckpti_min(left, t->k - p), GCKPTI_K_BLOCK);
}

/* Returns whether `op` is built in and has `flag`. */
GCKPTI_FN int gckpti_has_builtin_flag(const gckpt_op *op, int flag);

/* Returns floats of workspace for a product of m rows, n columns and k terms (344 KiB at most):
 * some terms of a and of a panel of b, in bf16; if k is larger, also partial results, rows x
 * GCKPTI_NC. */
GCKPTI_FN int64_t gckpti_mixed_workspace(int64_t m, int64_t n, int64_t k);
GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t);

/* Returns an element of t, whose operands begin at a and b, after adding all terms to d. */
GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d);

#if GCKPTI_HAS_FAST
/* Packed operands of products in bf16 plans (manual, 5l): a as rows of bf16 in blocks of 32 terms;
 * b as panels of words: word q has the terms 2 q (first in memory) and 2 q + 1; a block is 16 rows
 * of a panel. Partial blocks are padded with -0 x +0, which changes no chain, not even one at -0.
 *
 * A tile: m rows and `width` (16, 32 or 48) columns of c add `blocks` blocks of terms; the last has
 * `last` terms. Row i of a is at a + i * a_row. Element (i,j) starts at from[i * from_row + j], or
 * +0 if from is NULL, and accumulates in c. The caller rounds it to c_bf16, if that is not NULL,
 * and, if start is not NULL, lets it start there, in rows like c_bf16. While a kernel computes a
 * tile, it may round rows of the tile `before`, in order; `rounded` counts them. */
typedef struct gckpti_mixed_tile {
    int64_t m, blocks, last, a_row, width, b_row, from_row, c_row, bf16_row;
    const uint16_t *a;
    const uint32_t *b;
    const float *from;
    float *c;
    uint16_t *c_bf16;
    const uint16_t *start;
    int64_t c_rows; /* rows of the result from here on: those after the tile may be prefetched */
    int64_t rounded;
    int streams; /* rows of c_bf16 are whole cache lines, to be stored directly to memory */
    struct gckpti_mixed_tile *before;
} gckpti_mixed_tile;

/* A tile kernel: most rows (multiples of row_step), most columns (panels of b may be wider). */
typedef struct {
    int rows, columns, row_step;
    void (*run)(const gckpti_mixed_tile *t);
} gckpti_tile_kernel;

/* A block of 16 lanes (rows of a or columns of b) and 32 terms of x, from element `at` on. */
typedef struct {
    const gckpti_operand *x;
    int64_t at;
    int as_a;
} gckpti_pack_block;

/* Operand x to pack: `blocks` blocks of product t, from term p on, of lanes 0..n-1. Term 0 of lane
 * 0 is element `at`. In x, lanes or terms are adjacent. */
typedef struct {
    const struct gckpti_mixed_kernels *kernels;
    const gckpti_product *t;
    const gckpti_operand *x;
    int64_t at, n, p, blocks;
} gckpti_pack_lanes;

/* Kernels of bf16 plans. tiles: [0] for blocks, [1] for a chain. configure: NULL, or called before
 * (1) and after (0) the tiles of an item. align: alignment in bytes of rows of an a in place. pack
 * writes an a in rows of `row` words, or a panel of b that is `row` words wide, +0 after n; put
 * writes a whole block of it. */
typedef struct gckpti_mixed_kernels {
    void (*product)(const gckpt_call *call, const gckpti_product *t);
    gckpti_tile_kernel tiles[2];
    void (*configure)(int start);
    int64_t align;
    void (*pack)(const gckpti_pack_lanes *s, int as_a, uint32_t *d, int64_t row);
    void (*put)(const gckpti_pack_block *s, uint32_t *d, int64_t row);
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
} gckpti_mixed_kernels;
#endif

/* Convert n elements from or to bf16, by the call's kernels. */
#define gckpti_widen_row(call, x, y, n)                                                            \
    GCKPTI_KERNEL_OF(call, mixed->widen, gckpti_from_bf16s)(x, y, n)
#define gckpti_narrow_row(call, x, y, n)                                                           \
    GCKPTI_KERNEL_OF(call, mixed->narrow, gckpti_to_bf16s)(x, y, n)

/* Computes a product if the call is one of a bf16 plan, and returns whether it is. */
#define gckpti_run_mixed(call, t)                                                                  \
    (gckpti_is_mixed(call) &&                                                                      \
     (GCKPTI_KERNEL_OF(call, mixed->product, gckpti_mixed_plain)(call, t), 1))

/* Returns n elements of x from element `at` on as floats: x's, or those in `wide` if x is bf16. */
static inline const float *gckpti_read(const gckpt_call *call, gckpti_source x, int64_t at,
                                       int64_t n, float *wide)
{
    if (!x.halves)
        return x.f32 + at;
    gckpti_widen_row(call, x.halves + at, wide, n);
    return wide;
}

/* Returns where the caller computes n floats of x from element `at` on (NULL: nowhere). If x is
 * bf16, that is `wide`, which has the present values if `adds`, and gckpti_close rounds to x. */
static inline float *gckpti_open(const gckpt_call *call, gckpti_destination x, int64_t at,
                                 int64_t n, int adds, float *wide)
{
    if (!x.halves)
        return x.f32 ? x.f32 + at : NULL;
    if (adds)
        gckpti_widen_row(call, x.halves + at, wide, n);
    return wide;
}
static inline void gckpti_close(const gckpt_call *call, gckpti_destination x, int64_t at, int64_t n,
                                const float *wide)
{
    if (x.halves)
        gckpti_narrow_row(call, wide, x.halves + at, n);
}

/* Stores n floats to x, from element `at` on. */
static inline void gckpti_store(const gckpt_call *call, gckpti_destination x, int64_t at, int64_t n,
                                const float *from)
{
    if (x.f32)
        memcpy(x.f32 + at, from, (size_t)n * sizeof *from);
    else
        gckpti_narrow_row(call, from, x.halves + at, n);
}
#else
#define gckpti_mixed_workspace(m, n, k)         0
#define gckpti_mixed_plain                      gckpti_fp32_plain
#define gckpti_run_mixed(call, t)               0
#define gckpti_read(call, x, at, n, wide)       ((void)(wide), (x) + (at))
#define gckpti_open(call, x, at, n, adds, wide) ((void)(wide), (x) ? (x) + (at) : NULL)
#define gckpti_close(call, x, at, n, wide)      ((void)0)
#define gckpti_store(call, x, at, n, from)      memcpy((x) + (at), from, (size_t)(n) * sizeof *(x))
#endif
