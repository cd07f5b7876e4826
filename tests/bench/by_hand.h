/* by_hand.h - three models trained by loops that are written for each of them: sizes are constants, memory is static,
 * nothing is checked. Batches and results are those of gckpt_step: gradients of the mean loss, AdamW without decay.
 * by_hand.c is compiled with -O3 -march=native. */
#ifndef BY_HAND_H
#define BY_HAND_H
#include <stdint.h>

enum { MLP_IN = 784, MLP_HIDDEN = 128, MLP_OUT = 10, MLP_BATCH = 128 };
typedef struct {
    float w1[MLP_IN * MLP_HIDDEN], b1[MLP_HIDDEN], w2[MLP_HIDDEN * MLP_OUT], b2[MLP_OUT];
} mlp_params;

/* A transformer of one block with 2,816 parameters: RMSNorm without gains, GELU, a head that is not tied to the
 * embedding. */
enum { GPT_T = 16, GPT_V = 16, GPT_C = 16, GPT_HEADS = 2, GPT_UP = 32 };
typedef struct {
    float letters[GPT_V * GPT_C], places[GPT_T * GPT_C];
    float q[GPT_C * GPT_C], k[GPT_C * GPT_C], v[GPT_C * GPT_C], o[GPT_C * GPT_C];
    float up[GPT_C * GPT_UP], down[GPT_UP * GPT_C], head[GPT_C * GPT_V];
} gpt_params;

/* The functions below train one step and return the loss before the update. The caller initialises parameters,
 * gradients and moments; `step` counts from 1. */
typedef struct {
    mlp_params p, g, m, v;
} mlp_state;
typedef struct {
    gpt_params p, g, m, v;
} gpt_state;
double by_hand_mlp_128(mlp_state *s, const float *x, const int32_t *y, float lr, int step);
double by_hand_mlp_1(mlp_state *s, const float *x, const int32_t *y, float lr, int step);
double by_hand_gpt(gpt_state *s, const int32_t *tokens, const int32_t *targets, float lr, int step);
#endif
