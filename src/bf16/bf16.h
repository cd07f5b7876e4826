#pragma once
#include "plan/plan.h"

#ifdef GCKPT_NO_BF16
#define gckpti_set_precision(p, node, c)           ((void)0)
#define gckpti_set_narrow(q, data, arg)            0
#define gckpti_end_mixed_output(e, ins, o, c)      ((void)0)
#define gckpti_end_mixed_gradient(e, ins, o, c, i) 0
#define gckpti_mixed_operands(e, ins, o, c)        ((void)0)
#define gckpti_run_strips(e, ins, c, kernel)       0
#else
/* Sets the precision of a node's call, and which operands are rounded. */
static inline void gckpti_set_precision(const gckpt_plan *p, const gckpti_plan_node *node,
                                        gckpt_call *c)
{
    c->precision = gckpti_precision_of(node->rounding);
    c->rounded = node->rounding & GCKPTI_ROUNDED ? GCKPT_OUT : 0;
    for (int i = 0; i < node->inputs && gckpti_is_bf16_plan(p); i++)
        if (p->nodes[p->nodes[node->in[i]].base].rounding & GCKPTI_ROUNDED)
            c->rounded |= GCKPT_IN(i);
}

/* Sets the values of an operand, those of node q, if they are bf16; returns whether they are. */
static inline int gckpti_set_narrow(const gckpti_plan_node *q, const void *data, gckpt_arg *arg)
{
    arg->bf16 = q->rounding & GCKPTI_BF16_VALUE ? (const uint16_t *)data : NULL;
    return q->rounding & GCKPTI_BF16_VALUE;
}
#endif
