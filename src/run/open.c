#include "run/own.h"
#include "graph/graph.h"

/* ---- blocks that suffice; structures count `times` times (gckpti_c_needs) ---- */
GCKPTI_FN size_t gckpti_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc, size_t times)
{
    gckpt_exec e;
    gckpt_store none; /* for errors that nobody reads */
    memset(&e, 0, sizeof e);
    memset(&none, 0, sizeof none);
    e.plan = plan;
    e.store = &none;
    if (desc)
        e.desc = *desc;
    if (!plan || gckpti_check_backend(&none, plan, e.desc.backend) != GCKPT_OK ||
        gckpti_choose_backend(&e) != GCKPT_OK)
        return SIZE_MAX;
    return gckpti_exec_sizes(&e, times);
}

GCKPT_API size_t gckpt_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc)
{
    return gckpti_exec_need(plan, desc, 1);
}

GCKPTI_FN size_t gckpti_store_need(const gckpt_plan *plan, size_t times)
{
    gckpt_parameter q;
    size_t used = 0, names = 0, n = plan ? plan->param_count : 0, last = 0, capacity = 0;
    while (capacity < n)
        capacity = gckpti_larger(capacity, 1);
    gckpti_count_piece(&used, times, sizeof(gckpt_store));
    gckpti_count_piece(&used, times * capacity, sizeof(gckpti_param));
    for (size_t i = 0; i < n; i++) {
        last = plan->params[i].place > plan->params[last].place ? i : last;
        names += strlen(plan->names + plan->params[i].name) + 1;
    }
    for (size_t k = 0; k < n; k++) { /* values, in the end those that are made last */
        size_t i = k + 1 == n ? last : k == last ? n - 1 : k;
        q.shape = plan->nodes[plan->params[i].node].shape;
        q.elements = plan->params[i].elements;
        q.storage = (gckpt_storage)plan->params[i].storage;
        if (q.storage == GCKPT_STORED_F32)
            q.elements = gckpti_in_memory(plan->ranks, plan->shard, GCKPT_SHARD_VALUES, q.elements);
        gckpti_count_piece(&used, !plan->params[i].external, gckpti_values_bytes(&q));
    }
    for (size_t i = 0; i < n; i++)
        for (int slot = 0; slot < plan->state_slots && plan->params[i].trained; slot++)
            gckpti_count_piece(&used,
                               (size_t)gckpti_in_memory(plan->ranks, plan->shard, GCKPT_SHARD_STATE,
                                                        plan->params[i].elements),
                               sizeof(float));
    if (plan && plan->made_for > GCKPTI_FOR_PLAIN) /* its backend may have memory of its own */
        gckpti_count_piece(&used, n, sizeof(gckpti_mirror));
    return gckpti_count_block(used + names);
}

GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan) { return gckpti_store_need(plan, 1); }

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
    if (!GCKPTI_LEAN && block)
        gckpti_plan_copy(block, plan);
    e->object.magic = GCKPTI_MAGIC;
    e->memory = a;
    e->plan = block ? (gckpt_plan *)block : plan;
    e->store = store;
    if (desc)
        e->desc = *desc;
    e->runner.parallel_for = e->desc.parallel_for;
    e->runner.user = e->desc.user;
    return e;
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
        !gckpti_bind(e->store, &e->binding, e->desc.backend))
        result = gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for the list of copies");
    for (size_t i = 0; i < e->plan->param_count && result == GCKPT_OK; i++)
        result = gckpti_bring(e, &e->store->params[e->params[i].index]);
    return result;
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
    int team =
        !GCKPTI_LEAN && !gckpti_on(e)->own_memory && plan->threads > 1 && gckpti_worth_a_team(e);
    e->team = team ? plan->threads : 1;
    e->writes_back = gckpti_on(e)->writes_back || plan->optimiser == GCKPT_OWN_OPTIMISER;
    for (size_t i = 0; i < plan->pick_count; i++) {
        const gckpti_node *q = &plan->nodes[plan->nodes[plan->picks[i].id].base];
        e->writes_back = e->writes_back || (plan->picks[i].gradient && q->kind == GCKPTI_PARAM);
    }
    e->repeats = !GCKPTI_LEAN && gckpti_repeatable(e);
    gckpti_ok(store);
    return e;
}
