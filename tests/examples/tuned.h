/* tuned.h - a model with or without an adapter, and its comparison with the results of transformers and peft; for
 * test_llama.c, test_windows.c and test_decoders.c. Include examples/adapters.h and tuning.h before this file. */
#ifndef TESTS_TUNED_H
#define TESTS_TUNED_H

typedef struct {
    model_any m;
    gckpt_store *s;
    adapters a;
    model_options how;
} tuned;

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->s);
    model_close(&t->m);
}

/* Generates tokens with caches, which must be `made`; if made is NULL, which must be those without caches. */
static inline void tuned_tokens(tuned *t, const model_hooks *hooks, const char *name,
                                const int32_t *made)
{
    const sample_options greedy = { 0, 0, 0, 0 };
    const generator_desc desc = { .hooks = hooks };
    int32_t own[GOLDEN_NEW];
    generator p;
    if (made == NULL) {
        if (!CHECK_MSG(generator_new(&p, &t->m, t->s, &desc) == 0, "%s: %s", name, t->m.error))
            return;
        CHECK(generator_text(&p, golden_prompt, GOLDEN_PROMPT, &greedy, GOLDEN_NEW, NULL, own, NULL,
                             NULL) == GOLDEN_NEW);
        generator_free(&p);
    }
    tuning_generate(&t->m, t->s, hooks, name, made != NULL ? made : own);
}

/* Tests the model `name`, which open_base opens. Logits, gradients, losses, the logits after training and generated
 * tokens, unless made is NULL, must equal those of transformers. Two plans and the saved and reloaded model must give
 * the same bits. */
static inline void tuned_model(void (*open_base)(tuned *, const char *, const model_source *),
                               const char *name, const double *losses, const int32_t *made)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, 1 };
    char folder[96], trained[64];
    uint64_t hash = 0;
    tuned t;
    snprintf(folder, sizeof folder, "%s/%s", tuning_folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 2; k++) {
        open_base(&t, name, NULL);
        tuning_logits(&t.m, t.s, NULL, name, 1e-4);
        if (k == 1) {
            tuned_tokens(&t, NULL, name, made);
            tuning_gradients(&t.m, t.s, name);
        }
        tuning_train(&t.m, t.s, NULL, name, losses, golden_lr, modes[k], rows[k]);
        tuning_logits(&t.m, t.s, NULL, trained, 1e-4);
        CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
        end(&t);
    }
    tuning_saved(name);
    memset(&t, 0, sizeof t);
    t.s = tuning_load(&t.m, folder, NULL);
    CHECK_MSG(gckpt_store_hash(t.s) == hash, "%s: its file has other bits", name);
    tuning_logits(&t.m, t.s, NULL, trained, 1e-4);
    end(&t);
}

/* Tests the adapter in folder GOLDEN `name` on the model `base`, which open_base opens. Logits, losses, the logits
 * after training and generated tokens, unless made is NULL, must equal those of peft. Two plans and the saved and reloaded adapter must give
 * the same bits. */
static inline void tuned_adapter(void (*open_base)(tuned *, const char *, const model_source *),
                                 const char *name, const char *base, const double *losses,
                                 const int32_t *made)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, GOLDEN_BATCH };
    char from[96], to[96], path[64], trained[64];
    uint64_t hash = 0;
    tuned t;
    snprintf(from, sizeof from, GOLDEN "%s", name);
    snprintf(to, sizeof to, "%s/%s", tuning_folder, name);
    snprintf(path, sizeof path, GOLDEN "%s", base);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 0; k < 3; k++) {
        open_base(&t, base, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, k < 2 ? from : to) == 0, "%s: %s", name,
                  t.m.error);
        if (k < 2) {
            tuning_logits(&t.m, t.s, &t.how, name, 1e-4);
            tuning_train(&t.m, t.s, &t.how, name, losses, golden_adapter_lr, modes[k], rows[k]);
        }
        tuning_logits(&t.m, t.s, &t.how, trained, 1e-4);
        CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        if (k == 0) {
            CHECK_MSG(adapters_save(&t.a, to, path) == 0, "%s: %s", name, t.m.error);
            tuning_saved(name);
        }
        end(&t);
    }
    open_base(&t, base, NULL);
    CHECK(adapters_load(&t.a, &t.m, t.s, from) == 0);
    tuned_tokens(&t, &t.a.hooks, name, made);
    end(&t);
}
#endif
