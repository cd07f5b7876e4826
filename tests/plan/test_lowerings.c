/* test_lowerings.c - lowerings of an op give the same bits: losses, weights and fetched gradients are equal in every
 * lowering and every plan. Also tests which lowerings the planner offers for a graph, and which one it chooses for a
 * budget. */
#include "base/base.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/internal.h"
#include "planner/internal.h"
#include "run/run.h"

#include "util.h"

GCKPTI_FN uint64_t gckpti_mul_div(uint64_t x, uint64_t a, uint64_t b); /* plan/tensors.c */

enum { FUSED, MATMUL, LINEAR, KINDS };
/* Flags of a net or a request: each is one difference from the plain net of that kind. */
enum { TIED = 1, READ_LATER = 2, READ_BETWEEN = 4, BIAS = 8, LOGITS_READ = 16, KEPT = 32, RECOMPUTED = 64, VIEW = 128,
       TABLE_FROZEN = 256, ALL_FROZEN = 512, NOT_TRANSPOSED = 1024, CAPPED = 2048 };

typedef struct {
    int kind, rows, t, c, v, flags;
} size;

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *tokens, *targets, *h, *logits;
    gckpt_term terms[3];
    int count;
} net;

static net net_new(const size *z)
{
    const gckpt_init normal = { 0.4f, 0, 0 };
    net n = { .s = gckpt_store_new(NULL) };
    gckpt_graph *g = n.g = gckpt_graph_new(n.s, NULL);
    n.tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(z->rows, z->t));
    n.targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(z->rows, z->t));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(z->v, z->c), normal), *head = table, *aside = NULL;
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(z->c, z->c), normal);
    if (!(z->flags & TIED))
        head = z->flags & NOT_TRANSPOSED ? gckpt_param(g, "head", gckpt_shape2(z->c, z->v), normal)
                                    : gckpt_param(g, "head", gckpt_shape2(z->v, z->c), normal);
    n.h = gckpt_tanh(gckpt_linear(gckpt_embed(table, n.tokens), w, NULL));
    if (z->kind == FUSED) {
        const gckpt_linear_loss_desc desc = { z->flags & CAPPED ? 1.5f : 0 };
        n.terms[0].loss = gckpt_linear_cross_entropy(n.h, head, n.targets, &desc);
    } else {
        gckpt_tensor *bias = z->flags & BIAS ? gckpt_param(g, "bias", gckpt_shape1(z->v), normal) : NULL;
        n.logits = z->flags & NOT_TRANSPOSED ? gckpt_linear(n.h, head, bias)
                   : z->kind == MATMUL  ? gckpt_matmul_transposed(n.h, head)
                                        : gckpt_linear_transposed(n.h, head, bias);
        if (z->flags & READ_BETWEEN)
            aside = gckpt_sum_loss(gckpt_mul(n.h, n.h));
        if (z->flags & KEPT)
            gckpt_keep(n.logits);
        if (z->flags & RECOMPUTED)
            gckpt_recompute(n.logits);
        if (z->flags & VIEW)
            n.terms[0].loss =
                gckpt_cross_entropy(gckpt_reshape(n.logits, gckpt_shape3(z->rows, z->t, z->v)), n.targets, NULL, 0);
        else
            n.terms[0].loss = gckpt_cross_entropy(n.logits, n.targets, NULL, 0);
        if (z->flags & LOGITS_READ)
            aside = gckpt_sum_loss(gckpt_tanh(n.logits));
    }
    if (z->flags & READ_LATER)
        aside = gckpt_sum_loss(gckpt_mul(n.h, gckpt_sigmoid(n.h)));
    n.terms[0].weight = 0.7f;
    n.terms[1].loss = gckpt_sum_loss(gckpt_mul(head, head));
    n.terms[1].weight = 0.01f;
    n.terms[1].regulariser = 1;
    n.terms[2].loss = aside;
    n.terms[2].weight = 0.3f;
    n.count = aside ? 3 : 2;
    if (z->flags & (TABLE_FROZEN | ALL_FROZEN))
        gckpt_store_freeze(n.s, "table", 1);
    if (z->flags & ALL_FROZEN)
        gckpt_store_freeze(n.s, "w", 1);
    return n;
}

/* Returns a plan with this lowering of the loss, in a mode that needs no search, or NULL if the planner does not
 * offer the lowering. */
static gckpt_plan *plan_of(net *n, const gckpt_plan_desc *d, int lowering)
{
    gckpti_planner p;
    gckpti_allocator memory = gckpti_allocator_of(NULL);
    memset(&p, 0, sizeof p);
    p.variant.lowering = lowering;
    const gckpt_result result = gckpti_planner_open(&p, &memory, n->g, n->terms, n->count, d);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(n->g));
    gckpt_plan *plan = NULL;
    if (result == GCKPT_OK && !p.unused) {
        CHECK(gckpti_plan_mode(&p, d->mode) == GCKPT_OK);
        plan = gckpti_encode_plan(&p, d->mode);
    }
    gckpti_planner_free(&p);
    return plan;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Trains a new store for some steps. Returns a hash of losses, norms, counts and weights, and of the gradient of h if
 * the plan fetches it. */
static uint64_t run(const size *z, const gckpt_plan *p, int64_t rows, unsigned debug, gckpt_isa isa)
{
    enum { MOST = 5000 };
    static int32_t tokens[MOST], targets[MOST];
    net n = net_new(z);
    gckpt_exec_desc ed = { .debug = debug | GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_RECOMPUTE, .isa = isa,
                           .parallel_for = p->threads > 1 ? any_order : NULL };
    gckpt_exec *e = gckpt_exec_new(p, n.s, &ed);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(n.s));
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int step = 0; step < 2 && e; step++) {
        gckpt_report r;
        gckpt_hyper hyper = { .lr = 0.05f, .clip = p->update_in_backward ? 0 : 1 };
        memset(&r, 0, sizeof r);
        for (int i = 0; i < (int)rows * z->t; i++) {
            tokens[i] = (i * 7 + step * 3) % z->v;
            targets[i] = i % 5 == 3 || (i >= 20 && i < 90 && z->rows > 100) ? -1 : (i * 13 + step) % z->v;
        }
        gckpt_feed feeds[2] = { { gckpt_id(n.tokens), tokens }, { gckpt_id(n.targets), targets } };
        gckpt_result result = gckpt_step(e, feeds, 2, rows, &hyper, &r);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
        hash = mix(hash, &r.loss, sizeof r.loss);
        hash = mix(hash, &r.count, sizeof r.count);
        for (size_t i = 0; i < p->fetch_count; i++) {
            gckpt_shape s = gckpt_shape_of(n.h); /* the last micro-batch may have fewer rows */
            const float *g = gckpt_fetch(e, gckpt_id(n.h), 1);
            s.d[0] = (rows - 1) % z->rows + 1;
            hash = g ? mix(hash, g, (size_t)count_of(&s) * sizeof *g) : 0;
        }
    }
    uint64_t weights = e ? gckpt_store_hash(n.s) : 0;
    CHECK_MSG(!e || gckpt_bytes_measured(e) == gckpt_plan_bytes(p),
              "kind %d, with %d, V %d, lowering %d: %lu bytes touched of %lu", z->kind, z->flags, z->v, p->lowering,
              (unsigned long)gckpt_bytes_measured(e), (unsigned long)gckpt_plan_bytes(p));
    hash = mix(hash, &weights, sizeof weights);
    util_free(e, NULL, n.g, n.s);
    return hash;
}

/* ---- the same bits ---- */
static int ran[KINDS][GCKPTI_LOWERINGS];

static void same_bits(const size *z, gckpt_precision precision, int threads, int plain, int way)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    /* Odd ways have several micro-batches; way 0 runs the executor's plain kernels, way 3 fills memory with a pattern,
     * way 4 has update_in_backward. */
    uint64_t want = 0;
    for (int lowering = 0; lowering < GCKPTI_LOWERINGS; lowering++) {
        net n = net_new(z);
        int64_t rows = way % 2 ? 2 * z->rows + 1 : z->rows;
        gckpt_fetch_spec h = { n.h, 1 };
        gckpt_plan_desc d = { .mode = modes[way % 3], .threads = threads, .kernels.plain = plain,
                              .bf16.precision = precision,
                              .batch = rows, .fetch.specs = &h, .fetch.count = way != 1 && way != 4,
                              .update_in_backward = way == 4 };
        gckpt_plan *p = plan_of(&n, &d, lowering);
        if (p) {
            uint64_t got =
                run(z, p, rows, way == 3 ? GCKPT_DEBUG_POISON : 0, way == 0 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO);
            want = lowering == 0 ? got : want;
            CHECK_MSG(got == want, "kind %d, with %d, V %d, lowering %d, way %d, precision %d: other bits", z->kind,
                      z->flags, z->v, lowering, way, (int)precision);
            ran[z->kind][lowering]++;
        }
        util_free(NULL, p, n.g, n.s);
    }
}

static void test_bits(void)
{
    static const size sizes[] = {
        { FUSED, 3, 4, 5, 11, 0 },          { FUSED, 70, 1, 3, 1025, TIED }, { FUSED, 300, 1, 6, 40, READ_LATER },
        { FUSED, 20, 3, 8, 1024, CAPPED },       { FUSED, 2, 9, 4, 2100, TIED | READ_LATER },
        { FUSED, 5, 3, 4, 9, TABLE_FROZEN | TIED },
        { MATMUL, 3, 4, 5, 11, TIED },      { MATMUL, 70, 1, 3, 1025, READ_LATER }, { MATMUL, 300, 1, 6, 40, 0 },
        { LINEAR, 20, 3, 8, 1024, TIED },   { LINEAR, 2, 9, 4, 2100, 0 }, { LINEAR, 270, 1, 33, 70, TIED | READ_LATER },
        { LINEAR, 5, 3, 4, 9, TABLE_FROZEN | TIED }, { FUSED, 1, 1, 1, 1, 0 }, { MATMUL, 1, 1, 1, 1, 0 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < 6; how++) {
            static const int threads[6] = { 1, 2, 4, 3, 1, 2 };
            if (!check_sampled((unsigned)(6 * i) + (unsigned)how, 3) && how != (int)i % 6)
                continue;
            same_bits(&sizes[i], how < 4 ? GCKPT_FP32 : GCKPT_BF16, threads[how],
                      how == 3, (int)(i + (size_t)how) % 5);
            same_bits(&sizes[i], GCKPT_FP32, threads[how], how == 3, (int)(i + (size_t)how + 3) % 5);
        }
    /* sizes for bf16 sums of weight gradients over rows * t entries, which a lowering may split after any entry */
    static const size entries[] = {
        { FUSED, 3, 7, 5, 40, 0 },    { LINEAR, 3, 32, 5, 40, TIED }, { MATMUL, 3, 33, 5, 40, 0 },
        { LINEAR, 4, 100, 5, 40, 0 }, { FUSED, 5, 64, 6, 70, READ_LATER | CAPPED }, { LINEAR, 7, 77, 9, 1050, 0 },
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        for (int way = 0; way < 10; way++)
            if (check_sampled((unsigned)(10 * i) + (unsigned)way, 3))
                same_bits(&entries[i], GCKPT_BF16, 1 + way % 2, way == 7, way % 5);
    for (int lowering = 0; lowering < GCKPTI_LOWERINGS; lowering++) /* every lowering ran */
        CHECK((ran[FUSED][lowering] > check_iterations(50) || lowering == GCKPTI_LOWERINGS - 1) &&
              ran[MATMUL][lowering] > check_iterations(20) && ran[LINEAR][lowering] > check_iterations(20));
}

/* ---- lowerings that are offered ---- */
static void test_offered(void)
{
    static const struct {
        int kind, with, offered;
    } cases[] = {
        { FUSED, 0, 1 },
        { MATMUL, 0, 1 },
        { LINEAR, 0, 1 },
        { LINEAR, TIED | READ_LATER, 1 },
        { LINEAR, READ_BETWEEN, 0 },
        { LINEAR, BIAS, 0 },
        { LINEAR, LOGITS_READ, 0 },
        { MATMUL, KEPT, 0 },
        { MATMUL, RECOMPUTED, 0 },
        { MATMUL, VIEW, 0 },
        { LINEAR, NOT_TRANSPOSED, 0 },
        { LINEAR, TABLE_FROZEN, 1 },
        { LINEAR, ALL_FROZEN | TIED, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int how = 0; how < 4; how++) {
            size z = { cases[i].kind, 40, 2, 4, 9, cases[i].with };
            net n = net_new(&z);
            gckpt_fetch_spec fetch = { how == 1 && n.logits ? n.logits : n.h, how == 2 };
            gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .fetch.specs = &fetch, .fetch.count = 1,
                                  .bf16.precision = how == 3 ? GCKPT_BF16 : GCKPT_FP32 };
            int want = cases[i].offered && !(cases[i].kind != FUSED && (how == 1 || how == 3));
            /* only the regulariser could be trained, but its parameter is frozen as well, so there is no plan */
            if (cases[i].with & ALL_FROZEN) {
                util_free(NULL, NULL, n.g, n.s);
                continue;
            }
            gckpt_plan *p = plan_of(&n, &d, 1);
            CHECK_MSG(!p == !want, "case %d, how %d", (int)i, how);
            util_free(NULL, p, n.g, n.s);
        }
}

/* ---- lowerings that a plan chooses ---- */
static void compare_frontier(const gckpt_frontier *f, const gckpt_plan *p, size_t budget, gckpt_graph *g)
{
    gckpt_plan *q = gckpt_frontier_plan(f, budget);
    CHECK_MSG(!p == !q, "%s", gckpt_error_text(g));
    if (p && q)
        CHECK(gckpt_plan_describe(p).cost == gckpt_plan_describe(q).cost && gckpt_plan_bytes(p) == gckpt_plan_bytes(q) &&
              p->lowering == q->lowering && p->least_cost == q->least_cost);
    gckpt_plan_free(q);
}

static void test_choice(void)
{
    int covered[GCKPTI_LOWERINGS] = { 0 };
    for (int kind = 0; kind < KINDS; kind++)
        for (int rows = 8; rows < 400; rows *= 6) {
            size z = { kind, rows, 2, rows < 10 ? 4 : 16, kind == LINEAR ? 400 : 3000, READ_LATER };
            net n = net_new(&z);
            gckpt_plan_desc d = { .batch = 0 };
            gckpt_plan *p = gckpt_plan_new(n.g, n.terms, n.count, &d);
            d.schedule.as_built = 1;
            gckpt_plan *built = gckpt_plan_new(n.g, n.terms, n.count, &d);
            const gckpt_plan_info info = gckpt_plan_describe(built);
            CHECK(p && built && p->lowering > 0 && built->lowering == 0 && p->mode == GCKPT_STORE_ALL);
            CHECK(gckpt_plan_describe(p).cost < info.cost || kind != FUSED);
            CHECK(!(gckpt_plan_describe(p).overhead > 0) && !(info.overhead > 0));
            CHECK(gckpt_plan_describe(p).hash == info.hash);
            size_t most = gckpt_plan_bytes(built), least;
            gckpt_plan_free(built);
            d.mode = GCKPT_STORE_ALL;
            d.schedule.as_built = 0;
            built = gckpt_plan_new(n.g, n.terms, n.count, &d);
            CHECK(built && built->lowering == 0 && gckpt_plan_bytes(built) == most);
            uint64_t want = run(&z, built, rows, 0, GCKPT_ISA_AUTO);
            gckpt_plan_free(built);
            d.mode = GCKPT_AUTO;
            gckpt_plan_free(p);
            d.budget = 1;
            CHECK(!gckpt_plan_new(n.g, n.terms, n.count, &d) && gckpt_error(n.g) == GCKPT_E_BUDGET);
            least = util_least_budget(n.g);
            gckpt_frontier *f = gckpt_frontier_new(n.g, n.terms, n.count, &d);
            CHECK(f && least > 1);
            uint64_t before = UINT64_MAX;
            for (int i = -1; i <= 24 && f; i++) {
                d.budget = i < 0 ? least - 1 : least + (most + most / 4 - least) * (size_t)i / 24;
                d.mode = GCKPT_OPTIMAL;
                p = gckpt_plan_new(n.g, n.terms, n.count, &d);
                compare_frontier(f, p, d.budget, n.g);
                CHECK(!p == (i < 0));
                if (!p)
                    continue;
                CHECK(gckpt_plan_bytes(p) <= d.budget && gckpt_plan_describe(p).cost <= before);
                before = gckpt_plan_describe(p).cost;
                d.schedule.as_built = 1;
                built = gckpt_plan_new(n.g, n.terms, n.count, &d);
                CHECK(!built || before <= gckpt_plan_describe(built).cost);
                d.schedule.as_built = 0;
                gckpt_plan_free(built);
                covered[p->lowering]++;
                if (rows < 100)
                    CHECK_MSG(run(&z, p, rows, 0, GCKPT_ISA_AUTO) == want, "kind %d, budget %d", kind, i);
                gckpt_plan_free(p);
            }
            gckpt_point a = { 0 }, b;
            for (int i = 0; gckpt_frontier_get(f, i, &b) == GCKPT_OK; a = b, i++)
                CHECK(i == 0 || (b.bytes > a.bytes && b.cost < a.cost));
            CHECK(a.overhead <= 0);
            gckpt_frontier_free(f);
            util_free(NULL, NULL, n.g, n.s);
        }
/* without the fast kernels, products are computed one row at a time anyway, so these lowerings need not be chosen */
#ifdef GCKPT_NO_FAST
    seen[0] = seen[2] = seen[3] = seen[4] = 1;
#endif
    for (int lowering = 0; lowering < GCKPTI_LOWERINGS; lowering++)
        CHECK_MSG(covered[lowering] > 0, "lowering %d was never chosen", lowering);
}

/* ---- plans printed as C refer to the op descriptors of the lowerings that run, and to no others ---- */
static void test_printed(void)
{
    for (int lowering = 0; lowering < GCKPTI_LOWERINGS; lowering++) {
        size z = { MATMUL, 40, 2, 4, 9, 0 };
        net n = net_new(&z);
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        gckpt_plan *p = plan_of(&n, &d, lowering);
        file f = { 0 };
        CHECK(p && gckpt_plan_c(p, "head", file_write, &f) == GCKPT_OK && f.bytes);
        const char *text = (const char *)f.bytes;
        CHECK(text && !strstr(text, "&gckpti_op_matmul") == (lowering > 0) &&
              !strstr(text, "&gckpti_op_cross") == (lowering > 0) &&
              !strstr(text, "&gckpti_op_linear_cross") == (lowering == 0));
        free(f.bytes);
        util_free(NULL, p, n.g, n.s);
    }
}

/* ---- costs that the caller gives are those of the graph as built; a lowering's costs are derived from them in
 * proportion ---- */
static void test_costs(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        size z = { kind, 40, 2, 4, 2000, 0 };
        net n = net_new(&z);
        gckpt_cost costs[64] = { { 0, 0 } };
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        gckpt_plan *p = gckpt_plan_new(n.g, n.terms, n.count, &d), *q, *thrice;
        CHECK(p && p->node_count <= 64);
        for (size_t i = 0; i < p->node_count; i++) {
            costs[i].forward = 3 * p->info[i].cost.forward;
            costs[i].backward = 3 * p->info[i].cost.backward;
        }
        d.mode = GCKPT_AUTO;
        q = gckpt_plan_new(n.g, n.terms, n.count, &d);
        d.costs.by_id = costs;
        d.costs.count = (int)p->node_count;
        thrice = gckpt_plan_new(n.g, n.terms, n.count, &d);
        CHECK(q && thrice && q->lowering > 0 && thrice->lowering == q->lowering);
        CHECK(thrice->cost <= 3 * q->cost && thrice->cost + 4 >= 3 * q->cost);
        gckpt_plan_free(q);
        gckpt_plan_free(thrice);
        util_free(NULL, p, n.g, n.s);
    }
}

/* Tests losses of logits for which linear_cross_entropy has no lowering: w with three axes, w that depends on the
 * batch, and logits without a batch axis. */
static void test_not_taken(void)
{
    static const int32_t classes[3] = { 1, 0, 4 };
    const gckpt_init normal = { 0.4f, 0, 0 };
    for (int k = 0; k < 4; k++) {
        net n = { .s = gckpt_store_new(NULL), .count = 1 };
        gckpt_graph *g = n.g = gckpt_graph_new(n.s, NULL);
        gckpt_tensor *p = gckpt_param(g, "p", gckpt_shape2(3, 4), normal),
                     *gain = gckpt_param(g, "gain", gckpt_shape1(4), normal);
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(5, 4), normal), *targets, *logits;
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, k ? gckpt_shape2(2, 4) : gckpt_shape3(2, 3, 4));
        x = gckpt_mul(x, gain);
        if (k < 2) {
            gckpt_tensor *fed =
                gckpt_input(g, "w of the batch", GCKPT_F32, k ? gckpt_shape2(2, 4) : gckpt_shape3(2, 5, 4));
            targets = gckpt_input(g, "t", GCKPT_I32, k ? gckpt_shape1(2) : gckpt_shape2(2, 3));
            n.terms[0] = (gckpt_term){ gckpt_cross_entropy(gckpt_matmul_transposed(x, fed), targets, NULL, 0), 1, 0 };
        } else {
            targets = gckpt_constant(g, "t", GCKPT_I32, gckpt_shape1(3), classes);
            logits = k == 2 ? gckpt_matmul_transposed(p, w) : NULL;
            n.terms[0] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(x, x)), 1, 0 };
            n.terms[1] = (gckpt_term){ logits ? gckpt_cross_entropy(logits, targets, NULL, 0)
                                              : gckpt_linear_cross_entropy(p, w, targets, NULL),
                                       1, 1 };
            n.count = 2;
        }
        for (int lowering = 0; lowering < GCKPTI_LOWERINGS; lowering++) {
            gckpt_plan *plan = plan_of(&n, &(gckpt_plan_desc){ .mode = GCKPT_STORE_ALL }, lowering);
            CHECK_MSG((plan != NULL) == !lowering, "case %d, lowering %d", k, lowering);
            gckpt_plan_free(plan);
        }
        util_free(NULL, NULL, n.g, n.s);
    }
}

/* Builds the model of a plan in memory blocks of growing size: each time, either the lowering is available or the
 * planner reports too little memory. */
static void test_block(void)
{
    static union { double align; unsigned char bytes[1 << 16]; } room;
    net n = net_new(&(size){ FUSED, 2, 3, 4, 5, 0 });
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .memory = { .memory = room.bytes, .size = 64 } };
    gckpt_result result = GCKPT_E_MEMORY;
    for (; result != GCKPT_OK && d.memory.size <= sizeof room.bytes; d.memory.size += 64) {
        gckpti_planner p;
        gckpti_allocator memory = gckpti_allocator_of(&d.memory);
        memset(&p, 0, sizeof p);
        p.variant.lowering = 1;
        result = gckpti_planner_open(&p, &memory, n.g, n.terms, n.count, &d);
        CHECK_MSG(result == GCKPT_OK ? !p.unused : result == GCKPT_E_MEMORY, "%lu bytes: %s",
                  (unsigned long)d.memory.size, gckpt_error_text(n.g));
        gckpti_planner_free(&p);
    }
    CHECK(result == GCKPT_OK && d.memory.size > 1024);
    util_free(NULL, NULL, n.g, n.s);
}

/* Tests costs whose products would overflow 64 bits: proportions are rounded down, and costs are limited to the
 * largest one. */
static void test_large_numbers(void)
{
    CHECK(gckpti_mul_div(1 << 20, 5 << 20, UINT64_C(1) << 33) == 640);
    CHECK(gckpti_mul_div(1 << 20, UINT64_C(5) << 40, UINT64_C(1) << 40) == 5 << 20);
    CHECK(gckpti_transfer_cost(UINT64_MAX / 2, 1) == UINT64_MAX / 4);
    CHECK(gckpti_transfer_cost(1 << 30, INT64_MAX) == UINT64_MAX / 4);
    CHECK(gckpti_transfer_cost(1 << 20, 3 << 20) == 3 << 20 && gckpti_transfer_cost(1 << 20, 0) == 0);
}

int main(void)
{
    test_not_taken();
    test_large_numbers();
    test_printed();
    test_costs();
    test_bits();
    test_offered();
    test_choice();
    test_block();
    return check_report("test_lowerings");
}
