#include "run/internal.h"
#include "num/num.h"
#include "graph/graph.h"

static gckpt_result gckpti_report_progress(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    if (!e->desc.progress)
        return GCKPT_OK;
    gckpt_progress progress = {
        e->step.pc,      (int)p->length,        e->step.row,
        e->step.row_end, (gckpt_kind)ins->kind, gckpti_planned_name(p, gckpti_ins_node(p, ins))
    };
    if (!e->desc.progress(e->desc.user, &progress) || e->update.begun)
        return GCKPT_OK;
    gckpti_error(e, GCKPT_CANCELLED,
                 "cancelled by the progress callback before instruction %i; nothing was changed",
                 e->step.pc);
    return gckpti_defer_error(e, GCKPT_CANCELLED);
}

/* Runs a BEGIN: feeds the micro-batch. A backend may run the body: then step.pc is at its NEXT. */
static gckpt_result gckpti_run_begin(gckpt_exec *e, const gckpti_ins *ins)
{
    (void)ins;
    gckpti_prepare_micro_batch(e);
    gckpti_replay(e);
    return GCKPT_OK;
}

/* Runs a NEXT: ends the micro-batch, and moves step.pc back to the body for the next one, if there
 * is one. Returns MORE if the rows so far are done and more may stream in. */
static gckpt_result gckpti_run_next(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_result result = gckpti_notify(e, GCKPTI_ON_BODY_END, NULL);
    (void)ins;
    if (result == GCKPT_MORE) { /* nothing was computed */
        e->step.pc = e->plan->body;
        return GCKPT_OK;
    }
    return result == GCKPT_OK ? gckpti_end_micro_batch(e) : result;
}

#define GCKPTI_HANDLER(kind, handler, operands) handler,
static const gckpti_handler gckpti_handlers[] = { GCKPTI_KINDS(GCKPTI_HANDLER) };
#undef GCKPTI_HANDLER

/* Runs one instruction, unless a module skips it. Returns MORE if the run goes on, and OK at
 * its end or after the last row of a stream so far. If it returns an error, e is idle. */
static gckpt_result gckpti_advance(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_ins *ins = &p->ins[e->step.pc];
    gckpt_result result = GCKPT_OK;
    if (e->step.pc >= (int)p->length)
        return GCKPT_OK;
    if (GCKPTI_RUNS_TRAINING && e->step.pc == 0 && !e->step.prologue_done)
        gckpti_clear_accumulators(e, p->length); /* here, so that a team does it */
    if (gckpti_is_watched(e)) {
        result = gckpti_notify(e, GCKPTI_ON_REACH, NULL);
        if (result == GCKPT_MORE) {
            e->step.pc++;
            return GCKPT_MORE;
        }
        result = gckpti_defer_error(e, result);
    }
    if (result == GCKPT_OK)
        result = gckpti_report_progress(e, ins);
    if (result == GCKPT_OK) {
        e->step.pc++;
        result = gckpti_handlers[ins->kind](e, ins);
        if (result == GCKPT_MORE) /* the rows so far are done, and more may stream in */
            return GCKPT_OK;
        if (gckpti_is_watched(e) && result == GCKPT_OK)
            result = gckpti_notify(e, GCKPTI_ON_AFTER, (void *)(uintptr_t)ins);
    }
    result = gckpti_defer_error(e, result);
    if (result != GCKPT_OK)
        gckpti_set_state(e, GCKPTI_IDLE);
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

typedef struct {
    gckpt_exec *e;
    int64_t instructions; /* the most that it runs */
    gckpt_result result;
} gckpti_run_context;

static void gckpti_run_instructions(void *context)
{
    gckpti_run_context *run = (gckpti_run_context *)context;
    for (int64_t i = 0; i < run->instructions && run->result == GCKPT_MORE; i++)
        run->result = gckpti_advance(run->e);
}

/* Calls gckpti_advance in a team of threads, at most `instructions` times. If that is INT64_MAX,
 * the run goes to the end of the step, and modules may replay micro-batches. */
GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions)
{
    gckpti_run_context run = { e, instructions, GCKPT_MORE };
    gckpt_result result = GCKPT_OK;
    if (gckpti_enter_call(e) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (e->step.storage_changes != e->store->storage_changes)
        result = gckpti_error(
            e, GCKPT_E_ARG,
            "step: the storage of parameters changed during it, which ended it; begin it again");
    result = gckpti_defer_error(e, result);
    if (result == GCKPT_OK) {
        e->step.to_end = instructions == INT64_MAX;
        gckpti_with_team(&e->device.runner, e->device.team, gckpti_run_instructions, &run);
        e->step.to_end = 0;
        result = gckpti_defer_error(e, gckpti_notify(e, GCKPTI_ON_RUN_END, &run.result));
    }
    e->device.in_call = 0;
    if (result == GCKPT_OK)
        return run.result;
    gckpti_set_state(e, GCKPTI_IDLE);
    return result;
}
