/* text.h - helpers for tests of text output: a writer that may fail at any call, and functions that check whether the
 * written text is well-formed XML or JSON. Include after gradckpt.h, or layer headers of src/. */
#ifndef TESTS_TEXT_H
#define TESTS_TEXT_H
#include <stdlib.h>

#include "check.h"

typedef struct {
    char *bytes;
    size_t size, capacity;
    long calls, fail_at; /* if 0, never */
} text;

static size_t write_text(void *user, const void *bytes, size_t size)
{
    text *t = (text *)user;
    if (++t->calls == t->fail_at)
        return size / 2;
    /* the library must not call a writer again after a failure */
    CHECK(t->fail_at == 0 || t->calls < t->fail_at);
    if (t->size + size + 1 > t->capacity) {
        t->capacity = 2 * (t->size + size + 1);
        t->bytes = (char *)realloc(t->bytes, t->capacity);
    }
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
    t->bytes[t->size] = 0;
    return size;
}

/* Finds `what` in s like strstr, which under a sanitizer would measure the whole length of s at each call. */
static const char *find(const char *s, const char *what)
{
    size_t n = strlen(what);
    while (*s && (*s != *what || strncmp(s, what, n)))
        s++;
    return *s ? s : NULL;
}

/* Returns whether the text is valid UTF-8 and has only characters that both XML and JSON allow. */
static inline int is_valid_text(const text *t)
{
    for (size_t i = 0; i < t->size;) {
        int n = gckpti_utf8_length(t->bytes + i, t->size - i);
        unsigned char c = (unsigned char)t->bytes[i];
        if (n == 0 || c == 127 || (c < 32 && c != '\n') ||
            (n == 3 && c == 0xef && (unsigned char)t->bytes[i + 1] == 0xbf &&
             (unsigned char)t->bytes[i + 2] >= 0xbe))
            return 0;
        i += (size_t)n;
    }
    return 1;
}

/* Returns whether the text is well-formed XML of the kind that the library writes: elements nest, attributes are
 * quoted, entities are known ones. */
static inline int is_valid_xml(const text *t)
{
    static const char *const entities[] = { "&amp;", "&lt;", "&gt;", "&quot;" };
    const char *open[16], *s = t->bytes;
    int depth = 0, roots = 0;
    while (*s) {
        if (*s == '&') {
            int known = 0;
            for (int i = 0; i < 4; i++)
                known = known || !strncmp(s, entities[i], strlen(entities[i]));
            if (!known)
                return 0;
        }
        if (*s++ != '<')
            continue;
        int closing = *s == '/', quoted = 0;
        const char *name = s += closing;
        while (*s && (quoted || *s != '>')) {
            if (quoted && *s == '<')
                return 0;
            quoted ^= *s++ == '"';
        }
        size_t length = strcspn(name, " />");
        if (!*s || depth == 16 || length == 0)
            return 0;
        if (closing && (depth == 0 || strncmp(open[--depth], name, length)))
            return 0;
        if (!closing && s[-1] != '/') {
            roots += depth == 0;
            open[depth++] = name;
        }
        s++;
    }
    return depth == 0 && roots == 1;
}

/* Returns whether the text is well-formed JSON: brackets nest, strings end, commas and colons
   separate values. */
static inline int is_valid_json(const text *t)
{
    /* kind of the token before: one of { [ , : or v (a value) or k (a key) */
    char open[16], before = 0;
    int depth = 0, values = 0;
    for (const char *s = t->bytes; *s; s++) {
        int value_may = before == 0 || before == '[' || before == ':' ||
                        (before == ',' && depth && open[depth - 1] == '[');
        if (*s == ' ' || *s == '\n') {
            continue;
        } else if (*s == '{' || *s == '[') {
            if (!value_may || depth == 16)
                return 0;
            open[depth++] = *s;
            before = *s;
        } else if (*s == '}' || *s == ']') {
            if (depth == 0 || open[--depth] != (*s == '}' ? '{' : '[') || before == ',' ||
                before == ':' || before == 'k')
                return 0;
            before = 'v';
        } else if (*s == ',' || *s == ':') {
            if (before != (*s == ',' ? 'v' : 'k') || depth == 0)
                return 0;
            before = *s;
        } else if (*s == '"') {
            int key = depth && open[depth - 1] == '{' && before != ':';
            if (!key && !value_may)
                return 0;
            for (s++; *s != '"'; s++) {
                if (!*s || (unsigned char)*s < 32)
                    return 0;
                if (*s == '\\' && *++s != '"' && *s != '\\')
                    return 0;
            }
            before = key ? 'k' : 'v';
        } else {
            char *end;
            size_t word = strncmp(s, "null", 4) && strncmp(s, "true", 4) ? 0 : 4;
            word = strncmp(s, "false", 5) ? word : 5;
            if (word && value_may) {
                s += word - 1;
                values += depth == 0;
                before = 'v';
                continue;
            }
            strtod(s, &end);
            if (end == s || !value_may || *s == '+' || *s == 'n' || *s == 'i')
                return 0;
            s = end - 1;
            before = 'v';
        }
        values += depth == 0;
    }
    return depth == 0 && values == 1 && before == 'v';
}
#endif
