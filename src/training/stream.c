#ifndef GCKPT_NO_TRAINING
#include "run/internal.h"

/* ---- steps whose rows stream in ---- */

/* Checks that all losses except regularisers have equal counts, as streamed rows require. */
static gckpt_result gckpti_check_same_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *first = &p->nodes[p->terms[0].id];
    for (size_t i = 1; i < p->term_count; i++) {
        const gckpti_plan_node *node = &p->nodes[p->terms[i].id];
        const gckpti_plan_node *a = &p->nodes[first->in[gckpti_counted_input(first->op)]];
        const gckpti_plan_node *b = &p->nodes[node->in[gckpti_counted_input(node->op)]];
        int same =
            a->type == b->type &&
            (a->type == GCKPT_I32 ? a->base == b->base
                                  : gckpti_planned_elements(p, a) / p->terms[0].sample_size ==
                                        gckpti_planned_elements(p, b) / p->terms[i].sample_size);
        if (!p->terms[i].regulariser && !same)
            return gckpti_error(
                e, GCKPT_E_ARG,
                "step_begin: loss %s #%i has a count of its own, which is not known while rows "
                "stream in; use gckpt_step",
                node->op->name, p->terms[i].id);
    }
    return GCKPT_OK;
}

/* Refuses plans and losses for which rows cannot stream in. */
static gckpt_result gckpti_check_stream(gckpt_exec *e)
{
    if (!e->plan->accumulates || gckpti_group_of(e))
        return gckpti_error(e, GCKPT_E_ARG,
                            "step_begin: rows can stream in only with one virtual rank, and when "
                            "desc.batch is larger than the graph's %I rows; use gckpt_step",
                            e->plan->rows);
    return gckpti_check_same_counts(e);
}

GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper)
{
    if (!exec || gckpti_check_stream(exec) != GCKPT_OK)
        return GCKPT_E_ARG;
    return gckpti_prepare_step(exec, NULL, 0, 0, GCKPTI_GOAL_STREAM, hyper);
}

GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows)
{
    if (!exec || exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_add: no step was begun (gckpt_step_begin)");
    const int64_t before = exec->step.row_end;
    gckpt_result result = gckpti_check_rows(exec, rows);
    if (result == GCKPT_OK)
        result = gckpti_add_rows(exec, feeds, count, rows);
    if (result != GCKPT_OK) /* earlier rows stay; the caller may go on */
        return result;
    gckpti_ok(exec);
    if (before > 0)
        exec->step.pc = exec->plan->body;
    exec->feeds.first_row = exec->step.row = before;
    return gckpti_run(exec, INT64_MAX);
}

GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report)
{
    if (!exec || exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_end: no step was begun (gckpt_step_begin)");
    gckpti_ok(exec);
    exec->step.pc = exec->plan->epilogue;
    gckpti_set_state(exec, GCKPTI_RUNNING);
    if (exec->step.rows > 0)
        return gckpti_run_step(exec, INT64_MAX, report);
    exec->step.pc = 0; /* no rows: nothing was computed */
    return gckpti_finish_step(exec, report);
}
#endif
