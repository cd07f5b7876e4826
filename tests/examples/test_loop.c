/* test_loop.c - tests examples/train.h in ticks, i.e. a few instructions at a time. Rows stored as u8 or f16, or filled
 * by a callback, must give the bits of the same rows as floats, for every budget and wherever training stops and
 * resumes. Schedules are compared with those of PyTorch and transformers. The log and the use in an event loop are
 * tested as well. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE
#include <sys/resource.h>
#define TEST_LIMITS
#endif
#include "gradckpt.h"
#include "check.h"
#include "counted.h"
#include "examples/layers.h"
#include "examples/train.h"
#include "golden/schedules.h"
#include <math.h>
#include <signal.h>

enum { ROWS = 90, VALID = 22, WIDE = 10, BATCH = 8, STEPS = 9, EPOCHS = 4 };
static const char *path = "build/test_loop.st", *log_path = "build/test_loop.csv";

static unsigned char bytes[ROWS][WIDE];
static uint16_t halves[ROWS][WIDE];
static float x[ROWS][WIDE], y[ROWS][2], of_halves[ROWS][WIDE];

/* ---- the model ---- */
typedef struct {
    int calls, checked, augments, fails_at, epochs, wrong;
    int64_t steps, stop_at;
} training_log;

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 12, 2 };
    (void)user;
    net->output = layers_mlp(gckpt_scale(net->in[0], 0.01f), "mlp", widths, 2, 0.1f);
    net->loss = gckpt_mean_squared_error(net->output, net->in[1], NULL);
}

static int watch(void *user, const train_report *now)
{
    training_log *v = (training_log *)user;
    v->epochs += now->step == 0;
    v->steps += now->step > 0;
    return now->step > 0 && v->steps == v->stop_at;
}

/* A batch callback that fills column x, which train.h has no values for. If v->augments is nonzero, it changes x at
 * random. */
static int fill(void *user, train_batch *b)
{
    training_log *v = (training_log *)user;
    float *to = (float *)b->values[0];
    v->wrong |= b->n < 1 || b->n > BATCH || b->seed != 11 || b->epoch < 0 || b->epoch > EPOCHS;
    v->checked += b->epoch == 0;
    if (++v->calls == v->fails_at)
        return snprintf(b->error, sizeof b->error, "row %.0f is damp", (double)b->rows[b->n - 1]), 5;
    for (int64_t i = 0; i < b->n; i++) {
        v->wrong |= b->rows[i] < 0 || b->rows[i] >= ROWS || (b->rows[i] >= ROWS - VALID) != (b->epoch == 0);
        v->wrong |= b->values[1] != NULL && ((const float *)b->values[1])[2 * i] != y[b->rows[i]][0];
        for (int k = 0; k < WIDE; k++)
            to[i * WIDE + k] =
                x[b->rows[i]][k] + (b->epoch > 0 && v->augments ? 50 * train_uniform(b, i, (uint64_t)k) : 0);
    }
    return 0;
}

static train_data rows_of(int type, const void *values)
{
    train_data data;
    const train_column in = { "x", type, WIDE, values }, out = { "y", GCKPT_F32, 2, y };
    memset(&data, 0, sizeof data);
    data.column[0] = in;
    data.column[1] = out;
    data.rows = ROWS;
    data.validation = VALID;
    return data;
}

static train_options options(training_log *v)
{
    train_options o = train_defaults(2e-2f);
    memset(v, 0, sizeof *v);
    o.plan.batch = BATCH;
    o.epochs = EPOCHS;
    o.schedule = SCHEDULE_ONE_CYCLE;
    o.seed = 11;
    o.print_every = -1;
    o.watch = watch;
    o.user = v;
    return o;
}

/* Trains in a new store with `instructions` instructions in each tick. Returns a hash of the weights, or 0 if training
 * fails. */
static uint64_t train(const train_data *data, train_options *o, int instructions, train_report *r)
{
    train_run t;
    gckpt_store *s = gckpt_store_new(NULL);
    training_log *v = (training_log *)o->user;
    v->calls = v->checked = v->epochs = 0;
    v->steps = 0;
    int more = train_begin(&t, s, model, data, o, r) == 0;
    while (more)
        more = train_tick(&t, instructions) > 0;
    const int failed = train_end(&t) != 0;
    CHECK(train_tick(&t, 0) == -1); /* a tick after the end must fail */
    const uint64_t hash = gckpt_store_hash(s);
    CHECK(failed == (r->error[0] != 0) && !v->wrong);
    gckpt_store_free(s);
    return failed ? 0 : hash;
}

static int same(const train_report *a, const train_report *b)
{
    return a->epoch == b->epoch && a->loss == b->loss && a->validation == b->validation &&
           a->steps == b->steps && a->lr == b->lr && a->is_best == b->is_best;
}

/* ---- rows in other formats, and rows from a callback ---- */
static void test_halves(void)
{
    for (int h = 0; h < 65536; h++) {
        const int exponent = h >> 10 & 31, fraction = h & 1023;
        const float got = train_from_f16((uint16_t)h);
        double want = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
        if (exponent == 31)
            want = fraction != 0 ? (double)NAN : (double)INFINITY;
        want = h >> 15 ? -want : want;
        CHECK_MSG(isnan(want) ? isnan(got) : (double)got == want, "%04x: %g, not %g", (unsigned)h, (double)got, want);
        CHECK(isnan(want) || !signbit(got) == !signbit(want));
    }
}

static void test_rows(void)
{
    static training_log v;
    const train_data floats = rows_of(GCKPT_F32, x), narrow = rows_of(TRAIN_U8, bytes);
    const train_data nowhere = rows_of(GCKPT_F32, NULL), half = rows_of(TRAIN_F16, halves),
                     whole = rows_of(GCKPT_F32, of_halves);
    train_options o = options(&v);
    train_report r, other;
    const uint64_t hash = train(&floats, &o, 0, &r);
    CHECK(hash != 0 && v.epochs == EPOCHS && v.steps == EPOCHS * STEPS && v.calls == 0);
    CHECK(train(&narrow, &o, 0, &other) == hash && same(&r, &other));
    o.batch = fill;
    for (o.micro_batch = 1; o.micro_batch <= BATCH; o.micro_batch *= 2) {
        CHECK(train(&nowhere, &o, 0, &other) == hash && same(&r, &other));
        /* the callback runs once for each step and each validation batch */
        CHECK(v.calls == EPOCHS * (STEPS + 3) && v.checked == EPOCHS * 3);
    }
    o.micro_batch = 0;
    CHECK(train(&narrow, &o, 0, &other) == hash && same(&r, &other)); /* the callback repeats its values */
    o.batch = NULL;
    const uint64_t of_half = train(&whole, &o, 0, &r);
    CHECK(of_half != 0 && of_half != hash && train(&half, &o, 0, &other) == of_half && same(&r, &other));
    /* Random changes of rows depend only on seed, epoch and row. */
    o = options(&v);
    o.batch = fill;
    v.augments = 1;
    const uint64_t moved = train(&nowhere, &o, 0, &r);
    CHECK(moved != 0 && moved != hash);
    o.plan.threads = 3;
    for (o.micro_batch = 1; o.micro_batch <= BATCH; o.micro_batch *= 2)
        CHECK(train(&floats, &o, 0, &other) == moved && same(&r, &other));
    o.micro_batch = 0;
    o.plan.budget = 1;
    double least = 0;
    CHECK(train(&nowhere, &o, 0, &other) == 0);
    const char *text = strstr(other.error, "at least ");
    CHECK(text != NULL && sscanf(text, "at least %lf", &least) == 1);
    o.plan.budget = (size_t)least;
    CHECK(train(&nowhere, &o, 0, &other) == moved && same(&r, &other));
}

/* Random bits must be 1 as often as 0, and must change with row, epoch, seed and the number of the random word. */
static void test_augmentation(void)
{
    static const int64_t rows[2] = { 3, 4 };
    int ones[64] = { 0 };
    train_batch b;
    memset(&b, 0, sizeof b);
    b.rows = rows;
    b.n = 2;
    double sum = 0;
    for (b.epoch = 1; b.epoch <= 40; b.epoch++)
        for (uint64_t which = 0; which < 100; which++) {
            const uint64_t bits = train_random(&b, 0, which);
            const float u = train_uniform(&b, 0, which);
            for (int k = 0; k < 64; k++)
                ones[k] += (int)(bits >> k & 1);
            CHECK(u >= 0 && u < 1 && train_random(&b, 0, which) == bits);
            CHECK(train_random(&b, 1, which) != bits && train_random(&b, 0, which + 100) != bits);
            sum += (double)u;
            b.seed++;
            CHECK(train_random(&b, 0, which) != bits);
            b.seed--;
        }
    for (int k = 0; k < 64; k++)
        CHECK_MSG(abs(ones[k] - 2000) < 160, "bit %d: %d of 4000", k, ones[k]);
    CHECK(fabs(sum / 4000 - 0.5) < 0.02);
}

/* A batch callback that fills x, and puts invalid values into y if train.h requests y. */
static int guess(void *user, train_batch *b)
{
    (void)user;
    for (int64_t i = 0; i < b->n; i++) {
        memcpy((float *)b->values[0] + i * WIDE, x[b->rows[i]], sizeof x[0]);
        for (int64_t k = 0; k < 2 && b->values[1] != NULL; k++)
            ((float *)b->values[1])[2 * i + k] = 1e6f;
    }
    return b->epoch != 0;
}

static void test_predict(void)
{
    static training_log v;
    static float out[ROWS][2], again[ROWS][2];
    train_options o = options(&v);
    train_report r, other;
    train_data all = rows_of(GCKPT_F32, x);
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(train_fit(s, model, &all, &o, &r) == 0);
    CHECK(train_predict(s, model, &all, &o, out[0], &r) == 0 && r.loss > 0 && r.accuracy == -1);
    all.column[0].type = TRAIN_U8;
    all.column[0].values = bytes;
    CHECK(train_predict(s, model, &all, &o, again[0], &other) == 0 && other.loss == r.loss);
    CHECK(memcmp(out, again, sizeof out) == 0);
    memset(again, 0, sizeof again);
    all.column[1].values = NULL;
    CHECK(train_predict(s, model, &all, &o, again[0], &other) == 0 && other.loss == 0);
    CHECK(memcmp(out, again, sizeof out) == 0);
    memset(again, 0, sizeof again);
    all.column[0].values = NULL; /* the callback fills this column, and the last one only if known is 0 */
    o.batch = guess;
    CHECK(train_predict(s, model, &all, &o, again[0], &other) == 0 && other.loss > 1e6);
    o.known = 1;
    CHECK(train_predict(s, model, &all, &o, again[0], &other) == 0 && other.loss == 0);
    CHECK(memcmp(out, again, sizeof out) == 0);
    gckpt_store_free(s);
}

/* ---- schedules ---- */
static void schedule(schedule_kind kind, int warmup, int steps, float least, const double *want, const char *what)
{
    for (int i = 0; i < steps; i++) {
        const int ahead = i < warmup && kind != SCHEDULE_ONE_CYCLE; /* our warm-up is one step ahead of `want` */
        const double got = (double)schedule_lr(kind, i, warmup, steps, 5e-3f, least);
        CHECK_MSG(fabs(got - want[i + ahead]) <= 2e-9, "%s, step %d: %.9g, not %.9g", what, i, got, want[i + ahead]);
    }
}

static void test_schedules(void)
{
    schedule(SCHEDULE_CONSTANT, 6, 40, 0, golden_constant, "constant");
    schedule(SCHEDULE_LINEAR, 6, 40, 0, golden_linear, "linear");
    schedule(SCHEDULE_LINEAR, 6, 40, 1e-4f, golden_linear_least, "linear to min_lr");
    schedule(SCHEDULE_LINEAR, 0, 40, 1e-4f, golden_linear_torch, "linear, PyTorch");
    schedule(SCHEDULE_COSINE, 6, 40, 0, golden_cosine, "cosine");
    schedule(SCHEDULE_COSINE, 6, 40, 1e-4f, golden_cosine_least, "cosine to min_lr");
    schedule(SCHEDULE_COSINE, 0, 40, 1e-4f, golden_cosine_torch, "cosine, PyTorch");
    schedule(SCHEDULE_ONE_CYCLE, 0, 40, 0, golden_one_cycle, "one cycle");
    schedule(SCHEDULE_ONE_CYCLE, 0, 27, 0, golden_one_cycle_27, "one cycle of 27");
    schedule(SCHEDULE_ONE_CYCLE, 6, 40, 1e-4f, golden_one_cycle_warmup, "one cycle, warmup");
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_ONE_CYCLE; kind++)
        for (int steps = 0; steps < 6; steps++)
            for (int warmup = 0; warmup < 6; warmup++)
                for (int at = 0; at < 8; at++) {
                    const float lr = schedule_lr((schedule_kind)kind, at, warmup, steps, 0.5f, 0.25f);
                    CHECK_MSG(lr >= 0.02f && lr <= 0.5f, "%d, step %d of %d, warmup %d: %g", kind, at, steps, warmup,
                              (double)lr);
                    CHECK(at < steps || at < warmup || lr == (kind == SCHEDULE_CONSTANT ? 0.5f : 0.25f));
                }
}

/* ---- training in ticks ---- */
static void test_ticks(void)
{
    static training_log v;
    const train_data data = rows_of(GCKPT_F32, NULL);
    train_options o = options(&v);
    train_report r, other;
    o.batch = fill;
    v.augments = 1;
    const uint64_t hash = train(&data, &o, 0, &r);
    for (int instructions = 1; instructions < 40; instructions += 7)
        CHECK(train(&data, &o, instructions, &other) == hash && same(&r, &other) && v.steps == EPOCHS * STEPS);
    /* Ticks of mixed sizes; a tick of 0 instructions runs the rest of a step. */
    train_run t;
    gckpt_store *s = gckpt_store_new(NULL);
    int ticks = 0, more = train_begin(&t, s, model, &data, &o, &other) == 0;
    for (; more; ticks++)
        more = train_tick(&t, ticks % 5 == 0 ? 0 : ticks % 3) > 0;
    CHECK(train_end(&t) == 0 && gckpt_store_hash(s) == hash && same(&r, &other));
    CHECK(ticks > EPOCHS * STEPS + 20);
    gckpt_store_free(s);
    s = gckpt_store_new(NULL); /* a training that ends before its first tick */
    CHECK(train_begin(&t, s, model, &data, &o, &other) == 0 && train_end(&t) == 0);
    CHECK(gckpt_store_step(s) == 0 && other.epoch == 0);
    gckpt_store_free(s);
}

/* Returns the contents of the log file. */
static const char *got(void)
{
    static char text[4000];
    FILE *f = fopen(log_path, "rb");
    text[f != NULL ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f != NULL)
        fclose(f);
    return text;
}

static volatile sig_atomic_t terminated;
static void terminate(int number) { terminated = number; }

/* A signal stops training after some ticks: within a step, an epoch or a validation. Then training resumes in a new
 * store, is stopped after as many ticks, and so on. The final weights and the log must be those of a training without
 * stops. */
static void test_resume(void)
{
    static training_log v;
    static const int sizes[] = { 0, 1, 5 };
    const train_data data = rows_of(GCKPT_F32, NULL);
    train_options o = options(&v);
    train_report r, other;
    char best[64], whole[2000];
    snprintf(best, sizeof best, "%s.best", path);
    o.batch = fill;
    v.augments = 1;
    o.log = log_path;
    const uint64_t hash = train(&data, &o, 0, &r);
    snprintf(whole, sizeof whole, "%s", got());
    o.save = path;
    signal(SIGTERM, terminate);
    for (int piece = 0; piece < 3; piece++)
        for (int after = 1; after < 60; after = after * 2 + piece) {
            remove(path);
            remove(best);
            int more = 1, times = 0;
            for (const int least = sizes[piece] == 0 ? 4 : 60 /* a tick of 0 runs a whole validation */;
                 more && times < 400; times++) {
                train_run t;
                gckpt_store *s = gckpt_store_new(NULL);
                terminated = 0;
                CHECK_MSG(train_begin(&t, s, model, &data, &o, &other) == 0, "%s", other.error);
                for (int ticks = 1; more && !terminated; ticks++) {
                    more = train_tick(&t, sizes[piece]) > 0;
                    if (ticks == after + least)
                        raise(SIGTERM);
                }
                CHECK_MSG(train_end(&t) == 0, "%s", other.error);
                CHECK(more || (gckpt_store_hash(s) == hash && same(&r, &other)));
                gckpt_store_free(s);
            }
            CHECK_MSG(!more && (after < 30 || piece == 0 || times > 1), "%d: %d times", after, times);
            CHECK_MSG(strcmp(got(), whole) == 0, "%s instead of %s", got(), whole);
        }
    signal(SIGTERM, SIG_DFL);
    remove(path);
    remove(best);
    remove(log_path);
}

/* With save_steps, a killed process can resume from its last checkpoint. This callback copies that checkpoint at step
 * 14, as if the process were killed there. */
static int copy_at(void *user, const train_report *now)
{
    const int enough = watch(user, now);
    static char all[1 << 20];
    if (((training_log *)user)->steps != 14) /* step 14 is step 5 of epoch 2; the last checkpoint is of step 4 */
        return enough;
    for (int i = 0; i < 2; i++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "%s%s", path, i ? ".best" : "");
        snprintf(to, sizeof to, "build/test_loop.copy%s", i ? ".best" : "");
        FILE *f = fopen(from, "rb"), *g = fopen(to, "wb");
        CHECK(f != NULL && g != NULL);
        if (f == NULL || g == NULL)
            return 1;
        const size_t n = fread(all, 1, sizeof all, f);
        CHECK(n > 0 && n < sizeof all && fwrite(all, 1, n, g) == n);
        fclose(f), fclose(g);
    }
    return enough;
}

static void test_killed(void)
{
    static training_log v;
    const train_data data = rows_of(TRAIN_U8, bytes);
    train_options o = options(&v);
    train_report r, other;
    o.save = path;
    o.save_steps = 4;
    o.watch = copy_at;
    const uint64_t hash = train(&data, &o, 0, &r);
    o.save = "build/test_loop.copy";
    o.watch = watch;
    CHECK(train(&data, &o, 0, &other) == hash && same(&r, &other) && v.steps == EPOCHS * STEPS - STEPS - 4);
    remove("build/test_loop.copy"), remove("build/test_loop.copy.best");
    /* Within the first epoch there is no file of the best weights yet; such a file of another training must do no
     * harm. */
    remove(path);
    v.stop_at = 3;
    train(&data, &o, 0, &other);
    CHECK(v.steps == 3);
    FILE *f = fopen("build/test_loop.copy.best", "wb");
    CHECK(f != NULL && fwrite("chaff", 1, 5, f) == 5 && fclose(f) == 0);
    v.stop_at = 0;
    CHECK(train(&data, &o, 0, &other) == hash && same(&r, &other) && v.steps == EPOCHS * STEPS - 3);
    remove("build/test_loop.copy"), remove("build/test_loop.copy.best");
    char best[64];
    snprintf(best, sizeof best, "%s.best", path);
    remove(best);
}

/* ---- the log ---- */
static void put(const char *text)
{
    FILE *f = fopen(log_path, "wb");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void test_log(void)
{
    static training_log v;
    train_data data = rows_of(GCKPT_F32, x);
    train_options o = options(&v);
    train_report r;
    char first[200], whole[2000], torn[2100];
    o.log = log_path;
    put(""); /* an empty file is a valid log */
    CHECK(train(&data, &o, 0, &r) != 0 && r.log_failed == 0);
    snprintf(whole, sizeof whole, "%s", got());
    snprintf(first, sizeof first, "epoch,step,lr,loss,validation,accuracy,best\n1,9,%.9g,",
             (double)schedule_lr(o.schedule, STEPS - 1, 0, STEPS * EPOCHS, 2e-2f, 0));
    CHECK_MSG(strncmp(whole, first, strlen(first)) == 0 && strstr(whole, ",,1\n2,18,") != NULL, "%s", whole);
    char last[100];
    snprintf(last, sizeof last, ",%.9g,%.9g,,1\n", r.loss, r.validation);
    CHECK_MSG(strstr(whole, last) != NULL, "%s; wanted %s", whole, last);
    CHECK(train(&data, &o, 0, &r) != 0 && strcmp(got(), whole) == 0); /* the log was started from the beginning */
    /* Training that resumes after epoch 2 must remove an incomplete line and lines of later epochs, and must not repeat
     * the header. */
    o.save = path;
    v.stop_at = 2 * STEPS + 1;
    CHECK(train(&data, &o, 0, &r) != 0);
    const size_t two = (size_t)(strstr(whole, "\n3,") + 1 - whole);
    CHECK(strncmp(got(), whole, two) == 0 && strlen(got()) == two);
    snprintf(torn, sizeof torn, "%s1,9,0.1", whole);
    put(torn);
    v.stop_at = 0;
    CHECK(train(&data, &o, 0, &r) != 0 && v.steps == 2 * STEPS - 1);
    CHECK_MSG(strcmp(got(), whole) == 0, "%s instead of %s", got(), whole);
    remove(path);
    v.stop_at = 2 * STEPS + 1;
    CHECK(train(&data, &o, 0, &r) != 0);
    /* The incomplete line is that of the epoch to resume from. */
    snprintf(torn, sizeof torn, "%.*s2,18,0.", (int)two, whole);
    put(torn);
    v.stop_at = 0;
    CHECK(train(&data, &o, 0, &r) != 0);
    CHECK_MSG(strcmp(got(), whole) == 0, "%s instead of %s", got(), whole);
    remove(path);
    o.save = NULL;
    data.validation = 0;
    CHECK(train(&data, &o, 0, &r) != 0 && strstr(got(), ",,,1\n") != NULL);
    put("name,age\nAda,36\n");
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "test_loop.csv is not the log of a training; remove it"));
    CHECK(strcmp(got(), "name,age\nAda,36\n") == 0 && v.steps == 0);
    o.log = "build/no/such/folder.csv";
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "log: build/no/such/folder.csv: ") && v.steps == 0);
    remove(log_path);
}

#ifdef TEST_LIMITS
/* If the disk is full at the log's line of epoch 2, training must go on and report the epoch. If it is full at the
 * header of the log, training must be refused. */
static void test_full_disk(void)
{
    static training_log v;
    const train_data data = rows_of(GCKPT_F32, x);
    train_options o = options(&v);
    train_report r, other;
    struct rlimit was, small;
    const uint64_t hash = train(&data, &o, 0, &r);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 110;
    o.log = log_path;
    setrlimit(RLIMIT_FSIZE, &small);
    const uint64_t full = train(&data, &o, 0, &other);
    small.rlim_cur = 20;
    setrlimit(RLIMIT_FSIZE, &small);
    const uint64_t none = train(&data, &o, 0, &r);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_MSG(full == hash && other.log_failed == 2 && other.error[0] == 0, "%d", other.log_failed);
    CHECK_MSG(none == 0 && strstr(r.error, "log: build/test_loop.csv: ") != NULL, "%s", r.error);
    remove(log_path);
}
#endif

static void test_text(void)
{
    static const struct {
        double x;
        const char *text;
    } want[] = { { 2.07764, "2.0776" }, { 0.05764, "0.0576" }, { 0.000012, "1.2e-05" }, { 0, "0.0000" },
                 { -0.00948, "-0.00948" }, { 1234567, "1.23e+06" }, { 4321.5, "4321.5000" }, { NAN, "nan" } };
    char text[32];
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        CHECK_MSG(strstr(train_format(want[i].x, text), want[i].text) != NULL, "%s, not %s", text, want[i].text);
}

/* ---- refusals ---- */
static void test_refusals(void)
{
    static training_log v;
    train_data data = rows_of(GCKPT_F32, NULL);
    train_options o = options(&v);
    train_report r;
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "no values (options.batch can fill it)"));
    o.batch = fill;
    v.fails_at = 4;
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "options.batch returned 5: row ") &&
          strstr(r.error, " is damp"));
    CHECK(v.steps == 3);
    v.fails_at = STEPS + 2; /* the callback fails during validation */
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "rows 76 ..: options.batch returned 5: row 83 is damp"));
    o.save = path; /* if the callback fails, nothing is saved: the file keeps the checkpoint of the last epoch */
    v.fails_at = STEPS + 3 + 2;
    CHECK(train(&data, &o, 0, &r) == 0);
    v.fails_at = 0;
    CHECK(train(&data, &o, 0, &r) != 0 && v.steps == (EPOCHS - 1) * STEPS);
    remove(path);
    o.save = NULL;
    data.column[0].type = 7;
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "column 0 has type 7; allowed is GCKPT_F32, "));
    v.wrong = 0;
    o = options(&v);
    o.batch = NULL;
    data = rows_of(TRAIN_U8, bytes);
    o.hyper.lr = -1;
    CHECK(train(&data, &o, 0, &r) == 0 && strstr(r.error, "lr"));
    for (int which = 0; which < 5; which++) {
        o = options(&v);
        o.batch = NULL;
        if (which < 2)
            o.schedule = (schedule_kind)(which ? 4 : -1);
        else
            *(which == 2 ? &o.warmup : &o.save_steps) = -(which < 4);
        o.min_lr = which == 4 ? -1e-3f : 0;
        CHECK_MSG(train(&data, &o, 0, &r) == 0 && strstr(r.error, "options: schedule "), "%d: %s", which, r.error);
    }
    o = options(&v);
    o.batch = NULL;
    o.save = "build/no/such/file"; /* must be refused before the first step */
    CHECK_MSG(train(&data, &o, 0, &r) == 0 && strstr(r.error, "save: build/no/such/file.best: ") && v.steps == 0, "%s",
              r.error);
    char best[64];
    snprintf(best, sizeof best, "%s.best", path);
    remove(best);
}

/* Builds a classifier. In test_classes, a target that is out of range must be reported with its row in the data, also
 * when a step runs in ticks. */
static void classifier(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(gckpt_scale(net->in[0], 0.01f), "fc", 3);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

static void test_classes(void)
{
    static training_log v;
    static int32_t class_of[ROWS];
    train_data data = rows_of(TRAIN_U8, bytes);
    const train_column target = { "class", GCKPT_I32, 0, class_of };
    train_options o = options(&v);
    train_report r;
    data.column[1] = target;
    for (int i = 0; i < ROWS; i++)
        class_of[i] = x[i][0] > 100 ? 2 : x[i][1] > 100;
    for (int way = 0; way < 5; way++) {
        train_run t;
        gckpt_store *s = gckpt_store_new(NULL);
        const int row = way < 3 ? 41 : way < 4 ? 70 : -1; /* a training row, a validation row, or no row */
        const int32_t was = row >= 0 ? class_of[row] : 0;
        char want[64];
        snprintf(want, sizeof want, "\"class\": index 3 at row %d, position 0", row);
        if (row >= 0)
            class_of[row] = 3;
        o.micro_batch = way == 2 ? 2 : 0;
        o.epochs = row >= 0 ? EPOCHS : 30;
        int more = train_begin(&t, s, classifier, &data, &o, &r) == 0;
        while (more)
            more = train_tick(&t, way == 1 ? 3 : 0) > 0;
        CHECK_MSG(train_end(&t) == (row >= 0 ? -1 : 0) && (row < 0 || strstr(r.error, want) != NULL), "%s", r.error);
        CHECK_MSG(row >= 0 || r.accuracy > 0.7, "%g", r.accuracy);
        if (row >= 0)
            class_of[row] = was;
        gckpt_store_free(s);
    }
}

/* Builds a net with three losses of different counts: a cross-entropy counts the targets that are not -1, a sum of
 * squared outputs counts the elements, and a regulariser has no count. */
static void losses(train_net *net, void *user)
{
    static const gckpt_term none = { NULL, 0, 0 };
    classifier(net, user);
    gckpt_tensor *w =
        layers_param_shared(net->graph, "fc", "weight", gckpt_shape2(3, WIDE), (gckpt_init){ 0.1f, 0, 0 });
    gckpt_tensor *squares = gckpt_sum_loss(gckpt_mul(net->output, net->output));
    for (int i = 0; i < 2; i++)
        net->extra[i] = none;
    net->extra[0].loss = squares, net->extra[0].weight = 0.01f;
    net->extra[1].loss = gckpt_sum_loss(gckpt_mul(w, w)), net->extra[1].weight = 0.001f, net->extra[1].regulariser = 1;
    net->extra_count = 2;
}

static void crowded(train_net *net, void *user)
{
    classifier(net, user);
    net->extra_count = TRAIN_LOSSES;
}

static void test_losses(void)
{
    static training_log v;
    static int32_t class_of[ROWS];
    train_data data = rows_of(GCKPT_F32, x), alone = data;
    const train_column target = { "class", GCKPT_I32, 0, class_of };
    train_options o = options(&v);
    train_report r, other;
    uint64_t hash = 0;
    char whole[4000];
    data.column[1] = target;
    for (int i = 0; i < ROWS; i++)
        class_of[i] = i % 5 == 0 || (i > 70 && i < 77) ? -1 : x[i][0] > 100 ? 2 : x[i][1] > 100;
    o.log = log_path;
    for (int way = 0; way < 5; way++) {
        train_run t;
        o.micro_batch = way == 1 ? 2 : 0;
        o.save = way >= 2 ? path : NULL;
        gckpt_store *s = gckpt_store_new(NULL);
        int more = train_begin(&t, s, losses, &data, &o, &other) == 0;
        /* Way 2 stops within an epoch, way 3 resumes, and way 4 finds the training finished. */
        for (int k = 0; more && (way != 2 || k < 29); k++)
            more = train_tick(&t, 0) > 0;
        CHECK_MSG(train_end(&t) == 0, "%s", other.error);
        CHECK(way > 0 || (hash = gckpt_store_hash(s)) != 0);
        CHECK(way == 2 || gckpt_store_hash(s) == hash);
        r = way == 0 ? other : r;
        for (int i = 0; i < 3 && way != 2; i++)
            CHECK(r.term_loss[i] == other.term_loss[i] && r.term_validation[i] == other.term_validation[i] &&
                  r.term_validation[i] > 0);
        CHECK(way == 2 || same(&r, &other));
        if (way == 0) { /* compares with the losses of all validation rows in one batch */
            alone = data;
            alone.rows = VALID;
            alone.column[0].values = x[ROWS - VALID];
            alone.column[1].values = class_of + ROWS - VALID;
            o.plan.batch = VALID;
            CHECK(train_predict(s, crowded, &alone, &o, NULL, &other) != 0 &&
                  strcmp(other.error, "model: net->extra_count is 9; allowed is 0 to 8") == 0);
            CHECK(train_fit(s, crowded, &data, &o, &other) != 0 && strncmp(other.error, "model: ", 7) == 0);
            CHECK(train_predict(s, losses, &alone, &o, NULL, &other) == 0 && other.losses == 3);
            o.plan.batch = BATCH;
            for (int i = 0; i < 3; i++)
                CHECK_MSG(fabs(other.term_loss[i] - r.term_validation[i]) <= 1e-14 * r.term_validation[i],
                          "%d: %.17g, in batches %.17g", i, other.term_loss[i], r.term_validation[i]);
            CHECK(fabs(other.loss - r.validation) <= 1e-14 * r.validation);
            const double sum = r.term_loss[0] + (double)0.01f * r.term_loss[1] + (double)0.001f * r.term_loss[2];
            CHECK(fabs(sum - r.loss) <= 1e-14 * sum && r.losses == 3);
            FILE *f = fopen(log_path, "rb");
            char line[300] = "";
            CHECK(f != NULL && fgets(line, sizeof line, f) &&
                  strcmp(line, "epoch,step,lr,loss,validation,accuracy,best,loss.0,"
                               "validation.0,loss.1,validation.1,loss.2,validation.2\n") == 0);
            int commas = 0;
            for (const char *c = f != NULL ? fgets(line, sizeof line, f) : NULL; c != NULL && *c != 0; c++)
                commas += *c == ',';
            CHECK_MSG(commas == 12, "%s", line);
            fclose(f);
        }
        if (way == 0)
            snprintf(whole, sizeof whole, "%s", got());
        CHECK_MSG(way == 2 || strcmp(got(), whole) == 0, "%d: %s instead of %s", way, got(), whole);
        gckpt_store_free(s);
    }
    char best[64];
    snprintf(best, sizeof best, "%s.best", path);
    remove(path), remove(best), remove(log_path);
}

int main(void)
{
    uint32_t state = 3;
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < WIDE; k++) {
            state = state * 1664525u + 1013904223u;
            x[i][k] = bytes[i][k] = (unsigned char)(state >> 24);
            halves[i][k] = (uint16_t)((state >> 10 & 0x83ff) | (10 + (state >> 28)) << 10);
            of_halves[i][k] = train_from_f16(halves[i][k]);
            y[i][k % 2] += sinf(x[i][k] / 40) / 4;
        }
    test_halves();
    test_augmentation();
    test_rows();
    test_predict();
    test_schedules();
    test_ticks();
    test_resume();
    test_killed();
    test_log();
#ifdef TEST_LIMITS
    test_full_disk();
#endif
    test_text();
    test_refusals();
    test_classes();
    test_losses();
    CHECK(live_blocks == 0);
    return check_report("loop");
}
