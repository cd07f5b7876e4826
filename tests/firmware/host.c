/* host.c - plans the model of model.h on a host.
 *     host c NAME     prints the plan as a C constant NAME
 *     host run        trains with the plan and prints the same lines as device.c
 * An optional last argument changes the plan: auto (mode GCKPT_AUTO), quantised (weights in flash, by model_flash),
 * virtual_ranks (four virtual ranks), bf16 (precision GCKPT_BF16), no_attention (another model). */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "model.h"
#include <stdio.h>
#include <string.h>

static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

static int train(gckpt_exec *e, const gckpt_plan *p, int tokens, int targets, int bent)
{
    printf("%lu bytes\n", (unsigned long)gckpt_plan_bytes(p));
    for (int step = 0; step < STEPS; step++) {
        gckpt_feed feeds[2] = { { tokens, model_tokens }, { targets, model_targets } };
        gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0, 0, 0, 1.0f };
        gckpt_report report;
        uint64_t bits;
        model_data(step);
        if (gckpt_step(e, feeds, 2, BATCH, &hyper, &report) != GCKPT_OK)
            return 1;
        memcpy(&bits, &report.loss, 8);
        printf("%016llx %g\n", (unsigned long long)bits, (double)*gckpt_fetch(e, bent, 1));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const float shift[C] = { 0.5f, -0.25f, 0, 1, 0, -1, 0.125f, 3 };
    const gckpt_init normal = { 0.3f, 0, 0 }, uniform = { 0, 0.2f, 0.5f };
    const float factor = 0.25f;
    const char *command = argc > 1 ? argv[1] : "", *how = argc > 3 ? argv[3] : "";
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, SEED };
    gckpt_store *s = gckpt_store_new(&seed);
    if (!strcmp(how, "quantised") && model_flash(s) != GCKPT_OK)
        return 1;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(ROWS, T));
    gckpt_tensor *targets = gckpt_input(g, "to say", GCKPT_I32, gckpt_shape2(ROWS, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_embed(table, tokens);
    x = gckpt_add(x, gckpt_constant(g, "shift", GCKPT_F32, gckpt_shape1(C), shift));
    gckpt_segment_begin(g);
    gckpt_tensor *gain = gckpt_param(g, "gain", gckpt_shape1(C), uniform);
    gckpt_tensor *a = gckpt_rmsnorm(x, gain, 0);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, 3 * C), normal);
    a = gckpt_linear(a, w, NULL);
    gckpt_tensor *q = gckpt_slice(a, -1, 0, C), *k = gckpt_slice(a, -1, C, 2 * C);
    gckpt_tensor *v = gckpt_slice(a, -1, 2 * C, 3 * C);
    a = strcmp(how, "no_attention") ? gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = 2, .causal = 1 })
                                    : gckpt_add(gckpt_mul(q, k), v);
    x = gckpt_add(x, gckpt_dropout(a, 0.25f));
    gckpt_segment_end(g);
    gckpt_segment_begin(g);
    x = gckpt_name(gckpt_apply(&bend, &x, 1, &factor, sizeof factor), "bent");
    gckpt_segment_end(g);
    gckpt_term terms[2];
    terms[0].loss = gckpt_linear_cross_entropy(x, table, targets, NULL);
    terms[0].weight = 0.7f;
    terms[0].regulariser = 0;
    terms[1].loss = gckpt_sum_loss(gckpt_mul(w, w));
    terms[1].weight = 0.01f;
    terms[1].regulariser = 1;
    gckpt_fetch_spec fetch = { x, 1 };
    static gckpt_plan_desc desc;
    desc.mode = strcmp(how, "auto") ? GCKPT_SEGMENTS : GCKPT_AUTO; /* AUTO may choose another lowering of the loss */
    desc.batch = BATCH;
    desc.ranks.virtual_ranks = strcmp(how, "virtual_ranks") ? 1 : 4;
    desc.bf16.precision = strcmp(how, "bf16") ? GCKPT_FP32 : GCKPT_BF16;
    desc.kernels.plain = 1;
    desc.kernels.alignment = 8;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
    int status = 0;
    if (p && !strcmp(command, "c") && argc > 2) {
        status = gckpt_plan_c(p, argv[2], to_stdout, NULL) != GCKPT_OK;
    } else {
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        status = e ? train(e, p, gckpt_id(tokens), gckpt_id(targets), gckpt_id(x)) : 1;
        if (!e)
            fprintf(stderr, "host: %s\n", gckpt_error_text(p ? (void *)s : (void *)g));
        printf("%016llx\n", (unsigned long long)gckpt_store_hash(s));
        gckpt_exec_free(e);
    }
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return status;
}
