/* generation.h - a small language model that generates text: gen_check_same checks that calls which continue from
 * caches give, bit for bit, the logits of one call with all tokens. Include after gradckpt.h. */
#ifndef TESTS_GENERATION_H
#define TESTS_GENERATION_H
#include "util.h"

enum { B = 3, ALL = 140, C = 16, WORDS = 13, HEADS = 2, DEPTH = 2, PREFIX = 5 };
/* Styles of the model. ROTARY has rotary positions, all others have learned ones. PREFIXED: a learned prefix precedes
 * the keys and values. SHARED: all query heads share one key head.
 * WINDOWED: the first layer attends to the last WINDOW keys, and its caches keep KEPT rows; the second layer has a
 * wider window, and its caches keep all rows; both layers cap scores.
 * DELTA, DELTA_RING: the gated delta rule in place of attention; its keys come from a convolution over the last TAPS
 * tokens. Its caches have all rows or, in DELTA_RING, KEPT / 2. */
enum { LEARNED, ROTARY, PREFIXED, SHARED, WINDOWED, DELTA, DELTA_RING, STYLES };
enum { WINDOW = 20, KEPT = 128, TAPS = 3 };

typedef struct {
    gckpt_graph *g;
    gckpt_tensor *tokens, *logits;
} gen_model;

/* Returns a parameter of shape (i,o), or (i) if o is 0. */
static inline gckpt_tensor *gen_weight(gckpt_graph *g, const char *name, int layer, int64_t i, int64_t o)
{
    char full[32];
    snprintf(full, sizeof full, "%s.%d", name, layer);
    return gckpt_param(g, full, o ? gckpt_shape2(i, o) : gckpt_shape1(i), (gckpt_init){ 0.3f, 0, 0 });
}

/* Returns a learned prefix p followed by `all` along the time axis, with the same p for each row of the batch. The
 * expression 0 * x + p gives p a batch axis. */
static inline gckpt_tensor *gen_prefixed(gckpt_tensor *x, gckpt_tensor *all, const char *name, int layer)
{
    gckpt_tensor *p = gen_weight(gckpt_graph_of(x), name, layer, PREFIX, C);
    gckpt_tensor *zero = gckpt_scale(gckpt_slice(x, 1, 0, 1), 0);
    gckpt_tensor *in[2] = { gckpt_add(zero, p), all };
    return gckpt_concat(in, 2, 1);
}

/* Returns the gated delta rule with queries q, keys from a convolution of k, values v, and factors from x. */
static inline gckpt_tensor *gen_delta(gckpt_tensor *x, gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v, int layer,
                                      int64_t capacity, int style)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const int64_t window = style == DELTA_RING ? 1 : 0, rows = gckpt_shape_of(k).d[1] + TAPS - 1;
    gckpt_tensor *all = capacity ? gckpt_cache_window(k, capacity, window)
                                 : gckpt_pad(k, 1, TAPS - 1, 0, GCKPT_PAD_VALUE, 0);
    gckpt_tensor *w = gckpt_reshape(gen_weight(g, "taps", layer, TAPS, C), gckpt_shape3(TAPS, 1, C));
    if (capacity)
        all = gckpt_slice(all, 1, -rows, gckpt_shape_of(all).d[1]);
    k = gckpt_scale(gckpt_conv1d(all, w, NULL, &(gckpt_window){ .groups = C }), 0.3f);
    gckpt_tensor *decay = gckpt_linear(x, gen_weight(g, "decay", layer, C, HEADS), NULL);
    gckpt_tensor *beta = gckpt_sigmoid(gckpt_linear(x, gen_weight(g, "beta", layer, C, HEADS), NULL)), **in[4];
    decay = gckpt_scale(gckpt_activation(decay, GCKPT_SOFTPLUS, 0), -0.25f);
    in[0] = &k, in[1] = &v, in[2] = &decay, in[3] = &beta;
    for (int i = 0; i < 4 && capacity; i++)
        *in[i] = gckpt_cache_window(*in[i], capacity, window);
    return gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = HEADS, .causal = 1, .decay = decay, .beta = beta });
}

/* Builds the model for calls of t tokens; if capacity is 0, without caches. */
static inline gen_model gen_build(gckpt_store *s, int64_t rows, int64_t t, int64_t capacity, int style)
{
    gen_model m = { gckpt_graph_new(s, NULL), NULL, NULL };
    gckpt_attention_desc desc = { HEADS, style == SHARED ? 1 : HEADS, 1, NULL, 0, 0, 0, NULL, NULL, NULL };
    const int64_t K = C / HEADS * desc.key_heads;
    m.tokens = gckpt_input(m.g, "tokens", GCKPT_I32, gckpt_shape2(rows, t));
    gckpt_tensor *table = gen_weight(m.g, "wte", 0, WORDS, C), *h = gckpt_embed(table, m.tokens);
    if (style != ROTARY) {
        gckpt_tensor *wpe = gen_weight(m.g, "wpe", 0, ALL + 2, C);
        h = gckpt_positions(h, wpe, 2);
    }
    for (int l = 0; l < DEPTH; l++) {
        gckpt_tensor *x = gckpt_layernorm(h, NULL, NULL, 0);
        gckpt_tensor *q = gckpt_linear(x, gen_weight(m.g, "q", l, C, C), NULL);
        gckpt_tensor *k = gckpt_linear(x, gen_weight(m.g, "k", l, C, K), NULL);
        gckpt_tensor *bias = gen_weight(m.g, "b", l, K, 0);
        gckpt_tensor *v = gckpt_linear(x, gen_weight(m.g, "v", l, C, K), bias);
        if (style == ROTARY) {
            q = gckpt_rotary(q, &(gckpt_rotary_desc){ .heads = HEADS });
            k = gckpt_rotary(k, &(gckpt_rotary_desc){ .heads = HEADS });
        }
        if (style == WINDOWED)
            desc.window = WINDOW * (1 + 3 * l), desc.cap = 1.5f, desc.scale = l ? 0.5f : 0;
        const int64_t kept = style >= DELTA ? 0 : capacity;
        gckpt_tensor *keys = kept ? gckpt_cache_window(k, capacity, l ? 0 : desc.window) : k;
        gckpt_tensor *values = kept ? gckpt_cache_window(v, capacity, l ? 0 : desc.window) : v;
        if (style == PREFIXED) {
            keys = gckpt_reshape(gen_prefixed(k, keys, "pk", l), gckpt_shape3(rows, -1, C));
            values = gen_prefixed(v, values, "pv", l);
        }
        gckpt_tensor *a = style >= DELTA ? gen_delta(x, q, k, v, l, capacity, style) : gckpt_attention(q, keys, values, &desc);
        h = gckpt_add(h, gckpt_linear(a, gen_weight(m.g, "o", l, C, C), NULL));
        x = gckpt_linear(gckpt_rmsnorm(h, NULL, 0), gen_weight(m.g, "up", l, C, 2 * C), NULL);
        x = gckpt_linear(gckpt_gelu(x), gen_weight(m.g, "down", l, 2 * C, C), NULL);
        h = gckpt_add(h, x);
    }
    m.logits = gckpt_linear_transposed(h, table, NULL);
    CHECK_MSG(m.logits != NULL, "%s", gckpt_error_text(m.g));
    return m;
}

/* A model with its executor, for calls with `t` tokens; the tokens of batch row b begin at gen_words + b * ALL. */
typedef struct {
    gckpt_plan *p;
    gckpt_exec *e;
    int64_t t;
    int tokens, logits;
} generator;

static inline generator gen_start(gckpt_store *s, int64_t rows, int64_t t, int64_t capacity, int style,
                                const gckpt_plan_desc *desc, const gckpt_exec_desc *x)
{
    gen_model m = gen_build(s, rows, t, capacity, style);
    gckpt_plan_desc d = *desc;
    gckpt_fetch_spec fetch = { m.logits, 0 };
    d.mode = GCKPT_INFERENCE;
    d.fetch.specs = &fetch;
    d.fetch.count = 1;
    generator r = { gckpt_plan_new(m.g, NULL, 0, &d), NULL, t, gckpt_id(m.tokens), gckpt_id(m.logits) };
    CHECK_MSG(r.p != NULL, "%s", gckpt_error_text(m.g));
    r.e = gckpt_exec_new(r.p, s, x);
    CHECK_MSG(r.e != NULL, "%s", gckpt_error_text(s));
    gckpt_graph_free(m.g);
    return r;
}

static inline void gen_end(generator *r) { util_free(r->e, r->p, NULL, NULL); }

static int32_t gen_words[B * ALL];

static inline void gen_fill(void)
{
    for (int i = 0; i < B * ALL; i++)
        gen_words[i] = (int32_t)below(WORDS);
}

/* Runs a call for the tokens from position `at` on, and copies its logits to the same positions in logits
 * (rows,ALL,V). */
static inline gckpt_result gen_call(generator *r, int64_t rows, int64_t at, float *logits)
{
    int32_t tokens[B * ALL];
    for (int64_t b = 0; b < rows; b++)
        memcpy(tokens + b * r->t, gen_words + b * ALL + at, (size_t)r->t * sizeof *tokens);
    gckpt_feed feed = { r->tokens, tokens };
    gckpt_result result = gckpt_forward(r->e, &feed, 1, rows, NULL);
    const float *out = gckpt_fetch(r->e, r->logits, 0);
    for (int64_t b = 0; b < rows && result == GCKPT_OK; b++)
        memcpy(logits + (b * ALL + at) * WORDS, out + b * r->t * WORDS, (size_t)(r->t * WORDS) * sizeof *logits);
    return result;
}

/* ---- the logits do not depend on how the tokens are divided into calls ---- */
/* Runs all tokens in calls of 8, of which up to 2 tokens are forgotten and fed again, and then of 1, and compares the
 * logits with those of one call on the processor. Then rewinds to a position (with windows, to the earliest possible one) and runs the rest again. */
static inline void gen_check_same(int style, const gckpt_plan_desc *d, const gckpt_exec_desc *x, const char *what)
{
    static float whole[B * ALL * WORDS], parts[B * ALL * WORDS];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_plan_desc processor = *d;
    gckpt_exec_desc other = *x;
    processor.backend = other.backend = NULL;
    generator all = gen_start(s, B, ALL, 0, style, &processor, &other);
    other.backend = x->backend;
    generator eight = gen_start(s, B, 8, ALL, style, d, x);
    other.caches_of = eight.e;
    generator one = gen_start(s, B, 1, ALL, style, d, &other);
    const int64_t kept = style == WINDOWED ? KEPT + ALL : DEPTH * (style == DELTA_RING ? KEPT / 2 : ALL);
    const int64_t restart = style == WINDOWED ? 31 : style == DELTA_RING ? ALL - 1 : 11;
#ifndef GCKPT_NO_BF16
    const int element = d->bf16.precision ? 2 : 4;
#else
    const int element = 4;
#endif
    const int64_t columns = style >= DELTA ? 3 * C + 2 * HEADS : 2 * (style == SHARED ? C / HEADS : C);
    const int64_t states = style >= DELTA ? DEPTH * B * C * (C / HEADS + 1) * (int64_t)sizeof(float) : 0;
    size_t caches = (size_t)(B * kept * columns * element + states);
    CHECK(gckpt_plan_kind_bytes(eight.p, GCKPT_BYTES_CACHES) == caches);
    CHECK(gckpt_plan_bytes(one.p) == gckpt_store_bytes(s) + gckpt_plan_describe(one.p).arena + caches);
    CHECK(gckpt_plan_kind_bytes(all.p, GCKPT_BYTES_CACHES) == 0);
    CHECK(gen_call(&all, B, 0, whole) == GCKPT_OK && gckpt_position(all.e) == 0);
    for (int round = 0; round < 2; round++) {
        int64_t at = restart * round;
        char resumes[40];
        snprintf(resumes, sizeof resumes, "can resume from %d on", (int)restart);
        if (round && (style == WINDOWED || style == DELTA_RING))
            CHECK(gckpt_rewind(one.e, at - 1) == GCKPT_E_ARG && strstr(gckpt_error_text(one.e), resumes));
        CHECK_MSG(gckpt_rewind(one.e, at) == GCKPT_OK, "%s", gckpt_error_text(one.e));
        memset(parts + at * WORDS, 0x7f, sizeof parts - (size_t)(at * WORDS) * sizeof *parts);
        while (at < ALL) {
            CHECK(gckpt_position(one.e) == at && gckpt_position(eight.e) == at);
            generator *r = at + 8 <= (round ? ALL - 15 : ALL - 9) ? &eight : &one;
            gckpt_result result = gen_call(r, B, at, parts);
            CHECK_MSG(result == GCKPT_OK, "%s: at %d: %s", what, (int)at, gckpt_error_text(r->e));
            const int64_t forgotten = r == &eight ? at % 3 : 0;
            at += result == GCKPT_OK ? r->t - forgotten : ALL;
            CHECK(!forgotten || gckpt_rewind(one.e, at) == GCKPT_OK);
        }
        for (int b = 0, from = (int)restart * round; b < B; b++)
            CHECK_MSG(!memcmp(whole + (b * ALL + from) * WORDS, parts + (b * ALL + from) * WORDS,
                              (size_t)((ALL - from) * WORDS) * sizeof *whole),
                      "%s, style %d, round %d, row %d: other logits", what, style, round, b);
    }
    if (x->debug & GCKPT_DEBUG_MEASURE)
        CHECK(gckpt_bytes_measured(one.e) == gckpt_plan_bytes(one.p) &&
              gckpt_bytes_measured(eight.e) == gckpt_plan_bytes(eight.p));
    gen_end(&one), gen_end(&eight), gen_end(&all);
    gckpt_store_free(s);
}

#endif
