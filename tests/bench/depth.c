/* depth.c - memory and time of a GPT step over its depth, for every plan: the curves of the
 * original gradient-checkpointing work (Chen 2016), from this library.
 *
 *     build/depth docs/depth.md docs/depth.svg       (or: make depth)
 */
#include "model.h"
#include "plot.h"

enum { DEPTHS = 8, MODES = 4 };
static const int depths[DEPTHS] = { 2, 4, 8, 12, 16, 24, 36, 48 };
static const gckpt_mode modes[MODES] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_SQRT,
                                         GCKPT_MEMORY_POOR };
static const char *const names[MODES] = { "store-all", "segments", "sqrt", "memory-poor" };

typedef struct {
    size_t arena, gradients, bytes;
    double recompute, seconds;
} row;

/* What a plan can change: bytes beyond parameters, their gradients and the optimiser's state. */
static double activations(const row *r)
{
    return (double)(r->arena - r->gradients) / 1048576;
}

static void print_tables(FILE *f, row table[DEPTHS][MODES], const size *z, int threads)
{
    fprintf(f, "# Memory and time over depth\n\n");
    fprintf(
        f,
        "A GPT of width %d, %d heads, context %d, batch %d in one micro-batch, %d thread%s. Written by "
        "`make depth`.\nThe weights after each step are the same bits in every column. What is kept for the "
        "backward dies while\nparameter gradients are born, in the same bytes: so with checkpoints the sum "
        "hardly grows with depth.\n\n",
        z->dim, z->heads, z->context, z->batch, threads, threads == 1 ? "" : "s");
    fprintf(
        f,
        "![curves](depth.svg)\n\n## Bytes beyond parameters, their gradients and optimiser state, MiB\n\n| layers |");
    for (int m = 0; m < MODES; m++)
        fprintf(f, " %s |", names[m]);
    fprintf(f, "\n|---|---|---|---|---|\n");
    for (int d = 0; d < DEPTHS; d++) {
        fprintf(f, "| %d |", depths[d]);
        for (int m = 0; m < MODES; m++)
            fprintf(f, " %.2f |", activations(&table[d][m]));
        fprintf(f, "\n");
    }
    fprintf(
        f,
        "\n## All bytes (`gckpt_plan_bytes`: parameters, AdamW state, step arena)\n\n| layers |");
    for (int m = 0; m < MODES; m++)
        fprintf(f, " %s |", names[m]);
    fprintf(f, "\n|---|---|---|---|---|\n");
    for (int d = 0; d < DEPTHS; d++) {
        fprintf(f, "| %d |", depths[d]);
        for (int m = 0; m < MODES; m++)
            fprintf(f, " %zu |", table[d][m].bytes);
        fprintf(f, "\n");
    }
    fprintf(f, "\n## Time of a step, ms (recomputed work / forward work)\n\n| layers |");
    for (int m = 0; m < MODES; m++)
        fprintf(f, " %s |", names[m]);
    fprintf(f, "\n|---|---|---|---|---|\n");
    for (int d = 0; d < DEPTHS; d++) {
        fprintf(f, "| %d |", depths[d]);
        for (int m = 0; m < MODES; m++)
            if (table[d][m].seconds > 0)
                fprintf(f, " %.1f (%.0f %%) |", 1e3 * table[d][m].seconds,
                        100 * table[d][m].recompute);
            else
                fprintf(f, " - (%.0f %%) |", 100 * table[d][m].recompute);
        fprintf(f, "\n");
    }
}

static void draw(FILE *f, row table[DEPTHS][MODES])
{
    double x[DEPTHS], y[DEPTHS], top[2] = { 0, 0 };
    for (int d = 0; d < DEPTHS; d++)
        for (int m = 0; m < MODES; m++) {
            x[d] = depths[d];
            top[0] = activations(&table[d][m]) > top[0] ? activations(&table[d][m]) : top[0];
            /* memory-poor's time grows with the square of the depth: the others set the scale */
            if (m < 3)
                top[1] = 1e3 * table[d][m].seconds > top[1] ? 1e3 * table[d][m].seconds : top[1];
        }
    plot memory = { "Memory over depth",
                    "layers",
                    "MiB beyond weights, gradients, state",
                    0,
                    48,
                    0,
                    top[0] * 1.05,
                    NULL,
                    0,
                    0 };
    plot time = { "Time over depth", "layers", "ms a step", 0, 48, 0, top[1] * 1.25, NULL, 0, 0 };
    plot_open(f, 2);
    for (int i = 0; i < 2; i++) {
        plot *p = i == 0 ? &memory : &time;
        plot_axes(p, f, i);
        for (int m = 0; m < MODES; m++) {
            for (int d = 0; d < DEPTHS; d++)
                y[d] = i == 0                    ? activations(&table[d][m])
                       : table[d][m].seconds > 0 ? 1e3 * table[d][m].seconds
                                                 : -1; /* outside: not drawn */
            plot_line(p, names[m], 2, x, y, DEPTHS, i == 0 ? 0.05 : 0.6, i == 0 ? 0.06 : 0.78);
        }
    }
    plot_close(f);
}

int main(int argc, char **argv)
{
    static row table[DEPTHS][MODES];
    size z = { 0, 4, 64, 64, 8, 256, 0, 0 };
    const int threads = 1; /* a second one would measure the machine's other load */
    if (argc != 3) {
        fprintf(stderr, "usage: depth TABLE.md CURVES.svg\n");
        return 2;
    }
    for (int d = 0; d < DEPTHS; d++)
        for (int m = 0; m < MODES; m++) {
            bench b = { 0 };
            row *r = &table[d][m];
            z.layers = depths[d];
            r->seconds = -1;
            if (bench_new(&b, &z, modes[m], threads)) {
                r->arena = gckpt_plan_arena(b.plan);
                r->gradients = (size_t)b.parameters * sizeof(float);
                r->bytes = gckpt_plan_bytes(b.plan);
                r->recompute = gckpt_plan_recompute(b.plan);
                /* its time grows with the square of the depth; a few points show that */
                r->seconds =
                    modes[m] == GCKPT_MEMORY_POOR && depths[d] > 8 ? 0 : bench_step(&b, &z, 0.5);
            }
            bench_free(&b);
            if (r->seconds < 0)
                return 1;
            printf("%2d layers, %-11s %10zu bytes, %7.1f ms a step, %5.1f %% recomputed\n",
                   depths[d], names[m], r->bytes, 1e3 * r->seconds, 100 * r->recompute);
            fflush(stdout);
        }
    for (int i = 1; i < 3; i++) {
        FILE *f = fopen(argv[i], "w");
        if (f != NULL && i == 1)
            print_tables(f, table, &z, threads);
        else if (f != NULL)
            draw(f, table);
        if (f == NULL || ferror(f) || fclose(f) != 0) {
            fprintf(stderr, "depth: cannot write %s\n", argv[i]);
            return 1;
        }
    }
    return 0;
}
