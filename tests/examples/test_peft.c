/* test_peft.c - DoRA, modules_to_save and layers_to_transform of peft (golden/adapters.py): logits, gradients, ten
 * steps of training, generated tokens and merged weights must equal those of peft, both for files that peft wrote and
 * for files written here. An untrained adapter must compute the unchanged model, with every plan and on quantised
 * weights. Errors are refused with the name of the wrong key. If the disk is full, a save must leave both weights and
 * config, or neither.
 *
 *     build/test_peft [folder for saved files] */
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

/* ---- comparison with peft ---- */
/* Returns the name of parameter i in an adapter's file, or NULL if the parameter is not trained. */
static const char *named(tuned *t, int i, char *name)
{
    adapters_files files;
    gckpt_parameter p;
    memset(&files, 0, sizeof files);
    files.a = &t->a;
    const char *found =
        gckpt_store_peek(t->s, i, &p) == GCKPT_OK ? adapters_save_name(&files, p.name) : NULL;
    return found != NULL ? strcpy(name, found) : NULL;
}

/* Compares two sums over each gradient, of squares and of signed elements, with those of golden/adapters.py. */
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
    gckpt_fetch_spec *fetches = (gckpt_fetch_spec *)calloc((size_t)count, sizeof *fetches);
    for (int i = 0; i < count && gckpt_store_peek(t->s, i, &p) == GCKPT_OK; i++) {
        fetches[n].tensor = p.frozen ? NULL : gckpt_param(g, p.name, p.shape, none);
        fetches[n].gradient = 1;
        n += !p.frozen;
    }
    const gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = n, .batch = GOLDEN_BATCH };
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
            const float *values = gckpt_fetch(e, gckpt_id(fetches[k++].tensor), 1);
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
    util_free(e, plan, g, NULL);
    free(fetches);
}

/* Every plan must give the same bits. A saved adapter must load again, and its file must have the bytes of one that
 * peft has accepted. */
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
        t.a.options.dropout = 0; /* peft's gradients and losses were computed without dropout */
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

/* Merged weights must compute the results of the adapter, also after they are saved and loaded as a whole model in
 * transformers' format. Unmerging must restore the old weights. */
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
    CHECK_MSG(model_save(&t.m, t.s, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    CHECK_MSG(adapters_unmerge(&t.a) == 0, "%s", t.m.error);
    CHECK(gckpt_store_hash(t.s) == hash);
    end(&t);
    open_base(&t, folder, NULL);
    tuning_logits(&t.m, t.s, NULL, name, 1e-4);
    end(&t);
}

/* ---- further rules ---- */
/* Returns loss and gradient norm of the first training step. */
static gckpt_report first_step(tuned *t, gckpt_mode mode, int64_t rows)
{
    gckpt_graph *g = gckpt_graph_new(t->s, NULL);
    gckpt_shape shape = gckpt_shape2(rows, GOLDEN_LENGTH);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { model_loss(&t->m, model_hidden(&t->m, tokens, &t->how), targets), 1, 0 };
    gckpt_plan_desc desc = { .mode = mode, .batch = GOLDEN_BATCH };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, t->s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(tokens), golden_batch },
                                  { gckpt_id(targets), golden_targets } };
    const gckpt_hyper hyper = { .lr = 1e-3f, .clip = 1 };
    gckpt_report report = { 0 };
    CHECK_MSG(gckpt_step(e, feeds, 2, GOLDEN_BATCH, &hyper, &report) == GCKPT_OK, "%s",
              gckpt_error_text(e));
    util_free(e, p, g, NULL);
    return report;
}

static int close_to(double a, double b, double by) { return a - b <= by * b && b - a <= by * b; }

/* As in peft, dropout must affect only the term that DoRA adds. While that term is zero, the loss must be the model's.
 * With a tiny dropout rate, the loss must be close to the loss without dropout. */
static void test_dropout(void)
{
    const adapters_options fresh = {
        .method = ADAPTERS_LORA, .dora = 1, .dropout = 0.5, .targets = "all-linear"
    };
    const adapters_options none = { .method = ADAPTERS_LORA };
    double loss = 0, norm = 0;
    uint64_t hash = 0;
    tuned t;
    for (int i = 0; i < 2; i++) {
        open_base(&t, qwen2, NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, i ? &fresh : &none) == 0, "%s", t.m.error);
        const gckpt_report r = first_step(&t, GCKPT_STORE_ALL, GOLDEN_BATCH);
        CHECK_MSG(i == 0 || close_to(r.loss, loss, 1e-6), "%g, not %g", r.loss, loss);
        loss = r.loss;
        end(&t);
    }
    for (int i = 0; i < 4; i++) {
        open_base(&t, qwen2, NULL);
        CHECK(adapters_load(&t.a, &t.m, t.s, GOLDEN "llama_dora") == 0);
        CHECK(t.a.options.dropout > 0.0999 && t.a.options.dropout < 0.1001);
        t.a.options.dropout = i == 0 ? 0 : i == 1 ? 1e-30 : 0.3;
        const gckpt_report r =
            first_step(&t, i == 3 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, i == 3 ? 1 : GOLDEN_BATCH);
        const int same = close_to(r.loss, loss, 1e-6) && close_to(r.grad_norm, norm, 1e-5);
        CHECK_MSG(i == 0 || same == (i != 2), "%d: %g, %g; %g, %g", i, r.loss, loss, r.grad_norm,
                  norm);
        CHECK_MSG(i < 3 || gckpt_store_hash(t.s) == hash, "other bits by another plan");
        hash = gckpt_store_hash(t.s);
        loss = r.loss;
        norm = r.grad_norm;
        end(&t);
    }
}

/* DoRA on quantised weights. DoRA's magnitude m must be the norm of the dequantised rows, so that the untrained adapter
 * computes the quantised model. Every plan must give the same bits, and the arena must never have the weights as
 * floats. */
static void test_packed(void)
{
    static const gckpt_storage types[] = { GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16, GCKPT_STORAGE_I8 };
    static const char *const bases[] = { gpt2, qwen2 };
    const adapters_options dora = { .method = ADAPTERS_LORA, .targets = "all-linear", .dora = 1 };
    static float plain[LOGITS], begun[LOGITS];
    for (int i = 0; i < 6; i++) {
        const model_source packed = { .storage = types[i % 3] };
        uint64_t hash = 0;
        for (int k = 0; k < 2; k++) {
            tuned t;
            open_base(&t, bases[i / 3], &packed);
            tuning_run(&t.m, t.s, NULL, "packed", plain);
            CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &dora) == 0, "%s", t.m.error);
            tuning_run(&t.m, t.s, &t.how, "packed", begun);
            for (int j = 0; j < LOGITS; j++)
                CHECK(close_to(begun[j] + 100, plain[j] + 100, 1e-6));
            tuning_train(&t.m, t.s, &t.how, "packed", NULL, golden_adapter_lr,
                         k ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, k ? 2 : GOLDEN_BATCH);
            CHECK_MSG(k == 0 || gckpt_store_hash(t.s) == hash, "storage %d: other bits", i);
            hash = gckpt_store_hash(t.s);
            CHECK(adapters_merge(&t.a) != 0 && strstr(t.m.error, "is quantised"));
            end(&t);
        }
    }
}

/* An adapter's file has the whole modules that were trained, so it must load over quantised weights as well. */
static void test_saved_over_packed(void)
{
    const model_source packed = { .storage = GCKPT_STORAGE_I8 };
    gckpt_parameter a, b;
    tuned t, u;
    open_base(&t, mha, &packed);
    open_base(&u, mha, NULL);
    CHECK_MSG(adapters_load(&t.a, &t.m, t.s, GOLDEN "llama_module") == 0, "%s", t.m.error);
    CHECK(adapters_load(&u.a, &u.m, u.s, GOLDEN "llama_module") == 0);
    const char *const names[] = { "lm_head.weight", "layers.1.self_attn.o_proj.weight" };
    for (int i = 0; i < 2; i++)
        CHECK(gckpt_store_get(t.s, gckpt_store_find(t.s, names[i]), &a) == GCKPT_OK &&
              gckpt_store_get(u.s, gckpt_store_find(u.s, names[i]), &b) == GCKPT_OK && !a.frozen &&
              !memcmp(a.values, b.values, (size_t)a.elements * sizeof *a.values));
    end(&t);
    end(&u);
}

/* DoRA divides by the norm of each row. With a row of zeros, training and merging must give finite weights. */
static void test_zeros(void)
{
    const adapters_options dora = { .method = ADAPTERS_LORA, .dora = 1 };
    gckpt_parameter p;
    tuned t;
    open_base(&t, gqa, NULL);
    CHECK(gckpt_store_get(t.s, gckpt_store_find(t.s, "layers.0.self_attn.q_proj.weight"), &p) ==
          GCKPT_OK);
    memset(p.values, 0, (size_t)p.shape.d[1] * sizeof *p.values);
    CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &dora) == 0, "%s", t.m.error);
    tuning_train(&t.m, t.s, &t.how, "zeros", NULL, golden_adapter_lr, GCKPT_STORE_ALL, 3);
    CHECK_MSG(adapters_merge(&t.a) == 0, "%s", t.m.error);
    for (int64_t i = 0; i < p.elements; i++)
        CHECK(p.values[i] - p.values[i] == 0);
    end(&t);
}

/* ---- files ---- */
static const char weights[] = "adapter_model.safetensors", config[] = "adapter_config.json";

static void test_wrong(void)
{
    static const tuning_edit edits[] = {
        { "llama_dora", weights, "q_proj.lora_magnitude_vector", "q_proj.lora_magnitude_victor",
          "lora_magnitude_victor", 0 },
        { "llama_dora", weights, "\"shape\":[48]", "\"shape\":[84]", "lora_magnitude", 0 },
        { "llama_dora", config, "\"use_dora\": true", "\"use_dora\": 1", "use_dora", 0 },
        { "llama_dora", config, "\"use_dora\": true", "\"use_dora\": false",
          "lora_magnitude_vector\" is not trained by", 0 },
        { "llama_dora", config, "\"layers_pattern\": \"layers\"", "\"layers_pattern\": \"h\"",
          "layers_pattern: expected layers", 0 },
        { "llama_dora", config, "\"layers_pattern\": \"layers\"", "\"layers_pattern\": [\"h\", 3]",
          "layers_pattern", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "\"0\"", "expected a whole number", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[0, -1]", "expected a number of at least 0", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[0.5]", "expected a whole number", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[99999999]", "expected a number of at least 0", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[0, 1]", "no tensor for \"layers.1", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[1]", "layers.0.", 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[5, 7]",
          "layers_to_transform \"5,7\": the model has layers 0 to 1", 0 },
        { "llama_dora", config, "\"modules_to_save\": null", "\"modules_to_save\": [\"score\"]",
          "modules_to_save: \"score\" is no module; allowed are", 0 },
        { "llama_saved", config, "\"norm\"", "\"nurm\"", "\"nurm\" is no module; allowed are", 0 },
        { "llama_saved", config, "\"norm\"", "\"norm\", \"up_proj\"",
          "no tensor for \"layers.0.mlp", 0 },
        { "llama_saved", config, "\"norm\"", "7", "expected a string", 0 },
        { "llama_saved", config, "\"ensure_weight_tying\": false", "\"ensure_weight_tying\": true",
          "no tensor for \"embed_tokens.weight\"", 0 },
        { "llama_saved", weights, "model.lm_head.weight", "model.lm_hood.weight", "lm_hood", 0 },
        { "llama_saved", weights, "[128,32]", "[32,128]", "lm_head", 0 },
        { "llama_tied", config, "\"ensure_weight_tying\": true", "\"ensure_weight_tying\": false",
          "lm_head.weight\" is not trained by", 0 },
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const tuning_edit *e = &edits[i];
        tuned t;
        open_base(&t, strcmp(e->name, "llama_dora") == 0 ? qwen2 : gqa, NULL);
        const int failed = adapters_load(&t.a, &t.m, t.s, tuning_wrong(e));
        CHECK_MSG(failed && strstr(t.m.error, e->says), "%s, %s, %s: \"%s\"", e->name, e->file,
                  e->to, failed ? t.m.error : "loaded");
        end(&t);
    }
    static const tuning_edit taken[] = {
        /* other spellings of the same options, which must be accepted */
        { "llama_dora", config, "[\n    0\n  ]", "0", NULL, 0 },
        { "llama_dora", config, "[\n    0\n  ]", "[7, 0, 0]", NULL, 0 },
        { "llama_dora", config, "\"layers_pattern\": \"layers\"", "\"layers_pattern\": []", NULL,
          0 },
        { "llama_dora", config, "\"layers_pattern\": \"layers\"",
          "\"layers_pattern\": [\"h\", \"model.layers\"]", NULL, 0 },
    };
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        tuned t;
        open_base(&t, qwen2, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, tuning_wrong(&taken[i])) == 0, "%s: %s",
                  taken[i].to, t.m.error);
        tuning_logits(&t.m, t.s, &t.how, "llama_dora", 1e-4);
        end(&t);
    }
}

/* If the adapter's config ties the trained head to the trained embeddings, but the two differ in its file, the file
 * must be refused. */
static void test_twice(void)
{
    static const tuning_edit same = {
        "llama_tied", config, "\"ensure_weight_tying\": true", "\"ensure_weight_tying\":  true",
        NULL,         0
    };
    char path[160];
    const char *folder = tuning_wrong(&same);
    model_tensor head;
    uint64_t data = 0;
    json d;
    tuned t;
    snprintf(path, sizeof path, "%s/%s", folder, weights);
    memset(&head, 0, sizeof head);
    CHECK(model_read_header(path, &d, &data) == 0);
    for (uint32_t k = json_first(&d, JSON_ROOT); k != 0; k = json_next(&d, k))
        if (strstr(json_text(&d, k), "lm_head.weight") != NULL)
            model_describe(&d, k + 1, data, path, &head);
    json_free(&d);
    for (int changed = 0; changed < 2; changed++) {
        open_base(&t, gqa, NULL);
        const int failed = adapters_load(&t.a, &t.m, t.s, folder);
        CHECK_MSG(failed == -changed, "%s", t.m.error);
        CHECK_MSG(!failed ||
                      strstr(t.m.error, "lm_head.weight differs from embed_tokens.weight, but"),
                  "%s", t.m.error);
        end(&t);
        FILE *f = fopen(path, "r+b");
        CHECK(f != NULL && head.path[0] != 0 && fseek(f, (long)head.values.offset, SEEK_SET) == 0 &&
              fwrite("\1\2\3\4", 1, 4, f) == 4);
        CHECK(f != NULL && fclose(f) == 0);
    }
}

/* Returns 1 if the file DIR/NAME exists. */
static int is_there(const char *dir, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* Wherever the disk is full, a save must write both weights and config or neither, and keep existing files. */
static void test_full_disk(void)
{
    static const rlim_t sizes[] = { 100, 3000, RLIM_INFINITY, 3000 };
    const adapters_options o = { .method = ADAPTERS_LORA, .dora = 1 };
    struct rlimit all, some;
    char dirs[2][96];
    tuned t;
    CHECK(getrlimit(RLIMIT_FSIZE, &all) == 0);
    signal(SIGXFSZ, SIG_IGN);
    open_base(&t, gqa, NULL);
    CHECK(adapters_begin(&t.a, &t.m, t.s, &o) == 0);
    snprintf(dirs[0], sizeof dirs[0], "%s/full", tuning_folder);
    snprintf(dirs[1], sizeof dirs[1], "%s/full_model", tuning_folder);
    for (int i = 0; i < 8; i++) {
        static const char *const files[2][2] = { { config, weights },
                                                 { "config.json", "model.safetensors" } };
        const char *dir = dirs[i / 4];
        some = all;
        some.rlim_cur = sizes[i % 4] < all.rlim_max ? sizes[i % 4] : all.rlim_max;
        CHECK(setrlimit(RLIMIT_FSIZE, &some) == 0);
        const int failed =
            i < 4 ? adapters_save(&t.a, dir, "gqa") : model_save(&t.m, t.s, dir, GCKPT_STORAGE_F32);
        CHECK(setrlimit(RLIMIT_FSIZE, &all) == 0);
        CHECK_MSG(failed == (i % 4 == 2 ? 0 : -1), "%d: %s", i, t.m.error);
        CHECK(is_there(dir, files[i / 4][0]) == (i % 4 >= 2) &&
              is_there(dir, files[i / 4][1]) == (i % 4 >= 2));
        CHECK(!is_there(dir, "adapter_config.json.tmp") && !is_there(dir, "config.json.tmp"));
    }
    signal(SIGXFSZ, SIG_DFL);
    end(&t);
}

/* If allocation number `at` of the store fails, the call must return an error with a text, and leak nothing. */
static void test_memory(void)
{
    int failed = 1;
    for (long at = 1; failed && at < 3000; at++) {
        heap h = { .fail_at = at };
        gckpt_store_desc desc = { .memory = heap_memory(&h) };
        tuned t = { .s = gckpt_store_new(&desc) };
        failed = t.s == NULL || model_load(&t.m, t.s, gqa, NULL) != 0 ||
                 adapters_load(&t.a, &t.m, t.s, GOLDEN "llama_saved") != 0;
        CHECK_MSG(!failed || t.s == NULL || strstr(t.m.error, "memory"), "call %ld: %s", at,
                  t.m.error);
        end(&t);
        CHECK_MSG(h.live == 0 && h.wrong_sizes == 0, "call %ld: %zu bytes are left", at, h.live);
    }
    CHECK(!failed);
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (int i = 0; i < CASES; i++)
        test_golden(i);
    if (argc == 1) {
        for (int i = 0; i < CASES; i++)
            test_merge(i);
        test_dropout();
        test_packed();
        test_saved_over_packed();
        test_zeros();
        test_wrong();
        test_twice();
        test_full_disk();
        test_memory();
    }
    tuning_close(argc);
    return check_report("peft");
}
