/* gpt.c - trains, evaluates and samples a small byte-level GPT within a byte budget.
 *
 *     cc -O2 -fopenmp -I. examples/gpt.c -o gpt
 *     ./gpt                                    # trains on the text of gradckpt.h
 *     ./gpt --data text.txt --budget 24M       # trains on any text, in 24 MiB
 *     ./gpt --summary                          # lists the layers; --profile shows the time of each
 *     ./gpt --help
 *     mpicc -DGPT_MPI -O2 -fopenmp -I. examples/gpt.c -o gpt-mpi
 *     mpirun -n 4 ./gpt-mpi --virtual-ranks 8  # 4 processes; 1 process with that option: same bits
 *
 * One store holds the weights. Three graphs of different shapes share it: training (micro-batches
 * of windows), evaluation (the same without gradients) and sampling (one token at a time). Their
 * step arenas share one block of memory, because they never run at the same time.
 *
 * The batch of a step is a function of --seed and the step number alone. Therefore the weights are
 * the same, bit for bit, for every --checkpoint, --budget, --micro-batch and --threads, for every
 * number of processes and --shard with the same --virtual-ranks, and for a run that was stopped and
 * resumed. */
#define _XOPEN_SOURCE 700 /* clock_gettime, isatty, realpath */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "lm.h"
#include "summary.h"
#ifdef GPT_MPI
#include "mpi.h"
#endif

/* ---- options of gpt.c; lm.h has those shared with finetune.c ---- */
enum { BYTES = 256 }; /* size of the vocabulary: a token is a byte */

static struct {
    int64_t layers, heads, dim, context, vocabulary, tie, bf16_fast, summary, profile;
    double tune_seconds;
    const char *frontier;
#ifdef GPT_MPI
    int64_t shard;
    double timeout;
#endif
} o;

#ifdef GPT_MPI
static mpi_ranks transport;
static const char *const shards[] = { "none", "state", "gradients", "values", NULL };
#endif

static const options_desc option_descs[] = {
    { "layers", OPTIONS_INT, &o.layers, "4", 1, 1000, NULL, "number of transformer blocks" },
    { "heads", OPTIONS_INT, &o.heads, "4", 1, 256, NULL,
      "attention heads; 2 * heads must divide --dim" },
    { "dim", OPTIONS_INT, &o.dim, "128", 1, 65536, NULL, "width of the model" },
    { "context", OPTIONS_INT, &o.context, "64", 1, 1 << 20, NULL, "tokens per window" },
    { "vocabulary", OPTIONS_INT, &o.vocabulary, "256", BYTES, 1 << 24, NULL,
      "size of the vocabulary; texts use the first 256 tokens, and a larger size changes only "
      "the size of the model" },
    { "tie", OPTIONS_INT, &o.tie, "1", 0, 1, NULL,
      "if 1, the head shares the embedding table; if 0, it has a separate matrix" },
    { "tune-seconds", OPTIONS_REAL, &o.tune_seconds, "0", 0, 1e6, NULL,
      "seconds for trial runs of the best plans of --micro-batch auto, the fastest of which "
      "trains; 0 runs no trials" },
    { "lr", OPTIONS_REAL, &lm.lr, "1e-3", 0, 10, NULL, "learning rate after the warm-up" },
    { "virtual-ranks", OPTIONS_INT, &lm.virtual_ranks, "1", 1, 1 << 20, NULL,
      "equal parts of a batch, whose gradients are summed in a fixed order; a power of two, at "
      "least the number of processes" },
#ifdef GPT_MPI
    { "shard", OPTIONS_CHOICE, &o.shard, "none", 0, 0, shards,
      "split optimiser state, also gradients, or also parameter values among the processes; "
      "changes memory, never results" },
    { "timeout", OPTIONS_REAL, &o.timeout, "60", 0.01, 1e9, NULL,
      "seconds to wait for other processes before failing" },
#endif
    { "bf16-fast", OPTIONS_FLAG, &o.bf16_fast, NULL, 0, 0, NULL,
      "like --bf16, with tensor cores; needs --device cuda; results depend on the kind of "
      "device" },
    { "plan", OPTIONS_FLAG, &lm.plan, NULL, 0, 0, NULL,
      "print the time cost of every budget and the plan, then stop" },
    { "summary", OPTIONS_FLAG, &o.summary, NULL, 0, 0, NULL,
      "print layers, shapes, parameters and the bytes that the plan keeps of each, then stop" },
    { "profile", OPTIONS_FLAG, &o.profile, NULL, 0, 0, NULL,
      "time a few steps, print the time of each operation, then stop; saves nothing" },
    { "frontier", OPTIONS_FILE, &o.frontier, NULL, 0, 0, NULL,
      "write the time cost of every budget: a picture (FILE.svg), JSON (FILE.json) or text" },
    { "data", OPTIONS_FILE, &lm.data, NULL, 0, 0, NULL,
      "training text: a file or pipe of at most 1 GiB, or - for standard input; default: "
      "gradckpt.h itself" },
    { "validation", OPTIONS_FILE, &lm.validation, NULL, 0, 0, NULL,
      "validation text; default: the last 10 % of --data" },
    { "eval-every", OPTIONS_INT, &lm.eval_every, "100", 0, 1e12, NULL,
      "steps between evaluations; 0 turns them off" },
    { "save", OPTIONS_FILE, &lm.save, NULL, 0, 0, NULL,
      "write weights and optimiser state (safetensors) with each evaluation, at the end, and "
      "when interrupted" },
    { "resume", OPTIONS_FILE, &lm.resume, NULL, 0, 0, NULL,
      "continue from a file written by --save, with its options except those given now; saves "
      "to the same file unless --save is given" },
    { "sample", OPTIONS_INT, &lm.sample, "0", 0, 1e9, NULL, "bytes to generate at the end" },
    { "prompt", OPTIONS_TEXT, &lm.prompt, NULL, 0, 0, NULL,
      "text for the sample to continue, or - for standard input; default: a newline" },
};
static const char *const defaults[] = { "batch",  "12",  "micro-batch",  "0",   "steps", "1000",
                                     "warmup", "100", "weight-decay", "0.1", "beta2", "0.99",
                                     NULL };
static const options_table options = { "gpt",   option_descs, sizeof option_descs / sizeof option_descs[0],
                                       16,      "WHICH", lm_options,
                                       LM_OPTIONS, defaults };

static const char title[] =
    "trains a small byte-level GPT within a byte budget\n\n"
    "Usage: gpt [--OPTION VALUE ..]\n\n"
    "Examples:\n"
    "    gpt                                         trains on gradckpt.h itself\n"
    "    gpt --data a.txt --budget 24M --save a.safetensors --sample 400\n"
    "    gpt --resume a.safetensors --steps 3000     continues to step 3000\n"
    "    gpt --layers 8 --summary                    lists the layers of a model\n"
    "    gpt --layers 8 --plan                       lists the cost of each budget";
static const char *const groups[] = {
    "Data and files", "data validation save save-every resume json log",
    "Model", "layers heads dim context vocabulary tie dropout seed",
    "Steps", "steps batch optimiser lr min-lr warmup weight-decay beta1 beta2 clip eval-every eval-iters",
    "Memory and speed, without changing results",
    "budget micro-batch checkpoint tune-seconds threads device offload-state",
    "Memory and speed, changing results", "bf16 bf16-fast virtual-ranks",
#ifdef GPT_MPI
    "Processes", "shard timeout",
#endif
    "Ledger, by which others check the training", "ledger ledger-every ledger-key audit audit-until",
    "Sampling", "sample prompt samples temperature top-k top-p",
    "Reports", "summary plan profile frontier timeline peak-tflops help", NULL
};

/* fixed: options that determine the model; not_kept: options that files of a run do not store. */
static const char fixed[] = "layers heads dim vocabulary tie dropout optimiser";
static const char not_kept[] =
    "resume save json log timeline frontier plan summary profile help shard timeout "
    "ledger ledger-every ledger-key audit audit-until";

/* Returns 1 if the run prints reports and does not train. */
static int only_reports(void) { return lm.plan || o.summary || o.profile; }

/* Checks combinations of options. Returns 0, or an exit status after printing the error. */
static int check_options(void)
{
    if (o.tune_seconds > 0 && lm.micro_batch > 0)
        return session_fail(2, "--micro-batch %lld: --tune-seconds needs --micro-batch auto",
                            (long long)lm.micro_batch);
    if (o.tune_seconds > 0)
        lm.micro_batch = OPTIONS_AUTO;
    if (o.dim % (2 * o.heads) != 0) /* rotary positions rotate pairs of columns within a head */
        return session_fail(
            2,
            "--dim %lld with --heads %lld: allowed is a --dim of 2 * --heads, %lld, "
            "or a multiple of that",
            (long long)o.dim, (long long)o.heads, 2 * (long long)o.heads);
    int status = lm_check_options();
    if (status == 0 && o.bf16_fast && lm.bf16)
        status = session_fail(2, "--bf16 and --bf16-fast exclude each other; give one of them");
    if (status == 0 && o.bf16_fast && lm.device == 0)
        status = session_fail(2, "--bf16-fast needs tensor cores: add --device cuda, or give --bf16 "
                                 "instead");
    if (o.bf16_fast)
        lm.precision = GCKPT_BF16_FAST;
    return status;
}

/* ---- data ---- */
static struct {
    unsigned char *bytes;
    /* size: number of bytes; train: number of bytes for training, the first ones; the rest is for
     * validation */
    size_t size, train;
    size_t data; /* number of bytes of --data, which are the first ones */
    char path[4096];
    uint64_t hash; /* hash of the text of --data */
} text;

/* Appends the text of --validation to the training text. */
static int load_validation(void)
{
    unsigned char *more, *both;
    size_t size;
    int status = session_read_file("validation", lm.validation, &more, &size);
    if (status != 0)
        return status;
    both = realloc(text.bytes, text.size + size + 1);
    if (both == NULL) {
        free(more);
        return session_fail(1, "--validation %s: out of memory after %zu bytes", lm.validation,
                            text.size);
    }
    memcpy(both + text.size, more, size + 1);
    free(more);
    text.bytes = both;
    text.train = text.size;
    text.size += size;
    return 0;
}

/* Reads the text of --data. Without that option, reads gradckpt.h from the working directory, the
 * program's folder or the folder above it. */
static int load_text(const char *program)
{
    const char *slash = strrchr(program, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - program) + 1;
    snprintf(text.path, sizeof text.path, "%s", lm.data != NULL ? lm.data : "");
    for (int i = 0; i < 3 && lm.data == NULL && access(text.path, R_OK) != 0; i++)
        snprintf(text.path, sizeof text.path, "%.*s%sgradckpt.h", i == 0 ? 0 : folder, program,
                 i == 2 ? "../" : "");
    if (lm.data == NULL && access(text.path, R_OK) != 0)
        return session_fail(
            1, "found no gradckpt.h in this folder, in that of %s or above it; give a text with --data FILE", program);
    int status = session_read_file("data", text.path, &text.bytes, &text.size);
    if (status != 0)
        return status;
    text.hash = session_hash(14695981039346656037u, text.bytes, text.size);
    text.data = text.size;
    text.train = text.size - text.size / 10;
    status = lm.validation != NULL ? load_validation() : 0;
    if (status == 0 && (text.train < (size_t)o.context + 1 || text.size - text.train < 2))
        status =
            session_fail(1,
                         "%s: %zu bytes for training and %zu for validation are too few; --context "
                         "%lld needs %lld and 2",
                         text.path, text.train, text.size - text.train, (long long)o.context,
                         (long long)o.context + 1);
    return status;
}

/* Checks that no output file is also an input or another output. */
static int check_outputs(void)
{
    const session_file own[] = { { "frontier", o.frontier, SESSION_WRITES, -1 },
                                 { "save", lm.save, SESSION_SAVES, LM_RESUME_FILE } };
    return lm_check_outputs(text.path, own, 2);
}

static uint64_t random_bits(uint64_t step, uint64_t i) { return sample_random((uint64_t)lm.seed, step, i); }

/* Fills a row with a window of the text: T tokens and T targets. Positions from `end` on get the
 * target -1, which the loss ignores. */
static void put_window(int32_t *tokens, int32_t *targets, size_t start, size_t end)
{
    for (size_t t = 0; t < (size_t)o.context; t++) {
        tokens[t] = start + t < end ? text.bytes[start + t] : 0;
        targets[t] = start + t + 1 < end ? text.bytes[start + t + 1] : -1;
    }
}

/* ---- the model ---- */
/* Returns sqrt(x) by Newton's method, so that the program needs no math library. */
static double square_root(double x)
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 60; i++)
        r = (r + x / r) / 2;
    return r;
}

/* Writes the name of a tensor: "part" if layer is negative, else "h.LAYER.part". */
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

/* Gives an activation the name that --plan and --timeline show. */
static gckpt_tensor *name_tensor(gckpt_tensor *x, int layer, const char *part)
{
    char name[64];
    return gckpt_name(x, full_name(name, sizeof name, layer, part));
}

/* Appends a linear layer with bias, (B,T,in) -> (B,T,out). */
static gckpt_tensor *dense(gckpt_tensor *x, int layer, const char *part, int64_t in, int64_t out,
                           double normal)
{
    char weight[32], bias[32];
    gckpt_graph *g = gckpt_graph_of(x);
    snprintf(weight, sizeof weight, "%s.weight", part);
    snprintf(bias, sizeof bias, "%s.bias", part);
    gckpt_tensor *w = parameter(g, layer, weight, gckpt_shape2(in, out), normal, 0);
    x = gckpt_linear(x, w, parameter(g, layer, bias, gckpt_shape1(out), 0, 0));
    return name_tensor(x, layer, part);
}

static gckpt_tensor *norm(gckpt_tensor *x, int layer, const char *part)
{
    char weight[32], bias[32];
    gckpt_graph *g = gckpt_graph_of(x);
    snprintf(weight, sizeof weight, "%s.weight", part);
    snprintf(bias, sizeof bias, "%s.bias", part);
    gckpt_tensor *gain = parameter(g, layer, weight, gckpt_shape1(o.dim), 0, 1);
    x = gckpt_layernorm(x, gain, parameter(g, layer, bias, gckpt_shape1(o.dim), 0, 0), 0);
    return name_tensor(x, layer, part);
}

static gckpt_tensor *dropout(gckpt_tensor *x)
{
    return lm.dropout > 0 ? gckpt_dropout(x, (float)lm.dropout) : x;
}

typedef struct {
    int layer;
    /* number of positions of the key-value caches; 0 for a graph without caches, which processes
     * whole windows */
    int64_t capacity;
} block_place;

/* Appends a block with norms before attention and MLP: (B,T,C) -> (B,T,C). It is one segment for
 * GCKPT_SEGMENTS. Initial weights of layers that add to the residual stream are smaller by a factor
 * of sqrt(2 layers) (Radford 2019). */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const block_place *at = (const block_place *)user;
    const int i = at->layer;
    const int64_t C = o.dim;
    const double small = 0.02 / square_root(2.0 * (double)o.layers);
    gckpt_tensor *a = norm(x, i, "ln_1");
    gckpt_tensor *q = gckpt_rotary(dense(a, i, "attn.q", C, C, 0.02), &(gckpt_rotary_desc){ .heads = (int)o.heads });
    gckpt_tensor *k = gckpt_rotary(dense(a, i, "attn.k", C, C, 0.02), &(gckpt_rotary_desc){ .heads = (int)o.heads });
    gckpt_tensor *v = dense(a, i, "attn.v", C, C, 0.02);
    if (at->capacity > 0) {
        k = gckpt_cache(k, at->capacity);
        v = gckpt_cache(v, at->capacity);
    }
    a = name_tensor(gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = (int)o.heads, .causal = 1 }), i, "attn");
    x = gckpt_add(x, dropout(dense(a, i, "attn.proj", C, C, small)));
    a = dense(norm(name_tensor(x, i, "attn.sum"), i, "ln_2"), i, "mlp.fc", C, 4 * C, 0.02);
    a = name_tensor(gckpt_gelu(a), i, "mlp");
    return name_tensor(gckpt_add(x, dropout(dense(a, i, "mlp.out", 4 * C, C, small))), i, "mlp.sum");
}

/* Builds the model up to its last norm: (rows,T) -> (rows,T,C). Sets *head to the matrix (V,C) of
 * the LM head. With caches T is 1, else --context. */
static gckpt_tensor *trunk(gckpt_graph *g, int64_t rows, int cached, lm_stage *m,
                           gckpt_tensor **head)
{
    const int64_t V = o.vocabulary, T = cached ? 1 : o.context;
    block_place at = { 0, cached ? o.context : 0 };
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, T));
    gckpt_tensor *table = parameter(g, -1, "wte", gckpt_shape2(V, o.dim), 0.02, 0);
    gckpt_tensor *x = dropout(gckpt_embed(table, tokens));
    for (; at.layer < (int)o.layers; at.layer++)
        x = gckpt_checkpoint(block, x, &at);
    x = norm(x, -1, "ln_f");
    *head = o.tie ? table : parameter(g, -1, "head", gckpt_shape2(V, o.dim), 0.02, 0);
    m->feeds[0].input = gckpt_id(tokens);
    return x;
}

/* Builds the model with its loss, for training and evaluation; a fit_build_fn. */
static int build_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    lm_stage *m = (lm_stage *)user;
    gckpt_tensor *head, *x = trunk(g, rows, 0, m, &head);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, o.context));
    term->loss = gckpt_linear_cross_entropy(x, head, targets, NULL);
    term->weight = 1;
    m->loss = term->loss;
    m->feeds[1].input = gckpt_id(targets);
    return 1;
}

/* Builds the model with the logits (samples,1,V) of the next token, for sampling; a
 * fit_build_fn. */
static int build_logits(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    lm_stage *m = (lm_stage *)user;
    gckpt_tensor *head, *x = trunk(g, rows, 1, m, &head);
    m->logits.tensor = gckpt_linear_transposed(x, head, NULL);
    return (void)term, 0;
}

/* ---- the run ---- */
static lm_run run;
static struct {
    gckpt_frontier *frontier; /* frontier of the training's graph, for --plan and --frontier */
    pictures_modes modes;     /* plans of the other modes, for comparison with the frontier */
    tune_timing timed;        /* measured trials of --tune-seconds */
    char note[256];           /* a warning about the resumed file, or "" */
} reports;

static void put_batch(lm_run *r, uint64_t step)
{
    const size_t T = (size_t)o.context;
    for (size_t i = 0; i < (size_t)r->rows; i++)
        put_window(r->tokens + i * T, r->targets + i * T,
                   random_bits(step + r->skipped, (uint64_t)r->first + i) % (text.train - T), text.train);
}

/* Returns a time in seconds for --tune-seconds. With one thread it is CPU time, which does not
 * depend on other processes. */
static double seconds(void *user)
{
    struct timespec t;
    clock_gettime(lm.threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (void)user, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int make_plans(void)
{
    lm_stage *m = &run.stages[LM_TRAINING];
    gckpt_plan_desc desc = lm_plan_desc(&run, LM_SAMPLING);
    reports.timed.input.clock = seconds;
    reports.timed.limit = o.tune_seconds;
    reports.timed.input.feeds = m->feeds;
    reports.timed.input.count = 2;
    m->feeds[0].data = run.tokens;
    m->feeds[1].data = run.targets;
    int failed = lm_plan_training(&run, m, build_loss, o.tune_seconds > 0 ? &reports.timed : NULL);
    if (!failed && lm.eval_every > 0 && !only_reports())
        failed = lm_plan(&run, &run.stages[LM_EVALUATION], LM_EVALUATION, build_loss,
                         gckpt_plan_describe(m->plan).rows, &desc);
    desc.batch = lm.samples;
    desc.fetch.specs = &run.stages[LM_SAMPLING].logits;
    desc.fetch.count = 1;
    if (!failed && lm.sample > 0 && !only_reports())
        failed = lm_plan(&run, &run.stages[LM_SAMPLING], LM_SAMPLING, build_logits, lm.samples,
                         &desc);
    return failed;
}

/* Prints the trials of --tune-seconds: the measured time of each, and the time predicted from its
 * cost, scaled so that the prediction for the first trial is exact. */
static void report_trials(void)
{
    const tune_timing *t = &reports.timed;
    for (int i = 0; i < t->count; i++) {
        const tune_trial *a = &t->trials[i];
        double predicted = t->trials[0].seconds * (double)a->cost / (double)t->trials[0].cost;
        fprintf(session.out,
                "trial  micro-batch %lld, %zu bytes, %.1f %% overhead: predicted %.2f ms, measured "
                "%.2f%s\n",
                (long long)a->rows, a->bytes, 100 * a->overhead, 1e3 * predicted, 1e3 * a->seconds,
                i == t->fastest ? ", the fastest" : "");
        session_event("{\"event\":\"trial\",\"micro_batch\":%lld,\"bytes\":%zu,\"cost\":%llu,"
                      "\"seconds\":%.9g,\"runs\":%d}\n",
                      (long long)a->rows, a->bytes, (unsigned long long)a->cost, a->seconds,
                      a->runs);
    }
}

/* Prints how close the plan's cost is to the proven lower bound for this micro-batch and byte
 * limit. */
static void report_proof(const gckpt_plan *p)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    const double gap = 100 * info.gap;
    if (info.proven_cost == info.cost)
        fprintf(session.out, "proof  no plan within these bytes is faster\n");
    else
        fprintf(session.out, "proof  at most %.1f %% slower than the best plan within these bytes\n",
                gap < 0.1 ? 0.1 : gap);
    fprintf(session.out, "       every plan needs at least %zu bytes\n", info.proven_bytes);
}

static void report_plan(void)
{
    const gckpt_plan *p = run.stages[LM_TRAINING].plan;
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (reports.note[0] != 0)
        fprintf(session.out, "note   %s\n", reports.note);
    fprintf(session.out, "text   %s: %zu bytes, %s%zu for validation\n",
            session_is_dash(text.path) ? "standard input" : text.path, text.size,
            lm.validation != NULL ? "" : "the last ", text.size - text.train);
    fprintf(session.out,
            "model  %lld layer%s, %lld head%s, dim %lld, context %lld: %lld parameters\n",
            (long long)o.layers, session_plural(o.layers), (long long)o.heads, session_plural(o.heads),
            (long long)o.dim, (long long)o.context, (long long)lm_param_count(run.store));
    lm_report_plan(&run);
    session_event(",\"lower_bound\":%zu,\"gap\":%.9g,\"proven_bytes\":%zu",
                  gckpt_plan_bytes(p) - info.arena + info.peak,
                  info.gap, info.proven_bytes);
    gckpt_point at;
    for (int i = 0; o.frontier != NULL && gckpt_frontier_get(reports.frontier, i, &at) == GCKPT_OK;
         i++)
        session_event("%s[%zu,%.9g]", i == 0 ? ",\"frontier\":[" : ",", at.bytes, at.overhead);
    session_event(o.frontier != NULL ? "]}\n" : "}\n");
    report_trials();
    report_proof(p);
}

/* Makes sure that the graph for training exists, which --micro-batch auto has freed, and returns
 * the graph's loss term. */
static gckpt_term graph_of(lm_stage *m)
{
    gckpt_term term = { m->loss, 1, 0 };
    if (m->graph == NULL) {
        m->graph = gckpt_graph_new(run.store, NULL);
        build_loss(m->graph, gckpt_plan_describe(m->plan).rows, &term, m);
    }
    return term;
}

/* Computes the frontier, that is the least cost for every budget, and the plans of the other
 * --checkpoint modes. */
static int find_frontier(lm_stage *m)
{
    gckpt_plan_desc desc = lm_plan_desc(&run, LM_TRAINING);
    gckpt_term term = graph_of(m);
    desc.mode = GCKPT_AUTO;
    desc.budget = 0;
    desc.update_in_backward = gckpt_plan_describe(m->plan).update_in_backward;
    reports.frontier = gckpt_frontier_new(m->graph, &term, 1, &desc);
    if (reports.frontier == NULL ||
        pictures_compare(m->graph, &term, 1, &desc, &reports.modes) != GCKPT_OK)
        return session_fail(1, "%s", gckpt_error_text(m->graph));
    return 0;
}

/* Writes the frontier as text, picture or data, depending on the end of the path. Marks the budget
 * or, if there is no budget, the plan's bytes. */
static gckpt_result write_frontier(FILE *f, const char *path)
{
    const char *dot = strrchr(path, '.');
    const size_t plan = gckpt_plan_bytes(run.stages[LM_TRAINING].plan);
    const size_t mark = lm.budget > 0 ? (size_t)lm.budget : plan;
    if (dot != NULL && strcmp(dot, ".svg") == 0)
        return pictures_frontier(reports.frontier, &reports.modes, mark, session_write, f);
    if (dot != NULL && strcmp(dot, ".json") == 0)
        return print_frontier_json(reports.frontier, mark, session_write, f);
    gckpt_result result = print_frontier(reports.frontier, mark, session_write, f);
    fputc('\n', f);
    return result != GCKPT_OK ? result
                              : pictures_table(reports.frontier, &reports.modes, session_write, f);
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

/* Returns the width of reports in columns: the environment variable COLUMNS if it is 60 to 1000,
 * else 80. */
static int columns(void)
{
    const char *env = getenv("COLUMNS");
    const long n = env != NULL ? strtol(env, NULL, 10) : 0;
    return n >= 60 && n <= 1000 ? (int)n : 80;
}

/* Measures the time of five steps, after two steps that warm up. */
static int time_steps(tune_profile *p)
{
    enum { WARM = 2, STEPS = 5 };
    const lm_stage *m = &run.stages[LM_TRAINING];
    gckpt_feed feeds[LM_FEEDS];
    gckpt_hyper hyper = gckpt_hyper_lr((float)lm.lr);
    hyper.weight_decay = (float)lm.weight_decay;
    hyper.clip = (float)lm.clip;
    for (uint64_t i = 0; i < WARM + STEPS; i++) {
        put_batch(&run, i);
        const int n = lm_fill_feeds(&run, m, feeds);
        run.profile = i < WARM ? NULL : p;
        const gckpt_result result =
            i < WARM ? gckpt_step(m->exec, feeds, n, lm.batch, &hyper, NULL)
                     : tune_step(p, m->exec, feeds, n, lm.batch, &hyper, NULL);
        run.profile = NULL;
        if (result == GCKPT_CANCELLED)
            return session.interrupted = 1;
        if (result != GCKPT_OK && result != GCKPT_SKIPPED)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
    }
    return 0;
}

static int print_reports(void)
{
    lm_stage *m = &run.stages[LM_TRAINING];
    tune_profile p = { .clock = seconds, .backend = run.device };
    summary s;
    int failed = 0;
    graph_of(m);
    if (summary_open(&s, m->graph, run.store, m->plan) != GCKPT_OK)
        return session_fail(1, "out of memory for a summary");
    if (o.summary) {
        fputc('\n', session.out);
        summary_print(&s, columns(), session_write, session.out);
    }
    if (o.profile) {
        failed = tune_open(&p, m->plan, NULL) != GCKPT_OK ? session_fail(1, "out of memory for a profile") : 0;
        failed = failed || lm_new_execs(&run) || time_steps(&p);
        if (!failed) {
            fprintf(session.out, "\nmean of %lld steps: %.2f ms, with each instruction timed\n\n",
                    (long long)p.steps, 1e3 * p.total_seconds / (double)p.steps);
            summary_time(&s, &p, columns(), session_write, session.out);
        }
        tune_close(&p);
    }
    summary_close(&s);
    return failed;
}

/* Makes plans and executors, and prints the reports that options request. */
static int prepare(void)
{
    if (lm_alloc_batch(&run, o.context))
        return 1;
    run.lr = lm.lr;
    put_batch(&run, 0); /* a batch of data for the trials */
    if (make_plans())
        return 1;
    const gckpt_plan *training = run.stages[LM_TRAINING].plan;
    /* without --frontier, not for more than 200 layers, where it takes minutes */
    if (((lm.plan && o.layers <= 200) || o.frontier != NULL) &&
        find_frontier(&run.stages[LM_TRAINING]) != 0)
        return 1;
    report_plan();
    if (o.frontier != NULL && save_frontier() != 0)
        return 1;
    if (lm.timeline != NULL && lm_draw_plan(training) != 0)
        return 1;
    if (!only_reports())
        return lm_new_execs(&run);
    if (lm.plan && reports.frontier != NULL) {
        gckpt_point at = { 0 };
        int i = 0;
        fputc('\n', session.out);
        write_frontier(session.out, "");
        while (gckpt_frontier_get(reports.frontier, i, &at) == GCKPT_OK && at.overhead > 0.5)
            i++;
        if (at.bytes > 0 && at.overhead <= 0.5)
            fprintf(session.out, "\n%zu bytes suffice for 1.5 times the least cost\n\n", at.bytes);
    }
    if (lm.plan)
        print_plan(training, session_write, session.out);
    return o.summary || o.profile ? print_reports() : 0;
}

static int save(lm_run *r)
{
    r->saved = 1;
    if (lm.save == NULL)
        return 0;
    if (lm_record_save(r, lm.save) != 0) /* a saved step has a record */
        return 1;
    if (r->skipped > 0 && session_note_number(r->store, "skipped", r->skipped) != 0)
        return 1;
    gckpt_exec *exec = r->stages[LM_TRAINING].exec;
    if ((r->ranks != NULL ? gckpt_ranks_save(exec, lm.save)
                          : gckpt_store_save(r->store, lm.save, NULL)) == GCKPT_OK)
        return 0;
    return session_fail(1, "--save %s: %s", lm.save,
                        gckpt_error_text(r->ranks != NULL ? (void *)exec : (void *)r->store));
}

/* Prints the mean loss over windows of the validation text that do not overlap: all of them, or
 * --eval-iters batches that are spread evenly. Before that, saves the weights of this step. */
static int evaluate(lm_run *r, uint64_t step)
{
    const size_t T = (size_t)o.context, windows = (text.size - text.train - 1 + T - 1) / T;
    const size_t most = lm.eval_iters > 0 ? (size_t)(lm.eval_iters * lm.batch) : windows;
    const size_t used = most < windows ? most : windows;
    const lm_stage *m = &r->stages[LM_EVALUATION];
    double sum = 0;
    int64_t count = 0, rows, first;
    if (!r->saved && save(r) != 0)
        return 1;
    for (size_t i = 0; i < used; i += (size_t)rows) {
        const gckpt_feed feeds[2] = { { m->feeds[0].input, r->tokens },
                                      { m->feeds[1].input, r->targets } };
        gckpt_report report;
        rows = used - i < (size_t)lm.batch ? (int64_t)(used - i) : lm.batch;
        const size_t own = (size_t)gckpt_plan_rank_rows(m->plan, rows, lm_rank(r), &first);
        for (size_t k = 0; k < own; k++)
            put_window(r->tokens + k * T, r->targets + k * T,
                       text.train + (i + (size_t)first + k) * windows / used * T, text.size);
        if (lm_is_stopped(r))
            return 0;
        const gckpt_result result = gckpt_forward(m->exec, feeds, 2, rows, &report);
        if (result != GCKPT_OK)
            return result == GCKPT_CANCELLED ? 0 : session_fail(1, "%s", gckpt_error_text(m->exec));
        sum += report.loss * (double)report.count;
        count += report.count;
    }
    session_print_line("step %llu: validation loss %.4f", (unsigned long long)step, sum / (double)count);
    lm_report_eval(step, sum / (double)count, "");
    return 0;
}

/* Adds the loss and the training text to the text of a ledger's run. */
static void describe(ledger_text *t)
{
    ledger_put(t, "loss mean cross-entropy of the next byte\n");
    lm_ledger_put_hash(t, "data", text.bytes, text.data);
    ledger_put(t, "train ");
    ledger_put_number(t, text.train);
    ledger_put(t, "\n");
}

static int train(void)
{
    const uint64_t step = gckpt_store_step(run.store);
    run.fill_batch = put_batch;
    run.options = &options;
#ifdef GPT_MPI
    run.ledger.shards = o.shard != GCKPT_SHARD_NONE ? run.ranks : NULL;
    run.ledger.shards_values = o.shard == GCKPT_SHARD_VALUES;
#endif
    run.describe = describe;
    run.evaluate = evaluate;
    run.save = save;
    const int failed = lm_train(&run);
    return !failed && step >= (uint64_t)lm.steps && lm.eval_every > 0 && lm.audit == NULL
               ? evaluate(&run, step)
               : failed;
}

/* A model that is called for one token at a time: an inference plan with input (samples,1) and
 * caches, which fetches logits (samples,1,vocabulary). */
typedef struct {
    gckpt_exec *exec;
    int tokens, logits; /* tensor ids of the input and of the logits */
    int64_t vocabulary; /* number of logits of a token */
    /* number of tokens, the first ones of the vocabulary, that may be sampled */
    int64_t known;
    int64_t samples;    /* number of texts that are generated at once */
    int64_t context;    /* number of positions of the caches */
} generator;

/* Runs the model on token i of each text, so that the token enters the caches. In `all`, texts are
 * `stride` tokens apart. */
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

/* Generates n tokens after prompts of `given` >= 1 tokens. `all` is (samples,given+n), and each row
 * begins with its prompt. If `show` is not NULL, calls it with each new token of the first text.
 * When the caches are full, starts them again with the later half of their tokens. */
static int generate(const generator *m, int32_t *all, size_t given, size_t n,
                    const sample_options *how, void (*show)(void *user, int32_t token), void *user)
{
    const size_t rows = (size_t)m->samples, V = (size_t)m->vocabulary, stride = given + n;
    sample_entry *heap = (sample_entry *)malloc((size_t)m->known * sizeof *heap);
    int32_t *next = (int32_t *)malloc(rows * sizeof *next);
    int failed = heap == NULL || next == NULL ? session_fail(1, "out of memory for samples") : 0;
    for (size_t i = 0; i + 1 < stride && !failed && !lm_is_stopped(&run); i++) {
        if (gckpt_position(m->exec) == m->context) {
            failed = gckpt_rewind(m->exec, 0) != GCKPT_OK;
            for (size_t k = i - (size_t)(m->context / 2); k < i && !failed; k++)
                failed = feed_token(m, all, stride, k, next);
        }
        failed = failed || feed_token(m, all, stride, i, next);
        const float *logits = failed ? NULL : gckpt_fetch(m->exec, m->logits, 0);
        for (size_t r = 0; r < rows && i + 1 >= given && !failed; r++)
            all[r * stride + i + 1] =
                sample_token(logits + r * V, m->known, how, r, i + 1 - given, heap);
        if (show != NULL && i + 1 >= given && !failed)
            show(user, all[i + 1]);
    }
    free(heap);
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

/* Continues the prompt, and prints --samples texts. */
static int sample(void)
{
    const lm_stage *m = &run.stages[LM_SAMPLING];
    const char *prompt = lm.prompt == NULL || lm.prompt[0] == 0 ? "\n" : lm.prompt;
    const size_t given = strlen(prompt), stride = given + (size_t)lm.sample;
    const generator caching = {
        m->exec,    m->feeds[0].input, gckpt_id(m->logits.tensor), o.vocabulary, BYTES,
        lm.samples, o.context
    };
    const sample_options how = { lm.temperature, lm.top_k, lm.top_p, (uint64_t)lm.seed };
    int32_t *all = malloc((size_t)lm.samples * stride * sizeof *all);
    if (all == NULL)
        return session_fail(1, "out of memory for samples of %lld bytes", (long long)lm.sample);
    for (size_t i = 0; i < (size_t)lm.samples * stride; i++)
        all[i] = i % stride < given ? (unsigned char)prompt[i % stride] : 0;
    fprintf(session.out, "sample\n%s", lm.prompt == NULL ? "" : prompt);
    int failed = generate(&caching, all, given, (size_t)lm.sample, &how, show, NULL);
    fputc('\n', session.out);
    for (size_t r = 1; r < (size_t)lm.samples && !failed && !session.interrupted; r++) {
        fprintf(session.out, "sample\n%s", lm.prompt == NULL ? "" : prompt);
        for (size_t i = given; i < stride; i++)
            show(NULL, all[r * stride + i]);
        fputc('\n', session.out);
    }
    free(all);
    return failed;
}

/* Creates a new store or loads the file of --resume, from which it restores the options that are
 * not on the command line. */
static int open_store(int argc, char **argv)
{
    gckpt_store_desc desc = { .seed = (uint64_t)lm.seed };
    run.store = gckpt_store_new(&desc);
    if (run.store == NULL)
        return session_fail(1, "out of memory");
#ifdef GPT_MPI
    if (gckpt_store_ranks(run.store, lm_rank(&run), lm_world_size(&run), (gckpt_shard)o.shard) !=
        GCKPT_OK)
        return session_fail(2, "%s", gckpt_error_text(run.store));
#endif
    gckpt_result loaded = GCKPT_OK;
    if (lm.resume != NULL)
        loaded = gckpt_store_load(run.store, lm.resume, NULL);
    if (loaded == GCKPT_OTHER_CONTRACT)
        snprintf(reports.note, sizeof reports.note, "%s", gckpt_error_text(run.store));
    else if (loaded != GCKPT_OK)
        return session_fail(1, "--resume %s: %s", lm.resume, gckpt_error_text(run.store));
    run.skipped = session_read_note(run.store, "skipped", 0);
    if (lm.resume != NULL && lm.save == NULL && lm.audit == NULL)
        lm.save = lm.resume;
    /* an audit takes its options from the ledger only, not from a file that others wrote */
    int status = lm.resume != NULL && lm.audit == NULL
                     ? session_restore_options(run.store, lm.resume, &options, fixed, not_kept, argc,
                                               argv)
                     : 0;
    return status != 0 ? status : session_note_options(run.store, &options, not_kept, argc, argv);
}

/* Prepares the run, up to the first step. Returns 0 or an exit status. */
static int begin(int argc, char **argv)
{
    int status = open_store(argc, argv);
#ifdef GPT_MPI
    transport.ranks.timeout = o.timeout;
#endif
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = load_text(argv[0]);
    if (status == 0)
        status = session_check_data(run.store, "data", text.path, text.hash,
                                   options_given(&options, argc, argv, "data") != NULL);
    if (lm_rank(&run) > 0) /* only rank 0 writes files and prints */
        lm.json = lm.log = lm.timeline = o.frontier = NULL;
    if (status == 0)
        status = check_outputs();
    if (status == 0)
        status = lm_open_device(&run);
    if (status == 0)
        status = session_open(lm.json, &options, gckpt_store_step(run.store));
    if (status == 0 && !only_reports())
        status = lm_log_open(gckpt_store_step(run.store));
    return status == 0 ? prepare() : status;
}

/* Trains, then prints samples. Returns an exit status. */
static int train_and_sample(void)
{
    int status = train();
    if (status == 0 && lm.sample > 0 && !session.interrupted)
        status = sample();
    if (status == 0)
        status = lm_report_end(&run);
    if (status == 0)
        session_event("}\n");
    return status;
}

#ifdef GPT_MPI
static int open_ranks(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    if (!mpi_ranks_open(&transport, MPI_COMM_WORLD, 60))
        return session_fail(1, "MPI failed to start; run the program with mpirun");
    run.ranks = transport.ranks.size > 1 ? &transport.ranks : NULL;
    if (lm_rank(&run) > 0 && freopen("/dev/null", "w", stdout) == NULL)
        return session_fail(1, "/dev/null: %s", strerror(errno));
    return 0;
}

static void close_ranks(void)
{
    mpi_ranks_close(&transport);
    MPI_Finalize();
}
#else
static int open_ranks(int *argc, char ***argv) { return (void)argc, (void)argv, 0; }
static void close_ranks(void) {}
#endif

int main(int argc, char **argv)
{
    int status = lm_start("gpt"), failed = open_ranks(&argc, &argv);
    status = status != 0 ? status : failed;
    if (status == 0)
        status = options_parse(&options, argc, argv);
    if (status == 0 && lm.help)
        status = lm_print_help(&options, title, groups);
    else if (status == 0)
        status = begin(argc, argv);
    status = lm_all_reduce_max(&run, status); /* if one process failed, all processes end */
    if (status == 0 && !only_reports() && !lm.help)
        status = lm_all_reduce_max(&run, train_and_sample());
    gckpt_frontier_free(reports.frontier);
    lm_free(&run);
    gckpt_store_free(run.store);
    free(run.tokens);
    free(run.targets);
    free(text.bytes);
    status = session_end(status < 0 ? 1 : status);
    close_ranks();
    return status;
}
