/* elementwise.h - makes an elementwise op of one input from its formula and its derivative
 *
 *     #include "gradckpt.h"
 *     #include "elementwise.h"
 *     static float softsign_of(float x) { return x / (1 + fabsf(x)); }
 *     static float softsign_slope(float x) { return 1 / ((1 + fabsf(x)) * (1 + fabsf(x))); }
 *     ELEMENTWISE(softsign, softsign_of, softsign_slope) // defines gckpt_tensor *softsign(gckpt_tensor *x)
 *
 * The kernels are those of any user-defined op (docs/architecture.md): plans recompute the op, and
 * several threads run it, with the same bits. A plan with such an op cannot be printed as C. */
#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H
#include "gradckpt.h"

typedef struct {
    const gckpt_call *call;
    float (*value)(float x), (*slope)(float x);
    int64_t n; /* elements of the tensor */
} elementwise_loop;

enum { ELEMENTWISE_BLOCK = 4096 }; /* elements of a work item */

/* Computes block `block` of the result or, in a backward, of the input's gradient: g * slope(x). */
static inline void elementwise_block(void *context, int64_t block, int64_t worker)
{
    const elementwise_loop *loop = (const elementwise_loop *)context;
    const gckpt_arg *x = &loop->call->in[0];
    const float *g = loop->call->grad_out;
    float *to = g ? x->grad : loop->call->out;
    const int64_t first = block * ELEMENTWISE_BLOCK, last = first + ELEMENTWISE_BLOCK;
    (void)worker;
    for (int64_t i = first; i < last && i < loop->n; i++)
        if (!g)
            to[i] = loop->value(x->data[i]);
        else if (x->accumulate)
            to[i] = gckpt_fma(g[i], loop->slope(x->data[i]), to[i]);
        else
            to[i] = g[i] * loop->slope(x->data[i]);
}

static inline void elementwise_run(const gckpt_call *call, float (*value)(float x),
                                   float (*slope)(float x))
{
    elementwise_loop loop = { call, value, slope, 1 };
    for (int i = 0; i < call->shape.n; i++)
        loop.n *= call->shape.d[i];
    gckpt_parallel(call, (loop.n - 1) / ELEMENTWISE_BLOCK + 1, 16 * ELEMENTWISE_BLOCK,
                   elementwise_block, &loop);
}

static inline gckpt_result elementwise_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

/* Defines the builder `name` of an op from two functions of a float: value(x) is the formula,
 * slope(x) its derivative. Several threads may call them at once. */
#define ELEMENTWISE(name, value, slope)                                                            \
    static void name##_kernel(const gckpt_call *call) { elementwise_run(call, value, slope); }     \
    static gckpt_tensor *name(gckpt_tensor *x)                                                     \
    {                                                                                              \
        static const gckpt_op op = { #name,                                                        \
                                     elementwise_shape,                                            \
                                     name##_kernel,                                                \
                                     name##_kernel,                                                \
                                     NULL,                                                         \
                                     NULL,                                                         \
                                     { GCKPT_IN(0) },                                              \
                                     GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD,                        \
                                     NULL,                                                         \
                                     NULL };                                                       \
        return gckpt_apply(&op, &x, 1, NULL, 0);                                                   \
    }
#endif
