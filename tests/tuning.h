/* tuning.h - what test_gpt2.c and test_adapters.c share: golden/gpt2's models, run, trained and
 * sampled as golden/gpt2.py did, and wrong copies of its files. Tests run in the repository's root.
 * Define _XOPEN_SOURCE 700 and include gradckpt.h before it. */
#ifndef TESTS_TUNING_H
#define TESTS_TUNING_H
#include "../examples/gpt2.h"
#include "golden/gpt2.h"
#include "rig.h"

#include "golden/gpt2_saved.h"

#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN "tests/golden/gpt2/"
enum { LOGITS = GPT2_ROWS * GPT2_CONTEXT * GPT2_VOCABULARY };

static gckpt_store *expected; /* golden/gpt2/expected.safetensors */

static inline gckpt_store *tuning_load(gpt2_model *m, const char *folder, const gpt2_source *source)
{
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK_MSG(gpt2_load(m, s, folder, source) == 0, "%s: %s", folder, m->error);
    return s;
}

/* Logits of the golden tokens against expected's `name`; `worst` apart at most. */
static inline void tuning_logits(const gpt2_model *m, gckpt_store *s, const gpt2_options *options,
                                 const char *name, double worst)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens =
        gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(GPT2_ROWS, GPT2_CONTEXT));
    gckpt_pick pick = { gpt2_logits(m, gpt2_hidden(m, tokens, options)), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch = &pick, .fetches = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s: %s", name, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(tokens), gpt2_tokens };
    gckpt_parameter want;
    if (CHECK_MSG(gckpt_forward(e, &feed, 1, GPT2_ROWS, NULL) == GCKPT_OK, "%s: %s", name,
                  gckpt_error_text(e)) &&
        CHECK(gckpt_store_get(expected, gckpt_store_find(expected, name), &want) == GCKPT_OK) &&
        CHECK(want.elements == LOGITS)) {
        const float *have = gckpt_fetch(e, gckpt_id(pick.tensor), 0);
        double apart = 0;
        for (int i = 0; i < LOGITS; i++) {
            double d = (double)have[i] - (double)want.values[i];
            d = d < 0 ? -d : d;
            apart = d <= apart ? apart : d; /* also NaN */
        }
        CHECK_MSG(apart <= worst, "%s: logits are %g apart", name, apart);
    }
    rig_free(e, p, g, NULL);
}

/* Ten steps, of micro-batches as the oracle's or of `rows`; each loss to 1e-5 of it. */
static inline void tuning_train(const gpt2_model *m, gckpt_store *s, const gpt2_options *options,
                                const char *what, const double *losses, float lr, gckpt_mode mode,
                                int64_t rows)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_shape shape = gckpt_shape2(rows, GPT2_LENGTH);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_term loss = { gpt2_loss(m, gpt2_hidden(m, tokens, options), targets), 1, 0 };
    gckpt_plan_desc desc = { .mode = mode, .batch = GPT2_BATCH };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(tokens), gpt2_batch }, { gckpt_id(targets), gpt2_targets } };
    gckpt_hyper hyper = { .lr = lr, .weight_decay = gpt2_decay, .clip = gpt2_clip };
    for (int step = 0; step < GPT2_STEPS; step++) {
        gckpt_report report;
        if (!CHECK_MSG(gckpt_step(e, feeds, 2, GPT2_BATCH, &hyper, &report) == GCKPT_OK, "%s: %s",
                       what, gckpt_error_text(e)))
            break;
        double d = report.loss / losses[step] - 1;
        CHECK_MSG(report.count == GPT2_COUNT && d <= 1e-5 && d >= -1e-5,
                  "%s: step %d: loss %.9g of %d targets, not %.9g", what, step, report.loss,
                  (int)report.count, losses[step]);
    }
    rig_free(e, p, g, NULL);
}

/* ---- generation ---- */
typedef struct {
    gckpt_plan *p;
    gckpt_exec *e;
    int tokens, logits;
} tuning_runner;

/* Of `count` tokens a call, in the caches of `first` (NULL: its own). */
static inline tuning_runner tuning_runner_new(const gpt2_model *m, gckpt_store *s,
                                              const gpt2_options *options, int64_t count,
                                              const tuning_runner *first)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, count));
    gckpt_pick pick = { gpt2_logits(m, gpt2_hidden(m, tokens, options)), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch = &pick, .fetches = 1 };
    gckpt_exec_desc how = { .caches_of = first ? first->e : NULL };
    tuning_runner r = { gckpt_plan_new(g, NULL, 0, &desc), NULL, gckpt_id(tokens),
                        gckpt_id(pick.tensor) };
    CHECK_MSG(r.p != NULL, "%s", gckpt_error_text(g));
    r.e = gckpt_exec_new(r.p, s, &how);
    CHECK_MSG(r.e != NULL, "%s", gckpt_error_text(s));
    gckpt_graph_free(g);
    return r;
}

/* Logits of all of the call's tokens; NULL: an error. */
static inline const float *tuning_run(const tuning_runner *r, const int32_t *tokens)
{
    gckpt_feed feed = { r->tokens, tokens };
    gckpt_result result = gckpt_forward(r->e, &feed, 1, 1, NULL);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(r->e));
    return result == GCKPT_OK ? gckpt_fetch(r->e, r->logits, 0) : NULL;
}

/* The golden prompt and what is greedily made of it, token by token through caches: `made`, and
 * logits that are, to the bit, those of all tokens at once. */
static inline void tuning_generate(const gpt2_model *m, gckpt_store *s, const gpt2_hooks *hooks,
                                   const char *what, const int32_t *made)
{
    enum { ALL = GPT2_PROMPT + GPT2_NEW, V = GPT2_VOCABULARY };
    const int64_t before = hooks ? hooks->prefix + hooks->prompt : 0;
    gpt2_options plain = { 0, 0, 0, hooks }, cached = { 0, before + ALL, 0, hooks };
    gpt2_options first = cached;
    int32_t tokens[ALL] = { 0 };
    tuning_runner prime = { NULL, NULL, 0, 0 };
    if (before > 0) {
        first.prime = 1;
        prime = tuning_runner_new(m, s, &first, before, NULL);
        tuning_run(&prime, tokens);
    }
    tuning_runner some = tuning_runner_new(m, s, &cached, GPT2_PROMPT, before ? &prime : NULL);
    tuning_runner one = tuning_runner_new(m, s, &cached, 1, before ? &prime : &some);
    tuning_runner whole = tuning_runner_new(m, s, &plain, ALL, NULL);
    memcpy(tokens, gpt2_prompt, sizeof gpt2_prompt);
    memcpy(tokens + GPT2_PROMPT, made, GPT2_NEW * sizeof *made);
    const float *want = tuning_run(&whole, tokens), *have = tuning_run(&some, tokens);
    for (int at = GPT2_PROMPT; at < ALL && have && want; at++) {
        int best = 0;
        have += at == GPT2_PROMPT ? (GPT2_PROMPT - 1) * V : 0;
        for (int i = 1; i < V; i++)
            best = have[i] > have[best] ? i : best;
        CHECK_MSG(best == tokens[at], "%s: token %d is %d, not %d", what, at, best, tokens[at]);
        CHECK_MSG(!memcmp(have, want + (at - 1) * V, V * sizeof *have),
                  "%s: logits of token %d differ with caches", what, at);
        have = tuning_run(&one, tokens + at);
    }
    rig_free(one.e, one.p, NULL, NULL);
    rig_free(some.e, some.p, NULL, NULL);
    rig_free(prime.e, prime.p, NULL, NULL);
    rig_free(whole.e, whole.p, NULL, NULL);
}

/* ---- files ---- */
static char tuning_folder[64]; /* to write in */

static inline void tuning_open(int argc, char **argv)
{
    snprintf(tuning_folder, sizeof tuning_folder, "%s", argc > 1 ? argv[1] : "/tmp/tuning.XXXXXX");
    CHECK(argc > 1 || mkdtemp(tuning_folder) != NULL);
    expected = gckpt_store_new(NULL);
    CHECK_MSG(gckpt_store_load(expected, GOLDEN "expected.safetensors") == GCKPT_OK, "%s",
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

static inline void tuning_write(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK_MSG(f != NULL && fwrite(bytes, 1, size, f) == size && !fclose(f), "no %s", path);
}

/* Files of golden/gpt2/`name`, copied to tuning_folder/wrong, and one of them changed: `from` is
 * replaced by `to` or, from NULL, only the first `size` bytes are there (0: none, and no file). */
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
    file b = tuning_read(from), edited = { NULL, 0, 0, 0, 0, 0, 0 };
    size_t at = 0, n = t->from ? strlen(t->from) : 0;
    while (n && at + n <= b.size && memcmp(b.bytes + at, t->from, n))
        at++;
    CHECK_MSG(at + n <= b.size, "%s: no %s", from, t->from);
    file_write(&edited, b.bytes, n ? at : t->size);
    if (n) {
        file_write(&edited, t->to, strlen(t->to));
        file_write(&edited, b.bytes + at + n, b.size - at - n);
    }
    if (edited.size)
        tuning_write(to, edited.bytes, edited.size);
    else
        CHECK(remove(to) == 0);
    free(b.bytes);
    free(edited.bytes);
    return folder;
}

/* Every file of tuning_folder/`name` is one that transformers and peft have accepted. */
static inline void tuning_saved(const char *name)
{
    int files = 0;
    for (size_t i = 0; i < sizeof gpt2_saved / sizeof gpt2_saved[0]; i++) {
        const size_t n = strlen(name);
        char path[160];
        uint64_t hash = 0xcbf29ce484222325u;
        if (strncmp(gpt2_saved[i].file, name, n) || gpt2_saved[i].file[n] != '/')
            continue;
        snprintf(path, sizeof path, "%s/%s", tuning_folder, gpt2_saved[i].file);
        file b = tuning_read(path);
        for (size_t k = 0; k < b.size; k++)
            hash = (hash ^ b.bytes[k]) * 0x100000001b3u;
        CHECK_MSG(hash == gpt2_saved[i].hash,
                  "%s: not the bytes that golden/check_peft.py has seen", path);
        free(b.bytes);
        files++;
    }
    CHECK_MSG(files == 2, "%s: golden/check_peft.py has seen %d files", name, files);
}
#endif
