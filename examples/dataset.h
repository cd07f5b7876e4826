/* dataset.h - rows of tokens and targets from a text, a .bin file of tokens, or JSON lines of prompts
 * and answers: to copy, with tokenizer.h, json.h and sample.h.
 *
 *     dataset d;
 *     if (dataset_open(&d, "chat.jsonl", &tokenizer, vocabulary, end_of_text) != 0)
 *         fprintf(stderr, "%s\n", d.error);
 *     for (uint64_t p = 0; p < n; p++) // the p-th row that is learned; an epoch has each row once
 *         dataset_row(&d, dataset_shuffled(seed, p, dataset_rows(&d, T)), T, tokens, targets);
 *     dataset_free(&d);
 *
 * Text and tokens are cut into windows of T, each target the token behind. A line of FILE.jsonl is
 * {"prompt": "..", "answer": ".."}: a row of its own, of which only the answer and the end of text
 * behind it are targets; all others are -1, which no loss counts. A row that is too long loses the
 * beginning of its prompt, then the end of its answer. What is no text is refused by name: bytes of
 * 0, archives, pictures, weights, UTF-16, an array of JSON. C99 or C++11. */
#ifndef DATASET_H
#define DATASET_H
#include "sample.h"
#include "tokenizer.h"

typedef struct {
    size_t begin, answer, end; /* in tokens */
} dataset_example;

typedef struct {
    bpe_tokens all;
    dataset_example *examples; /* NULL: windows */
    size_t count, room;        /* of examples */
    size_t replaced;           /* bytes of a text that are no UTF-8: learned as U+FFFD */
    int32_t padding;
    char error[512];
} dataset;

static inline void dataset_free(dataset *d)
{
    bpe_tokens_free(&d->all);
    free(d->examples);
    d->examples = NULL;
    d->count = d->room = 0;
}

static inline int dataset_ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

/* Appends the tokens of a member of the object; in an answer, too, text is only text. */
static inline int dataset_member(dataset *d, json *line, const char *key, bpe *tokenizer)
{
    const uint32_t at = json_need(line, JSON_ROOT, key, JSON_STRING);
    if (line->error[0] == 0 &&
        bpe_encode(tokenizer, json_text(line, at), json_size(line, at), 0, &d->all) != 0)
        json_fail(line, line->line, "%s", d->all.error);
    return line->error[0] != 0 ? -1 : 0;
}

static inline int dataset_push(bpe_tokens *t, int32_t id)
{
    if (bpe_reserve(t, 1) != 0)
        return -1;
    t->ids[t->count++] = id;
    return 0;
}

/* What is no text, by how it begins, '?' being any byte. No text of any language begins so: one of the
 * bytes is not UTF-8's, or a control character, but for bzip2 and PDF. */
static const struct {
    unsigned char size;
    const char *head, *name, *remedy;
} dataset_kinds[] = {
    { 9, "?????\0\0\0{", "weights (safetensors)",
      "a model is the folder that they are in, what is learned a text" },
    { 8, "GGUF?\0\0\0", "weights (GGUF)", "what is learned is a text" },
    { 2, "\x80\2", "a Python pickle (PyTorch's weights are one)", "what is learned is a text" },
    { 4, "PK\3\4", "a zip archive (.docx, .xlsx and .npz are such, too)",
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
    { 8, "\x89PNG\r\n\x1a\n", "a PNG picture", "what is learned is a text" },
    { 3, "\xff\xd8\xff", "a JPEG picture", "what is learned is a text" },
    { 4, "\177ELF", "a program", "what is learned is a text" },
};

static inline int dataset_begins(const char *text, size_t size, int kind)
{
    const size_t n = dataset_kinds[kind].size;
    const char *head = dataset_kinds[kind].head;
    size_t i = 0;
    while (i < n && i < size && (head[i] == '?' || head[i] == text[i]))
        i++;
    return i == n;
}

/* JSON that is no text: an array, or lines with the keys of examples. 0: it is none; -1: out of
 * memory, file->error. */
static inline int dataset_is_json(json *file, const char *text, size_t size)
{
    const size_t first = strspn(text, " \t\r\n");
    const int array = text[first] == '[';
    json d;
    if (!array && text[first] != '{')
        return 0;
    size = array ? size : first + strcspn(text + first, "\n");
    json_init(&d, file->name);
    d.own = (char *)malloc(size + 1);
    if (d.own == NULL)
        return json_fail(file, 0, "out of memory for %.0f bytes", (double)size);
    memcpy(d.own, text, size);
    d.own[size] = 0;
    int is = json_parse(&d, d.own, size) == 0;
    if (is && !array)
        is = json_find(&d, JSON_ROOT, "prompt") != 0 && json_find(&d, JSON_ROOT, "answer") != 0;
    if (strstr(d.error, "out of memory") != NULL) {
        memcpy(file->error, d.error, sizeof d.error);
        is = -1;
    }
    json_free(&d);
    return is;
}

/* Says what a text is that is none; 0: it is one. */
static inline int dataset_refuse(json *file, const char *text, size_t size)
{
    static const char expected[] = "{\"prompt\": \"..\", \"answer\": \"..\"}";
    const char *zero = (const char *)memchr(text, 0, size);
    for (int i = 0; i < (int)(sizeof dataset_kinds / sizeof dataset_kinds[0]); i++)
        if (dataset_begins(text, size, i))
            return json_fail(file, 0, "this is %s, no text; %s", dataset_kinds[i].name,
                             dataset_kinds[i].remedy);
    if (size > 262 && memcmp(text + 257, "ustar", 5) == 0 && zero != NULL)
        return json_fail(file, 0, "this is a tar archive, no text; unpack it: tar -xf");
    if (zero != NULL)
        return json_fail(file, 0,
                         "byte %.0f is 0: this is no text, or not in UTF-8; save it as UTF-8 "
                         "(tokens of 16 bits go to FILE.bin)",
                         (double)(zero - text) + 1);
    const int is = dataset_is_json(file, text, size);
    if (is <= 0)
        return is;
    return text[strspn(text, " \t\r\n")] == '['
               ? json_fail(file, 0,
                           "this is an array of JSON, no text; write FILE.jsonl, a line each: %s",
                           expected)
               : json_fail(file, 0, "these are lines of JSON, %s: name the file FILE.jsonl",
                           expected);
}

/* Reads a text. */
static inline int dataset_text(dataset *d, const char *path, bpe *tokenizer)
{
    json file;
    size_t size = 0;
    uint32_t c;
    const char *text = json_read_text(&file, path, &size);
    const int mark = text != NULL ? json_mark(&file, text, size) : -1;
    int failed = mark < 0;
    if (mark > 0) {
        text += mark;
        size -= (size_t)mark;
    }
    failed = failed || dataset_refuse(&file, text, size) != 0 ||
             bpe_encode(tokenizer, text, size, 1, &d->all) != 0;
    for (size_t i = 0; i < size && !failed;) {
        const int n = json_utf8(text + i, size - i, &c);
        d->replaced += n < 0 ? (size_t)-n : 0;
        i += (size_t)(n < 0 ? -n : n);
    }
    memcpy(d->error, file.error, sizeof d->error);
    json_free(&file);
    return failed ? -1 : 0;
}

/* Reads {"prompt":, "answer":} lines. */
static inline int dataset_lines(dataset *d, const char *path, bpe *tokenizer, int32_t end)
{
    json line;
    FILE *f = fopen(path, "rb");
    json_init(&line, path);
    if (f == NULL)
        json_fail(&line, 0, "%s", strerror(errno));
    while (line.error[0] == 0 && json_read_line(&line, f) == 1) {
        dataset_example e = { d->all.count, 0, 0 };
        if (d->count == d->room) {
            d->room = d->room == 0 ? 256 : 2 * d->room;
            dataset_example *more = (dataset_example *)realloc(d->examples, d->room * sizeof *more);
            if (more == NULL) {
                json_fail(&line, line.line, "out of memory for %.0f lines", (double)d->room);
                break;
            }
            d->examples = more;
        }
        int failed = dataset_member(d, &line, "prompt", tokenizer) != 0;
        if (!failed && d->all.count == e.begin && end >= 0) /* something must come before */
            failed = dataset_push(&d->all, end) != 0;
        e.answer = d->all.count;
        failed = failed || dataset_member(d, &line, "answer", tokenizer) != 0 ||
                 (end >= 0 && dataset_push(&d->all, end) != 0);
        e.end = d->all.count;
        if (failed)
            json_fail(&line, line.line, "%s", d->all.error);
        else if (e.end == e.answer || e.end - e.begin < 2)
            json_fail(&line, line.line, "an answer without a token: the model has no end of text");
        d->examples[d->count++] = e;
    }
    if (f != NULL)
        fclose(f);
    if (line.error[0] != 0 && line.line == 1 && line.text != NULL &&
        line.text[strspn(line.text, " \t\r")] == '[') {
        line.error[0] = 0;
        json_fail(&line, 1,
                  "an array: expected an object a line, {\"prompt\": \"..\", \"answer\": \"..\"}, "
                  "with no [ ] around them and no commas between");
    }
    if (line.error[0] == 0 && d->count == 0)
        json_fail(&line, 0, "no lines: expected {\"prompt\": \"..\", \"answer\": \"..\"}");
    memcpy(d->error, line.error, sizeof d->error);
    json_free(&line);
    return d->error[0] != 0 ? -1 : 0;
}

/* By the end of the path: .jsonl, .bin (tokens below `vocabulary`), else text, in which special
 * tokens count. end: of a text, -1: there is none. tokenizer may be NULL for .bin. 0, or -1 with
 * d->error set and nothing to free. */
static inline int dataset_open(dataset *d, const char *path, bpe *tokenizer, int32_t vocabulary,
                               int32_t end)
{
    memset(d, 0, sizeof *d);
    d->padding = end >= 0 ? end : 0;
    int failed;
    if (dataset_ends_in(path, ".bin")) {
        failed = bpe_read_bin(path, vocabulary, &d->all);
    } else if (dataset_ends_in(path, ".jsonl")) {
        failed = dataset_lines(d, path, tokenizer, end);
    } else {
        failed = dataset_text(d, path, tokenizer) != 0;
    }
    if (failed && d->error[0] == 0)
        memcpy(d->error, d->all.error, sizeof d->error);
    for (size_t i = 0; i < d->all.count && !failed; i++)
        if (d->all.ids[i] >= vocabulary) {
            snprintf(d->error, sizeof d->error,
                     "%.200s: token %d, but the model knows %d: is the tokenizer another model's?",
                     path, (int)d->all.ids[i], (int)vocabulary);
            failed = 1;
        }
    if (failed)
        dataset_free(d);
    return failed ? -1 : 0;
}

/* Rows of T tokens. */
static inline uint64_t dataset_rows(const dataset *d, int64_t T)
{
    const size_t targets = d->all.count > 0 ? d->all.count - 1 : 0;
    return d->examples != NULL ? d->count : (targets + (size_t)T - 1) / (size_t)T;
}

/* The least T that cuts no example; 0: windows, which may have any. */
static inline int64_t dataset_longest(const dataset *d)
{
    size_t most = 1;
    for (size_t i = 0; i < d->count; i++)
        if (d->examples[i].end - d->examples[i].begin - 1 > most)
            most = d->examples[i].end - d->examples[i].begin - 1;
    return d->examples != NULL ? (int64_t)most : 0;
}

/* Examples that a row of T tokens is too short for. */
static inline uint64_t dataset_cut(const dataset *d, int64_t T)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->count; i++)
        n += d->examples[i].end - d->examples[i].begin > (size_t)T + 1;
    return n;
}

static inline void dataset_row(const dataset *d, uint64_t row, int64_t T, int32_t *tokens,
                               int32_t *targets)
{
    const size_t length = (size_t)T;
    dataset_example e = { (size_t)row * length, 0, d->all.count };
    if (d->examples != NULL) {
        e = d->examples[row];
        const size_t spare = e.end - e.begin > length + 1 ? e.end - e.begin - length - 1 : 0;
        const size_t prompt = e.answer > e.begin ? e.answer - e.begin - 1 : 0;
        e.begin += spare < prompt ? spare : prompt;
    }
    for (size_t t = 0; t < length; t++) {
        const size_t at = e.begin + t;
        tokens[t] = at < e.end ? d->all.ids[at] : d->padding;
        targets[t] = at + 1 < e.end && at + 1 >= e.answer ? d->all.ids[at + 1] : -1;
    }
}

/* The row that comes at a position: in each epoch of n rows all of them, in an order of its own. A
 * Feistel network over the next power of 4, walked until it falls below n (Black 2002). */
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
            i = low << half | ((i >> half) ^ (sample_draw(seed, 4 * epoch + round, low) & mask));
        }
    } while (i >= n);
    return i;
}
#endif
