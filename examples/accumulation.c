/* accumulation.c - compares three ways of gradient accumulation: summing and dividing once,
 * taking the mean of means, and never dividing.
 *
 *     cc -O2 -I. examples/accumulation.c -o accumulation
 *     ./accumulation [curves.svg [STEPS]]
 *     mpicc -DACCUMULATION_MPI -O2 -I. examples/accumulation.c -o accumulation-mpi
 *     mpirun -n 4 ./accumulation-mpi
 *
 * A batch of 16 sentences of different lengths is cut into micro-batches of 16, 4 or 1
 * sentences. The right rule sums over all tokens of all micro-batches and divides once by their
 * number N. The library does that, and the gradients are the same to the last bit for each cut.
 * Many trainers compute the mean of each micro-batch, then the mean of these means. A token in a
 * short sentence then counts more than one in a long sentence, so the gradient depends on the
 * cut. The third way, a control, never divides.
 *
 * Processes that share a batch (data parallelism) make the same mistake if each process takes
 * the mean of its rows and all processes then take the mean of the means. The right rule again
 * sums the gradients of all tokens and divides once; with 4 virtual ranks
 * (gckpt_plan_desc.ranks.virtual_ranks), 1, 2 and 4 processes get the same bits.
 *
 * The losses that the three ways report cannot be compared: the mean of means is lower, because
 * short sentences are easier. So every model is also evaluated by the loss per token over all
 * sentences.
 *
 * The optimiser is part of this example, w -= rate * gradient, so that all three ways can use
 * it. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "plot.h"
#ifdef ACCUMULATION_MPI
#include "mpi.h"
static mpi_ranks transport;
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 16, T = 48, V = 128, C = 32, STEPS = 200 };
static const float rate = 0.15f;
static const gckpt_transport *ranks; /* the processes, or NULL if there is only one */
static int rank(void) { return ranks != NULL ? ranks->rank : 0; }
static int size(void) { return ranks != NULL ? ranks->size : 1; }

static const char *const sentences[] = {
    "Yes.",
    "No.",
    "Why?",
    "Rain fell.",
    "The cat slept.",
    "Nobody answered.",
    "She counted the bytes.",
    "He wrote it down at once.",
    "The last train had left the station.",
    "A river runs behind the old mill.",
    "The gradient of a sum is the sum of gradients.",
    "What is thrown away can be computed again.",
    "Every morning the baker opens the shop at five.",
    "It was colder in the valley than on the hill.",
    "Divide once, at the very end, by all the tokens.",
    "Short lines should not shout louder than long ones.",
    "Go.",
    "Stop.",
    "I see.",
    "Not yet.",
    "The wind turned north.",
    "Two birds sat on the wire.",
    "They agreed to the last bit.",
    "Memory is what is left when time is spent.",
};
enum { SENTENCES = sizeof sentences / sizeof sentences[0] };

/* Fills a row with a sentence. Positions after the sentence's end get the target -1, which the loss
 * ignores. */
static void put_sentence(const char *s, int32_t tokens[T], int32_t targets[T])
{
    const int n = (int)strlen(s);
    for (int t = 0; t < T; t++) {
        tokens[t] = t < n ? s[t] : 0;
        targets[t] = t + 1 < n ? s[t + 1] : -1;
    }
}

/* Fills the batch of a step: 16 sentences in ascending order of length, as in programs that reduce
 * padding. */
static void draw_batch(int step, int32_t tokens[BATCH][T], int32_t targets[BATCH][T])
{
    const char *row[BATCH];
    for (int r = 0; r < BATCH; r++) {
        int k = r;
        const char *s = sentences[(step * 7 + r * 5 + r * r) % SENTENCES];
        for (; k > 0 && strlen(row[k - 1]) > strlen(s); k--)
            row[k] = row[k - 1];
        row[k] = s;
    }
    for (int r = 0; r < BATCH; r++)
        put_sentence(row[r], tokens[r], targets[r]);
}

/* The gradients of all parameters in a step, in order. The function collect fills this struct: as a
 * user-defined optimiser, it gets the gradients, divided by the number of tokens of the step. */
typedef struct {
    float *gradient;
    int64_t n;
} collected;

static void collect(void *user, const gckpt_update *u)
{
    collected *c = (collected *)user;
    memcpy(c->gradient + c->n, u->gradient, (size_t)u->elements * sizeof(float));
    c->n += u->elements;
}

/* One of the compared ways to train: a model whose steps process `rows` rows in micro-batches of
 * `micro` rows. */
typedef struct {
    const char *name;
    /* micro: rows of a micro-batch; rows: rows of a step. If rows is BATCH, the library accumulates
     * the gradient of a batch; if rows is less, this program accumulates it */
    int micro, rows;
    int divide; /* nonzero: this program averages the mean gradients of the steps of a batch */
    int virtual_ranks; /* if above 0, the library divides the batch among the processes */
    /* if 1, this program divides the batch among the processes; if rank_means and virtual_ranks
     * are 0, each process computes the whole batch */
    int rank_means;
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    gckpt_plan *eval_plan; /* plan for the evaluation on all sentences */
    gckpt_exec *eval_exec;
    int tokens, targets;
    collected collected; /* the gradient of one call of gckpt_step */
    double *sum;    /* the gradient summed over the calls for a batch */
    float *gradient;
    int64_t n;
    /* loss and gradient norm of a batch, as this way computes them */
    double loss, norm;
    double total;                           /* sum of the losses of all tokens of a batch */
    int64_t count;                          /* number of tokens in a batch */
    /* for each step: reported: the loss that this way computes; all: the loss per token over all
     * sentences */
    double reported[STEPS], all[STEPS + 1];
    uint64_t hash;
} method;

static gckpt_tensor *linear(gckpt_tensor *x, const char *name, int64_t in, int64_t out)
{
    gckpt_init init = { 0.15f, 0, 0 };
    return gckpt_linear(x, gckpt_param(gckpt_graph_of(x), name, gckpt_shape2(in, out), init), NULL);
}

/* Builds a model that consists of an attention layer and an MLP, both residual. */
static int build_model(method *w)
{
    gckpt_init normal = { 0.15f, 0, 0 };
    w->store = gckpt_store_new(NULL);
    if (w->virtual_ranks > 0 && ranks != NULL)
        gckpt_store_ranks(w->store, rank(), size(), GCKPT_SHARD_NONE);
    gckpt_graph *g = w->graph = gckpt_graph_new(w->store, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(w->micro, T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(w->micro, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *x = gckpt_embed(table, tokens);
    x = gckpt_positions(x, gckpt_param(g, "places", gckpt_shape2(T, C), normal), 0);
    gckpt_tensor *q = linear(x, "q", C, C), *k = linear(x, "k", C, C), *v = linear(x, "v", C, C);
    x = gckpt_add(x, gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
    x = gckpt_add(x, linear(gckpt_gelu(linear(x, "in", C, 2 * C)), "out", 2 * C, C));
    gckpt_term loss = { gckpt_linear_cross_entropy(gckpt_layernorm(x, NULL, NULL, 0), table, targets, NULL),
                        1, 0 };

    gckpt_plan_desc desc = { .batch = w->rows,
                             .optimiser = GCKPT_CUSTOM_OPTIMISER,
                             .ranks.virtual_ranks = w->virtual_ranks };
    gckpt_exec_desc bind = { .custom_optimiser = collect, .user = &w->collected, .allow_initial = 1 };
    if (w->virtual_ranks > 0)
        bind.transport = ranks;
    w->plan = gckpt_plan_new(g, &loss, 1, &desc);
    w->exec = w->plan == NULL ? NULL : gckpt_exec_new(w->plan, w->store, &bind);
    desc.mode = GCKPT_INFERENCE;
    desc.batch = 0;
    desc.ranks.virtual_ranks = 0; /* every process evaluates all sentences */
    w->eval_plan = w->exec == NULL ? NULL : gckpt_plan_new(g, &loss, 1, &desc);
    w->eval_exec = w->eval_plan == NULL ? NULL : gckpt_exec_new(w->eval_plan, w->store, &bind);
    if (w->eval_exec == NULL) {
        fprintf(stderr, "accumulation: %s\n",
                gckpt_error_text(gckpt_error(g) != GCKPT_OK ? (void *)g : (void *)w->store));
        return 0;
    }
    w->tokens = gckpt_id(tokens);
    w->targets = gckpt_id(targets);
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(w->store, i, &p) == GCKPT_OK; i++)
        w->n += p.elements;
    w->collected.gradient = (float *)calloc((size_t)w->n, sizeof(float));
    w->gradient = (float *)calloc((size_t)w->n, sizeof(float));
    w->sum = (double *)calloc((size_t)w->n, sizeof(double));
    return w->collected.gradient != NULL && w->gradient != NULL && w->sum != NULL;
}

/* Computes the loss per token over all sentences, which training should reduce. */
static int judge(method *w, double *loss)
{
    static int32_t tokens[SENTENCES][T], targets[SENTENCES][T];
    const gckpt_feed feeds[2] = { { w->tokens, tokens }, { w->targets, targets } };
    gckpt_report report;
    for (int r = 0; r < SENTENCES; r++)
        put_sentence(sentences[r], tokens[r], targets[r]);
    if (gckpt_forward(w->eval_exec, feeds, 2, SENTENCES, &report) != GCKPT_OK) {
        fprintf(stderr, "accumulation: %s\n", gckpt_error_text(w->eval_exec));
        return 0;
    }
    *loss = report.loss;
    return 1;
}

/* Replaces n numbers by their means over all processes: exchanges them with the process whose number
 * differs in one bit, for each bit. Returns 1, or 0 after a failure. */
static int mean_of_ranks(float *x, int64_t n)
{
    const size_t bytes = (size_t)n * sizeof *x;
    float *received = (float *)malloc(bytes);
    int done = received != NULL;
    for (int bit = 1; bit < size() && done == 1; bit *= 2) {
        done = ranks->exchange(ranks->user, rank() ^ bit, x, bytes, received, bytes) ? 0 : -1;
        while (done == 0)
            done = ranks->done(ranks->user);
        for (int64_t i = 0; i < n && done == 1; i++)
            x[i] += received[i];
    }
    for (int64_t i = 0; i < n; i++)
        x[i] /= (float)size();
    free(received);
    return done == 1;
}

/* Computes the gradient of a batch in the way of *w. */
static int accumulate(method *w, int32_t tokens[BATCH][T], int32_t targets[BATCH][T])
{
    const gckpt_hyper hyper = gckpt_hyper_lr(0);
    const int rank_rows = w->rank_means ? BATCH / size() : BATCH;
    double parts = (double)rank_rows / w->rows;
    w->loss = w->total = 0;
    w->count = 0;
    memset(w->sum, 0, (size_t)w->n * sizeof(double));
    for (int row = 0; row < rank_rows; row += w->rows) {
        int64_t first = rank_rows < BATCH ? rank_rows * rank() : 0;
        if (w->virtual_ranks > 0)
            gckpt_plan_rank_rows(w->plan, BATCH, rank(), &first);
        gckpt_feed feeds[2] = { { w->tokens, tokens[row + first] },
                                { w->targets, targets[row + first] } };
        gckpt_report report;
        w->collected.n = 0;
        if (gckpt_step(w->exec, feeds, 2, w->rows, &hyper, &report) != GCKPT_OK) {
            fprintf(stderr, "accumulation: %s\n", gckpt_error_text(w->exec));
            return 0;
        }
        w->count += report.count;
        w->total += report.loss * (double)report.count;
        if (w->rows == BATCH) { /* the library has divided by N */
            memcpy(w->gradient, w->collected.gradient, (size_t)w->n * sizeof(float));
            w->loss = report.loss;
            continue;
        }
        /* If divide is nonzero, weights the mean gradient of this call by 1 / parts. If divide is
         * 0, multiplies it by the count, which undoes the division that the library made. */
        double scale = w->divide ? 1 / parts : (double)report.count;
        w->loss += w->divide ? report.loss / parts : report.loss * (double)report.count;
        for (int64_t i = 0; i < w->collected.n; i++) {
            w->sum[i] += scale * (double)w->collected.gradient[i];
            w->gradient[i] = (float)w->sum[i];
        }
    }
    float loss = (float)w->loss;
    if (rank_rows < BATCH && (!mean_of_ranks(w->gradient, w->n) || !mean_of_ranks(&loss, 1)))
        return 0;
    w->loss = rank_rows < BATCH ? (double)loss : w->loss;
    return 1;
}

static void update(method *w)
{
    gckpt_parameter p;
    const float *g = w->gradient;
    for (int i = 0; gckpt_store_get(w->store, i, &p) == GCKPT_OK; g += p.elements, i++)
        for (int64_t k = 0; k < p.elements; k++)
            p.values[k] -= rate * g[k];
}

static double square_root(double x)
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 200 && x > 0; i++)
        r = (r + x / r) / 2;
    return x > 0 ? r : 0;
}

/* Returns the Euclidean norm of a - b, or of a if b is NULL. Both have n elements. */
static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (b == NULL ? 0 : (double)b[i]);
        sum += d * d;
    }
    return square_root(sum);
}

static uint64_t hash(const float *x, int64_t n) /* returns the FNV-1a hash of 64 bits */
{
    const unsigned char *p = (const unsigned char *)x;
    uint64_t h = 14695981039346656037u;
    for (int64_t i = 0; i < n * 4; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static int draw_curves(const char *path, const method *methods, const char *const *names, int n,
                       int steps)
{
    plot panels[2] = {
        { "The loss as each method reports it", "step", "nats per token", 0, STEPS, 1, 6, NULL, 0, 0,
          0 },
        { "Loss on all sentences, above that of the right method", "step", "nats per token", 0, STEPS,
          -0.1, 0.4, NULL, 0, 0, 0 },
    };
    /* curves that are equal remain visible, because later ones are thinner */
    static const double widths[] = { 7, 4, 1.5, 1.5, 1.5, 1.5 };
    double x[STEPS + 1], above[STEPS + 1];
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        fprintf(stderr, "accumulation: cannot write %s: %s; give another path as argument\n",
                path, strerror(errno));
        return 0;
    }
    for (int i = 0; i <= steps; i++)
        x[i] = i;
    plot_open(f, 2);
    for (int k = 0; k < 2; k++) {
        plot_axes(&panels[k], f, k);
        for (int i = 0; i < n; i++) {
            for (int step = 0; step <= steps; step++)
                above[step] = methods[i].all[step] - methods[0].all[step];
            plot_line(&panels[k], names[i], widths[i], x, k == 0 ? methods[i].reported : above,
                      steps + k, 0.42, 0.06);
        }
    }
    plot_close(f);
    int ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    if (!ok)
        fprintf(stderr, "accumulation: cannot write %s: %s\n", path, strerror(errno));
    return ok;
}

static int equal(const method *a, const method *b, int steps)
{
    return a->hash == b->hash && a->norm == b->norm && a->all[steps] == b->all[steps] &&
           gckpt_store_hash(a->store) == gckpt_store_hash(b->store);
}

#ifdef ACCUMULATION_MPI
static int begin_ranks(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    const int ok = mpi_ranks_open(&transport, MPI_COMM_WORLD, 60);
    ranks = transport.ranks.size > 1 ? &transport.ranks : NULL;
    return ok && (rank() == 0 || freopen("/dev/null", "w", stdout) != NULL);
}

static void end_ranks(void)
{
    mpi_ranks_close(&transport);
    MPI_Finalize();
}
#else
static int begin_ranks(int *argc, char ***argv) { return (void)argc, (void)argv, 1; }
static void end_ranks(void) {}
#endif

int main(int argc, char **argv)
{
    static method methods[] = {
        { .name = "sum, one division  1 x 16", .micro = 16, .rows = 16, .divide = 1 },
        { .name = "sum, one division  4 x 4", .micro = 4, .rows = 16, .divide = 1 },
        { .name = "sum, one division  16 x 1", .micro = 1, .rows = 16, .divide = 1 },
        { .name = "mean of means      4 x 4", .micro = 4, .rows = 4, .divide = 1 },
        { .name = "mean of means      16 x 1", .micro = 1, .rows = 1, .divide = 1 },
        { .name = "sum, never divided  4 x 4", .micro = 4, .rows = 4, .divide = 0 },
        { .name = "4 virtual ranks    4 x 4", .micro = 4, .rows = 16, .divide = 1, .virtual_ranks = 4 },
        { .name = "4 virtual ranks    16 x 1", .micro = 1, .rows = 16, .divide = 1, .virtual_ranks = 4 },
        /* only used with two or more processes */
        { .name = "mean of means      ranks", .divide = 1, .rank_means = 1 },
    };
    enum { DRAWN = 6, VIRTUAL = 6, MEANS = 8 };
    static const char *const legend[] = { "sum, one division: 1 x 16", "the same 4 x 4",
                                          "the same 16 x 1",           "mean of means 4 x 4",
                                          "mean of means 16 x 1",      "never divided" };
    static int32_t tokens[BATCH][T], targets[BATCH][T];
    int ok = begin_ranks(&argc, &argv);
    const int given = argc > 2 ? atoi(argv[2]) : 0;
    const int steps = given > 0 && given < STEPS ? given : STEPS;
    const int count = ranks != NULL ? MEANS + 1 : MEANS;

    methods[MEANS].micro = methods[MEANS].rows = BATCH / size();
    for (int i = 0; i < count && ok; i++)
        ok = build_model(&methods[i]);
    if (ok) {
        printf("one batch of %d sentences, the same weights\n", BATCH);
        printf("method                        loss  gradient norm  off by (L2)  gradient bits\n");
    }
    for (int step = 0; step < steps && ok; step++) {
        draw_batch(step, tokens, targets);
        for (int i = 0; i < count && ok; i++) {
            method *w = &methods[i];
            ok = accumulate(w, tokens, targets);
            w->reported[step] = w->loss;
            ok = ok && judge(w, &w->all[step]);
            if (step == 0 && ok) {
                w->norm = distance(w->gradient, NULL, w->n);
                w->hash = hash(w->gradient, w->n);
                printf("%-25s %8.4f %14.6f %12.6f  %016llx\n", w->name, w->loss, w->norm,
                       distance(w->gradient, methods[0].gradient, w->n), (unsigned long long)w->hash);
            }
            update(w);
        }
    }
    for (int i = 0; i < count && ok; i++)
        ok = judge(&methods[i], &methods[i].all[steps]);
    if (ok) {
        printf("\nafter %d steps of plain gradient descent, rate %g: loss per token of all %d "
               "sentences\n",
               steps, (double)rate, (int)SENTENCES);
        for (int i = 0; i < count; i++) {
            const double loss = methods[i].all[steps], more = loss - methods[0].all[steps];
            printf("%-25s ", methods[i].name);
            if (loss - loss != 0)
                printf("diverged                 ");
            else
                printf(i < 3 || i / 2 == VIRTUAL / 2 ? "%8.4f                 "
                                                    : "%8.4f, %.4f too much",
                       loss, more);
            printf("  weights %016llx\n", (unsigned long long)gckpt_store_hash(methods[i].store));
        }
        int same = equal(&methods[0], &methods[1], steps) && equal(&methods[0], &methods[2], steps);
        printf("\n1 x 16, 4 x 4 and 16 x 1 by sum and one division: %s\n",
               same ? "equal bits" : "DIFFERENT");
        same = same && equal(&methods[VIRTUAL], &methods[VIRTUAL + 1], steps);
        printf("4 virtual ranks, by %d process%s, 4 rows or one per pass: %s\n", size(),
               size() > 1 ? "es" : "", same ? "equal bits" : "DIFFERENT");
        /* the other ways must end with a greater loss than methods[0]; NaN counts as greater */
        for (int i = 3; i < count; i++)
            same = same && (i / 2 == VIRTUAL / 2 || !(methods[i].all[steps] <= methods[0].all[steps]));
        const char *path = argc > 1 ? argv[1] : "docs/accumulation.svg";
        ok = same && draw_curves(rank() == 0 ? path : "/dev/null", methods, legend, DRAWN, steps);
    }
    for (int i = 0; i < count; i++) {
        gckpt_exec_free(methods[i].eval_exec);
        gckpt_plan_free(methods[i].eval_plan);
        gckpt_exec_free(methods[i].exec);
        gckpt_plan_free(methods[i].plan);
        gckpt_graph_free(methods[i].graph);
        gckpt_store_free(methods[i].store);
        free(methods[i].collected.gradient);
        free(methods[i].gradient);
        free(methods[i].sum);
    }
    ok = fflush(stdout) == 0 && ok;
    end_ranks();
    return ok ? 0 : 1;
}
