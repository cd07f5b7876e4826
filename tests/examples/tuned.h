/* tuned.h - a model with an adapter, and its comparison with the results of peft; for test_llama.c and test_windows.c.
 * Include examples/adapters.h and tuning.h before this file. */
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

/* Tests the adapter in folder GOLDEN `name` on the model `base`, which open_base opens. Logits, losses, the logits
 * after training and generated tokens must equal those of peft. Two plans and the saved and reloaded adapter must give
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
    tuning_generate(&t.m, t.s, &t.a.hooks, name, made);
    end(&t);
}
#endif
