/* Lesson 6: trains as on a chip, without heap and files; every byte is in one of four blocks. (On a
 * chip, compile gradckpt.c with GCKPT_NO_HEAP and GCKPT_NO_STDIO, which leave out the rest.) */
#include "gradckpt.h"
#include <stdio.h>

/* A chip with a finished plan needs neither the graph nor the memory of the planner. */
static unsigned char weights[8000], graph[20000], tables[1000000], work[20000];
static gckpt_memory in(unsigned char *block, size_t size)
{
    gckpt_memory m = { NULL, NULL, block, size };
    return m;
}

int main(void)
{
    static float x[32][2], y[32][1];
    for (int i = 0; i < 32; i++)
        y[i][0] = (x[i][0] = (float)(i % 8) / 4 - 1) * (x[i][1] = (float)(i / 8) / 2 - 1);
    for (size_t budget = 10000; budget <= 14000; budget += 2000) {
        const gckpt_store_desc store = { .memory = in(weights, sizeof weights), .seed = 1 };
        gckpt_store *s = gckpt_store_new(&store);
        const gckpt_memory for_graph = in(graph, sizeof graph);
        gckpt_graph *g = gckpt_graph_new(s, &for_graph);
        const gckpt_init half = { 0.5f, 0, 0 };
        gckpt_tensor *a = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(32, 2)), *h = a;
        gckpt_tensor *b = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(32, 1));
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, "w1", gckpt_shape2(2, 16), half), NULL));
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, "w2", gckpt_shape2(16, 16), half), NULL));
        h = gckpt_linear(h, gckpt_param(g, "w3", gckpt_shape2(16, 1), half), NULL);
        const gckpt_term loss = { gckpt_mean_squared_error(h, b, NULL), 1, 0 };
        const gckpt_plan_desc desc = { .mode = GCKPT_OPTIMAL,
                                       .budget = budget,
                                       .memory = in(tables, sizeof tables) };
        gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
        if (p == NULL) {
            printf("%s\n", gckpt_error_text(g));
            continue; /* all objects are in blocks, so nothing leaks */
        }
        const gckpt_exec_desc how = { .memory = in(work, sizeof work) };
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        const gckpt_feed feeds[2] = { { gckpt_id(a), x }, { gckpt_id(b), y } };
        const gckpt_hyper adamw = gckpt_hyper_lr(0.01f);
        gckpt_report r = { 0, 0, 0, 0 };
        for (int step = 0; e != NULL && step < 300; step++)
            gckpt_step(e, feeds, 2, 32, &adamw, &r);
        printf("%zu given, %zu taken, of them %zu for the step: loss %.4f; %s\n", budget,
               gckpt_plan_bytes(p), gckpt_plan_describe(p).arena, r.loss,
               e == NULL ? gckpt_error_text(s) : "no heap was used");
        gckpt_exec_free(e), gckpt_plan_free(p);
        gckpt_graph_free(g), gckpt_store_free(s);
    }
    return 0;
}
