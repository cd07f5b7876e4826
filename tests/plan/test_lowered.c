/* test_lowered.c - tests that the search's evaluation of a schedule (gckpti_evaluate) and the lowered plan of the
 * same schedule have the same live bytes at every position, for schedules of every mode and of the search; that
 * lowering a schedule again gives the same lowered plan. Also tests how often fit_plan builds a
 * graph if no budget fits.
 *
 *     build/test_lowered [first seed] [graphs] */
#include "base/base.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "search/search.h"
#include "planner/internal.h"

#include "lowered_cost.h"
#include "net.h"

/* search/candidates.c, search/search.c */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule);
GCKPTI_FN void gckpti_candidate_store(gckpti_search *s, gckpti_candidate *candidate, const gckpti_schedule *schedule);
GCKPTI_FN gckpti_candidate *gckpti_candidate_new(gckpti_search *s, gckpti_candidate **list, int *count);
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k);

static gckpti_planner p;
static gckpti_search s;
static gckpti_allocator memory;
static long positions;

/* Returns the live bytes of the lowered plan at instruction x, the size of each buffer rounded up to the alignment. */
static int64_t live_at(const gckpti_lowered *d, int x)
{
    int64_t sum = 0;
    for (size_t i = 0; i < d->buffer_count; i++)
        if (d->buffers[i].start <= x && x <= d->buffers[i].end)
            sum += (int64_t)gckpti_round_up(d->buffers[i].size, p.alignment);
    return sum;
}

/* Stores the current schedule as a candidate and checks it: the candidate has the same entries. */
static void check_candidate(const char *what)
{
    gckpti_candidate *a = gckpti_candidate_new(&s, &s.initial, &s.initials);
    const gckpti_schedule *t = &s.now;
    if (!CHECK(a))
        return;
    gckpti_candidate_store(&s, a, t);
    CHECK_MSG(a->length == t->length &&
                  !memcmp(a->entry, t->entry, (size_t)t->length * sizeof(int)),
              "%s: the candidate has other entries", what);
    s.initials--;
}

/* Compares the live bytes of the latest lowered plan with those of an evaluation of its schedule. */
static void compare(const char *what)
{
    const gckpti_lowered *d = &p.lowered;
    gckpti_schedule *t = &s.now;
    if (!CHECK(gckpti_schedule_reserve(&s.scratch, t, d->sched.length)))
        return;
    memcpy(t->entry, d->sched.entry, (size_t)d->sched.length * sizeof(int));
    t->length = d->sched.length;
    gckpti_evaluate(&s, t);
    CHECK_MSG(t->length == d->sched.length, "%s: drops again", what);
    uint64_t least, work = lowered_cost(&p, d, &least);
    CHECK_MSG(t->overhead == work - least && d->cost == work && p.base_cost == least,
              "%s: work %lu, %lu and %lu, listed %lu and %lu", what, (unsigned long)d->cost,
              (unsigned long)p.base_cost, (unsigned long)t->overhead, (unsigned long)work,
              (unsigned long)least);
    for (int x = 0; x < t->length && t->length == d->sched.length; x++, positions++)
        CHECK_MSG(t->live_bytes[x] == live_at(d, d->entry_ins[x]), "%s: position %d: %ld bytes, lowered %ld",
                  what, x, (long)t->live_bytes[x], (long)live_at(d, d->entry_ins[x]));
    check_candidate(what);
}

/* Lowers the current schedule again and checks that the lowered plan is the same. */
static void check_repeatable(const char *what)
{
    gckpti_lowered first = p.lowered;
    p.lowered = p.best;
    p.best = first;
    first = p.best;
    int result = gckpti_lower_schedule(&p, first.sched.entry, first.sched.length);
    CHECK_MSG(
        result == GCKPT_OK && p.lowered.length == first.length &&
            p.lowered.buffer_count == first.buffer_count && p.lowered.peak == first.peak &&
            !memcmp(p.lowered.ins, first.ins, first.length * sizeof *first.ins) &&
            !memcmp(p.lowered.operands, first.operands, first.operand_count * sizeof *first.operands),
        "%s: a lowered plan depends on more than its schedule", what);
}

/* Builds a graph of blocks whose parameters are large enough to be cut into shards; one block is used twice, and a
 * regulariser reads its parameter. */
static void build_wide(void)
{
    net.s = gckpt_store_new(NULL);
    net.g = gckpt_graph_new(net.s, NULL);
    net.batch = 16;
    net.count = 0;
    T *x = gckpt_input(net.g, "x", GCKPT_F32, gckpt_shape2(1, 48));
    for (int i = 0, block = 0; i < 4; i++, block = i % 3)
        x = gckpt_checkpoint(util_block, x, &block);
    T *w = gckpt_param(net.g, "up.0", gckpt_shape2(48, 96), (gckpt_init){ 0.3f, 0, 0 });
    net.term[0] = (gckpt_term){ gckpt_sum_loss(x), 1, 0 };
    net.term[1] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(w, w)), 1, 1 };
    net.terms = 2;
}

/* WAYS: number of variants of a request with one rank; SETUPS: number of setups with virtual ranks or several ranks */
enum { WAYS = 9, SETUPS = 7 };
static const struct {
    int leaves, ranks, wide;
    gckpt_shard shard;
    int64_t batch; /* rows of the batch; 0 selects one micro-batch for each virtual rank */
} setups[SETUPS] = { { 4, 1, 0, GCKPT_SHARD_NONE, 9 },   { 4, 4, 0, GCKPT_SHARD_NONE, 0 },
                     { 2, 2, 1, GCKPT_SHARD_STATE, 0 },  { 2, 2, 1, GCKPT_SHARD_GRADIENTS, 0 },
                     { 4, 4, 1, GCKPT_SHARD_VALUES, 0 }, { 4, 2, 1, GCKPT_SHARD_VALUES, 9 },
                     { 8, 1, 1, GCKPT_SHARD_NONE, 8 } };

static void test_graph(unsigned seed, int how)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT, GCKPT_SCHEDULE };
    static gckpt_instruction list[20000];
    char what[64];
    const int setup = how - WAYS;
    if (setup >= 0 && setups[setup].wide)
        build_wide();
    else
        build(seed, how & 1 ? 1 : 0);
    random_state = seed;
    for (int i = 0; i < net.count && how & 4; i++)
        if (net.nodes[i].t && net.nodes[i].is_op && chance(25))
            (chance(50) ? gckpt_keep : gckpt_recompute)(net.nodes[i].t);
    gckpt_plan_desc d = { .batch = net.batch,
                          .kernels.stage_parameters = how >> 1 & 1,
                          .update_in_backward = how == 8,
                          .kernels.alignment = how & 2 ? 4 : 64,
                          .bf16.precision = how == 5 ? GCKPT_BF16 : GCKPT_FP32,
                          .schedule.instructions = list };
    if (setup >= 0) {
        d.ranks.virtual_ranks = setups[setup].leaves;
        d.batch = setups[setup].batch ? setups[setup].batch : d.ranks.virtual_ranks * net.g->rows;
        d.ranks.link_cost = 1000;
    }
    memset(&memory, 0, sizeof memory);
    memset(&s, 0, sizeof s);
    for (int k = 0; k < (how == 8 ? 4 : 5); k++) {
        snprintf(what, sizeof what, "seed %u, way %d, mode %d", seed, how, (int)modes[k]);
        d.mode = modes[k];
        CHECK(gckpt_store_ranks(net.s, 0, 1, GCKPT_SHARD_NONE) == GCKPT_OK);
        if (k == 4)
            d.schedule.count = random_schedule(net.g, net.term, net.terms, list, 3000);
        if (setup >= 0)
            CHECK(gckpt_store_ranks(net.s, 0, setups[setup].ranks, setups[setup].shard) ==
                  GCKPT_OK);
        memset(&p, 0, sizeof p);
        CHECK(gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d) == GCKPT_OK);
        s.p = &p;
        s.scratch = gckpti_scratch_new(&memory, &p.failed);
        if (CHECK_MSG(gckpti_lower_mode(&p, d.mode) == GCKPT_OK, "%s: %s", what,
                      gckpt_error_text(net.g))) {
            compare(what);
            check_repeatable(what);
        }
        gckpti_scratch_free(&s.scratch);
        memset(&s, 0, sizeof s);
        gckpti_planner_free(&p);
    }
    d.mode = GCKPT_OPTIMAL;
    snprintf(what, sizeof what, "seed %u, way %d, the search", seed, how);
    memset(&p, 0, sizeof p);
    CHECK(gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d) == GCKPT_OK);
    CHECK(gckpti_search_open(&s, &p, 0) == GCKPT_OK);
    for (int i = 0; i < s.levels; i++)
        if (gckpti_solve_level(&s, i), s.level[i].length) {
            CHECK(gckpti_lower_schedule(&p, s.level[i].entry, s.level[i].length) == GCKPT_OK);
            compare(what);
        }
    gckpti_scratch_free(&s.scratch);
    memset(&s, 0, sizeof s);
    gckpti_planner_free(&p);
    destroy();
}

/* ---- fit_plan when no micro-batch size fits the budget: it builds every size once more, to name the smallest one
 * ---- */
static int builds;

static int build_chain(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    static const gckpt_init none = { 0, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 16));
    (void)user;
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        x = gckpt_tanh(gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(16, 16), none), NULL));
    }
    terms[0].loss = gckpt_sum_loss(x);
    terms[0].weight = 1;
    builds++;
    return 1;
}

static void test_minimise_bytes(void)
{
    enum { SIZES = 12 }; /* divisors of 60 */
    fit_error why;
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_plan_desc d = { .optimiser = GCKPT_SGD, .budget = 1 };
    CHECK(!fit_plan(store, build_chain, NULL, 60, &d, NULL, &why));
    CHECK_MSG(builds == 2 * SIZES, "%d builds", builds);
    const char *at = strstr(why.text, "at least ");
    size_t least = at ? (size_t)strtoul(at + 9, NULL, 10) : 0;
    char text[64];
    snprintf(text, sizeof text, "at least %lu,", (unsigned long)least);
    d.budget = least - 1;
    CHECK(!fit_plan(store, build_chain, NULL, 60, &d, NULL, &why) && strstr(why.text, text));
    d.budget = least;
    gckpt_plan *plan = fit_plan(store, build_chain, NULL, 60, &d, NULL, &why);
    CHECK(plan && gckpt_plan_bytes(plan) == least);
    gckpt_plan_free(plan);
    gckpt_store_free(store);
}

/* ---- a schedule without the forward of an op with side effects is refused, here if only that op reads an input
 * ---- */
static gckpt_result probe_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void probe_forward(const gckpt_call *call) { (void)call; }

static void test_missing_effect(void)
{
    static gckpt_op probe; /* op with a side effect that reads tanh(w), which no other op reads */
    probe.name = "probe";
    probe.shape = probe_shape;
    probe.forward = probe_forward;
    probe.flags = GCKPT_SIDE_EFFECT;
    const gckpt_init one = { 0, 0, 1 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(1, 1), one);
    gckpt_tensor *h = gckpt_mul(x, w), *in[2] = { h, gckpt_tanh(w) };
    gckpt_tensor *report = gckpt_apply(&probe, in, 2, NULL, 0);
    gckpt_term loss = { gckpt_sum_loss(h), 1, 0 };
    const gckpt_instruction list[5] = { { GCKPT_FORWARD, gckpt_id(h) },
                                        { GCKPT_FORWARD, gckpt_id(loss.loss) },
                                        { GCKPT_BACKWARD, gckpt_id(loss.loss) },
                                        { GCKPT_BACKWARD, gckpt_id(h) },
                                        { GCKPT_FORWARD, gckpt_id(report) } };
    gckpt_plan_desc desc = { .mode = GCKPT_SCHEDULE, .schedule.instructions = list, .batch = 4 };
    for (desc.schedule.count = 4; desc.schedule.count <= 5; desc.schedule.count++) {
        gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &desc);
        CHECK((plan != NULL) == (desc.schedule.count == 5));
        CHECK(plan || strstr(gckpt_error_text(g), "needs a forward"));
        gckpt_plan_free(plan);
    }
    gckpt_graph_free(g);
    gckpt_store_free(store);
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    unsigned graphs = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(6);
    for (unsigned seed = first; seed < first + graphs; seed++)
        for (int how = 0; how < WAYS + SETUPS; how++)
            test_graph(seed, how);
    test_minimise_bytes();
    test_missing_effect();
    printf("%ld positions\n", positions);
    return check_report("test_lowered");
}
