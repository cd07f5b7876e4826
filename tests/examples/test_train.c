/* test_train.c - compares examples/layers.h with PyTorch and tests examples/train.h. Every micro-batch size and budget
 * must give the bits of a training loop written by hand. Further tests: validation, best weights, early stopping,
 * resuming, errors and their texts, and every allocation failing. */
#define INITIAL_VALUES_REFUSED
#include "gradckpt.h"
#include "check.h"
#include "counted.h"
#include "examples/layers.h"
#include "examples/train.h"
#include "golden/layers.h"
#include <math.h>

enum { ROWS = 150, VALID = 37, WIDE = 12, CLASSES = 3, BATCH = 16, SAVED = 4 };

static float x[ROWS][WIDE];
static int32_t class_of[ROWS];
static const char *path = "build/test_train.st";

/* ---- layers ---- */

static void near(const float *got, const float *want, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabsf(got[i] - want[i]) <= 4e-6f, "%s %d: %.9g, PyTorch %.9g", what, i,
                  (double)got[i], (double)want[i]);
}

static void test_layers(void)
{
    static const int64_t widths[] = { 4, 3 };
    static const int32_t fed[6] = { 0, 3, 1, 4, 2, 2 };
    const layers_gpt gpt = { 1, 2, 1, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(2, 3)), *h = NULL;
    gckpt_fetch_spec fetch[6];
    gckpt_plan_desc desc;
    gckpt_parameter p;
    memset(&desc, 0, sizeof desc);
    memset(fetch, 0, sizeof fetch);
    fetch[0].tensor = layers_gpt_block(layers_embed(tokens, "wte", 5, 8), &gpt, 0);
    for (int t = 0; t < 3; t++)
        h = layers_gru_cell(gckpt_sum(gckpt_slice(fetch[0].tensor, 1, t, t + 1), 1), h, "gru", 6);
    fetch[1].tensor = h;
    fetch[2].tensor = layers_mlp(h, "mlp", widths, 2, 0);
    fetch[3].tensor = layers_gru_sequence(fetch[0].tensor, "gru", 6);
    h = gckpt_reshape(fetch[0].tensor, gckpt_shape4(2, 3, 4, 2));
    fetch[4].tensor = layers_batchnorm(layers_conv(h, "conv", 5, 3, 2), "bn");
    fetch[5].tensor = layers_llama_block(fetch[0].tensor, 2, 12, 0);
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = fetch;
    desc.fetch.count = 6;
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    const gckpt_feed feed = { gckpt_id(tokens), fed };
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(plan == NULL ? (const void *)g : s));
    for (int i = 0; gckpt_store_get(s, i, &p) == GCKPT_OK; i++)
        for (int64_t k = 0; k < p.elements; k++)
            p.values[k] = (float)((k * 37 + (int64_t)strlen(p.name) * 11) % 101 - 50) / 100;
    gckpt_store_get(s, gckpt_store_find(s, "bn.running_var"), &p);
    for (int64_t k = 0; k < p.elements; k++)
        p.values[k] = fabsf(p.values[k]) + 0.5f;
    CHECK(gckpt_forward(e, &feed, 1, 2, NULL) == GCKPT_OK);
    near(gckpt_fetch(e, gckpt_id(fetch[0].tensor), 0), golden_block, 48, "block");
    near(gckpt_fetch(e, gckpt_id(fetch[1].tensor), 0), golden_gru, 12, "gru");
    near(gckpt_fetch(e, gckpt_id(fetch[2].tensor), 0), golden_mlp, 6, "mlp");
    near(gckpt_fetch(e, gckpt_id(fetch[3].tensor), 0), golden_gru_all, 36, "gru_all");
    near(gckpt_fetch(e, gckpt_id(fetch[4].tensor), 0), golden_image, 40, "image");
    near(gckpt_fetch(e, gckpt_id(fetch[5].tensor), 0), golden_llama, 48, "llama");
    gckpt_exec_free(e), gckpt_plan_free(plan), gckpt_graph_free(g), gckpt_store_free(s);
}

/* Compares convolutions, flattening, group norm and LSTM with PyTorch. */
static void test_more_layers(void)
{
    static float in[48];
    const gckpt_window window = {
        .stride = { 2, 1 }, .padding = { 1, 2 }, .dilation = { 1, 2 }, .groups = 2
    };
    const gckpt_window up = {
        .stride = { 2, 2 }, .padding = { 1, 1 }, .output_padding = { 1, 1 }, .groups = 2
    };
    const gckpt_window one = { .padding = { 0, 1 }, .groups = 2 }, two = { .stride = { 0, 2 } };
    static const float *const want[7] = { golden_groupnorm, golden_up,          golden_flat,
                                          golden_signal,    golden_flat_signal, golden_lstm,
                                          golden_lstm_all };
    static const char *const what[7] = { "groupnorm",   "up",   "flat",    "signal",
                                         "flat_signal", "lstm", "lstm_all" };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *signal = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 3, 8));
    gckpt_tensor *t[7], *state[2] = { NULL, NULL };
    gckpt_fetch_spec fetch[7];
    gckpt_plan_desc desc;
    gckpt_parameter p;
    memset(&desc, 0, sizeof desc);
    memset(fetch, 0, sizeof fetch);
    memcpy(in, golden_block, sizeof in);
    t[0] = layers_conv2d(gckpt_reshape(signal, gckpt_shape4(2, 3, 4, 2)), "c2", 4, 3, &window, 1);
    t[0] = layers_groupnorm(t[0], "gn", 2);
    t[1] = layers_conv2d_transposed(t[0], "up", 6, 3, &up, 1);
    t[2] = layers_dense(layers_flatten(t[1]), "fc", 3);
    t[3] = layers_conv1d_transposed(layers_conv1d(signal, "c1", 4, 2, &one, 0), "up1", 6, 3, &two, 1);
    t[4] = layers_dense(layers_flatten(t[3]), "fc1", 3);
    gckpt_graph *uneven = gckpt_graph_new(s, NULL);
    gckpt_tensor *six = gckpt_input(uneven, "x", GCKPT_F32, gckpt_shape4(2, 3, 4, 6));
    CHECK(layers_conv2d_transposed(six, "up2", 7, 3, &up, 0) == NULL); /* up2's weight has 7 output channels, not 6 */
    gckpt_graph_free(uneven);
    for (int i = 0; i < 3; i++)
        t[5] = layers_lstm_cell(gckpt_sum(gckpt_slice(signal, 1, i, i + 1), 1), state, "lstm", 6);
    t[6] = layers_lstm_sequence(signal, "deep", 6, 2);
    for (int i = 0; i < 7; i++)
        fetch[i].tensor = t[i];
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = fetch;
    desc.fetch.count = 7;
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    const gckpt_feed feed = { gckpt_id(signal), in };
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(plan == NULL ? (const void *)g : s));
    for (int i = 0; gckpt_store_get(s, i, &p) == GCKPT_OK; i++)
        for (int64_t k = 0; k < p.elements; k++)
            p.values[k] = (float)((k * 37 + (int64_t)strlen(p.name) * 11) % 101 - 50) / 100;
    CHECK(gckpt_forward(e, &feed, 1, 2, NULL) == GCKPT_OK);
    for (int i = 0; i < 7; i++) {
        const gckpt_shape shape = gckpt_shape_of(t[i]);
        int n = 1;
        for (int k = 0; k < shape.n; k++)
            n *= (int)shape.d[k];
        near(gckpt_fetch(e, gckpt_id(t[i]), 0), want[i], n, what[i]);
    }
    CHECK(layers_flatten(NULL) == NULL && layers_conv2d(NULL, "x", 3, 3, NULL, 1) == NULL &&
          layers_groupnorm(NULL, "x", 1) == NULL && layers_lstm_sequence(NULL, "x", 3, 1) == NULL);
    state[0] = state[1] = NULL;
    CHECK(layers_lstm_cell(NULL, state, "x", 3) == NULL && gckpt_error(g) == GCKPT_OK);
    gckpt_exec_free(e), gckpt_plan_free(plan), gckpt_graph_free(g), gckpt_store_free(s);
}

/* Tests standard deviation and bound of initial values, which depend on the parameter's name. */
static void test_initial_values(void)
{
    static const struct {
        const char *name;
        double bound, deviation; /* if bound is 0, values are normally distributed */
    } want[] = { { "fc.weight", 1 / 8.0, 1 / 8.0 / 1.7320508 },
                 { "fc.bias", 1 / 8.0, 1 / 8.0 / 1.7320508 },
                 { "h.7.attn.c_attn.weight", 0, 0.02 },
                 { "h.7.attn.c_proj.weight", 0, 0.02 / 4 },
                 { "h.7.mlp.c_fc.weight", 0, 0.02 },
                 { "h.7.mlp.c_proj.weight", 0, 0.02 / 4 },
                 { "h.7.mlp.c_proj.bias", 0, 0 },
                 { "h.7.ln_1.bias", 0, 0 },
                 { "c.weight", 1 / 12.0, 1 / 12.0 / 1.7320508 }, /* fan-in: 9 x 16 of the 64 channels */
                 { "c.bias", 1 / 12.0, 1 / 12.0 / 1.7320508 },
                 { "up.weight", 1 / 20.0, 1 / 20.0 / 1.7320508 }, /* fan-in is 4 x 100 */
                 { "lstm.weight_ih_l1", 1 / 8.0, 1 / 8.0 / 1.7320508 },
                 { "lstm.bias_hh_l0", 1 / 8.0, 1 / 8.0 / 1.7320508 },
                 { "gn.bias", 0, 0 },
                 { "conv.weight", 1 / 24.0, 1 / 24.0 / 1.7320508 }, /* values of nn.Conv2d(64, 80, 3) */
                 { "map.weight", 1 / 8.0, 1 / 8.0 / 1.7320508 },    /* values of nn.Linear(64, 80, bias=False) */
                 { "wte.weight", 0, 1 },                            /* values of nn.Embedding */
                 { "wpe.weight", 0, 0.02 },
                 { "model.layers.1.mlp.up_proj.weight", 0, 0.02 } };
    const layers_gpt gpt = { 8, 4, 1, 0.1f };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "in", GCKPT_F32, gckpt_shape3(2, 3, 64));
    gckpt_parameter p;
    const gckpt_window four = { .groups = 4 };
    gckpt_tensor *image = gckpt_input(g, "image", GCKPT_F32, gckpt_shape4(2, 3, 3, 64));
    layers_dense(layers_gpt_block(in, &gpt, 7), "fc", 64);
    layers_conv2d_transposed(layers_conv2d(image, "c", 128, 3, &four, 1), "up", 100, 2, NULL, 0);
    layers_groupnorm(layers_lstm_sequence(in, "lstm", 64, 2), "gn", 2);
    layers_conv(image, "conv", 80, 3, 1), layers_dense_nobias(in, "map", 80), layers_llama_block(in, 4, 96, 1);
    gckpt_tensor *index = gckpt_input(g, "index", GCKPT_I32, gckpt_shape1(2));
    const gckpt_init normal = { 0.02f, 0, 0 };
    layers_embed(index, "wte", 80, 64), layers_embed_with(index, "wpe", 80, 64, normal);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        double square = 0, most = 0;
        CHECK_MSG(gckpt_store_get(s, gckpt_store_find(s, want[i].name), &p) == GCKPT_OK, "%s",
                  want[i].name);
        for (int64_t k = 0; k < p.elements; k++) {
            const double v = fabs((double)p.values[k]);
            square += v * v / (double)p.elements;
            most = v > most ? v : most;
        }
        CHECK_MSG(fabs(sqrt(square) - want[i].deviation) <= 0.13 * want[i].deviation, "%s: %g, not %g",
                  want[i].name, sqrt(square), want[i].deviation);
        CHECK_MSG(want[i].bound == 0 || (most <= want[i].bound && most > 0.9 * want[i].bound),
                  "%s: up to %g", want[i].name, most);
    }
    CHECK(gckpt_store_get(s, gckpt_store_find(s, "h.7.ln_2.weight"), &p) == GCKPT_OK &&
          p.values[0] == 1 && p.values[63] == 1);
    CHECK(layers_dense(NULL, "x", 3) == NULL && layers_gpt_block(NULL, &gpt, 0) == NULL &&
          layers_gru_cell(NULL, NULL, "x", 3) == NULL && gckpt_error(g) == GCKPT_OK);
    char name[600];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    CHECK(layers_dense(in, name, 3) == NULL && gckpt_error(g) != GCKPT_OK);
    gckpt_graph_free(g), gckpt_store_free(s);
}

/* Two layers with one name share their weights. A warning says so once, since PyTorch would have separate weights. */
static void test_shared(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_tensor *state[2] = { NULL, NULL };
    for (int k = 0; k < 2; k++) { /* a second graph of the same store may have the same layers without a warning */
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "in", GCKPT_F32, gckpt_shape2(2, 8)), *h;
        layers_dense(in, "fc1", 8), layers_dense(in, "fc2", 8);
        h = layers_gru_cell(in, layers_gru_cell(in, NULL, "gru", 8), "gru", 8);
        state[0] = state[1] = NULL;
        layers_lstm_cell(in, state, "lstm", 8), layers_lstm_cell(in, state, "lstm", 8);
        CHECK_MSG(h != NULL && layers_share == 0, "graph %d", k);
        if (k == 1) {
            const int params = gckpt_graph_size(g);
            layers_share = 1; /* tells the library that sharing is intended */
            CHECK(layers_dense(in, "fc1", 8) != NULL && gckpt_graph_size(g) == params + 1);
            layers_share = 0;
            CHECK(layers_dense(in, "fc1", 8) != NULL && layers_share == 1);
            CHECK(layers_dense(in, "fc2", 8) != NULL && layers_share == 1);
            layers_share = 0;
        }
        gckpt_graph_free(g);
    }
    gckpt_store_free(s);
}

static void test_hyper(void)
{
    const gckpt_hyper h = gckpt_hyper_lr(0.5f);
    CHECK(h.lr == 0.5f && h.weight_decay == 0 && h.beta1 == 0 && h.beta2 == 0 && h.eps == 0 &&
          h.momentum == 0 && h.clip == 0);
}

/* ---- the loop ---- */

static train_data rows_of(int64_t rows, int64_t validation)
{
    train_data data;
    const train_column in = { "x", GCKPT_F32, WIDE, x }, out = { "class", GCKPT_I32, 0, class_of };
    memset(&data, 0, sizeof data);
    data.column[0] = in;
    data.column[1] = out;
    data.rows = rows;
    data.validation = validation;
    return data;
}

static void classifier(train_net *net, void *user)
{
    static const int64_t widths[] = { 24, 24, CLASSES };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0.2f);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Values that the callback on_step records. */
typedef struct {
    gckpt_store *store;
    int epochs, stop_after, wrong;
    int64_t steps, stop_at; /* steps of all epochs so far; the step after which to stop */
    train_report of[64];    /* report at the end of each epoch */
    uint64_t hash[64];
    uint64_t stopped; /* hash of the weights after step stop_at */
} training_log;

static int on_step(void *user, const train_report *now)
{
    training_log *v = (training_log *)user;
    if (now->step > 0) {
        v->wrong |= now->output != NULL || now->step > now->steps || now->epoch != v->epochs + 1;
        if (++v->steps == v->stop_at)
            v->stopped = gckpt_store_hash(v->store);
        return v->steps == v->stop_at;
    }
    v->of[v->epochs] = *now;
    v->hash[v->epochs++] = gckpt_store_hash(v->store);
    return v->epochs == v->stop_after;
}

static train_options options(training_log *v)
{
    train_options o = train_defaults(5e-3f);
    memset(v, 0, sizeof *v);
    o.hyper.weight_decay = 0.01f;
    o.hyper.clip = 1;
    o.plan.batch = BATCH;
    o.epochs = 6;
    o.schedule = SCHEDULE_COSINE;
    o.warmup = 3;
    o.seed = 7;
    o.print_every = -1;
    o.watch = on_step;
    o.user = v;
    return o;
}

/* Trains in a new store. Returns a hash of the weights, or 0 if training fails. */
static uint64_t fit(const train_data *data, train_options *o, train_report *r)
{
    gckpt_store *s = gckpt_store_new(NULL);
    training_log *v = (training_log *)o->user;
    v->store = s;
    v->epochs = 0;
    v->steps = 0;
    const int failed = train_fit(s, classifier, data, o, r) != 0;
    const uint64_t hash = gckpt_store_hash(s);
    CHECK(failed == (r->error[0] != 0) && !v->wrong);
    gckpt_store_free(s);
    return failed ? 0 : hash;
}

static int same(const train_report *a, const train_report *b)
{
    return a->epoch == b->epoch && a->loss == b->loss && a->validation == b->validation &&
           a->accuracy == b->accuracy && a->steps == b->steps && a->lr == b->lr;
}

static void test_same_bits(void)
{
    static training_log v;
    const train_data data = rows_of(ROWS, VALID);
    train_options o = options(&v);
    train_report r, other;
    const uint64_t hash = fit(&data, &o, &r);
    double least = 0;
    CHECK(hash != 0 && r.steps == 8 && v.epochs == 6 && v.steps == 48 && r.epochs == 6);
    CHECK(r.accuracy > 0.7 && r.validation < 1 && r.step == 0 && r.output == NULL && r.bytes > 0);
    for (o.micro_batch = 1; o.micro_batch <= BATCH; o.micro_batch *= 2)
        CHECK(fit(&data, &o, &other) == hash && same(&r, &other) && other.bytes > 0);
    o.micro_batch = 0;
    o.plan.budget = 1;
    CHECK(fit(&data, &o, &other) == 0);
    const char *text = strstr(other.error, "at least ");
    CHECK_MSG(text != NULL && sscanf(text, "at least %lf", &least) == 1, "%s", other.error);
    o.plan.budget = (size_t)least;
    CHECK(fit(&data, &o, &other) == hash && same(&r, &other) && other.bytes <= o.plan.budget);
    CHECK(other.bytes < r.bytes);
    o.plan.threads = 3;
    CHECK(fit(&data, &o, &other) == hash && same(&r, &other));
    o.plan.budget = 0;
    o.plan.bf16.precision = GCKPT_BF16; /* validation uses bf16 as well */
    const uint64_t narrow = fit(&data, &o, &r);
    o.micro_batch = 2;
    CHECK(narrow != hash && fit(&data, &o, &other) == narrow && same(&r, &other));
    o = options(&v);
    o.seed++;
    CHECK(fit(&data, &o, &other) != hash);
}

/* The same training as a loop written by hand, which must give the same weights. */
static void test_by_hand(void)
{
    static training_log v;
    static float fed[BATCH][WIDE];
    static int32_t target[BATCH];
    const train_data data = rows_of(ROWS, 0);
    train_options o = options(&v);
    train_report r;
    const uint64_t hash = fit(&data, &o, &r);
    CHECK(r.epoch == 6 && r.validation == r.loss && r.accuracy == -1); /* the report has the values of the last epoch */
    int64_t order[ROWS], at = 0;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    train_net net;
    memset(&net, 0, sizeof net);
    net.in[0] = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(BATCH, WIDE));
    net.in[1] = gckpt_input(g, "class", GCKPT_I32, gckpt_shape1(BATCH));
    classifier(&net, NULL);
    const gckpt_term term = { net.loss, 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(net.in[0]), fed }, { gckpt_id(net.in[1]), target } };
    for (int epoch = 1; epoch <= 6; epoch++) {
        double sum = 0;
        train_shuffle(order, ROWS, o.seed, epoch);
        for (int64_t first = 0; first < ROWS; first += BATCH, at++) {
            int64_t n = ROWS - first < BATCH ? ROWS - first : BATCH;
            gckpt_hyper hyper = o.hyper;
            gckpt_report report = { 0, 0, 0, 0 };
            for (int64_t i = 0; i < n; i++) {
                memcpy(fed[i], x[order[first + i]], sizeof fed[i]);
                target[i] = class_of[order[first + i]];
            }
            hyper.lr = gckpt_lr_cosine((uint64_t)at, 3, 60, 5e-3f, 0);
            CHECK(gckpt_step(e, feeds, 2, n, &hyper, &report) == GCKPT_OK);
            sum += report.loss * (double)report.count;
        }
        CHECK(v.of[epoch - 1].loss == sum / ROWS && v.hash[epoch - 1] == gckpt_store_hash(s));
    }
    CHECK(gckpt_store_hash(s) == hash && at == 60);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
}

/* Each epoch must have each row once, in a new order. */
static void test_order(void)
{
    int64_t order[ROWS], before[ROWS] = { 0 };
    for (int epoch = 1; epoch < 20; epoch++) {
        int times[ROWS] = { 0 }, in_place = 0;
        train_shuffle(order, ROWS, 1, epoch);
        for (int i = 0; i < ROWS; i++) {
            CHECK(order[i] >= 0 && order[i] < ROWS);
            times[order[i]]++;
            in_place += order[i] == i || order[i] == before[i];
        }
        for (int i = 0; i < ROWS; i++)
            CHECK(times[i] == 1);
        CHECK(in_place < 15);
        memcpy(before, order, sizeof order);
    }
}

/* Validation and prediction must have the same loss on the same rows, and the reported accuracy must equal a count. */
static void test_validation(void)
{
    static training_log v;
    static float out[ROWS][CLASSES], again[ROWS][CLASSES];
    const train_data data = rows_of(ROWS, VALID);
    train_data last = rows_of(VALID, 0), unknown = rows_of(ROWS, 0);
    train_options o = options(&v);
    train_report r, other;
    int right = 0;
    gckpt_store *s = gckpt_store_new(NULL);
    v.store = s;
    CHECK(train_fit(s, classifier, &data, &o, &r) == 0);
    last.column[0].values = x[ROWS - VALID];
    last.column[1].values = class_of + ROWS - VALID;
    CHECK(train_predict(s, classifier, &last, &o, out[0], &other) == 0);
    for (int i = 0; i < VALID; i++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            best = out[i][k] > out[i][best] ? k : best;
        right += best == class_of[ROWS - VALID + i];
    }
    CHECK(other.validation == r.validation && other.loss == r.validation);
    CHECK(other.accuracy == r.accuracy && r.accuracy == (double)right / VALID);
    unknown.column[1].values = NULL;
    o.plan.batch = 0;
    CHECK(train_predict(s, classifier, &unknown, &o, again[0], &other) == 0 && other.accuracy == -1);
    CHECK(memcmp(out[0], again[ROWS - VALID], VALID * sizeof out[0]) == 0);
    CHECK(train_predict(s, classifier, &last, &o, NULL, &other) == 0 && other.loss == r.validation);
    gckpt_store_free(s);
}

/* Training must keep the weights with the least validation loss, and must stop after `patience` epochs without a lower
 * one. */
static void test_best(void)
{
    static training_log v;
    const train_data data = rows_of(ROWS, VALID);
    train_options o = options(&v);
    train_report r;
    o.schedule = SCHEDULE_CONSTANT;
    o.hyper.lr = 0.05f; /* so large that the validation loss does not always fall */
    o.epochs = 40;
    uint64_t hash = fit(&data, &o, &r);
    int best = 0;
    for (int i = 1; i < v.epochs; i++) {
        CHECK(v.of[i].is_best == (v.of[i].validation < v.of[best].validation));
        CHECK(v.of[i].lr == 0.05f && v.of[i].output != NULL && v.of[i].step == 0);
        best = v.of[i].is_best ? i : best;
    }
    CHECK(v.epochs == 40 && best < 34 && r.epoch == best + 1 && hash == v.hash[best]);
    CHECK(same(&r, &v.of[best]) && r.is_best);
    o.patience = 5;
    const uint64_t all = hash;
    hash = fit(&data, &o, &r);
    CHECK(v.epochs == r.epoch + 5 && hash == v.hash[r.epoch - 1] && (hash == all || v.epochs <= best));
}

/* Without validation rows, training must keep the last weights, at whatever step it stops. */
static void test_unvalidated(void)
{
    static training_log v;
    const train_data data = rows_of(64, 0);
    train_options o = options(&v);
    train_report r;
    for (v.stop_at = 1; v.stop_at <= 8; v.stop_at++) {
        const uint64_t hash = fit(&data, &o, &r);
        CHECK_MSG(hash == v.stopped && v.steps == v.stop_at,
                  "ended after step %d: %016llx, not %016llx", (int)v.stop_at,
                  (unsigned long long)hash, (unsigned long long)v.stopped);
        CHECK(r.epoch == (v.stop_at + 3) / 4 && r.step == (v.stop_at - 1) % 4 + 1);
    }
    v.stop_at = 7;
    o.save = path; /* saves at the stop, resumes, and stops at once */
    remove(path);
    const uint64_t hash = fit(&data, &o, &r);
    train_run t;
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(train_begin(&t, s, classifier, &data, &o, &r) == 0 && train_end(&t) == 0);
    CHECK(hash == v.stopped && gckpt_store_hash(s) == hash);
    gckpt_store_free(s);
    remove(path);
    o.save = NULL; /* with validation rows, the weights of the best epoch are kept */
    const train_data some = rows_of(64 + VALID, VALID);
    CHECK(fit(&some, &o, &r) == v.hash[0] && v.hash[0] != v.stopped && r.epoch == 1 && r.step == 0);
}

/* A checkpoint with an epoch or step that cannot exist must be refused: a training that resumed there would read rows
 * before row 0, or never end. */
static void test_notes(const train_data *data, train_options *o)
{
    static const char *const wrong[][2] = {
        { "-1 0 ", NULL },     { "1 -1 ", NULL },   { "1 2 ", NULL },     { "1 1 ", "-1 0 1 0 1" },
        { "1 1 ", "1e9 0 1 0 1" }, { "1 1 ", "nan 0 1 0 1" },
    };
    gckpt_store *s = gckpt_store_new(NULL);
    train_report r;
    CHECK(gckpt_store_load(s, o->save, NULL) == GCKPT_OK);
    const char *was = gckpt_store_note(s, "train"), *of = was ? strstr(was, " of ") : NULL;
    char recipe[256], note[300];
    snprintf(recipe, sizeof recipe, "0 0 0%s", of ? of : "");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(note, sizeof note, "%s%s", wrong[i][0], recipe);
        CHECK(gckpt_store_set_note(s, "train", note) == GCKPT_OK);
        CHECK(gckpt_store_set_note(s, "train.within", wrong[i][1]) == GCKPT_OK);
        CHECK(gckpt_store_save(s, o->save, NULL) == GCKPT_OK);
        CHECK_MSG(fit(data, o, &r) == 0 && strstr(r.error, "is damaged: its notes say epoch"), "%zu: %s",
                  i, r.error);
    }
    gckpt_store_free(s);
}

/* Training that stops after some epochs or within an epoch, and then resumes, must give the result of a training
 * without a stop. */
static void test_resume(void)
{
    static training_log v;
    train_data data = rows_of(ROWS, VALID);
    train_options o = options(&v);
    train_report r, other;
    char best[64];
    snprintf(best, sizeof best, "%s.best", path);
    remove(path);
    const uint64_t hash = fit(&data, &o, &r), last = v.hash[5];
    o.save = path;
    v.stop_after = 2;
    CHECK(fit(&data, &o, &other) == v.hash[other.epoch - 1] && v.epochs == 2);
    v.stop_after = 0;
    o.micro_batch = 2;
    gckpt_store *s = gckpt_store_new(NULL);
    v.store = s;
    v.epochs = 2;
    CHECK(train_fit(s, classifier, &data, &o, &other) == 0 && v.epochs == 6);
    CHECK(gckpt_store_hash(s) == hash && v.hash[5] == last && same(&other, &r));
    gckpt_store_free(s);
    v.epochs = 6; /* all epochs are done, so resuming trains no step */
    CHECK(fit(&data, &o, &other) == hash && v.steps == 0 && other.validation == r.validation);
    o.seed++;
    CHECK(fit(&data, &o, &other) == 0 && strstr(other.error, "batch 16, seed 7; this one: 150 rows"));
    o.seed--;
    data.rows--;
    CHECK(fit(&data, &o, &other) == 0 &&
          strstr(other.error, "this one: 149 rows, 37 for validation, batch 16, seed 7); remove"));
    data.rows++;
    class_of[ROWS - 1] ^= 1; /* changes the value of a validation row */
    CHECK(fit(&data, &o, &other) == 0 && strstr(other.error, "belongs to a training on other values; remove"));
    class_of[ROWS - 1] ^= 1;
    CHECK(fit(&data, &o, &other) == hash);
    remove(best);
    CHECK(fit(&data, &o, &other) == 0 && strstr(other.error, best));
    test_notes(&data, &o);
    o.save = "build/no/such/folder";
    CHECK(fit(&data, &o, &other) == 0 && strstr(other.error, o.save));
    remove(path);
}

/* ---- refusals ---- */

static void refused(const train_data *data, train_options *o, const char *why)
{
    train_report r;
    CHECK_MSG(fit(data, o, &r) == 0 && strstr(r.error, why), "%s: wanted \"%s\"", r.error, why);
}

static void test_refusals(void)
{
    static training_log v;
    train_options o = options(&v);
    train_data data = rows_of(ROWS, ROWS);
    train_report r;
    refused(&data, &o, "150 rows, 150 of them for validation, leave none for training");
    data = rows_of(ROWS, -1);
    refused(&data, &o, "-1 of them");
    data = rows_of(ROWS, VALID);
    data.column[1].values = NULL;
    refused(&data, &o, "column 1 has no name, or no values");
    data.column[0].name = NULL;
    refused(&data, &o, "column 0 has no name");
    data = rows_of(ROWS, VALID);
    o.micro_batch = 5;
    refused(&data, &o, "a batch of 16 rows is not a multiple of micro_batch 5");
    o.micro_batch = 0;
    const int epochs = o.epochs;
    o.epochs = -1;
    refused(&data, &o, "options: epochs -1, patience 0: allowed is 0 or more (0 epochs selects 10, patience 0 never stops)");
    o.epochs = epochs;
    o.patience = INT32_MIN;
    refused(&data, &o, "patience -2147483648: allowed is 0 or more");
    o.patience = 0;
    o.hyper.lr = -1;
    refused(&data, &o, "lr");
    o.hyper.lr = 1e-2f;
    class_of[40] = CLASSES;
    refused(&data, &o, "\"class\": index 3 at row 40");
    class_of[40] = 0;
    const float was = x[60][2];
    x[60][2] = NAN;
    refused(&data, &o, "the data contains NaN");
    x[60][2] = was;
    o.hyper.lr = 1e30f;
    o.hyper.clip = 0;
    refused(&data, &o, "epoch 1, step 2: step: skipped");
    CHECK(v.epochs < 2);
    o = options(&v);
    v.stop_at = 11;
    CHECK(fit(&data, &o, &r) != 0 && v.steps == 11 && v.epochs == 1 && r.epoch == 1);
}

/* Each allocation of train.h fails once. */
static void test_memory(void)
{
    static training_log v;
    const train_data data = rows_of(ROWS, VALID);
    train_options o = options(&v);
    train_report r;
    uint64_t hash = 0;
    o.epochs = 1;
    for (long n = 1; hash == 0; n++) {
        allocations = 0;
        fail_at = n;
        hash = fit(&data, &o, &r);
        fail_at = 0;
        CHECK_MSG((hash != 0) == (n == 7), "allocation %ld: %s", n, r.error);
        CHECK_MSG(hash != 0 || strstr(r.error, "out of memory"), "%s", r.error);
        CHECK(live_blocks == 0 && n < 50);
    }
}

/* ---- other models ---- */

enum { T = 5, WORDS = 4 };
static int32_t tokens[ROWS * T], next_of[ROWS * T];

/* Predicts the next word, with a cross-entropy loss and a small second loss. Targets of -1 are ignored. */
static void words(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(layers_embed(net->in[0], "wte", WORDS, 8), "head", WORDS);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
    const gckpt_term small = { gckpt_sum_loss(gckpt_mul(net->output, net->output)), 0.01f, 0 };
    net->extra[net->extra_count++] = small;
}

static void test_sequences(void)
{
    static training_log v;
    static float out[ROWS * T][WORDS];
    const train_data data = { { { "tokens", GCKPT_I32, T, tokens }, { "next", GCKPT_I32, T, next_of } },
                              ROWS,
                              VALID };
    train_options o = options(&v);
    train_report r, all;
    int right = 0, counted = 0;
    for (int i = 0; i < ROWS * T; i++) {
        tokens[i] = i * i % 7 % WORDS;
        next_of[i] = i % 3 == 0 ? -1 : (tokens[i] + (i % 11 > 0)) % WORDS;
    }
    gckpt_store *s = gckpt_store_new(NULL);
    v.store = s;
    o.micro_batch = 8;
    o.hyper.lr = 2e-2f;
    CHECK_MSG(train_fit(s, words, &data, &o, &r) == 0, "%s", r.error);
    CHECK(train_predict(s, words, &data, &o, out[0], &all) == 0);
    for (int i = (ROWS - VALID) * T; i < ROWS * T; i++) {
        int best = 0;
        for (int k = 1; k < WORDS; k++)
            best = out[i][k] > out[i][best] ? k : best;
        counted += next_of[i] >= 0;
        right += next_of[i] == best;
    }
    CHECK_MSG(r.accuracy == (double)right / counted && r.accuracy > 0.8, "%g, %d of %d", r.accuracy, right, counted);
    gckpt_store_free(s);
}

/* Rows of 8, 16, 24, .. 40 tokens; many are short. */
enum { LONGEST = 40 };
static int64_t length_of(void *user, int64_t row)
{
    (void)user;
    return row % 16 == 15 ? LONGEST : 8 + row % 3 * 8;
}

static int64_t no_length(void *user, int64_t row)
{
    (void)user;
    return row != 20;
}

static int fill_words(void *user, train_batch *b)
{
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->length; t++) {
            const int64_t row = b->rows[i];
            const int64_t is_padding = t >= length_of(user, row);
            const int32_t word = (int32_t)((row + t * t) % 7 % WORDS);
            ((int32_t *)b->values[0])[i * b->length + t] = is_padding ? 0 : word;
            if (b->values[1] != NULL)
                ((int32_t *)b->values[1])[i * b->length + t] = is_padding ? -1 : (word + 1) % WORDS;
        }
    return 0;
}

static void next_words(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(layers_embed(net->in[0], "wte", WORDS, 8), "head", WORDS);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Trains on rows of different lengths. Returns a hash of the weights, or 0 if training fails. */
static uint64_t fit_lengths(train_options *o, train_report *r)
{
    const train_data data = { { { "tokens", GCKPT_I32, TRAIN_BY_LENGTH, NULL },
                                { "next", GCKPT_I32, TRAIN_BY_LENGTH, NULL } },
                              ROWS,
                              VALID };
    static float out[ROWS * LONGEST][WORDS];
    training_log *v = (training_log *)o->user;
    train_report all;
    gckpt_store *s = v->store = gckpt_store_new(NULL);
    v->epochs = 0;
    v->steps = 0;
    uint64_t hash = train_fit(s, next_words, &data, o, r) == 0 ? gckpt_store_hash(s) : 0;
    train_options all_options = *o;
    all_options.plan.budget = 0; /* a whole batch at once */
    if (hash != 0 && train_predict(s, next_words, &data, &all_options, out[0], &all) != 0) {
        memcpy(r->error, all.error, sizeof r->error);
        hash = 0;
    }
    for (int i = 0; hash != 0 && i < ROWS * LONGEST; i++) {
        const int64_t row = i / LONGEST, t = i % LONGEST;
        const int64_t word = (row + t * t) % 7 % WORDS, best = (word + 1) % WORDS;
        if (t < length_of(NULL, row) && r->accuracy >= 1)
            for (int64_t k = 0; k < WORDS; k++)
                CHECK(k == best || out[i][k] < out[i][best]);
    }
    gckpt_store_free(s);
    return hash;
}

static void test_lengths(void)
{
    static const char save[] = "build/test_train.lengths";
    static training_log v;
    train_options o = options(&v);
    train_report r, other;
    train_run t;
    o.hyper.lr = 5e-2f;
    o.batch = fill_words;
    o.length = length_of;
    const uint64_t hash = fit_lengths(&o, &r);
    CHECK_MSG(hash != 0 && r.accuracy == 1, "%g: %s", r.accuracy, r.error);
    o.lengths = 1; /* one plan for the longest rows: the same bits */
    CHECK(fit_lengths(&o, &other) == hash && same(&r, &other) && other.bytes >= r.bytes);
    o.lengths = 0;
    o.plan.budget = 1; /* the least budget of the error is enough for the plans of all lengths */
    CHECK(fit_lengths(&o, &other) == 0 && strstr(other.error, "at least ") != NULL);
    const char *least = strstr(other.error, "at least ");
    o.plan.budget = least != NULL ? (size_t)strtoull(least + 9, NULL, 10) : 0;
    CHECK_MSG(fit_lengths(&o, &other) == hash && other.bytes <= o.plan.budget, "budget %zu: %s",
              o.plan.budget, other.error);
    o.plan.budget = 0;
    o.save = save; /* a training that ends within an epoch, and resumes */
    v.stop_at = 11;
    remove(save);
    CHECK(fit_lengths(&o, &other) != hash);
    v.stop_at = 0;
    CHECK(fit_lengths(&o, &other) == hash && same(&r, &other));
    remove(save);
    remove("build/test_train.lengths.best");
    o.save = NULL;

    const train_data data = { { { "tokens", GCKPT_I32, TRAIN_BY_LENGTH, NULL },
                                { "next", GCKPT_I32, TRAIN_BY_LENGTH, NULL } },
                              ROWS,
                              VALID };
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(train_begin(&t, s, next_words, &data, &o, &other) == 0 && t.stage_count > 2);
    unsigned char seen[ROWS] = { 0 };
    int64_t padded = 0, tokens_of_rows = 0;
    for (int64_t i = 0; i < t.train_rows; i++) {
        CHECK(t.order[i] < t.train_rows && !seen[t.order[i]]++);
        tokens_of_rows += length_of(NULL, t.order[i]);
        const int64_t first = i - i % BATCH;
        const int64_t n = t.train_rows - first < BATCH ? t.train_rows - first : BATCH;
        padded += train_stage_for(&t, t.order + first, n)->length;
    }
    CHECK_MSG(padded < tokens_of_rows * 3 / 2, "%d tokens are %d with padding", (int)tokens_of_rows,
              (int)padded);
    train_end(&t);
    gckpt_store_free(s);

    o.length = no_length;
    CHECK(fit_lengths(&o, &r) == 0 && strstr(r.error, "row 20: options.length returned 0"));
    o.length = NULL;
    CHECK(fit_lengths(&o, &r) == 0 && strstr(r.error, "\"tokens\" has a width of TRAIN_BY_LENGTH"));
    o.length = length_of;
    o.lengths = LENGTHS_MOST + 1;
    CHECK(fit_lengths(&o, &r) == 0 && strstr(r.error, "lengths 17: allowed is 0 to 16"));
    o.lengths = 0;
    o.epochs = 1;
    for (long n = 1, more = 1; more && n < 51; n++) { /* each allocation fails once */
        allocations = 0;
        fail_at = n;
        more = fit_lengths(&o, &r) == 0;
        fail_at = 0;
        CHECK_MSG(more == (strstr(r.error, "out of memory") != NULL), "allocation %ld: %s", n,
                  r.error);
        CHECK(live_blocks == 0 && n < 50);
    }
}

/* A net that compares the rows of a batch with each other, so that every batch must be whole and cannot be split into
 * micro-batches. */
static void pairs(train_net *net, void *user)
{
    (void)user;
    gckpt_tensor *a = layers_dense(net->in[0], "a", 6);
    net->output = gckpt_matmul_transposed(a, layers_dense(net->in[0], "b", 6));
    net->loss = gckpt_mean_squared_error(gckpt_mean(net->output, -1), net->in[1], NULL);
}

static void test_mixed(void)
{
    static training_log v;
    train_data data = rows_of(ROWS, VALID);
    train_options o = options(&v);
    train_report r;
    gckpt_store *s = gckpt_store_new(NULL);
    data.column[1].type = GCKPT_F32;
    data.column[1].values = x;
    v.store = s;
    CHECK_MSG(train_fit(s, pairs, &data, &o, &r) == 0, "%s", r.error);
    CHECK(r.steps == 7 && v.steps == 42 && r.accuracy == -1);
    o.micro_batch = 4;
    CHECK(train_fit(s, pairs, &data, &o, &r) != 0 && strstr(r.error, "rows"));
    gckpt_store_free(s);
}

/* A likely mistake: predictions (B,1) minus targets (B) broadcast to (B,B), so each prediction is compared with the
 * targets of all rows. */
static void broadcast(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(net->in[0], "a", 1);
    gckpt_tensor *miss = gckpt_sub(net->output, net->in[1]);
    net->loss = gckpt_sum_loss(gckpt_mul(miss, miss));
}

static void normed(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(layers_batchnorm(layers_dense(net->in[0], "a", 6), "bn"), "b", 1);
    gckpt_tensor *miss = gckpt_sub(net->output, gckpt_reshape(net->in[1], gckpt_shape2(net->rows, 1)));
    net->loss = gckpt_sum_loss(gckpt_mul(miss, miss));
}

static void both(train_net *net, void *user)
{
    normed(net, user);
    gckpt_tensor *miss = gckpt_sub(net->output, net->in[1]);
    net->loss = gckpt_sum_loss(gckpt_mul(miss, miss));
}

/* Settings that are valid, but probably a mistake, must cause a warning in the report and on stderr. */
static void test_warnings(void)
{
    static training_log v;
    static float target[ROWS], order[ROWS];
    static int32_t sorted[ROWS];
    static const train_model models[] = { broadcast, normed, both };
    train_options o = options(&v);
    train_report r;
    o.epochs = 3;
    for (int i = 0; i < ROWS; i++)
        target[i] = x[i][0], order[i] = (float)i, sorted[i] = i / 50;
    for (int i = 0; i < 6; i++) {
        static const char *const says[] = { "sub mixes the rows",
                                            NULL,
                                            "sub mixes the rows",
                                            "\"class\" is 2 to 2 in the rows for validation",
                                            "the validation loss of epoch 1 is not finite",
                                            NULL };
        train_data data = rows_of(ROWS, VALID);
        gckpt_store *s = gckpt_store_new(NULL);
        v.store = s;
        v.epochs = 0;
        if (i < 3) {
            data.column[1].type = GCKPT_F32;
            data.column[1].values = target;
        }
        if (i == 3)
            data.column[1].values = sorted;
        if (i == 4)
            x[ROWS - 1][0] = NAN;
        CHECK_MSG(train_fit(s, i < 3 ? models[i] : classifier, &data, &o, &r) == 0, "%s", r.error);
        x[ROWS - 1][0] = target[ROWS - 1];
        CHECK_MSG(says[i] != NULL ? strstr(r.notes, says[i]) != NULL : r.notes[0] == 0, "%d: %s", i, r.notes);
        gckpt_store_free(s);
    }
    /* For i from 0 to 2, targets rise, fall or are shuffled. */
    for (int i = 0; i < 3; i++) {
        train_data data = rows_of(ROWS, VALID);
        gckpt_store *s = gckpt_store_new(NULL);
        v.store = s;
        v.epochs = 0;
        data.column[1].type = GCKPT_F32;
        data.column[1].values = order;
        CHECK_MSG(train_fit(s, normed, &data, &o, &r) == 0, "%s", r.error);
        CHECK_MSG((strstr(r.notes, "sorted") != NULL) == (i < 2), "%d: %s", i, r.notes);
        for (int k = 0; k < ROWS && i == 0; k++)
            order[k] = (float)-k;
        if (i == 1) {
            train_shuffle_rows(&data, 7);
            int places = 0;
            for (int k = 0; k < ROWS; k++)
                places += order[k] == (float)-k;
            CHECK(places < 10);
        }
        gckpt_store_free(s);
    }
}

/* Shuffling rows must keep the columns of a row together and each row once. The order must depend on the seed only. */
static void test_shuffle_rows(void)
{
    enum { N = 40 };
    float a[N][3], again[N][3];
    int32_t b[N];
    unsigned char c[N], seen_row[N] = { 0 };
    int same = 0;
    for (int round = 0; round < 3; round++) {
        train_data data = { { { "a", GCKPT_F32, 3, a }, { "b", GCKPT_I32, 0, b }, { "c", TRAIN_U8, 0, c } }, N, 4 };
        for (int i = 0; i < N; i++)
            a[i][0] = a[i][1] = a[i][2] = (float)i, b[i] = 2 * i, c[i] = (unsigned char)(3 * i);
        train_shuffle_rows(&data, round < 2 ? 5 : 6);
        for (int i = 0; i < N; i++) {
            const int row = (int)a[i][0];
            CHECK(a[i][1] == a[i][0] && a[i][2] == a[i][0] && b[i] == 2 * row && c[i] == 3 * row);
            seen_row[row]++;
            same += round == 2 && a[i][0] == again[i][0];
        }
        CHECK(round != 1 || memcmp(a, again, sizeof a) == 0);
        memcpy(again, a, sizeof a);
    }
    for (int i = 0; i < N; i++)
        CHECK(seen_row[i] == 3);
    CHECK(same < N / 3);
}

int main(void)
{
    uint32_t state = 5;
    for (int i = 0; i < ROWS; i++) {
        float score[CLASSES] = { 0, 0, 0 };
        for (int k = 0; k < WIDE; k++) {
            state = state * 1664525u + 1013904223u;
            x[i][k] = (float)(state >> 8) / 8388608 - 1;
            score[k % CLASSES] += x[i][k];
        }
        for (int k = 1; k < CLASSES; k++)
            class_of[i] = score[k] > score[class_of[i]] ? k : class_of[i];
    }
    test_layers();
    test_more_layers();
    test_initial_values();
    test_shared();
    test_hyper();
    test_order();
    test_same_bits();
    test_by_hand();
    test_validation();
    test_best();
    test_unvalidated();
    test_resume();
    test_refusals();
    test_memory();
    test_sequences();
    test_lengths();
    test_mixed();
    test_warnings();
    test_shuffle_rows();
    CHECK(live_blocks == 0);
    return check_report("train");
}
