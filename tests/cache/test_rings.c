/* test_rings.c - random calls over caches with a window (gckpt_cache_window), compared with one call over the same
 * tokens without caches: calls of any length, executors that share caches, a decreasing number of rows, other tokens
 * after a rewind. gckpt_rewind may go to any position for which all keys that attention needs are still kept; a
 * refused call changes nothing.
 *
 *     build/test_rings [first seed] [number] */
#include "gradckpt.h"
#include "util.h"

enum { ROWS = 3, LONGEST = 420, WIDEST = 24, LAYERS = 2, EXECS = 4 };

typedef struct {
    /* kept: window of each layer's cache; 0 selects gckpt_cache without a window */
    int64_t rows, length, t, window[LAYERS], kept[LAYERS];
    /* shared: nonzero if attention uses the keys as the values as well */
    int heads, key_heads, c, shared, rotary;
    float cap;
} model;

typedef struct {
    int64_t t;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_tensor *in, *out;
} runner;

static gckpt_tensor *projected(gckpt_tensor *x, const char *what, int layer, int64_t from, int64_t to)
{
    char name[16];
    snprintf(name, sizeof name, "%s%d", what, layer);
    const gckpt_init init = { .normal = 0.5f };
    gckpt_graph *g = gckpt_graph_of(x);
    return gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(from, to), init), NULL);
}

/* Creates an executor for calls of t tokens; if t is 0, for one call of all tokens without caches. */
static runner start(gckpt_store *s, const model *m, int64_t t, const gckpt_plan_desc *request, const gckpt_exec_desc *x)
{
    runner r = { t ? t : m->length, gckpt_graph_new(s, NULL), NULL, NULL, NULL, NULL };
    const int64_t keys = m->c / m->heads * m->key_heads;
    gckpt_tensor *h = r.in = gckpt_input(r.g, "x", GCKPT_F32, gckpt_shape3(m->rows, r.t, m->c));
    for (int l = 0; l < LAYERS; l++) {
        const gckpt_attention_desc desc = { m->heads, m->key_heads, 1, NULL, m->window[l], m->cap, 0, NULL, NULL, NULL };
        gckpt_tensor *q = projected(h, "q", l, m->c, m->c), *k = projected(h, "k", l, m->c, keys);
        gckpt_tensor *v = m->shared ? NULL : projected(h, "v", l, m->c, keys);
        if (m->rotary)
            q = gckpt_rotary(q, &(gckpt_rotary_desc){ .heads = m->heads }),
            k = gckpt_rotary(k, &(gckpt_rotary_desc){ .heads = m->key_heads });
        k = t ? gckpt_cache_window(k, m->length, m->kept[l]) : k;
        v = v && t ? gckpt_cache_window(v, m->length, m->kept[l]) : v;
        h = gckpt_add(h, gckpt_tanh(gckpt_attention(q, k, v ? v : k, &desc)));
    }
    const gckpt_fetch_spec fetch = { r.out = h, 0 };
    gckpt_plan_desc d = *request;
    d.mode = GCKPT_INFERENCE, d.fetch.specs = &fetch, d.fetch.count = 1;
    r.p = h ? gckpt_plan_new(r.g, NULL, 0, &d) : NULL;
    r.e = r.p ? gckpt_exec_new(r.p, s, x) : NULL;
    return r;
}
static void end(runner *r) { util_free(r->e, r->p, r->g, NULL); }

/* Returns the number of rows that the cache of layer l keeps. */
static int64_t rows_of(const model *m, int l)
{
    const int64_t rows = (m->kept[l] + 126) / 64 * 64;
    return m->kept[l] == 0 || rows >= m->length ? m->length : rows;
}

static model random_model(void)
{
    static const int64_t windows[] = { 1, 1, 2, 7, 20, 63, 64, 65, 100, 127, 128, 129, 190 };
    model m = { 1 + below(ROWS), 100 + below(LONGEST - 100), 0, { 0 }, { 0 }, chance(50) ? 2 : 4, 0, 0, 0, 0, 0 };
    m.key_heads = chance(50) ? m.heads : m.heads / 2;
    m.c = m.heads * (chance(50) ? 4 : 6), m.shared = chance(50), m.rotary = chance(50), m.cap = chance(40) ? 1.5f : 0;
    m.t = m.length;
    for (int l = 0; l < LAYERS; l++) {
        m.window[l] = windows[below(sizeof windows / sizeof *windows)];
        m.window[l] = m.window[l] > m.length ? 9 : m.window[l];
        m.kept[l] = chance(15) ? 0 : m.window[l] + (chance(60) ? 0 : below(100));
        const int64_t most = rows_of(&m, l) - m.window[l] + 1;
        m.t = rows_of(&m, l) < m.length && most < m.t ? most : m.t; /* the longest call */
    }
    return m;
}

/* ---- a model and many random calls ---- */
static float fed[ROWS * LONGEST * WIDEST], history[ROWS * LONGEST * WIDEST];
static int64_t ring[LAYERS][LONGEST]; /* ring[l][r]: position of the token whose keys row r of cache l holds */

static int keys_are_there(const model *m, int64_t position)
{
    for (int l = 0; l < LAYERS; l++)
        for (int64_t p = position - 1; p >= 0 && p > position - m->window[l]; p--)
            if (ring[l][p % rows_of(m, l)] != p)
                return 0;
    return 1;
}

/* Returns the earliest position to which gckpt_rewind may go, computed as the documentation of gckpt_position defines
 * it. */
static int64_t least_of(const model *m, int64_t written)
{
    int64_t least = 0;
    for (int l = 0; l < LAYERS; l++) {
        const int64_t rows = rows_of(m, l), from = written - rows + m->window[l] - 1;
        least = rows < m->length && written > rows && from > least ? from : least;
    }
    return least;
}

/* Compares `rows` rows of the output of u, from `position` on, with those of the single call over all tokens. */
static void compare(unsigned seed, const model *m, runner *whole, const runner *u, int64_t rows, int64_t position)
{
    const gckpt_feed feed = { gckpt_id(whole->in), history };
    CHECK(gckpt_forward(whole->e, &feed, 1, m->rows, NULL) == GCKPT_OK);
    const float *want = gckpt_fetch(whole->e, gckpt_id(whole->out), 0) + position * m->c;
    const float *got = gckpt_fetch(u->e, gckpt_id(u->out), 0);
    for (int64_t b = 0; b < rows; b++)
        CHECK_MSG(!memcmp(want + b * m->length * m->c, got + b * u->t * m->c, (size_t)(u->t * m->c) * sizeof *got),
                  "seed %u, windows %d %d in %d %d rows: row %d, %d positions from %d on are others", seed,
                  (int)m->window[0], (int)m->window[1], (int)rows_of(m, 0), (int)rows_of(m, 1), (int)b, (int)u->t,
                  (int)position);
}

static void calls(unsigned seed, const model *m, runner *whole, runner *r)
{
    int64_t position = 0, rows = 0, written = 0;
    memset(ring, 0xff, sizeof ring);
    for (int step = 0; step < 40; step++) {
        runner *u = &r[below(EXECS)];
        if (chance(25)) {
            int64_t to = chance(10) ? 0 : chance(50) ? position - below(80) : (int64_t)below(position + 2);
            to = to < 0 ? 0 : to;
            const int legal = to <= position && (to == 0 || to >= least_of(m, written));
            CHECK(!legal || to == 0 || keys_are_there(m, to));
            CHECK_MSG((gckpt_rewind(u->e, to) == GCKPT_OK) == legal, "seed %u: from %d of %d to %d", seed,
                      (int)position, (int)written, (int)to);
            position = legal ? to : position;
            written = position ? written : 0;
            CHECK(gckpt_position(u->e) == position);
            continue;
        }
        if (position == 0)
            rows = m->rows;
        rows = chance(15) ? 1 + below(rows) : rows;
        for (int64_t i = 0; i < rows * u->t * m->c; i++)
            fed[i] = ((float)below(2001) - 1000) / 500;
        const gckpt_feed feed = { gckpt_id(u->in), fed };
        if (chance(10)) { /* refused; nothing may change */
            CHECK(gckpt_forward(u->e, &feed, 0, rows, NULL) == GCKPT_E_ARG);
            continue;
        }
        const gckpt_result result = gckpt_forward(u->e, &feed, 1, rows, NULL);
        if (position + u->t > m->length) {
            CHECK(result == GCKPT_E_ARG);
            CHECK(gckpt_rewind(u->e, position = written = 0) == GCKPT_OK);
            continue;
        }
        if (!CHECK_MSG(result == GCKPT_OK, "seed %u: at %d: %s", seed, (int)position, gckpt_error_text(u->e)))
            return;
        for (int64_t b = 0; b < rows; b++)
            memcpy(history + (b * m->length + position) * m->c, fed + b * u->t * m->c,
                   (size_t)(u->t * m->c) * sizeof *fed);
        for (int64_t p = position; p < position + u->t; p++)
            for (int l = 0; l < LAYERS; l++)
                ring[l][p % rows_of(m, l)] = p;
        compare(seed, m, whole, u, rows, position);
        position += u->t, written = position > written ? position : written;
    }
}

static void try_model(unsigned seed)
{
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 5; i++)
        (void)below(2);
    const model m = random_model();
    const gckpt_plan_desc d = { .bf16.precision = chance(40) ? GCKPT_BF16 : GCKPT_FP32, .threads = between(1, 3) };
    gckpt_exec_desc x = { .isa = (gckpt_isa)below(GCKPT_ISA_COUNT), .debug = chance(50) ? GCKPT_DEBUG_POISON : 0 };
    x.isa = gckpt_isa_available(x.isa) ? x.isa : GCKPT_ISA_AUTO;
    x.parallel_for = d.threads > 1 ? any_order : NULL;
    gckpt_store *s = gckpt_store_new(NULL);
    runner whole = start(s, &m, 0, &d, &x), r[EXECS], longer = start(s, &m, m.t + 1, &d, &x);
    CHECK(!longer.out);
    for (int i = 0; i < EXECS; i++) {
        r[i] = start(s, &m, i == 0 ? 1 : i == 1 ? m.t : 1 + below(m.t < 64 ? m.t : 64), &d, &x);
        CHECK_MSG(r[i].e != NULL, "seed %u: %s %s", seed, gckpt_error_text(r[i].g), gckpt_error_text(s));
        x.caches_of = r[0].e;
    }
    if (whole.e && r[0].e && r[1].e && r[2].e && r[3].e)
        calls(seed, &m, &whole, r);
    for (int i = EXECS; i-- > 0;)
        end(&r[i]);
    end(&longer), end(&whole);
    gckpt_store_free(s);
}

/* ---- executors that share caches: limits depend on the windows of the executor that is called ---- */
static void limits(void)
{
    enum { LENGTH = 300 };
    const model one = { 1, LENGTH, 0, { 1, 1 }, { 65, 65 }, 2, 2, 8, 1, 0, 0 };
    const model more = { 1, LENGTH, 0, { 65, 3 }, { 65, 65 }, 2, 2, 8, 1, 0, 0 };
    const model all = { 1, LENGTH, 0, { 1, 1 }, { 0, 0 }, 2, 2, 8, 1, 0, 0 };
    const gckpt_plan_desc d = { .threads = 1 };
    gckpt_exec_desc x = { .isa = GCKPT_ISA_AUTO };
    gckpt_store *s = gckpt_store_new(NULL);
    runner own = start(s, &one, 100, &d, &x), whole = start(s, &all, 100, &d, &x);
    gckpt_feed feed = { gckpt_id(own.in), fed };
    memset(fed, 0, sizeof fed);
    x.caches_of = whole.e; /* caches_of an executor with other caches is refused, and its caches do not change */
    runner none = start(s, &one, 10, &d, &x);
    CHECK(!none.e && strstr(gckpt_error_text(s), "has other caches"));
    for (int i = 0; i < 2; i++)
        CHECK(gckpt_forward(whole.e, &feed, 1, 1, NULL) == GCKPT_OK &&
              gckpt_forward(own.e, &feed, 1, 1, NULL) == GCKPT_OK);
    CHECK_MSG(gckpt_rewind(whole.e, 1) == GCKPT_OK, "%s", gckpt_error_text(whole.e));
    CHECK(gckpt_rewind(own.e, 71) == GCKPT_E_ARG && gckpt_rewind(own.e, 100) == GCKPT_OK);
    const model short_one = { 1, 128, 0, { 1, 1 }, { 0, 0 }, 2, 2, 8, 1, 0, 0 };
    x.caches_of = own.e; /* these caches have the same number of rows but no window, so they are refused as well */
    runner same = start(s, &short_one, 5, &d, &x);
    CHECK(same.p && !same.e && strstr(gckpt_error_text(s), "has other caches"));
    /* `far` shares the caches but attends with a larger window than the executor that filled them */
    runner far = start(s, &more, 5, &d, &x), near = start(s, &one, 5, &d, &x);
    feed.input = gckpt_id(far.in);
    CHECK(gckpt_forward(far.e, &feed, 1, 1, NULL) == GCKPT_E_ARG);
    CHECK_MSG(strstr(gckpt_error_text(far.e),
                     "forward: cannot continue at position 100. Calls reached 200; with the "
                     "windows used, calls can resume from 136 on"),
              "%s", gckpt_error_text(far.e));
    CHECK(gckpt_position(far.e) == 100 && gckpt_forward(near.e, &feed, 1, 1, NULL) == GCKPT_OK);
    CHECK(gckpt_rewind(far.e, 0) == GCKPT_OK && gckpt_forward(far.e, &feed, 1, 1, NULL) == GCKPT_OK);
    end(&none), end(&same), end(&near), end(&far), end(&whole), end(&own);
    gckpt_store_free(s);
}

int main(int argc, char **argv)
{
    const unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : check_seed();
    const int tries = argc > 2 ? atoi(argv[2]) : check_iterations(45);
    for (int i = 0; i < tries; i++)
        try_model(first + (unsigned)i);
    limits();
    return check_report("rings");
}
