/* gpt.c - trains, evaluates and samples a small byte-level GPT inside a byte budget.
 *
 *     cc -O2 -fopenmp -I. examples/gpt.c -o gpt
 *     ./gpt                                    trains on the text of gradckpt.h
 *     ./gpt --data text.txt --budget 24M       on any text, in 24 MiB
 *     ./gpt --help
 *
 * One store holds the weights. Three graphs of different shapes share it: training (micro-batches
 * of windows), evaluation (the same without gradients) and sampling (one window). Their step arenas
 * are one block of memory, because they never run at once.
 *
 * The batch of a step is a function of --seed and the step number alone. So the same weights come
 * out, bit for bit, for every --checkpoint, --budget, --micro-batch and --threads, and for a run
 * that was stopped and resumed.
 */
#define _XOPEN_SOURCE 700 /* clock_gettime, isatty, realpath */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "options.h"
#include "pictures.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- options: this table is the parser and the --help text ---- */
enum { BYTES = 256 };                  /* tokens that the text has: a token is a byte */
enum { TEXT_MOST = 1 << 30 };          /* bytes of --data; a pipe may have no end */
static const double temperature = 0.8; /* of sampling: below 1 prefers likely bytes */

static struct {
    int64_t layers, heads, dim, context, batch, micro_batch, steps, warmup, seed, threads, tie;
    int64_t vocabulary, device, checkpoint, budget, bf16, bf16_fast, plan, sample, eval_every, help;
    double lr, min_lr, weight_decay, beta1, beta2, clip, dropout, fastest;
    const char *save, *resume, *prompt, *data, *json, *timeline, *frontier;
} o = { .min_lr = -1 };

static const char *const mode_names[] = { "auto", "store-all", "memory-poor", "segments",
                                          "sqrt", "optimal",   NULL };
static const gckpt_mode modes[] = { GCKPT_AUTO,     GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                    GCKPT_SEGMENTS, GCKPT_SQRT,      GCKPT_OPTIMAL };
static const char *const device_names[] = { "cpu", "cuda", NULL };
enum { MODES = sizeof modes / sizeof modes[0] };

static const options_row allowed[] = {
    { "layers", OPTIONS_WHOLE, &o.layers, "4", 1, 1000, NULL, "transformer blocks" },
    { "heads", OPTIONS_WHOLE, &o.heads, "4", 1, 256, NULL,
      "attention heads; a divisor of dim / 2" },
    { "dim", OPTIONS_WHOLE, &o.dim, "128", 1, 65536, NULL, "width C of the model" },
    { "context", OPTIONS_WHOLE, &o.context, "64", 1, 1 << 20, NULL, "tokens T of a window" },
    { "vocabulary", OPTIONS_WHOLE, &o.vocabulary, "256", BYTES, 1 << 24, NULL,
      "tokens that the model knows; the text has 256, more make a model of another's size" },
    { "batch", OPTIONS_WHOLE, &o.batch, "12", 1, 1 << 20, NULL, "windows of a step" },
    { "micro-batch", OPTIONS_WHOLE_OR_AUTO, &o.micro_batch, "0", 0, 1 << 20, NULL,
      "windows computed at once; changes bytes, never results; 0: --batch; auto: the divisor of it "
      "that is fastest within --budget" },
    { "fastest", OPTIONS_REAL, &o.fastest, "0", 0, 1e6, NULL,
      "seconds for trials: of the plans that --micro-batch auto finds best, the fastest here" },
    { "steps", OPTIONS_WHOLE, &o.steps, "1000", 0, 1e12, NULL,
      "steps in all, those of a resumed file included" },
    { "lr", OPTIONS_REAL, &o.lr, "1e-3", 0, 10, NULL, "learning rate after the warm-up" },
    { "min-lr", OPTIONS_REAL, &o.min_lr, NULL, 0, 10, NULL,
      "learning rate at the last step (cosine); not given: --lr" },
    { "warmup", OPTIONS_WHOLE, &o.warmup, "100", 0, 1e12, NULL, "steps of linear warm-up" },
    { "weight-decay", OPTIONS_REAL, &o.weight_decay, "0.1", 0, 100, NULL,
      "of matrices, not of biases and gains" },
    { "beta1", OPTIONS_REAL, &o.beta1, "0.9", 0, 0.99999, NULL, "AdamW" },
    { "beta2", OPTIONS_REAL, &o.beta2, "0.99", 0, 0.99999, NULL, "AdamW" },
    { "clip", OPTIONS_REAL, &o.clip, "1", 0, 1e9, NULL, "greatest gradient norm; 0: no clipping" },
    { "dropout", OPTIONS_REAL, &o.dropout, "0", 0, 0.99, NULL,
      "after the embedding and on both residual branches" },
    { "seed", OPTIONS_WHOLE, &o.seed, "1", 0, 9007199254740992.0, NULL,
      "of weights, batches, dropout and sampling" },
    { "threads", OPTIONS_WHOLE, &o.threads, "0", 0, 1024, NULL,
      "changes speed and bytes, never results; 0: all" },
    { "device", OPTIONS_CHOICE, &o.device, "cpu", 0, 0, device_names,
      "what computes; cuda, the first CUDA device, in a program that make build/gpt-cuda makes; "
      "changes speed and bytes, never results" },
    { "tie", OPTIONS_WHOLE, &o.tie, "1", 0, 1, NULL,
      "1: the head is the embedding table; 0: a matrix of its own" },
    { "checkpoint", OPTIONS_CHOICE, &o.checkpoint, "auto", 0, 0, mode_names,
      "what is recomputed; auto: nothing, or as little as --budget allows" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 9007199254740992.0, NULL,
      "bytes for weights, optimiser state and step arena; 0: no limit" },
    { "bf16", OPTIONS_FLAG, &o.bf16, NULL, 0, 0, NULL,
      "activations and their gradients as bf16: 2 bytes each, other results" },
    { "bf16-fast", OPTIONS_FLAG, &o.bf16_fast, NULL, 0, 0, NULL,
      "as --bf16, by tensor cores; with --device cuda only; results of this kind of device" },
    { "plan", OPTIONS_FLAG, &o.plan, NULL, 0, 0, NULL,
      "print what every budget costs in time, then the plan, and stop" },
    { "frontier", OPTIONS_TEXT, &o.frontier, NULL, 0, 0, NULL,
      "what every budget costs: drawn (FILE.svg), as FILE.json, else as text" },
    { "timeline", OPTIONS_TEXT, &o.timeline, NULL, 0, 0, NULL,
      "draw the plan's memory (SVG); FILE.json: as Chrome trace events" },
    { "save", OPTIONS_TEXT, &o.save, NULL, 0, 0, NULL,
      "write weights and optimiser state (safetensors) after each evaluation, at the end, and when "
      "interrupted" },
    { "resume", OPTIONS_TEXT, &o.resume, NULL, 0, 0, NULL, "go on from a file that --save wrote" },
    { "sample", OPTIONS_WHOLE, &o.sample, "0", 0, 1e9, NULL, "bytes to generate at the end" },
    { "prompt", OPTIONS_TEXT, &o.prompt, NULL, 0, 0, NULL,
      "text that the sample continues; not given: a new line" },
    { "data", OPTIONS_TEXT, &o.data, NULL, 0, 0, NULL,
      "text to learn, a file or pipe of at most 1 GiB; not given: gradckpt.h itself" },
    { "eval-every", OPTIONS_WHOLE, &o.eval_every, "100", 0, 1e12, NULL,
      "steps between evaluations on the last 10 % of the text; 0: none" },
    { "json", OPTIONS_TEXT, &o.json, NULL, 0, 0, NULL,
      "events, one object a line; -: on standard output, alone" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "gpt", allowed, sizeof allowed / sizeof allowed[0], 16,
                                       "MODE" };

static int complain(int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("gpt: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return status;
}

static int print_help(void)
{
    printf("gpt - trains a small byte-level GPT inside a byte budget\n\n");
    options_print(&options);
    printf("\nExit status: 0 done, 1 failed, 2 wrong option or value, 130 interrupted.\n");
    if (fflush(stdout) != 0 || ferror(stdout))
        return complain(1, "standard output: %s", strerror(errno));
    return 0;
}

/* 0, or the exit status 2 after saying what is allowed. */
static int parse_options(int argc, char **argv)
{
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.fastest > 0 && o.micro_batch > 0)
        return complain(2, "--fastest chooses the micro-batch; allowed is --micro-batch auto");
    if (o.micro_batch == 0)
        o.micro_batch = o.fastest > 0 ? OPTIONS_AUTO : o.batch;
    if (o.min_lr < 0)
        o.min_lr = o.lr;
    if (o.dim % (2 * o.heads) != 0) /* rotary positions turn pairs of a head's numbers */
        return complain(2, "--heads %lld: allowed is a divisor of half of --dim %lld",
                        (long long)o.heads, (long long)o.dim);
    if (o.micro_batch > o.batch)
        return complain(2, "--micro-batch %lld: allowed is at most --batch %lld",
                        (long long)o.micro_batch, (long long)o.batch);
    if (o.min_lr > o.lr)
        return complain(2, "--min-lr %g: allowed is at most --lr %g", o.min_lr, o.lr);
    if (o.threads == 0)
        o.threads = gckpt_threads();
    return 0;
}

/* ---- data ---- */
static struct {
    unsigned char *bytes;
    size_t size, train; /* the first `train` bytes are learned, the rest validates */
    char path[4096];
} text;

static int read_text(FILE *f)
{
    size_t room = 0;
    for (;;) {
        if (text.size == room) {
            room = room == 0 ? 1 << 16 : 2 * room;
            unsigned char *bigger = realloc(text.bytes, room);
            if (bigger == NULL)
                return complain(1, "%s: out of memory after %zu bytes", text.path, text.size);
            text.bytes = bigger;
        }
        size_t got = fread(text.bytes + text.size, 1, room - text.size, f);
        text.size += got;
        if (text.size > TEXT_MOST)
            return complain(1, "%s: more than 1 GiB; give a part of it", text.path);
        if (got == 0)
            return ferror(f) ? complain(1, "%s: %s", text.path, strerror(errno)) : 0;
    }
}

/* Without --data: the header, in the working directory, beside the program, or one above it. */
static FILE *open_text(const char *program)
{
    const char *slash = strrchr(program, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - program) + 1;
    FILE *f = NULL;
    if (o.data != NULL) {
        snprintf(text.path, sizeof text.path, "%s", o.data);
        if ((f = fopen(o.data, "rb")) == NULL)
            complain(1, "--data %s: %s", o.data, strerror(errno));
        return f;
    }
    for (int i = 0; i < 3 && f == NULL; i++) {
        snprintf(text.path, sizeof text.path, "%.*s%sgradckpt.h", i == 0 ? 0 : folder, program,
                 i == 2 ? "../" : "");
        f = fopen(text.path, "rb");
    }
    if (f == NULL)
        complain(1, "no gradckpt.h here, beside or above %s; give a text with --data FILE",
                 program);
    return f;
}

static int load_text(const char *program)
{
    FILE *f = open_text(program);
    if (f == NULL)
        return 1;
    struct stat is;
    int failed = fstat(fileno(f), &is) == 0 && (S_ISCHR(is.st_mode) || S_ISBLK(is.st_mode))
                     ? complain(1, "--data %s: a device; give a file or a pipe", text.path)
                     : read_text(f);
    fclose(f);
    if (failed)
        return 1;
    text.train = text.size - text.size / 10;
    if (text.train < (size_t)o.context + 1 || text.size - text.train < 2)
        return complain(1, "%s has %zu bytes, too few for --context %lld", text.path, text.size,
                        (long long)o.context);
    return 0;
}

/* ---- what is written ---- */
/* Can a file be put beside `path`, or beside what it links to, as saving will do? */
static int try_save(const char *path, const struct stat *is)
{
    char *target = is != NULL ? realpath(path, NULL) : NULL, trial[4096];
    snprintf(trial, sizeof trial, "%s.try%ld", target != NULL ? target : path, (long)getpid());
    free(target);
    if (is != NULL && !S_ISREG(is->st_mode))
        return complain(1, "--save %s: a folder, device or pipe; give the path of a file", path);
    int fd = open(trial, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return complain(1, "--save %s: %s", path, strerror(errno));
    close(fd);
    remove(trial);
    return 0;
}

/* Before anything is computed: can the outputs be written, and is none of them an input or another
 * output, by whatever name? Leaves everything as it is. */
static int try_outputs(void)
{
    enum { DATA, RESUME, JSON, TIMELINE, FRONTIER, SAVE, FILES };
    static const char *const names[FILES] = { "data",     "resume",   "json",
                                              "timeline", "frontier", "save" };
    const char *const json = o.json != NULL && strcmp(o.json, "-") != 0 ? o.json : NULL;
    const char *const paths[FILES] = { text.path, o.resume, json, o.timeline, o.frontier, o.save };
    struct stat is[FILES];
    int regular[FILES] = { 0 }, made[FILES] = { 0 }, status = 0;
    for (int i = 0; i < FILES && status == 0; i++) {
        int there = paths[i] != NULL && stat(paths[i], &is[i]) == 0;
        if (paths[i] != NULL && i == SAVE)
            status = try_save(paths[i], there ? &is[i] : NULL);
        if (paths[i] != NULL && i >= JSON && i < SAVE && (!there || S_ISREG(is[i].st_mode))) {
            int fd = open(paths[i], O_WRONLY | O_CREAT | O_EXCL, 0666); /* to have an identity */
            made[i] = fd >= 0;
            if (fd < 0)
                fd = open(paths[i], O_WRONLY | O_CREAT, 0666);
            there = fd >= 0 && fstat(fd, &is[i]) == 0;
            if (!there)
                status = complain(1, "--%s %s: %s", names[i], paths[i], strerror(errno));
            if (fd >= 0)
                close(fd);
        }
        regular[i] = there && S_ISREG(is[i].st_mode);
        for (int k = 0; k < i && i >= JSON && regular[i] && status == 0; k++)
            if (regular[k] && is[k].st_dev == is[i].st_dev && is[k].st_ino == is[i].st_ino &&
                !(k == RESUME && i == SAVE))
                status = complain(2, "--%s %s: it is also --%s %s; give another", names[i],
                                  paths[i], names[k], paths[k]);
    }
    for (int i = 0; i < FILES; i++)
        if (made[i])
            remove(paths[i]);
    return status;
}

/* Random bits as a function of (seed, step, i) alone: the finaliser of splitmix64 (Steele 2014),
 * chained. */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t draw(uint64_t step, uint64_t i)
{
    return mix(mix(mix((uint64_t)o.seed) ^ step) ^ i);
}

/* tokens and targets are (rows,T). Bytes at and behind `end` become ignored targets. */
static void put_window(int32_t *tokens, int32_t *targets, size_t start, size_t end)
{
    for (size_t t = 0; t < (size_t)o.context; t++) {
        tokens[t] = start + t < end ? text.bytes[start + t] : 0;
        targets[t] = start + t + 1 < end ? text.bytes[start + t + 1] : -1;
    }
}

/* ---- the model ---- */
typedef struct {
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    int tokens, targets, probabilities; /* ids */
    gckpt_feed feeds[2];                /* of tokens and targets */
    gckpt_tensor *loss;                 /* of the graph above */
} model;

typedef enum { TRAINING, EVALUATION, SAMPLING, PURPOSES } purpose;

static double square_root(double x) /* Newton; saves a math library */
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 60; i++)
        r = (r + x / r) / 2;
    return r;
}

/* "part" of the model, or "h.layer.part" of a block */
static const char *full_name(char *name, size_t size, int layer, const char *part)
{
    if (layer < 0)
        snprintf(name, size, "%s", part);
    else
        snprintf(name, size, "h.%d.%s", layer, part);
    return name;
}

static gckpt_tensor *parameter(gckpt_graph *g, int layer, const char *part, gckpt_shape shape,
                               double normal, double constant)
{
    char name[64];
    gckpt_init init = { (float)normal, 0, (float)constant };
    return gckpt_param(g, full_name(name, sizeof name, layer, part), shape, init);
}

/* Names an activation, for --plan and --timeline. */
static gckpt_tensor *named(gckpt_tensor *x, int layer, const char *part)
{
    char name[64];
    return gckpt_name(x, full_name(name, sizeof name, layer, part));
}

/* (B,T,in) -> (B,T,out) */
static gckpt_tensor *dense(gckpt_tensor *x, int layer, const char *part, int64_t in, int64_t out,
                           double normal)
{
    char weight[32], bias[32];
    gckpt_graph *g = gckpt_graph_of(x);
    snprintf(weight, sizeof weight, "%s.weight", part);
    snprintf(bias, sizeof bias, "%s.bias", part);
    gckpt_tensor *w = parameter(g, layer, weight, gckpt_shape2(in, out), normal, 0);
    x = gckpt_linear(x, w, parameter(g, layer, bias, gckpt_shape1(out), 0, 0));
    return named(x, layer, part);
}

static gckpt_tensor *norm(gckpt_tensor *x, int layer, const char *part)
{
    char weight[32], bias[32];
    gckpt_graph *g = gckpt_graph_of(x);
    snprintf(weight, sizeof weight, "%s.weight", part);
    snprintf(bias, sizeof bias, "%s.bias", part);
    gckpt_tensor *gain = parameter(g, layer, weight, gckpt_shape1(o.dim), 0, 1);
    x = gckpt_layernorm(x, gain, parameter(g, layer, bias, gckpt_shape1(o.dim), 0, 0));
    return named(x, layer, part);
}

static gckpt_tensor *dropout(gckpt_tensor *x)
{
    return o.dropout > 0 ? gckpt_dropout(x, (float)o.dropout) : x;
}

/* One pre-norm block, (B,T,C) -> (B,T,C). Its inside is one segment: see gckpt_checkpoint below.
 * What adds to the residual stream starts smaller, by sqrt(2 layers): Radford 2019. */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const int i = *(const int *)user;
    const int64_t C = o.dim;
    const double small = 0.02 / square_root(2.0 * (double)o.layers);
    gckpt_tensor *a = norm(x, i, "ln_1");
    gckpt_tensor *q = gckpt_rotary(dense(a, i, "attn.q", C, C, 0.02), (int)o.heads, 0);
    gckpt_tensor *k = gckpt_rotary(dense(a, i, "attn.k", C, C, 0.02), (int)o.heads, 0);
    gckpt_tensor *v = dense(a, i, "attn.v", C, C, 0.02);
    a = named(gckpt_attention(q, k, v, (int)o.heads, 1), i, "attn");
    x = gckpt_add(x, dropout(dense(a, i, "attn.proj", C, C, small)));
    a = dense(norm(named(x, i, "attn.sum"), i, "ln_2"), i, "mlp.fc", C, 4 * C, 0.02);
    a = named(gckpt_gelu(a), i, "mlp");
    return named(gckpt_add(x, dropout(dense(a, i, "mlp.out", 4 * C, C, small))), i, "mlp.sum");
}

/* The model up to its last norm, (rows,T) -> (rows,T,C), and the (V,C) matrix of its head. */
static gckpt_tensor *trunk(gckpt_graph *g, int64_t rows, model *m, gckpt_tensor **head)
{
    const int64_t V = o.vocabulary;
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, o.context));
    gckpt_tensor *table = parameter(g, -1, "wte", gckpt_shape2(V, o.dim), 0.02, 0);
    gckpt_tensor *x = dropout(gckpt_embed(table, tokens));
    for (int i = 0; i < (int)o.layers; i++)
        x = gckpt_checkpoint(block, x, &i);
    x = norm(x, -1, "ln_f");
    *head = o.tie ? table : parameter(g, -1, "head", gckpt_shape2(V, o.dim), 0.02, 0);
    m->tokens = gckpt_id(tokens);
    return x;
}

/* The model with its loss: what gckpt_fit calls for each micro-batch size. */
static int with_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    gckpt_tensor *head, *x = trunk(g, rows, m, &head);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, o.context));
    term->loss = gckpt_linear_cross_entropy(x, head, targets);
    term->weight = 1;
    m->loss = term->loss;
    m->targets = gckpt_id(targets);
    m->feeds[0].input = m->tokens;
    m->feeds[1].input = m->targets;
    return 1;
}

/* ---- the run ---- */
static struct {
    gckpt_store *store;
    model models[PURPOSES];      /* by purpose; those that this run needs */
    const gckpt_backend *device; /* NULL: the processor */
    void *arena;                 /* one block for all of them, the device's */
    size_t arena_bytes;
    int32_t *tokens, *targets; /* (batch,T) feeds */
    FILE *out, *json;          /* people read out; NULL json: none */
    gckpt_frontier *frontier;  /* of training, when asked for */
    pictures_modes modes;      /* beside it */
    gckpt_timed timed;         /* --fastest: what was tried */
    int terminal;
    double start;
    uint64_t first_step;
} run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Memory for a batch; its first windows. */
static int make_batch(void)
{
    const size_t T = (size_t)o.context, bytes = (size_t)o.batch * T * sizeof(int32_t);
    run.tokens = malloc(bytes);
    run.targets = malloc(bytes);
    if (run.tokens == NULL || run.targets == NULL)
        return complain(1, "out of memory: a batch has %zu bytes", 2 * bytes);
    for (size_t i = 0; i < (size_t)o.batch; i++)
        put_window(run.tokens + i * T, run.targets + i * T, draw(0, i) % (text.train - T),
                   text.train);
    return 0;
}

/* For trials: with one thread the processor's own, which stands still while others have it. */
static double seconds(void *user)
{
    struct timespec t;
    clock_gettime(o.threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (void)user, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The plan and its micro-batch, for --micro-batch auto and --fastest. */
static gckpt_plan *choose_plan(model *m, gckpt_store *store, const gckpt_plan_desc *desc)
{
    m->feeds[0].data = run.tokens;
    m->feeds[1].data = run.targets;
    run.timed.seconds = seconds;
    run.timed.limit = o.fastest; /* 0: no trials */
    run.timed.feeds = m->feeds;
    run.timed.feed_count = 2;
    return gckpt_fit_timed(store, with_loss, m, o.batch, desc, NULL, &run.timed);
}

static gckpt_precision precision(void)
{
    return o.bf16_fast ? GCKPT_BF16_FAST : o.bf16 ? GCKPT_BF16 : GCKPT_FP32;
}

static int make_model(model *m, gckpt_store *store, purpose why)
{
    gckpt_plan_desc desc = { .mode = why == TRAINING ? modes[o.checkpoint] : GCKPT_INFERENCE,
                             .threads = (int)o.threads };
    desc.batch = why == SAMPLING ? 1 : o.batch;
    desc.backend = run.device;
    desc.precision = precision();
    desc.budget = why == TRAINING ? (size_t)o.budget : 0;
    if (why == TRAINING && o.micro_batch == OPTIONS_AUTO) {
        desc.update_in_backward = o.clip > 0 ? 0 : GCKPT_IF_USEFUL;
        m->plan = choose_plan(m, store, &desc);
        if (m->plan == NULL)
            return complain(1, "%s", gckpt_error_text(store));
        o.micro_batch = gckpt_plan_rows(m->plan);
        return 0;
    }
    gckpt_graph *g = m->graph = gckpt_graph_new(store, NULL);
    gckpt_term term = { NULL, 0, 0 };
    gckpt_pick pick = { NULL, 0 };
    if (why == SAMPLING) {
        gckpt_tensor *head, *x = trunk(g, 1, m, &head);
        x = gckpt_linear_transposed(x, head, NULL); /* (1,T,V) logits */
        x = gckpt_softmax(gckpt_scale(x, (float)(1 / temperature)));
        m->probabilities = gckpt_id(x);
        pick.tensor = x;
        desc.fetch = &pick;
        desc.fetches = 1;
    } else {
        with_loss(g, o.micro_batch, &term, m);
    }
    m->plan = gckpt_plan_new(g, &term, why == SAMPLING ? 0 : 1, &desc);
    if (m->plan == NULL) {
        complain(1, "%s", gckpt_error_text(g));
        if (gckpt_error(g) == GCKPT_E_BUDGET && o.micro_batch > 1)
            complain(1, "a smaller --micro-batch needs fewer bytes; --micro-batch auto finds one");
        return 1;
    }
    return 0;
}

static void free_model(model *m)
{
    gckpt_exec_free(m->exec);
    gckpt_plan_free(m->plan);
    gckpt_graph_free(m->graph);
}

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* Did everything written so far arrive? Complains the first time it did not. */
static int output_works(void)
{
    static int complained;
    FILE *const streams[2] = { run.out, run.json };
    for (int i = 0; i < 2; i++)
        if (streams[i] != NULL && (fflush(streams[i]) != 0 || ferror(streams[i]))) {
            if (!complained)
                complain(1, "%s: %s",
                         streams[i] == stdout ? "standard output"
                         : i == 0             ? "standard error"
                                              : o.json,
                         strerror(errno));
            complained = 1;
            return 0;
        }
    return 1;
}

/* One event on the --json stream, if there is one. */
static void event(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (run.json != NULL)
        vfprintf(run.json, format, args);
    va_end(args);
}

static size_t print_plan_text(void *user, const void *bytes, size_t size)
{
    return fwrite(bytes, 1, size, (FILE *)user);
}

/* --fastest: what was predicted, as seconds of the first, beside what was measured. */
static void report_trials(void)
{
    const gckpt_timed *t = &run.timed;
    for (int i = 0; i < t->count; i++) {
        const gckpt_trial *a = &t->trials[i];
        double predicted = t->trials[0].seconds * (double)a->work / (double)t->trials[0].work;
        fprintf(run.out,
                "trial  micro-batch %lld, %zu bytes, %.1f %% overhead: predicted %.2f ms, measured "
                "%.2f%s\n",
                (long long)a->rows, a->bytes, 100 * a->overhead, 1e3 * predicted, 1e3 * a->seconds,
                i == t->fastest ? ", the fastest" : "");
        event("{\"event\":\"trial\",\"micro_batch\":%lld,\"bytes\":%zu,\"work\":%llu,"
              "\"seconds\":%.9g,\"runs\":%d}\n",
              (long long)a->rows, a->bytes, (unsigned long long)a->work, a->seconds, a->runs);
    }
}

/* How far the plan may be from the best one: of this micro-batch, in these bytes. */
static void report_proof(const gckpt_plan *p)
{
    const double gap = 100 * gckpt_plan_gap(p);
    if (gckpt_plan_proven_work(p) == gckpt_plan_work(p))
        fprintf(run.out, "proof  no schedule is faster in these bytes, ");
    else
        fprintf(run.out, "proof  within %.1f %% of the best possible in these bytes, ",
                gap < 0.1 ? 0.1 : gap);
    fprintf(run.out, "none needs less than %zu\n", gckpt_plan_proven_bytes(p));
}

static void report_plan(void)
{
    const gckpt_plan *p = run.models[TRAINING].plan;
    const char *name = gckpt_mode_name(gckpt_plan_mode(p));
    int64_t parameters = 0;
    gckpt_parameter q;
    for (int i = 0; gckpt_store_peek(run.store, i, &q) == GCKPT_OK; i++)
        parameters += q.elements;
    fprintf(run.out, "text   %s: %zu bytes, the last %zu for validation\n", text.path, text.size,
            text.size - text.train);
    fprintf(run.out, "model  %lld layers, %lld heads, dim %lld, context %lld: %lld parameters\n",
            (long long)o.layers, (long long)o.heads, (long long)o.dim, (long long)o.context,
            (long long)parameters);
    fprintf(run.out,
            "plan   %s%s, micro-batch %lld of %lld%s%s, %lld thread%s: %zu bytes, "
            "%.1f %% recomputed\n",
            name, run.device != NULL ? ", on cuda" : "", (long long)o.micro_batch,
            (long long)o.batch, gckpt_plan_in_backward(p) ? ", updates in the backward" : "",
            o.bf16_fast ? ", fast bf16" : o.bf16 ? ", bf16" : "", (long long)o.threads, o.threads == 1 ? "" : "s",
            gckpt_plan_bytes(p), 100 * gckpt_plan_recompute(p));
    fprintf(run.out,
            "bytes  parameters %zu, optimiser %zu, arena %zu (at its peak: gradients %zu, "
            "activations %zu, workspace %zu)\n",
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE), gckpt_plan_arena(p),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_GRADIENTS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_ACTIVATIONS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_WORKSPACE));
    report_trials();
    report_proof(p);
    event(
        "{\"event\":\"plan\",\"bytes\":%zu,\"lower_bound\":%zu,\"recompute\":%.9g,\"checkpoint\":\"%s\","
        "\"micro_batch\":%lld,\"parameters\":%lld,\"budget\":%lld,\"overhead\":%.9g,"
        "\"gap\":%.9g,\"proven_bytes\":%zu",
        gckpt_plan_bytes(p), gckpt_plan_bytes(p) - gckpt_plan_arena(p) + gckpt_plan_bound(p),
        gckpt_plan_recompute(p), name, (long long)o.micro_batch, (long long)parameters,
        (long long)o.budget, gckpt_plan_overhead(p), gckpt_plan_gap(p), gckpt_plan_proven_bytes(p));
    gckpt_point at;
    for (int i = 0; o.frontier != NULL && gckpt_frontier_get(run.frontier, i, &at) == GCKPT_OK; i++)
        event("%s[%zu,%.9g]", i == 0 ? ",\"frontier\":[" : ",", at.bytes, at.overhead);
    event(o.frontier != NULL ? "]}\n" : "}\n");
}

/* What every budget costs, and every --checkpoint. A graph that --micro-batch auto chose is built
 * again. */
static int find_frontier(model *m)
{
    gckpt_plan_desc desc = { .batch = o.batch, .threads = (int)o.threads, .backend = run.device };
    gckpt_term term = { m->loss, 1, 0 };
    desc.update_in_backward = gckpt_plan_in_backward(m->plan);
    desc.precision = precision();
    if (m->graph == NULL) {
        m->graph = gckpt_graph_new(run.store, NULL);
        with_loss(m->graph, o.micro_batch, &term, m);
    }
    run.frontier = gckpt_frontier_new(m->graph, &term, 1, &desc);
    if (run.frontier == NULL || pictures_compare(m->graph, &term, 1, &desc, &run.modes) != GCKPT_OK)
        return complain(1, "%s", gckpt_error_text(m->graph));
    return 0;
}

/* Marked: the budget, or else the bytes of the plan. */
static gckpt_result write_frontier(FILE *f, const char *path)
{
    const char *dot = strrchr(path, '.');
    const size_t plan = gckpt_plan_bytes(run.models[TRAINING].plan);
    const size_t mark = o.budget > 0 ? (size_t)o.budget : plan;
    if (dot != NULL && strcmp(dot, ".svg") == 0)
        return pictures_frontier(run.frontier, &run.modes, mark, print_plan_text, f);
    if (dot != NULL && strcmp(dot, ".json") == 0)
        return gckpt_frontier_json(run.frontier, mark, print_plan_text, f);
    gckpt_result result = gckpt_frontier_print(run.frontier, mark, print_plan_text, f);
    fputc('\n', f);
    return result != GCKPT_OK ? result
                              : pictures_table(run.frontier, &run.modes, print_plan_text, f);
}

static int save_frontier(void)
{
    FILE *f = fopen(o.frontier, "w");
    if (f == NULL)
        return complain(1, "--frontier %s: %s", o.frontier, strerror(errno));
    int bad = write_frontier(f, o.frontier) != GCKPT_OK;
    if (fclose(f) != 0 || bad)
        return complain(1, "--frontier %s: %s", o.frontier, strerror(errno));
    return 0;
}

/* --timeline: a plan as a picture, or as a trace. */
static int draw_plan(const gckpt_plan *plan)
{
    const char *dot = strrchr(o.timeline, '.');
    const int trace = dot != NULL && strcmp(dot, ".json") == 0;
    FILE *f = fopen(o.timeline, "w");
    if (f == NULL)
        return complain(1, "--timeline %s: %s", o.timeline, strerror(errno));
    int bad = (trace ? gckpt_plan_trace : pictures_plan)(plan, print_plan_text, f) != GCKPT_OK;
    if (fclose(f) != 0 || bad)
        return complain(1, "--timeline %s: %s", o.timeline, strerror(errno));
    return 0;
}

/* --device. */
static int open_device(void)
{
    if (o.bf16_fast && (o.bf16 || o.device == 0))
        return o.bf16 ? complain(2, "--bf16 and --bf16-fast: give one of them")
                      : complain(2, "--bf16-fast: the processor has no tensor cores; give --bf16, "
                                    "or --device cuda, too");
    if (o.device == 0)
        return 0;
#ifdef GPT_CUDA
    const char *error;
    run.device = gckpt_cuda_backend(0, &error);
    return run.device != NULL ? 0 : complain(1, "--device cuda: %s", error);
#else
    return complain(2, "--device cuda: this program has none; make build/gpt-cuda makes one");
#endif
}

/* Weights, graphs, plans; then one arena, as large as the greediest plan wants, and three
 * executors. */
static int prepare(void)
{
    gckpt_store_desc desc = { .seed = (uint64_t)o.seed };
    run.store = gckpt_store_new(&desc);
    if (run.store == NULL)
        return complain(1, "out of memory");
    if (make_batch())
        return 1;
    const int needed[PURPOSES] = { 1, o.eval_every > 0 && !o.plan, o.sample > 0 && !o.plan };
    size_t bytes = 0;
    for (int i = 0; i < PURPOSES; i++) {
        if (needed[i] && make_model(&run.models[i], run.store, (purpose)i))
            return 1;
        if (gckpt_plan_arena(run.models[i].plan) > bytes)
            bytes = gckpt_plan_arena(run.models[i].plan);
    }
    const gckpt_plan *training = run.models[TRAINING].plan;
    const size_t total = gckpt_plan_bytes(training) - gckpt_plan_arena(training) + bytes;
    /* unasked not for very deep models: that would take minutes */
    if (((o.plan && o.layers <= 200) || o.frontier != NULL) &&
        find_frontier(&run.models[TRAINING]) != 0)
        return 1;
    report_plan();
    if (o.frontier != NULL && save_frontier() != 0)
        return 1;
    if (o.timeline != NULL && draw_plan(training) != 0)
        return 1;
    if (o.plan) {
        if (run.frontier != NULL) {
            fputc('\n', run.out);
            write_frontier(run.out, "");
            fputc('\n', run.out);
        }
        gckpt_plan_print(training, print_plan_text, run.out);
        return 0;
    }
    if (o.budget > 0 && total > (size_t)o.budget)
        return complain(1,
                        "--budget %lld: training fits, but evaluation or sampling need %zu bytes",
                        (long long)o.budget, total);
    if (bytes > gckpt_plan_arena(training))
        fprintf(run.out, "bytes  evaluation or sampling need %zu\n", total);
    run.arena_bytes = bytes + 64;
    run.arena = run.device != NULL ? run.device->get(run.device->context, run.arena_bytes, 64)
                                   : malloc(run.arena_bytes);
    if (run.arena == NULL)
        return complain(1, "out of memory: the step arena is %zu bytes", bytes);
    gckpt_result loaded = o.resume != NULL ? gckpt_store_load(run.store, o.resume) : GCKPT_OK;
    if (loaded == GCKPT_OTHER_CONTRACT)
        fprintf(run.out, "note   %s\n", gckpt_error_text(run.store));
    else if (loaded != GCKPT_OK)
        return complain(1, "--resume %s: %s", o.resume, gckpt_error_text(run.store));
    for (int i = 0; i < PURPOSES; i++) {
        model *m = &run.models[i];
        gckpt_exec_desc e = { .debug = i == TRAINING ? GCKPT_DEBUG_MEASURE : 0,
                              .backend = run.device };
        e.arena = (unsigned char *)run.arena + (64 - (uintptr_t)run.arena % 64) % 64;
        e.arena_size = gckpt_plan_arena(m->plan);
        if (needed[i] && (m->exec = gckpt_exec_new(m->plan, run.store, &e)) == NULL)
            return complain(1, "%s", gckpt_error_text(run.store));
    }
    return 0;
}

/* Mean loss over the whole validation text, in windows that do not overlap. */
static int evaluate(uint64_t step)
{
    const size_t T = (size_t)o.context, windows = (text.size - text.train - 1 + T - 1) / T;
    const model *m = &run.models[EVALUATION];
    double sum = 0;
    int64_t count = 0;
    size_t rows = 0;
    for (size_t w = 0; w < windows; w++) {
        put_window(run.tokens + rows * T, run.targets + rows * T, text.train + w * T, text.size);
        if (++rows < (size_t)o.batch && w + 1 < windows)
            continue;
        gckpt_feed feeds[2] = { { m->tokens, run.tokens }, { m->targets, run.targets } };
        gckpt_report report;
        if (gckpt_forward(m->exec, feeds, 2, (int64_t)rows, &report) != GCKPT_OK)
            return complain(1, "%s", gckpt_error_text(m->exec));
        sum += report.loss * (double)report.count;
        count += report.count;
        rows = 0;
    }
    char line[80];
    snprintf(line, sizeof line, "step %llu: validation loss %.4f", (unsigned long long)step,
             sum / (double)count);
    fprintf(run.out, run.terminal ? "\r%-78s\n" : "%s\n", line);
    event("{\"event\":\"eval\",\"step\":%llu,\"val_loss\":%.9g}\n", (unsigned long long)step,
          sum / (double)count);
    return 0;
}

/* On a terminal one line that changes, at most ten times a second; else a line now and then. */
static void report_step(const gckpt_report *r, double seconds)
{
    static double last;
    double t = now(), rate = (double)(o.batch * o.context) / seconds;
    uint64_t total = (uint64_t)o.steps, every = total > 20 ? total / 20 : 1;
    event(
        "{\"event\":\"step\",\"step\":%llu,\"loss\":%.9g,\"grad_norm\":%.9g,\"tokens_per_second\":%.9g}\n",
        (unsigned long long)r->step, r->loss, r->grad_norm, rate);
    if (run.terminal ? t - last < 0.1 && r->step != total : r->step % every != 0 && r->step != 1)
        return;
    last = t;
    double left = (t - run.start) / (double)(r->step - run.first_step) * (double)(total - r->step);
    char line[160];
    snprintf(line, sizeof line, "step %llu/%llu  loss %.4f  %.0f tokens/s  %zu bytes  %d:%02d left",
             (unsigned long long)r->step, (unsigned long long)total, r->loss, rate,
             gckpt_plan_bytes(run.models[TRAINING].plan), (int)(left / 60), (int)left % 60);
    if (run.terminal)
        fprintf(run.out, "\r%-78s", line);
    else
        fprintf(run.out, "%s\n", line);
}

static int save(void)
{
    if (o.save == NULL || gckpt_store_save(run.store, o.save) == GCKPT_OK)
        return 0;
    return complain(1, "--save %s: %s", o.save, gckpt_error_text(run.store));
}

static int train(void)
{
    gckpt_hyper hyper = { .weight_decay = (float)o.weight_decay, .clip = (float)o.clip };
    hyper.beta1 = o.beta1 > 0 ? (float)o.beta1 : -1; /* for the library 0 means "the usual" */
    hyper.beta2 = o.beta2 > 0 ? (float)o.beta2 : -1;
    const size_t T = (size_t)o.context;
    const uint64_t starts = text.train - T;
    const model *m = &run.models[TRAINING];
    uint64_t step = gckpt_store_step(run.store);
    run.first_step = step;
    run.start = now();
    if (step >= (uint64_t)o.steps)
        return o.eval_every > 0 ? evaluate(step) : 0;
    while (step < (uint64_t)o.steps && !interrupted) {
        double begin = now();
        for (size_t i = 0; i < (size_t)o.batch; i++)
            put_window(run.tokens + i * T, run.targets + i * T, draw(step, i) % starts, text.train);
        gckpt_feed feeds[2] = { { m->tokens, run.tokens }, { m->targets, run.targets } };
        gckpt_report report;
        hyper.lr = gckpt_lr_cosine(step, (uint64_t)o.warmup, (uint64_t)o.steps, (float)o.lr,
                                   (float)o.min_lr);
        if (gckpt_step(m->exec, feeds, 2, o.batch, &hyper, &report) != GCKPT_OK)
            return complain(1, "%s", gckpt_error_text(m->exec));
        step = report.step;
        if (!(report.loss - report.loss == 0) || !(report.grad_norm - report.grad_norm == 0))
            return complain(
                1, "loss or gradient is no longer finite at step %llu: lower --lr or --clip",
                (unsigned long long)step);
        report_step(&report, now() - begin);
        int done = step == (uint64_t)o.steps || interrupted;
        if (run.terminal && done)
            fputc('\n', run.out);
        if (o.eval_every > 0 && (done || step % (uint64_t)o.eval_every == 0) &&
            (evaluate(step) || save()))
            return 1;
        if (!output_works()) {
            save();
            return 1;
        }
    }
    return save();
}

/* Continues the prompt byte by byte. The window ends at the newest byte; what follows is padding,
 * which a causal model cannot see. */
static int sample(void)
{
    const size_t T = (size_t)o.context, n = (size_t)o.sample;
    const model *m = &run.models[SAMPLING];
    const char *prompt = o.prompt == NULL || o.prompt[0] == 0 ? "\n" : o.prompt;
    const size_t given = strlen(prompt);
    unsigned char *all = malloc(given + n);
    if (all == NULL)
        return complain(1, "out of memory for a sample of %zu bytes", n);
    memcpy(all, prompt, given);
    fprintf(run.out, "sample\n%s", o.prompt == NULL ? "" : prompt);
    for (size_t i = 0; i < n && !interrupted; i++) {
        size_t seen = given + i < T ? given + i : T;
        for (size_t t = 0; t < T; t++)
            run.tokens[t] = t < seen ? all[given + i - seen + t] : 0;
        gckpt_feed feed = { m->tokens, run.tokens };
        if (gckpt_forward(m->exec, &feed, 1, 1, NULL) != GCKPT_OK) {
            free(all);
            return complain(1, "%s", gckpt_error_text(m->exec));
        }
        const float *p = gckpt_fetch(m->exec, m->probabilities, 0);
        p += (seen - 1) * (size_t)o.vocabulary;
        double u = (double)(draw(UINT64_MAX, i) >> 11) / 9007199254740992.0, below = 0, bytes = 0;
        int byte = 0;
        for (int c = 0; c < BYTES && o.vocabulary > BYTES; c++)
            bytes += (double)p[c];
        u *= bytes > 0 ? bytes : 1; /* tokens that are no bytes are left out */
        for (int c = 0; c < BYTES; c++) {
            if (p[c] > 0)
                byte = c; /* should rounding leave u above the sum: the last possible */
            below += (double)p[c];
            if (u < below)
                break;
        }
        all[given + i] = (unsigned char)byte;
        fputc((byte < 32 && byte != '\n' && byte != '\t') || byte == 127 ? '?' : byte, run.out);
        if (run.terminal)
            fflush(run.out);
    }
    fputc('\n', run.out);
    free(all);
    return 0;
}

static void report_end(void)
{
    size_t measured = gckpt_bytes_measured(run.models[TRAINING].exec);
    unsigned long long hash = gckpt_store_hash(run.store);
    double seconds = now() - run.start;
    fprintf(run.out, "end    %llu steps, %.1f s, ", (unsigned long long)gckpt_store_step(run.store),
            seconds);
    if (measured > 0)
        fprintf(run.out, "%zu bytes measured, ", measured);
    fprintf(run.out, "weights %016llx\n", hash);
    event(
        "{\"event\":\"end\",\"bytes_measured\":%zu,\"weights_hash\":\"%016llx\",\"seconds\":%.9g}\n",
        measured, hash, seconds);
}

/* Else the next file that is opened would take a stream's place. */
static int streams_open(void)
{
    if (fcntl(STDERR_FILENO, F_GETFD) < 0)
        return 0;
    return fcntl(STDOUT_FILENO, F_GETFD) >= 0 || !complain(1, "standard output is closed");
}

static int open_output(void)
{
    run.out = stdout;
    if (o.json != NULL && strcmp(o.json, "-") == 0) {
        run.json = stdout;
        run.out = stderr;
    } else if (o.json != NULL && (run.json = fopen(o.json, "w")) == NULL) {
        return complain(1, "--json %s: %s", o.json, strerror(errno));
    }
    run.terminal = isatty(fileno(run.out));
    return 0;
}

int main(int argc, char **argv)
{
    int status = parse_options(argc, argv);
    if (status != 0)
        return status;
    if (o.help)
        return print_help();
    signal(SIGINT, interrupt); /* stops after the present step, saves, reports */
    signal(SIGTERM, interrupt);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error like any other */
    status = !streams_open() || load_text(argv[0]);
    if (status == 0)
        status = try_outputs();
    if (status == 0)
        status = open_device();
    if (status == 0)
        status = open_output() || prepare();
    if (status == 0 && !o.plan) {
        status = train();
        if (status == 0 && o.sample > 0 && !interrupted)
            status = sample();
        if (status == 0)
            report_end();
    }
    if (run.out != NULL && !output_works())
        status = 1;
    if (run.json != NULL && fclose(run.json) != 0 && status == 0)
        status = complain(1, "--json %s: %s", o.json, strerror(errno));
    gckpt_frontier_free(run.frontier);
    for (int i = 0; i < PURPOSES; i++)
        free_model(&run.models[i]);
    gckpt_store_free(run.store);
    if (run.device == NULL)
        free(run.arena);
    else if (run.arena != NULL)
        run.device->release(run.device->context, run.arena, run.arena_bytes);
    free(run.tokens);
    free(run.targets);
    free(text.bytes);
    return status == 0 && interrupted ? 130 : status;
}
