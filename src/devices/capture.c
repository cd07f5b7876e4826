#ifndef GCKPT_NO_DEVICES
#include "run/internal.h"

/* Returns 1 if the backend can replay micro-batches: nothing in them needs the host. */
static int gckpti_can_replay(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_backend(e);
    int can = b->replay && b->captured && !gckpti_debug(e) && !e->desc.progress;
    for (int x = p->body; x < p->epilogue - 1 && can; x++) { /* without the NEXT */
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
    return can && !gckpti_group_of(e) && p->body < p->epilogue - 1;
}

/* Returns 1 if a micro-batch begins at step.pc and the backend replayed it: then step.pc is at its
 * NEXT. Returns 0 if the instruction must run; the backend may capture from there on, unless a
 * regulariser's gradient needs a count that is not known yet. */
static int gckpti_replay(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    if (!e->devices.can_replay || !e->step.to_end || e->devices.capturing || e->step.pc != p->body)
        return 0;
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
            return 0;
        e->devices.scales[i].id = p->terms[i].id;
        e->devices.scales[i].scale = gckpti_loss_scale(e, (int)i);
    }
    e->devices.capturing = !gckpti_backend(e)->replay(gckpti_backend(e)->context, &params);
    e->step.pc = e->devices.capturing ? p->body : p->epilogue - 1;
    return !e->devices.capturing;
}

/* Ends the capture in progress. If the backend could not capture, nothing was computed: moves
 * step.pc back to the body, and captures no more. */
static void gckpti_end_capture(gckpt_exec *e)
{
    if (e->step.pc == e->plan->epilogue - 1)
        (void)gckpti_wait_copies(e, INT32_MAX, GCKPT_OK); /* a micro-batch's copies end within it */
    e->devices.capturing = 0;
    if (!gckpti_backend(e)->captured(gckpti_backend(e)->context)) {
        e->devices.can_replay = 0;
        e->step.pc = e->plan->body;
    }
}

GCKPTI_MODULE(devices)
{
    const gckpt_backend *b = gckpti_backend(e);
    switch (event) {
    case GCKPTI_ON_LAYOUT:
        e->devices.scales = (gckpt_loss_scale *)gckpti_bump_alloc(
            (gckpti_bump *)arg, e->plan->term_count, sizeof *e->devices.scales);
        break;
    case GCKPTI_ON_BIND:
        e->devices.can_replay = (unsigned char)(e->tables.nodes && gckpti_can_replay(e));
        e->device.watched |= e->devices.can_replay;
        break;
    case GCKPTI_ON_BODY_END: GCKPT_ASSERT(!e->devices.capturing); break;
    case GCKPTI_ON_REACH: return gckpti_replay(e) ? GCKPT_MORE : GCKPT_OK;
    case GCKPTI_ON_AFTER:
    case GCKPTI_ON_RUN_END:
        if (e->devices.capturing &&
            (e->step.pc == e->plan->epilogue - 1 || event == GCKPTI_ON_RUN_END))
            gckpti_end_capture(e);
        break;
    case GCKPTI_ON_MOVED:
    case GCKPTI_ON_FREE:
        if (b->discard_captures)
            b->discard_captures(b->context, e);
        break;
    default: break;
    }
    return GCKPT_OK;
}
#endif
