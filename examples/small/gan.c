/* gan.c - a generator and a discriminator (Goodfellow 2014), two optimisers on one store: freeze
 * one, plan the other's training; then the other way round. The generator learns to make points of
 * a ring from noise. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "layers.h"

enum { ROWS = 128, NOISE = 4, STEPS = 3000 };

static float noise[ROWS][NOISE], points[2 * ROWS][2]; /* points: real ones, then made ones */
static float yes[ROWS][1], label[2 * ROWS][1];

static float draw(void) /* -1 to 1 */
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608 - 1;
}

static gckpt_tensor *mlp(gckpt_tensor *x, const char *name, int64_t out)
{
    const int64_t widths[] = { 32, 32, out };
    return layers_mlp(x, name, widths, 3, 0);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *of_g = gckpt_graph_new(s, NULL), *of_d = gckpt_graph_new(s, NULL);
    gckpt_tensor *z = gckpt_input(of_g, "noise", GCKPT_F32, gckpt_shape2(ROWS, NOISE));
    gckpt_tensor *be = gckpt_input(of_g, "yes", GCKPT_F32, gckpt_shape2(ROWS, 1));
    gckpt_tensor *made = mlp(z, "g", 2);
    gckpt_term fool = { gckpt_binary_cross_entropy(mlp(made, "d", 1), be, NULL), 1, 0 };
    gckpt_tensor *x = gckpt_input(of_d, "points", GCKPT_F32, gckpt_shape2(2 * ROWS, 2));
    gckpt_tensor *real = gckpt_input(of_d, "label", GCKPT_F32, gckpt_shape2(2 * ROWS, 1));
    gckpt_term tell = { gckpt_binary_cross_entropy(mlp(x, "d", 1), real, NULL), 1, 0 };

    gckpt_pick pick = { made, 0 };
    gckpt_plan_desc desc = { .fetch = &pick, .fetches = 1 };
    gckpt_store_freeze(s, "d.*", 1); /* a plan trains what is not frozen when it is made */
    gckpt_plan *g_plan = gckpt_plan_new(of_g, &fool, 1, &desc);
    gckpt_store_freeze(s, "d.*", 0);
    gckpt_store_freeze(s, "g.*", 1);
    gckpt_plan *d_plan = gckpt_plan_new(of_d, &tell, 1, NULL);
    gckpt_store_freeze(s, "g.*", 0);
    gckpt_exec *g = gckpt_exec_new(g_plan, s, NULL), *d = gckpt_exec_new(d_plan, s, NULL);

    gckpt_feed g_feeds[] = { { gckpt_id(z), noise }, { gckpt_id(be), yes } };
    gckpt_feed d_feeds[] = { { gckpt_id(x), points }, { gckpt_id(real), label } };
    gckpt_hyper hyper = gckpt_hyper_lr(1e-3f);
    gckpt_report r = { 0, 0, 0, 0 };
    int wrong = 0, near = 0, quarter[4] = { 0, 0, 0, 0 };
    hyper.beta1 = 0.5f; /* Radford 2016 */
    gckpt_collect(g, gckpt_id(made), 0, points[ROWS], (size_t)ROWS * 2);
    for (int step = 0; step < STEPS && !wrong; step++) {
        for (int i = 0; i < ROWS; i++) { /* on a square's diagonals first, then on the ring */
            for (int k = 0; k < NOISE; k++)
                noise[i][k] = draw();
            float a, b, n;
            do {
                a = draw(), b = draw(), n = a * a + b * b;
            } while (n < 0.8f || n > 1);
            points[i][0] = a, points[i][1] = b;
            yes[i][0] = label[i][0] = 1;
        }
        hyper.lr = gckpt_lr_cosine((uint64_t)step, 0, STEPS, 2e-3f, 1e-4f); /* r.step counts both */
        wrong = gckpt_step(g, g_feeds, 2, ROWS, &hyper, &r) != GCKPT_OK ||
                gckpt_step(d, d_feeds, 2, 2 * (int64_t)ROWS, &hyper, &r) != GCKPT_OK;
    }
    for (int i = ROWS; i < 2 * ROWS; i++) {
        const float n = points[i][0] * points[i][0] + points[i][1] * points[i][1];
        near += n > 0.6f && n < 1.2f;
        quarter[(points[i][0] > 0) + 2 * (points[i][1] > 0)]++;
    }
    printf("%d of %d points are near the ring, %d %d %d %d by quarter; %s\n", near, ROWS,
           quarter[0], quarter[1], quarter[2], quarter[3], gckpt_error_text(wrong ? g : d));
    gckpt_exec_free(g), gckpt_exec_free(d), gckpt_plan_free(g_plan), gckpt_plan_free(d_plan);
    gckpt_graph_free(of_g), gckpt_graph_free(of_d), gckpt_store_free(s);
    return wrong || near < ROWS * 3 / 4;
}
