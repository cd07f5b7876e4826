/* test_table.c - tests plans as C constants, and the hash of a plan's graph. A plan compiled from C constants is checked
 * before it runs; tests/firmware/test_firmware.sh compiles such constants. */
#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/plan.h"

#include "examples/print.h"
#include "util.h"

/* Plan hash of the test's graph, equal on every machine. It changes if the needs, flags or saved bytes of its ops
 * change. */
#define GOLDEN UINT64_C(0x6440916ab4e91e48)

/* ---- the test's graph and its variants ---- */
enum { BATCH = 5, ROWS = 2, T = 6, C = 8, V = 40 };
enum { PLAIN_NET, OTHER_WIDTH, OTHER_OP, OTHER_ATTRIBUTE, OTHER_NAME, OTHER_PARAM, OTHER_INPUTS, LONGER, SHORTER,
       OTHER_KEEP, FROZEN, NETS };

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *tokens, *targets, *top;
    gckpt_term terms[2];
} net;

static net net_new(int which, const gckpt_memory *memory)
{
    static const float shift[C] = { 0.5f, -0.25f, 0, 1, 0, -1, 0.125f, 3 };
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_store_desc desc = { 0 };
    if (memory)
        desc.memory = *memory;
    desc.seed = 7;
    net n = { .s = gckpt_store_new(&desc) };
    n.g = gckpt_graph_new(n.s, memory);
    n.tokens = gckpt_input(n.g, which == OTHER_NAME ? "words" : "tokens", GCKPT_I32, gckpt_shape2(ROWS, T));
    n.targets = gckpt_input(n.g, "targets", GCKPT_I32, gckpt_shape2(ROWS, T));
    gckpt_tensor *table = gckpt_param(n.g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_embed(table, n.tokens);
    x = gckpt_add(x, gckpt_constant(n.g, "shift", GCKPT_F32, gckpt_shape1(C), shift));
    for (int i = 0; i < 2; i++) {
        char name[] = "w0";
        name[1] = (char)('0' + i);
        if (i == 1 && which == OTHER_PARAM)
            name[1] = '0';
        gckpt_segment_begin(n.g);
        int64_t width = which == OTHER_WIDTH && i == 1 ? 5 : 3;
        gckpt_tensor *w = gckpt_param(n.g, name, gckpt_shape2(C, width * C), normal);
        gckpt_tensor *a = gckpt_linear(gckpt_layernorm(x, NULL, NULL, 0), w, NULL);
        int64_t begin = which == OTHER_ATTRIBUTE ? i * (C - 1) : i * C;
        gckpt_tensor *b = gckpt_slice(a, -1, begin, begin + 2 * C);
        gckpt_tensor *v = gckpt_param(n.g, i ? "v1" : "v0", gckpt_shape2(2 * C, C), normal);
        b = gckpt_linear(gckpt_gelu(b), v, NULL);
        b = which == OTHER_OP && i == 1 ? gckpt_silu(b) : gckpt_tanh(b);
        x = which == OTHER_INPUTS && i == 1 ? gckpt_add(b, x) : gckpt_add(x, b);
        if (which == OTHER_KEEP && i == 0)
            gckpt_keep(a);
        gckpt_segment_end(n.g);
    }
    if (which == LONGER)
        x = gckpt_scale(x, 2);
    n.top = which == SHORTER ? x : gckpt_name(gckpt_reshape(x, gckpt_shape2(ROWS * T, C)), "top");
    n.terms[0].loss = gckpt_linear_cross_entropy(x, table, n.targets, NULL);
    n.terms[0].weight = 0.7f;
    n.terms[1].loss = gckpt_sum_loss(gckpt_mul(table, table));
    n.terms[1].weight = 0.01f;
    n.terms[1].regulariser = 1;
    if (which == FROZEN)
        gckpt_store_freeze(n.s, "v1", 1);
    return n;
}

static void net_free(net *n)
{
    util_free(NULL, NULL, n->g, n->s);
}

/* Runs a few steps (for an inference plan, forwards) on a new store. Returns a hash of the store, or 0 after an
 * error. */
static uint64_t run(const gckpt_plan *p, unsigned debug, const gckpt_memory *memory)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    int32_t tokens[BATCH * T], targets[BATCH * T];
    gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0, 0, 0, info.update_in_backward ? 0.0f : 1.0f };
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_result result = GCKPT_OK;
    net n = net_new(PLAIN_NET, memory);
    gckpt_exec_desc desc = { 0 };
    if (memory)
        desc.memory = *memory;
    desc.debug = debug | GCKPT_DEBUG_MEASURE;
    gckpt_exec *e = gckpt_exec_new(p, n.s, &desc);
    uint64_t hash = 0;
    for (int step = 0; step < 3 && e && result == GCKPT_OK; step++) {
        for (int i = 0; i < BATCH * T; i++) {
            tokens[i] = (i * 7 + step * 3) % V;
            targets[i] = i % 9 == 4 ? -1 : (i * 5 + step) % V;
        }
        gckpt_feed feeds[2] = { { gckpt_id(n.tokens), tokens }, { gckpt_id(n.targets), targets } };
        int64_t rows = p->batch < BATCH ? p->batch : BATCH;
        result = info.mode == GCKPT_INFERENCE ? gckpt_forward(e, feeds, 2, rows, &report)
                                                       : gckpt_step(e, feeds, 2, rows, &hyper, &report);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
        hash = hash * 31 + gckpt_store_hash(n.s);
        for (size_t i = 0; i < 8; i++)
            hash = (hash ^ ((unsigned char *)&report.loss)[i]) * UINT64_C(0x100000001b3);
    }
    if (e)
        CHECK(gckpt_bytes_measured(e) == gckpt_plan_bytes(p));
    gckpt_exec_free(e);
    net_free(&n);
    return hash;
}

/* ---- plans that are made again ---- */
static gckpt_plan_desc request(int i)
{
    static gckpt_cost costs[100];
    gckpt_plan_desc d = { .mode = i < 5 ? (gckpt_mode)(GCKPT_STORE_ALL + i % 4) : GCKPT_SEGMENTS,
            .batch = BATCH };
    if (i == 5)
        d.mode = GCKPT_INFERENCE;
    if (i == 6)
        d.batch = 0, d.update_in_backward = 1, d.optimiser = GCKPT_MOMENTUM;
    if (i == 7)
        d.kernels.alignment = 4, d.threads = 3, d.kernels.plain = 1;
    if (i == 8)
        d.batch = ROWS, d.optimiser = GCKPT_SGD, d.kernels.alignment = 256;
    if (i == 9) {
        for (int k = 0; k < 100; k++)
            costs[k] = (gckpt_cost){ (uint64_t)(k * k), (uint64_t)(1000 - k) };
        d.costs.by_id = costs;
    }
    return d;
}
enum { REQUESTS = 12 };

static gckpt_plan *request_plan(const net *n, int i)
{
    gckpt_plan_desc d = request(i);
    gckpt_fetch_spec fetches[2];
    memset(fetches, 0, sizeof fetches);
    fetches[0].tensor = n->top;
    fetches[1] = (gckpt_fetch_spec){ n->top, 1 };
    d.costs.count = d.costs.by_id ? (int)n->g->count : 0;
    if (i >= 10) { /* plans under a budget between the least bytes and the bytes of all */
        for (int k = 0; k < 2; k++) {
            size_t budget = d.budget;
            d.mode = k ? GCKPT_STORE_ALL : GCKPT_MEMORY_POOR;
            d.budget = 0;
            gckpt_plan *p = gckpt_plan_new(n->g, n->terms, 2, &d);
            d.budget = budget + gckpt_plan_bytes(p) / 2;
            gckpt_plan_free(p);
        }
        d.mode = i == 10 ? GCKPT_OPTIMAL : GCKPT_AUTO;
    }
    d.fetch.specs = fetches;
    d.fetch.count = d.mode == GCKPT_INFERENCE ? 1 : 2;
    gckpt_plan *p = gckpt_plan_new(n->g, n->terms, 2, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(n->g));
    return p;
}

static int same_text(const gckpt_plan *a, const gckpt_plan *b,
                     gckpt_result (*print)(const gckpt_plan *, gckpt_write_fn, void *))
{
    file x = { 0 };
    file y = { 0 };
    int good = print(a, file_write, &x) == GCKPT_OK && print(b, file_write, &y) == GCKPT_OK &&
               same_file(&x, &y);
    free(x.bytes);
    free(y.bytes);
    return good;
}

static gckpt_result print_c(const gckpt_plan *p, gckpt_write_fn write, void *user)
{
    return gckpt_plan_c(p, "table", write, user);
}

/* Tests that two plans of equal graphs with equal requests are equal and give the same bits. */
static void planned_again(void)
{
    for (int i = 0; i < REQUESTS; i++) {
        net n = net_new(PLAIN_NET, NULL), again = net_new(PLAIN_NET, NULL);
        gckpt_plan *p = request_plan(&n, i), *q = request_plan(&again, i);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        CHECK_MSG(info.hash == GOLDEN, "hash %016llx", (unsigned long long)info.hash);
        CHECK(gckpt_plan_describe(q).hash == GOLDEN);
        CHECK(same_text(p, q, print_plan) && same_text(p, q, print_c));
        net_free(&n);     /* a plan remains valid when its graph is freed */
        net_free(&again);
        uint64_t hash = run(p, 0, NULL);
        CHECK(hash != 0 && run(q, GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE, NULL) == hash);
        gckpt_plan_free(p);
        gckpt_plan_free(q);
    }
}

/* Unusual values of a gckpt_plan_desc: very large batches, and any nonzero number for true. */
static void any_desc(void)
{
    static const int64_t batches[] = { INT64_MAX, INT64_MAX - 1, INT64_C(1) << 60, INT64_C(1) << 28 };
    for (size_t i = 0; i < 6; i++) {
        net n = net_new(PLAIN_NET, NULL);
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        d.batch = i < 4 ? batches[i] : ROWS;
        d.offload.bytes = i < 4 ? 0 : 1 << 16;
        d.offload.cost = 1 << 20;
        d.offload.overlap = i < 4 ? 0 : i == 4 ? 2 : -1;
        gckpt_plan *p = gckpt_plan_new(n.g, n.terms, 2, &d);
        CHECK_MSG(p != NULL, "%d: %s", (int)i, gckpt_error_text(n.g));
#ifndef GCKPT_NO_OFFLOAD
        CHECK(p && p->overlaps_copies == (i >= 4));
#endif
        CHECK(p && gckpt_plan_describe(p).batch == d.batch);
        gckpt_plan_free(p);
        net_free(&n);
    }
}

/* ---- another graph has another hash, unless only policies or frozen parameters differ ---- */
static void other_graphs(void)
{
    for (int i = 1; i < NETS; i++) {
        net other = net_new(i, NULL);
        gckpt_plan *q = gckpt_plan_new(other.g, other.terms, 2, NULL);
        CHECK_MSG(q != NULL && (gckpt_plan_describe(q).hash == GOLDEN) == (i == OTHER_KEEP || i == FROZEN), "net %d", i);
        gckpt_plan_free(q);
        net_free(&other);
    }
}

/* ---- each allocation fails once ---- */
static void every_allocation(void)
{
    net n = net_new(PLAIN_NET, NULL);
    gckpt_plan *p = request_plan(&n, 4);
    int worked = 0;
    for (long i = 1; !worked && i < 1000; i++) { /* gckpt_plan_params must create all parameters or none */
        heap h = { .fail_at = i };
        gckpt_store_desc desc = { .memory = heap_memory(&h) };
        gckpt_store *s = gckpt_store_new(&desc);
        gckpt_result result = gckpt_plan_params(p, s);
        CHECK(result == GCKPT_OK || !s || (result == GCKPT_E_MEMORY && gckpt_store_count(s) == 0));
        worked = result == GCKPT_OK && h.calls < i;
        gckpt_store_free(s);
        CHECK(h.live == 0);
    }
    CHECK(worked);
    gckpt_plan_free(p);
    net_free(&n);
}

/* ---- plans as C constants are checked before use; their parameters are created without a graph ---- */
static void constants(void)
{
    net n = net_new(PLAIN_NET, NULL);
    gckpt_plan *p = request_plan(&n, 2);
    gckpt_plan copy = *p;
    file f = { 0 };
    copy.block = NULL; /* a plan compiled as a C constant has no block to free */
    gckpt_plan_free(&copy);
    CHECK(run(&copy, 0, NULL) == run(p, 0, NULL));
    for (int i = 0; i < 8; i++) {
        static const char *const text[8] = { "another version", "another version", "hash",         "hash",
                                             "threads",         "alignment",       "threads",      "alignment" };
        copy = *p;
        copy.block = NULL; /* as a printed plan */
        copy.format += i == 0;
        copy.contract += i == 1;
        copy.hash += i == 2;
        gckpti_plan_node *nodes = (gckpti_plan_node *)malloc(p->node_count * sizeof *nodes);
        memcpy(nodes, p->nodes, p->node_count * sizeof *nodes);
        copy.nodes = nodes;
        for (size_t k = 0; i == 3 && k < p->node_count; k++)
            if (nodes[k].op == &gckpti_op_tanh)
                nodes[k].op = &gckpti_op_sigmoid;
        copy.threads = i == 4 ? 0 : i == 6 ? 1025 : copy.threads;
        copy.alignment = i == 5 ? 3 : i == 7 ? 48 : copy.alignment;
        CHECK(!gckpt_exec_new(&copy, n.s, NULL) && gckpt_error(n.s) == GCKPT_E_ARG);
        CHECK_MSG(strstr(gckpt_error_text(n.s), text[i]) && strstr(gckpt_error_text(n.s), "print it again"), "%s",
                  gckpt_error_text(n.s));
        CHECK(gckpt_plan_params(&copy, n.s) == GCKPT_E_ARG);
        free(nodes);
    }
    gckpt_store_desc desc = { .seed = 7 };
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_plan_free(p);
    p = request_plan(&n, 2);
    CHECK(gckpt_exec_new(p, s, NULL) == NULL && strstr(gckpt_error_text(s), "gckpt_plan_params"));
    CHECK(gckpt_plan_params(p, s) == GCKPT_OK && gckpt_store_count(s) == gckpt_store_count(n.s));
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(n.s) && gckpt_store_hash(s) != 0);
    for (int i = 0; i < gckpt_store_count(s); i++) {
        gckpt_parameter a, b;
        gckpt_store_get(s, i, &a);
        gckpt_store_get(n.s, i, &b);
        CHECK(!strcmp(a.name, b.name) && a.elements == b.elements && a.decay_scale == b.decay_scale);
        a.values[0] = 5; /* gckpt_plan_params must not change parameters that exist */
    }
    uint64_t hash = gckpt_store_hash(s);
    CHECK(gckpt_plan_params(p, s) == GCKPT_OK && gckpt_store_hash(s) == hash);
    gckpt_store_free(s);
    float own[4] = { 0 };
    s = gckpt_store_new(&desc);
    gckpt_store_external(s, "v1", gckpt_shape2(2, 2), own, 1);
    CHECK(gckpt_plan_params(p, s) == GCKPT_E_SHAPE && gckpt_store_count(s) == 1 && strstr(gckpt_error_text(s), "v1"));
    CHECK(gckpt_plan_params(NULL, s) == GCKPT_E_ARG && gckpt_plan_params(p, NULL) == GCKPT_E_ARG);
    gckpt_store_free(s);
    /* Names that gckpt_plan_c must refuse, because they are no C identifiers or too long. */
    static const char *const bad[] = { "", "9a", "a-b", "\xc3\xa4",
                                       "a234567890123456789012345678901234567890123456789012345678901" };
    for (int i = 0; i < 5; i++) {
        f.size = 0;
        CHECK(gckpt_plan_c(p, bad[i], file_write, &f) == GCKPT_E_ARG && f.size > 6 && !memcmp(f.bytes, "#error", 6));
    }
    CHECK(gckpt_plan_c(NULL, "a", file_write, &f) == GCKPT_E_ARG &&
          gckpt_plan_c(p, NULL, file_write, &f) == GCKPT_E_ARG);
    CHECK(gckpt_plan_c(p, "a", NULL, &f) == GCKPT_E_ARG);
    f.size = 0;
    CHECK(gckpt_plan_c(p, "a", file_write, &f) == GCKPT_OK && file_write(&f, "", 1) == 1);
    char *at = strstr((char *)f.bytes, "a_names[] = {"), life[200]; /* checks each byte of a name, each live range */
    for (size_t i = 0; i < p->name_bytes && at; i++) {
        at = strstr(at, "'\\");
        CHECK(at && strtol(at + 2, &at, 8) == (unsigned char)p->names[i] && *at == '\'');
    }
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *b = &p->buffers[i];
        snprintf(life, sizeof life, "{ %d, %d, %lu, %lu, %d, (gckpt_buffer_kind)%d }", b->start, b->end,
                 (unsigned long)b->offset, (unsigned long)b->size, b->id, (int)b->kind);
        CHECK_MSG(strstr((char *)f.bytes, life) != NULL, "life %d: %s", (int)i, life);
    }
    for (size_t limit = 1; limit < f.size; limit += 997) {
        file g = { .limit = limit };
        CHECK(gckpt_plan_c(p, "a", file_write, &g) == GCKPT_E_FILE);
        free(g.bytes);
    }
    gckpt_plan_free(p);
    gckpt_op odd = gckpti_op_relu; /* a user-defined op whose name is no C identifier */
    odd.name = "my op";
    gckpt_tensor *x = gckpt_apply(&odd, &n.top, 1, NULL, 0);
    gckpt_term term = { gckpt_sum_loss(x), 1, 0 };
    p = gckpt_plan_new(n.g, &term, 1, NULL);
    f.size = 0;
    CHECK(p && gckpt_plan_c(p, "a", file_write, &f) == GCKPT_E_ARG && !memcmp(f.bytes, "#error", 6));
    gckpt_plan_free(p);
    net_free(&n);
    free(f.bytes);
}

static int says(const gckpt_plan *p, const char *what)
{
    file f = { 0 };
    const int good = p && gckpt_plan_c(p, "a", file_write, &f) == GCKPT_OK;
    file_write(&f, "", 1);
    const int found = good && strstr((char *)f.bytes, what);
    free(f.bytes);
    return found;
}

/* A plan printed as C lists the features that a build needs to run it: exactly those that its tensors use, including
 * the first and the last feature of the list. */
static void needs(void)
{
    static const char refusal[] = "#ifdef GCKPT_%s\n#error \"plan a: ";
    const gckpt_init normal = { 0.3f, 0, 0 };
    for (int kind = 0; kind < 6; kind++) {
#ifdef GCKPT_NO_BF16
        if (kind == 2)
            continue;
#endif
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 3, 4));
        gckpt_tensor *y = x;
        if (kind == 1)
            y = gckpt_lstm(x, gckpt_param(g, "wx", gckpt_shape2(4, 12), normal),
                           gckpt_param(g, "wh", gckpt_shape2(3, 12), normal), NULL, NULL);
        else if (kind == 4)
            y = gckpt_rotary(gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(4), normal)),
                             &(gckpt_rotary_desc){ .heads = 2 });
        else
            y = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(4), normal));
        y = kind == 5 ? gckpt_sin(y) : y;
        gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
        gckpt_plan_desc d = { .bf16.precision = kind == 2 ? GCKPT_BF16 : GCKPT_FP32,
                              .mode = kind == 3 ? GCKPT_INFERENCE : GCKPT_STORE_ALL };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
        static const struct {
            const char *what;
            int kinds;
        } all[] = { { "NO_RECURRENT", 2 }, { "NO_IMAGES", 0 },    { "NO_BF16", 4 }, { "NO_TRAINING", 55 },
                    { "NO_AXES", 0 },      { "NO_ATTENTION", 16 }, { "NO_LOSSES", 0 }, { "NO_CACHES", 0 }, { "SMALL", 4 },
                    { "NO_ACTIVATIONS", 32 } };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            char text[80];
            snprintf(text, sizeof text, refusal, all[i].what);
            CHECK_MSG(says(p, text) == (all[i].kinds >> kind & 1), "kind %d: %s", kind, all[i].what);
        }
        gckpt_plan_free(p);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
}

/* Tests printing of plans that are too large for GCKPT_SMALL or made for another backend or several processes, and of
 * inputs whose names collide with names that the printed plan defines. */
static void beyond(void)
{
    static const char small[] = "#ifdef GCKPT_SMALL\n#error \"plan a: GCKPT_SMALL is for";
    net n = net_new(PLAIN_NET, NULL);
    gckpt_plan *p = request_plan(&n, 2);
    file f = { 0 };
    CHECK(!says(p, small));
    for (int i = 0; i < 6; i++) {
        gckpt_plan copy = *p;
        copy.host_bytes = i == 0 ? 64 : copy.host_bytes;
        copy.virtual_ranks = i == 1 ? 2 : copy.virtual_ranks;
        copy.batch = i == 2 ? (int64_t)INT32_MAX + 1 : copy.batch;
        copy.backend_id = i == 3 ? GCKPTI_BACKEND_PLAIN + 1 : copy.backend_id;
        copy.ranks = i == 4 ? 2 : copy.ranks;
        copy.info = i == 5 ? NULL : copy.info;
        if (i < 3) {
            CHECK_MSG(says(&copy, small), "%d", i);
            continue;
        }
        if (i == 4 && !GCKPTI_RUNS_RANKS) /* a build without ranks has no such plan */
            continue;
        f.size = 0;
        CHECK(gckpt_plan_c(&copy, "a", file_write, &f) == GCKPT_E_ARG && (i == 5) == !f.size);
        file_write(&f, "", 1);
        CHECK(i == 5 || strstr((char *)f.bytes, i == 3 ? "other than the CPU" : "several processes"));
    }
    for (int i = 0; i < 2; i++) { /* a printed plan checks that SIZE_MAX covers its bytes, arena or offloaded */
        gckpt_plan copy = *p;
        char want[60];
        copy.host_bytes = i ? SIZE_MAX / 3 : 64;
        snprintf(want, sizeof want, "#if SIZE_MAX / 16 < %lu\n",
                 (unsigned long)(i ? copy.host_bytes : gckpt_plan_bytes(p)));
        CHECK_MSG(says(&copy, want), "%s", want);
    }
    gckpt_plan_free(p);
    net_free(&n);
    /* The names of 4 inputs: two that the printed plan uses itself, one without ASCII letters, one with a character
     * that C does not allow. In addition, a parameter name whose bytes exceed a 16-bit count. */
    static const char *const names[] = { "store_bytes", "\xc3\xa4", "x1:", "exec_bytes" };
    static const char *const labels[] = { "a_store_bytes__0 = 0", "a___ = 0", "a_x1_ = 0", "a_exec_bytes__0 = 0",
                                          "a_x = 0" };
    char *name = (char *)malloc(66001);
    memset(name, 'n', 66000);
    name[66000] = 0;
    for (int i = 0; i < 5; i++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        const gckpt_init normal = { 0.3f, 0, 0 };
        gckpt_tensor *x = gckpt_input(g, i < 4 ? names[i] : "x", GCKPT_F32, gckpt_shape2(2, 4));
        gckpt_tensor *y = gckpt_mul(x, gckpt_param(g, i < 4 ? "w" : name, gckpt_shape1(4), normal));
        gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
        const gckpt_fetch_spec fetch = { y, 0 }; /* a tensor without a name prints as its op's kind and number */
        const gckpt_plan_desc d = { .fetch.specs = &fetch, .fetch.count = 1 };
        p = gckpt_plan_new(g, &term, 1, &d);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
        CHECK(says(p, small) == (i == 4) && says(p, ",\n    a_mul_2 = 2\n"));
        CHECK(says(p, labels[i]));
        gckpt_plan_free(p);
        util_free(NULL, NULL, g, s);
    }
    free(name);
    free(f.bytes);
}

/* A plan with desc.kernels.plain has workspace for plain kernels only: it needs at most as many bytes as a plan for
 * fast kernels, and its results have the same bits. */
static void plain(void)
{
    net n = net_new(PLAIN_NET, NULL);
    gckpt_plan_desc d = { .batch = BATCH };
    gckpt_plan *fast = gckpt_plan_new(n.g, n.terms, 2, &d);
    const gckpt_plan_info fast_info = gckpt_plan_describe(fast);
    d.kernels.plain = 1;
    gckpt_plan *small = gckpt_plan_new(n.g, n.terms, 2, &d);
    const gckpt_plan_info info = gckpt_plan_describe(small);
    CHECK(fast && small && info.arena <= fast_info.arena);
    CHECK(run(small, 0, NULL) == run(fast, 0, NULL) &&
          run(fast, GCKPT_DEBUG_PLAIN, NULL) == run(small, GCKPT_DEBUG_PLAIN, NULL));
#ifdef GCKPT_NO_FAST
    CHECK(info.arena == fast_info.arena);
    gckpt_plan copy = *small;
    copy.made_for = GCKPTI_BACKEND_CPU;
    CHECK(!gckpt_exec_new(&copy, n.s, NULL) && strstr(gckpt_error_text(n.s), "plain = 1"));
#endif
    gckpt_plan_free(fast);
    gckpt_plan_free(small);
    net_free(&n);
}

int main(void)
{
    planned_again();
    any_desc();
    other_graphs();
    every_allocation();
    constants();
    needs();
    beyond();
    plain();
    return check_report("test_table");
}
