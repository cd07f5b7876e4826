/* overlap.c - compares predicted and measured time of a step whose values are offloaded to a file, with copies that
 * run one after the other with the ops, and with copies that overlap with them; recorded in
 * docs/benchmarks/offload.tsv.
 *
 *     make overlap, or build/overlap [MB/s]
 *
 * A thread copies (gckpt_exec_desc.wait) at a given rate: a copy ends when the clock has advanced by the copy's
 * time. The clock is the processor time of the computing thread plus the time that it has waited for copies. The
 * results are medians. */
#include "model.h"

#include <pthread.h>
#include <unistd.h>

enum { COPIES = 4096, PLANS = 3, STEPS = 7 };
static struct {
    struct {
        size_t at, bytes;
        void *to;
        const void *from;
        double end; /* end of the copy, in seconds of the clock */
    } job[COPIES];
    int begun, done, ends, failed, file;
    /* rate: bytes a second; end: end of the last copy; waited: seconds that the computing thread has waited */
    double rate, end, waited;
    pthread_mutex_t lock;
    pthread_cond_t moved;
} slow = { .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER };

/* Returns the time in seconds. Called only by the computing thread. */
static double seconds(void *user)
{
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + slow.waited;
}

static void *copy_all(void *context)
{
    pthread_mutex_lock(&slow.lock);
    while (!slow.ends) {
        if (slow.done == slow.begun) {
            pthread_cond_wait(&slow.moved, &slow.lock);
            continue;
        }
        const int i = slow.done;
        pthread_mutex_unlock(&slow.lock);
        const off_t at = (off_t)slow.job[i].at;
        ssize_t n = slow.job[i].to ? pread(slow.file, slow.job[i].to, slow.job[i].bytes, at)
                                   : pwrite(slow.file, slow.job[i].from, slow.job[i].bytes, at);
        pthread_mutex_lock(&slow.lock);
        slow.failed = slow.failed || n != (ssize_t)slow.job[i].bytes;
        slow.done++;
        pthread_cond_broadcast(&slow.moved);
    }
    pthread_mutex_unlock(&slow.lock);
    return context;
}

static size_t begin_copy(size_t at, void *to, const void *from, size_t bytes)
{
    const double start = seconds(NULL);
    pthread_mutex_lock(&slow.lock);
    const int fits = slow.begun < COPIES;
    if (fits) {
        slow.end = (slow.end > start ? slow.end : start) + (double)bytes / slow.rate;
        slow.job[slow.begun].end = slow.end;
        slow.job[slow.begun].at = at;
        slow.job[slow.begun].bytes = bytes;
        slow.job[slow.begun].to = to;
        slow.job[slow.begun++].from = from;
    }
    pthread_cond_broadcast(&slow.moved);
    pthread_mutex_unlock(&slow.lock);
    return fits ? bytes : 0;
}

static size_t offload(void *user, size_t at, const void *from, size_t bytes)
{
    (void)user;
    return begin_copy(at, NULL, from, bytes);
}

static size_t reload(void *user, size_t at, void *to, size_t bytes)
{
    (void)user;
    return begin_copy(at, to, NULL, bytes);
}

static int wait_for(void *user, int later)
{
    pthread_mutex_lock(&slow.lock);
    const double end = slow.begun > later ? slow.job[slow.begun - later - 1].end : 0;
    while (slow.begun - slow.done > later)
        pthread_cond_wait(&slow.moved, &slow.lock);
    const double left = end - seconds(user);
    slow.waited += left > 0 ? left : 0;
    if (slow.done == slow.begun)
        slow.begun = slow.done = 0;
    const int failed = slow.failed;
    pthread_mutex_unlock(&slow.lock);
    return failed;
}

/* Prints a row of the table. */
static int print_row(bench *b, const size *z, gckpt_plan_desc d, const char *how, uint64_t update)
{
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    gckpt_exec_desc x = { .offload = offload, .reload = reload, .wait = wait_for };
    gckpt_plan *p = gckpt_plan_new(b->graph, &b->loss, 1, &d);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_exec *e = p ? gckpt_exec_new(p, b->store, info.offloaded ? &x : NULL) : NULL;
    double took[STEPS];
    if (!e)
        return fprintf(stderr, "overlap: %s\n", gckpt_error_text(p ? (void *)b->store : b->graph)), 0;
    for (int i = 0; i < STEPS; i++) {
        const double t = seconds(NULL);
        if (gckpt_step(e, b->feeds, 2, z->batch, &adamw, NULL) != GCKPT_OK)
            return fprintf(stderr, "overlap: %s\n", gckpt_error_text(e)), 0;
        took[i] = seconds(NULL) - t;
    }
    const double measured = 1e3 * median(took, STEPS);
    const double predicted = 1e-6 * (double)(info.step_cost + update);
    printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n", how,
           1e-6 * (double)info.arena, 1e-6 * (double)info.offloaded,
           1e-6 * (double)info.hidden_cost, predicted, measured, predicted / measured);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    return 1;
}

int main(int argc, char **argv)
{
    const double megabytes = argc > 1 ? atof(argv[1]) : 400;
    size z = { 6, 4, 256, 128, 8, 256, 0, 0 };
    bench b = { 0 };
    FILE *file = tmpfile();
    pthread_t thread;
    int status = 1;
    if (!file || megabytes <= 0 || !bench_new(&b, &z, GCKPT_STORE_ALL, 1))
        return fprintf(stderr, "overlap: no file, or no network\n"), 1;
    slow.file = fileno(file);
    slow.rate = megabytes * 1e6;
    if (pthread_create(&thread, NULL, copy_all, NULL))
        return 1;
    const int count = gckpt_id(b.loss.loss) + 1;
    gckpt_cost *costs = calloc((size_t)count, sizeof *costs);
    uint64_t update = 0;
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .threads = 1, .costs.by_id = costs, .costs.count = count };
    const tune_input input = { seconds, NULL, b.feeds, 2, z.batch, NULL };
    if (costs && tune_costs(b.store, b.plan, &input, costs, count, &update) == GCKPT_OK) {
        const size_t all = gckpt_plan_bytes(b.plan), arena = gckpt_plan_describe(b.plan).arena;
        printf("GPT of %d layers, width %d, context %d, batch %d, 1 thread; a file at %.0f MB/s\n\n", z.layers,
               z.dim, z.context, z.batch, megabytes);
        printf(
            "| | arena MB | offloaded | hidden ms | predicted ms | measured | ratio |\n|---|---|---|---|---|---|---|\n");
        status = !print_row(&b, &z, d, "all kept", update);
        for (int percent = 60; percent >= 30 && !status; percent -= 15) {
            char how[64];
            d.mode = GCKPT_OPTIMAL;
            d.budget = all - arena + arena / 100 * (size_t)percent;
            for (int way = 0; way < PLANS && !status; way++) {
                d.offload.bytes = way ? (size_t)1 << 30 : 0;
                d.offload.cost = (uint64_t)(1048576 / megabytes * 1e3);
                d.offload.overlap = way == 2;
                snprintf(how, sizeof how, "%d %%, %s", percent, way == 0 ? "computed again"
                         : way == 1 ? "copied, one after the other" : "copied beside");
                status = !print_row(&b, &z, d, how, update);
            }
        }
    }
    pthread_mutex_lock(&slow.lock);
    slow.ends = 1;
    pthread_cond_broadcast(&slow.moved);
    pthread_mutex_unlock(&slow.lock);
    pthread_join(thread, NULL);
    free(costs);
    bench_free(&b);
    fclose(file);
    return status;
}
