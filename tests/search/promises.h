/* promises.h - checks the promises of the manual (9) about plans, for one request at a time.
 *
 *    promise_all(seed, way)     plans every mode and many budgets for the net of this seed (net.h), and
 *                               compares the plans with each other and with the frontier
 *    promise_synthetic(..)      does the same for the current synthetic graph (synthetic.h)
 *    promise_runs(seed, way)    trains with some of the plans: same bits as a plain plan, bytes as planned
 *    promise_fit(seed, way)     compares fit_plan with all micro-batches, planned one by one
 *    promise_report()           prints how often each promise was checked and broken
 *
 * The checker of plans (plan_check.h) also checks each plan. Include this file after layer headers
 * of src/ (planner/internal.h) and net.h. */
#ifndef TESTS_PROMISES_H
#define TESTS_PROMISES_H

/* The promises: name and text. */
#define PROMISES(X)                                                                                \
    X(PLANNED, "what is legal is planned, for any budget from the least named on")                 \
    X(WITHIN, "the peak never exceeds the budget")                                                 \
    X(MORE, "more bytes never cost more work")                                                     \
    X(RIVALS, "never worse than store-all, segments, sqrt, memory-poor in the same bytes")         \
    X(NO_WORSE, "gckpt_plan_new has no more work than the frontier's point")                       \
    X(NO_GAP, "between points gckpt_plan_new has not less by 0.1 % of a step, if complete")        \
    X(LEAST, "the least budget named works; nothing needs less; a byte less is refused")           \
    X(POINTS, "a point's bytes and work are its plan's; find gives it")                            \
    X(AUTO, "AUTO plans what OPTIMAL can, with no more work")                                      \
    X(PROVEN, "nothing has less work or bytes than is proven")                                     \
    X(SLOWER, "slower memory never costs work or bytes")                                           \
    X(BITS, "all plans of a net give the same bits")                                               \
    X(TOUCHED, "running touches the bytes that were planned")                                      \
    X(FIT, "fit_plan is no worse than any micro-batch, one by one")
#define PROMISE_ENUM(name, text) PROMISE_##name,
enum { PROMISES(PROMISE_ENUM) PROMISE_KINDS };
#undef PROMISE_ENUM
static long promise_checked[PROMISE_KINDS], promise_broken[PROMISE_KINDS];
static int promise_verbose; /* if nonzero, prints every broken promise and its net */
static int promise_printed;

/* ---- the current request, and its plans ---- */
enum { PROMISE_PLANS = 128, PROMISE_BUDGETS = 10, PROMISE_LIST = 3000 };
typedef struct {
    const char *what;
    size_t bytes, budget, proven_bytes; /* budget is 0 if the plan has none */
    uint64_t work, proven;
    int searched, near_optimal; /* near_optimal: proven to cost at most 0.1 % of a step more than the optimum */
} promise_plan;
static struct {
    char who[48];
    gckpt_graph *g;
    const gckpt_term *term;
    int terms, of_net; /* terms: number of loss terms; of_net: nonzero if the graph is one of net.h */
    gckpt_plan_desc d;
    promise_plan plan[PROMISE_PLANS];
    int plans;
    uint64_t step; /* cost of store-all */
    size_t least;
    heap memory;
} promise_request;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline int
promise(int kind, int kept, const char *format, ...)
{
#define PROMISE_NAME(name, text) #name,
    static const char *const names[] = { PROMISES(PROMISE_NAME) };
#undef PROMISE_NAME
    char text[400];
    va_list args;
    promise_checked[kind]++;
    if (!kept) {
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        promise_broken[kind]++;
        if (promise_verbose) {
            if (!promise_printed++ && promise_request.of_net)
                net_print();
            printf("%s: %s\n", names[kind], text);
        }
        return CHECK_MSG(0, "%s: %s", names[kind], text);
    }
    return CHECK(1);
}

static inline void promise_report(void)
{
#define PROMISE_TEXT(name, text) text,
    static const char *const texts[] = { PROMISES(PROMISE_TEXT) };
#undef PROMISE_TEXT
    for (int i = 0; i < PROMISE_KINDS; i++)
        printf("%9ld asked %5ld broken: %s\n", promise_checked[i], promise_broken[i], texts[i]);
}

/* Returns the bytes of an instruction's workspace, or (size_t)-1 if the op's shape function fails. A forward has the
 * bytes that the shape function requests. A backward has first the compensation terms of sums within the instruction
 * (manual, 5e), then the bytes that the shape function requests. */
static inline size_t workspace_of(const gckpt_plan *p, const gckpti_ins *ins)
{
    const gckpti_plan_node *node = &p->nodes[ins->id];
    size_t comp = 0, own;
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.inputs = node->inputs;
    call.attributes = node->attribute_bytes ? p->words + node->attributes : NULL;
    call.threads = p->threads;
    call.plain = p->backend_id != 0;
    for (int i = 0; i < node->inputs; i++)
        call.in[i].shape = gckpti_planned_shape(p, &p->nodes[node->in[i]]);
    if (node->op->shape(&call) != GCKPT_OK || call.saved_bytes != node->saved_bytes)
        return (size_t)-1;
    if (ins->kind == GCKPT_FORWARD)
        return call.workspace_forward;
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_plan_node *q = &p->nodes[node->in[i]];
        int over_rows = q->batch_invariant && !node->batch_invariant;
        if (!(node->op->needs[i] & GCKPT_SUMS) ||
            p->operands[ins->operands + 5 + 3 * (size_t)i] == PC_NONE)
            continue;
        const size_t n = (size_t)gckpti_planned_elements(p, q);
        if (over_rows ? !p->accumulates : n != (size_t)gckpti_planned_elements(p, node))
            comp = (comp + 63) / 64 * 64 + 4 * n;
    }
    own = call.workspace_backward;
    return own ? (comp + 63) / 64 * 64 + own : comp;
}

/* Returns whether the instruction is a fused group. A fused group has no shape rule and always has a workspace, which
 * plan_check.h checks. */
static inline int is_fused(const gckpt_plan *p, const gckpti_ins *ins)
{
    return p->nodes[ins->id].kind == GCKPTI_OP && !p->nodes[ins->id].op->shape;
}

/* Returns whether the update of a parameter, of parameter `id` if that is not -1, has a workspace of `bytes` bytes. */
static inline int is_update_workspace(int id, size_t bytes)
{
    const gckpt_graph *g = promise_request.g;
    const gckpt_plan_desc *d = &promise_request.d;
    for (int i = 0; d->workspace_bytes && i < (int)g->count; i++) {
        const gckpt_tensor *t = g->tensors[i];
        if ((id < 0 || id == i) && t->kind == GCKPTI_PARAM &&
            d->workspace_bytes(d->user, g->store->params[t->index].p.name, gckpti_rows(&t->shape),
                               gckpti_last(&t->shape)) == bytes)
            return 1;
    }
    return 0;
}

static inline int workspaces_match(const gckpt_plan *p)
{
    int left = 0;
    for (size_t x = 0; x < p->length; x++)
        left += p->ins[x].kind <= GCKPT_BACKWARD && p->nodes[p->ins[x].id].kind == GCKPTI_OP &&
                (is_fused(p, &p->ins[x]) || workspace_of(p, &p->ins[x]) > 0);
    for (size_t b = 0; b < p->buffer_count; b++) {
        const gckpti_ins *ins = &p->ins[p->buffers[b].start];
        if (p->buffers[b].kind != GCKPT_BUFFER_WORKSPACE)
            continue;
        if (ins->kind == GCKPT_UPDATE) { /* no backward before it has as much */
            left += !is_update_workspace(ins->id, p->buffers[b].size);
            continue;
        }
        const size_t own = is_fused(p, ins) ? p->buffers[b].size : workspace_of(p, ins);
        if (own != p->buffers[b].size && !(ins->kind == GCKPT_BACKWARD && own < p->buffers[b].size &&
                                           is_update_workspace(-1, p->buffers[b].size)))
            return 0; /* an update after a backward may need more than that */
        left -= own > 0;
    }
    return left == 0;
}

static inline gckpt_plan *promise_new_plan(gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc d = promise_request.d;
    d.mode = mode;
    d.budget = budget;
    gckpt_plan *p = gckpt_plan_new(promise_request.g, promise_request.term, promise_request.terms, &d);
    if (p)
        net_planned(&d);
    return p;
}

/* Records a plan's bytes and cost, and frees the plan. Returns 0 if the plan is NULL. */
static inline int promise_record(gckpt_plan *p, const char *what, size_t budget, int searched)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    const gckpt_plan_desc *d = &promise_request.d;
    if (!promise(PROMISE_PLANNED, p != NULL, "%s, %s: %s", promise_request.who, what,
                 gckpt_error_text(promise_request.g)))
        return 0;
    if (p->fused)
        net_cover("runs in bands");
    promise_plan now = { what,
                         gckpt_plan_bytes(p),
                         budget,
                         info.proven_bytes,
                         info.cost,
                         info.proven_cost,
                         searched,
                         info.gap < 0.001 };
    promise(PROMISE_WITHIN, !budget || now.bytes <= budget, "%s, %s: %lu bytes, the budget is %lu",
            promise_request.who, what, (unsigned long)now.bytes, (unsigned long)budget);
    promise(PROMISE_PROVEN,
            now.proven <= now.work && now.proven_bytes <= now.bytes && info.gap >= 0,
            "%s, %s: work %lu, proven %lu; bytes %lu, proven %lu", promise_request.who, what,
            (unsigned long)now.work, (unsigned long)now.proven, (unsigned long)now.bytes,
            (unsigned long)now.proven_bytes);
    CHECK_MSG(d->backend || d->bf16.precision || workspaces_match(p), "%s, %s: another workspace",
              promise_request.who, what);
    if (CHECK(promise_request.plans < PROMISE_PLANS))
        promise_request.plan[promise_request.plans++] = now;
    gckpt_plan_free(p);
    return 1;
}

static inline promise_plan *promise_last(void) { return &promise_request.plan[promise_request.plans - 1]; }

/* Plans a mode without a budget, then with a budget of exactly that plan's bytes, and with one byte less. */
static inline void promise_mode(gckpt_mode mode, const char *what)
{
    if (!promise_record(promise_new_plan(mode, 0), what, 0, 0))
        return;
    if (mode == GCKPT_STORE_ALL)
        promise_request.step = promise_last()->work;
    const size_t bytes = promise_last()->bytes;
    if (chance(60))
        return;
    promise_record(promise_new_plan(mode, bytes), what, bytes, 0);
    gckpt_plan *p = promise_new_plan(mode, bytes - 1);
    promise(PROMISE_LEAST,
            !p && gckpt_error(promise_request.g) == GCKPT_E_BUDGET && util_least_budget(promise_request.g) == bytes,
            "%s, %s: a byte less than %lu: %s", promise_request.who, what, (unsigned long)bytes,
            p ? "a plan" : gckpt_error_text(promise_request.g));
    gckpt_plan_free(p);
}

static inline void promise_modes(void)
{
    static gckpt_instruction list[PROMISE_LIST];
    promise_mode(GCKPT_STORE_ALL, "store-all");
    promise_mode(GCKPT_SEGMENTS, "segments");
    promise_mode(GCKPT_SQRT, "sqrt");
    promise_mode(GCKPT_MEMORY_POOR, "memory-poor");
    promise_record(promise_new_plan(GCKPT_OPTIMAL, 0), "optimal without a budget", 0, 1);
    promise_record(promise_new_plan(GCKPT_AUTO, 0), "auto without a budget", 0, 0);
    if (promise_request.d.schedule.segment_size) {
        const int group = promise_request.d.schedule.segment_size;
        promise_request.d.schedule.segment_size = 0;
        promise_mode(GCKPT_SQRT, "sqrt, any group");
        promise_request.d.schedule.segment_size = group;
    }
    if (promise_request.d.fetch.count || promise_request.d.kernels.stage_parameters ||
        (promise_request.of_net && net.packed))
        return; /* random_schedule takes its list from a plan without these options, which lacks some forwards */
    promise_request.d.schedule.instructions = list;
    promise_request.d.schedule.count =
        random_schedule(promise_request.g, promise_request.term, promise_request.terms, list, PROMISE_LIST);
    if (promise_request.d.schedule.count > 0)
        promise_record(promise_new_plan(GCKPT_SCHEDULE, 0), "schedule", 0, 0);
    promise_request.d.schedule.instructions = NULL;
    promise_request.d.schedule.count = 0;
}

/* Checks that the error for too small a budget names the smallest budget of the mode, that this budget suffices, and
 * that one byte less does not. */
static inline int promise_least(gckpt_mode mode)
{
    const char *what = mode_name(mode);
    gckpt_plan *p = promise_new_plan(mode, 1);
    if (!promise(PROMISE_LEAST, !p && gckpt_error(promise_request.g) == GCKPT_E_BUDGET,
                 "%s, %s in a byte: %s", promise_request.who, what,
                 p ? "a plan" : gckpt_error_text(promise_request.g))) {
        gckpt_plan_free(p);
        return 0;
    }
    const size_t least = util_least_budget(promise_request.g);
    promise(PROMISE_LEAST, !promise_request.least || least == promise_request.least,
            "%s: %s names %lu bytes as the least, another mode %lu", promise_request.who, what,
            (unsigned long)least, (unsigned long)promise_request.least);
    promise_request.least = least;
    if (!promise_record(promise_new_plan(mode, least), "the least budget", least, 1))
        return 0;
    p = promise_new_plan(mode, least - 1);
    promise(PROMISE_LEAST,
            !p && gckpt_error(promise_request.g) == GCKPT_E_BUDGET && util_least_budget(promise_request.g) == least,
            "%s, %s: a byte less than the least, %lu: %s", promise_request.who, what, (unsigned long)least,
            p ? "a plan" : gckpt_error_text(promise_request.g));
    gckpt_plan_free(p);
    return 1;
}

static inline gckpt_frontier *promise_frontier(void)
{
    gckpt_frontier *f =
        gckpt_frontier_new(promise_request.g, promise_request.term, promise_request.terms, &promise_request.d);
    gckpt_point last = { 0, 0, 0, 0, 0 }, now;
    const int n = gckpt_frontier_describe(f).points;
    if (!promise(PROMISE_PLANNED, n > 0, "%s, frontier: %s", promise_request.who,
                 gckpt_error_text(promise_request.g)))
        return f;
    for (int i = 0; i < n; i++) {
        CHECK(gckpt_frontier_get(f, i, &now) == GCKPT_OK);
        promise(PROMISE_MORE, i == 0 || (now.bytes > last.bytes && now.cost < last.cost),
                "%s: point %d: work %lu in %lu bytes, after %lu in %lu", promise_request.who, i,
                (unsigned long)now.cost, (unsigned long)now.bytes, (unsigned long)last.cost,
                (unsigned long)last.bytes);
        promise(PROMISE_PROVEN,
                now.proven_cost <= now.cost && (i == 0 || now.proven_cost <= last.proven_cost) &&
                    gckpt_frontier_describe(f).proven_bytes <= now.bytes,
                "%s: point %d: work %lu, proven %lu", promise_request.who, i, (unsigned long)now.cost,
                (unsigned long)now.proven_cost);
        promise(PROMISE_POINTS,
                gckpt_frontier_find(f, now.bytes) == i &&
                    gckpt_frontier_find(f, now.bytes - 1) == i - 1,
                "%s: point %d of %lu bytes is not found", promise_request.who, i, (unsigned long)now.bytes);
        last = now;
        if (i && i + 1 < n && !chance(30))
            continue;
        if (!promise_record(gckpt_frontier_plan(f, now.bytes), "a point", now.bytes, 1))
            continue;
        const promise_plan *p = promise_last();
        promise(PROMISE_POINTS, p->bytes == now.bytes && p->work == now.cost,
                "%s: point %d has work %lu in %lu bytes, its plan %lu in %lu", promise_request.who, i,
                (unsigned long)now.cost, (unsigned long)now.bytes, (unsigned long)p->work,
                (unsigned long)p->bytes);
        promise(PROMISE_PROVEN,
                p->proven == now.proven_cost && p->proven_bytes == gckpt_frontier_describe(f).proven_bytes,
                "%s: point %d: proven %lu, its plan says %lu", promise_request.who, i,
                (unsigned long)now.proven_cost, (unsigned long)p->proven);
    }
    for (int i = 0; i < promise_request.plans; i++) {
        const promise_plan *q = &promise_request.plan[i];
        if (q->searched || !strcmp(q->what, "schedule") ||
            gckpt_frontier_get(f, gckpt_frontier_find(f, q->bytes), &now) != GCKPT_OK)
            continue;
        promise(PROMISE_RIVALS,
                now.cost <= q->work || (now.cost - q->work < promise_request.step / 1000 &&
                                        now.cost - now.proven_cost < promise_request.step / 1000),
                "%s: %s has work %lu in %lu bytes, the frontier %lu", promise_request.who, q->what,
                (unsigned long)q->work, (unsigned long)q->bytes, (unsigned long)now.cost);
    }
    gckpt_frontier_get(f, 0, &now);
    promise(PROMISE_LEAST, now.bytes == promise_request.least,
            "%s: the frontier begins with %lu bytes, the least named is %lu", promise_request.who,
            (unsigned long)now.bytes, (unsigned long)promise_request.least);
    gckpt_plan *p = gckpt_frontier_plan(f, now.bytes - 1);
    promise(PROMISE_LEAST,
            !p && gckpt_error(promise_request.g) == GCKPT_E_BUDGET && util_least_budget(promise_request.g) == now.bytes,
            "%s: the frontier in a byte less than the least: %s", promise_request.who,
            p ? "a plan" : gckpt_error_text(promise_request.g));
    gckpt_plan_free(p);
    return f;
}

/* Lists the budgets to plan in ascending order: the least, the bytes of other plans, and some between. Returns their
 * number. */
static inline int promise_budgets(size_t *budget, size_t most)
{
    int n = 0;
    for (int i = 0; i < 4 * PROMISE_BUDGETS && n < PROMISE_BUDGETS; i++) {
        size_t spare = most > promise_request.least ? most - promise_request.least : 0, b;
        const promise_plan *q = &promise_request.plan[below(promise_request.plans)];
        b = i == 0       ? promise_request.least
            : chance(60) ? q->bytes - (chance(20) && q->bytes > promise_request.least)
                         : promise_request.least + below((int64_t)spare + 1);
        int at = n;
        while (at > 0 && budget[at - 1] > b)
            at--;
        if (b < promise_request.least || (at > 0 && budget[at - 1] == b))
            continue;
        memmove(budget + at + 1, budget + at, (size_t)(n++ - at) * sizeof *budget);
        budget[at] = b;
    }
    return n;
}

/* Compares the OPTIMAL plan for this budget with the frontier and with the AUTO plan. */
static inline void promise_budget(const gckpt_frontier *f, size_t budget)
{
    gckpt_point at = { 0, 0, 0, 0, 0 };
    if (!promise_record(promise_new_plan(GCKPT_OPTIMAL, budget), "optimal", budget, 1))
        return;
    promise_plan p = *promise_last();
    if (f &&
        promise(PROMISE_POINTS,
                gckpt_frontier_get(f, gckpt_frontier_find(f, budget), &at) == GCKPT_OK,
                "%s: the frontier has nothing for %lu bytes", promise_request.who, (unsigned long)budget)) {
        promise(PROMISE_NO_WORSE, p.work <= at.cost,
                "%s: %lu bytes: work %lu, the frontier's point of %lu has %lu", promise_request.who,
                (unsigned long)budget, (unsigned long)p.work, (unsigned long)at.bytes,
                (unsigned long)at.cost);
        promise(PROMISE_NO_GAP,
                p.work + promise_request.step / 1000 >= at.cost || !gckpt_frontier_describe(f).complete,
                "%s: %lu bytes: work %lu in %lu, the complete frontier has %lu in %lu", promise_request.who,
                (unsigned long)budget, (unsigned long)p.work, (unsigned long)p.bytes,
                (unsigned long)at.cost, (unsigned long)at.bytes);
    }
    if (chance(30) && promise_record(promise_new_plan(GCKPT_AUTO, budget), "auto", budget, 1))
        promise(PROMISE_AUTO, promise_last()->work <= p.work,
                "%s: %lu bytes: work %lu by auto, %lu by optimal", promise_request.who,
                (unsigned long)budget, (unsigned long)promise_last()->work, (unsigned long)p.work);
}

/* Compares a plan that may offload with the plan for the same budget that may not. */
static inline void promise_slower(size_t budget, const promise_plan *with)
{
    const size_t bytes = promise_request.d.offload.bytes;
    promise_request.d.offload.bytes = 0;
    gckpt_plan *p = promise_new_plan(GCKPT_OPTIMAL, budget);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    promise(PROMISE_SLOWER, p || util_least_budget(promise_request.g) >= promise_request.least,
            "%s: the least is %lu bytes, %lu without slower memory", promise_request.who,
            (unsigned long)promise_request.least, (unsigned long)util_least_budget(promise_request.g));
    promise(PROMISE_SLOWER,
            !p || (with->work <= info.cost && with->proven <= info.proven_cost),
            "%s: %lu bytes: work %lu, proven %lu; %lu, %lu without slower memory", promise_request.who,
            (unsigned long)budget, (unsigned long)with->work, (unsigned long)with->proven,
            (unsigned long)info.cost, (unsigned long)info.proven_cost);
    gckpt_plan_free(p);
    promise_request.d.offload.bytes = bytes;
}

/* Compares every recorded plan with every other: more bytes must never cost more. */
static inline void promise_compare(void)
{
    for (int i = 0; i < promise_request.plans; i++) {
        const promise_plan *p = &promise_request.plan[i];
        /* the least bytes apply to plans of any mode, but not to a caller's schedule, which may take fewer */
        promise(PROMISE_LEAST, p->bytes >= promise_request.least || !strcmp(p->what, "schedule"),
                "%s: %s takes %lu bytes, fewer than the least, %lu", promise_request.who, p->what,
                (unsigned long)p->bytes, (unsigned long)promise_request.least);
        for (int k = 0; p->searched && k < promise_request.plans; k++) {
            const promise_plan *q = &promise_request.plan[k];
            promise(PROMISE_PROVEN, p->proven_bytes <= q->bytes,
                    "%s: %s proves %lu bytes, %s has %lu", promise_request.who, p->what,
                    (unsigned long)p->proven_bytes, q->what, (unsigned long)q->bytes);
            if (p->budget && q->bytes > p->budget)
                continue;
            promise(PROMISE_PROVEN, p->proven <= q->work,
                    "%s: %s in %lu bytes proves %lu, %s has %lu", promise_request.who, p->what,
                    (unsigned long)p->budget, (unsigned long)p->proven, q->what,
                    (unsigned long)q->work);
            if (!strcmp(q->what, "schedule") || !strcmp(p->what, "a point"))
                continue; /* points of the frontier are compared with the plans for their bytes instead */
            promise(q->searched ? PROMISE_MORE : PROMISE_RIVALS,
                    p->work <= q->work ||
                        (!q->searched && p->near_optimal && p->work - q->work < promise_request.step / 1000),
                    "%s: %s in %lu bytes has work %lu, %s in %lu has %lu", promise_request.who, p->what,
                    (unsigned long)p->budget, (unsigned long)p->work, q->what,
                    (unsigned long)q->bytes, (unsigned long)q->work);
        }
    }
}

static inline void promise_open(unsigned seed, int way)
{
    memset(&promise_request, 0, sizeof promise_request);
    promise_printed = 0;
    net_open(seed, way, NET_ROWS);
    promise_request.g = net.g;
    promise_request.term = net.term;
    promise_request.terms = net.terms;
    promise_request.of_net = 1;
    promise_request.d = net.d;
    snprintf(promise_request.who, sizeof promise_request.who, "seed %u way %d", seed, way);
}

/* Checks the promises for inference: plans for budgets from the least one to the bytes of a plan without a budget. */
static inline void promise_inference(void)
{
    gckpt_plan_desc *d = &promise_request.d;
    size_t budget[PROMISE_BUDGETS];
    promise_request.plans = 0;
    promise_request.least = 0;
    d->update_in_backward = 0;
    for (int i = 0; i < d->fetch.count; i++)
        if (net.fetch[i].gradient)
            net.fetch[i--] = net.fetch[--d->fetch.count];
    d->fetch.specs = d->fetch.count ? net.fetch : NULL;
    if (!promise_record(promise_new_plan(GCKPT_INFERENCE, 0), "inference", 0, 0) ||
        !promise_least(GCKPT_INFERENCE))
        return;
    int n = promise_budgets(budget, promise_request.plan[0].bytes);
    for (int i = 0; i < n; i++)
        promise_record(promise_new_plan(GCKPT_INFERENCE, budget[i]), "inference", budget[i], 1);
    promise_compare();
}

/* Checks all promises of training for the current request. */
static inline void promise_training(void)
{
    size_t budget[PROMISE_BUDGETS], most = 0;
    promise_modes();
    for (int i = 0; i < promise_request.plans; i++)
        most = promise_request.plan[i].bytes > most ? promise_request.plan[i].bytes : most;
    if (!promise_least(chance(80) ? GCKPT_OPTIMAL : GCKPT_AUTO))
        return;
    promise_record(promise_new_plan(GCKPT_AUTO, promise_request.least), "auto in the least", promise_request.least, 1);
    gckpt_frontier *f = promise_frontier();
    int n = promise_budgets(budget, most);
    for (int i = 0; i < n; i++) {
        promise_budget(f, budget[i]);
        if (promise_request.d.offload.bytes && chance(30) && !strcmp(promise_last()->what, "optimal"))
            promise_slower(budget[i], promise_last());
    }
    promise_compare();
    gckpt_frontier_free(f);
}

static inline void promise_all(unsigned seed, int way)
{
    uint64_t saved = random_state;
    promise_open(seed, way);
    net_seed(seed, 16 + 1000 + (unsigned)way);
    if (chance(30))
        promise_request.d.memory = heap_memory(&promise_request.memory);
    if (!net.cached)
        promise_training();
    if (net.cached || chance(25))
        promise_inference();
    CHECK_MSG(!promise_request.memory.blocks && !promise_request.memory.wrong_sizes, "%s: memory is left",
              promise_request.who);
    destroy();
    random_state = saved;
}

/* Checks all promises for the current synthetic graph. */
#ifdef TESTS_SYNTHETIC_H
static inline void promise_synthetic(const char *kind, int ops, int64_t which)
{
    memset(&promise_request, 0, sizeof promise_request);
    promise_printed = 0;
    promise_request.g = m.g;
    promise_request.term = m.term;
    promise_request.terms = m.terms;
    promise_request.d = m.d;
    promise_request.d.schedule.as_built = chance(50);
    snprintf(promise_request.who, sizeof promise_request.who, "%d %s, number %ld", ops, kind, (long)which);
    promise_training();
}
#endif

/* ---- runs ---- */
typedef struct {
    uint64_t hash;
    double loss[2];
    size_t measured;
} promise_run;

/* Trains two steps of the current net with the plan, and frees the plan. */
static inline promise_run promise_train(gckpt_plan *p, const char *what)
{
    const gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f };
    gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE,
                          .custom_optimiser = net_update,
                          .backend = promise_request.d.backend };
    gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
    promise_run run = { 0, { 0, 0 }, 0 };
    gckpt_report report = { 0 };
    gckpt_feed feeds[NET_FEEDS];
    const int n = net_feed(NULL, 0, feeds);
    if (!CHECK_MSG(e != NULL, "%s, %s: %s", promise_request.who, what, gckpt_error_text(net.s)))
        return run;
    for (int i = 0; i < 2; i++) {
        gckpt_result result = gckpt_step(e, feeds, n, net.batch, &hyper, &report);
        CHECK_MSG(result == GCKPT_OK, "%s, %s: %s", promise_request.who, what, gckpt_error_text(e));
        run.loss[i] = report.loss;
    }
    run.hash = gckpt_store_hash(net.s);
    run.measured = gckpt_bytes_measured(e);
    /* if a virtual rank has fewer rows than a micro-batch of the graph, no micro-batch is full */
    const int64_t vranks = promise_request.d.ranks.virtual_ranks ? promise_request.d.ranks.virtual_ranks : 1;
    if ((net.batch + vranks - 1) / vranks >= net.rows)
        promise(PROMISE_TOUCHED, run.measured == gckpt_plan_bytes(p),
                "%s, %s: %lu bytes, %lu touched", promise_request.who, what,
                (unsigned long)gckpt_plan_bytes(p), (unsigned long)run.measured);
    gckpt_exec_free(e);
    return run;
}

/* Trains with a store-all plan of the whole batch without the options of `way`, then with plans with these options:
 * store-all, least bytes, and some between them. All must give the same bits. */
static inline void promise_runs(unsigned seed, int way)
{
    uint64_t saved = random_state;
    size_t least = 0, most = 0;
    promise_run want = { 0, { 0, 0 }, 0 }, got;
    net_seed(seed, 2);
    net_fill();
    for (int i = 0; i < LARGEST; i++)
        constant_data[i] = (float)below(9) / 4.0f - 1.0f;
    for (int k = 0; k < 4; k++) {
        promise_open(seed, k ? way : 0);
        gckpt_plan *p = net.cached || net.ranks > 1 ? NULL
                        : k < 2
                            ? promise_new_plan(GCKPT_STORE_ALL, 0)
                            : promise_new_plan(GCKPT_OPTIMAL, k == 2 ? 1 : least + (most - least) / 3);
        if (k == 2 && !p && net.g && gckpt_error(net.g) == GCKPT_E_BUDGET)
            least = util_least_budget(net.g), p = promise_new_plan(GCKPT_OPTIMAL, least);
        if (p && k < 2)
            most = gckpt_plan_bytes(p);
        if (p && (k == 0 || net.rows == net.batch || gckpt_plan_split_exact(p, NULL))) {
            got = promise_train(p, k == 0 ? "plain" : k == 1 ? "store-all" : "budget");
            want = k == 0 ? got : want;
            promise(PROMISE_BITS,
                    got.hash == want.hash && !memcmp(got.loss, want.loss, sizeof want.loss),
                    "%s, run %d: other bits: loss %.9g, %.9g; %.9g, %.9g", promise_request.who, k,
                    got.loss[0], got.loss[1], want.loss[0], want.loss[1]);
        }
        gckpt_plan_free(p);
        destroy();
    }
    random_state = saved;
}

/* ---- micro-batches ---- */
static inline int promise_build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    net_target_graph = g;
    build(*(unsigned *)user, rows);
    net_target_graph = NULL;
    memcpy(terms, net.term, (size_t)net.terms * sizeof *terms);
    return net.terms;
}

/* Plans every micro-batch size and every rule for updates in the backward. Returns the least cost of a step within
 * `budget`, of several equal ones for the plan with the fewest bytes; stores the smallest feasible budget in *least. */
static inline uint64_t promise_sizes(unsigned seed, gckpt_plan_desc d, size_t budget, size_t *bytes,
                                     size_t *least)
{
    const int rules = d.update_in_backward;
    uint64_t best = UINT64_MAX;
    *least = *bytes = SIZE_MAX;
    for (int64_t rows = 1; rows <= net.batch; rows++)
        for (int rule = rules == 1; rule < 2 && net.batch % rows == 0; rule++) {
            gckpt_store *s = net.s;
            if (rule > rules || (rule && rows < net.batch))
                continue;
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_term terms[FIT_MAX_TERMS];
            net_store = s;
            const int n = promise_build(g, rows, terms, &seed);
            d.batch = net.batch;
            d.update_in_backward = rule;
            d.budget = budget;
            gckpt_plan *p =
                net.mixes && (rows < net.batch || d.ranks.virtual_ranks > 1) ? NULL : gckpt_plan_new(g, terms, n, &d);
            if (p && p->fused)
                net_cover("runs in bands");
            if (p && (gckpt_plan_describe(p).step_cost < best ||
                      (gckpt_plan_describe(p).step_cost == best && gckpt_plan_bytes(p) < *bytes))) {
                best = gckpt_plan_describe(p).step_cost;
                *bytes = gckpt_plan_bytes(p);
            }
            if (!p && gckpt_error(g) == GCKPT_E_BUDGET && util_least_budget(g) < *least)
                *least = util_least_budget(g);
            gckpt_plan_free(p);
            gckpt_graph_free(g);
        }
    return best;
}

static inline void promise_fit(unsigned seed, int way)
{
    uint64_t saved = random_state, work;
    gckpt_plan_desc d;
    size_t bytes, least, most, none;
    promise_open(seed, way);
    net_seed(seed, 16 + 2000 + (unsigned)way);
    d = promise_request.d;
    d.mode = chance(60) ? GCKPT_OPTIMAL : GCKPT_AUTO;
    d.fetch.count = d.costs.count = 0;
    d.fetch.specs = NULL;
    d.costs.by_id = NULL;
    d.update_in_backward = d.ranks.virtual_ranks > 1 ? 0 : (int)below(3);
    /* fit_plan builds its graphs in the same store, where they share the parameters of the net's own graph */
    gckpt_graph *own = net.g;
    net_store = net.s;
    const int64_t batch = net.batch;
    work = net.cached ? UINT64_MAX : promise_sizes(seed, d, 0, &most, &none);
    if (work < UINT64_MAX) {
        promise_sizes(seed, d, 1, &bytes, &least);
        fit_error why;
        d.budget = 1;
        gckpt_plan *p = fit_plan(net_store, promise_build, &seed, batch, &d, NULL, &why);
        net.g = own;
        net.d = d;
        char named[32];
        snprintf(named, sizeof named, "at least %lu,", (unsigned long)least);
        promise(PROMISE_FIT, !p && strstr(why.text, named),
                "%s: fit in a byte: %s; not %lu", promise_request.who, why.text,
                (unsigned long)least);
        gckpt_plan_free(p);
        for (int k = 0; k < 2; k++) {
            d.budget = k ? least + below((int64_t)(most > least ? most - least : 0) + 1) : least;
            work = promise_sizes(seed, d, d.budget, &bytes, &none);
            p = fit_plan(net_store, promise_build, &seed, batch, &d, NULL, &why);
            const gckpt_plan_info info = gckpt_plan_describe(p);
            net.g = own;
            net.d = d;
            if (p)
                net_planned(&d), net_cover("fit_plan");
            promise(PROMISE_FIT,
                    p && (info.step_cost < work ||
                          (info.step_cost == work && gckpt_plan_bytes(p) <= bytes)),
                    "%s: fit in %lu bytes: work %lu in %lu; one by one %lu in %lu: %s", promise_request.who,
                    (unsigned long)d.budget, (unsigned long)info.step_cost,
                    (unsigned long)gckpt_plan_bytes(p), (unsigned long)work, (unsigned long)bytes,
                    why.text);
            gckpt_plan_free(p);
        }
        net_cover("FIT_IF_USEFUL");
    }
    gckpt_graph_free(own);
    gckpt_store_free(net_store);
    net_store = NULL;
    memset(&net, 0, sizeof net);
    random_state = saved;
}
#endif
