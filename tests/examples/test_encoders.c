/* test_encoders.c - classifiers and embeddings in Hugging Face's files (golden/encoders.py): logits, vectors and twenty
 * steps of training must equal those of transformers and sentence-transformers, for every family and plan. A saved
 * model must have the same values. A change of a detail of the computation must change the logits.
 *
 *     build/test_encoders [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "examples/schedule.h"
#include "golden/encoders.h"
#include "util.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#define GOLDEN "tests/golden/encoders/"

enum {
    CASES = sizeof golden_encoders / sizeof golden_encoders[0],
    ROWS = ENCODERS_ROWS,
    T = ENCODERS_T,
    RESULTS = ROWS * T * 16
};
static gckpt_store *expected;
static char folder[64];
static float mask[ROWS * T];
static int32_t last[ROWS], pairs[ENCODERS_BATCH / 2] = { 0, 1 };

typedef struct {
    model_any m;
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *result; /* logits or vectors */
    gckpt_term loss;
    gckpt_feed feeds[12];
    int64_t widths[12]; /* elements of a row of each feed */
    int fed;
} built;

static model_task task_of(const char *name)
{
    return strstr(name, "_tags")    ? MODEL_TAGS
           : strstr(name, "_embed") ? MODEL_EMBED
                                    : MODEL_CLASSIFY;
}

static void open_model(built *b, const char *path, const char *name, int is_new)
{
    static const char *const labels[ENCODERS_LABELS] = { "no", "yes", "\"?\"" };
    const model_head head = { task_of(name), is_new ? ENCODERS_LABELS : 0, is_new ? labels : NULL,
                              is_new };
    memset(b, 0, sizeof *b);
    b->s = gckpt_store_new(NULL);
    CHECK_MSG(model_load_head(&b->m, b->s, path, NULL, NULL, &head) == 0, "%s: %s", path,
              b->m.error);
}

static void close_model(built *b)
{
    gckpt_store_free(b->s);
    model_close(&b->m);
}

static void feed(built *b, const gckpt_tensor *input, const void *data)
{
    const gckpt_shape s = gckpt_shape_of(input);
    b->feeds[b->fed].input = gckpt_id(input);
    b->feeds[b->fed].data = data;
    b->widths[b->fed++] = s.n > 1 ? s.d[1] : 1;
}

static encoder_text add_text(built *b, const char *prefix, int64_t rows, const int32_t *tokens,
                             const int32_t *types, const int32_t *lengths, const float *masks)
{
    const encoder_text t = encoder_input(&b->m, b->g, prefix, rows, T);
    const gckpt_tensor *const inputs[] = { t.tokens, t.lengths, t.types, t.mask };
    const void *const data[] = { tokens, lengths, types, masks };
    for (int i = 0; i < 4; i++)
        if (inputs[i] != NULL)
            feed(b, inputs[i], data[i]);
    return t;
}

static gckpt_tensor *vectors(built *b, const encoder_text *t)
{
    return encoder_mean(t, encoder_hidden(&b->m, t, NULL));
}

/* Builds the graph of a model for `rows` rows of the golden inputs. */
static void build(built *b, int64_t rows)
{
    const model_task task = b->m.config.head.task;
    const int decoder = model_has_score(&b->m.config);
    b->fed = 0;
    b->g = gckpt_graph_new(b->s, NULL);
    encoder_text t = add_text(b, "", rows, encoders_input_ids, encoders_token_type_ids,
                              decoder ? last : encoders_lengths, mask);
    if (task == MODEL_EMBED) {
        b->result = encoder_normalise(vectors(b, &t));
        return;
    }
    b->result = encoder_logits(&b->m, &t, NULL);
    gckpt_tensor *targets = gckpt_input(
        b->g, "labels", GCKPT_I32, task == MODEL_TAGS ? gckpt_shape2(rows, T) : gckpt_shape1(rows));
    b->loss.loss = gckpt_cross_entropy(b->result, targets, NULL, 0);
    b->loss.weight = 1;
    feed(b, targets, task == MODEL_TAGS ? encoders_tags : encoders_labels);
}

/* Writes the results of all golden rows to `to`, 0 for tags of padding. Returns their number. */
static int64_t run(built *b, float *to)
{
    build(b, ROWS);
    gckpt_fetch_spec fetch = { b->result, 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE,
                                   .fetch.specs = &fetch,
                                   .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(b->g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(b->g));
    gckpt_exec *e = gckpt_exec_new(p, b->s, NULL);
    const int64_t n = gckpt_shape_of(b->result).d[gckpt_shape_of(b->result).n - 1];
    const int tags = b->m.config.head.task == MODEL_TAGS;
    const int64_t all = n * ROWS * (tags ? T : 1);
    if (CHECK_MSG(gckpt_forward(e, b->feeds, b->fed, ROWS, NULL) == GCKPT_OK, "%s",
                  gckpt_error_text(e)))
        memcpy(to, gckpt_fetch(e, gckpt_id(b->result), 0), (size_t)all * sizeof *to);
    for (int64_t i = 0; tags && i < all; i++)
        to[i] = mask[i / n] > 0 ? to[i] : 0;
    util_free(e, p, b->g, NULL);
    return all;
}

/* Returns the largest difference from tensor `name` of `expected`, as a part of its largest value. */
static double apart(built *b, const char *name)
{
    static float have[RESULTS];
    gckpt_parameter want;
    double worst = 0, most = 0;
    const int64_t n = run(b, have);
    if (!CHECK(gckpt_store_get(expected, gckpt_store_find(expected, name), &want) == GCKPT_OK &&
               want.elements == n))
        return NAN;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)have[i] - (double)want.values[i]);
        worst = d > worst || isnan(d) ? d : worst;
        most = fmax(most, fabs((double)want.values[i]));
    }
    return worst / most;
}

/* Trains twenty steps, with micro-batches of `rows`. */
static void train(built *b, const char *name, const double *losses, gckpt_mode mode, int64_t rows)
{
    enum { PAIRS = ENCODERS_BATCH / 2 };
    static int32_t ids[2][ROWS / 2][T], types[2][ROWS / 2][T], lengths[2][ROWS / 2];
    static float masks[2][ROWS / 2][T];
    const int embed = task_of(name) == MODEL_EMBED;
    int64_t batch = ENCODERS_BATCH;
    if (!embed) {
        build(b, rows);
    } else { /* even rows are anchors, odd ones their positives */
        gckpt_tensor *sides[2];
        batch = PAIRS;
        b->fed = 0;
        b->g = gckpt_graph_new(b->s, NULL);
        for (int i = 0; i < ROWS; i++) {
            memcpy(ids[i % 2][i / 2], encoders_input_ids + i * T, sizeof ids[0][0]);
            memcpy(types[i % 2][i / 2], encoders_token_type_ids + i * T, sizeof ids[0][0]);
            memcpy(masks[i % 2][i / 2], mask + i * T, sizeof masks[0][0]);
            lengths[i % 2][i / 2] = encoders_lengths[i];
        }
        for (int i = 0; i < 2; i++) {
            const encoder_text t = add_text(b, i == 0 ? "a." : "b.", PAIRS, ids[i][0], types[i][0],
                                            lengths[i], masks[i][0]);
            sides[i] = vectors(b, &t);
        }
        gckpt_tensor *targets = gckpt_input(b->g, "pairs", GCKPT_I32, gckpt_shape1(PAIRS));
        b->loss.loss = encoder_contrastive(sides[0], sides[1], targets, (double)encoders_scale);
        b->loss.weight = 1;
        feed(b, targets, pairs);
    }
    const gckpt_plan_desc desc = { .mode = mode, .batch = batch };
    gckpt_plan *p = gckpt_plan_new(b->g, &b->loss, 1, &desc);
    CHECK_MSG(p != NULL, "%s: %s", name, gckpt_error_text(b->g));
    gckpt_exec *e = gckpt_exec_new(p, b->s, NULL);
    for (int step = 0; step < ENCODERS_STEPS; step++) {
        const int64_t at = step % (ROWS / ENCODERS_BATCH) * batch;
        const gckpt_hyper hyper = {
            .lr = schedule_lr(SCHEDULE_LINEAR, step, 0, ENCODERS_STEPS,
                              embed ? encoders_embed_lr : encoders_lr, 0),
            .weight_decay = encoders_decay,
            .clip = encoders_clip
        };
        gckpt_feed feeds[12];
        gckpt_report report;
        for (int i = 0; i < b->fed; i++) {
            feeds[i] = b->feeds[i];
            if (feeds[i].data != pairs)
                feeds[i].data = (const char *)feeds[i].data + at * b->widths[i] * 4;
        }
        if (!CHECK_MSG(gckpt_step(e, feeds, b->fed, batch, &hyper, &report) == GCKPT_OK, "%s: %s",
                       name, gckpt_error_text(e)))
            break;
        const double off = report.loss / losses[step] - 1;
        CHECK_MSG(fabs(off) <= 1e-5, "%s: step %d: loss %.9g, not %.9g", name, step, report.loss,
                  losses[step]);
    }
    util_free(e, p, b->g, NULL);
}

/* ---- comparison with transformers and sentence-transformers ---- */
static void test_golden(int i)
{
    const char *name = golden_encoders[i].name;
    char path[96], saved[96], trained[64];
    uint64_t hash = 0;
    snprintf(path, sizeof path, GOLDEN "%s", name);
    snprintf(saved, sizeof saved, "%s/%s", folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 2; k++) {
        built b;
        open_model(&b, path, name, 0);
        double off = apart(&b, name);
        CHECK_MSG(off <= 1e-6, "%s: results are %.3g apart", name, off);
        train(&b, name, golden_encoders[i].losses, k ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL,
              task_of(name) == MODEL_EMBED ? 2
              : k                          ? 1
                                           : 3);
        off = apart(&b, trained);
        CHECK_MSG(off <= 2e-5, "%s: results are %.3g apart", trained, off);
        CHECK_MSG(k == 0 || gckpt_store_hash(b.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(b.s);
        CHECK_MSG(model_save(&b.m, b.s, saved, GCKPT_STORAGE_F32) == 0, "%s", b.m.error);
        close_model(&b);
        open_model(&b, saved, name, 0);
        off = apart(&b, trained);
        CHECK_MSG(off <= 2e-5 && b.m.note[0] == 0, "%s, saved: results are %.3g apart; %s", trained,
                  off, b.m.note);
        close_model(&b);
    }
}

int main(int argc, char **argv)
{
    char command[96];
    snprintf(folder, sizeof folder, "%s", argc > 1 ? argv[1] : "/tmp/encoders.XXXXXX");
    CHECK(argc > 1 || mkdtemp(folder) != NULL);
    expected = gckpt_store_new(NULL);
    CHECK_MSG(gckpt_store_load(expected, GOLDEN "expected.safetensors", NULL) == GCKPT_OK, "%s",
              gckpt_error_text(expected));
    for (int i = 0; i < ROWS; i++) {
        last[i] = encoders_lengths[i] - 1;
        for (int t = 0; t < T; t++)
            mask[i * T + t] = t < encoders_lengths[i];
    }
    for (int i = 0; i < CASES; i++)
        test_golden(i);
    gckpt_store_free(expected);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(argc > 1 || system(command) == 0);
    return check_report("encoders");
}
