#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_LOSSES
/* ---- cross_entropy_with, soft_cross_entropy: cross_entropy with s_j = log(sum) - (x_j - max) ----
 * smoothing e: loss fma(e / V, sum of s by lanes, mul(1 - e, s_target)); dx_j = put(p_j - e / V,
 * scale), of the target put(p_j - ((1 - e) + e / V), scale). soft targets t: loss by lanes,
 * fma(t_j, s_j, lane); t_j = 0 adds nothing even if s_j is infinite; dx_j = put(fma(p_j, sum of t,
 * -t_j), scale), dt_j = put(s_j, scale). A row's weight w multiplies its loss and scale; if w = 0,
 * loss and dx are 0, whatever its logits are, and the row counts. dw = put(sum by lanes of the
 * losses that w multiplies, loss_scale). */
static gckpt_result gckpti_cross_entropy_with_shape(gckpt_call *call)
{
    float smoothing = *(const float *)call->attributes;
    if (!(smoothing >= 0.0f && smoothing <= 1.0f))
        return gckpt_fail(call, GCKPT_E_ARG, "cross_entropy: smoothing %g must be 0 to 1",
                          (double)smoothing);
    return gckpti_classes_shape(call, "cross_entropy", 0);
}
static gckpt_result gckpti_soft_cross_entropy_shape(gckpt_call *call)
{
    return gckpti_classes_shape(call, "soft_cross_entropy", 1);
}

GCKPTI_OP_KERNELS(cross_entropy_with, GCKPTI_RUN_CLASSES(call, backward))
GCKPTI_OP_KERNELS(soft_cross_entropy, GCKPTI_RUN_CLASSES(call, backward))

GCKPTI_DESC_WITH(cross_entropy_with, gckpti_cross_entropy_with_shape, gckpti_flops_20,
                 NULL, gckpti_cross_entropy_classes,
                 GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS | GCKPT_INDEX(1),
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED, 0,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED);
GCKPTI_DESC(soft_cross_entropy, gckpti_soft_cross_entropy_shape, gckpti_flops_20,
            GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED);

GCKPT_API gckpt_tensor *gckpt_soft_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                 gckpt_tensor *weights)
{
    return gckpti_apply_to(&gckpti_op_soft_cross_entropy, logits, targets, weights, NULL, 0);
}

/* ---- mean_squared_error_with; other losses of elements, as in ops/losses.c ----
 *   huber                 (d/2) d; from |d| = delta on           dx = d, but -delta to delta
 *                         delta (|d| - delta/2)
 *   binary_cross_entropy  1 (fma(-x, y, max(x, 0)) + log(1 + exp(-|x|)))
 *                                                                dx = 1 / (1 + exp(-x)) - y
 * In binary_cross_entropy, dy = -x. With weights, lane = fma(w a, b, lane), and gradients are put(w
 * dx, loss_scale); w = 0 adds +0 and gives a gradient 0, whatever x and y are. dw = put(sum by
 * lanes of a b over the elements of this weight, loss_scale). */
GCKPTI_ELEMENT_LOSS(mean_squared_error_with, GCKPTI_LOSS_SQUARED, gckpti_flops_3,
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));
GCKPTI_ELEMENT_LOSS(huber, GCKPTI_LOSS_HUBER, gckpti_flops_8, GCKPTI_READS_XY(GCKPT_IN(2)),
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));
GCKPTI_ELEMENT_LOSS(binary_cross_entropy, GCKPTI_LOSS_BINARY, gckpti_flops_20,
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));

GCKPT_API gckpt_tensor *gckpt_huber(gckpt_tensor *prediction, gckpt_tensor *target,
                                    gckpt_tensor *weights, float delta)
{
    if (prediction && !(delta > 0.0f && delta <= FLT_MAX))
        return gckpti_fail(prediction->graph, GCKPT_E_ARG,
                           "huber: delta %g must be above 0, and finite", (double)delta);
    return gckpti_apply_to(&gckpti_op_huber, prediction, target, weights, &delta, sizeof delta);
}

GCKPT_API gckpt_tensor *gckpt_binary_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                   gckpt_tensor *weights)
{
    return gckpti_apply_to(&gckpti_op_binary_cross_entropy, logits, targets, weights, NULL, 0);
}
#endif
