#ifndef GCKPT_NO_TRAINING
#include "run/internal.h"

GCKPTI_FN gckpt_result gckpti_finish_grad_step(gckpt_exec *e, gckpt_report *report)
{
    gckpti_set_state(e, GCKPTI_IDLE);
    gckpt_result result = gckpti_defer_error(e, gckpti_finalize_counts(e));
    if (result == GCKPT_OK && gckpti_loss_count(e))
        result = gckpti_finish_gradients(e);
    result = gckpti_agree(e, result);
    return result == GCKPT_OK ? gckpti_finish_step(e, report) : result;
}

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
    if (result == GCKPT_OK)
        result = gckpti_run(exec, INT64_MAX);
    return result == GCKPT_OK ? gckpti_finish_grad_step(exec, report) : result;
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
    int more = exec->step.pc == exec->plan->epilogue && gckpti_has_next_micro_batch(exec);
    gckpt_plan_get(exec->plan, more ? exec->plan->body : exec->step.pc, &next);
    return next;
}

GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper)
{
    return gckpti_prepare_step(exec, NULL, 0, 0, GCKPTI_GOAL_STREAM, hyper);
}

GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows)
{
    if (!exec || exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_add: no step was begun (gckpt_step_begin)");
    const int64_t before = exec->step.row_end;
    gckpt_result result = gckpti_local_failure(exec);
    if (result == GCKPT_OK) /* else gckpt_step_end returns it on all ranks */
        result = gckpti_check_rows(exec, rows);
    if (result == GCKPT_OK)
        result = gckpti_add_rows(exec, feeds, count, rows);
    if (result != GCKPT_OK) /* earlier rows stay; the caller may go on */
        return result;
    gckpti_ok(exec);
    if (before > 0)
        exec->step.pc = exec->plan->body;
    exec->feeds.first_row = exec->step.row = before;
    gckpti_prepare_micro_batch(exec);
    result = gckpti_run(exec, INT64_MAX);
    return result == GCKPT_OK ? gckpti_local_failure(exec) : result;
}

GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report)
{
    if (!exec || exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_end: no step was begun (gckpt_step_begin)");
    gckpti_ok(exec);
    exec->step.pc = exec->plan->epilogue;
    gckpti_set_state(exec, GCKPTI_RUNNING);
    gckpt_result result = gckpti_end_stream(exec);
    if (result != GCKPT_OK)
        return result;
    if (exec->step.rows > 0)
        return gckpti_run_step(exec, INT64_MAX, report);
    exec->step.pc = 0; /* no rows: nothing was computed */
    return gckpti_finish_step(exec, report);
}
#endif
