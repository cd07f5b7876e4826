#include "check/internal.h"
#include "planner/planner.h"

#if !defined(GCKPT_NO_CHECK) && !defined(GCKPT_NO_FIT)
/* ---- gckpt_fit_timed: times the plans that are predicted to be fastest ---- */
enum { GCKPTI_TRIAL_REPEATS = 32 };

typedef struct {
    gckpt_store *store;
    gckpt_fit_timing *timed;
    gckpt_plan *plan[GCKPT_MAX_TRIALS];
    gckpt_exec *exec[GCKPT_MAX_TRIALS];
    int count;
} gckpti_trials;

static double gckpti_clock(const gckpti_trials *r) { return r->timed->clock(r->timed->user); }

/* Adds a plan to the trials; frees it and returns 0 if it costs more than 5/4 of the first. */
static int gckpti_add_trial(gckpti_trials *r, gckpt_plan *plan)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    const uint64_t least = gckpt_plan_describe(r->plan[0]).step_cost;
    if (!plan || (r->count > 0 && info.step_cost > least + least / 4)) {
        gckpt_plan_free(plan);
        return 0;
    }
    gckpt_trial *t = &r->timed->trials[r->count];
    memset(t, 0, sizeof *t);
    t->rows = info.rows;
    t->bytes = gckpt_plan_bytes(plan);
    t->cost = info.step_cost;
    t->overhead = info.overhead;
    r->plan[r->count++] = plan;
    return 1;
}

/* Creates the executors; all use the arena of plan number `largest`, whose arena is the largest. */
static gckpt_result gckpti_bind_trials(gckpti_trials *r, int largest)
{
    gckpt_exec_desc exec_desc;
    memset(&exec_desc, 0, sizeof exec_desc);
    if (r->timed->exec)
        exec_desc = *r->timed->exec;
    exec_desc.debug &= GCKPT_DEBUG_PLAIN;
    exec_desc.progress = NULL;
    exec_desc.copy_feeds = exec_desc.skip_nonfinite = 0;
    for (int n = -1; n < r->count; n++) {
        int i = n < 0 ? largest : n;
        if (!r->exec[i])
            r->exec[i] = gckpt_exec_new(r->plan[i], r->store, &exec_desc);
        if (!r->exec[i])
            return gckpt_error(r->store);
        exec_desc.arena = r->exec[largest]->blocks.arena;
        exec_desc.arena_size = r->plan[largest]->arena;
    }
    return GCKPT_OK;
}

/* Measures the seconds of one step, without its updates. */
static gckpt_result gckpti_time_trial(const gckpti_trials *r, gckpt_exec *e, double *seconds)
{
    const gckpti_batch b = { e, r->timed->feeds, r->timed->feed_count, e->plan->batch };
    double start = gckpti_clock(r);
    gckpt_result result = gckpti_batch_begin(&b, GCKPTI_GOAL_NO_UPDATES);
    if (result == GCKPT_OK)
        result = gckpti_run(e, INT64_MAX);
    if (result == GCKPT_OK)
        result = gckpti_wait_backend(e);
    gckpti_set_state(e, GCKPTI_IDLE);
    double end = gckpti_clock(r);
    *seconds = end > start ? end - start : 0;
    if (result != GCKPT_OK)
        gckpti_error(r->store, result, "fit_timed: %s", gckpt_error_text(e));
    return result;
}

/* Times all plans repeatedly; after two times, only plans within 1/2, 1/4, 1/8 of the best. */
static gckpt_result gckpti_time_repeats(gckpti_trials *r, double until)
{
    gckpt_trial *t = r->timed->trials;
    int *fastest = &r->timed->fastest;
    for (int repeat = 0, timed = 2; repeat < GCKPTI_TRIAL_REPEATS && timed > (repeat > 3);
         repeat++) {
        double seconds, slack = 1 + 2.0 / (1 << (repeat < 4 ? repeat : 4));
        timed = 0;
        for (int i = 0; i < r->count; i++) {
            if (t[*fastest].runs && gckpti_clock(r) + t[*fastest].seconds > until)
                return GCKPT_OK;
            if (t[i].runs < repeat || (repeat > 1 && t[i].seconds > slack * t[*fastest].seconds))
                continue;
            gckpt_result result = gckpti_time_trial(r, r->exec[i], &seconds);
            if (result != GCKPT_OK)
                return result;
            t[i].seconds = t[i].runs && t[i].seconds < seconds ? t[i].seconds : seconds;
            *fastest = t[i].seconds < t[*fastest].seconds ? i : *fastest;
            t[i].runs++;
            timed++;
        }
    }
    return GCKPT_OK;
}

/* Times the trials and leaves the store unchanged. Chooses the first plan that is within 1/64 of
 * the fastest, since smaller differences are probably noise. */
static gckpt_result gckpti_time_trials(gckpti_trials *r, double until)
{
    double seconds;
    int largest = 0;
    for (int i = 1; i < r->count; i++)
        largest = r->plan[i]->arena > r->plan[largest]->arena ? i : largest;
    gckpt_result result = gckpti_bind_trials(r, largest);
    const gckpt_exec *e = r->exec[largest];
    if (result == GCKPT_OK) /* warms the arena: its first use is slow */
        result = gckpti_time_trial(r, r->exec[largest], &seconds);
    if (result == GCKPT_OK)
        result = gckpti_time_repeats(r, until);
    const gckpt_trial *t = r->timed->trials, least = t[r->timed->fastest];
    for (r->timed->fastest = 0; t[r->timed->fastest].seconds > least.seconds * 65 / 64;)
        r->timed->fastest++;
    for (size_t i = e ? e->plan->param_count : 0; i-- > 0;) /* remove state that the trials added */
        gckpti_state_shrink(r->store, gckpti_param_of(e, (int)i), e->tables.params[i].slots_before);
    for (int i = 0; i < r->count; i++)
        gckpt_exec_free(r->exec[i]);
    return result;
}

GCKPT_API gckpt_plan *gckpt_fit_timed(gckpt_store *store, gckpt_build_fn build, void *user,
                                      int64_t batch, const gckpt_plan_desc *desc,
                                      gckpt_measure_fn measure, gckpt_fit_timing *timed)
{
    gckpti_trials r;
    gckpt_plan_desc d;
    memset(&r, 0, sizeof r);
    memset(&d, 0, sizeof d);
    r.store = store;
    r.timed = timed;
    if (!store || !timed || !timed->clock || (timed->exec && timed->exec->memory.memory)) {
        gckpti_error(store, GCKPT_E_ARG,
                     "fit_timed: set timed->clock, and leave timed->exec->memory.memory NULL");
        return NULL;
    }
    if (store->ranks > 1) {
        gckpti_error(store, GCKPT_E_ARG,
                     "fit_timed: not for %i ranks, as each could choose another plan: use "
                     "gckpt_fit",
                     store->ranks);
        return NULL;
    }
    if (desc)
        d = *desc;
    const size_t before = store->count;
    timed->count = timed->fastest = 0;
    if (!gckpti_add_trial(&r, gckpt_fit(store, build, user, batch, &d, measure)) ||
        !(timed->limit > 0))
        return r.plan[0];
    const double start = gckpti_clock(&r), late = start + timed->limit / 2;
    const gckpt_plan *p = r.plan[0];
    int64_t rows = p->rows + 1; /* first larger micro-batches; rows = 1 then means fewer bytes */
    while (r.count < GCKPT_MAX_TRIALS && gckpti_clock(&r) < late) {
        if (rows == 1)
            d.budget = gckpti_required_bytes(p) - p->arena / 8 - 1;
        int more = rows <= batch &&
                   gckpti_add_trial(&r, gckpti_fit(store, build, user, batch, &d, measure, rows));
        if (!more && rows == 1)
            break;
        p = r.plan[more ? r.count - 1 : 0];
        rows = more && rows > 1 ? p->rows + 1 : 1;
    }
    gckpt_result result = gckpt_error(store) == GCKPT_E_MEMORY ? GCKPT_E_MEMORY : GCKPT_OK;
    if (result == GCKPT_OK)
        result = gckpti_time_trials(&r, start + timed->limit);
    timed->count = r.count;
    for (int i = 0; i < r.count; i++)
        if (i != timed->fastest || result != GCKPT_OK)
            gckpt_plan_free(r.plan[i]);
    if (result != GCKPT_OK)
        gckpti_store_shrink(store, before);
    return result == GCKPT_OK && gckpti_ok(store) == GCKPT_OK ? r.plan[timed->fastest] : NULL;
}
#endif
