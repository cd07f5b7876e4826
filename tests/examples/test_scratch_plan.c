/* test_scratch_plan.c - docs/course/scratch/plan.c against the library, which plans the same chains, made of synthetic
 * ops whose backward reads the op's input and saved data:
 *   - every schedule of plan.c has the work and the peak that the library computes for the same list;
 *   - equal ops: for each length and budget, the work of GCKPT_OPTIMAL, or both find the budget too small;
 *   - 1,000 random chains: never less work than GCKPT_OPTIMAL in the same bytes. These are the bytes in which the library
 *     places the list. For about one list in 1,000 these are more than the largest sum of its buffers, because the library
 *     finds no better arrangement; then GCKPT_OPTIMAL may do more work in the sum. The test prints how often that is so,
 *     how often the persistent schedule does more work, and how much more.
 * Wrong lists and wrong claims show that each of these checks can fail. Without ITERATIONS, two budgets of a chain. */
#include "gradckpt.h"

#define m made /* plan.c has variables named m */
#include "../search/synthetic.h"
#undef m

#define main plan_main
#include "docs/course/scratch/plan.c"
#undef main

enum { LONGEST = 30, CHAINS = 1000 };

static void build(const chain *c)
{
    const unsigned needs[2] = { GCKPT_IN(0) | GCKPT_SAVED, GCKPT_IN(0) | GCKPT_SAVED };
    int last = -1;
    synth_start();
    const int result = synth_param(c->size[0]); /* its gradient is what backward 1 computes */
    for (int i = 1; i <= c->n; i++) {
        const synth_attributes a = { i < c->n ? c->size[i] : 1, c->saved[i], 0, 0, 0 };
        const gckpt_cost cost = { (uint64_t)c->forward[i], (uint64_t)c->backward[i] };
        last = synth_op(&last, 1, i == 1 ? result : -1, &a, needs, i == c->n, cost);
    }
    synth_finish();
}

static gckpt_plan *plan_in(int bytes)
{
    gckpt_plan_desc d = made.d;
    d.mode = GCKPT_OPTIMAL;
    d.budget = made.base + (size_t)bytes * FLOAT_BYTES;
    return gckpt_plan_new(made.g, made.term, 1, &d);
}

/* Returns the work of GCKPT_OPTIMAL, or NEVER if the bytes are too few. */
static int optimal(int bytes)
{
    gckpt_plan *p = plan_in(bytes);
    const int found = p ? (int)gckpt_plan_describe(p).cost : NEVER;
    gckpt_plan_free(p);
    return found;
}

static gckpt_plan *plan_list(const schedule *list)
{
    static gckpt_instruction steps[OPS * (OPS + 1)];
    gckpt_plan_desc d = made.d;
    for (int x = 0; x < list->count; x++) {
        steps[x].kind = list->at[x].what == BACKWARD ? GCKPT_BACKWARD : GCKPT_FORWARD;
        steps[x].id = gckpt_id(made.t[list->at[x].i - 1]);
    }
    d.mode = GCKPT_SCHEDULE;
    d.schedule.instructions = steps;
    d.schedule.count = list->count;
    return gckpt_plan_new(made.g, made.term, 1, &d);
}

/* Returns whether the replay and the library agree on a list's work and peak; sets the bytes in which it is placed. */
static int agrees(const chain *c, const schedule *list, int *placed)
{
    const outcome o = replay(c, list, 0);
    gckpt_plan *p = plan_list(list);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    *placed = (int)(info.arena / FLOAT_BYTES);
    gckpt_plan_free(p);
    return p && !o.fault && (uint64_t)o.work == info.cost &&
           (size_t)o.peak * FLOAT_BYTES == info.peak;
}

static schedule schedule_in(const chain *c, int bytes)
{
    schedule list = { 0, { { 0, 0 } } };
    add_task(c, 1, c->n, bytes, &list);
    return list;
}

static void equal_ops(void)
{
    int budgets = 0, placed;
    for (int n = 1; n <= LONGEST; n++) {
        const chain c = make_chain(n, 0);
        solve(&c, n + 3);
        build(&c);
        for (int bytes = 1; bytes <= n + 3; bytes++, budgets++) {
            const int least = work[1][n][bytes], found = optimal(bytes);
            CHECK_MSG(found == least, "%d equal ops in %d bytes: work %d, GCKPT_OPTIMAL has %d", n,
                      bytes, least, found);
            if (least == NEVER || least == work[1][n][bytes - 1])
                continue;
            const schedule list = schedule_in(&c, bytes);
            CHECK_MSG(agrees(&c, &list, &placed),
                      "%d equal ops in %d bytes: the library's list differs", n, bytes);
        }
        synth_free();
    }
    printf("equal ops: %d budgets of %d lengths have the work of GCKPT_OPTIMAL\n", budgets,
           LONGEST);
}

static struct {
    int budgets, wider, unplaced, loses, below;
    double sum, worst;
} score;

/* Compares a claim about the least work in these bytes. */
static void compare(const char *what, unsigned seed, int bytes, int claim, int *below)
{
    const int found = optimal(bytes);
    const double loss = (double)claim / (double)found - 1;
    *below += claim < found;
    CHECK_MSG(claim >= found || below != &score.below,
              "%s %u in %d bytes: work %d; GCKPT_OPTIMAL has %d", what, seed, bytes, claim, found);
    score.loses += claim > found;
    score.sum += loss;
    score.worst = loss > score.worst ? loss : score.worst;
}

static void random_chains(void)
{
    for (unsigned seed = check_seed(); seed < check_seed() + CHAINS; seed++) {
        unsigned long state = seed;
        const int n = draw(&state, 2, 12);
        const chain c = make_chain(n, seed + 1);
        int points[BYTES], count = 0, most = 20; /* some more bytes than a backward takes */
        for (int i = 0; i <= n; i++)
            most += c.size[i] + c.saved[i];
        solve(&c, most);
        build(&c);
        for (int bytes = 1; bytes <= most; bytes++)
            if (work[1][n][bytes] < work[1][n][bytes - 1])
                points[count++] = bytes;
        const int all = check_iterations(9) > 1;
        for (int i = 0; i < (all ? count : 2); i++, score.budgets++) {
            const int bytes = points[all ? i : draw(&state, 0, count - 1)];
            const schedule list = schedule_in(&c, bytes);
            int placed = 0;
            CHECK_MSG(agrees(&c, &list, &placed),
                      "chain %u in %d bytes: the library's list differs", seed, bytes);
            score.wider += placed > bytes;
            score.unplaced += placed > bytes && optimal(bytes) > work[1][n][bytes];
            compare("chain", seed, placed > bytes ? placed : bytes, work[1][n][bytes],
                    &score.below);
        }
        synth_free();
    }
    printf(
        "%d random chains, %d budgets: the persistent schedule does more work in %.1f %% of them, %.2f %% on average, "
        "%.1f %% at worst; %d schedules are placed in more bytes, so that GCKPT_OPTIMAL does more work in %d\n",
        CHAINS, score.budgets, 100.0 * score.loses / score.budgets, 100 * score.sum / score.budgets,
        100 * score.worst, score.wider, score.unplaced);
}

/* The smallest chains for which a library without its second chain programme did more work. */
static void smallest(void)
{
    static const struct {
        chain c;
        int bytes, work;
    } found[] = {
        { { 5, { 1, 2, 5, 6, 8 }, { 0 }, { 0, 1, 1, 1, 1, 1 }, { 0, 1, 1, 1, 1, 1 } }, 20, 15 },
        { { 7,
            { 1, 1, 1, 1, 1, 1, 1 },
            { 0 },
            { 0, 5, 7, 2, 9, 2, 9, 4 },
            { 0, 1, 1, 1, 1, 1, 1, 1 } },
          4,
          63 },
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        solve(&found[i].c, found[i].bytes);
        build(&found[i].c);
        CHECK(work[1][found[i].c.n][found[i].bytes] == found[i].work);
        CHECK(optimal(found[i].bytes) == found[i].work);
        synth_free();
    }
}

/* Shows that each check can fail. */
static void wrong(void)
{
    const chain c = make_chain(9, 5), equal = make_chain(10, 0);
    chain small = c, cheap = c;
    int bytes = 1, below = 0, wider = 0, placed;
    solve(&c, BYTES);
    while (work[1][9][bytes] == NEVER)
        bytes++;
    build(&c);
    const schedule right = schedule_in(&c, bytes);
    CHECK(agrees(&c, &right, &placed) && replay(&c, &right, 0).peak == bytes);
    for (int x = 0; x < right.count; x++) {
        schedule list = right;
        memmove(&list.at[x], &list.at[x + 1], (size_t)(right.count - x - 1) * sizeof(step));
        list.count--;
        CHECK_MSG(replay(&c, &list, 0).fault != NULL, "a list without step %d counts as right", x);
        list = right;
        list.at[x].what &= ~FORGET;
        wider += replay(&c, &list, 0).peak > bytes;
    }
    CHECK_MSG(wider > 0, "a list that forgets less takes no more bytes");
    small.size[1] += 9;
    CHECK_MSG(!agrees(&small, &right, &placed),
              "other sizes than the library's make no difference");
    cheap.forward[1]--;
    CHECK_MSG(!agrees(&cheap, &right, &placed),
              "other costs than the library's make no difference");
    solve(&cheap, bytes);
    compare("cheap chain", 5, bytes, work[1][9][bytes], &below);
    CHECK_MSG(below == 1, "a claim of too little work is not noticed");
    synth_free();
    solve(&equal, BYTES);
    schedule rule = { 0, { { 0, 0 } } };
    add_square_root(&equal, &rule);
    const outcome o = replay(&equal, &rule, 0);
    CHECK_MSG(!o.fault && o.work > work[1][10][o.peak], "the square-root rule is optimal");
}

int main(void)
{
    equal_ops();
    random_chains();
    smallest();
    wrong();
    return check_report("test_scratch_plan");
}
