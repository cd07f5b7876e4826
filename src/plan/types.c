#include "plan/internal.h"
#include "num/num.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_FN int gckpti_has_update(const gckpti_plan_param *q) { return q->trained || q->running; }

GCKPTI_FN void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                                  gckpti_operands *o)
{
#define GCKPTI_OPERANDS(kind, handler, operands) operands,
    static const unsigned char operands[] = { GCKPTI_KINDS(GCKPTI_OPERANDS) };
#undef GCKPTI_OPERANDS
    const unsigned has = operands[ins->kind];
    stored += ins->operands;
    o->out = has & GCKPTI_TAKES_OUT ? *stored++ : GCKPTI_NO_OFFSET;
    o->saved = has & GCKPTI_TAKES_SAVED ? *stored++ : GCKPTI_NO_OFFSET;
    o->workspace = has & GCKPTI_TAKES_WORKSPACE ? *stored++ : GCKPTI_NO_OFFSET;
    o->gradient = has & GCKPTI_TAKES_GRADIENT ? *stored++ : GCKPTI_NO_OFFSET;
    o->shard = has & GCKPTI_TAKES_SHARD ? *stored++ : GCKPTI_NO_OFFSET;
    for (int i = 0; i < inputs; i++) {
        o->in[i].value = has & GCKPTI_TAKES_VALUES ? *stored++ : GCKPTI_NO_OFFSET;
        o->in[i].gradient = has & GCKPTI_TAKES_GRADIENTS ? *stored++ : GCKPTI_NO_OFFSET;
        o->in[i].total = has & GCKPTI_TAKES_GRADIENTS ? *stored++ : GCKPTI_NO_OFFSET;
    }
    o->addends = stored;
}

GCKPTI_FN int gckpti_ins_node(const gckpt_plan *plan, const gckpti_ins *ins)
{
    return ins->kind == GCKPT_UPDATE ? plan->params[ins->id].node : ins->id;
}

GCKPTI_FN gckpt_shape gckpti_planned_shape(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const gckpti_extent *sizes = p->sizes + q->shape;
    gckpt_shape s;
    s.n = (int)*sizes;
    for (int i = 0; i < GCKPT_MAX_DIMS; i++)
        s.d[i] = i < s.n ? *++sizes : 0;
    return s;
}

GCKPTI_FN int64_t gckpti_planned_elements(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const gckpti_extent *sizes = p->sizes + q->shape;
    int64_t n = 1;
    for (int axes = (int)*sizes; axes > 0; axes--)
        n *= *++sizes;
    return n;
}

GCKPTI_FN size_t gckpti_planned_bytes(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const size_t size = q->type == GCKPT_U8 ? 1 : gckpti_value_size(q->rounding);
    return (size_t)gckpti_planned_elements(p, q) * size;
}

GCKPTI_FN const char *gckpti_planned_name(const gckpt_plan *plan, int id)
{
    const gckpti_plan_node *node = &plan->nodes[id];
    return node->name != GCKPTI_NAMELESS ? plan->names + node->name
           : node->op                    ? node->op->name
                                         : "";
}

/* Returns whether op is batch norm with one value per channel in each row of the shape's `rows`. */
GCKPTI_FN int gckpti_is_single_norm(const gckpt_op *op, const gckpt_shape *shape, int64_t rows)
{
    return op && op->flags & GCKPTI_BUILTIN_OP && gckpti_has_running(op) &&
           gckpti_rows(shape) == rows;
}
