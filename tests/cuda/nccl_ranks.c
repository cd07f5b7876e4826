/* nccl_ranks.c - trains with several threads as ranks, each with a device of the shim, connected by examples/nccl.h.
 * All shardings and plans must give the bits of one process. The test counts how often the host waits in a step and how
 * many bytes are copied to it. If a rank dies or cancels, the other ranks must stop.
 *
 *     build/shim/nccl_ranks [table]    with "table", also prints the counts */
#include "gradckpt.h"
#include "dist/rank_training.h"
#include "cuda_shim.h"

enum { DEVICES = 4, ID = 128 };
extern void nccl_transport_id(void *id);
extern gckpt_transport *nccl_transport_open(int rank, int size, const void *id, double timeout);
extern void nccl_transport_close(gckpt_transport *ranks);

static const gckpt_backend *gpu[DEVICES];
static const gckpt_backend *backend_of_rank[DEVICES]; /* backend_of_rank[i] is &backends[i] */
static gckpt_backend backends[DEVICES]; /* backends[i] is gpu[i] with functions that count calls */
static int verbose;   /* if nonzero, prints a line for each run */
static int polled; /* if nonzero, the host waits for each collective instead of enqueuing it */
static char id[ID];
static gckpt_transport *transports[DEVICES], dying[DEVICES]; /* dying: transports of ranks that die */
static struct {
    int rank;
    long at, seen; /* the rank dies at exchange number `at`, counted from 1; `seen` counts its exchanges */
    jmp_buf *end;
} death;

/* Counts of one device, over all steps of its rank except the first. waits: times the host waits for the device; early:
 * the largest number of waits in a step before its last update. completions, early_completions: the same numbers for
 * enqueued collectives that the host finds complete. bytes: copied to the host. */
typedef struct {
    long waits, early, completions, early_completions, bytes, steps;
    int stepping;
    long before, completions_before; /* values at the beginning of the current step */
} counts;
static counts n_of[DEVICES];
static counts *counted(const void *context)
{
    int i = 0;
    while (gpu[i]->context != context)
        i++;
    return &n_of[i];
}
static void stepping(int rank, int begins)
{
    counts *n = &n_of[rank];
    n->steps += begins;
    n->stepping = begins && n->steps > 1;
    n->before = n->waits;
    n->completions_before = n->completions;
}
static const char *counted_finish(void *context)
{
    counts *n = counted(context);
    n->waits += n->stepping;
    return gpu[0]->finish(context);
}
static void counted_copy_out(void *context, void *host, const void *from, size_t bytes)
{
    counts *n = counted(context);
    n->waits += n->stepping;
    n->bytes += n->stepping ? (long)bytes : 0;
    gpu[0]->copy_out(context, host, from, bytes);
}
static void counted_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    counts *n = counted(call->backend);
    const long waits = n->waits - n->before, completions = n->completions - n->completions_before;
    n->early = n->stepping && waits > n->early ? waits : n->early;
    n->early_completions = n->stepping && completions > n->early_completions ? completions : n->early_completions;
    gpu[0]->update(call, pass);
}
static int counted_done(void *user)
{
    int rank = 0;
    while (dying[rank].user != user)
        rank++;
    const int complete = transports[rank]->enqueued_done(user);
    n_of[rank].completions += complete != 0;
    return complete;
}
static int dying_enqueue(void *user, void *queue, int peer, const void *send, size_t send_bytes, void *receive,
                         size_t receive_bytes)
{
    if (user == dying[death.rank].user && ++death.seen == death.at)
        longjmp(*death.end, 1);
    return transports[0]->enqueue(user, queue, peer, send, send_bytes, receive, receive_bytes);
}

static gckpt_transport *transport_of(ranks_world *w, int rank)
{
    transports[rank] = nccl_transport_open(rank, w->size, id, death.at ? 2 : 600);
    if (!CHECK(transports[rank] != NULL))
        exit(1);
    dying[rank] = *transports[rank];
    dying[rank].enqueued_done = counted_done;
    if (polled)
        dying[rank].enqueue = NULL;
    if (death.at) {
        dying[rank].enqueue = dying_enqueue;
        death.end = rank == death.rank ? &w->rank[rank].end : death.end;
    }
    return &dying[rank];
}

static void close_transports(int ranks)
{
    for (int i = 0; i < ranks; i++)
        nccl_transport_close(transports[i]);
}

/* Trains with several ranks and compares with one process. Returns the counts of the rank that waits most. */
static counts like(const setting *s, const outcome *want)
{
    counts most = { 0 };
    memset(n_of, 0, sizeof n_of);
    nccl_transport_id(id);
    const size_t offloaded = compare(s, want)->offloaded;
    CHECK_MSG((offloaded > 0) == (s->offload > 0), "%d ranks, shard %d: %zu bytes offloaded", s->ranks, (int)s->shard,
              offloaded);
    for (int i = 0; i < s->ranks; i++) {
        const counts *n = &n_of[i];
        most = n->waits > most.waits ? *n : most;
        if (s->ranks > 1)
            nccl_transport_close(transports[i]);
    }
    if (verbose)
        printf("%d ranks, shard %d, %s%s: %ld waits before the last update, %ld completions, %.1f waits a step; "
               "%.0f bytes to the host\n",
               s->ranks, (int)s->shard, polled ? "polled" : "enqueued", s->offload ? ", offloads" : "", most.early,
               most.early_completions,
               (double)most.waits / (double)(most.steps - 1), (double)most.bytes / (double)(most.steps - 1));
    return most;
}

/* Lets a rank die at exchange number `at`: all other ranks must return an error, and none may wait for ever. */
static void dies(setting s, int rank, long at)
{
    static trial t;
    ranks_world w;
    const injection none = { .rank = -1 };
    death.rank = rank, death.at = at, death.seen = 0;
    nccl_transport_id(id);
    run(&t, &s, &none, &w);
    CHECK_MSG(death.seen == at, "rank %d made %ld exchanges, not %ld", rank, death.seen, at);
    for (int i = 0; i < s.ranks; i++)
        CHECK_MSG(i == rank || (t.out[i].first == GCKPT_E_PEER && t.out[i].last == GCKPT_E_PEER),
                  "exchange %ld of rank %d: rank %d: %d, %s", at, rank, i, (int)t.out[i].first, t.out[i].first_text);
    gpu[rank]->use_comm_queue(gpu[rank]->context, 0); /* the rank died before this call ended its use */
    CHECK(gpu[rank]->finish(gpu[rank]->context) == NULL);
    close_transports(s.ranks);
    death.at = 0;
}

/* A callback of `rank` cancels before instruction number `at`. All ranks must return GCKPT_CANCELLED; when they run the
 * step again, they must get the same bits. */
static void cancels(setting s, int rank, long at, const outcome *want)
{
    static trial t;
    ranks_world w;
    const injection bad = { .rank = rank, .cancel_at = at };
    nccl_transport_id(id);
    run(&t, &s, &bad, &w);
    for (int i = 0; i < s.ranks; i++)
        CHECK_MSG(t.out[i].first == GCKPT_CANCELLED && t.out[i].failed == 1 && t.out[i].hash == want->hash &&
                      !t.out[i].changed,
                  "cancelled before instruction %ld: rank %d: %d, %s %s", at, i, (int)t.out[i].first,
                  t.out[i].first_text, t.out[i].text);
    close_transports(s.ranks);
}

static void test_faults(void)
{
    setting s = { .mode = GCKPT_STORE_ALL,
                  .virtual_ranks = 4,
                  .flags = SMALL,
                  .rows = 2,
                  .ranks = 2,
                  .backends = backend_of_rank,
                  .transport = transport_of,
                  .on_backend = 1 };
    static const long at[] = { 1, 15, 22 }; /* a reduction, a gather after updates, a gather within a step */
    for (int i = 0; i < 3; i++) {
        s.shard = i == 2 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE;
        dies(s, i % 2, at[i]);
    }
    outcome want;
    one_process(&s, &want);
    for (long n = 1; n < 200; n += 66)
        cancels(s, 1, n, &want);
}

/* A run with VRANKS virtual ranks on one or more devices. In a step that does not clip, the host must wait for nothing
 * before the last update: such a step copies fewer than 32 inputs (gckpt_backend.copy_in). */
typedef struct {
    int ranks, shard, rows, mode, overlap, polled;
    unsigned flags; /* added to the default flags; a run with flags trains once, all other runs three times */
    feeding feed;
    size_t offload;
} a_run;
static const a_run runs[] = {
    { 1, GCKPT_SHARD_NONE, 1, GCKPT_STORE_ALL, 0, 0, 0, WHOLE, 0 },
    { 2, GCKPT_SHARD_NONE, 1, GCKPT_STORE_ALL, 0, 0, 0, WHOLE, 0 },
    { 2, GCKPT_SHARD_STATE, 2, GCKPT_OPTIMAL, 0, 0, 0, WHOLE, 0 },
    { 2, GCKPT_SHARD_VALUES, 2, GCKPT_OPTIMAL, 1, 0, 0, WHOLE, 0 },
    { 2, GCKPT_SHARD_VALUES, 2, GCKPT_OPTIMAL, 0, 1, 0, WHOLE, 0 },
    { 4, GCKPT_SHARD_GRADIENTS, 1, GCKPT_STORE_ALL, 0, 0, 0, WHOLE, 0 },
    { 4, GCKPT_SHARD_VALUES, 2, GCKPT_STORE_ALL, 0, 0, 0, WHOLE, 0 },
    { 2, GCKPT_SHARD_VALUES, 2, GCKPT_STORE_ALL, 0, 0, INFINITE, PIECES, 0 },
    { 2, GCKPT_SHARD_NONE, 1, GCKPT_OPTIMAL, 1, 0, 0, WHOLE, 1 << 20 },
    { 2, GCKPT_SHARD_VALUES, 2, GCKPT_OPTIMAL, 1, 0, 0, WHOLE, 1 << 20 },
    { 4, GCKPT_SHARD_GRADIENTS, 1, GCKPT_OPTIMAL, 0, 0, 0, WHOLE, 1 << 20 },
    { 2, GCKPT_SHARD_STATE, 2, GCKPT_OPTIMAL, 1, 1, 0, WHOLE, 1 << 20 },
};

static void go(const a_run *r, int unclipped, const outcome *wanted)
{
    outcome own_want;
    setting s = { .virtual_ranks = VRANKS, .unclipped = unclipped,
                  .flags = DROPOUT | SECOND | SMALL | r->flags,
                  .repeats = r->flags ? 1 : 3, .feed = r->feed,
                  .ranks = r->ranks, .shard = (gckpt_shard)r->shard, .rows = r->rows, .mode = (gckpt_mode)r->mode,
                  .overlap = r->overlap, .offload = r->offload, .on_backend = 1, .no_debug = 1, .backends = backend_of_rank,
                  .transport = transport_of, .on_step = stepping };
    polled = r->polled;
    if (r->flags)
        one_process(&s, &own_want);
    const counts n = like(&s, r->flags ? &own_want : wanted);
    CHECK_MSG(polled || !unclipped || n.early + n.early_completions == 0,
              "%d ranks: %ld waits, %ld completions before the last update", r->ranks, n.early, n.early_completions);
    polled = 0;
}

int main(int argc, char **argv)
{
    const char *why;
    outcome want[2];
    for (int i = 0; i < DEVICES; i++) {
        gpu[i] = gckpt_cuda_backend(i, &why);
        if (!CHECK_MSG(gpu[i] != NULL, "%s", why))
            return 1;
        backend_of_rank[i] = &backends[i];
        backends[i] = *gpu[i];
        backends[i].finish = counted_finish;
        backends[i].copy_out = counted_copy_out;
        backends[i].update = counted_update;
    }
    fill();
    for (int i = 0; i < 2; i++) {
        setting s = {
            .virtual_ranks = VRANKS, .flags = DROPOUT | SECOND | SMALL, .rows = 1, .repeats = 3, .unclipped = i
        };
        one_process(&s, &want[i]);
    }
    if (argc > 1 && strcmp(argv[1], "table") == 0) {
        verbose = 1;
        for (int i = 0; i < 24; i++) { /* the last 8 runs offload values while kernels run */
            const int with = i >= 16;
            const a_run r = { (with ? i / 4 % 2 : i / 8) ? 4 : 2, with ? i % 4 : i / 2 % 4, 1,
                              with ? GCKPT_OPTIMAL : GCKPT_STORE_ALL, with, !with && i % 2 == 0, 0, WHOLE,
                              with ? 1 << 20 : 0 };
            go(&r, 1, &want[1]);
        }
        return check_report("nccl ranks");
    }
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        const int unclipped = k % 3 != 2 && !(runs[k].flags & INFINITE);
        go(&runs[k], unclipped, &want[unclipped]);
    }
    test_faults();
    return check_report("nccl ranks");
}
