/* test_preference.c - tests examples/preference.h and teacher.h: for DPO and distillation, losses, norms, sums of each
 * gradient and ten steps must equal those of PyTorch in float64 (golden/preference.py, which also compares with TRL).
 * Every plan, micro-batch, number of threads and size of pieces must give the same bits, and use no more than the
 * planned bytes. The test also reads pairs of answers from JSON lines. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "examples/dataset.h"
#include "examples/gradcheck.h"
#include "examples/teacher.h"
#include "golden/preference.h"
#include "util.h"

#include <sys/stat.h>

enum { T = PREFERENCE_LENGTH, STEPS = GOLDEN_STEPS };

/* ---- a training run with its model, adapter and teacher ---- */
typedef struct {
    const char *model, *adapter, *teacher;
    gckpt_storage storage;
    double lr, beta, smoothing;
} run_desc;

typedef struct { /* the plan and the threads of a run, which must not change its bits */
    gckpt_mode mode;
    int64_t rows, piece;
    int threads, least; /* least: if nonzero, plans with the smallest budget */
} run_how;

typedef struct {
    model_any m, teacher;
    adapters a;
    gckpt_store *s;
    model_options options;
} loaded;

static void load(loaded *l, const run_desc *d)
{
    const model_source source = { .storage = d->storage };
    memset(l, 0, sizeof *l);
    l->s = gckpt_store_new(NULL);
    CHECK_MSG(model_load(&l->m, l->s, d->model, NULL) == 0, "%s", l->m.error);
    if (d->adapter != NULL)
        CHECK_MSG(adapters_load(&l->a, &l->m, l->s, d->adapter) == 0, "%s", l->m.error);
    if (d->teacher != NULL)
        CHECK_MSG(teacher_load(&l->teacher, l->s, d->teacher, &source, &l->m) == 0, "%s", l->teacher.error);
    l->options.hooks = d->adapter != NULL ? &l->a.hooks : NULL;
}

static void unload(loaded *l)
{
    adapters_end(&l->a);
    gckpt_store_free(l->s);
    model_close(&l->m);
    model_close(&l->teacher);
}

typedef struct {
    gckpt_graph *g;
    gckpt_tensor *logps;
    gckpt_term terms[2];
    int count, inputs;
    gckpt_feed feeds[4];
} built;

static void build_pairs(built *b, const loaded *l, const run_desc *d, int64_t rows, int64_t piece)
{
    gckpt_graph *g = b->g = gckpt_graph_new(l->s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, 2 * T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, 2 * T));
    gckpt_tensor *reference = gckpt_input(g, "reference", GCKPT_F32, gckpt_shape2(rows, 2));
    gckpt_tensor *label = gckpt_input(g, "label", GCKPT_F32, gckpt_shape1(rows));
    const gckpt_tensor *const all[] = { tokens, targets, reference, label };
    b->logps = preference_logps(&l->m, tokens, targets, &l->options, piece);
    b->terms[0].loss = preference_loss(b->logps, reference, label, d->beta);
    b->terms[0].weight = 1;
    b->count = 1;
    b->inputs = 4;
    for (int i = 0; i < 4; i++)
        b->feeds[i].input = gckpt_id(all[i]);
    b->feeds[0].data = dpo_tokens;
    b->feeds[1].data = dpo_targets;
}

static void build_taught(built *b, const loaded *l, int64_t rows, int64_t piece)
{
    const gckpt_shape shape = gckpt_shape2(rows, GOLDEN_LENGTH);
    gckpt_graph *g = b->g = gckpt_graph_new(l->s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_tensor *hidden = model_hidden(&l->m, tokens, &l->options);
    b->terms[0].loss = model_loss(&l->m, hidden, targets);
    b->terms[0].weight = (float)distill_alpha;
    b->terms[1].loss = teacher_loss(&l->m, hidden, &l->teacher, tokens, targets, distill_tau, piece);
    b->terms[1].weight = (float)(1 - distill_alpha);
    b->count = b->inputs = 2;
    b->feeds[0].input = gckpt_id(tokens);
    b->feeds[1].input = gckpt_id(targets);
    b->feeds[0].data = golden_batch;
    b->feeds[1].data = golden_targets;
}

static float reference[2 * PREFERENCE_PAIRS], labels[PREFERENCE_PAIRS];

/* Writes the log-probabilities of all answers to `to`, computed by an inference plan of two pairs at a time. */
static void logps_of(const loaded *l, const run_desc *d, int64_t piece, float *to)
{
    built b = { 0 };
    build_pairs(&b, l, d, 2, piece);
    b.feeds[2].data = reference;
    b.feeds[3].data = labels;
    const gckpt_fetch_spec fetch = { b.logps, 0 };
    const gckpt_plan_desc desc = {
        .mode = GCKPT_INFERENCE, .batch = PREFERENCE_PAIRS, .fetch.specs = &fetch, .fetch.count = 1
    };
    gckpt_plan *p = gckpt_plan_new(b.g, NULL, 0, &desc);
    gckpt_exec *e = p != NULL ? gckpt_exec_new(p, l->s, NULL) : NULL;
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(p != NULL ? (void *)l->s : b.g));
    CHECK(gckpt_collect(e, gckpt_id(b.logps), 0, to, 2 * PREFERENCE_PAIRS) == GCKPT_OK);
    CHECK_MSG(gckpt_forward(e, b.feeds, 2, PREFERENCE_PAIRS, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    util_free(e, p, b.g, NULL);
}

typedef struct {
    double losses[STEPS], norms[STEPS];
    uint64_t hash;
    size_t bytes, measured;
} result;

/* ---- ten steps ---- */
static int apart(double a, double b, double tolerance)
{
    const double d = a - b, most = tolerance * (b < 0 ? -b : b) + 1e-7;
    return !(d <= most && -d <= most);
}

/* Compares two sums over each trained parameter's gradient, of squares and of signed elements, with those of
 * PyTorch. */
static void check_gradients(gckpt_exec *e, const loaded *l, const built *b, int64_t rows, const preference_sums *want,
                            int count, const char *what)
{
    gckpt_report report;
    int seen = 0;
    CHECK_MSG(gckpt_gradients(e, b->feeds, b->inputs, rows, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    for (int id = 0; id < gckpt_graph_size(b->g); id++) {
        gckpt_node node;
        gckpt_parameter p;
        gckpt_graph_node(b->g, id, &node);
        if (strcmp(node.op, "param") != 0 || strncmp(node.name, TEACHER_PREFIX, strlen(TEACHER_PREFIX)) == 0 ||
            gckpt_store_peek(l->s, gckpt_store_find(l->s, node.name), &p) != GCKPT_OK || p.frozen)
            continue;
        const float *g = gckpt_fetch(e, id, 1);
        double squares = 0, sum = 0;
        int i = 0;
        for (int64_t k = 0; CHECK(g != NULL) && k < p.elements; k++) {
            squares += (double)g[k] * (double)g[k];
            sum += k % 3 == 0 ? (double)g[k] : -(double)g[k];
        }
        while (i < count && strcmp(want[i].name, node.name) != 0)
            i++;
        if (!CHECK_MSG(i < count, "%s: the oracle has no gradient of %s", what, node.name))
            continue;
        const double difference = sum - want[i].sum, root = model_sqrt(want[i].squares);
        CHECK_MSG(!apart(squares, want[i].squares, 1e-4) && difference <= 1e-5 * root + 1e-6 &&
                      difference >= -1e-5 * root - 1e-6,
                  "%s: gradient of %s: squares %.9g, sum %.9g, not %.9g, %.9g", what, node.name, squares, sum,
                  want[i].squares, want[i].sum);
        seen++;
    }
    CHECK_MSG(seen == count, "%s: %d gradients of %d", what, seen, count);
}

static result run(const run_desc *d, const run_how *how, const preference_sums *gradients, int count, const char *what,
                  float *after)
{
    const int64_t batch = d->teacher != NULL ? GOLDEN_BATCH : PREFERENCE_PAIRS;
    gckpt_fetch_spec fetches[64];
    result r;
    loaded l;
    built b = { 0 };
    memset(&r, 0, sizeof r);
    load(&l, d);
    if (d->teacher != NULL)
        build_taught(&b, &l, how->rows, how->piece);
    else
        build_pairs(&b, &l, d, how->rows, how->piece);
    b.feeds[2].data = reference;
    b.feeds[3].data = labels;
    gckpt_plan_desc desc = { .mode = how->mode, .batch = batch, .threads = how->threads, .fetch.specs = fetches };
    for (int i = 0, n = 0; gradients != NULL && i < gckpt_graph_size(b.g); i++) {
        gckpt_node node;
        gckpt_parameter p;
        gckpt_graph_node(b.g, i, &node);
        if (strcmp(node.op, "param") == 0 &&
            gckpt_store_peek(l.s, gckpt_store_find(l.s, node.name), &p) == GCKPT_OK && !p.frozen) {
            fetches[n].tensor = gckpt_param(b.g, node.name, p.shape, (gckpt_init){ 0, 0, 0 });
            fetches[n++].gradient = 1;
            desc.fetch.count = n;
        }
    }
    if (how->least) {
        desc.budget = 1;
        gckpt_plan *none = gckpt_plan_new(b.g, b.terms, b.count, &desc);
        desc.budget = util_least_budget(b.g);
        CHECK_MSG(none == NULL && desc.budget > 0, "%s: %s", what, gckpt_error_text(b.g));
    }
    gckpt_plan *p = gckpt_plan_new(b.g, b.terms, b.count, &desc);
    if (!CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(b.g)))
        return r;
    const char *op = NULL;
    CHECK_MSG(gckpt_plan_split_exact(p, &op), "%s: rows are mixed by %s", what, op);
    const gckpt_exec_desc exec = { .debug = GCKPT_DEBUG_MEASURE, .parallel_for = how->threads > 1 ? any_order : NULL };
    gckpt_exec *e = gckpt_exec_new(p, l.s, &exec);
    CHECK_MSG(e != NULL, "%s: %s", what, gckpt_error_text(l.s));
    if (gradients != NULL)
        check_gradients(e, &l, &b, batch, gradients, count, what);
    for (int step = 0; step < STEPS; step++) {
        const gckpt_hyper hyper = { .lr = (float)d->lr, .weight_decay = golden_decay, .clip = golden_clip };
        gckpt_report report;
        if (!CHECK_MSG(gckpt_step(e, b.feeds, b.inputs, batch, &hyper, &report) == GCKPT_OK, "%s: %s", what,
                       gckpt_error_text(e)))
            break;
        r.losses[step] = report.loss;
        r.norms[step] = report.grad_norm;
        CHECK_MSG(report.count == (d->teacher != NULL ? GOLDEN_COUNT : PREFERENCE_PAIRS), "%s: %d count", what,
                  (int)report.count);
    }
    r.bytes = gckpt_plan_bytes(p);
    r.measured = gckpt_bytes_measured(e);
    r.hash = gckpt_store_hash(l.s);
    util_free(e, p, b.g, NULL);
    if (after != NULL)
        logps_of(&l, d, how->piece, after);
    unload(&l);
    return r;
}

static void check_run(const result *r, const double *losses, const double *norms, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        CHECK_MSG(!apart(r->losses[i], losses[i], 1e-5) && !apart(r->norms[i], norms[i], 1e-4),
                  "%s: step %d: loss %.9g, norm %.9g, not %.9g, %.9g", what, i, r->losses[i], r->norms[i], losses[i],
                  norms[i]);
    CHECK_MSG(r->bytes == r->measured, "%s: %zu bytes planned, %zu touched", what, r->bytes, r->measured);
}

static void check_same(const result *r, const result *first, const char *what, int how)
{
    CHECK_MSG(memcmp(r->losses, first->losses, sizeof r->losses) == 0 &&
                  memcmp(r->norms, first->norms, sizeof r->norms) == 0 && r->hash == first->hash,
              "%s: plan %d has other bits: loss %.17g, norm %.17g, not %.17g, %.17g in the last step", what, how,
              r->losses[STEPS - 1], r->norms[STEPS - 1], first->losses[STEPS - 1], first->norms[STEPS - 1]);
    CHECK_MSG(r->bytes == r->measured, "%s: plan %d: %zu bytes planned, %zu touched", what, how, r->bytes, r->measured);
}

/* Entry 0 is compared with PyTorch, all others with entry 0. If the head is trained, results depend on the size of
 * pieces. */
static const run_how hows[] = {
    { GCKPT_STORE_ALL, 2, 5, 1, 0 },   { GCKPT_STORE_ALL, 5, 5, 1, 0 }, { GCKPT_MEMORY_POOR, 1, 5, 2, 0 },
    { GCKPT_OPTIMAL, 1, 5, 1, 1 },     { GCKPT_OPTIMAL, 3, 5, 2, 1 },   { GCKPT_SEGMENTS, 2, 5, 1, 0 },
    { GCKPT_STORE_ALL, 2, T, 1, 0 },   { GCKPT_OPTIMAL, 2, 1, 1, 1 },   { GCKPT_STORE_ALL, 4, 7, 2, 0 },
};
enum { HOWS = sizeof hows / sizeof hows[0], SAME_PIECES = 6 };

/* ---- DPO ---- */
#define DPO(name)                                                                                                      \
    dpo_reference_##name, dpo_rewards_##name, dpo_losses_##name, dpo_norms_##name, dpo_after_##name,                   \
        dpo_gradients_##name, sizeof dpo_gradients_##name / sizeof dpo_gradients_##name[0]
static const struct {
    run_desc d;
    const double *reference, *rewards, *losses, *norms, *after;
    const preference_sums *gradients;
    int count;
} dpo[] = {
    { { "tests/golden/gpt2/model", NULL, NULL, GCKPT_STORAGE_F32, 5e-4, 0.1, 0 }, DPO(gpt2) },
    { { "tests/golden/gpt2/model", "tests/golden/gpt2/lora", NULL, GCKPT_STORAGE_F32, 5e-3, 0.1, 0 }, DPO(gpt2_lora) },
    { { "tests/golden/llama/gqa", NULL, NULL, GCKPT_STORAGE_F32, 5e-4, 0.1, 0 }, DPO(llama) },
    { { "tests/golden/llama/gqa", "tests/golden/llama/lora", NULL, GCKPT_STORAGE_F32, 5e-3, 0.5, 0.1 },
      DPO(llama_lora) },
};

static void test_dpo(int i)
{
    const run_desc *d = &dpo[i].d;
    const run_desc base = { d->model, NULL, NULL, GCKPT_STORAGE_F32, 0, d->beta, 0 };
    const char *what = d->adapter != NULL ? d->adapter : d->model;
    float after[2 * PREFERENCE_PAIRS], begin[2 * PREFERENCE_PAIRS];
    preference_stats said = { 0 };
    loaded l;
    for (int k = 0; k < PREFERENCE_PAIRS; k++)
        labels[k] = (float)(1 - d->smoothing);
    memset(reference, 0, sizeof reference);
    load(&l, &base);
    logps_of(&l, &base, 3, reference); /* reference log-probabilities: those of the model without the adapter */
    unload(&l);
    load(&l, d);
    logps_of(&l, d, T, begin);
    unload(&l);
    for (int k = 0; k < 2 * PREFERENCE_PAIRS; k++)
        CHECK_MSG(!apart((double)reference[k], dpo[i].reference[k], 1e-6),
                  "%s: answer %d: %.9g by the reference, not %.9g", what, k, (double)reference[k], dpo[i].reference[k]);
    for (int k = 0; k < PREFERENCE_PAIRS; k++)
        preference_add(&said, begin + 2 * k, reference + 2 * k, d->beta, 0);
    preference_mean(&said);
    const double have[4] = { said.chosen, said.rejected, said.accuracy, said.margin };
    for (int k = 0; k < 4; k++) {
        const double difference = have[k] - dpo[i].rewards[k];
        CHECK_MSG(difference <= 2e-6 && difference >= -2e-6, "%s: reward %d is %.9g, not %.9g", what, k, have[k],
                  dpo[i].rewards[k]);
    }
    const result first = run(d, &hows[0], dpo[i].gradients, dpo[i].count, what, after);
    check_run(&first, dpo[i].losses, dpo[i].norms, what);
    for (int k = 0; k < 2 * PREFERENCE_PAIRS; k++)
        CHECK_MSG(!apart((double)after[k], dpo[i].after[k], 1e-5), "%s: answer %d after ten steps: %.9g, not %.9g",
                  what, k, (double)after[k], dpo[i].after[k]);
    for (int k = 1; k < (d->adapter != NULL ? HOWS : SAME_PIECES); k++) {
        const result r = run(d, &hows[k], NULL, 0, what, NULL);
        check_same(&r, &first, what, k);
    }
}

/* ---- distillation ---- */
#define TAUGHT(name)                                                                                                   \
    distill_losses_##name, distill_norms_##name, distill_gradients_##name,                                             \
        sizeof distill_gradients_##name / sizeof distill_gradients_##name[0]
static const struct {
    run_desc d;
    const double *losses, *norms;
    const preference_sums *gradients;
    int count;
} taught[] = {
    { { "tests/golden/gpt2/model", NULL, "tests/golden/llama/mqa", GCKPT_STORAGE_F32, 2e-3, 0, 0 }, TAUGHT(gpt2) },
    { { "tests/golden/gpt2/model", "tests/golden/gpt2/lora", "tests/golden/llama/mqa", GCKPT_STORAGE_F32, 5e-3, 0, 0 },
      TAUGHT(gpt2_lora) },
    { { "tests/golden/llama/gqa", NULL, "tests/golden/gpt2/model", GCKPT_STORAGE_F32, 2e-3, 0, 0 }, TAUGHT(llama) },
};

static void test_taught(int i)
{
    const run_desc *d = &taught[i].d;
    const char *what = d->adapter != NULL ? d->adapter : d->model;
    const result first = run(d, &hows[0], taught[i].gradients, taught[i].count, what, NULL);
    check_run(&first, taught[i].losses, taught[i].norms, what);
    for (int k = 1; k < (d->adapter != NULL ? HOWS : SAME_PIECES); k++) {
        const result r = run(d, &hows[k], NULL, 0, what, NULL);
        check_same(&r, &first, what, k);
    }
}

/* Distillation from a teacher quantised to int8: every plan must give the same bits, losses close to those with the
 * float teacher, and fewer bytes; the teacher must stay unchanged. */
static void test_packed_teacher(void)
{
    run_desc d = taught[1].d;
    const result floats = run(&d, &hows[0], NULL, 0, "a teacher as floats", NULL);
    d.storage = GCKPT_STORAGE_I8;
    const result first = run(&d, &hows[0], NULL, 0, "a teacher as int8", NULL);
    CHECK_MSG(first.bytes < floats.bytes && first.hash != floats.hash, "int8 takes %zu bytes, floats %zu", first.bytes,
              floats.bytes);
    CHECK_MSG(!apart(first.losses[0], floats.losses[0], 0.02), "int8: loss %.9g, floats %.9g", first.losses[0],
              floats.losses[0]);
    for (int k = 2; k < SAME_PIECES; k++) {
        const result r = run(&d, &hows[k], NULL, 0, "a teacher as int8", NULL);
        check_same(&r, &first, "a teacher as int8", k);
    }
}

static void test_wrong_teacher(void)
{
    model_any m, teacher;
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(model_load(&m, s, "tests/golden/gpt2/model", NULL) == 0);
    m.config.vocabulary++;
    CHECK(teacher_load(&teacher, s, "tests/golden/llama/gqa", NULL, &m) != 0 &&
          strstr(teacher.error, "has a vocabulary of 128 tokens, the model that learns one of 129") != NULL);
    CHECK(teacher_load(&teacher, s, "tests/golden/none", NULL, &m) != 0 &&
          strstr(teacher.error, "config.json") != NULL);
    gckpt_store_free(s);
    model_close(&m);
}

/* Compares the gradients of preference.h's and teacher.h's ops with finite differences, and tests inputs that they
 * refuse. */
static void test_ops(void)
{
    enum { N = 3, LONG = 5, V = 7 };
    static const int32_t index[N * LONG] = { 1, -1, 6, 0, 2, -1, -1, -1, -1, -1, 3, 3, 5, -1, 4 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(N, LONG));
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(N, LONG, V)), *in[2], *parts[2];
    const int32_t from[2] = { 0, 3 };
    x = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape2(LONG, V), (gckpt_init){ 1, 0, 0 }));
    for (int i = 0; i < 2; i++) {
        in[0] = gckpt_slice(x, 1, from[i], i == 0 ? 3 : LONG);
        in[1] = targets;
        parts[i] = gckpt_apply(&preference_taken, in, 2, &from[i], sizeof from[i]);
    }
    in[0] = gckpt_tanh(preference_join(parts, 2));
    const gckpt_term term = { gckpt_apply(&teacher_counted, in, 2, NULL, 0), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float data[N * LONG * V];
    for (int i = 0; i < N * LONG * V; i++)
        data[i] = (float)(i % 11 - 5) / 5;
    gckpt_feed feeds[2] = { { gckpt_id(targets), index }, { 1, data } };
    gckpt_report report;
    CHECK(gckpt_gradients(e, feeds, 2, N, &report) == GCKPT_OK && report.count == 8);
    gckpt_parameter w;
    double sum = 0;
    gckpt_store_get(s, 0, &w);
    for (int i = 0; i < N * LONG; i++) {
        const int32_t k = index[i];
        const double y = k >= 0 ? (double)data[i * V + k] * (double)w.values[i % LONG * V + k] : 0;
        const double z = y < 0 ? -y : y, q = sample_exp(-2 * z);
        sum += (y < 0 ? -1 : 1) * (1 - q) / (1 + q);
    }
    CHECK_MSG(!apart(report.loss, sum / 8, 1e-5), "loss %.9g, not %.9g", report.loss, sum / 8);
    gradcheck_result check;
    CHECK_MSG(gradcheck(s, &term, 1, NULL, feeds, 2, N, &check) == GCKPT_OK, "%s", check.text);
    CHECK(gckpt_apply(&preference_taken, in, 2, &from[0], sizeof from[0]) == NULL &&
          strstr(gckpt_error_text(g), "taken: x") != NULL);
    util_free(e, p, g, s);
}

int main(void)
{
    for (int i = 0; i < (int)(sizeof dpo / sizeof dpo[0]); i++)
        test_dpo(i);
    for (int i = 0; i < (int)(sizeof taught / sizeof taught[0]); i++)
        test_taught(i);
    test_packed_teacher();
    test_wrong_teacher();
    test_ops();
    return check_report("preference");
}
