/* fastest.c - compares, for ten settings, the plan that fit_plan predicts to be fastest with the plan that
 * tune_fit finds to be fastest; recorded in docs/benchmarks/time.tsv.
 *
 *     make fastest                      prints the table
 *     build/fastest SECONDS             limits the trials of a setting to SECONDS
 *
 * Predictions are sums of the costs that tune_costs measured for each op, in a store-all plan of the whole batch.
 * Then both plans run whole steps alternately; medians of the processor time of the process are compared.
 */
#include "model.h"

enum { SETTINGS = 10, MOST_ROUNDS = 41, PLANS = 2 };

static const struct {
    size z;
    double part; /* budget as a part of the bytes of a store-all plan for the whole batch; 0 for no budget */
} settings[SETTINGS] = {
    { { 4, 4, 128, 64, 12, 256, 0, 0 }, 0 },    { { 4, 4, 128, 64, 12, 256, 0, 0 }, 0.4 },
    { { 2, 2, 64, 64, 64, 64, 1, 0 }, 0 },      { { 2, 2, 64, 64, 64, 64, 1, 0 }, 0.1 },
    { { 12, 4, 128, 64, 8, 256, 0, 0 }, 0 },    { { 12, 4, 128, 64, 8, 256, 0, 0 }, 0.52 },
    { { 4, 6, 384, 128, 8, 256, 1, 0 }, 0 },    { { 6, 6, 192, 256, 16, 256, 1, 0 }, 0 },
    { { 6, 6, 192, 256, 16, 256, 1, 0 }, 0.5 }, { { 6, 6, 192, 256, 16, 256, 1, 0 }, 0.2 },
};

static double seconds(void *user)
{
    (void)user;
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    return now();
}

/* Runs steps of all plans alternately, 7 to MOST_ROUNDS of each plan, as many as fit into `limit` seconds. Returns the
 * number of measured steps of each plan, or 0 on an error. */
static int step_all(bench *b, gckpt_exec *const *exec, double (*took)[MOST_ROUNDS], double limit)
{
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    int rounds = 0;
    double start = seconds(NULL);
    for (; rounds < 7 || (rounds < MOST_ROUNDS && seconds(NULL) - start < limit); rounds++)
        for (int i = 0; i < PLANS; i++)
            for (int warm = 0; warm < 2; warm++) { /* the first step warms up the caches, the second one is measured */
                double t = seconds(NULL);
                if (gckpt_step(exec[i], b->feeds, 2, b->z->batch, &adamw, NULL) != GCKPT_OK)
                    return 0;
                took[i][rounds] = seconds(NULL) - t;
            }
    return rounds;
}

/* Measures a setting and prints its row of the table. Returns 0 after printing an error. */
static int run(bench *b, const size *z, double part, double limit)
{
    static double took[PLANS][MOST_ROUNDS];
    gckpt_plan *plan[PLANS] = { NULL, NULL };
    gckpt_exec *exec[PLANS] = { NULL, NULL };
    uint64_t update = 0;
    if (!bench_new(b, z, GCKPT_STORE_ALL, 1))
        return 0;
    const int count = gckpt_id(b->loss.loss) + 1;
    gckpt_cost *costs = calloc((size_t)count, sizeof *costs);
    gckpt_plan_desc desc = { .budget = (size_t)(part * (double)gckpt_plan_bytes(b->plan)) };
    const tune_input input = { seconds, NULL, b->feeds, 2, z->batch, NULL };
    tune_timing timed = { .input = input, .limit = limit };
    tune_costs(b->store, b->plan, &input, costs, count, &update);
    gckpt_exec_free(b->exec);
    b->exec = NULL;
    plan[0] = fit_plan(b->store, bench_build, b, z->batch, &desc, NULL, NULL);
    plan[1] = tune_fit(b->store, bench_build, b, z->batch, &desc, NULL, &timed);
    for (int i = 0; i < PLANS && plan[i] != NULL; i++)
        exec[i] = gckpt_exec_new(plan[i], b->store, NULL);
    int rounds = exec[0] != NULL && exec[1] != NULL ? step_all(b, exec, took, limit) : 0;
    if (rounds == 0)
        fprintf(stderr, "fastest: %s\n", timed.error.text);
    for (int i = 0; i < PLANS && rounds > 0; i++) {
        const gckpt_plan *p = plan[i];
        const gckpt_plan_info info = gckpt_plan_describe(p);
        if (i == 0)
            printf("| %d x %d, T%d, B%d | ", z->layers, z->dim, z->context, z->batch);
        if (i == 0)
            printf(part > 0 ? "within %.1f MB |" : "no budget |", 1e-6 * (double)desc.budget);
        printf(" %dx%d | %.1f | %.1f %% | %.1f | %.1f |",
               (int)(info.batch / info.rows), (int)info.rows,
               1e-6 * (double)gckpt_plan_bytes(p), 100 * info.overhead,
               1e3 * predict(p, costs, update), 1e3 * median(took[i], rounds));
    }
    for (int i = 0; i < PLANS; i++) {
        gckpt_exec_free(exec[i]);
        gckpt_plan_free(plan[i]);
    }
    free(costs);
    if (rounds > 0)
        printf(" %d of %d |\n", timed.fastest + 1, timed.count);
    fflush(stdout);
    return rounds > 0;
}

int main(int argc, char **argv)
{
    const double limit = argc > 1 ? atof(argv[1]) : 20;
    int good = 1;
    printf("| layers x dim | budget | predicted best | MB | recomputed | predicted, ms | measured, ms "
           "| fastest | fastest: MB | fastest: recomputed | fastest: predicted, ms | fastest: measured, ms "
           "| trial |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < SETTINGS && good; i++) {
        bench b = { 0 };
        good = run(&b, &settings[i].z, settings[i].part, limit);
        bench_free(&b);
    }
    return !good;
}
