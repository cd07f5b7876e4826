#ifndef GCKPT_NO_TRAINING
#include "run/internal.h"

GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *hyper, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare_step(exec, feeds, count, rows, GCKPTI_GOAL_STEP, hyper);
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
                                        int64_t rows, const gckpt_hyper *hyper)
{
    return gckpti_prepare_step(exec, feeds, count, rows, GCKPTI_GOAL_STEP, hyper);
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
#endif
