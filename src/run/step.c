#include "run/internal.h"
#include "graph/graph.h"
#include "num/num.h"

/* Checks the number of rows of a step, or of a gckpt_step_add. */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const int inference = gckpti_is_inference(p);
    const int streams = gckpti_is_streaming(e);
    const int64_t before = streams ? e->step.row_end : 0;
    if (rows < 1 || (!inference && rows > p->batch - before))
        return gckpti_error(e, GCKPT_E_ARG, "step: %I rows; this plan takes 1 to %I in a step%s",
                            rows, p->batch,
                            before ? " (all calls of the step together)" : " (desc.batch)");
    const int64_t rest = gckpti_rows_left(p, rows);
    int whole = p->mixer >= 0;
    if (whole && p->nodes[p->mixer].op && gckpti_has_running(p->nodes[p->mixer].op))
        whole = streams; /* running statistics allow a short last micro-batch */
    if (whole && rest)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: %I rows are not a multiple of the micro-batch of %I%s, which they must be "
            "because %s #%i mixes rows",
            rows, p->rows, gckpti_split_scope(p), gckpti_planned_name(p, p->mixer), p->mixer);
    if (rest == 1 && !inference && !whole && gckpti_mixer_measures_one(p))
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: %I rows in micro-batches of %I leave one row over, and %s #%i cannot normalise "
            "one value per channel: drop that row, or plan other micro-batches",
            rows, p->rows, gckpti_planned_name(p, p->mixer), p->mixer);
    return GCKPT_OK;
}

/* Checks that each setting is finite and in range. */
static gckpt_result gckpti_check_hyper(gckpt_exec *e, const gckpt_hyper *h)
{
    const struct {
        const char *name;
        float value, low, high;
    } fields[] = { { "lr", h->lr, 0, FLT_MAX },
                   { "weight_decay", h->weight_decay, 0, FLT_MAX },
                   { "beta1", h->beta1, -1, 0.9999999f },
                   { "beta2", h->beta2, -1, 0.9999999f },
                   { "eps", h->eps, 0, 1 },
                   { "momentum", h->momentum, -1, 1 },
                   { "clip", h->clip, 0, FLT_MAX } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= fields[i].low && fields[i].value <= fields[i].high)) /* or NaN */
            return gckpti_error(e, GCKPT_E_ARG, "step: hyper.%s is %g; it must be from %g to %g%s",
                                fields[i].name, (double)fields[i].value, (double)fields[i].low,
                                (double)fields[i].high,
                                i ? "" : " (a term of negative weight is maximised)");
    return GCKPT_OK;
}

/* Checks the plan's parameters, and lets nodes refer to their newest values, copied if needed. */
static gckpt_result gckpti_sync_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        gckpti_param *q = gckpti_param_of(e, (int)i);
        gckpt_result result = gckpti_check_plan_param(e, (int)i, q, 1);
        if (GCKPTI_CHECKS_INITIAL && result == GCKPT_OK && e->step.goal == GCKPTI_GOAL_FORWARD &&
            !q->assigned && !e->desc.allow_initial)
            result = gckpti_error(
                e, GCKPT_E_ARG,
                "forward: \"%s\" has its initial values: it was neither loaded, set nor trained; "
                "load a file after the graph is built, or set desc.allow_initial",
                q->p.name);
        if (GCKPTI_RUNS_DEVICES && result == GCKPT_OK)
            result = gckpti_sync_param(e, q, 1);
        if (result != GCKPT_OK)
            return result;
        const void **data = &e->tables.nodes[p->params[i].node].data;
        if (GCKPTI_RUNS_DEVICES && *data != gckpti_exec_array(e, q, -1))
            (void)gckpti_notify(e, GCKPTI_ON_MOVED, NULL);
        *data = gckpti_exec_array(e, q, -1);
    }
    return GCKPT_OK;
}

/* Checks the request against the plan, and resets the state of the step. */
static gckpt_result gckpti_init_step(gckpt_exec *e, int64_t rows, gckpti_goal goal,
                                     const gckpt_hyper *options)
{
    const gckpt_plan *p = e->plan;
    const int inference = !GCKPTI_RUNS_TRAINING || goal == GCKPTI_GOAL_FORWARD;
    gckpti_set_state(e, GCKPTI_IDLE);
    e->losses.valid = 0;
    e->step.goal = goal;
    if (inference != (p->mode == GCKPT_INFERENCE))
        return gckpti_error(e, GCKPT_E_ARG,
                            inference
                                ? "forward: this plan trains; make one with GCKPT_INFERENCE"
                                : "step: this plan is for GCKPT_INFERENCE; gckpt_forward runs it");
    if (!inference && !options)
        return gckpti_error(e, GCKPT_E_ARG, "step: hyper is NULL; gckpt_hyper_lr makes one");
    if (!inference && gckpti_check_hyper(e, options) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (!inference && p->update_in_backward && options->clip > 0)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: clip needs all gradients before the first update; this plan updates in "
            "the backward (desc.update_in_backward)");
    gckpt_result result = gckpti_sync_params(e);
    if (result != GCKPT_OK)
        return result;
    if (options)
        e->update.options = *options;
    e->step.number = e->store->step;
    e->step.storage_changes = e->store->storage_changes;
    memset(e->losses.terms, 0, p->term_count * sizeof *e->losses.terms);
    e->update.begun = 0;
    e->step.rows = rows;
    (void)gckpti_own_rows(e, rows);
    e->step.row = e->step.row_end = e->feeds.first_row = e->step.first_row;
    e->step.prologue_done = 0;
    e->update.grad_norm = 0;
    e->update.clip_scale = 1;
    return gckpti_ok(e);
}

/* Takes the feeds of `rows` more rows, checks their indices, and adds their counts to the expected
 * ones. */
GCKPTI_FN gckpt_result gckpti_add_rows(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                       int64_t rows)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = rows ? gckpti_match_feeds(e, feeds, count) : GCKPT_OK;
    for (size_t x = 0; x < p->length && rows; x++) {
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_plan_node *node = &p->nodes[ins->id];
        const int checks =
            ins->kind == GCKPT_FORWARD && ins->first && node->op && node->op->classes;
        for (int i = 0; i < node->inputs && checks && result == GCKPT_OK; i++)
            result = gckpti_check_indices(e, node, ins->id, i, rows);
    }
    if (result == GCKPT_OK && rows)
        result = gckpti_notify(e, GCKPTI_ON_FED, &rows);
    if (result != GCKPT_OK)
        return result;
    e->step.row_end += rows;
    if (gckpti_is_streaming(e))
        e->step.rows = e->step.row_end;
    if (GCKPTI_RUNS_TRAINING)
        gckpti_expect_counts(e, rows);
    return GCKPT_OK;
}

/* Does all work before the first instruction of a run over `rows` rows (0 if rows stream in). */
GCKPTI_FN gckpt_result gckpti_prepare_step(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                           int64_t rows, gckpti_goal goal,
                                           const gckpt_hyper *options)
{
    if (!e || gckpti_is_under_way(e) || gckpti_enter_call(e) != GCKPT_OK)
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_init_step(e, rows, goal, options);
    if (result == GCKPT_OK && !gckpti_is_streaming(e))
        result = gckpti_check_rows(e, rows);
    if (result == GCKPT_OK && !gckpti_is_streaming(e))
        result = gckpti_add_rows(e, feeds, count, gckpti_own_rows(e, rows));
    result = gckpti_agree_on_step(e, rows, result);
    e->device.in_call = 0;
    if (result != GCKPT_OK)
        return result;
    /* the step is accepted; from here on nothing refuses it */
    (void)gckpti_notify(e, GCKPTI_ON_BEGIN, NULL);
    e->step.pc = e->step.finished = 0;
    gckpti_fill(e, e->losses.totals, 0, e->losses.total_count * sizeof *e->losses.totals);
    gckpti_set_state(e, gckpti_is_streaming(e) ? GCKPTI_STREAMING : GCKPTI_RUNNING);
    return GCKPT_OK;
}

/* Ends a run: waits for the backend, adds up the losses, counts the step, fills the report. */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report)
{
    const gckpt_plan *p = e->plan;
    double loss = 0;
    gckpti_set_state(e, GCKPTI_IDLE);
    gckpt_result result = gckpti_sum_losses(e);
    if (result != GCKPT_OK)
        return result;
    result = gckpti_check_counts(e);
    const int64_t count = p->term_count ? e->losses.terms[0].total.count : 0;
    const int inference = gckpti_is_inference(p), counts = !inference && count > 0;
    if (gckpti_group_of(e) && counts)
        gckpti_sum_squares(e);
    result = gckpti_agree(e, result);
    if (result != GCKPT_OK)
        return result;
    (void)gckpti_notify(e, GCKPTI_ON_SUCCESS, NULL);
    e->step.finished = e->step.rows > 0;
    e->losses.valid = 1;
    for (size_t i = 0; i < p->term_count; i++) {
        double weight = (double)gckpti_float(p->terms[i].weight);
        const gckpti_loss_total *seen = &e->losses.terms[i].total;
        if (p->terms[i].regulariser)
            loss += weight * seen->sum;
        else if (seen->count > 0)
            loss += weight * (seen->sum / (double)seen->count);
    }
    const gckpti_plan_param *bad = counts ? gckpti_count_step(e) : NULL;
    if (report) {
        report->loss = count > 0 || inference ? loss : 0;
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

/* Runs up to `instructions` instructions of a prepared step; after the step's last, finishes it. */
GCKPTI_FN gckpt_result gckpti_run_step(gckpt_exec *e, int64_t instructions, gckpt_report *report)
{
    gckpt_result result = gckpti_run(e, instructions);
    return result == GCKPT_OK ? gckpti_finish_step(e, report) : result;
}

GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare_step(exec, feeds, count, rows, GCKPTI_GOAL_FORWARD, NULL);
    return result == GCKPT_OK ? gckpti_run_step(exec, INT64_MAX, report) : result;
}

GCKPT_API gckpt_result gckpt_term_loss(gckpt_exec *exec, int term, double *sum, int64_t *count)
{
    if (!exec || !sum || !count)
        return GCKPT_E_ARG;
    const int terms = (int)exec->plan->term_count;
    if (term < 0 || term >= terms)
        return gckpti_error(exec, GCKPT_E_ARG, "term_loss: term %i; it must be from 0 to %i", term,
                            terms - 1);
    if (!exec->losses.valid)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "term_loss: no step yet, or the last one did not complete");
    *sum = exec->losses.terms[term].total.sum;
    *count = exec->losses.terms[term].total.count;
    return GCKPT_OK;
}
