/* gru.c - a recurrent network learns to add the two marked numbers of a sequence of 12 (Hochreiter
 * & Schmidhuber 1997). It is trained twice, without a limit and in 40 % of the bytes, and both
 * trainings give the same weights. Each time step is built from single ops, which a plan can keep
 * or recompute; the op gckpt_gru instead computes all time steps at once. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../layers.h"

enum { ROWS = 64, STEPS = 12, HIDDEN = 24 };

static float x[ROWS][STEPS][2], sum[ROWS][1];

/* Draws new sequences: numbers from 0 to 1, two of them marked by a 1 in the second channel. */
static void draw(uint32_t *state)
{
    for (int i = 0; i < ROWS; i++) {
        for (int t = 0; t < STEPS; t++) {
            *state = *state * 1664525u + 1013904223u; /* constants from Numerical Recipes */
            x[i][t][0] = (float)(*state >> 8) / 16777216;
            x[i][t][1] = 0;
        }
        const uint32_t a = *state >> 10 & 1023, one = a % (STEPS / 2);
        const uint32_t two = STEPS / 2 + a / 8 % (STEPS / 2);
        x[i][one][1] = x[i][two][1] = 1;
        sum[i][0] = x[i][one][0] + x[i][two][0];
    }
}

/* Trains within `budget` bytes (0 for no limit). Returns the bytes used. */
static size_t train(size_t budget, double *loss, uint64_t *hash)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(ROWS, STEPS, 2));
    gckpt_tensor *target = gckpt_input(g, "sum", GCKPT_F32, gckpt_shape2(ROWS, 1)), *h = NULL;
    /* the parameters of all time steps have the same names, so the steps share weights */
    for (int t = 0; t < STEPS; t++)
        h = layers_gru_cell(gckpt_sum(gckpt_slice(in, 1, t, t + 1), 1), h, "gru", HIDDEN);
    gckpt_term term = { gckpt_mean_squared_error(layers_dense(h, "out", 1), target, NULL), 1, 0 };
    static gckpt_plan_desc desc;
    desc.budget = budget;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const size_t bytes = gckpt_plan_bytes(p);
    if (e == NULL)
        printf("%s\n", gckpt_error_text(p == NULL ? (const void *)g : s));
    gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), sum } };
    gckpt_hyper hyper = gckpt_hyper_lr(1e-2f);
    gckpt_report report = { 0, 0, 0, 0 };
    uint32_t state = 1;
    *loss = 1;
    hyper.clip = 1; /* limits the norm of the gradient, which recurrent networks need */
    for (int step = 0; e != NULL && step < 300; step++) {
        /* sequences are never used twice, so the loss of a step is a validation loss */
        draw(&state);
        if (gckpt_step(e, feeds, 2, ROWS, &hyper, &report) != GCKPT_OK)
            printf("%s\n", gckpt_error_text(e));
        *loss = 0.95 * *loss + 0.05 * report.loss;
    }
    *hash = gckpt_store_hash(s);
    printf("%zu bytes: loss %.4f, weights %016llx\n", bytes, *loss, (unsigned long long)*hash);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return bytes;
}

int main(void)
{
    double loss[2];
    uint64_t hash[2];
    const size_t most = train(0, &loss[0], &hash[0]);
    train(most / 5 * 2, &loss[1], &hash[1]);
    /* a network that always predicts the mean has a loss of 0.167 */
    return hash[0] != hash[1] || loss[0] != loss[1] || !(loss[0] < 0.01);
}
