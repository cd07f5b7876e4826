/* test_recurrent.c - compares gather, gru, lstm and the gated delta rule with PyTorch (golden/make_recurrent.py). Also tests sequences that
 * are cut into pieces, NaN and large values, gradients of weights that are computed from the batch, and refused
 * calls. The exact bits of these ops are tested by test_kernels and test_ops. */
#include "gradckpt.h"
#include "util.h"
#include "golden/recurrent.h"
#include <math.h>

enum { B = RECURRENT_ROWS, I = RECURRENT_INPUTS, H = RECURRENT_UNITS, LEAVES = 7 };

/* Bound on |a - b| / |b|, the distance of a result from PyTorch's: that of test_golden.c; for bf16 plans, which round
 * to 2^-9, 2 %. */
static double tolerance;
static uint64_t hash; /* of all compared values */
static void near(const float *a, const float *b, int64_t n, const char *name, const char *what)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; a && i < n; i++)
        hash = (hash ^ bits_of(a[i])) * UINT64_C(0x100000001b3);
    for (int64_t i = 0; a && i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    CHECK_MSG(a && difference <= tolerance * tolerance * norm, "%s: %s differs by %g of %g", name,
              what, sqrt(difference), sqrt(norm));
}

/* Returns the gated delta rule of inputs with the shapes of case k; leaf[] receives them. */
static gckpt_tensor *delta(gckpt_graph *g, int k, int64_t rows, gckpt_tensor **leaf)
{
    static const char *const names[5] = { "q", "k", "v", "decay", "beta" };
    const int heads = recurrent_cases[k].biases;
    const int64_t columns[5] = { I, I, H, heads, heads };
    for (int i = 0; i < 5; i++)
        leaf[i] = gckpt_input(g, names[i], GCKPT_F32, gckpt_shape3(rows, recurrent_cases[k].steps, columns[i]));
    leaf[5] = NULL;
    const gckpt_attention_desc desc = { .heads = heads, .key_heads = recurrent_cases[k].started, .causal = 1,
                                        .decay = leaf[3], .beta = leaf[4] };
    return gckpt_attention(leaf[0], leaf[1], leaf[2], &desc);
}

/* Builds recurrent layer k with constant weights; leaf[] receives x, weights and states in the order of recurrent.h,
 * *lengths the lengths or NULL. */
static gckpt_tensor *layer(gckpt_graph *g, int k, int64_t rows, gckpt_tensor **leaf, gckpt_tensor **lengths)
{
    *lengths = NULL;
    if (recurrent_cases[k].lstm == 2)
        return delta(g, k, rows, leaf);
    const int lstm = recurrent_cases[k].lstm, both = recurrent_cases[k].biases && !lstm;
    const int64_t gates = (lstm ? 4 : 3) * H;
    const gckpt_shape shapes[5] = { gckpt_shape3(rows, recurrent_cases[k].steps, I),
                                    gckpt_shape2(I, gates), gckpt_shape2(H, gates),
                                    gckpt_shape1(gates), gckpt_shape1(gates) };
    const int biases = recurrent_cases[k].biases ? 1 + both : 0;
    gckpt_tensor *bias[2] = { NULL, NULL }, *start[2] = { NULL, NULL };
    int n = 0;
    leaf[n++] = gckpt_input(g, "x", GCKPT_F32, shapes[0]);
    for (; n < 3 + biases; n++)
        leaf[n] = gckpt_constant(g, "w", GCKPT_F32, shapes[n], recurrent_cases[k].leaf[n].values);
    for (int i = 0; i < biases; i++)
        bias[i] = leaf[3 + i];
    for (int i = 0; recurrent_cases[k].started && i <= lstm; i++)
        start[i] = leaf[n++] = gckpt_input(g, i ? "c0" : "h0", GCKPT_F32, gckpt_shape2(rows, H));
    leaf[n] = NULL;
    if (recurrent_cases[k].lengths)
        *lengths = gckpt_input(g, "lengths", GCKPT_I32, gckpt_shape1(rows));
    const gckpt_recurrent_desc desc = { start[0], start[1], *lengths, recurrent_cases[k].reset_before };
    return lstm ? gckpt_lstm(leaf[0], leaf[1], leaf[2], bias[0], &desc)
                : gckpt_gru(leaf[0], leaf[1], bias[0], leaf[2], bias[1], &desc);
}

/* Tests the output of layer k and all gradients of the loss sum(out * r), where r is fed, with `rows` rows per
 * micro-batch. */
static void test_golden(int k, int64_t rows, gckpt_precision precision, gckpt_mode mode)
{
    const char *name = recurrent_cases[k].name;
    const int64_t wide = recurrent_cases[k].lstm == 1 ? 2 * H : H, steps = recurrent_cases[k].steps;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *leaf[LEAVES + 1], *lengths, *out = layer(g, k, rows, leaf, &lengths);
    gckpt_tensor *r = gckpt_input(g, "r", GCKPT_F32, gckpt_shape3(rows, steps, wide));
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(out, r)), 1, 0 };
    gckpt_fetch_spec fetch[LEAVES + 1] = { { out, 0 } };
    gckpt_feed feed[7] = { { gckpt_id(r), recurrent_cases[k].r } };
    gckpt_node node;
    static float all[B * 5 * 2 * H], gradient[LEAVES][B * 5 * H];
    int n = 0, feeds = 1;
    for (; leaf[n]; n++) {
        fetch[1 + n] = (gckpt_fetch_spec){ leaf[n], 1 };
        if (gckpt_graph_node(g, gckpt_id(leaf[n]), &node) == GCKPT_OK && !node.batch_invariant)
            feed[feeds++] = (gckpt_feed){ gckpt_id(leaf[n]), recurrent_cases[k].leaf[n].values };
    }
    if (lengths)
        feed[feeds++] = (gckpt_feed){ gckpt_id(lengths), recurrent_cases[k].lengths };
    gckpt_plan_desc desc = {
        .mode = mode, .bf16.precision = precision, .batch = B, .fetch.specs = fetch, .fetch.count = 1 + n
    };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_hyper still = gckpt_hyper_lr(0);
    CHECK_MSG(e != NULL, "%s: %s %s", name, gckpt_error_text(g), gckpt_error_text(s));
    gckpt_collect(e, gckpt_id(out), 0, all, sizeof all / sizeof *all);
    for (int i = 0; i < n; i++)
        gckpt_collect(e, gckpt_id(leaf[i]), 1, gradient[i], sizeof gradient[i] / sizeof(float));
    CHECK_MSG(gckpt_step(e, feed, feeds, B, &still, NULL) == GCKPT_OK, "%s: %s", name,
              gckpt_error_text(e));
    near(all, recurrent_cases[k].out, B * steps * wide, name, "the output");
    for (int i = 0; i < n && e; i++) {
        gckpt_shape shape = gckpt_shape_of(leaf[i]);
        gckpt_graph_node(g, gckpt_id(leaf[i]), &node);
        char what[32];
        sprintf(what, "gradient %d", i);
        near(node.batch_invariant ? gckpt_fetch(e, gckpt_id(leaf[i]), 1) : gradient[i],
             recurrent_cases[k].leaf[i].gradient,
             count_of(&shape) / (node.batch_invariant ? 1 : rows) * (node.batch_invariant ? 1 : B), name, what);
    }
    util_free(e, p, g, s);
}

static void test_gather(int64_t rows)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(rows, 6, I));
    gckpt_tensor *index = gckpt_input(g, "index", GCKPT_I32, gckpt_shape2(rows, 4));
    gckpt_tensor *r = gckpt_input(g, "r", GCKPT_F32, gckpt_shape3(rows, 4, I));
    gckpt_tensor *out = gckpt_gather(x, index);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(out, r)), 1, 0 };
    const gckpt_fetch_spec fetch[2] = { { out, 0 }, { x, 1 } };
    gckpt_plan_desc desc = { .batch = B, .fetch.specs = fetch, .fetch.count = 2 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_hyper still = gckpt_hyper_lr(0);
    float all[B * 4 * I], gradient[B * 6 * I];
    int32_t wrong[B * 4];
    gckpt_feed feed[3] = { { gckpt_id(x), gather_x },
                           { gckpt_id(index), gather_index },
                           { gckpt_id(r), gather_r } };
    gckpt_collect(e, gckpt_id(out), 0, all, B * 4 * I);
    gckpt_collect(e, gckpt_id(x), 1, gradient, B * 6 * I);
    CHECK(gckpt_step(e, feed, 3, B, &still, NULL) == GCKPT_OK);
    near(all, gather_out, B * 4 * I, "gather", "the output");
    near(gradient, gather_grad, B * 6 * I, "gather", "the gradient");
    const float large[B * 4 * I] = { [0] = 1, [I] = 1e8f, [2 * I] = -1e8f };
    /* all indices are 0, so their gradients are added in the order of the rows: (1 + 1e8) - 1e8 is 0 */
    const int32_t same[B * 4] = { 0 };
    feed[1].data = same, feed[2].data = large;
    CHECK(gckpt_step(e, feed, 3, B, &still, NULL) == GCKPT_OK && gradient[0] == 0);
    for (int i = 0; i < 2; i++) { /* indices are checked before anything runs */
        memcpy(wrong, gather_index, sizeof wrong);
        wrong[B * 4 - 1] = i ? 6 : -1;
        feed[1].data = wrong;
        CHECK(gckpt_step(e, feed, 3, B, &still, NULL) == GCKPT_E_DATA);
        CHECK_MSG(strstr(gckpt_error_text(e), "index"), "%s", gckpt_error_text(e));
    }
    util_free(e, p, g, s);
}

/* Tests that a sequence of six steps has the same bits as its two halves, of which the second begins with the final
 * state of the first. */
static void test_pieces(int lstm)
{
    enum { T = 6, UNITS = 21 };
    const gckpt_init init = { 0.4f, 0, 0 };
    const int64_t gates = (lstm ? 4 : 3) * UNITS, wide = (lstm ? 2 : 1) * UNITS;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(3, T, I)), *y[3], *h = NULL;
    gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, gates), init), *c = NULL;
    gckpt_tensor *wh = gckpt_param(g, "wh", gckpt_shape2(UNITS, gates), init);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(gates), init);
    for (int i = 0; i < 3; i++) {
        gckpt_tensor *in = i < 2 ? gckpt_slice(x, 1, 3 * i, 3 * i + 3) : x;
        const gckpt_recurrent_desc second = { .h0 = h, .c0 = c }, *desc = i == 1 ? &second : NULL;
        y[i] = lstm ? gckpt_lstm(in, wx, wh, b, desc) : gckpt_gru(in, wx, b, wh, b, desc);
        gckpt_tensor *last = gckpt_reshape(gckpt_slice(y[i], 1, 2, 3), gckpt_shape2(3, wide));
        h = gckpt_slice(last, 1, 0, UNITS);
        c = lstm ? gckpt_slice(last, 1, UNITS, wide) : NULL;
    }
    y[0] = gckpt_concat(y, 2, 1);
    const gckpt_fetch_spec fetch[2] = { { y[0], 0 }, { y[2], 0 } };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = fetch, .fetch.count = 2 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float data[3 * T * I];
    for (int i = 0; i < 3 * T * I; i++)
        data[i] = (float)((i * 37) % 23 - 11) / 7.0f;
    gckpt_feed feed = { gckpt_id(x), data };
    if (CHECK_MSG(e && gckpt_forward(e, &feed, 1, 3, NULL) == GCKPT_OK, "%s", gckpt_error_text(g)))
        CHECK(!memcmp(gckpt_fetch(e, gckpt_id(y[0]), 0), gckpt_fetch(e, gckpt_id(y[2]), 0),
                      (size_t)(3 * T * wide) * sizeof(float)));
    util_free(e, p, g, s);
}

/* Tests that a NaN in the input makes only its own row NaN, from its time step on, and that large inputs saturate the
 * gates without overflow. */
static void test_not_finite(int lstm)
{
    enum { T = 4, UNITS = 5 };
    const gckpt_init init = { 0.4f, 0, 0 };
    const int64_t gates = (lstm ? 4 : 3) * UNITS, wide = (lstm ? 2 : 1) * UNITS;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(3, T, I));
    gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, gates), init);
    gckpt_tensor *wh = gckpt_param(g, "wh", gckpt_shape2(UNITS, gates), init);
    gckpt_tensor *y =
        lstm ? gckpt_lstm(x, wx, wh, NULL, NULL) : gckpt_gru(x, wx, NULL, wh, NULL, NULL);
    const gckpt_fetch_spec fetch = { y, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float data[3 * T * I] = { 0 };
    gckpt_feed feed = { gckpt_id(x), data };
    for (int i = 0; i < 3; i++) { /* the fill values: NaN, then two values at which the gates saturate */
        data[(T + 2) * I] = i == 0 ? NAN : i == 1 ? 1e30f : -1e30f;
        CHECK(gckpt_forward(e, &feed, 1, 3, NULL) == GCKPT_OK);
        const float *out = gckpt_fetch(e, gckpt_id(y), 0);
        for (int64_t k = 0; out && k < 3 * T * wide; k++) {
            int lost = i == 0 && k / wide >= T + 2 && k / wide < 2 * T;
            CHECK_MSG(lost ? out[k] != out[k] : fabsf(out[k]) <= T, "lstm %d, %d: [%ld] is %g",
                      lstm, i, (long)k, (double)out[k]);
        }
    }
    util_free(e, p, g, s);
}

static void refused(gckpt_graph **g, gckpt_store *s, gckpt_tensor *t, gckpt_result result,
                    const char *text)
{
    CHECK_MSG(!t && gckpt_error(*g) == result && strstr(gckpt_error_text(*g), text),
              "\"%s\", not \"%s\"", gckpt_error_text(*g), text);
    gckpt_graph_free(*g);
    *g = gckpt_graph_new(s, NULL);
}

/* Tests weights that are fed as inputs, with a batch of as many rows as wh has: they have the same gradients as
 * constant weights. Memory filled with a pattern shows that gradient buffers start at +0. */
static void test_weights_of_the_batch(int lstm, int plain)
{
    enum { T = 5, U = 4 };
    const int64_t gates = (lstm ? 4 : 3) * U, wide = (lstm ? 2 : 1) * U;
    const gckpt_init init = { 0.4f, 0, 0 };
    float data[4][U * 4 * U * T], got[2][2][U * 4 * U];
    for (int i = 0; i < 4 * U * 4 * U * T; i++)
        data[i / (U * 4 * U * T)][i % (U * 4 * U * T)] = (float)((i * 37) % 23 - 11) / 7.0f;
    for (int i = 0; i < U * 4 * U; i++) /* all rows are equal, so that the mean over rows is the constant's bias */
        data[2][i] = data[2][i % gates];
    for (int fed = 0; fed < 2; fed++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(U, T, I));
        gckpt_tensor *r = gckpt_input(g, "r", GCKPT_F32, gckpt_shape3(U, T, wide));
        gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, gates), init), *wh, *b;
        gckpt_feed feeds[4] = { { gckpt_id(x), data[0] }, { gckpt_id(r), data[3] } };
        if (fed) {
            wh = gckpt_input(g, "wh", GCKPT_F32, gckpt_shape2(U, gates));
            b = gckpt_input(g, "b", GCKPT_F32, gckpt_shape2(U, gates));
            feeds[2].input = gckpt_id(wh), feeds[2].data = data[1];
            feeds[3].input = gckpt_id(b), feeds[3].data = data[2];
            b = gckpt_mean(b, 0);
        } else {
            wh = gckpt_constant(g, "wh", GCKPT_F32, gckpt_shape2(U, gates), data[1]);
            b = gckpt_constant(g, "b", GCKPT_F32, gckpt_shape1(gates), data[2]);
        }
        gckpt_tensor *y = lstm ? gckpt_lstm(x, wx, wh, b, NULL)
                               : gckpt_gru(x, wx, NULL, wh, b, NULL);
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, r)), 1, 0 };
        const gckpt_fetch_spec fetch[2] = { { wh, 1 }, { b, 1 } };
        gckpt_plan_desc desc = { .fetch.specs = fetch, .fetch.count = 2, .kernels.plain = plain };
        gckpt_exec_desc how = { .debug = GCKPT_DEBUG_POISON };
        gckpt_hyper hyper = gckpt_hyper_lr(0);
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        CHECK_MSG(e && gckpt_step(e, feeds, fed ? 4 : 2, U, &hyper, NULL) == GCKPT_OK, "%s %s",
                  gckpt_error_text(g), gckpt_error_text(e));
        for (int i = 0; e && i < 2; i++)
            memcpy(got[fed][i], gckpt_fetch(e, gckpt_id(fetch[i].tensor), 1),
                   (size_t)(i ? gates : U * gates) * sizeof(float));
        util_free(e, p, g, s);
    }
    CHECK_MSG(!memcmp(got[0][0], got[1][0], (size_t)(U * gates) * sizeof(float)),
              "weights of the batch, lstm %d, plain %d: another gradient", lstm, plain);
    CHECK_MSG(!memcmp(got[0][1], got[1][1], (size_t)gates * sizeof(float)),
              "bias of the batch, lstm %d, plain %d: another gradient", lstm, plain);
}

/* Tests a bias that is fed as an input and has as many elements as the output: its gradient is still a sum over the
 * time steps with compensation (manual, 5e). All kernels must give the bits of a constant bias. */
static void test_few_rows(void)
{
    enum { U = 2, PLAIN_PLAN = GCKPT_ISA_COUNT, CONSTANT };
    static const float x[3 * I] = { 1, -2, 3, -1, 2, -3, 0.5f }, r[3 * U] = { 3e7f, 1, -2, 5e-7f, 1, 3e7f };
    static const float b[3 * U] = { 0.1f, -0.2f, 0.3f, -0.4f, 0.5f, -0.6f };
    const gckpt_init init = { 0.4f, 0, 0 };
    float want[3 * U] = { 0 };
    for (int i = CONSTANT; i >= 0; i--) {
        const int plain = i >= PLAIN_PLAN, fed = i != CONSTANT;
        if (!plain && !gckpt_isa_available((gckpt_isa)i))
            continue;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, 3, I));
        gckpt_tensor *times = gckpt_input(g, "r", GCKPT_F32, gckpt_shape3(1, 3, U));
        gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, 3 * U), init);
        gckpt_tensor *wh = gckpt_param(g, "wh", gckpt_shape2(U, 3 * U), init);
        gckpt_tensor *bias = fed ? gckpt_input(g, "b", GCKPT_F32, gckpt_shape2(1, 3 * U))
                                 : gckpt_constant(g, "b", GCKPT_F32, gckpt_shape1(3 * U), b);
        gckpt_tensor *line = fed ? gckpt_reshape(bias, gckpt_shape1(3 * U)) : bias;
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(gckpt_gru(in, wx, NULL, wh, line, NULL), times)), 1, 0 };
        const gckpt_fetch_spec fetch = { bias, 1 };
        const gckpt_feed feeds[3] = { { gckpt_id(in), x }, { gckpt_id(times), r }, { gckpt_id(bias), b } };
        gckpt_plan_desc desc = { .fetch.specs = &fetch, .fetch.count = 1, .kernels.plain = plain };
        gckpt_exec_desc how = { .isa = plain ? GCKPT_ISA_AUTO : (gckpt_isa)i };
        gckpt_hyper still = gckpt_hyper_lr(0);
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        CHECK_MSG(e && gckpt_step(e, feeds, 2 + fed, 1, &still, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g),
                  gckpt_error_text(e));
        const float *got = gckpt_fetch(e, gckpt_id(bias), 1);
        if (got && !fed)
            memcpy(want, got, sizeof want);
        CHECK_MSG(got && !memcmp(got, want, sizeof want), "gru of three rows: another gradient of its bias, %s",
                  plain ? "a plain plan" : isa_name((gckpt_isa)i));
        util_free(e, p, g, s);
    }
}

static void test_refusals(void)
{
    const gckpt_init zero = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
#define X(...)     gckpt_input(g, "x", GCKPT_F32, __VA_ARGS__)
#define STATE(n)   gckpt_input(g, "state", GCKPT_F32, gckpt_shape2(4, n))
#define DESC(...)  &(gckpt_recurrent_desc){ __VA_ARGS__ }
#define P(name, s) gckpt_param(g, name, s, zero)
#define WX(gates)  P("wx" #gates, gckpt_shape2(3, gates))
#define WH(gates)  P("wh" #gates, gckpt_shape2(5, gates))
    const gckpt_shape sequence = gckpt_shape3(4, 2, 3);
    gckpt_tensor *x = X(sequence), *index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(4, 2));
    gckpt_tensor *t = gckpt_gather(gckpt_slice(x, 1, 0, 1), x);
    refused(&g, s, t, GCKPT_E_ARG, "gather needs i32");
    index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape3(4, 2, 1)),
    t = gckpt_gather(X(sequence), index);
    refused(&g, s, t, GCKPT_E_SHAPE, "gather: x [4,2,3], index [4,2,1] must be (B,N,C), (B,M)");
    index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(4, 2));
    t = gckpt_gather(X(gckpt_shape2(4, 3)), index);
    refused(&g, s, t, GCKPT_E_SHAPE, "gather: x [4,3]");
    t = gckpt_gru(X(gckpt_shape2(4, 3)), WX(15), NULL, WH(15), NULL, NULL);
    refused(&g, s, t, GCKPT_E_SHAPE, "gru: x wx [4,15] and wh [5,15] must be (B,T,3H) and (H,3H)");
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(18), NULL, NULL);
    refused(&g, s, t, GCKPT_E_SHAPE, "gru: x wx [4,2,15] and wh [5,18]");
    t = gckpt_gru(X(sequence), WX(16), NULL, WH(16), NULL, NULL);
    refused(&g, s, t, GCKPT_E_SHAPE, "gru: x wx [4,2,16] and wh [5,16]");
    t = gckpt_lstm(X(sequence), WX(15), WH(15), NULL, NULL);
    refused(&g, s, t, GCKPT_E_SHAPE, "lstm: x wx [4,2,15] and wh [5,15] must be (B,T,4H)");
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), P("b", gckpt_shape1(5)), NULL);
    refused(&g, s, t, GCKPT_E_SHAPE, "need a bias [15], not [5]");
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), NULL, DESC(.h0 = STATE(3)));
    refused(&g, s, t, GCKPT_E_SHAPE, "need a first state [4,5], not [4,3]");
    t = gckpt_lstm(X(sequence), WX(20), WH(20), NULL, DESC(.c0 = STATE(5)));
    refused(&g, s, t, GCKPT_E_ARG, "lstm: c0");
    t = gckpt_lstm(X(sequence), WX(20), WH(20), NULL, DESC(.h0 = STATE(5)));
    refused(&g, s, t, GCKPT_E_ARG, "without c0: give both, or none");
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), NULL, DESC(.c0 = STATE(5)));
    refused(&g, s, t, GCKPT_E_ARG, "gru: c0 must be NULL: only an lstm has cells");
    t = gckpt_lstm(X(sequence), WX(20), WH(20), NULL, DESC(.reset_before = 1));
    refused(&g, s, t, GCKPT_E_ARG, "lstm: reset_before must be 0: only a gru has that gate");
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), NULL, DESC(.lengths = STATE(5)));
    refused(&g, s, t, GCKPT_E_ARG, "gru: input \"state\" must be i32, as lengths are: declare and feed it so");
    index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(4, 5));
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), NULL, DESC(.h0 = index));
    refused(&g, s, t, GCKPT_E_ARG, "gru: input \"i\" must be f32: declare and feed it so");
    index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(4, 5));
    t = gckpt_gru(X(sequence), WX(15), NULL, WH(15), NULL, DESC(.lengths = index));
    refused(&g, s, t, GCKPT_E_SHAPE, "need lengths [4], not [4,5]");
#define DELTA(q, k, v, ...) gckpt_attention(q, k, v, &(gckpt_attention_desc){ __VA_ARGS__ })
    gckpt_tensor *f = X(gckpt_shape3(4, 2, 3)), *other;
    t = DELTA(f, f, f, .heads = 3, .causal = 1, .decay = f);
    refused(&g, s, t, GCKPT_E_ARG, "attention: decay without beta: give both, or none");
    f = X(sequence), t = DELTA(f, f, f, .heads = 3, .decay = f, .beta = f);
    refused(&g, s, t, GCKPT_E_ARG, "with decay and beta, causal must be 1");
    f = X(sequence), t = DELTA(f, f, f, .heads = 3, .causal = 1, .window = 1, .decay = f, .beta = f);
    refused(&g, s, t, GCKPT_E_ARG, "with decay and beta, causal must be 1");
    f = X(sequence), t = DELTA(f, f, f, .heads = 1, .causal = 1, .decay = f, .beta = f);
    refused(&g, s, t, GCKPT_E_SHAPE, "decay [4,2,3] and beta [4,2,3] (B,T,heads)");
    f = X(sequence), t = DELTA(f, f, f, .heads = 3, .key_heads = 2, .causal = 1, .decay = f, .beta = f);
    refused(&g, s, t, GCKPT_E_SHAPE, "3 heads, key_heads 2, which must divide them");
    f = X(sequence), other = gckpt_input(g, "k", GCKPT_F32, gckpt_shape3(4, 3, 3)), t = DELTA(f, other, f, .heads = 3, .causal = 1, .decay = f, .beta = f);
    refused(&g, s, t, GCKPT_E_SHAPE, "q [4,2,3] and k [4,3,3] must be (B,T,key_heads K)");
    f = X(gckpt_shape3(4, 2, 1025)), other = gckpt_slice(f, 2, 0, 1);
    t = DELTA(f, f, f, .heads = 1, .causal = 1, .decay = other, .beta = other);
    refused(&g, s, t, GCKPT_E_SHAPE, "with K and D at most 1024");
    t = gckpt_gru(NULL, WX(15), NULL, WH(15), NULL, NULL);
    refused(&g, s, t, GCKPT_E_ARG, "input 0 is NULL");
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* Tests that lengths beyond the steps or below 0 are refused before anything runs, that gckpt_gather takes the last states
 * (make_recurrent.py compares the same steps with PyTorch's), and that a row without steps has outputs and gradients
 * of 0. */
static void test_lengths(int lstm)
{
    enum { T = 4 };
    const gckpt_init init = { 0.4f, 0, 0 };
    const int64_t gates = (lstm ? 4 : 3) * H, wide = (lstm ? 2 : 1) * H;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(3, T, I));
    gckpt_tensor *h0 = gckpt_input(g, "h0", GCKPT_F32, gckpt_shape2(3, H));
    gckpt_tensor *lengths = gckpt_input(g, "lengths", GCKPT_I32, gckpt_shape1(3));
    gckpt_tensor *last = gckpt_input(g, "last", GCKPT_I32, gckpt_shape2(3, 1));
    gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, gates), init);
    gckpt_tensor *wh = gckpt_param(g, "wh", gckpt_shape2(H, gates), init);
    const gckpt_recurrent_desc desc = { h0, lstm ? h0 : NULL, lengths, 0 };
    gckpt_tensor *y = lstm ? gckpt_lstm(x, wx, wh, NULL, &desc) : gckpt_gru(x, wx, NULL, wh, NULL, &desc);
    const gckpt_fetch_spec fetch[4] = { { y, 0 }, { gckpt_gather(y, last), 0 }, { x, 1 }, { h0, 1 } };
    gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .fetch.specs = fetch, .fetch.count = 4 });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float data[3 * T * I], start[3 * H];
    int32_t length[3] = { 3, 0, T }, at[3] = { 2, 0, T - 1 };
    for (int i = 0; i < 3 * T * I; i++)
        data[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 3 * H; i++)
        start[i] = (float)(i % 5) / 4;
    gckpt_feed feed[4] = {
        { gckpt_id(x), data }, { gckpt_id(h0), start }, { gckpt_id(lengths), length }, { gckpt_id(last), at }
    };
    CHECK_MSG(gckpt_gradients(e, feed, 4, 3, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g), gckpt_error_text(e));
    const float *all = gckpt_fetch(e, gckpt_id(y), 0), *h = gckpt_fetch(e, gckpt_id(fetch[1].tensor), 0);
    const float *dx = gckpt_fetch(e, gckpt_id(x), 1), *dh = gckpt_fetch(e, gckpt_id(h0), 1);
    for (int64_t b = 0; b < 3 && all && h && dx && dh; b++) {
        CHECK(!memcmp(h + b * wide, all + (b * T + at[b]) * wide, (size_t)wide * sizeof(float)));
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < wide; k++)
                CHECK((bits_of(all[(b * T + t) * wide + k]) == 0) == (t >= length[b]));
        for (int64_t t = length[b]; t < T; t++)
            for (int64_t k = 0; k < I; k++)
                CHECK(bits_of(dx[(b * T + t) * I + k]) == 0);
        for (int64_t k = 0; k < H; k++)
            CHECK((bits_of(dh[b * H + k]) == 0) == (length[b] == 0));
    }
    for (int i = 0; i < 2; i++) {
        length[1] = i ? -1 : T + 1;
        CHECK(gckpt_gradients(e, feed, 4, 3, NULL) == GCKPT_E_DATA);
        CHECK_MSG(strstr(gckpt_error_text(e), "takes 0 to 4"), "%s", gckpt_error_text(e));
    }
    util_free(e, p, g, s);
}

/* Returns the workspace bytes of the layer's forward, which must not grow with the number of time steps. */
static size_t workspace_of(int lstm, int64_t steps)
{
    const gckpt_init init = { 0.1f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const int64_t wide = (lstm ? 4 : 3) * H;
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(B, steps, I));
    gckpt_tensor *wx = gckpt_param(g, "wx", gckpt_shape2(I, wide), init);
    gckpt_tensor *wh = gckpt_param(g, "wh", gckpt_shape2(H, wide), init);
    gckpt_tensor *out = lstm ? gckpt_lstm(x, wx, wh, NULL, NULL) : gckpt_gru(x, wx, NULL, wh, NULL, NULL);
    gckpt_fetch_spec fetch = { out, 0 };
    gckpt_plan *p =
        gckpt_plan_new(g, NULL, 0, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .fetch.specs = &fetch,
                                                       .fetch.count = 1 });
    gckpt_buffer b;
    size_t room = 0;
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++)
        room = b.id == gckpt_id(out) && b.kind == GCKPT_BUFFER_WORKSPACE ? b.size : room;
    util_free(NULL, p, g, s);
    return room;
}

/* Tests the gated delta rule at T steps, of which one has a decay of -inf, which forgets the state, and another, later
 * one has a NaN in v. Outputs before the NaN are those of the steps since the decay alone. */
static void test_delta_not_finite(void)
{
    enum { T = 6, FORGETS = 2, LOST = 4 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "q", GCKPT_F32, gckpt_shape3(1, T, I));
    gckpt_tensor *v = gckpt_input(g, "v", GCKPT_F32, gckpt_shape3(1, T, H));
    gckpt_tensor *decay = gckpt_input(g, "decay", GCKPT_F32, gckpt_shape3(1, T, 1)), *y[2], *part[3];
    gckpt_tensor *all[3] = { in, v, decay };
    for (int i = 0; i < 3; i++)
        part[i] = gckpt_slice(all[i], 1, FORGETS, T);
    y[0] = gckpt_attention(in, in, v, &(gckpt_attention_desc){ .heads = 1, .causal = 1, .decay = decay,
                                                               .beta = gckpt_sigmoid(decay) });
    y[1] = gckpt_attention(part[0], part[0], part[1],
                           &(gckpt_attention_desc){ .heads = 1, .causal = 1, .decay = part[2],
                                                    .beta = gckpt_sigmoid(part[2]) });
    const gckpt_fetch_spec fetch[2] = { { y[0], 0 }, { y[1], 0 } };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .fetch.specs = fetch,
                                                                   .fetch.count = 2 });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    float x[T * I], values[T * H], factors[T];
    for (int i = 0; i < T * H; i++)
        values[i] = (float)(i % 5) - 1.5f;
    for (int i = 0; i < T * I; i++)
        x[i] = (float)(i % 7) / 4 - 0.5f;
    for (int i = 0; i < T; i++)
        factors[i] = i == FORGETS ? -INFINITY : -0.25f;
    values[LOST * H] = NAN;
    const gckpt_feed feed[3] = { { gckpt_id(in), x }, { gckpt_id(v), values }, { gckpt_id(decay), factors } };
    CHECK_MSG(gckpt_forward(e, feed, 3, 1, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    const float *a = gckpt_fetch(e, gckpt_id(y[0]), 0), *b = gckpt_fetch(e, gckpt_id(y[1]), 0);
    for (int i = 0; a && b && i < T * H; i++) {
        const int lost = i % H == 0 && i / H >= LOST;
        CHECK_MSG(lost ? a[i] != a[i] : fabsf(a[i]) < 100, "delta rule: [%d] is %g", i, (double)a[i]);
        CHECK_MSG(i / H < FORGETS || lost || bits_of(a[i]) == bits_of(b[i - FORGETS * H]),
                  "delta rule: [%d] is %g after a decay of -inf, without earlier steps %g", i, (double)a[i],
                  (double)b[i < FORGETS * H ? 0 : i - FORGETS * H]);
    }
    util_free(e, p, g, s);
}

/* Returns the workspace bytes of the gated delta rule's backward, or of its forward if `backward` is 0. */
static size_t delta_workspace(int64_t steps, int backward)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(B, steps, 8));
    x = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(8), (gckpt_init){ 0.1f, 0, 0 }));
    gckpt_tensor *f = gckpt_slice(x, 2, 0, 1);
    gckpt_tensor *y =
        gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 1, .causal = 1, .decay = f, .beta = f });
    gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_buffer b;
    size_t most[2] = { 0, 0 };
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++)
        if (b.id == gckpt_id(y) && b.kind == GCKPT_BUFFER_WORKSPACE) {
            most[1] = b.size > most[1] ? b.size : most[1];
            most[0] = most[0] == 0 || b.size < most[0] ? b.size : most[0];
        }
    util_free(NULL, p, g, s);
    return most[backward];
}

static const struct {
    int64_t rows;
    gckpt_mode mode;
} ways[] = { { B, GCKPT_STORE_ALL }, { B, GCKPT_MEMORY_POOR }, { 1, GCKPT_STORE_ALL } };

int main(void)
{
    for (int k = 0; k < (int)(sizeof recurrent_cases / sizeof *recurrent_cases); k++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            uint64_t first = 0;
            tolerance = bf16 ? 2e-2 : 2e-6;
            for (int i = 0; i < 3; i++) {
                hash = 0;
                test_golden(k, ways[i].rows, bf16 ? GCKPT_BF16 : GCKPT_FP32, ways[i].mode);
                first = i ? first : hash;
                CHECK_MSG(hash == first, "%s, bf16 %d: other bits, way %d", recurrent_cases[k].name,
                          bf16, i);
            }
        }
    tolerance = 2e-6;
    for (int64_t rows = 1; rows <= B; rows++)
        test_gather(rows);
    for (int lstm = 0; lstm < 2; lstm++) {
        test_pieces(lstm);
        test_not_finite(lstm);
        test_lengths(lstm);
        for (int plain = 0; plain < 2; plain++)
            test_weights_of_the_batch(lstm, plain);
        CHECK(workspace_of(lstm, 2) > 0 && workspace_of(lstm, 2) == workspace_of(lstm, 50));
    }
    test_delta_not_finite();
    /* a backward has states for 2 sqrt(T) steps */
    CHECK(delta_workspace(4, 0) > 0 && delta_workspace(4, 0) == delta_workspace(400, 0));
    CHECK(delta_workspace(16, 1) < delta_workspace(1600, 1) && delta_workspace(1600, 1) < 11 * delta_workspace(16, 1));
    test_few_rows();
    test_refusals();
    return check_report("recurrent layers");
}
