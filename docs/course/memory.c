/* Lesson 2: prints the bytes in use at each instruction of a step. */
#include "gradckpt.h"
#include <stdio.h>

int main(void)
{
    static const char *const does[] = { "forward", "backward", "update" };
    const gckpt_init small = { 0.1f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *h = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(64, 16));
    for (int i = 0; i < 4; i++) {
        const char weight[] = { 'w', (char)('1' + i), 0 }, layer[] = { 'h', (char)('1' + i), 0 };
        gckpt_tensor *w = gckpt_param(g, weight, gckpt_shape2(16, 16), small);
        h = gckpt_name(gckpt_tanh(gckpt_linear(h, w, NULL)), layer);
    }
    gckpt_term loss = { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    for (int i = 0; i < info.instructions; i++) {
        gckpt_instruction at;
        gckpt_usage use;
        if (gckpt_plan_get(p, i, &at) != GCKPT_OK || at.id < 0) /* computes nothing */
            continue;
        gckpt_plan_usage(p, i, &use);
        printf("%-8s %-8s %6zu ", does[at.kind], gckpt_plan_name(p, at.id), use.live);
        for (size_t star = 0; star < use.live; star += 1024)
            printf("*");
        printf("\n");
    }
    printf("weights %zu, optimiser %zu, step %zu: %zu bytes\n",
           gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS),
           gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE), info.arena, gckpt_plan_bytes(p));
    gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return 0;
}
