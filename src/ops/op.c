/* =================================================================================================
 * >>ops: elementwise, broadcasting, shapes
 *
 * An op is one block: formula; shape rule (from in[].shape to shape, pure); forward; backward; the
 * row that names them, with what each input's gradient reads (needs) and which bytes may coincide
 * (flags); the public builder, which only passes inputs and attributes on: gckpt_apply handles NULL
 * and whatever shape() refuses.
 *
 * A gradient element that is a product, g * slope, is stored rounded when it is the first
 * contribution and is one fma when it is added: no product feeds an addition (manual, 5a and 5f).
 * ============================================================================================== */
/* clang-format off */
/* All ops, from which their fast kernels and printed C (gckpt_plan_c) follow: fast(name) has
 * kernels in >>fast, too; plain(name) has not. */
#define GCKPTI_OPS(fast, plain)                                                                    \
    fast(relu) fast(gelu) fast(gelu_erf) fast(silu) fast(tanh) fast(sigmoid) fast(softmax)         \
    fast(log_softmax) fast(exp) fast(log) fast(sqrt) fast(abs) fast(reciprocal) fast(pow)          \
    fast(clamp) plain(detach) plain(scale) plain(dropout) fast(add) fast(sub) fast(mul) fast(div)  \
    fast(maximum) fast(minimum)                                                                    \
    plain(permute) plain(slice) plain(concat) plain(sum) plain(mean) plain(cache)                  \
    fast(embed) fast(matmul) fast(linear) fast(layernorm) fast(rmsnorm) fast(attention)            \
    plain(rotary) fast(cross_entropy) fast(linear_cross_entropy)                                   \
    fast(cross_entropy_with) fast(soft_cross_entropy) fast(mean_squared_error)                     \
    fast(mean_squared_error_with) fast(huber) fast(binary_cross_entropy) fast(sum_loss)            \
    fast(gather) fast(gru) fast(lstm)                                                              \
    fast(max_pool) fast(average_pool) fast(groupnorm) fast(batchnorm) fast(conv2d)

/* Of a row: what only planning calls. */
typedef gckpt_result (*gckpti_shape_rule)(gckpt_call *call);
typedef uint64_t (*gckpti_flops_rule)(const gckpt_call *call);
#if GCKPTI_LEAN
#define GCKPTI_PLANS(type, function) (0 ? (function) : (type)0)
#else
#define GCKPTI_PLANS(type, function) function
#endif
/* The gckpt_op of an op (one that is not listed does not compile): its kernels are
 * gckpti_<name>_forward and _backward, and GCKPTI_FAST or _PLAIN as listed; last what each input's
 * gradient reads. */
#define GCKPTI_ROW_WITH(name, kernels, shape, flops, flops_backward, classes, flags, ...)          \
    static const gckpt_op gckpti_op_##name = {                                                     \
        #name, GCKPTI_PLANS(gckpti_shape_rule, shape), gckpti_##name##_forward,                    \
        gckpti_##name##_backward, GCKPTI_PLANS(gckpti_flops_rule, flops), classes,                 \
        { __VA_ARGS__ }, (unsigned)(flags) | GCKPTI_OWN_##name, kernels(name),                     \
        GCKPTI_PLANS(gckpti_flops_rule, flops_backward) }
#define GCKPTI_ROW(name, kernels, shape, flops, flags, ...)                                        \
    GCKPTI_ROW_WITH(name, kernels, shape, flops, NULL, NULL, flags, __VA_ARGS__)
/* clang-format on */

/* The flag of this header's own rows. */
#define GCKPTI_OWN(name) GCKPTI_OWN_##name = 1 << 20,
enum { GCKPTI_OPS(GCKPTI_OWN, GCKPTI_OWN) GCKPTI_OWN_ROW = 1 << 20 };
#undef GCKPTI_OWN
/* A loss whose backward, when it has attributes, adds to the loss's sum; its forward counts. */
enum { GCKPTI_LATE = 1 << 21 };
/* As GCKPT_TAKES_BF16, but of all inputs, and only the processor's own kernels: those of backends
 * get f32 copies. No bit is left: this and the next two are bits of indices as inputs 4 to 6, of
 * which such ops have none, and a user's may; gckpti_own_flag tells. */
enum { GCKPTI_NARROW = 1 << 30 };
/* Of ops that work element by element where no input is repeated, or row by row: in bf16 plans the
 * processor runs their kernels in portions, of which f32 copies lie on the stack. They use no
 * workspace; fast ones take bf16 where they sum over rows. */
enum { GCKPTI_BY_ELEMENT = 1 << 29, GCKPTI_BY_ROW = 1 << 28 };
static int gckpti_own_flag(const gckpt_op *op, int flag)
{
    return op->flags & GCKPTI_OWN_ROW && op->flags & (unsigned)flag;
}

#define GCKPTI_PLAIN(name) NULL, NULL
#if GCKPTI_HAS_FAST
#define GCKPTI_FAST(name) gckpti_fast_##name##_forward, gckpti_fast_##name##_backward
#define GCKPTI_DECLARE(name)                                                                       \
    static void gckpti_fast_##name##_forward(const gckpt_call *call);                              \
    static void gckpti_fast_##name##_backward(const gckpt_call *call);
#define GCKPTI_NOTHING(name)
GCKPTI_OPS(GCKPTI_DECLARE, GCKPTI_NOTHING)
#undef GCKPTI_NOTHING
#undef GCKPTI_DECLARE
#else
#define GCKPTI_FAST(name) NULL, NULL
#endif

/* What the gradients of a product are worth: each as much as the forward, and no op has more than
 * two that are. */
static uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward)
{
    int wanted = 0;
    for (int i = 0; i < call->inputs; i++)
        wanted += call->in[i].grad != NULL;
    return wanted > 1 ? 2 * forward : forward;
}

/* Flops for each element of the first input; a transcendental is worth about 20 additions. */
#define GCKPTI_FLOPS(count)                                                                        \
    static uint64_t gckpti_flops_##count(const gckpt_call *call)                                   \
    {                                                                                              \
        return count * (uint64_t)gckpti_elements(&call->in[0].shape);                              \
    }
GCKPTI_FLOPS(1)
GCKPTI_FLOPS(3)
GCKPTI_FLOPS(8)
GCKPTI_FLOPS(13)
GCKPTI_FLOPS(20)
#undef GCKPTI_FLOPS

GCKPTI_INLINE void gckpti_put_product(float *d, float a, float b, int accumulate)
{
    *d = accumulate ? gckpti_fma(a, b, *d) : a * b;
}
GCKPTI_INLINE void gckpti_put_quotient(float *d, float a, float b, int accumulate)
{
    gckpti_put(d, a / b, accumulate);
}

