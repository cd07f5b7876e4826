/* test_peft.c - DoRA, modules_to_save and layers_to_transform of peft (golden/adapters.py): logits,
 * gradients, ten steps of training, generated tokens and merged weights are those of peft, in both
 * directions; they begin as the model itself, by any plan and from packed weights; what is wrong is
 * refused by name, and a full disk leaves weights and their config together, or neither.
 *     build/test_peft [folder for what is saved] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "golden/adapters.h"
#define GOLDEN       "tests/golden/adapters/"
#define GOLDEN_SAVED "golden/adapters_saved.h"
#include "tuning.h"
#include <signal.h>
#include <sys/resource.h>

enum { CASES = sizeof golden_adapters / sizeof golden_adapters[0] };
static const char gpt2[] = "tests/golden/gpt2/model", gqa[] = "tests/golden/llama/gqa",
                  mha[] = "tests/golden/llama/mha", qwen2[] = "tests/golden/llama/qwen2";

typedef struct {
    model_any m;
    gckpt_store *s;
    adapters a;
    model_options how;
} tuned;

static void open_base(tuned *t, const char *base, const model_source *source)
{
    memset(t, 0, sizeof *t);
    t->s = tuning_load(&t->m, base, source);
    t->how.hooks = &t->a.hooks;
}

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->s);
    model_close(&t->m);
}

/* ---- what peft computes ---- */
/* A file's name of what is trained; NULL: it is not. */
static const char *named(tuned *t, int i, char *name)
{
    adapters_files files;
    gckpt_parameter p;
    memset(&files, 0, sizeof files);
    files.a = &t->a;
    const char *file = gckpt_store_peek(t->s, i, &p) == GCKPT_OK ? adapters_renamed(&files, p.name)
                                                                 : NULL;
    return file != NULL ? strcpy(name, file) : NULL;
}

/* Of each gradient the sum of squares and a sum with signs, as golden/adapters.py has them. */
static void test_gradients(tuned *t, const char *what)
{
    const int count = gckpt_store_count(t->s);
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_shape shape = gckpt_shape2(GOLDEN_BATCH, GOLDEN_LENGTH);
    char name[160], other[160], full[64];
    gckpt_parameter p, want;
    int n = 0;
    gckpt_graph *g = gckpt_graph_new(t->s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { model_loss(&t->m, model_hidden(&t->m, tokens, &t->how), targets), 1, 0 };
    gckpt_pick *picks = (gckpt_pick *)calloc((size_t)count, sizeof *picks);
    for (int i = 0; i < count && gckpt_store_peek(t->s, i, &p) == GCKPT_OK; i++) {
        picks[n].tensor = p.frozen ? NULL : gckpt_param(g, p.name, p.shape, none);
        picks[n].gradient = 1;
        n += !p.frozen;
    }
    const gckpt_plan_desc desc = { .fetch = picks, .fetches = n, .batch = GOLDEN_BATCH };
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(plan, t->s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(tokens), golden_batch },
                                  { gckpt_id(targets), golden_targets } };
    const int good = gckpt_gradients(e, feeds, 2, GOLDEN_BATCH, NULL) == GCKPT_OK;
    snprintf(full, sizeof full, "%s.gradients", what);
    if (CHECK_MSG(good, "%s: %s", what, gckpt_error_text(e)) &&
        CHECK(gckpt_store_get(expected, gckpt_store_find(expected, full), &want) == GCKPT_OK &&
              want.elements == 2 * n))
        for (int i = 0, k = 0; i < count && gckpt_store_peek(t->s, i, &p) == GCKPT_OK; i++) {
            if (p.frozen)
                continue;
            const float *values = gckpt_fetch(e, gckpt_id(picks[k++].tensor), 1);
            double squares = 0, sum = 0;
            int place = 0;
            named(t, i, name);
            for (int j = 0; j < count; j++)
                place += named(t, j, other) != NULL && strcmp(other, name) < 0;
            for (int64_t j = 0; j < p.elements; j++) {
                squares += (double)values[j] * (double)values[j];
                sum += ((uint64_t)j * 2654435761u >> 15 & 1) != 0 ? -(double)values[j]
                                                                  : (double)values[j];
            }
            const double wanted = (double)want.values[2 * place], off = squares - wanted;
            const double by = sum - (double)want.values[2 * place + 1];
            CHECK_MSG(off * off <= 1e-8 * wanted * wanted &&
                          by * by <= 1e-8 * wanted * (double)p.elements,
                      "%s: the gradient of %s is %g, %g; not %g, %g", what, name, squares, sum,
                      wanted, (double)want.values[2 * place + 1]);
        }
    rig_free(e, plan, g, NULL);
    free(picks);
}

/* The same bits from every plan; what we save comes back, and peft has accepted its bytes. */
static void test_golden(int i)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, GOLDEN_BATCH };
    const char *name = golden_adapters[i].name;
    char from[96], to[96], trained[64];
    uint64_t hash = 0;
    tuned t;
    snprintf(from, sizeof from, GOLDEN "%s", name);
    snprintf(to, sizeof to, "%s/%s", tuning_folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 3; k++) {
        open_base(&t, golden_adapters[i].base, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, k < 2 ? from : to) == 0, "%s: %s", name,
                  t.m.error);
        if (k == 0)
            tuning_logits(&t.m, t.s, &t.how, name, 1e-4);
        t.a.options.dropout = 0; /* peft's gradients and losses are of an evaluating model */
        if (k == 0)
            test_gradients(&t, name);
        if (k < 2)
            tuning_train(&t.m, t.s, &t.how, name, golden_adapters[i].losses, golden_adapter_lr,
                         modes[k], rows[k]);
        tuning_logits(&t.m, t.s, &t.how, trained, 1e-4);
        CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        if (k == 0) {
            CHECK_MSG(adapters_save(&t.a, to, golden_adapters[i].base) == 0, "%s: %s", name,
                      t.m.error);
            tuning_saved(name);
        }
        end(&t);
    }
    open_base(&t, golden_adapters[i].base, NULL);
    CHECK(adapters_load(&t.a, &t.m, t.s, from) == 0);
    t.a.options.dropout = 0;
    tuning_generate(&t.m, t.s, &t.a.hooks, name, golden_adapters[i].made);
    end(&t);
}

/* Merged, the weights do what the adapter did, also as a whole model of transformers'; unmerged,
 * they are what they were. */
static void test_merge(int i)
{
    const char *name = golden_adapters[i].name;
    char from[96], folder[96];
    tuned t;
    snprintf(from, sizeof from, GOLDEN "%s", name);
    snprintf(folder, sizeof folder, "%s/merged", tuning_folder);
    open_base(&t, golden_adapters[i].base, NULL);
    CHECK_MSG(adapters_load(&t.a, &t.m, t.s, from) == 0, "%s", t.m.error);
    const uint64_t hash = gckpt_store_hash(t.s);
    CHECK_MSG(adapters_merge(&t.a) == 0, "%s", t.m.error);
    tuning_logits(&t.m, t.s, &t.how, name, 1e-4);
    CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORED_F32) == 0, "%s", t.m.error);
    CHECK_MSG(adapters_unmerge(&t.a) == 0, "%s", t.m.error);
    CHECK(gckpt_store_hash(t.s) == hash);
    end(&t);
    open_base(&t, folder, NULL);
    tuning_logits(&t.m, t.s, NULL, name, 1e-4);
    end(&t);
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (int i = 0; i < CASES; i++)
        test_golden(i);
    if (argc == 1) {
        for (int i = 0; i < CASES; i++)
            test_merge(i);
    }
    tuning_close(argc);
    return check_report("peft");
}
