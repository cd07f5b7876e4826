#pragma once
#include "ops/ops.h"

/* Declarations shared by the files of layer ops (MANIFEST); some are in folders of features. */

/* Flops for each element of the first input; a transcendental function counts as 20 additions. */
#define GCKPTI_FLOPS(count)                                                                        \
    static inline uint64_t gckpti_flops_##count(const gckpt_call *call)                            \
    {                                                                                              \
        return count * (uint64_t)gckpti_elements(&call->in[0].shape);                              \
    }
GCKPTI_FLOPS(1)
GCKPTI_FLOPS(3)
GCKPTI_FLOPS(8)
GCKPTI_FLOPS(13)
GCKPTI_FLOPS(20)
#undef GCKPTI_FLOPS

/* Types of functions in an op descriptor that are NULL in builds without a planner. */
typedef gckpt_result (*gckpti_shape_rule)(gckpt_call *call);
typedef uint64_t (*gckpti_flops_rule)(const gckpt_call *call);
typedef int (*gckpti_field_rule)(const gckpt_call *call, void *attr, gckpt_receptive_field *field);

#ifndef GCKPTI_NO_GRAPH
#define GCKPTI_IF_PLANNER(type, function) (GCKPTI_RUNS_BUILT ? (function) : (type)0)
/* Define builders of ops: of one input without or with attributes; of two inputs. */
#define GCKPTI_BUILDER_0(name)                                                                     \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x)                                          \
    {                                                                                              \
        return gckpt_apply(&gckpti_op_##name, &x, 1, NULL, 0);                                     \
    }
#define GCKPTI_BUILDER(name, type, parameters, ...)                                                \
    GCKPT_API gckpt_tensor *gckpt_##name parameters                                                \
    {                                                                                              \
        const type o[] = { __VA_ARGS__ };                                                          \
        return gckpt_apply(&gckpti_op_##name, &x, 1, o, sizeof o);                                 \
    }
#define GCKPTI_BINARY_BUILDER(name)                                                                \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *a, gckpt_tensor *b)                         \
    {                                                                                              \
        return gckpti_apply_to(&gckpti_op_##name, a, b, NULL, NULL, 0);                            \
    }
#else
#define GCKPTI_IF_PLANNER(type, function) ((type)0)
#define GCKPTI_BUILDER_0(name)
#define GCKPTI_BUILDER(name, type, parameters, ...)
#define GCKPTI_BINARY_BUILDER(name)
#endif

/* Defines gckpti_op_<name>, the descriptor of a listed op, with kernels gckpti_<name>_forward and
 * _backward; the last arguments are what each input's gradient reads. */
/* clang-format off */
#define GCKPTI_DESC_ALL(name, backward, shape, flops, flops_backward, classes, rows, flags, ...)   \
    GCKPTI_DATA const gckpt_op gckpti_op_##name = {                                                \
        #name, GCKPTI_IF_PLANNER(gckpti_shape_rule, shape), gckpti_##name##_forward, backward,     \
        GCKPTI_IF_PLANNER(gckpti_flops_rule, flops), classes, { __VA_ARGS__ },                     \
        (unsigned)(flags) | GCKPTI_BUILTIN_##name,                                                 \
        GCKPTI_IF_PLANNER(gckpti_flops_rule, flops_backward),                                     \
        GCKPTI_IF_PLANNER(gckpti_field_rule, rows) }
#define GCKPTI_DESC_WITH(name, shape, flops, flops_backward, classes, flags, ...)                  \
    GCKPTI_DESC_ALL(name, GCKPTI_IF_TRAINING(gckpti_##name##_backward), shape, flops,              \
                   flops_backward, classes, NULL, flags, __VA_ARGS__)
#define GCKPTI_DESC_FIELD(name, shape, flops, rows, flags, ...)                                    \
    GCKPTI_DESC_ALL(name, GCKPTI_IF_TRAINING(gckpti_##name##_backward), shape, flops, NULL, NULL,  \
                   rows, flags, __VA_ARGS__)
#define GCKPTI_DESC(name, shape, flops, flags, ...)                                                \
    GCKPTI_DESC_FIELD(name, shape, flops, NULL, flags, __VA_ARGS__)
/* clang-format on */

/* Runs `row` for each row of the result or, in a backward, of x's gradient if it is required. */
static inline void gckpti_run_rows(const gckpt_call *call,
                                   void (*row)(const gckpt_call *call, int64_t r))
{
    if (!call->grad_out || call->in[0].grad)
        gckpti_for_each(call, gckpti_rows(&call->shape), 16 * gckpti_last(&call->shape), row);
}

/* Returns the kernel of a row of an op (GCKPTI_ROW_OP_..), for the forward or the backward. */
#define GCKPTI_ROW_OF(name)                                                                        \
    GCKPTI_KERNEL_OF(call, rows[GCKPTI_ROW_OP_##name][backward],                                   \
                     backward ? gckpti_##name##_row_grad : gckpti_##name##_row)

/* Applies an op to a, b and, if not NULL, c. */
static inline gckpt_tensor *gckpti_apply_to(const gckpt_op *op, gckpt_tensor *a, gckpt_tensor *b,
                                            gckpt_tensor *c, const void *attributes, size_t size)
{
    gckpt_tensor *in[3] = { a, b, c };
    return gckpt_apply(op, in, c ? 3 : 2, attributes, size);
}

/* ---- ops/losses.c ---- */
enum {
    GCKPTI_LOSS_ROWS = GCKPTI_WITH_FAST ? 256 : 1, /* per pass over w; 1 needs less stack */
    GCKPTI_LOSS_MAX_ROWS = GCKPTI_WITH_FAST ? 1024 : GCKPTI_MIXED_ROWS /* mixed: packs w; or no w */
};

/* The state of a loss, which processes one block of rows and one chunk of classes at a time. */
typedef struct {
    const gckpt_call *call;
    const gckpti_element_kernels *element; /* of losses of elements; NULL over classes */
    const gckpti_class_kernels *classes;   /* of losses over classes; NULL of elements */
    int backward;
    int64_t row, rows, first, n, v; /* block of the call: `rows` rows from `row` on, n of v classes
                                     * from class `first` on */
    int64_t counted;                /* rows that count: those with target >= 0 */
    const int32_t *targets;         /* target class of each row of the call, or NULL */
    const float *soft;              /* (..,V): target of each class of all rows, or NULL */
    /* data of a loss of elements; over classes, the weights of rows and delta, the smoothing */
    gckpti_element_loss e;
    int64_t begin;          /* index in x and d of the block's first row */
    gckpti_source x;        /* logits (rows,n), or none */
    gckpti_destination d;   /* gradient of the logits in the backward, or none; may be x */
    float *saved; /* (rows,2): each row's max and log(sum); NULL in a forward that need not save */
    int accumulate;
    float cap; /* softcap of the logits; 0 means none */
    /* Of each row: running maximum; running sum, then its log; target's logit, then the loss. */
    float max[GCKPTI_LOSS_MAX_ROWS], sum[GCKPTI_LOSS_MAX_ROWS], value[GCKPTI_LOSS_MAX_ROWS];
} gckpti_loss;

/* Accessors of a loss; they return constants in a build without soft targets and weights. */
static inline const float *gckpti_loss_soft(const gckpti_loss *loss)
{
    return GCKPTI_WITH_LOSSES ? loss->soft : NULL;
}
static inline int gckpti_loss_reads_all(const gckpti_loss *loss)
{
    return GCKPTI_WITH_LOSSES && (loss->soft || loss->e.delta > 0.0f);
}
static inline int gckpti_has_weights(const gckpt_call *call)
{
    return GCKPTI_WITH_LOSSES && call->inputs == 3;
}

#define GCKPTI_ELEMENT_LOSS(name, kind, flops, ...)                                                \
    GCKPTI_UNUSED static gckpt_result gckpti_##name##_shape(gckpt_call *call)                      \
    {                                                                                              \
        return gckpti_element_loss_shape(call, #name);                                             \
    }                                                                                              \
    GCKPTI_OP_KERNELS(name, gckpti_run_loss(call, backward, kind, GCKPTI_ELEMENTS_OF(call), NULL)) \
    GCKPTI_DESC(name, gckpti_##name##_shape, flops,                                                \
                GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS, __VA_ARGS__)
#define GCKPTI_ELEMENTS_OF(call)                                                                   \
    GCKPTI_KERNEL_OF(call, element_losses, &gckpti_element_loss_kernels)
/* Runs a loss over classes. */
#define GCKPTI_RUN_CLASSES(call, backward)                                                         \
    gckpti_run_loss(call, backward, GCKPTI_LOSS_CLASSES, NULL,                                     \
                    GCKPTI_KERNEL_OF(call, class_losses, &gckpti_class_loss_kernels))
#define GCKPTI_READS_XY(more) GCKPT_IN(0) | GCKPT_IN(1) | (more)
