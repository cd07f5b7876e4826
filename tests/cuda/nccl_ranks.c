/* nccl_ranks.c - threads as ranks, a device of the shim each, examples/nccl.h between them: the bits of one process
 * whatever is cut, planned, recorded; how often a host waits in a step, and what is copied to it; ranks that end. */
#include "gradckpt.h"
#include "ranks/ranked.h"
#include "cuda_shim.h"

enum { DEVICES = 4, ID = 128 };
extern void nccl_engine_id(void *id);
extern gckpt_ranks *nccl_engine_open(int rank, int size, const void *id, double timeout);
extern void nccl_engine_close(gckpt_ranks *ranks);

static const gckpt_backend *gpu[DEVICES];
static gckpt_backend backends[DEVICES]; /* the same, counted */
static int polled; /* 1: without enqueue, as it was */
static char id[ID];
static gckpt_ranks *engines[DEVICES], own[DEVICES]; /* own: with a rank that ends */
static struct {
    int rank;
    long at, seen; /* its at-th exchange in the queue never comes */
    jmp_buf *end;
} death;

/* Per device and, but for the latter two, within steps only. */
typedef struct {
    long finishes, copies, bytes; /* what the host waits for; bytes: that come to it */
    long repeated, refused;
    int stepping;
} counts;
static counts n_of[DEVICES];
static counts *counted(const void *context)
{
    int i = 0;
    while (gpu[i]->context != context)
        i++;
    return &n_of[i];
}
static void stepping(int rank, int begins) { n_of[rank].stepping = begins; }
static const char *counted_finish(void *context)
{
    counts *n = counted(context);
    n->finishes += n->stepping;
    return gpu[0]->finish(context);
}
static void counted_copy_out(void *context, void *host, const void *from, size_t bytes)
{
    counts *n = counted(context);
    n->copies += n->stepping;
    n->bytes += n->stepping ? (long)bytes : 0;
    gpu[0]->copy_out(context, host, from, bytes);
}
static int counted_repeat(void *context, const gckpt_moment *m)
{
    int done = gpu[0]->repeat(context, m);
    return counted(context)->repeated += done, done;
}
static int counted_recorded(void *context)
{
    int done = gpu[0]->recorded(context);
    return counted(context)->refused += !done, done;
}
static int dying_enqueue(void *user, void *queue, int peer, const void *send, size_t send_bytes, void *receive,
                         size_t receive_bytes)
{
    if (user == own[death.rank].user && ++death.seen == death.at)
        longjmp(*death.end, 1);
    return engines[0]->enqueue(user, queue, peer, send, send_bytes, receive, receive_bytes);
}

static gckpt_ranks *engine(ranks_world *w, int rank)
{
    engines[rank] = nccl_engine_open(rank, w->size, id, death.at ? 2 : 600);
    if (!CHECK(engines[rank] != NULL))
        exit(1);
    own[rank] = *engines[rank];
    if (polled)
        own[rank].enqueue = NULL;
    if (death.at) {
        own[rank].enqueue = dying_enqueue;
        death.end = rank == death.rank ? &w->rank[rank].end : death.end;
    }
    return &own[rank];
}

static void close_engines(int ranks)
{
    for (int i = 0; i < ranks; i++)
        nccl_engine_close(engines[i]);
}

/* As one process; what a rank's step took. */
static counts like(const setting *s, const outcome *want)
{
    const double steps = (double)s->ranks * STEPS * (s->laps ? s->laps : 1);
    counts all = { 0 };
    memset(n_of, 0, sizeof n_of);
    nccl_engine_id(id);
    compare(s, want);
    close_engines(s->ranks);
    for (int i = 0; i < s->ranks; i++) {
        const counts *n = &n_of[i];
        all.finishes += n->finishes, all.copies += n->copies, all.bytes += n->bytes, all.repeated += n->repeated;
        CHECK_MSG(n->refused == 0, "rank %d: %ld parts could not be recorded", i, n->refused);
    }
    if (getenv("RANKS_SAY"))
        printf("%d ranks, shard %d, %s%s%s: a step of a rank waits %.1f times, copies out %.1f (%.0f bytes), repeats %.1f\n",
               s->ranks, (int)s->shard, gckpt_mode_name(s->mode), s->ahead ? ", ahead" : "", polled ? ", polled" : "",
               (double)all.finishes / steps, (double)all.copies / steps, (double)all.bytes / steps,
               (double)all.repeated / steps);
    return all;
}

/* A rank ends at its at-th exchange in the queue: the others find out, none waits for ever. */
static void dies(setting s, int rank, long at)
{
    static trial t;
    ranks_world w;
    const mishap none = { .rank = -1 };
    death.rank = rank, death.at = at, death.seen = 0;
    nccl_engine_id(id);
    run(&t, &s, &none, &w);
    CHECK_MSG(death.seen == at, "rank %d made %ld exchanges, not %ld", rank, death.seen, at);
    for (int i = 0; i < s.ranks; i++)
        CHECK_MSG(i == rank || (t.out[i].first == GCKPT_E_PEER && t.out[i].last == GCKPT_E_PEER),
                  "exchange %ld of rank %d: rank %d: %d, %s", at, rank, i, (int)t.out[i].first, t.out[i].first_text);
    gpu[rank]->beside(gpu[rank]->context, 0); /* which it was within */
    CHECK(gpu[rank]->finish(gpu[rank]->context) == NULL);
    close_engines(s.ranks);
    death.at = 0;
}

/* A rank's callback cancels: so do all, and take the step again, to the same bits. */
static void cancels(setting s, int rank, long at)
{
    static trial t;
    ranks_world w;
    const mishap bad = { .rank = rank, .cancel_at = at };
    nccl_engine_id(id);
    run(&t, &s, &bad, &w);
    for (int i = 0; i < s.ranks; i++)
        CHECK_MSG(t.out[i].first == GCKPT_CANCELLED && t.out[i].failed == 1 && t.out[i].hash == t.out[0].hash &&
                      !t.out[i].changed,
                  "cancelled before instruction %ld: rank %d: %d, %s %s", at, i, (int)t.out[i].first,
                  t.out[i].first_text, t.out[i].text);
    close_engines(s.ranks);
}

static void test_faults(void)
{
    setting s = { .mode = GCKPT_STORE_ALL, .leaves = 4, .with = SMALL, .rows = 2, .ranks = 2, .backends = backends,
                  .engine = engine, .on_backend = 1 };
    static const long at[] = { 1, 9, 22 };
    for (int i = 0; i < 3; i++) {
        s.shard = i == 2 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE;
        dies(s, i % 2, at[i]);
    }
    for (long n = 1; n < 200; n += 66)
        cancels(s, 1, n);
}

int main(int argc, char **argv)
{
    static const unsigned features[] = { DROPOUT | SECOND, PACKED };
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    const char *why;
    outcome want;
    int n = 0;
    for (int i = 0; i < DEVICES; i++) {
        gpu[i] = gckpt_cuda_backend(i, &why);
        if (!CHECK_MSG(gpu[i] != NULL, "%s", why))
            return 1;
        backends[i] = *gpu[i];
        backends[i].finish = counted_finish;
        backends[i].copy_out = counted_copy_out;
        backends[i].repeat = counted_repeat;
        backends[i].recorded = counted_recorded;
    }
    fill();
    for (size_t k = 0; k < sizeof features / sizeof *features; k++) {
        setting s = { .mode = GCKPT_STORE_ALL, .leaves = LEAVES, .with = features[k] | SMALL, .rows = 1, .laps = 3 };
        one_process(&s, &want);
        for (int ranks = 2; ranks <= DEVICES; ranks *= 2)
            for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard++, n++) {
                s.ranks = ranks;
                s.shard = (gckpt_shard)shard;
                s.rows = 1 + n % 2;
                s.mode = n % 4 == 3 ? GCKPT_OPTIMAL : GCKPT_STORE_ALL;
                s.ahead = n % 3 == 1;
                s.on_backend = 1;
                s.unwatched = 1;
                s.backends = backends;
                s.engine = engine;
                s.stepping = stepping;
                polled = 1;
                like(&s, &want);
                polled = 0;
                like(&s, &want);
                if (quick && n == 1)
                    return check_report("nccl ranks");
            }
    }
    test_faults();
    return check_report("nccl ranks");
}
