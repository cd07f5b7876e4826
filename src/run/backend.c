#include "run/own.h"

GCKPTI_COLD

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
    return exec ? exec->on.isa : GCKPT_ISA_AUTO;
}

/* The one that the plan's workspace and bytes are for: the processor's, from the widest vectors on,
 * or the user's: what that leaves out is as the processor's plain one does it. */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = e->desc.backend;
    const gckpt_isa wish = e->desc.isa;
    if (p->made_for > GCKPTI_FOR_PLAIN ? !b || gckpti_made_for(b, 0) != p->made_for : b != NULL)
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            p->made_for > GCKPTI_FOR_PLAIN ? "another backend" : "the processor",
                            b ? b->name : "NULL");
    e->on.isa = GCKPT_ISA_PLAIN;
    if (!GCKPTI_RUNS_BACKENDS && wish <= GCKPT_ISA_PLAIN)
        return GCKPT_OK;
    if (!gckpt_isa_available(wish))
        return gckpti_error(
            e->store, GCKPT_E_ARG,
            "exec: this processor or build%s has no %s kernels; gckpt_exec_desc.isa = "
            "GCKPT_ISA_AUTO takes what there is",
            gckpti_isa_left_out(wish), gckpt_isa_name(wish));
#ifndef GCKPT_SMALL
    gckpt_backend *on = &e->on.backend;
    const gckpt_backend *plain = &gckpti_backend_plain;
    if (!b) {
        const int most = gckpti_plan_rounds(p) ? GCKPT_ISA_AMX : GCKPT_ISA_AVX512;
        int isa = wish == GCKPT_ISA_AUTO ? most : (int)wish;
        if (gckpti_debug(e) & GCKPT_DEBUG_PLAIN || p->made_for == GCKPTI_FOR_PLAIN)
            isa = GCKPT_ISA_PLAIN;
        const gckpt_backend *cpu = gckpti_cpu_backend((gckpt_isa)isa, &e->on.kernels);
        while (!cpu)
            cpu = gckpti_cpu_backend((gckpt_isa)--isa, &e->on.kernels);
        *on = *cpu;
        on->dequantise = p->packed ? gckpti_packed_unpack : NULL;
        e->on.isa = (gckpt_isa)isa;
        return GCKPT_OK;
    }
    if (b->own_memory && !(b->allocate && b->release && b->copy_in && b->copy_out && b->copy &&
                           b->find && b->fill && b->add && b->convert && b->update && b->finish &&
                           (!b->copy_async || (b->host_get && b->host_release && b->wait_copies))))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: backend %s has memory of its own, so all its functions to "
                            "finish but workspace are needed",
                            b->name);
    *on = *b;
    on->writes_back = b->update ? b->writes_back : plain->writes_back;
    on->copy_in = b->copy_in ? b->copy_in : plain->copy_in;
    on->copy_out = b->copy_out ? b->copy_out : plain->copy_out;
    on->copy = b->copy ? b->copy : plain->copy;
    on->fill = b->fill ? b->fill : plain->fill;
    on->add = b->add ? b->add : plain->add;
    on->convert = b->convert ? b->convert : plain->convert;
    on->update = b->update ? b->update : plain->update;
    on->finish = b->finish ? b->finish : plain->finish;
    if (p->packed && !b->own_memory && !b->dequantise)
        on->dequantise = gckpti_packed_unpack;
#endif
    return GCKPT_OK;
}

/* The kernels of an op. */
GCKPTI_FN gckpti_exec_node gckpti_bind_kernels(const gckpt_exec *e, const gckpti_node *node)
{
    const gckpt_backend *b = gckpti_on(e);
    int none = gckpti_debug(e) & GCKPT_DEBUG_PLAIN || !b->find;
    gckpti_exec_node n = { NULL, NULL, NULL };
    if (gckpti_precision_of(node->rounding) == GCKPT_BF16_FAST) {
        n.forward = b->find_fast(b->context, node->op, GCKPT_FORWARD);
        n.backward = b->find_fast(b->context, node->op, GCKPT_BACKWARD);
    } else if (!none) {
        n.forward = b->find(b->context, node->op, GCKPT_FORWARD);
        n.backward = b->find(b->context, node->op, GCKPT_BACKWARD);
    }
    if (!n.forward && !b->own_memory)
        n.forward = node->op->forward;
    if (!n.backward && !b->own_memory)
        n.backward = node->op->backward;
    return n;
}

GCKPTI_FN gckpt_result gckpti_wait(gckpt_exec *e)
{
    gckpti_land(e, 0);
    const char *problem = gckpti_on(e)->finish(gckpti_on(e)->context);
    return !problem ? GCKPT_OK
                    : gckpti_error(e, GCKPT_E_BACKEND, "step: %s: %s", gckpti_on(e)->name, problem);
}

GCKPTI_WARM
