/* test_will_it_fit.c - the bytes that will_it_fit.h finds from a config.json alone equal those of plans for the model
 * with its weights: each method, storage and optimiser, on a GPT-2 and Llamas, and exactly the least budget that
 * works. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/optimisers/adam8bit.h"
#include "examples/optimisers/apollo_mini.h"
#include "examples/optimisers/muon.h"
#include "examples/will_it_fit.h"

enum { T = 24, OPTIMISERS = 4 };
static muon orthogonal;
static apollo_mini projected;
static const gckpt_plan_desc optimisers[OPTIMISERS] = {
    { .batch = 4 },
    { .batch = 4, .optimiser = GCKPT_CUSTOM_OPTIMISER, .state_bytes = adam8bit_bytes },
    { .batch = 4,
      .optimiser = GCKPT_CUSTOM_OPTIMISER,
      .state_bytes = muon_bytes,
      .workspace_bytes = muon_workspace,
      .user = &orthogonal },
    { .batch = 4,
      .optimiser = GCKPT_CUSTOM_OPTIMISER,
      .state_bytes = apollo_mini_bytes,
      .user = &projected },
};
static const gckpt_plan_desc *training = &optimisers[0];

/* Returns the bytes of the plan of a model that was loaded with its weights; a budget of 0 recomputes nothing. Returns
 * 0 if there is no plan within the budget. */
static size_t loaded_bytes(const char *dir, adapters_method method, gckpt_storage storage,
                           size_t budget)
{
    model_any m;
    adapters a;
    const adapters_options options = { .method = method };
    const model_source source = { .storage = storage,
                                  .floats = method == ADAPTERS_HEAD ? "lm_head" : NULL };
    gckpt_store *s = gckpt_store_new(NULL);
    int failed = model_load(&m, s, dir, &source) != 0 || adapters_begin(&a, &m, s, &options) != 0;
    CHECK_MSG(!failed, "%s: %s", dir, m.error);
    const model_options how = { .hooks = &a.hooks };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(1, T));
    const gckpt_term loss = { model_loss(&m, model_hidden(&m, tokens, &how), targets), 1, 0 };
    gckpt_plan_desc desc = *training;
    desc.mode = budget > 0 ? GCKPT_OPTIMAL : GCKPT_STORE_ALL;
    desc.budget = budget;
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    const size_t bytes = gckpt_plan_bytes(plan);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    adapters_end(&a);
    gckpt_store_free(s);
    model_close(&m);
    return bytes;
}

static void compare(const char *dir, const char *file, adapters_method method,
                    gckpt_storage storage)
{
    model_any m;
    will_it_fit_bytes bytes;
    will_it_fit_case of = { { .method = method }, storage, T, *training };
    CHECK_MSG(model_read_config(&m, file) == 0, "%s: %s", file, m.error);
    const int tied = m.config.tied;
    CHECK_MSG(will_it_fit(&m, &of, &bytes) == 0, "%s %s: %s", file, adapters_names[method],
              m.error);
    CHECK_MSG(m.config.tied == tied, "the model is as before");
    CHECK_MSG(bytes.most == loaded_bytes(dir, method, storage, 0),
              "%s %s %d: %zu bytes without recomputing", file, adapters_names[method], (int)storage,
              bytes.most);
    CHECK_MSG(
        loaded_bytes(dir, method, storage, bytes.least) == bytes.least &&
            bytes.least <= bytes.most && loaded_bytes(dir, method, storage, bytes.least - 1) == 0,
        "%s %s %d: %zu is the least", file, adapters_names[method], (int)storage, bytes.least);
    of.desc.budget = bytes.least;
    CHECK_MSG(will_it_fit(&m, &of, &bytes) == 0 && bytes.fits && bytes.bytes == bytes.least,
              "it fits its least bytes");
    of.desc.budget = bytes.least - 1;
    CHECK_MSG(will_it_fit(&m, &of, &bytes) == 0 && !bytes.fits, "and no fewer");
    model_close(&m);
}

int main(void)
{
    static const struct {
        const char *dir, *file;
    } models[] = { { "tests/golden/gpt2/bare", "tests/golden/gpt2/bare/config.json" },
                   { "tests/golden/llama/gqa", "tests/golden/llama/gqa" },
                   { "tests/golden/llama/gemma", "tests/golden/llama/gemma" } };
    static const gckpt_storage storages[] = { GCKPT_STORAGE_F32, GCKPT_STORAGE_I8,
                                              GCKPT_STORAGE_I4 };
    for (int i = 0; i < 3; i++)
        for (int method = 0; method < ADAPTERS_METHODS; method++)
            for (int k = 0; k < (will_it_fit_freezes((adapters_method)method) ? 3 : 1); k++)
                if (i == 0 || method == ADAPTERS_FULL || method == ADAPTERS_HEAD ||
                    method == ADAPTERS_LORA)
                    compare(models[i].dir, models[i].file, (adapters_method)method, storages[k]);
    for (int k = 1; k < OPTIMISERS; k++)
        for (int i = 0; i < 2; i++) {
            training = &optimisers[k];
            compare(models[i].dir, models[i].file, ADAPTERS_FULL, GCKPT_STORAGE_F32);
            compare(models[i].dir, models[i].file, ADAPTERS_LORA, GCKPT_STORAGE_I8);
        }
    return check_report("test_will_it_fit");
}
