/* test_values.c - when parameters get their initial values, and which objects may be freed first. Building a graph
 * and planning allocate no memory for values. Whichever call initialises values, in whatever order, the bits are the
 * same, and either all values are allocated or none. Calls with a const store allocate and change nothing. Plans and
 * stores may be freed before their executors. Also tests gradcheck, which must report where rounding
 * hides an error, and never accept a wrong gradient. */
#define INITIAL_VALUES_REFUSED
#include "store/store.h"
#include "export/export.h"

#include <math.h>

#include "examples/gradcheck.h"
#include "util.h"

/* For builds with sanitizers: lets malloc return NULL for a size beyond the heap, as it does without a sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__msan_default_options(void);
const char *__msan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

static gckpt_memory memory_of(heap *h)
{
    memset(h, 0, sizeof *h);
    return heap_memory(h);
}

static gckpt_store *store_in(const gckpt_memory *memory)
{
    gckpt_store_desc d;
    memset(&d, 0, sizeof d);
    if (memory)
        d.memory = *memory;
    d.seed = 7;
    return gckpt_store_new(&d);
}

/* ---- a small model with every kind of initial value ---- */
enum { ROWS = 2, IN = 5, WIDE = 201, PARAMS = 5 };
static const char *const names[PARAMS] = { "w", "b", "gain", "v", "odd" };
static float x_data[ROWS * IN], y_data[ROWS];

typedef struct {
    gckpt_graph *g;
    gckpt_tensor *top;
    gckpt_term loss;
    gckpt_feed feeds[2];
} net;

static int build_net(net *n, gckpt_store *s, int64_t rows)
{
    gckpt_init normal = { 0.3f, 0, 0 }, both = { 0.1f, 0.2f, 0.5f }, one = { 0, 0, 1 },
               flat = { 0, 0.4f, 0 }, zero = { 0, 0, 0 };
    gckpt_graph *g = n->g ? n->g : gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, IN));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, 1));
    gckpt_tensor *w = gckpt_param(g, names[0], gckpt_shape2(IN, WIDE), normal);
    gckpt_tensor *b = gckpt_param(g, names[1], gckpt_shape1(WIDE), zero);
    gckpt_tensor *gain = gckpt_param(g, names[2], gckpt_shape1(WIDE), one);
    gckpt_tensor *v = gckpt_param(g, names[3], gckpt_shape2(WIDE, 1), both);
    gckpt_tensor *odd = gckpt_param(g, names[4], gckpt_shape1(1), flat);
    gckpt_tensor *h = gckpt_mul(gckpt_tanh(gckpt_linear(x, w, b)), gain);
    memset(n, 0, sizeof *n);
    n->g = g;
    n->top = gckpt_linear(h, v, odd);
    n->loss.loss = gckpt_mean_squared_error(n->top, y, NULL);
    n->loss.weight = 1;
    n->feeds[0].input = gckpt_id(x), n->feeds[0].data = x_data;
    n->feeds[1].input = gckpt_id(y), n->feeds[1].data = y_data;
    return n->loss.loss != NULL;
}

static int build_rows(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    net n;
    (void)user;
    memset(&n, 0, sizeof n);
    n.g = g;
    CHECK(build_net(&n, NULL, rows));
    terms[0] = n.loss;
    return 1;
}

static net net_in(gckpt_store *s)
{
    net n;
    memset(&n, 0, sizeof n);
    CHECK(build_net(&n, s, ROWS));
    return n;
}

static gckpt_plan *plan_of(const net *n, gckpt_optimiser optimiser)
{
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    d.optimiser = optimiser;
    return gckpt_plan_new(n->g, &n->loss, 1, &d);
}

static int count_initialised(const gckpt_store *s) /* returns the number of parameters with values */
{
    gckpt_parameter p;
    int n = 0;
    for (int i = 0; gckpt_store_peek(s, i, &p) == GCKPT_OK; i++)
        n += p.values != NULL;
    return n;
}

/* hash of the model's values, from a version in which gckpt_param initialised them at once */
static const uint64_t model_hash = UINT64_C(0xb81cdfecb4a2cb2e);

/* ---- initialising values ---- */

/* Tests that building, planning, fit_plan and gckpt_plan_params allocate no memory for values, while the bytes that
 * they report include all values. */
static void test_planning_takes_none(void)
{
    const size_t wide = 3000, bytes = wide * wide * sizeof(float);
    heap h;
    gckpt_memory memory = memory_of(&h);
    gckpt_init normal = { 1, 0, 0 };
    gckpt_store *s = store_in(&memory), *t = store_in(&memory);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, (int64_t)wide));
    gckpt_tensor *top =
        gckpt_matmul(x, gckpt_param(g, "m", gckpt_shape2((int64_t)wide, (int64_t)wide), normal));
    gckpt_term loss = { gckpt_mean_squared_error(top, x, NULL), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, NULL);
    CHECK(p && gckpt_store_bytes(s) == bytes);
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == bytes);
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == 2 * bytes);
    CHECK(gckpt_plan_params(p, t) == GCKPT_OK && gckpt_store_bytes(t) == bytes);
    CHECK_MSG(h.peak < 20000, "%lu bytes", (unsigned long)h.peak);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    gckpt_store_free(t);
    s = store_in(NULL);
    p = fit_plan(s, build_rows, NULL, 2 * ROWS, NULL, NULL, NULL);
    CHECK(p && count_initialised(s) == 0 && gckpt_store_count(s) == PARAMS);
    gckpt_plan_free(p);
    gckpt_store_free(s);
    CHECK(h.live == 0);
}

/* Tests that sums of sizes never overflow: the result is an error, as for a size beyond any memory. */
static void test_sums(void)
{
    gckpt_store *s = store_in(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init zero = { 0, 0, 0 };
    size_t before = 0;
    char name[8] = "p?";
    const uint64_t most = SIZE_MAX / 64 < INT64_MAX / 64 ? SIZE_MAX / 64 : INT64_MAX / 64;
    for (int i = 0; i < 60 && gckpt_error(g) == GCKPT_OK; i++) {
        name[1] = (char)('0' + i);
        gckpt_param(g, name, gckpt_shape1((int64_t)most), zero);
        CHECK(gckpt_store_bytes(s) >= before);
        before = gckpt_store_bytes(s);
    }
    CHECK_MSG(gckpt_error(g) == GCKPT_E_MEMORY && strstr(gckpt_error_text(g), name), "%s",
              gckpt_error_text(g));
    CHECK(gckpt_store_count(s) == (int)(SIZE_MAX / 24 / most));
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* Tests that the values have the same bits whichever call initialises them, and in whatever order. */
static void test_same_bits(void)
{
    static file saved, again;
    for (int way = 0; way < 5; way++) {
        gckpt_store *s = store_in(NULL);
        net n = net_in(s);
        gckpt_plan *p = plan_of(&n, GCKPT_SGD);
        gckpt_parameter q;
        gckpt_exec *e = NULL;
        CHECK(count_initialised(s) == 0);
        CHECK_MSG(gckpt_store_hash(s) == model_hash, "0x%llx",
                  (unsigned long long)gckpt_store_hash(s));
        saved.size = saved.at = again.size = again.at = 0;
        CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK && count_initialised(s) == 0);
        for (int i = 0; i < PARAMS && way < 2; i++) {
            CHECK(gckpt_store_get(s, way ? PARAMS - 1 - i : i, &q) == GCKPT_OK && q.values);
            CHECK(count_initialised(s) == i + 1);
        }
        if (way == 2)
            CHECK(gckpt_store_get(s, 3, &q) == GCKPT_OK && q.values && count_initialised(s) == 1);
        if (way > 1 && way < 4)
            e = gckpt_exec_new(p, s, NULL);
        if (way == 4) {
            CHECK(gckpt_store_read(s, file_read, &saved, saved.size, NULL) == GCKPT_OK);
            saved.at = 0;
        }
        CHECK(count_initialised(s) == PARAMS && gckpt_store_hash(s) == model_hash);
        if (way == 2) { /* gckpt_store_get must then return the trained values */
            gckpt_parameter after;
            CHECK(gckpt_store_get(s, 3, &after) == GCKPT_OK && after.values == q.values);
        }
        CHECK(gckpt_store_write(s, file_write, &again, NULL) == GCKPT_OK);
        CHECK(again.size == saved.size && !memcmp(again.bytes, saved.bytes, saved.size));
        gckpt_exec_free(e);
        gckpt_plan_free(p);
        gckpt_graph_free(n.g);
        gckpt_store_free(s);
    }
}

/* Tests that an executor initialises only the values of its plan's parameters, and that freeze, group and reset
 * initialise none. */
static void test_only_the_plans(void)
{
    gckpt_store *s = store_in(NULL);
    net n = net_in(s);
    gckpt_init one = { 0, 0, 1 };
    float mine[2] = { 3, 4 };
    gckpt_parameter q;
    CHECK(gckpt_store_external(s, "mine", gckpt_shape1(2), mine, 1) == GCKPT_OK);
    CHECK(gckpt_param(n.g, "other", gckpt_shape1(4), one) != NULL);
    gckpt_graph *other = gckpt_graph_new(s, NULL);
    CHECK(gckpt_param(other, "elsewhere", gckpt_shape1(4), one) != NULL);
    CHECK(gckpt_store_freeze(s, "b", 1) == GCKPT_OK && gckpt_store_reset(s, "*") == GCKPT_OK);
    CHECK(gckpt_store_group(s, "w", 0.5f, 1) == GCKPT_OK);
    gckpt_plan *p = plan_of(&n, GCKPT_ADAMW);
    CHECK(count_initialised(s) == 1 && gckpt_store_peek(s, PARAMS, &q) == GCKPT_OK && q.values == mine);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    /* the graph's PARAMS parameters, "other" of the same graph, and the external "mine" */
    CHECK(e && count_initialised(s) == PARAMS + 2);
    CHECK(gckpt_store_peek(s, gckpt_store_find(s, "elsewhere"), &q) == GCKPT_OK && !q.values);
    CHECK(gckpt_store_get(s, gckpt_store_find(s, "elsewhere"), &q) == GCKPT_OK &&
          q.values[3] > 0.999f);
    CHECK(gckpt_store_get(s, PARAMS + 3, &q) == GCKPT_E_ARG && gckpt_error(s) == GCKPT_E_ARG);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(other);
    gckpt_graph_free(n.g);
    gckpt_store_free(s);
}

/* Tests that calls which take a const store leave every byte of it unchanged and allocate nothing. */
static void test_reads(void)
{
    heap h;
    gckpt_memory memory = memory_of(&h);
    gckpt_store *s = store_in(&memory);
    net n = net_in(s);
    gckpt_parameter q;
    struct gckpt_store was = *s;
    gckpti_param params[PARAMS];
    long calls = h.calls;
    static file saved;
    memcpy(params, s->params, sizeof params);
    CHECK(gckpt_store_hash(s) == model_hash && gckpt_store_find(s, "v") == 3);
    CHECK(gckpt_store_bytes(s) && gckpt_store_count(s) == PARAMS && gckpt_store_step(s) == 0);
    CHECK(gckpt_store_peek(s, 3, &q) == GCKPT_OK && !q.values && q.elements == WIDE);
    CHECK(!memcmp(&was, s, sizeof was) && !memcmp(params, s->params, sizeof params));
    saved.size = 0;
    CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK && h.calls == calls);
    gckpt_graph_free(n.g);
    gckpt_store_free(s);
}

/* Lets each allocation of gckpt_exec_new, gckpt_store_get and gckpt_store_read fail once: the call returns an error,
 * and the store is unchanged. */
static void test_all_or_none(void)
{
    static file saved;
    heap h;
    gckpt_memory memory = memory_of(&h);
    gckpt_store *s = store_in(&memory), *t = store_in(&memory);
    net n = net_in(s), m = net_in(t);
    gckpt_plan *p = plan_of(&n, GCKPT_ADAMW);
    gckpt_parameter q;
    gckpt_exec *e = NULL;
    size_t live = h.live;
    for (long k = 1; k < 100 && !e; k++) {
        h.fail_at = h.calls + k;
        e = gckpt_exec_new(p, s, NULL);
        int failed = h.calls >= h.fail_at;
        h.fail_at = 0;
        CHECK((e != NULL) == !failed);
        CHECK(e || (h.live == live && count_initialised(s) == 0 && gckpt_error(s) == GCKPT_E_MEMORY));
        CHECK(e || gckpt_store_hash(s) == model_hash);
        CHECK_MSG(e || k > 1 || strstr(gckpt_error_text(s), "\"w\": 4020 bytes"), "%s",
                  gckpt_error_text(s));
    }
    CHECK(e && count_initialised(s) == PARAMS && gckpt_store_hash(s) == model_hash);
    gckpt_exec_free(e);
    live = h.live;
    h.fail_at = h.calls + 1;
    CHECK(gckpt_store_get(t, 0, &q) == GCKPT_E_MEMORY && gckpt_error(t) == GCKPT_E_MEMORY);
    CHECK_MSG(strstr(gckpt_error_text(t), "\"w\": 4020 bytes"), "%s", gckpt_error_text(t));
    CHECK(h.live == live && count_initialised(t) == 0);
    CHECK(gckpt_store_get(s, 0, &q) == GCKPT_OK);
    q.values[0] = 5;
    saved.size = 0;
    CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK);
    int loaded = 0;
    for (long k = 1; k < 100 && !loaded; k++) {
        h.fail_at = h.calls + k;
        saved.at = 0;
        loaded = gckpt_store_read(t, file_read, &saved, saved.size, NULL) == GCKPT_OK;
        h.fail_at = 0;
        CHECK(loaded || (h.live == live && count_initialised(t) == 0 && gckpt_error(t) == GCKPT_E_MEMORY));
    }
    CHECK(loaded && gckpt_store_hash(t) == gckpt_store_hash(s) && count_initialised(t) == PARAMS);
    gckpt_store_free(t);
    gckpt_graph_free(m.g);
    t = store_in(&memory);
    m = net_in(t);
    live = h.live;
    /* reading a truncated file fails, leaves the store unchanged and initialises no values */
    for (size_t cut = 0; cut < saved.size; cut += 7) {
        saved.at = 0;
        CHECK(gckpt_store_read(t, file_read, &saved, cut, NULL) != GCKPT_OK);
        CHECK(h.live == live && count_initialised(t) == 0 && gckpt_store_hash(t) == model_hash);
    }
    gckpt_plan_free(p);
    gckpt_graph_free(m.g);
    gckpt_store_free(t);
    gckpt_graph_free(n.g);
    gckpt_store_free(s);
    CHECK(h.live == 0);
}

/* Tests sizes beyond the memory, in a heap of limited size and in this machine's: they are refused with the
 * bytes, and in a limited heap with the parameter's name, before any value is initialised. */
static void test_too_large(void)
{
    enum { MANY = 40 };
    for (int own = 0; own < (sizeof(void *) < 8 ? 1 : 2); own++) {
        heap h;
        gckpt_memory memory = memory_of(&h);
        gckpt_store *s = store_in(own ? NULL : &memory);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_init normal = { 1, 0, 0 };
        int64_t n = own ? (int64_t)(SIZE_MAX / 24 / (MANY + 1)) : 100000;
        gckpt_tensor *index = gckpt_input(g, "i", GCKPT_I32, gckpt_shape1(2)), *sum = NULL;
        char name[8] = "big?";
        n = n > (int64_t)1 << 40 ? (int64_t)1 << 40
                                 : n; /* 2^40 elements (4 TiB) for each parameter, or all of a 32-bit address space */
        for (int i = 0; i < MANY; i++) {
            name[3] = (char)('0' + i);
            gckpt_tensor *table = gckpt_param(g, name, gckpt_shape2(n, 1), normal);
            gckpt_tensor *row = gckpt_embed(table, index);
            sum = sum ? gckpt_add(sum, row) : row;
        }
        gckpt_fetch_spec fetch = { sum, 0 };
        gckpt_plan_desc d;
        memset(&d, 0, sizeof d);
        d.mode = GCKPT_INFERENCE;
        d.fetch.specs = &fetch;
        d.fetch.count = 1;
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
        CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == (size_t)n * 4 * MANY);
        h.limit = h.live + 9 * 100000 * sizeof(float) + 1000;
        size_t live = h.live;
        CHECK(gckpt_exec_new(p, s, NULL) == NULL && gckpt_error(s) == GCKPT_E_MEMORY);
        CHECK_MSG(own ? strstr(gckpt_error_text(s), "bytes of values and optimiser state") != NULL
                      : strstr(gckpt_error_text(s), "\"big9\": 400000 bytes") != NULL,
                  "%s", gckpt_error_text(s));
        CHECK(h.live == live && count_initialised(s) == 0);
        gckpt_plan_free(p);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
}

/* Tests that a memory block of gckpt_store_need bytes suffices, in three orders of calls: gckpt_exec_new only,
 * gckpt_store_read first, and gckpt_store_read after one that failed. One byte less does not suffice. */
static void test_block(void)
{
    static union {
        double align;
        unsigned char bytes[1 << 16];
    } room;
    static file saved, cut;
    gckpt_store *s = store_in(NULL);
    net n = net_in(s);
    gckpt_plan *p = plan_of(&n, GCKPT_ADAMW);
    gckpt_parameter q;
    for (int i = 0; i < PARAMS; i++) {
        CHECK(gckpt_store_get(s, i, &q) == GCKPT_OK);
        q.values[0] = 9;
    }
    saved.size = 0;
    CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK);
    for (int way = 0; way < 3; way++)
        for (size_t less = 0; less < 2; less++) {
            gckpt_memory memory;
            memset(&memory, 0, sizeof memory);
            memory.memory = room.bytes + (16 - (uintptr_t)room.bytes % 16) % 16;
            /* the size includes 15 bytes for aligning a block at any address, which this aligned block does not need */
            memory.size = gckpt_store_need(p) - 15 - less;
            gckpt_store *t = store_in(&memory);
            CHECK(gckpt_plan_params(p, t) == GCKPT_OK);
            if (way == 2) {
                cut = saved;
                cut.at = 0;
                CHECK(gckpt_store_read(t, file_read, &cut, cut.size - 4, NULL) == GCKPT_E_DATA);
            }
            saved.at = 0;
            if (way)
                CHECK_MSG(gckpt_store_read(t, file_read, &saved, saved.size, NULL) == GCKPT_OK, "%s",
                          gckpt_error_text(t));
            gckpt_exec *e = gckpt_exec_new(p, t, NULL);
            CHECK_MSG((e != NULL) == !less, "%s", gckpt_error_text(t));
            CHECK(!e || gckpt_store_hash(t) == (way ? gckpt_store_hash(s) : model_hash));
            gckpt_exec_free(e);
        }
    gckpt_plan_free(p);
    gckpt_graph_free(n.g);
    gckpt_store_free(s);
}

/* ---- which objects may be freed before others ---- */
static void test_free_order(void)
{
    heap plans, others;
    uint64_t hash[2] = { 0, 1 };
    for (int late = 0; late < 2; late++) {
        gckpt_memory plan_memory = memory_of(&plans), memory = memory_of(&others);
        gckpt_store *s = store_in(&memory);
        gckpt_graph *g = gckpt_graph_new(s, &memory);
        net n;
        gckpt_plan_desc d;
        gckpt_exec_desc ed;
        gckpt_hyper hyper;
        gckpt_report report;
        memset(&n, 0, sizeof n);
        n.g = g;
        CHECK(build_net(&n, s, ROWS));
        gckpt_fetch_spec fetch = { n.top, 0 };
        memset(&d, 0, sizeof d);
        memset(&ed, 0, sizeof ed);
        memset(&hyper, 0, sizeof hyper);
        d.memory = plan_memory;
        d.fetch.specs = &fetch;
        d.fetch.count = 1;
        ed.memory = memory;
        hyper.lr = 0.01f;
        gckpt_plan *p = gckpt_plan_new(g, &n.loss, 1, &d);
        int id = gckpt_id(n.top);
        gckpt_exec *e = gckpt_exec_new(p, s, &ed), *twin = gckpt_exec_new(p, s, &ed);
        if (!late) {
            gckpt_plan_free(p);
            gckpt_graph_free(g);
        }
        for (int i = 0; i < 3; i++)
            CHECK_MSG(gckpt_step(i == 1 ? twin : e, n.feeds, 2, ROWS, &hyper, &report) == GCKPT_OK,
                      "%s", gckpt_error_text(e));
        CHECK(report.step == 3 && gckpt_fetch(e, id, 0) != NULL);
        hash[late] = gckpt_store_hash(s);
        gckpt_store_free(s); /* frees the store before its executors, which must still be valid to free */
        gckpt_exec_free(twin);
        gckpt_exec_free(e);
        if (late) {
            gckpt_graph_free(g);
            gckpt_plan_free(p);
        }
        CHECK(plans.live == 0 && others.live == 0);
    }
    CHECK(hash[0] == hash[1]);
}

/* ---- which errors gradcheck detects ---- */
static float factor; /* the gradient of the op "scaled" is its right gradient times this factor */

static gckpt_result scaled_shape(gckpt_call *c)
{
    c->shape = c->in[0].shape;
    return GCKPT_OK;
}

static int64_t scaled_elements(const gckpt_call *c)
{
    int64_t n = 1;
    for (int i = 0; i < c->shape.n; i++)
        n *= c->shape.d[i];
    return n;
}

static void scaled_forward(const gckpt_call *c)
{
    for (int64_t i = 0; i < scaled_elements(c); i++)
        c->out[i] = 2 * c->in[0].data[i];
}

static void scaled_backward(const gckpt_call *c)
{
    for (int64_t i = 0; i < scaled_elements(c); i++) {
        float d = 2 * factor * c->grad_out[i];
        c->in[0].grad[i] = c->in[0].accumulate ? c->in[0].grad[i] + d : d;
    }
}

static gckpt_op scaled_op(void)
{
    gckpt_op op;
    memset(&op, 0, sizeof op);
    op.name = "scaled";
    op.shape = scaled_shape;
    op.forward = scaled_forward;
    op.backward = scaled_backward;
    return op;
}

enum { CHECK_ROWS = 12, CHECK_IN = 3 };

/* Calls gradcheck for a net with the op "scaled", whose gradient is wrong by the factor `by`. kind 0 is
 * one layer; kind 1 is two layers with tanh; kind 2 is a bias before a norm, so that the bias has no gradient. */
static gckpt_result check_net(int kind, float by, float target, gradcheck_result *check, char text[300])
{
    static float x[CHECK_ROWS * CHECK_IN], y[CHECK_ROWS];
    const gckpt_op op = scaled_op();
    gckpt_init normal = { 0.4f, 0, 0 }, one = { 0, 0, 1 };
    for (int i = 0; i < CHECK_ROWS * CHECK_IN; i++)
        x[i] = (float)(i * 7 % 11) / 5 - 1;
    for (int i = 0; i < CHECK_ROWS; i++)
        y[i] = target + (float)(i % 5) / 10;
    factor = by;
    gckpt_store *s = store_in(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(CHECK_ROWS, CHECK_IN));
    gckpt_tensor *want = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(CHECK_ROWS, 1));
    int64_t wide = kind ? 8 : 1;
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(CHECK_IN, wide), normal);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(wide), normal);
    gckpt_tensor *h = gckpt_add(gckpt_matmul(in, w), b);
    h = gckpt_apply(&op, &h, 1, NULL, 0);
    if (kind == 1)
        h = gckpt_tanh(h);
    if (kind == 2) {
        gckpt_tensor *same = gckpt_param(g, "same", gckpt_shape1(1), normal);
        gckpt_tensor *gain = gckpt_param(g, "gain", gckpt_shape1(wide), one);
        gckpt_tensor *offset = gckpt_param(g, "offset", gckpt_shape1(wide), normal);
        h = gckpt_layernorm(gckpt_add(h, same), gain, offset, 0);
    }
    if (kind)
        h = gckpt_matmul(h, gckpt_param(g, "v", gckpt_shape2(wide, 1), normal));
    gckpt_term loss = { gckpt_mean_squared_error(h, want, NULL), 1, 0 };
    gckpt_feed feeds[2];
    feeds[0].input = gckpt_id(in), feeds[0].data = x;
    feeds[1].input = gckpt_id(want), feeds[1].data = y;
    uint64_t hash = gckpt_store_hash(s);
    gckpt_result result = gradcheck(s, &loss, 1, NULL, feeds, 2, CHECK_ROWS, check);
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 0);
    snprintf(text, 300, "%.270s [%s]", check->text, check->name ? check->name : ""); /* the store's name */
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return result;
}

/* Tests gradcheck for gradients that are wrong by a factor. A wrong gradient is never accepted, however
 * large the loss is, and is rejected if the targets have ordinary size. A right gradient is never rejected, and is
 * accepted if the targets have ordinary size. No measured error or resolution is exactly 0. */
static void test_check(int verbose)
{
    static const float factors[] = { 1, 1.05f, 2, 0.5f, 0 },
                       targets[] = { 1, 10, 100, 1000, 10000, 1e6f, 1e8f };
    char text[300];
    for (int kind = 0; kind < 3; kind++)
        for (int f = 0; f < 5; f++)
            for (int t = 0; t < 7; t++) {
                gradcheck_result c;
                gckpt_result result = check_net(kind, factors[f], targets[t], &c, text);
                if (verbose)
                    printf("%d factor %-5g target %-8g: %-6s worst %-10.3g resolution %-10.3g "
                           "%d of %d unresolved %s\n",
                           kind, (double)factors[f], (double)targets[t],
                           result == GCKPT_OK       ? "ok"
                           : result == GCKPT_E_DATA ? "wrong"
                                                    : "coarse",
                           c.worst, c.resolution, c.unresolved, c.directions, text);
                int right = factors[f] > 0.99f && factors[f] < 1.01f;
                double by = (double)factors[f], size = (double)targets[t],
                       gap = by > 1 ? 1 - 1 / by : 1 - by;
                CHECK_MSG(result != (right ? GCKPT_E_DATA : GCKPT_OK), "kind %d, %g, %g: %s", kind,
                          by, size, text);
                if (right && size < 11)
                    CHECK_MSG(result == GCKPT_OK && c.worst > 0 && c.worst < 0.001 &&
                                  c.resolution > 0 && c.resolution <= 0.01 && !c.unresolved,
                              "kind %d, %g: worst %g, resolution %g, %s", kind, size, c.worst,
                              c.resolution, text);
                if (!right && size < 101)
                    CHECK_MSG(result == GCKPT_E_DATA && fabs(c.worst / gap - 1) < 0.01 &&
                                  (strstr(text, "[w]") || strstr(text, "[b]")),
                              "kind %d, %g, %g: worst %g, %s", kind, by, size, c.worst, text);
                if (result != GCKPT_E_DATA)
                    CHECK((result == GCKPT_UNRESOLVED) == (c.unresolved > 0));
                if (result == GCKPT_UNRESOLVED)
                    CHECK_MSG(c.resolution > 0.01 && strstr(text, "rounding hides"),
                              "kind %d, %g, %g: resolution %g, %s", kind, by, size, c.resolution,
                              text);
                CHECK(c.directions == (kind == 0 ? 4 : kind == 1 ? 6 : 12));
            }
}

/* Calls gradcheck for losses whose finite differences are inexact. Kinds 0 to 3: the greater `margin`,
 * the more certain one class is. The loss is then the logarithm of 1 plus very little, which rounds to the logarithm
 * of 1, so finite differences miss the gradient of the rest. Kind 0 is cross_entropy, 1 has weights, 2 has the
 * softmax of the logits as targets, 3 is linear_cross_entropy. Kinds 4 and 5: a tanh, whose bend is the narrower the
 * greater `margin` is; in kind 5 the loss depends almost only on the last element. */
enum { CLASSES = 4, KINDS = 6 };
static gckpt_result check_certain(int kind, float by, float margin, gradcheck_result *check,
                                  char text[300])
{
    static float x[CHECK_ROWS * CHECK_IN], more[CLASSES], last[CLASSES * CLASSES];
    static int32_t y[CHECK_ROWS];
    static const float shift = -0.3f;
    const gckpt_op op = scaled_op();
    gckpt_init normal = { 0.4f, 0, 0 };
    for (int i = 0; i < CHECK_ROWS * CHECK_IN; i++)
        x[i] = kind == 5 && i % CHECK_IN < CHECK_IN - 1 ? 1e-6f : kind >= 4 ? 1 : (float)(i * 7 % 11) / 5 - 1;
    more[0] = margin;
    for (int i = 0; i < CLASSES; i++)
        last[i * CLASSES + i] = 1;
    factor = by;
    gckpt_store *s = store_in(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(CHECK_ROWS, CHECK_IN));
    gckpt_tensor *want = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(CHECK_ROWS));
    gckpt_tensor *plus = gckpt_constant(g, "plus", GCKPT_F32, gckpt_shape1(CLASSES), more);
    gckpt_tensor *same = gckpt_constant(g, "same", GCKPT_F32, gckpt_shape2(CLASSES, CLASSES), last);
    gckpt_tensor *h, *loss;
    if (kind >= 4) {
        const gckpt_init third = { 0, 0, 0.1f };
        h = gckpt_matmul(in, gckpt_param(g, "w", gckpt_shape2(CHECK_IN, 1), third));
        h = gckpt_add(h, gckpt_constant(g, "shift", GCKPT_F32, gckpt_shape1(1), &shift));
        h = gckpt_tanh(gckpt_scale(gckpt_apply(&op, &h, 1, NULL, 0), margin));
        loss = gckpt_sum_loss(h);
    } else {
        h = gckpt_matmul(in, gckpt_param(g, "w", gckpt_shape2(CHECK_IN, CLASSES), normal));
        h = gckpt_add(gckpt_apply(&op, &h, 1, NULL, 0), plus);
        gckpt_tensor *some = kind == 1 ? gckpt_sigmoid(gckpt_mean(h, 1)) : NULL;
        loss = kind == 2   ? gckpt_soft_cross_entropy(h, gckpt_softmax(h), NULL)
               : kind == 3 ? gckpt_linear_cross_entropy(h, same, want, NULL)
                           : gckpt_cross_entropy(h, want, some, 0);
    }
    gckpt_term term = { loss, 1, 0 };
    gckpt_feed feeds[2];
    feeds[0].input = gckpt_id(in), feeds[0].data = x;
    feeds[1].input = gckpt_id(want), feeds[1].data = y;
    gckpt_result result = gradcheck(s, &term, 1, NULL, feeds, 2, CHECK_ROWS, check);
    snprintf(text, 300, "%.290s", check->text);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return result;
}

/* Tests gradcheck with the losses of check_certain: a right gradient is never rejected, and a wrong one
 * never accepted. Where no class is almost certain, and for kind 4 with any bend, the check must decide instead of
 * reporting that rounding hides the error. */
static void test_check_certain(int verbose)
{
    static const float factors[] = { 1, 1.05f, 2, 0.5f, 0 };
    char text[300];
    for (int kind = 0; kind < KINDS; kind++)
        for (int f = 0; f < 5; f++)
            for (int m = 0; m < 15; m++) {
                gradcheck_result c;
                const float margin = kind >= 4 ? (float)(1 << m) : (float)(2 * m);
                const double by = (double)factors[f], size = (double)margin;
                const int right = f == 0;
                gckpt_result result = check_certain(kind, factors[f], margin, &c, text);
                if (verbose)
                    printf("%d factor %-5g margin %-8g: %-6s worst %-10.3g resolution %-10.3g "
                           "%d of %d unresolved %s\n",
                           kind, by, size,
                           result == GCKPT_OK       ? "ok"
                           : result == GCKPT_E_DATA ? "wrong"
                                                    : "coarse",
                           c.worst, c.resolution, c.unresolved, c.directions, text);
                CHECK_MSG(result != (right ? GCKPT_E_DATA : GCKPT_OK), "kind %d, %g, %g: %s", kind,
                          by, size, text);
                /* kind 4 with factor 0.5 (f = 3) is not checked: with large steps, a difference across the bend gives
                 * half the derivative */
                if (size < 5 || (kind == 4 && f != 3))
                    CHECK_MSG(result == (right ? GCKPT_OK : GCKPT_E_DATA), "kind %d, %g, %g: %s",
                              kind, by, size, text);
            }
}

/* Tests a net that cannot be checked: the call is refused with a reason, and nothing changes. */
static void test_check_refused(void)
{
    const gckpt_init init = { 0.5f, 0, 0 };
    const float x[2] = { 1, 2 };
    const int32_t none[2] = { -1, -1 };
    gradcheck_result check;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(2));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(1, 3), init);
    gckpt_term term = { gckpt_cross_entropy(gckpt_linear(in, w, NULL), target, NULL, 0), 1, 0 };
    const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), none } };
    uint64_t hash = gckpt_store_hash(s);
    gckpt_result result = gradcheck(s, &term, 1, NULL, feeds, 2, 2, &check);
    CHECK_MSG(result == GCKPT_E_DATA && strstr(check.text, "no row has a target >= 0"), "%d: %s", (int)result,
              check.text);
    result = gradcheck(s, &term, 1, NULL, feeds, 1, 2, &check);
    CHECK_MSG(result == GCKPT_E_ARG && strstr(check.text, "\"y\""), "%d: %s", (int)result, check.text);
    CHECK(gradcheck(s, NULL, 0, NULL, feeds, 2, 2, NULL) == GCKPT_E_ARG);
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 0);
    gckpt_name(w, "renamed");
    result = gradcheck(s, &term, 1, NULL, feeds, 2, 2, &check);
    CHECK_MSG(result == GCKPT_E_ARG && strstr(check.text, "gckpt_name"), "%d: %s", (int)result, check.text);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

/* Tests gradcheck where log(w) is not finite: at w itself, or near w only, which hides a right gradient; and a
 * gradient that is NaN. */
static void test_check_finite(void)
{
    static const struct {
        float smallest;
        gckpt_result result;
        const char *text;
    } cases[] = { { 1e-4f, GCKPT_OK, "ok" },
                  { 1e-5f, GCKPT_UNRESOLVED, "not finite at all values near those of \"w\", which hides 2 of 2" },
                  { -1, GCKPT_E_DATA, "the loss is not finite; GCKPT_DEBUG_FINITE" } };
    static const float x[2] = { 1, 1 };
    const gckpt_init init = { 0, 0, 3 };
    gradcheck_result check;
    char text[300];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gckpt_store *s = store_in(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(8), init);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(in, gckpt_log(w))), 1, 0 };
        const gckpt_feed feed = { gckpt_id(in), x };
        gckpt_parameter p;
        gckpt_store_get(s, gckpt_store_find(s, "w"), &p);
        p.values[0] = cases[i].smallest;
        const uint64_t hash = gckpt_store_hash(s);
        const gckpt_result result = gradcheck(s, &term, 1, NULL, &feed, 1, 2, &check);
        CHECK_MSG(result == cases[i].result && strstr(check.text, cases[i].text), "%d: %s", (int)result, check.text);
        CHECK(gckpt_store_hash(s) == hash && (result == GCKPT_E_DATA) == (check.worst > 0.01));
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
    const gckpt_result result = check_net(0, NAN, 0, &check, text);
    CHECK_MSG(result == GCKPT_E_DATA && strstr(text, "the gradient of \"") && check.worst > 1, "%s", text);
}

/* Tests gradcheck for the kinks of a net of relus and one row, between the points of the differences: they may hide a
 * right gradient, but are no wrong one. */
static void test_check_kinks(void)
{
    enum { NETS = 24, INPUTS = 16, UNITS = 24 };
    const gckpt_init init = { 0, 0.21f, 0 };
    for (int seed = 1; seed <= NETS; seed++) {
        const gckpt_store_desc desc = { .seed = (uint64_t)seed };
        const int32_t class = seed % 5;
        float x[INPUTS];
        char name[8];
        gradcheck_result check;
        gckpt_store *s = gckpt_store_new(&desc);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, INPUTS)), *h = in;
        gckpt_tensor *want = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(1));
        for (int i = 0; i < INPUTS; i++)
            x[i] = (float)((i * 37 + seed * 101) % 211) / 100 - 1;
        for (int i = 0; i < 6; i++) {
            snprintf(name, sizeof name, "w%d", i);
            gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(i ? UNITS : INPUTS, UNITS), init);
            name[0] = 'b';
            h = gckpt_relu(gckpt_linear(h, w, gckpt_param(g, name, gckpt_shape1(UNITS), init)));
        }
        h = gckpt_matmul(h, gckpt_param(g, "v", gckpt_shape2(UNITS, 5), init));
        gckpt_term term = { gckpt_cross_entropy(h, want, NULL, 0), 1, 0 };
        const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(want), &class } };
        const gckpt_result result = gradcheck(s, &term, 1, NULL, feeds, 2, 1, &check);
        CHECK_MSG(result == GCKPT_OK || result == GCKPT_UNRESOLVED, "seed %d: %s", seed, check.text);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
}

/* ---- names ---- */
enum { NAMES = 1000 };
static const char *name_at(int i)
{
    static char name[32];
    snprintf(name, sizeof name, "h.%d.w", i);
    return name;
}

/* Returns whether the first n names are found at their indices, and no further name is found. */
static int found(const gckpt_store *s, int n)
{
    int right = gckpt_store_count(s) == n && gckpt_store_find(s, "h.") < 0;
    for (int i = 0; i < n + 40; i++)
        right = right && gckpt_store_find(s, name_at(i)) == (i < n ? i : -1);
    return right;
}

/* Tests finding names among many, also after failed allocations and after a failed read has removed some. */
static void test_names(void)
{
    static float flash[1];
    heap h;
    gckpt_memory memory = memory_of(&h);
    gckpt_store *s = store_in(&memory), *t = store_in(&memory);
    file saved;
    memset(&saved, 0, sizeof saved);
    for (int i = 0; i < NAMES; i++) {
        long calls = h.calls;
        /* lets the allocation for the name, for the table of names, and each other one fail */
        for (long fails = 1; fails > 0; fails++) {
            h.fail_at = h.calls + fails;
            gckpt_result r = gckpt_store_external(s, name_at(i), gckpt_shape1(1), flash, 1);
            int failed = h.calls >= h.fail_at;
            h.fail_at = 0;
            CHECK(failed ? r == GCKPT_E_MEMORY : r == GCKPT_OK);
            CHECK(i % 64 > 1 || found(s, i + !failed));
            fails = failed ? fails : -1;
        }
        CHECK(h.calls > calls);
    }
    CHECK(found(s, NAMES) && gckpt_store_bytes(s) == 0);
    CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK);
    CHECK(gckpt_store_read(t, file_read, &saved, saved.size - 4, NULL) == GCKPT_E_DATA && found(t, 0));
    for (int whole = 0; whole < 2;
         whole++) { /* a read whose data end early removes the names that it has added; a whole read adds all names */
        saved.at = 0;
        saved.fail_call = whole ? 0 : saved.calls + 3;
        CHECK(gckpt_store_read(t, file_read, &saved, saved.size, NULL) ==
              (whole ? GCKPT_OK : GCKPT_E_FILE));
        CHECK(found(t, whole ? NAMES : 0));
    }
    CHECK(gckpt_store_bytes(t) == NAMES * sizeof(float));
    gckpt_store_free(s);
    gckpt_store_free(t);
    CHECK(h.blocks == 0 && h.wrong_sizes == 0);
    free(saved.bytes);
}

/* ---- inference on initial values, which no call of the program has replaced ---- */
static const char *initial_text(gckpt_store *s, int count, const char *const *of, int allowed)
{
    static char text[300];
    gckpt_exec_desc desc;
    gckpt_plan_desc d;
    memset(&desc, 0, sizeof desc);
    memset(&d, 0, sizeof d);
    desc.allow_initial = allowed;
    gckpt_init normal = { 1, 0, 0 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, IN)), *top = x;
    for (int i = 0; i < count; i++)
        top = gckpt_mul(top, gckpt_param(g, of[i], gckpt_shape1(IN), normal));
    gckpt_fetch_spec fetch = { top, 0 };
    d.mode = GCKPT_INFERENCE;
    d.fetch.specs = &fetch;
    d.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, &desc);
    gckpt_feed feed = { gckpt_id(x), x_data };
    const gckpt_result result = gckpt_forward(e, &feed, 1, ROWS, NULL);
    CHECK(result == gckpt_error(e) && (result == GCKPT_OK || result == GCKPT_E_ARG));
    snprintf(text, sizeof text, "%s", gckpt_error_text(e));
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    return text;
}

static void test_initial(void)
{
    static const char *const saved[] = { "a", "b", "c", "d", "e" };
    static const char *const other[] = { "fc.weight", "fc.bias" };
    static float flash[IN] = { 1, 2, 3, 4, 5 };
    gckpt_parameter p;
    file f = { 0 };
    gckpt_store *s = store_in(NULL);
    const char *text = initial_text(s, 5, saved, 0);
    CHECK_MSG(strstr(text, "\"a\" has its initial values: it was neither loaded, set nor trained") &&
                  strstr(text, "load a file after the graph is built") &&
                  strstr(text, "desc.allow_initial"),
              "%s", text);
    CHECK(!strcmp(initial_text(s, 5, saved, 1), "ok"));
    /* allow_initial permitted that call only, and does not count as setting the values */
    CHECK(strstr(initial_text(s, 5, saved, 0), "\"a\"") != NULL);
    /* gckpt_store_get returns a pointer through which the program may write, so the parameter counts as set */
    for (int i = 0; i < 5; i++)
        CHECK(gckpt_store_get(s, i, &p) == GCKPT_OK);
    CHECK(!strcmp(initial_text(s, 5, saved, 0), "ok"));
    CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_OK);
    gckpt_store_free(s);

    s = store_in(NULL); /* first a file is loaded, then a graph with other names is built */
    CHECK(gckpt_store_read(s, file_read, &f, f.size, NULL) == GCKPT_OK);
    CHECK(!strcmp(initial_text(s, 5, saved, 0), "ok"));
    text = initial_text(s, 2, other, 0);
    CHECK_MSG(strstr(text, "\"fc.weight\" has") != NULL, "%s", text);
    CHECK(gckpt_store_push(s, other[0]) == GCKPT_OK);
    CHECK(strstr(initial_text(s, 2, other, 0), "\"fc.bias\" has") != NULL);
    CHECK(gckpt_store_reset(s, "*") == GCKPT_OK);
    CHECK(strstr(initial_text(s, 2, other, 0), "\"fc.bias\" has") != NULL);
    gckpt_store_free(s);

    s = store_in(NULL); /* external memory of the program counts as set */
    CHECK(gckpt_store_external(s, "a", gckpt_shape1(IN), flash, 0) == GCKPT_OK);
    CHECK(!strcmp(initial_text(s, 1, saved, 0), "ok"));
    gckpt_store_free(s);
    free(f.bytes);
}

/* Tests which calls make a parameter count as set: a step in which it takes part, whether it is frozen or not; but
 * not a step that was skipped or refused, nor gckpt_gradients. */
static void test_initial_trained(void)
{
    net n;
    memset(&n, 0, sizeof n);
    gckpt_store *s = store_in(NULL);
    build_net(&n, s, ROWS);
    CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK);
    gckpt_plan *p = gckpt_plan_new(n.g, &n.loss, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_hyper h = gckpt_hyper_lr(0.01f);
    CHECK(gckpt_gradients(e, n.feeds, 2, ROWS, NULL) == GCKPT_OK);
    for (int trained = 0; trained < 2; trained++) {
        gckpt_plan_desc d;
        gckpt_fetch_spec fetch = { n.top, 0 };
        memset(&d, 0, sizeof d);
        d.mode = GCKPT_INFERENCE;
        d.fetch.specs = &fetch;
        d.fetch.count = 1;
        gckpt_plan *q = gckpt_plan_new(n.g, NULL, 0, &d);
        gckpt_exec *f = gckpt_exec_new(q, s, NULL);
        CHECK_MSG(gckpt_forward(f, n.feeds, 1, ROWS, NULL) == (trained ? GCKPT_OK : GCKPT_E_ARG),
                  "%d: %s", trained, gckpt_error_text(f));
        gckpt_exec_free(f);
        gckpt_plan_free(q);
        CHECK(gckpt_step(e, n.feeds, 2, ROWS, &h, NULL) == GCKPT_OK);
    }
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(n.g);
    gckpt_store_free(s);
}

/* Tests that a size beyond the address space counts as a failed allocation, with every allocator. */
static void test_overflows(void)
{
    gckpti_allocator a = gckpti_allocator_of(NULL);
    int *none = NULL;
    size_t capacity = PTRDIFF_MAX / 6;
    CHECK(!gckpti_new(&a, SIZE_MAX / 2, 4) && !gckpti_new(&a, (size_t)PTRDIFF_MAX / 4 + 1, 4));
    CHECK(!gckpti_grow(&a, &none, &capacity, capacity, sizeof *none));
    CHECK(!none && capacity == PTRDIFF_MAX / 6);
}

int main(int argc, char **argv)
{
    (void)argv;
    for (int i = 0; i < ROWS * IN; i++)
        x_data[i] = (float)(i % 4) - 1.5f;
    for (int i = 0; i < ROWS; i++)
        y_data[i] = (float)i;
    test_planning_takes_none();
    CHECK(!gckpti_kind_of(GCKPT_STORAGE_I4 + 1));
    test_sums();
    test_same_bits();
    test_only_the_plans();
    test_reads();
    test_all_or_none();
    test_too_large();
    test_block();
    test_free_order();
    test_check(argc > 1);
    test_check_certain(argc > 1);
    test_check_refused();
    test_check_finite();
    test_check_kinks();
    test_names();
    test_initial();
    test_initial_trained();
    test_overflows();
    return check_report("test_values");
}
