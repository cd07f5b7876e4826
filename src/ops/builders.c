#include "axes/axes.h"
#include "graph/graph.h"
#include "ops/internal.h"

/* ---- losses that may have weights: ops of losses.c and weighted.c ---- */
/* Adds a loss to the graph: by op `with` if it has weights or label smoothing. */
static gckpt_tensor *gckpti_loss_new(const gckpt_op *op, const gckpt_op *with, gckpt_tensor *x,
                                     gckpt_tensor *target, gckpt_tensor *weights,
                                     const float *smoothing)
{
    if (!weights && (!smoothing || (*smoothing >= 0.0f && *smoothing <= 0.0f)))
        return gckpti_apply_to(op, x, target, NULL, NULL, 0);
    if (!with)
        return gckpti_fail(x ? x->graph : NULL, GCKPT_E_ARG,
                           "loss: this build (GCKPT_NO_LOSSES) has no weights and no smoothing");
    return gckpti_apply_to(with, x, target, weights, smoothing, smoothing ? sizeof *smoothing : 0);
}

GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                            gckpt_tensor *weights, float smoothing)
{
    return gckpti_loss_new(&gckpti_op_cross_entropy,
                           GCKPTI_IF_LOSSES(&gckpti_op_cross_entropy_with), logits, targets,
                           weights, &smoothing);
}

GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target,
                                                 gckpt_tensor *weights)
{
    return gckpti_loss_new(&gckpti_op_mean_squared_error,
                           GCKPTI_IF_LOSSES(&gckpti_op_mean_squared_error_with), prediction, target,
                           weights, NULL);
}

/* ---- matrix products: ops of products.c and, with broadcast operands, of axes/matmul.c ---- */
GCKPT_API gckpt_tensor *gckpt_matmul(gckpt_tensor *a, gckpt_tensor *b)
{
    return gckpti_matmul_of(a, b, 0);
}

GCKPT_API gckpt_tensor *gckpt_matmul_transposed(gckpt_tensor *a, gckpt_tensor *b)
{
    return gckpti_matmul_of(a, b, 1);
}
