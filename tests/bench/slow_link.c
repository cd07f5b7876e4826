/* slow_link.c - measures a step of two ranks that are joined by a slow link, compared with the prediction of
 * examples/simulate.h: with all-gathers of sharded values that run immediately before their readers, and with
 * all-gathers that overlap with computation (gckpt_plan_desc.ranks.overlap). The transport uses sockets.
 *
 *     make slow-link      two network namespaces, the rate of their link limited: tests/bench/slow_link.sh
 *     build/limited RANK OWN_ADDRESS PEER_ADDRESS RATE
 *
 * Rank 0 prints Markdown. RATE is only printed. First the program measures the link, by exchanges in both directions at
 * once, and every op, by tune_costs, on both ranks at the same time. */
#define _GNU_SOURCE
#include "bench/model.h"
#include "../names.h"
#include "examples/simulate.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7421, STEPS = 8, WARM = 2, LARGE = 4 << 20, ROUNDS = 3 };

/* ---- the transport ---- */
typedef struct {
    gckpt_transport ranks;
    int socket;
    const char *send;
    char *receive;
    size_t to_send, to_receive;
    double under_way, since; /* under_way: seconds with a collective in flight; since: start of the last one */
} peer;

static int peer_begin(void *user, int rank, const void *send, size_t send_bytes, void *receive,
                      size_t receive_bytes)
{
    peer *p = (peer *)user;
    p->send = (const char *)send;
    p->receive = (char *)receive;
    p->to_send = send_bytes;
    p->to_receive = receive_bytes;
    p->since = now();
    return rank == 1 - p->ranks.rank;
}

static int peer_done(void *user)
{
    peer *p = (peer *)user;
    ssize_t n = p->to_receive ? recv(p->socket, p->receive, p->to_receive, 0) : 1;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        return -1;
    if (n > 0 && p->to_receive) {
        p->receive += n;
        p->to_receive -= (size_t)n;
    }
    const ssize_t m = p->to_send ? send(p->socket, p->send, p->to_send, MSG_NOSIGNAL) : 0;
    if (m < 0 && errno != EAGAIN)
        return -1;
    p->send += m > 0 ? m : 0;
    p->to_send -= m > 0 ? (size_t)m : 0;
    if (p->to_receive == 0 && p->to_send == 0) {
        p->under_way += now() - p->since;
        return 1;
    }
    return 0;
}

static double peer_clock(void *user) { return (void)user, now(); }

static int peer_open(peer *p, int rank, const char *own_address, const char *other)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(PORT) }, there = here;
    const int one = 1;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    memset(p, 0, sizeof *p);
    inet_pton(AF_INET, own_address, &here.sin_addr);
    inet_pton(AF_INET, other, &there.sin_addr);
    if (rank == 0) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(s, (struct sockaddr *)&here, sizeof here) || listen(s, 1))
            return 0;
        p->socket = accept(s, NULL, NULL);
        close(s);
    } else {
        for (int tried = 0; connect(s, (struct sockaddr *)&there, sizeof there); tried++) {
            if (tried == 100)
                return 0;
            close(s);
            usleep(100000);
            s = socket(AF_INET, SOCK_STREAM, 0);
        }
        p->socket = s;
    }
    setsockopt(p->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    p->ranks = (gckpt_transport){ .rank = rank, .size = 2, .exchange = peer_begin, .done = peer_done,
                              .clock = peer_clock, .timeout = 60, .user = p };
    return p->socket >= 0 && fcntl(p->socket, F_SETFL, O_NONBLOCK) == 0;
}

/* ---- measurements before the steps ---- */
static double exchange(peer *p, char *bytes, size_t n)
{
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const double t = now();
        peer_begin(p, 1 - p->ranks.rank, bytes, n, bytes + n, n);
        while (peer_done(p) == 0)
            sched_yield();
        best = now() - t < best ? now() - t : best;
    }
    return best;
}

/* Sends rank 0's measurements to rank 1, so that both ranks make the same plans. */
static int broadcast(peer *p, void *what, size_t bytes)
{
    int done = 0;
    peer_begin(p, 1 - p->ranks.rank, what, p->ranks.rank ? 0 : bytes, what,
               p->ranks.rank ? bytes : 0);
    while ((done = peer_done(p)) == 0)
        sched_yield();
    return done > 0;
}

static double wall(void *unused) { return (void)unused, now(); }

static int measure(peer *p, const size *z, simulate_machine *to, gckpt_cost **costs, int *count)
{
    bench b = { 0 };
    uint64_t update = 0;
    char *bytes = (char *)calloc(2, LARGE);
    int good = bytes != NULL && bench_new(&b, z, GCKPT_STORE_ALL, 1);
    *count = good ? gckpt_id(b.loss.loss) + 1 : 0;
    *costs = (gckpt_cost *)calloc((size_t)*count + 1, sizeof **costs);
    const tune_input input = { wall, NULL, b.feeds, 2, z->batch, NULL };
    good = good && *costs != NULL &&
           tune_costs(b.store, b.plan, &input, *costs, *count, &update) == GCKPT_OK;
    memset(to, 0, sizeof *to);
    to->throughput = 1e9;
    to->mem_bandwidth = 1e9 * SIMULATE_UPDATE_BYTES * (double)b.parameters / (double)(update > 0 ? update : 1);
    to->node_size = 1;
    exchange(p, bytes, LARGE);
    to->inter_node.latency = exchange(p, bytes, 4);
    to->inter_node.bandwidth = LARGE / exchange(p, bytes, LARGE);
    free(bytes);
    bench_free(&b);
    return good;
}

/* ---- a row of the table ---- */
static int print_row(peer *p, const size *z, const simulate_machine *at, const gckpt_cost *costs,
               int count, gckpt_mode mode, int ahead, const char *rate)
{
    const simulate_ranks r = { p->ranks.rank, 2, 2, GCKPT_SHARD_VALUES };
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    const int64_t rows = (int64_t)z->batch * 2;
    const gckpt_plan_desc desc = { .mode = mode, .batch = rows, .ranks.virtual_ranks = 2, .costs.by_id = costs,
                                   .costs.count = count, .ranks.overlap = ahead,
                                   .ranks.link_cost = (uint64_t)(1e9 * 1048576 / at->inter_node.bandwidth) };
    const gckpt_exec_desc how = { .transport = &p->ranks };
    double seconds[STEPS];
    uint64_t hash = 0;
    simulate_step s;
    bench b = { 0 };
    bench_shard = r.shard;
    memset(&s, 0, sizeof s);
    int good = bench_open(&b, z, &desc, &how);
    if (good)
        s = simulate_run(b.plan, b.graph, &r, at);
    for (int i = 0; i < STEPS && good; i++) {
        const double t = now();
        p->under_way = i == WARM ? 0 : p->under_way;
        good = gckpt_step(b.exec, b.feeds, 2, rows, &adamw, NULL) == GCKPT_OK;
        seconds[i] = now() - t;
    }
    good = good && gckpt_gather_values(b.exec, -1, NULL, &hash) == GCKPT_OK;
    if (!good && b.exec != NULL)
        fprintf(stderr, "limited: %s\n", gckpt_error_text(b.exec));
    else if (r.rank == 0)
        printf("| %s | %.0f | %s | %s | %.0f | %.0f (%.0f) | %.0f | %zu | `%016llx` |\n", rate,
               8e-6 * at->inter_node.bandwidth, mode_name(mode), ahead ? "ahead" : "at readers",
               1e3 * median(seconds + WARM, STEPS - WARM), 1e3 * s.seconds, 1e3 * s.exposed,
               1e3 * p->under_way / (STEPS - WARM), gckpt_plan_bytes(b.plan),
               (unsigned long long)hash);
    fflush(stdout);
    bench_free(&b);
    return good;
}

int main(int argc, char **argv)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_SQRT };
    const size z = { 4, 8, 512, 128, 4, 512, 0, 0 };
    simulate_machine at;
    gckpt_cost *costs = NULL;
    int count = 0;
    peer p;
    if (argc != 5 || !peer_open(&p, atoi(argv[1]), argv[2], argv[3])) {
        fprintf(stderr, "limited: no link (%s)\n", argc == 5 ? strerror(errno) : "four arguments");
        return 1;
    }
    int good = measure(&p, &z, &at, &costs, &count);
    good = good && broadcast(&p, &at, sizeof at) && broadcast(&p, costs, (size_t)count * sizeof *costs);
    for (int i = 0; i < 2 && good; i++)
        for (int ahead = 0; ahead < 2 && good; ahead++)
            good = print_row(&p, &z, &at, costs, count, modes[i], ahead, argv[4]);
    free(costs);
    close(p.socket);
    return !good;
}
