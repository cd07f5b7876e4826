/* fuzz_json.c - reads any bytes as JSON and as JSON lines.
 *
 * The functions under test are json_parse on all bytes, json_read_line on their lines, and every getter on every value.
 * The rules: A refusal has an error text. Values lie within the text, and their links lead to the neighbouring values.
 * Every key is found, unless it occurs twice. A written value is JSON again with the same values, and writing that JSON
 * again gives the same bytes. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "json.h"
#include "reader.h"

/* Visits every value of d and checks that getters refuse values of other types. */
static void try_values(json *d)
{
    must(d->count > JSON_ROOT);
    for (uint32_t i = JSON_ROOT; i < d->count; i++) {
        const json_kind kind = json_kind_of(d, i);
        const uint32_t next = json_next(d, i), first = json_first(d, i);
        must(kind >= JSON_NULL && kind <= JSON_KEY && json_kind_name(kind)[0] != 0);
        must(next == 0 || (next > i && next < d->count));
        must(first == 0 || first == i + 1);
        uint32_t held = 0;
        for (uint32_t k = first; k != 0 && held <= d->count; k = json_next(d, k))
            held++;
        must(first == 0 || held == json_size(d, i));
        d->error[0] = 0;
        const char *text = json_text(d, i);
        must((d->error[0] == 0) == (kind == JSON_STRING || kind == JSON_KEY));
        must(d->error[0] != 0 || text[json_size(d, i)] == 0);
        d->error[0] = 0;
        json_real_of(d, i);
        must((d->error[0] == 0) == (kind == JSON_NUMBER));
        d->error[0] = 0;
        json_int_of(d, i);
        must(d->error[0] != 0 || kind == JSON_NUMBER);
        d->error[0] = 0;
        json_bool_of(d, i);
        must((d->error[0] == 0) == (kind == JSON_TRUE || kind == JSON_FALSE));
        for (uint32_t k = kind == JSON_OBJECT && json_size(d, i) < 64 ? first : 0; k != 0;
             k = json_next(d, k)) {
            char name[256];
            d->error[0] = 0;
            if (json_size(d, k) >= sizeof name || strlen(json_text(d, k)) < json_size(d, k))
                continue;
            strcpy(name, json_text(d, k));
            must(json_find(d, i, name) == k + 1 || d->error[0] != 0);
            must(json_require(d, i, name, JSON_NOTHING) != 0);
            json_int(d, i, name, 1);
            json_bool(d, i, name, 1);
            json_require(d, i, name, JSON_OBJECT);
        }
    }
    d->error[0] = 0;
}

/* Returns the text of a written value, which the caller frees. */
static char *written(const json *d, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    must(f != NULL);
    json_write_value(f, d, JSON_ROOT);
    must(fclose(f) == 0);
    return text;
}

static void try_written(const json *d)
{
    size_t first, second;
    json again;
    char *text = written(d, &first), *copy = (char *)malloc(first + 1);
    must(copy != NULL);
    memcpy(copy, text, first + 1);
    json_init(&again, "again");
    must(json_parse(&again, copy, first) == 0 && again.count == d->count);
    for (uint32_t i = JSON_ROOT; i < d->count; i++)
        must(again.nodes[i].kind == d->nodes[i].kind && again.nodes[i].size == d->nodes[i].size);
    char *same = written(&again, &second);
    must(first == second && memcmp(text, same, first) == 0);
    json_free(&again);
    free(same);
    free(copy);
    free(text);
}

static void try_text(const uint8_t *bytes, size_t size)
{
    char *text = (char *)malloc(size + 1);
    json d;
    must(text != NULL);
    memcpy(text, bytes, size);
    text[size] = 0;
    json_init(&d, "text");
    if (json_parse(&d, text, size) != 0) {
        must(strncmp(d.error, "text:", 5) == 0);
    } else {
        must(d.error[0] == 0);
        try_written(&d);
        try_values(&d);
    }
    json_free(&d);
    free(text);
}

static void try_lines(const uint8_t *bytes, size_t size)
{
    FILE *f = fmemopen((void *)(uintptr_t)bytes, size, "rb");
    json d;
    int got;
    uint32_t line = 0;
    must(f != NULL);
    json_init(&d, "lines");
    while ((got = json_read_line(&d, f)) == 1) {
        must(d.error[0] == 0 && d.line > line);
        line = d.line;
        try_values(&d);
    }
    must((got == -1) == (d.error[0] != 0));
    json_free(&d);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    try_text(bytes, size);
    if (size > 0)
        try_lines(bytes, size);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const files[] = { "tests/golden/gpt2/model/config.json",
                                         "tests/golden/gpt2/sharded/model.safetensors.index.json",
                                         "tests/golden/windows/lora/adapter_config.json" };
    static const char *const texts[] = {
        "[0, -1, 1.5e-7, 1E+9, true, false, null, \"\", {}, []]",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u0000\\ud83d\\ude00 \xc3\xa9\xe2\x96\x81\"",
        "\xef\xbb\xbf{\"a\": {\"a\": 1, \"b\": [[[1]]]}}\n\n{\"text\": \"\"} \r\n[1]\n",
        "{\"a\": 1, \"a\": 2, \"\": {\"\": 0}}"
    };
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        reader_add_file(&s, files[i]);
        reader_end_seed(&s, files[i]);
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "text-%d", (int)i);
        reader_add_part(&s, texts[i], strlen(texts[i]));
        reader_end_seed(&s, name);
    }
    exit(0);
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    return reader_mutate_json(bytes, size, most, seed, NULL);
}
