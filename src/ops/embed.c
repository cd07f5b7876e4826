#include "ops/internal.h"
#include "graph/graph.h"

/* ---- embed: out[r] = table[index[r]]; backward: dtable[index[r]] += g[r], row by row. gather
 * (axes/ops.c): the same, but each sample has its own table. */
static gckpt_result gckpti_embed_shape(gckpt_call *call)
{
    const gckpt_shape *table = &call->in[0].shape, *index = &call->in[1].shape;
    if (table->n != 2 || index->n >= GCKPT_MAX_DIMS)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "embed: table %S needs two axes, index %S at most %i", table, index,
                          GCKPT_MAX_DIMS - 1);
    call->shape = *index;
    call->shape.d[call->shape.n++] = table->d[1];
    return GCKPT_OK;
}

static void gckpti_take_row(const gckpt_call *call, int64_t r)
{
    const int64_t n = gckpti_last(&call->shape), at = gckpti_source_row(call, r) * n;
    if (gckpti_call_compressed(call)) {
        float row[64];
        for (int64_t i = 0, count; i < n; i += count) {
            count = gckpti_min(n - i, 64);
            gckpti_decompress(gckpti_call_compressed(call), at + i, count, row);
            gckpti_store(call, gckpti_out_of(call), r * n + i, count, row);
        }
        return;
    }
    gckpti_store(call, gckpti_out_of(call), r * n, n, call->in[0].data + at);
}

static int64_t gckpti_take_samples(const gckpt_call *call)
{
    return call->in[0].shape.n == 3 ? call->shape.d[0] : 1;
}

/* Adds 64 columns of all rows of a sample, so that each element's sum keeps its order. */
static void gckpti_take_columns(const gckpt_call *call, int64_t i)
{
    int64_t n = gckpti_last(&call->shape), items = (n + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS;
    int64_t rows = gckpti_rows(&call->shape) / gckpti_take_samples(call), first = i / items * rows;
    int64_t j = i % items * GCKPTI_COLUMNS, width = gckpti_min(n - j, GCKPTI_COLUMNS);
    float wide[GCKPTI_SCRATCH(GCKPTI_COLUMNS)];
    for (int64_t r = first; r < first + rows; r++) {
        const float *g = gckpti_read(call, gckpti_grad_out_of(call), r * n + j, width, wide);
        GCKPTI_KERNEL_OF(call, add, gckpti_add_into)
        (call->in[0].grad + gckpti_source_row(call, r) * n + j, g, width);
    }
}

/* Runs embed or gather; the backward first zeroes a table's gradient, unless it accumulates. */
static void gckpti_run_take(const gckpt_call *call, int backward)
{
    const gckpt_arg *table = &call->in[0];
    const int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const int64_t samples = gckpti_take_samples(call);
    if (!backward)
        gckpti_for_each(call, rows, n, gckpti_take_row);
    if (!backward || !table->grad)
        return;
    if (!table->accumulate)
        gckpti_cpu_fill(call, table->grad, 0, gckpti_elements(&table->shape));
    gckpti_for_each(call, samples * ((n + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS),
                    4 * rows / samples * GCKPTI_COLUMNS, gckpti_take_columns);
}
GCKPTI_OP_KERNELS(embed, gckpti_run_take(call, backward))

/* Returns the limit of input i's indices: the rows of input i - 1, or of one sample of it. */
static int64_t gckpti_table_rows(const gckpt_call *call, int i)
{
    const gckpt_shape *table = &call->in[i - 1].shape;
    return table->d[table->n - 2];
}

GCKPTI_DESC_WITH(embed, gckpti_embed_shape, NULL, NULL, gckpti_table_rows,
                 GCKPT_TAKES_BF16 | GCKPT_INDEX(1), GCKPT_IN(1));

GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index)
{
    if (table && index && !table->batch_invariant)
        return gckpti_fail(table->graph, GCKPT_E_ARG,
                           "embed: the table %T depends on the batch; it must be a "
                           "function of parameters",
                           table);
    gckpt_tensor *t = gckpti_apply_to(&gckpti_op_embed, table, index, NULL, NULL, 0);
    if (t)
        table->f32_uses--;
    return t;
}
