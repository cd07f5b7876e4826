/* test_stage.c - plans that copy parameters into the arena (gckpt_plan_desc.kernels.stage_parameters).
 * plan_check.h accepts them in every mode, ops read the copies, and the bits are those without staging. A budget is
 * respected, more bytes never cost more time, and with a small budget parameters are copied again instead of kept.
 *
 *     build/test_stage [first seed] [graphs] */
#include "base/base.h"
#include "graph/graph.h"
#include "plan/internal.h"

#include "net.h"
#include "generation.h"

enum { STEPS = 2 };


static int is_param(const gckpt_plan *p, int id) { return p->nodes[id].kind == GCKPTI_PARAM; }

/* Returns the number of instructions that copy a parameter; stores the number of different parameters in *different. */
static int copies(const gckpt_plan *p, int *different)
{
    int count = 0;
    *different = 0;
    for (size_t x = 0; p && x < p->length; x++)
        if (p->ins[x].kind == GCKPT_FORWARD && is_param(p, p->ins[x].id)) {
            count++;
            *different += p->ins[x].first;
        }
    return count;
}

/* Checks that every op reads copies instead of parameters, and that every copy has the expected bytes and cost. */
static void check_copies(const gckpt_plan *p, const char *what)
{
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->ins[x];
        if (ins->kind == GCKPT_UPDATE || gckpti_ins_node(p, ins) < 0)
            continue;
        const gckpti_plan_node *node = &p->nodes[ins->id];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; i < node->inputs; i++)
            if (is_param(p, p->nodes[node->in[i]].base) && ins->kind == GCKPT_FORWARD)
                CHECK_MSG(o.in[i].value != PC_NONE, "%s: instruction %d reads from the store",
                          what, (int)x);
        if (is_param(p, ins->id))
            CHECK_MSG(ins->kind == GCKPT_FORWARD && o.out != PC_NONE &&
                          p->info[ins->id].cost.forward == 20 * (uint64_t)gckpti_planned_elements(p, node) * 4 +
                                                    GCKPTI_INSTRUCTION_COST,
                      "%s: instruction %d is no copy with a cost", what, (int)x);
    }
}

static gckpt_plan *plan(const gckpt_plan_desc *d, const char *what)
{
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, d);
    if (!CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(net.g)))
        return NULL;
    if (d->kernels.stage_parameters)
        check_copies(p, what);
    return p;
}

/* Trains a new store for some steps and returns its hash. */
static uint64_t train(const gckpt_plan *p, const char *what)
{
    gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE };
    gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
    gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f };
    gckpt_result result = e ? GCKPT_OK : GCKPT_E_ARG;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++)
        result = util_step(e, net_feed, NULL, net.batch, 0, 0, &hyper, NULL);
    CHECK_MSG(result == GCKPT_OK && gckpt_bytes_measured(e) == gckpt_plan_bytes(p),
              "%s: %s %s: %lu bytes planned, %lu measured", what, gckpt_error_text(net.s),
              gckpt_error_text(e), (unsigned long)gckpt_plan_bytes(p),
              (unsigned long)gckpt_bytes_measured(e));
    gckpt_exec_free(e);
    return gckpt_store_hash(net.s);
}

/* Tests for one graph and micro-batch size that all modes give the same bits, with and without staging. */
static void test_modes(unsigned seed, int64_t rows, int in_backward)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT,      GCKPT_SCHEDULE,    GCKPT_OPTIMAL };
    static gckpt_instruction list[20000];
    uint64_t want = 0;
    char what[64];
    for (int k = 0; k < 12; k++) {
        gckpt_plan_desc d = { .mode = modes[k % 6],
                              .batch = (build(seed, rows), net.batch),
                              .update_in_backward = in_backward,
                              .kernels.stage_parameters = k >= 6,
                              .schedule.instructions = list };
        random_state = seed;
        for (int i = 0; i < net.count && seed % 3 == 0; i++)
            if (net.nodes[i].t && (net.nodes[i].is_op || chance(30)) && chance(25))
                (chance(50) ? gckpt_keep : gckpt_recompute)(net.nodes[i].t);
        snprintf(what, sizeof what, "seed %u, %d rows, mode %d, staged %d", seed, (int)rows,
                 (int)d.mode, k >= 6);
        if (d.mode == GCKPT_SCHEDULE)
            d.schedule.count = random_schedule(net.g, net.term, net.terms, list, 10000);
        gckpt_plan *p = plan(&d, what);
        int different, count = copies(p, &different);
        CHECK_MSG(k >= 6 ? count > 0 : count == 0, "%s: %d copies", what, count);
        CHECK_MSG(k != 6 || seed % 3 == 0 || count == different, "%s: copies again", what);
        uint64_t hash = train(p, what);
        want = k == 0 ? hash : want;
        CHECK_MSG(hash == want, "%s: other bits", what);
        gckpt_plan_free(p);
        destroy();
    }
}

/* Tests a frontier with staging: its plans respect the budget, and more bytes never cost more. A plan for the same
 * budget made without the frontier costs at most as much; it may cost less, since it can use an order of backwards or
 * a lowering that the frontier's point does not use. */
static void test_budgets(unsigned seed, int64_t rows)
{
    char what[64];
    snprintf(what, sizeof what, "budgets of seed %u", seed);
    build(seed, rows);
    gckpt_plan_desc d = { .batch = net.batch, .kernels.stage_parameters = 1 };
    gckpt_frontier *f = gckpt_frontier_new(net.g, net.term, net.terms, &d);
    CHECK(gckpt_frontier_describe(f).points > 0);
    uint64_t work = UINT64_MAX;
    for (int i = 0; i < gckpt_frontier_describe(f).points; i++) {
        gckpt_point at;
        gckpt_frontier_get(f, i, &at);
        CHECK_MSG(at.cost < work, "%s: more bytes cost more", what);
        work = at.cost;
        d.mode = GCKPT_OPTIMAL;
        d.budget = at.bytes + (size_t)below(3);
        gckpt_plan *p = plan(&d, what), *q = gckpt_frontier_plan(f, d.budget);
        CHECK_MSG(p && gckpt_plan_bytes(p) <= d.budget && gckpt_plan_describe(p).cost <= at.cost, "%s",
                  what);
        CHECK_MSG(q && gckpt_plan_bytes(q) <= at.bytes && gckpt_plan_describe(q).cost == at.cost,
                  "%s: the frontier's plan is not its point", what);
        gckpt_plan_free(p);
        gckpt_plan_free(q);
    }
    gckpt_frontier_free(f);
    destroy();
}

/* Tests large weights with small activations: under a small budget, some weights are copied again for their
 * backwards. */
static void test_again(void)
{
    enum { LAYERS = 6, WIDTH = 32 };
    static const gckpt_init none = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, WIDTH));
    int id[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(WIDTH, WIDTH), none);
        id[i] = gckpt_id(w);
        x = gckpt_tanh(gckpt_linear(x, w, NULL));
    }
    gckpt_term term = { gckpt_sum_loss(x), 1, 0 };
    gckpt_plan_desc d = { .optimiser = GCKPT_SGD, .kernels.stage_parameters = 1, .batch = 4 };
    gckpt_plan *all = gckpt_plan_new(g, &term, 1, &d);
    d.kernels.stage_parameters = 0;
    gckpt_plan *plain = gckpt_plan_new(g, &term, 1, &d);
    int different, size = WIDTH * WIDTH * (int)sizeof(float);
    CHECK(copies(all, &different) == LAYERS && different == LAYERS &&
          copies(plain, &different) == 0);
    CHECK(gckpt_plan_bytes(all) >= gckpt_plan_bytes(plain) + (size_t)(size * (LAYERS - 1)));
    CHECK(gckpt_plan_describe(all).cost ==
          gckpt_plan_describe(plain).cost + LAYERS * (20 * (uint64_t)size + GCKPTI_INSTRUCTION_COST));
    d.mode = GCKPT_OPTIMAL;
    d.kernels.stage_parameters = 1;
    d.budget = gckpt_plan_bytes(plain) + (size_t)(2 * size);
    gckpt_plan *few = gckpt_plan_new(g, &term, 1, &d);
    CHECK_MSG(few && gckpt_plan_bytes(few) <= d.budget, "%s", gckpt_error_text(g));
    CHECK(copies(few, &different) > LAYERS && different == LAYERS);
    for (size_t i = 0; few && i + 1 < few->length; i++) /* no parameter may be copied after its update */
        for (size_t k = i + 1; few->ins[i].kind == GCKPT_UPDATE && k < few->length; k++)
            CHECK(few->ins[k].kind != GCKPT_FORWARD);
    /* a GCKPT_SCHEDULE may contain the copies of parameters; a copy that the list omits is made before the first
     * reader */
    gckpt_instruction list[128];
    int n = 0, left = -1;
    for (size_t i = 0; few && i < few->length; i++)
        if (few->ins[i].kind <= GCKPT_BACKWARD) {
            list[n].kind = (gckpt_kind)few->ins[i].kind;
            list[n++].id = few->ins[i].id;
            if (left < 0 && list[n - 1].id == id[2])
                left = --n;
        }
    d.mode = GCKPT_SCHEDULE;
    d.budget = 0;
    d.schedule.instructions = list;
    d.schedule.count = n;
    gckpt_plan *user = gckpt_plan_new(g, &term, 1, &d);
    int users = copies(user, &different);
    CHECK_MSG(user && users == copies(few, &different), "%s", gckpt_error_text(g));
    d.kernels.stage_parameters = 0;
    CHECK(!gckpt_plan_new(g, &term, 1, &d) && gckpt_error(g) == GCKPT_E_ARG);
    gckpt_plan_free(user);
    gckpt_plan_free(few);
    gckpt_plan_free(plain);
    util_free(NULL, all, g, s);
}

/* Tests staging in a graph with caches: check_copies accepts the plan although the values of the executor's caches
 * have no place in the arena. */
static void test_caches(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gen_model m = gen_build(s, B, 4, 20, PREFIXED);
    gckpt_fetch_spec fetch = { m.logits, 0 };
    for (int staged = 0; staged < 2; staged++) {
        gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1,
                              .kernels.stage_parameters = staged };
        gckpt_plan *p = gckpt_plan_new(m.g, NULL, 0, &d);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(m.g));
        if (staged)
            check_copies(p, "caches");
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, m.g, s);
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    unsigned graphs = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(5);
    test_again();
    test_caches();
    for (unsigned seed = first; seed < first + graphs; seed++) {
        random_state = seed;
        net_fill();
        test_modes(seed, 0, 0);
        test_modes(seed, 1, 0);
        test_modes(seed, 0, 1);
        test_budgets(seed, seed % 2);
    }
    return check_report("test_stage");
}
