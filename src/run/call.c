#include "run/internal.h"
#include "graph/graph.h"

/* Returns the address of an offset into the arena; NULL for GCKPTI_NO_OFFSET. */
GCKPTI_FN void *gckpti_arena_ptr(const gckpt_exec *e, size_t offset)
{
    GCKPT_ASSERT(offset == GCKPTI_NO_OFFSET || offset < e->plan->arena);
    return offset == GCKPTI_NO_OFFSET ? NULL : e->blocks.arena + offset;
}

GCKPTI_FN float *gckpti_arena_f32(const gckpt_exec *e, size_t offset)
{
    return (float *)gckpti_arena_ptr(e, offset);
}

/* Returns a node's shape for a micro-batch of `rows` rows. */
GCKPTI_FN gckpt_shape gckpti_node_shape(const gckpt_exec *e, const gckpti_plan_node *node,
                                        int64_t rows)
{
    gckpt_shape s = gckpti_planned_shape(e->plan, node);
    if (!node->batch_invariant && s.n && rows != e->plan->rows)
        s.d[0] = s.d[0] / e->plan->rows * rows;
    return s;
}

GCKPTI_FN int64_t gckpti_micro_rows(const gckpt_exec *e)
{
    return gckpti_min(gckpti_rows_end(e) - e->step.row, e->plan->rows);
}

/* Initialises a call without op and inputs; all operands are NULL. */
GCKPTI_FN void gckpti_init_call(const gckpt_exec *e, gckpt_call *c)
{
    memset(c, 0, sizeof *c);
    c->seed = e->store->seed;
    c->step = e->step.number;
    c->threads = e->plan->threads;
    c->plain = e->plan->backend_id != GCKPTI_BACKEND_CPU;
    c->training = e->plan->mode != GCKPT_INFERENCE;
    c->runner = &e->device.runner;
    c->kernels = e->device.kernels;
    c->backend = GCKPTI_OF(gckpti_backend(e), context);
}

/* Initialises an op's call, except arena addresses. */
GCKPTI_FN void gckpti_init_op_call(const gckpt_exec *e, const gckpti_plan_node *node, int id,
                                   int64_t rows, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    gckpti_init_call(e, c);
    c->inputs = node->inputs;
    c->shape = gckpti_node_shape(e, node, rows);
    for (int i = 0; i < node->inputs; i++)
        c->in[i].shape = gckpti_node_shape(e, &p->nodes[node->in[i]], rows);
    c->attributes = node->attribute_bytes ? p->words + node->attributes : NULL;
    c->first_row = node->batch_invariant ? 0 : e->step.row;
    c->rows = node->batch_invariant ? 1 : rows;
    c->position = e->step.position;
    c->id = id;
    gckpti_set_precision(p, node, c);
}

/* Sets the values of an operand: those of node q, in its type. */
GCKPTI_FN void gckpti_set_data(const gckpti_plan_node *q, const void *data, gckpt_arg *arg)
{
    if (gckpti_set_narrow(q, data, arg))
        return;
    if (q->type == GCKPT_I32)
        arg->index = (const int32_t *)data;
    else if (q->type == GCKPT_U8)
        arg->bytes = (const uint8_t *)data;
    else
        arg->data = (const float *)data;
}

/* Returns 1 if node `user` is an op that reads node `id`, or a view of it. */
GCKPTI_FN int gckpti_reads_node(const gckpt_plan *p, int user, int id)
{
    for (int i = 0; i < p->nodes[user].inputs && p->nodes[user].op; i++)
        if (p->nodes[p->nodes[user].in[i]].base == id)
            return 1;
    return 0;
}

/* Returns 1 if instruction x has an operand at this offset of the arena. */
GCKPTI_FN int gckpti_has_operand(const gckpt_plan *p, int x, size_t offset)
{
    size_t k = p->ins[x].operands;
    size_t end = x + 1 < (int)p->length ? p->ins[x + 1].operands : p->operand_count;
    while (k < end && p->operands[k] != offset)
        k++;
    return k < end;
}

/* Sets device.in_call, which the caller clears. Fails if a call runs or the store was freed. */
GCKPTI_FN gckpt_result gckpti_enter_call(gckpt_exec *e)
{
    if (GCKPTI_RUNS_BACKENDS && !e->device.binding.store)
        return gckpti_error(e, GCKPT_E_ARG,
                            "step: the executor's store was freed: free a store "
                            "after its executors");
    if (GCKPTI_RUNS_BACKENDS && e->device.in_call)
        return gckpti_error(e, GCKPT_E_ARG,
                            "step: a call of this executor is under way, in another thread or "
                            "around this callback: each thread needs an executor of its own");
    e->device.in_call = GCKPTI_RUNS_BACKENDS;
    return GCKPT_OK;
}
