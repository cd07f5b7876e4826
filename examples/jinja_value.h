/* jinja_value.h - values of the templates that jinja.h renders, and their operators, filters, tests,
 * methods and functions. To copy, with json.h and unicode.h.
 *
 * Known are the filters, tests, methods and functions of JINJA_WORDS. Anything else is an error that
 * names it. Steps, depth and memory have limits. Whole numbers have 64 bits, and upper and lower case
 * are known for ASCII only: other letters are an error.
 *
 * Each string has marks: numbers that say where its bytes come from. Text of the template has mark
 * 0, values from jinja_from_json have the mark that the caller chose, and parts of strings keep
 * their marks through all operations. C99 or C++11. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H
#include "json.h"
#include "unicode.h"
#include <float.h>
#include <limits.h>
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

/* Kinds of lists: is_tuple of jinja_value. A generator has items, but neither length nor text. */
enum { JINJA_TUPLE = 1, JINJA_GENERATOR = 2 };

/* Two arguments of printf for %.*s: the beginning of a string */
#define JINJA_SHORT(v) (int)((v)->size < 60 ? (v)->size : 60), (v)->text

typedef struct jinja_node jinja_node;
typedef struct jinja_scope jinja_scope;
typedef struct jinja_loop jinja_loop;
typedef struct jinja_value jinja_value;

/* A value. Values are immutable, except the variables of a namespace. */
struct jinja_value {
    jinja_kind kind;
    int is_tuple;          /* of a list: JINJA_TUPLE, JINJA_GENERATOR or 0 */
    int is_safe;           /* of a string: nonzero after the filter safe */
    int64_t whole;         /* a bool, an int, or the index of a function or method in jinja_words */
    double real;           /* a float */
    const char *text;      /* a string in UTF-8, or the name of an undefined value */
    size_t size;           /* bytes of text, items of a list, or pairs of a dict */
    const uint16_t *marks; /* one mark for each byte of a string, or NULL */
    uint16_t mark;         /* the mark of all bytes, if marks is NULL */
    jinja_value *items;    /* items of a list, or keys and values of a dict in turn */
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
               v->is_tuple == JINJA_GENERATOR ? "a generator; apply the filter list to it"
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
    } else if ((!is_list && v->kind != JINJA_DICT) || v->is_tuple == JINJA_GENERATOR) {
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

/* ---- words ----------------------------------------------------------------------------------- */
typedef enum {
    JINJA_IS_FILTER = 1,
    JINJA_IS_METHOD = 2,
    JINJA_IS_TEST = 4,
    JINJA_IS_FUNCTION = 8
} jinja_use;

/* The known filters, methods, tests and functions: W(ID, NAME, USE, PARAMETERS), and A for further
 * names. PARAMETERS names at most JINJA_PARAMETERS parameters; with "*" a word reads its arguments
 * itself. Words that apply to a value of any kind come first, then those of dicts, then those of
 * strings. */
#define JINJA_WORDS(W, A)                                                                          \
    W(TOJSON, "tojson", JINJA_IS_FILTER, "ensure_ascii indent separators")                         \
    W(LENGTH, "length", JINJA_IS_FILTER, "")                                                       \
    A(LENGTH, "count", JINJA_IS_FILTER, "")                                                        \
    W(DEFAULT, "default", JINJA_IS_FILTER, "default_value boolean")                                \
    A(DEFAULT, "d", JINJA_IS_FILTER, "default_value boolean")                                      \
    W(JOIN, "join", JINJA_IS_FILTER, "d attribute")                                                \
    W(LIST, "list", JINJA_IS_FILTER, "")                                                           \
    W(FIRST, "first", JINJA_IS_FILTER, "")                                                         \
    W(LAST, "last", JINJA_IS_FILTER, "")                                                           \
    W(MIN, "min", JINJA_IS_FILTER, "")                                                             \
    W(SORT, "sort", JINJA_IS_FILTER, "reverse case_sensitive attribute")                           \
    W(UNIQUE, "unique", JINJA_IS_FILTER, "")                                                       \
    W(DICTSORT, "dictsort", JINJA_IS_FILTER, "")                                                   \
    W(MAP, "map", JINJA_IS_FILTER, "*")                                                            \
    W(SELECT, "select", JINJA_IS_FILTER, "*")                                                      \
    W(REJECT, "reject", JINJA_IS_FILTER, "*")                                                      \
    W(SELECTATTR, "selectattr", JINJA_IS_FILTER, "*")                                              \
    W(REJECTATTR, "rejectattr", JINJA_IS_FILTER, "*")                                              \
    W(INT, "int", JINJA_IS_FILTER, "default")                                                      \
    W(FLOAT, "float", JINJA_IS_FILTER, "default")                                                  \
    W(ITEMS, "items", JINJA_IS_FILTER | JINJA_IS_METHOD, "")                                       \
    W(KEYS, "keys", JINJA_IS_METHOD, "")                                                           \
    W(VALUES, "values", JINJA_IS_METHOD, "")                                                       \
    W(GET, "get", JINJA_IS_METHOD, "key default")                                                  \
    W(TRIM, "trim", JINJA_IS_FILTER, "chars")                                                      \
    A(TRIM, "strip", JINJA_IS_METHOD, "chars")                                                     \
    W(LSTRIP, "lstrip", JINJA_IS_METHOD, "chars")                                                  \
    W(RSTRIP, "rstrip", JINJA_IS_METHOD, "chars")                                                  \
    W(STRING, "string", JINJA_IS_FILTER, "")                                                       \
    W(SAFE, "safe", JINJA_IS_FILTER, "")                                                           \
    W(UPPER, "upper", JINJA_IS_FILTER | JINJA_IS_METHOD, "")                                       \
    W(LOWER, "lower", JINJA_IS_FILTER | JINJA_IS_METHOD, "")                                       \
    W(CAPITALIZE, "capitalize", JINJA_IS_FILTER | JINJA_IS_METHOD, "")                             \
    W(TITLE, "title", JINJA_IS_FILTER | JINJA_IS_METHOD, "")                                       \
    W(REPLACE, "replace", JINJA_IS_FILTER | JINJA_IS_METHOD, "old new")                            \
    W(SPLIT, "split", JINJA_IS_METHOD, "sep maxsplit")                                             \
    W(STARTSWITH, "startswith", JINJA_IS_METHOD, "prefix")                                         \
    W(ENDSWITH, "endswith", JINJA_IS_METHOD, "suffix")                                             \
    W(FORMAT, "format", JINJA_IS_METHOD, "*")                                                      \
    W(INDENT, "indent", JINJA_IS_FILTER, "width first")                                            \
    W(NAMESPACE, "namespace", JINJA_IS_FUNCTION, "*")                                              \
    W(DICT, "dict", JINJA_IS_FUNCTION, "*")                                                        \
    W(RANGE, "range", JINJA_IS_FUNCTION, "*")                                                      \
    W(RAISE, "raise_exception", JINJA_IS_FUNCTION, "message")                                      \
    W(STRFTIME, "strftime_now", JINJA_IS_FUNCTION, "format")                                       \
    W(IS_DEFINED, "defined", JINJA_IS_TEST, "")                                                    \
    W(IS_UNDEFINED, "undefined", JINJA_IS_TEST, "")                                                \
    W(IS_NONE, "none", JINJA_IS_TEST, "")                                                          \
    W(IS_STRING, "string", JINJA_IS_TEST, "")                                                      \
    W(IS_MAPPING, "mapping", JINJA_IS_TEST, "")                                                    \
    W(IS_SEQUENCE, "sequence", JINJA_IS_TEST, "")                                                  \
    A(IS_SEQUENCE, "iterable", JINJA_IS_TEST, "")                                                  \
    W(IS_NUMBER, "number", JINJA_IS_TEST, "")                                                      \
    W(IS_INTEGER, "integer", JINJA_IS_TEST, "")                                                    \
    W(IS_FLOAT, "float", JINJA_IS_TEST, "")                                                        \
    W(IS_BOOLEAN, "boolean", JINJA_IS_TEST, "")                                                    \
    W(IS_TRUE, "true", JINJA_IS_TEST, "")                                                          \
    W(IS_FALSE, "false", JINJA_IS_TEST, "")                                                        \
    W(IS_IN, "in", JINJA_IS_TEST, "seq")                                                           \
    W(IS_EQUAL, "eq", JINJA_IS_TEST, "other")                                                      \
    A(IS_EQUAL, "equalto", JINJA_IS_TEST, "other")                                                 \
    A(IS_EQUAL, "==", JINJA_IS_TEST, "other")                                                      \
    W(IS_UNEQUAL, "ne", JINJA_IS_TEST, "other")                                                    \
    A(IS_UNEQUAL, "!=", JINJA_IS_TEST, "other")
#define JINJA_WORD_ID(id, name, use, parameters)  JINJA_W_##id,
#define JINJA_WORD_ROW(id, name, use, parameters) { name, parameters, use, JINJA_W_##id },
#define JINJA_WORD_NONE(id, name, use, parameters)
typedef enum { JINJA_WORDS(JINJA_WORD_ID, JINJA_WORD_NONE) JINJA_W_END } jinja_word_id;
static const struct {
    const char *name, *parameters;
    unsigned char use, id;
} jinja_words[] = { JINJA_WORDS(JINJA_WORD_ROW, JINJA_WORD_ROW) };
#undef JINJA_WORD_ID
#undef JINJA_WORD_ROW
#undef JINJA_WORD_NONE

/* Returns the index in jinja_words of a name with a use, or -1. */
static inline int jinja_word(const jinja_value *name, int use)
{
    for (size_t i = 0; i < sizeof jinja_words / sizeof *jinja_words; i++)
        if ((jinja_words[i].use & use) != 0 && jinja_is(name, jinja_words[i].name))
            return (int)i;
    return -1;
}

/* Arguments of a call: those without a keyword come first. */
typedef struct {
    jinja_value at[JINJA_ARGUMENTS], names[JINJA_ARGUMENTS];
    size_t count, given; /* number of arguments, and of those without a keyword */
} jinja_arguments;

static inline void jinja_add_argument(jinja *j, jinja_arguments *a, const jinja_value *name,
                                      jinja_value value)
{
    if (a->count == JINJA_ARGUMENTS)
        jinja_fail(j, "more than %d arguments", JINJA_ARGUMENTS);
    if (name == NULL && a->given < a->count)
        jinja_fail(j, "an argument without a keyword comes after one with a keyword");
    a->names[a->count] = name != NULL ? *name : jinja_c_string("");
    a->at[a->count++] = value;
    a->given += name == NULL;
}

/* Returns the index of the argument for parameter i, by its place or keyword, or a->count. */
static inline size_t jinja_find_argument(const jinja_arguments *a, size_t i,
                                         const jinja_value *name)
{
    size_t k = i < a->given ? i : a->given;
    while (i >= a->given && k < a->count && !jinja_same(&a->names[k], name))
        k++;
    return k;
}

/* Sets p to the arguments for a word's parameters; one that is missing is undefined. */
static inline void jinja_bind(jinja *j, int word, const jinja_arguments *a,
                              jinja_value p[JINJA_PARAMETERS])
{
    const char *s = jinja_words[word].parameters;
    size_t used = 0;
    for (size_t i = 0; i < JINJA_PARAMETERS; i++, s += *s == ' ') {
        p[i] = jinja_undefined(s, strcspn(s, " "));
        const size_t k = p[i].size > 0 ? jinja_find_argument(a, i, &p[i]) : a->count;
        s += p[i].size;
        if (k < a->count)
            p[i] = a->at[k];
        used += k < a->count;
    }
    if (used != a->count)
        jinja_fail(j, "unknown: %d arguments of %s, or one with another keyword", (int)a->count,
                   jinja_words[word].name);
}

/* Returns a string in a parameter. */
static inline jinja_value jinja_need_string(jinja *j, const jinja_value *v)
{
    if (v->kind != JINJA_STRING)
        jinja_mismatch(j, "an argument that must be a string", v);
    return *v;
}

static inline int64_t jinja_whole_or(jinja *j, const jinja_value *v, int64_t fallback)
{
    if (v->kind == JINJA_UNDEFINED || v->kind == JINJA_NONE)
        return fallback;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_mismatch(j, "an argument that must be a whole number", v);
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
        return from;
    jinja_step(j, (a->size - from) / 64);
    for (; from + b->size <= a->size; from++) {
        const char *s =
            (const char *)memchr(a->text + from, b->text[0], a->size - b->size - from + 1);
        if (s == NULL)
            break;
        from = (size_t)(s - a->text);
        if (jinja_has(a, from, b))
            return from;
    }
    return SIZE_MAX;
}

static inline int jinja_is_white(const char *s, size_t n, size_t *size)
{
    uint32_t c = 'x';
    const int length = n > 0 ? json_utf8(s, n, &c) : -1;
    *size = (size_t)abs(length);
    return length > 0 && (unicode_class(c) == UNICODE_SPACE || (c >= 28 && c <= 31));
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

/* Returns v[from:to], or if `backward` is nonzero v[::-1]. A bound that is none is missing. */
static inline jinja_value jinja_slice(jinja *j, const jinja_value *v, const jinja_value *from,
                                      const jinja_value *to, int backward)
{
    if (v->kind != JINJA_STRING && v->kind != JINJA_LIST)
        jinja_mismatch(j, "a slice", v);
    const int64_t n = (int64_t)jinja_length(j, v);
    int64_t at[2] = { jinja_whole_or(j, from, 0), jinja_whole_or(j, to, n) };
    for (int k = 0; k < 2; k++) {
        at[k] += at[k] < 0 ? n : 0;
        at[k] = at[k] < 0 ? 0 : at[k] > n ? n : at[k];
    }
    const size_t count = at[1] > at[0] ? (size_t)(at[1] - at[0]) : 0;
    if (v->kind == JINJA_STRING) {
        const size_t begin = count > 0 ? jinja_offset(v, (size_t)at[0]) : 0;
        const jinja_value rest = jinja_part(*v, begin, v->size - begin);
        if (backward)
            jinja_mismatch(j, "a slice with a step", v);
        return jinja_part(rest, 0, jinja_offset(&rest, count));
    }
    jinja_value list = jinja_list(j, JINJA_LIST, count);
    list.is_tuple = v->is_tuple;
    for (size_t i = 0; i < count; i++)
        list.items[i] = v->items[backward ? count - 1 - i : (size_t)at[0] + i];
    return list;
}

/* Returns an attribute of a loop. */
static inline jinja_value jinja_loop_attribute(jinja *j, const jinja_loop *loop,
                                               const jinja_value *name)
{
    const jinja_value none = jinja_undefined(name->text, name->size);
    const size_t i = loop->index, n = loop->count;
    const struct {
        const char *name;
        jinja_value value;
    } all[] = { { "index", jinja_whole((int64_t)i + 1) },
                { "index0", jinja_whole((int64_t)i) },
                { "revindex", jinja_whole((int64_t)(n - i)) },
                { "revindex0", jinja_whole((int64_t)(n - i) - 1) },
                { "first", jinja_bool(i == 0) },
                { "last", jinja_bool(i + 1 == n) },
                { "length", jinja_whole((int64_t)n) },
                { "previtem", i > 0 ? loop->items[i - 1] : none },
                { "nextitem", i + 1 < n ? loop->items[i + 1] : none } };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (jinja_is(name, all[k].name))
            return all[k].value;
    jinja_fail(j, "unknown: loop.%.*s", JINJA_SHORT(name));
}

/* Returns v.name if `dotted`, which also finds methods, or v[name]. */
static inline jinja_value jinja_attribute(jinja *j, const jinja_value *v, const jinja_value *name,
                                          int dotted)
{
    const jinja_value *found = NULL;
    const int word = dotted ? jinja_word(name, JINJA_IS_METHOD) : -1;
    if (v->kind == JINJA_UNDEFINED)
        jinja_mismatch(j, "an attribute of it", v);
    if (v->kind == JINJA_LOOP)
        return jinja_loop_attribute(j, v->loop, name);
    if ((name->kind == JINJA_INT || name->kind == JINJA_BOOL) &&
        (v->kind == JINJA_LIST || v->kind == JINJA_STRING))
        return jinja_index(j, v, name->whole);
    if (word >= 0 && v->kind == (jinja_words[word].id <= JINJA_W_GET ? JINJA_DICT : JINJA_STRING)) {
        jinja_value method = jinja_make(JINJA_FUNCTION);
        method.whole = word;
        return method;
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

/* Compares numbers, or strings without regard to the case of ASCII letters if `folds` is nonzero. */
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

/* Returns a copy of a list, sorted by the attribute `path` of the items if it is a string, or of a
 * dict, sorted by its keys. Equal items keep their order. */
static inline jinja_value jinja_sort(jinja *j, const jinja_value *v, const jinja_value *path,
                                     int folds, int descending)
{
    const size_t width = v->kind == JINJA_DICT ? 2 : 1;
    jinja_value to = jinja_list(j, v->kind, v->size);
    for (size_t i = 0; i < v->size; i++) {
        size_t k = i;
        for (; k > 0; k--) {
            jinja_value a = to.items[width * (k - 1)], b = v->items[width * i];
            if (path->kind == JINJA_STRING) {
                a = jinja_path(j, a, *path);
                b = jinja_path(j, b, *path);
            }
            const int order = jinja_order(j, &a, &b, folds);
            if (descending ? order >= 0 : order <= 0)
                break;
            memcpy(&to.items[width * k], &to.items[width * (k - 1)], width * sizeof to);
        }
        memcpy(&to.items[width * k], &v->items[width * i], width * sizeof to);
    }
    return to;
}

/* Returns the items of a list without those that equal an earlier one, except for case. */
static inline jinja_value jinja_unique(jinja *j, const jinja_value *v)
{
    const jinja_value all = jinja_iterate(j, v);
    jinja_value to = jinja_list(j, JINJA_LIST, all.size);
    to.size = 0;
    to.is_tuple = JINJA_GENERATOR;
    for (size_t i = 0, k; i < all.size; i++) {
        const jinja_value *item = &all.items[i], *seen = to.items;
        for (k = 0; k < to.size; k++)
            if (item->kind == JINJA_STRING && seen[k].kind == JINJA_STRING
                    ? jinja_order(j, item, &seen[k], 1) == 0
                    : jinja_equal(j, item, &seen[k]))
                break;
        if (k == to.size)
            to.items[to.size++] = *item;
    }
    return to;
}

/* Changes the case of ASCII letters; `word` is upper, lower, capitalize or title. */
static inline jinja_value jinja_case(jinja *j, const jinja_value *v, int word, int is_filter)
{
    jinja_text t = { NULL, NULL, 0, 0 };
    int first = 1;
    size_t n;
    jinja_print(j, &t, v);
    for (size_t i = 0; i < t.size; i++) {
        const unsigned char c = (unsigned char)t.text[i];
        uint32_t wide = c;
        if (c >= 0xc0 && json_utf8(t.text + i, t.size - i, &wide) > 0 &&
            unicode_class(wide) == UNICODE_LETTER && wide < 0x2c00)
            jinja_fail(j, "upper and lower case are known for ASCII only, not for U+%04X",
                       (unsigned)wide);
        const int letter = ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (letter)
            t.text[i] = (char)(word == JINJA_W_UPPER || (word != JINJA_W_LOWER && first) ? c & ~32
                                                                                         : c | 32);
        first = word == JINJA_W_TITLE && (is_filter ? jinja_is_white(t.text + i, t.size - i, &n) ||
                                                          (c > 0 && strchr("-({[<", c) != NULL)
                                                    : !letter);
    }
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

/* Splits a string at a separator at most `most` times, if that is not negative. */
static inline jinja_value jinja_split(jinja *j, const jinja_value *v, jinja_value separator,
                                      int64_t most)
{
    jinja_value to = jinja_make(JINJA_LIST);
    size_t capacity = 0, at = 0, next;
    if (separator.size == 0)
        jinja_fail(j, "the separator is empty");
    for (; most != 0 && (next = jinja_search(j, v, at, &separator)) != SIZE_MAX; most--) {
        jinja_push(j, &to, &capacity, jinja_part(*v, at, next - at));
        at = next + separator.size;
    }
    jinja_push(j, &to, &capacity, jinja_part(*v, at, v->size - at));
    return to;
}

/* Joins the items of a list, or their attributes with a path that is a string. */
static inline jinja_value jinja_join(jinja *j, const jinja_value *v, const jinja_value *separator,
                                     const jinja_value *path)
{
    const jinja_value all = jinja_iterate(j, v);
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t i = 0; i < all.size; i++) {
        const jinja_value item =
            path->kind == JINJA_STRING ? jinja_path(j, all.items[i], *path) : all.items[i];
        if (i > 0)
            jinja_print(j, &t, separator);
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
        to.items[i] = v->items[2 * i + (word == JINJA_W_VALUES)];
        if (word == JINJA_W_ITEMS) {
            to.items[i] = jinja_list(j, JINJA_LIST, 2);
            to.items[i].is_tuple = JINJA_TUPLE;
            memcpy(to.items[i].items, &v->items[2 * i], 2 * sizeof to);
        }
    }
    return to;
}

/* Replaces the fields {}, {0} and {name} of a string by arguments, as str.format of Python does. */
static inline jinja_value jinja_format(jinja *j, const jinja_value *v, const jinja_arguments *a)
{
    jinja_text t = { NULL, NULL, 0, 0 };
    size_t next = 0, n;
    for (size_t at = 0; at < v->size; at += n) {
        const char *s = v->text + at, *end = NULL;
        const int twice = at + 1 < v->size && s[1] == *s && (*s == '{' || *s == '}');
        n = twice ? 2 : 1;
        if (*s == '{' && !twice)
            end = (const char *)memchr(s, '}', v->size - at);
        if (twice || (*s != '{' && *s != '}')) {
            const jinja_value c = jinja_part(*v, at, 1);
            jinja_print(j, &t, &c);
            continue;
        }
        n = end != NULL ? (size_t)(end - s) + 1 : 2;
        const jinja_value field = jinja_part(*v, at + 1, n - 2);
        const int is_place = field.size < 9 && strspn(field.text, "0123456789") >= field.size;
        const size_t place = field.size == 0 ? next++
                             : is_place      ? (size_t)strtoll(field.text, NULL, 10)
                                             : SIZE_MAX,
                     k = jinja_find_argument(a, place, &field);
        if (end == NULL || k == a->count || (is_place && k >= a->given))
            jinja_fail(j, "unknown field '%.*s' of format", JINJA_SHORT(&field));
        jinja_print(j, &t, &a->at[k]);
    }
    return jinja_text_value(&t);
}

/* Indents the lines of a text, except empty ones and, unless `first` is nonzero, the first one. */
static inline jinja_value jinja_indent(jinja *j, const jinja_value *v, int64_t width, int first)
{
    const jinja_value lines = jinja_split(j, v, jinja_c_string("\n"), -1);
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t k = 0; k < lines.size; k++) {
        if (k > 0)
            jinja_put(j, &t, "\n");
        for (int64_t i = 0; i < width && (k > 0 ? lines.items[k].size > 0 : first); i++)
            jinja_put(j, &t, " ");
        jinja_print(j, &t, &lines.items[k]);
    }
    return jinja_text_value(&t);
}

static inline jinja_value jinja_to_json(jinja *j, const jinja_value *v, const jinja_value *p)
{
    jinja_style style = { 1, 0, -1, { jinja_c_string(", "), jinja_c_string(": ") } };
    jinja_text t = { NULL, NULL, 0, 0 };
    style.ascii = jinja_whole_or(j, &p[0], 0) != 0;
    style.indent = jinja_whole_or(j, &p[1], -1);
    if (style.indent >= 0)
        style.separators[0] = jinja_c_string(",");
    if (p[2].kind == JINJA_LIST && p[2].size == 2)
        for (int i = 0; i < 2; i++)
            style.separators[i] = jinja_need_string(j, &p[2].items[i]);
    jinja_write(j, &t, v, &style, 0);
    return jinja_text_value(&t);
}

/* Computes the filters int and float; a text that is no number gives `fallback`. */
static inline jinja_value jinja_to_number(jinja *j, const jinja_value *v, int is_int,
                                          const jinja_value *fallback)
{
    double x = jinja_is_number(v) ? jinja_as_real(v) : 0;
    int valid = jinja_is_number(v);
    if (v->kind == JINJA_STRING) {
        const jinja_value s = jinja_strip(*v, 1, 1, NULL);
        char digits[64], *end = digits;
        if (s.size > 0 && s.size < sizeof digits) {
            memcpy(digits, s.text, s.size);
            digits[s.size] = 0;
            x = strpbrk(digits, "xXpP(") == NULL ? strtod(digits, &end) : 0;
            valid = end == digits + s.size;
            if (is_int && s.size < 19 &&
                strspn(digits + (*digits == '-'), "0123456789") + (size_t)(*digits == '-') ==
                    s.size &&
                valid)
                return jinja_whole(strtoll(digits, NULL, 10));
        }
    }
    if (!valid || (is_int && !(x <= DBL_MAX && x >= -DBL_MAX)))
        return fallback->kind != JINJA_UNDEFINED ? *fallback
               : is_int                          ? jinja_whole(0)
                                                 : jinja_real(0);
    if (is_int && v->kind != JINJA_FLOAT && v->kind != JINJA_STRING)
        return jinja_whole(v->whole);
    if (is_int && !(x < 9e18 && x > -9e18))
        jinja_fail(j, "a number of more than 64 bits");
    return is_int ? jinja_whole((int64_t)x) : jinja_real(x);
}

static inline int jinja_contains(jinja *j, const jinja_value *a, const jinja_value *b)
{
    if (b->kind == JINJA_STRING) {
        jinja_need_string(j, a);
        return jinja_search(j, b, 0, a) != SIZE_MAX;
    }
    if (b->kind == JINJA_DICT)
        return jinja_find(j, b, a) != NULL;
    if (b->kind != JINJA_LIST && b->kind != JINJA_UNDEFINED)
        jinja_mismatch(j, "in", b);
    jinja_step(j, b->size);
    for (size_t i = 0; b->kind == JINJA_LIST && i < b->size; i++)
        if (jinja_equal(j, a, &b->items[i]))
            return 1;
    return 0;
}

/* Returns the result of a test. */
static inline int jinja_test(jinja *j, int word, const jinja_value *v, const jinja_value *other)
{
    const jinja_kind kind = v->kind;
    switch (word) {
    case JINJA_W_IS_DEFINED: return kind != JINJA_UNDEFINED;
    case JINJA_W_IS_UNDEFINED: return kind == JINJA_UNDEFINED;
    case JINJA_W_IS_NONE: return kind == JINJA_NONE;
    case JINJA_W_IS_STRING: return kind == JINJA_STRING;
    case JINJA_W_IS_MAPPING: return kind == JINJA_DICT;
    case JINJA_W_IS_SEQUENCE:
        return kind == JINJA_STRING || kind == JINJA_LIST || kind == JINJA_DICT ||
               kind == JINJA_UNDEFINED;
    case JINJA_W_IS_NUMBER: return jinja_is_number(v);
    case JINJA_W_IS_INTEGER: return kind == JINJA_INT;
    case JINJA_W_IS_FLOAT: return kind == JINJA_FLOAT;
    case JINJA_W_IS_BOOLEAN: return kind == JINJA_BOOL;
    case JINJA_W_IS_TRUE: return kind == JINJA_BOOL && v->whole;
    case JINJA_W_IS_FALSE: return kind == JINJA_BOOL && !v->whole;
    case JINJA_W_IS_IN: return jinja_contains(j, v, other);
    }
    return jinja_equal(j, v, other) == (word == JINJA_W_IS_EQUAL);
}

static inline jinja_value jinja_apply(jinja *j, int word, int use, const jinja_value *v,
                                      const jinja_arguments *a);

/* Returns the index of a filter or test; fails if there is none. */
static inline int jinja_need_word(jinja *j, int word, int use, const jinja_value *name)
{
    if (word < 0)
        jinja_fail(j, "unknown %s '%.*s'",
                   use == JINJA_IS_FILTER ? "filter"
                   : use == JINJA_IS_TEST ? "test"
                                          : "function",
                   JINJA_SHORT(name));
    return word;
}

/* Removes the first argument of a call and returns it. */
static inline jinja_value jinja_shift(jinja *j, jinja_arguments *a)
{
    const jinja_value first = a->given > 0 ? a->at[0] : jinja_undefined("the argument", 12);
    jinja_need_string(j, &first);
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
    const int maps = word == JINJA_W_MAP, use = maps ? JINJA_IS_FILTER : JINJA_IS_TEST;
    const int attributes = word == JINJA_W_SELECTATTR || word == JINJA_W_REJECTATTR;
    const int rejects = word == JINJA_W_REJECT || word == JINJA_W_REJECTATTR;
    const jinja_value none = jinja_make(JINJA_LIST),
                      all = jinja_iterate(j, jinja_is_true(v) ? v : &none);
    jinja_value to = jinja_list(j, JINJA_LIST, all.size), path = jinja_make(JINJA_NONE);
    jinja_arguments a = *given;
    int id = -1;
    if (maps && a.count == 1 && jinja_is(&a.names[0], "attribute")) {
        path = jinja_need_string(j, &a.at[0]);
    } else {
        path = attributes ? jinja_shift(j, &a) : path;
        if (maps || a.count > 0) {
            const jinja_value name = jinja_shift(j, &a);
            id = jinja_need_word(j, jinja_word(&name, use), use, &name);
        }
    }
    to.size = 0;
    to.is_tuple = JINJA_GENERATOR;
    for (size_t i = 0; i < all.size; i++) {
        jinja_value item =
            path.kind == JINJA_STRING ? jinja_path(j, all.items[i], path) : all.items[i];
        jinja_step(j, 1);
        if (id >= 0)
            item = jinja_apply(j, id, use, &item, &a);
        if (maps || jinja_is_true(&item) != rejects)
            to.items[to.size++] = maps ? item : all.items[i];
    }
    return to;
}

/* Computes filters that apply to values of any kind, and methods of dicts. */
static inline jinja_value jinja_apply_any(jinja *j, int word, const jinja_value *v,
                                          const jinja_arguments *a, const jinja_value *p)
{
    const jinja_value *found, none = jinja_make(JINJA_NONE);
    jinja_value to;
    switch (word) {
    case JINJA_W_TOJSON: return jinja_to_json(j, v, p);
    case JINJA_W_LENGTH: return jinja_whole((int64_t)jinja_length(j, v));
    case JINJA_W_DEFAULT:
        return v->kind == JINJA_UNDEFINED ||
                       (p[1].kind != JINJA_UNDEFINED && jinja_is_true(&p[1]) && !jinja_is_true(v))
                   ? p[0]
                   : *v;
    case JINJA_W_ITEMS:
    case JINJA_W_KEYS:
    case JINJA_W_VALUES: return jinja_entries(j, v, word);
    case JINJA_W_GET:
        found = jinja_find(j, v, &p[0]);
        return found != NULL ? *found : p[1].kind != JINJA_UNDEFINED ? p[1] : none;
    case JINJA_W_JOIN: return jinja_join(j, v, &p[0], &p[1]);
    case JINJA_W_INT:
    case JINJA_W_FLOAT: return jinja_to_number(j, v, word == JINJA_W_INT, &p[0]);
    case JINJA_W_DICTSORT:
        if (v->kind != JINJA_DICT)
            jinja_mismatch(j, "dictsort", v);
        to = jinja_sort(j, v, &none, 1, 0);
        return jinja_entries(j, &to, JINJA_W_ITEMS);
    case JINJA_W_LAST: return jinja_index(j, v, -1);
    case JINJA_W_LIST:
    case JINJA_W_FIRST:
    case JINJA_W_MIN:
    case JINJA_W_SORT:
        to = jinja_iterate(j, v);
        to.is_tuple = 0;
        if (word == JINJA_W_MIN || word == JINJA_W_SORT)
            to = jinja_sort(j, &to, &p[2], jinja_whole_or(j, &p[1], 0) == 0,
                            jinja_whole_or(j, &p[0], 0) != 0);
        return word == JINJA_W_FIRST || word == JINJA_W_MIN ? jinja_index(j, &to, 0) : to;
    case JINJA_W_UNIQUE: return jinja_unique(j, v);
    }
    return jinja_each(j, word, v, a);
}

/* Computes filters and methods of strings. */
static inline jinja_value jinja_apply_string(jinja *j, int word, int use, jinja_value v,
                                             const jinja_arguments *a, const jinja_value *p)
{
    const jinja_value *set = p[0].kind == JINJA_STRING ? &p[0] : NULL;
    jinja_value other;
    switch (word) {
    case JINJA_W_TRIM: return jinja_strip(v, 1, 1, set);
    case JINJA_W_LSTRIP: return jinja_strip(v, 1, 0, set);
    case JINJA_W_RSTRIP: return jinja_strip(v, 0, 1, set);
    case JINJA_W_STRING: return v;
    case JINJA_W_SAFE: v.is_safe = 1; return v;
    case JINJA_W_UPPER:
    case JINJA_W_LOWER:
    case JINJA_W_CAPITALIZE:
    case JINJA_W_TITLE: return jinja_case(j, &v, word, use == JINJA_IS_FILTER);
    case JINJA_W_REPLACE:
        jinja_need_string(j, &p[1]);
        other = jinja_split(j, &v, jinja_need_string(j, &p[0]), -1);
        return jinja_join(j, &other, &p[1], &p[2]);
    case JINJA_W_SPLIT:
        return jinja_split(j, &v, jinja_need_string(j, &p[0]), jinja_whole_or(j, &p[1], -1));
    case JINJA_W_INDENT:
        return jinja_indent(j, &v, jinja_whole_or(j, &p[0], 4), jinja_whole_or(j, &p[1], 0) != 0);
    case JINJA_W_FORMAT: return jinja_format(j, &v, a);
    }
    other = jinja_need_string(j, &p[0]); /* startswith, endswith */
    return jinja_bool(other.size <= v.size &&
                      jinja_has(&v, word == JINJA_W_STARTSWITH ? 0 : v.size - other.size, &other));
}

static inline jinja_value jinja_range(jinja *j, const jinja_arguments *a)
{
    int64_t at[3] = { 0, 0, 1 };
    for (size_t i = 0; i < a->given && i < 3; i++) {
        at[i + (a->given == 1)] = jinja_whole_or(j, &a->at[i], 0);
        if (at[i] > INT32_MAX || at[i] < -INT32_MAX)
            jinja_fail(j, "range is too long");
    }
    if (a->given < 1 || a->count > 3 || at[2] == 0)
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

/* Calls a function; of a call of the template, `a` are the arguments. */
static inline jinja_value jinja_call_function(jinja *j, int word, const jinja_arguments *a,
                                              const jinja_value *p)
{
    jinja_value to = jinja_make(JINJA_NAMESPACE), text;
    if (word == JINJA_W_RANGE)
        return jinja_range(j, a);
    if (word == JINJA_W_RAISE) {
        text = jinja_str(j, &p[0]);
        jinja_fail(j, "the template refuses the chat: %.*s",
                   (int)(text.size < 240 ? text.size : 240), text.text);
    }
    if (word == JINJA_W_STRFTIME) {
        char format[128], date[256];
        const time_t now = (time_t)j->now;
        const struct tm *utc = gmtime(&now);
        text = jinja_need_string(j, &p[0]);
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

/* Computes a filter, method, test or function; `v` is the value that it applies to. */
static inline jinja_value jinja_apply(jinja *j, int word, int use, const jinja_value *v,
                                      const jinja_arguments *a)
{
    const int id = jinja_words[word].id;
    jinja_value p[JINJA_PARAMETERS], to;
    jinja_enter(j);
    if (jinja_words[word].parameters[0] != '*')
        jinja_bind(j, word, a, p);
    if (id >= JINJA_W_IS_DEFINED)
        to = jinja_bool(jinja_test(j, id, v, &p[0]));
    else if (id >= JINJA_W_NAMESPACE)
        to = jinja_call_function(j, id, a, p);
    else if (id >= JINJA_W_TRIM) /* a filter reads any value as a string */
        to = jinja_apply_string(j, id, use, jinja_str(j, v), a, p);
    else
        to = jinja_apply_any(j, id, v, a, p);
    j->depth--;
    return to;
}

/* ---- operators ------------------------------------------------------------------------------- */
#define JINJA_OP2(a, b) (256 * (a) + (b))
enum { JINJA_OP_IN = 1, JINJA_OP_NOT_IN = 2 };

static inline int jinja_compare(jinja *j, int op, const jinja_value *a, const jinja_value *b)
{
    if (op == JINJA_OP2('=', '=') || op == JINJA_OP2('!', '='))
        return jinja_equal(j, a, b) == (op == JINJA_OP2('=', '='));
    if (op == JINJA_OP_IN || op == JINJA_OP_NOT_IN)
        return jinja_contains(j, a, b) == (op == JINJA_OP_IN);
    const int order = jinja_order(j, a, b, 0);
    return op == '<'                   ? order < 0
           : op == '>'                 ? order > 0
           : op == JINJA_OP2('<', '=') ? order <= 0
                                       : order >= 0;
}

/* Computes + - * of numbers, and // and % of whole ones. */
static inline jinja_value jinja_arithmetic(jinja *j, int op, const jinja_value *a,
                                           const jinja_value *b)
{
    if (!jinja_is_number(a) || !jinja_is_number(b))
        jinja_mismatch(j, "arithmetic", !jinja_is_number(a) ? a : b);
    const double x = jinja_as_real(a), y = jinja_as_real(b);
    const int divides = op == '%' || op == JINJA_OP2('/', '/');
    const double real = op == '+' ? x + y : op == '-' ? x - y : x * y;
    if (a->kind == JINJA_FLOAT || b->kind == JINJA_FLOAT) {
        if (divides)
            jinja_fail(j, "unknown: // and %% of numbers that are not whole");
        return jinja_real(real);
    }
    if (divides && b->whole == 0)
        jinja_fail(j, "division by zero");
    if (real > 9e18 || real < -9e18 || a->whole < -INT64_MAX || b->whole < -INT64_MAX)
        jinja_fail(j, "a number of more than 64 bits");
    if (!divides)
        return jinja_whole(op == '+'   ? a->whole + b->whole
                           : op == '-' ? a->whole - b->whole
                                       : a->whole * b->whole);
    const int64_t rest = a->whole % b->whole, below = rest != 0 && (rest < 0) != (b->whole < 0);
    return jinja_whole(op == '%' ? rest + below * b->whole : a->whole / b->whole - below);
}

static inline jinja_value jinja_operate(jinja *j, int op, const jinja_value *a,
                                        const jinja_value *b)
{
    const int same = a->kind == b->kind && a->is_tuple == b->is_tuple;
    if (op == '~' || (op == '+' && same && a->kind == JINJA_STRING))
        return jinja_concat(j, a, b, op == '+');
    if (op == '+' && same && a->kind == JINJA_LIST && a->is_tuple != JINJA_GENERATOR) {
        jinja_value to = jinja_list(j, JINJA_LIST, a->size + b->size);
        jinja_step(j, to.size);
        to.is_tuple = a->is_tuple;
        if (a->size > 0)
            memcpy(to.items, a->items, a->size * sizeof to);
        if (b->size > 0)
            memcpy(to.items + a->size, b->items, b->size * sizeof to);
        return to;
    }
    if (op == '*' && a->kind == JINJA_STRING && b->kind == JINJA_INT) {
        jinja_text t = { NULL, NULL, 0, 0 };
        for (int64_t i = 0; i < b->whole; i++) {
            jinja_step(j, 1);
            jinja_print(j, &t, a);
        }
        return jinja_text_value(&t);
    }
    return jinja_arithmetic(j, op, a, b);
}
#endif
