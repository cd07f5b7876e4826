/* test_order.c - orders of the backwards other than the reverse of creation. Every order that a plan accepts gives
 * the same bits; orders that would give other bits are refused. */
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
        if (in.kind <= GCKPT_BACKWARD && net.nodes[in.id].data) {
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
    static const char *const names[] = { "fp32", "accumulates", "in backward", "bf16" };
    random_state = seed + 5u;
    build(seed, 0);
    int64_t batch = net.batch, rows;
    destroy();
    net_fill();
    for (int way = 0; way < 4; way++) {
        rows = way == 1 ? (batch + 1) / 2 : batch;
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = batch, .update_in_backward = way == 2 };
        d.bf16.precision = way == 3 ? GCKPT_BF16 : GCKPT_FP32;
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

enum { ROWS = 64, WIDE = 16 };
static float head_data[ROWS * 3];

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
    for (int i = 0; i < ROWS * 3; i++)
        head_data[i] = (float)(i * 37 % 101) / 50 - 1;
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
    test_apart();
    CHECK(accepted > 80 * seeds && refused > 80 * seeds);
    printf("random orders         %d exchanges taken, %d refused\n", accepted, refused);
    return check_report("test_order");
}
