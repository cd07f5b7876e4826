/* test_search.c - bounds on what a search for plans may miss, on random graphs: how often it may be
 * worse than the optimum, never worse than any uniform segmentation, and the same answer by every
 * way to ask; what the manual (9) promises of larger graphs. No plan is pinned.     build/test_search [first seed] [percent] */
#include "../gradckpt.h"

#include <stdlib.h>

#include "check.h"
#include "oracle.h"

enum { UNIT = (int)sizeof(float), POINTS = 600, LIST = 4096, MOST_OPS = 200, PLANS = 100 };

static uint64_t state;
static int below(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}
static int chance(int percent) { return below(100) < percent; }
static int between(int low, int high) { return low + below(high - low + 1); }

/* ---- graphs of made-up ops, whose kernels never run ---- */
typedef struct {
    int out, aux, forward, backward; /* floats; of workspace */
} sizes;

static gckpt_result made_shape(gckpt_call *call)
{
    const sizes *a = (const sizes *)call->attributes;
    call->shape = gckpt_shape2(call->in[0].shape.d[0], a->out);
    call->aux_bytes = (size_t)a->aux * UNIT;
    call->work_forward = (size_t)a->forward * UNIT;
    call->work_backward = (size_t)a->backward * UNIT;
    return GCKPT_OK;
}
static void made_kernel(const gckpt_call *call) { (void)call; }

static gckpt_store *s;
static gckpt_graph *g;
static gckpt_term term;
static gckpt_plan_desc desc;
static gckpt_op row[MOST_OPS];
static gckpt_cost costs[4 * MOST_OPS];
static gckpt_tensor *made[MOST_OPS];
static oracle_graph o;

static void drop(void)
{
    gckpt_graph_free(g);
    gckpt_store_free(s);
    s = NULL, g = NULL;
}

/* n ops in a chain, the first of which reads a parameter, then a loss; `skips` percent of the ops
 * read one more; sizes up to `most`; segments: some ops are in segments. Oracles know the first only. */
static void build(int n, int skips, int most, int segments)
{
    static const gckpt_init none = { 0, 0, 0 };
    const int first = between(1, most); /* elements of the parameter */
    int depth = 0;
    drop();
    memset(&o, 0, sizeof o);
    memset(costs, 0, sizeof costs);
    memset(row, 0, sizeof row);
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(first), none);
    for (int i = 0; i <= n; i++) {
        oracle_op *q = &o.op[i < ORACLE_OPS ? i : ORACLE_OPS - 1];
        gckpt_op *r = &row[i];
        gckpt_tensor *in[3] = { i ? made[i - 1] : x, w, NULL };
        int inputs = i ? 1 : 2, other = i > 1 && i < n && chance(skips) ? below(i - 1) : -1;
        sizes a; /* one by one: the order in which a list is evaluated is not fixed */
        a.out = between(1, most);
        a.aux = chance(50) ? between(1, most) : 0;
        a.forward = between(0, most / 2);
        a.backward = between(0, most / 2);
        if (i == n)
            a.out = 1, a.aux = 0, a.forward = a.backward = 0;
        if (segments && depth == 0 && chance(40)) {
            gckpt_segment_begin(g);
            depth = 1;
        }
        q->inputs = 1;
        q->in[0] = i - 1;
        if (other >= 0) {
            in[inputs++] = made[other];
            q->in[q->inputs++] = other;
        }
        r->name = "made";
        r->shape = made_shape;
        r->forward = r->backward = made_kernel;
        r->flags = i == n ? GCKPT_LOSS : 0;
        for (int k = 0; k < inputs; k++) {
            if (i == n) {
                r->needs[k] = GCKPT_IN(0);
            } else {
                r->needs[k] = chance(60) ? GCKPT_IN(below(inputs)) : 0;
                r->needs[k] |= chance(40) ? GCKPT_OUT : 0;
                r->needs[k] |= chance(40) ? GCKPT_AUX : 0;
            }
        }
        if (i == 0)
            r->needs[1] &= ~(unsigned)GCKPT_IN(1);
        made[i] = gckpt_apply(r, in, inputs, &a, sizeof a);
        costs[gckpt_id(made[i])].forward = (uint64_t)between(1, 9);
        costs[gckpt_id(made[i])].backward = (uint64_t)between(1, 9);
        unsigned mask = 0;
        for (int k = 0; k < inputs; k++)
            mask |= i > 0 || k == 1 ? r->needs[k] : 0; /* the data needs no gradient */
        q->active = 1;
        q->needs_in = i ? mask & 0xff : 0;
        q->needs_out = (mask & GCKPT_OUT) != 0;
        q->needs_aux = (mask & GCKPT_AUX) != 0;
        q->loss = i == n;
        q->out = i == n ? 0 : (uint64_t)a.out;
        q->aux = (uint64_t)a.aux;
        q->work_forward = (uint64_t)a.forward;
        q->work_backward = (uint64_t)a.backward;
        q->hold = i ? 0 : (uint64_t)first;
        q->forward = costs[gckpt_id(made[i])].forward;
        q->backward = costs[gckpt_id(made[i])].backward;
        if (depth && chance(40)) {
            gckpt_segment_end(g);
            depth = 0;
        }
    }
    if (depth)
        gckpt_segment_end(g);
    o.n = n + 1;
    term.loss = made[n];
    term.weight = 1;
    memset(&desc, 0, sizeof desc);
    desc.optimiser = GCKPT_SGD;
    desc.alignment = UNIT;
    desc.costs = costs;
    desc.cost_count = gckpt_id(made[n]) + 1;
    CHECK_MSG(gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
}

static gckpt_plan *plan(gckpt_mode mode, size_t budget, int group)
{
    gckpt_plan_desc d = desc;
    d.mode = mode;
    d.budget = budget;
    d.group = group;
    return gckpt_plan_new(g, &term, 1, &d);
}

/* ---- the frontier of the graph, and its floor ---- */
static gckpt_point point[POINTS];
static int points;
static gckpt_frontier *frontier;

static void find(unsigned seed)
{
    frontier = gckpt_frontier_new(g, &term, 1, &desc);
    points = gckpt_frontier_points(frontier);
    CHECK_MSG(points > 0 && points < POINTS, "seed %u: %d points: %s", seed, points,
              gckpt_error_text(g));
    for (int i = 0; i < points; i++)
        gckpt_frontier_get(frontier, i, &point[i]);
}

static uint64_t work_in(uint64_t bytes)
{
    uint64_t work = ORACLE_NEVER;
    for (int i = 0; i < points && point[i].bytes <= bytes; i++)
        work = point[i].work;
    return work;
}

/* Small graphs: how many of all budgets get the optimum, and what the others lose. */
typedef struct {
    long graphs, budgets, optimal, refused, proven; /* proven: the bound is the optimum */
    double lost;
} score;

static void against_optimum(score *t, unsigned seed)
{
    uint64_t memory = 0, peak = 0;
    size_t base = (size_t)o.op[0].hold * UNIT; /* the parameter */
    find(seed);
    for (int i = 0; i < o.n; i++)
        memory += 4 * o.op[i].out + o.op[i].aux + o.op[i].work_forward + o.op[i].work_backward +
                  o.op[i].hold;
    t->graphs++;
    for (uint64_t above = point[points - 1].bytes - base;
         memory > 0;) { /* steps of the optimum, downwards */
        uint64_t want = oracle_exhaustive(&o, memory, &peak, NULL, NULL);
        if (want == ORACLE_NEVER)
            break;
        for (uint64_t bytes = peak * UNIT;
             bytes < above + UNIT && bytes <= point[points - 1].bytes - base; bytes += UNIT) {
            uint64_t got = work_in(base + bytes);
            t->budgets++;
            t->optimal += got == want;
            t->refused += got == ORACLE_NEVER;
            t->lost += got == ORACLE_NEVER ? 0 : (double)got / (double)want - 1;
            CHECK_MSG(got >= want || got == ORACLE_NEVER, "seed %u: better than the optimum", seed);
            gckpt_plan *p = gckpt_frontier_plan(frontier, base + bytes);
            CHECK_MSG(!p || gckpt_plan_proven_work(p) <= want, "seed %u: %lu proven, %lu will do",
                      seed, (unsigned long)gckpt_plan_proven_work(p), (unsigned long)want);
            t->proven += p && gckpt_plan_proven_work(p) == want;
            gckpt_plan_free(p);
        }
        above = peak * UNIT - UNIT;
        memory = peak - 1;
    }
    gckpt_frontier_free(frontier);
}

/* A budget asked for alone gets the work that the frontier says; one byte less that of the point before. */
static void asked_alone(unsigned seed, int at)
{
    for (int less = 0; less < 2; less++) {
        gckpt_plan *p = plan(GCKPT_OPTIMAL, point[at].bytes - (size_t)less, 0);
        int want = at - less;
        CHECK_MSG(want < 0 ? !p
                           : p && gckpt_plan_bytes(p) <= point[at].bytes - (size_t)less &&
                                 gckpt_plan_work(p) == point[want].work,
                  "seed %u, point %d of %d: %lu bytes, work %lu alone; the frontier has %lu, %lu",
                  seed, want, points, (unsigned long)gckpt_plan_bytes(p),
                  (unsigned long)gckpt_plan_work(p),
                  want < 0 ? 0 : (unsigned long)point[want].bytes,
                  want < 0 ? 0 : (unsigned long)point[want].work);
        gckpt_plan_free(p);
    }
}

/* The sqrt plan has the fewest bytes of all uniform segmentations, by ops or by user segments. */
static void against_groups(unsigned seed, int n, int segments)
{
    gckpt_plan *best = plan(GCKPT_SQRT, 0, 0);
    size_t least = SIZE_MAX;
    for (int group = -segments; group <= n; group++) {
        gckpt_plan *p = group ? plan(GCKPT_SQRT, 0, group) : NULL;
        least = p && gckpt_plan_bytes(p) < least ? gckpt_plan_bytes(p) : least;
        gckpt_plan_free(p);
    }
    CHECK_MSG(gckpt_plan_bytes(best) == least, "seed %u: sqrt takes %lu bytes; one group %lu", seed,
              (unsigned long)gckpt_plan_bytes(best), (unsigned long)least);
    gckpt_plan_free(best);
}

/* ---- what the manual promises, of graphs that are too large to search through ---- */
static struct {
    size_t bytes;
    uint64_t work;
    const char *what;
} known[PLANS];
static int plans;
static long searched, rivals, filled; /* filled: a budget between points has less work alone */

static void know(const gckpt_plan *p, const char *what)
{
    if (!p || !CHECK(plans < PLANS))
        return;
    known[plans].bytes = gckpt_plan_bytes(p);
    known[plans].work = gckpt_plan_work(p);
    known[plans++].what = what;
}

/* A plan of the search, alone: within its budget; no more work than anything known in as many
 * bytes but for less than 0.1 % of a step where that is proven to be nearly all. */
static uint64_t promised(gckpt_mode mode, size_t budget, uint64_t step, unsigned seed)
{
    gckpt_plan *p = plan(mode, budget, 0);
    uint64_t work = gckpt_plan_work(p), little = gckpt_plan_gap(p) < 0.001 ? step / 1000 : 0;
    CHECK_MSG(p && gckpt_plan_bytes(p) <= budget, "seed %u: %lu bytes: %s", seed,
              (unsigned long)budget, p ? "more are taken" : gckpt_error_text(g));
    for (int i = 0; i < plans && p; i++)
        CHECK_MSG(known[i].bytes > budget || work <= known[i].work + little,
                  "seed %u: %s has work %lu in %lu bytes, the plan for %lu has %lu", seed,
                  known[i].what, (unsigned long)known[i].work, (unsigned long)known[i].bytes,
                  (unsigned long)budget, (unsigned long)work);
    searched++;
    gckpt_plan_free(p);
    return work;
}

static void check_promises(unsigned seed, int n)
{
    plans = 0;
    gckpt_plan *all = plan(GCKPT_STORE_ALL, 0, 0), *p;
    uint64_t step = gckpt_plan_work(all), before = UINT64_MAX, last = 0;
    find(seed);
    const size_t least = point[0].bytes;
    know(all, "store-all");
    gckpt_plan_free(all);
    for (int i = 0; i < 16; i++) {
        p = plan(i == 0   ? GCKPT_SEGMENTS
                 : i == 1 ? GCKPT_MEMORY_POOR
                          : GCKPT_SQRT,
                 0, i < 3 ? 0 : chance(70) ? between(1, n) : -between(1, 8));
        know(p, i == 0 ? "segments" : i == 1 ? "memory-poor" : "sqrt");
        gckpt_plan_free(p);
    }
    rivals += plans;
    for (int i = 0; i < plans; i++) { /* by the frontier, and alone */
        uint64_t work = work_in(known[i].bytes);
        CHECK_MSG(known[i].bytes >= least, "seed %u: %s takes %lu bytes, the least is %lu", seed,
                  known[i].what, (unsigned long)known[i].bytes, (unsigned long)least);
        CHECK_MSG(work <= known[i].work + step / 1000,
                  "seed %u: %s has work %lu in %lu bytes, the frontier %lu", seed, known[i].what,
                  (unsigned long)known[i].work, (unsigned long)known[i].bytes,
                  (unsigned long)work);
        promised(GCKPT_AUTO, known[i].bytes, step, seed);
    }
    for (int i = 0; i < points; i++) { /* points are what their plans are */
        p = gckpt_frontier_plan(frontier, point[i].bytes);
        CHECK_MSG(p && gckpt_plan_bytes(p) == point[i].bytes && gckpt_plan_work(p) == point[i].work,
                  "seed %u, point %d: work %lu in %lu bytes; its plan: %lu in %lu", seed, i,
                  (unsigned long)point[i].work, (unsigned long)point[i].bytes,
                  (unsigned long)gckpt_plan_work(p), (unsigned long)gckpt_plan_bytes(p));
        CHECK(gckpt_frontier_find(frontier, gckpt_plan_bytes(p)) == i);
        gckpt_plan_free(p);
    }
    for (int less = 0; less < 2; less++) { /* the least that is named is the least there is */
        p = plan(GCKPT_OPTIMAL, less ? least - 1 : 1, 0);
        char named[40];
        snprintf(named, sizeof named, "at least %lu", (unsigned long)least);
        CHECK_MSG(!p && strstr(gckpt_error_text(g), named), "seed %u: %s, not %s", seed,
                  gckpt_error_text(g), named);
        gckpt_plan_free(p);
    }
    for (int i = 0; i <= 12; i++) { /* more bytes never cost more work; nor does no frontier */
        size_t budget = i % 3 == 2 ? point[(points - 1) * i / 12].bytes
                                   : least + (known[0].bytes - least) / 12 * (size_t)i;
        budget = budget < last ? last : budget;
        uint64_t work = promised(i % 2 ? GCKPT_AUTO : GCKPT_OPTIMAL, budget, step, seed);
        CHECK_MSG(work <= before && work <= work_in(budget),
                  "seed %u: %lu bytes: work %lu; in fewer %lu, the frontier %lu", seed,
                  (unsigned long)budget, (unsigned long)work, (unsigned long)before,
                  (unsigned long)work_in(budget));
        CHECK_MSG(work_in(budget) - work <= step / 1000 || !gckpt_frontier_complete(frontier),
                  "seed %u: %lu bytes: work %lu, %lu by the complete frontier", seed,
                  (unsigned long)budget, (unsigned long)work, (unsigned long)work_in(budget));
        filled += work < work_in(budget);
        before = work;
        last = (size_t)budget;
    }
    gckpt_frontier_free(frontier);
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    int scale = argc > 2 ? atoi(argv[2]) : 40;
    score t = { 0, 0, 0, 0, 0, 0 };
    for (unsigned i = 0; i < 15u * (unsigned)scale; i++) {
        state = (first + i) * 0x9e3779b97f4a7c15u + 1;
        int n = between(4, 7), most = between(4, 9);
        build(n, 40, most, 0);
        against_optimum(&t, first + i);
    }
    printf("%ld graphs, %ld budgets: %.2f %% optimal (%ld not), %ld refused, lost %.4f %%; the "
           "bound is the optimum in %.2f %%\n",
           t.graphs, t.budgets, 100.0 * (double)t.optimal / (double)t.budgets,
           t.budgets - t.optimal, t.refused, 100 * t.lost / (double)t.budgets,
           100.0 * (double)t.proven / (double)t.budgets);
    CHECK_MSG(argc > 1 || t.budgets - t.optimal <= 79, "%ld budgets are not optimal, more than 79",
              t.budgets - t.optimal);
    for (unsigned i = 0; i < 8u * (unsigned)scale / 100; i++) {
        state = (first + i) * 0x9e3779b97f4a7c15u + 3;
        build(between(6, 14), 40, 60, 1);
        find(first + i);
        for (int at = 0; at < points; at += between(1, 1 + points / 6))
            asked_alone(first + i, at);
        gckpt_frontier_free(frontier);
    }
    for (unsigned i = 0; i < 3u * (unsigned)scale; i++) {
        state = (first + i) * 0x9e3779b97f4a7c15u + 4;
        int n = between(4, 14);
        build(n, 30, 12, 1);
        against_groups(first + i, n + 1, 8);
    }
    for (unsigned i = 0; i < (unsigned)scale / 4; i++) {
        state = (first + i) * 0x9e3779b97f4a7c15u + 5;
        int n = between(20, 150), most = between(2, 40);
        build(n, chance(50) ? 30 : 5, most, 1);
        for (int k = 0, pins = chance(50); k < n && pins; k++)
            if (chance(15))
                (chance(50) ? gckpt_keep : gckpt_recompute)(made[k]);
        desc.alignment = (size_t)UNIT << below(6);
        desc.as_built = chance(50);
        desc.offload_bytes = chance(30) ? (size_t)between(1, 100) * 16 : 0;
        desc.offload_work = (uint64_t)between(1, 200000);
        check_promises(first + i, n + 1);
    }
    printf("%ld plans of larger graphs beside %ld of other modes; %ld have less work than the "
           "frontier\n",
           searched, rivals, filled);
    drop();
    return check_report("test_search");
}
