/* tuning.h - runs, trains and samples the golden models as golden/gpt2.py did, and makes wrong copies of their files;
 * for test_gpt2.c, test_llama.c, test_adapters.c and similar tests. The models are in golden/gpt2, or in GOLDEN if that
 * is defined. Tests run in the repository's root. Define _XOPEN_SOURCE 700 and include gradckpt.h before this file. */
#ifndef TESTS_TUNING_H
#define TESTS_TUNING_H
#include "check.h"
#include "examples/generate.h"
#include "golden/gpt2.h"
#include "util.h"

#ifndef GOLDEN
#define GOLDEN       "tests/golden/gpt2/"
#define GOLDEN_SAVED "golden/gpt2_saved.h"
#endif
#include GOLDEN_SAVED
#ifndef GOLDEN_EVERY
#define GOLDEN_EVERY 1 /* the file with expected values has every GOLDEN_EVERY-th logit */
#endif

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOGITS = GOLDEN_ROWS * GOLDEN_CONTEXT * GOLDEN_VOCABULARY };

static gckpt_store *expected; /* the tensors of expected.safetensors in folder GOLDEN */

static inline gckpt_store *tuning_load(model_any *m, const char *folder, const model_source *source)
{
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK_MSG(model_load(m, s, folder, source) == 0, "%s: %s", folder, m->error);
    return s;
}

/* Writes the logits of the golden tokens to `logits`. Returns 0 after an error. */
static inline int tuning_run(const model_any *m, gckpt_store *s, const model_options *options,
                             const char *what, float *logits)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens =
        gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(GOLDEN_ROWS, GOLDEN_CONTEXT));
    gckpt_fetch_spec fetch = { model_logits(m, model_hidden(m, tokens, options)), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(tokens), golden_tokens };
    int good = gckpt_forward(e, &feed, 1, GOLDEN_ROWS, NULL) == GCKPT_OK;
    if (CHECK_MSG(good, "%s: %s", what, gckpt_error_text(e)))
        memcpy(logits, gckpt_fetch(e, gckpt_id(fetch.tensor), 0), LOGITS * sizeof *logits);
    util_free(e, p, g, NULL);
    return good;
}

/* Compares the model's logits with tensor `name` of `expected`. No difference may exceed `worst`. */
static inline void tuning_logits(const model_any *m, gckpt_store *s, const model_options *options,
                                 const char *name, double worst)
{
    float have[LOGITS];
    gckpt_parameter want;
    double apart = 0;
    if (!tuning_run(m, s, options, name, have) ||
        !CHECK(gckpt_store_get(expected, gckpt_store_find(expected, name), &want) == GCKPT_OK &&
               want.elements == LOGITS / GOLDEN_EVERY))
        return;
    for (int i = 0; i < LOGITS / GOLDEN_EVERY; i++) {
        double d = (double)have[i * GOLDEN_EVERY] - (double)want.values[i];
        d = d < 0 ? -d : d;
        apart = d > apart || isnan(d) ? d : apart; /* a NaN stays, so that the check below fails */
    }
    CHECK_MSG(apart <= worst, "%s: logits are %g apart", name, apart);
}

/* Trains ten steps with micro-batches of `rows`. Each loss must be within 1e-5 of losses[]; if losses is NULL, each
 * later loss must be below the first. */
static inline void tuning_train(const model_any *m, gckpt_store *s, const model_options *options,
                                const char *what, const double *losses, float lr, gckpt_mode mode,
                                int64_t rows)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_shape shape = gckpt_shape2(rows, GOLDEN_LENGTH);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { model_loss(m, model_hidden(m, tokens, options), targets), 1, 0 };
    gckpt_plan_desc desc = { .mode = mode, .batch = GOLDEN_BATCH };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(tokens), golden_batch },
                            { gckpt_id(targets), golden_targets } };
    gckpt_hyper hyper = { .lr = lr, .weight_decay = golden_decay, .clip = golden_clip };
    double begin = 0;
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        gckpt_report report;
        if (!CHECK_MSG(gckpt_step(e, feeds, 2, GOLDEN_BATCH, &hyper, &report) == GCKPT_OK, "%s: %s",
                       what, gckpt_error_text(e)))
            break;
        begin = step == 0 ? report.loss : begin;
        double d = losses ? report.loss / losses[step] - 1 : 0;
        CHECK_MSG(losses || step == 0 || report.loss < begin, "%s: from %g to %g in step %d", what,
                  begin, report.loss, step);
        CHECK_MSG(report.count == GOLDEN_COUNT && d <= 1e-5 && d >= -1e-5,
                  "%s: step %d: loss %.9g of %d targets, not %.9g", what, step, report.loss,
                  (int)report.count, losses ? losses[step] : 0);
    }
    util_free(e, p, g, NULL);
}

/* Compares two sums over the gradient of each parameter, of squares and of signed elements, with the tensor
 * `name`.gradients of `expected`, in which golden/llama.py wrote them in order of names. */
static inline void tuning_gradients(const model_any *m, gckpt_store *s, const char *name)
{
    const int all = gckpt_store_count(s);
    int count = 0; /* number of parameters that are not frozen */
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_shape shape = gckpt_shape2(GOLDEN_BATCH, GOLDEN_LENGTH);
    char full[64];
    gckpt_parameter p, q, want;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { model_loss(m, model_hidden(m, tokens, NULL), targets), 1, 0 };
    gckpt_fetch_spec *fetches = (gckpt_fetch_spec *)calloc((size_t)all, sizeof *fetches);
    for (int i = 0; i < all && gckpt_store_peek(s, i, &p) == GCKPT_OK; i++) {
        if (p.frozen)
            continue;
        fetches[count].tensor = gckpt_param(g, p.name, p.shape, none);
        fetches[count++].gradient = 1;
    }
    const gckpt_plan_desc desc = { .fetch.specs = fetches,
                                   .fetch.count = count,
                                   .batch = GOLDEN_BATCH };
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", name, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(tokens), golden_batch },
                                  { gckpt_id(targets), golden_targets } };
    const int good = gckpt_gradients(e, feeds, 2, GOLDEN_BATCH, NULL) == GCKPT_OK;
    snprintf(full, sizeof full, "%s.gradients", name);
    if (CHECK_MSG(good, "%s: %s", name, gckpt_error_text(e)) &&
        CHECK(gckpt_store_get(expected, gckpt_store_find(expected, full), &want) == GCKPT_OK &&
              want.elements == 2 * count))
        for (int i = 0, at = 0; i < all && gckpt_store_peek(s, i, &p) == GCKPT_OK; i++) {
            if (p.frozen)
                continue;
            const float *values = gckpt_fetch(e, gckpt_id(fetches[at++].tensor), 1);
            double squares = 0, sum = 0;
            int place = 0;
            for (int k = 0; k < all && gckpt_store_peek(s, k, &q) == GCKPT_OK; k++)
                place += !q.frozen && strcmp(q.name, p.name) < 0;
            for (int64_t k = 0; k < p.elements; k++) {
                squares += (double)values[k] * (double)values[k];
                sum += ((uint64_t)k * 2654435761u >> 15 & 1) != 0 ? -(double)values[k]
                                                                  : (double)values[k];
            }
            const double wanted = (double)want.values[2 * place], off = squares - wanted;
            const double by = sum - (double)want.values[2 * place + 1];
            CHECK_MSG(off * off <= 1e-8 * wanted * wanted &&
                          by * by <= 1e-8 * wanted * (double)p.elements,
                      "%s: the gradient of %s is %g, %g; not %g, %g", name, p.name, squares, sum,
                      wanted, (double)want.values[2 * place + 1]);
        }
    util_free(e, plan, g, NULL);
    free(fetches);
}

/* Generates greedily from the golden prompt, with caches of keys and values: two texts at once, with the prompt fed
 * four tokens at a time. The tokens must be `made`, and the logits must equal those of one call with all tokens, to the
 * bit. */
static inline void tuning_generate(model_any *m, gckpt_store *s, const model_hooks *hooks,
                                   const char *what, const int32_t *made)
{
    enum { ALL = GOLDEN_PROMPT + GOLDEN_NEW, V = GOLDEN_VOCABULARY };
    const model_options options = { .hooks = hooks };
    const generator_desc cached = { .samples = 2, .chunk = 4, .hooks = hooks };
    const sample_options greedy = { 0, 0, 0, 0 };
    int32_t tokens[ALL], out[2 * GOLDEN_NEW], next[2];
    memcpy(tokens, golden_prompt, sizeof golden_prompt);
    memcpy(tokens + GOLDEN_PROMPT, made, GOLDEN_NEW * sizeof *made);

    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, ALL));
    gckpt_fetch_spec fetch = { model_logits(m, model_hidden(m, in, &options)), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(in), tokens };
    gckpt_result result = gckpt_forward(e, &feed, 1, 1, NULL);
    CHECK_MSG(result == GCKPT_OK, "%s: %s", what, gckpt_error_text(e));
    const float *want = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);

    generator gen;
    int64_t count = -1;
    if (generator_new(&gen, m, s, &cached) == 0)
        count = generator_text(&gen, golden_prompt, GOLDEN_PROMPT, &greedy, GOLDEN_NEW, NULL, out,
                               NULL, NULL);
    CHECK_MSG(count == GOLDEN_NEW, "%s: %d tokens: %s", what, (int)count, m->error);
    for (int i = 0; i < GOLDEN_NEW && count == GOLDEN_NEW; i++)
        CHECK_MSG(out[i] == made[i] && out[GOLDEN_NEW + i] == made[i],
                  "%s: token %d is %d and %d, not %d", what, i, out[i], out[GOLDEN_NEW + i],
                  made[i]);
    const float *have = count < 0 ? NULL : generator_prompt(&gen, golden_prompt, GOLDEN_PROMPT);
    for (int at = GOLDEN_PROMPT; at < ALL && have && want; at++) {
        CHECK_MSG(!memcmp(have, want + (at - 1) * V, V * sizeof *have) &&
                      !memcmp(have + V, have, V * sizeof *have),
                  "%s: logits of token %d differ with caches", what, at);
        next[0] = next[1] = tokens[at];
        have = generator_next(&gen, next);
    }
    CHECK(have != NULL);
    if (count >= 0)
        generator_free(&gen);
    util_free(e, p, g, NULL);
}

/* ---- files ---- */
static char tuning_folder[64]; /* folder for the files that a test writes */

static inline void tuning_open(int argc, char **argv)
{
    snprintf(tuning_folder, sizeof tuning_folder, "%s", argc > 1 ? argv[1] : "/tmp/tuning.XXXXXX");
    CHECK(argc > 1 || mkdtemp(tuning_folder) != NULL);
    expected = gckpt_store_new(NULL);
    CHECK_MSG(gckpt_store_load(expected, GOLDEN "expected.safetensors", NULL) == GCKPT_OK, "%s",
              gckpt_error_text(expected));
}

static inline void tuning_close(int argc)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", tuning_folder);
    CHECK(argc > 1 || system(command) == 0);
    gckpt_store_free(expected);
}

static inline file tuning_read(const char *path)
{
    file b = { NULL, 0, 0, 0, 0, 0, 0 };
    unsigned char bytes[4096];
    FILE *f = fopen(path, "rb");
    for (size_t n; f && (n = fread(bytes, 1, sizeof bytes, f)) > 0;)
        file_write(&b, bytes, n);
    if (CHECK_MSG(f != NULL && b.size > 0, "cannot read %s", path))
        fclose(f);
    return b;
}

/* Copies the files of folder GOLDEN `name` to tuning_folder/wrong and changes one of them. The text `from` is replaced
 * by `to`. If from is NULL, only the first `size` bytes of the file are kept; with size 0 the file is removed. */
typedef struct {
    const char *name, *file, *from, *to, *says;
    size_t size;
} tuning_edit;

static inline const char *tuning_wrong(const tuning_edit *t)
{
    static char folder[96];
    char from[160], to[160], command[400];
    snprintf(folder, sizeof folder, "%s/wrong", tuning_folder);
    snprintf(from, sizeof from, GOLDEN "%s/%s", t->name, t->file);
    snprintf(to, sizeof to, "%s/%s", folder, t->file);
    snprintf(command, sizeof command, "rm -rf %s && cp -R " GOLDEN "%s %s", folder, t->name,
             folder);
    CHECK(system(command) == 0);
    file b = tuning_read(from);
    size_t at = 0, n = t->from ? strlen(t->from) : 0;
    while (n && at + n < b.size && memcmp(b.bytes + at, t->from, n))
        at++;
    CHECK_MSG(n ? at + n < b.size : t->size <= b.size, "%s: no %s", from, n ? t->from : "bytes");
    FILE *f = fopen(to, "wb");
    if (CHECK(f != NULL)) {
        fwrite(b.bytes, 1, n ? at : t->size, f);
        if (n) {
            fputs(t->to, f);
            fwrite(b.bytes + at + n, 1, b.size - at - n, f);
        }
        CHECK(fclose(f) == 0 && (n || t->size || remove(to) == 0));
    }
    free(b.bytes);
    return folder;
}

/* Checks that the bytes of every file in tuning_folder/`name` are those of a file that transformers and peft have
 * accepted. */
static inline void tuning_saved(const char *name)
{
    int files = 0;
    for (size_t i = 0; i < sizeof golden_saved / sizeof golden_saved[0]; i++) {
        const size_t n = strlen(name);
        char path[160];
        uint64_t hash = 0xcbf29ce484222325u;
        if (strncmp(golden_saved[i].file, name, n) || golden_saved[i].file[n] != '/')
            continue;
        snprintf(path, sizeof path, "%s/%s", tuning_folder, golden_saved[i].file);
        file b = tuning_read(path);
        for (size_t k = 0; k < b.size; k++)
            hash = (hash ^ b.bytes[k]) * 0x100000001b3u;
        CHECK_MSG(hash == golden_saved[i].hash,
                  "%s: not the bytes that golden/check_peft.py has seen", path);
        free(b.bytes);
        files++;
    }
    CHECK_MSG(files == 2, "%s: golden/check_peft.py has seen %d files", name, files);
}
#endif
