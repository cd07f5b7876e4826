/* test_moves.c - compares pad, max, argmax, top_k and upsample with PyTorch (golden/make_moves.py): values, gradients and
 * source positions, also with NaN, infinities and equal values. The indices from argmax are the same bits in every
 * plan and split, whether they are fetched, collected or read by later ops, and in bf16 plans. Also
 * tests refused calls. */
#include "gradckpt.h"
#include "util.h"
#include "golden/moves.h"
#include <math.h>

typedef gckpt_tensor T;
static const gckpt_init some = { 0.5f, 0, 0 };

/* Returns n small multiples of 1/16, the numbers that make_moves.py uses; `step` selects which ones. */
static float *numbers(int step, int64_t n)
{
    float *x = (float *)malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i * step % 23 - 11) / 16;
    return x;
}

/* == compared with PyTorch ===================================================================== */
enum { PAD, PAD_LAST, REFLECT, REPLICATE, MAX, TOP, MAX_LAST, TOP_LAST, LARGER, SMALLER, ONE, TWICE };
static const struct {
    const char *name;
    int kind, how;
    const double *golden;
    size_t n;
} cases[] = {
#define CASE(name, kind, how, golden) { name, kind, how, golden, sizeof golden / sizeof *golden },
    CASE("pad", PAD, 0, golden_pad) CASE("pad, last", PAD_LAST, 0, golden_pad_last)
    CASE("reflect", REFLECT, 0, golden_reflect) CASE("replicate", REPLICATE, 0, golden_replicate)
    CASE("max", MAX, 0, golden_max) CASE("max, last", MAX_LAST, 0, golden_max_last)
    CASE("top_k", TOP, 0, golden_top_k) CASE("top_k, last", TOP_LAST, 0, golden_top_k_last)
    CASE("larger, nearest", LARGER, 0, golden_larger0) CASE("larger", LARGER, 1, golden_larger1)
    CASE("larger, aligned", LARGER, 2, golden_larger2) CASE("smaller, nearest", SMALLER, 0, golden_smaller0)
    CASE("smaller", SMALLER, 1, golden_smaller1) CASE("smaller, aligned", SMALLER, 2, golden_smaller2)
    CASE("one row, nearest", ONE, 0, golden_one0) CASE("one row", ONE, 1, golden_one1)
    CASE("one row, aligned", ONE, 2, golden_one2) CASE("twice, nearest", TWICE, 0, golden_twice0)
    CASE("twice", TWICE, 1, golden_twice1) CASE("twice, aligned", TWICE, 2, golden_twice2)
#undef CASE
};

static T *apply(int i, T *x)
{
    static const int sizes[4][2] = { { 5, 7 }, { 2, 3 }, { 1, 4 }, { 6, 8 } };
    const int kind = cases[i].kind, *size = sizes[kind < LARGER ? 0 : kind - LARGER];
    return kind == PAD        ? gckpt_pad(x, 2, 1, 3, GCKPT_PAD_VALUE, 0.5f)
           : kind == PAD_LAST ? gckpt_pad(x, -1, 2, 0, GCKPT_PAD_VALUE, -1.25f)
           : kind == REFLECT  ? gckpt_pad(x, 2, 3, 2, GCKPT_PAD_REFLECT, 0)
           : kind == REPLICATE ? gckpt_pad(x, 1, 2, 4, GCKPT_PAD_REPLICATE, 0)
           : kind == TOP      ? gckpt_top_k(x, 2, 3, NULL)
           : kind == TOP_LAST ? gckpt_top_k(x, -1, 7, NULL)
           : kind < LARGER    ? gckpt_max(x, kind == MAX ? 1 : -1)
                              : gckpt_upsample(x, size[0], size[1], (gckpt_upsampling)cases[i].how);
}

/* Tests the result y of case i, and the gradient of the loss sum(y r), where r is fed. */
static void test_case(int i)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *x = gckpt_input(g, "x", GCKPT_F32, cases[i].kind / 2 == MAX_LAST / 2 ? gckpt_shape2(2, 30) : gckpt_shape4(2, 3, 4, 2));
    T *y = apply(i, x);
    gckpt_shape of[2] = { gckpt_shape_of(y), gckpt_shape_of(x) };
    T *r = gckpt_input(g, "r", GCKPT_F32, of[0]);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, r)), 1, 0 };
    gckpt_fetch_spec fetches[2] = { { y, 0 }, { x, 1 } };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .fetch.specs = fetches, .fetch.count = 2 });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float *data[2] = { numbers(19, count_of(&of[1])), numbers(17, count_of(&of[0])) };
    gckpt_feed feeds[2] = { { gckpt_id(x), data[0] }, { gckpt_id(r), data[1] } };
    gckpt_result result = gckpt_gradients(e, feeds, 2, 2, NULL);
    CHECK_MSG(result == GCKPT_OK, "%s: %s %s", cases[i].name, gckpt_error_text(g), gckpt_error_text(e));
    CHECK(cases[i].n == (size_t)(count_of(&of[0]) + count_of(&of[1])));
    const double *golden = cases[i].golden;
    for (int k = 0; k < 2 && result == GCKPT_OK; golden += count_of(&of[k++]))
        for (int64_t j = 0; j < count_of(&of[k]); j++) {
            const float got = gckpt_fetch(e, gckpt_id(fetches[k].tensor), k)[j];
            CHECK_MSG(fabs((double)got - golden[j]) < 5e-7, "%s: %s %d: %g, not %g", cases[i].name, k ? "dx" : "y",
                      (int)j, (double)got, golden[j]);
        }
    free(data[0]);
    free(data[1]);
    util_free(e, p, g, s);
}

/* Upsamples m pixels to n. The value of each pixel is its position, so that each result is the position from which it
 * was interpolated; for the nearest pixel it must be exact. */
static void test_places(int m, int n, int how, const double *golden)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(1, m, 1, 1));
    gckpt_fetch_spec fetch = { gckpt_upsample(x, n, 1, (gckpt_upsampling)how), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float line[200];
    for (int i = 0; i < m; i++)
        line[i] = (float)i;
    gckpt_feed feed = { gckpt_id(x), line };
    CHECK(gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK);
    const float *y = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs((double)y[i] - golden[i]) <= (how ? 2e-5 : 0), "%d of %d from %d, %d: %g, not %.9g", i, n, m,
                  how, (double)y[i], golden[i]);
    util_free(e, p, g, s);
}

static void test_argmax(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(2, 3, 4, 2)),
      *l = gckpt_input(g, "l", GCKPT_F32, gckpt_shape2(2, 30));
    gckpt_fetch_spec fetches[3] = { { gckpt_argmax(x, 2), 0 }, { gckpt_argmax(l, -1), 0 }, { NULL, 0 } };
    gckpt_top_k(l, -1, 7, &fetches[2].tensor);
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0,
                                   &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .fetch.specs = fetches,
                                                       .fetch.count = 3 });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float *data = numbers(19, 60);
    gckpt_feed feeds[2] = { { gckpt_id(x), data }, { gckpt_id(l), data } };
    gckpt_node node;
    CHECK(gckpt_graph_node(g, gckpt_id(fetches[0].tensor), &node) == GCKPT_OK && node.type == GCKPT_I32);
    CHECK(gckpt_forward(e, feeds, 2, 2, NULL) == GCKPT_OK);
    const int32_t *at = (const int32_t *)gckpt_fetch(e, gckpt_id(fetches[0].tensor), 0);
    for (int i = 0; i < 12; i++)
        CHECK(at[i] == golden_argmax[i]);
    at = (const int32_t *)gckpt_fetch(e, gckpt_id(fetches[1].tensor), 0);
    CHECK(at[0] == golden_argmax_last[0] && at[1] == golden_argmax_last[1]);
    at = (const int32_t *)gckpt_fetch(e, gckpt_id(fetches[2].tensor), 0);
    for (int i = 0; i < 14; i++)
        CHECK_MSG(at[i] == golden_top_k_indices[i], "index %d of top_k: %d, not %d", i, (int)at[i],
                  golden_top_k_indices[i]);
    free(data);
    util_free(e, p, g, s);
}

/* == the first maximum, or the first NaN ======================================================= */
/* Tests that the maximum of 3 values takes the first maximum or the first NaN, and that top_k has the order of
 * PyTorch's stable descending sort. If `inner` is nonzero, the 3 values
 * are along an inner axis, in 40 adjacent columns; if 0, along the last axis. */
static void test_greatest(gckpt_isa isa, int inner)
{
    const float nan = float_of(0x7fc00000), inf = float_of(0x7f800000);
    const float rows[8][3] = { { 1, nan, 2 },  { nan, nan, 1 }, { 2, 2, 1 },       { 1, 2, 2 },
                               { -0.0f, 0, 0 }, { 0, -0.0f, 0 }, { -inf, -inf, -inf }, { inf, nan, inf } };
    const int order[8][3] = { { 1, 2, 0 }, { 0, 1, 2 }, { 0, 1, 2 }, { 1, 2, 0 },
                              { 0, 1, 2 }, { 0, 1, 2 }, { 0, 1, 2 }, { 1, 0, 2 } };
    float x[8 * 3 * 40];
    for (int i = 0; i < 8 * 3 * inner; i++)
        x[i] = rows[i / inner / 3][i / inner % 3];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *t = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(8, 3, inner)), *in = t;
    if (inner == 1)
        in = gckpt_reshape(t, gckpt_shape2(8, 3));
    gckpt_fetch_spec fetches[5] = { { gckpt_max(in, 1), 0 }, { gckpt_argmax(in, 1), 0 }, { t, 1 } };
    fetches[3].tensor = gckpt_top_k(in, 1, 3, &fetches[4].tensor);
    gckpt_term term = { gckpt_sum_loss(fetches[0].tensor), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .fetch.specs = fetches, .fetch.count = 5 });
    gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .isa = isa });
    gckpt_feed feed = { gckpt_id(t), x };
    CHECK_MSG(gckpt_gradients(e, &feed, 1, 8, NULL) == GCKPT_OK, "%s %s %s", gckpt_error_text(g), gckpt_error_text(s),
              gckpt_error_text(e));
    const float *y = gckpt_fetch(e, gckpt_id(fetches[0].tensor), 0), *dx = gckpt_fetch(e, gckpt_id(t), 1);
    const int32_t *at = (const int32_t *)gckpt_fetch(e, gckpt_id(fetches[1].tensor), 0);
    const float *top = gckpt_fetch(e, gckpt_id(fetches[3].tensor), 0);
    const int32_t *top_at = (const int32_t *)gckpt_fetch(e, gckpt_id(fetches[4].tensor), 0);
    for (int i = 0; i < 8 * inner; i++) {
        const int row = i / inner, first = order[row][0];
        CHECK(at[i] == first);
        CHECK(bits_of(y[i]) == bits_of(rows[row][first]));
        for (int k = 0; k < 3; k++) {
            const int to = (row * 3 + k) * inner + i % inner;
            CHECK(dx[to] == (k == first));
            CHECK(top_at[to] == order[row][k] && bits_of(top[to]) == bits_of(rows[row][order[row][k]]));
        }
    }
    util_free(e, p, g, s);
}

/* == indices computed by an op ================================================================= */
enum { ROWS = 6, STEPS = 5, WIDE = 7 };

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    T *x, *at, *lengths;
    gckpt_term terms[2];
} net;

/* Builds a net in which the indices from argmax select rows of a table and of a tensor, and serve as lengths and as
 * targets of three losses; every part of the net is trained. */
static void build(net *n, int64_t rows)
{
    n->s = gckpt_store_new(NULL);
    n->g = gckpt_graph_new(n->s, NULL);
    n->x = gckpt_input(n->g, "x", GCKPT_F32, gckpt_shape3(rows, STEPS, WIDE));
    T *h = gckpt_tanh(gckpt_linear(n->x, gckpt_param(n->g, "w", gckpt_shape2(WIDE, WIDE), some), NULL));
    n->at = gckpt_argmax(h, 2);
    T *seen = gckpt_embed(gckpt_param(n->g, "table", gckpt_shape2(WIDE, WIDE), some), n->at);
    T *most = gckpt_gather(h, gckpt_argmax(gckpt_scale(h, -1), 1)), *two;
    T *largest = gckpt_top_k(gckpt_mean(h, 2), 1, 2, &two);
    most = gckpt_concat((T *[]){ gckpt_slice(most, 1, 2, WIDE),
                                 gckpt_mul(gckpt_gather(h, two), gckpt_reshape(largest, gckpt_shape3(rows, 2, 1))) }, 2, 1);
    h = gckpt_add(gckpt_concat((T *[]){ gckpt_pad(h, 1, 1, 0, GCKPT_PAD_VALUE, 0.25f), most }, 2, 1),
                  gckpt_reshape(gckpt_max(seen, 1), gckpt_shape3(rows, 1, WIDE)));
    h = gckpt_slice(h, 1, 2, 2 + STEPS);
    n->lengths = gckpt_argmax(gckpt_slice(gckpt_mean(h, 1), 1, 0, STEPS), 1);
    h = gckpt_attention(h, h, h, &(gckpt_attention_desc){ .heads = 1, .lengths = n->lengths });
    h = gckpt_add(h, gckpt_scale(seen, 0.5f));
    T *targets = gckpt_reshape(n->at, gckpt_shape1(rows * STEPS));
    T *logits = gckpt_linear(gckpt_reshape(h, gckpt_shape2(rows * STEPS, WIDE)),
                             gckpt_param(n->g, "head", gckpt_shape2(WIDE, WIDE), some), NULL);
    n->terms[0] = (gckpt_term){ gckpt_cross_entropy(logits, targets, NULL, 0), 1, 0 };
    n->terms[1] = (gckpt_term){
        gckpt_linear_cross_entropy(h, gckpt_param(n->g, "head", gckpt_shape2(WIDE, WIDE), some), n->at, NULL), 0.5f, 0
    };
}

/* Trains three steps with `rows` rows per micro-batch and returns a hash of the weights and of the losses. Unless `stream`
 * is 0, there is only the first loss; if `stream` is positive, that many rows stream in at a time. */
static uint64_t train(const gckpt_plan_desc *by, int64_t rows, int stream, gckpt_isa isa)
{
    const int terms = stream ? 1 : 2;
    net n;
    uint64_t hash = 14695981039346656037u;
    build(&n, rows);
    gckpt_plan_desc d = *by;
    d.batch = ROWS;
    if (d.mode == GCKPT_OPTIMAL) { /* OPTIMAL gets a budget of a tenth more than the bytes of MEMORY_POOR */
        d.mode = GCKPT_MEMORY_POOR;
        gckpt_plan *poor = gckpt_plan_new(n.g, n.terms, terms, &d);
        d.budget = gckpt_plan_bytes(poor) / 10 * 11, d.mode = GCKPT_OPTIMAL;
        gckpt_plan_free(poor);
    }
    gckpt_plan *p = gckpt_plan_new(n.g, n.terms, terms, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(n.g));
    CHECK(!p || gckpt_plan_split_exact(p, NULL));
    gckpt_exec *e = gckpt_exec_new(
        p, n.s,
        &(gckpt_exec_desc){ .isa = isa, .debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_FINITE });
    float *data = numbers(19, ROWS * STEPS * WIDE);
    gckpt_hyper hyper = { .lr = 0.1f };
    gckpt_report report = { 0 };
    for (int step = 0; step < 3; step++) {
        gckpt_feed feed = { gckpt_id(n.x), data };
        gckpt_result result = stream > 0 ? gckpt_step_begin(e, &hyper) : gckpt_step(e, &feed, 1, ROWS, &hyper, &report);
        for (int64_t row = 0; stream > 0 && row < ROWS && result == GCKPT_OK; row += stream) {
            feed.data = data + row * STEPS * WIDE;
            result = gckpt_step_add(e, &feed, 1, stream);
        }
        result = stream > 0 && result == GCKPT_OK ? gckpt_step_end(e, &report) : result;
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
        CHECK(report.count == ROWS * STEPS);
        hash = (hash ^ bits_of((float)report.loss)) * 1099511628211u;
    }
    hash ^= gckpt_store_hash(n.s);
    free(data);
    util_free(e, p, n.g, n.s);
    return hash;
}

static void test_indices(gckpt_precision precision)
{
    static const gckpt_mode modes[4] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT, GCKPT_OPTIMAL };
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .bf16.precision = precision };
    const uint64_t want = train(&d, ROWS, 0, GCKPT_ISA_AUTO), of_one = train(&d, ROWS, -1, GCKPT_ISA_AUTO);
    for (int64_t rows = 1; rows <= ROWS; rows++)
        for (int stream = 0; stream <= (rows < ROWS ? 3 : 0); stream++)
            CHECK_MSG(train(&d, rows, stream, GCKPT_ISA_AUTO) == (stream ? of_one : want), "%d rows, %d streamed",
                      (int)rows, stream);
    for (int i = 0; i < 4; i++) {
        d.mode = modes[i], d.threads = 1 + i % 3;
        CHECK_MSG(train(&d, 4, 0, GCKPT_ISA_PLAIN) == want, "mode %d", (int)modes[i]);
        CHECK_MSG(train(&d, 4, 0, GCKPT_ISA_AUTO) == want, "mode %d, fast", (int)modes[i]);
    }
    d.kernels.plain = 1;
    CHECK(train(&d, 4, 0, GCKPT_ISA_AUTO) == want);
}

/* Tests that fetched indices are exact even in bf16 plans: they exceed 256, from where bf16 cannot represent each
 * integer. */
static void test_fetched(gckpt_precision precision)
{
    enum { N = 300 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 2, N)), *at = gckpt_argmax(x, -1);
    T *w = gckpt_param(g, "w", gckpt_shape2(N, 1), (gckpt_init){ 0, 0, 0.25f });
    gckpt_term term = { gckpt_sum_loss(gckpt_embed(w, at)), 1, 0 };
    gckpt_fetch_spec fetches[2] = { { at, 0 }, { w, 1 } };
    gckpt_plan_desc d = { .fetch.specs = fetches, .fetch.count = 2, .bf16.precision = precision, .batch = 5 };
    for (int fetched = 1; fetched >= 0; fetched--) {
        /* if the indices are not fetched, the planner may place them anywhere in the arena */
        fetches[0] = fetches[fetched ? 0 : 1], d.fetch.count = 1 + fetched;
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        float data[5 * 2 * N] = { 0 };
        int32_t all[10], wrong = 0;
        for (int i = 0; i < 10; i++)
            data[i * N + 257 + 3 * i] = 2;
        if (fetched)
            CHECK(gckpt_collect(e, gckpt_id(at), 0, (float *)(void *)all, 10) == GCKPT_OK);
        gckpt_feed feed = { gckpt_id(x), data };
        CHECK_MSG(gckpt_gradients(e, &feed, 1, 5, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g), gckpt_error_text(e));
        for (int i = 0; fetched && i < 10; i++)
            wrong += all[i] != 257 + 3 * i;
        const int32_t *last = fetched ? (const int32_t *)gckpt_fetch(e, gckpt_id(at), 0) : NULL;
        CHECK(!fetched || (last && last[0] == 257 + 24 && last[1] == 257 + 27));
        const float *dw = gckpt_fetch(e, gckpt_id(w), 1);
        for (int i = 0; i < N; i++)
            wrong += dw[i] != (i >= 257 && i < 287 && (i - 257) % 3 == 0 ? 1.0f / 10 : 0);
        CHECK(!wrong);
        gckpt_exec_free(e);
        gckpt_plan_free(p);
    }
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* == refused calls ============================================================================= */
#define REFUSED(result, text, call)                                                                                    \
    do {                                                                                                               \
        gckpt_store *s = gckpt_store_new(NULL);                                                                        \
        gckpt_graph *g = gckpt_graph_new(s, NULL);                                                                     \
        T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(2, 3, 4, 5));                                               \
        CHECK((call) == NULL && gckpt_error(g) == result && strstr(gckpt_error_text(g), text));                        \
        if (!strstr(gckpt_error_text(g), text))                                                                        \
            printf("%s\n", gckpt_error_text(g));                                                                       \
        (void)x;                                                                                                       \
        gckpt_graph_free(g);                                                                                           \
        gckpt_store_free(s);                                                                                           \
    } while (0)

static T *table(T *x, int64_t rows) { return gckpt_param(gckpt_graph_of(x), "t", gckpt_shape2(rows, 2), some); }

static void test_refusals(void)
{
    const int64_t big = INT64_MAX;
    REFUSED(GCKPT_E_ARG, "pad: -1 and 0", gckpt_pad(x, 2, -1, 0, GCKPT_PAD_VALUE, 0));
    REFUSED(GCKPT_E_ARG, "gckpt_slice", gckpt_pad(x, 1, 3, -2, GCKPT_PAD_VALUE, 0));
    REFUSED(GCKPT_E_ARG, "pad: [2,3,4,5] has no axis 4", gckpt_pad(x, 4, 1, 1, GCKPT_PAD_VALUE, 0));
    REFUSED(GCKPT_E_SHAPE, "pad: axis 1 of [2,3,4,5] reflects at most 2 elements, not 3 and 0",
            gckpt_pad(x, 1, 3, 0, GCKPT_PAD_REFLECT, 0));
    REFUSED(GCKPT_E_SHAPE, "not 0 and 4", gckpt_pad(x, -2, 0, 4, GCKPT_PAD_REFLECT, 0));
    REFUSED(GCKPT_E_ARG, "pad: mode 3 is none of", gckpt_pad(x, 1, 0, 1, (gckpt_pad_mode)3, 0));
    REFUSED(GCKPT_E_ARG, "0 to 2^31 - 1", gckpt_pad(x, 3, big, 0, GCKPT_PAD_VALUE, 0));
    REFUSED(GCKPT_E_SHAPE, "does not fit",
            gckpt_pad(gckpt_pad(x, 2, 1 << 30, INT32_MAX, GCKPT_PAD_VALUE, 0), 3, INT32_MAX, INT32_MAX, GCKPT_PAD_VALUE, 0));
    REFUSED(GCKPT_E_ARG, "max: [2,3,4,5] has no axis -5", gckpt_max(x, -5));
    REFUSED(GCKPT_E_ARG, "argmax: [2,3,4,5] has no axis 4", gckpt_argmax(x, 4));
    REFUSED(GCKPT_E_ARG, "needs f32", gckpt_max(gckpt_argmax(x, 1), 1));
    REFUSED(GCKPT_E_ARG, "top_k: [2,3,4,5] has no axis 4", gckpt_top_k(x, 4, 1, NULL));
    REFUSED(GCKPT_E_SHAPE, "top_k: k = 5 must be 1 to 4, the elements of axis 2 of [2,3,4,5]", gckpt_top_k(x, -2, 5, NULL));
    T *none = NULL;
    REFUSED(GCKPT_E_SHAPE, "top_k: k = 0 must be 1 to 5", gckpt_top_k(x, 3, 0, (none = x, &none)));
    CHECK(none == NULL);
    REFUSED(GCKPT_E_SHAPE, "argmax: the axis of [2,2147483649] is longer than 2^31 - 1",
            gckpt_argmax(gckpt_input(g, "long", GCKPT_F32, gckpt_shape2(2, INT64_C(1) + (INT64_C(1) << 31))), 1));
    REFUSED(GCKPT_E_SHAPE, "upsample: x [2,15,4] must be (B,H,W,C)",
            gckpt_upsample(gckpt_reshape(x, gckpt_shape3(2, 15, 4)), 1, 1, GCKPT_NEAREST));
    REFUSED(GCKPT_E_ARG, "upsample: 0 x 3", gckpt_upsample(x, 0, 3, GCKPT_NEAREST));
    REFUSED(GCKPT_E_ARG, "upsample: 3 x 4294967299", gckpt_upsample(x, 3, 4294967299, GCKPT_BILINEAR));
    REFUSED(GCKPT_E_ARG, "how 3", gckpt_upsample(x, 3, 3, (gckpt_upsampling)3));
    REFUSED(GCKPT_E_SHAPE, "does not fit", gckpt_upsample(x, INT32_MAX, INT32_MAX, GCKPT_NEAREST));
    REFUSED(GCKPT_E_SHAPE, "is up to 4: embed takes 0 to 3",
            gckpt_embed(table(x, 4), gckpt_argmax(x, 3)));
    REFUSED(GCKPT_E_SHAPE, "cross_entropy takes 0 to 3",
            gckpt_cross_entropy(gckpt_slice(x, 3, 0, 4), gckpt_argmax(x, 3), NULL, 0));
    CHECK(!gckpt_pad(NULL, 0, 0, 0, GCKPT_PAD_VALUE, 0) && !gckpt_max(NULL, 0) && !gckpt_argmax(NULL, 0) &&
          !gckpt_upsample(NULL, 1, 1, GCKPT_NEAREST));

    net n; /* i32 values have no gradient, so a fetch of one is refused */
    build(&n, 2);
    gckpt_fetch_spec fetch = { n.at, 1 };
    CHECK(!gckpt_plan_new(n.g, n.terms, 2, &(gckpt_plan_desc){ .fetch.specs = &fetch, .fetch.count = 1 }));
    CHECK(strstr(gckpt_error_text(n.g), "has no gradient: it is i32"));
    gckpt_graph_free(n.g);
    gckpt_store_free(n.s);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_case((int)i);
    test_places(26, 22, 0, golden_places_26_22_0);
    test_places(4, 166, 0, golden_places_4_166_0);
    test_places(7, 3, 1, golden_places_7_3_1);
    test_places(7, 3, 2, golden_places_7_3_2);
    test_places(100, 33, 1, golden_places_100_33_1);
    test_places(100, 33, 2, golden_places_100_33_2);
    test_argmax();
    for (int isa = GCKPT_ISA_AUTO; isa <= GCKPT_ISA_PLAIN; isa++) {
        test_greatest((gckpt_isa)isa, 40);
        test_greatest((gckpt_isa)isa, 1);
    }
    test_indices(GCKPT_FP32);
    test_indices(GCKPT_BF16);
    test_fetched(GCKPT_FP32);
    test_fetched(GCKPT_BF16);
    test_refusals();
    return check_report("test_moves");
}
