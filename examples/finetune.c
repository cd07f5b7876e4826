/* finetune.c - fine-tunes a GPT-2 in Hugging Face's format inside a byte budget.
 *
 *     cc -O2 -fopenmp -I. examples/finetune.c -o finetune
 *     ./finetune --model gpt2 --method lora --data my.txt --budget 1G --save tuned
 *     ./finetune --model gpt2 --method full --data chat.jsonl --budget 750M --save tuned
 *     ./finetune --model gpt2 --method all --data my.txt --general wiki.txt --save compared
 *     ./finetune --resume tuned/training.safetensors
 *     ./finetune --new 4x128x4x128 --model small          a model to try things with
 *     ./finetune --help
 *
 * A method says which parameters are trained (adapters.h); all others are frozen: they have no
 * gradient and no optimiser state, and may be stored in fewer bytes (--store). --save DIR keeps what
 * evaluates best, as Python's transformers and peft load it, and DIR/training.safetensors with which
 * the run can go on: trained parameters, optimiser state, options and the position in the data.
 *
 * A step's gradient is a sum over all its targets, divided once by their number. Where answers have
 * different lengths that is not the mean of the rows' means; an evaluation shows both.
 */
#define _XOPEN_SOURCE 700 /* clock_gettime, isatty, realpath */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "adapters.h"
#include "dataset.h"
#include "generate.h"
#include "options.h"
#include "pictures.h"
#include "sample.h"
#include "session.h"
#include "tokenizer.h"

/* ---- options --------------------------------------------------------------------------------- */
enum { MOST_SKIPPED = 10 }; /* steps in a row */

static struct {
    int64_t method, store, context, batch, micro_batch, steps, warmup, seed, threads, checkpoint;
    int64_t budget, bf16, plan, eval_every, eval_iters, in_order, sample, samples, top_k, help;
    int64_t layers, size, hidden, rslora, bias, map, device;
    double lr, min_lr, weight_decay, beta1, beta2, clip, dropout, temperature, top_p, alpha,
        lora_dropout;
    const char *model, *new_model, *data, *validation, *general, *save, *resume, *adapter, *prompt;
    const char *targets, *ranks, *alphas, *json, *timeline, *picture;
} o = { .min_lr = -1 };

static const char *const method_names[] = { "full",    "last",  "head",   "bias",   "added", "lora",
                                            "houlsby", "llama", "prefix", "prompt", "all",   NULL };
static const char *const mode_names[] = { "auto", "store-all", "memory-poor", "segments",
                                          "sqrt", "optimal",   NULL };
static const gckpt_mode modes[] = { GCKPT_AUTO,     GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                    GCKPT_SEGMENTS, GCKPT_SQRT,      GCKPT_OPTIMAL };
static const char *const storage_names[] = { "f32", "bf16", "f16", "int8", NULL };
static const char *const bias_names[] = { "none", "all", "lora_only", NULL };

/* Learning rates to begin with, by method: what has few parameters, or new ones, takes larger steps.
 */
static const double usual_lr[ADAPTERS_METHODS] = { 5e-5, 1e-4, 1e-4, 1e-3, 3e-4,
                                                   1e-3, 1e-3, 1e-2, 1e-2, 3e-2 };

static const options_row allowed[] = {
    { "model", OPTIONS_FILE, &o.model, NULL, 0, 0, NULL,
      "folder with config.json, model.safetensors (or its shards) and the tokenizer's files" },
    { "method", OPTIONS_CHOICE, &o.method, "lora", 0, 0, method_names,
      "what is trained; all: one after the other, and a table of them" },
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL,
      "what to learn: text, FILE.bin of 16-bit tokens, or FILE.jsonl of {\"prompt\": \"..\", "
      "\"answer\": \"..\"}, whose answers are learned" },
    { "validation", OPTIONS_FILE, &o.validation, NULL, 0, 0, NULL,
      "what to evaluate with; not given: the last 10 % of --data" },
    { "general", OPTIONS_FILE, &o.general, NULL, 0, 0, NULL,
      "text of another kind: how much of it is forgotten" },
    { "save", OPTIONS_FILE, &o.save, NULL, 0, 0, NULL,
      "folder for what evaluates best, and for training.safetensors, with which a run goes on" },
    { "resume", OPTIONS_FILE, &o.resume, NULL, 0, 0, NULL,
      "go on from a training.safetensors, with its options but for those given now" },
    { "adapter", OPTIONS_FILE, &o.adapter, NULL, 0, 0, NULL,
      "folder with an adapter to begin with, of peft or from --save" },
    { "new", OPTIONS_TEXT, &o.new_model, NULL, 0, 0, NULL,
      "LAYERSxDIMxHEADSxCONTEXT[xVOCABULARY]: first make --model, new weights and a tokenizer of "
      "bytes; 12x768x12x1024x50257 has the size of gpt2" },
    { "store", OPTIONS_CHOICE, &o.store, "f32", 0, 0, storage_names,
      "how frozen matrices are kept; changes bytes and, a little, results; without --budget they "
      "are unpacked all the time" },
    { "map", OPTIONS_FLAG, &o.map, NULL, 0, 0, NULL,
      "use weights where they lie in the file, which the system may drop and read again; they are "
      "not counted then" },
    { "size", OPTIONS_WHOLE, &o.size, "0", 0, 65536, NULL,
      "lora: rank (0: 8); houlsby: bottleneck (0: 64); llama, prefix, prompt: tokens (0: 10)" },
    { "layers", OPTIONS_WHOLE, &o.layers, "0", 0, 1000, NULL,
      "last, added (0: 1), llama (0: all): so many, from the top" },
    { "alpha", OPTIONS_REAL, &o.alpha, "0", 0, 1e6, NULL,
      "lora: its product is scaled by alpha / rank; 0: 8" },
    { "rslora", OPTIONS_FLAG, &o.rslora, NULL, 0, 0, NULL, "lora: scaled by alpha / sqrt(rank)" },
    { "lora-dropout", OPTIONS_REAL, &o.lora_dropout, "0", 0, 0.99, NULL, "lora: of its input" },
    { "targets", OPTIONS_TEXT, &o.targets, NULL, 0, 0, NULL,
      "lora: modules, as in peft: c_attn,mlp.c_fc; not given: c_attn" },
    { "ranks", OPTIONS_TEXT, &o.ranks, NULL, 0, 0, NULL, "lora: ranks of some: mlp.c_fc=4" },
    { "alphas", OPTIONS_TEXT, &o.alphas, NULL, 0, 0, NULL, "lora: alphas of some" },
    { "bias", OPTIONS_CHOICE, &o.bias, "none", 0, 0, bias_names, "lora: biases trained, too" },
    { "hidden", OPTIONS_WHOLE, &o.hidden, "0", 0, 65536, NULL,
      "prefix: of an MLP that makes it in training; 0: none" },
    { "context", OPTIONS_WHOLE, &o.context, "0", 0, 1 << 20, NULL,
      "tokens T of a row; 0: what the model and the method leave, or the longest line of JSON" },
    { "batch", OPTIONS_WHOLE, &o.batch, "8", 1, 1 << 20, NULL, "rows of a step" },
    { "micro-batch", OPTIONS_WHOLE_OR_AUTO, &o.micro_batch, "auto", 1, 1 << 20, NULL,
      "rows computed at once; changes bytes, never results; auto: the divisor of --batch that is "
      "fastest within --budget" },
    { "steps", OPTIONS_WHOLE, &o.steps, "100", 0, 1e12, NULL,
      "steps in all, those of a resumed file included" },
    { "lr", OPTIONS_REAL, &o.lr, "0", 0, 10, NULL,
      "learning rate after the warm-up; 0: the method's, 5e-5 (full) to 3e-2 (prompt)" },
    { "min-lr", OPTIONS_REAL, &o.min_lr, NULL, 0, 10, NULL,
      "learning rate at the last step (cosine); not given: --lr" },
    { "warmup", OPTIONS_WHOLE, &o.warmup, "10", 0, 1e12, NULL, "steps of linear warm-up" },
    { "weight-decay", OPTIONS_REAL, &o.weight_decay, "0", 0, 100, NULL,
      "of matrices, not of biases and gains" },
    { "beta1", OPTIONS_REAL, &o.beta1, "0.9", 0, 0.99999, NULL, "AdamW" },
    { "beta2", OPTIONS_REAL, &o.beta2, "0.999", 0, 0.99999, NULL, "AdamW" },
    { "clip", OPTIONS_REAL, &o.clip, "1", 0, 1e9, NULL,
      "greatest gradient norm; 0: no clipping, and updates in the backward where that helps" },
    { "dropout", OPTIONS_REAL, &o.dropout, "0", 0, 0.99, NULL,
      "of embeddings and both residual branches" },
    { "in-order", OPTIONS_FLAG, &o.in_order, NULL, 0, 0, NULL,
      "rows as they stand in --data; else in each epoch in an order of its own" },
    { "seed", OPTIONS_WHOLE, &o.seed, "1", 0, 9007199254740992.0, NULL,
      "of new weights, the order of rows, dropout and sampling" },
    { "threads", OPTIONS_WHOLE, &o.threads, "0", 0, 1024, NULL,
      "changes speed and bytes, never results; 0: all" },
    { "device", OPTIONS_CHOICE, &o.device, "cpu", 0, 0, session_devices,
      "what computes; cuda in a program that make build/finetune-cuda makes; changes speed and "
      "bytes, never results" },
    { "checkpoint", OPTIONS_CHOICE, &o.checkpoint, "auto", 0, 0, mode_names,
      "what is recomputed; auto: nothing, or as little as --budget allows" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 9007199254740992.0, NULL,
      "bytes for weights, optimiser state and step arena; 0: no limit" },
    { "bf16", OPTIONS_FLAG, &o.bf16, NULL, 0, 0, NULL,
      "activations and their gradients as bf16: 2 bytes each, other results" },
    { "eval-every", OPTIONS_WHOLE, &o.eval_every, "50", 0, 1e12, NULL,
      "steps between evaluations; also before the first and behind the last; 0: none" },
    { "eval-iters", OPTIONS_WHOLE, &o.eval_iters, "0", 0, 1e12, NULL,
      "batches of an evaluation, from all over its data; 0: all of it" },
    { "prompt", OPTIONS_TEXT, &o.prompt, NULL, 0, 0, NULL,
      "text that samples continue, before and after; not given: the end of a text" },
    { "sample", OPTIONS_WHOLE, &o.sample, "0", 0, 1e9, NULL,
      "tokens to generate; fewer where the model's context is full" },
    { "samples", OPTIONS_WHOLE, &o.samples, "1", 1, 1024, NULL, "so many samples" },
    { "temperature", OPTIONS_REAL, &o.temperature, "0.8", 0, 100, NULL,
      "of sampling: below 1 prefers likely tokens; 0: always the likeliest" },
    { "top-k", OPTIONS_WHOLE, &o.top_k, "40", 0, 1e9, NULL,
      "sample from the k likeliest tokens; 0: from all" },
    { "top-p", OPTIONS_REAL, &o.top_p, "1", 0, 1, NULL,
      "sample from the likeliest tokens that have this probability together" },
    { "plan", OPTIONS_FLAG, &o.plan, NULL, 0, 0, NULL, "print what the plan needs, and stop" },
    { "timeline", OPTIONS_FILE, &o.timeline, NULL, 0, 0, NULL, "draw the plan's memory (SVG)" },
    { "picture", OPTIONS_FILE, &o.picture, NULL, 0, 0, NULL,
      "with --method all: draw what each keeps in memory (SVG)" },
    { "json", OPTIONS_FILE, &o.json, NULL, 0, 0, NULL,
      "events, one object a line; -: on standard output, alone" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "finetune", allowed, sizeof allowed / sizeof allowed[0], 16,
                                       "WHICH" };
/* Options that make what is trained, and those that are not kept in training.safetensors. */
static const char fixed[] =
    "method size layers alpha rslora targets ranks alphas bias hidden store";
static const char other_notes[] = "data base skipped position best before general";
static const char not_kept[] = "resume save new json timeline picture plan help";

static int print_help(void)
{
    printf("finetune - fine-tunes a GPT-2 in Hugging Face's format inside a byte budget\n\n");
    options_print(&options);
    printf("\nExit status: 0 done, 1 failed, 2 wrong option or value, 130 interrupted.\n");
    if (fflush(stdout) != 0 || ferror(stdout))
        return session_fail(1, "standard output: %s", strerror(errno));
    return 0;
}

static int check_options(void)
{
    if (o.model == NULL)
        return session_fail(2,
                            "--model DIR is missing: a folder with a GPT-2, such as "
                            "huggingface.co/gpt2; --new 4x128x4x128 --model DIR makes a small one");
    if (o.data == NULL && (o.new_model == NULL || o.resume != NULL))
        return session_fail(2, "--data FILE is missing: what to learn");
    if (o.micro_batch > o.batch)
        return session_fail(2, "--micro-batch %lld: allowed is at most --batch %lld",
                            (long long)o.micro_batch, (long long)o.batch);
    if (o.method == ADAPTERS_METHODS && (o.save == NULL || o.resume != NULL || o.adapter != NULL))
        return session_fail(2, o.save == NULL
                                   ? "--method all needs --save DIR: each goes to DIR/METHOD"
                                   : "--method all: --resume and --adapter are of one method");
    if (o.store != 0 &&
        (o.method == ADAPTERS_FULL || o.method == ADAPTERS_LAST || o.method == ADAPTERS_METHODS))
        return session_fail(2,
                            "--store %s: --method %s trains matrices, which only frozen ones can "
                            "be; leave --store out, or take another method",
                            storage_names[o.store], method_names[o.method]);
    if (o.store != 0 && o.map)
        return session_fail(2, "--map uses weights as the file has them; leave --store %s out",
                            storage_names[o.store]);
    if (o.adapter != NULL && (o.size > 0 || o.layers > 0 || o.hidden > 0 || o.alpha > 0 ||
                              o.rslora || o.lora_dropout > 0 || o.targets != NULL ||
                              o.ranks != NULL || o.alphas != NULL || o.bias != 0))
        return session_fail(2,
                            "--adapter %s: its adapter_config.json says sizes and scales; leave "
                            "--size, --alpha and the like out",
                            o.adapter);
    if (o.lr > 0 && o.min_lr > o.lr)
        return session_fail(2, "--min-lr %g: allowed is at most --lr %g", o.min_lr, o.lr);
    if (o.picture != NULL && o.method != ADAPTERS_METHODS)
        return session_fail(2,
                            "--picture compares methods: it needs --method all; --timeline draws "
                            "one");
    if (o.threads == 0)
        o.threads = gckpt_threads();
    return 0;
}

/* ---- the run: what all methods share --------------------------------------------------------- */
typedef struct { /* rows first, first + 1, .. of a data set */
    const dataset *data;
    uint64_t first, count;
} part;

static struct {
    bpe tokenizer;
    dataset data, validation, general;
    int64_t T;
    part train, valid, other;    /* of T tokens; count 0: there are none */
    int32_t *tokens, *targets;   /* (batch,T) feeds */
    int32_t end;                 /* of a text; -1: none */
    const gckpt_backend *device; /* NULL: the processor */
} run;

typedef struct { /* what came of a method: a row of the table */
    int64_t parameters;
    size_t bytes, file, kinds[GCKPT_BYTES_KINDS];
    double seconds; /* of a step, the median */
    double before, after, best, general_before, general_after;
} outcome;

typedef struct {
    gckpt_store *store, *notes; /* notes: of training.safetensors, which other files do not get */
    gpt2_model model;
    adapters adapters;
    gpt2_options how;
    gckpt_graph *graphs[2]; /* training (NULL where gckpt_fit chose), evaluation */
    gckpt_plan *plans[2];
    gckpt_exec *execs[2];
    void *arena; /* one for both, the device's */
    size_t arena_bytes;
    int tokens, targets;
    int64_t micro;
    uint64_t skipped, position; /* rows learned so far, skipped ones included */
    const char *save;           /* folder; NULL: nothing is saved */
    double lr;
    outcome result;
} tuning;

enum { TRAINING, EVALUATION };

static const char *join(char *path, size_t size, const char *folder, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* ---- a new model ----------------------------------------------------------------------------- */
/* A tokenizer of 256 bytes, no merges, and the end of a text. */
static int write_tokenizer(void)
{
    char path[GPT2_PATH];
    FILE *f = fopen(join(path, sizeof path, o.model, "vocab.json"), "wb");
    if (f == NULL)
        return session_fail(1, "%s: %s", path, strerror(errno));
    fputc('{', f);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        const int n = json_put_utf8(name, bpe_character_of(byte));
        json_write_string(f, name, (size_t)n);
        fprintf(f, ": %d, ", byte);
    }
    fputs("\"<|endoftext|>\": 256}\n", f);
    int failed = ferror(f) != 0;
    failed = fclose(f) != 0 || failed;
    f = failed ? NULL : fopen(join(path, sizeof path, o.model, "merges.txt"), "wb");
    if (f != NULL)
        fputs("#version: 0.2\n", f);
    if (f == NULL || fclose(f) != 0)
        return session_fail(1, "%s: %s", path, strerror(errno));
    return 0;
}

static int make_model(void)
{
    enum { LAYERS, DIM, HEADS, CONTEXT, VOCABULARY };
    long long n[5] = { 0, 0, 0, 0, 257 };
    char path[GPT2_PATH], *end = NULL;
    gpt2_model m;
    gckpt_store_desc desc = { .seed = (uint64_t)o.seed };
    const char *at = o.new_model;
    for (int i = 0; i < 5 && end != at && (i == 0 || *end == 'x'); i++) {
        at = i > 0 ? end + 1 : at;
        n[i] = strtoll(at, &end, 10);
    }
    if (end == at || *end != 0 || n[LAYERS] < 1 || n[DIM] < 1 || n[HEADS] < 1 || n[CONTEXT] < 1 ||
        n[LAYERS] > 1000 || n[DIM] > 65536 || n[CONTEXT] > 1 << 20 || n[DIM] % n[HEADS] != 0 ||
        n[VOCABULARY] < 257 || n[VOCABULARY] > 1 << 24)
        return session_fail(2,
                            "--new %s: allowed is LAYERSxDIMxHEADSxCONTEXT, such as 4x128x4x128, "
                            "DIM a multiple of HEADS, and xVOCABULARY, 257 or more",
                            o.new_model);
    if (access(join(path, sizeof path, o.model, "config.json"), F_OK) == 0)
        return session_fail(
            2, "--new: %s is there already; give another --model, or leave --new out", path);
    gckpt_store *store = gckpt_store_new(&desc);
    gpt2_new(&m, n[LAYERS], n[HEADS], n[DIM], n[CONTEXT], n[VOCABULARY]);
    m.config.eos = 256;
    int failed =
        gpt2_declare(&m, store) != 0 || gpt2_save(&m, store, o.model, GCKPT_STORED_F32) != 0
            ? session_fail(1, "--new: %s", m.error)
            : write_tokenizer();
    gckpt_store_free(store);
    return failed;
}

/* ---- data ------------------------------------------------------------------------------------ */
static int open_data(const char *option, const char *path, const gpt2_model *m, dataset *d)
{
    if (path == NULL)
        return 0;
    if (dataset_open(d, path, &run.tokenizer, (int32_t)m->config.vocabulary, run.end) != 0)
        return session_fail(1, "--%s: %s", option, d->error);
    return 0;
}

/* Before positions of tokens there may be others: how many. */
static int64_t positions_before(void)
{
    const int takes = o.method >= ADAPTERS_PREFIX;
    return !takes                                       ? 0
           : o.size > 0 && o.method != ADAPTERS_METHODS ? o.size
           : o.size > 10                                ? o.size
                                                        : 10;
}

/* All texts as tokens, and which rows are for what. */
static int load_data(void)
{
    gpt2_model m;
    if (gpt2_read_config(&m, o.model) != 0)
        return session_fail(1, "--model: %s", m.error);
    if (bpe_open(&run.tokenizer, o.model) != 0)
        return session_fail(1, "--model: %s", run.tokenizer.error);
    const bpe_added *end = bpe_find_added(&run.tokenizer, "<|endoftext|>");
    run.end = m.config.eos >= 0 ? (int32_t)m.config.eos : end != NULL ? end->id : -1;
    if (open_data("data", o.data, &m, &run.data) != 0 ||
        open_data("validation", o.validation, &m, &run.validation) != 0 ||
        open_data("general", o.general, &m, &run.general) != 0)
        return 1;
    const int64_t room = m.config.context - positions_before();
    run.T = o.context > 0 ? o.context : room;
    int64_t longest = dataset_longest(&run.data);
    if (dataset_longest(&run.validation) > longest && longest > 0)
        longest = dataset_longest(&run.validation);
    if (o.context == 0 && longest > 0 && longest < room)
        run.T = longest; /* more would be padding */
    if (room < 1)
        return session_fail(2, "--size: the model has %lld positions: that leaves none for a text",
                            (long long)m.config.context);
    if (run.T < 1 || run.T > room)
        return session_fail(2,
                            "--context %lld: allowed is 1 to %lld: the model has %lld positions%s",
                            (long long)o.context, (long long)room, (long long)m.config.context,
                            room < m.config.context ? ", and the method takes some" : "");
    const uint64_t rows = dataset_rows(&run.data, run.T);
    const uint64_t held = o.eval_every > 0 && o.validation == NULL ? (rows + 9) / 10 : 0;
    const part none = { NULL, 0, 0 }, train = { &run.data, 0, rows - held },
               last = { &run.data, rows - held, held },
               own = { &run.validation, 0, dataset_rows(&run.validation, run.T) },
               other = { &run.general, 0, dataset_rows(&run.general, run.T) };
    run.train = train;
    run.valid = o.eval_every == 0 ? none : o.validation != NULL ? own : last;
    run.other = o.eval_every == 0 ? none : other;
    if (train.count == 0 || (o.eval_every > 0 && run.valid.count == 0))
        return session_fail(1,
                            "%s has %llu rows of %lld tokens, too few to learn from and to "
                            "evaluate with; a smaller --context makes more",
                            o.data, (unsigned long long)rows, (long long)run.T);
    const size_t bytes = (size_t)(o.batch * run.T) * sizeof(int32_t);
    run.tokens = malloc(bytes);
    run.targets = malloc(bytes);
    if (run.tokens == NULL || run.targets == NULL)
        return session_fail(1, "out of memory: a batch has %zu bytes", 2 * bytes);
    const uint64_t cut = dataset_cut(&run.data, run.T);
    fprintf(session.out,
            "data   %s: %zu tokens, %llu rows of %lld, %llu of them to evaluate with\n", o.data,
            run.data.all.count, (unsigned long long)rows, (long long)run.T,
            (unsigned long long)held);
    if (cut > 0)
        fprintf(session.out,
                "note   %llu rows are longer and lose the beginning of their prompt, then "
                "the end of their answer\n",
                (unsigned long long)cut);
    return 0;
}

static uint64_t data_hash(void)
{
    uint64_t h =
        session_hash(14695981039346656037u, run.data.all.ids, run.data.all.count * sizeof(int32_t));
    return session_hash(h, run.data.examples, run.data.count * sizeof(dataset_example));
}

/* ---- a method: loading and planning ---------------------------------------------------------- */
static int with_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    tuning *t = (tuning *)user;
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, run.T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, run.T));
    term->loss = gpt2_loss(&t->model, gpt2_hidden(&t->model, tokens, &t->how), targets);
    term->weight = 1;
    t->tokens = gckpt_id(tokens);
    t->targets = gckpt_id(targets);
    return 1;
}

static int load_model(tuning *t, adapters_method method)
{
    const gckpt_store_desc desc = { .seed = (uint64_t)o.seed };
    const gpt2_source source = { (gckpt_storage)o.store, (int)o.map };
    const adapters_options wanted = { .method = method,
                                      .layers = o.layers,
                                      .size = o.size,
                                      .hidden = o.hidden,
                                      .alpha = o.alpha,
                                      .rslora = (int)o.rslora,
                                      .dropout = o.lora_dropout,
                                      .targets = o.targets,
                                      .ranks = o.ranks,
                                      .alphas = o.alphas,
                                      .bias = (adapters_bias)o.bias };
    t->store = gckpt_store_new(&desc);
    t->notes = gckpt_store_new(NULL);
    if (t->store == NULL || t->notes == NULL)
        return session_fail(1, "out of memory");
    if (gpt2_load(&t->model, t->store, o.model, &source) != 0)
        return session_fail(1, "--model: %s", t->model.error);
    int failed = o.adapter != NULL ? adapters_load(&t->adapters, &t->model, t->store, o.adapter)
                                   : adapters_begin(&t->adapters, &t->model, t->store, &wanted);
    if (!failed && t->adapters.options.method != method)
        failed = gpt2_fail(&t->model, "--adapter %s: it is of --method %s", o.adapter,
                           adapters_names[t->adapters.options.method]);
    t->how.hooks = &t->adapters.hooks;
    t->how.dropout = o.dropout;
    t->lr = o.lr > 0 ? o.lr : usual_lr[method];
    return failed ? session_fail(1, "%s", t->model.error) : 0;
}

/* Only what is trained goes to training.safetensors. */
static const char *trained_only(void *user, const char *name)
{
    gckpt_parameter p;
    const gckpt_store *store = (const gckpt_store *)user;
    int i = gckpt_store_find(store, name);
    return i >= 0 && gckpt_store_peek(store, i, &p) == GCKPT_OK && !p.frozen ? name : NULL;
}

static int make_plans(tuning *t)
{
    gckpt_plan_desc desc = { .mode = modes[o.checkpoint],
                             .budget = (size_t)o.budget,
                             .batch = o.batch,
                             .threads = (int)o.threads,
                             .backend = run.device,
                             .precision = o.bf16 ? GCKPT_BF16 : GCKPT_FP32 };
    gckpt_term term = { NULL, 0, 0 };
    if (o.micro_batch == OPTIONS_AUTO) {
        desc.update_in_backward = o.clip > 0 ? 0 : GCKPT_IF_USEFUL;
        t->plans[TRAINING] = gckpt_fit(t->store, with_loss, t, o.batch, &desc, NULL);
        if (t->plans[TRAINING] == NULL)
            return session_fail(1, "%s", gckpt_error_text(t->store));
    } else {
        t->graphs[TRAINING] = gckpt_graph_new(t->store, NULL);
        with_loss(t->graphs[TRAINING], o.micro_batch, &term, t);
        t->plans[TRAINING] = gckpt_plan_new(t->graphs[TRAINING], &term, 1, &desc);
        if (t->plans[TRAINING] == NULL)
            return session_fail(1, "%s%s", gckpt_error_text(t->graphs[TRAINING]),
                                gckpt_error(t->graphs[TRAINING]) == GCKPT_E_BUDGET
                                    ? "; --micro-batch auto finds the one that needs fewest"
                                    : "");
    }
    t->micro = gckpt_plan_rows(t->plans[TRAINING]);
    if (o.eval_every == 0)
        return 0;
    /* row by row: the mean of their means is wanted, too */
    desc.mode = GCKPT_INFERENCE;
    desc.update_in_backward = 0;
    desc.budget = 0;
    desc.batch = 1;
    t->graphs[EVALUATION] = gckpt_graph_new(t->store, NULL);
    with_loss(t->graphs[EVALUATION], 1, &term, t);
    t->plans[EVALUATION] = gckpt_plan_new(t->graphs[EVALUATION], &term, 1, &desc);
    if (t->plans[EVALUATION] == NULL)
        return session_fail(1, "%s", gckpt_error_text(t->graphs[EVALUATION]));
    return 0;
}

static void report_plan(tuning *t, const char *method)
{
    const gckpt_plan *p = t->plans[TRAINING];
    outcome *r = &t->result;
    int64_t all = 0;
    gckpt_parameter q;
    for (int i = 0; gckpt_store_peek(t->store, i, &q) == GCKPT_OK; i++)
        all += q.elements;
    r->parameters = adapters_trainable(t->store);
    r->bytes = gckpt_plan_bytes(p);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        r->kinds[i] = gckpt_plan_kind_bytes(p, i);
    fprintf(session.out, "method %s: trains %lld of %lld parameters (%.3g %%), lr %g\n", method,
            (long long)r->parameters, (long long)all, 100 * (double)r->parameters / (double)all,
            t->lr);
    fprintf(
        session.out,
        "plan   %s, micro-batch %lld of %lld%s%s, %lld thread%s: %zu bytes, %.1f %% recomputed\n",
        gckpt_mode_name(gckpt_plan_mode(p)), (long long)t->micro, (long long)o.batch,
        gckpt_plan_in_backward(p) ? ", updates in the backward" : "", o.bf16 ? ", bf16" : "",
        (long long)o.threads, o.threads == 1 ? "" : "s", r->bytes, 100 * gckpt_plan_recompute(p));
    fprintf(session.out,
            "bytes  parameters %zu, optimiser %zu, arena %zu (at its peak: gradients %zu, "
            "activations %zu, workspace %zu)\n",
            r->kinds[GCKPT_BYTES_PARAMETERS], r->kinds[GCKPT_BYTES_STATE], gckpt_plan_arena(p),
            r->kinds[GCKPT_BYTES_GRADIENTS], r->kinds[GCKPT_BYTES_ACTIVATIONS],
            r->kinds[GCKPT_BYTES_WORKSPACE]);
    if (o.store != 0 && o.budget == 0)
        fprintf(session.out, "note   --store %s without --budget: the plan keeps what it unpacks\n",
                storage_names[o.store]);
    session_event("{\"event\":\"plan\",\"method\":\"%s\",\"bytes\":%zu,\"recompute\":%.9g,"
                  "\"checkpoint\":\"%s\",\"micro_batch\":%lld,\"trained\":%lld,\"parameters\":%lld,"
                  "\"budget\":%lld,\"parameter_bytes\":%zu,\"state_bytes\":%zu,"
                  "\"gradient_bytes\":%zu,\"activation_bytes\":%zu,\"workspace_bytes\":%zu}\n",
                  method, r->bytes, gckpt_plan_recompute(p), gckpt_mode_name(gckpt_plan_mode(p)),
                  (long long)t->micro, (long long)r->parameters, (long long)all,
                  (long long)o.budget, r->kinds[GCKPT_BYTES_PARAMETERS],
                  r->kinds[GCKPT_BYTES_STATE], r->kinds[GCKPT_BYTES_GRADIENTS],
                  r->kinds[GCKPT_BYTES_ACTIVATIONS], r->kinds[GCKPT_BYTES_WORKSPACE]);
}

/* One arena for training and evaluation, which take turns. */
static int make_execs(tuning *t)
{
    size_t bytes = 0;
    const gckpt_plan *p = t->plans[TRAINING];
    for (int i = 0; i < 2; i++)
        if (t->plans[i] != NULL && gckpt_plan_arena(t->plans[i]) > bytes)
            bytes = gckpt_plan_arena(t->plans[i]);
    const size_t total = gckpt_plan_bytes(p) - gckpt_plan_arena(p) + bytes;
    if (o.budget > 0 && total > (size_t)o.budget)
        return session_fail(1,
                            "--budget %lld: training fits, but evaluation needs %zu bytes; "
                            "--eval-every 0 goes without",
                            (long long)o.budget, total);
    t->arena_bytes = bytes + 64;
    t->arena = session_get(run.device, t->arena_bytes);
    if (t->arena == NULL)
        return session_fail(1, "out of memory: the step arena is %zu bytes", bytes);
    for (int i = 0; i < 2; i++) {
        gckpt_exec_desc e = { .arena =
                                  (unsigned char *)t->arena + (64 - (uintptr_t)t->arena % 64) % 64,
                              .debug = i == TRAINING ? GCKPT_DEBUG_MEASURE : 0,
                              .backend = run.device,
                              .skip_nonfinite = !gckpt_plan_in_backward(p) };
        e.arena_size = bytes;
        if (t->plans[i] != NULL &&
            (t->execs[i] = gckpt_exec_new(t->plans[i], t->store, &e)) == NULL)
            return session_fail(1, "%s", gckpt_error_text(t->store));
    }
    return 0;
}

static void free_execs(tuning *t)
{
    for (int i = 0; i < 2; i++) {
        gckpt_exec_free(t->execs[i]);
        t->execs[i] = NULL;
    }
    session_release(run.device, t->arena, t->arena_bytes);
    t->arena = NULL;
}

static void free_tuning(tuning *t)
{
    free_execs(t);
    for (int i = 0; i < 2; i++) {
        gckpt_plan_free(t->plans[i]);
        gckpt_graph_free(t->graphs[i]);
    }
    adapters_end(&t->adapters);
    gckpt_store_free(t->store);
    gckpt_store_free(t->notes);
    gpt2_close(&t->model);
}

/* ---- samples --------------------------------------------------------------------------------- */
static void show(const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n && tokens[i] != run.end; i++) {
        size_t size;
        const char *bytes = bpe_bytes(&run.tokenizer, tokens[i], &size);
        for (size_t k = 0; k < size; k++) {
            const int c = (unsigned char)bytes[k];
            fputc((c < 32 && c != '\n' && c != '\t') || c == 127 ? '?' : c, session.out);
        }
    }
    fputc('\n', session.out);
}

/* --sample, with nothing else in memory but the store. */
static int sample(tuning *t, const char *when)
{
    const gpt2_generator_desc desc = { .samples = o.samples,
                                       .threads = (int)o.threads,
                                       .backend = run.device,
                                       .hooks = &t->adapters.hooks };
    const sample_options how = { o.temperature, o.top_k, o.top_p, (uint64_t)o.seed };
    gpt2_generator g;
    bpe_tokens prompt = { 0 };
    int32_t *out = malloc((size_t)(o.samples * o.sample) * sizeof *out);
    int failed = out == NULL ? session_fail(1, "out of memory for samples") : 0;
    if (!failed && o.prompt != NULL && o.prompt[0] != 0)
        failed = bpe_encode(&run.tokenizer, o.prompt, strlen(o.prompt), 0, &prompt) != 0;
    else if (!failed)
        failed = dataset_push(&prompt, run.end >= 0 ? run.end : 0) != 0;
    if (prompt.error[0] != 0)
        session_fail(1, "--prompt: %s", prompt.error);
    if (!failed && gpt2_generator_new(&g, &t->model, t->store, &desc) != 0)
        failed = session_fail(1, "sampling: %s", t->model.error);
    else if (!failed) {
        const size_t needs = g.bytes;
        if (o.budget > 0 && needs > (size_t)o.budget)
            failed = session_fail(1,
                                  "--budget %lld: sampling needs %zu bytes; fewer --samples, or "
                                  "--sample 0, need less",
                                  (long long)o.budget, needs);
        int64_t n = failed ? 0
                           : gpt2_generate(&g, prompt.ids, (int64_t)prompt.count, &how, o.sample,
                                           run.end, out, NULL, NULL);
        failed = n < 0 ? session_fail(1, "sampling: %s", t->model.error) : failed;
        for (int64_t i = 0; i < o.samples && !failed; i++) {
            fprintf(session.out, "sample %s\n%s", when, o.prompt != NULL ? o.prompt : "");
            show(out + i * o.sample, n);
        }
        gpt2_generator_free(&g);
    }
    bpe_tokens_free(&prompt);
    free(out);
    return failed;
}

/* ---- evaluation and saving ------------------------------------------------------------------- */
/* The mean loss of a target, and the mean of the rows' means; 0 when interrupted. */
static int evaluate_part(tuning *t, const part *p, double *mean, double *of_means)
{
    const uint64_t most = o.eval_iters > 0 ? (uint64_t)(o.eval_iters * o.batch) : p->count;
    const uint64_t used = most < p->count ? most : p->count;
    double sum = 0, means = 0;
    int64_t count = 0, rows = 0;
    for (uint64_t i = 0; i < used && !session.interrupted; i++) {
        gckpt_feed feeds[2] = { { t->tokens, run.tokens }, { t->targets, run.targets } };
        gckpt_report report;
        dataset_row(p->data, p->first + i * p->count / used, run.T, run.tokens, run.targets);
        if (gckpt_forward(t->execs[EVALUATION], feeds, 2, 1, &report) != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(t->execs[EVALUATION]));
        sum += report.loss * (double)report.count;
        means += report.loss;
        count += report.count;
        rows += report.count > 0;
    }
    *mean = count > 0 && !session.interrupted ? sum / (double)count : 0;
    *of_means = rows > 0 ? means / (double)rows : 0;
    return 0;
}

static int evaluate(tuning *t, uint64_t step, double *loss)
{
    double of_means;
    if (evaluate_part(t, &run.valid, loss, &of_means) != 0)
        return 1;
    if (*loss == 0)
        return 0;
    if (run.valid.data->examples != NULL)
        session_say("step %llu: validation loss %.4f a token, mean of rows' means %.4f",
                    (unsigned long long)step, *loss, of_means);
    else
        session_say("step %llu: validation loss %.4f", (unsigned long long)step, *loss);
    session_event("{\"event\":\"eval\",\"step\":%llu,\"val_loss\":%.9g,\"mean_of_means\":%.9g}\n",
                  (unsigned long long)step, *loss, of_means);
    return 0;
}

static int evaluate_general(tuning *t, uint64_t step, double *loss)
{
    double of_means;
    if (run.other.count == 0)
        return 0;
    if (evaluate_part(t, &run.other, loss, &of_means) != 0)
        return 1;
    if (*loss == 0)
        return 0;
    session_say("step %llu: general loss %.4f", (unsigned long long)step, *loss);
    session_event("{\"event\":\"general\",\"step\":%llu,\"loss\":%.9g}\n", (unsigned long long)step,
                  *loss);
    return 0;
}

static size_t file_bytes(const char *folder, const char *name)
{
    char path[GPT2_PATH];
    struct stat is;
    return stat(join(path, sizeof path, folder, name), &is) == 0 ? (size_t)is.st_size : 0;
}

/* A copy of one of the tokenizer's files, where there is one. */
static int copy_file(gpt2_model *m, const char *from, const char *to, const char *name)
{
    char path[GPT2_PATH];
    unsigned char *bytes;
    size_t size;
    if (access(join(path, sizeof path, from, name), R_OK) != 0)
        return 0;
    if (session_read("model", path, &bytes, &size) != 0)
        return 1;
    FILE *f = gpt2_begin_file(m, path, to, name);
    if (f != NULL)
        fwrite(bytes, 1, size, f);
    free(bytes);
    return f == NULL || gpt2_end_file(m, f, path) != 0 ? session_fail(1, "--save: %s", m->error)
                                                       : 0;
}

static const char *saved_name(const tuning *t)
{
    return t->adapters.options.method == ADAPTERS_FULL ? "model.safetensors"
                                                       : "adapter_model.safetensors";
}

/* The model, or what the method added to it, for others to load. */
static int save_model(tuning *t)
{
    static const char *const files[] = { "vocab.json", "merges.txt", "tokenizer.json",
                                         "tokenizer_config.json", "special_tokens_map.json" };
    int failed = t->adapters.options.method == ADAPTERS_FULL
                     ? gpt2_save(&t->model, t->store, t->save, GCKPT_STORED_F32)
                     : adapters_save(&t->adapters, t->save, gckpt_store_note(t->notes, "base"));
    if (failed)
        return session_fail(1, "--save %s: %s", t->save, t->model.error);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (t->adapters.options.method == ADAPTERS_FULL &&
            copy_file(&t->model, o.model, t->save, files[i]) != 0)
            return 1;
    return 0;
}

static int note_real(tuning *t, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    if (gckpt_store_set_note(t->notes, key, text) == GCKPT_OK)
        return 0;
    return session_fail(1, "%s", gckpt_error_text(t->notes));
}

static double noted_real(const tuning *t, const char *key)
{
    const char *text = gckpt_store_note(t->notes, key);
    return text != NULL ? strtod(text, NULL) : 0;
}

/* All that the run needs to go on. */
static int save_training(tuning *t)
{
    char path[GPT2_PATH];
    const gckpt_file_desc desc = { .rename = trained_only, .user = t->store };
    if (session_note_number(t->notes, "skipped", t->skipped) != 0 ||
        session_note_number(t->notes, "position", t->position) != 0 ||
        note_real(t, "best", t->result.best) != 0 ||
        note_real(t, "before", t->result.before) != 0 ||
        note_real(t, "general", t->result.general_before) != 0)
        return 1;
    join(path, sizeof path, t->save, "training.safetensors");
    int failed = session_bring(t->store, t->notes, &options, other_notes);
    if (!failed && gckpt_store_save_as(t->store, path, &desc) != GCKPT_OK)
        failed = session_fail(1, "--save: %s: %s", path, gckpt_error_text(t->store));
    return session_bring(t->store, NULL, &options, other_notes) || failed;
}

/* After an evaluation (loss 0: there was none) or at the end. What is worse than the best, or may
 * be, is kept for --resume only. */
static int save(tuning *t, double loss)
{
    if (t->save == NULL)
        return 0;
    if (t->result.best == 0 || (loss > 0 && loss < t->result.best)) {
        t->result.best = loss;
        if (save_model(t) != 0)
            return 1;
    }
    return save_training(t);
}

/* ---- training -------------------------------------------------------------------------------- */
static void take_batch(const tuning *t)
{
    for (int64_t i = 0; i < o.batch; i++) {
        const uint64_t n = run.train.count, at = t->position + (uint64_t)i;
        const uint64_t row = o.in_order ? at % n : dataset_shuffled((uint64_t)o.seed, at, n);
        dataset_row(run.train.data, run.train.first + row, run.T, run.tokens + i * run.T,
                    run.targets + i * run.T);
    }
}

static void report_step(const tuning *t, const gckpt_report *r, double seconds)
{
    const double rate = (double)(o.batch * run.T) / seconds;
    session_event("{\"event\":\"step\",\"step\":%llu,\"loss\":%.9g,\"grad_norm\":%.9g,"
                  "\"targets\":%lld,\"seconds\":%.9g,\"tokens_per_second\":%.9g}\n",
                  (unsigned long long)r->step, r->loss, r->grad_norm, (long long)r->count, seconds,
                  rate);
    session_progress(r->step, (uint64_t)o.steps, r->loss, rate, t->result.bytes);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int train(tuning *t)
{
    enum { TIMES = 1024 };
    double times[TIMES], loss = 0;
    uint64_t step = gckpt_store_step(t->store), in_a_row = 0, timed = 0;
    gckpt_hyper hyper = { .weight_decay = (float)o.weight_decay, .clip = (float)o.clip };
    hyper.beta1 = o.beta1 > 0 ? (float)o.beta1 : -1; /* for the library 0 means "the usual" */
    hyper.beta2 = o.beta2 > 0 ? (float)o.beta2 : -1;
    session.first = step;
    session.start = session_now();
    int saved = 1; /* there is nothing new */
    while (step < (uint64_t)o.steps && !session.interrupted) {
        const double begin = session_now();
        gckpt_feed feeds[2] = { { t->tokens, run.tokens }, { t->targets, run.targets } };
        gckpt_report report;
        take_batch(t);
        hyper.lr = gckpt_lr_cosine(step, (uint64_t)o.warmup, (uint64_t)o.steps, (float)t->lr,
                                   (float)(o.min_lr >= 0 ? o.min_lr : t->lr));
        gckpt_result result = gckpt_step(t->execs[TRAINING], feeds, 2, o.batch, &hyper, &report);
        t->position += (uint64_t)o.batch;
        if (result == GCKPT_SKIPPED) { /* the next batch, then */
            t->skipped++;
            session_say("%s", gckpt_error_text(t->execs[TRAINING]));
            session_event("{\"event\":\"skip\",\"step\":%llu}\n", (unsigned long long)step);
            if (++in_a_row < MOST_SKIPPED)
                continue;
        } else if (result != GCKPT_OK) {
            return session_fail(1, "%s", gckpt_error_text(t->execs[TRAINING]));
        }
        if (report.loss - report.loss != 0 || report.grad_norm - report.grad_norm != 0)
            return session_fail(1,
                                "loss or gradient is not finite at step %llu: lower --lr or --clip",
                                (unsigned long long)step);
        if (report.count == 0)
            continue; /* no targets in these rows */
        in_a_row = 0;
        step = report.step;
        const double seconds = session_now() - begin;
        times[timed++ % TIMES] = seconds;
        report_step(t, &report, seconds);
        const int done = step == (uint64_t)o.steps;
        if (session.terminal && (done || session.interrupted))
            fputc('\n', session.out);
        saved = 0;
        loss = 0;
        if (o.eval_every > 0 && (done || step % (uint64_t)o.eval_every == 0)) {
            if (evaluate(t, step, &loss) != 0 || (loss > 0 && save(t, loss) != 0))
                return 1;
            saved = loss > 0;
        }
        if (!session_output_works()) {
            save(t, loss);
            return 1;
        }
    }
    const uint64_t kept = timed < TIMES ? timed : TIMES;
    qsort(times, (size_t)kept, sizeof times[0], by_size);
    t->result.seconds = kept > 0 ? times[kept / 2] : 0;
    t->result.after = loss;
    return saved ? 0 : save(t, 0);
}

/* ---- a method from beginning to end ---------------------------------------------------------- */
static int resume(tuning *t)
{
    const gckpt_file_desc desc = { .partial = 1 };
    gckpt_result result = gckpt_store_load_as(t->store, o.resume, &desc);
    if (result == GCKPT_OTHER_CONTRACT)
        fprintf(session.out, "note   %s\n", gckpt_error_text(t->store));
    else if (result != GCKPT_OK)
        return session_fail(1, "--resume %s: %s", o.resume, gckpt_error_text(t->store));
    if (session_bring(t->notes, t->store, &options, other_notes) != 0 ||
        session_bring(t->store, NULL, &options, other_notes) != 0)
        return 1;
    t->skipped = session_noted(t->notes, "skipped", 0);
    t->position = session_noted(t->notes, "position", 0);
    if (t->save != NULL && file_bytes(t->save, saved_name(t)) > 0) /* else the best is elsewhere */
        t->result.best = noted_real(t, "best");
    t->result.before = noted_real(t, "before");
    t->result.general_before = noted_real(t, "general");
    return 0;
}

static int draw(const gckpt_plan *plan)
{
    FILE *f = fopen(o.timeline, "w");
    int bad = f == NULL || pictures_plan(plan, session_write, f) != GCKPT_OK;
    if ((f != NULL && fclose(f) != 0) || bad)
        return session_fail(1, "--timeline %s: %s", o.timeline, strerror(errno));
    return 0;
}

/* What there was before the first step. */
static int begin(tuning *t)
{
    outcome *r = &t->result;
    if (o.resume != NULL || o.eval_every == 0)
        return 0;
    return evaluate(t, 0, &r->before) || evaluate_general(t, 0, &r->general_before);
}

/* Before, where that is known (a run may be resumed with more options), and after. */
static void say_losses(const char *of, double before, double after)
{
    if (after > 0 && before > 0)
        fprintf(session.out, "%s %.4f before, %.4f after (%+.4f)\n", of, before, after,
                after - before);
    else if (after > 0)
        fprintf(session.out, "%s %.4f after\n", of, after);
}

static int end(tuning *t, const char *method)
{
    outcome *r = &t->result;
    const uint64_t step = gckpt_store_step(t->store);
    const size_t measured = gckpt_bytes_measured(t->execs[TRAINING]);
    const int evaluates = o.eval_every > 0 && !session.interrupted;
    if (evaluates && r->after == 0 && evaluate(t, step, &r->after) != 0)
        return 1;
    if (evaluates && evaluate_general(t, step, &r->general_after) != 0)
        return 1;
    r->file = t->save != NULL ? file_bytes(t->save, saved_name(t)) : 0;
    const unsigned long long hash = gckpt_store_hash(t->store);
    fprintf(session.out, "end    %llu steps, %.1f s, ", (unsigned long long)step,
            session_now() - session.start);
    if (t->skipped > 0)
        fprintf(session.out, "%llu skipped, ", (unsigned long long)t->skipped);
    if (measured > 0)
        fprintf(session.out, "%zu bytes measured, ", measured);
    fprintf(session.out, "weights %016llx\n", hash);
    say_losses("loss  ", r->before, r->after);
    say_losses("general", r->general_before, r->general_after);
    if (session.interrupted && t->save != NULL && file_bytes(t->save, "training.safetensors") > 0)
        fprintf(session.out, "interrupted; --resume %s goes on\n", t->save);
    if (t->save != NULL && r->best > 0)
        fprintf(session.out, "saved  %s: what evaluated best, loss %.4f, %zu bytes\n", t->save,
                r->best, r->file);
    session_event("{\"event\":\"end\",\"method\":\"%s\",\"bytes_measured\":%zu,"
                  "\"weights_hash\":\"%016llx\",\"seconds_a_step\":%.9g,\"file_bytes\":%zu,"
                  "\"before\":%.9g,\"after\":%.9g,\"general_before\":%.9g,\"general_after\":%.9g,"
                  "\"skipped\":%llu}\n",
                  method, measured, hash, r->seconds, r->file, r->before, r->after,
                  r->general_before, r->general_after, (unsigned long long)t->skipped);
    return 0;
}

/* The model's path as it was given at first, what others find it by; and method and context, which
 * are not as they were given where all methods are compared. */
static int note_base(tuning *t, const char *method)
{
    if ((gckpt_store_note(t->notes, "base") != NULL ||
         gckpt_store_set_note(t->notes, "base", o.model) == GCKPT_OK) &&
        gckpt_store_set_note(t->notes, "option.method", method) == GCKPT_OK)
        return session_note_number(t->notes, "option.context", (uint64_t)run.T);
    return session_fail(1, "%s", gckpt_error_text(t->notes));
}

static int tune(adapters_method method, const char *folder, int argc, char **argv, outcome *result)
{
    tuning t = { .save = folder };
    int failed = load_model(&t, method) || (o.resume != NULL && resume(&t));
    if (!failed)
        failed = session_keep(t.notes, &options, not_kept, argc, argv) ||
                 note_base(&t, adapters_names[method]) ||
                 session_same_data(t.notes, "data", o.data, data_hash(),
                                   options_given(&options, argc, argv, "data") != NULL);
    failed = failed || make_plans(&t);
    if (!failed)
        report_plan(&t, adapters_names[t.adapters.options.method]);
    if (!failed && o.timeline != NULL)
        failed = draw(t.plans[TRAINING]);
    if (!failed && !o.plan) {
        failed = (folder != NULL && gpt2_folder(&t.model, folder) != 0)
                     ? session_fail(1, "--save: %s", t.model.error)
                     : 0;
        failed = failed || (o.sample > 0 && o.resume == NULL && sample(&t, "before"));
        failed = failed || make_execs(&t) || begin(&t) || train(&t) ||
                 end(&t, adapters_names[t.adapters.options.method]);
        free_execs(&t);
        failed = failed || (o.sample > 0 && !session.interrupted && sample(&t, "after"));
    }
    *result = t.result;
    free_tuning(&t);
    return failed;
}

/* ---- all methods ----------------------------------------------------------------------------- */
/* What each keeps, by kind. */
static int draw_methods(const outcome *all)
{
    static const char *const kinds[] = { "frozen weights", "trained weights", "optimiser state",
                                         "gradients",      "activations",     "workspace" };
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    size_t bytes[ADAPTERS_METHODS * KINDS];
    for (int i = 0; i < ADAPTERS_METHODS; i++) {
        const size_t *k = all[i].kinds, trained = 4 * (size_t)all[i].parameters;
        size_t *to = bytes + KINDS * i;
        to[0] = k[GCKPT_BYTES_PARAMETERS] > trained ? k[GCKPT_BYTES_PARAMETERS] - trained : 0;
        to[1] = trained;
        to[2] = k[GCKPT_BYTES_STATE];
        to[3] = k[GCKPT_BYTES_GRADIENTS];
        to[4] = k[GCKPT_BYTES_ACTIVATIONS];
        to[5] = k[GCKPT_BYTES_WORKSPACE];
    }
    FILE *f = fopen(o.picture, "w");
    int bad = f == NULL ||
              pictures_bars("What each method keeps in memory, by its plan", adapters_names,
                            ADAPTERS_METHODS, kinds, KINDS, bytes, session_write, f) != GCKPT_OK;
    if ((f != NULL && fclose(f) != 0) || bad)
        return session_fail(1, "--picture %s: %s", o.picture, strerror(errno));
    return 0;
}

static int compare(int argc, char **argv)
{
    outcome all[ADAPTERS_METHODS];
    int failed = 0;
    memset(all, 0, sizeof all);
    if (mkdir(o.save, 0777) != 0 && errno != EEXIST)
        return session_fail(1, "--save %s: %s", o.save, strerror(errno));
    for (int i = 0; i < ADAPTERS_METHODS && !failed && !session.interrupted; i++) {
        char folder[GPT2_PATH];
        failed = tune((adapters_method)i, join(folder, sizeof folder, o.save, adapters_names[i]),
                      argc, argv, &all[i]);
    }
    if (failed || session.interrupted)
        return failed;
    const int ran = !o.plan, evaluated = ran && o.eval_every > 0,
              general = ran && run.other.count > 0;
    fprintf(session.out, "\n| method | trained parameters | bytes |%s%s%s\n|---|--:|--:|%s%s%s\n",
            ran ? " a step | file |" : "", evaluated ? " loss before | after |" : "",
            general ? " general before | after |" : "", ran ? "--:|--:|" : "",
            evaluated ? "--:|--:|" : "", general ? "--:|--:|" : "");
    for (int i = 0; i < ADAPTERS_METHODS; i++) {
        const outcome *r = &all[i];
        fprintf(session.out, "| %s | %lld | %zu |", adapters_names[i], (long long)r->parameters,
                r->bytes);
        if (ran)
            fprintf(session.out, " %.3f s | %zu |", r->seconds, r->file);
        if (evaluated)
            fprintf(session.out, " %.4f | %.4f |", r->before, r->after);
        if (general)
            fprintf(session.out, " %.4f | %.4f |", r->general_before, r->general_after);
        fputc('\n', session.out);
    }
    return o.picture != NULL ? draw_methods(all) : 0;
}

/* ---- the program ----------------------------------------------------------------------------- */
/* The options of a file that is resumed; it is read again when the model is there. */
static const char *nothing(void *user, const char *name)
{
    (void)name;
    return (const char *)user;
}

static int restore_options(int argc, char **argv)
{
    static char folder[GPT2_PATH], path[GPT2_PATH];
    struct stat is;
    if (stat(o.resume, &is) == 0 && S_ISDIR(is.st_mode))
        o.resume = join(path, sizeof path, o.resume, "training.safetensors");
    const gckpt_file_desc notes = { .rename = nothing };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_result result = gckpt_store_load_as(store, o.resume, &notes);
    int status = result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT
                     ? session_restore(store, o.resume, &options, fixed, argc, argv)
                     : session_fail(1, "--resume %s: %s", o.resume, gckpt_error_text(store));
    gckpt_store_free(store);
    snprintf(folder, sizeof folder, "%s", o.resume);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = 0;
    if (o.save == NULL)
        o.save = slash != NULL ? folder : ".";
    return status;
}

/* Nothing that is written is an input or another output, and --save can be written to. */
static int try_outputs(void)
{
    char path[GPT2_PATH];
    const char *const events = o.json != NULL && strcmp(o.json, "-") != 0 ? o.json : NULL;
    const session_file files[] = { { "data", o.data, SESSION_READS, -1 },
                                   { "validation", o.validation, SESSION_READS, -1 },
                                   { "general", o.general, SESSION_READS, -1 },
                                   { "resume", o.resume, SESSION_READS, -1 },
                                   { "json", events, SESSION_WRITES, -1 },
                                   { "timeline", o.timeline, SESSION_WRITES, -1 },
                                   { "picture", o.picture, SESSION_WRITES, -1 } };
    struct stat model, is;
    if (o.save != NULL && !o.plan) {
        if (mkdir(o.save, 0777) != 0 && errno != EEXIST)
            return session_fail(1, "--save %s: %s", o.save, strerror(errno));
        if (stat(o.model, &model) == 0 && stat(o.save, &is) == 0 && model.st_dev == is.st_dev &&
            model.st_ino == is.st_ino)
            return session_fail(2, "--save %s: it is also --model; give another folder", o.save);
        join(path, sizeof path, o.save, "training.safetensors");
        if (session_try_save("save", path, stat(path, &is) == 0 ? &is : NULL) != 0)
            return 1;
    }
    return session_try_files(files, (int)(sizeof files / sizeof files[0]));
}

int main(int argc, char **argv)
{
    int status = session_start("finetune");
    if (status == 0)
        status = options_parse(&options, argc, argv);
    if (status == 0 && o.help)
        return print_help();
    if (status == 0 && o.resume != NULL)
        status = restore_options(argc, argv);
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = session_device(o.device, &run.device);
    if (status == 0)
        status = try_outputs();
    if (status == 0)
        status = session_open(o.json);
    if (status == 0 && o.new_model != NULL)
        status = make_model();
    if (status == 0 && o.data != NULL)
        status = load_data();
    if (status == 0 && o.data != NULL) {
        outcome result;
        status = o.method == ADAPTERS_METHODS
                     ? compare(argc, argv)
                     : tune((adapters_method)o.method, o.save, argc, argv, &result);
    }
    dataset_free(&run.data);
    dataset_free(&run.validation);
    dataset_free(&run.general);
    bpe_free(&run.tokenizer);
    free(run.tokens);
    free(run.targets);
    return session_end(status);
}
