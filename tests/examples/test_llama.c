/* test_llama.c - Llama-like models and their adapters in Hugging Face's files (golden/llama.py): logits, gradients, ten
 * steps of training and generated tokens must equal those of transformers and peft, both for files that these wrote and
 * for files written here. Every method must start and end as documented. A wrong file must be refused with the name of
 * the wrong key.
 *
 *     build/test_llama [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "golden/config_keys.h"
#include "golden/llama.h"
#include "golden/tied.h"
#define GOLDEN       "tests/golden/llama/"
#define GOLDEN_SAVED "golden/llama_saved.h"
#include "tuning.h"
#include "tuned.h"
#include <math.h>

enum { CASES = sizeof golden_llama / sizeof golden_llama[0] };
static const model_source mapped = { .map = 1 };

static void open_base(tuned *t, const char *base, const model_source *source)
{
    char folder[64];
    memset(t, 0, sizeof *t);
    snprintf(folder, sizeof folder, GOLDEN "%s", base);
    t->s = tuning_load(&t->m, folder, source);
    t->how.hooks = &t->a.hooks;
}

/* ---- comparison with transformers ---- */
/* Logits, generated tokens, gradients and training must equal those of transformers. Two plans must give the same bits,
 * for the model "mha" also if the file is mapped. */
static void test_golden_model(int i)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, 1 };
    const char *name = golden_llama[i].name;
    char folder[96], trained[64];
    uint64_t hash = 0;
    snprintf(folder, sizeof folder, "%s/%s", tuning_folder, name);
    snprintf(trained, sizeof trained, "%s.trained", name);
    for (int k = 1; k >= 0; k--) {
        tuned t;
        open_base(&t, name, k == 1 && strcmp(name, "mha") == 0 ? &mapped : NULL);
        tuning_logits(&t.m, t.s, NULL, name, 1e-4);
        if (k == 0) {
            tuning_generate(&t.m, t.s, NULL, name, golden_llama[i].made);
            tuning_gradients(&t.m, t.s, name);
        }
        tuning_train(&t.m, t.s, NULL, name, golden_llama[i].losses, golden_lr, modes[k], rows[k]);
        tuning_logits(&t.m, t.s, NULL, trained, 1e-4);
        CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
        if (k == 0) /* only for a file that was read: a mapped one is saved with its tensors in another order */
            tuning_saved(name);
        end(&t);
        memset(&t, 0, sizeof t);
        t.s = tuning_load(&t.m, folder, NULL);
        CHECK_MSG(k == 1 || gckpt_store_hash(t.s) == hash, "%s: other bits", name);
        hash = gckpt_store_hash(t.s);
        end(&t);
    }
}

/* Loads the same weights stored in other types, under other names and in several files. */
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

/* generation_config.json may add end tokens; invalid ones must be refused with their key. */
static void test_ends(void)
{
    static const tuning_edit none = { "gqa", "config.json", "\"use_cache\"", "\"use_caches\"", NULL,
                                      0 };
    static const char *const texts[] = { "{\"eos_token_id\": [127, 9, 500]}", "{}",
                                         "{\"eos_token_id\": \"a\"}" };
    for (int i = 0; i < 3; i++) {
        char path[160];
        model_any m;
        const char *folder = tuning_wrong(&none);
        snprintf(path, sizeof path, "%s/generation_config.json", folder);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL && fputs(texts[i], f) >= 0 && fclose(f) == 0);
        const int failed = model_read_config(&m, folder);
        CHECK_MSG(failed ? i == 2 && strstr(m.error, "generation_config.json:1: eos_token_id")
                         : i < 2 && m.config.eos[0] == 126 && m.config.eos[2] == 3 &&
                               (i == 1 || m.config.eos[3] == 9) && m.config.eos[4 - i] == -1,
                  "%s: %s", texts[i], m.error);
        model_close(&m);
    }
}

/* Rotary angles must equal those of transformers, for the sizes of real models. */
static void test_positions(void)
{
    char folder[96], path[128];
    snprintf(folder, sizeof folder, "%s/positions", tuning_folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK(mkdir(folder, 0777) == 0);
    for (size_t i = 0; i < sizeof golden_positions / sizeof golden_positions[0]; i++) {
        float angles[LLAMA_MAX_HEAD_DIM / 2];
        model_any m;
        FILE *f = fopen(path, "w");
        CHECK(f != NULL && fputs(golden_positions[i].config, f) >= 0 && fclose(f) == 0);
        if (!CHECK_MSG(model_read_config(&m, folder) == 0, "%s", m.error))
            continue;
        CHECK(m.config.head_dim == 2 * golden_positions[i].count);
        const double scale = m.config.llama.positions[0].scale / golden_positions[i].scale;
        CHECK_MSG(scale < 1 + 1e-7 && scale > 1 - 1e-7, "%s: scale %.9g", golden_positions[i].name,
                  m.config.llama.positions[0].scale);
        llama_frequencies(&m.config.llama.positions[0], m.config.head_dim, angles);
        for (int k = 0; k < golden_positions[i].count; k++) {
            const double by = (double)angles[k] / golden_positions[i].angles[k];
            CHECK_MSG(by < 1 + 1e-6 && by > 1 - 1e-6, "%s: angle %d is %.9g, not %.9g",
                      golden_positions[i].name, k, (double)angles[k],
                      golden_positions[i].angles[k]);
        }
        model_close(&m);
    }
}

/* ---- methods ---- */
/* Merged weights must compute the results of the adapter; unmerging must restore the old weights. */
static void test_merge(void)
{
    tuned t;
    char folder[96];
    open_base(&t, "mqa", NULL);
    CHECK_MSG(adapters_load(&t.a, &t.m, t.s, GOLDEN "patterns") == 0, "%s", t.m.error);
    const uint64_t hash = gckpt_store_hash(t.s);
    snprintf(folder, sizeof folder, "%s/merged", tuning_folder);
    CHECK_MSG(adapters_merge(&t.a) == 0, "%s", t.m.error);
    tuning_logits(&t.m, t.s, &t.how, "patterns", 1e-4);
    CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    CHECK_MSG(adapters_unmerge(&t.a) == 0, "%s", t.m.error);
    CHECK(gckpt_store_hash(t.s) == hash);
    end(&t);
    memset(&t, 0, sizeof t);
    t.s = tuning_load(&t.m, folder, NULL);
    tuning_logits(&t.m, t.s, NULL, "patterns", 1e-4);
    end(&t);
}

/* Generating token by token with caches must give the logits of one call. */
static void test_tokens(tuned *t, const char *name)
{
    const sample_options greedy = { 0, 0, 0, 0 };
    const generator_desc desc = { .hooks = t->how.hooks };
    int32_t made[GOLDEN_NEW];
    generator p;
    if (!CHECK_MSG(generator_new(&p, &t->m, t->s, &desc) == 0, "%s: %s", name, t->m.error))
        return;
    const int64_t n = generator_text(&p, golden_prompt, GOLDEN_PROMPT, &greedy, GOLDEN_NEW, NULL,
                                     made, NULL, NULL);
    generator_free(&p);
    if (CHECK(n == GOLDEN_NEW))
        tuning_generate(&t->m, t->s, t->how.hooks, name, made);
}

enum { C = 32, K = 16, I = 48, L = 2, V = 128, BLOCK = 2 * C + 2 * C * C + 2 * C * K + 3 * C * I };
static const struct {
    adapters_options options;
    const char *base;
    int64_t trains;
    int begins; /* if nonzero, logits of an untrained adapter are within 1e-4 of the model's */
} methods[] = {
    { { .method = ADAPTERS_FULL }, "gqa", V *C + L *BLOCK + C, 1 },
    { { .method = ADAPTERS_LAST }, "gqa", BLOCK + C, 1 },
    { { .method = ADAPTERS_HEAD }, "gqa", V *C, 1 },
    { { .method = ADAPTERS_HEAD }, "gemma", V *C, 1 },
    { { .method = ADAPTERS_BIAS }, "qwen2", L *(C + 2 * K), 1 },
    { { .method = ADAPTERS_NEW_BLOCKS }, "gqa", BLOCK, 1 },
    { { .method = ADAPTERS_LORA, .size = 2 }, "gqa", L * 2 * (2 * C + C + K), 1 },
    { { .method = ADAPTERS_LORA,
        .size = 2,
        .targets = "q_proj,k_proj,v_proj,(up|down)_proj",
        .excluded = "k_proj,mlp..*" },
      "gqa",
      L * 2 * (2 * C + C + K),
      1 },
    { { .method = ADAPTERS_LORA, .size = 1, .targets = "all-linear" },
      "gqa",
      L *(4 * C + 2 * (C + K) + 3 * (C + I)),
      1 },
    { { .method = ADAPTERS_LORA,
        .size = 1,
        .targets = "q_proj,o_proj",
        .bias = ADAPTERS_LORA_BIASES },
      "qwen2",
      L *(4 * C + C),
      1 },
    { { .method = ADAPTERS_HOULSBY, .size = 4 },
      "gqa",
      L *(2 * (2 * 4 * C + 4 + C) + 2 * C) + C,
      0 },
    { { .method = ADAPTERS_LLAMA, .size = 3 }, "gqa", L *(3 * C + 1), 1 },
    { { .method = ADAPTERS_LLAMA, .size = 3 }, "mqa", L *(3 * C + 1), 0 },
    { { .method = ADAPTERS_PREFIX, .size = 3 }, "gqa", L * 2 * 3 * K, 0 },
    { { .method = ADAPTERS_PREFIX, .size = 3, .hidden = 5 },
      "gqa",
      3 * C + 5 * C + 5 + L * 2 * K * 6,
      0 },
    { { .method = ADAPTERS_PREFIX, .size = 3 }, "qwen3", L * 2 * 3 * 2 * K, 0 },
    { { .method = ADAPTERS_PROMPT, .size = 3 }, "gqa", 3 * C, 0 },
};

/* Tests every method: the number of trained parameters, whether the untrained adapter computes the unchanged model,
 * that training lowers the loss, that generation with caches has the logits of one call, and that the saved file
 * restores the trained parameters. */
static void test_methods(void)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const char *name = adapters_names[methods[i].options.method];
        const int full = methods[i].options.method == ADAPTERS_FULL;
        char folder[96];
        float before[LOGITS], after[LOGITS], again[LOGITS];
        tuned t;
        snprintf(folder, sizeof folder, "%s/method", tuning_folder);
        open_base(&t, methods[i].base, NULL);
        if (!CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &methods[i].options) == 0, "%s: %s", name,
                       t.m.error)) {
            end(&t);
            continue;
        }
        CHECK_MSG(adapters_trainable(t.s) == methods[i].trains, "%s: %lld parameters", name,
                  (long long)adapters_trainable(t.s));
        if (methods[i].begins)
            tuning_logits(&t.m, t.s, &t.how, methods[i].base, 1e-4);
        tuning_run(&t.m, t.s, &t.how, name, before);
        tuning_train(&t.m, t.s, &t.how, name, NULL, golden_adapter_lr, GCKPT_STORE_ALL,
                     GOLDEN_MICRO);
        tuning_run(&t.m, t.s, &t.how, name, after);
        CHECK_MSG(memcmp(before, after, sizeof after), "%s: has not learned", name);
        test_tokens(&t, name);
        CHECK_MSG(adapters_save(&t.a, folder, NULL) == 0, "%s: %s", name, t.m.error);
        end(&t);
        open_base(&t, methods[i].base, NULL);
        if (full) {
            end(&t);
            memset(&t, 0, sizeof t);
            t.s = tuning_load(&t.m, folder, NULL);
        } else {
            CHECK_MSG(adapters_load(&t.a, &t.m, t.s, folder) == 0, "%s: %s", name, t.m.error);
        }
        tuning_run(&t.m, t.s, full ? NULL : &t.how, name, again);
        CHECK_MSG(!memcmp(after, again, sizeof after) || methods[i].options.hidden,
                  "%s: its file gives other logits", name);
        end(&t);
    }
}

/* LoRA on quantised weights: logits must be close to the model's, and every plan must give the same bits. */
static void test_packed(void)
{
    static const gckpt_storage types[] = { GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16, GCKPT_STORAGE_I8 };
    static const double near[] = { 1e-4, 0.01, 0.3 }; /* the model's file is BF16 */
    const adapters_options lora = { .method = ADAPTERS_LORA, .targets = "all-linear" };
    for (int i = 0; i < 3; i++) {
        uint64_t hash = 0;
        for (int k = 0; k < 2; k++) {
            const model_source packed = { .storage = types[i] };
            tuned t;
            open_base(&t, "gqa", &packed);
            CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &lora) == 0, "%s", t.m.error);
            tuning_logits(&t.m, t.s, &t.how, "gqa", near[i]);
            tuning_train(&t.m, t.s, &t.how, "packed", NULL, golden_adapter_lr,
                         k ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, k ? 2 : GOLDEN_BATCH);
            CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "storage %d: other bits", i);
            hash = gckpt_store_hash(t.s);
            end(&t);
        }
    }
}

/* ---- config.json ---- */
/* If a method has added layers, the saved config.json must have an entry for each of them in its lists by layer. */
static void test_added(void)
{
    static const char *const says[] = {
        "\"num_hidden_layers\": 5", "\"no_rope_layers\": [1, 0, 1, 1, 1]",
        "\"layer_types\": [\"full_attention\", \"full_attention\", "
        "\"full_attention\", \"full_attention\", \"full_attention\"]",
        "\"SmolLM3ForCausalLM\""
    };
    const adapters_options o = { .method = ADAPTERS_NEW_BLOCKS, .layers = 2 };
    char folder[96], path[128];
    float before[LOGITS], after[LOGITS];
    tuned t;
    snprintf(folder, sizeof folder, "%s/added", tuning_folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    open_base(&t, "smollm3", NULL);
    CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &o) == 0, "%s", t.m.error);
    tuning_train(&t.m, t.s, &t.how, "added", NULL, golden_adapter_lr, GCKPT_STORE_ALL, 3);
    tuning_run(&t.m, t.s, &t.how, "added", before);
    CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    end(&t);
    file b = tuning_read(path);
    file_write(&b, (const unsigned char *)"", 1);
    for (int i = 0; i < 4; i++)
        CHECK_MSG(strstr((const char *)b.bytes, says[i]) != NULL, "%s in: %s", says[i], b.bytes);
    free(b.bytes);
    memset(&t, 0, sizeof t);
    t.s = tuning_load(&t.m, folder, NULL);
    tuning_run(&t.m, t.s, NULL, "added", after);
    CHECK(memcmp(before, after, sizeof after) == 0);
    end(&t);
}

/* Changes of config.json that must have an effect: windows, and older names of keys. */
static void test_taken(void)
{
    static const struct {
        tuning_edit edit;
        int64_t context, window;
    } all[] = {
        { { "mistral", "config.json", "\"sliding_window\": null", "\"sliding_window\": 16", NULL,
            0 },
          64,
          16 },
        { { "mistral", "config.json", "\"sliding_window\": null", "\"sliding_window\": 100", NULL,
            0 },
          64,
          100 },
        { { "qwen2", "config.json", "\"sliding_window\": null", "\"sliding_window\": 20", NULL, 0 },
          64,
          0 },
        { { "qwen2", "config.json", "\"use_sliding_window\": false", "\"use_sliding_window\": true",
            NULL, 0 },
          64,
          0 },
        { { "qwen3", "config.json",
            "\"sliding_window\": null,\n  \"tie_word_embeddings\": false,\n  "
            "\"transformers_version\": \"5.23.0\",\n  \"use_cache\": true,\n  "
            "\"use_sliding_window\": false",
            "\"sliding_window\": 20, \"use_sliding_window\": true", NULL, 0 },
          64,
          20 },
        { { "gqa", "config.json", "\"rope_type\"", "\"type\"", NULL, 0 }, 128, 0 },
        { { "gqa", "config.json", "126,\n    127,\n    3\n", "126, 200, 3", NULL, 0 }, 128, 0 },
        { { "gemma", "config.json", "\"hidden_act\": \"gelu_pytorch_tanh\"",
            "\"hidden_act\": \"gelu\"", NULL, 0 },
          64,
          0 },
        { { "mha", "config.json", "\"hidden_act\": \"silu\",", "", NULL, 0 }, 64, 0 },
        { { "mha", "config.json", "\"num_key_value_heads\": 4,", "", NULL, 0 }, 64, 0 },
        { { "mha", "config.json", "\"head_dim\": 8,", "", NULL, 0 }, 64, 0 },
        { { "smollm3", "config.json", "\"no_rope_layers\": [\n    1,\n    0,\n    1\n  ],", "",
            NULL, 0 },
          64,
          0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const tuning_edit *e = &all[i].edit;
        tuned t;
        memset(&t, 0, sizeof t);
        t.s = tuning_load(&t.m, tuning_wrong(e), NULL);
        CHECK_MSG(t.m.config.context == all[i].context && t.m.config.llama.window == all[i].window,
                  "%s: %lld, %lld", e->to, (long long)t.m.config.context,
                  (long long)t.m.config.llama.window);
        CHECK(strcmp(e->to, "126, 200, 3") != 0 ||
              (t.m.config.eos[0] == 126 && t.m.config.eos[1] == 3 && t.m.config.eos[2] == -1));
        tuning_logits(&t.m, t.s, NULL, e->name, 1e-4);
        end(&t);
    }
}

/* Compares the logits of a loaded model with golden_tied[i]. */
static void tied_logits(const model_any *m, gckpt_store *s, int i)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, GOLDEN_TIED));
    gckpt_fetch_spec fetch = { model_logits(m, model_hidden(m, tokens, NULL)), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s: %s", golden_tied[i].name, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(tokens), golden_tied_tokens };
    if (CHECK_MSG(gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK, "%s: %s", golden_tied[i].name,
                  gckpt_error_text(e))) {
        const float *logits = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
        for (int k = 0; k < GOLDEN_TIED * GOLDEN_TIED_VOCABULARY; k++)
            CHECK_MSG((double)logits[k] < golden_tied[i].logits[k] + 1e-4 &&
                          (double)logits[k] > golden_tied[i].logits[k] - 1e-4,
                      "%s: logit %d is %g, not %g", golden_tied[i].name, k, (double)logits[k],
                      golden_tied[i].logits[k]);
    }
    util_free(e, p, g, NULL);
}

/* Models whose config.json ties the head to the embeddings. If the file has a head with other values, the head must be
 * used, noted and saved. A head with the same values must stay tied. If the tensors share memory, the file has only one
 * of them, under either name (golden/tied.py). */
static void test_tied(void)
{
    for (int i = 0; i < 2 * (int)(sizeof golden_tied / sizeof golden_tied[0]); i++) {
        const char *name = golden_tied[i / 2].name;
        char folder[96];
        tuned t;
        memset(&t, 0, sizeof t);
        snprintf(folder, sizeof folder, "tests/golden/tied/%s", name);
        t.s = gckpt_store_new(NULL);
        const int loaded = model_load(&t.m, t.s, folder, i % 2 ? &mapped : NULL) == 0;
        const int noted = strcmp(name, "differs") == 0 || strcmp(name, "gpt2") == 0;
        CHECK_MSG(loaded, "%s: %s", name, t.m.error);
        CHECK_MSG(!loaded || t.m.config.tied == golden_tied[i / 2].tied, "%s: tied %d", name,
                  t.m.config.tied);
        CHECK_MSG((strstr(t.m.note, "lm_head.weight differs from") != NULL) == noted, "%s: \"%s\"",
                  name, t.m.note);
        if (loaded) {
            tied_logits(&t.m, t.s, i / 2);
            snprintf(folder, sizeof folder, "%s/tied", tuning_folder);
            CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
            end(&t);
            memset(&t, 0, sizeof t);
            t.s = tuning_load(&t.m, folder, NULL);
            CHECK(t.m.config.tied == golden_tied[i / 2].tied && t.m.note[0] == 0);
            tied_logits(&t.m, t.s, i / 2);
        }
        end(&t);
    }
}

/* Reads the config.json of golden_types[type] with the value of one key changed. Returns the result of
 * model_read_config. */
static int read_changed(int type, const char *key, const char *value, model_any *m)
{
    char folder[96], path[128], base[1024];
    json d;
    snprintf(folder, sizeof folder, "%s/keys", tuning_folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(base, sizeof base, "%s", golden_types[type].base);
    json_init(&d, "base");
    CHECK_MSG(json_parse(&d, base, strlen(base)) == 0, "%s", d.error);
    mkdir(folder, 0777);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "{\"model_type\": \"%s\"", golden_types[type].type);
    for (uint32_t k = json_first(&d, JSON_ROOT); k != 0; k = json_next(&d, k)) {
        if (json_is(&d, k, key))
            continue;
        fprintf(f, ", \"%s\": ", json_text(&d, k));
        json_write_value(f, &d, k + 1);
    }
    fprintf(f, *key != 0 ? ", \"%s\": %s}" : "%s%s}", key, value);
    CHECK(fclose(f) == 0);
    json_free(&d);
    return model_read_config(m, folder);
}

/* Returns whether the error text names `key`, or a key within its value. */
static int names(const char *error, const char *key, const char *value)
{
    const char *end = strstr(error, ": expected"), *at = end;
    char inner[64];
    while (at != NULL && at > error && at[-1] != ' ')
        at--;
    snprintf(inner, sizeof inner, "\"%.*s\"", at != NULL ? (int)(end - at) : 0,
             at != NULL ? at : "");
    return strstr(error, key) != NULL || (at != NULL && strstr(value, inner) != NULL);
}

/* Every key of config.json that transformers reads (golden/config_keys.py) must be obeyed, refused with its name, or
 * listed in docs/finetuning.md as having no effect. A listed key must have no effect in transformers either. */
static void test_keys(void)
{
    file page = tuning_read("docs/finetuning.md");
    file_write(&page, (const unsigned char *)"", 1);
    char *listed = strstr((char *)page.bytes, "### Keys without effect"), *next;
    if (!CHECK_MSG(listed != NULL, "docs/finetuning.md lists no keys without effect"))
        return;
    if ((next = strstr(listed + 3, "\n#")) != NULL)
        *next = 0;
    for (size_t i = 0; i < sizeof golden_keys / sizeof golden_keys[0]; i++) {
        const char *key = golden_keys[i].key, *value = golden_keys[i].value;
        char quoted[96];
        model_any base, m;
        int type = 0;
        while (strcmp(golden_types[type].type, golden_keys[i].type) != 0)
            type++;
        CHECK_MSG(read_changed(type, "", "", &base) == 0, "%s", base.error);
        const int failed = read_changed(type, key, value, &m);
        const int obeyed = !failed && memcmp(&m.config, &base.config, sizeof m.config) != 0;
        snprintf(quoted, sizeof quoted, "`%s`", key);
        CHECK_MSG(!failed || names(m.error, key, value), "%s: %s %s: the error names another: %s",
                  golden_keys[i].type, key, value, m.error);
        CHECK_MSG(failed || obeyed || !golden_keys[i].changes,
                  "%s: %s %s is ignored, and transformers obeys it", golden_keys[i].type, key,
                  value);
        CHECK_MSG(failed || obeyed || golden_keys[i].changes || strstr(listed, quoted) != NULL,
                  "%s: %s %s is neither obeyed nor refused nor listed", golden_keys[i].type, key,
                  value);
        model_close(&base);
        model_close(&m);
    }
    free(page.bytes);
}

static const char weights[] = "model.safetensors", config[] = "config.json";
static const char listing[] = "model.safetensors.index.json";
static const tuning_edit wrong[] = {
    { "gqa", weights, NULL, NULL, "weight", 30000 },
    { "gqa", weights, NULL, NULL, "no weights: expected model.safetensors, or", 0 },
    { "gqa", weights, "layers.1.mlp.up_proj", "layers.1.mlp.up_prjj", "layers.1.mlp.up_prjj", 0 },
    { "gqa", weights, "layers.1.mlp.up_proj.weight", "layers..rotary_emb.inv_freq",
      "layers.1.mlp.up_proj.weight", 0 },
    { "gqa", weights, "\"shape\":[16,32]", "\"shape\":[32,16]", "_proj.weight", 0 },
    { "gqa", weights, "\"BF16\"", "\"FP8X\"", "FP8X", 0 },
    { "sharded", "model-00002-of-00004.safetensors", NULL, NULL, "00002", 0 },
    { "sharded", "model-00003-of-00004.safetensors", NULL, NULL, "00003", 900 },
    { "sharded", listing, "00003-of", "00033-of", "00033", 0 },
    { "sharded", listing, "weight_map", "weight_mob", "weight_map", 0 },
    { "gqa", config, "\"llama\"", "\"mixtral\"",
      "model_type mixtral is none of gpt2, llama, mistral, qwen2, qwen3, smollm3, gemma", 0 },
    { "gqa", config, "\"llama\"", "\"qwen3_next\"", "gated delta nets are not built here: take a",
      0 },
    { "gqa", config, "\"llama\"", "\"gemma4\"", "whose type is gemma4_text", 0 },
    { "gqa", config, "\"llama\"", "\"qwen3_5\"", "its type is qwen3_5_text", 0 },
    { "gqa", config, "\"llama\"", "\"llama, mistral\"", "model_type: expected gpt2, llama", 0 },
    { "gqa", config, "\"llama\"", "\"deepseek_v3\"", "distilled models, of type qwen2 or llama",
      0 },
    { "gqa", config, "\"hidden_size\"", "\"size\"", "hidden_size is missing", 0 },
    { "gqa", config, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
      "num_attention_heads 4 is no multiple of num_key_value_heads 3", 0 },
    { "gqa", config, "\"num_attention_heads\": 4", "\"num_attention_heads\": 0",
      "num_attention_heads: expected a number from 1 to", 0 },
    { "gqa", config, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 0",
      "num_key_value_heads: expected a number from 1 to", 0 },
    { "gqa", config, "\"model_type\"", "\"type\"", "config.json has no model_type", 0 },
    { "gqa", config, "\"head_dim\": 8", "\"head_dim\": 7", "head_dim 7: expected an even number",
      0 },
    { "gqa", config, "\"head_dim\": 8", "\"head_dim\": 12", "q_proj.weight", 0 },
    { "gqa", config, "\"head_dim\": 8,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 32",
      "\"hidden_act\": \"silu\",\n  \"hidden_size\": 30", "hidden_size 30 is no multiple of", 0 },
    { "gqa", config, "\"silu\"", "\"swiglu\"", "hidden_act", 0 },
    { "gqa", config, "1e-05", "0.0", "rms_norm_eps 0: expected a number above 0", 0 },
    { "gqa", config, "\"llama3\"", "\"longrope\"",
      "rope_type: expected a list short_factor with longrope", 0 },
    { "gqa", config, "\"llama3\"", "\"dynamic\"",
      "rope_type: expected default, linear, llama3, yarn or longrope", 0 },
    { "gqa", config, "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 4.0",
      "high_freq_factor 4: expected a number above 4", 0 },
    { "gqa", config, "\"factor\": 8.0", "\"factor\": 0", "factor 0: expected", 0 },
    { "gqa", config, "\"factor\": 8.0", "\"factor\": 8.0, \"partial_rotary_factor\": 0.5",
      "partial_rotary_factor: expected 1", 0 },
    { "gqa", config, "\"use_cache\"", "\"partial_rotary_factor\": 0.5, \"use_cache\"",
      "partial_rotary_factor: expected 1", 0 },
    { "gqa", config, "\"rope_theta\": 10000.0", "\"rope_theta\": 1", "rope_theta 1: expected", 0 },
    { "gqa", config, "\"factor\": 8.0", "\"full_attention\": {}", "the same positions in all", 0 },
    { "gqa", config, "\"attention_bias\": false", "\"attention_bias\": true",
      "layers.0.self_attn.q_proj.bias", 0 },
    { "gqa", config, "\"mlp_bias\": false", "\"mlp_bias\": true", "layers.0.mlp.gate_proj.bias",
      0 },
    { "gqa", config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
      "layers.2.input_layernorm.weight", 0 },
    { "gqa", config, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
      "lm_head.weight", 0 },
    { "gqa", config, "\"use_cache\"", "\"quantization_config\": {\"bits\": 4}, \"use_cache\"",
      "quantization_config: expected weights that are not quantised, found weights of a method",
      0 },
    { "gqa", config, "\"use_cache\"",
      "\"quantization_config\": {\"quant_method\": \"awq\"}, \"use_cache\"",
      "found weights of awq: take the original model, whose matrices can be stored", 0 },
    { "gqa", weights, "\"model.norm.weight\"", "\"score.weight\"     ",
      "\"score.weight\" does not belong to a Llama of 2 layers; the folder is a classifier's", 0 },
    { "gqa", weights, "\"model.norm.weight\"", "\"module.norm.weigh\"",
      "begin with module. come from a model that was saved inside DataParallel", 0 },
    { "gqa", weights, "\"model.norm.weight\"", "\"_orig_mod.norm.we\"",
      "come from a model that torch.compile made: save model._orig_mod", 0 },
    { "gqa", config, "126,", "1, 2, 4, 5, 6, 7, 8, 9,", "eos_token_id: expected 8 numbers", 0 },
    { "yarn", config, "\"factor\": 4.0", "\"factor\": 1e999", "factor inf: expected a number above",
      0 },
    { "yarn", config, "\"factor\": 4.0", "\"factor\": 4.0, \"beta_fast\": 1e999",
      "beta_fast inf: expected a number above 1e-06 and at most 1e12", 0 },
    { "yarn", config, "\"factor\": 4.0", "\"factor\": 4.0, \"beta_slow\": 1e-320",
      "beta_slow 9.99989e-321: expected a number above", 0 },
    { "yarn", config, "\"original_max_position_embeddings\": 256",
      "\"original_max_position_embeddings\": 1e-320", "original_max_position_embeddings", 0 },
    { "qwen2", config, "\"full_attention\"", "\"chunked_attention\"",
      "expected full_attention or sliding_attention", 0 },
    { "mistral", config, "\"sliding_window\": null", "\"sliding_window\": 0",
      "sliding_window 0: expected 1 or more", 0 },
    { "smollm3", config, "\"no_rope_layers\": [\n    1,", "\"no_rope_layers\": [",
      "no_rope_layers: expected as many numbers", 0 },
    { "gemma", config, "\"use_bidirectional_attention\": null",
      "\"use_bidirectional_attention\": true", "use_bidirectional_attention: expected false", 0 },
};

static void test_wrong(void)
{
    for (size_t i = 0; i < 2 * (sizeof wrong / sizeof wrong[0]); i++) {
        const tuning_edit *e = &wrong[i / 2];
        tuned t;
        memset(&t, 0, sizeof t);
        t.s = gckpt_store_new(NULL);
        int failed = model_load(&t.m, t.s, tuning_wrong(e), i % 2 ? &mapped : NULL);
        CHECK_MSG(failed && strstr(t.m.error, e->says), "%s, %s: \"%s\"", e->file,
                  e->from ? e->to : "cut off", failed ? t.m.error : "loaded");
        end(&t);
    }
}

/* A text in exclude_modules must match whole names only, as in peft, and must be saved unchanged. */
static void test_excluded(void)
{
    static const tuning_edit parts[] = {
        { "lora", "adapter_config.json", "\"exclude_modules\": null",
          "\"exclude_modules\": \"v_proj\"", "\"exclude_modules\": \"v_proj\"", 0 },
        { "lora", "adapter_config.json", "\"exclude_modules\": null",
          "\"exclude_modules\": [\"o_proj\", \"k_proj\"]",
          "\"exclude_modules\": [\"o_proj\", \"k_proj\"]", 0 },
    };
    for (int i = 0; i < 2; i++) {
        char folder[96], path[128];
        tuned t;
        snprintf(folder, sizeof folder, "%s/excluded", tuning_folder);
        snprintf(path, sizeof path, "%s/adapter_config.json", folder);
        open_base(&t, "gqa", NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, tuning_wrong(&parts[i])) == 0, "%s", t.m.error);
        tuning_logits(&t.m, t.s, &t.how, "lora", 1e-4);
        const int saved = adapters_save(&t.a, folder, NULL) == 0;
        CHECK_MSG(saved, "%s", t.m.error);
        end(&t);
        if (!saved)
            continue;
        file b = tuning_read(path);
        file_write(&b, (const unsigned char *)"", 1);
        CHECK_MSG(strstr((const char *)b.bytes, parts[i].says) != NULL, "%s", b.bytes);
        free(b.bytes);
    }
}

/* A folder without the expected weights and config.json must be refused, and the error must say what to do. */
static void test_instead(void)
{
    static const tuning_edit pickle = { "lora", "adapter_model.safetensors", NULL, NULL, NULL, 0 };
    for (int i = 0; i < 2; i++) {
        char path[160];
        tuned t;
        const char *folder = i == 0 ? GOLDEN "gqa" : tuning_wrong(&pickle);
        snprintf(path, sizeof path, "%s/adapter_model.bin", folder);
        FILE *f = i == 1 ? fopen(path, "w") : NULL;
        CHECK(i == 0 || (f != NULL && fclose(f) == 0));
        open_base(&t, "gqa", NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, folder) != 0 &&
                      strstr(t.m.error, i == 0
                                            ? "config.json says that it is a model: give it as"
                                            : "adapter_model.bin is a pickle, which is not read"),
                  "%s", t.m.error);
        end(&t);
    }
    static const struct {
        const char *gone, *file, *says;
    } all[] = {
        { "model.safetensors", "pytorch_model.bin",
          "; pytorch_model.bin is a pickle, which is not" },
        { "model.safetensors", "consolidated.safetensors", "is in Mistral's own format: take the" },
        { "config.json", "consolidated.00.pth", "is in Meta's own format: take the same model in" },
        { "config.json", "adapter_config.json", "says that it is an adapter: give its base model" },
        { "config.json", "README.md", "config.json: cannot open it: No such file or directory" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const tuning_edit edit = { "gqa", all[i].gone, NULL, NULL, NULL, 0 };
        char path[160];
        tuned t;
        memset(&t, 0, sizeof t);
        const char *folder = tuning_wrong(&edit);
        snprintf(path, sizeof path, "%s/%s", folder, all[i].file);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL && fclose(f) == 0);
        t.s = gckpt_store_new(NULL);
        CHECK_MSG(model_load(&t.m, t.s, folder, NULL) != 0 && strstr(t.m.error, all[i].says),
                  "%s: %s", all[i].file, t.m.error);
        end(&t);
    }
}

/* Numbers that are not finite must not be written: saving config.json with one fails and keeps the old file, and an
 * event has null in place of the number. */
static void test_not_finite(void)
{
    char path[128], text[96], event[] = "{\"nan\":%g,\"x\":[%g,%g,%g],\"y\":\"inf -nan\"}\n";
    tuned t;
    memset(&t, 0, sizeof t);
    snprintf(path, sizeof path, "%s/event", tuning_folder);
    snprintf(text, sizeof text, event, -(double)NAN, (double)INFINITY, 0.5, -(double)INFINITY);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    json_write_finite(f, text);
    CHECK(fclose(f) == 0);
    file b = tuning_read(path);
    file_write(&b, (const unsigned char *)"", 1);
    CHECK_MSG(strcmp((const char *)b.bytes,
                     "{\"nan\":null,\"x\":[null,0.5,null],\"y\":\"inf -nan\"}\n") == 0,
              "%s", b.bytes);
    free(b.bytes);
    snprintf(path, sizeof path, "%s/finite", tuning_folder);
    t.s = gckpt_store_new(NULL);
    llama_new(&t.m, 1, 8, 2, 1, 8, 16);
    CHECK(model_declare(&t.m, t.s) == 0);
    CHECK_MSG(model_save(&t.m, t.s, path, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    t.m.config.init_range = INFINITY;
    CHECK_MSG(model_save(&t.m, t.s, path, GCKPT_STORAGE_F32) != 0 &&
                  strstr(t.m.error, "not written, because it would not be JSON"),
              "%s", t.m.error);
    end(&t);
    memset(&t, 0, sizeof t);
    t.s = tuning_load(&t.m, path, NULL);
    CHECK(t.m.config.init_range > 0.0199 && t.m.config.init_range < 0.0201);
    end(&t);
}

/* LoRA's "bias": "all" must be accepted for a model without biases, as in peft. */
static void test_no_biases(void)
{
    static const tuning_edit all = { "lora", "adapter_config.json", "\"bias\": \"none\"",
                                     "\"bias\": \"all\"", NULL, 0 };
    tuned t;
    open_base(&t, "gqa", NULL);
    CHECK_MSG(adapters_load(&t.a, &t.m, t.s, tuning_wrong(&all)) == 0, "%s", t.m.error);
    tuning_logits(&t.m, t.s, &t.how, "lora", 1e-4);
    end(&t);
}

/* An adapter that does not fit the model must be refused, and the error must name the parts that the model has. */
static void test_refused(void)
{
    static const struct {
        adapters_options options;
        const char *says;
    } all[] = {
        { { .method = ADAPTERS_BIAS }, "has no biases to train; choose another method" },
        { { .method = ADAPTERS_LORA, .bias = ADAPTERS_ALL_BIASES }, "has no biases" },
        { { .method = ADAPTERS_LORA, .targets = "c_attn" },
          "target \"c_attn\" matches no layer; allowed are self_attn.q_proj, self_attn.k_proj, "
          "self_attn.v_proj, self_attn.o_proj, mlp.gate_proj, mlp.up_proj and mlp.down_proj in "
          "layers.0 to layers.1, or all-linear" },
        { { .method = ADAPTERS_LAST, .layers = 3 }, "1 to 2" },
        { { .method = ADAPTERS_LORA, .targets = "q_proj,lm_head" },
          "lora: targets \"q_proj,lm_head\" match lm_head, but only layers of blocks can have LoRA here; "
          "remove it from the targets, or name it in modules_to_save to train it as a whole" },
        { { .method = ADAPTERS_LORA, .targets = ".*" }, "targets \".*\" match lm_head" },
        { { .method = ADAPTERS_LORA, .alpha = INFINITY }, "alpha inf, dropout 0: allowed are" },
        { { .method = ADAPTERS_LORA, .dropout = 1 }, "alpha 8, dropout 1: allowed are" },
        { { .method = ADAPTERS_LORA, .dropout = NAN }, "a dropout from 0 to below 1" },
        { { .method = ADAPTERS_LORA, .alpha_pattern = "q_proj=1e999" }, "a number above 0 and at most 1e12" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tuned t;
        open_base(&t, "gqa", NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &all[i].options) != 0 &&
                      strstr(t.m.error, all[i].says),
                  "%s", t.m.error);
        end(&t);
    }
    static const tuning_edit files[] = {
        { "prefix", "adapter_config.json", "\"token_dim\": 16", "\"token_dim\": 32", "token_dim",
          0 },
        { "adaption", "adapter_config.json", "\"self_attn\"", "\"attn\"", "expected self_attn", 0 },
        { "lora", "adapter_config.json", "\"q_proj\"", "\"k_proj\"", "self_attn.q_proj.lora_A", 0 },
        { "lora", "adapter_config.json", "\"q_proj\"", "\"q_proj\", \"embed_tokens\"",
          "lora: targets \"q_proj,embed_tokens,v_proj\" match embed_tokens", 0 },
        { "lora", "adapter_config.json", "\"exclude_modules\": null",
          "\"exclude_modules\": [\"v_proj\"]", "v_proj.lora_A.weight\" is not trained by", 0 },
        { "lora", "adapter_config.json", "\"exclude_modules\": null",
          "\"exclude_modules\": \".*v_proj\"", "v_proj.lora_A.weight\" is not trained by", 0 },
        { "lora", "adapter_config.json", "\"lora_alpha\": 8", "\"lora_alpha\": 1e999",
          "lora_alpha inf: expected both above 0, and lora_alpha at most 1e12", 0 },
        { "lora", "adapter_config.json", "\"lora_dropout\": 0.0", "\"lora_dropout\": -0.5",
          "lora_dropout -0.5: expected a number from 0 to below 1", 0 },
        { "lora", "adapter_config.json", "\"lora_dropout\": 0.0", "\"lora_dropout\": 1.5",
          "lora_dropout 1.5: expected a number from 0 to below 1", 0 },
        { "lora", "adapter_config.json", "\"alpha_pattern\": {}",
          "\"alpha_pattern\": {\"q_proj\": 1e999}", "q_proj: expected a number above 0", 0 },
        { "lora", "adapter_model.safetensors", "base_model.model.model.layers.0.",
          "base_model.model._orig_mod.le.0.", "come from a model that torch.compile made", 0 },
    };
    for (int i = 0; i < (int)(sizeof files / sizeof files[0]); i++) {
        tuned t;
        open_base(&t, i == 1 ? "mistral" : "gqa", NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, tuning_wrong(&files[i])) != 0 &&
                      strstr(t.m.error, files[i].says),
                  "%s", t.m.error);
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
            tuned_adapter(open_base, golden_llama[i].name, golden_llama[i].base,
                          golden_llama[i].losses, golden_llama[i].made);
    if (argc == 1) {
        test_files();
        test_ends();
        test_positions();
        test_merge();
        test_methods();
        test_packed();
        test_added();
        test_taken();
        test_tied();
        test_keys();
        test_wrong();
        test_instead();
        test_not_finite();
        test_excluded();
        test_no_biases();
        test_refused();
    }
    tuning_close(argc);
    return check_report("llama");
}
