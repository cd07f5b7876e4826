/* mpi_predict.c - compares the time that examples/simulate.h predicts for a step with the time that the step takes,
 * for 1 and more ranks on this machine over MPI. Prints a Markdown table.
 *
 *     make predict-mpi
 *     mpirun -np 2 build/mpi_predict
 *
 * First it measures the link between ranks, by exchanges of small and large messages in both directions at
 * once, and every op, by tune_costs on all ranks at the same time (they share memory and caches).
 * Of several steps the least time counts, since other programs can only make a step slower. */
#include "bench/model.h"
#include "examples/mpi.h"
#include "examples/simulate.h"

enum { STEPS = 60, WARM = 2, LARGE = 1 << 19, ALL = 1 << 26, ROUNDS = 50, IN_A_ROW = 10 };

static double wall(void *unused) { return (void)unused, now(); }

/* Returns the seconds of an exchange of `bytes` bytes with the neighbouring rank: the least of several means. A mean
 * over several exchanges is used because a single exchange takes no time if the neighbour already waits for it. */
static double exchange(mpi_ranks *m, char *from, char *to, size_t bytes)
{
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const double t = now();
        for (int k = 0; k < IN_A_ROW; k++) {
            /* a part of the buffer that is not in the processor's caches */
            const size_t at = (size_t)(i * IN_A_ROW + k) * bytes % ALL;
            int done =
                m->ranks.exchange(m, m->ranks.rank ^ 1, from + at, bytes, to + at, bytes) ? 0 : -1;
            while (done == 0)
                done = m->ranks.done(m);
        }
        if ((now() - t) / IN_A_ROW < best)
            best = (now() - t) / IN_A_ROW;
    }
    return best;
}

static simulate_link measure_link(mpi_ranks *m)
{
    simulate_link link = { 1e30, 0 };
    char *bytes = (char *)malloc(2 * ALL);
    if (m->ranks.size > 1 && bytes != NULL) {
        memset(bytes, 1, 2 * ALL);
        link.latency = exchange(m, bytes, bytes + ALL, 4);
        link.bandwidth = LARGE / (exchange(m, bytes, bytes + ALL, LARGE) - link.latency);
    }
    free(bytes);
    return link;
}

typedef struct {
    gckpt_cost *costs;
    int count;
    simulate_machine machine;
} measured;

/* Measures the cost of every op for several numbers of rows, as one process without a transport, while all other
 * ranks do the same. */
static int measure_ops(const size *z, measured *to)
{
    bench b = { 0 };
    uint64_t update = 0;
    int good = bench_new(&b, z, GCKPT_STORE_ALL, 1);
    to->count = good ? gckpt_id(b.loss.loss) + 1 : 0;
    to->costs = (gckpt_cost *)calloc((size_t)to->count + 1, sizeof *to->costs);
    const tune_input input = { wall, NULL, b.feeds, 2, z->batch, NULL };
    good = good && to->costs != NULL &&
           tune_costs(b.store, b.plan, &input, to->costs, to->count, &update) == GCKPT_OK;
    to->machine.throughput = 1e9;
    to->machine.mem_bandwidth =
        1e9 * SIMULATE_UPDATE_BYTES * (double)b.parameters / (double)(update > 0 ? update : 1);
    to->machine.node_size = 1;
    bench_free(&b);
    return good;
}

/* Prints a row of the table: predicted and measured times of the plan with one kind of shard. Returns 0 on failure. */
static int print_row(mpi_ranks *m, const size *z, const measured *at, gckpt_shard shard)
{
    const simulate_ranks r = { m->ranks.rank, m->ranks.size, m->ranks.size, shard };
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    const int64_t rows = (int64_t)z->batch * r.ranks;
    gckpt_plan_desc desc = { .mode = GCKPT_AUTO,
                             .batch = rows,
                             .ranks.virtual_ranks = r.virtual_ranks,
                             .costs.by_id = at->costs,
                             .costs.count = at->count };
    const gckpt_exec_desc how = { .transport = &m->ranks };
    bench b = { 0 };
    double best = 1e30;
    uint64_t sent = 0;
    desc.ranks.link_cost = (uint64_t)(1e9 * 1048576 / at->machine.inter_node.bandwidth);
    bench_shard = shard;
    int good = bench_open(&b, z, &desc, &how);
    simulate_step s;
    memset(&s, 0, sizeof s);
    if (good)
        s = simulate_run(b.plan, b.graph, &r, &at->machine);
    for (int i = 0; i < STEPS && good; i++) {
        const double t = now();
        sent = gckpt_exec_bytes_sent(b.exec);
        good = gckpt_step(b.exec, b.feeds, 2, rows, &adamw, NULL) == GCKPT_OK;
        sent = gckpt_exec_bytes_sent(b.exec) - sent;
        if (i >= WARM && now() - t < best)
            best = now() - t;
    }
    if (!good && b.exec != NULL)
        fprintf(stderr, "mpi_predict: %s\n", gckpt_error_text(b.exec));
    else if (r.rank == 0)
        printf("| %d | %s | %d | %.2f | %.2f (%.2f) | %.2f | %.2f | %.3f |\n", r.ranks,
               (const char *const[]){ "none", "state", "gradients", "values" }[shard], z->batch,
               1e3 * best, 1e3 * s.seconds, 1e3 * s.exposed, s.seconds / best, 1e-6 * (double)sent,
               (double)sent / (double)(s.sent > 0 ? s.sent : 1));
    bench_free(&b);
    return good;
}

int main(int argc, char **argv)
{
    static const int rows[] = { 1, 4, 16 };
    mpi_ranks m;
    size z = { 2, 4, 256, 16, 1, 256, 0, 0 };
    int good = MPI_Init(&argc, &argv) == 0 && mpi_ranks_open(&m, MPI_COMM_WORLD, 60);
    const simulate_link link = measure_link(&m);
    if (m.ranks.rank == 0)
        printf(
            "GPT of %d layers, width %d, context %d; exchanges: %.2f GB/s, %.1f us\n\n| ranks | shard | "
            "rows a rank | ms | predicted (waiting) | ratio | MB sent | of predicted |\n"
            "|---|---|---|---|---|---|---|---|\n",
            z.layers, z.dim, z.context, m.ranks.size > 1 ? 1e-9 * link.bandwidth : 0,
            1e6 * link.latency);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && good; i++) {
        measured at = { NULL, 0, { 0, 0, 1, link, link, 1 } };
        z.batch = rows[i];
        good = measure_ops(&z, &at);
        for (int shard = 0; shard < (m.ranks.size > 1 ? 4 : 1) && good; shard++)
            good = print_row(&m, &z, &at, (gckpt_shard)shard);
        free(at.costs);
    }
    mpi_ranks_close(&m);
    return MPI_Finalize() != 0 || !good;
}
