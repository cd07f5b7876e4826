/* test_cache.c - a model that generates token by token: the logits of calls that go on in caches are,
 * bit for bit, those of one call with all tokens; what is refused; bytes; plans as files and as C. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "backend.h"
#include "rig.h"
#include "text.h"

typedef gckpt_tensor T;
enum { B = 3, ALL = 75, C = 16, V = 13, HEADS = 2, LAYERS = 2, PREFIX = 5 };
enum { LEARNED, ROTARY, PREFIXED, STYLES };

typedef struct {
    gckpt_graph *g;
    T *tokens, *logits;
} model;

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

/* All tokens, in pieces of 8 and then one by one, against one call. */
static void same_logits(int style, gckpt_plan_desc *d, gckpt_exec_desc *x, const char *what)
{
    static float whole[B * ALL * V], pieces[B * ALL * V];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_exec_desc other = *x;
    runner all = start(s, B, ALL, 0, style, d, x);
    runner eight = start(s, B, 8, ALL, style, d, x);
    other.caches_of = eight.e;
    runner one = start(s, B, 1, ALL, style, d, &other);
    CHECK(run_at(&all, B, 0, whole) == GCKPT_OK && gckpt_position(all.e) == 0);
    for (int round = 0; round < 2; round++) {
        int64_t at = round ? 11 : 0;
        CHECK(gckpt_rewind(one.e, at) == GCKPT_OK);
        memset(pieces + at * V, 0x7f, sizeof pieces - (size_t)(at * V) * sizeof *pieces);
        while (at < ALL) {
            CHECK(gckpt_position(one.e) == at && gckpt_position(eight.e) == at);
            runner *r = at + 8 <= (round ? 40 : 66) ? &eight : &one;
            gckpt_result result = run_at(r, B, at, pieces);
            CHECK_MSG(result == GCKPT_OK, "%s: at %d: %s", what, (int)at, gckpt_error_text(r->e));
            at += result == GCKPT_OK ? r->t : ALL;
        }
        for (int b = 0; b < B; b++)
            CHECK_MSG(!memcmp(whole + (b * ALL + 11 * round) * V, pieces + (b * ALL + 11 * round) * V,
                              (size_t)((ALL - 11 * round) * V) * sizeof *whole),
                      "%s, round %d, row %d: other logits", what, round, b);
    }
    end(&one), end(&eight), end(&all);
    gckpt_store_free(s);
}

int main(void)
{
    for (int i = 0; i < B * ALL; i++)
        words[i] = (int32_t)below(V);
    for (int style = 0; style < STYLES; style++) {
        gckpt_plan_desc d = { .threads = 1 };
        gckpt_exec_desc x = { .debug = 0 };
        same_logits(style, &d, &x, "plain");
    }
    return check_report("cache");
}
