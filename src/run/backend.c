#include "run/internal.h"

GCKPTI_COLD_BEGIN

GCKPT_API const char *gckpt_isa_name(gckpt_isa isa)
{
    static const char *const names[] = { "auto", "plain", "c", "neon", "avx2", "avx512", "amx" };
    return (unsigned)isa < GCKPT_ISA_COUNT ? names[isa] : "not a gckpt_isa";
}

GCKPT_API int gckpt_isa_available(gckpt_isa isa)
{
    const void *kernels;
    return isa == GCKPT_ISA_AUTO || gckpti_cpu_backend(isa, &kernels) != NULL;
}

GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec)
{
    return exec ? exec->device.isa : GCKPT_ISA_AUTO;
}

/* Takes the CPU's widest vectors, or desc.backend, completed by functions of the plain backend. */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = e->desc.backend;
    const gckpt_isa requested = e->desc.isa;
    if (p->backend_id > GCKPTI_BACKEND_PLAIN ? !b || gckpti_backend_id(b, 0) != p->backend_id
                                             : b != NULL)
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            p->backend_id > GCKPTI_BACKEND_PLAIN ? "another backend"
                                                                 : "the processor",
                            b ? b->name : "NULL");
    e->device.isa = GCKPT_ISA_PLAIN;
    if (!GCKPTI_RUNS_BACKENDS && requested <= GCKPT_ISA_PLAIN)
        return GCKPT_OK;
    if (!gckpt_isa_available(requested))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: this processor or build%s has no %s kernels; "
                            "gckpt_exec_desc.isa = GCKPT_ISA_AUTO takes what there is",
                            gckpti_isa_left_out(requested), gckpt_isa_name(requested));
#ifndef GCKPT_SMALL
    gckpt_backend *backend = &e->device.backend;
    const gckpt_backend *plain = &gckpti_backend_plain;
    if (!b) {
        const int most = gckpti_is_bf16_plan(p) ? GCKPT_ISA_AMX : GCKPT_ISA_AVX512;
        int isa = requested == GCKPT_ISA_AUTO ? most : (int)requested;
        const gckpt_backend *cpu;
        if (gckpti_debug(e) & GCKPT_DEBUG_PLAIN || p->backend_id == GCKPTI_BACKEND_PLAIN)
            isa = GCKPT_ISA_PLAIN;
        while (!(cpu = gckpti_cpu_backend((gckpt_isa)isa, &e->device.kernels)))
            isa--;
        *backend = *cpu;
        backend->dequantise = p->quantised ? gckpti_dequantise_all : NULL;
        e->device.isa = (gckpt_isa)isa;
        return GCKPT_OK;
    }
    if (b->own_memory && !(b->allocate && b->release && b->copy_in && b->copy_out && b->copy &&
                           b->find && b->fill && b->add && b->convert && b->update && b->finish &&
                           (!b->copy_async || (b->host_get && b->host_release && b->wait_copies))))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: backend %s has its own memory, so all functions up to finish "
                            "except workspace are needed",
                            b->name);
    *backend = *b;
    backend->writes_back = b->update ? b->writes_back : plain->writes_back;
    backend->copy_in = b->copy_in ? b->copy_in : plain->copy_in;
    backend->copy_out = b->copy_out ? b->copy_out : plain->copy_out;
    backend->copy = b->copy ? b->copy : plain->copy;
    backend->fill = b->fill ? b->fill : plain->fill;
    backend->add = b->add ? b->add : plain->add;
    backend->convert = b->convert ? b->convert : plain->convert;
    backend->update = b->update ? b->update : plain->update;
    backend->finish = b->finish ? b->finish : plain->finish;
    if (p->quantised && !b->own_memory && !b->dequantise)
        backend->dequantise = gckpti_dequantise_all;
#endif
    return GCKPT_OK;
}

/* Returns the kernels of an op. */
GCKPTI_FN gckpti_exec_node gckpti_op_kernels(const gckpt_exec *e, const gckpti_plan_node *node)
{
    const gckpt_backend *b = gckpti_backend(e);
    int none = gckpti_debug(e) & GCKPT_DEBUG_PLAIN || !b->find;
    gckpti_exec_node kernels = { NULL, NULL, NULL };
    if (gckpti_precision_of(node->rounding) == GCKPT_BF16_FAST) {
        kernels.forward = b->find_fast(b->context, node->op, GCKPT_FORWARD);
        kernels.backward = b->find_fast(b->context, node->op, GCKPT_BACKWARD);
    } else if (!none) {
        kernels.forward = b->find(b->context, node->op, GCKPT_FORWARD);
        kernels.backward = b->find(b->context, node->op, GCKPT_BACKWARD);
    }
    if (!kernels.forward && !b->own_memory)
        kernels.forward = node->op->forward;
    if (!kernels.backward && !b->own_memory)
        kernels.backward = node->op->backward;
    return kernels;
}

GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e)
{
    gckpti_wait_in_flight(e, 0);
    const char *problem = gckpti_backend(e)->finish(gckpti_backend(e)->context);
    const char *name = gckpti_backend(e)->name;
    return problem ? gckpti_error(e, GCKPT_E_BACKEND, "step: %s: %s", name, problem) : GCKPT_OK;
}

GCKPTI_COLD_END
