/* fit.h - chooses the micro-batch together with the plan. To use it, copy it: it calls the public
 * API of gradckpt.h only.
 *
 *     gckpt_plan *plan = fit_plan(store, build, user, batch, &desc, NULL, &error);
 *     if (plan == NULL)
 *         puts(error.text);
 *
 * C99 or C++11. */
#ifndef FIT_H
#define FIT_H
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIT_MAX_TERMS = 16,
    FIT_IF_USEFUL = 2 /* value of desc.update_in_backward: fit_plan chooses */
};

/* Builds the graph whose inputs have `rows` rows, fills terms (at most FIT_MAX_TERMS) and returns
 * their number, or a negative number to exclude this size. Called for each divisor of the batch. It
 * must create the same tensors and parameters each time, so that ids are the same. */
typedef int (*fit_build_fn)(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user);

/* Fills in the costs of a graph that fit_build_fn just built, e.g. by tune.h. */
typedef gckpt_result (*fit_measure_fn)(gckpt_graph *graph, const gckpt_term *terms, int count,
                                       gckpt_cost *costs, int cost_count, void *user);

/* Why fit_plan returned NULL. */
typedef struct {
    gckpt_result result;
    char text[512];
} fit_error;

typedef struct {
    gckpt_store *store;
    fit_build_fn build;
    fit_measure_fn measure;
    void *user;
    gckpt_plan_desc desc;
    gckpt_plan *best;
    int tensors;    /* number of tensors of the first graph; 0 before it is built */
    int parameters; /* number of the store's parameters after it */
    size_t least;   /* no plan fits the budget: least bytes in which one exists; else SIZE_MAX */
    int finds_least;
    fit_error error; /* of the first size that was excluded, or the error of fit_plan */
} fit_state;

static inline gckpt_result fit_fail(fit_error *error, gckpt_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    error->result = result;
    return result;
}

/* Returns the greatest divisor of n below d, or 0 if there is none. */
static inline int64_t fit_next_divisor(int64_t n, int64_t d)
{
    int64_t k = n / d + 1;
    for (; k <= n / k; k++)
        if (n % k == 0)
            return n / k;
    for (k = k <= d ? k - 1 : d - 1; k > 0; k--)
        if (n % k == 0)
            return k;
    return 0;
}

/* Returns the rows of the largest virtual rank of a batch. */
static inline int64_t fit_rank_rows(const gckpt_plan_desc *d)
{
    const int64_t ranks = d->ranks.virtual_ranks > 0 ? d->ranks.virtual_ranks : 1;
    return (d->batch + ranks - 1) / ranks;
}

/* Returns whether a plan cannot be the result: an op mixes rows, but a micro-batch is not a whole
 * virtual rank. The bits of GCKPT_BF16_FAST may depend on the split anyway. */
static inline int fit_cannot_split(fit_state *f, const gckpt_plan *plan)
{
    const char *op = NULL;
    const int64_t rows = fit_rank_rows(&f->desc);
    if (f->desc.bf16.precision == GCKPT_BF16_FAST || gckpt_plan_split_exact(plan, &op) ||
        gckpt_plan_describe(plan).rows == rows)
        return 0;
    fit_fail(
        &f->error, GCKPT_E_ARG,
        "%s mixes rows, so micro-batches must have the %ld rows of %s; build refuses these, or "
        "they do not divide the batch of %ld rows",
        op, (long)rows, f->desc.ranks.virtual_ranks > 1 ? "a virtual rank" : "the batch",
        (long)f->desc.batch);
    return 1;
}

/* Keeps a plan if it is the best so far: by cost, then by bytes; else frees it. */
static inline void fit_keep(fit_state *f, gckpt_plan *plan)
{
    const uint64_t best = gckpt_plan_describe(f->best).step_cost;
    const uint64_t cost = gckpt_plan_describe(plan).step_cost;
    int better = f->best == NULL || cost < best;
    if (!better && cost == best)
        better = gckpt_plan_bytes(plan) < gckpt_plan_bytes(f->best);
    if (fit_cannot_split(f, plan))
        better = 0;
    gckpt_plan_free(better ? f->best : plan);
    f->best = better ? plan : f->best;
}

/* Keeps the first error of a graph. It only excludes the size. */
static inline void fit_exclude(fit_state *f, gckpt_graph *g, int64_t rows)
{
    if (f->error.result == GCKPT_OK)
        fit_fail(&f->error, gckpt_error(g), "fit: micro-batches of %ld rows: %s", (long)rows,
                 gckpt_error_text(g));
}

/* Plans a graph, unless its plan without a budget shows that it cannot be the result. */
static inline void fit_graph(fit_state *f, gckpt_graph *g, const gckpt_term *terms, int count,
                             int64_t rows)
{
    gckpt_plan_desc d = f->desc;
    const size_t most = f->finds_least ? f->least - 1 : d.budget > 0 ? d.budget : SIZE_MAX;
    d.budget = 0;
    d.mode = d.mode == GCKPT_OPTIMAL ? GCKPT_AUTO : d.mode;
    gckpt_plan *plan = gckpt_plan_new(g, terms, count, &d);
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    const int hopeless =
        plan != NULL && (fit_cannot_split(f, plan) || info.proven_bytes > most ||
                         (f->best != NULL && !(info.overhead > 0) &&
                          info.step_cost > gckpt_plan_describe(f->best).step_cost));
    gckpt_plan_free(plan);
    if (hopeless)
        return;
    d.budget = f->finds_least ? 1 : f->desc.budget;
    d.mode = f->desc.mode;
    plan = gckpt_plan_new(g, terms, count, &d);
    if (plan != NULL) {
        fit_keep(f, plan);
    } else if (gckpt_error(g) == GCKPT_E_BUDGET) {
        const char *number = strstr(gckpt_error_text(g), "at least ");
        const size_t least = number != NULL ? (size_t)strtoull(number + 9, NULL, 10) : SIZE_MAX;
        f->least = least < f->least ? least : f->least;
    } else {
        fit_exclude(f, g, rows);
    }
}

/* Plans a graph with each update rule that desc.update_in_backward allows. */
static inline void fit_rules(fit_state *f, gckpt_graph *g, const gckpt_term *terms, int count,
                             int64_t rows)
{
    const int rule = f->desc.update_in_backward;
    const int whole = rows == f->desc.batch && f->desc.ranks.virtual_ranks <= 1;
    for (int early = 0; early < 2; early++)
        if (early ? rule != 0 && whole : rule != 1) {
            f->desc.update_in_backward = early;
            fit_graph(f, g, terms, count, rows);
            f->desc.update_in_backward = rule;
        }
}

/* Builds, measures and plans one micro-batch size. */
static inline gckpt_result fit_rows(fit_state *f, int64_t rows)
{
    gckpt_term terms[FIT_MAX_TERMS];
    gckpt_cost *costs = NULL;
    memset(terms, 0, sizeof terms);
    gckpt_graph *g = gckpt_graph_new(f->store, &f->desc.memory);
    if (g == NULL)
        return fit_fail(&f->error, GCKPT_E_MEMORY, "fit: %s", gckpt_error_text(f->store));
    const int count = f->build(g, rows, terms, f->user);
    const int tensors = gckpt_graph_size(g), parameters = gckpt_store_count(f->store);
    gckpt_result result = GCKPT_OK;
    if (gckpt_error(g) != GCKPT_OK) {
        fit_exclude(f, g, rows);
    } else if (count > FIT_MAX_TERMS) {
        result = fit_fail(&f->error, GCKPT_E_ARG, "fit: build returned %d loss terms; at most %d",
                          count, (int)FIT_MAX_TERMS);
    } else if (count >= 0) {
        if (f->tensors > 0 && (f->tensors != tensors || f->parameters != parameters))
            result = fit_fail(&f->error, GCKPT_E_ARG,
                              "fit: for %ld rows, build made other tensors or parameters than for "
                              "the batch's other divisors; only shapes may depend on rows",
                              (long)rows);
        f->tensors = tensors;
        f->parameters = parameters;
        if (result == GCKPT_OK && f->measure != NULL) {
            costs = (gckpt_cost *)calloc((size_t)tensors + 1, sizeof *costs);
            result = costs != NULL ? f->measure(g, terms, count, costs, tensors, f->user)
                                   : GCKPT_E_MEMORY;
            if (result != GCKPT_OK)
                fit_fail(&f->error, result, "fit: measure failed: %s", gckpt_result_text(result));
            f->desc.costs.by_id = costs;
            f->desc.costs.count = tensors;
        }
        if (result == GCKPT_OK)
            fit_rules(f, g, terms, count, rows);
    }
    free(costs);
    gckpt_graph_free(g);
    return result;
}

/* Returns the plan with the least gckpt_plan_info.step_cost, then fewest bytes, then most rows,
 * among the plans of all micro-batch sizes (and update rules, with FIT_IF_USEFUL) that fit
 * desc.budget. measure NULL selects the cost model, and so the same plan on every machine. A graph
 * that mixes rows is planned with the whole batch. A size whose graph has an error is left out.
 * desc is as for gckpt_plan_new, but without batch, fetch, schedule and costs, and memory must not
 * be a block. Parameters that the graphs create stay in the store. Returns NULL after an error
 * (error may be NULL); if the budget is too small, its text names the least bytes. */
static inline gckpt_plan *fit_plan(gckpt_store *store, fit_build_fn build, void *user,
                                   int64_t batch, const gckpt_plan_desc *desc,
                                   fit_measure_fn measure, fit_error *error)
{
    fit_state f;
    memset(&f, 0, sizeof f);
    f.store = store;
    f.build = build;
    f.measure = measure;
    f.user = user;
    f.least = SIZE_MAX;
    if (desc != NULL)
        f.desc = *desc;
    const int early = f.desc.update_in_backward;
    gckpt_result result = GCKPT_OK;
    if (store == NULL || build == NULL || batch < 1 || batch > INT32_MAX)
        result = fit_fail(&f.error, GCKPT_E_ARG,
                          "fit: give a store, build, and a batch of 1 to 2147483647 rows");
    else if (f.desc.fetch.count || f.desc.costs.by_id || f.desc.mode == GCKPT_SCHEDULE ||
             f.desc.mode == GCKPT_INFERENCE || f.desc.memory.memory)
        result = fit_fail(&f.error, GCKPT_E_ARG,
                          "fit: desc.fetch, costs, a schedule, GCKPT_INFERENCE and a block of "
                          "memory are refused, as fit makes several plans: use gckpt_plan_new");
    else if (early < 0 || early > FIT_IF_USEFUL || (early == 1 && f.desc.ranks.virtual_ranks > 1))
        result = fit_fail(&f.error, GCKPT_E_ARG,
                          "fit: update_in_backward must be 0, 1 (with ranks.virtual_ranks 1) or "
                          "FIT_IF_USEFUL");
    f.desc.batch = batch;
    for (int pass = 0; pass < (f.desc.budget > 0 ? 2 : 1) && f.best == NULL; pass++) {
        f.finds_least = pass;
        for (int64_t d = batch; d > 0 && result == GCKPT_OK; d = fit_next_divisor(batch, d))
            if (early != 1 || d == (pass ? 1 : batch))
                result = fit_rows(&f, pass ? batch / d : d);
    }
    if (result == GCKPT_OK && f.best == NULL && f.least < SIZE_MAX)
        fit_fail(&f.error, GCKPT_E_BUDGET,
                 "fit: budget %zu bytes is too small: a batch of %ld rows needs at least %zu, "
                 "whatever the micro-batch",
                 f.desc.budget, (long)batch, f.least);
    else if (result == GCKPT_OK && f.best == NULL && f.error.result == GCKPT_OK)
        fit_fail(&f.error, GCKPT_E_ARG, "fit: build refused every divisor of the batch of %ld rows",
                 (long)batch);
    if (result != GCKPT_OK) {
        gckpt_plan_free(f.best);
        f.best = NULL;
    }
    if (f.best != NULL) {
        f.error.result = GCKPT_OK;
        f.error.text[0] = 0;
    }
    if (error != NULL)
        *error = f.error;
    return f.best;
}
#endif /* FIT_H */
