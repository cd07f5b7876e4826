/* test_optimisers.c - tests examples/optimisers: 20 steps must have the losses and weights of the authors' code
 * (golden/optimisers.py); every plan, budget, micro-batch and number of threads the same bits; a resumed training those
 * of an uninterrupted one; and the plan must count the state to the byte. */
#include "gradckpt.h"
#include "check.h"
#include "examples/optimisers/adam8bit.h"
#include "examples/optimisers/apollo_mini.h"
#include "examples/optimisers/muon.h"
#include "golden/optimisers.h"
#include "util.h"

#include <math.h>

enum { ROWS = GOLDEN_ROWS, STEPS = GOLDEN_STEPS, LAYERS = 4, IN = 48, CLASSES = 8 };
static const char *const layers[LAYERS] = { "one", "two", "three", "out" };
static const int64_t sizes[LAYERS + 1] = { IN, 128, 64, 64, CLASSES };
static float x[STEPS][ROWS * IN], weights[LAYERS][128 * 64];
static int32_t y[STEPS][ROWS];

/* ---- the optimisers ---- */
static int is_hidden(const char *name, int64_t rows, int64_t columns)
{
    return rows > 1 && columns > 1 && strcmp(name, "out.w") != 0;
}
static adam8bit maps;
static muon orthogonal = { is_hidden, 2 };
static apollo_mini projected = { is_hidden, GOLDEN_SEED, 128, GOLDEN_GAP };

static const struct {
    size_t (*bytes)(void *user, const char *name, int64_t rows, int64_t columns);
    void (*update)(void *user, const gckpt_update *);
    void *user;
    size_t state;   /* bytes of state */
    double loss, w; /* tolerances: relative of losses, absolute of weights */
} kinds[] = { /* 18432 elements in hidden matrices, 512 in the last one, 264 in biases */
    { adamw_bytes, adamw_update, NULL, 8 * (18432 + 512 + 264), 3e-7, 3e-7 },
    { adam8bit_bytes, adam8bit_update, &maps, 2 * 18432 + 8 * 72 + 8 * (512 + 264), 1e-6, 3e-7 },
    { muon_bytes, muon_update, &orthogonal, 4 * 18432 + 8 * (512 + 264), 3e-7, 3e-7 },
    { apollo_mini_bytes, apollo_mini_update, &projected,
      4 * (3 * 128 + 48 + 1 + 3 * 128 + 64 + 1 + 3 * 64 + 64 + 1) + 8 * (512 + 264), 3e-7, 3e-7 },
};

/* ---- a training ---- */
typedef struct {
    gckpt_mode mode;
    int64_t rows; /* of the graph */
    int threads, least, cut;
} how;

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_feed feeds[2];
} training;

static void begin(training *t, int kind, const how *h)
{
    gckpt_graph *g = t->g = gckpt_graph_new(t->s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(h->rows, IN)), *out = in;
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(h->rows));
    const gckpt_init zero = { 0, 0, 0 };
    for (int i = 0; i < LAYERS; i++) {
        char w[16], b[16];
        snprintf(w, sizeof w, "%s.w", layers[i]), snprintf(b, sizeof b, "%s.b", layers[i]);
        gckpt_tensor *weight = gckpt_param(g, w, gckpt_shape2(sizes[i], sizes[i + 1]), zero);
        out = gckpt_linear(i ? gckpt_tanh(out) : out, weight, gckpt_param(g, b, gckpt_shape1(sizes[i + 1]), zero));
    }
    const gckpt_term term = { gckpt_cross_entropy(out, target, NULL, 0), 1, 0 };
    gckpt_plan_desc d = { .mode = h->least ? GCKPT_OPTIMAL : h->mode, .batch = ROWS, .threads = h->threads,
                          .optimiser = GCKPT_CUSTOM_OPTIMISER, .state_bytes = kinds[kind].bytes, .user = kinds[kind].user };
    d.workspace_bytes = kinds[kind].update == muon_update ? muon_workspace : NULL;
    const gckpt_exec_desc e = { .custom_optimiser = kinds[kind].update, .user = kinds[kind].user };
    d.budget = h->least ? 1 : 0;
    t->p = gckpt_plan_new(g, &term, 1, &d);
    if (h->least) {
        d.budget = util_least_budget(g);
        t->p = gckpt_plan_new(g, &term, 1, &d);
    }
    CHECK_MSG(gckpt_plan_kind_bytes(t->p, GCKPT_BYTES_STATE) == kinds[kind].state, "%s: %zu bytes of state",
              golden_runs[kind].name, gckpt_plan_kind_bytes(t->p, GCKPT_BYTES_STATE));
    t->e = gckpt_exec_new(t->p, t->s, &e);
    t->feeds[0].input = gckpt_id(in), t->feeds[1].input = gckpt_id(target);
    gckpt_store_group(t->s, "*.w", 1, 1), gckpt_store_group(t->s, "out.w", golden_runs[kind].others, 1);
    gckpt_store_group(t->s, "*.b", golden_runs[kind].others, 0);
}

static void set_weights(gckpt_store *s)
{
    for (int i = 0; i < LAYERS; i++) {
        gckpt_parameter q;
        CHECK(gckpt_store_get(s, 2 * i, &q) == GCKPT_OK);
        memcpy(q.values, weights[i], (size_t)q.elements * sizeof(float));
    }
}

/* Returns the store after all steps, with its losses. With a cut, saves and loads it after that many steps. */
static gckpt_store *run(int kind, const how *h, double *losses)
{
    training t = { .s = gckpt_store_new(NULL) };
    gckpt_hyper hyper = gckpt_hyper_lr(golden_runs[kind].lr);
    hyper.weight_decay = golden_decay;
    begin(&t, kind, h);
    set_weights(t.s);
    for (int k = 0; k < STEPS; k++) {
        gckpt_report report;
        if (k > 0 && k == h->cut) {
            file f = { 0 };
            CHECK(gckpt_store_write(t.s, file_write, &f, NULL) == GCKPT_OK);
            util_free(t.e, t.p, t.g, t.s);
            t.s = gckpt_store_new(NULL);
            CHECK(gckpt_store_read(t.s, file_read, &f, f.size, NULL) == GCKPT_OK);
            free(f.bytes);
            begin(&t, kind, h);
        }
        t.feeds[0].data = x[k], t.feeds[1].data = y[k];
        CHECK(gckpt_step(t.e, t.feeds, 2, ROWS, &hyper, &report) == GCKPT_OK);
        losses[k] = report.loss;
    }
    util_free(t.e, t.p, t.g, NULL);
    return t.s;
}

static double norm(const float *w, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)w[i] * (double)w[i];
    return sqrt(sum);
}

static void test_golden(void)
{
    static const how plain = { GCKPT_STORE_ALL, ROWS, 1, 0, 0 };
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        const golden_run *want = &golden_runs[kind];
        double losses[STEPS], loss = 0, w = 0;
        gckpt_store *s = run((int)kind, &plain, losses);
        for (int k = 0; k < STEPS; k++)
            loss = fmax(loss, fabs(losses[k] / want->losses[k] - 1));
        for (int i = 0; i < LAYERS; i++) {
            gckpt_parameter q, b;
            CHECK(gckpt_store_get(s, 2 * i, &q) == GCKPT_OK && gckpt_store_get(s, 2 * i + 1, &b) == GCKPT_OK);
            for (int j = 0; j < 8; j++)
                w = fmax(w, fabs((double)q.values[j] - want->first[i][j]));
            w = fmax(w, fabs(norm(q.values, q.elements) / want->length[i] - 1));
            w = fmax(w, fabs(norm(b.values, b.elements) - want->bias[i]));
        }
        CHECK_MSG(loss < kinds[kind].loss && w < kinds[kind].w, "%s: losses differ by %.3g, weights by %.3g", want->name,
                  loss, w);
        gckpt_store_free(s);
    }
}

static void test_bits(void)
{
    static const how ways[] = { { GCKPT_MEMORY_POOR, ROWS, 2, 0, 0 }, { GCKPT_STORE_ALL, 8, 4, 0, 13 },
                                { GCKPT_OPTIMAL, 4, 1, 1, 0 } };
    static const how plain = { GCKPT_STORE_ALL, ROWS, 1, 0, 0 };
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        double want[STEPS], losses[STEPS];
        gckpt_store *s = run((int)kind, &plain, want);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            gckpt_store *other = run((int)kind, &ways[i], losses);
            CHECK_MSG(gckpt_store_hash(s) == gckpt_store_hash(other) && !memcmp(want, losses, sizeof want), "%s, way %d",
                      golden_runs[kind].name, (int)i);
            gckpt_store_free(other);
        }
        gckpt_store_free(s);
    }
}

int main(void)
{
    adam8bit_init(&maps);
    for (int i = 0; i < LAYERS; i++)
        for (int64_t j = 0; j < sizes[i] * sizes[i + 1]; j++)
            weights[i][j] = (float)((int)below(128) - 64) / 256;
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < ROWS * IN; i++)
            x[k][i] = (float)((int)below(128) - 64) / 64;
        for (int row = 0; row < ROWS; row++)
            for (int c = 1; c < CLASSES; c++)
                if (x[k][row * IN + c] > x[k][row * IN + y[k][row]])
                    y[k][row] = c;
    }
    test_golden();
    test_bits();
    return check_report("test_optimisers");
}
