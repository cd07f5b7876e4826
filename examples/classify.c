/* classify.c - trains classifiers of texts, of pairs of texts and of words, and embeddings, from Hugging
 * Face folders or GGUF files within a memory budget; evaluates them; and classifies or embeds the lines of a file.
 *
 *     build/classify --model bert --task classify --data reviews.jsonl --budget 900M --save tuned
 *     build/classify --model tuned --task classify --predict lines.txt
 *
 * Saved folders load in transformers and peft, those of embeddings in sentence-transformers. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"

#include "adapters.h"
#include "dataset.h"
#include "model_files.h"
#include "session.h"
#include "train.h"

/* ---- options --------------------------------------------------------------------------------- */
enum { METHOD_FULL, METHOD_LORA, METHOD_LAST, METHOD_HEAD };
enum { POOL_AUTO, POOL_MEAN, POOL_CLS };
enum { TASK_CLASSIFY, TASK_TOKENS, TASK_EMBED, TASK_SCORE };
static const char *const task_names[] = { "classify", "tokens", "embed", "score", NULL };
static const char *const method_names[] = { "full", "lora", "last", "head", NULL };
/* in the order of gckpt_storage */
static const char *const storage_names[] = { "f32", "bf16", "f16", "int8", "int4", NULL };
static const char *const pooling_names[] = { "auto", "mean", "cls", NULL };
static struct {
    const char *model, *adapter, *data, *validation, *save, *predict, *targets, *log, *checkpoint;
    const char *fields, *keys[3]; /* keys: in --data, of a text, its pair (or NULL) and the label */
    int64_t task, method, store, pooling, eval, new_head, rank, batch, micro_batch, epochs, warmup,
        seed;
    int64_t threads, budget, length, merge, help;
    double lr, weight_decay, clip, dropout, alpha, scale;
} o;

static const options_desc option_descs[] = {
    { "model", OPTIONS_PATH, &o.model, NULL, 0, 0, NULL,
      "Hugging Face folder or FILE.gguf: bert, roberta, xlm-roberta, distilbert, mpnet (no GGUF) or "
      "modernbert; or, for classify and score, a decoder that build/finetune reads" },
    { "task", OPTIONS_CHOICE, &o.task, "classify", 0, 0, task_names,
      "a class for each text, a class for each word, a vector for each text, or a number for each "
      "text; classify and score also take pairs of texts" },
    { "adapter", OPTIONS_FOLDER, &o.adapter, NULL, 0, 0, NULL,
      "LoRA adapter of the model, written by --save or peft" },
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL,
      "JSON lines to train on: {\"text\", \"label\"} or {\"text\", \"pair\", \"label\"}, {\"tokens\": "
      "[..], \"tags\": [..]} or {\"anchor\", \"positive\"}, by --task" },
    { "fields", OPTIONS_TEXT, &o.fields, NULL, 0, 0, NULL,
      "names of keys in --data: text=question,pair=passage,label=relevant; pairs named as in GLUE "
      "(sentence1, premise, question, ..) need none" },
    { "validation", OPTIONS_FILE, &o.validation, NULL, 0, 0, NULL,
      "lines of the same form that only validate; default: the last 10 % of --data" },
    { "save", OPTIONS_FOLDER, &o.save, NULL, 0, 0, NULL,
      "folder for the weights of the best epoch: an adapter for lora, otherwise a model" },
    { "merge", OPTIONS_FLAG, &o.merge, NULL, 0, 0, NULL,
      "with lora, --save writes a whole model with the adapter added to its weights" },
    { "eval", OPTIONS_FLAG, &o.eval, NULL, 0, 0, NULL, "only evaluate --data" },
    { "predict", OPTIONS_FILE, &o.predict, NULL, 0, 0, NULL,
      "print a JSON object for each line of FILE: its class or number, the tags of its words, or its "
      "vector (of length 1); a tab separates the texts of a pair" },
    { "method", OPTIONS_CHOICE, &o.method, "full", 0, 0, method_names,
      "what is trained: all weights; low-rank adapters and the head; the last block and the head; "
      "or the head" },
    { "store", OPTIONS_CHOICE, &o.store, "f32", 0, 0, storage_names,
      "storage of frozen matrices: int8 changes results slightly, int4 clearly" },
    { "new-head", OPTIONS_FLAG, &o.new_head, NULL, 0, 0, NULL,
      "replace the model's classifier by a new one, for the classes of --data" },
    { "pooling", OPTIONS_CHOICE, &o.pooling, "auto", 0, 0, pooling_names,
      "vector of a text: the mean of its tokens, or its first token; auto reads the folder's "
      "1_Pooling or the GGUF's key, else takes the mean" },
    { "scale", OPTIONS_REAL, &o.scale, "20", 0.01, 1e4, NULL,
      "embed: factor of the cosines in the loss, as in MultipleNegativesRankingLoss" },
    { "rank", OPTIONS_INT, &o.rank, "8", 1, 4096, NULL, "LoRA's rank" },
    { "alpha", OPTIONS_REAL, &o.alpha, "16", 0.001, 1e6, NULL, "LoRA's alpha" },
    { "targets", OPTIONS_TEXT, &o.targets, NULL, 0, 0, NULL,
      "LoRA: names of layers, or all-linear; default: queries and values" },
    OPTIONS_BUDGET(o),
    { "length", OPTIONS_INT, &o.length, "0", 0, 1 << 20, NULL,
      "longest row in tokens; longer texts lose their end; 0 takes max_seq_length of "
      "sentence_bert_config.json, else 512" },
    OPTIONS_BATCH(o),
    { "micro-batch", OPTIONS_INT, &o.micro_batch, "0", 0, 1 << 16, NULL,
      "rows per pass, a divisor of --batch; 0 takes the fastest that fits the budget; not for embed, "
      "whose loss compares all rows of a batch" },
    { "epochs", OPTIONS_INT, &o.epochs, "3", 1, 1e6, NULL, "passes over the data" },
    { "lr", OPTIONS_REAL, &o.lr, "0", 0, 10, NULL,
      "learning rate of the first step; it falls linearly to 0; 0 takes 5e-5 for full and last, "
      "3e-4 for lora, 1e-3 for head" },
    OPTIONS_WARMUP(o),
    OPTIONS_WEIGHT_DECAY(o),
    OPTIONS_CLIP(o),
    OPTIONS_DROPOUT(o),
    OPTIONS_SEED(o),
    OPTIONS_THREADS(o),
    { "log", OPTIONS_FILE, &o.log, NULL, 0, 0, NULL, "CSV file with a line for each epoch" },
    { "checkpoint", OPTIONS_FILE, &o.checkpoint, NULL, 0, 0, NULL,
      "file that is written after each epoch; if it exists, the training continues from it" },
    OPTIONS_HELP(o),
};
static const char *const defaults[] = { "batch", "16", "warmup", "0", NULL };
static const options_table options = {
    "classify", option_descs, sizeof option_descs / sizeof option_descs[0], 14, "NAME", NULL,
    0,          defaults
};
static const char *const groups[] = {
    "Model and task",
    "model task adapter pooling new-head",
    "Data and results",
    "data validation fields eval predict save merge log checkpoint",
    "Training",
    "method rank alpha targets store scale budget batch micro-batch epochs lr warmup "
    "weight-decay clip dropout length seed threads",
    NULL
};

enum { KEY_TEXT, KEY_PAIR, KEY_LABEL };

/* Reads --fields into o.keys. */
static int read_fields(void)
{
    static const char *const keys[] = { "text", "pair", "label", NULL };
    static char names[3][128];
    if (o.fields != NULL && !dataset_fields_in(o.fields, keys))
        return session_fail(
            2, "--fields %s: expected KEY=NAME,.., where KEY is text, pair or label", o.fields);
    for (int i = 0; i < 3; i++)
        o.keys[i] = i == KEY_LABEL ? dataset_name(o.fields, keys[i], names[i])
                                   : dataset_field(o.fields, keys[i], names[i]);
    return 0;
}

/* Checks paths before anything is computed, so that no result is lost and no input overwritten. */
static int check_files(void)
{
    char name[MODEL_PATH];
    struct stat saved, model;
    const int exists = o.save != NULL && stat(o.save, &saved) == 0;
    const session_file files[] = { { "data", o.data, SESSION_READS, -1 },
                                   { "validation", o.validation, SESSION_READS, -1 },
                                   { "predict", o.predict, SESSION_READS, -1 },
                                   { "log", o.log, SESSION_WRITES, -1 },
                                   { "checkpoint", o.checkpoint, SESSION_SAVES, -1 } };
    if (model_check_source("model", o.model) || model_check_source("adapter", o.adapter) ||
        session_check_files(files, sizeof files / sizeof files[0]) != 0)
        return 2;
    if (exists && stat(o.model, &model) == 0 && saved.st_dev == model.st_dev &&
        saved.st_ino == model.st_ino)
        return session_fail(2, "--save %s: it is also --model; give another folder", o.save);
    if (exists && !S_ISDIR(saved.st_mode))
        return session_fail(2, "--save %s: is a file; give a folder", o.save);
    if (o.save != NULL && !exists && (mkdir(o.save, 0777) != 0 || rmdir(o.save) != 0))
        return session_fail(2, "--save %s: %s", o.save, strerror(errno));
    /* transformers would add that adapter to the saved model */
    if (exists && (o.method != METHOD_LORA || o.merge) &&
        access(model_file_path(name, o.save, "adapter_config.json"), F_OK) == 0)
        return session_fail(2, "--save %s: the folder contains an adapter; give another folder",
                            o.save);
    return exists ? session_check_save("save", model_file_path(name, o.save, "config.json"), NULL)
                  : 0;
}

static int check_options(void)
{
    static const double rates[] = { 5e-5, 3e-4, 5e-5, 1e-3 };
    if (o.model == NULL)
        return session_fail(2,
                            "give --model, a folder with config.json and model.safetensors, or a "
                            "FILE.gguf; --help lists the options");
    if (o.data == NULL && o.predict == NULL && !o.merge)
        return session_fail(2, "give --data (to train, or with --eval to evaluate) or --predict");
    if (o.eval && o.data == NULL)
        return session_fail(2, "--eval needs --data as well");
    if (o.save != NULL && (o.eval || o.data == NULL) && !o.merge)
        return session_fail(2, "--save needs a training: give --data without --eval, or --merge");
    if (o.method == METHOD_HEAD && o.task == TASK_EMBED)
        return session_fail(2, "--method head: embeddings have no head; give full, lora or last");
    if (o.micro_batch > 0 && o.batch % o.micro_batch != 0)
        return session_fail(2, "--micro-batch %lld: allowed are divisors of --batch %lld",
                            (long long)o.micro_batch, (long long)o.batch);
    if (o.micro_batch > 0 && o.micro_batch < o.batch && o.task == TASK_EMBED)
        return session_fail(2,
                            "--micro-batch %lld: the loss of --task embed compares all rows of a "
                            "batch; leave it out, and give a smaller --batch",
                            (long long)o.micro_batch);
    if (o.merge && (o.method != METHOD_LORA || o.save == NULL) && o.adapter == NULL)
        return session_fail(2, "--merge needs --save and --method lora or --adapter");
    if (o.adapter != NULL && o.data != NULL && !o.eval)
        return session_fail(2, "--adapter with --data: only --eval and --predict read an adapter; "
                               "--merge it to train further");
    const int trains = o.data != NULL && !o.eval;
    if (o.store != GCKPT_STORAGE_F32 && trains && o.method == METHOD_FULL)
        return session_fail(
            2,
            "--store %s: only frozen matrices can be stored so, but --method full trains "
            "all; give --method lora, last or head",
            storage_names[o.store]);
    if (o.store != GCKPT_STORAGE_F32 && o.merge)
        return session_fail(2, "--store %s: --merge writes floats; leave one of them out",
                            storage_names[o.store]);
    if (o.store >= GCKPT_STORAGE_I8 && o.save != NULL && o.method != METHOD_LORA)
        return session_fail(
            2,
            "--store %s: transformers cannot load such a model; for --save give --method "
            "lora, which saves an adapter, or --store bf16",
            storage_names[o.store]);
    if (o.fields != NULL && o.task != TASK_CLASSIFY && o.task != TASK_SCORE)
        return session_fail(2, "--fields: for --task classify and score only; leave it out");
    if (o.threads == 0)
        o.threads = gckpt_threads();
    if (o.lr <= 0)
        o.lr = rates[o.method];
    return read_fields() || check_files() ? 2 : 0;
}

/* ---- texts ----------------------------------------------------------------------------------- */
/* Tokenised rows: a text each, or two (anchor and positive). */
typedef struct {
    bpe_tokens tokens; /* of all texts, with the tokens before and after each */
    size_t *start;     /* of each text in `tokens`; the last element is the end of the last text */
    size_t *second;    /* of each text: its first token of type 1, or the end of the text */
    /* a number for each token: its class, -1 for none; for --task classify, that of a text is at
     * its first token, and for --task score the bits of a float */
    int32_t *labels;
    size_t labels_capacity;
    int64_t texts, capacity;
    int typed; /* nonzero if a token has type 1 */
} corpus;

static struct {
    model_any m;
    adapters a;
    model_options how;
    gckpt_store *store;
    bpe tokenizer;
    model_task task;
    corpus data;
    int spaces;   /* nonzero if words begin with a space in the vocabulary */
    char **names; /* of the classes */
    int64_t labels, names_capacity;
    /* of the graph and rows that are used at present */
    const corpus *now;
    int64_t first; /* row of `now` that is row 0 of a graph */
    int64_t T;     /* length of the longest rows */
    int predicts;  /* nonzero: probabilities, or vectors of single texts; no loss */
    /* the line that is read, for error messages */
    const char *file;
    long long line;
} run;

static int out_of_memory(void) { return session_fail(1, "out of memory"); }

static void free_corpus(corpus *c)
{
    bpe_tokens_free(&c->tokens);
    free(c->start);
    free(c->second);
    free(c->labels);
    memset(c, 0, sizeof *c);
}

/* Makes space for one more text, and for the label of each token. */
static int grow_corpus(corpus *c)
{
    if (c->texts + 2 > c->capacity) {
        const int64_t n = 2 * c->capacity + 1024;
        size_t *start = (size_t *)realloc(c->start, (size_t)n * sizeof *start);
        c->start = start != NULL ? start : c->start;
        size_t *second = (size_t *)realloc(c->second, (size_t)n * sizeof *second);
        c->second = second != NULL ? second : c->second;
        if (start == NULL || second == NULL)
            return out_of_memory();
        start[0] = 0;
        c->capacity = n;
    }
    if (c->labels_capacity < c->tokens.capacity || c->labels_capacity == 0) {
        const size_t n = c->tokens.capacity + 1;
        int32_t *labels = (int32_t *)realloc(c->labels, n * sizeof *labels);
        if (labels == NULL)
            return out_of_memory();
        c->labels = labels;
        c->labels_capacity = n;
    }
    return 0;
}

/* Appends a token of the template. */
static int add_token(corpus *c, int32_t id)
{
    return dataset_push(&c->tokens, id) != 0 ? out_of_memory() : grow_corpus(c);
}

/* Encodes one word, or a whole text, at the end of c. Its first token gets the label. */
static int add_word(corpus *c, const char *text, size_t n, int32_t label)
{
    bpe_tokens *t = &c->tokens;
    const size_t begin = t->count;
    char *spaced = run.spaces && run.task == MODEL_TAGS ? (char *)malloc(n + 1) : NULL;
    if (run.spaces && run.task == MODEL_TAGS) {
        if (spaced == NULL)
            return out_of_memory();
        spaced[0] = ' ';
        memcpy(spaced + 1, text, n);
        text = spaced;
        n++;
    }
    const int failed = bpe_encode(&run.tokenizer, text, n, 0, t);
    free(spaced);
    if (failed)
        return session_fail(1, "%s", t->error);
    if (grow_corpus(c) != 0)
        return 1;
    for (size_t i = begin; i < t->count; i++)
        c->labels[i] = i == begin ? label : -1;
    return 0;
}

/* Begins a text with the tokens of the template. */
static int begin_text(corpus *c)
{
    int failed = grow_corpus(c);
    for (int i = 0; i < run.tokenizer.prefix_count && !failed; i++)
        failed = add_token(c, run.tokenizer.prefix[i]);
    for (size_t i = c->start != NULL ? c->start[c->texts] : 0; i < c->tokens.count && !failed; i++)
        c->labels[i] = -1;
    return failed;
}

/* Adds the text whose tokens and labels are at the end of c, and whose tokens of type 1 begin at
 * `second`. `label` is the class of the whole text, or -1. */
static int close_text(corpus *c, size_t second, int32_t label)
{
    const size_t begin = c->start[c->texts], end = c->tokens.count;
    if (end == begin)
        return session_fail(1, "%s:%lld: a text has no tokens; remove it", run.file, run.line);
    for (size_t i = begin; i < end; i++)
        if (c->tokens.ids[i] >= run.m.config.vocabulary)
            return session_fail(
                1,
                "--model %s: its tokenizer has token %d (of %d), but the embedding has "
                "%lld rows: the tokenizer is of another model, or in Python, call "
                "resize_token_embeddings and save",
                o.model, (int)c->tokens.ids[i], (int)run.tokenizer.count,
                (long long)run.m.config.vocabulary);
    if (run.task == MODEL_CLASSIFY)
        c->labels[begin] = label;
    c->second[c->texts] = second;
    c->typed |= second < end;
    c->start[++c->texts] = end;
    return 0;
}

/* Ends a text: cuts off what exceeds --length, and adds the tokens of the template. */
static int end_text(corpus *c, int32_t label)
{
    const size_t begin = c->start[c->texts], most = (size_t)o.length;
    const size_t after = (size_t)run.tokenizer.suffix_count;
    if (c->tokens.count - begin + after > most)
        c->tokens.count = begin + most - after;
    const size_t end = c->tokens.count;
    for (size_t i = 0; i < after; i++)
        if (add_token(c, run.tokenizer.suffix[i]) != 0)
            return 1;
    for (size_t i = end; i < c->tokens.count; i++)
        c->labels[i] = -1;
    return close_text(c, c->tokens.count, label);
}

/* Appends a text or, if text[1] is not NULL, a pair of texts. */
static int add_text(corpus *c, const char *const text[2], const size_t sizes[2], int32_t label)
{
    size_t second = 0;
    int failed = text[1] == NULL ? begin_text(c) : grow_corpus(c);
    if (failed || text[1] == NULL)
        return failed || add_word(c, text[0], sizes[0], -1) || end_text(c, label);
    if (bpe_encode_pair(&run.tokenizer, text, sizes, 0, (size_t)o.length, &c->tokens, &second) != 0)
        return session_fail(1, "%s", c->tokens.error);
    if (run.m.config.encoder.types > 1 && run.tokenizer.pair_types == BPE_TYPES_OTHER)
        return session_fail(
            1, "the tokenizer's post_processor has other token types for two texts than 0, "
               "then 1");
    if (grow_corpus(c) != 0)
        return 1;
    for (size_t i = c->start[c->texts]; i < c->tokens.count; i++)
        c->labels[i] = -1;
    return close_text(c, second, label);
}

/* ---- classes --------------------------------------------------------------------------------- */
static int find_label(const char *name)
{
    for (int64_t i = 0; i < run.labels; i++)
        if (strcmp(run.names[i], name) == 0)
            return (int)i;
    return -1;
}

static int add_label(const char *name)
{
    const size_t n = strlen(name) + 1;
    if (run.labels == run.names_capacity) {
        const int64_t most = 2 * run.names_capacity + 16;
        char **names = (char **)realloc(run.names, (size_t)most * sizeof *names);
        if (names == NULL)
            return out_of_memory();
        run.names = names;
        run.names_capacity = most;
    }
    char *copy = (char *)malloc(n);
    if (copy == NULL)
        return out_of_memory();
    memcpy(copy, name, n);
    run.names[run.labels++] = copy;
    return 0;
}

static void free_labels(void)
{
    for (int64_t i = 0; i < run.labels; i++)
        free(run.names[i]);
    free(run.names);
}

/* Orders numbers by value, other names by their bytes. */
static int compare_labels(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    char *ends[2];
    const long long n = strtoll(x, &ends[0], 10), k = strtoll(y, &ends[1], 10);
    if (*ends[0] == 0 && *ends[1] == 0 && n != k)
        return n < k ? -1 : 1;
    return strcmp(x, y);
}

/* Reads the classes in `id2label` of a JSON file, in order of their numbers. */
static int read_labels(json *d)
{
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "id2label");
    for (uint32_t i = 0; i < json_size(d, all); i++) {
        char key[16];
        snprintf(key, sizeof key, "%lu", (unsigned long)i);
        const uint32_t at = json_require(d, all, key, JSON_STRING);
        if (at == 0 || find_label(json_text(d, at)) >= 0)
            return session_fail(1, "%s: id2label: expected different names for 0, 1, 2, ..%s%s",
                                d->name, d->error[0] != 0 ? ": " : "", d->error);
        if (add_label(json_text(d, at)) != 0)
            return 1;
    }
    return 0;
}

/* Returns the name of a class in a line of data: a text, or a whole number. NULL sets d->error. */
static const char *label_of(json *d, uint32_t at, char *number, size_t size)
{
    const double x = json_kind_of(d, at) == JSON_NUMBER ? json_real_of(d, at) : 0.5;
    if (json_kind_of(d, at) == JSON_STRING && json_size(d, at) > 0)
        return json_text(d, at);
    snprintf(number, size, "%.0f", x);
    if (strtod(number, NULL) == x)
        return number;
    if (json_kind_of(d, at) == JSON_STRING)
        json_fail(d, d->line, "a label is empty: name its class, or remove the line");
    else
        json_mismatch(d, at,
                      "the name of a class, or its whole number (--task score trains numbers)");
    return NULL;
}

/* Returns the class of a line of data. If the model's classes have names, a number is an index. */
static int32_t class_of(json *d, uint32_t at)
{
    char number[32];
    const char *name = label_of(d, at, number, sizeof number);
    int i = name != NULL ? find_label(name) : 0;
    if (i < 0 && name == number && json_int_of(d, at) >= 0 && json_int_of(d, at) < run.labels)
        i = (int)json_int_of(d, at);
    if (i < 0) {
        char known[200] = "";
        size_t n = 0;
        for (int64_t k = 0; k < run.labels && n < sizeof known; k++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", k > 0 ? ", " : "",
                                  run.names[k]);
        json_fail(d, d->line,
                  "\"%.60s\" is none of the classes %s; --new-head makes a classifier for "
                  "the classes of --data",
                  name, known);
    }
    return (int32_t)i;
}

/* ---- data ------------------------------------------------------------------------------------ */
typedef int (*line_reader)(json *d, corpus *c);
/* lines of --data, by --task */
static const char *const line_forms[] = {
    "{\"text\": \"..\", \"label\": \"..\"}, for two texts also \"pair\"; --fields names other keys",
    "{\"tokens\": [\"..\", ..], \"tags\": [\"..\", ..]}",
    "{\"anchor\": \"..\", \"positive\": \"..\"}",
    "{\"text\": \"..\", \"label\": NUMBER}, for two texts also \"pair\"; --fields names other keys"
};

/* Chooses the names of the keys by the first line, if --fields does not name that of the text. */
static void choose_keys(json *d)
{
    static const char *const forms[][2] = {
        { "text", "pair" },           { "text", "text_pair" },
        { "sentence1", "sentence2" }, { "premise", "hypothesis" },
        { "question1", "question2" }, { "question", "sentence" },
        { "question", "answer" },     { "query", "passage" },
        { "sentence", NULL },         { "text", NULL }
    };
    int form = 0;
    while (forms[form][1] != NULL && (json_find(d, JSON_ROOT, forms[form][0]) == 0 ||
                                      json_find(d, JSON_ROOT, forms[form][1]) == 0))
        form++;
    if (forms[form][1] == NULL && json_find(d, JSON_ROOT, forms[form][0]) == 0)
        form++;
    o.keys[KEY_TEXT] = forms[form][0];
    if (o.keys[KEY_PAIR] == NULL)
        o.keys[KEY_PAIR] = forms[form][1];
}

/* Adds the classes of a line. */
static int read_line_labels(json *d, corpus *c)
{
    const int tags = run.task == MODEL_TAGS;
    const uint32_t all = json_require(d, JSON_ROOT, tags ? "tags" : o.keys[KEY_LABEL],
                                      tags ? JSON_ARRAY : JSON_NOTHING);
    (void)c;
    for (uint32_t at = tags ? json_first(d, all) : all; at != 0; at = tags ? json_next(d, at) : 0) {
        char number[32];
        const char *name = label_of(d, at, number, sizeof number);
        if (name == NULL || (find_label(name) < 0 && add_label(name) != 0))
            return 1;
    }
    return 0;
}

static int read_words(json *d, corpus *c)
{
    const uint32_t words = json_require(d, JSON_ROOT, "tokens", JSON_ARRAY);
    const uint32_t tags = json_require(d, JSON_ROOT, "tags", JSON_ARRAY);
    uint32_t tag = json_first(d, tags);
    if (json_size(d, words) != json_size(d, tags))
        return json_fail(d, d->line, "%lu tokens but %lu tags: expected as many of both",
                         (unsigned long)json_size(d, words), (unsigned long)json_size(d, tags));
    int failed = begin_text(c);
    for (uint32_t at = json_first(d, words); at != 0 && !failed; at = json_next(d, at)) {
        const char *word = json_text(d, at);
        const int32_t label = class_of(d, tag);
        tag = json_next(d, tag);
        failed = d->error[0] != 0 || add_word(c, word, strlen(word), label);
    }
    return failed || end_text(c, -1);
}

/* Reads a text or a pair with its class or, for --task score, its number. */
static int read_text(json *d, corpus *c)
{
    const char *text[2] = { NULL, NULL };
    size_t sizes[2] = { 0, 0 };
    int32_t label = 0;
    const uint32_t value = json_require(d, JSON_ROOT, o.keys[KEY_LABEL],
                                        o.task == TASK_SCORE ? JSON_NUMBER : JSON_NOTHING);
    if (o.task == TASK_SCORE) {
        const double real = json_real_of(d, value);
        const int fits = real >= -3.4e38 && real <= 3.4e38;
        const float number = fits ? (float)real : 0;
        if (!fits)
            json_mismatch(d, value, "a number from -3.4e38 to 3.4e38");
        memcpy(&label, &number, sizeof label);
    } else {
        label = class_of(d, value);
    }
    for (int i = 0; i < 2 && o.keys[i] != NULL && d->error[0] == 0; i++) {
        const uint32_t at = json_require(d, JSON_ROOT, o.keys[i], JSON_STRING);
        text[i] = at != 0 ? json_text(d, at) : NULL;
        sizes[i] = at != 0 ? d->nodes[at].size : 0;
    }
    return d->error[0] != 0 || add_text(c, text, sizes, label);
}

/* Reads two texts with similar vectors. */
static int read_anchor(json *d, corpus *c)
{
    static const char *const keys[] = { "anchor", "positive" };
    int failed = 0;
    for (int i = 0; i < 2 && !failed; i++) {
        const uint32_t at = json_require(d, JSON_ROOT, keys[i], JSON_STRING);
        const char *const text[2] = { at != 0 ? json_text(d, at) : NULL, NULL };
        const size_t sizes[2] = { at != 0 ? d->nodes[at].size : 0, 0 };
        failed = text[0] == NULL || add_text(c, text, sizes, -1);
    }
    return failed;
}

/* Fails if a line lacks a key that its task needs. */
static int check_keys(json *d)
{
    static const char *const of_tokens[] = { "tokens", "tags" };
    static const char *const of_embed[] = { "anchor", "positive" };
    const char *const *keys = o.task == TASK_TOKENS  ? of_tokens
                              : o.task == TASK_EMBED ? of_embed
                                                     : o.keys;
    for (int i = 0; i < (keys == o.keys ? 3 : 2); i++)
        if (keys[i] != NULL && json_find(d, JSON_ROOT, keys[i]) == 0) {
            char expected[400];
            snprintf(expected, sizeof expected, "the line has no \"%.100s\": expected %s", keys[i],
                     line_forms[o.task]);
            return dataset_fail_keys(d, o.fields, expected);
        }
    return 0;
}

/* Calls `read` for each line of a file. Returns 0, or 1 after printing an error. */
static int read_file(const char *option, const char *path, line_reader read, corpus *c)
{
    FILE *f = fopen(path, "rb");
    json d;
    int failed = 0;
    if (f == NULL)
        return session_fail(1, "--%s %s: %s", option, path, strerror(errno));
    json_init(&d, path);
    while (!failed && json_read_line(&d, f) > 0) {
        if (json_kind_of(&d, JSON_ROOT) != JSON_OBJECT)
            json_mismatch(&d, JSON_ROOT, line_forms[o.task]);
        if (d.error[0] == 0 && o.keys[KEY_TEXT] == NULL)
            choose_keys(&d);
        run.file = path;
        run.line = d.line;
        failed = d.error[0] != 0 || check_keys(&d) != 0 || read(&d, c) != 0 || d.error[0] != 0;
    }
    if (d.error[0] == 0 && !failed && d.text == NULL)
        json_fail(&d, 0, "the file has no lines: expected %s", line_forms[o.task]);
    dataset_explain(&d, f, line_forms[o.task]);
    if (d.error[0] != 0)
        failed = session_fail(1, "--%s: %s", option, d.error);
    json_free(&d);
    fclose(f);
    return failed;
}

static int64_t texts_per_row(void) { return run.task == MODEL_EMBED && !run.predicts ? 2 : 1; }

/* ---- graphs ---------------------------------------------------------------------------------- */
/* Columns of a batch: 3 for each text, token types if there are two, and labels. */
enum { TYPES = 3 };

static int is_typed(void)
{
    return run.now->typed && encoder_is_family(run.m.config.family) &&
           run.m.config.encoder.types > 1;
}

static int labels_column(void) { return (int)(3 * texts_per_row()) + is_typed(); }

/* Returns the length of a row, a multiple of 8 if the model's positions allow it; a
 * train_options.length. */
static int64_t row_length(void *user, int64_t row)
{
    const size_t *at = run.now->start + (run.first + row) * texts_per_row();
    size_t most = 1;
    (void)user;
    for (int64_t i = 0; i < texts_per_row(); i++)
        most = at[i + 1] - at[i] > most ? at[i + 1] - at[i] : most;
    const int64_t length = ((int64_t)most + 7) / 8 * 8;
    return length < run.m.config.context ? length : run.m.config.context;
}

/* Writes the rows of a batch; a train_options.batch. */
static int fill(void *user, train_batch *b)
{
    const corpus *c = run.now;
    const int64_t sides = texts_per_row(), T = b->length;
    const int32_t padding = run.m.config.head.padding;
    (void)user;
    for (int64_t i = 0; i < b->n * sides; i++) {
        const int64_t row = i / sides, side = i % sides;
        const size_t *at = c->start + (run.first + b->rows[row]) * sides + side;
        const int64_t n = (int64_t)(at[1] - at[0]);
        int32_t *tokens = (int32_t *)b->values[3 * side] + row * T, last = 0;
        float *mask = (float *)b->values[3 * side + 2] + row * T;
        int32_t *types = is_typed() ? (int32_t *)b->values[TYPES] + row * T : NULL;
        int32_t *labels = (int32_t *)b->values[labels_column()];
        for (int64_t t = 0; t < T; t++) {
            tokens[t] = t < n ? c->tokens.ids[at[0] + (size_t)t] : padding;
            mask[t] = t < n;
            if (types != NULL)
                types[t] = t < n && at[0] + (size_t)t >= c->second[run.first + b->rows[row]];
            last = tokens[t] != padding ? (int32_t)t : last;
            if (labels != NULL && run.task == MODEL_TAGS)
                labels[row * T + t] = t < n ? c->labels[at[0] + (size_t)t] : -1;
        }
        /* transformers' decoders read the last token that is not padding */
        ((int32_t *)b->values[3 * side + 1])[row] =
            model_has_score(&run.m.config) ? last : (int32_t)n;
        if (labels != NULL && run.task != MODEL_TAGS)
            labels[row] = run.task == MODEL_EMBED ? (int32_t)row : c->labels[at[0]];
    }
    return 0;
}

static gckpt_tensor *pooled(const encoder_text *text)
{
    gckpt_tensor *x = encoder_hidden(&run.m, text, &run.how);
    return o.pooling == POOL_CLS ? encoder_first(x) : encoder_mean(text, x);
}

/* Builds the graph; a train_model. Token types of single texts are 0. */
static void build(train_net *net, void *user)
{
    encoder_text text[2];
    (void)user;
    for (int i = 0; i < 2; i++) {
        text[i].tokens = net->in[3 * i];
        text[i].types = is_typed() ? net->in[TYPES] : NULL;
        text[i].lengths = net->in[3 * i + 1];
        text[i].mask = net->in[3 * i + 2];
    }
    if (run.task != MODEL_EMBED) {
        gckpt_tensor *logits = encoder_logits(&run.m, &text[0], &run.how);
        gckpt_tensor *labels = net->in[labels_column()];
        net->output = run.predicts && o.task != TASK_SCORE ? gckpt_softmax(logits) : logits;
        net->loss = o.task == TASK_SCORE
                        ? gckpt_mean_squared_error(gckpt_reshape(logits, gckpt_shape1(net->rows)),
                                                   labels, NULL)
                        : gckpt_cross_entropy(logits, labels, NULL, 0);
    } else if (run.predicts) {
        net->output = encoder_normalise(pooled(&text[0]));
        net->loss = gckpt_sum_loss(net->output);
    } else {
        gckpt_tensor *anchors = pooled(&text[0]), *positives = pooled(&text[1]);
        net->output = encoder_cosines(anchors, positives);
        net->loss =
            gckpt_cross_entropy(gckpt_scale(net->output, (float)o.scale), net->in[6], NULL, 0);
    }
}

/* Describes `rows` rows of c from row `first` on, which fill writes, and their graph. */
static train_data describe(const corpus *c, int64_t first, int64_t rows, int predicts)
{
    static const char *const names[2][3] = {
        { "tokens", "lengths", "mask" }, { "positive.tokens", "positive.lengths", "positive.mask" }
    };
    train_data d;
    int n = 0;
    memset(&d, 0, sizeof d);
    run.now = c;
    run.first = first;
    run.predicts = predicts;
    run.T = 0;
    const int64_t sides = texts_per_row();
    for (int64_t i = 0; i < rows; i++)
        run.T = row_length(NULL, i) > run.T ? row_length(NULL, i) : run.T;
    for (int64_t side = 0; side < sides; side++)
        for (int i = 0; i < 3; i++, n++) {
            d.column[n].name = names[side][i];
            d.column[n].type = i < 2 ? GCKPT_I32 : GCKPT_F32;
            d.column[n].width = i != 1 ? TRAIN_BY_LENGTH : 0;
        }
    if (is_typed()) {
        d.column[n].name = "types";
        d.column[n].type = GCKPT_I32;
        d.column[n++].width = TRAIN_BY_LENGTH;
    }
    d.column[n].name = "labels";
    d.column[n].type = o.task == TASK_SCORE ? GCKPT_F32 : GCKPT_I32;
    d.column[n].width = run.task == MODEL_TAGS ? TRAIN_BY_LENGTH : 0;
    d.rows = rows;
    return d;
}

/* The options of training and prediction. */
static train_options settings(void)
{
    train_options t = train_defaults((float)o.lr);
    t.hyper.weight_decay = (float)o.weight_decay;
    t.hyper.clip = (float)o.clip;
    t.plan.budget = (size_t)o.budget;
    t.plan.batch = o.batch;
    t.plan.threads = (int)o.threads;
    t.plan.update_in_backward = o.clip > 0 ? 0 : FIT_IF_USEFUL;
    t.micro_batch = run.task == MODEL_EMBED ? o.batch : o.micro_batch;
    t.epochs = (int)o.epochs;
    t.schedule = SCHEDULE_LINEAR;
    t.warmup = o.warmup;
    t.seed = (uint64_t)o.seed;
    t.save = o.checkpoint;
    t.log = o.log;
    t.batch = fill;
    t.length = row_length;
    return t;
}

/* Computes probabilities or vectors of `rows` texts of c from text `first` on. Returns run.T times
 * `*width` or *width floats for each, which the caller frees, or NULL after printing an error. */
static float *predict(const corpus *c, int64_t first, int64_t rows, int64_t *width)
{
    const train_data d = describe(c, first, rows, 1);
    train_options t = settings();
    train_report r;
    *width = run.task == MODEL_EMBED ? run.m.config.width : run.labels;
    const int64_t n = rows * *width * (run.task == MODEL_TAGS ? run.T : 1);
    float *out = (float *)malloc((size_t)n * sizeof *out);
    t.known = labels_column();
    t.micro_batch = 0;
    if (out == NULL || train_predict(run.store, build, &d, &t, out, &r) != 0) {
        out == NULL ? out_of_memory() : session_fail(1, "%s", r.error);
        free(out);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        if (!(out[i] - out[i] == 0)) {
            session_fail(
                1, "--model %s: a result is not finite; check its weights for NaN and infinity",
                o.model);
            free(out);
            return NULL;
        }
    return out;
}

static int largest(const float *p, int64_t n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = p[i] > p[best] ? i : best;
    return best;
}

/* ---- evaluation ------------------------------------------------------------------------------ */
/* For each class: rows of this class, rows predicted as it, and both. */
typedef struct {
    double wanted, got, both;
} score;

static double f1_of(const score *s) { return s->both > 0 ? 2 * s->both / (s->wanted + s->got) : 0; }

/* Returns whether tag `i` after tag `before` (-1 for none) begins an entity: "B-X" does, and "I-X"
 * after another type. */
static int begins_entity(int before, int i)
{
    const char *name = i >= 0 ? run.names[i] : "O", *old = before >= 0 ? run.names[before] : "O";
    return (name[0] == 'B' || name[0] == 'I') && name[1] == '-' &&
           (name[0] == 'B' || old[0] == 'O' || strcmp(old + 1, name + 1) != 0);
}

static int in_entity(int before, int i)
{
    return i >= 0 && run.names[i][0] == 'I' && !begins_entity(before, i);
}

/* Counts the entities of a row of n tags, as seqeval does: an entity is right if its first and last
 * tag and its type are. */
static void count_entities(const int *want, const int *got, int64_t n, score *s)
{
    for (int64_t i = 0; i < n; i++) {
        const int before[2] = { i > 0 ? want[i - 1] : -1, i > 0 ? got[i - 1] : -1 };
        const int begins[2] = { begins_entity(before[0], want[i]),
                                begins_entity(before[1], got[i]) };
        int64_t k = i + 1;
        s->wanted += begins[0];
        s->got += begins[1];
        if (!begins[0] || !begins[1] || strcmp(run.names[want[i]] + 1, run.names[got[i]] + 1) != 0)
            continue;
        while (k < n && in_entity(want[k - 1], want[k]) && in_entity(got[k - 1], got[k]))
            k++;
        s->both += k == n || (!in_entity(want[k - 1], want[k]) && !in_entity(got[k - 1], got[k]));
    }
}

/* Prints accuracy and F1: of entities if the tags are of the form B-X, I-X, else the mean over
 * classes. */
static int evaluate_classes(const corpus *c, int64_t first, int64_t rows)
{
    const int tags = run.task == MODEL_TAGS;
    int64_t width, all = 0, right = 0, classes = 0;
    float *out = predict(c, first, rows, &width);
    score *scores = (score *)calloc((size_t)run.labels, sizeof *scores), entities = { 0, 0, 0 };
    int *pairs = (int *)malloc((size_t)(2 * run.T) * sizeof *pairs), has_entities = 0;
    double sum = 0;
    int failed = out == NULL || scores == NULL || pairs == NULL;
    for (int64_t i = 0; i < rows && !failed; i++) {
        const size_t at = c->start[first + i];
        const int64_t n = tags ? (int64_t)(c->start[first + i + 1] - at) : 1;
        int64_t words = 0;
        for (int64_t t = 0; t < n; t++) {
            const int32_t want = c->labels[at + (size_t)t];
            if (want < 0)
                continue;
            const int got = largest(out + ((tags ? i * run.T : i) + t) * width, width);
            all++;
            right += want == got;
            scores[want].wanted++;
            scores[got].got++;
            scores[want].both += want == got;
            pairs[words] = want;
            pairs[run.T + words++] = got;
        }
        if (tags)
            count_entities(pairs, pairs + run.T, words, &entities);
    }
    for (int64_t i = 0; i < run.labels && !failed; i++) {
        has_entities |= tags && strncmp(run.names[i], "B-", 2) == 0;
        classes += scores[i].wanted + scores[i].got > 0;
        sum += f1_of(&scores[i]);
    }
    if (!failed)
        printf("eval   %lld %s, accuracy %.4f, F1 %.4f (%s)\n", (long long)all,
               tags ? "words" : "texts", all > 0 ? (double)right / (double)all : 0,
               has_entities  ? f1_of(&entities)
               : classes > 0 ? sum / (double)classes
                             : 0,
               has_entities ? "entities" : "mean over classes");
    free(out);
    free(scores);
    free(pairs);
    return failed;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Prints the mean cosine of pairs, and the share of anchors whose positive is the nearest. */
static int evaluate_pairs(const corpus *c, int64_t first, int64_t rows)
{
    int64_t width, right = 0;
    double sum = 0, others = 0;
    float *out = predict(c, 2 * first, 2 * rows, &width);
    for (int64_t i = 0; i < rows && out != NULL; i++) {
        const float *anchor = out + 2 * i * width;
        const double own = dot(anchor, anchor + width, width);
        int nearest = 1;
        for (int64_t k = 0; k < rows; k++) {
            const double cosine = k == i ? own : dot(anchor, out + (2 * k + 1) * width, width);
            nearest = nearest && (k == i || cosine < own);
            others += k == i ? 0 : cosine;
        }
        sum += own;
        right += nearest;
    }
    if (out != NULL)
        printf("eval   %lld pairs, accuracy %.4f (the positive is the nearest), cosine %.4f of "
               "pairs, %.4f of others\n",
               (long long)rows, (double)right / (double)rows, sum / (double)rows,
               rows > 1 ? others / (double)(rows * (rows - 1)) : 0);
    free(out);
    return out == NULL;
}

/* Prints the mean squared error and the correlation (Pearson) of numbers. */
static int evaluate_scores(const corpus *c, int64_t first, int64_t rows)
{
    int64_t width;
    double sums[2] = { 0, 0 }, squares[3] = { 0, 0, 0 }, error = 0;
    float *out = predict(c, first, rows, &width);
    for (int pass = 0; pass < 2; pass++) /* the means, then what differs from them */
        for (int64_t i = 0; i < rows && out != NULL; i++) {
            float want;
            memcpy(&want, &c->labels[c->start[first + i]], sizeof want);
            if (pass == 0) {
                sums[0] += (double)want;
                sums[1] += (double)out[i];
                error += ((double)want - (double)out[i]) * ((double)want - (double)out[i]);
                continue;
            }
            const double x = (double)want - sums[0] / (double)rows;
            const double y = (double)out[i] - sums[1] / (double)rows;
            squares[0] += x * x;
            squares[1] += x * y;
            squares[2] += y * y;
        }
    const double norm = model_sqrt(squares[0]) * model_sqrt(squares[2]);
    if (out != NULL)
        printf("eval   %lld texts, mean squared error %.6g, correlation %.4f\n", (long long)rows,
               error / (double)rows, norm > 0 ? squares[1] / norm : 0);
    free(out);
    return out == NULL;
}

static int evaluate(int64_t first, int64_t rows)
{
    return rows == 0                 ? 0
           : run.task == MODEL_EMBED ? evaluate_pairs(&run.data, first, rows)
           : o.task == TASK_SCORE    ? evaluate_scores(&run.data, first, rows)
                                     : evaluate_classes(&run.data, first, rows);
}

/* ---- prediction ------------------------------------------------------------------------------ */
/* Prints the result of text i of c. */
static void print_result(const corpus *c, int64_t i, const float *out, int64_t width)
{
    const size_t at = c->start[i], n = c->start[i + 1] - at;
    if (run.task == MODEL_EMBED) {
        for (int64_t k = 0; k < width; k++)
            printf("%s%.9g", k == 0 ? "{\"embedding\": [" : ", ", (double)out[i * width + k]);
        puts("]}");
    } else if (o.task == TASK_SCORE) {
        printf("{\"score\": %.9g}\n", (double)out[i]);
    } else if (run.task == MODEL_CLASSIFY) {
        const int best = largest(out + i * width, width);
        fputs("{\"label\": ", stdout);
        json_write_string(stdout, run.names[best], strlen(run.names[best]));
        printf(", \"score\": %.6g}\n", (double)out[i * width + best]);
    } else { /* read_plain_line; words that were cut off have no tag */
        int words = 0;
        fputs("{\"tags\": [", stdout);
        for (size_t t = 0; t < n; t++)
            if (c->labels[at + t] >= 0) {
                const char *name =
                    run.names[largest(out + (i * run.T + (int64_t)t) * width, width)];
                for (int32_t k = 0; k < c->labels[at + t]; k++)
                    fputs(words++ > 0 ? ", null" : "null", stdout);
                fputs(words++ > 0 ? ", " : "", stdout);
                json_write_string(stdout, name, strlen(name));
            }
        puts("]}");
    }
}

/* Appends a line of --predict. The label of a word's first token is the number of words right before
 * it that have no tokens, such as a zero-width space. */
static int read_plain_line(corpus *c, const char *line, size_t n)
{
    const char *tab = run.task == MODEL_CLASSIFY ? (const char *)memchr(line, '\t', n) : NULL;
    if (run.task != MODEL_TAGS) {
        const char *const text[2] = { line, tab != NULL ? tab + 1 : NULL };
        const size_t size = tab != NULL ? (size_t)(tab - line) : n;
        const size_t sizes[2] = { size, n - size - (tab != NULL) };
        return add_text(c, text, sizes, -1);
    }
    int failed = begin_text(c), lost = 0;
    for (size_t i = strspn(line, " \t"); line[i] != 0 && !failed; i += strspn(line + i, " \t")) {
        const size_t size = strcspn(line + i, " \t"), before = c->tokens.count;
        failed = add_word(c, line + i, size, lost);
        lost = c->tokens.count > before ? 0 : lost + 1;
        i += size;
    }
    return failed || end_text(c, -1);
}

static int predict_file(void)
{
    enum { LINES = 256 };
    static const char mark[] = "\xef\xbb\xbf"; /* which Windows puts before UTF-8 */
    FILE *f = fopen(o.predict, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n = 0;
    int failed = f == NULL ? session_fail(1, "--predict %s: %s", o.predict, strerror(errno)) : 0;
    run.file = o.predict;
    run.line = 0;
    while (!failed && n >= 0) {
        corpus c;
        int64_t width;
        memset(&c, 0, sizeof c);
        while (!failed && c.texts < LINES && (n = getline(&line, &capacity, f)) >= 0) {
            n -= n > 0 && line[n - 1] == '\n';
            n -= n > 0 && line[n - 1] == '\r'; /* of Windows */
            line[n] = 0;
            const size_t from = run.line++ == 0 && strncmp(line, mark, 3) == 0 ? 3 : 0;
            failed =
                !json_is_utf8(line, (size_t)n) || memchr(line, 0, (size_t)n) != NULL
                    ? session_fail(1,
                                   "--predict %s:%lld: the line is not in UTF-8, or has a zero "
                                   "byte; save the file as UTF-8",
                                   o.predict, run.line)
                    : read_plain_line(&c, line + from, (size_t)n - from);
        }
        if (!failed && n < 0 && !feof(f))
            failed =
                session_fail(1, "--predict %s: cannot read it: %s", o.predict, strerror(errno));
        float *out = !failed && c.texts > 0 ? predict(&c, 0, c.texts, &width) : NULL;
        failed = failed || (c.texts > 0 && out == NULL);
        for (int64_t i = 0; i < c.texts && !failed; i++)
            print_result(&c, i, out, width);
        free(out);
        free_corpus(&c);
    }
    free(line);
    if (f != NULL)
        fclose(f);
    if (fflush(stdout) != 0 && !failed)
        failed = session_fail(1, "--predict %s: cannot print: %s", o.predict, strerror(errno));
    return failed;
}

/* ---- the model ------------------------------------------------------------------------------- */
static int fail_model(void)
{
    return session_fail(1, "--model %s: %s%s", o.model, run.m.error, model_source_hint(o.model));
}

/* Returns whether config.json says that the model has a classifier for the task. */
static int is_classifier(json *d)
{
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "architectures");
    const char *end =
        run.task == MODEL_TAGS ? "ForTokenClassification" : "ForSequenceClassification";
    for (uint32_t at = json_first(d, all); at != 0; at = json_next(d, at))
        if (json_kind_of(d, at) == JSON_STRING && strstr(json_text(d, at), end) != NULL)
            return 1;
    return 0;
}

/* Finds the classes: those of the adapter or the model's classifier, else those of --data. */
static int find_classes(json *config)
{
    char path[MODEL_PATH];
    json d;
    int failed = 0;
    if (run.task == MODEL_EMBED)
        return 0;
    if (o.adapter != NULL && model_has_file(&run.m, path, o.adapter, "labels.json")) {
        failed = json_read_file(&d, path) != 0 ? session_fail(1, "%s", d.error) : read_labels(&d);
        json_free(&d);
        o.new_head = 1; /* the adapter has the weights of its classifier */
    } else if (!o.new_head && is_classifier(config)) {
        failed = read_labels(config);
    } else if (o.task == TASK_SCORE && o.data != NULL && !o.eval) {
        failed = add_label("LABEL_0"); /* the name that transformers gives it */
    } else if (o.data == NULL || o.eval) {
        return session_fail(1,
                            "--model %s has no classifier for --task %s: train one with --data%s",
                            o.model, task_names[o.task], run.m.note);
    } else {
        failed = read_file("data", o.data, read_line_labels, NULL);
        if (!failed && run.labels > 0)
            qsort(run.names, (size_t)run.labels, sizeof run.names[0], compare_labels);
    }
    if (!failed && o.task == TASK_SCORE && run.labels != 1)
        return session_fail(
            1,
            "--task score: the model has %lld classes; a new head for one number needs "
            "--new-head with --data",
            (long long)run.labels);
    return failed || run.labels >= 2 || o.task == TASK_SCORE
               ? failed
               : session_fail(
                     1,
                     "number of classes: %lld; a classifier needs 2 or more: add rows of another "
                     "class to --data, or with a model that has a classifier, give --new-head; "
                     "--task score trains and reads models of one number",
                     (long long)run.labels);
}

/* Reads the pooling from the keys of a GGUF file; no key, none and rank mean the mean. */
static int read_gguf_pooling(void)
{
    enum { NONE, MEAN, CLS, LAST, RANK };
    gguf g;
    char key[96];
    const char *type =
        gguf_open(&g, o.model) == 0 ? gguf_text(&g, "general.architecture", NULL) : "";
    snprintf(key, sizeof key, "%.60s.pooling_type", type != NULL ? type : "");
    const int64_t mode = gguf_int(&g, key, MEAN);
    o.pooling = mode == CLS ? POOL_CLS : POOL_MEAN;
    if (g.error[0] == 0 && (mode < NONE || mode > RANK || mode == LAST))
        gguf_fail(&g,
                  "key %s is %lld: only the mean of tokens (1) and the first token (2) are built "
                  "here; give --pooling",
                  key, (long long)mode);
    const int failed = g.error[0] != 0 ? session_fail(1, "--model: %s", g.error) : 0;
    gguf_close(&g);
    return failed;
}

/* Reads the pooling and the longest row of a sentence-transformers folder. */
static int read_pooling(void)
{
    char path[MODEL_PATH];
    json d;
    if (o.length == 0 && model_has_file(&run.m, path, o.model, "sentence_bert_config.json")) {
        if (json_read_file(&d, path) == 0)
            o.length = json_int(&d, JSON_ROOT, "max_seq_length", 0);
        json_free(&d);
    }
    o.length = o.length > 0 ? o.length : 512;
    if (run.task == MODEL_EMBED && o.pooling == POOL_AUTO && gguf_is_file(o.model))
        return read_gguf_pooling();
    if (run.task != MODEL_EMBED || o.pooling != POOL_AUTO ||
        !model_has_file(&run.m, path, o.model, "1_Pooling/config.json"))
        return 0;
    json_read_file(&d, path);
    const uint32_t mode = json_find_nonnull(&d, JSON_ROOT, "pooling_mode");
    o.pooling = json_bool(&d, JSON_ROOT, "pooling_mode_cls_token", 0) || json_is(&d, mode, "cls")
                    ? POOL_CLS
                    : POOL_MEAN;
    if (d.error[0] == 0 && o.pooling == POOL_MEAN &&
        !json_bool(&d, JSON_ROOT, "pooling_mode_mean_tokens", 0) && !json_is(&d, mode, "mean"))
        json_fail(&d, 0,
                  "only the mean of tokens and the first token are built here; give --pooling");
    const int failed = d.error[0] != 0 ? session_fail(1, "%s", d.error) : 0;
    json_free(&d);
    return failed;
}

/* Freezes what --method does not train. */
static int choose_trained(void)
{
    const model_config *c = &run.m.config;
    const char *head = encoder_head_modules(c);
    char pattern[MODEL_NAME];
    if (o.method == METHOD_FULL || o.method == METHOD_LORA)
        return 0;
    int failed = gckpt_store_freeze(run.store, "*", 1) != GCKPT_OK;
    if (o.method == METHOD_LAST)
        failed = failed ||
                 gckpt_store_freeze(run.store, model_block_name(c, pattern, c->layers - 1, "*"),
                                    0) != GCKPT_OK;
    for (int64_t i = 0; i < model_param_count(c) && !failed; i++) {
        const model_parameter p = model_get_param(c, i);
        if (p.shape.n > 0 && head != NULL && encoder_is_head(c, i))
            failed = gckpt_store_freeze(run.store, p.name, 0) != GCKPT_OK;
    }
    return failed ? session_fail(1, "%s", gckpt_error_text(run.store)) : 0;
}

static int load_adapters(void)
{
    if (o.adapter != NULL)
        return adapters_load(&run.a, &run.m, run.store, o.adapter) != 0
                   ? session_fail(1, "--adapter %s: %s", o.adapter, run.m.error)
                   : 0;
    adapters_options lora;
    memset(&lora, 0, sizeof lora);
    lora.method = ADAPTERS_LORA;
    lora.size = o.rank;
    lora.alpha = o.alpha;
    lora.targets = o.targets;
    lora.modules_to_save = encoder_head_modules(&run.m.config);
    return adapters_begin(&run.a, &run.m, run.store, &lora) != 0
               ? session_fail(1, "%s", run.m.error)
               : 0;
}

static int open_tokenizer(void)
{
    bpe_tokens t = { NULL, 0, 0, "" };
    if ((gguf_is_file(o.model) ? gguf_open_tokenizer : bpe_open)(&run.tokenizer, o.model) != 0)
        return session_fail(1, "--model %s: %s", o.model, run.tokenizer.error);
    /* in vocabularies of bytes, the words of a sentence begin with a space */
    int failed = bpe_encode(&run.tokenizer, "a", 1, 0, &t) != 0;
    const size_t n = t.count;
    failed = failed || bpe_encode(&run.tokenizer, " a", 2, 0, &t) != 0;
    run.spaces = t.count != 2 * n || memcmp(t.ids, t.ids + n, n * sizeof *t.ids) != 0;
    if (failed)
        session_fail(1, "%s", t.error);
    bpe_tokens_free(&t);
    return failed;
}

/* Checks that a row has space for the tokens of the template and one of the text. */
static int check_length(void)
{
    const int64_t around = run.tokenizer.prefix_count + run.tokenizer.suffix_count;
    return o.length > around
               ? 0
               : session_fail(
                     1,
                     "rows of %lld tokens: the tokens before and after each text take %lld; give "
                     "--length %lld or more",
                     (long long)o.length, (long long)around, (long long)around + 1);
}

/* Writes the modules whose matrices are trained, which stay floats with --store. */
static const char *trained_modules(char list[2 * MODEL_NAME])
{
    const model_config *c = &run.m.config;
    const char *head = encoder_head_modules(c);
    char block[MODEL_NAME];
    model_block_name(c, block, c->layers - 1, "");
    block[strlen(block) - 1] = 0; /* without the point at its end */
    snprintf(list, 2 * MODEL_NAME, "%s%s%s", head != NULL ? head : "", head != NULL ? "," : "",
             o.method == METHOD_LAST ? block : "");
    return list;
}

static int load_model(void)
{
    char modules[2 * MODEL_NAME];
    model_source source;
    model_head head;
    memset(&source, 0, sizeof source);
    memset(&head, 0, sizeof head);
    head.task = run.task = o.task == TASK_SCORE ? MODEL_CLASSIFY : (model_task)(o.task + 1);
    if (model_read_config_for(&run.m, o.model, &head) != 0)
        return fail_model();
    if (model_has_score(&run.m.config) && run.task != MODEL_CLASSIFY)
        return session_fail(
            2, "--task %s: %s is a decoder, which is built for classify and score only",
            task_names[o.task], run.m.config.type);
    int failed = find_classes(&run.m.config_json) || read_pooling();
    source.storage = (gckpt_storage)o.store;
    source.floats = trained_modules(modules);
    head.is_new = (int)o.new_head;
    head.labels = run.labels;
    head.names = (const char *const *)run.names;
    model_close(&run.m);
    const gckpt_store_desc desc = { .seed = (uint64_t)o.seed };
    run.store = gckpt_store_new(&desc);
    if (failed)
        return 1;
    if (model_load_head(&run.m, run.store, o.model, &source, NULL, &head) != 0)
        return fail_model();
    if (run.m.note[0] != 0 && o.adapter == NULL)
        fprintf(stderr, "classify: note: %s%s\n", o.data != NULL && !o.eval ? "" : run.m.note,
                o.data != NULL && !o.eval ? "the classifier is new and begins with random weights"
                                          : "");
    if (o.store == GCKPT_STORAGE_I4 && o.data != NULL && !o.eval)
        fprintf(stderr,
                "classify: note: --store int4 changes results clearly: vectors of MiniLM-L6 have a "
                "cosine of 0.974 with those of f32 (int8: 0.9999). It rounds without --data, so "
                "that --adapter with --store int4 computes what was trained\n");
    if (o.length > run.m.config.context)
        o.length = run.m.config.context;
    run.how.dropout = o.dropout;
    if (o.method == METHOD_LORA || o.adapter != NULL) {
        run.how.hooks = &run.a.hooks;
        failed = load_adapters();
    }
    return failed || choose_trained() || open_tokenizer() || check_length();
}

/* ---- saving ---------------------------------------------------------------------------------- */
static int write_text(const char *name, const char *text)
{
    return model_write_file(&run.m, o.save, name, text, strlen(text)) != 0
               ? session_fail(1, "--save: %s", run.m.error)
               : 0;
}

/* Writes the files by which sentence-transformers finds the pooling. */
static int write_modules(void)
{
    static const char modules[] = "[\n  {\"idx\": 0, \"name\": \"0\", \"path\": \"\", "
                                  "\"type\": \"sentence_transformers.models.Transformer\"},\n"
                                  "  {\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", "
                                  "\"type\": \"sentence_transformers.models.Pooling\"}\n]\n";
    char folder[MODEL_PATH], text[512];
    const int cls = o.pooling == POOL_CLS;
    if (model_path(&run.m, folder, o.save, "1_Pooling") != 0 ||
        model_make_folder(&run.m, folder) != 0)
        return session_fail(1, "--save: %s", run.m.error);
    snprintf(text, sizeof text,
             "{\n  \"word_embedding_dimension\": %lld,\n  \"pooling_mode_cls_token\": %s,\n"
             "  \"pooling_mode_mean_tokens\": %s,\n  \"pooling_mode_max_tokens\": false,\n"
             "  \"pooling_mode_mean_sqrt_len_tokens\": false\n}\n",
             (long long)run.m.config.width, cls ? "true" : "false", cls ? "false" : "true");
    if (write_text("1_Pooling/config.json", text) != 0)
        return 1;
    snprintf(text, sizeof text, "{\n  \"max_seq_length\": %lld,\n  \"do_lower_case\": false\n}\n",
             (long long)o.length);
    return write_text("sentence_bert_config.json", text) || write_text("modules.json", modules);
}

static int write_labels(void)
{
    char path[MODEL_PATH];
    FILE *f = model_begin_file(&run.m, path, o.save, "labels.json");
    if (f != NULL) {
        fputs("{\n  \"gradckpt\": \"classes of the adapter\"", f);
        model_write_labels(&run.m.config.head, f);
        fputs("\n}\n", f);
    }
    return f == NULL || model_end_file(&run.m, f, path) != 0
               ? session_fail(1, "--save: %s", run.m.error)
               : 0;
}

static int save(void)
{
    const int adapter = (o.method == METHOD_LORA || o.adapter != NULL) && !o.merge;
    if (model_make_folder(&run.m, o.save) != 0 || (o.merge && adapters_merge(&run.a) != 0) ||
        (adapter ? adapters_save(&run.a, o.save, o.model)
                 : model_save(&run.m, run.store, o.save, GCKPT_STORAGE_F32)) != 0 ||
        model_copy_files(&run.m, o.model, o.save) != 0)
        return session_fail(1, "--save %s: %s", o.save, run.m.error);
    if (adapter && run.task != MODEL_EMBED && write_labels() != 0)
        return 1;
    if (run.task == MODEL_EMBED && !adapter && write_modules() != 0)
        return 1;
    printf("saved  %s\n", o.save);
    return 0;
}

/* ---- the program ----------------------------------------------------------------------------- */
static int train(int64_t rows, int64_t validation)
{
    train_data d = describe(&run.data, 0, rows, 0);
    train_options t = settings();
    train_report r;
    d.validation = validation;
    if (rows - validation < 1 || (run.task == MODEL_EMBED && rows - validation < o.batch))
        return session_fail(1, "--data: %lld rows to train on; expected %lld or more",
                            (long long)(rows - validation),
                            (long long)(run.task == MODEL_EMBED ? o.batch : 1));
    if (train_fit(run.store, build, &d, &t, &r) != 0)
        return session_fail(
            1, "%s%s", r.error,
            strstr(r.error, "budget") == NULL && strstr(r.error, "memory") == NULL ? ""
            : run.task == MODEL_EMBED
                ? "; the loss compares all rows of a batch: a smaller --batch or --length "
                  "needs fewer bytes"
                : "; a smaller --length needs fewer bytes");
    printf("bytes  %zu\n", r.bytes);
    return 0;
}

static int work(void)
{
    static const line_reader readers[] = { read_text, read_words, read_anchor, read_text };
    const line_reader read = readers[o.task];
    const int status = load_model();
    int failed = status, unrated = 0;
    if (!failed && o.data != NULL) {
        failed = read_file("data", o.data, read, &run.data);
        run.predicts = 0;
        int64_t rows = run.data.texts / texts_per_row(), validation = rows / 10;
        if (!failed && o.validation != NULL) {
            failed = read_file("validation", o.validation, read, &run.data);
            validation = run.data.texts / texts_per_row() - rows;
            rows += validation;
        }
        if (!failed && rows == 0)
            failed = session_fail(1, "--data %s: no rows", o.data);
        if (o.eval)
            validation = rows;
        failed = failed || (!o.eval && train(rows, validation));
        unrated = !failed && evaluate(rows - validation, validation);
    }
    /* saves the weights even if the evaluation fails */
    failed =
        failed || (o.save != NULL && save()) || unrated || (o.predict != NULL && predict_file());
    return status != 0 ? status : failed;
}

int main(int argc, char **argv)
{
    static const char title[] = "trains classifiers of texts and words, and embeddings";
    session.program = options.program;
    int status = options_parse(&options, argc, argv);
    if (status == 0 && o.help) {
        printf("classify - %s\n\n", title);
        options_print_groups(&options, groups);
        return fflush(stdout) != 0;
    }
    status = status != 0 ? status : check_options();
    status = status != 0 ? status : work();
    adapters_end(&run.a);
    gckpt_store_free(run.store);
    model_close(&run.m);
    bpe_free(&run.tokenizer);
    free_corpus(&run.data);
    free_labels();
    return status;
}
