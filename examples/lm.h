/* lm.h - the common parts of gpt.c and finetune.c, which train language models: options, plans and
 * executors in one arena, reports, and the loop over steps. To copy, with session.h, json.h,
 * options.h, pictures.h, print.h, sample.h, train_log.h, lm_optimiser.h and gradckpt.h. A program
 * has one set of options: the variable `lm`. */
#ifndef LM_H
#define LM_H
#include "session.h"

#include "pictures.h"
#include "print.h"
#include "sample.h"
#include "train_log.h"
#include "fit.h"
#include "tune.h"
#include "lm_ledger.h"
#include "lm_optimiser.h"

/* ---- options --------------------------------------------------------------------------------- */
static struct {
    int64_t batch, micro_batch, steps, warmup, seed, threads, device, checkpoint, budget, bf16,
        plan, offload_state;
    int64_t ledger_every, audit_until;
    int64_t eval_every, eval_iters, save_every, sample, samples, top_k, help, virtual_ranks;
    double lr, min_lr, weight_decay, beta1, beta2, clip, dropout, temperature, top_p, peak_tflops;
    const char *data, *validation, *save, *resume, *prompt, *json, *log, *timeline;
    const char *ledger, *ledger_key, *audit;
    gckpt_precision precision;
} lm;

static const char *const lm_mode_names[] = { "auto", "store-all", "memory-poor", "segments",
                                             "sqrt", "optimal",   NULL };
static const gckpt_mode lm_modes[] = { GCKPT_AUTO,     GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                       GCKPT_SEGMENTS, GCKPT_SQRT,      GCKPT_OPTIMAL };

/* Options of both programs. A row is a window of the text, or a prompt with its answer. */
static const options_desc lm_options[] = {
    OPTIONS_BATCH(lm),
    { "micro-batch", OPTIONS_INT_OR_AUTO, &lm.micro_batch, "auto", 0, 1 << 20, NULL,
      "rows per pass; 0 takes --batch (or the part of it of one virtual rank), auto the divisor "
      "of that number which is fastest within --budget" },
    { "steps", OPTIONS_INT, &lm.steps, "100", 0, 1e12, NULL,
      "steps in all, including those of a resumed file" },
    { "min-lr", OPTIONS_REAL, &lm.min_lr, NULL, 0, 10, NULL,
      "learning rate at the last step (cosine decay); default: --lr, no decay" },
    OPTIONS_WARMUP(lm),
    OPTIONS_WEIGHT_DECAY(lm),
    { "optimiser", OPTIONS_CHOICE, &lm_optimiser.kind, "adamw", 0, 0, lm_optimiser_names,
      "rule of the updates; adam8bit keeps 2 bytes of state per element instead of 8; muon (4, at "
      "20 times --lr) and apollo-mini (few) are for matrices without embeddings and heads" },
    { "beta1", OPTIONS_REAL, &lm.beta1, "0.9", 0, 0.99999, NULL,
      "AdamW: decay rate of the mean gradient" },
    { "beta2", OPTIONS_REAL, &lm.beta2, "0.999", 0, 0.99999, NULL,
      "AdamW: decay rate of the mean squared gradient" },
    OPTIONS_CLIP(lm),
    OPTIONS_DROPOUT(lm),
    OPTIONS_SEED(lm),
    OPTIONS_THREADS(lm),
    { "device", OPTIONS_CHOICE, &lm.device, "cpu", 0, 0, session_devices,
      "device for the computation: the processor, or the first CUDA device, which needs a "
      "program built by make build/NAME-cuda" },
    { "offload-state", OPTIONS_FLAG, &lm.offload_state, NULL, 0, 0, NULL,
      "keep the optimiser state in the host's memory, and copy it to the device and back in parts "
      "at each update; needs --device cuda" },
    { "peak-tflops", OPTIONS_REAL, &lm.peak_tflops, "0", 0, 1e9, NULL,
      "peak rate of the processors or devices that train, together, in TFLOP/s of the products' "
      "precision; reports and --log then have the MFU (model FLOPs utilisation)" },
    { "checkpoint", OPTIONS_CHOICE, &lm.checkpoint, "auto", 0, 0, lm_mode_names,
      "choice of the activations to recompute; auto recomputes none, or as few as --budget "
      "requires" },
    OPTIONS_BUDGET(lm),
    { "bf16", OPTIONS_FLAG, &lm.bf16, NULL, 0, 0, NULL,
      "store activations and their gradients as bf16, 2 bytes each" },
    { "eval-iters", OPTIONS_INT, &lm.eval_iters, "0", 0, 1e12, NULL,
      "batches per evaluation, spread over the data; 0 evaluates all of it" },
    { "save-every", OPTIONS_INT, &lm.save_every, "0", 0, 1e12, NULL,
      "steps between additional saves; 0 saves only with evaluations, at the end and when "
      "interrupted" },
    { "ledger", OPTIONS_FILE, &lm.ledger, NULL, 0, 0, NULL,
      "append records to FILE, by which build/audit checks the training on another machine: "
      "hashes of weights, optimiser state and data; continues the ledger of a resumed run" },
    { "ledger-every", OPTIONS_INT, &lm.ledger_every, "0", 0, 1e12, NULL,
      "steps between records; 0 chooses them so that records take at most 2 % of the time" },
    { "ledger-key", OPTIONS_FILE, &lm.ledger_key, NULL, 0, 0, NULL,
      "sign the records with the secret key in FILE (64 hexadecimal digits), which is created "
      "if there is none; needs libsodium" },
    { "audit", OPTIONS_FILE, &lm.audit, NULL, 0, 0, NULL,
      "repeat the training of a ledger, from its beginning or --resume FILE on, and compare its "
      "records; saves nothing (build/audit gives all options of the ledger)" },
    { "audit-until", OPTIONS_INT, &lm.audit_until, "0", 0, 1e12, NULL,
      "last step that --audit repeats; 0 takes the last record" },
    { "samples", OPTIONS_INT, &lm.samples, "1", 1, 1024, NULL, "number of samples" },
    { "temperature", OPTIONS_REAL, &lm.temperature, "0.8", 0, 100, NULL,
      "sampling temperature; below 1 prefers likely tokens, 0 always takes the likeliest" },
    { "top-k", OPTIONS_INT, &lm.top_k, "0", 0, 1e9, NULL,
      "sample from the N likeliest tokens only; 0 samples from all" },
    { "top-p", OPTIONS_REAL, &lm.top_p, "1", 0, 1, NULL,
      "sample from the likeliest tokens whose probabilities add up to X" },
    { "timeline", OPTIONS_FILE, &lm.timeline, NULL, 0, 0, NULL,
      "draw the plan's memory over time (SVG); FILE.json gets Chrome trace events" },
    { "json", OPTIONS_FILE, &lm.json, NULL, 0, 0, NULL,
      "write events, one JSON object per line; with --resume, append to those in the file; - "
      "writes them to standard output and all other output to standard error" },
    { "log", OPTIONS_FILE, &lm.log, NULL, 0, 0, NULL,
      "write a CSV line for each step: its number, tokens, loss, learning rate, gradient norm, "
      "validation loss (if evaluated), seconds, tokens per second, and the MFU with --peak-tflops; "
      "with --resume, continue the file after the resumed step" },
    OPTIONS_HELP(lm),
};
enum { LM_OPTIONS = sizeof lm_options / sizeof lm_options[0] };

static int lm_start(const char *program)
{
    lm.min_lr = -1;
    return session_start(program);
}

/* Prints the options, with headings as `groups` says (see options_print_groups), and the exit
 * statuses. */
static int lm_print_help(const options_table *t, const char *title, const char *const *groups)
{
    printf("%s - %s\n\n", t->program, title);
    options_print_groups(t, groups);
    printf("\nExit status: 0 done, 1 failed, 2 wrong option or value, 130 interrupted.\n");
    if (fflush(stdout) != 0 || ferror(stdout))
        return session_fail(1, "standard output: %s", strerror(errno));
    return 0;
}

/* Checks combinations of options, sets defaults, and reads the prompt from standard input if
 * --prompt is "-". Returns 0, or the exit status after an error. */
static int lm_check_options(void)
{
    unsigned char *prompt;
    size_t size;
    if (lm.micro_batch > lm.batch)
        return session_fail(2, "--micro-batch %lld: allowed is at most --batch %lld",
                            (long long)lm.micro_batch, (long long)lm.batch);
    if (lm.lr > 0 && lm.min_lr > lm.lr)
        return session_fail(2, "--min-lr %g: allowed is at most --lr %g", lm.min_lr, lm.lr);
    if (lm.ledger_key != NULL && lm.ledger == NULL)
        return session_fail(2, "--ledger-key %s: needs --ledger as well", lm.ledger_key);
    if (lm.audit != NULL && lm.ledger != NULL)
        return session_fail(2, "--audit and --ledger exclude each other; give one of them");
    if (lm.audit != NULL && lm.save != NULL)
        return session_fail(2, "--save %s: --audit saves nothing; leave one of them out", lm.save);
    if (lm.audit_until > 0 && lm.audit == NULL)
        return session_fail(2, "--audit-until %lld: needs --audit as well",
                            (long long)lm.audit_until);
    if (lm.save_every > 0 && lm.save == NULL && lm.audit == NULL)
        return session_fail(2, "--save-every %lld: needs --save as well",
                            (long long)lm.save_every);
    if (lm.offload_state && lm.device == 0)
        return session_fail(2, "--offload-state: needs --device cuda; the processor's state is in the "
                               "host's memory already");
    if (lm.min_lr < 0 && lm.lr > 0)
        lm.min_lr = lm.lr;
    lm.virtual_ranks = lm.virtual_ranks > 0 ? lm.virtual_ranks : 1;
    if (lm.micro_batch == 0)
        lm.micro_batch = (lm.batch + lm.virtual_ranks - 1) / lm.virtual_ranks;
    if (lm.threads == 0)
        lm.threads = gckpt_threads();
    lm.precision = lm.bf16 ? GCKPT_BF16 : GCKPT_FP32;
    if (!session_is_dash(lm.prompt))
        return 0;
    int status = session_read_file("prompt", lm.prompt, &prompt, &size);
    if (status == 0)
        lm.prompt = session.texts[session.text_count++] = (char *)prompt;
    return status;
}

/* Checks that no output file is also an input or another output. `others` are further files of the
 * program. */
static int lm_check_outputs(const char *data, const session_file *others, int count)
{
    const int new_key = lm.ledger_key != NULL && access(lm.ledger_key, F_OK) != 0;
    const session_file common[] = {
        { "data", session_is_dash(data) ? NULL : data, SESSION_READS, -1 },
        { "validation", session_is_dash(lm.validation) ? NULL : lm.validation, SESSION_READS, -1 },
        { "resume", lm.resume, SESSION_READS, -1 },
        { "audit", lm.audit, SESSION_READS, -1 },
        { "ledger-key", lm.ledger_key, new_key ? SESSION_WRITES : SESSION_READS, -1 },
        { "json", session_is_dash(lm.json) ? NULL : lm.json, SESSION_WRITES, -1 },
        { "ledger", lm.ledger, SESSION_WRITES, -1 },
        { "log", lm.log, SESSION_WRITES, -1 },
        { "timeline", lm.timeline, SESSION_WRITES, -1 }
    };
    enum { COMMON = sizeof common / sizeof common[0] };
    session_file files[SESSION_FILES];
    memcpy(files, common, sizeof common);
    for (int i = 0; i < count; i++)
        files[COMMON + i] = others[i];
    return session_check_files(files, COMMON + count);
}
/* session_file.source of an output that may replace the file of --resume */
enum { LM_RESUME_FILE = 2 };

/* ---- plans ----------------------------------------------------------------------------------- */
enum { LM_TRAINING, LM_EVALUATION, LM_SAMPLING, LM_PURPOSES };
enum {
    LM_TIMES = 1024,
    LM_MAX_SKIPPED = 10, /* most steps in sequence that may be skipped before the training fails */
    LM_CLASSES = 16,
    LM_FEEDS = 4
};

/* A plan for one purpose with its graph and executor. The graph is NULL if fit_plan made and freed
 * it. This struct is the argument of fit_build_fn functions. */
typedef struct {
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    /* tokens and targets (rows,T), then the feeds of lm_run.extra_feeds */
    gckpt_feed feeds[LM_FEEDS];
    gckpt_tensor *loss;
    gckpt_fetch_spec logits;          /* the logits, which are fetched for sampling */
    int64_t T;                  /* length of the rows; 0 means lm_run.T */
    double flops;               /* training: model FLOPs of a row; 0 without --peak-tflops */
    void *user;
} lm_stage;

typedef struct lm_run lm_run;
struct lm_run {
    gckpt_store *store;
    lm_stage stages[LM_PURPOSES];
    /* stages for rows shorter than T, the shortest first */
    lm_stage shorter[LM_CLASSES][LM_SAMPLING];
    int classes;                               /* number of elements of `shorter` */
    const gckpt_backend *device;               /* the device, or NULL for the CPU */
    /* the processes of the training, or NULL if there is only one */
    const gckpt_transport *ranks;
    /* memory of the device in which all executors have their arena, since they never run
     * together */
    void *arena;
    size_t arena_bytes;
    int32_t *tokens, *targets;             /* feeds of a step, (batch,T) */
    int64_t T;                             /* length of the longest rows */
    int64_t row_width;                     /* rows of tokens in a row of the batch; 0 means 1 */
    /* this rank processes rows first to first + rows - 1 of each batch */
    int64_t first, rows;
    const void *extra_feeds[LM_FEEDS - 2]; /* data of further feeds; the first NULL ends the list */
    int extra_floats[LM_FEEDS - 2];        /* number of floats of a row of each */
    lm_ledger ledger;
    const options_table *options;          /* of the program, which a ledger states */
    /* adds lines to the text of a ledger's run: loss, hashes of data */
    void (*describe)(ledger_text *text);
    /* step_rows: number of rows of the current step; length: their length in tokens */
    int64_t step_rows, length;
    /* number of tokens of the current step that are not padding */
    int64_t real_tokens;
    double lr, seconds;                    /* lr: learning rate; seconds: median time of a step */
    /* number of steps that were skipped because a loss or gradient was not finite */
    uint64_t skipped;
    tune_profile *profile;                 /* receives the times of training steps, or NULL */
    /* number of rows used for training so far, including those of skipped steps */
    uint64_t position;
    int varies; /* nonzero if not all steps so far had --batch rows */
    int saved;                             /* nonzero if nothing has changed since the last save */
    int enough; /* `evaluate` sets it to end the training before its last step */
    void *user;
    /* Fills `tokens` and `targets` (step_rows,length) for a step. Sets step_rows, length and
     * real_tokens if they are not --batch, T and step_rows * length. */
    void (*fill_batch)(lm_run *r, uint64_t step);
    /* evaluates and may save; sets `saved` if it has saved */
    int (*evaluate)(lm_run *r, uint64_t step);
    int (*save)(lm_run *r);                    /* saves and sets `saved` */
};

static int lm_rank(const lm_run *r) { return r->ranks != NULL ? r->ranks->rank : 0; }
static int lm_world_size(const lm_run *r) { return r->ranks != NULL ? r->ranks->size : 1; }

/* Measures instructions if the run has a profile, and checks for interrupts; a
 * gckpt_exec_desc.progress. */
static int lm_progress(void *user, const gckpt_progress *at)
{
    const lm_run *r = (const lm_run *)user;
    if (r->profile != NULL)
        tune_progress(r->profile, at);
    return session_cancelled(NULL, at);
}

static int lm_alloc_batch(lm_run *r, int64_t T)
{
    const size_t bytes = (size_t)(lm.batch * T) * sizeof(int32_t);
    r->T = T;
    r->rows = lm.batch;
    r->tokens = (int32_t *)malloc(bytes);
    r->targets = (int32_t *)malloc(bytes);
    if (r->tokens == NULL || r->targets == NULL)
        return session_fail(1, "out of memory: a batch has %zu bytes", 2 * bytes);
    return 0;
}

/* Fills the feeds of a stage with the arrays of the run. Returns the number of feeds. */
static int lm_fill_feeds(const lm_run *r, const lm_stage *m, gckpt_feed *feeds)
{
    int n = 2;
    feeds[0].data = r->tokens;
    feeds[1].data = r->targets;
    for (; n < LM_FEEDS && r->extra_feeds[n - 2] != NULL; n++)
        feeds[n].data = r->extra_feeds[n - 2];
    for (int i = 0; i < n; i++)
        feeds[i].input = m->feeds[i].input;
    return n;
}

static gckpt_plan_desc lm_plan_desc(const lm_run *r, int purpose)
{
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.mode = purpose == LM_TRAINING ? lm_modes[lm.checkpoint] : GCKPT_INFERENCE;
    desc.budget = purpose == LM_TRAINING ? (size_t)lm.budget : 0;
    desc.batch = lm.batch;
    desc.ranks.virtual_ranks = (int)(purpose != LM_SAMPLING ? lm.virtual_ranks : 1);
    desc.threads = (int)lm.threads;
    desc.backend = r->device;
    desc.offload.state = (int)lm.offload_state;
    desc.bf16.precision = lm.precision;
    if (purpose == LM_TRAINING)
        lm_optimiser_plan(&desc, lm.seed);
    return desc;
}

/* Builds the graph for micro-batches of `rows` rows and makes its plan; both go to m. Returns NULL,
 * or after an error the object that has the error text. */
static const void *lm_try_plan(lm_run *r, lm_stage *m, int purpose, fit_build_fn build, int64_t rows,
                               const gckpt_plan_desc *desc)
{
    gckpt_term terms[FIT_MAX_TERMS];
    memset(terms, 0, sizeof terms);
    m->graph = gckpt_graph_new(r->store, NULL);
    const int count = build(m->graph, rows, terms, m);
    m->plan = gckpt_plan_new(m->graph, terms, purpose != LM_SAMPLING ? count : 0, desc);
    return m->plan != NULL ? NULL : m->graph;
}

static int lm_plan(lm_run *r, lm_stage *m, int purpose, fit_build_fn build, int64_t rows,
                   const gckpt_plan_desc *desc)
{
    const void *failed = lm_try_plan(r, m, purpose, build, rows, desc);
    return failed != NULL ? session_fail(1, "%s", gckpt_error_text(failed)) : 0;
}

/* Makes the plan for training. If --micro-batch is auto, also chooses the micro-batch; if `timed`
 * is not NULL, by measuring trials. After an error error->result is not GCKPT_OK. */
static void lm_try_training(lm_run *r, lm_stage *m, fit_build_fn build, tune_timing *timed,
                            fit_error *error)
{
    gckpt_plan_desc desc = lm_plan_desc(r, LM_TRAINING);
    error->result = GCKPT_OK;
    if (lm.micro_batch != OPTIONS_AUTO) {
        const void *failed = lm_try_plan(r, m, LM_TRAINING, build, lm.micro_batch, &desc);
        if (failed != NULL)
            fit_fail(error, gckpt_error(failed), "%s", gckpt_error_text(failed));
        return;
    }
    desc.update_in_backward = lm.clip > 0 ? 0 : FIT_IF_USEFUL;
    if (timed == NULL) {
        m->plan = fit_plan(r->store, build, m, lm.batch, &desc, NULL, error);
        return;
    }
    m->plan = tune_fit(r->store, build, m, lm.batch, &desc, NULL, timed);
    *error = timed->error;
}

static double lm_elements(const gckpt_shape *shape)
{
    double n = 1;
    for (int i = 0; i < shape->n; i++)
        n *= (double)shape->d[i];
    return n;
}

/* Returns the FLOPs of a node's forward if it is a matrix product or attention, else 0: 2 for each
 * multiply-add, in attention also for pairs of positions that the mask excludes. */
static double lm_node_flops(const gckpt_graph *g, const gckpt_node *node)
{
    const char *op = node->op;
    const int attends = strcmp(op, "attention") == 0 || strcmp(op, "masked_attention") == 0;
    const int is_loss = strcmp(op, "linear_cross_entropy") == 0;
    gckpt_node x, w;
    if ((!attends && !is_loss && strcmp(op, "linear") != 0 && strcmp(op, "matmul") != 0 &&
         strcmp(op, "broadcast_matmul") != 0) ||
        gckpt_graph_node(g, node->input[0], &x) != GCKPT_OK ||
        gckpt_graph_node(g, node->input[1], &w) != GCKPT_OK)
        return 0;
    const double last = (double)x.shape.d[x.shape.n - 1];
    if (attends) /* q (B,T,C), k (B,S,..): scores and values */
        return 4 * lm_elements(&x.shape) * (double)w.shape.d[1];
    return is_loss ? 2 * lm_elements(&x.shape) * lm_elements(&w.shape) / last
                   : 2 * lm_elements(&node->shape) * last;
}

/* Returns the FLOPs of a training step on the graph's rows that the model needs (Chowdhery 2022,
 * appendix B): without recomputes, and of the backward's products those that gradients of trained
 * parameters need. Returns 0 if there is no memory. */
static double lm_model_flops(const gckpt_graph *g, const gckpt_store *store)
{
    const int n = gckpt_graph_size(g);
    unsigned char *trained = (unsigned char *)calloc((size_t)n + 1, 1);
    double sum = 0;
    for (int id = 0; id < n && trained != NULL; id++) {
        gckpt_node node;
        gckpt_parameter p;
        if (gckpt_graph_node(g, id, &node) != GCKPT_OK)
            continue;
        if (strcmp(node.op, "param") == 0) /* ids of inputs are smaller */
            trained[id] = gckpt_store_peek(store, gckpt_store_find(store, node.name), &p) == GCKPT_OK && !p.frozen;
        for (int i = 0; i < node.inputs && strcmp(node.op, "detach") != 0; i++)
            trained[id] |= trained[node.input[i]];
        const double flops = lm_node_flops(g, &node);
        if (flops > 0)
            sum += flops * (1 + trained[node.input[0]] + trained[node.input[1]]);
    }
    free(trained);
    return sum;
}

/* Sets the stage's FLOPs. Builds its graph again if fit_plan has freed it. */
static void lm_count_flops(lm_run *r, lm_stage *m, fit_build_fn build)
{
    const int64_t rows = gckpt_plan_describe(m->plan).rows;
    gckpt_term terms[FIT_MAX_TERMS];
    gckpt_graph *g = m->graph != NULL ? m->graph : gckpt_graph_new(r->store, NULL);
    memset(terms, 0, sizeof terms);
    if (g != m->graph)
        build(g, rows, terms, m);
    m->flops = lm_model_flops(g, r->store) / (double)rows;
    if (g != m->graph)
        gckpt_graph_free(g);
}

static int lm_plan_training(lm_run *r, lm_stage *m, fit_build_fn build, tune_timing *timed)
{
    fit_error error;
    lm_try_training(r, m, build, timed, &error);
    if (error.result == GCKPT_OK && lm.peak_tflops > 0)
        lm_count_flops(r, m, build);
    if (error.result == GCKPT_OK)
        return lm_optimiser_rates(r->store) != 0
                   ? session_fail(1, "%s", gckpt_error_text(r->store))
                   : 0;
    return session_fail(1, "%s%s", error.text,
                        error.result == GCKPT_E_BUDGET && lm.micro_batch > 1
                            ? "; --micro-batch auto looks for a micro-batch that needs fewer"
                            : "");
}

/* Returns the i-th stage, or NULL after the last one. The stages for the longest rows come
 * first. */
static lm_stage *lm_stage_at(lm_run *r, int i)
{
    const int k = i - LM_PURPOSES;
    return k < 0                          ? &r->stages[i]
           : k < LM_SAMPLING * r->classes ? &r->shorter[k / LM_SAMPLING][k % LM_SAMPLING]
                                          : NULL;
}

static int lm_purpose(int i) { return i < LM_PURPOSES ? i : (i - LM_PURPOSES) % LM_SAMPLING; }

/* Returns the stage for rows of `length` tokens: the one for the shortest rows that are long
 * enough. */
static lm_stage *lm_stage_for(lm_run *r, int purpose, int64_t length)
{
    for (int i = 0; i < r->classes; i++)
        if (r->shorter[i][purpose].T >= length)
            return &r->shorter[i][purpose];
    return &r->stages[purpose];
}

/* Returns the bytes of the largest plan for training. */
static size_t lm_plan_bytes(lm_run *r)
{
    const lm_stage *m;
    size_t bytes = 0;
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++)
        if (lm_purpose(i) == LM_TRAINING && m->plan != NULL && gckpt_plan_bytes(m->plan) > bytes)
            bytes = gckpt_plan_bytes(m->plan);
    return bytes;
}

/* Returns the bytes of parameters, optimiser state and the one arena that all plans share. Sets
 * *arena to the bytes of this arena, which are those of the largest plan's arena. */
static size_t lm_total_bytes(lm_run *r, size_t *arena)
{
    const gckpt_plan *training = r->stages[LM_TRAINING].plan; /* NULL if the run does not train */
    const gckpt_plan *p = training != NULL ? training : r->stages[LM_EVALUATION].plan;
    lm_stage *m;
    *arena = 0;
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++) {
        const size_t bytes = gckpt_plan_describe(m->plan).arena;
        *arena = bytes > *arena ? bytes : *arena;
    }
    return gckpt_plan_bytes(p) - gckpt_plan_describe(p).arena + *arena;
}

/* Opens the device of --device. Returns 0 or an exit status. */
static int lm_open_device(lm_run *r)
{
    const int status = session_device(lm.device, &r->device);
    return status != 0 ? status : session_check_memory(r->device, "--budget", (size_t)lm.budget);
}

/* Creates the executors of all plans, in one arena. */
static int lm_new_execs(lm_run *r)
{
    const gckpt_plan *training = r->stages[LM_TRAINING].plan;
    size_t bytes;
    lm_stage *m;
    const size_t total = lm_total_bytes(r, &bytes);
    if (lm.budget > 0 && total > (size_t)lm.budget)
        return session_fail(1, "--budget %lld: %sevaluation or sampling need %zu bytes%s",
                            (long long)lm.budget, training != NULL ? "training fits, but " : "",
                            total,
                            training != NULL ? "; --eval-every 0 and --sample 0 turn them off" : "");
    if (total > lm_plan_bytes(r))
        fprintf(session.out, "bytes  %zu for evaluation or sampling\n", total);
    if (session_check_memory(r->device, "the plan", total) != 0)
        return 1;
    r->arena_bytes = bytes + 64;
    r->arena = session_alloc(r->device, r->arena_bytes);
    if (r->arena == NULL)
        return session_fail(1, "out of memory: the step arena needs %zu bytes; give a --budget that "
                               "fits this machine", bytes);
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++) {
        const int purpose = lm_purpose(i);
        gckpt_exec_desc e;
        memset(&e, 0, sizeof e);
        e.debug = purpose == LM_TRAINING ? GCKPT_DEBUG_MEASURE : 0;
        /* initial values are allowed: before the first step, and for new adapters; values from
         * files were checked */
        e.allow_initial = 1;
        e.backend = r->device;
        e.skip_nonfinite =
            purpose == LM_TRAINING && m->plan != NULL && !gckpt_plan_describe(m->plan).update_in_backward;
        e.transport = r->ranks;
        if (purpose == LM_TRAINING || (purpose == LM_EVALUATION && r->device == NULL))
            /* checks for interrupts; not in evaluations on a device, which are short and run as a
             * whole */
            e.progress = lm_progress;
        if (purpose == LM_TRAINING)
            lm_optimiser_exec(&e);
        e.user = r;
        e.arena = (unsigned char *)r->arena + (64 - (uintptr_t)r->arena % 64) % 64;
        e.arena_size = bytes;
        if (m->plan != NULL && (m->exec = gckpt_exec_new(m->plan, r->store, &e)) == NULL)
            return session_fail(1, "%s", gckpt_error_text(r->store));
    }
    if (training != NULL)
        r->rows = gckpt_plan_rank_rows(training, lm.batch, lm_rank(r), &r->first);
    return 0;
}

static void lm_free_execs(lm_run *r)
{
    lm_stage *m;
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++) {
        gckpt_exec_free(m->exec);
        m->exec = NULL;
    }
    session_free(r->device, r->arena, r->arena_bytes);
    r->arena = NULL;
}

/* Frees executors, plans, graphs and the ledger. The store, the device and the feeds remain. */
static void lm_free(lm_run *r)
{
    lm_stage *m;
    lm_ledger_free(&r->ledger);
    lm_free_execs(r);
    for (int i = 0; (m = lm_stage_at(r, i)) != NULL; i++) {
        gckpt_plan_free(m->plan);
        gckpt_graph_free(m->graph);
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */
/* Returns the maximum of all ranks' values, which must be >= 0, or -1 if a rank does not respond.
 * Every rank must call this at the same point of the program. */
static int lm_all_reduce_max(const lm_run *r, int value)
{
    const gckpt_transport *ranks = r->ranks;
    for (int bit = 1; ranks != NULL && bit < ranks->size; bit *= 2) {
        int other = 0;
        if (!lm_exchange(ranks, ranks->rank ^ bit, &value, &other, sizeof value))
            return -1;
        value = other > value ? other : value;
    }
    return value;
}

/* Returns whether the run must stop now because some rank was interrupted. The result is equal on
 * all ranks, and every rank must call this at the same point of the program. */
static int lm_is_stopped(const lm_run *r)
{
    const int stops = lm_all_reduce_max(r, session.interrupted != 0);
    if (stops != 0)
        session.interrupted = 1;
    return stops;
}

/* ---- reports --------------------------------------------------------------------------------- */
static int64_t lm_param_count(const gckpt_store *store)
{
    int64_t all = 0;
    gckpt_parameter q;
    for (int i = 0; gckpt_store_peek(store, i, &q) == GCKPT_OK; i++)
        all += q.elements;
    return all;
}

/* Prints the plan, and begins a JSON event that the program completes. (Plans of different
 * micro-batches can be compared by cost per step, but not by percentage of recomputation, which
 * depends on the micro-batch.) */
static void lm_report_plan(lm_run *r)
{
    static const char *const precisions[] = { "", ", bf16", ", fast bf16" };
    const gckpt_plan *p = r->stages[LM_TRAINING].plan;
    const gckpt_plan_info info = gckpt_plan_describe(p);
    const char *name = info.mode_name;
    size_t kinds[GCKPT_BYTES_KINDS];
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        kinds[i] = gckpt_plan_kind_bytes(p, i);
    fprintf(
        session.out,
        "plan   %s%s, micro-batch %lld of %lld%s%s, %lld thread%s: %zu bytes\n"
        "cost   %.4g units per step, %.1f %% more than without recomputation\n",
        name, r->device != NULL ? ", on cuda" : "", (long long)info.rows,
        (long long)lm.batch, info.update_in_backward ? ", updates in the backward" : "",
        precisions[lm.precision == GCKPT_FP32   ? 0
                   : lm.precision == GCKPT_BF16 ? 1
                                                : 2],
        (long long)lm.threads, session_plural(lm.threads), lm_plan_bytes(r), (double)info.step_cost,
        100 * info.overhead);
    if (info.overhead > 2)
        fprintf(session.out,
                "note   a step costs %.1f times the least cost; a slightly larger budget costs much less\n",
                1 + info.overhead);
    fprintf(session.out,
            "bytes  parameters %zu, optimiser %zu, arena %zu\n"
            "peak   of the arena: gradients %zu, activations %zu, workspace %zu\n",
            kinds[GCKPT_BYTES_PARAMETERS], kinds[GCKPT_BYTES_STATE], info.arena,
            kinds[GCKPT_BYTES_GRADIENTS], kinds[GCKPT_BYTES_ACTIVATIONS],
            kinds[GCKPT_BYTES_WORKSPACE]);
    if (kinds[GCKPT_BYTES_HOST_STATE] > 0)
        fprintf(session.out, "host   optimiser %zu\n", kinds[GCKPT_BYTES_HOST_STATE]);
    if (kinds[GCKPT_BYTES_REDUCTION] + kinds[GCKPT_BYTES_GATHERED] > 0)
        fprintf(session.out, "       sums of virtual ranks %zu, gathered %zu\n",
                kinds[GCKPT_BYTES_REDUCTION], kinds[GCKPT_BYTES_GATHERED]);
    session_event("{\"event\":\"plan\",\"bytes\":%zu,\"cost\":%llu,\"overhead\":%.9g,"
                  "\"recompute\":%.9g,\"checkpoint\":\"%s\","
                  "\"micro_batch\":%lld,\"parameters\":%lld,\"budget\":%lld,"
                  "\"parameter_bytes\":%zu,\"state_bytes\":%zu,\"gradient_bytes\":%zu,"
                  "\"activation_bytes\":%zu,\"workspace_bytes\":%zu,\"reduction_bytes\":%zu,"
                  "\"gathered_bytes\":%zu",
                  lm_plan_bytes(r), (unsigned long long)info.step_cost, info.overhead,
                  info.recompute, name, (long long)info.rows,
                  (long long)lm_param_count(r->store), (long long)lm.budget,
                  kinds[GCKPT_BYTES_PARAMETERS], kinds[GCKPT_BYTES_STATE],
                  kinds[GCKPT_BYTES_GRADIENTS], kinds[GCKPT_BYTES_ACTIVATIONS],
                  kinds[GCKPT_BYTES_WORKSPACE], kinds[GCKPT_BYTES_REDUCTION],
                  kinds[GCKPT_BYTES_GATHERED]);
    if (kinds[GCKPT_BYTES_HOST_STATE] > 0)
        session_event(",\"host_state_bytes\":%zu", kinds[GCKPT_BYTES_HOST_STATE]);
    if (lm.virtual_ranks > 1)
        fprintf(session.out, "ranks  %d, each with %lld of %lld virtual ranks\n", lm_world_size(r),
                (long long)lm.virtual_ranks / lm_world_size(r), (long long)lm.virtual_ranks);
    session_event(",\"ranks\":%d", lm_world_size(r));
}

/* Writes the plan to the file of --timeline: as a trace if the file's name ends in .json, else as a
 * picture. */
static int lm_draw_plan(const gckpt_plan *plan)
{
    const char *dot = strrchr(lm.timeline, '.');
    const int trace = dot != NULL && strcmp(dot, ".json") == 0;
    FILE *f = fopen(lm.timeline, "w");
    if (f == NULL)
        return session_fail(1, "--timeline %s: %s", lm.timeline, strerror(errno));
    int bad = (trace ? print_trace : pictures_plan)(plan, session_write, f) != GCKPT_OK;
    if (fclose(f) != 0 || bad)
        return session_fail(1, "--timeline %s: %s", lm.timeline, strerror(errno));
    return 0;
}

/* Prints the last line of the run, and begins its JSON event. Returns 1 if a rank does not respond,
 * else 0. */
static int lm_report_end(const lm_run *r)
{
    gckpt_exec *exec = r->stages[LM_TRAINING].exec;
    const uint64_t step = gckpt_store_step(r->store);
    size_t measured = gckpt_bytes_measured(exec);
    for (int i = 0; i < r->classes; i++)
        if (gckpt_bytes_measured(r->shorter[i][LM_TRAINING].exec) > measured)
            measured = gckpt_bytes_measured(r->shorter[i][LM_TRAINING].exec);
    uint64_t all = r->ranks == NULL ? gckpt_store_hash(r->store) : 0;
    if (r->ranks != NULL && gckpt_gather_values(exec, -1, NULL, &all) != GCKPT_OK)
        return session_fail(1, "%s", gckpt_error_text(exec));
    const unsigned long long hash = all;
    const double seconds = session_now() - session.start;
    fprintf(session.out, "end    %llu step%s, %.1f s, ", (unsigned long long)step,
            session_plural((int64_t)step), seconds);
    if (r->skipped > 0)
        fprintf(session.out, "%llu skipped, ", (unsigned long long)r->skipped);
    if (measured > 0)
        fprintf(session.out, "%zu bytes measured, ", measured);
    fprintf(session.out, "weights %016llx\n", hash);
    if (session.interrupted && lm.save != NULL && step > session.first)
        fprintf(session.out, "interrupted; continue with --resume %s\n", lm.save);
    session_event("{\"event\":\"end\",\"step\":%llu,\"bytes_measured\":%zu,"
                  "\"weights_hash\":\"%016llx\",\"seconds\":%.9g,\"skipped\":%llu",
                  (unsigned long long)step, measured, hash, seconds,
                  (unsigned long long)r->skipped);
    if (r->ranks != NULL)
        session_event(",\"bytes_sent\":%llu", (unsigned long long)gckpt_exec_bytes_sent(exec));
    return 0;
}

/* ---- the CSV log ----------------------------------------------------------------------------- */
enum { LM_LOG_STEP, LM_LOG_VALIDATION = 5, LM_LOG_CELLS = 9 };
#define LM_LOG_HEADER "step,tokens,loss,lr,grad_norm,val_loss,seconds,tokens_per_second"

/* Returns the number of cells of a line; the last one, with --peak-tflops, is the MFU. */
static int lm_log_cells(void) { return lm.peak_tflops > 0 ? LM_LOG_CELLS : LM_LOG_CELLS - 1; }
static struct {
    double cells[LM_LOG_CELLS]; /* the line of the current step */
    /* pending: nonzero if this line was not written yet; failed: nonzero after a failed write */
    int pending, failed;
    double written; /* step of the last line in the file, or -1 */
} lm_row;

/* Opens the file of --log; lines of steps after `step` are removed. Returns 0 or an exit status. */
static int lm_log_open(uint64_t step)
{
    char error[512];
    lm_row.written = step > 0 ? (double)step : -1;
    const char *header = lm.peak_tflops > 0 ? LM_LOG_HEADER ",mfu\n" : LM_LOG_HEADER "\n";
    if (lm.log == NULL || train_log_open(lm.log, header, step > 0 ? (long long)step : -1, error) == 0)
        return 0;
    return session_fail(1, "--%s", error);
}

/* Writes the line of the current step, with the validation loss if it is not NULL. */
static void lm_log_write(const double *validation)
{
    const double *cells[LM_LOG_CELLS];
    for (int i = 0; i < LM_LOG_CELLS; i++)
        cells[i] = i == LM_LOG_STEP || lm_row.pending ? &lm_row.cells[i] : NULL;
    cells[LM_LOG_VALIDATION] = validation;
    lm_row.pending = 0;
    lm_row.written = lm_row.cells[LM_LOG_STEP];
    if (lm.log != NULL && !lm_row.failed && train_log_add(lm.log, cells, lm_log_cells()) != 0)
        lm_row.failed = session_fail(1, "--log %s: %s", lm.log, strerror(errno));
}

/* ---- the loop -------------------------------------------------------------------------------- */
static void lm_report_step(lm_run *r, const gckpt_report *report, double lr, double seconds)
{
    const double rate = (double)r->real_tokens / seconds;
    const double flops = lm_stage_for(r, LM_TRAINING, r->length)->flops * (double)r->step_rows;
    const double mfu = lm.peak_tflops > 0 ? flops / seconds / (1e12 * lm.peak_tflops) : 0;
    const double cells[LM_LOG_CELLS] = { (double)report->step, (double)r->real_tokens, report->loss,
                                         lr, report->grad_norm, 0, seconds, rate, mfu };
    char speed[64], field[40] = "";
    memcpy(lm_row.cells, cells, sizeof cells);
    lm_row.pending = 1;
    snprintf(speed, sizeof speed, "%.0f tokens/s", rate);
    if (lm.peak_tflops > 0) {
        snprintf(speed, sizeof speed, "%.0f tokens/s, MFU %.3g %%", rate, 100 * mfu);
        snprintf(field, sizeof field, "\"mfu\":%.9g,", mfu);
    }
    session_event("{\"event\":\"step\",\"step\":%llu,\"loss\":%.9g,\"grad_norm\":%.9g,\"lr\":%.9g,"
                  "\"targets\":%lld,\"seconds\":%.9g,\"tokens_per_second\":%.9g,%s"
                  "\"elapsed\":%.9g}\n",
                  (unsigned long long)report->step, report->loss, report->grad_norm, lr,
                  (long long)report->count, seconds, rate, field, session_now() - session.start);
    session_progress(report->step, (uint64_t)lm.steps, report->loss, speed, lm_plan_bytes(r));
}

/* Writes the JSON event and the line of the log of an evaluation; `suffix` is the end of the event's
 * text. */
static void lm_report_eval(uint64_t step, double loss, const char *suffix)
{
    if (lm_row.pending || (double)step > lm_row.written) {
        lm_row.cells[LM_LOG_STEP] = (double)step;
        lm_log_write(&loss);
    }
    const double elapsed = session.start > 0 ? session_now() - session.start : 0;
    session_event("{\"event\":\"eval\",\"step\":%llu,\"val_loss\":%.9g,\"elapsed\":%.9g%s}\n",
                  (unsigned long long)step, loss, elapsed, suffix);
    session_check_output(); /* a failed write is remembered; lm_is_output_ok reports it */
}

static int lm_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns whether all output so far was written. If not, saves first, because the run will end. */
static int lm_is_output_ok(lm_run *r)
{
    if (lm_all_reduce_max(r, !session_check_output() || lm_row.failed) == 0)
        return 1;
    r->save(r);
    return 0;
}

/* Evaluates and saves after a step if --eval-every and --save-every require it. */
static int lm_after_step(lm_run *r, uint64_t step)
{
    const int done = step == (uint64_t)lm.steps;
    r->saved = 0;
    if (session.terminal && done)
        fputc('\n', session.out);
    if (!lm_is_output_ok(r)) /* events must be written before the file from which a run resumes */
        return 1;
    if (lm.eval_every > 0 && lm.audit == NULL && (done || step % (uint64_t)lm.eval_every == 0) &&
        r->evaluate(r, step) != 0)
        return 1;
    if (lm_row.pending)
        lm_log_write(NULL);
    if (lm.save_every > 0 && step % (uint64_t)lm.save_every == 0 && !r->saved && r->save(r) != 0)
        return 1;
    return !lm_is_output_ok(r);
}

static const char lm_nonfinite_text[] =
    "the weights are not finite: \"%s\" has an infinite value or NaN; its file is damaged or of a "
    "failed training: load another one";

/* Returns the name of a parameter that contains an infinity or NaN, or NULL. If `frozen` is
 * nonzero, checks only frozen parameters, which training did not change. */
static const char *lm_find_nonfinite(const gckpt_store *store, int frozen)
{
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(store, i, &p) == GCKPT_OK; i++) {
        const uint16_t *halves = (const uint16_t *)p.quantised;
        /* the bits of the exponent: all are set in an infinity or NaN */
        const uint16_t all = p.storage == GCKPT_STORAGE_BF16 ? 0x7f80 : 0x7c00;
        const int half = p.storage == GCKPT_STORAGE_BF16 || p.storage == GCKPT_STORAGE_F16;
        for (int64_t k = 0; k < p.elements && (p.frozen || !frozen); k++)
            if ((p.values != NULL && p.values[k] - p.values[k] != 0) ||
                (half && halves != NULL && (halves[k] & all) == all))
                return p.name;
    }
    return NULL;
}

/* ---- the ledger ------------------------------------------------------------------------------ */
/* Returns the number of batches that the checkpoint of --resume had fed by its notes, 0 if they
 * contradict each other, or UINT64_MAX if they do not determine it. */
static uint64_t lm_batches_fed(const lm_run *r)
{
    const uint64_t batch = (uint64_t)lm.batch;
    if (lm.resume == NULL || (r->position > 0 && r->varies))
        return UINT64_MAX;
    if (r->position == 0)
        return gckpt_store_step(r->store) + r->skipped;
    return r->position % batch == 0 ? r->position / batch : 0;
}

/* Opens the ledger of --ledger and prints notes about it. */
static int lm_ledger_open(lm_run *r, const char *text, size_t length)
{
    ledger_file *f = &r->ledger.file;
    f->now.step = gckpt_store_step(r->store);
    f->now.batches = f->now.step + r->skipped;
    f->fed = lm_batches_fed(r) != UINT64_MAX ? lm_batches_fed(r) : 0;
    f->digests = r->ledger.shards != NULL ? r->ledger.digests : NULL;
    r->ledger.open = 1;
    if (ledger_file_open(f, lm.ledger, lm.ledger_key, r->store, text, length) != 0)
        return lm_ledger_refuse("ledger", f->error);
    r->ledger.written = f->now;
    if (lm.ledger_key != NULL) {
        char hex[2 * LEDGER_KEY + 1];
        ledger_text key = { hex, sizeof hex, 0 };
        ledger_put_hex(&key, f->chain.key, LEDGER_KEY);
        session_print_line("ledger signed with the key %s", hex);
    }
    if (f->cut > 0)
        session_print_line("note   --ledger: %zu bytes of an unfinished record were cut off", f->cut);
    if (f->sodium_missing)
        session_print_line("note   --ledger: its signatures were not checked, which needs libsodium");
    return 0;
}

/* Opens the ledger of --ledger, or begins the audit of --audit. The first rank writes for all
 * ranks; each rank audits. */
static int lm_ledger_begin(lm_run *r)
{
    lm_ledger *l = &r->ledger;
    size_t length;
    if (lm.audit == NULL && lm.ledger == NULL)
        return 0;
    if (lm.precision == GCKPT_BF16_FAST)
        return session_fail(2, "--bf16-fast has other bits on other devices, so that no ledger can "
                               "be audited; leave out %s", lm.audit != NULL ? "--audit" : "--ledger");
    l->recorded = gckpt_store_step(r->store);
    l->digests = (unsigned char *)malloc((size_t)LM_LEDGER_MOST * LEDGER_HASH);
    char *text = lm_ledger_text(r->options, r->describe, lm.audit != NULL ? r->store : NULL,
                                &length);
    int failed = text == NULL || l->digests == NULL
                     ? session_fail(1, "a ledger holds 65535 bytes of options, and these are more, or "
                                       "there is no memory")
                     : 0;
    if (!failed && lm.audit != NULL)
        failed = lm_ledger_audit(l, r->store, lm.audit, (uint64_t)lm.audit_until, text, length,
                                 (uint64_t)lm.steps, lm_batches_fed(r));
    if (!failed && lm.ledger != NULL && l->shards != NULL &&
        lm_ledger_digests(l, r->store, 1, l->digests, LM_LEDGER_MOST) == 0)
        failed = session_fail(1, "--ledger: the digests of the shards are not complete");
    if (!failed && lm.ledger != NULL && lm_rank(r) == 0)
        failed = lm_ledger_open(r, text, length);
    free(text);
    return failed;
}

static int lm_has_ledger(const lm_run *r) { return r->ledger.open || r->ledger.audited != NULL; }

/* Hashes the batch of this step. If there are several ranks, each fills the whole batch for that, then
 * its part once more. */
static void lm_ledger_rows(lm_run *r, uint64_t step)
{
    lm_ledger *l = &r->ledger;
    const int64_t first = r->first, rows = r->rows;
    const double begin = session_now();
    ledger_sha s;
    l->before = l->file.now;
    if (lm_world_size(r) > 1) {
        r->first = 0;
        r->rows = lm.batch;
        r->fill_batch(r, step);
    }
    const size_t width = (size_t)(r->row_width > 0 ? r->row_width : 1);
    const size_t words = (size_t)(r->step_rows * r->length) * width;
    ledger_sha_begin(&s);
    ledger_sha_words(&s, r->tokens, words);
    ledger_sha_words(&s, r->targets, words);
    for (int i = 0; i < LM_FEEDS - 2 && r->extra_feeds[i] != NULL; i++)
        ledger_sha_words(&s, r->extra_feeds[i], (size_t)(r->step_rows * r->extra_floats[i]));
    ledger_add_rows(&l->file.now, &s);
    if (lm_world_size(r) > 1) {
        r->first = first;
        r->rows = rows;
        r->fill_batch(r, step);
    }
    l->rows_seconds += session_now() - begin;
}

/* Appends a record of the present state, unless there is one. All ranks call this. */
static int lm_record(lm_run *r)
{
    if (lm.ledger == NULL)
        return 0;
    if (lm_all_reduce_max(r, lm_ledger_record(&r->ledger, r->store)) != 0)
        return 1;
    r->ledger.recorded = gckpt_store_step(r->store);
    return 0;
}

/* Appends a record of the present state before it is saved to `path`. If that fails, returns 1 when the
 * file exists: it is of a step that has a record, from which the ledger can go on. All ranks call
 * this. */
static int lm_record_save(lm_run *r, const char *path)
{
    if (lm_record(r) == 0 || lm_all_reduce_max(r, access(path, F_OK) == 0) == 0)
        return 0;
    return session_fail(1, "--save %s: not replaced, because this step has no record in the ledger",
                        path);
}

/* Records a step, if that is due, or compares it with its records. `seconds` is its time. */
static int lm_ledger_step(lm_run *r, const gckpt_report *report, const gckpt_hyper *hyper,
                          double seconds)
{
    lm_ledger *l = &r->ledger;
    if (lm.ledger == NULL && lm.audit == NULL)
        return 0;
    ledger_set_step(&l->file.now, report, hyper);
    if (l->audited != NULL)
        return lm_all_reduce_max(r, lm_ledger_compare(l, r->store, lm.audit)) != 0;
    const int due =
        l->open && lm_ledger_is_due(l, lm.ledger_every, seconds, report->step - session.first);
    return lm_all_reduce_max(r, due) > 0 && lm_record(r) != 0;
}

/* Ends a ledger with a record of the last step, or reports the result of an audit. */
static int lm_ledger_end(lm_run *r)
{
    lm_ledger *l = &r->ledger;
    if (l->audited != NULL)
        return session.interrupted ? 0 : lm_ledger_report(l, lm.audit, (uint64_t)lm.audit_until);
    if (lm_record(r) != 0)
        return 1;
    l->file.now = l->written; /* without steps after it that were skipped and have no record */
    if (l->open && lm_ledger_append(l, r->store, LEDGER_END) != 0)
        return 1;
    if (l->open && l->steps > 0)
        fprintf(session.out, "ledger %llu records, %.1f %% of the time\n",
                (unsigned long long)l->file.chain.index,
                100 * (l->rows_seconds + l->record_seconds) / l->step_seconds);
    return 0;
}

/* Returns the step at which the training ends: --steps, or the last step of an audit. */
static uint64_t lm_last_step(const lm_run *r)
{
    return r->ledger.audited != NULL ? r->ledger.last : (uint64_t)lm.steps;
}

/* Trains until step --steps, an interrupt, or until r->enough is set. An interrupt cancels the current step, which then
 * changes nothing. */
static int lm_train(lm_run *r)
{
    double times[LM_TIMES];
    uint64_t step = gckpt_store_step(r->store), in_a_row = 0, timed = 0;
    gckpt_hyper hyper;
    memset(&hyper, 0, sizeof hyper);
    hyper.weight_decay = (float)lm.weight_decay;
    hyper.clip = (float)lm.clip;
    /* 0 is passed as -1, because gckpt_hyper takes 0 as "default" */
    hyper.beta1 = lm.beta1 > 0 ? (float)lm.beta1 : -1;
    hyper.beta2 = lm.beta2 > 0 ? (float)lm.beta2 : -1;
    session.first = step;
    session.start = session_now();
    r->saved = 1;
    /* ranks check their output together; this also shows the lines printed so far */
    if (lm_all_reduce_max(r, !session_check_output()) != 0)
        return 1;
    if (lm_all_reduce_max(r, lm_ledger_begin(r)) != 0)
        return 1;
    while (step < lm_last_step(r) && !lm_is_stopped(r) && !r->enough) {
        const double begin = session_now();
        gckpt_report report;
        r->step_rows = lm.batch;
        r->length = r->T;
        r->real_tokens = lm.batch * r->T;
        r->fill_batch(r, step);
        if (lm_has_ledger(r))
            lm_ledger_rows(r, step);
        const lm_stage *m = lm_stage_for(r, LM_TRAINING, r->length);
        gckpt_feed feeds[LM_FEEDS];
        const int fed = lm_fill_feeds(r, m, feeds);
        hyper.lr = gckpt_lr_cosine(step, (uint64_t)lm.warmup, (uint64_t)lm.steps, (float)r->lr,
                                   (float)(lm.min_lr >= 0 ? lm.min_lr : r->lr));
        const gckpt_result result = gckpt_step(m->exec, feeds, fed, r->step_rows, &hyper, &report);
        if (result == GCKPT_CANCELLED) {
            session.interrupted = 1; /* the interrupt may have occurred on another rank */
            r->ledger.file.now = r->ledger.before;
            break;
        }
        if (result != GCKPT_OK && result != GCKPT_SKIPPED)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
        r->position += (uint64_t)r->step_rows;
        /* the step was skipped because a loss or gradient was not finite; continue with the next
         * batch */
        if (result == GCKPT_SKIPPED) {
            r->skipped++;
            session_print_line("%s", gckpt_error_text(m->exec));
            session_event("{\"event\":\"skip\",\"step\":%llu}\n", (unsigned long long)step);
            if (++in_a_row < LM_MAX_SKIPPED)
                continue;
        }
        const int bad = report.loss - report.loss != 0 || report.grad_norm - report.grad_norm != 0;
        const char *nonfinite = bad ? lm_find_nonfinite(r->store, gckpt_plan_describe(m->plan).update_in_backward) : NULL;
        if (nonfinite != NULL)
            return session_fail(1, lm_nonfinite_text, nonfinite);
        if (bad)
            return session_fail(
                1, "loss or gradient is no longer finite at step %llu: lower --lr or --clip",
                (unsigned long long)step);
        if (report.count == 0)
            continue; /* the rows of this step have no targets */
        in_a_row = 0;
        step = report.step;
        times[timed++ % LM_TIMES] = session_now() - begin;
        lm_report_step(r, &report, (double)hyper.lr, times[(timed - 1) % LM_TIMES]);
        if (lm_ledger_step(r, &report, &hyper, times[(timed - 1) % LM_TIMES]) != 0) {
            if (lm.ledger != NULL)
                r->save(r);
            return 1;
        }
        if (lm_after_step(r, step) != 0)
            return 1;
    }
    const uint64_t kept = timed < LM_TIMES ? timed : (uint64_t)LM_TIMES;
    qsort(times, (size_t)kept, sizeof times[0], lm_compare);
    r->seconds = kept > 0 ? times[kept / 2] : 0;
    if (lm_all_reduce_max(r, lm_ledger_end(r)) != 0)
        return 1;
    return r->saved ? 0 : r->save(r);
}
#endif
