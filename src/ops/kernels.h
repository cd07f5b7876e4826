#pragma once
#include "ops/ops.h"

/* ---- the loops of ops for vectors: a table for each instruction set (folder kernels/) ----
 * An op has one forward and one backward. They call a loop over a row, a chunk of elements or a
 * block, by GCKPTI_KERNEL_OF: from the table of the call or, if that is NULL, the plain loop, which
 * defines the numbers. Items of a loop go to the threads by gckpt_parallel. */
#define GCKPTI_KIND(name, ...) GCKPTI_KIND_##name,
/* Elementwise ops; from GCKPTI_FIRST_BINARY on, they have several inputs. */
enum {
    GCKPTI_UNARY_OPS(GCKPTI_KIND) GCKPTI_UNARY_OPS_WITH(GCKPTI_KIND) GCKPTI_BINARY_OPS(GCKPTI_KIND)
        GCKPTI_KIND_where,
    GCKPTI_FIRST_BINARY = GCKPTI_KIND_add
};
#undef GCKPTI_KIND
enum { GCKPTI_ROW_OP_softmax, GCKPTI_ROW_OP_norm, GCKPTI_ROW_OP_log_softmax };
enum { GCKPTI_ELEMENTS = 4096, GCKPTI_COLUMNS = 64 }; /* of a work item */
/* Rows of a tile of terms of sums; the shortest rows, and the fewest sums, that take vectors. */
enum { GCKPTI_TERM_ROWS = 32, GCKPTI_LONG_ROW = 32, GCKPTI_FEW_SUMS = 8 };
enum { GCKPTI_FEW_CLASSES = 16, GCKPTI_FEW_ROWS = 128 }; /* most classes; rows of a work item */

#if GCKPTI_HAS_FAST
/* Block of c: rows i0..i1-1, columns j0..j1-1 of matrix `matrix`. */
typedef struct {
    int64_t i0, i1, j0, j1, matrix;
} gckpti_c_block;

/* Sums over rows of the columns of call->grad_out, for a bias, and of products, for a gain. */
typedef struct {
    const gckpt_call *call;
    float *gain, *bias;
    float *gain_comp, *bias_comp;
} gckpti_column_sums;

typedef struct { /* gradients: of each input */
    gckpti_loop_fn values, gradients[2];
} gckpti_loops;

/* The table of kernels of an instruction set (kernels/table.c); those of parts come last. */
typedef struct {
    void (*product_block)(const gckpti_product *t, const gckpti_c_block *block, float *pack,
                          int64_t scratch);
    void (*pack)(const float *b, int64_t step, int64_t col, int64_t n, int64_t k, float *d,
                 int64_t width); /* transposes, for step 1: see kernels/products.c */
    void (*divide)(float *x, float divisor, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
    float (*update)(const gckpt_update_pass *p, const float *more, int64_t block, int64_t n,
                    int update);
    void (*add)(float *to, const float *from, int64_t n);        /* to += from */
    const gckpti_loops *elementwise;                             /* by GCKPTI_KIND_.. */
    void (*run_loop)(const gckpti_loop *s, gckpti_loop_fn loop); /* of any number of elements */
    void (*rows[3][2])(const gckpt_call *call, int64_t row);     /* GCKPTI_ROW_OP_..: both passes */
    void (*column_sums)(const gckpti_column_sums *s, int64_t first, int64_t end);
    float (*sum)(const float *x, int64_t n, float first); /* of x[j] - first */
    const gckpti_element_kernels *element_losses;
    const gckpti_class_kernels *class_losses;
    void (*few_classes)(const float *x, int64_t rows, int64_t n, float *max, float *log_sum);
    void (*dropout)(const gckpti_dropout *d, int64_t first, int64_t end);
    void (*product)(const gckpt_call *call, const gckpti_product *t);
    const struct gckpti_mixed_kernels *mixed;       /* NULL with GCKPT_NO_BF16 */
    const struct gckpti_attention_loops *attention; /* NULL with GCKPT_NO_ATTENTION */
    const struct gckpti_image_kernels *images;      /* NULL with GCKPT_NO_IMAGES */
    const struct gckpti_cell_loops *recurrent;      /* NULL with GCKPT_NO_RECURRENT */
} gckpti_kernels;

static inline const gckpti_kernels *gckpti_kernels_of(const gckpt_call *call)
{
    return (const gckpti_kernels *)call->kernels;
}
#define GCKPTI_KERNEL_OF(call, entry, plain)                                                       \
    ((call)->kernels ? gckpti_kernels_of(call)->entry : (plain))
#else
#define GCKPTI_KERNEL_OF(call, entry, plain) ((void)(call), (plain))
#endif

/* ---- ops/fill.c ---- */
enum { GCKPTI_UNCACHED = 1 << 23 }; /* floats; larger arrays fit into no L2 or L3 */
/* Set n words to `word`; add n floats to others. */
GCKPTI_FN void gckpti_cpu_fill(const gckpt_call *call, void *to, uint32_t word, int64_t n);
GCKPTI_FN void gckpti_cpu_add(const gckpt_call *call, float *to, const float *from, int64_t n);

/* ---- ops/gemm.c ---- */
/* Runs work items item(call, i) that need no scratch and no other state. */
GCKPTI_FN void gckpti_for_each(const gckpt_call *call, int64_t n, int64_t cost,
                               void (*item)(const gckpt_call *call, int64_t i));
GCKPTI_FN void gckpti_fp32_plain(const gckpt_call *call, const gckpti_product *t);

/* ---- ops/products.c ---- */
/* Sums over rows: g into the gradient of input `bias`, g times the normalised x into that of `gain`
 * (0: none), row by row. With a single row, `compensation` may be NULL. */
GCKPTI_FN void gckpti_run_column_sums(const gckpt_call *call, int gain, int bias);
