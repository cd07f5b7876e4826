#include "run/own.h"

/* Waits, before what comes next, for moves that were begun. */
GCKPTI_FN void gckpti_join(gckpt_exec *e)
{
    if (GCKPTI_RUNS_BACKENDS && e->offload.due < INT32_MAX)
        gckpti_on(e)->join(gckpti_on(e)->context);
    e->offload.due = INT32_MAX;
}

/* Begins a move, and finds the first instruction that must wait for it: one that may read what
 * comes in, or that writes where something goes out from. */
static void gckpti_begin_move(gckpt_exec *e, int out, size_t far, size_t offset, size_t bytes)
{
    const gckpt_plan *p = e->plan;
    void *host = e->offload.far + far, *here = e->blocks.arena + offset;
    gckpti_on(e)->move(gckpti_on(e)->context, out ? host : here, out ? here : host, bytes, out);
    if (!out)
        e->offload.due = e->step.pc + 1;
    for (size_t i = 0; i < p->life_count; i++)
        if (p->lives[i].start > e->step.pc && p->lives[i].offset < offset + bytes &&
            p->lives[i].offset + p->lives[i].size > offset)
            gckpti_lower(&e->offload.due, p->lives[i].start);
    for (int x = e->step.pc + 1; x < (int)p->length && x < e->offload.due; x++) /* in place */
        if (p->list[x].kind == GCKPT_FORWARD && p->operands[p->list[x].operands] == offset)
            gckpti_lower(&e->offload.due, x);
    gckpti_lower(&e->offload.due, (int)p->length);
}

/* Copies `bytes` bytes between the arena, from an offset on, and slower memory. */
static gckpt_result gckpti_copy_far(gckpt_exec *e, const gckpti_ins *ins, size_t far, size_t offset,
                                    size_t bytes)
{
    const gckpt_backend *b = gckpti_on(e);
    const gckpt_exec_desc *d = &e->desc;
    size_t done = bytes;
    void *here = gckpti_at_any(e, offset);
    void *host = !d->offload ? e->offload.far + far : b->own_memory ? e->blocks.borrowed : here;
    if (e->offload.moves) {
        gckpti_begin_move(e, ins->kind == GCKPT_OFFLOAD, far, offset, bytes);
    } else if (ins->kind == GCKPT_OFFLOAD) {
        if (host != here)
            b->copy_out(b->context, host, here, bytes);
        if (d->offload)
            done = d->offload(d->user, far, host, bytes);
    } else {
        if (d->offload)
            done = d->reload(d->user, far, host, bytes);
        if (host != here && done == bytes)
            b->copy_in(b->context, here, host, bytes);
    }
    return done == bytes ? GCKPT_OK
                         : gckpti_error(e, GCKPT_E_FILE,
                                        "step: %s of \"%s\" copied %z of %z bytes; nothing was "
                                        "changed",
                                        ins->kind == GCKPT_OFFLOAD ? "offload" : "reload",
                                        gckpti_node_name(e->plan, ins->id), done, bytes);
}

/* A value and aux go to slower memory or come back; of a short micro-batch the rows it has. */
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    int64_t rows = gckpti_micro_rows(e);
    size_t value = gckpti_node_bytes(node);
    gckpt_result result = GCKPT_OK;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (!node->batchless)
        value = value / (size_t)p->rows * (size_t)rows;
    if (o.out != GCKPTI_NONE)
        result = gckpti_copy_far(e, ins, p->told[ins->id].far_value, o.out, value);
    if (o.aux != GCKPTI_NONE && result == GCKPT_OK)
        result = gckpti_copy_far(e, ins, p->told[ins->id].far_aux, o.aux, node->aux_bytes);
    if (ins->kind == GCKPT_OFFLOAD || !(gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE) ||
        result != GCKPT_OK)
        return result;
    gckpti_join(e);
    gckpt_call c;
    gckpti_call_start(e, node, ins->id, rows, &c);
    c.out = gckpti_at(e, o.out);
    c.aux = gckpti_at(e, o.aux);
    return gckpti_compare(e, ins, &c,
                          node->rounding & GCKPTI_NARROW_VALUE ? gckpti_at_bf16(e, o.out) : NULL);
}
