/* test_special.c - compares elementwise ops with PyTorch (golden/make_special.py) at kinks, poles and ties, and at
 * NaN, infinities, zeros and subnormals, on every instruction set of this machine. NaN, infinities and the sign of
 * zeros must be equal; the exceptions are maximum and minimum of 0 and -0, where PyTorch's vector and scalar code
 * differ, and zeros that are the sum of terms. Other values may differ by 4 units in the last place (of the terms, if
 * terms cancel), since both libraries round in a few steps. */
#include "gradckpt.h"
#include "util.h"
#include "golden/special.h"
#include <math.h>
#include <string.h>

enum { CASES = sizeof special_cases / sizeof special_cases[0] };

static gckpt_tensor *build(const special_case *c, gckpt_tensor *a, gckpt_tensor *b)
{
    static const struct {
        const char *name;
        gckpt_tensor *(*one)(gckpt_tensor *x);
        gckpt_tensor *(*two)(gckpt_tensor *a, gckpt_tensor *b);
    } ops[] = {
#define UNARY(name, ...) { #name, gckpt_##name, NULL },
                UNARY_TESTS(UNARY)
#undef UNARY
                { "log_softmax", gckpt_log_softmax, NULL },
                { "div", NULL, gckpt_div },
                { "prelu", NULL, gckpt_prelu },
                { "maximum", NULL, gckpt_maximum },
                { "minimum", NULL, gckpt_minimum } };
    if (!strcmp(c->name, "pow"))
        return gckpt_pow(a, c->by[0]);
    if (!strcmp(c->name, "clamp"))
        return gckpt_clamp(a, c->by[0], c->by[1]);
    if (!strcmp(c->name, "leaky_relu"))
        return gckpt_activation(a, GCKPT_LEAKY_RELU, c->by[0]);
    if (!strcmp(c->name, "elu"))
        return gckpt_activation(a, GCKPT_ELU, c->by[0]);
    if (!strcmp(c->name, "where"))
        return gckpt_where(a, a, b);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(c->name, ops[i].name))
            return ops[i].two ? ops[i].two(a, b) : ops[i].one(a);
    return NULL;
}

/* Returns whether `got` is close enough to `want`. `most`: size of the terms that cancel in this result, to which the
 * absolute error is relative. */
static int near(float got, float want, double most, int signs)
{
    double bound = 4.0 / 16777216.0 * fmax(fabs((double)want), most) + 4.0 / 16777216.0 * 1.2e-38;
    if (got != got || want != want)
        return got != got && want != want;
    if (want == 0 && most == 0)
        return got == 0 && (!signs || !signbit(got) == !signbit(want));
    return got == want || (fabsf(want) < INFINITY && fabs((double)got - (double)want) <= bound);
}

static void compare(const special_case *c, const char *isa, const char *what, const float *got,
                    const float *want)
{
    double most = 0;
    const int value = want == c->y, cancels = c->cancels & (value ? 1 : 2),
              signs = strcmp(c->name, "maximum") && strcmp(c->name, "minimum") && !cancels;
    for (int i = 0; i < c->n && !strcmp(c->name, "log_softmax"); i++)
        most = fmax(most, fabs((double)c->g[i]) * 8);
    for (int i = 0; i < c->n && CHECK_MSG(got != NULL, "%s: no %s", c->name, what); i++) {
        const double x = fmin(fabs((double)c->x[0][i]), 20); /* a greater x leaves one of the terms */
        if (cancels)
            most = value ? x : fmax(x, 1) * fabs((double)c->g[i]);
        CHECK_MSG(near(got[i], want[i], most, signs),
                  "%s %g %g, %s: %s at (%.9g, %.9g), g = %g: %.9g, not %.9g", c->name,
                  (double)c->by[0], (double)c->by[1], isa, what, (double)c->x[0][i],
                  (double)(c->x[1] ? c->x[1][i] : 0), (double)c->g[i], (double)got[i],
                  (double)want[i]);
    }
}

static void test_case(const special_case *c, gckpt_isa isa)
{
    const gckpt_init one = { 0, 0, 1 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *in[3] = { NULL, NULL, NULL }, *h[2] = { NULL, NULL };
    gckpt_feed feeds[3];
    gckpt_fetch_spec fetches[3];
    for (int i = 0; i < 3; i++) { /* i selects the array: operands a and b, and the gradient g of the output */
        static const char *const names[] = { "a", "b", "g" };
        in[i] = gckpt_input(graph, names[i], GCKPT_F32, gckpt_shape2(1, c->n));
        feeds[i] = (gckpt_feed){ gckpt_id(in[i]), i == 2 ? c->g : c->x[i < c->inputs ? i : 0] };
        if (i < 2) {
            h[i] = gckpt_mul(in[i], gckpt_param(graph, "one", gckpt_shape1(1), one));
            fetches[1 + i] = (gckpt_fetch_spec){ h[i], 1 };
        }
    }
    gckpt_tensor *y = build(c, h[0], h[1]);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, in[2])), 1, 0 };
    fetches[0] = (gckpt_fetch_spec){ y, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_MEMORY_POOR, .fetch.specs = fetches, .fetch.count = 1 + c->inputs };
    gckpt_exec_desc how = { .isa = isa };
    gckpt_hyper still = { 0 };
    gckpt_plan *plan = gckpt_plan_new(graph, &term, 1, &desc);
    CHECK_MSG(plan != NULL, "%s: %s", c->name, gckpt_error_text(graph));
    gckpt_exec *exec = gckpt_exec_new(plan, store, &how);
    CHECK_MSG(gckpt_step(exec, feeds, 3, 1, &still, NULL) == GCKPT_OK, "%s: %s", c->name,
              gckpt_error_text(exec));
    compare(c, isa_name(isa), "value", gckpt_fetch(exec, gckpt_id(y), 0), c->y);
    for (int i = 0; i < c->inputs; i++)
        compare(c, isa_name(isa), i ? "second gradient" : "gradient",
                gckpt_fetch(exec, gckpt_id(h[i]), 1), c->d[i]);
    util_free(exec, plan, graph, store);
}

/* Checks that each op of tests/unary.h has a case; without one, run golden/make_special.py. */
static void test_complete(void)
{
#define UNARY(name, ...) #name,
    static const char *const names[] = { UNARY_TESTS(UNARY) };
#undef UNARY
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int i = 0;
        while (i < CASES && strcmp(special_cases[i].name, names[k]))
            i++;
        CHECK_MSG(i < CASES, "special.h has no case of %s: run make_special.py", names[k]);
    }
}

int main(void)
{
    test_complete();
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
        for (int i = 0; i < CASES && gckpt_isa_available((gckpt_isa)isa); i++)
            test_case(&special_cases[i], (gckpt_isa)isa);
    return check_report("special values");
}
