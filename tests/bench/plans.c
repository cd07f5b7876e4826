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

enum { STORE_ALL, PER_BLOCK, SQRT, ROTOR, ROTOR_OPTIONS, OPTIMAL, PLANNERS, NETS = 6, EXTRAS = 8 };
static const char *const planners[PLANNERS] = { "store-all", "per block",          "sqrt",
                                                "rotor",     "rotor with options", "optimal" };
static const double extras[EXTRAS] = { 0, 0.05, 0.10, 0.15, 0.17, 0.20, 0.33, 0.60 };

/* Megabytes for GPT-2 at batch 4 at +10, 15, 17, 20 %, and the least. */
enum { GOALS = 5 };
static const struct {
    double extra, megabytes;
} goals[GOALS] = { { 0.10, 840 }, { 0.15, 403 }, { 0.17, 316 }, { 0.20, 280 }, { 1e9, 139 } };

/* How long planning a network takes, in milliseconds. */
typedef struct {
    char name[40];
    int ops, points, complete;
    double plain, budget, frontier;
} timing;

/* Of this program alone: the machine may be busy. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
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

/* All points of the optimal planner; each is planned, and must be what the point says. */
static int optimal(const net *n, curve *c)
{
    const gckpt_plan_desc desc = net_desc(n, GCKPT_OPTIMAL);
    gckpt_frontier *f = gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
    int good = f != NULL;
    for (int i = 0; good && i < gckpt_frontier_points(f); i++) {
        gckpt_point at;
        gckpt_frontier_get(f, i, &at);
        gckpt_plan *p = gckpt_frontier_plan(f, at.bytes);
        good = p != NULL && gckpt_plan_bytes(p) <= at.bytes && gckpt_plan_work(p) == at.work;
        if (good)
            curve_add(c, net_bytes(p), gckpt_plan_overhead(p));
        else
            fprintf(stderr, "plans: %s: point %d, %zu bytes, is not kept: its plan has %zu\n",
                    n->name, i, at.bytes, gckpt_plan_bytes(p));
        gckpt_plan_free(p);
    }
    if (f == NULL)
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
    gckpt_frontier_free(f);
    return good;
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

/* Times a store-all plan, the whole frontier, and one in a quarter of the bytes or the least. */
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
    gckpt_frontier *f = gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
    t->frontier = now() - start;
    t->points = gckpt_frontier_points(f);
    t->complete = gckpt_frontier_complete(f);
    gckpt_point least = { 0, 0, 0, 0 };
    gckpt_frontier_get(f, 0, &least);
    desc.budget = desc.budget > least.bytes ? desc.budget : least.bytes;
    start = now();
    p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    t->budget = now() - start;
    int good = p != NULL && f != NULL;
    if (!good)
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
    gckpt_plan_free(p);
    gckpt_frontier_free(f);
    return good;
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
            "One thread, processor time. The budget is a quarter of what a store-all plan needs,\n"
            "or the least that was found.\n"
            "A star: the search stopped at its limit of work, which is counted and not timed, so\n"
            "that plans do not depend on the machine.\n\n"
            "| network | ops | store-all | a budget | per 1,000 ops | frontier | per 1,000 ops | "
            "points |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %d%s |\n", t[i].name, t[i].ops,
                t[i].plain, t[i].budget, 1e3 * t[i].budget / t[i].ops, t[i].frontier,
                1e3 * t[i].frontier / t[i].ops, t[i].points, t[i].complete ? "" : " *");
}

/* Is the optimal planner ever worse, in the same bytes? */
static void print_duel(FILE *f, const net *nets, curve c[NETS][PLANNERS])
{
    fprintf(
        f,
        "\n## In the same bytes\n\n"
        "Each point of the others against the optimal plan in no more bytes: how many points\n"
        "there are, in how many of them the optimal plan takes more time (by 0.1 %% or more\n"
        "of a step), and its time relative to theirs: the mean over all points and the worst.\n\n"
        "| network | planner | points | slower | mean | worst |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < NETS; i++)
        for (int k = PER_BLOCK; k < OPTIMAL; k += k == PER_BLOCK ? 2 : 1) {
            const curve *theirs = &c[i][k], *ours = &c[i][OPTIMAL];
            const point *worst_at = &theirs->p[0];
            double sum = 0, worst = -1;
            int slower = 0;
            for (int j = 0; j < theirs->n; j++) {
                double least = 1e9;
                for (int o = 0; o < ours->n && ours->p[o].bytes <= theirs->p[j].bytes; o++)
                    least = ours->p[o].overhead;
                double relative = (1 + least) / (1 + theirs->p[j].overhead) - 1;
                slower += least > theirs->p[j].overhead + 0.001;
                sum += relative;
                if (relative > worst) {
                    worst = relative;
                    worst_at = &theirs->p[j];
                }
            }
            if (worst > 1e6)
                fprintf(f, "| %s | %s | %d | %d | | nothing in %zu bytes |\n", nets[i].name,
                        planners[k], theirs->n, slower, worst_at->bytes);
            else
                fprintf(f, "| %s | %s | %d | %d | %+.1f %% | %+.1f %% |\n", nets[i].name,
                        planners[k], theirs->n, slower, 100 * sum / theirs->n, 100 * worst);
        }
}

/* The work model has changed since the goals were set: one checkpoint a block was 16.7 % extra
 * then. Times are scaled by what it is now, which makes the goals as hard as they were. */
static void print_goals(FILE *f, const char *name, const curve *c)
{
    const double scale = c[PER_BLOCK].p[0].overhead / 0.167;
    fprintf(f,
            "\n## Goals\n\n"
            "Set for %s before the planner was written, in MB. The work model was refined since:\n"
            "one checkpoint a block counted as 16.7 %% extra time then and %.1f %% now, so times\n"
            "are scaled by the ratio.\n\n"
            "| extra time then | now | goal | measured | |\n|---|---|---|---|---|\n",
            name, 100 * c[PER_BLOCK].p[0].overhead);
    for (int i = 0; i < GOALS; i++) {
        const point *p = at_most(&c[OPTIMAL], goals[i].extra * scale);
        double megabytes = p == NULL ? 1e9 : (double)p->bytes / 1e6;
        if (goals[i].extra < 1)
            fprintf(f, "| +%.0f %% | +%.1f %% |", 100 * goals[i].extra,
                    100 * goals[i].extra * scale);
        else
            fprintf(f, "| any | any |");
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
        "A training step keeps what its backward will read. A plan that keeps less computes\n"
        "some of it again. Each line below is one way to decide what, and each number is the\n"
        "fewest bytes it offers at no more than that much extra time. `make plans` writes\n"
        "this page. It only plans and runs nothing, so any machine prints the same tables (but\n"
        "for the time to plan).\n\n"
        "![curves](plans.svg)\n\n"
        "%s: keeping everything takes %.0f MB. One checkpoint a block, as is usual, takes\n"
        "%.0f MB and %.1f %% more time; the optimal plan takes %.0f MB in no more time than\n"
        "that. In 10 %% more time it takes %.0f MB, %.1f times less than everything.\n\n",
        nets[0].name, (double)all->bytes / 1e6, (double)block->bytes / 1e6, 100 * block->overhead,
        (double)same->bytes / 1e6, (double)ten->bytes / 1e6,
        (double)all->bytes / (double)ten->bytes);
    fprintf(
        f,
        "**Bytes** are those a schedule decides about: activations, their gradients and\n"
        "workspace, as they lie in the arena, gaps between them included (what\n"
        "`gckpt_plan_arena` adds to the gradients of parameters). Parameters, their gradients\n"
        "and the optimiser's state come on top and are the same in every line. MB are 10^6\n"
        "bytes, KB 10^3.\n\n"
        "**Extra time** is the work of what is computed again, as a share of a step that\n"
        "computes nothing twice (`gckpt_plan_overhead`), by the model that\n"
        "`gckpt_plan_desc.costs` describes: the same on every machine.\n\n"
        "| planner | what it is |\n|---|---|\n"
        "| store-all | nothing is recomputed |\n"
        "| per block | every block is computed again just before its backward "
        "(`GCKPT_SEGMENTS`; Chen 2016) |\n"
        "| sqrt | the same with runs of ops or blocks, of the one length that needs the fewest "
        "bytes (`GCKPT_SQRT`) |\n"
        "| rotor | the best schedule that keeps a block whole or just its input, and drops nothing "
        "before its backward: dynamic programming over the chain of blocks (Beaumont and others "
        "2019) |\n"
        "| rotor with options | the same, when each block has a few dozen ways to run, from "
        "keeping all to keeping nothing |\n"
        "| **optimal** | what `GCKPT_OPTIMAL`, and `GCKPT_AUTO` under a budget, finds "
        "(`gckpt_frontier_new`) |\n\n"
        "Optimal is what the search aims at; on networks of this size nobody knows how far\n"
        "from it a plan is. rotor is written anew here (`tests/bench/rotor.h`, memory in 400\n"
        "slots of three sizes), it is not its authors' program; all lines go through the same\n"
        "layout and are counted alike. It works on chains; where a network is none (the\n"
        "decoder's cross-attention, the long skips of a U-Net) what crosses a cut is kept\n"
        "with the cut. An empty field: nothing that fast. The last column is the end of each\n"
        "line: the fewest bytes there are, and their time.\n");
    for (int i = 0; i < NETS; i++)
        print_table(f, &nets[i], c[i]);
    print_duel(f, nets, c);
    print_goals(f, nets[0].name, c[0]);
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

/* A planner of a single point: a dot, and its name `up` pixels above. */
static void draw_dot(const plot *p, const curve *c, const char *label, int up)
{
    double x = (double)c->p[0].bytes / 1e6, y = 100 * c->p[0].overhead;
    if (x > p->x1)
        return;
    int left = x > p->x0 + 0.85 * (p->x1 - p->x0);
    fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"#222222\"/>", plot_x(p, x),
            plot_y(p, y));
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
            plot_x(p, x) + (left ? 4 : 8), plot_y(p, y) - up, left ? "end" : "start", label);
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
                    500, 0, 100, NULL, 0, 0 } };
    int same = c[SQRT].p[0].bytes == c[PER_BLOCK].p[0].bytes;
    snprintf(label, sizeof label, same ? "per block, sqrt" : "per block");
    plot_open(f, 2);
    for (int i = 0; i < 2; i++) {
        plot_axes(&p[i], f, i);
        draw_curve(&p[i], planners[OPTIMAL], 3, &c[OPTIMAL], p[i].x1);
        draw_curve(&p[i], planners[ROTOR_OPTIONS], -2, &c[ROTOR_OPTIONS], p[i].x1);
        draw_curve(&p[i], planners[ROTOR], 1.5, &c[ROTOR], p[i].x1);
        draw_dot(&p[i], &c[STORE_ALL], planners[STORE_ALL], 18);
        draw_dot(&p[i], &c[PER_BLOCK], label, 6);
        if (!same)
            draw_dot(&p[i], &c[SQRT], planners[SQRT], -16);
    }
    plot_close(f);
}

static int time_net(int made, net *n, timing *t, int *count)
{
    if (made && (made = measure(n, &t[*count]))) {
        printf("%-30s %6d ops: %8.1f ms a budget, %8.1f ms the frontier of %d points\n", n->name,
               t[*count].ops, t[*count].budget, t[*count].frontier, t[*count].points);
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
