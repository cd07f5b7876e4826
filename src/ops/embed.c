#include "ops/internal.h"
#include "graph/graph.h"

/* ---- embed: out[r] = table[index[r]]; backward: dtable[index[r]] += g[r], row by row. gather: the
 * same, but each sample has its own table. */
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

static gckpt_result gckpti_gather_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *index = &call->in[1].shape;
    if (x->n != 3 || index->n != 2 || x->d[0] != index->d[0])
        return gckpt_fail(call, GCKPT_E_SHAPE, "gather: x %S, index %S must be (B,N,C), (B,M)", x,
                          index);
    call->shape = *x;
    call->shape.d[1] = index->d[1];
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_take_row(const gckpt_call *call, int64_t r)
{
    const int64_t n = gckpti_last(&call->shape), at = gckpti_source_row(call, r) * n;
    const gckpt_dequantisation *quant = gckpti_call_quant(call);
    float row[64];
    for (int64_t i = 0, count; i < n; i += count) {
        const float *from = quant ? row : call->in[0].data + at + i;
        count = quant ? gckpti_min(n - i, 64) : n;
        if (quant)
            gckpti_dequantise(quant, at + i, count, row);
        if (gckpti_has_f32(call->out))
            memcpy(call->out + r * n + i, from, (size_t)count * sizeof *from);
        else
            gckpti_to_bf16s(from, call->out_bf16 + r * n + i, count);
    }
}

static void gckpti_take_rows(const gckpt_call *call, int backward)
{
    const int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    float *table = call->in[0].grad;
    if (backward && table)
        gckpti_zero_unless(table, gckpti_elements(&call->in[0].shape), call->in[0].accumulate);
    for (int64_t r = 0; r < rows; r++)
        if (!backward)
            gckpti_take_row(call, r);
        else
            for (int64_t i = 0; table && i < n; i++)
                table[gckpti_source_row(call, r) * n + i] += gckpti_grad_out(call, r * n + i);
}
GCKPTI_OP_KERNELS(embed, gckpti_take_rows(call, backward))
GCKPTI_OP_KERNELS(gather, gckpti_take_rows(call, backward))

/* Returns the limit of input i's indices: the rows of input i - 1, or of one sample of it. */
static int64_t gckpti_table_rows(const gckpt_call *call, int i)
{
    const gckpt_shape *table = &call->in[i - 1].shape;
    return table->d[table->n - 2];
}

GCKPTI_DESC_WITH(embed, GCKPTI_FAST, gckpti_embed_shape, NULL, NULL, gckpti_table_rows,
                 GCKPT_TAKES_BF16 | GCKPT_INDEX(1), GCKPT_IN(1));
GCKPTI_DESC_WITH(gather, GCKPTI_FAST, gckpti_gather_shape, NULL, NULL, gckpti_table_rows,
                 GCKPT_INDEX(1), GCKPT_IN(1));

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

GCKPT_API gckpt_tensor *gckpt_gather(gckpt_tensor *x, gckpt_tensor *index)
{
    return gckpti_apply_to(&gckpti_op_gather, x, index, NULL, NULL, 0);
}
