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
    int64_t n = gckpti_last(&call->shape), at = gckpti_source_row(call, r) * n;
    const gckpt_dequantisation *quant = gckpti_call_quant(call);
    float row[64];
    if (quant && gckpti_has_f32(call->out))
        gckpti_dequantise(quant, at, n, call->out + r * n);
    for (int64_t i = 0, count; quant && !gckpti_has_f32(call->out) && i < n; i += count) {
        count = gckpti_min(n - i, 64);
        gckpti_dequantise(quant, at + i, count, row);
        gckpti_to_bf16s(row, call->out_bf16 + r * n + i, count);
    }
    if (quant)
        return;
    if (gckpti_has_f32(call->out))
        memcpy(call->out + r * n, call->in[0].data + at, (size_t)n * sizeof(float));
    else
        gckpti_to_bf16s(call->in[0].data + at, call->out_bf16 + r * n, n);
}

static void gckpti_take_rows(const gckpt_call *call, int backward)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    float *table = call->in[0].grad;
    for (int64_t r = 0; !backward && r < rows; r++)
        gckpti_take_row(call, r);
    if (!backward || !table)
        return;
    gckpti_zero_unless(table, gckpti_elements(&call->in[0].shape), call->in[0].accumulate);
    for (int64_t r = 0; r < rows; r++) {
        float *d = table + gckpti_source_row(call, r) * n;
        if (gckpti_has_f32(call->grad_out))
            for (int64_t i = 0; i < n; i++)
                d[i] += call->grad_out[r * n + i];
        for (int64_t i = 0; !gckpti_has_f32(call->grad_out) && i < n; i++)
            d[i] += gckpti_from_bf16(call->grad_out_bf16[r * n + i]);
    }
}
GCKPTI_OP_KERNELS(embed, gckpti_take_rows(call, backward))
GCKPTI_OP_KERNELS(gather, gckpti_take_rows(call, backward))

/* Returns the limit of input i's indices: the rows of input i - 1, or of one sample of it. */
GCKPTI_FN int64_t gckpti_table_rows(const gckpt_call *call, int i)
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
