#include "run/internal.h"

#ifndef GCKPT_NO_DEVICES
GCKPTI_FN gckpt_result gckpti_use_backend(gckpt_exec *e)
{
    const gckpt_backend *b = e->desc.backend;
    gckpt_backend *backend = &e->devices.backend; /* all zero so far */
    const int own_memory = b && b->own_memory, id = e->plan->backend_id;
    if (id > GCKPTI_BACKEND_PLAIN ? !b || gckpti_backend_id(b, 0) != id : b != NULL)
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            id > GCKPTI_BACKEND_PLAIN ? "another backend" : "the processor",
                            b ? b->name : "NULL");
    if (own_memory && !(b->allocate && b->release && b->copy_in && b->copy_out && b->copy &&
                        b->find && b->fill && b->add && b->update && b->finish &&
                        (b->convert || !GCKPTI_RUNS_BF16) &&
                        (!b->copy_async || (b->host_get && b->host_release && b->wait_copies))))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: backend %s has its own memory, so all functions up to finish "
                            "except workspace are needed",
                            b->name);
    if (b) {
        *backend = *b;
        e->update.writes_back = !b->update || b->writes_back;
    }
    if (!own_memory)
        gckpti_complete_backend(backend);
    return GCKPT_OK;
}

/* Sets the kernels of an op: NULL if the host must run it. */
GCKPTI_FN void gckpti_find_kernels(const gckpt_exec *e, const gckpti_plan_node *node,
                                   gckpti_exec_node *kernels)
{
    const gckpt_backend *b = e->desc.backend;
    kernels->forward = node->op->forward;
    kernels->backward = node->op->backward;
    if (!b)
        return;
    gckpt_kernel (*find)(void *, const gckpt_op *, gckpt_kind) =
        gckpti_runs_fast(node->rounding)      ? b->find_fast
        : gckpti_debug(e) & GCKPT_DEBUG_PLAIN ? NULL
                                              : b->find;
    const gckpt_kernel forward = find ? find(b->context, node->op, GCKPT_FORWARD) : NULL;
    const gckpt_kernel backward = find ? find(b->context, node->op, GCKPT_BACKWARD) : NULL;
    if (forward || b->own_memory)
        kernels->forward = forward;
    if (backward || b->own_memory)
        kernels->backward = backward;
}

/* Returns the backend's advice after an allocation failed, or "". */
static const char *gckpti_memory_hint(const gckpt_exec *e)
{
    const gckpt_backend *b = gckpti_backend(e);
    return b->memory_hint ? b->memory_hint(b->context) : "";
}

GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e)
{
    gckpti_wait_in_flight(e, 0);
    const char *problem = gckpti_finish(gckpti_backend(e));
    return problem ? gckpti_error(e, GCKPT_E_BACKEND, "step: %s: %s", gckpti_backend(e)->name,
                                  problem)
                   : GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_alloc_backend(gckpt_exec *e)
{
    const gckpt_backend *b = gckpti_backend(e);
    const size_t size = e->blocks.backend_size;
    if (size < (size_t)PTRDIFF_MAX / 2)
        e->blocks.backend = (unsigned char *)b->allocate(b->context, size, e->plan->alignment);
    return e->blocks.backend ? GCKPT_OK
                             : gckpti_error(e->store, GCKPT_E_MEMORY,
                                            "exec: the backend has no memory for %z bytes of "
                                            "arena, sums, feeds%s",
                                            size, gckpti_memory_hint(e));
}

GCKPTI_FN gckpt_result gckpti_sync_param(gckpt_exec *e, gckpti_param *q, int in_step)
{
    const int states = e->plan->kind_bytes[GCKPT_BYTES_HOST_STATE] ? -1
                       : gckpti_is_inference(e->plan)              ? 0
                                                                   : gckpti_state_slots(q);
    if (!gckpti_backend(e)->own_memory)
        gckpti_pull(e->store, q);
    else if (!gckpti_push(e->store, q, e->desc.backend, states))
        return gckpti_error(in_step ? (void *)e : e->store, GCKPT_E_MEMORY,
                            "%s: backend %s has no memory for its copy of \"%s\"%s",
                            in_step ? "step" : "exec", gckpti_backend(e)->name, q->p.name,
                            gckpti_memory_hint(e));
    return GCKPT_OK;
}
#endif
