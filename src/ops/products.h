#pragma once
#include "store/store.h"

/* ---- products: operands, sizes of blocks, workspaces ---- */
/* An operand of a product (ops/gemm.c): one of the three pointers is set. */
typedef struct gckpti_operand {
    const float *f32;
    const uint16_t *halves;
    int64_t stride;                    /* step to the next row of c (of b: the next column) */
    int64_t k_stride;                  /* step to the next term */
    int64_t batch_stride;              /* step to the next matrix */
    const gckpti_compressed *compressed; /* only in a batch of one matrix */
} gckpti_operand;

/* c(i,j) = chain over p of a(i,p) b(p,j), p ascending, for each matrix of a batch. The chain starts
 * at c(i,j) if `accumulate`, else at initial[i * initial_stride + j] (for a bias the stride is 0),
 * or at +0 if `initial` is NULL. Mixed products divide the k terms into blocks (manual, 5l). A
 * new block begins after each period of k_period terms (0: one period); k_offset terms of the first
 * period precede p = 0. If k_period is shorter than a block, all k terms are an undivided chain. */
typedef struct gckpti_product {
    int64_t batch, m, n, k;
    gckpti_operand a, b; /* fast if one stride of each operand is 1 */
    const float *initial;
    int64_t initial_stride; /* nonzero only with batch 1, and in fast kernels only for f32 */
    int accumulate;
    float *c;
    uint16_t *c_halves; /* or c */
    int64_t c_stride; /* other than n only where initial_stride may be nonzero */
    void *workspace;  /* call->workspace, for the fast kernels */
    int64_t k_period, k_offset;
} gckpti_product;

static inline int gckpti_has_compressed(const gckpti_operand *x)
{
    return GCKPTI_HAS_COMPRESSED && x->compressed;
}

/* Returns the compressed parameter that an op reads, or NULL. */
static inline const gckpti_compressed *gckpti_call_compressed(const gckpt_call *call)
{
    return GCKPTI_HAS_COMPRESSED ? (const gckpti_compressed *)call->compressed : NULL;
}

enum {
    GCKPTI_LOSS_CHUNK = 1024 /* classes per step of cross-entropy; part of the specification */
};

/* Block sizes of the fast kernels, from which their scratch follows; equal for all of them. */
enum {
    GCKPTI_KC = 384,         /* k-terms per pass; between passes, c has the partial sums */
    GCKPTI_KC_STRIDED = 256, /* k-terms per pass if each term of a is in another cache line */
    GCKPTI_NC = 192,         /* columns of b per block: with KC terms, a third of a 1 MB L2 */
    GCKPTI_PANEL = 48,       /* most columns of a packed panel of b */
    GCKPTI_STRIP = 16,       /* rows of a that are packed at a time: a cache line of floats */
    GCKPTI_GATHER_ROWS = 64, /* rows of a gathered at a time for dw */
    GCKPTI_NARROW_ROWS = 8,  /* rows of a tile of one vector */
    GCKPTI_STACK_FLOATS = 128 * (GCKPTI_PANEL + GCKPTI_STRIP) /* 32 KiB on the stack */
};

static inline int64_t gckpti_ceil_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* Returns floats of workspace for a product of m rows, n columns and k terms: 320 KiB at most, 0 if
 * the stack suffices. Fewer will do, down to 16 terms: 16 * (GCKPTI_PANEL + GCKPTI_STRIP). */
GCKPTI_FN int64_t gckpti_product_workspace(int64_t m, int64_t n, int64_t k);

static inline void gckpti_zero_unless(float *d, int64_t n, int accumulate)
{
    if (!accumulate)
        memset(d, 0, (size_t)n * sizeof *d);
}

typedef void (*gckpti_product_fn)(const gckpt_call *call, const gckpti_product *t);

/* Returns the rows per sample of x: the terms of a period of a mixed product (manual, 5l). */
GCKPTI_INLINE int64_t gckpti_sample_rows(const gckpt_shape *x)
{
    return x->n > 1 && x->d[0] > 0 ? gckpti_rows(x) / x->d[0] : 1;
}

static inline gckpti_operand gckpti_transpose(const gckpti_operand *x)
{
    gckpti_operand y = *x;
    y.stride = x->k_stride, y.k_stride = x->stride;
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
