/* test_cache.c - a model that generates token by token: the logits of calls that go on in caches are,
 * bit for bit, those of one call with all tokens; what is refused; bytes; plans as files and as C. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "backend.h"
#include "rig.h"
#include "verify.h"

typedef gckpt_tensor T;
enum { B = 3, ALL = 75, C = 16, V = 13, HEADS = 2, LAYERS = 2, PREFIX = 5 };
enum { LEARNED, ROTARY, PREFIXED, STYLES };

typedef struct {
    gckpt_graph *g;
    T *tokens, *logits;
} model;

/* n = i * o values, the same for every graph */
static T *weight(gckpt_graph *g, const char *name, int layer, int64_t i, int64_t o)
{
    char full[32];
    snprintf(full, sizeof full, "%s.%d", name, layer);
    return gckpt_param(g, full, o ? gckpt_shape2(i, o) : gckpt_shape1(i), (gckpt_init){ 0.3f, 0, 0 });
}

/* Rows of keys or values that stand before all others, the same in each row of the batch: 0 * x + p. */
static T *prefixed(T *x, T *all, const char *name, int layer)
{
    T *p = weight(gckpt_graph_of(x), name, layer, PREFIX, C);
    T *zero = gckpt_scale(gckpt_slice(x, 1, 0, 1), 0);
    T *in[2] = { gckpt_add(zero, p), all };
    return gckpt_concat(in, 2, 1);
}

/* t tokens a call; capacity 0: no caches */
static model build(gckpt_store *s, int64_t rows, int64_t t, int64_t capacity, int style)
{
    model m = { gckpt_graph_new(s, NULL), NULL, NULL };
    m.tokens = gckpt_input(m.g, "tokens", GCKPT_I32, gckpt_shape2(rows, t));
    T *table = weight(m.g, "wte", 0, V, C), *h = gckpt_embed(table, m.tokens);
    if (style != ROTARY) {
        T *wpe = weight(m.g, "wpe", 0, ALL + 2, C);
        h = gckpt_positions_at(h, wpe, 2);
    }
    for (int l = 0; l < LAYERS; l++) {
        T *x = gckpt_layernorm(h, NULL, NULL);
        T *q = gckpt_linear(x, weight(m.g, "q", l, C, C), NULL);
        T *k = gckpt_linear(x, weight(m.g, "k", l, C, C), NULL);
        T *v = gckpt_linear(x, weight(m.g, "v", l, C, C), weight(m.g, "b", l, C, 0));
        if (style == ROTARY) {
            q = gckpt_rotary(q, HEADS, 0);
            k = gckpt_rotary_at(k, HEADS, 0, 0);
        }
        T *keys = capacity ? gckpt_cache(k, capacity) : k, *values = capacity ? gckpt_cache(v, capacity) : v;
        if (style == PREFIXED) {
            keys = gckpt_reshape(prefixed(k, keys, "pk", l), gckpt_shape3(rows, -1, C));
            values = prefixed(v, values, "pv", l);
        }
        T *a = gckpt_attention(q, keys, values, HEADS, 1);
        h = gckpt_add(h, gckpt_linear(a, weight(m.g, "o", l, C, C), NULL));
        h = gckpt_add(h, gckpt_linear(gckpt_gelu(gckpt_linear(gckpt_rmsnorm(h, NULL), weight(m.g, "up", l, C, 2 * C), NULL)),
                                      weight(m.g, "down", l, 2 * C, C), NULL));
    }
    m.logits = gckpt_linear_transposed(h, table, NULL);
    CHECK_MSG(m.logits != NULL, "%s", gckpt_error_text(m.g));
    return m;
}

/* What runs one graph; the tokens of row b from position p on are those of text + b * ALL. */
typedef struct {
    gckpt_plan *p;
    gckpt_exec *e;
    int64_t t;
    int tokens, logits;
} runner;

static runner start(gckpt_store *s, int64_t rows, int64_t t, int64_t capacity, int style,
                    const gckpt_plan_desc *desc, const gckpt_exec_desc *x)
{
    model m = build(s, rows, t, capacity, style);
    gckpt_plan_desc d = *desc;
    gckpt_pick pick = { m.logits, 0 };
    d.mode = GCKPT_INFERENCE;
    d.fetch = &pick;
    d.fetches = 1;
    runner r = { gckpt_plan_new(m.g, NULL, 0, &d), NULL, t, gckpt_id(m.tokens), gckpt_id(m.logits) };
    CHECK_MSG(r.p != NULL, "%s", gckpt_error_text(m.g));
    r.e = gckpt_exec_new(r.p, s, x);
    CHECK_MSG(r.e != NULL, "%s", gckpt_error_text(s));
    gckpt_graph_free(m.g);
    return r;
}

static void end(runner *r) { rig_free(r->e, r->p, NULL, NULL); }

static int32_t words[B * ALL];

/* The next tokens, from position `at`; logits (rows,ALL,V) get theirs. */
static gckpt_result run_at(runner *r, int64_t rows, int64_t at, float *logits)
{
    int32_t tokens[B * ALL];
    for (int64_t b = 0; b < rows; b++)
        memcpy(tokens + b * r->t, words + b * ALL + at, (size_t)r->t * sizeof *tokens);
    gckpt_feed feed = { r->tokens, tokens };
    gckpt_result result = gckpt_forward(r->e, &feed, 1, rows, NULL);
    const float *out = gckpt_fetch(r->e, r->logits, 0);
    for (int64_t b = 0; b < rows && result == GCKPT_OK; b++)
        memcpy(logits + (b * ALL + at) * V, out + b * r->t * V, (size_t)(r->t * V) * sizeof *logits);
    return result;
}

/* ---- the same logits, however they come ---- */
/* All tokens, in pieces of 8 and then one by one, against one call; from position 11 on once more. */
static void same_logits(int style, const gckpt_plan_desc *d, const gckpt_exec_desc *x, const char *what)
{
    static float whole[B * ALL * V], pieces[B * ALL * V];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_exec_desc other = *x;
    runner all = start(s, B, ALL, 0, style, d, x);
    runner eight = start(s, B, 8, ALL, style, d, x);
    other.caches_of = eight.e;
    runner one = start(s, B, 1, ALL, style, d, &other);
    size_t caches = 2 * LAYERS * B * ALL * C * (d->precision ? 2 : 4);
    CHECK(gckpt_plan_kind_bytes(eight.p, GCKPT_BYTES_CACHES) == caches);
    CHECK(gckpt_plan_bytes(one.p) == gckpt_store_bytes(s) + gckpt_plan_arena(one.p) + caches);
    CHECK(gckpt_plan_kind_bytes(all.p, GCKPT_BYTES_CACHES) == 0);
    CHECK(run_at(&all, B, 0, whole) == GCKPT_OK && gckpt_position(all.e) == 0);
    for (int round = 0; round < 2; round++) {
        int64_t at = 11 * round;
        CHECK(gckpt_rewind(one.e, at) == GCKPT_OK);
        memset(pieces + at * V, 0x7f, sizeof pieces - (size_t)(at * V) * sizeof *pieces);
        while (at < ALL) {
            CHECK(gckpt_position(one.e) == at && gckpt_position(eight.e) == at);
            runner *r = at + 8 <= (round ? 40 : 66) ? &eight : &one;
            gckpt_result result = run_at(r, B, at, pieces);
            CHECK_MSG(result == GCKPT_OK, "%s: at %d: %s", what, (int)at, gckpt_error_text(r->e));
            at += result == GCKPT_OK ? r->t : ALL;
        }
        for (int b = 0, from = 11 * round; b < B; b++)
            CHECK_MSG(!memcmp(whole + (b * ALL + from) * V, pieces + (b * ALL + from) * V,
                              (size_t)((ALL - from) * V) * sizeof *whole),
                      "%s, style %d, round %d, row %d: other logits", what, style, round, b);
    }
    if (x->debug & GCKPT_DEBUG_MEASURE)
        CHECK(gckpt_bytes_measured(one.e) == gckpt_plan_bytes(one.p) &&
              gckpt_bytes_measured(eight.e) == gckpt_plan_bytes(eight.p));
    end(&one), end(&eight), end(&all);
    gckpt_store_free(s);
}

static void everywhere(void)
{
    device d = { 0 };
    gckpt_backend b;
    gckpt_isa widest = GCKPT_ISA_PLAIN;
    for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++)
        widest = isa && gckpt_isa_available((gckpt_isa)isa) ? (gckpt_isa)isa : widest;
    for (int style = 0; style < STYLES; style++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            gckpt_plan_desc plan = { .precision = bf16 ? GCKPT_BF16 : GCKPT_FP32 };
            for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
                gckpt_exec_desc x = { .isa = (gckpt_isa)isa, .debug = GCKPT_DEBUG_PAINT };
                if (gckpt_isa_available((gckpt_isa)isa))
                    same_logits(style, &plan, &x, gckpt_isa_name((gckpt_isa)isa));
            }
            gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE, .parallel_for = any_order };
            plan.threads = 3;
            plan.stage_parameters = 1;
            same_logits(style, &plan, &x, "threads");
            plan.threads = 1;
            for (int missing = 0; missing < 2 && style == ROTARY + bf16 && device_start(&d, &b, "pages", missing ? GCKPT_ISA_PLAIN : widest);
                 missing++) {
                plan.backend = x.backend = &b;
                d.missing = missing ? "cache" : NULL;
                same_logits(style, &plan, &x, missing ? "on copies" : "own memory");
                device_end(&d);
            }
        }
}

/* ---- calls that are refused or fail leave the caches as they were ---- */
static int cancel_at;
static int cancel(void *user, const gckpt_progress *p)
{
    (void)user;
    return p->instruction == cancel_at;
}

static int says(const void *object, const char *what)
{
    return strstr(gckpt_error_text(object), what) != NULL;
}

static void failures(void)
{
    static float want[B * ALL * V], got[B * ALL * V];
    gckpt_plan_desc d = { .threads = 1 };
    gckpt_exec_desc x = { .progress = cancel };
    gckpt_store *s = gckpt_store_new(NULL);
    runner all = start(s, B, 8, 0, LEARNED, &d, NULL), r = start(s, B, 4, 10, LEARNED, &d, &x);
    cancel_at = -1;
    CHECK(run_at(&all, B, 0, want) == GCKPT_OK && run_at(&r, B, 0, got) == GCKPT_OK);
    for (cancel_at = 0; cancel_at < gckpt_plan_length(r.p); cancel_at++)
        CHECK(run_at(&r, B, 0, got) == GCKPT_CANCELLED && gckpt_position(r.e) == 4);
    cancel_at = -1;
    words[5] += V;
    CHECK(run_at(&r, B, 4, got) == GCKPT_E_DATA && gckpt_position(r.e) == 4);
    words[5] -= V;
    CHECK(gckpt_rewind(r.e, 5) == GCKPT_E_ARG && says(r.e, "to position 5; the caches hold 4"));
    CHECK(gckpt_rewind(r.e, -1) == GCKPT_E_ARG && gckpt_position(r.e) == 4);
    CHECK(run_at(&r, B, 4, got) == GCKPT_OK && gckpt_position(r.e) == 8);
    for (int b = 0; b < B; b++)
        CHECK(!memcmp(want + b * ALL * V, got + b * ALL * V, 8 * V * sizeof *got));
    CHECK(run_at(&r, B, 8, got) == GCKPT_E_ARG && gckpt_position(r.e) == 8);
    CHECK(says(r.e, "adds 4 positions to the 8") && says(r.e, "room for 10") && says(r.e, "gckpt_rewind"));
    /* rows: no more than before, unless it begins anew; never more than the graph's */
    CHECK(gckpt_rewind(r.e, 0) == GCKPT_OK && gckpt_error(r.e) == GCKPT_OK);
    CHECK(run_at(&r, 2, 0, got) == GCKPT_OK);
    CHECK(run_at(&r, B, 4, got) == GCKPT_E_ARG && says(r.e, "3 rows; the caches hold 2"));
    memset(got, 0, sizeof got);
    CHECK(run_at(&r, 1, 4, got) == GCKPT_OK && !memcmp(want + 4 * V, got + 4 * V, 4 * V * sizeof *got));
    CHECK(gckpt_rewind(r.e, 0) == GCKPT_OK && run_at(&r, B, 0, got) == GCKPT_OK);
    gckpt_feed feed = { r.tokens, words };
    CHECK(gckpt_forward(r.e, &feed, 1, B + 1, NULL) == GCKPT_E_ARG && says(r.e, "the plan's 3 at most"));
    CHECK(gckpt_position(NULL) == 0 && gckpt_rewind(NULL, 0) == GCKPT_E_ARG);
    CHECK(gckpt_rewind(all.e, 1) == GCKPT_E_ARG && gckpt_rewind(all.e, 0) == GCKPT_OK);
    end(&r), end(&all);
    gckpt_store_free(s);
}

/* ---- caches of another executor ---- */
static void sharing(void)
{
    gckpt_store *s = gckpt_store_new(NULL), *s2 = gckpt_store_new(NULL);
    gckpt_plan_desc d = { .threads = 1 }, bf16 = { .precision = GCKPT_BF16 }, wide = { .alignment = 256 };
    runner own = start(s, B, 4, 20, ROTARY, &d, NULL);
    gckpt_exec_desc x = { .caches_of = own.e };
    const struct {
        gckpt_store *s;
        int64_t rows, t, capacity;
        int style;
        const gckpt_plan_desc *d;
        int fits;
    } others[] = { { s, B, 1, 20, ROTARY, &wide, 1 }, { s, B, 1, 20, LEARNED, &d, 1 }, { s, B, 1, 0, ROTARY, &d, 1 },
                   { s, B, 4, 21, ROTARY, &d, 0 },    { s, B - 1, 4, 20, ROTARY, &d, 0 },
                   { s, B, 4, 20, ROTARY, &bf16, 0 }, { s2, B, 4, 20, ROTARY, &d, 0 },
                   { s, 2 * B, 4, 10, ROTARY, &d, 0 } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        runner r = start(others[i].s, others[i].rows, others[i].t, others[i].capacity, others[i].style, others[i].d,
                         NULL);
        gckpt_exec *e = gckpt_exec_new(r.p, others[i].s, &x);
        CHECK_MSG((e != NULL) == others[i].fits, "%d: %s", (int)i, gckpt_error_text(others[i].s));
        CHECK(e || says(others[i].s, "desc.caches_of has other caches"));
        gckpt_exec_free(e);
        end(&r);
    }
    /* one that shares what another shares; the one in between may go */
    runner first = start(s, B, 2, 20, ROTARY, &d, &x);
    x.caches_of = first.e;
    runner second = start(s, B, 3, 20, ROTARY, &d, &x);
    float got[B * ALL * V];
    CHECK(run_at(&own, B, 0, got) == GCKPT_OK && run_at(&first, B, 4, got) == GCKPT_OK);
    end(&first);
    CHECK(run_at(&second, B, 6, got) == GCKPT_OK && gckpt_position(own.e) == 9);
    end(&second);
    CHECK(gckpt_rewind(own.e, 9) == GCKPT_OK);
    end(&own);
    gckpt_store_free(s), gckpt_store_free(s2);
}

/* ---- memory: any allocation may fail, nothing stays behind ---- */
static void allocations(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    runner r = start(s, B, 4, 20, LEARNED, &(gckpt_plan_desc){ .threads = 1 }, NULL);
    long calls = 1;
    for (long n = 1; n <= calls; n++) {
        heap h = { .fail_at = n };
        gckpt_exec_desc x = { .memory = heap_memory(&h) };
        gckpt_exec *e = gckpt_exec_new(r.p, s, &x);
        CHECK(!e == (h.calls >= n) && (e || gckpt_error(s) == GCKPT_E_MEMORY));
        calls += !e;
        gckpt_exec_free(e);
        CHECK(h.blocks == 0 && h.live == 0 && h.wrong_sizes == 0);
    }
    CHECK(calls > 5);
    end(&r);
    gckpt_store_free(s);
}

/* ---- plans as files ---- */
static void files(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    model m = build(s, B, 4, 20, PREFIXED), longer = build(s, B, 4, 21, PREFIXED);
    gckpt_pick pick = { m.logits, 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch = &pick, .fetches = 1 };
    gckpt_plan *p = gckpt_plan_new(m.g, NULL, 0, &d), *q;
    file f = { 0 }, again = { 0 };
    const char *problem = verify_plan(p, m.g);
    CHECK_MSG(!problem, "%s", problem);
    CHECK(gckpt_plan_write(p, file_write, &f) == GCKPT_OK);
    q = gckpt_plan_read(m.g, file_read, &f, NULL);
    CHECK_MSG(q && gckpt_plan_bytes(q) == gckpt_plan_bytes(p), "%s", gckpt_error_text(m.g));
    CHECK(gckpt_plan_write(q, file_write, &again) == GCKPT_OK && same_file(&f, &again));
    f.at = 0;
    CHECK(!gckpt_plan_read(longer.g, file_read, &f, NULL) && says(longer.g, "cache #"));
    f.size = 0;
    CHECK(gckpt_plan_print(p, file_write, &f) == GCKPT_OK);
    CHECK(strstr((char *)f.bytes, "  caches: 15360 bytes\n") != NULL);
    free(f.bytes), free(again.bytes);
    gckpt_plan_free(p), gckpt_plan_free(q);
    gckpt_graph_free(m.g), gckpt_graph_free(longer.g);
    gckpt_store_free(s);
}

/* ---- what is refused when a graph is built or planned ---- */
static gckpt_store *shop;
static gckpt_graph *counter;
static T *of(int64_t a, int64_t b, int64_t c)
{
    static int n;
    char name[16];
    snprintf(name, sizeof name, "x%d", n++);
    return gckpt_input(counter, name, GCKPT_F32, gckpt_shape3(a, b, c));
}
static T *table(int64_t n)
{
    char name[16];
    snprintf(name, sizeof name, "t%d", (int)n);
    return gckpt_param(counter, name, gckpt_shape2(n, 4), (gckpt_init){ 1, 0, 0 });
}

#define REFUSED(result, text, call)                                                               \
    do {                                                                                           \
        counter = gckpt_graph_new(shop, NULL);                                                     \
        T *refused = call;                                                                         \
        CHECK_MSG(!refused && gckpt_error(counter) == result && says(counter, text), "%s: \"%s\"", #call, \
                  gckpt_error_text(counter));                                                      \
        gckpt_graph_free(counter);                                                                 \
    } while (0)

static T *cached(int64_t t, int64_t capacity) { return gckpt_cache(of(2, t, 4), capacity); }
static T *after(T *first, T *then) { return first && then ? then : NULL; }
static T *pair_of(T *a, T *b, int axis)
{
    T *in[2] = { a, b };
    return gckpt_concat(in, 2, axis);
}
static T *attends(int64_t t, int causal, int which)
{
    T *q = of(2, t, 4), *x = of(2, 6, 4), *c = cached(3, 6);
    return gckpt_attention(which & 4 ? c : q, which & 2 ? c : x, which & 1 ? c : x, 1, causal);
}

static void refusals(void)
{
    shop = gckpt_store_new(NULL);
    REFUSED(GCKPT_E_ARG, "a capacity of 0 rows", cached(3, 0));
    REFUSED(GCKPT_E_ARG, "a capacity of 2147483648 rows", cached(3, INT64_C(2147483648)));
    REFUSED(GCKPT_E_SHAPE, "T at most the capacity of 5 rows", cached(6, 5));
    REFUSED(GCKPT_E_SHAPE, "must be (B,T,C)", gckpt_cache(gckpt_sum(of(2, 3, 4), 1), 5));
    REFUSED(GCKPT_E_ARG, "depends on parameters only", gckpt_cache(table(3), 5));
    REFUSED(GCKPT_E_ARG, "is one already", gckpt_cache(cached(3, 6), 6));
    REFUSED(GCKPT_E_SHAPE, "all caches of a graph have the same", after(cached(3, 6), cached(3, 7)));
    REFUSED(GCKPT_E_SHAPE, "and the same T; here 6, T = ", after(cached(3, 6), cached(2, 6)));
    REFUSED(GCKPT_E_ARG, "relu: cache #", gckpt_relu(cached(3, 6)));
    REFUSED(GCKPT_E_ARG, "sum_loss: cache #", gckpt_sum_loss(cached(3, 6)));
    REFUSED(GCKPT_E_ARG, "reshape: cache #", gckpt_reshape(cached(4, 6), gckpt_shape3(2, 3, 8)));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(cached(3, 6), of(2, 6, 4), 1));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(of(2, 6, 4), cached(3, 6), 2));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(cached(3, 6), cached(3, 6), 1));
    REFUSED(GCKPT_E_ARG, "need causal attention", attends(3, 0, 3));
    REFUSED(GCKPT_E_ARG, "values of one", attends(3, 1, 2));
    REFUSED(GCKPT_E_ARG, "queries for the 3 rows", attends(2, 1, 3));
    REFUSED(GCKPT_E_ARG, "need causal attention", attends(3, 1, 7));
    REFUSED(GCKPT_E_ARG, "v where k is not of one: cache #", attends(3, 1, 1));
    REFUSED(GCKPT_E_ARG, "attention: q, ", attends(3, 1, 4));
    REFUSED(GCKPT_E_ARG, "gckpt_positions_at goes on", after(gckpt_positions(of(2, 3, 4), table(9)), cached(3, 6)));
    REFUSED(GCKPT_E_ARG, "gckpt_positions_at goes on", after(cached(3, 6), gckpt_positions(of(2, 3, 4), table(9))));
    REFUSED(GCKPT_E_SHAPE, "capacity of 6 rows, and a table has 5",
            after(cached(3, 6), gckpt_positions_at(of(2, 3, 4), table(9), 4)));
    REFUSED(GCKPT_E_SHAPE, "capacity of 6 rows, and a table has 5",
            after(gckpt_positions_at(of(2, 3, 4), table(9), 4), cached(3, 6)));
    REFUSED(GCKPT_E_SHAPE, "T + first, which is 7", gckpt_positions_at(of(2, 3, 4), table(9), 7));
    REFUSED(GCKPT_E_SHAPE, "which is -1", gckpt_positions_at(of(2, 3, 4), table(9), -1));
    REFUSED(GCKPT_E_SHAPE, "which is", gckpt_positions_at(of(2, 3, 4), table(9), INT64_MAX));
    REFUSED(GCKPT_E_ARG, "the table may not",
            gckpt_positions_at(of(2, 3, 4), gckpt_reshape(of(2, 3, 4), gckpt_shape2(6, 4)), 0));
    REFUSED(GCKPT_E_ARG, "first position -1", gckpt_rotary_at(of(2, 3, 4), 2, 0, -1));
    REFUSED(GCKPT_E_ARG, "first position 2147483648", gckpt_rotary_at(of(2, 3, 4), 2, 0, INT64_C(2147483648)));
    counter = gckpt_graph_new(shop, NULL);
    CHECK(!gckpt_cache(NULL, 4) && !gckpt_rotary_at(NULL, 1, 0, 1) && !gckpt_positions_at(NULL, NULL, 1));
    CHECK(gckpt_error(counter) == GCKPT_OK);
    T *c = cached(3, 6), *k = pair_of(of(2, 2, 4), c, 1), *all;
    T *a = gckpt_linear(gckpt_attention(of(2, 3, 4), k, k, 1, 1), table(4), NULL);
    gckpt_term loss = { gckpt_sum_loss(a), 1, 0 };
    gckpt_pick pick = { c, 0 };
    gckpt_plan_desc d = { .threads = 1 };
    CHECK(!gckpt_plan_new(counter, &loss, 1, &d) && says(counter, "gckpt_cache is for GCKPT_INFERENCE"));
    d.mode = GCKPT_INFERENCE;
    d.precision = GCKPT_BF16_STOCHASTIC;
    CHECK(!gckpt_plan_new(counter, &loss, 1, &d) && says(counter, "rounded by chance"));
    d.precision = GCKPT_FP32;
    d.fetch = &pick;
    d.fetches = 1;
    for (all = c; all; all = all == c ? k : NULL, pick.tensor = k)
        CHECK(!gckpt_plan_new(counter, &loss, 1, &d) && says(counter, "of caches the executor's"));
    pick.tensor = a;
    gckpt_plan *p = gckpt_plan_new(counter, &loss, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(counter));
    rig_free(NULL, p, counter, shop);
}

static void fill_words(void)
{
    for (int i = 0; i < B * ALL; i++)
        words[i] = (int32_t)below(V);
}

int main(void)
{
    fill_words();
    everywhere();
    failures();
    sharing();
    allocations();
    files();
    refusals();
    return check_report("cache");
}
