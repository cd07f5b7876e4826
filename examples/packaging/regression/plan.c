/* plan.c - prints the plan of a net with one hidden layer as C, on the host; regression.h trains
 * the net on a chip.
 *
 *     cc -O1 -I FOLDER_OF_gradckpt.h plan.c -o plan && ./plan > regression_plan.h */
/* a program that has the implementation in another file defines GRADCKPT_IMPLEMENTED */
#ifndef GRADCKPT_IMPLEMENTED
#define GRADCKPT_IMPLEMENTATION
#endif
#include "gradckpt.h"
#include <stdio.h>

enum { POINTS = 16, HIDDEN = 8 };

static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(POINTS, 1));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(POINTS, 1));
    const gckpt_init normal = { 0.7f, 0, 0 }, zero = { 0, 0, 0 };
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(1, HIDDEN), normal);
    gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(HIDDEN), zero);
    gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape2(HIDDEN, 1), normal);
    gckpt_tensor *b2 = gckpt_param(g, "b2", gckpt_shape1(1), zero);
    gckpt_tensor *out = gckpt_linear(gckpt_tanh(gckpt_linear(x, w1, b1)), w2, b2);
    const gckpt_term term = { gckpt_mean_squared_error(out, y, NULL), 1, 0 };
    gckpt_plan_desc desc = { .batch = POINTS, .kernels.plain = 1, .kernels.alignment = 8 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    const int failed = !p || gckpt_plan_c(p, "regression_plan", to_stdout, NULL) != GCKPT_OK;
    if (failed)
        fprintf(stderr, "%s\n", gckpt_error_text(g));
    gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return failed;
}
