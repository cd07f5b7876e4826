/* test_blocks.c - objects in blocks of memory instead of on a heap, for random graphs, plans and options. The bytes
 * that gckpt_store_need and gckpt_exec_need return suffice at every alignment of the block, and one byte less fails
 * at the worst alignment. */
#include "store/store.h"
#include "plan/plan.h"
#include "run/run.h"
#include "backend.h"
#include "net.h"

enum { SPACE = 16 << 20, WORST = 1, PATTERN = 0x5a };
static union {
    unsigned char bytes[SPACE];
    double aligned;
} space;

/* Returns a block that begins `past` bytes after a multiple of 16. */
static gckpt_memory block_at(size_t past, size_t size)
{
    size_t base = (16 - (uintptr_t)space.bytes % 16) % 16 + past;
    gckpt_memory m = { .memory = space.bytes + base, .size = size };
    if (!CHECK_MSG(size < SPACE - 128, "%zu bytes", size))
        exit(check_report("blocks"));
    memset(space.bytes, PATTERN, base + size + 64);
    return m;
}

/* Returns whether the bytes before and after the block are unchanged. */
static int untouched(const gckpt_memory *m)
{
    const unsigned char *first = (const unsigned char *)m->memory;
    int same = first == space.bytes || first[-1] == PATTERN;
    for (size_t i = 0; i < 64; i++)
        same = same && first[m->size + i] == PATTERN;
    return same;
}

static void own_optimiser(void *user, const gckpt_update *u) { (void)user, (void)u; }
static size_t offload_out(void *user, size_t at, const void *from, size_t bytes)
{
    return (void)user, (void)at, (void)from, bytes;
}
static size_t reload_in(void *user, size_t at, void *to, size_t bytes)
{
    (void)user, (void)at;
    return memset(to, 0, bytes) ? bytes : 0;
}

/* ---- stores ---- */
/* Returns whether a store with the plan's parameters fits into a block of `size` bytes. If graph is nonzero, the
 * parameters are created by building the graph in that store; if 0, by gckpt_plan_params. */
static int store_fits(const gckpt_plan *p, size_t past, size_t size, int graph)
{
    gckpt_memory m = block_at(past, size);
    gckpt_store_desc desc = { m, 3 };
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_graph *g = graph ? gckpt_graph_new(s, NULL) : NULL;
    gckpt_result made = s ? GCKPT_OK : GCKPT_E_MEMORY;
    for (int i = 0; i < gckpt_store_count(net.s) && s && made == GCKPT_OK; i++) {
        gckpt_parameter q;
        gckpt_store_peek(net.s, i, &q);
        if (net.s->params[i].external && q.values)
            made = gckpt_store_external(s, q.name, q.shape, q.values, 1);
        else if (net.s->params[i].external)
            made = gckpt_store_external_quantised(s, q.name, q.shape, q.storage, q.quantised);
        else if (graph)
            made =
                gckpt_param(g, q.name, q.shape, net.s->params[i].init) ? GCKPT_OK : gckpt_error(g);
        if (graph && made == GCKPT_OK && q.frozen)
            made = gckpt_store_freeze(s, q.name, 1);
        if (graph && made == GCKPT_OK && q.storage != GCKPT_STORAGE_F32 &&
            !net.s->params[i].external)
            made = gckpt_store_quantise(s, q.name, q.storage);
    }
    if (s && !graph && made == GCKPT_OK)
        made = gckpt_plan_params(p, s);
    gckpt_exec_desc x = { .custom_optimiser = own_optimiser };
    gckpt_exec *e = made == GCKPT_OK ? gckpt_exec_new(p, s, &x) : NULL;
    CHECK_MSG(!s || e || gckpt_error(s) == GCKPT_E_MEMORY || made == GCKPT_E_MEMORY, "%s",
              gckpt_error_text(s));
    CHECK(untouched(&m));
    int fits = e != NULL;
    util_free(e, NULL, g, s);
    return fits;
}

static void test_store(const gckpt_plan *p)
{
    size_t need = gckpt_store_need(p);
    for (int graph = 0; graph < 2; graph++) {
        for (size_t past = 0; past < 16; past += 5)
            CHECK_MSG(store_fits(p, past, need, graph), "%zu bytes at %zu, graph %d", need, past,
                      graph);
        CHECK_MSG(store_fits(p, WORST, need, graph), "%zu bytes, graph %d", need, graph);
        CHECK_MSG(!store_fits(p, WORST, need - 1, graph),
                  "%zu bytes are more than is needed, graph %d", need, graph);
    }
}

/* ---- executors ---- */
static int exec_fits(const gckpt_plan *p, gckpt_exec_desc x, size_t past, size_t size)
{
    x.memory = block_at(past, size);
    gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
    CHECK_MSG(e || gckpt_error(net.s) == GCKPT_E_MEMORY, "%s", gckpt_error_text(net.s));
    CHECK(untouched(&x.memory));
    gckpt_exec_free(e);
    return e != NULL;
}

static void test_exec(const gckpt_plan *p, const gckpt_exec_desc *x)
{
    size_t need = gckpt_exec_need(p, x);
    for (size_t past = 0; past < 16; past += 5)
        CHECK_MSG(exec_fits(p, *x, past, need), "%zu bytes at %zu: %s", need, past,
                  gckpt_error_text(net.s));
    CHECK(exec_fits(p, *x, WORST, need));
    CHECK_MSG(!exec_fits(p, *x, WORST, need - 1), "%zu bytes are more than is needed", need);
}

/* ---- numbers in error texts ---- */
/* Returns the number that precedes `after` in the object's error text. */
static size_t reported(const void *object, const char *after)
{
    const char *text = gckpt_error_text(object), *at = strstr(text, after);
    CHECK_MSG(at != NULL, "%s", text);
    while (at && at > text && at[-1] != ' ')
        at--;
    return at ? (size_t)strtoull(at, NULL, 10) : 0;
}

static gckpt_tensor *some_param(gckpt_graph *g, int i)
{
    char name[16];
    snprintf(name, sizeof name, "weight%d", i);
    return gckpt_param(g, name, gckpt_shape2(5, 7), (gckpt_init){ 1, 0, 0 });
}

/* Tests stores and executors in blocks that are too small, from the least size up: each error text names the size of
 * the block and a number of bytes that suffices. */
static void test_reported(const gckpt_plan *p)
{
    gckpt_exec_desc x = { .custom_optimiser = own_optimiser };
    for (size_t past = 0; past < 2; past++)
        for (size_t size = gckpt_store_need(NULL), would = size; would; size += size / 7 + 1) {
            gckpt_store_desc desc = { block_at(past, size), 3 };
            gckpt_store *s = gckpt_store_new(&desc);
            CHECK(s != NULL);
            const int made = gckpt_plan_params(p, s) == GCKPT_OK;
            gckpt_exec *e = made ? gckpt_exec_new(p, s, &x) : NULL;
            would = e ? 0 : reported(s, " would do");
            CHECK(e || (gckpt_error(s) == GCKPT_E_MEMORY && reported(s, " bytes, ") == size &&
                        would > size));
            CHECK_MSG(e || store_fits(p, past, would, 0), "%zu bytes of %zu", would,
                      gckpt_store_need(p));
            gckpt_exec_free(e);
        }
    size_t need = gckpt_exec_need(p, &x);
    for (size_t size = 1; size < need - 15; size += size / 3 + 1) {
        x.memory = block_at(0, size);
        CHECK(gckpt_exec_new(p, net.s, &x) == NULL);
        CHECK_MSG(gckpt_error(net.s) == GCKPT_E_MEMORY && reported(net.s, " would do") == need &&
                      reported(net.s, " bytes, ") == size,
                  "%s", gckpt_error_text(net.s));
    }
}

static void test_texts(void)
{
    gckpt_store_desc desc = { block_at(0, 100), 0 };
    CHECK(gckpt_store_new(&desc) == NULL &&
          strstr(gckpt_error_text(NULL), "gckpt_store_need(NULL)"));
    desc.memory = block_at(0, gckpt_store_need(NULL) - 15);
    gckpt_store *s = gckpt_store_new(&desc);
    CHECK(s && gckpt_store_external(s, "w", gckpt_shape1(1), (float *)&space, 0) == GCKPT_E_MEMORY);
    CHECK(strstr(gckpt_error_text(s), "no memory for its entry; the store's block has ") != NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    CHECK(some_param(g, 0) == NULL && gckpt_error(g) == GCKPT_E_MEMORY);
    CHECK(strstr(
              gckpt_error_text(g),
              "param \"weight0\": the store has no memory for 35 floats; the store's block has ") &&
          strstr(gckpt_error_text(g), " bytes, so far it takes "));
    CHECK(gckpt_store_set_note(s, "a", "b") == GCKPT_E_MEMORY &&
          strstr(gckpt_error_text(s), "so far it takes "));
    gckpt_graph_free(g);
    /* if the block of a graph or plan is full, the error text names the bytes taken so far */
    static double other[1 << 12];
    gckpt_memory m = { .memory = other, .size = 100 };
    gckpt_store *other_store = gckpt_store_new(NULL);
    CHECK(gckpt_graph_new(other_store, &m) == NULL &&
          strstr(gckpt_error_text(other_store),
                 "; the graph's block has 100 bytes, so far it takes "));
    m.size = sizeof other;
    g = gckpt_graph_new(other_store, &m);
    gckpt_tensor *t = some_param(g, 0);
    while (t)
        t = gckpt_relu(t);
    CHECK(gckpt_error(g) == GCKPT_E_MEMORY &&
          strstr(gckpt_error_text(g), "; the graph's block has 32768 bytes, so far it takes "));
    gckpt_graph_free(g);
    g = gckpt_graph_new(other_store, NULL);
    t = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(3, 5));
    gckpt_term term = { gckpt_sum_loss(gckpt_linear(t, some_param(g, 0), NULL)), 1, 0 };
    gckpt_plan_desc d = { .memory = { .memory = other, .size = 1000 } };
    CHECK(gckpt_plan_new(g, &term, 1, &d) == NULL && gckpt_error(g) == GCKPT_E_MEMORY);
    CHECK_MSG(strstr(gckpt_error_text(g), "; the plan's block has 1000 bytes, so far it takes "),
              "%s", gckpt_error_text(g));
    /* a store whose block has no space for the values of a parameter */
    gckpt_parameter q;
    gckpt_store_desc small = { block_at(0, gckpt_store_need(NULL) + sizeof(gckpti_param) + 20), 0 };
    gckpt_store *values = gckpt_store_new(&small);
    gckpt_graph *h = gckpt_graph_new(values, NULL);
    CHECK(some_param(h, 0) && gckpt_store_get(values, 0, &q) == GCKPT_E_MEMORY);
    CHECK(strstr(gckpt_error_text(values), "140 bytes; the store's block has ") != NULL);
    gckpt_graph_free(h);
    gckpt_graph_free(g);
    gckpt_store_free(other_store);
}

/* Returns the value of the expression for the needed bytes in the C code of a printed plan, with this compiler's
 * sizes; returns 0 if the expression has another form or does not count the plan's structures correctly. */
static size_t printed_bytes(const gckpt_plan *p, const char *text)
{
    size_t kept = 0, bytes = 0, n, i;
    while (kept < p->param_count)
        kept = gckpti_next_capacity(kept, 1);
    const struct { const char *name; size_t bytes, n; } types[] = {
        { "gckpt_store", sizeof(gckpt_store), 1 },
        { "gckpti_param", sizeof(gckpti_param), kept },
        { "gckpt_exec", sizeof(gckpt_exec), 1 },
        { "gckpti_exec_node", sizeof(gckpti_exec_node), p->node_count },
        { "gckpti_exec_param", sizeof(gckpti_exec_param), p->param_count },
        { "gckpti_exec_input", sizeof(gckpti_exec_input), p->inputs },
        { "gckpti_exec_term", sizeof(gckpti_exec_term), p->term_count },
        { "gckpti_exec_fetch", sizeof(gckpti_exec_fetch), p->fetch_count },
        { "gckpti_process_group", sizeof(gckpti_process_group), p->virtual_ranks > 1 },
    };
    char type[32];
    int read = 0;
    while (sscanf(text, "(%zu * sizeof(%31[a-z_0-9]) + 15) / 16 * 16 + %n", &n, type, &read) == 2 && read) {
        for (i = 0; i < sizeof types / sizeof *types && strcmp(types[i].name, type); i++)
            continue;
        if (i == sizeof types / sizeof *types || n != types[i].n)
            return 0;
        bytes += (n * types[i].bytes + 15) / 16 * 16;
        text += read;
        read = 0;
    }
    return sscanf(text, "%zu)", &n) == 1 ? bytes + n : 0;
}

/* Tests that the bytes in the C code of a printed plan suffice on a device that reads the plan in place. Inputs whose
 * names would collide with these macros get other names. */
static void test_printed(int more)
{
    file f = { 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "store bytes", GCKPT_F32, gckpt_shape2(3, 5));
    gckpt_tensor *y = gckpt_input(g, "exec_bytes", GCKPT_F32, gckpt_shape2(3, 7));
    const gckpt_fetch_spec fetch = { gckpt_linear(x, some_param(g, 0), NULL), 0 };
    gckpt_term term = { gckpt_mean_squared_error(fetch.tensor, y, NULL), 1, 0 };
    gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .custom_state = 2 };
    if (more) /* with `more`, the plan has further kinds of structures */
        d = (gckpt_plan_desc){ .batch = 6, .ranks.virtual_ranks = 2, .bf16.precision = GCKPT_BF16,
                               .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK_MSG(p && gckpt_plan_c(p, "m", file_write, &f) == GCKPT_OK, "%s", gckpt_error_text(g));
    CHECK(!more || (p->virtual_ranks > 1 && p->fetch_count == 1));
    gckpt_plan constant = *p;
    constant.block = NULL;
    size_t exec = gckpt_exec_need(&constant, NULL);
    CHECK(exec < gckpt_exec_need(p, NULL) && exec > gckpt_plan_describe(p).arena);
    const char *ids = strstr((char *)f.bytes, "enum {\n    m_store_bytes__0 = 0,\n    m_exec_bytes__1 = 1");
    const char *in_store = "\n#define m_store_bytes (", *in_exec = "\n#define m_exec_bytes (";
    const char *at = ids ? strstr(ids, in_store) : NULL;
    CHECK_MSG(at && printed_bytes(p, at + strlen(in_store)) == gckpt_store_need(p), "%.2000s", (char *)f.bytes);
    at = ids ? strstr(ids, in_exec) : NULL;
    CHECK_MSG(at && printed_bytes(p, at + strlen(in_exec)) == exec, "%.2000s", (char *)f.bytes);
    free(f.bytes);
    util_free(NULL, p, g, s);
}

/* Tests a backend with separate memory: the block holds only the objects that stay on the host. */
static void test_own_memory(unsigned seed)
{
    static device d;
    gckpt_backend b;
    if (!device_start(&d, &b, "device", GCKPT_ISA_PLAIN))
        return;
    random_state = seed;
    net_fill();
    build(seed, 0);
    gckpt_plan_desc desc = { .batch = 2 * net.batch, .backend = &b };
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &desc);
    gckpt_exec_desc x = { .backend = &b };
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(net.g));
    /* a backend without a kernel for linear gets memory for operands, on which the processor's kernel runs */
    d.missing = seed % 3 ? "linear" : NULL;
    test_exec(p, &x);
    CHECK(gckpt_exec_need(p, NULL) == SIZE_MAX);
    size_t need = gckpt_store_need(p);
    gckpt_store_desc in_block = { block_at(WORST, need), 0 };
    gckpt_store *s = gckpt_store_new(&in_block);
    CHECK(gckpt_plan_params(p, s) == GCKPT_OK);
    gckpt_exec *e = gckpt_exec_new(p, s, &x);
    CHECK_MSG(e != NULL, "%zu bytes: %s", need, gckpt_error_text(s));
    util_free(e, p, NULL, s);
    destroy();
    device_end(&d);
}

/* The tests below have parameters that are frozen and quantised, and parameters in memory of the program. */
static float flash[1 << 16];
static void change_store(void)
{
    for (int i = 1; i < gckpt_store_count(net.s); i++) {
        gckpt_parameter q;
        gckpt_store_peek(net.s, i, &q);
        if (chance(15) && gckpt_store_freeze(net.s, q.name, 1) == GCKPT_OK)
            CHECK(gckpt_store_quantise(net.s, q.name, (gckpt_storage)(1 + below(3))) == GCKPT_OK);
        else if (chance(15) && q.elements <= (int64_t)(sizeof flash / sizeof *flash)) {
            /* makes the parameter external, without the values that the store has allocated */
            gckpti_values_free(net.s, &net.s->params[i]);
            net.s->params[i].external = 1;
            net.s->params[i].p.values = flash;
            net.s->elements -= (size_t)q.elements;
        }
    }
}

static void test_random(unsigned seed)
{
    random_state = seed;
    net_fill();
    build(seed, 0);
    random_state = seed * 31 + 7;
    change_store();
    gckpt_fetch_spec fetch = { net.pool[0], 0 };
    gckpt_plan_desc d = { .batch = net.batch * (1 + (int64_t)below(3)),
                          .optimiser = (gckpt_optimiser)below(4),
                          .custom_state = 3,
                          .threads = 1 + (int)below(3),
                          .kernels.alignment = (size_t)4 << below(6),
                          .kernels.stage_parameters = chance(20),
                          .kernels.plain = chance(50),
                          .bf16.precision = (gckpt_precision)below(2),
                          .fetch.specs = &fetch,
                          .fetch.count = chance(50) };
    if (chance(25))
        d.mode = GCKPT_MEMORY_POOR;
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    if (p && chance(40)) {
        d.mode = GCKPT_AUTO;
        d.budget = gckpt_plan_bytes(p) - gckpt_plan_describe(p).arena / 4;
        d.offload.bytes = 1 << 16;
        gckpt_plan *q = gckpt_plan_new(net.g, net.term, net.terms, &d);
        if (q) {
            gckpt_plan_free(p);
            p = q;
        }
    }
    if (!CHECK_MSG(p != NULL, "%s", gckpt_error_text(net.g)))
        exit(check_report("blocks"));
    test_store(p);
    static double arena[1 << 16];
    gckpt_exec_desc x = { .custom_optimiser = own_optimiser };
    test_exec(p, &x);
    if (seed % 8 == 0)
        test_reported(p);
    (void)chance(50);
    x.skip_nonfinite = chance(50);
    x.debug = below(16);
    if (chance(30) && gckpt_plan_describe(p).arena + 128 < sizeof arena) {
        uintptr_t past = (uintptr_t)arena % 128;
        x.arena = (unsigned char *)arena + (128 - past) % 128;
        x.arena_size = sizeof arena - 128;
    }
    if (chance(50))
        x.offload = offload_out, x.reload = reload_in;
    test_exec(p, &x);
    gckpt_plan_free(p);
    destroy();
}

int main(void)
{
    test_texts();
    test_printed(0);
    test_printed(1);
    for (unsigned seed = 1; seed <= 6; seed++)
        test_own_memory(seed);
    for (unsigned first = check_seed(), seed = first; seed < first + (unsigned)check_iterations(60); seed++)
        test_random(seed);
    return check_report("blocks");
}
