/* test_adapters.c - adapters of peft (golden/gpt2.py) must load, compute, train and generate as in peft, and peft must
 * load adapters saved here (golden/check_peft.py). Methods that peft lacks must be saved and loaded as well. Errors in
 * a file must be refused with the name of the wrong key.
 *
 *     build/test_adapters [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "tuning.h"

static const struct {
    const char *name;
    const double *losses;
    const int32_t *generated;
} golden[] = { { "lora", golden_losses_lora, golden_generated_lora },
               { "patterns", golden_losses_patterns, golden_generated_patterns },
               { "biases", golden_losses_biases, golden_generated_biases },
               { "prefix", golden_losses_prefix, golden_generated_prefix },
               { "prompt", golden_losses_prompt, golden_generated_prompt },
               { "adaption", golden_losses_adaption, golden_generated_adaption } };

typedef struct {
    model_any m;
    gckpt_store *s;
    adapters a;
    model_options how;
} tuned;

static int open_base(tuned *t)
{
    t->s = tuning_load(&t->m, GOLDEN "model", NULL);
    t->how = (model_options){ .hooks = &t->a.hooks };
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
    model_close(&t->m);
}

static void test_peft(const char *name, const double *losses, const int32_t *generated)
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
            tuning_generate(&t.m, t.s, &t.a.hooks, name, generated);
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

/* Merged weights must compute the results of the adapter; unmerging must restore the old weights. */
static void test_merge(void)
{
    tuned t;
    open_saved(&t, GOLDEN "patterns");
    const uint64_t hash = gckpt_store_hash(t.s);
    char folder[96];
    model_any m;
    snprintf(folder, sizeof folder, "%s/merged", tuning_folder);
    CHECK(adapters_unmerge(&t.a) != 0 && strstr(t.m.error, "nothing is merged"));
    CHECK_MSG(adapters_merge(&t.a) == 0, "%s", t.m.error);
    CHECK(adapters_merge(&t.a) != 0 && strstr(t.m.error, "merged already"));
    tuning_logits(&t.m, t.s, &t.how, "patterns", 1e-4);
    CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    CHECK_MSG(adapters_unmerge(&t.a) == 0, "%s", t.m.error);
    CHECK(gckpt_store_hash(t.s) == hash);
    tuning_logits(&t.m, t.s, &t.how, "patterns", 1e-4);
    end(&t);
    gckpt_store *plain = tuning_load(&m, folder, NULL); /* the merged model, saved with the names of transformers */
    tuning_logits(&m, plain, NULL, "patterns", 1e-4);
    gckpt_store_free(plain);
    model_close(&m);
}

/* Tests every method: the number of trained parameters, whether the untrained adapter computes the unchanged model,
 * that training lowers the loss, and that the saved file restores the trained parameters. */
static void test_methods(void)
{
    enum { C = GOLDEN_DIM, L = GOLDEN_LAYERS, V = GOLDEN_VOCABULARY, BLOCK = 12 * C * C + 13 * C };
    static const struct {
        adapters_options options;
        int64_t trains;
        int begins; /* if nonzero, logits of an untrained adapter are within 1e-4 of the model's */
    } all[] = {
        { { .method = ADAPTERS_FULL }, (V + GOLDEN_POSITIONS + 2) * C + L * BLOCK, 1 },
        { { .method = ADAPTERS_LAST }, BLOCK + 2 * C, 1 },
        { { .method = ADAPTERS_LAST, .layers = L }, L * BLOCK + 2 * C, 1 },
        { { .method = ADAPTERS_HEAD }, V * C, 1 },
        { { .method = ADAPTERS_BIAS }, L * 11 * C + C, 1 },
        { { .method = ADAPTERS_NEW_BLOCKS }, BLOCK, 1 },
        { { .method = ADAPTERS_LORA, .size = 2 }, L * 2 * 4 * C, 1 },
        { { .method = ADAPTERS_LORA, .targets = "h.0.mlp.c_(fc|proj)", .size = 1 }, 10 * C, 1 },
        { { .method = ADAPTERS_HOULSBY, .size = 4 }, L * (2 * (9 * C + 4) + 4 * C) + 2 * C, 0 },
        { { .method = ADAPTERS_LLAMA, .size = 3 }, L * (3 * C + 1), 1 },
        { { .method = ADAPTERS_PREFIX, .size = 3 }, L * 2 * 3 * C, 0 },
        { { .method = ADAPTERS_PREFIX, .size = 3, .hidden = 5 },
          3 * C + 5 * C + 5 + L * 2 * C * 6,
          0 },
        { { .method = ADAPTERS_PROMPT, .size = 3 }, 3 * C, 0 }
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *name = adapters_names[all[i].options.method];
        char folder[96];
        float before[LOGITS], after[LOGITS], again[LOGITS];
        tuned t, u;
        snprintf(folder, sizeof folder, "%s/method", tuning_folder);
        if (!open_base(&t) || !CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &all[i].options) == 0,
                                         "%s: %s", name, t.m.error))
            continue;
        CHECK_MSG(adapters_trainable(t.s) == all[i].trains, "%s: %lld parameters", name,
                  (long long)adapters_trainable(t.s));
        if (all[i].begins)
            tuning_logits(&t.m, t.s, &t.how, "model", 1e-4);
        tuning_run(&t.m, t.s, &t.how, name, before);
        tuning_train(&t.m, t.s, &t.how, name, NULL, golden_adapter_lr, GCKPT_STORE_ALL,
                     GOLDEN_MICRO);
        tuning_run(&t.m, t.s, &t.how, name, after);
        CHECK_MSG(memcmp(before, after, sizeof after), "%s: has not learned", name);
        CHECK_MSG(adapters_save(&t.a, folder, NULL) == 0, "%s: %s", name, t.m.error);
        end(&t);

        if (all[i].options.method == ADAPTERS_FULL) {
            u.s = tuning_load(&u.m, folder, NULL);
            memset(&u.a, 0, sizeof u.a);
            u.how = (model_options){ 0 };
        } else {
            open_saved(&u, folder);
        }
        tuning_run(&u.m, u.s, &u.how, name, again);
        CHECK_MSG(!memcmp(after, again, sizeof after) || all[i].options.hidden,
                  "%s: its file gives other logits", name);
        end(&u);
    }
}

/* LoRA on quantised weights: logits must be close to the model's, and every plan must give the same bits. */
static void test_packed(void)
{
    static const gckpt_storage types[] = { GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16, GCKPT_STORAGE_I8 };
    static const double near[] = { 0.05, 0.01, 0.2 };
    const adapters_options lora = { .method = ADAPTERS_LORA };
    for (int i = 0; i < 3; i++) {
        uint64_t hash = 0;
        for (int k = 0; k < 2; k++) {
            const model_source packed = { .storage = types[i] };
            tuned t = { .how = { 0 } };
            t.s = tuning_load(&t.m, GOLDEN "model", &packed);
            t.how.hooks = &t.a.hooks;
            CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &lora) == 0, "%s", t.m.error);
            tuning_logits(&t.m, t.s, &t.how, "model", near[i]);
            tuning_train(&t.m, t.s, &t.how, "packed", NULL, golden_adapter_lr,
                         k ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, k ? 2 : GOLDEN_BATCH);
            CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "storage %d: other bits", i);
            hash = gckpt_store_hash(t.s);
            CHECK(adapters_merge(&t.a) != 0 && strstr(t.m.error, "is quantised"));
            end(&t);
        }
    }
}

/* Targets, ranks and alphas that match no module must be refused with their name. In peft's files, ranks and alphas
 * without a module are ignored, as in peft. The target "all-linear" is every layer except the head. */
static void test_targets(void)
{
    enum { C = GOLDEN_DIM, L = GOLDEN_LAYERS };
    static const struct {
        /* `says` is the expected error, or NULL if an adapter with these options must train `trains` parameters. */
        const char *targets, *ranks, *alphas, *says;
        int64_t trains;
    } all[] = {
        { "c_attn,c_fz", NULL, NULL,
          "target \"c_fz\" matches no layer; allowed are attn.c_attn, attn.c_proj, mlp.c_fc and mlp.c_proj in h.0 to h.1",
          0 },
        { "h.7.attn.c_attn,c_fc", NULL, NULL, "target \"h.7.attn.c_attn\" matches no layer", 0 },
        { "c_attn,lm_head", NULL, NULL, "targets \"c_attn,lm_head\" match lm_head, but only", 0 },
        { "c_attn,wte", NULL, NULL, "targets \"c_attn,wte\" match wte, but only layers", 0 },
        { "all-liner", NULL, NULL, "or all-linear", 0 },
        { "c_attn,all-linear", NULL, NULL, "target \"all-linear\" matches no layer", 0 },
        { "c_attn", "c_attn=2,c_fc=4", NULL, "\"c_fc=4\" matches none of the targets, \"c_attn\"",
          0 },
        { "c_attn", NULL, "c_attm=2", "\"c_attm=2\" matches none of the targets", 0 },
        { "c_attn", "c_attn", NULL, "and '=' and a number", 0 },
        { "all-linear", "mlp.c_proj=2", NULL, NULL, L * (4 * C + 2 * C + 5 * C + 2 * 5 * C) },
        { "c_attn,c_proj,c_fc", NULL, "c_fc=2", NULL, L * (4 * C + 2 * C + 5 * C + 5 * C) },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const adapters_options o = { .method = ADAPTERS_LORA,
                                     .size = 1,
                                     .targets = all[i].targets,
                                     .rank_pattern = all[i].ranks,
                                     .alpha_pattern = all[i].alphas };
        tuned t;
        open_base(&t);
        const int failed = adapters_begin(&t.a, &t.m, t.s, &o) != 0;
        CHECK_MSG(all[i].says ? failed && strstr(t.m.error, all[i].says)
                              : !failed && adapters_trainable(t.s) == all[i].trains,
                  "%s: %s, %lld parameters", all[i].targets, failed ? t.m.error : "taken",
                  (long long)adapters_trainable(t.s));
        end(&t);
    }
    static const tuning_edit files[] = { { "lora", "adapter_config.json", "\"c_attn\"",
                                           "\"c_attn\", \"q_proj\"", NULL, 0 },
                                         { "lora", "adapter_config.json", "\"rank_pattern\": {}",
                                           "\"rank_pattern\": {\"q_proj\": 3}", NULL, 0 } };
    for (int i = 0; i < 2; i++) {
        tuned t;
        open_saved(&t, tuning_wrong(&files[i]));
        end(&t);
    }
}

static void test_wrong(void)
{
    static const char weights[] = "adapter_model.safetensors", config[] = "adapter_config.json";
    static const tuning_edit edits[] = {
        { "lora", weights, NULL, NULL, "lora_", 3000 },
        { "lora", weights, NULL, NULL, "cut off", 100 },
        { "lora", weights, NULL, NULL, weights, 0 },
        { "lora", weights, "h.1.attn.c_attn.lora_B", "h.1.attn.c_proj.lora_B", "c_proj.lora_B", 0 },
        { "lora", weights, "[96,4]", "[4,96]", "lora_B", 0 },
        { "lora", weights, "\"F32\"", "\"U32\"", "U32", 0 },
        { "lora", config, NULL, NULL, config, 0 },
        { "lora", config, NULL, NULL, config, 200 },
        { "lora", config, "\"LORA\"", "\"IA3\"", "IA3", 0 },
        { "lora", config, "\"r\": 4", "\"r\": 5", "lora_", 0 },
        { "lora", config, "\"r\": 4", "\"r\": 900000", "values, more than its file of", 0 },
        { "lora", config, "\"r\": 4", "\"r\": 0.5", "r: expected", 0 },
        { "lora", config, "\"c_attn\"", "\"q_proj\"", "q_proj", 0 },
        { "lora", config, "\"c_attn\"", "\"c_(attn\"", "c_(attn", 0 },
        { "lora", config, "\"c_attn\"", "\"c_attn\", \"c_fc\"", "c_fc", 0 },
        { "lora", config, "[\n    \"c_attn\"\n  ]", "\"all-linear\"",
          "no tensor for \"h.0.attn.c_proj", 0 },
        { "lora", config, "use_dora\": false", "use_dora\": true",
          "no tensor for \"h.0.attn.c_attn.lora_magnitude_vector\"", 0 },
        { "lora", config, "modules_to_save\": null", "modules_to_save\": [\"wte\"]",
          "no tensor for \"wte.weight\"", 0 },
        { "lora", config, "layers_to_transform\": null", "layers_to_transform\": [1]",
          "h.0.attn.c_attn.lora_A.weight\" is not trained by", 0 },
        { "lora", config, "exclude_modules\": null", "exclude_modules\": [\"c_attn\"]",
          "lora: targets \"c_attn\" match none of the layers", 0 },
        { "lora", config, "target_parameters\": null", "target_parameters\": [\"c_fc\"]",
          "target_parameters: expected null or false", 0 },
        { "prompt", config, "\"modules_to_save\": null",
          "\"modules_to_save\": [\"wte\"], \"layers_to_transform\": null", "modules_to_save", 0 },
        { "lora", config, "\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"",
          "pissa", 0 },
        { "lora", config, "\"bias\": \"none\"", "\"bias\": \"some\"", "some", 0 },
        { "lora", config, "\"bias\"", "\"of_next_year\": 3, \"bias\"", "of_next_year", 0 },
        { "lora", config, "\"CAUSAL_LM\"", "\"SEQ_CLS\"", "SEQ_CLS", 0 },
        { "patterns", config, "\"mlp.c_proj\": 2", "\"mlp.c_proj\": 3", "c_proj.lora_", 0 },
        { "prefix", config, "num_virtual_tokens\": 5", "num_virtual_tokens\": 6",
          "prompt_embeddings", 0 },
        { "prefix", config, "num_virtual_tokens\": 5", "num_virtual_tokens\": -6", "-6", 0 },
        { "prefix", config, "num_layers\": 2", "num_layers\": 3", "num_layers", 0 },
        { "prefix", config, "num_attention_heads\": 4", "num_attention_heads\": 2",
          "num_attention_heads", 0 },
        { "prompt", config, "token_dim\": 32", "token_dim\": 48", "token_dim", 0 },
        { "prompt", weights, "prompt_embeddings", "prompt_embeddingz", "prompt_embeddingz", 0 },
        { "adaption", config, "adapter_layers\": 1", "adapter_layers\": 2", "h.0.attn.adaption",
          0 },
        { "adaption", config, "adapter_layers\": 1", "adapter_layers\": 3", "3 layers", 0 },
        { "adaption", config, "adapter_len\": 5", "adapter_len\": 4", "adaption_prompt", 0 },
        { "adaption", config, "\"attn\"", "\"mlp\"", "target_modules", 0 }
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const tuning_edit *e = &edits[i];
        tuned t;
        open_base(&t);
        int failed = adapters_load(&t.a, &t.m, t.s, tuning_wrong(e));
        CHECK_MSG(failed && strstr(t.m.error, e->says), "%s, %s, %s: \"%s\"", e->name, e->file,
                  e->from ? e->to : "cut off", failed ? t.m.error : "loaded");
        end(&t);
    }
}

/* If allocation number n of the store fails, for every n, the call must return an error with a text, and leak
 * nothing. */
static void test_memory(void)
{
    static const char *const names[] = { "lora", "prefix" };
    for (int i = 0; i < 2; i++) {
        int failed = 1;
        for (long at = 1; failed && at < 1000; at++) {
            heap h = { .fail_at = at };
            gckpt_store_desc desc = { .memory = heap_memory(&h) };
            tuned t = { .s = gckpt_store_new(&desc) };
            char folder[64];
            snprintf(folder, sizeof folder, GOLDEN "%s", names[i]);
            failed = t.s == NULL || model_load(&t.m, t.s, GOLDEN "model", NULL) != 0 ||
                     adapters_load(&t.a, &t.m, t.s, folder) != 0;
            CHECK_MSG(!failed || t.s == NULL || strstr(t.m.error, "memory"), "call %ld: %s", at,
                      t.m.error);
            end(&t);
            CHECK_MSG(h.live == 0 && h.wrong_sizes == 0, "call %ld: %zu bytes are left", at,
                      h.live);
        }
        CHECK(!failed);
    }
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        test_peft(golden[i].name, golden[i].losses, golden[i].generated);
    if (argc == 1) {
        test_merge();
        test_methods();
        test_packed();
        test_targets();
        test_wrong();
        test_memory();
    }
    tuning_close(argc);
    return check_report("adapters");
}
