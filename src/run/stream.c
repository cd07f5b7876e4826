#include "run/own.h"

GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper)
{
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_begin(exec, hyper, 0);
    if (result == GCKPT_OK && !exec->plan->looped)
        result = gckpti_error(
            exec, GCKPT_E_ARG,
            "step_begin: rows can stream in only when desc.batch is larger than the graph's "
            "%I rows",
            exec->plan->rows);
    if (result == GCKPT_OK && exec->plan->ranks > 1 && exec->plan->shard == GCKPT_SHARD_VALUES)
        result =
            gckpti_error(exec, GCKPT_E_ARG,
                         "step_begin: rows cannot stream in where ranks gather values for each "
                         "micro-batch (GCKPT_SHARD_VALUES); use gckpt_step");
    if (result == GCKPT_OK)
        result = gckpti_check_streaming(exec);
    exec->step.streamed = 1;
    if (result == GCKPT_OK)
        (void)gckpti_crew_rows(exec, exec->plan->batch);
    result = gckpti_crew_begin(exec, 0, result);
    if (result != GCKPT_OK)
        return result;
    gckpti_start_counts(exec);
    gckpti_start_step(exec);
    exec->step.state = GCKPTI_STREAMING;
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_add: no step was begun (gckpt_step_begin)");
    gckpt_result result = gckpti_failed_here(exec);
    if (result == GCKPT_OK) /* else all ranks' gckpt_step_end will say so */
        result = gckpti_check_rows(exec, rows);
    if (result == GCKPT_OK)
        result = gckpti_take_feeds(exec, feeds, count, rows);
    if (result != GCKPT_OK) /* the rows before stay counted; the caller may go on */
        return result;
    gckpti_ok(exec);
    if (exec->step.row_end > 0)
        exec->step.pc = exec->plan->body;
    exec->feeds.first = exec->step.row = exec->step.row_end;
    exec->step.row_end += rows;
    gckpti_expect_counts(exec, rows);
    gckpti_set_round(exec);
    result = gckpti_run(exec, INT64_MAX, GCKPTI_WHOLE_STEP);
    return result == GCKPT_OK ? gckpti_failed_here(exec) : result;
}

GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->step.state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_end: no step was begun (gckpt_step_begin)");
    gckpti_ok(exec);
    exec->step.state = GCKPTI_RUNNING;
    exec->step.pc = exec->plan->epilogue;
    gckpt_result result = gckpti_end_stream(exec);
    if (result != GCKPT_OK)
        return result;
    if (gckpti_step_rows(exec) > 0)
        return gckpti_run_all(exec, report);
    exec->step.pc = 0; /* nothing was added: nothing to do, and nothing is there */
    return gckpti_finish_step(exec, report);
}
