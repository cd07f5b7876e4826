#ifndef GCKPT_NO_FETCH
#include "run/own.h"
#include "graph/graph.h"

GCKPTI_COLD

static size_t gckpti_pick_bytes(const gckpt_plan *p, const gckpti_plan_pick *pick)
{
    return (size_t)gckpti_planned_elements(p, &p->nodes[pick->id]) * sizeof(float);
}

/* Whether node `user` is of an op that reads node `id`, or a view of it. */
static int gckpti_uses_node(const gckpt_plan *p, int user, int id)
{
    for (int i = 0; i < p->nodes[user].inputs && p->nodes[user].op; i++)
        if (p->nodes[p->nodes[user].in[i]].base == id)
            return 1;
    return 0;
}

/* Whether an instruction makes the value of node `id`, or a part of its gradient; of what has no
 * batch axis, whether it adds all parts up. */
static int gckpti_makes(const gckpt_plan *p, const gckpti_ins *ins, int id, int gradient)
{
    int own = gckpti_ins_tensor(p, ins);
    int backward = ins->kind == GCKPT_BACKWARD || ins->kind == GCKPT_UPDATE;
    if (!gradient)
        return own == id && (ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) &&
               p->operands[ins->operands] != GCKPTI_NONE;
    return backward && (p->nodes[id].batchless ? own == id : gckpti_uses_node(p, own, id));
}

/* The instruction that a pick is complete with; the plan's length: the end of the step. */
static int gckpti_pick_ready(const gckpt_plan *p, const gckpti_plan_pick *pick)
{
    int x = (int)p->length;
    while (x-- > 0 && !gckpti_makes(p, &p->list[x], p->nodes[pick->id].base, pick->gradient))
        continue;
    return x < 0 ? (int)p->length : x;
}

GCKPTI_FN void gckpti_picks_tables(gckpt_exec *e, gckpti_block *b)
{
    e->picks = (gckpti_exec_pick *)gckpti_carve(b, e->plan->pick_count, sizeof *e->picks);
    for (size_t k = 0; k < e->plan->pick_count && gckpti_on(e)->own_memory; k++) {
        void *copy = gckpti_carve(b, gckpti_pick_bytes(e->plan, &e->plan->picks[k]), 1);
        if (copy)
            e->picks[k].copy = (float *)copy;
    }
}

GCKPTI_FN int gckpti_picks_write_back(const gckpt_plan *p)
{
    int picked = 0;
    for (size_t i = 0; i < p->pick_count; i++)
        picked |=
            p->picks[i].gradient && p->nodes[p->nodes[p->picks[i].id].base].kind == GCKPTI_PARAM;
    return picked;
}

/* A pick's number; -1, and an error: it is none. */
static int gckpti_find_pick(gckpt_exec *e, const char *who, int id, int gradient)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count; k++)
        if (p->picks[k].id == id && !p->picks[k].gradient == !gradient)
            return (int)k;
    gckpti_error(e, GCKPT_E_ARG,
                 "%s: %s %i, \"%s\", is not picked: name it in gckpt_plan_desc.fetch", who,
                 gradient ? "the gradient of tensor" : "tensor", id, gckpt_plan_name(p, id));
    return -1;
}

GCKPT_API const float *gckpt_fetch(gckpt_exec *exec, int id, int gradient)
{
    int k = exec ? gckpti_find_pick(exec, "fetch", id, gradient) : -1;
    if (k < 0)
        return NULL;
    const gckpti_plan_pick *pick = &exec->plan->picks[k];
    const int ready = exec->step.finished ? -1 : gckpti_pick_ready(exec->plan, pick);
    if (exec->step.pc <= ready) {
        gckpti_error(exec, GCKPT_E_ARG, "fetch: %s \"%s\" #%i is not computed yet: %s",
                     gradient ? "the gradient of" : "the value of", gckpt_plan_name(exec->plan, id),
                     id,
                     ready < (int)exec->plan->length ? "the step has not come so far"
                                                     : "it is complete at the end of the step");
        return NULL;
    }
    const float *here = gckpti_at(exec, pick->offset);
    if (!gckpti_on(exec)->own_memory)
        return here;
    gckpti_from_backend(exec, exec->picks[k].copy, here, gckpti_pick_bytes(exec->plan, pick));
    return exec->picks[k].copy;
}

/* Elements of so many rows, n being those of a micro-batch (what mixes rows has whole ones). */
static int64_t gckpti_elements_of(const gckpt_plan *p, int64_t n, int64_t rows)
{
    return rows / p->rows * n + n / p->rows * (rows % p->rows);
}

GCKPTI_FN gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count; k++) {
        const gckpti_exec_pick *at = &e->picks[k];
        int64_t n = gckpti_planned_elements(p, &p->nodes[p->picks[k].id]);
        const int64_t room = (int64_t)at->size; /* PTRDIFF_MAX / 4 at most */
        if (at->to && (rows / p->rows > room / n || gckpti_elements_of(p, n, rows) > room))
            return gckpti_error(e, GCKPT_E_ARG,
                                "collect: %I rows of \"%s\" #%i are more than the %z floats there "
                                "is room for (%I a micro-batch of %I rows)",
                                rows, gckpti_node_name(p, p->picks[k].id), p->picks[k].id, at->size,
                                n, p->rows);
    }
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_collect(gckpt_exec *exec, int id, int gradient, float *to, size_t size)
{
    int k = exec ? gckpti_find_pick(exec, "collect", id, gradient) : -1;
    if (k < 0)
        return GCKPT_E_ARG;
    if (exec->plan->nodes[id].batchless)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "collect: \"%s\" #%i has no batch axis, so no rows: gckpt_fetch has it",
                            gckpt_plan_name(exec->plan, id), id);
    gckpti_exec_pick before = exec->picks[k];
    exec->picks[k].to = to;
    exec->picks[k].size = size < PTRDIFF_MAX / 4 ? size : PTRDIFF_MAX / 4;
    const int64_t rows = exec->step.row_end - exec->step.first; /* of this rank */
    if (gckpti_check_collected(exec, exec->step.state == GCKPTI_IDLE ? 0 : rows) == GCKPT_OK)
        return gckpti_ok(exec);
    exec->picks[k] = before;
    return GCKPT_E_ARG;
}

GCKPTI_FN void gckpti_collect_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count && e->step.pc == p->epilogue; k++) {
        int64_t n = gckpti_planned_elements(p, &p->nodes[p->picks[k].id]);
        int64_t at = gckpti_elements_of(p, n, e->step.row - e->step.first);
        size_t count = (size_t)gckpti_elements_of(p, n, gckpti_micro_rows(e));
        if (e->picks[k].to)
            gckpti_from_backend(e, e->picks[k].to + at, e->blocks.arena + p->picks[k].offset,
                                count * sizeof(float));
    }
}

/* Adds the accumulators of node `id` that a user's backward wrote, but for `sum` itself, to it. */
static void gckpti_add_use(gckpt_exec *e, const gckpti_ins *backward, int id, float *sum)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[backward->id];
    gckpti_operands o;
    gckpt_call c;
    gckpti_bare_call(e, &c);
    gckpti_operands_of(p->operands, backward, node->inputs, &o);
    for (int i = 0; i < node->inputs; i++) {
        float *more = gckpti_at(e, o.in[i].gradient);
        if (p->nodes[node->in[i]].base == id && more != sum)
            gckpti_on(e)->add(&c, sum, more, gckpti_planned_elements(p, &p->nodes[id]));
    }
}

/* Looped plans: adds up the accumulators of each picked gradient for which no instruction does it,
 * of what depends on neither the batch nor a parameter that is trained; in the contract's order
 * (manual, 5f). A REDUCE has added up the body's uses. */
GCKPTI_FN void gckpti_add_uses(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count && p->looped && e->step.rows > 0; k++) {
        int id = p->nodes[p->picks[k].id].base, done = 0;
        float *sum = gckpti_at(e, p->picks[k].offset);
        for (size_t i = 0; i < k; i++) /* picked twice */
            done = done || (p->picks[i].gradient && p->nodes[p->picks[i].id].base == id);
        if (done || !p->picks[k].gradient || !p->nodes[id].batchless ||
            gckpti_pick_ready(p, &p->picks[k]) < (int)p->length)
            continue;
        for (size_t i = gckpti_crew_of(e) ? p->node_count : 0; i < 2 * p->node_count; i++) {
            int user = (int)(p->node_count - 1 - i % p->node_count);
            const int now = p->nodes[user].batchless == (i >= p->node_count);
            for (size_t x = 0; x < p->length && now && gckpti_uses_node(p, user, id); x++)
                if (p->list[x].kind == GCKPT_BACKWARD && p->list[x].id == user)
                    gckpti_add_use(e, &p->list[x], id, sum);
        }
    }
}

GCKPTI_WARM
#endif
