/* plans.c - bytes against time for every way to plan, on networks of real size, and how long
 * planning takes. Nothing is run; all figures are those of plans.
 *
 *     build/plans docs/plans.md docs/plans.svg       (or: make plans)
 */
#define _POSIX_C_SOURCE 200809L
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "graphs.h"
#include "rotor.h"
#include "plot.h"
#include <time.h>

enum { STORE_ALL, PER_BLOCK, SQRT, ROTOR, ROTOR_OPTIONS, OPTIMAL, PLANNERS, NETS = 6, EXTRAS = 7 };
static const char *const planners[PLANNERS] = { "store-all", "per block",          "sqrt",
                                                "rotor",     "rotor with options", "optimal" };
static const double extras[EXTRAS] = { 0, 0.05, 0.10, 0.15, 0.17, 0.20, 0.33 };

/* Megabytes for GPT-2 at batch 4 at +10, 15, 17, 20 %, and the least. */
enum { GOALS = 5 };
static const struct {
    double extra, megabytes;
} goals[GOALS] = { { 0.10, 840 }, { 0.15, 403 }, { 0.17, 316 }, { 0.20, 280 }, { 1e9, 139 } };

/* How long planning a network takes, in milliseconds. */
typedef struct {
    char name[40];
    int ops;
    double plain, budget;
} timing;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* The fewest bytes at no more than this extra time; NULL: nothing is that fast. */
static const point *at_most(const curve *c, double extra)
{
    const point *best = NULL;
    for (int i = c->n; i-- > 0;) /* fewer bytes towards 0 */
        if (c->p[i].overhead <= extra + 1e-9)
            best = &c->p[i];
    return best;
}

static int one_plan(const net *n, gckpt_mode mode, curve *c)
{
    gckpt_plan_desc desc = net_desc(n, mode);
    gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    if (p == NULL) {
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
        return 0;
    }
    curve_add(c, net_bytes(p), gckpt_plan_overhead(p));
    gckpt_plan_free(p);
    return 1;
}

/* All points of the optimal planner: the budget is always one byte below what the last plan took,
 * until nothing fits. */
static int optimal(const net *n, curve *c)
{
    gckpt_plan_desc desc = net_desc(n, GCKPT_OPTIMAL);
    for (;;) {
        gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
        if (p == NULL)
            break;
        curve_add(c, net_bytes(p), gckpt_plan_overhead(p));
        desc.budget = gckpt_plan_bytes(p) - 1;
        gckpt_plan_free(p);
    }
    if (gckpt_error(n->graph) != GCKPT_E_BUDGET)
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
    return gckpt_error(n->graph) == GCKPT_E_BUDGET;
}

static int all_planners(const net *n, curve *c)
{
    int good = one_plan(n, GCKPT_STORE_ALL, &c[STORE_ALL]) &&
               one_plan(n, GCKPT_SEGMENTS, &c[PER_BLOCK]) && one_plan(n, GCKPT_SQRT, &c[SQRT]) &&
               optimal(n, &c[OPTIMAL]);
    if (!good)
        return 0;
    c[ROTOR] = rotor_curve(n, 0);
    c[ROTOR_OPTIONS] = rotor_curve(n, 1);
    curve_finish(&c[OPTIMAL]);
    for (int k = 0; k < PLANNERS; k++)
        if (c[k].n == 0)
            return 0;
    return 1;
}

/* Times a store-all plan, and one in a quarter of its bytes. */
static int measure(const net *n, timing *t)
{
    gckpt_plan_desc desc = net_desc(n, GCKPT_STORE_ALL);
    gckpt_instruction ins;
    double start = now();
    gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    t->plain = now() - start;
    snprintf(t->name, sizeof t->name, "%s", n->name);
    for (int i = 0; gckpt_plan_get(p, i, &ins) == GCKPT_OK; i++)
        t->ops += ins.kind == GCKPT_FORWARD;
    desc.mode = GCKPT_OPTIMAL;
    desc.budget = gckpt_plan_bytes(p) - net_bytes(p) / 4 * 3;
    gckpt_plan_free(p);
    start = now();
    p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    t->budget = now() - start;
    if (p == NULL)
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
    gckpt_plan_free(p);
    return p != NULL;
}

/* ---- what is written ---- */
static void print_table(FILE *f, const net *n, const curve *c)
{
    double unit = c[STORE_ALL].p[0].bytes < 1000000 ? 1e3 : 1e6;
    fprintf(f, "\n### %s, %s\n\n| planner |", n->name, unit < 1e4 ? "KB" : "MB");
    for (int x = 0; x < EXTRAS; x++)
        fprintf(f, " +%.0f %% |", 100 * extras[x]);
    fprintf(f, " least |\n|---|");
    for (int x = 0; x <= EXTRAS; x++)
        fprintf(f, "---|");
    for (int k = 0; k < PLANNERS; k++) {
        fprintf(f, "\n| %s%s%s |", k == OPTIMAL ? "**" : "", planners[k], k == OPTIMAL ? "**" : "");
        for (int x = 0; x < EXTRAS; x++) {
            const point *p = at_most(&c[k], extras[x]);
            if (p != NULL)
                fprintf(f, " %.1f |", (double)p->bytes / unit);
            else
                fprintf(f, " |");
        }
        fprintf(f, " %.1f at +%.1f %% |", (double)c[k].p[0].bytes / unit, 100 * c[k].p[0].overhead);
    }
    fprintf(f, "\n");
}

static void print_timings(FILE *f, const timing *t, int n)
{
    fprintf(f,
            "\n## Time to plan, ms\n\n"
            "One thread. The budget is a quarter of what a store-all plan needs; all points of a "
            "line are found on the way.\n\n"
            "| network | ops | store-all | optimal | per 1,000 ops |\n|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "| %s | %d | %.1f | %.1f | %.1f |\n", t[i].name, t[i].ops, t[i].plain,
                t[i].budget, 1e3 * t[i].budget / t[i].ops);
}

static void print_goals(FILE *f, const char *name, const curve *c)
{
    fprintf(f,
            "\n## Goals\n\nSet for %s before the planner was written, in MB.\n\n"
            "| extra time | goal | measured | |\n|---|---|---|---|\n",
            name);
    for (int i = 0; i < GOALS; i++) {
        const point *p = at_most(c, goals[i].extra);
        double megabytes = p == NULL ? 1e9 : (double)p->bytes / 1e6;
        if (goals[i].extra < 1)
            fprintf(f, "| at most +%.0f %% |", 100 * goals[i].extra);
        else
            fprintf(f, "| any: the least bytes |");
        fprintf(f, " %.0f | %.1f | %s |\n", goals[i].megabytes, megabytes,
                megabytes <= goals[i].megabytes ? "met" : "missed");
    }
}

static void print_all(FILE *f, const net *nets, curve c[NETS][PLANNERS], const timing *t, int timed)
{
    const point *all = &c[0][STORE_ALL].p[0], *block = &c[0][PER_BLOCK].p[0];
    const point *same = at_most(&c[0][OPTIMAL], block->overhead);
    const point *ten = at_most(&c[0][OPTIMAL], 0.10);
    fprintf(
        f,
        "# What bytes cost in time\n\n"
        "A training step keeps what its backward will read. A plan that keeps less computes some of it "
        "again. Each line\nbelow is one way to decide what, and each number is the fewest bytes it "
        "offers at no more than that much extra time.\nWritten by `make plans`, which only plans: "
        "nothing is run, so any machine prints the same tables (but for the time\nto plan).\n\n"
        "![curves](plans.svg)\n\n"
        "%s: keeping everything takes %.0f MB. One checkpoint a block, as is usual, takes %.0f MB and "
        "%.1f %%\nmore time; in no more time than that the optimal plan takes %.0f MB. In 10 %% "
        "more time it takes %.0f MB, %.1f times\nless than everything.\n\n"
        "**Bytes** are those a schedule decides about: activations, their gradients and workspace, as "
        "they lie in the arena,\nalignment and gaps between them included (what `gckpt_plan_arena` "
        "adds to the gradients of parameters). Parameters,\ntheir gradients and the optimiser's state "
        "come on top and are the same in every line. MB are 10^6 bytes, KB 10^3.\n"
        "**Extra time** is the work of what is computed again, as a share of a step that computes nothing "
        "twice\n(`gckpt_plan_overhead`), by the model that `gckpt_plan_desc.costs` describes: the same "
        "on every machine.\n\n"
        "| planner | what it is |\n|---|---|\n"
        "| store-all | nothing is recomputed |\n"
        "| per block | every block is computed again just before its backward "
        "(`GCKPT_SEGMENTS`; Chen 2016) |\n"
        "| sqrt | the same with runs of ops or blocks, of the one length that needs the fewest bytes "
        "(`GCKPT_SQRT`) |\n"
        "| rotor | the best schedule that keeps a block whole or just its input, and drops nothing "
        "before its backward: dynamic programming over the chain of blocks (Beaumont and others "
        "2019) |\n"
        "| rotor with options | the same, when each block has a few dozen ways to run, from keeping "
        "all to keeping nothing |\n"
        "| **optimal** | what `GCKPT_OPTIMAL`, and `GCKPT_AUTO` under a budget, finds |\n\n"
        "rotor is an implementation of this repository (`tests/bench/rotor.h`, memory in 400 slots of "
        "three sizes), not its\nauthors' program; all lines go through the same layout and are counted "
        "alike. It works on chains; where a network is\nnone (the decoder's cross-attention, the long "
        "skips of a U-Net) what crosses a cut is kept with the cut.\nAn empty field: nothing that fast. "
        "The last column is the end of each line: the fewest bytes there are, and their time.\n",
        nets[0].name, (double)all->bytes / 1e6, (double)block->bytes / 1e6, 100 * block->overhead,
        (double)same->bytes / 1e6, (double)ten->bytes / 1e6,
        (double)all->bytes / (double)ten->bytes);
    for (int i = 0; i < NETS; i++)
        print_table(f, &nets[i], c[i]);
    print_goals(f, nets[0].name, &c[0][OPTIMAL]);
    print_timings(f, t, timed);
}

/* ---- the chart ---- */

/* A frontier as stairs: between two points one has to take the one with fewer bytes. */
static void draw_curve(plot *p, const char *name, double width, const curve *c, double x_max)
{
    double *x = (double *)rotor_new(2 * (size_t)c->n, sizeof *x);
    double *y = (double *)rotor_new(2 * (size_t)c->n, sizeof *y);
    int n = 0;
    for (int i = c->n; i-- > 0;) { /* from many bytes to few */
        double megabytes = (double)c->p[i].bytes / 1e6, percent = 100 * c->p[i].overhead;
        if (megabytes > x_max)
            continue;
        x[n] = n > 0 ? x[n - 1] : i + 1 < c->n ? x_max : megabytes;
        y[n++] = percent;
        x[n] = megabytes;
        y[n++] = percent;
    }
    plot_line(p, name, width, x, y, n, 0.58, 0.06);
    free(x);
    free(y);
}

static void draw_mark(const plot *p, const curve *c, const char *label, int below)
{
    double x = (double)c->p[0].bytes / 1e6, y = 100 * c->p[0].overhead;
    if (x > p->x1)
        return;
    int left = x > (p->x0 + p->x1) / 2;
    fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"#222222\"/>", plot_x(p, x),
            plot_y(p, y));
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
            plot_x(p, x) + (left ? -8 : 8), plot_y(p, y) + (below ? 16 : -6),
            left ? "end" : "start", label);
}

static void draw(FILE *f, const net *n, const curve *c)
{
    char title[2][80], label[80];
    snprintf(title[0], sizeof title[0], "%s: all of it", n->name);
    snprintf(title[1], sizeof title[1], "%s: few bytes", n->name);
    double all = (double)c[STORE_ALL].p[0].bytes / 1e6;
    plot p[2] = { { title[0], "MB of activations, their gradients, workspace", "extra time, %", 0,
                    all * 1.04, 0, 50, NULL, 0, 0 },
                  { title[1], "MB of activations, their gradients, workspace", "extra time, %", 100,
                    500, 0, 150, NULL, 0, 0 } };
    int same = c[SQRT].p[0].bytes == c[PER_BLOCK].p[0].bytes;
    snprintf(label, sizeof label, same ? "per block, sqrt" : "per block");
    plot_open(f, 2);
    for (int i = 0; i < 2; i++) {
        plot_axes(&p[i], f, i);
        draw_curve(&p[i], planners[OPTIMAL], 3, &c[OPTIMAL], p[i].x1);
        draw_curve(&p[i], planners[ROTOR_OPTIONS], -2, &c[ROTOR_OPTIONS], p[i].x1);
        draw_curve(&p[i], planners[ROTOR], 1.5, &c[ROTOR], p[i].x1);
        draw_mark(&p[i], &c[STORE_ALL], planners[STORE_ALL], 0);
        draw_mark(&p[i], &c[PER_BLOCK], label, 0);
        if (!same)
            draw_mark(&p[i], &c[SQRT], planners[SQRT], 1);
    }
    plot_close(f);
}

static int time_net(int made, net *n, timing *t, int *count)
{
    if (made && (made = measure(n, &t[*count]))) {
        printf("%-30s %6d ops: %8.1f ms to plan within a budget\n", n->name, t[*count].ops,
               t[*count].budget);
        fflush(stdout);
        ++*count;
    }
    return made;
}

int main(int argc, char **argv)
{
    static curve c[NETS][PLANNERS];
    static net nets[NETS];
    timing times[NETS + 3] = { 0 };
    int timed = 0;
    gpt_size four = gpt2_124m;
    four.batch = 4;
    if (argc != 3) {
        fprintf(stderr, "usage: plans TABLES.md CURVES.svg\n");
        return 2;
    }
    int good = net_gpt(&nets[0], "GPT-2 124M, batch 4 of 1,024", &four) &&
               net_gpt(&nets[1], "GPT-2 124M, batch 1 of 1,024", &gpt2_124m) &&
               net_encoder_decoder(&nets[2], "encoder-decoder, 6 + 6 layers", 6) &&
               net_unet(&nets[3], "U-Net, batch 8 of 256 x 256") &&
               net_mlp(&nets[4], "MLP, 64 layers", 64) && net_gpt(&nets[5], "tiny GPT", &gpt_mcu);
    for (int i = 0; i < NETS && good; i++) {
        good = time_net(1, &nets[i], times, &timed) && all_planners(&nets[i], c[i]);
        if (good)
            print_table(stdout, &nets[i], c[i]);
        fflush(stdout);
    }
    for (int i = 0; i < 3 && good; i++) {
        net n;
        gpt_size xl = { 48, 25, 1600, 1024, 50257, 1 }, deep = gpt2_124m;
        deep.layers = 1000;
        good = time_net(i == 0   ? net_gpt(&n, "GPT-2 1.5B, 48 layers", &xl)
                        : i == 1 ? net_mlp(&n, "MLP, 1,000 layers", 1000)
                                 : net_gpt(&n, "GPT, 1,000 layers", &deep),
                        &n, times, &timed);
        net_free(&n);
    }
    for (int i = 1; i < 3 && good; i++) {
        FILE *f = fopen(argv[i], "w");
        if (f != NULL && i == 1)
            print_all(f, nets, c, times, timed);
        else if (f != NULL)
            draw(f, &nets[0], c[0]);
        if (f == NULL || ferror(f) || fclose(f) != 0) {
            fprintf(stderr, "plans: cannot write %s\n", argv[i]);
            good = 0;
        }
    }
    for (int i = 0; i < NETS; i++) {
        for (int k = 0; k < PLANNERS; k++)
            free(c[i][k].p);
        net_free(&nets[i]);
    }
    return !good;
}
