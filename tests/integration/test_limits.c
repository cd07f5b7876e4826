/* test_limits.c - values out of range are refused, and the error text names the remedy. Also tests how several losses
 * are counted, plans near the limits of blocks, cost and bytes, and i32 inputs of user-defined ops. */
#include "gradckpt.h"

#include <limits.h>
#include <math.h>

#include "examples/gradcheck.h"
#include "examples/print.h"
#include "util.h"

static const gckpt_init normal = { 0.5f, 0, 0 };

static int has(const char *text, const char *what)
{
    if (strstr(text, what))
        return 1;
    fprintf(stderr, "\"%s\" does not say \"%s\"\n", text, what);
    return 0;
}

/* ---- shapes with fewer or more axes than are allowed ---- */
static gckpt_shape bad_shape(int n)
{
    gckpt_shape s = gckpt_shape4(4, 3, 2, 1);
    s.d[4] = s.d[5] = 1;
    s.n = n;
    return s;
}

static gckpt_result bad_result(gckpt_call *call)
{
    call->shape = bad_shape(*(const int *)call->attributes);
    return GCKPT_OK;
}

static gckpt_result bad_report(gckpt_call *call)
{
    gckpt_shape s = bad_shape(*(const int *)call->attributes);
    return gckpt_fail(call, GCKPT_E_SHAPE, "no such shape: %S", &s);
}

static void nothing(const gckpt_call *call) { (void)call; }

static void shapes(void)
{
    static const int axes[] = { 7, 100000000, INT_MAX, -1, INT_MIN };
    for (size_t k = 0; k < sizeof axes / sizeof *axes; k++)
        for (int call = 0; call < 8; call++) {
            gckpt_op op;
            memset(&op, 0, sizeof op);
            op.name = "bad";
            op.shape = call == 5 ? bad_report : bad_result;
            op.forward = nothing;
            gckpt_store *s = gckpt_store_new(NULL);
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(5, 8)), *t = x;
            gckpt_shape bad = bad_shape(axes[k]);
            static const float data[64];
            float values[64];
            const char *text = gckpt_error_text(g);
            gckpt_param(g, "w", gckpt_shape2(8, 3), normal);
            switch (call) {
            case 0: t = gckpt_input(g, "y", GCKPT_F32, bad); break;
            case 1: t = gckpt_param(g, "w", bad, normal); break; /* the store already has a parameter with this name */
            case 2: t = gckpt_param(g, "v", bad, normal); break;
            case 3: t = gckpt_reshape(x, bad); break;
            case 4: /* fall through */
            case 5: t = gckpt_apply(&op, &x, 1, &axes[k], sizeof axes[k]); break;
            case 6: t = gckpt_constant(g, "c", GCKPT_F32, bad, data); break;
            default:
                CHECK(gckpt_store_external(s, "e", bad, values, 1) == GCKPT_E_SHAPE);
                t = NULL;
                break;
            }
            text = gckpt_error_text(call < 7 ? (const void *)g : (const void *)s);
            CHECK_MSG(!t && gckpt_error(call < 7 ? (const void *)g : (const void *)s) ==
                                GCKPT_E_SHAPE,
                      "call %d, %d axes: %s", call, axes[k], text);
            char number[16];
            snprintf(number, sizeof number, "%d axes", axes[k]);
            CHECK(call == 7 || (call == 0 && axes[k] < 1) || has(text, number));
            CHECK((call == 0 && axes[k] < 1) || has(text, call < 7 ? "0 to 6" : "axes"));
            gckpt_graph_free(g);
            gckpt_store_free(s);
        }
}

/* ---- several losses: constant targets, and sizes that are no multiple of the rows ---- */
enum { ROWS = 4, IN = 8, CLASSES = 3 };
/* FED, FIXED: cross-entropy with fed and with constant targets; COLUMNS: sum of the column sums of tanh; SQUARES: sum
 * of squares */
enum { FED, FIXED, COLUMNS, SQUARES, LOSSES };

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *x, *y, *w;
    gckpt_tensor *loss[LOSSES];
} losses;

static losses losses_new(void)
{
    static const int32_t fixed[ROWS] = { -1, 1, -1, 0 };
    losses l;
    l.s = gckpt_store_new(NULL);
    l.g = gckpt_graph_new(l.s, NULL);
    l.x = gckpt_input(l.g, "x", GCKPT_F32, gckpt_shape2(ROWS, IN));
    l.y = gckpt_input(l.g, "y", GCKPT_I32, gckpt_shape1(ROWS));
    l.w = gckpt_param(l.g, "w", gckpt_shape2(IN, CLASSES), normal);
    gckpt_tensor *h = gckpt_linear(l.x, l.w, NULL);
    gckpt_tensor *c = gckpt_constant(l.g, "c", GCKPT_I32, gckpt_shape1(ROWS), fixed);
    l.loss[FED] = gckpt_cross_entropy(h, l.y, NULL, 0);
    l.loss[FIXED] = gckpt_cross_entropy(h, c, NULL, 0);
    l.loss[COLUMNS] = gckpt_sum_loss(gckpt_sum(gckpt_tanh(h), 0)); /* 3 elements, 4 rows */
    l.loss[SQUARES] = gckpt_sum_loss(gckpt_mul(h, h));
    return l;
}

/* Runs a step with these loss terms and returns its result; stores the loss in *loss and, if the step succeeds, the
 * gradient of w in `gradient`. */
static gckpt_result losses_run(const losses *l, const gckpt_term *terms, int count, int64_t rows,
                               float *gradient, double *loss)
{
    static const int32_t y[2 * ROWS] = { 2, -1, 0, 1, -1, -1, 1, 0 };
    float x[2 * ROWS * IN];
    for (int i = 0; i < 2 * ROWS * IN; i++)
        x[i] = (float)(i * 37 % 19) / 19 - 0.4f;
    gckpt_plan_desc desc;
    gckpt_fetch_spec fetch = { l->w, 1 };
    gckpt_hyper hyper = gckpt_hyper_lr(0);
    gckpt_report report = { 0, 0, 0, 0 };
    memset(&desc, 0, sizeof desc);
    desc.batch = 2 * ROWS;
    desc.optimiser = GCKPT_SGD;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(l->g, terms, count, &desc);
    gckpt_exec *e = gckpt_exec_new(p, l->s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(l->x), x }, { gckpt_id(l->y), y } };
    gckpt_result result = gckpt_step(e, feeds, 2, rows, &hyper, &report);
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(e));
    else
        memcpy(gradient, gckpt_fetch(e, gckpt_id(l->w), 1), IN * CLASSES * sizeof *gradient);
    *loss = report.loss;
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    return result;
}

/* Tests that the gradient of a weighted sum of losses is the weighted sum of their gradients. */
static void several_losses(void)
{
    losses l = losses_new();
    for (int64_t rows = ROWS; rows <= 2 * ROWS; rows += ROWS) {
        float alone[LOSSES][IN * CLASSES], both[IN * CLASSES];
        double loss[LOSSES], sum;
        for (int i = 0; i < LOSSES; i++) {
            gckpt_term term = { l.loss[i], 1, 0 };
            CHECK(losses_run(&l, &term, 1, rows, alone[i], &loss[i]) == GCKPT_OK);
        }
        for (int pair = 0; pair < LOSSES * LOSSES; pair++) {
            int a = pair / LOSSES, b = pair % LOSSES;
            gckpt_term terms[2] = { { l.loss[a], 1, 0 }, { l.loss[b], 0.5f, 0 } };
            if (a == b)
                continue;
            gckpt_result result = losses_run(&l, terms, 2, rows, both, &sum);
            CHECK_MSG(result == GCKPT_OK, "losses %d and %d, %d rows", a, b, (int)rows);
            for (int i = 0; i < IN * CLASSES && result == GCKPT_OK; i++) {
                double want = (double)alone[a][i] + 0.5 * (double)alone[b][i];
                CHECK_MSG(fabs((double)both[i] - want) < 1e-5, "losses %d and %d, %d: %g, not %g",
                          a, b, i, (double)both[i], want);
            }
            CHECK(result != GCKPT_OK || fabs(sum - (loss[a] + 0.5 * loss[b])) < 1e-6);
        }
    }
    gckpt_graph_free(l.g);
    gckpt_store_free(l.s);
}

/* ---- a successful call removes the error of the call before ---- */
static void stale_errors(void)
{
    static const float x[2 * ROWS * IN];
    static const int32_t good[ROWS] = { 0, 1, 2, -1 }, bad[ROWS] = { 0, 1, 2, 3 };
    losses l = losses_new();
    gckpt_term term = { l.loss[FED], 1, 0 };
    gckpt_plan_desc desc;
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    gckpt_report report;
    memset(&desc, 0, sizeof desc);
    desc.batch = 2 * ROWS;
    gckpt_plan *p = gckpt_plan_new(l.g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, l.s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(l.x), x }, { gckpt_id(l.y), bad } };
    for (int last = 0; last < 2; last++) { /* in the second iteration, the call that is refused is the last one */
        CHECK(gckpt_step_begin(e, &hyper) == GCKPT_OK);
        feeds[1].data = good;
        CHECK(gckpt_step_add(e, feeds, 2, ROWS) == GCKPT_OK);
        feeds[1].data = bad;
        CHECK(gckpt_step_add(e, feeds, 2, ROWS) == GCKPT_E_DATA && gckpt_error(e) == GCKPT_E_DATA);
        feeds[1].data = good;
        CHECK(last || gckpt_step_add(e, feeds, 2, ROWS) == GCKPT_OK);
        CHECK(last || gckpt_error(e) == GCKPT_OK);
        CHECK(gckpt_step_end(e, &report) == GCKPT_OK && report.count == (last ? 3 : 6));
        CHECK_MSG(gckpt_error(e) == GCKPT_OK, "after the step: %s", gckpt_error_text(e));
    }
    gckpt_exec_free(e);
    gckpt_plan_free(p);

    gckpt_frontier *f = gckpt_frontier_new(l.g, &term, 1, NULL);
    file out;
    memset(&out, 0, sizeof out);
    CHECK(f && gckpt_error(l.g) == GCKPT_OK);
    gckpt_store_freeze(l.s, "*", 1); /* freezes all parameters, so that there is nothing to train */
    CHECK(print_frontier(f, 0, file_write, &out) == GCKPT_OK);
    CHECK(print_frontier_json(f, 0, file_write, &out) == GCKPT_OK);
    CHECK_MSG(gckpt_error(l.g) == GCKPT_OK, "after printing: %s", gckpt_error_text(l.g));
    CHECK(!gckpt_frontier_plan(f, 1) && gckpt_error(l.g) == GCKPT_E_BUDGET);
    CHECK(print_frontier(f, 0, file_write, &out) == GCKPT_OK);
    /* printing a plan does not change the graph's error, since printing is not planning */
    CHECK(gckpt_error(l.g) == GCKPT_E_BUDGET);
    gckpt_frontier_free(f);
    free(out.bytes);
    gckpt_graph_free(l.g);
    gckpt_store_free(l.s);
}

/* ---- values that must not be accepted silently ---- */
static void refused_values(void)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, -1, -1e-30f };
    losses l = losses_new();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gckpt_parameter q;
        CHECK(gckpt_store_group(l.s, "w", bad[i], 1) == GCKPT_E_ARG);
        CHECK(has(gckpt_error_text(l.s), "lr_scale"));
        CHECK(gckpt_store_group(l.s, "w", 1, bad[i]) == GCKPT_E_ARG);
        CHECK(has(gckpt_error_text(l.s), "decay_scale"));
        CHECK(gckpt_store_get(l.s, 0, &q) == GCKPT_OK && q.lr_scale > 0 && q.decay_scale > 0);
    }
    CHECK(gckpt_store_group(l.s, "w", 0, 0) == GCKPT_OK);
    CHECK(gckpt_store_group(l.s, "w", 2, 0.5f) == GCKPT_OK);
    CHECK(gckpt_store_group(l.s, "v", 2, 0.5f) == GCKPT_E_ARG); /* the pattern matches nothing */
    CHECK(gckpt_store_group(l.s, NULL, 1, -1) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(l.s), "group \"\": decay_scale is -1"));

    static const char *const names[] = { "lr",  "weight_decay", "beta1", "beta2",
                                         "eps", "momentum",     "clip" };
    gckpt_term term = { l.loss[FED], 1, 0 };
    gckpt_plan *p = gckpt_plan_new(l.g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, l.s, NULL);
    static const float x[ROWS * IN];
    static const int32_t y[ROWS];
    gckpt_feed feeds[2] = { { gckpt_id(l.x), x }, { gckpt_id(l.y), y } };
    for (int k = 0; k < 7; k++)
        for (int i = 0; i < 5; i++) {
            gckpt_hyper h = gckpt_hyper_lr(0);
            float *field[] = { &h.lr,  &h.weight_decay, &h.beta1, &h.beta2,
                               &h.eps, &h.momentum,     &h.clip };
            char wanted[32];
            *field[k] = (k == 2 || k == 3 || k == 5) && i > 2 ? (float)i : bad[i];
            uint64_t before = gckpt_store_hash(l.s);
            snprintf(wanted, sizeof wanted, "hyper.%s is ", names[k]);
            CHECK(gckpt_step(e, feeds, 2, ROWS, &h, NULL) == GCKPT_E_ARG);
            CHECK(has(gckpt_error_text(e), wanted));
            CHECK(gckpt_store_hash(l.s) == before && gckpt_store_step(l.s) == 0);
        }
    gckpt_exec_free(e);
    gckpt_plan_free(p);

    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.batch = ROWS - 1;
    CHECK(!gckpt_plan_new(l.g, &term, 1, &desc) && gckpt_error(l.g) == GCKPT_E_ARG);
    CHECK(has(gckpt_error_text(l.g), "desc.batch is 3") && has(gckpt_error_text(l.g), "4 rows"));
    desc.mode = GCKPT_INFERENCE; /* an inference plan accepts any number of rows */
    p = gckpt_plan_new(l.g, &term, 1, &desc);
    CHECK(p != NULL);
    gckpt_plan_free(p);

    CHECK(!gckpt_input(l.g, "y", GCKPT_F32, gckpt_shape2(ROWS, 1)));
    CHECK(gckpt_error(l.g) == GCKPT_E_ARG && has(gckpt_error_text(l.g), "input \"y\""));
    gckpt_graph_free(l.g);
    gckpt_store_free(l.s);
}

/* ---- plans whose cost or bytes exceed the countable or addressable range ---- */
enum { DEEP = 24 };
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_term term;
    gckpt_cost costs[3 * DEEP + 8];
} huge;

static gckpt_tensor *huge_net(gckpt_graph *g, int64_t rows, int64_t columns)
{
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, columns));
    for (int i = 0; i < DEEP; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        x = gckpt_mul(x, gckpt_param(g, name, gckpt_shape1(1), normal));
    }
    return gckpt_sum_loss(x);
}

static huge huge_new(int64_t columns)
{
    huge h;
    memset(&h, 0, sizeof h);
    h.s = gckpt_store_new(NULL);
    h.g = gckpt_graph_new(h.s, NULL);
    h.term.loss = huge_net(h.g, 1, columns);
    h.term.weight = 1;
    for (size_t i = 0; i < sizeof h.costs / sizeof *h.costs; i++)
        h.costs[i].forward = h.costs[i].backward = 1;
    return h;
}

static void huge_free(huge *h)
{
    gckpt_graph_free(h->g);
    gckpt_store_free(h->s);
}

static int huge_build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    terms[0].loss = huge_net(g, rows, *(const int64_t *)user);
    terms[0].weight = 1;
    return terms[0].loss ? 1 : -1;
}

static gckpt_result huge_measure(gckpt_graph *g, const gckpt_term *terms, int count,
                                 gckpt_cost *costs, int cost_count, void *user)
{
    (void)g, (void)terms, (void)count, (void)user;
    for (int i = 0; i < cost_count; i++)
        costs[i].forward = costs[i].backward = 1000;
    return GCKPT_OK;
}

/* Tests the schedule of a plan without its recomputes: it needs more bytes than can be addressed, and the error text says
 * so. */
static void unrolled(const huge *h, const gckpt_plan *p, gckpt_plan_desc desc)
{
    static gckpt_instruction list[4 * DEEP + 16];
    unsigned char seen[3 * DEEP + 8] = { 0 };
    gckpt_instruction in;
    desc.mode = GCKPT_SCHEDULE;
    desc.schedule.instructions = list;
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++)
        if (in.kind == GCKPT_BACKWARD || (in.kind == GCKPT_FORWARD && !seen[in.id]++))
            list[desc.schedule.count++] = in;
    CHECK(desc.schedule.count < gckpt_plan_describe(p).instructions && desc.schedule.count <= 4 * DEEP + 16);
    CHECK(!gckpt_plan_new(h->g, &h->term, 1, &desc) && gckpt_error(h->g) == GCKPT_E_MEMORY);
    CHECK(has(gckpt_error_text(h->g), "plan: the step arena would need "));
}

static void beyond(void)
{
    const int wide = sizeof(size_t) > 4; /* a store-all plan needs 1.5 times the bytes that can be addressed */
    const int64_t columns = (int64_t)1 << (wide ? 54 : 22), much = columns / 16;
    gckpt_plan_desc desc;
    huge h = huge_new(wide ? (int64_t)1 << 50 : 1 << 20);
    memset(&desc, 0, sizeof desc);
    gckpt_plan *p = gckpt_plan_new(h.g, &h.term, 1, &desc); /* with the model's costs */
    /* the error text must not recommend fewer rows, since the micro-batch has one row */
    CHECK(!wide ||
          (!p && gckpt_error(h.g) == GCKPT_E_ARG &&
           has(gckpt_error_text(h.g), "give costs in a larger unit") && !strstr(gckpt_error_text(h.g), "rows")));
    gckpt_plan_free(p);
    huge_free(&h);
    h = huge_new(16);
    gckpt_graph *rows = gckpt_graph_new(h.s, NULL);
    h.term.loss = huge_net(rows, 2, wide ? (int64_t)1 << 50 : 1 << 20);
    p = gckpt_plan_new(rows, &h.term, 1, &desc);
    CHECK(!wide || (!p && has(gckpt_error_text(rows), "use fewer rows, or desc.costs in a larger unit")));
    gckpt_plan_free(p);
    gckpt_graph_free(rows);
    huge_free(&h);

    h = huge_new(16);
    desc.costs.by_id = h.costs;
    desc.costs.count = gckpt_id(h.term.loss) + 1;
    h.costs[2].forward = UINT64_C(1) << 53;
    CHECK(!gckpt_plan_new(h.g, &h.term, 1, &desc) && has(gckpt_error_text(h.g), "larger unit"));
    h.costs[2].forward = 1;
    for (int i = 0; i < desc.costs.count; i++)
        h.costs[i].backward = UINT64_C(1) << 40;
    desc.batch = INT64_MAX / 2;
    p = gckpt_plan_new(h.g, &h.term, 1, &desc); /* the cost of one step exceeds 64 bits */
    CHECK(p && gckpt_plan_describe(p).step_cost == UINT64_MAX);
    gckpt_plan_free(p);
    huge_free(&h);

    h = huge_new(columns);
    memset(&desc, 0, sizeof desc);
    desc.costs.by_id = h.costs;
    desc.costs.count = gckpt_id(h.term.loss) + 1;
    CHECK(!gckpt_plan_new(h.g, &h.term, 1, &desc) && gckpt_error(h.g) == GCKPT_E_MEMORY);
    desc.mode = GCKPT_SQRT;
    p = gckpt_plan_new(h.g, &h.term, 1, &desc);
    CHECK_MSG(p && gckpt_plan_describe(p).arena <= PTRDIFF_MAX / 8 && gckpt_error(h.g) == GCKPT_OK,
              "sqrt: %s", gckpt_error_text(h.g));
    unrolled(&h, p, desc);
    gckpt_plan_free(p);
    huge_free(&h);
    h = huge_new(4 * columns); /* the plan is too large */
    CHECK(!gckpt_plan_new(h.g, &h.term, 1, &desc) && gckpt_error(h.g) == GCKPT_E_MEMORY);
    desc.mode = GCKPT_AUTO;
    CHECK(!gckpt_frontier_new(h.g, &h.term, 1, &desc) && gckpt_error(h.g) == GCKPT_E_MEMORY);
    huge_free(&h);

    for (int mode = 0; mode < 4; mode++) {
        static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_SQRT, GCKPT_STORE_ALL,
                                            GCKPT_MEMORY_POOR };
        gckpt_store *s = gckpt_store_new(NULL);
        int64_t size = much;
        fit_error why;
        memset(&desc, 0, sizeof desc);
        desc.mode = modes[mode];
        p = fit_plan(s, huge_build, &size, 16, &desc, huge_measure, &why);
        CHECK_MSG(p != NULL, "fit, mode %d: %s", mode, why.text);
        CHECK(!p || gckpt_plan_describe(p).rows == (mode == 1 || mode == 3 ? 16 : 8) || mode == 3);
        CHECK(why.result == GCKPT_OK);
        gckpt_plan_free(p);
        size = wide ? (int64_t)3 << 55 : (int64_t)3 << 23; /* even a micro-batch of one row is too large */
        CHECK(!fit_plan(s, huge_build, &size, 1, &desc, huge_measure, &why));
        CHECK_MSG(why.result == GCKPT_E_MEMORY, "fit, mode %d: %s", mode, why.text);
        gckpt_store_free(s);
    }
}

/* User-defined op whose workspace for each row is 1/256 of the address space. */
static gckpt_result vast_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->workspace_forward = (size_t)call->shape.d[0] * (PTRDIFF_MAX / 256);
    return GCKPT_OK;
}

static int vast_build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    static gckpt_op op;
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 4));
    op.name = "vast";
    op.shape = vast_shape;
    op.forward = nothing;
    x = gckpt_mul(gckpt_apply(&op, &x, 1, NULL, 0), gckpt_param(g, "w", gckpt_shape1(1), normal));
    (void)user;
    terms[0].loss = gckpt_sum_loss(x);
    terms[0].weight = 1;
    return 1;
}

/* Tests that fit_plan skips micro-batches whose tensors are too large to address, since smaller ones may have a
 * plan. */
static void large_rows(void)
{
    const int wide = sizeof(size_t) > 4;
    const gckpt_plan_desc desc = { .mode = GCKPT_MEMORY_POOR };
    /* In kind 0, an input is too large with 64 or 32 rows, in kind 1, a workspace is too large with many rows, and in
     * kind 2, the input is too large even with 1 row. */
    for (int kind = 0; kind < 3; kind++) {
        gckpt_store *s = gckpt_store_new(NULL);
        int64_t size = (int64_t)1 << (wide ? 53 : 21) << (kind ? 6 : 0);
        fit_error why;
        gckpt_plan *p =
            fit_plan(s, kind == 1 ? vast_build : huge_build, &size, kind == 1 ? 256 : 64, &desc, huge_measure, &why);
        if (kind < 2) {
            CHECK_MSG(p && why.result == GCKPT_OK, "%s", why.text);
            CHECK_MSG(!p || (gckpt_plan_describe(p).rows > 1 && gckpt_plan_describe(p).rows <= 16), "%d rows", (int)gckpt_plan_describe(p).rows);
        } else {
            CHECK(!p && why.result == GCKPT_E_SHAPE);
            CHECK(has(why.text, "fit: micro-batches of 64 rows: \"x\"") &&
                  has(why.text, "elements for this machine"));
        }
        gckpt_plan_free(p);
        gckpt_store_free(s);
    }
}

/* ---- a block of memory holds several plans ---- */
static void blocks(void)
{
    static const float x[2 * ROWS * IN] = { 1, 2, 3 };
    static const int32_t y[2 * ROWS] = { 0, 1, 2, 1, 0, 1, 2, 0 };
    static double room[1 << 16];
    unsigned char *bytes = (unsigned char *)room;
    losses l = losses_new();
    gckpt_term terms[2] = { { l.loss[FED], 1, 0 }, { l.loss[COLUMNS], 1, 0 } };
    for (size_t past = 0; past < 16; past += 5) { /* a block may begin at any address */
        gckpt_plan *kept[3], *block[3];
        size_t at = past;
        memset(room, 0x55, sizeof room);
        for (int i = 0; i < 3; i++) {
            gckpt_plan_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.batch = 2 * ROWS;
            kept[i] = gckpt_plan_new(l.g, terms, 1 + i % 2, &desc);
            if (i == 1) { /* a plan for a budget: its search makes and discards further plans in the block */
                desc.budget = gckpt_plan_bytes(kept[i]) - 1;
                gckpt_plan_free(kept[i]);
                kept[i] = gckpt_plan_new(l.g, terms, 2, &desc);
            }
            CHECK_MSG(kept[i] != NULL, "%s", gckpt_error_text(l.g));
            desc.memory.memory = bytes + at;
            desc.memory.size = sizeof room - at;
            block[i] = gckpt_plan_new(l.g, terms, 1 + i % 2, &desc);
            CHECK_MSG(block[i] != NULL, "%s", gckpt_error_text(l.g));
            size_t low = (size_t)((unsigned char *)block[i] - bytes);
            CHECK(low >= at && low < at + 16);
            at = low + gckpt_plan_kind_bytes(block[i], GCKPT_BYTES_TABLES);
            memset(bytes + at, 0x55, sizeof room - at); /* overwrites the rest of the block, which no plan may use */
        }
        for (int i = 0; i < 3; i++) { /* checks that all three plans in the block are intact */
            file a, b;
            gckpt_hyper hyper = gckpt_hyper_lr(0);
            gckpt_feed feeds[2] = { { gckpt_id(l.x), x }, { gckpt_id(l.y), y } };
            gckpt_report report[2];
            memset(&a, 0, sizeof a);
            memset(&b, 0, sizeof b);
            CHECK(gckpt_plan_c(kept[i], "p", file_write, &a) == GCKPT_OK &&
                  gckpt_plan_c(block[i], "p", file_write, &b) == GCKPT_OK && same_file(&a, &b));
            for (int k = 0; k < 2; k++) {
                gckpt_exec *e = gckpt_exec_new(k ? block[i] : kept[i], l.s, NULL);
                CHECK(gckpt_step(e, feeds, 2, 2 * ROWS, &hyper, &report[k]) == GCKPT_OK);
                gckpt_exec_free(e);
            }
            CHECK(memcmp(&report[0].loss, &report[1].loss, sizeof report[0].loss) == 0);
            gckpt_plan_free(kept[i]);
            gckpt_plan_free(block[i]);
            free(a.bytes);
            free(b.bytes);
        }
    }
    gckpt_graph_free(l.g);
    gckpt_store_free(l.s);
}

/* ---- the search knows every input that an op's result may overwrite in place ---- */
static gckpt_result sum3_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

static const gckpt_op sum3 = { "sum3",  sum3_shape,
                               nothing, NULL,
                               NULL,    NULL,
                               { 0 },   GCKPT_INPLACE(0) | GCKPT_INPLACE(1) | GCKPT_INPLACE(2),
                               NULL,    NULL };

static void in_place(void)
{
    enum { R = 1024, C = 16, LAYERS = 8 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(R, C)), *h = x, *abc[4];
    char name[16];
    for (int i = 0; i < LAYERS; i++) { /* layers to recompute */
        snprintf(name, sizeof name, "h%d", i);
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(C, C), normal), NULL));
    }
    gckpt_tensor *y = gckpt_sum(h, 1);
    /* frozen products, which have no gradients, so that the peak of live bytes is in a forward */
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "frozen%d", i);
        abc[i] = gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(C, C), normal), NULL);
        gckpt_store_freeze(s, name, 1);
    }
    abc[3] = h;                                              /* the first input */
    /* of the inputs, the result may only overwrite abc[2], since the other ones are read again */
    gckpt_tensor *sum = gckpt_apply(&sum3, abc, 4, NULL, 0);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "out%d", i);
        gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(C, 1), normal);
        gckpt_tensor *z = gckpt_linear(i < 2 ? abc[i] : sum, w, NULL);
        y = gckpt_add(y, gckpt_sum(z, 1));
    }
    gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kernels.plain = 1; /* without workspaces, which would hide whether the result overwrites an input */
    gckpt_plan *all = gckpt_plan_new(g, &term, 1, &desc);
    desc.mode = GCKPT_OPTIMAL;
    desc.budget = gckpt_plan_bytes(all);
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    CHECK_MSG(info.cost == gckpt_plan_describe(all).cost && gckpt_plan_bytes(p) <= desc.budget,
              "%g %% recomputed where store-all fits", 100 * info.recompute);
    gckpt_plan_free(p);
    gckpt_plan_free(all);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* ---- the search reports whether it stopped before it was complete ---- */
static void incomplete(void)
{
    for (int deep = 0; deep < 2; deep++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(512, 16));
        gckpt_tensor *w = gckpt_param(g, "frozen", gckpt_shape2(16, 16), normal);
        gckpt_store_freeze(s, "*", 1);
        gckpt_segment_begin(g); /* a segment gives the search a lower memory level to try */
        gckpt_tensor *distant = gckpt_linear(x, w, NULL);
        for (int i = 0; i < (deep ? 600 : 60); i++) /* ops to recompute */
            distant = gckpt_scale(distant, 1.01f);
        gckpt_tensor *h = x;
        for (int i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            h = gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(16, 16), normal), NULL);
            h = gckpt_keep(i ? gckpt_tanh(h) : gckpt_mul(h, distant));
            if (!i)
                gckpt_segment_end(g);
        }
        gckpt_term term = { gckpt_sum_loss(h), 1, 0 };
        gckpt_frontier *f = gckpt_frontier_new(g, &term, 1, NULL);
        CHECK_MSG(f && gckpt_frontier_describe(f).complete == !deep, "%d points, complete: %d",
                  gckpt_frontier_describe(f).points, gckpt_frontier_describe(f).complete);
        gckpt_frontier_free(f);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
}

/* ---- user-defined ops with i32 inputs: any input may be i32, and each has its own limit ---- */
/* pair: i32 a (R), table (V,C), i32 b (R) -> (R,C): table[a] + table[b] */
static gckpt_result pair_shape(gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *table = &call->in[1].shape;
    if (a->n != 1 || table->n != 2 || call->in[2].shape.n != 1 || call->in[2].shape.d[0] != a->d[0])
        return gckpt_fail(call, GCKPT_E_SHAPE, "pair: %S, %S", a, table);
    call->shape = gckpt_shape2(a->d[0], table->d[1]);
    return GCKPT_OK;
}

static void pair_forward(const gckpt_call *call)
{
    int64_t n = call->shape.d[1];
    for (int64_t i = 0; call->out && i < call->shape.d[0] * n; i++)
        call->out[i] = call->in[1].data[call->in[0].index[i / n] * n + i % n] +
                       call->in[1].data[call->in[2].index[i / n] * n + i % n];
}

static void pair_backward(const gckpt_call *call)
{
    int64_t n = call->shape.d[1], v = call->in[1].shape.d[0];
    float *d = call->in[1].grad;
    for (int64_t i = 0; i < v * n && !call->in[1].accumulate; i++)
        d[i] = 0;
    for (int64_t i = 0; i < call->shape.d[0] * n; i++) {
        d[call->in[0].index[i / n] * n + i % n] += call->grad_out[i];
        d[call->in[2].index[i / n] * n + i % n] += call->grad_out[i];
    }
}

static int64_t pair_classes(const gckpt_call *call, int i)
{
    return i == 0 ? call->in[1].shape.d[0] : 0; /* b has no limit */
}

/* User-defined loss of logits (R,V), i32 action (R) and value (R): the sum of -value log softmax[action]. */
static gckpt_result scored_shape(gckpt_call *call)
{
    call->saved_bytes = 0;
    return GCKPT_OK;
}

static double scored_sum(const gckpt_call *call, int64_t r)
{
    int64_t v = call->in[0].shape.d[1];
    double sum = 0;
    for (int64_t i = 0; i < v; i++)
        sum += exp((double)call->in[0].data[r * v + i]);
    return sum;
}

static void scored_forward(const gckpt_call *call)
{
    int64_t rows = call->in[0].shape.d[0], v = call->in[0].shape.d[1];
    for (int64_t r = 0; call->loss_sum && r < rows; r++) {
        int32_t a = call->in[1].index[r];
        if (a < 0)
            continue;
        *call->loss_sum += (double)call->in[2].data[r] *
                           (log(scored_sum(call, r)) - (double)call->in[0].data[r * v + a]);
        ++*call->loss_count;
    }
}

static void scored_backward(const gckpt_call *call)
{
    int64_t rows = call->in[0].shape.d[0], v = call->in[0].shape.d[1];
    for (int64_t i = 0; i < rows * v; i++) {
        int64_t r = i / v;
        int32_t a = call->in[1].index[r];
        double p = exp((double)call->in[0].data[i]) / scored_sum(call, r) - (i % v == a);
        float d = a < 0 ? 0 : call->loss_scale * call->in[2].data[r] * (float)p;
        call->in[0].grad[i] = call->in[0].accumulate ? call->in[0].grad[i] + d : d;
    }
}

static int64_t scored_classes(const gckpt_call *call, int i)
{
    return i == 1 ? call->in[0].shape.d[1] : 1; /* the library calls this function only for input 1 */
}

static gckpt_op index_op(int which)
{
    gckpt_op op;
    memset(&op, 0, sizeof op);
    op.name = which ? "scored" : "pair";
    op.shape = which ? scored_shape : pair_shape;
    op.forward = which ? scored_forward : pair_forward;
    op.backward = which ? scored_backward : pair_backward;
    op.classes = which ? scored_classes : pair_classes;
    op.flags = which ? GCKPT_INDEX(1) | GCKPT_LOSS : GCKPT_INDEX(0) | GCKPT_INDEX(2);
    if (which)
        op.needs[0] = GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2);
    else
        op.needs[1] = GCKPT_IN(0) | GCKPT_IN(2);
    return op;
}

static void index_inputs(void)
{
    enum { R = 3, V = 5, BATCH = 2 * R };
    const gckpt_op pair = index_op(0), scored = index_op(1);
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *a = gckpt_input(g, "a", GCKPT_I32, gckpt_shape1(R));
    gckpt_tensor *b = gckpt_input(g, "b", GCKPT_I32, gckpt_shape1(R));
    gckpt_tensor *action = gckpt_input(g, "action", GCKPT_I32, gckpt_shape1(R));
    gckpt_tensor *value = gckpt_input(g, "value", GCKPT_F32, gckpt_shape1(R));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, V), normal);
    gckpt_tensor *in[2][3] = { { a, table, b }, { NULL, action, value } };
    gckpt_tensor *mine = gckpt_apply(&pair, in[0], 3, NULL, 0);
    gckpt_tensor *theirs = gckpt_add(gckpt_embed(table, a), gckpt_embed(table, b));
    gckpt_tensor *loss[2][2];
    in[1][0] = mine;
    loss[0][0] = gckpt_apply(&scored, in[1], 3, NULL, 0);
    loss[0][1] = gckpt_cross_entropy(mine, action, NULL, 0);
    loss[1][1] = gckpt_cross_entropy(theirs, action, NULL, 0);
    in[1][0] = theirs;
    loss[1][0] = gckpt_apply(&scored, in[1], 3, NULL, 0);
    CHECK_MSG(gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
    static int32_t as[BATCH] = { 0, 1, 4, 2, 0, 3 }, bs[BATCH] = { 4, 4, 0, 1, 2, 2 };
    static int32_t actions[BATCH] = { 2, -1, 0, 4, 1, -1 };
    static const float values[BATCH] = { 1, 2, -0.5f, 0.25f, 1, 3 };
    gckpt_feed feeds[4] = { { gckpt_id(a), as },
                            { gckpt_id(b), bs },
                            { gckpt_id(action), actions },
                            { gckpt_id(value), values } };
    gckpt_plan_desc desc;
    gckpt_fetch_spec fetch = { table, 1 };
    memset(&desc, 0, sizeof desc);
    desc.batch = BATCH;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    float gradient[2][V * V];
    for (int k = 0; k < 2; k++) {
        gckpt_term terms[2] = { { loss[k][0], 1, 0 }, { loss[k][1], 0.5f, 0 } };
        gckpt_hyper hyper = gckpt_hyper_lr(0);
        gckpt_report report = { 0, 0, 0, 0 };
        gradcheck_result check;
        gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        CHECK_MSG(gckpt_step(e, feeds, 4, BATCH, &hyper, &report) == GCKPT_OK && report.count == 4,
                  "%s", gckpt_error_text(e));
        memcpy(gradient[k], gckpt_fetch(e, gckpt_id(table), 1), sizeof gradient[k]);
        CHECK(gradcheck(s, terms, 2, &desc, feeds, 4, BATCH, &check) == GCKPT_OK && check.worst < 0.01);
        static const struct {
            int input, value;
            const char *text; /* expected error text, or NULL if the plan runs */
        } wrong[] = { { 0, V, "\"a\": index 5 at row 4, position 0: pair #5 takes 0 to 4" },
                      { 0, -1, "\"a\": index -1 at row 4" },
                      { 2, V, "\"action\": index 5 at row 4" },
                      { 2, -5, NULL } };
        for (int i = 0; i < 4 && k == 0; i++) {
            int32_t *data = wrong[i].input ? actions : as, was = data[4];
            data[4] = wrong[i].value;
            gckpt_result result = gckpt_step(e, feeds, 4, BATCH, &hyper, NULL);
            CHECK(result == (wrong[i].text ? GCKPT_E_DATA : GCKPT_OK));
            CHECK(!wrong[i].text || has(gckpt_error_text(e), wrong[i].text));
            data[4] = was;
        }
        gckpt_exec_free(e);
        gckpt_plan_free(p);
    }
    for (int i = 0; i < V * V; i++)
        CHECK(fabs((double)gradient[0][i] - (double)gradient[1][i]) < 1e-6);
    CHECK(!gckpt_apply(&pair, in[1], 3, NULL, 0) && has(gckpt_error_text(g), "is f32, pair needs i32"));
    CHECK(has(gckpt_error_text(g), "needs i32"));
    gckpt_graph_free(g);
    g = gckpt_graph_new(s, NULL);
    gckpt_op old = pair; /* a copy of the op that does not declare its i32 input 0 as an index */
    gckpt_tensor *other[3] = { NULL, NULL, NULL };
    old.flags = GCKPT_INDEX(2);
    other[0] = other[2] = gckpt_input(g, "a", GCKPT_I32, gckpt_shape1(R));
    other[1] = gckpt_param(g, "table", gckpt_shape2(V, V), normal);
    CHECK(!gckpt_apply(&old, other, 3, NULL, 0) && has(gckpt_error_text(g), "input \"a\" is i32, pair needs f32"));
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* ---- printing a frontier allocates nothing; naming a tensor does ---- */
static void short_of_memory(void)
{
    heap h;
    losses l = losses_new();
    gckpt_term term = { l.loss[FED], 1, 0 };
    gckpt_plan_desc desc;
    file out;
    memset(&h, 0, sizeof h);
    memset(&out, 0, sizeof out);
    memset(&desc, 0, sizeof desc);
    desc.memory = heap_memory(&h);
    gckpt_frontier *f = gckpt_frontier_new(l.g, &term, 1, &desc);
    h.calls = 0;
    h.fail_at = 1;
    CHECK(print_frontier(f, 0, file_write, &out) == GCKPT_OK && h.calls == 0);
    CHECK(print_frontier_json(f, 0, file_write, &out) == GCKPT_OK && h.calls == 0);
    free(out.bytes);
    gckpt_frontier_free(f);
    gckpt_graph_free(l.g);
    for (long fail = 1; fail < 8; fail++) { /* a name that could not be stored must not be compared with later names */
        static char name[10000];
        gckpt_memory memory = heap_memory(&h);
        memset(name, 'n', sizeof name - 1);
        h.calls = 0;
        h.fail_at = fail;
        gckpt_graph *g = gckpt_graph_new(l.s, &memory);
        gckpt_input(g, name, GCKPT_F32, gckpt_shape1(ROWS));
        CHECK(!gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(ROWS)) == (h.calls >= fail));
        gckpt_graph_free(g);
    }
    gckpt_store_free(l.s);
}

int main(void)
{
    shapes();
    several_losses();
    stale_errors();
    refused_values();
    beyond();
    large_rows();
    blocks();
    in_place();
    incomplete();
    index_inputs();
    short_of_memory();
    return check_report("test_limits");
}
