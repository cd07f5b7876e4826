/* ablate.c - compares two versions of the planner's search: bytes and cost of plans for the networks of plans.c and
 * for random graphs, at budgets from the proven minimum to store-all's bytes.
 *
 *     build/ablate > before.csv                  prints a line with the cost for each budget, and times
 *     build/ablate before.csv > after.csv        also prints the differences to stderr
 *     build/ablate --only "GPT-2 124M B4" 60     prints one of these lines
 *
 * A cost is a share of a step without recomputes; it is empty if there is no plan. The last line of each graph has the
 * least bytes of a plan instead of a cost. */
#include "graphs.h"

#include <stdlib.h>
#include <time.h>

#define PLAN_CHECK_OFF "plans are timed"
#include "search/synthetic.h"

enum { NETS = 14, GRAPHS = 500, BUDGET_PARTS = 12, LINES = 8192 };

/* budgets, as their distance from the proven minimum in 1/1000 of the distance from there to store-all's bytes */
static const int budget_parts[BUDGET_PARTS] = {
    0, 10, 20, 35, 60, 90, 130, 200, 300, 450, 650, 850
};

typedef struct {
    char name[64];
    int budget_part; /* -1 for the least bytes */
    double figure;   /* overhead or bytes of the plan; negative if there is no plan */
} line;

typedef struct {
    line *lines;
    int count;
    double seconds;
} table;

static table now, before;
static int repeats, graphs;
static const char *only; /* name of the only network, or NULL */
static int only_part;    /* its only budget */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void record(const char *name, int share, double figure)
{
    line *l = &now.lines[now.count];
    if (now.count++ == LINES)
        exit(2);
    snprintf(l->name, sizeof l->name, "%s", name);
    l->budget_part = share;
    l->figure = figure;
    printf("%s,%d,%.12g\n", name, share, figure);
}

/* Plans the graph for every apart-th budget, and for the least bytes; with --only, for one of them. */
static void plan_all(const char *name, const net *n, const gckpt_plan_desc *request, int apart)
{
    gckpt_plan_desc d = *request;
    d.mode = GCKPT_STORE_ALL;
    d.budget = 0;
    gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &d);
    const size_t all = gckpt_plan_bytes(p), proven = gckpt_plan_describe(p).proven_bytes;
    double figure[BUDGET_PARTS + 1] = { 0 }, best = 1e9;
    gckpt_plan_free(p);
    d.mode = GCKPT_OPTIMAL;
    for (int again = 0; again < repeats; again++) {
        double start = seconds();
        for (int k = 0; k < BUDGET_PARTS; k += apart) {
            if (only && budget_parts[k] != only_part)
                continue;
            d.budget = proven + (size_t)((double)(all - proven) * budget_parts[k] / 1000);
            p = gckpt_plan_new(n->graph, &n->loss, 1, &d);
            figure[k] = p ? gckpt_plan_describe(p).overhead : -1;
            gckpt_plan_free(p);
        }
        d.budget = 1;
        p = only && only_part >= 0 ? NULL : gckpt_plan_new(n->graph, &n->loss, 1, &d);
        const char *said = strstr(gckpt_error_text(n->graph), "at least ");
        figure[BUDGET_PARTS] = said ? strtod(said + 9, NULL) : -1;
        gckpt_plan_free(p);
        start = seconds() - start;
        best = start < best ? start : best;
    }
    for (int k = 0; k < BUDGET_PARTS; k += apart)
        if (!only || budget_parts[k] == only_part)
            record(name, budget_parts[k], figure[k]);
    if (!only || only_part < 0)
        record(name, -1, figure[BUDGET_PARTS]);
    if (!only)
        printf("%s,time,%.6f\n", name, best);
    now.seconds += best;
}

/* Sets the speed of copies to slower memory for a processor with 50 TFLOP/s, as tests/bench/offload.c does. */
static void add_offload(gckpt_plan_desc *d, double gigabytes)
{
    d->offload.bytes = SIZE_MAX;
    d->offload.cost = (uint64_t)(50e12 / (gigabytes * 1e9) * 1048576);
}

enum { AS_BUILT = 1, CHOSEN = 2, OFFLOAD = 4, OVERLAP = 8 }; /* requests */

/* Builds network i. Returns 0 on an error. */
static int build(net *n, int i, const char *name)
{
    gpt_size four = gpt2_124m, xl = { 48, 25, 1600, 1024, 50257, 1 }, deep = gpt2_124m;
    four.batch = 4;
    deep.layers = 1000;
    switch (i) {
    case 0: return net_gpt(n, name, &four);
    case 1: return net_gpt(n, name, &gpt2_124m);
    case 2: return net_encoder_decoder(n, name, 6);
    case 3: return net_unet(n, name);
    case 4: return net_mlp(n, name, 64);
    case 5: return net_gpt(n, name, &gpt_mcu);
    case 6: return net_llama(n, name, 1024, 0);
    case 7: return net_gpt(n, name, &xl);
    case 8: return net_vit(n, name);
    case 9: return net_convnext(n, name);
    case 10: return net_diffusion(n, name);
    case 11: return net_llama(n, name, 1024, 16);
    case 12: return net_mlp(n, name, 1000);
    default: return net_gpt(n, name, &deep);
    }
}

static void networks(void)
{
    static const struct {
        const char *name;
        int requests, apart; /* every apart-th budget */
    } nets[NETS] = {
        { "GPT-2 124M B4", 15, 1 },  { "GPT-2 124M B1", 15, 1 },    { "encoder-decoder", 15, 1 },
        { "U-Net", 13, 1 },          { "MLP 64", AS_BUILT, 1 },     { "tiny GPT", 15, 1 },
        { "SmolLM2 135M", 15, 1 },   { "GPT-2 1.5B", AS_BUILT, 1 }, { "ViT-B", 3, 1 },
        { "ConvNeXt-T", 3, 1 },      { "diffusion", 3, 1 },         { "LoRA", 3, 1 },
        { "MLP 1000", AS_BUILT, 3 }, { "GPT 1000", AS_BUILT, 9 }
    };
    static const char *const suffix[] = { "", " chosen", " offload", " overlap" };
    for (int i = 0; i < NETS; i++) {
        const char *name = nets[i].name;
        net n;
        if (only ? strncmp(only, name, strlen(name)) != 0 : graphs < GRAPHS && i == NETS - 1)
            continue;
        const int good = build(&n, i, name);
        for (int k = 0; k < 4 && good; k++) {
            gckpt_plan_desc d = net_desc(&n, GCKPT_OPTIMAL);
            char title[64];
            snprintf(title, sizeof title, "%s%s", name, suffix[k]);
            if (!(nets[i].requests >> k & 1) || (only && strcmp(only, title) != 0))
                continue;
            d.schedule.as_built = 1 << k == AS_BUILT;
            d.offload.overlap = 1 << k == OVERLAP;
            if (1 << k == OFFLOAD || 1 << k == OVERLAP)
                add_offload(&d, 1 << k == OFFLOAD ? 450 : 55);
            plan_all(title, &n, &d, nets[i].apart);
        }
        net_free(&n);
    }
}

/* Does the same as plan_all through a frontier, so that the work that all budgets share is done only once. */
static void trace(const char *name, gckpt_graph *g, const gckpt_term *terms, int count,
                  const gckpt_plan_desc *request)
{
    double best = 1e9;
    for (int again = 0; again < repeats; again++) {
        double start = seconds();
        gckpt_frontier *f = gckpt_frontier_new(g, terms, count, request);
        gckpt_point at = { 0 };
        start = seconds() - start;
        best = start < best ? start : best;
        gckpt_frontier_get(f, gckpt_frontier_describe(f).points - 1, &at);
        const size_t proven = gckpt_frontier_describe(f).proven_bytes, all = at.bytes;
        for (int k = 0; k < BUDGET_PARTS && again == 0; k++) {
            size_t budget = proven + (size_t)((double)(all - proven) * budget_parts[k] / 1000);
            int i = gckpt_frontier_find(f, budget);
            record(name, budget_parts[k],
                   gckpt_frontier_get(f, i, &at) == GCKPT_OK ? at.overhead : -1);
        }
        if (again == 0) {
            gckpt_frontier_get(f, 0, &at);
            record(name, -1, (double)at.bytes);
        }
        gckpt_frontier_free(f);
    }
    printf("%s,time,%.6f\n", name, best);
    now.seconds += best;
}

/* Plans random graphs of five kinds, a fifth of them with offloading. */
static void random_graphs(void)
{
    for (int i = 0; i < graphs; i++) {
        char name[64];
        random_state = (uint64_t)i * 0x9e3779b97f4a7c15u + 77;
        int n = i % 6 ? between(12, 50) : between(50, 100), kind = i % 5;
        if (kind == 0)
            skip_chain(n, chance(50) ? 30 : 5, between(2, 40), 1);
        else if (kind == 1)
            large_graph(n, 0, between(2, 40));
        else if (kind == 2)
            large_graph(n, 1, between(2, 40));
        else if (kind == 3)
            random_graph(n / 4 + 4);
        else
            flagged_graph(n, between(2, 12), between(1, 16), (uint64_t)between(1, 20));
        m.d.kernels.alignment = (size_t)FLOAT_BYTES << below(6);
        if (chance(20)) {
            m.d.offload.bytes = (size_t)between(1, 100) * 16;
            m.d.offload.cost = (uint64_t)between(1, 200000);
        }
        snprintf(name, sizeof name, "random %d%s", i, m.d.offload.bytes ? " offload" : "");
        trace(name, m.g, m.term, m.terms, &m.d);
        synth_free();
    }
}

static void read_before(const char *path)
{
    char text[128];
    FILE *f = fopen(path, "r");
    before.lines = (line *)calloc(LINES, sizeof(line));
    for (; f && fgets(text, sizeof text, f) && before.count < LINES;) {
        line *l = &before.lines[before.count];
        double time;
        if (sscanf(text, "%63[^,],time,%lf", l->name, &time) == 2)
            before.seconds += time;
        else if (sscanf(text, "%63[^,],%d,%lf", l->name, &l->budget_part, &l->figure) == 3)
            before.count++;
    }
    if (f)
        fclose(f);
}

/* Compares costs or bytes of both versions at the same budgets, and prints the number of worse ones, and by how much
 * they are worse. lost: number of budgets that only the old version has a plan for. */
static void compare(int first, int last, const char *what)
{
    int changed = 0, worse = 0, bad = 0, lost = 0, found = 0, points = 0, larger = 0, smaller = 0;
    double worst = 0, best = 0, mean = 0, most = 0;
    const char *where = "", *where_most = "";
    for (int k = first; k < last; k++) {
        const line *a = &before.lines[k], *b = &now.lines[k];
        if (strcmp(a->name, b->name) || a->budget_part != b->budget_part) {
            fprintf(stderr, "%s: other graphs\n", what);
            return;
        }
        if (a->budget_part < 0) {
            double ratio = b->figure / a->figure - 1;
            larger += ratio > 0, smaller += ratio < 0;
            if (ratio > most)
                most = ratio, where_most = a->name;
            continue;
        }
        if (a->figure < -0.5 || b->figure < -0.5) {
            lost += a->figure > -0.5, found += b->figure > -0.5;
            continue;
        }
        double more = b->figure - a->figure;
        points++;
        changed += more > 1e-8 || more < -1e-8;
        worse += more > 1e-8;
        bad += more > 0.01;
        mean += more;
        best = more < best ? more : best;
        if (more > worst)
            worst = more, where = a->name;
    }
    fprintf(
        stderr,
        "  %-9s %d of %d changed, %d more work, %d by 1 %%; mean %+.4f %%, worst %+.2f %% (%s), "
        "best %+.2f %%; lost %d, found %d; least bytes: %d more (worst %+.2f %%, %s), %d less\n",
        what, changed, points, worse, bad, points ? 100 * mean / points : 0, 100 * worst, where,
        100 * best, lost, found, larger, 100 * most, where_most, smaller);
}

int main(int argc, char **argv)
{
    now.lines = (line *)calloc(LINES, sizeof(line));
    repeats = getenv("REPEATS") ? atoi(getenv("REPEATS")) : 1;
    graphs = getenv("GRAPHS") ? atoi(getenv("GRAPHS")) : GRAPHS;
    if (argc == 4 && strcmp(argv[1], "--only") == 0) {
        only = argv[2];
        only_part = atoi(argv[3]);
        networks();
        return now.count != 1;
    }
    networks();
    int nets = now.count;
    double nets_seconds = now.seconds;
    random_graphs();
    if (argc > 1) {
        read_before(argv[1]);
        compare(0, nets, "networks");
        compare(nets, now.count, "random");
        fprintf(stderr, "  %.3f s before\n", before.seconds);
    }
    fprintf(stderr, "  %.3f s (%.3f networks)\n", now.seconds, nets_seconds);
    return 0;
}
