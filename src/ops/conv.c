#include "ops/own.h"

#ifndef GCKPT_NO_IMAGES
/* ---- conv2d: out (B,P,Q,O) of x (B,H,W,I) and w (KH,KW,I/groups,O), and its transpose ----
 * The sides of both are the image, of c channels, and what the window makes of it: places, of o.
 * down (forward; dx of the transpose): from +0, the bias or what is there, a chain over taps
 *   (rows, columns of w ascending) and the group's c channels: image[tap] w; 0 beyond the image.
 * up (dx; forward of the transpose): a chain over taps and the group's o channels: place w, over
 *   the taps by which a place meets this pixel; a place beyond the last is 0, and takes part, what
 *   falls between two places (strides) does not.
 * dw: a chain over rows and their places ascending: image[tap] place; 0 beyond the image. */

GCKPTI_FN int64_t gckpti_windows_room(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 16777216.0)
        return 0;
    return (gckpti_min(gckpti_multiple(n, GCKPTI_PANEL), GCKPTI_NC) + GCKPTI_GATHERED) *
               gckpti_min(gckpti_multiple(k, 16), GCKPTI_KC) +
           GCKPTI_PANEL * 16;
}

GCKPTI_FN gckpti_conv_sizes gckpti_conv_sizes_of(const gckpt_call *call)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const int64_t *x = call->in[0].shape.d, *w = call->in[1].shape.d, *y = call->shape.d;
    gckpti_conv_sizes z;
    z.window = a->window;
    z.rows = x[0];
    for (int i = 0; i < 2; i++) {
        z.image[i] = a->transposed ? y[1 + i] : x[1 + i];
        z.places[i] = a->transposed ? x[1 + i] : y[1 + i];
        z.taps[i] = w[i];
    }
    z.group_c = w[2], z.o = w[3];
    z.c = z.group_c * a->window.groups, z.group_o = z.o / a->window.groups;
    return z;
}

/* Of the way down. */
static gckpti_reach gckpti_reach_down(const gckpti_conv_sizes *z, int axis)
{
    const gckpt_window *w = &z->window;
    gckpti_reach r = { z->image[axis],
                       z->places[axis],
                       z->taps[axis],
                       w->stride[axis],
                       w->dilation[axis],
                       -w->padding[axis],
                       0,
                       1,
                       0,
                       1 };
    return r;
}

/* Of the way up, for the pixels phase, phase + stride, ...: their taps lie apart, too. */
static gckpti_reach gckpti_reach_up(const gckpti_conv_sizes *z, int axis, int64_t phase)
{
    const int64_t stride = z->window.stride[axis], dilation = z->window.dilation[axis];
    const int64_t from = phase + z->window.padding[axis];
    int64_t common = stride, each, k = 0;
    for (int64_t rest = dilation, next; rest; common = rest, rest = next)
        next = common % rest;
    each = stride / common;
    while (k < gckpti_min(each, z->taps[axis]) && (from - k * dilation) % stride)
        k++;
    gckpti_reach r = { z->places[axis],
                       (z->image[axis] - phase + stride - 1) / stride,
                       k < each ? (z->taps[axis] - k + each - 1) / each : 0,
                       1,
                       -(dilation / common),
                       (from - k * dilation) / stride,
                       phase,
                       stride,
                       k,
                       each };
    return r;
}

static int64_t gckpti_conv_phases(const gckpti_conv_sizes *z, int axis, int up)
{
    return up ? gckpti_min(z->window.stride[axis], z->image[axis]) : 1;
}

/* What tap (ky, kx) of result (i, j) reads of `from`, a row of the batch; NULL: it lies beyond. */
static const float *gckpti_conv_meets(const gckpti_reach *r, int64_t i, int64_t j, int64_t ky,
                                      int64_t kx, const float *from, int64_t channels)
{
    int64_t y = i * r[0].step + ky * r[0].tap + r[0].first;
    int64_t x = j * r[1].step + kx * r[1].tap + r[1].first;
    if (y < 0 || y >= r[0].size || x < 0 || x >= r[1].size)
        return NULL;
    return from + (y * r[1].size + x) * channels;
}

GCKPTI_FN int64_t gckpti_conv_tap(const gckpti_conv_sizes *z, const gckpti_reach *r, int64_t ky,
                                  int64_t kx)
{
    return (r[0].tap_at + ky * r[0].tap_each) * z->taps[1] + r[1].tap_at + kx * r[1].tap_each;
}

static void gckpti_plain_multiply_add(float *d, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        d[i] = gckpti_fma(x ? x[i] : 0.0f, y[i], d[i]);
}

/* Result (i, j) of a row of the batch, which begins at `from`: the chains of d go on over all taps
 * of w; of dw, those of all taps in d over the place w. First for groups of one channel each, of
 * which it takes n. */
static void gckpti_conv_depthwise(const gckpti_conv *s, const float *from, int64_t i, int64_t j,
                                  const float *w, float *d, int64_t n)
{
    const int64_t dw = s->kind == GCKPTI_CONV_DW;
    for (int64_t ky = 0; ky < s->r[0].taps; ky++)
        for (int64_t kx = 0; kx < s->r[1].taps; kx++) {
            int64_t at = gckpti_conv_tap(s->z, s->r, ky, kx) * s->z->c;
            s->run(d + dw * at, gckpti_conv_meets(s->r, i, j, ky, kx, from, s->z->c),
                   w + (1 - dw) * at, n);
        }
}

static void gckpti_conv_links(const gckpti_conv *s, const float *from, int64_t i, int64_t j,
                              const float *w, float *d)
{
    const gckpti_conv_sizes *z = s->z;
    const int64_t gc = z->group_c, go = z->group_o, up = s->kind == GCKPTI_CONV_UP;
    const float nothing = 0.0f;
    if (gc == 1 && go == 1) {
        gckpti_conv_depthwise(s, from, i, j, w, d, z->c);
        return;
    }
    for (int64_t ky = 0; ky < s->r[0].taps; ky++)
        for (int64_t kx = 0; kx < s->r[1].taps; kx++) {
            const float *met = gckpti_conv_meets(s->r, i, j, ky, kx, from, up ? z->o : z->c);
            const float *x = met ? met : &nothing;
            const int64_t step = met != NULL, tap = gckpti_conv_tap(z, s->r, ky, kx);
            for (int64_t g = 0, at; g < z->window.groups; g++) {
                at = tap * gc * z->o + g * go;
                if (up)
                    gckpti_chains(x + g * go * step, step, w + at, z->o, gc, go, d + g * gc);
                for (int64_t c = g * gc; !up && c < (g + 1) * gc; c++, at += z->o)
                    if (s->kind == GCKPTI_CONV_DW)
                        gckpti_link(x[c * step], w + g * go, go, d + at);
                    else
                        gckpti_link(x[c * step], w + at, go, d + g * go);
            }
        }
}

GCKPTI_FN void gckpti_conv_results(const gckpti_conv *s, int64_t begin, int64_t end)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_reach *r = s->r;
    const int up = s->kind == GCKPTI_CONV_UP;
    const int64_t *side = up ? z->image : z->places, n = up ? z->c : z->o;
    for (int64_t at = begin; at < end; at++) {
        int64_t j = at % r[1].results, i = at / r[1].results % r[0].results;
        int64_t row = at / r[1].results / r[0].results, line = row * side[0] + i * r[0].each;
        float *d = s->out + ((line + r[0].at) * side[1] + r[1].at + j * r[1].each) * n;
        if (s->start)
            memcpy(d, s->start, (size_t)n * sizeof *d);
        else
            gckpti_start(d, n, s->accumulate);
        gckpti_conv_links(s, s->from + row * r[0].size * r[1].size * (up ? z->o : z->c), i, j, s->w,
                          d);
    }
}

GCKPTI_FN void gckpti_conv_weights(const gckpti_conv *s, int64_t c, int64_t n)
{
    const gckpti_conv_sizes *z = s->z;
    const float *from = s->from + c, *w = s->w + c;
    for (int64_t row = 0; row < z->rows; row++, from += z->image[0] * z->image[1] * z->c)
        for (int64_t i = 0; i < z->places[0]; i++)
            for (int64_t j = 0; j < z->places[1]; j++, w += z->o)
                if (n < z->c)
                    gckpti_conv_depthwise(s, from, i, j, w, s->out + c, n);
                else
                    gckpti_conv_links(s, from, i, j, w, s->out);
}

static void gckpti_conv_all(const gckpt_call *call, int kind, const float *from, const float *w,
                            const gckpt_arg *bias, const gckpt_arg *grad, gckpti_conv_run run)
{
    const gckpti_conv_sizes z = gckpti_conv_sizes_of(call);
    const int up = kind == GCKPTI_CONV_UP;
    const int64_t across = gckpti_conv_phases(&z, 1, up);
    gckpti_conv s = { &z,
                      { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
                      kind,
                      grad ? grad->accumulate : 0,
                      from,
                      bias ? bias->data : NULL,
                      w,
                      grad ? grad->grad : call->out,
                      gckpti_plain_multiply_add };
    for (int64_t phase = 0; phase < gckpti_conv_phases(&z, 0, up) * across; phase++) {
        for (int i = 0; i < 2; i++)
            s.r[i] = up ? gckpti_reach_up(&z, i, i ? phase % across : phase / across)
                        : gckpti_reach_down(&z, i);
        run(call, &s);
    }
}

static void gckpti_conv_plain(const gckpt_call *call, const gckpti_conv *s)
{
    if (s->kind != GCKPTI_CONV_DW) {
        gckpti_conv_results(s, 0, s->z->rows * s->r[0].results * s->r[1].results);
        return;
    }
    gckpti_start(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
    gckpti_conv_weights(s, 0, s->z->c);
}

GCKPTI_FN void gckpti_conv_forward(const gckpt_call *call, gckpti_conv_run run)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    gckpti_conv_all(call, a->transposed ? GCKPTI_CONV_UP : GCKPTI_CONV_DOWN, call->in[0].data,
                    call->in[1].data, call->inputs == 3 ? &call->in[2] : NULL, NULL, run);
}

GCKPTI_FN void gckpti_conv_backward(const gckpt_call *call, gckpti_conv_run run)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    if (x->grad)
        gckpti_conv_all(call, a->transposed ? GCKPTI_CONV_DOWN : GCKPTI_CONV_UP, call->grad_out,
                        w->data, NULL, x, run);
    if (w->grad)
        gckpti_conv_all(call, GCKPTI_CONV_DW, a->transposed ? call->grad_out : x->data,
                        a->transposed ? x->data : call->grad_out, NULL, w, run);
}

GCKPTI_FN void gckpti_conv2d_forward(const gckpt_call *call)
{
    gckpti_conv_forward(call, gckpti_conv_plain);
}

GCKPTI_FN void gckpti_conv2d_backward(const gckpt_call *call)
{
    gckpti_conv_backward(call, gckpti_conv_plain);
    gckpti_bias_backward(call);
}

GCKPTI_FN uint64_t gckpti_conv2d_flops(const gckpt_call *call)
{
    const gckpti_conv2d *a = (const gckpti_conv2d *)call->attributes;
    const gckpt_shape *places = a->transposed ? &call->in[0].shape : &call->shape;
    const int64_t *w = call->in[1].shape.d;
    return 2 * (uint64_t)gckpti_elements(places) * (uint64_t)(w[0] * w[1] * w[2]);
}
#endif
