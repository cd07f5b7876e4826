/* test_core.c - one model gives the same bits within the promised bytes under every plan, split of the batch, way of
 * feeding and debug option. Errors change nothing. */
#include "gradckpt.h"

#include <math.h>

#include "examples/gradcheck.h"
#include "examples/print.h"
#include "util.h"

enum { V = 17, T = 7, C = 12, H = 24, ROWS = 8, STEPS = 3 };

static int32_t tokens[ROWS * T], targets[ROWS * T];
static float side[ROWS * C];
static int wide;

/* Optional parts of the model, as bits. A setting is the sum of the parts that the model has. */
enum { TIED = 1, DERIVED = 2, DROPOUT = 4, FROZEN = 8, TWO_LOSSES = 16, REGULARISED = 32, SETTINGS = 64 };

typedef struct {
    gckpt_graph *graph;
    gckpt_tensor *tokens, *targets, *side, *hidden, *top, *weight;
    gckpt_term terms[3];
    int term_count, ids[3];
} model;

typedef struct { int index, setting; model *m; } layer;

static gckpt_tensor *param(gckpt_graph *g, const char *name, int index, gckpt_shape shape, float normal, float constant)
{
    char full[32];
    gckpt_init init = { normal, 0, constant };
    snprintf(full, sizeof full, "%s.%d", name, index);
    return gckpt_param(g, full, shape, init);
}

static gckpt_tensor *inner_block(gckpt_tensor *x, void *user)
{
    const layer *l = (const layer *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *down = param(g, "down", l->index, gckpt_shape2(H, C), 0.3f, 0);
    if (l->setting & DERIVED)
        down = gckpt_scale(gckpt_tanh(gckpt_reshape(down, gckpt_shape2(C, H))), 1.5f);
    if (l->setting & DERIVED)
        down = gckpt_reshape(down, gckpt_shape2(H, C));
    x = gckpt_linear(x, param(g, "up", l->index, gckpt_shape2(C, H), 0.3f, 0),
                     param(g, "up.b", l->index, gckpt_shape1(H), 0.1f, 0));
    return gckpt_linear(gckpt_gelu(x), down, NULL);
}

static gckpt_tensor *outer_block(gckpt_tensor *x, void *user)
{
    layer *l = (layer *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *a = gckpt_layernorm(x, param(g, "g", l->index, gckpt_shape1(C), 0, 1),
                                      param(g, "b", l->index, gckpt_shape1(C), 0, 0), 0);
    gckpt_tensor *q = gckpt_linear(a, param(g, "q", l->index, gckpt_shape2(C, C), 0.3f, 0), NULL);
    a = gckpt_attention(
        q, a, a,
        &(gckpt_attention_desc){ .heads = 2, .causal = 1 }); /* the same tensor is both keys and values */
    x = gckpt_add(x, a);
    a = gckpt_checkpoint(inner_block, gckpt_rmsnorm(x, NULL, 0), l);       /* a nested checkpoint           */
    if (l->setting & DROPOUT)
        a = gckpt_dropout(a, 0.2f);
    return gckpt_add(x, a);
}

static gckpt_tensor *scalar_loss(gckpt_tensor *x) { return gckpt_sum_loss(gckpt_mul(x, x)); }

static model build(gckpt_store *s, int64_t rows, int setting)
{
    layer l;
    model m = { .graph = gckpt_graph_new(s, NULL) };
    m.tokens = gckpt_input(m.graph, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    m.targets = gckpt_input(m.graph, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    m.side = gckpt_input(m.graph, "side", GCKPT_F32, gckpt_shape2(rows, C));
    gckpt_tensor *wte = param(m.graph, "wte", 0, gckpt_shape2(V, C), 0.4f, 0);
    gckpt_tensor *h = gckpt_add(gckpt_embed(wte, m.tokens), gckpt_reshape(m.side, gckpt_shape3(rows, 1, C)));
    m.ids[0] = gckpt_id(m.tokens), m.ids[1] = gckpt_id(m.targets), m.ids[2] = gckpt_id(m.side);
    m.hidden = h;
    for (int i = 0; i < 3; i++) {
        l.index = i;
        l.setting = setting;
        l.m = &m;
        h = gckpt_checkpoint(outer_block, h, &l);
        if (i == 1)
            h = gckpt_add(h, h);                    /* x + x                                             */
    }
    h = gckpt_add(h, m.hidden);                     /* a long skip                                       */
    m.top = h;
    m.weight = param(m.graph, "up", 1, gckpt_shape2(C, H), 0.3f, 0);
    gckpt_tensor *head = setting & TIED ? wte : param(m.graph, "head", 0, gckpt_shape2(V, C), 0.3f, 0);
    m.terms[0].loss = gckpt_linear_cross_entropy(h, head, m.targets, NULL);
    m.terms[0].weight = 1;
    m.term_count = 1;
    if (setting & TWO_LOSSES) {
        m.terms[m.term_count].loss = gckpt_mean_squared_error(gckpt_mean(h, 1), m.side, NULL);
        m.terms[m.term_count++].weight = 0.25f;
    }
    if (setting & REGULARISED) {
        m.terms[m.term_count].loss = scalar_loss(m.weight);
        m.terms[m.term_count].regulariser = 1;
        m.terms[m.term_count++].weight = 0.01f;
    }
    return m;
}

typedef struct {
    gckpt_mode mode;
    int64_t rows;               /* rows of a micro-batch                                                 */
    int setting, stream, pieces, in_backward, threads, group, batch_of;
    unsigned debug;
    const gckpt_instruction *schedule;
    int instructions, policies, momentum;
} run;

typedef struct {
    uint64_t hash;
    double loss, norm;
    int64_t count;
    size_t bytes, measured, arena, bound;
    double recompute;
} outcome;

static int fill_feeds(const void *user, int64_t row, gckpt_feed *feeds)
{
    const model *m = (const model *)user;
    const void *data[3] = { tokens + row * T, targets + row * T, side + row * C };
    for (int i = 0; i < 3; i++)
        feeds[i] = (gckpt_feed){ m->ids[i], data[i] };
    return 3;
}

static outcome train(const run *r)
{
    outcome o = { 0 };
    gckpt_report report = { 0 };
    gckpt_store_desc store_desc = { .seed = 42 };
    gckpt_store *s = gckpt_store_new(&store_desc);
    model m = build(s, r->rows, r->setting);
    if (r->setting & FROZEN) {
        CHECK(gckpt_store_freeze(s, "up*", 1) == GCKPT_OK);
        CHECK(gckpt_store_freeze(s, "wte.?", 1) == GCKPT_OK);
    }
    if (r->policies) {
        gckpt_keep(m.hidden);
        gckpt_recompute(m.top);
    }
    gckpt_plan_desc plan_desc = { .mode = r->mode, .batch = r->batch_of ? r->batch_of : ROWS,
                                  .update_in_backward = r->in_backward, .threads = r->threads,
                                  .schedule.segment_size = r->group,
                                  .schedule.instructions = r->schedule, .schedule.count = r->instructions,
                                  .optimiser = r->momentum ? GCKPT_MOMENTUM : GCKPT_ADAMW };
    gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, m.term_count, &plan_desc);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (!CHECK_MSG(p != NULL, "no plan: %s", gckpt_error_text(m.graph)))
        return o;
    gckpt_exec_desc exec_desc = { .debug = r->debug | GCKPT_DEBUG_MEASURE };
    gckpt_exec *e = gckpt_exec_new(p, s, &exec_desc);
    if (!CHECK_MSG(e != NULL, "no exec: %s", gckpt_error_text(s)))
        return o;
    gckpt_graph_free(m.graph);                      /* the plan must not need its graph any more */
    gckpt_hyper hyper = { .lr = 1e-2f, .weight_decay = 0.1f, .clip = r->in_backward ? 0 : 0.5f };
    for (int step = 0; step < STEPS; step++) {
        gckpt_result result = util_step(e, fill_feeds, &m, ROWS, r->stream, r->pieces, &hyper, &report);
        CHECK_MSG(result == GCKPT_OK, "step: %s", gckpt_error_text(e));
    }
    o.hash = gckpt_store_hash(s);
    o.loss = report.loss;
    o.norm = report.grad_norm;
    o.count = report.count;
    o.bytes = gckpt_plan_bytes(p);
    o.arena = info.arena;
    o.bound = info.peak;
    o.recompute = info.recompute;
    o.measured = gckpt_bytes_measured(e);
    util_free(e, p, NULL, s);
    return o;
}

static void same(const run *r, const outcome *want, const char *what)
{
    static unsigned sweep;
    if (!wide && !check_sampled(sweep++, 5))
        return;
    outcome o = train(r);
    CHECK_MSG(o.hash == want->hash && memcmp(&o.loss, &want->loss, sizeof o.loss) == 0 &&
                  memcmp(&o.norm, &want->norm, sizeof o.norm) == 0 && o.count == want->count,
              "%s: setting %d mode %d rows %d: other bits (loss %.9g against %.9g)", what, r->setting, (int)r->mode,
              (int)r->rows, o.loss, want->loss);
    if (!(r->debug & GCKPT_DEBUG_POISON) && !(r->stream && r->stream < r->rows))
        CHECK_MSG(o.bytes == o.measured, "%s: setting %d mode %d rows %d: %lu bytes planned, %lu measured", what,
                  r->setting, (int)r->mode, (int)r->rows, (unsigned long)o.bytes, (unsigned long)o.measured);
    /* in tiny graphs, the arena may exceed the bound by one hidden tensor */
    size_t hidden = (size_t)r->rows * T * H, weight = (size_t)C * H;
    size_t small = (hidden > weight ? hidden : weight) * sizeof(float);
    CHECK_MSG(o.arena >= o.bound && (double)o.arena <= 1.02 * (double)o.bound + (double)small,
              "%s: arena %lu, bound %lu", what, (unsigned long)o.arena, (unsigned long)o.bound);
}

static void test_same_bits(void)
{
    static gckpt_instruction list[100000];
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT };
    static const run ways[] = { { .policies = 1 }, { .pieces = 3 }, { .threads = 3 },
                                { .debug = GCKPT_DEBUG_PLAIN }, { .stream = 1 }, { .stream = 5 },
                                /* a plan for two micro-batches, although this step has only one */
                                { .batch_of = 2 * ROWS } };
    static const char *const names[] = { "pins", "in pieces", "in pieces, copied feeds", "threads", "plain kernels",
                                         "rows one by one", "rows in fives", "room for more" };
    for (int setting = 0; setting < SETTINGS; setting++) {
        run r = { .setting = setting, .rows = ROWS, .mode = GCKPT_STORE_ALL };
        outcome want = train(&r);
        CHECK(want.count > 0 && isfinite(want.loss) && want.norm > 0);
        for (int k = 0; k < 4; k++)
            for (int64_t rows = ROWS; rows >= 1; rows = rows == 8 ? 5 : rows == 5 ? 2 : rows - 1) {
                r.mode = modes[k];
                r.rows = rows;
                same(&r, &want, "plan and split");
                if (!wide && (setting + k + rows) % 2)
                    continue;
                r.debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE;
                same(&r, &want, "painted");
                r.debug = 0;
            }
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            if (ways[k].stream && setting & TWO_LOSSES)
                continue;
            r = ways[k];
            r.setting = setting;
            r.rows = r.batch_of ? ROWS : 3;
            r.mode = GCKPT_SEGMENTS;
            same(&r, &want, names[k]);
        }
        r = (run){ .setting = setting };
        for (int again = 0; again < (wide ? 6 : 4); again++) {
            r.rows = again % 2 ? ROWS : 3;
            r.mode = GCKPT_SCHEDULE;
            gckpt_store *s = gckpt_store_new(NULL);
            model m = build(s, r.rows, setting);
            r.instructions = random_schedule(m.graph, m.terms, m.term_count, list, 90000);
            r.schedule = list;
            util_free(NULL, NULL, m.graph, s);
            r.debug = again & 2 ? GCKPT_DEBUG_POISON : 0;
            same(&r, &want, "random schedule");
        }
        r = (run){ .setting = setting, .rows = ROWS, .in_backward = 1 };
        outcome in_backward = train(&r);
        for (int k = 0; k < 4; k++) {
            r.mode = modes[k];
            same(&r, &in_backward, "update in backward");
        }
    }
}

/* Compares the gradients of the model with all its optional parts with finite differences. */
static void test_gradients(void)
{
    static const int settings[] = { 0, TIED | DERIVED, TWO_LOSSES | REGULARISED, SETTINGS - 1,
                                    (SETTINGS - 1) & ~FROZEN };
    for (int k = 0; k < 5; k++)
        for (int64_t rows = 3; rows <= ROWS; rows += ROWS - 3) {
            gckpt_store *s = gckpt_store_new(NULL);
            model m = build(s, rows, settings[k]);
            gckpt_feed feeds[3];
            gradcheck_result check;
            gckpt_plan_desc d = { .batch = ROWS,
                    .mode = rows == 3 ? GCKPT_SEGMENTS : GCKPT_MEMORY_POOR };
            if (settings[k] & FROZEN)
                gckpt_store_freeze(s, "up*", 1);
            uint64_t hash = gckpt_store_hash(s);
            fill_feeds(&m, 0, feeds);
            gckpt_result result = gradcheck(s, m.terms, m.term_count, &d, feeds, 3, ROWS, &check);
            CHECK_MSG(result == GCKPT_OK && check.worst < 0.005, "setting %d: worst %g %s", settings[k], check.worst,
                      check.text);
            CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 0);
            util_free(NULL, NULL, m.graph, s);
        }
}

/* Tests that updates in the backward, without clipping, give the bits of updates at the end of the step. */
static void test_update_in_backward(void)
{
    gckpt_store_desc sd = { 0 };
    uint64_t hash[2];
    size_t arena[2];
    for (int k = 0; k < 2; k++) {
        gckpt_store *s = gckpt_store_new(&sd);
        model m = build(s, ROWS, TIED);
        gckpt_feed feeds[3];
        gckpt_hyper hyper = { .lr = 0.01f };
        gckpt_plan_desc d = { .update_in_backward = k, .mode = GCKPT_MEMORY_POOR };
        gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, m.term_count, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        fill_feeds(&m, 0, feeds);
        for (int step = 0; step < 3; step++)
            CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, NULL) == GCKPT_OK);
        hash[k] = gckpt_store_hash(s);
        arena[k] = gckpt_plan_describe(p).arena;
        hyper.clip = 1;
        CHECK(!k || gckpt_step(e, feeds, 3, ROWS, &hyper, NULL) == GCKPT_E_ARG);
        util_free(e, p, NULL, NULL);
        d.batch = 2 * ROWS;
        d.update_in_backward = 1;
        CHECK(gckpt_plan_new(m.graph, m.terms, m.term_count, &d) == NULL && gckpt_error(m.graph) == GCKPT_E_ARG);
        util_free(NULL, NULL, m.graph, s);
    }
    CHECK(hash[0] == hash[1]);
    CHECK(arena[1] < arena[0]);
}

static gckpt_tensor *gpt_block(gckpt_tensor *x, void *user)
{
    static const char *const kinds[] = { "q", "k", "v", "proj", "fc", "out" };
    static const int rows[] = { 16, 16, 16, 16, 16, 64 }, columns[] = { 16, 16, 16, 16, 64, 16 };
    const int *index = (const int *)user;
    gckpt_tensor *w[6];
    for (int i = 0; i < 6; i++)
        w[i] = param(gckpt_graph_of(x), kinds[i], *index, gckpt_shape2(rows[i], columns[i]), 0.1f, 0);
    gckpt_tensor *h = gckpt_layernorm(x, NULL, NULL, 0);
    gckpt_tensor *q = gckpt_linear(h, w[0], NULL), *k = gckpt_linear(h, w[1], NULL);
    x = gckpt_add(x, gckpt_linear(gckpt_attention(q, k, gckpt_linear(h, w[2], NULL),
                                                  &(gckpt_attention_desc){ .heads = 2, .causal = 1 }),
                                  w[3], NULL));
    h = gckpt_gelu(gckpt_linear(gckpt_layernorm(x, NULL, NULL, 0), w[4], NULL));
    return gckpt_add(x, gckpt_linear(h, w[5], NULL));
}

/* Tests bytes of plans: memory-poor takes fewer bytes than sqrt, and sqrt fewer than store-all. Sqrt takes the best
 * of all uniform segment sizes; arenas are close to the lower bound; a budget is kept, or refused with an error text
 * that names the least budget that works. */
static void test_bytes(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(8, 64, 16)), *h = x;
    enum { LAYERS = 24, OPS = 12 };
    for (int i = 0; i < LAYERS; i++)
        h = gckpt_checkpoint(gpt_block, h, &i);
    gckpt_term term = { gckpt_mean_squared_error(h, x, NULL), 1, 0 };
    size_t arena[5], bytes[5];
    gckpt_plan_desc d = { 0 };
    for (int mode = 1; mode <= 4; mode++) {
        d.mode = (gckpt_mode)mode;
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        arena[mode] = info.arena;
        bytes[mode] = gckpt_plan_bytes(p);
        CHECK_MSG((double)arena[mode] <= 1.02 * (double)info.peak, "mode %d: arena %lu, bound %lu", mode,
                  (unsigned long)arena[mode], (unsigned long)info.peak);
        CHECK(mode != GCKPT_STORE_ALL || info.recompute <= 0);
        CHECK(mode == GCKPT_STORE_ALL || info.recompute > 0);
        CHECK(mode != GCKPT_SQRT || info.recompute < 1);
        gckpt_plan_free(p);
    }
    CHECK(arena[GCKPT_MEMORY_POOR] < arena[GCKPT_SQRT] && arena[GCKPT_SQRT] < arena[GCKPT_STORE_ALL]);
    CHECK(arena[GCKPT_SEGMENTS] < arena[GCKPT_STORE_ALL]);
    d.mode = GCKPT_AUTO;
    d.budget = bytes[GCKPT_STORE_ALL];
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK(gckpt_plan_describe(p).mode == GCKPT_STORE_ALL);
    gckpt_plan_free(p);
    d.budget--;
    p = gckpt_plan_new(g, &term, 1, &d);
    CHECK(gckpt_plan_describe(p).mode != GCKPT_STORE_ALL && gckpt_plan_bytes(p) <= d.budget);
    gckpt_plan_free(p);
    d.budget = 1000;
    CHECK(gckpt_plan_new(g, &term, 1, &d) == NULL && gckpt_error(g) == GCKPT_E_BUDGET);
    d.budget = util_least_budget(g);
    CHECK_MSG(d.budget > 0, "budget error: %s", gckpt_error_text(g));
    p = gckpt_plan_new(g, &term, 1, &d);
    CHECK(p != NULL && gckpt_plan_bytes(p) == d.budget && gckpt_error(g) == GCKPT_OK);
    gckpt_plan_free(p);
    d.budget--;
    CHECK(gckpt_plan_new(g, &term, 1, &d) == NULL);
    util_free(NULL, NULL, g, s);
}

/* Tests that a segment whose input is frozen, or depends on no parameter, is still trained. */
static void test_frozen_input(void)
{
    for (int mode = 1; mode <= 4; mode++) {
        gckpt_store *s = gckpt_store_new(NULL);
        model m = build(s, ROWS, 0);
        CHECK(gckpt_store_freeze(s, "*", 1) == GCKPT_OK && gckpt_store_freeze(s, "down.1", 0) == GCKPT_OK);
        gckpt_plan_desc d = { .mode = (gckpt_mode)mode };
        gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, 1, &d);
        CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == 2 * H * C * sizeof(float));
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feeds[3];
        gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
        gckpt_report report;
        gckpt_parameter before, other;
        gckpt_store_get(s, gckpt_store_find(s, "down.1"), &before);
        gckpt_store_get(s, gckpt_store_find(s, "down.0"), &other);
        float was = before.values[0], was_other = other.values[0];
        fill_feeds(&m, 0, feeds);
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK && report.grad_norm > 0);
        CHECK(before.values[0] < was || before.values[0] > was);
        CHECK(!(other.values[0] < was_other || other.values[0] > was_other));
        CHECK(other.state[0] == NULL);
        CHECK(gckpt_store_freeze(s, "down.1", 1) == GCKPT_OK);
        /* the plan trains a parameter that is now frozen */
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_E_ARG);
        util_free(e, p, NULL, NULL);
        CHECK(gckpt_plan_new(m.graph, m.terms, 1, &d) == NULL && gckpt_error(m.graph) == GCKPT_E_ARG);
        util_free(NULL, NULL, m.graph, s);
    }
}

static int cancel_at, progress_calls;
static int progress(void *user, const gckpt_progress *p)
{
    (void)user;
    (void)p;
    return ++progress_calls == cancel_at;
}

/* Tests that a step without valid targets, with an index out of range, or that is cancelled, changes nothing. */
static void test_nothing_changes(void)
{
    for (int streaming = 0; streaming < 2; streaming++) {
        gckpt_store *s = gckpt_store_new(NULL);
        model m = build(s, 4, TIED | REGULARISED);
        gckpt_feed feeds[3];
        gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0, 0, 0, 0 };
        gckpt_report report;
        static int32_t none[ROWS * T], wrong[ROWS * T];
        for (int i = 0; i < ROWS * T; i++)
            none[i] = -1;
        memcpy(wrong, tokens, sizeof wrong);
        wrong[5 * T + 2] = V;
        gckpt_plan_desc d = { .batch = ROWS };
        gckpt_exec_desc ed = { .progress = progress };
        gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, m.term_count, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, &ed);
        fill_feeds(&m, 0, feeds);
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK && gckpt_store_step(s) == 1);
        uint64_t hash = gckpt_store_hash(s);
        gckpt_parameter q;
        gckpt_store_get(s, 0, &q);
        float moment = q.state[0][0];
        feeds[1].data = none;
        if (streaming) {
            CHECK(gckpt_step_begin(e, &hyper) == GCKPT_OK && gckpt_step_add(e, feeds, 3, ROWS) == GCKPT_OK);
            CHECK(gckpt_step_end(e, &report) == GCKPT_OK);
        } else {
            CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK);
        }
        CHECK(report.count == 0 && !(report.loss < 0 || report.loss > 0) && report.step == 1 &&
              gckpt_store_step(s) == 1);
        CHECK(!(q.state[0][0] < moment || q.state[0][0] > moment));
        feeds[1].data = targets;
        feeds[0].data = wrong;
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_E_DATA);
        CHECK_MSG(strstr(gckpt_error_text(e), "\"tokens\": index 17 at row 5, position 2") != NULL, "%s",
                  gckpt_error_text(e));
        feeds[0].data = tokens;
        progress_calls = 0;
        cancel_at = 40;
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_CANCELLED);
        cancel_at = -1;
        CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 1);
        CHECK(gckpt_step(e, feeds, 3, ROWS + 1, &hyper, &report) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, feeds, 2, ROWS, &hyper, &report) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, feeds, 3, 0, &hyper, &report) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, NULL, 3, ROWS, &hyper, &report) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, feeds, 3, ROWS, NULL, &report) == GCKPT_E_ARG);
        CHECK(gckpt_forward(e, feeds, 3, ROWS, &report) == GCKPT_E_ARG);
        CHECK(gckpt_run_some(e, 1, &report) == GCKPT_E_ARG);
        CHECK(gckpt_step_end(e, &report) == GCKPT_E_ARG);
        CHECK(gckpt_store_hash(s) == hash);
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK && gckpt_store_step(s) == 2);
        util_free(e, p, m.graph, s);
    }
}

/* Fetches activations and gradients. An inference plan uses the same store and needs fewer bytes. */
static void test_fetch_and_inference(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    float first[ROWS * T * C];
    double loss = 0;
    for (int mode = 1; mode <= 4; mode++) {
        model m = build(s, ROWS, TIED);
        gckpt_feed feeds[3];
        gckpt_hyper hyper = gckpt_hyper_lr(0);
        gckpt_report report;
        gckpt_fetch_spec fetches[4] = { { m.top, 0 }, { m.hidden, 1 }, { m.weight, 1 }, { m.top, 1 } };
        gckpt_plan_desc d = { .mode = (gckpt_mode)mode, .fetch.specs = fetches, .fetch.count = 4 };
        gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, 1, &d);
        gckpt_exec_desc how = { .isa = mode == 1 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO };
        hyper.clip = mode > 2 ? 1e-3f : 0;
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        fill_feeds(&m, 0, feeds);
        CHECK(gckpt_fetch(e, gckpt_id(m.hidden), 0) == NULL);
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK);
        const float *top = gckpt_fetch(e, gckpt_id(m.top), 0), *dh = gckpt_fetch(e, gckpt_id(m.hidden), 1);
        const float *dw = gckpt_fetch(e, gckpt_id(m.weight), 1), *dtop = gckpt_fetch(e, gckpt_id(m.top), 1);
        static float saved[3][ROWS * T * C];
        CHECK(top && dh && dw && dtop);
        if (mode == 1) {
            memcpy(first, top, sizeof first);
            memcpy(saved[0], dh, sizeof saved[0]);
            memcpy(saved[1], dw, C * H * sizeof(float));
            memcpy(saved[2], dtop, sizeof saved[2]);
            loss = report.loss;
        }
        CHECK(!memcmp(first, top, sizeof first) && !memcmp(saved[0], dh, sizeof saved[0]));
        CHECK(!memcmp(saved[1], dw, C * H * sizeof(float)) && !memcmp(saved[2], dtop, sizeof saved[2]));
        gckpt_exec_free(e);
        size_t training = gckpt_plan_describe(p).arena;
        gckpt_plan_free(p);
        d.mode = GCKPT_INFERENCE;
        d.fetch.count = 1;
        p = gckpt_plan_new(m.graph, m.terms, 1, &d);
        CHECK(gckpt_plan_describe(p).arena < training);
        e = gckpt_exec_new(p, s, NULL);
        CHECK(gckpt_forward(e, feeds, 3, ROWS, &report) == GCKPT_OK && !(report.loss < loss || report.loss > loss));
        CHECK(!memcmp(first, gckpt_fetch(e, gckpt_id(m.top), 0), sizeof first));
        CHECK(gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_E_ARG);
        util_free(e, p, m.graph, NULL);
        /* the same model with micro-batches of 3 rows must have the same loss */
        m = build(s, 3, TIED);
        d = (gckpt_plan_desc){ .mode = GCKPT_INFERENCE };
        p = gckpt_plan_new(m.graph, m.terms, 1, &d);
        e = gckpt_exec_new(p, s, NULL);
        fill_feeds(&m, 0, feeds);
        CHECK(gckpt_forward(e, feeds, 3, ROWS, &report) == GCKPT_OK && !(report.loss < loss || report.loss > loss));
        util_free(e, p, m.graph, NULL);
    }
    gckpt_store_free(s);
}

/* Tests a graph with an op that mixes rows: whole micro-batches run, other numbers of rows are refused, and the error
 * text names the op. */
static void test_mixed_rows(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 0.3f, 0, 0 };
    const char *op = NULL;
    static float x[8 * 4];
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 4));
    gckpt_tensor *h = gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(4, 4), init), NULL);
    gckpt_tensor *centred = gckpt_sub(h, gckpt_name(gckpt_mean(h, 0), "batch mean"));
    gckpt_term term = { gckpt_mean_squared_error(centred, in, NULL), 1, 0 };
    gckpt_plan_desc d = { .batch = 8 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK(p && gckpt_plan_split_exact(p, &op) == 0 && op && !strcmp(op, "batch mean"));
    file text = { 0 };
    CHECK(print_plan(p, file_write, &text) == GCKPT_OK &&
          strstr((char *)text.bytes, "\nanother split of the batch gives other results: batch mean #3 mixes rows\n"));
    free(text.bytes);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(in), x };
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i % 7) - 3;
    CHECK(gckpt_step(e, &feed, 1, 8, &hyper, NULL) == GCKPT_OK);
    CHECK(
        gckpt_step(e, &feed, 1, 6, &hyper, NULL) == GCKPT_E_ARG &&
        strstr(
            gckpt_error_text(e),
            "step: 6 rows are not a multiple of the micro-batch of 4, "
            "which they must be because batch mean #3 mixes rows"));
    CHECK(gradcheck(s, &term, 1, &d, &feed, 1, 4, NULL) == GCKPT_OK);
    util_free(e, p, g, NULL);
    /* shapes (B,T,C) and (B,C), which can only be added because B is 1, so the op mixes rows */
    g = gckpt_graph_new(s, NULL);
    gckpt_tensor *a = gckpt_input(g, "a", GCKPT_F32, gckpt_shape3(1, 2, 4)),
                 *b = gckpt_input(g, "b", GCKPT_F32, gckpt_shape2(1, 4));
    gckpt_term t2 = { gckpt_sum_loss(gckpt_add(gckpt_add(a, b), gckpt_param(g, "c", gckpt_shape1(4), init))), 1, 0 };
    p = gckpt_plan_new(g, &t2, 1, NULL);
    CHECK(p && gckpt_plan_split_exact(p, NULL) == 0);
    util_free(NULL, p, g, NULL);
    /* reshapes rows into others and back, so the rows are mixed although the shape is that of the input */
    g = gckpt_graph_new(s, NULL);
    in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 4));
    in = gckpt_name(gckpt_reshape(gckpt_reshape(in, gckpt_shape2(2, 8)), gckpt_shape2(4, 4)), "again");
    term.loss = gckpt_sum_loss(gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(4, 4), init), NULL));
    p = gckpt_plan_new(g, &term, 1, NULL);
    CHECK(p && gckpt_plan_split_exact(p, &op) == 0 && op && !strcmp(op, "again"));
    util_free(NULL, p, g, s);
}

/* Tests that the first error of a graph is kept, that its text names shapes and remedy, and that every function
 * accepts NULL. */
static void test_errors(void)
{
    gckpt_init init = { 0.3f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(8, 64));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(32, 64), init);
    CHECK(gckpt_gelu(NULL) == NULL && gckpt_add(NULL, NULL) == NULL && gckpt_error(g) == GCKPT_OK);
    gckpt_tensor *bad = gckpt_gelu(gckpt_linear(x, w, NULL));
    CHECK(bad == NULL && gckpt_error(g) == GCKPT_E_SHAPE);
    const char *text = gckpt_error_text(g);
    CHECK_MSG(strstr(text, "[8,64]") && strstr(text, "[32,64]") && strstr(text, "64") && strstr(text, "\"w\""), "%s",
              text);
    char kept[256];
    snprintf(kept, sizeof kept, "%s", text);
    CHECK(gckpt_embed(x, x) == NULL && !strcmp(kept, gckpt_error_text(g)));
    gckpt_term term = { gckpt_sum_loss(bad), 1, 0 };
    CHECK(gckpt_plan_new(g, &term, 1, NULL) == NULL && !strcmp(kept, gckpt_error_text(g)));
    gckpt_graph_free(g);
    static const struct { int kind; gckpt_result result; const char *says; } cases[] = {
        { 0, GCKPT_E_ARG, "input 1 is NULL" },        { 1, GCKPT_E_ARG, "embed needs i32" },
        { 2, GCKPT_E_SHAPE, "axis 0 is the batch" },  { 3, GCKPT_E_SHAPE, "[32,64] in the store" },
        { 4, GCKPT_E_ARG, "another graph" },          { 5, GCKPT_E_ARG, "only a gckpt_term can use it" },
        { 6, GCKPT_E_SHAPE, "do not multiply" },      { 7, GCKPT_E_SHAPE, "positive" },
        { 8, GCKPT_E_ARG, "without gckpt_segment_begin" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gckpt_graph *h = gckpt_graph_new(s, NULL), *other = gckpt_graph_new(s, NULL);
        gckpt_tensor *y = gckpt_input(h, "y", GCKPT_F32, gckpt_shape2(8, 64));
        gckpt_tensor *z = gckpt_input(other, "z", GCKPT_F32, gckpt_shape2(8, 64));
        switch (cases[i].kind) {
        case 0: gckpt_add(y, NULL); break;
        case 1: gckpt_embed(gckpt_param(h, "w", gckpt_shape2(32, 64), init), y); break;
        case 2: gckpt_input(h, "y2", GCKPT_F32, gckpt_shape2(7, 64)); break;
        case 3: gckpt_param(h, "w", gckpt_shape2(64, 32), init); break;
        case 4: gckpt_add(y, z); break;
        case 5: gckpt_gelu(gckpt_sum_loss(y)); break;
        case 6: gckpt_reshape(y, gckpt_shape2(8, 63)); break;
        case 7: gckpt_input(h, "y3", GCKPT_F32, gckpt_shape2(8, 0)); break;
        default: gckpt_segment_end(h); break;
        }
        CHECK_MSG(gckpt_error(h) == cases[i].result && strstr(gckpt_error_text(h), cases[i].says), "case %d: %d %s",
                  cases[i].kind, (int)gckpt_error(h), gckpt_error_text(h));
        gckpt_graph_free(h);
        gckpt_graph_free(other);
    }
    /* sizes whose product overflows */
    for (int k = 0; k < 4; k++) {
        static const int64_t big[] = { INT64_MAX, INT64_C(1) << 62, INT64_C(1) << 40, INT64_C(1) << 31 };
        gckpt_graph *h = gckpt_graph_new(s, NULL);
        CHECK(gckpt_input(h, "y", GCKPT_F32, gckpt_shape3(big[k], big[k], 4)) == NULL &&
              gckpt_error(h) == GCKPT_E_SHAPE);
        gckpt_graph_free(h);
    }
    CHECK(gckpt_error(NULL) == GCKPT_E_MEMORY && gckpt_error_text(NULL) != NULL);
    CHECK(gckpt_store_freeze(s, "nobody*", 1) == GCKPT_E_ARG && gckpt_store_freeze(s, "*", 0) == GCKPT_OK &&
          gckpt_error(s) == GCKPT_OK);
    gckpt_store_free(s);
    /* all of these accept NULL */
    gckpt_store_free(NULL), gckpt_graph_free(NULL), gckpt_plan_free(NULL), gckpt_exec_free(NULL);
    CHECK(!gckpt_graph_new(NULL, NULL) && !gckpt_plan_new(NULL, NULL, 0, NULL) && !gckpt_exec_new(NULL, NULL, NULL));
    CHECK(!gckpt_input(NULL, "x", GCKPT_F32, gckpt_shape1(1)) && !gckpt_param(NULL, "x", gckpt_shape1(1), init));
    CHECK(gckpt_plan_bytes(NULL) == 0 && gckpt_plan_describe(NULL).instructions == 0 && gckpt_id(NULL) == -1 &&
          gckpt_shape_of(NULL).n == -1);
    CHECK(gckpt_step(NULL, NULL, 0, 0, NULL, NULL) == GCKPT_E_ARG && gckpt_fetch(NULL, 0, 0) == NULL &&
          gckpt_run_some(NULL, 1, NULL) == GCKPT_E_ARG);
    CHECK(!gckpt_keep(NULL) && !gckpt_recompute(NULL) && !gckpt_checkpoint(NULL, NULL, NULL) && !gckpt_name(NULL, "x"));
    gckpt_segment_begin(NULL), gckpt_segment_end(NULL);
}

/* Tests weights in writable memory of the program: they are trained in place, to the same bits as weights in the
 * store's memory, and can be frozen and unfrozen like those. */
static void test_external_writable(void)
{
    static float outside[4] = { 0.5f, 0.5f, 0.5f, 0.5f }, x[4] = { 1, 2, 3, 4 };
    const gckpt_init half = { 0, 0, 0.5f };
    for (int frozen = -1; frozen < 2; frozen++) { /* unchanged; thawed; frozen */
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_parameter p[2];
        for (int i = 0; i < 4; i++)
            outside[i] = 0.5f;
        CHECK(gckpt_store_external(s, "w", gckpt_shape2(2, 2), outside, 1) == GCKPT_OK);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 2));
        gckpt_tensor *a = gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(2, 2), half), NULL);
        gckpt_tensor *b = gckpt_linear(in, gckpt_param(g, "v", gckpt_shape2(2, 2), half), NULL);
        gckpt_term term = { gckpt_mean_squared_error(gckpt_add(a, b), in, NULL), 1, 0 };
        CHECK(frozen < 0 || (gckpt_store_freeze(s, "w", 1) == GCKPT_OK &&
                             gckpt_store_freeze(s, "w", frozen) == GCKPT_OK));
        gckpt_plan *plan = gckpt_plan_new(g, &term, 1, NULL);
        gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
        gckpt_feed feed = { gckpt_id(in), x };
        gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
        CHECK(gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK);
        gckpt_store_get(s, 0, &p[0]), gckpt_store_get(s, 1, &p[1]);
        CHECK(p[0].values == outside && p[0].frozen == (frozen > 0) && p[1].values[0] < 0.5f);
        CHECK(frozen > 0 ? !(outside[0] < 0.5f || outside[0] > 0.5f) : !memcmp(outside, p[1].values, sizeof outside));
        util_free(e, plan, g, s);
    }
}

/* Tests weights in read-only memory: they stay frozen whatever the program calls, and are not counted in the
 * library's bytes. */
static void test_external(void)
{
    static float outside[4 * 4];
    static float x[4 * 4];
    gckpt_init init = { 0.5f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(gckpt_store_external(s, "w", gckpt_shape2(4, 4), outside, 0) == GCKPT_OK);
    CHECK(gckpt_store_external(s, "w", gckpt_shape2(4, 4), outside, 0) == GCKPT_E_ARG);
    CHECK(gckpt_store_freeze(s, "w", 0) == GCKPT_OK);
    for (int i = 0; i < 16; i++)
        outside[i] = x[i] = (float)i / 16;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 4));
    gckpt_tensor *h = gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(4, 4), init), NULL);
    h = gckpt_linear(h, gckpt_param(g, "v", gckpt_shape2(4, 4), init), NULL);
    gckpt_term term = { gckpt_mean_squared_error(h, in, NULL), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == 64 && gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == 128);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(in), x };
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    CHECK(gckpt_step(e, &feed, 1, 4, &hyper, NULL) == GCKPT_OK && !(outside[3] < 3 / 16.0f || outside[3] > 3 / 16.0f));
    util_free(e, p, g, s);
}

/* The tests below compare parameter groups and all optimisers with their formulas. */
static void own_optimiser(void *user, const gckpt_update *u)
{
    float lr = *(const float *)user;
    for (int64_t i = 0; i < u->elements; i++) {
        u->state[0][i] += 1;
        u->values[i] -= lr * u->lr_scale * u->clip_scale * u->gradient[i];
    }
}

static void test_optimisers(void)
{
    static float x[2] = { 1, 2 }, lr = 0.1f;
    static const gckpt_optimiser kinds[] = { GCKPT_SGD, GCKPT_MOMENTUM, GCKPT_CUSTOM_OPTIMISER, GCKPT_ADAMW };
    for (int k = 0; k < 4; k++) {
        gckpt_init init = { 0, 0, 2 };
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
        gckpt_term term = { gckpt_sum_loss(gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(1, 1), init), NULL)), 1,
                            0 };
        gckpt_report report;
        gckpt_parameter q;
        gckpt_hyper hyper = { 0.1f, 0.5f, 0, 0, 0, 0, 0 };
        gckpt_plan_desc d = { .optimiser = kinds[k], .custom_state = 1 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        if (kinds[k] == GCKPT_CUSTOM_OPTIMISER)
            CHECK(gckpt_exec_new(p, s, NULL) == NULL && gckpt_error(s) == GCKPT_E_ARG);
        gckpt_exec_desc ed = { .custom_optimiser = own_optimiser, .user = &lr };
        gckpt_exec *e = gckpt_exec_new(p, s, &ed);
        gckpt_feed feed = { gckpt_id(in), x };
        CHECK(gckpt_store_group(s, "w", 0.5f, 1) == GCKPT_OK);
        gckpt_store_get(s, 0, &q);
        double w = 2, m = 0, v = 0, rate = 0.05, gradient = 1.5;      /* gradient: the gradient of mean(x) by w */
        for (int step = 1; step <= 3; step++) {
            CHECK(gckpt_step(e, &feed, 1, 2, &hyper, &report) == GCKPT_OK && report.count == 2);
            CHECK(fabs(report.grad_norm - gradient) < 1e-6);
            if (kinds[k] != GCKPT_CUSTOM_OPTIMISER)
                w -= rate * 0.5 * w;
            m = kinds[k] == GCKPT_MOMENTUM ? 0.9 * m + gradient
                : kinds[k] == GCKPT_ADAMW  ? 0.9 * m + 0.1 * gradient
                                           : gradient;
            v = 0.999 * v + 0.001 * gradient * gradient;
            if (kinds[k] == GCKPT_ADAMW)
                w -= rate * (m / (1 - pow(0.9, step))) / (sqrt(v / (1 - pow(0.999, step))) + 1e-8);
            else
                w -= rate * m;
            CHECK_MSG(fabs((double)q.values[0] - w) < 1e-6, "optimiser %d step %d: %.9g, expected %.9g", k, step,
                      (double)q.values[0], w);
        }
        util_free(e, p, g, s);
    }
    CHECK(fabs((double)gckpt_lr_cosine(0, 10, 100, 1, 0.1f) - 0.1) < 1e-6 &&
          fabs((double)gckpt_lr_cosine(9, 10, 100, 1, 0.1f) - 1) < 1e-6);
    CHECK(fabs((double)gckpt_lr_cosine(55, 10, 100, 1, 0.1f) - 0.55) < 1e-6 &&
          fabs((double)gckpt_lr_cosine(100, 10, 100, 1, 0.1f) - 0.1) < 1e-6);
}

/* Tests three special cases: a function of parameters that every micro-batch reads, and that the last instruction of
 * a micro-batch could overwrite in place, is not overwritten; tensors with one axis mix rows along it; a graph may
 * have no inputs. */
static void test_corners(void)
{
    static float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static gckpt_hyper none;
    gckpt_init one = { 0, 0, 1 };
    float fetched[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(k ? 1 : 4, 2));
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(1, 2), one);
        gckpt_tensor *data = gckpt_sum_loss(in), *regulariser = gckpt_sum_loss(gckpt_mul(w, w));
        /* y is the result of the last op of a micro-batch */
        gckpt_tensor *u = gckpt_scale(gckpt_gelu(w), 2), *y = gckpt_add(in, u);
        gckpt_term terms[2] = { { data, 1, 0 }, { regulariser, 1, 1 } };
        gckpt_fetch_spec fetch = { y, 0 };
        gckpt_plan_desc d = { .batch = 4, .fetch.specs = &fetch, .fetch.count = 1 };
        gckpt_plan *p = gckpt_plan_new(g, terms, 2, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feed = { gckpt_id(in), x };
        CHECK(gckpt_step(e, &feed, 1, 4, &none, NULL) == GCKPT_OK);
        fetched[k] = gckpt_fetch(e, gckpt_id(y), 0)[k ? 1 : 7];
        util_free(e, p, g, NULL);
        g = gckpt_graph_new(s, NULL);
        in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(4));
        gckpt_term t = { gckpt_sum_loss(gckpt_mul(k ? gckpt_softmax(in) : gckpt_rmsnorm(in, NULL, 0),
                                                  gckpt_param(g, "v", gckpt_shape1(1), one))), 1, 0 };
        p = gckpt_plan_new(g, &t, 1, NULL);
        CHECK(p != NULL && gckpt_plan_split_exact(p, NULL) == 0);
        gckpt_plan_free(p);
        gckpt_mean(in, 0);                          /* mixes rows, but no loss or fetch depends on it */
        gckpt_term plain = { gckpt_sum_loss(gckpt_mul(in, gckpt_param(g, "v", gckpt_shape1(1), one))), 1, 0 };
        p = gckpt_plan_new(g, &plain, 1, NULL);
        CHECK(p != NULL && gckpt_plan_split_exact(p, NULL) == 1);
        util_free(NULL, p, g, NULL);
        g = gckpt_graph_new(s, NULL);
        fetch.tensor = gckpt_gelu(gckpt_param(g, "w", gckpt_shape2(1, 2), one));
        d = (gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
        p = gckpt_plan_new(g, NULL, 0, &d);
        e = gckpt_exec_new(p, s, NULL);
        CHECK(gckpt_forward(e, NULL, 0, 1, NULL) == GCKPT_OK && gckpt_fetch(e, gckpt_id(fetch.tensor), 0)[0] > 0.8f);
        util_free(e, p, g, s);
    }
    CHECK(fetched[0] > 0 && !(fetched[0] < fetched[1] || fetched[0] > fetched[1]));
}

/* Tests optimiser state: hyper-parameters that would ruin the weights are refused; the state belongs to one
 * optimiser; a parameter that is unfrozen later has its own number of updates for the bias correction. */
static void test_optimiser_state(void)
{
    static float x[2] = { 1, 1 };
    gckpt_init init = { 0, 0, 2 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(1), init), *v = gckpt_param(g, "v", gckpt_shape1(1), init);
    gckpt_term term = { gckpt_sum_loss(gckpt_add(gckpt_mul(in, w), v)), 1, 0 };
    gckpt_feed feed = { gckpt_id(in), x };
    gckpt_plan_desc d = { 0 };
    gckpt_store_freeze(s, "v", 1);
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    uint64_t hash = gckpt_store_hash(s);
    for (int i = 0; i < 3; i++) {
        gckpt_hyper lr = { bad[i], 0, 0, 0, 0, 0, 0 }, beta = { 0.1f, 0, i ? 1.0f : NAN, 0, 0, 0, 0 };
        gckpt_hyper clip = { 0.1f, 0, 0, 0, 0, 0, i ? -1.0f : NAN };
        gckpt_term weight = { term.loss, bad[i], 0 };
        CHECK(gckpt_step(e, &feed, 1, 2, &lr, NULL) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, &feed, 1, 2, &beta, NULL) == GCKPT_E_ARG);
        CHECK(gckpt_step(e, &feed, 1, 2, &clip, NULL) == GCKPT_E_ARG);
        CHECK(gckpt_plan_new(g, &weight, 1, &d) == NULL);
    }
    CHECK(gckpt_store_hash(s) == hash);
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    for (int i = 0; i < 20; i++)
        CHECK(gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK);
    util_free(e, p, NULL, NULL);
    gckpt_store_freeze(s, "v", 0);
    p = gckpt_plan_new(g, &term, 1, &d);
    e = gckpt_exec_new(p, s, NULL);
    gckpt_parameter q;
    gckpt_store_get(s, gckpt_store_find(s, "v"), &q);
    CHECK(gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK && fabs((double)q.values[0] - 1.9) < 1e-5);
    util_free(e, p, NULL, NULL);
    d.optimiser = GCKPT_MOMENTUM;
    p = gckpt_plan_new(g, &term, 1, &d);
    size_t bytes = gckpt_store_bytes(s);
    CHECK(gckpt_exec_new(p, s, NULL) == NULL && gckpt_error(s) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "gckpt_store_reset"));
    CHECK(gckpt_store_bytes(s) == bytes && gckpt_store_reset(s, "*") == GCKPT_OK);
    e = gckpt_exec_new(p, s, NULL);
    CHECK(e != NULL && gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK && fabs((double)q.values[0] - 1.8) < 1e-5);
    util_free(e, p, NULL, NULL);
    CHECK(gckpt_error(w) == GCKPT_E_ARG);           /* a tensor has no error of itself, only its graph has */
    util_free(NULL, NULL, g, s);
}

static void test_print_and_schedule(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    model m = build(s, ROWS, 0);
    gckpt_instruction list[3];
    file text = { 0 }, full = { .limit = 1 };
    gckpt_plan_desc d = { 0 };
    gckpt_plan *p = gckpt_plan_new(m.graph, m.terms, 1, &d);
    CHECK(print_plan(p, file_write, &text) == GCKPT_OK && text.size > 1000);
    CHECK(print_plan(p, file_write, &full) == GCKPT_E_FILE);
    free(text.bytes), free(full.bytes);
    CHECK(gckpt_plan_get(p, -1, list) == GCKPT_E_ARG && gckpt_plan_get(p, gckpt_plan_describe(p).instructions, list) == GCKPT_E_ARG);
    gckpt_plan_free(p);
    d.mode = GCKPT_SCHEDULE;
    CHECK(gckpt_plan_new(m.graph, m.terms, 1, &d) == NULL && gckpt_error(m.graph) == GCKPT_E_ARG);
    d.schedule.instructions = list;
    d.schedule.count = 1;
    list[0] = (gckpt_instruction){ GCKPT_FORWARD, 100000 };
    CHECK(gckpt_plan_new(m.graph, m.terms, 1, &d) == NULL);
    list[0].id = gckpt_id(m.hidden);
    CHECK(gckpt_plan_new(m.graph, m.terms, 1, &d) == NULL &&
          strstr(gckpt_error_text(m.graph), "needs a forward and a backward"));
    d.mode = GCKPT_AUTO;
    d.kernels.alignment = 48;
    CHECK(gckpt_plan_new(m.graph, m.terms, 1, &d) == NULL && gckpt_error(m.graph) == GCKPT_E_ARG);
    for (d.kernels.alignment = 4; d.kernels.alignment <= 4096; d.kernels.alignment *= 8) {
        p = gckpt_plan_new(m.graph, m.terms, 1, &d);
        CHECK(p != NULL && gckpt_error(m.graph) == GCKPT_OK);
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, m.graph, s);
}

/* With an argument, runs every split with GCKPT_DEBUG_POISON instead of every second one. */
int main(int argc, char **argv)
{
    wide = argc > 1 && argv[1] != NULL;
    random_state = 7;
    for (int i = 0; i < ROWS * T; i++) {
        tokens[i] = (int32_t)below(V);
        targets[i] = i / T == 2 ? -1 : below(4) ? (int32_t)below(V) : -1;     /* row 2 has no target */
    }
    for (int i = 0; i < ROWS * C; i++)
        side[i] = (float)below(2000) / 1000 - 1;
    test_same_bits();
    test_gradients();
    test_update_in_backward();
    test_bytes();
    test_frozen_input();
    test_nothing_changes();
    test_fetch_and_inference();
    test_mixed_rows();
    test_errors();
    test_external();
    test_external_writable();
    test_optimisers();
    test_optimiser_state();
    test_corners();
    test_print_and_schedule();
    return check_report("test_core");
}
