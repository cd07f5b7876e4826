#include "planner/internal.h"
#include "graph/graph.h"

/* Returns (plan's cost - least) / plan's least cost. */
static double gckpti_relative_cost(const gckpt_plan *plan, uint64_t least)
{
    return plan->least_cost ? (double)(plan->cost - least) / (double)plan->least_cost : 0;
}

GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out)
{
    if (!plan || !plan->info || !out || i < 0 || (size_t)i >= plan->length)
        return GCKPT_E_ARG;
    const gckpti_ins *ins = &plan->ins[i];
    const int id = gckpti_ins_node(plan, ins);
    const gckpt_cost none = { 0, 0 }, *cost = id < 0 ? &none : &plan->info[id].cost;
    out->moved = 0;
    out->cost = ins->kind == GCKPT_FORWARD    ? cost->forward
                : ins->kind == GCKPT_BACKWARD ? cost->backward
                                              : 0;
    gckpti_price_copy(plan, ins, out);
    out->live = plan->live_bytes[i];
    out->recompute = ins->kind == GCKPT_FORWARD && !ins->first;
    out->once = i < plan->body || i >= plan->epilogue;
    return GCKPT_OK;
}

/* Sets the cost of recomputes and of a step. */
static void gckpti_describe_cost(const gckpt_plan *plan, gckpt_plan_info *d)
{
    uint64_t body = 0, once = 0, forward[2] = { 0, 0 }; /* forward[1]: of recomputes */
    gckpt_usage u;
    uint64_t rows = (uint64_t)plan->rows, batch = gckpti_counted_rows(plan);
    for (int i = 0; gckpt_plan_usage(plan, i, &u) == GCKPT_OK; i++) {
        if (plan->ins[i].kind == GCKPT_FORWARD)
            forward[u.recompute] = gckpti_add_cost(forward[u.recompute], u.cost);
        gckpti_price_gather(plan, i, &u);
        uint64_t *sum = u.once ? &once : &body;
        *sum = gckpti_add_cost(*sum, u.cost);
    }
    d->recompute = forward[0] ? (double)forward[1] / (double)forward[0] : 0;
    d->step_cost = UINT64_MAX;
    if (body / rows >= UINT64_MAX / 2 / batch)
        return;
    body -= plan->hidden; /* so that a short micro-batch counts in proportion */
    body = body / rows * batch + body % rows * batch / rows;
    d->step_cost = gckpti_add_cost(once, body);
}

/* What gckpt_plan_describe copies: X(field of gckpt_plan_info, number of the plan). */
#define GCKPTI_INFO_NUMBERS(X)                                                                     \
    X(arena, arena) X(peak, peak) X(offloaded, host_bytes) X(cost, cost) X(hidden_cost, hidden)    \
    X(proven_cost, proven_cost) X(proven_bytes, proven_bytes) X(rows, rows) X(batch, batch)        \
    X(mode, mode) X(hash, hash)

GCKPT_API gckpt_plan_info gckpt_plan_describe(const gckpt_plan *plan)
{
    static const char *const names[] = { "auto", "store-all", "memory-poor", "segments",
                                         "sqrt", "optimal",   "schedule",    "inference" };
    gckpt_plan_info d;
    memset(&d, 0, sizeof d);
    if (!plan)
        return d;
#define GCKPTI_COPY_NUMBER(field, number) d.field = plan->number;
    GCKPTI_INFO_NUMBERS(GCKPTI_COPY_NUMBER)
    d.overhead = gckpti_relative_cost(plan, plan->least_cost);
    d.gap = gckpti_relative_cost(plan, plan->proven_cost);
    gckpti_describe_cost(plan, &d);
    d.update_in_backward = plan->update_in_backward != 0;
    d.mode_name = names[plan->mode];
    d.instructions = (int)plan->length;
    d.buffers = (int)plan->buffer_count;
    return d;
}

GCKPT_API size_t gckpt_plan_kind_bytes(const gckpt_plan *plan, int kind)
{
    if (plan && kind == GCKPT_BYTES_TABLES)
        return gckpti_plan_copy(NULL, plan);
    return plan && kind >= 0 && kind < GCKPT_BYTES_KINDS ? plan->kind_bytes[kind] : 0;
}

GCKPT_API gckpt_result gckpt_plan_get(const gckpt_plan *plan, int i, gckpt_instruction *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->length)
        return GCKPT_E_ARG;
    out->kind = (gckpt_kind)plan->ins[i].kind;
    out->id = gckpti_ins_node(plan, &plan->ins[i]);
    return GCKPT_OK;
}

GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id)
{
    return plan && id >= 0 && (size_t)id < plan->node_count ? gckpti_planned_name(plan, id) : "";
}

GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id)
{
    const gckpt_op *op =
        plan && id >= 0 && (size_t)id < plan->node_count ? plan->nodes[id].op : NULL;
    return op ? op->name : "";
}

GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->buffer_count)
        return GCKPT_E_ARG;
    *out = plan->buffers[i];
    return GCKPT_OK;
}

GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op)
{
    int mixer = plan ? plan->mixer : -1;
    for (size_t i = 0; plan && mixer < 0 && i < plan->node_count; i++)
        mixer = plan->nodes[i].rounding & GCKPTI_MIXES ? (int)i : -1;
    if (op)
        *op = mixer < 0 ? NULL : gckpti_planned_name(plan, mixer);
    return plan && mixer < 0;
}
