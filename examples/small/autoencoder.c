/* autoencoder.c - a denoising autoencoder (Vincent 2008) on examples/train.h. The network restores
 * digits in which a quarter of the pixels has been replaced by noise. It is tested on digits
 * written by people whose writing is not in the training data. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../digits.h"
#include "../layers.h"
#include "../train.h"

/* number of test rows, the last ones of the data; their writers do not occur in the other rows */
enum { NEW = 360 };

static float clean[DIGITS][64], noisy[DIGITS][64], denoised[DIGITS][64];
static int32_t digit[DIGITS];

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 96, 24, 96, 64 };
    (void)user;
    net->output = gckpt_sigmoid(layers_mlp(net->in[0], "ae", widths, 4, 0));
    net->loss = gckpt_mean_squared_error(net->output, net->in[1], NULL);
}

static double error_of(float image[DIGITS][64])
{
    double sum = 0;
    for (int i = DIGITS - NEW; i < DIGITS; i++)
        for (int k = 0; k < 64; k++)
            sum += (double)((image[i][k] - clean[i][k]) * (image[i][k] - clean[i][k]));
    return sum / (NEW * 64);
}

static void show(float image[64])
{
    for (int k = 0; k < 64; k++)
        printf("%c%s", " .:-=+*#%@"[(int)(image[k] * 9.99f)], k % 8 == 7 ? "|\n" : "");
    printf("\n");
}

int main(void)
{
    uint32_t state = 1;
    digits_read(clean, digit);
    for (int i = 0; i < DIGITS; i++)
        for (int k = 0; k < 64; k++) {
            state = state * 1664525u + 1013904223u;
            noisy[i][k] = state >> 30 == 0 ? (float)(state >> 8 & 255) / 256 : clean[i][k];
        }
    train_data data = { { { "noisy", GCKPT_F32, 64, noisy }, { "clean", GCKPT_F32, 64, clean } },
                        DIGITS,
                        NEW };
    train_options o = train_defaults(3e-3f);
    o.epochs = 24;
    o.schedule = SCHEDULE_COSINE;
    o.print_every = 8;
    train_report r;
    gckpt_store *s = gckpt_store_new(NULL);
    int wrong = train_fit(s, model, &data, &o, &r) != 0 ||
                train_predict(s, model, &data, &o, denoised[0], &r) != 0;
    if (wrong)
        fprintf(stderr, "%s\n", r.error);
    printf("mean squared error of the new ones: noisy %.4f, made clean %.4f\n", error_of(noisy),
           error_of(denoised));
    show(noisy[DIGITS - 1]);
    show(denoised[DIGITS - 1]);
    gckpt_store_free(s);
    return wrong || !(error_of(denoised) < error_of(noisy) / 2);
}
