/* augment.c - regression with augmentation in a callback of examples/train.h. The network learns
 * the area of a triangle as a function of its corners, from only 128 measured triangles. The area
 * does not change if the corners are renumbered or the triangle is rotated or reflected. So each
 * epoch shows each triangle changed in these ways at random, which reduces the validation loss. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../layers.h"
#include "../train.h"

enum { MEASURED = 128, ROWS = MEASURED + 400 };
static float corners[ROWS][3][2], area[ROWS];

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 64, 64, 1 };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0);
    net->loss =
        gckpt_mean_squared_error(gckpt_reshape(net->output, gckpt_shape1(net->rows)), net->in[1], NULL);
}

/* Renumbers the corners of each triangle of a batch, rotates and reflects it, all at random. Epoch
 * 0 is the validation, whose triangles stay unchanged. */
static int augment(void *user, train_batch *b)
{
    (void)user;
    for (int64_t i = 0; b->epoch > 0 && i < b->n; i++) {
        float(*to)[2] = (float(*)[2])b->values[0] + 3 * i;
        const uint64_t random_bits = train_random(b, i, 0);
        for (int k = 0; k < 3; k++) {
            const float *from = corners[b->rows[i]][((uint64_t)k + random_bits / 8) % 3];
            to[k][0] = from[random_bits & 1] * (random_bits & 2 ? 1 : -1);
            to[k][1] = from[1 - (random_bits & 1)] * (random_bits & 4 ? 1 : -1);
        }
    }
    return 0;
}

static double train(int (*batch)(void *, train_batch *))
{
    train_data data = { { { "corners", GCKPT_F32, 6, corners }, { "area", GCKPT_F32, 0, area } },
                        ROWS,
                        ROWS - MEASURED }; /* all rows that are not measured ones validate */
    train_options o = train_defaults(3e-3f);
    train_report r;
    gckpt_store *s = gckpt_store_new(NULL);
    o.epochs = 200;
    o.schedule = SCHEDULE_ONE_CYCLE;
    o.print_every = 100;
    o.batch = batch;
    if (train_fit(s, model, &data, &o, &r) != 0)
        printf("%s\n", r.error);
    gckpt_store_free(s);
    return r.error[0] == 0 ? r.validation : 1;
}

int main(void)
{
    uint32_t state = 1;
    for (int i = 0; i < ROWS; i++) {
        float(*c)[2] = corners[i];
        for (int k = 0; k < 6; k++) {
            state = state * 1664525u + 1013904223u;
            c[k / 2][k % 2] = (float)(state >> 8) / (1 << 23) - 1;
        }
        area[i] = (c[1][0] - c[0][0]) * (c[2][1] - c[0][1]) / 2;
        area[i] -= (c[1][1] - c[0][1]) * (c[2][0] - c[0][0]) / 2;
        area[i] = area[i] < 0 ? -area[i] : area[i];
    }
    const double plain = train(NULL), augmented = train(augment);
    printf("mean squared error of new triangles: %.4f; turned by chance %.4f\n", plain, augmented);
    return !(augmented < plain / 2);
}
