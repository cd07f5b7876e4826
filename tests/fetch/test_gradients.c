/* test_gradients.c - gradients of inputs, of constants and of frozen parameters. Also tests at which points of a step
 * gckpt_fetch can return which values, and gckpt_collect, gckpt_gradients and GCKPT_DEBUG_FINITE. */
#include "gradckpt.h"
#include "backend.h"
#include "examples/gradcheck.h"
#include "net.h"

#include <math.h>

#include "golden/gradients.h"

enum { ROWS = 6, IN = 8, WIDE = 10, OUT = 5, REPEAT = 23 };

/* Fills to[0..n-1] with the numbers that make_gradients.py uses. */
static void numbers(float *to, int64_t n, int step, float plus)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = plus + (float)(i * step % REPEAT - 11) / 16;
}

static void set(gckpt_store *s, const char *name, int step, float plus)
{
    gckpt_parameter q;
    CHECK(gckpt_store_get(s, gckpt_store_find(s, name), &q) == GCKPT_OK);
    numbers(q.values, q.elements, step, plus);
    gckpt_store_push(s, name);
}

static int near(const float *got, const double *want, int n)
{
    double worst = 0, size = 0;
    for (int i = 0; i < n; i++) {
        double gap = fabs((double)got[i] - want[i]);
        worst = gap > worst || gap != gap ? gap : worst;
        size = fabs(want[i]) > size ? fabs(want[i]) : size;
    }
    return worst <= 2e-6 * size;
}

/* ---- a classifier of rows of 8 numbers in 5 classes: x k + k -> linear -> layernorm -> gelu -> linear ->
 * cross-entropy, where the k are two constants with the same numbers ---- */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *x, *k, *shift, *y, *h, *logits;
    gckpt_term term;
} classes;

static float in_data[ROWS * IN], k_data[IN];
static const int32_t class_data[ROWS] = { 0, 3, -1, 4, 1, 1 };

static int feed(const void *user, int64_t row, gckpt_feed *f)
{
    const classes *m = (const classes *)user;
    f[0] = (gckpt_feed){ gckpt_id(m->x), in_data + row * IN };
    f[1] = (gckpt_feed){ gckpt_id(m->y), class_data + row };
    return 2;
}

static void graph(classes *m, int64_t rows)
{
    const gckpt_init none = { 0, 0, 0 };
    memset(m, 0, sizeof *m);
    numbers(in_data, ROWS * IN, 37, 0);
    numbers(k_data, IN, 13, 0);
    m->s = gckpt_store_new(NULL);
    m->g = gckpt_graph_new(m->s, NULL);
    m->x = gckpt_input(m->g, "x", GCKPT_F32, gckpt_shape2(rows, IN));
    m->y = gckpt_input(m->g, "y", GCKPT_I32, gckpt_shape1(rows));
    m->k = gckpt_constant(m->g, "k", GCKPT_F32, gckpt_shape1(IN), k_data);
    m->shift = gckpt_constant(m->g, "shift", GCKPT_F32, gckpt_shape1(IN), k_data);
    gckpt_tensor *w1 = gckpt_param(m->g, "w1", gckpt_shape2(IN, WIDE), none);
    gckpt_tensor *b1 = gckpt_param(m->g, "b1", gckpt_shape1(WIDE), none);
    gckpt_tensor *gain = gckpt_param(m->g, "gain", gckpt_shape1(WIDE), none);
    gckpt_tensor *w2 = gckpt_param(m->g, "w2", gckpt_shape2(WIDE, OUT), none);
    gckpt_segment_begin(m->g);
    m->h = gckpt_linear(gckpt_add(gckpt_mul(m->x, m->k), m->shift), w1, b1);
    m->h = gckpt_name(gckpt_gelu(gckpt_layernorm(m->h, gain, NULL, 0)), "h");
    gckpt_segment_end(m->g);
    m->logits = gckpt_linear(m->h, w2, NULL);
    m->term = (gckpt_term){ gckpt_cross_entropy(m->logits, m->y, NULL, 0), 1, 0 };
    set(m->s, "w1", 29, 0);
    set(m->s, "b1", 5, 0);
    set(m->s, "gain", 7, 1);
    set(m->s, "w2", 31, 0);
}

static void plan(classes *m, const gckpt_plan_desc *d, const gckpt_exec_desc *x)
{
    m->p = gckpt_plan_new(m->g, &m->term, 1, d);
    m->e = gckpt_exec_new(m->p, m->s, x);
    CHECK_MSG(m->e != NULL, "%s %s", gckpt_error_text(m->g), gckpt_error_text(m->s));
}

static void drop(classes *m)
{
    util_free(m->e, m->p, m->g, m->s);
}

static void test_golden(void)
{
    for (int frozen = 0; frozen < 2; frozen++)
        for (int64_t rows = 1; rows <= ROWS; rows++) {
            classes m;
            gckpt_report report;
            gckpt_feed f[2];
            float dx[ROWS * IN];
            graph(&m, rows);
            gckpt_fetch_spec fetches[3] = { { m.x, 1 }, { m.k, 1 }, { m.shift, 1 } };
            gckpt_plan_desc d = { .batch = ROWS, .fetch.specs = fetches, .fetch.count = 3 };
            float dk[IN];
            if (frozen)
                gckpt_store_freeze(m.s, "*", 1);
            plan(&m, &d, NULL);
            CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, dx, ROWS * IN) == GCKPT_OK);
            CHECK(gckpt_gradients(m.e, f, feed(&m, 0, f), ROWS, &report) == GCKPT_OK);
            CHECK(report.count == 5 && report.step == 0 && gckpt_store_step(m.s) == 0);
            CHECK(fabs(report.loss * 5 / golden_classes_loss[0] - 1) < 1e-6);
            CHECK(frozen == !(report.grad_norm > 0));
            CHECK(near(dx, golden_classes_dx, ROWS * IN));
            for (int i = 0; i < IN; i++)
                dk[i] = gckpt_fetch(m.e, gckpt_id(m.k), 1)[i] + gckpt_fetch(m.e, gckpt_id(m.shift), 1)[i];
            CHECK(near(dk, golden_classes_dk, IN));
            drop(&m);
        }
}


/* Compares the gradients of x and y with golden ones for self-attention with two heads over x and a squared error
 * against y; nothing is trained. */
static void test_golden_attention(void)
{
    enum { T_ = 5, C_ = 6, N = 2 * T_ * C_ };
    for (int64_t rows = 1; rows <= 2; rows++) {
        classes m = { 0 };
        gckpt_report report;
        float x[N], y[N], dx[N], dy[N];
        const gckpt_init none = { 0, 0, 0 };
        numbers(x, N, 19, 0);
        numbers(y, N, 11, 0);
        m.s = gckpt_store_new(NULL);
        m.g = gckpt_graph_new(m.s, NULL);
        m.x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape3(rows, T_, C_));
        m.y = gckpt_input(m.g, "y", GCKPT_F32, gckpt_shape3(rows, T_, C_));
        gckpt_tensor *w = gckpt_param(m.g, "w", gckpt_shape2(C_, 3 * C_), none);
        gckpt_tensor *qkv = gckpt_linear(m.x, w, NULL), *q = gckpt_slice(qkv, 2, 0, C_);
        gckpt_tensor *k = gckpt_slice(qkv, 2, C_, 2 * C_), *v = gckpt_slice(qkv, 2, 2 * C_, 3 * C_);
        m.h = gckpt_add(m.x, gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
        m.term = (gckpt_term){ gckpt_mean_squared_error(m.h, m.y, NULL), 1, 0 };
        set(m.s, "w", 3, 0);
        gckpt_store_freeze(m.s, "*", 1);
        gckpt_fetch_spec fetches[2] = { { m.x, 1 }, { m.y, 1 } };
        gckpt_plan_desc d = { .batch = 2, .fetch.specs = fetches, .fetch.count = 2 };
        plan(&m, &d, NULL);
        gckpt_feed f[2] = { { gckpt_id(m.x), x }, { gckpt_id(m.y), y } };
        CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, dx, N) == GCKPT_OK);
        CHECK(gckpt_collect(m.e, gckpt_id(m.y), 1, dy, N) == GCKPT_OK);
        CHECK(gckpt_gradients(m.e, f, 2, 2, &report) == GCKPT_OK && report.count == N);
        CHECK(fabs(report.loss * N / golden_attention_loss[0] - 1) < 1e-6);
        CHECK(near(dx, golden_attention_dx, N) && near(dy, golden_attention_dy, N));
        drop(&m);
    }
}

/* ---- fetches have the same bits in every mode, budget, split and way to feed, and do not change any other result
 * ---- */
enum { FETCHED = 6 };
typedef struct {
    float dx[ROWS * IN], dh[ROWS * WIDE], h[ROWS * WIDE], dk[IN], dw[IN * WIDE], dgain[WIDE];
    gckpt_report report[2];
    uint64_t hash;
} found;

typedef struct {
    gckpt_plan_desc d;
    gckpt_exec_desc x;
    int64_t rows, stream;
    int pieces, frozen, unfetched;
} way;

static size_t offload_to(void *user, size_t at, const void *from, size_t bytes)
{
    memcpy((unsigned char *)user + at, from, bytes);
    return bytes;
}
static size_t reload_from(void *user, size_t at, void *to, size_t bytes)
{
    memcpy(to, (unsigned char *)user + at, bytes);
    return bytes;
}

/* Trains two steps in this configuration and returns the results of the second one. */
static found train(const way *w)
{
    const gckpt_hyper adamw = { 0.01f, 0.1f, 0, 0, 0, 0, 0 };
    classes m;
    found o;
    memset(&o, 0, sizeof o);
    graph(&m, w->rows);
    if (w->frozen)
        gckpt_store_freeze(m.s, w->frozen == 1 ? "w?" : "*", 1);
    gckpt_fetch_spec fetches[FETCHED] = { { m.x, 1 }, { m.k, 1 }, { m.h, 1 }, { m.h, 0 } };
    fetches[4].tensor = gckpt_param(m.g, "w1", gckpt_shape2(IN, WIDE), (gckpt_init){ 0, 0, 0 });
    fetches[5].tensor = gckpt_param(m.g, "gain", gckpt_shape1(WIDE), (gckpt_init){ 0, 0, 0 });
    fetches[4].gradient = fetches[5].gradient = 1;
    way use = *w;
    use.d.fetch.specs = fetches;
    use.d.fetch.count = w->unfetched ? 0 : FETCHED;
    use.d.batch = use.d.update_in_backward ? 0 : ROWS;
    plan(&m, &use.d, &use.x);
    if (!w->unfetched) {
        CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, o.dx, ROWS * IN) == GCKPT_OK);
        CHECK(gckpt_collect(m.e, gckpt_id(m.h), 1, o.dh, ROWS * WIDE) == GCKPT_OK);
        CHECK(gckpt_collect(m.e, gckpt_id(m.h), 0, o.h, ROWS * WIDE) == GCKPT_OK);
    }
    for (int i = 0; i < 2; i++) {
        gckpt_result result =
            util_step(m.e, feed, &m, ROWS, w->stream, w->pieces, &adamw, &o.report[i]);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(m.e));
    }
    CHECK(gckpt_store_step(m.s) == (w->frozen == 2 ? 0 : 2));
    if (!w->unfetched) {
        memcpy(o.dk, gckpt_fetch(m.e, gckpt_id(m.k), 1), sizeof o.dk);
        memcpy(o.dw, gckpt_fetch(m.e, gckpt_id(fetches[4].tensor), 1), sizeof o.dw);
        memcpy(o.dgain, gckpt_fetch(m.e, gckpt_id(fetches[5].tensor), 1), sizeof o.dgain);
    }
    o.hash = gckpt_store_hash(m.s);
    drop(&m);
    return o;
}

static void same(const found *a, const found *b, int line)
{
    CHECK_MSG(!memcmp(a->dx, b->dx, sizeof a->dx), "line %d: dx", line);
    CHECK_MSG(!memcmp(a->dh, b->dh, sizeof a->dh) && !memcmp(a->h, b->h, sizeof a->h), "line %d: h", line);
    CHECK_MSG(!memcmp(a->dk, b->dk, sizeof a->dk), "line %d: dk", line);
    CHECK_MSG(!memcmp(a->dw, b->dw, sizeof a->dw), "line %d: dw", line);
    CHECK_MSG(!memcmp(a->dgain, b->dgain, sizeof a->dgain), "line %d: dgain", line);
    CHECK_MSG(a->hash == b->hash && !memcmp(a->report, b->report, sizeof a->report), "line %d", line);
}
#define SAME(w, want)                                                                              \
    do {                                                                                           \
        found got_ = train(w);                                                                     \
        same(&got_, want, __LINE__);                                                               \
    } while (0)

static void test_bits(int frozen, gckpt_precision precision)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT,
                                        GCKPT_OPTIMAL };
    static unsigned char host[65536];
    way plain = { .rows = ROWS, .frozen = frozen, .x.debug = GCKPT_DEBUG_PLAIN };
    plain.d.bf16.precision = precision;
    found want = train(&plain), none;
    way bare = plain;
    bare.unfetched = 1;
    /* not compared in bf16, where a fetched value stays binary32 and so is rounded differently than without the
     * fetch */
    if (frozen < 2 && precision == GCKPT_FP32) {
        none = train(&bare);
        CHECK(none.hash == want.hash && !memcmp(none.report, want.report, sizeof want.report));
    }
    for (int k = 0; k < 5; k++)
        for (int64_t rows = 1; rows <= ROWS; rows += 1 + k % 2) {
            way w = { .rows = rows, .frozen = frozen };
            w.d.mode = modes[k];
            w.d.bf16.precision = precision;
            w.d.kernels.stage_parameters = k % 2;
            w.x.debug = GCKPT_DEBUG_POISON | (rows % 2 ? GCKPT_DEBUG_FINITE : GCKPT_DEBUG_RECOMPUTE);
            SAME(&w, &want);
            w.pieces = 1;
            SAME(&w, &want);
            w.pieces = 0;
            w.stream = rows < ROWS ? 1 + rows % 3 : 0;
            w.x.debug = GCKPT_DEBUG_MEASURE;
            w.d.threads = 2;
            w.x.parallel_for = any_order;
            SAME(&w, &want);
        }
    classes m; /* tests a plan for every point of the frontier, beginning with the smallest */
    graph(&m, 2);
    gckpt_fetch_spec fetches[2] = { { m.x, 1 }, { m.k, 1 } };
    gckpt_plan_desc d = { .batch = ROWS, .bf16.precision = precision, .fetch.specs = fetches, .fetch.count = 2 };
    if (frozen)
        gckpt_store_freeze(m.s, frozen == 1 ? "w?" : "*", 1);
    gckpt_frontier *front = gckpt_frontier_new(m.g, &m.term, 1, &d);
    int points = gckpt_frontier_describe(front).points;
    gckpt_point at = { 0 };
    CHECK(points > 0 && gckpt_frontier_get(front, 0, &at) == GCKPT_OK);
    for (int i = 0; i < points; i++) {
        gckpt_frontier_get(front, i, &at);
        m.p = gckpt_frontier_plan(front, at.bytes);
        m.e = gckpt_exec_new(m.p, m.s, NULL);
        float dx[ROWS * IN], first[ROWS * IN];
        CHECK(m.e && gckpt_plan_bytes(m.p) <= at.bytes);
        gckpt_feed f[2];
        gckpt_collect(m.e, gckpt_id(m.x), 1, i ? dx : first, ROWS * IN);
        CHECK(gckpt_gradients(m.e, f, feed(&m, 0, f), ROWS, NULL) == GCKPT_OK);
        CHECK(!i || !memcmp(dx, first, sizeof dx));
        util_free(m.e, m.p, NULL, NULL);
    }
    gckpt_frontier_free(front);
    util_free(NULL, NULL, m.g, m.s);
    way late = { .rows = ROWS, .frozen = frozen };
    late.d.bf16.precision = precision;
    late.d.update_in_backward = 1;
    SAME(&late, &want);
    device device_of;
    gckpt_backend backend;
    if (device_start(&device_of, &backend, "pages", GCKPT_ISA_PLAIN)) {
        way own = { .rows = 4, .frozen = frozen, .d.bf16.precision = precision, .d.backend = &backend };
        own.x.backend = &backend;
        SAME(&own, &want);
        own.rows = 1;
        own.stream = 2;
        SAME(&own, &want);
        device_end(&device_of);
    }
    way offloading = { .rows = 3, .frozen = frozen };
    offloading.d.bf16.precision = precision;
    offloading.d.mode = GCKPT_OPTIMAL;
    offloading.d.offload.bytes = sizeof host;
    offloading.d.offload.cost = 1;
    offloading.x = (gckpt_exec_desc){ .offload = offload_to, .reload = reload_from, .user = host };
    SAME(&offloading, &want);
}

/* ---- random graphs: the squared length of the gradients of x and of frozen parameters equals the finite difference
 * of the loss in their direction ---- */
static double loss_of(gckpt_exec *e, gckpt_report *r)
{
    gckpt_feed f[NET_FEEDS];
    CHECK(gckpt_gradients(e, f, net_feed(NULL, 0, f), net.batch, r) == GCKPT_OK);
    return r->loss;
}

static int test_differences(unsigned seed)
{
    static float dx[VALUES], before[VALUES];
    gckpt_report r;
    double deriv = 0, size = 0, h, loss[2] = { 0, 0 };
    int coarse = 0, right = 0;
    random_state = seed;
    build(seed, 1 + (int64_t)below(3));
    net_fill();
    for (int i = 0; i < LARGEST; i++)
        constant_data[i] = (float)below(9) / 4.0f - 1.0f;
    if (seed % 4 == 0)
        gckpt_store_freeze(net.s, "*", 1);
    gckpt_fetch_spec fetch = { net.x, 1 };
    gckpt_plan_desc d = { .batch = net.batch, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    gckpt_exec *e = gckpt_exec_new(p, net.s, NULL);
    if (!p) { /* no loss depends on x */
        destroy();
        return 0;
    }
    int64_t n = net.batch * net.t * net.c;
    CHECK(gckpt_collect(e, gckpt_id(net.x), 1, dx, (size_t)n) == GCKPT_OK);
    loss_of(e, &r);
    gckpt_collect(e, gckpt_id(net.x), 1, NULL, 0);
    for (int64_t i = 0; i < n; i++)
        size += (double)dx[i] * (double)dx[i] / (double)r.count / (double)r.count;
    memcpy(before, x_data, sizeof before);
    h = size > 0 ? 0.0005 / sqrt(size / (double)n) : 0;
    /* tries a smaller difference as well, for losses with strong curvature */
    for (int nearer = 0; nearer < 2 && !coarse && !right; nearer++, h /= 4) {
        deriv = 0;
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++) {
                x_data[i] = before[i] + (float)((side ? -h : h) * (double)dx[i] / (double)r.count);
                deriv += (side ? -1 : 1) * (double)dx[i] / (double)r.count * (double)x_data[i];
            }
            loss[side] = loss_of(e, &r);
        }
        coarse = !isfinite(deriv + loss[0]) || fabs(deriv) < 3e-5 * fabs(loss[0]);
        right = fabs(loss[0] - loss[1] - deriv) <= 0.02 * fabs(deriv);
    }
    memcpy(x_data, before, sizeof before);
    CHECK_MSG(coarse || right, "seed %u: %g, the gradient says %g (loss %g)", seed, loss[0] - loss[1], deriv,
              loss[0]);
    util_free(e, p, NULL, NULL);
    destroy();
    return !coarse;
}

/* ---- uses of input gradients ---- */
/* Tests that the step x + eps sign(dx) raises the loss of a frozen model more than any other step of the same size,
 * as in an adversarial attack (Goodfellow 2015). */
static void test_attack(void)
{
    classes m;
    gckpt_feed f[2];
    gckpt_report clean, worse, random;
    float dx[ROWS * IN];
    graph(&m, 4);
    gckpt_store_freeze(m.s, "*", 1);
    gckpt_fetch_spec fetch = { m.x, 1 };
    gckpt_plan_desc d = { .batch = ROWS, .fetch.specs = &fetch, .fetch.count = 1 };
    plan(&m, &d, NULL);
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, dx, ROWS * IN) == GCKPT_OK);
    CHECK(gckpt_gradients(m.e, f, feed(&m, 0, f), ROWS, &clean) == GCKPT_OK);
    for (int i = 0; i < ROWS * IN; i++)
        in_data[i] += dx[i] > 0 ? 0.1f : dx[i] < 0 ? -0.1f : 0.0f;
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, NULL, 0) == GCKPT_OK);
    CHECK(gckpt_gradients(m.e, f, 2, ROWS, &worse) == GCKPT_OK && worse.loss > clean.loss + 0.1);
    numbers(in_data, ROWS * IN, 37, 0);
    for (int i = 0; i < ROWS * IN; i++)
        in_data[i] += i % 2 ? 0.1f : -0.1f;
    CHECK(gckpt_gradients(m.e, f, 2, ROWS, &random) == GCKPT_OK && random.loss < worse.loss - 0.1);
    for (int i = 0; i < IN; i++) /* the row whose target is ignored must have a gradient of 0 */
        CHECK(dx[2 * IN + i] == 0);
    drop(&m);
}

/* Tests gckpt_where: the gradient of the condition, fed or constant, is 0. If the same tensor is also one of the
 * selected values, it gets only the gradient of that value. */
static void test_condition(gckpt_isa isa, int repeated)
{
    enum { N = 7 };
    static const float x[2][N] = { { 0, 1, -2, NAN, -0.0f, INFINITY, 1e-40f }, { 0, 0, 0, 0, 0, 0, 0 } };
    static const float y[2 * N] = { NAN, 2, 3, 4, 5, 6, INFINITY }, k[N] = { 1, 0, -0.0f, NAN, 0, 2, 0 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_fetch_spec fetches[3] = { { gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(2, repeated ? 1 : N)), 1 },
                            { gckpt_input(graph, "y", GCKPT_F32, gckpt_shape2(2, N)), 1 },
                            { gckpt_constant(graph, "k", GCKPT_F32, gckpt_shape1(N), k), 1 } };
    gckpt_tensor *t = gckpt_where(fetches[0].tensor, fetches[0].tensor, fetches[1].tensor);
    t = gckpt_add(gckpt_scale(t, 3), gckpt_where(fetches[2].tensor, fetches[1].tensor, fetches[2].tensor));
    const gckpt_term term = { gckpt_sum_loss(t), 1, 0 };
    const gckpt_feed feeds[2] = { { gckpt_id(fetches[0].tensor), x }, { gckpt_id(fetches[1].tensor), y } };
    const gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = 3 };
    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, store, &(gckpt_exec_desc){ .isa = isa });
    CHECK_MSG(gckpt_gradients(e, feeds, 2, 2, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    const float *dx = gckpt_fetch(e, gckpt_id(fetches[0].tensor), 1),
                *dy = gckpt_fetch(e, gckpt_id(fetches[1].tensor), 1);
    const float *dk = gckpt_fetch(e, gckpt_id(fetches[2].tensor), 1);
    for (int i = 0; dx && dy && dk && i < 2 * N; i++) {
        const int held = repeated ? x[0][i / N] != 0 : (&x[0][0])[i] != 0, constant = k[i % N] != 0;
        CHECK(dy[i] == (held ? 0 : 3.0f) + (constant ? 1.0f : 0));
        CHECK(repeated ? dx[i / N] == (held ? 3.0f * N : 0) : dx[i] == (held ? 3.0f : 0));
        CHECK(dk[i % N] == (constant ? 0 : 2.0f));
    }
    CHECK(dx && dy && dk);
    util_free(e, plan, graph, store);
}

/* Tests the gradient of a critic's output by its input for each row, as in the penalty of a WGAN-GP: for a linear
 * critic it is w. Then tests a gradient that comes from outside: the gradient of sum(y g) is g propagated back
 * through the model. */
static void test_penalty_and_coupling(void)
{
    enum { B = 5, N = 3 };
    float x[B * N], g[B * N], dx[B * N];
    const gckpt_init none = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(2, N));
    gckpt_tensor *out = gckpt_input(graph, "g", GCKPT_F32, gckpt_shape2(2, N));
    gckpt_tensor *w = gckpt_param(graph, "w", gckpt_shape2(N, 1), none);
    gckpt_term critic = { gckpt_sum_loss(gckpt_linear(in, w, NULL)), 1, 0 };
    gckpt_term outside = { gckpt_sum_loss(gckpt_mul(gckpt_mul(in, in), out)), 1, 0 };
    set(s, "w", 5, 0);
    gckpt_fetch_spec fetch = { in, 1 };
    gckpt_plan_desc d = { .batch = B, .fetch.specs = &fetch, .fetch.count = 1 };
    numbers(x, B * N, 7, 0);
    numbers(g, B * N, 3, 0);
    gckpt_feed f[2] = { { gckpt_id(in), x }, { gckpt_id(out), g } };
    gckpt_parameter q;
    gckpt_store_get(s, 0, &q);
    for (int k = 0; k < 2; k++) {
        gckpt_plan *p = gckpt_plan_new(graph, k ? &outside : &critic, 1, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        CHECK(e && gckpt_collect(e, gckpt_id(in), 1, dx, B * N) == GCKPT_OK);
        CHECK(gckpt_gradients(e, f, 1 + k, B, NULL) == GCKPT_OK);
        for (int i = 0; i < B * N; i++)
            CHECK(dx[i] == (k ? 2 * x[i] * g[i] : q.values[i % N]));
        util_free(e, p, NULL, NULL);
    }
    util_free(NULL, NULL, graph, s);
}

/* ---- gckpt_fetch within steps ---- */
/* Checks for each fetch after which instruction of a micro-batch gckpt_fetch can return it. */
static void test_fetch_within(int in_backward, int64_t rows)
{
    const gckpt_hyper sgd = { 0.1f, 0, 0, 0, 0, 0, 0 };
    classes m;
    gckpt_feed f[2];
    gckpt_report report;
    gckpt_instruction next;
    graph(&m, rows);
    gckpt_tensor *w2 = gckpt_param(m.g, "w2", gckpt_shape2(WIDE, OUT), (gckpt_init){ 0, 0, 0 });
    gckpt_fetch_spec fetches[5] = { { m.h, 0 }, { m.h, 1 }, { m.x, 1 }, { w2, 1 }, { m.k, 1 } };
    gckpt_plan_desc d = { .batch = in_backward ? 0 : ROWS, .fetch.specs = fetches, .fetch.count = 5,
                          .mode = GCKPT_STORE_ALL, .update_in_backward = in_backward };
    plan(&m, &d, NULL);
    for (int k = 0; k < 5; k++) /* nothing has run */
        CHECK(!gckpt_fetch(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient) &&
              strstr(gckpt_error_text(m.e), "is not computed yet"));
    CHECK(!gckpt_fetch(m.e, gckpt_id(m.logits), 0) && gckpt_error(m.e) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "not fetched: name it in gckpt_plan_desc.fetch"));
    CHECK(!gckpt_fetch(m.e, -1, 0) && !gckpt_fetch(m.e, 10000, 1) && !gckpt_fetch(NULL, 0, 0));
    CHECK(gckpt_step_start(m.e, f, feed(&m, 0, f), ROWS, &sgd) == GCKPT_OK);
    int there[5] = { 0 }, seen[5] = { 0 }, first = gckpt_id(m.h) - 1; /* forward of h's layernorm */
    gckpt_result result = GCKPT_MORE;
    while (result == GCKPT_MORE) {
        next = gckpt_next_instruction(m.e);
        result = gckpt_run_some(m.e, 1, &report);
        if (next.kind == GCKPT_NEXT && gckpt_next_instruction(m.e).kind == GCKPT_BEGIN)
            there[0] = there[1] = there[2] = 0;
        there[0] |= next.kind == GCKPT_FORWARD && next.id == gckpt_id(m.h);
        there[1] |= next.kind == GCKPT_BACKWARD && next.id == gckpt_id(m.logits);
        /* nonzero after a backward of an op near the input; the last such backward completes the gradient of x */
        there[2] |= next.kind == GCKPT_BACKWARD && next.id < first - 2;
        there[3] |= next.kind == GCKPT_UPDATE && next.id == gckpt_id(w2);
        there[4] |= result == GCKPT_OK;
        for (int k = 0; k < 5; k++) {
            const float *at = gckpt_fetch(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient);
            int want = k == 2 && next.kind == GCKPT_BACKWARD ? at != NULL : there[k];
            CHECK_MSG((at != NULL) == want, "fetch %d after %d of tensor %d: %d", k, (int)next.kind,
                      next.id, at != NULL);
            seen[k] += at != NULL;
        }
    }
    CHECK(result == GCKPT_OK);
    for (int k = 0; k < 5; k++)
        CHECK(seen[k] > 0 && gckpt_fetch(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient));
    /* refused calls do not start a step, so the results of the last step stay available; a started step makes them
     * unavailable */
    CHECK(gckpt_step(m.e, f, 2, ROWS + 1, &sgd, NULL) == GCKPT_E_ARG && gckpt_fetch(m.e, gckpt_id(m.x), 1));
    CHECK(gckpt_step_start(m.e, f, 2, ROWS, &sgd) == GCKPT_OK && !gckpt_fetch(m.e, gckpt_id(m.h), 0));
    CHECK(gckpt_run_some(m.e, 1, &report) == GCKPT_MORE && !gckpt_fetch(m.e, gckpt_id(m.x), 1));
    CHECK(gckpt_step(m.e, f, 2, ROWS, &sgd, &report) == GCKPT_OK && gckpt_fetch(m.e, gckpt_id(m.x), 1));
    drop(&m);
}

static int cancel_at(void *user, const gckpt_progress *p)
{
    return p->instruction == *(const int *)user;
}

static void test_fetch_cancelled(void)
{
    const gckpt_hyper sgd = { 0.1f, 0, 0, 0, 0, 0, 0 };
    classes m;
    gckpt_feed f[2];
    int at = -1;
    graph(&m, ROWS);
    gckpt_fetch_spec fetches[2] = { { m.h, 0 }, { m.x, 1 } };
    gckpt_plan_desc d = { .fetch.specs = fetches, .fetch.count = 2, .mode = GCKPT_STORE_ALL };
    gckpt_exec_desc x = { .progress = cancel_at, .user = &at };
    plan(&m, &d, &x);
    CHECK(gckpt_step(m.e, f, feed(&m, 0, f), ROWS, &sgd, NULL) == GCKPT_OK);
    uint64_t hash = gckpt_store_hash(m.s);
    int n = gckpt_plan_describe(m.p).instructions, had[2] = { 0, 0 };
    for (at = 0; at < n; at++) {
        gckpt_result result = gckpt_step(m.e, f, 2, ROWS, &sgd, NULL);
        /* the step succeeds if `at` is after the first update, from where a step cannot be cancelled */
        if (result == GCKPT_OK)
            break;
        CHECK(result == GCKPT_CANCELLED && gckpt_store_hash(m.s) == hash);
        for (int k = 0; k < 2; k++) {
            int has = gckpt_fetch(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient) != NULL;
            CHECK(has >= had[k]); /* results computed before the cancellation are available, others are not */
            had[k] = has;
        }
        CHECK(at > 0 || !(had[0] || had[1]));
    }
    CHECK(had[0] && had[1]);
    drop(&m);
}

/* ---- gckpt_collect ---- */
/* Tests gckpt_collect: the rows that it collects for the whole batch equal the fetches of each row alone, however the
 * batch is fed. */
static void test_collect(void)
{
    const gckpt_hyper still = { 0, 0, 0, 0, 0, 0, 0 };
    float want[3][ROWS * IN + ROWS * WIDE], got[3][ROWS * IN + ROWS * WIDE];
    for (int64_t rows = 1; rows <= 4; rows++)
        for (int how = 0; how < 6; how++) {
            classes m;
            gckpt_feed f[2];
            gckpt_report report;
            const int64_t width[3] = { WIDE, WIDE, IN };
            graph(&m, rows);
            gckpt_fetch_spec fetches[3] = { { m.h, 0 }, { m.h, 1 }, { m.x, 1 } };
            gckpt_plan_desc d = { .batch = ROWS, .fetch.specs = fetches, .fetch.count = how == 5 ? 1 : 3,
                                  .optimiser = GCKPT_SGD };
            d.mode = how == 5 ? GCKPT_INFERENCE : GCKPT_AUTO;
            plan(&m, &d, NULL);
            for (int64_t row = 0; row < ROWS && rows == 1 && how == 0; row++) {
                CHECK(gckpt_gradients(m.e, f, feed(&m, row, f), 1, &report) == GCKPT_OK);
                for (int k = 0; k < 3; k++)
                    memcpy(want[k] + row * width[k], gckpt_fetch(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient),
                           (size_t)width[k] * sizeof(float));
            }
            memset(got, 0x7f, sizeof got);
            for (int k = 0; k < d.fetch.count; k++)
                CHECK(gckpt_collect(m.e, gckpt_id(fetches[k].tensor), fetches[k].gradient, got[k],
                                    (size_t)(ROWS * width[k])) == GCKPT_OK);
            feed(&m, 0, f);
            gckpt_result result = how == 0   ? gckpt_gradients(m.e, f, 2, ROWS, &report)
                                  : how == 1 ? gckpt_step(m.e, f, 2, ROWS, &still, &report)
                                  : how == 5 ? gckpt_forward(m.e, f, 2, ROWS, &report)
                                             : util_step(m.e, feed, &m, ROWS, how == 2 ? 1 : how == 3 ? -2 : 0,
                                                        how == 4 ? 3 : 0, &still, &report);
            CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(m.e));
            for (int k = 0; k < d.fetch.count; k++) {
                size_t n = (size_t)(ROWS * width[k]);
                CHECK_MSG(!memcmp(got[k], want[k], n * sizeof(float)), "rows %d, how %d, fetch %d", (int)rows, how, k);
                uint32_t behind;
                memcpy(&behind, &got[k][n], sizeof behind);
                CHECK(behind == 0x7f7f7f7f);
            }
            drop(&m);
        }
}

/* Tests update_in_backward: gckpt_collect if no target of the batch is valid, and the error text after the first
 * update, which must not say that nothing was changed. */
static void test_updates_in_backward(void)
{
    const gckpt_hyper sgd = { 0.5f, 0, 0, 0, 0, 0, 0 };
    const gckpt_exec_desc x = { .debug = GCKPT_DEBUG_FINITE };
    float to[4] = { 5, 5, 5, 5 };
    const float four[4] = { 4, 1, 9, 0 };
    const int32_t none[4] = { -1, -1, -1, -1 };
    gckpt_store *s = gckpt_store_new(NULL);
    for (int finite = 0; finite < 2; finite++) {
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 1));
        gckpt_tensor *ids = gckpt_input(g, "ids", GCKPT_I32, gckpt_shape1(4));
        gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(1, 1), (gckpt_init){ 0, 0, 1 });
        gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape2(1, 3), (gckpt_init){ 0, 0, 1 });
        gckpt_tensor *h = gckpt_sqrt(gckpt_mul(in, w1)), *y = gckpt_matmul(h, w2);
        gckpt_term term = { finite ? gckpt_sum_loss(y) : gckpt_cross_entropy(y, ids, NULL, 0), 1, 0 };
        gckpt_fetch_spec fetch = { h, 0 };
        gckpt_plan_desc d = { .optimiser = GCKPT_SGD, .update_in_backward = 1, .fetch.specs = &fetch,
                              .fetch.count = 1 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, finite ? &x : NULL);
        gckpt_feed f[2] = { { gckpt_id(in), four }, { gckpt_id(ids), none } };
        CHECK(gckpt_collect(e, gckpt_id(h), 0, to, 4) == GCKPT_OK);
        gckpt_result result = gckpt_step(e, f, finite ? 1 : 2, 4, &sgd, NULL);
        CHECK_MSG(result == (finite ? GCKPT_E_DATA : GCKPT_OK), "%s", gckpt_error_text(e));
        CHECK(finite || (to[0] == 2 && to[1] == 1 && to[2] == 3 && to[3] == 0));
        CHECK(!finite || strstr(gckpt_error_text(e), "backward of sqrt made inf"));
        CHECK(!finite || strstr(gckpt_error_text(e), "parameters have changed: load a checkpoint"));
        gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g);
    }
    gckpt_store_free(s);
}

/* Tests gckpt_collect in a graph with an op that moves the batch axis: it collects whole micro-batches one after the
 * other. */
static void test_collect_mixed(void)
{
    static const int swap[2] = { 1, 0 };
    float to[ROWS * IN];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, IN)), *y = gckpt_permute(x, swap, 2);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, y)), 1, 0 };
    gckpt_fetch_spec fetches[2] = { { y, 0 }, { x, 1 } };
    gckpt_plan_desc d = { .batch = ROWS, .fetch.specs = fetches, .fetch.count = 2 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed f = { gckpt_id(x), in_data };
    CHECK(gckpt_collect(e, gckpt_id(y), 0, to, ROWS * IN) == GCKPT_OK);
    CHECK(gckpt_gradients(e, &f, 1, ROWS, NULL) == GCKPT_OK);
    for (int i = 0; i < ROWS * IN; i++) /* (3 micro-batches, 8, 2) */
        CHECK(to[i] == in_data[(i / 16 * 2 + i % 2) * IN + i / 2 % IN]);
    util_free(e, p, g, s);
}

static void test_collect_refusals(void)
{
    const gckpt_hyper still = { 0, 0, 0, 0, 0, 0, 0 };
    classes m;
    gckpt_feed f[2];
    float to[ROWS * IN], value = 0;
    graph(&m, 2);
    gckpt_tensor *w2 = gckpt_param(m.g, "w2", gckpt_shape2(WIDE, OUT), (gckpt_init){ 0, 0, 0 });
    gckpt_fetch_spec fetches[3] = { { m.x, 1 }, { m.k, 1 }, { w2, 1 } };
    gckpt_plan_desc d = { .batch = ROWS, .fetch.specs = fetches, .fetch.count = 3 };
    plan(&m, &d, NULL);
    memset(to, 0, sizeof to);
    CHECK(gckpt_collect(NULL, 0, 0, to, 1) == GCKPT_E_ARG);
    CHECK(gckpt_collect(m.e, gckpt_id(m.h), 0, to, 1) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "is not fetched"));
    CHECK(gckpt_collect(m.e, gckpt_id(m.k), 1, to, IN) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "has no batch axis"));
    CHECK(gckpt_collect(m.e, gckpt_id(w2), 1, to, WIDE * OUT) == GCKPT_E_ARG);
    /* with a buffer that is one float too small, the next step is refused and nothing runs */
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, to, ROWS * IN - 1) == GCKPT_OK);
    CHECK(gckpt_step(m.e, f, feed(&m, 0, f), ROWS, &still, NULL) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "6 rows of \"x\" #0 do not fit into the 47 floats"));
    for (int i = 0; i < ROWS * IN; i++)
        value += to[i] * to[i];
    CHECK(value == 0 && gckpt_store_step(m.s) == 0);
    CHECK(gckpt_step(m.e, f, 2, ROWS - 1, &still, NULL) == GCKPT_OK && gckpt_store_step(m.s) == 1);
    /* in a stream, adding one row more than the buffer holds is refused; the results up to then stay, and the step
     * can continue */
    CHECK(gckpt_step_begin(m.e, &still) == GCKPT_OK && gckpt_step_add(m.e, f, 2, ROWS - 1) == GCKPT_OK);
    CHECK(gckpt_step_add(m.e, f, 2, 1) == GCKPT_E_ARG);
    /* too late: rows have already been added to this step */
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, to, IN) == GCKPT_E_ARG);
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, to, (size_t)-1) == GCKPT_OK);
    CHECK(gckpt_step_add(m.e, f, 2, 1) == GCKPT_OK && gckpt_step_end(m.e, NULL) == GCKPT_OK);
    /* a step without rows has no value to fetch */
    CHECK(gckpt_step_begin(m.e, &still) == GCKPT_OK && !gckpt_fetch(m.e, gckpt_id(m.x), 1));
    CHECK(gckpt_step_end(m.e, NULL) == GCKPT_OK && !gckpt_fetch(m.e, gckpt_id(m.x), 1));
    CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, NULL, 0) == GCKPT_OK);
    CHECK(gckpt_step(m.e, f, 2, ROWS, &still, NULL) == GCKPT_OK);
    drop(&m);
}

/* ---- gckpt_gradients returns the report and the gradients of a step without changing anything ---- */
static void test_changes_nothing(void)
{
    const gckpt_hyper adamw = { 0.1f, 0.1f, 0, 0, 0, 0, 0 };
    static const float before[] = { 0.5f, -0.25f };
    for (int optimiser = GCKPT_ADAMW; optimiser <= GCKPT_MOMENTUM; optimiser++)
        for (int64_t rows = 2; rows <= ROWS; rows += 4) {
            classes m;
            gckpt_feed f[2];
            gckpt_report alone, taken;
            gckpt_parameter q;
            float dw[WIDE * OUT], state[2][WIDE * OUT];
            graph(&m, rows);
            gckpt_tensor *w2 = gckpt_param(m.g, "w2", gckpt_shape2(WIDE, OUT), (gckpt_init){ 0, 0, 0 });
            gckpt_tensor *loss = gckpt_cross_entropy(gckpt_dropout(m.logits, 0.5f), m.y, NULL, 0);
            m.term.loss = loss; /* with dropout, gckpt_gradients must use the mask of the next step */
            gckpt_fetch_spec fetch = { w2, 1 };
            gckpt_plan_desc d = {
                .batch = ROWS, .fetch.specs = &fetch, .fetch.count = 1, .optimiser = (gckpt_optimiser)optimiser
            };
            plan(&m, &d, NULL);
            feed(&m, 0, f);
            CHECK(gckpt_step(m.e, f, 2, ROWS, &adamw, NULL) == GCKPT_OK);
            gckpt_store_get(m.s, gckpt_store_find(m.s, "w2"), &q);
            for (int i = 0; i < 2 && q.state[i]; i++) {
                q.state[i][0] = before[i];
                memcpy(state[i], q.state[i], sizeof state[i]);
            }
            uint64_t hash = gckpt_store_hash(m.s);
            CHECK(gckpt_gradients(m.e, f, 2, ROWS, &alone) == GCKPT_OK);
            memcpy(dw, gckpt_fetch(m.e, gckpt_id(w2), 1), sizeof dw);
            CHECK(gckpt_gradients(m.e, f, 2, ROWS, NULL) == GCKPT_OK);
            CHECK(gckpt_store_hash(m.s) == hash && gckpt_store_step(m.s) == 1 && alone.step == 1);
            for (int i = 0; i < 2 && q.state[i]; i++)
                CHECK(!memcmp(q.state[i], state[i], sizeof state[i]));
            CHECK(gckpt_step(m.e, f, 2, ROWS, &adamw, &taken) == GCKPT_OK && taken.step == 2);
            CHECK(alone.loss == taken.loss && alone.grad_norm == taken.grad_norm && alone.count == taken.count);
            CHECK(!memcmp(dw, gckpt_fetch(m.e, gckpt_id(w2), 1), sizeof dw));
            CHECK(gckpt_store_hash(m.s) != hash);
            drop(&m);
        }
}

static void test_gradients_refusals(void)
{
    classes m;
    gckpt_feed f[2];
    gckpt_report report;
    gradcheck_result check;
    static int32_t none[ROWS] = { -1, -1, -1, -1, -1, -1 };
    graph(&m, ROWS);
    gckpt_fetch_spec fetch = { m.x, 1 };
    gckpt_plan_desc d = { .fetch.specs = &fetch, .fetch.count = 1, .update_in_backward = 1 };
    CHECK(gckpt_gradients(NULL, f, 0, 1, NULL) == GCKPT_E_ARG);
    plan(&m, &d, NULL);
    CHECK(gckpt_gradients(m.e, f, feed(&m, 0, f), ROWS, NULL) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "updates in the backward"));
    CHECK(gradcheck(m.s, &m.term, 1, &d, f, 2, ROWS, &check) == GCKPT_OK);
    util_free(m.e, m.p, NULL, NULL);
    d = (gckpt_plan_desc){ .mode = GCKPT_INFERENCE };
    plan(&m, &d, NULL);
    CHECK(gckpt_gradients(m.e, f, 2, ROWS, NULL) == GCKPT_E_ARG);
    CHECK(gradcheck(m.s, &m.term, 1, &d, f, 2, ROWS, &check) == GCKPT_E_ARG && strstr(check.text, "trains no parameter"));
    util_free(m.e, m.p, NULL, NULL);
    d = (gckpt_plan_desc){ .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_store_freeze(m.s, "*", 1);
    plan(&m, &d, NULL);
    f[1].data = none; /* all targets are -1, so the loss is 0, which is no error */
    CHECK(gckpt_gradients(m.e, f, 2, ROWS, &report) == GCKPT_OK && report.count == 0 && report.loss == 0);
    CHECK(gradcheck(m.s, &m.term, 1, NULL, f, 2, ROWS, &check) == GCKPT_E_ARG && strstr(check.text, "no gradient is "));
    f[1].data = class_data;
    util_free(m.e, m.p, NULL, NULL);
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, NULL) && strstr(gckpt_error_text(m.g), "no gradient is "));
    fetch.tensor = m.y;
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, &d) && strstr(gckpt_error_text(m.g), "\"y\" has no gradient: it is i32"));
    fetch.tensor = m.term.loss;
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, &d) && strstr(gckpt_error_text(m.g), "it is a loss"));
    fetch.tensor = gckpt_input(m.g, "unused", GCKPT_F32, gckpt_shape2(ROWS, 2));
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, &d) && strstr(gckpt_error_text(m.g), "no loss of the plan depends on it"));
    fetch.tensor = m.x;
    d.mode = GCKPT_INFERENCE;
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, &d) &&
          strstr(gckpt_error_text(m.g), "GCKPT_INFERENCE plan has no gradients"));
    /* the loss depends on x only through detach, so that a fetch of x's gradient is refused, while the result of
     * detach has a gradient */
    d.mode = GCKPT_AUTO;
    gckpt_tensor *cut = gckpt_detach(m.logits);
    gckpt_term term = { gckpt_cross_entropy(cut, m.y, NULL, 0), 1, 0 };
    CHECK(!gckpt_plan_new(m.g, &term, 1, &d) && strstr(gckpt_error_text(m.g), "only through ops without a backward"));
    fetch.tensor = cut;
    gckpt_plan *p = gckpt_plan_new(m.g, &term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(m.g));
    gckpt_plan_free(p);
    util_free(NULL, NULL, m.g, m.s);
}

/* ---- GCKPT_DEBUG_FINITE ---- */
/* Cases of GCKPT_DEBUG_FINITE: a small graph over x (rows, 4) and w (4) that makes a non-finite value, its feeds, and
 * the expected error text. */
enum { FB = 5, FN = 4 };
typedef gckpt_tensor *(*finite_graph)(gckpt_tensor *x, gckpt_tensor *w);

static gckpt_tensor *squared(gckpt_tensor *x) { return gckpt_sum_loss(gckpt_mul(x, x)); }
static gckpt_tensor *of_log(gckpt_tensor *x, gckpt_tensor *w) /* log(0), from the zeros of relu */
{
    gckpt_tensor *h = gckpt_name(gckpt_relu(gckpt_mul(x, w)), "positive");
    return gckpt_sum_loss(gckpt_tanh(gckpt_name(gckpt_log(h), "logs")));
}
static gckpt_tensor *of_exp(gckpt_tensor *x, gckpt_tensor *w)
{
    return squared(gckpt_tanh(gckpt_exp(gckpt_scale(gckpt_mul(x, w), 100))));
}
static gckpt_tensor *of_div(gckpt_tensor *x, gckpt_tensor *w)
{
    return squared(gckpt_div(gckpt_relu(gckpt_mul(x, w)), gckpt_relu(x)));
}
static gckpt_tensor *of_sqrt(gckpt_tensor *x, gckpt_tensor *w) /* infinite gradient at 0 */
{
    return squared(gckpt_sqrt(gckpt_name(gckpt_relu(gckpt_mul(x, w)), "roots")));
}
static gckpt_tensor *of_loss(gckpt_tensor *x, gckpt_tensor *w)
{
    return squared(gckpt_scale(gckpt_mul(x, w), 1e19f));
}
static gckpt_tensor *of_sum(gckpt_tensor *x, gckpt_tensor *w) /* sums that overflow only in the loss, 20 times 1e38 */
{
    return gckpt_sum_loss(gckpt_scale(gckpt_add(gckpt_scale(gckpt_mul(x, w), 0), w), 1e38f));
}
static gckpt_tensor *of_mask(gckpt_tensor *x, gckpt_tensor *w)
{
    static const float mask[4] = { 0, -INFINITY, 0, -INFINITY };
    gckpt_tensor *k = gckpt_constant(gckpt_graph_of(x), "mask", GCKPT_F32, gckpt_shape1(4), mask);
    return squared(gckpt_softmax(gckpt_add(gckpt_mul(x, w), k)));
}
static gckpt_tensor *of_infinities(gckpt_tensor *x, gckpt_tensor *w) /* inf - inf */
{
    gckpt_tensor *h = gckpt_mul(x, w);
    return squared(gckpt_sub(h, h));
}
static gckpt_tensor *plainly(gckpt_tensor *x, gckpt_tensor *w) { return squared(gckpt_mul(x, w)); }
static gckpt_tensor *of_constant(gckpt_tensor *x, gckpt_tensor *w)
{
    static const float data[4] = { 0, 1, NAN, 2 };
    gckpt_tensor *k = gckpt_constant(gckpt_graph_of(x), "k", GCKPT_F32, gckpt_shape1(4), data);
    return squared(gckpt_mul(gckpt_mul(x, w), k));
}
/* the two uses of w have gradients of 2e38 each, whose sum overflows */
static gckpt_tensor *of_uses(gckpt_tensor *x, gckpt_tensor *w)
{
    gckpt_tensor *once = gckpt_scale(gckpt_mul(x, w), 4e37f);
    return gckpt_sum_loss(gckpt_add(once, gckpt_scale(gckpt_mul(x, w), 4e37f)));
}

static gckpt_tensor *of_pad(gckpt_tensor *x, gckpt_tensor *w) /* infinite padding before a maximum is accepted */
{
    return squared(gckpt_max(gckpt_pad(gckpt_mul(x, w), 1, 0, 1, GCKPT_PAD_VALUE, -INFINITY), 1));
}
static gckpt_tensor *of_pad_nan(gckpt_tensor *x, gckpt_tensor *w) /* NaN in padding that is cut off again is accepted */
{
    return squared(gckpt_slice(gckpt_pad(gckpt_mul(x, w), 1, 1, 0, GCKPT_PAD_VALUE, NAN), 1, 1, 5));
}
/* infinities, which are accepted, and a NaN from 0 times infinity, which is not */
static gckpt_tensor *of_scale(gckpt_tensor *x, gckpt_tensor *w)
{
    gckpt_tensor *h = gckpt_mul(x, w);
    return squared(gckpt_add(h, gckpt_clamp(gckpt_scale(gckpt_detach(h), INFINITY), -1, 1)));
}

typedef struct {
    finite_graph make;
    /* x: value of all elements of the input except one; w: value of the weights; lr: learning rate */
    float x, w, lr;
    float odd;         /* the value of element 2 of row 3 */
    const char *text;  /* part of the expected error text; NULL for no error */
    int changes;       /* nonzero if a step's update makes the value non-finite, which the next step refuses */
} finite_case;

static const finite_case finite_cases[] = {
    { plainly, 1, 1, 0.1f, 1, NULL, 0 },
    { of_log, 1, 1, 0.1f, -1, "forward of log made -inf in the value of \"logs\" #4 at", 0 },
    { of_log, 1, 1, 0.1f, -1, "all it read is finite; nothing was changed", 0 },
    { of_exp, 0.5f, 1, 0.1f, 1, "forward of exp made inf in the value of \"exp\" #4 at", 0 },
    { of_div, 1, 1, 0.1f, 0, "forward of div made nan in the value of \"div\" #5 at", 0 },
    { of_sqrt, 1, 1, 0.1f, -1, "backward of sqrt made nan in the gradient of \"roots\" #3 at", 0 },
    { of_loss, 0.5f, 1, 0.1f, 8, "forward of mul made inf in the value of \"mul\" #4 at", 0 },
    { of_sum, 1, 1, 0.1f, 1, "forward of sum_loss made inf in the sum of \"sum_loss\" #6", 0 },
    { of_mask, 1, 1, 0.1f, 2, NULL, 0 },
    { of_mask, 1, 1, 0.1f, INFINITY, "it may have read infinities, but no NaN; nothing was changed", 0 },
    { of_infinities, 1, 1, 0.1f, INFINITY, "forward of sub made nan in the value of \"sub\" #3 at", 0 },
    { plainly, 1, 1, 0.1f, NAN, "\"x\": NaN was fed at row 3, position 2", 0 },
    { plainly, 1, NAN, 0.1f, 1, "\"w\" is nan at position 0", 0 },
    { plainly, 1, INFINITY, 0.1f, 1, "\"w\" is inf at position 0", 0 },
    { of_constant, 1, 1, 0.1f, 1, "\"k\" is nan at position 2", 0 },
    { plainly, 1, 1, 3e38f, 30, "\"w\" is -inf at position 2: an earlier update (lower lr, or clip)", 1 },
    { plainly, 1, 1, 0.1f, INFINITY, "backward of mul made nan in the gradient of \"w\" #1 at [2] of [4]; it may have read", 0 },
    { of_pad, 1, 1, 0.1f, 2, NULL, 0 },
    { of_pad_nan, 1, 1, 0.1f, 2, NULL, 0 },
    { of_scale, 1, 1, 0.1f, -2, NULL, 0 },
    { of_scale, 1, 1, 0.1f, 0, "forward of scale made nan in the value of", 0 },
    { of_uses, 1, 1, 0.1f, 1, "made inf in the gradient of \"w\" #1 at [0] of [4]", 0 },
};

/* Runs the case with this mode, precision and backend, in micro-batches of `rows` rows; a NULL backend is the
 * processor. */
static void finite_one(const finite_case *c, gckpt_plan_desc d, int64_t rows, int steps, const gckpt_backend *backend)
{
    float x[FB * FN];
    gckpt_parameter q;
    gckpt_report report;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, FN));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(FN), (gckpt_init){ 0, 0, c->w });
    gckpt_term term = { c->make(in, w), 1, 0 };
    gckpt_exec_desc ed = { .debug = GCKPT_DEBUG_FINITE, .backend = backend };
    const gckpt_hyper sgd = { c->lr, 0, 0, 0, 0, 0, 0 };
    d.batch = d.update_in_backward ? 0 : FB;
    d.optimiser = GCKPT_SGD;
    d.backend = backend;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, &ed);
    CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(g), gckpt_error_text(s));
    for (int i = 0; i < FB * FN; i++)
        x[i] = i == 3 * FN + 2 ? c->odd : c->x;
    gckpt_feed f = { gckpt_id(in), x };
    uint64_t hash = gckpt_store_hash(s);
    if (c->changes) {
        CHECK(gckpt_step(e, &f, 1, FB, &sgd, &report) == GCKPT_OK && gckpt_store_hash(s) != hash);
        hash = gckpt_store_hash(s);
    }
    gckpt_result result = GCKPT_OK;
    if (steps) {
        CHECK(gckpt_step_start(e, &f, 1, FB, &sgd) ==
              (strstr(c->text ? c->text : "", "\" is ") || strstr(c->text ? c->text : "", "fed") ? GCKPT_E_DATA
                                                                                                 : GCKPT_OK));
        for (result = gckpt_error(e) == GCKPT_OK ? GCKPT_MORE : GCKPT_E_DATA; result == GCKPT_MORE;)
            result = gckpt_run_some(e, steps, &report);
    } else {
        result = gckpt_step(e, &f, 1, FB, &sgd, &report);
    }
    CHECK_MSG(result == (c->text ? GCKPT_E_DATA : GCKPT_OK), "%s: %s", c->text ? c->text : "", gckpt_error_text(e));
    const char *text = gckpt_error_text(e);
    CHECK_MSG(!c->text || strstr(text, c->text), "\"%s\" is not in \"%s\"", c->text, text);
    int row = (int)(3 / rows * rows == 3 ? 0 : 3 % rows);
    char at[40];
    snprintf(at, sizeof at, "at [%d,2] of", row);
    CHECK_MSG(!c->text || !strstr(text, "forward of") || strstr(text, "sum of") ||
                  ((strstr(text, at) || strstr(text, "softmax")) && strstr(text, "row 3 of the batch")) || c->x < 1,
              "\"%s\" is not in \"%s\"", at, text);
    CHECK((gckpt_store_hash(s) == hash) == (c->text != NULL));
    CHECK(gckpt_store_step(s) == (uint64_t)(!c->text || c->changes));
    /* a step that updates values must give the same bits as a step without GCKPT_DEBUG_FINITE */
    if (!c->text || c->changes) {
        uint64_t after = gckpt_store_hash(s);
        gckpt_store_get(s, 0, &q);
        for (int i = 0; i < FN; i++)
            q.values[i] = c->w;
        gckpt_store_push(s, "w");
        ed.debug = 0;
        gckpt_exec_free(e);
        e = gckpt_exec_new(p, s, &ed);
        CHECK(gckpt_step(e, &f, 1, FB, &sgd, NULL) == GCKPT_OK && gckpt_store_hash(s) == after);
    }
    util_free(e, p, g, s);
}

static void test_finite(void)
{
    device device_of;
    gckpt_backend backend;
    int pages = device_start(&device_of, &backend, "pages", GCKPT_ISA_PLAIN);
    for (size_t i = 0; i < sizeof finite_cases / sizeof *finite_cases; i++) {
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        for (int64_t rows = 1; rows <= FB; rows++)
            finite_one(&finite_cases[i], d, rows, rows % 2 ? 0 : 1, NULL);
        d.mode = GCKPT_MEMORY_POOR;
        d.kernels.stage_parameters = 1;
        finite_one(&finite_cases[i], d, 2, 0, NULL);
        if (pages)
            finite_one(&finite_cases[i], d, 2, 0, &backend);
        d.bf16.precision = GCKPT_BF16;
        finite_one(&finite_cases[i], d, 2, 0, NULL);
        d = (gckpt_plan_desc){ .update_in_backward = 1 };
        finite_one(&finite_cases[i], d, FB, 0, NULL);
    }
    if (pages)
        device_end(&device_of);
}
int main(void)
{
    test_golden();
    test_golden_attention();
    for (int frozen = 0; frozen < 3; frozen++)
        for (int precision = GCKPT_FP32; precision <= GCKPT_BF16; precision++)
            test_bits(frozen, (gckpt_precision)precision);
    test_attack();
    test_penalty_and_coupling();
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
        for (int repeated = 0; repeated < 2 && gckpt_isa_available((gckpt_isa)isa); repeated++)
            test_condition((gckpt_isa)isa, repeated);
    test_fetch_within(0, ROWS);
    test_fetch_within(0, 2);
    test_fetch_within(1, ROWS);
    test_fetch_cancelled();
    test_collect();
    test_updates_in_backward();
    test_collect_mixed();
    test_collect_refusals();
    test_changes_nothing();
    test_gradients_refusals();
    test_finite();
    int seen = 0;
    for (unsigned seed = 2; seed <= 160; seed += 2) /* the losses of even seeds are smooth */
        seen += test_differences(seed);
    CHECK_MSG(seen >= 60, "%d of 80 gradients of inputs were seen", seen);
    return check_report("test_gradients");
}
