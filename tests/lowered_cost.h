/* lowered_cost.h - computes the cost of a lowered plan by summing over its instructions, so that tests can compare it
   with the planner's sums. */
#pragma once
#include "plan/plan.h"

/* Returns the cost of all instructions of a lowered plan; stores the cost without recomputation and copies in
 * *least. */
static uint64_t lowered_cost(const gckpti_planner *p, const gckpti_lowered *d, uint64_t *least)
{
    uint64_t recomputed = 0;
    *least = 0;
    for (size_t x = 0; x < d->length; x++) {
        const gckpti_ins *ins = &d->ins[x];
        /* the operands of a copy to or from slower memory are the value and the saved data */
        const size_t *operand = d->operands + ins->operands;
        if (ins->kind == GCKPT_FORWARD && ins->first)
            *least = gckpti_add_cost(*least, p->cost[ins->id].forward);
        else if (ins->kind == GCKPT_FORWARD)
            recomputed = gckpti_add_cost(recomputed, p->cost[ins->id].forward);
        else if (ins->kind == GCKPT_BACKWARD)
            *least = gckpti_add_cost(*least, p->cost[ins->id].backward);
        else if (ins->kind == GCKPT_OFFLOAD || ins->kind == GCKPT_RELOAD)
            recomputed = gckpti_add_cost(recomputed, gckpti_parts_cost(p, p->node_of[ins->id],
                                                             (operand[0] != GCKPTI_NO_OFFSET ? GCKPTI_VALUE : 0) |
                                                                 (operand[1] != GCKPTI_NO_OFFSET ? GCKPTI_SAVED : 0)));
    }
    return gckpti_add_cost(*least, recomputed);
}
