#include "ask/own.h"
#include "graph/graph.h"

/* Work more than the least there is, as a part of that. */
static double gckpti_work_above(const gckpt_plan *plan, uint64_t least)
{
    return plan->least_work ? (double)(plan->work - least) / (double)plan->least_work : 0;
}

/* What is one number of a plan; 0 without one. */
#define GCKPTI_TELLS(type, name, value)                                                            \
    GCKPT_API type gckpt_plan_##name(const gckpt_plan *plan) { return plan ? (value) : (type)0; }
GCKPTI_TELLS(gckpt_mode, mode, plan->mode)
GCKPTI_TELLS(size_t, bytes,
             plan->kind_bytes[GCKPT_BYTES_PARAMETERS] + plan->kind_bytes[GCKPT_BYTES_STATE] +
                 plan->kind_bytes[GCKPT_BYTES_CACHES] + plan->kind_bytes[GCKPT_BYTES_COPIES] +
                 plan->arena)
GCKPTI_TELLS(size_t, arena, plan->arena)
GCKPTI_TELLS(size_t, peak, plan->bound)
GCKPTI_TELLS(size_t, offloaded, plan->offloaded)
GCKPTI_TELLS(size_t, proven_bytes, plan->proven_bytes)
GCKPTI_TELLS(double, recompute, plan->recompute)
GCKPTI_TELLS(double, overhead, gckpti_work_above(plan, plan->least_work))
GCKPTI_TELLS(double, gap, gckpti_work_above(plan, plan->proven_work))
GCKPTI_TELLS(uint64_t, cost, plan->work)
GCKPTI_TELLS(uint64_t, hidden_cost, plan->hidden)
GCKPTI_TELLS(uint64_t, proven_cost, plan->proven_work)
GCKPTI_TELLS(uint64_t, hash, plan->hash)
GCKPTI_TELLS(int64_t, rows, plan->rows)
GCKPTI_TELLS(int64_t, batch, plan->batch)
GCKPTI_TELLS(int, in_backward, plan->update_in_backward != 0)
GCKPTI_TELLS(int, length, (int)plan->length)
GCKPTI_TELLS(int, buffers, (int)plan->life_count)
#undef GCKPTI_TELLS

GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out)
{
    if (!plan || !plan->told || !out || i < 0 || (size_t)i >= plan->length)
        return GCKPT_E_ARG;
    const gckpti_ins *ins = &plan->list[i];
    const int id = gckpti_ins_tensor(plan, ins);
    const gckpti_node *node = &plan->nodes[id];
    const gckpt_cost *cost = &plan->told[id].cost;
    gckpti_operands o;
    size_t planned = 0; /* as the work is reckoned, rounded up */
    out->moved = 0;
    gckpti_operands_of(plan->operands, ins, node->inputs, &o);
    for (int aux = 0; aux < 2 && ins->kind >= GCKPT_OFFLOAD && ins->kind < GCKPT_REDUCE; aux++) {
        size_t bytes = (aux ? o.aux : o.out) == GCKPTI_NONE ? 0
                       : aux                                ? node->aux_bytes
                                                            : gckpti_node_bytes(plan, node);
        out->moved += bytes;
        planned += gckpti_round_up(bytes, plan->alignment);
    }
    out->cost = ins->kind == GCKPT_FORWARD ? cost->forward
                : ins->kind == GCKPT_BACKWARD
                    ? cost->backward
                    : gckpti_copy_work(plan->offload_work, (int64_t)planned);
    out->live = plan->live[i];
    out->recompute = ins->kind == GCKPT_FORWARD && !ins->first;
    out->once = i < plan->body || i >= plan->epilogue;
    return GCKPT_OK;
}

GCKPT_API uint64_t gckpt_plan_step_cost(const gckpt_plan *plan)
{
    uint64_t body = 0, once = 0, rounds = 1;
    gckpt_usage u;
    if (!plan)
        return 0;
    uint64_t rows = (uint64_t)plan->rows, batch = (uint64_t)plan->batch;
    if (plan->leaves > 1) { /* of a rank's leaves */
        uint64_t leaves = (uint64_t)plan->leaves, leaf = (batch + leaves - 1) / leaves;
        leaves = leaves > (uint64_t)plan->ranks ? leaves / (uint64_t)plan->ranks : 1;
        rounds = (leaf + rows - 1) / rows * leaves;
        batch = (leaf > rows ? leaf : rows) * leaves; /* a leaf's only micro-batch counts whole */
    }
    for (int i = 0; gckpt_plan_usage(plan, i, &u) == GCKPT_OK; i++) {
        int gathers =
            plan->ranks > 1 && !u.once && plan->nodes[plan->list[i].id].kind == GCKPTI_PARAM;
        uint64_t *sum = u.once || gathers ? &once : &body;
        const uint64_t times = gathers ? rounds : 1; /* whatever the rows */
        *sum = gckpti_add_work(*sum, u.cost > UINT64_MAX / times ? UINT64_MAX : u.cost * times);
    }
    if (body / rows >= UINT64_MAX / 2 / batch)
        return UINT64_MAX;
    body -= plan->hidden;
    body = body / rows * batch + body % rows * batch / rows; /* a short one: in proportion */
    return gckpti_add_work(once, body);
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
    out->kind = (gckpt_kind)plan->list[i].kind;
    out->id = gckpti_ins_tensor(plan, &plan->list[i]);
    return GCKPT_OK;
}

GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id)
{
    return plan && id >= 0 && (size_t)id < plan->node_count ? gckpti_node_name(plan, id) : "";
}

GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id)
{
    const gckpt_op *op =
        plan && id >= 0 && (size_t)id < plan->node_count ? plan->nodes[id].op : NULL;
    return op ? op->name : "";
}

GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->life_count)
        return GCKPT_E_ARG;
    *out = plan->lives[i];
    return GCKPT_OK;
}

GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op)
{
    int mixer = plan ? plan->mixer : -1;
    for (size_t i = 0; plan && mixer < 0 && i < plan->node_count; i++)
        mixer = plan->nodes[i].rounding & GCKPTI_MIXES ? (int)i : -1;
    if (op)
        *op = mixer < 0 ? NULL : gckpti_node_name(plan, mixer);
    return plan && mixer < 0;
}

GCKPT_API const char *gckpt_mode_name(gckpt_mode mode)
{
    static const char *const names[] = { "auto", "store-all", "memory-poor", "segments",
                                         "sqrt", "optimal",   "schedule",    "inference" };
    return (unsigned)mode <= GCKPT_INFERENCE ? names[mode] : "not a gckpt_mode";
}
