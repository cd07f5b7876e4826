/* predict.c - compares the time of a step that tune_costs predicts with the measured time, at five budgets of a
 * GPT from the least bytes to store-all; recorded in docs/benchmarks/time.tsv.
 *
 *     make predict                                         prints the table
 *     build/predict LAYERS DIM CONTEXT BATCH THREADS [HEADS VOCABULARY]       measures another size
 *     build/predict-cuda ...                               measures on the first CUDA device
 *
 * Calibration and measurement alternate round by round, and so do the budgets within a round, so that other programs
 * slow all of them alike; medians over the rounds are compared. With one thread the clock is the processor time of
 * the process.
 */
#include "model.h"

enum { POINTS = 5, MOST_ROUNDS = 41 };

typedef struct {
    size_t budget;
    gckpt_plan *plan;
    gckpt_exec *exec;
    double predicted[MOST_ROUNDS], measured[MOST_ROUNDS], wall[MOST_ROUNDS];
} point;

/* Returns the time in seconds of the clock whose id `user` points to. */
static double seconds(void *user)
{
    struct timespec t;
    clock_gettime(*(const clockid_t *)user, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static clockid_t the_clock = CLOCK_PROCESS_CPUTIME_ID;         /* with one thread */
/* budgets: parts of the distance from the least bytes to those of store-all */
static const double budget_parts[POINTS] = { 0, 0.05, 0.15, 0.4, 1 };

/* Makes the plan and executor of a point: within `budget` bytes, with the measured costs. */
static int plan_point(bench *b, point *q, size_t budget, gckpt_cost *costs, int count, int threads)
{
    gckpt_plan_desc desc = { .budget = budget, .threads = threads, .costs.by_id = costs,
            .costs.count = count, .backend = bench_backend };
    const gckpt_exec_desc how = { .backend = bench_backend };
    q->budget = budget;
    q->plan = gckpt_plan_new(b->graph, &b->loss, 1, &desc);
    q->exec = q->plan == NULL ? NULL : gckpt_exec_new(q->plan, b->store, &how);
    return q->exec != NULL;
}

/* Returns the least bytes of a plan whose ops run as built, since the costs were measured for ops as built. */
static size_t least_bytes(bench *b, int threads)
{
    gckpt_plan_desc desc = { .threads = threads, .schedule.as_built = 1, .backend = bench_backend };
    gckpt_frontier *f = gckpt_frontier_new(b->graph, &b->loss, 1, &desc);
    gckpt_point least = { 0, 0, 0, 0, 0 };
    gckpt_frontier_get(f, 0, &least);
    gckpt_frontier_free(f);
    return least.bytes;
}

static int calibrate(bench *b, const size *z, gckpt_cost *costs, int count, uint64_t *update)
{
    const gckpt_exec_desc how = { .backend = bench_backend };
    const tune_input input = { seconds, &the_clock, b->feeds, 2, z->batch, &how };
    return tune_costs(b->store, b->plan, &input, costs, count, update) == GCKPT_OK;
}

static int run(bench *b, const size *z, point *points, gckpt_cost *costs, int count, int threads)
{
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    uint64_t update = 0;
    size_t least = least_bytes(b, threads), most = gckpt_plan_bytes(b->plan);
    if (!calibrate(b, z, costs, count, &update))
        return fprintf(stderr, "predict: %s\n", gckpt_error_text(b->store)), 1;
    for (int i = 0; i < POINTS; i++) {
        size_t budget = least + (size_t)(budget_parts[i] * (double)(most - least));
        if (!plan_point(b, &points[i], budget, costs, count, threads))
            return fprintf(stderr, "predict: %s\n", gckpt_error_text(b->graph)), 1;
    }
    double start = now();
    int rounds = 0;
    for (; rounds < 5 || (rounds < MOST_ROUNDS && now() - start < 30); rounds++) {
        if (!calibrate(b, z, costs, count, &update))
            return fprintf(stderr, "predict: %s\n", gckpt_error_text(b->store)), 1;
        for (int i = 0; i < POINTS; i++) {
            point *q = &points[i];
            q->predicted[rounds] = predict(q->plan, costs, update);
            for (int warm = 0; warm < 2; warm++) { /* the first step warms up the caches, the second one is measured */
                double t = seconds(&the_clock), wall = now();
                if (gckpt_step(q->exec, b->feeds, 2, z->batch, &adamw, NULL) != GCKPT_OK)
                    return fprintf(stderr, "predict: %s\n", gckpt_error_text(q->exec)), 1;
                q->measured[rounds] = seconds(&the_clock) - t;
                q->wall[rounds] = now() - wall;
            }
        }
    }
    printf(
        "GPT of %d layers, width %d, context %d, batch %d, %d thread%s; medians of %d rounds\n\n",
        z->layers, z->dim, z->context, z->batch, threads, threads == 1 ? "" : "s", rounds);
    printf("| budget | bytes | recomputed | predicted, ms | measured, ms | ratio | wall clock, ms |\n");
    printf("|---|---|---|---|---|---|---|\n");
    int good = 1;
    for (int i = 0; i < POINTS; i++) {
        double p = median(points[i].predicted, rounds), m = median(points[i].measured, rounds);
        good = good && p / m > 0.9 && p / m < 1.1;
        printf("| %zu | %zu | %.1f %% | %.2f | %.2f | %.3f | %.2f |\n", points[i].budget,
               gckpt_plan_bytes(points[i].plan), 100 * gckpt_plan_describe(points[i].plan).overhead, 1e3 * p,
               1e3 * m, p / m, 1e3 * median(points[i].wall, rounds));
    }
    printf("\nThe update and the checks are %.2f ms of each. %s\n", 1e-6 * (double)update,
           good ? "All within 10 %." : "NOT all within 10 %.");
    return !good;
}

int main(int argc, char **argv)
{
    static point points[POINTS];
    size z = { 12, 4, 128, 64, 8, 256, 0, 0 };
    int threads = 1, status = 1;
    bench b = { 0 };
    if (argc == 6 || argc == 8) {
        z.layers = atoi(argv[1]), z.dim = atoi(argv[2]), z.context = atoi(argv[3]);
        z.batch = atoi(argv[4]), threads = atoi(argv[5]);
        z.heads = argc == 8 ? atoi(argv[6]) : z.heads;
        z.vocabulary = argc == 8 ? atoi(argv[7]) : z.vocabulary;
    } else if (argc != 1) {
        fprintf(stderr, "usage: predict [LAYERS DIM CONTEXT BATCH THREADS [HEADS VOCABULARY]]\n");
        return 2;
    }
#ifdef BENCH_CUDA
    const char *error;
    bench_backend = gckpt_cuda_backend(0, &error);
    if (bench_backend == NULL)
        return fprintf(stderr, "predict: %s\n", error), 1;
#endif
    if (threads != 1 || bench_backend != NULL)
        the_clock = CLOCK_MONOTONIC;
    if (bench_new(&b, &z, GCKPT_STORE_ALL, threads)) {
        const int count = gckpt_id(b.loss.loss) + 1;
        gckpt_cost *costs = calloc((size_t)count, sizeof *costs);
        if (costs != NULL)
            status = run(&b, &z, points, costs, count, threads);
        free(costs);
    }
    for (int i = 0; i < POINTS; i++) {
        gckpt_exec_free(points[i].exec);
        gckpt_plan_free(points[i].plan);
    }
    bench_free(&b);
    return status;
}
