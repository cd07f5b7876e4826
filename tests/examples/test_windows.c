/* test_windows.c - models with sliding windows and capped attention scores in Hugging Face's files (golden/windows.py):
 * Gemma 2 and 3, and Mistral, Qwen2, Qwen3 and SmolLM3 with windows, with newer and older keys of config.json. Rows are
 * longer than the windows. Logits, gradients, ten steps and generated tokens must equal those of transformers and peft,
 * both for files that these wrote and for files written here. The cache of a layer with a window must keep only the
 * positions that it needs. A wrong file must be refused with the name of the wrong key.
 *
 *     build/test_windows [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "golden/windows.h"
#define GOLDEN       "tests/golden/windows/"
#define GOLDEN_SAVED "golden/windows_saved.h"
#include "tuning.h"
#include "tuned.h"

enum { CASES = sizeof golden_windows / sizeof golden_windows[0] };

/* Returns a folder with the files of a case. Some cases have their own config.json and the weights of another case. */
static const char *folder_of(const char *name)
{
    static char folder[96];
    char command[400];
    int i = 0;
    while (i + 1 < CASES && strcmp(golden_windows[i].name, name) != 0)
        i++;
    snprintf(folder, sizeof folder, "%s/base", tuning_folder);
    snprintf(command, sizeof command,
             "rm -rf %s && mkdir %s && cp tests/golden/%s/model.safetensors " GOLDEN
             "%s/config.json %s",
             folder, folder, golden_windows[i].weights, name, folder);
    CHECK(system(command) == 0);
    return folder;
}

static void open_base(tuned *t, const char *name, const model_source *source)
{
    memset(t, 0, sizeof *t);
    t->s = tuning_load(&t->m, folder_of(name), source);
    t->how.hooks = &t->a.hooks;
}

/* ---- generation ---- */
/* Texts longer than the cache of a window must have the logits of one call with the whole text, to the bit. The bytes
 * of the caches are checked as well. In the function, `before` is the length of the adapter's prefix or prompt. */
enum { LONG = 300, FIRST = 150, ROUND = 63 };

static void test_long(const char *name, const adapters_options *method)
{
    const sample_options greedy = { 0, 0, 0, 0 };
    int32_t tokens[LONG];
    tuned t;
    open_base(&t, name, NULL);
    if (method != NULL)
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, method) == 0, "%s", t.m.error);
    const int64_t before = t.a.hooks.prefix + t.a.hooks.prompt, V = t.m.config.vocabulary;
    const generator_desc desc = { .hooks = t.how.hooks, .capacity = LONG + before };
    generator g;
    if (!CHECK_MSG(generator_new(&g, &t.m, t.s, &desc) == 0, "%s: %s", name, t.m.error))
        return;
    for (int i = 0; i < FIRST; i++)
        tokens[i] = i * 7 % 127;
    const int64_t made =
        generator_text(&g, tokens, FIRST, &greedy, LONG - FIRST, NULL, tokens + FIRST, NULL, NULL);
    CHECK_MSG(made == LONG - FIRST, "%s: %d tokens: %s", name, (int)made, t.m.error);

    size_t rows = 0;
    const int64_t longer = before > 64 ? before - 64 : 0;
    for (int i = 0; i < t.m.config.layers; i++) {
        const int64_t kept = t.m.config.llama.window + longer + ROUND;
        rows += (size_t)(llama_bit(t.m.config.llama.sliding, i) ? (kept + ROUND) / 64 * 64
                                                                : LONG + before);
    }
    const size_t bytes = gckpt_plan_kind_bytes(g.decode.plan, GCKPT_BYTES_CACHES);
    const size_t row = (size_t)(2 * t.m.config.key_heads * t.m.config.head_dim) * sizeof(float);
    CHECK_MSG(bytes == rows * row, "%s: caches of %zu bytes, not %zu", name, bytes, rows * row);

    gckpt_graph *graph = gckpt_graph_new(t.s, NULL);
    gckpt_tensor *in = gckpt_input(graph, "tokens", GCKPT_I32, gckpt_shape2(1, LONG));
    gckpt_fetch_spec fetch = { model_logits(&t.m, model_hidden(&t.m, in, &t.how)), 0 };
    const gckpt_plan_desc all = { .mode = GCKPT_INFERENCE,
                                  .fetch.specs = &fetch,
                                  .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(graph, NULL, 0, &all);
    CHECK_MSG(p != NULL, "%s: %s", name, gckpt_error_text(graph));
    gckpt_exec *e = gckpt_exec_new(p, t.s, NULL);
    const gckpt_feed feed = { gckpt_id(in), tokens };
    CHECK(gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK);
    const float *want = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
    const float *have = generator_prompt(&g, tokens, FIRST);
    for (int at = FIRST; at < LONG && CHECK(have != NULL); at++) {
        CHECK_MSG(memcmp(have, want + (at - 1) * V, (size_t)V * sizeof *have) == 0,
                  "%s: logits of token %d differ with caches", name, at);
        have = generator_next(&g, tokens + at);
    }
    util_free(e, p, graph, NULL);
    generator_free(&g);
    end(&t);
}

static void test_rings(void)
{
    const adapters_options prefix = { .method = ADAPTERS_PREFIX, .size = 3 };
    const adapters_options longer = { .method = ADAPTERS_PREFIX, .size = 140 };
    const adapters_options prompt = { .method = ADAPTERS_PROMPT, .size = 70 };
    for (int i = 0; i < CASES; i++)
        if (golden_windows[i].base == NULL)
            test_long(golden_windows[i].name, NULL);
    test_long("gemma2", &prefix);
    test_long("gemma2", &longer);
    test_long("gemma3", &prompt);
}

/* ---- methods ---- */
enum {
    C = 16, /* width of gemma2 */
    Q = 24,
    K = 12,
    I = 24,
    L = 3,
    V = 128,
    BLOCK = 4 * C + 2 * C * Q + 2 * C * K + 3 * C * I
};
static const struct {
    adapters_options options;
    int64_t trains;
    int begins; /* if nonzero, logits of an untrained adapter are within 1e-4 of the model's */
} methods[] = {
    { { .method = ADAPTERS_FULL }, V *C + L *BLOCK + C, 1 },
    { { .method = ADAPTERS_LAST }, BLOCK + C, 1 },
    { { .method = ADAPTERS_HEAD }, V *C, 1 },
    { { .method = ADAPTERS_NEW_BLOCKS, .layers = 2 }, 2 * BLOCK, 1 },
    { { .method = ADAPTERS_LORA, .size = 2 }, L * 2 * (2 * C + Q + K), 1 },
    { { .method = ADAPTERS_LORA, .size = 1, .targets = "all-linear" },
      L *(2 * (C + Q) + 2 * (C + K) + 3 * (C + I)),
      1 },
    { { .method = ADAPTERS_HOULSBY, .size = 4 }, L *(2 * (2 * 4 * C + 4 + C) + 4 * C) + C, 0 },
    { { .method = ADAPTERS_LLAMA, .size = 3 }, L *(3 * C + 1), 1 },
    { { .method = ADAPTERS_PREFIX, .size = 3 }, L * 2 * 3 * K, 0 },
    { { .method = ADAPTERS_PROMPT, .size = 3 }, 3 * C, 0 },
};

/* Tests every method on Gemma 2, as test_methods of test_llama.c does for Llama. */
static void test_methods(void)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const char *name = adapters_names[methods[i].options.method];
        const int full = methods[i].options.method == ADAPTERS_FULL;
        const sample_options greedy = { 0, 0, 0, 0 };
        char folder[96];
        float before[LOGITS], after[LOGITS], again[LOGITS];
        int32_t made[GOLDEN_NEW];
        generator p;
        tuned t;
        snprintf(folder, sizeof folder, "%s/method", tuning_folder);
        open_base(&t, "gemma2", NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &methods[i].options) == 0, "%s: %s", name,
                  t.m.error);
        CHECK_MSG(adapters_trainable(t.s) == methods[i].trains, "%s: %lld parameters", name,
                  (long long)adapters_trainable(t.s));
        if (methods[i].begins)
            tuning_logits(&t.m, t.s, &t.how, "gemma2", 1e-4);
        tuning_run(&t.m, t.s, &t.how, name, before);
        tuning_train(&t.m, t.s, &t.how, name, NULL, golden_adapter_lr, GCKPT_STORE_ALL,
                     GOLDEN_MICRO);
        tuning_run(&t.m, t.s, &t.how, name, after);
        CHECK_MSG(memcmp(before, after, sizeof after), "%s: has not learned", name);
        const generator_desc desc = { .hooks = t.how.hooks };
        if (CHECK_MSG(generator_new(&p, &t.m, t.s, &desc) == 0, "%s: %s", name, t.m.error)) {
            CHECK(generator_text(&p, golden_prompt, GOLDEN_PROMPT, &greedy, GOLDEN_NEW, NULL, made,
                                 NULL, NULL) == GOLDEN_NEW);
            generator_free(&p);
            tuning_generate(&t.m, t.s, t.how.hooks, name, made);
        }
        CHECK_MSG(adapters_save(&t.a, folder, NULL) == 0, "%s: %s", name, t.m.error);
        end(&t);
        open_base(&t, "gemma2", NULL);
        if (full) {
            end(&t);
            memset(&t, 0, sizeof t);
            t.s = tuning_load(&t.m, folder, NULL);
        } else {
            CHECK_MSG(adapters_load(&t.a, &t.m, t.s, folder) == 0, "%s: %s", name, t.m.error);
        }
        tuning_run(&t.m, t.s, full ? NULL : &t.how, name, again);
        CHECK_MSG(!memcmp(after, again, sizeof after), "%s: its file gives other logits", name);
        end(&t);
    }
}

/* LoRA on weights that are quantised while loading, or quantised in the file: logits must be close to the model's, and
 * every plan must give the same bits. */
static void test_packed(void)
{
    static const model_source sources[] = { { .storage = GCKPT_STORAGE_BF16 },
                                            { .storage = GCKPT_STORAGE_I8 },
                                            { .map = 1 } };
    static const double near[] = { 1e-4, 0.3, 1e-4 }; /* the model's files are BF16 */
    const adapters_options lora = { .method = ADAPTERS_LORA, .targets = "all-linear" };
    for (int i = 0; i < 6; i++) {
        const char *name = i < 3 ? "gemma2" : "gemma3";
        uint64_t hash = 0;
        for (int k = 0; k < 2 && check_sampled((unsigned)i, 3); k++) {
            tuned t;
            open_base(&t, name, &sources[i % 3]);
            CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &lora) == 0, "%s", t.m.error);
            tuning_logits(&t.m, t.s, &t.how, name, near[i % 3]);
            tuning_train(&t.m, t.s, &t.how, "packed", NULL, golden_adapter_lr,
                         k ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, k ? 2 : GOLDEN_BATCH);
            CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "source %d: other bits", i);
            hash = gckpt_store_hash(t.s);
            end(&t);
        }
    }
}

/* ---- config.json ---- */
/* A layer that a method adds must attend to all positions if config.json lists a type for each layer; if not, it must
 * follow the window pattern of the other layers. The saved config.json must say the same, and the reloaded model must
 * have the same logits. */
static void test_added(void)
{
    static const struct {
        const char *name;
        int slide; /* bit k is set if added layer k has a window */
        const char *says;
    } all[] = {
        { "gemma3", 0,
          "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
          "\"sliding_attention\", \"full_attention\", \"full_attention\"]" },
        { "gemma3_old", 1, "\"sliding_window_pattern\": 3" },
        { "gemma2_old", 2, "\"num_hidden_layers\": 5" },
        { "mistral", 3, "\"sliding_window\": 5" },
        { "qwen2", 3, "\"max_window_layers\": 1" },
    };
    const adapters_options o = { .method = ADAPTERS_NEW_BLOCKS, .layers = 2 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char folder[96], path[128];
        float before[LOGITS], after[LOGITS];
        tuned t;
        snprintf(folder, sizeof folder, "%s/added", tuning_folder);
        snprintf(path, sizeof path, "%s/config.json", folder);
        open_base(&t, all[i].name, NULL);
        const int64_t first = t.m.config.layers;
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &o) == 0, "%s", t.m.error);
        for (int k = 0; k < 2; k++)
            CHECK_MSG(llama_bit(t.m.config.llama.sliding, first + k) == (all[i].slide >> k & 1),
                      "%s: added layer %d", all[i].name, k);
        tuning_train(&t.m, t.s, &t.how, "added", NULL, golden_adapter_lr, GCKPT_STORE_ALL, 3);
        tuning_run(&t.m, t.s, &t.how, "added", before);
        CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
        end(&t);
        file b = tuning_read(path);
        file_write(&b, (const unsigned char *)"", 1);
        CHECK_MSG(strstr((const char *)b.bytes, all[i].says) != NULL, "%s in: %s", all[i].says,
                  b.bytes);
        free(b.bytes);
        memset(&t, 0, sizeof t);
        t.s = tuning_load(&t.m, folder, NULL);
        tuning_run(&t.m, t.s, NULL, "added", after);
        CHECK_MSG(memcmp(before, after, sizeof after) == 0, "%s: saved, another model",
                  all[i].name);
        end(&t);
    }
}

static const char weights[] = "model.safetensors", config[] = "config.json";
static const tuning_edit wrong[] = {
    { "gemma2", config, "\"sliding_window\": 5", "\"sliding_window\": null",
      "layer 0 has sliding attention, but there is no window", 0 },
    { "gemma2", config, "\"sliding_window\": 5", "\"sliding_window\": -5",
      "sliding_window -5: expected 1 or more", 0 },
    { "gemma2", config, "\"attn_logit_softcapping\": 1.5", "\"attn_logit_softcapping\": 0",
      "attn_logit_softcapping 0: expected a number above 0", 0 },
    { "gemma2", config, "\"final_logit_softcapping\": 4.0", "\"final_logit_softcapping\": -4",
      "final_logit_softcapping -4: expected a number above 0", 0 },
    { "gemma2", config, "\"query_pre_attn_scalar\": 20", "\"query_pre_attn_scalar\": 0",
      "query_pre_attn_scalar 0: expected a number above 0", 0 },
    { "gemma2", config, "\"use_bidirectional_attention\": null",
      "\"use_bidirectional_attention\": true", "use_bidirectional_attention: expected false", 0 },
    { "gemma3", config, "\"rope_type\": \"linear\"", "\"rope_type\": \"dynamic\"",
      "rope_type: expected default, linear, llama3, yarn or longrope", 0 },
    { "gemma3", config, "\"full_attention\": {", "\"rope_type\": \"default\", \"full\": {",
      "rope_type: expected an object: rope_parameters has an object full_attention and an object",
      0 },
    { "gemma3", config, "\"rope_theta\": 1000.0", "\"rope_theta\": -1",
      "rope_theta -1: expected a number above 1", 0 },
    { "gemma3", config, "\"full_attention\",\n", "", "layer_types: expected as many types", 0 },
    { "gemma3", config, "\"full_attention\",\n", "\"chunked_attention\",",
      "expected full_attention or sliding_attention", 0 },
    { "gemma3", config, "\"gemma3_text\"", "\"gemma3\"",
      "it also reads pictures: save its text model in transformers", 0 },
    { "gemma3_old", config, "\"sliding_window_pattern\": 3,\n  \"tie",
      "\"sliding_window_pattern\": 0,\n  \"tie", "sliding_window_pattern 0: expected 1 or more",
      0 },
    { "gemma3", config, "\"use_cache\"", "\"partial_rotary_factor\": 0.5, \"use_cache\"",
      "partial_rotary_factor: expected 1", 0 },
    { "gemma3_old", config, "\"rope_local_base_freq\": 1000.0", "\"rope_local_base_freq\": 1",
      "rope_local_base_freq 1: expected a number above 1", 0 },
    { "qwen3", config, "\"use_sliding_window\": true", "\"use_sliding_window\": false",
      "layer 0 has sliding attention, but there is no window", 0 },
    { "mistral", config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 257",
      "a sliding_window in 257 layers: expected 256 layers at most", 0 },
    { "gemma2", weights, "layers.1.pre_feedforward_layernorm", "layers.1.prf_feedforward_layernorm",
      "layers.1.prf_feedforward_layernorm", 0 },
    { "gemma3", weights, "layers.0.self_attn.q_norm", "layers.0.self_attn.r_norm",
      "layers.0.self_attn.r_norm", 0 },
};

static void test_wrong(void)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const tuning_edit *e = &wrong[i];
        tuned t;
        memset(&t, 0, sizeof t);
        t.s = gckpt_store_new(NULL);
        const int failed = model_load(&t.m, t.s, tuning_wrong(e), NULL);
        CHECK_MSG(failed && strstr(t.m.error, e->says), "%s, %s: \"%s\"", e->file, e->to,
                  failed ? t.m.error : "loaded");
        end(&t);
    }
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (int i = 0; i < CASES; i++)
        if (golden_windows[i].base == NULL)
            tuned_model(open_base, golden_windows[i].name, golden_windows[i].losses,
                        golden_windows[i].made);
        else
            tuned_adapter(open_base, golden_windows[i].name, golden_windows[i].base,
                          golden_windows[i].losses, golden_windows[i].made);
    if (argc == 1) {
        test_rings();
        test_methods();
        test_packed();
        test_added();
        test_wrong();
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s/base", tuning_folder);
    CHECK(system(command) == 0); /* so that check_peft.py finds only the saved files */
    tuning_close(argc);
    return check_report("windows");
}
