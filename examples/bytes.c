/* bytes.c - lists the uses of a training's bytes, with a net that is small enough to
 * check the numbers by hand.
 *
 *     cc -O2 -I. examples/bytes.c -o bytes && ./bytes
 *
 * The net has two dense layers of 16 and 32 outputs; the batch is 1. Textbooks count the
 * activations that the backward needs: (16 + 32) * 4 = 192 bytes. The plan has these bytes and
 * also lists those that textbooks omit. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "print.h"
#include <stdio.h>

static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    const gckpt_init normal = { 0.3f, 0, 0 };
    int status = 1;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 8));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(1, 32));
    gckpt_tensor *a = gckpt_linear(x, gckpt_param(g, "w1", gckpt_shape2(8, 16), normal), NULL);
    gckpt_tensor *b = gckpt_linear(a, gckpt_param(g, "w2", gckpt_shape2(16, 32), normal), NULL);
    gckpt_term loss = { gckpt_mean_squared_error(gckpt_name(b, "b"), y, NULL), 1, 0 };
    gckpt_name(a, "a");

    gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL,
                             .optimiser = GCKPT_SGD,
                             .kernels.alignment = 4 };
    gckpt_plan *training = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_fetch_spec both[2] = { { a, 0 }, { b, 0 } };
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = both;
    desc.fetch.count = 2;
    gckpt_plan *forward = gckpt_plan_new(g, NULL, 0, &desc);
    if (training == NULL || forward == NULL) {
        fprintf(stderr, "bytes: %s\n", gckpt_error_text(g));
    } else {
        size_t kept = gckpt_plan_kind_bytes(forward, GCKPT_BYTES_ACTIVATIONS);
        printf("a (1,16) and b (1,32), both kept by a forward: %zu bytes = (16 + 32) * 4\n\n",
               kept);
        print_plan(training, to_stdout, NULL);
        printf(
            "\nThe training's arena is largest in the backward: %zu bytes of parameter gradients "
            "and %zu of activations;\nb and its gradient are dead by then, and their bytes are in use "
            "again.\n",
            gckpt_plan_kind_bytes(training, GCKPT_BYTES_GRADIENTS),
            gckpt_plan_kind_bytes(training, GCKPT_BYTES_ACTIVATIONS));
        status = kept != 192;
    }
    gckpt_plan_free(forward);
    gckpt_plan_free(training);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return fflush(stdout) != 0 ? 1 : status;
}
