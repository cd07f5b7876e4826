/* test_buffers.c - compares pools, group norm and batch norm with PyTorch (golden/make_norms.py), and the norms bit
 * for bit with the manual's rounding rules. Running statistics change once per step, to the same bits in every plan,
 * with every optimiser and in every way of feeding; they do not change when they are frozen or when the step fails;
 * they can be saved and printed. */
#include "gradckpt.h"
#include "examples/gradcheck.h"
#include "util.h"
#include "golden/norms.h"
#include <math.h>

/* Returns n small multiples of 1/16 plus `base`, the numbers that make_norms.py uses; `step` selects which ones. */
static float *numbers(int step, int64_t n, float base)
{
    float *x = (float *)malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = base + (float)(i * step % 23 - 11) / 16;
    return x;
}

/* Returns the relative distance |a - b| / |b| of two vectors of n numbers. */
static double distance(const float *a, const double *b, int64_t n)
{
    double d = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(d / size);
}

/* == ops compared with PyTorch ================================================================= */
enum { MAX, MAX_1D, AVERAGE, AVERAGE_1D, GLOBAL, GROUP, GROUP_BIAS, GROUP_NONE, BATCH, BATCH_NONE,
       GROUP_EPS, BATCH_EPS, POOLS, CASES = POOLS + 5 };
static const struct {
    const char *name;
    gckpt_shape x;
    const double *golden;
    int step, leaves; /* leaves: number of further inputs of shape (C), namely gain and bias */
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
    { "group_eps", { 3, { 3, 4, 6 } }, golden_group_eps, 19, 2 },
    { "batch_eps", { 2, { 6, 4 } }, golden_batch_eps, 19, 2 },
    { "max_ceil", { 4, { 2, 5, 6, 3 } }, golden_max_ceil, 19, 0 },
    { "max_dilated", { 3, { 2, 9, 4 } }, golden_max_dilated, 13, 0 },
    { "average_ceil", { 4, { 2, 5, 6, 3 } }, golden_average_ceil, 19, 0 },
    { "average_inside", { 4, { 2, 5, 6, 3 } }, golden_average_inside, 19, 0 },
    { "average_inside_1d", { 3, { 2, 7, 4 } }, golden_average_inside_1d, 13, 0 },
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
                                      /* pooling of a signal (B,W,C) must ignore element [0] of each option */
                                      { .size = { 9, 3 }, .stride = { 9, 1 }, .padding = { 9, 1 } },
                                      { .size = { 2, 3 }, .stride = { 1, 2 }, .padding = { 0, 1 } },
                                      { .size = { 0, 2 } } };
    const gckpt_window options[CASES - POOLS] = {
        { .size = { 3, 2 }, .stride = { 2, 3 }, .padding = { 1, 1 }, .dilation = { 1, 2 }, .ceil = 1 },
        { .size = { 0, 3 }, .stride = { 0, 1 }, .padding = { 0, 1 }, .dilation = { 5, 2 } },
        { .size = { 2, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 }, .ceil = 1 },
        { .size = { 2, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 }, .ceil = 1, .exclude_padding = 1 },
        { .size = { 0, 3 }, .stride = { 0, 2 }, .padding = { 0, 1 }, .exclude_padding = 1 }
    };
    if (i >= POOLS)
        return (i < POOLS + 2 ? gckpt_max_pool : gckpt_average_pool)(x, &options[i - POOLS]);
    switch (i) {
    case MAX: case MAX_1D: return gckpt_max_pool(x, &windows[i]);
    case AVERAGE: case AVERAGE_1D: return gckpt_average_pool(x, &windows[i]);
    case GLOBAL: return gckpt_global_average_pool(x);
    case GROUP: return gckpt_groupnorm(x, 2, gain, bias, 0);
    case GROUP_BIAS: return gckpt_groupnorm(x, 3, gain, bias, 0);
    case GROUP_NONE: return gckpt_groupnorm(x, 1, gain, bias, 0);
    case GROUP_EPS: return gckpt_groupnorm(x, 2, gain, bias, 1e-6f);
    default:
        return gckpt_batchnorm(x, gain, bias, running(g, "mean", s.d[s.n - 1], 0, 0.1f),
                               running(g, "variance", s.d[s.n - 1], 1, 0.1f), i == BATCH_EPS ? 1e-3f : 0);
    }
}

/* Tests the result y of case i and the gradients of the loss sum(y r), where r is fed. The fetched gradients of x and
 * of constants are sums over the batch, not means. */
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
    gckpt_fetch_spec fetches[4] = { { y, 0 }, { t[0], 1 } };
    int count = 2;
    for (int k = 1; k < 3; k++)
        if (t[k])
            fetches[count++] = (gckpt_fetch_spec){ t[k], 1 };
    gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = count };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    data[3] = numbers(17, n, 0);
    gckpt_feed feeds[2] = { { gckpt_id(t[0]), data[0] }, { gckpt_id(r), data[3] } };
    gckpt_result result = gckpt_gradients(e, feeds, 2, cases[i].x.d[0], NULL);
    CHECK_MSG(result == GCKPT_OK, "%s: %s %s", cases[i].name, gckpt_error_text(g), gckpt_error_text(e));
    const double *golden = cases[i].golden;
    for (int k = 0; k < count && result == GCKPT_OK; k++) {
        shape = gckpt_shape_of(fetches[k].tensor);
        double d = distance(gckpt_fetch(e, gckpt_id(fetches[k].tensor), fetches[k].gradient), golden, count_of(&shape));
        CHECK_MSG(d < 1e-6, "%s: tensor %d is off by %.2g", cases[i].name, k, d);
        golden += count_of(&shape);
    }
    util_free(e, p, g, s);
    for (int k = 0; k < 4; k++)
        free(data[k]);
}

/* Tests that the gradient of a max pool goes to the first maximum of each window, or to its first NaN, in 40 equal
 * channels. */
static void test_greatest(gckpt_isa isa)
{
    const float nan = float_of(0x7fc00000), inf = float_of(0x7f800000);
    const float pairs[8][2] = { { nan, 1 }, { 1, nan }, { nan, nan }, { 2, 2 }, { -0.0f, 0 }, { 0, -0.0f },
                                { -inf, -inf }, { -1, inf } };
    const int first[8] = { 1, 0, 1, 1, 1, 1, 1, 0 };
    enum { WIDE_C = 40 };
    float x[8 * 2 * WIDE_C];
    for (int i = 0; i < 8 * 2 * WIDE_C; i++)
        x[i] = pairs[i / WIDE_C / 2][i / WIDE_C % 2];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *t = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(8, 2, WIDE_C));
    gckpt_tensor *y = gckpt_max_pool(t, &(gckpt_window){ .size = { 0, 2 } });
    gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
    gckpt_fetch_spec fetches[2] = { { y, 0 }, { t, 1 } };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .fetch.specs = fetches, .fetch.count = 2 });
    gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .isa = isa });
    gckpt_feed feed = { gckpt_id(t), x };
    CHECK(gckpt_gradients(e, &feed, 1, 8, NULL) == GCKPT_OK);
    const float *out = gckpt_fetch(e, gckpt_id(y), 0), *dx = gckpt_fetch(e, gckpt_id(t), 1);
    for (int i = 0; i < 8 * WIDE_C; i++) {
        float want = pairs[i / WIDE_C][!first[i / WIDE_C]], got = out[i];
        CHECK(bits_of(got) == bits_of(want) || (got != got && want != want));
    }
    for (int i = 0; i < 8 * 2 * WIDE_C; i++)
        CHECK(dx[i] == (i / WIDE_C % 2 != first[i / WIDE_C / 2]));
    util_free(e, p, g, s);
}

/* == the mean in group and batch norm, computed as the manual (5q) defines it; groups of equal values = */
/* Returns element i of a group of m channels whose first element is x; channels vary fastest. */
static float *item(float *x, int64_t channels, int64_t m, int64_t i) { return x + i / m * channels + i % m; }

/* Returns the sum of a group's m channels over `places` pixels, as the manual defines it: each channel with
 * compensation (5e), then the channels in 32 lanes (5d). If `squares` is nonzero, sums the squares of x. */
static float group_sum(const float *x, int64_t places, int64_t m, int squares)
{
    float lane[32] = { 0 };
    for (int64_t c = 0; c < m; c++) {
        float sum = 0, low = 0;
        for (int64_t i = c; i < places * m; i += m) {
            volatile float square = x[i] * x[i];
            float y = (squares ? square : x[i]) - low, next = sum + y;
            low = (next - sum) - y, sum = next;
        }
        lane[c % 32] += sum;
    }
    for (int h = 16; h; h /= 2)
        for (int j = 0; j < h; j++)
            lane[j] += lane[j + h];
    return lane[0];
}

/* Normalises the group of m channels that begins at x, and writes it to y. */
static void group_norm(float *x, float *y, int64_t places, int64_t channels, int64_t m, const float *bias,
                       float epsilon)
{
    const int64_t n = places * m;
    float *d = (float *)malloc((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n; i++)
        d[i] = *item(x, channels, m, i) - x[0];
    const float mean = x[0] + group_sum(d, places, m, 0) / (float)n;
    for (int64_t i = 0; i < n; i++)
        d[i] = *item(x, channels, m, i) - mean;
    const float rstd = 1.0f / sqrtf(group_sum(d, places, m, 1) / (float)n + epsilon);
    for (int64_t i = 0; i < n; i++)
        *item(y, channels, m, i) = bias ? fmaf(d[i], rstd, bias[i % m]) : d[i] * rstd;
    free(d);
}

/* Tests one random norm against the manual's rules; groups = 0 means batch norm. If `equal` is nonzero, each group
 * repeats one number of any magnitude, so that y must be the bias, or 0 without a bias. */
static void test_mean(gckpt_isa isa, int equal)
{
    const int groups = between(0, 4);
    const int64_t m = groups ? between(1, chance(20) ? 150 : 20) : 1, rows = between(1, 4), drawn = between(1, 70);
    /* a norm needs at least two values per group */
    const int64_t places = drawn + (drawn * m * (groups ? 1 : rows) == 1);
    const int64_t c = groups ? groups * m : between(1, 70), images = groups ? rows : 1, each = rows / images * places;
    const int64_t micro = groups ? between(1, (int)rows) : rows, n = rows * places * c;
    float *x = (float *)malloc((size_t)n * sizeof *x), *y = (float *)malloc((size_t)n * sizeof *y);
    float *bias = chance(50) ? numbers(5, c, 0) : NULL;
    const float epsilon = chance(50) ? 0 : (float)between(1, 100) / 64;
    int64_t exact = 0;
    for (int64_t b = 0; b < images; b++)
        for (int64_t k = 0; k < c; k += m) {
            float *group = x + b * each * c + k, size = float_of(below(2) << 31 | below(255) << 23 | below(1 << 23));
            /* a group whose first channel is no multiple of 4 gets values between 33 and 101 */
            for (int64_t i = 0; i < each * m; i++)
                *item(group, c, m, i) = equal ? size : ((float)below(1000) / 999 + (float)(k % 4 * 100)) / 3;
            group_norm(group, y + b * each * c + k, each, c, m, bias ? bias + k : NULL, epsilon > 0 ? epsilon : 1e-5f);
            for (int64_t i = 0; equal && i < each * m; i++)
                exact += *item(y + b * each * c + k, c, m, i) == (bias ? bias[k + i % m] : 0);
        }
    CHECK(exact == (equal ? n : 0));
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(micro, places, c));
    gckpt_tensor *b = bias ? gckpt_constant(g, "bias", GCKPT_F32, gckpt_shape1(c), bias) : NULL;
    gckpt_tensor *out = groups ? gckpt_groupnorm(in, groups, NULL, b, epsilon)
                               : gckpt_batchnorm(in, NULL, b, running(g, "mean", c, 0, 0.1f),
                                                 running(g, "variance", c, 1, 0.1f), epsilon);
    gckpt_term term = { gckpt_sum_loss(out), 1, 0 };
    gckpt_fetch_spec fetches[2] = { { out, 0 }, { in, 1 } };
    gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = 2, .threads = between(1, 3) };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .isa = isa });
    for (int64_t row = 0; row < rows; row += micro) {
        const int64_t now = rows - row < micro ? rows - row : micro;
        gckpt_feed feed = { gckpt_id(in), x + row * places * c };
        CHECK_MSG(gckpt_gradients(e, &feed, 1, now, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g),
                  gckpt_error_text(e));
        const float *got = gckpt_fetch(e, gckpt_id(out), 0), *want = y + row * places * c;
        int64_t same = 0;
        while (got && same < now * places * c && bits_of(got[same]) == bits_of(want[same]))
            same++;
        CHECK_MSG(same == now * places * c, "%s, isa %d: %d x %d x %d in %d groups: not as the contract at %d",
                  equal ? "equal values" : "means", (int)isa, (int)rows, (int)places, (int)c, groups, (int)same);
    }
    util_free(e, p, g, s);
    free(x), free(y), free(bias);
}

/* Trains only the bias of a norm. The gradient of a bias needs neither x nor the statistics, so the kernel gets NULL
 * for both and must do no pointer arithmetic on NULL, which a sanitizer would report. */
static void bias_alone(void)
{
    float x[2 * 3 * 4] = { 1, 2, 3 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 3, 4));
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(4), (gckpt_init){ 0, 0, 0 });
    gckpt_term term = { gckpt_sum_loss(gckpt_groupnorm(in, 2, NULL, b, 0)), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .optimiser = GCKPT_SGD });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(in), x };
    gckpt_hyper hyper = gckpt_hyper_lr(1);
    gckpt_parameter q = { 0 };
    CHECK(gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK && gckpt_store_get(s, 0, &q) == GCKPT_OK);
    for (int i = 0; i < 4 && q.values; i++)
        /* the gradient of the mean loss: 6 of the 24 elements of the loss use this element of the bias */
        CHECK(q.values[i] == -0.25f);
    util_free(e, p, g, s);
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
    h = gckpt_tanh(gckpt_batchnorm(h, p[1], p[2], mean, variance, 0));
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
    h = gckpt_batchnorm(h, NULL, NULL, mean, variance, 0);
    h = gckpt_global_average_pool(gckpt_mul(h, h));
    n->term = (gckpt_term){ gckpt_mean_squared_error(h, n->t, NULL), 1, 0 };
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

static double evaluate(net *n, int64_t rows, gckpt_isa isa)
{
    net v = { .s = n->s };
    net_graph(&v, rows);
    gckpt_plan *p = gckpt_plan_new(v.g, &v.term, 1, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE });
    gckpt_exec *e = gckpt_exec_new(p, v.s, &(gckpt_exec_desc){ .isa = isa });
    gckpt_feed feeds[2] = { { gckpt_id(v.x), x_data[0] }, { gckpt_id(v.t), t_data[0] } };
    gckpt_report report = { 0 };
    const char *op = "";
    CHECK(gckpt_plan_split_exact(p, &op) && !op); /* no op of this graph mixes batch rows */
    CHECK_MSG(gckpt_forward(e, feeds, 2, BATCH_ROWS, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    util_free(e, p, v.g, NULL);
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
    file c = { 0 }; /* the printed plan must contain the momenta of both norms, 0.25 and 0.5 */
    CHECK(gckpt_plan_c(p, "net", file_write, &c) == GCKPT_OK &&
          strstr((char *)c.bytes, "{ 0U, 0U, 0U }, 1048576000U,"));
    CHECK(strstr((char *)c.bytes, "{ 0U, 0U, 1065353216U }, 1056964608U,") != NULL);
    free(c.bytes);
    gckpt_hyper sgd = gckpt_hyper_lr(0.25f);
    for (int step = 0; step < STEPS; step++) {
        gckpt_report report = { 0 };
        gckpt_result result = util_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &sgd, &report);
        CHECK_MSG(result == GCKPT_OK && fabs(report.loss - golden_losses[step]) < 2e-6,
                  "step %d: %s: loss %.9g, PyTorch %.9g", step, gckpt_error_text(e), report.loss, golden_losses[step]);
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
    double one = evaluate(&n, 1, GCKPT_ISA_AUTO), all = evaluate(&n, BATCH_ROWS, GCKPT_ISA_PLAIN);
    double short_last = evaluate(&n, 4, GCKPT_ISA_AUTO);
    CHECK_MSG(fabs(all - golden_losses[STEPS]) < 2e-6 && one == all && all == short_last,
              "inference: %.9g, %.9g, %.9g, PyTorch %.9g", one, all, short_last, golden_losses[STEPS]);
    util_free(e, p, n.g, n.s);
}

/* == the same bits in every configuration ====================================================== */
typedef struct {
    int64_t micro, stream;
    int pieces;
    gckpt_optimiser optimiser;
    gckpt_mode mode;
    /* least: if nonzero, the plan has the smallest budget that OPTIMAL accepts */
    int least, in_backward, stage, offload, threads, plain;
    gckpt_precision precision;
    unsigned debug;
    float clip;
    int skip;
} way;

static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    CHECK(!strstr(u->name, "mean") && !strstr(u->name, "variance"));
    for (int64_t i = 0; i < u->elements; i++)
        u->values[i] -= u->options->lr * u->gradient[i];
}

static gckpt_plan *plan_of(const net *n, const way *w)
{
    gckpt_plan_desc desc = { .mode = w->mode, .batch = BATCH_ROWS, .optimiser = w->optimiser,
                             .update_in_backward = w->in_backward, .threads = w->threads,
                             .kernels.stage_parameters = w->stage, .kernels.plain = w->plain,
                             .bf16.precision = w->precision,
                             .offload.bytes = w->offload ? 1 << 20 : 0, .offload.cost = 1 };
    gckpt_point least = { 0 };
    if (w->least) {
        gckpt_frontier *f = gckpt_frontier_new(n->g, &n->term, 1, &desc);
        CHECK(gckpt_frontier_get(f, 0, &least) == GCKPT_OK);
        gckpt_frontier_free(f);
    }
    desc.budget = least.bytes;
    gckpt_plan *p = gckpt_plan_new(n->g, &n->term, 1, &desc);
    CHECK_MSG(p != NULL, "plan: %s", gckpt_error_text(n->g));
    return p;
}

/* Trains `steps` steps in the configuration w and returns the store's hash. */
static uint64_t train(const way *w, int steps)
{
    net n;
    net_new(&n, w->micro);
    gckpt_plan *p = plan_of(&n, w);
    gckpt_exec_desc desc = { .debug = w->debug, .custom_optimiser = own_optimiser, .parallel_for = any_order,
                             .skip_nonfinite = w->skip };
    gckpt_exec *e = gckpt_exec_new(p, n.s, &desc);
    gckpt_hyper hyper = { .lr = 0.05f, .weight_decay = 0.1f, .clip = w->clip };
    for (int step = 0; step < steps; step++) {
        gckpt_result result = util_step(e, net_feed, &n, BATCH_ROWS, w->stream, w->pieces, &hyper, NULL);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
    }
    int slots = w->optimiser == GCKPT_ADAMW ? 2 : w->optimiser == GCKPT_MOMENTUM;
    /* bytes of optimiser state; running statistics have none */
    size_t state = (size_t)slots * 4 * (IN * C + 2 * C + C * C);
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == state);
    CHECK(gckpt_store_bytes(n.s) == state + 4 * (IN * C + 2 * C + C * C + 4 * C));
    if (w->debug & GCKPT_DEBUG_MEASURE)
        CHECK_MSG(gckpt_bytes_measured(e) == gckpt_plan_bytes(p), "%zu bytes of %zu", gckpt_bytes_measured(e),
                  gckpt_plan_bytes(p));
    CHECK(!w->offload || w->micro == BATCH_ROWS || gckpt_plan_describe(p).offloaded > 0);
    uint64_t hash = gckpt_store_hash(n.s);
    util_free(e, p, n.g, n.s);
    return hash;
}

static void test_ways(void)
{
    const unsigned debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_MEASURE;
    const way ways[] = { { .micro = 6, .debug = debug },
                         { .micro = 6, .mode = GCKPT_MEMORY_POOR, .debug = debug },
                         { .micro = 6, .mode = GCKPT_SEGMENTS, .debug = GCKPT_DEBUG_PLAIN },
                         { .micro = 6, .mode = GCKPT_SQRT, .threads = 3, .stage = 1, .debug = debug },
                         { .micro = 6, .mode = GCKPT_OPTIMAL, .least = 1, .pieces = 1, .debug = debug },
                         { .micro = 6, .mode = GCKPT_OPTIMAL, .least = 1, .offload = 1, .debug = debug },
                         { .micro = 6, .in_backward = 1, .mode = GCKPT_SEGMENTS },
                         { .micro = 6, .in_backward = 1, .mode = GCKPT_MEMORY_POOR, .debug = debug },
                         { .micro = 6, .clip = 1e9f, .plain = 1, .debug = GCKPT_DEBUG_FINITE },
                         { .micro = 6, .skip = 1, .threads = 2 } };
    const way loops[] = { { .micro = 3, .debug = debug },
                          { .micro = 3, .mode = GCKPT_OPTIMAL, .least = 1, .pieces = 2, .debug = debug },
                          { .micro = 3, .stream = 3, .threads = 2, .mode = GCKPT_SEGMENTS },
                          { .micro = 3, .stage = 1, .mode = GCKPT_MEMORY_POOR, .clip = 1e9f },
                          { .micro = 3, .least = 1, .mode = GCKPT_OPTIMAL, .offload = 1, .skip = 1 } };
    const gckpt_optimiser optimisers[] = { GCKPT_ADAMW, GCKPT_SGD, GCKPT_MOMENTUM, GCKPT_CUSTOM_OPTIMISER };
    for (int k = 0; k < 8; k++) {
        way w = k % 2 ? loops[0] : ways[0];
        w.optimiser = optimisers[k / 2];
        const uint64_t hash = train(&w, STEPS);
        for (int i = 1, all = k % 2 ? 5 : 10; i < all; i++) {
            w = k % 2 ? loops[i] : ways[i];
            w.optimiser = optimisers[k / 2];
            if (k > 1 && i % 3) /* every third configuration suffices for the later optimisers */
                continue;
            CHECK_MSG(train(&w, STEPS) == hash, "optimiser %d, micro-batches of %d: way %d has other bits", k / 2,
                      (int)w.micro, i);
        }
    }
    const way narrow[] = { { .micro = 3, .precision = GCKPT_BF16, .debug = debug },
                           { .micro = 3, .precision = GCKPT_BF16, .mode = GCKPT_MEMORY_POOR, .threads = 2 },
                           { .micro = 3, .precision = GCKPT_BF16, .mode = GCKPT_OPTIMAL, .least = 1, .debug = debug } };
    const uint64_t hash = train(&narrow[0], STEPS);
    CHECK(hash != train(&loops[0], STEPS) && hash == train(&narrow[1], STEPS) && hash == train(&narrow[2], STEPS));
}

/* == a step that is cancelled, skipped or fails changes no running statistic =================== */
static int cancel(void *user, const gckpt_progress *p)
{
    (void)user;
    return p->kind == GCKPT_BARRIER;
}

static void test_nothing(void)
{
    net n;
    net_new(&n, 3);
    gckpt_plan *p = plan_of(&n, &(way){ .micro = 3 });
    gckpt_exec *e = gckpt_exec_new(p, n.s, &(gckpt_exec_desc){ .skip_nonfinite = 1 });
    gckpt_exec *cancels = gckpt_exec_new(p, n.s, &(gckpt_exec_desc){ .progress = cancel });
    gckpt_exec *finite = gckpt_exec_new(p, n.s, &(gckpt_exec_desc){ .debug = GCKPT_DEBUG_FINITE });
    const gckpt_hyper hyper = { .lr = 0.05f, .weight_decay = 0.1f };
    gckpt_report report = { 0 };
    gckpt_feed feeds[2];
    gradcheck_result check;
    CHECK(util_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_OK);
    const uint64_t hash = gckpt_store_hash(n.s);
    const float before = x_data[1][7];
    net_feed(&n, 0, feeds);
    CHECK(util_step(cancels, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_CANCELLED);
    CHECK(gckpt_store_hash(n.s) == hash);
    CHECK(gckpt_gradients(e, feeds, 2, BATCH_ROWS, &report) == GCKPT_OK && report.grad_norm > 0);
    CHECK(gckpt_store_hash(n.s) == hash);
    const gckpt_plan_desc whole = { .batch = BATCH_ROWS };
    CHECK_MSG(gradcheck(n.s, &n.term, 1, &whole, feeds, 2, BATCH_ROWS, &check) == GCKPT_OK, "%s", check.text);
    /* two directions for each of the 4 trained parameters */
    CHECK_MSG(check.directions == 8, "%d directions", check.directions);
    CHECK(gckpt_store_hash(n.s) == hash);
    x_data[1][7] = float_of(0x7f800000);
    CHECK(util_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_SKIPPED);
    CHECK(util_step(finite, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_E_DATA);
    CHECK(gckpt_store_hash(n.s) == hash);
    x_data[1][7] = before;
    CHECK(util_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_OK);
    /* the hash must be that of a training in which only the two successful steps ran */
    CHECK(gckpt_store_hash(n.s) == train(&(way){ .micro = 3 }, 2));
    gckpt_exec_free(cancels);
    gckpt_exec_free(finite);
    util_free(e, p, n.g, n.s);
}

/* == a net with one pair of running statistics ================================================== */
enum { ROWS = 4 };
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *x, *y, *mean;
} small;

static float small_x[ROWS * 3] = { 1, 2, 3, -4, 5, 6, 7, -8, 9, 0, 1, 5 };

/* Builds the net. If `twice` is nonzero, a second batch norm, of 2 x, updates the same running statistics. If
 * `trains` is 0, w is frozen. */
static void small_new(small *n, float momentum, int twice, int trains)
{
    const gckpt_init one = { 0, 0, 1 };
    n->s = n->s ? n->s : gckpt_store_new(NULL);
    gckpt_graph *g = n->g = gckpt_graph_new(n->s, NULL);
    n->x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    n->y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(ROWS));
    n->mean = running(g, "mean", 3, 0.5f, momentum);
    gckpt_tensor *variance = running(g, "variance", 3, 1, momentum), *w = gckpt_param(g, "w", gckpt_shape1(3), one);
    gckpt_tensor *h = gckpt_batchnorm(n->x, w, NULL, n->mean, variance, 0);
    if (twice)
        h = gckpt_add(h, gckpt_batchnorm(gckpt_scale(n->x, 2), NULL, NULL, running(g, "mean", 3, 0.5f, momentum),
                                         variance, 0));
    if (!trains)
        CHECK(gckpt_store_freeze(n->s, "w", 1) == GCKPT_OK);
    gckpt_term term = { gckpt_cross_entropy(h, n->y, NULL, 0), 1, 0 };
    gckpt_fetch_spec fetch = { n->mean, 1 };
    n->p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .fetch.specs = &fetch, .fetch.count = 1 });
    n->e = gckpt_exec_new(n->p, n->s, NULL);
    CHECK_MSG(n->e != NULL, "small: %s %s", gckpt_error_text(g), gckpt_error_text(n->s));
}

static gckpt_result small_step(small *n, int32_t target, gckpt_report *report)
{
    int32_t y[ROWS] = { target, target, target, target };
    gckpt_feed feeds[2] = { { gckpt_id(n->x), small_x }, { gckpt_id(n->y), y } };
    return gckpt_step(n->e, feeds, 2, ROWS, &(gckpt_hyper){ .lr = 0.1f }, report);
}

static int three(small *n, const char *name, double a, double b, double c)
{
    const net as = { .s = n->s };
    const float *x = values(&as, name);
    const double want[3] = { a, b, c };
    return CHECK_MSG(distance(x, want, 3) < 2e-7, "%s: %.9g %.9g %.9g, not %g %g %g", name, (double)x[0],
                     (double)x[1], (double)x[2], a, b, c);
}

/* Tests the running statistics of small_x, whose channels have the means 1, 0 and 5.75 and the unbiased variances in
 * `variance`. */
static void test_small(void)
{
    const double variance[3] = { (49 + 16 + 1 - 4) / 3.0, (4 + 25 + 64 + 1) / 3.0, (9 + 36 + 81 + 25 - 132.25) / 3 };
    small n = { 0 };
    gckpt_report report;
    small_new(&n, 1, 0, 1);
    /* no target of the loss is valid, so the step must change nothing */
    CHECK(small_step(&n, -1, &report) == GCKPT_OK && report.count == 0 && report.step == 0);
    three(&n, "mean", 0.5, 0.5, 0.5);
    CHECK(small_step(&n, 2, &report) == GCKPT_OK && report.step == 1);
    /* with a momentum of 1, the new mean replaces the old one; the fetched "gradient" of running statistics is their
     * new value */
    three(&n, "mean", 1, 0, 5.75);
    three(&n, "variance", variance[0], variance[1], variance[2]);
    const float *g = gckpt_fetch(n.e, gckpt_id(n.mean), 1);
    CHECK(g && g[0] == 1 && g[1] == 0 && g[2] == 5.75f);
    /* freezing after planning: the plan's next step must be refused */
    CHECK(gckpt_store_freeze(n.s, "mean", 1) == GCKPT_OK);
    CHECK(small_step(&n, 2, NULL) == GCKPT_E_ARG && strstr(gckpt_error_text(n.e), "frozen after planning"));
    util_free(n.e, n.p, n.g, NULL);
    small_new(&n, 0.5f, 0, 1); /* a step must not change running statistics that were frozen before planning */
    CHECK(small_step(&n, 2, NULL) == GCKPT_OK);
    three(&n, "mean", 1, 0, 5.75);
    util_free(n.e, n.p, n.g, n.s);
    memset(&n, 0, sizeof n);
    small_new(&n, 0.25f, 0, 0); /* no parameter is trained, but the running statistics are still updated */
    CHECK(small_step(&n, 2, &report) == GCKPT_OK && report.step == 1 && report.grad_norm == 0);
    three(&n, "mean", 0.625, 0.375, 0.5 + 5.25 / 4);
    three(&n, "variance", 0.75 + variance[0] / 4, 0.75 + variance[1] / 4, 0.75 + variance[2] / 4);
    util_free(n.e, n.p, n.g, n.s);
    memset(&n, 0, sizeof n);
    /* two norms update the same statistics: they receive the average of the statistics of x and of 2 x */
    small_new(&n, 0.5f, 1, 1);
    CHECK(small_step(&n, 2, NULL) == GCKPT_OK);
    three(&n, "mean", 0.25 + 0.75, 0.25, 0.25 + 0.75 * 5.75);
    three(&n, "variance", 0.5 + 1.25 * variance[0], 0.5 + 1.25 * variance[1], 0.5 + 1.25 * variance[2]);
    util_free(n.e, n.p, n.g, n.s);
}

/* == one value per channel is refused ============================================================ */
/* Builds two batch norms: one of (rows,2,C) and, after a mean over the axis of size 2, one of (rows,C), in which each
 * channel has one value per row. */
static int two_norms(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(rows, 2, C)), *h = x;
    const gckpt_init zero = { 0, 0, 0 };
    if (user && rows != *(const int64_t *)user)
        return -1;
    h = gckpt_name(gckpt_batchnorm(h, NULL, NULL, running(g, "m", C, 0, 0.1f), running(g, "v", C, 1, 0.1f), 0), "wide");
    h = gckpt_batchnorm(gckpt_mean(h, 1), NULL, gckpt_param(g, "b", gckpt_shape1(C), zero),
                        running(g, "m2", C, 0, 0.1f), running(g, "v2", C, 1, 0.1f), 0);
    terms[0] = (gckpt_term){ gckpt_sum_loss(gckpt_tanh(gckpt_name(h, "flat"))), 1, 0 };
    return 1;
}

/* Batch norm needs two values per channel. No plan whose micro-batch provides only one may train, and a step whose
 * last micro-batch has a single row must be refused without changing anything. */
static void test_one_value(void)
{
    static const float data[9 * 2 * C] = { 1, 2, 3, -4, 5, 6, 7 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_term term;
    two_norms(g, 1, &term, NULL);
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .batch = 8 });
    CHECK_MSG(!p && gckpt_error(g) == GCKPT_E_SHAPE && strstr(gckpt_error_text(g), "\"flat\"") &&
                  strstr(gckpt_error_text(g), "one value per channel"), "one row: %s", gckpt_error_text(g));
    p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE });
    /* one value per channel is enough for inference, which uses the running statistics */
    CHECK_MSG(p != NULL, "inference: %s", gckpt_error_text(g));
    util_free(NULL, p, g, NULL);
    static const struct { int leaves; int64_t batch, micro, rows; int is_refused; } steps[] = {
        { 1, 9, 4, 9, 1 }, { 1, 9, 4, 5, 1 }, { 1, 9, 4, 1, 1 }, { 1, 9, 4, 8, 0 }, { 1, 9, 4, 7, 0 },
        { 1, 8, 8, 1, 1 }, { 1, 8, 8, 2, 0 }, { 2, 6, 2, 6, 1 }, { 2, 6, 3, 6, 0 }, { 2, 6, 3, 4, 1 }
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        g = gckpt_graph_new(s, NULL);
        two_norms(g, steps[i].micro, &term, NULL);
        p = gckpt_plan_new(g, &term, 1,
                           &(gckpt_plan_desc){ .batch = steps[i].batch, .ranks.virtual_ranks = steps[i].leaves });
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feed = { 0, data };
        const uint64_t before = gckpt_store_hash(s);
        for (int only = 0; only < 2; only++) {
            const gckpt_result result =
                only ? gckpt_step(e, &feed, 1, steps[i].rows, &(gckpt_hyper){ .lr = 0.1f }, NULL)
                     : gckpt_gradients(e, &feed, 1, steps[i].rows, NULL);
            CHECK_MSG(steps[i].is_refused ? result == GCKPT_E_ARG && strstr(gckpt_error_text(e), "flat #") &&
                                                strstr(gckpt_error_text(e), "one value per channel")
                                          : result == GCKPT_OK, "one value, step %d: %s", (int)i, gckpt_error_text(e));
        }
        CHECK((gckpt_store_hash(s) == before) == steps[i].is_refused);
        util_free(e, p, g, NULL);
    }
    static const struct { int leaves; int64_t batch, only, rows; const char *says;
    } fits[] = {
        { 1, 6, 0, 6, "" },
        { 2, 6, 0, 3, "" },
        { 1, 1, 0, 0, "one value per channel" },
        { 1, 6, 1, 0, "one value per channel" },
        { 2, 2, 0, 0, "mixes rows" },
    };
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
        int64_t only = fits[i].only;
        fit_error why;
        p = fit_plan(s, two_norms, only ? &only : NULL, fits[i].batch,
                      &(gckpt_plan_desc){ .ranks.virtual_ranks = fits[i].leaves }, NULL, &why);
        CHECK_MSG(gckpt_plan_describe(p).rows == fits[i].rows && (p || strstr(why.text, fits[i].says)),
                  "one value, fit %d: %d rows: %s", (int)i, (int)gckpt_plan_describe(p).rows, why.text);
        gckpt_plan_free(p);
    }
    gckpt_store_free(s);
}

/* == saving and resuming ======================================================================== */
static void test_resume(void)
{
    const gckpt_hyper hyper = { .lr = 0.05f, .weight_decay = 0.1f };
    const way w = { .micro = 3 };
    file f = { 0 };
    net n;
    for (int part = 0; part < 2; part++) {
        net_new(&n, 3);
        CHECK(part == 0 || gckpt_store_read(n.s, file_read, &f, f.size, NULL) == GCKPT_OK);
        gckpt_plan *p = plan_of(&n, &w);
        gckpt_exec *e = gckpt_exec_new(p, n.s, NULL);
        for (int step = part; step < STEPS * part + 1 - part; step++)
            CHECK(util_step(e, net_feed, &n, BATCH_ROWS, 0, 0, &hyper, NULL) == GCKPT_OK);
        CHECK(part || gckpt_store_write(n.s, file_write, &f, NULL) == GCKPT_OK);
        CHECK(part == 0 || gckpt_store_hash(n.s) == train(&w, STEPS));
        util_free(e, p, n.g, n.s);
    }
    free(f.bytes);
}

/* == refused calls ============================================================================== */
static void refused(gckpt_graph **g, gckpt_store *s, const gckpt_tensor *t, gckpt_result result, const char *text)
{
    CHECK_MSG(!t && gckpt_error(*g) == result && strstr(gckpt_error_text(*g), text), "refused: %d \"%s\", not \"%s\"",
              (int)gckpt_error(*g), gckpt_error_text(*g), text);
    gckpt_graph_free(*g);
    *g = gckpt_graph_new(s, NULL);
}

static void test_refusals(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init zero = { 0, 0, 0 };
#define X4 gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(2, 4, 5, 6))
#define X2 gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 6))
#define REFUSED(t, result, text) refused(&g, s, t, result, text)
#define WINDOW(...) &(gckpt_window){ __VA_ARGS__ }
    REFUSED(gckpt_max_pool(X4, NULL), GCKPT_E_SHAPE, "stride and dilation must be 1 or more");
    REFUSED(gckpt_max_pool(X4, WINDOW(.size = { 2, 2 }, .padding = { 2, 0 })), GCKPT_E_SHAPE, "padding 2");
    REFUSED(gckpt_average_pool(X4, WINDOW(.size = { 2, 2 }, .stride = { -1, 1 })), GCKPT_E_SHAPE, "stride -1");
    REFUSED(gckpt_average_pool(X4, WINDOW(.size = { 2, -2 })), GCKPT_E_SHAPE, "size -2");
    REFUSED(gckpt_average_pool(X4, WINDOW(.size = { 5, 2 })), GCKPT_E_SHAPE, "4 positions, the window needs 5");
    REFUSED(gckpt_max_pool(X2, WINDOW(.size = { 2, 2 })), GCKPT_E_SHAPE, "must be (B,H,W,C)");
    REFUSED(gckpt_max_pool(X4, WINDOW(.size = { 2, 2 }, .groups = 2)), GCKPT_E_ARG, "a convolution's");
    REFUSED(gckpt_max_pool(X4, WINDOW(.size = { 2, 2 }, .output_padding = { 0, 1 })), GCKPT_E_ARG, "a convolution's");
    REFUSED(gckpt_max_pool(gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(1, 300, 300, 1)), WINDOW(.size = { 257, 256 })),
            GCKPT_E_SHAPE, "257 x 256");
    REFUSED(gckpt_global_average_pool(X2), GCKPT_E_SHAPE, "no axes between");
    REFUSED(gckpt_groupnorm(X4, 4, NULL, NULL, 0), GCKPT_E_SHAPE, "not 4 equal groups");
    REFUSED(gckpt_groupnorm(X4, 0, NULL, NULL, 0), GCKPT_E_SHAPE, "not 0 equal groups");
    REFUSED(gckpt_groupnorm(X2, 6, NULL, NULL, 0), GCKPT_E_SHAPE, "one value per group");
    REFUSED(gckpt_groupnorm(gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(2, 1, 1, 6)), 6, NULL, NULL, 0), GCKPT_E_SHAPE,
            "one value per group");
    REFUSED(gckpt_groupnorm(gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(6)), 2, NULL, NULL, 0), GCKPT_E_SHAPE, "(B,..,C)");
    gckpt_tensor *x = X4, *p = gckpt_param(g, "p", gckpt_shape1(5), zero);
    REFUSED(gckpt_groupnorm(x, 2, p, NULL, 0), GCKPT_E_SHAPE, "needs a gain of [6]");
    REFUSED(gckpt_groupnorm(X4, 2, NULL, NULL, -1), GCKPT_E_ARG, "epsilon -1 must be positive, or 0 for 1e-5");
    x = X4, p = gckpt_param(g, "p", gckpt_shape1(5), zero);
    REFUSED(gckpt_groupnorm(x, 2, NULL, p, 0), GCKPT_E_SHAPE, "needs a bias of [6]");
    x = X4, p = running(g, "r5", 5, 0, 0.1f);
    REFUSED(gckpt_batchnorm(x, NULL, NULL, p, p, 0), GCKPT_E_SHAPE, "needs a mean of [6]");
    x = X4, p = gckpt_param(g, "p6", gckpt_shape1(6), zero);
    REFUSED(gckpt_batchnorm(x, NULL, NULL, p, p, 0), GCKPT_E_ARG, "must be a gckpt_running");
    x = X4, p = running(g, "r6", 6, 0, 0.1f);
    REFUSED(gckpt_batchnorm(x, p, NULL, p, p, 0), GCKPT_E_ARG, "is measured, not trained");
    x = X4, p = running(g, "r6", 6, 0, 0.1f);
    REFUSED(gckpt_add(x, gckpt_reshape(p, gckpt_shape2(1, 6))), GCKPT_E_ARG, "gckpt_detach");
    /* batch norm of a detached input is accepted, and so is a group norm with two values per group */
    x = X4, p = running(g, "r6", 6, 0, 0.1f);
    CHECK(gckpt_groupnorm(x, 6, NULL, NULL, 0) &&
          gckpt_groupnorm(gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(2, 6)), 3, NULL, NULL, 0));
    CHECK_MSG(gckpt_add(x, gckpt_detach(p)) != NULL, "%s", gckpt_error_text(g));
    REFUSED(running(g, "r6", 6, 0, 0.2f), GCKPT_E_ARG, "another momentum");
    p = gckpt_param(g, "p6", gckpt_shape1(6), zero);
    REFUSED(running(g, "p6", 6, 0, 0.2f), GCKPT_E_ARG, "a gckpt_param");
    REFUSED(running(g, "m", 6, 0, -0.1f), GCKPT_E_ARG, "from 0 to 1");
    REFUSED(running(g, "m", 6, 0, 1.5f), GCKPT_E_ARG, "from 0 to 1");
    REFUSED(running(g, "m", 6, 0, float_of(0x7fc00000)), GCKPT_E_ARG, "from 0 to 1");
    REFUSED(gckpt_running(g, NULL, gckpt_shape1(6), zero, 0.1f), GCKPT_E_ARG, "need a name");
    p = gckpt_param(g, "w", gckpt_shape2(3, 6), zero), x = running(g, "r6", 6, 0, 0.1f);
    REFUSED(gckpt_batchnorm(p, NULL, NULL, x, x, 0), GCKPT_E_ARG, "depends on no input");
    CHECK(!gckpt_running(NULL, "m", gckpt_shape1(6), zero, 0.1f) && !gckpt_max_pool(NULL, NULL));
    CHECK(!gckpt_average_pool(NULL, NULL) && !gckpt_global_average_pool(NULL) && !gckpt_groupnorm(NULL, 1, NULL, NULL, 0));
    CHECK(!gckpt_batchnorm(NULL, NULL, NULL, NULL, NULL, 0));
    util_free(NULL, NULL, g, s);
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
    test_greatest(GCKPT_ISA_PLAIN);
    test_greatest(GCKPT_ISA_AUTO);
    for (int i = 0; i < check_iterations(240); i++)
        if (gckpt_isa_available((gckpt_isa)(i / 2 % GCKPT_ISA_COUNT)))
            test_mean((gckpt_isa)(i / 2 % GCKPT_ISA_COUNT), i & 1);
    test_golden_net();
    test_ways();
    test_nothing();
    test_small();
    test_resume();
    test_one_value();
    test_refusals();
    for (int i = 0; i < STEPS; i++)
        free(x_data[i]), free(t_data[i]);
    bias_alone();
    return check_report("buffers");
}
