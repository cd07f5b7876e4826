#include "attention/attention.h"
#include "graph/graph.h"
#include "ops/internal.h"

#if !defined(GCKPT_NO_ATTENTION) && !defined(GCKPT_NO_AXES)
/* ---- attention with a mask, as ops that store the scores (B,heads,T,S) ----
 * g = heads / key_heads; the heads of a key head are its g T queries: q (B,key_heads,g T,D), k and
 * v (B,key_heads,S,D), scores = cap(scale q k') + mask, out = softmax(scores) v. */

/* Checks shapes and options; returns 0 with an error in the graph if they do not fit. */
static int gckpti_check_mask(gckpt_tensor *const *in, const gckpt_attention_desc *desc)
{
    gckpt_graph *g = in[0]->graph;
    const gckpt_shape *mask = &desc->mask->shape;
    const int heads = desc->heads, shared = desc->key_heads == heads ? 0 : desc->key_heads;
    const gckpti_attention o = { heads, 0, shared, 0, 0, 0.0f, 0.0f };
    gckpt_call call = gckpti_shape_call(in, 3, &o);
    call.graph = g;
    if (desc->causal || desc->lengths || desc->window)
        return !!gckpti_fail(
            g, GCKPT_E_ARG,
            "attention: with a mask, causal, lengths and window must be 0 or NULL: "
            "hide keys by -inf in the mask");
    if (!gckpti_is_valid_cap(desc->cap) || !(desc->scale >= 0.0f && desc->scale < GCKPTI_INFINITY))
        return !!gckpti_fail(g, GCKPT_E_ARG,
                             "attention: cap is %g, scale %g; cap must be 1e-30 to 1e30 (0: none), "
                             "scale positive (0: 1 / sqrt(D))",
                             (double)desc->cap, (double)desc->scale);
    if (gckpti_op_attention.shape(&call) != GCKPT_OK)
        return 0;
    const gckpt_shape scores =
        gckpt_shape4(in[0]->shape.d[0], heads, in[0]->shape.d[1], in[1]->shape.d[1]);
    int fits = mask->n <= 4;
    for (int i = 1; fits && i <= mask->n; i++)
        fits = mask->d[mask->n - i] == 1 || mask->d[mask->n - i] == scores.d[4 - i];
    if (!fits)
        return !!gckpti_fail(g, GCKPT_E_SHAPE,
                             "attention: the mask %S must broadcast to the scores (B,heads,T,S) = "
                             "%S: each of its last axes has that size or 1",
                             mask, &scores);
    return 1;
}

/* Returns x (B,N,heads D) as (B,heads,N,D), with `group` neighbours among the heads as one head of
 * group N rows. */
static gckpt_tensor *gckpti_split_heads(gckpt_tensor *x, int heads, int group)
{
    static const int order[5] = { 0, 2, 3, 1, 4 };
    const int64_t rows = x->shape.d[0], n = x->shape.d[1], d = x->shape.d[2] / heads;
    const gckpt_shape split = { 5, { rows, n, heads / group, group, d } };
    x = gckpt_permute(gckpt_reshape(x, split), order, 5);
    return gckpt_reshape(x, gckpt_shape4(rows, heads / group, group * n, d));
}

GCKPTI_FN gckpt_tensor *gckpti_masked_attention(gckpt_tensor *const *in,
                                                const gckpt_attention_desc *desc)
{
    static const int order[5] = { 0, 3, 1, 2, 4 };
    if (!gckpti_check_mask(in, desc))
        return NULL;
    const int heads = desc->heads, shared = desc->key_heads ? desc->key_heads : heads;
    const int64_t b = in[0]->shape.d[0], t = in[0]->shape.d[1], s = in[1]->shape.d[1];
    const int64_t d = in[0]->shape.d[2] / heads, group = heads / shared;
    const float scale = desc->scale > 0.0f ? desc->scale : 1.0f / gckpti_sqrt((float)d);
    gckpt_tensor *q = gckpti_split_heads(in[0], heads, (int)group);
    gckpt_tensor *k = gckpti_split_heads(in[1], shared, 1);
    gckpt_tensor *v = gckpti_split_heads(in[2], shared, 1), *x = gckpt_matmul_transposed(q, k);
    if (desc->cap > 0.0f)
        x = gckpt_scale(gckpt_tanh(gckpt_scale(x, scale / desc->cap)), desc->cap);
    else
        x = gckpt_scale(x, scale);
    x = gckpt_add(gckpt_reshape(x, gckpt_shape4(b, heads, t, s)), desc->mask);
    x = gckpt_reshape(gckpt_softmax(x), gckpt_shape4(b, shared, group * t, s));
    const gckpt_shape split = { 5, { b, shared, group, t, d } };
    x = gckpt_permute(gckpt_reshape(gckpt_matmul(x, v), split), order, 5);
    return gckpt_reshape(x, in[0]->shape);
}
#endif
