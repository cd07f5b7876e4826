#include "images/kernels.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* ---- upsample: x (B,H,W,C) -> (B,P,Q,C), larger or smaller, as in PyTorch, in binary32 ----
 * Row i of P reads x at row p (columns likewise). nearest: p = floor(i (H/P)); bilinear: p =
 * max((H/P) (i + 0.5) - 0.5, 0); aligned: p = i ((H-1)/(P-1)). With f = p - floor(p), row floor(p)
 * has weight 1 - f and, if f > 0, the next one (or the last) weight f. y: x at p (nearest), or
 * chains of fma from +0 over these rows and, in a row, columns: x times both weights. dx: results
 * in order, each with its taps in that order: fma(weight, g, dx). */
/* A work item is a row of results (forward), or an image (backward). */
static void gckpti_upsample_item(const gckpt_call *call, int64_t item)
{
    const gckpt_arg *x = &call->in[0];
    const int64_t rows = call->grad_out ? call->shape.d[1] : 1;
    const int64_t image = x->shape.d[1] * x->shape.d[2] * x->shape.d[3];
    if (call->grad_out)
        gckpti_zero_unless(x->grad + item * image, image, x->accumulate);
    for (int64_t row = item * rows; row < (item + 1) * rows; row++)
        GCKPTI_KERNEL_OF(call, images->upsample_row, gckpti_upsample_row)(call, row);
}

static void gckpti_run_upsample(const gckpt_call *call)
{
    const int64_t items = call->shape.d[0] * (call->grad_out ? 1 : call->shape.d[1]);
    if (!call->grad_out || call->in[0].grad)
        gckpti_for_each(call, items, 4 * gckpti_elements(&call->shape) / items,
                        gckpti_upsample_item);
}

GCKPTI_OP_KERNELS(upsample, (void)backward; gckpti_run_upsample(call))

static gckpt_result gckpti_upsample_shape(gckpt_call *call)
{
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    call->shape = call->in[0].shape;
    if (call->shape.n != 4)
        return gckpt_fail(call, GCKPT_E_SHAPE, "upsample: x %S must be (B,H,W,C)", &call->shape);
    call->shape.d[1] = o->size[0], call->shape.d[2] = o->size[1];
    return GCKPT_OK;
}
GCKPTI_DESC(upsample, gckpti_upsample_shape, NULL, 0, 0);

GCKPT_API gckpt_tensor *gckpt_upsample(gckpt_tensor *x, int64_t height, int64_t width,
                                       gckpt_upsampling how)
{
    const gckpti_upsample o = { { (int)height, (int)width }, (int)how };
    if (x && (height < 1 || height != o.size[0] || width < 1 || width != o.size[1] ||
              (unsigned)how > GCKPT_BILINEAR_ALIGNED))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "upsample: %I x %I, how %i: sizes are 1 to 2^31 - 1, how is "
                           "GCKPT_NEAREST, GCKPT_BILINEAR or GCKPT_BILINEAR_ALIGNED",
                           height, width, (int)how);
    return gckpt_apply(&gckpti_op_upsample, &x, 1, &o, sizeof o);
}
#endif
