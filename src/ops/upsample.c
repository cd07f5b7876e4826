#include "ops/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* ---- upsample: x (B,H,W,C) -> (B,P,Q,C), larger or smaller ----
 * Row i of P looks at place p of H, columns likewise, in binary32: nearest: at floor(i (H/P));
 * bilinear: p = max((H/P) (i + 0.5) - 0.5, 0), aligned p = i ((H-1)/(P-1)); at floor(p), weight 1 -
 * f, and the next (no farther than the last), weight f = p - floor(p), if that is not 0. y: x
 * there, or chains of fma from +0 over these rows and, in a row, columns, of x times the product of
 * both weights. dx: results in order, each with its taps in that order: dx = fma(weight, g, dx). */
typedef struct {
    const gckpt_call *call;
    gckpti_upsample o;
    int64_t in[2], channels;
    int backward;
    gckpti_scaled_add add;
} gckpti_upsampling;

/* An item is a row of results (forward), an image (backward). */
static void gckpti_upsample_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_upsampling *s = (const gckpti_upsampling *)context;
    const int64_t rows = s->o.size[0], columns = s->o.size[1], c = s->channels;
    const int64_t image = (s->backward ? item : item / rows) * s->in[0];
    int64_t y = item * (s->backward ? rows : 1), end = y + (s->backward ? rows : 1);
    const gckpt_arg *x = &s->call->in[0];
    (void)worker;
    if (s->backward)
        gckpti_start(x->grad + image * s->in[1] * c, s->in[0] * s->in[1] * c, x->accumulate);
    for (; y < end; y++) {
        const gckpti_lookup p = gckpti_lookup_of(s->o.how, s->in[0], rows, y % rows);
        for (int64_t j = 0, to = y * columns * c; j < columns; j++, to += c) {
            const gckpti_lookup q = gckpti_lookup_of(s->o.how, s->in[1], columns, j);
            if (!s->backward)
                gckpti_start(s->call->out + to, c, 0);
            for (int k = 0; k < p.n * q.n; k++) {
                const int a = k / q.n, b = k % q.n;
                const int64_t from = ((image + p.at[a]) * s->in[1] + q.at[b]) * c;
                if (s->backward)
                    s->add(x->grad + from, p.weight[a] * q.weight[b], s->call->grad_out + to, c);
                else if (s->o.how == GCKPT_NEAREST)
                    memcpy(s->call->out + to, x->data + from, (size_t)c * sizeof *x->data);
                else
                    s->add(s->call->out + to, p.weight[a] * q.weight[b], x->data + from, c);
            }
        }
    }
}

GCKPTI_FN void gckpti_upsample_by(const gckpt_call *call, int backward, gckpti_scaled_add add)
{
    const gckpt_shape *x = &call->in[0].shape;
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    const int64_t rows = backward ? 1 : o->size[0], work = gckpti_elements(&call->shape) * 4;
    gckpti_upsampling s = { call, *o, { x->d[1], x->d[2] }, x->d[3], backward, add };
    if (!backward || call->in[0].grad)
        gckpt_parallel(call, x->d[0] * rows, work / (x->d[0] * rows), gckpti_upsample_item, &s);
}

static void gckpti_plain_scaled_add(float *to, float factor, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = gckpti_fma(factor, from[i], to[i]);
}
GCKPTI_BOTH_WAYS(upsample, gckpti_upsample_by(call, backward, gckpti_plain_scaled_add))

static gckpt_result gckpti_upsample_shape(gckpt_call *call)
{
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    call->shape = call->in[0].shape;
    if (call->shape.n != 4)
        return gckpt_fail(call, GCKPT_E_SHAPE, "upsample: x %S must be (B,H,W,C)", &call->shape);
    call->shape.d[1] = o->size[0], call->shape.d[2] = o->size[1];
    return GCKPT_OK;
}
static uint64_t gckpti_upsample_flops(const gckpt_call *call)
{
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    return (o->how == GCKPT_NEAREST ? 1 : 4) * (uint64_t)gckpti_elements(&call->shape);
}
GCKPTI_ROW(upsample, GCKPTI_FAST, gckpti_upsample_shape, gckpti_upsample_flops, 0, 0);

GCKPT_API gckpt_tensor *gckpt_upsample(gckpt_tensor *x, int64_t height, int64_t width,
                                       gckpt_upsampling how)
{
    const gckpti_upsample o = { { (int)height, (int)width }, (int)how };
    if (x && (height < 1 || height != o.size[0] || width < 1 || width != o.size[1] ||
              (unsigned)how > GCKPT_BILINEAR_ALIGNED))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "upsample: %I x %I, how %i: sizes are 1 to 2^31 - 1, how is "
                           "GCKPT_NEAREST, GCKPT_BILINEAR or GCKPT_BILINEAR_ALIGNED",
                           height, width, (int)how);
    return gckpt_apply(&gckpti_op_upsample, &x, 1, &o, sizeof o);
}
#endif
