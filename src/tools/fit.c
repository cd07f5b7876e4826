#include "planner/internal.h"
#include "num/num.h"
#include "store/store.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_FIT
/* ---- gckpt_fit: the micro-batch size is chosen together with the plan ---- */
typedef struct {
    gckpt_store *store;
    gckpt_build_fn build;
    gckpt_measure_fn measure;
    void *user;
    gckpt_plan_desc desc;
    gckpt_plan *best;
    uint64_t key;       /* key of the first graph (gckpti_graph_key); 0 before it is built */
    size_t param_count; /* number of the store's parameters after the first graph */
    size_t min_bytes;   /* least bytes in which some micro-batch size has a plan */
    int finds_least;    /* no plan fits: finds min_bytes */
    int too_large;      /* some size needs more bytes than can be addressed */
    char mixer[64];     /* an op that rules out some size, or "" */
    int other_rows;     /* a size had gckpt_graph.depends_on_rows: see error_text */
    char error_text[GCKPTI_TEXT_BYTES];
} gckpti_fit_state;

/* Returns the greatest divisor of n below d, or 0 if there is none. */
static int64_t gckpti_next_divisor(int64_t n, int64_t d)
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

/* Returns a nonzero hash of the tensors' kinds, ops and inputs (attributes may depend on rows). */
static uint64_t gckpti_graph_key(const gckpt_graph *g)
{
    uint64_t key = gckpti_fnv(GCKPTI_FNV_START, &g->count, sizeof g->count);
    for (size_t i = 0; i < g->count; i++) {
        const gckpt_tensor *t = g->tensors[i];
        int words[2 + GCKPT_MAX_INPUTS];
        words[0] = t->kind;
        words[1] = t->index;
        for (int k = 0; k < t->inputs; k++)
            words[2 + k] = t->in[k]->id;
        key = gckpti_fnv(key, words, (size_t)(2 + t->inputs) * sizeof *words);
        if (t->op)
            key = gckpti_fnv(key, t->op->name, strlen(t->op->name));
    }
    return key ? key : 1;
}

/* Returns whether a plan is invalid: an op mixes rows, but a micro-batch is not a whole virtual
 * rank (the batch, if there is only one), or batch norm would see a single value per channel. */
static int gckpti_cannot_split(const gckpt_plan *p)
{
    return p->mixer >= 0 && (p->rows != (p->batch + p->virtual_ranks - 1) / p->virtual_ranks ||
                             gckpti_has_single_norm(p, p->batch));
}

/* Keeps a plan if it is the best so far: by cost, then by bytes without copies; else frees it. */
static void gckpti_fit_keep(gckpti_fit_state *f, gckpt_plan *plan)
{
    const gckpt_plan *best = f->best;
    uint64_t cost = best ? gckpt_plan_describe(best).step_cost : UINT64_MAX,
             plan_cost = gckpt_plan_describe(plan).step_cost;
    int fewer = plan_cost == cost && gckpti_required_bytes(plan) < gckpti_required_bytes(best);
    int better = !gckpti_cannot_split(plan) && (!best || plan_cost < cost || fewer);
    gckpt_plan_free(better ? best : plan);
    f->best = better ? plan : f->best;
}

/* Returns whether no plan of a graph can be the result, given its plan without a budget. */
static int gckpti_is_hopeless(gckpti_fit_state *f, const gckpt_plan *unlimited, size_t most)
{
    const gckpt_plan_info info = gckpt_plan_describe(unlimited);
    gckpti_text mixer = { f->mixer, sizeof f->mixer - 1 };
    if (gckpti_cannot_split(unlimited)) {
        gckpti_text_add(&mixer, "%s", gckpti_planned_name(unlimited, unlimited->mixer));
        return 1;
    }
    return info.proven_bytes > most || (f->best && !(info.overhead > 0) &&
                                        info.step_cost > gckpt_plan_describe(f->best).step_cost);
}

/* Plans a graph, unless its plan without a budget shows that it cannot be the result. */
static gckpt_result gckpti_fit_plan(gckpti_fit_state *f, gckpt_graph *g, const gckpt_term *terms,
                                    int count, gckpt_plan_desc d)
{
    gckpt_plan_desc unlimited = d;
    unlimited.budget = 0;
    unlimited.mode = d.mode == GCKPT_OPTIMAL ? GCKPT_AUTO : d.mode;
    gckpt_plan *plan = gckpt_plan_new(g, terms, count, &unlimited);
    if (!plan && g->min_bytes < SIZE_MAX)
        return g->object.last;
    const size_t most = f->finds_least ? f->min_bytes - 1 : d.budget ? d.budget : SIZE_MAX;
    const int hopeless = plan && gckpti_is_hopeless(f, plan, most);
    gckpt_plan_free(plan);
    if (hopeless)
        return GCKPT_OK;
    d.budget = f->finds_least ? 1 : d.budget;
    plan = gckpt_plan_new(g, terms, count, &d);
    if (plan)
        gckpti_fit_keep(f, plan);
    else if (g->min_bytes == SIZE_MAX)
        f->too_large = 1;
    else if (g->object.last != GCKPT_E_BUDGET)
        return g->object.last;
    else
        f->min_bytes = g->min_bytes < f->min_bytes ? g->min_bytes : f->min_bytes;
    return GCKPT_OK;
}

/* Builds the graph of a micro-batch size. *count: the number of loss terms, negative if refused. */
static gckpt_result gckpti_fit_build(gckpti_fit_state *f, gckpt_graph *g, int64_t rows,
                                     gckpt_term *terms, int *count)
{
    *count = f->build(g, rows, terms, f->user);
    if (*count < 0 && g->object.sticky != GCKPT_E_MEMORY && !g->depends_on_rows)
        return GCKPT_OK;
    if (g->object.sticky != GCKPT_OK || *count > GCKPT_MAX_TERMS)
        gckpti_error(g, GCKPT_E_ARG, "build returned %i loss terms; at most %i are allowed", *count,
                     GCKPT_MAX_TERMS);
    else if (g->rows != rows)
        gckpti_error(g, GCKPT_E_ARG, "build made inputs of %I rows, not of %I", g->rows, rows);
    else if (f->key && (f->key != gckpti_graph_key(g) || f->param_count != f->store->count))
        gckpti_error(g, GCKPT_E_ARG,
                     "build made other tensors or parameters than for the batch's other "
                     "divisors; only shapes may depend on rows");
    else {
        f->key = gckpti_graph_key(g);
        f->param_count = f->store->count;
        return GCKPT_OK;
    }
    return g->object.sticky != GCKPT_OK ? g->object.sticky : GCKPT_E_ARG;
}

/* Plans a graph with each possible update rule (with and without updates in the backward). */
static gckpt_result gckpti_fit_rules(gckpti_fit_state *f, gckpt_graph *g, const gckpt_term *terms,
                                     int count)
{
    gckpt_result result = GCKPT_OK;
    gckpt_plan_desc d = f->desc;
    int in_backward = d.update_in_backward;
    for (int rule = 0; rule < 2 && result == GCKPT_OK; rule++) {
        if (rule ? !in_backward || g->rows != d.batch || d.ranks.virtual_ranks > 1
                 : in_backward == 1)
            continue;
        d.update_in_backward = rule;
        result = gckpti_fit_plan(f, g, terms, count, d);
    }
    return result;
}

/* Builds, measures and plans one micro-batch size. */
static gckpt_result gckpti_fit_rows(gckpti_fit_state *f, int64_t rows)
{
    gckpt_term terms[GCKPT_MAX_TERMS];
    gckpti_allocator memory = gckpti_allocator_of(&f->desc.memory);
    gckpt_cost *costs = NULL;
    size_t before = f->store->count;
    int count = 0;
    if (f->desc.update_in_backward == 1 && rows < f->desc.batch)
        return GCKPT_OK;
    memset(terms, 0, sizeof terms);
    gckpt_graph *g = gckpt_graph_new(f->store, &f->desc.memory);
    if (!g)
        return GCKPT_E_MEMORY;
    gckpt_result result = gckpti_fit_build(f, g, rows, terms, &count);
    if (result == GCKPT_OK && f->measure && count >= 0) {
        costs = (gckpt_cost *)gckpti_new(&memory, g->count, sizeof *costs);
        result = costs ? f->measure(g, terms, count, costs, (int)g->count, f->user)
                       : gckpti_error(g, GCKPT_E_MEMORY, "no memory for costs");
        if (costs && result != GCKPT_OK)
            gckpti_error(g, result, "measure failed: %s", gckpt_result_text(result));
    }
    f->desc.costs.by_id = costs;
    f->desc.costs.count = costs ? (int)g->count : 0;
    if (result == GCKPT_OK && count >= 0)
        result = gckpti_fit_rules(f, g, terms, count);
    if (result != GCKPT_OK)
        gckpti_error(f->store, result, "fit: micro-batches of %I rows: %s", rows,
                     gckpt_error_text(g));
    if (result == GCKPT_E_SHAPE && g->depends_on_rows) {
        count = g->object.sticky == GCKPT_OK ? count : -1;
        f->other_rows = 1;
        memcpy(f->error_text, f->store->object.text, sizeof f->error_text);
        result = GCKPT_OK;
    }
    gckpti_delete(&memory, costs, g->count, sizeof *costs);
    gckpt_graph_free(g);
    if (result == GCKPT_OK && count < 0)
        gckpti_store_shrink(f->store, before);
    return result;
}

/* Checks a request before anything is built. */
static gckpt_result gckpti_check_fit(gckpt_store *store, gckpt_build_fn build, int64_t batch,
                                     const gckpt_plan_desc *d)
{
    if (!build || batch < 1 || batch > INT32_MAX)
        return gckpti_error(store, GCKPT_E_ARG, "fit: %s",
                            build ? "the batch must be 1 to 2147483647" : "build is NULL");
    if (d->fetch.count || d->costs.by_id || d->mode == GCKPT_SCHEDULE ||
        d->mode == GCKPT_INFERENCE || d->memory.memory)
        return gckpti_error(store, GCKPT_E_ARG,
                            "fit: desc.fetch, costs, a schedule, GCKPT_INFERENCE and a block of "
                            "memory are refused, as fit makes several plans: use gckpt_plan_new");
    if (d->update_in_backward < 0 || d->update_in_backward > GCKPT_IF_USEFUL)
        return gckpti_error(store, GCKPT_E_ARG,
                            "fit: update_in_backward must be 0, 1 or GCKPT_IF_USEFUL");
    if (d->update_in_backward == 1 && d->ranks.virtual_ranks > 1)
        return gckpti_error(store, GCKPT_E_ARG,
                            "fit: update_in_backward needs desc.ranks.virtual_ranks 1");
    return GCKPT_OK;
}

/* Sets the store's error: why no micro-batch size has a plan. */
static void gckpti_report_no_fit(const gckpti_fit_state *f)
{
    const int64_t batch = f->desc.batch;
    if (f->min_bytes < SIZE_MAX)
        gckpti_error(f->store, GCKPT_E_BUDGET,
                     "fit: budget %z bytes is too small: a batch of %I rows needs at least %z, "
                     "whatever the micro-batch",
                     f->desc.budget, batch, f->min_bytes);
    else if (f->too_large)
        gckpti_error(f->store, GCKPT_E_MEMORY,
                     "fit: whatever the micro-batch of a batch of %I rows, the step arena has more "
                     "bytes than this machine can address; try GCKPT_MEMORY_POOR or a smaller "
                     "network",
                     batch);
    else if (f->other_rows)
        gckpti_error(f->store, GCKPT_E_SHAPE, "%s", f->error_text);
    else if (*f->mixer)
        gckpti_error(f->store, GCKPT_E_ARG,
                     f->desc.ranks.virtual_ranks > 1
                         ? "fit: %s mixes rows, so micro-batches must have the %I rows of a "
                           "virtual rank; build refuses these, or they do not divide the batch of "
                           "%I rows: make it a multiple of desc.ranks.virtual_ranks"
                         : "fit: %s mixes rows, so micro-batches must have the %I rows of the "
                           "batch, which build refuses",
                     f->mixer, gckpti_largest_vrank(&f->desc, NULL), batch);
    else
        gckpti_error(f->store, GCKPT_E_ARG,
                     "fit: build refused every divisor of the batch of %I rows", batch);
}

GCKPT_API gckpt_plan *gckpt_fit(gckpt_store *store, gckpt_build_fn build, void *user, int64_t batch,
                                const gckpt_plan_desc *desc, gckpt_measure_fn measure)
{
    gckpti_fit_state f;
    memset(&f, 0, sizeof f);
    if (!store)
        return NULL;
    if (desc)
        f.desc = *desc;
    size_t before = store->count;
    gckpt_result result = gckpti_check_fit(store, build, batch, &f.desc);
    f.store = store;
    f.build = build;
    f.measure = measure;
    f.user = user;
    f.desc.batch = batch;
    f.min_bytes = SIZE_MAX;
    for (int passes = f.desc.budget ? 2 : 1; passes-- > 0 && !f.best && result == GCKPT_OK;
         f.finds_least = 1)
        for (int64_t d = batch; d > 0 && result == GCKPT_OK; d = gckpti_next_divisor(batch, d))
            result = gckpti_fit_rows(&f, f.finds_least ? batch / d : d);
    if (result == GCKPT_OK && f.best) {
        gckpti_ok(store);
        return f.best;
    }
    if (result == GCKPT_OK)
        gckpti_report_no_fit(&f);
    gckpt_plan_free(f.best);
    gckpti_store_shrink(store, before);
    return NULL;
}
#endif
