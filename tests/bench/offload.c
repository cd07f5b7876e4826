/* offload.c - prints the cost of plans that may offload values to slower memory, compared with plans that may not:
 * the rows of docs/benchmarks/offload.tsv. Nothing runs; the plans are for an assumed machine.
 *
 *     make build/offload && build/offload
 *
 * A cell is the extra cost of a step, the proven extra cost in parentheses, and the MiB that are offloaded.
 */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdlib.h>

#include "graphs.h"

#define FLOPS 50e12 /* flops per second of the assumed machine; the cost of one flop is 1 */

static int overlap; /* copies overlap computation */

static gckpt_plan *plan(const net *n, size_t budget, double gigabytes, size_t limit)
{
    gckpt_plan_desc d = net_desc(n, GCKPT_AUTO);
    d.budget = budget;
    d.offload.bytes = gigabytes > 0 ? limit : 0;
    d.offload.cost = gigabytes > 0 ? (uint64_t)(FLOPS / (gigabytes * 1e9) * 1048576) : 0;
    d.offload.overlap = gigabytes > 0 && overlap;
    return gckpt_plan_new(n->graph, &n->loss, 1, &d);
}

static void cell(const gckpt_plan *p, double least)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (p && info.offloaded)
        printf(" | %.1f %% (%.1f %%), %.0f MiB", 100 * ((double)info.cost / least - 1),
               100 * ((double)info.proven_cost / least - 1),
               (double)info.offloaded / 1048576);
    else if (p)
        printf(" | %.1f %% (%.1f %%)", 100 * ((double)info.cost / least - 1),
               100 * ((double)info.proven_cost / least - 1));
    else
        printf(" |");
    gckpt_plan_free(p);
}

int main(void)
{
    static const double speeds[] = { 0, 25, 55, 450 };
    static const int parts[] = { 50, 35, 25, 15, 12, 9, 6, 5 };
    static const size_t limits[] = { 0, 128, 256, 512, 1024, 4096 };
    gpt_size z = gpt2_124m;
    net n;
    z.batch = 4;
    if (!net_gpt(&n, "GPT-2 124M", &z))
        return 1;
    gckpt_plan_desc d = net_desc(&n, GCKPT_STORE_ALL);
    gckpt_plan *p = gckpt_plan_new(n.graph, &n.loss, 1, &d);
    if (!p)
        return 1;
    const size_t all = net_bytes(p), fixed = gckpt_plan_bytes(p) - all;
    gckpt_plan_free(p);
    p = plan(&n, 0, 0, 0);
    const double least = (double)gckpt_plan_describe(p).cost / (1 + gckpt_plan_describe(p).overhead);
    gckpt_plan_free(p);
    for (overlap = 0; overlap < 2; overlap++) {
        printf("\n## Copies %s\n\n| activations | no slower memory | 25 GB/s | 55 GB/s | 450 GB/s |\n|---|---|---|---|---|\n",
               overlap ? "overlapped" : "in turn");
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            size_t bytes = all / 100 * (size_t)parts[i];
            printf("| %.0f MiB of activations (%d %%)", (double)bytes / 1048576, parts[i]);
            for (size_t k = 0; k < sizeof speeds / sizeof *speeds; k++)
                cell(plan(&n, fixed + bytes, speeds[k], SIZE_MAX), least);
            printf(" |\n");
        }
    }
    for (overlap = 0; overlap < 2; overlap++) {
        printf("\n## Copies %s\n\n| at 450 GB/s | 35 %% | 15 %% | 9 %% |\n|---|---|---|---|\n", overlap ? "overlapped" : "in turn");
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            printf("| %zu MiB of slower memory at 450 GB/s", limits[i]);
            for (int part = 35; part >= 9; part = part == 35 ? 15 : part - 6)
                cell(plan(&n, fixed + all / 100 * (size_t)part, limits[i] ? 450 : 0, limits[i] << 20), least);
            printf(" |\n");
        }
    }
    net_free(&n);
    return 0;
}
