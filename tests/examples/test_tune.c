/* test_tune.c - tests examples/tune.h with a clock that counts its readings: times of instructions add up to the time of
 * a step, tune_costs gives each instruction its time, and tune_fit returns one of its trials. The store must not
 * change, and a measured step must have the bits of gckpt_step. */
#include "gradckpt.h"
#include "util.h"
#include "examples/tune.h"

enum { B = 12, C = 8 };

static float x_data[B * C], y_data[B * C];

static double tick(void *user) { return *(double *)user += 1e-6; }

static int build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    gckpt_feed *feeds = (gckpt_feed *)user;
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, C)), *x = in;
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, C));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, C), init);
    gckpt_tensor *frozen = gckpt_param(g, "frozen", gckpt_shape2(C, C), init);
    for (int i = 0; i < 4; i++)
        x = gckpt_gelu(gckpt_linear(x, w, NULL));
    terms->loss = gckpt_mean_squared_error(gckpt_linear(x, frozen, NULL), y, NULL);
    terms->weight = 1;
    feeds[0] = (gckpt_feed){ gckpt_id(in), x_data };
    feeds[1] = (gckpt_feed){ gckpt_id(y), y_data };
    return 1;
}

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_term term;
    gckpt_feed feeds[2];
} net;

static net open_net(int64_t rows, gckpt_plan_desc d)
{
    net n = { .s = gckpt_store_new(NULL) };
    n.g = gckpt_graph_new(n.s, NULL);
    build(n.g, rows, &n.term, n.feeds);
    CHECK(gckpt_store_freeze(n.s, "frozen", 1) == GCKPT_OK);
    CHECK(gckpt_store_quantise(n.s, "frozen", GCKPT_STORAGE_BF16) == GCKPT_OK);
    d.batch = B;
    n.p = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK_MSG(n.p != NULL, "%s", gckpt_error_text(n.g));
    return n;
}

/* Tests the profile of two steps, or of two calls of gckpt_forward. */
static void test_profile(gckpt_mode mode, int64_t rows)
{
    double clock = 0, sum = 0;
    const gckpt_hyper adamw = { .lr = 0.01f }, *hyper = mode == GCKPT_INFERENCE ? NULL : &adamw;
    net n = open_net(rows, (gckpt_plan_desc){ .mode = mode });
    net same = open_net(rows, (gckpt_plan_desc){ .mode = mode });
    tune_profile p = { .clock = tick, .user = &clock };
    gckpt_exec_desc desc = { .allow_initial = 1 };
    gckpt_report report[2];
    gckpt_usage u;
    gckpt_exec *plain = gckpt_exec_new(same.p, same.s, &desc);
    CHECK(tune_open(&p, n.p, &desc) == GCKPT_OK && p.count == gckpt_plan_describe(n.p).instructions);
    gckpt_exec *e = gckpt_exec_new(n.p, n.s, &desc);
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(tune_step(&p, e, n.feeds, 2, B, hyper, &report[0]) == GCKPT_OK, "%s", gckpt_error_text(e));
        CHECK((hyper ? gckpt_step(plain, n.feeds, 2, B, hyper, &report[1])
                     : gckpt_forward(plain, n.feeds, 2, B, &report[1])) == GCKPT_OK);
        CHECK(report[0].loss == report[1].loss && report[0].step == report[1].step);
    }
    CHECK(gckpt_store_hash(n.s) == gckpt_store_hash(same.s) && p.steps == 2);
    for (int i = 0; gckpt_plan_usage(n.p, i, &u) == GCKPT_OK; i++) {
        const int64_t runs = u.once && hyper ? 2 : 2 * B / rows;
        CHECK_MSG(p.entries[i].runs == runs, "instruction %d: %d runs", i, (int)p.entries[i].runs);
        CHECK(p.entries[i].seconds > 0.99e-6 * (double)runs && p.entries[i].seconds < 1.01e-6 * (double)runs);
        sum += p.entries[i].seconds;
    }
    CHECK(p.total_seconds > sum + 1.9e-6 && p.total_seconds < sum + 2.1e-6); /* a tick before each first one */
    CHECK(tune_step(&p, e, n.feeds, 1, B, hyper, NULL) == GCKPT_E_ARG && p.steps == 2);
    tune_close(&p);
    CHECK(tune_open(&(tune_profile){ .clock = NULL }, n.p, NULL) == GCKPT_E_ARG);
    util_free(e, n.p, n.g, n.s);
    util_free(plain, same.p, same.g, same.s);
}

static void test_costs(gckpt_mode mode, int64_t rows)
{
    double clock = 0, stopped = 0;
    net n = open_net(rows, (gckpt_plan_desc){ .mode = mode });
    gckpt_exec *e = gckpt_exec_new(n.p, n.s, NULL);
    const gckpt_hyper hyper = { .lr = 0.01f };
    CHECK(gckpt_step(e, n.feeds, 2, B, &hyper, NULL) == GCKPT_OK);
    const uint64_t hash = gckpt_store_hash(n.s), step = gckpt_store_step(n.s);
    gckpt_cost costs[32];
    uint64_t update = 0;
    gckpt_instruction in;
    tune_input input = { tick, &clock, n.feeds, 2, B, NULL };
    const int ids = gckpt_graph_size(n.g);
    CHECK(ids <= 32 && tune_costs(n.s, n.p, &input, costs, ids, &update) == GCKPT_OK);
    CHECK(gckpt_store_hash(n.s) == hash && gckpt_store_step(n.s) == step && update >= 1000);
    for (int i = 0; i < ids; i++)
        CHECK(costs[i].forward >= 1 && costs[i].backward >= 1);
    for (int i = 0; gckpt_plan_get(n.p, i, &in) == GCKPT_OK; i++) {
        CHECK(in.kind != GCKPT_FORWARD || (costs[in.id].forward >= 999 && costs[in.id].forward <= 1001));
        CHECK(in.kind != GCKPT_BACKWARD || (costs[in.id].backward >= 999 && costs[in.id].backward <= 1001));
    }
    input.count = 1;
    CHECK(tune_costs(n.s, n.p, &input, costs, ids, NULL) == GCKPT_E_ARG);
    input.count = 2, input.clock = tick, input.user = &stopped, stopped = 1e12; /* too large to advance */
    CHECK(tune_costs(n.s, n.p, &input, costs, ids, NULL) == GCKPT_E_DATA);
    CHECK(tune_costs(n.s, NULL, &input, costs, ids, NULL) == GCKPT_E_MEMORY);
    util_free(e, n.p, n.g, n.s);
}

/* Tests that tune_fit returns one of its trials, within the budget, and changes no value. */
static void test_fit(size_t budget, double limit)
{
    double clock = 0;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_feed feeds[2];
    tune_timing t = { .input = { .clock = tick, .user = &clock, .feeds = feeds, .count = 2 }, .limit = limit };
    const gckpt_plan_desc d = { .budget = budget };
    gckpt_plan *fit = fit_plan(s, build, feeds, B, &d, NULL, NULL);
    const uint64_t hash = gckpt_store_hash(s);
    gckpt_plan *p = tune_fit(s, build, feeds, B, &d, NULL, &t);
    CHECK_MSG(fit && p && t.count >= 1 && t.fastest < t.count, "%s", t.error.text);
    CHECK(t.trials[0].bytes == gckpt_plan_bytes(fit) && t.trials[0].cost == gckpt_plan_describe(fit).step_cost);
    CHECK(gckpt_plan_bytes(p) == t.trials[t.fastest].bytes && (!budget || gckpt_plan_bytes(p) <= budget));
    CHECK(limit > 0 ? t.count > 1 && t.trials[t.fastest].runs > 0 : t.count == 1 && t.trials[0].runs == 0);
    for (int i = 0; i < t.count; i++) {
        CHECK(t.trials[i].cost <= t.trials[0].cost + t.trials[0].cost / 4);
        CHECK(t.trials[i].runs == 0 || t.trials[t.fastest].seconds <= t.trials[i].seconds * 65 / 64);
    }
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 0);
    gckpt_plan_free(fit);
    gckpt_plan_free(p);
    CHECK(!tune_fit(s, build, feeds, B, &(gckpt_plan_desc){ .budget = 1 }, NULL, &t));
    CHECK(t.error.result == GCKPT_E_BUDGET);
    gckpt_store_free(s);
}

int main(void)
{
    for (int i = 0; i < B * C; i++)
        x_data[i] = (float)(i % 7) / 4 - 1, y_data[i] = (float)(i % 5) / 4 - 0.5f;
    test_profile(GCKPT_AUTO, B);
    test_profile(GCKPT_MEMORY_POOR, 4);
    test_profile(GCKPT_INFERENCE, 3);
    test_costs(GCKPT_STORE_ALL, B);
    test_costs(GCKPT_STORE_ALL, 4);
    test_fit(0, 1);
    test_fit(4000, 1);
    test_fit(0, 0);
    return check_report("test_tune");
}
