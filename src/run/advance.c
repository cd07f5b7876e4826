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

/* Prepares instruction step.pc. Returns MORE if the run goes on: *runs is 1 if the instruction
 * must run; else step.pc is after what was skipped or replayed. Returns OK at the run's goal. */
static gckpt_result gckpti_reach(gckpt_exec *e, int *runs)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = GCKPT_OK;
    if (GCKPTI_RUNS_TRAINING && !e->update.grads_cleared) /* here, so that a team does it */
        gckpti_clear_accumulators(e, p->length);
    e->update.grads_cleared = 1;
    if (gckpti_is_watched(e))
        result = gckpti_defer_error(e, gckpti_notify(e, GCKPTI_ON_REACH, NULL));
    if (e->step.pc == p->epilogue && result == GCKPT_OK)
        result = gckpti_end_micro_batch(e);
    if (e->step.pc >= (int)p->length || result != GCKPT_OK)
        return result == GCKPT_MORE ? GCKPT_OK : result;
    const gckpti_ins *ins = &p->ins[e->step.pc];
    if (gckpti_replay(e))
        return GCKPT_MORE;
    int skipped = gckpti_sync_then_skips(e, ins);
    if (GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_UPDATE) {
        result = gckpti_defer_error(e, gckpti_finalize_counts(e));
        skipped = result != GCKPT_OK || !gckpti_loss_count(e);
        if (!skipped && e->step.goal == GCKPTI_GOAL_GRADIENTS) {
            e->step.pc++;
            return GCKPT_OK;
        }
    }
    if (!skipped) {
        result = gckpti_report_progress(e, ins);
        skipped = result == GCKPT_OK && gckpti_sync_then_skips(e, ins);
    }
    *runs = result == GCKPT_OK && !skipped;
    e->step.pc += skipped;
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c)
{
    int runs = 0;
    gckpt_result result = gckpti_reach(e, &runs);
    if (result == GCKPT_OK)
        return GCKPT_OK;
    result = result == GCKPT_MORE ? GCKPT_OK : result;
    if (runs) {
        result = gckpti_run_instruction(e, &e->plan->ins[e->step.pc], c);
        e->step.pc++;
    }
    gckpti_end_capture(e, result != GCKPT_OK);
    if (result == GCKPT_OK && e->step.pc == e->plan->epilogue)
        (void)gckpti_notify(e, GCKPTI_ON_BODY_END, NULL);
    result = gckpti_defer_error(e, result);
    if (result != GCKPT_OK)
        gckpti_set_state(e, GCKPTI_IDLE);
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

typedef struct {
    gckpt_exec *e;
    int64_t instructions; /* at most */
    gckpt_result result;
} gckpti_run_context;

static void gckpti_run_instructions(void *context)
{
    gckpti_run_context *run = (gckpti_run_context *)context;
    gckpt_call c;
    if (!GCKPTI_IS_SMALL)
        gckpti_init_call(run->e, &c);
    for (int64_t i = 0; i < run->instructions && run->result == GCKPT_MORE; i++)
        run->result = gckpti_advance(run->e, GCKPTI_IS_SMALL ? NULL : &c);
}

GCKPTI_FN gckpt_result gckpti_run_in_team(gckpt_exec *e, void (*job)(void *context), void *context,
                                          gckpt_result *result)
{
    gckpti_with_team(&e->device.runner, e->device.team, job, context);
    e->step.to_end = 0;
    gckpt_result ended =
        gckpti_is_watched(e) ? gckpti_notify(e, GCKPTI_ON_RUN_END, result) : GCKPT_OK;
    if (ended != GCKPT_OK)
        ended = gckpti_defer_error(e, ended);
    if (ended == GCKPT_OK)
        return *result;
    gckpti_set_state(e, GCKPTI_IDLE);
    return *result = ended;
}

GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions)
{
    gckpti_run_context run = { e, instructions, GCKPT_MORE };
    if (gckpti_enter_call(e) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (e->step.quantise_count != e->store->quantise_count) {
        gckpti_error(e, GCKPT_E_ARG,
                     "step: parameters were quantised during it, which ended it; begin it again");
        gckpt_result result = gckpti_defer_error(e, GCKPT_E_ARG);
        if (result != GCKPT_OK) {
            gckpti_set_state(e, GCKPTI_IDLE);
            e->device.in_call = 0;
            return result;
        }
    }
    e->step.to_end = instructions == INT64_MAX;
    gckpti_run_in_team(e, gckpti_run_instructions, &run, &run.result);
    e->device.in_call = 0;
    return run.result;
}
