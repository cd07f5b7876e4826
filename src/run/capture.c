#ifndef GCKPT_SMALL
#include "run/internal.h"

GCKPTI_COLD_BEGIN

/* Returns 1 if the backend can replay micro-batches: nothing in them needs the host. */
static int gckpti_can_replay(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_backend(e);
    int can = b->replay && b->captured && !gckpti_debug(e) && !e->desc.progress;
    for (int x = p->body; x < p->epilogue && can; x++) {
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_exec_node *kernels = &e->tables.nodes[ins->id];
        const gckpti_plan_node *node = &p->nodes[ins->id];
        if (ins->kind == GCKPT_UPDATE)
            can = 0;
        else if (ins->kind >= GCKPT_OFFLOAD && ins->kind != GCKPT_REDUCE)
            can = e->offload.by_backend;
        else if (!node->op)
            can = !gckpti_is_quantised(p->params[node->index].storage) || b->dequantise;
        else
            can = (ins->kind == GCKPT_FORWARD ? kernels->forward : kernels->backward) != NULL;
    }
    return can && p->body < p->epilogue;
}

GCKPTI_FN void gckpti_alloc_capture(gckpt_exec *e, gckpti_bump *bump)
{
    e->capture.scales =
        (gckpt_loss_scale *)gckpti_bump_alloc(bump, e->plan->term_count, sizeof *e->capture.scales);
}

GCKPTI_FN void gckpti_init_capture(gckpt_exec *e)
{
    e->capture.supported = (unsigned char)gckpti_can_replay(e);
}

GCKPTI_FN void gckpti_discard_captures(const gckpt_exec *e)
{
    if (gckpti_backend(e)->discard_captures)
        gckpti_backend(e)->discard_captures(gckpti_backend(e)->context, e);
}

GCKPTI_COLD_END

GCKPTI_FN void gckpti_enable_capture(gckpt_exec *e, int whole)
{
    e->capture.enabled = e->capture.supported && whole;
}

GCKPTI_FN int gckpti_replay(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const int pc = e->step.pc;
    int64_t part = 0;
    if (!e->capture.enabled || e->capture.active || pc < p->body || pc >= p->epilogue ||
        (pc > p->body && pc < e->capture.end))
        return 0;
    e->capture.begin = pc;
    e->capture.end = gckpti_group_of(e) ? gckpti_capture_part_end(e, &part)
                     : pc == p->body    ? p->epilogue
                                        : pc;
    if (e->capture.end == pc)
        return 0;
    gckpt_step_params params = { e,
                                 part,
                                 e->step.row,
                                 gckpti_micro_rows(e),
                                 gckpti_position(e),
                                 e->store->seed,
                                 e->step.number,
                                 e->capture.scales,
                                 (int)p->term_count };
    for (size_t i = 0; i < p->term_count; i++) {
        if (p->terms[i].regulariser && e->losses.terms[0].expected < 0)
            return 0;
        e->capture.scales[i].id = p->terms[i].id;
        e->capture.scales[i].scale = gckpti_loss_scale(e, (int)i);
    }
    e->capture.active = !gckpti_backend(e)->replay(gckpti_backend(e)->context, &params);
    e->step.pc = e->capture.active ? pc : e->capture.end;
    return !e->capture.active;
}

GCKPTI_FN int gckpti_is_capture_end(const gckpt_exec *e)
{
    return e->capture.active && e->step.pc == e->capture.end;
}

GCKPTI_FN void gckpti_end_capture(gckpt_exec *e)
{
    if (!e->capture.active)
        return;
    if (e->capture.begin == e->plan->body && e->step.pc == e->plan->epilogue)
        gckpti_wait_copies(e, INT32_MAX, GCKPT_OK); /* a micro-batch's copies end within it */
    e->capture.active = 0;
    if (!gckpti_backend(e)->captured(gckpti_backend(e)->context)) {
        e->capture.supported = e->capture.enabled = 0;
        e->step.pc = e->capture.begin;
    }
}
#endif
