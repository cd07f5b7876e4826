/* two_contexts.c - two threads train two models at the same time. They must not disturb each other, since the library
 * has no global state. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <pthread.h>
#include <stdio.h>

static void *train(void *user)
{
    uint64_t *hash = (uint64_t *)user;
    static const int32_t tokens[2 * 8] = { 1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1 };
    static const int32_t targets[2 * 8] = { 2, 3, 4, 5, 6, 7, 8, 9, 7, 6, 5, 4, 3, 2, 1, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 0.1f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, 8));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(1, 8));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(10, 16), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(16, 16), init);
    for (int i = 0; i < 3; i++) {
        x = gckpt_add(
            x, gckpt_attention(x, gckpt_linear(x, w, NULL), x, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
        x = gckpt_gelu(gckpt_layernorm(x, NULL, NULL, 0));
    }
    gckpt_term loss = { gckpt_linear_cross_entropy(x, table, target, NULL), 1, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_SQRT, .batch = 2 };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feeds[2] = { { gckpt_id(in), tokens }, { gckpt_id(target), targets } };
    gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0, 0, 0, 1 };
    for (int step = 0; step < 20; step++)
        if (gckpt_step(e, feeds, 2, 2, &hyper, NULL) != GCKPT_OK)
            return NULL;
    *hash = gckpt_store_hash(s);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return user;
}

int main(void)
{
    pthread_t thread[2];
    uint64_t hash[2] = { 1, 2 };
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, train, &hash[i]) != 0)
            return 2;
    int ok = 1;
    for (int i = 0; i < 2; i++) {
        void *result = NULL;
        pthread_join(thread[i], &result);
        ok = ok && result != NULL;
    }
    printf("%016llx %016llx\n", (unsigned long long)hash[0], (unsigned long long)hash[1]);
    return !(ok && hash[0] == hash[1]);
}
