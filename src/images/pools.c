#include "images/kernels.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* =================================================================================================
 * images: pools, upsample, norms of images, convolutions
 *
 * Channels are the last axis. A convolution is the product of a virtual matrix, whose rows are the
 * pixels of one window, with w (kernel rows, kernel columns, channels); its chains have that order.
 * ============================================================================================== */

/* ---- max_pool, average_pool: x (B,H,W,C), or (B,W,C) as H = 1 -> (B,P,Q,C) ----
 * Only taps (elements of a window) within x are read, row by row. max_pool: y is the first tap that
 * no other exceeds, or the first NaN; `saved` (B,P,Q,C) is its 16-bit index in the window. average:
 * y is a chain of additions over taps from +0, / size: the taps within padded x or, if padding is
 * excluded, within x. Gradients: from +0 or its old value, dx adds g at the saved tap or g / size
 * at each tap, window by window. */

/* Returns the elements from a window's first tap to its last. */
static int64_t gckpti_pool_extent(const gckpti_pool *o, int axis)
{
    return (o->size[axis] - 1) * (int64_t)o->dilation[axis] + 1;
}

static gckpti_pool_state gckpti_pool_state_of(const gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape;
    gckpti_pool_state s;
    memset(&s, 0, sizeof s);
    memcpy(&s.o, call->attributes, sizeof s.o);
    s.images = x->d[0];
    s.in[0] = x->n > 3 ? x->d[1] : 1;
    s.in[1] = x->d[x->n - 2];
    s.channels = gckpti_last(x);
    for (int i = 0; i < 2; i++) {
        const int64_t stride = s.o.stride[i], end = s.in[i] + s.o.padding[i];
        const int64_t last = end + s.o.padding[i] - gckpti_pool_extent(&s.o, i);
        s.out[i] = (s.o.ceil ? last + stride - 1 : last) / stride + 1;
        s.out[i] -= (s.out[i] - 1) * stride >= end; /* begins after x */
    }
    return s;
}

/* Checks that each window has a tap within x: it exceeds its padding, fits into padded x, and does
 * not step over x. indices: nonzero if `saved` has the 16-bit index of a tap for each result. */
static gckpt_result gckpti_pool_shape(gckpt_call *call, const char *name, int indices)
{
    const gckpti_pool *o = (const gckpti_pool *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    if (x->n != 3 && x->n != 4)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S must be (B,H,W,C) or (B,T,C)", name, x);
    for (int i = 0; i < 2; i++)
        if (o->size[i] < 1 || o->stride[i] < 1 || o->dilation[i] < 1 || o->padding[i] < 0 ||
            o->padding[i] >= gckpti_pool_extent(o, i))
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "%s: window.size %i, stride %i, padding %i, dilation %i: size, "
                              "stride and dilation must be 1 or more, padding 0 to dilation (size "
                              "- 1)",
                              name, o->size[i], o->stride[i], o->padding[i], o->dilation[i]);
    gckpti_pool_state s = gckpti_pool_state_of(call);
    for (int i = 0; i < 2; i++)
        if (s.in[i] + 2 * (int64_t)o->padding[i] < gckpti_pool_extent(o, i) ||
            (o->padding[i] && s.in[i] < o->dilation[i]))
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "%s: x %S has %I positions, the window needs %I (padding %i); with "
                              "padding, the dilation must not be above that (it is %i)",
                              name, x, s.in[i], gckpti_pool_extent(o, i), o->padding[i],
                              o->dilation[i]);
    call->shape = *x;
    call->shape.d[x->n - 2] = s.out[1];
    if (x->n == 4)
        call->shape.d[1] = s.out[0];
    if (indices && o->exclude_padding)
        return gckpt_fail(call, GCKPT_E_ARG,
                          "%s: exclude_padding is average_pool's; a maximum never counts padding",
                          name);
    if (indices && (int64_t)o->size[0] * o->size[1] > 65536)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: a window of %i x %i has more than 65536 elements", name, o->size[0],
                          o->size[1]);
    if (indices && gckpti_shape_fits(&call->shape))
        call->saved_bytes = (size_t)gckpti_elements(&call->shape) * sizeof(uint16_t);
    return GCKPT_OK;
}

/* Runs a work item: a row of windows of an image (forward), or an image (backward). */
static void gckpti_pool_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_pool_state *s = (const gckpti_pool_state *)context;
    const gckpt_arg *x = &s->call->in[0];
    const int64_t size = s->in[0] * s->in[1] * s->channels;
    const int64_t rows = s->backward ? s->out[0] : 1;
    (void)worker;
    if (s->backward)
        gckpti_zero_unless(x->grad + item * size, size, x->accumulate || s->stores);
    for (int64_t row = item * rows; row < (item + 1) * rows; row++)
        GCKPTI_KERNEL_OF(s->call, images->pool_row, gckpti_pool_row)(s, row);
}

static void gckpti_run_pool(const gckpt_call *call, int backward, int max)
{
    gckpti_pool_state s = gckpti_pool_state_of(call);
    int64_t row = s.out[1] * s.channels * s.o.size[0] * s.o.size[1];
    s.call = call, s.max = max, s.backward = backward;
    /* the gradients of a max pool of few channels, or of plain kernels, write one tap each */
    s.stores = backward && !call->in[0].accumulate && !(max && (s.channels < 8 || !call->kernels));
    for (int i = 0; i < 2; i++) /* disjoint windows that cover x */
        s.stores = s.stores && s.o.size[i] == s.o.stride[i] && !s.o.padding[i] &&
                   s.o.dilation[i] == 1 && s.out[i] * s.o.size[i] == s.in[i];
    if (!backward || call->in[0].grad)
        gckpt_parallel(call, backward ? s.images : s.images * s.out[0],
                       backward ? row * s.out[0] : row, gckpti_pool_item, &s);
}

static uint64_t gckpti_pool_flops(const gckpt_call *call)
{
    const gckpti_pool *o = (const gckpti_pool *)call->attributes;
    return (uint64_t)o->size[0] * (uint64_t)o->size[1] * (uint64_t)gckpti_elements(&call->shape);
}

/* Sets the field of a pool; taps outside x are `fill`. Removes the padding from the attributes. A
 * mean whose divisor depends on the padding has no field. */
static int gckpti_pool_field(const gckpt_call *call, void *attr, float fill,
                             gckpt_receptive_field *field)
{
    gckpti_pool *o = (gckpti_pool *)attr;
    const int i = call->in[0].shape.n == 3;
    const int64_t extent = gckpti_pool_extent(o, i);
    const gckpt_receptive_field window = { 1, o->stride[i], o->padding[i], (int32_t)extent, fill };
    *field = window;
    o->padding[i] = 0;
    return extent <= INT32_MAX && (fill < 0.0f || (!o->ceil && !o->exclude_padding));
}
static gckpt_tensor *gckpti_pool_new(const gckpt_op *op, gckpt_tensor *x,
                                     const gckpt_window *window)
{
    gckpti_pool o = { { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, 0, 0 };
    gckpt_window w;
    memset(&w, 0, sizeof w);
    if (window)
        w = *window;
    if (x && ((unsigned)w.groups > 1 || w.output_padding[0] || w.output_padding[1]))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "%s: groups and output_padding of a window are a convolution's: leave "
                           "them 0",
                           op->name);
    o.ceil = w.ceil != 0, o.exclude_padding = w.exclude_padding != 0;
    for (int i = x && x->shape.n == 3; i < 2; i++) {
        o.size[i] = w.size[i];
        o.stride[i] = w.stride[i] ? w.stride[i] : w.size[i];
        o.padding[i] = w.padding[i];
        o.dilation[i] = w.dilation[i] ? w.dilation[i] : 1;
    }
    return gckpt_apply(op, &x, 1, &o, sizeof o);
}

/* Defines a pool; reads: what its gradient reads. */
#define GCKPTI_POOL(name, fill, reads)                                                             \
    static gckpt_result gckpti_##name##_shape(gckpt_call *call)                                    \
    {                                                                                              \
        return gckpti_pool_shape(call, #name, (reads) != 0);                                       \
    }                                                                                              \
    static int gckpti_##name##_field(const gckpt_call *call, void *attr, gckpt_receptive_field *f) \
    {                                                                                              \
        return gckpti_pool_field(call, attr, fill, f);                                             \
    }                                                                                              \
    GCKPTI_OP_KERNELS(name, gckpti_run_pool(call, backward, (reads) != 0))                         \
    GCKPTI_DESC_FIELD(name, gckpti_##name##_shape, gckpti_pool_flops,                              \
                      gckpti_##name##_field, 0, reads);                                            \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x, const gckpt_window *window)              \
    {                                                                                              \
        return gckpti_pool_new(&gckpti_op_##name, x, window);                                      \
    }
GCKPTI_POOL(max_pool, -GCKPTI_INFINITY, GCKPT_SAVED)
GCKPTI_POOL(average_pool, 0.0f, 0)
#undef GCKPTI_POOL
#endif
