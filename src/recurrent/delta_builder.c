#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#if !defined(GCKPT_NO_RECURRENT) && !defined(GCKPT_NO_ATTENTION)
GCKPTI_FN gckpt_tensor *gckpti_delta_rule(gckpt_tensor *const *in, const gckpt_attention_desc *desc)
{
    gckpt_tensor *all[6] = { in[0], in[1], in[2], desc->decay, desc->beta, NULL };
    gckpt_graph *g = in[0]->graph;
    gckpti_delta o = { 0, 0, desc->heads, desc->key_heads ? desc->key_heads : desc->heads,
                       desc->scale };
    int cached = 0;
    if (!desc->decay || !desc->beta)
        return gckpti_fail(g, GCKPT_E_ARG, "attention: %s without %s: give both, or none",
                           desc->decay ? "decay" : "beta", desc->decay ? "beta" : "decay");
    if (!desc->causal || desc->lengths || desc->mask || desc->window || desc->cap > 0.0f ||
        desc->cap < 0.0f || !(desc->scale >= 0.0f && desc->scale < GCKPTI_INFINITY))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: with decay and beta, causal must be 1, and lengths, mask, "
                           "window and cap 0 or NULL; scale %g must be positive (0: 1 / sqrt(K))",
                           (double)desc->scale);
    for (int i = 0; i < 5; i++)
        cached += !all[i]->variable ? 0 : i && all[i]->variable == all[i] ? 1 : 5;
    if (cached &&
        (cached != 4 || in[0]->shape.n != 3 || in[0]->shape.d[1] != g->variable->in[0]->shape.d[1]))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: if k, v, decay or beta is a gckpt_cache, all four must be, "
                           "and q the %I rows that a call adds; q is %S",
                           g->variable->in[0]->shape.d[1], &in[0]->shape);
    if (cached) {
        memcpy(&o, in[1]->attributes, 2 * sizeof(int));
        all[5] = gckpt_apply(&gckpti_op_delta_state, all, 5, &o, sizeof o);
        if (!all[5])
            return NULL;
    }
    return gckpt_apply(&gckpti_op_delta_rule, all, cached ? 6 : 5, &o, sizeof o);
}
#endif
