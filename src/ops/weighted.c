#include "ops/internal.h"

#ifndef GCKPT_NO_LOSSES
/* ---- cross_entropy_with, soft_cross_entropy: formulas in ops/losses.c ---- */
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

/* ---- mean_squared_error_with, huber, binary_cross_entropy: formulas in ops/losses.c ---- */
GCKPTI_ELEMENT_LOSS(mean_squared_error_with, GCKPTI_LOSS_SQUARED, gckpti_flops_3,
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));
GCKPTI_ELEMENT_LOSS(huber, GCKPTI_LOSS_HUBER, gckpti_flops_8, GCKPTI_READS_XY(GCKPT_IN(2)),
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));
GCKPTI_ELEMENT_LOSS(binary_cross_entropy, GCKPTI_LOSS_BINARY, gckpti_flops_20,
                    GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(GCKPT_IN(2)), GCKPTI_READS_XY(0));

GCKPT_API gckpt_tensor *gckpt_huber(gckpt_tensor *prediction, gckpt_tensor *target,
                                    gckpt_tensor *weights, float delta)
{
    return gckpti_apply_to(&gckpti_op_huber, prediction, target, weights, &delta, sizeof delta);
}

GCKPT_API gckpt_tensor *gckpt_binary_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                   gckpt_tensor *weights)
{
    return gckpti_apply_to(&gckpti_op_binary_cross_entropy, logits, targets, weights, NULL, 0);
}
#endif
