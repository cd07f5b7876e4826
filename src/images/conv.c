#include "images/kernels.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* ---- conv2d: out (B,P,Q,O) of x (B,H,W,I) and w (KH,KW,I/groups,O), and its transpose ----
 * One side of both is the image, with c channels; the other has o channels per window.
 * down (forward; dx of the transpose): from +0, the bias or the old value, a chain over taps
 *   (rows, columns of w ascending) and the group's c channels: image[tap] w; 0 outside the image.
 * up (dx; forward of the transpose): a chain over the taps at which windows cover this pixel, and
 *   the group's o channels: window w. A window after the last takes part as 0; positions between
 *   two windows (strides) take no part.
 * dw: a chain over rows and their windows ascending: image[tap] window; 0 outside the image. */

/* Returns whether groups run in vectors of channels (images/grouped.c), for which the w of 32
 * channels must fit on the stack. */
GCKPTI_FN int gckpti_conv_is_grouped(const gckpti_conv_sizes *z)
{
    const int64_t g = z->group_c;
    return g == z->group_o && (g == 1 || (g <= 16 && !(g & (g - 1)) &&
                                          z->taps[0] * z->taps[1] * g * 32 <= GCKPTI_STACK_FLOATS &&
                                          z->window.groups > 1));
}

GCKPTI_FN int64_t gckpti_conv_workspace(int64_t m, int64_t n, int64_t k)
{
    const int64_t floats = gckpti_product_workspace(m, n, k);
    const int64_t terms = gckpti_min(gckpti_ceil_to(k, 16), GCKPTI_KC);
    return floats ? floats + (GCKPTI_GATHER_ROWS - GCKPTI_STRIP) * terms + GCKPTI_PANEL * 16 : 0;
}

static gckpti_conv_sizes gckpti_conv_sizes_of(const gckpt_call *call)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const int64_t *x = call->in[0].shape.d, *w = call->in[1].shape.d, *y = call->shape.d;
    gckpti_conv_sizes z;
    z.window = a->window;
    z.rows = x[0];
    for (int i = 0; i < 2; i++) {
        z.image[i] = a->transposed ? y[1 + i] : x[1 + i];
        z.windows[i] = a->transposed ? x[1 + i] : y[1 + i];
        z.taps[i] = w[i];
    }
    z.group_c = w[2], z.o = w[3];
    z.c = z.group_c * a->window.groups, z.group_o = z.o / a->window.groups;
    if (z.window.groups == 1 && z.window.stride[1] == z.taps[1] && z.window.dilation[1] == 1 &&
        !z.window.padding[1] && z.image[1] == z.windows[1] * z.taps[1] &&
        !(a->transposed && call->inputs == 3)) { /* its bias has z.c elements, for each pixel */
        z.c = z.group_c *= z.taps[1]; /* a line of disjoint windows: each is a pixel of 1 tap */
        z.image[1] = z.windows[1], z.taps[1] = z.window.stride[1] = 1;
    }
    return z;
}

static gckpt_result gckpti_conv_window(gckpt_call *call, const char *op)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_window *w = &a->window;
    if (w->size[0] || w->size[1] || w->ceil || w->exclude_padding)
        return gckpt_fail(call, GCKPT_E_ARG,
                          "%s: size, ceil and exclude_padding of a window are a pool's: leave them "
                          "0 (w has the size)",
                          op);
    for (int i = 0; i < 2; i++) {
        if (w->stride[i] < 1 || w->padding[i] < 0 || w->dilation[i] < 1 || w->groups < 1)
            return gckpt_fail(call, GCKPT_E_ARG,
                              "%s: stride %i x %i, padding %i x %i, dilation %i x %i, %i groups: "
                              "none may be negative (0 means the default)",
                              op, w->stride[0], w->stride[1], w->padding[0], w->padding[1],
                              w->dilation[0], w->dilation[1], w->groups);
        int limit = w->stride[i] > w->dilation[i] ? w->stride[i] : w->dilation[i];
        if (w->output_padding[i] < 0 || w->output_padding[i] >= (a->transposed ? limit : 1))
            return gckpt_fail(call, GCKPT_E_ARG,
                              "%s: output_padding %i x %i must be 0, or (transposed) 0 to %i", op,
                              w->output_padding[0], w->output_padding[1], limit - 1);
    }
    return GCKPT_OK;
}

/* Sets axis 1 + i of the result's shape or fails. LIMIT keeps all products within 64 bits. */
static gckpt_result gckpti_conv_axis(gckpt_call *call, const char *op, int i)
{
    const int64_t LIMIT = INT64_MAX / 128;
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_window *w = &a->window;
    const gckpt_shape *x = &call->in[0].shape, *taps = &call->in[1].shape;
    int64_t in = x->d[1 + i], gaps = taps->d[i] - 1, padded = in + 2 * (int64_t)w->padding[i];
    int64_t stride = w->stride[i], extent = INT64_MAX;
    if (gaps <= LIMIT / w->dilation[i])
        extent = gaps * w->dilation[i] + 1;
    call->shape.d[1 + i] = (padded - extent) / stride + 1;
    if (!a->transposed && padded < extent)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: w %S reaches over %I of axis %i of x %S, which has %I with padding "
                          "%i: it needs a smaller w, less dilation or more padding",
                          op, taps, extent, 1 + i, x, padded, w->padding[i]);
    if (!a->transposed)
        return GCKPT_OK;
    if (in > LIMIT / stride || extent > LIMIT)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S, w %S, stride %I: too large a result", op,
                          x, taps, stride);
    call->shape.d[1 + i] = (in - 1) * stride - (padded - in) + extent + w->output_padding[i];
    if (call->shape.d[1 + i] < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: padding %i removes all of axis %i of x %S with w %S: use less "
                          "padding",
                          op, w->padding[i], 1 + i, x, taps);
    return GCKPT_OK;
}

/* Sets the workspace of the fast kernels' products. */
static void gckpti_conv_set_workspace(gckpt_call *call, int transposed)
{
    const gckpti_conv_sizes z = gckpti_conv_sizes_of(call);
    const int64_t taps = z.taps[0] * z.taps[1], windows = z.rows * z.windows[0] * z.windows[1];
    if (gckpti_is_plain(call) || gckpti_conv_is_grouped(&z))
        return;
    int64_t down = gckpti_conv_workspace(windows, z.group_o, taps * z.group_c);
    int64_t up =
        gckpti_conv_workspace(z.rows * z.image[0] * z.image[1], z.group_c, taps * z.group_o);
    int64_t dw = gckpti_conv_workspace(taps * z.group_c, z.group_o, windows);
    size_t bytes = (size_t)call->threads * sizeof(float);
    call->workspace_forward = (size_t)(transposed ? up : down) * bytes;
    down = transposed ? down : up;
    call->workspace_backward = (size_t)(down > dw ? down : dw) * bytes;
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
    if (x->n != 4 || w->n != 4 || x->d[3] % groups || w->d[3] % groups ||
        w->d[2 + a->transposed] != (a->transposed ? x->d[3] : x->d[3] / groups))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          a->transposed ? "%s: x %S must be (B,H,W,I), w %S (KH,KW,O/groups,I), "
                                          "with %I groups, which divide I and O"
                                        : "%s: x %S must be (B,H,W,I), w %S (KH,KW,I/groups,O), "
                                          "with %I groups, which divide I and O",
                          op, x, w, groups);
    call->shape = *x;
    call->shape.d[3] = a->transposed ? w->d[2] * groups : w->d[3];
    if (call->inputs == 3 && (bias->n != 1 || bias->d[0] != call->shape.d[3]))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: w %S needs a bias of shape [%I], not %S", op, w,
                          call->shape.d[3], bias);
    for (int i = 0; i < 2 && result == GCKPT_OK; i++)
        result = gckpti_conv_axis(call, op, i);
    if (result == GCKPT_OK && gckpti_shape_fits(&call->shape))
        gckpti_conv_set_workspace(call, a->transposed);
    return result;
}

/* Returns the map of an axis for DOWN: results are windows, elements are pixels. */
static gckpti_axis_map gckpti_axis_map_down(const gckpti_conv_sizes *z, int axis)
{
    const int64_t stride = z->window.stride[axis], dilation = z->window.dilation[axis];
    const int64_t first = -z->window.padding[axis];
    gckpti_axis_map r = {
        z->image[axis], z->windows[axis], z->taps[axis], stride, dilation, first, 0, 1, 0, 1
    };
    return r;
}

/* Returns the map of an axis for UP: results are the pixels phase, phase + stride, .. */
static gckpti_axis_map gckpti_axis_map_up(const gckpti_conv_sizes *z, int axis, int64_t phase)
{
    const int64_t stride = z->window.stride[axis], dilation = z->window.dilation[axis];
    const int64_t from = phase + z->window.padding[axis];
    int64_t common = stride, each, k = 0;
    for (int64_t rest = dilation, next; rest; common = rest, rest = next)
        next = common % rest;
    each = stride / common;
    while (k < gckpti_min(each, z->taps[axis]) && (from - k * dilation) % stride)
        k++;
    const int64_t results = (z->image[axis] - phase + stride - 1) / stride;
    const int64_t taps = k < each ? (z->taps[axis] - k + each - 1) / each : 0;
    const int64_t first = (from - k * dilation) / stride;
    gckpti_axis_map r = { z->windows[axis], results, taps, 1, -(dilation / common), first, phase,
                          stride,           k,       each };
    return r;
}

GCKPTI_FN int64_t gckpti_conv_tap(const gckpti_conv_sizes *z, const gckpti_axis_map *r, int64_t ky,
                                  int64_t kx)
{
    return (r[0].tap_first + ky * r[0].tap_step) * z->taps[1] + r[1].tap_first + kx * r[1].tap_step;
}

/* Adds the terms of tap `tap` of w, in all groups, to d: the chains of one result, or (DW) of dw.
 * x: channels of the image or (UP) of a window, `step` apart (if 0, each is *x, a 0). */
GCKPTI_OWN_FRAME static void gckpti_conv_add_tap(const gckpti_conv *s, const float *x, int64_t step,
                                                 int64_t tap, const float *w, float *d)
{
    const int64_t gc = s->z->group_c, go = s->z->group_o, o = s->z->o, at = tap * gc * o;
    const int up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    w += dw ? 0 : at, d += dw ? at : 0;
    for (int64_t c = 0; c < o && gc * go == 1; c++)
        d[c] = gckpti_fma(x[c * step], w[c], d[c]);
    if (gc * go == 1)
        return;
    for (int64_t g = s->z->window.groups; g > 0; g--) {
        if (up)
            gckpti_chains(x, step, w, o, gc, go, d);
        else if (!dw)
            gckpti_axpy_rows(x, step, w, o, go, gc, d);
        for (int64_t c = 0; dw && c < gc; c++)
            gckpti_axpy(x[c * step], w, go, d + c * o);
        x += (up ? go : gc) * step, w += go, d += up ? gc : go;
    }
}

/* Computes the results of all rows, in chains from `start`, the old value, or +0; or dw. */
static void gckpti_conv_plain(const gckpt_call *call, gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const int up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t each = up ? z->o : z->c;
    const float zero = 0.0f;
    if (dw)
        gckpti_zero_unless(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
    for (int64_t at = 0; at < z->rows * r[0].results * r[1].results; at++) {
        const int64_t j = at % r[1].results, i = at / r[1].results % r[0].results;
        const int64_t row = at / r[1].results / r[0].results;
        const float *from = s->from + row * r[0].size * r[1].size * each;
        const float *w = s->w + dw * at * z->o;
        float *d = s->out;
        if (!dw) {
            const int64_t all = up ? z->c : z->o;
            d += gckpti_conv_place(s, at) * all;
            if (s->start)
                memcpy(d, s->start, (size_t)all * sizeof *d);
            else
                gckpti_zero_unless(d, all, s->accumulate);
        }
        for (int64_t ky = 0; ky < r[0].taps; ky++) {
            const int64_t y = i * r[0].stride + ky * r[0].dilation + r[0].first, wide = r[1].size;
            const int within = y >= 0 && y < r[0].size;
            int64_t x = j * r[1].stride + r[1].first, tap = gckpti_conv_tap(z, r, ky, 0);
            for (int64_t kx = r[1].taps; kx-- > 0; x += r[1].dilation, tap += r[1].tap_step) {
                const int inside = within && x >= 0 && x < wide;
                const float *source = inside ? from + (y * wide + x) * each : NULL;
                gckpti_conv_add_tap(s, source ? source : &zero, inside, tap, w, d);
            }
        }
    }
}

GCKPTI_FN void gckpti_run_conv(const gckpt_call *call, int backward, gckpti_conv_fn run)
{
    const gckpti_conv_sizes z = gckpti_conv_sizes_of(call);
    const int transposed = ((const gckpti_conv2d *)call->attributes)->transposed;
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    for (int dw = 0; dw <= backward; dw++) {
        const int up = !dw && transposed != backward;
        int64_t phases[2] = { 1, 1 };
        gckpti_conv s;
        memset(&s, 0, sizeof s);
        s.z = &z;
        s.kind = dw ? GCKPTI_CONV_DW : up ? GCKPTI_CONV_UP : GCKPTI_CONV_DOWN;
        s.from = (dw ? transposed : backward) ? call->grad_out : x->data;
        s.w = !dw ? w->data : transposed ? x->data : call->grad_out;
        s.start = !backward && call->inputs == 3 ? call->in[2].data : NULL;
        s.out = dw ? w->grad : backward ? x->grad : call->out;
        s.accumulate = dw ? w->accumulate : backward && x->accumulate;
        for (int i = 0; up && i < 2; i++)
            phases[i] = gckpti_min(z.window.stride[i], z.image[i]);
        for (int64_t phase = 0; s.out && phase < phases[0] * phases[1]; phase++) {
            for (int i = 0; i < 2; i++)
                s.r[i] = up ? gckpti_axis_map_up(&z, i, i ? phase % phases[1] : phase / phases[1])
                            : gckpti_axis_map_down(&z, i);
            run(call, &s);
        }
    }
}

GCKPTI_OP_KERNELS(conv2d, gckpti_run_conv(call, backward,
                                          GCKPTI_KERNEL_OF(call, images->conv, gckpti_conv_plain));
                  if (backward) gckpti_run_column_sums(call, 0, call->inputs == 3 ? 2 : 0))

static uint64_t gckpti_conv2d_flops(const gckpt_call *call)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_shape *windows = a->transposed ? &call->in[0].shape : &call->shape;
    const int64_t *w = call->in[1].shape.d;
    return 2 * (uint64_t)gckpti_elements(windows) * (uint64_t)(w[0] * w[1] * w[2]);
}

/* Padding takes part as zeros: a row tile with rows of zeros there gives the same bits. */
static int gckpti_conv2d_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    gckpti_conv2d *a = (gckpti_conv2d *)attr;
    const int64_t gaps = (call->in[1].shape.d[0] - 1) * a->window.dilation[0];
    const gckpt_receptive_field window = { 1, a->window.stride[0], a->window.padding[0],
                                           (int32_t)gaps + 1, 0.0f };
    *field = window;
    a->window.padding[0] = 0;
    return !a->transposed && gaps < INT32_MAX;
}

GCKPTI_DESC_FIELD(conv2d, gckpti_conv2d_shape, gckpti_conv2d_flops, gckpti_conv2d_field, 0,
                  GCKPT_IN(1), GCKPT_IN(0), GCKPT_SUMS);

/* Adds a convolution to the graph. axes: 2 for images, 1 for signals (images of one line). */
static gckpt_tensor *gckpti_conv_new(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window, int transposed, int axes)
{
    gckpt_tensor *in[3] = { x, w, bias };
    gckpti_conv2d a;
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
    const gckpt_window *o = window ? window : &a.window;
    if ((o->padding[0] | o->output_padding[0] | (o->stride[0] & ~1) | (o->dilation[0] & ~1)) &&
        !(o->padding[1] | o->output_padding[1] | o->stride[1] | o->dilation[1]))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "conv1d%s: a signal's window is set at index [1]: .padding = { 0, 1 }",
                           transposed ? "_transposed" : "");
    in[0] = gckpt_reshape(x, gckpt_shape4(x->shape.d[0], 1, x->shape.d[1], x->shape.d[2]));
    in[1] = gckpt_reshape(w, gckpt_shape4(1, w->shape.d[0], w->shape.d[1], w->shape.d[2]));
    x = gckpt_apply(&gckpti_op_conv2d, in, bias ? 3 : 2, &a, sizeof a);
    return x ? gckpt_reshape(x, gckpt_shape3(x->shape.d[0], x->shape.d[2], x->shape.d[3])) : NULL;
}

#define GCKPTI_CONV(name, transposed, axes)                                                        \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,     \
                                         const gckpt_window *window)                               \
    {                                                                                              \
        return gckpti_conv_new(x, w, bias, window, transposed, axes);                              \
    }
GCKPTI_CONV(conv2d, 0, 2)
GCKPTI_CONV(conv1d, 0, 1)
GCKPTI_CONV(conv2d_transposed, 1, 2)
GCKPTI_CONV(conv1d_transposed, 1, 1)
#undef GCKPTI_CONV
#endif
