#include "run/own.h"
#include "num/num.h"

GCKPTI_FN int gckpti_is_under_way(gckpt_exec *e)
{
    if (e->plan->ranks < 2 || e->step.state == GCKPTI_IDLE)
        return 0;
    gckpti_error(e, GCKPT_E_ARG,
                 "step: one is under way, and the other ranks are within it: end it first");
    return 1;
}

/* Everything before the first instruction of a step or forward over `rows` rows. */
static gckpt_result gckpti_prepare(gckpt_exec *e, const gckpt_feed *feeds, int count, int64_t rows,
                                   const gckpt_hyper *hyper, int inference)
{
    int64_t own = rows;
    if (!e || gckpti_is_under_way(e))
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_begin(e, hyper, inference);
    if (result == GCKPT_OK)
        result = gckpti_check_rows(e, rows);
    if (result == GCKPT_OK)
        result = gckpti_check_caches(e, rows);
    if (result == GCKPT_OK)
        own = gckpti_crew_rows(e, rows);
    if (result == GCKPT_OK && own)
        result = gckpti_take_feeds(e, feeds, count, own);
    if (result == GCKPT_OK) {
        e->step.row_end += own;
        gckpti_start_counts(e);
        gckpti_expect_counts(e, own);
    }
    result = gckpti_crew_begin(e, rows, result);
    if (result != GCKPT_OK)
        return result;
    gckpti_start_step(e);
    e->step.state = GCKPTI_RUNNING;
    gckpti_set_round(e);
    return GCKPT_OK;
}

/* The end of a step: waits for the backend, adds up the losses, counts the step. */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report)
{
    const gckpt_plan *p = e->plan;
    double loss = 0;
    e->step.state = GCKPTI_IDLE;
    gckpti_add_uses(e);
    gckpt_result result = gckpti_read_losses(e);
    if (result == GCKPT_OK)
        result = gckpti_check_counts(e);
    if (result == GCKPT_OK)
        gckpti_measure_end(e);
    if (result == GCKPT_OK)
        result = gckpti_check_canary(e);
    int64_t count = p->term_count ? e->losses.terms[0].seen.count : 0;
    if (p->mode != GCKPT_INFERENCE && count > 0)
        gckpti_gather_squares(e);
    result = gckpti_meet(e, result);
    if (result != GCKPT_OK)
        return result;
    e->step.finished = gckpti_step_rows(e) > 0;
    for (size_t i = 0; i < p->term_count; i++) {
        double weight = (double)gckpti_float(p->terms[i].weight);
        const gckpti_loss_total *seen = &e->losses.terms[i].seen;
        if (p->terms[i].regulariser)
            loss += weight * seen->sum;
        else if (seen->count > 0)
            loss += weight * (seen->sum / (double)seen->count);
    }
    const gckpti_plan_param *bad = NULL;
    if (p->mode != GCKPT_INFERENCE && count > 0) {
        bad = gckpti_total_norm(e);
        bad = e->desc.skip_nonfinite && e->update.begun ? bad : NULL;
        if (bad && e->update.nonfinite)
            gckpti_uncount_updates(e);
        e->store->step += e->update.begun && !bad;
    }
    if (report) {
        report->loss = count > 0 || p->mode == GCKPT_INFERENCE ? loss : 0;
        report->grad_norm = count > 0 ? e->update.grad_norm : 0;
        report->count = count;
        report->step = e->store->step;
    }
    return !bad ? GCKPT_OK
                : gckpti_error(e, GCKPT_SKIPPED,
                               "step: skipped, nothing was changed: the gradient of \"%s\", or "
                               "its norm, is not finite (loss %g); if that goes on, lower lr, or "
                               "set clip",
                               p->names + bad->name, loss);
}

GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *hyper)
{
    return gckpti_prepare(exec, feeds, count, rows, hyper, 0);
}

GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->step.state != GCKPTI_RUNNING)
        return gckpti_error(exec, GCKPT_E_ARG, "run_some: no step was started (gckpt_step_start)");
    gckpti_ok(exec); /* of what was fetched too early */
    gckpt_result result = gckpti_run(exec, instructions, GCKPTI_WHOLE_STEP);
    return result == GCKPT_OK ? gckpti_finish_step(exec, report) : result;
}

GCKPT_API gckpt_instruction gckpt_next(const gckpt_exec *exec)
{
    gckpt_instruction next = { GCKPT_FORWARD, -1 };
    if (!exec || exec->step.state == GCKPTI_IDLE)
        return next;
    const gckpti_crew *g = gckpti_crew_of(exec);
    int more = exec->step.pc == exec->plan->epilogue &&
               (g ? g->in_body && !(g->last && g->leaf + 1 == gckpti_own_leaves(exec->plan))
                  : exec->step.row_end - exec->step.row > exec->plan->rows);
    gckpt_plan_get(exec->plan, more ? exec->plan->body : exec->step.pc, &next);
    return next;
}

/* A step or forward that was prepared, to its end. */
GCKPTI_FN gckpt_result gckpti_run_all(gckpt_exec *e, gckpt_report *report)
{
    gckpt_result result = gckpti_run(e, INT64_MAX, GCKPTI_WHOLE_STEP);
    return result == GCKPT_OK ? gckpti_finish_step(e, report) : result;
}

GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *hyper, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare(exec, feeds, count, rows, hyper, 0);
    return result == GCKPT_OK ? gckpti_run_all(exec, report) : result;
}

GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare(exec, feeds, count, rows, NULL, 1);
    if (result == GCKPT_OK)
        result = gckpti_run_all(exec, report);
    if (result == GCKPT_OK)
        gckpti_add_positions(exec, rows);
    return result;
}

GCKPTI_FN gckpt_result gckpti_start_gradients(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                              int64_t rows)
{
    const gckpt_hyper hyper = { 0, 0, 0, 0, 0, 0, 0 };
    return gckpti_prepare(e, feeds, count, rows, &hyper, 0);
}

GCKPTI_FN gckpt_result gckpti_end_gradients(gckpt_exec *e, gckpt_result result,
                                            gckpt_report *report)
{
    e->step.state = GCKPTI_IDLE;
    if (result == GCKPT_OK)
        result = gckpti_settle_counts(e);
    result = gckpti_drain(e, result);
    if (result == GCKPT_OK && gckpti_count(e))
        result = gckpti_finish_gradients(e);
    result = gckpti_meet(e, result);
    return result == GCKPT_OK ? gckpti_finish_step(e, report) : result;
}

GCKPT_API gckpt_result gckpt_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, gckpt_report *report)
{
    if (exec && exec->plan->update_in_backward)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "gradients: this plan updates in the backward "
                            "(desc.update_in_backward); make one that does not");
    gckpt_result result = gckpti_start_gradients(exec, feeds, count, rows);
    if (result != GCKPT_OK)
        return result;
    result = gckpti_run(exec, INT64_MAX, GCKPTI_GRADIENTS);
    return gckpti_end_gradients(exec, result, report);
}
