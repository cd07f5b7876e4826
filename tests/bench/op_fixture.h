/* op_fixture.h - builds a graph with inputs and parameters that are numbered in the order of their creation, for the
 * programs that measure single ops and nets. */
#ifndef BENCH_OP_FIXTURE_H
#define BENCH_OP_FIXTURE_H
#define _DEFAULT_SOURCE
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../names.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef gckpt_tensor T;
enum { MOST = 8 };

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_feed feed[MOST];
    void *data[MOST];
    size_t elements[MOST]; /* of data */
    /* gradients of inputs, which are fetched so that the backward computes them */
    gckpt_fetch_spec wanted_gradients[MOST];
    int feeds, fetches, params;
    const char *name;
} op_fixture;
static op_fixture r;

/* Returns an input whose gradient is not computed. */
static inline T *input(gckpt_type type, gckpt_shape shape, int64_t below)
{
    char name[16];
    int64_t n = 1;
    for (int i = 0; i < shape.n; i++)
        n *= shape.d[i];
    float *data = (float *)malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        const int64_t drawn = (i * 2654435761 >> 8) & 0xffff;
        if (type == GCKPT_I32)
            ((int32_t *)(void *)data)[i] = (int32_t)(drawn % below);
        else
            data[i] = (float)drawn / 40000.0f - 0.6f;
    }
    snprintf(name, sizeof name, "x%d", r.feeds);
    T *t = gckpt_input(r.graph, name, type, shape);
    r.data[r.feeds] = data;
    r.elements[r.feeds] = (size_t)n;
    r.feed[r.feeds].input = gckpt_id(t);
    r.feed[r.feeds++].data = data;
    return t;
}

static inline T *fed(gckpt_type type, gckpt_shape shape, int64_t below)
{
    T *t = input(type, shape, below);
    if (type == GCKPT_I32)
        return t;
    r.wanted_gradients[r.fetches].tensor = t;
    r.wanted_gradients[r.fetches++].gradient = 1;
    return gckpt_scale(t, 1.0f); /* the backward of this op runs after the backward of the op that is measured */
}
static inline T *in1(int64_t a) { return fed(GCKPT_F32, gckpt_shape1(a), 0); }
static inline T *in2(int64_t a, int64_t b) { return fed(GCKPT_F32, gckpt_shape2(a, b), 0); }
static inline T *in3(int64_t a, int64_t b, int64_t c)
{
    return fed(GCKPT_F32, gckpt_shape3(a, b, c), 0);
}
static inline T *in4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return fed(GCKPT_F32, gckpt_shape4(a, b, c, d), 0);
}
static inline T *index1(int64_t a, int64_t below) { return fed(GCKPT_I32, gckpt_shape1(a), below); }
static inline T *index2(int64_t a, int64_t b, int64_t below)
{
    return fed(GCKPT_I32, gckpt_shape2(a, b), below);
}

static inline T *initial(gckpt_shape shape, gckpt_init init)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", r.params++);
    return gckpt_param(r.graph, name, shape, init);
}
static inline T *param(gckpt_shape shape)
{
    return initial(shape, (gckpt_init){ 0.1f, 0, 0.05f });
}
static inline T *p1(int64_t a) { return param(gckpt_shape1(a)); }
static inline T *p2(int64_t a, int64_t b) { return param(gckpt_shape2(a, b)); }
static inline T *p4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return param(gckpt_shape4(a, b, c, d));
}
static inline T *pair_of(T *a, T *b, int axis)
{
    T *both[2] = { a, b };
    return gckpt_concat(both, 2, axis);
}
static inline T *swapped(T *x)
{
    static const int axes[] = { 0, 2, 1 };
    return gckpt_permute(x, axes, 3);
}
#endif
