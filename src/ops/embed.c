#include "ops/own.h"
#include "graph/graph.h"

/* ---- embed: out[r] = table[index[r]]; dtable[index[r]] += g[r], row by row ---- */
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

GCKPTI_FN void gckpti_embed_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; r < rows; r++) {
        const gckpt_unpacking *stored = gckpti_stored_of(call);
        const int64_t at = call->in[1].index[r] * n;
        if (stored)
            gckpti_stored_read(stored, at, n, call->out + r * n);
        else if (gckpti_is_wide(call->out))
            memcpy(call->out + r * n, call->in[0].data + at, (size_t)n * sizeof(float));
        else
            gckpti_to_bf16s(call->in[0].data + at, call->out_bf16 + r * n, n);
    }
}

/* Rows of g in their order, each to its row of the table. */
GCKPTI_FN void gckpti_embed_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    float *table = call->in[0].grad;
    if (!table)
        return;
    gckpti_start(table, gckpti_elements(&call->in[0].shape), call->in[0].accumulate);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            table[call->in[1].index[r] * n + i] += gckpti_grad_out(call, r * n + i);
}

/* Input i holds numbers of rows of input i - 1: embed, linear_cross_entropy. */
GCKPTI_FN int64_t gckpti_table_rows(const gckpt_call *call, int i)
{
    return call->in[i - 1].shape.d[0];
}

GCKPTI_ROW_WITH(embed, GCKPTI_FAST, gckpti_embed_shape, NULL, NULL, gckpti_table_rows,
                GCKPT_TAKES_BF16 | GCKPT_INDEX(1), GCKPT_IN(1));

GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index)
{
    gckpt_tensor *in[2] = { table, index };
    if (table && index && !table->batchless)
        return gckpti_fail(table->graph, GCKPT_E_ARG,
                           "embed: the table %T depends on the batch; it must be a "
                           "function of parameters",
                           table);
    gckpt_tensor *t = gckpt_apply(&gckpti_op_embed, in, 2, NULL, 0);
    if (t)
        table->floats--;
    return t;
}
