/* test_llama.c - Llama-like models and adapters of them in Hugging Face's files (golden/llama.py):
 * logits, gradients, ten steps of training and generated tokens are those of transformers and peft,
 * in both directions; every method begins and ends as it says; what is wrong in a file is refused by
 * name.     build/test_llama [folder for what is saved] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "golden/llama.h"
#define GOLDEN       "tests/golden/llama/"
#define GOLDEN_SAVED "golden/llama_saved.h"
#include "tuning.h"

enum { CASES = sizeof golden_llama / sizeof golden_llama[0] };
static const model_source mapped = { GCKPT_STORED_F32, 1 };

typedef struct {
    model_any m;
    gckpt_store *s;
    adapters a;
    model_options how;
} tuned;

static int open_base(tuned *t, const char *base, const model_source *source)
{
    char folder[64];
    memset(t, 0, sizeof *t);
    snprintf(folder, sizeof folder, GOLDEN "%s", base);
    t->s = tuning_load(&t->m, folder, source);
    t->how.hooks = &t->a.hooks;
    return t->s != NULL;
}

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->s);
    model_close(&t->m);
}

/* ---- what transformers computes ---- */
/* Of each parameter's gradient, as golden/llama.py has them; in the order of names. */
static void test_gradients(tuned *t, const char *name)
{
    const int count = gckpt_store_count(t->s);
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_shape shape = gckpt_shape2(GOLDEN_BATCH, GOLDEN_LENGTH);
    char full[64];
    gckpt_parameter p, q, want;
    gckpt_graph *g = gckpt_graph_new(t->s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { model_loss(&t->m, model_hidden(&t->m, tokens, NULL), targets), 1, 0 };
    gckpt_pick *picks = (gckpt_pick *)calloc((size_t)count, sizeof *picks);
    for (int i = 0; i < count && gckpt_store_peek(t->s, i, &p) == GCKPT_OK; i++) {
        picks[i].tensor = gckpt_param(g, p.name, p.shape, none);
        picks[i].gradient = 1;
    }
    const gckpt_plan_desc desc = { .fetch = picks, .fetches = count, .batch = GOLDEN_BATCH };
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", name, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(plan, t->s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(tokens), golden_batch },
                                  { gckpt_id(targets), golden_targets } };
    const int good = gckpt_gradients(e, feeds, 2, GOLDEN_BATCH, NULL) == GCKPT_OK;
    snprintf(full, sizeof full, "%s.gradients", name);
    if (CHECK_MSG(good, "%s: %s", name, gckpt_error_text(e)) &&
        CHECK(gckpt_store_get(expected, gckpt_store_find(expected, full), &want) == GCKPT_OK &&
              want.elements == 2 * count))
        for (int i = 0; i < count && gckpt_store_peek(t->s, i, &p) == GCKPT_OK; i++) {
            const float *values = gckpt_fetch(e, gckpt_id(picks[i].tensor), 1);
            double squares = 0, sum = 0;
            int place = 0;
            for (int k = 0; k < count && gckpt_store_peek(t->s, k, &q) == GCKPT_OK; k++)
                place += strcmp(q.name, p.name) < 0;
            for (int64_t k = 0; k < p.elements; k++) {
                squares += (double)values[k] * (double)values[k];
                sum += ((uint64_t)k * 2654435761u >> 15 & 1) != 0 ? -(double)values[k]
                                                                  : (double)values[k];
            }
            const double *none_of = NULL, wanted = (double)want.values[2 * place];
            const double off = squares - wanted, by = sum - (double)want.values[2 * place + 1];
            (void)none_of;
            CHECK_MSG(off * off <= 1e-8 * wanted * wanted &&
                          by * by <= 1e-8 * wanted * (double)p.elements,
                      "%s: the gradient of %s is %g, %g; not %g, %g", name, p.name, squares, sum,
                      wanted, (double)want.values[2 * place + 1]);
        }
    rig_free(e, plan, g, NULL);
    free(picks);
}

/* The same bits from every plan, and from a file that is mapped. */
static void test_golden_model(int i)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, 1 };
    const char *name = golden_llama[i].name;
    char folder[96], trained[64];
    uint64_t hash = 0;
    snprintf(folder, sizeof folder, "%s/%s", tuning_folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 2; k++) {
        tuned t;
        open_base(&t, name, k == 1 && strcmp(name, "mha") == 0 ? &mapped : NULL);
        tuning_logits(&t.m, t.s, NULL, name, 1e-4);
        if (k == 0) {
            tuning_generate(&t.m, t.s, NULL, name, golden_llama[i].made);
            test_gradients(&t, name);
        }
        tuning_train(&t.m, t.s, NULL, name, golden_llama[i].losses, golden_lr, modes[k], rows[k]);
        tuning_logits(&t.m, t.s, NULL, trained, 1e-4);
        CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORED_F32) == 0, "%s", t.m.error);
        tuning_saved(name);
        end(&t);
        memset(&t, 0, sizeof t);
        t.s = tuning_load(&t.m, folder, NULL);
        CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        end(&t);
    }
}

static void test_golden_adapter(int i)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, GOLDEN_BATCH };
    const char *name = golden_llama[i].name;
    char from[96], to[96], base[64], trained[64];
    uint64_t hash = 0;
    tuned t;
    snprintf(from, sizeof from, GOLDEN "%s", name);
    snprintf(to, sizeof to, "%s/%s", tuning_folder, name);
    snprintf(base, sizeof base, GOLDEN "%s", golden_llama[i].base);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 3; k++) {
        open_base(&t, golden_llama[i].base, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, k < 2 ? from : to) == 0, "%s: %s", name,
                  t.m.error);
        if (k < 2) {
            tuning_logits(&t.m, t.s, &t.how, name, 1e-4);
            tuning_train(&t.m, t.s, &t.how, name, golden_llama[i].losses, golden_adapter_lr,
                         modes[k], rows[k]);
        }
        tuning_logits(&t.m, t.s, &t.how, trained, 1e-4);
        CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        if (k == 0) {
            CHECK_MSG(adapters_save(&t.a, to, base) == 0, "%s: %s", name, t.m.error);
            tuning_saved(name);
        }
        end(&t);
    }
    open_base(&t, golden_llama[i].base, NULL);
    CHECK(adapters_load(&t.a, &t.m, t.s, from) == 0);
    tuning_generate(&t.m, t.s, &t.a.hooks, name, golden_llama[i].made);
    end(&t);
}

/* Other types, names and files of the same weights. */
static void test_files(void)
{
    static const char *const models[] = { "bare", "sharded", "gqa" };
    for (int i = 0; i < 6; i++) {
        tuned t;
        open_base(&t, models[i % 3], i < 3 ? NULL : &mapped);
        tuning_logits(&t.m, t.s, NULL, i % 3 == 0 ? "bare" : "gqa", 1e-4);
        CHECK(t.m.config.eos[0] == 126 && t.m.config.eos[1] == 127 && t.m.config.eos[2] == 3 &&
              t.m.config.eos[3] == -1);
        end(&t);
    }
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (int i = 0; i < CASES; i++)
        if (golden_llama[i].base == NULL)
            test_golden_model(i);
        else
            test_golden_adapter(i);
    if (argc == 1)
        test_files();
    tuning_close(argc);
    return check_report("llama");
}
