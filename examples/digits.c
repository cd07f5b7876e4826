/* digits.c - learns to read handwritten digits: trains on 1,437 digits by some people and validates
 * on 360 digits by other people. */
#include "gradckpt.h"
#include "digits.h"
#include "layers.h"
#include "train.h"

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 64, 64, 10 };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0.1f); /* dropout: 0.1 */
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

int main(void)
{
    static float pixels[DIGITS][64];
    static int32_t digit[DIGITS];
    digits_read(pixels, digit);
    train_data data = { { { "pixels", GCKPT_F32, 64, pixels }, { "digit", GCKPT_I32, 0, digit } },
                        DIGITS,
                        360 };               /* the last 360 rows are for validation */
    train_options o = train_defaults(3e-3f); /* AdamW's learning rate */
    o.hyper.weight_decay = 0.01f;
    o.hyper.clip = 1;
    o.plan.batch = 64;
    /* bytes for weights, optimiser state, gradients and activations together */
    o.plan.budget = 150000;
    o.epochs = 30;
    o.schedule = SCHEDULE_COSINE;
    o.print_every = 10; /* prints a line every 10 epochs */
    train_report r;
    gckpt_store *weights = gckpt_store_new(NULL);
    int failed = train_fit(weights, model, &data, &o, &r) != 0;
    if (failed)
        fprintf(stderr, "%s\n", r.error);
    else
        printf("in %zu bytes\n", r.bytes);
    gckpt_store_free(weights);
    return failed;
}
