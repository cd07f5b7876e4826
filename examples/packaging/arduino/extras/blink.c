/* blink.c - prints the file plan.h of the sketch Blink, on a computer. It has two plans over the
 * same weights: one trains a network to follow a curve, with 16 samples per step; the other one
 * evaluates the network at one position.
 *
 *     cc -I../src blink.c -lm -o blink && ./blink > ../examples/Blink/plan.h */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>

static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init wide = { 4, 0, 0 }, small = { 0.1f, 0, 0 }, zero = { 0, 0, 0 };
    /* a micro-batch is one row */
    gckpt_tensor *when = gckpt_input(g, "when", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *light = gckpt_input(g, "light", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(1, 16), wide);
    gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(16), wide);
    gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape2(16, 1), small);
    gckpt_tensor *b2 = gckpt_param(g, "b2", gckpt_shape1(1), zero);
    gckpt_tensor *hidden = gckpt_tanh(gckpt_linear(when, w1, b1));
    gckpt_tensor *guess = gckpt_name(gckpt_linear(hidden, w2, b2), "guess");
    const gckpt_term loss = { gckpt_mean_squared_error(guess, light, NULL), 1, 0 };
    const gckpt_fetch_spec pick = { guess, 0 };
    const gckpt_plan_desc learn = { .batch = 16, .kernels.plain = 1, .kernels.alignment = 8 };
    const gckpt_plan_desc tell = { .mode = GCKPT_INFERENCE,
                                   .fetch.specs = &pick,
                                   .fetch.count = 1,
                                   .kernels.plain = 1,
                                   .kernels.alignment = 8 };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &learn), *q = gckpt_plan_new(g, NULL, 0, &tell);
    if (p && q && gckpt_plan_c(p, "learn", to_stdout, NULL) == GCKPT_OK &&
        gckpt_plan_c(q, "tell", to_stdout, NULL) == GCKPT_OK)
        return 0;
    fprintf(stderr, "%s\n", gckpt_error_text(g));
    return 1;
}
