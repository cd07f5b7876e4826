/* no_heap.c - trains in the configuration of a microcontroller: no heap, no stdio, no fast kernels, all memory from one
 * static block. */
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#define GCKPT_NO_FAST
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

static double block[16384]; /* 128 KiB, aligned like memory from malloc */
static size_t used;

static gckpt_memory piece(size_t size)
{
    gckpt_memory m = { NULL, NULL, NULL, 0 };
    m.memory = block + used / sizeof block[0];
    m.size = size;
    used += size;
    return m;
}

int main(void)
{
    static float x[8 * 4], y[8];
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 4; k++)
            x[4 * i + k] = (float)((i >> k) & 1);
        y[i] = (float)(i % 3) - 1;
    }
    if (gckpt_store_new(NULL))
        return 3; /* the call must fail, since there is no heap */
    gckpt_store_desc store_desc = { piece(16384), 5 };
    gckpt_store *s = gckpt_store_new(&store_desc);
    gckpt_memory graph_memory = piece(32768);
    gckpt_graph *g = gckpt_graph_new(s, &graph_memory);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 4));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(2, 1));
    gckpt_init init = { 0.5f, 0, 0 };
    gckpt_tensor *h =
        gckpt_tanh(gckpt_linear(in, gckpt_param(g, "a", gckpt_shape2(4, 12), init), NULL));
    h = gckpt_linear(h, gckpt_param(g, "b", gckpt_shape2(12, 1), init), NULL);
    gckpt_term loss = { gckpt_mean_squared_error(h, target, NULL), 1, 0 };
    static gckpt_plan_desc desc;
    desc.batch = 8;
    desc.memory = piece(32768);
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    static gckpt_exec_desc bind;
    bind.memory = piece(32768);
    gckpt_exec *e = gckpt_exec_new(p, s, &bind);
    gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_hyper hyper = gckpt_hyper_lr(0.02f);
    gckpt_report report = { 0, 0, 0, 0 };
    double first = 0;
    for (int step = 0; step < 200; step++) {
        if (gckpt_step(e, feeds, 2, 8, &hyper, &report) != GCKPT_OK)
            return 2;
        if (step == 0)
            first = report.loss;
    }
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return !(report.loss < first / 2);
}
