/* digits.c - reads handwritten digits: 8 x 8 pixels, trained on people's 1,437, tried on others' 360. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "digits.h"
#include "layers.h"
#include "train.h"

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 64, 64, 10 };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0.1f); /* 64 -> 64 -> 64 -> 10 */
    net->loss = gckpt_cross_entropy(net->output, net->in[1]);
}

int main(void)
{
    static float pixels[DIGITS][64];
    static int32_t digit[DIGITS];
    digits_read(pixels, digit);
    train_data data = { { { "pixels", GCKPT_F32, 64, pixels }, { "digit", GCKPT_I32, 0, digit } },
                        DIGITS,
                        360 }; /* the last 360 rows are for validation */
    train_options o = train_defaults(3e-3f); /* AdamW's learning rate */
    o.hyper.weight_decay = 0.01f;
    o.hyper.clip = 1;
    o.plan.batch = 64;
    o.plan.budget = 200000; /* bytes of weights, optimiser state, activations: of all of it */
    o.epochs = 30;
    o.cosine = 1;
    o.print = 10;
    train_report r;
    gckpt_store *weights = gckpt_store_new(NULL);
    if (train_fit(weights, model, &data, &o, &r) != 0) {
        fprintf(stderr, "%s\n", r.error);
        return 1;
    }
    gckpt_store_save(weights, "build/digits.safetensors");
    gckpt_store_free(weights);
    return 0;
}
