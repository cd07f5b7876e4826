#pragma once
#include "store/store.h"

/* ---- products: operands, sizes of blocks, workspaces ---- */
/* An operand of a product (ops/gemm.c): f32, bf16 or quant is set. */
typedef struct gckpti_operand {
    const float *f32;
    const uint16_t *bf16;
    int64_t stride;                    /* step to the next row of c (of b: the next column) */
    int64_t k_stride;                  /* step to the next term */
    int64_t batch_stride;              /* step to the next matrix */
    const gckpt_dequantisation *quant; /* only in a batch of one matrix */
} gckpti_operand;

/* c(i,j) = chain over p of a(i,p) b(p,j), p ascending, for each matrix of a batch. The chain starts
 * at c(i,j) if `accumulate`, else at initial[i * initial_stride + j] (for a bias the stride is 0),
 * or at +0 if `initial` is NULL. In bf16 plans the k terms are divided into blocks (manual, 5l). A
 * new block begins after each period of k_period terms (0: one period); k_offset terms of the first
 * period precede p = 0. If k_period is shorter than a block, all k terms are an undivided chain. */
typedef struct gckpti_product {
    int64_t batch, m, n, k;
    gckpti_operand a, b; /* fast if one stride of each operand is 1 */
    const float *initial;
    int64_t initial_stride; /* nonzero only with batch 1, and in fast kernels only for f32 */
    int accumulate;
    float *c;
    uint16_t *c_bf16; /* or c */
    int64_t c_stride; /* other than n only where initial_stride may be nonzero */
    void *workspace;  /* call->workspace, for the fast kernels */
    int64_t k_period, k_offset;
} gckpti_product;

static inline int gckpti_has_quant(const gckpti_operand *x)
{
    return GCKPTI_WITH_QUANT && x->quant;
}

/* Returns the quantised parameter that an op reads, or NULL. */
static inline const gckpt_dequantisation *gckpti_call_quant(const gckpt_call *call)
{
    return GCKPTI_WITH_QUANT ? (const gckpt_dequantisation *)call->quantised : NULL;
}

/* ---- quant/ops.c ---- */
#ifndef GCKPT_NO_QUANT
/* Dequantises all elements to quant->to. */
GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant);
#else
static inline void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant)
{
    (void)call, (void)quant;
}
#define gckpti_fp32_quant(t) (void)(t)
#endif

enum {
    GCKPTI_K_BLOCK = 32,      /* terms of a block in bf16 plans; part of the specification */
    GCKPTI_LOSS_CHUNK = 1024, /* classes per step of cross-entropy; part of the specification */
#ifndef GCKPT_NO_FAST
    GCKPTI_LOSS_ROWS = 256,     /* rows per pass over a chunk of w; affects speed only */
    GCKPTI_LOSS_MAX_ROWS = 1024 /* rows in bf16 plans, which pack w in each pass; rows without w */
#else
    GCKPTI_LOSS_ROWS = 1, /* plain plans take one row at a time, to need less stack */
    GCKPTI_LOSS_MAX_ROWS = GCKPTI_WITH_BF16 ? GCKPTI_K_BLOCK : 1
#endif
};

/* Block sizes of the fast kernels, from which their scratch follows; equal for all of them. */
enum {
    GCKPTI_KC = 384,         /* k-terms per pass; between passes, c has the partial sums */
    GCKPTI_KC_STRIDED = 256, /* k-terms per pass if each term of a is in another cache line */
    GCKPTI_NC = 192,         /* columns of b per block: with KC terms, a third of a 1 MB L2 */
    GCKPTI_PANEL = 48,       /* most columns of a packed panel of b */
    GCKPTI_STRIP = 16,       /* rows of a that are packed at a time: a cache line of floats */
    GCKPTI_GATHER_ROWS = 64, /* rows of a gathered at a time for dw of a convolution */
    GCKPTI_STACK_FLOATS = 128 * (GCKPTI_PANEL + GCKPTI_STRIP), /* 32 KiB on the stack */
    GCKPTI_MIXED_MC = 256, /* bf16 plans: rows of c per panel of b (twice that if a is in place) */
    GCKPTI_MIXED_KC = 256  /* bf16 plans: k-terms per pass */
};

static inline int64_t gckpti_ceil_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* Returns floats of workspace for a product of m rows, n columns and k terms: 320 KiB at most, 0 if
 * the stack suffices. Fewer will do, down to 16 terms: 16 * (GCKPTI_PANEL + GCKPTI_STRIP). */
GCKPTI_FN int64_t gckpti_product_workspace(int64_t m, int64_t n, int64_t k);

/* Returns floats of workspace for such a product in a bf16 plan (344 KiB at most): some terms of a
 * and of a panel of b, in bf16; if k is larger, also partial results, rows x GCKPTI_NC. */
GCKPTI_FN int64_t gckpti_mixed_workspace(int64_t m, int64_t n, int64_t k);

static inline void gckpti_zero_unless(float *d, int64_t n, int accumulate)
{
    if (!accumulate)
        memset(d, 0, (size_t)n * sizeof *d);
}

typedef void (*gckpti_product_fn)(const gckpt_call *call, const gckpti_product *t);

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

/* Returns the rows per sample of x; in a bf16 plan they are the terms of a period (manual, 5l). */
GCKPTI_INLINE int64_t gckpti_sample_rows(const gckpt_shape *x)
{
    return x->n > 1 && x->d[0] > 0 ? gckpti_rows(x) / x->d[0] : 1;
}

/* Returns the values of arg, from element `at` on, as an operand with the given strides. */
static inline gckpti_operand gckpti_arg_operand(const gckpt_arg *arg, int64_t at, int64_t row,
                                                int64_t step, int64_t next)
{
    const gckpti_operand x = {
        arg->data ? arg->data + at : NULL, arg->bf16 ? arg->bf16 + at : NULL, row, step, next, NULL
    };
    return x;
}
static inline gckpti_operand gckpti_transpose(const gckpti_operand *x)
{
    gckpti_operand y = { x->f32, x->bf16, x->k_stride, x->stride, x->batch_stride, x->quant };
    return y;
}
/* Returns x from element `at` on. */
static inline gckpti_operand gckpti_operand_at(const gckpti_operand *x, int64_t at)
{
    gckpti_operand y = *x;
    y.f32 = x->f32 ? x->f32 + at : NULL, y.bf16 = x->bf16 ? x->bf16 + at : NULL;
    return y;
}

/* Return an f32 operand of a single matrix; a product a b of f32 operands. */
static inline gckpti_operand gckpti_matrix(const float *x, int64_t row, int64_t step)
{
    const gckpti_operand f = { x, NULL, row, step, 0, NULL };
    return f;
}

static inline gckpti_product gckpti_product_of(int64_t m, int64_t n, int64_t k, gckpti_operand a,
                                               gckpti_operand b, float *c)
{
    const gckpti_product t = { 1, m, n, k, a, b, NULL, 0, 0, c, NULL, n, NULL, 0, 0 };
    return t;
}

/* ---- bf16/ops.c ---- */
/* Returns whether `op` is built in and has `flag`. */
#ifndef GCKPT_NO_BF16
GCKPTI_FN int gckpti_has_builtin_flag(const gckpt_op *op, int flag);
GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t);

/* Returns an element of t, whose operands begin at a and b, after adding all terms to d. */
GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d);
#else
#define gckpti_mixed_plain gckpti_fp32_plain
#endif
