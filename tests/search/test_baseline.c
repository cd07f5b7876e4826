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
    { 1000, 946233 }, { 352, 1098588 }, { 504, 39865 }, { 1056, 1038957 }, { 14495514624, 0 },
    { 1252, 289097 }, { 464, 4267941 }, { 616, 1132983 }, { 776, 42015 }, { 816, 477477 },
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

/* Plans the chain of exercise 3.1 of the course (10 times linear and tanh). At most the recorded number of layers may be
 * recomputed in the recorded bytes. The numbers are optimal for schedules that recompute whole layers, as found by
 * Dijkstra's algorithm over sets of kept results, except where `optimal` is less. */
static void equal_layers(void)
{
    static const struct {
        size_t bytes;
        int recomputed, optimal;
    } point[] = {
        { 647168, 45, 45 }, { 651264, 37, 37 }, { 655360, 31, 31 }, { 659456, 27, 27 }, { 663552, 26, 25 },
        { 667648, 23, 23 }, { 671744, 21, 21 }, { 679936, 20, 20 }, { 778240, 14, 14 }, { 782336, 12, 12 },
        { 794624, 11, 11 }, { 909312, 8, 8 },   { 913408, 7, 7 },   { 1040384, 6, 6 },  { 1171456, 5, 5 },
        { 1302528, 4, 4 },  { 1433600, 3, 3 },  { 1564672, 2, 2 },  { 1695744, 1, 1 },  { 1826816, 0, 0 },
    };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *h = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1024, 32));
    for (char name[] = "a"; name[0] < 'k'; name[0]++)
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(32, 32), (gckpt_init){ 0.1f, 0, 0 }), NULL));
    gckpt_term loss = { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
    gckpt_frontier *f = gckpt_frontier_new(g, &loss, 1, NULL);
    gckpt_point at = { 0, 0, 0, 0, 0 };
    for (size_t i = 0; i < sizeof point / sizeof *point; i++) {
        const double layer = 0.03633; /* cost of a forward of a layer, as a share of a step */
        const int fits = gckpt_frontier_get(f, gckpt_frontier_find(f, point[i].bytes), &at) == GCKPT_OK;
        const int recomputed = (int)(at.overhead / layer + 0.5);
        CHECK_MSG(fits && recomputed <= point[i].recomputed && recomputed >= point[i].optimal,
                  "%lu bytes: %d layers recomputed, not %d (optimal: %d)", (unsigned long)point[i].bytes,
                  fits ? recomputed : -1, point[i].recomputed, point[i].optimal);
    }
    gckpt_frontier_free(f);
    gckpt_graph_free(g);
    gckpt_store_free(s);
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
    equal_layers();
    return check_report("test_baseline");
}
