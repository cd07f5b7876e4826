/* Lesson 1: computes the gradient of a neuron by the backward and by nudging. */
#include "gradckpt.h"
#include <stdio.h>

int main(void)
{
    const float x_data[2] = { 2, 1 }, wanted[1] = { 0.2f };
    const gckpt_init half = { 0, 0, 0.5f };
    gckpt_store *s = gckpt_store_new(NULL);    /* contains the weights */
    gckpt_graph *g = gckpt_graph_new(s, NULL); /* the computation */
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 2));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(2, 1), half);
    gckpt_tensor *out = gckpt_tanh(gckpt_linear(x, w, NULL)); /* tanh(x1 w1 + x2 w2) */
    gckpt_term loss = { gckpt_mean_squared_error(out, y, NULL), 1, 0 };
    const gckpt_fetch_spec fetches[2] = { { out, 0 }, { w, 1 } };
    gckpt_plan_desc desc = { .fetch.specs = fetches, .fetch.count = 2 };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(x), x_data }, { gckpt_id(y), wanted } };
    gckpt_report now, up, down;
    gckpt_parameter weights;
    if (gckpt_gradients(e, feeds, 2, 1, &now) != GCKPT_OK)
        return printf("%s\n", gckpt_error_text(e)), 1;
    const float value = gckpt_fetch(e, gckpt_id(out), 0)[0];
    const float dw[2] = { gckpt_fetch(e, gckpt_id(w), 1)[0], gckpt_fetch(e, gckpt_id(w), 1)[1] };
    printf("out %.4f, loss %.4f\n", value, now.loss);
    gckpt_store_get(s, 0, &weights); /* weights.values is writable */
    for (int i = 0; i < 2; i++) {
        const float was = weights.values[i], nudge = 1.0f / 1024;
        weights.values[i] = was + nudge;
        gckpt_gradients(e, feeds, 2, 1, &up);
        weights.values[i] = was - nudge;
        gckpt_gradients(e, feeds, 2, 1, &down);
        weights.values[i] = was;
        printf("dloss/dw%d: %.3f by the backward, %.3f by nudging\n", i + 1, dw[i],
               (up.loss - down.loss) / (2 * nudge));
    }
    gckpt_hyper downhill = gckpt_hyper_lr(0.05f);
    for (int step = 0; step < 40; step++)
        gckpt_step(e, feeds, 2, 1, &downhill, &now);
    printf("after 40 steps: loss %.4f, w %.3f %.3f\n", now.loss, weights.values[0],
           weights.values[1]);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return 0;
}
