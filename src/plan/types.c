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
    const size_t size = q->type == GCKPT_U8 ? 1 : q->rounding & GCKPTI_BF16_VALUE ? 2 : 4;
    return (size_t)gckpti_planned_elements(p, q) * size;
}

GCKPTI_FN const char *gckpti_planned_name(const gckpt_plan *plan, int id)
{
    const gckpti_plan_node *node = &plan->nodes[id];
    return node->name != GCKPTI_NAMELESS ? plan->names + node->name
           : node->op                    ? node->op->name
                                         : "";
}

GCKPTI_FN int gckpti_tree_depth(int vranks)
{
    int n = 0;
    while (vranks >> n > 1)
        n++;
    return n;
}

GCKPTI_FN int64_t gckpti_vrank_first_row(int64_t batch, int vranks, int64_t vrank)
{
    return batch / vranks * vrank + (batch % vranks * vrank + vranks - 1) / vranks;
}

GCKPTI_FN int64_t gckpti_vrank_batch(const gckpt_plan *p, int64_t rows)
{
    return p->mode == GCKPT_INFERENCE ? rows : p->batch;
}

GCKPTI_FN int64_t gckpti_vrank_rows(const gckpt_plan *p, int64_t rows, int64_t vrank)
{
    int64_t batch = gckpti_vrank_batch(p, rows);
    return gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, vrank + 1), rows) -
           gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, vrank), rows);
}

GCKPTI_FN int gckpti_is_single_norm(const gckpt_op *op, const gckpt_shape *shape, int64_t rows)
{
    return op && op->flags & GCKPTI_BUILTIN_OP && gckpti_has_running(op) &&
           gckpti_rows(shape) == rows;
}

GCKPTI_FN int gckpti_has_single_norm(const gckpt_plan *p, int64_t rows)
{
    int single = 0;
    for (int vrank = 0; p->mixer >= 0 && vrank < p->virtual_ranks && !single; vrank++) {
        const gckpt_shape shape = gckpti_planned_shape(p, &p->nodes[p->mixer]);
        single = gckpti_vrank_rows(p, rows, vrank) % p->rows == 1 &&
                 gckpti_is_single_norm(p->nodes[p->mixer].op, &shape, p->rows);
    }
    return single;
}

GCKPT_API int64_t gckpt_plan_rank_rows(const gckpt_plan *p, int64_t rows, int rank, int64_t *first)
{
    int64_t begin = 0, end = rows > 0 ? rows : 0;
    if (p && p->ranks > 1 && p->virtual_ranks >= p->ranks && rank >= 0 && rank < p->ranks) {
        int64_t n = p->virtual_ranks / p->ranks, batch = gckpti_vrank_batch(p, end);
        begin = gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, rank * n), end);
        end = gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, (rank + 1) * n), end);
    }
    if (first)
        *first = begin;
    return p ? end - begin : 0;
}
