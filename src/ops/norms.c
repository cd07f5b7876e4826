#include "ops/internal.h"
#include "graph/graph.h"

/* ---- layernorm, rmsnorm over the last axis of size n; rmsnorm is layernorm with mean 0 ----
 * The mean is taken in two steps: c = x_0 + mean(x - x_0), which is exact if all elements are
 * equal, then d = (x - c) - mean(x - c), which has all digits even if the row or x_0 is large.
 * rmsnorm: d = x. rstd = rsqrt(mean(d^2) + epsilon), h = d rstd, y = h gain + bias.
 * Means are sums by lanes, then / n. y is fma(h, gain, bias), h gain, fma(d, rstd, bias), or h.
 * saved (rows): c, mean(x - c) (layernorm only) and rstd.
 * Backward, u = g gain rounded (or g), a = mean(u) (rmsnorm: 0), b = mean(u h): dx is rstd (u - a -
 * h b), = put(rstd, fma(-h, b, u - a)); lanes of a: lane + u, of b: fma(u, h, lane).
 * dgain sums g h (rounded) and dbias sums g, row by row, compensated. */

/* Shape rule: gain and bias have the size of the last axis. */
static gckpt_result gckpti_norm_shape(gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    const char *name = o->center ? "layernorm" : "rmsnorm";
    if (x->n < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x has no axis", name);
    for (int i = 1; i < call->inputs; i++)
        if (call->in[i].shape.n != 1 || call->in[i].shape.d[0] != gckpti_last(x))
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S needs a %s of [%I], not %S", name, x,
                              i == o->gain ? "gain" : "bias", gckpti_last(x), &call->in[i].shape);
    call->shape = *x;
    call->saved_bytes = (size_t)gckpti_rows(x) * (o->center ? 3 : 1) * sizeof(float);
    call->mixes_rows = x->n < 2;
    return GCKPT_OK;
}

static void gckpti_run_norm(const gckpt_call *call, int backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    if (!backward || call->in[0].grad)
        gckpti_run_rows(call, GCKPTI_ROW_OF(norm));
    if (backward)
        gckpti_run_column_sums(call, o->gain, o->bias);
}
GCKPTI_OP_KERNELS(layernorm, gckpti_run_norm(call, backward))
GCKPTI_OP_KERNELS(rmsnorm, gckpti_run_norm(call, backward))

/* Without gain, the bias is input 1, which the backward does not read, though declared here. */
GCKPTI_DESC(layernorm, gckpti_norm_shape, gckpti_flops_8, GCKPTI_IS_ROWWISE,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED, GCKPT_IN(0) | GCKPT_SAVED | GCKPT_SUMS,
            GCKPT_SUMS);
GCKPTI_DESC(rmsnorm, gckpti_norm_shape, gckpti_flops_8, GCKPTI_IS_ROWWISE,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED, GCKPT_IN(0) | GCKPT_SAVED | GCKPT_SUMS);

GCKPTI_FN gckpt_tensor *gckpti_norm_new(const gckpt_op *op, gckpt_tensor **in, int n, int center,
                                        float epsilon)
{
    const int is_default = epsilon <= 0.0f || (epsilon >= 1e-5f && epsilon <= 1e-5f);
    gckpt_tensor *const gain = in[n], *const bias = in[n + 1];
    gckpti_norm o = { center, gain ? n++ : 0, 0, is_default ? 0.0f : epsilon };
    if (bias)
        in[n] = bias, o.bias = n++;
    if (in[0] && !(epsilon >= 0.0f && epsilon <= FLT_MAX))
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                           "%s: epsilon %g must be positive, or 0 for 1e-5", op->name,
                           (double)epsilon);
    return gckpt_apply(op, in, n, &o, is_default ? offsetof(gckpti_norm, epsilon) : sizeof o);
}

GCKPT_API gckpt_tensor *gckpt_layernorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        float epsilon)
{
    gckpt_tensor *in[3] = { x, gain, bias };
    return gckpti_norm_new(&gckpti_op_layernorm, in, 1, 1, epsilon);
}

GCKPT_API gckpt_tensor *gckpt_rmsnorm(gckpt_tensor *x, gckpt_tensor *gain, float epsilon)
{
    gckpt_tensor *in[3] = { x, gain, NULL };
    return gckpti_norm_new(&gckpti_op_rmsnorm, in, 1, 0, epsilon);
}
