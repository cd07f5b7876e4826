/* test_methods.c - tests examples/adapters.h, generate.h, sample.h and pattern.h without reference files. Each method
 * must give the same weights with every plan, and the logits of one call when it generates token by token. Options
 * select the trained parameters, and tokens must be drawn with the demanded probabilities.
 *
 *     build/test_methods */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "examples/generate.h"
#include "util.h"
#include <unistd.h>

enum { ROWS = 4, T = 10, V = 40, CONTEXT = 24, LAYERS = 3, C = 8 };

static const gckpt_backend *backend; /* if NULL, the processor */
static int32_t tokens_of[ROWS * T], targets_of[ROWS * T];
static char folder[] = "/tmp/gckpt-methods-XXXXXX";

typedef struct {
    model_any m;
    gckpt_store *store;
    adapters a;
} tuned;

/* Makes a new model, with weights so large that tokens have different logits, and begins the adapter. Returns the
 * result of adapters_begin: 0 or -1. */
static int begin(tuned *t, const adapters_options *o)
{
    const gckpt_store_desc desc = { { 0 }, 5 };
    memset(t, 0, sizeof *t);
    t->store = gckpt_store_new(&desc);
    gpt2_new(&t->m, LAYERS, 2, C, CONTEXT, V);
    t->m.config.init_range = 0.4;
    CHECK(model_declare(&t->m, t->store) == 0);
    return o != NULL ? adapters_begin(&t->a, &t->m, t->store, o) : 0;
}

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->store);
    model_close(&t->m);
}

/* Trains `steps` steps of ROWS rows, in micro-batches of `rows` rows, with dropout. Returns the last loss. */
static double train(tuned *t, const model_hooks *hooks, gckpt_mode mode, int64_t rows, int steps)
{
    const model_options how = { 0.1, 0, 0, hooks };
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    gckpt_tensor *x = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *y = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    const gckpt_term loss = { model_loss(&t->m, model_hidden(&t->m, x, &how), y), 1, 0 };
    const gckpt_plan_desc desc = { .mode = mode, .batch = ROWS, .backend = backend };
    const gckpt_exec_desc run = { .backend = backend };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, t->store, &run);
    const gckpt_feed feeds[] = { { gckpt_id(x), tokens_of }, { gckpt_id(y), targets_of } };
    const gckpt_hyper hyper = { .lr = 1e-2f };
    gckpt_report r = { 0 };
    for (int i = 0; i < steps; i++)
        CHECK(gckpt_step(e, feeds, 2, ROWS, &hyper, &r) == GCKPT_OK);
    util_free(e, p, g, NULL);
    return r.loss;
}

/* Writes logits (ROWS,T,V), computed in one call, to `to`. */
static void logits_of(tuned *t, const model_hooks *hooks, float *to)
{
    const model_options how = { 0, 0, 0, hooks };
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    gckpt_tensor *x = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(ROWS, T));
    const gckpt_fetch_spec fetch = { model_logits(&t->m, model_hidden(&t->m, x, &how)), 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, t->store, NULL);
    const gckpt_feed feed = { gckpt_id(x), tokens_of };
    CHECK(gckpt_forward(e, &feed, 1, ROWS, NULL) == GCKPT_OK);
    const float *x_out = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
    if (CHECK(x_out != NULL))
        memcpy(to, x_out, ROWS * T * V * sizeof *to);
    util_free(e, p, g, NULL);
}

static const struct {
    adapters_options o;
    int64_t trains; /* number of trained parameters */
    int same;       /* if nonzero, an untrained adapter computes the unchanged model */
} methods[] = {
    { { .method = ADAPTERS_FULL }, 40 * 8 + 24 * 8 + 3 * 872 + 16, 1 },
    { { .method = ADAPTERS_LAST, .layers = 2 }, 2 * 872 + 16, 1 },
    { { .method = ADAPTERS_HEAD }, 40 * 8, 1 },
    { { .method = ADAPTERS_BIAS }, 3 * 88 + 8, 1 },
    { { .method = ADAPTERS_NEW_BLOCKS, .layers = 2 }, 2 * 872, 1 },
    { { .method = ADAPTERS_LORA }, 3 * 8 * (8 + 24), 1 },
    { { .method = ADAPTERS_LORA,
        .size = 4,
        .alpha = 6,
        .rslora = 1,
        .dropout = 0.1,
        .targets = "h.[01].attn.c_(attn|proj),c_fc",
        .rank_pattern = "h.0.attn.c_attn=2,c_fc=3",
        .bias = ADAPTERS_LORA_BIASES },
      2 * 32 + 4 * 32 + 2 * 4 * 16 + 3 * 3 * 40 + 2 * 32 + 3 * 32,
      1 },
    { { .method = ADAPTERS_LORA, .targets = "c_proj", .bias = ADAPTERS_ALL_BIASES },
      3 * 8 * (16 + 40) + 3 * 88 + 8,
      1 },
    { { .method = ADAPTERS_LORA,
        .size = 2,
        .targets = "c_attn,c_proj",
        .dora = 1,
        .layers_to_transform = "0,2" },
      2 * (2 * 32 + 24 + 2 * 16 + 8 + 2 * 40 + 8),
      1 },
    { { .method = ADAPTERS_LORA, .modules_to_save = "wte" }, 3 * 8 * (8 + 24) + 320, 1 },
    { { .method = ADAPTERS_LORA, .modules_to_save = "wte", .tied = 1 }, 3 * 8 * (8 + 24) + 320, 1 },
    { { .method = ADAPTERS_LORA,
        .targets = "c_proj",
        .dora = 1,
        .bias = ADAPTERS_LORA_BIASES,
        .modules_to_save = "lm_head,ln_f,mlp",
        .layers_to_transform = "1-2" },
      2 * (8 * 16 + 8 + 8) + 320 + 16 + 3 * (32 * 9 + 8 * 33),
      1 },
    { { .method = ADAPTERS_HOULSBY, .size = 3 }, 3 * 2 * (8 * 3 + 3 + 3 * 8 + 8) + 7 * 16, 0 },
    { { .method = ADAPTERS_LLAMA, .layers = 2, .size = 5 }, 2 * (5 * 8 + 1), 1 },
    { { .method = ADAPTERS_PREFIX, .size = 4 }, 3 * 2 * 4 * 8, 0 },
    { { .method = ADAPTERS_PREFIX, .size = 4, .hidden = 5 },
      4 * 8 + 5 * 9 + 3 * 2 * (8 * 5 + 8),
      0 },
    { { .method = ADAPTERS_PROMPT, .size = 4 }, 4 * 8, 0 },
};
enum { CASES = sizeof methods / sizeof methods[0] };

/* Returns whether all frozen parameters of store a have the same bits in store b. */
static int frozen_same(gckpt_store *a, gckpt_store *b)
{
    gckpt_parameter p, q;
    int same = 1;
    for (int i = 0; gckpt_store_get(a, i, &p) == GCKPT_OK; i++)
        if (p.frozen && gckpt_store_get(b, gckpt_store_find(b, p.name), &q) == GCKPT_OK)
            same &= memcmp(p.values, q.values, (size_t)p.elements * sizeof *p.values) == 0;
    return same;
}

static void test_plans(void)
{
    tuned base;
    begin(&base, NULL);
    for (int i = 0; i < CASES; i++) {
        const adapters_options *o = &methods[i].o;
        tuned t, u;
        CHECK_MSG(begin(&t, o) == 0 && begin(&u, o) == 0, "%s", t.m.error);
        CHECK_MSG(adapters_trainable(t.store) == methods[i].trains, "case %d: %lld", i,
                  (long long)adapters_trainable(t.store));
        const double a = train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 4);
        const double b = train(&u, &u.a.hooks, GCKPT_MEMORY_POOR, 1, 4);
        CHECK_MSG(memcmp(&a, &b, sizeof a) == 0, "case %d: %.17g %.17g", i, a, b);
        CHECK_MSG(gckpt_store_hash(t.store) == gckpt_store_hash(u.store), "case %d", i);
        CHECK_MSG(frozen_same(t.store, base.store), "case %d", i);
        end(&t);
        end(&u);
    }
    end(&base);
}

/* Generating token by token must give the logits of one call, for prompts that are fed in chunks of any length, and an
 * earlier prompt must not affect a later one. */
static void test_generation(int every) /* runs every `every`-th case */
{
    static float all[ROWS * T * V], plain[ROWS * T * V];
    tuned base;
    begin(&base, NULL);
    logits_of(&base, NULL, plain);
    end(&base);
    for (int i = 0; i < CASES; i += every) {
        tuned t;
        begin(&t, &methods[i].o);
        logits_of(&t, &t.a.hooks, all);
        CHECK_MSG((memcmp(all, plain, sizeof all) == 0) == methods[i].same, "case %d", i);
        const generator_desc desc = {
            .samples = 2, .chunk = 1 + i % 5, .hooks = &t.a.hooks, .backend = backend
        };
        generator p;
        /* An earlier generator on the same store must not change the results of the next one. */
        if (CHECK(generator_new(&p, &t.m, t.store, &desc) == 0))
            generator_free(&p);
        train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 2);
        logits_of(&t, &t.a.hooks, all);
        CHECK_MSG(memcmp(all, plain, sizeof all) != 0, "case %d", i);
        if (CHECK_MSG(generator_new(&p, &t.m, t.store, &desc) == 0, "%s", t.m.error)) {
            for (int row = 0; row < 2; row++)
                for (int n = 1 + 3 * row; n <= T; n++) {
                    const int32_t *text = tokens_of + row * T;
                    const float *x =
                        n < 3 + 3 * row
                            ? generator_prompt(&p, text, n)
                            : generator_next(&p, (int32_t[]){ text[n - 1], text[n - 1] });
                    for (int k = 0; k < 2 && CHECK_MSG(x != NULL, "%s", t.m.error); k++)
                        CHECK_MSG(memcmp(x + k * V, all + (row * T + n - 1) * V, V * sizeof *x) ==
                                      0,
                                  "case %d, row %d, %d tokens", i, row, n);
                }
            generator_free(&p);
        }
        end(&t);
    }
}

typedef struct {
    int calls, stop_at;
    int32_t seen[64];
} watcher;

static int watch(void *user, int64_t at, const int32_t *tokens)
{
    watcher *w = (watcher *)user;
    CHECK(at == w->calls);
    w->seen[w->calls++] = tokens[1];
    return w->calls == w->stop_at;
}

static void test_texts(void)
{
    const sample_options how = { 1, 0, 0, 9 };
    int32_t a[2 * 30], b[2 * 30];
    tuned t;
    watcher w = { 0 };
    begin(&t, NULL);
    const generator_desc two = { .samples = 2 };
    generator p;
    CHECK(generator_new(&p, &t.m, t.store, &two) == 0);
    /* The text fills the context, so its last token is drawn but not fed. */
    const int64_t n = generator_text(&p, tokens_of, 4, &how, 30, NULL, a, watch, &w);
    CHECK_MSG(n == CONTEXT - 4 + 1 && w.calls == n, "%lld: %s", (long long)n, t.m.error);
    CHECK(memcmp(a, a + 30, (size_t)n * sizeof *a) != 0);
    CHECK(memcmp(w.seen, a + 30, (size_t)n * sizeof *a) == 0);
    /* The same options must give the same tokens, and each row must stop independently. */
    CHECK(generator_text(&p, tokens_of, 4, &how, 30, NULL, b, NULL, NULL) == n);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0 &&
          memcmp(a + 30, b + 30, (size_t)n * sizeof *a) == 0);
    int at = 0, other = 0;
    while (a[at] != a[5])
        at++;
    while (other < n && a[30 + other] != a[5])
        other++;
    const int32_t stops[] = { V, a[5], -1 };
    const int64_t made = generator_text(&p, tokens_of, 4, &how, 30, stops, b, NULL, NULL);
    CHECK(made == (at > other ? at + 1 : other < n ? other + 1 : n));
    for (int i = 0; i < made; i++) {
        CHECK(b[i] == (i < at ? a[i] : a[5]));
        CHECK(b[30 + i] == (i < other ? a[30 + i] : a[5]));
    }
    memset(&w, 0, sizeof w);
    w.stop_at = 3;
    CHECK(generator_text(&p, tokens_of, 4, &how, 30, NULL, b, watch, &w) == 3);
    /* A prompt that fills the context, one that is too long, and an empty one. */
    static int32_t prompt[CONTEXT + 1];
    CHECK(generator_text(&p, prompt, CONTEXT, &how, 30, NULL, b, NULL, NULL) == 1);
    CHECK(generator_text(&p, prompt, CONTEXT + 1, &how, 30, NULL, b, NULL, NULL) == -1);
    CHECK_MSG(strstr(t.m.error, "24") != NULL, "%s", t.m.error);
    CHECK(generator_text(&p, prompt, 0, &how, 30, NULL, b, NULL, NULL) == -1);
    CHECK(strstr(t.m.error, "allowed is 1 to") != NULL);
    prompt[1] = V;
    CHECK(generator_text(&p, prompt, 3, &how, 30, NULL, b, NULL, NULL) == -1);
    const size_t bytes = p.bytes;
    generator_free(&p);
    /* With a smaller capacity: the same tokens until the capacity is full, in fewer bytes. */
    const generator_desc small = { .samples = 2, .capacity = 9 };
    CHECK(generator_new(&p, &t.m, t.store, &small) == 0);
    CHECK(generator_text(&p, tokens_of, 4, &how, 30, NULL, b, NULL, NULL) == 6);
    CHECK(memcmp(a, b, 6 * sizeof *a) == 0 && p.bytes < bytes);
    generator_free(&p);
    const generator_desc large = { .capacity = CONTEXT + 1 };
    CHECK(generator_new(&p, &t.m, t.store, &large) == -1);
    CHECK_MSG(strstr(t.m.error, "25") != NULL, "%s", t.m.error);
    end(&t);
}

/* If allocation number `at` of the store fails, for every number, the call must return an error with a text, and
 * everything must be freed. */
static void test_memory(void)
{
    for (int method = 0; method < 3; method++)
        for (long at = 1, more = 1; more; at++) {
            heap h = { 0 };
            const gckpt_store_desc desc = { heap_memory(&h), 5 };
            const adapters_options o = { .method = method == 0   ? ADAPTERS_HEAD
                                                   : method == 1 ? ADAPTERS_PREFIX
                                                                 : ADAPTERS_LORA,
                                         .dora = method == 2,
                                         .modules_to_save = method == 2 ? "wte" : NULL };
            tuned t;
            memset(&t, 0, sizeof t);
            t.store = gckpt_store_new(&desc);
            gpt2_new(&t.m, LAYERS, 2, C, CONTEXT, V);
            h.fail_at = h.calls + at;
            int failed = adapters_begin(&t.a, &t.m, t.store, &o);
            generator p = { 0 };
            const generator_desc made = { .hooks = &t.a.hooks };
            failed = failed || generator_new(&p, &t.m, t.store, &made) != 0;
            failed = failed || generator_prompt(&p, tokens_of, 5) == NULL;
            more = h.calls >= h.fail_at;
            CHECK_MSG(failed == (int)more && (!failed || t.m.error[0] != 0), "%ld: %s", at,
                      t.m.error);
            generator_free(&p);
            end(&t);
            CHECK_MSG(h.blocks == 0 && h.live == 0, "%ld", at);
        }
}

/* ---- patterns, and the modules that they match ---- */
static void test_patterns(void)
{
    static const struct {
        const char *text, *pattern;
        int matches;
    } all[] = {
        { "abc", "abc", 1 },        { "abc", "ab", 0 },         { "abc", "bc", 0 },
        { "abc", "a.c", 1 },        { "abc", "a*bc", 1 },       { "bc", "a*bc", 1 },
        { "aaabc", "a*bc", 1 },     { "bc", "a+bc", 0 },        { "aabc", "a+bc", 1 },
        { "abc", "ab?c", 1 },       { "ac", "ab?c", 1 },        { "abbc", "ab?c", 0 },
        { "abab", "(ab)*", 1 },     { "", "(ab)*", 1 },         { "aba", "(ab)*", 0 },
        { "abab", "(?:ab)+", 1 },   { "x", "a|x", 1 },          { "ax", "a|x", 0 },
        { "bx", "(a|b|)x", 1 },     { "x", "(a|b|)x", 1 },      { "h.12", "h\\.\\d+", 1 },
        { "h.1a", "h\\.\\d+", 0 },  { "hx1", "h\\.\\d+", 0 },   { "q7", "[a-q][^a-z]", 1 },
        { "r7", "[a-q][^a-z]", 0 }, { "qz", "[a-q][^a-z]", 0 }, { "a-", "a[b-]", 1 },
        { "abab", "(a*b*)*", 1 },   { "ab", "^ab$", 1 },        { "ab", "a^b", 0 },
        { "ab", "a$b", 0 },         { "a_9", "\\w*", 1 },       { "a.9", "\\w*", 0 },
        { "a|b", "a\\|b", 1 },      { "a", "(a", -1 },          { "a", "a)", -1 },
        { "a", "[a", -1 },          { "a", "*a", -1 },          { "a", "a{1}", -1 },
        { "a", "(?=a)a", -1 },      { "a", "\\s", -1 },         { "a", "a**", -1 },
        { "a", "a\\", -1 },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const int got = pattern_match(all[i].text, 1, all[i].pattern, strlen(all[i].pattern));
        CHECK_MSG(got == all[i].matches, "%s %s: %d", all[i].text, all[i].pattern, got);
    }
    char text[PATTERN_MAX_TEXT + 2];
    memset(text, 'a', sizeof text);
    text[PATTERN_MAX_TEXT] = 0;
    CHECK(pattern_match(text, 1, "a*", 2) == 1 && pattern_match(text, 1, "a*b", 3) == 0);
    text[PATTERN_MAX_TEXT] = 'a';
    text[PATTERN_MAX_TEXT + 1] = 0;
    CHECK(pattern_match(text, 1, "a*", 2) == -1);
    char deep[2 * PATTERN_MAX_DEPTH + 3];
    for (int n = PATTERN_MAX_DEPTH; n <= PATTERN_MAX_DEPTH + 1; n++) { /* nested groups, up to the limit and one more */
        memset(deep, '(', (size_t)n);
        deep[n] = 'a';
        memset(deep + n + 1, ')', (size_t)n);
        CHECK(pattern_match("a", 1, deep, 2 * (size_t)n + 1) == (n > PATTERN_MAX_DEPTH ? -1 : 1));
    }
}

static void test_options(void)
{
    static const struct {
        adapters_options o;
        const char *says;
    } wrong[] = {
        { { .method = ADAPTERS_LORA, .targets = "lm_head" },
          "targets \"lm_head\" match lm_head, but only layers of blocks can have LoRA here" },
        { { .method = ADAPTERS_LORA, .targets = "c_attn,c_(fc" }, "\"c_(fc\"" },
        { { .method = ADAPTERS_LORA, .rank_pattern = "c_attn" }, "\"c_attn\"" },
        { { .method = ADAPTERS_LORA, .rank_pattern = "c_attn=4,c_attn=x" }, "\"c_attn=x\"" },
        { { .method = ADAPTERS_LORA, .rank_pattern = "c_attn=2.5" }, "2.5" },
        { { .method = ADAPTERS_LORA, .alpha_pattern = "c_attn=0" }, "\"c_attn=0\"" },
        { { .method = ADAPTERS_LORA, .size = -1 }, "-1" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "0,3" }, "the model has layers 0 to 2" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "0," }, "numbers and ranges" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "2-0" }, "numbers and ranges" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "-1" }, "numbers and ranges" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "1-" }, "numbers and ranges" },
        { { .method = ADAPTERS_LORA, .layers_to_transform = "0 1" }, "numbers and ranges" },
        { { .method = ADAPTERS_LORA, .targets = "h.1.c_.*", .layers_to_transform = "1" },
          "targets that are plain names" },
        { { .method = ADAPTERS_LORA, .modules_to_save = "ln_f,wtf" },
          "\"wtf\" is no module; allowed are wte, lm_head, ln_f and modules of h.0 to h.2, such as mlp" },
        { { .method = ADAPTERS_LORA, .targets = "c_fc", .modules_to_save = "mlp" },
          "match none of the layers" },
        { { .method = ADAPTERS_PREFIX, .dora = 1 }, "prefix: dora, modules_to_save and" },
        { { .method = ADAPTERS_LAST, .modules_to_save = "wte" }, "are options of lora only" },
        { { .method = ADAPTERS_HEAD, .layers_to_transform = "1" }, "are options of lora only" },
        { { .method = ADAPTERS_LAST, .layers = 4 }, "1 to 3" },
        { { .method = ADAPTERS_LLAMA, .layers = -1 }, "1 to 3" },
        { { .method = ADAPTERS_NEW_BLOCKS, .layers = -1 }, "1 to 1000" },
        { { .method = ADAPTERS_PREFIX, .hidden = -2 }, "-2" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tuned t;
        CHECK(begin(&t, &wrong[i].o) == -1);
        CHECK_MSG(strstr(t.m.error, wrong[i].says) != NULL, "%s: %s", wrong[i].says, t.m.error);
        end(&t);
    }
    /* Virtual tokens of a prefix take positions of the context. */
    const adapters_options many = { .method = ADAPTERS_PREFIX, .size = CONTEXT - T + 1 };
    tuned t;
    CHECK(begin(&t, &many) == 0);
    const model_options how = { 0, 0, 0, &t.a.hooks };
    gckpt_graph *g = gckpt_graph_new(t.store, NULL);
    gckpt_tensor *x = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, T));
    CHECK(model_hidden(&t.m, x, &how) == NULL && gckpt_error(g) == GCKPT_E_SHAPE);
    gckpt_graph_free(g);
    end(&t);
}

/* Quantised parameters are not trained, and a saved file has no second copy of them under another name. */
static void test_packed(void)
{
    static const adapters_method refused[] = { ADAPTERS_FULL, ADAPTERS_LAST };
    for (int i = 0; i < 2; i++) {
        const adapters_options o = { .method = refused[i] };
        tuned t;
        begin(&t, NULL);
        CHECK(model_quantise(&t.m, t.store, GCKPT_STORAGE_I8) == 0);
        CHECK(adapters_begin(&t.a, &t.m, t.store, &o) == -1);
        CHECK_MSG(strstr(t.m.error, "is quantised") != NULL, "%s", t.m.error);
        end(&t);
    }
    /* A module in modules_to_save must not be quantised when it is loaded (case 1). If it is int8, the adapter is
     * refused (case 0); if it is bf16, it is converted to floats, which loses no digits (case 2). */
    for (int i = 0; i < 3; i++) {
        const adapters_options o = { .method = ADAPTERS_LORA, .modules_to_save = "wte,h.1.mlp" };
        tuned t;
        gckpt_parameter p;
        begin(&t, NULL);
        CHECK(model_quantise_except(&t.m, t.store, i == 2 ? GCKPT_STORAGE_BF16 : GCKPT_STORAGE_I8,
                                i == 1 ? "wte,mlp" : NULL) == 0);
        CHECK(adapters_begin(&t.a, &t.m, t.store, &o) == (i == 0 ? -1 : 0));
        CHECK_MSG(i > 0 || strstr(t.m.error, "model_source.floats") != NULL, "%s", t.m.error);
        const int at = gckpt_store_find(t.store, "h.0.mlp.c_fc.weight");
        CHECK(gckpt_store_peek(t.store, at, &p) == GCKPT_OK &&
              (p.storage == GCKPT_STORAGE_F32) == (i == 1));
        if (i > 0)
            train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 2);
        end(&t);
    }
    const adapters_options lora = { .method = ADAPTERS_LORA }, head = { .method = ADAPTERS_HEAD };
    tuned t;
    begin(&t, NULL);
    CHECK(model_quantise(&t.m, t.store, GCKPT_STORAGE_I8) == 0);
    CHECK(adapters_begin(&t.a, &t.m, t.store, &lora) == 0);
    train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 3);
    CHECK(adapters_merge(&t.a) == -1 && strstr(t.m.error, "is quantised") != NULL);
    CHECK(model_save(&t.m, t.store, folder, GCKPT_STORAGE_F32) == -1);
    CHECK(strstr(t.m.error, "int8") != NULL);
    end(&t);
    /* The head that this method copies from the quantised wte must have the dequantised values, so that logits stay the
     * same. */
    static float a[ROWS * T * V], b[ROWS * T * V];
    begin(&t, NULL);
    CHECK(model_quantise(&t.m, t.store, GCKPT_STORAGE_I8) == 0);
    logits_of(&t, NULL, a);
    CHECK(adapters_begin(&t.a, &t.m, t.store, &head) == 0);
    logits_of(&t, &t.a.hooks, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    end(&t);
}

/* An adapter's file must restore its options, and the loaded adapter must give the same logits. */
static void test_files(void)
{
    static float a[ROWS * T * V], b[ROWS * T * V];
    for (int i = 1; i < CASES; i++) { /* case 0, FULL, saves a model, not an adapter */
        tuned t, u;
        begin(&t, &methods[i].o);
        begin(&u, NULL);
        train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 2);
        logits_of(&t, &t.a.hooks, a);
        CHECK_MSG(adapters_save(&t.a, folder, "a \"base\"") == 0, "%s", t.m.error);
        if (CHECK_MSG(adapters_load(&u.a, &u.m, u.store, folder) == 0, "%s", u.m.error)) {
            const adapters_options *o = &t.a.options, *p = &u.a.options;
            logits_of(&u, &u.a.hooks, b);
            CHECK_MSG(memcmp(a, b, sizeof a) == 0, "case %d", i);
            CHECK(o->method == p->method && o->size == p->size && o->bias == p->bias &&
                  o->rslora == p->rslora && (float)o->dropout == (float)p->dropout);
            CHECK(methods[i].o.hidden > 0 ||
                  adapters_trainable(t.store) == adapters_trainable(u.store));
        }
        end(&t);
        end(&u);
    }
}

/* Loads a saved model in three ways: reading, mapping, and quantising while reading. Training a mapped model must not
 * change the file. An index of several files next to a complete model.safetensors must be ignored. */
static void test_model(void)
{
    static const char index[] = "{\"weight_map\": {\"wte.weight\": \"gone.safetensors\"}}";
    static const model_source sources[] = {
        { .map = 0 }, { .map = 1 }, { .storage = GCKPT_STORAGE_I8 }, { .map = 0 }
    };
    static float a[ROWS * T * V], b[ROWS * T * V];
    char path[200];
    tuned t, u;
    begin(&t, NULL);
    CHECK_MSG(model_save(&t.m, t.store, folder, GCKPT_STORAGE_F32) == 0, "%s", t.m.error);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fputs(index, f) >= 0 && fclose(f) == 0);
    for (int i = 0; i < 4; i++) {
        begin(&u, NULL);
        gckpt_store_free(u.store);
        u.store = gckpt_store_new(NULL);
        CHECK_MSG(model_load(&u.m, u.store, folder, &sources[i]) == 0, "%s", u.m.error);
        if (i == 2)
            CHECK(gckpt_store_freeze(t.store, "*", 1) == GCKPT_OK &&
                  model_quantise(&t.m, t.store, GCKPT_STORAGE_I8) == 0);
        logits_of(&t, NULL, a);
        logits_of(&u, NULL, b);
        CHECK_MSG((memcmp(a, b, sizeof a) == 0) == (i < 3), "source %d", i);
        const adapters_options all = { .method = ADAPTERS_FULL };
        if (i < 2 && CHECK(adapters_begin(&u.a, &u.m, u.store, &all) == 0)) {
            train(&u, &u.a.hooks, GCKPT_STORE_ALL, ROWS, 2);
            logits_of(&u, NULL, b);
            CHECK(memcmp(a, b, sizeof a) != 0);
        }
        end(&u);
    }
    end(&t);
    static const char *const files[] = { "model.safetensors", "config.json", NULL };
    for (int i = 0; i < 3; i++) { /* removes model.safetensors, then config.json: the error names the missing one */
        memset(&u, 0, sizeof u);
        u.store = gckpt_store_new(NULL);
        CHECK(i == 0 || model_load(&u.m, u.store, folder, NULL) == -1);
        CHECK_MSG(i == 0 || strstr(u.m.error, i == 1 ? "gone" : files[1]) != NULL, "%s", u.m.error);
        end(&u);
        if (files[i] != NULL) {
            char file_path[200];
            snprintf(file_path, sizeof file_path, "%s/%s", folder, files[i]);
            CHECK(remove(file_path) == 0);
        }
    }
    CHECK(remove(path) == 0);
}

/* ---- tokens ---- */
static void test_sampling(void)
{
    enum { N = 6, DRAWS = 20000 };
    const float nan = float_of(0x7fc00000u), low = float_of(0xff800000u); /* minus infinity */
    const float logits[N] = { 1, 2, nan, 0.5f, 2, low };
    static const struct {
        sample_options o;
        double p[N];
    } all[] = { { { 1, 0, 0, 7 }, { 0.141871, 0.385646, 0, 0.0860491, 0.385646, 0 } },
                { { 1, 0, 1, 7 }, { 0.141871, 0.385646, 0, 0.0860491, 0.385646, 0 } },
                { { 0.5, 0, 0, 7 }, { 0.0619395, 0.457675, 0, 0.0227863, 0.457675, 0 } },
                { { 1, 2, 0, 7 }, { 0, 0.5, 0, 0, 0.5, 0 } },
                { { 1, 3, 0, 7 }, { 0.155388, 0.422306, 0, 0, 0.422306, 0 } },
                { { 1, 0, 0.38, 7 }, { 0, 1, 0, 0, 0, 0 } },
                { { 1, 0, 0.8, 7 }, { 0.155388, 0.422306, 0, 0, 0.422306, 0 } },
                /* of 3 tokens, the two likeliest have probability 0.8446, more than top_p = 0.8 */
                { { 1, 3, 0.8, 7 }, { 0, 0.5, 0, 0, 0.5, 0 } },
                { { 1, 100, 0, 7 }, { 0.141871, 0.385646, 0, 0.0860491, 0.385646, 0 } },
                { { 0, 0, 0, 7 }, { 0, 1, 0, 0, 0, 0 } } };
    sample_entry room[N];
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int drawn[N] = { 0 };
        for (int k = 0; k < DRAWS; k++)
            drawn[sample_token(logits, N, &all[i].o, 3, (uint64_t)k, room)]++;
        for (int c = 0; c < N; c++) { /* the frequency must be within 4.5 standard deviations */
            const double p = all[i].p[c], off = (double)drawn[c] / DRAWS - p;
            CHECK_MSG(off * off <= 20 * p * (1 - p) / DRAWS, "case %d, token %d: %d", (int)i, c,
                      drawn[c]);
        }
    }
    const sample_options o = { 1, 0, 0, 1 }, other = { 1, 0, 0, 2 };
    int same[3] = { 0 };
    for (uint64_t k = 0; k < 1000; k++) {
        const int32_t token = sample_token(logits, N, &o, 0, k, room);
        CHECK(token == sample_token(logits, N, &o, 0, k, room));
        same[0] += token == sample_token(logits, N, &other, 0, k, room);
        same[1] += token == sample_token(logits, N, &o, 1, k, room);
        same[2] += token == sample_token(logits, N, &o, 0, k + 1, room);
    }
    for (int i = 0; i < 3; i++) /* 325 are expected */
        CHECK_MSG(same[i] > 250 && same[i] < 400, "%d", same[i]);
    const float none[2] = { nan, nan }, most[2] = { 0, float_of(0x7f800000u) };
    CHECK(sample_token(none, 2, &o, 0, 0, room) == 0 && sample_token(most, 2, &o, 0, 0, room) == 1);
}

int main(void)
{
    for (int i = 0; i < ROWS * T; i++) {
        tokens_of[i] = i * 7 % V;
        targets_of[i] = i % 9 == 4 ? -1 : i * 11 % V;
    }
    if (!CHECK(mkdtemp(folder) != NULL))
        return check_report("methods");
    test_plans();
    test_generation(1);
    test_texts();
    test_memory();
    test_patterns();
    test_options();
    test_packed();
    test_files();
    test_model();
    test_sampling();
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    for (int i = 0; i < 2; i++) {
        char path[200];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        CHECK(remove(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
    return check_report("methods");
}
