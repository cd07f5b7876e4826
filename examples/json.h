/* json.h - reads JSON and JSON lines strictly and in place, and writes JSON. To copy: it needs
 * only C99 and the C library.
 *
 *     json d;
 *     if (json_read_file(&d, "config.json") == 0) {
 *         int64_t layers = json_int(&d, JSON_ROOT, "n_layer", 12); // 12 if absent or null
 *         uint32_t modules = json_require(&d, JSON_ROOT, "target_modules", JSON_ARRAY);
 *         for (uint32_t i = json_first(&d, modules); i; i = json_next(&d, i))
 *             puts(json_text(&d, i));
 *     }
 *     if (d.error[0]) // the first error, in the file or of a function above
 *         fprintf(stderr, "%s\n", d.error); // config.json:7: n_layer: expected a whole number, ...
 *     json_free(&d);
 *
 * Values are referred to by number: JSON_ROOT, or a result of json_find, json_require,
 * json_first and json_next. The number 0 means no value; every function accepts it. All values
 * of a text are in one array, without an allocation for each. Strings are unescaped in place, so
 * the text must be writable and end with a 0; strings may contain zeros, and json_size has their
 * length. Refused: texts that are not JSON by RFC 8259, invalid UTF-8, lone surrogates (unless
 * d.lenient is 1), more than JSON_DEPTH levels, and a second occurrence of a key that is looked
 * up. A byte order mark of UTF-8 at the beginning of a file is skipped. */
#ifndef JSON_H
#define JSON_H
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_ROOT = 1, JSON_DEPTH = 64 };

typedef enum {
    JSON_NOTHING,
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
    JSON_KEY /* a key of an object; the key's value is the value with the next number */
} json_kind;

typedef struct {
    uint32_t at;   /* offset in the text */
    /* bytes of a string or number, or number of items of an array or keys of an object */
    uint32_t size;
    uint32_t next; /* number of the next item or key in the same array or object, or 0 */
    uint32_t line;
    json_kind kind;
} json_node;

typedef struct {
    const char *name; /* file name for error texts; the caller's string, not a copy */
    char *text;       /* the text that was parsed and that contains all strings */
    char *owned;        /* memory that json_free frees, or NULL */
    size_t owned_capacity;
    json_node *nodes;
    /* number of values, and allocated number; number 0 is unused, since 0 means no value */
    uint32_t count, capacity;
    uint32_t line;
    /* if nonzero, half of a surrogate pair (\ud83d) becomes U+FFFD instead of an error */
    int lenient;
    size_t halves; /* number of halves of surrogate pairs that became U+FFFD so far */
    char error[512];
} json;

static inline void json_init(json *d, const char *name)
{
    memset(d, 0, sizeof *d);
    d->name = name;
}

static inline void json_free(json *d)
{
    free(d->owned);
    free(d->nodes);
    d->owned = NULL;
    d->nodes = NULL;
    d->count = d->capacity = 0;
    d->owned_capacity = 0;
}

/* Stores the error "name:line: ...", unless an earlier error is stored. Returns -1. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline int
json_fail(json *d, uint32_t line, const char *format, ...)
{
    va_list args;
    if (d->error[0])
        return -1;
    int n = line ? snprintf(d->error, sizeof d->error, "%.200s:%u: ", d->name, (unsigned)line)
                 : snprintf(d->error, sizeof d->error, "%.200s: ", d->name);
    va_start(args, format);
    vsnprintf(d->error + n, sizeof d->error - (size_t)n, format, args);
    va_end(args);
    return -1;
}

/* ---- UTF-8 ---------------------------------------------------------------------------------- */
/* Decodes the UTF-8 character at `text`, which has n > 0 bytes. Returns the character's length in
 * bytes. If it is invalid, returns minus the number of bytes that one U+FFFD should replace
 * (Unicode's "maximal subpart", as in Python). */
static inline int json_utf8(const char *text, size_t n, uint32_t *character)
{
    const unsigned char *s = (const unsigned char *)text;
    uint32_t c = s[0];
    int size = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (size > 1)
        c &= 0x3fu >> (size - 1);
    for (int i = 1; i < size; i++) {
        /* the allowed range of the second byte excludes overlong forms, surrogates and numbers
         * above 10ffff */
        unsigned low = i > 1 ? 0x80 : s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
        unsigned high = i > 1 ? 0xbf : s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
        if ((size_t)i == n || s[i] < low || s[i] > high)
            return -i;
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (size == 0)
        return -1;
    *character = c;
    return size;
}

/* Returns whether `size` bytes are valid UTF-8. */
static inline int json_is_utf8(const char *text, size_t size)
{
    int length = 1;
    uint32_t c;
    for (size_t i = 0; i < size && length > 0; i += (size_t)length)
        length = json_utf8(text + i, size - i, &c);
    return length > 0;
}

/* Writes a character as UTF-8 to s, at most 4 bytes. Returns the number of bytes. */
static inline int json_put_utf8(char *s, uint32_t c)
{
    int size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = size - 1; i > 0; i--, c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)(size == 1 ? c : (0xf00u >> size & 0xf0) | c);
    return size;
}

/* Returns the number of bytes to skip at the beginning of a file: the length of UTF-8's byte order
 * mark, or 0. If the file begins with the mark of another encoding, returns -1 with d->error. */
static inline int json_bom_size(json *d, const char *text, size_t n)
{
    static const struct {
        const char bytes[5];
        unsigned char size;
        const char *encoding;
    } marks[] = { { "\xff\xfe\0\0", 4, "UTF-32" },
                  { "\0\0\xfe\xff", 4, "UTF-32" },
                  { "\xff\xfe", 2, "UTF-16" },
                  { "\xfe\xff", 2, "UTF-16" },
                  { "\xef\xbb\xbf", 3, NULL } };
    for (int i = 0; i < 5; i++) {
        if (n < marks[i].size || memcmp(text, marks[i].bytes, marks[i].size) != 0)
            continue;
        if (marks[i].encoding == NULL)
            return marks[i].size;
        return json_fail(
            d, 0, "it is in %s, by its byte order mark: save it as UTF-8 (iconv -f %s -t UTF-8)",
            marks[i].encoding, marks[i].encoding);
    }
    return 0;
}

/* ---- parsing -------------------------------------------------------------------------------- */
/* Stores the error that the text at s is not as `expected` says. Returns NULL. */
static inline char *json_unexpected(json *d, const char *expected, const char *s)
{
    unsigned c = (unsigned char)*s;
    char found[] = "the end of the text";
    if (c != 0)
        snprintf(found, sizeof found, c > ' ' && c < 127 ? "'%c'" : "byte 0x%02x", c);
    json_fail(d, d->line, "expected %s, found %s (byte %.0f)", expected, found,
              (double)(s - d->text) + 1);
    return NULL;
}

/* Appends a value to d's array. Returns its number, or 0 with d->error if out of memory. */
static inline uint32_t json_add_node(json *d, json_kind kind, const char *s)
{
    if (d->count + 1 >= d->capacity) {
        size_t capacity = d->capacity ? 2 * (size_t)d->capacity : 64;
        json_node *nodes = capacity < UINT32_MAX / sizeof *nodes
                               ? (json_node *)realloc(d->nodes, capacity * sizeof *nodes)
                               : NULL;
        if (nodes == NULL) {
            json_fail(d, d->line, "out of memory for %.0f values", (double)capacity);
            return 0;
        }
        d->nodes = nodes;
        d->capacity = (uint32_t)capacity;
    }
    d->count += d->count == 0; /* number 0 stays unused */
    json_node *p = &d->nodes[d->count];
    memset(p, 0, sizeof *p);
    p->at = (uint32_t)(s - d->text);
    p->line = d->line;
    p->kind = kind;
    return d->count++;
}

static inline char *json_skip_space(json *d, char *s)
{
    for (; *s == ' ' || *s == '\n' || *s == '\r' || *s == '\t'; s++)
        d->line += *s == '\n';
    return s;
}

/* Returns the number that the four hexadecimal digits at s denote, or -1 if they are not
 * hexadecimal. */
static inline int32_t json_hex(const char *s)
{
    int32_t c = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *p;
        int lower = s[i] >= 'A' && s[i] <= 'F' ? s[i] + 32 : s[i];
        if (lower == 0 || (p = strchr(digits, lower)) == NULL)
            return -1;
        c = c << 4 | (int32_t)(p - digits);
    }
    return c;
}

/* Unescapes, in place, the string whose opening quote is at s. Returns the position after the
 * closing quote, or NULL with d->error. */
static inline char *json_string(json *d, char *s, const char *end, uint32_t node)
{
    char *to = ++s;
    while (*s != '"') {
        static const char from[] = "\"\\/bfnrt", unescaped[] = "\"\\/\b\f\n\r\t";
        const char *p;
        uint32_t c;
        if ((unsigned char)*s < 32)
            return json_unexpected(d, "the rest of a string", s);
        if (*s != '\\') {
            int n = json_utf8(s, (size_t)(end - s), &c);
            if (n < 0)
                return json_unexpected(d, "UTF-8", s);
            while (n-- > 0)
                *to++ = *s++;
        } else if (*++s == 'u') {
            int32_t code = json_hex(s + 1), low = -1;
            /* a surrogate, which must be the first half of a pair */
            if (code >= 0xd800 && code < 0xe000) {
                if (code < 0xdc00 && s[5] == '\\' && s[6] == 'u')
                    low = json_hex(s + 7);
                const int pair = low >= 0xdc00 && low <= 0xdfff;
                code = pair ? (code << 10) + low - 0x35fdc00 : d->lenient ? 0xfffd : -1;
                low = pair ? low : -1;
                d->halves += !pair;
            }
            if (code < 0)
                return json_unexpected(d, "\\u and 4 hexadecimal digits, surrogates in pairs", s);
            to += json_put_utf8(to, (uint32_t)code);
            s += low < 0 ? 5 : 11;
        } else if (*s != 0 && (p = strchr(from, *s)) != NULL) {
            *to++ = unescaped[p - from];
            s++;
        } else {
            return json_unexpected(d, "one of \"\\/bfnrtu after a backslash", s);
        }
    }
    *to = 0;
    d->nodes[node].at++;
    d->nodes[node].size = (uint32_t)(to - d->text) - d->nodes[node].at;
    return s + 1;
}

static inline char *json_digits(json *d, char *s)
{
    if (*s < '0' || *s > '9')
        return json_unexpected(d, "a digit", s);
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

/* Parses the number at s. Returns the position after the number, or NULL with d->error. */
static inline char *json_number(json *d, char *s, uint32_t node)
{
    s += *s == '-';
    s = *s == '0' ? s + 1 : json_digits(d, s);
    if (s != NULL && *s == '.')
        s = json_digits(d, s + 1);
    if (s != NULL && (*s == 'e' || *s == 'E')) {
        s++;
        s = json_digits(d, s + (*s == '+' || *s == '-'));
    }
    if (s != NULL)
        d->nodes[node].size = (uint32_t)(s - d->text) - d->nodes[node].at;
    return s;
}

/* Parses the value at s, which is not an array or object. Returns the position after the value, or
 * NULL with d->error. */
static inline char *json_scalar(json *d, char *s, const char *end)
{
    static const char *const words[] = { "null", "false", "true" };
    if (*s == '"' || *s == '-' || (*s >= '0' && *s <= '9')) {
        uint32_t node = json_add_node(d, *s == '"' ? JSON_STRING : JSON_NUMBER, s);
        return node == 0   ? NULL
               : *s == '"' ? json_string(d, s, end, node)
                           : json_number(d, s, node);
    }
    for (int i = 0; i < 3; i++)
        if (strncmp(s, words[i], strlen(words[i])) == 0)
            return json_add_node(d, (json_kind)(JSON_NULL + i), s) ? s + strlen(words[i]) : NULL;
    return json_unexpected(d, "a value", s);
}

/* Parses `text` of `size` bytes, after which there must be a 0. Strings are unescaped in place, and
 * values point into the text. Line numbers for errors continue from d->line. Returns 0, or -1 with
 * d->error. */
static inline int json_parse(json *d, char *text, size_t size)
{
    /* arrays and objects that are not closed yet, and the last item of each of them */
    uint32_t open[JSON_DEPTH], last[JSON_DEPTH];
    int depth = 0;
    char *s = text;
    d->text = text;
    d->count = 0;
    d->line += d->line == 0;
    if (size >= UINT32_MAX - 8)
        return json_fail(d, 0, "the file has %.0f bytes: 4 GB and more are not supported", (double)size);
    for (;;) {
        s = json_skip_space(d, s);
        if (depth > 0) {
            json_kind in = d->nodes[open[depth - 1]].kind;
            uint32_t item = d->count;
            if (in == JSON_OBJECT) {
                if (*s != '"')
                    return json_unexpected(d, "a key in quotes", s), -1;
                if (json_add_node(d, JSON_KEY, s) == 0 ||
                    (s = json_string(d, s, text + size, item)) == NULL)
                    return -1;
                s = json_skip_space(d, s);
                if (*s != ':')
                    return json_unexpected(d, "':' after a key", s), -1;
                s = json_skip_space(d, s + 1);
            }
            if (d->nodes[open[depth - 1]].size++ > 0)
                d->nodes[last[depth - 1]].next = item;
            last[depth - 1] = item;
        }
        if (*s == '{' || *s == '[') {
            if (depth == JSON_DEPTH)
                return json_fail(d, d->line, "arrays and objects more than %d deep", JSON_DEPTH);
            open[depth] = json_add_node(d, *s == '{' ? JSON_OBJECT : JSON_ARRAY, s);
            if (open[depth++] == 0)
                return -1;
            char closing = *s == '{' ? '}' : ']';
            s = json_skip_space(d, s + 1);
            if (*s != closing)
                continue;
        } else if ((s = json_scalar(d, s, text + size)) == NULL) {
            return -1;
        }
        for (s = json_skip_space(d, s); depth > 0 && *s != ','; s = json_skip_space(d, s + 1)) {
            int object = d->nodes[open[depth - 1]].kind == JSON_OBJECT;
            if (*s != (object ? '}' : ']'))
                return json_unexpected(d, object ? "',' or '}'" : "',' or ']'", s), -1;
            depth--;
        }
        if (depth == 0)
            return s == text + size ? 0 : (json_unexpected(d, "nothing after the value", s), -1);
        s++;
    }
}

/* Doubles the capacity of d->owned, to at least 4096 bytes. Returns 0, or -1 with d->error. */
static inline int json_grow(json *d)
{
    size_t capacity = d->owned_capacity ? 2 * d->owned_capacity : 4096;
    char *owned = capacity > d->owned_capacity ? (char *)realloc(d->owned, capacity) : NULL;
    if (owned == NULL)
        return json_fail(d, d->line, "out of memory for %.0f bytes", (double)capacity);
    d->owned = owned;
    d->owned_capacity = capacity;
    return 0;
}

/* Returns whether `path` is the name of a file, even of one that cannot be opened. */
static inline int json_file_exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    const int exists = f != NULL || (errno != ENOENT && errno != ENOTDIR);
    if (f != NULL)
        fclose(f);
    return exists;
}

/* Reads a whole file into d->owned and returns it, or NULL with d->error. A 0 follows the *size
 * bytes. json_free frees the text, unless the caller keeps it and sets d->owned to NULL. */
static inline char *json_read_text(json *d, const char *path, size_t *size)
{
    json_init(d, path);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        json_fail(d, 0, "cannot open it: %s", strerror(errno));
        return NULL;
    }
    *size = 0;
    while (*size + 1 >= d->owned_capacity && json_grow(d) == 0)
        *size += fread(d->owned + *size, 1, d->owned_capacity - 1 - *size, f);
    if (d->owned != NULL)
        d->owned[*size] = 0;
    if (ferror(f))
        json_fail(d, 0, "cannot read it: %s", strerror(errno));
    fclose(f);
    return d->error[0] ? NULL : d->owned;
}

/* Reads and parses a file. Returns 0, or -1 with d->error. Call json_free in both cases. */
static inline int json_read_file(json *d, const char *path)
{
    size_t size;
    char *text = json_read_text(d, path, &size);
    const int bom = text != NULL ? json_bom_size(d, text, size) : -1;
    return bom < 0 ? -1 : json_parse(d, text + bom, size - (size_t)bom);
}

/* Reads a file of JSON lines: parses the next line of f that is not blank. Call json_init before
 * the first line. Values are valid until the next call. Returns 1, 0 at the end of the file, or -1
 * with d->error. */
static inline int json_read_line(json *d, FILE *f)
{
    for (;;) {
        size_t n = 0;
        int c = getc(f);
        if (c != EOF)
            d->line++;
        for (; c != EOF && c != '\n'; c = getc(f)) {
            if (n + 1 >= d->owned_capacity && json_grow(d) != 0)
                return -1;
            d->owned[n++] = (char)c;
            d->owned[n] = 0;
        }
        if (ferror(f))
            return json_fail(d, d->line, "cannot read it: %s", strerror(errno));
        const int bom = n > 0 && d->line == 1 ? json_bom_size(d, d->owned, n) : 0;
        if (bom < 0)
            return -1;
        n -= (size_t)bom;
        if (n > 0 && strspn(d->owned + bom, " \r\t") < n)
            return json_parse(d, d->owned + bom, n) == 0 ? 1 : -1;
        if (c == EOF)
            return 0;
    }
}

/* ---- values ---------------------------------------------------------------------------------- */
static inline json_kind json_kind_of(const json *d, uint32_t at)
{
    return at < d->count && at > 0 ? d->nodes[at].kind : JSON_NOTHING;
}

/* Returns the number of the first item of an array, or of the first key of an object; 0 if it is
 * empty. The value of a key has the next number. */
static inline uint32_t json_first(const json *d, uint32_t at)
{
    json_kind kind = json_kind_of(d, at);
    return (kind == JSON_ARRAY || kind == JSON_OBJECT) && d->nodes[at].size ? at + 1 : 0;
}

static inline uint32_t json_next(const json *d, uint32_t at)
{
    return json_kind_of(d, at) ? d->nodes[at].next : 0;
}

/* Returns the bytes of a string or number, or the number of items or keys. */
static inline uint32_t json_size(const json *d, uint32_t at)
{
    return json_kind_of(d, at) ? d->nodes[at].size : 0;
}

/* Returns whether value `at` is a string or key with this text. */
static inline int json_is(const json *d, uint32_t at, const char *text)
{
    json_kind kind = json_kind_of(d, at);
    size_t n = strlen(text);
    return (kind == JSON_STRING || kind == JSON_KEY) && d->nodes[at].size == n &&
           memcmp(d->text + d->nodes[at].at, text, n) == 0;
}

static inline const char *json_kind_name(json_kind kind)
{
    static const char *const names[] = { "nothing",  "null",     "false",     "true", "a number",
                                         "a string", "an array", "an object", "a key" };
    return names[kind];
}

/* Stores the error that value `at` is not as expected: "file:line: key: expected ..., found ...".
 * Returns -1. */
static inline int json_mismatch(json *d, uint32_t at, const char *expected)
{
    json_kind kind = json_kind_of(d, at);
    int named = at > JSON_ROOT && json_kind_of(d, at - 1) == JSON_KEY;
    int shown = kind == JSON_STRING || kind == JSON_NUMBER;
    uint32_t size = shown ? d->nodes[at].size : 0;
    return json_fail(d, kind ? d->nodes[at].line : 0, "%.80s%sexpected %.160s, found %s%s%.*s",
                     named ? d->text + d->nodes[at - 1].at : "", named ? ": " : "", expected,
                     json_kind_name(kind), shown ? " " : "", (int)(size < 60 ? size : 60),
                     shown ? d->text + d->nodes[at].at : "");
}

/* Returns the number of a key's value, or 0 if the object does not have the key. */
static inline uint32_t json_find(json *d, uint32_t object, const char *key)
{
    uint32_t found = 0;
    if (json_kind_of(d, object) != JSON_OBJECT)
        return 0;
    for (uint32_t k = json_first(d, object); k != 0; k = json_next(d, k))
        if (json_is(d, k, key)) {
            if (found)
                json_fail(d, d->nodes[k].line, "%.80s: this key occurs twice", key);
            found = k + 1;
        }
    return found;
}

/* Returns the number of the value of a key that must exist. Its kind must be `kind`, unless that is
 * JSON_NOTHING. Returns 0 with d->error if the key is absent or the kind is another one. */
static inline uint32_t json_require(json *d, uint32_t object, const char *key, json_kind kind)
{
    uint32_t at = json_find(d, object, key);
    if (at == 0)
        json_fail(d, json_kind_of(d, object) ? d->nodes[object].line : 0,
                  "expected an object with the key %.80s (%s), which is not there", key,
                  kind != JSON_NOTHING ? json_kind_name(kind) : "a value");
    else if (kind != JSON_NOTHING && json_kind_of(d, at) != kind)
        json_mismatch(d, at, json_kind_name(kind));
    else
        return at;
    return 0;
}

/* The next four functions return value `at` as a text, number, whole number or bool. If the value
 * is of another kind, they store an error and return "" or 0. */
static inline const char *json_text(json *d, uint32_t at)
{
    json_kind kind = json_kind_of(d, at);
    if (kind == JSON_STRING || kind == JSON_KEY)
        return d->text + d->nodes[at].at;
    json_mismatch(d, at, "a string");
    return "";
}

static inline double json_real_of(json *d, uint32_t at)
{
    if (json_kind_of(d, at) == JSON_NUMBER)
        return strtod(d->text + d->nodes[at].at, NULL);
    json_mismatch(d, at, "a number");
    return 0;
}

static inline int64_t json_int_of(json *d, uint32_t at)
{
    int64_t v = 0;
    if (json_kind_of(d, at) == JSON_NUMBER) {
        const char *s = d->text + d->nodes[at].at, *end = s + d->nodes[at].size;
        int64_t sign = *s == '-' ? -1 : 1;
        for (s += sign < 0; s < end && *s >= '0' && *s <= '9' && v < INT64_MAX / 10 - 1; s++)
            v = 10 * v + (*s - '0');
        if (s == end)
            return sign * v;
    }
    json_mismatch(d, at, "a whole number");
    return 0;
}

static inline int json_bool_of(json *d, uint32_t at)
{
    json_kind kind = json_kind_of(d, at);
    if (kind != JSON_TRUE && kind != JSON_FALSE)
        json_mismatch(d, at, "true or false");
    return kind == JSON_TRUE;
}

/* json_find_nonnull returns the number of a key's value, or 0 if the key is absent or null. The
 * getters after it return the value, or `fallback` if the key is absent or null. */
static inline uint32_t json_find_nonnull(json *d, uint32_t object, const char *key)
{
    uint32_t at = json_find(d, object, key);
    return json_kind_of(d, at) == JSON_NULL ? 0 : at;
}

static inline int64_t json_int(json *d, uint32_t object, const char *key, int64_t fallback)
{
    uint32_t at = json_find_nonnull(d, object, key);
    return at ? json_int_of(d, at) : fallback;
}

static inline double json_real(json *d, uint32_t object, const char *key, double fallback)
{
    uint32_t at = json_find_nonnull(d, object, key);
    return at ? json_real_of(d, at) : fallback;
}

static inline int json_bool(json *d, uint32_t object, const char *key, int fallback)
{
    uint32_t at = json_find_nonnull(d, object, key);
    return at ? json_bool_of(d, at) : fallback;
}

/* ---- writing --------------------------------------------------------------------------------- */
/* Writes a string in quotes. Invalid UTF-8 becomes U+FFFD, since JSON cannot contain it. */
static inline void json_write_string(FILE *f, const char *s, size_t n)
{
    putc('"', f);
    for (size_t i = 0; i < n;) {
        uint32_t c = 0xfffd;
        int size = json_utf8(s + i, n - i, &c);
        char out[4];
        if (size > 0 && (c < 32 || c == 127))
            fprintf(f, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\u%04x", (unsigned)c);
        else if (c == '"' || c == '\\')
            fprintf(f, "\\%c", (int)c);
        else
            fwrite(out, 1, (size_t)json_put_utf8(out, c), f);
        i += (size_t)(size < 0 ? -size : size);
    }
    putc('"', f);
}

/* Writes a text that printf made, with null in place of each inf or nan, since JSON has no notation
 * for them. */
static inline void json_write_finite(FILE *f, const char *text)
{
    for (int quoted = 0; *text != 0; text++) {
        const char *word = text + (*text == '-');
        quoted ^= *text == '"';
        if (!quoted && (strncmp(word, "nan", 3) == 0 || strncmp(word, "inf", 3) == 0)) {
            fputs("null", f);
            text = word + 2;
        } else {
            putc(*text, f);
        }
    }
}

/* Writes value `at` on one line. Numbers are written with the digits that were read. */
static inline void json_write_value(FILE *f, const json *d, uint32_t at)
{
    const json_kind kind = json_kind_of(d, at);
    const json_node *p = &d->nodes[at];
    if (kind == JSON_STRING || kind == JSON_KEY)
        json_write_string(f, d->text + p->at, p->size);
    else if (kind == JSON_NUMBER)
        fwrite(d->text + p->at, 1, p->size, f);
    else if (kind != JSON_ARRAY && kind != JSON_OBJECT)
        fputs(json_kind_name(kind), f);
    if (kind != JSON_ARRAY && kind != JSON_OBJECT)
        return;
    putc(kind == JSON_OBJECT ? '{' : '[', f);
    for (uint32_t i = json_first(d, at); i != 0; i = json_next(d, i)) {
        json_write_value(f, d, i);
        if (kind == JSON_OBJECT) {
            fputs(": ", f);
            json_write_value(f, d, i + 1);
        }
        fputs(json_next(d, i) != 0 ? ", " : "", f);
    }
    putc(kind == JSON_OBJECT ? '}' : ']', f);
}

/* ---- writing to memory ----------------------------------------------------------------------- */
typedef struct {
    char *text; /* ends with a 0, which `size` does not count; NULL while it is empty */
    size_t size, capacity;
    int failed; /* nonzero if memory ran out; then later calls do nothing */
} json_buffer;

/* Appends n bytes as they are. */
static inline void json_add(json_buffer *b, const char *text, size_t n)
{
    if (b->failed)
        return;
    if (b->capacity - b->size <= n) {
        const size_t capacity = 2 * b->capacity + n + 4096;
        char *more = (char *)realloc(b->text, capacity);
        b->failed = more == NULL;
        if (more == NULL)
            return;
        b->text = more;
        b->capacity = capacity;
    }
    memcpy(b->text + b->size, text, n);
    b->size += n;
    b->text[b->size] = 0;
}

static inline void json_add_text(json_buffer *b, const char *text)
{
    json_add(b, text, strlen(text));
}

static inline void json_add_int(json_buffer *b, int64_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)number);
    json_add_text(b, digits);
}

/* Appends n bytes of valid UTF-8 as a JSON string. */
static inline void json_add_string(json_buffer *b, const char *text, size_t n)
{
    char hex[8];
    json_add_text(b, "\"");
    for (size_t i = 0, run; i < n; i += run) {
        const unsigned char c = (unsigned char)text[i];
        for (run = 0; i + run < n && (unsigned char)text[i + run] >= 32 && text[i + run] != '"' &&
                      text[i + run] != '\\';)
            run++;
        json_add(b, text + i, run);
        if (run == 0) {
            snprintf(hex, sizeof hex, c < 32 ? "\\u%04x" : "\\%c", c);
            json_add_text(b, hex);
            run = 1;
        }
    }
    json_add_text(b, "\"");
}
#endif
