/* plans.c - prints bytes and time of every planner for networks of real size, and the time that planning takes. It
 * only plans.
 *
 *     build/plans build/plans.md docs/plans.svg      (or: make plans)
 *
 * The tables become rows of docs/benchmarks/plans.tsv; docs/planning.md describes the planners and terms.
 */
#define _POSIX_C_SOURCE 200809L
#include "gradckpt.h"
#include "graphs.h"
#include "rotor.h"
#include "plot.h"
#include <stdlib.h>
#include <time.h>

enum { STORE_ALL, PER_BLOCK, SQRT, ROTOR, ROTOR_OPTIONS, OPTIMAL, PLANNERS, NETS = 9, EXTRAS = 8 };
static const char *const planners[PLANNERS] = { "store-all", "per block",          "sqrt",
                                                "rotor",     "rotor with options", "optimal" };
static const double extras[EXTRAS] = { 0, 0.05, 0.10, 0.15, 0.17, 0.20, 0.33, 0.60 };
static const double few_megabytes[] = { 220, 202, 190, 180, 165, 155, 145 }; /* of the first */
enum { FEW = sizeof few_megabytes / sizeof *few_megabytes };

/* BUDGETS: number of budgets whose planning is timed; PROVEN: number of budgets whose plans are checked for proofs;
 * SAMPLES: budgets of the picture of the first network; MEMORY: bytes that a frontier may take */
enum { BUDGETS = 10, PROVEN = 40, SAMPLES = 400, MEMORY = 100000000 };

/* The range of budgets of a network, in bytes as gckpt_plan_bytes counts them. */
typedef struct {
    const net *n;
    /* 1 if plans run the graph as it was built, 0 if they choose lowerings */
    int as_built;
    size_t least, all; /* the fewest and the most bytes of a plan of the frontier */
    size_t others;     /* bytes of parameters, which net_bytes does not count */
    size_t proven;     /* lower bound of the bytes of any plan */
    uint64_t step;     /* work of a step that computes nothing twice */
    /* number of budgets, out of PROVEN, whose plan is proven to cost at most 0.1 % of a step more than the optimum */
    int proven_points;
    /* points: number of points of the frontier; above: number of points whose cost is above that of the plan for
     * the same bytes; below: number of points whose cost is below it */
    int points, above, below;
    double most; /* largest amount by which a point costs more, as a share of a step */
} range;

/* The fewest bytes of a plan with a given extra time; `none` is nonzero if no plan is that fast. */
typedef struct {
    int none;
    size_t bytes, proven; /* bytes: bytes of the plan; proven: lower bound for any plan that is as fast */
    double gap;           /* optimality gap of the plan */
} column;

/* The points of another planner, compared with our plans in the same bytes. */
typedef struct {
    /* slower: number of points at which our plan is slower; clearly: number of points at which it is slower by more
     * than 0.1 % of a step; none: number of points for whose bytes we have no plan */
    int points, slower, clearly, none;
    double mean, worst;                /* time of our plan relative to the other planner's, minus 1 */
} comparison;

/* Times of planning in milliseconds. Entry 0 of an array is for plans as built, entry 1 for plans that choose
 * lowerings. */
typedef struct {
    char name[40];
    int ops, points[2], complete[2];
    double plain, budget[2], slowest[2], frontier[2];
    size_t memory[2]; /* most bytes of a frontier */
} timing;

typedef struct {
    net n;
    range built, lowered;        /* lowered: the range with lowerings chosen; its n is NULL if that was not requested */
    /* points of each planner; those of OPTIMAL are the frontier, which only the picture shows */
    pareto lines[PLANNERS];
    pareto least;                /* proven bounds at many budgets, for the picture */
    column columns[EXTRAS + 1]; /* columns of the table; the last one is the plan with the least bytes */
    column chosen[EXTRAS + 1];  /* [0] is the fastest plan */
    double fastest;             /* cost of the plan chosen[0] / cost of a step as built, minus 1 */
    double last, chosen_last;   /* extra time of the plans with the least bytes, as built and with lowerings chosen */
    comparison comparisons[PLANNERS];
} subject;

/* Returns the processor time of this process in milliseconds. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static gckpt_plan *plan_of(const net *n, gckpt_mode mode, int as_built, size_t budget)
{
    gckpt_plan_desc desc = net_desc(n, mode);
    desc.schedule.as_built = as_built;
    desc.budget = budget;
    return gckpt_plan_new(n->graph, &n->loss, 1, &desc);
}

/* Returns the plan for a budget for which a plan exists; exits with an error if no plan exists. */
static gckpt_plan *plan_in(const range *r, size_t budget)
{
    gckpt_plan *p = plan_of(r->n, GCKPT_OPTIMAL, r->as_built, budget);
    if (p == NULL || gckpt_plan_bytes(p) > budget) {
        fprintf(stderr, "plans: %s, %zu bytes: %s\n", r->n->name, budget,
                gckpt_error_text(r->n->graph));
        exit(1);
    }
    return p;
}

/* An allocator that counts bytes in use and their peak. */
static size_t taken, most_taken;

static void *counted(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user;
    taken += new_size - old_size;
    most_taken = taken > most_taken ? taken : most_taken;
    if (new_size > 0)
        return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

static gckpt_frontier *frontier_of(const net *n, int as_built)
{
    gckpt_plan_desc desc = net_desc(n, GCKPT_OPTIMAL);
    desc.schedule.as_built = as_built;
    desc.memory.resize = counted;
    return gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
}

/* ---- the optimal planner ---- */

/* Plans all points of the frontier and checks that each plan has the bytes and cost of its point. */
static int open_range(range *r, const net *n, int as_built, pareto *c)
{
    gckpt_frontier *f = frontier_of(n, as_built);
    gckpt_point at = { 0 };
    int good = f != NULL;
    r->n = n;
    r->as_built = as_built;
    for (int i = 0; good && gckpt_frontier_get(f, i, &at) == GCKPT_OK; i++) {
        gckpt_plan *p = gckpt_frontier_plan(f, at.bytes);
        good = p != NULL && gckpt_plan_bytes(p) <= at.bytes && gckpt_plan_describe(p).cost == at.cost;
        if (good) {
            gckpt_plan *alone = plan_in(r, at.bytes);
            const gckpt_plan_info info = gckpt_plan_describe(alone);
            r->least = i == 0 ? at.bytes : r->least;
            r->others = gckpt_plan_bytes(p) - net_bytes(p);
            pareto_add(c, net_bytes(p), gckpt_plan_describe(p).overhead);
            const double more = at.overhead - info.overhead;
            r->points++;
            r->above += at.cost > info.cost;
            r->below += at.cost < info.cost;
            r->most = more > r->most ? more : r->most;
            gckpt_plan_free(alone);
        } else {
            fprintf(stderr, "plans: %s: point %d, %zu bytes, is not kept\n", n->name, i, at.bytes);
        }
        gckpt_plan_free(p);
    }
    r->all = at.bytes;
    r->step = (uint64_t)((double)at.cost / (1 + at.overhead) + 0.5);
    r->proven = gckpt_frontier_describe(f).proven_bytes;
    gckpt_frontier_free(f);
    for (int i = 0; i < PROVEN && good; i++) {
        gckpt_plan *p =
            plan_in(r, r->least + (size_t)((double)(r->all - r->least) * i / (PROVEN - 1)));
        r->proven_points += gckpt_plan_describe(p).gap <= 0.001;
        gckpt_plan_free(p);
    }
    return good;
}

/* Returns the fewest bytes, to within 0.2 %, of a plan with at most this cost; if `proven` is nonzero, the fewest
 * bytes at which the proven bound is at most this cost. */
static size_t fewest(const range *r, uint64_t work, int proven)
{
    size_t few = r->least, many = r->all;
    for (int first = 1; first || many > few + (many - r->others) / 500; first = 0) {
        size_t middle = first ? few : few + (many - few) / 2;
        gckpt_plan *p = plan_in(r, middle);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        int enough = (proven ? info.proven_cost : info.cost) <= work;
        size_t bytes = gckpt_plan_bytes(p);
        gckpt_plan_free(p);
        if (first && enough)
            return proven ? r->proven : few;
        if (enough)
            many = proven ? middle : bytes;
        else
            few = middle;
    }
    return proven ? few : many;
}

/* Returns the column of the table for plans with at most this cost. */
static column column_of(const range *r, uint64_t work)
{
    column c = { 0, 0, 0, 0 };
    gckpt_plan *p = plan_in(r, r->all);
    c.none = gckpt_plan_describe(p).cost > work;
    gckpt_plan_free(p);
    if (c.none)
        return c;
    c.bytes = fewest(r, work, 0);
    c.proven = fewest(r, work, 1);
    p = plan_in(r, c.bytes);
    c.gap = gckpt_plan_describe(p).gap;
    gckpt_plan_free(p);
    return c;
}

/* Returns the column for the plan with the least bytes, and stores its extra time compared with a step as built in
 * *extra. */
static column last_column(const range *r, uint64_t step, double *extra)
{
    gckpt_plan *p = plan_in(r, r->least);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    column c = { 0, r->least, r->proven, info.gap };
    *extra = (double)info.cost / (double)step - 1;
    gckpt_plan_free(p);
    return c;
}

static uint64_t cost_with(uint64_t step, double extra)
{
    return step + (uint64_t)(extra * (double)step);
}

/* Fills in the curves of the picture, with more budgets where bytes are few. */
static void sample(subject *s)
{
    /* the proven bound at the least bytes also holds for fewer bytes */
    pareto_add(&s->least, s->built.proven - s->built.others, s->last - s->columns[EXTRAS].gap);
    for (int i = 0; i < SAMPLES; i++) {
        const double at = (double)i / (SAMPLES - 1);
        const range *r = &s->built;
        const size_t budget = r->least + (size_t)((double)(r->all - r->least) * at * at * at);
        gckpt_plan *p = plan_in(r, budget);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        pareto_add(&s->lines[OPTIMAL], net_bytes(p), info.overhead);
        pareto_add(&s->least, budget - r->others, info.overhead - info.gap);
        gckpt_plan_free(p);
    }
    pareto_finish(&s->lines[OPTIMAL]);
}

/* ---- the other planners ---- */
static int one_plan(const net *n, gckpt_mode mode, pareto *c)
{
    gckpt_plan *p = plan_of(n, mode, 1, 0);
    if (p == NULL) {
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
        return 0;
    }
    pareto_add(c, net_bytes(p), gckpt_plan_describe(p).overhead);
    gckpt_plan_free(p);
    return 1;
}

/* Compares each point of another planner with the plan for exactly its bytes. */
static comparison compare_line(const range *r, const pareto *theirs)
{
    comparison d = { theirs->n, 0, 0, 0, 0, -1 };
    for (int i = 0; i < theirs->n; i++) {
        gckpt_plan *p = plan_of(r->n, GCKPT_OPTIMAL, 1, theirs->p[i].bytes + r->others);
        if (p != NULL) {
            const double more = gckpt_plan_describe(p).overhead - theirs->p[i].overhead;
            const double ratio = more / (1 + theirs->p[i].overhead);
            d.slower += more > 0;
            d.clearly += more > 0.001;
            d.mean += ratio / theirs->n;
            d.worst = ratio > d.worst ? ratio : d.worst;
        }
        d.none += p == NULL;
        gckpt_plan_free(p);
    }
    return d;
}

static int examine(subject *s, int lowered)
{
    net *n = &s->n;
    if (!one_plan(n, GCKPT_STORE_ALL, &s->lines[STORE_ALL]) ||
        !one_plan(n, GCKPT_SEGMENTS, &s->lines[PER_BLOCK]) ||
        !one_plan(n, GCKPT_SQRT, &s->lines[SQRT]) ||
        !open_range(&s->built, n, 1, &s->lines[OPTIMAL]))
        return 0;
    s->lines[ROTOR] = rotor_pareto(n, 0);
    s->lines[ROTOR_OPTIONS] = rotor_pareto(n, 1);
    pareto_finish(&s->lines[OPTIMAL]);
    for (int k = 0; k < OPTIMAL; k++) {
        if (s->lines[k].n == 0)
            return 0;
        s->comparisons[k] = compare_line(&s->built, &s->lines[k]);
    }
    for (int x = 0; x < EXTRAS; x++)
        s->columns[x] = column_of(&s->built, cost_with(s->built.step, extras[x]));
    s->columns[EXTRAS] = last_column(&s->built, s->built.step, &s->last);
    if (!lowered)
        return 1;
    pareto unused = { NULL, 0, 0 };
    int good = open_range(&s->lowered, n, 0, &unused);
    free(unused.p);
    if (!good)
        return 0;
    s->fastest = (double)s->lowered.step / (double)s->built.step - 1;
    s->chosen[0] = column_of(&s->lowered, s->lowered.step);
    for (int x = 1; x < EXTRAS; x++)
        s->chosen[x] = column_of(&s->lowered, cost_with(s->built.step, extras[x - 1]));
    s->chosen[EXTRAS] = last_column(&s->lowered, s->built.step, &s->chosen_last);
    return 1;
}

/* ---- time ---- */
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures the time to plan the frontier, and to plan for each of ten budgets between the least bytes and those of
 * store-all. For graphs of fewer than 1,000 ops, the times are the least of three measurements. */
static int measure_choice(const net *n, timing *t, size_t all, int chosen)
{
    const int tried = t->ops < 1000 ? 3 : 1;
    double times[BUDGETS], start;
    gckpt_point least = { 0 };
    int good = 1;
    t->frontier[chosen] = 1e9;
    for (int k = 0; k < tried && good; k++) {
        const size_t before = most_taken = taken;
        start = now();
        gckpt_frontier *f = frontier_of(n, !chosen);
        start = now() - start;
        t->memory[chosen] = most_taken - before;
        t->frontier[chosen] = start < t->frontier[chosen] ? start : t->frontier[chosen];
        t->points[chosen] = gckpt_frontier_describe(f).points;
        t->complete[chosen] = gckpt_frontier_describe(f).complete;
        good = gckpt_frontier_get(f, 0, &least) == GCKPT_OK;
        gckpt_frontier_free(f);
    }
    for (int i = 0; i < BUDGETS * tried && good; i++) {
        double *at = &times[i / tried];
        size_t budget = least.bytes + (size_t)((double)(all - least.bytes) * (i / tried) / BUDGETS);
        start = now();
        gckpt_plan *p = plan_of(n, GCKPT_OPTIMAL, !chosen, budget);
        start = now() - start;
        *at = i % tried == 0 || start < *at ? start : *at;
        good = p != NULL;
        gckpt_plan_free(p);
    }
    if (!good) {
        fprintf(stderr, "plans: %s: %s\n", n->name, gckpt_error_text(n->graph));
        return 0;
    }
    qsort(times, BUDGETS, sizeof *times, by_size);
    t->budget[chosen] = (times[BUDGETS / 2 - 1] + times[BUDGETS / 2]) / 2;
    t->slowest[chosen] = times[BUDGETS - 1];
    if (t->memory[chosen] > MEMORY) {
        fprintf(stderr, "plans: %s: the frontier takes %zu bytes of memory, more than %d\n",
                n->name, t->memory[chosen], MEMORY);
        return 0;
    }
    printf("%-30s %6d ops, %s: %8.1f ms a budget (%.1f), %8.1f ms the frontier of %d points\n",
           n->name, t->ops, chosen ? "chosen  " : "as built", t->budget[chosen], t->slowest[chosen],
           t->frontier[chosen], t->points[chosen]);
    fflush(stdout);
    return 1;
}

static int measure(const net *n, timing *t)
{
    gckpt_instruction ins;
    double start = now();
    gckpt_plan *p = plan_of(n, GCKPT_STORE_ALL, 1, 0);
    t->plain = now() - start;
    snprintf(t->name, sizeof t->name, "%s", n->name);
    for (int i = 0; gckpt_plan_get(p, i, &ins) == GCKPT_OK; i++)
        t->ops += ins.kind == GCKPT_FORWARD;
    const size_t all = gckpt_plan_bytes(p);
    gckpt_plan_free(p);
    return measure_choice(n, t, all, 0) && measure_choice(n, t, all, 1);
}
/* ---- output ---- */
static double display_unit(const subject *s)
{
    return s->lines[STORE_ALL].p[0].bytes < 1000000 ? 1e3 : 1e6;
}

/* Returns the point with the fewest bytes whose extra time is at most `extra`, or NULL. */
static const point *at_most(const pareto *c, double extra)
{
    const point *best = NULL;
    for (int i = c->n; i-- > 0;) /* fewer bytes towards 0 */
        if (c->p[i].overhead <= extra + 1e-9)
            best = &c->p[i];
    return best;
}

/* Prints three rows for these columns: bytes of plans, bytes that are proven to be too few, optimality gaps. */
static void print_columns(FILE *f, const char *name, const char *prefix, const column *c,
                          const range *r, double unit, double last)
{
    fprintf(f, "\n| **%s** |", name);
    for (int x = 0; x <= EXTRAS; x++) {
        if (c[x].none)
            fprintf(f, " |");
        else
            fprintf(f, x < EXTRAS ? " %.1f |" : " %.1f at %+.1f %% |",
                    (double)(c[x].bytes - r->others) / unit, 100 * last);
    }
    fprintf(f, "\n| *%sproven: none in* |", prefix);
    for (int x = 0; x <= EXTRAS; x++) {
        if (c[x].none)
            fprintf(f, " |");
        else
            fprintf(f, " *%.1f* |", (double)(c[x].proven - r->others) / unit);
    }
    fprintf(f, "\n| *%sgap* |", prefix);
    for (int x = 0; x <= EXTRAS; x++) {
        if (c[x].none)
            fprintf(f, " |");
        else
            fprintf(f, " *%.2f %%* |", 100 * c[x].gap);
    }
}

static void print_table(FILE *f, const subject *s)
{
    const double unit = display_unit(s);
    fprintf(f, "\n### %s, %s\n\n| planner |", s->n.name, unit < 1e4 ? "KB" : "MB");
    for (int x = 0; x < EXTRAS; x++)
        fprintf(f, " +%.0f %% |", 100 * extras[x]);
    fprintf(f, " least |\n|---|");
    for (int x = 0; x <= EXTRAS; x++)
        fprintf(f, "---|");
    for (int k = 0; k < OPTIMAL; k++) {
        const point *least = &s->lines[k].p[0];
        fprintf(f, "\n| %s |", planners[k]);
        for (int x = 0; x < EXTRAS; x++) {
            const point *p = at_most(&s->lines[k], extras[x]);
            if (p != NULL)
                fprintf(f, " %.1f |", (double)p->bytes / unit);
            else
                fprintf(f, " |");
        }
        fprintf(f, " %.1f at +%.1f %% |", (double)least->bytes / unit, 100 * least->overhead);
    }
    print_columns(f, planners[OPTIMAL], "", s->columns, &s->built, unit, s->last);
    fprintf(f, "\n");
}

/* Prints the extra time of a planner in at most `bytes` bytes. */
static void print_extra(FILE *f, const pareto *c, double bytes)
{
    double extra = -1;
    for (int i = 0; i < c->n && (double)c->p[i].bytes <= bytes; i++)
        extra = 100 * c->p[i].overhead;
    if (extra < 0)
        fprintf(f, " |");
    else
        fprintf(f, " +%.1f %% |", extra);
}

/* Prints the extra time of each planner in few bytes. */
static void print_few(FILE *f, const subject *s)
{
    fprintf(f,
            "\n## %s, in few bytes\n\n"
            "| MB | rotor | rotor with options | **optimal** | *proven: not below* |\n"
            "|---|---|---|---|---|\n",
            s->n.name);
    for (int i = 0; i < FEW; i++) {
        const double bytes = 1e6 * few_megabytes[i];
        const size_t budget = (size_t)bytes + s->built.others;
        fprintf(f, "| %.0f |", few_megabytes[i]);
        print_extra(f, &s->lines[ROTOR], bytes);
        print_extra(f, &s->lines[ROTOR_OPTIONS], bytes);
        if (budget < s->built.least) {
            fprintf(f, " | |\n");
            continue;
        }
        gckpt_plan *p = plan_in(&s->built, budget);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        fprintf(f, " +%.1f %% | *+%.1f %%* |\n", 100 * info.overhead,
                100 * (info.overhead - info.gap));
        gckpt_plan_free(p);
    }
}

/* Prints how many points of the frontiers cost more or less than the plan that is made for the same bytes. */
static void print_points(FILE *f, const subject *s)
{
    int points = 0, above = 0, below = 0;
    double most = 0;
    for (int i = 0; i < 2 * NETS; i++) {
        const range *r = i % 2 ? &s[i / 2].lowered : &s[i / 2].built;
        points += r->points;
        above += r->above;
        below += r->below;
        most = r->most > most ? r->most : most;
    }
    fprintf(f, "\nOf %d points of frontiers, %d cost more than a plan for the same bytes (at most %.1f %% of\n"
               "a step), %d cost less.\n",
            points, above, 100 * most, below);
}

static void print_proofs(FILE *f, const subject *s)
{
    fprintf(f,
            "\n## Near-optimal (proven), of %d evenly spaced budgets\n\n"
            "| network | as built | lowerings chosen | least bytes | proven bytes | ratio |\n"
            "|---|---|---|---|---|---|\n",
            PROVEN);
    for (int i = 0; i < NETS; i++) {
        const range *r = &s[i].built;
        const double least = (double)(r->least - r->others), none = (double)(r->proven - r->others);
        fprintf(f, "| %s | %d |", s[i].n.name, r->proven_points);
        if (s[i].lowered.n != NULL)
            fprintf(f, " %d |", s[i].lowered.proven_points);
        else
            fprintf(f, " |");
        fprintf(f, " %.0f | %.0f | %.2f |\n", least, none, least / none);
    }
    print_points(f, s);
}

/* Prints where the optimal planner is worse than another planner in the same bytes. */
static void print_comparisons(FILE *f, const subject *s)
{
    fprintf(f, "\n## In the same bytes\n\n"
               "| network | planner | points | slower | by over 0.1 %% | mean | worst |\n"
               "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < NETS; i++)
        for (int k = 0; k < OPTIMAL; k++) {
            const comparison *d = &s[i].comparisons[k];
            fprintf(f, "| %s | %s | %d | %d | %d | %+.2f %% | %+.2f %%", s[i].n.name, planners[k],
                    d->points, d->slower + d->none, d->clearly + d->none, 100 * d->mean,
                    100 * d->worst);
            if (d->none > 0)
                fprintf(f, "; no plan in %d", d->none);
            fprintf(f, " |\n");
        }
}

/* Prints how much is saved by choosing among lowerings. */
static void print_chosen(FILE *f, const subject *s)
{
    for (int i = 0; i < NETS; i++) {
        if (s[i].lowered.n == NULL)
            continue;
        fprintf(f, "\n### %s, lowerings chosen, MB\n\n| | %+.1f %% |", s[i].n.name, 100 * s[i].fastest);
        column built[EXTRAS + 1] = { { 1, 0, 0, 0 } };
        memcpy(built + 1, s[i].columns, (EXTRAS - 1) * sizeof *built);
        built[EXTRAS] = s[i].columns[EXTRAS];
        for (int x = 1; x < EXTRAS; x++)
            fprintf(f, " +%.0f %% |", 100 * extras[x - 1]);
        fprintf(f, " least |\n|---|");
        for (int x = 0; x <= EXTRAS; x++)
            fprintf(f, "---|");
        built[0].none = s[i].fastest < 0;
        if (!built[0].none)
            built[0] = s[i].columns[0];
        print_columns(f, "as built", "as built, ", built, &s[i].built, 1e6, s[i].last);
        print_columns(f, "chosen", "chosen, ", s[i].chosen, &s[i].lowered, 1e6, s[i].chosen_last);
        fprintf(f, "\n");
    }
}

static void print_timings(FILE *f, const timing *t, int n)
{
    for (int chosen = 0; chosen < 2; chosen++) {
        fprintf(f,
                "\n## Time to plan, %s, ms\n\n| network | ops | store-all | a budget | slowest | per 1,000 ops | frontier | per "
                "1,000 ops | points | MB |\n|---|---|---|---|---|---|---|---|---|---|\n",
                chosen ? "lowerings chosen" : "as built");
        for (int i = 0; i < n; i++)
            fprintf(f, "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d%s | %.1f |\n",
                    t[i].name, t[i].ops, t[i].plain, t[i].budget[chosen], t[i].slowest[chosen],
                    1e3 * t[i].budget[chosen] / t[i].ops, t[i].frontier[chosen],
                    1e3 * t[i].frontier[chosen] / t[i].ops, t[i].points[chosen],
                    t[i].complete[chosen] ? "" : " *", (double)t[i].memory[chosen] / 1e6);
    }
}

static void print_all(FILE *f, const subject *s, const timing *t, int timed)
{
    fprintf(f, "# Plans\n");
    for (int i = 0; i < NETS; i++)
        print_table(f, &s[i]);
    print_few(f, s);
    print_proofs(f, s);
    print_comparisons(f, s);
    print_chosen(f, s);
    print_timings(f, t, timed);
}

/* ---- the chart ---- */

/* Draws a frontier as stairs, since between two points the plan of the point with fewer bytes must be taken. */
static void draw_curve(plot *p, const char *name, double width, const pareto *c, double x_max)
{
    double *x = (double *)rotor_new(2 * (size_t)c->n, sizeof *x);
    double *y = (double *)rotor_new(2 * (size_t)c->n, sizeof *y);
    int n = 0;
    for (int i = c->n; i-- > 0;) { /* from the point with the most bytes to the one with the fewest */
        double megabytes = (double)c->p[i].bytes / 1e6, percent = 100 * c->p[i].overhead;
        if (megabytes > x_max)
            continue;
        x[n] = n > 0 ? x[n - 1] : i + 1 < c->n ? x_max : megabytes;
        y[n++] = percent;
        x[n] = megabytes;
        y[n++] = percent;
    }
    plot_line(p, name, width, x, y, n, 0.5, 0.06);
    free(x);
    free(y);
}

/* Draws the optimality gap: the area between the frontier and the proven bound. */
static void draw_gap(const plot *p, const subject *s)
{
    const pareto *c = &s->lines[OPTIMAL];
    const double left = (double)c->p[0].bytes / 1e6;
    const double none = (double)(s->built.proven - s->built.others) / 1e6;
    const double bare = none > p->x0 ? none : p->x0;
    fprintf(p->file, "<path fill=\"#f3c9a5\" fill-opacity=\"0.7\" d=\"M%.1f %.1fH%.1f",
            plot_x(p, bare), plot_y(p, p->y1), plot_x(p, left));
    for (int i = 0; i < c->n; i++) { /* stairs downwards, in the direction of more bytes */
        double x = (double)c->p[i].bytes / 1e6, y = 100 * c->p[i].overhead;
        if (x <= p->x1)
            fprintf(p->file, "H%.1fV%.1f", plot_x(p, x), plot_y(p, y < p->y1 ? y : p->y1));
    }
    fprintf(p->file, "H%.1f", plot_x(p, p->x1));
    for (int i = s->least.n; i-- > 0;) { /* and back */
        double x = (double)s->least.p[i].bytes / 1e6, y = 100 * s->least.p[i].overhead;
        if (x <= p->x1)
            fprintf(p->file, "L%.1f %.1f", plot_x(p, x), plot_y(p, y < p->y1 ? y : p->y1));
    }
    fprintf(p->file, "H%.1fz\"/>\n", plot_x(p, bare));
    double right = bare; /* position from which half of the height is free for the text */
    for (int i = 0; i < c->n && 100 * c->p[i].overhead > p->y1 / 2; i++)
        right = (double)c->p[i].bytes / 1e6;
    if (plot_x(p, right) - plot_x(p, bare) > 40)
        fprintf(p->file,
                "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\" "
                "fill=\"#8a4b1c\">nobody knows</text>\n",
                (plot_x(p, bare) + plot_x(p, right)) / 2, plot_y(p, 0.5 * p->y1));
}

/* Draws a planner with a single point: a dot, and the planner's name `up` pixels above. */
static void draw_dot(const plot *p, const pareto *c, const char *label, int up)
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

static void draw(FILE *f, const subject *s)
{
    const pareto *c = s->lines;
    char title[2][80], label[80];
    snprintf(title[0], sizeof title[0], "%s: all of it", s->n.name);
    snprintf(title[1], sizeof title[1], "%s: few bytes", s->n.name);
    double all = (double)c[STORE_ALL].p[0].bytes / 1e6;
    plot p[2] = { { title[0], "MB of activations, their gradients, workspace", "extra time, %", 0,
                    all * 1.04, 0, 50, NULL, 0, 0, 0 },
                  { title[1], "MB of activations, their gradients, workspace", "extra time, %", 100,
                    500, 0, 100, NULL, 0, 0, 0 } };
    int same = c[SQRT].p[0].bytes == c[PER_BLOCK].p[0].bytes;
    snprintf(label, sizeof label, same ? "per block, sqrt" : "per block");
    plot_open(f, 2);
    for (int i = 0; i < 2; i++) {
        plot_axes(&p[i], f, i);
        draw_gap(&p[i], s);
        draw_curve(&p[i], planners[OPTIMAL], 3, &c[OPTIMAL], p[i].x1);
        draw_curve(&p[i], planners[ROTOR_OPTIONS], -2, &c[ROTOR_OPTIONS], p[i].x1);
        draw_curve(&p[i], planners[ROTOR], 1.5, &c[ROTOR], p[i].x1);
        draw_curve(&p[i], "proven: no schedule is below", -1, &s->least, p[i].x1);
        draw_dot(&p[i], &c[STORE_ALL], planners[STORE_ALL], 30);
        draw_dot(&p[i], &c[PER_BLOCK], label, 6);
        if (!same)
            draw_dot(&p[i], &c[SQRT], planners[SQRT], -16);
    }
    plot_close(f);
}

static void close_subject(subject *s)
{
    for (int k = 0; k < PLANNERS; k++)
        free(s->lines[k].p);
    free(s->least.p);
    net_free(&s->n);
}

int main(int argc, char **argv)
{
    static subject s[NETS];
    timing times[NETS + 3] = { 0 };
    gpt_size four = gpt2_124m;
    four.batch = 4;
    gpt_size short4 = four;
    short4.context = 64;
    if (argc != 3) {
        fprintf(stderr, "usage: plans TABLES.md CURVES.svg\n");
        return 2;
    }
    int good = net_gpt(&s[0].n, "GPT-2 124M, batch 4 of 1,024", &four) &&
               net_gpt(&s[1].n, "GPT-2 124M, batch 1 of 1,024", &gpt2_124m) &&
               net_encoder_decoder(&s[2].n, "encoder-decoder, 6 + 6 layers", 6) &&
               net_unet(&s[3].n, "U-Net, batch 8 of 256 x 256") &&
               net_mlp(&s[4].n, "MLP, 64 layers", 64) && net_gpt(&s[5].n, "tiny GPT", &gpt_mcu) &&
               net_gpt(&s[6].n, "GPT-2 124M, batch 4 of 64", &short4) &&
               net_gpt(&s[7].n, "6 layers of 384, 1,024 tokens", &gpt_384) &&
               net_llama(&s[8].n, "SmolLM2-135M, 2,048 tokens", 2048, 0);
    for (int i = 0; i < NETS && good; i++) {
        good = measure(&s[i].n, &times[i]) && examine(&s[i], i == 0 || i == 2);
        if (good)
            print_table(stdout, &s[i]);
        fflush(stdout);
    }
    if (good)
        sample(&s[0]);
    for (int i = 0; i < 3 && good; i++) {
        net n;
        gpt_size xl = { 48, 25, 1600, 1024, 50257, 1 }, deep = gpt2_124m;
        deep.layers = 1000;
        good = (i == 0   ? net_gpt(&n, "GPT-2 1.5B, 48 layers", &xl)
                : i == 1 ? net_mlp(&n, "MLP, 1,000 layers", 1000)
                         : net_gpt(&n, "GPT, 1,000 layers", &deep)) &&
               measure(&n, &times[NETS + i]);
        net_free(&n);
    }
    for (int i = 1; i < 3 && good; i++) {
        FILE *f = fopen(argv[i], "w");
        if (f != NULL && i == 1)
            print_all(f, s, times, NETS + 3);
        else if (f != NULL)
            draw(f, &s[0]);
        if (f == NULL || ferror(f) || fclose(f) != 0) {
            fprintf(stderr, "plans: cannot write %s\n", argv[i]);
            good = 0;
        }
    }
    for (int i = 0; i < NETS; i++)
        close_subject(&s[i]);
    return !good;
}
