/* test_accuracy.c - results that are as accurate as binary32 allows, in cases in which simple algorithms lose
 * accuracy: sums over a million rows, norms of rows far from zero, rotary at large positions, scores of minus
 * infinity. Each result is compared with binary64, and must have the same bits in every split of the batch. */
#include "gradckpt.h"
#include "check.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one training step with its gradients, or one forward ---- */
enum { MOST_PARAMS = 6, MOST_ELEMENTS = 2048 };
typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_tensor *x, *y, *out; /* x, y: inputs; out: the tensor whose value forward() returns */
    int rows;
    float weight;
} net;
/* a function that adds inputs and parameters to the net and returns the loss, or NULL */
typedef gckpt_tensor *(*build)(net *n);

typedef struct {
    float gradient[MOST_PARAMS][MOST_ELEMENTS]; /* mean gradients */
    double loss;
    int64_t count;
} outcome;

/* Runs a training step on `batch` rows of x and y, in micro-batches of `micro` rows. */
static void step(build make, float weight, int batch, int micro, const void *x, const void *y,
                 outcome *o)
{
    net n = { gckpt_store_new(NULL), NULL, NULL, NULL, NULL, micro, weight };
    gckpt_plan_desc desc;
    gckpt_fetch_spec fetches[MOST_PARAMS];
    gckpt_hyper hyper;
    gckpt_report report;
    memset(&desc, 0, sizeof desc);
    memset(&hyper, 0, sizeof hyper);
    memset(o, 0, sizeof *o);
    n.graph = gckpt_graph_new(n.store, NULL);
    gckpt_term term = { make(&n), weight, 0 };
    desc.optimiser = GCKPT_SGD;
    desc.batch = batch;
    desc.fetch.specs = fetches;
    for (int i = 0; i < gckpt_store_count(n.store); i++) {
        gckpt_parameter p;
        gckpt_store_get(n.store, i, &p);
        fetches[i].tensor = gckpt_param(n.graph, p.name, p.shape, (gckpt_init){ 0, 0, 0 });
        fetches[i].gradient = 1;
        desc.fetch.count++;
    }
    gckpt_plan *plan = gckpt_plan_new(n.graph, &term, 1, &desc);
    CHECK_MSG(plan != NULL, "%s", gckpt_error_text(n.graph));
    gckpt_exec *e = gckpt_exec_new(plan, n.store, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(n.x), x }, { gckpt_id(n.y), y } };
    gckpt_result result = gckpt_step(e, feeds, n.y ? 2 : 1, batch, &hyper, &report);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
    o->loss = report.loss;
    o->count = report.count;
    for (int i = 0; i < desc.fetch.count && result == GCKPT_OK; i++) {
        gckpt_parameter p;
        gckpt_store_get(n.store, i, &p);
        memcpy(o->gradient[i], gckpt_fetch(e, gckpt_id(fetches[i].tensor), 1),
               (size_t)p.elements * sizeof(float));
    }
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(n.graph);
    gckpt_store_free(n.store);
}

/* Runs a forward. Returns its loss, or 0 if `make` returns NULL; copies the value of n.out to out. */
static double forward(build make, int rows, const void *x, const void *y, float *out)
{
    net n = { gckpt_store_new(NULL), NULL, NULL, NULL, NULL, rows, 1 };
    gckpt_plan_desc desc;
    gckpt_report report;
    memset(&desc, 0, sizeof desc);
    memset(&report, 0, sizeof report);
    n.graph = gckpt_graph_new(n.store, NULL);
    gckpt_term term = { make(&n), 1, 0 };
    gckpt_fetch_spec fetch = { n.out, 0 };
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = &fetch;
    desc.fetch.count = n.out != NULL;
    gckpt_plan *plan = gckpt_plan_new(n.graph, &term, term.loss != NULL, &desc);
    CHECK_MSG(plan != NULL, "%s", gckpt_error_text(n.graph));
    gckpt_exec *e = gckpt_exec_new(plan, n.store, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(n.x), x }, { gckpt_id(n.y), y } };
    CHECK_MSG(gckpt_forward(e, feeds, n.y ? 2 : 1, rows, &report) == GCKPT_OK, "%s",
              gckpt_error_text(e));
    const float *values = n.out ? gckpt_fetch(e, gckpt_id(n.out), 0) : NULL;
    gckpt_shape s = gckpt_shape_of(n.out);
    size_t bytes = sizeof(float);
    for (int i = 0; i < s.n; i++)
        bytes *= (size_t)s.d[i];
    if (values)
        memcpy(out, values, bytes);
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(n.graph);
    gckpt_store_free(n.store);
    return report.loss;
}

static gckpt_tensor *input(net *n, gckpt_shape s)
{
    s.d[0] = n->rows;
    return n->x = gckpt_input(n->graph, "x", GCKPT_F32, s);
}

static gckpt_tensor *parameter(net *n, const char *name, gckpt_shape s, float value)
{
    const gckpt_init init = { 0, 0, value };
    return gckpt_param(n->graph, name, s, init);
}

/* A sum in binary64, and the sum of the magnitudes of its terms. Rounding such a sum once to a float costs at most a
 * relative 6e-8. */
typedef struct {
    double sum, size;
} sum;

static void add(sum *s, double c)
{
    s->sum += c;
    s->size += fabs(c);
}

static void close_to(const char *what, float got, sum s, double by, double own)
{
    double want = s.sum / by;
    CHECK_MSG(fabs((double)got - want) <= 2e-7 * fabs(want) + own * s.size / by,
              "%s: %.9g, not %.9g: off by %.2g of it", what, (double)got, want,
              fabs((double)got - want) / fabs(want));
}

/* ---- gradients of vectors stay as accurate with a million rows as with few ---- */
enum { ROWS = 1000000, SPLITS = 3 };
static const int splits[SPLITS] = { ROWS, 125000, 99999 };

static gckpt_tensor *broadcasts(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, 3));
    gckpt_tensor *w = parameter(n, "w", gckpt_shape2(3, 3), 0.5f);
    gckpt_tensor *b = parameter(n, "bias", gckpt_shape1(3), 0);
    gckpt_tensor *m = parameter(n, "factor", gckpt_shape1(3), 1);
    gckpt_tensor *a = parameter(n, "summand", gckpt_shape2(1, 3), 0);
    gckpt_tensor *s = parameter(n, "subtrahend", gckpt_shape1(1), 0);
    x = gckpt_mul(gckpt_linear(x, w, b), m);
    return gckpt_sum_loss(gckpt_sub(gckpt_add(x, a), s));
}

static void test_broadcasts(float *x)
{
    static outcome o[SPLITS];
    sum bias = { 0, 0 }, scale = { 0, 0 }, subtrahend = { 0, 0 };
    for (int i = 0; i < 3 * ROWS; i++)
        x[i] = (float)(1 + i * 7 % 11) / 8;
    for (int i = 0; i < ROWS; i++) {
        const double h = 0.5 * ((double)x[3 * i] + (double)x[3 * i + 1] + (double)x[3 * i + 2]);
        add(&bias, (double)0.3f);
        add(&scale, (double)(0.3f * (float)h));
        for (int j = 0; j < 3; j++)
            add(&subtrahend, -(double)0.3f);
    }
    for (int i = 0; i < SPLITS; i++) {
        step(broadcasts, 0.3f, ROWS, splits[i], x, NULL, &o[i]);
        CHECK_MSG(!memcmp(&o[i], &o[0], sizeof o[0]), "broadcasts: split %d: other bits", i);
    }
    for (int j = 0; j < 3; j++) {
        close_to("bias", o[0].gradient[1][j], bias, 3. * ROWS, 1e-10);
        close_to("factor", o[0].gradient[2][j], scale, 3. * ROWS, 1e-10);
        close_to("summand", o[0].gradient[3][j], bias, 3. * ROWS, 1e-10);
    }
    close_to("subtrahend", o[0].gradient[4][0], subtrahend, 3. * ROWS, 1e-10);
}

static gckpt_tensor *norms(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, 4));
    gckpt_tensor *gain = parameter(n, "gain", gckpt_shape1(4), 1);
    gckpt_tensor *bias = parameter(n, "bias", gckpt_shape1(4), 5);
    gckpt_tensor *other = parameter(n, "other", gckpt_shape1(4), 1);
    n->y = gckpt_input(n->graph, "y", GCKPT_F32, gckpt_shape2(n->rows, 4));
    gckpt_tensor *h = gckpt_rmsnorm(gckpt_layernorm(x, gain, bias, 0), other, 0);
    return gckpt_mean_squared_error(h, n->y, NULL);
}

/* Tests the gradients of h = layernorm(x), z = h + 5, r = z / rms(z) under a squared error against y, where dr = 2 (r
 * - y). */
static void test_norms(float *x, float *y)
{
    static outcome o[SPLITS];
    sum gain[4], bias[4], other[4];
    memset(gain, 0, sizeof gain);
    memset(bias, 0, sizeof bias);
    memset(other, 0, sizeof other);
    for (int i = 0; i < 4 * ROWS; i++) {
        x[i] = (float)(i * 7 % 11 + i % 4);
        y[i] = (float)(i % 2) - 3;
    }
    for (int i = 0; i < ROWS; i++) {
        double mean = 0, variance = 0, square = 0, h[4], z[4], g[4], along = 0;
        for (int j = 0; j < 4; j++)
            mean += (double)x[4 * i + j] / 4;
        for (int j = 0; j < 4; j++)
            variance += pow((double)x[4 * i + j] - mean, 2) / 4;
        for (int j = 0; j < 4; j++) {
            h[j] = ((double)x[4 * i + j] - mean) / sqrt(variance + (double)1e-5f);
            z[j] = h[j] + 5;
            square += z[j] * z[j] / 4;
        }
        const double rstd = 1 / sqrt(square + (double)1e-5f);
        for (int j = 0; j < 4; j++) {
            g[j] = 2 * (z[j] * rstd - (double)y[4 * i + j]);
            along += g[j] * z[j] * rstd / 4;
        }
        for (int j = 0; j < 4; j++) {
            const double dz = rstd * (g[j] - z[j] * rstd * along);
            add(&other[j], g[j] * z[j] * rstd);
            add(&gain[j], dz * h[j]);
            add(&bias[j], dz);
            gain[j].size += fabs(rstd * g[j] * h[j]); /* dz, the gradient of z, is a difference of terms of this size */
            bias[j].size += fabs(rstd * g[j]);
        }
    }
    for (int i = 0; i < SPLITS; i++) {
        step(norms, 1, ROWS, splits[i], x, y, &o[i]);
        CHECK_MSG(!memcmp(&o[i], &o[0], sizeof o[0]), "norms: split %d: other bits", i);
    }
    for (int j = 0; j < 4; j++) { /* each row's contribution is a rounded float, which limits the accuracy */
        close_to("gain", o[0].gradient[0][j], gain[j], 4. * ROWS, 3e-7);
        close_to("bias", o[0].gradient[1][j], bias[j], 4. * ROWS, 3e-7);
        close_to("other", o[0].gradient[2][j], other[j], 4. * ROWS, 1e-7);
    }
}

static gckpt_tensor *places(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape3(0, 2, 2));
    gckpt_tensor *table = parameter(n, "table", gckpt_shape2(3, 2), 0);
    gckpt_tensor *middle = gckpt_reshape(gckpt_sum(x, 1), gckpt_shape3(n->rows, 1, 2));
    middle = gckpt_mul(middle, parameter(n, "middle", gckpt_shape1(2), 1));
    return gckpt_sum_loss(gckpt_add(gckpt_positions(x, table, 0), middle));
}

static void test_places(float *x)
{
    static outcome o[SPLITS];
    sum one = { 0, 0 }, middle = { 0, 0 };
    for (int i = 0; i < 4 * ROWS; i++)
        x[i] = 0.25f;
    for (int i = 0; i < ROWS; i++) {
        add(&one, (double)0.3f);
        add(&middle, (double)(0.3f + 0.3f) * 0.5);
    }
    for (int i = 0; i < SPLITS; i++) {
        step(places, 0.3f, ROWS, splits[i], x, NULL, &o[i]);
        CHECK_MSG(!memcmp(&o[i], &o[0], sizeof o[0]), "places: split %d: other bits", i);
    }
    for (int j = 0; j < 4; j++)
        close_to("table", o[0].gradient[0][j], one, 4. * ROWS, 1e-10);
    for (int j = 0; j < 2; j++)
        close_to("middle", o[0].gradient[1][j], middle, 4. * ROWS, 1e-10);
}

/* ---- a user-defined op that sums a gradient over rows must be as accurate as gckpt_mul ---- */
static gckpt_result user_mul_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

static void user_mul_forward(const gckpt_call *call)
{
    for (int64_t i = 0, c = call->shape.d[1]; i < call->shape.d[0] * c; i++)
        call->out[i] = call->in[0].data[i] * call->in[1].data[i % c];
}

static void user_mul_backward(const gckpt_call *call)
{
    const gckpt_arg *m = &call->in[1];
    const int64_t c = call->shape.d[1];
    if (!m->accumulate)
        memset(m->grad, 0, (size_t)c * sizeof(float));
    for (int64_t i = 0; i < call->shape.d[0] * c; i++) {
        const volatile float product = call->grad_out[i] * call->in[0].data[i];
        gckpt_sum_add(&m->grad[i % c], m->compensation ? &m->compensation[i % c] : NULL, product);
    }
}

static const gckpt_op user_mul = { "factor",
                                 user_mul_shape,
                                 user_mul_forward,
                                 user_mul_backward,
                                 NULL,
                                 NULL,
                                 { 0, GCKPT_IN(0) | GCKPT_SUMS },
                                 0,
                                 NULL,
                                 NULL };

static gckpt_tensor *by_user(net *n)
{
    gckpt_tensor *in[2] = { input(n, gckpt_shape2(0, 3)), NULL };
    in[1] = parameter(n, "factor", gckpt_shape1(3), 1);
    return gckpt_sum_loss(gckpt_apply(&user_mul, in, 2, NULL, 0));
}

static gckpt_tensor *by_library(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, 3));
    return gckpt_sum_loss(gckpt_mul(x, parameter(n, "factor", gckpt_shape1(3), 1)));
}

static void test_user(float *x)
{
    static outcome theirs, ours;
    for (int i = 0; i < 3 * 1000; i++)
        x[i] = sinf((float)i) + 0.7f;
    for (int micro = 1000; micro > 0; micro = micro > 7 ? 7 : micro - 6) {
        step(by_user, 0.3f, 1000, micro, x, NULL, &theirs);
        step(by_library, 0.3f, 1000, micro, x, NULL, &ours);
        CHECK_MSG(!memcmp(&ours, &theirs, sizeof ours), "a user's sum, rows of %d", micro);
    }
}

/* ---- layernorm ---- */
static gckpt_tensor *one_column(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, 1));
    gckpt_tensor *w = parameter(n, "w", gckpt_shape1(1), 1);
    gckpt_tensor *gain = parameter(n, "gain", gckpt_shape1(1), 1.1f);
    n->y = gckpt_input(n->graph, "y", GCKPT_F32, gckpt_shape2(n->rows, 1));
    return gckpt_mean_squared_error(gckpt_layernorm(gckpt_mul(x, w), gain, NULL, 0), n->y, NULL);
}

enum { WIDE = 96 };
static gckpt_tensor *wide_row(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, WIDE));
    n->out = gckpt_layernorm(x, NULL, NULL, 0);
    return NULL;
}

enum { MANY = 4096 };
static gckpt_tensor *long_row(net *n)
{
    n->out = gckpt_layernorm(input(n, gckpt_shape2(0, MANY)), NULL, NULL, 0);
    return NULL;
}

static void test_layernorm(float *x, float *y)
{
    static outcome o;
    static float out[64 * WIDE];
    for (int i = 0; i < 4; i++) {
        x[i] = (float)(2 * i + 1);
        y[i] = (float)(-700 * i) - 333;
    }
    step(one_column, 1, 4, 4, x, y, &o);
    CHECK_MSG(o.gradient[0][0] == 0, "one column: %g", (double)o.gradient[0][0]);
    double worst = 0;
    for (int r = 0; r < 64; r++) /* mean 1e4, deviation about 1 */
        for (int j = 0; j < WIDE; j++)
            x[r * WIDE + j] =
                1e4f + 5 * sinf((float)(r * WIDE + j) * 0.7f) * cosf((float)(r + j * 31));
    forward(wide_row, 64, x, NULL, out);
    for (int r = 0; r < 64; r++) {
        double mean = 0, variance = 0;
        for (int j = 0; j < WIDE; j++)
            mean += (double)x[r * WIDE + j] / WIDE;
        for (int j = 0; j < WIDE; j++)
            variance += pow((double)x[r * WIDE + j] - mean, 2) / WIDE;
        for (int j = 0; j < WIDE; j++) {
            const double want = ((double)x[r * WIDE + j] - mean) / sqrt(variance + (double)1e-5f);
            worst = fmax(worst, fabs((double)out[r * WIDE + j] - want));
        }
    }
    CHECK_MSG(worst < 1e-6, "rows far from zero: off by %.2g deviations", worst);
    /* an outlier in a row, as its first element or later, must not make the other elements less accurate */
    for (int first = 0; first < 2; first++) {
        for (int j = 0; j < MANY; j++)
            x[j] = j == (first ? 0 : 5) ? 1e6f : 1 + sinf((float)j) / 8;
        double mean = 0, variance = 0, wrong = 0;
        forward(long_row, 1, x, NULL, y);
        for (int j = 0; j < MANY; j++)
            mean += (double)x[j] / MANY;
        for (int j = 0; j < MANY; j++)
            variance += pow((double)x[j] - mean, 2) / MANY;
        for (int j = 0; j < MANY; j++) {
            const double want = ((double)x[j] - mean) / sqrt(variance + (double)1e-5f);
            wrong = fmax(wrong, fabs((double)y[j] / want - 1));
        }
        CHECK_MSG(wrong < 1e-6, "outlier %s: off by %.2g", first ? "first" : "inside", wrong);
    }
    for (int i = 0; i < WIDE; i++)
        x[i] = 1e25f;
    forward(wide_row, 1, x, NULL, out);
    for (int i = 0; i < WIDE; i++)
        CHECK_MSG(out[i] == 0, "equal elements: %g", (double)out[i]);
}

/* ---- rotary at large positions ---- */
enum { DISTANT = 100001 };
static gckpt_tensor *distant(net *n)
{
    n->out = gckpt_rotary(input(n, gckpt_shape3(0, DISTANT, 8)), &(gckpt_rotary_desc){ .heads = 1 });
    return NULL;
}
static gckpt_tensor *distant_slow(net *n)
{
    n->out = gckpt_rotary(input(n, gckpt_shape3(0, DISTANT, 8)), &(gckpt_rotary_desc){ .heads = 2, .base = 500000 });
    return NULL;
}
static gckpt_tensor *distant_fast(net *n) /* each position turns by more than 2 pi */
{
    n->out = gckpt_rotary(input(n, gckpt_shape3(0, DISTANT, 8)), &(gckpt_rotary_desc){ .heads = 1, .base = 0.001f });
    return NULL;
}

/* Frequencies of 2^96 and more count as 0, so the second pair of columns is not rotated. */
static gckpt_tensor *beyond(net *n)
{
    n->out = gckpt_rotary(input(n, gckpt_shape3(0, 3, 4)), &(gckpt_rotary_desc){ .heads = 1, .base = 1e-38f * 1e-3f });
    return NULL;
}

static void test_rotary(float *x, float *y)
{
    const build nets[3] = { distant, distant_slow, distant_fast };
    const int sizes[3] = { 8, 4, 8 };
    const double bases[3] = { 10000, 500000, (double)0.001f };
    for (int i = 0; i < DISTANT * 8; i++)
        x[i] = (float)(i % 7 - 3) / 3;
    for (int i = 0; i < 3; i++) {
        double worst = 0;
        const int d = sizes[i];
        forward(nets[i], 1, x, NULL, y);
        for (int at = 0; at < DISTANT * 8; at++) {
            const int column = at % d, pair = column % (d / 2), low = at - column + pair;
            const double angle = at / 8 * pow(bases[i], -2. * pair / d);
            const double a = (double)x[low], b = (double)x[low + d / 2];
            const double want =
                column < d / 2 ? a * cos(angle) - b * sin(angle) : b * cos(angle) + a * sin(angle);
            worst = fmax(worst, fabs((double)y[at] - want));
        }
        CHECK_MSG(worst < 3e-7, "rotary, base %g: off by %.2g", bases[i], worst);
    }
    forward(beyond, 1, x, NULL, y);
    for (int at = 1; at < 12; at += 2)
        CHECK_MSG(y[at] >= x[at] && y[at] <= x[at], "rotary beyond: %d: %g", at, (double)y[at]);
}

/* ---- scores of minus infinity ---- */
enum { V = 1100 };
static gckpt_tensor *classes(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, V));
    gckpt_tensor *b = parameter(n, "b", gckpt_shape1(V), 0);
    n->y = gckpt_input(n->graph, "y", GCKPT_I32, gckpt_shape1(n->rows));
    return gckpt_cross_entropy(gckpt_add(x, b), n->y, NULL, 0);
}

/* Classes whose logits are x times 1e30, so that an x of -1e38 gives -infinity. */
static gckpt_tensor *linear_classes(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape2(0, 1));
    gckpt_tensor *w = parameter(n, "w", gckpt_shape2(V, 1), 0);
    gckpt_parameter p;
    n->y = gckpt_input(n->graph, "y", GCKPT_I32, gckpt_shape1(n->rows));
    gckpt_store_get(n->store, 0, &p);
    for (int i = 0; i < V; i++)
        p.values[i] = i < 1024 || n->weight > 1 ? -1e38f : (float)(i % 3) * 1e-30f;
    return gckpt_linear_cross_entropy(x, w, n->y, NULL);
}

static gckpt_tensor *probabilities(net *n)
{
    n->out = gckpt_softmax(input(n, gckpt_shape2(0, V)));
    return NULL;
}

static void test_classes(float *x, float *y)
{
    static outcome o;
    static float thousand[1] = { 1e30f };
    int32_t target[1] = { 1090 };
    double total = 0;
    for (int i = 0; i < V; i++) {
        x[i] = i < 1024 ? -INFINITY : (float)(i % 3);
        total += i < 1024 ? 0 : exp((double)(i % 3));
    }
    const double loss = log(total) - (double)(1090 % 3);
    step(classes, 1, 1, 1, x, target, &o);
    CHECK_MSG(fabs(o.loss - loss) < 1e-6, "masked classes: loss %.9g, not %.9g", o.loss, loss);
    for (int i = 0; i < V; i++) {
        const double want = (i < 1024 ? 0 : exp((double)(i % 3)) / total) - (i == 1090);
        CHECK_MSG(fabs((double)o.gradient[0][i] - want) < 1e-7, "masked class %d: %g, not %g", i,
                  (double)o.gradient[0][i], want);
    }
    step(linear_classes, 1, 1, 1, thousand, target, &o);
    CHECK_MSG(fabs(o.loss - loss) < 1e-6, "masked classes: linear loss %.9g, not %.9g", o.loss,
              loss);
    forward(probabilities, 1, x, NULL, y);
    for (int i = 0; i < V; i++)
        CHECK(i < 1024 ? y[i] == 0 : fabs((double)y[i] - exp((double)(i % 3)) / total) < 1e-7);
    for (int i = 0; i < V; i++) /* every logit is -infinity: all probabilities are 0, and the loss is infinite */
        x[i] = -INFINITY;
    step(classes, 1, 1, 1, x, target, &o);
    CHECK_MSG(o.loss > 1e300, "no class: loss %g", o.loss);
    for (int i = 0; i < V; i++)
        CHECK_MSG(o.gradient[0][i] == (i == 1090 ? -1 : 0), "no class: %d: %g", i,
                  (double)o.gradient[0][i]);
    step(linear_classes, 2, 1, 1, thousand, target, &o);
    CHECK_MSG(o.loss > 1e300, "no class: linear loss %g", o.loss);
    forward(probabilities, 1, x, NULL, y);
    for (int i = 0; i < V; i++)
        CHECK_MSG(y[i] == 0, "no class: softmax %d: %g", i, (double)y[i]);
}

enum { KEYS = 130 };
static gckpt_tensor *keys(net *n)
{
    gckpt_tensor *x = input(n, gckpt_shape3(0, KEYS, 3)); /* q, k, v have one column each */
    gckpt_tensor *w = parameter(n, "w", gckpt_shape1(3), 1);
    x = gckpt_mul(x, w);
    gckpt_tensor *q = gckpt_slice(x, 2, 0, 1), *k = gckpt_slice(x, 2, 1, 2);
    return gckpt_sum_loss(gckpt_attention(q, k, gckpt_slice(x, 2, 2, 3), &(gckpt_attention_desc){ .heads = 1 }));
}

static void test_keys(float *x)
{
    static outcome o;
    /* masks the first 64 keys, which are a whole tile, then all keys */
    for (int hidden = 64; hidden <= KEYS; hidden += KEYS - 64) {
        double mean = 0;
        for (int j = 0; j < KEYS; j++) {
            x[3 * j] = 1e20f;
            x[3 * j + 1] = j < hidden ? -1e20f : 0;
            x[3 * j + 2] = (float)(j % 5);
            mean += j < hidden ? 0 : (double)(j % 5) / (KEYS - hidden);
        }
        step(keys, 1, 1, 1, x, NULL, &o);
        CHECK_MSG(fabs(o.loss - mean) < 1e-6, "%d hidden keys: %.9g, not %.9g", hidden, o.loss,
                  mean);
        CHECK_MSG(fabs((double)o.gradient[0][2] - mean) < 4e-6,
                  /* sums over 130 queries */ "%d hidden keys: dv %.9g", hidden,
                  (double)o.gradient[0][2]);
        CHECK_MSG(o.gradient[0][0] == 0, "%d hidden keys: dq %g", hidden, (double)o.gradient[0][0]);
    }
}

int main(void)
{
    float *x = (float *)malloc(4 * ROWS * sizeof *x), *y = (float *)malloc(4 * ROWS * sizeof *y);
    test_broadcasts(x);
    test_norms(x, y);
    test_places(x);
    test_user(x);
    test_layernorm(x, y);
    test_rotary(x, y);
    test_classes(x, y);
    test_keys(x);
    free(x);
    free(y);
    return check_report("test_accuracy");
}
