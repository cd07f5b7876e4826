/* jinja.h - renders templates in the subset of Jinja that chat templates use, and records the
 * origin of every byte of the output. To copy, with json.h and unicode.h.
 *
 *     static void body(jinja *j, void *user)   // builds values, renders; a failure leaves it
 *     {
 *         jinja_set(j, "messages", jinja_from_json(j, d, JSON_ROOT, 7));
 *         jinja_render(j, (jinja_text *)user);
 *     }
 *     jinja j;
 *     jinja_text out;
 *     if (jinja_open(&j, text, size) != 0 || jinja_run(&j, body, &out) != 0)
 *         fprintf(stderr, "%s\n", j.error); // line 3, column 14: unknown filter 'xmlattr'
 *     jinja_free(&j);
 *
 * White space is treated as transformers sets it for chat templates: trim_blocks and lstrip_blocks
 * are on. Known are the tags if, for (with else, a filter, break and continue), set (also of a
 * block), macro, call and generation; all expressions except powers; and the filters, tests,
 * methods and functions of JINJA_WORDS. Anything else is an error that names it and its place. A template
 * can read only the values that it is given; steps, depth and memory have limits. Whole numbers
 * have 64 bits, and upper and lower case are known for ASCII only: other letters are an error.
 *
 * Each string has marks: numbers that say where its bytes come from. Text of the template has mark
 * 0, values from jinja_from_json have the mark that the caller chose, and parts of strings keep
 * their marks through all operations. C99 or C++11. */
#ifndef JINJA_H
#define JINJA_H
#include "json.h"
#include "unicode.h"
#include <float.h>
#include <limits.h>
#include <setjmp.h>
#include <time.h>

enum {
    JINJA_DEPTH = 100,       /* most levels of nested expressions, blocks and calls */
    JINJA_ARGUMENTS = 24,    /* most arguments of a call */
    JINJA_GENERATED = 0x8000 /* bit of a mark: the byte was written in {% generation %} */
};

typedef enum {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION
} jinja_kind;

typedef struct jinja_node jinja_node;
typedef struct jinja_scope jinja_scope;
typedef struct jinja_loop jinja_loop;
typedef struct jinja_value jinja_value;

/* A value. Values are immutable, except the variables of a namespace. */
struct jinja_value {
    jinja_kind kind;
    int is_tuple;           /* of a list: nonzero if it prints as a tuple */
    int is_safe;            /* of a string: nonzero after the filter safe */
    int64_t whole;          /* a bool or an int */
    double real;            /* a float */
    const char *text;       /* a string in UTF-8, or the name of an undefined value */
    size_t size;            /* bytes of text, items of a list, or pairs of a dict */
    const uint16_t *marks;  /* one mark for each byte of a string, or NULL */
    uint16_t mark;          /* the mark of all bytes, if marks is NULL */
    jinja_value *items;     /* items of a list, or keys and values of a dict in turn */
    const jinja_node *node; /* a macro */
    jinja_scope *scope;     /* variables of a namespace, or the scope that defines a macro */
    jinja_loop *loop;
};

typedef struct jinja_variable {
    struct jinja_variable *next;
    jinja_value name, value;
} jinja_variable;

struct jinja_scope {
    jinja_scope *parent;
    jinja_variable *variables;
};

struct jinja_loop {
    const jinja_value *items;
    size_t index, count;
    jinja_scope *outer;
};

typedef enum {
    JINJA_TEXT,
    JINJA_OUTPUT,
    JINJA_IF,
    JINJA_FOR,
    JINJA_SET,
    JINJA_CAPTURE,
    JINJA_DEFINE,
    JINJA_CALL_BLOCK,
    JINJA_GENERATION,
    JINJA_BREAK,
    JINJA_CONTINUE,
    JINJA_CONSTANT,
    JINJA_NAME,
    JINJA_ATTRIBUTE,
    JINJA_ITEM,
    JINJA_SLICE,
    JINJA_CALL,
    JINJA_FILTER,
    JINJA_TEST,
    JINJA_NOT,
    JINJA_NEGATE,
    JINJA_PLUS,
    JINJA_AND,
    JINJA_OR,
    JINJA_BINARY,
    JINJA_COMPARE,
    JINJA_CONDITION,
    JINJA_MAKE_LIST,
    JINJA_MAKE_DICT
} jinja_node_kind;

/* A node of a parsed template. a, b, c and d are its parts, each of which may be the first of a
 * list; `next` is the next one in the list that contains this node. */
struct jinja_node {
    jinja_node_kind kind;
    int op;            /* operator, or the number of a word; a tuple or negated test: 1 */
    size_t at;         /* offset in the template */
    jinja_value value; /* a constant or text, or as string a name */
    jinja_node *a, *b, *c, *d, *next;
};

typedef struct {
    char *text;
    uint16_t *marks;
    size_t size, capacity;
} jinja_text;

/* Memory is taken from blocks, the newest of which is first. */
typedef struct jinja_block {
    struct jinja_block *next;
    size_t size, used, pad;
} jinja_block;

typedef struct {
    char *source; /* the template, with normalised newlines */
    size_t size, position;
    size_t at;          /* offset for error texts */
    jinja_block *block; /* of the parsed template and of values */
    jinja_node *root;
    jinja_scope global;
    jinja_text *out;
    /* the current token: a letter for its kind, or the characters of an operator */
    int token, closing, nesting;
    size_t token_at, token_size;
    int depth;
    size_t bytes, max_bytes; /* bytes of all blocks, and their limit */
    uint64_t steps, max_steps;
    int64_t now; /* time for strftime_now, in seconds since 1970, as UTC */
    jmp_buf failed;
    char error[400];
} jinja;

/* A state of the memory, to which jinja_release returns. */
typedef struct {
    jinja_block *block;
    size_t used;
    jinja_variable *globals;
} jinja_memory;

/* ---- errors and memory ----------------------------------------------------------------------- */
/* Stores an error with the place in the template, unless j->at is SIZE_MAX, and leaves the body of
 * jinja_run. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3), noreturn))
#endif
static inline void
jinja_fail(jinja *j, const char *format, ...)
{
    int line = 1, column = 1, n = 0;
    for (size_t i = 0; i < j->at && i < j->size; i++)
        if (j->source[i] == '\n')
            line++, column = 1;
        else
            column += ((unsigned char)j->source[i] & 0xc0) != 0x80;
    if (j->at != SIZE_MAX)
        n = snprintf(j->error, sizeof j->error, "line %d, column %d: ", line, column);
    va_list args;
    va_start(args, format);
    vsnprintf(j->error + n, sizeof j->error - (size_t)n, format, args);
    va_end(args);
    longjmp(j->failed, 1);
}

/* Returns n bytes, which jinja_release or jinja_free frees. */
static inline void *jinja_alloc(jinja *j, size_t n)
{
    const size_t least = 16000;
    if (n > SIZE_MAX / 2 || n / 16 > j->max_bytes / 16)
        jinja_fail(j, "more than %.0f MB of memory are needed", (double)j->max_bytes / 1e6);
    n = (n + 15) & ~(size_t)15;
    if (j->block == NULL || n > j->block->size - j->block->used) {
        const size_t size = n > least ? n : least;
        if (size > j->max_bytes || j->bytes > j->max_bytes - size)
            jinja_fail(j, "more than %.0f MB of memory are needed", (double)j->max_bytes / 1e6);
        jinja_block *block = (jinja_block *)malloc(sizeof *block + size);
        if (block == NULL)
            jinja_fail(j, "out of memory for %.0f bytes", (double)(sizeof *block + size));
        block->next = j->block;
        block->size = size;
        block->used = 0;
        j->block = block;
        j->bytes += size;
    }
    j->block->used += n;
    return (char *)(j->block + 1) + (j->block->used - n);
}

static inline jinja_memory jinja_keep(const jinja *j)
{
    const jinja_memory m = { j->block, j->block != NULL ? j->block->used : 0, j->global.variables };
    return m;
}

/* Frees all memory, values and global variables that are newer than a state. */
static inline void jinja_release(jinja *j, jinja_memory m)
{
    while (j->block != m.block) {
        jinja_block *next = j->block->next;
        j->bytes -= j->block->size;
        free(j->block);
        j->block = next;
    }
    if (j->block != NULL)
        j->block->used = m.used;
    j->global.variables = m.globals;
}

static inline void jinja_free(jinja *j)
{
    const jinja_memory none = { NULL, 0, NULL };
    jinja_release(j, none);
    free(j->source);
    j->source = NULL;
    j->root = NULL;
}

/* Runs body(j, user). Returns 0, or -1 with j->error if a function in it has failed. */
static inline int jinja_run(jinja *j, void (*body)(jinja *j, void *user), void *user)
{
    j->steps = 0;
    j->depth = 0;
    j->at = SIZE_MAX;
    j->error[0] = 0;
    if (setjmp(j->failed) != 0)
        return -1;
    body(j, user);
    return 0;
}

static inline void jinja_step(jinja *j, size_t n)
{
    j->steps += n;
    if (j->steps > j->max_steps)
        jinja_fail(j, "the template takes more than %.0f steps", (double)j->max_steps);
}

static inline void jinja_enter(jinja *j)
{
    if (++j->depth > JINJA_DEPTH)
        jinja_fail(j, "more than %d levels", JINJA_DEPTH);
}

/* ---- values ---------------------------------------------------------------------------------- */
static inline jinja_value jinja_make(jinja_kind kind)
{
    jinja_value v;
    memset(&v, 0, sizeof v);
    v.kind = kind;
    return v;
}

static inline jinja_value jinja_string(const char *text, size_t size, uint16_t mark)
{
    jinja_value v = jinja_make(JINJA_STRING);
    v.text = text;
    v.size = size;
    v.mark = mark;
    return v;
}

static inline jinja_value jinja_c_string(const char *text)
{
    return jinja_string(text, strlen(text), 0);
}

static inline jinja_value jinja_whole(int64_t whole)
{
    jinja_value v = jinja_make(JINJA_INT);
    v.whole = whole;
    return v;
}

static inline jinja_value jinja_real(double real)
{
    jinja_value v = jinja_make(JINJA_FLOAT);
    v.real = real;
    return v;
}

static inline jinja_value jinja_bool(int is_true)
{
    jinja_value v = jinja_make(JINJA_BOOL);
    v.whole = is_true != 0;
    return v;
}

static inline jinja_value jinja_undefined(const char *name, size_t size)
{
    jinja_value v = jinja_make(JINJA_UNDEFINED);
    v.text = name;
    v.size = size;
    return v;
}

/* Returns a list of `count` values, or a dict of `count` pairs, whose items the caller sets. */
static inline jinja_value jinja_list(jinja *j, jinja_kind kind, size_t count)
{
    jinja_value v = jinja_make(kind);
    if (count > SIZE_MAX / 4 / sizeof v)
        jinja_fail(j, "out of memory");
    v.size = count;
    v.items = (jinja_value *)jinja_alloc(j, (kind == JINJA_DICT ? 2 : 1) * count * sizeof v);
    return v;
}

/* Returns n bytes of a string from offset `from`, without copying them. */
static inline jinja_value jinja_part(jinja_value v, size_t from, size_t n)
{
    v.text += from;
    v.size = n;
    v.marks = v.marks != NULL ? v.marks + from : NULL;
    return v;
}

static inline int jinja_is(const jinja_value *v, const char *text)
{
    return v->kind == JINJA_STRING && v->size == strlen(text) &&
           memcmp(v->text, text, v->size) == 0;
}

static inline int jinja_same(const jinja_value *a, const jinja_value *b)
{
    return a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
}

static inline int jinja_is_number(const jinja_value *v)
{
    return v->kind >= JINJA_BOOL && v->kind <= JINJA_FLOAT;
}

static inline double jinja_as_real(const jinja_value *v)
{
    return v->kind == JINJA_FLOAT ? v->real : (double)v->whole;
}

static inline int jinja_is_true(const jinja_value *v)
{
    if (v->kind == JINJA_STRING || v->kind == JINJA_LIST || v->kind == JINJA_DICT)
        return v->size > 0;
    return v->kind == JINJA_FLOAT   ? v->real < 0 || v->real > 0 || v->real != v->real
           : v->kind < JINJA_STRING ? v->whole != 0
                                    : 1;
}

static inline const char *jinja_kind_name(jinja_kind kind)
{
    static const char *const names[] = {
        "an undefined value", "none",     "a bool",  "a whole number",
        "a number",           "a string", "a list",  "a dict",
        "a namespace",        "a loop",   "a macro", "a function"
    };
    return names[kind];
}

#if defined(__GNUC__)
__attribute__((noreturn))
#endif
static inline void
jinja_mismatch(jinja *j, const char *what, const jinja_value *v)
{
    if (v->kind == JINJA_UNDEFINED)
        jinja_fail(j, "%s: '%.*s' is undefined", what, (int)(v->size < 60 ? v->size : 60), v->text);
    jinja_fail(j, "%s: not possible with %s", what, jinja_kind_name(v->kind));
}

/* Returns the bytes of the first character of a text of n > 0 bytes. */
static inline size_t jinja_character(const char *text, size_t n)
{
    uint32_t c;
    const int size = json_utf8(text, n, &c);
    return (size_t)(size < 0 ? -size : size);
}

static inline size_t jinja_length(jinja *j, const jinja_value *v)
{
    size_t n = 0;
    if (v->kind == JINJA_LIST || v->kind == JINJA_DICT)
        return v->size;
    if (v->kind != JINJA_STRING && v->kind != JINJA_UNDEFINED)
        jinja_mismatch(j, "length", v);
    for (size_t i = 0; v->kind == JINJA_STRING && i < v->size; n++)
        i += jinja_character(v->text + i, v->size - i);
    jinja_step(j, n / 16);
    return n;
}

/* Returns whether two values are equal, as == of Python does. */
static inline int jinja_equal(jinja *j, const jinja_value *a, const jinja_value *b);

/* Returns a pointer to the value of a dict's key, or NULL. */
static inline const jinja_value *jinja_find(jinja *j, const jinja_value *dict,
                                            const jinja_value *key)
{
    jinja_step(j, dict->size / 4);
    for (size_t i = 0; i < dict->size; i++)
        if (jinja_equal(j, &dict->items[2 * i], key))
            return &dict->items[2 * i + 1];
    return NULL;
}

static inline int jinja_equal(jinja *j, const jinja_value *a, const jinja_value *b)
{
    if (jinja_is_number(a) && jinja_is_number(b))
        return a->kind != JINJA_FLOAT && b->kind != JINJA_FLOAT
                   ? a->whole == b->whole
                   : !(jinja_as_real(a) < jinja_as_real(b) || jinja_as_real(a) > jinja_as_real(b));
    if (a->kind != b->kind || a->is_tuple != b->is_tuple)
        return 0;
    if (a->kind == JINJA_STRING)
        return jinja_same(a, b);
    if (a->kind != JINJA_LIST && a->kind != JINJA_DICT)
        return a->kind <= JINJA_NONE ||
               (a->scope == b->scope && a->loop == b->loop && a->node == b->node);
    if (a->size != b->size)
        return 0;
    jinja_enter(j);
    jinja_step(j, 1 + a->size);
    int same = 1;
    for (size_t i = 0; i < a->size && same; i++) {
        const jinja_value *other =
            a->kind == JINJA_LIST ? &b->items[i] : jinja_find(j, b, &a->items[2 * i]);
        same = other != NULL &&
               jinja_equal(j, &a->items[a->kind == JINJA_LIST ? i : 2 * i + 1], other);
    }
    j->depth--;
    return same;
}

/* Sets a variable of a scope. */
static inline void jinja_assign(jinja *j, jinja_scope *s, jinja_value name, jinja_value value)
{
    jinja_variable *v = s->variables;
    while (v != NULL && !jinja_same(&v->name, &name))
        v = v->next;
    if (v == NULL) {
        v = (jinja_variable *)jinja_alloc(j, sizeof *v);
        v->next = s->variables;
        v->name = name;
        s->variables = v;
    }
    v->value = value;
}

/* Sets a global variable, within jinja_run. The name is not copied. */
static inline void jinja_set(jinja *j, const char *name, jinja_value value)
{
    jinja_assign(j, &j->global, jinja_c_string(name), value);
}

static inline const jinja_value *jinja_look_up(const jinja_scope *s, const jinja_value *name)
{
    for (; s != NULL; s = s->parent)
        for (const jinja_variable *v = s->variables; v != NULL; v = v->next)
            if (jinja_same(&v->name, name))
                return &v->value;
    return NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */
static inline void jinja_reserve(jinja *j, jinja_text *t, size_t n)
{
    if (n <= t->capacity - t->size)
        return;
    const size_t capacity = 2 * (t->size + n) + 64;
    char *text = (char *)jinja_alloc(j, capacity);
    uint16_t *marks = (uint16_t *)jinja_alloc(j, capacity * sizeof *marks);
    if (t->size > 0) {
        memcpy(text, t->text, t->size);
        memcpy(marks, t->marks, t->size * sizeof *marks);
    }
    t->text = text;
    t->marks = marks;
    t->capacity = capacity;
}

/* Appends n bytes; marks is an array, or NULL for bytes that all have `mark`. */
static inline void jinja_append(jinja *j, jinja_text *t, const char *text, size_t n,
                                const uint16_t *marks, uint16_t mark)
{
    jinja_step(j, n / 64);
    jinja_reserve(j, t, n);
    for (size_t i = 0; i < n; i++) {
        t->text[t->size + i] = text[i];
        t->marks[t->size + i] = marks != NULL ? marks[i] : mark;
    }
    t->size += n;
}

static inline void jinja_put(jinja *j, jinja_text *t, const char *text)
{
    jinja_append(j, t, text, strlen(text), NULL, 0);
}

static inline jinja_value jinja_text_value(const jinja_text *t)
{
    jinja_value v = jinja_string(t->text != NULL ? t->text : "", t->size, 0);
    v.marks = t->marks;
    return v;
}

/* Writes a float as Python's repr: the fewest digits that give the same number. */
static inline void jinja_write_real(double x, char to[40])
{
    char digits[40];
    int precision = 0;
    if (x != x || x > DBL_MAX || x < -DBL_MAX) {
        strcpy(to, x != x ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision, x);
    while (precision++ < 16 && strtod(digits, NULL) != x);
    char *e = strchr(digits, 'e');
    const int exponent = atoi(e + 1);
    precision--;
    if (exponent >= -4 && exponent < 16)
        snprintf(to, 40, "%.*f", precision > exponent ? precision - exponent : 1, x);
    else
        strcpy(to, digits);
}

static inline void jinja_newline(jinja *j, jinja_text *t, int64_t indent, int level)
{
    jinja_put(j, t, "\n");
    for (int64_t i = 0; i < indent * level; i++)
        jinja_put(j, t, " ");
}

/* Options of jinja_write. */
typedef struct {
    int json;       /* if nonzero, writes JSON as json.dumps does; if 0, Python's repr */
    int ascii;      /* if nonzero, JSON has \u for all other characters */
    int sorted;     /* if nonzero, the keys of JSON are sorted */
    int64_t indent; /* blanks for each level, or -1 for a single line */
    jinja_value separators[2];
} jinja_style;

/* Appends a string in quotes. */
static inline void jinja_quote(jinja *j, jinja_text *t, const jinja_value *v,
                               const jinja_style *style)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const int python = !style->json;
    const int twice =
        python && memchr(v->text, '\'', v->size) != NULL && memchr(v->text, '"', v->size) == NULL;
    const char quote[2] = { python && !twice ? '\'' : '"', 0 };
    jinja_put(j, t, quote);
    for (size_t i = 0, n; i < v->size; i += n) {
        char escape[16] = "";
        uint32_t c = 0xfffd;
        const uint16_t mark = v->marks != NULL ? v->marks[i] : v->mark;
        n = (size_t)abs(json_utf8(v->text + i, v->size - i, &c));
        const char *p = c < 128 && c > 0 ? strchr(from, (int)c) : NULL;
        if (python ? c == (uint32_t)*quote || c == '\\' || c == '\n' || c == '\r' || c == '\t'
                   : p != NULL)
            snprintf(escape, sizeof escape, "\\%c", p != NULL ? to[p - from] : (int)c);
        else if (python && (c < 32 || (c >= 127 && c <= 160) || c == 173))
            snprintf(escape, sizeof escape, "\\x%02x", (unsigned)c);
        else if (!python && (c < 32 || (style->ascii && c > 126 && c < 0x10000)))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        else if (!python && style->ascii && c > 126)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)),
                     (unsigned)(0xdc00 | (c & 0x3ff)));
        if (escape[0] != 0)
            jinja_append(j, t, escape, strlen(escape), NULL, mark);
        else
            jinja_append(j, t, v->text + i, n, v->marks != NULL ? v->marks + i : NULL, mark);
    }
    jinja_put(j, t, quote);
}

/* Sorts n items of `width` values by value `by` of each: numbers, or strings without regard to the
 * case of ASCII letters if `folds` is nonzero. Keeps the order of equal ones. */
static inline int jinja_order(jinja *j, const jinja_value *a, const jinja_value *b, int folds)
{
    jinja_step(j, 1);
    if (jinja_is_number(a) && jinja_is_number(b))
        return (jinja_as_real(a) > jinja_as_real(b)) - (jinja_as_real(a) < jinja_as_real(b));
    if (a->kind != JINJA_STRING || b->kind != JINJA_STRING)
        jinja_mismatch(j, "comparison", a->kind != JINJA_STRING ? a : b);
    for (size_t i = 0; i < a->size && i < b->size; i++) {
        int x = (unsigned char)a->text[i], y = (unsigned char)b->text[i];
        x += folds && x >= 'A' && x <= 'Z' ? 32 : 0;
        y += folds && y >= 'A' && y <= 'Z' ? 32 : 0;
        if (x != y)
            return x < y ? -1 : 1;
    }
    return (a->size > b->size) - (a->size < b->size);
}

/* Returns a copy of a list or dict with its items in ascending order (of a dict, by key if `by` is
 * 0, by value if it is 1), or descending if `descending` is nonzero. Equal ones keep their
 * order. */
static inline jinja_value jinja_sort(jinja *j, const jinja_value *v, int by, int folds,
                                     int descending)
{
    const size_t width = v->kind == JINJA_DICT ? 2 : 1;
    jinja_value to = jinja_list(j, v->kind, v->size);
    for (size_t i = 0; i < v->size; i++) {
        size_t k = i;
        for (; k > 0; k--) {
            const int order = jinja_order(j, &to.items[width * (k - 1) + (size_t)by],
                                          &v->items[width * i + (size_t)by], folds);
            if (descending ? order >= 0 : order <= 0)
                break;
            memcpy(&to.items[width * k], &to.items[width * (k - 1)], width * sizeof to);
        }
        memcpy(&to.items[width * k], &v->items[width * i], width * sizeof to);
    }
    return to;
}

/* Appends a value as JSON or as Python's repr. */
static inline void jinja_write(jinja *j, jinja_text *t, const jinja_value *v,
                               const jinja_style *style, int level)
{
    static const char *const words[2][3] = { { "None", "False", "True" },
                                             { "null", "false", "true" } };
    const int is_list = v->kind == JINJA_LIST;
    char number[40];
    jinja_step(j, 1);
    if (v->kind == JINJA_STRING) {
        jinja_quote(j, t, v, style);
    } else if (v->kind == JINJA_NONE || v->kind == JINJA_BOOL) {
        jinja_put(j, t, words[style->json][v->kind == JINJA_NONE ? 0 : 1 + v->whole]);
    } else if (v->kind == JINJA_INT) {
        snprintf(number, sizeof number, "%lld", (long long)v->whole);
        jinja_put(j, t, number);
    } else if (v->kind == JINJA_FLOAT) {
        jinja_write_real(v->real, number);
        jinja_put(j, t, number);
    } else if (v->kind == JINJA_UNDEFINED && !style->json) {
        jinja_put(j, t, "Undefined");
    } else if (!is_list && v->kind != JINJA_DICT) {
        jinja_mismatch(j, style->json ? "tojson" : "printing", v);
    } else {
        const int is_tuple = v->is_tuple && !style->json;
        jinja_value sorted = *v;
        jinja_enter(j);
        if (style->sorted && !is_list)
            sorted = jinja_sort(j, v, 0, 0, 0);
        jinja_put(j, t, is_tuple ? "(" : is_list ? "[" : "{");
        for (size_t i = 0; i < v->size; i++) {
            if (i > 0)
                jinja_append(j, t, style->separators[0].text, style->separators[0].size, NULL, 0);
            if (style->indent >= 0)
                jinja_newline(j, t, style->indent, level + 1);
            if (!is_list) {
                if (style->json && sorted.items[2 * i].kind != JINJA_STRING)
                    jinja_mismatch(j, "a key of JSON", &sorted.items[2 * i]);
                jinja_write(j, t, &sorted.items[2 * i], style, level + 1);
                jinja_append(j, t, style->separators[1].text, style->separators[1].size, NULL, 0);
            }
            jinja_write(j, t, &sorted.items[is_list ? i : 2 * i + 1], style, level + 1);
        }
        if (style->indent >= 0 && v->size > 0)
            jinja_newline(j, t, style->indent, level);
        jinja_put(j, t, is_tuple ? v->size == 1 ? ",)" : ")" : is_list ? "]" : "}");
        j->depth--;
    }
}

/* Returns a value as a string, as Python's str does; an undefined value is empty. */
static inline jinja_value jinja_str(jinja *j, const jinja_value *v)
{
    const jinja_style python = { 0, 0, 0, -1, { jinja_c_string(", "), jinja_c_string(": ") } };
    jinja_text t = { NULL, NULL, 0, 0 };
    if (v->kind == JINJA_STRING)
        return *v;
    if (v->kind != JINJA_UNDEFINED)
        jinja_write(j, &t, v, &python, 0);
    return jinja_text_value(&t);
}

static inline void jinja_print(jinja *j, jinja_text *t, const jinja_value *v)
{
    const jinja_value s = jinja_str(j, v);
    jinja_append(j, t, s.text, s.size, s.marks, s.mark);
}

static inline jinja_value jinja_concat(jinja *j, const jinja_value *a, const jinja_value *b)
{
    jinja_text t = { NULL, NULL, 0, 0 };
    if (a->is_safe != b->is_safe)
        jinja_fail(j, "unknown: a safe text joined to another one, in which Jinja escapes HTML");
    jinja_print(j, &t, a);
    jinja_print(j, &t, b);
    return jinja_text_value(&t);
}

/* Returns value `at` of a JSON text; its strings and keys have the mark, and point into d's
 * text. */
static inline jinja_value jinja_from_json(jinja *j, json *d, uint32_t at, uint16_t mark)
{
    const json_kind kind = json_kind_of(d, at);
    jinja_value v = jinja_make(JINJA_NONE);
    if (kind == JSON_FALSE || kind == JSON_TRUE)
        return jinja_bool(kind == JSON_TRUE);
    if (kind == JSON_STRING || kind == JSON_KEY)
        return jinja_string(json_text(d, at), json_size(d, at), mark);
    if (kind == JSON_NUMBER) {
        const char *text = d->text + d->nodes[at].at;
        const size_t n = json_size(d, at);
        if (memchr(text, '.', n) == NULL && memchr(text, 'e', n) == NULL &&
            memchr(text, 'E', n) == NULL) {
            if (n > 18 + (size_t)(*text == '-'))
                jinja_fail(j, "the number %.*s has more than 18 digits", (int)(n < 60 ? n : 60),
                           text);
            return jinja_whole(json_int_of(d, at));
        }
        return jinja_real(strtod(text, NULL));
    }
    if (kind == JSON_ARRAY || kind == JSON_OBJECT) {
        size_t n = 0;
        v = jinja_list(j, kind == JSON_ARRAY ? JINJA_LIST : JINJA_DICT, json_size(d, at));
        for (uint32_t i = json_first(d, at); i != 0; i = json_next(d, i)) {
            v.items[n++] = jinja_from_json(j, d, i, mark);
            if (kind == JSON_OBJECT)
                v.items[n++] = jinja_from_json(j, d, i + 1, mark);
        }
    }
    return v;
}

/* ---- words ----------------------------------------------------------------------------------- */
typedef enum {
    JINJA_IS_FILTER = 1,
    JINJA_IS_METHOD = 2,
    JINJA_IS_TEST = 4,
    JINJA_IS_FUNCTION = 8
} jinja_use;

/* The known filters, methods, tests and functions: W(ID, NAME, USE), and A for further names. */
#define JINJA_WORDS(W, A)                                                                          \
    W(TOJSON, "tojson", JINJA_IS_FILTER)                                                           \
    W(TRIM, "trim", JINJA_IS_FILTER)                                                               \
    A(TRIM, "strip", JINJA_IS_METHOD)                                                              \
    W(LSTRIP, "lstrip", JINJA_IS_METHOD)                                                           \
    W(RSTRIP, "rstrip", JINJA_IS_METHOD)                                                           \
    W(LENGTH, "length", JINJA_IS_FILTER)                                                           \
    A(LENGTH, "count", JINJA_IS_FILTER)                                                            \
    W(DEFAULT, "default", JINJA_IS_FILTER)                                                         \
    A(DEFAULT, "d", JINJA_IS_FILTER)                                                               \
    W(ITEMS, "items", JINJA_IS_FILTER | JINJA_IS_METHOD)                                           \
    W(KEYS, "keys", JINJA_IS_METHOD)                                                               \
    W(VALUES, "values", JINJA_IS_METHOD)                                                           \
    W(GET, "get", JINJA_IS_METHOD)                                                                 \
    W(COPY, "copy", JINJA_IS_METHOD)                                                               \
    W(STRING, "string", JINJA_IS_FILTER)                                                           \
    W(SAFE, "safe", JINJA_IS_FILTER)                                                               \
    W(UPPER, "upper", JINJA_IS_FILTER | JINJA_IS_METHOD)                                           \
    W(LOWER, "lower", JINJA_IS_FILTER | JINJA_IS_METHOD)                                           \
    W(CAPITALIZE, "capitalize", JINJA_IS_FILTER | JINJA_IS_METHOD)                                 \
    W(TITLE, "title", JINJA_IS_FILTER | JINJA_IS_METHOD)                                           \
    W(REPLACE, "replace", JINJA_IS_FILTER | JINJA_IS_METHOD)                                       \
    W(SPLIT, "split", JINJA_IS_METHOD)                                                             \
    W(RSPLIT, "rsplit", JINJA_IS_METHOD)                                                           \
    W(SPLITLINES, "splitlines", JINJA_IS_METHOD)                                                   \
    W(STARTSWITH, "startswith", JINJA_IS_METHOD)                                                   \
    W(ENDSWITH, "endswith", JINJA_IS_METHOD)                                                       \
    W(FIND, "find", JINJA_IS_METHOD)                                                               \
    W(COUNT, "count", JINJA_IS_METHOD)                                                             \
    W(REMOVEPREFIX, "removeprefix", JINJA_IS_METHOD)                                               \
    W(REMOVESUFFIX, "removesuffix", JINJA_IS_METHOD)                                               \
    W(JOIN, "join", JINJA_IS_FILTER)                                                               \
    W(JOIN_METHOD, "join", JINJA_IS_METHOD)                                                        \
    W(LIST, "list", JINJA_IS_FILTER)                                                               \
    W(FIRST, "first", JINJA_IS_FILTER)                                                             \
    W(LAST, "last", JINJA_IS_FILTER)                                                               \
    W(MIN, "min", JINJA_IS_FILTER)                                                                 \
    W(MAX, "max", JINJA_IS_FILTER)                                                                 \
    W(REVERSE, "reverse", JINJA_IS_FILTER)                                                         \
    W(SORT, "sort", JINJA_IS_FILTER)                                                               \
    W(DICTSORT, "dictsort", JINJA_IS_FILTER)                                                       \
    W(MAP, "map", JINJA_IS_FILTER)                                                                 \
    W(SELECT, "select", JINJA_IS_FILTER)                                                           \
    W(REJECT, "reject", JINJA_IS_FILTER)                                                           \
    W(SELECTATTR, "selectattr", JINJA_IS_FILTER)                                                   \
    W(REJECTATTR, "rejectattr", JINJA_IS_FILTER)                                                   \
    W(INT, "int", JINJA_IS_FILTER)                                                                 \
    W(FLOAT, "float", JINJA_IS_FILTER)                                                             \
    W(ABS, "abs", JINJA_IS_FILTER)                                                                 \
    W(INDENT, "indent", JINJA_IS_FILTER)                                                           \
    W(NAMESPACE, "namespace", JINJA_IS_FUNCTION)                                                   \
    W(DICT, "dict", JINJA_IS_FUNCTION)                                                             \
    W(RANGE, "range", JINJA_IS_FUNCTION)                                                           \
    W(RAISE, "raise_exception", JINJA_IS_FUNCTION)                                                 \
    W(STRFTIME, "strftime_now", JINJA_IS_FUNCTION)                                                 \
    W(IS_DEFINED, "defined", JINJA_IS_TEST)                                                        \
    W(IS_UNDEFINED, "undefined", JINJA_IS_TEST)                                                    \
    W(IS_NONE, "none", JINJA_IS_TEST)                                                              \
    W(IS_STRING, "string", JINJA_IS_TEST)                                                          \
    W(IS_MAPPING, "mapping", JINJA_IS_TEST)                                                        \
    W(IS_SEQUENCE, "sequence", JINJA_IS_TEST)                                                      \
    W(IS_ITERABLE, "iterable", JINJA_IS_TEST)                                                      \
    W(IS_NUMBER, "number", JINJA_IS_TEST)                                                          \
    W(IS_INTEGER, "integer", JINJA_IS_TEST)                                                        \
    W(IS_FLOAT, "float", JINJA_IS_TEST)                                                            \
    W(IS_BOOLEAN, "boolean", JINJA_IS_TEST)                                                        \
    W(IS_TRUE, "true", JINJA_IS_TEST)                                                              \
    W(IS_FALSE, "false", JINJA_IS_TEST)                                                            \
    W(IS_CALLABLE, "callable", JINJA_IS_TEST)                                                      \
    W(IS_ODD, "odd", JINJA_IS_TEST)                                                                \
    W(IS_EVEN, "even", JINJA_IS_TEST)                                                              \
    W(IS_DIVISIBLE, "divisibleby", JINJA_IS_TEST)                                                  \
    W(IS_IN, "in", JINJA_IS_TEST)                                                                  \
    W(IS_EQUAL, "eq", JINJA_IS_TEST)                                                               \
    A(IS_EQUAL, "equalto", JINJA_IS_TEST)                                                          \
    A(IS_EQUAL, "==", JINJA_IS_TEST)                                                               \
    W(IS_UNEQUAL, "ne", JINJA_IS_TEST)                                                             \
    A(IS_UNEQUAL, "!=", JINJA_IS_TEST)                                                             \
    W(IS_LESS, "lt", JINJA_IS_TEST)                                                                \
    A(IS_LESS, "lessthan", JINJA_IS_TEST)                                                          \
    W(IS_GREATER, "gt", JINJA_IS_TEST)                                                             \
    A(IS_GREATER, "greaterthan", JINJA_IS_TEST)                                                    \
    W(IS_AT_MOST, "le", JINJA_IS_TEST)                                                             \
    W(IS_AT_LEAST, "ge", JINJA_IS_TEST)
#define JINJA_WORD_ID(id, name, use)  JINJA_W_##id,
#define JINJA_WORD_ROW(id, name, use) { name, use, JINJA_W_##id },
#define JINJA_WORD_NONE(id, name, use)
typedef enum {
    JINJA_W_NONE,
    JINJA_WORDS(JINJA_WORD_ID, JINJA_WORD_NONE) JINJA_W_END
} jinja_word_id;
static const struct {
    const char *name;
    unsigned char use, id;
} jinja_words[] = { JINJA_WORDS(JINJA_WORD_ROW, JINJA_WORD_ROW) };
#undef JINJA_WORD_ID
#undef JINJA_WORD_ROW
#undef JINJA_WORD_NONE

/* Returns the word with a name and a use, or JINJA_W_NONE. */
static inline int jinja_word(const jinja_value *name, int use)
{
    for (size_t i = 0; i < sizeof jinja_words / sizeof *jinja_words; i++)
        if ((jinja_words[i].use & use) != 0 && jinja_is(name, jinja_words[i].name))
            return jinja_words[i].id;
    return JINJA_W_NONE;
}

/* ---- tokens ---------------------------------------------------------------------------------- */
/* Kinds of tokens; an operator's token is its character, or 256 * the first + the second one. */
enum { JINJA_T_END, JINJA_T_NAME, JINJA_T_STRING, JINJA_T_INT, JINJA_T_FLOAT };
#define JINJA_OP2(a, b) (256 * (a) + (b))

static inline int jinja_is_white(const char *s, size_t n, size_t *size)
{
    uint32_t c = 'x';
    const int length = n > 0 ? json_utf8(s, n, &c) : -1;
    *size = (size_t)abs(length);
    return length > 0 && (unicode_class(c) == UNICODE_SPACE || (c >= 28 && c <= 31));
}

static inline void jinja_skip_white(jinja *j)
{
    size_t n;
    while (j->position < j->size &&
           jinja_is_white(j->source + j->position, j->size - j->position, &n))
        j->position += n;
}

/* If the text at the position ends a tag, which has the last characters `closing` and '}', moves
 * past it and the white space to omit, and returns 1. */
static inline int jinja_at_end(jinja *j, char closing)
{
    const char *s = j->source + j->position;
    const int sign = *s == '-' || (*s == '+' && closing != '}') ? *s : 0;
    s += sign != 0;
    if (s[0] != closing || s[1] != '}')
        return 0;
    j->position += sign != 0 ? 3 : 2;
    if (sign == '-')
        jinja_skip_white(j);
    else if (sign == 0 && closing != '}' && j->source[j->position] == '\n')
        j->position++;
    return 1;
}

static inline int jinja_is_name(int c, int first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
}

/* Reads the next token of a tag. */
static inline void jinja_next(jinja *j)
{
    static const char *const pairs = "**//==!=>=<=";
    const char *s;
    jinja_skip_white(j);
    s = j->source + j->position;
    j->token_at = j->at = j->position;
    j->token = JINJA_T_END;
    j->token_size = 0;
    if (j->nesting == 0 && jinja_at_end(j, (char)j->closing))
        return;
    if (j->position >= j->size)
        jinja_fail(j, "the tag is not closed");
    size_t n = 1;
    if (jinja_is_name(*s, 1)) {
        while (jinja_is_name(s[n], 0))
            n++;
        j->token = JINJA_T_NAME;
    } else if (*s >= '0' && *s <= '9') {
        j->token = JINJA_T_INT;
        while ((s[n] >= '0' && s[n] <= '9') || s[n] == '_' ||
               (s[n] == '.' && s[n + 1] >= '0' && s[n + 1] <= '9' && j->token == JINJA_T_INT)) {
            j->token = s[n] == '.' ? JINJA_T_FLOAT : j->token;
            n++;
        }
        if ((s[n] == 'e' || s[n] == 'E') &&
            s[n + 1 + (s[n + 1] == '-' || s[n + 1] == '+')] >= '0' &&
            s[n + 1 + (s[n + 1] == '-' || s[n + 1] == '+')] <= '9') {
            j->token = JINJA_T_FLOAT;
            for (n += 2; s[n] >= '0' && s[n] <= '9';)
                n++;
        }
    } else if (*s == '"' || *s == '\'') {
        while (s[n] != *s) {
            n += s[n] == '\\' ? 2 : 1;
            if (j->position + n >= j->size)
                jinja_fail(j, "the string is not closed");
        }
        n++;
        j->token = JINJA_T_STRING;
    } else {
        for (const char *p = pairs; *p != 0; p += 2)
            n = s[0] == p[0] && s[1] == p[1] ? 2 : n;
        if (n == 1 && strchr("+-/*%~[](){}><=.:|,", *s) == NULL)
            jinja_fail(j, "unexpected character '%.*s'",
                       (int)jinja_character(s, j->size - j->position), s);
        j->token = n == 2 ? JINJA_OP2(s[0], s[1]) : *s;
        j->nesting += strchr("[({", *s) != NULL ? 1 : strchr("])}", *s) != NULL ? -1 : 0;
        if (j->nesting < 0)
            jinja_fail(j, "unexpected '%c'", *s);
    }
    j->token_size = n;
    j->position += n;
}

/* Returns whether the token is a name with this text. */
static inline int jinja_at(const jinja *j, const char *name)
{
    return j->token == JINJA_T_NAME && j->token_size == strlen(name) &&
           memcmp(j->source + j->token_at, name, j->token_size) == 0;
}

static inline int jinja_accept(jinja *j, const char *name)
{
    if (!jinja_at(j, name))
        return 0;
    jinja_next(j);
    return 1;
}

static inline int jinja_accept_op(jinja *j, int op)
{
    if (j->token != op)
        return 0;
    jinja_next(j);
    return 1;
}

#if defined(__GNUC__)
__attribute__((noreturn))
#endif
static inline void
jinja_unexpected(jinja *j, const char *expected)
{
    j->at = j->token_at;
    if (j->token == JINJA_T_END)
        jinja_fail(j, "expected %s, found the end of the tag", expected);
    jinja_fail(j, "expected %s, found %.*s", expected,
               (int)(j->token_size < 60 ? j->token_size : 60), j->source + j->token_at);
}

static inline void jinja_expect(jinja *j, int op, const char *expected)
{
    if (!jinja_accept_op(j, op))
        jinja_unexpected(j, expected);
}

/* ---- expressions ----------------------------------------------------------------------------- */
static inline jinja_node *jinja_add(jinja *j, jinja_node_kind kind, size_t at, jinja_node *a,
                                    jinja_node *b)
{
    jinja_node *n = (jinja_node *)jinja_alloc(j, sizeof *n);
    memset(n, 0, sizeof *n);
    n->kind = kind;
    n->at = at;
    n->a = a;
    n->b = b;
    return n;
}

/* Returns a node with the current name as its value, and reads the next token. */
static inline jinja_node *jinja_name(jinja *j, jinja_node_kind kind, const char *expected)
{
    if (j->token != JINJA_T_NAME)
        jinja_unexpected(j, expected);
    jinja_node *n = jinja_add(j, kind, j->token_at, NULL, NULL);
    n->value = jinja_string(j->source + j->token_at, j->token_size, 0);
    jinja_next(j);
    return n;
}

/* Appends the text of a string's token, as Python reads its escapes. */
static inline void jinja_unescape(jinja *j, jinja_text *t)
{
    static const char from[] = "\n\\'\"abfnrtv", to[] = "\n\\'\"\a\b\f\n\r\t\v";
    const char *s = j->source + j->token_at + 1, *end = s + j->token_size - 2;
    while (s < end) {
        const char *p = *s == '\\' && s + 1 < end && s[1] != 0 ? strchr(from, s[1]) : NULL;
        if (p != NULL) {
            if (p > from) /* a backslash at the end of a line joins two lines */
                jinja_append(j, t, to + (p - from), 1, NULL, 0);
            s += 2;
        } else if (*s == '\\' && s + 1 < end && strchr("xuU01234567N", s[1]) != NULL && s[1] != 0) {
            const int octal = s[1] >= '0' && s[1] <= '7';
            const int most = octal ? 3 : s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : 8;
            uint32_t c = 0;
            int digits = 0;
            char out[4];
            for (s += octal ? 1 : 2; digits < most && s < end; digits++, s++) {
                const char four[4] = { '0', '0', '0', *s };
                const int32_t digit = json_hex(four);
                if (digit < 0 || (octal && digit > 7))
                    break;
                c = c * (octal ? 8 : 16) + (uint32_t)digit;
            }
            if ((!octal && digits < most) || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
                jinja_fail(j, "unknown escape in the string");
            jinja_append(j, t, out, (size_t)json_put_utf8(out, c), NULL, 0);
        } else {
            jinja_append(j, t, s++, 1, NULL, 0);
        }
    }
}

static inline jinja_node *jinja_expression(jinja *j);
static inline jinja_node *jinja_unary(jinja *j, int with_filter);

/* Parses expressions, or if `simple` names, separated by commas. Returns a single expression, or a
 * tuple if there is a comma. `end` is the operator after an explicit tuple, which may be empty. */
static inline jinja_node *jinja_primary(jinja *j);
static inline jinja_node *jinja_tuple(jinja *j, int simple, int end)
{
    jinja_node *tuple = jinja_add(j, JINJA_MAKE_LIST, j->token_at, NULL, NULL), **last = &tuple->a;
    int commas = 0;
    while (j->token != JINJA_T_END && j->token != end && !(simple && jinja_at(j, "in")) &&
           j->token != '=') {
        *last = simple ? jinja_primary(j) : jinja_expression(j);
        last = &(*last)->next;
        if (!jinja_accept_op(j, ','))
            break;
        commas = 1;
    }
    tuple->op = 1;
    if (tuple->a == NULL && end != ')')
        jinja_unexpected(j, "an expression");
    return commas || tuple->a == NULL ? tuple : tuple->a;
}

static inline jinja_node *jinja_primary(jinja *j)
{
    static const char *const words[] = { "true", "True", "false", "False", "none", "None" };
    jinja_node *n = jinja_add(j, JINJA_CONSTANT, j->token_at, NULL, NULL), **last = &n->a;
    if (j->token == JINJA_T_NAME) {
        for (int i = 0; i < 6; i++)
            if (jinja_accept(j, words[i])) {
                n->value = i < 4 ? jinja_bool(i < 2) : jinja_make(JINJA_NONE);
                return n;
            }
        return jinja_name(j, JINJA_NAME, "a name");
    }
    if (j->token == JINJA_T_STRING) {
        jinja_text t = { NULL, NULL, 0, 0 };
        for (; j->token == JINJA_T_STRING; jinja_next(j))
            jinja_unescape(j, &t);
        n->value = jinja_string(t.text != NULL ? t.text : "", t.size, 0);
        return n;
    }
    if (j->token == JINJA_T_INT || j->token == JINJA_T_FLOAT) {
        char digits[64];
        size_t size = 0;
        for (size_t i = 0; i < j->token_size && size + 1 < sizeof digits; i++)
            if (j->source[j->token_at + i] != '_')
                digits[size++] = j->source[j->token_at + i];
        digits[size] = 0;
        if (size > (j->token == JINJA_T_INT ? 18 : 60) ||
            (j->token == JINJA_T_INT && size > 1 && *digits == '0'))
            jinja_unexpected(j, "a number of at most 18 digits");
        n->value = j->token == JINJA_T_INT ? jinja_whole(strtoll(digits, NULL, 10))
                                           : jinja_real(strtod(digits, NULL));
        jinja_next(j);
        return n;
    }
    if (jinja_accept_op(j, '(')) {
        n = jinja_tuple(j, 0, ')');
        jinja_expect(j, ')', "')'");
        return n;
    }
    const int is_dict = j->token == '{', end = is_dict ? '}' : ']';
    if (!jinja_accept_op(j, '[') && !jinja_accept_op(j, '{'))
        jinja_unexpected(j, "an expression");
    n->kind = is_dict ? JINJA_MAKE_DICT : JINJA_MAKE_LIST;
    while (j->token != end) {
        *last = jinja_expression(j);
        last = &(*last)->next;
        if (is_dict) {
            jinja_expect(j, ':', "':'");
            *last = jinja_expression(j);
            last = &(*last)->next;
        }
        if (!jinja_accept_op(j, ',') && j->token != end)
            jinja_unexpected(j, is_dict ? "',' or '}'" : "',' or ']'");
    }
    jinja_next(j);
    return n;
}

/* Parses arguments up to the closing parenthesis; a keyword is the argument's node b. */
static inline jinja_node *jinja_parse_arguments(jinja *j)
{
    jinja_node *first = NULL, **last = &first;
    while (j->token != ')') {
        if (j->token == '*' || j->token == JINJA_OP2('*', '*'))
            jinja_fail(j, "unknown: arguments with *");
        jinja_node *n = jinja_add(j, JINJA_CONSTANT, j->token_at, jinja_expression(j), NULL);
        if (j->token == '=' && n->a->kind == JINJA_NAME) {
            jinja_next(j);
            n->b = n->a;
            n->a = jinja_expression(j);
        }
        *last = n;
        last = &n->next;
        if (!jinja_accept_op(j, ',') && j->token != ')')
            jinja_unexpected(j, "',' or ')'");
    }
    jinja_next(j);
    return first;
}

static inline jinja_node *jinja_postfix(jinja *j, jinja_node *n)
{
    for (;;) {
        const size_t at = j->token_at;
        if (jinja_accept_op(j, '.')) {
            if (j->token == JINJA_T_INT) {
                n = jinja_add(j, JINJA_ITEM, at, n, jinja_primary(j));
            } else {
                jinja_node *name = jinja_name(j, JINJA_ATTRIBUTE, "a name");
                name->a = n;
                n = name;
            }
        } else if (jinja_accept_op(j, '[')) {
            jinja_node *parts[3] = { NULL, NULL, NULL };
            int colons = 0;
            while (j->token != ']') {
                if (jinja_accept_op(j, ':')) {
                    if (++colons > 2)
                        jinja_unexpected(j, "']'");
                } else if (parts[colons] == NULL) {
                    parts[colons] = jinja_expression(j);
                } else {
                    jinja_unexpected(j, "']'");
                }
            }
            if (colons == 0 && parts[0] == NULL)
                jinja_unexpected(j, "an expression");
            jinja_next(j);
            n = jinja_add(j, colons > 0 ? JINJA_SLICE : JINJA_ITEM, at, n, parts[0]);
            n->c = parts[1];
            n->d = parts[2];
        } else if (jinja_accept_op(j, '(')) {
            n = jinja_add(j, JINJA_CALL, at, n, jinja_parse_arguments(j));
        } else {
            return n;
        }
    }
}

static inline jinja_node *jinja_filters(jinja *j, jinja_node *n)
{
    for (;;) {
        if (jinja_accept_op(j, '|')) {
            jinja_node *filter = jinja_name(j, JINJA_FILTER, "the name of a filter");
            filter->a = n;
            filter->op = jinja_word(&filter->value, JINJA_IS_FILTER);
            filter->b = jinja_accept_op(j, '(') ? jinja_parse_arguments(j) : NULL;
            n = filter;
        } else if (jinja_accept(j, "is")) {
            const int negated = jinja_accept(j, "not");
            jinja_node *test = jinja_name(j, JINJA_TEST, "the name of a test");
            test->a = n;
            test->op = jinja_word(&test->value, JINJA_IS_TEST);
            if (jinja_accept_op(j, '(')) {
                test->b = jinja_parse_arguments(j);
            } else if ((j->token == JINJA_T_NAME && !jinja_at(j, "else") && !jinja_at(j, "or") &&
                        !jinja_at(j, "and")) ||
                       (j->token >= JINJA_T_STRING && j->token <= JINJA_T_FLOAT) ||
                       j->token == '(' || j->token == '[' || j->token == '{') {
                if (jinja_at(j, "is"))
                    jinja_unexpected(j, "no second test");
                test->b = jinja_add(j, JINJA_CONSTANT, j->token_at,
                                    jinja_postfix(j, jinja_primary(j)), NULL);
            }
            n = negated ? jinja_add(j, JINJA_NOT, test->at, test, NULL) : test;
        } else if (j->token == '(') {
            n = jinja_postfix(j, n);
        } else {
            return n;
        }
    }
}

static inline jinja_node *jinja_unary(jinja *j, int with_filter)
{
    const size_t at = j->token_at;
    jinja_node *n;
    jinja_enter(j);
    if (jinja_accept_op(j, '-'))
        n = jinja_add(j, JINJA_NEGATE, at, jinja_unary(j, 0), NULL);
    else if (jinja_accept_op(j, '+'))
        n = jinja_add(j, JINJA_PLUS, at, jinja_unary(j, 0), NULL);
    else
        n = jinja_primary(j);
    n = jinja_postfix(j, n);
    if (with_filter)
        n = jinja_filters(j, n);
    j->depth--;
    return n;
}

/* Parses binary operators: level 0 is products, 1 concatenation, 2 sums. */
static inline jinja_node *jinja_binary(jinja *j, int level)
{
    jinja_node *n = level > 0 ? jinja_binary(j, level - 1) : jinja_unary(j, 1);
    for (;;) {
        const int op = j->token;
        const size_t at = j->token_at;
        if (op == JINJA_OP2('*', '*'))
            jinja_fail(j, "unknown operator **");
        if (level == 2   ? op != '+' && op != '-'
            : level == 1 ? op != '~'
                         : op != '*' && op != '/' && op != '%' && op != JINJA_OP2('/', '/'))
            return n;
        jinja_next(j);
        n = jinja_add(j, JINJA_BINARY, at, n,
                      level > 0 ? jinja_binary(j, level - 1) : jinja_unary(j, 1));
        n->op = op;
    }
}

enum { JINJA_OP_IN = 1, JINJA_OP_NOT_IN = 2 };

/* Parses a chain of comparisons; each comparison is a node with an operator and its right side. */
static inline jinja_node *jinja_comparison(jinja *j)
{
    const size_t first = j->token_at;
    jinja_node *n = jinja_binary(j, 2), *chain = NULL, **last = &chain;
    for (;;) {
        const size_t at = j->token_at;
        int op = j->token;
        if (jinja_at(j, "in")) {
            op = JINJA_OP_IN;
        } else if (jinja_at(j, "not")) {
            jinja_next(j);
            if (!jinja_at(j, "in"))
                jinja_unexpected(j, "in");
            op = JINJA_OP_NOT_IN;
        } else if (op != '<' && op != '>' && op != JINJA_OP2('=', '=') &&
                   op != JINJA_OP2('!', '=') && op != JINJA_OP2('<', '=') &&
                   op != JINJA_OP2('>', '=')) {
            break;
        }
        jinja_next(j);
        *last = jinja_add(j, JINJA_COMPARE, at, jinja_binary(j, 2), NULL);
        (*last)->op = op;
        last = &(*last)->next;
    }
    return chain != NULL ? jinja_add(j, JINJA_COMPARE, first, n, chain) : n;
}

static inline jinja_node *jinja_not(jinja *j)
{
    const size_t at = j->token_at;
    if (!jinja_accept(j, "not"))
        return jinja_comparison(j);
    jinja_enter(j);
    jinja_node *n = jinja_add(j, JINJA_NOT, at, jinja_not(j), NULL);
    j->depth--;
    return n;
}

static inline jinja_node *jinja_logic(jinja *j, int is_or)
{
    jinja_node *n = is_or ? jinja_logic(j, 0) : jinja_not(j);
    for (;;) {
        const size_t at = j->token_at;
        if (!jinja_accept(j, is_or ? "or" : "and"))
            return n;
        n = jinja_add(j, is_or ? JINJA_OR : JINJA_AND, at, n,
                      is_or ? jinja_logic(j, 0) : jinja_not(j));
    }
}

static inline jinja_node *jinja_expression(jinja *j)
{
    jinja_enter(j);
    jinja_node *n = jinja_logic(j, 1);
    for (;;) {
        const size_t at = j->token_at;
        if (!jinja_accept(j, "if"))
            break;
        n = jinja_add(j, JINJA_CONDITION, at, n, jinja_logic(j, 1));
        n->c = jinja_accept(j, "else") ? jinja_expression(j) : NULL;
    }
    j->depth--;
    return n;
}

/* ---- statements ------------------------------------------------------------------------------ */
/* Parses nodes up to a tag whose name is in `ends`, a list separated by blanks; NULL is the end of
 * the template. The current token is then the name of that tag. */
static inline jinja_node *jinja_body(jinja *j, const char *ends);

static inline void jinja_end_tag(jinja *j)
{
    if (j->token != JINJA_T_END)
        jinja_unexpected(j, "the end of the tag");
}

/* Parses a body up to the tag {% end %}, with both tags' ends. */
static inline jinja_node *jinja_block_of(jinja *j, const char *end)
{
    jinja_end_tag(j);
    jinja_node *body = jinja_body(j, end);
    jinja_next(j);
    jinja_end_tag(j);
    return body;
}

static inline jinja_node *jinja_parse_if(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_IF, at, jinja_tuple(j, 0, 0), NULL), *last = n;
    jinja_end_tag(j);
    n->b = jinja_body(j, "elif else endif");
    while (jinja_at(j, "elif")) {
        const size_t here = j->token_at;
        jinja_next(j);
        last->c = jinja_add(j, JINJA_IF, here, jinja_tuple(j, 0, 0), NULL);
        last = last->c;
        jinja_end_tag(j);
        last->b = jinja_body(j, "elif else endif");
    }
    if (jinja_accept(j, "else")) {
        jinja_end_tag(j);
        last->c = jinja_body(j, "endif");
    }
    jinja_next(j);
    jinja_end_tag(j);
    return n;
}

/* Parses a loop: a is its target, b its values, c its condition; d the node of body and else. */
static inline jinja_node *jinja_parse_for(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_FOR, at, jinja_tuple(j, 1, 0), NULL);
    if (!jinja_accept(j, "in"))
        jinja_unexpected(j, "in");
    /* the condition of a loop is no conditional expression */
    n->b = jinja_logic(j, 1);
    n->c = jinja_accept(j, "if") ? jinja_expression(j) : NULL;
    if (jinja_at(j, "recursive"))
        jinja_fail(j, "unknown: recursive loops");
    jinja_end_tag(j);
    n->d = jinja_add(j, JINJA_FOR, at, jinja_body(j, "else endfor"), NULL);
    if (jinja_accept(j, "else")) {
        jinja_end_tag(j);
        n->d->b = jinja_body(j, "endfor");
    }
    jinja_next(j);
    jinja_end_tag(j);
    return n;
}

static inline jinja_node *jinja_parse_set(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_SET, at, jinja_tuple(j, 1, 0), NULL);
    if (n->a->kind == JINJA_NAME && jinja_accept_op(j, '.')) {
        jinja_node *name = jinja_name(j, JINJA_ATTRIBUTE, "a name");
        name->a = n->a;
        n->a = name;
    }
    if (jinja_accept_op(j, '=')) {
        n->b = jinja_tuple(j, 0, 0);
        jinja_end_tag(j);
        return n;
    }
    n->kind = JINJA_CAPTURE;
    n->c = jinja_add(j, JINJA_CONSTANT, at, NULL, NULL); /* filters apply to this constant */
    n->b = jinja_filters(j, n->c);
    n->d = jinja_block_of(j, "endset");
    return n;
}

/* Parses the parameters of a macro, after the opening parenthesis. */
static inline jinja_node *jinja_parse_parameters(jinja *j)
{
    jinja_node *first = NULL, **last = &first;
    while (j->token != ')') {
        *last = jinja_name(j, JINJA_NAME, "a parameter");
        (*last)->a = jinja_accept_op(j, '=') ? jinja_expression(j) : NULL;
        last = &(*last)->next;
        if (!jinja_accept_op(j, ',') && j->token != ')')
            jinja_unexpected(j, "',' or ')'");
    }
    jinja_next(j);
    return first;
}

static inline jinja_node *jinja_parse_macro(jinja *j, size_t at)
{
    jinja_node *n = jinja_name(j, JINJA_DEFINE, "a name");
    n->at = at;
    jinja_expect(j, '(', "'('");
    n->a = jinja_parse_parameters(j);
    n->b = jinja_block_of(j, "endmacro");
    return n;
}

/* Parses a call with a body, which is a macro named caller: a and b are as of a macro. */
static inline jinja_node *jinja_parse_call(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_CALL_BLOCK, at, NULL, NULL);
    n->value = jinja_c_string("caller");
    n->a = jinja_accept_op(j, '(') ? jinja_parse_parameters(j) : NULL;
    n->c = jinja_expression(j);
    if (n->c->kind != JINJA_CALL)
        jinja_fail(j, "expected a call of a macro");
    n->b = jinja_block_of(j, "endcall");
    return n;
}

static inline jinja_node *jinja_statement(jinja *j, size_t at)
{
    static const char *const known = "if for set macro call generation break continue";
    if (jinja_accept(j, "if"))
        return jinja_parse_if(j, at);
    if (jinja_accept(j, "for"))
        return jinja_parse_for(j, at);
    if (jinja_accept(j, "set"))
        return jinja_parse_set(j, at);
    if (jinja_accept(j, "macro"))
        return jinja_parse_macro(j, at);
    if (jinja_accept(j, "call"))
        return jinja_parse_call(j, at);
    jinja_node *n = jinja_add(j, JINJA_GENERATION, at, NULL, NULL);
    if (jinja_accept(j, "generation")) {
        n->a = jinja_block_of(j, "endgeneration");
        return n;
    }
    n->kind = jinja_at(j, "break") ? JINJA_BREAK : JINJA_CONTINUE;
    if (!jinja_accept(j, "break") && !jinja_accept(j, "continue"))
        jinja_fail(j, "unknown tag {%% %.*s %%}; known are %s",
                   (int)(j->token_size < 60 ? j->token_size : 60), j->source + j->token_at, known);
    jinja_end_tag(j);
    return n;
}

/* Parses text up to the next tag, and omits white space at its end as the tag demands. Returns its
 * node, or NULL if it is empty. The position is then that of the tag. */
static inline jinja_node *jinja_parse_text(jinja *j)
{
    const size_t first = j->position;
    size_t end = first, n;
    while (end < j->size &&
           (j->source[end] != '{' ||
            (j->source[end + 1] != '{' && j->source[end + 1] != '%' && j->source[end + 1] != '#')))
        end++;
    j->position = end;
    if (end < j->size && j->source[end + 2] == '-') {
        for (size_t from = end; from > first; end = from) {
            from--;
            while (from > first && ((unsigned char)j->source[from] & 0xc0) == 0x80)
                from--;
            if (!jinja_is_white(j->source + from, end - from, &n) || from + n != end)
                break;
        }
    } else if (end < j->size && j->source[end + 1] != '{' && j->source[end + 2] != '+') {
        size_t line = end;
        while (line > first && j->source[line - 1] != '\n')
            line--;
        size_t at = line;
        while (at < end && jinja_is_white(j->source + at, end - at, &n))
            at += n;
        if (at >= end && (line == 0 || j->source[line - 1] == '\n'))
            end = line;
    }
    if (end == first)
        return NULL;
    jinja_node *node = jinja_add(j, JINJA_TEXT, first, NULL, NULL);
    node->value = jinja_string(j->source + first, end - first, 0);
    return node;
}

/* Moves past {# .. #}. */
static inline void jinja_skip_comment(jinja *j)
{
    for (; j->position < j->size; j->position++)
        if (jinja_at_end(j, '#'))
            return;
    jinja_fail(j, "the comment is not closed");
}

static inline jinja_node *jinja_body(jinja *j, const char *ends)
{
    const size_t begin = j->token_at;
    jinja_node *first = NULL, **last = &first;
    jinja_enter(j);
    for (;;) {
        for (*last = jinja_parse_text(j); *last != NULL; last = &(*last)->next)
            continue;
        const size_t at = j->at = j->position;
        if (at >= j->size) {
            j->at = begin;
            if (ends != NULL)
                jinja_fail(j, "the tag needs a closing one: %s", ends);
            j->depth--;
            return first;
        }
        const char kind = j->source[at + 1];
        j->position += 2;
        j->position += j->source[at + 2] == '-' || j->source[at + 2] == '+';
        j->closing = kind == '{' ? '}' : kind;
        j->nesting = 0;
        if (kind == '#') {
            jinja_skip_comment(j);
            continue;
        }
        jinja_next(j);
        if (kind == '{') {
            *last = jinja_add(j, JINJA_OUTPUT, at, jinja_tuple(j, 0, 0), NULL);
            jinja_end_tag(j);
        } else {
            for (const char *end = ends, *blank; end != NULL;
                 end = blank != NULL ? blank + 1 : NULL) {
                blank = strchr(end, ' ');
                const size_t n = blank != NULL ? (size_t)(blank - end) : strlen(end);
                if (j->token == JINJA_T_NAME && j->token_size == n &&
                    memcmp(j->source + j->token_at, end, n) == 0) {
                    j->depth--;
                    return first;
                }
            }
            *last = jinja_statement(j, at);
        }
        last = &(*last)->next;
    }
}

static inline void jinja_parse(jinja *j, void *user)
{
    (void)user;
    j->root = jinja_body(j, NULL);
}

/* Reads a template. Returns 0, or -1 with j->error. Call jinja_free in both cases. */
static inline int jinja_open(jinja *j, const char *text, size_t size)
{
    memset(j, 0, sizeof *j);
    j->max_bytes = (size_t)1 << 28;
    j->max_steps = (uint64_t)1 << 26;
    j->source = (char *)malloc(size + 4);
    if (j->source == NULL) {
        snprintf(j->error, sizeof j->error, "out of memory for %.0f bytes", (double)size + 4);
        return -1;
    }
    for (size_t i = 0; i < size; i++)
        if (text[i] != '\r')
            j->source[j->size++] = text[i];
        else if (i + 1 == size || text[i + 1] != '\n')
            j->source[j->size++] = '\n';
    j->size -= j->size > 0 && j->source[j->size - 1] == '\n';
    memset(j->source + j->size, 0, 4);
    return jinja_run(j, jinja_parse, NULL);
}

/* ---- evaluation ------------------------------------------------------------------------------ */
typedef struct {
    jinja_value at[JINJA_ARGUMENTS], names[JINJA_ARGUMENTS]; /* values, and names of keywords */
    size_t count, given; /* number of arguments, and of those without a keyword, which come first */
} jinja_arguments;

static inline jinja_value jinja_eval(jinja *j, const jinja_node *n, jinja_scope *s);

static inline jinja_scope *jinja_new_scope(jinja *j, jinja_scope *parent)
{
    jinja_scope *s = (jinja_scope *)jinja_alloc(j, sizeof *s);
    s->parent = parent;
    s->variables = NULL;
    return s;
}

static inline void jinja_eval_arguments(jinja *j, const jinja_node *n, jinja_scope *s,
                                        jinja_arguments *to)
{
    to->count = to->given = 0;
    for (; n != NULL; n = n->next) {
        if (to->count == JINJA_ARGUMENTS)
            jinja_fail(j, "more than %d arguments", JINJA_ARGUMENTS);
        if (n->b == NULL && to->given < to->count)
            jinja_fail(j, "an argument without a keyword comes after one with a keyword");
        to->at[to->count] = jinja_eval(j, n->a, s);
        to->names[to->count] = n->b != NULL ? n->b->value : jinja_string("", 0, 0);
        to->count++;
        to->given += n->b == NULL;
    }
}

/* Returns argument i, which may also be given by its keyword, or NULL. */
static inline const jinja_value *jinja_argument(const jinja_arguments *a, size_t i,
                                                const char *keyword)
{
    if (i < a->given)
        return &a->at[i];
    for (size_t k = a->given; k < a->count; k++)
        if (jinja_is(&a->names[k], keyword))
            return &a->at[k];
    return NULL;
}

/* Returns argument i, which must be a string. */
static inline jinja_value jinja_string_argument(jinja *j, const jinja_arguments *a, size_t i,
                                                const char *keyword)
{
    const jinja_value *v = jinja_argument(a, i, keyword);
    if (v == NULL)
        jinja_fail(j, "the argument '%s' is missing", keyword);
    if (v->kind != JINJA_STRING)
        jinja_mismatch(j, keyword, v);
    return *v;
}

static inline int64_t jinja_whole_argument(jinja *j, const jinja_arguments *a, size_t i,
                                           const char *keyword, int64_t fallback)
{
    const jinja_value *v = jinja_argument(a, i, keyword);
    if (v == NULL || v->kind == JINJA_NONE)
        return fallback;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_mismatch(j, keyword, v);
    return v->whole;
}

/* Returns whether text b is at offset `at` of string a. */
static inline int jinja_has(const jinja_value *a, size_t at, const jinja_value *b)
{
    return b->size <= a->size && at <= a->size - b->size &&
           memcmp(a->text + at, b->text, b->size) == 0;
}

/* Returns the first offset of b in a from `from` on, or SIZE_MAX. */
static inline size_t jinja_search(jinja *j, const jinja_value *a, size_t from, const jinja_value *b)
{
    if (b->size == 0)
        return from <= a->size ? from : SIZE_MAX;
    jinja_step(j, (a->size - from) / 64);
    while (from + b->size <= a->size) {
        const char *s =
            (const char *)memchr(a->text + from, b->text[0], a->size - b->size - from + 1);
        if (s == NULL)
            return SIZE_MAX;
        from = (size_t)(s - a->text);
        if (jinja_has(a, from, b))
            return from;
        from++;
    }
    return SIZE_MAX;
}

/* Removes characters from both sides, or one: white space, or those of `set` unless it is NULL. */
static inline jinja_value jinja_strip(jinja_value v, int left, int right, const jinja_value *set)
{
    size_t n;
    for (int side = 0; side < 2; side++)
        while ((side == 0 ? left : right) && v.size > 0) {
            size_t at = 0;
            if (side == 1)
                for (at = v.size - 1; at > 0 && ((unsigned char)v.text[at] & 0xc0) == 0x80;)
                    at--;
            int strips = jinja_is_white(v.text + at, v.size - at, &n);
            if (set != NULL) {
                const jinja_value c = jinja_part(v, at, n);
                strips = 0;
                for (size_t i = 0; i < set->size && !strips; i++)
                    strips = jinja_has(set, i, &c);
            }
            if (!strips)
                break;
            v = side == 0 ? jinja_part(v, n, v.size - n) : jinja_part(v, 0, at);
        }
    return v;
}

/* Returns a list of all items of a value: characters of a string, keys of a dict. */
static inline jinja_value jinja_iterate(jinja *j, const jinja_value *v)
{
    if (v->kind == JINJA_LIST)
        return *v;
    if (v->kind != JINJA_DICT && v->kind != JINJA_STRING && v->kind != JINJA_UNDEFINED)
        jinja_mismatch(j, "iteration", v);
    const size_t count = jinja_length(j, v);
    jinja_value to = jinja_list(j, JINJA_LIST, count);
    jinja_step(j, count);
    for (size_t i = 0, at = 0, n; i < count; i++, at += n) {
        n = v->kind == JINJA_STRING ? jinja_character(v->text + at, v->size - at) : 0;
        to.items[i] = v->kind == JINJA_STRING ? jinja_part(*v, at, n) : v->items[2 * i];
    }
    return to;
}

/* Returns the byte of character i of a string, which has at least i characters. */
static inline size_t jinja_offset(const jinja_value *v, size_t i)
{
    size_t at = 0;
    while (i-- > 0)
        at += jinja_character(v->text + at, v->size - at);
    return at;
}

/* Returns an item of a list or a character of a string; negative indices count from the end. */
static inline jinja_value jinja_index(jinja *j, const jinja_value *v, int64_t i)
{
    const int64_t n = (int64_t)jinja_length(j, v);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return jinja_undefined("the item", 8);
    if (v->kind == JINJA_LIST)
        return v->items[i];
    const size_t at = jinja_offset(v, (size_t)i);
    return jinja_part(*v, at, jinja_character(v->text + at, v->size - at));
}

static inline jinja_value jinja_slice(jinja *j, const jinja_value *v, const jinja_value bounds[3])
{
    if (v->kind != JINJA_STRING && v->kind != JINJA_LIST)
        jinja_mismatch(j, "a slice", v);
    const int64_t n = (int64_t)jinja_length(j, v);
    int64_t at[3] = { 0, 0, 1 };
    for (int k = 2; k >= 0; k--) {
        if (bounds[k].kind == JINJA_INT || bounds[k].kind == JINJA_BOOL) {
            at[k] = bounds[k].whole;
            if (k < 2) {
                at[k] += at[k] < 0 ? n : 0;
                const int64_t least = at[2] < 0 ? -1 : 0, most = at[2] < 0 ? n - 1 : n;
                at[k] = at[k] < least ? least : at[k] > most ? most : at[k];
            }
        } else if (bounds[k].kind != JINJA_NONE) {
            jinja_mismatch(j, "a bound of a slice", &bounds[k]);
        } else if (k < 2) {
            at[k] = k == 0 ? (at[2] > 0 ? 0 : n - 1) : at[2] > 0 ? n : -1;
        }
        if (k == 2 && (at[2] == 0 || at[2] < -INT32_MAX || at[2] > INT32_MAX))
            jinja_fail(j, "a slice with step 0, or a very long one");
    }
    const int64_t span = at[2] > 0 ? at[1] - at[0] : at[0] - at[1];
    const int64_t step = at[2] > 0 ? at[2] : -at[2];
    const size_t count = span > 0 ? (size_t)((span + step - 1) / step) : 0;
    if (v->kind == JINJA_STRING && (at[2] == 1 || count == 0)) {
        const size_t from = count > 0 ? jinja_offset(v, (size_t)at[0]) : 0;
        const jinja_value rest = jinja_part(*v, from, v->size - from);
        return jinja_part(rest, 0, jinja_offset(&rest, count));
    }
    const jinja_value all = jinja_iterate(j, v);
    jinja_value list = jinja_list(j, JINJA_LIST, count);
    jinja_text t = { NULL, NULL, 0, 0 };
    list.is_tuple = v->kind == JINJA_LIST && v->is_tuple;
    for (size_t i = 0; i < count; i++) {
        list.items[i] = all.items[at[0] + (int64_t)i * at[2]];
        if (v->kind == JINJA_STRING)
            jinja_print(j, &t, &list.items[i]);
    }
    return v->kind == JINJA_STRING ? jinja_text_value(&t) : list;
}

/* Returns an attribute of a loop. */
static inline jinja_value jinja_loop_attribute(jinja *j, const jinja_loop *loop,
                                               const jinja_value *name)
{
    const int64_t i = (int64_t)loop->index, n = (int64_t)loop->count;
    const struct {
        const char *name;
        jinja_value value;
    } all[] = { { "index", jinja_whole(i + 1) },
                { "index0", jinja_whole(i) },
                { "revindex", jinja_whole(n - i) },
                { "revindex0", jinja_whole(n - i - 1) },
                { "first", jinja_bool(i == 0) },
                { "last", jinja_bool(i + 1 == n) },
                { "length", jinja_whole(n) },
                { "previtem", i > 0 ? loop->items[i - 1] : jinja_undefined("loop.previtem", 13) },
                { "nextitem",
                  i + 1 < n ? loop->items[i + 1] : jinja_undefined("loop.nextitem", 13) } };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (jinja_is(name, all[k].name))
            return all[k].value;
    jinja_fail(j, "unknown: loop.%.*s", (int)(name->size < 60 ? name->size : 60), name->text);
}

/* Returns v.name if `dotted`, which also finds methods, or v[name]. */
static inline jinja_value jinja_attribute(jinja *j, const jinja_value *v, const jinja_value *name,
                                          int dotted)
{
    const jinja_value *found = NULL;
    if (v->kind == JINJA_UNDEFINED)
        jinja_mismatch(j, "an attribute of it", v);
    if (v->kind == JINJA_LOOP)
        return jinja_loop_attribute(j, v->loop, name);
    if ((name->kind == JINJA_INT || name->kind == JINJA_BOOL) &&
        (v->kind == JINJA_LIST || v->kind == JINJA_STRING))
        return jinja_index(j, v, name->whole);
    const int has_methods = v->kind == JINJA_DICT || v->kind == JINJA_STRING;
    if (dotted && has_methods) {
        const int word = jinja_word(name, JINJA_IS_METHOD);
        const int of_dict = word >= JINJA_W_ITEMS && word <= JINJA_W_COPY;
        if (word != JINJA_W_NONE && of_dict == (v->kind == JINJA_DICT))
            return jinja_make(JINJA_FUNCTION);
    }
    if (v->kind == JINJA_DICT)
        found = jinja_find(j, v, name);
    if (v->kind == JINJA_NAMESPACE && name->kind == JINJA_STRING)
        found = jinja_look_up(v->scope, name);
    return found != NULL                ? *found
           : name->kind == JINJA_STRING ? jinja_undefined(name->text, name->size)
                                        : jinja_undefined("the item", 8);
}

/* Returns the value at a path such as "function.name" or "0". */
static inline jinja_value jinja_path(jinja *j, jinja_value v, jinja_value path)
{
    for (size_t at = 0, n; at <= path.size && v.kind != JINJA_UNDEFINED; at += n + 1) {
        const char *dot = (const char *)memchr(path.text + at, '.', path.size - at);
        n = dot != NULL ? (size_t)(dot - path.text) - at : path.size - at;
        jinja_value name = jinja_part(path, at, n);
        if (n > 0 && n < 9 && strspn(name.text, "0123456789") >= n)
            name = jinja_whole(strtoll(name.text, NULL, 10));
        v = jinja_attribute(j, &v, &name, 0);
    }
    return v;
}

/* ---- words ----------------------------------------------------------------------------------- */
/* Changes the case of ASCII letters; `word` is upper, lower, capitalize or title. */
static inline jinja_value jinja_case(jinja *j, const jinja_value *v, int word, int is_filter)
{
    jinja_text t = { NULL, NULL, 0, 0 };
    int first = 1;
    jinja_append(j, &t, v->text, v->size, v->marks, v->mark);
    for (size_t i = 0; i < t.size; i++) {
        const unsigned char c = (unsigned char)t.text[i];
        uint32_t wide = c;
        if (c >= 0xc0 && json_utf8(t.text + i, t.size - i, &wide) > 0 &&
            unicode_class(wide) == UNICODE_LETTER && wide < 0x2c00)
            jinja_fail(j, "upper and lower case are known for ASCII only, not for U+%04X",
                       (unsigned)wide);
        const int upper = word == JINJA_W_UPPER || (word != JINJA_W_LOWER && first);
        if (upper && c >= 'a' && c <= 'z')
            t.text[i] = (char)(c - 32);
        if (!upper && c >= 'A' && c <= 'Z')
            t.text[i] = (char)(c + 32);
        const int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        size_t n;
        if (word == JINJA_W_TITLE)
            first = is_filter ? jinja_is_white(t.text + i, t.size - i, &n) ||
                                    (c > 0 && strchr("-({[<", c) != NULL)
                              : !letter;
        else
            first = 0;
    }
    return jinja_text_value(&t);
}

static inline jinja_value jinja_replace(jinja *j, const jinja_value *v, jinja_value from,
                                        jinja_value to, int64_t most)
{
    jinja_text t = { NULL, NULL, 0, 0 };
    size_t at = 0;
    if (from.size == 0)
        jinja_fail(j, "unknown: replace of an empty text");
    for (; most != 0; most--) {
        const size_t next = jinja_search(j, v, at, &from);
        if (next == SIZE_MAX)
            break;
        const jinja_value before = jinja_part(*v, at, next - at);
        jinja_print(j, &t, &before);
        jinja_print(j, &t, &to);
        at = next + from.size;
    }
    const jinja_value rest = jinja_part(*v, at, v->size - at);
    jinja_print(j, &t, &rest);
    return jinja_text_value(&t);
}

/* Appends an item to a list that has room for *capacity items. */
static inline void jinja_push(jinja *j, jinja_value *list, size_t *capacity, jinja_value item)
{
    if (list->size == *capacity) {
        const jinja_value more = jinja_list(j, JINJA_LIST, 2 * *capacity + 8);
        if (list->size > 0)
            memcpy(more.items, list->items, list->size * sizeof item);
        list->items = more.items;
        *capacity = more.size;
    }
    list->items[list->size++] = item;
}

/* Splits a string at a separator (white space, if it is NULL) at most `most` times. */
static inline jinja_value jinja_split(jinja *j, const jinja_value *v, const jinja_value *separator,
                                      int64_t most)
{
    jinja_value to = jinja_make(JINJA_LIST);
    size_t capacity = 0, at = 0, n;
    if (separator != NULL && separator->size == 0)
        jinja_fail(j, "the separator is empty");
    for (; separator != NULL; most--) {
        const size_t next = most != 0 ? jinja_search(j, v, at, separator) : SIZE_MAX;
        jinja_push(j, &to, &capacity, jinja_part(*v, at, (next != SIZE_MAX ? next : v->size) - at));
        if (next == SIZE_MAX)
            return to;
        at = next + separator->size;
    }
    for (;; most--) {
        jinja_value rest = jinja_strip(jinja_part(*v, at, v->size - at), 1, 0, NULL);
        if (rest.size == 0)
            return to;
        for (n = 0, at = v->size - rest.size;
             most != 0 && at < v->size && !jinja_is_white(v->text + at, v->size - at, &n);)
            at += n;
        if (most != 0)
            rest = jinja_part(rest, 0, at - (v->size - rest.size));
        jinja_push(j, &to, &capacity, rest);
        if (most == 0)
            return to;
    }
}

/* Splits a string at a separator from its end, at most `most` times. */
static inline jinja_value jinja_rsplit(jinja *j, const jinja_value *v, const jinja_value *separator,
                                       int64_t most)
{
    const jinja_value all = jinja_split(j, v, separator, -1);
    if (most < 0 || (uint64_t)most + 1 >= all.size)
        return all;
    jinja_value to = jinja_list(j, JINJA_LIST, (size_t)most + 1);
    size_t end = v->size;
    for (size_t i = 0; i < (size_t)most; i++) {
        to.items[to.size - 1 - i] = all.items[all.size - 1 - i];
        end -= all.items[all.size - 1 - i].size + separator->size;
    }
    to.items[0] = jinja_part(*v, 0, end);
    return to;
}

static inline jinja_value jinja_split_lines(jinja *j, const jinja_value *v)
{
    jinja_value to = jinja_make(JINJA_LIST);
    size_t capacity = 0;
    for (size_t at = 0, n; at < v->size; at += n + 1) {
        for (n = 0; at + n < v->size && v->text[at + n] != '\n' && v->text[at + n] != '\r';)
            n++;
        jinja_push(j, &to, &capacity, jinja_part(*v, at, n));
        n += at + n + 1 < v->size && v->text[at + n] == '\r' && v->text[at + n + 1] == '\n';
    }
    return to;
}

static inline jinja_value jinja_join(jinja *j, const jinja_value *v, jinja_value separator,
                                     const jinja_value *attribute)
{
    const jinja_value all = jinja_iterate(j, v);
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t i = 0; i < all.size; i++) {
        const jinja_value item =
            attribute != NULL ? jinja_path(j, all.items[i], *attribute) : all.items[i];
        if (i > 0)
            jinja_print(j, &t, &separator);
        jinja_print(j, &t, &item);
    }
    return jinja_text_value(&t);
}

/* Returns the pairs, keys or values of a dict as a list. */
static inline jinja_value jinja_entries(jinja *j, const jinja_value *v, int word)
{
    if (v->kind == JINJA_UNDEFINED && word == JINJA_W_ITEMS)
        return jinja_make(JINJA_LIST);
    if (v->kind != JINJA_DICT)
        jinja_mismatch(j, "items of a dict", v);
    jinja_value to = jinja_list(j, JINJA_LIST, v->size);
    jinja_step(j, v->size);
    for (size_t i = 0; i < v->size; i++) {
        if (word == JINJA_W_ITEMS) {
            to.items[i] = jinja_list(j, JINJA_LIST, 2);
            to.items[i].is_tuple = 1;
            memcpy(to.items[i].items, &v->items[2 * i], 2 * sizeof to);
        } else {
            to.items[i] = v->items[2 * i + (word == JINJA_W_VALUES)];
        }
    }
    return to;
}

static inline jinja_value jinja_indent(jinja *j, const jinja_value *v, const jinja_arguments *a)
{
    const int64_t width = jinja_whole_argument(j, a, 0, "width", 4);
    const int first = jinja_whole_argument(j, a, 1, "first", 0) != 0,
              blank = jinja_whole_argument(j, a, 2, "blank", 0) != 0;
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t at = 0, n; at <= v->size; at += n + 1) {
        const char *end = (const char *)memchr(v->text + at, '\n', v->size - at);
        n = end != NULL ? (size_t)(end - v->text) - at : v->size - at;
        for (int64_t i = 0; i < width && (at > 0 ? blank || n > 0 : first); i++)
            jinja_put(j, &t, " ");
        const jinja_value line = jinja_part(*v, at, end != NULL ? n + 1 : n);
        jinja_print(j, &t, &line);
    }
    return jinja_text_value(&t);
}

static inline jinja_value jinja_to_json(jinja *j, const jinja_value *v, const jinja_arguments *a)
{
    jinja_style style = { 1, 0, 0, -1, { jinja_c_string(", "), jinja_c_string(": ") } };
    jinja_text t = { NULL, NULL, 0, 0 };
    const jinja_value *separators = jinja_argument(a, 2, "separators");
    style.ascii = jinja_whole_argument(j, a, 0, "ensure_ascii", 0) != 0;
    style.indent = jinja_whole_argument(j, a, 1, "indent", -1);
    style.sorted = jinja_whole_argument(j, a, 3, "sort_keys", 0) != 0;
    if (style.indent >= 0)
        style.separators[0] = jinja_c_string(",");
    if (separators != NULL && separators->kind == JINJA_LIST && separators->size == 2)
        memcpy(style.separators, separators->items, sizeof style.separators);
    if (style.separators[0].kind != JINJA_STRING || style.separators[1].kind != JINJA_STRING)
        jinja_fail(j, "tojson: separators must be two strings");
    jinja_write(j, &t, v, &style, 0);
    return jinja_text_value(&t);
}

static inline jinja_value jinja_to_number(jinja *j, const jinja_value *v, int word,
                                          const jinja_arguments *a)
{
    const jinja_value *fallback = jinja_argument(a, 0, "default");
    double x = jinja_is_number(v) ? jinja_as_real(v) : 0;
    int valid = jinja_is_number(v);
    if (v->kind == JINJA_UNDEFINED)
        jinja_mismatch(j, "a number", v);
    if (word == JINJA_W_INT && jinja_argument(a, 1, "base") != NULL)
        jinja_fail(j, "unknown: the base of int");
    if (v->kind == JINJA_STRING) {
        const jinja_value s = jinja_strip(*v, 1, 1, NULL);
        char digits[64], *end = digits;
        if (s.size > 0 && s.size < sizeof digits) {
            memcpy(digits, s.text, s.size);
            digits[s.size] = 0;
            x = strspn(digits, "0123456789+-.eE") == s.size ? strtod(digits, &end) : 0;
            valid = end == digits + s.size && end > digits;
            if (valid && word == JINJA_W_INT && s.size < 19 &&
                strspn(digits + (*digits == '-'), "0123456789") + (size_t)(*digits == '-') ==
                    s.size)
                return jinja_whole(strtoll(digits, NULL, 10));
        }
    }
    if (!valid)
        return fallback != NULL ? *fallback : word == JINJA_W_INT ? jinja_whole(0) : jinja_real(0);
    if (word == JINJA_W_INT && v->kind != JINJA_FLOAT && v->kind != JINJA_STRING)
        return jinja_whole(v->whole);
    if (word == JINJA_W_INT && !(x < 9e18 && x > -9e18))
        jinja_fail(j, "a number of more than 64 bits");
    return word == JINJA_W_INT ? jinja_whole((int64_t)x) : jinja_real(x);
}

static inline int jinja_compare(jinja *j, int op, const jinja_value *a, const jinja_value *b);

/* Returns the result of a test. */
static inline int jinja_test(jinja *j, int word, const jinja_value *v, const jinja_arguments *a)
{
    const jinja_value *other = a->count > 0 ? &a->at[0] : NULL;
    const jinja_kind kind = v->kind;
    if (other == NULL && word >= JINJA_W_IS_DIVISIBLE)
        jinja_fail(j, "the test needs an argument");
    switch (word) {
    case JINJA_W_IS_DEFINED: return kind != JINJA_UNDEFINED;
    case JINJA_W_IS_UNDEFINED: return kind == JINJA_UNDEFINED;
    case JINJA_W_IS_NONE: return kind == JINJA_NONE;
    case JINJA_W_IS_STRING: return kind == JINJA_STRING;
    case JINJA_W_IS_MAPPING: return kind == JINJA_DICT;
    case JINJA_W_IS_SEQUENCE:
    case JINJA_W_IS_ITERABLE:
        return kind == JINJA_STRING || kind == JINJA_LIST || kind == JINJA_DICT ||
               kind == JINJA_UNDEFINED;
    case JINJA_W_IS_NUMBER: return jinja_is_number(v);
    case JINJA_W_IS_INTEGER: return kind == JINJA_INT;
    case JINJA_W_IS_FLOAT: return kind == JINJA_FLOAT;
    case JINJA_W_IS_BOOLEAN: return kind == JINJA_BOOL;
    case JINJA_W_IS_TRUE: return kind == JINJA_BOOL && v->whole;
    case JINJA_W_IS_FALSE: return kind == JINJA_BOOL && !v->whole;
    case JINJA_W_IS_CALLABLE: return kind == JINJA_MACRO || kind == JINJA_FUNCTION;
    case JINJA_W_IS_IN: return jinja_compare(j, JINJA_OP_IN, v, other);
    case JINJA_W_IS_EQUAL: return jinja_equal(j, v, other);
    case JINJA_W_IS_UNEQUAL: return !jinja_equal(j, v, other);
    case JINJA_W_IS_LESS: return jinja_compare(j, '<', v, other);
    case JINJA_W_IS_GREATER: return jinja_compare(j, '>', v, other);
    case JINJA_W_IS_AT_MOST: return jinja_compare(j, JINJA_OP2('<', '='), v, other);
    case JINJA_W_IS_AT_LEAST: return jinja_compare(j, JINJA_OP2('>', '='), v, other);
    }
    if (kind != JINJA_INT ||
        (word == JINJA_W_IS_DIVISIBLE && (other->kind != JINJA_INT || other->whole == 0)))
        jinja_mismatch(j, "odd, even or divisibleby", v);
    const int64_t divisor = word == JINJA_W_IS_DIVISIBLE ? other->whole : 2;
    return (divisor == -1 || v->whole % divisor == 0) == (word != JINJA_W_IS_ODD);
}

static inline jinja_value jinja_apply(jinja *j, int word, int use, const jinja_value *v,
                                      const jinja_arguments *a);

/* Removes the first argument of a call and returns it. */
static inline jinja_value jinja_shift(jinja *j, jinja_arguments *a, const char *what)
{
    const jinja_value first = a->at[0];
    if (a->given == 0 || first.kind != JINJA_STRING)
        jinja_fail(j, "%s: expected a string as first argument", what);
    a->count--;
    a->given--;
    memmove(a->at, a->at + 1, a->count * sizeof first);
    memmove(a->names, a->names + 1, a->count * sizeof first);
    return first;
}

/* Computes the filters map, select, reject, selectattr and rejectattr. */
static inline jinja_value jinja_each(jinja *j, int word, const jinja_value *v,
                                     const jinja_arguments *given)
{
    const int maps = word == JINJA_W_MAP;
    const int attributes = word == JINJA_W_SELECTATTR || word == JINJA_W_REJECTATTR;
    const int rejects = word == JINJA_W_REJECT || word == JINJA_W_REJECTATTR;
    const jinja_value none = jinja_make(JINJA_LIST),
                      all = jinja_iterate(j, jinja_is_true(v) ? v : &none);
    jinja_value to = jinja_list(j, JINJA_LIST, all.size), path = jinja_make(JINJA_NONE),
                fallback = path;
    jinja_arguments a = *given;
    int id = JINJA_W_NONE, by_name = 0;
    if (maps && a.given == 0) {
        const jinja_value *otherwise = jinja_argument(&a, 99, "default");
        path = jinja_string_argument(j, &a, 99, "attribute");
        fallback = otherwise != NULL ? *otherwise : fallback;
    } else {
        path = attributes ? jinja_shift(j, &a, "selectattr") : path;
        by_name = maps || a.count > 0;
        const jinja_value name = by_name ? jinja_shift(j, &a, maps ? "map" : "a test") : path;
        id = by_name ? jinja_word(&name, maps ? JINJA_IS_FILTER : JINJA_IS_TEST) : id;
        if (by_name && id == JINJA_W_NONE)
            jinja_fail(j, "unknown %s '%.*s'", maps ? "filter" : "test",
                       (int)(name.size < 60 ? name.size : 60), name.text);
    }
    to.size = 0;
    for (size_t i = 0; i < all.size; i++) {
        jinja_value item =
            path.kind == JINJA_STRING ? jinja_path(j, all.items[i], path) : all.items[i];
        jinja_step(j, 1);
        if (maps && by_name)
            item = jinja_apply(j, id, JINJA_IS_FILTER, &item, &a);
        else if (maps && item.kind == JINJA_UNDEFINED && fallback.kind != JINJA_NONE)
            item = fallback;
        const int passes = by_name && !maps ? jinja_test(j, id, &item, &a) : jinja_is_true(&item);
        if (maps || passes != rejects)
            to.items[to.size++] = maps ? item : all.items[i];
    }
    return to;
}

/* Computes words whose value is a string. */
static inline jinja_value jinja_apply_string(jinja *j, int word, int use, const jinja_value *v,
                                             const jinja_arguments *a)
{
    const jinja_value *set = jinja_argument(a, 0, "chars");
    jinja_value other;
    set = set != NULL && set->kind == JINJA_STRING ? set : NULL;
    switch (word) {
    case JINJA_W_TRIM: return jinja_strip(*v, 1, 1, set);
    case JINJA_W_LSTRIP: return jinja_strip(*v, 1, 0, set);
    case JINJA_W_RSTRIP: return jinja_strip(*v, 0, 1, set);
    case JINJA_W_STRING: return *v;
    case JINJA_W_SAFE:
        other = *v;
        other.is_safe = 1;
        return other;
    case JINJA_W_UPPER:
    case JINJA_W_LOWER:
    case JINJA_W_CAPITALIZE:
    case JINJA_W_TITLE: return jinja_case(j, v, word, use == JINJA_IS_FILTER);
    case JINJA_W_REPLACE:
        other = jinja_string_argument(j, a, 1, "new");
        return jinja_replace(j, v, jinja_string_argument(j, a, 0, "old"), other,
                             jinja_whole_argument(j, a, 2, "count", -1));
    case JINJA_W_SPLIT:
    case JINJA_W_RSPLIT:
        set = jinja_argument(a, 0, "sep");
        if (set != NULL && set->kind != JINJA_STRING && set->kind != JINJA_NONE)
            jinja_mismatch(j, "sep", set);
        set = set != NULL && set->kind == JINJA_NONE ? NULL : set;
        if (word == JINJA_W_RSPLIT && set == NULL)
            jinja_fail(j, "unknown: rsplit without a separator");
        return (word == JINJA_W_SPLIT ? jinja_split : jinja_rsplit)(
            j, v, set, jinja_whole_argument(j, a, 1, "maxsplit", -1));
    case JINJA_W_SPLITLINES: return jinja_split_lines(j, v);
    case JINJA_W_INDENT: return jinja_indent(j, v, a);
    case JINJA_W_JOIN_METHOD:
        if (a->given != 1)
            jinja_fail(j, "join needs a list");
        return jinja_join(j, &a->at[0], *v, NULL);
    case JINJA_W_STARTSWITH:
    case JINJA_W_ENDSWITH:
        for (size_t i = 0; a->given > 0 && a->at[0].kind == JINJA_LIST && i < a->at[0].size; i++) {
            const jinja_value *item = &a->at[0].items[i];
            if (item->kind == JINJA_STRING && item->size <= v->size &&
                jinja_has(v, word == JINJA_W_STARTSWITH ? 0 : v->size - item->size, item))
                return jinja_bool(1);
        }
        if (a->given > 0 && a->at[0].kind == JINJA_LIST)
            return jinja_bool(0);
        break;
    }
    other = jinja_string_argument(j, a, 0, "the text");
    const int fits = other.size <= v->size;
    const int starts = fits && jinja_has(v, 0, &other),
              ends = fits && jinja_has(v, v->size - other.size, &other);
    size_t n = 0, at = jinja_search(j, v, 0, &other);
    switch (word) {
    case JINJA_W_STARTSWITH: return jinja_bool(starts);
    case JINJA_W_ENDSWITH: return jinja_bool(ends);
    case JINJA_W_REMOVEPREFIX:
        return starts ? jinja_part(*v, other.size, v->size - other.size) : *v;
    case JINJA_W_REMOVESUFFIX: return ends ? jinja_part(*v, 0, v->size - other.size) : *v;
    case JINJA_W_FIND:
        other = jinja_part(*v, 0, at != SIZE_MAX ? at : 0);
        return jinja_whole(at != SIZE_MAX ? (int64_t)jinja_length(j, &other) : -1);
    }
    if (other.size == 0)
        jinja_fail(j, "unknown: count of an empty text");
    for (; at != SIZE_MAX; n++)
        at = jinja_search(j, v, at + other.size, &other);
    return jinja_whole((int64_t)n);
}

/* Computes a filter or method. */
static inline jinja_value jinja_apply(jinja *j, int word, int use, const jinja_value *v,
                                      const jinja_arguments *a)
{
    const jinja_value *other;
    jinja_value to;
    jinja_enter(j);
    switch (word) {
    case JINJA_W_TOJSON: to = jinja_to_json(j, v, a); break;
    case JINJA_W_LENGTH: to = jinja_whole((int64_t)jinja_length(j, v)); break;
    case JINJA_W_DEFAULT:
        other = jinja_argument(a, 1, "boolean");
        to = *v;
        if (v->kind == JINJA_UNDEFINED ||
            (other != NULL && jinja_is_true(other) && !jinja_is_true(v))) {
            other = jinja_argument(a, 0, "default_value");
            to = other != NULL ? *other : jinja_string("", 0, 0);
        }
        break;
    case JINJA_W_ITEMS:
    case JINJA_W_KEYS:
    case JINJA_W_VALUES: to = jinja_entries(j, v, word); break;
    case JINJA_W_COPY: to = *v; break;
    case JINJA_W_GET:
        if (a->given < 1)
            jinja_fail(j, "get needs a key");
        other = jinja_find(j, v, &a->at[0]);
        to = other != NULL ? *other : a->given > 1 ? a->at[1] : jinja_make(JINJA_NONE);
        break;
    case JINJA_W_JOIN:
        other = jinja_argument(a, 0, "d");
        to = jinja_join(j, v, other != NULL ? jinja_str(j, other) : jinja_string("", 0, 0),
                        jinja_argument(a, 1, "attribute"));
        break;
    case JINJA_W_LIST:
        to = jinja_iterate(j, v);
        to.is_tuple = 0;
        break;
    case JINJA_W_FIRST:
    case JINJA_W_LAST:
    case JINJA_W_MIN:
    case JINJA_W_MAX:
        to = jinja_iterate(j, v);
        if (word == JINJA_W_MIN || word == JINJA_W_MAX)
            to = jinja_sort(j, &to, 0, 1, word == JINJA_W_MAX);
        to = jinja_index(j, &to, word == JINJA_W_LAST ? -1 : 0);
        break;
    case JINJA_W_REVERSE: {
        const jinja_value bounds[3] = { jinja_make(JINJA_NONE), jinja_make(JINJA_NONE),
                                        jinja_whole(-1) };
        to = jinja_slice(j, v, bounds);
        to.is_tuple = 0;
        break;
    }
    case JINJA_W_SORT:
        if (jinja_argument(a, 2, "attribute") != NULL)
            jinja_fail(j, "unknown: sort by an attribute");
        to = jinja_iterate(j, v);
        to = jinja_sort(j, &to, 0, jinja_whole_argument(j, a, 1, "case_sensitive", 0) == 0,
                        jinja_whole_argument(j, a, 0, "reverse", 0) != 0);
        to.is_tuple = 0;
        break;
    case JINJA_W_DICTSORT:
        if (v->kind != JINJA_DICT)
            jinja_mismatch(j, "dictsort", v);
        other = jinja_argument(a, 1, "by");
        to = jinja_sort(j, v, other != NULL && jinja_is(other, "value"),
                        jinja_whole_argument(j, a, 0, "case_sensitive", 0) == 0,
                        jinja_whole_argument(j, a, 2, "reverse", 0) != 0);
        to = jinja_entries(j, &to, JINJA_W_ITEMS);
        break;
    case JINJA_W_MAP:
    case JINJA_W_SELECT:
    case JINJA_W_REJECT:
    case JINJA_W_SELECTATTR:
    case JINJA_W_REJECTATTR: to = jinja_each(j, word, v, a); break;
    case JINJA_W_INT:
    case JINJA_W_FLOAT: to = jinja_to_number(j, v, word, a); break;
    case JINJA_W_ABS:
        if (!jinja_is_number(v))
            jinja_mismatch(j, "abs", v);
        to = v->kind == JINJA_FLOAT ? jinja_real(v->real < 0 ? -v->real : v->real)
                                    : jinja_whole(v->whole < 0 ? -v->whole : v->whole);
        break;
    default:
        if (word == JINJA_W_INDENT && v->kind != JINJA_STRING)
            jinja_mismatch(j, "indent", v);
        /* a filter reads any value as a string */
        to = jinja_str(j, v);
        to = jinja_apply_string(j, word, use, &to, a);
    }
    j->depth--;
    return to;
}

/* ---- calls ----------------------------------------------------------------------------------- */
static inline int jinja_exec(jinja *j, const jinja_node *n, jinja_scope *s);

/* Executes nodes with their output in a text, which is returned. */
static inline jinja_value jinja_captured(jinja *j, const jinja_node *body, jinja_scope *s)
{
    jinja_text t = { NULL, NULL, 0, 0 }, *before = j->out;
    j->out = &t;
    jinja_exec(j, body, s);
    j->out = before;
    return jinja_text_value(&t);
}

static inline jinja_value jinja_call_macro(jinja *j, const jinja_value *macro,
                                           const jinja_arguments *a)
{
    jinja_scope *s = jinja_new_scope(j, macro->scope);
    size_t i = 0, used = 0;
    for (const jinja_node *p = macro->node->a; p != NULL; p = p->next, i++) {
        jinja_value value = jinja_undefined(p->value.text, p->value.size);
        size_t k = a->given;
        while (k < a->count && !jinja_same(&a->names[k], &p->value))
            k++;
        if (i < a->given || k < a->count)
            value = a->at[i < a->given ? i : k];
        else if (p->a != NULL)
            value = jinja_eval(j, p->a, s);
        used += i < a->given || k < a->count;
        jinja_assign(j, s, p->value, value);
    }
    const jinja_value *caller = a->count > 0 ? &a->at[a->count - 1] : NULL;
    if (caller != NULL && a->given < a->count && jinja_is(&a->names[a->count - 1], "caller")) {
        jinja_assign(j, s, a->names[a->count - 1], *caller);
        used++;
    }
    if (used != a->count)
        jinja_fail(j, "the macro %.*s takes other arguments",
                   (int)(macro->node->value.size < 60 ? macro->node->value.size : 60),
                   macro->node->value.text);
    return jinja_captured(j, macro->node->b, s);
}

static inline jinja_value jinja_range(jinja *j, const jinja_arguments *a)
{
    int64_t at[3] = { 0, 0, 1 };
    for (size_t i = 0; i < a->given && i < 3; i++) {
        if (a->at[i].kind != JINJA_INT && a->at[i].kind != JINJA_BOOL)
            jinja_mismatch(j, "range", &a->at[i]);
        at[i] = a->at[i].whole;
        if (at[i] > INT32_MAX || at[i] < -INT32_MAX)
            jinja_fail(j, "range is too long");
    }
    if (a->given == 1) {
        at[1] = at[0];
        at[0] = 0;
    }
    if (a->given < 1 || a->given > 3 || at[2] == 0)
        jinja_fail(j, "range takes 1 to 3 numbers, and no step 0");
    const int64_t span = at[2] > 0 ? at[1] - at[0] : at[0] - at[1],
                  step = at[2] > 0 ? at[2] : -at[2];
    const size_t count = span > 0 ? (size_t)((span + step - 1) / step) : 0;
    jinja_step(j, count);
    jinja_value to = jinja_list(j, JINJA_LIST, count);
    for (size_t i = 0; i < count; i++)
        to.items[i] = jinja_whole(at[0] + (int64_t)i * at[2]);
    return to;
}

static inline jinja_value jinja_call_function(jinja *j, int word, const jinja_arguments *a)
{
    jinja_value to = jinja_make(JINJA_NAMESPACE), text;
    if (word == JINJA_W_RANGE)
        return jinja_range(j, a);
    if (word == JINJA_W_RAISE) {
        text = a->given > 0 ? jinja_str(j, &a->at[0]) : jinja_c_string("no reason given");
        jinja_fail(j, "the template refuses the chat: %.*s",
                   (int)(text.size < 240 ? text.size : 240), text.text);
    }
    if (word == JINJA_W_STRFTIME) {
        char format[128], date[256];
        const time_t now = (time_t)j->now;
        const struct tm *utc = gmtime(&now);
        text = jinja_string_argument(j, a, 0, "format");
        if (utc == NULL || text.size == 0 || text.size >= sizeof format)
            jinja_fail(j, "strftime_now: unknown format");
        memcpy(format, text.text, text.size);
        format[text.size] = 0;
        const size_t n = strftime(date, sizeof date, format, utc);
        char *copy = (char *)jinja_alloc(j, n + 1);
        memcpy(copy, date, n);
        return jinja_string(copy, n, 0);
    }
    if (a->given > 0)
        jinja_fail(j, "namespace and dict: only arguments with keywords are known");
    to.scope = word == JINJA_W_NAMESPACE ? jinja_new_scope(j, NULL) : NULL;
    if (word == JINJA_W_DICT)
        to = jinja_list(j, JINJA_DICT, a->count);
    for (size_t i = 0; i < a->count; i++) {
        if (word == JINJA_W_NAMESPACE) {
            jinja_assign(j, to.scope, a->names[i], a->at[i]);
        } else {
            to.items[2 * i] = a->names[i];
            to.items[2 * i + 1] = a->at[i];
        }
    }
    return to;
}

/* Evaluates a call of a method, macro or function. `caller` is the body of a call block, or NULL. */
static inline jinja_value jinja_call(jinja *j, const jinja_node *n, jinja_scope *s,
                                     const jinja_value *caller)
{
    const jinja_value *name = &n->a->value;
    const int width = (int)(name->size < 60 ? name->size : 60);
    jinja_arguments a;
    jinja_value callee;
    if (n->a->kind == JINJA_ATTRIBUTE) {
        const jinja_value v = jinja_eval(j, n->a->a, s);
        callee = jinja_attribute(j, &v, name, 1);
        jinja_eval_arguments(j, n->b, s, &a);
        j->at = n->a->at;
        if (callee.kind == JINJA_FUNCTION)
            return jinja_apply(j, jinja_word(name, JINJA_IS_METHOD), JINJA_IS_METHOD, &v, &a);
        if (callee.kind != JINJA_MACRO)
            jinja_fail(j, "unknown method '%.*s' of %s", width, name->text,
                       jinja_kind_name(v.kind));
        return jinja_call_macro(j, &callee, &a);
    }
    if (n->a->kind != JINJA_NAME)
        jinja_fail(j, "unknown: a call of an expression");
    const jinja_value *found = jinja_look_up(s, name);
    jinja_eval_arguments(j, n->b, s, &a);
    j->at = n->at;
    if (found != NULL && found->kind == JINJA_MACRO) {
        callee = *found;
        if (caller != NULL && a.count < JINJA_ARGUMENTS) {
            a.names[a.count] = jinja_c_string("caller");
            a.at[a.count++] = *caller;
        }
        return jinja_call_macro(j, &callee, &a);
    }
    const int word = found == NULL ? jinja_word(name, JINJA_IS_FUNCTION) : JINJA_W_NONE;
    if (word == JINJA_W_NONE)
        jinja_fail(j, "unknown function '%.*s'", width, name->text);
    return jinja_call_function(j, word, &a);
}

/* ---- operators ------------------------------------------------------------------------------- */
static inline int jinja_compare(jinja *j, int op, const jinja_value *a, const jinja_value *b)
{
    if (op == JINJA_OP2('=', '=') || op == JINJA_OP2('!', '='))
        return jinja_equal(j, a, b) == (op == JINJA_OP2('=', '='));
    if (op == JINJA_OP_IN || op == JINJA_OP_NOT_IN) {
        int found = 0;
        if (b->kind == JINJA_STRING && a->kind != JINJA_STRING)
            jinja_mismatch(j, "a search in a string", a);
        if (b->kind == JINJA_STRING)
            found = jinja_search(j, b, 0, a) != SIZE_MAX;
        else if (b->kind == JINJA_DICT)
            found = jinja_find(j, b, a) != NULL;
        else if (b->kind != JINJA_LIST && b->kind != JINJA_UNDEFINED)
            jinja_mismatch(j, "in", b);
        jinja_step(j, b->kind == JINJA_LIST ? b->size : 0);
        for (size_t i = 0; b->kind == JINJA_LIST && i < b->size && !found; i++)
            found = jinja_equal(j, a, &b->items[i]);
        return found == (op == JINJA_OP_IN);
    }
    const int order = jinja_order(j, a, b, 0);
    return op == '<'                   ? order < 0
           : op == '>'                 ? order > 0
           : op == JINJA_OP2('<', '=') ? order <= 0
                                       : order >= 0;
}

static inline jinja_value jinja_arithmetic(jinja *j, int op, const jinja_value *a,
                                           const jinja_value *b)
{
    if (!jinja_is_number(a) || !jinja_is_number(b))
        jinja_mismatch(j, "arithmetic", !jinja_is_number(a) ? a : b);
    const double x = jinja_as_real(a), y = jinja_as_real(b);
    const int whole = a->kind != JINJA_FLOAT && b->kind != JINJA_FLOAT;
    const int divides = op == '/' || op == '%' || op == JINJA_OP2('/', '/');
    if (divides && (whole ? b->whole == 0 : !(y < 0 || y > 0)))
        jinja_fail(j, "division by zero");
    const double real = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y;
    if (whole && op != '/') {
        int64_t quotient;
        if (real > 9e18 || real < -9e18 || a->whole < -INT64_MAX || b->whole < -INT64_MAX)
            jinja_fail(j, "a number of more than 64 bits");
        if (!divides)
            return jinja_whole(op == '+'   ? a->whole + b->whole
                               : op == '-' ? a->whole - b->whole
                                           : a->whole * b->whole);
        quotient = a->whole / b->whole;
        quotient -= a->whole % b->whole != 0 && (a->whole < 0) != (b->whole < 0);
        return jinja_whole(op == '%' ? a->whole - quotient * b->whole : quotient);
    }
    if (divides && op != '/')
        jinja_fail(j, "unknown: // and %% of numbers that are not whole");
    return jinja_real(real);
}

static inline jinja_value jinja_binary_value(jinja *j, const jinja_node *n, const jinja_value *a,
                                             const jinja_value *b)
{
    if (n->op == '~')
        return jinja_concat(j, a, b);
    if (n->op == '+' && a->kind == b->kind && a->kind == JINJA_STRING)
        return jinja_concat(j, a, b);
    if (n->op == '+' && a->kind == b->kind && a->kind == JINJA_LIST && a->is_tuple == b->is_tuple) {
        jinja_value to = jinja_list(j, JINJA_LIST, a->size + b->size);
        jinja_step(j, to.size);
        to.is_tuple = a->is_tuple;
        if (a->size > 0)
            memcpy(to.items, a->items, a->size * sizeof to);
        if (b->size > 0)
            memcpy(to.items + a->size, b->items, b->size * sizeof to);
        return to;
    }
    if (n->op == '*' && (a->kind == JINJA_STRING || b->kind == JINJA_STRING) &&
        (a->kind == JINJA_INT || b->kind == JINJA_INT)) {
        const int64_t times = a->kind == JINJA_INT ? a->whole : b->whole;
        jinja_text t = { NULL, NULL, 0, 0 };
        for (int64_t i = 0; i < times; i++) {
            jinja_step(j, 1);
            jinja_print(j, &t, a->kind == JINJA_STRING ? a : b);
        }
        return jinja_text_value(&t);
    }
    return jinja_arithmetic(j, n->op, a, b);
}

static inline jinja_value jinja_eval_list(jinja *j, const jinja_node *n, jinja_scope *s)
{
    size_t count = 0, k = 0;
    for (const jinja_node *i = n->a; i != NULL; i = i->next)
        count++;
    const int is_dict = n->kind == JINJA_MAKE_DICT;
    jinja_value to = jinja_list(j, is_dict ? JINJA_DICT : JINJA_LIST, is_dict ? count / 2 : count);
    to.is_tuple = n->op;
    for (const jinja_node *i = n->a; !is_dict && i != NULL; i = i->next)
        to.items[k++] = jinja_eval(j, i, s);
    to.size = is_dict ? 0 : to.size;
    for (const jinja_node *i = n->a; is_dict && i != NULL; i = i->next->next) {
        const jinja_value key = jinja_eval(j, i, s), value = jinja_eval(j, i->next, s);
        const jinja_value *found = jinja_find(j, &to, &key);
        const size_t at = found != NULL ? (size_t)(found - to.items) : 2 * to.size + 1;
        if (found == NULL)
            to.items[2 * to.size++] = key;
        to.items[at] = value; /* of equal keys the last value counts */
    }
    return to;
}

static inline jinja_value jinja_eval_inner(jinja *j, const jinja_node *n, jinja_scope *s)
{
    jinja_value a, b, bounds[3];
    jinja_arguments arguments;
    const jinja_value *found;
    switch (n->kind) {
    case JINJA_CONSTANT: return n->value;
    case JINJA_NAME:
        found = jinja_look_up(s, &n->value);
        if (found == NULL && jinja_word(&n->value, JINJA_IS_FUNCTION) != JINJA_W_NONE)
            return jinja_make(JINJA_FUNCTION);
        return found != NULL ? *found : jinja_undefined(n->value.text, n->value.size);
    case JINJA_MAKE_LIST:
    case JINJA_MAKE_DICT: return jinja_eval_list(j, n, s);
    case JINJA_CALL: return jinja_call(j, n, s, NULL);
    case JINJA_CONDITION:
        b = jinja_eval(j, n->b, s);
        return jinja_is_true(&b) ? jinja_eval(j, n->a, s)
               : n->c != NULL    ? jinja_eval(j, n->c, s)
                                 : jinja_undefined("the value of an if without else", 31);
    default: break;
    }
    a = jinja_eval(j, n->a, s);
    switch (n->kind) {
    case JINJA_ATTRIBUTE: j->at = n->at; return jinja_attribute(j, &a, &n->value, 1);
    case JINJA_ITEM:
        b = jinja_eval(j, n->b, s);
        j->at = n->at;
        return jinja_attribute(j, &a, &b, 0);
    case JINJA_SLICE:
        bounds[0] = n->b != NULL ? jinja_eval(j, n->b, s) : jinja_make(JINJA_NONE);
        bounds[1] = n->c != NULL ? jinja_eval(j, n->c, s) : jinja_make(JINJA_NONE);
        bounds[2] = n->d != NULL ? jinja_eval(j, n->d, s) : jinja_make(JINJA_NONE);
        j->at = n->at;
        return jinja_slice(j, &a, bounds);
    case JINJA_FILTER:
    case JINJA_TEST:
        jinja_eval_arguments(j, n->b, s, &arguments);
        j->at = n->at;
        if (n->op == JINJA_W_NONE)
            jinja_fail(j, "unknown %s '%.*s'", n->kind == JINJA_FILTER ? "filter" : "test",
                       (int)(n->value.size < 60 ? n->value.size : 60), n->value.text);
        return n->kind == JINJA_FILTER ? jinja_apply(j, n->op, JINJA_IS_FILTER, &a, &arguments)
                                       : jinja_bool(jinja_test(j, n->op, &a, &arguments));
    case JINJA_NOT: return jinja_bool(!jinja_is_true(&a));
    case JINJA_NEGATE:
    case JINJA_PLUS:
        b = jinja_whole(0);
        return a.kind == JINJA_FLOAT
                   ? jinja_real(n->kind == JINJA_NEGATE ? -a.real : a.real)
                   : jinja_arithmetic(j, n->kind == JINJA_NEGATE ? '-' : '+', &b, &a);
    case JINJA_AND: return jinja_is_true(&a) ? jinja_eval(j, n->b, s) : a;
    case JINJA_OR: return jinja_is_true(&a) ? a : jinja_eval(j, n->b, s);
    case JINJA_BINARY:
        b = jinja_eval(j, n->b, s);
        j->at = n->at;
        return jinja_binary_value(j, n, &a, &b);
    default: break;
    }
    for (const jinja_node *i = n->b; i != NULL; i = i->next) { /* JINJA_COMPARE */
        b = jinja_eval(j, i->a, s);
        j->at = i->at;
        if (!jinja_compare(j, i->op, &a, &b))
            return jinja_bool(0);
        a = b;
    }
    return jinja_bool(1);
}

/* Evaluates an expression. */
static inline jinja_value jinja_eval(jinja *j, const jinja_node *n, jinja_scope *s)
{
    jinja_enter(j);
    jinja_step(j, 1);
    j->at = n->at;
    const jinja_value v = jinja_eval_inner(j, n, s);
    j->depth--;
    return v;
}

/* ---- execution ------------------------------------------------------------------------------- */
enum { JINJA_GOES_ON, JINJA_BREAKS, JINJA_CONTINUES };

/* Assigns a value to a name, an attribute of a namespace, or several names. */
static inline void jinja_assign_to(jinja *j, const jinja_node *target, jinja_scope *s,
                                   const jinja_value *value)
{
    j->at = target->at;
    if (target->kind == JINJA_NAME) {
        jinja_assign(j, s, target->value, *value);
    } else if (target->kind == JINJA_ATTRIBUTE) {
        const jinja_value space = jinja_eval(j, target->a, s);
        if (space.kind != JINJA_NAMESPACE)
            jinja_mismatch(j, "set of an attribute", &space);
        jinja_assign(j, space.scope, target->value, *value);
    } else if (target->kind == JINJA_MAKE_LIST) {
        const jinja_value all = jinja_iterate(j, value);
        size_t n = 0;
        for (const jinja_node *i = target->a; i != NULL; i = i->next, n++)
            if (n < all.size)
                jinja_assign_to(j, i, s, &all.items[n]);
        if (n != all.size)
            jinja_fail(j, "%d names, but %d values", (int)n, (int)all.size);
    } else {
        jinja_fail(j, "expected a name to assign to");
    }
}

static inline int jinja_exec_for(jinja *j, const jinja_node *n, jinja_scope *s)
{
    const jinja_value values = jinja_eval(j, n->b, s);
    jinja_value all = jinja_iterate(j, &values), loop = jinja_make(JINJA_LOOP);
    if (n->c != NULL) {
        const jinja_value kept = jinja_list(j, JINJA_LIST, all.size);
        size_t count = 0;
        for (size_t i = 0; i < all.size; i++) {
            jinja_scope *inner = jinja_new_scope(j, s);
            jinja_assign_to(j, n->a, inner, &all.items[i]);
            const jinja_value passes = jinja_eval(j, n->c, inner);
            if (jinja_is_true(&passes))
                kept.items[count++] = all.items[i];
        }
        all = kept;
        all.size = count;
    }
    loop.loop = (jinja_loop *)jinja_alloc(j, sizeof *loop.loop);
    loop.loop->items = all.items;
    loop.loop->count = all.size;
    int complete = 0, flow;
    for (size_t i = 0; i < all.size; i++) {
        jinja_scope *inner = jinja_new_scope(j, s);
        jinja_step(j, 1);
        loop.loop->index = i;
        jinja_assign(j, inner, jinja_c_string("loop"), loop);
        jinja_assign_to(j, n->a, inner, &all.items[i]);
        flow = jinja_exec(j, n->d->a, inner);
        complete |= flow == JINJA_GOES_ON;
        if (flow == JINJA_BREAKS)
            break;
    }
    /* as in Jinja, else also follows a loop whose iterations were all left early */
    return complete ? JINJA_GOES_ON : jinja_exec(j, n->d->b, jinja_new_scope(j, s));
}

/* Executes a list of nodes. Returns whether a loop breaks or continues. */
static inline int jinja_exec(jinja *j, const jinja_node *n, jinja_scope *s)
{
    int flow = JINJA_GOES_ON;
    jinja_enter(j);
    for (; n != NULL && flow == JINJA_GOES_ON; n = n->next) {
        jinja_value v;
        size_t first;
        jinja_step(j, 1);
        j->at = n->at;
        switch (n->kind) {
        case JINJA_TEXT: jinja_print(j, j->out, &n->value); break;
        case JINJA_OUTPUT:
            v = jinja_eval(j, n->a, s);
            j->at = n->at;
            jinja_print(j, j->out, &v);
            break;
        case JINJA_IF:
            v = jinja_eval(j, n->a, s);
            flow = jinja_exec(j, jinja_is_true(&v) ? n->b : n->c, s);
            break;
        case JINJA_FOR: flow = jinja_exec_for(j, n, s); break;
        case JINJA_SET:
            v = jinja_eval(j, n->b, s);
            jinja_assign_to(j, n->a, s, &v);
            break;
        case JINJA_CAPTURE:
            n->c->value = jinja_captured(j, n->d, jinja_new_scope(j, s));
            v = jinja_eval(j, n->b, s);
            jinja_assign_to(j, n->a, s, &v);
            break;
        case JINJA_DEFINE:
        case JINJA_CALL_BLOCK:
            v = jinja_make(JINJA_MACRO);
            v.node = n;
            v.scope = s;
            if (n->kind == JINJA_DEFINE) {
                jinja_assign(j, s, n->value, v);
            } else {
                v = jinja_call(j, n->c, s, &v);
                jinja_print(j, j->out, &v);
            }
            break;
        case JINJA_GENERATION:
            first = j->out->size;
            flow = jinja_exec(j, n->a, jinja_new_scope(j, s));
            for (; first < j->out->size; first++)
                j->out->marks[first] |= JINJA_GENERATED;
            break;
        default: flow = n->kind == JINJA_BREAK ? JINJA_BREAKS : JINJA_CONTINUES;
        }
    }
    j->depth--;
    return flow;
}

/* Renders the template with the variables of jinja_set, within jinja_run, and sets *out to its
 * text and marks, which jinja_release or jinja_free frees. */
static inline void jinja_render(jinja *j, jinja_text *out)
{
    jinja_scope *top = jinja_new_scope(j, &j->global);
    memset(out, 0, sizeof *out);
    j->out = out;
    jinja_exec(j, j->root, top);
}
#endif
