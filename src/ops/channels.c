#include "ops/own.h"

#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm: x (B,..,C) as images of places times C channels ----
 * groupnorm has B images, and takes m = C / groups channels of one together; batchnorm has one
 * image of all places of all rows, m = 1. Sums over places are Kahan's, place by place (manual,
 * 5e), products rounded first; then over the m channels by lanes; N = places * m.
 *   mean = sum(x) / N, d = x - mean, variance = sum(d d) / N, rstd = rsqrt(variance + 1e-5),
 *   h = d rstd, y = fma(h, gain, bias), h gain, fma(d, rstd, bias), or h
 * aux: means, then variances, of each group of each image. Backward, with s = sum(g) and t = sum(g
 * h) over places: dbias sums s and dgain t, image by image, with low parts; a = sum over m of
 * fma(s, gain, lane) (or of s) / N, b the same of t; u = g gain rounded (or g); dx = put(rstd,
 * fma(-h, b, u - a)). In training batchnorm's backward sums rows * mean and rows * (variance *
 * (N / (N - 1))) (of one value: rows * variance, 0) for its running statistics, rounded after each
 * operation; in inference they are mean and variance. */

GCKPTI_FN gckpti_channels gckpti_channels_of(const gckpt_call *call)
{
    const gckpti_channel_norm *o = (const gckpti_channel_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    gckpti_channels s;
    s.channels = gckpti_last(x);
    s.images = o->groups ? x->d[0] : 1;
    s.places = gckpti_rows(x) / s.images;
    s.groups = o->groups ? o->groups : s.channels;
    s.m = s.channels / s.groups;
    s.n = (float)(s.places * s.m);
    s.gain = o->gain ? call->in[o->gain].data : NULL;
    s.bias = o->bias ? call->in[o->bias].data : NULL;
    return s;
}

/* All inputs behind x are (C). */
static gckpt_result gckpti_channels_shape(gckpt_call *call, const char *name)
{
    const gckpti_channel_norm *o = (const gckpti_channel_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    int64_t channels = gckpti_last(x);
    if (x->n < 2)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S must be (B,..,C)", name, x);
    if (o->groups < 0 || (o->groups && channels % o->groups))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S: %I channels are not %i equal groups",
                          name, x, channels, o->groups);
    for (int i = 1; i < call->inputs; i++)
        if (call->in[i].shape.n != 1 || call->in[i].shape.d[0] != channels)
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S needs a %s of [%I], not %S", name, x,
                              i == o->gain   ? "gain"
                              : i == o->bias ? "bias"
                              : i == 1       ? "mean"
                                             : "variance",
                              channels, &call->in[i].shape);
    call->shape = *x;
    int64_t means = o->groups ? x->d[0] * o->groups : channels;
    call->aux_bytes = 2 * (size_t)means * sizeof(float);
    call->work_forward = 4 * (size_t)call->threads * (size_t)channels * sizeof(float);
    call->work_backward = call->work_forward;
    return GCKPT_OK;
}

static gckpt_result gckpti_groupnorm_shape(gckpt_call *call)
{
    return gckpti_channels_shape(call, "groupnorm");
}

static gckpt_result gckpti_batchnorm_shape(gckpt_call *call)
{
    call->mixes_rows = 1;
    return gckpti_channels_shape(call, "batchnorm");
}

GCKPTI_FN float gckpti_channels_sum(const float *s, const float *gain, int64_t m)
{
    float lane[32] = { 0.0f };
    for (int64_t k = 0; k < m; k++)
        lane[k & 31] = gain ? gckpti_fma(s[k], gain[k], lane[k & 31]) : lane[k & 31] + s[k];
    return gckpti_lanes_sum(lane);
}

/* Means (squares 0), or variances of what is left without them, of an image's groups. sum: room for
 * 2 channels. */
static void gckpti_channels_means(const gckpti_channels *s, const float *x, int squares,
                                  const float *mean, float *to, float *sum)
{
    int64_t n = s->channels;
    memset(sum, 0, 2 * (size_t)n * sizeof *sum);
    for (int64_t p = 0; p < s->places; p++)
        for (int64_t c = 0; c < n; c++) {
            float d = x[p * n + c];
            if (squares)
                d -= mean[c / s->m];
            gckpti_sum_add(&sum[c], &sum[n + c], squares ? gckpti_mul(d, d) : d);
        }
    for (int64_t g = 0; g < s->groups; g++)
        to[g] = gckpti_channels_sum(sum + g * s->m, NULL, s->m) / s->n;
}

/* y of an image. */
static void gckpti_channels_out(const gckpti_channels *s, const float *x, const float *mean,
                                const float *variance, float *y)
{
    for (int64_t g = 0; g < s->groups; g++) {
        float rstd = gckpti_rsqrt(variance[g] + 1e-5f);
        for (int64_t p = 0; p < s->places; p++)
            for (int64_t c = g * s->m; c < (g + 1) * s->m; c++) {
                int64_t i = p * s->channels + c;
                float d = x[i] - mean[g], h = d * rstd;
                y[i] = s->gain && s->bias ? gckpti_fma(h, s->gain[c], s->bias[c])
                       : s->gain          ? h * s->gain[c]
                       : s->bias          ? gckpti_fma(d, rstd, s->bias[c])
                                          : h;
            }
    }
}

GCKPTI_FN void gckpti_groupnorm_forward(const gckpt_call *call)
{
    const gckpti_channels s = gckpti_channels_of(call);
    int64_t image = s.places * s.channels;
    float *sum = (float *)call->work, *own = sum + 2 * s.channels, *aux = (float *)call->aux;
    for (int64_t b = 0; b < s.images; b++) {
        const float *x = call->in[0].data + b * image;
        float *mean = aux ? aux + b * s.groups : own;
        float *variance = aux ? aux + (s.images + b) * s.groups : own + s.groups;
        gckpti_channels_means(&s, x, 0, NULL, mean, sum);
        gckpti_channels_means(&s, x, 1, mean, variance, sum);
        if (call->out)
            gckpti_channels_out(&s, x, mean, variance, call->out + b * image);
    }
}

GCKPTI_FN void gckpti_batchnorm_forward(const gckpt_call *call)
{
    const gckpti_channels s = gckpti_channels_of(call);
    if (call->training)
        gckpti_groupnorm_forward(call);
    else if (call->out)
        gckpti_channels_out(&s, call->in[0].data, call->in[1].data, call->in[2].data, call->out);
}

GCKPTI_FN void gckpti_channels_add(const gckpt_arg *to, const float *x, int64_t n)
{
    for (int64_t c = 0; c < n && to->grad; c++)
        gckpti_sum_add(&to->grad[c], to->low ? to->low + c : NULL, x[c]);
}

/* An image's dx, where the first two of `sum` are its sums of g and g h by channel. */
static void gckpti_channels_dx(const gckpti_channels *s, const float *x, const float *g,
                               const float *mean, const float *variance, const float *sum,
                               float *dx, int accumulate)
{
    for (int64_t k = 0; k < s->groups; k++) {
        const int64_t first = k * s->m, end = first + s->m;
        const float *gain = s->gain ? s->gain + first : NULL;
        float rstd = gckpti_rsqrt(variance[k] + 1e-5f);
        float a = gckpti_channels_sum(sum + first, gain, s->m) / s->n;
        float b = gckpti_channels_sum(sum + s->channels + first, gain, s->m) / s->n;
        for (int64_t p = 0; p < s->places; p++)
            for (int64_t c = first; c < end; c++) {
                int64_t i = p * s->channels + c;
                float h = (x[i] - mean[k]) * rstd, u = gain ? gckpti_mul(g[i], s->gain[c]) : g[i];
                gckpti_put_product(&dx[i], rstd, gckpti_fma(-h, b, u - a), accumulate);
            }
    }
}

/* Image by image: its sums, what they add to dgain and dbias, its dx. */
GCKPTI_FN void gckpti_groupnorm_backward(const gckpt_call *call)
{
    const gckpti_channel_norm *o = (const gckpti_channel_norm *)call->attributes;
    const gckpti_channels s = gckpti_channels_of(call);
    int64_t n = s.channels, image = s.places * n;
    float *sum = (float *)call->work;
    const gckpt_arg *x = &call->in[0], *dgain = o->gain ? &call->in[o->gain] : NULL;
    const gckpt_arg *dbias = o->bias ? &call->in[o->bias] : NULL;
    const float *aux = (const float *)call->aux;
    int norms = x->grad || (dgain && dgain->grad); /* else x and aux need not be there */
    if (dgain && dgain->grad)
        gckpti_start(dgain->grad, n, dgain->accumulate);
    if (dbias && dbias->grad)
        gckpti_start(dbias->grad, n, dbias->accumulate);
    for (int64_t b = 0; b < s.images; b++) {
        const float *mean = norms ? aux + b * s.groups : NULL;
        const float *variance = norms ? mean + s.images * s.groups : NULL;
        memset(sum, 0, 4 * (size_t)n * sizeof *sum);
        for (int64_t c = 0; c < n; c++) {
            float rstd = norms ? gckpti_rsqrt(variance[c / s.m] + 1e-5f) : 0;
            for (int64_t i = b * image + c; i < (b + 1) * image; i += n) {
                float g = call->grad_out[i];
                gckpti_sum_add(&sum[c], &sum[2 * n + c], g);
                if (norms)
                    gckpti_sum_add(&sum[n + c], &sum[3 * n + c],
                                   gckpti_mul(g, (x->data[i] - mean[c / s.m]) * rstd));
            }
        }
        if (dbias)
            gckpti_channels_add(dbias, sum, n);
        if (dgain)
            gckpti_channels_add(dgain, sum + n, n);
        if (x->grad)
            gckpti_channels_dx(&s, x->data + b * image, call->grad_out + b * image, mean, variance,
                               sum, x->grad + b * image, x->accumulate);
    }
}

GCKPTI_FN void gckpti_batchnorm_measured(const gckpt_call *call)
{
    const gckpti_channels s = gckpti_channels_of(call);
    const float *aux = (const float *)call->aux;
    for (int k = 0; k < 2; k++) {
        const gckpt_arg *to = &call->in[1 + k];
        float unbiased = k && s.n > 1 ? s.n / (s.n - 1) : 1;
        if (to->grad)
            gckpti_start(to->grad, s.channels, to->accumulate);
        for (int64_t c = 0; c < s.channels && to->grad; c++)
            gckpti_sum_add(&to->grad[c], to->low ? to->low + c : NULL,
                           gckpti_mul((float)call->rows, aux[k * s.channels + c] * unbiased));
    }
}

GCKPTI_FN void gckpti_batchnorm_backward(const gckpt_call *call)
{
    gckpti_batchnorm_measured(call);
    gckpti_groupnorm_backward(call);
}

/* The input behind x, or behind the statistics, is the gain, or a bias without gain, which needs
 * less than this says. */
GCKPTI_ROW(groupnorm, GCKPTI_FAST, gckpti_groupnorm_shape, gckpti_flops_8, 0,
           GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX, GCKPT_IN(0) | GCKPT_AUX | GCKPT_SUMS, GCKPT_SUMS);
GCKPTI_ROW(batchnorm, GCKPTI_FAST, gckpti_batchnorm_shape, gckpti_flops_8, 0,
           GCKPT_IN(0) | GCKPT_IN(3) | GCKPT_AUX, GCKPT_AUX | GCKPT_SUMS | GCKPT_MEASURES,
           GCKPT_AUX | GCKPT_SUMS | GCKPT_MEASURES, GCKPT_IN(0) | GCKPT_AUX | GCKPT_SUMS,
           GCKPT_SUMS);

GCKPT_API gckpt_tensor *gckpt_groupnorm(gckpt_tensor *x, int groups, gckpt_tensor *gain,
                                        gckpt_tensor *bias)
{
    gckpt_tensor *in[3] = { x, gain ? gain : bias, bias };
    gckpti_channel_norm o = { groups ? groups : -1, gain ? 1 : 0, !bias ? 0 : gain ? 2 : 1 };
    return gckpt_apply(&gckpti_op_groupnorm, in, 1 + (gain != NULL) + (bias != NULL), &o, sizeof o);
}

GCKPT_API gckpt_tensor *gckpt_batchnorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        gckpt_tensor *mean, gckpt_tensor *variance)
{
    gckpt_tensor *in[5] = { x, mean, variance, gain ? gain : bias, bias };
    gckpti_channel_norm o = { 0, gain ? 3 : 0, !bias ? 0 : gain ? 4 : 3 };
    return gckpt_apply(&gckpti_op_batchnorm, in, 3 + (gain != NULL) + (bias != NULL), &o, sizeof o);
}
#endif
