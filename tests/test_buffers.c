/* test_buffers.c - pools, groupnorm and batchnorm against PyTorch (golden/make_norms.py); running statistics: once a
 * step, right whatever plan, optimiser and way of feeding, nothing when nothing is to change, saved, frozen, printed. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "rig.h"
#include "golden/norms.h"
#include <math.h>

/* Small multiples of 1/16, as make_norms.py has them, plus `base`. */
static float *numbers(int step, int64_t n, float base)
{
    float *x = (float *)malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = base + (float)(i * step % 23 - 11) / 16;
    return x;
}

/* |a - b| / |b| over n numbers. */
static double distance(const float *a, const double *b, int64_t n)
{
    double d = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(d / size);
}

/* == ops against PyTorch ======================================================================= */
enum { MAX, MAX_1D, AVERAGE, AVERAGE_1D, GLOBAL, GROUP, GROUP_BIAS, GROUP_NONE, BATCH, BATCH_NONE, CASES };
static const struct {
    const char *name;
    gckpt_shape x;
    const double *golden;
    int step, leaves; /* leaves: of (C) behind x */
} cases[CASES] = {
    { "max", { 4, { 2, 5, 6, 3 } }, golden_max, 19, 0 },
    { "max_1d", { 3, { 2, 7, 4 } }, golden_max_1d, 13, 0 },
    { "average", { 4, { 2, 5, 6, 3 } }, golden_average, 19, 0 },
    { "average_1d", { 3, { 2, 7, 4 } }, golden_average_1d, 13, 0 },
    { "global", { 4, { 2, 5, 6, 3 } }, golden_global, 19, 0 },
    { "group", { 4, { 2, 5, 6, 8 } }, golden_group, 19, 2 },
    { "group_bias", { 3, { 3, 4, 6 } }, golden_group_bias, 19, 1 },
    { "group_none", { 2, { 3, 40 } }, golden_group_none, 19, 0 },
    { "batch", { 4, { 2, 5, 6, 8 } }, golden_batch, 19, 2 },
    { "batch_none", { 2, { 6, 4 } }, golden_batch_none, 19, 0 },
};

static gckpt_tensor *running(gckpt_graph *g, const char *name, int64_t c, float first, float momentum)
{
    return gckpt_running(g, name, gckpt_shape1(c), (gckpt_init){ 0, 0, first }, momentum);
}

static gckpt_tensor *apply(int i, gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_shape s = gckpt_shape_of(x);
    const gckpt_window windows[4] = { { .size = { 3, 2 }, .stride = { 2, 2 }, .padding = { 1, 0 } },
                                      { .size = { 9, 3 }, .stride = { 9, 1 }, .padding = { 9, 1 } }, /* [1] counts */
                                      { .size = { 2, 3 }, .stride = { 1, 2 }, .padding = { 0, 1 } },
                                      { .size = { 0, 2 } } };
    switch (i) {
    case MAX: case MAX_1D: return gckpt_max_pool(x, &windows[i]);
    case AVERAGE: case AVERAGE_1D: return gckpt_average_pool(x, &windows[i]);
    case GLOBAL: return gckpt_global_average_pool(x);
    case GROUP: return gckpt_groupnorm(x, 2, gain, bias);
    case GROUP_BIAS: return gckpt_groupnorm(x, 3, gain, bias);
    case GROUP_NONE: return gckpt_groupnorm(x, 1, gain, bias);
    default:
        return gckpt_batchnorm(x, gain, bias, running(g, "mean", s.d[s.n - 1], 0, 0.1f),
                               running(g, "variance", s.d[s.n - 1], 1, 0.1f));
    }
}

/* y and gradients of sum(y r): those of x and of constants are picked, so that they are sums. */
static void test_case(int i)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    int64_t c = cases[i].x.d[cases[i].x.n - 1];
    float *data[4] = { numbers(cases[i].step, count_of(&cases[i].x), 0), numbers(7, c, 1), numbers(5, c, 0), NULL };
    gckpt_tensor *t[3] = { gckpt_input(g, "x", GCKPT_F32, cases[i].x), NULL, NULL };
    if (cases[i].leaves == 2)
        t[1] = gckpt_constant(g, "gain", GCKPT_F32, gckpt_shape1(c), data[1]);
    if (cases[i].leaves)
        t[2] = gckpt_constant(g, "bias", GCKPT_F32, gckpt_shape1(c), data[2]);
    gckpt_tensor *y = apply(i, t[0], t[1], t[2]);
    gckpt_shape shape = gckpt_shape_of(y);
    int64_t n = y ? count_of(&shape) : 0;
    gckpt_tensor *r = gckpt_input(g, "r", GCKPT_F32, shape);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, r)), 1, 0 };
    gckpt_pick picks[4] = { { y, 0 }, { t[0], 1 } };
    int count = 2;
    for (int k = 1; k < 3; k++)
        if (t[k])
            picks[count++] = (gckpt_pick){ t[k], 1 };
    gckpt_plan_desc desc = { .fetch = picks, .fetches = count };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    data[3] = numbers(17, n, 0);
    gckpt_feed feeds[2] = { { gckpt_id(t[0]), data[0] }, { gckpt_id(r), data[3] } };
    gckpt_result result = gckpt_gradients(e, feeds, 2, cases[i].x.d[0], NULL);
    CHECK_MSG(result == GCKPT_OK, "%s: %s %s", cases[i].name, gckpt_error_text(g), gckpt_error_text(e));
    const double *golden = cases[i].golden;
    for (int k = 0; k < count && result == GCKPT_OK; k++) {
        shape = gckpt_shape_of(picks[k].tensor);
        double d = distance(gckpt_fetch(e, gckpt_id(picks[k].tensor), picks[k].gradient), golden, count_of(&shape));
        CHECK_MSG(d < 1e-6, "%s: tensor %d is off by %.2g", cases[i].name, k, d);
        golden += count_of(&shape);
    }
    rig_free(e, p, g, s);
    for (int k = 0; k < 4; k++)
        free(data[k]);
}

/* == a net with two batch norms ================================================================ */
enum { BATCH_ROWS = 6, HIGH = 4, WIDE = 5, IN = 3, C = 4, STEPS = 3 };
static float *x_data[STEPS], *t_data[STEPS];

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *x, *t;
    gckpt_term term;
} net;

static gckpt_tensor *tower(gckpt_tensor *h, void *user)
{
    gckpt_graph *g = gckpt_graph_of(h);
    gckpt_tensor **p = (gckpt_tensor **)user;
    h = gckpt_linear(h, p[0], NULL);
    gckpt_tensor *mean = running(g, "mean1", C, 0, 0.25f), *variance = running(g, "variance1", C, 1, 0.25f);
    h = gckpt_tanh(gckpt_batchnorm(h, p[1], p[2], mean, variance));
    return gckpt_max_pool(h, &(gckpt_window){ .size = { 2, 2 } });
}

static void net_graph(net *n, int64_t rows)
{
    const gckpt_init zero = { 0, 0, 0 };
    gckpt_graph *g = n->g = gckpt_graph_new(n->s, NULL);
    n->x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(rows, HIGH, WIDE, IN));
    n->t = gckpt_input(g, "t", GCKPT_F32, gckpt_shape2(rows, C));
    gckpt_tensor *p[4] = { gckpt_param(g, "w1", gckpt_shape2(IN, C), zero), NULL, NULL, NULL };
    p[1] = gckpt_param(g, "gain", gckpt_shape1(C), zero), p[2] = gckpt_param(g, "bias", gckpt_shape1(C), zero);
    p[3] = gckpt_param(g, "w2", gckpt_shape2(C, C), zero);
    gckpt_tensor *h = gckpt_linear(gckpt_checkpoint(tower, n->x, p), p[3], NULL);
    gckpt_tensor *mean = running(g, "mean2", C, 0, 0.5f), *variance = running(g, "variance2", C, 1, 0.5f);
    h = gckpt_batchnorm(h, NULL, NULL, mean, variance);
    h = gckpt_global_average_pool(gckpt_mul(h, h));
    n->term = (gckpt_term){ gckpt_mean_squared_error(h, n->t), 1, 0 };
    CHECK_MSG(n->term.loss != NULL, "build: %s", gckpt_error_text(g));
}

static float *values(const net *n, const char *name)
{
    gckpt_parameter q = { 0 };
    CHECK(gckpt_store_get(n->s, gckpt_store_find(n->s, name), &q) == GCKPT_OK);
    return q.values;
}

static const struct { const char *name; int step; float base; int n; } parameters[4] = {
    { "w1", 29, 0, IN * C }, { "gain", 7, 1, C }, { "bias", 5, 0, C }, { "w2", 3, 0, C * C }
};
static const char *const statistics[4] = { "mean1", "variance1", "mean2", "variance2" };

static void net_new(net *n, int64_t rows)
{
    n->s = gckpt_store_new(NULL);
    net_graph(n, rows);
    for (int i = 0; i < 4; i++) {
        float *w = numbers(parameters[i].step, parameters[i].n, parameters[i].base);
        memcpy(values(n, parameters[i].name), w, (size_t)parameters[i].n * sizeof *w);
        free(w);
    }
}

static int net_feed(const void *user, int64_t row, gckpt_feed *f)
{
    const net *n = (const net *)user;
    int step = (int)gckpt_store_step(n->s) % STEPS;
    f[0] = (gckpt_feed){ gckpt_id(n->x), x_data[step] + row * HIGH * WIDE * IN };
    f[1] = (gckpt_feed){ gckpt_id(n->t), t_data[step] + row * C };
    return 2;
}

static double evaluate(net *n, int64_t rows)
{
    net v = { .s = n->s };
    net_graph(&v, rows);
    gckpt_plan *p = gckpt_plan_new(v.g, &v.term, 1, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE });
    gckpt_exec *e = gckpt_exec_new(p, v.s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(v.x), x_data[0] }, { gckpt_id(v.t), t_data[0] } };
    gckpt_report report = { 0 };
    const char *op = "";
    CHECK(gckpt_plan_split_exact(p, &op) && !op); /* nothing mixes here */
    CHECK_MSG(gckpt_forward(e, feeds, 2, BATCH_ROWS, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    rig_free(e, p, v.g, NULL);
    return report.loss;
}

static void test_golden_net(void)
{
    net n;
    net_new(&n, 4);
    gckpt_plan *p = gckpt_plan_new(n.g, &n.term, 1,
                                   &(gckpt_plan_desc){ .batch = BATCH_ROWS, .optimiser = GCKPT_SGD });
    gckpt_exec *e = gckpt_exec_new(p, n.s, NULL);
    const char *op = NULL;
    CHECK_MSG(!gckpt_plan_split_exact(p, &op) && op && !strcmp(op, "batchnorm"), "split: %s", op ? op : "exact");
    gckpt_hyper sgd = gckpt_hyper_lr(0.25f);
    for (int step = 0; step < STEPS; step++) {
        gckpt_report report = { 0 };
        gckpt_result result = rig_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &sgd, &report);
        CHECK_MSG(result == GCKPT_OK && fabs(report.loss - golden_losses[step]) < 2e-6, "step %d: %s: loss %.9g, PyTorch %.9g",
                  step, gckpt_error_text(e), report.loss, golden_losses[step]);
    }
    const double *golden = golden_parameters;
    for (int i = 0; i < 4; golden += parameters[i++].n) {
        double d = distance(values(&n, parameters[i].name), golden, parameters[i].n);
        CHECK_MSG(d < 4e-6, "%s is off by %.2g", parameters[i].name, d);
    }
    for (int i = 0; i < 4; i++) {
        double d = distance(values(&n, statistics[i]), golden_running + i * C, C);
        CHECK_MSG(d < 4e-6, "%s is off by %.2g", statistics[i], d);
    }
    double one = evaluate(&n, 1), all = evaluate(&n, BATCH_ROWS), short_last = evaluate(&n, 4);
    CHECK_MSG(fabs(all - golden_losses[STEPS]) < 2e-6 && one == all && all == short_last,
              "inference: %.9g, %.9g, %.9g, PyTorch %.9g", one, all, short_last, golden_losses[STEPS]);
    rig_free(e, p, n.g, n.s);
}

int main(void)
{
    for (int i = 0; i < STEPS; i++) {
        int64_t nx = BATCH_ROWS * HIGH * WIDE * IN, nt = BATCH_ROWS * C;
        float *x = numbers(37, STEPS * nx, 0), *t = numbers(11, STEPS * nt, 0);
        x_data[i] = (float *)malloc((size_t)nx * sizeof *x), t_data[i] = (float *)malloc((size_t)nt * sizeof *t);
        memcpy(x_data[i], x + i * nx, (size_t)nx * sizeof *x), memcpy(t_data[i], t + i * nt, (size_t)nt * sizeof *t);
        free(x), free(t);
    }
    for (int i = 0; i < CASES; i++)
        test_case(i);
    test_golden_net();
    for (int i = 0; i < STEPS; i++)
        free(x_data[i]), free(t_data[i]);
    return check_report("buffers");
}
