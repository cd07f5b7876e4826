/* test_virtual_ranks.c - plans with virtual ranks, for one process or several: refused requests, the rows of each
 * rank, buffers computed by hand, the bytes of a rank by the formulas of ZeRO, costs, files, texts, printed plans and
 * fit_plan. test_plan.c tests plans of random graphs. */
#include "store/store.h"
#include "graph/graph.h"
#include "plan/internal.h"
#include "check.h"
#include "examples/pictures.h"
#include "examples/print.h"
#include "util.h"
#include "text.h"

enum { ROWS = 2, T = 4, C = 48, V = 211 };

static gckpt_store *store;
static gckpt_graph *graph;
static gckpt_term terms[2];
static int term_count;

/* Builds a small GPT with a tied embedding, which sometimes has a regulariser. The formulas are for parameters of
 * several blocks of 4096, while those of the nets of net.h are too small to be sharded. */
static int build(gckpt_graph *g, int64_t rows, gckpt_term *t, void *user)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    for (int i = 0; i < 3; i++) {
        char name[2][16];
        snprintf(name[0], 16, "up%d", i);
        snprintf(name[1], 16, "down%d", i);
        gckpt_tensor *up = gckpt_param(g, name[0], gckpt_shape2(C, 4 * C), init);
        gckpt_tensor *down = gckpt_param(g, name[1], gckpt_shape2(4 * C, C), init);
        x = gckpt_checkpoint(util_block, x, &i);
        x = gckpt_add(x, gckpt_linear(gckpt_gelu(gckpt_linear(x, up, NULL)), down, NULL));
    }
    t[0].loss = gckpt_linear_cross_entropy(x, table, target, NULL);
    t[0].weight = 1;
    if (*(const int *)user < 2)
        return 1;
    t[1].loss = gckpt_sum_loss(gckpt_mul(table, table));
    t[1].weight = 0.01f;
    t[1].regulariser = 1;
    return 2;
}

static void open_model(int losses)
{
    store = gckpt_store_new(NULL);
    graph = gckpt_graph_new(store, NULL);
    term_count = build(graph, ROWS, terms, &losses);
    CHECK_MSG(gckpt_error(graph) == GCKPT_OK, "%s", gckpt_error_text(graph));
}
static void close_model(void) { util_free(NULL, NULL, graph, store); }

static void set_ranks(int ranks, gckpt_shard shard)
{
    CHECK(gckpt_store_ranks(store, ranks - 1, ranks, shard) == GCKPT_OK);
}
/* Checks the operands of a plan for several ranks. Such a plan cannot be printed as C, so the operands are compared
 * with those in the printed text of a copy of the plan for one rank. */
static void check_operands(const gckpt_plan *p)
{
    gckpt_plan as_one = *p;
    pc_graph *g = pc_graph_new(graph, terms, term_count);
    plan_facts f;
    as_one.ranks = 1;
    CHECK(plan_facts_read(&f, p, g, NULL) && plan_facts_print(&f, &as_one));
    const char *problem = plan_facts_check(&f);
    CHECK_MSG(!problem, "%s", problem);
    plan_facts_free(&f);
    pc_graph_free(g);
}
static gckpt_plan *plan(const gckpt_plan_desc *d)
{
    gckpt_plan *p = gckpt_plan_new(graph, terms, term_count, d);
    if (CHECK_MSG(p != NULL, "%s", gckpt_error_text(graph)))
        check_operands(p);
    return p;
}
static size_t bytes_of(const gckpt_plan *p, const gckpti_plan_node *node)
{
    return 4 * (size_t)gckpti_planned_elements(p, node);
}
static gckpt_tensor *tensor(const char *name)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->tensors[i]->name && !strcmp(graph->tensors[i]->name, name))
            return graph->tensors[i];
    return NULL;
}

/* ---- refusals ---- */
static void refuses(const gckpt_plan_desc *d, const char *why)
{
    gckpt_plan *p = gckpt_plan_new(graph, terms, term_count, d);
    CHECK_MSG(!p && gckpt_error(graph) == GCKPT_E_ARG && strstr(gckpt_error_text(graph), why),
              "\"%s\" instead of \"%s\"", gckpt_error_text(graph), why);
    gckpt_plan_free(p);
}

static void test_refusals(void)
{
    open_model(1);
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = -1 }, "desc.ranks.virtual_ranks is -1; allowed is 0 to 32768");
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 65536 },
            "desc.ranks.virtual_ranks is 65536; allowed is 0 to 32768");
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 6 }, "desc.ranks.virtual_ranks is 6: must be a power of two");
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 2, .update_in_backward = 1 },
            "complete only when those of all 2 virtual ranks are added");
    set_ranks(4, GCKPT_SHARD_STATE);
    refuses(NULL, "1 virtual ranks, 4 ranks");
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 2 }, "set desc.ranks.virtual_ranks to 4 or more");
    const gckpt_fetch_spec cut = { tensor("table"), 1 };
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 4, .fetch.specs = &cut, .fetch.count = 1 },
            "has only its shard of the gradient of param \"table\"");
    CHECK(gckpt_store_freeze(store, "table", 1) == GCKPT_OK); /* nothing adds up its gradient */
    refuses(&(gckpt_plan_desc){ .ranks.virtual_ranks = 4, .fetch.specs = &cut, .fetch.count = 1 },
            "param \"table\" is not trained, and several ops read it");
    CHECK(gckpt_store_freeze(store, "table", 0) == GCKPT_OK);
    set_ranks(4, GCKPT_SHARD_NONE);
    gckpt_plan_free(plan(&(gckpt_plan_desc){ .ranks.virtual_ranks = 4, .fetch.specs = &cut, .fetch.count = 1 }));
    /* in an inference plan, rows are not divided among ranks, so a rank can generate text */
    gckpt_plan *p = plan(&(gckpt_plan_desc){ .mode = GCKPT_INFERENCE });
    int64_t first = -1;
    CHECK(gckpt_plan_rank_rows(p, 7, 3, &first) == 7 && first == 0);
    gckpt_plan_free(p);
    close_model();
}

/* ---- rows of each rank ---- */
static void test_rows(void)
{
    random_state = 5;
    open_model(1);
    for (int i = 0; i < 60; i++) {
        int ranks = 1 << below(4), vranks = ranks << below(3), inference = chance(20);
        int64_t batch = ROWS + (int64_t)below(70), rows = 1 + (int64_t)below(batch), at = 0, first;
        int64_t of = inference ? rows : batch;
        set_ranks(ranks, GCKPT_SHARD_NONE);
        gckpt_plan *p = plan(&(gckpt_plan_desc){
            .mode = inference ? GCKPT_INFERENCE : GCKPT_AUTO, .batch = batch, .ranks.virtual_ranks = vranks });
        for (int rank = 0; rank < ranks; rank++) {
            int64_t n = gckpt_plan_rank_rows(p, rows, rank, &first);
            CHECK(first == at && n >= 0 && gckpt_plan_rank_rows(p, rows, rank, NULL) == n);
            for (; at < first + n; at++)
                CHECK(at * vranks / of / (vranks / ranks) == rank);
        }
        CHECK_MSG(at == rows, "%ld of %ld rows are somebody's", (long)at, (long)rows);
        CHECK(gckpt_plan_rank_rows(p, -3, 0, &first) == 0 && first == 0);
        CHECK(ranks == 1 || gckpt_plan_rank_rows(p, rows, ranks, NULL) == rows);
        gckpt_plan_free(p);
    }
    CHECK(gckpt_plan_rank_rows(NULL, 5, 0, NULL) == 0);
    close_model();
}

/* ---- buffers and instructions, compared with values computed by hand ---- */
typedef struct {
    int reduces, partial_sums, exchange_buffers, shards, gathers;
    size_t partial_bytes, exchange_bytes, shard_bytes;
} counters;

static counters count(const gckpt_plan *p)
{
    counters t = { 0, 0, 0, 0, 0, 0, 0, 0 };
    gckpt_instruction in;
    gckpt_buffer b;
    for (int x = 0; gckpt_plan_get(p, x, &in) == GCKPT_OK; x++) {
        t.reduces += in.kind == GCKPT_REDUCE;
        t.gathers += in.kind == GCKPT_FORWARD && p->nodes[in.id].kind == GCKPTI_PARAM;
    }
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++) {
        int whole = b.start == 0 && b.end == (int)p->length;
        if (b.kind == GCKPT_BUFFER_REDUCTION) {
            *(whole ? &t.partial_sums : &t.exchange_buffers) += 1;
            *(whole ? &t.partial_bytes : &t.exchange_bytes) += b.size;
        } else if (b.kind == GCKPT_BUFFER_PARAMETER_GRADIENT &&
                   b.size < bytes_of(p, &p->nodes[b.id])) {
            t.shards++;
            t.shard_bytes += b.size;
        }
    }
    return t;
}

/* Tests plans of the loss sum(x w + b): with several virtual ranks, each plan ends with the reductions of both
 * gradients and then the updates of b and w. */
static void test_by_hand(void)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    enum { IN = 100, OUT = 100 };
    const size_t w_bytes = IN * OUT * 4, b_bytes = OUT * 4, half = 2 * 4096 * 4;
    store = gckpt_store_new(NULL);
    graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(2, IN));
    gckpt_tensor *w = gckpt_param(graph, "w", gckpt_shape2(IN, OUT), init);
    gckpt_tensor *b = gckpt_param(graph, "b", gckpt_shape1(OUT), init);
    terms[0] = (gckpt_term){ gckpt_sum_loss(gckpt_linear(x, w, b)), 1, 0 };
    term_count = 1;
    gckpt_instruction in;
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int i = 0; i < 5; i++) {
            static const int ranks[] = { 1, 1, 4, 4, 2 }, vranks[] = { 1, 8, 4, 8, 2 };
            static const int64_t batch[] = { 2, 2, 8, 8, 5 };
            const int accumulates = i == 1 || i >= 3, cut = shard && ranks[i] > 1;
            set_ranks(ranks[i], (gckpt_shard)shard);
            gckpt_plan *p = plan(&(gckpt_plan_desc){ .ranks.virtual_ranks = vranks[i], .batch = batch[i] });
            counters t = count(p);
            CHECK(p->accumulates == accumulates && t.reduces == (vranks[i] > 1 ? 2 : 0));
            CHECK(t.partial_sums == (i == 1 ? 6 : i == 3 ? 2 : 0));
            CHECK(t.partial_bytes == (size_t)t.partial_sums / 2 * (w_bytes + b_bytes));
            /* w has 3 blocks, of which the other rank sends 2; the buffer also receives the sums of b */
            CHECK(t.exchange_buffers == (ranks[i] > 1) && t.exchange_bytes == (ranks[i] > 1 ? half : 0));
            CHECK(t.gathers == (cut && shard == GCKPT_SHARD_VALUES));
            CHECK(t.shards == (cut && !accumulates && shard >= GCKPT_SHARD_GRADIENTS));
            /* of the 3 blocks, the first of 4 ranks has 1 */
            CHECK(t.shard_bytes == (t.shards ? 4096 * 4 : 0));
            const int end = (int)p->length;
            for (int k = 0; k < 2 && vranks[i] > 1;
                 k++) { /* the plan ends with both REDUCEs, that of the larger parameter last, NEXT, BARRIER, both UPDATEs */
                CHECK(gckpt_plan_get(p, end - 6 + k, &in) == GCKPT_OK);
                CHECK(in.kind == GCKPT_REDUCE && in.id == gckpt_id(k ? w : b));
                const gckpti_ins *ins = &p->ins[end - 6 + k];
                CHECK(ins->accumulate == (cut && k) && ins->uses == 1);
            }
            gckpt_plan_free(p);
        }
    close_model();
}

/* ---- bytes of a rank, by the formulas ---- */
/* Returns the bytes that are live in the arena at the first update. */
static size_t live_at_updates(const gckpt_plan *p)
{
    gckpt_usage u = { 0, 0, 0, 0, 0 };
    gckpt_instruction in;
    for (int x = 0; gckpt_plan_get(p, x, &in) == GCKPT_OK; x++)
        if (in.kind == GCKPT_UPDATE) {
            CHECK(gckpt_plan_usage(p, x, &u) == GCKPT_OK && u.cost == 0 && u.moved == 0);
            break;
        }
    return u.live;
}

static void test_formulas(void)
{
    open_model(1);
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int ranks = 1; ranks <= 8; ranks *= 2)
            for (int per_rank = 1; per_rank <= 4; per_rank *= 4) { /* per_rank: number of virtual ranks of each rank */
                const gckpt_plan_desc d = { .ranks.virtual_ranks = ranks * per_rank, .batch = ROWS * ranks * per_rank };
                size_t all = 0, part = 0;
                set_ranks(ranks, (gckpt_shard)shard);
                gckpt_plan *p = plan(&d);
                const gckpt_plan_info info = gckpt_plan_describe(p);
                gckpt_parameter q;
                for (int i = 0; gckpt_store_peek(store, i, &q) == GCKPT_OK; i++) {
                    const size_t bytes = (size_t)q.elements * 4;
                    const int cut = shard && ranks > 1 && q.elements > 4096;
                    size_t shard_bytes = bytes, blocks = (size_t)(q.elements + 4095) / 4096;
                    if (cut)
                        shard_bytes = (blocks + (size_t)ranks - 1) / (size_t)ranks * 4096 * 4;
                    all += bytes;
                    part += shard_bytes < bytes ? shard_bytes : bytes;
                }
                const size_t values = shard == GCKPT_SHARD_VALUES ? part : all;
                const size_t state = shard ? 2 * part : 2 * all;
                const int sharded = shard >= GCKPT_SHARD_GRADIENTS && per_rank == 1;
                const size_t *kinds = p->kind_bytes, waits = count(p).partial_bytes;
                CHECK(kinds[GCKPT_BYTES_PARAMETERS] == values && kinds[GCKPT_BYTES_STATE] == state);
                /* the formulas of ZeRO for P parameters and N ranks, in bytes: 16 P without shards, 8 P + 8 P / N with
                 * shards of the state, 4 P + 12 P / N with shards of state and gradients, 16 P / N with shards of
                 * state, gradients and values. Shards consist of whole blocks. */
                size_t bytes = values + state + live_at_updates(p), sums = sharded ? part : all;
                /* with several virtual ranks, a gradient has a sum with compensation for each use of the parameter, and
                 * partial sums (waits: their bytes) */
                if (per_rank > 1)
                    sums = live_at_updates(p) - waits;
                CHECK_MSG(bytes == values + state + sums + waits,
                          "shard %d, %d ranks: %lu bytes, by formula %lu", shard, ranks,
                          (unsigned long)bytes, (unsigned long)(values + state + sums));
                CHECK(sums >= (sharded ? part : all) && waits == (per_rank > 1 ? 2 * all : 0));
                CHECK(gckpt_plan_bytes(p) == values + state + info.arena);
                CHECK(info.proven_bytes <= gckpt_plan_bytes(p));
                CHECK((kinds[GCKPT_BYTES_GATHERED] > 0) ==
                      (shard == GCKPT_SHARD_VALUES && ranks > 1));
                gckpt_plan_free(p);
            }
    close_model();
}

/* ---- budgets: the least budget that an error text names is sufficient, and its plan keeps to it ---- */
static int is_gather(const gckpt_plan *p, size_t x)
{
    return p->ins[x].kind == GCKPT_FORWARD && p->nodes[p->ins[x].id].kind == GCKPTI_PARAM;
}

/* Checks that the plan's own instructions, given as a GCKPT_SCHEDULE, make the same plan, with gathers at the same
 * places. */
static void check_schedule(const gckpt_plan *p, gckpt_plan_desc d)
{
    gckpt_instruction list[1000];
    d.mode = GCKPT_SCHEDULE, d.schedule.instructions = list, d.ranks.overlap = 1;
    for (int i = 0; i < 1000 && gckpt_plan_get(p, i, &list[d.schedule.count]) == GCKPT_OK; i++)
        d.schedule.count += list[d.schedule.count].kind <= GCKPT_BACKWARD;
    gckpt_plan *q = plan(&d);
    CHECK(q->length == p->length && gckpt_plan_describe(q).cost == gckpt_plan_describe(p).cost);
    for (size_t x = 0; x < p->length; x++)
        CHECK(p->ins[x].kind == q->ins[x].kind && p->ins[x].id == q->ins[x].id);
    gckpt_plan_free(q);
}

/* Makes the plan again with ranks.overlap. Checks that it has the same instructions within the budget, the
 * gathers in the same order and none later than before, and the other instructions in the same order. Returns whether
 * a gather has moved. */
static int check_overlap(const gckpt_plan *p, gckpt_plan_desc d)
{
    d.ranks.overlap = 1;
    gckpt_plan *q = plan(&d);
    size_t x = 0, y = 0, length = p->length;
    int moved = 0;
    CHECK(gckpt_plan_bytes(q) <= d.budget && gckpt_plan_describe(q).cost == gckpt_plan_describe(p).cost &&
          q->length == length);
    for (int gathers = 0; gathers < 2; gathers++)
        for (x = y = 0; x < length || y < length; x++, y++) {
            while (x < length && is_gather(p, x) != gathers)
                x++;
            while (y < length && is_gather(q, y) != gathers)
                y++;
            if (x == length || y == length) {
                CHECK(x == length && y == length);
                break;
            }
            CHECK(p->ins[x].id == q->ins[y].id && p->ins[x].kind == q->ins[y].kind &&
                  (!gathers || y <= x));
            moved |= y < x;
        }
    CHECK(!moved || p->shard == GCKPT_SHARD_VALUES);
    gckpt_plan_free(q);
    return moved;
}

/* Tests that an inference plan has one virtual rank, although the store has several ranks. */
static void test_inference(void)
{
    text t = { 0 };
    open_model(1);
    set_ranks(2, GCKPT_SHARD_NONE);
    gckpt_plan *p = plan(&(gckpt_plan_desc){ .mode = GCKPT_INFERENCE });
    CHECK(print_plan(p, write_text, &t) == GCKPT_OK && !find(t.bytes, "reduce   "));
    CHECK(p->ranks == 2 && p->virtual_ranks == 1);
    gckpt_plan_free(p);
    free(t.bytes);
    close_model();
}

static void test_budgets(void)
{
    int moved = 0;
    open_model(2);
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int per_rank = 1; per_rank <= 2; per_rank++) {
            gckpt_plan_desc d = { .ranks.virtual_ranks = 4 * per_rank, .batch = 8 * ROWS * per_rank, .budget = 1 };
            set_ranks(4, (gckpt_shard)shard);
            d.ranks.link_cost = per_rank > 1 ? 1 << 24 : 100000;
            gckpt_plan *none = gckpt_plan_new(graph, terms, term_count, &d);
            size_t least = util_least_budget(graph), most;
            CHECK(!none && gckpt_error(graph) == GCKPT_E_BUDGET && least > 0);
            d.budget = 0;
            gckpt_plan *p = plan(&d);
            most = gckpt_plan_bytes(p);
            const uint64_t work = gckpt_plan_describe(p).cost;
            gckpt_plan_free(p);
            d.schedule.as_built = 1;
            p = plan(&d);
            check_schedule(p, d);
            gckpt_plan_free(p);
            d.schedule.as_built = 0;
            for (int i = 0; i <= 4; i++) {
                if (i < 4 && !check_sampled((unsigned)(shard * 10 + per_rank * 5 + i), 3))
                    continue;
                d.budget = least + (most - least) * (size_t)i / 4;
                p = plan(&d);
                CHECK(gckpt_plan_bytes(p) <= d.budget && gckpt_plan_describe(p).cost >= work);
                CHECK(i < 4 || gckpt_plan_describe(p).cost == work);
                moved += check_overlap(p, d);
                gckpt_plan_free(p);
            }
            CHECK(least < most);
        }
    CHECK_MSG(moved > (check_iterations(9) > 1 ? 3 : 0), "%d of 10 plans with gathers ahead", moved);
    close_model();
}

/* ---- allocation n fails, for every n ---- */
static void test_memory(void)
{
    for (int i = 0; i < 3; i++) {
        open_model(2);
        set_ranks(i ? 2 : 1, i ? GCKPT_SHARD_VALUES : GCKPT_SHARD_NONE);
        heap h = { 0 };
        gckpt_plan *p = NULL;
        long n = 0;
        while (!p && n < 500) {
            h.calls = 0;
            h.fail_at = ++n;
            const gckpt_plan_desc d = { .ranks.virtual_ranks = i < 2 ? 4 : 2,
                                        .batch = i < 2 ? 16 : 4,
                                        .ranks.link_cost = i ? 1 << 24 : 0,
                                        .ranks.overlap = i,
                                        .memory = heap_memory(&h) };
            p = gckpt_plan_new(graph, terms, term_count, &d);
            CHECK(p || (gckpt_error(graph) == GCKPT_E_MEMORY && h.blocks == 0));
        }
        CHECK(p && n > 5);
        gckpt_plan_free(p);
        CHECK(h.blocks == 0 && h.wrong_sizes == 0);
        close_model();
    }
}

/* ---- costs: a gather costs ranks.link_cost for its bytes, whatever the number of rows ---- */
static void test_costs(void)
{
    open_model(1);
    set_ranks(2, GCKPT_SHARD_VALUES);
    gckpt_plan_desc d = { .ranks.virtual_ranks = 4, .batch = 12 };
    gckpt_plan *p = plan(&d);
    d.ranks.link_cost = 1 << 20;
    gckpt_plan *q = plan(&d);
    uint64_t gathered = 0, body = 0;
    gckpt_usage u, v;
    for (int x = 0; gckpt_plan_usage(p, x, &u) == GCKPT_OK; x++) {
        gckpt_plan_usage(q, x, &v);
        const gckpti_plan_node *node = &p->nodes[p->ins[x].id];
        if (p->ins[x].kind == GCKPT_FORWARD && node->kind == GCKPTI_PARAM) {
            /* each byte costs 1; the rank has the larger half of the blocks, so it receives the smaller half */
            const size_t block = 4096 * sizeof(float), blocks = (bytes_of(p, node) + block - 1) / block;
            size_t half = (blocks + 1) / 2 * block;
            CHECK(v.cost - u.cost == bytes_of(p, node) - half);
            gathered += v.cost;
        } else {
            CHECK(v.cost == u.cost);
            body += v.cost;
        }
    }
    CHECK(gathered > 0 && gckpt_plan_describe(q).cost == gathered + body);
    /* each rank has 2 virtual ranks of 3 rows, which in micro-batches of 2 rows take 4 lockstep micro-batches */
    CHECK(gckpt_plan_describe(q).step_cost == body / 2 * 6 + body % 2 * 6 / 2 + 4 * gathered);
    gckpt_plan_free(q);
    /* with a huge number of micro-batches, the cost is still computed at once */
    for (int bits = 36; bits <= 60; bits += 4) {
        d.batch = INT64_C(1) << bits;
        q = plan(&d);
        const double micro_batches = (double)d.batch / 4, want = micro_batches * ((double)body + (double)gathered);
        const double got = (double)gckpt_plan_describe(q).step_cost;
        CHECK_MSG(want > 9e18 ? gckpt_plan_describe(q).step_cost == UINT64_MAX : got > want * 0.999999 && got < want * 1.000001,
                  "2^%d rows: %g of %g", bits, got, want);
        gckpt_plan_free(q);
    }
    gckpt_plan_free(p);
    close_model();
}

/* ---- texts, pictures, printed plans ---- */
static void check_texts(const gckpt_plan *p)
{
    text t = { 0 }, trace = { 0 }, picture = { 0 }, c = { 0 };
    CHECK(print_plan(p, write_text, &t) == GCKPT_OK);
    CHECK(print_trace(p, write_text, &trace) == GCKPT_OK);
    CHECK(pictures_plan(p, write_text, &picture) == GCKPT_OK && is_valid_xml(&picture));
    const int vranks = p->virtual_ranks > 1;
    CHECK(!find(t.bytes, "reduce   param") == !vranks &&
          !find(t.bytes, "  reduction tree: ") == (p->kind_bytes[GCKPT_BYTES_REDUCTION] == 0));
    CHECK(!find(trace.bytes, "\"reduce ") == !vranks &&
          !find(trace.bytes, "sums of virtual ranks") == !vranks);
    CHECK(!find(picture.bytes, ">reduce<") == !vranks &&
          !find(picture.bytes, "sums of virtual ranks") == !vranks);
    CHECK(!find(t.bytes, "gathered: ") == (p->kind_bytes[GCKPT_BYTES_GATHERED] == 0));
    gckpt_result result = gckpt_plan_c(p, "several", write_text, &c);
    CHECK(result == (p->ranks > 1 ? GCKPT_E_ARG : GCKPT_OK));
    CHECK(find(c.bytes, p->ranks > 1 ? "#error \"plan: it was made for several processes"
                        : vranks     ? "    4, /* virtual_ranks */\n    1, /* ranks */"
                                     : "    1, /* virtual_ranks */\n    1, /* ranks */"));
    CHECK(p->ranks > 1 || !find(c.bytes, "#ifdef GCKPT_NO_RANKS") == !vranks);
    free(t.bytes);
    free(trace.bytes);
    free(picture.bytes);
    free(c.bytes);
}

static void test_texts(void)
{
    uint64_t hash[3];
    open_model(2);
    for (int i = 0; i < 3; i++) {
        set_ranks(1, GCKPT_SHARD_NONE);
        gckpt_plan *p = plan(&(gckpt_plan_desc){ .ranks.virtual_ranks = i < 2 ? i : 4, .batch = 8,
                                                 .kernels.plain = 1 });
        hash[i] = gckpt_plan_describe(p).hash;
        check_texts(p);
        gckpt_plan_free(p);
    }
    CHECK(hash[0] == hash[1] && hash[1] != hash[2]);
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int per_rank = 1; per_rank <= 2; per_rank++) {
            set_ranks(2, (gckpt_shard)shard);
            gckpt_plan *p =
                plan(&(gckpt_plan_desc){ .ranks.virtual_ranks = 2 * per_rank,
                                         .batch = 4 * per_rank,
                                         .mode = per_rank == 1 ? GCKPT_AUTO : GCKPT_MEMORY_POOR,
                                         .ranks.link_cost = 12345 });
                check_texts(p);
            gckpt_plan_free(p);
        }
    close_model();
}

/* ---- fit_plan with virtual ranks: a micro-batch has at most the rows of a virtual rank ---- */
static void test_fit(void)
{
    int losses = 2;
    fit_error why;
    for (int vranks = 1; vranks <= 16; vranks *= 2) {
        store = gckpt_store_new(NULL);
        set_ranks(vranks > 2 ? 2 : 1, GCKPT_SHARD_STATE);
        const gckpt_plan_desc d = { .ranks.virtual_ranks = vranks };
        gckpt_plan *p = fit_plan(store, build, &losses, 24, &d, NULL, &why);
        int64_t vrank = (24 + vranks - 1) / vranks;
        CHECK_MSG(p && gckpt_plan_describe(p).rows <= vrank && p->virtual_ranks == vranks, "%s",
                  why.text);
        CHECK(gckpt_plan_describe(p).batch == 24);
        gckpt_plan_free(p);
        gckpt_store_free(store);
    }
    /* with virtual ranks, gradients are complete after the last one, so no update comes before */
    store = gckpt_store_new(NULL);
    gckpt_plan_desc d = { .ranks.virtual_ranks = 2, .update_in_backward = FIT_IF_USEFUL };
    gckpt_plan *p = fit_plan(store, build, &losses, 1, &d, NULL, &why);
    CHECK_MSG(p && !gckpt_plan_describe(p).update_in_backward, "%s", why.text);
    gckpt_plan_free(p);
    d.update_in_backward = 1;
    CHECK(!fit_plan(store, build, &losses, 1, &d, NULL, &why) && why.result == GCKPT_E_ARG);
    CHECK(strstr(why.text, "with ranks.virtual_ranks 1") != NULL);
    gckpt_store_free(store);
}

int main(void)
{
    test_refusals();
    test_rows();
    test_by_hand();
    test_formulas();
    test_budgets();
    test_inference();
    test_memory();
    test_costs();
    test_texts();
    test_fit();
    return check_report("virtual ranks");
}
