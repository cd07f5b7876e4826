/* reader.h - shared by the fuzz targets of the readers in examples/: a folder in memory for files,
 * seeds, inputs of several files, and mutations of JSON value by value. */
#ifndef READER_H
#define READER_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#endif
#endif

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most); /* provided by libFuzzer */

/* Aborts if the condition is false: libFuzzer then keeps the input as a finding. */
#define must(holds)                                                                                \
    ((holds) ? (void)0                                                                             \
             : (fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #holds), abort()))

/* ---- files ----------------------------------------------------------------------------------- */
static char reader_home[64]; /* a folder for this process; in /dev/shm if that exists */

static void reader_remove(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", reader_home, name);
    if (remove(path) != 0)
        must(errno == ENOENT);
}

static void reader_rmdir(void) { must(rmdir(reader_home) == 0 || errno == ENOTEMPTY); }

/* Returns the path HOME/NAME. The string is overwritten by the second call after this one. */
static const char *reader_path(const char *name)
{
    static char paths[2][256];
    static int which;
    if (reader_home[0] == 0) {
        snprintf(reader_home, sizeof reader_home, "%s/fuzz.XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        must(mkdtemp(reader_home) != NULL && atexit(reader_rmdir) == 0);
    }
    which ^= 1;
    snprintf(paths[which], sizeof paths[which], "%s/%s", reader_home, name);
    return paths[which];
}

static void reader_write_to(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    must(f != NULL);
    must(size == 0 || fwrite(bytes, 1, size, f) == size);
    must(fclose(f) == 0);
}

static void reader_write(const char *name, const void *bytes, size_t size)
{
    reader_write_to(reader_path(name), bytes, size);
}

/* Returns the bytes of the whole file, with a 0 after them; the caller frees them. */
static char *reader_read(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    must(f != NULL && fseek(f, 0, SEEK_END) == 0);
    *size = (size_t)ftell(f);
    rewind(f);
    text = (char *)malloc(*size + 1);
    must(text != NULL && fread(text, 1, *size, f) == *size && fclose(f) == 0);
    text[*size] = 0;
    return text;
}

/* ---- an input of several files ---------------------------------------------------------------- */
/* An input consists of several files, one after the other with the byte READER_BETWEEN between them, which no text
 * contains. */
enum { READER_PARTS = 8, READER_BETWEEN = 0x1e };

typedef struct {
    const char *at[READER_PARTS];
    size_t size[READER_PARTS];
    int count;
} reader_parts;

static reader_parts reader_split(const uint8_t *bytes, size_t size)
{
    reader_parts p;
    const char *at = (const char *)bytes, *end = at + size;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < READER_PARTS; i++) {
        const char *next = at < end && i + 1 < READER_PARTS
                               ? (const char *)memchr(at, READER_BETWEEN, (size_t)(end - at))
                               : NULL;
        p.at[i] = at;
        p.size[i] = (size_t)((next != NULL ? next : end) - at);
        p.count = i + 1;
        if (next == NULL)
            break;
        at = next + 1;
    }
    return p;
}

/* ---- seeds ----------------------------------------------------------------------------------- */
/* Returns the folder into which seeds are to be written, or NULL if the target runs normally. */
static const char *reader_seeds(void)
{
    const char *to = getenv("FUZZ_SEEDS");
    must(to == NULL || mkdir(to, 0777) == 0 || errno == EEXIST);
    return to;
}

typedef struct { /* a seed under construction */
    char *text;
    size_t size;
} reader_seed;

static void reader_add(reader_seed *s, const void *bytes, size_t size)
{
    s->text = (char *)realloc(s->text, s->size + size + 1);
    must(s->text != NULL);
    memcpy(s->text + s->size, bytes, size);
    s->size += size;
}

/* Appends a part. */
static void reader_add_part(reader_seed *s, const void *bytes, size_t size)
{
    const char between = READER_BETWEEN;
    if (s->text != NULL)
        reader_add(s, &between, 1);
    reader_add(s, bytes, size);
}

static void reader_add_file(reader_seed *s, const char *path)
{
    size_t size;
    char *text = reader_read(path, &size);
    reader_add_part(s, text, size);
    free(text);
}

/* Writes the seed to FUZZ_SEEDS/NAME, with each / of the name replaced by -. */
static void reader_end_seed(reader_seed *s, const char *name)
{
    char path[1024];
    const int from = snprintf(path, sizeof path, "%s/", reader_seeds());
    snprintf(path + from, sizeof path - (size_t)from, "%s", name);
    for (char *p = path + from; *p != 0; p++)
        *p = (char)(*p == '/' ? '-' : *p);
    reader_write_to(path, s->text, s->size);
    free(s->text);
    memset(s, 0, sizeof *s);
}

/* ---- changing inputs -------------------------------------------------------------------------- */
/* Lets libFuzzer mutate the bytes. MemorySanitizer does not see its writes, so the bytes are unpoisoned here. */
static size_t reader_mutate_bytes(uint8_t *bytes, size_t size, size_t most)
{
    size = LLVMFuzzerMutate(bytes, size, most);
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
    __msan_unpoison(bytes, size);
#endif
#endif
    return size;
}

static uint64_t reader_state;

static size_t reader_draw(size_t n) /* Returns a random number below n > 0 (splitmix64). */
{
    uint64_t z = reader_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

/* Replaces the bytes from `from` to `to` - 1 of a text by n others. Returns the new size, or the old size if the
 * result does not fit. */
static size_t reader_splice(uint8_t *text, size_t size, size_t most, size_t from, size_t to,
                            const void *bytes, size_t n)
{
    if (size - (to - from) + n > most)
        return size;
    memmove(text + from + n, text + to, size - to);
    memcpy(text + from, bytes, n);
    return size - (to - from) + n;
}

typedef struct {
    size_t from, to;
    int key;
} reader_span;

/* Excludes a function from sanitizers and coverage: the functions that search for a place to mutate would otherwise
 * take a quarter of the time for texts of 12 KB. */
#if defined(__has_attribute) && defined(__has_feature)
#define READER_PLAIN __attribute__((no_sanitize("address", "memory", "undefined", "coverage")))
#else
#define READER_PLAIN
#endif

/* Nonzero for characters of numbers and of words such as true. */
static const unsigned char reader_in_word[256] = {
    ['0'] = 1, ['1'] = 1, ['2'] = 1, ['3'] = 1, ['4'] = 1, ['5'] = 1, ['6'] = 1, ['7'] = 1,
    ['8'] = 1, ['9'] = 1, ['a'] = 1, ['b'] = 1, ['c'] = 1, ['d'] = 1, ['e'] = 1, ['f'] = 1,
    ['g'] = 1, ['h'] = 1, ['i'] = 1, ['j'] = 1, ['k'] = 1, ['l'] = 1, ['m'] = 1, ['n'] = 1,
    ['o'] = 1, ['p'] = 1, ['q'] = 1, ['r'] = 1, ['s'] = 1, ['t'] = 1, ['u'] = 1, ['v'] = 1,
    ['w'] = 1, ['x'] = 1, ['y'] = 1, ['z'] = 1, ['-'] = 1, ['+'] = 1, ['.'] = 1, ['E'] = 1
};

/* Finds the values and keys of a text that is JSON, or was once: strings, numbers, words, and the
 * contents of brackets. */
READER_PLAIN static size_t reader_scan(const uint8_t *s, size_t size, reader_span *spans,
                                       size_t most)
{
    size_t open[64], depth = 0, n = 0;
    for (size_t i = 0; i < size && n < most;) {
        const size_t from = i++;
        if (s[from] == '{' || s[from] == '[') {
            if (depth < 64)
                open[depth++] = n;
        } else if (s[from] == '}' || s[from] == ']') {
            if (depth > 0)
                spans[open[--depth]].to = i;
            continue;
        } else if (s[from] == '"') {
            while (i < size && s[i] != '"')
                i += s[i] == '\\' && i + 1 < size ? 2 : 1;
            i += i < size;
        } else if (reader_in_word[s[from]]) {
            while (i < size && reader_in_word[s[i]])
                i++;
        } else {
            continue;
        }
        spans[n].from = from;
        spans[n].to = s[from] == '{' || s[from] == '[' ? size : i;
        size_t behind = i;
        while (behind < size && s[behind] == ' ')
            behind++;
        spans[n++].key = s[from] == '"' && behind < size && s[behind] == ':';
    }
    return n;
}

/* Changes one value, key or member of a JSON text. `words` is a NULL-terminated list of further values that can
 * replace one. */
static size_t reader_change_json(uint8_t *s, size_t size, size_t most, const char *const *words)
{
    static const char *const values[] = { "0",
                                          "1",
                                          "-1",
                                          "2",
                                          "8",
                                          "64",
                                          "255",
                                          "256",
                                          "65536",
                                          "16777216",
                                          "16777217",
                                          "2147483647",
                                          "2147483648",
                                          "4294967296",
                                          "9223372036854775807",
                                          "-9223372036854775808",
                                          "1e999",
                                          "-1e999",
                                          "1e-320",
                                          "1.0000000000000002",
                                          "0.5",
                                          "null",
                                          "true",
                                          "false",
                                          "\"\"",
                                          "\" \"",
                                          "\"\\u0000\"",
                                          "\"\\ud83d\\ude00\"",
                                          "\"\xe2\x96\x81\"",
                                          "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
                                          "[]",
                                          "{}",
                                          "[0]",
                                          "[[]]",
                                          "{\"\":0}" };
    enum { VALUES = sizeof values / sizeof values[0], SPANS = 4096 };
    static reader_span spans[SPANS];
    const size_t n = reader_scan(s, size, spans, SPANS);
    size_t count = 0;
    while (words != NULL && words[count] != NULL)
        count++;
    if (n == 0)
        return reader_mutate_bytes(s, size, most);
    const size_t at = reader_draw(n), other = reader_draw(n);
    const reader_span one = spans[at];
    const char *value =
        count > 0 && reader_draw(2) == 0 ? words[reader_draw(count)] : values[reader_draw(VALUES)];
    uint8_t *copy = NULL;
    size_t from = one.from, to = one.to, length;
    switch (reader_draw(5)) {
    case 0: return reader_splice(s, size, most, from, to, value, strlen(value));
    case 1: /* replaces the value by another value of the text */
    case 2: /* inserts another value of the text before this one, with a comma between */
        length = spans[other].to - spans[other].from;
        copy = (uint8_t *)malloc(length + 2);
        must(copy != NULL);
        memcpy(copy, s + spans[other].from, length);
        if (spans[other].key && other + 1 < n && reader_draw(2) == 0) { /* a member with its key */
            length = spans[other + 1].to - spans[other].from;
            copy = (uint8_t *)realloc(copy, length + 2);
            must(copy != NULL);
            memcpy(copy, s + spans[other].from, length);
            copy[length++] = ',';
            to = from;
        } else if (reader_draw(2) == 0 && !spans[other].key) {
            copy[length++] = ',';
            to = from;
        }
        size = reader_splice(s, size, most, from, to, copy, length);
        free(copy);
        return size;
    case 3: /* removes the value (a key with its value) and the comma after it */
        if (one.key && at + 1 < n)
            to = spans[at + 1].to;
        while (to < size && s[to] == ' ')
            to++;
        to += to < size && s[to] == ',';
        return reader_splice(s, size, most, from, to, "", 0);
    default: /* mutates its bytes */
        length = to - from;
        copy = (uint8_t *)malloc(length + 64);
        must(copy != NULL);
        memcpy(copy, s + from, length);
        length = reader_mutate_bytes(copy, length, length + 64);
        size = reader_splice(s, size, most, from, to, copy, length);
        free(copy);
        return size;
    }
}

/* A mutator for inputs that are JSON or consist of several JSON texts. */
static size_t reader_mutate_json(uint8_t *bytes, size_t size, size_t most, unsigned seed,
                                 const char *const *words)
{
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
    __msan_unpoison(bytes, size);
#endif
#endif
    reader_state = seed;
    if (reader_draw(4) == 0)
        return reader_mutate_bytes(bytes, size, most);
    for (size_t n = 1 + reader_draw(3); n > 0; n--)
        size = reader_change_json(bytes, size, most, words);
    return size;
}
#endif
