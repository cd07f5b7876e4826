/* test_plan.c - compares plans with results found without the planner (oracle.h): the least cost on small graphs,
 * Revolve's closed form, and rotor on chains. Plans never exceed the budget, and are never worse than plans with
 * fewer bytes or of another mode; plan_check.h checks thousands of them.
 *
 *    build/test_plan [first seed] [scale in percent] [print every miss]
 *    build/test_plan nets [first seed] [number] [requests for each]: promises, printed one by one
 *    build/test_plan shapes [first] [every n-th] [samples of 5 and 6 ops]: every small graph */
#define PLAN_CHECK_PRINTS 1
#include "graph/graph.h"
#include "cpu/cpu.h"
#include "devices/devices.h"
#include "plan/plan.h"
#include "search/search.h"
#include "planner/internal.h"

#include "synthetic.h"
#include "net.h"

#include "promises.h"

enum { STEPS = 4096, POINTS = 1024 };

static int verbose; /* if nonzero, prints every plan that is not optimal */

/* The current request: a synthetic graph or a net. */
static struct {
    gckpt_graph *g;
    const gckpt_term *term;
    int terms;
    gckpt_plan_desc d;
} request;

/* Plans by bytes, descending. */
typedef struct {
    uint64_t bytes, work;
} point;

/* The frontier of the current request. */
static struct {
    gckpt_frontier *f;
    point at[POINTS];
    int n;
    size_t least, most; /* bytes */
} front;

static void drop_frontier(void)
{
    gckpt_frontier_free(front.f);
    memset(&front, 0, sizeof front);
}

static void request_synthetic(void)
{
    memset(&request, 0, sizeof request);
    request.g = m.g;
    request.term = m.term;
    request.terms = m.terms;
    request.d = m.d;
}
static void drop_synthetic(void)
{
    drop_frontier();
    synth_free();
}

/* ---- plans ---- */
static gckpt_plan *plan_mode(gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc d = request.d;
    d.mode = mode;
    d.budget = budget;
    return gckpt_plan_new(request.g, request.term, request.terms, &d);
}
static gckpt_plan *plan_list(const gckpt_instruction *list, int n)
{
    gckpt_plan_desc d = request.d;
    d.mode = GCKPT_SCHEDULE;
    d.schedule.instructions = list;
    d.schedule.count = n;
    return gckpt_plan_new(request.g, request.term, request.terms, &d);
}

/* Returns a GCKPT_SCHEDULE plan with the oracle's n steps, or NULL. */
static gckpt_plan *plan_steps(const oracle_step *steps, int n)
{
    static gckpt_instruction list[STEPS];
    for (int i = 0; i < n; i++) {
        list[i] = (gckpt_instruction){ steps[i].backward ? GCKPT_BACKWARD : GCKPT_FORWARD,
                                       gckpt_id(m.t[steps[i].op]) };
    }
    return plan_list(list, n);
}

static long checked;
static int check_plan(const gckpt_plan *p, const char *what, unsigned seed)
{
    checked += p != NULL;
    return CHECK_MSG(p && workspaces_match(p), "%s, seed %u: %s", what, seed,
                     p ? "another workspace" : gckpt_error_text(request.g));
}

/* Returns the least cost of the points that take at most `bytes` bytes, or ORACLE_NEVER if no point does. */
static uint64_t work_at(const point *p, int n, uint64_t bytes)
{
    uint64_t best = ORACLE_NEVER;
    for (int i = 0; i < n; i++)
        if (p[i].bytes <= bytes && p[i].work < best)
            best = p[i].work;
    return best;
}

static size_t reported_least(void)
{
    const char *at = strstr(gckpt_error_text(request.g), "needs at least ");
    return at ? (size_t)strtoul(at + 15, NULL, 10) : 0;
}

/* Checks that the plan for a budget is the frontier's best point within the budget. If `whole` is nonzero, also
 * compares it with a plan made without the frontier. Returns the plan's proven cost, or 0 if there is no plan. */
static uint64_t check_budget(size_t budget, int whole, unsigned seed)
{
    gckpt_plan *p = gckpt_frontier_plan(front.f, budget), *q = NULL;
    const gckpt_plan_info info = gckpt_plan_describe(p);
    uint64_t bound = 0;
    gckpt_point at = { 0, 0, 0, 0, 0 };
    int i = gckpt_frontier_find(front.f, budget);
    CHECK(gckpt_frontier_get(front.f, i, &at) == GCKPT_OK);
    if (check_plan(p, "budget", seed)) {
        bound = info.peak;
        CHECK_MSG(gckpt_plan_bytes(p) <= budget && gckpt_plan_bytes(p) == at.bytes,
                  "seed %u: %lu bytes in a budget of %lu; the frontier has %lu", seed,
                  (unsigned long)gckpt_plan_bytes(p), (unsigned long)budget,
                  (unsigned long)at.bytes);
        CHECK_MSG(info.cost == work_at(front.at, front.n, budget) &&
                      at.cost == info.cost &&
                      at.recompute - info.recompute < 1e-9 &&
                      info.recompute - at.recompute < 1e-9 &&
                      at.overhead - info.overhead < 1e-9 &&
                      info.overhead - at.overhead < 1e-9,
                  "seed %u: budget %lu: work %lu; the frontier has %lu", seed,
                  (unsigned long)budget, (unsigned long)info.cost, (unsigned long)at.cost);
    }
    if (p && whole) {
        /* the plan for a budget between two points may be better than the lower point */
        const int same = budget == at.bytes;
        q = plan_mode(GCKPT_OPTIMAL, budget);
        const gckpt_plan_info q_info = gckpt_plan_describe(q);
        CHECK_MSG(
            q && info.cost >= q_info.cost &&
                (info.cost == q_info.cost || !same) &&
                gckpt_plan_bytes(q) <= budget,
            "seed %u, budget %lu: %lu work in %lu bytes from the frontier, %lu in %lu without",
            seed, (unsigned long)budget, (unsigned long)info.cost,
            (unsigned long)gckpt_plan_bytes(p), (unsigned long)q_info.cost,
            (unsigned long)gckpt_plan_bytes(q));
        check_plan(q, "budget without a frontier", seed);
    }
    gckpt_plan_free(q);
    gckpt_plan_free(p);
    return bound;
}

/* Finds the frontier. Checks that each point costs less than the point with fewer bytes, and that the error for too
 * small a budget names the bytes of the first point. */
static void find_frontier(unsigned seed)
{
    gckpt_point last = { 0, 0, 0, 0, 0 }, now;
    drop_frontier();
    front.f = gckpt_frontier_new(request.g, request.term, request.terms, &request.d);
    gckpt_plan *p = plan_mode(GCKPT_STORE_ALL, 0);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    int n = gckpt_frontier_describe(front.f).points;
    CHECK_MSG(n > 0 && n <= POINTS && p,
              "seed %u: a frontier of %d points: %s", seed, n, gckpt_error_text(request.g));
    front.n = n < POINTS ? n : POINTS;
    for (int i = 0; i < front.n; i++) {
        CHECK(gckpt_frontier_get(front.f, i, &now) == GCKPT_OK);
        CHECK_MSG(now.bytes > last.bytes && (i == 0 || now.cost < last.cost),
                  "seed %u: point %d: work %lu in %lu bytes, after %lu in %lu", seed, i,
                  (unsigned long)now.cost, (unsigned long)now.bytes, (unsigned long)last.cost,
                  (unsigned long)last.bytes);
        front.at[front.n - 1 - i].bytes = now.bytes;
        front.at[front.n - 1 - i].work = now.cost;
        last = now;
    }
    front.most = gckpt_plan_bytes(p);
    front.least = n > 0 ? (size_t)front.at[front.n - 1].bytes : 1;
    /* gckpt_recompute may apply to a node that need not run before the first backward. Store-all then computes this
     * node twice, while a point of the frontier may compute it once, with more bytes. */
    CHECK_MSG(last.cost < info.cost ||
                  (last.cost == info.cost && last.bytes <= front.most),
              "seed %u: the last point has work %lu in %lu bytes; store-all %lu in %lu", seed,
              (unsigned long)last.cost, (unsigned long)last.bytes,
              (unsigned long)info.cost, (unsigned long)front.most);
    gckpt_plan_free(p);
    p = gckpt_frontier_plan(front.f, front.least - 1);
    CHECK_MSG(!p && gckpt_error(request.g) == GCKPT_E_BUDGET && reported_least() == front.least,
              "seed %u: a frontier gives a plan below its least", seed);
    gckpt_plan_free(p);
    p = plan_mode(GCKPT_AUTO, front.least - 1);
    CHECK_MSG(!p && gckpt_error(request.g) == GCKPT_E_BUDGET && reported_least() == front.least,
              "seed %u: a byte less than the least, %lu: %s", seed, (unsigned long)front.least,
              p ? "a plan" : gckpt_error_text(request.g));
    gckpt_plan_free(p);
    check_budget(front.least, 1, seed);
}

/* Finds the points of the optimal frontier by exhaustive search, and returns their number. */
static int oracle_points(point *out)
{
    uint64_t memory = 0, peak = 0;
    int n = 0;
    for (int i = 0; i < m.o.n; i++)
        memory += 4 * m.o.op[i].out + m.o.op[i].saved + m.o.op[i].work_forward +
                  m.o.op[i].work_backward + m.o.op[i].param_grad;
    for (; n < POINTS; n++) {
        out[n].work = oracle_exhaustive(&m.o, memory, &peak, NULL, NULL);
        if (out[n].work == ORACLE_NEVER)
            break;
        out[n].bytes = peak * FLOAT_BYTES;
        memory = peak - 1;
    }
    return n;
}

/* Returns whether the plan's buffers can be placed in this number of bytes; also returns 1 if that is too hard to
 * decide. */
static int fits_at_all(const gckpt_plan *p, uint64_t bytes)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    static oracle_block block[4 * STEPS];
    int n = 0;
    gckpt_buffer b;
    for (int i = 0; i < info.buffers; i++) {
        gckpt_plan_buffer(p, i, &b);
        oracle_block one = { b.start, b.end, (int)(b.size / FLOAT_BYTES) };
        int at = n++;
        for (; at > 0 && block[at - 1].start > one.start; at--)
            block[at] = block[at - 1];
        block[at] = one;
    }
    return oracle_fits(block, n, (int)(bytes / FLOAT_BYTES));
}

/* ---- comparison of least costs ---- */
typedef struct {
    const char *name;
    long graphs, budgets, optimal, refused;
    /* numbers of plans that are not optimal, by cause: search: the library can place the optimal schedule, but did
     * not find it; layout: only the oracle can place it; impossible: it has no placement */
    long search, layout, impossible;
    /* number of budgets at which the cost exceeds the optimum by at most a tenth, or at which the optimum cannot be
     * placed */
    long within;
    /* proven: number of plans whose optimal cost equals the proven cost; least_proven: number of graphs whose least
     * bytes equal the proven bytes */
    long proven, least_proven;
    double sum, worst, least_sum, least_worst;
    unsigned worst_seed;
} score;

/* Compares the plans for all budgets, in steps of one float, from the least feasible one to that of store-all, with
 * the optimum. A plan that is not optimal counts for `search` if the library can place the optimal schedule; for
 * `layout` if only the oracle can place it; and for `impossible` if the schedule has no placement within the budget. */
static void compare(score *s, unsigned seed)
{
    static point best[POINTS];
    static oracle_step steps[STEPS];
    find_frontier(seed);
    int n = front.n, k = oracle_points(best), length = 0;
    s->graphs++;
    if (!CHECK_MSG(n > 0 && k > 0, "seed %u: %d plans, %d schedules", seed, n, k))
        return;
    CHECK_MSG(gckpti_proven_bytes(&front.f->p) <= best[k - 1].bytes,
              "seed %u: %lu bytes are proven, but %lu will do", seed,
              (unsigned long)gckpti_proven_bytes(&front.f->p), (unsigned long)best[k - 1].bytes);
    s->least_proven += best[k - 1].bytes - gckpti_proven_bytes(&front.f->p) < FLOAT_BYTES;
    double above = (double)(front.least - m.base) / (double)best[k - 1].bytes - 1;
    s->least_sum += above;
    s->least_worst = above > s->least_worst ? above : s->least_worst;
    const point *some = &front.at[below(n)];
    uint64_t bound = check_budget((size_t)some->bytes, chance(20), seed);
    CHECK_MSG(!bound || some->work >= work_at(best, k, bound),
              "seed %u: work %lu in a bound of %lu; the exhaustive search found none below %lu",
              seed, (unsigned long)some->work, (unsigned long)bound,
              (unsigned long)work_at(best, k, bound));
    for (uint64_t bytes = best[k - 1].bytes; bytes <= front.at[0].bytes - m.base; bytes += FLOAT_BYTES) {
        uint64_t want = work_at(best, k, bytes), got = work_at(front.at, n, m.base + bytes),
                 least = gckpti_proven_cost(&front.f->p, (size_t)bytes);
        CHECK_MSG(least <= want, "seed %u, %lu bytes: proven %lu, but %lu will do", seed,
                  (unsigned long)bytes, (unsigned long)least, (unsigned long)want);
        s->proven += least == want;
        s->budgets++;
        if (got == want) {
            s->optimal++;
            s->within++;
            continue;
        }
        oracle_exhaustive(&m.o, bytes / FLOAT_BYTES, NULL, steps, &length);
        gckpt_plan *p = plan_steps(steps, length);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        check_plan(p, "schedule", seed);
        CHECK_MSG(p && info.cost == want && info.peak <= bytes,
                  "seed %u: the optimal schedule for %lu has work %lu, not %lu; bound %lu", seed,
                  (unsigned long)bytes, (unsigned long)info.cost, (unsigned long)want,
                  (unsigned long)info.peak);
        int fits = info.arena <= bytes ? 2 : fits_at_all(p, bytes);
        *(fits == 2 ? &s->search : fits ? &s->layout : &s->impossible) += 1;
        if (verbose)
            CHECK(fits_at_all(p, info.arena) &&
                  fits_at_all(p, info.peak - FLOAT_BYTES) <= 0);
        if (verbose)
            printf("%s, seed %u: %lu bytes: work %ld, least %lu in an arena of %lu\n", s->name,
                   seed, (unsigned long)bytes, got == ORACLE_NEVER ? -1 : (long)got,
                   (unsigned long)want, (unsigned long)info.arena);
        gckpt_plan_free(p);
        if (got == ORACLE_NEVER) {
            s->refused++;
            continue;
        }
        double gap = (double)got / (double)want - 1;
        s->sum += gap;
        s->within += gap <= 0.1 || !fits;
        if (gap > s->worst) {
            s->worst = gap;
            s->worst_seed = seed;
        }
    }
}

static void print_score(const score *s)
{
    if (s->graphs == 0)
        return;
    double planned = (double)(s->budgets - s->refused);
    printf(
        "%-18s %5ld graphs %6ld budgets: %6.2f %% optimal, gap mean %.3f %%, worst %.1f %% "
        "(seed %u), %ld refused; misses: %ld search, %ld layout, %ld have no layout; least "
        "bytes above the oracle's: mean %.2f %%, worst %.1f %%; the bound is the optimum in %.2f "
        "%% of budgets, the least bytes in %.1f %% of graphs\n",
        s->name, s->graphs, s->budgets, 100.0 * (double)s->optimal / (double)s->budgets,
        100 * s->sum / (planned > 0 ? planned : 1), 100 * s->worst, s->worst_seed, s->refused,
        s->search, s->layout, s->impossible, 100 * s->least_sum / (double)s->graphs,
        100 * s->least_worst, 100.0 * (double)s->proven / (double)s->budgets,
        100.0 * (double)s->least_proven / (double)s->graphs);
}

static int losses_are_active(void)
{
    for (int i = 0; i < m.o.n; i++)
        if (m.o.op[i].loss && !m.o.op[i].active)
            return 0;
    return 1;
}
static int all_lead_to_a_loss(void)
{
    for (int i = 0; i < m.o.n; i++)
        if (!m.used[i] && !m.o.op[i].loss)
            return 0;
    return 1;
}

static void test_small(unsigned first, long chains, long graphs)
{
    score plain = { .name = "chains" }, any = { .name = "chains, any needs" },
          free_lowering = { .name = "graphs" };
    for (long i = 0; i < chains; i++) {
        score *s = i % 3 == 2 ? &any : &plain;
        random_state = (first + (unsigned)i) * 0x9e3779b97f4a7c15u + 11;
        random_chain(between(3, 5), i % 3 == 2);
        request_synthetic();
        compare(s, first + (unsigned)i);
        drop_synthetic();
    }
    for (long i = 0; i < graphs; i++) {
        random_state = (first + (unsigned)i) * 0x9e3779b97f4a7c15u + 12;
        random_graph(between(3, 6));
        request_synthetic();
        if (losses_are_active() && all_lead_to_a_loss())
            compare(&free_lowering, first + (unsigned)i);
        drop_synthetic();
    }
    print_score(&plain);
    print_score(&any);
    print_score(&free_lowering);
    /* one chain of a sample may miss up to 6 of its budgets */
    CHECK_MSG((plain.optimal + 6) * 100 >= plain.budgets * 98, "chains: %ld of %ld budgets are optimal",
              plain.optimal, plain.budgets);
    CHECK_MSG(plain.within == plain.budgets, "chains: %ld of %ld budgets are within 10 %%",
              plain.within, plain.budgets);
}

/* ---- Revolve: a chain for which budgets are exactly numbers of checkpoints ----
 *
 * The chain has n steps. The first n - 1 are ops of cost 1 with an output of size 1, whose backward reads only the
 * op's input; the last step is the loss, of cost 0. State 0, the input of the chain, is fed and takes no memory, while
 * Revolve counts it as one of its s checkpoints. A forward from a state that is not kept needs s - 1 kept states, the
 * op's input and output, and a gradient: size s + 2. A backward needs s - 1 kept states, the op's input and two
 * gradients: also s + 2. The loss has only one gradient, and in its backward a workspace of size 1, so that its
 * backward needs s + 2 as well, and no more states than Revolve allows are live after it. Keeping more states during a
 * sweep saves nothing, since a sweep computes nothing twice. So a budget of s + 2 corresponds to exactly s checkpoints,
 * and the number of forwards is exactly Revolve's. All buffers have size 1, so placement wastes nothing. */
static void uniform_chain(int n)
{
    unsigned needs[2] = { GCKPT_IN(0), GCKPT_IN(0) };
    int last = -1;
    synth_start();
    for (int i = 0; i < n - 1; i++) {
        const synth_attributes a = { .out = 4 };
        const gckpt_cost unit = { 1, 1 };
        last = synth_op(&last, 1, i == 0 ? synth_param(4) : -1, &a, needs, 0, unit);
    }
    const synth_attributes loss = { .work_backward = 4 };
    const gckpt_cost cost = { 0, 1 };
    synth_op(&last, 1, -1, &loss, needs, 1, cost);
    synth_finish();
}

static void test_revolve(int most)
{
    long equal = 0, all = 0, proven = 0;
    double worst = 0, sum = 0;
    for (int n = 2; n <= most; n++) {
        uniform_chain(n);
        request_synthetic();
        find_frontier((unsigned)n);
        for (int s = 1; s <= n; s++) {
            uint64_t want = oracle_revolve((uint64_t)n, (uint64_t)s) + (uint64_t)n;
            uint64_t bytes = m.base + (uint64_t)(s + 2) * 4 * FLOAT_BYTES;
            uint64_t work = work_at(front.at, front.n, bytes);
            if (n <= 7)
                CHECK(oracle_exhaustive(&m.o, (uint64_t)(s + 2) * 4, NULL, NULL, NULL) == want);
            CHECK_MSG(work >= want, "%d steps, %d checkpoints: below Revolve", n, s);
            gckpt_plan *p = gckpt_frontier_plan(front.f, (size_t)bytes);
            const gckpt_plan_info info = gckpt_plan_describe(p);
            CHECK_MSG(info.proven_cost <= want,
                      "%d steps, %d checkpoints: %lu is proven, Revolve has %lu", n, s,
                      (unsigned long)info.proven_cost, (unsigned long)want);
            proven += p && info.proven_cost == want;
            gckpt_plan_free(p);
            if (work != ORACLE_NEVER)
                check_budget((size_t)bytes, chance(10), (unsigned)n);
            if (verbose && work != want)
                printf("Revolve, %d steps, %d checkpoints: work %ld, least %lu\n", n, s,
                       work == ORACLE_NEVER ? -1 : (long)work, (unsigned long)want);
            double gap = work == ORACLE_NEVER ? 1 : (double)work / (double)want - 1;
            all++;
            equal += work == want;
            sum += gap;
            worst = gap > worst ? gap : worst;
        }
        drop_synthetic();
    }
    printf("%-18s %5d lengths %5ld budgets: %6.2f %% equal to the closed form, gap mean %.3f %%, "
           "worst %.1f %%; %.2f %% are proven\n",
           "Revolve", most - 1, all, 100.0 * (double)equal / (double)all, 100 * sum / (double)all,
           100 * worst, 100.0 * (double)proven / (double)all);
    CHECK_MSG(equal == all, "Revolve: %ld of %ld budgets are equal to the closed form", equal, all);
}

/* ---- virtual ranks and ranks ---- */
enum { SETUPS = 6 };
/* Gives the current request virtual ranks, or makes it that of one of several processes; setups 0 and 1 have
 * neither. */
static void take_setup(int setup)
{
    static const struct {
        int virtual_ranks, ranks, times; /* times: number of micro-batches for the rows of one virtual rank */
    } setups[SETUPS] = { { 1, 1, 1 }, { 1, 1, 9 }, { 4, 1, 2 },
                         { 2, 2, 1 }, { 8, 4, 1 }, { 4, 4, 3 } };
    int64_t rows = request.g->rows;
    int ranks = setups[setup].ranks;
    gckpt_shard shard = setup < 3 ? GCKPT_SHARD_NONE : (gckpt_shard)below(4);
    CHECK(gckpt_store_ranks(request.g->store, ranks - 1, ranks, shard) == GCKPT_OK);
    request.d.ranks.virtual_ranks = setups[setup].virtual_ranks;
    request.d.batch = rows * setups[setup].virtual_ranks * setups[setup].times;
    request.d.batch -= setup > 1 && request.d.batch > rows && chance(50);
    request.d.ranks.link_cost = (uint64_t)below(1000000);
}

/* ---- properties of every graph ---- */
/* rivals: plans of other modes that AUTO was compared with; worse: those in which AUTO cost more */
static long worse, rivals;

/* Checks that the frontier has a point within the bytes of the plan `rival` that costs no more. */
static void check_rival(const gckpt_plan *rival, const char *what, unsigned seed)
{
    const gckpt_plan_info info = gckpt_plan_describe(rival);
    uint64_t bytes = gckpt_plan_bytes(rival), work = work_at(front.at, front.n, bytes);
    rivals++;
    worse += work > info.cost;
    CHECK_MSG(work <= info.cost,
              "seed %u: %s does %lu work in %lu bytes, the frontier %ld", seed, what,
              (unsigned long)info.cost, (unsigned long)bytes,
              work == ORACLE_NEVER ? -1 : (long)work);
    if (work != ORACLE_NEVER)
        check_budget((size_t)bytes, chance(5), seed);
}

/* Inserts runs of repeated forwards at random places of the body of a store-all plan. Returns the number of
 * instructions. */
static int custom_schedule(const gckpt_plan *all, gckpt_instruction *list)
{
    int n = 0, forwards = 0;
    gckpt_instruction in;
    for (int x = all->body; x < all->epilogue; x++) {
        gckpt_plan_get(all, x, &in);
        for (int again = (int)below(3); again > 0 && forwards > 0; again--) {
            int a = (int)below(forwards), b = a + (int)below(forwards - a + 1);
            for (; a < b && n < STEPS - 400; a++)
                list[n++] = list[a];
        }
        forwards += in.kind == GCKPT_FORWARD && forwards == n;
        if (in.kind <= GCKPT_BACKWARD)
            list[n++] = in;
    }
    return n;
}

static void check_modes(unsigned seed)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_SQRT,
                                        GCKPT_MEMORY_POOR };
    static const char *const names[] = { "store-all", "segments", "sqrt", "memory-poor" };
    static gckpt_instruction list[STEPS];
    for (int i = 0; i < 4; i++) {
        gckpt_plan *p = plan_mode(modes[i], 0);
        if (check_plan(p, names[i], seed))
            check_rival(p, names[i], seed);
        if (p && i == 0) {
            int n = custom_schedule(p, list);
            gckpt_plan *q = plan_list(list, n);
            check_plan(q, "schedule", seed);
            gckpt_plan_free(q);
        }
        gckpt_plan_free(p);
    }
}

static void check_budgets(unsigned seed)
{
    size_t spare = front.most > front.least ? front.most - front.least : 0;
    for (int i = 0; i < 20; i++)
        check_budget(front.least + (i == 19 ? spare : below((int64_t)spare + 1)), i % 10 == 9, seed);
}

static void check_rotor(unsigned seed)
{
    static oracle_step steps[STEPS];
    oracle_rotor rotor;
    gckpt_plan *p = plan_mode(GCKPT_STORE_ALL, 0);
    uint64_t memory = gckpt_plan_describe(p).peak / FLOAT_BYTES;
    gckpt_plan_free(p);
    /* rotor keeps the output of op i even if no backward reads it, so its memory must have space for it */
    for (int i = 0; i < m.o.n; i++)
        memory += m.o.op[i].out;
    oracle_rotor_new(&rotor, &m.o, memory);
    for (int i = 0; i < 8; i++) {
        uint64_t at = memory * (uint64_t)(i + 1) / 8, work = oracle_rotor_cost(&rotor, at);
        int n = work == ORACLE_NEVER ? 0 : oracle_rotor_list(&rotor, at, steps, STEPS);
        if (n == 0)
            continue;
        p = plan_steps(steps, n);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        if (check_plan(p, "rotor", seed)) {
            CHECK_MSG(info.cost <= work && info.peak <= at * FLOAT_BYTES,
                      "seed %u: rotor promised work %lu in %lu floats, its list has %lu in %lu "
                      "bytes",
                      seed, (unsigned long)work, (unsigned long)at,
                      (unsigned long)info.cost, (unsigned long)info.peak);
            check_rival(p, "rotor", seed);
        }
        gckpt_plan_free(p);
    }
    oracle_rotor_free(&rotor);
}

static void test_large(unsigned first, long count)
{
    long before = checked, w = worse, c = rivals;
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        int chain = i % 3 == 0;
        random_state = seed * 0x9e3779b97f4a7c15u + 13;
        const int most = chance(50) ? 6 : 3;
        large_graph(between(5, chain ? 40 : 56), chain, most);
        request_synthetic();
        find_frontier(seed);
        check_modes(seed);
        check_budgets(seed);
        if (chain && oracle_is_chain(&m.o))
            check_rotor(seed);
        drop_synthetic();
    }
    printf("%-18s %5ld graphs %6ld plans checked; worse than another mode or rotor in %ld of %ld\n",
           "large graphs", count, checked - before, worse - w, rivals - c);
}

/* Tests graphs with and without sharded parameters. */
static void test_sharding(unsigned first, long count)
{
    long before = checked, w = worse, c = rivals;
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        random_state = seed * 0x9e3779b97f4a7c15u + 16;
        param_times = chance(30) ? 1 : 2200;
        large_graph(between(5, 30), 0, 4);
        request_synthetic();
        for (int setup = 2; setup < SETUPS; setup++) {
            take_setup(setup);
            find_frontier(seed);
            check_modes(seed);
            check_budgets(seed);
        }
        drop_synthetic();
    }
    param_times = 1;
    printf("%-18s %5ld graphs %6ld plans checked; worse than another mode in %ld of %ld\n",
           "leaves and ranks", count, checked - before, worse - w, rivals - c);
}

/* ---- every small graph ---- */
/* Builds graph number `which`, with sizes by kind or random ones, compares its plans with the exhaustive search, and
 * checks all promises. */
static void shape_of(score *s, int ops, int64_t which, unsigned seed, int drawn)
{
    net_seed(seed, 3);
    synth_shape_of(ops, which, drawn);
    request_synthetic();
    compare(s, seed);
    drop_frontier();
    promise_synthetic("ops", ops, which);
    synth_free();
}

/* Tests all graphs of up to four ops (or only every each-th of them), and a sample of the graphs with five and six
 * ops. */
static void test_shapes(int64_t first, int64_t each, int64_t samples)
{
    score all = { .name = "all of 1 to 4 ops" }, five = { .name = "samples of 5 ops" },
          six = { .name = "samples of 6 ops" };
    for (int ops = 1; ops <= 4; ops++)
        for (int64_t which = first % each; which < synth_shape_count(ops); which += each)
            shape_of(&all, ops, which, (unsigned)which, 0);
    for (int64_t i = 0; i < samples; i++) {
        uint64_t state = (uint64_t)(first + i);
        for (int ops = 5; ops <= 6; ops++) {
            int64_t which = (int64_t)(next_random(&state) % (uint64_t)synth_shape_count(ops));
            shape_of(ops == 5 ? &five : &six, ops, which, (unsigned)(first + i), (int)(i % 2));
        }
    }
    print_score(&all);
    print_score(&five);
    print_score(&six);
}

/* ---- random nets of all ops, with all options ---- */
static void test_nets(unsigned first, long count, int ways)
{
    gckpt_backend other = { .name = "plain" };
    net_features = NET_MIXING | NET_CACHES | NET_ALONE | NET_RANKS;
    net_backend = &other;
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        net_op_count = seed % 64 == 7 ? 0 : 3 + (int)(seed % 5) * 2;
        for (int way = 1; way <= ways; way++) {
            promise_all(seed, way);
            if (seed % 4 == 0)
                promise_runs(seed, way);
            if (seed % 8 == 1)
                promise_fit(seed, way);
        }
    }
    net_backend = NULL;
    net_features = 0;
    net_op_count = 0;
    printf("%-18s %5ld nets, %d requests for each\n", "promises", count, ways);
    promise_report();
}

/* Trains a net whose first loss depends on no trained parameter, and whose regulariser does: the micro-batches have
 * forwards but no backwards. Every plan must compute the first loss, whose count is the divisor, and give the same
 * bits. */
static uint64_t train_regulariser(int n, gckpt_mode mode, size_t budget, double *loss,
                                  size_t *bytes)
{
    const gckpt_init init = { 0.4f, 0, 0.1f };
    float data[4 * 400];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, n)), *h = gckpt_tanh(x);
    gckpt_tensor *a = gckpt_param(g, "a", gckpt_shape2(8, 8), init);
    gckpt_tensor *z =
        gckpt_tanh(gckpt_linear(a, gckpt_param(g, "b", gckpt_shape2(8, 16), init), NULL));
    const gckpt_term terms[2] = { { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 },
                                  { gckpt_sum_loss(gckpt_mul(z, z)), 0.1f, 1 } };
    gckpt_plan_desc d = { .mode = mode, .budget = budget, .optimiser = GCKPT_SGD, .batch = 4 };
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(x), data };
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    gckpt_report report = { 0, 0, 0, 0 };
    for (int i = 0; i < 4 * n; i++)
        data[i] = (float)(i % 7) / 7;
    CHECK_MSG(gckpt_step(e, &feed, 1, 4, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(g));
    CHECK(report.count == 4 * n);
    uint64_t hash = gckpt_store_hash(s);
    *loss = report.loss;
    *bytes = gckpt_plan_bytes(p);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return hash;
}

/* Tests a loss that reads an input only: it needs no arena, while the budget must still have the bytes of the
 * parameters. */
static void test_no_arena(void)
{
    const gckpt_init init = { 0.4f, 0, 0.1f };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 8));
    gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(8, 4), init), NULL);
    const gckpt_term term = { gckpt_sum_loss(x), 1, 0 };
    for (size_t budget = 1; budget <= 128; budget += budget < 127 ? 126 : 1) {
        gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .budget = budget };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        CHECK_MSG(budget < 128 ? !p && gckpt_error(g) == GCKPT_E_BUDGET && util_least_budget(g) == 128
                               : p && gckpt_plan_describe(p).arena == 0 && gckpt_plan_bytes(p) == 128,
                  "%lu bytes: %s", (unsigned long)budget, gckpt_error_text(g));
        gckpt_plan_free(p);
    }
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

static void test_regulariser_alone(void)
{
    /* columns of x: with the first sizes the batch takes fewer bytes than the prologue, with the last it takes more */
    static const int sizes[] = { 10, 100, 160, 400 };
    for (int i = 0; i < 4; i++) {
        double want, loss;
        size_t most, bytes;
        uint64_t hash = train_regulariser(sizes[i], GCKPT_STORE_ALL, 0, &want, &most);
        CHECK(train_regulariser(sizes[i], GCKPT_OPTIMAL, 0, &loss, &bytes) == hash && loss == want);
        CHECK(bytes <= most);
        CHECK(train_regulariser(sizes[i], GCKPT_AUTO, bytes, &loss, &most) == hash && loss == want);
    }
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_iterations(9) == 9 ? 1 : check_seed();
    long scale = argc > 2 ? strtol(argv[2], NULL, 10) : check_iterations(15);
    verbose = argc > 3;
    if (argc > 1 && !strcmp(argv[1], "shapes")) {
        promise_verbose = 1;
        test_shapes(argc > 2 ? strtol(argv[2], NULL, 10) : 0,
                    argc > 3 ? strtol(argv[3], NULL, 10) : 1,
                    argc > 4 ? strtol(argv[4], NULL, 10) : 0);
        promise_report();
        return check_report("test_plan");
    }
    if (argc > 1 && !strcmp(argv[1], "nets")) {
        promise_verbose = 1;
        test_nets(argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1,
                  argc > 3 ? strtol(argv[3], NULL, 10) : 100,
                  argc > 4 ? (int)strtol(argv[4], NULL, 10) : 1);
        return check_report("test_plan");
    }
    test_small(first, 600 * scale / 100, 150 * scale / 100);
    test_revolve(20);
    test_large(first, 40 * scale / 100);
    test_sharding(first, (8 * scale + 99) / 100);
    test_shapes(first, 15000 / scale, 40 * scale / 15);
    test_nets(first, 160 * scale / 15, 1);
    test_nets(796639, 1, 1); /* two initial schedules of equal peak and cost: only one fits when it is placed */
    if (first == 1 && scale >= 15) /* a third of the nets of a full run is enough to cover most features */
        net_check_coverage();
    test_regulariser_alone();
    test_no_arena();
    printf("%ld plans checked\n", checked);
    return check_report("test_plan");
}
