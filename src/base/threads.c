#include "base/base.h"

/* ---- threads ---- */
GCKPT_API int gckpt_threads(void)
{
#ifdef _OPENMP
    int n = omp_get_max_threads();
    return n > 1 ? n : 1;
#else
    return 1;
#endif
}

#if GCKPTI_HAS_FAST
/* ---- workers claim a few items at a time, so that a thread may be late or lose its core. A
 * worker's number selects its scratch. Each worker has a range of the items, of which a thread
 * claims its own first: so the same core writes a part of a tensor and reads it in the next loop.
 * ---- */
enum { GCKPTI_RANGES = 64 };
typedef struct {
    int64_t next, end;
    char pad[48]; /* each range has its own cache line */
} gckpti_item_range;
typedef struct {
    void (*body)(void *context, int64_t item, int64_t worker);
    void *context;
    int64_t ranges, chunk;
    const gckpti_runner *runner;
    gckpti_item_range range[GCKPTI_RANGES];
} gckpti_parallel_loop;

/* Claims `chunk` items at a time until none is left, first those of the thread's range. Thread 0,
 * the one that runs the step, polls after each chunk. */
static void gckpti_claim_items(gckpti_parallel_loop *loop, int64_t worker, int64_t thread)
{
    for (int64_t k = 0; k < loop->ranges; k++) {
        gckpti_item_range *range = &loop->range[(thread + k) % loop->ranges];
        int64_t i, end;
        while ((i = __atomic_fetch_add(&range->next, loop->chunk, __ATOMIC_RELAXED)) < range->end) {
            for (end = range->end - i < loop->chunk ? range->end : i + loop->chunk; i < end; i++)
                loop->body(loop->context, i, worker);
            if (thread == 0 && loop->runner->poll)
                loop->runner->poll(loop->runner->poll_context);
        }
    }
}

/* Runs a worker on one of the program's own threads. */
static void gckpti_run_worker(void *loop, int64_t worker)
{
    gckpti_claim_items((gckpti_parallel_loop *)loop, worker, worker + 1);
}
#endif

#if GCKPTI_TEAMS
/* Only thread 0 starts loops, one after the other; it also runs workers. `unclaimed` counts the
 * workers that no thread has claimed, `unfinished` those that are not finished. A thread may be
 * late, or sleep anywhere in this code, because:
 *
 * 1. A thread claims a worker by decrementing `unclaimed`, if the old value was positive.
 *    It reads `loop` only afterwards. If a loop ended and another began in between, it has
 *    claimed a worker of the new one.
 * 2. A claimed worker is unfinished until its thread reports it, and thread 0 changes the loop only
 *    when no worker is unfinished. So `loop` and its fields are constant while they are read.
 * 3. Decrementing an `unclaimed` of 0 or less claims nothing; the next loop overwrites it.
 * 4. Loop to workers: `unclaimed` is set with release after the loop and decremented with acquire
 *    (which continues the release sequence). Workers to thread 0: `unfinished`, likewise. */
typedef struct gckpti_team {
    gckpti_parallel_loop *loop;
    int busy;   /* nonzero while a loop is running */
    int stop;   /* nonzero if no more loops follow */
    int exited; /* threads that have seen `stop` */
    char pad[64];
    int64_t unclaimed;
    char pad2[64]; /* each of the two counters has its own cache line */
    int64_t unfinished;
    char pad3[64];
} gckpti_team;

static void gckpti_team_run_workers(gckpti_team *team, int64_t thread)
{
    int64_t done = 0;
    while (__atomic_load_n(&team->unclaimed, __ATOMIC_RELAXED) > 0) {
        int64_t unclaimed = __atomic_fetch_sub(&team->unclaimed, 1, __ATOMIC_ACQUIRE);
        if (unclaimed <= 0)
            break;
        gckpti_claim_items(team->loop, unclaimed - 1, thread);
        done++;
    }
    if (done)
        __atomic_fetch_sub(&team->unfinished, done, __ATOMIC_ACQ_REL);
}

/* Waits some 40 ns, during which the core's other hardware thread runs faster. */
static void gckpti_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#else
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Waits once: spins for 0.2 to 1 ms, so that the next loop finds the thread awake, and after the
 * first 20 us yields now and then. Then it sleeps, so that an idle processor can take over a thread
 * that waits for a busy one. */
static void gckpti_team_backoff(int *spins)
{
    enum { SPINS = 20000, FIRST = 1000, SHORT = 8 };
    const int waits = *spins - SPINS; /* the pauses so far */
    if (waits < 0) {
        gckpti_cpu_relax();
        if (*spins >= FIRST && *spins % 100 == 0)
            sched_yield();
    } else {
        const int pause = waits < SHORT ? 20 : 100; /* microseconds */
#ifdef _WIN32
        usleep((useconds_t)pause);
#else
        struct timeval time = { 0, pause };
        select(0, NULL, NULL, NULL, &time);
#endif
    }
    *spins += waits < SHORT;
}

/* Main loop of all threads except 0, until thread 0 ends the team. */
GCKPTI_FN void gckpti_team_worker(gckpti_team *team, int thread)
{
    for (int spins = 0; !__atomic_load_n(&team->stop, __ATOMIC_ACQUIRE);) {
        if (__atomic_load_n(&team->unclaimed, __ATOMIC_RELAXED) > 0) {
            gckpti_team_run_workers(team, thread);
            spins = 0;
        }
        gckpti_team_backoff(&spins);
    }
    __atomic_fetch_add(&team->exited, 1, __ATOMIC_RELEASE);
}

/* Thread 0 waits here for the other threads, not in OpenMP's barrier, which may spin for so long
 * that a thread without a processor never gets one. */
GCKPTI_FN void gckpti_team_end(gckpti_team *team, int others)
{
    __atomic_store_n(&team->stop, 1, __ATOMIC_RELEASE);
    for (int spins = 0; __atomic_load_n(&team->exited, __ATOMIC_ACQUIRE) < others;)
        gckpti_team_backoff(&spins);
}

static void gckpti_team_run(gckpti_team *team, gckpti_parallel_loop *loop, int64_t workers)
{
    int spins = 0;
    team->loop = loop;
    team->busy = 1;
    __atomic_store_n(&team->unfinished, workers, __ATOMIC_RELAXED);
    __atomic_store_n(&team->unclaimed, workers, __ATOMIC_RELEASE);
    gckpti_team_run_workers(team, 0);
    while (__atomic_load_n(&team->unfinished, __ATOMIC_ACQUIRE) > 0)
        gckpti_team_backoff(&spins);
    team->busy = 0;
}
#endif

GCKPT_API void gckpt_parallel(const gckpt_call *call, int64_t items, int64_t cost,
                              void (*item)(void *context, int64_t i, int64_t worker), void *context)
{
#if GCKPTI_HAS_FAST
    const gckpti_runner *runner = call ? (const gckpti_runner *)call->runner : NULL;
    if (runner && item && items > 1 && (call->threads > 1 || runner->poll)) {
        gckpti_parallel_loop loop;
        loop.body = item, loop.context = context, loop.runner = runner;
        loop.chunk = 1 + 65536 / (1 + (cost <= 0 ? 0 : cost < 65536 ? cost : 65536));
        int64_t workers = items / loop.chunk + (items % loop.chunk != 0);
        workers = workers < call->threads ? workers : call->threads;
        loop.ranges = workers < (int64_t)GCKPTI_RANGES ? workers : (int64_t)GCKPTI_RANGES;
        for (int64_t r = 0; r < loop.ranges; r++)
            loop.range[r].next = r * items / loop.ranges,
            loop.range[r].end = (r + 1) * items / loop.ranges;
        int64_t thread = 0;
        if (workers > 1 && runner->parallel_for) {
            runner->parallel_for(runner->user, workers, gckpti_run_worker, &loop);
            return;
        }
#if GCKPTI_TEAMS
        if (workers > 1 && runner->team && !runner->team->busy) {
            gckpti_team_run(runner->team, &loop, workers);
            return;
        }
        thread = runner->team && runner->team->busy; /* then perhaps another one */
#endif
        gckpti_claim_items(&loop, 0, thread);
        return;
    }
#endif
    (void)call, (void)cost;
    for (int64_t i = 0; item && i < items; i++)
        item(context, i, 0);
}

GCKPTI_FN void gckpti_with_team(gckpti_runner *runner, int threads, void (*main)(void *context),
                                void *context)
{
#if defined(_OPENMP) && GCKPTI_TEAMS
    if (threads > 1 && !runner->parallel_for && !runner->team) {
        gckpti_team team;
        memset(&team, 0, sizeof team);
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() == 0) {
            runner->team = omp_get_num_threads() > 1 ? &team : NULL;
            main(context);
            runner->team = NULL;
            gckpti_team_end(&team, omp_get_num_threads() - 1);
        } else {
            gckpti_team_worker(&team, omp_get_thread_num());
        }
        return;
    }
#endif
    (void)runner, (void)threads;
    main(context);
}
