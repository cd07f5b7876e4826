/* test_search.c - bounds on what a search for plans may miss, on random graphs: how often it may be
 * worse than the optimum, never worse than any uniform segmentation, and the same answer by every
 * way to ask. No plan is pinned.     build/test_search [first seed] [percent] */
#include "gradckpt.h"

#include <stdlib.h>

#include "made.h"

enum { POINTS = 600 };

/* The request; forms and orders of backwards may be chosen. */
static void build(int n, unsigned skips, int most, int segments)
{
    skipping_chain(n, skips, most, segments);
    m.d.as_built = 0;
    CHECK_MSG(gckpt_error(m.g) == GCKPT_OK, "%s", gckpt_error_text(m.g));
}

static gckpt_plan *plan(gckpt_mode mode, size_t budget, int group)
{
    gckpt_plan_desc d = m.d;
    d.mode = mode;
    d.budget = budget;
    d.group = group;
    return gckpt_plan_new(m.g, m.term, 1, &d);
}

/* ---- the frontier of the graph, and its floor ---- */
static gckpt_point point[POINTS];
static int points;
static gckpt_frontier *frontier;

static void find(unsigned seed)
{
    frontier = gckpt_frontier_new(m.g, m.term, 1, &m.d);
    points = gckpt_frontier_points(frontier);
    CHECK_MSG(points > 0 && points < POINTS, "seed %u: %d points: %s", seed, points,
              gckpt_error_text(m.g));
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
    size_t base = (size_t)m.o.op[0].hold * UNIT; /* the parameter */
    find(seed);
    for (int i = 0; i < m.o.n; i++)
        memory += 4 * m.o.op[i].out + m.o.op[i].aux + m.o.op[i].work_forward + m.o.op[i].work_backward +
                  m.o.op[i].hold;
    t->graphs++;
    for (uint64_t above = point[points - 1].bytes - base;
         memory > 0;) { /* steps of the optimum, downwards */
        uint64_t want = oracle_exhaustive(&m.o, memory, &peak, NULL, NULL);
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

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    int scale = argc > 2 ? atoi(argv[2]) : 40;
    score t = { 0, 0, 0, 0, 0, 0 };
    for (unsigned i = 0; i < 15u * (unsigned)scale; i++) {
        random_state = (first + i) * 0x9e3779b97f4a7c15u + 1;
        int n = between(4, 7), most = between(4, 9);
        build(n, 40, most, 0);
        against_optimum(&t, first + i);
        made_free();
    }
    printf("%ld graphs, %ld budgets: %.2f %% optimal (%ld not), %ld refused, lost %.4f %%; the "
           "bound is the optimum in %.2f %%\n",
           t.graphs, t.budgets, 100.0 * (double)t.optimal / (double)t.budgets,
           t.budgets - t.optimal, t.refused, 100 * t.lost / (double)t.budgets,
           100.0 * (double)t.proven / (double)t.budgets);
    CHECK_MSG(argc > 1 || t.budgets - t.optimal <= 79, "%ld budgets are not optimal, more than 79",
              t.budgets - t.optimal);
    for (unsigned i = 0; i < 8u * (unsigned)scale / 100; i++) {
        random_state = (first + i) * 0x9e3779b97f4a7c15u + 3;
        build(between(6, 14), 40, 60, 1);
        find(first + i);
        for (int at = 0; at < points; at += between(1, 1 + points / 6))
            asked_alone(first + i, at);
        gckpt_frontier_free(frontier);
        made_free();
    }
    for (unsigned i = 0; i < 3u * (unsigned)scale; i++) {
        random_state = (first + i) * 0x9e3779b97f4a7c15u + 4;
        int n = between(4, 14);
        build(n, 30, 12, 1);
        against_groups(first + i, n + 1, 8);
        made_free();
    }
    return check_report("test_search");
}
