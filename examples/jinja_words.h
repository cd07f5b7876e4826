/* jinja_words.h - filters, tests, methods, functions and operators of jinja.h's templates. To copy,
 * with jinja_value.h, json.h and unicode.h.
 *
 * Known are those of JINJA_WORDS, with their parameters; anything else is an error that names it.
 * Upper and lower case are known for ASCII only: other letters are an error. C99 or C++11. */
#ifndef JINJA_WORDS_H
#define JINJA_WORDS_H
#include "jinja_value.h"

#define JINJA_K(kind) (1u << JINJA_##kind)
/* The known words: W(ID, NAMES, PARAMETERS, KINDS). Each name begins with the sign of a use: | is a
 * filter, . a method, ? a test, and ( a function. PARAMETERS names at most JINJA_PARAMETERS
 * parameters; with "*" a word reads its arguments itself. KINDS are the kinds of values for which a
 * test holds, or that have the method; words of strings only read any other value as a string. */
#define JINJA_WORDS(W)                                                                             \
    W(TOJSON, "|tojson", "ensure_ascii indent separators", 0)                                      \
    W(LENGTH, "|length |count", "", 0)                                                             \
    W(DEFAULT, "|default |d", "default_value boolean", 0)                                          \
    W(JOIN, "|join", "d attribute", 0)                                                             \
    W(LIST, "|list", "", 0)                                                                        \
    W(FIRST, "|first", "", 0)                                                                      \
    W(LAST, "|last", "", 0)                                                                        \
    W(MIN, "|min", "", 0)                                                                          \
    W(SORT, "|sort", "reverse case_sensitive attribute", 0)                                        \
    W(UNIQUE, "|unique", "", 0)                                                                    \
    W(DICTSORT, "|dictsort", "", 0)                                                                \
    W(MAP, "|map", "*", 0)                                                                         \
    W(SELECT, "|select", "*", 0)                                                                   \
    W(REJECT, "|reject", "*", 0)                                                                   \
    W(SELECTATTR, "|selectattr", "*", 0)                                                           \
    W(REJECTATTR, "|rejectattr", "*", 0)                                                           \
    W(INT, "|int", "default", 0)                                                                   \
    W(FLOAT, "|float", "default", 0)                                                               \
    W(ITEMS, "|items .items", "", JINJA_K(DICT))                                                   \
    W(KEYS, ".keys", "", JINJA_K(DICT))                                                            \
    W(VALUES, ".values", "", JINJA_K(DICT))                                                        \
    W(GET, ".get", "key default", JINJA_K(DICT))                                                   \
    W(TRIM, "|trim .strip", "chars", JINJA_K(STRING))                                              \
    W(LSTRIP, ".lstrip", "chars", JINJA_K(STRING))                                                 \
    W(RSTRIP, ".rstrip", "chars", JINJA_K(STRING))                                                 \
    W(STRING, "|string", "", JINJA_K(STRING))                                                      \
    W(SAFE, "|safe", "", JINJA_K(STRING))                                                          \
    W(UPPER, "|upper .upper", "", JINJA_K(STRING))                                                 \
    W(LOWER, "|lower .lower", "", JINJA_K(STRING))                                                 \
    W(CAPITALIZE, "|capitalize .capitalize", "", JINJA_K(STRING))                                  \
    W(TITLE, "|title .title", "", JINJA_K(STRING))                                                 \
    W(REPLACE, "|replace .replace", "old new", JINJA_K(STRING))                                    \
    W(SPLIT, ".split", "sep maxsplit", JINJA_K(STRING))                                            \
    W(STARTSWITH, ".startswith", "prefix", JINJA_K(STRING))                                        \
    W(ENDSWITH, ".endswith", "suffix", JINJA_K(STRING))                                            \
    W(FORMAT, ".format", "*", JINJA_K(STRING))                                                     \
    W(INDENT, "|indent", "width first", JINJA_K(STRING))                                           \
    W(NAMESPACE, "(namespace", "*", 0)                                                             \
    W(DICT, "(dict", "*", 0)                                                                       \
    W(RANGE, "(range", "*", 0)                                                                     \
    W(RAISE, "(raise_exception", "message", 0)                                                     \
    W(STRFTIME, "(strftime_now", "format", 0)                                                      \
    W(IS_DEFINED, "?defined", "", ~JINJA_K(UNDEFINED))                                             \
    W(IS_UNDEFINED, "?undefined", "", JINJA_K(UNDEFINED))                                          \
    W(IS_NONE, "?none", "", JINJA_K(NONE))                                                         \
    W(IS_STRING, "?string", "", JINJA_K(STRING))                                                   \
    W(IS_MAPPING, "?mapping", "", JINJA_K(DICT))                                                   \
    W(IS_SEQUENCE, "?sequence ?iterable", "",                                                      \
      JINJA_K(STRING) | JINJA_K(LIST) | JINJA_K(DICT) | JINJA_K(UNDEFINED))                        \
    W(IS_NUMBER, "?number", "", JINJA_K(BOOL) | JINJA_K(INT) | JINJA_K(FLOAT))                     \
    W(IS_INTEGER, "?integer", "", JINJA_K(INT))                                                    \
    W(IS_FLOAT, "?float", "", JINJA_K(FLOAT))                                                      \
    W(IS_BOOLEAN, "?boolean", "", JINJA_K(BOOL))                                                   \
    W(IS_TRUE, "?true", "", 0)                                                                     \
    W(IS_FALSE, "?false", "", 0)                                                                   \
    W(IS_IN, "?in", "seq", 0)                                                                      \
    W(IS_EQUAL, "?eq ?equalto ?==", "other", 0)                                                    \
    W(IS_UNEQUAL, "?ne ?!=", "other", 0)
#define JINJA_WORD_ID(id, names, parameters, kinds)  JINJA_W_##id,
#define JINJA_WORD_ROW(id, names, parameters, kinds) { names, parameters, kinds },
enum { JINJA_WORDS(JINJA_WORD_ID) JINJA_W_END };
static const struct {
    const char *names, *parameters;
    unsigned kinds;
} jinja_words[] = { JINJA_WORDS(JINJA_WORD_ROW) };
#undef JINJA_WORD_ID
#undef JINJA_WORD_ROW

/* Returns the index in jinja_words of a name with the sign of its use, or -1. */
static inline int jinja_word(const jinja_value *name, char use)
{
    for (int i = 0; i < JINJA_W_END; i++)
        if (jinja_listed(jinja_words[i].names, use, name) >= 0)
            return i;
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
    const int reads_all = jinja_words[word].parameters[0] == '*';
    const char *s = reads_all ? "" : jinja_words[word].parameters;
    size_t used = 0;
    for (size_t i = 0; i < JINJA_PARAMETERS; i++, s += *s == ' ') {
        p[i] = jinja_undefined(s, strcspn(s, " "));
        const size_t k = p[i].size > 0 ? jinja_find_argument(a, i, &p[i]) : a->count;
        s += p[i].size;
        if (k < a->count)
            p[i] = a->at[k];
        used += k < a->count;
    }
    if (used != a->count && !reads_all)
        jinja_fail(j, "unknown: %d arguments of %s, or one with another keyword", (int)a->count,
                   strpbrk(jinja_words[word].names, "abcdefghijklmnopqrstuvwxyz"));
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
    jinja_step(j, (a->size - from) / 64);
    for (; from + b->size <= a->size; from++)
        if (jinja_has(a, from, b))
            return from;
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

/* Returns v.name if `dotted`, which also finds methods, or v[name]. */
static inline jinja_value jinja_attribute(jinja *j, const jinja_value *v, const jinja_value *name,
                                          int dotted)
{
    const jinja_value *found = NULL;
    const int word = dotted ? jinja_word(name, '.') : -1;
    if (v->kind == JINJA_UNDEFINED)
        jinja_mismatch(j, "an attribute of it", v);
    if ((name->kind == JINJA_INT || name->kind == JINJA_BOOL) &&
        (v->kind == JINJA_LIST || v->kind == JINJA_STRING))
        return jinja_index(j, v, name->whole);
    if (word >= 0 && (jinja_words[word].kinds >> v->kind & 1) != 0) {
        jinja_value method = jinja_make(JINJA_FUNCTION);
        method.whole = word;
        return method;
    }
    if (v->kind == JINJA_DICT)
        found = jinja_find(j, v, name);
    if ((v->kind == JINJA_NAMESPACE || v->kind == JINJA_LOOP) && name->kind == JINJA_STRING)
        found = jinja_look_up(v->scope, name);
    if (v->kind == JINJA_LOOP && found == NULL)
        jinja_fail(j, "unknown attribute of a loop: %.*s", JINJA_SHORT(name));
    return found != NULL                ? *found
           : name->kind == JINJA_STRING ? jinja_undefined(name->text, name->size)
                                        : jinja_undefined("the item", 8);
}

/* Returns the attribute of a value with a name, or the value if the name is no string. */
static inline jinja_value jinja_by(jinja *j, const jinja_value *v, const jinja_value *name)
{
    if (name->kind != JINJA_STRING)
        return *v;
    if (memchr(name->text, '.', name->size) != NULL)
        jinja_fail(j, "unknown: '%.*s', an attribute of an attribute", JINJA_SHORT(name));
    return jinja_attribute(j, v, name, 0);
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

/* Returns a copy of a list, sorted by the attribute `name` of the items if it is a string, or of a
 * dict, sorted by its keys. Equal items keep their order. */
static inline jinja_value jinja_sort(jinja *j, const jinja_value *v, const jinja_value *name,
                                     int folds, int descending)
{
    const size_t width = v->kind == JINJA_DICT ? 2 : 1;
    jinja_value to = jinja_list(j, v->kind, v->size);
    for (size_t i = 0; i < v->size; i++) {
        size_t k = i;
        for (; k > 0; k--) {
            const jinja_value a = jinja_by(j, &to.items[width * (k - 1)], name),
                              b = jinja_by(j, &v->items[width * i], name);
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

/* Joins the items of a list, or their attributes with a name that is a string. */
static inline jinja_value jinja_join(jinja *j, const jinja_value *v, const jinja_value *separator,
                                     const jinja_value *name)
{
    const jinja_value all = jinja_iterate(j, v);
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t i = 0; i < all.size; i++) {
        const jinja_value item = jinja_by(j, &all.items[i], name);
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
    to.is_tuple = JINJA_VIEW;
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

/* Replaces each {} of a string by the next argument, as str.format of Python does. */
static inline jinja_value jinja_format(jinja *j, const jinja_value *v, const jinja_arguments *a)
{
    const jinja_value parts = jinja_split(j, v, jinja_c_string("{}"), -1);
    jinja_text t = { NULL, NULL, 0, 0 };
    for (size_t i = 0; i < parts.size; i++) {
        const jinja_value *part = &parts.items[i];
        if (i > a->given || memchr(part->text, '{', part->size) != NULL ||
            memchr(part->text, '}', part->size) != NULL)
            jinja_fail(j, "unknown: format with a brace that is not {}, or without an argument");
        if (i > 0)
            jinja_print(j, &t, &a->at[i - 1]);
        jinja_print(j, &t, part);
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
        }
    }
    if (!valid || (is_int && !(x <= DBL_MAX && x >= -DBL_MAX)))
        return fallback->kind != JINJA_UNDEFINED ? *fallback
               : is_int                          ? jinja_whole(0)
                                                 : jinja_real(0);
    if (is_int && v->kind != JINJA_FLOAT && v->kind != JINJA_STRING)
        return jinja_whole(v->whole);
    if (is_int && !(x < 9e15 && x > -9e15))
        jinja_fail(j, "a number of more than 53 bits");
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
    switch (word) {
    case JINJA_W_IS_TRUE:
    case JINJA_W_IS_FALSE: return v->kind == JINJA_BOOL && v->whole == (word == JINJA_W_IS_TRUE);
    case JINJA_W_IS_IN: return jinja_contains(j, v, other);
    case JINJA_W_IS_EQUAL:
    case JINJA_W_IS_UNEQUAL: return jinja_equal(j, v, other) == (word == JINJA_W_IS_EQUAL);
    }
    return jinja_words[word].kinds >> v->kind & 1;
}

static inline jinja_value jinja_apply(jinja *j, int word, char use, const jinja_value *v,
                                      const jinja_arguments *a);

/* Returns `word`, the index of a filter or test; fails if it is -1. */
static inline int jinja_need_word(jinja *j, int word, char use, const jinja_value *name)
{
    if (word < 0)
        jinja_fail(j, "unknown %s '%.*s'", use == '|' ? "filter" : "test", JINJA_SHORT(name));
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
    const int maps = word == JINJA_W_MAP;
    const char use = maps ? '|' : '?';
    const int attributes = word == JINJA_W_SELECTATTR || word == JINJA_W_REJECTATTR;
    const int rejects = word == JINJA_W_REJECT || word == JINJA_W_REJECTATTR;
    const jinja_value none = jinja_make(JINJA_LIST),
                      all = jinja_iterate(j, jinja_is_true(v) ? v : &none);
    jinja_value to = jinja_list(j, JINJA_LIST, all.size), name = jinja_make(JINJA_NONE);
    jinja_arguments a = *given;
    int id = -1;
    if (maps && a.count == 1 && jinja_is(&a.names[0], "attribute")) {
        name = jinja_need_string(j, &a.at[0]);
    } else {
        name = attributes ? jinja_shift(j, &a) : name;
        if (maps || a.count > 0) {
            const jinja_value by = jinja_shift(j, &a);
            id = jinja_need_word(j, jinja_word(&by, use), use, &by);
        }
    }
    to.size = 0;
    to.is_tuple = JINJA_GENERATOR;
    for (size_t i = 0; i < all.size; i++) {
        jinja_value item = jinja_by(j, &all.items[i], &name);
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
        to = jinja_entries(j, &to, JINJA_W_ITEMS);
        to.is_tuple = 0;
        return to;
    case JINJA_W_LAST: to = jinja_iterate(j, v); return jinja_index(j, &to, -1);
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
static inline jinja_value jinja_apply_string(jinja *j, int word, char use, jinja_value v,
                                             const jinja_arguments *a, const jinja_value *p)
{
    const jinja_value *set = p[0].kind == JINJA_STRING ? &p[0] : NULL;
    jinja_value other;
    switch (word) {
    case JINJA_W_TRIM:
    case JINJA_W_LSTRIP:
    case JINJA_W_RSTRIP: return jinja_strip(v, word != JINJA_W_RSTRIP, word != JINJA_W_LSTRIP, set);
    case JINJA_W_STRING: return v;
    case JINJA_W_SAFE: v.is_safe = 1; return v;
    case JINJA_W_UPPER:
    case JINJA_W_LOWER:
    case JINJA_W_CAPITALIZE:
    case JINJA_W_TITLE: return jinja_case(j, &v, word, use == '|');
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
    to.is_tuple = JINJA_VIEW;
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
static inline jinja_value jinja_apply(jinja *j, int word, char use, const jinja_value *v,
                                      const jinja_arguments *a)
{
    const char kind = jinja_words[word].names[0];
    jinja_value p[JINJA_PARAMETERS], to;
    jinja_enter(j);
    if (word == JINJA_W_INDENT)
        jinja_need_string(j, v);
    jinja_bind(j, word, a, p);
    if (kind == '?')
        to = jinja_bool(jinja_test(j, word, v, &p[0]));
    else if (kind == '(')
        to = jinja_call_function(j, word, a, p);
    else if (jinja_words[word].kinds == JINJA_K(STRING))
        to = jinja_apply_string(j, word, use, jinja_str(j, v), a, p);
    else
        to = jinja_apply_any(j, word, v, a, p);
    j->depth--;
    return to;
}

/* ---- operators ------------------------------------------------------------------------------- */
/* An operator is its character, or JINJA_OP2 of its first two. */
#define JINJA_OP2(a, b) (256 * (a) + (b))
enum {
    JINJA_OP_IN = JINJA_OP2('i', 'n'),
    JINJA_OP_NOT_IN = JINJA_OP2('n', 'o'),
    JINJA_OP_AND = JINJA_OP2('a', 'n'),
    JINJA_OP_OR = JINJA_OP2('o', 'r')
};

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
    switch (op) {
    case JINJA_OP2('=', '='): return jinja_bool(jinja_equal(j, a, b));
    case JINJA_OP2('!', '='): return jinja_bool(!jinja_equal(j, a, b));
    case JINJA_OP_IN: return jinja_bool(jinja_contains(j, a, b));
    case JINJA_OP_NOT_IN: return jinja_bool(!jinja_contains(j, a, b));
    case '<': return jinja_bool(jinja_order(j, a, b, 0) < 0);
    case '>': return jinja_bool(jinja_order(j, a, b, 0) > 0);
    case JINJA_OP2('<', '='): return jinja_bool(jinja_order(j, a, b, 0) <= 0);
    case JINJA_OP2('>', '='): return jinja_bool(jinja_order(j, a, b, 0) >= 0);
    }
    if (op == '~' || (op == '+' && same && a->kind == JINJA_STRING))
        return jinja_concat(j, a, b, op == '+');
    if (op == '+' && same && a->kind == JINJA_LIST && a->is_tuple < JINJA_VIEW) {
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
