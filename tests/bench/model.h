/* model.h - code that the benchmarks share: a GPT or an MLP of any size with random data, and a clock. */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H
#define _DEFAULT_SOURCE /* clock_gettime, fork, getrusage, strcasecmp */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "examples/tune.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    int layers, heads, dim, context, batch, vocabulary;
    /* nonzero: the loss is a linear layer and a cross-entropy, which keeps the logits and is faster; zero: it is
     * gckpt_linear_cross_entropy, which never has all logits at once */
    int logits;
    /* if nonzero, the model is an MLP of `inputs` inputs, `dim` hidden units and `vocabulary` classes instead of a
     * GPT */
    int inputs;
} size;

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph; /* NULL if fit_plan built a graph */
    gckpt_term loss;
    gckpt_plan *plan;
    gckpt_exec *exec;
    void *tokens; /* data of the first feed: int32_t tokens, or for an MLP float numbers */
    int32_t *targets;
    gckpt_feed feeds[2];
    int64_t parameters;
    const size *z;
} bench;

static clockid_t bench_clock = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values and returns their median. */
static inline double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

static const gckpt_backend *bench_backend; /* the backend of bench_new; NULL for the processor */
static gckpt_shard bench_shard;            /* the kind of shard that bench_open uses with several ranks */

/* Returns the predicted seconds of a step with the plan, from the costs of ops on the whole batch, in nanoseconds. */
static inline double predict(const gckpt_plan *p, const gckpt_cost *costs, uint64_t update)
{
    double ns = (double)update;
    gckpt_instruction in;
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++)
        if (in.kind <= GCKPT_BACKWARD)
            ns += (double)(in.kind == GCKPT_FORWARD ? costs[in.id].forward : costs[in.id].backward);
    return 1e-9 * ns;
}

static int bench_rotary; /* if nonzero, a GPT has rotary positions, no learned ones, and a dropout of 0.1 */

typedef struct {
    const size *z;
    int layer;
} place;

/* Returns a parameter: a matrix (a,b) of small random numbers, or if b is 0, a vector (a) of the number `constant`. */
static gckpt_tensor *weight(gckpt_graph *g, int layer, const char *part, int64_t a, int64_t b,
                            float constant)
{
    char name[48];
    const gckpt_init init = { b > 0 ? 0.02f : 0, 0, constant };
    snprintf(name, sizeof name, "%d.%s", layer, part);
    return gckpt_param(g, name, b > 0 ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

static gckpt_tensor *norm(gckpt_tensor *x, int layer, const char *gain, const char *bias, int64_t C)
{
    gckpt_tensor *by = weight(gckpt_graph_of(x), layer, gain, C, 0, 1);
    return gckpt_layernorm(x, by, weight(gckpt_graph_of(x), layer, bias, C, 0, 0), 0);
}

static gckpt_tensor *dense(gckpt_tensor *x, int layer, const char *part, const char *bias,
                           int64_t in, int64_t out)
{
    gckpt_tensor *w = weight(gckpt_graph_of(x), layer, part, in, out, 0);
    return gckpt_linear(x, w, weight(gckpt_graph_of(x), layer, bias, out, 0, 0));
}

static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    const int i = p->layer;
    const int64_t C = p->z->dim;
    gckpt_tensor *a = norm(x, i, "n1", "n1b", C);
    gckpt_tensor *q = dense(a, i, "q", "qb", C, C);
    gckpt_tensor *k = dense(a, i, "k", "kb", C, C);
    gckpt_tensor *v = dense(a, i, "v", "vb", C, C);
    const float drop = bench_rotary ? 0.1f : 0;
    const gckpt_rotary_desc turned = { .heads = p->z->heads }; /* named, as launches.cu compiles this as C++ */
    const gckpt_attention_desc causal = { .heads = p->z->heads, .causal = 1 };
    if (bench_rotary)
        q = gckpt_rotary(q, &turned), k = gckpt_rotary(k, &turned);
    a = gckpt_attention(q, k, v, &causal);
    x = gckpt_add(x, gckpt_dropout(dense(a, i, "proj", "projb", C, C), drop));
    a = gckpt_gelu(dense(norm(x, i, "n2", "n2b", C), i, "fc", "fcb", C, 4 * C));
    return gckpt_add(x, gckpt_dropout(dense(a, i, "out", "outb", 4 * C, C), drop));
}

/* Builds a GPT-2 and returns its logits: learned positions, biases in all layers, the head tied to the embedding. */
static gckpt_tensor *gpt_logits(gckpt_graph *g, bench *b, int64_t rows, gckpt_tensor **table)
{
    const size *z = b->z;
    const int64_t T = z->context, C = z->dim;
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    b->feeds[0].input = gckpt_id(in);
    *table = weight(g, -1, "table", z->vocabulary, C, 0);
    gckpt_tensor *x = gckpt_embed(*table, in);
    if (!bench_rotary)
        x = gckpt_positions(x, weight(g, -1, "places", T, C, 0), 0);
    for (int i = 0; i < z->layers; i++) {
        place p = { z, i };
        x = gckpt_checkpoint(block, x, &p);
    }
    return norm(x, -1, "n", "nb", C);
}

/* A fit_build_fn that builds the model of the bench `user`. */
static int bench_build(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    bench *b = (bench *)user;
    const size *z = b->z;
    gckpt_tensor *x, *target, *table = NULL;
    if (z->inputs > 0) {
        x = gckpt_input(g, "pixels", GCKPT_F32, gckpt_shape2(rows, z->inputs));
        b->feeds[0].input = gckpt_id(x);
        x = gckpt_relu(dense(x, 0, "w", "b", z->inputs, z->dim));
        x = dense(x, 1, "w", "b", z->dim, z->vocabulary);
        target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape1(rows));
    } else {
        x = gpt_logits(g, b, rows, &table);
        target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, z->context));
        if (z->logits)
            x = gckpt_linear_transposed(x, table, NULL);
    }
    term->loss = z->inputs > 0 || z->logits ? gckpt_cross_entropy(x, target, NULL, 0)
                                            : gckpt_linear_cross_entropy(x, table, target, NULL);
    term->weight = 1;
    b->feeds[1].input = gckpt_id(target);
    return 1;
}

/* Makes store, graph, plan and executor. With a budget, fit_plan also chooses the micro-batch. Returns 0 after
 * printing an error. */
static int bench_open(bench *b, const size *z, const gckpt_plan_desc *desc,
                      const gckpt_exec_desc *how)
{
    const int64_t tokens = z->inputs > 0 ? z->batch : (int64_t)z->batch * z->context;
    const int64_t fed = z->inputs > 0 ? tokens * z->inputs : tokens;
    b->z = z;
    b->store = gckpt_store_new(NULL);
    if (how != NULL && how->transport != NULL)
        gckpt_store_ranks(b->store, how->transport->rank, how->transport->size, bench_shard);
    if (desc->budget > 0) {
        b->plan = fit_plan(b->store, bench_build, b, z->batch, desc, NULL, NULL);
    } else {
        b->graph = gckpt_graph_new(b->store, NULL);
        bench_build(b->graph, z->batch, &b->loss, b);
        b->plan = gckpt_plan_new(b->graph, &b->loss, 1, desc);
    }
    b->exec = b->plan == NULL ? NULL : gckpt_exec_new(b->plan, b->store, how);
    b->tokens = malloc((size_t)fed * sizeof(int32_t)); /* a float is as large */
    b->targets = (int32_t *)malloc((size_t)tokens * sizeof(int32_t));
    if (b->exec == NULL || b->tokens == NULL || b->targets == NULL) {
        fprintf(stderr, "bench: %s\n",
                gckpt_error_text(b->plan == NULL && b->graph != NULL ? (void *)b->graph
                                                                     : (void *)b->store));
        return 0;
    }
    for (int64_t i = 0; i < fed; i++)
        if (z->inputs > 0)
            ((float *)b->tokens)[i] = (float)(i * 7919 % 256) / 256;
        else
            ((int32_t *)b->tokens)[i] = (int32_t)((i * 7919 + i / 13) % z->vocabulary);
    for (int64_t i = 0; i < tokens; i++)
        b->targets[i] = (int32_t)((i * 104729 + i / 7) % z->vocabulary);
    b->feeds[0].data = b->tokens;
    b->feeds[1].data = b->targets;
    gckpt_parameter p;
    b->parameters = 0;
    for (int i = 0; gckpt_store_peek(b->store, i, &p) == GCKPT_OK; i++)
        b->parameters += p.elements;
    return 1;
}

/* AdamW; one micro-batch. */
static inline int bench_new(bench *b, const size *z, gckpt_mode mode, int threads)
{
    gckpt_plan_desc desc = { .mode = mode, .threads = threads, .backend = bench_backend };
    gckpt_exec_desc how = { .backend = bench_backend };
    return bench_open(b, z, &desc, &how);
}

/* Returns the least seconds of a step within about `seconds` seconds, not counting the first step; or a negative
 * number on an error. */
static inline double bench_step(bench *b, const size *z, double seconds)
{
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    double best = 1e30, start = now();
    for (int i = 0; i < 2 || now() - start < seconds; i++) {
        double t = now();
        if (gckpt_step(b->exec, b->feeds, 2, z->batch, &adamw, NULL) != GCKPT_OK) {
            fprintf(stderr, "bench: %s\n", gckpt_error_text(b->exec));
            return -1;
        }
        t = now() - t;
        if (i > 0 && t < best)
            best = t;
    }
    return best;
}

static void bench_free(bench *b)
{
    gckpt_exec_free(b->exec);
    gckpt_plan_free(b->plan);
    gckpt_graph_free(b->graph);
    gckpt_store_free(b->store);
    free(b->tokens);
    free(b->targets);
}
#endif
