/* test_skip.c - gckpt_exec_desc.skip_nonfinite: a step with a non-finite gradient changes no values, state or counts,
 * and later steps are as if this step had not run, for every way to feed, optimiser, plan and precision. */
#include "gradckpt.h"
#include "util.h"

enum { ROWS = 6, IN = 8, OUT = 3, GOOD = 4 };

/* Faults of a step's data. The loss (w x - y)^2 has the gradient 2 (w x - y) x. */
typedef enum {
    FINE,
    INF_FED,       /* x has infinities: loss and gradient are infinite or NaN */
    NAN_TARGET,    /* both NaN */
    GRADIENT_ONLY, /* the loss is finite, but a gradient overflows */
    NORM_ONLY,     /* each gradient is finite, but the sum of their squares overflows */
    WRONGS
} wrong;

static float x_data[ROWS * IN], y_data[ROWS * OUT];

static void fill_step(int step, wrong what)
{
    for (int i = 0; i < ROWS * IN; i++)
        x_data[i] = (float)((i * 37 + step * 11) % 23 - 11) / 9;
    for (int i = 0; i < ROWS * OUT; i++)
        y_data[i] = (float)((i * 17 + step * 5) % 13 - 6) / 5;
    if (what == INF_FED)
        for (int i = 0; i < IN; i++) /* the whole row is infinite, so that dropout lets some infinities through */
            x_data[4 * IN + i] = float_of(0x7f800000);
    if (what == NAN_TARGET)
        y_data[7] = float_of(0x7fc00000);
    if (what == GRADIENT_ONLY)
        for (int i = 0; i < IN; i++)
            x_data[2 * IN + i] = 1e16f, y_data[2 * OUT] = 1e19f, y_data[2 * OUT + 1] = -1e19f;
    if (what == NORM_ONLY)
        for (int i = 0; i < IN; i++)
            x_data[2 * IN + i] = 1e10f;
}

typedef struct {
    gckpt_optimiser optimiser;
    gckpt_precision precision;
    gckpt_mode mode;
    int64_t micro, stream;
    int pieces, shared, stage, skips;
    float clip;
} way;

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *x, *y;
    long own_calls;
} net;

static void own_optimiser(void *user, const gckpt_update *u)
{
    ++*(long *)user;
    for (int64_t i = 0; i < u->elements; i++)
        u->values[i] -= u->options->lr * (u->state[0][i] += u->gradient[i] * u->clip_scale);
}

static int feed(const void *user, int64_t row, gckpt_feed *f)
{
    const net *m = (const net *)user;
    f[0] = (gckpt_feed){ gckpt_id(m->x), x_data + row * IN };
    f[1] = (gckpt_feed){ gckpt_id(m->y), y_data + row * OUT };
    return 2;
}

static void make(net *m, const way *o, void *arena, size_t arena_size)
{
    const gckpt_init normal = { 0.3f, 0, 0 }, zero = { 0, 0, 0 };
    gckpt_store_desc seed = { .seed = 5 };
    memset(m, 0, sizeof *m);
    m->s = gckpt_store_new(&seed);
    m->g = gckpt_graph_new(m->s, NULL);
    m->x = gckpt_input(m->g, "x", GCKPT_F32, gckpt_shape2(o->micro, IN));
    m->y = gckpt_input(m->g, "y", GCKPT_F32, gckpt_shape2(o->micro, OUT));
    gckpt_tensor *w = gckpt_param(m->g, "w", gckpt_shape2(IN, OUT), normal);
    gckpt_tensor *b = gckpt_param(m->g, "b", gckpt_shape1(OUT), zero);
    gckpt_tensor *c = gckpt_param(m->g, "c", gckpt_shape2(OUT, OUT), normal);
    gckpt_tensor *h = gckpt_linear(gckpt_dropout(m->x, 0.1f), w, b);
    h = gckpt_add(h, gckpt_linear(gckpt_tanh(h), c, NULL));
    gckpt_term terms[2] = { { gckpt_mean_squared_error(h, m->y, NULL), 1, 0 },
                            { gckpt_sum_loss(gckpt_mul(c, c)), 0.01f, 1 } };
    gckpt_plan_desc d = { .mode = o->mode, .batch = ROWS, .optimiser = o->optimiser, .bf16.precision = o->precision,
                          .custom_state = o->optimiser == GCKPT_CUSTOM_OPTIMISER,
                          .kernels.stage_parameters = o->stage };
    m->p = gckpt_plan_new(m->g, terms, 2, &d);
    CHECK_MSG(m->p != NULL, "%s", gckpt_error_text(m->g));
    gckpt_exec_desc x = { .skip_nonfinite = o->skips, .custom_optimiser = own_optimiser, .user = &m->own_calls,
                          .arena = o->shared ? arena : NULL, .arena_size = arena_size,
                          .debug = o->shared ? GCKPT_DEBUG_POISON : 0 };
    m->e = gckpt_exec_new(m->p, m->s, &x);
    CHECK_MSG(m->e != NULL, "%s", gckpt_error_text(m->s));
}

static gckpt_result step(net *m, const way *o, int number, wrong what, gckpt_report *r)
{
    gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = o->clip };
    fill_step(number, what);
    return util_step(m->e, feed, m, ROWS, o->stream, o->pieces, &hyper, r);
}

/* Trains one net with good steps only, and another with steps in between that must be skipped; both results must be
 * equal. */
static void test_way(const way *o)
{
    static unsigned char room[65536 + 64];
    unsigned char *arena = room + (64 - (uintptr_t)room % 64) % 64;
    net plain, skipping;
    file want = { 0 }, got = { 0 }, before = { 0 };
    gckpt_report r, last = { 0 };
    way unguarded = *o;
    unguarded.skips = 0;
    make(&plain, &unguarded, arena, sizeof room - 64);
    make(&skipping, o, arena, sizeof room - 64);
    for (int i = 0; i < GOOD; i++) {
        /* skipped steps come before each good step, also before the first */
        for (int what = 1; what < WRONGS; what++) {
            long calls = skipping.own_calls;
            before.size = got.size = 0;
            CHECK(gckpt_store_write(skipping.s, file_write, &before, NULL) == GCKPT_OK);
            gckpt_result result = step(&skipping, o, 20 + what, (wrong)what, &r);
            CHECK_MSG(result == GCKPT_SKIPPED && gckpt_error(skipping.e) == GCKPT_SKIPPED,
                      "wrong %d: %s", what, gckpt_result_text(result));
            CHECK_MSG(strstr(gckpt_error_text(skipping.e), "the gradient of \"w\", or its norm, is not finite"), "%s",
                      gckpt_error_text(skipping.e));
            int lost = r.loss - r.loss != 0;
            CHECK_MSG(lost == (what < GRADIENT_ONLY), "wrong %d: loss %g", what, r.loss);
            CHECK(r.grad_norm - r.grad_norm != 0 && r.count == ROWS * OUT && r.step == (uint64_t)i);
            CHECK(gckpt_store_write(skipping.s, file_write, &got, NULL) == GCKPT_OK && same_file(&before, &got));
            CHECK(skipping.own_calls == calls);
        }
        CHECK(step(&plain, o, i, FINE, &last) == GCKPT_OK && step(&skipping, o, i, FINE, &r) == GCKPT_OK);
        CHECK(!memcmp(&r, &last, sizeof r) && r.step == (uint64_t)i + 1 && gckpt_error(skipping.e) == GCKPT_OK);
    }
    want.size = got.size = 0;
    CHECK(gckpt_store_write(plain.s, file_write, &want, NULL) == GCKPT_OK);
    CHECK(gckpt_store_write(skipping.s, file_write, &got, NULL) == GCKPT_OK && same_file(&want, &got));
    /* the same bad step without skip_nonfinite must change the weights */
    CHECK(step(&plain, o, 0, GRADIENT_ONLY, &r) == GCKPT_OK);
    CHECK(gckpt_store_hash(plain.s) != gckpt_store_hash(skipping.s));
    util_free(plain.e, plain.p, plain.g, plain.s);
    util_free(skipping.e, skipping.p, skipping.g, skipping.s);
    free(want.bytes), free(got.bytes), free(before.bytes);
}

static void test_ways(void)
{
    for (int i = 0; i < 48; i++) {
        static const int64_t micros[4] = { ROWS, 2, 4, 1 };
        way o = { .optimiser = (gckpt_optimiser)(i % 4),
                  .precision = i % 12 == 9 ? GCKPT_BF16 : GCKPT_FP32,
                  .mode = i % 3 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL,
                  .micro = micros[i / 4 % 4],
                  .shared = i % 5 == 1,
                  .stage = i % 7 == 2,
                  .clip = i / 2 % 2 ? 0.5f : 0,
                  .skips = 1 };
        o.stream = o.micro < ROWS && i / 16 == 1 ? 1 + i % 3 : 0;
        o.pieces = i / 16 == 2 ? 1 + i % 5 : 0;
        test_way(&o);
    }
}

/* Tests that skip_nonfinite is refused with update_in_backward, whose updates come before the norm of the gradients
 * is known. */
static void test_refused(void)
{
    way o = { .micro = ROWS };
    net m;
    make(&m, &o, NULL, 0);
    gckpt_exec_free(m.e);
    gckpt_plan_free(m.p);
    gckpt_tensor *w = gckpt_param(m.g, "w", gckpt_shape2(IN, OUT), (gckpt_init){ 0, 0, 0 });
    gckpt_term term = { gckpt_mean_squared_error(gckpt_linear(m.x, w, NULL), m.y, NULL), 1, 0 };
    gckpt_plan_desc d = { .update_in_backward = 1 };
    gckpt_exec_desc x = { .skip_nonfinite = 1 };
    m.p = gckpt_plan_new(m.g, &term, 1, &d);
    m.e = gckpt_exec_new(m.p, m.s, &x);
    CHECK(m.p && !m.e && gckpt_error(m.s) == GCKPT_E_ARG);
    CHECK_MSG(strstr(gckpt_error_text(m.s), "skip_nonfinite needs all gradients"), "%s", gckpt_error_text(m.s));
    util_free(m.e, m.p, m.g, m.s);
}

int main(void)
{
    test_ways();
    test_refused();
    return check_report("test_skip");
}
