#ifndef GCKPT_SMALL
#include "run/own.h"

GCKPTI_COLD

/* May a backend repeat micro-batches? Nothing in them may need the host. */
static int gckpti_repeatable(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int can =
        gckpti_on(e)->replay && gckpti_on(e)->captured && !gckpti_debug(e) && !e->desc.progress;
    for (int x = p->body; x < p->epilogue && can; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_exec_node *n = ins->kind == GCKPT_UPDATE ? NULL : &e->bound.nodes[ins->id];
        const gckpti_node *node = &p->nodes[ins->id];
        if (!n)
            can = 0;
        else if (ins->kind >= GCKPT_OFFLOAD && ins->kind != GCKPT_REDUCE)
            can = e->offload.moves;
        else if (!node->op)
            can = !gckpti_is_packed(p->params[node->index].storage) || gckpti_on(e)->dequantise;
        else
            can = (ins->kind == GCKPT_FORWARD ? n->forward : n->backward) != NULL;
    }
    return can && p->body < p->epilogue;
}

GCKPTI_FN void gckpti_recording_tables(gckpt_exec *e, gckpti_block *b)
{
    e->recording.scales =
        (gckpt_loss_scale *)gckpti_carve(b, e->plan->term_count, sizeof *e->recording.scales);
}

GCKPTI_FN void gckpti_recording_open(gckpt_exec *e)
{
    e->recording.possible = (unsigned char)gckpti_repeatable(e);
}

GCKPTI_FN void gckpti_forget(const gckpt_exec *e)
{
    if (gckpti_on(e)->discard_captures)
        gckpti_on(e)->discard_captures(gckpti_on(e)->context, e);
}

GCKPTI_WARM

GCKPTI_FN void gckpti_recording_ask(gckpt_exec *e, int whole)
{
    e->recording.asked = e->recording.possible && whole;
}

GCKPTI_FN int gckpti_repeat(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const int pc = e->step.pc;
    int64_t part = 0;
    if (!e->recording.asked || e->recording.now || pc < p->body || pc >= p->epilogue ||
        (pc > p->body && pc < e->recording.end))
        return 0;
    e->recording.from = pc;
    e->recording.end = gckpti_crew_of(e) ? gckpti_part_end(e, &part)
                       : pc == p->body   ? p->epilogue
                                         : pc;
    if (e->recording.end == pc)
        return 0;
    gckpt_step_params m = { e,
                       part,
                       e->step.row,
                       gckpti_micro_rows(e),
                       gckpti_position(e),
                       e->store->seed,
                       e->step.number,
                       e->recording.scales,
                       (int)p->term_count };
    for (size_t i = 0; i < p->term_count; i++) {
        if (p->terms[i].regulariser && e->losses.terms[0].expected < 0)
            return 0;
        e->recording.scales[i].id = p->terms[i].id;
        e->recording.scales[i].scale = gckpti_loss_scale(e, (int)i);
    }
    e->recording.now = !gckpti_on(e)->replay(gckpti_on(e)->context, &m);
    e->step.pc = e->recording.now ? pc : e->recording.end;
    return !e->recording.now;
}

GCKPTI_FN int gckpti_is_recording(const gckpt_exec *e) { return e->recording.now; }

GCKPTI_FN int gckpti_recording_ends(const gckpt_exec *e)
{
    return e->recording.now && e->step.pc == e->recording.end;
}

GCKPTI_FN void gckpti_recorded(gckpt_exec *e)
{
    if (!e->recording.now)
        return;
    if (e->recording.from == e->plan->body && e->step.pc == e->plan->epilogue)
        gckpti_join(e, INT32_MAX, GCKPT_OK); /* copies in it end in it; a part of it has none */
    e->recording.now = 0;
    if (!gckpti_on(e)->captured(gckpti_on(e)->context)) {
        e->recording.possible = e->recording.asked = 0;
        e->step.pc = e->recording.from;
    }
}
#endif
