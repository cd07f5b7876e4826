#include "run/internal.h"

GCKPTI_COLD_BEGIN

GCKPT_API int gckpt_isa_available(gckpt_isa isa)
{
    const void *kernels;
    return isa == GCKPT_ISA_AUTO || gckpti_cpu_has(isa, &kernels);
}

GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec)
{
    return exec ? exec->device.isa : GCKPT_ISA_AUTO;
}

/* Takes the CPU's widest vectors, or desc.backend, completed by the CPU's plain functions. */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_isa requested = e->desc.isa;
    int isa = GCKPT_ISA_PLAIN;
    e->update.writes_back = 1;
    if (GCKPTI_RUNS_BACKENDS || requested > GCKPT_ISA_PLAIN) {
        if (!gckpt_isa_available(requested))
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: this processor or build has no kernels of gckpt_isa %i; "
                                "gckpt_exec_desc.isa = GCKPT_ISA_AUTO takes what there is",
                                (int)requested);
        const int most = gckpti_widest_isa(p);
        if (p->backend_id == GCKPTI_BACKEND_CPU && !(gckpti_debug(e) & GCKPT_DEBUG_PLAIN))
            isa = requested == GCKPT_ISA_AUTO ? most : (int)requested;
        while (!gckpti_cpu_has((gckpt_isa)isa, &e->device.kernels))
            isa--;
        e->update.writes_back = !e->device.kernels;
    }
    e->device.isa = (gckpt_isa)isa;
    return gckpti_use_backend(e);
}

/* Returns the kernels of an op. */
GCKPTI_FN gckpti_exec_node gckpti_op_kernels(const gckpt_exec *e, const gckpti_plan_node *node)
{
    const gckpt_op *op = node->op;
    gckpti_exec_node kernels = { op->forward, op->backward, NULL };
    (void)e; /* only devices read it */
    if (GCKPTI_RUNS_DEVICES)
        gckpti_take_device_kernels(e, node, &kernels);
    return kernels;
}

GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e)
{
    const gckpt_backend *b = gckpti_backend(e);
    gckpti_wait_in_flight(e, 0);
    const char *problem = gckpti_finish(b);
    return problem ? gckpti_error(e, GCKPT_E_BACKEND, "step: %s: %s", GCKPTI_OF(b, name), problem)
                   : GCKPT_OK;
}

GCKPTI_COLD_END
