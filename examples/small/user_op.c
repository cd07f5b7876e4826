/* user_op.c - a user-defined op: the pinball loss (Koenker & Bassett 1978), which is minimal at a
 * quantile. For each x the network learns the value below which 90 of 100 targets lie. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../gradcheck.h"
#include "../layers.h"

enum { ROWS = 512 };

/* Shape rule of the op: from prediction and target, both (rows,1), it computes a scalar loss. */
static gckpt_result pinball_shape(gckpt_call *call)
{
    const gckpt_shape *p = &call->in[0].shape, *y = &call->in[1].shape;
    if (p->n != 2 || p->d[1] != 1 || y->n != 2 || y->d[1] != 1)
        return gckpt_fail(call, GCKPT_E_SHAPE, "pinball: %S, %S: wanted twice (rows,1)", p, y);
    call->shape.n = 0; /* a loss is a scalar */
    return GCKPT_OK;
}

/* Forward: a row with d = target - prediction costs q d if d > 0, else (q - 1) d (quantile q). */
static void pinball_forward(const gckpt_call *call)
{
    const float q = *(const float *)call->attributes;
    for (int64_t i = 0; call->loss_sum != NULL && i < call->rows; i++) {
        const float d = call->in[1].data[i] - call->in[0].data[i];
        *call->loss_sum += (double)((d > 0 ? q : q - 1) * d);
        *call->loss_count += 1;
    }
}

static void pinball_backward(const gckpt_call *call)
{
    const float q = *(const float *)call->attributes;
    const gckpt_arg *in = call->in;
    for (int64_t i = 0; in[0].grad != NULL && i < call->rows; i++) {
        const float grad = (in[1].data[i] > in[0].data[i] ? -q : 1 - q) * call->loss_scale;
        in[0].grad[i] = in[0].accumulate ? in[0].grad[i] + grad : grad;
    }
}

static const gckpt_op pinball = { .name = "pinball",
                                  .shape = pinball_shape,
                                  .forward = pinball_forward,
                                  .backward = pinball_backward,
                                  .needs = { GCKPT_IN(0) | GCKPT_IN(1) }, /* for input 0 */
                                  .flags = GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS };

int main(void)
{
    static float x[ROWS][1], y[ROWS][1], q = 0.9f;
    uint32_t state = 1, below = 0;
    for (int i = 0; i < ROWS; i++) { /* for each x, targets y are uniform in 0 to 1 + x */
        x[i][0] = (float)i / ROWS;
        state = state * 1664525u + 1013904223u;
        y[i][0] = (1 + x[i][0]) * (float)(state >> 8) / 16777216;
    }
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in[2], *x_in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 1));
    in[0] = layers_dense(gckpt_tanh(layers_dense(x_in, "fc1", 16)), "fc2", 1);
    in[1] = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(ROWS, 1));
    gckpt_term term = { gckpt_apply(&pinball, in, 2, &q, sizeof q), 1, 0 };
    gckpt_plan_desc desc = { .fetch = { &(gckpt_fetch_spec){ in[0], 0 }, 1 } };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(x_in), x }, { gckpt_id(in[1]), y } };
    gradcheck_result check;
    int wrong = gradcheck(s, &term, 1, NULL, feeds, 2, ROWS, &check) != GCKPT_OK;
    printf("gradients against finite differences: %s, %g\n", check.text, check.worst);
    for (int step = 0; step < 400; step++) {
        const gckpt_hyper hyper = gckpt_hyper_lr(gckpt_lr_cosine((uint64_t)step, 0, 400, 1e-2f, 0));
        wrong |= gckpt_step(e, feeds, 2, ROWS, &hyper, NULL) != GCKPT_OK;
    }
    for (int i = 0; i < ROWS && !wrong; i++)
        below += y[i][0] < gckpt_fetch(e, gckpt_id(in[0]), 0)[i];
    printf("%.1f %% lie below\n", 100.0 * below / ROWS);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return wrong || below < ROWS * 87 / 100 || below > ROWS * 93 / 100;
}
