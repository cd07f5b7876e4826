#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#if !defined(GCKPT_NO_RECURRENT) && !defined(GCKPT_NO_ATTENTION)
GCKPTI_FN gckpt_tensor *gckpti_delta_rule(gckpt_tensor *const *in, const gckpt_attention_desc *desc)
{
    gckpt_tensor *all[5] = { in[0], in[1], in[2], desc->decay, desc->beta };
    gckpt_graph *g = in[0]->graph;
    const gckpt_tensor *v = in[1]->variable;
    const gckpti_delta o = { desc->heads, desc->key_heads ? desc->key_heads : desc->heads,
                             desc->scale, v ? (int)(v->shape.d[1] - v->in[0]->shape.d[1]) : 0 };
    if (!desc->decay || !desc->beta)
        return gckpti_fail(g, GCKPT_E_ARG, "attention: %s without %s: give both, or none",
                           desc->decay ? "decay" : "beta", desc->decay ? "beta" : "decay");
    if (!desc->causal || desc->lengths || desc->mask || desc->window || desc->cap > 0.0f ||
        desc->cap < 0.0f || !(desc->scale >= 0.0f && desc->scale < GCKPTI_INFINITY))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: with decay and beta, causal must be 1, and lengths, mask, "
                           "window and cap 0 or NULL; scale %g must be positive (0: 1 / sqrt(K))",
                           (double)desc->scale);
    return gckpt_apply(&gckpti_op_delta_rule, all, 5, &o, sizeof o);
}
#endif
