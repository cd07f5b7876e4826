/* anomaly.c - watches a machine for faults. An autoencoder of widths 16-8-3-8-16 was trained on the
 * host to reproduce vibrations of the healthy machine. It reproduces other vibrations badly, so a
 * row with a large error is an anomaly. The chip does not train: weights stay in flash, and the
 * code for training is omitted (GCKPT_NO_TRAINING). If PLAN is defined, the program trains on the
 * host, determines the largest error of healthy rows, and prints weights and plan. */
#include "job.h"
#include "anomaly.h"

enum { ROWS = 64, EVERY = 8 };

/* Returns the mean squared error of the network's output for a row, or a negative number if a call
 * failed. x and y are the ids of the network's input and output. */
static float error_of(gckpt_exec *e, int x, int y, const float row[READINGS])
{
    const gckpt_feed feed = { x, row };
    const float *back =
        gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK ? gckpt_fetch(e, y, 0) : NULL;
    float sum = 0;
    for (int i = 0; i < READINGS && back; i++) {
        const float d = row[i] - back[i];
        sum = gckpt_fma(d, d, sum);
    }
    return back ? sum / READINGS : -1.0f;
}

#ifdef PLAN
enum { STEPS = 1500, NORMAL = 500, LAYERS = 4 };

typedef struct {
    const char *weight, *bias;
    int in, out;
} layer;

static const layer layers[LAYERS] = { { "w1", "b1", READINGS, 8 },
                                      { "w2", "b2", 8, 3 },
                                      { "w3", "b3", 3, 8 },
                                      { "w4", "b4", 8, READINGS } };

static gckpt_tensor *autoencoder(gckpt_graph *g, gckpt_tensor *x)
{
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &layers[i];
        const gckpt_init normal = { i == LAYERS - 1 ? 0.3f : 0.5f, 0, 0 }, zero = { 0, 0, 0 };
        x = gckpt_linear(x, gckpt_param(g, l->weight, gckpt_shape2(l->in, l->out), normal),
                         gckpt_param(g, l->bias, gckpt_shape1(l->out), zero));
        x = i == LAYERS - 1 ? gckpt_name(x, "back") : gckpt_tanh(x);
    }
    return x;
}

/* Trains the network. Returns 1 after an error, else 0. */
static int train(gckpt_store *s)
{
    static float rows[ROWS][READINGS];
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, READINGS));
    const gckpt_term term = { gckpt_mean_squared_error(autoencoder(g, x), x, NULL), 1, 0 };
    gckpt_exec *e = gckpt_exec_new(gckpt_plan_new(g, &term, 1, NULL), s, NULL);
    const gckpt_feed feed = { gckpt_id(x), rows };
    for (uint32_t step = 0; step < STEPS; step++) {
        const gckpt_hyper hyper = gckpt_hyper_lr(gckpt_lr_cosine(step, 20, STEPS, 0.02f, 0));
        for (uint32_t i = 0; i < ROWS; i++)
            sense(1000 + step * ROWS + i, HEALTHY, rows[i]);
        if (gckpt_step(e, &feed, 1, ROWS, &hyper, NULL) != GCKPT_OK)
            return 1;
    }
    return 0;
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    float row[READINGS], worst = 0;
    if (train(s) || gckpt_store_freeze(s, "*", 1) != GCKPT_OK ||
        weights_print(s, "weights", job_to_stdout, NULL) != GCKPT_OK)
        return 1;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, READINGS));
    const gckpt_fetch_spec back = { autoencoder(g, x), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &back, .fetch.count = 1 };
    gckpt_exec *e = gckpt_exec_new(gckpt_plan_new(g, NULL, 0, &desc), s, NULL);
    for (uint32_t i = 0; i < NORMAL; i++) {
        sense(500 + i, HEALTHY, row);
        const float error = error_of(e, gckpt_id(x), gckpt_id(back.tensor), row);
        worst = error > worst ? error : worst;
    }
    /* the limit is 1.2 times the largest error of a healthy row */
    printf("#define MOST_ERROR %.9gf\n", 1.2 * (double)worst);
    return job_print_plan(g, NULL, &desc);
}
#else
#include "anomaly_plan.h"

static char store_block[plan_store_bytes - weights_bytes], exec_block[plan_exec_bytes];

int main(void)
{
    float row[READINGS];
    uint64_t hash = 14695981039346656037u, instructions = 0;
    int anomalous = 0, right = 0, failed;
    job j;
    job_new_store(&j, store_block, sizeof store_block);
    failed =
        job_failed(&j, weights_bind(j.store)) || job_bind(&j, &plan, exec_block, sizeof exec_block);
    for (uint32_t i = 0; i < ROWS && !failed; i++) {
        const int faulty = i % EVERY == EVERY - 1;
        sense(i, faulty ? (machine_fault)(1 + i / EVERY % STUCK) : HEALTHY, row);
        const uint64_t began = board_instructions();
        const float error = error_of(j.exec, plan_x, plan_back, row);
        instructions += board_instructions() - began;
        failed = error < 0 && job_failed(&j, gckpt_error(j.exec));
        uint32_t bits;
        memcpy(&bits, &error, sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
        anomalous += error > MOST_ERROR;
        right += (error > MOST_ERROR) == faulty;
    }
    job_print_line("normal ", (uint32_t)(ROWS - anomalous));
    job_print_line("anomalous ", (uint32_t)anomalous);
    job_print_line("right ", (uint32_t)right);
    board_print("outputs ");
    job_print_hash(hash);
    job_print_board(instructions / ROWS);
    return failed;
}
#endif
