#ifndef GCKPT_SMALL
#include "run/internal.h"

/* Waits for the copies due at instruction x or before, and for all that were started earlier.
 * Returns `result` or, if that is OK or MORE and a copy failed, an error. */
GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result)
{
    int *due = e->offload.due, n = GCKPTI_RUNS_BACKENDS ? e->offload.pending_count : 0, failed = 0;
    while (n > 0 && due[n - 1] > x)
        n--;
    if (n == 0)
        return result;
    int later = e->offload.pending_count - n;
    if (!e->offload.by_backend && (failed = e->desc.wait(e->desc.user, later)) != 0) {
        e->desc.wait(e->desc.user, later = 0); /* so that no callback writes later */
    } else if (e->offload.by_backend && gckpti_backend(e)->wait_copies_until && later) {
        gckpti_backend(e)->wait_copies_until(gckpti_backend(e)->context, later);
    } else if (e->offload.by_backend) {
        gckpti_backend(e)->wait_copies(gckpti_backend(e)->context);
        later = 0;
    }
    memmove(due, due + e->offload.pending_count - later, (size_t)later * sizeof *due);
    e->offload.pending_count = later;
    return failed && (result == GCKPT_OK || result == GCKPT_MORE)
               ? gckpti_error(e, GCKPT_E_FILE,
                              "step: a copy to slower memory or back failed; nothing was changed")
               : result;
}

/* Returns 1 if instruction x has an operand at this offset of the arena. */
static int gckpti_has_operand(const gckpt_plan *p, int x, size_t offset)
{
    size_t k = p->ins[x].operands;
    size_t end = x + 1 < (int)p->length ? p->ins[x + 1].operands : p->operand_count;
    while (k < end && p->operands[k] != offset)
        k++;
    return k < end && p->ins[x].kind != GCKPT_OFFLOAD_DONE;
}

/* Records a pending copy and the first instruction that must wait for it: a reader of a reloaded
 * value, or a writer of the bytes (POISON also writes at the end of a buffer). */
static void gckpti_add_pending_copy(gckpt_exec *e, int out, size_t offset, size_t bytes)
{
    const gckpt_plan *p = e->plan;
    const int poisons = gckpti_debug(e) & GCKPT_DEBUG_POISON;
    int due = (int)p->length, pc = e->step.pc;
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *buffer = &p->buffers[i];
        if (buffer->offset >= offset + bytes || buffer->offset + buffer->size <= offset)
            continue;
        if (buffer->start > pc || (poisons && buffer->end >= pc))
            gckpti_set_min(&due, buffer->start > pc ? buffer->start : buffer->end + 1);
    }
    for (int x = pc + 1; x < due; x++)
        if (out ? p->ins[x].kind == GCKPT_FORWARD && p->operands[p->ins[x].operands] == offset
                : gckpti_has_operand(p, x, offset))
            gckpti_set_min(&due, x);
    e->offload.due[e->offload.pending_count++] = due;
}

/* Offloads or reloads `bytes` bytes at an offset of the arena. */
static gckpt_result gckpti_copy_offloaded(gckpt_exec *e, const gckpti_ins *ins, size_t host_offset,
                                          size_t offset, size_t bytes)
{
    const gckpt_exec_desc *d = &e->desc;
    size_t done = bytes;
    void *here = gckpti_arena_ptr(e, offset);
    void *host = !d->offload                     ? e->offload.host + host_offset
                 : gckpti_backend(e)->own_memory ? e->blocks.host_scratch
                                                 : here;
    const int out = ins->kind == GCKPT_OFFLOAD;
    const gckpt_backend *b = gckpti_backend(e);
    if (e->offload.by_backend) {
        b->copy_async(b->context, out ? host : here, out ? here : host, bytes, out);
    } else {
        if (out && host != here)
            gckpti_from_backend(e, host, here, bytes);
        done = !d->offload ? bytes
               : out       ? d->offload(d->user, host_offset, host, bytes)
                           : d->reload(d->user, host_offset, host, bytes);
        if (d->wait && host != here && done == bytes)
            done = d->wait(d->user, 0) ? 0 : bytes;
        if (!out && host != here && done == bytes)
            gckpti_to_backend(e, here, host, bytes);
    }
    if (done == bytes && e->offload.async)
        gckpti_add_pending_copy(e, out, offset, bytes);
    return done == bytes ? GCKPT_OK
                         : gckpti_error(e, GCKPT_E_FILE,
                                        "step: %s of \"%s\" copied %z of %z bytes; nothing was "
                                        "changed",
                                        out ? "offload" : "reload",
                                        gckpti_planned_name(e->plan, ins->id), done, bytes);
}

/* Offloads or reloads a node's value and saved data; of a short micro-batch, the rows it has. */
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    (void)c;
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    size_t value = gckpti_planned_bytes(p, node);
    gckpt_result result = GCKPT_OK;
    gckpti_operands o;
    if (ins->kind == GCKPT_OFFLOAD_DONE)
        return GCKPT_OK; /* it only extends the live range of the buffer */
    const gckpti_node_info *info = &p->info[ins->id];
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (!node->batch_invariant)
        value = value / (size_t)p->rows * (size_t)gckpti_micro_rows(e);
    if (o.out != GCKPTI_NO_OFFSET)
        result = gckpti_copy_offloaded(e, ins, info->host_value, o.out, value);
    if (o.saved != GCKPTI_NO_OFFSET && result == GCKPT_OK)
        result = gckpti_copy_offloaded(e, ins, info->host_saved, o.saved, node->saved_bytes);
    return result;
}
#endif
