/* gan.c - a generator and a discriminator (Goodfellow 2014) with two optimisers on one store. There
 * are two plans; each one trains one network while the other network is frozen. The generator
 * learns to generate random numbers with a mean of 3 and a standard deviation of 0.5. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../layers.h"

enum { ROWS = 128, NOISE = 4, STEPS = 1500 };

static float noise[ROWS][NOISE], number[2 * ROWS][1]; /* number: real ones, then generated */
static float yes[ROWS][1], label[2 * ROWS][1]; /* real is 1; yes is always 1 */

static float draw(void) /* returns a random number, uniform in -1 to 1 */
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608 - 1;
}

static gckpt_tensor *mlp(gckpt_tensor *x, const char *name)
{
    static const int64_t widths[] = { 24, 24, 1 };
    return layers_mlp(x, name, widths, 3, 0);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g_graph = gckpt_graph_new(s, NULL), *d_graph = gckpt_graph_new(s, NULL);
    gckpt_tensor *z = gckpt_input(g_graph, "noise", GCKPT_F32, gckpt_shape2(ROWS, NOISE));
    gckpt_tensor *real = gckpt_input(g_graph, "yes", GCKPT_F32, gckpt_shape2(ROWS, 1));
    gckpt_tensor *fake = mlp(z, "g");
    const gckpt_term g_loss = { gckpt_binary_cross_entropy(mlp(fake, "d"), real, NULL), 1, 0 };
    gckpt_tensor *x = gckpt_input(d_graph, "number", GCKPT_F32, gckpt_shape2(2 * ROWS, 1));
    gckpt_tensor *labels = gckpt_input(d_graph, "label", GCKPT_F32, gckpt_shape2(2 * ROWS, 1));
    const gckpt_term d_loss = { gckpt_binary_cross_entropy(mlp(x, "d"), labels, NULL), 1, 0 };

    const gckpt_fetch_spec pick = { fake, 0 };
    const gckpt_plan_desc desc = { .fetch.specs = &pick, .fetch.count = 1 };
    gckpt_store_freeze(s, "d.*", 1); /* a plan trains parameters that are not frozen now */
    gckpt_plan *g_plan = gckpt_plan_new(g_graph, &g_loss, 1, &desc);
    gckpt_store_freeze(s, "d.*", 0);
    gckpt_store_freeze(s, "g.*", 1);
    gckpt_plan *d_plan = gckpt_plan_new(d_graph, &d_loss, 1, NULL);
    gckpt_store_freeze(s, "g.*", 0);
    gckpt_exec *g = gckpt_exec_new(g_plan, s, NULL), *d = gckpt_exec_new(d_plan, s, NULL);

    const gckpt_feed g_feeds[] = { { gckpt_id(z), noise }, { gckpt_id(real), yes } };
    const gckpt_feed d_feeds[] = { { gckpt_id(x), number }, { gckpt_id(labels), label } };
    gckpt_hyper hyper[2] = { gckpt_hyper_lr(0), gckpt_hyper_lr(0) };
    gckpt_report report = { 0, 0, 0, 0 };
    double mean = 0, square = 0;
    hyper[0].beta1 = hyper[1].beta1 = 0.5f; /* the value for GANs of Radford 2016 */
    int failed = gckpt_collect(g, gckpt_id(fake), 0, number[ROWS], ROWS) != GCKPT_OK;
    for (int step = 0; step < STEPS && !failed; step++) {
        for (int i = 0; i < ROWS; i++) {
            for (int k = 0; k < NOISE; k++)
                noise[i][k] = draw();
            number[i][0] = 3 + 0.5f * (draw() + draw() + draw()); /* nearly normal distribution */
            yes[i][0] = label[i][0] = 1;
        }
        /* depends on the loop's step, because report.step counts the updates of both networks */
        const float fall = gckpt_lr_cosine((uint64_t)step, 0, STEPS, 1, 0.05f);
        hyper[0].lr = 1e-3f * fall;
        hyper[1].lr = 1e-2f * fall; /* a larger rate for the discriminator (Heusel 2017) */
        failed = gckpt_step(g, g_feeds, 2, ROWS, &hyper[0], &report) != GCKPT_OK ||
                 gckpt_step(d, d_feeds, 2, 2 * (int64_t)ROWS, &hyper[1], &report) != GCKPT_OK;
    }
    for (int i = ROWS; i < 2 * ROWS; i++) {
        mean += (double)number[i][0] / ROWS;
        square += (double)(number[i][0] * number[i][0]) / ROWS;
    }
    const double variance = square - mean * mean; /* real numbers have mean 3 and variance 0.25 */
    printf("made numbers: mean %.2f, variance %.2f; %s\n", mean, variance,
           gckpt_error_text(g == NULL || d == NULL ? (const void *)s : d));
    gckpt_exec_free(g), gckpt_exec_free(d), gckpt_plan_free(g_plan), gckpt_plan_free(d_plan);
    gckpt_graph_free(g_graph), gckpt_graph_free(d_graph), gckpt_store_free(s);
    return failed || !(mean > 2.8 && mean < 3.2 && variance > 0.15 && variance < 0.4);
}
