#include "run/internal.h"

GCKPTI_COLD_BEGIN

/* Checks that the store's parameter q has the storage and state that parameter i of the plan needs.
 * If in_step is 0, e is being created, and its store gets the error; else e gets it. */
GCKPTI_FN gckpt_result gckpti_check_plan_param(gckpt_exec *e, int i, const gckpti_param *q,
                                               int in_step)
{
    const gckpti_plan_param *planned = &e->plan->params[i];
    const char *who = in_step ? "step" : "exec", *name = q->p.name;
    void *object = in_step ? (void *)e : e->store;
    if (GCKPTI_HAS_COMPRESSED && planned->storage != (gckpti_byte)q->p.storage)
        return gckpti_error(object, GCKPT_E_ARG,
                            "%s: \"%s\" is stored as %s, the plan was made for %s: quantise it "
                            "so (gckpt_store_quantise), or make a new plan",
                            who, name, gckpti_storage_name(q->p.storage),
                            gckpti_storage_name((gckpt_storage)planned->storage));
    if (gckpti_has_update(planned) && q->p.frozen)
        return gckpti_error(object, GCKPT_E_ARG,
                            "%s: \"%s\" was frozen after planning; make a new plan", who, name);
    const int resized = q->p.state[0] && q->p.state_bytes != planned->state_bytes;
    if (planned->slots &&
        (resized || (q->optimiser && q->optimiser != (int)e->plan->optimiser + 1)))
        return gckpti_error(
            object, GCKPT_E_ARG, "%s: \"%s\" %s state of another %s%s; gckpt_store_reset %s", who,
            name, in_step ? "got" : "holds", resized ? "size" : "optimiser",
            in_step ? " after this executor was made" : "",
            resized ? "frees it (on the heap, and when no executor uses the store)" : "clears it");
    if (GCKPTI_HAS_COMPRESSED && in_step && gckpti_state_slots(q) < planned->slots)
        return gckpti_error(e, GCKPT_E_ARG,
                            "step: \"%s\" lost its state as it was quantised; make a new executor",
                            name);
    return GCKPT_OK;
}

GCKPTI_COLD_END
