/* test_ranks_backend.c - ranks whose arena and parameters are in memory that the host cannot read (backend.h).
 * Exchanges go through the host's memory, or with on_backend directly from and to the backend's memory, or through a
 * separate queue; some plans offload. All of these give the bits of one process. */
#if defined(__unix__) || defined(__APPLE__)
#include "gradckpt.h"
#include "backend.h"
#include "dist/rank_training.h"

enum { DEVICES = 4 };
static device devices[DEVICES];
static gckpt_backend backends[DEVICES];
static const gckpt_backend *backend_of_rank[DEVICES]; /* backend_of_rank[i] is &backends[i] */

/* Emulates a backend with a second queue for communication by its only queue. Counts the switches to the
 * communication queue and checks the order of calls. */
static long within[DEVICES], comm_depth[DEVICES];
static void *comm_queue(void *context, int on)
{
    const long i = (device *)context - devices;
    CHECK(within[i] == !on);
    within[i] = on;
    comm_depth[i] += on;
    return context;
}
static void rejoin(void *context, int later)
{
    const long i = (device *)context - devices;
    CHECK(!within[i] && later >= 0 && later < 8);
}

/* A transport whose enqueue fails on rank 1 after 20 exchanges. */
static long taken;
static int take_some(void *user, void *queue, int peer, const void *send, size_t n, void *receive, size_t m)
{
    return ++taken <= 20 ? ranks_enqueue(user, queue, peer, send, n, receive, m) : 0;
}
static gckpt_transport *refusing_transport(ranks_world *w, int rank)
{
    if (rank == 1)
        w->rank[rank].transport.enqueue = take_some;
    return &w->rank[rank].transport;
}

/* Tests that a queue which accepts no more exchanges ends the step on all ranks. */
static void test_queue_refuses(setting s)
{
    static trial t;
    ranks_world w;
    s.transport = refusing_transport;
    run(&t, &s, NULL, &w);
    CHECK(taken > 20);
    for (int i = 0; i < s.ranks; i++)
        CHECK_MSG(t.out[i].failed == 2 && t.out[i].first == GCKPT_E_PEER && t.out[i].last == GCKPT_E_PEER &&
                      strstr(t.out[i].first_text, "does not answer"),
                  "rank %d: %s", i, t.out[i].first_text);
}

int main(void)
{
    static const unsigned features[] = { DROPOUT | SECOND, PACKED, INFINITE };
    outcome want;
    int n = 0, opened = 0, ready = 1;
    for (int i = 0; i < DEVICES; i++) {
        backend_of_rank[i] = &backends[i];
        ready &= device_start(&devices[i], &backends[i], "pages", GCKPT_ISA_PLAIN);
    }
    fill();
    for (size_t k = 0; ready && k < sizeof features / sizeof *features; k++) {
        setting s = {
            .mode = GCKPT_STORE_ALL, .virtual_ranks = VRANKS, .flags = features[k] | SMALL, .rows = 2
        };
        one_process(&s, &want);
        for (int ranks = 2; ranks <= DEVICES; ranks *= 2)
            for (int shard = ranks == 2; shard <= GCKPT_SHARD_VALUES; shard += 2, n++) {
                if (!check_sampled((unsigned)n, 3))
                    continue;
                s.ranks = ranks;
                s.shard = (gckpt_shard)shard;
                s.rows = 1 + n % 2;
                s.on_backend = n / 2 % 2;
                s.blocking = n % 3 == 1;
                s.mode = n % 4 == 3 ? GCKPT_OPTIMAL : GCKPT_STORE_ALL;
                s.backends = backend_of_rank;
                s.queued = s.on_backend && n % 4 > 1;
                for (int i = 0; i < DEVICES; i++) {
                    backends[i].use_comm_queue = s.queued ? comm_queue : NULL;
                    backends[i].wait_comm_queue = s.queued ? rejoin : NULL;
                    comm_depth[i] = 0;
                }
                for (; s.on_backend && opened < DEVICES; opened++)
                    device_open(&devices[opened]); /* the transport reads and writes the backend's memory */
                for (; !s.on_backend && opened > 0; opened--)
                    device_close(&devices[opened - 1]);
                compare(&s, &want);
                for (int i = 0; i < s.ranks; i++)
                    CHECK(!within[i] && (comm_depth[i] > 0) == s.queued);
            }
    }
    if (ready) { /* tests an enqueue that fails, with parameters that need larger exchange buffers */
        setting s = { .mode = GCKPT_STORE_ALL, .virtual_ranks = VRANKS, .flags = LARGE, .rows = 2, .ranks = 2,
                      .backends = backend_of_rank, .on_backend = 1, .queued = 1 };
        for (; opened < DEVICES; opened++)
            device_open(&devices[opened]);
        for (int i = 0; i < DEVICES; i++)
            backends[i].use_comm_queue = comm_queue, backends[i].wait_comm_queue = rejoin;
        test_queue_refuses(s);
        for (int i = 0; i < DEVICES; i++)
            backends[i].use_comm_queue = NULL, backends[i].wait_comm_queue = NULL;
        while (opened > 0)
            device_close(&devices[--opened]);
        s.on_backend = s.queued = 0;
        one_process(&s, &want);
        for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard += 3) {
            s.shard = (gckpt_shard)shard;
            compare(&s, &want);
        }
    }
    while (opened > 0)
        device_close(&devices[--opened]);
    for (int i = 0; ready && i < DEVICES; i++)
        device_end(&devices[i]);
    setting s = {
        .mode = GCKPT_OPTIMAL, .virtual_ranks = VRANKS, .flags = SECOND, .rows = 2, .offload = 1 << 20
    };
    one_process(&s, &want);
    for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard += 3) {
        s.ranks = 2;
        s.shard = (gckpt_shard)shard;
        CHECK(compare(&s, &want)->offloaded > 0);
    }
    return check_report("test_ranks_backend");
}
#else
#include "check.h"
int main(void) { return check_report("test_ranks_backend"); /* this system has no threads */ }
#endif
