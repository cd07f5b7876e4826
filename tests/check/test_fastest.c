/* test_fastest.c - tests gckpt_fit_timed, which times trial steps and returns the fastest plan: its trials, the plan it
 * returns, that the store is unchanged afterwards, that every choice trains to the same bits, its errors, and its
 * result if an allocation fails. Times are not real: the clock is a counter or returns prepared values. */
#include "gradckpt.h"

#include "util.h"

enum { B = 12, T = 5, C = 8, V = 11 };

static int32_t tokens[B * T], targets[B * T];

typedef struct {
    int layers, mixes;
    int64_t refuse; /* number of rows for which the build callback refuses, or 0 */
    gckpt_feed feeds[2];
    gckpt_tensor *slow; /* output of the op "slow" in the graph that build_slow builds */
} model;

static int build(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    m->feeds[0].input = gckpt_id(in), m->feeds[1].input = gckpt_id(target);
    for (int i = 0; i < m->layers; i++)
        x = gckpt_checkpoint(util_block, x, &i);
    if (m->mixes)
        x = gckpt_sub(x, gckpt_mean(x, 0));
    term->loss = gckpt_linear_cross_entropy(x, table, target, NULL);
    term->weight = 1;
    return rows == m->refuse ? -1 : 1;
}

static model plain(void)
{
    model m = { 2, 0, 0, { { 0, tokens }, { 0, targets } }, NULL };
    return m;
}

/* A clock that advances by *user at each reading. */
static double ticks;
static double tick(void *user) { return ticks += *(double *)user; }
static double second = 1;

static gckpt_fit_timing timing(const model *m, double limit)
{
    gckpt_fit_timing t = { .clock = tick, .user = &second, .limit = limit, .feeds = m->feeds,
            .feed_count = 2 };
    return t;
}

/* Returns a hash of the values and optimiser state of all parameters and of the store's step number. */
static uint64_t everything(const gckpt_store *s)
{
    gckpt_parameter q;
    uint64_t hash = gckpt_store_hash(s) ^ gckpt_store_step(s) ^ (uint64_t)gckpt_store_bytes(s) << 20;
    for (int i = 0; gckpt_store_peek(s, i, &q) == GCKPT_OK; i++)
        for (int k = 0; k < 4 && q.state[k]; k++)
            for (int64_t j = 0; j < q.elements; j++)
                hash = (hash ^ bits_of(q.state[k][j])) * 1099511628211u;
    return hash;
}

/* Returns a hash of the weights after three steps. */
static uint64_t train(gckpt_store *s, const gckpt_plan *p, const model *m)
{
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_hyper hyper = { .lr = 0.01f };
    for (int i = 0; i < 3; i++)
        CHECK(gckpt_step(e, m->feeds, 2, B, &hyper, NULL) == GCKPT_OK);
    gckpt_exec_free(e);
    return gckpt_store_hash(s);
}

/* Checks the list of trials in t: trial 0 is the plan of gckpt_fit, all plans are within the budget, and no plan occurs
 * twice. The returned plan p must be at most 1/64 slower than the fastest trial, and no earlier trial may be that
 * fast. */
static void check_report_of(const gckpt_fit_timing *t, const gckpt_plan *p, const gckpt_plan *fit,
                            size_t budget)
{
    const gckpt_plan_info fit_info = gckpt_plan_describe(fit);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    CHECK(t->count >= 1 && t->count <= GCKPT_MAX_TRIALS && t->fastest >= 0 && t->fastest < t->count);
    const gckpt_trial *mine = &t->trials[t->fastest], *first = &t->trials[0];
    CHECK(mine->rows == info.rows && mine->bytes == gckpt_plan_bytes(p) &&
          mine->cost == info.step_cost && mine->runs > 0);
    CHECK(first->rows == fit_info.rows && first->bytes == gckpt_plan_bytes(fit) &&
          first->cost == fit_info.step_cost);
    for (int i = 0; i < t->count; i++) {
        const gckpt_trial *a = &t->trials[i];
        CHECK_MSG(!budget || a->bytes <= budget, "trial %d: %lu bytes", i, (unsigned long)a->bytes);
        CHECK(a->cost <= first->cost + first->cost / 4 && B % a->rows == 0);
        CHECK(a->runs == 0 || a->seconds * 65 / 64 >= mine->seconds);
        CHECK(i >= t->fastest || a->seconds > mine->seconds);
        for (int k = 0; k < i; k++)
            CHECK(a->rows != t->trials[k].rows || a->cost != t->trials[k].cost);
    }
}

/* Tests budgets from too small to unlimited, with several modes and values of update_in_backward. Where gckpt_fit
 * fails, gckpt_fit_timed must fail with the same error and create no parameters. Otherwise, training with the plan of
 * gckpt_fit_timed must give the weights of a store-all plan. */
static void test_budgets(void)
{
    static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_OPTIMAL, GCKPT_STORE_ALL, GCKPT_SEGMENTS };
    model m = plain();
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
    gckpt_plan *fit = gckpt_fit(s, build, &m, B, &d, NULL);
    const size_t most = gckpt_plan_bytes(fit);
    const uint64_t hash = train(s, fit, &m);
    util_free(NULL, fit, NULL, s);
    int several = 0;
    for (int setting = 0; setting < 3 * 6 + 3 * 6; setting++) {
        if (!check_sampled((unsigned)setting, 5))
            continue;
        const int mode = setting < 18 ? 0 : setting / 6 - 2, part = setting % 6;
        d = (gckpt_plan_desc){ .mode = modes[mode], .update_in_backward = mode ? 0 : setting / 6 };
        d.budget = part == 5 ? 0 : most * (size_t)(part + 1) / 5;
        s = gckpt_store_new(NULL);
        fit = gckpt_fit(s, build, &m, B, &d, NULL);
        char text[512] = "";
        strncat(text, gckpt_error_text(s), sizeof text - 1);
        gckpt_result why = gckpt_error(s);
        gckpt_store_free(s);
        s = gckpt_store_new(NULL);
        gckpt_fit_timing t = timing(&m, 100);
        ticks = 0;
        gckpt_plan *p = gckpt_fit_timed(s, build, &m, B, &d, NULL, &t);
        CHECK_MSG(!p == !fit, "setting %d: %s", setting, gckpt_error_text(s));
        CHECK_MSG(gckpt_error(s) == why && !strcmp(text, gckpt_error_text(s)), "%s / %s", text,
                  gckpt_error_text(s));
        if (p) {
            check_report_of(&t, p, fit, d.budget);
            several += t.count > 3;
            CHECK_MSG(ticks < 110, "%g ticks for a limit of 100", ticks);
            CHECK(train(s, p, &m) == hash);
        } else {
            CHECK(gckpt_store_count(s) == 0 && t.count == 0);
        }
        gckpt_plan_free(fit);
        util_free(NULL, p, NULL, s);
    }
    CHECK_MSG(several > (check_iterations(9) > 1 ? 8 : 0), "%d", several);
}

/* A model whose bytes are mostly weights. */
static int build_heavy(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    gckpt_init init = { 0.1f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 64)), *x = in;
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, 64));
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" };
    for (int i = 0; i < 6; i++)
        x = gckpt_gelu(gckpt_linear(x, gckpt_param(g, names[i], gckpt_shape2(64, 64), init), NULL));
    m->feeds[0].input = gckpt_id(in), m->feeds[1].input = gckpt_id(target);
    term->loss = gckpt_mean_squared_error(x, target, NULL);
    term->weight = 1;
    return 1;
}

/* Plans with and without bf16 copies of weights (desc.bf16.copy_weights) must lead to the same list of trials, except
 * for the bytes of the copies. */
static void test_copies(void)
{
    static float x[B * 64];
    model m = { .feeds = { { 0, x }, { 0, x } } };
    gckpt_fit_timing t[2];
    size_t copies = 0;
    for (int with = 0; with < 2; with++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_plan_desc d = { .bf16.precision = GCKPT_BF16, .bf16.copy_weights = with, .update_in_backward = 1 };
        t[with] = timing(&m, 100);
        ticks = 0;
        gckpt_plan *p = gckpt_fit_timed(s, build_heavy, &m, B, &d, NULL, &t[with]);
        copies = gckpt_plan_kind_bytes(p, GCKPT_BYTES_COPIES);
        CHECK_MSG(p && (copies > 0) == with, "%s", gckpt_error_text(s));
        util_free(NULL, p, NULL, s);
    }
    CHECK_MSG(t[0].count > 2 && t[0].count == t[1].count, "%d trials, %d with copies", t[0].count, t[1].count);
    for (int i = 0; i < t[0].count && i < t[1].count; i++) {
        const gckpt_trial *a = &t[0].trials[i], *b = &t[1].trials[i];
        CHECK_MSG(a->rows == b->rows && a->cost == b->cost && (a->bytes == b->bytes || a->bytes + copies == b->bytes),
                  "trial %d: %zu bytes, %zu with copies", i, a->bytes, b->bytes);
    }
}

/* gckpt_fit_timed called before training must leave the parameters without optimiser state. Called between two steps,
 * it must not change the bits of the steps after it. */
static void test_store(void)
{
    model m = plain();
    uint64_t hash[2];
    for (int timed = 0; timed < 2; timed++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_plan_desc d = { 0 };
        gckpt_plan *p = gckpt_fit(s, build, &m, B, &d, NULL);
        for (int i = 0; i < 2; i++) {
            uint64_t before = everything(s);
            gckpt_fit_timing t = timing(&m, 200);
            gckpt_plan *q = timed ? gckpt_fit_timed(s, build, &m, B, &d, NULL, &t) : NULL;
            CHECK_MSG(everything(s) == before, "%d", i);
            gckpt_plan_free(q);
            hash[timed] = train(s, p, &m);
        }
        CHECK(gckpt_store_step(s) == 6);
        util_free(NULL, p, NULL, s);
    }
    CHECK(hash[0] == hash[1]);
}

/* Tests time limits of 0, below 0 and 1e-9 s, and clocks that stand still, run backwards or leap. */
static void test_clock(void)
{
    static const double steps[] = { 1, 1, 1, 0, -1, 1e300 }, limits[] = { 0, -1, 1e-9, 1, 1, 1 };
    for (int i = 0; i < 6; i++) {
        model m = plain();
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_plan_desc d = { .budget = 40000 };
        gckpt_fit_timing t = timing(&m, limits[i]);
        double step = steps[i];
        t.user = &step;
        t.count = 77;
        ticks = 0;
        gckpt_plan *p = gckpt_fit_timed(s, build, &m, B, &d, NULL, &t);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        gckpt_plan *fit = gckpt_fit(s, build, &m, B, &d, NULL);
        const gckpt_plan_info fit_info = gckpt_plan_describe(fit);
        CHECK_MSG(p && fit && gckpt_plan_bytes(p) <= d.budget, "%s", gckpt_error_text(s));
        if (i < 2)
            CHECK(t.count == 0 && t.fastest == 0 && ticks == 0);
        else
            check_report_of(&t, p, fit, d.budget);
        if (i < 3)
            CHECK(info.rows == fit_info.rows &&
                  info.step_cost == fit_info.step_cost);
        gckpt_plan_free(fit);
        util_free(NULL, p, NULL, s);
    }
}

/* of_rows[r]: time by which a forward of the op "slow" on r rows advances the clock. */
static double of_rows[B + 1];
static gckpt_result same_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void slow_forward(const gckpt_call *call)
{
    ticks += of_rows[call->rows];
    memcpy(call->out, call->in[0].data, (size_t)count_of(&call->shape) * sizeof(float));
}
static void slow_backward(const gckpt_call *call)
{
    const size_t n = (size_t)count_of(&call->shape);
    for (size_t i = 0; i < n && call->in[0].grad; i++)
        call->in[0].grad[i] = call->grad_out[i] + (call->in[0].accumulate ? call->in[0].grad[i] : 0);
}

static int build_slow(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    static const gckpt_op slow = { .name = "slow", .shape = same_shape, .forward = slow_forward,
            .backward = slow_backward };
    model *m = (model *)user;
    gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    x = m->slow = gckpt_apply(&slow, &x, 1, NULL, 0);
    m->feeds[0].input = gckpt_id(in), m->feeds[1].input = gckpt_id(target);
    term->loss = gckpt_linear_cross_entropy(x, table, target, NULL);
    term->weight = 1;
    return 1;
}

/* A cost callback: the estimated time of a batch is the same for all micro-batch sizes. */
static gckpt_result even(gckpt_graph *g, const gckpt_term *terms, int count, gckpt_cost *costs, int n,
                         void *user)
{
    const gckpt_shape shape = gckpt_shape_of(((model *)user)->slow);
    (void)g, (void)terms, (void)count;
    for (int i = 0; i < n; i++)
        costs[i].forward = costs[i].backward = 1000 * (uint64_t)shape.d[0];
    return GCKPT_OK;
}

/* If the clock makes one micro-batch size twice as fast as all others, gckpt_fit_timed must choose that size. If the
 * size is only 1 % faster than the others, gckpt_fit_timed must return the plan of trial 0. */
static void test_choice(void)
{
    for (int64_t rows = 1; rows <= B; rows++) {
        if (B % rows != 0)
            continue;
        model m = plain();
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_fit_timing t = timing(&m, 1e5);
        for (int i = 1; i <= B; i++)
            of_rows[i] = i == rows ? 10 * i : 20 * i;
        ticks = 0;
        gckpt_plan *p = gckpt_fit_timed(s, build_slow, &m, B, NULL, even, &t);
        CHECK_MSG(p && gckpt_plan_describe(p).rows == rows, "%s", gckpt_error_text(s));
        CHECK(t.count >= 6 && t.trials[t.fastest].runs > t.trials[t.fastest ? 0 : 1].runs);
        gckpt_plan_free(p);
        for (int i = 1; i <= B; i++) /* a difference of 1 % counts as noise */
            of_rows[i] = i == rows ? 990 * i : 1000 * i;
        t.limit = 1e7;
        p = gckpt_fit_timed(s, build_slow, &m, B, NULL, even, &t);
        CHECK_MSG(p && t.fastest == 0, "%s", gckpt_error_text(s));
        util_free(NULL, p, NULL, s);
    }
}

/* Builds a net with large activations for test_arena. The executors of all trials share one arena, so the peak of the
 * memory must be at most a fifth larger than the bytes of the largest trial. */
static int build_wide(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    gckpt_init init = { 0.3f, 0, 1 };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 4096));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, 4096)), *x = in;
    for (int i = 0; i < 4; i++)
        x = gckpt_gelu(gckpt_mul(x, gckpt_param(g, "gain", gckpt_shape1(4096), init)));
    m->feeds[0].input = gckpt_id(in), m->feeds[1].input = gckpt_id(target);
    term->loss = gckpt_mean_squared_error(x, target, NULL);
    term->weight = 1;
    return 1;
}

static void test_arena(void)
{
    static float x[B * 4096];
    heap h = { 0 };
    model m = { .feeds = { { 0, x }, { 0, x } } };
    gckpt_exec_desc how = { .memory = heap_memory(&h) };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_fit_timing t = timing(&m, 200);
    t.exec = &how;
    ticks = 0;
    gckpt_plan *p = gckpt_fit_timed(s, build_wide, &m, B, NULL, NULL, &t);
    size_t most = 0;
    for (int i = 0; i < t.count; i++)
        most = t.trials[i].bytes > most ? t.trials[i].bytes : most;
    CHECK_MSG(p && t.count > 3 && h.peak > most / 2 && h.peak < most + most / 5,
              "%d trials, %lu bytes for %lu", t.count, (unsigned long)h.peak, (unsigned long)most);
    CHECK(h.blocks == 0);
    gckpt_plan_free(p);
    gckpt_plan_desc d = { .update_in_backward = 1 }; /* trials update nothing, so skip_nonfinite is allowed */
    how.skip_nonfinite = 1;
    p = gckpt_fit_timed(s, build_wide, &m, B, &d, NULL, &t);
    CHECK_MSG(p && gckpt_plan_describe(p).update_in_backward, "%s", gckpt_error_text(s));
    util_free(NULL, p, NULL, s);
}

/* Each invalid call returns an error whose text names the cause, and leaves the store unchanged, whether or not the
 * store had parameters and state before. */
static void test_errors(void)
{
    static unsigned char room[1 << 16];
    static const struct {
        const char *says;
        gckpt_result result;
    } cases[] = {
        { "set timed->clock", GCKPT_E_ARG },     { "set timed->clock", GCKPT_E_ARG },
        { "memory.memory NULL", GCKPT_E_ARG },   { "not fed", GCKPT_E_ARG },
        { "takes 0 to 10", GCKPT_E_DATA },       { "another optimiser", GCKPT_E_ARG },
        { "build is NULL", GCKPT_E_ARG },        { "too small", GCKPT_E_BUDGET },
        { "custom_optimiser", GCKPT_E_ARG },        { "the arena given", GCKPT_E_ARG },
        { "every divisor", GCKPT_E_ARG },
    };
    model m = plain();
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(gckpt_fit_timed(NULL, build, &m, B, NULL, NULL, NULL) == NULL);
    gckpt_plan *p = gckpt_fit(s, build, &m, B, NULL, NULL);
    train(s, p, &m);
    gckpt_plan_free(p);
    const uint64_t before = everything(s);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        gckpt_fit_timing t = timing(&m, 100);
        gckpt_plan_desc d = { 0 };
        gckpt_exec_desc how = { 0 };
        gckpt_build_fn made_by = i == 6 ? NULL : build;
        t.exec = &how;
        t.clock = i == 1 ? NULL : tick;
        t.feed_count = i == 3 ? 1 : 2;
        d.budget = i == 7;
        how.memory.memory = i == 2 ? room : NULL;
        how.memory.size = sizeof room;
        how.arena = i == 9 ? room : NULL;
        how.arena_size = 64;
        tokens[7] = i == 4 ? V : 0;
        m.refuse = i == 10;
        d.optimiser = i == 5 ? GCKPT_MOMENTUM : GCKPT_ADAMW;
        if (i == 8)
            d.optimiser = GCKPT_CUSTOM_OPTIMISER;
        p = gckpt_fit_timed(s, made_by, &m, i == 10 ? 1 : B, &d, NULL, i ? &t : NULL);
        CHECK_MSG(!p && gckpt_error(s) == cases[i].result &&
                      strstr(gckpt_error_text(s), cases[i].says) != NULL,
                  "case %d: %s", i, gckpt_error_text(s));
        CHECK_MSG(everything(s) == before, "case %d", i);
        gckpt_plan_free(p);
    }
    tokens[7] = 0;
    m = plain();
    m.mixes = 1; /* a graph whose rows depend on each other is never split into micro-batches */
    gckpt_fit_timing t = timing(&m, 100);
    p = gckpt_fit_timed(s, build, &m, B, NULL, NULL, &t);
    CHECK_MSG(p && gckpt_plan_describe(p).rows == B && t.count >= 1, "%s", gckpt_error_text(s));
    for (int i = 0; i < t.count; i++)
        CHECK(t.trials[i].rows == B);
    gckpt_plan_free(p);
    m = plain();
    m.refuse = 6; /* the build callback refuses a micro-batch of 6 rows */
    p = gckpt_fit_timed(s, build, &m, B, NULL, NULL, &t);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(s));
    for (int i = 0; i < t.count; i++)
        CHECK(t.trials[i].rows != 6);
    CHECK(everything(s) == before);
    util_free(NULL, p, NULL, s);
}

/* A clock whose every step seems longer than the step before. At its reading number spoil_at it makes tokens[7] an
 * invalid index. */
static int reads, spoil_at;
static double spoiling(void *user)
{
    (void)user;
    tokens[7] = ++reads >= spoil_at ? V : 0;
    return ticks += 1 + 0.01 * reads;
}

/* If a trial fails after other trials have run, gckpt_fit_timed returns its error and leaves the store unchanged. */
static void test_late_failure(void)
{
    model m = plain();
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_plan *p = gckpt_fit(s, build, &m, B, NULL, NULL);
    train(s, p, &m);
    gckpt_plan_free(p);
    const uint64_t before = everything(s);
    int late = 0;
    for (spoil_at = 1, p = NULL; !p && spoil_at < 100; spoil_at += 3) {
        gckpt_fit_timing t = timing(&m, 30);
        t.clock = spoiling;
        ticks = reads = 0;
        p = gckpt_fit_timed(s, build, &m, B, NULL, NULL, &t);
        if (!p)
            CHECK_MSG(gckpt_error(s) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "fit_timed: ") &&
                          strstr(gckpt_error_text(s), "takes 0 to 10"),
                      "read %d: %s", spoil_at, gckpt_error_text(s));
        CHECK_MSG(everything(s) == before, "read %d", spoil_at);
        late += !p && t.trials[0].runs > 0;
    }
    CHECK_MSG(p && late > 2, "%d late, %d reads", late, reads);
    tokens[7] = 0;
    util_free(NULL, p, NULL, s);
}

/* If the n-th allocation fails, gckpt_fit_timed returns a plan, or GCKPT_E_MEMORY with the store unchanged; no memory
 * leaks. */
static void test_allocations(void)
{
    int worked = 0, failed = 0;
    for (long n = 1; !worked && n < 200000; n += 1 + n / 10) {
        heap h = { 0 };
        model m = plain();
        gckpt_store_desc sd = { .memory = heap_memory(&h) };
        gckpt_exec_desc how = { .memory = sd.memory };
        gckpt_plan_desc d = { .memory = sd.memory, .budget = 20000 };
        gckpt_fit_timing t = timing(&m, 60);
        m.layers = 1;
        t.exec = &how;
        ticks = 0;
        gckpt_store *s = gckpt_store_new(&sd);
        h.fail_at = h.calls + n;
        gckpt_plan *p = gckpt_fit_timed(s, build, &m, B, &d, NULL, &t);
        worked = h.calls < h.fail_at;
        h.fail_at = 0;
        CHECK(!worked || p);
        failed += !p;
        if (!p)
            CHECK_MSG(gckpt_error(s) == GCKPT_E_MEMORY && gckpt_store_count(s) == 0,
                      "allocation %ld: %s", n, gckpt_error_text(s));
        else
            CHECK(gckpt_error(s) == GCKPT_OK && gckpt_plan_bytes(p) <= d.budget);
        util_free(NULL, p, NULL, s);
        CHECK_MSG(h.blocks == 0 && h.wrong_sizes == 0, "allocation %ld: %ld blocks leaked", n,
                  h.blocks);
    }
    CHECK(worked && failed > 10);
}

int main(void)
{
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (i * 7 + i / 3) % V;
        targets[i] = i % 9 == 4 ? -1 : (i * 5 + 1) % V;
    }
    test_budgets();
    test_copies();
    test_store();
    test_clock();
    test_choice();
    test_arena();
    test_errors();
    test_late_failure();
    test_allocations();
    return check_report("test_fastest");
}
