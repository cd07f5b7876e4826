#include "run/internal.h"

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
