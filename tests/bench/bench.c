/* bench.c - measures how fast this build trains, compared with the peak of this machine.
 *
 *     make bench                                  prints tables and writes build/bench.json
 *     build/bench --only gpt2-t1024 --seconds 20  measures one model
 *     build/bench --help
 *
 * Peaks (fused multiply-adds on all threads in the widest vectors; memory) are sampled immediately before each
 * repetition of a measurement, and medians are compared, so that other programs on a shared machine slow down both.
 * Flops are those of the model: 2 per weight and token in the forward, 4 in the backward; causal attention counts
 * half. Recomputing, zeroing and AdamW do not count as flops, but their time counts. With one thread the clock is
 * the processor time of the process. Bytes are those that must be read and written at least once. Each measurement
 * is a separate process, so that its peak of resident memory is measured alone. */
#include "model.h"
#include "../names.h"
#include "options.h"
#include "peak.h"
#include "convolution.h"
#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- options: this table is the parser and the --help text ---- */
static struct {
    int64_t threads, budget, only, loss, update, bf16, isa, profile, help;
    double seconds;
    const char *json, *markdown;
} o;

typedef struct {
    const char *name, *about;
    size z;
} model;
static const model models[] = {
    { "gpt2-b4", "GPT-2 124M, B4 x T64", { 12, 12, 768, 64, 4, 50257, 1, 0 } },
    { "gpt2-t1024", "GPT-2 124M, B1 x T1024", { 12, 12, 768, 1024, 1, 50257, 1, 0 } },
    { "gpt-192", "6 layers, dim 192, B16 x T256", { 6, 6, 192, 256, 16, 256, 1, 0 } },
    { "gpt-384", "6 layers, dim 384, B16 x T256", { 6, 6, 384, 256, 16, 256, 1, 0 } },
    { "nano", "4 layers, dim 128, B12 x T64", { 4, 4, 128, 64, 12, 65, 1, 0 } },
    { "mlp", "MLP 784-128-10, B128", { 0, 0, 128, 1, 128, 10, 1, 784 } },
};
enum { MODELS = sizeof models / sizeof models[0] };

/* values of --only: everything, then groups of kernels, then models */
enum {
    ALL,
    KERNELS,
    WHOLE_STEPS,
    LINEAR,
    HEAD,
    ATTENTION,
    LOSS,
    MEMORY,
    UPDATE,
    CONVOLUTION,
    FIRST_MODEL
};
static const char *const names[] = { "all",       "kernels",    "models",  "linear",  "head",
                                     "attention", "loss",       "memory",  "update",  "convolution",
                                     "gpt2-b4",   "gpt2-t1024", "gpt-192", "gpt-384", "nano",
                                     "mlp",       NULL };
enum { FASTEST, LOGITS, CHUNKED };
static const char *const losses[] = { "fastest", "logits", "chunked", NULL };
enum { AFTER, IN_BACKWARD };
static const char *const updates[] = { "after", "backward", NULL };

static const char *const isas[] = { "auto", "plain", "c", "neon", "avx2", "avx512", "amx", NULL };

static const options_desc allowed[] = {
    { "only", OPTIONS_CHOICE, &o.only, "all", 0, 0, names, "what is measured" },
    { "threads", OPTIONS_INT, &o.threads, "0", 0, 1024, NULL, "0: all" },
    { "seconds", OPTIONS_REAL, &o.seconds, "1", 0, 3600, NULL,
      "about as long for each kernel, five times as long for each model; 0: one repetition" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 9007199254740992.0, NULL,
      "for the models: what the plan may take; 0: no limit" },
    { "loss", OPTIONS_CHOICE, &o.loss, "fastest", 0, 0, losses,
      "of the GPTs: logits are kept, or never held at once (chunked); fastest: chunked with a "
      "budget, else logits" },
    { "update", OPTIONS_CHOICE, &o.update, "backward", 0, 0, updates,
      "without a budget: AdamW after the backward, or in it, parameter by parameter" },
    { "bf16", OPTIONS_FLAG, &o.bf16, NULL, 0, 0, NULL,
      "bf16 plans, beside the peak of bf16 dot products where the processor has them" },
    { "isa", OPTIONS_CHOICE, &o.isa, "auto", 0, 0, isas,
      "the instruction set; its own peak is taken" },
    { "profile", OPTIONS_FLAG, &o.profile, NULL, 0, 0, NULL,
      "of the models: where a step's time goes, by op and pass, to 95 %" },
    { "json", OPTIONS_FILE, &o.json, "build/bench.json", 0, 0, NULL, "results for programs" },
    { "markdown", OPTIONS_FILE, &o.markdown, NULL, 0, 0, NULL, "the tables once more, as a file" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "bench", allowed, sizeof allowed / sizeof allowed[0],
                                       15,      "NAME",  NULL,
                                       0,       NULL };

static int print_help(void)
{
    printf("bench - how fast gradckpt.h trains here, beside this machine's peak\n\n");
    options_print(&options);
    for (int i = 0; i < MODELS; i++)
        printf("%s%s (%s)%s",
               i == 0       ? "\nModels: "
               : i % 2 == 0 ? ",\n        "
                            : ", ",
               models[i].name, models[i].about, i == MODELS - 1 ? ".\n" : "");
    return 0;
}

static gckpt_isa isa(void)
{
    for (int i = 0; i < GCKPT_ISA_COUNT; i++)
        if (strcmp(isa_name((gckpt_isa)i), isas[o.isa]) == 0)
            return (gckpt_isa)i;
    return GCKPT_ISA_AUTO;
}

/* Returns 0, or the exit status 2 after printing an error. */
static int parse_options(int argc, char **argv)
{
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.threads == 0)
        o.threads = gckpt_threads();
#ifndef _OPENMP
    if (o.threads > 1) {
        fprintf(stderr, "bench: --threads %lld: this build has no OpenMP; allowed is 1\n",
                (long long)o.threads);
        return 2;
    }
#endif
    if (o.threads == 1)
        bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    if (!gckpt_isa_available(isa())) {
        fprintf(stderr, "bench: --isa %s: this build or processor does not have it\n", isas[o.isa]);
        return 2;
    }
    peak_width = o.isa == 0                  ? peak_widest()
                 : isa() >= GCKPT_ISA_AVX512 ? 64
                 : isa() == GCKPT_ISA_AVX2   ? 32
                                             : 16;
    return 0;
}

/* ---- measurements, each of which runs in a separate process ---- */
enum { MOST = 1000 };
typedef struct {
    int done, repeats, in_backward;
    double seconds, peak; /* medians; flop/s or bytes/s */
    double loss;
    long long parameters, rows, planned, resident;
} measurement;

static struct {
    double seconds[MOST], peak[MOST];
    int n;
    double start;
} samples;

/* Returns whether to measure once more: at least three times and until `seconds` are over, but only once with
 * --seconds 0. */
static int needs_repeat(double seconds)
{
    if (samples.n == 0)
        samples.start = now();
    return samples.n < MOST &&
           (samples.n < (seconds > 0 ? 3 : 1) || now() - samples.start < seconds);
}

static void finish(measurement *m)
{
    struct rusage use;
    m->repeats = samples.n;
    m->seconds = median(samples.seconds, samples.n);
    m->peak = median(samples.peak, samples.n);
    getrusage(RUSAGE_SELF, &use);
    m->resident = (long long)use.ru_maxrss * 1024;
    m->done = 1;
}

/* Runs measure(m, what) in a child process, so that its peak of memory is measured alone. Returns 0 on failure. */
static int in_child(void (*measure)(measurement *m, const void *what), const void *what,
                 measurement *m)
{
    int ends[2];
    memset(m, 0, sizeof *m);
    fflush(NULL);
    if (pipe(ends) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        measure(m, what);
        int written = write(ends[1], m, sizeof *m) == (ssize_t)sizeof *m;
        _exit(!written || !m->done);
    }
    close(ends[1]);
    int got = child > 0 && read(ends[0], m, sizeof *m) == (ssize_t)sizeof *m;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    if (!got || !m->done)
        fprintf(stderr, "bench: a measurement failed\n");
    return got && m->done;
}

/* ---- kernels: a graph with one op; the time of one instruction of this op is measured ---- */
typedef enum {
    OP_LINEAR, /* rows x in -> out */
    OP_HEAD,   /* a linear layer with transposed weights */
    OP_ATTENTION,
    OP_NARROW_HEADS, /* attention with heads of 32 columns */
    OP_CONV2D,       /* 3 x 3, padding 1 */
    OP_CONVOLUTION,  /* the same convolution by public calls only: examples/convolution.h */
    OP_ITS_PRODUCT,  /* a linear layer with the multiply-adds and the sizes of matrices of that convolution */
    OP_LINEAR_LOSS,
    OP_LOSS,
    OP_LAYERNORM,
    OP_GELU,
    OP_SOFTMAX,
    OP_ADD,
    OP_EMBED,
    OP_ADAMW,
    OPS
} kernel_op;
typedef enum { FORWARD, BACKWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, STEP } kernel_pass;
static const char *const passes[] = { "forward", "backward", "backward, data", "backward, weights",
                                      "update" };
/* In a model, the rows of a linear layer belong to several entries of the batch, here to 4. In bf16 this matters: the
 * gradient of a weight is a sequential sum if an entry has fewer than 32 rows. */
enum { VOCABULARY = 50257, ENTRIES = 4 };

static const struct {
    const char *name;
    int group;
    double forward, backward; /* bytes that the forward and the backward must read and write for each element */
} ops[OPS] = {
    { "linear", LINEAR, 0, 0 },
    { "head", HEAD, 0, 0 },
    { "attention", ATTENTION, 0, 0 },
    { "attention", ATTENTION, 0, 0 },
    { "conv2d", CONVOLUTION, 0, 0 },
    { "a user's", CONVOLUTION, 0, 0 },
    { "its product", CONVOLUTION, 0, 0 },
    { "linear + loss", LOSS, 0, 0 },
    { "cross-entropy", LOSS, 4, 8 },
    { "layernorm", MEMORY, 8, 12 },
    { "gelu", MEMORY, 8, 12 },
    { "softmax", MEMORY, 8, 12 },
    { "add", MEMORY, 12, 0 },
    { "embed", MEMORY, 8, 12 },
    { "adamw", UPDATE, 0, 0 },
};

/* A kernel and its sizes. a, b, c are: rows, in, out of linear layers; batch, context, heads of attention; images,
 * height = width, channels in = out of convolutions; a, b are rows and columns of other ops. */
typedef struct {
    kernel_op op;
    kernel_pass pass;
    int64_t a, b, c;
} kernel;

static int is_arithmetic(const kernel *k) { return k->op <= OP_LINEAR_LOSS; }
static int is_attention(const kernel *k)
{
    return k->op == OP_ATTENTION || k->op == OP_NARROW_HEADS;
}
static int64_t head_size(const kernel *k) { return k->op == OP_ATTENTION ? 64 : 32; }
static int is_convolution(const kernel *k) { return k->op == OP_CONV2D || k->op == OP_CONVOLUTION; }

/* Returns the peak with which arithmetic is compared: bf16 dot products if the processor has them, or fused
 * multiply-adds. */
static peak_kind arithmetic_peak(void)
{
    return o.bf16 && peak_has_dot() && peak_width == 64 ? PEAK_DOT : PEAK_FMA;
}

/* Returns the flops of the kernel, or if memory limits the kernel, the bytes that it reads and writes. */
static double kernel_cost(const kernel *k)
{
    const double abc = (double)k->a * (double)k->b * (double)k->c;
    if (k->op == OP_ADAMW) /* reads weight, gradient and two moments, and writes weight and moments */
        return 28.0 * (double)k->a * (double)k->b;
    if (is_attention(k)) /* products for the scores and for the values; half of them, since attention is causal */
        return (k->pass == FORWARD ? 2 : 4) * abc * (double)(head_size(k) * k->b);
    if (is_convolution(k) || k->op == OP_ITS_PRODUCT)
        return (k->pass == BACKWARD ? 4 : 2) * 9 * abc * (double)(k->b * k->c);
    if (is_arithmetic(k))
        return (k->pass == BACKWARD ? 4 : 2) * abc;
    double bytes = k->pass == FORWARD ? ops[k->op].forward : ops[k->op].backward;
    if (o.bf16) /* bf16 activations have half the bytes, while the table of embed stays f32 */
        bytes = k->op != OP_EMBED ? bytes / 2 : bytes - 2;
    return bytes * (double)k->a * (double)k->b;
}

typedef struct {
    gckpt_graph *graph;
    gckpt_feed feeds[2];
    gckpt_tensor *timed;
    gckpt_term term;
} op_fixture;

static gckpt_tensor *feed(op_fixture *f, int i, gckpt_type type, gckpt_shape shape, int64_t classes)
{
    int64_t n = 1;
    for (int d = 0; d < shape.n; d++)
        n *= shape.d[d];
    gckpt_tensor *in = gckpt_input(f->graph, i == 0 ? "x" : "y", type, shape);
    float *values = malloc((size_t)n * sizeof(float)); /* never freed, since the process ends after the measurement */
    uint32_t random = 1;
    for (int64_t k = 0; values != NULL && k < n; k++) {
        random = random * 1664525 + 1013904223;
        if (type == GCKPT_I32)
            ((int32_t *)(void *)values)[k] = (int32_t)((random >> 8) % (uint32_t)classes);
        else
            values[k] = (float)(int32_t)random * (1.0f / 2147483648.0f);
    }
    f->feeds[i].input = gckpt_id(in);
    f->feeds[i].data = values;
    return in;
}

/* Builds the graph with the kernel's op between an input and a loss. Returns the number of feeds. */
static int build_kernel(op_fixture *f, const kernel *k)
{
    const gckpt_init uniform = { 0, 0.05f, 0 };
    gckpt_graph *g = f->graph;
    const int64_t columns = is_attention(k)           ? k->c * head_size(k)
                            : k->op == OP_ITS_PRODUCT ? 9 * k->c
                            : k->op == OP_CONV2D      ? k->c
                                                      : k->b;
    gckpt_shape shape = gckpt_shape2(k->a, columns), vector = gckpt_shape1(columns);
    gckpt_tensor *x = NULL, *y, *w, *target;
    if (is_attention(k))
        shape = gckpt_shape3(k->a, k->b, columns);
    else if (k->op == OP_CONV2D)
        shape = gckpt_shape4(k->a, k->b, k->b, k->c);
    else if (k->op == OP_CONVOLUTION)
        shape = gckpt_shape4(k->a, k->c, k->b, k->b);
    else if (k->op == OP_ITS_PRODUCT)
        shape = gckpt_shape2(k->a * k->b * k->b, columns);
    else if (k->op == OP_ADAMW)
        shape = gckpt_shape2(1, k->a);
    else if (k->op == OP_LINEAR || k->op == OP_HEAD)
        shape = gckpt_shape3(ENTRIES, k->a / ENTRIES, columns);
    if (k->op != OP_EMBED)
        x = feed(f, 0, GCKPT_F32, shape, 0);
    gckpt_tensor *in = x;
    if (k->op != OP_EMBED && k->op != OP_ADAMW && k->pass != BACKWARD_WEIGHTS)
        x = gckpt_add(in, gckpt_param(g, "shift", vector, uniform)); /* its gradient is measured */
    switch (k->op) {
    case OP_LINEAR:
        w = gckpt_param(g, "w", gckpt_shape2(k->b, k->c), uniform);
        y = gckpt_linear(x, w, gckpt_param(g, "wb", gckpt_shape1(k->c), uniform));
        break;
    case OP_HEAD:
        y = gckpt_linear_transposed(x, gckpt_param(g, "w", gckpt_shape2(k->c, k->b), uniform),
                                    NULL);
        break;
    case OP_CONV2D:
        w = gckpt_param(g, "w", gckpt_shape4(3, 3, k->c, k->c), uniform);
        y = gckpt_conv2d(x, w, gckpt_param(g, "wb", gckpt_shape1(k->c), uniform),
                         &(gckpt_window){ .padding = { 1, 1 } });
        break;
    case OP_CONVOLUTION:
        w = gckpt_param(g, "w", gckpt_shape4(k->c, k->c, 3, 3), uniform);
        y = convolution(x, w, gckpt_param(g, "wb", gckpt_shape1(k->c), uniform), 1, 1);
        break;
    case OP_ITS_PRODUCT:
        w = gckpt_param(g, "w", gckpt_shape2(columns, k->c), uniform);
        y = gckpt_linear(x, w, gckpt_param(g, "wb", gckpt_shape1(k->c), uniform));
        break;
    case OP_ATTENTION:
    case OP_NARROW_HEADS:
        y = gckpt_add(x, gckpt_param(g, "q", vector, uniform));
        w = gckpt_add(x, gckpt_param(g, "v", vector, uniform));
        y = gckpt_attention(y, x, w, &(gckpt_attention_desc){ .heads = (int)k->c, .causal = 1 });
        break;
    case OP_LINEAR_LOSS:
        target = feed(f, 1, GCKPT_I32, gckpt_shape1(k->a), k->c);
        w = gckpt_param(g, "w", gckpt_shape2(k->c, k->b), uniform);
        f->timed = f->term.loss = gckpt_linear_cross_entropy(x, w, target, NULL);
        return 2;
    case OP_LOSS:
        target = feed(f, 1, GCKPT_I32, gckpt_shape1(k->a), k->b);
        f->timed = f->term.loss = gckpt_cross_entropy(x, target, NULL, 0);
        return 2;
    case OP_LAYERNORM:
        w = gckpt_param(g, "w", vector, uniform);
        y = gckpt_layernorm(x, w, gckpt_param(g, "wb", vector, uniform), 0);
        break;
    case OP_EMBED:
        x = feed(f, 0, GCKPT_I32, gckpt_shape1(k->a), VOCABULARY);
        y = gckpt_embed(gckpt_param(g, "w", gckpt_shape2(VOCABULARY, k->b), uniform), x);
        break;
    case OP_ADAMW:
        y = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(k->a, k->b), uniform), NULL);
        break;
    default:
        y = k->op == OP_GELU      ? gckpt_gelu(x)
            : k->op == OP_SOFTMAX ? gckpt_softmax(x)
                                  : gckpt_add(x, in);
    }
    f->timed = y;
    f->term.loss = gckpt_sum_loss(gckpt_mul(y, y)); /* gradients with different values */
    return 1;
}

/* Returns the peak with which this kernel is compared: arithmetic, reading, or reading and writing. */
static peak_kind kernel_peak(const kernel *k)
{
    return is_arithmetic(k)                         ? arithmetic_peak()
           : k->op == OP_LOSS && k->pass == FORWARD ? PEAK_READ
                                                    : PEAK_TRIAD;
}

/* Measures the time of one instruction in a step: the first one of kind `kind` whose tensor is `id`, or the first
 * UPDATE of any tensor. */
typedef struct {
    const gckpt_plan *plan;
    gckpt_kind kind;
    int id;
    double start, seconds; /* 0 until measured */
} stopwatch;

/* The progress callback, which is called before each instruction. Starts the stopwatch at the timed instruction. At the
 * next call, takes the time and, unless an update is timed, cancels the step. */
static int watch(void *user, const gckpt_progress *progress)
{
    stopwatch *w = (stopwatch *)user;
    gckpt_instruction i = { GCKPT_FORWARD, -1 };
    gckpt_plan_get(w->plan, progress->instruction, &i);
    if (w->start > 0) {
        w->seconds = now() - w->start;
        return w->kind != GCKPT_UPDATE;
    }
    if (i.kind == w->kind && (i.id == w->id || w->kind == GCKPT_UPDATE))
        w->start = now();
    return 0;
}

/* Samples the peak, then runs one step and measures the kernel in it. */
static gckpt_result time_kernel(gckpt_exec *e, const op_fixture *f, int feeds, const kernel *k,
                                stopwatch *w)
{
    const gckpt_hyper adamw = { .lr = 1e-4f };
    w->start = w->seconds = 0;
    samples.peak[samples.n] = peak_sample(kernel_peak(k), (int)o.threads);
    int64_t rows = k->op == OP_ADAMW                        ? 1
                   : k->op == OP_ITS_PRODUCT                ? k->a * k->b * k->b
                   : k->op == OP_LINEAR || k->op == OP_HEAD ? ENTRIES
                                                            : k->a;
    gckpt_result r = gckpt_step(e, f->feeds, feeds, rows, &adamw, NULL);
    if (w->seconds == 0 || k->pass == STEP)
        w->seconds = now() - w->start;
    samples.seconds[samples.n++] = w->seconds;
    return w->start == 0 ? GCKPT_E_ARG : r == GCKPT_CANCELLED ? GCKPT_OK : r;
}

static void measure_kernel(measurement *m, const void *what)
{
    const kernel *k = (const kernel *)what;
    gckpt_store *s = gckpt_store_new(NULL);
    op_fixture f = { .graph = gckpt_graph_new(s, NULL) };
    int feeds = build_kernel(&f, k);
    if (k->pass == BACKWARD_DATA)
        gckpt_store_freeze(s, "w*", 1);
    gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL, .threads = (int)o.threads };
    desc.bf16.precision = o.bf16 ? GCKPT_BF16 : GCKPT_FP32;
    gckpt_plan *p = gckpt_plan_new(f.graph, &f.term, 1, &desc);
    stopwatch w = { p,
                    k->pass == FORWARD ? GCKPT_FORWARD
                    : k->pass == STEP  ? GCKPT_UPDATE
                                       : GCKPT_BACKWARD,
                    gckpt_id(f.timed), 0, 0 };
    gckpt_exec_desc how = { .isa = isa(), .progress = watch, .user = &w };
    gckpt_exec *e = p == NULL ? NULL : gckpt_exec_new(p, s, &how);
    if (e == NULL || (!is_arithmetic(k) && !peak_open_memory())) {
        fprintf(stderr, "bench: %s\n", gckpt_error_text(p == NULL ? (void *)f.graph : (void *)s));
        return;
    }
    gckpt_result r = time_kernel(e, &f, feeds, k, &w); /* a step that is not counted warms up pages and caches */
    for (samples.n = 0; r == GCKPT_OK && needs_repeat(o.seconds);)
        r = time_kernel(e, &f, feeds, k, &w);
    if (r != GCKPT_OK) {
        fprintf(stderr, "bench: %s\n", gckpt_error_text(e));
        return;
    }
    m->planned = (long long)gckpt_plan_bytes(p);
    finish(m);
}

/* ---- whole steps ---- */
/* Time by op and pass. The time between two calls of the progress callback belongs to the instruction of the first
 * call. */
typedef struct {
    const char *op;
    gckpt_kind kind;
    double seconds;
    int times;
} op_time;
typedef struct {
    const bench *b;
    op_time op_times[64];
    op_time *running;
    double since;
    int n;
} profile;

static void profile_stop(profile *p)
{
    if (p->running != NULL)
        p->running->seconds += now() - p->since;
    p->running = NULL;
}

static int profile_step(void *user, const gckpt_progress *progress)
{
    profile *p = (profile *)user;
    gckpt_instruction i = { GCKPT_FORWARD, -1 };
    int at = 0;
    profile_stop(p);
    gckpt_plan_get(p->b->plan, progress->instruction, &i);
    const char *op = gckpt_plan_op(p->b->plan, i.id); /* "" for a parameter */
    if (*op == 0)
        op = i.kind == GCKPT_UPDATE ? "adamw" : i.id < 0 ? "step" : "parameter";
    while (at < p->n && (p->op_times[at].kind != i.kind || strcmp(p->op_times[at].op, op) != 0))
        at++;
    if (at == p->n && p->n < 64)
        p->op_times[p->n++] = (op_time){ op, i.kind, 0, 0 };
    p->running = at < p->n ? &p->op_times[at] : NULL;
    if (p->running != NULL)
        p->running->times++;
    p->since = now();
    return 0;
}

static int by_time(const void *a, const void *b)
{
    return -by_size(&((const op_time *)a)->seconds, &((const op_time *)b)->seconds);
}

/* Prints the profile to standard output. This is a child process; the parent process prints the model's row
 * afterwards. */
static void profile_print(profile *p, int steps)
{
    static const char *const kinds[] = { GCKPT_KIND_NAMES };
    double all = 0, printed = 0;
    for (int i = 0; i < p->n; i++)
        all += p->op_times[i].seconds;
    qsort(p->op_times, (size_t)p->n, sizeof p->op_times[0], by_time);
    printf("\n| op | pass | instructions | ms a step | of the step |\n|---|---|--:|--:|--:|\n");
    for (int i = 0; i < p->n && printed < 0.95 * all; i++) {
        const op_time *s = &p->op_times[i];
        printed += s->seconds;
        printf("| %s | %s | %d | %.2f | %.1f %% |\n", s->op, kinds[s->kind], s->times / steps,
               1e3 * s->seconds / steps, 100 * s->seconds / all);
    }
    printf("\n");
    fflush(stdout);
}

static void measure_model(measurement *m, const void *what)
{
    const size *z = (const size *)what;
    const gckpt_hyper adamw = { .lr = 1e-4f, .weight_decay = 0.1f };
    gckpt_plan_desc desc = { .mode = o.budget > 0 ? GCKPT_AUTO : GCKPT_STORE_ALL };
    desc.threads = (int)o.threads;
    desc.budget = (size_t)o.budget;
    desc.bf16.precision = o.bf16 ? GCKPT_BF16 : GCKPT_FP32;
    desc.update_in_backward = o.budget > 0 ? FIT_IF_USEFUL : o.update == IN_BACKWARD;
    gckpt_exec_desc how = { .isa = isa() };
    bench b = { 0 };
    profile p = { .b = &b };
    if (o.profile) {
        how.progress = profile_step;
        how.user = &p;
    }
    gckpt_report report = { 0, 0, 0, 0 };
    if (!bench_open(&b, z, &desc, &how))
        return;
    /* the first measurement, which warms up pages, is not counted */
    for (int i = -1; i < 0 || needs_repeat(5 * o.seconds); i++) {
        if (i >= 0)
            samples.peak[samples.n] = peak_sample(arithmetic_peak(), (int)o.threads);
        if (i == 0)
            p.n = 0;
        double t = now();
        if (gckpt_step(b.exec, b.feeds, 2, z->batch, &adamw, &report) != GCKPT_OK) {
            fprintf(stderr, "bench: %s\n", gckpt_error_text(b.exec));
            return;
        }
        if (i >= 0)
            samples.seconds[samples.n++] = now() - t;
        profile_stop(&p);
    }
    if (o.profile)
        profile_print(&p, samples.n);
    m->loss = report.loss;
    m->parameters = b.parameters;
    m->rows = gckpt_plan_describe(b.plan).rows;
    m->in_backward = gckpt_plan_describe(b.plan).update_in_backward;
    m->planned = (long long)gckpt_plan_bytes(b.plan);
    finish(m);
    bench_free(&b);
}

/* Returns the flops of one training step. The first layer of an MLP does not compute a gradient of its input. */
static double model_flops(const size *z)
{
    if (z->inputs > 0)
        return 2.0 * z->batch * (2.0 * z->inputs * z->dim + 3.0 * z->dim * z->vocabulary);
    const double tokens = (double)z->batch * z->context, C = z->dim;
    const double weights = z->layers * 12.0 * C * C + z->vocabulary * C;
    const double attention = z->layers * 4.0 * C * z->context / 2; /* a token, forward, causal */
    return 3 * tokens * (2 * weights + attention);
}

/* ---- results: Markdown tables during the run, and JSON at the end ---- */
static FILE *json, *markdown;
static int results;

/* Prints to standard output and to the file of --markdown. */
static void print_result(const char *format, ...)
{
    for (int i = 0; i < 2; i++) {
        va_list args;
        va_start(args, format);
        if (i == 0 || markdown != NULL)
            vfprintf(i == 0 ? stdout : markdown, format, args);
        va_end(args);
    }
    fflush(stdout);
}

static void json_result(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(json, "%s\n    ", results++ == 0 ? "" : ",");
    vfprintf(json, format, args);
    va_end(args);
}

static int selected(int group, int all_of_them)
{
    return o.only == ALL || o.only == all_of_them || o.only == group;
}

static int run_kernel(kernel_op op, kernel_pass pass, int64_t a, int64_t b, int64_t c)
{
    const kernel k = { op, pass, a, b, c };
    measurement m;
    char shape[64];
    if (!selected(ops[op].group, KERNELS))
        return 1;
    if (!in_child(measure_kernel, &k, &m))
        return 0;
    const double rate = kernel_cost(&k) / m.seconds;
    const char *unit = is_arithmetic(&k) ? "GFLOP/s" : "GB/s";
    const long long A = (long long)a, B = (long long)b, C = (long long)c;
    if (is_attention(&k))
        snprintf(shape, sizeof shape, "B%lld T%lld H%lld D%lld", A, B, C, (long long)head_size(&k));
    else if (is_convolution(&k))
        snprintf(shape, sizeof shape, "B%lld C%lld %lldx%lld 3x3", A, C, B, B);
    else if (op == OP_ITS_PRODUCT)
        snprintf(shape, sizeof shape, "%lld x %lld -> %lld", A * B * B, 9 * C, C);
    else if (is_arithmetic(&k))
        snprintf(shape, sizeof shape, "%lld x %lld -> %lld", A, B, C);
    else
        snprintf(shape, sizeof shape, "%lld x %lld", A, B);
    print_result("| %-13s | %-20s | %-17s | %9.3f | %7.1f %-7s | %5.1f %% |\n", ops[op].name, shape,
         passes[pass], 1e3 * m.seconds, 1e-9 * rate, unit, 100 * rate / m.peak);
    json_result("{\"kernel\":\"%s\",\"shape\":\"%s\",\"pass\":\"%s\",\"seconds\":%.9f,\"unit\":"
                "\"%s\",\"rate\":%.3f,\"peak\":%.3f,\"percent\":%.2f,\"repeats\":%d}",
                ops[op].name, shape, passes[pass], m.seconds, unit, 1e-9 * rate, 1e-9 * m.peak,
                100 * rate / m.peak, m.repeats);
    return 1;
}

/* forward and backward */
static int run_both(kernel_op op, int64_t a, int64_t b, int64_t c)
{
    return run_kernel(op, FORWARD, a, b, c) && run_kernel(op, BACKWARD, a, b, c);
}

static int run_kernels(void)
{
    static const int64_t widths[][2] = {
        { 768, 768 }, { 768, 2304 }, { 768, 3072 }, { 3072, 768 }
    };
    int good = 1;
    if (o.only == WHOLE_STEPS || o.only >= FIRST_MODEL)
        return 1;
    print_result("\n| kernel | shape | pass | ms | rate | of peak |\n|---|---|---|---|---|---|\n");
    for (int M = 256; M <= 1024; M *= 4)
        for (int i = 0; i < 5; i++)
            for (int p = 0; p < 3; p++)
                good = good &&
                       run_kernel(i < 4 ? OP_LINEAR : OP_HEAD,
                                  p == 0   ? FORWARD
                                  : p == 1 ? BACKWARD_DATA
                                           : BACKWARD_WEIGHTS,
                                  M, i < 4 ? widths[i][0] : 768, i < 4 ? widths[i][1] : VOCABULARY);
    good = good && run_both(OP_ATTENTION, 4, 64, 12) && run_both(OP_ATTENTION, 1, 1024, 12) &&
           run_both(OP_ATTENTION, 1, 16384, 2) && run_both(OP_NARROW_HEADS, 16, 256, 6);
    for (int64_t C = 32; C <= 256; C *= 2)
        for (kernel_op op = OP_CONV2D; op <= OP_ITS_PRODUCT; op++)
            good = good && run_both(op, 8, C < 64 ? 32 : 2048 / C, C);
    for (int M = 256; M <= 1024; M *= 4)
        good = good && run_both(OP_LINEAR_LOSS, M, 768, VOCABULARY) &&
               run_both(OP_LOSS, M, VOCABULARY, 0);
    return good && run_both(OP_LAYERNORM, 16384, 768, 0) && run_both(OP_GELU, 8192, 3072, 0) &&
           run_both(OP_SOFTMAX, 12288, 1024, 0) && run_kernel(OP_ADD, FORWARD, 16384, 768, 0) &&
           run_both(OP_EMBED, 16384, 768, 0) && run_kernel(OP_ADAMW, STEP, 768, 3072, 0) &&
           run_kernel(OP_ADAMW, STEP, 768, VOCABULARY, 0);
}

static int run_models(void)
{
    if (o.only != ALL && o.only != WHOLE_STEPS && o.only < FIRST_MODEL)
        return 1;
    print_result(
        "\n| model | ms a step | tokens/s | of peak | planned MB | resident MB | beyond 16 bytes a "
        "parameter |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < MODELS; i++) {
        measurement m;
        size z = models[i].z;
        if (!selected(FIRST_MODEL + i, WHOLE_STEPS))
            continue;
        if (z.inputs == 0)
            z.logits = o.loss == LOGITS || (o.loss == FASTEST && o.budget == 0);
        if (!in_child(measure_model, &z, &m))
            return 0;
        const double rate = model_flops(&z) / m.seconds;
        const double tokens = (double)z.batch * z.context / m.seconds;
        print_result("| %-30s | %9.3f | %9.0f | %5.1f %% | %8.1f | %8.1f | %8.1f |\n", models[i].about,
             1e3 * m.seconds, tokens, 100 * rate / m.peak, 1e-6 * (double)m.planned,
             1e-6 * (double)m.resident, 1e-6 * (double)(m.resident - 16 * m.parameters));
        json_result(
            "{\"model\":\"%s\",\"parameters\":%lld,\"seconds\":%.9f,\"tokens_per_second\":"
            "%.1f,\"gflops\":%.3f,\"peak\":%.3f,\"percent\":%.2f,\"planned\":%lld,"
            "\"resident\":%lld,\"micro_batch\":%lld,\"update_in_backward\":%d,\"logits\":%d,"
            "\"loss\":%.6f,\"repeats\":%d}",
            models[i].name, m.parameters, m.seconds, tokens, 1e-9 * rate, 1e-9 * m.peak,
            100 * rate / m.peak, m.planned, m.resident, m.rows, m.in_backward, z.logits, m.loss,
            m.repeats);
    }
    return 1;
}

/* Measures the peaks to which percentages refer, as medians of samples that take about as long as one kernel. */
static void measure_peak(measurement *m, const void *what)
{
    const peak_kind kind = *(const peak_kind *)what;
    if (kind >= PEAK_READ && !peak_open_memory())
        return;
    while (needs_repeat(o.seconds / 4)) {
        double t = now();
        samples.peak[samples.n] = peak_sample(kind, (int)o.threads);
        samples.seconds[samples.n++] = now() - t;
    }
    finish(m);
}

static int run_peaks(void)
{
    static const char *const key[] = { "fma_gflops", "dot_gflops", "read_gbs", "triad_gbs" };
    double rate[4] = { 0 };
    for (peak_kind kind = PEAK_FMA; kind <= PEAK_TRIAD; kind++) {
        measurement m = { 0 };
        if ((kind != PEAK_DOT || peak_has_dot()) && !in_child(measure_peak, &kind, &m))
            return 0;
        rate[kind] = 1e-9 * m.peak;
    }
    print_result("%lld thread%s, vectors of %d bytes: %.0f GFLOP/s fp32", (long long)o.threads,
         o.threads == 1 ? "" : "s", peak_width, rate[PEAK_FMA]);
    if (peak_has_dot())
        print_result(", %.0f GFLOP/s bf16 dot products", rate[PEAK_DOT]);
    print_result("; memory %.1f GB/s reading, %.1f GB/s triad.\n", rate[PEAK_READ], rate[PEAK_TRIAD]);
    fprintf(json, "{\n  \"version\":\"%d.%d.%d\",\"threads\":%lld,\"vector_bytes\":%d,",
            GCKPT_VERSION_MAJOR, GCKPT_VERSION_MINOR, GCKPT_VERSION_REVISION, (long long)o.threads,
            peak_width);
    for (peak_kind kind = PEAK_FMA; kind <= PEAK_TRIAD; kind++)
        fprintf(json, "\"%s\":%.3f,", key[kind], rate[kind]);
    fprintf(json, "\"isa\":\"%s\",\"precision\":\"%s\",\"budget\":%lld,\n  \"results\":[",
            isas[o.isa], o.bf16 ? "bf16" : "fp32", (long long)o.budget);
    return 1;
}

static int opened(const char *path, FILE **f)
{
    if (path == NULL || (*f = fopen(path, "w")) != NULL)
        return 1;
    fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
    return 0;
}

static int closed(const char *path, FILE *f)
{
    if (f == NULL)
        return 1;
    int good = !ferror(f);
    if (fclose(f) == 0 && good)
        return 1;
    fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
    return 0;
}

int main(int argc, char **argv)
{
    int status = parse_options(argc, argv);
    if (status != 0 || o.help)
        return status != 0 ? status : print_help();
    if (!opened(o.json, &json) || !opened(o.markdown, &markdown))
        return 1;
    int good = run_peaks() && run_kernels() && run_models();
    fprintf(json, "\n  ]\n}\n");
    good = closed(o.json, json) && good;
    good = closed(o.markdown, markdown) && good;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "bench: standard output: %s\n", strerror(errno));
        return 1;
    }
    return !good;
}
