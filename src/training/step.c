#include "run/internal.h"

#ifndef GCKPT_NO_TRAINING
GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *options, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare_step(exec, feeds, count, rows, GCKPTI_GOAL_STEP, options);
    return result == GCKPT_OK ? gckpti_run_step(exec, INT64_MAX, report) : result;
}

GCKPT_API gckpt_result gckpt_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, gckpt_report *report)
{
    const gckpt_hyper none = { 0, 0, 0, 0, 0, 0, 0 };
    if (exec && exec->plan->update_in_backward)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "gradients: this plan updates in the backward "
                            "(desc.update_in_backward); make one that does not");
    const gckpti_goal goal = GCKPTI_GOAL_GRADIENTS;
    gckpt_result result = gckpti_prepare_step(exec, feeds, count, rows, goal, &none);
    return result == GCKPT_OK ? gckpti_run_step(exec, INT64_MAX, report) : result;
}

GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *options)
{
    return gckpti_prepare_step(exec, feeds, count, rows, GCKPTI_GOAL_STEP, options);
}

GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report)
{
    if (!exec || exec->step.state != GCKPTI_RUNNING)
        return gckpti_error(exec, GCKPT_E_ARG, "run_some: no step was started (gckpt_step_start)");
    gckpti_ok(exec); /* clears the error of a gckpt_fetch that was too early */
    return gckpti_run_step(exec, instructions, report);
}

GCKPT_API gckpt_instruction gckpt_next_instruction(const gckpt_exec *exec)
{
    gckpt_instruction next = { GCKPT_FORWARD, -1 };
    if (!exec || exec->step.state == GCKPTI_IDLE)
        return next;
    gckpt_plan_get(exec->plan, exec->step.pc, &next);
    return next;
}

/* ---- steps whose rows stream in ---- */

GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *options)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (!exec->plan->accumulates || gckpti_group_of(exec))
        return gckpti_error(exec, GCKPT_E_ARG,
                            "step_begin: rows can stream in only with one virtual rank, and when "
                            "desc.batch is larger than the graph's %I rows; use gckpt_step",
                            exec->plan->rows);
    for (size_t i = 1; i < exec->plan->term_count; i++)
        if (!exec->plan->terms[i].regulariser)
            return gckpti_error(exec, GCKPT_E_ARG,
                                "step_begin: loss #%i has a count of its own, which is not known "
                                "while rows stream in; use gckpt_step",
                                exec->plan->terms[i].id);
    return gckpti_prepare_step(exec, NULL, 0, 0, GCKPTI_GOAL_STREAM, options);
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
