#include "images/kernels.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm: x (B,..,C) as images of pixels times C channels ----
 * groupnorm has B images, and normalises m = C / groups channels together; batchnorm has one image
 * of all pixels of all rows, and m = 1. Sums run over pixels, by Kahan's method (manual, 5e), of
 * rounded products; then over the m channels by lanes. N = pixels * m.
 *   mean = first + sum(x - first) / N, d = x - mean, variance = sum(d d) / N,
 *   rstd = rsqrt(variance + epsilon), h = d rstd,
 *   y = fma(h, gain, bias), h gain, fma(d, rstd, bias), or h
 * first: the group's first channel at the image's first pixel, so that equal x have d = 0
 * saved: means, then variances, by image and group. Backward, with s = sum(g) and t = sum(g h) over
 * pixels: dbias sums s and dgain sums t, image by image, compensated. a = sum over m of fma(s,
 * gain, lane) (or of s) / N; b is the same of t; u = g gain rounded (or g); dx = put(rstd, fma(-h,
 * b, u - a)). In training, batchnorm's backward also adds rows * mean and rows * (variance * (N /
 * (N - 1))), or rows * variance if N = 1, rounded after each operation, to the sums of its running
 * statistics; in inference, batchnorm takes mean and variance from these statistics. */

/* A work item is some whole groups: of one image in the forward, of all images in the backward.
 * With several threads, batchnorm writes y and dx in a second loop, whose items are pixels: a
 * thread then writes the pixels that it also has in the ops before and after. */
typedef struct {
    const gckpt_call *call;
    const gckpti_channel_kernels *kernels;
    int64_t images, pixels, channels, groups, m;
    float n, epsilon;     /* n: values per group and image */
    int64_t width, items; /* channels of a work item; work items per image */
    int has_stats;        /* nonzero if mean and variance are inputs (batchnorm in inference) */
    int64_t each;         /* pixels of an item of the second loop, or 0 if there is only one loop */
} gckpti_channel_state;

/* Shape rule: all inputs after x are (C). */
static gckpt_result gckpti_channels_shape(gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    const char *name = o->center ? "groupnorm" : "batchnorm";
    int64_t channels = gckpti_last(x);
    if (x->n < 2)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S must be (B,..,C)", name, x);
    if (o->center < 0 || (o->center && channels % o->center))
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S: %I channels are not %i equal groups",
                          name, x, channels, o->center == INT32_MIN ? 0 : o->center);
    if (o->center > 0 && channels / o->center * (gckpti_rows(x) / x->d[0]) == 1)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: x %S has one value per group; it needs 2 or more: use fewer groups",
                          name, x);
    for (int i = 1; i < call->inputs; i++)
        if (call->in[i].shape.n != 1 || call->in[i].shape.d[0] != channels)
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S needs a %s of [%I], not %S", name, x,
                              i == o->gain   ? "gain"
                              : i == o->bias ? "bias"
                              : i == 1       ? "mean"
                                             : "variance",
                              channels, &call->in[i].shape);
    call->shape = *x;
    int64_t means = o->center ? x->d[0] * o->center : channels;
    call->saved_bytes = 2 * (size_t)means * sizeof(float);
    call->workspace_forward = 4 * (size_t)call->threads * (size_t)channels * sizeof(float);
    call->workspace_backward = call->workspace_forward;
    call->mixes_rows = !o->center;
    return GCKPT_OK;
}

/* Replaces each channel's sum by its group's mean: of the sums or, with gain, of gain times sum. */
static void gckpti_channels_average(const gckpti_channel_state *s, float *sums, const float *gain,
                                    int64_t first, int64_t end)
{
    for (int64_t c = first; c < end; c += s->m) {
        float lane[32] = { 0.0f };
        for (int64_t k = 0; k < s->m; k++) {
            float *sum = &lane[k & 31];
            *sum = gain ? gckpti_fma(sums[c + k], gain[c + k], *sum) : *sum + sums[c + k];
        }
        lane[0] = gckpti_lanes_sum(lane) / s->n;
        for (int64_t k = c; k < c + s->m; k++)
            sums[k] = lane[0];
    }
}

/* Copies statistics from a group's first channel to all its channels, variances as rstds. */
static void gckpti_channels_broadcast(const gckpti_channel_state *s, float *mean, float *variance,
                                      int64_t first, int64_t end)
{
    for (int64_t c = first; c < end; c += s->m) {
        float group_mean = mean[c], rstd = gckpti_rsqrt(variance[c] + s->epsilon);
        for (int64_t k = c; k < c + s->m; k++)
            mean[k] = group_mean, variance[k] = rstd;
    }
}

/* Returns the pass over image b, with sums and statistics in the worker's part of the workspace, or
 * in the first part if there is a second loop. */
static gckpti_channel_pass gckpti_channel_pass_of(const gckpti_channel_state *s, int64_t b,
                                                  int64_t worker)
{
    const gckpt_call *call = s->call;
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t n = s->channels, image = b * s->pixels * n;
    float *scratch = (float *)call->workspace + (s->each ? 0 : 4 * worker * n);
    gckpti_channel_pass p;
    memset(&p, 0, sizeof p);
    p.pixels = s->pixels, p.channels = n;
    p.x = call->in[0].data ? call->in[0].data + image : NULL;
    p.g = call->grad_out ? call->grad_out + image : NULL;
    p.s = scratch, p.t = scratch + n, p.mean = scratch + 2 * n, p.rstd = scratch + 3 * n;
    p.gain = o->gain ? call->in[o->gain].data : NULL;
    p.bias = o->bias ? call->in[o->bias].data : NULL;
    return p;
}

static void gckpti_channels_forward(void *context, int64_t i, int64_t worker)
{
    const gckpti_channel_state *s = (const gckpti_channel_state *)context;
    const int64_t b = i / s->items, first = i % s->items * s->width;
    const int64_t end = gckpti_min(first + s->width, s->channels);
    gckpti_channel_pass p = gckpti_channel_pass_of(s, b, worker);
    float *mean = p.mean, *variance = p.rstd, *saved = (float *)s->call->saved;
    if (s->has_stats) {
        memcpy(mean + first, s->call->in[1].data + first, (size_t)(end - first) * sizeof *mean);
        memcpy(variance + first, s->call->in[2].data + first, (size_t)(end - first) * sizeof *mean);
    } else {
        for (int64_t c = first; c < end; c += s->m)
            for (int64_t k = c; k < c + s->m; k++)
                mean[k] = p.x[c];
        p.s = variance;
        s->kernels->sums(&p, first, end);
        gckpti_channels_average(s, variance, NULL, first, end);
        for (int64_t c = first; c < end; c++)
            mean[c] += variance[c];
        p.squares = 1;
        s->kernels->sums(&p, first, end);
        gckpti_channels_average(s, variance, NULL, first, end);
        for (int64_t c = first; saved && c < end; c += s->m) {
            saved[b * s->groups + c / s->m] = mean[c];
            saved[(s->images + b) * s->groups + c / s->m] = variance[c];
        }
    }
    gckpti_channels_broadcast(s, mean, variance, first, end);
    if (s->call->out && !s->each) {
        p.to = s->call->out + b * s->pixels * s->channels;
        s->kernels->out(&p, first, end);
    }
}

/* The second loop: writes y or dx of `each` pixels. */
static void gckpti_channels_pixels(void *context, int64_t i, int64_t worker)
{
    const gckpti_channel_state *s = (const gckpti_channel_state *)context;
    const gckpt_arg *x = &s->call->in[0];
    const int64_t at = i * s->each * s->channels;
    gckpti_channel_pass p = gckpti_channel_pass_of(s, 0, worker);
    p.pixels = gckpti_min(s->each, s->pixels - i * s->each), p.x += at;
    p.to = (p.g ? x->grad : s->call->out) + at, p.accumulate = x->accumulate;
    if (p.g)
        p.g += at;
    (p.g ? s->kernels->dx : s->kernels->out)(&p, 0, s->channels);
}

/* Adds the sums of channels first..end-1 to the gradient of input i, if i is not 0. */
static void gckpti_channels_add(const gckpt_call *call, int i, const float *sums, int64_t first,
                                int64_t end)
{
    const gckpt_arg *to = &call->in[i];
    for (int64_t c = first; i && to->grad && c < end; c++)
        gckpti_add_to_grad(to, c, sums[c]);
}

/* For each image: computes sums over pixels, adds them to dgain and dbias, and computes dx. */
static void gckpti_channels_backward(void *context, int64_t i, int64_t worker)
{
    const gckpti_channel_state *s = (const gckpti_channel_state *)context;
    const gckpt_call *call = s->call;
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t first = i * s->width, end = gckpti_min(first + s->width, s->channels);
    const float *saved = (const float *)call->saved;
    const gckpt_arg *x = &call->in[0];
    for (int64_t b = 0; b < s->images; b++) {
        gckpti_channel_pass p = gckpti_channel_pass_of(s, b, worker);
        if (!x->grad && !(o->gain && call->in[o->gain].grad))
            p.t = NULL; /* no t required: x and saved may be NULL */
        for (int64_t c = first; p.t && c < end; c += s->m) {
            p.mean[c] = saved[b * s->groups + c / s->m];
            p.rstd[c] = saved[(s->images + b) * s->groups + c / s->m];
        }
        if (p.t)
            gckpti_channels_broadcast(s, p.mean, p.rstd, first, end);
        s->kernels->sums(&p, first, end);
        gckpti_channels_add(call, o->bias, p.s, first, end);
        gckpti_channels_add(call, o->gain, p.t, first, end);
        if (!x->grad)
            continue;
        gckpti_channels_average(s, p.s, p.gain, first, end);
        gckpti_channels_average(s, p.t, p.gain, first, end);
        if (s->each)
            continue;
        p.to = x->grad + b * s->pixels * s->channels, p.accumulate = x->accumulate;
        s->kernels->dx(&p, first, end);
    }
}

/* Adds the batch's mean and variance, times rows, to the sums of the running statistics. */
static void gckpti_batchnorm_add_stats(const gckpti_channel_state *s)
{
    float *sums = (float *)s->call->workspace;
    for (int i = 1; i < 3; i++) {
        const float *saved = (const float *)s->call->saved + (i - 1) * s->channels;
        float unbiased = i == 2 && s->n > 1 ? s->n / (s->n - 1) : 1;
        for (int64_t c = 0; s->call->in[i].grad && c < s->channels; c++)
            sums[c] = gckpti_mul((float)s->call->rows, saved[c] * unbiased);
        gckpti_channels_add(s->call, i, sums, 0, s->channels);
    }
}

static void gckpti_run_channels(const gckpt_call *call, int backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int groups = o->center;
    const gckpt_shape *x = &call->in[0].shape;
    const int64_t n = gckpti_last(x), images = groups ? x->d[0] : 1;
    gckpti_channel_state s;
    memset(&s, 0, sizeof s);
    s.call = call, s.has_stats = !groups && !gckpti_is_training(call);
    s.kernels = GCKPTI_KERNEL_OF(call, images->channels, &gckpti_channel_loops);
    s.images = images, s.pixels = gckpti_rows(x) / images, s.channels = n;
    s.groups = groups ? groups : n, s.m = n / s.groups, s.n = (float)(s.pixels * s.m);
    s.epsilon = gckpti_norm_epsilon(o);
    s.width = n, s.items = 1;
    if (GCKPTI_HAS_FAST) {
        s.width = gckpti_ceil_to((n + call->threads - 1) / call->threads, 16);
        s.width = gckpti_min(gckpti_ceil_to(s.width, s.m), n);
        s.items = (n + s.width - 1) / s.width;
    }
    if (backward)
        gckpti_clear_grads(call, 1, call->inputs);
    if (backward && !groups)
        gckpti_batchnorm_add_stats(&s);
    const int64_t items = backward ? s.items : images * s.items, cost = 4 * gckpti_elements(x);
    if (!groups && s.items > 1)
        s.each = (s.pixels + 4 * call->threads - 1) / (4 * call->threads);
    gckpt_parallel(call, items, cost / items,
                   backward ? gckpti_channels_backward : gckpti_channels_forward, &s);
    if (s.each && (backward ? call->in[0].grad : call->out))
        gckpt_parallel(call, (s.pixels + s.each - 1) / s.each, s.each * n, gckpti_channels_pixels,
                       &s);
}

GCKPTI_OP_KERNELS(groupnorm, gckpti_run_channels(call, backward))
GCKPTI_OP_KERNELS(batchnorm, gckpti_run_channels(call, backward))

/* With a bias and no gain, the gradients read less than declared here. */
GCKPTI_DESC(groupnorm, gckpti_channels_shape, gckpti_flops_8, 0,
            GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED, GCKPT_IN(0) | GCKPT_SAVED | GCKPT_SUMS,
            GCKPT_SUMS);
GCKPTI_DESC(batchnorm, gckpti_channels_shape, gckpti_flops_8, 0,
            GCKPT_IN(0) | GCKPT_IN(3) | GCKPT_SAVED,
            GCKPT_SAVED | GCKPT_SUMS | GCKPT_UPDATES_RUNNING,
            GCKPT_SAVED | GCKPT_SUMS | GCKPT_UPDATES_RUNNING,
            GCKPT_IN(0) | GCKPT_SAVED | GCKPT_SUMS, GCKPT_SUMS);

GCKPT_API gckpt_tensor *gckpt_groupnorm(gckpt_tensor *x, int groups, gckpt_tensor *gain,
                                        gckpt_tensor *bias, float epsilon)
{
    gckpt_tensor *in[3] = { x, gain, bias };
    return gckpti_norm_new(&gckpti_op_groupnorm, in, 1, groups ? groups : INT32_MIN, epsilon);
}

GCKPT_API gckpt_tensor *gckpt_running(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                      gckpt_init init, float momentum)
{
    size_t before = graph ? graph->count : 0;
    if (graph && !(momentum >= 0 && momentum <= 1))
        return gckpti_fail(graph, GCKPT_E_ARG, "running \"%s\": momentum %g must be from 0 to 1",
                           name ? name : "", (double)momentum);
    gckpt_tensor *t = gckpt_param(graph, name, shape, init);
    if (t && graph->count > before) {
        t->running = 1;
        t->momentum = momentum;
    } else if (t && (!t->running || t->momentum != momentum)) {
        return gckpti_fail(graph, GCKPT_E_ARG,
                           t->running ? "running \"%s\": the graph has it with another momentum"
                                      : "running \"%s\": the graph has a gckpt_param of this name",
                           name);
    }
    return t;
}

GCKPT_API gckpt_tensor *gckpt_batchnorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        gckpt_tensor *mean, gckpt_tensor *variance, float epsilon)
{
    gckpt_tensor *in[5] = { x, mean, variance, gain, bias };
    return gckpti_norm_new(&gckpti_op_batchnorm, in, 3, 0, epsilon);
}
#endif
