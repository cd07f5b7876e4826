/* plan.c - the least work to train a chain of ops within a budget of bytes, by dynamic programming.
 *
 *     cc -std=c99 -O2 plan.c -o plan && ./plan    10 equal ops: the least work for each budget
 *     ./plan 12 7                                 12 ops, sizes and costs drawn from the seed 7
 *     ./plan 12 7 40                              also prints the schedule for 40 bytes
 *
 * Op i of a chain computes value i from value i-1; the last op, n, computes the loss, a number:
 *
 *     value 0 --op 1--> value 1 --op 2--> value 2 --> ... --> value n-1 --op n--> loss
 *
 * These are the forwards 1 to n. Training then goes back: gradient i is the derivative of the loss
 * with respect to value i, and by the chain rule, backward i computes gradient i-1 from gradient i
 * and value i-1. So a value is read twice: soon by a forward, and much later by a backward. Keeping
 * all values until then takes many bytes. A value that was forgotten is computed again, from an
 * earlier one that was kept: a checkpoint. Which values should be checkpoints, and for how long, so
 * that a step does the least work within the budget?
 *
 * Some ops also save something for their own backward, as dropout saves which numbers it dropped.
 * Forward i writes value i, or what op i saves, or both. The rules of the bytes:
 *   1. All that a forward or backward reads or writes is in memory while it runs.
 *   2. Value i and gradient i take size[i] bytes each; what op i saves takes saved[i]. The loss
 *      takes none: size[n] is 0. Value 0 is given, and is not counted.
 *   3. After backward i, nothing reads gradient i, value i-1 or what op i saved: they go.
 *
 * The method is that of Griewank and Walther (Revolve, 2000) for equal ops, and of Beaumont and
 * others (rotor, 2019) for any. It finds the best persistent schedule: one in which a checkpoint
 * stays until its backward has read it. Other schedules sometimes do less work. */
#include <stdio.h>
#include <stdlib.h>

/* the most ops; the most bytes; more work than any, of which the sum of two is still an int */
enum { OPS = 32, BYTES = 640, NEVER = 500000000 };

/* ---- the chain ---- */
typedef struct {
    int n;                                   /* the ops are 1 to n */
    int size[OPS + 1], saved[OPS + 1];       /* bytes of value i, and of what op i saves */
    int forward[OPS + 1], backward[OPS + 1]; /* work of both, in any unit of time */
} chain;

/* Returns the next random number from low to high; a seed gives the same ones on every machine. */
static int draw(unsigned long *seed, int low, int high)
{
    *seed = (*seed * 1103515245ul + 12345ul) & 0x7ffffffful;
    return low + (int)((*seed >> 16) % (unsigned long)(high - low + 1));
}

/* Returns a chain of n ops drawn from the seed, of which about a third save something; if the seed
 * is 0, n equal ops that save nothing. */
static chain make_chain(int n, unsigned long seed)
{
    chain c = { n, { 1 }, { 0 }, { 0 }, { 0 } };
    const int uneven = seed != 0, most = uneven ? 9 : 1;
    for (int i = 1; i <= n; i++) {
        c.size[i] = i < n ? draw(&seed, 1, most) : 0;
        c.saved[i] = uneven && i < n && draw(&seed, 1, 3) == 1 ? draw(&seed, 1, most) : 0;
        c.forward[i] = draw(&seed, 1, most);
        c.backward[i] = draw(&seed, 1, 2 * most - 1);
    }
    return c;
}

/* Returns whether backward i needs forward i to have run: it saves something, or gives the loss. */
static int must_run(const chain *c, int i) { return c->saved[i] > 0 || i == c->n; }

/* ---- the plan ----
 * The task (s, t, m): gradient t and value s-1 are in memory. Run the backwards t, t-1, .., s in m
 * bytes. The m bytes include gradient t, but not value s-1, which whoever set the task has counted.
 * A step is the task (1, n, all bytes). A task is solved by its best first decision, which leaves
 * smaller tasks. By [s][t][m]: the least work, NEVER if m bytes are too few; and the decision. */
static int work[OPS + 1][OPS + 1][BYTES + 1], decision[OPS + 1][OPS + 1][BYTES + 1];

/* Takes decision k for a task if it does less work in total than those before. */
static void consider(int s, int t, int m, int k, int total)
{
    if (total < work[s][t][m]) {
        work[s][t][m] = total;
        decision[s][t][m] = k;
    }
}

/* Solves the task (s, t, m), after all tasks of fewer ops. */
static void solve_task(const chain *c, int s, int t, int m)
{
    const int written = c->size[s] + c->saved[s]; /* bytes that forward s writes */
    int forwards = 0, need = 0;
    work[s][t][m] = NEVER;
    if (m < c->size[s] + c->saved[s] + c->size[s - 1])
        return; /* backward s needs gradient s, what op s saved, and room for gradient s-1 */
    /* Decision 0 keeps what forward s writes. After the task (s+1, t), only backward s is left.
     * If s is t, nothing reads value s: forward s does not write it, and runs only if it must. */
    if (s == t)
        consider(s, t, m, 0, (must_run(c, s) ? c->forward[s] : 0) + c->backward[s]);
    else if (m >= c->size[t] + written)
        consider(s, t, m, 0, c->forward[s] + work[s + 1][t][m - written] + c->backward[s]);
    /* Decision k runs forwards s to k, and forgets the values before k. Value k is a checkpoint: it
     * is kept for the task (k+1, t), then forgotten. The task (s, k) is left, again with m bytes:
     * gradient k is in place of gradient t, and value s-1 is there. */
    for (int k = s; k < t; k++) {
        const int read = k > s ? c->size[k - 1] : 0, now = c->size[t] + read + c->size[k];
        need = now > need ? now : need; /* the most bytes of the forwards s to k */
        forwards += c->forward[k];
        if (m >= need)
            consider(s, t, m, k, forwards + work[k + 1][t][m - c->size[k]] + work[s][k][m]);
    }
}

/* Solves all tasks of at most `most` bytes: those of one op, then of two, and so on. */
static void solve(const chain *c, int most)
{
    for (int ops = 1; ops <= c->n; ops++)
        for (int s = 1; s + ops - 1 <= c->n; s++)
            for (int m = 0; m <= most; m++)
                solve_task(c, s, s + ops - 1, m);
}

/* ---- the schedule: a list of steps ---- */
enum { BACKWARD = 0, VALUE = 1, SAVED = 2, FORGET = 4 };
/* A step: backward i; or forward i, which writes its VALUE, SAVED or both, and may FORGET i-1. */
typedef struct {
    int what, i;
} step;
typedef struct {
    int count;
    step at[OPS * (OPS + 1)]; /* between two backwards, a forward runs at most once */
} schedule;

static void add(schedule *list, int what, int i) { list->at[list->count++] = (step){ what, i }; }

/* Adds the steps of the task (s, t, m), which solve has found possible. */
static void add_task(const chain *c, int s, int t, int m, schedule *list)
{
    const int k = decision[s][t][m];
    if (k > 0) {
        for (int i = s; i <= k; i++)
            add(list, i > s ? VALUE | FORGET : VALUE, i);
        add_task(c, k + 1, t, m - c->size[k], list);
        add_task(c, s, k, m, list);
        return;
    }
    if (s < t || must_run(c, s))
        add(list, s < t ? VALUE | SAVED : SAVED, s);
    if (s < t)
        add_task(c, s + 1, t, m - c->size[s] - c->saved[s], list);
    add(list, BACKWARD, s);
}

/* Adds the steps of the square-root rule (Chen and others, 2016): every k-th value is a checkpoint,
 * where k is the square root of n, rounded up. Then, from the last checkpoint to the first, the
 * values after it are computed (again) and all kept for their backwards. */
static void add_square_root(const chain *c, schedule *list)
{
    int k = 1;
    while (k * k < c->n)
        k++;
    const int last = (c->n - 1) / k * k;
    for (int i = 1; i <= last; i++)
        add(list, (i - 1) % k > 0 ? VALUE | FORGET : VALUE, i);
    for (int from = last; from >= 0; from -= k) {
        const int to = from + k < c->n ? from + k : c->n;
        for (int i = from + 1; i <= to; i++)
            if (i < to || must_run(c, i))
                add(list, i < to ? VALUE | SAVED : SAVED, i);
        for (int i = to; i > from; i--)
            add(list, BACKWARD, i);
    }
}

/* ---- the check: it knows the rules of the bytes, but not how a schedule was made ---- */
typedef struct {
    int work, peak, step; /* the work of all steps; the most bytes in memory; the step at fault */
    const char *fault;    /* NULL if the schedule is right */
} outcome;

/* Goes through a schedule and computes nothing: notes which data are in memory (1), and adds up. If
 * `print` is nonzero, prints the steps, with a star for each of the values 1 to n-1 in memory. */
static outcome replay(const chain *c, const schedule *list, int print)
{
    int value[OPS + 1] = { 0 }, saved[OPS + 1] = { 0 }, gradient[OPS + 1] = { 0 };
    char stars[OPS + 1] = { 0 };
    outcome o = { 0, 0, 0, NULL };
    for (; o.step < list->count; o.step++) {
        const int what = list->at[o.step].what, i = list->at[o.step].i, back = what == BACKWARD;
        int bytes = 0;
        if (i > 1 && !value[i - 1])
            o.fault = "the value that it reads is not in memory";
        if (back && (!gradient[i] || (c->saved[i] > 0 && !saved[i])))
            o.fault = "the gradient that it reads, or what its op saved, is not in memory";
        if (o.fault)
            return o;
        value[i] |= (what & VALUE) > 0;
        saved[i] |= (what & SAVED) > 0;
        if (back || i == c->n)
            gradient[i - back] = 1; /* in memory; that of the loss itself needs no backward */
        for (int j = 0; j <= c->n; j++) {
            bytes += (value[j] + gradient[j]) * c->size[j] + saved[j] * c->saved[j];
            stars[j] = value[j] ? '*' : '.';
        }
        o.peak = bytes > o.peak ? bytes : o.peak;
        o.work += back ? c->backward[i] : c->forward[i];
        if (print)
            printf("%s %2d %4d bytes  %.*s%s\n", back ? "backward" : " forward", i, bytes, c->n - 1,
                   stars + 1, what & FORGET ? "  forget the one before" : "");
        if (back)
            gradient[i] = saved[i] = 0;
        if (back || (what & FORGET))
            value[i - 1] = 0;
    }
    o.fault = gradient[0] ? NULL : "the list ends before backward 1";
    return o;
}

/* Makes the best schedule in m bytes. Ends the program if it is not what solve has promised. */
static outcome best(const chain *c, int m, int print)
{
    schedule list = { 0, { { 0, 0 } } };
    add_task(c, 1, c->n, m, &list);
    const outcome o = replay(c, &list, print);
    if (o.fault || o.peak > m || o.work != work[1][c->n][m]) {
        printf("WRONG: %d bytes, step %d: %s\n", m, o.step, o.fault ? o.fault : "bytes or work");
        exit(1);
    }
    return o;
}

int main(int argc, char **argv)
{
    schedule rule = { 0, { { 0, 0 } } };
    const int n = argc > 1 ? atoi(argv[1]) : 10, bytes = argc > 3 ? atoi(argv[3]) : BYTES;
    if (n < 1 || n > OPS || bytes < 1 || bytes > BYTES) {
        fprintf(stderr, "plan [OPS, 1 to %d [SEED [BYTES, 1 to %d]]]\n", OPS, BYTES);
        return 2;
    }
    const chain c = make_chain(n, argc > 2 ? strtoul(argv[2], NULL, 10) : 0);
    solve(&c, BYTES);
    const int *least = work[1][n], all = least[BYTES];
    printf("bytes   work   more than without computing again\n");
    for (int m = 1; m <= BYTES; m++)
        if (least[m] < least[m - 1])
            printf("%5d %6d %6.1f %%\n", m, best(&c, m, 0).work, 100.0 * (least[m] - all) / all);
    add_square_root(&c, &rule);
    const outcome o = replay(&c, &rule, 0);
    printf("square-root rule: %d bytes, work %d; the least is %d%s\n", o.peak, o.work,
           least[o.peak], o.fault ? ". WRONG: it does not run" : "");
    if (least[bytes] == NEVER)
        printf("%d bytes are too few\n", bytes);
    else if (argc > 3)
        printf("checked: %d bytes, work %d\n", best(&c, bytes, 1).peak, least[bytes]);
    return 0;
}
