/* test_gradients.c - gradients of inputs, of constants and of what is frozen; what gckpt_fetch has and when;
 * gckpt_collect; gckpt_gradients; GCKPT_DEBUG_FINITE. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "net.h"

#include <math.h>

#include "golden/gradients.h"

enum { ROWS = 6, IN = 8, WIDE = 10, OUT = 5, REPEAT = 23 };

/* As make_gradients.py has them. */
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

/* ---- rows of 8 to 5 classes: x k + k -> linear -> layernorm -> gelu -> linear -> cross-entropy ---- */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *x, *k, *y, *h, *logits;
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
    gckpt_tensor *w1 = gckpt_param(m->g, "w1", gckpt_shape2(IN, WIDE), none);
    gckpt_tensor *b1 = gckpt_param(m->g, "b1", gckpt_shape1(WIDE), none);
    gckpt_tensor *gain = gckpt_param(m->g, "gain", gckpt_shape1(WIDE), none);
    gckpt_tensor *w2 = gckpt_param(m->g, "w2", gckpt_shape2(WIDE, OUT), none);
    m->h = gckpt_linear(gckpt_add(gckpt_mul(m->x, m->k), m->k), w1, b1);
    m->h = gckpt_name(gckpt_gelu(gckpt_layernorm(m->h, gain, NULL)), "h");
    m->logits = gckpt_linear(m->h, w2, NULL);
    m->term = (gckpt_term){ gckpt_cross_entropy(m->logits, m->y), 1, 0 };
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
    rig_free(m->e, m->p, m->g, m->s);
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
            gckpt_pick picks[2] = { { m.x, 1 }, { m.k, 1 } };
            gckpt_plan_desc d = { .batch = ROWS, .fetch = picks, .fetches = 2 };
            if (frozen)
                gckpt_store_freeze(m.s, "*", 1);
            plan(&m, &d, NULL);
            CHECK(gckpt_collect(m.e, gckpt_id(m.x), 1, dx, ROWS * IN) == GCKPT_OK);
            CHECK(gckpt_gradients(m.e, f, feed(&m, 0, f), ROWS, &report) == GCKPT_OK);
            CHECK(report.count == 5 && report.step == 0 && gckpt_store_step(m.s) == 0);
            CHECK(fabs(report.loss * 5 / golden_classes_loss[0] - 1) < 1e-6);
            CHECK(frozen == !(report.grad_norm > 0));
            CHECK(near(dx, golden_classes_dx, ROWS * IN));
            CHECK(near(gckpt_fetch(m.e, gckpt_id(m.k), 1), golden_classes_dk, IN));
            drop(&m);
        }
}

int main(void)
{
    test_golden();
    return check_report("test_gradients");
}
