#ifndef GCKPT_NO_DEVICES
#include "plan/internal.h"

/* ---- what planning asks a backend; NULL is the processor ---- */
GCKPTI_FN int gckpti_backend_id(const gckpt_backend *backend, int plain)
{
    const char *name = backend ? backend->name : NULL;
    if (!backend)
        return plain ? GCKPTI_BACKEND_PLAIN : GCKPTI_BACKEND_CPU;
    uint64_t hash = name ? gckpti_fnv(GCKPTI_FNV_START, name, strlen(name)) : 0;
    return 2 + (int)(hash & 0x3fffffff);
}

GCKPTI_FN const char *gckpti_backend_name(const gckpt_backend *b)
{
    return b ? b->name : "the processor";
}

GCKPTI_FN int gckpti_has_fast_kernel(const gckpt_backend *b, const gckpt_op *op)
{
    return b && b->find_fast && (!op || b->find_fast(b->context, op, GCKPT_FORWARD));
}

GCKPTI_FN int gckpti_streams_state(const gckpt_plan_desc *d)
{
    return d->offload.state && d->backend && d->backend->own_memory;
}

GCKPTI_FN size_t gckpti_state_workspace(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_optimiser o = p->desc->optimiser;
    const size_t n = gckpti_round_up((size_t)gckpti_elements(&t->shape), 16);
    const size_t most = GCKPTI_STREAMED;
    const size_t states = t->running ? 0 : (o == GCKPT_MOMENTUM) + 2u * (o == GCKPT_ADAMW);
    return gckpti_streams_state(p->desc) ? states * sizeof(float) * (n < most ? n : most) : 0;
}

GCKPTI_FN gckpt_result gckpti_query_backend(const gckpt_backend *b, const gckpt_op *op,
                                            gckpt_call *call)
{
    return b && b->workspace ? b->workspace(b->context, op, call) : GCKPT_OK;
}
#endif
