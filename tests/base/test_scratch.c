/* test_scratch.c - makes requests for scratch memory fail, one at a time, at each place of src/ that requests it. At
 * each place the first and the last request of a call fail (with ITERATIONS=all, also four requests between). The call
 * must return GCKPT_E_MEMORY, or the plan that it makes without a failure but with a weaker lower bound of the cost. It
 * must leak nothing, and give its normal result when it is repeated. The calls are: planning in every mode,
 * gckpt_frontier and building a graph, for random nets and for deep nets. A heap that fails
 * (test_alloc.c) reaches few of these places, since scratch memory is allocated in large blocks.
 *
 *     build/test_scratch [nets] [first seed] */
#define PLAN_CHECK_OFF "plans are those of other tests, again and again"
#include "base/base.h"
#include "graph/graph.h"
#include "base/test_hooks.h"

#include "net.h"

/* ---- places of src/ that request scratch memory: for each, its file, its line and its numbers of requests ---- */
enum { SITES = 400 };
static struct {
    const char *in;
    int line, failed;
    long now; /* requests at this place in the current run */
    long all; /* requests at this place in a run in which no request fails */
} site[SITES];
static int sites, target = -1;
static long target_time, hits, plans_unproven;

static int no_scratch(const char *in, int line)
{
    int i = 0;
    while (i < sites && (site[i].line != line || strcmp(site[i].in, in)))
        i++;
    if (i == sites && CHECK(sites < SITES)) {
        site[i].in = in;
        site[i].line = line;
        sites++;
    }
    return ++site[i].now == target_time && i == target && ++hits;
}

/* ---- the calls under test ---- */
enum { PLAN, FRONTIER, GRAPH };
typedef struct {
    int kind;
    gckpt_plan_desc d;
    gckpt_term term[16];
    int terms;
    gckpt_graph *g;
    gckpt_store *s;
} query;
typedef struct {
    gckpt_result result;
    int points;
    size_t bytes;
    uint64_t work, bound;
} query_result;
static heap h;

static void deep(gckpt_graph *g, int layers, int64_t rows, gckpt_term *term)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 24)), *skip = NULL;
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, 24));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(24, 24), init);
    for (int i = 0; i < layers; i++) {
        gckpt_segment_begin(g);
        x = gckpt_gelu(gckpt_linear(x, w, NULL));
        x = skip && i % 3 == 0 ? gckpt_add(x, skip) : x;
        skip = i % 7 == 1 ? x : skip;
        gckpt_segment_end(g);
    }
    *term = (gckpt_term){ gckpt_mean_squared_error(x, y, NULL), 1, 0 };
}
static query_result run_query(query *q)
{
    query_result a = { GCKPT_OK, 0, 0, 0, 0 };
    gckpt_plan *p = NULL;
    gckpt_frontier *f = NULL;
    gckpt_graph *g = q->g;
    int layers = 6;
    if (q->kind == FRONTIER) {
        f = gckpt_frontier_new(g, q->term, q->terms, &q->d);
        a.points = gckpt_frontier_describe(f).points;
        p = f ? gckpt_frontier_plan(f, q->d.budget) : NULL;
    } else if (q->kind == GRAPH) {
        g = gckpt_graph_new(q->s, &q->d.memory);
        deep(g, layers, 2, q->term);
        a.points = (int)g->count;
    } else {
        p = gckpt_plan_new(g, q->term, q->terms, &q->d);
    }
    a.result = gckpt_error(g);
    CHECK((p != NULL) == (a.result == GCKPT_OK && q->kind != GRAPH));
    a.bytes = p ? gckpt_plan_bytes(p) : 0;
    a.work = p ? gckpt_plan_describe(p).cost : 0;
    a.bound = p ? gckpt_plan_describe(p).proven_cost : 0;
    gckpt_plan_free(p);
    gckpt_frontier_free(f);
    if (q->kind == GRAPH)
        gckpt_graph_free(g);
    return a;
}

static query_result count_and_run(query *q, int i, long time)
{
    target = i;
    target_time = time;
    for (int k = 0; k < sites; k++)
        site[k].now = 0;
    return run_query(q);
}

/* Repeats the call q once for each place that requests scratch memory in it, with a request at that place failing. */
static void fail_each(query *q, const char *what)
{
    const size_t live = h.live;
    q->d.memory = heap_memory(&h);
    const query_result want = count_and_run(q, -1, 0);
    CHECK_MSG(want.result == GCKPT_OK || want.result == GCKPT_E_BUDGET, "%s: result %d", what,
              (int)want.result);
    for (int i = 0; i < sites; i++)
        site[i].all = site[i].now;
    for (int i = 0; i < sites; i++) {
        /* All callers that reserve a schedule share one place in schedule.c, so 8 of its requests fail, not 2 as
         * elsewhere. */
        const int some = strstr(site[i].in, "plan/schedule.c") ? 8 : 1 + check_iterations(5);
        for (int k = 0, old = 0; k < some && site[i].failed < 3 * some * some / 4 - 1; k++) {
            const long time = 1 + (site[i].all - 1) * k / (some - 1);
            if (!site[i].all || time == old)
                continue;
            old = (int)time;
            const long old_hits = hits;
            const query_result got = count_and_run(q, i, time);
            site[i].failed++;
            const int unproven = got.result == GCKPT_OK && want.result == GCKPT_OK &&
                                 got.points == want.points && got.bytes == want.bytes &&
                                 got.work == want.work && got.bound <= want.bound &&
                                 q->kind != GRAPH;
            plans_unproven += unproven;
            CHECK_MSG(hits == old_hits + 1 && h.live == live && (got.result == GCKPT_E_MEMORY || unproven),
                      "%s: no scratch at %s:%d, time %ld of %ld: hit %ld, result %d, %ld leaked",
                      what, site[i].in, site[i].line, time, site[i].all, hits - old_hits,
                      (int)got.result, (long)(h.live - live));
        }
    }
    const query_result again = count_and_run(q, -1, 0);
    CHECK_MSG(again.result == want.result && again.points == want.points &&
                  again.bytes == want.bytes && again.work == want.work && again.bound == want.bound,
              "%s: repeated, the result differs", what);
}

/* Runs fail_each for plans of every mode; in mode OPTIMAL, also for a budget of 1 byte, for a budget halfway between
 * the least bytes and those of the plan without a budget, and for the frontier. */
static void fail_modes(query *q, const char *what)
{
    const gckpt_mode modes[] = { GCKPT_AUTO,     GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                 GCKPT_SEGMENTS, GCKPT_SQRT,      GCKPT_OPTIMAL };
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        q->d.mode = modes[m];
        q->d.budget = 0;
        q->kind = PLAN;
        gckpt_plan *all = gckpt_plan_new(q->g, q->term, q->terms, &q->d);
        fail_each(q, what);
        if (all && modes[m] == GCKPT_OPTIMAL) {
            q->d.budget = 1;
            fail_each(q, what); /* a budget of 1 byte: every run returns GCKPT_E_BUDGET */
            const size_t least = util_least_budget(q->g);
            q->d.budget = least + (gckpt_plan_bytes(all) - least) / 2;
            fail_each(q, what);
            q->kind = FRONTIER;
            fail_each(q, what);
        }
        gckpt_plan_free(all);
    }
}

static void fail_net(unsigned seed, int way)
{
    char what[40];
    snprintf(what, sizeof what, "net %u, way %d", seed, way);
    net_open(seed, way, NET_ROWS);
    query q = { .kind = PLAN, .d = net.d, .terms = net.terms, .g = net.g, .s = net.s };
    memcpy(q.term, net.term, (size_t)net.terms * sizeof *q.term);
    if (!net.cached)
        fail_modes(&q, what);
    destroy();
}

static void fail_deep(int layers, int offload)
{
    char what[40];
    gckpt_store *s = gckpt_store_new(NULL);
    query q = { .kind = PLAN, .terms = 1, .g = gckpt_graph_new(s, NULL), .s = s };
    snprintf(what, sizeof what, "%d layers", layers);
    deep(q.g, layers, 2, q.term);
    q.d.offload.bytes = offload ? 4096 : 0;
    q.d.offload.overlap = offload;
    fail_modes(&q, what);
    if (layers < 10) {
        q.d = (gckpt_plan_desc){ .mode = GCKPT_OPTIMAL };
        q.kind = GRAPH;
        fail_each(&q, "graph");
    }
    util_free(NULL, NULL, q.g, s);
}

int main(int argc, char **argv)
{
    const int nets = argc > 1 ? atoi(argv[1]) : 8;
    const unsigned first = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    gckpti_hooks.fail_scratch = no_scratch;
    fail_deep(8, 0);
    fail_deep(12, 1);
    net_features = NET_RANKS;
    for (int i = 0; i < nets; i++)
        fail_net(first + (unsigned)i, i % 4);
    CHECK(h.live == 0 && h.blocks == 0 && h.wrong_sizes == 0);
    long failed = 0;
    for (int i = 0; i < sites; i++) {
        failed += site[i].failed;
        if (getenv("SCRATCH_PLACES"))
            printf("%s:%d %d of %ld\n", site[i].in, site[i].line, site[i].failed, site[i].all);
    }
    CHECK(hits == failed && plans_unproven > 0 && plans_unproven < hits / 4);
    printf("%d places, hit %ld times, %ld plans without their proof\n", sites, hits,
           plans_unproven);
    return check_report("test_scratch");
}
