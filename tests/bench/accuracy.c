/* accuracy.c - measures the accuracy of gradients that are summed over many rows, and of elementwise ops, compared
 * with binary64 (make accuracy). Equal rows are the worst case, since each addition is then rounded the same way.
 * accuracy_torch.py measures PyTorch.
 *
 *     build/accuracy [STEP]     tests every STEP-th float in elementwise ops (default 61); 1 takes some minutes
 */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 16, MICRO = 1000 };

/* Returns a random number of 24 bits in [0,1); accuracy_torch.py has the same sequence. */
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
    gckpt_fetch_spec fetch[4];
    fetch[0].tensor = gckpt_param(graph, "bias", gckpt_shape1(COLUMNS), zero);
    fetch[1].tensor = gckpt_param(graph, "gain", gckpt_shape1(COLUMNS), one);
    fetch[2].tensor = gckpt_param(graph, "weight", gckpt_shape2(COLUMNS, COLUMNS), zero);
    fetch[3].tensor = gckpt_param(graph, "table", gckpt_shape2(1, COLUMNS), zero);
    gckpt_tensor *y = gckpt_linear(in, fetch[2].tensor, fetch[0].tensor);
    y = gckpt_add(y, gckpt_mul(in, fetch[1].tensor));
    y = gckpt_add(y, gckpt_embed(fetch[3].tensor, index));
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, along)), 1, 0 };
    gckpt_plan_desc desc;
    gckpt_hyper hyper;
    memset(&desc, 0, sizeof desc);
    memset(&hyper, 0, sizeof hyper);
    desc.optimiser = GCKPT_SGD;
    desc.batch = rows;
    desc.fetch.specs = fetch;
    desc.fetch.count = 4;
    for (int i = 0; i < 4; i++)
        fetch[i].gradient = 1;
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
        got[i] = gckpt_fetch(e, gckpt_id(fetch[i].tensor), 1);
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
    printf("| %d | %s | %.1e | %.1e | %.1e | %.1e |\n", rows, equal ? "equal" : "random", error[0], error[1], error[2],
           error[3]);
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(graph);
    gckpt_store_free(s);
    free(x);
    free(g);
    free(token);
}

/* ---- elementwise ops over all finite floats, and their gradients ---- */
static gckpt_tensor *softplus_of(gckpt_tensor *x) { return gckpt_activation(x, GCKPT_SOFTPLUS, 0); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double minus_sin(double x) { return -sin(x); }

/* Returns the distance of `got` from `want` in units in the last place of a float near `want`. */
static double ulps(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static void measure_unary(const char *name, gckpt_tensor *(*op)(gckpt_tensor *x), double (*value)(double x),
                  double (*slope)(double x), uint64_t step)
{
    enum { N = 1 << 20 };
    float *x = (float *)malloc(N * sizeof *x);
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(s, NULL);
    gckpt_fetch_spec fetch[2] = { { NULL, 0 }, { gckpt_input(graph, "x", GCKPT_F32, gckpt_shape1(N)), 1 } };
    fetch[0].tensor = op(fetch[1].tensor);
    const gckpt_term term = { gckpt_sum_loss(fetch[0].tensor), 1, 0 };
    const gckpt_feed feed = { gckpt_id(fetch[1].tensor), x };
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.fetch.specs = fetch;
    desc.fetch.count = 2;
    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    double worst[2] = { 0, 0 };
    for (uint64_t next = 0; next <= UINT32_MAX;) {
        for (int i = 0; i < N; i++) {
            const uint32_t bits = (uint32_t)(next <= UINT32_MAX ? next : 0);
            memcpy(&x[i], &bits, sizeof bits);
            x[i] = x[i] - x[i] == 0 ? x[i] : 0;
            next += step;
        }
        if (gckpt_gradients(e, &feed, 1, N, NULL) != GCKPT_OK) {
            fprintf(stderr, "accuracy: %s\n", e ? gckpt_error_text(e) : gckpt_error_text(graph));
            exit(1);
        }
        for (int k = 0; k < 2; k++) {
            const float *got = gckpt_fetch(e, gckpt_id(fetch[k].tensor), k);
            for (int i = 0; i < N; i++) {
                const double apart = ulps(got[i], (k ? slope : value)((double)x[i]));
                if (apart > worst[k])
                    worst[k] = apart;
            }
        }
    }
    printf("| %s | %.2f | %.2f |\n", name, worst[0], worst[1]);
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(graph);
    gckpt_store_free(s);
    free(x);
}

int main(int argc, char **argv)
{
    const uint64_t step = argc > 1 && atoi(argv[1]) > 0 ? (uint64_t)atoi(argv[1]) : 61;
    printf("| function | value, ulp | gradient, ulp |\n|---|--:|--:|\n");
    measure_unary("sin", gckpt_sin, sin, cos, step);
    measure_unary("cos", gckpt_cos, cos, minus_sin, step);
    measure_unary("softplus", softplus_of, softplus, sigmoid, step);
    printf("\n| rows | | bias | gain | weight | table row |\n|--:|---|--:|--:|--:|--:|\n");
    for (int equal = 1; equal >= 0; equal--)
        for (int rows = MICRO; rows <= 1000 * MICRO; rows *= 10)
            measure(rows, equal);
    return 0;
}
