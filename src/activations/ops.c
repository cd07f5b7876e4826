#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_ACTIVATIONS
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent)
{
    if (exponent >= -1.0f && exponent <= -1.0f)
        return gckpt_apply(&gckpti_op_reciprocal, &x, 1, NULL, 0);
    return gckpt_apply(&gckpti_op_pow, &x, 1, &exponent, sizeof exponent);
}
GCKPTI_BUILDER(clamp, float, (gckpt_tensor * x, float o0, float o1), o0, o1)

GCKPT_API gckpt_tensor *gckpt_activation(gckpt_tensor *x, gckpt_activation_kind kind, float p)
{
    static const gckpt_op *const ops[] = { &gckpti_op_softplus, &gckpti_op_leaky_relu,
                                           &gckpti_op_elu,      &gckpti_op_selu,
                                           &gckpti_op_mish,     &gckpti_op_hardswish };
    const int takes = kind == GCKPT_LEAKY_RELU || kind == GCKPT_ELU;
    if (x && ((unsigned)kind > GCKPT_HARDSWISH))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "activation: kind %i is none of GCKPT_SOFTPLUS (0)"
                           " to GCKPT_HARDSWISH (5)",
                           (int)kind);
    if (x && !takes && !(p >= 0.0f && p <= 0.0f))
        return gckpti_fail(x->graph, GCKPT_E_ARG, "%s: has no parameter: p must be 0, not %g",
                           ops[kind]->name, (double)p);
    return x ? gckpt_apply(ops[kind], &x, 1, takes ? &p : NULL, takes ? sizeof p : 0) : NULL;
}

/* from_u8: y = fma(x, o[0], o[1]) of a byte x, without a gradient. */
GCKPTI_CHECKED_SHAPE(from_u8, 2, (o[0] - o[0] == 0.0f && o[1] - o[1] == 0.0f),
                     "scale = %g and shift = %g must be finite")
GCKPTI_FN void gckpti_from_u8_forward(const gckpt_call *call)
{
    const float *o = (const float *)call->attributes;
    const int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = gckpti_fma((float)call->in[0].bytes[i], o[0], o[1]);
}
GCKPTI_DESC_ALL(from_u8, NULL, gckpti_from_u8_shape, NULL, NULL, NULL, NULL, GCKPTI_IS_ELEMENTWISE,
                GCKPT_IS_U8);
GCKPTI_BUILDER(from_u8, float, (gckpt_tensor * x, float o0, float o1), o0, o1)

/* log_softmax: y = (x - max) - log(sum), rows of -inf stay;  dx = g - exp(y) sum(g) = fma(-exp(y),
 * sum, g). As in softmax, y may share x's buffer, and dx g's. */
GCKPTI_OP_KERNELS(log_softmax, gckpti_run_rows(call, GCKPTI_ROW_OF(log_softmax)))
GCKPTI_DESC(log_softmax, gckpti_softmax_shape, gckpti_flops_20,
            GCKPTI_INPLACE_FLAGS | GCKPTI_IS_ROWWISE, GCKPT_OUT);
GCKPTI_BUILDER_0(log_softmax)

/* where: y = a where the condition is not 0 (NaN is not 0), else b. da = g where a is selected and
 * db = g where b is, else +0, stored or added. y may share memory with a or b. */
GCKPTI_OP_KERNELS(where, if (backward) gckpti_clear_grads(call, 0, 1); /* of the condition */
                  gckpti_run_broadcast(call, backward, GCKPTI_KIND_where,
                                       backward ? gckpti_where_gradient : gckpti_where_values,
                                       gckpti_where_gradient))
GCKPTI_DESC(where, gckpti_broadcast_shape, NULL,
            GCKPT_INPLACE(1) | GCKPT_INPLACE(2) | GCKPTI_IS_ELEMENTWISE, GCKPTI_ANY_TYPE,
            GCKPT_IN(0) | GCKPT_SUMS, GCKPT_IN(0) | GCKPT_SUMS);
GCKPT_API gckpt_tensor *gckpt_where(gckpt_tensor *condition, gckpt_tensor *a, gckpt_tensor *b)
{
    const int kind = condition && condition->type == GCKPT_F32 ? condition->base->kind : -1;
    const int depends = kind == GCKPTI_OP || kind == GCKPTI_PARAM; /* it may depend on parameters */
    gckpt_tensor *in[3] = { depends ? gckpt_detach(condition) : condition, a, b };
    return gckpt_apply(&gckpti_op_where, in, 3, NULL, 0);
}
#endif
