/* tokens.h - compares tokens of examples/tokenizer.h with those of Hugging Face's tokenizers (golden/tokenizer,
 * golden/gguf_tokenizer). Include it after check.h and tokenizer.h. */
#ifndef TESTS_TOKENS_H
#define TESTS_TOKENS_H

static void put_file(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

static void check_ids(json *d, uint32_t expected, bpe *b, const char *text, size_t n, int flags)
{
    bpe_tokens t = { NULL, 0, 0, "" };
    CHECK(bpe_encode(b, text, n, flags, &t) == 0);
    size_t same = 0;
    uint32_t i = json_first(d, expected);
    for (; i != 0 && same < t.count && json_int_of(d, i) == t.ids[same]; i = json_next(d, i))
        same++;
    CHECK_MSG(same == t.count && i == 0, "%s:%u: token %d differs", d->name, (unsigned)d->line,
              (int)same);
    bpe_tokens_free(&t);
}

static size_t from_hex(char *s)
{
    size_t n = strlen(s) / 2;
    for (size_t i = 0; i < n; i++) {
        char two[3] = { s[2 * i], s[2 * i + 1], 0 };
        s[i] = (char)strtol(two, NULL, 16);
    }
    return n;
}

/* Compares the text decoded from a line's tokens with the line's text. Decoding token by token must give the same text
 * if that text is valid UTF-8. */
static void check_decoded(json *d, bpe *b)
{
    uint32_t list = json_find(d, JSON_ROOT, "decode"), expected = json_find(d, JSON_ROOT, "text");
    int32_t *ids = (int32_t *)malloc((json_size(d, list) + 1) * sizeof *ids);
    size_t n = 0, size, total = 0, length;
    for (uint32_t i = json_first(d, list); i != 0; i = json_next(d, i))
        ids[n++] = (int32_t)json_int_of(d, i);
    char *text = bpe_decode(b, ids, n, &size);
    int valid = bpe_search(text, text + size, "\xef\xbf\xbd", 3) == text + size;
    CHECK_MSG(json_size(d, expected) == size && !memcmp(json_text(d, expected), text, size),
              "%s:%u: \"%s\"", d->name, (unsigned)d->line, text);
    for (size_t i = 0; i < n; i++) {
        const char *bytes =
            i == 0 ? bpe_first_bytes(b, ids[i], &length) : bpe_bytes(b, ids[i], &length);
        if (valid)
            CHECK_MSG(total + length <= size && !memcmp(text + total, bytes, length),
                      "%s:%u: \"%s\"", d->name, (unsigned)d->line, text);
        total += length;
    }
    CHECK(total == size || !valid);
    free(text);
    free(ids);
}
#endif
