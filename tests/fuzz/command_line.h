/* command_line.h - shared by fuzz_options.c, fuzz_gpt.c and fuzz_simulate.c, which parse arbitrary words as the
 * command line of a program of examples/. Define PROGRAM as the program's file, then include this file before any
 * other; define `fresh`, which resets the program's variables. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H
#define _GNU_SOURCE
#include <stdio.h>
static FILE *messages;
#undef stderr
#define stderr messages
#define main   program_main
#include PROGRAM
#undef main
#undef stderr
#define stderr stderr_of_libc
extern FILE *stderr_of_libc __asm__("stderr");
#include "input_hash.h"
#include "reader.h"

enum { WORDS = 24, TEXT = 1 << 14 };

static char message_text[1 << 13];
/* paths that replace the words FILE and GONE: the first exists, the second does not */
static char file[256], missing[256];
static void fresh(void);

static void reset_messages(void)
{
    memset(message_text, 0, sizeof message_text);
    rewind(messages);
}

/* Checks that the program has printed a message that ends in a newline; with status 0 it may also have printed none. */
static void must_have_message(int status)
{
    fflush(messages);
    const size_t n = strlen(message_text);
    must(status == 0 || (n > 1 && (message_text[n - 1] == '\n' || n + 2 > sizeof message_text)));
}

static void must_be_allowed(void)
{
    for (int i = 0; i < options_count(&options); i++) {
        const options_desc *p = options_at(&options, i);
        if (p->kind == OPTIONS_REAL) {
            const double x = *(double *)p->variable;
            must((x >= p->min && x <= p->max) || (x == 0 && options_default(&options, p) == NULL));
        } else if (p->kind == OPTIONS_CHOICE) {
            const int64_t x = *(int64_t *)p->variable;
            int count = 0;
            while (p->choices[count] != NULL)
                count++;
            must(x >= 0 && x < count);
        } else if (p->kind == OPTIONS_FLAG) {
            must(*(int64_t *)p->variable == 0 || *(int64_t *)p->variable == 1);
        } else if (!options_is_text(p->kind)) {
            const int64_t x = *(int64_t *)p->variable;
            must(((double)x >= p->min && (double)x <= p->max) ||
                 (p->kind == OPTIONS_INT_OR_AUTO && x == OPTIONS_AUTO) ||
                 (x == 0 && options_default(&options, p) == NULL));
        }
    }
}

/* Returns a hash of all option values. */
static uint64_t hash_of(void)
{
    uint64_t h = 0;
    for (int i = 0; i < options_count(&options); i++) {
        const options_desc *p = options_at(&options, i);
        const char *value = options_is_text(p->kind) ? *(const char **)p->variable : NULL;
        h = h * UINT64_C(1099511628211) + (uint64_t)i;
        if (!options_is_text(p->kind))
            h ^= input_hash(p->variable, 8);
        else if (value != NULL)
            h ^= input_hash(value, strlen(value) + 1);
    }
    return h;
}

/* Cuts the text `line` into words at its line ends, and returns the number of words. */
static int parse_line(char *line, char **argv)
{
    int argc = 1;
    argv[0] = (char *)(uintptr_t)options.program;
    for (char *at = line; argc < WORDS; argc++) {
        char *end = strchr(at, '\n');
        if (end != NULL)
            *end = 0;
        argv[argc] = strcmp(at, "FILE") == 0 ? file : strcmp(at, "GONE") == 0 ? missing : at;
        if (end == NULL) {
            argc++;
            break;
        }
        at = end + 1;
    }
    argv[argc] = NULL;
    return argc;
}

/* Returns whether the program accepts the words. If it does, checks that all options have allowed values, that texts
 * are those given last, and that "--name value" and "--name=value" give an option the same value. */
static int parse_both_ways(int argc, char **argv)
{
    static char joined[2 * TEXT];
    char *other[WORDS + 1];
    size_t used = 0;
    int n = 1;
    fresh();
    int status = options_parse(&options, argc, argv);
    must_have_message(status);
    if (status != 0)
        return 0;
    must_be_allowed();
    const uint64_t hash = hash_of();
    other[0] = argv[0];
    for (int i = 1; i < argc; i++, n++) {
        const char *value, *word = argv[i];
        const options_desc *p = options_parse_one(&options, argc, argv, &i, &value);
        must(p != NULL && value != NULL);
        const int flag = p->kind == OPTIONS_FLAG || used + strlen(value) + 64 > sizeof joined;
        other[n] = flag ? (char *)(uintptr_t)word : joined + used;
        if (!flag && strchr(word, '=') == NULL)
            used += (size_t)sprintf(joined + used, "--%s=%s", p->name, value) + 1;
        else if (!flag && n + 1 < WORDS) {
            used += (size_t)sprintf(joined + used, "--%s", p->name) + 1;
            other[++n] = (char *)(uintptr_t)value;
        } else if (!flag)
            other[n] = (char *)(uintptr_t)word;
        if (strcmp(options_given(&options, argc, argv, p->name), value) == 0 &&
            p->kind == OPTIONS_TEXT)
            must(strcmp(*(const char **)p->variable, value) == 0);
        if (n + 1 >= WORDS)
            return 0;
    }
    other[n] = NULL;
    must(options_parse(&options, n, other) == 0 && hash_of() == hash);
    fresh();
    must(options_parse(&options, argc, argv) == 0 && hash_of() == hash);
    return 1;
}

/* Writes FILE as the checkpoint of a training with the notes of this text: a line "name=value" gives the note of an
 * option, a line ".name=value" another note. */
static void words_note(const char *from, size_t size)
{
    static gckpt_store *kept;
    if (kept == NULL)
        kept = gckpt_store_new(NULL);
    for (int i = 0; i < options_count(&options); i++) {
        char key[64];
        snprintf(key, sizeof key, "option.%s", options_at(&options, i)->name);
        gckpt_store_set_note(kept, key, NULL);
    }
    for (const char *at = from, *end = from + size; at < end;) {
        char key[64], value[512];
        const char *line = (const char *)memchr(at, '\n', (size_t)(end - at));
        line = line != NULL ? line : end;
        const char *is = (const char *)memchr(at, '=', (size_t)(line - at));
        if (is != NULL && is - at < 50 && line - is < 500) {
            snprintf(key, sizeof key, "%s%.*s", at[0] == '.' ? "" : "option.",
                     (int)(is - at) - (at[0] == '.'), at + (at[0] == '.'));
            snprintf(value, sizeof value, "%.*s", (int)(line - is - 1), is + 1);
            gckpt_store_set_note(kept, key, value);
        }
        at = line + 1;
    }
    must(gckpt_store_save(kept, file, NULL) == GCKPT_OK);
}

/* A mutator for command lines: inserts or removes an option of the program's table, with or without a value, or
 * changes an option's value. */
static size_t words_mutate(uint8_t *bytes, size_t size, size_t most, unsigned seed,
                           const char *const *values, size_t count)
{
    char word[256];
    reader_state = seed;
    if (reader_draw(4) == 0)
        return reader_mutate_bytes(bytes, size, most);
    size_t begins[256], n = 0; /* where lines begin */
    begins[n++] = 0;
    for (size_t i = 0; i + 1 < size && n < 256; i++)
        if (bytes[i] == '\n' || bytes[i] == READER_BETWEEN)
            begins[n++] = i + 1;
    const size_t from = begins[reader_draw(n)];
    size_t to = from;
    while (to < size && bytes[to] != '\n' && bytes[to] != READER_BETWEEN)
        to++;
    const uint8_t *between = (const uint8_t *)memchr(bytes, READER_BETWEEN, size);
    const int in_line = between == NULL || from <= (size_t)(between - bytes);
    const options_desc *p = options_at(&options, (int)reader_draw((size_t)options_count(&options)));
    const char *value = values[reader_draw(count)];
    if (p->kind == OPTIONS_CHOICE && reader_draw(2) == 0)
        value = p->choices[0];
    switch (reader_draw(4)) {
    case 0: /* removes a line with its line end */
        return reader_splice(bytes, size, most, from, to + (to < size && bytes[to] == '\n'), "", 0);
    case 1: /* replaces the value */
        snprintf(word, sizeof word, "%s", value);
        return reader_splice(bytes, size, most, from, to, word, strlen(word));
    default: /* inserts an option */
        snprintf(word, sizeof word, in_line ? "--%s%s%s\n" : "%s%s%s\n", p->name,
                 !in_line || (p->kind != OPTIONS_FLAG && reader_draw(2)) ? "="
                 : p->kind == OPTIONS_FLAG                               ? ""
                                                                         : "\n",
                 in_line && p->kind == OPTIONS_FLAG ? "" : value);
        return reader_splice(bytes, size, most, from, from, word, strlen(word));
    }
}

/* Prepares the process before the first input. If FUZZ_SEEDS is set, writes the seeds and exits. */
static void words_begin(const char *const *seeds, size_t count)
{
    messages = fmemopen(message_text, sizeof message_text, "w");
    /* --help prints to stdout, which is discarded */
    must(messages != NULL && freopen("/dev/null", "w", stdout) != NULL);
    snprintf(file, sizeof file, "%s", reader_path("file"));
    snprintf(missing, sizeof missing, "%s.none", file);
    if (reader_seeds() == NULL)
        return;
    for (size_t i = 0; i < count; i++) {
        reader_seed seed = { NULL, 0 };
        char name[16];
        reader_add(&seed, seeds[i], strlen(seeds[i]));
        snprintf(name, sizeof name, "%02d", (int)i);
        reader_end_seed(&seed, name);
    }
    exit(0);
}
#endif
