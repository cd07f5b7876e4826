/* fuzz_options.c - command lines of examples/finetune.c, which has the longest table: any words, and
 * with --resume a file whose notes say any options; and a log of events to go on behind.
 *
 * The input has parts: the words, a line each (of which FILE is a training's file with the notes, and
 * GONE is not there), notes, a line each, "name=value", and the log of events. What must hold:
 *   - what is refused has a status that is not 0 and a line on stderr, which ends;
 *   - what is taken is within what its row allows, and the same whether it is written "--name value"
 *     or "--name=value"; of an option given twice the last one counts;
 *   - the log's end is the end of a line, before events of later steps; a log that is none stays. */
#define _GNU_SOURCE
#include <stdio.h>
static FILE *said;
#undef stderr
#define stderr said
#define main   finetune
#include "examples/finetune.c"
#undef main
#undef stderr
#define stderr stderr_of_libc
extern FILE *stderr_of_libc __asm__("stderr");
#include "reader.h"

enum { WORDS = 24, TEXT = 1 << 14 };
enum { LINE, KEPT, EVENTS };

static char text[1 << 13]; /* what was said */
static gckpt_store *kept;
static char file[256], gone[256];

static void fresh(void)
{
    memset(&o, 0, sizeof o);
    memset(&lm, 0, sizeof lm);
    memset(&run, 0, sizeof run);
    while (session.text_count > 0)
        free(session.texts[--session.text_count]);
    memset(&session, 0, sizeof session);
    session.program = "finetune";
    session.out = said;
    memset(text, 0, sizeof text);
    rewind(said);
}

/* A text that ended; of status 0 there may be one, too. */
static void must_say(int status)
{
    fflush(said);
    const size_t n = strlen(text);
    must(status == 0 || (n > 1 && (text[n - 1] == '\n' || n + 2 > sizeof text)));
}

static void must_be_allowed(void)
{
    for (int i = 0; i < options_count(&options); i++) {
        const options_row *p = options_at(&options, i);
        if (p->kind == OPTIONS_REAL) {
            const double x = *(double *)p->where;
            must((x >= p->min && x <= p->max) || (x == 0 && options_initial(&options, p) == NULL));
        } else if (p->kind == OPTIONS_CHOICE) {
            const int64_t x = *(int64_t *)p->where;
            int count = 0;
            while (p->choices[count] != NULL)
                count++;
            must(x >= 0 && x < count);
        } else if (p->kind == OPTIONS_FLAG) {
            must(*(int64_t *)p->where == 0 || *(int64_t *)p->where == 1);
        } else if (!options_is_text(p->kind)) {
            const int64_t x = *(int64_t *)p->where;
            must(((double)x >= p->min && (double)x <= p->max) ||
                 (p->kind == OPTIONS_WHOLE_OR_AUTO && x == OPTIONS_AUTO) ||
                 (x == 0 && options_initial(&options, p) == NULL));
        }
    }
}

/* All options as they are now. */
static uint64_t hash_of(void)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < options_count(&options); i++) {
        const options_row *p = options_at(&options, i);
        if (!options_is_text(p->kind))
            h = session_hash(h, p->where, 8);
        else if (*(const char **)p->where != NULL)
            h = session_hash(h, *(const char **)p->where, strlen(*(const char **)p->where) + 1);
        h = session_hash(h, &i, sizeof i);
    }
    return h;
}

static int words_of(char *line, char **argv)
{
    int argc = 1;
    argv[0] = (char *)"finetune";
    for (char *at = line; argc < WORDS; argc++) {
        char *end = strchr(at, '\n');
        if (end != NULL)
            *end = 0;
        argv[argc] = strcmp(at, "FILE") == 0 ? file : strcmp(at, "GONE") == 0 ? gone : at;
        if (end == NULL) {
            argc++;
            break;
        }
        at = end + 1;
    }
    argv[argc] = NULL;
    return argc;
}

static void try_line(int argc, char **argv)
{
    static char joined[2 * TEXT];
    char *other[WORDS + 1];
    size_t used = 0;
    int n = 1;
    fresh();
    int status = options_parse(&options, argc, argv);
    must_say(status);
    if (status != 0)
        return;
    must_be_allowed();
    const uint64_t hash = hash_of();
    other[0] = argv[0];
    for (int i = 1; i < argc; i++, n++) { /* the other way to write it */
        const char *value, *word = argv[i];
        const options_row *p = options_next(&options, argc, argv, &i, &value);
        must(p != NULL && value != NULL);
        const int flag = p->kind == OPTIONS_FLAG || used + strlen(value) + 64 > sizeof joined;
        other[n] = flag ? (char *)word : joined + used;
        if (!flag && strchr(word, '=') == NULL)
            used += (size_t)sprintf(joined + used, "--%s=%s", p->name, value) + 1;
        else if (!flag && n + 1 < WORDS) {
            used += (size_t)sprintf(joined + used, "--%s", p->name) + 1;
            other[++n] = (char *)value;
        } else if (!flag)
            other[n] = (char *)word;
        if (strcmp(options_given(&options, argc, argv, p->name), value) == 0 &&
            p->kind == OPTIONS_TEXT)
            must(strcmp(*(const char **)p->where, value) == 0);
        if (n + 1 >= WORDS)
            return;
    }
    other[n] = NULL;
    must(options_parse(&options, n, other) == 0 && hash_of() == hash);
    fresh();
    must(options_parse(&options, argc, argv) == 0 && hash_of() == hash);
    if (lm.help) {
        options_print_row(&options, options_at(&options, argc % options_count(&options)));
        return;
    }
    if (lm.resume != NULL)
        status = restore_options(argc, argv);
    must_say(status);
    if (status == 0)
        must_be_allowed();
    if (status == 0)
        status = check_steps(argc, argv);
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = check_objective(argc, argv);
    must_say(status);
    if (status == 0 && o.new_model != NULL) {
        static model_any m;
        memset(&m, 0, sizeof m);
        size_model(&m);
    }
    if (status == 0)
        must(o.model != NULL && lm.batch > 0);
}

static void try_notes(const char *from, size_t size)
{
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
    must(gckpt_store_save(kept, file) == GCKPT_OK);
}

static void try_events(const char *bytes, size_t size, uint64_t step)
{
    char path[256];
    size_t n;
    fresh();
    snprintf(path, sizeof path, "%s", reader_path("events"));
    reader_write_to(path, bytes, size);
    const int status = session_append(path, step);
    if (session.json != NULL)
        fclose(session.json);
    session.json = NULL;
    must_say(status);
    char *left = reader_read(path, &n);
    must(n <= size && memcmp(left, bytes, n) == 0);
    must(status == 0 || n == size);
    must(status != 0 || n == 0 || left[n - 1] == '\n');
    const char *key = status == 0 ? strstr(left, "\"step\":") : NULL;
    must(key == NULL || strtoull(key + 7, NULL, 10) <= step);
    free(left);
    remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static char line[TEXT];
    char *argv[WORDS + 1];
    const reader_parts p = reader_split(bytes, size);
    if (p.size[LINE] >= sizeof line)
        return 0;
    memcpy(line, p.at[LINE], p.size[LINE]);
    line[p.size[LINE]] = 0;
    const int argc = words_of(line, argv);
    if (p.count > KEPT)
        try_notes(p.at[KEPT], p.size[KEPT]);
    else
        remove(file);
    try_line(argc, argv);
    if (p.count > EVENTS)
        try_events(p.at[EVENTS], p.size[EVENTS], p.size[LINE] % 9);
    fresh();
    return 0;
}

/* An option of the table, with a value or without, comes in, goes or gets another value. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const values[] = { "0",          "1",
                                          "-1",         "auto",
                                          "0.5",        "1e999",
                                          "nan",        "20M",
                                          "20MB",       "9007199254740993",
                                          "1e-3",       "FILE",
                                          "GONE",       "x.gguf",
                                          "",           "all",
                                          "lora",       "full",
                                          "dpo",        "distill",
                                          "2x8x2x16",   "llama:1x8x2x1x16x300",
                                          "c_attn=4",   "{}",
                                          "0-3,5",      "--steps",
                                          "4294967296", "i4",
                                          "last" };
    char word[256];
    reader_state = seed;
    if (reader_draw(4) == 0)
        return reader_mutate_bytes(bytes, size, most);
    size_t begins[256], n = 0; /* of lines */
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
    const options_row *p = options_at(&options, (int)reader_draw((size_t)options_count(&options)));
    const char *value = values[reader_draw(sizeof values / sizeof *values)];
    if (p->kind == OPTIONS_CHOICE && reader_draw(2) == 0)
        value = p->choices[0];
    switch (reader_draw(4)) {
    case 0: /* away, with its end */
        return reader_splice(bytes, size, most, from, to + (to < size && bytes[to] == '\n'), "", 0);
    case 1: /* another value */
        snprintf(word, sizeof word, "%s", value);
        return reader_splice(bytes, size, most, from, to, word, strlen(word));
    default: /* one more */
        snprintf(word, sizeof word, in_line ? "--%s%s%s\n" : "%s%s%s\n", p->name,
                 !in_line || (p->kind != OPTIONS_FLAG && reader_draw(2)) ? "="
                 : p->kind == OPTIONS_FLAG                               ? ""
                                                                         : "\n",
                 in_line && p->kind == OPTIONS_FLAG ? "" : value);
        return reader_splice(bytes, size, most, from, from, word, strlen(word));
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const seeds[] = {
        "--model\nGONE\n--data\nGONE\n--steps\n10\n--save=tuned",
        "--model=GONE\n--method=all\n--data=x\n--save\nd\n--picture\np.svg\n--budget\n20MB",
        "--resume\nFILE\n--lr\n1e-4\x1emodel=GONE\nmethod=lora\ndata=GONE\nsize=4\nsteps=100\n.data=00",
        "--model\nm\n--generate\n--prompt\nx\n--sample\n5\n--temperature=0.5",
        "--model\nm\n--objective\ndpo\n--beta\n0.2\n--data\nd.jsonl\n--reference\nr",
        "--model\nm\n--objective=distill\n--teacher\nt\n--data\nd\n--distill-alpha\n0.1",
        "--new\n2x8x2x16\n--model\nm\n--data\nd\n--context\n8\n--epochs\n2\n--micro-batch\nauto",
        "--help",
        "-h\n--stpes\n3",
        "\x1e\x1e{\"event\":\"options\",\"step\":0}\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\","
        "\"step\":9}\n{\"event\"",
        "--merge\nm2\n--adapter\na\n--model\nm\n--export\nbf16",
        "--model\nm.gguf\n--export-gguf\na.gguf\n--adapter\na\n--store\nauto"
    };
    (void)argc;
    (void)argv;
    said = fmemopen(text, sizeof text, "w");
    must(said != NULL && freopen("/dev/null", "w", stdout) != NULL); /* help */
    snprintf(file, sizeof file, "%s", reader_path("file"));
    snprintf(gone, sizeof gone, "%s.none", file);
    kept = gckpt_store_new(NULL);
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        reader_seed seed = { NULL, 0 };
        char name[16];
        reader_add(&seed, seeds[i], strlen(seeds[i]));
        snprintf(name, sizeof name, "%02d", (int)i);
        reader_end_seed(&seed, name);
    }
    exit(0);
}
