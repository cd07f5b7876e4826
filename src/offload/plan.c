#if !defined(GCKPT_NO_OFFLOAD) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- offloads and reloads in lowered plans and plans ---- */
/* Sets the bytes of slower memory that a planner may use, and whether copies overlap. */
static void gckpti_start_offload(gckpti_planner *p)
{
    const size_t most = PTRDIFF_MAX / 2, bytes = p->desc->offload.bytes;
    p->host_limit = p->inference || p->desc->update_in_backward || p->variant.no_copies
                        ? 0
                        : (int64_t)(bytes < most ? bytes : most);
    p->max_host_limit = p->host_limit;
    p->copy_cost = GCKPTI_FULL_COPY_COST;
    p->overlap = p->host_limit > 0 && p->desc->offload.overlap;
}

/* Assigns offsets in slower memory to offloaded parts, and sets the hidden cost. */
static gckpt_result gckpti_place_offloaded(gckpti_planner *p, gckpti_lowered *d)
{
    const size_t parts = 2 * (size_t)p->nodes, most = PTRDIFF_MAX / 2;
    d->host_offset = (size_t *)gckpti_scratch_alloc(&d->scratch, parts, sizeof *d->host_offset);
    if (p->failed)
        return GCKPT_E_MEMORY;
    memset(d->host_offset, 0xff, parts * sizeof *d->host_offset);
    for (int k = 0; k < 2 * d->sched.length; k++) { /* of even k values, of odd k what ops save */
        const int x = k / 2, u = gckpti_entry_node(p, d->sched.entry[x]);
        const gckpt_tensor *t = p->tensors[p->node[u].id];
        size_t *offset = &d->host_offset[2 * u + k % 2];
        if (!(d->sched.copied_parts[x] >> k % 2 & 1) || *offset != GCKPTI_NO_OFFSET)
            continue;
        *offset = gckpti_round_up(d->host_bytes, p->alignment);
        d->host_bytes = *offset + (k % 2 ? t->saved_bytes : gckpti_value_bytes(p, t));
        d->host_bytes = d->host_bytes < most ? d->host_bytes : most;
    }
    if (d->host_bytes > p->desc->offload.bytes || d->host_bytes >= most)
        return gckpti_error(p->g, GCKPT_E_BUDGET,
                            "schedule: it offloads %z bytes, but desc.offload.bytes is only %z",
                            d->host_bytes, p->desc->offload.bytes);
    d->hidden = p->overlap ? d->cost - gckpti_schedule_time(p, &d->sched, 0, NULL) : 0;
    d->cost -= d->hidden;
    return GCKPT_OK;
}

/* Adds the operands of an OFFLOAD or OFFLOAD_DONE: the parts that are copied. */
static void gckpti_add_offload_operands(gckpti_planner *p, const gckpti_ins_at *at)
{
    gckpti_lowered *d = &p->lowered;
    const gckpti_ins *ins = &d->ins[at->x];
    if (ins->kind != GCKPT_OFFLOAD && ins->kind != GCKPT_OFFLOAD_DONE)
        return;
    const int x = d->latest_def[p->node_of[ins->id]];
    const int parts = d->sched.copied_parts[at->position >= 0 ? at->position : x];
    gckpti_add_operand(d, parts & GCKPTI_VALUE ? d->value[x] : -1, at->x);
    gckpti_add_operand(d, parts & GCKPTI_SAVED ? d->saved[x] : -1, at->x);
}

/* Sets a plan's numbers about offloads and its offsets in slower memory. */
static void gckpti_encode_offload(const gckpti_planner *p, gckpti_encoder *e)
{
    e->plan.hidden = p->best.hidden;
    e->plan.host_cost = p->desc->offload.cost;
    e->plan.overlaps_copies = p->desc->offload.overlap != 0;
    e->plan.host_bytes = p->best.host_bytes;
    for (int u = 0; u < p->nodes; u++) {
        e->info[p->node[u].id].host_value = p->best.host_offset[2 * u];
        e->info[p->node[u].id].host_saved = p->best.host_offset[2 * u + 1];
    }
}

GCKPTI_FN void gckpti_price_copy(const gckpt_plan *p, const gckpti_ins *ins, gckpt_usage *u)
{
    if (ins->kind != GCKPT_OFFLOAD && ins->kind != GCKPT_RELOAD)
        return;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    const size_t value = o.out != GCKPTI_NO_OFFSET ? gckpti_planned_bytes(p, node) : 0;
    const size_t saved = o.saved != GCKPTI_NO_OFFSET ? node->saved_bytes : 0;
    const size_t planned =
        gckpti_round_up(value, p->alignment) + gckpti_round_up(saved, p->alignment);
    u->moved = value + saved;
    u->cost = gckpti_transfer_cost(p->host_cost, (int64_t)planned);
}

GCKPTI_PASSES(offload)
{
    switch ((int)stage) {
    case GCKPTI_PASS_START: gckpti_start_offload(p); break;
    case GCKPTI_PASS_NODE: {
        gckpti_node *u = (gckpti_node *)arg;
        u->can_copy = p->host_limit > 0 && p->tensors[u->id]->op &&
                      !p->tensors[u->id]->batch_invariant && !u->must_recompute;
        p->can_copy = p->can_copy || u->can_copy;
        break;
    }
    case GCKPTI_PASS_ENTRY: {
        const int x = *(const int *)arg, entry = p->lowered.sched.entry[x];
        if (entry >= 0 && entry < p->nodes && p->lowered.sched.copied_parts[x])
            gckpti_add_instruction(&p->lowered, GCKPT_OFFLOAD, p->node[entry].id);
        break;
    }
    case GCKPTI_PASS_LISTED: return gckpti_place_offloaded(p, &p->lowered);
    case GCKPTI_PASS_OPERANDS: gckpti_add_offload_operands(p, (const gckpti_ins_at *)arg); break;
    case GCKPTI_PASS_ENCODED: gckpti_encode_offload(p, (gckpti_encoder *)arg);
    }
    return GCKPT_OK;
}
#endif
