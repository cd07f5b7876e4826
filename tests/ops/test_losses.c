/* test_losses.c - properties of losses with weights other than correct values, which test_ops, test_golden and
 * tests/contract check. Weights of 1 and a smoothing of 0 change no bit; a weight of 0 ignores its values; counts
 * ignore weights; bf16 plans round as documented; wrong shapes are refused with an error text that names them. */
#include "num/num.h"
#include "backend.h"
#include "util.h"
#include <math.h>

enum { HARD, SOFT, SQUARED, HUBER, BINARY, KINDS };
enum { B = 6, T = 3, V = 37, ROWS = B * T, ALL = ROWS * V };
static const char *const kinds[KINDS] = { "cross_entropy_with", "soft_cross_entropy",
                                          "mean_squared_error_with", "huber",
                                          "binary_cross_entropy" };

/* A loss in one setting: the inputs x, y (or targets) and weights, and the results of a step. */
typedef struct {
    int kind, axes, micro; /* axes: number of leading axes of x that the weights have, or 0 without weights */
    float smoothing;
    gckpt_precision precision;
    gckpt_isa isa;
    const gckpt_backend *backend;
    float x[ALL], y[ALL], w[ALL];
    int32_t targets[ROWS];
    double loss;
    int64_t count;
    float dx[ALL], dy[ALL], dw[ALL];
} trial;

static int64_t weights_of(const trial *o)
{
    return o->axes == 1 ? B : o->axes == 2 ? ROWS : o->axes == 3 ? ALL : 0;
}

static trial trial_of(int kind, int axes)
{
    static trial o; /* zeroed, since static */
    trial t = o;
    t.kind = kind, t.axes = axes, t.micro = B;
    uint64_t state = 5;
    for (int i = 0; i < ALL; i++) {
        t.x[i] = (float)(next_random(&state) % 2001) / 250 - 4;
        t.y[i] = (float)(next_random(&state) % 1001) / 1000;
        t.w[i] = (float)(next_random(&state) % 31 + 1) / 16;
    }
    for (int i = 0; i < ROWS; i++)
        t.targets[i] = i % 5 == 3 ? -1 : (int32_t)(next_random(&state) % V);
    return t;
}

static gckpt_tensor *loss_of(const trial *o, gckpt_tensor *x, gckpt_tensor *y, gckpt_tensor *t,
                             gckpt_tensor *w)
{
    switch (o->kind) {
    case HARD: return gckpt_cross_entropy(x, t, w, o->smoothing);
    case SOFT: return gckpt_soft_cross_entropy(x, y, w);
    case SQUARED: return gckpt_mean_squared_error(x, y, w);
    case HUBER: return gckpt_huber(x, y, w, 0.75f);
    default: return gckpt_binary_cross_entropy(x, y, w);
    }
}

/* Runs one step of the loss; fetches the gradients if the whole batch is one micro-batch. */
static void run(trial *o)
{
    const gckpt_init ones = { 0, 0, 1 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_shape all = gckpt_shape3(o->micro, T, V), rows = gckpt_shape2(o->micro, T), some = all;
    some.n = o->axes;
    gckpt_tensor *in[3], *a[3] = { NULL, NULL, NULL };
    gckpt_tensor *one = gckpt_param(g, "one", gckpt_shape1(1), ones);
    in[0] = gckpt_input(g, "x", GCKPT_F32, all), a[0] = gckpt_mul(in[0], one);
    in[1] = gckpt_input(g, "y", GCKPT_F32, all), a[1] = gckpt_mul(in[1], one);
    gckpt_tensor *t = gckpt_input(g, "t", GCKPT_I32, rows);
    in[2] = o->axes ? gckpt_input(g, "w", GCKPT_F32, some) : NULL;
    a[2] = in[2] ? gckpt_mul(in[2], one) : NULL;
    gckpt_term term = { loss_of(o, a[0], a[1], t, a[2]), 1, 0 };
    gckpt_fetch_spec fetches[3];
    gckpt_feed feeds[4] = { { gckpt_id(in[0]), o->x } };
    float *gradient[3];
    int fetched = 0, fed = 1;
    for (int i = 0; i < 3; i++)
        if ((i != 1 || o->kind != HARD) && a[i])
            gradient[fetched] = i == 0 ? o->dx : i == 1 ? o->dy : o->dw,
            fetches[fetched++] = (gckpt_fetch_spec){ a[i], 1 };
    feeds[fed++] = o->kind == HARD ? (gckpt_feed){ gckpt_id(t), o->targets }
                                   : (gckpt_feed){ gckpt_id(in[1]), o->y };
    if (o->axes)
        feeds[fed++] = (gckpt_feed){ gckpt_id(in[2]), o->w };
    gckpt_plan_desc desc = { .batch = B, .fetch.specs = fetches, .fetch.count = o->micro == B ? fetched : 0,
                             .bf16.precision = o->precision, .backend = o->backend };
    gckpt_exec_desc how = { .isa = o->isa, .backend = o->backend };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    CHECK_MSG(p != NULL, "%s: %s", kinds[o->kind], gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    gckpt_hyper still = gckpt_hyper_lr(0);
    gckpt_report report = { 0 };
    CHECK_MSG(gckpt_step(e, feeds, fed, B, &still, &report) == GCKPT_OK, "%s: %s", kinds[o->kind],
              gckpt_error_text(e));
    o->loss = report.loss, o->count = report.count;
    for (int i = 0; i < fetched && o->micro == B; i++) {
        gckpt_shape shape = gckpt_shape_of(fetches[i].tensor);
        const float *d = gckpt_fetch(e, gckpt_id(fetches[i].tensor), 1);
        if (CHECK(d != NULL))
            memcpy(gradient[i], d, (size_t)count_of(&shape) * sizeof *d);
    }
    util_free(e, p, g, s);
}

static int has(const char *text, const char *what) { return strstr(text, what) != NULL; }
static int same(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}
static int all_finite(const float *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(a[i]) <= 3e38f))
            return 0;
    return 1;
}

/* ---- weights of 1 equal no weights, for all kernels and splits ---- */
static void weights_of_one(int kind)
{
    trial plain = trial_of(kind, 0);
    run(&plain);
    CHECK(plain.count == (kind == HARD ? 15 : kind == SOFT ? ROWS : ALL) && plain.loss > 0);
    for (int axes = 0; axes <= (kind < SQUARED ? 2 : 3); axes++)
        for (int micro = 1; micro <= B; micro += axes ? 1 : 5) {
            trial o = trial_of(kind, axes);
            o.micro = micro, o.isa = micro % 2 ? GCKPT_ISA_AUTO : GCKPT_ISA_PLAIN;
            for (int i = 0; i < ALL; i++)
                o.w[i] = 1;
            run(&o);
            CHECK_MSG(o.loss == plain.loss && o.count == plain.count, "%s, %d axes, %d rows: %.17g",
                      kinds[kind], axes, micro, o.loss);
            CHECK(micro < B || (same(o.dx, plain.dx, ALL) && same(o.dy, plain.dy, ALL)));
        }
}

/* ---- the same bits on a backend with separate memory, with and without kernels for the loss ---- */
static void elsewhere(int kind)
{
    device d;
    gckpt_backend backend;
    if (!device_start(&d, &backend, "elsewhere", GCKPT_ISA_PLAIN))
        return; /* this machine cannot provide the protected pages */
    for (int axes = 0; axes < 3; axes++)
        for (int lacks = 0; lacks < 2; lacks++) {
            trial here = trial_of(kind, axes), there = here;
            there.backend = &backend;
            d.missing = lacks ? kinds[kind] : NULL;
            device_reset(&d);
            run(&here), run(&there);
            CHECK(d.kernel_calls > 0);
            CHECK_MSG(here.loss == there.loss && here.count == there.count &&
                          same(here.dx, there.dx, ALL) && same(here.dy, there.dy, ALL) &&
                          same(here.dw, there.dw, weights_of(&here)),
                      "%s, %d axes, kernels missing: %d: other bits", kinds[kind], axes, lacks);
        }
    device_end(&d);
}

/* Tests that the loss functions with weights and smoothing add the plain ops if weights are NULL and smoothing is 0. */
static void become_plain(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 3));
    gckpt_tensor *t = gckpt_input(g, "t", GCKPT_I32, gckpt_shape1(2));
    gckpt_node node;
    gckpt_tensor *a = gckpt_cross_entropy(x, t, NULL, 0);
    CHECK(gckpt_graph_node(g, gckpt_id(a), &node) == GCKPT_OK && !strcmp(node.op, "cross_entropy"));
    a = gckpt_mean_squared_error(x, x, NULL);
    CHECK(gckpt_graph_node(g, gckpt_id(a), &node) == GCKPT_OK &&
          !strcmp(node.op, "mean_squared_error"));
    util_free(NULL, NULL, g, s);
}

/* ---- a weight of 0 hides NaN and infinities; so does a target of -1 ---- */
static void left_out(int kind)
{
    static const float harm[] = { NAN, INFINITY, -INFINITY, 3e38f };
    for (int axes = 1; axes <= (kind < SQUARED ? 2 : 3); axes++)
        for (int k = 0; k < 8; k++) {
            trial o = trial_of(kind, axes), clean;
            const int64_t n = weights_of(&o), after = ALL / n, hurt = n / 2 * after + k % 3;
            o.isa = k % 4 == 2 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO;
            o.smoothing = k < 4 ? 0 : 0.25f;
            o.w[n / 2] = k % 2 ? -0.0f : 0.0f;
            clean = o;
            o.x[kind < SQUARED && k > 5 ? n / 2 * after : hurt % ALL] = harm[k % 4];
            if (axes == 3)
                o.x[hurt % ALL] = clean.x[hurt % ALL], o.x[n / 2] = harm[k % 4];
            if (after > 2 && kind != HARD)
                o.y[hurt] = harm[(k + 1) % 4];
            run(&o), run(&clean);
            CHECK_MSG(o.loss == clean.loss && all_finite(o.dx, ALL) && same(o.dx, clean.dx, ALL),
                      "%s, %d axes, harm %d: loss %g", kinds[kind], axes, k, o.loss);
            CHECK(same(o.dy, clean.dy, ALL) && o.count == clean.count);
            for (int64_t i = 0; i < after; i++) /* no gradient may reach the hidden values either */
                CHECK(o.dx[n / 2 * after + i] == 0 && o.dy[n / 2 * after + i] == 0);
        }
    trial o = trial_of(kind, 1); /* unlike a weight of 0, a weight of NaN must make its row NaN */
    o.w[1] = NAN;
    run(&o);
    CHECK(o.loss != o.loss && o.dx[(T + 1) * V] != o.dx[(T + 1) * V] && o.dx[0] == o.dx[0]);
}

/* Tests that weights can be trained: the gradient of a weight is the loss term that it multiplies, even if the weight
 * is 0. */
static void weight_gradient(int kind)
{
    trial o = trial_of(kind, 1), one = o;
    o.w[2] = 0;
    run(&o), run(&one);
    CHECK(o.dw[2] > 0 && same(o.dw, one.dw, B));
}

static void ignored_rows(void)
{
    trial o = trial_of(HARD, 2), other = o;
    for (int i = 0; i < ROWS; i++)
        if (o.targets[i] < 0)
            other.w[i] = NAN, o.x[i * V] = NAN, other.x[i * V + 1] = INFINITY;
    run(&o), run(&other);
    CHECK(o.loss == other.loss && o.count == other.count && same(o.dx, other.dx, ALL) &&
          same(o.dw, other.dw, ROWS) && all_finite(o.dx, ALL));
    for (int i = 0; i < ROWS; i++) /* if all targets are negative, no row counts: loss and count are 0 */
        o.targets[i] = -1;
    run(&o);
    CHECK(o.loss == 0 && o.count == 0);
}

/* Tests logits of -inf, which mask a class: with a soft target of 0 for that class the loss is unaffected, with any
 * other target the loss is huge. */
static void masked_class(void)
{
    for (int isa = 0; isa < 2; isa++) {
        trial o = trial_of(SOFT, 0);
        o.isa = isa ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO;
        for (int i = 5; i < ALL; i += V)
            o.x[i] = -INFINITY, o.y[i] = 0;
        run(&o);
        CHECK(fabs(o.loss) < 1e30 && all_finite(o.dx, ALL) && o.dx[5] == 0);
        o.y[5] = 0.5f;
        run(&o);
        CHECK(o.loss > 1e300 && all_finite(o.dx, ALL));
        o.y[5] = NAN;
        run(&o);
        CHECK(o.loss != o.loss);
    }
}

/* ---- bf16 plans round stored values, while the loss itself computes in binary32 ---- */
static void bf16(int kind)
{
    for (int axes = 0; axes <= (kind < SQUARED ? 2 : 3); axes++)
        for (int isa = 0; isa < 2; isa++) {
            trial o = trial_of(kind, axes), half;
            float *from[3] = { o.dx, o.dy, o.dw }, *to[3] = { half.dx, half.dy, half.dw };
            o.smoothing = axes == 1 ? 0.2f : 0;
            for (int i = 0; i < ALL; i++) {
                o.x[i] = gckpt_from_bf16(gckpt_to_bf16(o.x[i]));
                o.y[i] = gckpt_from_bf16(gckpt_to_bf16(o.y[i]));
                o.w[i] = gckpt_from_bf16(gckpt_to_bf16(o.w[i]));
            }
            half = o;
            half.precision = GCKPT_BF16, half.isa = isa ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO;
            run(&o), run(&half);
            CHECK_MSG(o.loss == half.loss, "%s: %.17g, not %.17g", kinds[kind], half.loss, o.loss);
            for (int k = 0; k < 3; k++)
                for (int64_t i = 0; i < (k < 2 ? ALL : weights_of(&o)); i++)
                    if (bits_of(gckpt_from_bf16(gckpt_to_bf16(from[k][i]))) != bits_of(to[k][i])) {
                        CHECK_MSG(0, "%s: gradient %d, element %d: %g from %g", kinds[kind], k,
                                  (int)i, (double)to[k][i], (double)from[k][i]);
                        break;
                    }
        }
}

/* ---- a user-defined loss that counts rows: elements_per_count, set by its shape function, must agree with its count
 * ---- */
typedef struct {
    int declared, counted; /* each field: 1 for rows, 0 for elements */
} rule;

static gckpt_result rows_shape(gckpt_call *call)
{
    const rule *r = (const rule *)call->attributes;
    call->elements_per_count = r->declared ? call->in[0].shape.d[1] : 0;
    return GCKPT_OK;
}
static void rows_forward(const gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape;
    const rule *r = (const rule *)call->attributes;
    for (int64_t i = 0; i < count_of(x) && call->loss_sum; i++)
        *call->loss_sum += (double)call->in[0].data[i];
    if (call->loss_count)
        *call->loss_count += r->counted ? x->d[0] : count_of(x);
}
static void rows_backward(const gckpt_call *call)
{
    for (int64_t i = 0; i < count_of(&call->in[0].shape); i++) {
        float *d = &call->in[0].grad[i];
        *d = call->in[0].accumulate ? *d + call->loss_scale : call->loss_scale;
    }
}
static const gckpt_op rows_op = { "rows",        rows_shape,    rows_forward, rows_backward,
                                  NULL,          NULL,          { 0 },        GCKPT_LOSS,
                                  NULL,          NULL };

static void user_counts(void)
{
    static const float data[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    /* k is three flags: 4 if the user-defined loss is the first of the two losses, 2 if its shape function declares
     * that it counts rows, 1 if its forward counts rows. */
    for (int k = 0; k < 8; k++) {
        const gckpt_init ones = { 0, 0, 1 };
        const rule r = { k >> 1 & 1, k & 1 };
        const int first = k >> 2, right = r.declared == r.counted;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 3)), *h;
        h = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(3), ones));
        gckpt_term terms[2] = { { gckpt_soft_cross_entropy(h, x, NULL), 1, 0 } };
        terms[1] = terms[0];
        terms[!first].loss = gckpt_apply(&rows_op, &h, 1, &r, sizeof r);
        gckpt_plan_desc desc = { .batch = 4 };
        gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feed = { gckpt_id(x), data };
        gckpt_hyper still = gckpt_hyper_lr(0);
        gckpt_report report = { 0 };
        gckpt_result result = gckpt_step(e, &feed, 1, 4, &still, &report);
        CHECK_MSG(result == (right ? GCKPT_OK : GCKPT_E_DATA), "%d: %s", k, gckpt_error_text(e));
        CHECK(!right || report.count == (!first || r.counted ? 4 : 12));
        CHECK(right || has(gckpt_error_text(e), r.counted ? "counted 4; its feeds say 12"
                                                         : "counted 12; its feeds say 4"));
        CHECK(gckpt_step_begin(e, &still) == GCKPT_E_ARG && has(gckpt_error_text(e), "has a count of its own"));
        util_free(e, p, g, s);
    }
}

/* ---- refused calls ---- */
#define REFUSED(result, text, call)                                                                \
    do {                                                                                           \
        gckpt_store *s = gckpt_store_new(NULL);                                                    \
        gckpt_graph *g = gckpt_graph_new(s, NULL);                                                 \
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(4, 2, 5));                   \
        gckpt_tensor *t = gckpt_input(g, "t", GCKPT_I32, gckpt_shape2(4, 2));                      \
        gckpt_tensor *w = gckpt_input(g, "w", GCKPT_F32, gckpt_shape2(4, 2));                      \
        gckpt_tensor *v = gckpt_input(g, "v", GCKPT_F32, gckpt_shape2(4, 5));                      \
        (void)x, (void)t, (void)w, (void)v;                                                        \
        CHECK((call) == NULL && gckpt_error(g) == (result));                                       \
        CHECK_MSG(has(gckpt_error_text(g), text), "%s", gckpt_error_text(g));                      \
        util_free(NULL, NULL, g, s);                                                                \
    } while (0)

static void refusals(void)
{
    REFUSED(GCKPT_E_SHAPE, "cross_entropy: weights [4,5] must have the first axes of [4,2]",
            gckpt_cross_entropy(x, t, v, 0));
    REFUSED(GCKPT_E_SHAPE, "cross_entropy: weights [4,2,5] must have the first axes of [4,2]",
            gckpt_cross_entropy(x, t, x, 0));
    REFUSED(GCKPT_E_SHAPE, "cross_entropy: targets [4,2] must be [4] for logits [4,5]",
            gckpt_cross_entropy(v, t, w, 0));
    REFUSED(GCKPT_E_ARG, "smoothing 1.1 must be 0 to 1", gckpt_cross_entropy(x, t, w, 1.1f));
    REFUSED(GCKPT_E_ARG, "smoothing -0.1", gckpt_cross_entropy(x, t, NULL, -0.1f));
    REFUSED(GCKPT_E_ARG, "smoothing nan", gckpt_cross_entropy(x, t, NULL, NAN));
    REFUSED(GCKPT_E_ARG, "input \"w\" is f32, cross_entropy_with needs i32",
            gckpt_cross_entropy(x, w, w, 0));
    REFUSED(GCKPT_E_SHAPE, "soft_cross_entropy: targets [4,5] must be [4,2,5] for logits",
            gckpt_soft_cross_entropy(x, v, NULL));
    REFUSED(GCKPT_E_SHAPE, "soft_cross_entropy: weights [4,2,5] must have the first axes of [4,2]",
            gckpt_soft_cross_entropy(x, x, x));
    REFUSED(GCKPT_E_SHAPE, "huber: prediction [4,2,5], target [4,5] differ",
            gckpt_huber(x, v, w, 1));
    REFUSED(GCKPT_E_SHAPE, "huber: weights [4,5] must have the first axes of [4,2,5]",
            gckpt_huber(x, x, v, 1));
    REFUSED(GCKPT_E_ARG, "huber: delta 0 must be above 0", gckpt_huber(x, x, w, 0));
    REFUSED(GCKPT_E_ARG, "huber: delta inf", gckpt_huber(x, x, w, INFINITY));
    REFUSED(GCKPT_E_ARG, "huber: delta nan", gckpt_huber(x, x, NULL, NAN));
    REFUSED(GCKPT_E_SHAPE, "binary_cross_entropy: prediction [4,2], target [4,5] differ",
            gckpt_binary_cross_entropy(w, v, NULL));
    REFUSED(GCKPT_E_SHAPE, "mean_squared_error_with: weights [4,5] must have the first axes",
            gckpt_mean_squared_error(x, x, v));
    CHECK(!gckpt_cross_entropy(NULL, NULL, NULL, 0.5f) && !gckpt_huber(NULL, NULL, NULL, 1) &&
          !gckpt_soft_cross_entropy(NULL, NULL, NULL) &&
          !gckpt_binary_cross_entropy(NULL, NULL, NULL) &&
          !gckpt_mean_squared_error(NULL, NULL, NULL));
}

/* ---- log(1 + x) is right to 2.5 ulp ---- */
static void log_of_one_and(void)
{
    double worst = 0;
    CHECK(gckpti_log1p(0) == 0 && gckpti_log1p(1e-45f) == 1e-45f && gckpti_log1p(1e-30f) == 1e-30f);
    for (uint32_t u = bits_of(1e-12f); u <= bits_of(1.0f); u += 3001) {
        float x = float_of(u);
        double want = log1p((double)x), error = fabs((double)gckpti_log1p(x) - want);
        error /= ldexp(1, ilogb(want) - 23);
        worst = error > worst ? error : worst;
    }
    CHECK_MSG(worst < 2.5, "log(1 + x): %.3f ulp", worst);
    CHECK(gckpti_log1p(NAN) != gckpti_log1p(NAN));
}

int main(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        weights_of_one(kind);
        left_out(kind);
        weight_gradient(kind);
        elsewhere(kind);
        bf16(kind);
    }
    become_plain();
    ignored_rows();
    masked_class();
    user_counts();
    refusals();
    log_of_one_and();
    return check_report("losses");
}
