/* long.c - compares a long training that is stopped and resumed all the time with an uninterrupted one.
 *
 *     long [STEPS]     20000; 1000000 for the long form
 *
 * The steps are divided into sessions of 50. Each session loads a new store from the last save (in memory, every
 * 8th time by path), uses executors for three shapes in turn, and has another plan than the session before: another
 * mode, number of rows of a micro-batch, and budget. At the end of a session everything is freed. Further trainings
 * run with 64 threads (a pool, and the build's own) on any number of processors, with a profile whose clock jumps,
 * and on threads as ranks, of which one is slow and has jumping clocks, saved and loaded by other numbers of ranks.
 * Each training must give the bits of an uninterrupted one with a single store-all executor for each shape. The
 * allocator must get all memory back, and neither its peak nor that of the process may grow. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gradckpt.h"

#include "dist/rank_threads.h"
#include "util.h"

enum {
    BATCH = 8,
    IN = 6,
    NARROW = 24,
    WIDE = 256,
    SHAPES = 3,
    SESSION = 50,
    PATHS = 8,
    SHORT = 600,
    POOLED = 60
};
static const char path[] = "long.safetensors";
static heap mem;

typedef struct {
    gckpt_mode mode;
    int64_t rows; /* rows of a micro-batch */
    int budget;   /* if nonzero, the budget is half way between the bytes of store-all and the least bytes */
    int wide;     /* if nonzero, layers are so large that kernels use threads */
    int threads, virtual_ranks;
    const gckpt_transport *ranks;
    const gckpt_exec_desc *exec_desc;
} way;
typedef struct {
    gckpt_store *s;
    gckpt_graph *g[SHAPES];
    gckpt_plan *p[SHAPES];
    gckpt_exec *e[SHAPES];
    int failed;
} training;

static int fail(training *t, const char *what, const void *object)
{
    fprintf(stderr, "%s: %s\n", what, gckpt_error_text(object));
    t->failed = 1;
    return 0;
}

/* Plans a loss over T positions of a row, where T depends on the shape. */
static gckpt_plan *plan_of(gckpt_graph *g, int shape, const way *w, const gckpt_memory *memory)
{
    const int64_t wide = w->wide ? WIDE : NARROW;
    const gckpt_init init = { 0.2f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(w->rows, shape + 1, IN)), *h = x;
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape3(w->rows, shape + 1, IN));
    for (int i = 0; i < 4; i++) {
        const char name[] = { 'w', (char)('0' + i), 0 };
        gckpt_segment_begin(g);
        h = gckpt_linear(
            h, gckpt_param(g, name, gckpt_shape2(i ? wide : IN, i == 3 ? IN : wide), init), NULL);
        h = i == 3 ? h : gckpt_tanh(h);
        gckpt_segment_end(g);
    }
    gckpt_term loss = { gckpt_mean_squared_error(gckpt_dropout(h, 0.1f), y, NULL), 1, 0 };
    gckpt_plan_desc d = { .memory = *memory,
                          .mode = w->mode,
                          .batch = BATCH,
                          .threads = w->threads,
                          .ranks.virtual_ranks = w->virtual_ranks };
    if (w->budget) {
        d.mode = GCKPT_MEMORY_POOR;
        gckpt_plan *least = gckpt_plan_new(g, &loss, 1, &d);
        d.mode = GCKPT_STORE_ALL;
        gckpt_plan *most = gckpt_plan_new(g, &loss, 1, &d);
        d.mode = GCKPT_AUTO;
        d.budget = least && most ? (gckpt_plan_bytes(least) + gckpt_plan_bytes(most)) / 2 : 0;
        gckpt_plan_free(least);
        gckpt_plan_free(most);
    }
    return gckpt_plan_new(g, &loss, 1, &d);
}

/* Makes an executor for each shape, on the store of the training. */
static int open_training(training *t, const way *w)
{
    const gckpt_memory memory = w->ranks ? (gckpt_memory){ 0 } : heap_memory(&mem);
    for (int k = 0; k < SHAPES && !t->failed; k++) {
        gckpt_exec_desc d = { 0 };
        if (w->exec_desc)
            d = *w->exec_desc;
        d.memory = memory;
        d.transport = w->ranks;
        t->g[k] = gckpt_graph_new(t->s, &memory);
        t->p[k] = plan_of(t->g[k], k, w, &memory);
        if (!t->p[k])
            return fail(t, "plan", t->g[k]);
        t->e[k] = gckpt_exec_new(t->p[k], t->s, &d);
        if (!t->e[k])
            return fail(t, "exec", t->s);
    }
    return 1;
}

static void close_training(training *t)
{
    for (int k = 0; k < SHAPES; k++)
        util_free(t->e[k], t->p[k], t->g[k], NULL);
    gckpt_store_free(t->s);
    memset(t, 0, sizeof *t);
}

/* Trains until the store's step is `end`. */
static void run_to(training *t, uint64_t end, int rank)
{
    float x[BATCH * SHAPES * IN], y[BATCH * SHAPES * IN];
    while (!t->failed && gckpt_store_step(t->s) < end) {
        const uint64_t step = gckpt_store_step(t->s);
        const int shape = (int)(step * 7 % 5 % SHAPES);
        const int64_t row = (shape + 1) * IN;
        const gckpt_hyper hyper = gckpt_hyper_lr(1e-3f);
        uint64_t state = step * 1000;
        int64_t first = 0;
        for (int64_t k = 0; k < BATCH * row; k++) {
            x[k] = (float)(next_random(&state) % 1000) / 500 - 1;
            y[k] = x[k] * x[k / 2];
        }
        gckpt_plan_rank_rows(t->p[shape], BATCH, rank, &first);
        const gckpt_feed feeds[] = { { 0, x + first * row }, { 1, y + first * row } };
        gckpt_exec *e = t->e[shape];
        const gckpt_result result = gckpt_step(e, feeds, 2, BATCH, &hyper, NULL);
        if (result != GCKPT_OK)
            fail(t, "step", e);
    }
}

static gckpt_store *store_new(void)
{
    const gckpt_store_desc d = { .memory = heap_memory(&mem), .seed = 9 };
    return gckpt_store_new(&d);
}

/* Trains without interruption and returns the hash of the weights. */
static uint64_t uninterrupted(uint64_t steps, const way *w)
{
    training t = { .s = store_new() };
    if (open_training(&t, w))
        run_to(&t, steps, 0);
    const uint64_t hash = t.failed ? 0 : gckpt_store_hash(t.s);
    close_training(&t);
    CHECK(mem.live == 0);
    return hash;
}

static long resident(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

/* Trains in sessions and returns the hash of the weights. The peaks of the allocator's memory and of the process's
 * memory must be reached in the first tenth of the steps. */
static uint64_t in_sessions(uint64_t steps)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT,
                                        GCKPT_SEGMENTS, GCKPT_AUTO };
    file saved = { 0 };
    uint64_t hash = 0;
    size_t peak = 0;
    long lives = 0, by_path = 0, kilobytes = 0;
    int failed = 0;
    for (uint64_t end = 0; end < steps && !failed; lives++) {
        const way w = {
            .mode = modes[lives % 5], .rows = 1 << lives % 4, .budget = lives % 5 == 4, .threads = 1
        };
        training t = { .s = store_new() };
        end = end + SESSION < steps ? end + SESSION : steps;
        saved.at = 0;
        if (lives && lives % PATHS == 0
                ? gckpt_store_load(t.s, path, NULL) != GCKPT_OK
                : lives && gckpt_store_read(t.s, file_read, &saved, saved.size, NULL) != GCKPT_OK)
            fail(&t, "load", t.s);
        if (open_training(&t, &w))
            run_to(&t, end, 0);
        saved.size = 0;
        if (!t.failed && gckpt_store_write(t.s, file_write, &saved, NULL) != GCKPT_OK)
            fail(&t, "write", t.s);
        if (!t.failed && (lives + 1) % PATHS == 0 && ++by_path &&
            gckpt_store_save(t.s, path, NULL) != GCKPT_OK)
            fail(&t, "save", t.s);
        hash = t.failed ? 0 : gckpt_store_hash(t.s);
        failed = t.failed;
        close_training(&t);
        CHECK_MSG(mem.live == 0 && mem.blocks == 0 && mem.wrong_sizes == 0, "life %ld: %lu bytes",
                  lives, (unsigned long)mem.live);
        if (end <= steps / 10) {
            peak = mem.peak;
            kilobytes = resident();
        }
    }
    const long most = resident(); /* before printf, whose pages count */
    printf(
        "%ld lives, %ld of them saved by path; %ld allocations; peak %lu bytes, behind a tenth %lu; resident at "
        "most %ld KB, %ld\n",
        lives, by_path, mem.calls, (unsigned long)mem.peak, (unsigned long)peak, most,
        kilobytes);
    CHECK(steps < 10000 || (mem.peak == peak && most <= kilobytes + 256));
    free(saved.bytes);
    remove(path);
    return hash;
}

/* ---- a pool of 64 threads, which are created for each call ---- */
enum { POOL_SIZE = 64 };
typedef struct {
    int64_t next, n;
    void (*body)(void *context, int64_t i);
    void *context;
} work_pool;

static void *pool_worker(void *user)
{
    work_pool *c = (work_pool *)user;
    for (int64_t i; (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->n;)
        c->body(c->context, i);
    return NULL;
}

static long pools_used;
static void pool_for(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    pthread_t thread[POOL_SIZE];
    work_pool c = { 0, n, body, context };
    int begun = 0;
    (void)user;
    pools_used++;
    while (begun < POOL_SIZE && !pthread_create(&thread[begun], NULL, pool_worker, &c))
        begun++;
    pool_worker(&c);
    while (begun > 0)
        pthread_join(thread[--begun], NULL);
}

/* ---- clocks ---- */
static double odd_clock(void *user)
{
    static const double odd[] = { 0, 1e9, -1e9, 1e300, -1e300, 0.5 };
    static long calls;
    (void)user;
    calls++;
    return calls % 7 == 6 ? (double)NAN : calls % 11 == 10 ? HUGE_VAL : odd[calls % 6];
}

/* The clock of a rank; it jumps back and forth by half of the timeout. */
static double jumping_clock(void *user)
{
    static long calls;
    return ranks_clock(user) +
           (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) % 5 == 3 ? RANKS_TIMEOUT / 2.0 : 0);
}

/* ---- threads as ranks, of which one is slow ---- */
static int slow_exchange(void *user, int peer, const void *send, size_t send_bytes, void *receive,
                         size_t receive_bytes)
{
    usleep(300);
    return ranks_exchange(user, peer, send, send_bytes, receive, receive_bytes);
}

typedef struct {
    uint64_t end, hash[RANKS_MOST];
    int loads, shard;
} interval;

static void rank_body(ranks_world *world, int rank, void *context)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    interval *v = (interval *)context;
    const gckpt_store_desc d = { .seed = 9 };
    gckpt_transport *transport = &world->rank[rank].transport;
    transport->clock = jumping_clock;
    if (rank == world->size - 1)
        transport->exchange = slow_exchange;
    const way w = {
        .mode = modes[v->shard % 3], .rows = 1, .threads = 1, .virtual_ranks = 4, .ranks = transport
    };
    training t = { .s = gckpt_store_new(&d) };
    if (gckpt_store_ranks(t.s, rank, world->size, (gckpt_shard)v->shard) != GCKPT_OK ||
        (v->loads && gckpt_store_load(t.s, path, NULL) != GCKPT_OK))
        fail(&t, "load by ranks", t.s);
    if (open_training(&t, &w))
        run_to(&t, v->end, rank);
    if (!t.failed && gckpt_ranks_save(t.e[0], path) != GCKPT_OK)
        fail(&t, "save by ranks", t.e[0]);
    if (!t.failed && gckpt_gather_values(t.e[0], -1, NULL, &v->hash[rank]) != GCKPT_OK)
        fail(&t, "hash", t.e[0]);
    close_training(&t);
}

static uint64_t by_ranks(uint64_t steps, int intervals)
{
    interval v = { 0, { 0 }, 0, 0 };
    uint64_t hash = 0;
    for (int k = 0; k < intervals; k++) {
        ranks_world w;
        v.end = steps * (uint64_t)(k + 1) / (uint64_t)intervals;
        v.shard = k % 4;
        ranks_open(&w, 4 >> k % 3);
        ranks_run(&w, rank_body, &v);
        hash = v.hash[0];
        for (int r = 0; r < w.size; r++)
            CHECK_MSG(v.hash[r] == hash && hash, "rank %d of %d, stretch %d", r, w.size, k);
        ranks_close(&w);
        v.loads = 1;
    }
    for (int r = 0; r < 4; r++) {
        char name[80];
        snprintf(name, sizeof name, "%s.%d-%d.safetensors", path, intervals, r);
        remove(name);
    }
    remove(path);
    return hash;
}

static void same(const char *what, uint64_t steps, uint64_t hash, uint64_t want)
{
    printf("%-46s %8llu steps  %016llx\n", what, (unsigned long long)steps,
           (unsigned long long)hash);
    fflush(stdout);
    CHECK_MSG(hash && hash == want, "%s: other weights", what);
}

int main(int argc, char **argv)
{
    const uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    const uint64_t some = steps < SHORT ? steps : SHORT;
    const way whole = { .mode = GCKPT_STORE_ALL, .rows = BATCH, .threads = 1 };
    const way by_four = { .mode = GCKPT_STORE_ALL, .rows = 1, .threads = 1, .virtual_ranks = 4 };
    const gckpt_exec_desc pool = { .parallel_for = pool_for };
    /* runs before all other trainings, since it measures the peak memory of the process */
    const uint64_t lives = in_sessions(steps);
    same("lives of 50 steps, other plans each", steps, lives, uninterrupted(steps, &whole));
    const uint64_t want_by_four = uninterrupted(some, &by_four);
    const way wide = { .mode = GCKPT_STORE_ALL, .rows = BATCH, .wide = 1, .threads = 1 };
    const uint64_t few = some < POOLED ? some : POOLED, want_wide = uninterrupted(few, &wide);
    way w = { .mode = GCKPT_MEMORY_POOR, .rows = 4, .wide = 1, .threads = POOL_SIZE, .exec_desc = &pool };
    same("64 threads of a pool", few, uninterrupted(few, &w), want_wide);
    CHECK(pools_used > (long)few);
    w.exec_desc = NULL;
    same("64 threads of the build's own", few, uninterrupted(few, &w), want_wide);
    same("ranks: 4, 2, 1, .., one slow, clocks that jump", some, by_ranks(some, 7), want_by_four);
    return check_report("long");
}
