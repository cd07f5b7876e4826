/* test_golden.c - compares ops and two trainings of a small GPT with PyTorch (golden/make_golden.py).
 *
 * Distances are those of whole tensors: |a - b| / |b|. Rounding to a float changes a number by at most 6e-8 of its
 * value; the cases sum a few dozen rounded terms, whose error stays well below 2e-6. */
#include "gradckpt.h"
#include "util.h"
#include "golden/golden.h"
#include <math.h>

enum { OP_CASES = sizeof golden_cases / sizeof golden_cases[0],
       PARAMETERS = sizeof golden_parameters / sizeof golden_parameters[0] };

/* == how each case of golden.h is built ======================================================== */
/* Names and ops of the cases. */
static const char *const names[] = {
    "add", "sub", "mul", "mul_same", "scale", "relu", "gelu", "gelu_erf", "silu", "tanh", "sigmoid",
    "softmax", "layernorm", "rmsnorm", "linear", "linear_transposed", "linear_no_bias", "matmul",
    "matmul_shared", "matmul_transposed", "embed", "positions", "attention_causal",
    "attention_cross", "attention_same", "rotary", "permute", "slice", "concat", "reshape", "sum",
    "mean", "cross_entropy", "linear_cross_entropy", "mean_squared_error", "sum_loss",
    "attention_more_keys", "cross_entropy_weights", "cross_entropy_smoothed", "cross_entropy_with",
    "soft_cross_entropy", "mean_squared_error_with", "huber", "huber_weights",
    "binary_cross_entropy", "layernorm_eps", "rmsnorm_eps", "rotary_with", "matmul_left",
    "matmul_broadcast", "matmul_row", "matmul_column", "matmul_transposed_broadcast"
};
enum { BUILDERS = sizeof names / sizeof names[0] };

static gckpt_tensor *build(int i, gckpt_tensor **a)
{
    const int axes[4] = { 0, 2, 3, 1 };
    static const float frequencies[2] = { 0.5f, 0.0625f };
    const gckpt_rotary_desc turns = { 2, 0, 0, 4, frequencies, 1.25f };
    gckpt_tensor *three[3] = { a[0], a[1], a[0] };
    switch (i) {
    case 0: return gckpt_add(a[0], a[1]);
    case 1: return gckpt_sub(a[0], a[1]);
    case 2: return gckpt_mul(a[0], a[1]);
    case 3: return gckpt_mul(a[0], a[0]);
    case 4: return gckpt_scale(a[0], -2.5f);
    case 5: return gckpt_relu(a[0]);
    case 6: return gckpt_gelu(a[0]);
    case 7: return gckpt_gelu_erf(a[0]);
    case 8: return gckpt_silu(a[0]);
    case 9: return gckpt_tanh(a[0]);
    case 10: return gckpt_sigmoid(a[0]);
    case 11: return gckpt_softmax(a[0]);
    case 12: return gckpt_layernorm(a[0], a[1], a[2], 0);
    case 13: return gckpt_rmsnorm(a[0], a[1], 0);
    case 14: return gckpt_linear(a[0], a[1], a[2]);
    case 15: return gckpt_linear_transposed(a[0], a[1], a[2]);
    case 16: return gckpt_linear(a[0], a[1], NULL);
    case 17: return gckpt_matmul(a[0], a[1]);
    case 18: return gckpt_matmul(a[0], a[1]);
    case 19: return gckpt_matmul_transposed(a[0], a[1]);
    case 20: return gckpt_embed(a[0], a[1]);
    case 21: return gckpt_positions(a[0], a[1], 0);
    case 22: return gckpt_attention(a[0], a[1], a[2], &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
    case 23: return gckpt_attention(a[0], a[1], a[2], &(gckpt_attention_desc){ .heads = 3 });
    case 24: return gckpt_attention(a[0], a[0], a[0], &(gckpt_attention_desc){ .heads = 1, .causal = 1 });
    case 25: return gckpt_rotary(a[0], &(gckpt_rotary_desc){ .heads = 2 });
    case 26: return gckpt_permute(a[0], axes, 4);
    case 27: return gckpt_slice(a[0], 1, 1, 4);
    case 28: return gckpt_concat(three, 3, 1);
    case 29: return gckpt_reshape(a[0], gckpt_shape2(-1, 12));
    case 30: return gckpt_sum(a[0], 1);
    case 31: return gckpt_mean(a[0], -1);
    case 32: return gckpt_cross_entropy(a[0], a[1], NULL, 0);
    case 33: return gckpt_linear_cross_entropy(a[0], a[1], a[2], NULL);
    case 34: return gckpt_mean_squared_error(a[0], a[1], NULL);
    case 35: return gckpt_sum_loss(a[0]);
    case 36: return gckpt_attention(a[0], a[1], a[2], &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
    case 37: return gckpt_cross_entropy(a[0], a[1], a[2], 0);
    case 38: return gckpt_cross_entropy(a[0], a[1], NULL, 0.1f);
    case 39: return gckpt_cross_entropy(a[0], a[1], a[2], 0.25f);
    case 40: return gckpt_soft_cross_entropy(a[0], a[1], a[2]);
    case 41: return gckpt_mean_squared_error(a[0], a[1], a[2]);
    case 42: return gckpt_huber(a[0], a[1], NULL, 0.5f);
    case 43: return gckpt_huber(a[0], a[1], a[2], 0.5f);
    case 44: return gckpt_binary_cross_entropy(a[0], a[1], a[2]);
    case 45: return gckpt_layernorm(a[0], a[1], a[2], 0.015625f);
    case 46: return gckpt_rmsnorm(a[0], a[1], 0.015625f);
    case 47: return gckpt_rotary(a[0], &turns);
    case 52: return gckpt_matmul_transposed(a[0], a[1]);
    default: return gckpt_matmul(a[0], a[1]);
    }
}

static int64_t elements(const golden_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->d[i];
    return n;
}

static gckpt_shape shape(const golden_tensor *t)
{
    gckpt_shape s = gckpt_shape1(1);
    s.n = t->n;
    for (int i = 0; i < t->n; i++)
        s.d[i] = t->d[i];
    return s;
}

/* |factor * a - b| / |b| */
static double distance(const float *a, double factor, const float *b, int64_t n)
{
    double difference = 0, norm = 0;
    if (!a)
        return HUGE_VAL;
    for (int64_t i = 0; i < n; i++) {
        double d = factor * (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

/* Copies values into the store's parameter `name`. */
static void set_parameter(gckpt_store *store, const char *name, const float *values)
{
    gckpt_parameter p;
    if (CHECK(gckpt_store_get(store, gckpt_store_find(store, name), &p) == GCKPT_OK))
        memcpy(p.values, values, (size_t)p.elements * sizeof(float));
}

static void test_op(const golden_case *c)
{
    const gckpt_init zero = { 0, 0, 0 }, one = { 0, 0, 1 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *in[3] = { NULL, NULL, NULL }, *out = NULL;
    gckpt_feed feeds[4];
    gckpt_fetch_spec fetches[4];
    gckpt_term term = { NULL, 1, 0 };
    gckpt_hyper still = gckpt_hyper_lr(0);
    gckpt_report report;
    int n_feeds = 0, n_fetches = 0, b = 0;

    for (int i = 0; i < c->inputs; i++) {
        const golden_tensor *t = &c->in[i];
        if (t->kind == 'p') {
            in[i] = gckpt_param(graph, t->name, shape(t), zero);
            set_parameter(store, t->name, t->values);
        } else {
            in[i] = gckpt_input(graph, t->name, t->kind == 'i' ? GCKPT_I32 : GCKPT_F32, shape(t));
            feeds[n_feeds].input = gckpt_id(in[i]);
            feeds[n_feeds++].data =
                t->kind == 'i' ? (const void *)t->index : (const void *)t->values;
        }
        if (t->kind == 'x') /* a test case has no gradients of inputs, only of tensors that are computed from inputs */
            in[i] = gckpt_mul(in[i], gckpt_param(graph, "one", gckpt_shape1(1), one));
        if (t->kind != 'i') {
            fetches[n_fetches++] = (gckpt_fetch_spec){ in[i], 1 };
        }
    }
    while (b < BUILDERS && strcmp(names[b], c->name) != 0)
        b++;
    if (CHECK_MSG(b < BUILDERS, "no builder for %s", c->name))
        out = build(b, in);
    if (c->out.n) {
        gckpt_tensor *r = gckpt_input(graph, "r", GCKPT_F32, shape(&c->out));
        feeds[n_feeds++] = (gckpt_feed){ gckpt_id(r), c->r };
        fetches[n_fetches++] = (gckpt_fetch_spec){ out, 0 };
        term.loss = gckpt_sum_loss(gckpt_mul(out, r));
    } else {
        term.loss = out;
    }
    gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL, .fetch.specs = fetches, .fetch.count = n_fetches };

    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", c->name, gckpt_error_text(graph));
    gckpt_exec *exec = gckpt_exec_new(plan, store, NULL);
    gckpt_result result = gckpt_step(exec, feeds, n_feeds, 2, &still, &report);
    CHECK_MSG(result == GCKPT_OK, "%s: %s", c->name, gckpt_error_text(exec));
    if (result == GCKPT_OK) {
        if (c->out.n) {
            double d =
                distance(gckpt_fetch(exec, gckpt_id(out), 0), 1, c->out.values, elements(&c->out));
            CHECK_MSG(d <= 2e-6, "%s: output differs by %g", c->name, d);
        } else {
            double loss = report.loss * (double)report.count;
            CHECK_MSG(report.count == c->count, "%s: count %ld", c->name, (long)report.count);
            CHECK_MSG(fabs(loss - c->sum) <= 2e-6 * fabs(c->sum), "%s: loss %.9g, not %.9g",
                      c->name, loss, c->sum);
        }
        for (int i = 0; i < c->inputs; i++) {
            const golden_tensor *t = &c->in[i];
            double d;
            if (t->kind == 'i')
                continue;
            d = distance(gckpt_fetch(exec, gckpt_id(in[i]), 1),
                         t->kind == 'p' ? (double)report.count : 1, t->gradient, elements(t));
            CHECK_MSG(d <= 2e-6, "%s: gradient of input %d differs by %g", c->name, i, d);
        }
    }
    util_free(exec, plan, graph, store);
}

/* Tests weighted losses. PyTorch's mean divides by the sum of the weights, while the library divides by the count, so
 * the test feeds weights * count / sum of the weights. */
static void test_weighted_mean(int64_t micro)
{
    const gckpt_init one = { 0, 0, 1 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape3(micro, 3, 7));
    gckpt_tensor *t = gckpt_input(graph, "t", GCKPT_I32, gckpt_shape2(micro, 3));
    gckpt_tensor *w = gckpt_input(graph, "w", GCKPT_F32, gckpt_shape2(micro, 3));
    gckpt_tensor *h = gckpt_mul(x, gckpt_param(graph, "one", gckpt_shape1(1), one));
    gckpt_term term = { gckpt_cross_entropy(h, t, w, 0), 1, 0 };
    gckpt_fetch_spec fetch = { h, 1 };
    gckpt_plan_desc desc = { .batch = 2, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    gckpt_exec *exec = gckpt_exec_new(plan, store, NULL);
    gckpt_hyper still = gckpt_hyper_lr(0);
    gckpt_report report;
    float weights[6] = { 0 };
    double sum = 0, count = 0;
    for (int i = 0; i < 6; i++)
        if (golden_weighted_mean_targets[i] >= 0) {
            weights[i] = golden_weighted_mean_classes[golden_weighted_mean_targets[i]];
            sum += (double)weights[i], count++;
        }
    for (int i = 0; i < 6; i++)
        weights[i] = (float)((double)weights[i] * count / sum);
    gckpt_feed feeds[3] = { { gckpt_id(x), golden_weighted_mean_logits },
                            { gckpt_id(t), golden_weighted_mean_targets },
                            { gckpt_id(w), weights } };
    CHECK(gckpt_step(exec, feeds, 3, 2, &still, &report) == GCKPT_OK);
    CHECK_MSG(fabs(report.loss - golden_weighted_mean) < 2e-6 * golden_weighted_mean,
              "weighted mean %.9g, not %.9g", report.loss, golden_weighted_mean);
    /* gradient of the sum of losses in the last micro-batch */
    const float *gradient = gckpt_fetch(exec, gckpt_id(h), 1);
    const float *want = golden_weighted_mean_gradient + 42 - micro * 21;
    CHECK(distance(gradient, 1 / count, want, micro * 21) < 2e-6);
    util_free(exec, plan, graph, store);
}

/* == the GPT =================================================================================== */
static gckpt_tensor *weight(gckpt_graph *graph, const char *prefix, const char *name)
{
    const gckpt_init zero = { 0, 0, 0 };
    char full[32];
    int i = 0;
    strcpy(full, prefix);
    strcat(full, name);
    while (i < PARAMETERS && strcmp(golden_parameters[i].initial.name, full) != 0)
        i++;
    if (!CHECK_MSG(i < PARAMETERS, "no parameter %s", full))
        return NULL;
    return gckpt_param(graph, full, shape(&golden_parameters[i].initial), zero);
}

/* A block of GPT-2 with pre-normalisation. */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const char *p = (const char *)user;
    gckpt_tensor *a = gckpt_layernorm(x, weight(g, p, "ln1.gain"), weight(g, p, "ln1.bias"), 0);
    a = gckpt_attention(gckpt_linear(a, weight(g, p, "q"), NULL), gckpt_linear(a, weight(g, p, "k"), NULL),
                        gckpt_linear(a, weight(g, p, "v"), NULL),
                        &(gckpt_attention_desc){ .heads = GOLDEN_HEADS, .causal = 1 });
    x = gckpt_add(x, gckpt_linear(a, weight(g, p, "proj.w"), weight(g, p, "proj.b")));
    a = gckpt_layernorm(x, weight(g, p, "ln2.gain"), weight(g, p, "ln2.bias"), 0);
    a = gckpt_gelu(gckpt_linear(a, weight(g, p, "up.w"), weight(g, p, "up.b")));
    return gckpt_add(x, gckpt_linear(a, weight(g, p, "down.w"), weight(g, p, "down.b")));
}

/* Trains the GPT from the golden weights, and compares losses, norms, the gradients of step 1 and the final weights. */
static void test_gpt(const char *what, gckpt_mode mode, int64_t micro, int64_t rows,
                     const int32_t *tokens, const int32_t *targets, int64_t count,
                     const double *losses, const double *norms, int accumulated)
{
    char prefix[GOLDEN_LAYERS][8] = { "h0.", "h1." };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(graph, "tokens", GCKPT_I32, gckpt_shape2(micro, GOLDEN_CONTEXT));
    gckpt_tensor *y = gckpt_input(graph, "targets", GCKPT_I32, gckpt_shape2(micro, GOLDEN_CONTEXT));
    gckpt_tensor *wte = weight(graph, "", "wte"), *h;
    gckpt_term term = { NULL, 1, 0 };
    gckpt_fetch_spec fetches[PARAMETERS];
    gckpt_feed feeds[2];

    h = gckpt_positions(gckpt_embed(wte, x), weight(graph, "", "wpe"), 0);
    for (int i = 0; i < GOLDEN_LAYERS; i++)
        h = gckpt_checkpoint(block, h, prefix[i]);
    h = gckpt_layernorm(h, weight(graph, "", "ln.gain"), weight(graph, "", "ln.bias"), 0);
    term.loss = gckpt_linear_cross_entropy(h, wte, y, NULL);
    for (int i = 0; i < PARAMETERS; i++) {
        fetches[i] = (gckpt_fetch_spec){ weight(graph, "", golden_parameters[i].initial.name), 1 };
        set_parameter(store, golden_parameters[i].initial.name,
                      golden_parameters[i].initial.values);
    }
    gckpt_plan_desc desc = { .mode = mode, .batch = rows, .fetch.specs = fetches, .fetch.count = PARAMETERS };
    gckpt_hyper hyper = { .lr = 1e-3f, .weight_decay = 0.1f, .clip = 1 };
    feeds[0] = (gckpt_feed){ gckpt_id(x), tokens };
    feeds[1] = (gckpt_feed){ gckpt_id(y), targets };

    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", what, gckpt_error_text(graph));
    gckpt_exec *exec = gckpt_exec_new(plan, store, NULL);
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        gckpt_report report;
        gckpt_result result = gckpt_step(exec, feeds, 2, rows, &hyper, &report);
        if (!CHECK_MSG(result == GCKPT_OK, "%s: %s", what, gckpt_error_text(exec)))
            break;
        CHECK_MSG(report.count == count, "%s: count %ld", what, (long)report.count);
        CHECK_MSG(fabs(report.loss - losses[step]) <= 1e-5 * losses[step],
                  "%s: step %d: loss %.9g, not %.9g", what, step, report.loss, losses[step]);
        CHECK_MSG(fabs(report.grad_norm - norms[step]) <= 2e-5 * norms[step],
                  "%s: step %d: gradient norm %.9g, not %.9g", what, step, report.grad_norm,
                  norms[step]);
        for (int i = 0; i < PARAMETERS && step == 0 && !accumulated; i++) {
            const golden_tensor *t = &golden_parameters[i].initial;
            double d = distance(gckpt_fetch(exec, gckpt_id(fetches[i].tensor), 1), 1, t->gradient,
                                elements(t));
            CHECK_MSG(d <= 1e-5, "%s: gradient of %s differs by %g", what, t->name, d);
        }
    }
    for (int i = 0; i < PARAMETERS;
         i++) { /* ten updates with a learning rate of 1e-3 change the norms by a few percent */
        const golden_parameter *g = &golden_parameters[i];
        double want = accumulated ? g->norm_accumulated : g->norm, norm = 0;
        gckpt_parameter p;
        if (!CHECK(gckpt_store_get(store, gckpt_store_find(store, g->initial.name), &p) ==
                   GCKPT_OK))
            continue;
        for (int64_t j = 0; j < p.elements; j++)
            norm += (double)p.values[j] * (double)p.values[j];
        CHECK_MSG(fabs(sqrt(norm) - want) <= 1e-5 * want, "%s: norm of %s is %.9g, not %.9g", what,
                  p.name, sqrt(norm), want);
    }
    util_free(exec, plan, graph, store);
}

int main(void)
{
    CHECK((int)OP_CASES == (int)BUILDERS);
    for (int i = 0; i < OP_CASES; i++)
        test_op(&golden_cases[i]);
    test_weighted_mean(2);
    test_weighted_mean(1);
    test_gpt("GPT", GCKPT_STORE_ALL, GOLDEN_ROWS, GOLDEN_ROWS, golden_tokens, golden_targets,
             GOLDEN_ROWS * GOLDEN_CONTEXT, golden_losses, golden_norms, 0);
    test_gpt("GPT, segments", GCKPT_SEGMENTS, 2, GOLDEN_ROWS, golden_tokens, golden_targets,
             GOLDEN_ROWS * GOLDEN_CONTEXT, golden_losses, golden_norms, 0);
    test_gpt("GPT, accumulated", GCKPT_MEMORY_POOR, 3, GOLDEN_ROWS_ACCUMULATED,
             golden_tokens_accumulated, golden_targets_accumulated, GOLDEN_COUNT_ACCUMULATED,
             golden_losses_accumulated, golden_norms_accumulated, 1);
    return check_report("golden");
}
