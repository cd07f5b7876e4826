#include "run/own.h"

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
    size_t used = 0, bytes = 0;
    void *copy = NULL;
    int k = exec ? gckpti_find_pick(exec, "fetch", id, gradient) : -1;
    if (k < 0)
        return NULL;
    if (!exec->finished && exec->pc <= exec->picked[k].ready) {
        gckpti_error(exec, GCKPT_E_ARG, "fetch: %s \"%s\" #%i is not computed yet: %s",
                     gradient ? "the gradient of" : "the value of", gckpt_plan_name(exec->plan, id),
                     id,
                     exec->picked[k].ready < (int)exec->plan->length
                         ? "the step has not come so far"
                         : "it is complete at the end of the step");
        return NULL;
    }
    if (!gckpti_on(exec)->own_memory)
        return gckpti_at(exec, exec->plan->picks[k].offset);
    for (int i = 0; i <= k; i++) {
        bytes = gckpti_pick_bytes(exec->plan, &exec->plan->picks[i]);
        copy = gckpti_carve(exec->picks, &used, bytes, 1);
    }
    gckpti_on(exec)->copy_out(gckpti_on(exec)->context, copy,
                              exec->arena + exec->plan->picks[k].offset, bytes);
    return (const float *)copy;
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
    gckpti_exec_pick before = exec->picked[k];
    exec->picked[k].to = to;
    exec->picked[k].size = size < PTRDIFF_MAX / 4 ? size : PTRDIFF_MAX / 4;
    int64_t rows = exec->state == GCKPTI_IDLE ? 0 : exec->row_end; /* of the step under way */
    if (gckpti_check_collected(exec, rows) == GCKPT_OK)
        return gckpti_ok(exec);
    exec->picked[k] = before;
    return GCKPT_E_ARG;
}
