/* depth.c - memory and extra work of a GPT step over its depth, for every plan: the curves of the
 * original gradient-checkpointing work (Chen 2016), from this library. It plans and runs nothing, so
 * any machine prints the same.
 *
 *     build/depth docs/depth.md docs/depth.svg       (or: make depth)
 */
#include "model.h"
#include "plot.h"

enum { DEPTHS = 8, STORE_ALL = 0, SQRT = 2, OPTIMAL = 4, TENTH = 5, PLANS = 6 };
static const int depths[DEPTHS] = { 2, 4, 8, 12, 16, 24, 36, 48 };
static const gckpt_mode modes[PLANS] = { GCKPT_STORE_ALL,   GCKPT_SEGMENTS, GCKPT_SQRT,
                                         GCKPT_MEMORY_POOR, GCKPT_OPTIMAL,  GCKPT_OPTIMAL };
static const char *const names[PLANS] = {
    "store-all", "segments", "sqrt", "memory-poor", "optimal, in sqrt's bytes", "optimal, for +10 %"
};

typedef struct {
    size_t arena, gradients, bytes;
    double extra, recompute; /* work above the fastest plan's; forwards again, of all forwards */
} row;

/* What a plan can change: bytes beyond parameters, their gradients and the optimiser's state. */
static double activations(const row *r) { return (double)(r->arena - r->gradients) / 1048576; }

/* The fewest bytes for at most a tenth more work; 0: error. */
static size_t tenth(bench *b)
{
    gckpt_frontier *f = gckpt_frontier_new(b->graph, &b->loss, 1, NULL);
    gckpt_point p = { 0, 0, 0, 0, 0 };
    for (int i = 0; gckpt_frontier_get(f, i, &p) == GCKPT_OK && p.overhead > 0.1;)
        i++;
    gckpt_frontier_free(f);
    return p.bytes;
}

/* All plans of a depth. 0 after saying what went wrong. */
static int plan_depth(row *r, const size *z)
{
    bench b = { .z = z };
    gckpt_parameter q;
    double fastest = 0;
    int ok = 1;
    b.store = gckpt_store_new(NULL);
    b.graph = gckpt_graph_new(b.store, NULL);
    bench_build(b.graph, z->batch, &b.loss, &b);
    for (int i = 0; gckpt_store_peek(b.store, i, &q) == GCKPT_OK; i++)
        b.parameters += q.elements;
    for (int m = -1; m < PLANS && ok;
         m++) { /* first without a limit: the fastest form of each op */
        gckpt_plan_desc desc = { .mode = m < 0 ? GCKPT_AUTO : modes[m] };
        desc.budget = m == OPTIMAL ? r[SQRT].bytes : m == TENTH ? tenth(&b) : 0;
        gckpt_plan *p = gckpt_plan_new(b.graph, &b.loss, 1, &desc);
        ok = p != NULL;
        if (!ok)
            fprintf(stderr, "depth: %s\n", gckpt_error_text(b.graph));
        else if (m < 0)
            fastest = (double)gckpt_plan_cost(p);
        else
            r[m] = (row){ gckpt_plan_arena(p), (size_t)b.parameters * sizeof(float),
                          gckpt_plan_bytes(p), (double)gckpt_plan_cost(p) / fastest - 1,
                          gckpt_plan_recompute(p) };
        gckpt_plan_free(p);
    }
    bench_free(&b);
    return ok;
}

static void print_header(FILE *f, const char *title)
{
    fprintf(f, "\n## %s\n\n| layers |", title);
    for (int m = 0; m < PLANS; m++)
        fprintf(f, " %s |", names[m]);
    fprintf(f, "\n|---|---|---|---|---|---|---|\n");
}

static void print_tables(FILE *f, row table[DEPTHS][PLANS], const size *z)
{
    static const char *const titles[] = {
        "Bytes beyond parameters, their gradients and optimiser state, MiB",
        "All bytes (`gckpt_plan_bytes`: parameters, AdamW state, step arena)",
        "Extra work of a step, % (recomputed work / forward work)"
    };
    fprintf(
        f,
        "# Memory and time over depth\n\n"
        "A GPT of width %d, %d heads, context %d, batch %d in one micro-batch. `make depth` writes "
        "this page; it\nonly plans, so any machine prints the same. The weights after each step are "
        "the same bits in every column.\n\n"
        "![curves](depth.svg)\n\n"
        "Of store-all, memory grows with depth. What checkpoints keep for the backward dies while "
        "gradients of\nparameters are born, in the same bytes: so with segments, and by the square "
        "root, the sum hardly grows.\nMemory-poor computes everything again for each backward, so its "
        "work grows with the square of the depth.\n`optimal` takes any number of bytes: here those of "
        "sqrt, for less work, and as few as 10 %% more work\nallows. Heights of both charts are "
        "logarithmic.\n\n"
        "Extra work is that above the fastest plan that computes nothing twice, by the model of the "
        "planner (manual,\n7); store-all has some, as it runs the graph as it was built. Measured once, "
        "on one thread: 48 layers took 114 ms\na step with store-all, 137 with segments (+20 %%), 140 "
        "with sqrt (+23 %%).\n",
        z->dim, z->heads, z->context, z->batch);
    for (int t = 0; t < 3; t++) {
        print_header(f, titles[t]);
        for (int d = 0; d < DEPTHS; d++) {
            fprintf(f, "| %d |", depths[d]);
            for (int m = 0; m < PLANS; m++) {
                const row *r = &table[d][m];
                if (t == 0)
                    fprintf(f, " %.2f |", activations(r));
                else if (t == 1)
                    fprintf(f, " %zu |", r->bytes);
                else
                    fprintf(f, " %.1f (%.0f %%) |", 100 * r->extra, 100 * r->recompute);
            }
            fprintf(f, "\n");
        }
    }
}

/* Both axes of height are logarithmic. Curves may be equal: earlier ones are wider. */
static void draw(FILE *f, row table[DEPTHS][PLANS])
{
    static const double widths[PLANS] = { 2, 6, 3, 2, -1.5, 2 };
    double x[DEPTHS], y[DEPTHS];
    plot panels[2] = { { "Memory over depth", "layers", "MiB beyond weights, gradients, state", 0,
                         50, 1, 100, NULL, 0, 0, 1 },
                       { "Extra work over depth", "layers", "% above the fastest step", 0, 50, 0.1,
                         10000, NULL, 0, 0, 1 } };
    for (int d = 0; d < DEPTHS; d++)
        x[d] = depths[d];
    plot_open(f, 2);
    for (int i = 0; i < 2; i++) {
        plot_axes(&panels[i], f, i);
        for (int m = 0; m < PLANS; m++) {
            for (int d = 0; d < DEPTHS; d++)
                y[d] = i == 0 ? activations(&table[d][m]) : 100 * table[d][m].extra;
            plot_line(&panels[i], i == 0 ? names[m] : NULL, widths[m], x, y, DEPTHS, 0.42, 0.4);
        }
    }
    plot_close(f);
}

int main(int argc, char **argv)
{
    static row table[DEPTHS][PLANS];
    size z = { 0, 4, 64, 64, 8, 256, 0, 0 };
    if (argc != 3) {
        fprintf(stderr, "usage: depth TABLE.md CURVES.svg\n");
        return 2;
    }
    for (int d = 0; d < DEPTHS; d++) {
        z.layers = depths[d];
        if (!plan_depth(table[d], &z))
            return 1;
        for (int m = 0; m < PLANS; m++)
            printf("%2d layers, %-11s %10zu bytes, %7.1f %% more work, %7.1f %% recomputed\n",
                   depths[d], names[m], table[d][m].bytes, 100 * table[d][m].extra,
                   100 * table[d][m].recompute);
        fflush(stdout);
    }
    for (int i = 1; i < 3; i++) {
        FILE *f = fopen(argv[i], "w");
        if (f != NULL && i == 1)
            print_tables(f, table, &z);
        else if (f != NULL)
            draw(f, table);
        if (f == NULL || ferror(f) || fclose(f) != 0) {
            fprintf(stderr, "depth: cannot write %s\n", argv[i]);
            return 1;
        }
    }
    return 0;
}
