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
#include "sample.h"
#include "session.h"

/* ---- options: this table is the parser and the --help text ---- */
enum { MOST_SKIPPED = 10 }; /* steps in a row */
enum { BYTES = 256 };       /* tokens that the text has: a token is a byte */

static struct {
    int64_t layers, heads, dim, context, batch, micro_batch, steps, warmup, seed, threads, tie;
    int64_t vocabulary, device, checkpoint, budget, bf16, bf16_fast, plan, sample, eval_every, help;
    int64_t top_k, samples, eval_iters;
    double lr, min_lr, weight_decay, beta1, beta2, clip, dropout, fastest, temperature, top_p;
    const char *save, *resume, *prompt, *data, *json, *timeline, *frontier;
} o = { .min_lr = -1 };

static const char *const mode_names[] = { "auto", "store-all", "memory-poor", "segments",
                                          "sqrt", "optimal",   NULL };
static const gckpt_mode modes[] = { GCKPT_AUTO,     GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                    GCKPT_SEGMENTS, GCKPT_SQRT,      GCKPT_OPTIMAL };
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
    { "device", OPTIONS_CHOICE, &o.device, "cpu", 0, 0, session_devices,
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
      "write weights and optimiser state (safetensors) with each evaluation, at the end, and when "
      "interrupted" },
    { "resume", OPTIONS_FILE, &o.resume, NULL, 0, 0, NULL,
      "go on from a file that --save wrote, with its options but for those given now; saves there "
      "unless --save says where" },
    { "sample", OPTIONS_WHOLE, &o.sample, "0", 0, 1e9, NULL, "bytes to generate at the end" },
    { "samples", OPTIONS_WHOLE, &o.samples, "1", 1, 1024, NULL, "so many of them" },
    { "temperature", OPTIONS_REAL, &o.temperature, "0.8", 0, 100, NULL,
      "of sampling: below 1 prefers likely bytes; 0: always the likeliest" },
    { "top-k", OPTIONS_WHOLE, &o.top_k, "0", 0, 1e9, NULL,
      "sample from the k likeliest bytes; 0: from all" },
    { "top-p", OPTIONS_REAL, &o.top_p, "1", 0, 1, NULL,
      "sample from the likeliest bytes that have this probability together" },
    { "prompt", OPTIONS_TEXT, &o.prompt, NULL, 0, 0, NULL,
      "text that the sample continues; not given: a new line" },
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL,
      "text to learn, a file or pipe of at most 1 GiB; not given: gradckpt.h itself" },
    { "eval-every", OPTIONS_WHOLE, &o.eval_every, "100", 0, 1e12, NULL,
      "steps between evaluations on the last 10 % of the text; 0: none" },
    { "eval-iters", OPTIONS_WHOLE, &o.eval_iters, "0", 0, 1e12, NULL,
      "batches of windows of an evaluation, from all over that text; 0: all of it" },
    { "json", OPTIONS_TEXT, &o.json, NULL, 0, 0, NULL,
      "events, one object a line; -: on standard output, alone" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "gpt", allowed, sizeof allowed / sizeof allowed[0], 16,
                                       "MODE" };

static int print_help(void)
{
    printf("gpt - trains a small byte-level GPT inside a byte budget\n\n");
    options_print(&options);
    printf("\nExit status: 0 done, 1 failed, 2 wrong option or value, 130 interrupted.\n");
    if (fflush(stdout) != 0 || ferror(stdout))
        return session_fail(1, "standard output: %s", strerror(errno));
    return 0;
}

/* Options that make the model, and those that are not kept in saved files. */
static const char fixed[] = "layers heads dim vocabulary tie dropout";
static const char not_kept[] = "resume save json timeline frontier plan help";

/* 0, or the exit status 2 after saying what is allowed. */
static int check_options(void)
{
    if (o.fastest > 0 && o.micro_batch > 0)
        return session_fail(2, "--fastest chooses the micro-batch; allowed is --micro-batch auto");
    if (o.micro_batch == 0)
        o.micro_batch = o.fastest > 0 ? OPTIONS_AUTO : o.batch;
    if (o.min_lr < 0)
        o.min_lr = o.lr;
    if (o.dim % (2 * o.heads) != 0) /* rotary positions turn pairs of a head's numbers */
        return session_fail(2, "--dim %lld with --heads %lld: allowed is a --dim of 2 * --heads, %lld, "
                            "or a multiple of that",
                            (long long)o.dim, (long long)o.heads, 2 * (long long)o.heads);
    if (o.micro_batch > o.batch)
        return session_fail(2, "--micro-batch %lld: allowed is at most --batch %lld",
                            (long long)o.micro_batch, (long long)o.batch);
    if (o.min_lr > o.lr)
        return session_fail(2, "--min-lr %g: allowed is at most --lr %g", o.min_lr, o.lr);
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

/* Without --data: the header, in the working directory, beside the program, or one above it. */
static int load_text(const char *program)
{
    const char *slash = strrchr(program, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - program) + 1;
    snprintf(text.path, sizeof text.path, "%s", o.data != NULL ? o.data : "");
    for (int i = 0; i < 3 && o.data == NULL && access(text.path, R_OK) != 0; i++)
        snprintf(text.path, sizeof text.path, "%.*s%sgradckpt.h", i == 0 ? 0 : folder, program,
                 i == 2 ? "../" : "");
    if (o.data == NULL && access(text.path, R_OK) != 0)
        return session_fail(
            1, "no gradckpt.h here, beside or above %s; give a text with --data FILE", program);
    if (session_read("data", text.path, &text.bytes, &text.size) != 0)
        return 1;
    text.train = text.size - text.size / 10;
    if (text.train < (size_t)o.context + 1 || text.size - text.train < 2)
        return session_fail(1, "%s has %zu bytes, too few for --context %lld", text.path, text.size,
                            (long long)o.context);
    return 0;
}

/* Nothing that is written is an input or another output. */
static int try_outputs(void)
{
    const char *const json = o.json != NULL && strcmp(o.json, "-") != 0 ? o.json : NULL;
    const session_file files[] = { { "data", text.path, SESSION_READS, -1 },
                                   { "resume", o.resume, SESSION_READS, -1 },
                                   { "json", json, SESSION_WRITES, -1 },
                                   { "timeline", o.timeline, SESSION_WRITES, -1 },
                                   { "frontier", o.frontier, SESSION_WRITES, -1 },
                                   { "save", o.save, SESSION_SAVES, 1 } };
    return session_try_files(files, (int)(sizeof files / sizeof files[0]));
}

static uint64_t draw(uint64_t step, uint64_t i) { return sample_draw((uint64_t)o.seed, step, i); }

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
    int tokens, targets, logits; /* ids */
    gckpt_feed feeds[2];         /* of tokens and targets */
    gckpt_tensor *loss;          /* of the graph above */
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

typedef struct {
    int layer;
    int64_t capacity; /* of caches, in which calls go on; 0: a call is a whole window */
} place;

/* One pre-norm block, (B,T,C) -> (B,T,C). Its inside is one segment: see gckpt_checkpoint below.
 * What adds to the residual stream starts smaller, by sqrt(2 layers): Radford 2019. */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const place *at = (const place *)user;
    const int i = at->layer;
    const int64_t C = o.dim;
    const double small = 0.02 / square_root(2.0 * (double)o.layers);
    gckpt_tensor *a = norm(x, i, "ln_1");
    gckpt_tensor *q = gckpt_rotary(dense(a, i, "attn.q", C, C, 0.02), (int)o.heads, 0);
    gckpt_tensor *k = gckpt_rotary(dense(a, i, "attn.k", C, C, 0.02), (int)o.heads, 0);
    gckpt_tensor *v = dense(a, i, "attn.v", C, C, 0.02);
    if (at->capacity > 0) {
        k = gckpt_cache(k, at->capacity);
        v = gckpt_cache(v, at->capacity);
    }
    a = named(gckpt_attention(q, k, v, (int)o.heads, 1), i, "attn");
    x = gckpt_add(x, dropout(dense(a, i, "attn.proj", C, C, small)));
    a = dense(norm(named(x, i, "attn.sum"), i, "ln_2"), i, "mlp.fc", C, 4 * C, 0.02);
    a = named(gckpt_gelu(a), i, "mlp");
    return named(gckpt_add(x, dropout(dense(a, i, "mlp.out", 4 * C, C, small))), i, "mlp.sum");
}

/* The model up to its last norm, (rows,T) -> (rows,T,C), and the (V,C) matrix of its head. With
 * caches T is 1, else --context. */
static gckpt_tensor *trunk(gckpt_graph *g, int64_t rows, int cached, model *m, gckpt_tensor **head)
{
    const int64_t V = o.vocabulary, T = cached ? 1 : o.context;
    place at = { 0, cached ? o.context : 0 };
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = parameter(g, -1, "wte", gckpt_shape2(V, o.dim), 0.02, 0);
    gckpt_tensor *x = dropout(gckpt_embed(table, tokens));
    for (; at.layer < (int)o.layers; at.layer++)
        x = gckpt_checkpoint(block, x, &at);
    x = norm(x, -1, "ln_f");
    *head = o.tie ? table : parameter(g, -1, "head", gckpt_shape2(V, o.dim), 0.02, 0);
    m->tokens = gckpt_id(tokens);
    return x;
}

/* The model with its loss: what gckpt_fit calls for each micro-batch size. */
static int with_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    model *m = (model *)user;
    gckpt_tensor *head, *x = trunk(g, rows, 0, m, &head);
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
    gckpt_frontier *frontier;  /* of training, when asked for */
    pictures_modes modes;      /* beside it */
    gckpt_timed timed;         /* --fastest: what was tried */
    char note[256];            /* of the file that was resumed */
    uint64_t skipped;          /* steps whose gradient was not finite */
} run;

/* Memory for a batch; its first windows. */
static int make_batch(void)
{
    const size_t T = (size_t)o.context, bytes = (size_t)o.batch * T * sizeof(int32_t);
    run.tokens = malloc(bytes);
    run.targets = malloc(bytes);
    if (run.tokens == NULL || run.targets == NULL)
        return session_fail(1, "out of memory: a batch has %zu bytes", 2 * bytes);
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
    desc.batch = why == SAMPLING ? o.samples : o.batch;
    desc.backend = run.device;
    desc.precision = precision();
    desc.budget = why == TRAINING ? (size_t)o.budget : 0;
    if (why == TRAINING && o.micro_batch == OPTIONS_AUTO) {
        desc.update_in_backward = o.clip > 0 ? 0 : GCKPT_IF_USEFUL;
        m->plan = choose_plan(m, store, &desc);
        if (m->plan == NULL)
            return session_fail(1, "%s", gckpt_error_text(store));
        o.micro_batch = gckpt_plan_rows(m->plan);
        return 0;
    }
    gckpt_graph *g = m->graph = gckpt_graph_new(store, NULL);
    gckpt_term term = { NULL, 0, 0 };
    gckpt_pick pick = { NULL, 0 };
    if (why == SAMPLING) {
        gckpt_tensor *head, *x = trunk(g, o.samples, 1, m, &head);
        pick.tensor = gckpt_linear_transposed(x, head, NULL); /* (samples,1,V) */
        m->logits = gckpt_id(pick.tensor);
        desc.fetch = &pick;
        desc.fetches = 1;
    } else {
        with_loss(g, o.micro_batch, &term, m);
    }
    m->plan = gckpt_plan_new(g, &term, why == SAMPLING ? 0 : 1, &desc);
    if (m->plan == NULL) {
        session_fail(1, "%s", gckpt_error_text(g));
        if (gckpt_error(g) == GCKPT_E_BUDGET && o.micro_batch > 1)
            session_fail(1,
                         "a smaller --micro-batch needs fewer bytes; --micro-batch auto finds one");
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

/* --fastest: what was predicted, as seconds of the first, beside what was measured. */
static void report_trials(void)
{
    const gckpt_timed *t = &run.timed;
    for (int i = 0; i < t->count; i++) {
        const gckpt_trial *a = &t->trials[i];
        double predicted = t->trials[0].seconds * (double)a->work / (double)t->trials[0].work;
        fprintf(session.out,
                "trial  micro-batch %lld, %zu bytes, %.1f %% overhead: predicted %.2f ms, measured "
                "%.2f%s\n",
                (long long)a->rows, a->bytes, 100 * a->overhead, 1e3 * predicted, 1e3 * a->seconds,
                i == t->fastest ? ", the fastest" : "");
        session_event("{\"event\":\"trial\",\"micro_batch\":%lld,\"bytes\":%zu,\"work\":%llu,"
                      "\"seconds\":%.9g,\"runs\":%d}\n",
                      (long long)a->rows, a->bytes, (unsigned long long)a->work, a->seconds,
                      a->runs);
    }
}

/* How far the plan may be from the best one: of this micro-batch, in these bytes. */
static void report_proof(const gckpt_plan *p)
{
    const double gap = 100 * gckpt_plan_gap(p);
    if (gckpt_plan_proven_work(p) == gckpt_plan_work(p))
        fprintf(session.out, "proof  no schedule is faster in these bytes, ");
    else
        fprintf(session.out, "proof  within %.1f %% of the best possible in these bytes, ",
                gap < 0.1 ? 0.1 : gap);
    fprintf(session.out, "none needs less than %zu\n", gckpt_plan_proven_bytes(p));
}

static void report_plan(void)
{
    const gckpt_plan *p = run.models[TRAINING].plan;
    const char *name = gckpt_mode_name(gckpt_plan_mode(p));
    int64_t parameters = 0;
    gckpt_parameter q;
    for (int i = 0; gckpt_store_peek(run.store, i, &q) == GCKPT_OK; i++)
        parameters += q.elements;
    if (run.note[0] != 0)
        fprintf(session.out, "note   %s\n", run.note);
    fprintf(session.out, "text   %s: %zu bytes, the last %zu for validation\n", text.path,
            text.size, text.size - text.train);
    fprintf(session.out,
            "model  %lld layers, %lld heads, dim %lld, context %lld: %lld parameters\n",
            (long long)o.layers, (long long)o.heads, (long long)o.dim, (long long)o.context,
            (long long)parameters);
    fprintf(session.out,
            "plan   %s%s, micro-batch %lld of %lld%s%s, %lld thread%s: %zu bytes, "
            "%.1f %% recomputed\n",
            name, run.device != NULL ? ", on cuda" : "", (long long)o.micro_batch,
            (long long)o.batch, gckpt_plan_in_backward(p) ? ", updates in the backward" : "",
            o.bf16_fast ? ", fast bf16"
            : o.bf16    ? ", bf16"
                        : "",
            (long long)o.threads, o.threads == 1 ? "" : "s", gckpt_plan_bytes(p),
            100 * gckpt_plan_recompute(p));
    fprintf(session.out,
            "bytes  parameters %zu, optimiser %zu, arena %zu (at its peak: gradients %zu, "
            "activations %zu, workspace %zu)\n",
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE), gckpt_plan_arena(p),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_GRADIENTS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_ACTIVATIONS),
            gckpt_plan_kind_bytes(p, GCKPT_BYTES_WORKSPACE));
    report_trials();
    report_proof(p);
    session_event(
        "{\"event\":\"plan\",\"bytes\":%zu,\"lower_bound\":%zu,\"recompute\":%.9g,\"checkpoint\":\"%s\","
        "\"micro_batch\":%lld,\"parameters\":%lld,\"budget\":%lld,\"overhead\":%.9g,"
        "\"gap\":%.9g,\"proven_bytes\":%zu",
        gckpt_plan_bytes(p), gckpt_plan_bytes(p) - gckpt_plan_arena(p) + gckpt_plan_bound(p),
        gckpt_plan_recompute(p), name, (long long)o.micro_batch, (long long)parameters,
        (long long)o.budget, gckpt_plan_overhead(p), gckpt_plan_gap(p), gckpt_plan_proven_bytes(p));
    gckpt_point at;
    for (int i = 0; o.frontier != NULL && gckpt_frontier_get(run.frontier, i, &at) == GCKPT_OK; i++)
        session_event("%s[%zu,%.9g]", i == 0 ? ",\"frontier\":[" : ",", at.bytes, at.overhead);
    session_event(o.frontier != NULL ? "]}\n" : "}\n");
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
        return session_fail(1, "%s", gckpt_error_text(m->graph));
    return 0;
}

/* Marked: the budget, or else the bytes of the plan. */
static gckpt_result write_frontier(FILE *f, const char *path)
{
    const char *dot = strrchr(path, '.');
    const size_t plan = gckpt_plan_bytes(run.models[TRAINING].plan);
    const size_t mark = o.budget > 0 ? (size_t)o.budget : plan;
    if (dot != NULL && strcmp(dot, ".svg") == 0)
        return pictures_frontier(run.frontier, &run.modes, mark, session_write, f);
    if (dot != NULL && strcmp(dot, ".json") == 0)
        return gckpt_frontier_json(run.frontier, mark, session_write, f);
    gckpt_result result = gckpt_frontier_print(run.frontier, mark, session_write, f);
    fputc('\n', f);
    return result != GCKPT_OK ? result : pictures_table(run.frontier, &run.modes, session_write, f);
}

static int save_frontier(void)
{
    FILE *f = fopen(o.frontier, "w");
    if (f == NULL)
        return session_fail(1, "--frontier %s: %s", o.frontier, strerror(errno));
    int bad = write_frontier(f, o.frontier) != GCKPT_OK;
    if (fclose(f) != 0 || bad)
        return session_fail(1, "--frontier %s: %s", o.frontier, strerror(errno));
    return 0;
}

/* --timeline: a plan as a picture, or as a trace. */
static int draw_plan(const gckpt_plan *plan)
{
    const char *dot = strrchr(o.timeline, '.');
    const int trace = dot != NULL && strcmp(dot, ".json") == 0;
    FILE *f = fopen(o.timeline, "w");
    if (f == NULL)
        return session_fail(1, "--timeline %s: %s", o.timeline, strerror(errno));
    int bad = (trace ? gckpt_plan_trace : pictures_plan)(plan, session_write, f) != GCKPT_OK;
    if (fclose(f) != 0 || bad)
        return session_fail(1, "--timeline %s: %s", o.timeline, strerror(errno));
    return 0;
}

/* --device. */
static int open_device(void)
{
    if (o.bf16_fast && (o.bf16 || o.device == 0))
        return o.bf16
                   ? session_fail(2, "--bf16 and --bf16-fast: give one of them")
                   : session_fail(2, "--bf16-fast: the processor has no tensor cores; give --bf16, "
                                     "or --device cuda, too");
    return session_device(o.device, &run.device);
}

/* Weights, graphs, plans; then one arena, as large as the greediest plan wants, and three
 * executors. */
static int prepare(void)
{
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
            fputc('\n', session.out);
            write_frontier(session.out, "");
            fputc('\n', session.out);
        }
        gckpt_plan_print(training, session_write, session.out);
        return 0;
    }
    if (o.budget > 0 && total > (size_t)o.budget)
        return session_fail(
            1, "--budget %lld: training fits, but evaluation or sampling need %zu bytes",
            (long long)o.budget, total);
    if (bytes > gckpt_plan_arena(training))
        fprintf(session.out, "bytes  evaluation or sampling need %zu\n", total);
    run.arena_bytes = bytes + 64;
    run.arena = session_get(run.device, run.arena_bytes);
    if (run.arena == NULL)
        return session_fail(1, "out of memory: the step arena is %zu bytes", bytes);
    for (int i = 0; i < PURPOSES; i++) {
        model *m = &run.models[i];
        gckpt_exec_desc e = { .debug = i == TRAINING ? GCKPT_DEBUG_MEASURE : 0,
                              .backend = run.device,
                              .skip_nonfinite = !gckpt_plan_in_backward(m->plan) };
        e.arena = (unsigned char *)run.arena + (64 - (uintptr_t)run.arena % 64) % 64;
        e.arena_size = gckpt_plan_arena(m->plan);
        if (needed[i] && (m->exec = gckpt_exec_new(m->plan, run.store, &e)) == NULL)
            return session_fail(1, "%s", gckpt_error_text(run.store));
    }
    return 0;
}

/* Mean loss over the validation text, in windows that do not overlap: all of them, or --eval-iters
 * batches, spread evenly. */
static int evaluate(uint64_t step)
{
    const size_t T = (size_t)o.context, windows = (text.size - text.train - 1 + T - 1) / T;
    const size_t most = o.eval_iters > 0 ? (size_t)o.eval_iters * (size_t)o.batch : windows;
    const size_t used = most < windows ? most : windows;
    const model *m = &run.models[EVALUATION];
    double sum = 0;
    int64_t count = 0;
    size_t rows = 0;
    for (size_t i = 0; i < used; i++) {
        const size_t w = i * windows / used;
        put_window(run.tokens + rows * T, run.targets + rows * T, text.train + w * T, text.size);
        if (++rows < (size_t)o.batch && i + 1 < used)
            continue;
        gckpt_feed feeds[2] = { { m->tokens, run.tokens }, { m->targets, run.targets } };
        gckpt_report report;
        if (gckpt_forward(m->exec, feeds, 2, (int64_t)rows, &report) != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        sum += report.loss * (double)report.count;
        count += report.count;
        rows = 0;
    }
    session_say("step %llu: validation loss %.4f", (unsigned long long)step, sum / (double)count);
    session_event("{\"event\":\"eval\",\"step\":%llu,\"val_loss\":%.9g}\n",
                  (unsigned long long)step, sum / (double)count);
    return 0;
}

static void report_step(const gckpt_report *r, double seconds)
{
    double rate = (double)(o.batch * o.context) / seconds;
    session_event("{\"event\":\"step\",\"step\":%llu,\"loss\":%.9g,\"grad_norm\":%.9g,"
                  "\"tokens_per_second\":%.9g}\n",
                  (unsigned long long)r->step, r->loss, r->grad_norm, rate);
    session_progress(r->step, (uint64_t)o.steps, r->loss, rate,
                     gckpt_plan_bytes(run.models[TRAINING].plan));
}

static int save(void)
{
    if (o.save == NULL || gckpt_store_save(run.store, o.save) == GCKPT_OK)
        return 0;
    return session_fail(1, "--save %s: %s", o.save, gckpt_error_text(run.store));
}

static int train(void)
{
    gckpt_hyper hyper = { .weight_decay = (float)o.weight_decay, .clip = (float)o.clip };
    hyper.beta1 = o.beta1 > 0 ? (float)o.beta1 : -1; /* for the library 0 means "the usual" */
    hyper.beta2 = o.beta2 > 0 ? (float)o.beta2 : -1;
    const size_t T = (size_t)o.context;
    const uint64_t starts = text.train - T;
    const model *m = &run.models[TRAINING];
    uint64_t step = gckpt_store_step(run.store), in_a_row = 0;
    session.first = step;
    session.start = session_now();
    if (step >= (uint64_t)o.steps)
        return o.eval_every > 0 ? evaluate(step) : 0;
    while (step < (uint64_t)o.steps && !session.interrupted) {
        double begin = session_now();
        for (size_t i = 0; i < (size_t)o.batch; i++)
            put_window(run.tokens + i * T, run.targets + i * T,
                       draw(step + run.skipped, i) % starts, text.train);
        gckpt_feed feeds[2] = { { m->tokens, run.tokens }, { m->targets, run.targets } };
        gckpt_report report;
        hyper.lr = gckpt_lr_cosine(step, (uint64_t)o.warmup, (uint64_t)o.steps, (float)o.lr,
                                   (float)o.min_lr);
        gckpt_result result = gckpt_step(m->exec, feeds, 2, o.batch, &hyper, &report);
        if (result == GCKPT_SKIPPED) { /* the next batch, then */
            session_say("%s", gckpt_error_text(m->exec));
            session_event("{\"event\":\"skip\",\"step\":%llu}\n", (unsigned long long)step);
            if (session_note_number(run.store, "skipped", ++run.skipped) != 0)
                return 1;
            if (++in_a_row < MOST_SKIPPED)
                continue;
        } else if (result != GCKPT_OK) {
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        }
        if (!(report.loss - report.loss == 0) || !(report.grad_norm - report.grad_norm == 0))
            return session_fail(
                1, "loss or gradient is no longer finite at step %llu: lower --lr or --clip",
                (unsigned long long)step);
        in_a_row = 0;
        step = report.step;
        report_step(&report, session_now() - begin);
        int done = step == (uint64_t)o.steps;
        if (session.terminal && (done || session.interrupted))
            fputc('\n', session.out);
        if (o.eval_every > 0 && (done || step % (uint64_t)o.eval_every == 0) &&
            (save() || evaluate(step)))
            return 1;
        if (!session_output_works()) {
            save();
            return 1;
        }
    }
    return save();
}

/* A model that is called token by token: an INFERENCE plan of an input (samples,1), with caches,
 * that fetches logits (samples,1,vocabulary). */
typedef struct {
    gckpt_exec *exec;
    int tokens, logits;                          /* ids */
    int64_t vocabulary, known, samples, context; /* known: tokens from there on are not taken */
} generator;

/* Brings token i of each of the samples, whose tokens are `stride` apart, to the caches. */
static int feed_token(const generator *m, const int32_t *all, size_t stride, size_t i,
                      int32_t *next)
{
    gckpt_feed feed = { m->tokens, next };
    for (size_t r = 0; r < (size_t)m->samples; r++)
        next[r] = all[r * stride + i];
    if (gckpt_forward(m->exec, &feed, 1, m->samples, NULL) == GCKPT_OK)
        return 0;
    return session_fail(1, "%s", gckpt_error_text(m->exec));
}

/* all is (samples,given+n) and begins with prompts of `given` >= 1 tokens; show (or NULL) sees each
 * token of the first sample as it comes. Past the context its later half goes on. */
static int generate(const generator *m, int32_t *all, size_t given, size_t n,
                    const sample_options *how, void (*show)(void *user, int32_t token), void *user)
{
    const size_t rows = (size_t)m->samples, V = (size_t)m->vocabulary, stride = given + n;
    sample_place *room = (sample_place *)malloc((size_t)m->known * sizeof *room);
    int32_t *next = (int32_t *)malloc(rows * sizeof *next);
    int failed = room == NULL || next == NULL ? session_fail(1, "out of memory for samples") : 0;
    for (size_t i = 0; i + 1 < stride && !failed && !session.interrupted; i++) {
        if (gckpt_position(m->exec) == m->context) {
            failed = gckpt_rewind(m->exec, 0) != GCKPT_OK;
            for (size_t k = i - (size_t)(m->context / 2); k < i && !failed; k++)
                failed = feed_token(m, all, stride, k, next);
        }
        failed = failed || feed_token(m, all, stride, i, next);
        const float *logits = failed ? NULL : gckpt_fetch(m->exec, m->logits, 0);
        for (size_t r = 0; r < rows && i + 1 >= given && !failed; r++)
            all[r * stride + i + 1] =
                sample_token(logits + r * V, m->known, how, r, i + 1 - given, room);
        if (show != NULL && i + 1 >= given && !failed)
            show(user, all[i + 1]);
    }
    free(room);
    free(next);
    return failed;
}

static void show(void *user, int32_t byte)
{
    (void)user;
    fputc((byte < 32 && byte != '\n' && byte != '\t') || byte == 127 ? '?' : byte, session.out);
    if (session.terminal)
        fflush(session.out);
}

/* Continues the prompt, in so many ways. */
static int sample(void)
{
    const model *m = &run.models[SAMPLING];
    const char *prompt = o.prompt == NULL || o.prompt[0] == 0 ? "\n" : o.prompt;
    const size_t given = strlen(prompt), stride = given + (size_t)o.sample;
    const generator caching = { m->exec, m->tokens, m->logits, o.vocabulary,
                                BYTES,   o.samples, o.context };
    const sample_options how = { o.temperature, o.top_k, o.top_p, (uint64_t)o.seed };
    int32_t *all = malloc((size_t)o.samples * stride * sizeof *all);
    if (all == NULL)
        return session_fail(1, "out of memory for samples of %lld bytes", (long long)o.sample);
    for (size_t i = 0; i < (size_t)o.samples * stride; i++)
        all[i] = i % stride < given ? (unsigned char)prompt[i % stride] : 0;
    fprintf(session.out, "sample\n%s", o.prompt == NULL ? "" : prompt);
    int failed = generate(&caching, all, given, (size_t)o.sample, &how, show, NULL);
    fputc('\n', session.out);
    for (size_t r = 1; r < (size_t)o.samples && !failed && !session.interrupted; r++) {
        fprintf(session.out, "sample\n%s", o.prompt == NULL ? "" : prompt);
        for (size_t i = given; i < stride; i++)
            show(NULL, all[r * stride + i]);
        fputc('\n', session.out);
    }
    free(all);
    return failed;
}

static void report_end(void)
{
    size_t measured = gckpt_bytes_measured(run.models[TRAINING].exec);
    unsigned long long hash = gckpt_store_hash(run.store);
    double seconds = session_now() - session.start;
    fprintf(session.out, "end    %llu steps, %.1f s, ",
            (unsigned long long)gckpt_store_step(run.store), seconds);
    if (run.skipped > 0)
        fprintf(session.out, "%llu skipped, ", (unsigned long long)run.skipped);
    if (measured > 0)
        fprintf(session.out, "%zu bytes measured, ", measured);
    fprintf(session.out, "weights %016llx\n", hash);
    session_event("{\"event\":\"end\",\"bytes_measured\":%zu,\"weights_hash\":\"%016llx\","
                  "\"seconds\":%.9g,\"skipped\":%llu}\n",
                  measured, hash, seconds, (unsigned long long)run.skipped);
}

/* The store, new or from --resume, whose options are those that are not given now. */
static int open_store(int argc, char **argv)
{
    gckpt_store_desc desc = { .seed = (uint64_t)o.seed };
    run.store = gckpt_store_new(&desc);
    if (run.store == NULL)
        return session_fail(1, "out of memory");
    gckpt_result loaded = o.resume != NULL ? gckpt_store_load(run.store, o.resume) : GCKPT_OK;
    if (loaded == GCKPT_OTHER_CONTRACT)
        snprintf(run.note, sizeof run.note, "%s", gckpt_error_text(run.store));
    else if (loaded != GCKPT_OK)
        return session_fail(1, "--resume %s: %s", o.resume, gckpt_error_text(run.store));
    run.skipped = session_noted(run.store, "skipped", 0);
    if (o.resume != NULL && o.save == NULL)
        o.save = o.resume;
    int status =
        o.resume != NULL ? session_restore(run.store, o.resume, &options, fixed, argc, argv) : 0;
    return status != 0 ? status : session_keep(run.store, &options, not_kept, argc, argv);
}

int main(int argc, char **argv)
{
    int status = session_start("gpt");
    if (status == 0)
        status = options_parse(&options, argc, argv);
    if (status == 0 && o.help)
        return print_help();
    if (status == 0)
        status = open_store(argc, argv);
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = load_text(argv[0]);
    if (status == 0)
        status = session_same_data(run.store, "data", text.path,
                                   session_hash(14695981039346656037u, text.bytes, text.size),
                                   options_given(&options, argc, argv, "data") != NULL);
    if (status == 0)
        status = try_outputs();
    if (status == 0)
        status = open_device();
    if (status == 0)
        status = session_open(o.json) || prepare();
    if (status == 0 && !o.plan) {
        status = train();
        if (status == 0 && o.sample > 0 && !session.interrupted)
            status = sample();
        if (status == 0)
            report_end();
    }
    gckpt_frontier_free(run.frontier);
    for (int i = 0; i < PURPOSES; i++)
        free_model(&run.models[i]);
    gckpt_store_free(run.store);
    session_release(run.device, run.arena, run.arena_bytes);
    free(run.tokens);
    free(run.targets);
    free(text.bytes);
    return session_end(status);
}
