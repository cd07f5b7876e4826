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

/* The next action of a run. */
typedef enum {
    GCKPTI_ACTION_STOP,     /* the goal or the last row so far is reached; cancelled; an error */
    GCKPTI_ACTION_REPLAYED, /* the backend has replayed a micro-batch, or a part of one */
    GCKPTI_ACTION_SKIP,     /* the instruction must not run on this rank, or for this goal */
    GCKPTI_ACTION_RUN       /* the next instruction runs */
} gckpti_action;

/* Returns the next action; sets *result to OK or the error of the run so far. */
static gckpti_action gckpti_next_action(gckpt_exec *e, gckpt_result *result)
{
    const gckpt_plan *p = e->plan;
    if (GCKPTI_RUNS_TRAINING && !e->update.grads_cleared) /* here, so that a team does it */
        gckpti_clear_accumulators(e, p->length);
    e->update.grads_cleared = 1;
    const int all = e->step.pc == p->body || e->step.pc == p->epilogue; /* pc may go back */
    *result = gckpti_defer_error(e, gckpti_wait_copies(e, all ? INT32_MAX : e->step.pc, GCKPT_OK));
    if (e->step.pc == p->epilogue && *result == GCKPT_OK)
        *result = gckpti_end_micro_batch(e);
    if (e->step.pc >= (int)p->length || *result != GCKPT_OK) {
        *result = *result == GCKPT_MORE ? GCKPT_OK : *result;
        return GCKPTI_ACTION_STOP;
    }
    const gckpti_ins *ins = &p->ins[e->step.pc];
    if (gckpti_replay(e))
        return GCKPTI_ACTION_REPLAYED;
    const int skipped = gckpti_sync_then_skips(e, ins);
    if (GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_UPDATE) {
        *result = gckpti_defer_error(e, gckpti_finalize_counts(e));
        const int counts = *result == GCKPT_OK && gckpti_loss_count(e) != 0;
        if (counts && e->step.goal == GCKPTI_GOAL_GRADIENTS) {
            e->step.pc++;
            return GCKPTI_ACTION_STOP;
        }
        if (!counts || e->step.goal == GCKPTI_GOAL_NO_UPDATES)
            return GCKPTI_ACTION_SKIP;
    }
    if (skipped)
        return GCKPTI_ACTION_SKIP;
    *result = gckpti_report_progress(e, ins);
    return *result != GCKPT_OK    ? GCKPTI_ACTION_STOP
           : gckpti_sync_then_skips(e, ins) ? GCKPTI_ACTION_SKIP
                                  : GCKPTI_ACTION_RUN;
}

GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c)
{
    gckpt_result result = GCKPT_OK;
    switch (gckpti_next_action(e, &result)) {
    case GCKPTI_ACTION_STOP:
        if (result != GCKPT_OK)
            gckpti_set_state(e, GCKPTI_IDLE);
        return result;
    case GCKPTI_ACTION_REPLAYED: gckpti_collect_rows(e); return GCKPT_MORE;
    case GCKPTI_ACTION_RUN: result = gckpti_run_instruction(e, &e->plan->ins[e->step.pc], c); break;
    case GCKPTI_ACTION_SKIP: break;
    }
    if (gckpti_debug(e) & GCKPT_DEBUG_POISON)
        result = gckpti_wait_copies(e, e->step.pc + 1, result);
    gckpti_poison_dead(e);
    e->step.pc++;
    if (gckpti_is_capture_end(e) || result != GCKPT_OK)
        gckpti_end_capture(e);
    if (result == GCKPT_OK)
        gckpti_collect_rows(e);
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
    gckpti_enable_capture(e, 0);
    gckpt_result waited = gckpti_wait_copies(e, INT32_MAX, *result);
    waited = waited == *result ? GCKPT_OK : gckpti_defer_error(e, waited);
    if (waited == GCKPT_OK)
        return *result;
    gckpti_set_state(e, GCKPTI_IDLE);
    return *result = waited;
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
    gckpti_enable_capture(e, instructions == INT64_MAX);
    gckpti_run_in_team(e, gckpti_run_instructions, &run, &run.result);
    e->device.in_call = 0;
    return run.result;
}
