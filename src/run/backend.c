#include "run/own.h"
#include "num/num.h"

GCKPTI_FN gckpt_result gckpti_check_plan(gckpt_store *s, const gckpt_plan *p)
{
    uint64_t hash = GCKPTI_FNV_START;
    if (p->format != GCKPT_PLAN_FORMAT || p->contract != GCKPT_CONTRACT)
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: printed by another version of gradckpt.h (format %i, contract "
                            "%i; here %i, %i): print it again with gckpt_plan_c",
                            p->format, p->contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < p->node_count && !GCKPTI_LEAN; i++)
        hash = gckpti_hash_planned(hash, p, i);
    hash = gckpti_hash_leaves(hash, p->leaves);
    if (!GCKPTI_LEAN &&
        (hash != p->check || (p->node_count && gckpti_hash_leaves(p->told[p->node_count - 1].hash,
                                                                  p->leaves) != p->hash)))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: the graph's hash is not what it was made with: an op or the "
                            "table was changed; print it again with gckpt_plan_c");
    if (p->threads < 1 || p->threads > 1024 || p->alignment < sizeof(float) ||
        p->alignment & (p->alignment - 1))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: %i threads, alignment %z: the table is damaged; print it again "
                            "with gckpt_plan_c",
                            p->threads, p->alignment);
#ifdef GCKPT_NO_FAST
    if (p->made_for == GCKPTI_FOR_CPU)
        return gckpti_error(
            s, GCKPT_E_ARG,
            "plan: its workspace is that of the fast kernels, which this build "
            "(GCKPT_NO_FAST) does not have; make it with gckpt_plan_desc.plain = 1");
#endif
    return GCKPT_OK;
}

/* A plan's workspace and bytes are those of what it was made for. */
GCKPTI_FN gckpt_result gckpti_check_backend(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_backend *backend)
{
    if (p->made_for > GCKPTI_FOR_PLAIN ? !backend || gckpti_made_for(backend, 0) != p->made_for
                                       : backend != NULL)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            p->made_for > GCKPTI_FOR_PLAIN ? "another backend" : "the processor",
                            backend ? backend->name : "NULL");
    return GCKPT_OK;
}

/* May a backend repeat micro-batches? Nothing in them may need the host. */
GCKPTI_FN int gckpti_repeatable(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int can =
        gckpti_on(e)->repeat && gckpti_on(e)->recorded && !gckpti_debug(e) && !e->desc.progress;
    for (int x = p->body; x < p->epilogue && can; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_exec_node *n = ins->kind == GCKPT_UPDATE ? NULL : &e->nodes[ins->id];
        const gckpti_node *node = &p->nodes[ins->id];
        if (!n || gckpti_ranking_of(p))
            can = 0;
        else if (ins->kind >= GCKPT_OFFLOAD)
            can = e->moves;
        else if (!node->op)
            can = p->params[node->index].storage == GCKPT_STORED_F32 || gckpti_on(e)->unpack;
        else
            can = (ins->kind == GCKPT_FORWARD ? n->forward : n->backward) != NULL;
    }
    return can && p->body < p->epilogue;
}

/* A team takes up to a hundred microseconds to wake and to end: is there work for it? */
GCKPTI_FN int gckpti_worth_a_team(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const double enough = 5e7;
    double flops = 0, rounds = p->batch > p->rows ? (double)p->batch / (double)p->rows : 1;
    for (size_t x = 0; x < p->length && flops < enough; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpt_op *op = ins->kind >= GCKPT_UPDATE ? NULL : p->nodes[ins->id].op;
        gckpt_call c;
        if (ins->kind == GCKPT_UPDATE)
            flops += 16 * (double)p->params[ins->id].elements;
        if (!op)
            continue;
        gckpti_call_start(e, &p->nodes[ins->id], ins->id, p->rows, &c);
        double forward = (double)(op->flops ? op->flops(&c) : (uint64_t)gckpti_elements(&c.shape));
        flops += (ins->kind == GCKPT_FORWARD ? 1 : 2) * rounds * forward;
    }
    return flops >= enough;
}

/* ---- instruction sets ---- */
GCKPT_API const char *gckpt_isa_name(gckpt_isa isa)
{
    static const char *const names[] = { "auto", "plain", "c", "neon", "avx2", "avx512" };
    return (unsigned)isa < GCKPT_ISA_COUNT ? names[isa] : "not a gckpt_isa";
}

GCKPT_API int gckpt_isa_available(gckpt_isa isa)
{
    const void *kernels;
    return isa == GCKPT_ISA_AUTO || gckpti_cpu_backend(isa, &kernels) != NULL;
}

GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec)
{
    return exec ? exec->isa : GCKPT_ISA_AUTO;
}

/* The processor's backend, from the widest vectors on, or the user's: what it leaves out is as the
 * processor's plain one does it. */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e)
{
    gckpt_isa wish = e->desc.isa;
    if (GCKPTI_LEAN && wish <= GCKPT_ISA_PLAIN) {
        e->isa = GCKPT_ISA_PLAIN;
        return GCKPT_OK;
    }
    if (!gckpt_isa_available(wish))
        return gckpti_error(
            e->store, GCKPT_E_ARG,
            "exec: this processor or build has no %s kernels; gckpt_exec_desc.isa = "
            "GCKPT_ISA_AUTO takes what there is",
            gckpt_isa_name(wish));
    int isa = wish == GCKPT_ISA_AUTO ? GCKPT_ISA_COUNT - 1 : (int)wish;
    if (gckpti_debug(e) & GCKPT_DEBUG_PLAIN || e->plan->made_for == GCKPTI_FOR_PLAIN)
        isa = GCKPT_ISA_PLAIN;
    const gckpt_backend *b = gckpti_cpu_backend((gckpt_isa)isa, &e->kernels);
    while (!b)
        b = gckpti_cpu_backend((gckpt_isa)--isa, &e->kernels);
    e->isa = (gckpt_isa)isa;
    e->backend = *b;
    e->backend.unpack = e->plan->packing ? e->plan->packing->unpack : NULL;
    if (!e->desc.backend)
        return GCKPT_OK;
    const gckpt_backend *plain = &gckpti_backend_plain;
    b = e->desc.backend;
    if (b->own_memory && !(b->get && b->release && b->copy_in && b->copy_out && b->copy &&
                           b->find && b->fill && b->add && b->convert && b->update && b->finish &&
                           (!b->move || (b->host_get && b->host_release && b->join))))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: backend %s has memory of its own, so all its functions to "
                            "finish but workspace are needed",
                            b->name);

    e->isa = GCKPT_ISA_PLAIN;
    e->kernels = NULL;
    void (*unpack)(const gckpt_call *, const gckpt_unpacking *) = e->backend.unpack;
    e->backend = *b;
    e->backend.writes_back = b->update ? b->writes_back : plain->writes_back;
    e->backend.copy_in = b->copy_in ? b->copy_in : plain->copy_in;
    e->backend.copy_out = b->copy_out ? b->copy_out : plain->copy_out;
    e->backend.copy = b->copy ? b->copy : plain->copy;
    e->backend.fill = b->fill ? b->fill : plain->fill;
    e->backend.add = b->add ? b->add : plain->add;
    e->backend.convert = b->convert ? b->convert : plain->convert;
    e->backend.update = b->update ? b->update : plain->update;
    e->backend.finish = b->finish ? b->finish : plain->finish;
    e->backend.unpack = b->unpack || b->own_memory ? b->unpack : unpack;
    return GCKPT_OK;
}
