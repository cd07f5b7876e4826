#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#if !defined(GCKPT_NO_RECURRENT) && !defined(GCKPT_NO_ATTENTION)
GCKPTI_FN gckpt_tensor *gckpti_delta_rule(gckpt_tensor *const *in, const gckpt_attention_desc *desc)
{
    gckpt_tensor *all[6] = { in[0], in[1], in[2], desc->decay, desc->beta, NULL };
    const gckpt_tensor *k = in[1];
    gckpt_graph *g = in[0]->graph;
    gckpti_delta o = { 0, 0, desc->heads, desc->key_heads ? desc->key_heads : desc->heads,
                       desc->scale };
    if (!desc->decay || !desc->beta)
        return gckpti_fail(g, GCKPT_E_ARG, "attention: %s without %s: give both, or none",
                           desc->decay ? "decay" : "beta", desc->decay ? "beta" : "decay");
    if (!desc->causal || desc->lengths || desc->mask || desc->window || desc->cap > 0.0f ||
        desc->cap < 0.0f || !(desc->scale >= 0.0f && desc->scale < GCKPTI_INFINITY))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: with decay and beta, causal must be 1, and lengths, mask, "
                           "window and cap 0 or NULL; scale %g must be positive (0: 1 / sqrt(K))",
                           (double)desc->scale);
    if (k->variable &&
        (k->variable != k || in[0]->shape.n != 3 || in[0]->shape.d[1] != k->in[0]->shape.d[1]))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: with decay, a cached k %S must be a gckpt_cache itself, and "
                           "q %S the %I rows that a call adds",
                           &k->shape, &in[0]->shape, k->variable->in[0]->shape.d[1]);
    if (k->variable) {
        memcpy(&o, k->attributes, offsetof(gckpti_delta, heads));
        all[5] = gckpt_apply(&gckpti_op_delta_state, all, 5, &o, sizeof o);
    }
    return gckpt_apply(&gckpti_op_delta_rule, all, k->variable ? 6 : 5, &o, sizeof o);
}
#endif
