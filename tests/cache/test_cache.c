/* test_cache.c - a model that generates token by token with caches (generation.h) has the logits of one call with
 * all tokens. Also tests refused calls, bytes, failing allocations, executors that share caches, and printed
 * plans. test_backend.c runs the same model in memory that the host cannot read, test_firmware.sh with plans as C
 * constants. */
#include "gradckpt.h"

#include "examples/print.h"
#include "generation.h"

static void everywhere(void)
{
    for (int style = 0; style < STYLES; style++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            gckpt_plan_desc plan = { .bf16.precision = bf16 ? GCKPT_BF16 : GCKPT_FP32 };
            for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
                gckpt_exec_desc x = { .isa = (gckpt_isa)isa, .debug = GCKPT_DEBUG_POISON };
                if (gckpt_isa_available((gckpt_isa)isa))
                    gen_check_same(style, &plan, &x, isa_name((gckpt_isa)isa));
            }
            gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE, .parallel_for = any_order };
            plan.threads = 3;
            plan.kernels.stage_parameters = 1;
            gen_check_same(style, &plan, &x, "threads");
        }
}

/* ---- calls that are refused or that fail do not change the caches ---- */
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
    static float want[B * ALL * WORDS], got[B * ALL * WORDS];
    gckpt_plan_desc d = { .threads = 1 };
    gckpt_exec_desc x = { .progress = cancel };
    gckpt_store *s = gckpt_store_new(NULL);
    generator all = gen_start(s, B, 8, 0, LEARNED, &d, NULL), r = gen_start(s, B, 4, 11, LEARNED, &d, &x);
    cancel_at = -1;
    CHECK(gen_call(&all, B, 0, want) == GCKPT_OK && gen_call(&r, B, 0, got) == GCKPT_OK);
    const int length = gckpt_plan_describe(r.p).instructions;
    for (cancel_at = 0; cancel_at < length; cancel_at++)
        CHECK(gen_call(&r, B, 0, got) == GCKPT_CANCELLED && gckpt_position(r.e) == 4);
    cancel_at = -1;
    gen_words[5] += WORDS;
    CHECK(gen_call(&r, B, 4, got) == GCKPT_E_DATA && gckpt_position(r.e) == 4);
    gen_words[5] -= WORDS;
    CHECK(gckpt_rewind(r.e, 5) == GCKPT_E_ARG && says(r.e, "position 5; it must be from 0 to 4"));
    CHECK(gckpt_rewind(r.e, -1) == GCKPT_E_ARG && gckpt_position(r.e) == 4);
    CHECK(gen_call(&r, B, 4, got) == GCKPT_OK && gckpt_position(r.e) == 8);
    for (int b = 0; b < B; b++)
        CHECK(!memcmp(want + b * ALL * WORDS, got + b * ALL * WORDS, 8 * WORDS * sizeof *got));
    CHECK(gen_call(&r, B, 8, got) == GCKPT_E_ARG && gckpt_position(r.e) == 8);
    CHECK(says(r.e, "adds 4 positions to the 8") && says(r.e, "room for 11") && says(r.e, "gckpt_rewind"));
    /* a call may have at most as many rows as the calls before it, unless the caches are empty, and never more than
     * the graph */
    CHECK(gckpt_rewind(r.e, 0) == GCKPT_OK && gckpt_error(r.e) == GCKPT_OK);
    CHECK(gen_call(&r, 2, 0, got) == GCKPT_OK);
    CHECK(gen_call(&r, B, 4, got) == GCKPT_E_ARG && says(r.e, "3 rows; the caches hold 2"));
    memset(got, 0, sizeof got);
    CHECK(gen_call(&r, 1, 4, got) == GCKPT_OK && !memcmp(want + 4 * WORDS, got + 4 * WORDS, 4 * WORDS * sizeof *got));
    CHECK(gckpt_rewind(r.e, 0) == GCKPT_OK && gen_call(&r, B, 0, got) == GCKPT_OK);
    CHECK(gckpt_rewind(r.e, 0) == GCKPT_OK);
    gckpt_feed feed = { r.tokens, gen_words };
    CHECK(gckpt_forward(r.e, &feed, 1, B + 1, NULL) == GCKPT_E_ARG && says(r.e, "(then 1 to 3 rows fit)"));
    CHECK(gckpt_position(NULL) == 0 && gckpt_rewind(NULL, 0) == GCKPT_E_ARG);
    CHECK(gckpt_rewind(all.e, 1) == GCKPT_E_ARG && gckpt_rewind(all.e, 0) == GCKPT_OK);
    gen_end(&r), gen_end(&all);
    gckpt_store_free(s);
}

/* ---- the position of a call, which ops receive; everything except caches starts from zero in each call ---- */
static int64_t position;
static gckpt_result probe_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void probe_forward(const gckpt_call *call)
{
    position = call->position;
    memcpy(call->out, call->in[0].data, (size_t)count_of(&call->shape) * sizeof *call->out);
}

static void apart(void)
{
    static const gckpt_op probe = { .name = "tell", .shape = probe_shape, .forward = probe_forward };
    float x[2 * 4 * C], first[2 * 4 * C];
    for (int i = 0; i < 2 * 4 * C; i++)
        x[i] = (float)below(100) / 50 - 1;
    for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 4, C)), *k = gckpt_cache(in, 8);
        gckpt_tensor *alone = gckpt_attention(gckpt_apply(&probe, &in, 1, NULL, 0), in, in,
                                              &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 });
        gckpt_tensor *all = gckpt_attention(in, k, k, &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 });
        gckpt_fetch_spec fetches[2] = { { alone, 0 }, { all, 0 } };
        gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = fetches, .fetch.count = 2 };
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
        gckpt_exec_desc desc = { .isa = gckpt_isa_available((gckpt_isa)isa) ? (gckpt_isa)isa : GCKPT_ISA_AUTO };
        gckpt_exec *e = gckpt_exec_new(p, s, &desc);
        gckpt_feed feed = { gckpt_id(in), x };
        for (int call = 0; call < 2; call++) {
            CHECK_MSG(gckpt_forward(e, &feed, 1, 2, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
            CHECK(position == 4 * call);
            CHECK(call || !memcmp(gckpt_fetch(e, gckpt_id(alone), 0), gckpt_fetch(e, gckpt_id(all), 0), sizeof x));
            if (!call)
                memcpy(first, gckpt_fetch(e, gckpt_id(alone), 0), sizeof first);
        }
        CHECK(!memcmp(first, gckpt_fetch(e, gckpt_id(alone), 0), sizeof first));
        CHECK(memcmp(first, gckpt_fetch(e, gckpt_id(all), 0), sizeof first));
        util_free(e, p, g, s);
    }
}

/* ---- caches of another executor ---- */
/* The functions below create executors with caches of shape (6,8,C), which a batch of 3 or 6 rows fills. */
#ifndef GCKPT_NO_DEVICES
static gckpt_kernel finds_none(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context, (void)op, (void)kind;
    return NULL;
}
static const gckpt_backend elsewhere = { .name = "elsewhere", .find = finds_none };
#endif

static gckpt_exec *merged(gckpt_store *s, int64_t rows, gckpt_exec *caches_of, const gckpt_backend *backend)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(rows, 24 / rows, C));
    gckpt_tensor *q = gckpt_reshape(x, gckpt_shape3(6, 4, C)), *k = gckpt_cache(q, 8);
    gckpt_fetch_spec fetch = { gckpt_attention(q, k, k, &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 }), 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1, .backend = backend };
    gckpt_exec_desc desc = { .caches_of = caches_of, .backend = backend };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, &desc);
    util_free(NULL, p, g, NULL);
    return e;
}

#ifndef GCKPT_NO_RANKS
/* Tests that gckpt_forward refuses a plan with both caches and virtual ranks: virtual ranks would divide the rows of a
 * call, but a cache holds all rows. */
static void cut_by_vranks(gckpt_store *s)
{
    static const float rows[6 * 4 * C];
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(6, 4, C)), *k = gckpt_cache(x, 8);
    const gckpt_fetch_spec fetch = { gckpt_attention(x, k, k, &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 }),
                                     0 };
    const gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1,
                                .ranks.virtual_ranks = 2 };
    const gckpt_feed feed = { gckpt_id(x), rows };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    CHECK_MSG(e && gckpt_forward(e, &feed, 1, 6, NULL) == GCKPT_E_ARG && says(e, "2 virtual ranks would divide"), "%s",
              gckpt_error_text(e ? (void *)e : (void *)g));
    util_free(e, p, g, NULL);
}
#endif

static void sharing(void)
{
    gckpt_store *s = gckpt_store_new(NULL), *s2 = gckpt_store_new(NULL);
    gckpt_plan_desc d = { .threads = 1 }, bf16 = { .bf16.precision = GCKPT_BF16 }, wide = { .kernels.alignment = 256 };
    generator own = gen_start(s, B, 4, 20, ROTARY, &d, NULL);
    gckpt_exec_desc x = { .caches_of = own.e };
    const struct {
        gckpt_store *s;
        int64_t rows, t, capacity;
        int style;
        const gckpt_plan_desc *d;
        int fits;
    } others[] = { { s, B, 1, 20, ROTARY, &wide, 1 },  { s, B, 1, 20, LEARNED, &d, 1 },
                   { s, B, 1, 0, ROTARY, &d, 1 },      { s, B, 4, 21, ROTARY, &d, 0 },
                   { s, B - 1, 4, 20, ROTARY, &d, 0 },
                   { s, B, 4, 20, ROTARY, &bf16, 0 }, { s2, B, 4, 20, ROTARY, &d, 0 },
                   { s, 2 * B, 4, 10, ROTARY, &d, 0 }, { s, B, 4, 40, ROTARY, &bf16, 0 } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
#ifdef GCKPT_NO_BF16
        if (others[i].d == &bf16)
            continue;
#endif
        gckpt_store *home = others[i].s;
        generator r = gen_start(home, others[i].rows, others[i].t, others[i].capacity, others[i].style,
                              others[i].d, NULL);
        gckpt_exec *e = gckpt_exec_new(r.p, home, &x);
        CHECK_MSG((e != NULL) == others[i].fits, "%d: %s", (int)i, gckpt_error_text(home));
        CHECK(e || says(home, "desc.caches_of has other caches"));
        gckpt_exec_free(e);
        gen_end(&r);
    }
    gckpt_exec *of_three = merged(s, 3, NULL, NULL), *same = merged(s, 3, of_three, NULL);
    CHECK(of_three && same && !merged(s, 6, of_three, NULL) && says(s, "desc.caches_of has other caches"));
#ifndef GCKPT_NO_DEVICES
    CHECK(!merged(s, 3, of_three, &elsewhere) && says(s, "desc.caches_of has other caches"));
    gckpt_exec_free(merged(s, 3, NULL, &elsewhere));
#endif
#ifndef GCKPT_NO_RANKS
    cut_by_vranks(s);
    CHECK(gckpt_error(s) == GCKPT_OK); /* the last executor of this store was created without an error */
#endif
    gckpt_exec_free(same);
    gckpt_exec_free(of_three);
    /* the third executor shares the caches of the second, which shares those of the first; the second may be freed
     * before the third */
    generator first = gen_start(s, B, 2, 20, ROTARY, &d, &x);
    x.caches_of = first.e;
    generator second = gen_start(s, B, 3, 20, ROTARY, &d, &x);
    float got[B * ALL * WORDS];
    CHECK(gen_call(&own, B, 0, got) == GCKPT_OK && gen_call(&first, B, 4, got) == GCKPT_OK);
    gen_end(&first);
    CHECK(gen_call(&second, B, 6, got) == GCKPT_OK && gckpt_position(own.e) == 9);
    gen_end(&second);
    CHECK(gckpt_rewind(own.e, 9) == GCKPT_OK);
    gen_end(&own);
    gckpt_store_free(s), gckpt_store_free(s2);
}

/* ---- memory: any allocation may fail, nothing leaks ---- */
static void allocations(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    generator r = gen_start(s, B, 4, 20, LEARNED, &(gckpt_plan_desc){ .threads = 1 }, NULL);
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
    CHECK(calls > 2);
    gen_end(&r);
    gckpt_store_free(s);
}

/* ---- printed plans ---- */
static void printed(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gen_model m = gen_build(s, B, 4, 20, PREFIXED);
    gckpt_fetch_spec fetch = { m.logits, 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(m.g, NULL, 0, &d);
    file f = { 0 };
    CHECK(print_plan(p, file_write, &f) == GCKPT_OK);
    CHECK(strstr((char *)f.bytes, "  caches: 15360 bytes\n") != NULL);
    free(f.bytes);
    gckpt_plan_free(p);
    gckpt_graph_free(m.g);
    gckpt_store_free(s);
}

/* ---- refusals when a graph is built or planned ---- */
static gckpt_store *store;
static gckpt_graph *graph;
static gckpt_tensor *of(int64_t a, int64_t b, int64_t c)
{
    static int n;
    char name[16];
    snprintf(name, sizeof name, "x%d", n++);
    return gckpt_input(graph, name, GCKPT_F32, gckpt_shape3(a, b, c));
}
static gckpt_tensor *table(int64_t n)
{
    char name[16];
    snprintf(name, sizeof name, "t%d", (int)n);
    return gckpt_param(graph, name, gckpt_shape2(n, 4), (gckpt_init){ 1, 0, 0 });
}

#define REFUSED(result, text, call)                                                               \
    do {                                                                                           \
        graph = gckpt_graph_new(store, NULL);                                                     \
        gckpt_tensor *refused = call;                                                                         \
        CHECK_MSG(!refused && gckpt_error(graph) == result && says(graph, text), "%s: \"%s\"", #call, \
                  gckpt_error_text(graph));                                                      \
        gckpt_graph_free(graph);                                                                 \
    } while (0)

static gckpt_tensor *cached(int64_t t, int64_t capacity) { return gckpt_cache(of(2, t, 4), capacity); }
static gckpt_tensor *lengths_with(gckpt_tensor *k)
{
    const gckpt_attention_desc desc = { 2, 0, 1, gckpt_input(graph, "lengths", GCKPT_I32, gckpt_shape1(2)), 0, 0, 0, NULL, NULL, NULL };
    return gckpt_attention(of(2, 3, 4), k, k, &desc);
}
static gckpt_tensor *after(gckpt_tensor *first, gckpt_tensor *then) { return first && then ? then : NULL; }
static gckpt_tensor *pair_of(gckpt_tensor *a, gckpt_tensor *b, int axis)
{
    gckpt_tensor *in[2] = { a, b };
    return gckpt_concat(in, 2, axis);
}
static gckpt_tensor *attends(int64_t t, int causal, int which)
{
    gckpt_tensor *q = of(2, t, 4), *x = of(2, 6, 4), *c = cached(3, 6);
    return gckpt_attention(which & 4 ? c : q, which & 2 ? c : x, which & 1 ? c : x,
                           &(gckpt_attention_desc){ .heads = 1, .causal = causal });
}

/* Adds attention with a window of `sees` keys over a cache with a window of `keeps` rows; 0 means no window. */
static gckpt_tensor *windows(int64_t t, int64_t capacity, int64_t keeps, int64_t sees)
{
    gckpt_tensor *c = gckpt_cache_window(of(2, t, 4), capacity, keeps);
    const gckpt_attention_desc desc = { 1, 0, 1, NULL, sees, 0, 0, NULL, NULL, NULL };
    return gckpt_attention(of(2, t, 4), c, c, &desc);
}
/* Adds the gated delta rule of t queries and caches; the one of `which`, 0 to 3, is left out. */
static gckpt_tensor *delta_on(int64_t t, int64_t capacity, int64_t window, int which)
{
    gckpt_tensor *in[4];
    for (int i = 0; i < 4; i++)
        in[i] = which == i ? of(2, capacity, 4) : gckpt_cache_window(of(2, t, 4), capacity, window);
    return gckpt_attention(of(2, t, 4), in[0], in[1],
                           &(gckpt_attention_desc){ .heads = 4, .causal = 1, .decay = in[2], .beta = in[3] });
}
static gckpt_tensor *latest(int64_t t, int64_t capacity, int64_t window, int64_t begin, int64_t end)
{
    return gckpt_slice(gckpt_cache_window(of(2, t, 4), capacity, window), 1, begin, end);
}
static int64_t rows_of(int64_t t, int64_t capacity, int64_t window)
{
    graph = gckpt_graph_new(store, NULL);
    const int64_t rows = gckpt_shape_of(gckpt_cache_window(of(2, t, 4), capacity, window)).d[1];
    gckpt_graph_free(graph);
    return rows;
}

/* Tests a cache with a window, which keeps a fixed number of rows: the rows limit how long a call may be, and
 * gckpt_rewind can go back to any position whose keys are still kept, or to 0. */
static void windows_kept(void)
{
    store = gckpt_store_new(NULL);
    CHECK(rows_of(4, 1000, 1) == 64 && rows_of(4, 1000, 2) == 128 && rows_of(64, 1000, 65) == 128);
    CHECK(rows_of(4, 1000, 66) == 192 && rows_of(4, 1000, 512) == 576 && rows_of(4, 576, 512) == 576);
    CHECK(rows_of(4, 577, 512) == 576 && rows_of(4, 576, 0) == 576 && rows_of(4, 600, INT64_MAX) == 600);
    REFUSED(GCKPT_E_ARG, "a window of -1 rows", gckpt_cache_window(of(2, 3, 4), 100, -1));
    REFUSED(GCKPT_E_SHAPE, "T at most the capacity of 128 rows", gckpt_cache_window(of(2, 129, 4), 1000, 20));
    REFUSED(GCKPT_E_ARG, "has a window of 20 keys; attention on it needs", windows(3, 1000, 20, 0));
    REFUSED(GCKPT_E_ARG, "at most that, not 21", windows(3, 1000, 20, 21));
    REFUSED(GCKPT_E_ARG, "at most that, not 1000", windows(3, 1000, 20, 1000));
    REFUSED(GCKPT_E_ARG, "holds 128 rows; with a window of 20 a call can add 109 of them, not 110",
            windows(110, 1000, 20, 20));
    REFUSED(GCKPT_E_ARG, "of a cache without a window, gckpt_concat",
            pair_of(of(2, 2, 4), gckpt_cache_window(of(2, 3, 4), 1000, 20), 1));
    REFUSED(GCKPT_E_ARG, "relu: cache #", gckpt_relu(gckpt_cache_window(of(2, 3, 4), 1000, 20)));
    REFUSED(GCKPT_E_ARG, "holds 64 rows; a call can add half of them, not 33", delta_on(33, 1000, 1, -1));
    REFUSED(GCKPT_E_ARG, "and read as many earlier ones, not 60", latest(4, 1000, 1, 0, 64));
    REFUSED(GCKPT_E_ARG, "slice: cache #", latest(4, 1000, 1, 0, 63));
    REFUSED(GCKPT_E_ARG, "slice: cache #", gckpt_slice(gckpt_cache_window(of(2, 3, 4), 1000, 20), 2, 0, 4));
    REFUSED(GCKPT_E_SHAPE, "v [2,1000,4] (B,T,heads D)", delta_on(3, 1000, 1, 1));
    REFUSED(GCKPT_E_ARG, "must be a gckpt_cache itself",
            gckpt_attention(of(2, 3, 4), pair_of(of(2, 2, 4), cached(3, 6), 1), of(2, 8, 4),
                            &(gckpt_attention_desc){ .heads = 4, .causal = 1, .decay = of(2, 8, 4), .beta = of(2, 8, 4) }));
    REFUSED(GCKPT_E_ARG, "the 3 rows that a call adds",
            gckpt_attention(of(2, 6, 4), cached(3, 6), of(2, 6, 4),
                            &(gckpt_attention_desc){ .heads = 4, .causal = 1, .decay = of(2, 6, 4), .beta = of(2, 6, 4) }));
    graph = gckpt_graph_new(store, NULL);
    CHECK(delta_on(32, 1000, 1, -1) && latest(32, 1000, 1, -64, 64) && gckpt_error(graph) == GCKPT_OK);
    gckpt_graph_free(graph);
    graph = gckpt_graph_new(store, NULL);
    CHECK(!gckpt_cache_window(NULL, 4, 2) && windows(109, 1000, 20, 20) && gckpt_error(graph) == GCKPT_OK);
    gckpt_graph_free(graph);
    /* axes 1 and -2 are the same axis, so concatenating rows before a cache must work with both */
    graph = gckpt_graph_new(store, NULL);
    CHECK(gckpt_shape_of(pair_of(of(2, 2, 4), cached(3, 6), -2)).d[1] == 8);
    gckpt_graph_free(graph);
    graph = gckpt_graph_new(store, NULL);
    CHECK(windows(3, 83, 20, 50) != NULL); /* the capacity of this cache is small enough for it to keep all rows */
    util_free(NULL, NULL, graph, store);
}

static void refusals(void)
{
    store = gckpt_store_new(NULL);
    REFUSED(GCKPT_E_ARG, "a capacity of 0 rows", cached(3, 0));
    REFUSED(GCKPT_E_ARG, "a capacity of 2147483648 rows", cached(3, INT64_C(2147483648)));
    REFUSED(GCKPT_E_SHAPE, "T at most the capacity of 5 rows", cached(6, 5));
    REFUSED(GCKPT_E_SHAPE, "must be (B,T,C)", gckpt_cache(gckpt_sum(of(2, 3, 4), 1), 5));
    REFUSED(GCKPT_E_ARG, "depends on parameters only", gckpt_cache(table(3), 5));
    REFUSED(GCKPT_E_ARG, "cache: cache #", gckpt_cache(cached(3, 6), 6));
    REFUSED(GCKPT_E_ARG, "need causal attention without lengths", lengths_with(cached(3, 6)));
    REFUSED(GCKPT_E_SHAPE, "all caches of a graph need one capacity", after(cached(3, 6), cached(3, 7)));
    REFUSED(GCKPT_E_SHAPE, "one T, here 6 and T = ", after(cached(3, 6), cached(2, 6)));
    REFUSED(GCKPT_E_ARG, "relu: cache #", gckpt_relu(cached(3, 6)));
    REFUSED(GCKPT_E_ARG, "sum_loss: cache #", gckpt_sum_loss(cached(3, 6)));
    REFUSED(GCKPT_E_ARG, "reshape: cache #", gckpt_reshape(cached(4, 6), gckpt_shape3(2, 3, 8)));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(cached(3, 6), of(2, 6, 4), 1));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(of(2, 6, 4), cached(3, 6), 2));
    REFUSED(GCKPT_E_ARG, "concat: cache #", pair_of(cached(3, 6), cached(3, 6), 1));
    REFUSED(GCKPT_E_ARG, "need causal attention", attends(3, 0, 3));
    REFUSED(GCKPT_E_ARG, "values of a gckpt_cache", attends(3, 1, 2));
    REFUSED(GCKPT_E_ARG, "the 3 queries of the rows", attends(2, 1, 3));
    REFUSED(GCKPT_E_ARG, "need causal attention", attends(3, 1, 7));
    REFUSED(GCKPT_E_ARG, "v without k: cache #", attends(3, 1, 1));
    REFUSED(GCKPT_E_ARG, "attention: q is cached", attends(3, 1, 4));
    REFUSED(GCKPT_E_SHAPE, "capacity of 6 rows, but the table has 5",
            after(cached(3, 6), gckpt_positions(of(2, 3, 4), table(9), 4)));
    REFUSED(GCKPT_E_SHAPE, "capacity of 6 rows, but the table has 5",
            after(gckpt_positions(of(2, 3, 4), table(9), 4), cached(3, 6)));
    /* each of several tables needs the rows of the capacity, here from row 4 on */
    REFUSED(GCKPT_E_SHAPE, "capacity of 7 rows, but the table has 6",
            after(after(gckpt_positions(of(2, 3, 4), table(11), 4), gckpt_positions(of(2, 3, 4), table(10), 4)),
                  after(gckpt_positions(of(2, 3, 4), table(12), 4), cached(3, 7))));
    graph = gckpt_graph_new(store, NULL);
    CHECK(gckpt_positions(of(2, 3, 4), table(12), 5) && gckpt_positions(of(2, 3, 4), table(11), 4));
    CHECK(cached(3, 7) && gckpt_positions(of(2, 3, 4), table(10), 3) && gckpt_error(graph) == GCKPT_OK);
    gckpt_graph_free(graph);
    REFUSED(GCKPT_E_SHAPE, "Tmax >= T + first and first >= 0; first is 7", gckpt_positions(of(2, 3, 4), table(9), 7));
    REFUSED(GCKPT_E_SHAPE, "first is -1", gckpt_positions(of(2, 3, 4), table(9), -1));
    REFUSED(GCKPT_E_SHAPE, "first is 9223372036854775807", gckpt_positions(of(2, 3, 4), table(9), INT64_MAX));
    REFUSED(GCKPT_E_ARG, "must not depend on inputs",
            gckpt_positions(of(2, 3, 4), gckpt_reshape(of(2, 3, 4), gckpt_shape2(6, 4)), 0));
    REFUSED(GCKPT_E_ARG, "first position -1",
            gckpt_rotary(of(2, 3, 4), &(gckpt_rotary_desc){ .heads = 2, .position = -1 }));
    REFUSED(GCKPT_E_ARG, "first position 2147483648",
            gckpt_rotary(of(2, 3, 4), &(gckpt_rotary_desc){ .heads = 2, .position = INT64_C(2147483648) }));
    graph = gckpt_graph_new(store, NULL);
    CHECK(!gckpt_cache(NULL, 4) && !gckpt_rotary(NULL, &(gckpt_rotary_desc){ .heads = 1, .position = 1 }) &&
          !gckpt_positions(NULL, NULL, 1));
    CHECK(gckpt_error(graph) == GCKPT_OK);
    gckpt_tensor *c = cached(3, 6), *k = pair_of(of(2, 2, 4), c, 1), *all;
    gckpt_tensor *a = gckpt_linear(
        gckpt_attention(of(2, 3, 4), k, k, &(gckpt_attention_desc){ .heads = 1, .causal = 1 }), table(4), NULL);
    gckpt_term loss = { gckpt_sum_loss(a), 1, 0 };
    gckpt_fetch_spec fetch = { c, 0 };
    gckpt_plan_desc d = { .threads = 1 };
    CHECK(!gckpt_plan_new(graph, &loss, 1, &d) && says(graph, "gckpt_cache is for GCKPT_INFERENCE"));
    d.mode = GCKPT_INFERENCE;
    d.fetch.specs = &fetch;
    d.fetch.count = 1;
    for (all = c; all; all = all == c ? k : NULL, fetch.tensor = k)
        CHECK(!gckpt_plan_new(graph, &loss, 1, &d) && says(graph, "of caches the executor's"));
    fetch.tensor = a;
    gckpt_plan *p = gckpt_plan_new(graph, &loss, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(graph));
    util_free(NULL, p, graph, store);
}

/* Tests that the total of the cache sizes is not truncated to 64 bits: a plan too large for any machine is refused,
 * with and without a budget. */
static void too_many(void)
{
    const int wide = sizeof(size_t) > 4;
    static gckpt_cost costs[200];
    store = gckpt_store_new(NULL);
    graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = of(1, 1, wide ? 1 << 26 : 1 << 10);
    for (int i = 0; i < 64; i++)
        CHECK_MSG(gckpt_cache(x, wide ? 1 << 30 : 1 << 15), "%s", gckpt_error_text(graph));
    const gckpt_fetch_spec fetch = { gckpt_relu(x), 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .costs.by_id = costs, .fetch.specs = &fetch, .fetch.count = 1 };
    d.costs.count = gckpt_graph_size(graph);
    for (d.budget = 0; d.budget <= 1000; d.budget += 1000) {
        gckpt_plan *p = gckpt_plan_new(graph, NULL, 0, &d);
        CHECK_MSG(!p && gckpt_error(graph) == GCKPT_E_MEMORY && says(graph, "than this machine can address"),
                  "%g bytes: %s", (double)gckpt_plan_bytes(p), gckpt_error_text(graph));
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, graph, store);
}

int main(void)
{
    too_many();
    gen_fill();
    everywhere();
    failures();
    apart();
    sharing();
    allocations();
    printed();
    windows_kept();
    refusals();
    return check_report("cache");
}
