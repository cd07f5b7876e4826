/* rows.h - opens a file of any bytes as a dataset, for fuzz_chat.c and fuzz_dataset.c. Include
 * after dataset.h and reader.h. */
#ifndef ROWS_H
#define ROWS_H
#include "input_hash.h"
#include "memfs.h"

/* Checks the rows of T tokens of a dataset: each token and each target is in the vocabulary or padding (target -1),
 * and the batches of an epoch contain each row once. */
static void try_rows(const dataset *d, int64_t T, int32_t vocabulary)
{
    enum { ROWS_MOST = 512 };
    const uint64_t n = dataset_rows(d, T);
    int32_t *rows = (int32_t *)malloc((size_t)(4 * T) * sizeof *rows);
    unsigned char seen[ROWS_MOST] = { 0 };
    int64_t lengths[LENGTHS_MOST];
    must(rows != NULL && n < UINT32_MAX);
    for (uint64_t i = 0; i < n && i < 64; i++) {
        dataset_row(d, i, T, rows, rows + (T << d->pairs));
        for (int64_t k = 0; k < T << d->pairs; k++) {
            const int32_t target = rows[(T << d->pairs) + k];
            must(rows[k] >= 0 && rows[k] < vocabulary && target >= -1 && target < vocabulary);
        }
        must(dataset_length(d, i, T) >= 0 && dataset_length(d, i, T) <= T);
        must(dataset_real_tokens(d, i, T) <= T << d->pairs);
        must(dataset_shuffled(7, i, n) < n);
    }
    free(rows);
    must(dataset_truncated(d, T) <= d->count);
    dataset_batches b = { d, 0, n, 3, 7, T, 0, 0, NULL, NULL };
    if (n == 0 || n > ROWS_MOST)
        return;
    must(dataset_batches_new(&b) == 0);
    uint64_t rows_seen = 0;
    for (uint64_t p = 0, got; p < n; p += got) {
        got = dataset_batch(&b, p);
        must(got > 0 && got <= 3);
        for (uint64_t i = 0; i < got; i++) {
            must(b.current[i] < n && !seen[b.current[i]]);
            seen[b.current[i]] = 1;
            rows_seen++;
        }
    }
    must(rows_seen == n);
    const int classes = dataset_classes(&b, 4, lengths);
    must(classes >= 1 && classes <= 4);
    for (int i = 1; i < classes; i++)
        must(lengths[i] > lengths[i - 1]);
    must(lengths[classes - 1] <= T);
    dataset_batches_free(&b);
}

/* Opens rows of one of three lengths, selected by `chosen`, or for one input in eight, of all three lengths. */
static void try_dataset(const dataset *d, int32_t vocabulary, uint64_t chosen)
{
    const int all = chosen % 8 == 0, one = (int)(chosen / 8 % 3);
    for (size_t i = 0; i < d->tokens.count; i++)
        must(d->tokens.ids[i] >= 0 && d->tokens.ids[i] < vocabulary);
    for (size_t i = 0; i < d->count; i++) {
        const dataset_example *e = &d->examples[i];
        must(e->begin <= e->answer && e->answer < e->end && e->end <= d->tokens.count);
        must(e->end - e->begin > 1 && d->targets.flags[e->answer]);
    }
    must(d->examples == NULL || dataset_longest(d) > 0);
    if (all || one == 0)
        try_rows(d, 1, vocabulary);
    if (all || one == 1)
        try_rows(d, 7, vocabulary);
    if ((all || one == 2) && d->examples != NULL && dataset_longest(d) < 4096)
        try_rows(d, dataset_longest(d), vocabulary);
}

/* Writes a file and opens it as a dataset in one of the possible ways, or for one input in eight, in all ways.
 * `chats` is a chat template, or NULL. */
static void try_rows_of(const char *name, const void *bytes, size_t size, bpe *tokenizer,
                        chat *chats)
{
    const uint64_t chosen = input_hash(bytes, size);
    char path[96];
    memfs_put(name, bytes, size);
    snprintf(path, sizeof path, "%s/%s", memfs_folder(chosen / 4096), name);
    for (int way = 0; way < 4; way++) {
        if (chosen % 8 > 0 && chosen / 8 % 4 != (uint64_t)way)
            continue;
        dataset d;
        const int32_t V = tokenizer->count;
        const dataset_desc desc = { way % 2 == 0 ? -1 : 0, way / 2, chats, NULL };
        const int failed = way == 3 ? dataset_open_pairs(&d, path, tokenizer, V, &desc)
                                    : dataset_open_as(&d, path, tokenizer, V, &desc);
        must((failed != 0) == (d.error[0] != 0));
        must(!failed || (d.tokens.ids == NULL && d.examples == NULL && d.targets.flags == NULL));
        if (!failed)
            try_dataset(&d, V, chosen / 32);
        dataset_free(&d);
    }
    memfs_end();
}
#endif
