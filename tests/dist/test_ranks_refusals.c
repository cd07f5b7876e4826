/* test_ranks_refusals.c - executors of several ranks or virtual ranks refuse another rank's transport, plans for
 * other ranks, and calls that need a single process; the error texts name the problem. There is only one executor:
 * the transport plays the other rank by answering with the bytes that this rank sends. */
#include "gradckpt.h"
#include "check.h"
#include <stdlib.h>
#include <string.h>

static long exchanges;
static int other_rank = 1;
static int mirror(void *user, int peer, const void *send, size_t n, void *receive, size_t m)
{
    int *fails = (int *)user;
    exchanges++;
    CHECK(peer == other_rank);
    if (*fails)
        return 0;
    memset(receive, 0, m);
    memcpy(receive, send, n < m ? n : m);
    return 1;
}

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *x, *y;
    gckpt_term loss;
} model;

static model build(int ranks, gckpt_shard shard)
{
    model m;
    gckpt_init normal = { 0.3f, 0, 0 };
    memset(&m, 0, sizeof m);
    m.s = gckpt_store_new(NULL);
    CHECK(gckpt_store_ranks(m.s, ranks, ranks, shard) == GCKPT_E_ARG &&
          gckpt_store_ranks(m.s, 0, ranks, shard) == GCKPT_OK);
    m.g = gckpt_graph_new(m.s, NULL);
    m.x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape2(2, 80));
    m.y = gckpt_input(m.g, "y", GCKPT_F32, gckpt_shape2(2, 70));
    gckpt_tensor *w = gckpt_param(m.g, "w", gckpt_shape2(80, 70), normal);
    m.loss.loss = gckpt_mean_squared_error(gckpt_linear(m.x, w, NULL), m.y, NULL);
    m.loss.weight = 1;
    return m;
}

static void end(model *m)
{
    gckpt_graph_free(m->g);
    gckpt_store_free(m->s);
}

/* Checks that the executor was not created, and that the error text contains `why`. */
static void refused(gckpt_exec *e, const model *m, const char *why)
{
    CHECK_MSG(e == NULL && gckpt_error(m->s) == GCKPT_E_ARG && strstr(gckpt_error_text(m->s), why),
              "\"%s\" lacks \"%s\"", gckpt_error_text(m->s), why);
    gckpt_exec_free(e);
}

static void fails(gckpt_result result, gckpt_result want, const void *object, const char *why)
{
    CHECK_MSG(result == want && strstr(gckpt_error_text(object), why), "%d, \"%s\" lacks \"%s\"",
              (int)result, gckpt_error_text(object), why);
}

static size_t own_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    (void)user, (void)name;
    return (size_t)(rows * columns);
}

static void test_transports(void)
{
    int silent = 0;
    model m = build(2, GCKPT_SHARD_NONE), alone = build(1, GCKPT_SHARD_NONE);
    gckpt_plan_desc desc = { .batch = 8, .ranks.virtual_ranks = 2 };
    gckpt_plan *p = gckpt_plan_new(m.g, &m.loss, 1, &desc);
    gckpt_transport other = { .rank = 1, .size = 2, .exchange = mirror, .user = &silent }, few = other;
    gckpt_transport none = { .rank = 0, .size = 2 };
    few.rank = 0;
    few.size = 4;
    const gckpt_transport *wrong[] = { NULL, &other, &few, &none };
    for (int i = 0; i < 4; i++)
        refused(gckpt_exec_new(p, m.s, &(gckpt_exec_desc){ .transport = wrong[i] }), &m, "rank 0 of 2");
    refused(gckpt_exec_new(p, alone.s, NULL), &alone, "2 ranks");
    model state = build(2, GCKPT_SHARD_STATE);
    refused(gckpt_exec_new(p, state.s, NULL), &state, "2 ranks and shard 0, the store is for 2 and 1");
    desc.optimiser = GCKPT_CUSTOM_OPTIMISER, desc.state_bytes = own_bytes;
    gckpt_plan *sized = gckpt_plan_new(state.g, &state.loss, 1, &desc);
    CHECK_MSG(sized == NULL && strstr(gckpt_error_text(state.g), "use GCKPT_SHARD_NONE, or floats"), "%s",
              gckpt_error_text(state.g));
    int64_t first = 0;
    CHECK(gckpt_plan_rank_rows(p, 8, 1, &first) == 4 && first == 4);
    CHECK(gckpt_plan_rank_rows(p, 8, -1, &first) == 8 && gckpt_plan_rank_rows(p, 8, 2, NULL) == 8 &&
          first == 0); /* an invalid rank or number of ranks gets all rows */
    gckpt_plan_free(p);
    end(&state);
    end(&m);
    end(&alone);
}

static void test_one_process_only(void)
{
    int silent = 0;
    static float x[8 * 80], y[8 * 70];
    model m = build(2, GCKPT_SHARD_VALUES);
    gckpt_plan_desc desc = { .batch = 8, .ranks.virtual_ranks = 2 };
    gckpt_plan *p = gckpt_plan_new(m.g, &m.loss, 1, &desc);
    gckpt_transport transport = { .rank = 0, .size = 2, .exchange = mirror, .user = &silent };
    gckpt_exec *e = gckpt_exec_new(p, m.s, &(gckpt_exec_desc){ .transport = &transport });
    gckpt_feed feeds[] = { { gckpt_id(m.x), x }, { gckpt_id(m.y), y } };
    gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    float values[80 * 70];
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(m.s));
    fails(gckpt_step_begin(e, &hyper), GCKPT_E_ARG, e, "only with one virtual rank");
    fails(gckpt_gather_values(e, 1, values, NULL), GCKPT_E_ARG, e, "index 1");
    /* how often each instruction was returned by gckpt_next_instruction before it ran, in each micro-batch */
    int seen[64] = { 0 };
    gckpt_instruction next, at;
    gckpt_usage u;
    CHECK(gckpt_step_start(e, feeds, 2, 8, &hyper) == GCKPT_OK && gckpt_plan_describe(p).instructions <= 64);
    do {
        next = gckpt_next_instruction(e);
        for (int i = 0; gckpt_plan_get(p, i, &at) == GCKPT_OK && i < 64; i++)
            seen[i] += at.kind == next.kind && at.id == next.id;
    } while (gckpt_run_some(e, 1, NULL) == GCKPT_MORE);
    for (int i = 0; gckpt_plan_usage(p, i, &u) == GCKPT_OK && i < 64; i++)
        CHECK_MSG(seen[i] == (u.once ? 1 : 2), "instruction %d: reported %d times", i, seen[i]);
    CHECK(gckpt_error(e) == GCKPT_OK && gckpt_next_instruction(e).id == -1);
    CHECK(gckpt_step_start(e, feeds, 2, 8, &hyper) == GCKPT_OK);
    fails(gckpt_step(e, feeds, 2, 8, &hyper, NULL), GCKPT_E_ARG, e, "under way");
    fails(gckpt_gather_values(e, -1, NULL, NULL), GCKPT_E_ARG, e, "under way");
    silent = 1;
    gckpt_result result = GCKPT_MORE;
    while (result == GCKPT_MORE)
        result = gckpt_run_some(e, 1, NULL);
    fails(result, GCKPT_E_PEER, e, "rank 1 does not answer");
    silent = 0; /* too late */
    fails(gckpt_step(e, feeds, 2, 8, &hyper, NULL), GCKPT_E_PEER, e, "free this executor");
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    end(&m);
}

/* Tests gckpt_gather_values in a single process, which already has all values that ranks would gather. */
static void test_gathers_alone(void)
{
    model m = build(1, GCKPT_SHARD_NONE);
    gckpt_plan *p = gckpt_plan_new(m.g, &m.loss, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, m.s, NULL);
    gckpt_parameter w;
    float values[80 * 70];
    uint64_t hash = 1;
    CHECK(gckpt_store_get(m.s, 0, &w) == GCKPT_OK && gckpt_gather_values(e, 0, values, NULL) == GCKPT_OK);
    CHECK(!memcmp(values, w.values, sizeof values));
    CHECK(gckpt_gather_values(e, -1, NULL, &hash) == GCKPT_OK && hash == gckpt_store_hash(m.s));
    fails(gckpt_gather_values(e, 1, values, NULL), GCKPT_E_ARG, e, "index 1");
    fails(gckpt_gather_values(e, -1, values, NULL), GCKPT_E_ARG, e, "index -1");
    fails(gckpt_gather_values(e, -2, NULL, &hash), GCKPT_E_ARG, e, "index -2");
    CHECK(gckpt_exec_bytes_sent(e) == 0 && gckpt_exec_bytes_sent(NULL) == 0);
    CHECK(gckpt_gather_values(NULL, -1, NULL, &hash) == GCKPT_E_ARG && gckpt_gather_values(NULL, 0, values, NULL) == GCKPT_E_ARG);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    end(&m);
}

/* Tests that the buffer of gckpt_collect, also if set during a step, needs space for this rank's rows only. */
static void test_collected_within(void)
{
    enum { OWN = 4 * 80 };
    static float x[4 * 80], y[4 * 70], to[OWN + 1];
    int silent = 0;
    model m = build(2, GCKPT_SHARD_NONE);
    other_rank = 0;
    CHECK(gckpt_store_ranks(m.s, 1, 2, GCKPT_SHARD_NONE) == GCKPT_OK);
    for (int i = 0; i < OWN; i++)
        x[i] = 0.1f * (float)(i % 7 - 3);
    gckpt_fetch_spec fetch = { m.x, 1 };
    gckpt_plan_desc desc = { .batch = 8, .ranks.virtual_ranks = 2, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(m.g, &m.loss, 1, &desc);
    gckpt_transport transport = { .rank = 1, .size = 2, .exchange = mirror, .user = &silent };
    gckpt_exec *e = gckpt_exec_new(p, m.s, &(gckpt_exec_desc){ .transport = &transport });
    gckpt_feed feeds[] = { { gckpt_id(m.x), x }, { gckpt_id(m.y), y } };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(m.g), gckpt_error_text(m.s));
    to[OWN] = 7;
    CHECK(gckpt_step_start(e, feeds, 2, 8, &hyper) == GCKPT_OK);
    fails(gckpt_collect(e, gckpt_id(m.x), 1, to, OWN - 1), GCKPT_E_ARG, e, "4 rows");
    CHECK_MSG(gckpt_collect(e, gckpt_id(m.x), 1, to, OWN) == GCKPT_OK, "%s", gckpt_error_text(e));
    gckpt_result result = GCKPT_MORE;
    while (result == GCKPT_MORE)
        result = gckpt_run_some(e, 1, NULL);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
    int there = 0;
    for (int i = 0; i < OWN; i++)
        there += to[i] < 0 || to[i] > 0;
    CHECK(there == OWN && to[OWN] == 7);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    end(&m);
    other_rank = 1;
}

/* Tests gckpt_store_ranks in a store with an external parameter, whose values exist from the beginning: calls are
 * accepted until an executor is created, and refused from then on. */
static void test_ranks_later(void)
{
    static float w[80 * 70], x[8 * 80], y[8 * 70];
    const gckpt_hyper hyper = gckpt_hyper_lr(0.1f);
    for (int k = 0; k < 4; k++) {
        model m = { .s = gckpt_store_new(NULL) };
        CHECK(gckpt_store_external(m.s, "w", gckpt_shape2(80, 70), w, 1) == GCKPT_OK);
        CHECK(gckpt_store_ranks(m.s, 1, 2, GCKPT_SHARD_STATE) == GCKPT_OK &&
              gckpt_store_ranks(m.s, 0, 1, GCKPT_SHARD_NONE) == GCKPT_OK);
        m.g = gckpt_graph_new(m.s, NULL);
        m.x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape2(2, 80));
        m.y = gckpt_input(m.g, "y", GCKPT_F32, gckpt_shape2(2, 70));
        gckpt_tensor *q = gckpt_param(m.g, "w", gckpt_shape2(80, 70), (gckpt_init){ 0, 0, 0 });
        m.loss.loss = gckpt_mean_squared_error(gckpt_linear(m.x, q, NULL), m.y, NULL);
        m.loss.weight = 1;
        gckpt_plan_desc desc = { .batch = 8, .ranks.virtual_ranks = 1 + k % 2, .optimiser = GCKPT_SGD };
        gckpt_plan *p = gckpt_plan_new(m.g, &m.loss, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, m.s, NULL);
        gckpt_feed feeds[] = { { gckpt_id(m.x), x }, { gckpt_id(m.y), y } };
        CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(m.g), gckpt_error_text(m.s));
        CHECK(k < 2 || gckpt_step_start(e, feeds, 2, 8, &hyper) == GCKPT_OK);
        fails(gckpt_store_ranks(m.s, 1, 2, GCKPT_SHARD_STATE), GCKPT_E_ARG, m.s, "\"w\" has values");
        fails(gckpt_store_ranks(m.s, 1, 2, GCKPT_SHARD_STATE), GCKPT_E_ARG, m.s, "before gckpt_exec_new");
        gckpt_result result = k < 2 ? gckpt_step(e, feeds, 2, 8, &hyper, NULL) : GCKPT_MORE;
        while (result == GCKPT_MORE)
            result = gckpt_run_some(e, 1, NULL);
        CHECK_MSG(result == GCKPT_OK && gckpt_gather_values(e, -1, NULL, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
        gckpt_exec_free(e);
        fails(gckpt_store_ranks(m.s, 1, 2, GCKPT_SHARD_STATE), GCKPT_E_ARG, m.s, "before gckpt_exec_new");
        gckpt_plan_free(p);
        end(&m);
    }
}

int main(void)
{
    test_transports();
    test_gathers_alone();
    test_one_process_only();
    test_ranks_later();
    test_collected_within();
    return check_report("test_ranks_refusals");
}
