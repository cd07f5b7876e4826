/* flash.c - a small training or inference program for a device, chosen by SET. tests/firmware/size.sh measures its
 * flash, memory and stack (docs/benchmarks/device.tsv). Without DEVICE, the program prints its plan as C. With DEVICE,
 * it runs that plan (TABLE), or a plan that it makes itself (PLANS). With STACK, it also
 * prints how many bytes of stack it used. */
#if defined(DEVICE) && !defined(GCKPT_SMALL)
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#define GCKPT_NO_FAST
#endif
#if defined(DEVICE) && !defined(GCKPT_NO_QUANT)
#define GCKPT_NO_QUANT
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#ifdef TABLE
#include TABLE
#endif
#if !defined(DEVICE) || defined(STACK)
#include <stdio.h>
#endif
#include <string.h>

enum { DENSE, CLASSIFIER, TRANSFORMER, GENERATOR, CONVOLUTIONS, RECURRENT, AUTOENCODER };
#define INFERS (SET == 3 || SET == 6) /* the generator and the autoencoder run inference only */
enum { ROWS = 4, IN = 16, HIDDEN = 32, CLASSES = 4, WORDS = 32, TIME = 8, C = 16, CAPACITY = 32, SIDE = 8 };

#if !defined(DEVICE) || defined(PLANS)
typedef gckpt_tensor T;

static T *param(gckpt_graph *g, const char *name, int64_t a, int64_t b, float normal)
{
    gckpt_init init = { normal, 0, 0 };
    return gckpt_param(g, name, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

static T *dense(T *x, const char *w, const char *b, int64_t in, int64_t out)
{
    gckpt_graph *g = gckpt_graph_of(x);
    T *weight = param(g, w, in, out, 0.2f);
    return gckpt_linear(x, weight, param(g, b, out, 0, 0));
}

static T *transformer(gckpt_graph *g, T *x, int64_t capacity)
{
    T *table = param(g, "words", WORDS, C, 0.1f), *h = gckpt_embed(table, x);
    T *places = param(g, "places", capacity ? CAPACITY : TIME, C, 0.1f);
    h = gckpt_positions(h, places, 0);
    T *n = gckpt_layernorm(h, NULL, NULL, 0), *q = gckpt_linear(n, param(g, "q", C, C, 0.2f), NULL);
    T *k = gckpt_linear(n, param(g, "k", C, C, 0.2f), NULL), *v = gckpt_linear(n, param(g, "v", C, C, 0.2f), NULL);
    if (capacity)
        k = gckpt_cache(k, capacity), v = gckpt_cache(v, capacity);
    h = gckpt_add(h, gckpt_linear(gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }),
                                  param(g, "o", C, C, 0.2f), NULL));
    n = gckpt_gelu(dense(gckpt_layernorm(h, NULL, NULL, 0), "up", "up.b", C, 2 * C));
    return gckpt_layernorm(gckpt_add(h, dense(n, "down", "down.b", 2 * C, C)), NULL, NULL, 0);
}

/* Classifies images (ROWS,SIDE,SIDE,1) or, if SET is RECURRENT, signals (ROWS,TIME,C); returns logits of CLASSES
 * classes. */
static T *classify(gckpt_graph *g, T *x)
{
    const gckpt_init normal = { 0.2f, 0, 0 };
    if (SET == RECURRENT) {
        T *wx = param(g, "wx", C, 3 * C, 0.2f), *bx = param(g, "bx", 3 * C, 0, 0);
        T *wh = param(g, "wh", C, 3 * C, 0.2f), *bh = param(g, "bh", 3 * C, 0, 0);
        return dense(gckpt_mean(gckpt_gru(x, wx, bx, wh, bh, NULL), 1), "w", "b", C, CLASSES);
    }
    const gckpt_window same = { .padding = { 1, 1 } };
    const gckpt_window half = { .stride = { 2, 2 }, .padding = { 1, 1 } };
    T *w1 = gckpt_param(g, "w1", gckpt_shape4(3, 3, 1, C / 2), normal), *b1 = param(g, "b1", C / 2, 0, 0);
    T *h = gckpt_relu(gckpt_conv2d(x, w1, b1, &same));
    T *w2 = gckpt_param(g, "w2", gckpt_shape4(3, 3, C / 2, C), normal), *b2 = param(g, "b2", C, 0, 0);
    h = gckpt_relu(gckpt_conv2d(h, w2, b2, &half));
    return dense(gckpt_global_average_pool(h), "w", "b", C, CLASSES);
}

static gckpt_term build(gckpt_graph *g, gckpt_fetch_spec *fetch)
{
    const int words = SET == TRANSFORMER || SET == GENERATOR, batch = INFERS ? 1 : ROWS;
    gckpt_shape tokens = gckpt_shape2(batch, SET == GENERATOR ? 1 : TIME);
    gckpt_shape rows = SET == CONVOLUTIONS ? gckpt_shape4(ROWS, SIDE, SIDE, 1)
                       : SET == RECURRENT  ? gckpt_shape3(ROWS, TIME, C)
                                           : gckpt_shape2(batch, IN);
    T *x = gckpt_input(g, "x", words ? GCKPT_I32 : GCKPT_F32, words ? tokens : rows);
    gckpt_term term = { NULL, 1, 0 };
    if (SET == GENERATOR) {
        T *h = transformer(g, x, CAPACITY);
        fetch->tensor = gckpt_name(gckpt_linear_transposed(h, param(g, "words", WORDS, C, 0.1f), NULL), "y");
    } else if (SET == AUTOENCODER) {
        T *h = gckpt_tanh(dense(x, "w1", "b1", IN, 8));
        h = gckpt_tanh(dense(gckpt_tanh(dense(h, "w2", "b2", 8, 3)), "w3", "b3", 3, 8));
        fetch->tensor = gckpt_name(dense(h, "w4", "b4", 8, IN), "y");
    } else if (SET == TRANSFORMER) {
        T *y = gckpt_input(g, "y", GCKPT_I32, tokens), *h = transformer(g, x, 0);
        term.loss = gckpt_linear_cross_entropy(h, param(g, "words", WORDS, C, 0.1f), y, NULL);
    } else {
        T *h = SET >= CONVOLUTIONS ? classify(g, x)
                                   : dense(gckpt_relu(dense(x, "w1", "b1", IN, HIDDEN)), "w2", "b2", HIDDEN, CLASSES);
        T *y = gckpt_input(g, "y", SET == DENSE ? GCKPT_F32 : GCKPT_I32,
                           SET == DENSE ? gckpt_shape2(ROWS, CLASSES) : gckpt_shape1(ROWS));
        term.loss = SET == DENSE ? gckpt_mean_squared_error(h, y, NULL) : gckpt_cross_entropy(h, y, NULL, 0);
    }
    return term;
}

static gckpt_plan *plan(gckpt_graph *g, const gckpt_memory *memory)
{
    gckpt_fetch_spec fetch = { NULL, 0 };
    gckpt_term term = build(g, &fetch);
    static gckpt_plan_desc desc;
    desc.kernels.plain = 1;
    desc.optimiser = SET == DENSE ? GCKPT_SGD : GCKPT_ADAMW;
    desc.mode = INFERS ? GCKPT_INFERENCE : GCKPT_AUTO;
    desc.fetch.specs = &fetch;
    desc.fetch.count = INFERS;
    if (memory)
        desc.memory = *memory;
    return gckpt_plan_new(g, &term, !INFERS, &desc);
}
#endif

#ifndef DEVICE
static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_plan *p = plan(g, NULL);
    if (!p)
        fprintf(stderr, "flash: %s\n", gckpt_error_text(g));
    return gckpt_plan_c(p, "small", to_stdout, NULL) != GCKPT_OK;
}
#else
static double zeros[512]; /* the inputs' data, since only sizes are measured */

static int train(const gckpt_plan *p, gckpt_store *s, const gckpt_memory *memory, int x, int y)
{
    static gckpt_exec_desc bind;
    const gckpt_feed feeds[2] = { { x, zeros }, { y, zeros } };
    bind.memory = *memory;
#if INFERS /* a build without training cannot initialise weights; the training programs fetch nothing */
    gckpt_parameter weights;
    for (int i = 0; gckpt_store_get(s, i, &weights) == GCKPT_OK; i++)
        memset(weights.values, 0, (size_t)weights.elements * sizeof *weights.values);
#endif
    gckpt_exec *e = gckpt_exec_new(p, s, &bind);
#if INFERS
    return e && gckpt_forward(e, feeds, 1, 1, NULL) == GCKPT_OK && gckpt_fetch(e, y, 0);
#else
    const gckpt_hyper hyper = { 0.01f, 0, 0, 0, 0, 0, 1 };
    return e && gckpt_step(e, feeds, 2, ROWS, &hyper, NULL) == GCKPT_OK;
#endif
}

#ifdef TABLE
static char store_block[small_store_bytes], exec_block[small_exec_bytes];
static int run_training(void)
{
    const gckpt_store_desc desc = { { NULL, NULL, store_block, sizeof store_block }, 0 };
    const gckpt_memory memory = { NULL, NULL, exec_block, sizeof exec_block };
    gckpt_store *s = gckpt_store_new(&desc);
    return s && gckpt_plan_params(&small, s) == GCKPT_OK && train(&small, s, &memory, small_x, small_y);
}
#else
static char store_block[1 << 15], graph_block[1 << 16], plan_block[1 << 20], exec_block[1 << 17];
static int run_training(void)
{
    const gckpt_store_desc desc = { { NULL, NULL, store_block, sizeof store_block }, 0 };
    const gckpt_memory memory[3] = { { NULL, NULL, graph_block, sizeof graph_block },
                                     { NULL, NULL, plan_block, sizeof plan_block },
                                     { NULL, NULL, exec_block, sizeof exec_block } };
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_graph *g = gckpt_graph_new(s, &memory[0]);
    gckpt_plan *p = plan(g, &memory[1]);
    return train(p, s, &memory[2], 0, 1);
}
#endif

#ifdef STACK
/* deepest(1) fills the stack below the function with 0xa5. deepest(0) returns how many bytes of that stack have been
 * used since. */
enum { DEEP = 1 << 16 };
static __attribute__((noinline)) size_t deepest(int paint)
{
    volatile unsigned char below[DEEP];
    size_t n = 0;
    if (paint)
        for (size_t i = 0; i < DEEP; i++)
            below[i] = 0xa5;
    while (n < DEEP && below[n] == 0xa5)
        n++;
    return DEEP - n;
}

int main(void)
{
    (void)deepest(1);
    const int fine = run_training();
    printf("%lu\n", (unsigned long)deepest(0));
    return !fine;
}
#else
int main(void) { return !run_training(); }
#endif
#endif
