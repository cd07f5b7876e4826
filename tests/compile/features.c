/* features.c - tests a build that omits some features (manual, 4). The program trains a small model, and a GPT if the
 * build has attention; calls a function of each feature that the build has; and checks that a use of a missing feature fails at run time with an error that
 * names the feature's switch. A build without training (GCKPT_NO_TRAINING) runs the model forward with given weights.
 *
 * The program prints, of each model, a hash of a forward's loss and a hash of the trained weights, then a line for each
 * feature. tests/compile/features.sh compiles it with many sets of switches and compares the hashes with those of the
 * complete build. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>
#include <string.h>

enum { ROWS = 2, BATCH = 4, T = 6, C = 8, V = 20 };
static int failed;
#ifndef GCKPT_NO_ATTENTION
static int attends; /* nonzero if the tested model is a GPT */
#endif

static void expect(int holds, const char *what, const void *object)
{
    if (holds)
        return;
    printf("FAIL %s: %s\n", what, object ? gckpt_error_text(object) : "");
    failed = 1;
}

static gckpt_tensor *weight(gckpt_tensor *x, const char *name, int64_t rows, int64_t columns)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    return gckpt_param(gckpt_graph_of(x), name, gckpt_shape2(rows, columns), init);
}

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_tensor *in, *target, *h;
    gckpt_term term;
} model;

/* Builds the tested model: tokens of shape (rows,T) and a cross-entropy loss. */
static int build(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    m->graph = g;
    m->in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    m->target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_embed(table, m->in);
    for (int i = 0; i < 3; i++) {
        const char *names[3][3] = { { "q0", "up0", "down0" }, { "q1", "up1", "down1" }, { "q2", "up2", "down2" } };
        gckpt_tensor *n = gckpt_layernorm(x, NULL, NULL, 0);
        gckpt_tensor *q = gckpt_linear(n, weight(x, names[i][0], C, C), NULL);
#ifndef GCKPT_NO_ATTENTION
        if (attends)
            q = gckpt_attention(gckpt_rotary(q, &(gckpt_rotary_desc){ .heads = 2 }), n, n,
                                &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
#endif
        x = gckpt_add(x, q);
        n = gckpt_gelu(gckpt_linear(gckpt_rmsnorm(x, NULL, 0), weight(x, names[i][1], C, 4 * C), NULL));
        x = gckpt_add(x, gckpt_linear(gckpt_dropout(n, 0.1f), weight(x, names[i][2], 4 * C, C), NULL));
    }
    m->h = x;
    x = gckpt_layernorm(x, NULL, NULL, 0);
#ifndef GCKPT_NO_LINEAR_LOSS
    term->loss = gckpt_linear_cross_entropy(x, table, m->target, NULL);
#else /* the same bits */
    term->loss = gckpt_cross_entropy(gckpt_linear_transposed(x, table, NULL), m->target, NULL, 0);
#endif
    term->weight = 1;
    term->regulariser = 0;
    return 1;
}

/* Sets the weights to fixed values, as loading a file would: a build without training cannot initialise weights. */
static void set_values(gckpt_store *s)
{
    gckpt_parameter p;
    for (int i = 0; gckpt_store_get(s, i, &p) == GCKPT_OK; i++)
        for (int k = 0; k < p.elements; k++)
            p.values[k] = (float)((k * 37 + i * 11) % 101 - 50) / 150.0f;
}

/* Returns the gckpt_plan_desc that most tests start from. */
static gckpt_plan_desc usual(void)
{
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
#ifdef GCKPT_NO_TRAINING
    desc.mode = GCKPT_INFERENCE;
#endif
    return desc;
}

static model model_new(int64_t rows)
{
    model m;
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, 7 };
    memset(&m, 0, sizeof m);
    m.store = gckpt_store_new(&seed);
    build(gckpt_graph_new(m.store, NULL), rows, &m.term, &m);
#ifdef GCKPT_NO_TRAINING
    set_values(m.store);
#endif
    return m;
}

static void model_free(model *m)
{
    gckpt_graph_free(m->graph);
    gckpt_store_free(m->store);
}

static int32_t tokens[BATCH * T], targets[BATCH * T];

/* Returns the bits of the loss of one forward, or 0 after an error. */
static uint64_t forward(model *m, const gckpt_plan *p, const char *what)
{
    gckpt_exec *e = gckpt_exec_new(p, m->store, NULL);
    expect(p && e, what, p ? (const void *)m->store : m->graph);
    gckpt_feed feeds[2] = { { gckpt_id(m->in), tokens }, { gckpt_id(m->target), targets } };
    gckpt_report report = { 0, 0, 0, 0 };
    uint64_t bits;
    expect(e && gckpt_forward(e, feeds, 2, BATCH, &report) == GCKPT_OK, what, e);
    gckpt_exec_free(e);
    memcpy(&bits, &report.loss, sizeof bits);
    return bits;
}

#ifdef GCKPT_NO_TRAINING
#define train forward
#else
/* Runs three training steps. Returns the hash of the weights, or 0 after an error. */
static uint64_t train(model *m, const gckpt_plan *p, const char *what)
{
    gckpt_exec *e = gckpt_exec_new(p, m->store, NULL);
    expect(p && e, what, p ? (const void *)m->store : m->graph);
    gckpt_feed feeds[2] = { { gckpt_id(m->in), tokens }, { gckpt_id(m->target), targets } };
    gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    hyper.clip = 0.5f;
    for (int i = 0; i < 3 && e; i++)
        expect(gckpt_step(e, feeds, 2, BATCH, &hyper, NULL) == GCKPT_OK, what, e);
    gckpt_exec_free(e);
    return e ? gckpt_store_hash(m->store) : 0;
}
#endif

/* Plans a new model with `desc` and trains it. Returns the hash of the weights, or 0 if planning fails; then the error
 * text must contain `refusal`. */
static uint64_t trained(gckpt_plan_desc desc, const char *what, const char *refusal)
{
    model m = model_new(ROWS);
    desc.batch = BATCH;
    gckpt_plan *p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    uint64_t hash = 0;
    if (refusal)
        expect(!p && strstr(gckpt_error_text(m.graph), refusal), what, m.graph);
    else
        hash = train(&m, p, what);
    gckpt_plan_free(p);
    model_free(&m);
    return hash;
}

#if !defined(GCKPT_NO_ACTIVATIONS) || !defined(GCKPT_NO_AXES) || !defined(GCKPT_NO_RECURRENT) || \
    !defined(GCKPT_NO_IMAGES) || !defined(GCKPT_NO_LOSSES)
/* Plans a loss of g, the only graph of the store, and runs one step. */
static void run_loss(gckpt_graph *g, gckpt_store *s, gckpt_tensor *loss, const gckpt_feed *feeds, int count,
                     const char *what)
{
    gckpt_term term = { loss, 1, 0 };
    gckpt_plan_desc desc = usual();
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    set_values(s);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
#ifdef GCKPT_NO_TRAINING
    expect(e && gckpt_forward(e, feeds, count, ROWS, NULL) == GCKPT_OK, what, e ? (const void *)e : g);
#else
    gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    expect(e && gckpt_step(e, feeds, count, ROWS, &hyper, NULL) == GCKPT_OK, what, e ? (const void *)e : g);
#endif
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    printf("%s\n", what);
}
#endif

typedef struct {
    size_t size, at;
    unsigned char bytes[1 << 16]; /* aligned, because gckpt_store_map requires it */
} memory_file;

size_t put(void *user, const void *bytes, size_t size);
size_t put(void *user, const void *bytes, size_t size)
{
    memory_file *f = (memory_file *)user;
    if (size > sizeof f->bytes - f->size)
        return 0;
    memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
    return size;
}

size_t get(void *user, void *bytes, size_t size);
size_t get(void *user, void *bytes, size_t size)
{
    memory_file *f = (memory_file *)user;
    size = size < f->size - f->at ? size : f->size - f->at;
    memcpy(bytes, f->bytes + f->at, size);
    f->at += size;
    return size;
}

static memory_file file;

/* Prints plans and weights, writes and reads store files. */
static void files(uint64_t hash)
{
    model m = model_new(ROWS);
    gckpt_plan_desc desc = usual();
    desc.batch = BATCH;
    gckpt_plan *p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    file.size = file.at = 0;
#ifndef GCKPT_NO_EXPORT
    expect(p && gckpt_plan_c(p, "plan", put, &file) == GCKPT_OK, "tables", m.graph);
    printf("EXPORT\n");
#endif
#ifndef GCKPT_NO_NOTES
    expect(gckpt_store_set_note(m.store, "key", "value") == GCKPT_OK, "notes", m.store);
    expect(!strcmp(gckpt_store_note(m.store, "key"), "value"), "notes", m.store);
    printf("NOTES\n");
#endif
    expect(train(&m, p, "a plan that was read") == hash, "a plan that was read", m.store);
#ifndef GCKPT_NO_FILES
    file.size = file.at = 0;
    expect(gckpt_store_write(m.store, put, &file, NULL) == GCKPT_OK, "files", m.store);
    gckpt_store *other = gckpt_store_new(NULL);
    expect(gckpt_store_read(other, get, &file, file.size, NULL) == GCKPT_OK &&
               gckpt_store_hash(other) == gckpt_store_hash(m.store), "files",
           other);
    gckpt_store_free(other);
    gckpt_file_desc narrow; /* parameters mapped as bf16 are frozen; builds without quantisation refuse the type */
    memset(&narrow, 0, sizeof narrow);
    narrow.values_only = 1;
    narrow.storage = GCKPT_STORAGE_BF16;
    file.size = file.at = 0;
#ifdef GCKPT_NO_QUANT
    expect(gckpt_store_write(m.store, put, &file, &narrow) == GCKPT_E_ARG, "a file in bf16", m.store);
#else
    expect(gckpt_store_write(m.store, put, &file, &narrow) == GCKPT_OK, "a file in bf16", m.store);
    gckpt_parameter first;
    other = gckpt_store_new(NULL);
    expect(gckpt_store_map(other, file.bytes, file.size, NULL) == GCKPT_OK &&
               gckpt_store_peek(other, 0, &first) == GCKPT_OK && first.frozen,
           "a mapped file in bf16", other);
    gckpt_store_free(other);
#endif
    printf("FILES\n");
#endif
    gckpt_plan_free(p);
    model_free(&m);
}

/* Plans under a budget that only a plan with a fused group of ops meets. */
static void row_tiles(void)
{
    gckpt_plan_desc desc;
    gckpt_init init = { 0.1f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, 64, 4));
    x = gckpt_relu(gckpt_linear(x, gckpt_param(g, "up", gckpt_shape2(4, 64), init), NULL));
    x = gckpt_linear(x, gckpt_param(g, "down", gckpt_shape2(64, 4), init), NULL);
    gckpt_term term = { gckpt_sum_loss(x), 1, 0 };
    memset(&desc, 0, sizeof desc);
    desc.mode = GCKPT_INFERENCE;
    desc.kernels.plain = 1;
    desc.budget = 2 * 4 * 64 * 4 + 4096;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
#ifndef GCKPT_NO_TILES
    expect(p && !strcmp(gckpt_plan_op(p, gckpt_id(x)), "fused"), "fused group", g);
    printf("TILES\n");
#else
    expect(!p && gckpt_error(g) == GCKPT_E_BUDGET, "fused group", g);
#endif
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* Plans under budgets. */
static void budgets(uint64_t hash)
{
    gckpt_plan_desc desc = usual();
    model m = model_new(ROWS);
    desc.batch = BATCH;
    gckpt_plan *all = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    desc.budget = gckpt_plan_bytes(all) - 3000;
    gckpt_plan_free(all);
#ifndef GCKPT_NO_SEARCH
    expect(trained(desc, "a budget", NULL) == hash, "a budget", NULL);
    printf("SEARCH\n");
#else
    (void)hash;
#ifndef GCKPT_NO_TRAINING
    trained(desc, "a budget without a search", "GCKPT_NO_SEARCH");
    desc.mode = GCKPT_OPTIMAL;
    trained(desc, "OPTIMAL without a search", "GCKPT_NO_SEARCH");
#endif
    desc.mode = GCKPT_INFERENCE;
    desc.budget = 1;
    expect(!gckpt_plan_new(m.graph, &m.term, 1, &desc) && !strstr(gckpt_error_text(m.graph), "GCKPT_NO_SEARCH"),
           "INFERENCE has one schedule", m.graph);
#endif
#ifndef GCKPT_NO_FRONTIER
    gckpt_frontier *f = gckpt_frontier_new(m.graph, &m.term, 1, &desc);
    expect(gckpt_frontier_describe(f).points > 1, "frontier", m.graph);
    gckpt_frontier_free(f);
    printf("FRONTIER\n");
#endif
    model_free(&m);
}

static float numbers[ROWS * 6 * 6 * 2];

/* Ops that a switch can omit: less common activations, permutations and sums of axes, recurrent layers, images, losses. */
static void ops(void)
{
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *x, *y;
    gckpt_feed feeds[2];
#ifndef GCKPT_NO_AXES
    static const int axes[3] = { 0, 2, 1 };
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(ROWS, 6, 4));
    feeds[0].input = gckpt_id(x);
    feeds[0].data = numbers;
    y = gckpt_permute(gckpt_linear(x, weight(x, "w", 4, 4), NULL), axes, 3);
    y = gckpt_mul(gckpt_mean(gckpt_pad(y, 2, 1, 0, GCKPT_PAD_VALUE, 1), 1), gckpt_max(gckpt_pad(y, 2, 0, 1, GCKPT_PAD_VALUE, 0), 1));
    run_loss(g, s, gckpt_sum_loss(y), feeds, 1, "AXES");
#endif
#ifndef GCKPT_NO_ACTIVATIONS
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 4));
    feeds[0].input = gckpt_id(x);
    feeds[0].data = numbers;
    y = gckpt_gelu_erf(gckpt_linear(x, weight(x, "w", 4, 4), NULL));
    y = gckpt_maximum(gckpt_activation(y, GCKPT_ELU, 1), gckpt_pow(gckpt_cos(y), 3));
    y = gckpt_where(x, gckpt_prelu(y, x), gckpt_clamp(y, 0, 1));
    run_loss(g, s, gckpt_sum_loss(y), feeds, 1, "ACTIVATIONS");
#endif
#ifndef GCKPT_NO_RECURRENT
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(ROWS, 6, 4));
    feeds[0].input = gckpt_id(x);
    feeds[0].data = numbers;
    y = weight(x, "wx", 4, 9);
    y = gckpt_gru(x, y, NULL, weight(x, "wh", 3, 9), NULL, NULL);
    run_loss(g, s, gckpt_sum_loss(y), feeds, 1, "RECURRENT");
#endif
#ifndef GCKPT_NO_IMAGES
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(ROWS, 6, 6, 2));
    feeds[0].input = gckpt_id(x);
    feeds[0].data = numbers;
    gckpt_window window;
    memset(&window, 0, sizeof window);
    window.size[0] = window.size[1] = 2;
    y = gckpt_reshape(weight(x, "w", 18, 3), gckpt_shape4(3, 3, 2, 3));
    y = gckpt_max_pool(gckpt_conv2d(x, y, NULL, NULL), &window);
    y = gckpt_upsample(y, 5, 3, GCKPT_BILINEAR);
    run_loss(g, s, gckpt_sum_loss(y), feeds, 1, "IMAGES");
#endif
#ifndef GCKPT_NO_LOSSES
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 4));
    y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(ROWS, 4));
    feeds[0].input = gckpt_id(x);
    feeds[1].input = gckpt_id(y);
    feeds[0].data = feeds[1].data = numbers;
    x = gckpt_linear(x, weight(x, "w", 4, 4), NULL);
    run_loss(g, s, gckpt_huber(x, y, NULL, 1), feeds, 2, "LOSSES");
#endif
    (void)s, (void)g, (void)x, (void)y, (void)feeds;
}

/* Ways to run a plan that a switch can omit: bf16, backends, several ranks. */
static void runs(void)
{
    gckpt_plan_desc desc = usual();
    desc.bf16.precision = GCKPT_BF16;
#ifndef GCKPT_NO_BF16
    expect(trained(desc, "bf16", NULL) != 0, "bf16", NULL);
    printf("BF16\n");
#else
    trained(desc, "bf16", "GCKPT_NO_BF16");
#endif
    desc.bf16.precision = GCKPT_FP32;
    desc.ranks.virtual_ranks = 2;
#ifndef GCKPT_NO_RANKS
    expect(trained(desc, "virtual ranks", NULL) != 0, "virtual ranks", NULL);
    printf("RANKS\n");
#else
    trained(desc, "virtual ranks", "GCKPT_NO_RANKS");
#endif
    desc.ranks.virtual_ranks = 0;
    model m = model_new(BATCH);
    gckpt_fetch_spec fetch;
    fetch.tensor = m.h;
    fetch.gradient = desc.mode != GCKPT_INFERENCE;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
#ifndef GCKPT_NO_FETCH
    gckpt_exec *e = gckpt_exec_new(p, m.store, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(m.in), tokens }, { gckpt_id(m.target), targets } };
#ifdef GCKPT_NO_TRAINING
    expect(e && gckpt_forward(e, feeds, 2, BATCH, NULL) == GCKPT_OK, "fetches", e);
#else
    expect(e && gckpt_gradients(e, feeds, 2, BATCH, NULL) == GCKPT_OK, "fetches", e);
#endif
    expect(e && gckpt_fetch(e, gckpt_id(m.h), fetch.gradient), "fetches", e);
    gckpt_exec_free(e);
    printf("FETCH\n");
#else
    expect(!p && strstr(gckpt_error_text(m.graph), "GCKPT_NO_FETCH"), "fetches", m.graph);
#endif
    gckpt_plan_free(p);
    desc.fetch.count = 0;
    p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    gckpt_exec_desc how;
    memset(&how, 0, sizeof how);
    how.debug = GCKPT_DEBUG_MEASURE;
    gckpt_exec *looked_at = gckpt_exec_new(p, m.store, &how);
#ifndef GCKPT_NO_DEBUG
    expect(looked_at && gckpt_bytes_measured(looked_at) == gckpt_store_bytes(m.store), "debug", m.store);
    printf("DEBUG\n");
#else
    expect(!looked_at && strstr(gckpt_error_text(m.store), "GCKPT_NO_DEBUG"), "debug", m.store);
#endif
    gckpt_exec_free(looked_at);
#ifdef GCKPT_NO_SCHEDULES
    const gckpt_mode mode = desc.mode;
    desc.mode = GCKPT_SCHEDULE;
    expect(!gckpt_plan_new(m.graph, &m.term, 1, &desc) && strstr(gckpt_error_text(m.graph), "GCKPT_NO_"), "schedules",
           m.graph);
    desc.mode = mode;
#else
    printf("SCHEDULES\n");
#endif
#ifndef GCKPT_NO_LINEAR_LOSS
    printf("LINEAR_LOSS\n");
#endif
#ifdef GCKPT_NO_OFFLOAD
    desc.offload.bytes = 1;
    expect(!gckpt_plan_new(m.graph, &m.term, 1, &desc) && strstr(gckpt_error_text(m.graph), "GCKPT_NO_OFFLOAD"),
           "offloading", m.graph);
    desc.offload.bytes = 0;
#else
    printf("OFFLOAD\n");
#endif
#ifdef GCKPT_NO_DEVICES
    how.debug = 0;
    how.backend = (const gckpt_backend *)&how; /* only compared with NULL */
    expect(!gckpt_exec_new(p, m.store, &how) && strstr(gckpt_error_text(m.store), "GCKPT_NO_DEVICES"), "backends",
           m.store);
    how.backend = NULL;
    desc.backend = (const gckpt_backend *)&how;
    expect(!gckpt_plan_new(m.graph, &m.term, 1, &desc) && strstr(gckpt_error_text(m.graph), "GCKPT_NO_DEVICES"),
           "backends", m.graph);
    desc.backend = NULL;
#else
    printf("DEVICES\n");
#endif
#ifdef GCKPT_NO_CACHES
    how.debug = 0;
    how.caches_of = gckpt_exec_new(p, m.store, NULL);
    expect(!gckpt_exec_new(p, m.store, &how) && strstr(gckpt_error_text(m.store), "GCKPT_NO_CACHES"), "caches",
           m.store);
    gckpt_exec_free(how.caches_of);
#endif
#ifdef GCKPT_NO_QUANT
    p->compressed = 1; /* a plan printed by a build with quantisation may have this field nonzero */
    expect(!gckpt_exec_new(p, m.store, NULL), "quantised", m.store);
    expect(strstr(gckpt_error_text(m.store), "GCKPT_NO_QUANT") != NULL, "quantised, by name", m.store);
#endif
    gckpt_plan_free(p);
#ifndef GCKPT_NO_QUANT
    gckpt_store_freeze(m.store, "q0", 1);
    expect(gckpt_store_quantise(m.store, "q0", GCKPT_STORAGE_BF16) == GCKPT_OK, "quantise", m.store);
    printf("QUANT\n");
#endif
    model_free(&m);
#ifndef GCKPT_NO_CACHES
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, 1, 4));
    gckpt_tensor *k = gckpt_cache(gckpt_scale(x, 2), 8);
    expect(gckpt_attention(x, k, k, &(gckpt_attention_desc){ .heads = 1, .causal = 1 }) != NULL, "caches", g);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    printf("CACHES\n");
#endif
}

#ifdef GCKPT_NO_TRAINING
/* In a build without training, training plans are refused, and so are parameters that must be initialised at random. */
static void refusals(void)
{
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    trained(desc, "AUTO", "GCKPT_NO_TRAINING");
    desc.mode = GCKPT_SQRT;
    trained(desc, "SQRT", "GCKPT_NO_TRAINING");
    desc = usual();
    model m = model_new(ROWS);
    gckpt_plan *p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    p->mode = GCKPT_STORE_ALL; /* a plan printed by a build with training may have this mode */
    expect(!gckpt_exec_new(p, m.store, NULL) && strstr(gckpt_error_text(m.store), "GCKPT_NO_TRAINING"),
           "a plan that trains", m.store);
    p->mode = GCKPT_INFERENCE;
    gckpt_store *bare = gckpt_store_new(NULL);
    expect(gckpt_plan_params(p, bare) == GCKPT_OK && !gckpt_exec_new(p, bare, NULL) &&
               strstr(gckpt_error_text(bare), "GCKPT_NO_TRAINING"),
           "weights that nobody gave", bare);
    set_values(bare);
    gckpt_exec *e = gckpt_exec_new(p, bare, NULL);
    expect(e && gckpt_store_hash(bare) == gckpt_store_hash(m.store), "weights that were given", bare);
    gckpt_exec_free(e);
    gckpt_store_free(bare);
    gckpt_plan_free(p);
    model_free(&m);
}
#endif

/* Trains the tested model. Prints its hashes after `what`; returns the hash of its weights. */
static uint64_t train_model(const char *what)
{
    gckpt_plan_desc desc = usual();
    model m = model_new(ROWS);
    desc.mode = GCKPT_INFERENCE;
    set_values(m.store);
    gckpt_plan *p = gckpt_plan_new(m.graph, &m.term, 1, &desc);
    uint64_t hash = forward(&m, p, "forward");
    printf("forward%s %08x%08x\n", what, (unsigned)(hash >> 32), (unsigned)hash);
    gckpt_plan_free(p);
    model_free(&m);
#ifndef GCKPT_NO_TRAINING
    desc = usual();
    hash = trained(desc, "store-all", NULL);
    printf("trained%s %08x%08x\n", what, (unsigned)(hash >> 32), (unsigned)hash);
    desc.mode = GCKPT_SQRT;
    expect(trained(desc, "sqrt", NULL) == hash, "sqrt", NULL);
#endif
    return hash;
}

int main(void)
{
    for (int i = 0; i < BATCH * T; i++) {
        tokens[i] = i * 7 % V;
        targets[i] = (i * 11 + 3) % V;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        numbers[i] = (float)(i % 7) - 3;
    uint64_t hash = train_model("");
#ifndef GCKPT_NO_ATTENTION
    attends = 1;
    hash = train_model(" with attention");
    printf("ATTENTION\n");
#endif
#ifdef GCKPT_NO_TRAINING
    refusals();
#else
    printf("TRAINING\n");
#endif
    files(hash);
    budgets(hash);
    row_tiles();
    ops();
    runs();
    return failed;
}
