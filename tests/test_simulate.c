/* test_simulate.c - examples/simulate.h: what is exchanged adds up to the lower bound, as long as closed
 * forms say, hidden behind what is computed or not; and what a simulated step sends is what an executor
 * sends, on threads as ranks. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "examples/simulate.h"
#include "rig.h"
#include <math.h>

enum { BLOCK = GCKPT_UPDATE_BLOCK };

static int near(double a, double b) { return fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b)); }

/* ---- shares and exchanges ---- */
/* What all ranks send is E (N - 1) elements each way, whatever E; partners agree; what is left is
 * gckpti_share's. */
static void shares(int64_t elements, int ranks)
{
    simulate_exchange x[2][2 * SIMULATE_LEVELS];
    int64_t sent[2] = { 0, 0 }, all = 0, first = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const simulate_ranks r = { rank, ranks, ranks, GCKPT_SHARD_STATE };
        const int64_t share = simulate_part(elements, rank, ranks);
        CHECK(share == gckpti_share(elements, rank, ranks, &first));
        CHECK(share <= simulate_part(elements, 0, ranks));
        all += share;
        for (int back = 0; back < 2; back++) {
            const int n = back ? simulate_double(x[0], elements, &r) : simulate_halve(x[0], elements, &r);
            CHECK(1 << n == ranks);
            for (int i = 0; i < n; i++) {
                simulate_ranks other = r;
                other.rank = rank ^ x[0][i].bit;
                CHECK((back ? simulate_double(x[1], elements, &other)
                            : simulate_halve(x[1], elements, &other)) == n);
                CHECK(x[1][i].bit == x[0][i].bit && x[1][i].send == x[0][i].receive);
                CHECK(x[0][i].add == (back ? 0 : x[0][i].receive));
                sent[back] += x[0][i].send;
            }
        }
    }
    CHECK_MSG(all == elements && sent[0] == elements * (ranks - 1) && sent[1] == sent[0],
              "%lld elements, %d ranks: shares %lld, sent %lld and %lld", (long long)elements, ranks,
              (long long)all, (long long)sent[0], (long long)sent[1]);
}

/* Where blocks are shared evenly, a sum takes log2(N) latencies and P (N - 1) / N bytes; in nodes the first
 * levels, which carry most, go by the faster link. */
static void seconds(void)
{
    const simulate_machine m = { 1, 1, 8, { 100, 0.5 }, { 10, 2 } };
    for (int ranks = 2; ranks <= 1024; ranks *= 2) {
        const simulate_ranks r = { ranks / 3, ranks, ranks, GCKPT_SHARD_NONE };
        const int64_t elements = 3 * 1024 * (int64_t)BLOCK;
        const double bytes = 4 * (double)elements, near_ranks = ranks < 8 ? ranks : 8;
        simulate_exchange x[SIMULATE_LEVELS];
        double sum = 0, back = 0, levels = log2(ranks), inside = log2(near_ranks);
        const int n = simulate_halve(x, elements, &r);
        for (int i = 0; i < n; i++)
            sum += simulate_seconds(&m, &x[i]);
        CHECK(simulate_double(x, elements, &r) == n);
        for (int i = 0; i < n; i++)
            back += simulate_seconds(&m, &x[i]);
        const double want = inside * 0.5 + bytes * (1 - 1 / near_ranks) / 100 +
                            (levels - inside) * 2 + bytes * (1 / near_ranks - 1.0 / ranks) / 10;
        CHECK_MSG(near(sum, want) && near(back, want), "%d ranks: %g and %g, not %g", ranks, sum, back,
                  want);
    }
}

/* ---- hidden or waited for ---- */
/* A sum over two ranks beside `computing` seconds in pieces: what is longer counts, but an exchange that
 * ends within a piece waits for the piece's end. */
static void overlap(void)
{
    const simulate_machine m = { 1, 1e30, 1, { 0, 0 }, { 4 * BLOCK, 1 } };
    const simulate_ranks r = { 0, 4, 4, GCKPT_SHARD_NONE };
    static const struct {
        int pieces;
        double piece, exposed; /* of 4 blocks: 1 + 2 seconds, then 1 + 1 */
    } cases[] = { { 0, 0, 5 }, { 1, 2, 3 }, { 3, 1, 2 }, { 5, 1, 0 }, { 2, 3, 0 },
                  { 1, 4, 2 }, { 2, 4, 0 }, { 1, 9, 2 }, { 9, 1, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulate_state s;
        memset(&s, 0, sizeof s);
        s.machine = &m;
        s.ranks = &r;
        simulate_start(&s, simulate_halve(s.queue, 4 * BLOCK, &r));
        for (int k = 0; k < cases[i].pieces; k++) {
            simulate_compute(&s, cases[i].piece);
            simulate_poll(&s);
        }
        simulate_wait(&s);
        CHECK_MSG(near(s.done.exposed, cases[i].exposed) && near(s.done.link, 5) &&
                      near(s.done.seconds, s.done.exposed + s.done.compute) &&
                      s.done.sent == 3 * 4 * BLOCK && s.done.exchanges == 2,
                  "%d x %g s: waits %g, not %g", cases[i].pieces, cases[i].piece, s.done.exposed,
                  cases[i].exposed);
    }
}

int main(void)
{
    static const int64_t sizes[] = { 1,         BLOCK,         BLOCK + 1,       2 * BLOCK, 3 * BLOCK - 5,
                                     7 * BLOCK, 37 * BLOCK + 9, 1000 * BLOCK + 1 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int ranks = 1; ranks <= 64; ranks *= 2)
            shares(sizes[i], ranks);
    seconds();
    overlap();
    return check_report("simulate");
}
