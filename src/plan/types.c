#include "plan/own.h"

GCKPTI_FN int gckpti_updates(const gckpti_plan_param *q) { return q->trained || q->measured; }

GCKPTI_FN void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                                  gckpti_operands *o)
{
    stored += ins->operands;
    o->out = o->aux = o->work = o->gradient = o->shard = GCKPTI_NONE;
    for (int i = 0; i < inputs; i++)
        o->in[i].value = o->in[i].gradient = o->in[i].total = GCKPTI_NONE;
    if (ins->kind != GCKPT_UPDATE && ins->kind != GCKPT_REDUCE) {
        o->out = *stored++;
        o->aux = *stored++;
    }
    if (ins->kind == GCKPT_OFFLOAD || ins->kind == GCKPT_RELOAD)
        return;
    if (ins->kind != GCKPT_UPDATE)
        o->work = *stored++;
    if (ins->kind != GCKPT_FORWARD)
        o->gradient = *stored++;
    if (ins->kind == GCKPT_REDUCE)
        o->shard = *stored++;
    for (int i = 0; i < inputs && ins->kind <= GCKPT_BACKWARD; i++) {
        o->in[i].value = *stored++;
        if (ins->kind == GCKPT_FORWARD)
            continue;
        o->in[i].gradient = *stored++;
        o->in[i].total = *stored++;
    }
    o->more = stored;
}

GCKPTI_FN int gckpti_ins_tensor(const gckpt_plan *plan, const gckpti_ins *ins)
{
    return ins->kind == GCKPT_UPDATE ? plan->params[ins->id].node : ins->id;
}

GCKPTI_FN size_t gckpti_node_bytes(const gckpti_node *q)
{
    return (size_t)gckpti_elements(&q->shape) * (q->rounding & GCKPTI_NARROW_VALUE ? 2 : 4);
}

GCKPTI_FN const char *gckpti_node_name(const gckpt_plan *plan, int id)
{
    const gckpti_node *node = &plan->nodes[id];
    return node->name != GCKPTI_NAMELESS ? plan->names + node->name
           : node->op                    ? node->op->name
                                         : "";
}

GCKPTI_FN int gckpti_levels(int leaves)
{
    int n = 0;
    while (leaves >> n > 1)
        n++;
    return n;
}
