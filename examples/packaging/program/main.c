/* A tiny training that uses the installed package, for tests/packaging/test_packaging.sh. */
#include <gradckpt.h>
#include <stdio.h>

int main(void)
{
    static float x[16][4], y[16][1];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++)
            y[i][0] += x[i][k] = (float)((i * 5 + k * 3) % 16) / 8 - 1;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 4));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(4, 1));
    const gckpt_init normal = { 0.5f, 0, 0 };
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(4, 8), normal);
    gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape2(8, 1), normal);
    gckpt_tensor *out = gckpt_linear(gckpt_relu(gckpt_linear(in, w1, NULL)), w2, NULL);
    gckpt_term loss = { gckpt_mean_squared_error(out, target, NULL), 1, 0 };
    static gckpt_plan_desc desc;
    desc.batch = 16;
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_hyper adamw = { 1e-2f, 0, 0, 0, 0, 0, 0 };
    gckpt_report report = { 0, 0, 0, 0 };
    for (int step = 0; step < 50; step++)
        if (gckpt_step(e, feeds, 2, 16, &adamw, &report) != GCKPT_OK)
            return fprintf(stderr, "%s\n", gckpt_error_text(e)), 1;
    printf("gradckpt %d.%d.%d: loss %.6f, weights %016llx\n", GCKPT_VERSION_MAJOR,
           GCKPT_VERSION_MINOR, GCKPT_VERSION_REVISION, report.loss,
           (unsigned long long)gckpt_store_hash(s));
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return 0;
}
