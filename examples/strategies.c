/* strategies.c - compares the strategies that trade time for memory on one network: their bytes
 * and their cost, while the loss stays the same to the last bit.
 *
 *     cc -O2 -I. examples/strategies.c -o strategies && ./strategies
 *     ./strategies 16          # a net of 16 layers instead of 48
 *
 * The net is a chain of residual layers, h + gelu(h W). A training step keeps every h for the
 * backward (store-all), or drops some of them and recomputes them. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "tune.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 256, WIDTH = 64, STRATEGIES = 8 };
/* REPEATS: how often each strategy is timed; STEPS: steps each time, of which the first one is not
 * timed. */
enum { REPEATS = 5, STEPS = 3, TIMES = REPEATS * (STEPS - 1) };

static float inputs[BATCH][WIDTH], targets[BATCH][WIDTH];

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term loss;
    gckpt_feed feeds[2];
} network;

/* Appends a layer to h. It is one segment for GCKPT_SEGMENTS. */
static gckpt_tensor *layer(gckpt_tensor *h, void *user)
{
    const gckpt_init normal = { 0.05f, 0, 0 };
    char name[16];
    snprintf(name, sizeof name, "w%d", *(const int *)user);
    gckpt_tensor *w = gckpt_param(gckpt_graph_of(h), name, gckpt_shape2(WIDTH, WIDTH), normal);
    return gckpt_add(h, gckpt_gelu(gckpt_linear(h, w, NULL)));
}

static network network_new(int layers)
{
    network n = { gckpt_store_new(NULL), NULL, { NULL, 1, 0 }, { { 0, inputs }, { 0, targets } } };
    n.graph = gckpt_graph_new(n.store, NULL);
    gckpt_tensor *x = gckpt_input(n.graph, "x", GCKPT_F32, gckpt_shape2(BATCH, WIDTH)), *h = x;
    gckpt_tensor *y = gckpt_input(n.graph, "y", GCKPT_F32, gckpt_shape2(BATCH, WIDTH));
    for (int i = 0; i < layers; i++)
        h = gckpt_checkpoint(layer, h, &i);
    n.loss.loss = gckpt_mean_squared_error(h, y, NULL);
    n.feeds[0].input = gckpt_id(x);
    n.feeds[1].input = gckpt_id(y);
    return n;
}

static void network_free(network *n)
{
    gckpt_graph_free(n->graph);
    gckpt_store_free(n->store);
}

static gckpt_plan *plan(const network *n, gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc desc = { .mode = mode, .budget = budget };
    return gckpt_plan_new(n->graph, &n->loss, 1, &desc);
}

/* Returns the point of the frontier with fewest bytes whose recomputation costs at most the
 * fraction `most` of the forward or, if over_forward_only is 0, of forward and backward. */
static gckpt_point cheapest(const gckpt_frontier *f, double most, int over_forward_only)
{
    gckpt_point p = { 0, 0, 0, 0, 0 };
    for (int i = 0; gckpt_frontier_get(f, i, &p) == GCKPT_OK; i++)
        if ((over_forward_only ? p.recompute : p.overhead) <= most)
            break;
    return p;
}

static gckpt_frontier *frontier(const network *n)
{
    return gckpt_frontier_new(n->graph, &n->loss, 1, NULL);
}

static double seconds(void *unused)
{
    struct timespec t;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the strategies side by side ---- */
typedef struct {
    const char *name;
    gckpt_mode mode;
    /* budget, as a fraction of the range from the least possible bytes to store-all's; below 0 for
     * no budget */
    double fraction;
    network net; /* a separate network for each strategy, with the same initial weights */
    gckpt_plan *plan;
    gckpt_exec *exec;
    double time[TIMES], predicted[REPEATS];
    gckpt_report last;
} strategy;

static int smaller(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, smaller);
    return values[n / 2];
}

/* Measures the time of every op of the store-all plan. The predicted time of any other plan is a
 * sum of these times. */
static int predict(strategy *all, int repeat)
{
    const int ids = gckpt_id(all[0].net.loss.loss) + 1;
    gckpt_cost *costs = calloc((size_t)ids, sizeof *costs);
    uint64_t update = 0;
    const tune_input input = { seconds, NULL, all[0].net.feeds, 2, BATCH, NULL };
    int good = costs != NULL && tune_costs(all[0].net.store, all[0].plan, &input, costs, ids,
                                           &update) == GCKPT_OK;
    for (int i = 0; i < STRATEGIES && good; i++) {
        uint64_t nanoseconds = update;
        gckpt_instruction in;
        for (int k = 0; gckpt_plan_get(all[i].plan, k, &in) == GCKPT_OK; k++)
            if (in.kind <= GCKPT_BACKWARD)
                nanoseconds +=
                    in.kind == GCKPT_FORWARD ? costs[in.id].forward : costs[in.id].backward;
        all[i].predicted[repeat] = 1e-9 * (double)nanoseconds;
    }
    free(costs);
    return good;
}

static int compare(int layers)
{
    static strategy all[STRATEGIES] = {
        { .name = "store-all", .mode = GCKPT_STORE_ALL, .fraction = -1 },
        { .name = "segments", .mode = GCKPT_SEGMENTS, .fraction = -1 },
        { .name = "sqrt", .mode = GCKPT_SQRT, .fraction = -1 },
        { .name = "memory-poor", .mode = GCKPT_MEMORY_POOR, .fraction = -1 },
        { .name = "budget 1/2", .fraction = 0.5 },
        { .name = "budget 1/4", .fraction = 0.25 },
        { .name = "budget 1/8", .fraction = 0.125 },
        { .name = "least budget", .fraction = 0 }
    };
    const gckpt_hyper adamw = gckpt_hyper_lr(1e-3f);
    int good = 1;
    network any = network_new(layers);
    gckpt_frontier *f = frontier(&any);
    gckpt_point least = { 0, 0, 0, 0, 0 }, most = least;
    gckpt_frontier_get(f, 0, &least);
    gckpt_frontier_get(f, gckpt_frontier_describe(f).points - 1, &most);
    gckpt_frontier_free(f);
    network_free(&any);
    for (int i = 0; i < STRATEGIES && good; i++) {
        strategy *s = &all[i];
        s->net = network_new(layers);
        size_t between = s->fraction < 0 ? 0 : (size_t)(s->fraction * (double)(most.bytes - least.bytes));
        size_t budget = s->fraction < 0 ? 0 : least.bytes + between;
        s->plan = plan(&s->net, s->mode, budget);
        s->exec = s->plan == NULL ? NULL : gckpt_exec_new(s->plan, s->net.store, NULL);
        good = s->exec != NULL;
        if (!good)
            fprintf(stderr, "strategies: %s: %s\n", s->name, gckpt_error_text(s->net.graph));
    }
    /* strategies are timed in turn, so that other load on the machine affects all of them; the
     * first step of each turn warms the caches */
    for (int repeat = 0; repeat < REPEATS && good; repeat++) {
        for (int i = 0; i < STRATEGIES * STEPS && good; i++) {
            strategy *s = &all[i / STEPS];
            double start = seconds(NULL);
            good = gckpt_step(s->exec, s->net.feeds, 2, BATCH, &adamw, &s->last) == GCKPT_OK;
            if (i % STEPS > 0)
                s->time[repeat * (STEPS - 1) + i % STEPS - 1] = seconds(NULL) - start;
        }
        good = good && predict(all, repeat);
    }
    printf("%d layers of width %d, batch %d; step arena = activations and gradients\n\n"
           "strategy       arena bytes  recomputed  predicted  measured  loss after %d steps, its "
           "bits\n",
           layers, WIDTH, BATCH, REPEATS * STEPS);
    for (int i = 0; i < STRATEGIES && good; i++) {
        strategy *s = &all[i];
        const gckpt_plan_info info = gckpt_plan_describe(s->plan);
        uint64_t bits;
        memcpy(&bits, &s->last.loss, sizeof bits);
        printf("%-13s %12zu %10.1f%% %7.2f ms %6.2f ms  %.9f %016llx\n", s->name,
               info.arena, 100 * info.recompute,
               1e3 * median(s->predicted, REPEATS), 1e3 * median(s->time, TIMES), s->last.loss,
               (unsigned long long)bits);
        good = memcmp(&s->last.loss, &all[0].last.loss, sizeof bits) == 0 &&
               gckpt_store_hash(s->net.store) == gckpt_store_hash(all[0].net.store);
    }
    printf(good ? "\nThe losses, and all weights, are the same bits.\n" : "\nFAILED\n");
    for (int i = 0; i < STRATEGIES; i++) {
        gckpt_exec_free(all[i].exec);
        gckpt_plan_free(all[i].plan);
        network_free(&all[i].net);
    }
    return good;
}

/* ---- bytes over depth ---- */
/* Returns the bytes that are the same in every plan: weights, their gradients and the optimiser's
 * state. */
static size_t fixed_bytes(const gckpt_plan *p, int layers)
{
    return gckpt_plan_bytes(p) - gckpt_plan_describe(p).arena +
           (size_t)(layers * WIDTH * WIDTH) * sizeof(float);
}

static void print_depths(int most)
{
    const double unit = BATCH * WIDTH * sizeof(float); /* bytes of one activation tensor */
    printf("\nActivations and their gradients over depth, in tensors of %.0f bytes\n\n"
           "layers  store-all  sqrt  its recompute  optimal, one more forward\n",
           unit);
    for (int root = 2; root * root <= most; root++) {
        network n = network_new(root * root);
        gckpt_plan *all = plan(&n, GCKPT_STORE_ALL, 0), *chen = plan(&n, GCKPT_SQRT, 0);
        gckpt_frontier *f = frontier(&n);
        const double fixed = (double)fixed_bytes(all, root * root);
        printf("%6d %10.1f %5.1f %13.0f%% %26.1f\n", root * root,
               ((double)gckpt_plan_bytes(all) - fixed) / unit,
               ((double)gckpt_plan_bytes(chen) - fixed) / unit, 100 * gckpt_plan_describe(chen).recompute,
               ((double)cheapest(f, 1, 1).bytes - fixed) / unit);
        gckpt_frontier_free(f);
        gckpt_plan_free(chen);
        gckpt_plan_free(all);
        network_free(&n);
    }
}

/* ---- published trade-offs ---- */
static void published(int layers)
{
    network n = network_new(layers);
    gckpt_plan *all = plan(&n, GCKPT_STORE_ALL, 0);
    gckpt_frontier *f = frontier(&n);
    const size_t fixed = fixed_bytes(all, layers);
    const double activations = (double)(gckpt_plan_bytes(all) - fixed);
    static const struct {
        const char *what;
        double memory, time;
    } theirs[] = { { "Chen 2016, 1000-layer ResNet: 48 GB to 7 GB", 7.0 / 48, 0.30 },
                   { "rule of thumb: half the memory", 0.5, 1.0 / 3 } };
    printf("\nPublished trade-offs, and ours on %d layers. The networks differ, so this compares "
           "shapes, not\nsystems: our memory is that of activations and their gradients, our time "
           "the work of the model.\n\n%-44s  %-14s %-17s %s\n",
           layers, "", "theirs", "ours, as small", "ours, as slow");
    for (int i = 0; i < 2; i++) {
        gckpt_point small, slow = cheapest(f, theirs[i].time, 0);
        int at = gckpt_frontier_find(f, fixed + (size_t)(theirs[i].memory * activations));
        printf("%-44s  %3.0f%% at +%2.0f%%", theirs[i].what, 100 * theirs[i].memory,
               100 * theirs[i].time);
        if (gckpt_frontier_get(f, at, &small) == GCKPT_OK)
            printf("    %3.0f%% at +%2.0f%%", 100 * (double)(small.bytes - fixed) / activations,
                   100 * small.overhead);
        else
            printf("    not possible ");
        printf("    %3.0f%% at +%2.0f%%\n", 100 * (double)(slow.bytes - fixed) / activations,
               100 * slow.overhead);
    }
    gckpt_frontier_free(f);
    gckpt_plan_free(all);
    network_free(&n);
}

int main(int argc, char **argv)
{
    int layers = argc > 1 ? atoi(argv[1]) : 48;
    if (layers < 4 || layers > 400 || argc > 2) {
        if (argc != 2 || (strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0)) {
            fprintf(stderr, "strategies: %s: allowed is one number of layers, 4 to 400; see --help\n",
                    argv[argc - 1]);
            return 2;
        }
        printf("strategies - compares the planner's strategies on a deep network\n\n"
               "Usage: strategies [LAYERS]\n\n"
               "LAYERS is the number of layers, 4 to 400 (default 48).\n\n"
               "Example:\n"
               "    strategies 100\n");
        return fflush(stdout) != 0;
    }
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < WIDTH; k++) {
            inputs[i][k] = (float)((i * 31 + k * 17) % 23) / 11 - 1;
            targets[i][k] = inputs[i][(k + 1) % WIDTH] * inputs[i][(k + 7) % WIDTH];
        }
    if (!compare(layers))
        return 1;
    print_depths(2 * layers);
    published(layers);
    return fflush(stdout) != 0;
}
