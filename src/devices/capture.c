#ifndef GCKPT_NO_DEVICES
#include "run/internal.h"

/* Returns 1 if the backend can replay micro-batches: nothing in them needs the host. */
static int gckpti_can_replay(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_backend(e);
    int can = b->replay && b->captured && !gckpti_debug(e) && !e->desc.progress;
    for (int x = p->body + 1; x < p->epilogue - 1 && can; x++) { /* not BEGIN, NEXT */
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_exec_node *kernels = &e->tables.nodes[ins->id];
        const gckpti_plan_node *node = &p->nodes[ins->id];
        if (ins->kind > GCKPT_UPDATE)
            can = gckpti_backend_copies(e);
        else if (ins->kind == GCKPT_UPDATE)
            can = 0;
        else if (!node->op)
            can = !gckpti_is_compressed(p->params[node->index].storage) || b->dequantise;
        else
            can = (ins->kind == GCKPT_FORWARD ? kernels->forward : kernels->backward) != NULL;
    }
    return can && !gckpti_group_of(e) && p->body < p->epilogue - 2;
}

/* Lets the backend replay a micro-batch, which moves step.pc to its NEXT, or capture from here on;
 * neither if a regulariser's gradient needs a count that is not known yet. */
GCKPTI_FN void gckpti_replay(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    if (!e->devices.can_replay || !e->step.to_end)
        return;
    gckpt_step_params params = { e,
                                 e->step.row,
                                 gckpti_micro_rows(e),
                                 e->step.position,
                                 e->store->seed,
                                 e->step.number,
                                 e->devices.scales,
                                 (int)p->term_count };
    for (size_t i = 0; i < p->term_count; i++) {
        if (p->terms[i].regulariser && e->losses.terms[0].expected < 0)
            return;
        e->devices.scales[i].id = p->terms[i].id;
        e->devices.scales[i].scale = gckpti_loss_scale(e, (int)i);
    }
    e->devices.capturing = !gckpti_backend(e)->replay(gckpti_backend(e)->context, &params);
    if (!e->devices.capturing)
        e->step.pc = p->epilogue - 1;
}

/* Ends the capture in progress. Returns MORE if the backend could not capture: then nothing was
 * computed, and it captures no more. */
static gckpt_result gckpti_end_capture(gckpt_exec *e)
{
    e->devices.capturing = 0;
    e->devices.can_replay = gckpti_backend(e)->captured(gckpti_backend(e)->context) != 0;
    return e->devices.can_replay ? GCKPT_OK : GCKPT_MORE;
}

GCKPTI_MODULE(devices)
{
    const gckpt_backend *b = gckpti_backend(e);
    switch (event) {
    case GCKPTI_ON_LAYOUT:
        e->devices.scales = (gckpt_loss_scale *)gckpti_bump_alloc(
            (gckpti_bump *)arg, e->plan->term_count, sizeof *e->devices.scales);
        break;
    case GCKPTI_ON_BIND: e->devices.can_replay = (unsigned char)gckpti_can_replay(e); break;
    case GCKPTI_ON_BODY_END: return e->devices.capturing ? gckpti_end_capture(e) : GCKPT_OK;
    case GCKPTI_ON_RUN_END:
        if (e->devices.capturing) /* an error ended the run within a micro-batch */
            (void)gckpti_end_capture(e);
        break;
    case GCKPTI_ON_MOVED:
    case GCKPTI_ON_FREE:
        if (b->discard_captures)
            b->discard_captures(b->context, e);
        if (event == GCKPTI_ON_FREE && e->blocks.backend)
            b->release(b->context, e->blocks.backend, e->blocks.backend_size);
        break;
    default: break;
    }
    return GCKPT_OK;
}
#endif
