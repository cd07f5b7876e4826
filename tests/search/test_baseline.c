/* test_baseline.c - baseline of the quality of plans: for fixed graphs, neither the least bytes nor the costs at
 * budgets from the least bytes to those of store-all may exceed the recorded entries. If a search improves, prints
 * the new entries.
 *
 *     build/test_baseline 1      prints all entries */
#include "gradckpt.h"

#include "synthetic.h"

enum { GRAPHS = 25, BUDGETS = 6, LARGE = 1 << 26 };

typedef struct {
    /* bytes: least bytes of a plan; recomputed: cost above that of store-all, in millionths of a step, summed over all
     * budgets */
    unsigned long long bytes, recomputed;
} found;

static const found baseline[GRAPHS] = {
    { 756, 1205605 }, { 412, 1124998 }, { 396, 37146 }, { 892, 122352 }, { 132, 610389 },
    { 788, 192000 }, { 388, 812497 }, { 488, 875446 }, { 940, 62404 }, { 30870077440, 92306 },
    { 896, 486483 }, { 380, 427350 }, { 584, 583914 }, { 668, 0 }, { 484, 93331 },
    { 1000, 973115 }, { 352, 4328635 }, { 504, 39865 }, { 1056, 1038957 }, { 14495514624, 0 },
    { 1252, 289097 }, { 464, 4267941 }, { 616, 1137546 }, { 776, 42015 }, { 824, 522522 },
};

static void build(unsigned i)
{
    random_state = i * 0x9e3779b97f4a7c15u + 7;
    const int n = 8 + (int)(i / 5) * 3;
    switch (i % 5) {
    case 0: skip_chain(n, 30, 60, 0); break;
    case 1: skip_chain(n, 60, 20, 1); break;
    case 2: large_graph(n, 1, 40); break;
    case 3: large_graph(n, 0, 40); break;
    default: flagged_graph(n, 30, i % 10 == 9 ? LARGE : 1, 5); /* some take gigabytes */
    }
    m.d.schedule.as_built = 0;
    if (i % 3 == 2)
        m.d.offload.bytes = 2000, m.d.offload.cost = 3;
}

static uint64_t work_in(size_t budget)
{
    gckpt_plan_desc d = m.d;
    d.budget = budget;
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, 1, &d);
    const uint64_t work = gckpt_plan_describe(p).cost;
    CHECK_MSG(p && gckpt_plan_bytes(p) <= budget, "%s", gckpt_error_text(m.g));
    gckpt_plan_free(p);
    return work;
}

int main(int argc, char **argv)
{
    (void)argv;
    for (unsigned i = 0; i < GRAPHS; i++) {
        if (i % 10 == 9 && sizeof(size_t) < 8)
            continue;
        gckpt_point least = { 0, 0, 0, 0, 0 }, most = least;
        build(i);
        gckpt_plan_desc d = m.d;
        d.mode = GCKPT_STORE_ALL;
        gckpt_plan *all = gckpt_plan_new(m.g, m.term, 1, &d);
        const gckpt_plan_info info = gckpt_plan_describe(all);
        gckpt_frontier *f = gckpt_frontier_new(m.g, m.term, 1, &m.d);
        CHECK_MSG(gckpt_frontier_get(f, 0, &least) == GCKPT_OK, "%s", gckpt_error_text(m.g));
        CHECK(gckpt_frontier_get(f, gckpt_frontier_describe(f).points - 1, &most) == GCKPT_OK &&
              most.cost <= info.cost);
        const double step = (double)info.cost;
        const size_t range = gckpt_plan_bytes(all) - least.bytes;
        found now = { least.bytes, 0 };
        for (size_t k = 0; k < BUDGETS && all && f; k++)
            now.recomputed +=
                (unsigned long long)(1e6 * (double)work_in(least.bytes + range * k / BUDGETS) / step) - 1000000;
        if (argc > 1 || now.bytes < baseline[i].bytes || now.recomputed < baseline[i].recomputed)
            printf("{ %llu, %llu },%s", now.bytes, now.recomputed, i % 5 == 4 ? "\n" : " ");
        CHECK_MSG(argc > 1 || (now.bytes <= baseline[i].bytes && now.recomputed <= baseline[i].recomputed),
                  "graph %u: %llu bytes, not %llu; %llu millionths of a step, not %llu", i, now.bytes,
                  baseline[i].bytes, now.recomputed, baseline[i].recomputed);
        gckpt_frontier_free(f);
        gckpt_plan_free(all);
        synth_free();
    }
    return check_report("test_baseline");
}
