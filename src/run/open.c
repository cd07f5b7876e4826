#include "run/own.h"
#include "graph/graph.h"

/* An executor with its own copy of the plan, so that plans may go first, in any thread; unbound. */
static gckpt_exec *gckpti_exec_start(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc)
{
    gckpti_allocator a = gckpti_allocator_of(desc ? &desc->memory : NULL);
    gckpt_exec *e = (gckpt_exec *)gckpti_new(&a, 1, sizeof *e);
    size_t tables = gckpti_copied_bytes(plan);
    void *block = e && tables ? gckpti_resize(&a, NULL, 0, tables) : NULL;
    if (!e || (tables && !block)) {
        gckpti_delete(&a, e, 1, sizeof *e);
        gckpti_error(store, GCKPT_E_MEMORY, "exec: no memory for %z bytes", sizeof *e + tables);
        gckpti_tell_block(store, "executor", &a, gckpt_exec_need(plan, desc));
        return NULL;
    }
    if (GCKPTI_RUNS_MADE && block)
        gckpti_plan_copy(block, plan);
    e->object.magic = GCKPTI_MAGIC;
    e->memory = a;
    e->plan = block ? (gckpt_plan *)block : plan;
    e->store = store;
    if (desc)
        e->desc = *desc;
    e->on.runner.parallel_for = e->desc.parallel_for;
    e->on.runner.user = e->desc.user;
    return e;
}

/* All memory a run will need, and what is found out on the way: parameters, kernels, inputs that
 * must be fed, picks, caches, other ranks. */
static gckpt_result gckpti_exec_memory(gckpt_exec *e)
{
    (void)gckpti_exec_sizes(e, 1);
    e->blocks.tables = gckpti_new(&e->memory, e->blocks.tables_size, 1);
    if (!e->blocks.tables)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for its tables");
    gckpti_exec_tables(e, (unsigned char *)e->blocks.tables);
    gckpt_result result = gckpti_bind_params(e);
    if (result != GCKPT_OK)
        return result;
    result = gckpti_crew_bind(e);
    if (result != GCKPT_OK)
        return result;
    gckpti_bind_nodes(e);
    gckpti_bind_picks(e);
    (void)gckpti_exec_squares(e);
    e->blocks.side = gckpti_take(e, e->blocks.side_size, GCKPTI_ALIGN);
    if (!e->blocks.side)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of sums, feeds and constants%s",
                            e->blocks.side_size, gckpti_shortage(e));
    gckpti_exec_side(e, (unsigned char *)e->blocks.side);
    e->offload.due = INT32_MAX;
    result = GCKPTI_RUNS_BACKENDS ? gckpti_exec_host(e) : GCKPT_OK;
    if (result == GCKPT_OK)
        result = gckpti_bind_caches(e);
    return result == GCKPT_OK ? gckpti_exec_arena(e) : result;
}

/* Binds it: a backend, memory, values and state, and these to where the backend has them. */
static gckpt_result gckpti_exec_bind(gckpt_exec *e)
{
    gckpt_result result = gckpti_choose_backend(e);
    if (result == GCKPT_OK)
        result = gckpti_exec_memory(e);
    if (result == GCKPT_E_MEMORY)
        gckpti_tell_block(e->store, "executor", &e->memory, gckpt_exec_need(e->plan, &e->desc));
    if (result == GCKPT_OK)
        result = gckpti_bind_state(e);
    if (result == GCKPT_OK && gckpti_on(e)->own_memory &&
        !gckpti_bind(e->store, &e->on.binding, e->desc.backend))
        result = gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for the list of copies");
    for (size_t i = 0; i < e->plan->param_count && result == GCKPT_OK; i++)
        result = gckpti_bring(e, &e->store->params[e->bound.params[i].index]);
    return result;
}

/* A team takes up to a hundred microseconds to wake and to end: is there work for it? */
static int gckpti_worth_a_team(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const double enough = 5e7;
    double flops = 0, rounds = p->batch > p->rows ? (double)p->batch / (double)p->rows : 1;
    for (size_t x = 0; x < p->length && flops < enough; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpt_op *op = ins->kind >= GCKPT_UPDATE ? NULL : p->nodes[ins->id].op;
        gckpt_call c;
        if (ins->kind == GCKPT_UPDATE)
            flops += 16 * (double)p->params[ins->id].elements;
        if (!op)
            continue;
        gckpti_call_start(e, &p->nodes[ins->id], ins->id, p->rows, &c);
        double forward = (double)(op->flops ? op->flops(&c) : (uint64_t)gckpti_elements(&c.shape));
        flops += (ins->kind == GCKPT_FORWARD ? 1 : 2) * rounds * forward;
    }
    return flops >= enough;
}

GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc)
{
    if (!store || gckpti_check_binding(store, plan, desc) != GCKPT_OK)
        return NULL;
    gckpt_exec *e = gckpti_exec_start(plan, store, desc);
    if (!e)
        return NULL;
    if (gckpti_exec_bind(e) != GCKPT_OK) {
        gckpt_exec_free(e);
        return NULL;
    }
    int team = GCKPTI_RUNS_BACKENDS && !gckpti_on(e)->own_memory && plan->threads > 1 &&
               gckpti_worth_a_team(e);
    e->on.team = team ? plan->threads : 1;
    e->update.writes_back = gckpti_on(e)->writes_back || plan->optimiser == GCKPT_OWN_OPTIMISER ||
                            gckpti_picks_write_back(plan);
    e->recording.possible = GCKPTI_RUNS_BACKENDS && gckpti_repeatable(e);
    gckpti_ok(store);
    return e;
}

GCKPT_API void gckpt_exec_free(gckpt_exec *exec)
{
    if (!exec)
        return;
    gckpti_allocator a = exec->memory;
    const gckpt_plan *p = exec->plan;
    gckpti_leave(exec);
    gckpti_forget(exec);
    gckpti_unbind(&exec->on.binding);
    if (GCKPTI_RUNS_BACKENDS && exec->offload.moves && exec->offload.far)
        gckpti_on(exec)->host_release(gckpti_on(exec)->context, exec->offload.far, p->offloaded);
    gckpti_give(exec, exec->blocks.side, exec->blocks.side_size);
    gckpti_give(exec, exec->blocks.owned, exec->blocks.owned_size);
    gckpti_free_caches(exec);
    gckpti_delete(&a, exec->blocks.copies, exec->blocks.copies_size, 1);
    gckpti_delete(&a, exec->blocks.tables, exec->blocks.tables_size, 1);
    gckpti_delete(&a, p->block, gckpti_copied_bytes(p), 1);
    gckpti_delete(&a, exec, 1, sizeof *exec);
}
