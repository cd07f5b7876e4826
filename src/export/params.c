#include "export/export.h"
#include "run/run.h"

/* ---- stores for plans that are compiled into a program ---- */
GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan)
{
    gckpt_parameter q;
    size_t used = 0, names = 0, n = plan ? plan->param_count : 0, last = 0, capacity = 0;
    while (capacity < n)
        capacity = gckpti_next_capacity(capacity, 1);
    gckpti_count_alloc(&used, 1, sizeof(gckpt_store));
    gckpti_count_alloc(&used, capacity, sizeof(gckpti_param));
    used = gckpti_round_up(used, GCKPTI_ALIGN); /* as gckpti_c_memory does */
    for (size_t i = 0; i < n; i++) {
        last = plan->params[i].store_index > plan->params[last].store_index ? i : last;
        names += gckpti_strlen(plan->names + plan->params[i].name) + 1;
    }
    for (size_t k = 0; k < n; k++) { /* values; the parameter created last comes last */
        size_t i = k + 1 == n ? last : k == last ? n - 1 : k;
        q.shape = gckpti_planned_shape(plan, &plan->nodes[plan->params[i].node]);
        q.elements = plan->params[i].elements;
        q.storage = (gckpt_storage)plan->params[i].storage;
        if (q.storage == GCKPT_STORAGE_F32)
            q.elements = gckpti_planned_capacity(plan, q.elements, GCKPTI_VALUES);
        gckpti_count_alloc(&used, !plan->params[i].external, gckpti_values_bytes(&q));
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t count = gckpti_planned_capacity(plan, plan->params[i].elements, 0);
        const size_t bytes = plan->params[i].state_bytes;
        for (int slot = 0; slot < plan->params[i].slots; slot++)
            gckpti_count_alloc(&used, bytes ? bytes : (size_t)count * sizeof(float), 1);
    }
    return gckpti_count_block(used + names);
}

GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store)
{
    if (!plan || !store)
        return gckpti_error(store, GCKPT_E_ARG, "plan_params: the plan or the store is NULL");
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    const char *problem = gckpti_plan_problem(plan);
    gckpt_result result =
        problem ? gckpti_error(store, GCKPT_E_ARG, "plan_params: %s", problem) : GCKPT_OK;
    size_t before = store->count;
    for (int done = -1; result == GCKPT_OK;) { /* in the order of their creation */
        const gckpti_plan_param *next = NULL;
        for (size_t i = 0; i < plan->param_count; i++)
            if (plan->params[i].store_index > done &&
                (!next || plan->params[i].store_index < next->store_index))
                next = &plan->params[i];
        if (!next)
            return gckpti_ok(store);
        done = next->store_index;
        const char *name = plan->names + next->name;
        const gckpt_shape shape = gckpti_planned_shape(plan, &plan->nodes[next->node]);
        int index = gckpti_find_param(store, name);
        gckpt_init init = { gckpti_float(next->init[0]), gckpti_float(next->init[1]),
                            gckpti_float(next->init[2]) };
        gckpti_param *q = index < 0 ? gckpti_param_new(store, name, &shape, init) : NULL;
        if (q) {
            q->p.storage = (gckpt_storage)next->storage;
            q->p.frozen = next->storage != GCKPT_STORAGE_F32;
        } else if (index < 0) {
            result = gckpti_error(store, GCKPT_E_MEMORY,
                                  "plan_params: the store has no memory for %I floats of \"%s\"",
                                  next->elements, name);
            gckpti_hint_block(store, "store", &store->memory, before ? 0 : gckpt_store_need(plan));
        } else if (!gckpti_same_shape(&store->params[index].p.shape, &shape)) {
            result = gckpti_error(store, GCKPT_E_SHAPE,
                                  "plan_params: \"%s\" is %S in the plan, %S in the store", name,
                                  &shape, &store->params[index].p.shape);
        }
    }
    gckpti_store_shrink(store, before);
    return result;
}
