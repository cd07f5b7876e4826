/* model.h - what the benchmarks share: a GPT of any size with made-up tokens, and a clock. */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H
#define _POSIX_C_SOURCE 200809L
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    int layers, heads, dim, context, batch, vocabulary;
} size;

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term loss;
    gckpt_plan *plan;
    gckpt_exec *exec;
    int32_t *tokens, *targets;
    gckpt_feed feeds[2];
    int64_t parameters;
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    const size *z;
    int layer;
} place;

static gckpt_tensor *weight(gckpt_graph *g, const place *p, const char *part, int64_t a, int64_t b)
{
    char name[48];
    const gckpt_init normal = { 0.02f, 0, 0 }, zero = { 0, 0, 0 };
    snprintf(name, sizeof name, "%d.%s", p->layer, part);
    return b > 0 ? gckpt_param(g, name, gckpt_shape2(a, b), normal)
                 : gckpt_param(g, name, gckpt_shape1(a), zero);
}

static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    const int64_t C = p->z->dim;
    gckpt_tensor *a = gckpt_layernorm(x, NULL, weight(g, p, "n1", C, 0));
    gckpt_tensor *q = gckpt_linear(a, weight(g, p, "q", C, C), weight(g, p, "qb", C, 0));
    gckpt_tensor *k = gckpt_linear(a, weight(g, p, "k", C, C), weight(g, p, "kb", C, 0));
    gckpt_tensor *v = gckpt_linear(a, weight(g, p, "v", C, C), weight(g, p, "vb", C, 0));
    a = gckpt_attention(q, k, v, p->z->heads, 1);
    x = gckpt_add(x, gckpt_linear(a, weight(g, p, "proj", C, C), weight(g, p, "projb", C, 0)));
    a = gckpt_layernorm(x, NULL, weight(g, p, "n2", C, 0));
    a = gckpt_gelu(gckpt_linear(a, weight(g, p, "fc", C, 4 * C), weight(g, p, "fcb", 4 * C, 0)));
    return gckpt_add(x, gckpt_linear(a, weight(g, p, "out", 4 * C, C), weight(g, p, "outb", C, 0)));
}

/* 0 after saying what went wrong. AdamW; one micro-batch. */
static int bench_new(bench *b, const size *z, gckpt_mode mode, int threads)
{
    const int64_t B = z->batch, T = z->context, V = z->vocabulary, C = z->dim;
    const gckpt_init normal = { 0.02f, 0, 0 };
    b->store = gckpt_store_new(NULL);
    gckpt_graph *g = b->graph = gckpt_graph_new(b->store, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(B, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(B, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_positions(gckpt_embed(table, in),
                                      gckpt_param(g, "places", gckpt_shape2(T, C), normal));
    for (int i = 0; i < z->layers; i++) {
        place p = { z, i };
        x = gckpt_checkpoint(block, x, &p);
    }
    x = gckpt_layernorm(x, NULL, NULL);
    b->loss.loss = gckpt_linear_cross_entropy(x, table, target);
    b->loss.weight = 1;
    gckpt_plan_desc desc = { .mode = mode, .threads = threads };
    b->plan = gckpt_plan_new(g, &b->loss, 1, &desc);
    b->exec = b->plan == NULL ? NULL : gckpt_exec_new(b->plan, b->store, NULL);
    b->tokens = malloc((size_t)(B * T) * sizeof(int32_t));
    b->targets = malloc((size_t)(B * T) * sizeof(int32_t));
    if (b->exec == NULL || b->tokens == NULL || b->targets == NULL) {
        fprintf(stderr, "bench: %s\n",
                gckpt_error_text(b->plan == NULL ? (void *)g : (void *)b->store));
        return 0;
    }
    for (int64_t i = 0; i < B * T; i++) {
        b->tokens[i] = (int32_t)((i * 7919 + i / 13) % V);
        b->targets[i] = (int32_t)((i * 104729 + i / 7) % V);
    }
    b->feeds[0].input = gckpt_id(in);
    b->feeds[0].data = b->tokens;
    b->feeds[1].input = gckpt_id(target);
    b->feeds[1].data = b->targets;
    gckpt_parameter p;
    b->parameters = 0;
    for (int i = 0; gckpt_store_get(b->store, i, &p) == GCKPT_OK; i++)
        b->parameters += p.elements;
    return 1;
}

/* Seconds of a step: the least after a first one, until about `seconds` are spent; < 0:
 * error. */
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
