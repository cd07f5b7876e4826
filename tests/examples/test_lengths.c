/* test_lengths.c - for GPT-2 and a Llama, a step's loss, gradients and updated weights must not depend on T, the length
 * to which rows are padded. Training by turns with plans of several T, which share the store and an arena, must equal
 * training with a single plan. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/generate.h"

enum { ROWS = 5, STEPS = 4 };
static const int64_t lengths[STEPS] = { 5, 9, 7, 9 }, longest = 16;

typedef struct {
    gckpt_plan *plan;
    gckpt_exec *exec;
    gckpt_feed feeds[2];
    int32_t tokens[ROWS * 16], targets[ROWS * 16];
} step_run;

static void plan_step(step_run *r, model_any *m, gckpt_store *s, int64_t T, int64_t micro)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(micro, T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(micro, T));
    const gckpt_term loss = { model_loss(m, model_hidden(m, tokens, NULL), targets), 1, 0 };
    gckpt_plan_desc desc = { 0 };
    desc.mode = GCKPT_STORE_ALL;
    desc.batch = ROWS;
    r->feeds[0].input = gckpt_id(tokens);
    r->feeds[1].input = gckpt_id(targets);
    r->feeds[0].data = r->tokens;
    r->feeds[1].data = r->targets;
    r->plan = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(r->plan != NULL, "%s", gckpt_error_text(g));
    gckpt_graph_free(g);
}

/* Makes ROWS rows of 2 to `most` tokens, padded to T tokens. Some tokens have no target (-1). */
static void fill(step_run *r, int64_t T, int64_t most, int step)
{
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t t = 0; t < T; t++) {
            const int64_t length = i == 0 ? most : 2 + (i * 3 + step) % (most - 1), at = i * T + t;
            r->tokens[at] = t < length ? (int32_t)((7 * t + 11 * i + step) % 40) : 0;
            r->targets[at] = t < length && t % 3 != i % 2 ? (int32_t)((5 * t + i + step) % 40) : -1;
        }
}

/* Trains STEPS steps. If `classes` is nonzero, each step uses a plan for its own length; if 0, all steps use a plan for
 * the longest length. */
static void train(const char *folder, int classes, int64_t micro, double *losses, double *norms, gckpt_store **out)
{
    static step_run runs[STEPS];
    static char arena[1 << 24];
    model_any m;
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK_MSG(model_load(&m, s, folder, NULL) == 0, "%s", m.error);
    gckpt_exec_desc e = { 0 };
    e.arena = arena + (64 - (uintptr_t)arena % 64) % 64;
    e.arena_size = sizeof arena - 64;
    for (int i = 0; i < STEPS; i++) /* makes all plans before the first step */
        plan_step(&runs[i], &m, s, classes ? lengths[i] : longest, micro);
    for (int i = 0; i < STEPS; i++) {
        runs[i].exec = gckpt_exec_new(runs[i].plan, s, &e);
        CHECK_MSG(runs[i].exec != NULL, "%s", gckpt_error_text(s));
    }
    for (int i = 0; i < STEPS; i++) {
        gckpt_hyper hyper = { 0 };
        gckpt_report report;
        hyper.lr = 1e-2f;
        hyper.clip = 1;
        fill(&runs[i], classes ? lengths[i] : longest, lengths[i], i);
        CHECK_MSG(gckpt_step(runs[i].exec, runs[i].feeds, 2, ROWS - (i == 2), &hyper, &report) == GCKPT_OK, "%s",
                  gckpt_error_text(runs[i].exec));
        losses[i] = report.loss;
        norms[i] = report.grad_norm;
    }
    for (int i = 0; i < STEPS; i++) {
        gckpt_exec_free(runs[i].exec);
        gckpt_plan_free(runs[i].plan);
    }
    model_close(&m);
    *out = s;
}

static int near(double a, double b, double tolerance) { return a - b <= tolerance * b && b - a <= tolerance * b; }

static void test_model(const char *folder, int64_t micro)
{
    double loss[2][STEPS], norm[2][STEPS], most = 0;
    gckpt_store *s[2];
    gckpt_parameter p, q;
    int same = 1;
    for (int i = 0; i < 2; i++)
        train(folder, i, micro, loss[i], norm[i], &s[i]);
    for (int i = 0; i < STEPS; i++) {
        CHECK_MSG(near(loss[0][i], loss[1][i], 1e-6) && near(norm[0][i], norm[1][i], 1e-5),
                  "%s, step %d: loss %.9g, padded %.9g; gradient %.9g, %.9g", folder, i, loss[1][i], loss[0][i],
                  norm[1][i], norm[0][i]);
        same = same && loss[0][i] == loss[1][i] && norm[0][i] == norm[1][i];
    }
    for (int i = 0; gckpt_store_get(s[0], i, &p) == GCKPT_OK && gckpt_store_get(s[1], i, &q) == GCKPT_OK; i++)
        for (int64_t k = 0; k < p.elements; k++) {
            const double far = (double)p.values[k] - (double)q.values[k];
            most = far > most ? far : -far > most ? -far : most;
        }
    CHECK_MSG(most < 1e-6, "%s: a weight differs by %g", folder, most);
    printf("%s, %d rows at once: losses and gradients %s, weights within %.2g\n", folder, (int)micro,
           same ? "to the bit" : "to rounding", most);
    gckpt_store_free(s[0]);
    gckpt_store_free(s[1]);
}

int main(void)
{
    test_model("tests/golden/gpt2/model", ROWS);
    test_model("tests/golden/gpt2/model", 2);
    test_model("tests/golden/llama/gqa", 2);
    return check_report("lengths");
}
