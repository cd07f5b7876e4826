/* test_resume.c - a training that is saved and resumed must continue with the bits of an uninterrupted one. Saving to a
 * path must be safe with links, devices, missing permissions, killed saves and simultaneous saves. */
#if defined(__unix__) || defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define TEST_POSIX    1
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#else
#define TEST_POSIX 0
#endif
#define GCKPTI_NO_HOOKS /* this file calls the system's functions; only the library calls the test hooks */
#include "num/num.h"
#include "store/store.h"
#include "files/files.h"
#include "base/test_hooks.h"

#if TEST_POSIX
/* fsync_fails: number of the call that fails, from 1, or 0 if none fails */
static int fsync_calls, fsync_fails, fsync_error;
static int test_fsync(int fd)
{
    if (++fsync_calls != fsync_fails)
        return fsync(fd);
    errno = fsync_error;
    return -1;
}
/* stat_fails: number of the call that fails, from 1, or 0; if stat_keeps is nonzero, all later calls fail as well */
static int stat_calls, stat_fails, stat_keeps;
static int stat_failed(void)
{
    stat_calls++;
    if (!stat_fails || (stat_keeps ? stat_calls < stat_fails : stat_calls != stat_fails))
        return 0;
    errno = EIO;
    return 1;
}
static int test_stat(const char *path, struct stat *s)
{
    return stat_failed() ? -1 : stat(path, s);
}
static int test_fstat(int fd, struct stat *s) { return stat_failed() ? -1 : fstat(fd, s); }
static void watch(void)
{
    gckpti_hooks.fsync = test_fsync;
    gckpti_hooks.stat = test_stat;
    gckpti_hooks.fstat = test_fstat;
}
#else
static void watch(void) {}
#endif
#include "util.h"
#include <math.h>

/* ---- a file in memory ---- */
static file write_all(gckpt_store *s)
{
    file b = { NULL, 0, 0, 0, 0, 0, 0 };
    CHECK_MSG(gckpt_store_write(s, file_write, &b, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    return b;
}

static gckpt_result read_all(gckpt_store *s, const file *saved)
{
    file b = *saved;
    b.at = 0;
    return gckpt_store_read(s, file_read, &b, b.size, NULL);
}

/* Returns the file saved with the text `from` in its header replaced by `to`. */
static file edited(const file *saved, const char *from, const char *to)
{
    size_t header = saved->bytes[0] + 256u * saved->bytes[1], n = strlen(to), old = strlen(from);
    const char *text = (const char *)saved->bytes + 8, *at = strstr(text, from);
    file b = { NULL, 0, 0, 0, 0, 0, 0 };
    CHECK_MSG(at != NULL && at < text + header, "no %s in %.200s", from, text);
    if (!at)
        at = text, old = 0;
    unsigned char little[8] = { 0 };
    little[0] = (unsigned char)(header + n - old);
    little[1] = (unsigned char)((header + n - old) >> 8);
    file_write(&b, little, 8);
    file_write(&b, text, (size_t)(at - text));
    file_write(&b, to, n);
    file_write(&b, at + old, saved->size - 8 - (size_t)(at - text) - old);
    return b;
}

static int in_header(const file *saved, const char *what)
{
    const char *at = strstr((const char *)saved->bytes + 8, what);
    return at &&
           (size_t)(at - (const char *)saved->bytes) < 8 + saved->bytes[0] + 256u * saved->bytes[1];
}

/* Returns a hash of everything in a store that a load could change. */
static uint64_t snapshot(const gckpt_store *s)
{
    uint64_t h = gckpti_fnv(UINT64_C(0xcbf29ce484222325), &s->step, 8);
    h = gckpti_fnv(h, &s->seed, 8);
    for (size_t i = 0; i < s->count; i++) {
        const gckpti_param *q = &s->params[i];
        h = gckpti_fnv(h, q->p.name, strlen(q->p.name) + 1);
        h = gckpti_fnv(h, q->p.values, 4 * (size_t)q->p.elements);
        h = gckpti_fnv(h, &q->optimiser, sizeof q->optimiser);
        h = gckpti_fnv(h, &q->updates, sizeof q->updates);
        for (int k = 0; k < 4; k++)
            h = q->p.state[k] ? gckpti_fnv(h, q->p.state[k], 4 * (size_t)q->p.elements)
                              : gckpti_fnv(h, "none", 4);
    }
    return h;
}

/* ---- a small training ---- */
enum { ROWS = 4, IN = 5, OUT = 3 };
static uint64_t own_steps[2]; /* step numbers of parameters a and b in the custom optimiser's last calls */

static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    own_steps[u->name[0] - 'a'] = u->step;
    for (int64_t i = 0; i < u->elements; i++)
        u->values[i] -= u->options->lr * u->gradient[i] / (float)u->step;
}

static gckpt_store *store_new(void)
{
    gckpt_store_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.seed = 3;
    return gckpt_store_new(&desc);
}

typedef struct {
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    int x, y;
} training;

static training training_new(gckpt_store *s, gckpt_optimiser optimiser, int own_state)
{
    training t;
    gckpt_init normal = { 0.5f, 0, 0 };
    gckpt_plan_desc desc;
    gckpt_exec_desc with;
    memset(&desc, 0, sizeof desc);
    memset(&with, 0, sizeof with);
    desc.optimiser = optimiser;
    desc.custom_state = own_state;
    with.custom_optimiser = own_optimiser;
    t.graph = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(t.graph, "x", GCKPT_F32, gckpt_shape2(ROWS, IN));
    gckpt_tensor *y = gckpt_input(t.graph, "y", GCKPT_F32, gckpt_shape2(ROWS, OUT));
    gckpt_tensor *a = gckpt_param(t.graph, "a", gckpt_shape2(IN, OUT), normal);
    gckpt_tensor *b = gckpt_param(t.graph, "b", gckpt_shape1(OUT), normal);
    gckpt_term loss = { gckpt_mean_squared_error(gckpt_linear(x, a, b), y, NULL), 1, 0 };
    t.x = gckpt_id(x);
    t.y = gckpt_id(y);
    t.plan = gckpt_plan_new(t.graph, &loss, 1, &desc);
    CHECK_MSG(t.plan != NULL, "%s", gckpt_error_text(t.graph));
    t.exec = gckpt_exec_new(t.plan, s, &with);
    return t;
}

static void training_free(training *t)
{
    gckpt_exec_free(t->exec);
    gckpt_plan_free(t->plan);
    gckpt_graph_free(t->graph);
}

static gckpt_result step_with(const training *t, float beta1, float beta2)
{
    float x[ROWS * IN], y[ROWS * OUT];
    gckpt_hyper hyper;
    memset(&hyper, 0, sizeof hyper);
    hyper.lr = 0.01f;
    hyper.beta1 = beta1;
    hyper.beta2 = beta2;
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)(i * 7 % 11) / 5 - 1;
    for (int i = 0; i < ROWS * OUT; i++)
        y[i] = (float)(i * 5 % 13) / 3;
    gckpt_feed feeds[2] = { { t->x, x }, { t->y, y } };
    return gckpt_step(t->exec, feeds, 2, ROWS, &hyper, NULL);
}

static gckpt_result step_once(const training *t) { return step_with(t, 0, 0); }

static void steps(gckpt_store *s, gckpt_optimiser optimiser, int n)
{
    training t = training_new(s, optimiser, 1);
    CHECK_MSG(t.exec != NULL, "%s", gckpt_error_text(s));
    for (int i = 0; i < n && t.exec; i++)
        CHECK_MSG(step_once(&t) == GCKPT_OK, "%s", gckpt_error_text(t.exec));
    training_free(&t);
}

/* Saves *s, loads the file into a new store, frees the old store and sets *s to the new one. */
static void reload(gckpt_store **s)
{
    file b = write_all(*s), again;
    gckpt_store *t = store_new();
    CHECK_MSG(read_all(t, &b) == GCKPT_OK, "%s", gckpt_error_text(t));
    again = write_all(t);
    CHECK(again.size == b.size && !memcmp(again.bytes, b.bytes, b.size));
    gckpt_store_free(*s);
    *s = t;
    free(b.bytes);
    free(again.bytes);
}

static void freeze(gckpt_store *s, const char *pattern, int frozen)
{
    CHECK(gckpt_store_freeze(s, pattern, frozen) == GCKPT_OK);
}

/* ---- resuming: parameters that change their optimiser, are frozen, unfrozen or reset ---- */
typedef enum { UNFREEZE, RESET, SGD_BETWEEN, OWN_OPTIMISER, HISTORIES } history;

/* Runs a training in three parts; if `saved` is nonzero, saves and reloads the store after each part. The bits must not
 * depend on `saved`. */
static gckpt_store *run_history(history how, int saved)
{
    gckpt_store *s = store_new();
    training t = training_new(s, GCKPT_SGD, 0); /* only creates the parameters */
    training_free(&t);
    for (int part = 0; part < 3; part++) {
        gckpt_optimiser which = how == OWN_OPTIMISER                        ? GCKPT_CUSTOM_OPTIMISER
                                : how == SGD_BETWEEN && part == 1 ? GCKPT_SGD
                                                                  : GCKPT_ADAMW;
        if (how == UNFREEZE || how == OWN_OPTIMISER)
            freeze(s, "b", part == 0);
        if (how == RESET && part == 1)
            CHECK(gckpt_store_reset(s, "b") == GCKPT_OK);
        steps(s, which, 2 + part);
        if (saved)
            reload(&s);
    }
    return s;
}

static void test_counts(void)
{
    static const uint64_t want[HISTORIES][2] = { { 9, 7 }, { 9, 7 }, { 6, 6 }, { 9, 7 } };
    for (int how = 0; how < HISTORIES; how++) {
        gckpt_store *whole = run_history((history)how, 0), *resumed = run_history((history)how, 1);
        gckpt_optimiser which = how == OWN_OPTIMISER ? GCKPT_CUSTOM_OPTIMISER : GCKPT_ADAMW;
        CHECK_MSG(resumed->params[0].updates == want[how][0] &&
                      resumed->params[1].updates == want[how][1],
                  "life %d: %d, %d", how, (int)resumed->params[0].updates,
                  (int)resumed->params[1].updates);
        steps(whole, which, 2);
        steps(resumed, which, 2);
        CHECK_MSG(gckpt_store_hash(whole) == gckpt_store_hash(resumed) &&
                      snapshot(whole) == snapshot(resumed),
                  "life %d: b[0] %.9g, resumed %.9g", how, (double)whole->params[1].p.values[0],
                  (double)resumed->params[1].p.values[0]);
        gckpt_store_free(whole);
        gckpt_store_free(resumed);
    }
    CHECK(own_steps[0] == 11 && own_steps[1] == 9);
}

/* AdamW's first update of a parameter must move it by lr, for any betas. Earlier updates of other parameters, or
 * updates of the same parameter before a reset of its state, must not matter. */
static void test_first_updates(void)
{
    static const float beta[4][2] = {
        { 0.9f, 0.999f }, { 0.5f, 0.75f }, { 0.8f, 0.75f }, { 0.8f, 0.9f }
    };
    gckpt_store *s = store_new();
    training t = training_new(s, GCKPT_ADAMW, 0);
    for (int round = 0; round < 4; round++) {
        float before[2][IN * OUT], most = 0;
        for (int i = 0; i < 2; i++)
            memcpy(before[i], s->params[i].p.values,
                   (size_t)s->params[i].p.elements * sizeof(float));
        CHECK(gckpt_store_reset(s, round < 3 ? "*" : "b") == GCKPT_OK);
        CHECK(step_with(&t, beta[round][0], beta[round][1]) == GCKPT_OK);
        for (int i = round < 3 ? 0 : 1; i < 2; i++)
            for (int j = 0; j < s->params[i].p.elements; j++) {
                float off = fabsf(s->params[i].p.values[j] - before[i][j]) - 0.01f;
                most = fabsf(off) > most ? fabsf(off) : most;
            }
        CHECK_MSG(most < 1e-6f, "round %d: off by %g", round, (double)most);
    }
    training_free(&t);
    gckpt_store_free(s);
}

static void test_two_optimisers(void)
{
    gckpt_store *s[2] = { store_new(), store_new() };
    for (int saved = 0; saved < 2; saved++)
        for (int round = 0; round < 6; round++) { /* AdamW trains parameter a and momentum trains b, by turns */
            training t = training_new(s[saved], GCKPT_SGD, 0); /* only creates both parameters */
            training_free(&t);
            freeze(s[saved], "a", round % 2);
            freeze(s[saved], "b", !(round % 2));
            steps(s[saved], round % 2 ? GCKPT_MOMENTUM : GCKPT_ADAMW, round + 1);
            if (saved)
                reload(&s[saved]);
        }
    CHECK(gckpt_store_hash(s[0]) == gckpt_store_hash(s[1]));
    freeze(s[1], "*", 0); /* the store remembers which optimiser each state belongs to */
    training t = training_new(s[1], GCKPT_ADAMW, 0);
    CHECK(!t.exec && strstr(gckpt_error_text(s[1]), "\"b\" holds state of another"));
    training_free(&t);
    t = training_new(s[1], GCKPT_MOMENTUM, 0);
    CHECK(!t.exec && strstr(gckpt_error_text(s[1]), "\"a\" holds state of another"));
    training_free(&t);
    file b = write_all(s[1]); /* 21 steps in all: a has 1 + 3 + 5 updates, b has 2 + 4 + 6 */
    CHECK(in_header(&b, "\"step\":\"21\"") && in_header(&b, "\"optimiser\":\"1\""));
    CHECK(in_header(&b, ",\"a#updates\":\"1:9\",\"b#updates\":\"3:12\"}"));
    free(b.bytes);
    gckpt_store_free(s[0]);
    gckpt_store_free(s[1]);
}

/* AdamW's first step must move every weight by lr, whichever optimiser ran before, since its bias correction counts
 * updates of AdamW only. */
static void test_adamw_after_sgd(void)
{
    for (int saved = 0; saved < 2; saved++) {
        gckpt_store *s = store_new();
        steps(s, GCKPT_SGD, 5);
        if (saved)
            reload(&s);
        float before = s->params[1].p.values[0];
        steps(s, GCKPT_ADAMW, 1);
        float moved = before - s->params[1].p.values[0];
        CHECK_MSG(fabsf(fabsf(moved) - 0.01f) < 1e-5f, "moved by %.9g", (double)moved);
        gckpt_store_free(s);
    }
    /* A parameter without state has no count of updates, so a custom optimiser receives the store's step. */
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 3);
    training t = training_new(s, GCKPT_CUSTOM_OPTIMISER, 0);
    CHECK(step_once(&t) == GCKPT_OK && own_steps[0] == 4 && own_steps[1] == 4);
    training_free(&t);
    steps(s, GCKPT_CUSTOM_OPTIMISER, 1);
    CHECK(own_steps[0] == 1 && gckpt_store_step(s) == 5);
    gckpt_store_free(s);
}

/* If a file loads the state of another optimiser while an executor exists, the executor's next step must fail with a
 * reason. */
static void test_live_executor(void)
{
    gckpt_store *s = store_new(), *other = store_new();
    steps(other, GCKPT_MOMENTUM, 3);
    file b = write_all(other);
    training t = training_new(s, GCKPT_ADAMW, 0);
    CHECK(step_once(&t) == GCKPT_OK);
    CHECK_MSG(read_all(s, &b) == GCKPT_OK, "%s", gckpt_error_text(s));
    uint64_t before = snapshot(s);
    CHECK(step_once(&t) == GCKPT_E_ARG && snapshot(s) == before);
    CHECK_MSG(strstr(gckpt_error_text(t.exec), "\"a\" got state of another optimiser") &&
                  strstr(gckpt_error_text(t.exec), "gckpt_store_reset"),
              "%s", gckpt_error_text(t.exec));
    CHECK(gckpt_store_reset(s, "*") == GCKPT_OK && step_once(&t) == GCKPT_OK);
    CHECK(s->params[0].updates == 1 && gckpt_store_step(s) == 4);
    training_free(&t);
    t = training_new(s, GCKPT_SGD, 0); /* SGD neither uses nor changes state of another optimiser */
    CHECK(read_all(s, &b) == GCKPT_OK && step_once(&t) == GCKPT_OK);
    CHECK(s->params[0].updates == 3 && s->params[0].optimiser == GCKPT_MOMENTUM + 1);
    training_free(&t);
    gckpt_store_free(s);
    gckpt_store_free(other);
    free(b.bytes);
}

/* Files of version 0.1 have one optimiser and one count of updates for all parameters; they must still load. */
static void test_old_files(void)
{
    gckpt_store *s = run_history(UNFREEZE, 0), *t = store_new();
    file b = write_all(s), old;
    CHECK(in_header(&b, ",\"b#updates\":\"1:7\"}") && !in_header(&b, "a#updates"));
    old = edited(&b, ",\"b#updates\":\"1:7\"", "");
    CHECK_MSG(read_all(t, &old) == GCKPT_OK, "%s", gckpt_error_text(t));
    CHECK(t->params[0].updates == 9 && t->params[1].updates == 9);
    CHECK(t->params[1].optimiser == GCKPT_ADAMW + 1 && gckpt_store_hash(s) == gckpt_store_hash(t));
    file again = write_all(t); /* a store with one optimiser and one count is still written in that older format */
    CHECK(!in_header(&again, "#updates"));
    free(again.bytes);
    free(old.bytes);
    /* In a file of another program, these keys have no meaning, and state belongs to no known optimiser. */
    old = edited(&b, "\"format\":\"gradckpt\"", "\"format\":\"other\"");
    CHECK(read_all(t, &old) == GCKPT_OK && t->params[1].updates == 0 && !t->params[1].optimiser);
    CHECK(gckpt_store_step(t) == 9);
    free(old.bytes);
    old = edited(&b, "\"format\":\"gradckpt\"", "\"format\":\"other\",\"x#updates\":\"y\"");
    CHECK(read_all(t, &old) == GCKPT_OK);
    free(old.bytes);
    gckpt_store_free(s);
    gckpt_store_free(t);
    free(b.bytes);
}

static void test_wrong_counts(void)
{
    static const struct {
        const char *to, *text;
    } wrong[] = {
        { "\"b#updates\":\"1:7\",\"b#updates\":\"1:7\"", "twice" },
        { "\"c#updates\":\"1:7\"", "\"c#updates\": is without its parameter" },
        { "\"a#updates#updates\":\"1:7\"", "without its parameter or state" },
        { "\"b#state0#updates\":\"1:7\"", "the name ends like" },
        { "\"#updates\":\"1:7\"", "reserved" },
        { "\"b#updates\":\"\"", "\"b#updates\": must be \"OPTIMISER:COUNT\"" },
        { "\"b#updates\":\"7\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\":7\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"1:\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"1:7 \"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"1:07\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"1:-7\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"1:18446744073709551616\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"5:7\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":\"0:7\"", "OPTIMISER:COUNT" },
        { "\"b#updates\":7", "'\"' expected" },
        { "\"b#updates\":\"1:7\",\"step\":\"9\"", "twice" },
    };
    gckpt_store *s = run_history(UNFREEZE, 0), *full = run_history(RESET, 0), *empty = store_new();
    file b = write_all(s);
    uint64_t before = snapshot(full), nothing = snapshot(empty);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        file bad = edited(&b, "\"b#updates\":\"1:7\"", wrong[i].to);
        for (int k = 0; k < 2; k++) {
            gckpt_store *t = k ? empty : full;
            CHECK_MSG(read_all(t, &bad) == GCKPT_E_DATA &&
                          strstr(gckpt_error_text(t), wrong[i].text),
                      "%s: %s", wrong[i].to, gckpt_error_text(t));
            CHECK(snapshot(t) == (k ? nothing : before));
        }
        free(bad.bytes);
    }
    gckpt_result result = GCKPT_E_MEMORY; /* each allocation fails in turn, first that for counts of updates */
    for (long n = 1; result == GCKPT_E_MEMORY && n < 100; n++) {
        heap h = { .fail_at = 1 + n };
        gckpt_store_desc desc = { .memory = heap_memory(&h), .seed = 3 };
        gckpt_store *t = gckpt_store_new(&desc);
        file from = b;
        result = gckpt_store_read(t, file_read, &from, b.size, NULL);
        CHECK(result == GCKPT_OK ? n > 3 && snapshot(t) == snapshot(s) : result == GCKPT_E_MEMORY && !t->count);
        gckpt_store_free(t);
        CHECK(h.blocks == 0);
    }
    CHECK(result == GCKPT_OK);
    file most = edited(&b, "\"b#updates\":\"1:7\"", "\"b#updates\":\"4:18446744073709551615\"");
    CHECK(read_all(empty, &most) == GCKPT_OK && empty->params[1].updates == UINT64_MAX);
    free(most.bytes);
    /* A parameter without state has no count of updates in the file. */
    freeze(s, "b", 1);
    gckpt_store *t = store_new();
    freeze(full, "*", 0);
    training r = training_new(t, GCKPT_SGD, 0);
    training_free(&r);
    freeze(t, "b", 1);
    steps(t, GCKPT_ADAMW, 2);
    free(b.bytes);
    b = write_all(t);
    most = edited(&b, "\"optimiser\":\"1\"", "\"optimiser\":\"1\",\"b#updates\":\"1:2\"");
    CHECK(read_all(full, &most) == GCKPT_E_DATA && snapshot(full) == before);
    free(most.bytes);
    free(b.bytes);
    gckpt_store_free(t);
    gckpt_store_free(s);
    gckpt_store_free(full);
    gckpt_store_free(empty);
}

/* Flips each bit of the metadata. The file must be refused with the store unchanged, or be loaded; a loaded store,
 * saved and loaded again, must be the same store. */
static void test_flips(void)
{
    gckpt_store *s = run_history(UNFREEZE, 0), *full = run_history(RESET, 0);
    file b = write_all(s), saved;
    uint64_t before = snapshot(full);
    size_t end = (size_t)(strstr((const char *)b.bytes + 8, "},") - (const char *)b.bytes);
    int loaded = 0;
    for (size_t i = 8 * 8; i < 8 * end; i++) {
        gckpt_store *t = store_new();
        b.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        gckpt_result result = read_all(t, &b);
        if (result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT) {
            uint64_t now = snapshot(t);
            saved = write_all(t);
            CHECK(read_all(t, &saved) == GCKPT_OK && snapshot(t) == now);
            free(saved.bytes);
            loaded++;
        } else {
            CHECK(gckpt_store_count(t) == 0);
            CHECK(read_all(full, &b) == result && snapshot(full) == before);
        }
        b.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        gckpt_store_free(t);
    }
    CHECK_MSG(loaded > 100 && loaded < 400, "loaded %d of %d", loaded, (int)(8 * end));
    gckpt_store_free(s);
    gckpt_store_free(full);
    free(b.bytes);
}

/* A file with another contract version is loaded, and the result GCKPT_OTHER_CONTRACT says so. If the file is also
 * damaged, it is refused. */
static void test_contract(void)
{
    gckpt_store *s = store_new(), *t = store_new(), *full = run_history(RESET, 0);
    steps(s, GCKPT_ADAMW, 3);
    file b = write_all(s);
    char now[32], other[80];
    snprintf(now, sizeof now, "\"contract\":\"%d\"", GCKPT_CONTRACT);
    for (int i = 0; i < 5; i++) {
        int contract = i < 4 ? i : 1000000;
        if (contract == GCKPT_CONTRACT)
            continue;
        snprintf(other, sizeof other, "\"contract\":\"%d\"", contract);
        file saved = edited(&b, now, other);
        CHECK(read_all(t, &saved) == GCKPT_OTHER_CONTRACT &&
              gckpt_error(t) == GCKPT_OTHER_CONTRACT);
        snprintf(other, sizeof other, "contract %d, this library of %d", contract, GCKPT_CONTRACT);
        CHECK_MSG(strstr(gckpt_error_text(t), other) != NULL, "%s", gckpt_error_text(t));
        CHECK(snapshot(t) == snapshot(s));
        CHECK(read_all(full, &saved) == GCKPT_OTHER_CONTRACT &&
              gckpt_store_hash(full) == gckpt_store_hash(s) && gckpt_store_step(full) == 3);
        steps(t, GCKPT_ADAMW, 1); /* training continues under the current contract version */
        file again = write_all(t);
        CHECK(in_header(&again, now) && read_all(s, &again) == GCKPT_OK);
        CHECK(read_all(s, &b) == GCKPT_OK && read_all(t, &b) == GCKPT_OK);
        CHECK(gckpt_error(t) == GCKPT_OK);
        uint64_t before = snapshot(full); /* the same file, cut off: refused with the store unchanged */
        saved.size--;
        CHECK(read_all(full, &saved) == GCKPT_E_DATA && snapshot(full) == before);
        free(again.bytes);
        free(saved.bytes);
    }
    file saved = edited(&b, now, "\"contract\":\"one\"");
    CHECK(read_all(t, &saved) == GCKPT_E_DATA);
    CHECK(strstr(gckpt_result_text(GCKPT_OTHER_CONTRACT), "contract"));
    free(saved.bytes);
    free(b.bytes);
    gckpt_store_free(s);
    gckpt_store_free(t);
    gckpt_store_free(full);
}

/* An error text that quotes a damaged dtype must not contain control characters, which a terminal would obey. */
static void test_dtype(void)
{
    static const char header[] = "{\"w\":{\"dtype\":\"\\u001b[31mX\\u007f\",\"shape\":[1],"
                                 "\"data_offsets\":[0,4]}}";
    file b = { NULL, 0, 0, 0, 0, 0, 0 };
    unsigned char little[8] = { 0 };
    little[0] = (unsigned char)(sizeof header - 1);
    file_write(&b, little, 8);
    file_write(&b, header, sizeof header - 1);
    file_write(&b, "abcd", 4);
    gckpt_store *s = store_new();
    CHECK(read_all(s, &b) == GCKPT_E_DATA);
    CHECK_MSG(strstr(gckpt_error_text(s), "dtype ?[31mX?"), "%s", gckpt_error_text(s));
    gckpt_store_free(s);
    free(b.bytes);
}

#if TEST_POSIX && !defined(GCKPT_NO_STDIO)
/* ---- saving to a path; the working directory is a temporary folder ---- */
static char folder[64];

static void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static mode_t kind_of(const char *path) /* returns the type of the file, of a link itself */
{
    struct stat s;
    return lstat(path, &s) ? 0 : s.st_mode & S_IFMT;
}

static int loads(const char *path, uint64_t step)
{
    gckpt_store *t = store_new();
    int good = gckpt_store_load(t, path, NULL) == GCKPT_OK && gckpt_store_step(t) == step;
    gckpt_store_free(t);
    return good;
}

/* Returns whether no file in the working directory matches this pattern. */
static int nothing_like(const char *pattern)
{
    char command[80];
    snprintf(command, sizeof command, "test \"$(echo %s)\" = '%s'", pattern, pattern);
    return !system(command);
}

/* A save and a load by path must return all memory that they take from the store. */
static void test_memory_of_paths(void)
{
    heap h = { 0 };
    gckpt_store_desc desc = { .memory = heap_memory(&h), .seed = 3 };
    gckpt_store *s = gckpt_store_new(&desc);
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", gckpt_shape2(3, 5), normal);
    gckpt_graph_free(g);
    const long calls = h.calls, blocks = h.blocks;
    put_text("m.st", "old");
    CHECK(!symlink("m.st", "to m") && gckpt_store_save(s, "to m", NULL) == GCKPT_OK && h.calls > calls);
    CHECK(gckpt_store_load(s, "m.st", NULL) == GCKPT_OK && gckpt_store_save(s, "no/such", NULL) == GCKPT_E_FILE);
    CHECK_MSG(h.wrong_sizes == 0 && h.blocks <= blocks + 1, "%ld of %ld calls with another size", h.wrong_sizes,
              h.calls);
    gckpt_store_free(s);
    CHECK(h.blocks == 0 && h.wrong_sizes == 0);
}

/* Tests saves under names of 230 to 256 bytes. File systems allow at most 255 bytes, of which the temporary file's suffix
 * takes 11; longer names must be refused. */
static void test_long_names(void)
{
    for (int n = 230; n <= 256; n++)
        for (int utf8 = 0; utf8 < 2; utf8++) {
            char path[400];
            snprintf(path, sizeof path, "%s/", folder);
            const size_t at = strlen(path);
            for (int i = 0; i < n; i++)
                path[at + (size_t)i] = utf8 && i < n / 2 * 2 ? "\303\251"[i % 2] : 'n';
            path[at + (size_t)n] = 0;
            gckpt_store *s = store_new();
            const gckpt_result first = gckpt_store_save(s, path, NULL), again = gckpt_store_save(s, path, NULL);
            CHECK_MSG(first == again && first == (n < 246 ? GCKPT_OK : GCKPT_E_FILE), "%d: %s", n,
                      gckpt_error_text(s));
            CHECK(first || gckpt_store_load(s, path, NULL) == GCKPT_OK);
            CHECK(nothing_like("*.gckpt-tmp*"));
            remove(path);
            gckpt_store_free(s);
        }
}

static void test_links(void)
{
    gckpt_store *s = store_new();
    steps(s, GCKPT_ADAMW, 1);
    CHECK(!mkdir("real", 0700) && !mkdir("there", 0700));
    put_text("real/x.st", "old");
    char absolute[128];
    snprintf(absolute, sizeof absolute, "%s/there/mid", folder);
    CHECK(!symlink("../real/x.st", "there/mid") && !symlink(absolute, "l.st"));
    CHECK_MSG(gckpt_store_save(s, "l.st", NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    CHECK(kind_of("l.st") == S_IFLNK && kind_of("there/mid") == S_IFLNK);
    CHECK(kind_of("real/x.st") == S_IFREG && loads("real/x.st", 1) && loads("l.st", 1));
    /* A link whose target does not exist: the save replaces the link. */
    CHECK(!symlink("real/new.st", "dangling") && gckpt_store_save(s, "dangling", NULL) == GCKPT_OK);
    CHECK(kind_of("dangling") == S_IFREG && loads("dangling", 1) && !kind_of("real/new.st"));
    CHECK(!symlink("loop", "loop") && gckpt_store_save(s, "loop", NULL) == GCKPT_E_FILE);
    CHECK(kind_of("loop") == S_IFLNK);
    CHECK(!symlink("real", "to a folder") && gckpt_store_save(s, "to a folder", NULL) == GCKPT_E_FILE);
    CHECK(kind_of("to a folder") == S_IFLNK && kind_of("real") == S_IFDIR);
    CHECK(gckpt_store_save(s, "to a folder/y.st", NULL) == GCKPT_OK && loads("real/y.st", 1));
    CHECK(gckpt_store_save(s, "real/y.st/z.st", NULL) == GCKPT_E_FILE && strstr(gckpt_error_text(s), strerror(ENOTDIR)));
    /* A chain of 39 links is followed; one of 45 is refused. */
    char link[8], to[16] = "real/z.st";
    put_text(to, "old");
    for (int i = 1; i <= 45; i++) {
        snprintf(link, sizeof link, "c%d", i);
        CHECK(!symlink(to, link));
        snprintf(to, sizeof to, "%s", link);
    }
    CHECK(gckpt_store_save(s, "c45", NULL) == GCKPT_E_FILE && kind_of("c45") == S_IFLNK);
    CHECK(gckpt_store_save(s, "c39", NULL) == GCKPT_OK && kind_of("c1") == S_IFLNK && loads("real/z.st", 1));
    CHECK(nothing_like("*.gckpt-tmp*") && nothing_like("*/*.gckpt-tmp*"));
    /* A target that is not a regular file must stay unchanged, and the save must not wait for a reader. */
    CHECK(!mkfifo("fifo", 0600) && gckpt_store_save(s, "fifo", NULL) == GCKPT_E_FILE && kind_of("fifo") == S_IFIFO);
    CHECK_MSG(strstr(gckpt_error_text(s), "folder, device or pipe; is") &&
                  strstr(gckpt_error_text(s), "\"fifo\""),
              "%s", gckpt_error_text(s));
    CHECK(gckpt_store_save(s, "real", NULL) == GCKPT_E_FILE && kind_of("real") == S_IFDIR);
    if (!mknod("device", S_IFCHR | 0600,
               0)) { /* works only for root; the device has no driver and is never opened */
        CHECK(gckpt_store_save(s, "device", NULL) == GCKPT_E_FILE && kind_of("device") == S_IFCHR);
        CHECK(!symlink("device", "to a device"));
        CHECK(gckpt_store_save(s, "to a device", NULL) == GCKPT_E_FILE && kind_of("device") == S_IFCHR);
    }
    CHECK(nothing_like("*.gckpt-tmp*"));
    gckpt_store_free(s);
}

static void test_permissions(void)
{
    static const mode_t modes[] = { 0600, 0644, 0640, 0666 };
    gckpt_store *s = store_new();
    struct stat now;
    mode_t mask = umask(022);
    steps(s, GCKPT_SGD, 1);
    CHECK(gckpt_store_save(s, "mode.st", NULL) == GCKPT_OK);
    CHECK(!stat("mode.st", &now) && (now.st_mode & 0777) == 0644);
    for (size_t i = 0; i < 4; i++) {
        umask(i % 2 ? 077 : 022);
        CHECK(!chmod("mode.st", modes[i]) && gckpt_store_save(s, "mode.st", NULL) == GCKPT_OK);
        CHECK(!stat("mode.st", &now));
        CHECK_MSG((now.st_mode & 0777) == modes[i], "%o became %o", modes[i], now.st_mode & 0777);
    }
    umask(mask);
    gckpt_store_free(s);
}

static size_t die(const void *bytes, size_t size, size_t n, FILE *f)
{
    (void)bytes, (void)size, (void)n, (void)f;
    raise(SIGKILL);
    return 0;
}

/* Ends the process while it writes the file. */
static void killed_save(gckpt_store *s, const char *path)
{
    gckpti_hooks.fwrite = die;
    gckpt_store_save(s, path, NULL);
    _exit(0);
}

/* A killed save leaves its temporary file; the next save must remove it. */
static void test_killed(void)
{
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 1);
    CHECK(gckpt_store_save(s, "killed.st", NULL) == GCKPT_OK);
    for (int i = 0; i < 105; i++) {
        pid_t child = fork();
        if (!child) {
            killed_save(s, "killed.st");
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    }
    CHECK(loads("killed.st", 1) && kind_of("killed.st.gckpt-tmp") == S_IFREG);
    steps(s, GCKPT_SGD, 1);
    CHECK_MSG(gckpt_store_save(s, "killed.st", NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    CHECK(loads("killed.st", 2) && nothing_like("*.gckpt-tmp*"));
    /* If the temporary name is taken and cannot be removed, the error text must say so. */
    CHECK(!mkdir("killed.st.gckpt-tmp", 0700));
    CHECK(gckpt_store_save(s, "killed.st", NULL) == GCKPT_E_FILE && loads("killed.st", 2));
    CHECK_MSG(strstr(gckpt_error_text(s), "(.gckpt-tmp)"), "%s", gckpt_error_text(s));
    CHECK(!rmdir("killed.st.gckpt-tmp"));
    gckpt_store_free(s);
}

/* Replaces open(): also for root, a file without the permission cannot be opened. */
static int open_as_any(const char *path, int flags, unsigned mode)
{
    struct stat s;
    const int may = flags & O_CREAT || stat(path, &s) || (s.st_mode & (flags & O_WRONLY ? 0200 : 0400));
    if (may)
        return open(path, flags, mode);
    errno = EACCES;
    return -1;
}

/* A killed save of a read-only file leaves a read-only temporary file; the next save must remove that file. */
static void test_killed_read_only(void)
{
    const gckpti_test_hooks was = gckpti_hooks;
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 1);
    gckpti_hooks.open = open_as_any;
    CHECK(gckpt_store_save(s, "kept.st", NULL) == GCKPT_OK && !chmod("kept.st", 0444));
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (!child) {
            killed_save(s, "kept.st");
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    }
    CHECK(kind_of("kept.st.gckpt-tmp") == S_IFREG);
    steps(s, GCKPT_SGD, 1);
    CHECK_MSG(gckpt_store_save(s, "kept.st", NULL) == GCKPT_OK && loads("kept.st", 2), "%s", gckpt_error_text(s));
    CHECK(nothing_like("*.gckpt-tmp*"));
    gckpti_hooks = was;
    CHECK(!system("rm -f *.gckpt-tmp*"));
    gckpt_store_free(s);
}

static int go[2], ready[2]; /* pipes between the test and its child processes */

/* Replaces fflush(): when the whole store is written, tells the test so and waits for a byte from it. */
static int paused(FILE *f)
{
    char c = 0;
    return write(ready[1], &c, 1) == 1 && read(go[0], &c, 1) == 1 ? fflush(f) : EOF;
}

/* While a process saves to a path, other saves to it must be refused and must leave the temporary file of the first
 * alone. The file must be complete at any time. */
static void test_at_once(void)
{
    gckpt_store *s = store_new();
    pid_t child[2];
    int status = 1;
    char c = 0;
    steps(s, GCKPT_SGD, 1);
    CHECK(!pipe(go) && !pipe(ready));
    child[0] = fork();
    if (!child[0]) {
        gckpti_hooks.fflush = paused;
        _exit(gckpt_store_save(s, "at once.st", NULL) != GCKPT_OK);
    }
    CHECK(read(ready[0], &c, 1) == 1); /* The first save waits before its end while other saves fail. */
    steps(s, GCKPT_SGD, 1);
    for (int i = 0; i < 3; i++) {
        CHECK(gckpt_store_save(s, "at once.st", NULL) == GCKPT_E_FILE && nothing_like("at once.st"));
        CHECK_MSG(strstr(gckpt_error_text(s), "another save of it"), "%s", gckpt_error_text(s));
        CHECK(kind_of("at once.st.gckpt-tmp") == S_IFREG);
    }
    CHECK(write(go[1], &c, 1) == 1);
    CHECK(waitpid(child[0], &status, 0) == child[0] && status == 0 && loads("at once.st", 1));
    CHECK(gckpt_store_save(s, "at once.st", NULL) == GCKPT_OK);
    for (int i = 0; i < 2; i++) {
        child[i] = fork();
        if (!child[i]) {
            for (int good = 0; good < 20;) /* fails while the other child saves */
                good += gckpt_store_save(s, "at once.st", NULL) == GCKPT_OK;
            _exit(0);
        }
    }
    for (int k = 0; k < 50; k++)
        CHECK(loads("at once.st", 2));
    for (int i = 0; i < 2; i++)
        CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
    CHECK(gckpt_store_save(s, "at once.st", NULL) == GCKPT_OK && loads("at once.st", 2));
    CHECK(nothing_like("*.gckpt-tmp*"));
    gckpt_store_free(s);
}

/* A save calls fsync for the file, then for its folder, and once more for the file. If the file system does not support fsync, the save
 * succeeds; any other failure is an error. */
static void test_flush(void)
{
    static const int cannot[] = { EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP, EBADF }, real[] = { EIO, ENOSPC };
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 1);
    fsync_calls = 0;
    CHECK(gckpt_store_save(s, "flush.st", NULL) == GCKPT_OK && fsync_calls == 3);
    for (fsync_fails = 1; fsync_fails <= 3; fsync_fails++) {
        for (size_t i = 0; i < sizeof cannot / sizeof *cannot; i++) {
            fsync_error = cannot[i];
            fsync_calls = 0;
            CHECK(gckpt_store_save(s, "flush.st", NULL) == GCKPT_OK && fsync_calls == 3);
        }
        for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
            uint64_t old = gckpt_store_step(s);
            steps(s, GCKPT_SGD, 1);
            fsync_error = real[i];
            fsync_calls = 0;
            CHECK(gckpt_store_save(s, "flush.st", NULL) == GCKPT_E_FILE);
            CHECK(fsync_calls == (fsync_fails == 1 ? 1 : 3));
            CHECK_MSG(strstr(gckpt_error_text(s), strerror(real[i])) &&
                          strstr(gckpt_error_text(s), fsync_fails == 1 ? "Nothing was changed" : "in place") &&
                          strstr(gckpt_error_text(s), "\"flush.st\""),
                      "%s", gckpt_error_text(s));
            CHECK(loads("flush.st", fsync_fails == 1 ? old : old + 1));
            fsync_calls = 3;
            CHECK(gckpt_store_save(s, "flush.st", NULL) == GCKPT_OK);
        }
    }
    fsync_fails = 1; /* a first save leaves no file */
    fsync_calls = 0;
    CHECK(gckpt_store_save(s, "first.st", NULL) == GCKPT_E_FILE && nothing_like("first.st"));
    CHECK_MSG(strstr(gckpt_error_text(s), "Nothing was changed: \"first.st\""), "%s", gckpt_error_text(s));
    fsync_fails = 0;
    CHECK(nothing_like("*.gckpt-tmp*"));
    gckpt_store_free(s);
}

/* If stat or fstat fails, once or from some call on, a save must leave no temporary file, and the old file must be
 * complete. */
static void test_unlooked(void)
{
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 1);
    for (stat_keeps = 0; stat_keeps < 2; stat_keeps++)
        for (int at = 1, done = 0; !done; at++) {
            uint64_t old = gckpt_store_step(s);
            CHECK(gckpt_store_save(s, "unlooked.st", NULL) == GCKPT_OK);
            steps(s, GCKPT_SGD, 1);
            stat_calls = 0;
            stat_fails = at;
            gckpt_result result = gckpt_store_save(s, "unlooked.st", NULL);
            stat_fails = 0;
            done = stat_calls < at;
            CHECK(done ? result == GCKPT_OK && at > 3 : result == GCKPT_E_FILE);
            CHECK_MSG(result == GCKPT_OK ||
                          (result == GCKPT_E_FILE && strstr(gckpt_error_text(s), strerror(EIO)) &&
                           strstr(gckpt_error_text(s), "Nothing was changed")),
                      "%s", gckpt_error_text(s));
            CHECK(loads("unlooked.st", result == GCKPT_OK ? old + 1 : old));
            CHECK_MSG(nothing_like("*.gckpt-tmp*"), "call %d%s", at, stat_keeps ? ".." : "");
            CHECK(!system("rm -f *.gckpt-tmp*"));
        }
    gckpt_store_free(s);
}

/* Other processes may interfere between the creation of a temporary file and its lock: one removes the file, another
 * creates a file of the same name, or an old temporary file cannot be removed. The save must then fail and leave files
 * of others unchanged. */
static int meddle;
static int meddling_stat(const char *path, struct stat *s)
{
    const size_t n = strlen(path);
    if (meddle && n > 10 && !strcmp(path + n - 10, ".gckpt-tmp")) {
        CHECK(!unlink(path));
        if (meddle > 1)
            put_text(path, "another's");
        meddle = 0;
    }
    return stat(path, s);
}
static int kept(const char *path)
{
    (void)path;
    errno = EACCES;
    return -1;
}

static void test_meddled(void)
{
    const gckpti_test_hooks was = gckpti_hooks;
    gckpt_store *s = store_new();
    char text[16] = "";
    CHECK(gckpt_store_save(s, "meddled.st", NULL) == GCKPT_OK);
    gckpti_hooks.stat = meddling_stat;
    for (int how = 1; how < 3; how++) {
        steps(s, GCKPT_SGD, 1);
        meddle = how;
        CHECK(gckpt_store_save(s, "meddled.st", NULL) == GCKPT_E_FILE);
        CHECK(!meddle && loads("meddled.st", 0));
    }
    gckpti_hooks = was;
    FILE *f = fopen("meddled.st.gckpt-tmp", "rb");
    CHECK(f && fread(text, 1, sizeof text - 1, f) && !fclose(f) && !strcmp(text, "another's"));
    steps(s, GCKPT_SGD, 1);
    gckpti_hooks.remove = kept;
    CHECK(gckpt_store_save(s, "meddled.st", NULL) == GCKPT_E_FILE);
    gckpti_hooks = was;
    CHECK(loads("meddled.st", 0) && kind_of("meddled.st.gckpt-tmp") == S_IFREG);
    CHECK(gckpt_store_save(s, "meddled.st", NULL) == GCKPT_OK && nothing_like("*.gckpt-tmp*"));
    gckpt_store_free(s);
}

/* A save keeps the file that it replaces open, as FAT needs it. A file that may not be read is replaced anyway; any
 * other error is reported. */
static int flock_error;
static int not_held(const char *path, int flags, unsigned mode)
{
    if (flags != O_RDONLY || strcmp(path + strlen(path) - 7, "held.st"))
        return open(path, flags, mode);
    errno = flock_error;
    return -1;
}

static void test_held(void)
{
    const gckpti_test_hooks was = gckpti_hooks;
    gckpt_store *s = store_new();
    steps(s, GCKPT_SGD, 1);
    CHECK(gckpt_store_save(s, "held.st", NULL) == GCKPT_OK);
    for (int readable = 0; readable < 2; readable++) {
        steps(s, GCKPT_SGD, 1);
        flock_error = readable ? EMFILE : EACCES;
        gckpti_hooks.open = not_held;
        const gckpt_result result = gckpt_store_save(s, "held.st", NULL);
        gckpti_hooks = was;
        CHECK_MSG(result == (readable ? GCKPT_E_FILE : GCKPT_OK), "%s", gckpt_error_text(s));
        CHECK(loads("held.st", 2) && nothing_like("*.gckpt-tmp*"));
    }
    gckpt_store_free(s);
}

static void test_paths(void)
{
    char command[96];
    strcpy(folder, "/tmp/test_resume.XXXXXX");
    if (!CHECK(mkdtemp(folder) && !chdir(folder)))
        return;
    test_long_names();
    test_links();
    test_memory_of_paths();
    test_permissions();
    test_killed();
    test_killed_read_only();
    test_at_once();
    test_flush();
    test_unlooked();
    test_meddled();
    test_held();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(!chdir("/") && !system(command));
}
#endif

int main(void)
{
    watch();
    test_counts();
    test_first_updates();
    test_two_optimisers();
    test_adamw_after_sgd();
    test_live_executor();
    test_old_files();
    test_wrong_counts();
    test_flips();
    test_contract();
    test_dtype();
#if TEST_POSIX && !defined(GCKPT_NO_STDIO)
    test_paths();
#endif
    return check_report("test_resume");
}
