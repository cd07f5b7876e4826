/* convolution.h - a 2-d convolution as a user-defined op, built on the public API of gradckpt.h. To
 * use it, copy it and change it as you like.
 *
 *     #include "gradckpt.h"
 *     #include "convolution.h"
 *     gckpt_tensor *y = convolution(x, w, bias, stride, padding);
 *
 * x (B,C,H,W), w (O,C,R,S), bias (O) or NULL, y (B,O,P,Q): P = (H + 2 padding - R) / stride + 1, Q
 * likewise. y[b,o,p,q] = bias[o] + sum over c,r,s of w[o,c,r,s] x[b,c, p stride + r - padding, q
 * stride + s - padding], where x is 0 outside. This is torch.nn.functional.conv2d with groups 1.
 *
 * Each image is processed in tiles of output rows: the inputs under each tap of w are copied into a
 * matrix `columns` (C R S, pixels of the tile). The rest is matrix products: y = w columns, dw +=
 * dy columns', dcolumns = w' dy (Chellapilla et al. 2006). docs/user-ops.md explains it step by
 * step. */
#ifndef CONVOLUTION_H
#define CONVOLUTION_H
#include "gradckpt.h"
#include <string.h>

typedef struct {
    int32_t stride, padding;
} convolution_attributes;

/* approximate number of floats in `columns`, chosen to fit into a cache */
enum { CONVOLUTION_TILE = 1 << 17 };

/* Sizes of a call, and the current tile of output rows. x is (b,c,h,w), the weights are (o,c,r,s),
 * and the output is (b,o,p,q). */
typedef struct {
    const gckpt_call *call;
    int64_t b, c, h, w, o, r, s, p, q;
    int64_t stride, padding;
    /* taps: c r s, weights per output channel; tile: output rows of a full tile */
    int64_t taps, tile;
    /* the current tile: its image, its first row, and its numbers of rows and pixels */
    int64_t image, first, rows, pixels;
    /* in the workspace: columns (taps,pixels), and a row of `pixels` ones */
    float *columns, *ones;
    void *scratch;                         /* workspace of the matrix products */
} convolution_sizes;

static inline convolution_sizes convolution_sizes_of(const gckpt_call *call)
{
    const convolution_attributes *a = (const convolution_attributes *)call->attributes;
    const int64_t *x = call->in[0].shape.d, *w = call->in[1].shape.d;
    convolution_sizes z;
    memset(&z, 0, sizeof z);
    z.call = call;
    z.b = x[0], z.c = x[1], z.h = x[2], z.w = x[3];
    z.o = w[0], z.r = w[2], z.s = w[3];
    z.stride = a->stride, z.padding = a->padding;
    z.p = (z.h + 2 * z.padding - z.r) / z.stride + 1;
    z.q = (z.w + 2 * z.padding - z.s) / z.stride + 1;
    z.taps = z.c * z.r * z.s;
    z.tile = CONVOLUTION_TILE / (z.taps * z.q) + 1;
    z.tile = z.tile < z.p ? z.tile : z.p;
    z.columns = (float *)call->workspace;
    z.ones = call->workspace ? z.columns + z.taps * z.tile * z.q : NULL;
    z.scratch = call->workspace ? z.ones + z.tile * z.q : NULL;
    return z;
}

/* Advances to the next tile, first to image 0, row 0. Returns 1, or 0 after the last tile. */
static inline int convolution_next_tile(convolution_sizes *z)
{
    z->first += z->rows;
    if (z->first == z->p)
        z->image++, z->first = 0;
    z->rows = z->p - z->first < z->tile ? z->p - z->first : z->tile;
    z->pixels = z->rows * z->q;
    return z->image < z->b;
}

/* Sets the output's shape, and the size of the workspace: columns, ones, and the products'
 * workspace. */
static gckpt_result convolution_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape;
    const convolution_attributes *a = (const convolution_attributes *)call->attributes;
    if (x->n != 4 || w->n != 4 || x->d[1] != w->d[1] || a->stride < 1 || a->padding < 0 ||
        x->d[2] + 2 * a->padding < w->d[2] || x->d[3] + 2 * a->padding < w->d[3])
        return gckpt_fail(call, GCKPT_E_SHAPE, "convolution: x %S and w %S do not match; expected "
                                               "(B,C,H,W) and (O,C,R,S), with a window that fits "
                                               "into the padded x", x, w);
    if (call->inputs == 3 && (call->in[2].shape.n != 1 || call->in[2].shape.d[0] != w->d[0]))
        return gckpt_fail(call, GCKPT_E_SHAPE, "convolution: bias %S must have one element per "
                                               "output channel of w %S", &call->in[2].shape,
                          w);
    convolution_sizes z = convolution_sizes_of(call);
    int64_t pixels = z.tile * z.q;
    size_t columns = (size_t)((z.taps + 1) * pixels) * sizeof(float);
    size_t dw = gckpt_product_workspace(call, z.o, z.taps, pixels);
    size_t dx = gckpt_product_workspace(call, z.taps, pixels, z.o);
    call->shape = gckpt_shape4(z.b, z.o, z.p, z.q);
    call->workspace_forward = columns + gckpt_product_workspace(call, z.o, pixels, z.taps);
    call->workspace_backward = columns + (dw > dx ? dw : dx);
    return GCKPT_OK;
}

/* Sets *begin and *end: among the output rows or columns first to first + count - 1, tap t reads
 * one of the n inputs for begin to end - 1, and padding for the others. */
static inline void convolution_range(const convolution_sizes *z, int64_t n, int64_t first,
                                     int64_t count, int64_t t, int64_t *begin, int64_t *end)
{
    int64_t offset = z->padding - t; /* output i reads input i * stride - offset */
    int64_t low = offset > 0 ? (offset + z->stride - 1) / z->stride : 0;
    int64_t high = n + offset > 0 ? (n - 1 + offset) / z->stride + 1 : 0;
    *end = high < first + count ? high : first + count;
    *begin = low > first ? low : first;
}

/* Fills the rows of `columns` for channel c: row (c,r,s) has, for each output pixel, the input
 * under tap (r,s). */
static void convolution_gather(void *context, int64_t c, int64_t worker)
{
    const convolution_sizes *z = (const convolution_sizes *)context;
    const float *x = z->call->in[0].data + (z->image * z->c + c) * z->h * z->w;
    float *row = z->columns + c * z->r * z->s * z->pixels;
    int64_t p0, p1, q0, q1;
    (void)worker;
    for (int64_t r = 0; r < z->r; r++)
        for (int64_t s = 0; s < z->s; s++, row += z->pixels) {
            convolution_range(z, z->h, z->first, z->rows, r, &p0, &p1);
            convolution_range(z, z->w, 0, z->q, s, &q0, &q1);
            memset(row, 0, (size_t)z->pixels * sizeof *row); /* inputs outside the image are 0 */
            for (int64_t p = p0; p < p1; p++) {
                const float *from = x + (p * z->stride + r - z->padding) * z->w + s - z->padding;
                float *to = row + (p - z->first) * z->q;
                if (z->stride == 1 && q0 < q1)
                    memcpy(to + q0, from + q0, (size_t)(q1 - q0) * sizeof *to);
                else
                    for (int64_t q = q0; q < q1; q++)
                        to[q] = from[q * z->stride];
            }
        }
}

/* Adds the gradient of `columns` to the input's gradient in channel c, in the fixed order r, s, p,
 * q. */
static void convolution_scatter(void *context, int64_t c, int64_t worker)
{
    const convolution_sizes *z = (const convolution_sizes *)context;
    float *dx = z->call->in[0].grad + (z->image * z->c + c) * z->h * z->w;
    const float *row = z->columns + c * z->r * z->s * z->pixels;
    int64_t p0, p1, q0, q1;
    (void)worker;
    if (!z->call->in[0].accumulate && z->first == 0)
        memset(dx, 0, (size_t)(z->h * z->w) * sizeof *dx);
    for (int64_t r = 0; r < z->r; r++)
        for (int64_t s = 0; s < z->s; s++, row += z->pixels) {
            convolution_range(z, z->h, z->first, z->rows, r, &p0, &p1);
            convolution_range(z, z->w, 0, z->q, s, &q0, &q1);
            for (int64_t p = p0; p < p1; p++) {
                float *to = dx + (p * z->stride + r - z->padding) * z->w + s - z->padding;
                const float *from = row + (p - z->first) * z->q;
                for (int64_t q = q0; q < q1; q++)
                    to[q * z->stride] += from[q];
            }
        }
}

static void convolution_forward(const gckpt_call *call)
{
    convolution_sizes z = convolution_sizes_of(call);
    const float *bias = call->inputs == 3 ? call->in[2].data : NULL;
    gckpt_product_desc y; /* the product (O, pixels) = (O, taps) (taps, pixels) */
    memset(&y, 0, sizeof y);
    y.m = z.o, y.k = z.taps, y.workspace = z.scratch;
    y.a = call->in[1].data, y.a_row = z.taps, y.a_col = 1;
    y.b = z.columns, y.b_col = 1;
    y.c_row = z.p * z.q, y.c_col = 1;
    y.accumulate = bias != NULL; /* if there is a bias, sums start at the bias */
    while (convolution_next_tile(&z)) {
        y.n = y.b_row = z.pixels;
        y.c = call->out + z.image * z.o * z.p * z.q + z.first * z.q;
        for (int64_t o = 0; bias && o < z.o; o++)
            for (int64_t i = 0; i < z.pixels; i++)
                y.c[o * y.c_row + i] = bias[o];
        gckpt_parallel(call, z.c, z.r * z.s * z.pixels, convolution_gather, &z);
        gckpt_product(call, &y);
    }
}

/* Adds to the bias's gradient: for each output channel, the sum over the current tile is one
 * term. */
static void convolution_grad_bias(void *context, int64_t o, int64_t worker)
{
    const convolution_sizes *z = (const convolution_sizes *)context;
    const float *dy = z->call->grad_out + (z->image * z->o + o) * z->p * z->q + z->first * z->q;
    const gckpt_arg *bias = &z->call->in[2];
    (void)worker;
    gckpt_sum_add(&bias->grad[o], bias->compensation ? &bias->compensation[o] : NULL,
                  gckpt_dot(z->call, dy, z->ones, z->pixels));
}

/* Computes the gradients of x, w and bias. The sums for w run over all images as one chain; those
 * for the bias are compensated. So any division of a batch into micro-batches gives the same
 * bits. */
static void convolution_backward(const gckpt_call *call)
{
    convolution_sizes z = convolution_sizes_of(call);
    const gckpt_arg *x = &call->in[0], *w = &call->in[1], *bias = &call->in[2];
    int biased = call->inputs == 3 && bias->grad;
    /* dw: gradient of w, (O,taps) += (O,pixels) (pixels,taps); dx: gradient of the columns, w' dy,
     * which overwrites z.columns */
    gckpt_product_desc dw, dx;
    memset(&dw, 0, sizeof dw);
    dw.m = z.o, dw.n = z.taps, dw.workspace = z.scratch;
    dw.a_row = z.p * z.q, dw.a_col = 1;
    dw.b = z.columns, dw.b_row = 1;
    dw.c = w->grad, dw.c_row = z.taps, dw.c_col = 1;
    dw.accumulate = w->accumulate;
    memset(&dx, 0, sizeof dx);
    dx.m = z.taps, dx.k = z.o, dx.workspace = z.scratch;
    dx.a = w->data, dx.a_row = 1, dx.a_col = z.taps;
    dx.b_row = z.p * z.q, dx.b_col = 1;
    dx.c = z.columns, dx.c_col = 1;
    for (int64_t i = 0; biased && i < z.tile * z.q; i++)
        z.ones[i] = 1.0f;
    if (biased && !bias->accumulate)
        memset(bias->grad, 0, (size_t)z.o * sizeof *bias->grad);
    while (convolution_next_tile(&z)) {
        dw.a = dx.b = call->grad_out + z.image * z.o * z.p * z.q + z.first * z.q;
        if (biased)
            gckpt_parallel(call, z.o, z.pixels, convolution_grad_bias, &z);
        if (w->grad) {
            gckpt_parallel(call, z.c, z.r * z.s * z.pixels, convolution_gather, &z);
            dw.k = dw.b_col = z.pixels;
            gckpt_product(call, &dw);
            dw.accumulate = 1;
        }
        if (x->grad) {
            dx.n = dx.c_row = z.pixels;
            gckpt_product(call, &dx);
            gckpt_parallel(call, z.c, z.r * z.s * z.pixels, convolution_scatter, &z);
        }
    }
}

static uint64_t convolution_flops(const gckpt_call *call)
{
    const convolution_sizes z = convolution_sizes_of(call);
    return 2 * (uint64_t)(z.b * z.o * z.p * z.q) * (uint64_t)z.taps;
}

static inline gckpt_tensor *convolution(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                        int stride, int padding)
{
    /* the gradient of x reads w, that of w reads x, and that of the bias is a compensated sum */
    static const gckpt_op op = { "convolution",
                                 convolution_shape,
                                 convolution_forward,
                                 convolution_backward,
                                 convolution_flops,
                                 NULL,
                                 { GCKPT_IN(1), GCKPT_IN(0), GCKPT_SUMS },
                                 0,
                                 NULL,
                                 NULL };
    gckpt_tensor *in[3] = { x, w, bias };
    convolution_attributes a = { stride, padding };
    return gckpt_apply(&op, in, bias ? 3 : 2, &a, sizeof a);
}
#endif
