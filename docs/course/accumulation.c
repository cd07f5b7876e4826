/* Lesson 4: trains on one batch in parts, with the same bits, unless it averages means. */
#include "gradckpt.h"
#include <stdio.h>

enum { ROWS = 8, T = 6, CLASSES = 10 };
static int32_t token[ROWS][T], next[ROWS][T]; /* next: -1 after the end of a sentence */
static float weight[ROWS];                    /* of the loss of a row */

/* Trains ten steps with at_once rows at a time; returns a hash of all weights. */
static unsigned long long train(int at_once, double *loss)
{
    const gckpt_init small = { 0.1f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "token", GCKPT_I32, gckpt_shape2(at_once, T));
    gckpt_tensor *out = gckpt_input(g, "next", GCKPT_I32, gckpt_shape2(at_once, T));
    gckpt_tensor *row_weight = gckpt_input(g, "weight", GCKPT_F32, gckpt_shape1(at_once));
    gckpt_tensor *x = gckpt_embed(gckpt_param(g, "table", gckpt_shape2(CLASSES, 16), small), in);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(16, CLASSES), small);
    gckpt_term term = { gckpt_cross_entropy(gckpt_linear(x, w, NULL), out, row_weight, 0), 1, 0 };
    const gckpt_plan_desc desc = { .batch = ROWS }; /* rows of a step: ROWS / at_once micro-batches */
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_feed feeds[3] = { { gckpt_id(in), token },
                                  { gckpt_id(out), next },
                                  { gckpt_id(row_weight), weight } };
    const gckpt_hyper adamw = gckpt_hyper_lr(0.02f);
    gckpt_report r = { 0, 0, 0, 0 };
    for (int step = 0; step < 10; step++)
        if (gckpt_step(e, feeds, 3, ROWS, &adamw, &r) != GCKPT_OK)
            printf("%s\n", gckpt_error_text(e));
    const unsigned long long hash = gckpt_store_hash(s);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    *loss = r.loss;
    return hash;
}

int main(void)
{
    int length[ROWS], all = 0;
    for (int r = 0; r < ROWS; r++) {
        all += length[r] = 1 + r * 5 % T;
        for (int t = 0; t < T; t++) {
            token[r][t] = (r * 3 + t * 7) % CLASSES;
            next[r][t] = t < length[r] ? (token[r][t] + 1) % CLASSES : -1;
        }
    }
    for (int fault = 0; fault < 2; fault++)
        for (int at_once = ROWS; at_once >= 1; at_once /= 4) {
            for (int r = 0; r < ROWS; r++) {
                int part = 0; /* targets in this row's micro-batch */
                for (int k = r - r % at_once; k < r - r % at_once + at_once; k++)
                    part += length[k];
                /* The library divides the sum by `all`; a mean of means divides by each `part`. */
                weight[r] = fault ? (float)(all * at_once) / (float)(part * ROWS) : 1;
            }
            double loss;
            const unsigned long long hash = train(at_once, &loss);
            printf("%s, %d rows at once: loss %.4f, weights %016llx\n",
                   fault ? "mean of means" : "divided once ", at_once, loss, hash);
        }
    return 0;
}
