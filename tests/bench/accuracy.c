/* accuracy.c - how far gradients that sum over many rows are from binary64: docs/accuracy.md. Equal
 * rows are the worst case, since each addition is then rounded the same way. accuracy_torch.py does
 * the same with PyTorch.
 *
 *     build/accuracy */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 16, MICRO = 1000 };

/* The generator both programs draw from: 24 bits, in [0,1). */
static float draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 16777216.0f;
}

static double worse(double a, float got, double want)
{
    return fmax(a, fabs((double)got / want - 1));
}

static void measure(int rows, int equal)
{
    const gckpt_init zero = { 0, 0, 0 }, one = { 0, 0, 1 };
    const size_t n = (size_t)rows * COLUMNS;
    float *x = (float *)malloc(n * sizeof *x), *g = (float *)malloc(n * sizeof *g);
    int32_t *token = (int32_t *)calloc((size_t)rows, sizeof *token);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        x[i] = equal ? 0.1f * (float)(1 + i % COLUMNS) : 1 + draw(&state);
        g[i] = equal ? 0.3f : draw(&state);
    }
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(s, NULL);
    gckpt_shape rows_of = gckpt_shape2(MICRO, COLUMNS);
    gckpt_tensor *in = gckpt_input(graph, "x", GCKPT_F32, rows_of);
    gckpt_tensor *along = gckpt_input(graph, "g", GCKPT_F32, rows_of);
    gckpt_tensor *index = gckpt_input(graph, "token", GCKPT_I32, gckpt_shape1(MICRO));
    gckpt_pick pick[4];
    pick[0].tensor = gckpt_param(graph, "bias", gckpt_shape1(COLUMNS), zero);
    pick[1].tensor = gckpt_param(graph, "gain", gckpt_shape1(COLUMNS), one);
    pick[2].tensor = gckpt_param(graph, "weight", gckpt_shape2(COLUMNS, COLUMNS), zero);
    pick[3].tensor = gckpt_param(graph, "table", gckpt_shape2(1, COLUMNS), zero);
    gckpt_tensor *y = gckpt_linear(in, pick[2].tensor, pick[0].tensor);
    y = gckpt_add(y, gckpt_mul(in, pick[1].tensor));
    y = gckpt_add(y, gckpt_embed(pick[3].tensor, index));
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, along)), 1, 0 };
    gckpt_plan_desc desc;
    gckpt_hyper hyper;
    memset(&desc, 0, sizeof desc);
    memset(&hyper, 0, sizeof hyper);
    desc.optimiser = GCKPT_SGD;
    desc.batch = rows;
    desc.fetch = pick;
    desc.fetches = 4;
    for (int i = 0; i < 4; i++)
        pick[i].gradient = 1;
    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    const gckpt_feed feeds[3] = { { gckpt_id(in), x },
                                  { gckpt_id(along), g },
                                  { gckpt_id(index), token } };
    if (!e || gckpt_step(e, feeds, 3, rows, &hyper, NULL) != GCKPT_OK) {
        fprintf(stderr, "accuracy: %s\n",
                !plan ? gckpt_error_text(graph) : gckpt_error_text(e ? (void *)e : (void *)s));
        exit(1);
    }
    const float *got[4];
    double error[4] = { 0, 0, 0, 0 };
    for (int i = 0; i < 4; i++)
        got[i] = gckpt_fetch(e, gckpt_id(pick[i].tensor), 1);
    for (size_t j = 0; j < COLUMNS; j++) {
        double bias = 0, gain = 0, weight[COLUMNS] = { 0 };
        for (size_t at = j; at < n; at += COLUMNS) {
            bias += (double)g[at] / (double)n;
            gain += (double)g[at] * (double)x[at] / (double)n;
            for (size_t i = 0; i < COLUMNS; i++)
                weight[i] += (double)g[at] * (double)x[at - j + i] / (double)n;
        }
        error[0] = worse(error[0], got[0][j], bias);
        error[1] = worse(error[1], got[1][j], gain);
        error[3] = worse(error[3], got[3][j], bias);
        for (size_t i = 0; i < COLUMNS; i++)
            error[2] = worse(error[2], got[2][i * COLUMNS + j], weight[i]);
    }
    printf("%8d %-6s  bias %.1e  gain %.1e  weight %.1e  table %.1e\n", rows,
           equal ? "equal" : "random", error[0], error[1], error[2], error[3]);
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(graph);
    gckpt_store_free(s);
    free(x);
    free(g);
    free(token);
}

int main(void)
{
    for (int equal = 1; equal >= 0; equal--)
        for (int rows = MICRO; rows <= 1000 * MICRO; rows *= 10)
            measure(rows, equal);
    return 0;
}
