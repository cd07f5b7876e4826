/* test_in_place.c - training that reads quantised weights in place, without dequantising them first. Losses,
 * gradients and trained weights have the bits of a net that stores the dequantised values as floats, for each
 * storage, precision, instruction set, number of threads, plan, lowering of the loss and micro-batch. Only weights
 * that some op reads as floats are dequantised into the arena; a model of Llama-3.2-1B's shape fits into the expected
 * bytes. */
#include <stdint.h>

#include "gradckpt.h"
#include "util.h"

enum { STEPS = 2, ROWS = 3, RANK = 2, RESERVE = 8 };
typedef struct { int t, c, h, v; } sizes;

/* ---- quantised weights of shape (rows, columns), and floats of equal value ---- */
typedef struct {
    void *blocks[2 * RESERVE + 2];
    int count;
} weights;

static void *weights_take(weights *w, size_t bytes)
{
    return w->blocks[w->count++] = malloc(bytes);
}
static void weights_free(weights *w)
{
    while (w->count > 0)
        free(w->blocks[--w->count]);
}

/* Creates quantised weights in external memory, with values of about 0.1. The f16 weights include subnormal numbers,
 * zeros and arbitrary numbers below 2; int8 and int4 values begin at an odd address, and some of their scales are
 * subnormal. */
static void external(gckpt_store *s, weights *w, const char *name, int64_t rows, int64_t columns, gckpt_storage storage)
{
    const gckpt_shape shape = rows ? gckpt_shape2(rows, columns) : gckpt_shape1(columns);
    const int64_t n = (rows ? rows : 1) * columns;
    gckpt_result result;
    if (storage >= GCKPT_STORAGE_I8) {
        const int each = storage == GCKPT_STORAGE_I8 ? 34 : 19;
        const int64_t whole = columns / 32 * each, left = columns % 32, row = whole + (left ? 2 + left : 0);
        unsigned char *blocks = (unsigned char *)weights_take(w, (size_t)(row * rows) + 1) + 1;
        const unsigned exponent = storage == GCKPT_STORAGE_I8 ? 0x0e : 0x1e; /* the scales' upper bytes */
        for (int64_t i = 0; i < row * rows; i++)
            blocks[i] = (unsigned char)below(256);
        for (int64_t i = 0; i < row * rows; i = i % row < whole ? i + each : i + 2 + left) /* scales with either sign; some are subnormal or 0 */
            blocks[i + 1] = (unsigned char)((chance(50) ? 0x80 : 0) | (chance(6) ? below(2) : exponent + below(3)));
        result = gckpt_store_external_quantised(s, name, shape, storage, blocks);
    } else {
        uint16_t *halves = (uint16_t *)weights_take(w, (size_t)n * sizeof *halves);
        for (int64_t i = 0; i < n; i++) {
            const uint16_t any = (uint16_t)(below(65536) & 0xbfff),
                           bits = gckpt_to_bf16(((float)below(2001) - 1000) * 1e-4f);
            halves[i] = storage == GCKPT_STORAGE_BF16
                            ? bits
                            : (uint16_t)(0x2000u + below(0x1000) + (chance(50) ? 0x8000u : 0u));
            halves[i] = chance(6) ? any : halves[i];
        }
        result = gckpt_store_external_quantised(s, name, shape, storage, halves);
    }
    CHECK_MSG(result == GCKPT_OK, "%s: %s", name, gckpt_error_text(s));
}

/* ---- a net with every op that reads quantised weights in place, and with some ops that do not ---- */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    weights w;
    gckpt_tensor *tokens, *targets, *middle;
    gckpt_term term;
    sizes z;
    int two; /* nonzero if the head is linear and cross_entropy, 0 if it is linear_cross_entropy */
} net;

static gckpt_tensor *weight(const net *n, const char *name, int64_t rows, int64_t columns)
{
    return gckpt_param(n->g, name, rows ? gckpt_shape2(rows, columns) : gckpt_shape1(columns),
                       (gckpt_init){ rows ? 0.1f : 0, 0, 0 });
}

/* Adds the frozen product x w and a product of x with trained low-rank matrices. */
static gckpt_tensor *adapted(const net *n, gckpt_tensor *x, gckpt_tensor *y, const char *name, int64_t in, int64_t out)
{
    char full[32];
    snprintf(full, sizeof full, "%s.A", name);
    x = gckpt_linear(x, weight(n, full, in, RANK), NULL);
    snprintf(full, sizeof full, "%s.B", name);
    return gckpt_add(y, gckpt_linear(x, weight(n, full, RANK, out), NULL));
}

/* Returns a store with the quantised weights, or if `floats` is nonzero, with floats of equal value. */
static gckpt_store *store_new(weights *w, sizes z, gckpt_storage storage, int floats)
{
    gckpt_store *s = gckpt_store_new(NULL);
    const gckpt_storage halves = storage >= GCKPT_STORAGE_I8 ? GCKPT_STORAGE_BF16 : storage;
    random_state = (uint64_t)z.c + (uint64_t)storage;
    external(s, w, "table", z.v, z.c, storage);
    external(s, w, "places", z.t + 3, z.c, storage);
    external(s, w, "up", z.c, z.h, storage);
    external(s, w, "down", z.c, z.h, storage);
    external(s, w, "mixed", z.c, z.c, storage);
    external(s, w, "turned", z.c, z.c, storage);
    external(s, w, "scaled", z.c, z.c, storage);
    external(s, w, "bias", 0, z.h, halves);
    if (floats)
        CHECK_MSG(gckpt_store_quantise(s, "*", GCKPT_STORAGE_F32) == GCKPT_OK, "%s", gckpt_error_text(s));
    return s;
}

static net net_new(sizes z, int rows, int two, gckpt_storage storage, int floats)
{
    net n = { .z = z, .two = two };
    n.s = store_new(&n.w, z, storage, floats);
    n.g = gckpt_graph_new(n.s, NULL);
    n.tokens = gckpt_input(n.g, "tokens", GCKPT_I32, gckpt_shape2(rows, z.t));
    n.targets = gckpt_input(n.g, "targets", GCKPT_I32, gckpt_shape2(rows, z.t));
    gckpt_tensor *table = weight(&n, "table", z.v, z.c), *scaled = weight(&n, "scaled", z.c, z.c);
    gckpt_tensor *x = gckpt_positions(gckpt_embed(table, n.tokens), weight(&n, "places", z.t + 3, z.c), 0);
    /* a trained parameter at the bottom makes the backward run through every layer */
    x = gckpt_add(x, weight(&n, "prompt", 0, z.c));
    gckpt_tensor *h = gckpt_linear(x, weight(&n, "up", z.c, z.h), weight(&n, "bias", 0, z.h));
    h = gckpt_silu(adapted(&n, x, h, "up", z.c, z.h));
    x = gckpt_add(x, gckpt_linear_transposed(h, weight(&n, "down", z.c, z.h), NULL));
    n.middle = x = gckpt_add(x, gckpt_matmul(x, weight(&n, "mixed", z.c, z.c)));
    x = gckpt_add(x, gckpt_tanh(gckpt_matmul_transposed(x, weight(&n, "turned", z.c, z.c))));
    x = gckpt_add(x, gckpt_linear(x, gckpt_scale(scaled, 0.5f), NULL));
    x = gckpt_add(x, gckpt_matmul(x, scaled));
    h = gckpt_linear(x, weight(&n, "own", z.c, z.h), weight(&n, "bias", 0, z.h)); /* trained, with a quantised bias */
    x = gckpt_rmsnorm(gckpt_add(x, gckpt_linear(h, weight(&n, "back", z.h, z.c), NULL)), NULL, 0);
    n.term.loss = two ? gckpt_cross_entropy(gckpt_linear_transposed(x, table, NULL), n.targets, NULL, 0)
                      : gckpt_linear_cross_entropy(x, table, n.targets, NULL);
    n.term.weight = 1;
    CHECK_MSG(n.term.loss != NULL, "%s", gckpt_error_text(n.g));
    return n;
}
static void net_free(net *n)
{
    util_free(NULL, NULL, n->g, n->s);
    weights_free(&n->w);
}

static int net_feed(const void *user, int64_t row, gckpt_feed *feeds)
{
    static int32_t tokens[ROWS * 256], targets[ROWS * 256];
    const net *n = (const net *)user;
    for (int i = 0; i < ROWS * n->z.t; i++)
        tokens[i] = i * 7919 % n->z.v, targets[i] = i % 11 == 4 ? -1 : i * 31 % n->z.v;
    feeds[0] = (gckpt_feed){ gckpt_id(n->tokens), tokens + row * n->z.t };
    feeds[1] = (gckpt_feed){ gckpt_id(n->targets), targets + row * n->z.t };
    return 2;
}

/* Returns a hash of the losses, of a gradient that was propagated back through all quantised weights, and of the
 * trained values. */
static uint64_t train(const net *n, gckpt_store *s, const gckpt_plan *p, gckpt_exec_desc x, const char *what)
{
    const gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f };
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_exec *e = p ? gckpt_exec_new(p, s, &x) : NULL;
    gckpt_result result = e ? GCKPT_OK : GCKPT_E_ARG;
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        result = util_step(e, net_feed, n, ROWS, 0, 0, &hyper, &report);
        hash = (hash ^ bits_of((float)report.loss)) * 1099511628211u;
        CHECK_MSG(report.loss > 0 && report.loss < 100, "%s: loss %g", what, report.loss);
    }
    CHECK_MSG(result == GCKPT_OK, "%s: %s %s", what, gckpt_error_text(s), gckpt_error_text(e));
    CHECK_MSG(!e || !(x.debug & GCKPT_DEBUG_MEASURE) || gckpt_bytes_measured(e) == gckpt_plan_bytes(p),
              "%s: %lu bytes planned, %lu touched", what, (unsigned long)gckpt_plan_bytes(p),
              (unsigned long)gckpt_bytes_measured(e));
    gckpt_exec_free(e);
    return hash ^ gckpt_store_hash(s);
}

/* Checks that exactly those weights are copied into the arena that some op reads as floats. */
static void check_staged(const net *n, const gckpt_plan *p, const char *what)
{
    gckpt_instruction in;
    gckpt_node node;
    int staged = 0;
    for (int i = 0; p && gckpt_plan_get(p, i, &in) == GCKPT_OK; i++) {
        if (in.kind != GCKPT_FORWARD || !CHECK(gckpt_graph_node(n->g, in.id, &node) == GCKPT_OK) ||
            strcmp(node.op, "param"))
            continue;
        const int scaled = !strcmp(node.name, "scaled");
        CHECK_MSG(scaled || !strcmp(node.name, "bias"), "%s: %s is unpacked", what, node.name);
        staged |= scaled ? 1 : 2;
    }
    CHECK_MSG(staged == 3, "%s: %d: who reads floats finds none", what, staged);
}

enum { STORE_ALL, LEAST, POOR, PLANS };
static gckpt_plan *plan_of(const net *n, gckpt_plan_desc d, int k)
{
    d.mode = k == POOR ? GCKPT_MEMORY_POOR : k == STORE_ALL ? GCKPT_STORE_ALL : GCKPT_OPTIMAL;
    /* for k = LEAST, the budget is the least bytes: those of the graph as built if the head is two ops, else those of
     * the lowerings that take the fewest bytes */
    if (k == LEAST) {
        d.schedule.as_built = n->two;
        d.budget = 1; /* a frontier would take longer */
        CHECK(!gckpt_plan_new(n->g, &n->term, 1, &d));
        d.budget = util_least_budget(n->g);
        CHECK(d.budget > 0);
    }
    gckpt_plan *p = gckpt_plan_new(n->g, &n->term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(n->g));
    return p;
}

typedef struct {
    sizes z;
    gckpt_storage storage;
    gckpt_precision precision;
    int rows, two; /* rows: rows of a micro-batch; two: nonzero if the head is linear and cross_entropy */
} way;

/* Runs one plan with all instruction sets, each time with a new store, and compares each hash with `want`, unless
 * want is 0. Returns the last hash. */
static uint64_t run(const way *y, int floats, int threads, int k, int first, uint64_t want)
{
    net n = net_new(y->z, y->rows, y->two, y->storage, floats);
    const gckpt_fetch_spec fetch = { n.middle, 1 };
    gckpt_plan_desc d = { .batch = ROWS, .bf16.precision = y->precision, .threads = threads, .optimiser = GCKPT_ADAMW };
    d.fetch.specs = &fetch, d.fetch.count = y->rows == ROWS && k == STORE_ALL;
    gckpt_plan *p = plan_of(&n, d, k);
    uint64_t hash = 0;
    for (int isa = first; p && isa < (floats ? first + 1 : GCKPT_ISA_COUNT); isa++) {
        char what[160];
        weights w = { .count = 0 };
        gckpt_exec_desc x = { .isa = (gckpt_isa)isa,
                              .debug = threads == 1 ? GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON : 0,
                              .parallel_for = threads > 1 ? any_order : NULL };
        if (!gckpt_isa_available((gckpt_isa)isa))
            continue;
        snprintf(what, sizeof what, "C %d, storage %d, precision %d, %d rows, two %d, %s, %d threads, plan %d%s",
                 y->z.c, (int)y->storage, (int)y->precision, y->rows, y->two, isa_name((gckpt_isa)isa), threads,
                 k, floats ? ", floats" : "");
        gckpt_store *s = store_new(&w, y->z, y->storage, floats);
        CHECK_MSG(gckpt_plan_params(p, s) == GCKPT_OK, "%s: %s", what, gckpt_error_text(s));
        if (!floats)
            check_staged(&n, p, what);
        hash = train(&n, s, p, x, what);
        CHECK_MSG(!want || hash == want, "%s: other bits", what);
        gckpt_store_free(s);
        weights_free(&w);
    }
    gckpt_plan_free(p);
    net_free(&n);
    return hash;
}

static unsigned sweep; /* counts the cases of test_bits */
/* Compares trainings with quantised weights and with floats. If plain is 0, the slow plain kernels compute only the
 * reference. */
static void test_bits(sizes z, gckpt_storage storage, gckpt_precision precision, int plain)
{
    static const struct { int rows, two; } ways[] = { { ROWS, 0 }, { ROWS, 1 }, { 2, 0 }, { 1, 1 } };
    for (int i = 0; i < 4; i += plain ? 1 : 3) {
        const way y = { z, storage, precision, ways[i].rows, ways[i].two };
        const uint64_t want = run(&y, 1, 1, STORE_ALL, GCKPT_ISA_PLAIN, 0);
        for (int k = 0; k < PLANS; k++)
            for (int threads = 1; threads < 3; threads++)
                if ((threads == 1 + (i + k) % 2 || (plain && k == LEAST && i == 0)) && check_sampled(sweep++, 3))
                    run(&y, 0, threads, k, plain ? GCKPT_ISA_PLAIN : GCKPT_ISA_C, want);
    }
}

/* Returns a hash of the products of one row x with a (n,k) and with b (k,n), as generation has them. */
static uint64_t row_hash(gckpt_store *s, int k, int n, gckpt_isa isa, int threads)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, k));
    const gckpt_fetch_spec fetch[2] = {
        { gckpt_linear_transposed(x, gckpt_param(g, "a", gckpt_shape2(n, k), (gckpt_init){ 0, 0, 0 }), NULL), 0 },
        { gckpt_linear(x, gckpt_param(g, "b", gckpt_shape2(k, n), (gckpt_init){ 0, 0, 0 }), NULL), 0 }
    };
    const gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .threads = threads, .fetch = { .specs = fetch, .count = 2 } };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .isa = isa });
    uint64_t hash = 14695981039346656037u;
    float *values = (float *)malloc((size_t)k * sizeof *values);
    random_state = 1;
    for (int i = 0; i < k; i++)
        values[i] = ((float)below(2001) - 1000) * 1e-3f;
    const gckpt_feed feed = { gckpt_id(x), values };
    CHECK_MSG(gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    for (int i = 0; i < 2; i++) {
        const float *y = gckpt_fetch(e, gckpt_id(fetch[i].tensor), 0);
        for (int j = 0; CHECK(y != NULL) && j < n; j++)
            hash = (hash ^ bits_of(y[j])) * 1099511628211u;
    }
    free(values);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    return hash;
}

/* Compares products of one row with quantised weights and with floats of equal value. Kernels take several columns and
 * whole blocks at once: n and k are also no multiples of these. */
static void test_row(gckpt_storage storage)
{
    static const int all[][2] = { { 96, 160 }, { 64, 71 }, { 80, 129 } };
    for (int i = 0; i < 3; i++) {
        const int k = storage == GCKPT_STORAGE_I4 ? all[i][0] / 32 * 32 : all[i][0];
        const int n = storage == GCKPT_STORAGE_I4 ? all[i][1] / 32 * 32 : all[i][1];
        weights w[2] = { { .count = 0 }, { .count = 0 } };
        gckpt_store *s[2] = { gckpt_store_new(NULL), gckpt_store_new(NULL) };
        for (int f = 0; f < 2; f++) {
            random_state = (uint64_t)(k + n);
            external(s[f], &w[f], "a", n, k, storage);
            external(s[f], &w[f], "b", k, n, storage);
        }
        CHECK_MSG(gckpt_store_quantise(s[1], "*", GCKPT_STORAGE_F32) == GCKPT_OK, "%s", gckpt_error_text(s[1]));
        const uint64_t want = row_hash(s[1], k, n, GCKPT_ISA_PLAIN, 1);
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
            if (gckpt_isa_available((gckpt_isa)isa))
                CHECK_MSG(row_hash(s[0], k, n, (gckpt_isa)isa, 1 + isa % 2) == want, "storage %d, %d x %d, %s",
                          (int)storage, k, n, isa_name((gckpt_isa)isa));
        for (int f = 0; f < 2; f++) {
            gckpt_store_free(s[f]);
            weights_free(&w[f]);
        }
    }
}

int main(void)
{
    static const sizes other[] = { { 5, 24, 33, 37 }, { 33, 70, 47, 1100 }, { 43, 272, 560, 2100 } };
    static const sizes mixed[] = { { 5, 64, 33, 37 }, { 33, 70, 96, 1100 }, { 43, 272, 560, 2100 } }; /* also short blocks */
    static const sizes blocks[] = { { 5, 32, 64, 37 }, { 33, 96, 64, 1100 }, { 43, 288, 544, 2100 } };
    for (int storage = GCKPT_STORAGE_BF16; storage <= GCKPT_STORAGE_I4; storage++)
        test_row((gckpt_storage)storage);
    for (int storage = GCKPT_STORAGE_BF16; storage <= GCKPT_STORAGE_I4; storage++)
        for (int precision = GCKPT_FP32; precision <= GCKPT_BF16; precision++) {
            const sizes *all = storage == GCKPT_STORAGE_I4 ? blocks : storage == GCKPT_STORAGE_I8 ? mixed : other;
            test_bits(all[0], (gckpt_storage)storage, (gckpt_precision)precision, 1);
            if (check_sampled(sweep++, 3))
                test_bits(all[1], (gckpt_storage)storage, (gckpt_precision)precision, 0);
            /* make check draws two of the six by the seed */
            const int drawn = ((unsigned)(2 * storage + precision) + check_seed()) % 3 == 0;
            if (check_iterations(9) > 3 || (check_iterations(9) > 1 && drawn))
                test_bits(all[2], (gckpt_storage)storage, (gckpt_precision)precision, 0);
        }
    return check_report("in_place");
}
