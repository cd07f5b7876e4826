/* graph.c - draws the graphs of two models as SVG pictures: a neuron with all values and
 * gradients, and a small GPT with its shapes. The second picture marks the tensors that get a
 * gradient when the position embedding is frozen.
 *
 *     cc -O2 -I. examples/graph.c -o graph && ./graph neuron.svg gpt.svg */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "pictures.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static size_t write_file(void *user, const void *bytes, size_t size)
{
    return fwrite(bytes, 1, size, (FILE *)user);
}

static int draw(const char *path, const gckpt_graph *g, const pictures_overlay *overlay)
{
    FILE *f = fopen(path, "w");
    int bad = f == NULL || pictures_graph(g, overlay, write_file, f) != GCKPT_OK;
    bad = (f != NULL && fclose(f) != 0) || bad;
    if (bad)
        fprintf(stderr, "graph: cannot write %s: %s\n", path, strerror(errno));
    return !bad;
}

static int failed(const void *object)
{
    fprintf(stderr, "graph: %s\n", gckpt_error_text(object));
    return 0;
}

/* Draws the graph of out = tanh(x1 w1 + x2 w2 + b), the neuron of micrograd, with the loss (out -
 * y)^2. */
static int neuron(const char *path)
{
    const float x_data[2] = { 2, 0.5f }, y_data[1] = { 1 };
    const gckpt_init weights = { 0, 1, 0 }, bias = { 0, 0, 0.25f };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 2));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape1(1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(2), weights);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(1), bias);
    gckpt_tensor *product = gckpt_name(gckpt_mul(x, w), "x w");
    gckpt_tensor *sum = gckpt_sum(product, 1);
    gckpt_tensor *n = gckpt_name(gckpt_add(sum, b), "n");
    gckpt_tensor *out = gckpt_name(gckpt_tanh(n), "out");
    const gckpt_term loss = { gckpt_mean_squared_error(out, y, NULL), 1, 0 };
    const gckpt_fetch_spec fetches[] = { { product, 0 }, { sum, 0 }, { n, 0 }, { out, 0 },
                                 { product, 1 }, { sum, 1 }, { n, 1 }, { out, 1 },
                                 { x, 1 },       { w, 1 },   { b, 1 } };
    gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = sizeof fetches / sizeof fetches[0] };
    const gckpt_feed feeds[2] = { { gckpt_id(x), x_data }, { gckpt_id(y), y_data } };
    gckpt_report report;
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *exec = plan ? gckpt_exec_new(plan, s, NULL) : NULL;
    int ok = exec ? gckpt_gradients(exec, feeds, 2, 1, &report) == GCKPT_OK || failed(exec)
                  : failed(plan ? (const void *)s : (const void *)g);
    const pictures_overlay overlay = { plan, exec, s, feeds, 2, &report };
    ok = ok && draw(path, g, &overlay);
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return ok;
}

enum { B = 8, T = 64, V = 256, C = 64, HEADS = 4 };

static gckpt_tensor *dense(gckpt_tensor *x, const char *name, int64_t in, int64_t out)
{
    const gckpt_init normal = { 0.02f, 0, 0 };
    gckpt_tensor *w = gckpt_param(gckpt_graph_of(x), name, gckpt_shape2(in, out), normal);
    return gckpt_linear(x, w, NULL);
}

/* Draws the graph of a small GPT: an embedding, a transformer block, and the transposed embedding
 * as LM head. */
static int gpt(const char *path)
{
    const gckpt_init normal = { 0.02f, 0, 0 }, one = { 0, 0, 1 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(B, T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(B, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_embed(table, tokens);
    x = gckpt_positions(x, gckpt_param(g, "places", gckpt_shape2(T, C), normal), 0);
    gckpt_tensor *h = gckpt_rmsnorm(x, gckpt_param(g, "gain1", gckpt_shape1(C), one), 0);
    gckpt_tensor *q = gckpt_name(dense(h, "wq", C, C), "q");
    gckpt_tensor *k = gckpt_name(dense(h, "wk", C, C), "k");
    gckpt_tensor *v = gckpt_name(dense(h, "wv", C, C), "v");
    x = gckpt_add(x, dense(gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 }), "wo", C, C));
    h = gckpt_rmsnorm(x, gckpt_param(g, "gain2", gckpt_shape1(C), one), 0);
    x = gckpt_add(x, dense(gckpt_gelu(dense(h, "up", C, 4 * C)), "down", 4 * C, C));
    const gckpt_term loss = { gckpt_linear_cross_entropy(x, table, targets, NULL), 1, 0 };
    gckpt_store_freeze(s, "places", 1);
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, NULL);
    const pictures_overlay overlay = { .plan = plan };
    int ok = plan ? draw(path, g, &overlay) : failed(g);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: graph NEURON.svg GPT.svg\n");
        return 2;
    }
    return neuron(argv[1]) && gpt(argv[2]) ? 0 : 1;
}
