/* test_order.c - orders of the backwards other than the reverse of creation. Every order that a plan accepts gives
 * the same bits; orders that would give other bits are refused; if branches were built in parallel, the planner's own
 * orders take fewer bytes. */
#include "gradckpt.h"
#include "check.h"
#include "net.h"

enum { STEPS = 2, LIST = 4000 };
static gckpt_instruction list[LIST];
static int accepted, refused;

static gckpt_plan *plan(const gckpt_plan_desc *d)
{
    return gckpt_plan_new(net.g, net.term, net.terms, d);
}

/* Trains a new store for some steps and returns the store's hash. */
static uint64_t train(unsigned seed, int64_t rows, gckpt_plan_desc d, const char *what)
{
    gckpt_feed feeds[NET_FEEDS];
    gckpt_report report = { 0 };
    gckpt_hyper hyper = { .lr = 0.02f };
    build(seed, rows);
    gckpt_plan *p = plan(&d);
    gckpt_exec *e = p ? gckpt_exec_new(p, net.s, NULL) : NULL;
    CHECK_MSG(e != NULL, "seed %u %s: %s %s", seed, what, gckpt_error_text(net.g), gckpt_error_text(net.s));
    CHECK(!p || !d.budget || gckpt_plan_bytes(p) <= d.budget);
    uint64_t hash = 0;
    for (int i = 0; i < STEPS && e; i++) {
        CHECK_MSG(gckpt_step(e, feeds, net_feed(NULL, 0, feeds), net.batch, &hyper, &report) == GCKPT_OK,
                  "seed %u %s: %s", seed, what, gckpt_error_text(e));
        hash = hash * 31 + gckpt_store_hash(net.s);
        for (int k = 0; k < 8; k++)
            hash = hash * 31 + ((const unsigned char *)&report.loss)[k];
    }
    util_free(e, p, NULL, NULL);
    destroy();
    return hash;
}

/* Fills the list with store-all's forwards and backwards, after random swaps of adjacent backwards that the planner
 * accepts. Returns the number of instructions. */
static int random_order(unsigned seed)
{
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
    gckpt_instruction in;
    int n = 0, first = -1;
    build(seed, 0);
    gckpt_plan *p = plan(&d);
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK && n < LIST; i++)
        if (in.kind != GCKPT_UPDATE && net.nodes[in.id].data) {
            first = first < 0 && in.kind == GCKPT_BACKWARD ? n : first;
            list[n++] = in;
        }
    gckpt_plan_free(p);
    d = (gckpt_plan_desc){ .mode = GCKPT_SCHEDULE, .schedule.instructions = list, .schedule.count = n };
    for (int tries = 6 * (n - first); tries > 0 && n - first > 1; tries--) {
        int at = first + (int)below(n - first - 1);
        gckpt_instruction swap = list[at];
        list[at] = list[at + 1], list[at + 1] = swap;
        p = plan(&d);
        accepted += p != NULL;
        refused += p == NULL;
        if (!p) {
            CHECK_MSG(strstr(gckpt_error_text(net.g), "precedes that of one") != NULL, "seed %u: %s", seed,
                      gckpt_error_text(net.g));
            list[at + 1] = list[at], list[at] = swap;
        }
        gckpt_plan_free(p);
    }
    destroy();
    return n;
}

/* Tests random orders of backwards, with one or several micro-batches, with update_in_backward, in fp32 and bf16. */
static void test_random_orders(unsigned seed)
{
    static const char *const names[] = { "fp32", "accumulates", "in backward", "bf16", "bf16 stochastic" };
    random_state = seed + 5u;
    build(seed, 0);
    int64_t batch = net.batch, rows;
    destroy();
    net_fill();
    for (int way = 0; way < 5; way++) {
        rows = way == 1 ? (batch + 1) / 2 : batch;
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = batch, .update_in_backward = way == 2 };
        d.bf16.precision = way == 3 ? GCKPT_BF16 : way == 4 ? GCKPT_BF16_STOCHASTIC : GCKPT_FP32;
        uint64_t want = train(seed, rows, d, names[way]);
        for (int k = 0; k < 3; k++) {
            d.mode = GCKPT_SCHEDULE;
            d.schedule.instructions = list;
            d.schedule.count = random_order(seed);
            CHECK_MSG(train(seed, rows, d, names[way]) == want, "seed %u %s: a random order gives other bits", seed,
                      names[way]);
        }
    }
}

/* Tests that plans for budgets of the frontier's points, in whichever order of backwards the planner chooses, have the
 * bits of store-all. */
static void test_chosen_orders(unsigned seed)
{
    gckpt_plan_desc d = { .mode = GCKPT_OPTIMAL };
    gckpt_point point;
    build(seed, 0);
    gckpt_frontier *f = gckpt_frontier_new(net.g, net.term, net.terms, &d);
    int n = gckpt_frontier_points(f);
    size_t budget[4];
    for (int i = 0; i < 4; i++)
        budget[i] = gckpt_frontier_get(f, i * (n - 1) / 3, &point) == GCKPT_OK ? point.bytes : 0;
    gckpt_frontier_free(f);
    destroy();
    gckpt_plan_desc all = { .mode = GCKPT_STORE_ALL };
    uint64_t want = train(seed, 0, all, "store-all");
    for (int i = 0; i < 4; i++) {
        d.budget = budget[i];
        CHECK_MSG(train(seed, 0, d, "budget") == want, "seed %u: %lu bytes give other bits", seed,
                  (unsigned long)budget[i]);
    }
}

/* ---- branches that were built in parallel: bytes saved by another order of backwards ---- */
enum { HEADS = 4, ROWS = 64, WIDE = 16 };
static float head_data[ROWS * 3];

/* Builds HEADS heads on one trunk, first all their products and then all their losses, so that the reverse of
 * creation keeps the gradients of all heads at once. The random nets of net.h have no such heads. */
static gckpt_graph *heads(gckpt_store *s, gckpt_term *terms)
{
    const gckpt_init normal = { 0.5f, 0, 0 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3)), *h[HEADS];
    x = gckpt_tanh(gckpt_linear(x, gckpt_param(g, "trunk", gckpt_shape2(3, 8), normal), NULL));
    for (int i = 0; i < HEADS; i++) {
        char name[16];
        snprintf(name, sizeof name, "head %d", i);
        h[i] = gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(8, WIDE), normal), NULL);
    }
    for (int i = 0; i < HEADS; i++) {
        h[i] = gckpt_sum_loss(gckpt_mul(h[i], h[i]));
        terms[i] = (gckpt_term){ h[i], 1, 0 };
    }
    return g;
}

static uint64_t train_heads(gckpt_plan_desc d, size_t *least, int *falls)
{
    gckpt_term terms[HEADS];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = heads(s, terms);
    gckpt_frontier *f = gckpt_frontier_new(g, terms, HEADS, &d);
    gckpt_point point = { 0, 0, 0, 0, 0 };
    gckpt_frontier_get(f, 0, &point);
    *least = point.bytes;
    d.budget = point.bytes;
    gckpt_plan *p = gckpt_plan_new(g, terms, HEADS, &d);
    gckpt_exec_desc x = { .debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_MEASURE };
    gckpt_exec *e = gckpt_exec_new(p, s, &x);
    gckpt_feed feeds[1] = { { 0, head_data } };
    gckpt_report report;
    gckpt_hyper hyper = { .lr = 0.01f };
    gckpt_instruction in;
    *falls = 1;
    for (int i = 0, before = INT32_MAX; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++)
        if (in.kind == GCKPT_BACKWARD) {
            *falls = *falls && in.id < before;
            before = in.id;
        }
    for (int i = 0; i < STEPS; i++)
        CHECK_MSG(gckpt_step(e, feeds, 1, ROWS, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    CHECK(gckpt_plan_bytes(p) <= *least && gckpt_bytes_measured(e) == gckpt_plan_bytes(p));
    uint64_t hash = gckpt_store_hash(s);
    gckpt_frontier_free(f);
    util_free(e, p, g, s);
    return hash;
}

static void test_heads(void)
{
    size_t built, chosen;
    int built_falls, chosen_falls;
    gckpt_plan_desc d = { .mode = GCKPT_OPTIMAL, .schedule.as_built = 1 };
    for (int i = 0; i < ROWS * 3; i++)
        head_data[i] = (float)(i * 37 % 101) / 50 - 1;
    uint64_t want = train_heads(d, &built, &built_falls);
    d.schedule.as_built = 0;
    uint64_t got = train_heads(d, &chosen, &chosen_falls);
    CHECK(got == want && built_falls && !chosen_falls);
    /* the chosen order keeps at least two gradients of heads less */
    CHECK_MSG(chosen + 2 * ROWS * WIDE * sizeof(float) <= built, "%lu bytes as built, %lu in another order",
              (unsigned long)built, (unsigned long)chosen);
    printf("heads                 %lu bytes at least in the reverse of creation, %lu in another order\n",
           (unsigned long)built, (unsigned long)chosen);
}

/* Shows why contributions to an activation's gradient must be added in a fixed order: a sum that continues from
 * another sum has other bits than the two sums computed apart and then added. */
static void gradient_of(int which, float *to)
{
    const gckpt_init normal = { 0.5f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    T *x = gckpt_tanh(gckpt_mul(in, gckpt_param(g, "p", gckpt_shape1(3), normal)));
    T *a = gckpt_linear(x, gckpt_param(g, "a", gckpt_shape2(3, WIDE), normal), NULL);
    T *b = gckpt_linear(x, gckpt_param(g, "b", gckpt_shape2(3, WIDE), normal), NULL);
    gckpt_term terms[2] = { { gckpt_sum_loss(a), 1, 0 }, { gckpt_sum_loss(b), 1, 0 } };
    gckpt_fetch_spec fetch = { x, 1 };
    gckpt_plan_desc d = { .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, which == 2 ? &terms[1] : terms, which ? 1 : 2, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[1] = { { gckpt_id(in), head_data } };
    gckpt_report report;
    gckpt_hyper hyper = { .lr = 0.01f };
    CHECK_MSG(gckpt_step(e, feeds, 1, ROWS, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    const float *got = gckpt_fetch(e, gckpt_id(x), 1);
    if (CHECK(got != NULL))
        memcpy(to, got, ROWS * 3 * sizeof(float));
    util_free(e, p, g, s);
}

static void test_apart(void)
{
    float both[ROWS * 3], one[ROWS * 3], other[ROWS * 3];
    int differ = 0;
    gradient_of(0, both);
    gradient_of(1, one);
    gradient_of(2, other);
    for (int i = 0; i < ROWS * 3; i++) {
        differ += one[i] + other[i] != both[i];
        CHECK_MSG(one[i] + other[i] - both[i] < 1e-3f && both[i] - one[i] - other[i] < 1e-3f, "%g + %g = %g",
                  (double)one[i], (double)other[i], (double)both[i]);
    }
    CHECK_MSG(differ > 0, "a sum that goes on is the sum of two: contributions need no order");
}

int main(int argc, char **argv)
{
    const int seeds = argc > 1 && argv[1] != NULL ? 24 : check_iterations(12);
    for (unsigned seed = 1; seed <= (unsigned)seeds; seed++)
        test_random_orders(seed);
    for (unsigned seed = 1; seed <= (unsigned)seeds; seed++)
        test_chosen_orders(seed);
    test_heads();
    test_apart();
    CHECK(accepted > 80 * seeds && refused > 80 * seeds);
    printf("random orders         %d exchanges taken, %d refused\n", accepted, refused);
    return check_report("test_order");
}
