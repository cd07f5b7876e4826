#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
/* ---- linear, matmul: `batch` products; a work item is a block of c ---- */

static void gckpti_fp32_c_block(const gckpti_products *s, const gckpti_c_block *block,
                                float *scratch, int64_t floats)
{
    gckpti_product t = *s->t;
    const int64_t c_next = block->matrix * t.m * t.c_stride;
    t.a.f32 += block->matrix * t.a.batch_stride, t.c += c_next;
    if (!gckpti_has_compressed(&t.b))
        t.b.f32 += block->matrix * t.b.batch_stride;
    gckpti_kernels_of(s->call)->product_block(&t, block, scratch, floats);
}

static void gckpti_products_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_products *s = (const gckpti_products *)context;
    float stack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED, *scratch = (float *)s->t->workspace;
    gckpti_c_block block = { 0, 0, 0, 0, i / (s->row_blocks * s->col_blocks) };
    block.i0 = i / s->col_blocks % s->row_blocks * s->rows, block.j0 = i % s->col_blocks * s->cols;
    block.i1 = block.i0 + gckpti_min(s->t->m - block.i0, s->rows);
    block.j1 = block.j0 + gckpti_min(s->t->n - block.j0, s->cols);
    s->run_block(s, &block, s->floats ? scratch + worker * s->floats : stack,
                 s->floats ? s->floats : (int64_t)GCKPTI_STACK_FLOATS);
}

/* Runs all blocks of all products. s is the first member of a struct known to s->run_block. */
GCKPTI_FN void gckpti_run_products(gckpti_products *s)
{
    gckpt_parallel(s->call, s->t->batch * s->row_blocks * s->col_blocks,
                   s->rows * s->cols * s->t->k, gckpti_products_item, s);
}

/* Splits c into blocks, nearly square, since each block reads its rows of a and columns of b: 4 per
 * thread, so that a thread that loses its core delays others little; 1 if a is a row or c is small.
 * If b is transposed, columns are split first. The rows of a of a block fit into L2. A block has 64
 * rows or more, or 16 of long chains (gradients of weights). */
GCKPTI_FN void gckpti_products_split(gckpti_products *s)
{
    enum { LOW = 256, HIGH = 1024 };
    const gckpti_product *t = s->t;
    int64_t narrow = 2 * GCKPTI_PANEL;
    if (t->m == 1) /* b in long runs */
        narrow = t->k > t->n ? 128 : 512;
    int brief = t->m * t->n * t->k < 65536;
    const int64_t low = t->k < 4 * HIGH ? 4 * GCKPTI_STRIP : GCKPTI_STRIP;
    int64_t threads = s->call->threads, each = t->m == 1 && t->b.stride == 1 ? 1 : 4;
    int64_t items = brief || threads < 2 ? 1 : each * threads / t->batch;
    s->rows = t->m, s->cols = t->n;
    for (int64_t count = 1; count < items || (s->rows > HIGH && !brief); count *= 2)
        if (count < items && s->cols > narrow &&
            (t->b.stride != 1 || s->cols >= s->rows || s->rows <= LOW))
            s->cols = gckpti_ceil_to((s->cols + 1) / 2, GCKPTI_PANEL);
        else if (s->rows > low)
            s->rows = gckpti_ceil_to((s->rows + 1) / 2, GCKPTI_STRIP);
    s->col_blocks = (t->n + s->cols - 1) / s->cols;
    s->row_blocks = (t->m + s->rows - 1) / s->rows;
}

/* Returns t or, if c is a column whose rows are adjacent, the product b' a' whose row c is, set in
 * `row`: its kernels read a as it is stored, in whole vectors. Needs no scratch. */
static const gckpti_product *gckpti_column_as_row(const gckpti_product *t, gckpti_product *row)
{
    if (t->m == 1 || t->n != 1 || t->c_stride != 1 || gckpti_has_compressed(&t->b) ||
        (t->a.stride != 1 && t->a.k_stride != 1) || t->initial_stride)
        return t;
    for (int64_t i = 0; t->initial && !t->accumulate && i < t->m; i++)
        t->c[i] = *t->initial;
    *row = *t, row->accumulate |= t->initial != NULL;
    row->b = t->a, row->a = t->b;
    row->n = row->c_stride = t->m, row->m = 1;
    return row;
}

GCKPTI_FN void gckpti_fp32_fast(const gckpt_call *call, const gckpti_product *product)
{
    gckpti_product row;
    gckpti_products s = { call, product, 0, 0, 0, 0, 0, gckpti_fp32_c_block };
    s.t = gckpti_column_as_row(product, &row);
    s.floats = gckpti_product_workspace(product->m, product->n, product->k);
    gckpti_products_split(&s);
    gckpti_run_products(&s);
}
#endif
