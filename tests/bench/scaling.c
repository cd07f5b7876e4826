/* scaling.c - measures a step of a GPT on several processes: its time, the part of the communication that overlaps
 * with the backward, and the bytes sent, compared with the minimum. scaling.sh (make scaling) runs this program and
 * prints the head of the table:
 *
 *     mpirun -n N build/scaling MODE       MODE: exact, fast, state, gradients, values
 *
 * A sum of gradients is in flight from the start of its collective until the executor sees that it has ended. The
 * executor waits while it does nothing but poll, that is while polls follow each other within 5 microseconds. Small
 * collectives (losses, counts, results) are not measured. */
#include "model.h"

#include "../../examples/mpi.h"

enum { BATCH = 16, VRANKS = 8, STEPS = 12, LARGE = 1 << 14 };
static const size shape = { 4, 4, 256, 64, BATCH / VRANKS, 256, 0, 0 };
static const char *const modes[] = { "exact", "state", "gradients", "values" };

/* A transport that is measured. */
static struct {
    mpi_ranks transport;
    int large;
    double begun, asked, in_flight, waited;
} watch;

static int begin(size_t bytes, int begun)
{
    watch.large = bytes >= LARGE;
    watch.begun = watch.asked = now();
    return begun;
}

static int exchange(void *user, int peer, const void *send, size_t out, void *receive, size_t in)
{
    const gckpt_transport *r = &watch.transport.ranks;
    return (void)user, begin(out + in, r->exchange(r->user, peer, send, out, receive, in));
}

static int done(void *user)
{
    const double asked = now();
    const int complete = watch.transport.ranks.done(watch.transport.ranks.user);
    const double answered = now(), since = asked - watch.asked < 5e-6 ? watch.asked : asked;
    if (watch.large)
        watch.waited += answered - since;
    if (watch.large && complete != 0)
        watch.in_flight += answered - watch.begun;
    watch.asked = answered;
    return (void)user, complete;
}

static int fail(const char *text)
{
    fprintf(stderr, "scaling: %s\n", text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

int main(int argc, char **argv)
{
    bench b = { .z = &shape };
    int mode = 0;
    MPI_Init(&argc, &argv);
    if (!mpi_ranks_open(&watch.transport, MPI_COMM_WORLD, 60))
        return fail("MPI");
    while (argc > 1 && mode < 3 && strcmp(argv[1], modes[mode]) != 0)
        mode++;
    gckpt_transport ranks = watch.transport.ranks;
    ranks.exchange = exchange;
    ranks.done = done;
    b.store = gckpt_store_new(NULL);
    gckpt_store_ranks(b.store, ranks.rank, ranks.size, (gckpt_shard)mode);
    b.graph = gckpt_graph_new(b.store, NULL);
    bench_build(b.graph, shape.batch, &b.loss, &b);
    const gckpt_plan_desc desc = { .batch = BATCH, .ranks.virtual_ranks = VRANKS };
    const gckpt_exec_desc how = { .transport = &ranks };
    b.plan = gckpt_plan_new(b.graph, &b.loss, 1, &desc);
    if (b.plan == NULL)
        return fail(gckpt_error_text(b.graph));
    b.exec = gckpt_exec_new(b.plan, b.store, &how);
    if (b.exec == NULL)
        return fail(gckpt_error_text(b.store));

    static int32_t tokens[BATCH * 64], targets[BATCH * 64];
    int64_t first, parameters = 0;
    gckpt_plan_rank_rows(b.plan, BATCH, ranks.rank, &first);
    const gckpt_feed feeds[2] = { { b.feeds[0].input, tokens + first * shape.context },
                                  { b.feeds[1].input, targets + first * shape.context } };
    for (int i = 0; i < BATCH * 64; i++) {
        tokens[i] = (i * 7919 + i / 13) % shape.vocabulary;
        targets[i] = (i * 7919 + (i + 1) / 13) % shape.vocabulary;
    }
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(b.store, i, &p) == GCKPT_OK; i++)
        parameters += p.elements;

    const gckpt_hyper adamw = { .lr = 1e-4f };
    double seconds = 1e30, in_flight = 0, waited = 0;
    uint64_t sent = 0, hash;
    for (int i = 0; i < STEPS; i++) { /* the fastest of these steps counts */
        sent = gckpt_exec_bytes_sent(b.exec);
        watch.in_flight = watch.waited = 0;
        const double begun = now();
        if (gckpt_step(b.exec, feeds, 2, BATCH, &adamw, NULL) != GCKPT_OK)
            return fail(gckpt_error_text(b.exec));
        const double took = now() - begun;
        sent = gckpt_exec_bytes_sent(b.exec) - sent;
        if (took < seconds) {
            seconds = took;
            in_flight = watch.in_flight;
            waited = watch.waited;
        }
    }
    if (gckpt_gather_values(b.exec, -1, NULL, &hash) != GCKPT_OK)
        return fail(gckpt_error_text(b.exec));
    const double least = 8e-6 * (double)parameters * (ranks.size - 1) / ranks.size;
    if (ranks.rank == 0) {
        printf("| %d%s | %s | %.0f | %.1f | ", ranks.size, ranks.size > 2 ? ", oversubscribed" : "",
               modes[mode], 1e3 * seconds, 1e3 * in_flight);
        printf(in_flight > 0 ? "%.0f %% | " : "- | ", 100 * (1 - waited / in_flight));
        printf(mode < 4 ? "%.2f | " : "by MPI | ", 1e-6 * (double)sent);
        printf("%.2f | %zu | `%016llx` |\n", least, gckpt_plan_bytes(b.plan),
               (unsigned long long)hash);
    }
    bench_free(&b);
    mpi_ranks_close(&watch.transport);
    MPI_Finalize();
    return 0;
}
