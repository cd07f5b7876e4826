/* Lesson 3: plans a chain of 36 layers in every mode and prints bytes and time. */
#include "gradckpt.h"
#include <stdio.h>

static size_t row(gckpt_graph *g, const gckpt_term *loss, const char *name, gckpt_mode mode,
                  size_t budget)
{
    const gckpt_plan_desc desc = { .mode = mode, .budget = budget };
    gckpt_plan *p = gckpt_plan_new(g, loss, 1, &desc);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (p == NULL) {
        printf("%-26s %s\n", name, gckpt_error_text(g));
        return 0;
    }
    const size_t bytes = gckpt_plan_bytes(p);
    printf("%-26s %8zu  %6.1f %%  %5.1f %%\n", name, bytes, 100 * info.overhead,
           100 * (double)info.proven_cost / (double)info.cost);
    gckpt_plan_free(p);
    return bytes;
}

int main(void)
{
    const gckpt_init small = { 0.1f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *h = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1024, 32));
    for (int i = 0; i < 36; i++) {
        const char name[] = { 'w', (char)('0' + i / 10), (char)('0' + i % 10), 0 };
        if (i % 6 == 0)
            gckpt_segment_begin(g); /* for GCKPT_SEGMENTS: six segments of six layers */
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(32, 32), small), NULL));
        if (i % 6 == 5)
            gckpt_segment_end(g);
    }
    gckpt_term loss = { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
    printf("%-26s %8s  %8s  %7s\n", "", "bytes", "longer", "proven");
    const size_t all = row(g, &loss, "store-all", GCKPT_STORE_ALL, 0);
    row(g, &loss, "memory-poor", GCKPT_MEMORY_POOR, 0);
    row(g, &loss, "segments", GCKPT_SEGMENTS, 0);
    const size_t root = row(g, &loss, "sqrt(n)", GCKPT_SQRT, 0);
    row(g, &loss, "optimal, sqrt(n)'s bytes", GCKPT_OPTIMAL, root);
    row(g, &loss, "optimal, half of all", GCKPT_OPTIMAL, all / 2);
    row(g, &loss, "optimal, 1000 bytes", GCKPT_OPTIMAL, 1000);
    gckpt_graph_free(g), gckpt_store_free(s);
    return 0;
}
