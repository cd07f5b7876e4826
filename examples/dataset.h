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
 * beginning of its prompt, then the end of its answer. C99 or C++11. */
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
        json file;
        size_t size = 0;
        const char *text = json_read_text(&file, path, &size);
        failed = text == NULL || bpe_encode(tokenizer, text, size, 1, &d->all) != 0;
        if (text == NULL)
            memcpy(d->error, file.error, sizeof d->error);
        json_free(&file);
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
