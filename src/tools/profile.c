#ifndef GCKPT_NO_CHECK
#include "run/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* Adds the flops and bytes of one run of an op's instruction. */
static void gckpti_profile_cost(const gckpt_exec *e, const gckpti_ins *ins, gckpt_profile_entry *x)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    const gckpt_op *op = node->op;
    gckpti_operands o;
    gckpt_call c;
    gckpti_init_op_call(e, node, ins->id, p->rows, &c);
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    const size_t saved = o.saved != GCKPTI_NO_OFFSET ? node->saved_bytes : 0;
    x->bytes = gckpti_planned_bytes(p, node) + saved;
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_plan_node *in = &p->nodes[node->in[i]], *q = &p->nodes[in->base];
        const int here = o.in[i].value != GCKPTI_NO_OFFSET;
        if (!here && q->kind == GCKPTI_PARAM) /* in the bytes of its storage */
            x->bytes += (size_t)gckpti_storage_bytes(p->params[q->index].storage,
                                                     p->params[q->index].elements);
        else if (here || !q->op)
            x->bytes += gckpti_planned_bytes(p, in);
        if (o.in[i].gradient == GCKPTI_NO_OFFSET)
            continue;
        c.in[i].grad = &c.loss_scale; /* any address: the gradient is computed */
        x->bytes += o.in[i].gradient != o.gradient ? gckpti_planned_bytes(p, in) : 0;
    }
    x->flops = op->flops ? op->flops(&c) : (uint64_t)gckpti_elements(&c.shape);
    if (ins->kind == GCKPT_BACKWARD)
        x->flops =
            op->flops_backward ? op->flops_backward(&c) : gckpti_gradients_flops(&c, x->flops);
}

typedef struct {
    gckpt_exec *e;
    gckpt_profile *profile;
    double last_time; /* the end of the last instruction */
    gckpt_result result;
} gckpti_profile_state;

static void gckpti_profile_run(void *context)
{
    gckpti_profile_state *state = (gckpti_profile_state *)context;
    gckpt_call c;
    gckpti_init_call(state->e, &c);
    while ((state->result = gckpti_advance(state->e, &c)) == GCKPT_MORE) {
        gckpt_profile_entry *entry = &state->profile->entries[state->e->step.pc - 1];
        gckpti_backend(state->e)->finish(gckpti_backend(state->e)->context);
        const double now = state->profile->clock(state->profile->user);
        entry->seconds += now - state->last_time;
        entry->runs++;
        state->last_time = now;
    }
}

GCKPT_API gckpt_result gckpt_profile_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                          int64_t rows, const gckpt_hyper *hyper,
                                          gckpt_profile *profile)
{
    const gckpti_goal goal = hyper ? GCKPTI_GOAL_STEP : GCKPTI_GOAL_FORWARD;
    gckpti_profile_state state = { exec, profile, 0, GCKPT_MORE };
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    if (!profile || !profile->clock || !profile->entries || profile->count != (int)p->length) {
        state.result = gckpti_error(
            exec, GCKPT_E_ARG, "profile_step: needs a clock, and an entry for each instruction");
        if (gckpti_is_under_way(exec))
            return GCKPT_E_ARG;
        exec->step.goal = goal;
        return gckpti_agree_on_step(exec, rows, state.result); /* so all ranks refuse it */
    }
    for (size_t x = 0; x < p->length; x++)
        if (p->ins[x].kind <= GCKPT_BACKWARD && p->nodes[p->ins[x].id].op)
            gckpti_profile_cost(exec, &p->ins[x], &profile->entries[x]);
    const double start = profile->clock(profile->user);
    gckpt_result result = gckpti_prepare_step(exec, feeds, count, rows, goal, hyper);
    if (result != GCKPT_OK)
        return result;
    state.last_time = profile->clock(profile->user);
    result = gckpti_run_in_team(exec, gckpti_profile_run, &state, &state.result);
    result = result == GCKPT_OK ? gckpti_finish_step(exec, &profile->report) : result;
    if (result == GCKPT_OK && !hyper)
        gckpti_add_positions(exec, rows);
    profile->total_seconds += profile->clock(profile->user) - start;
    profile->steps += result == GCKPT_OK || result == GCKPT_SKIPPED;
    return result;
}
#endif
