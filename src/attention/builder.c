#include "attention/attention.h"
#include "recurrent/recurrent.h"
#include "graph/graph.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_ATTENTION
/* Checks desc's window, cap and scale, and sets those of o. */
static void gckpti_attention_set_options(gckpti_attention *o, const gckpt_attention_desc *desc,
                                         gckpt_graph *g)
{
    const float dot_scale = desc->cap > 0.0f ? desc->scale / desc->cap : 0.0f;
    if (desc->mask && (desc->causal || desc->lengths || desc->window))
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: with a mask, causal, lengths and window must be 0 or NULL: hide "
                    "keys by -inf in the mask");
    else if (desc->window < 0 || desc->window > INT32_MAX || (desc->window && !desc->causal))
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: the window is %I keys%s; it needs causal attention and 1 to %i "
                    "keys (0: none)",
                    desc->window, desc->causal ? "" : " without causal", INT32_MAX);
    else if (!gckpti_is_valid_cap(desc->cap) ||
             !(desc->scale >= 0.0f && desc->scale < GCKPTI_INFINITY) ||
             (desc->cap > 0.0f && desc->scale > 0.0f &&
              !(dot_scale >= FLT_MIN && dot_scale < GCKPTI_INFINITY)))
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: cap is %g, scale %g; cap must be 1e-30 to 1e30 (0: none), scale "
                    "positive (0: 1 / sqrt(D)), and scale / cap a normal float",
                    (double)desc->cap, (double)desc->scale);
    o->window = (int)desc->window, o->cap = desc->cap, o->scale = desc->scale;
}

/* Sets the fields of o that depend on k, of attention without a mask. A window of all S keys means
 * none. If k is a variable, the keys that it has no rows for at position 0 are missing. */
static int gckpti_attention_set_extras(gckpti_attention *o, const gckpt_attention_desc *desc,
                                       gckpt_tensor *const *in)
{
    const gckpt_tensor *k = in[1], *variable = k->variable;
    gckpt_graph *g = k->graph;
    const int64_t keys = k->shape.n == 3 ? k->shape.d[1] : 0;
    gckpti_attention_set_options(o, desc, g);
    if (g->check_op && !g->check_op(&gckpti_op_attention, in, in[3] ? 4 : 3, o))
        return 0;
    const int64_t missing = variable ? variable->shape.d[1] - variable->in[0]->shape.d[1] : 0;
    o->causal += (int)missing;
    o->window = desc->window < keys ? o->window : 0;
    o->extras = o->window || o->cap > 0.0f || o->scale > 0.0f;
    o->extras += variable && o->window && !missing;
    return g->object.sticky == GCKPT_OK;
}

GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        const gckpt_attention_desc *desc)
{
    gckpt_tensor *in[4] = { q, k, v, desc ? desc->lengths : NULL };
    gckpt_graph *g = q && k && v ? q->graph : NULL;
    if (!desc)
        return gckpti_fail(g, GCKPT_E_ARG, "attention: desc is NULL; it says how many heads");
    gckpti_attention o = { desc->heads, desc->causal != 0, desc->key_heads, 0, 0, 0.0f, 0.0f };
    if (g && (desc->decay || desc->beta))
        return gckpti_delta_rule(in, desc);
    if (o.key_heads == o.heads)
        o.key_heads = 0;
    if (g && desc->mask) {
        in[3] = desc->mask, o.extras = -1;
        gckpti_attention_set_options(&o, desc, g);
        return gckpt_apply(&gckpti_op_masked_attention, in, 4, &o, sizeof o);
    }
    if (g && k->graph == g && !gckpti_attention_set_extras(&o, desc, in))
        return NULL;
    return gckpt_apply(&gckpti_op_attention, in, desc->lengths ? 4 : 3, &o,
                       o.extras      ? sizeof o
                       : o.key_heads ? offsetof(gckpti_attention, extras)
                                     : offsetof(gckpti_attention, key_heads));
}
#endif
