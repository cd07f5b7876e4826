#include "ops/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* What a window's numbers may be. */
static gckpt_result gckpti_conv_window(gckpt_call *call, const char *op)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_window *w = &a->window;
    for (int i = 0; i < 2; i++) {
        if (w->stride[i] < 1 || w->padding[i] < 0 || w->dilation[i] < 1 || w->groups < 1)
            return gckpt_fail(call, GCKPT_E_ARG,
                              "%s: stride %i x %i, padding %i x %i, dilation %i x %i, %i groups: "
                              "none may be negative",
                              op, w->stride[0], w->stride[1], w->padding[0], w->padding[1],
                              w->dilation[0], w->dilation[1], w->groups);
        if (w->size[i])
            return gckpt_fail(call, GCKPT_E_ARG,
                              "%s: a window of size %i x %i: leave it 0, the size is w's", op,
                              w->size[0], w->size[1]);
        int more = w->stride[i] > w->dilation[i] ? w->stride[i] : w->dilation[i];
        if (w->output_padding[i] < 0 || w->output_padding[i] >= (a->transposed ? more : 1))
            return gckpt_fail(call, GCKPT_E_ARG,
                              "%s: output_padding %i x %i: transposed convolutions take 0 to %i",
                              op, w->output_padding[0], w->output_padding[1], more - 1);
    }
    return GCKPT_OK;
}

/* Axis 1 or 2 of the result, or an error. The limit keeps all products within 64 bits. */
static gckpt_result gckpti_conv_axis(gckpt_call *call, const char *op, int i)
{
    const int64_t LIMIT = INT64_MAX / 128;
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_window *w = &a->window;
    const gckpt_shape *x = &call->in[0].shape, *taps = &call->in[1].shape;
    int64_t in = x->d[1 + i], over = taps->d[i] - 1, padded = in + 2 * (int64_t)w->padding[i];
    int64_t stride = w->stride[i], reach = INT64_MAX;
    if (over <= LIMIT / w->dilation[i])
        reach = over * w->dilation[i] + 1;
    call->shape.d[1 + i] = (padded - reach) / stride + 1;
    if (!a->transposed && padded < reach)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: w %S reaches over %I of axis %i of x %S, which has %I with padding "
                          "%i: it needs a smaller w, less dilation or more padding",
                          op, taps, reach, 1 + i, x, padded, w->padding[i]);
    if (!a->transposed)
        return GCKPT_OK;
    if (in > LIMIT / stride || reach > LIMIT)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S, w %S, stride %I: too large a result", op,
                          x, taps, stride);
    call->shape.d[1 + i] = (in - 1) * stride - (padded - in) + reach + w->output_padding[i];
    if (call->shape.d[1 + i] < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: padding %i leaves nothing of axis %i of x %S with w %S: it needs "
                          "less",
                          op, w->padding[i], 1 + i, x, taps);
    return GCKPT_OK;
}

/* Scratch for the fast kernels: what the products by which they go want. */
static void gckpti_conv_work(gckpt_call *call, int transposed)
{
    const gckpti_conv_sizes z = gckpti_conv_sizes_of(call);
    const int64_t taps = z.taps[0] * z.taps[1], places = z.rows * z.places[0] * z.places[1];
    if (gckpti_is_plain(call) || z.group_c * z.group_o == 1)
        return;
    int64_t down = gckpti_windows_room(places, z.group_o, taps * z.group_c);
    int64_t up = gckpti_windows_room(z.rows * z.image[0] * z.image[1], z.group_c, taps * z.group_o);
    int64_t dw = gckpti_windows_room(taps * z.group_c, z.group_o, places);
    size_t unit = (size_t)call->threads * sizeof(float);
    call->work_forward = (size_t)(transposed ? up : down) * unit;
    down = transposed ? down : up;
    call->work_backward = (size_t)(down > dw ? down : dw) * unit;
}

static gckpt_result gckpti_conv2d_shape(gckpt_call *call)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const char *op = a->transposed ? "conv2d_transposed" : "conv2d";
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape, *bias = &call->in[2].shape;
    const int64_t groups = a->window.groups;
    gckpt_result result = gckpti_conv_window(call, op);
    if (result != GCKPT_OK)
        return result;
    if (x->n != 4 || w->n != 4)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          a->transposed ? "%s: x %S must be (B,H,W,I), w %S (KH,KW,O/groups,I)"
                                        : "%s: x %S must be (B,H,W,I), w %S (KH,KW,I/groups,O)",
                          op, x, w);
    if (x->d[3] % groups || w->d[3] % groups)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: %I groups do not divide the %I channels of x %S and %I of w %S", op,
                          groups, x->d[3], x, w->d[3], w);
    if (a->transposed ? x->d[3] != w->d[3] : x->d[3] / groups != w->d[2])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: x %S in %I groups needs a w with %I as axis %i, not %S", op, x,
                          groups, a->transposed ? x->d[3] : x->d[3] / groups, 2 + a->transposed, w);
    call->shape = *x;
    call->shape.d[3] = a->transposed ? w->d[2] * groups : w->d[3];
    if (call->inputs == 3 && (bias->n != 1 || bias->d[0] != call->shape.d[3]))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: w %S needs a bias of shape [%I], not %S", op, w,
                          call->shape.d[3], bias);
    for (int i = 0; i < 2 && result == GCKPT_OK; i++)
        result = gckpti_conv_axis(call, op, i);
    if (result == GCKPT_OK && gckpti_shape_fits(&call->shape))
        gckpti_conv_work(call, a->transposed);
    return result;
}

GCKPTI_ROW(conv2d, GCKPTI_FAST, gckpti_conv2d_shape, gckpti_conv2d_flops, 0, GCKPT_IN(1),
           GCKPT_IN(0), GCKPT_SUMS);

/* The parameter whose axes w has: reshaped, or element by element. NULL: none has, since w was
 * permuted, say. */
static gckpti_param *gckpti_conv_parameter(const gckpt_tensor *w)
{
    const int64_t elements = gckpti_elements(&w->shape);
    const gckpt_tensor *t = w->base, *next;
    for (; t && t->kind == GCKPTI_OP; t = next) {
        next = NULL;
        for (int i = 0; t->batchless && t->op != &gckpti_op_permute && i < t->inputs && !next; i++)
            if (gckpti_elements(&t->in[i]->shape) == elements)
                next = t->in[i]->base;
    }
    return t && t->kind == GCKPTI_PARAM ? &t->graph->store->params[t->index] : NULL;
}

/* axes: 2 of images, 1 of signals, which are images of one line. */
static gckpt_tensor *gckpti_conv_new(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window, int transposed, int axes)
{
    gckpt_tensor *in[3] = { x, w, bias };
    gckpti_param *q = GCKPTI_ASKS_AXES && x && w ? gckpti_conv_parameter(w) : NULL;
    gckpti_conv2d a;
    if (q && q->unsaid)
        return gckpti_fail(w->graph, GCKPT_E_DATA, "param \"%s\": " GCKPTI_AXES_PROBLEM, q->p.name);
    if (q)
        q->convolution = 1;
    memset(&a, 0, sizeof a);
    if (window)
        a.window = *window;
    a.transposed = transposed;
    a.window.groups += !a.window.groups;
    for (int i = 0; i < 2; i++) {
        if (axes == 1 && i == 0)
            a.window.size[0] = a.window.stride[0] = a.window.padding[0] = a.window.dilation[0] =
                a.window.output_padding[0] = 0;
        a.window.stride[i] += !a.window.stride[i];
        a.window.dilation[i] += !a.window.dilation[i];
    }
    if (axes == 2 || !x || !w)
        return gckpt_apply(&gckpti_op_conv2d, in, bias ? 3 : 2, &a, sizeof a);
    if (x->shape.n != 3 || w->shape.n != 3)
        return gckpti_fail(x->graph, GCKPT_E_SHAPE, "conv1d%s: x %S must be (B,T,I), w %S (K,%s)",
                           transposed ? "_transposed" : "", &x->shape, &w->shape,
                           transposed ? "O/groups,I" : "I/groups,O");
    in[0] = gckpt_reshape(x, gckpt_shape4(x->shape.d[0], 1, x->shape.d[1], x->shape.d[2]));
    in[1] = gckpt_reshape(w, gckpt_shape4(1, w->shape.d[0], w->shape.d[1], w->shape.d[2]));
    x = gckpt_apply(&gckpti_op_conv2d, in, bias ? 3 : 2, &a, sizeof a);
    return x ? gckpt_reshape(x, gckpt_shape3(x->shape.d[0], x->shape.d[2], x->shape.d[3])) : NULL;
}

GCKPT_API gckpt_tensor *gckpt_conv2d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window)
{
    return gckpti_conv_new(x, w, bias, window, 0, 2);
}

GCKPT_API gckpt_tensor *gckpt_conv1d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window)
{
    return gckpti_conv_new(x, w, bias, window, 0, 1);
}

GCKPT_API gckpt_tensor *gckpt_conv2d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window)
{
    return gckpti_conv_new(x, w, bias, window, 1, 2);
}

GCKPT_API gckpt_tensor *gckpt_conv1d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window)
{
    return gckpti_conv_new(x, w, bias, window, 1, 1);
}
#endif
