/* quickstart.c - trains a network of 12 layers twice: without a limit, then in half the bytes. */
#include "gradckpt.h"
#include <stdio.h>

static void train(size_t budget)
{
    static float x[256][2], y[256]; /* the network learns the product of two numbers */
    for (int i = 0; i < 256; i++)
        y[i] = (x[i][0] = (float)(i % 16) / 8 - 1) * (x[i][1] = (float)(i / 16) / 8 - 1);
    gckpt_store *s = gckpt_store_new(NULL); /* holds weights and optimiser state */
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(256, 2)), *h = in;
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(256, 1));
    for (int i = 0; i < 12; i++) { /* 2 -> 16 -> .. -> 16 -> 1 */
        const char name[] = { 'w', (char)('a' + i), 0 };
        const gckpt_init normal = { 0.15f, 0, 0 }; /* standard deviation 0.15 */
        gckpt_shape shape = gckpt_shape2(i == 0 ? 2 : 16, i == 11 ? 1 : 16);
        gckpt_tensor *z = gckpt_linear(h, gckpt_param(g, name, shape, normal), NULL);
        h = i == 0 || i == 11 ? z : gckpt_add(h, gckpt_gelu(z));
    }
    gckpt_term loss = { gckpt_mean_squared_error(h, target, NULL), 1, 0 };
    static gckpt_plan_desc desc; /* all zero: the default of every option */
    desc.budget = budget;
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc); /* bytes and cost, before any step */
    if (p == NULL)
        printf("%s", gckpt_error_text(g)); /* names the least budget that works */
    else
        printf("%zu bytes, %.0f %% recomputed", gckpt_plan_bytes(p), 100 * gckpt_plan_describe(p).recompute);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_hyper adamw = gckpt_hyper_lr(3e-3f);
    gckpt_report report = { 0, 0, 0, 0 };
    for (int step = 0; step < 300; step++)
        if (gckpt_step(e, feeds, 2, 256, &adamw, &report) != GCKPT_OK)
            break; /* gckpt_error_text of e, g or s gives the reason */
    printf(", loss %.6f, weights %016llx\n", report.loss, (unsigned long long)gckpt_store_hash(s));
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
}

int main(void)
{
    train(0);         /* no limit */
    train(200 << 10); /* the same training in 200 KiB */
}
