/* test_fit.c - compares fit_plan with brute force over micro-batches, update rules and plans, and checks its
 * errors. */
#include "gradckpt.h"

#include "util.h"
#include "examples/tune.h"

static fit_error why; /* of the latest fit_plan */

/* Returns the least budget that the latest error names. */
static size_t least_named(void)
{
    const char *at = strstr(why.text, "at least ");
    return at ? (size_t)strtoull(at + strlen("at least "), NULL, 10) : 0;
}

enum { B = 12, T = 5, C = 8, V = 11 };

static int32_t tokens[B * T], targets[B * T];

/* Options of build(), its `user` argument; NULL selects the plain model. */
typedef struct {
    int layers, terms, calls, measured;
    /* Each field is a number of rows for which build() does something else. refuse: it returns a negative number;
     * spoil: it causes a graph error; odd: it builds another graph; junk: it adds another parameter. */
    int64_t refuse, spoil, odd, junk;
    int64_t too_many, mixes;
    gckpt_result measure_result;
    gckpt_store *store;                 /* for measure                                                           */
    int input, target;                  /* ids                                                                   */
} model;

static int build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    model *m = (model *)user;
    gckpt_init init = { 0.3f, 0, 0 };
    m->calls++;
    const int64_t asked = rows;
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init), *x = gckpt_embed(table, in);
    m->input = gckpt_id(in), m->target = gckpt_id(target);
    for (int i = 0; i < m->layers; i++)
        x = gckpt_checkpoint(util_block, x, &i);
    if (asked == m->junk)
        gckpt_param(g, "junk", gckpt_shape1(1000), init);
    if (asked == m->odd)
        x = gckpt_gelu(x);
    if (asked == m->spoil)
        x = gckpt_add(x, table);
    if (m->mixes)
        x = gckpt_sub(x, gckpt_name(gckpt_mean(x, 0), "batch mean"));
    terms[0].loss = gckpt_linear_cross_entropy(x, table, target, NULL);
    terms[0].weight = 1;
    if (m->terms > 1) {
        terms[1].loss = gckpt_sum_loss(gckpt_mul(table, table));
        terms[1].weight = 0.01f;
        terms[1].regulariser = 1;
    }
    return asked == m->refuse ? -1 : asked == m->too_many ? 1000 : m->terms;
}

static model plain(void)
{
    model m = { .layers = 3, .terms = 1 };
    return m;
}

/* Returns a hash of the store's weights after three steps with the plan. */
static uint64_t train(gckpt_store *s, const gckpt_plan *p, const model *m)
{
    gckpt_exec_desc ed = { .debug = GCKPT_DEBUG_MEASURE };
    gckpt_exec *e = gckpt_exec_new(p, s, &ed);
    gckpt_feed feeds[2] = { { m->input, tokens }, { m->target, targets } };
    gckpt_hyper hyper = { .lr = 0.01f };
    for (int i = 0; i < 3; i++)
        CHECK(gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_OK);
    CHECK(gckpt_bytes_measured(e) == gckpt_plan_bytes(p));
    gckpt_exec_free(e);
    return gckpt_store_hash(s);
}

/* Finds by gckpt_plan_new, over all micro-batch sizes and update rules, the least cost of a step, and the fewest
 * bytes of a plan with this cost. Returns the number of rows of that plan. */
static int brute_force(model *m, const gckpt_plan_desc *desc, uint64_t *work, size_t *bytes, int64_t *rows,
                       int *in_backward)
{
    int found = 0;
    for (int64_t n = B; n > 0; n--) {
        for (int rule = 0; rule < 2 && B % n == 0; rule++) {
            gckpt_store *s = gckpt_store_new(NULL);
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_term terms[FIT_MAX_TERMS];
            gckpt_plan_desc d = *desc;
            memset(terms, 0, sizeof terms);
            int count = build(g, n, terms, m);
            d.batch = B;
            d.update_in_backward = rule;
            int allowed = rule ? desc->update_in_backward && n == B : desc->update_in_backward != 1;
            gckpt_plan *p = allowed ? gckpt_plan_new(g, terms, count, &d) : NULL;
            uint64_t w = gckpt_plan_describe(p).step_cost;
            if (p && (!found || w < *work || (w == *work && gckpt_plan_bytes(p) < *bytes))) {
                found = 1;
                *work = w;
                *bytes = gckpt_plan_bytes(p);
                *rows = n;
                *in_backward = rule;
            }
            util_free(NULL, p, g, s);
        }
    }
    return found;
}

/* The test below compares fit_plan with brute force, for budgets from far too few bytes to more than enough, in
 * every mode and with every update rule. If `wide` is nonzero, with twice the number of budgets. */
static int wide;

static void test_against_brute_force(void)
{
    static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_MEMORY_POOR };
    /* all plans must train the weights to the same bits as a plan of the plain model */
    model m = plain();
    gckpt_term term = { 0 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_plan_desc d = { .batch = B };
    build(graph, 4, &term, &m);
    gckpt_plan *whole = gckpt_plan_new(graph, &term, 1, &d);
    const uint64_t hash = train(store, whole, &m);
    util_free(NULL, whole, graph, store);
    for (int setting = 0; setting < 4 * 3 * 2; setting++) {
        if (!wide && !check_sampled((unsigned)setting, 7))
            continue;
        const int budgets = (setting < 6 ? 3 : 6) * (1 + wide); /* searching takes longer than the fixed modes   */
        m = plain();
        memset(&d, 0, sizeof d);
        m.terms = 1 + setting % 2;
        d.mode = modes[setting / 6];
        d.update_in_backward = setting / 2 % 3;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_plan *p = fit_plan(s, build, &m, B, &d, NULL, &why);
        CHECK_MSG(p != NULL, "%s", why.text);
        size_t most = gckpt_plan_bytes(p);
        util_free(NULL, p, NULL, s);
        s = gckpt_store_new(NULL);
        d.budget = 1;
        CHECK(fit_plan(s, build, &m, B, &d, NULL, &why) == NULL && why.result == GCKPT_E_BUDGET);
        size_t least = least_named();
        CHECK_MSG(least > 1 && least <= most, "%s", why.text);
        d.budget = least - 1;
        CHECK(fit_plan(s, build, &m, B, &d, NULL, &why) == NULL && least_named() == least);
        uint64_t before = UINT64_MAX;
        for (int i = 0; i <= budgets; i++) {
            d.budget = i == budgets ? 0 : least + (most - least) * (size_t)i / (size_t)(budgets - 1);
            gckpt_store *fresh = gckpt_store_new(NULL);
            p = fit_plan(fresh, build, &m, B, &d, NULL, &why);
            const gckpt_plan_info info = gckpt_plan_describe(p);
            CHECK_MSG(p != NULL, "%s", why.text);
            uint64_t work = 0, found = info.step_cost;
            size_t bytes = 0;
            int64_t rows = 0;
            int in_backward = 0, any = brute_force(&m, &d, &work, &bytes, &rows, &in_backward);
            CHECK_MSG(any && found == work && gckpt_plan_bytes(p) == bytes && info.rows == rows &&
                          info.update_in_backward == in_backward,
                      "setting %d, budget %lu: rows %d, work %.0f, %lu bytes; brute force %d, %.0f, %lu",
                      setting, (unsigned long)d.budget, (int)info.rows, (double)found,
                      (unsigned long)gckpt_plan_bytes(p), (int)rows, (double)work, (unsigned long)bytes);
            CHECK(!d.budget || gckpt_plan_bytes(p) <= d.budget);
            CHECK_MSG(found <= before, "setting %d: more bytes, more time", setting);
            before = found;
            if (i % 4 == 0 && m.terms == 1)
                CHECK(train(fresh, p, &m) == hash);
            util_free(NULL, p, NULL, fresh);
        }
        gckpt_store_free(s);
    }
}

/* Tests build functions that fail. If build() breaks its contract, the error names the cause; if the graph of a size
 * has an error, only this size is excluded. */
static void test_builds(void)
{
    static const struct { const char *says; int64_t rows; size_t where; } cases[] = {
        { "for 4 rows, build made other tensors", 4, offsetof(model, odd) },
        { "for 1 rows, build made other tensors", 1, offsetof(model, junk) },
        { "build returned 1000 loss terms", 2, offsetof(model, too_many) },
    };
    gckpt_plan_desc d = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model m = plain();
        gckpt_store *s = gckpt_store_new(NULL);
        memcpy((char *)&m + cases[i].where, &cases[i].rows, sizeof cases[i].rows);
        CHECK(fit_plan(s, build, &m, B, &d, NULL, &why) == NULL && why.result == GCKPT_E_ARG);
        CHECK_MSG(strstr(why.text, cases[i].says) != NULL, "%s", why.text);
        gckpt_store_free(s);
    }
    for (int64_t batch = 1; batch <= B; batch += B - 1) {
        model m = plain();
        gckpt_store *s = gckpt_store_new(NULL);
        m.spoil = batch;
        gckpt_plan *p = fit_plan(s, build, &m, batch, &d, NULL, &why);
        CHECK(batch == 1 ? !p && why.result == GCKPT_E_SHAPE : p && gckpt_plan_describe(p).rows == 6);
        CHECK_MSG(p || strstr(why.text, "micro-batches of 1 rows: broadcast") != NULL, "%s", why.text);
        util_free(NULL, p, NULL, s);
    }
    /* a micro-batch size that build() refuses (it returns a negative number) is skipped */
    model m = plain();
    gckpt_store *s = gckpt_store_new(NULL);
    m.refuse = B;
    gckpt_plan *p = fit_plan(s, build, &m, B, &d, NULL, &why);
    CHECK(p && gckpt_plan_describe(p).rows == 6);
    gckpt_plan_free(p);
    m = plain();
    m.refuse = 1;
    CHECK(fit_plan(s, build, &m, 1, &d, NULL, &why) == NULL && strstr(why.text, "refused every divisor"));
    m = plain();
    m.terms = 0;
    CHECK(fit_plan(s, build, &m, B, &d, NULL, &why) == NULL && strstr(why.text, "at least one loss"));
    m = plain();                        /* a graph that mixes rows is never divided into micro-batches */
    m.mixes = 1;
    p = fit_plan(s, build, &m, B, &d, NULL, &why);
    CHECK(p && gckpt_plan_describe(p).rows == B);
    size_t all = gckpt_plan_bytes(p);
    gckpt_plan_free(p);
    for (d.budget = 1; d.budget < all; d.budget += all / 7 + 1) {
        p = fit_plan(s, build, &m, B, &d, NULL, &why);
        CHECK(!p || gckpt_plan_describe(p).rows == B);
        gckpt_plan_free(p);
    }
    d.budget = 1;
    CHECK(!fit_plan(s, build, &m, B, &d, NULL, &why));
    d.budget = least_named();
    p = fit_plan(s, build, &m, B, &d, NULL, &why);
    CHECK(p && gckpt_plan_bytes(p) <= d.budget);
    gckpt_plan_free(p);
    d.budget = 0;
    /* the rows of each virtual rank are one micro-batch */
    for (d.ranks.virtual_ranks = 2; d.ranks.virtual_ranks <= 4; d.ranks.virtual_ranks *= 2) {
        p = fit_plan(s, build, &m, B, &d, NULL, &why);
        CHECK_MSG(p && gckpt_plan_describe(p).rows == B / d.ranks.virtual_ranks && !gckpt_plan_split_exact(p, NULL), "%s",
                  why.text);
        gckpt_plan_free(p);
    }
    static const struct { int virtual_ranks; int64_t batch, refuse; const char *says; } none[] = {
        { 0, B, B, "batch mean mixes rows, so micro-batches must have the 12 rows of the batch" },
        { 2, B, 6, "batch mean mixes rows, so micro-batches must have the 6 rows of a virtual rank" },
        { 8, B, -1, "the 2 rows of a virtual rank" }, /* with 1 and 2 rows */
        { 2, 9, -1, "the 5 rows of a virtual rank; build refuses these, or they do not divide the batch of 9 rows" } };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        d.ranks.virtual_ranks = none[i].virtual_ranks;
        m.refuse = none[i].refuse;
        p = fit_plan(s, build, &m, none[i].batch, &d, NULL, &why);
        if (i == 2)
            CHECK_MSG(p && gckpt_plan_describe(p).rows == 2, "%s", why.text);
        else
            CHECK_MSG(!p && why.result == GCKPT_E_ARG && strstr(why.text, none[i].says), "%s",
                      why.text);
        gckpt_plan_free(p);
    }
    gckpt_store_free(s);
}

static void test_arguments(void)
{
    static char memory[1 << 16];
    model m = plain();
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_plan_desc d;
    gckpt_fetch_spec fetch = { NULL, 0 };
    gckpt_cost cost = { 1, 1 };
    CHECK(fit_plan(NULL, build, &m, B, NULL, NULL, &why) == NULL);
    CHECK(fit_plan(s, NULL, &m, B, NULL, NULL, &why) == NULL && why.result == GCKPT_E_ARG);
    static const int64_t batches[] = { 0, -1, INT64_MIN, INT64_MAX, (int64_t)INT32_MAX + 1 };
    for (int i = 0; i < 5; i++)
        CHECK(fit_plan(s, build, &m, batches[i], NULL, NULL, &why) == NULL && why.result == GCKPT_E_ARG);
    for (int i = 0; i < 11; i++) {
        d = (gckpt_plan_desc){ .fetch.specs = &fetch };
        switch (i) {
        case 0: d.fetch.count = 1; break;
        case 1: d.costs.by_id = &cost, d.costs.count = 1; break;
        case 2: d.mode = GCKPT_SCHEDULE; break;
        case 3: d.mode = GCKPT_INFERENCE; break;
        case 4: d.memory.memory = memory, d.memory.size = sizeof memory; break;
        case 5: d.update_in_backward = 3; break;
        case 6: d.update_in_backward = -1; break;
        case 7: d.threads = -1; break;
        case 8: d.kernels.alignment = 3; break;
        case 9: d.mode = (gckpt_mode)77; break;
        default: d.optimiser = (gckpt_optimiser)77; break;
        }
        CHECK_MSG(fit_plan(s, build, &m, B, &d, NULL, &why) == NULL && why.result == GCKPT_E_ARG, "case %d", i);
    }
        for (int early = 1; early >= 0; early--) { /* update_in_backward needs a single virtual rank */
        d = (gckpt_plan_desc){ .update_in_backward = early, .ranks.virtual_ranks = 2 };
        gckpt_plan *p = fit_plan(s, build, &m, B, &d, NULL, &why);
        CHECK_MSG(early ? !p && strstr(why.text, "with ranks.virtual_ranks 1") : p != NULL, "%s",
                  why.text);
        gckpt_plan_free(p);
    }
    memset(&d, 0, sizeof d);
    CHECK(gckpt_plan_describe(NULL).rows == 0 && gckpt_plan_describe(NULL).step_cost == 0 && !gckpt_plan_describe(NULL).update_in_backward);
    /* batches: a prime, a power of two, and a number with 240 divisors */
    static const int64_t large[] = { 2147483647, 1 << 30, 720720 };
    for (int i = 0; i < 3; i++) {
        if (!check_sampled((unsigned)i, 3))
            continue;
        d.budget = 200000;
        d.update_in_backward = 0;
        gckpt_plan *p = fit_plan(s, build, &m, large[i], &d, NULL, &why);
        CHECK_MSG(p && gckpt_plan_bytes(p) <= d.budget && large[i] % gckpt_plan_describe(p).rows == 0, "%s",
                  why.text);
        gckpt_plan_free(p);
    }
    gckpt_store_free(s);
}

/* Tests step_cost of gckpt_plan_describe: the sum over micro-batches, where a short last one counts in proportion, and
 * instructions that run once in a step count once. */
static void test_step_cost(void)
{
    for (int terms = 1; terms <= 2; terms++) {
        uint64_t whole = 0;
        for (int64_t batch = 4; batch <= 14; batch += 2) {
            model m = plain();
            gckpt_store *s = gckpt_store_new(NULL);
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_term t[FIT_MAX_TERMS];
            gckpt_cost costs[256];
            memset(t, 0, sizeof t);
            m.terms = terms;
            build(g, 4, t, &m);
            gckpt_plan_desc d = { .batch = batch, .costs.by_id = costs,
                    .costs.count = gckpt_id(t[terms - 1].loss) + 1 };
            for (int i = 0; i < 256; i++)
                costs[i] = (gckpt_cost){ 4000, 8000 };
            gckpt_plan *p = gckpt_plan_new(g, t, terms, &d);
            const gckpt_plan_info info = gckpt_plan_describe(p);
            /* cost of the instructions that run once: table * table and its sum */
            uint64_t once = terms > 1 ? 2 * 12000 : 0;
            if (batch == 4) {
                whole = info.cost - once;
                CHECK(info.step_cost == info.cost);
            }
            CHECK_MSG(info.step_cost == once + whole * (uint64_t)batch / 4, "batch %d", (int)batch);
            util_free(NULL, p, g, s);
        }
    }
}

/* Tests micro-batches that are larger than a virtual rank: each of them is short, but costs as much as a whole one.
 * fit_plan must choose the micro-batch size with the least cost of a step. */
static void test_larger_than_vrank(void)
{
    static const struct { int64_t batch, rows; } cases[] = { { 4, 2 }, { 6, 3 }, { 7, 7 }, { 11, 11 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model m = plain();
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_plan_desc d = { .ranks.virtual_ranks = 2 };
        gckpt_plan *fit = fit_plan(s, build, &m, cases[i].batch, &d, NULL, &why);
        const gckpt_plan_info info = gckpt_plan_describe(fit);
        CHECK_MSG(info.rows == cases[i].rows, "a batch of %d in 2 virtual ranks: %d rows: %s",
                  (int)cases[i].batch, (int)info.rows, why.text);
        d.batch = cases[i].batch;
        for (int64_t rows = 1; rows <= d.batch; rows++) {
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_term t[FIT_MAX_TERMS];
            build(g, rows, t, &m);
            gckpt_plan *p = gckpt_plan_new(g, t, 1, &d);
            const gckpt_plan_info p_info = gckpt_plan_describe(p);
            CHECK_MSG(p_info.step_cost >= info.step_cost || d.batch % rows, "%d rows have less work",
                      (int)rows);
            CHECK(rows * 2 < d.batch || p_info.step_cost == 2 * p_info.cost);
            util_free(NULL, p, g, NULL);
        }
        util_free(NULL, fit, NULL, s);
    }
}

/* ---- fit_plan with measured costs: its callback calls tune_costs ---- */
static double ticks; /* a clock that advances by a microsecond whenever it is read */
static double tick(void *user) { return ticks += *(double *)user; }

static gckpt_result measure(gckpt_graph *g, const gckpt_term *terms, int count, gckpt_cost *costs, int n, void *user)
{
    model *m = (model *)user;
    gckpt_result result = m->measure_result;
    double dt = 1e-6;
    m->measured++;
    gckpt_plan_desc d = { .schedule.as_built = 1 };
    gckpt_plan *p = gckpt_plan_new(g, terms, count, &d);
    const gckpt_feed feeds[2] = { { m->input, tokens }, { m->target, targets } };
    const tune_input input = { tick, &dt, feeds, 2, gckpt_plan_describe(p).rows, NULL };
    if (result == GCKPT_OK)
        result = tune_costs(m->store, p, &input, costs, n, NULL);
    gckpt_plan_free(p);
    return result;
}

static void test_measure(void)
{
    model m = plain();
    gckpt_plan_desc d = { .schedule.as_built = 1 };
    gckpt_store *s = gckpt_store_new(NULL);
    m.store = s;
    gckpt_plan *p = fit_plan(s, build, &m, B, &d, measure, &why);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    CHECK_MSG(p && info.rows == B && m.measured == 6, "%s", why.text);
    /* each instruction costs one tick of the clock, so the plan with the fewest instructions is chosen */
    CHECK(info.step_cost % 1000 == 0);
    util_free(NULL, p, NULL, s);
    m.store = s = gckpt_store_new(NULL);
    m.measure_result = GCKPT_E_DATA;
    CHECK(!fit_plan(s, build, &m, B, &d, measure, &why) && why.result == GCKPT_E_DATA);
    CHECK(strstr(why.text, "measure failed") != NULL);
    gckpt_store_free(s);
}

/* With an argument, tests twice the budgets. */
int main(int argc, char **argv)
{
    wide = argc > 1 && argv[1] != NULL;
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (i * 7 + i / 3) % V;
        targets[i] = i % 9 == 4 ? -1 : (i * 5 + 1) % V;
    }
    test_against_brute_force();
    test_builds();
    test_arguments();
    test_step_cost();
    test_larger_than_vrank();
    test_measure();
    return check_report("test_fit");
}
