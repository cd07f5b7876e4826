#ifndef GCKPT_NO_OFFLOAD
#include "run/internal.h"

GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result)
{
    int *due = e->offload.due, n = e->offload.pending_count, failed = 0;
    while (n > 0 && due[n - 1] > x)
        n--;
    if (n == 0)
        return result;
    int later = e->offload.pending_count - n;
    if (!e->offload.by_backend && (failed = e->desc.wait(e->desc.user, later)) != 0) {
        e->desc.wait(e->desc.user, later = 0); /* so that no callback writes later */
    } else if (e->offload.by_backend) {
        GCKPTI_OF(gckpti_backend(e), wait_copies)(GCKPTI_OF(gckpti_backend(e), context), later);
    }
    memmove(due, due + e->offload.pending_count - later, (size_t)later * sizeof *due);
    e->offload.pending_count = later;
    return failed && (result == GCKPT_OK || result == GCKPT_MORE)
               ? gckpti_error(e, GCKPT_E_FILE,
                              "step: a copy to slower memory or back failed; nothing was changed")
               : result;
}

/* Records a pending copy and the first instruction that must wait for it: a reader of a reloaded
 * value, or a writer of the bytes (POISON also writes at the end of a buffer). */
static void gckpti_add_pending_copy(gckpt_exec *e, const gckpti_ins *ins, size_t offset,
                                    size_t bytes)
{
    const gckpt_plan *p = e->plan;
    const int poisons = gckpti_debug(e) & GCKPT_DEBUG_POISON;
    int due = (int)p->length, pc = (int)(ins - p->ins);
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *buffer = &p->buffers[i];
        if (buffer->offset >= offset + bytes || buffer->offset + buffer->size <= offset)
            continue;
        if (buffer->start > pc || (poisons && buffer->end >= pc))
            gckpti_set_min(&due, buffer->start > pc ? buffer->start : buffer->end + 1);
    }
    for (int x = pc + 1; x < due; x++)
        if (ins->kind == GCKPT_OFFLOAD
                ? p->ins[x].kind == GCKPT_FORWARD && p->operands[p->ins[x].operands] == offset
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
    void *host = !d->offload                                ? e->offload.host + host_offset
                 : GCKPTI_OF(gckpti_backend(e), own_memory) ? e->blocks.host_scratch
                                                            : here;
    const int out = ins->kind == GCKPT_OFFLOAD;
    const gckpt_backend *b = gckpti_backend(e);
    if (e->offload.by_backend) {
        GCKPTI_OF(b, copy_async)
        (GCKPTI_OF(b, context), out ? host : here, out ? here : host, bytes, out);
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
        gckpti_add_pending_copy(e, ins, offset, bytes);
    return done == bytes ? GCKPT_OK
                         : gckpti_error(e, GCKPT_E_FILE,
                                        "step: %s of \"%s\" copied %z of %z bytes; nothing was "
                                        "changed",
                                        out ? "offload" : "reload",
                                        gckpti_planned_name(e->plan, ins->id), done, bytes);
}

/* Offloads or reloads a node's value and saved data; of a short micro-batch, the rows it has. */
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins)
{
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

/* Allocates the list of pending copies and, if neither callbacks nor the backend store offloaded
 * values, memory for these. */
static void gckpti_alloc_offload(gckpt_exec *e, gckpti_bump *bump)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_backend(e);
    size_t copies = 0; /* most copies that can be pending */
    e->offload.by_backend =
        GCKPTI_OF(b, own_memory) && GCKPTI_OF(b, copy_async) && !e->desc.offload && p->host_bytes;
    e->offload.async = e->offload.by_backend || (!GCKPTI_OF(b, own_memory) && e->desc.wait);
    for (size_t x = 0; x < p->length && e->offload.async; x++)
        copies += p->ins[x].kind == GCKPT_OFFLOAD || p->ins[x].kind == GCKPT_RELOAD ? 2 : 0;
    e->offload.due = (int *)gckpti_bump_alloc(bump, copies, sizeof *e->offload.due);
    if (!e->offload.by_backend && !e->desc.offload)
        e->offload.host = (unsigned char *)gckpti_bump_alloc(bump, p->host_bytes, 1);
}

GCKPTI_MODULE(offload)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_backend(e);
    switch (event) {
    case GCKPTI_ON_LAYOUT: gckpti_alloc_offload(e, (gckpti_bump *)arg); break;
    case GCKPTI_ON_BIND:
        if (!e->desc.offload != !e->desc.reload || (e->desc.wait && !e->desc.offload))
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: set both desc.offload and desc.reload, or neither; "
                                "desc.wait needs them");
        e->device.watched |= e->offload.async && p->host_bytes;
        if (!e->offload.by_backend)
            break;
        e->offload.host =
            (unsigned char *)GCKPTI_OF(b, host_get)(GCKPTI_OF(b, context), p->host_bytes);
        return e->offload.host ? GCKPT_OK
                               : gckpti_error(e->store, GCKPT_E_MEMORY,
                                              "exec: %s has no host memory for %z bytes",
                                              GCKPTI_OF(b, name), p->host_bytes);
    case GCKPTI_ON_BEGIN: GCKPT_ASSERT(e->offload.pending_count == 0); break;
    case GCKPTI_ON_REACH: return gckpti_wait_copies(e, e->step.pc, GCKPT_OK);
    case GCKPTI_ON_BODY_END: return gckpti_wait_copies(e, INT32_MAX, GCKPT_OK);
    case GCKPTI_ON_RUN_END: {
        const gckpt_result result = *(const gckpt_result *)arg;
        const gckpt_result waited = gckpti_wait_copies(e, INT32_MAX, result);
        return waited == result ? GCKPT_OK : waited;
    }
    case GCKPTI_ON_FREE:
        if (e->offload.by_backend && e->offload.host)
            GCKPTI_OF(b, host_release)(GCKPTI_OF(b, context), e->offload.host, p->host_bytes);
        break;
    default: break;
    }
    return GCKPT_OK;
}
#endif
