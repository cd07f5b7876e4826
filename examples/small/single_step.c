/* single_step.c - runs a training step one instruction at a time, for teaching. The network is one
 * neuron, tanh(x w + b). After each instruction the program prints the values and gradients that
 * have become available, also the gradient of the input x; gckpt_fetch returns NULL for all others.
 * The numbers are those of micrograd's first example (A. Karpathy). */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>
#include <string.h>

static int differs(const float *got, float first, float second)
{
    const float d = got[0] - first, e = second - got[1];
    return d > 1e-4f || d < -1e-4f || e > 1e-4f || e < -1e-4f;
}

int main(void)
{
    static const char *const kinds[] = { "forward of", "backward of", "update of" };
    static const float weights[] = { -3, 1 }, row[] = { 2, 0 };
    const gckpt_init zero = { 0, 0, 0 }, eight = { 0, 0, 6.8813735870195432f };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 2));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(2, 1), zero);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(1), eight);
    gckpt_tensor *n = gckpt_name(gckpt_linear(x, w, b), "n");
    gckpt_tensor *out = gckpt_name(gckpt_tanh(n), "out");
    const gckpt_term term = { gckpt_sum_loss(out), 1, 0 };
    const struct {
        gckpt_fetch_spec pick;
        const char *name;
        int size;
    } shown[] = { { { n, 0 }, "n", 1 },  { { out, 0 }, "out", 1 }, { { out, 1 }, "dout", 1 },
                  { { n, 1 }, "dn", 1 }, { { x, 1 }, "dx", 2 },    { { w, 1 }, "dw", 2 },
                  { { b, 1 }, "db", 1 } };
    enum { SHOWN = sizeof shown / sizeof shown[0] };
    gckpt_fetch_spec fetches[SHOWN];
    for (int i = 0; i < SHOWN; i++)
        fetches[i] = shown[i].pick;
    const gckpt_plan_desc desc = { .fetch = { fetches, SHOWN }, .optimiser = GCKPT_SGD };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_parameter parameter;
    if (e == NULL || gckpt_store_get(s, 0, &parameter) != GCKPT_OK) {
        printf("%s\n", gckpt_error_text(p == NULL ? (const void *)g : s));
        return 1;
    }
    memcpy(parameter.values, weights, sizeof weights);
    const gckpt_feed feed = { gckpt_id(x), row };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    int known[SHOWN] = { 0 }, wrong = 0;
    gckpt_result result = GCKPT_MORE;
    wrong |= gckpt_step_start(e, &feed, 1, 1, &hyper) != GCKPT_OK;
    while (result == GCKPT_MORE) {
        const gckpt_instruction next = gckpt_next_instruction(e);
        result = gckpt_run_some(e, 1, NULL);
        if (next.id < 0) /* it has no tensor: BEGIN, NEXT, BARRIER, or the end of the step */
            continue;
        printf("%-11s %-9s", kinds[next.kind], gckpt_plan_name(p, next.id));
        for (int i = 0; i < SHOWN; i++) {
            const float *at = gckpt_fetch(e, gckpt_id(fetches[i].tensor), fetches[i].gradient);
            if (at != NULL && !known[i])
                printf(shown[i].size == 2 ? "  %s = (%g, %g)" : "  %s = %g", shown[i].name,
                       (double)at[0], (double)at[shown[i].size - 1]);
            known[i] = at != NULL;
        }
        printf("\n");
    }
    wrong |= result != GCKPT_OK;
    for (int i = 0; i < SHOWN; i++)
        wrong |= !known[i];
    wrong = wrong || differs(gckpt_fetch(e, gckpt_id(x), 1), -1.5f, 0.5f) ||
            differs(gckpt_fetch(e, gckpt_id(w), 1), 1, 0) || differs(parameter.values, -3.1f, 1);
    printf("w is (%g, %g) now\n", (double)parameter.values[0], (double)parameter.values[1]);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return wrong;
}
