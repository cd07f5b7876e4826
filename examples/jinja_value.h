/* jinja_value.h - the values of jinja.h's templates: their memory, their text, and their JSON. To
 * copy, with json.h and unicode.h.
 *
 * Steps, depth and memory have limits. A function that fails leaves the body of jinja_run. Whole
 * numbers have 64 bits.
 *
 * Each string has marks: numbers that say where its bytes come from. Text of the template has mark
 * 0, values from jinja_from_json have the mark that the caller chose, and parts of strings keep
 * their marks through all operations. C99 or C++11. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H
#include "json.h"
#include "unicode.h"
#include <float.h>
#include <setjmp.h>
#include <time.h>

enum {
    JINJA_DEPTH = 100,       /* most levels of nested expressions, blocks and calls */
    JINJA_ARGUMENTS = 24,    /* most arguments of a call */
    JINJA_PARAMETERS = 3,    /* most parameters of a word with a list of them */
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

/* Kinds of lists: is_tuple of jinja_value. A view, as of range, has no text, and a generator also no
 * length, until the filter list is applied. */
enum { JINJA_TUPLE = 1, JINJA_VIEW, JINJA_GENERATOR };

/* Two arguments of printf for %.*s: the beginning of a string */
#define JINJA_SHORT(v) (int)((v)->size < 60 ? (v)->size : 60), (v)->text

typedef struct jinja_node jinja_node;
typedef struct jinja_scope jinja_scope;
typedef struct jinja_value jinja_value;

/* A value. Values are immutable, except the variables of a namespace. */
struct jinja_value {
    jinja_kind kind;
    int is_tuple;          /* of a list: JINJA_TUPLE, JINJA_VIEW, JINJA_GENERATOR or 0 */
    int is_safe;           /* of a string: nonzero after the filter safe */
    int64_t whole;         /* a bool, an int, or the index of a function or method in jinja_words */
    double real;           /* a float */
    const char *text;      /* a string in UTF-8, or the name of an undefined value */
    size_t size;           /* bytes of text, items of a list, or pairs of a dict */
    const uint16_t *marks; /* one mark for each byte of a string, or NULL */
    uint16_t mark;         /* the mark of all bytes, if marks is NULL */
    jinja_value *items;    /* items of a list, or keys and values of a dict in turn */
    const jinja_node *node; /* a macro */
    jinja_scope *scope; /* variables of a namespace or loop, or the scope that defines a macro */
};

typedef struct jinja_variable {
    struct jinja_variable *next;
    jinja_value name, value;
} jinja_variable;

struct jinja_scope {
    jinja_scope *parent;
    jinja_variable *variables;
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
    n = n <= j->max_bytes ? (n + 15) & ~(size_t)15 : n;
    if (j->block == NULL || n > j->block->size - j->block->used) {
        const size_t size = n > 16000 ? n : 16000;
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

/* Returns the index of a string in a list separated by blanks, each part of which begins with the
 * character `sign` unless that is 0; or -1. */
static inline int jinja_listed(const char *list, char sign, const jinja_value *v)
{
    const size_t skip = sign != 0;
    for (int i = 0; v->kind == JINJA_STRING && *list != 0; i++) {
        const size_t n = strcspn(list, " ");
        if (n == v->size + skip && (!skip || *list == sign) &&
            memcmp(list + skip, v->text, v->size) == 0)
            return i;
        list += n + (list[n] != 0);
    }
    return -1;
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
        return v->size > 0 || v->is_tuple == JINJA_GENERATOR;
    return v->kind == JINJA_FLOAT   ? !(v->real >= 0 && v->real <= 0)
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
        jinja_fail(j, "%s: '%.*s' is undefined", what, JINJA_SHORT(v));
    jinja_fail(j, "%s: not possible with %s", what,
               v->is_tuple >= JINJA_VIEW ? "a generator; apply the filter list to it"
                                         : jinja_kind_name(v->kind));
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
    if ((v->kind == JINJA_LIST && v->is_tuple != JINJA_GENERATOR) || v->kind == JINJA_DICT)
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
        return a->kind <= JINJA_NONE || (a->scope == b->scope && a->node == b->node);
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

static inline jinja_scope *jinja_new_scope(jinja *j, jinja_scope *parent)
{
    jinja_scope *s = (jinja_scope *)jinja_alloc(j, sizeof *s);
    s->parent = parent;
    s->variables = NULL;
    return s;
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
    } else if ((!is_list && v->kind != JINJA_DICT) || v->is_tuple >= JINJA_VIEW) {
        jinja_mismatch(j, style->json ? "tojson" : "printing", v);
    } else {
        const int is_tuple = v->is_tuple && !style->json;
        jinja_enter(j);
        jinja_put(j, t, is_tuple ? "(" : is_list ? "[" : "{");
        for (size_t i = 0; i < v->size; i++) {
            if (i > 0)
                jinja_append(j, t, style->separators[0].text, style->separators[0].size, NULL, 0);
            if (style->indent >= 0)
                jinja_newline(j, t, style->indent, level + 1);
            if (!is_list) {
                if (style->json && v->items[2 * i].kind != JINJA_STRING)
                    jinja_mismatch(j, "a key of JSON", &v->items[2 * i]);
                jinja_write(j, t, &v->items[2 * i], style, level + 1);
                jinja_append(j, t, style->separators[1].text, style->separators[1].size, NULL, 0);
            }
            jinja_write(j, t, &v->items[is_list ? i : 2 * i + 1], style, level + 1);
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
    const jinja_style python = { 0, 0, -1, { jinja_c_string(", "), jinja_c_string(": ") } };
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

/* Replaces the characters of HTML in a text, unless it is safe. */
static inline jinja_value jinja_escape(jinja *j, jinja_value v)
{
    static const char from[] = "&<>\"'", *const to[] = { "&amp;", "&lt;", "&gt;", "&#34;",
                                                         "&#39;" };
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t i = 0; i < v.size && !v.is_safe; i++) {
        const char *found = v.text[i] != 0 ? strchr(from, v.text[i]) : NULL;
        const jinja_value c = jinja_part(v, i, 1);
        if (found != NULL)
            jinja_put(j, &t, to[found - from]);
        else
            jinja_print(j, &t, &c);
    }
    if (!v.is_safe)
        v = jinja_text_value(&t);
    v.is_safe = 1;
    return v;
}

/* Joins two texts. If `adds` is nonzero and one of them is safe, escapes the other one. */
static inline jinja_value jinja_concat(jinja *j, const jinja_value *a, const jinja_value *b,
                                       int adds)
{
    jinja_value x = jinja_str(j, a), y = jinja_str(j, b), to;
    jinja_text t = { NULL, NULL, 0, 0 };
    const int is_safe = adds && (x.is_safe || y.is_safe);
    if (is_safe) {
        x = jinja_escape(j, x);
        y = jinja_escape(j, y);
    }
    jinja_print(j, &t, &x);
    jinja_print(j, &t, &y);
    to = jinja_text_value(&t);
    to.is_safe = is_safe;
    return to;
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
#endif
