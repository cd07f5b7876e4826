/* test_profile.c - reports of a step: gckpt_term_loss, which gives each loss term, compared in every way to run with
 * sums computed here; GCKPT_DEBUG_RECOMPUTE with an op whose
 * result changes from call to call. */
#include "gradckpt.h"
#include "util.h"

#include <math.h>

enum { ROWS = 6, IN = 8, WIDE = 10, OUT = 5, TERMS = 3 };

static float x_data[ROWS * IN], want_data[ROWS * WIDE];
static const int32_t class_data[ROWS] = { 0, 3, -1, 4, 1, 1 };

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *x, *y, *want, *h, *logits;
    gckpt_term terms[TERMS];
    float hidden[ROWS * WIDE], rows[ROWS * OUT]; /* h and logits, collected */
} net;

/* Builds x -> h -> logits with three loss terms: a cross-entropy, the squares of h, and the squares of the weights. */
static void graph(net *m, int64_t rows)
{
    const gckpt_init normal = { 0.3f, 0, 0 };
    memset(m, 0, sizeof *m);
    for (int i = 0; i < ROWS * IN; i++)
        x_data[i] = (float)(i * 37 % 23 - 11) / 8;
    for (int i = 0; i < ROWS * WIDE; i++)
        want_data[i] = (float)(i * 13 % 17 - 8) / 8;
    m->s = gckpt_store_new(NULL);
    m->g = gckpt_graph_new(m->s, NULL);
    m->x = gckpt_input(m->g, "x", GCKPT_F32, gckpt_shape2(rows, IN));
    m->y = gckpt_input(m->g, "y", GCKPT_I32, gckpt_shape1(rows));
    m->want = gckpt_input(m->g, "want", GCKPT_F32, gckpt_shape2(rows, WIDE));
    gckpt_tensor *w = gckpt_param(m->g, "w", gckpt_shape2(IN, WIDE), normal);
    m->h = gckpt_linear(m->x, w, gckpt_param(m->g, "b", gckpt_shape1(WIDE), normal));
    gckpt_segment_begin(m->g);
    m->h = gckpt_name(gckpt_tanh(m->h), "h");
    gckpt_tensor *inner = gckpt_gelu(m->h);
    gckpt_segment_end(m->g);
    m->logits =
        gckpt_linear(inner, gckpt_param(m->g, "head", gckpt_shape2(WIDE, OUT), normal), NULL);
    m->terms[0] = (gckpt_term){ gckpt_cross_entropy(m->logits, m->y, NULL, 0), 0.5f, 0 };
    m->terms[1] = (gckpt_term){ gckpt_mean_squared_error(m->h, m->want, NULL), 2, 0 };
    m->terms[2] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(w, w)), 0.25f, 1 };
}

static void plan(net *m, gckpt_plan_desc d, const gckpt_exec_desc *x)
{
    const gckpt_fetch_spec fetches[2] = { { m->h, 0 }, { m->logits, 0 } };
    d.batch = ROWS;
    d.fetch.specs = fetches;
    d.fetch.count = 2;
    m->p = gckpt_plan_new(m->g, m->terms, TERMS, &d);
    m->e = gckpt_exec_new(m->p, m->s, x);
    CHECK_MSG(m->e != NULL, "%s %s", gckpt_error_text(m->g), gckpt_error_text(m->s));
    CHECK(gckpt_collect(m->e, gckpt_id(m->h), 0, m->hidden, ROWS * WIDE) == GCKPT_OK);
    CHECK(gckpt_collect(m->e, gckpt_id(m->logits), 0, m->rows, ROWS * OUT) == GCKPT_OK);
}

static void drop(net *m) { util_free(m->e, m->p, m->g, m->s); }

static int feed(const net *m, gckpt_feed *f)
{
    f[0] = (gckpt_feed){ gckpt_id(m->x), x_data };
    f[1] = (gckpt_feed){ gckpt_id(m->y), class_data };
    f[2] = (gckpt_feed){ gckpt_id(m->want), want_data };
    return 3;
}

static int near(double got, double want) { return fabs(got - want) <= 2e-6 * fabs(want); }

/* Computes the loss terms from the collected values and from the weights before the step, and compares them with the
 * report. */
static void check_sums(net *m, const float *w, int64_t rows, const gckpt_report *report)
{
    double sum[TERMS] = { 0, 0, 0 };
    int64_t count[TERMS] = { 0, rows * WIDE, IN * WIDE };
    for (int64_t r = 0; r < rows; r++) {
        double all = 0;
        for (int k = 0; k < OUT; k++)
            all += exp((double)m->rows[r * OUT + k]);
        if (class_data[r] >= 0)
            sum[0] += log(all) - (double)m->rows[r * OUT + class_data[r]], count[0]++;
    }
    for (int64_t i = 0; i < rows * WIDE; i++)
        sum[1] += pow((double)m->hidden[i] - (double)want_data[i], 2);
    for (int i = 0; i < IN * WIDE; i++)
        sum[2] += (double)w[i] * (double)w[i];
    const util_losses reported_losses = util_term_losses(m->e, m->terms, TERMS, report);
    CHECK(reported_losses.wrong == 0);
    for (int i = 0; i < TERMS; i++)
        CHECK_MSG(near(reported_losses.sum[i], sum[i]) && reported_losses.count[i] == count[i],
                  "term %d: %.9g of %d, not %.9g of %d", i, reported_losses.sum[i], (int)reported_losses.count[i],
                  sum[i], (int)count[i]);
}

static const float *weights(net *m)
{
    static float copy[IN * WIDE];
    gckpt_parameter q;
    CHECK(gckpt_store_get(m->s, gckpt_store_find(m->s, "w"), &q) == GCKPT_OK);
    memcpy(copy, q.values, sizeof copy);
    return copy;
}

static const gckpt_hyper hyper = { .lr = 0.01f };

static int reported_losses(net *m)
{
    double sum = -7;
    int64_t count = -7;
    const gckpt_result result = gckpt_term_loss(m->e, 0, &sum, &count);
    CHECK((result == GCKPT_OK) == (sum != -7) && (result == GCKPT_OK) == (count != -7));
    CHECK(result == GCKPT_OK || strstr(gckpt_error_text(m->e), "term_loss: no step"));
    return result == GCKPT_OK;
}

/* Tests gckpt_term_loss after every call that reports losses, and at the times at which there are no losses yet. */
static void test_calls(int64_t micro, gckpt_mode mode)
{
    net m;
    gckpt_report r;
    gckpt_feed f[3];
    double sum;
    int64_t count;
    graph(&m, micro);
    plan(&m, (gckpt_plan_desc){ .mode = mode }, NULL);
    const int n = feed(&m, f);
    CHECK(!reported_losses(&m));
    CHECK(gckpt_gradients(m.e, f, n, ROWS, &r) == GCKPT_OK);
    check_sums(&m, weights(&m), ROWS, &r);
    const float *w = weights(&m);
    CHECK(gckpt_step(m.e, f, n, ROWS, &hyper, &r) == GCKPT_OK);
    check_sums(&m, w, ROWS, &r);
    CHECK(gckpt_term_loss(m.e, 1, &sum, NULL) == GCKPT_E_ARG &&
          gckpt_term_loss(m.e, 1, NULL, &count) == GCKPT_E_ARG);
    CHECK(gckpt_term_loss(NULL, 1, &sum, &count) == GCKPT_E_ARG);
    CHECK(gckpt_term_loss(m.e, -1, &sum, &count) == GCKPT_E_ARG);
    CHECK(gckpt_term_loss(m.e, 3, &sum, &count) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(m.e), "term 3; it must be from 0 to 2"));
    w = weights(&m);
    /* a batch with fewer rows */
    CHECK(gckpt_step_start(m.e, f, n, ROWS - 1, &hyper) == GCKPT_OK && !reported_losses(&m));
    for (gckpt_result more = GCKPT_MORE; more == GCKPT_MORE;) {
        more = gckpt_run_some(m.e, 1, &r);
        CHECK(more == GCKPT_OK || !reported_losses(&m));
    }
    check_sums(&m, w, ROWS - 1, &r);
    CHECK(gckpt_step(m.e, f, n - 1, ROWS, &hyper, &r) == GCKPT_E_ARG && !reported_losses(&m)); /* refused */
    CHECK(gckpt_step(m.e, f, n, ROWS, &hyper, NULL) == GCKPT_OK && reported_losses(&m));
    const gckpt_hyper bad = { .lr = -1 };
    CHECK(gckpt_step(m.e, f, n, ROWS, &bad, &r) == GCKPT_E_ARG && !reported_losses(&m));
    drop(&m);
    if (mode != GCKPT_AUTO)
        return;
    graph(&m, micro);
    plan(&m, (gckpt_plan_desc){ .mode = GCKPT_INFERENCE }, NULL);
    CHECK(gckpt_forward(m.e, f, feed(&m, f), ROWS, &r) == GCKPT_OK);
    check_sums(&m, weights(&m), ROWS, &r);
    drop(&m);
}

/* Tests a batch in which the first loss has no valid target: gckpt_step and gckpt_gradients report a total of 0 and
 * each loss term; gckpt_forward reports the total of the other terms. */
static void test_none(int64_t micro)
{
    static const int32_t none[ROWS] = { -1, -1, -1, -1, -1, -1 };
    util_losses each[3];
    for (int call = 0; call < 3; call++) {
        net m;
        gckpt_report r;
        gckpt_feed f[3];
        graph(&m, micro);
        plan(&m, (gckpt_plan_desc){ .mode = call == 2 ? GCKPT_INFERENCE : GCKPT_AUTO }, NULL);
        const int n = feed(&m, f);
        const uint64_t before = gckpt_store_hash(m.s);
        f[1].data = none;
        CHECK((call == 0   ? gckpt_step(m.e, f, n, ROWS, &hyper, &r)
               : call == 1 ? gckpt_gradients(m.e, f, n, ROWS, &r)
                           : gckpt_forward(m.e, f, n, ROWS, &r)) == GCKPT_OK);
        each[call] = util_term_losses(m.e, m.terms, TERMS, &r);
        CHECK(!memcmp(&each[call], &each[0], sizeof each[0]) && each[0].wrong == 0);
        CHECK(r.count == 0 && r.step == 0 && r.grad_norm == 0 && gckpt_store_hash(m.s) == before);
        CHECK_MSG(r.loss == (call == 2 ? each[0].total : 0) && each[0].total > 0, "call %d: loss %g", call, r.loss);
        drop(&m);
    }
}

/* Tests a stream of single rows with a loss and a regulariser, then a step without rows, a step without valid targets
 * and a skipped step. */
static void test_streamed(void)
{
    net m;
    gckpt_report r;
    gckpt_feed f[3];
    graph(&m, 1);
    m.terms[1] = m.terms[2];
    gckpt_plan_desc d = { .batch = ROWS };
    m.p = gckpt_plan_new(m.g, m.terms, 2, &d);
    const gckpt_exec_desc x = { .skip_nonfinite = 1 };
    m.e = gckpt_exec_new(m.p, m.s, &x);
    const gckpt_feed whole[2] = { { gckpt_id(m.x), x_data }, { gckpt_id(m.y), class_data } };
    CHECK(gckpt_gradients(m.e, whole, 2, ROWS, &r) == GCKPT_OK);
    const util_losses want = util_term_losses(m.e, m.terms, 2, &r);
    CHECK(gckpt_step_begin(m.e, &hyper) == GCKPT_OK && !reported_losses(&m));
    for (int i = 0; i < ROWS; i++) {
        f[0] = (gckpt_feed){ gckpt_id(m.x), x_data + i * IN };
        f[1] = (gckpt_feed){ gckpt_id(m.y), class_data + i };
        CHECK(gckpt_step_add(m.e, f, 2, 1) == GCKPT_OK && !reported_losses(&m));
    }
    CHECK(gckpt_step_end(m.e, &r) == GCKPT_OK);
    util_losses got = util_term_losses(m.e, m.terms, 2, &r);
    CHECK(!got.wrong && !memcmp(&got, &want, sizeof got) && got.count[0] == 5);
    CHECK(gckpt_step_begin(m.e, &hyper) == GCKPT_OK && gckpt_step_end(m.e, &r) == GCKPT_OK);
    got = util_term_losses(m.e, m.terms, 2, &r);
    CHECK(!got.wrong && r.count == 0 && got.count[0] == 0 && got.sum[0] == 0);
    const int32_t none[ROWS] = { -1, -1, -1, -1, -1, -1 };
    const gckpt_feed ignored[2] = { { gckpt_id(m.x), x_data }, { gckpt_id(m.y), none } };
    CHECK(gckpt_step(m.e, ignored, 2, ROWS, &hyper, &r) == GCKPT_OK && r.count == 0);
    got = util_term_losses(m.e, m.terms, 2, &r);
    CHECK(!got.wrong && got.count[0] == 0 && got.sum[0] == 0 && got.sum[1] > 0);
    x_data[3] = float_of(0x7f800000);
    CHECK(gckpt_step(m.e, whole, 2, ROWS, &hyper, &r) == GCKPT_SKIPPED && reported_losses(&m));
    /* asking for the loss terms must not overwrite the error text */
    CHECK(strstr(gckpt_error_text(m.e), "skipped") != NULL);
    drop(&m);
}

/* ---- an op whose value differs from call to call ---- */
static int drifts, calls;

static gckpt_result drift_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void drift_forward(const gckpt_call *call)
{
    calls++;
    for (int i = 0; i < ROWS * WIDE; i++)
        call->out[i] = call->in[0].data[i] + (float)(drifts ? calls : 0);
}
static void drift_backward(const gckpt_call *call)
{
    for (int i = 0; i < ROWS * WIDE; i++)
        call->in[0].grad[i] = (call->in[0].accumulate ? call->in[0].grad[i] : 0) + call->grad_out[i];
}
static const gckpt_op drift_op = { .name = "drift", .shape = drift_shape, .forward = drift_forward,
                                   .backward = drift_backward };

static void test_recomputed(void)
{
    for (drifts = 0; drifts < 2; drifts++) {
        const gckpt_init one = { 0, 0, 1 };
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, WIDE)), *in[1];
        const int id = gckpt_id(x);
        in[0] = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(WIDE), one));
        gckpt_tensor *y = gckpt_apply(&drift_op, in, 1, NULL, 0);
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, y)), 1, 0 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &(gckpt_plan_desc){ .mode = GCKPT_MEMORY_POOR });
        gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .debug = GCKPT_DEBUG_RECOMPUTE });
        const gckpt_feed feed = { id, want_data };
        const gckpt_hyper rate = gckpt_hyper_lr(0.125f);
        calls = 0;
        const gckpt_result result = gckpt_step(e, &feed, 1, ROWS, &rate, NULL);
        CHECK_MSG(calls == 2 && result == (drifts ? GCKPT_E_DATA : GCKPT_OK), "%d calls: %s", calls,
                  gckpt_error_text(e));
        CHECK(!drifts || strstr(gckpt_error_text(e), "recompute: the value of"));
        util_free(e, p, g, s);
    }
    const gckpt_hyper rate = gckpt_hyper_lr(0.125f), rest = { .lr = 0.125f };
    CHECK(rate.lr == rest.lr && !memcmp(&rate, &rest, sizeof rate));
}

int main(void)
{
    static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_MEMORY_POOR };
    for (int64_t micro = 1; micro <= ROWS; micro++)
        for (int k = 0; k < 2; k++)
            test_calls(micro, modes[k]);
    test_none(2);
    test_none(ROWS);
    test_streamed();
    test_recomputed();
    return check_report("test_profile");
}
