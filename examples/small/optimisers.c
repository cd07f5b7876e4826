/* optimisers.c - reads digits with four optimisers of your own (../optimisers): AdamW, and three whose
 * state is smaller. The plan counts the bytes of state. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../digits.h"
#include "../layers.h"
#include "../optimisers/adam8bit.h"
#include "../optimisers/apollo_mini.h"
#include "../optimisers/muon.h"
#include "../train.h"

static float pixels[DIGITS][64];
static int32_t digit[DIGITS];

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 128, 128, 10 };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0.1f);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Returns nonzero for the weights of the hidden layers, mlp.0 and mlp.1. */
static int is_hidden(const char *name, int64_t rows, int64_t columns)
{
    return rows > 1 && columns > 1 && strncmp(name, "mlp.2", 5) != 0;
}

static adam8bit maps;
static muon orthogonal = { is_hidden, 1 };
static apollo_mini projected = { is_hidden, 1, 0, 0 };
static const struct {
    const char *name;
    float lr, others; /* learning rate of the hidden layers; factor of all other rates */
    size_t (*bytes)(void *user, const char *name, int64_t rows, int64_t columns);
    void (*update)(void *user, const gckpt_update *);
    void *user;
} optimisers[] = { { "AdamW", 3e-3f, 1, adamw_bytes, adamw_update, NULL },
                   { "Adam8bit", 3e-3f, 1, adam8bit_bytes, adam8bit_update, &maps },
                   { "Muon", 0.02f, 0.1f, muon_bytes, muon_update, &orthogonal },
                   { "APOLLO-Mini", 0.01f, 0.3f, apollo_mini_bytes, apollo_mini_update, &projected } };

int main(void)
{
    const train_data data = { { { "pixels", GCKPT_F32, 64, pixels }, { "digit", GCKPT_I32, 0, digit } }, DIGITS, 360 };
    int failed = 0;
    digits_read(pixels, digit);
    adam8bit_init(&maps);
    for (int i = 0; i < 4; i++) {
        gckpt_store *s = gckpt_store_new(NULL);
        train_net net = { gckpt_graph_new(s, NULL), 32, { NULL }, NULL, NULL, { { NULL, 0, 0 } }, 0 };
        train_options o = train_defaults(optimisers[i].lr);
        train_report r;
        o.plan.optimiser = GCKPT_CUSTOM_OPTIMISER;
        o.plan.state_bytes = optimisers[i].bytes;
        o.plan.workspace_bytes = optimisers[i].update == muon_update ? muon_workspace : NULL;
        o.plan.user = optimisers[i].user;
        o.custom_optimiser = optimisers[i].update;
        o.print_every = -1;
        net.in[0] = gckpt_input(net.graph, "pixels", GCKPT_F32, gckpt_shape2(32, 64));
        net.in[1] = gckpt_input(net.graph, "digit", GCKPT_I32, gckpt_shape1(32));
        model(&net, NULL);
        const gckpt_term term = { net.loss, 1, 0 };
        gckpt_plan *p = gckpt_plan_new(net.graph, &term, 1, &o.plan);
        const double state = (double)gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE);
        const double count = (double)gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) / sizeof(float);
        gckpt_plan_free(p), gckpt_graph_free(net.graph);
        gckpt_store_group(s, "*", optimisers[i].others, 1);
        gckpt_store_group(s, "mlp.?.weight", 1, 1), gckpt_store_group(s, "mlp.2.*", optimisers[i].others, 1);
        failed |= train_fit(s, model, &data, &o, &r) != 0 || r.accuracy < 0.88;
        printf("%-12s %6.0f bytes of state, %.2f a parameter: %.1f %% right%s\n", optimisers[i].name, state, state / count,
               100 * r.accuracy, r.error);
        gckpt_store_free(s);
    }
    return failed;
}
