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
#include "lm.h"
#include "tokenizer.h"

/* ---- options: those that gpt.c does not have, too -------------------------------------------- */
static struct {
    int64_t method, store, context, in_order, layers, size, hidden, rslora, bias, map;
    double alpha, lora_dropout;
    const char *model, *new_model, *general, *adapter, *targets, *ranks, *alphas, *picture;
} o;

static const char *const method_names[] = { "full",    "last",  "head",   "bias",   "added", "lora",
                                            "houlsby", "llama", "prefix", "prompt", "all",   NULL };
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
    { "data", OPTIONS_FILE, &lm.data, NULL, 0, 0, NULL,
      "what to learn: text (-: standard input), FILE.bin of 16-bit tokens, or FILE.jsonl of "
      "{\"prompt\": \"..\", \"answer\": \"..\"}, whose answers are learned" },
    { "validation", OPTIONS_FILE, &lm.validation, NULL, 0, 0, NULL,
      "what to evaluate with; not given: the last 10 % of --data" },
    { "general", OPTIONS_FILE, &o.general, NULL, 0, 0, NULL,
      "text of another kind: how much of it is forgotten" },
    { "save", OPTIONS_FILE, &lm.save, NULL, 0, 0, NULL,
      "folder for what evaluates best, and for training.safetensors, with which a run goes on" },
    { "resume", OPTIONS_FILE, &lm.resume, NULL, 0, 0, NULL,
      "go on from a training.safetensors, with its options but for those given now" },
    { "adapter", OPTIONS_FILE, &o.adapter, NULL, 0, 0, NULL,
      "folder with an adapter to begin with, of peft or from --save" },
    { "new", OPTIONS_TEXT, &o.new_model, NULL, 0, 0, NULL,
      "LAYERSxDIMxHEADSxCONTEXT[xVOCABULARY]: first make --model, new weights and a tokenizer of "
      "bytes; 12x768x12x1024x50257 has the size of gpt2" },
    { "store", OPTIONS_CHOICE, &o.store, "f32", 0, 0, storage_names,
      "how frozen matrices are kept; changes bytes and, a little, results" },
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
      "lora: modules, as in peft: c_attn,mlp.c_fc, or all-linear; not given: c_attn" },
    { "ranks", OPTIONS_TEXT, &o.ranks, NULL, 0, 0, NULL, "lora: ranks of some: mlp.c_fc=4" },
    { "alphas", OPTIONS_TEXT, &o.alphas, NULL, 0, 0, NULL, "lora: alphas of some" },
    { "bias", OPTIONS_CHOICE, &o.bias, "none", 0, 0, bias_names, "lora: biases trained, too" },
    { "hidden", OPTIONS_WHOLE, &o.hidden, "0", 0, 65536, NULL,
      "prefix: of an MLP that makes it in training; 0: none" },
    { "context", OPTIONS_WHOLE, &o.context, "0", 0, 1 << 20, NULL,
      "tokens T of a row; 0: what the model and the method leave, or the longest line of JSON" },
    { "lr", OPTIONS_REAL, &lm.lr, "0", 0, 10, NULL,
      "learning rate after the warm-up; 0: the method's, 5e-5 (full) to 3e-2 (prompt)" },
    { "in-order", OPTIONS_FLAG, &o.in_order, NULL, 0, 0, NULL,
      "rows as they stand in --data; else in each epoch in an order of its own" },
    { "eval-every", OPTIONS_WHOLE, &lm.eval_every, "50", 0, 1e12, NULL,
      "steps between evaluations; also before the first and behind the last; 0: none" },
    { "prompt", OPTIONS_TEXT, &lm.prompt, NULL, 0, 0, NULL,
      "text that samples continue, before and after; -: standard input; not given: the end of a "
      "text" },
    { "sample", OPTIONS_WHOLE, &lm.sample, "0", 0, 1e9, NULL,
      "tokens to generate; fewer where the model's context is full" },
    { "plan", OPTIONS_FLAG, &lm.plan, NULL, 0, 0, NULL, "print what the plan needs, and stop" },
    { "picture", OPTIONS_FILE, &o.picture, NULL, 0, 0, NULL,
      "with --method all: draw what each keeps in memory (SVG)" },
};
static const char *const usual[] = { "top-k", "40", NULL };
static const options_table options = { "finetune", allowed, sizeof allowed / sizeof allowed[0],
                                       16,         "WHICH", lm_rows,
                                       LM_ROWS,    usual };
/* Options that make what is trained, and those that are not kept in training.safetensors. */
static const char fixed[] =
    "method size layers alpha rslora targets ranks alphas bias hidden store";
static const char other_notes[] = "data base skipped position best before general "
                                  "rows.validation rows.general";
static const char not_kept[] = "resume save new json timeline picture plan help";

static int check_options(void)
{
    if (o.model == NULL)
        return session_fail(2,
                            "--model DIR is missing: a folder with a GPT-2, such as "
                            "huggingface.co/gpt2; --new 4x128x4x128 --model DIR makes a small one");
    if (lm.data == NULL && (o.new_model == NULL || lm.resume != NULL))
        return session_fail(2, "--data FILE is missing: what to learn");
    if (o.method == ADAPTERS_METHODS && (lm.save == NULL || lm.resume != NULL || o.adapter != NULL))
        return session_fail(2, lm.save == NULL
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
    if (o.picture != NULL && o.method != ADAPTERS_METHODS)
        return session_fail(2,
                            "--picture compares methods: it needs --method all; --timeline draws "
                            "one");
    return lm_check_options();
}

/* ---- the run: what all methods share --------------------------------------------------------- */
typedef struct { /* rows first, first + 1, .. of a data set */
    const dataset *data;
    uint64_t first, count;
} part;

static struct {
    bpe tokenizer;
    dataset data, validation, general;
    part train, valid, other; /* of T tokens; count 0: there are none */
    int32_t end;              /* of a text; -1: none */
    lm_run first;             /* what the runs of all methods begin with: device, feeds */
    uint64_t resumed_at;      /* step */
} run;

typedef struct { /* what came of a method: a row of the table */
    int64_t parameters;
    size_t bytes, file, kinds[GCKPT_BYTES_KINDS];
    double seconds; /* of a step, the median */
    double before, after, best, general_before, general_after;
} outcome; /* losses: 0 where there is none */

typedef struct {
    gckpt_store *notes; /* of training.safetensors, which other files do not get */
    gpt2_model model;
    adapters adapters;
    gpt2_options how;
    const char *save; /* folder; NULL: nothing is saved */
    int saved;        /* 1: what others load from there has the weights as they are now */
    lm_run run;
    outcome result;
} tuning;

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
    gckpt_store_desc desc = { .seed = (uint64_t)lm.seed };
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
    if (session_is_dash(path) && session_take_stdin(option) != 0)
        return 2;
    if (dataset_open(d, session_is_dash(path) ? "/dev/stdin" : path, &run.tokenizer,
                     (int32_t)m->config.vocabulary, run.end) != 0)
        return session_fail(1, "--%s: %s", option, d->error);
    if (d->replaced > 0)
        fprintf(session.out,
                "note   --%s: %zu byte%s no UTF-8, taken as U+FFFD: is it in another encoding?\n",
                option, d->replaced, d->replaced == 1 ? " is" : "s are");
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
    gpt2_close(&m);
    if (bpe_open(&run.tokenizer, o.model) != 0)
        return session_fail(1, "--model: %s", run.tokenizer.error);
    const bpe_added *end = bpe_find_added(&run.tokenizer, "<|endoftext|>");
    run.end = m.config.eos >= 0 ? (int32_t)m.config.eos : end != NULL ? end->id : -1;
    int status = open_data("data", lm.data, &m, &run.data);
    if (status == 0)
        status = open_data("validation", lm.validation, &m, &run.validation);
    if (status == 0)
        status = open_data("general", o.general, &m, &run.general);
    if (status != 0)
        return status;
    const int64_t room = m.config.context - positions_before();
    run.first.T = o.context > 0 ? o.context : room;
    int64_t longest = dataset_longest(&run.data);
    if (dataset_longest(&run.validation) > longest && longest > 0)
        longest = dataset_longest(&run.validation);
    if (o.context == 0 && longest > 0 && longest < room)
        run.first.T = longest; /* more would be padding */
    if (room < 1)
        return session_fail(2, "--size: the model has %lld positions: that leaves none for a text",
                            (long long)m.config.context);
    if (run.first.T < 1 || run.first.T > room)
        return session_fail(2,
                            "--context %lld: allowed is 1 to %lld: the model has %lld positions%s",
                            (long long)o.context, (long long)room, (long long)m.config.context,
                            room < m.config.context ? ", and the method takes some" : "");
    const uint64_t rows = dataset_rows(&run.data, run.first.T);
    const uint64_t tenth = lm.validation == NULL ? (rows + 9) / 10 : 0;
    const uint64_t held = lm.eval_every > 0 ? tenth : 0;
    const part train = { &run.data, 0, rows - held }, last = { &run.data, rows - tenth, tenth },
               own = { &run.validation, 0, dataset_rows(&run.validation, run.first.T) },
               other = { &run.general, 0, dataset_rows(&run.general, run.first.T) };
    run.train = train;
    run.valid = lm.validation != NULL ? own : last;
    run.other = other;
    if (train.count == 0 || (lm.eval_every > 0 && run.valid.count == 0))
        return session_fail(1,
                            "%s has %llu rows of %lld tokens, too few to learn from and to "
                            "evaluate with; a smaller --context makes more",
                            lm.data, (unsigned long long)rows, (long long)run.first.T);
    if (lm_make_batch(&run.first, run.first.T) != 0)
        return 1;
    const uint64_t cut = dataset_cut(&run.data, run.first.T);
    fprintf(session.out,
            "data   %s: %zu token%s, %llu row%s of %lld, %llu of them to evaluate with\n",
            session_is_dash(lm.data) ? "standard input" : lm.data, run.data.all.count,
            session_s((int64_t)run.data.all.count), (unsigned long long)rows,
            session_s((int64_t)rows), (long long)run.first.T, (unsigned long long)held);
    if (cut > 0)
        fprintf(session.out,
                "note   %llu row%s longer and lose%s the beginning of the prompt, then the end of "
                "the answer\n",
                (unsigned long long)cut, cut == 1 ? " is" : "s are", cut == 1 ? "s" : "");
    return 0;
}

static uint64_t data_hash(void)
{
    uint64_t h =
        session_hash(14695981039346656037u, run.data.all.ids, run.data.all.count * sizeof(int32_t));
    return session_hash(h, run.data.examples, run.data.count * sizeof(dataset_example));
}

/* Rows of a part that an evaluation reads, spread evenly. */
static uint64_t part_used(const part *p)
{
    const uint64_t most = lm.eval_iters > 0 ? (uint64_t)(lm.eval_iters * lm.batch) : p->count;
    return most < p->count ? most : p->count;
}

static void part_row(const part *p, uint64_t i, const lm_run *r)
{
    dataset_row(p->data, p->first + i * p->count / part_used(p), r->T, r->tokens, r->targets);
}

/* What a loss of an evaluation is of: it compares with losses of the same rows only. */
static uint64_t part_hash(const part *p)
{
    const lm_run *r = &run.first;
    const size_t bytes = (size_t)r->T * sizeof(int32_t);
    uint64_t h = session_hash(14695981039346656037u, &lm.precision, sizeof lm.precision);
    for (uint64_t i = 0; i < part_used(p); i++) {
        part_row(p, i, r);
        h = session_hash(session_hash(h, r->tokens, bytes), r->targets, bytes);
    }
    return h;
}

/* ---- a method: loading and planning ---------------------------------------------------------- */
static int with_loss(gckpt_graph *g, int64_t rows, gckpt_term *term, void *user)
{
    lm_model *m = (lm_model *)user;
    tuning *t = (tuning *)m->user;
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, t->run.T));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, t->run.T));
    term->loss = gpt2_loss(&t->model, gpt2_hidden(&t->model, tokens, &t->how), targets);
    term->weight = 1;
    m->feeds[0].input = gckpt_id(tokens);
    m->feeds[1].input = gckpt_id(targets);
    return 1;
}

/* Of the folders of a model and, or NULL: a new one, of an adapter. */
static int load_model(tuning *t, adapters_method method, const char *model, const char *adapter)
{
    const gckpt_store_desc desc = { .seed = (uint64_t)lm.seed };
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
    t->run.store = gckpt_store_new(&desc);
    t->notes = gckpt_store_new(NULL);
    if (t->run.store == NULL || t->notes == NULL)
        return session_fail(1, "out of memory");
    if (gpt2_load(&t->model, t->run.store, model, &source) != 0)
        return session_fail(1, "--model: %s", t->model.error);
    int failed = adapter != NULL ? adapters_load(&t->adapters, &t->model, t->run.store, adapter)
                                 : adapters_begin(&t->adapters, &t->model, t->run.store, &wanted);
    if (!failed && t->adapters.options.method != method)
        failed = gpt2_fail(&t->model, "--adapter %s: it is of --method %s", adapter,
                           adapters_names[t->adapters.options.method]);
    t->how.hooks = &t->adapters.hooks;
    t->how.dropout = lm.dropout;
    t->run.lr = lm.lr > 0 ? lm.lr : usual_lr[method];
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
    gckpt_plan_desc desc = lm_desc(&t->run, LM_EVALUATION);
    desc.batch = 1; /* row by row: the mean of their means is wanted, too */
    t->run.models[LM_TRAINING].user = t->run.models[LM_EVALUATION].user = t;
    if (lm_plan_training(&t->run, with_loss, NULL) != 0)
        return 1;
    return lm.eval_every > 0 ? lm_plan(&t->run, LM_EVALUATION, with_loss, 1, &desc) : 0;
}

static void report_plan(tuning *t, const char *method)
{
    const gckpt_plan *p = t->run.models[LM_TRAINING].plan;
    const int64_t all = lm_parameters(t->run.store);
    outcome *r = &t->result;
    r->parameters = adapters_trainable(t->run.store);
    r->bytes = gckpt_plan_bytes(p);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        r->kinds[i] = gckpt_plan_kind_bytes(p, i);
    fprintf(session.out, "method %s: trains %lld of %lld parameters (%.3g %%), lr %g\n", method,
            (long long)r->parameters, (long long)all, 100 * (double)r->parameters / (double)all,
            t->run.lr);
    lm_report_plan(&t->run);
    session_event(",\"method\":\"%s\",\"trained\":%lld}\n", method, (long long)r->parameters);
}

static void free_tuning(tuning *t)
{
    lm_free(&t->run);
    adapters_end(&t->adapters);
    gckpt_store_free(t->run.store);
    gckpt_store_free(t->notes);
    gpt2_close(&t->model);
}

/* ---- samples --------------------------------------------------------------------------------- */
static void show(const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n && tokens[i] != run.end; i++) {
        size_t size;
        const char *bytes = bpe_bytes(&run.tokenizer, tokens[i], &size);
        for (size_t k = 0; k < size; k++)
            lm_show_byte((unsigned char)bytes[k]);
    }
    fputc('\n', session.out);
}

static int stop(void *user, int64_t at, const int32_t *tokens)
{
    return (void)user, (void)at, (void)tokens, session.interrupted != 0;
}

/* --sample, with nothing else in memory but the store. */
static int sample(tuning *t, const char *when)
{
    const gpt2_generator_desc desc = { .samples = lm.samples,
                                       .threads = (int)lm.threads,
                                       .backend = run.first.device,
                                       .hooks = &t->adapters.hooks };
    const sample_options how = { lm.temperature, lm.top_k, lm.top_p, (uint64_t)lm.seed };
    gpt2_generator g;
    bpe_tokens prompt = { 0 };
    int32_t *out = malloc((size_t)(lm.samples * lm.sample) * sizeof *out);
    int failed = out == NULL ? session_fail(1, "out of memory for samples") : 0;
    if (!failed && lm.prompt != NULL && lm.prompt[0] != 0)
        failed = bpe_encode(&run.tokenizer, lm.prompt, strlen(lm.prompt), 0, &prompt) != 0;
    else if (!failed)
        failed = dataset_push(&prompt, run.end >= 0 ? run.end : 0) != 0;
    if (prompt.error[0] != 0)
        session_fail(1, "--prompt: %s", prompt.error);
    if (!failed && gpt2_generator_new(&g, &t->model, t->run.store, &desc) != 0)
        failed = session_fail(1, "sampling: %s", t->model.error);
    else if (!failed) {
        const size_t needs = g.bytes;
        if (lm.budget > 0 && needs > (size_t)lm.budget)
            failed = session_fail(1,
                                  "--budget %lld: sampling needs %zu bytes; fewer --samples, or "
                                  "--sample 0, need less",
                                  (long long)lm.budget, needs);
        int64_t n = failed ? 0
                           : gpt2_generate(&g, prompt.ids, (int64_t)prompt.count, &how, lm.sample,
                                           run.end, out, stop, NULL);
        failed = n < 0 ? session_fail(1, "sampling: %s", t->model.error) : failed;
        for (int64_t i = 0; i < lm.samples && !failed; i++) {
            fprintf(session.out, "sample %s\n%s", when, lm.prompt != NULL ? lm.prompt : "");
            show(out + i * lm.sample, n);
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
    const uint64_t used = part_used(p);
    const lm_run *r = &t->run;
    const lm_model *m = &r->models[LM_EVALUATION];
    double sum = 0, means = 0;
    int64_t count = 0, rows = 0;
    for (uint64_t i = 0; i < used && !session.interrupted; i++) {
        const gckpt_feed feeds[2] = { { m->feeds[0].input, r->tokens },
                                      { m->feeds[1].input, r->targets } };
        gckpt_report report;
        part_row(p, i, r);
        const gckpt_result result = gckpt_forward(m->exec, feeds, 2, 1, &report);
        if (result == GCKPT_CANCELLED)
            break;
        if (result != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(m->exec));
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
    char also[64];
    if (evaluate_part(t, &run.valid, loss, &of_means) != 0)
        return 1;
    if (*loss == 0)
        return 0;
    if (run.valid.data->examples != NULL)
        session_say("step %llu: validation loss %.4f a token, mean of rows' means %.4f",
                    (unsigned long long)step, *loss, of_means);
    else
        session_say("step %llu: validation loss %.4f", (unsigned long long)step, *loss);
    snprintf(also, sizeof also, ",\"mean_of_means\":%.9g", of_means);
    lm_report_eval(step, *loss, also);
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
    static const char *const files[] = { "vocab.json",
                                         "merges.txt",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "generation_config.json" };
    int failed = t->adapters.options.method == ADAPTERS_FULL
                     ? gpt2_save(&t->model, t->run.store, t->save, GCKPT_STORED_F32)
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
    const gckpt_file_desc desc = { .rename = trained_only, .user = t->run.store };
    if (session_note_number(t->notes, "skipped", t->run.skipped) != 0 ||
        session_note_number(t->notes, "position", t->run.position) != 0 ||
        note_real(t, "best", t->result.best) != 0 ||
        note_real(t, "before", t->result.before) != 0 ||
        note_real(t, "general", t->result.general_before) != 0)
        return 1;
    join(path, sizeof path, t->save, "training.safetensors");
    int failed = session_bring(t->run.store, t->notes, &options, other_notes);
    if (!failed && gckpt_store_save_as(t->run.store, path, &desc) != GCKPT_OK)
        failed = session_fail(1, "--save: %s: %s", path, gckpt_error_text(t->run.store));
    return session_bring(t->run.store, NULL, &options, other_notes) || failed;
}

/* After an evaluation (loss 0: there was none) or at the end. What is worse than the best, or may
 * be, is kept for --resume only: also where the best of before counts no longer, until there is
 * another. */
static int save(tuning *t, double loss)
{
    if (t->save == NULL)
        return 0;
    const double best = t->result.best;
    const int waits =
        lm.resume != NULL && lm.eval_every > 0 && file_bytes(t->save, saved_name(t)) > 0;
    if (loss > 0 ? best == 0 || loss < best : best == 0 && !waits) {
        t->result.best = loss;
        if (save_model(t) != 0)
            return 1;
        t->saved = 1;
    }
    return save_training(t);
}

/* ---- training -------------------------------------------------------------------------------- */
static void put_batch(lm_run *r, uint64_t step)
{
    (void)step; /* rows follow each other, also those of steps without targets */
    ((tuning *)r->user)->result.after = 0;
    ((tuning *)r->user)->saved = 0;
    for (int64_t i = 0; i < lm.batch; i++) {
        const uint64_t n = run.train.count, at = r->position + (uint64_t)i;
        const uint64_t row = o.in_order ? at % n : dataset_shuffled((uint64_t)lm.seed, at, n);
        dataset_row(run.train.data, run.train.first + row, r->T, r->tokens + i * r->T,
                    r->targets + i * r->T);
    }
}

static int save_now(lm_run *r)
{
    r->saved = 1;
    return save((tuning *)r->user, 0);
}

static int evaluate_now(lm_run *r, uint64_t step)
{
    tuning *t = (tuning *)r->user;
    if (evaluate(t, step, &t->result.after) != 0)
        return 1;
    r->saved = t->result.after > 0;
    return r->saved ? save(t, t->result.after) : 0;
}

/* ---- a method from beginning to end ---------------------------------------------------------- */
/* 1: what a loss is of, now `hash`, is not what it was, by the note; where an older version wrote
 * none, by what is given now. */
static int is_other(tuning *t, const char *key, uint64_t hash, const char *options_too, int argc,
                    char **argv)
{
    char text[24];
    const char *note = gckpt_store_note(t->notes, key);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    int other = note != NULL && strcmp(note, text) != 0;
    for (int i = 0; i < options_count(&options) && note == NULL; i++)
        other |= session_among(options_too, options_at(&options, i)->name) &&
                 options_given(&options, argc, argv, options_at(&options, i)->name) != NULL;
    return other;
}

/* Losses that can still be compared with. */
static void restore_losses(tuning *t, int argc, char **argv)
{
    outcome *r = &t->result;
    if (t->save != NULL && file_bytes(t->save, saved_name(t)) > 0) /* else the best is elsewhere */
        r->best = noted_real(t, "best");
    r->before = noted_real(t, "before");
    r->general_before = noted_real(t, "general");
    if (is_other(t, "rows.general", part_hash(&run.other), "general context eval-iters batch bf16",
                 argc, argv))
        r->general_before = 0;
    if (!is_other(t, "rows.validation", part_hash(&run.valid),
                  "data validation context eval-iters batch bf16", argc, argv))
        return;
    if (r->best > 0)
        fprintf(session.out,
                "note   what validates has changed: the best so far, loss %.4f, no longer counts\n",
                r->best);
    r->best = r->before = 0;
}

static int resume(tuning *t, int argc, char **argv)
{
    const gckpt_file_desc desc = { .partial = 1 };
    gckpt_result result = gckpt_store_load_as(t->run.store, lm.resume, &desc);
    if (result == GCKPT_OTHER_CONTRACT)
        fprintf(session.out, "note   %s\n", gckpt_error_text(t->run.store));
    else if (result != GCKPT_OK)
        return session_fail(1, "--resume %s: %s", lm.resume, gckpt_error_text(t->run.store));
    if (session_bring(t->notes, t->run.store, &options, other_notes) != 0 ||
        session_bring(t->run.store, NULL, &options, other_notes) != 0)
        return 1;
    t->run.skipped = session_noted(t->notes, "skipped", 0);
    t->run.position = session_noted(t->notes, "position", 0);
    restore_losses(t, argc, argv);
    return 0;
}

/* What there was before the first step. */
static int begin(tuning *t)
{
    outcome *r = &t->result;
    if (lm.resume != NULL || lm.eval_every == 0)
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

static int train(tuning *t)
{
    t->run.user = t;
    t->run.batch = put_batch;
    t->run.evaluate = evaluate_now;
    t->run.save = save_now;
    return lm_train(&t->run);
}

static int end(tuning *t, const char *method)
{
    outcome *r = &t->result;
    const uint64_t step = gckpt_store_step(t->run.store);
    const int evaluates = lm.eval_every > 0 && !session.interrupted;
    r->seconds = t->run.seconds;
    if (evaluates && r->after == 0 && evaluate(t, step, &r->after) != 0)
        return 1;
    if (evaluates && evaluate_general(t, step, &r->general_after) != 0)
        return 1;
    r->file = t->save != NULL ? file_bytes(t->save, saved_name(t)) : 0;
    lm_report_end(&t->run);
    say_losses("loss  ", r->before, r->after);
    say_losses("general", r->general_before, r->general_after);
    if (t->save != NULL && r->best > 0)
        fprintf(session.out, "saved  %s: what evaluated best, loss %.4f, %zu bytes\n", t->save,
                r->best, r->file);
    else if (t->save != NULL && t->saved)
        fprintf(session.out, "saved  %s: the last step's, %zu bytes\n", t->save, r->file);
    session_event(",\"method\":\"%s\",\"seconds_a_step\":%.9g,\"file_bytes\":%zu,"
                  "\"before\":%.9g,\"after\":%.9g,\"general_before\":%.9g,"
                  "\"general_after\":%.9g}\n",
                  method, r->seconds, r->file, r->before, r->after, r->general_before,
                  r->general_after);
    return 0;
}

/* The model's path as it was given at first, what others find it by; method and context, which are
 * not as they were given where all methods are compared; what losses are of. */
static int note_base(tuning *t, const char *method)
{
    if ((gckpt_store_note(t->notes, "base") != NULL ||
         gckpt_store_set_note(t->notes, "base", o.model) == GCKPT_OK) &&
        gckpt_store_set_note(t->notes, "option.method", method) == GCKPT_OK)
        return session_note_number(t->notes, "option.context", (uint64_t)run.first.T) ||
               session_same_data(t->notes, "rows.validation", NULL, part_hash(&run.valid), 1) ||
               session_same_data(t->notes, "rows.general", NULL, part_hash(&run.other), 1);
    return session_fail(1, "%s", gckpt_error_text(t->notes));
}

/* Samples of what was saved: where that is not what the last step left, it is loaded. */
static int sample_after(tuning *t)
{
    const char *folder = t->save;
    const adapters_method method = t->adapters.options.method;
    const int full = method == ADAPTERS_FULL;
    if (t->saved || folder == NULL || file_bytes(folder, saved_name(t)) == 0)
        return sample(t, "after");
    const tuning fresh = { .run = run.first };
    free_tuning(t);
    *t = fresh;
    fprintf(session.out, "note   samples are of what was saved, not of the last step\n");
    return load_model(t, method, full ? folder : o.model, full ? NULL : folder) ||
           sample(t, "after");
}

static int tune(adapters_method method, const char *folder, int argc, char **argv, outcome *result)
{
    tuning t = { .save = folder, .run = run.first };
    int failed =
        load_model(&t, method, o.model, o.adapter) || (lm.resume != NULL && resume(&t, argc, argv));
    if (!failed)
        failed = session_keep(t.notes, &options, not_kept, argc, argv) ||
                 note_base(&t, adapters_names[method]) ||
                 session_same_data(t.notes, "data", lm.data, data_hash(),
                                   options_given(&options, argc, argv, "data") != NULL);
    failed = failed || make_plans(&t);
    if (!failed)
        report_plan(&t, adapters_names[t.adapters.options.method]);
    if (!failed && lm.timeline != NULL)
        failed = lm_draw_plan(t.run.models[LM_TRAINING].plan);
    if (!failed && !lm.plan) {
        failed = (folder != NULL && gpt2_folder(&t.model, folder) != 0)
                     ? session_fail(1, "--save: %s", t.model.error)
                     : 0;
        failed = failed || (lm.sample > 0 && lm.resume == NULL && sample(&t, "before"));
        failed = failed || lm_execs(&t.run) || begin(&t) || train(&t) ||
                 end(&t, adapters_names[t.adapters.options.method]);
        lm_free_execs(&t.run);
    }
    *result = t.result;
    if (!failed && !lm.plan && lm.sample > 0 && !session.interrupted)
        failed = sample_after(&t);
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
    if (mkdir(lm.save, 0777) != 0 && errno != EEXIST)
        return session_fail(1, "--save %s: %s", lm.save, strerror(errno));
    for (int i = 0; i < ADAPTERS_METHODS && !failed && !session.interrupted; i++) {
        char folder[GPT2_PATH];
        failed = tune((adapters_method)i, join(folder, sizeof folder, lm.save, adapters_names[i]),
                      argc, argv, &all[i]);
    }
    if (failed || session.interrupted)
        return failed;
    const int ran = !lm.plan, evaluated = ran && lm.eval_every > 0,
              general = evaluated && run.other.count > 0;
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
    if (stat(lm.resume, &is) == 0 && S_ISDIR(is.st_mode))
        lm.resume = join(path, sizeof path, lm.resume, "training.safetensors");
    const gckpt_file_desc notes = { .rename = nothing };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_result result = gckpt_store_load_as(store, lm.resume, &notes);
    int status = result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT
                     ? session_restore(store, lm.resume, &options, fixed, argc, argv)
                     : session_fail(1, "--resume %s: %s", lm.resume, gckpt_error_text(store));
    run.resumed_at = gckpt_store_step(store);
    gckpt_store_free(store);
    snprintf(folder, sizeof folder, "%s", lm.resume);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = 0;
    if (lm.save == NULL)
        lm.save = slash != NULL ? folder : ".";
    return status;
}

/* Nothing that is written is an input or another output, and --save can be written to. */
static int try_outputs(void)
{
    char path[GPT2_PATH];
    const session_file own[] = { { "general", o.general, SESSION_READS, -1 },
                                 { "picture", o.picture, SESSION_WRITES, -1 } };
    struct stat model, is;
    if (lm.save != NULL && !lm.plan) {
        if (mkdir(lm.save, 0777) != 0 && errno != EEXIST)
            return session_fail(1, "--save %s: %s", lm.save, strerror(errno));
        if (stat(o.model, &model) == 0 && stat(lm.save, &is) == 0 && model.st_dev == is.st_dev &&
            model.st_ino == is.st_ino)
            return session_fail(2, "--save %s: it is also --model; give another folder", lm.save);
        join(path, sizeof path, lm.save, "training.safetensors");
        if (session_try_save("save", path, stat(path, &is) == 0 ? &is : NULL) != 0)
            return 1;
    }
    return lm_try_outputs(lm.data, own, 2);
}

int main(int argc, char **argv)
{
    int status = lm_start("finetune");
    if (status == 0)
        status = options_parse(&options, argc, argv);
    if (status == 0 && lm.help)
        return lm_print_help(&options,
                             "fine-tunes a GPT-2 in Hugging Face's format inside a byte budget");
    if (status == 0 && lm.resume != NULL)
        status = restore_options(argc, argv);
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = session_device(lm.device, &run.first.device);
    if (status == 0)
        status = try_outputs();
    if (status == 0)
        status = session_open(lm.json, &options, run.resumed_at);
    if (status == 0 && o.new_model != NULL)
        status = make_model();
    if (status == 0 && lm.data != NULL)
        status = load_data();
    if (status == 0 && lm.data != NULL) {
        outcome result;
        status = o.method == ADAPTERS_METHODS
                     ? compare(argc, argv)
                     : tune((adapters_method)o.method, lm.save, argc, argv, &result);
    }
    dataset_free(&run.data);
    dataset_free(&run.validation);
    dataset_free(&run.general);
    bpe_free(&run.tokenizer);
    free(run.first.tokens);
    free(run.first.targets);
    return session_end(status);
}
