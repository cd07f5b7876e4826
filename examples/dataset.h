/* dataset.h - makes rows of tokens and targets from a text, a .bin file of tokens, or JSON lines
 * of chats, prompts and answers. To copy, with tokenizer.h, json.h, chat.h, jinja.h
 * and sample.h.
 *
 *     dataset d;
 *     if (dataset_open(&d, "chat.jsonl", &tokenizer, vocabulary, end_of_text) != 0)
 *         fprintf(stderr, "%s\n", d.error);
 *     for (uint64_t p = 0; p < n; p++) // the p-th training row; an epoch has each row once
 *         dataset_row(&d, dataset_shuffled(seed, p, dataset_rows(&d, T)), T, tokens, targets);
 *     dataset_free(&d);
 *
 * Text and tokens are cut into windows of T tokens; each target is the next token. Each line of
 * FILE.jsonl is a row. Its keys decide its kind and its targets:
 *     {"messages": [{"role": "user", "content": ".."}, ..]}   a chat, rendered by
 *                                 dataset_desc.chats, with the line's "tools" if it has them; also
 *                                 {"conversations": [{"from": "human", "value": ".."}, ..]}.
 *                                 Targets: answers (role assistant) and their ends
 *     {"prompt": "..", "completion": ".."}   the key may also be "answer". Targets: the completion
 *                                 and the end of text. Both may be lists of messages: a chat whose
 *                                 targets are the answers of the completion
 *     {"instruction": "..", "input": "..", "output": ".."}   "input" may be missing or empty; also
 *                                 instruction, context, response, and question, answer. Targets:
 *                                 the output and the end of text
 *     {"text": ".."}              Targets: all of it and the end of text, except the first token,
 *                                 unless the tokenizer's template begins with a token
 *     {"prompt": .., "chosen": .., "rejected": ..}   for dataset_open_pairs: two answers to
 *                                 compare, as texts or as messages. If the prompt is missing, the
 *                                 common beginning of both answers is the prompt
 * dataset_desc.fields gives keys other names.
 * All other targets are -1, which losses do not count. The prompt of an instruction is
 *     "### Instruction:\n" instruction "\n\n### Input:\n" input "\n\n### Response:\n"
 * without the middle part if there is no input. With a chat template, instruction and input
 * become a turn of the user instead, with an empty line between them. A row that is too long
 * loses the beginning of its prompt first, then its end. dataset_batch groups rows of similar
 * length. Data that is not text is refused with its kind: zero bytes, archives, images, weights,
 * UTF-16, an array of JSON. A line without a target is dropped, and half of a surrogate pair
 * becomes U+FFFD; the dataset counts both. C99 or C++11. */
#ifndef DATASET_H
#define DATASET_H
#include "chat.h"
#include "lengths.h"
#include "sample.h"
#include "tokenizer.h"

typedef struct {
    /* begin: index of the example's first token; end: index after the example's last token;
     * answer: index of the first target */
    size_t begin, answer, end;
} dataset_example;

enum { DATASET_CHATS, DATASET_PROMPTS, DATASET_INSTRUCTIONS, DATASET_TEXTS, DATASET_KINDS };

/* Options that say how lines of JSON become tokens. */
typedef struct {
    int32_t end;  /* id of the end-of-text token, or -1 */
    int specials; /* if nonzero, special tokens in lines are recognised; if 0, they stay text */
    /* The template that renders messages and instructions. NULL, or an empty name, means no
     * template. */
    chat *chats;
    /* other names of keys, such as "prompt=problem,answer=solution", or NULL */
    const char *fields;
} dataset_desc;

typedef struct {
    bpe_tokens tokens;
    dataset_example *examples; /* one for each row, or NULL if rows are windows of one text */
    size_t count, capacity;    /* number of examples; allocated number of examples */
    size_t lines[DATASET_KINDS];
    chat_mask targets; /* if rows are examples, marks the tokens that are targets */
    /* number of invalid bytes and halves of surrogate pairs that U+FFFD has replaced */
    size_t replaced;
    uint32_t replaced_line; /* the first line with such half of a pair, from 1 on */
    size_t special_texts;   /* number of special tokens that the texts spell out */
    /* number of answers without text, whose only target is the end of the answer */
    size_t empty;
    size_t same_pairs; /* number of pairs whose two answers have the same tokens */
    size_t skipped;    /* number of lines that were dropped because they have no target */
    /* if nonzero, a row consists of two examples, the chosen and the rejected one */
    int pairs;
    int32_t padding;
    char error[512];
} dataset;

static inline void dataset_free(dataset *d)
{
    bpe_tokens_free(&d->tokens);
    free(d->examples);
    free(d->targets.flags);
    memset(&d->targets, 0, sizeof d->targets);
    d->examples = NULL;
    d->count = d->capacity = 0;
}

static inline int dataset_ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

static inline int dataset_push(bpe_tokens *t, int32_t id)
{
    if (bpe_reserve(t, 1) != 0)
        return -1;
    t->ids[t->count++] = id;
    return 0;
}

/* First bytes of files that are not text; '?' stands for any byte. No text can begin so, because
 * one of the bytes is a control character or invalid in UTF-8; exceptions are bzip2 and PDF. */
static const struct {
    unsigned char size;
    const char *head, *name, *remedy;
} dataset_magics[] = {
    { 9, "?????\0\0\0{", "weights (safetensors)",
      "give their folder as the model, and a text to train on" },
    { 8, "GGUF?\0\0\0", "weights (GGUF)", "a text to train on is expected" },
    { 2, "\x80\2", "a Python pickle, such as PyTorch's weights", "a text to train on is expected" },
    { 4, "PK\3\4", "a zip archive, as are .docx, .xlsx and .npz files",
      "unpack it, or save it as plain text" },
    { 3, "\x1f\x8b\10", "a gzip archive", "unpack it: gunzip" },
    { 10, "BZh?1AY&SY", "a bzip2 archive", "unpack it: bunzip2" },
    { 6, "\xfd\x37zXZ", "an xz archive", "unpack it: unxz" },
    { 4, "\x28\xb5\x2f\xfd", "a zstd archive", "unpack it: unzstd" },
    { 6, "7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it" },
    { 6, "Rar!\x1a\7", "a rar archive", "unpack it" },
    { 5, "%PDF-", "a PDF", "save its text: pdftotext" },
    { 4, "\xd0\xcf\x11\xe0", "an Office document", "save it as plain text" },
    { 5, "PAR1\x15", "a Parquet table", "write its texts to a file, or as FILE.jsonl" },
    { 6, "\x93NUMPY", "a NumPy array", "tokens go to FILE.bin, 16 bits each" },
    { 8, "\x89PNG\r\n\x1a\n", "a PNG picture", "a text to train on is expected" },
    { 3, "\xff\xd8\xff", "a JPEG picture", "a text to train on is expected" },
    { 4, "\177ELF", "a program", "a text to train on is expected" },
};

static inline int dataset_has_magic(const char *text, size_t size, int kind)
{
    const size_t n = dataset_magics[kind].size;
    const char *head = dataset_magics[kind].head;
    size_t i = 0;
    while (i < n && i < size && (head[i] == '?' || head[i] == text[i]))
        i++;
    return i == n;
}

static const char dataset_formats[] =
    "{\"prompt\": \"..\", \"completion\": \"..\"}, {\"messages\": [{\"role\": \"user\", \"content\": "
    "\"..\"}, ..]}, {\"instruction\": \"..\", \"output\": \"..\"} or {\"text\": \"..\"}";

/* The forms of lines: a line has the first form whose first and last keys it has. The order
 * matters, because chats often have a key "prompt" too, and instructions a key "text". */
static const struct {
    int kind;
    const char *keys[3]; /* prompt, further input that may be missing or NULL, and answer */
} dataset_forms[] = {
    { DATASET_CHATS, { "messages", NULL, "messages" } },
    { DATASET_CHATS, { "conversations", NULL, "conversations" } },
    { DATASET_PROMPTS, { "prompt", NULL, "completion" } },
    { DATASET_PROMPTS, { "prompt", NULL, "answer" } },
    { DATASET_INSTRUCTIONS, { "instruction", "input", "output" } },
    { DATASET_INSTRUCTIONS, { "instruction", "context", "response" } },
    { DATASET_INSTRUCTIONS, { "question", NULL, "answer" } },
    { DATASET_TEXTS, { "text", NULL, "text" } },
};
enum { DATASET_FORMS = sizeof dataset_forms / sizeof dataset_forms[0] };

/* Writes the name that KEY=NAME,.. gives a key to `name` and returns it; NULL if it gives none. */
static inline const char *dataset_field(const char *fields, const char *key, char name[128])
{
    const char *given = NULL;
    const size_t n = strlen(key);
    for (const char *f = fields; f != NULL && *f != 0; f += strcspn(f, ","), f += *f == ',')
        if (strncmp(f, key, n) == 0 && f[n] == '=') {
            snprintf(name, 128, "%.*s", (int)strcspn(f + n + 1, ","), f + n + 1);
            given = name;
        }
    return given;
}

/* Writes the name that a key has in lines to `name`, by dataset_desc.fields. */
static inline const char *dataset_name(const char *fields, const char *key, char name[128])
{
    if (dataset_field(fields, key, name) == NULL)
        memcpy(name, key, strlen(key) + 1);
    return name;
}

/* Returns whether `fields` is KEY=NAME,.. with keys of a list, which NULL ends. */
static inline int dataset_fields_in(const char *fields, const char *const *keys)
{
    for (const char *f = fields; *f != 0; f += strcspn(f, ","), f += *f == ',') {
        const size_t n = strcspn(f, "=,"), size = f[n] == '=' ? strcspn(f + n + 1, ",") : 0;
        int k = 0;
        while (keys[k] != NULL && (strlen(keys[k]) != n || strncmp(f, keys[k], n) != 0))
            k++;
        if (keys[k] == NULL || size == 0 || size > 100)
            return 0;
    }
    return 1;
}

/* Returns whether dataset_desc.fields is KEY=NAME,.. with known keys. */
static inline int dataset_fields_valid(const char *fields)
{
    const char *keys[3 * DATASET_FORMS + 4] = { "chosen", "rejected", "tools" };
    int count = 3;
    for (int i = 0; i < 3 * DATASET_FORMS; i++)
        if (dataset_forms[i / 3].keys[i % 3] != NULL)
            keys[count++] = dataset_forms[i / 3].keys[i % 3];
    return dataset_fields_in(fields, keys);
}

/* Returns the value of a line's key, or 0. */
static inline uint32_t dataset_find(json *line, const char *fields, const char *key)
{
    char name[128];
    return key != NULL ? json_find(line, JSON_ROOT, dataset_name(fields, key, name)) : 0;
}

/* Returns the value of a line's key, which must be a string, or 0 with line->error. */
static inline uint32_t dataset_require(json *line, const char *fields, const char *key)
{
    char name[128];
    return json_require(line, JSON_ROOT, dataset_name(fields, key, name), JSON_STRING);
}

/* Returns the form of a line, by its keys, or DATASET_FORMS. */
static inline int dataset_form(json *line, const char *fields)
{
    int form = 0;
    while (form < DATASET_FORMS && (dataset_find(line, fields, dataset_forms[form].keys[0]) == 0 ||
                                    dataset_find(line, fields, dataset_forms[form].keys[2]) == 0))
        form++;
    return form;
}

/* Returns how many letters two names have in common at their beginnings and ends. */
static inline size_t dataset_likeness(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b), least = n < m ? n : m;
    size_t before = 0, after = 0;
    while (before < least && a[before] == b[before])
        before++;
    while (before + after < least && a[n - 1 - after] == b[m - 1 - after])
        after++;
    return before + after;
}

/* Fails because a line has not the expected keys: names a key of `fields` that it has not, the keys
 * that it has, and the one most like the missing one. Returns -1. */
static inline int dataset_fail_keys(json *line, const char *fields, const char *expected)
{
    char has[160] = "", name[128];
    size_t n = 0;
    const int is_object = json_kind_of(line, JSON_ROOT) == JSON_OBJECT;
    const uint32_t first = is_object ? json_first(line, JSON_ROOT) : 0;
    for (uint32_t i = first; i != 0 && n + 50 < sizeof has; i = json_next(line, i))
        n += (size_t)snprintf(has + n, sizeof has - n, "%s\"%.40s\"", n > 0 ? ", " : "",
                              json_text(line, i));
    for (const char *f = fields; f != NULL && *f != 0; f += strcspn(f, ","), f += *f == ',') {
        const int size = (int)strcspn(f, ","), key = (int)strcspn(f, "=");
        uint32_t best = 0;
        size_t most = 2;
        snprintf(name, sizeof name, "%.*s", size - key - 1, f + key + 1);
        if (json_find(line, JSON_ROOT, name) != 0)
            continue;
        for (uint32_t i = first; i != 0; i = json_next(line, i))
            if (dataset_likeness(name, json_text(line, i)) > most) {
                most = dataset_likeness(name, json_text(line, i));
                best = i;
            }
        return json_fail(line, line->line,
                         "--fields %.*s: the line has no key \"%s\"; it has %s%s%.40s%s", size, f,
                         name, n > 0 ? has : "none", best != 0 ? "; did you mean \"" : "",
                         best != 0 ? json_text(line, best) : "", best != 0 ? "\"?" : "");
    }
    return json_fail(line, line->line, "%s (the line has %s)", expected, n > 0 ? has : "no keys");
}

/* Returns 1 if a text is JSON: an array, or a first line with the keys of an example. Returns 0 if
 * the text is not JSON, and -1 with file->error if out of memory. */
static inline int dataset_is_json(json *file, const char *text, size_t size)
{
    const size_t first = strspn(text, " \t\r\n");
    const int array = text[first] == '[';
    json d;
    if (!array && text[first] != '{')
        return 0;
    size = array ? size : first + strcspn(text + first, "\n");
    json_init(&d, file->name);
    d.owned = (char *)malloc(size + 1);
    if (d.owned == NULL)
        return json_fail(file, 0, "out of memory for %.0f bytes", (double)size);
    memcpy(d.owned, text, size);
    d.owned[size] = 0;
    int is_json = json_parse(&d, d.owned, size) == 0;
    if (is_json && !array)
        is_json = dataset_form(&d, NULL) < DATASET_FORMS;
    if (strstr(d.error, "out of memory") != NULL) {
        memcpy(file->error, d.error, sizeof d.error);
        is_json = -1;
    }
    json_free(&d);
    return is_json;
}

/* If file f is of a known kind that is not text, replaces the error of its first line by one that
 * names the kind, and returns 1; else returns 0. */
static inline int dataset_refuse_magic(json *line, FILE *f)
{
    char head[16];
    const size_t n = fseek(f, 0, SEEK_SET) == 0 ? fread(head, 1, sizeof head, f) : 0;
    for (int i = 0; i < (int)(sizeof dataset_magics / sizeof dataset_magics[0]); i++)
        if (dataset_has_magic(head, n, i)) {
            line->error[0] = 0;
            json_fail(line, 0, "this is %s, not text; %s", dataset_magics[i].name,
                      dataset_magics[i].remedy);
            return 1;
        }
    return 0;
}

/* Returns 0 if the file is text. Otherwise returns -1 with an error that names the kind of file. */
static inline int dataset_refuse(json *file, const char *text, size_t size)
{
    const char *zero = (const char *)memchr(text, 0, size);
    for (int i = 0; i < (int)(sizeof dataset_magics / sizeof dataset_magics[0]); i++)
        if (dataset_has_magic(text, size, i))
            return json_fail(file, 0, "this is %s, not text; %s", dataset_magics[i].name,
                             dataset_magics[i].remedy);
    if (size > 262 && memcmp(text + 257, "ustar", 5) == 0 && zero != NULL)
        return json_fail(file, 0, "this is a tar archive, not text; unpack it: tar -xf");
    if (zero != NULL)
        return json_fail(file, 0,
                         "byte %.0f is 0: this is not text, or not in UTF-8; save it as UTF-8 "
                         "(tokens of 16 bits go to FILE.bin)",
                         (double)(zero - text) + 1);
    const int is_json = dataset_is_json(file, text, size);
    if (is_json <= 0)
        return is_json;
    return text[strspn(text, " \t\r\n")] == '['
               ? json_fail(
                     file, 0,
                     "this is an array of JSON, not text; write FILE.jsonl with an item on each line: %s",
                     dataset_formats)
               : json_fail(file, 0, "these are lines of JSON, %s: name the file FILE.jsonl",
                           dataset_formats);
}

/* Reads a text file and encodes it as one sequence of tokens. */
static inline int dataset_read_text(dataset *d, const char *path, bpe *tokenizer)
{
    json file;
    size_t size = 0;
    uint32_t c;
    const char *text = json_read_text(&file, path, &size);
    const int bom = text != NULL ? json_bom_size(&file, text, size) : -1;
    int failed = bom < 0;
    if (bom > 0) {
        text += bom;
        size -= (size_t)bom;
    }
    failed = failed || dataset_refuse(&file, text, size) != 0 ||
             bpe_encode(tokenizer, text, size, BPE_SPECIALS, &d->tokens) != 0;
    d->special_texts = failed ? 0 : chat_count_special(tokenizer, text, size);
    for (size_t i = 0; i < size && !failed;) {
        const int n = json_utf8(text + i, size - i, &c);
        d->replaced += n < 0 ? (size_t)-n : 0;
        i += (size_t)(n < 0 ? -n : n);
    }
    memcpy(d->error, file.error, sizeof d->error);
    json_free(&file);
    return failed ? -1 : 0;
}

/* ---- lines of JSON --------------------------------------------------------------------------- */
/* Appends a token, marked as target or not. */
static inline int dataset_put(dataset *d, json *line, int32_t id, int is_target)
{
    const size_t first = d->tokens.count;
    if (dataset_push(&d->tokens, id) != 0)
        return json_fail(line, line->line, "%s", d->tokens.error);
    if (chat_mark_tokens(&d->tokens, &d->targets, first, is_target) != 0)
        return json_fail(line, line->line, "out of memory for marks of %.0f tokens", (double)first);
    return 0;
}

typedef struct { /* state while lines are read */
    bpe *tokenizer;
    const dataset_desc *desc;
    char *text; /* text of the current line, put together from several parts */
    size_t size, capacity;
    json tools;  /* the current line's tools, if they are a string of JSON */
    size_t from; /* index of the first token that comes from `text` */
} dataset_reader;

/* Appends the tokens that the tokenizer's template (TemplateProcessing) puts before a text. */
static inline int dataset_put_head(dataset *d, json *line, const dataset_reader *r)
{
    for (int i = 0; i < r->tokenizer->prefix_count; i++)
        if (dataset_put(d, line, r->tokenizer->prefix[i], 0) != 0)
            return -1;
    return 0;
}

/* Appends n bytes to r->text. */
static inline int dataset_append(json *line, dataset_reader *r, const char *text, size_t n)
{
    if (r->size + n > r->capacity) {
        const size_t capacity = 2 * (r->size + n) + 256;
        char *more = (char *)realloc(r->text, capacity);
        if (more == NULL)
            return json_fail(line, line->line, "out of memory for %.0f bytes", (double)capacity);
        r->text = more;
        r->capacity = capacity;
    }
    if (n > 0)
        memcpy(r->text + r->size, text, n);
    r->size += n;
    return 0;
}

static inline int dataset_encode(dataset *d, json *line, dataset_reader *r, const char *text,
                                 size_t n, int is_target)
{
    const size_t first = d->tokens.count;
    const int flags = r->desc->specials ? BPE_SPECIALS : 0;
    /* 0 for a prompt; for a target, the bytes of the text before it, since its tokens continue that
     * text */
    const size_t done = is_target ? r->size : 0;
    d->special_texts += chat_count_special(r->tokenizer, text, n);
    if (done > 0 && dataset_append(line, r, text, n) != 0)
        return -1;
    if (chat_append(r->tokenizer, done > 0 ? r->text : text, done, done + n, flags, r->from,
                    &d->tokens))
        return json_fail(line, line->line, "%s", d->tokens.error);
    if (chat_mark_tokens(&d->tokens, &d->targets, first, is_target) != 0)
        return json_fail(line, line->line, "out of memory for marks of %.0f tokens", (double)first);
    return 0;
}

typedef struct {
    const char *text;
    size_t size;
} dataset_span;

static inline dataset_span dataset_string(json *line, uint32_t at)
{
    const dataset_span s = { json_text(line, at), json_size(line, at) };
    return s;
}

/* Adds the tokens of a prompt and its answer. Targets are the answer's tokens and the end-of-text
 * token, which is added unless the answer ends with it. As in TRL, only the tokenizer's template
 * comes before the prompt. */
static inline int dataset_add_prompt(dataset *d, json *line, dataset_reader *r, dataset_span prompt,
                                     dataset_span answer)
{
    const dataset_desc *desc = r->desc;
    const size_t n = prompt.size;
    if (prompt.text != r->text) {
        r->size = 0;
        if (dataset_append(line, r, prompt.text, n) != 0)
            return -1;
    }
    if (dataset_put_head(d, line, r) != 0)
        return -1;
    r->from = d->tokens.count;
    if (dataset_encode(d, line, r, n > 0 ? r->text : "", n, 0) != 0)
        return -1;
    const size_t first = d->tokens.count;
    if (dataset_encode(d, line, r, answer.text, answer.size, 1) != 0)
        return -1;
    const int ends = d->tokens.count > first && d->tokens.ids[d->tokens.count - 1] == desc->end;
    return desc->end >= 0 && !ends ? dataset_put(d, line, desc->end, 1) : 0;
}

/* Adds the tokens of the messages that were added to the chat. Drops the tokens after the last
 * target. Answers before message `first` belong to the prompt. `what` names the chat in errors. */
static inline int dataset_add_chat(dataset *d, json *line, dataset_reader *r, size_t first,
                                   const char *what)
{
    const dataset_desc *desc = r->desc;
    chat *c = desc->chats;
    const size_t begin = d->tokens.count;
    if (strcmp(c->name, "own") == 0 && dataset_put_head(d, line, r) != 0)
        return -1;
    if (chat_encode_added(c, r->tokenizer, first, 0, desc->specials, &d->tokens, &d->targets) != 0)
        return json_fail(line, line->line, "%s", c->error);
    d->special_texts += c->spelled;
    d->empty += c->empty;
    while (d->tokens.count > begin && !d->targets.flags[d->tokens.count - 1])
        d->tokens.count--;
    if (d->tokens.count == begin)
        return json_fail(line, line->line,
                         "%s has no turn of the assistant%s, so nothing in it is trained", what,
                         first > 0 ? " after the prompt" : "");
    if (d->targets.flags[begin])
        return json_fail(line, line->line,
                         "nothing comes before the first answer; begin the chat "
                         "with another turn");
    if (chat_end_token(c, r->tokenizer) < 0 && desc->end >= 0)
        return dataset_put(d, line, desc->end, 1);
    return 0;
}

static inline int dataset_has_chat(const dataset_desc *desc)
{
    return desc->chats != NULL && desc->chats->name[0] != 0;
}

static inline int dataset_add_instruction(dataset *d, json *line, dataset_reader *r,
                                          const char *const keys[3])
{
    static const char *const heads[3] = { "### Instruction:\n", "\n\n### Input:\n",
                                          "\n\n### Response:\n" };
    const int chats = dataset_has_chat(r->desc);
    const char *fields = r->desc->fields;
    const uint32_t instruction = dataset_require(line, fields, keys[0]),
                   output = dataset_require(line, fields, keys[2]);
    uint32_t input = dataset_find(line, fields, keys[1]);
    input = input != 0 && json_kind_of(line, input) != JSON_NULL
                ? dataset_require(line, fields, keys[1])
                : 0;
    if (line->error[0] != 0)
        return -1;
    r->size = 0;
    if ((!chats && dataset_append(line, r, heads[0], strlen(heads[0])) != 0) ||
        dataset_append(line, r, json_text(line, instruction), json_size(line, instruction)) != 0)
        return -1;
    if (json_size(line, input) > 0 &&
        (dataset_append(line, r, heads[1], chats ? 2 : strlen(heads[1])) != 0 ||
         dataset_append(line, r, json_text(line, input), json_size(line, input)) != 0))
        return -1;
    if (!chats) {
        if (dataset_append(line, r, heads[2], strlen(heads[2])) != 0)
            return -1;
        const dataset_span prompt = { r->text, r->size };
        d->empty += json_size(line, output) == 0;
        return dataset_add_prompt(d, line, r, prompt, dataset_string(line, output));
    }
    const chat_turn user = { CHAT_USER, r->text, r->size };
    const chat_turn assistant = { CHAT_ASSISTANT, json_text(line, output),
                                  json_size(line, output) };
    chat_begin(r->desc->chats);
    if (chat_add(r->desc->chats, &user) != 0 || chat_add(r->desc->chats, &assistant) != 0)
        return json_fail(line, line->line, "%s", r->desc->chats->error);
    return dataset_add_chat(d, line, r, 0, "the chat");
}

/* Returns an error for a chat if there is no template. */
static inline int dataset_require_chat(json *line, const dataset_reader *r)
{
    const chat *c = r->desc->chats;
    char names[256];
    if (dataset_has_chat(r->desc))
        return 0;
    const int known = c != NULL && c->source[0] != 0;
    return json_fail(
        line, line->line,
        "a chat, but %s%s%s%.120s; --chat NAME takes one of these: %s; or --user-turn and "
        "--assistant-turn give the text around a turn",
        known ? "the model's " : "the model has no template", known ? c->source : "",
        known ? " cannot be used: " : "", known ? c->problem : "",
        chat_list_names(names, sizeof names));
}

/* Begins a chat with the line's tools, which are a list, or a string with a list of JSON. */
static inline int dataset_begin_chat(json *line, dataset_reader *r)
{
    chat *c = r->desc->chats;
    json *from = line;
    uint32_t tools = dataset_find(line, r->desc->fields, "tools");
    if (line->error[0] != 0 || dataset_require_chat(line, r) != 0)
        return -1;
    chat_begin(c);
    if (json_kind_of(line, tools) == JSON_STRING && json_size(line, tools) > 0) {
        const size_t n = json_size(line, tools);
        json_free(&r->tools);
        json_init(&r->tools, "tools");
        r->tools.owned = (char *)malloc(n + 1);
        if (r->tools.owned == NULL)
            return json_fail(line, line->line, "out of memory for %.0f bytes", (double)n + 1);
        memcpy(r->tools.owned, json_text(line, tools), n + 1);
        if (json_parse(&r->tools, r->tools.owned, n) != 0)
            return json_fail(line, line->line, "%s", r->tools.error);
        from = &r->tools;
        tools = JSON_ROOT;
    }
    if (json_size(from, tools) == 0 || json_kind_of(from, tools) == JSON_NULL)
        return 0;
    if (json_kind_of(from, tools) != JSON_ARRAY)
        return json_fail(line, line->line, "tools: expected an array");
    return chat_set_tools(c, from, tools) != 0 ? json_fail(line, line->line, "%s", c->error) : 0;
}

/* Appends a list of messages, or if `text` is nonzero also a text as a turn of the user, to the
 * chat. */
static inline int dataset_add_list(json *line, const dataset_reader *r, uint32_t messages, int text)
{
    chat *c = r->desc->chats;
    int failed = 0;
    if (text && json_kind_of(line, messages) == JSON_STRING) {
        const chat_turn user = { CHAT_USER, json_text(line, messages), json_size(line, messages) };
        failed = chat_add(c, &user) != 0;
    } else if (json_kind_of(line, messages) != JSON_ARRAY) {
        return json_mismatch(line, messages, "an array");
    }
    for (uint32_t i = json_first(line, messages); i != 0 && !failed; i = json_next(line, i))
        failed = chat_add_json(c, line, i) != 0;
    return failed ? json_fail(line, line->line, "%s", c->error) : 0;
}

/* Adds a chat of a prompt, which may be 0, and an answer; only answers after the prompt are
 * targets. */
static inline int dataset_add_messages(dataset *d, json *line, dataset_reader *r, uint32_t prompt,
                                       uint32_t answer)
{
    if (dataset_begin_chat(line, r) != 0 ||
        (prompt != 0 && dataset_add_list(line, r, prompt, 1) != 0))
        return -1;
    const size_t first = r->desc->chats->messages.size;
    return dataset_add_list(line, r, answer, 0) != 0
               ? -1
               : dataset_add_chat(d, line, r, first, "the chat");
}

static inline int dataset_add_line(dataset *d, json *line, dataset_reader *r)
{
    const char *fields = r->desc->fields;
    const int form = dataset_form(line, fields);
    if (line->error[0] != 0)
        return -1;
    if (form == DATASET_FORMS && dataset_find(line, fields, "chosen") != 0 &&
        dataset_find(line, fields, "rejected") != 0)
        return json_fail(line, line->line,
                         "the line has a pair of answers, which only --objective dpo uses; "
                         "expected %s",
                         dataset_formats);
    if (form == DATASET_FORMS) {
        char expected[400];
        snprintf(expected, sizeof expected,
                 "expected %s; for other keys, give --fields prompt=KEY,answer=KEY",
                 dataset_formats);
        return dataset_fail_keys(line, fields, expected);
    }
    const char *const *keys = dataset_forms[form].keys;
    const int kind = dataset_forms[form].kind;
    const uint32_t answer = dataset_find(line, fields, keys[2]);
    uint32_t prompt = kind == DATASET_PROMPTS ? dataset_find(line, fields, keys[0]) : 0;
    const int lists =
        json_kind_of(line, answer) == JSON_ARRAY && json_kind_of(line, prompt) == JSON_ARRAY;
    d->lines[lists ? DATASET_CHATS : kind]++;
    if (kind == DATASET_CHATS || lists)
        return dataset_add_messages(d, line, r, prompt, answer);
    if (kind == DATASET_INSTRUCTIONS)
        return dataset_add_instruction(d, line, r, keys);
    if (kind == DATASET_TEXTS) {
        const dataset_span none = { "", 0 };
        return dataset_require(line, fields, keys[2]) == 0 ||
               dataset_add_prompt(d, line, r, none, dataset_string(line, answer)) != 0;
    }
    prompt = dataset_require(line, fields, keys[0]);
    d->empty += json_size(line, answer) == 0;
    return dataset_require(line, fields, keys[2]) == 0 || line->error[0] != 0 ||
           dataset_add_prompt(d, line, r, dataset_string(line, prompt),
                              dataset_string(line, answer)) != 0;
}

/* Returns a new example whose first token is the next one appended, or NULL with line->error. */
static inline dataset_example *dataset_new_example(dataset *d, json *line)
{
    if (d->count == d->capacity) {
        d->capacity = d->capacity == 0 ? 256 : 2 * d->capacity;
        dataset_example *more = (dataset_example *)realloc(d->examples, d->capacity * sizeof *more);
        if (more == NULL) {
            json_fail(line, line->line, "out of memory for %.0f lines", (double)d->capacity);
            return NULL;
        }
        d->examples = more;
    }
    d->examples[d->count].begin = d->tokens.count;
    return &d->examples[d->count++];
}

/* Ends the current example after the last token. Returns 1, or 0 if it had no target after its
 * first token and was dropped. */
static inline int dataset_end_example(dataset *d)
{
    dataset_example *e = &d->examples[d->count - 1];
    size_t target = e->begin + 1;
    while (target < d->tokens.count && !d->targets.flags[target])
        target++;
    e->end = d->tokens.count;
    if (target >= e->end) {
        d->tokens.count = e->begin;
        d->count--;
        return 0;
    }
    for (e->answer = e->begin; !d->targets.flags[e->answer];)
        e->answer++;
    return 1;
}

/* Ends the example of one answer of a pair: `which` is 0 for the chosen, 1 for the rejected answer.
 * An answer without a target is an error. */
static inline int dataset_end_answer(dataset *d, json *line, int which)
{
    return dataset_end_example(d)
               ? 0
               : json_fail(line, line->line,
                           "\"%s\": nothing to compare: without a prompt an answer "
                           "needs two tokens or more",
                           which > 0 ? "rejected" : "chosen");
}

/* ---- pairs ----------------------------------------------------------------------------------- */
static const char dataset_pair_formats[] =
    "{\"prompt\": \"..\", \"chosen\": \"..\", \"rejected\": \"..\"}, or lists of messages, "
    "[{\"role\": \"assistant\", \"content\": \"..\"}], in their place";

/* Returns the number of bytes in which two texts begin equally: whole characters, and without the
 * last one if that is a space. */
static inline size_t dataset_common_size(dataset_span a, dataset_span b)
{
    size_t n = 0;
    while (n < a.size && n < b.size && a.text[n] == b.text[n])
        n++;
    while (n > 0 && ((n < a.size && ((unsigned char)a.text[n] & 0xc0) == 0x80) ||
                     (n < b.size && ((unsigned char)b.text[n] & 0xc0) == 0x80)))
        n--;
    return n > 0 && a.text[n - 1] == ' ' ? n - 1 : n;
}

/* Adds a pair of answers that are texts. If `prompt` is 0, the common beginning of both answers is
 * the prompt. */
static inline int dataset_add_text_pair(dataset *d, json *line, dataset_reader *r, uint32_t prompt,
                                        const uint32_t answers[2])
{
    dataset_span before = dataset_string(line, answers[0]);
    if (prompt != 0)
        before = dataset_string(line, prompt);
    else
        before.size = dataset_common_size(before, dataset_string(line, answers[1]));
    d->lines[DATASET_PROMPTS]++;
    for (int i = 0; i < 2; i++) {
        dataset_span answer = dataset_string(line, answers[i]);
        if (prompt == 0) {
            answer.text += before.size;
            answer.size -= before.size;
        }
        d->empty += answer.size == 0;
        if (dataset_new_example(d, line) == NULL ||
            dataset_add_prompt(d, line, r, before, answer) != 0 ||
            dataset_end_answer(d, line, i) != 0)
            return -1;
    }
    return 0;
}

/* Returns whether two values of a JSON text are equal. */
static inline int dataset_equal(const json *d, uint32_t a, uint32_t b)
{
    const json_kind kind = json_kind_of(d, a);
    if (kind != json_kind_of(d, b) || json_size(d, a) != json_size(d, b))
        return 0;
    if (kind != JSON_ARRAY && kind != JSON_OBJECT)
        return memcmp(d->text + d->nodes[a].at, d->text + d->nodes[b].at, json_size(d, a)) == 0;
    for (a = json_first(d, a), b = json_first(d, b); a != 0;
         a = json_next(d, a), b = json_next(d, b))
        if (!dataset_equal(d, a, b) || (kind == JSON_OBJECT && !dataset_equal(d, a + 1, b + 1)))
            return 0;
    return 1;
}

/* Adds a pair of answers that are lists of messages. If there is no prompt, or the prompt is a
 * text, messages with which both answers begin belong to the prompt. */
static inline int dataset_add_chat_pair(dataset *d, json *line, dataset_reader *r, uint32_t prompt,
                                        const uint32_t answers[2])
{
    const int text = prompt != 0 && json_kind_of(line, prompt) == JSON_STRING;
    size_t common = 0;
    uint32_t a = json_first(line, answers[0]), b = json_first(line, answers[1]);
    for (; (prompt == 0 || text) && a != 0 && b != 0 && dataset_equal(line, a, b); common++) {
        a = json_next(line, a);
        b = json_next(line, b);
    }
    if (text && common > 0)
        prompt = 0; /* the common messages contain the prompt */
    d->lines[DATASET_CHATS]++;
    for (int i = 0; i < 2; i++) {
        if (dataset_begin_chat(line, r) != 0 || dataset_new_example(d, line) == NULL ||
            (prompt != 0 && dataset_add_list(line, r, prompt, 1) != 0))
            return -1;
        const size_t first = r->desc->chats->messages.size + common;
        if (dataset_add_list(line, r, answers[i], 0) != 0 ||
            dataset_add_chat(d, line, r, first, i > 0 ? "\"rejected\"" : "\"chosen\"") != 0 ||
            dataset_end_answer(d, line, i) != 0)
            return -1;
    }
    return 0;
}

/* Returns whether the last two examples, the answers of a pair, have the same tokens. */
static inline int dataset_is_same(const dataset *d)
{
    const dataset_example *a = &d->examples[d->count - 2], *b = a + 1;
    return a->end - a->begin == b->end - b->begin &&
           memcmp(d->tokens.ids + a->begin, d->tokens.ids + b->begin,
                  (a->end - a->begin) * sizeof *d->tokens.ids) == 0;
}

static inline int dataset_add_pair(dataset *d, json *line, dataset_reader *r)
{
    static const char *const names[2] = { "chosen", "rejected" };
    uint32_t answers[2], prompt = dataset_find(line, r->desc->fields, "prompt");
    prompt = json_kind_of(line, prompt) == JSON_NULL ? 0 : prompt;
    for (int i = 0; i < 2; i++) {
        answers[i] = dataset_find(line, r->desc->fields, names[i]);
        answers[i] = json_kind_of(line, answers[i]) == JSON_NULL ? 0 : answers[i];
        if (answers[i] == 0) {
            char expected[400];
            snprintf(expected, sizeof expected, "\"%s\" is missing: expected %s", names[i],
                     dataset_pair_formats);
            return dataset_fail_keys(line, r->desc->fields, expected);
        }
        const json_kind kind = json_kind_of(line, answers[i]);
        if ((kind != JSON_STRING && kind != JSON_ARRAY) || kind != json_kind_of(line, answers[0]))
            return json_fail(line, line->line, "\"%s\": expected %s", names[i],
                             i > 0 ? "the kind of \"chosen\", a text or a list of messages"
                                   : "a text, or a list of messages");
    }
    const json_kind kind = json_kind_of(line, prompt);
    const int chats = json_kind_of(line, answers[0]) == JSON_ARRAY;
    if (prompt != 0 && kind != JSON_STRING && (kind != JSON_ARRAY || !chats))
        return json_fail(line, line->line, "\"prompt\": expected a text%s",
                         chats ? ", or a list of messages" : ", as the answers are");
    if ((chats ? dataset_add_chat_pair : dataset_add_text_pair)(d, line, r, prompt, answers) != 0)
        return -1;
    d->same_pairs += (size_t)dataset_is_same(d);
    return 0;
}

/* If reading file f has failed at its first line, replaces the error by one that names the kind of
 * file. `formats` names the lines that are expected. f may be NULL. */
static inline void dataset_explain(json *line, FILE *f, const char *formats)
{
    if (line->error[0] == 0 || line->line > 1 || (f != NULL && dataset_refuse_magic(line, f)) ||
        line->line == 0 || line->text == NULL)
        return;
    const char first = line->text[strspn(line->text, " \t\r")];
    if (first == '[' || (first != '{' && line->count == 0)) {
        line->error[0] = 0;
        json_fail(line, 1, "the line %s: %s",
                  first == '[' ? "has an array: expected one object per line, without [ ] around all "
                                 "and commas between them"
                               : "is no JSON: expected one object per line",
                  formats);
    }
}

static inline int dataset_read_lines(dataset *d, const char *path, bpe *tokenizer,
                                     const dataset_desc *desc)
{
    const char *formats = d->pairs ? dataset_pair_formats : dataset_formats;
    json line;
    dataset_reader r;
    FILE *f = fopen(path, "rb");
    memset(&r, 0, sizeof r);
    r.tokenizer = tokenizer;
    r.desc = desc;
    json_init(&line, path);
    line.lenient = 1;
    if (f == NULL)
        json_fail(&line, 0, "%s", strerror(errno));
    while (line.error[0] == 0 && json_read_line(&line, f) == 1) {
        if (line.halves > 0 && d->replaced_line == 0)
            d->replaced_line = line.line;
        if (d->pairs ? dataset_add_pair(d, &line, &r) != 0
                     : dataset_new_example(d, &line) == NULL || dataset_add_line(d, &line, &r) != 0)
            break;
        d->skipped += !d->pairs && !dataset_end_example(d);
    }
    d->replaced = line.halves;
    dataset_explain(&line, f, formats);
    if (f != NULL)
        fclose(f);
    if (line.error[0] == 0 && d->skipped > 0 && d->count == 0)
        json_fail(&line, 0, "none of the %.0f lines has a target: texts and answers are empty",
                  (double)d->skipped);
    if (line.error[0] == 0 && d->count == 0)
        json_fail(&line, 0, "the file has no lines: expected %s", formats);
    memcpy(d->error, line.error, sizeof d->error);
    json_free(&line);
    free(r.text);
    json_free(&r.tools);
    return d->error[0] != 0 ? -1 : 0;
}

static inline int dataset_read(dataset *d, const char *path, bpe *tokenizer, int32_t vocabulary,
                               const dataset_desc *desc)
{
    d->padding = desc->end >= 0 ? desc->end : 0;
    int failed;
    if (d->pairs && !dataset_ends_with(path, ".jsonl")) {
        snprintf(d->error, sizeof d->error, "%.200s: pairs are lines of FILE.jsonl: %s", path,
                 dataset_pair_formats);
        return -1;
    }
    if (dataset_ends_with(path, ".bin")) {
        failed = bpe_read_bin(path, vocabulary, &d->tokens);
    } else if (dataset_ends_with(path, ".jsonl")) {
        failed = dataset_read_lines(d, path, tokenizer, desc);
    } else {
        failed = dataset_read_text(d, path, tokenizer) != 0;
    }
    if (failed && d->error[0] == 0)
        memcpy(d->error, d->tokens.error, sizeof d->error);
    for (size_t i = 0; i < d->tokens.count && !failed; i++)
        if (d->tokens.ids[i] >= vocabulary) {
            snprintf(d->error, sizeof d->error,
                     "%.200s: token %d, but the model knows %d: is the tokenizer another model's?",
                     path, (int)d->tokens.ids[i], (int)vocabulary);
            failed = 1;
        }
    if (failed)
        dataset_free(d);
    return failed ? -1 : 0;
}

/* Opens a dataset. Its kind follows from the end of the path: .jsonl is lines of JSON, .bin is
 * tokens below `vocabulary`, all else is text, in which special tokens are recognised. tokenizer
 * may be NULL for .bin. Returns 0, or -1 with d->error and nothing to free. */
static inline int dataset_open_as(dataset *d, const char *path, bpe *tokenizer, int32_t vocabulary,
                                  const dataset_desc *desc)
{
    memset(d, 0, sizeof *d);
    return dataset_read(d, path, tokenizer, vocabulary, desc);
}

/* Opens a dataset of pairs, a file .jsonl, with the arguments of dataset_open_as. A row has 2 T
 * tokens: prompt with chosen answer, then prompt with rejected answer, T tokens each. */
static inline int dataset_open_pairs(dataset *d, const char *path, bpe *tokenizer,
                                     int32_t vocabulary, const dataset_desc *desc)
{
    memset(d, 0, sizeof *d);
    d->pairs = 1;
    return dataset_read(d, path, tokenizer, vocabulary, desc);
}

/* Like dataset_open_as without a chat template; `end` is the end-of-text token, or -1. */
static inline int dataset_open(dataset *d, const char *path, bpe *tokenizer, int32_t vocabulary,
                               int32_t end)
{
    const dataset_desc desc = { end, 0, NULL, NULL };
    return dataset_open_as(d, path, tokenizer, vocabulary, &desc);
}

/* Returns the number of rows, if a row has T tokens (a pair, twice T tokens). */
static inline uint64_t dataset_rows(const dataset *d, int64_t T)
{
    const size_t targets = d->tokens.count > 0 ? d->tokens.count - 1 : 0;
    return d->examples != NULL ? d->count >> d->pairs : (targets + (size_t)T - 1) / (size_t)T;
}

/* Returns the smallest T at which no example is truncated; 0 if rows are windows, which fit any
 * T. */
static inline int64_t dataset_longest(const dataset *d)
{
    size_t most = 1;
    for (size_t i = 0; i < d->count; i++)
        if (d->examples[i].end - d->examples[i].begin - 1 > most)
            most = d->examples[i].end - d->examples[i].begin - 1;
    return d->examples != NULL ? (int64_t)most : 0;
}

/* Returns the number of examples that are longer than T tokens and are therefore truncated. */
static inline uint64_t dataset_truncated(const dataset *d, int64_t T)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->count; i++)
        n += d->examples[i].end - d->examples[i].begin > (size_t)T + 1;
    return n;
}

static inline void dataset_fill(const dataset *d, dataset_example e, int64_t T, int32_t *tokens,
                                int32_t *targets)
{
    const size_t length = (size_t)T;
    if (d->examples != NULL) {
        const size_t spare = e.end - e.begin > length + 1 ? e.end - e.begin - length - 1 : 0;
        const size_t prompt = e.answer > e.begin ? e.answer - e.begin - 1 : 0;
        e.begin += spare < prompt ? spare : prompt;
    }
    for (size_t t = 0; t < length; t++) {
        const size_t at = e.begin + t;
        tokens[t] = at < e.end ? d->tokens.ids[at] : d->padding;
        const int is_target =
            at + 1 < e.end && (d->targets.flags == NULL || d->targets.flags[at + 1]);
        targets[t] = is_target ? d->tokens.ids[at + 1] : -1;
    }
}

/* Writes tokens and targets of a row, T of each; of a pair, 2 T of each. */
static inline void dataset_row(const dataset *d, uint64_t row, int64_t T, int32_t *tokens,
                               int32_t *targets)
{
    const dataset_example window = { (size_t)row * (size_t)T, 0, d->tokens.count };
    if (d->examples == NULL)
        dataset_fill(d, window, T, tokens, targets);
    for (int i = 0; d->examples != NULL && i <= d->pairs; i++)
        dataset_fill(d, d->examples[(row << d->pairs) + (uint64_t)i], T, tokens + i * T,
                     targets + i * T);
}

/* Returns the row at a position of the shuffled order. Each epoch of n positions has every row
 * once, in another order: a Feistel network over the next power of 4, repeated until its result is
 * below n (Black 2002). */
static inline uint64_t dataset_shuffled(uint64_t seed, uint64_t position, uint64_t n)
{
    const uint64_t epoch = position / n;
    uint64_t i = position % n;
    int half = 1;
    while (half < 31 && (uint64_t)1 << 2 * half < n)
        half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        for (uint64_t round = 0; round < 4; round++) {
            const uint64_t low = i & mask;
            i = low << half | ((i >> half) ^ (sample_random(seed, 4 * epoch + round, low) & mask));
        }
    } while (i >= n);
    return i;
}

/* ---- batches of rows of similar length ------------------------------------------------------- */
enum { DATASET_WINDOW = 256 };

/* The order in which a split's rows, first to first + rows - 1, are used by steps of `batch` rows.
 * For each epoch, dataset_shuffled shuffles the rows; within windows of DATASET_WINDOW batches they
 * are sorted by length and cut into batches, and the batches are shuffled. The remaining
 * rows % batch rows, which have a random length, form a last, smaller batch. */
typedef struct {
    uint64_t row, length, position;
} dataset_entry;

typedef struct {
    const dataset *data;
    uint64_t first, rows, batch, seed;
    int64_t T; /* length of the longest row, in tokens */
    /* window: the window that `entries` holds, or UINT64_MAX for none; count: its number of rows */
    uint64_t window, count;
    dataset_entry *entries;
    uint64_t *current; /* the rows of the current batch */
} dataset_batches;

static inline void dataset_batches_free(dataset_batches *b)
{
    free(b->entries);
    free(b->current);
    b->entries = NULL;
    b->current = NULL;
}

/* Initialises b; the caller has set the fields from `data` to `T`. Returns 0, or -1 if out of
 * memory. */
static inline int dataset_batches_new(dataset_batches *b)
{
    const uint64_t most = DATASET_WINDOW * b->batch + b->batch;
    b->window = UINT64_MAX;
    b->count = 0;
    b->entries =
        (dataset_entry *)malloc((size_t)(b->rows < most ? b->rows + 1 : most) * sizeof *b->entries);
    b->current = (uint64_t *)malloc((size_t)b->batch * sizeof *b->current);
    if (b->entries != NULL && b->current != NULL)
        return 0;
    dataset_batches_free(b);
    return -1;
}

/* Returns the number of tokens without padding, at most T, of part i of a row (pairs have two
 * parts). */
static inline int64_t dataset_part_length(const dataset *d, uint64_t row, int i, int64_t T)
{
    size_t n = (size_t)T;
    const dataset_example *e =
        d->examples != NULL ? &d->examples[(row << d->pairs) + (uint64_t)i] : NULL;
    if (e != NULL)
        n = e->end - e->begin - 1;
    else if (d->tokens.count - (size_t)row * (size_t)T <= n)
        n = d->tokens.count - (size_t)row * (size_t)T - 1;
    return (int64_t)n < T ? (int64_t)n : T;
}

/* Returns the length that a row needs, at most T tokens; a pair needs that of its longer answer. */
static inline int64_t dataset_length(const dataset *d, uint64_t row, int64_t T)
{
    const int64_t a = dataset_part_length(d, row, 0, T),
                  b = dataset_part_length(d, row, d->pairs, T);
    return a > b ? a : b;
}

/* Returns the number of tokens of a row that are not padding. */
static inline int64_t dataset_real_tokens(const dataset *d, uint64_t row, int64_t T)
{
    return dataset_part_length(d, row, 0, T) + (d->pairs ? dataset_part_length(d, row, 1, T) : 0);
}

static inline int dataset_by_length(const void *a, const void *b)
{
    const dataset_entry *x = (const dataset_entry *)a, *y = (const dataset_entry *)b;
    return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                  : (x->position > y->position) - (x->position < y->position);
}

/* Reads the rows of a window into b->entries and sorts them by length. `window` counts the windows
 * of all epochs; an epoch has `windows` of them. */
static inline void dataset_sort(dataset_batches *b, uint64_t window, uint64_t windows)
{
    const uint64_t size = DATASET_WINDOW * b->batch, which = window % windows;
    const uint64_t base = window / windows * b->rows + which * size;
    b->window = window;
    b->count = which + 1 < windows ? size : b->rows - which * size;
    for (uint64_t i = 0; i < b->count; i++) {
        b->entries[i].row = b->first + dataset_shuffled(b->seed, base + i, b->rows);
        b->entries[i].length = (uint64_t)dataset_length(b->data, b->entries[i].row, b->T);
        b->entries[i].position = i;
    }
    qsort(b->entries, (size_t)b->count, sizeof *b->entries, dataset_by_length);
}

/* Writes to b->current the rows of the batch at `position`, which is the number of rows used before
 * it. Returns how many they are: `batch`, or fewer at the end of an epoch. The result depends only
 * on `position` and the fields of b. */
static inline uint64_t dataset_batch(dataset_batches *b, uint64_t position)
{
    const uint64_t full = b->rows / b->batch, remainder = b->rows % b->batch;
    const uint64_t windows =
        full > DATASET_WINDOW ? (full + DATASET_WINDOW - 1) / DATASET_WINDOW : 1;
    const uint64_t step = position % b->rows / b->batch; /* number of the batch in its epoch */
    const uint64_t last = step / DATASET_WINDOW < windows ? step / DATASET_WINDOW : windows - 1;
    const uint64_t window = position / b->rows * windows + last;
    if (window != b->window)
        dataset_sort(b, window, windows);
    const uint64_t here = b->count / b->batch, position_in = step - last * DATASET_WINDOW;
    /* 1 if rows remain that fill no batch; sorted by length, they come before batch number `gap` */
    const uint64_t left = last + 1 == windows && remainder > 0;
    const uint64_t gap = left ? sample_random(b->seed + 1, window, 0) % (here + 1) : here;
    const uint64_t which =
        position_in < here ? dataset_shuffled(b->seed + 2, window * here + position_in, here) : gap;
    const uint64_t from =
        which * b->batch + (left && position_in < here && which >= gap ? remainder : 0);
    const uint64_t n = position_in < here ? b->batch : remainder;
    for (uint64_t i = 0; i < n; i++)
        b->current[i] = b->entries[from + i].row;
    return n;
}

/* Returns the number of batches in an epoch. */
static inline uint64_t dataset_steps(const dataset_batches *b)
{
    return (b->rows + b->batch - 1) / b->batch;
}

/* Returns the length of the longest of the n rows in b->current. */
static inline int64_t dataset_batch_length(const dataset_batches *b, uint64_t n)
{
    int64_t most = 1;
    for (uint64_t i = 0; i < n; i++) {
        const int64_t length = dataset_length(b->data, b->current[i], b->T);
        most = length > most ? length : most;
    }
    return most;
}

/* Chooses at most `most` row lengths (up to LENGTHS_MOST) that pad the batches of the first epoch
 * least (lengths_choose), and writes them to `lengths`, ascending; the last one is that of the longest
 * row. Returns their number, or 0 if out of memory. */
static inline int dataset_classes(dataset_batches *b, int most, int64_t *lengths)
{
    int64_t longest = 1;
    for (uint64_t i = 0; i < b->rows; i++) {
        const int64_t length = dataset_length(b->data, b->first + i, b->T);
        longest = length > longest ? length : longest;
    }
    const int64_t interval = lengths_interval(b->T);
    uint64_t *weights = (uint64_t *)calloc((size_t)(longest / interval) + 2, sizeof *weights);
    for (uint64_t p = 0, n; weights != NULL && p < b->rows; p += n) {
        n = dataset_batch(b, p);
        weights[(dataset_batch_length(b, n) + interval - 1) / interval] += n;
    }
    const int classes =
        weights != NULL ? lengths_choose(weights, interval, longest, most, lengths) : 0;
    free(weights);
    return classes;
}
#endif
