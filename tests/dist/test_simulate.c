/* test_simulate.c - examples/simulate.h: the bytes of exchanges add up to the lower bound; exchanges take the time of
 * closed formulas, whether they overlap with computation or not; a simulated step sends the bytes that an executor on
 * threads as ranks sends. */
#include "store/store.h"
#include "examples/simulate.h"
#include "rank_threads.h"
#include "util.h"
#include <math.h>

enum { BLOCK = GCKPT_UPDATE_BLOCK };

static int near(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(a) + fabs(b)); }

/* ---- shards and exchanges ---- */
/* Checks the shards of `elements` elements among `ranks` ranks: all ranks together send elements * (ranks - 1) elements
 * each way, partners agree on the elements of each exchange, and the elements that a rank keeps are those of
 * gckpti_shard_of. */
static void test_shard_sums(int64_t elements, int ranks)
{
    simulate_exchange x[2][2 * SIMULATE_LEVELS];
    int64_t sent[2] = { 0, 0 }, all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const simulate_ranks r = { rank, ranks, ranks, GCKPT_SHARD_STATE };
        const int64_t share = simulate_shard_size(elements, rank, ranks);
        CHECK(share == gckpti_shard_of(elements, rank, ranks).count);
        CHECK(share <= simulate_shard_size(elements, 0, ranks));
        all += share;
        for (int back = 0; back < 2; back++) {
            const int n = back ? simulate_all_gather(x[0], elements, &r) : simulate_reduce_scatter(x[0], elements, &r);
            CHECK(1 << n == ranks);
            for (int i = 0; i < n; i++) {
                simulate_ranks other = r;
                other.rank = rank ^ x[0][i].bit;
                CHECK((back ? simulate_all_gather(x[1], elements, &other)
                            : simulate_reduce_scatter(x[1], elements, &other)) == n);
                CHECK(x[1][i].bit == x[0][i].bit && x[1][i].send == x[0][i].receive);
                CHECK(x[0][i].add == (back ? 0 : x[0][i].receive));
                sent[back] += x[0][i].send;
            }
        }
    }
    CHECK_MSG(all == elements && sent[0] == elements * (ranks - 1) && sent[1] == sent[0],
              "%lld elements, %d ranks: shards %lld, sent %lld and %lld", (long long)elements, ranks,
              (long long)all, (long long)sent[0], (long long)sent[1]);
}

/* Tests the time of a reduce-scatter of P bytes over N ranks: log2(N) latencies plus the time of P (N - 1) / N bytes if
 * blocks divide evenly. An all-gather takes the same time. On several machines the first levels of the
 * reduce-scatter, which send most bytes, use the faster link within a machine. */
static void seconds(void)
{
    const simulate_machine m = { 1, 1, 8, { 100, 0.5 }, { 10, 2 }, 0 };
    for (int ranks = 2; ranks <= 1024; ranks *= 2) {
        const simulate_ranks r = { ranks / 3, ranks, ranks, GCKPT_SHARD_NONE };
        const int64_t elements = 3 * 1024 * (int64_t)BLOCK;
        const double bytes = 4 * (double)elements, near_ranks = ranks < 8 ? ranks : 8;
        simulate_exchange x[SIMULATE_LEVELS];
        double sum = 0, back = 0, levels = log2(ranks), inside = log2(near_ranks);
        const int n = simulate_reduce_scatter(x, elements, &r);
        for (int i = 0; i < n; i++)
            sum += simulate_seconds(&m, &x[i]);
        CHECK(simulate_all_gather(x, elements, &r) == n);
        for (int i = 0; i < n; i++)
            back += simulate_seconds(&m, &x[i]);
        const double want = inside * 0.5 + bytes * (1 - 1 / near_ranks) / 100 +
                            (levels - inside) * 2 + bytes * (1 / near_ranks - 1.0 / ranks) / 10;
        CHECK_MSG(near(sum, want) && near(back, want), "%d ranks: %g and %g, not %g", ranks, sum, back,
                  want);
    }
}

/* ---- overlapped or waited for ---- */
/* Tests a sum over ranks that overlaps with computation in several pieces: the longer of sum and computation determines
 * the time, but an exchange that ends within a piece of computation is only noticed at the end of the piece. */
static void overlap(void)
{
    const simulate_machine m = { 1, 1e30, 1, { 0, 0 }, { 4 * BLOCK, 1 }, 0 };
    const simulate_ranks r = { 0, 4, 4, GCKPT_SHARD_NONE };
    static const struct {
        int pieces;
        /* piece: seconds of one piece; exposed: seconds of waiting. The sum has two exchanges, of 1 + 2 and 1 + 1
         * seconds. */
        double piece, exposed;
    } cases[] = { { 0, 0, 5 }, { 1, 2, 3 }, { 3, 1, 2 }, { 5, 1, 0 }, { 2, 3, 0 },
                  { 1, 4, 2 }, { 2, 4, 0 }, { 1, 9, 2 }, { 9, 1, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulate_state s;
        memset(&s, 0, sizeof s);
        s.machine = &m;
        s.ranks = &r;
        simulate_start(&s, simulate_reduce_scatter(simulate_slot(&s), 4 * BLOCK, &r), 0);
        for (int k = 0; k < cases[i].pieces; k++) {
            simulate_compute(&s, cases[i].piece);
            simulate_poll(&s);
        }
        simulate_wait(&s, 0);
        CHECK_MSG(near(s.result.exposed, cases[i].exposed) && near(s.result.comm, 5) &&
                      near(s.result.seconds, s.result.exposed + s.result.compute) &&
                      s.result.sent == 3 * 4 * BLOCK && s.result.exchanges == 2,
                  "%d x %g s: waits %g, not %g", cases[i].pieces, cases[i].piece, s.result.exposed,
                  cases[i].exposed);
    }
}

/* ---- a chain of layers, planned ---- */
/* Sizes of a chain of equal layers, for which the formulas hold, each with weights of 4 blocks; the nets of net.h
 * have other layers. */
enum { WIDTH = 128, LAYERS = 3, ROWS = 4 };
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_tensor *x, *y;
} chain;

/* Makes a chain whose layers cost `cost` each in the forward and in the backward; its loss costs nothing. */
static void chain_open(chain *c, const simulate_ranks *r, int64_t rows, uint64_t cost, int overlap_on)
{
    const gckpt_init normal = { 0.1f, 0, 0 };
    gckpt_cost costs[4 * LAYERS];
    gckpt_plan_desc d = { .batch = rows, .ranks.virtual_ranks = r->virtual_ranks, .costs.by_id = costs,
                          .ranks.link_cost = 320,
                          .ranks.overlap = overlap_on };
    char name[8];
    c->s = gckpt_store_new(NULL);
    CHECK(gckpt_store_ranks(c->s, r->rank, r->ranks, r->shard) == GCKPT_OK);
    c->g = gckpt_graph_new(c->s, NULL);
    c->x = gckpt_input(c->g, "x", GCKPT_F32, gckpt_shape2(ROWS, WIDTH));
    c->y = gckpt_input(c->g, "y", GCKPT_F32, gckpt_shape2(ROWS, WIDTH));
    gckpt_tensor *h = c->x;
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "w%d", i);
        h = gckpt_linear(h, gckpt_param(c->g, name, gckpt_shape2(WIDTH, WIDTH), normal), NULL);
    }
    const gckpt_term loss = { gckpt_mean_squared_error(h, c->y, NULL), 1, 0 };
    gckpt_node node;
    d.costs.count = gckpt_graph_size(c->g);
    for (int i = 0; i < d.costs.count; i++) {
        const int layer = gckpt_graph_node(c->g, i, &node) == GCKPT_OK && !strcmp(node.op, "linear");
        costs[i].forward = costs[i].backward = layer ? cost : 0;
    }
    c->p = gckpt_plan_new(c->g, &loss, 1, &d);
    CHECK_MSG(c->p != NULL, "%s", gckpt_error_text(c->g));
}

static void chain_close(chain *c)
{
    gckpt_plan_free(c->p);
    gckpt_graph_free(c->g);
    gckpt_store_free(c->s);
}

/* Tests steps of two ranks, each of which takes t seconds to send half of a layer's weights. Compares with formulas
 * which part of the sums a backward of `each` seconds hides, the wait after the last backward, and the wait before
 * each forward. */
static void whole_steps(void)
{
    const double t = 1, blocks = 4 * 4 * LAYERS;
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int i = 0; i < 40; i++) {
            const int b = i % 20, overlap_on = i >= 20;
            const simulate_ranks r = { 1, 2, 2, (gckpt_shard)shard };
            const simulate_machine m = { 10, 1e30, 1, { 0, 0 }, { 4 * 2 * BLOCK, 0 }, b % 4 == 3 };
            const double each = b / m.throughput,
                         agree_time = (4 * SIMULATE_AGREE_BYTES + 2 * SIMULATE_TOTAL_BYTES + (shard ? blocks : 0)) /
                                      m.inter_node.bandwidth;
            /* time after the last backward until the last sum ends */
            const double end = shard == GCKPT_SHARD_NONE ? 2 * t : t;
            const double left = m.no_overlap ? end
                                : shard == GCKPT_SHARD_NONE ? (each < t ? 2 * t - each : t)
                                : each < t                ? t - each
                                                          : 0;
            /* the step waits for the whole first gather, and for the part of each later gather that the layer before
             * does not hide */
            const int ahead = overlap_on && shard == GCKPT_SHARD_VALUES && !m.no_overlap;
            const double gathers = shard == GCKPT_SHARD_NONE ? 0
                                   : !ahead                  ? LAYERS * t
                                   : each < t                ? t + (LAYERS - 1) * (t - each)
                                                             : t;
            chain c;
            chain_open(&c, &r, 2 * ROWS, (uint64_t)b, overlap_on);
            const simulate_step s = simulate_run(c.p, c.g, &r, &m);
            CHECK_MSG(near(s.exposed, (LAYERS - 1) * left + end + gathers + agree_time) &&
                          near(s.compute, 2 * LAYERS * each) &&
                          near(s.seconds, s.compute + s.exposed) &&
                          near(s.comm, LAYERS * (end + t * (shard > 0)) + agree_time),
                      "shard %d, %g s a layer: %g s, computes %g, waits %g", shard, each, s.seconds,
                      s.compute, s.exposed);
            chain_close(&c);
        }
}

/* Tests one rank: a step takes the plan's cost, for any number of micro-batches and virtual ranks. */
static void alone(void)
{
    const simulate_machine m = { 10, 1e30, 1, { 1, 1 }, { 1, 1 }, 0 };
    for (int vranks = 1; vranks <= 4; vranks *= 2)
        for (int64_t rows = ROWS; rows <= 3 * ROWS; rows += ROWS) {
            const simulate_ranks r = { 0, 1, vranks, GCKPT_SHARD_STATE };
            chain c;
            chain_open(&c, &r, rows * vranks, 7, 0);
            const simulate_step s = simulate_run(c.p, c.g, &r, &m);
            CHECK(near(s.seconds, (double)gckpt_plan_describe(c.p).step_cost / m.throughput) && s.exposed == 0 &&
                  s.comm == 0 && s.sent == 0 && s.exchanges == 0);
            chain_close(&c);
        }
}

/* ---- bytes that executors send ---- */
#if RANKS_THREADS
typedef struct {
    simulate_ranks r;
    int64_t rows;
    uint64_t sent[RANKS_MOST], simulated[RANKS_MOST];
} sending;

static void send_steps(ranks_world *w, int rank, void *context)
{
    static float data[RANKS_MOST * 8 * ROWS * WIDTH];
    sending *s = (sending *)context;
    simulate_ranks r = s->r;
    const simulate_machine m = { 1, 1, 1, { 1, 0 }, { 1, 0 }, 0 };
    const gckpt_hyper adamw = { .lr = 1e-3f, .clip = 1 };
    gckpt_exec_desc d = { .transport = &w->rank[rank].transport };
    chain c;
    r.rank = rank;
    chain_open(&c, &r, s->rows, 1, s->rows % 3 != 0);
    gckpt_exec *e = gckpt_exec_new(c.p, c.s, &d);
    const gckpt_feed feeds[2] = { { gckpt_id(c.x), data }, { gckpt_id(c.y), data } };
    for (int i = 0; i < 2; i++) {
        s->sent[rank] = gckpt_exec_bytes_sent(e);
        const gckpt_result result = gckpt_step(e, feeds, 2, s->rows, &adamw, NULL);
        CHECK_MSG(result == GCKPT_OK, "%s: %s", gckpt_result_text(result),
                  gckpt_error_text(e));
        s->sent[rank] = gckpt_exec_bytes_sent(e) - s->sent[rank];
    }
    s->simulated[rank] = simulate_run(c.p, c.g, &r, &m).sent;
    gckpt_exec_free(e);
    chain_close(&c);
}

/* Tests that an executor of every rank sends as many bytes as the simulated step. */
static void sent(void)
{
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int ranks = 2; ranks <= 8; ranks *= 2)
            /* with more = 1 each rank has 4 virtual ranks, with more = 2 each virtual rank has 4 micro-batches */
            for (int more = 0; more < 3; more++) {
                ranks_world w;
                sending s = { { 0, ranks, more == 1 ? 4 * ranks : ranks, (gckpt_shard)shard },
                              ROWS * ranks * (more ? 4 : 1), { 0 }, { 0 } };
                ranks_open(&w, ranks);
                ranks_run(&w, send_steps, &s);
                ranks_close(&w);
                for (int i = 0; i < ranks; i++)
                    CHECK_MSG(s.sent[i] == s.simulated[i],
                              "shard %d, rank %d of %d, %d: sent %llu, simulated %llu", shard, i, ranks,
                              more, (unsigned long long)s.sent[i], (unsigned long long)s.simulated[i]);
            }
}
#else
static void sent(void) {}
#endif

int main(void)
{
    static const int64_t sizes[] = { 1,         BLOCK,         BLOCK + 1,       2 * BLOCK, 3 * BLOCK - 5,
                                     7 * BLOCK, 37 * BLOCK + 9, 1000 * BLOCK + 1 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int ranks = 1; ranks <= 64; ranks *= 2)
            test_shard_sums(sizes[i], ranks);
    seconds();
    overlap();
    whole_steps();
    alone();
    sent();
    return check_report("simulate");
}
