/* test_threads.c - training must give the same bits with any number of threads, with any thread pool, and in two
 * executors at once. A separate test runs the way in which threads claim work items, thousands of times, with threads
 * that pause.
 *
 *     build/test_threads [rounds]    with a number, runs only the test of claims, that many rounds
 *
 * For -fsanitize=thread, compile without OpenMP, whose barriers thread sanitizers do not understand: the test starts
 * its own threads. */
#if defined(__unix__) || defined(__APPLE__)
#define TEAMS 1
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#else
#define TEAMS 0
#endif
#if TEAMS && defined(__GNUC__) && UINTPTR_MAX > UINT32_MAX && !defined(GCKPT_NO_FAST) &&           \
    !defined(GCKPT_FORCE_SOFT_FMA)
#define FAST 1
#else
#define FAST 0
#endif
#include "base/base.h"
#include "num/num.h"
#include "run/run.h"
#include "util.h"

enum { B = 4, T = 64, C = 64, V = 97 };

/* ---- training ---- */
typedef struct {
    int threads;
    int team_threads; /* result: number of threads in the team that runs the steps */
    gckpt_optimiser optimiser;
    float clip;
    int in_backward;
    int64_t rows;  /* rows of a micro-batch */
    int fetch;     /* if nonzero, a parameter's gradient is fetched */
    int pieces;    /* instructions for each call of gckpt_run_some, or 0 for whole steps */
    int backwards; /* if nonzero, work items run in a thread pool of this program, from last to first */
    uint64_t hash; /* result: hash of the weights and of the fetched values */
    double norm;
    long jobs;
} training;

static void pool(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    ((training *)user)->jobs++;
    for (int64_t i = n; i-- > 0;)
        body(context, i);
}

static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    for (int64_t i = 0; i < u->elements; i++)
        u->values[i] -= 0.1f * u->gradient[i] * u->clip_scale;
}

static gckpt_tensor *weight(gckpt_graph *g, int layer, const char *part, int64_t a, int64_t b)
{
    const gckpt_init init = { 0.1f, 0, 0 };
    char name[32];
    snprintf(name, sizeof name, "%d.%s", layer, part);
    return gckpt_param(g, name, b > 0 ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

/* Trains as *t says and sets its results. The function uses no CHECK, because it runs on several threads; if anything
 * fails, t->hash stays 0. */
static void train(training *t)
{
    int32_t tokens[B * T], targets[B * T];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(t->rows, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(t->rows, T));
    gckpt_tensor *table = weight(g, 0, "table", V, C);
    gckpt_tensor *x = gckpt_embed(table, in), *wide = NULL;
    for (int i = 0; i < 2; i++) {
        gckpt_tensor *a = gckpt_layernorm(x, NULL, NULL, 0);
        gckpt_tensor *q = gckpt_linear(a, weight(g, i, "q", C, C), NULL);
        x = gckpt_add(x, gckpt_attention(q, a, a, &(gckpt_attention_desc){ .heads = 4, .causal = 1 }));
        wide = weight(g, i, "fc", C, 8 * C);
        a = gckpt_gelu(gckpt_linear(x, wide, weight(g, i, "b", 8 * C, 0)));
        x = gckpt_add(x, gckpt_linear(a, weight(g, i, "out", 8 * C, C), NULL));
    }
    gckpt_term loss = { gckpt_linear_cross_entropy(x, table, target, NULL), 1, 0 };
    gckpt_fetch_spec pick = { wide, 1 };
    gckpt_plan_desc desc = { .threads = t->threads,
                             .batch = B,
                             .optimiser = t->optimiser,
                             .update_in_backward = t->in_backward,
                             .fetch.specs = t->fetch ? &pick : NULL,
                             .fetch.count = t->fetch };
    gckpt_exec_desc run = { .custom_optimiser = own_optimiser,
                            .user = t,
                            .parallel_for = t->backwards ? pool : NULL };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = p ? gckpt_exec_new(p, s, &run) : NULL;
    gckpt_feed feeds[2] = { { gckpt_id(in), tokens }, { gckpt_id(target), targets } };
    gckpt_report report = { 0 };
    gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = t->clip };
    t->hash = 0;
    t->jobs = 0;
    if (e == NULL)
        fprintf(stderr, "test_threads: %s\n", gckpt_error_text(p ? (void *)s : (void *)g));
    if (e != NULL) {
        t->team_threads = e->device.team;
        gckpt_result result = GCKPT_OK;
        for (int step = 0; step < 3 && result == GCKPT_OK; step++) {
            for (int i = 0; i < B * T; i++) {
                tokens[i] = (i * 31 + i / 7 + step) % V;
                targets[i] = (i * 17 + i / 5 + step) % V;
            }
            if (t->pieces) {
                result = gckpt_step_start(e, feeds, 2, B, &hyper);
                if (result == GCKPT_OK)
                    do
                        result = gckpt_run_some(e, t->pieces, &report);
                    while (result == GCKPT_MORE);
            } else {
                result = gckpt_step(e, feeds, 2, B, &hyper, &report);
            }
        }
        if (result != GCKPT_OK)
            fprintf(stderr, "test_threads: %s\n", gckpt_error_text(e));
        t->hash = result == GCKPT_OK ? gckpt_store_hash(s) : 0;
        t->norm = report.grad_norm;
        if (t->fetch)
            t->hash = gckpti_hash_floats(t->hash, gckpt_fetch(e, gckpt_id(wide), 1), C * 8 * C);
    }
    util_free(e, p, g, s);
}

static void check_training(void)
{
    static const int threads[] = { 2, 3, 5 };
    for (int way = 0; way < 6; way++) {
        training base = { .threads = 1,
                          .rows = way % 2 ? 1 : B,
                          .clip = way == 2 || way == 3 ? 0.1f : 0,
                          .optimiser = way == 5 ? GCKPT_MOMENTUM : GCKPT_ADAMW,
                          .fetch = way == 1 || way == 2 };
        train(&base);
        CHECK(base.hash != 0);
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
            training t = base;
            t.threads = threads[i];
            train(&t);
            CHECK_MSG(t.hash == base.hash && t.norm == base.norm, "way %d, %d threads", way,
                      t.threads);
#if FAST && defined(_OPENMP)
            CHECK(t.team_threads == t.threads); /* a step of this size uses the whole team */
#endif
        }
        training t = base;
        t.threads = 2;
        t.backwards = 1;
        train(&t);
        CHECK_MSG(t.hash == base.hash, "way %d, a pool of the program's own", way);
#if FAST
        CHECK(t.jobs > 0);
#endif
        t.backwards = 0;
        t.pieces = way % 3 + 1;
        train(&t);
        CHECK_MSG(t.hash == base.hash, "way %d, in pieces", way);
        t.pieces = 0;
        t.fetch = !t.fetch; /* if a gradient is fetched, the update writes its scaled values back */
        train(&t);
        training other = t;
        other.threads = 1;
        train(&other);
        CHECK_MSG(t.hash == other.hash && t.norm == base.norm, "way %d, fetched or not", way);
    }
    /* The gradient's norm is computed before the updates if clipping is requested, else during the updates. */
    training two;
    training one = { .rows = B, .threads = 2 };
    two = one;
    two.clip = 1e30f;
    train(&one);
    train(&two);
    CHECK(one.hash != 0 && one.hash == two.hash && one.norm == two.norm);
    two = one;
    two.in_backward = 1;
    train(&two);
    CHECK(one.hash == two.hash && one.norm == two.norm);
    one.optimiser = GCKPT_CUSTOM_OPTIMISER;
    train(&one);
    two = one;
    two.threads = 1;
    two.clip = 1e30f;
    train(&two);
    CHECK(one.hash != 0 && one.hash == two.hash && one.norm == two.norm);
}

/* ---- claiming work items, with the test's own threads ---- */
#if FAST
enum { MOST = 300, TEAM_SIZE = 5, COST = 1 << 18 }; /* an item of this cost is claimed alone */

typedef struct {
    unsigned char ran[MOST];
    int64_t n, sum;
    const int64_t *values;
    int64_t squares[MOST];
} job;

/* Functions of base/threads.c that no header declares; they are extern only for this test. */
void gckpti_team_worker(struct gckpti_team *t, int thread);
void gckpti_team_end(struct gckpti_team *t, int others);
enum { TEAM_BYTES = 1024 }; /* at least sizeof(struct gckpti_team) */

/* A work item. It uses only plain memory, so that a thread sanitizer reports every access that the team does not
 * order. */
static void item(void *context, int64_t i, int64_t worker)
{
    job *j = (job *)context;
    (void)worker;
    if ((j->values[i] & 31) == 0) /* a slow item: other threads claim the next ones meanwhile */
        for (int k = 0; k < 3; k++)
            sched_yield();
    j->ran[i]++;
    j->squares[i] = j->values[i] * j->values[i];
}

typedef struct {
    struct gckpti_team *team;
    int number;
} team_member;

static void *team_main(void *member)
{
    const team_member *m = (const team_member *)member;
    gckpti_team_worker(m->team, m->number);
    return NULL;
}

static void inner(void *context, int64_t i, int64_t worker)
{
    (void)worker;
    ((int64_t *)context)[i]++;
}

typedef struct {
    const gckpt_call *call;
    int64_t counts[8][4];
} nesting;

static void outer(void *context, int64_t i, int64_t worker)
{
    nesting *n = (nesting *)context;
    (void)worker;
    gckpt_parallel(n->call, 4, COST, inner, n->counts[i]);
}

static void stress(int rounds)
{
    static int64_t values[MOST];
    static job jobs[2]; /* calls use the two jobs in turn, so that each call has another context than the call before */
    struct gckpti_team *team = (struct gckpti_team *)calloc(1, TEAM_BYTES);
    pthread_t threads[TEAM_SIZE];
    team_member members[TEAM_SIZE];
    gckpti_runner runner = { .team = team };
    uint64_t random = 1;
    gckpt_call call = { .threads = TEAM_SIZE, .runner = &runner };
    int started = 0;
    for (int i = 0; i < TEAM_SIZE; i++)
        members[i] = (team_member){ team, i + 1 };
    while (started < TEAM_SIZE && !pthread_create(&threads[started], NULL, team_main, &members[started]))
        started++;
    CHECK(started == TEAM_SIZE);
    long wrong = 0;
    for (int r = 0; r < rounds; r++) {
        job *j = &jobs[r % 2];
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        int64_t n = (int64_t)(random >> 33) % (r % 5 ? 8 : MOST);
        for (int64_t i = 0; i < n; i++)
            values[i] = (int64_t)(random >> 40) + i; /* written here, read by the items */
        memset(j, 0, sizeof *j);
        j->n = n;
        j->values = values;
        gckpt_parallel(&call, n, COST, item, j);
        for (int64_t i = 0; i < MOST; i++)
            wrong += j->ran[i] != (i < n) || (i < n && j->squares[i] != values[i] * values[i]);
        if (r % 64 == 0) /* gives idle threads time to fall asleep */
            for (int i = 0; i < 50; i++)
                sched_yield();
    }
    CHECK_MSG(wrong == 0, "%ld items not run exactly once, or with invisible results", wrong);
    nesting nest = { .call = &call };
    gckpt_parallel(&call, 8, COST, outer, &nest);
    for (int i = 0; i < 32; i++)
        CHECK(nest.counts[i / 4][i % 4] == 1);
    gckpti_team_end(team, started);
    while (started-- > 0)
        pthread_join(threads[started], NULL);
    free(team);
}
#else
static void stress(int rounds) { (void)rounds; }
#endif

/* ---- two executors at once, and executors inside a parallel region of the program ---- */
#if TEAMS
static void *train_thread(void *t)
{
    train((training *)t);
    return NULL;
}
#endif

static void check_at_once(void)
{
    training t[4];
    memset(t, 0, sizeof t);
    for (int i = 0; i < 4; i++) {
        t[i].rows = B;
        t[i].threads = i == 3 ? 1 : 2 + i % 2;
    }
    train(&t[3]);
    CHECK(t[3].hash != 0);
#if TEAMS
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&thread[i], NULL, train_thread, &t[i]));
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(t[0].hash == t[3].hash && t[1].hash == t[3].hash);
#endif
#ifdef _OPENMP
#pragma omp parallel for num_threads(2)
#endif
    for (int i = 0; i < 2; i++)
        train(&t[i]);
    CHECK(t[0].hash == t[3].hash && t[1].hash == t[3].hash);
}

int main(int argc, char **argv)
{
    stress(argc > 1 ? atoi(argv[1]) : check_iterations(8000));
    if (argc < 2) {
        check_training();
        check_at_once();
    }
    return check_report("test_threads");
}
