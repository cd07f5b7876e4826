/* tune.h - measures where the time of a step goes, the costs of ops on this machine, and which of
 * several plans is the fastest here. To use it, copy it: it calls the public API of gradckpt.h only.
 *
 *     tune_profile p = { .clock = seconds };                 returns seconds from any origin
 *     tune_open(&p, plan, &exec_desc);                       sets exec_desc.progress and .user
 *     gckpt_exec *e = gckpt_exec_new(plan, store, &exec_desc);
 *     tune_step(&p, e, feeds, n, rows, &hyper, &report);     a gckpt_step that is measured
 *     tune_close(&p);
 *
 *     tune_costs(store, plan, &input, costs, n, &update);    for gckpt_plan_desc.costs
 *     plan = tune_fit(store, build, user, batch, &desc, NULL, &timing);
 *
 * The clock is read in the progress callback, so a backend replays no micro-batches while it is
 * measured. tune_costs and tune_fit run steps on a copy of the store with initial values, which
 * takes the memory of the parameters and their state again; the store itself does not change. They
 * are for plans of one process. C99 or C++11. */
#ifndef TUNE_H
#define TUNE_H
#include "fit.h"
#include <stdlib.h>
#include <string.h>

/* Time of one instruction in all measured steps. */
typedef struct {
    double seconds;
    int64_t runs; /* number of runs: one for each micro-batch, or one for each step */
} tune_entry;

/* clock and user are set by the program, the other fields by the functions. */
typedef struct {
    double (*clock)(void *user); /* returns seconds from any origin */
    void *user;                  /* passed to clock */
    tune_entry *entries;         /* one entry an instruction */
    int count;                   /* length of entries */
    int64_t steps;               /* number of measured steps */
    double total_seconds;        /* time of these steps, with checks, feeds and the norm */
    const gckpt_backend *backend;
    int at;     /* the instruction that is running, or -1 */
    double now; /* last reading of the clock */
} tune_profile;

/* ---- the time of instructions ---- */
/* Adds the time since the last reading of the clock to the running instruction. */
static inline void tune_lap(tune_profile *p)
{
    const double before = p->now;
    if (p->backend != NULL && p->backend->finish != NULL)
        p->backend->finish(p->backend->context);
    p->now = p->clock(p->user);
    if (p->at < 0 || p->at >= p->count)
        return;
    p->entries[p->at].seconds += p->now - before;
    p->entries[p->at].runs++;
}

/* A gckpt_exec_desc.progress whose user is a tune_profile. A program with a callback of its own
 * calls it there. */
static inline int tune_progress(void *user, const gckpt_progress *progress)
{
    tune_profile *p = (tune_profile *)user;
    tune_lap(p);
    p->at = progress->instruction;
    return 0;
}

/* Allocates the entries for a plan, and lets executors made with *desc (may be NULL) report. */
static inline gckpt_result tune_open(tune_profile *p, const gckpt_plan *plan, gckpt_exec_desc *desc)
{
    if (p == NULL || p->clock == NULL)
        return GCKPT_E_ARG;
    p->count = gckpt_plan_describe(plan).instructions;
    p->steps = 0;
    p->total_seconds = 0;
    p->at = -1;
    p->backend = desc != NULL ? desc->backend : NULL;
    p->entries = (tune_entry *)calloc((size_t)p->count + 1, sizeof *p->entries);
    if (desc != NULL) {
        desc->progress = tune_progress;
        desc->user = p;
    }
    return p->entries != NULL ? GCKPT_OK : GCKPT_E_MEMORY;
}

static inline void tune_close(tune_profile *p)
{
    free(p->entries);
    p->entries = NULL;
    p->count = 0;
}

/* Runs gckpt_step, or gckpt_forward if hyper is NULL, and adds its times to the profile. */
static inline gckpt_result tune_step(tune_profile *p, gckpt_exec *exec, const gckpt_feed *feeds,
                                     int count, int64_t rows, const gckpt_hyper *hyper,
                                     gckpt_report *report)
{
    p->at = -1;
    tune_lap(p);
    const double start = p->now;
    gckpt_result result;
#ifndef GCKPT_NO_TRAINING
    if (hyper != NULL)
        result = gckpt_step(exec, feeds, count, rows, hyper, report);
    else
#endif
        result = gckpt_forward(exec, feeds, count, rows, report);
    tune_lap(p);
    p->at = -1;
    p->total_seconds += p->now - start;
    p->steps += result == GCKPT_OK || result == GCKPT_SKIPPED;
    return result;
}

#ifndef GCKPT_NO_TRAINING
/* ---- the costs of ops ---- */
/* How steps are run: the feeds of `rows` rows, and options of the executor. */
typedef struct {
    double (*clock)(void *user); /* returns seconds from any origin */
    void *user;                  /* passed to clock */
    const gckpt_feed *feeds;
    int count; /* length of feeds */
    int64_t rows;
    /* Backend, instruction set and memory of the executors, or NULL for the defaults. Its callbacks
     * are not called. */
    const gckpt_exec_desc *exec;
} tune_input;

static inline void tune_no_update(void *user, const gckpt_update *update)
{
    (void)user, (void)update;
}

static inline gckpt_exec_desc tune_exec_desc(const gckpt_exec_desc *from)
{
    gckpt_exec_desc desc;
    memset(&desc, 0, sizeof desc);
    if (from != NULL) {
        desc.memory = from->memory;
        desc.backend = from->backend;
        desc.isa = from->isa;
        desc.debug = from->debug & GCKPT_DEBUG_PLAIN;
    }
    desc.custom_optimiser = tune_no_update;
    return desc;
}

/* Returns a new store with the plan's parameters, frozen and quantised as in `store`; or NULL. */
static inline gckpt_store *tune_copy(const gckpt_store *store, const gckpt_plan *plan)
{
    gckpt_store *copy = gckpt_store_new(NULL);
    gckpt_parameter q;
    gckpt_result result = copy != NULL ? gckpt_plan_params(plan, copy) : GCKPT_E_MEMORY;
    for (int i = 0; result == GCKPT_OK && gckpt_store_peek(store, i, &q) == GCKPT_OK; i++) {
        if (gckpt_store_find(copy, q.name) < 0)
            continue;
        result = gckpt_store_freeze(copy, q.name, q.frozen);
#ifndef GCKPT_NO_QUANT
        if (result == GCKPT_OK && q.storage != GCKPT_STORAGE_F32)
            result = gckpt_store_quantise(copy, q.name, q.storage);
#endif
    }
    if (result == GCKPT_OK)
        return copy;
    gckpt_store_free(copy);
    return NULL;
}

static inline int tune_by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline uint64_t tune_nanoseconds(double seconds)
{
    const double ns = seconds * 1e9 + 0.5;
    return ns < 1 ? 1 : ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

enum { TUNE_MIN_RUNS = 6, TUNE_MAX_RUNS = 32 };

/* Runs 6 to 32 steps (a quarter of a second, unless 6 take longer), the first of which warms up.
 * spent[k * TUNE_MAX_RUNS + i]: seconds of a run of instruction k in step i; the last k is the rest
 * of the step: feeds, division, norm and updates. Sets *runs to the number of steps. */
static inline gckpt_result tune_run(tune_profile *p, gckpt_exec *exec, const gckpt_plan *plan,
                                    const tune_input *in, double *spent, int *runs)
{
    gckpt_hyper hyper = gckpt_hyper_lr(0);
    gckpt_instruction ins;
    gckpt_report report;
    const double start = p->clock(p->user);
    for (*runs = 0; *runs < TUNE_MAX_RUNS; ++*runs) {
        if (*runs >= TUNE_MIN_RUNS && p->now - start >= 0.25)
            break;
        memset(p->entries, 0, (size_t)p->count * sizeof *p->entries);
        p->total_seconds = 0;
        gckpt_result result = tune_step(p, exec, in->feeds, in->count, in->rows, &hyper, &report);
        if (result == GCKPT_OK && report.count == 0)
            result = GCKPT_E_DATA;
        if (result != GCKPT_OK)
            return result;
        double rest = p->total_seconds;
        for (int k = 0; k < p->count; k++) {
            const tune_entry *t = &p->entries[k];
            spent[k * TUNE_MAX_RUNS + *runs] = t->seconds / (double)(t->runs + !t->runs);
            if (gckpt_plan_get(plan, k, &ins) == GCKPT_OK && ins.kind != GCKPT_UPDATE && ins.id >= 0)
                rest -= t->seconds;
        }
        spent[p->count * TUNE_MAX_RUNS + *runs] = rest;
    }
    return p->now > start ? GCKPT_OK : GCKPT_E_DATA;
}

/* Measures the ops of a training plan on this machine. costs[id], for gckpt_plan_desc.costs, gets
 * the nanoseconds of an op's forward and backward over one micro-batch, at least 1, which ops have
 * that the plan does not run. cost_count is the highest id + 1. *update (may be NULL) gets the
 * nanoseconds of the rest of a step. in->rows must be a multiple of the plan's micro-batch. The plan
 * must run the ops as they were built (desc.schedule.as_built); GCKPT_STORE_ALL takes the least
 * time. A recompute is assumed to take as long as the first forward. Returns E_DATA if the first
 * loss counts nothing, or if the clock does not advance. */
static inline gckpt_result tune_costs(const gckpt_store *store, const gckpt_plan *plan,
                                      const tune_input *in, gckpt_cost *costs, int cost_count,
                                      uint64_t *update)
{
    tune_profile p;
    gckpt_instruction ins;
    gckpt_usage usage;
    gckpt_exec_desc desc = tune_exec_desc(in->exec);
    memset(&p, 0, sizeof p);
    p.clock = in->clock;
    p.user = in->user;
    int runs = 0;
    gckpt_store *copy = store != NULL && plan != NULL ? tune_copy(store, plan) : NULL;
    gckpt_result result = copy != NULL ? tune_open(&p, plan, &desc) : GCKPT_E_MEMORY;
    double *spent = (double *)calloc((size_t)p.count + 1, TUNE_MAX_RUNS * sizeof *spent);
    gckpt_exec *exec =
        spent != NULL && result == GCKPT_OK ? gckpt_exec_new(plan, copy, &desc) : NULL;
    if (result == GCKPT_OK)
        result = exec != NULL ? tune_run(&p, exec, plan, in, spent, &runs) : gckpt_error(copy);
    for (int i = 0; i < cost_count && result == GCKPT_OK; i++)
        costs[i].forward = costs[i].backward = 1;
    for (int k = 0; k <= p.count && result == GCKPT_OK; k++) {
        double *step = &spent[k * TUNE_MAX_RUNS + 1];
        qsort(step, (size_t)runs - 1, sizeof *step, tune_by_value);
        const uint64_t median = tune_nanoseconds(step[(runs - 1) / 2]);
        if (k == p.count && update != NULL)
            *update = median;
        if (gckpt_plan_get(plan, k, &ins) != GCKPT_OK || ins.id < 0 || ins.id >= cost_count ||
            gckpt_plan_usage(plan, k, &usage) != GCKPT_OK)
            continue;
        if (ins.kind == GCKPT_FORWARD && !usage.recompute)
            costs[ins.id].forward = median;
        else if (ins.kind == GCKPT_BACKWARD)
            costs[ins.id].backward = median;
    }
    gckpt_exec_free(exec);
    gckpt_store_free(copy);
    free(spent);
    tune_close(&p);
    return result;
}
#endif /* GCKPT_NO_TRAINING */

#ifndef GCKPT_NO_TRAINING
/* ---- the fastest plan ---- */
/* A plan that tune_fit tried. */
typedef struct {
    int64_t rows;    /* gckpt_plan_info.rows */
    size_t bytes;    /* gckpt_plan_bytes */
    uint64_t cost;   /* gckpt_plan_info.step_cost: the prediction */
    double overhead; /* gckpt_plan_info.overhead */
    double seconds;  /* seconds of a step, the least of `runs` steps */
    int runs;        /* number of timed steps; 0 if the limit was reached before */
} tune_trial;

enum { TUNE_MAX_TRIALS = 16, TUNE_ROUNDS = 6 };

typedef struct {
    tune_input input; /* rows is ignored: a step has the whole batch; build may fill in feed ids */
    double limit;     /* seconds; a begun step is finished; if 0, times no plan */
    tune_trial trials[TUNE_MAX_TRIALS]; /* results; the first is the plan of fit_plan */
    int count, fastest;                 /* number of trials; index of the returned plan */
    fit_error error;                    /* why tune_fit returned NULL */
} tune_timing;

/* A fit_build_fn and its user, which excludes micro-batches of fewer than `least` rows. */
typedef struct {
    fit_build_fn build;
    void *user;
    int64_t least;
    fit_measure_fn measure;
} tune_builder;

static inline int tune_build(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user)
{
    const tune_builder *b = (const tune_builder *)user;
    const int count = b->build(graph, rows, terms, b->user);
    return rows < b->least ? -1 : count;
}

static inline gckpt_result tune_measure(gckpt_graph *graph, const gckpt_term *terms, int count,
                                        gckpt_cost *costs, int cost_count, void *user)
{
    const tune_builder *b = (const tune_builder *)user;
    return b->measure(graph, terms, count, costs, cost_count, b->user);
}

/* Adds a plan to the trials; frees it and returns 0 if it costs more than 5/4 of the first. */
static inline int tune_add_trial(tune_timing *timing, gckpt_plan **plans, gckpt_plan *plan)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    const uint64_t least = timing->trials[0].cost;
    if (plan == NULL || (timing->count > 0 && info.step_cost > least + least / 4)) {
        gckpt_plan_free(plan);
        return 0;
    }
    tune_trial *t = &timing->trials[timing->count];
    memset(t, 0, sizeof *t);
    t->rows = info.rows;
    t->bytes = gckpt_plan_bytes(plan);
    t->cost = info.step_cost;
    t->overhead = info.overhead;
    plans[timing->count++] = plan;
    return 1;
}

/* Measures a step of a plan, after one that warms up; keeps the least time of the trial. */
static inline gckpt_result tune_time(tune_timing *timing, gckpt_store *copy, const gckpt_plan *plan,
                                     int trial)
{
    const gckpt_exec_desc desc = tune_exec_desc(timing->input.exec);
    const gckpt_hyper hyper = gckpt_hyper_lr(0);
    tune_trial *t = &timing->trials[trial];
    tune_profile p;
    gckpt_exec *exec = gckpt_exec_new(plan, copy, &desc);
    gckpt_result result = exec != NULL ? GCKPT_OK : gckpt_error(copy);
    memset(&p, 0, sizeof p);
    p.clock = timing->input.clock;
    p.user = timing->input.user;
    p.backend = desc.backend;
    for (int i = 0; i < 2 && result == GCKPT_OK; i++) {
        p.total_seconds = 0;
        result = tune_step(&p, exec, timing->input.feeds, timing->input.count,
                           gckpt_plan_describe(plan).batch, &hyper, NULL);
    }
    if (result == GCKPT_OK) {
        t->seconds = t->runs && t->seconds < p.total_seconds ? t->seconds : p.total_seconds;
        t->runs++;
    }
    gckpt_exec_free(exec);
    return result;
}

/* Times all plans alternately, for at most TUNE_ROUNDS rounds or until `until`; after each round
 * only plans within 1/2, 1/4, .. of the fastest remain. Chooses the first plan that is within 1/64
 * of the fastest, since smaller differences are probably noise. */
static inline gckpt_result tune_time_all(tune_timing *timing, gckpt_store *copy, gckpt_plan **plans,
                                         double until)
{
    tune_trial *t = timing->trials;
    gckpt_result result = GCKPT_OK;
    int best = 0;
    for (int round = 0; round < TUNE_ROUNDS; round++)
        for (int i = 0; i < timing->count && result == GCKPT_OK; i++) {
            const double slack = 1 + 1.0 / (1 << round);
            const double now = timing->input.clock(timing->input.user);
            if (t[i].runs < round || (round > 0 && t[i].seconds > slack * t[best].seconds) ||
                (t[best].runs > 0 && now + 2 * t[best].seconds > until))
                continue;
            result = tune_time(timing, copy, plans[i], i);
            best =
                t[best].runs == 0 || (t[i].runs > 0 && t[i].seconds < t[best].seconds) ? i : best;
        }
    for (int i = best; i >= 0; i--)
        if (t[i].runs > 0 && t[i].seconds <= t[best].seconds * 65 / 64)
            timing->fastest = i;
    return result;
}

/* Works as fit_plan, but times the most promising plans and returns the one that is fastest here.
 * Candidates are plans for fewer and fewer bytes and for larger micro-batches, while their cost is
 * at most 1.25 times that of fit_plan's plan. The choice varies, the results of training do not.
 * Planning takes at most half the limit. Returns NULL if fit_plan finds no plan or a step fails. */
static inline gckpt_plan *tune_fit(gckpt_store *store, fit_build_fn builds, void *user,
                                   int64_t batch, const gckpt_plan_desc *desc,
                                   fit_measure_fn measure, tune_timing *timing)
{
    gckpt_plan *plans[TUNE_MAX_TRIALS];
    tune_builder builder = { builds, user, 0, measure };
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    if (desc != NULL)
        d = *desc;
    timing->count = timing->fastest = 0;
    if (!tune_add_trial(timing, plans,
                        fit_plan(store, builds, user, batch, desc, measure, &timing->error)))
        return NULL;
    if (!(timing->limit > 0))
        return plans[0];
    const double start = timing->input.clock(timing->input.user);
    int64_t rows =
        timing->trials[0].rows + 1; /* larger micro-batches first, then (0) fewer bytes */
    size_t bytes = timing->trials[0].bytes;
    while (timing->count < TUNE_MAX_TRIALS &&
           timing->input.clock(timing->input.user) < start + timing->limit / 2) {
        rows = rows > batch ? 0 : rows;
        builder.least = rows;
        if (rows == 0)
            d.budget = bytes - bytes / 8 - 1;
        if (tune_add_trial(timing, plans,
                           fit_plan(store, tune_build, &builder, batch, &d,
                                    measure != NULL ? tune_measure : NULL, NULL))) {
            const tune_trial *last = &timing->trials[timing->count - 1];
            rows = rows > 0 ? last->rows + 1 : 0;
            bytes = rows == 0 ? last->bytes : bytes;
        } else if (rows > 0) {
            rows = 0;
        } else {
            break;
        }
    }
    gckpt_store *copy = tune_copy(store, plans[0]);
    const gckpt_result result =
        copy != NULL ? tune_time_all(timing, copy, plans, start + timing->limit) : GCKPT_E_MEMORY;
    gckpt_store_free(copy);
    for (int i = 0; i < timing->count; i++)
        if (i != timing->fastest || result != GCKPT_OK)
            gckpt_plan_free(plans[i]);
    if (result != GCKPT_OK)
        fit_fail(&timing->error, result, "tune_fit: a timed step: %s", gckpt_result_text(result));
    return result == GCKPT_OK ? plans[timing->fastest] : NULL;
}
#endif
#endif
