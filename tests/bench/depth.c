/* depth.c - prints tables of the memory and the extra cost of a step of GPTs with 2 to 48 layers, for every planner:
 * the curves of Chen et al. (2016). It only plans, so all machines print the same tables (make depth). */
#include "model.h"

enum { DEPTHS = 8, STORE_ALL = 0, SQRT = 2, OPTIMAL = 4, TENTH = 5, PLANS = 6 };
static const int depths[DEPTHS] = { 2, 4, 8, 12, 16, 24, 36, 48 };
static const gckpt_mode modes[PLANS] = { GCKPT_STORE_ALL,   GCKPT_SEGMENTS, GCKPT_SQRT,
                                         GCKPT_MEMORY_POOR, GCKPT_OPTIMAL,  GCKPT_OPTIMAL };
static const char *const names[PLANS] = {
    "store-all", "segments", "sqrt", "memory-poor", "optimal, in sqrt's bytes", "optimal, for +10 %"
};

typedef struct {
    size_t arena, gradients, bytes;
    double extra; /* cost beyond the cost of the fastest plan */
} row;

/* Returns the MiB of the arena beyond the gradients of parameters. */
static double activations(const row *r) { return (double)(r->arena - r->gradients) / 1048576; }

/* Returns the fewest bytes of a plan that costs at most 10 % more than a step without recomputes, or 0 on an error. */
static size_t tenth(bench *b)
{
    gckpt_frontier *f = gckpt_frontier_new(b->graph, &b->loss, 1, NULL);
    gckpt_point p = { 0, 0, 0, 0, 0 };
    for (int i = 0; gckpt_frontier_get(f, i, &p) == GCKPT_OK && p.overhead > 0.1;)
        i++;
    gckpt_frontier_free(f);
    return p.bytes;
}

/* Makes all plans of a GPT of this depth and stores their rows. Returns 0 after printing an error. */
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
    for (int m = -1; m < PLANS && ok; m++) { /* m = -1 plans without a budget, with the fastest lowering of each op */
        gckpt_plan_desc desc = { .mode = m < 0 ? GCKPT_AUTO : modes[m] };
        desc.budget = m == OPTIMAL ? r[SQRT].bytes : m == TENTH ? tenth(&b) : 0;
        gckpt_plan *p = gckpt_plan_new(b.graph, &b.loss, 1, &desc);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        ok = p != NULL;
        if (!ok)
            fprintf(stderr, "depth: %s\n", gckpt_error_text(b.graph));
        else if (m < 0)
            fastest = (double)info.cost;
        else
            r[m] = (row){ info.arena, (size_t)b.parameters * sizeof(float),
                          gckpt_plan_bytes(p), (double)info.cost / fastest - 1 };
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

static void print_tables(FILE *f, row table[DEPTHS][PLANS])
{
    static const char *const titles[] = { "Bytes beyond parameters, gradients and optimiser state, MiB",
                                          "Extra cost of a step, %" };
    for (int t = 0; t < 2; t++) {
        print_header(f, titles[t]);
        for (int d = 0; d < DEPTHS; d++) {
            fprintf(f, "| %d |", depths[d]);
            for (int m = 0; m < PLANS; m++) {
                const row *r = &table[d][m];
                if (t == 0)
                    fprintf(f, " %.2f |", activations(r));
                else
                    fprintf(f, " %.1f |", 100 * r->extra);
            }
            fprintf(f, "\n");
        }
    }
}

int main(void)
{
    static row table[DEPTHS][PLANS];
    size z = { 0, 4, 64, 64, 8, 256, 0, 0 };
    for (int d = 0; d < DEPTHS; d++) {
        z.layers = depths[d];
        if (!plan_depth(table[d], &z))
            return 1;
    }
    print_tables(stdout, table);
    return 0;
}
