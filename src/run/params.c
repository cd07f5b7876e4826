#include "run/own.h"
#include "num/num.h"

GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store)
{
    if (!plan || !store)
        return gckpti_error(store, GCKPT_E_ARG, "plan: a plan and a store are needed");
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    gckpt_result result = gckpti_check_plan(store, plan);
    size_t before = store->count;
    for (int done = -1; result == GCKPT_OK;) { /* in the order they were created */
        const gckpti_plan_param *next = NULL;
        for (size_t i = 0; i < plan->param_count; i++)
            if (plan->params[i].place > done && (!next || plan->params[i].place < next->place))
                next = &plan->params[i];
        if (!next)
            return gckpti_ok(store);
        done = next->place;
        const char *name = plan->names + next->name;
        const gckpt_shape *shape = &plan->nodes[next->node].shape;
        int index = gckpti_find(store, name);
        gckpt_init init = { gckpti_float(next->init[0]), gckpti_float(next->init[1]),
                            gckpti_float(next->init[2]) };
        gckpti_param *q = index < 0 ? gckpti_param_new(store, name, shape, 0, init) : NULL;
        if (q) {
            q->p.storage = (gckpt_storage)next->storage;
            q->p.frozen = next->storage != GCKPT_STORED_F32;
        } else if (index < 0) {
            result = gckpti_error(store, GCKPT_E_MEMORY,
                                  "plan: the store has no memory for the %I floats of \"%s\"",
                                  next->elements, name);
            gckpti_tell_block(store, "store", &store->memory, before ? 0 : gckpt_store_need(plan));
        } else if (!gckpti_same_shape(&store->params[index].p.shape, shape)) {
            result = gckpti_error(store, GCKPT_E_SHAPE,
                                  "plan: \"%s\" is %S in the plan, %S in the store", name, shape,
                                  &store->params[index].p.shape);
        }
    }
    gckpti_store_shrink(store, before);
    return result;
}
