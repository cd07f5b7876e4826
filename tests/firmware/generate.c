/* generate.c - generates tokens with a plan whose attention has caches, and prints a hash of the logits. Without TABLE,
 * the argument "c" prints the plan as C; with TABLE, that file, the program uses the printed plan and needs no heap,
 * graph or planner. */
#ifdef TABLE
#define GCKPT_NO_HEAP
#endif
#define GCKPT_NO_STDIO
#define GCKPT_NO_FAST
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#ifdef TABLE
#include TABLE
#endif
#include <stdio.h> /* for printf in this program; the library uses no stdio */

enum { ROWS = 2, T = 3, C = 8, V = 11, CAPACITY = 10 };

#ifndef TABLE
enum { small_store_bytes = 1 << 15, small_exec_bytes = 1 << 15 };
static const gckpt_plan *generator_plan;
static int say_tokens, say_logits;
static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

static void plan(gckpt_store *s)
{
    gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(ROWS, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *places = gckpt_param(g, "places", gckpt_shape2(CAPACITY + 1, C), normal);
    gckpt_tensor *x = gckpt_positions(gckpt_embed(table, tokens), places, 1);
    gckpt_tensor *k = gckpt_cache(gckpt_rotary(x, &(gckpt_rotary_desc){ .heads = 2, .position = 5 }), CAPACITY),
                 *v = gckpt_cache(x, CAPACITY);
    gckpt_tensor *y = gckpt_linear_transposed(
        gckpt_attention(x, k, v, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }), table, NULL);
    gckpt_fetch_spec fetch = { gckpt_name(y, "logits"), 0 };
    static gckpt_plan_desc desc;
    desc.mode = GCKPT_INFERENCE;
    desc.kernels.plain = 1;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    generator_plan = gckpt_plan_new(g, NULL, 0, &desc);
    say_tokens = gckpt_id(tokens);
    say_logits = gckpt_id(y);
    gckpt_graph_free(g);
}
#endif

static uint64_t hash_of(const float *logits)
{
    uint64_t hash = 1;
    for (size_t i = 0; logits && i < ROWS * T * V * sizeof *logits; i++)
        hash = (hash ^ ((const unsigned char *)logits)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int main(int argc, char **argv)
{
    static char store_block[small_store_bytes], exec_block[small_exec_bytes];
    gckpt_store_desc store = { { NULL, NULL, store_block, sizeof store_block }, 7 };
    gckpt_store *s = gckpt_store_new(&store);
    static gckpt_exec_desc bind;
    bind.memory.memory = exec_block;
    bind.memory.size = sizeof exec_block;
    (void)argv;
#ifdef TABLE
    const gckpt_plan *generator_plan = &small;
    const int say_tokens = small_tokens, say_logits = small_logits;
    if (argc > 1 || gckpt_plan_params(generator_plan, s) != GCKPT_OK)
        return 2;
#else
    plan(s);
    if (argc > 1)
        return gckpt_plan_c(generator_plan, "small", to_stdout, NULL) != GCKPT_OK;
#endif
    gckpt_parameter p; /* set as if loaded from a file: a build without training cannot initialise weights */
    for (int i = 0; gckpt_store_get(s, i, &p) == GCKPT_OK; i++)
        for (int k = 0; k < (int)p.elements; k++)
            p.values[k] = (float)((k * 37 + i * 11) % 101 - 50) / 120.0f;
    gckpt_exec *e = gckpt_exec_new(generator_plan, s, &bind);
    if (!e)
        return puts(gckpt_error_text(s)), 3;
    for (int call = 0; call < 4; call++) {
        int32_t tokens[ROWS * T];
        for (int i = 0; i < ROWS * T; i++)
            tokens[i] = (i * 7 + call * 3) % V;
        gckpt_feed feed = { say_tokens, tokens };
        int ok = gckpt_forward(e, &feed, 1, ROWS, NULL) == GCKPT_OK;
        printf("%d %lu %016llx\n", ok, (unsigned long)gckpt_position(e),
               (unsigned long long)hash_of(gckpt_fetch(e, say_logits, 0)));
    }
    puts(gckpt_error_text(e)); /* the error of the fourth call, whose tokens did not fit into the caches */
    gckpt_exec_free(e);
    gckpt_plan_free(generator_plan);
    gckpt_store_free(s);
    return 0;
}
