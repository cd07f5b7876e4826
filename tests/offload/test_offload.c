/* test_offload.c - plans that offload values to slower memory: the bits are those without offloading, the bytes used
 * in the arena and in slower memory are exactly those of the plan, a failed copy changes nothing, and proven bounds
 * hold against exhaustive search.
 *
 *     build/test_offload [first seed] [scale in percent] */
#define _DEFAULT_SOURCE
#include <pthread.h>

#include "base/base.h"
#include "graph/graph.h"
#include "plan/internal.h"
#include "search/search.h"
#include "planner/internal.h"

#include "examples/print.h"
#include "backend.h"
#include "lowered_cost.h"
#include "net.h"

/* search/candidates.c, search/moves.c */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule);
GCKPTI_FN int gckpti_candidate_load(gckpti_search *s, const gckpti_candidate *candidate);
GCKPTI_FN void gckpti_find_moves(gckpti_search *s, int64_t limit);

/* ---- slower memory, emulated by a buffer between two guard areas: it records the largest address that a copy
 * touches; copy number fail_at copies one byte too few ---- */
enum { HOST_BYTES = 1 << 20, CANARY = 256 };
static struct {
    unsigned char bytes[HOST_BYTES + 2 * CANARY];
    /* size: bytes that the plan reports for slower memory; touched: largest touched address + 1 */
    size_t size, touched;
    long calls, fail_at, out, in;
} host;

static void host_open(size_t size)
{
    memset(&host, 0, sizeof host);
    memset(host.bytes, 0xc5, sizeof host.bytes);
    host.size = size;
}

static size_t host_offload(void *user, size_t at, const void *from, size_t bytes)
{
    size_t n = bytes - (++host.calls == host.fail_at);
    CHECK(user == &host && bytes > 0 && at + bytes <= host.size);
    memcpy(host.bytes + CANARY + at, from, n);
    host.touched = at + bytes > host.touched ? at + bytes : host.touched;
    host.out += (long)bytes;
    return n;
}

static size_t host_reload(void *user, size_t at, void *to, size_t bytes)
{
    size_t n = bytes - (++host.calls == host.fail_at);
    CHECK(user == &host && bytes > 0 && at + bytes <= host.size && at + bytes <= host.touched);
    memcpy(to, host.bytes + CANARY + at, n);
    host.in += (long)bytes;
    return n;
}

static void host_close(void)
{
    int intact = 1;
    CHECK_MSG(host.touched == host.size, "%zu bytes touched, planned %zu", host.touched, host.size);
    for (size_t i = 0; i < CANARY + HOST_BYTES + CANARY; i++)
        if (i < CANARY || i >= CANARY + host.size)
            intact = intact && host.bytes[i] == 0xc5;
    CHECK(intact);
}

/* ---- the emulated slower memory with copies that overlap computation: a thread does them, or they are done as late
 * as possible, when the executor waits for them ---- */
enum { COPIES = 1 << 12 };
static struct {
    struct { size_t at, bytes; void *to; const void *from; } job[COPIES];
    int begun, done, out; /* numbers of copies; out: offloads among the begun copies */
    int threaded, ends, failed, wrong;
    long fail_at, waits, overlapped; /* overlapped: largest number of copies in flight at a wait */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread;
} copier;

/* Does the next queued copy, or records that it fails. Contains no CHECK, since two threads call this function. */
static void copy_next(void)
{
    const size_t at = copier.job[copier.done].at, bytes = copier.job[copier.done].bytes, end = at + bytes;
    const void *from = copier.job[copier.done].from;
    void *to = copier.job[copier.done].to;
    copier.wrong += bytes == 0 || end > host.size || (to && end > host.touched);
    if (copier.done + 1 == copier.fail_at)
        copier.failed = 1;
    else
        memcpy(to ? to : host.bytes + CANARY + at, to ? host.bytes + CANARY + at : from, bytes);
    host.touched = end > host.touched ? end : host.touched;
    *(to ? &host.in : &host.out) += (long)bytes;
    copier.done++;
}

static void *copy_all(void *context)
{
    pthread_mutex_lock(&copier.lock);
    while (!copier.ends || copier.done < copier.begun) {
        if (copier.done < copier.begun) {
            copy_next();
            pthread_cond_broadcast(&copier.moved);
            pthread_mutex_unlock(&copier.lock); /* lets the executor's thread take the lock between two copies */
            pthread_mutex_lock(&copier.lock);
        } else {
            pthread_cond_wait(&copier.moved, &copier.lock);
        }
    }
    pthread_mutex_unlock(&copier.lock);
    return context;
}

static void begin_copy(void *user, size_t at, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&copier.lock);
    CHECK(user == &host && copier.begun < COPIES);
    copier.job[copier.begun].at = at;
    copier.job[copier.begun].bytes = bytes;
    copier.job[copier.begun].to = to;
    copier.job[copier.begun++].from = from;
    copier.out += !to;
    pthread_cond_broadcast(&copier.moved);
    pthread_mutex_unlock(&copier.lock);
}
static size_t slow_offload(void *user, size_t at, const void *from, size_t bytes)
{
    begin_copy(user, at, NULL, from, bytes);
    return bytes;
}
static size_t slow_reload(void *user, size_t at, void *to, size_t bytes)
{
    begin_copy(user, at, to, NULL, bytes);
    return bytes;
}

static int slow_wait(void *user, int later)
{
    pthread_mutex_lock(&copier.lock);
    const int under_way = copier.begun - copier.done;
    CHECK(user == &host && later >= 0);
    copier.waits++;
    copier.overlapped = under_way > copier.overlapped ? under_way : copier.overlapped;
    while (copier.begun - copier.done > later)
        if (copier.threaded)
            pthread_cond_wait(&copier.moved, &copier.lock);
        else
            copy_next();
    if (copier.done == copier.begun)
        copier.begun = copier.done = 0;
    const int failed = copier.failed;
    copier.failed = copier.failed && later;
    pthread_mutex_unlock(&copier.lock);
    return failed;
}

static void copier_open(int threaded, size_t size)
{
    memset(&copier, 0, sizeof copier);
    host_open(size);
    copier.threaded = threaded;
    CHECK(!pthread_mutex_init(&copier.lock, NULL) && !pthread_cond_init(&copier.moved, NULL));
    CHECK(!threaded || !pthread_create(&copier.thread, NULL, copy_all, NULL));
}

static void copier_close(void)
{
    pthread_mutex_lock(&copier.lock);
    /* no copy may be in flight after a call of the library has returned */
    CHECK(copier.begun == copier.done && !copier.wrong);
    copier.ends = 1;
    pthread_cond_broadcast(&copier.moved);
    pthread_mutex_unlock(&copier.lock);
    if (copier.threaded)
        pthread_join(copier.thread, NULL);
    pthread_cond_destroy(&copier.moved);
    pthread_mutex_destroy(&copier.lock);
}

/* ---- a backend that does each queued copy as late as possible: when the executor joins or waits for it ---- */
enum { QUEUE = 512 };
static struct {
    device d;
    gckpt_backend b, lazy;
    struct { void *to; const void *from; size_t bytes; int out; } queue[QUEUE];
    int queued;
    long moves, host, fail_host, asked, left;
} dev;

static void lazy_join_but(void *context, int later)
{
    const int n = dev.queued - later;
    CHECK(context == &dev.d && dev.d.depth == 0 && n >= 0);
    for (int i = 0; i < n; i++)
        (dev.queue[i].out ? device_copy_out : device_copy_in)(context, dev.queue[i].to, dev.queue[i].from,
                                                              dev.queue[i].bytes);
    memmove(dev.queue, dev.queue + n, (size_t)later * sizeof *dev.queue);
    dev.queued = later;
    dev.left += later;
}
/* Waits for all copies, which a backend may always do. */
static void lazy_join(void *context, int later)
{
    CHECK(later >= 0);
    lazy_join_but(context, 0);
}
static void lazy_move(void *context, void *to, const void *from, size_t bytes, int out)
{
    CHECK(context == &dev.d && dev.queued < QUEUE);
    dev.queue[dev.queued].to = to;
    dev.queue[dev.queued].from = from;
    dev.queue[dev.queued].bytes = bytes;
    dev.queue[dev.queued++].out = out;
    dev.moves++;
}
static const char *lazy_finish(void *context)
{
    lazy_join(context, 0);
    return device_finish(context);
}
/* The backend's `captured`: refuses to capture, so that the executor must run each instruction itself. Checks that
 * queued copies are done by then, and that the scale of each loss is passed (no loss is tensor 0). */
static int refuse_repeat(void *context, const gckpt_step_params *step_key)
{
    CHECK(context == &dev.d && step_key && dev.queued == 0 && step_key->losses > 0);
    for (int k = 0; k < step_key->losses; k++)
        CHECK(step_key->scales[k].id > 0 && step_key->scales[k].scale > 0);
    dev.asked++;
    return 0;
}
static int recorded(void *context) { return CHECK(context == &dev.d && dev.queued == 0); }
static void *host_get(void *context, size_t bytes)
{
    CHECK(context == &dev.d);
    dev.host++;
    return dev.fail_host ? dev.host--, NULL : malloc(bytes);
}
static void host_release(void *context, void *memory, size_t bytes)
{
    CHECK(context == &dev.d && memory && bytes > 0);
    lazy_join(context, 0); /* does the queued copies first, since the memory is freed now */
    dev.host--;
    free(memory);
}

/* ---- random graphs: their plans with offloading, and the bits of trainings with these plans ---- */
static float data[VALUES];
static int32_t indices[2][VALUES], lengths[VALUES];
static unsigned char fed_bytes[VALUES];

static int fill(const void *user, int64_t row, gckpt_feed *feeds)
{
    (void)user;
    const size_t x = (size_t)(row * net.t * net.c), i = (size_t)(row * net.t);
    feeds[0] = (gckpt_feed){ gckpt_id(net.x), data + x };
    feeds[1] = (gckpt_feed){ gckpt_id(net.tokens), indices[0] + i };
    feeds[2] = (gckpt_feed){ gckpt_id(net.targets[0]), indices[0] + i };
    feeds[3] = (gckpt_feed){ gckpt_id(net.targets[1]), indices[1] + i };
    feeds[4] = (gckpt_feed){ gckpt_id(net.lengths), lengths + row };
    feeds[5] = (gckpt_feed){ gckpt_id(net.bytes), fed_bytes + x };
    return net.lengths ? NET_FEEDS : 4;
}

/* Trains three steps, the last with fewer rows, and returns a hash of the parameters. */
static uint64_t train(gckpt_plan *p, gckpt_exec_desc *d, int64_t stream, int pieces)
{
    const gckpt_hyper h = { .lr = 1e-2f };
    gckpt_report r;
    gckpt_exec *e = gckpt_exec_new(p, net.s, d);
    if (!CHECK_MSG(e != NULL, "exec: %s", gckpt_error_text(net.s)))
        return 0;
    for (int i = 0; i < 3; i++) {
        gckpt_result result = util_step(e, fill, NULL, net.batch - (i == 2), stream, pieces, &h, &r);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
    }
    if (d && d->debug & GCKPT_DEBUG_MEASURE)
        CHECK_MSG(gckpt_bytes_measured(e) == gckpt_plan_bytes(p), "%zu measured, %zu planned",
                  gckpt_bytes_measured(e), gckpt_plan_bytes(p));
    gckpt_exec_free(e);
    return gckpt_store_hash(net.s);
}

static gckpt_plan *plan_of(const gckpt_plan_desc *d) { return gckpt_plan_new(net.g, net.term, net.terms, d); }

/* Checks the cost of each instruction. Sums the bytes that instructions offload to *out, and those that they reload
 * to *in. */
static void check_usage(const gckpt_plan *p, size_t *out, size_t *in)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_usage u;
    gckpt_instruction ins;
    uint64_t work = 0;
    size_t most = 0;
    *out = *in = 0;
    for (int x = 0; gckpt_plan_usage(p, x, &u) == GCKPT_OK && gckpt_plan_get(p, x, &ins) == GCKPT_OK; x++) {
        work += u.cost;
        most = u.live > most ? u.live : most;
        CHECK((u.moved > 0) == (ins.kind == GCKPT_OFFLOAD || ins.kind == GCKPT_RELOAD) &&
              (!u.moved || (!u.once && !u.recompute)));
        *(ins.kind == GCKPT_OFFLOAD ? out : in) += u.moved;
    }
    CHECK(work == info.cost + info.hidden_cost && most == info.peak);
    CHECK((*out > 0) == (info.offloaded > 0) && (*in > 0) == (*out > 0));
}

static long planned, used, less, tight;

/* Plans a request with and without slower memory, at a budget between the least bytes and those of store-all, and
 * compares bytes, cost and bits. */
static void try_budget(unsigned seed, gckpt_plan_desc d, uint64_t want, int64_t rows, int where)
{
    size_t out, in, least, most;
    build(seed, rows);
    d.mode = GCKPT_STORE_ALL;
    gckpt_plan *p = plan_of(&d), *near;
    most = p ? gckpt_plan_bytes(p) : 0;
    gckpt_plan_free(p);
    d.mode = GCKPT_OPTIMAL;
    d.budget = 1;
    CHECK(!plan_of(&d) && gckpt_error(net.g) == GCKPT_E_BUDGET);
    d.budget = least = util_least_budget(net.g);
    d.budget += (most - least) / 100 * (size_t)where;
    near = plan_of(&d);
    const gckpt_plan_info info = gckpt_plan_describe(near);
    d.offload.bytes = chance(30) ? 4096 : HOST_BYTES;
    d.offload.cost = (uint64_t)(1 + below(60)) << (chance(50) ? 20 : 14);
    d.offload.overlap = (int)below(2);
    p = plan_of(&d);
    const gckpt_plan_info p_info = gckpt_plan_describe(p);
    if (!CHECK_MSG(p && near, "%s", gckpt_error_text(net.g)))
        return;
    CHECK_MSG(p_info.cost <= info.cost, "seed %u: %llu, without %llu", seed,
              (unsigned long long)p_info.cost, (unsigned long long)info.cost);
    CHECK(gckpt_plan_bytes(p) <= d.budget && p_info.offloaded <= d.offload.bytes);
    CHECK(p_info.proven_cost <= p_info.cost && p_info.proven_bytes <= gckpt_plan_bytes(p));
    CHECK(p_info.proven_cost <= info.proven_cost);
    check_usage(p, &out, &in);
    planned++;
    used += out > 0;
    less += p_info.cost < info.cost;
    tight += p_info.cost == p_info.proven_cost;
    gckpt_plan_free(near);
    host_open(p_info.offloaded);
    gckpt_exec_desc e = { .offload = host_offload, .reload = host_reload, .user = &host };
    e.debug = chance(50) ? GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON : GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_POISON;
    int whole = rows == net.batch || rows == 0;
    gckpt_exec_desc plain = { .backend = d.backend, .debug = chance(30) ? GCKPT_DEBUG_MEASURE : 0 };
    uint64_t got = train(p, d.backend ? &plain : chance(70) ? &e : NULL, 0, chance(30) ? 3 : 0);
    CHECK_MSG(got == want, "seed %u, %d %%: other bits", seed, where);
    if (host.calls) {
        host_close();
        CHECK(!whole || host.out <= 3 * (long)out);
    }
    destroy();
    if (d.backend) {
        gckpt_plan_free(p);
        return;
    }
    /* without functions of the caller for slower memory, the bits are the same */
    build(seed, rows);
    CHECK(train(p, NULL, 0, 0) == want);
    gckpt_plan_free(p);
    destroy();
}

static void random_plans(unsigned first, unsigned n)
{
    for (unsigned seed = first; seed < first + n; seed++) {
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        d.bf16.precision = chance(30) ? GCKPT_BF16 : GCKPT_FP32;
        d.kernels.alignment = chance(25) ? 4 : chance(15) ? 512 : 0;
        d.kernels.stage_parameters = chance(20);
        build(seed, 0);
        int64_t batch = net.batch, rows = chance(40) ? 1 + (int64_t)below(batch) : 0;
        gckpt_plan *p = plan_of(&d);
        uint64_t want = p ? train(p, NULL, 0, 0) : 0;
        int exact = p && (!rows || gckpt_plan_split_exact(p, NULL));
        gckpt_plan_free(p);
        destroy();
        d.batch = rows ? batch : 0;
        for (int k = 0; exact && k < 4; k++) {
            d.backend = k > 1 && dev.lazy.copy_async ? &dev.lazy : NULL;
            try_budget(seed, d, want, rows, (int)below(70));
        }
    }
    printf("random plans: %ld, %ld offload, %ld with less work, %ld of proven work\n", planned, used, less, tight);
    /* up to four plans are of one net: a share needs at least 15 nets */
    CHECK(planned < 20 || (used > 0 && less > 0 && tight > 0));
    CHECK(planned < 60 || used > planned / 4);
}

/* ---- a small GPT whose plans offload values; budget 1 stands for least + (store-all - least) / 8 bytes ---- */
static gckpt_plan *gpt(int64_t rows, const gckpt_plan_desc *like)
{
    const int64_t t = 4, c = 8;
    gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_plan_desc d = *like;
    memset(&net, 0, sizeof net);
    net.s = gckpt_store_new(NULL);
    net.g = gckpt_graph_new(net.s, NULL);
    net.batch = 4, net.t = t, net.c = c;
    net.x = gckpt_input(net.g, "x", GCKPT_F32, gckpt_shape3(rows, t, c));
    net.tokens = gckpt_input(net.g, "tokens", GCKPT_I32, gckpt_shape2(rows, t));
    net.targets[0] = gckpt_input(net.g, "a", GCKPT_I32, gckpt_shape2(rows, t));
    net.targets[1] = gckpt_input(net.g, "b", GCKPT_I32, gckpt_shape2(rows, t));
    T *table = gckpt_param(net.g, "table", gckpt_shape2(V, c), normal), *h = gckpt_embed(table, net.tokens), *y;
    h = gckpt_add(h, net.x);
    for (int l = 0; l < 6; l++) {
        char name[32];
        T *w[3];
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "w%d.%d", l, k);
            w[k] = gckpt_param(net.g, name, gckpt_shape2(k == 2 ? 2 * c : c, k == 1 ? 2 * c : c), normal);
        }
        y = gckpt_linear(gckpt_layernorm(h, NULL, NULL, 0), w[0], NULL);
        h = gckpt_add(h, gckpt_attention(y, y, y, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
        y = gckpt_gelu(gckpt_linear(gckpt_rmsnorm(h, NULL, 0), w[1], NULL));
        h = gckpt_add(h, gckpt_linear(y, w[2], NULL));
    }
    net.term[0] = (gckpt_term){ gckpt_linear_cross_entropy(h, table, net.targets[0], NULL), 1, 0 };
    net.terms = 1;
    if (d.budget == 1) {
        gckpt_plan_desc all = d;
        all.memory = (gckpt_memory){ 0 };
        all.offload.bytes = 0;
        CHECK(!plan_of(&all) && gckpt_error(net.g) == GCKPT_E_BUDGET);
        d.budget = util_least_budget(net.g);
        all.mode = GCKPT_STORE_ALL;
        all.budget = 0;
        gckpt_plan *p = plan_of(&all);
        d.budget += p ? (gckpt_plan_bytes(p) - d.budget) / 8 : 0;
        gckpt_plan_free(p);
    }
    return plan_of(&d);
}

static const gckpt_plan_desc gpt_desc = { .mode = GCKPT_OPTIMAL, .budget = 1, .offload.bytes = HOST_BYTES,
                                          .offload.cost = 1 << 20, .batch = 4 };

/* Compares the bits of every way to offload: with callbacks of the executor or with a backend, and in memory that the
 * host can read or in separate memory. */
static void every_way(void)
{
    gckpt_plan_desc d = gpt_desc;
    uint64_t want = 0;
    size_t out, in;
    d.mode = GCKPT_STORE_ALL;
    d.budget = 0;
    gckpt_plan *p = gpt(4, &d);
    want = p ? train(p, NULL, 0, 0) : 0;
    util_free(NULL, p, net.g, net.s);
    for (int k = 0; k < 12; k++) {
        int own = k >= 6, callbacks = k % 3 == 1, moves = k % 3 == 2;
        d = gpt_desc;
        d.backend = own ? moves ? &dev.lazy : &dev.b : NULL;
        d.threads = k % 2 ? 2 : 1;
        p = gpt(k % 2 ? 1 : 3, &d);
        if (!CHECK_MSG(p != NULL, "%s", gckpt_error_text(net.g)))
            return;
        CHECK(gckpt_plan_describe(p).offloaded > 0);
        check_usage(p, &out, &in);
        host_open(gckpt_plan_describe(p).offloaded);
        gckpt_exec_desc e = { .user = &host, .backend = d.backend };
        if (callbacks)
            e.offload = host_offload, e.reload = host_reload;
        e.debug = k % 4 == 3 ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_MEASURE : k % 4 == 1 ? GCKPT_DEBUG_RECOMPUTE : 0;
        dev.moves = dev.asked = 0;
        device_reset(&dev.d);
        uint64_t got = train(p, &e, k % 2 ? 2 : 0, k % 2 || own ? 0 : 5);
        CHECK_MSG(got == want, "way %d: other bits", k);
        /* without offloading by the backend itself, or in a debug mode, the executor must not call `captured` */
        CHECK((dev.asked > 0) == (own && moves && !e.debug));
        CHECK((dev.moves > 0) == (own && moves) && dev.host == 0 && (host.calls > 0) == callbacks);
        if (callbacks)
            host_close();
        util_free(NULL, p, net.g, net.s);
    }
}

static int cancel_at, instruction_count;
static int cancels(void *user, const gckpt_progress *now)
{
    CHECK(user == &host && now != NULL);
    return ++instruction_count == cancel_at;
}

/* Tests copies that overlap computation: the bits are the same in every way to run, and a failed or cancelled copy
 * ends all copies in flight. */
static void overlapped(void)
{
    gckpt_feed feeds[NET_FEEDS];
    const gckpt_hyper h = { .lr = 1e-2f };
    gckpt_plan_desc d = gpt_desc;
    uint64_t want = 0;
    d.mode = GCKPT_STORE_ALL;
    d.budget = 0;
    gckpt_plan *p = gpt(4, &d);
    want = p ? train(p, NULL, 0, 0) : 0;
    util_free(NULL, p, net.g, net.s);
    for (int k = 0; k < 24; k++) {
        if (!check_sampled((unsigned)k, 5))
            continue;
        d = gpt_desc;
        d.offload.overlap = k % 6 != 5;
        d.offload.cost >>= k % 4 * 2;
        d.threads = k % 2 ? 2 : 1;
        d.backend = k >= 16 ? &dev.lazy : NULL;
        dev.lazy.wait_copies = k % 2 ? lazy_join_but : lazy_join;
        p = gpt(1 + k % 3, &d);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        if (!CHECK_MSG(p != NULL, "%s", gckpt_error_text(net.g)))
            return;
        CHECK(info.offloaded > 0 && (d.offload.overlap || !info.hidden_cost));
        file printed = { 0 };
        CHECK(print_plan(p, file_write, &printed) == GCKPT_OK && file_write(&printed, "", 1) == 1);
        CHECK(!strstr((char *)printed.bytes, "  hidden: ") == !d.offload.overlap);
        free(printed.bytes);
        gckpt_exec_desc e = { .offload = slow_offload, .reload = slow_reload, .wait = slow_wait, .user = &host };
        if (d.backend)
            e = (gckpt_exec_desc){ .backend = d.backend };
        e.debug = k % 3 == 1 ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_MEASURE : k % 3 == 2 ? GCKPT_DEBUG_RECOMPUTE : 0;
        copier_open(k % 5 > 2, info.offloaded);
        dev.left = 0;
        uint64_t got = train(p, &e, k % 4 == 3 ? 2 : 0, k % 3 || d.backend ? 0 : 5);
        CHECK_MSG(got == want, "overlapped copies, way %d: other bits", k);
        CHECK_MSG(d.backend || e.debug || copier.threaded || copier.overlapped > 1,
                  "way %d: never two copies in flight", k);
        CHECK(dev.queued == 0 && (!dev.left || d.backend));
        if (!d.backend)
            host_close();
        copier_close();
        util_free(NULL, p, net.g, net.s);
    }
    d = gpt_desc;
    d.offload.overlap = 1;
    d.offload.cost >>= 3;
    for (int threaded = 0; threaded < 2; threaded++) {
        p = gpt(2, &d);
        gckpt_exec_desc x = { .wait = slow_wait, .user = &host };
        CHECK(!gckpt_exec_new(p, net.s, &x) && gckpt_error(net.s) == GCKPT_E_ARG);
        x = (gckpt_exec_desc){ .offload = slow_offload, .reload = slow_reload, .wait = slow_wait,
                               .user = &host, .progress = cancels };
        copier_open(threaded, gckpt_plan_describe(p).offloaded);
        gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
        fill(NULL, 0, feeds);
        instruction_count = cancel_at = 0;
        CHECK_MSG(e && gckpt_step(e, feeds, 4, 4, &h, NULL) == GCKPT_OK, "%s", gckpt_error_text(net.s));
        const int all = instruction_count;
        const long copies = (host.out + host.in) ? 2 * copier.out + 8 : 0;
        const uint64_t before = gckpt_store_hash(net.s), state = gckpt_store_step(net.s);
        long failed = 0, cancelled = 0;
        /* copier.fail_at = n makes the n-th of the copies fail that were begun since the last time that none was in
         * flight */
        for (int n = 1; n <= (int)copies; n += 1 + n / 8) {
            copier.fail_at = n;
            gckpt_result result = gckpt_step(e, feeds, 4, 4, &h, NULL);
            copier.fail_at = 0;
            if (result == GCKPT_OK) { /* fewer than n copies were ever in flight at once, so the step succeeded */
                util_free(e, NULL, NULL, NULL);
                break;
            }
            failed++;
            CHECK_MSG(result == GCKPT_E_FILE && strstr(gckpt_error_text(e), "nothing was changed"), "%d: %s", n,
                      gckpt_error_text(e));
            CHECK(gckpt_store_hash(net.s) == before && gckpt_store_step(net.s) == state && copier.begun == copier.done);
            if (n + 1 + n / 8 > (int)copies)
                util_free(e, NULL, NULL, NULL);
        }
        util_free(NULL, p, net.g, net.s);
        p = gpt(2, &d);
        e = gckpt_exec_new(p, net.s, &x);
        const uint64_t begin = gckpt_store_hash(net.s);
        for (cancel_at = 1; cancel_at < all; cancel_at += 3) {
            instruction_count = 0;
            gckpt_result result = gckpt_step(e, feeds, 4, 4, &h, NULL);
            cancelled += result == GCKPT_CANCELLED;
            if (result != GCKPT_CANCELLED)
                break; /* the updates begin */
            CHECK_MSG(copier.begun == copier.done, "cancelled at %d: %d copies are under way", cancel_at,
                      copier.begun - copier.done);
            CHECK(gckpt_store_hash(net.s) == begin);
        }
        printf("overlapped copies: %ld failed, %ld cancelled steps\n", failed, cancelled);
        CHECK(failed > 2 && cancelled > 20);
        copier_close();
        util_free(e, p, net.g, net.s);
    }
    dev.lazy.wait_copies = lazy_join_but;
}

/* Tests a plan of which the last instruction of a micro-batch reloads a fetched value: the next micro-batch must wait
 * for this copy. */
static void reload_last(void)
{
    static gckpt_instruction list[4096];
    const gckpt_hyper h = { .lr = 1e-2f };
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = 4, .schedule.as_built = 1, .backend = &dev.lazy };
    gckpt_instruction in;
    gckpt_feed feeds[NET_FEEDS];
    gckpt_plan *p = gpt(1, &d);
    int n = 0;
    for (int x = 0; gckpt_plan_get(p, x, &in) == GCKPT_OK; x++)
        if (in.kind <= GCKPT_BACKWARD)
            list[n++] = in;
    gckpt_plan_free(p);
    for (int i = 0; i < n; i += 7) {
        uint64_t want = 0;
        float first = 0;
        int loss = list[i].kind == GCKPT_FORWARD && net.g->tensors[list[i].id]->op->flags & GCKPT_LOSS;
        for (int more = 0; more < 2 && list[i].kind == GCKPT_FORWARD && !loss; more++) {
            util_free(NULL, NULL, net.g, net.s);
            gckpt_plan_free(gpt(1, &d));
            gckpt_fetch_spec fetch = { net.g->tensors[list[i].id], 0 };
            gckpt_plan_desc q = d;
            q.mode = GCKPT_SCHEDULE;
            q.schedule.instructions = list;
            q.schedule.count = n + more;
            q.fetch.specs = &fetch;
            q.fetch.count = 1;
            q.offload.bytes = HOST_BYTES;
            q.offload.cost = 1;
            list[n] = (gckpt_instruction){ GCKPT_RELOAD, list[i].id };
            p = gckpt_plan_new(net.g, net.term, net.terms, &q);
            gckpt_exec_desc e = { .backend = &dev.lazy };
            gckpt_exec *x = p ? gckpt_exec_new(p, net.s, &e) : NULL;
            if (CHECK_MSG(x != NULL, "%s", gckpt_error_text(p ? (void *)net.s : (void *)net.g))) {
                fill(NULL, 0, feeds);
                CHECK(gckpt_step(x, feeds, 4, 4, &h, NULL) == GCKPT_OK);
                const float *got = gckpt_fetch(x, list[i].id, 0);
                if (!more)
                    want = gckpt_store_hash(net.s), first = *got;
                CHECK(gckpt_store_hash(net.s) == want && memcmp(&first, got, sizeof first) == 0);
            }
            util_free(x, p, NULL, NULL);
        }
    }
    util_free(NULL, NULL, net.g, net.s);
}

/* Tests that a step abandoned after any of its instructions leaves no copy in flight, so that another executor can
 * use the same arena. */
static void abandoned(void)
{
    const gckpt_hyper h = { .lr = 1e-2f };
    gckpt_plan_desc d = gpt_desc;
    gckpt_feed feeds[NET_FEEDS];
    uint64_t want = 0;
    d.backend = &dev.lazy;
    gckpt_plan *p = gpt(2, &d);
    size_t bytes = gckpt_plan_describe(p).arena;
    for (int stop = 0; stop < 400; stop += 7) {
        gckpt_store *s = gckpt_store_new(NULL); /* a second store, with the same initial values as net.s */
        CHECK(gckpt_plan_params(p, s) == GCKPT_OK);
        gckpt_exec_desc e = { .backend = &dev.lazy, .arena = device_get(&dev.d, bytes, 64), .arena_size = bytes };
        gckpt_exec *a = gckpt_exec_new(p, s, &e), *b = gckpt_exec_new(p, s, &e);
        fill(NULL, 0, feeds);
        CHECK(!stop || gckpt_step_start(a, feeds, 4, 4, &h) == GCKPT_OK);
        for (int k = 0; k < stop && gckpt_next_instruction(a).kind != GCKPT_BARRIER; k++)
            gckpt_run_some(a, 1, NULL);
        int end = stop && gckpt_next_instruction(a).kind == GCKPT_BARRIER;
        CHECK(gckpt_step(b, feeds, 4, 4, &h, NULL) == GCKPT_OK);
        want = stop ? want : gckpt_store_hash(s);
        CHECK_MSG(gckpt_store_hash(s) == want, "abandoned after %d instructions", stop);
        gckpt_exec_free(a);
        util_free(b, NULL, NULL, s);
        device_release(&dev.d, e.arena, bytes);
        if (end)
            break;
    }
    util_free(NULL, p, net.g, net.s);
}

/* Tests a backend with separate memory but without functions for offloading. The library copies the backend's values
 * through the host, and waits for each copy as soon as it has started the copy. If a copy fails, the step returns an
 * error and changes nothing, and the next step has the results that it would have without the failed step. */
static void by_the_host(void)
{
    gckpt_feed feeds[NET_FEEDS];
    const gckpt_hyper h = { .lr = 1e-2f };
    gckpt_plan_desc d = gpt_desc;
    d.mode = GCKPT_STORE_ALL;
    d.budget = 0;
    gckpt_plan *p = gpt(4, &d);
    const uint64_t want = p ? train(p, NULL, 0, 0) : 0;
    util_free(NULL, p, net.g, net.s);
    d = gpt_desc;
    d.backend = &dev.b;
    for (int k = 0; k < 4; k++) {
        p = gpt(2, &d);
        gckpt_exec_desc x = { .backend = &dev.b, .offload = slow_offload, .reload = slow_reload, .wait = slow_wait,
                              .user = &host, .debug = k == 1 ? GCKPT_DEBUG_RECOMPUTE : 0 };
        copier_open(0, gckpt_plan_describe(p).offloaded);
        if (k < 2)
            CHECK_MSG(train(p, &x, 0, 0) == want && copier.waits > 0, "through the host, way %d: other bits", k);
        gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
        const uint64_t before = gckpt_store_hash(net.s);
        fill(NULL, 0, feeds);
        if (!CHECK_MSG(e && gckpt_step_start(e, feeds, 4, 4, &h) == GCKPT_OK, "%s", gckpt_error_text(e ? (void *)e : net.s)))
            return;
        while (k > 2 && gckpt_next_instruction(e).kind != GCKPT_RELOAD && gckpt_next_instruction(e).kind != GCKPT_BARRIER)
            gckpt_run_some(e, 1, NULL);
        copier.fail_at = k > 1; /* for k = 2 the first offload fails, for k = 3 the first reload */
        const gckpt_result result = gckpt_run_some(e, INT32_MAX, NULL);
        CHECK_MSG(result == (k > 1 ? GCKPT_E_FILE : GCKPT_OK), "%s", gckpt_error_text(e));
        CHECK(k < 2 ||
              (strstr(gckpt_error_text(e), k > 2 ? "reload" : "offload") && gckpt_store_hash(net.s) == before));
        copier_close();
        if (k < 2) /* checks that the plan used all of the slower memory that it reports */
            host_close();
        util_free(e, p, net.g, net.s);
    }
}

/* Tests two cases in which no micro-batch is captured: with update_in_backward, where the host takes part in updates,
 * and with a backend whose `captured` is NULL. */
static void not_repeated(void)
{
    gckpt_backend silent = dev.lazy;
    silent.captured = NULL;
    for (int k = 0; k < 2; k++) {
        const gckpt_plan_desc d = { .backend = &dev.lazy, .batch = 4, .update_in_backward = !k };
        gckpt_plan *p = gpt(4, &d);
        gckpt_exec_desc x = { .backend = k ? &silent : &dev.lazy };
        dev.asked = 0;
        CHECK(p && train(p, &x, 0, 0) != 0 && dev.asked == 0);
        util_free(NULL, p, net.g, net.s);
    }
}

/* A loss whose count, two for each row, is known only after its forward has run. */
static gckpt_result odd_shape(gckpt_call *call)
{
    (void)call;
    return GCKPT_OK;
}
static void odd_forward(const gckpt_call *call)
{
    for (int64_t i = 0, n = count_of(&call->in[0].shape); i < n && call->loss_sum; i++)
        *call->loss_sum += 0.5 * (double)call->in[0].data[i] * (double)call->in[0].data[i];
    if (call->loss_count)
        *call->loss_count += 2 * call->rows;
}
static void odd_backward(const gckpt_call *call)
{
    for (int64_t i = 0, n = count_of(&call->in[0].shape); i < n; i++)
        call->in[0].grad[i] =
            (call->in[0].accumulate ? call->in[0].grad[i] : 0) + call->in[0].data[i] * call->loss_scale;
}
static const gckpt_op odd_op = { .name = "odd", .shape = odd_shape, .forward = odd_forward, .backward = odd_backward,
                                 .needs = { GCKPT_IN(0) }, .flags = GCKPT_LOSS };
static void odd_forward_on_device(const gckpt_call *call) { device_run(call, odd_forward); }
static void odd_backward_on_device(const gckpt_call *call) { device_run(call, odd_backward); }
static gckpt_kernel find_odd(void *context, const gckpt_op *op, gckpt_kind kind)
{
    if (op != &odd_op)
        return device_find(context, op, kind);
    return kind == GCKPT_FORWARD ? odd_forward_on_device : odd_backward_on_device;
}

/* Tests a backend with the loss whose count is known only after its forward. The weight of a regulariser depends on the
 * count, so the host must compute it: with a regulariser no micro-batch is captured, without one every micro-batch is.
 * The bits are those of the processor. */
static void uncounted(void)
{
    gckpt_backend there = dev.b;
    there.find = find_odd;
    for (int k = 0; k < 4; k++) { /* four cases: with and without a regulariser, with and without streaming */
        uint64_t want = 0;
        for (int i = 0; i < 2; i++) {
            gckpt_plan_desc d = { .batch = 4 };
            gckpt_plan_free(gpt(2, &d));
            d.backend = i ? &there : NULL;
            T *w = gckpt_param(net.g, "odd", gckpt_shape2(net.c, 3), (gckpt_init){ 0.3f, 0, 0 });
            T *y = gckpt_linear(net.x, w, NULL);
            net.term[0] = (gckpt_term){ gckpt_apply(&odd_op, &y, 1, NULL, 0), 1, 0 };
            net.term[1] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(w, w)), 0.1f, 1 };
            net.terms = 1 + k % 2;
            gckpt_plan *p = plan_of(&d);
            gckpt_exec_desc x = { .backend = d.backend };
            CHECK_MSG(p != NULL, "%s", gckpt_error_text(net.g));
            dev.asked = 0;
            const uint64_t got = p ? train(p, &x, k / 2 ? 2 : 0, 0) : 0;
            want = i ? want : got;
            CHECK_MSG(got == want && (dev.asked > 0) == (i && k % 2 == 0), "way %d: %ld requests to capture", k,
                      dev.asked);
            util_free(NULL, p, net.g, net.s);
        }
    }
}

static void failures(void)
{
    gckpt_feed feeds[NET_FEEDS];
    const gckpt_hyper h = { .lr = 1e-2f, .clip = 1 };
    gckpt_plan *p = gpt(2, &gpt_desc);
    if (!CHECK(p != NULL))
        return;
    host_open(gckpt_plan_describe(p).offloaded);
    gckpt_exec_desc d = { .offload = host_offload, .user = &host };
    CHECK(!gckpt_exec_new(p, net.s, &d) && gckpt_error(net.s) == GCKPT_E_ARG);
    d.reload = host_reload;
    gckpt_exec *e = gckpt_exec_new(p, net.s, &d);
    fill(NULL, 0, feeds);
    CHECK(gckpt_step(e, feeds, 4, 4, &h, NULL) == GCKPT_OK);
    const long calls = host.calls;
    uint64_t before = gckpt_store_hash(net.s), state = gckpt_store_step(net.s);
    for (long n = 1; n <= calls; n++) {
        host.calls = 0;
        host.fail_at = n;
        gckpt_result result = gckpt_step(e, feeds, 4, 4, &h, NULL);
        CHECK_MSG(result == GCKPT_E_FILE && strstr(gckpt_error_text(e), "nothing was changed"), "copy %ld: %s", n,
                  gckpt_error_text(e));
        CHECK(gckpt_store_hash(net.s) == before && gckpt_store_step(net.s) == state && host.calls == n);
    }
    host.fail_at = 0;
    CHECK(gckpt_step(e, feeds, 4, 4, &h, NULL) == GCKPT_OK && gckpt_store_step(net.s) == state + 1);
    uint64_t after = gckpt_store_hash(net.s);
    util_free(e, p, net.g, net.s);
    gckpt_plan_desc all = gpt_desc;
    all.mode = GCKPT_STORE_ALL;
    all.budget = 0;
    p = gpt(4, &all);
    e = gckpt_exec_new(p, net.s, NULL);
    fill(NULL, 0, feeds);
    for (int i = 0; i < 2; i++)
        CHECK(gckpt_step(e, feeds, 4, 4, &h, NULL) == GCKPT_OK);
    CHECK(gckpt_store_hash(net.s) == after);
    util_free(e, p, net.g, net.s);
    /* GCKPT_DEBUG_RECOMPUTE must detect a flipped bit in slower memory, for k = 0 in fp32 and for k = 1 in bf16 */
    for (int k = 0; k < 2; k++) {
        gckpt_plan_desc pd = gpt_desc;
        pd.bf16.precision = k ? GCKPT_BF16 : GCKPT_FP32;
        p = gpt(2, &pd);
        d.debug = GCKPT_DEBUG_RECOMPUTE;
        e = gckpt_exec_new(p, net.s, &d);
        CHECK_MSG(e && gckpt_plan_describe(p).offloaded > 0, "%s", gckpt_error_text(net.g));
        fill(NULL, 0, feeds);
        host_open(gckpt_plan_describe(p).offloaded);
        CHECK_MSG(gckpt_step(e, feeds, 4, 4, &h, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
        int reports[2] = { 0, 0 }; /* number of errors about a value, and about saved data */
        for (size_t at = 0; at < host.size; at += host.size / 60 + 1) {
            CHECK(gckpt_step_start(e, feeds, 4, 4, &h) == GCKPT_OK);
            while (gckpt_next_instruction(e).kind != GCKPT_RELOAD && gckpt_next_instruction(e).kind != GCKPT_BARRIER)
                gckpt_run_some(e, 1, NULL);
            host.bytes[CANARY + at] ^= 1;
            gckpt_result result = gckpt_run_some(e, INT32_MAX, NULL);
            CHECK(result == GCKPT_OK || result == GCKPT_E_DATA);
            if (result == GCKPT_OK) /* no value was in this place, or it had been reloaded before the bit was flipped */
                continue;
            CHECK(strstr(gckpt_error_text(e), "slower memory"));
            reports[strstr(gckpt_error_text(e), "recompute: the saved data of") != NULL]++;
        }
        CHECK_MSG(reports[0] > 20 && (k || reports[1] > 2), "%d: %d values, %d saved", k, reports[0], reports[1]);
        util_free(e, p, net.g, net.s);
    }
    /* allocation of slower memory */
    for (int own = 0; own < 2; own++) {
        gckpt_plan_desc pd = gpt_desc;
        pd.backend = own ? &dev.lazy : NULL;
        p = gpt(2, &pd);
        heap memory = { .limit = gckpt_plan_describe(p).offloaded };
        d = (gckpt_exec_desc){ .memory = heap_memory(&memory), .backend = pd.backend };
        memory.limit = own ? 0 : memory.limit;
        dev.fail_host = own;
        CHECK(!gckpt_exec_new(p, net.s, &d) && gckpt_error(net.s) == GCKPT_E_MEMORY);
        CHECK(!own || strstr(gckpt_error_text(net.s), "exec: device has no host memory for "));
        dev.fail_host = 0;
        CHECK(memory.blocks == 0 && dev.host == 0);
        dev.lazy.wait_copies = NULL;
        CHECK(!own || (!gckpt_exec_new(p, net.s, &d) && gckpt_error(net.s) == GCKPT_E_ARG));
        dev.lazy.wait_copies = lazy_join;
        util_free(NULL, p, net.g, net.s);
    }
    heap planning = { 0 };
    for (planning.fail_at = 1, p = NULL; !p && planning.fail_at < 4000; planning.fail_at += 7) {
        gckpt_plan_desc pd = gpt_desc;
        pd.memory = heap_memory(&planning);
        planning.calls = 0;
        p = gpt(2, &pd);
        CHECK(p || (gckpt_error(net.g) == GCKPT_E_MEMORY && planning.blocks == 0));
        util_free(NULL, p, net.g, net.s);
    }
    CHECK(p && planning.blocks == 0 && planning.wrong_sizes == 0);
}

/* Tests requests that must not offload anything, and schedules with offload instructions that are refused. */
static void refusals(void)
{
    gckpt_plan_desc d = gpt_desc;
    gckpt_instruction list[4096];
    int n = 0, loads = 0;
    d.batch = 0;
    d.update_in_backward = 1;
    d.budget = 0;
    gckpt_plan *p = gpt(4, &d);
    CHECK(p && gckpt_plan_describe(p).offloaded == 0);
    d.budget = gckpt_plan_bytes(p) / 10 * 9;
    gckpt_plan_free(p);
    p = plan_of(&d);
    CHECK(p && gckpt_plan_describe(p).offloaded == 0);
    util_free(NULL, p, net.g, net.s);
    d = gpt_desc;
    d.mode = GCKPT_INFERENCE;
    d.budget = 0;
    p = gpt(2, &d);
    CHECK(p && gckpt_plan_describe(p).offloaded == 0);
    util_free(NULL, p, net.g, net.s);
    d = gpt_desc;
    d.offload.cost = UINT64_MAX / 8;
    CHECK(!gpt(2, &d) && gckpt_error(net.g) == GCKPT_E_ARG);
    util_free(NULL, NULL, net.g, net.s);
    /* GCKPT_SCHEDULE with the instructions of a plan must give the same plan */
    d = gpt_desc;
    d.schedule.as_built = 1;
    p = gpt(2, &d);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_instruction in;
    for (int x = 0; gckpt_plan_get(p, x, &in) == GCKPT_OK; x++) {
        list[n] = in;
        n += in.kind != GCKPT_UPDATE && in.id >= 0;
        loads += in.kind == GCKPT_RELOAD;
    }
    d = gpt_desc;
    d.mode = GCKPT_SCHEDULE;
    d.budget = 0;
    d.schedule.instructions = list;
    d.schedule.count = n;
    gckpt_plan *q = plan_of(&d);
    CHECK_MSG(q && gckpt_plan_describe(q).cost == info.cost && gckpt_plan_describe(q).offloaded == info.offloaded,
              "%s", gckpt_error_text(net.g));
    CHECK(loads > 0);
    gckpt_plan_free(q);
    d.offload.bytes = info.offloaded - 1;
    CHECK(!plan_of(&d) && gckpt_error(net.g) == GCKPT_E_BUDGET);
    d.offload.bytes = 0;
    CHECK(!plan_of(&d) && gckpt_error(net.g) == GCKPT_E_ARG && strstr(gckpt_error_text(net.g), "offload.bytes"));
    d.offload.bytes = HOST_BYTES;
    memmove(list + 1, list, (size_t)d.schedule.count++ * sizeof *list);
    list[0].kind = GCKPT_RELOAD;
    /* the forward that reads the reloaded value moves to the front, so the reload precedes the value's computation */
    list[1] = list[2];
    list[2] = (gckpt_instruction){ GCKPT_FORWARD, list[0].id };
    CHECK_MSG(!plan_of(&d) && gckpt_error(net.g) == GCKPT_E_ARG && strstr(gckpt_error_text(net.g), "reload of"), "%s",
              gckpt_error_text(net.g));
    list[0].kind = (gckpt_kind)(GCKPT_RELOAD + 1);
    CHECK(!plan_of(&d) && gckpt_error(net.g) == GCKPT_E_ARG);
    /* the plan as text, as a trace and as C */
    file f = { 0 };
    char line[80];
    CHECK(print_plan(p, file_write, &f) == GCKPT_OK && strstr((char *)f.bytes, "\toffload ") &&
          strstr((char *)f.bytes, "\treload "));
    snprintf(line, sizeof line, "offloaded: %zu bytes", info.offloaded);
    CHECK(strstr((char *)f.bytes, line));
    f.size = 0;
    CHECK(print_trace(p, file_write, &f) == GCKPT_OK && strstr((char *)f.bytes, "\"cat\":\"offload\"") &&
          strstr((char *)f.bytes, "\"cat\":\"reload\""));
    f.size = 0;
    CHECK(gckpt_plan_c(p, "small", file_write, &f) == GCKPT_OK);
    free(f.bytes);
    util_free(NULL, p, net.g, net.s);
    /* a frontier with slower memory: at each point, more bytes cost less, and its plan has the bytes and cost that
     * the point reports */
    gckpt_plan_free(gpt(2, &gpt_desc));
    d = gpt_desc;
    gckpt_frontier *all = gckpt_frontier_new(net.g, net.term, net.terms, &d);
    gckpt_point at, before = { 0, UINT64_MAX, 0, 0, 0 };
    for (int i = 0; gckpt_frontier_get(all, i, &at) == GCKPT_OK; i++, before = at) {
        CHECK(at.bytes > before.bytes && at.cost < before.cost && at.proven_cost <= at.cost);
        q = gckpt_frontier_plan(all, at.bytes);
        const gckpt_plan_info q_info = gckpt_plan_describe(q);
        CHECK(q && q_info.cost == at.cost && gckpt_plan_bytes(q) <= at.bytes);
        CHECK(q_info.recompute < at.recompute + 1e-9 && q_info.recompute > at.recompute - 1e-9);
        gckpt_plan_free(q);
    }
    CHECK(gckpt_frontier_describe(all).points > 3);
    gckpt_frontier_free(all);
    util_free(NULL, NULL, net.g, net.s);
}

/* ---- random schedules with offloads: the search's evaluation has the bytes and cost of the lowered plan ---- */
static void schedules(unsigned first, unsigned n)
{
    enum { MOST_ENTRIES = 6000 };
    static gckpt_instruction list[MOST_ENTRIES], with[5 * MOST_ENTRIES];
    long reloads = 0, dones = 0;
    for (unsigned seed = first; seed < first + n; seed++) {
        gckpt_plan_desc d = { .mode = GCKPT_SCHEDULE, .offload.bytes = (SIZE_MAX / 4), .offload.cost = 12345 };
        build(seed, 0);
        int count = random_schedule(net.g, net.term, net.terms, list, MOST_ENTRIES), many = 0, back = 0;
        unsigned char seen[MOST] = { 0 };
        d.kernels.alignment = chance(50) ? 4 : 64;
        d.offload.overlap = chance(50);
        d.bf16.precision = chance(30) ? GCKPT_BF16 : GCKPT_FP32;
        d = pc_without_missing_parts(&d);
        for (int i = 0; i < count; i++) { /* inserts reloads of values that were computed before, at random places */
            back = back || list[i].kind == GCKPT_BACKWARD;
            seen[list[i].id] |= list[i].kind == GCKPT_FORWARD;
            with[many++] = list[i];
            for (int k = (int)below(3); k > 0 && chance(back ? 80 : 20); k--) {
                int id = list[below(i + 1)].id, at = many;
                if (!seen[id] || net.g->tensors[id]->kind != GCKPTI_OP || net.g->tensors[id]->batch_invariant)
                    continue;
                while (with[--at].id != id || with[at].kind != GCKPT_FORWARD)
                    ;
                /* an offload_done has an effect only between a forward and a reload of the same value */
                if (chance(50)) {
                    at += 1 + (int)below(many - at);
                    memmove(with + at + 1, with + at, (size_t)(many++ - at) * sizeof *with);
                    with[at] = (gckpt_instruction){ GCKPT_OFFLOAD_DONE, id };
                }
                with[many++] = (gckpt_instruction){ GCKPT_RELOAD, id };
            }
        }
        d.schedule.instructions = with;
        d.schedule.count = many;
        gckpti_planner p;
        gckpti_allocator memory = gckpti_allocator_of(NULL);
        gckpti_search s = { 0 };
        memset(&p, 0, sizeof p);
        gckpt_result result = gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d);
        if (result == GCKPT_OK)
            result = gckpti_lower_mode(&p, GCKPT_SCHEDULE);
        if (CHECK_MSG(result == GCKPT_OK, "seed %u: %s", seed, gckpt_error_text(net.g))) {
            const gckpti_lowered *q = &p.lowered;
            s.p = &p;
            s.scratch = gckpti_scratch_new(&memory, &p.failed);
            gckpti_schedule_reserve(&s.scratch, &s.now, q->sched.length);
            memcpy(s.now.entry, q->sched.entry, (size_t)q->sched.length * sizeof(int));
            s.now.length = q->sched.length;
            gckpti_evaluate(&s, &s.now);
            CHECK(s.now.length == q->sched.length &&
                  !memcmp(s.now.entry, q->sched.entry, (size_t)q->sched.length * sizeof(int)));
            uint64_t least, work = lowered_cost(&p, q, &least);
            CHECK_MSG(s.now.overhead == work - least && q->cost + q->hidden == work && p.base_cost == least &&
                          (d.offload.overlap || !q->hidden), "seed %u: work", seed);
            CHECK((size_t)s.now.host_bytes >= q->host_bytes &&
                  (size_t)s.now.host_bytes < q->host_bytes + d.kernels.alignment);
            int same = 1, host_live = 1;
            for (int x = 0; x < q->sched.length; x++) {
                size_t live = q->live_bytes[q->entry_ins[x]], next = q->live_bytes[q->entry_ins[x] + 1], sum = 0;
                /* the search counts each buffer rounded up to the alignment */
                for (size_t b = 0; b < q->buffer_count; b++)
                    sum += q->buffers[b].start <= q->entry_ins[x] && q->buffers[b].end >= q->entry_ins[x]
                               ? gckpti_round_up(q->buffers[b].size, d.kernels.alignment) : 0;
                same = same && (size_t)s.now.live_bytes[x] == sum && sum >= live;
                if (q->ins[q->entry_ins[x] + 1].kind == GCKPT_OFFLOAD)
                    host_live = host_live && next <= live;
                reloads += q->ins[q->entry_ins[x]].kind == GCKPT_RELOAD;
                dones += q->ins[q->entry_ins[x]].kind == GCKPT_OFFLOAD_DONE;
            }
            CHECK_MSG(same || d.bf16.precision, "seed %u: live bytes", seed);
            CHECK(host_live);
            gckpti_scratch_free(&s.scratch);
        }
        gckpti_planner_free(&p);
        destroy();
        /* training by this schedule must give the same bits */
        d.offload.bytes = HOST_BYTES;
        uint64_t want = 0;
        for (int k = 0; k < 2; k++) {
            gckpt_plan_desc now = d;
            now.mode = k ? GCKPT_SCHEDULE : GCKPT_STORE_ALL;
            build(seed, 0);
            gckpt_plan *plan = plan_of(&now);
            const gckpt_plan_info info = gckpt_plan_describe(plan);
            gckpt_exec_desc e = { .debug = GCKPT_DEBUG_POISON };
            if (plan && info.offloaded) {
                copier_open(chance(50), info.offloaded);
                e = (gckpt_exec_desc){ .debug = chance(50) ? GCKPT_DEBUG_POISON : 0, .offload = slow_offload,
                                       .reload = slow_reload, .wait = slow_wait, .user = &host };
            }
            uint64_t got = plan ? train(plan, &e, 0, 0) : 0;
            CHECK_MSG(!k || !plan || got == want, "seed %u: other bits", seed);
            CHECK_MSG(plan || gckpt_error(net.g) == GCKPT_E_BUDGET, "%s", gckpt_error_text(net.g));
            want = got;
            if (e.wait)
                copier_close();
            util_free(NULL, plan, NULL, NULL);
            destroy();
        }
    }
    printf("random schedules: %u, with %ld reloads, %ld offload_dones\n", n, reloads, dones);
    CHECK(n < 10 || (reloads > (long)n && dones > (long)n)); /* a run of fewer than 10 schedules may have few reloads */
}

/* ---- exhaustive search of all schedules of a small chain, by Dijkstra's algorithm over states: the set of live
 * values, the set of offloaded values and the next backward. A value may be dropped, recomputed, offloaded (while it
 * is live) and reloaded. ---- */
typedef struct {
    uint64_t cost;
    int state;
} visit;
enum { CHAIN = 5, STATES = (CHAIN + 2) << (2 * CHAIN) };

static uint64_t oracle(const gckpti_planner *p, int64_t memory, int64_t slow)
{
    static uint64_t best[STATES];
    static visit queue[STATES * 24];
    const int n = p->nodes, all = (1 << n) - 1;
    int count = 0;
    memset(best, 0xff, sizeof best);
    queue[count++] = (visit){ 0, 0 };
    best[0] = 0;
    while (count > 0) {
        int at = 0;
        for (int i = 1; i < count; i++)
            at = queue[i].cost < queue[at].cost ? i : at;
        visit v = queue[at];
        queue[at] = queue[--count];
        int live = v.state & all, offloaded = v.state >> n & all, rank = v.state >> (2 * n);
        if (v.cost > best[v.state])
            continue;
        if (rank == p->backwards)
            return v.cost;
        int64_t held = 0, kept = 0;
        for (int u = 0; u < n; u++) {
            held += live >> u & 1 ? p->node[u].out : 0;
            kept += offloaded >> u & 1 ? p->node[u].out : 0;
        }
        for (int way = 0; way < 4 * n + 1; way++) {
            int u = way / 4, to = v.state, bits = 1 << u;
            uint64_t cost = v.cost;
            if (way == 4 * n) { /* run the next backward */
                const gckpti_node *q = &p->node[p->backward[rank]];
                int reads = q->side_effect ? 1 << p->backward[rank] : 0; /* the loss has run */
                for (int k = q->read; k < q->read + q->reads; k++)
                    reads |= 1 << p->edges[k];
                if ((reads & live) != reads || held + p->gradient_at[rank] > memory)
                    continue;
                to += 1 << (2 * n);
            } else if (way % 4 == 0) { /* drop a value */
                if (!(live & bits) || p->node[u].side_effect)
                    continue;
                to &= ~bits;
            } else if (way % 4 == 1) { /* compute a value; the loss is computed only once, at the beginning */
                const gckpti_node *q = &p->node[u];
                int reads = 0;
                for (int k = q->in; k < q->in + q->inputs; k++)
                    reads |= 1 << p->edges[k];
                if (live & bits || (reads & live) != reads ||
                    held + q->out + q->workspace + p->gradient_between[rank] > memory)
                    continue;
                cost += q->cost;
                to |= bits;
            } else if (way % 4 == 2) { /* offload a value */
                if (!(live & bits) || offloaded & bits || kept + p->node[u].out > slow)
                    continue;
                cost += gckpti_parts_cost(p, u, GCKPTI_VALUE);
                to |= bits << n;
            } else { /* reload a value */
                if (live & bits || !(offloaded & bits) || held + p->node[u].out + p->gradient_between[rank] > memory)
                    continue;
                cost += gckpti_parts_cost(p, u, GCKPTI_VALUE);
                to |= bits;
            }
            if (cost < best[to] && CHECK(count < STATES * 24)) {
                best[to] = cost;
                queue[count++] = (visit){ cost, to };
            }
        }
    }
    return UINT64_MAX;
}

/* ---- exhaustive search with copies that overlap computation: a state also contains the copies in flight and the
 * remaining time of each ---- */
typedef struct {
    unsigned char live, offloaded, rank, n;
    unsigned char who[CHAIN]; /* copies in flight, in the order in which they began: the node, plus 8 for an offload */
    unsigned char none[3];
    uint32_t left[CHAIN + 1]; /* time from now until each copy ends */
} snapshot;
enum { SNAPSHOTS = 1 << 19, SLOTS = 2 * SNAPSHOTS };
static struct {
    snapshot m[SNAPSHOTS];
    uint64_t cost[SNAPSHOTS];
    /* slot: a hash table of index + 1; heap: a heap of indices, which may contain an index twice or with an outdated
     * cost */
    int slot[SLOTS], heap[8 * SNAPSHOTS], count, heaped;
    uint64_t at[8 * SNAPSHOTS];
} snapshots;

/* Records that the state *m can be reached at this cost. Returns 0 if there are too many states. */
static int relax(const snapshot *m, uint64_t cost)
{
    uint64_t h = gckpti_fnv(GCKPTI_FNV_START, m, sizeof *m);
    int k = (int)(h % SLOTS), i;
    while (snapshots.slot[k] && memcmp(&snapshots.m[snapshots.slot[k] - 1], m, sizeof *m))
        k = (k + 1) % SLOTS;
    i = snapshots.slot[k] - 1;
    if (i >= 0 && snapshots.cost[i] <= cost)
        return 1;
    if (i < 0 && snapshots.count == SNAPSHOTS)
        return 0;
    if (i < 0) {
        i = snapshots.count++;
        snapshots.m[i] = *m;
        snapshots.slot[k] = i + 1;
    }
    snapshots.cost[i] = cost;
    if (snapshots.heaped == 8 * SNAPSHOTS)
        return 0;
    int at = snapshots.heaped++;
    for (; at > 0 && snapshots.at[(at - 1) / 2] > cost; at = (at - 1) / 2) {
        snapshots.at[at] = snapshots.at[(at - 1) / 2];
        snapshots.heap[at] = snapshots.heap[(at - 1) / 2];
    }
    snapshots.at[at] = cost;
    snapshots.heap[at] = i;
    return 1;
}

/* Removes the state with the least cost from the heap; returns its cost and stores its index in *i. */
static uint64_t cheapest(int *i)
{
    const uint64_t cost = snapshots.at[0];
    *i = snapshots.heap[0];
    const int n = --snapshots.heaped, last = snapshots.heap[n];
    const uint64_t key = snapshots.at[n];
    int at = 0;
    for (int child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && snapshots.at[child + 1] < snapshots.at[child];
        if (snapshots.at[child] >= key)
            break;
        snapshots.at[at] = snapshots.at[child];
        snapshots.heap[at] = snapshots.heap[child];
    }
    snapshots.at[at] = key;
    snapshots.heap[at] = last;
    return cost;
}

/* Advances the state by `time`; copies that end in this time are removed from it. */
static void advance_time(snapshot *m, uint64_t time)
{
    int n = 0;
    for (int k = 0; k < m->n; k++)
        if (m->left[k] > time) {
            m->who[n] = m->who[k];
            m->left[n++] = m->left[k] - (uint32_t)time;
        }
    for (int k = n; k < CHAIN; k++)
        m->who[k] = 0, m->left[k] = 0;
    m->n = (unsigned char)n;
}

/* Returns the least time of a schedule whose copies overlap computation, if it is at most `most`; UINT64_MAX if no
 * schedule is that fast; 0 if the search exceeds its table of states. */
static uint64_t oracle_overlapped(const gckpti_planner *p, int64_t memory, int64_t slow, uint64_t most)
{
    snapshot none;
    memset(&none, 0, sizeof none);
    memset(snapshots.slot, 0, sizeof snapshots.slot);
    snapshots.count = snapshots.heaped = 0;
    relax(&none, 0);
    while (snapshots.heaped > 0) {
        int i, full = 0;
        uint64_t cost = cheapest(&i), rest = 0;
        if (cost > snapshots.cost[i])
            continue;
        const snapshot v = snapshots.m[i];
        if (v.rank == p->backwards + 1)
            return cost;
        int64_t held = 0, kept = 0;
        int out = 0, in = 0;
        for (int k = 0; k < v.n; k++)
            *(v.who[k] & 8 ? &out : &in) |= 1 << (v.who[k] & 7);
        for (int r = v.rank; r < p->backwards; r++)
            rest += p->cost[p->node[p->backward[r]].id].backward;
        if (cost + rest > most)
            continue;
        for (int u = 0; u < p->nodes; u++) {
            held += v.live >> u & 1 ? p->node[u].out : 0;
            kept += v.offloaded >> u & 1 ? p->node[u].out : 0;
        }
        if (v.rank == p->backwards) { /* after the last backward, the step ends when the copies in flight have ended */
            snapshot w = v;
            w.rank++;
            full = !relax(&w, cost + (v.n ? v.left[v.n - 1] : 0));
        } else {
            const gckpti_node *q = &p->node[p->backward[v.rank]];
            int reads = q->side_effect ? 1 << p->backward[v.rank] : 0;
            for (int k = q->read; k < q->read + q->reads; k++)
                reads |= 1 << p->edges[k];
            if ((reads & v.live & ~in) == reads && held + p->gradient_at[v.rank] <= memory) {
                snapshot w = v;
                w.rank++;
                advance_time(&w, p->cost[q->id].backward);
                full = !relax(&w, cost + p->cost[q->id].backward);
            }
        }
        if (v.n && !full) { /* wait for a copy */
            snapshot w = v;
            advance_time(&w, v.left[0]);
            full = !relax(&w, cost + v.left[0]);
        }
        for (int u = 0; u < p->nodes && v.rank < p->backwards && !full; u++) {
            const gckpti_node *q = &p->node[u];
            const int bit = 1 << u;
            const uint64_t work = gckpti_parts_cost(p, u, GCKPTI_VALUE);
            int reads = 0;
            snapshot w = v;
            for (int k = q->in; k < q->in + q->inputs; k++)
                reads |= 1 << p->edges[k];
            if (v.live & bit && !((in | out) & bit) && !q->side_effect) { /* drop a value */
                w.live = (unsigned char)(v.live & ~bit);
                full = full || !relax(&w, cost);
            }
            w = v;
            if (!(v.live & bit) && (reads & v.live & ~in) == reads &&
                held + q->out + q->workspace + p->gradient_between[v.rank] <= memory) { /* compute a value */
                w.live |= (unsigned char)bit;
                advance_time(&w, q->cost);
                full = full || !relax(&w, cost + q->cost);
            }
            w = v;
            const int store = v.live & bit && !(v.offloaded & bit) && !(in & bit) && kept + q->out <= slow;
            const int reload =
                !(v.live & bit) && v.offloaded & bit && held + q->out + p->gradient_between[v.rank] <= memory;
            if (store || reload) {
                w.live |= (unsigned char)bit;
                w.offloaded |= (unsigned char)bit;
                w.who[v.n] = (unsigned char)(u | (store ? 8 : 0));
                w.left[v.n] = (uint32_t)work + (v.n ? v.left[v.n - 1] : 0);
                w.n++;
                advance_time(&w, 0);
                full = full || !relax(&w, cost);
            }
        }
        if (full)
            return 0;
    }
    return UINT64_MAX;
}

static void every_schedule(int chains)
{
    long tried = 0, equal = 0, proven = 0, timed = 0, fastest = 0, fast = 0, hides = 0, large = 0, sooner = 0;
    for (int c = 0; c < chains; c++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_init normal = { 0.3f, 0, 0 };
        T *h = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(64, 2)),
          *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(64, 2));
        int64_t width = 2;
        for (int l = 0; l < CHAIN - 1; l++) {
            int64_t next = l == CHAIN - 2 ? 2 : 1 + (int64_t)below(6);
            char name[16];
            snprintf(name, sizeof name, "w%d", l);
            h = gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(width, next), normal), NULL);
            width = next;
        }
        gckpt_term term = { gckpt_mean_squared_error(h, y, NULL), 1, 0 };
        gckpt_cost costs[32] = { { 0, 0 } };
        for (int i = 0; i < 32; i++)
            costs[i] = (gckpt_cost){ 1 + below(100), 1 + below(100) };
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .kernels.alignment = 4, .costs.by_id = costs };
        d.costs.count = gckpt_id(term.loss) + 1;
        gckpti_planner p;
        gckpti_allocator memory = gckpti_allocator_of(NULL);
        gckpt_plan *all = gckpt_plan_new(g, &term, 1, &d);
        const gckpt_plan_info all_info = gckpt_plan_describe(all);
        d.mode = GCKPT_OPTIMAL;
        d.offload.bytes = chance(50) ? 16384 : 64 * (size_t)(4 + below(40));
        d.offload.cost = (uint64_t)below(60) << 13;
        memset(&p, 0, sizeof p);
        if (CHECK_MSG(all && gckpti_planner_open(&p, &memory, g, &term, 1, &d) == GCKPT_OK, "%s",
                      gckpt_error_text(g))) {
            uint64_t backward = 0;
            for (int i = 0; i < p.nodes; i++)
                backward += p.node[i].backward_index < 0 ? 0 : p.cost[p.node[i].id].backward;
            CHECK(p.nodes == CHAIN && p.prologue == 0);
            for (int k = 0; k < 6; k++) {
                size_t resident = gckpt_plan_bytes(all) - all_info.arena;
                size_t arena = all_info.arena / 8 * (size_t)(8 - k) / 4 * 4;
                uint64_t least = oracle(&p, (int64_t)arena, (int64_t)d.offload.bytes);
                d.budget = resident + arena;
                gckpt_plan *plan = gckpt_plan_new(g, &term, 1, &d);
                const gckpt_plan_info info = gckpt_plan_describe(plan);
                CHECK_MSG(!plan || least < UINT64_MAX, "chain %d: a plan where none is possible", c);
                if (!plan) /* a schedule whose live bytes fit may have no placement that fits */
                    continue;
                least += backward;
                tried++;
                equal += info.cost == least;
                proven += info.proven_cost == least;
                CHECK_MSG(info.cost >= least && info.proven_cost <= least,
                          "chain %d, %zu bytes: work %llu, least %llu, proven %llu", c, arena,
                          (unsigned long long)info.cost, (unsigned long long)least,
                          (unsigned long long)info.proven_cost);
                d.offload.overlap = 1;
                gckpt_plan *overlapped_plan = gckpt_plan_new(g, &term, 1, &d);
                const gckpt_plan_info overlapped_plan_info = gckpt_plan_describe(overlapped_plan);
                const uint64_t time = overlapped_plan_info.cost;
                d.offload.overlap = 0;
                CHECK_MSG(overlapped_plan && time <= info.cost, "chain %d: %s", c, gckpt_error_text(g));
                sooner += time < info.cost;
                hides += overlapped_plan_info.hidden_cost > 0;
                least = oracle_overlapped(&p, (int64_t)arena, (int64_t)d.offload.bytes, time);
                large += least == 0;
                if (least > 0) {
                    timed++;
                    fastest += time == least;
                    fast += time - least <= least / 20;
                    CHECK_MSG(time >= least && overlapped_plan_info.proven_cost <= least,
                              "chain %d, %zu bytes: time %llu, least %llu, proven %llu", c, arena,
                              (unsigned long long)time, (unsigned long long)least,
                              (unsigned long long)overlapped_plan_info.proven_cost);
                }
                gckpt_plan_free(overlapped_plan);
                gckpt_plan_free(plan);
            }
            gckpti_planner_free(&p);
        }
        util_free(NULL, all, g, s);
    }
    printf("small chains: %ld plans, %ld optimal, %ld proven to be\n", tried, equal, proven);
    CHECK(equal * 100 >= tried * 97 && proven * 2 > tried);
    printf("small chains, overlap: %ld plans, %ld sooner, %ld hide some, %ld in the least time, %ld within 5 %%; "
           "%ld too large to search\n", timed, sooner, hides, fastest, fast, large);
    CHECK(timed < 20 || (fastest * 3 >= timed && fast * 2 > timed && hides > 0));
}

/* ---- live-range holes in which the local search may drop values: every move that gckpti_find_moves lists has a score
 * and a closure that is not empty, even if must_save values do not fit into slower memory ---- */
static void holes(unsigned first, unsigned n)
{
    long moves = 0, refused = 0;
    for (unsigned seed = first; seed < first + n; seed++) {
        gckpt_plan_desc d = { .mode = GCKPT_OPTIMAL, .offload.bytes = 256 + (size_t)below(4096), .offload.cost = 1000 };
        gckpti_planner p;
        gckpti_allocator memory = gckpti_allocator_of(NULL);
        gckpti_search s;
        build(seed, 0);
        for (int i = 0; i < net.count; i++)
            if (net.nodes[i].is_op && net.nodes[i].t && chance(40))
                gckpt_keep(net.nodes[i].t);
        memset(&p, 0, sizeof p);
        gckpt_result result = gckpti_planner_open(&p, &memory, net.g, net.term, net.terms, &d);
        result = result == GCKPT_OK ? gckpti_search_open(&s, &p, 0) : result;
        if (CHECK_MSG(result == GCKPT_OK, "seed %u: %s", seed, gckpt_error_text(net.g))) {
            for (int part = 1; part < 15; part++) {
                CHECK(gckpti_candidate_load(&s, &s.level[0]));
                /* half of the schedules have no space left in slower memory */
                s.now.host_bytes = chance(50) ? p.host_limit : s.now.host_bytes;
                gckpti_find_moves(&s, s.level[0].peak / 15 * part);
                for (int i = 0; i < s.moves; i++, moves++)
                    CHECK_MSG(s.move[i].key < UINT64_MAX && s.move[i].count > 0, "seed %u: move %d of %d", seed, i,
                              s.moves);
                for (int u = 0; u < p.nodes; u++)
                    refused += p.node[u].runs_once && p.node[u].can_copy && s.now.host_bytes == p.host_limit;
            }
            gckpti_scratch_free(&s.scratch);
        }
        gckpti_planner_free(&p);
        destroy();
    }
    printf("gaps: %ld moves, %ld pinned values without room in slower memory\n", moves, refused);
    CHECK(moves > 10 * (long)n && refused > (long)n);
}

/* ---- a graph of which only a regulariser is trained: no backward depends on the batch, so the least bytes follow
 * from the forwards alone ---- */
static void regulariser(void)
{
    const gckpt_init one = { 0, 0, 1 };
    for (int layers = 1; layers < 90; layers *= 3) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8)), *w = gckpt_param(g, "w", gckpt_shape1(8), one);
        T *f = gckpt_param(g, "f", gckpt_shape2(8, 8), one), *a = gckpt_tanh(gckpt_linear(x, f, NULL)), *b = a;
        CHECK(gckpt_store_freeze(s, "f", 1) == GCKPT_OK);
        for (int i = 0; i < layers; i++)
            b = gckpt_tanh(gckpt_linear(b, f, NULL));
        gckpt_term t[2] = { { gckpt_sum_loss(gckpt_add(a, b)), 1, 0 },
                            { gckpt_sum_loss(gckpt_mul(w, w)), 0.1f, 1 } };
        for (int k = 0; k < 4; k++) {
            gckpt_plan_desc d = { .mode = GCKPT_OPTIMAL, .budget = 1 };
            d.offload.bytes = k & 1 ? HOST_BYTES : 0, d.batch = k & 2 ? 8 : 0;
            CHECK(!gckpt_plan_new(g, t, 2, &d) && gckpt_error(g) == GCKPT_E_BUDGET);
            d.budget = util_least_budget(g);
            gckpt_plan *p = gckpt_plan_new(g, t, 2, &d);
            gckpt_frontier *all = gckpt_frontier_new(g, t, 2, &d);
            gckpt_point at = { 0, 0, 0, 0, 0 };
            CHECK_MSG(p && gckpt_plan_bytes(p) == d.budget, "%s", gckpt_error_text(g));
            CHECK(gckpt_frontier_get(all, 0, &at) == GCKPT_OK && at.bytes == d.budget);
            gckpt_frontier_free(all);
            gckpt_plan_free(p);
        }
        util_free(NULL, NULL, g, s);
    }
}

/* Tests where the time of a schedule includes a wait for an offload copy: only where the copy's own buffer must be
 * freed for later instructions. Op 1 reads the value that op 0 computes and offloads; op 2, before which the wait may
 * be needed, needs LIVE bytes. */
static void waits(void)
{
    enum { OUT = 100, SAVED = 60, LIVE = 1000 };
    for (int parts = GCKPTI_VALUE; parts <= (GCKPTI_VALUE | GCKPTI_SAVED); parts++)
        for (int64_t spare = 0; spare <= OUT + SAVED; spare++) {
            int entry[3] = { 0, 1, 2 }, value_end[3] = { 1, -1, -1 }, saved_end[3] = { 1, -1, -1 };
            int offloaded[3] = { parts, 0, 0 }, edges[1] = { 0 }, with[6];
            int64_t live[3] = { 0, 0, LIVE };
            gckpti_node node[3] = { { .out = OUT, .saved = SAVED, .cost = 1 },
                                    { .inputs = 1, .cost = 1 },
                                    { .cost = 5 } };
            gckpti_node_state note[3] = { { 0 } };
            gckpt_plan_desc desc = { .offload.cost = 1 << 20 };
            gckpti_schedule a = { .entry = entry, .length = 3, .value_end = value_end, .saved_end = saved_end,
                                  .copied_parts = offloaded, .live_bytes = live };
            gckpti_schedule to = { .entry = with };
            gckpti_allocator memory = gckpti_allocator_of(NULL);
            gckpti_planner p;
            memset(&p, 0, sizeof p);
            p.node = node, p.nodes = 3, p.edges = edges, p.state = note, p.desc = &desc;
            p.temp = gckpti_scratch_new(&memory, &p.failed);
            const int64_t held = (parts & GCKPTI_VALUE ? OUT : 0) + (parts & GCKPTI_SAVED ? SAVED : 0);
            const uint64_t copy = 1 + gckpti_parts_cost(&p, 0, parts),
                           time = gckpti_schedule_time(&p, &a, LIVE + spare, &to);
            CHECK_MSG(copy > 50 && time == copy + (spare < held ? 5 : 0), "parts %d, space for %d of %d: %d after %d",
                      parts, (int)spare, (int)held, (int)time, (int)copy);
            gckpti_scratch_free(&p.temp);
        }
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : check_seed();
    int scale = argc > 2 ? atoi(argv[2]) : check_iterations(30); /* percent */
    for (int i = 0; i < VALUES; i++) {
        data[i] = (float)below(1000) / 500 - 1;
        indices[0][i] = (int32_t)below(V);
        lengths[i] = indices[0][i] % (NET_LENGTH + 1);
        fed_bytes[i] = (unsigned char)(167 * i + indices[0][i]);
        indices[1][i] = (int32_t)below(V) - (chance(20) ? V : 0);
    }
    if (CHECK(device_start(&dev.d, &dev.b, "device", GCKPT_ISA_PLAIN))) {
        dev.b.replay = refuse_repeat;
        dev.b.captured = recorded;
        dev.lazy = dev.b;
        dev.lazy.copy_async = lazy_move;
        dev.lazy.wait_copies = lazy_join;
        dev.lazy.finish = lazy_finish;
        dev.lazy.host_get = host_get;
        dev.lazy.host_release = host_release;
        every_way();
        overlapped();
        reload_last();
        abandoned();
        by_the_host();
        not_repeated();
        uncounted();
        failures();
    }
    refusals();
    waits();
    every_schedule(30 * scale / 100 + 1);
    holes(first, (unsigned)(40 * scale / 100 + 1));
    regulariser();
    schedules(first, (unsigned)(40 * scale / 100 + 1));
    random_plans(first, (unsigned)(20 * scale / 100 + 1));
    if (dev.d.base)
        device_end(&dev.d);
    return check_report("offload");
}
