/* test_adapters.c - adapters of peft (golden/gpt2.py) load, compute, train and generate as they do
 * there, and ours load there (golden/check_peft.py); methods that peft does not have begin as the
 * model itself and come back from their files; what is wrong in a file is refused by name.
 *     build/test_adapters [folder for what is saved] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "../examples/adapters.h"
#include "tuning.h"

static const struct {
    const char *name;
    const double *losses;
    const int32_t *made;
} golden[] = { { "lora", golden_losses_lora, golden_generated_lora },
               { "patterns", golden_losses_patterns, golden_generated_patterns },
               { "prefix", golden_losses_prefix, golden_generated_prefix },
               { "prompt", golden_losses_prompt, golden_generated_prompt },
               { "adaption", golden_losses_adaption, golden_generated_adaption } };

typedef struct {
    gpt2_model m;
    gckpt_store *s;
    adapters a;
    gpt2_options how;
} tuned;

static int open_base(tuned *t)
{
    t->s = tuning_load(&t->m, GOLDEN "model", NULL);
    t->how = (gpt2_options){ .hooks = &t->a.hooks };
    return t->s != NULL;
}

static void open_saved(tuned *t, const char *folder)
{
    CHECK_MSG(open_base(t) && adapters_load(&t->a, &t->m, t->s, folder) == 0, "%s: %s", folder,
              t->m.error);
}

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->s);
    gpt2_close(&t->m);
}

static void test_peft(const char *name, const double *losses, const int32_t *made)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, GOLDEN_BATCH };
    char from[96], to[96], trained[64];
    uint64_t hash = 0;
    snprintf(from, sizeof from, GOLDEN "%s", name);
    snprintf(to, sizeof to, "%s/%s", tuning_folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int i = 0; i < 2; i++) {
        tuned t;
        open_saved(&t, from);
        tuning_logits(&t.m, t.s, &t.how, name, 1e-4);
        if (i == 0)
            tuning_generate(&t.m, t.s, &t.a.hooks, name, made);
        tuning_train(&t.m, t.s, &t.how, name, losses, golden_adapter_lr, modes[i], rows[i]);
        tuning_logits(&t.m, t.s, &t.how, trained, 1e-4);
        CHECK_MSG(i == 0 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        if (i == 0) {
            CHECK_MSG(adapters_save(&t.a, to, GOLDEN "model") == 0, "%s: %s", name, t.m.error);
            tuning_saved(name);
        }
        end(&t);
    }
    tuned again;
    open_saved(&again, to);
    CHECK_MSG(gckpt_store_hash(again.s) == hash, "%s: other bits in its file", name);
    end(&again);
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        test_peft(golden[i].name, golden[i].losses, golden[i].made);
    tuning_close(argc);
    return check_report("adapters");
}
