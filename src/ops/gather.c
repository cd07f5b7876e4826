#include "ops/own.h"

/* ---- gather: out[b][m] = x[b][index[b][m]]; dx[b][index[b][m]] += g[b][m], m ascending ---- */
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

GCKPTI_FN void gckpti_gather_entry(const gckpt_call *call, int64_t b)
{
    int64_t m = call->shape.d[1], c = call->shape.d[2];
    const int32_t *index = call->in[1].index + b * m;
    const float *x = call->in[0].data + b * call->in[0].shape.d[1] * c;
    for (int64_t i = 0; i < m; i++)
        memcpy(call->out + (b * m + i) * c, x + index[i] * c, (size_t)c * sizeof *x);
}

GCKPTI_FN void gckpti_gather_entry_back(const gckpt_call *call, int64_t b)
{
    int64_t m = call->shape.d[1], c = call->shape.d[2], n = call->in[0].shape.d[1] * c;
    const int32_t *index = call->in[1].index + b * m;
    const float *g = call->grad_out + b * m * c;
    float *d = call->in[0].grad + b * n;
    gckpti_start(d, n, call->in[0].accumulate);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < c; j++)
            d[index[i] * c + j] += *g++;
}

GCKPTI_FN void gckpti_gather_forward(const gckpt_call *call)
{
    for (int64_t b = 0; b < call->shape.d[0]; b++)
        gckpti_gather_entry(call, b);
}

GCKPTI_FN void gckpti_gather_backward(const gckpt_call *call)
{
    for (int64_t b = 0; call->in[0].grad && b < call->shape.d[0]; b++)
        gckpti_gather_entry_back(call, b);
}

static int64_t gckpti_gather_rows(const gckpt_call *call, int i)
{
    return call->in[i - 1].shape.d[1];
}

GCKPTI_ROW_WITH(gather, GCKPTI_FAST, gckpti_gather_shape, NULL, NULL, gckpti_gather_rows,
                GCKPT_INDEX(1), GCKPT_IN(1));

GCKPT_API gckpt_tensor *gckpt_gather(gckpt_tensor *x, gckpt_tensor *index)
{
    gckpt_tensor *in[2] = { x, index };
    return gckpt_apply(&gckpti_op_gather, in, 2, NULL, 0);
}
