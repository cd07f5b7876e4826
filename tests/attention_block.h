/* attention_block.h - the parameters and the attention block of the small transformers that test_hash.c and
 * test_bf16.c train. Initial values depend on the parameters' names, and the golden hash depends on everything here,
 * so that any change of this file changes GOLDEN. C99 and C++11; include after gradckpt.h. */
#ifndef TESTS_ATTENTION_BLOCK_H
#define TESTS_ATTENTION_BLOCK_H
#include <string.h>

static inline gckpt_tensor *weight(gckpt_tensor *x, const char *name, int64_t a, int64_t b)
{
    const gckpt_init init = { 0.2f, 0.05f, 0 };
    return gckpt_param(gckpt_graph_of(x), name, b > 0 ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

/* Attention with rotary positions on x (B,T,C), with a result of the same shape; a block for gckpt_checkpoint. Each
 * statement creates one node or parameter, because C does not define the order in which a call's arguments are
 * evaluated, and the order of creation affects the result. */
static inline gckpt_tensor *attention_block(gckpt_tensor *x, void *user)
{
    const gckpt_shape shape = gckpt_shape_of(x);
    const int64_t C = shape.d[shape.n - 1];
    (void)user;
    gckpt_tensor *gain = weight(x, "ln.gain", C, 0), *bias = weight(x, "ln.bias", C, 0);
    gckpt_tensor *w = weight(x, "qkv", C, 3 * C), *b = weight(x, "qkv.bias", 3 * C, 0);
    gckpt_tensor *qkv = gckpt_linear(gckpt_layernorm(x, gain, bias, 0), w, b);
    gckpt_rotary_desc rotary;
    gckpt_attention_desc attention;
    memset(&rotary, 0, sizeof rotary), rotary.heads = 2;
    memset(&attention, 0, sizeof attention), attention.heads = 2, attention.causal = 1;
    gckpt_tensor *q = gckpt_rotary(gckpt_slice(qkv, -1, 0, C), &rotary);
    gckpt_tensor *k = gckpt_rotary(gckpt_slice(qkv, -1, C, 2 * C), &rotary);
    gckpt_tensor *v = gckpt_slice(qkv, -1, 2 * C, 3 * C);
    gckpt_tensor *a = gckpt_attention(q, k, v, &attention);
    a = gckpt_linear_transposed(a, weight(x, "proj", C, C), NULL);
    return gckpt_add(x, gckpt_dropout(a, 0.25f));
}
#endif
