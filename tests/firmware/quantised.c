/* quantised.c - a forward whose products and embedding read int8 weights (blocks of 32 and 4) directly from flash: no
 * FORWARD instruction copies weights into the arena.
 *     quantised       prints the results
 *     quantised c     prints the plan as C
 * With DEVICE and TABLE, the file that "quantised c" printed, the program prints the same results on a device. */
#ifdef DEVICE
#define GCKPT_SMALL
#define GCKPT_STATIC
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#ifdef DEVICE
#include TABLE
#endif
#include <stdio.h>

enum { ROWS = 3, V = 12, C = 36, N = 36 };
static const int32_t tokens[ROWS] = { 7, 0, 11 };

/* Adds quantised parameters of shapes (V,C) and (C,N); both use the same blocks. */
static gckpt_result flash(gckpt_store *s)
{
    static uint8_t w[C * 40]; /* scales of about 0.002 */
    for (int i = 0; i < C * 40; i++)
        w[i] = (uint8_t)(i % 40 == 1 || i % 40 == 35 ? 0x18 : i * 37 % 255);
    gckpt_result result = gckpt_store_external_quantised(s, "table", gckpt_shape2(V, C), GCKPT_STORAGE_I8, w);
    if (result == GCKPT_OK)
        result = gckpt_store_external_quantised(s, "w", gckpt_shape2(C, N), GCKPT_STORAGE_I8, w);
    return result;
}

/* Runs the plan on s and prints tensor y, the plan's last tensor. */
static int forward(const gckpt_plan *p, gckpt_store *s, const gckpt_exec_desc *desc, int x, int y)
{
    gckpt_exec *e = gckpt_exec_new(p, s, desc);
    const gckpt_feed feed = { x, tokens };
    const float *out = e && gckpt_forward(e, &feed, 1, ROWS, NULL) == GCKPT_OK ? gckpt_fetch(e, y, 0) : NULL;
    for (int i = 0; out && i < ROWS * N; i++)
        printf("%.9g\n", (double)out[i]);
    gckpt_exec_free(e);
    return !out;
}

#ifdef DEVICE
int main(void)
{
    static char store_block[1024], exec_block[8192];
    const gckpt_store_desc desc = { { NULL, NULL, store_block, sizeof store_block }, 0 };
    gckpt_store *s = gckpt_store_new(&desc);
    static gckpt_exec_desc bind;
    bind.memory.memory = exec_block;
    bind.memory.size = sizeof exec_block;
    return flash(s) != GCKPT_OK || gckpt_plan_params(&stored, s) != GCKPT_OK ||
           forward(&stored, s, &bind, stored_x, stored_y);
}
#else
static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(int argc, char **argv)
{
    const gckpt_init none = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    if (flash(s) != GCKPT_OK)
        return 1;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_name(gckpt_input(g, "x", GCKPT_I32, gckpt_shape1(ROWS)), "x");
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), none);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, N), none);
    gckpt_tensor *y = gckpt_name(gckpt_linear(gckpt_embed(table, x), w, NULL), "y");
    static gckpt_plan_desc desc;
    const gckpt_fetch_spec fetch = { y, 0 };
    desc.mode = GCKPT_INFERENCE;
    desc.kernels.plain = 1;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    const int wrong = argc > 1 && argv[1][0] == 'c' ? gckpt_plan_c(p, "stored", to_stdout, NULL) != GCKPT_OK
                                                    : forward(p, s, NULL, gckpt_id(x), gckpt_id(y));
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return wrong;
}
#endif
