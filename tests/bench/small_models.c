/* small_models.c - measures, on one thread, models so small that the overhead of a step matters: the library compared
 * with loops written for each model (by_hand.c), and the cost of a step and of an instruction, from graphs of 1 to
 * 1,000 ops of four elements.
 *
 *     make small_models                 prints both tables
 *     build/small_models NAME ROUNDS    runs ROUNDS steps of one model, for a profiler; NAME: mlp-128, mlp-1, transformer,
 *                                       plain, fast, forward
 *
 * Times are medians in processor time of the process; steps of the library and of the loops alternate. Library and
 * loops train from the same weights on the same rows; the program fails if their losses differ by more than 1e-4. */
#include "model.h"
#include "by_hand.h"
#include <math.h>
#include <string.h>

enum { CHECKED = 20, REPETITIONS = 15 };
/* The learning rate. Times are measured with a rate of 0, so that only the moments change, and with moments that are
 * 0 at the start: after many updates, tiny losses and dead units would lead to subnormal numbers, which are slower. */
static float rate = 1e-3f;

/* ---- the models of by_hand.h ---- */
static mlp_state by_hand_mlp;
static gpt_state by_hand_transformer;
static float pictures[MLP_BATCH * MLP_IN];
static int32_t digits[MLP_BATCH], letters[GPT_T], next[GPT_T];

static gckpt_tensor *param(gckpt_graph *g, const char *name, int64_t rows, int64_t columns)
{
    const gckpt_init init = { 0.1f, 0, 0 };
    return gckpt_param(g, name, columns > 0 ? gckpt_shape2(rows, columns) : gckpt_shape1(rows),
                       init);
}

static gckpt_tensor *square(gckpt_tensor *x, const char *name)
{
    return gckpt_linear(x, param(gckpt_graph_of(x), name, GPT_C, GPT_C), NULL);
}

static void build_mlp(bench *b, int rows)
{
    gckpt_graph *g = b->graph;
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, MLP_IN));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(rows));
    gckpt_tensor *w = param(g, "w1", MLP_IN, MLP_HIDDEN);
    gckpt_tensor *h = gckpt_relu(gckpt_linear(x, w, param(g, "b1", MLP_HIDDEN, 0)));
    w = param(g, "w2", MLP_HIDDEN, MLP_OUT);
    h = gckpt_linear(h, w, param(g, "b2", MLP_OUT, 0));
    b->loss.loss = gckpt_cross_entropy(h, y, NULL, 0);
    b->feeds[0] = (gckpt_feed){ gckpt_id(x), pictures };
    b->feeds[1] = (gckpt_feed){ gckpt_id(y), digits };
}

static void build_transformer(bench *b)
{
    gckpt_graph *g = b->graph;
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, GPT_T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(1, GPT_T));
    gckpt_tensor *x = gckpt_embed(param(g, "letters", GPT_V, GPT_C), tokens);
    x = gckpt_positions(x, param(g, "places", GPT_T, GPT_C), 0);
    gckpt_tensor *n = gckpt_rmsnorm(x, NULL, 0), *q = square(n, "q"), *k = square(n, "k");
    n = gckpt_attention(q, k, square(n, "v"), &(gckpt_attention_desc){ .heads = GPT_HEADS, .causal = 1 });
    x = gckpt_add(x, square(n, "o"));
    n = gckpt_linear(gckpt_rmsnorm(x, NULL, 0), param(g, "up", GPT_C, GPT_UP), NULL);
    n = gckpt_linear(gckpt_gelu(n), param(g, "down", GPT_UP, GPT_C), NULL);
    x = gckpt_rmsnorm(gckpt_add(x, n), NULL, 0);
    b->loss.loss = gckpt_cross_entropy(square(x, "head"), targets, NULL, 0);
    b->feeds[0] = (gckpt_feed){ gckpt_id(tokens), letters };
    b->feeds[1] = (gckpt_feed){ gckpt_id(targets), next };
}

/* ---- n ops of four elements ---- */
static const float four[4] = { 1, 2, 3, 4 }, zeros[4];

static void build_chain(bench *b, int ops)
{
    gckpt_graph *g = b->graph;
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 4));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(1, 4));
    gckpt_tensor *h = gckpt_mul(x, param(g, "w", 4, 0));
    for (int i = 0; i < ops; i++)
        h = gckpt_relu(h);
    b->loss.loss = gckpt_mean_squared_error(h, y, NULL);
    b->feeds[0] = (gckpt_feed){ gckpt_id(x), four };
    b->feeds[1] = (gckpt_feed){ gckpt_id(y), zeros };
}

/* ---- running them ---- */
typedef struct {
    const char *name;
    int rows, ops; /* ops: of a chain */
    int plain, forward;
    int taken; /* steps of by_hand */
} task;

static int build(bench *b, const task *t)
{
    memset(b, 0, sizeof *b);
    const gckpt_plan_desc desc = { .mode = t->forward ? GCKPT_INFERENCE : GCKPT_STORE_ALL,
                                   .kernels.plain = t->plain };
    b->store = gckpt_store_new(NULL);
    b->graph = gckpt_graph_new(b->store, NULL);
    b->loss.weight = 1;
    if (t->ops > 0)
        build_chain(b, t->ops);
    else if (strcmp(t->name, "transformer") == 0)
        build_transformer(b);
    else
        build_mlp(b, t->rows);
    b->plan = gckpt_plan_new(b->graph, &b->loss, 1, &desc);
    if (b->plan == NULL)
        fprintf(stderr, "%s\n", gckpt_error_text(b->graph));
    const gckpt_exec_desc initial = { .allow_initial = 1 };
    b->exec = b->plan != NULL ? gckpt_exec_new(b->plan, b->store, &initial) : NULL;
    return b->exec != NULL;
}

/* Runs one step of the task and returns the loss, or NaN on an error. */
static double step(bench *b, const task *t)
{
    const gckpt_hyper adamw = gckpt_hyper_lr(rate);
    gckpt_report report = { 0 };
    gckpt_result result = t->forward ? gckpt_forward(b->exec, b->feeds, 2, t->rows, &report)
                                     : gckpt_step(b->exec, b->feeds, 2, t->rows, &adamw, &report);
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(b->exec));
    return result == GCKPT_OK ? report.loss : (double)NAN;
}

static double step_by_hand(task *t)
{
    t->taken++;
    if (strcmp(t->name, "transformer") == 0)
        return by_hand_gpt(&by_hand_transformer, letters, next, rate, t->taken);
    return (t->rows == 1 ? by_hand_mlp_1 : by_hand_mlp_128)(&by_hand_mlp, pictures, digits, rate,
                                                            t->taken);
}

/* Runs `rounds` steps, by the library or by hand, and returns the mean seconds of a step. */
static double time_steps(bench *b, task *t, int rounds, int by_hand)
{
    for (int i = 0; i < gckpt_store_count(b->store); i++) {
        gckpt_parameter q;
        gckpt_store_get(b->store, i, &q);
        for (int k = 0; k < 4 && q.state[k] != NULL; k++)
            memset(q.state[k], 0, (size_t)q.elements * sizeof *q.state[k]);
    }
    memset(&by_hand_mlp.m, 0, sizeof by_hand_mlp.m);
    memset(&by_hand_mlp.v, 0, sizeof by_hand_mlp.v);
    memset(&by_hand_transformer.m, 0, sizeof by_hand_transformer.m);
    memset(&by_hand_transformer.v, 0, sizeof by_hand_transformer.v);
    double start = now();
    for (int i = 0; i < rounds; i++)
        if (by_hand)
            step_by_hand(t);
        else
            step(b, t);
    return (now() - start) / rounds;
}

static int rounds_for(bench *b, task *t, double seconds)
{
    int rounds = 4;
    while (rounds < 1 << 24 && time_steps(b, t, rounds, 0) * rounds < seconds)
        rounds *= 2;
    return rounds;
}

/* Copies the library's weights, in the order of creation, to the arrays of the loops written by hand. */
static void copy_params(const bench *b, float *to)
{
    for (int i = 0; i < gckpt_store_count(b->store); i++) {
        gckpt_parameter q;
        gckpt_store_get(b->store, i, &q);
        memcpy(to, q.values, (size_t)q.elements * sizeof *to);
        to += q.elements;
    }
}

static int compare(task *t)
{
    double took[2][REPETITIONS], worst = 0;
    bench b;
    int good = build(&b, t), rounds = 0;
    rate = 1e-3f;
    memset(&by_hand_mlp, 0, sizeof by_hand_mlp);
    memset(&by_hand_transformer, 0, sizeof by_hand_transformer);
    if (good)
        copy_params(&b, strcmp(t->name, "transformer") == 0 ? by_hand_transformer.p.letters
                                                            : by_hand_mlp.p.w1);
    for (int i = 0; i < CHECKED && good; i++) {
        double difference = fabs(step(&b, t) - step_by_hand(t));
        good = difference <= 1e-4; /* false for NaN */
        worst = difference > worst ? difference : worst;
    }
    rate = 0;
    if (good)
        rounds = rounds_for(&b, t, 0.01);
    for (int i = 0; i < REPETITIONS && good; i++)
        for (int hand = 0; hand < 2; hand++)
            took[hand][i] = time_steps(&b, t, rounds, hand);
    if (good)
        printf("| %s | %.2f | %.2f | %.2f | %.0e |\n", t->name, 1e6 * median(took[0], REPETITIONS),
               1e6 * median(took[1], REPETITIONS),
               median(took[0], REPETITIONS) / median(took[1], REPETITIONS), worst);
    else
        fprintf(stderr, "small_models: %s: losses differ by more than 1e-4\n", t->name);
    bench_free(&b);
    return good;
}

/* Fits a line to the microseconds of a step over its number of instructions, by least squares of relative errors, so
 * that short steps count as much as long ones. */
static int fit(task *t)
{
    static const int ops[] = { 1, 3, 10, 30, 100, 300, 1000 };
    enum { COUNT = sizeof ops / sizeof *ops };
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;
    int good = 1;
    for (int i = 0; i < COUNT && good; i++) {
        double took[REPETITIONS], n = 0, us;
        gckpt_instruction in;
        bench b;
        t->ops = ops[i];
        good = build(&b, t);
        int rounds = good ? rounds_for(&b, t, 0.005) : 0;
        for (int r = 0; r < REPETITIONS && good; r++)
            took[r] = 1e6 * time_steps(&b, t, rounds, 0);
        while (good && gckpt_plan_get(b.plan, (int)n, &in) == GCKPT_OK)
            n++;
        bench_free(&b);
        if (!good)
            return 0;
        us = median(took, REPETITIONS);
        double weight = 1 / (us * us);
        w += weight, x += weight * n, y += weight * us;
        xx += weight * n * n, xy += weight * n * us;
    }
    double slope = (w * xy - x * y) / (w * xx - x * x);
    printf("| %s | %.2f | %.1f |\n", t->name, (y - slope * x) / w, 1e3 * slope);
    return 1;
}

int main(int argc, char **argv)
{
    static task models[] = { { "mlp-128", MLP_BATCH, 0, 0, 0, 0 },
                             { "mlp-1", 1, 0, 0, 0, 0 },
                             { "transformer", 1, 0, 0, 0, 0 } };
    static task chains[] = { { "fast", 1, 100, 0, 0, 0 },
                             { "plain", 1, 100, 1, 0, 0 },
                             { "forward", 1, 100, 0, 1, 0 },
                             { "forward, plain", 1, 100, 1, 1, 0 } };
    uint32_t random = 1;
    int good = 1;
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    for (int i = 0; i < MLP_BATCH * MLP_IN; i++)
        pictures[i] = (float)((random = random * 1664525 + 1013904223) >> 16) / 65536;
    for (int i = 0; i < MLP_BATCH; i++)
        digits[i] = i * 7 % MLP_OUT;
    for (int i = 0; i < GPT_T; i++)
        letters[i] = i * 5 % 11, next[i] = (i + 1) * 5 % 11;
    for (int i = 0; i < 7 && argc == 3; i++) {
        task *t = i < 3 ? &models[i] : &chains[i - 3];
        bench b;
        if (strcmp(argv[1], t->name) == 0 && build(&b, t)) {
            printf("%s: %.3f us a step\n", t->name, 1e6 * time_steps(&b, t, atoi(argv[2]), 0));
            bench_free(&b);
            return 0;
        }
    }
    printf("| model | us a step | by hand, us | ratio | losses differ by |\n|---|---|---|---|---|\n");
    for (int i = 0; i < 3 && good; i++)
        good = compare(&models[i]);
    printf("\n| ops of four elements | us a step | ns per instruction |\n|---|---|---|\n");
    for (int i = 0; i < 4 && good; i++)
        good = fit(&chains[i]);
    return !good;
}
