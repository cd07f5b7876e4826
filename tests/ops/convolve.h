/* convolve.h - one forward and one backward pass of a convolution op, through the public API. Shared by
 * the tests of gckpt_conv1d and the other convolutions (test_convolutions.c) and of a user-defined
 * convolution (test_user_ops.c). Include after gradckpt.h. */
#ifndef TESTS_CONVOLVE_H
#define TESTS_CONVOLVE_H
#include "util.h"
#include <math.h>

enum { CONVOLVE_CAPACITY = 70000 };
typedef struct {
    gckpt_tensor *(*op)(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                        const gckpt_window *window);
    gckpt_window window;
    /* expected shape of the result; if y.n is 0, any shape is accepted, and convolve() stores the shape that it got */
    gckpt_shape x, w, y;
    int64_t o;           /* elements of the bias, or 0 without a bias */
    float x_data[CONVOLVE_CAPACITY], w_data[CONVOLVE_CAPACITY], b_data[CONVOLVE_CAPACITY],
        target[CONVOLVE_CAPACITY];
    float values[CONVOLVE_CAPACITY], dx[CONVOLVE_CAPACITY], dw[CONVOLVE_CAPACITY],
        db[CONVOLVE_CAPACITY]; /* dw and db: gradients of the mean loss, that is sums divided by `count` */
    double count;
} problem;

static inline float *parameter(gckpt_store *s, const char *name)
{
    gckpt_parameter p = { 0 };
    CHECK(gckpt_store_get(s, gckpt_store_find(s, name), &p) == GCKPT_OK);
    return p.values;
}

/* Fills x with small multiples of 1/8, whose products have exact sums. */
static inline void fill(float *x, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i * step % 23 - 11) / 8.0f;
}

/* Fills the operands and the target of a convolution with the numbers that the scripts in tests/golden/ use for their
 * results. */
static inline void fill_operands(problem *z)
{
    fill(z->x_data, count_of(&z->x), 37);
    fill(z->target, count_of(&z->y), 31);
    fill(z->w_data, count_of(&z->w), 29);
    fill(z->b_data, z->o, 5);
}

/* Runs one forward and one backward of the convolution with the loss sum(y * target), so that the gradient of y is
 * the target. Returns 0 if the graph refused the op or if y has another shape than z->y says. */
static inline int convolve(problem *z, gckpt_isa isa, int threads)
{
    const gckpt_init none = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, z->x);
    gckpt_tensor *x = gckpt_mul(in, gckpt_param(g, "one", gckpt_shape1(1), none));
    gckpt_tensor *w = gckpt_param(g, "w", z->w, none);
    gckpt_tensor *b = z->o ? gckpt_param(g, "b", gckpt_shape1(z->o), none) : NULL;
    gckpt_tensor *y = z->op(x, w, b, &z->window);
    gckpt_shape ys = gckpt_shape_of(y);
    int good = CHECK_MSG(
        ys.n > 0 && count_of(&ys) <= CONVOLVE_CAPACITY &&
            (!z->y.n || (ys.n == z->y.n && !memcmp(ys.d, z->y.d, (size_t)ys.n * sizeof *ys.d))),
        "shape %s", gckpt_error_text(g));
    if (!good) {
        util_free(NULL, NULL, g, s);
        return 0;
    }
    z->y = ys;
    gckpt_tensor *target = gckpt_input(g, "target", GCKPT_F32, ys);
    gckpt_term loss = { gckpt_sum_loss(gckpt_mul(y, target)), 1, 0 };
    gckpt_fetch_spec fetches[4] = { { y, 0 }, { x, 1 }, { w, 1 }, { b, 1 } };
    gckpt_plan_desc desc = {
        .fetch.specs = fetches, .fetch.count = z->o ? 4 : 3, .threads = threads, .optimiser = GCKPT_SGD
    };
    gckpt_exec_desc run = { .isa = isa };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &run);
    gckpt_feed feeds[2] = { { gckpt_id(in), z->x_data }, { gckpt_id(target), z->target } };
    float *to[4] = { z->values, z->dx, z->dw, z->db };
    const int64_t n[4] = { count_of(&ys), count_of(&z->x), count_of(&z->w), z->o };
    gckpt_report report = { 0 };
    memcpy(parameter(s, "w"), z->w_data, (size_t)n[2] * sizeof(float));
    if (z->o)
        memcpy(parameter(s, "b"), z->b_data, (size_t)n[3] * sizeof(float));
    *parameter(s, "one") = 1;
    CHECK_MSG(gckpt_gradients(e, feeds, 2, z->x.d[0], &report) == GCKPT_OK, "%s",
              gckpt_error_text(e ? (void *)e : (void *)g));
    z->count = (double)report.count;
    for (int i = 0; i < desc.fetch.count; i++) {
        const float *got = gckpt_fetch(e, gckpt_id(fetches[i].tensor), fetches[i].gradient);
        good = CHECK(got != NULL) && good;
        memcpy(to[i], got ? got : to[i], (size_t)n[i] * sizeof(float));
    }
    util_free(e, p, g, s);
    return good;
}

/* Returns how many of the n elements of `got`, each multiplied by `by`, differ from the elements of `want`. */
static inline int differ(const float *got, const double *want, int64_t n, double by)
{
    int wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += fabs((double)got[i] * by - want[i]) > 2e-6 * fabs(want[i]);
    return wrong;
}
#endif
