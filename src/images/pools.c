#include "images/images.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* =================================================================================================
 * images: convolutions, pools, norms of images; gather; recurrent layers
 *
 * Channels are the last axis. A convolution is the product of a virtual matrix, whose rows are the
 * pixels of one window, with w (kernel rows, kernel columns, channels); its chains have that order.
 * ============================================================================================== */

/* ---- max_pool, average_pool: x (B,H,W,C), or (B,W,C) as H = 1 -> (B,P,Q,C) ----
 * Of a window, only taps within x are read, row by row. max_pool: y is the first tap that no other
 * exceeds, or the first NaN; saved (B,P,Q,C) is its index, 16 bits. average_pool: a chain of
 * additions over taps from +0, / size (padding counts as zeros). Gradients, windows in order: dx +=
 * g at the saved tap, or g / size at each tap; from +0, or the old value. */

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
    for (int i = 0; i < 2; i++)
        s.out[i] = (s.in[i] + 2 * (int64_t)s.o.padding[i] - s.o.size[i]) / s.o.stride[i] + 1;
    return s;
}

GCKPTI_FN int64_t gckpti_valid_taps(const gckpti_pool_state *s, int axis, int64_t at,
                                    int64_t *first, int64_t *end)
{
    *first = at * s->o.stride[axis] - s->o.padding[axis];
    *end = gckpti_min(s->o.size[axis], s->in[axis] - *first);
    return *first < 0 ? -*first : 0;
}

/* Each window has a tap within x: padding is less than the window, which fits into padded x. */
static gckpt_result gckpti_pool_shape(gckpt_call *call, const char *name)
{
    const gckpti_pool *o = (const gckpti_pool *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    if (x->n != 3 && x->n != 4)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S must be (B,H,W,C) or (B,T,C)", name, x);
    for (int i = 0; i < 2; i++)
        if (o->size[i] < 1 || o->stride[i] < 1 || o->padding[i] < 0 || o->padding[i] >= o->size[i])
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "%s: window.size %i, stride %i, padding %i: size and "
                              "stride must be 1 or more, padding 0 to size - 1",
                              name, o->size[i], o->stride[i], o->padding[i]);
    gckpti_pool_state s = gckpti_pool_state_of(call);
    for (int i = 0; i < 2; i++)
        if (s.in[i] + 2 * (int64_t)o->padding[i] < o->size[i])
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "%s: x %S has %I positions, the window needs %i (padding %i)", name,
                              x, s.in[i], o->size[i], o->padding[i]);
    call->shape = *x;
    call->shape.d[x->n - 2] = s.out[1];
    if (x->n == 4)
        call->shape.d[1] = s.out[0];
    return GCKPT_OK;
}

static gckpt_result gckpti_max_pool_shape(gckpt_call *call)
{
    const gckpti_pool *o = (const gckpti_pool *)call->attributes;
    gckpt_result result = gckpti_pool_shape(call, "max_pool");
    if (result == GCKPT_OK && (int64_t)o->size[0] * o->size[1] > 65536)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "max_pool: a window of %i x %i has more than 65536 elements", o->size[0],
                          o->size[1]);
    if (result == GCKPT_OK && gckpti_shape_fits(&call->shape))
        call->saved_bytes = (size_t)gckpti_elements(&call->shape) * sizeof(uint16_t);
    return result;
}

static gckpt_result gckpti_average_pool_shape(gckpt_call *call)
{
    if (!gckpti_is_plain(call))
        call->workspace_backward =
            (size_t)call->threads * (size_t)gckpti_last(&call->in[0].shape) * sizeof(float);
    return gckpti_pool_shape(call, "average_pool");
}

/* A work item is a row of windows of an image (forward), or an image (backward). */
static void gckpti_pool_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_pool_state *s = (const gckpti_pool_state *)context;
    const int64_t n = s->channels, size = s->in[0] * s->in[1] * n;
    const int64_t image = s->backward ? item : item / s->out[0];
    int64_t p = s->backward ? 0 : item % s->out[0], end = s->backward ? s->out[0] : p + 1;
    gckpti_window_row row = { image * size, (image * s->out[0] + p) * s->out[1] * n, p };
    if (s->backward)
        gckpti_zero_unless(s->call->in[0].grad + row.x, size, s->call->in[0].accumulate);
    for (; row.p < end; row.p++, row.y += s->out[1] * n)
        s->windows(s, &row, worker);
}

static void gckpti_run_pool(const gckpt_call *call, gckpti_pool_state *s, int backward)
{
    int64_t row = s->out[1] * s->channels * s->o.size[0] * s->o.size[1];
    s->call = call, s->backward = backward;
    gckpt_parallel(call, backward ? s->images : s->images * s->out[0],
                   backward ? row * s->out[0] : row, gckpti_pool_item, s);
}

static void gckpti_max_pool_windows(const gckpti_pool_state *s, const gckpti_window_row *row,
                                    int64_t worker)
{
    const gckpt_call *call = s->call;
    const int64_t n = s->channels, columns = s->in[1], wide = s->o.size[1];
    uint16_t *tap = (uint16_t *)call->saved;
    int64_t h, w, end, y = row->y;
    (void)worker;
    (void)gckpti_valid_taps(s, 0, row->p, &h, &end);
    for (int64_t q = 0; q < s->out[1]; q++, y += n) {
        if (!s->backward) {
            s->max_window(s, call->in[0].data + row->x, row->p, q, call->out ? call->out + y : NULL,
                          tap ? tap + y : NULL);
            continue;
        }
        (void)gckpti_valid_taps(s, 1, q, &w, &end);
        int64_t first = row->x + (h * columns + w) * n;
        for (int64_t c = 0; c < n; c++) {
            int64_t i = (int64_t)(tap[y + c] / (uint32_t)wide), j = tap[y + c] - i * wide;
            call->in[0].grad[first + (i * columns + j) * n + c] += call->grad_out[y + c];
        }
    }
}

GCKPTI_FN void gckpti_run_max_pool(const gckpt_call *call, int backward,
                                   gckpti_max_window_fn window)
{
    gckpti_pool_state s = gckpti_pool_state_of(call);
    s.windows = gckpti_max_pool_windows, s.max_window = window;
    gckpti_run_pool(call, &s, backward);
}

/* Forward: y is the mean of taps of x. Backward: taps of dx += g / size. `add` may be NULL. */
static void gckpti_average_pool_windows(const gckpti_pool_state *s, const gckpti_window_row *row,
                                        int64_t worker)
{
    const gckpt_call *call = s->call;
    const float size = (float)s->o.size[0] * (float)s->o.size[1];
    const int64_t n = s->channels;
    const int backward = s->backward;
    void (*add)(float *to, const float *from, int64_t n) = s->add;
    int64_t h, w, h_end, w_end, top = gckpti_valid_taps(s, 0, row->p, &h, &h_end), y = row->y;
    for (int64_t q = 0; q < s->out[1]; q++, y += n) {
        int64_t left = gckpti_valid_taps(s, 1, q, &w, &w_end);
        const float *from = backward ? call->grad_out + y : call->in[0].data;
        float *to = backward ? call->in[0].grad : call->out + y;
        if (!backward)
            gckpti_zero_unless(to, n, 0);
        else if (add) {
            float *scaled = (float *)call->workspace + worker * n;
            memcpy(scaled, from, (size_t)n * sizeof *scaled);
            s->divide(scaled, size, n);
            from = scaled;
        }
        for (int64_t a = top; a < h_end; a++) {
            int64_t tap = row->x + ((h + a) * s->in[1] + w + left) * n;
            for (int64_t b = left; b < w_end; b++, tap += n)
                if (add)
                    add(to + (backward ? tap : 0), from + (backward ? 0 : tap), n);
                else if (backward)
                    for (int64_t c = 0; c < n; c++)
                        to[tap + c] += from[c] / size;
                else
                    for (int64_t c = 0; c < n; c++)
                        to[c] += from[tap + c];
        }
        if (!backward && add)
            s->divide(to, size, n);
        else if (!backward)
            for (int64_t c = 0; c < n; c++)
                to[c] /= size;
    }
}

GCKPTI_FN void gckpti_run_average_pool(const gckpt_call *call, int backward,
                                       void (*add)(float *to, const float *from, int64_t n),
                                       void (*divide)(float *x, float divisor, int64_t n))
{
    gckpti_pool_state s = gckpti_pool_state_of(call);
    s.windows = gckpti_average_pool_windows, s.add = add, s.divide = divide;
    gckpti_run_pool(call, &s, backward);
}

GCKPTI_OP_KERNELS(max_pool, gckpti_run_max_pool(call, backward, gckpti_max_window))
GCKPTI_OP_KERNELS(average_pool, gckpti_run_average_pool(call, backward, NULL, NULL))

static uint64_t gckpti_pool_flops(const gckpt_call *call)
{
    const gckpti_pool *o = (const gckpti_pool *)call->attributes;
    return (uint64_t)o->size[0] * (uint64_t)o->size[1] * (uint64_t)gckpti_elements(&call->shape);
}

/* Taps outside x count as -inf for a maximum, as +0 for an average. */
static int gckpti_pool_field(const gckpt_call *call, void *attr, float fill,
                             gckpt_receptive_field *field)
{
    gckpti_pool *o = (gckpti_pool *)attr;
    const int i = call->in[0].shape.n == 3;
    const gckpt_receptive_field window = { 1, o->stride[i], o->padding[i], o->size[i], fill };
    *field = window;
    o->padding[i] = 0;
    return 1;
}
static int gckpti_max_pool_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    return gckpti_pool_field(call, attr, -GCKPTI_INFINITY, field);
}
static int gckpti_avg_pool_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    return gckpti_pool_field(call, attr, 0.0f, field);
}

GCKPTI_DESC_FIELD(max_pool, GCKPTI_FAST, gckpti_max_pool_shape, gckpti_pool_flops,
                  gckpti_max_pool_field, 0, GCKPT_SAVED);
GCKPTI_DESC_FIELD(average_pool, GCKPTI_FAST, gckpti_average_pool_shape, gckpti_pool_flops,
                  gckpti_avg_pool_field, 0, 0);

static gckpt_tensor *gckpti_pool_new(const gckpt_op *op, gckpt_tensor *x,
                                     const gckpt_window *window)
{
    gckpti_pool o = { { 1, 1 }, { 1, 1 }, { 0, 0 } };
    gckpt_window w;
    memset(&w, 0, sizeof w);
    if (window)
        w = *window;
    if (x && ((unsigned)w.groups > 1 || (unsigned)w.dilation[0] > 1 ||
              (unsigned)w.dilation[1] > 1 || w.output_padding[0] || w.output_padding[1]))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "%s: a pool's window has size, stride and padding; groups, dilation "
                           "and output_padding are a convolution's",
                           op->name);
    for (int i = x && x->shape.n == 3; i < 2; i++) {
        o.size[i] = w.size[i];
        o.stride[i] = w.stride[i] ? w.stride[i] : w.size[i];
        o.padding[i] = w.padding[i];
    }
    return gckpt_apply(op, &x, 1, &o, sizeof o);
}

GCKPT_API gckpt_tensor *gckpt_max_pool(gckpt_tensor *x, const gckpt_window *window)
{
    return gckpti_pool_new(&gckpti_op_max_pool, x, window);
}

GCKPT_API gckpt_tensor *gckpt_average_pool(gckpt_tensor *x, const gckpt_window *window)
{
    return gckpti_pool_new(&gckpti_op_average_pool, x, window);
}

GCKPT_API gckpt_tensor *gckpt_global_average_pool(gckpt_tensor *x)
{
    if (x && x->shape.n < 3)
        return gckpti_fail(x->graph, GCKPT_E_SHAPE,
                           "global_average_pool: x %S has no axes between batch and channels",
                           &x->shape);
    return x ? gckpt_mean(gckpt_reshape(x, gckpt_shape3(x->shape.d[0], -1, gckpti_last(&x->shape))),
                          1)
             : NULL;
}
#endif
