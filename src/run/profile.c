#ifndef GCKPT_NO_CHECK
#include "run/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* What one run of an op's instruction computes, reads and writes. */
static void gckpti_profile_work(const gckpt_exec *e, const gckpti_ins *ins, gckpt_profile_entry *to)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    const gckpt_op *op = node->op;
    gckpti_operands o;
    gckpt_call c;
    gckpti_call_start(e, node, ins->id, p->rows, &c);
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    to->bytes = gckpti_node_bytes(p, node) + (o.aux != GCKPTI_NONE ? node->aux_bytes : 0);
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_node *in = &p->nodes[node->in[i]], *q = &p->nodes[in->base];
        const int here = o.in[i].value != GCKPTI_NONE;
        if (!here && q->kind == GCKPTI_PARAM) /* where it is, as it is stored */
            to->bytes += (size_t)gckpti_stored_bytes(p->params[q->index].storage,
                                                     p->params[q->index].elements);
        else if (here || !q->op)
            to->bytes += gckpti_node_bytes(p, in);
        if (o.in[i].gradient == GCKPTI_NONE)
            continue;
        c.in[i].grad = &c.loss_scale; /* is wanted */
        to->bytes += o.in[i].gradient != o.gradient ? gckpti_node_bytes(p, in) : 0;
    }
    to->flops = op->flops ? op->flops(&c) : (uint64_t)gckpti_elements(&c.shape);
    if (ins->kind == GCKPT_BACKWARD)
        to->flops =
            op->flops_backward ? op->flops_backward(&c) : gckpti_gradients_flops(&c, to->flops);
}

/* A step that is timed. */
typedef struct {
    gckpt_exec *e;
    gckpt_profile *to;
    double last; /* when it was looked at the clock last */
    gckpt_result result;
} gckpti_profiling;

static void gckpti_profile_run(void *context)
{
    gckpti_profiling *t = (gckpti_profiling *)context;
    gckpt_call c;
    gckpti_bare_call(t->e, &c);
    while ((t->result = gckpti_advance(t->e, &c)) == GCKPT_MORE) {
        gckpt_profile_entry *to = &t->to->entries[t->e->step.pc - 1];
        gckpti_on(t->e)->finish(gckpti_on(t->e)->context);
        const double now = t->to->clock(t->to->user);
        to->seconds += now - t->last;
        to->runs++;
        t->last = now;
    }
}

GCKPT_API gckpt_result gckpt_profile_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                          int64_t rows, const gckpt_hyper *hyper,
                                          gckpt_profile *profile)
{
    const gckpti_goal goal = hyper ? GCKPTI_STEP : GCKPTI_FORWARD;
    gckpti_profiling t = { exec, profile, 0, GCKPT_MORE };
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    if (!profile || !profile->clock || !profile->entries || profile->count != (int)p->length) {
        t.result = gckpti_error(exec, GCKPT_E_ARG,
                                "profile_step: needs a clock and room for gckpt_plan_length times");
        if (gckpti_is_under_way(exec))
            return GCKPT_E_ARG;
        exec->step.goal = goal;
        return gckpti_crew_begin(exec, rows, t.result); /* the other ranks refuse it, too */
    }
    for (size_t x = 0; x < p->length; x++)
        if (p->list[x].kind <= GCKPT_BACKWARD && p->nodes[p->list[x].id].op)
            gckpti_profile_work(exec, &p->list[x], &profile->entries[x]);
    const double start = profile->clock(profile->user);
    gckpt_result result = gckpti_prepare(exec, feeds, count, rows, goal, hyper);
    if (result != GCKPT_OK)
        return result;
    t.last = profile->clock(profile->user);
    result = gckpti_run_in_team(exec, gckpti_profile_run, &t, &t.result);
    result = result == GCKPT_OK ? gckpti_finish_step(exec, &profile->report) : result;
    if (result == GCKPT_OK && !hyper)
        gckpti_add_positions(exec, rows);
    profile->total_seconds += profile->clock(profile->user) - start;
    profile->steps += result == GCKPT_OK || result == GCKPT_SKIPPED;
    return result;
}
#endif
