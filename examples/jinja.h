/* jinja.h - renders templates in the subset of Jinja that chat templates use, and records the
 * origin of every byte of the output. To copy, with jinja_words.h,
 * jinja_value.h, json.h and unicode.h.
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
 * are on. Known are the tags if, for (with a condition, break and continue), set (also of a block),
 * macro (with varargs and kwargs), call, filter and generation; expressions with the operators of
 * jinja_binary_op, slices without a step or [::-1], and no numbers with a point; and the filters,
 * tests, methods and functions of JINJA_WORDS. These are what published templates use. Anything
 * else is an error that names it and its place. A template can read only the values that it is
 * given. C99 or C++11. */
#ifndef JINJA_H
#define JINJA_H
#include "jinja_words.h"

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
    JINJA_BINARY,
    JINJA_CONDITION,
    JINJA_MAKE_LIST,
    JINJA_MAKE_DICT
} jinja_node_kind;

enum { JINJA_VARARGS = 1, JINJA_KWARGS = 2 }; /* variables that a macro reads */

/* A node of a parsed template. a, b, c and d are its parts, each of which may be the first of a
 * list; `next` is the next one in the list that contains this node. */
struct jinja_node {
    jinja_node_kind kind;
    int op;            /* operator; index of a word; is_tuple of a list; JINJA_VARARGS, .. */
    size_t at;         /* offset in the template */
    jinja_value value; /* a constant or text, or as string a name */
    jinja_node *a, *b, *c, *d, *next;
};

/* ---- tokens ---------------------------------------------------------------------------------- */
enum { JINJA_T_END, JINJA_T_NAME, JINJA_T_STRING, JINJA_T_INT, JINJA_T_OPERATOR };

static inline void jinja_skip_white(jinja *j)
{
    const jinja_value rest = jinja_string(j->source + j->position, j->size - j->position, 0);
    j->position = j->size - jinja_strip(rest, 1, 0, NULL).size;
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
        while (s[n] >= '0' && s[n] <= '9')
            n++;
        if (s[n] == '.' && s[n + 1] >= '0' && s[n + 1] <= '9')
            jinja_fail(j, "unknown: a number with a point");
        j->token = JINJA_T_INT;
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
        j->token = JINJA_T_OPERATOR;
        j->nesting += strchr("[({", *s) != NULL ? 1 : strchr("])}", *s) != NULL ? -1 : 0;
        if (j->nesting < 0)
            jinja_fail(j, "unexpected '%c'", *s);
    }
    j->token_size = n;
    j->position += n;
}

/* Returns the text of the token. */
static inline jinja_value jinja_lexeme(const jinja *j)
{
    return jinja_string(j->source + j->token_at, j->token_size, 0);
}

/* Returns whether the token is this name or operator. */
static inline int jinja_at(const jinja *j, const char *text)
{
    const jinja_value token = jinja_lexeme(j);
    return jinja_is(&token, text);
}

static inline int jinja_accept(jinja *j, const char *text)
{
    if (!jinja_at(j, text))
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
    const jinja_value found = jinja_lexeme(j);
    jinja_fail(j, "expected %s, found %.*s", expected, JINJA_SHORT(&found));
}

/* Moves past an operator of one character; `expected` is it in quotes. */
static inline void jinja_expect(jinja *j, const char *expected)
{
    const char text[2] = { expected[1], 0 };
    if (!jinja_accept(j, text))
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
    n->value = jinja_lexeme(j);
    jinja_next(j);
    return n;
}

/* Appends the text of a string's token, with its escapes. */
static inline void jinja_unescape(jinja *j, jinja_text *t)
{
    static const char from[] = "\n\\'\"abfnrtv", to[] = "\n\\'\"\a\b\f\n\r\t\v";
    const char *s = j->source + j->token_at + 1, *end = s + j->token_size - 2;
    for (; s < end; s++) {
        const char *p = *s == '\\' && s[1] != 0 ? strchr(from, s[1]) : NULL;
        if (*s == '\\' && s[1] != 0 && strchr("xuUN01234567", s[1]) != NULL)
            jinja_fail(j, "unknown escape \\%c in the string", s[1]);
        if (p != from) /* a backslash at the end of a line joins two lines */
            jinja_append(j, t, p != NULL ? to + (p - from) : s, 1, NULL, 0);
        s += p != NULL;
    }
}

static inline jinja_node *jinja_expression(jinja *j);
static inline jinja_node *jinja_unary(jinja *j, int with_filter);

/* Parses expressions, or if `simple` names, separated by commas. Returns a single expression, or a
 * tuple if there is a comma. `end` is the operator after an explicit tuple, which may be empty. */
static inline jinja_node *jinja_primary(jinja *j);
static inline jinja_node *jinja_tuple(jinja *j, int simple, const char *end)
{
    jinja_node *tuple = jinja_add(j, JINJA_MAKE_LIST, j->token_at, NULL, NULL), **last = &tuple->a;
    int commas = 0;
    while (j->token != JINJA_T_END && !jinja_at(j, end) && !(simple && jinja_at(j, "in")) &&
           !jinja_at(j, "=")) {
        *last = simple ? jinja_primary(j) : jinja_expression(j);
        last = &(*last)->next;
        if (!jinja_accept(j, ","))
            break;
        commas = 1;
    }
    tuple->op = 1;
    if (tuple->a == NULL && *end == 0)
        jinja_unexpected(j, "an expression");
    return commas || tuple->a == NULL ? tuple : tuple->a;
}

static inline jinja_node *jinja_primary(jinja *j)
{
    jinja_node *n = jinja_add(j, JINJA_CONSTANT, j->token_at, NULL, NULL), **last = &n->a;
    if (j->token == JINJA_T_NAME) {
        const jinja_value name = jinja_lexeme(j);
        const int word = jinja_listed("true True false False none None", 0, &name);
        if (word < 0)
            return jinja_name(j, JINJA_NAME, "a name");
        n->value = word < 4 ? jinja_bool(word < 2) : jinja_make(JINJA_NONE);
        jinja_next(j);
        return n;
    }
    if (j->token == JINJA_T_STRING) {
        jinja_text t = { NULL, NULL, 0, 0 };
        for (; j->token == JINJA_T_STRING; jinja_next(j))
            jinja_unescape(j, &t);
        n->value = jinja_string(t.text != NULL ? t.text : "", t.size, 0);
        return n;
    }
    if (j->token == JINJA_T_INT) {
        if (j->token_size > 18)
            jinja_unexpected(j, "a number of at most 18 digits");
        n->value = jinja_whole(strtoll(j->source + j->token_at, NULL, 10));
        jinja_next(j);
        return n;
    }
    if (jinja_accept(j, "(")) {
        n = jinja_tuple(j, 0, ")");
        jinja_expect(j, "')'");
        return n;
    }
    const int is_dict = jinja_at(j, "{");
    const char *end = is_dict ? "}" : "]";
    if (!jinja_accept(j, "[") && !jinja_accept(j, "{"))
        jinja_unexpected(j, "an expression");
    n->kind = is_dict ? JINJA_MAKE_DICT : JINJA_MAKE_LIST;
    while (!jinja_at(j, end)) {
        *last = jinja_expression(j);
        last = &(*last)->next;
        if (is_dict) {
            jinja_expect(j, "':'");
            *last = jinja_expression(j);
            last = &(*last)->next;
        }
        if (!jinja_accept(j, ",") && !jinja_at(j, end))
            jinja_unexpected(j, is_dict ? "',' or '}'" : "',' or ']'");
    }
    jinja_next(j);
    return n;
}

/* Parses arguments up to the closing parenthesis; a keyword is the argument's node b, and the
 * operator of arguments in a list or dict is op. */
static inline jinja_node *jinja_parse_arguments(jinja *j)
{
    jinja_node *first = NULL, **last = &first;
    while (!jinja_at(j, ")")) {
        jinja_node *n = jinja_add(j, JINJA_CONSTANT, j->token_at, NULL, NULL);
        n->op = jinja_accept(j, "*") ? '*' : jinja_accept(j, "**");
        n->a = jinja_expression(j);
        if (jinja_at(j, "=") && n->a->kind == JINJA_NAME && n->op == 0) {
            jinja_next(j);
            n->b = n->a;
            n->a = jinja_expression(j);
        }
        *last = n;
        last = &n->next;
        if (!jinja_accept(j, ",") && !jinja_at(j, ")"))
            jinja_unexpected(j, "',' or ')'");
    }
    jinja_next(j);
    return first;
}

static inline jinja_node *jinja_postfix(jinja *j, jinja_node *n)
{
    for (;;) {
        const size_t at = j->token_at;
        if (jinja_accept(j, ".")) {
            if (j->token == JINJA_T_INT) {
                n = jinja_add(j, JINJA_ITEM, at, n, jinja_primary(j));
                continue;
            }
            jinja_node *name = jinja_name(j, JINJA_ATTRIBUTE, "a name");
            name->a = n;
            n = name;
        } else if (jinja_accept(j, "[")) {
            jinja_node *first = !jinja_at(j, ":") ? jinja_expression(j) : NULL;
            n = jinja_add(j, jinja_at(j, ":") ? JINJA_SLICE : JINJA_ITEM, at, n, first);
            if (jinja_accept(j, ":")) {
                n->c = !jinja_at(j, "]") && !jinja_at(j, ":") ? jinja_expression(j) : NULL;
                n->op = jinja_accept(j, ":") && !jinja_at(j, "]");
                if (n->op && (first != NULL || n->c != NULL || !jinja_accept(j, "-") ||
                              jinja_expression(j)->value.whole != 1))
                    jinja_fail(j, "unknown: a slice with a step other than [::-1]");
            }
            jinja_expect(j, "']'");
        } else if (jinja_accept(j, "(")) {
            n = jinja_add(j, JINJA_CALL, at, n, jinja_parse_arguments(j));
        } else {
            return n;
        }
    }
}

/* Parses filters and tests of n. If `first` is nonzero, there is no | before the first filter. */
static inline jinja_node *jinja_filters(jinja *j, jinja_node *n, int first)
{
    for (;; first = 0) {
        const int filters = first || jinja_accept(j, "|");
        if (!filters && !jinja_accept(j, "is"))
            return n;
        const int negated = !filters && jinja_accept(j, "not");
        jinja_node *word = filters ? jinja_name(j, JINJA_FILTER, "the name of a filter")
                                   : jinja_name(j, JINJA_TEST, "the name of a test");
        word->a = n;
        word->op = jinja_word(&word->value, filters ? '|' : '?');
        word->b = jinja_accept(j, "(") ? jinja_parse_arguments(j) : NULL;
        n = negated ? jinja_add(j, JINJA_NOT, word->at, word, NULL) : word;
    }
}

static inline jinja_node *jinja_unary(jinja *j, int with_filter)
{
    const size_t at = j->token_at;
    jinja_node *n;
    jinja_enter(j);
    if (jinja_accept(j, "-"))
        n = jinja_add(j, JINJA_NEGATE, at, jinja_unary(j, 0), NULL);
    else
        n = jinja_primary(j);
    n = jinja_postfix(j, n);
    if (with_filter)
        n = jinja_filters(j, n, 0);
    j->depth--;
    return n;
}

/* Binary operators by level; the first level binds least. The empty one is `not`. */
static const char *const jinja_levels[] = { "or",  "and", "",       "in not == != <= >= < >",
                                            "+ -", "~",   "* % //", NULL };
enum { JINJA_L_NOT = 2, JINJA_L_COMPARE = 3 };

/* Moves past a binary operator of a level. Returns it, or 0. */
static inline int jinja_binary_op(jinja *j, int level)
{
    const jinja_value text = jinja_lexeme(j);
    if (jinja_at(j, "/") || jinja_at(j, "**"))
        jinja_fail(j, "unknown operator %.*s", JINJA_SHORT(&text));
    if (jinja_listed(jinja_levels[level], 0, &text) < 0)
        return 0;
    jinja_next(j);
    const int op = text.size == 1 ? text.text[0] : JINJA_OP2(text.text[0], text.text[1]);
    if (op == JINJA_OP_NOT_IN && !jinja_accept(j, "in"))
        jinja_unexpected(j, "in");
    return op;
}

/* Parses binary operators of a level and above, and the operator not. */
static inline jinja_node *jinja_binary(jinja *j, int level)
{
    size_t at = j->token_at;
    jinja_node *n;
    if (jinja_levels[level] == NULL)
        return jinja_unary(j, 1);
    if (level == JINJA_L_NOT && jinja_accept(j, "not")) {
        jinja_enter(j);
        n = jinja_add(j, JINJA_NOT, at, jinja_binary(j, level), NULL);
        j->depth--;
        return n;
    }
    n = jinja_binary(j, level + 1);
    for (int op, count = 0; at = j->token_at, (op = jinja_binary_op(j, level)) != 0; count++) {
        if (level == JINJA_L_COMPARE && count > 0)
            jinja_fail(j, "unknown: a chain of comparisons");
        n = jinja_add(j, JINJA_BINARY, at, n, jinja_binary(j, level + 1));
        n->op = op;
    }
    return n;
}

static inline jinja_node *jinja_expression(jinja *j)
{
    jinja_enter(j);
    jinja_node *n = jinja_binary(j, 0);
    for (;;) {
        const size_t at = j->token_at;
        if (!jinja_accept(j, "if"))
            break;
        n = jinja_add(j, JINJA_CONDITION, at, n, jinja_binary(j, 0));
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
    jinja_node *first = NULL, **n = &first;
    for (int more = 1; more; n = &(*n)->c) {
        *n = jinja_add(j, JINJA_IF, at, jinja_tuple(j, 0, ""), NULL);
        jinja_end_tag(j);
        (*n)->b = jinja_body(j, "elif else endif");
        at = j->token_at;
        more = jinja_accept(j, "elif");
    }
    if (jinja_accept(j, "else")) {
        jinja_end_tag(j);
        *n = jinja_body(j, "endif");
    }
    jinja_next(j);
    jinja_end_tag(j);
    return first;
}

/* Parses a loop: a is its target, b its values, c its condition, d its body. */
static inline jinja_node *jinja_parse_for(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_FOR, at, jinja_tuple(j, 1, ""), NULL);
    if (!jinja_accept(j, "in"))
        jinja_unexpected(j, "in");
    /* the condition of a loop is no conditional expression */
    n->b = jinja_binary(j, 0);
    n->c = jinja_accept(j, "if") ? jinja_expression(j) : NULL;
    n->d = jinja_block_of(j, "endfor");
    return n;
}

static inline jinja_node *jinja_parse_set(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_SET, at, jinja_tuple(j, 1, ""), NULL);
    if (n->a->kind == JINJA_NAME && jinja_accept(j, ".")) {
        jinja_node *name = jinja_name(j, JINJA_ATTRIBUTE, "a name");
        name->a = n->a;
        n->a = name;
    }
    if (jinja_accept(j, "=")) {
        n->b = jinja_tuple(j, 0, "");
        jinja_end_tag(j);
        return n;
    }
    n->kind = JINJA_CAPTURE;
    n->c = jinja_add(j, JINJA_CONSTANT, at, NULL, NULL); /* filters apply to this constant */
    n->b = jinja_filters(j, n->c, 0);
    n->d = jinja_block_of(j, "endset");
    return n;
}

/* Parses the parameters of a macro, after the opening parenthesis: names, as a of each node, or as b
 * those with a default value, a. */
static inline jinja_node *jinja_parse_parameters(jinja *j)
{
    jinja_node *first = jinja_parse_arguments(j);
    for (jinja_node *n = first; n != NULL; n = n->next)
        if (n->op != 0 || (n->b == NULL && n->a->kind != JINJA_NAME))
            jinja_fail(j, "expected the name of a parameter");
    return first;
}

static inline jinja_node *jinja_parse_macro(jinja *j, size_t at)
{
    jinja_node *n = jinja_name(j, JINJA_DEFINE, "a name");
    n->at = at;
    jinja_expect(j, "'('");
    n->a = jinja_parse_parameters(j);
    n->b = jinja_block_of(j, "endmacro");
    const jinja_value text = jinja_string(j->source + at, j->position - at, 0),
                      varargs = jinja_c_string("varargs"), kwargs = jinja_c_string("kwargs");
    n->op = (jinja_search(j, &text, 0, &varargs) != SIZE_MAX ? JINJA_VARARGS : 0) |
            (jinja_search(j, &text, 0, &kwargs) != SIZE_MAX ? JINJA_KWARGS : 0);
    return n;
}

/* Parses a call with a body, which is a macro named caller: a and b are as of a macro. */
static inline jinja_node *jinja_parse_call(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_CALL_BLOCK, at, NULL, NULL);
    n->value = jinja_c_string("caller");
    n->a = jinja_accept(j, "(") ? jinja_parse_parameters(j) : NULL;
    n->c = jinja_expression(j);
    if (n->c->kind != JINJA_CALL)
        jinja_fail(j, "expected a call of a macro");
    n->b = jinja_block_of(j, "endcall");
    return n;
}

/* Parses {% filter .. %}: a block whose text is the output of filters. */
static inline jinja_node *jinja_parse_filter(jinja *j, size_t at)
{
    jinja_node *n = jinja_add(j, JINJA_CAPTURE, at, NULL, NULL);
    n->c = jinja_add(j, JINJA_CONSTANT, at, NULL, NULL);
    n->b = jinja_filters(j, n->c, 1);
    n->d = jinja_block_of(j, "endfilter");
    return n;
}

static inline jinja_node *jinja_statement(jinja *j, size_t at)
{
    static const char known[] = "if for set macro call filter generation break continue";
    static jinja_node *(*const parse[])(
        jinja * j, size_t at) = { jinja_parse_if,    jinja_parse_for,  jinja_parse_set,
                                  jinja_parse_macro, jinja_parse_call, jinja_parse_filter };
    enum { PARSED = sizeof parse / sizeof *parse };
    const jinja_value name = jinja_lexeme(j);
    const int tag = jinja_listed(known, 0, &name);
    if (tag < 0)
        jinja_fail(j, "unknown tag {%% %.*s %%}; known are %s", JINJA_SHORT(&name), known);
    jinja_next(j);
    if (tag < PARSED)
        return parse[tag](j, at);
    jinja_node *n =
        jinja_add(j, (jinja_node_kind)(JINJA_GENERATION + tag - PARSED), at, NULL, NULL);
    if (n->kind == JINJA_GENERATION)
        n->a = jinja_block_of(j, "endgeneration");
    else
        jinja_end_tag(j);
    return n;
}

/* Parses text up to the next tag, and omits white space at its end as the tag demands. Returns its
 * node, or NULL if it is empty. The position is then that of the tag. */
static inline jinja_node *jinja_parse_text(jinja *j)
{
    const size_t first = j->position;
    size_t end = first;
    while (end < j->size &&
           (j->source[end] != '{' ||
            (j->source[end + 1] != '{' && j->source[end + 1] != '%' && j->source[end + 1] != '#')))
        end++;
    j->position = end;
    jinja_value text = jinja_string(j->source + first, end - first, 0);
    if (end < j->size && j->source[end + 2] == '-') {
        text = jinja_strip(text, 0, 1, NULL);
    } else if (end < j->size && j->source[end + 1] != '{' && j->source[end + 2] != '+') {
        size_t line = text.size;
        while (line > 0 && text.text[line - 1] != '\n')
            line--;
        const jinja_value blanks = jinja_part(text, line, text.size - line);
        if (first + line == 0 || j->source[first + line - 1] == '\n')
            text.size -= jinja_strip(blanks, 1, 0, NULL).size == 0 ? blanks.size : 0;
    }
    if (text.size == 0)
        return NULL;
    jinja_node *node = jinja_add(j, JINJA_TEXT, first, NULL, NULL);
    node->value = text;
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
            *last = jinja_add(j, JINJA_OUTPUT, at, jinja_tuple(j, 0, ""), NULL);
            jinja_end_tag(j);
        } else {
            const jinja_value name = jinja_lexeme(j);
            if (ends != NULL && j->token == JINJA_T_NAME && jinja_listed(ends, 0, &name) >= 0) {
                j->depth--;
                return first;
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
static inline jinja_value jinja_eval(jinja *j, const jinja_node *n, jinja_scope *s);
static inline int jinja_exec(jinja *j, const jinja_node *n, jinja_scope *s);

static inline void jinja_eval_arguments(jinja *j, const jinja_node *n, jinja_scope *s,
                                        jinja_arguments *to)
{
    to->count = to->given = 0;
    for (; n != NULL; n = n->next) {
        const jinja_value v = jinja_eval(j, n->a, s);
        if (n->op == 0) {
            jinja_add_argument(j, to, n->b != NULL ? &n->b->value : NULL, v);
            continue;
        }
        const int is_dict = n->op != '*';
        if (is_dict && v.kind != JINJA_DICT)
            jinja_mismatch(j, "arguments with **", &v);
        const jinja_value all = jinja_iterate(j, &v);
        for (size_t i = 0; i < all.size; i++)
            jinja_add_argument(j, to, is_dict ? &all.items[i] : NULL,
                               is_dict ? v.items[2 * i + 1] : all.items[i]);
    }
}

/* Executes nodes with their output in a text, which is returned. */
static inline jinja_value jinja_captured(jinja *j, const jinja_node *body, jinja_scope *s)
{
    jinja_text t = { NULL, NULL, 0, 0 }, *before = j->out;
    j->out = &t;
    jinja_exec(j, body, s);
    j->out = before;
    return jinja_text_value(&t);
}

/* Calls a macro. Arguments beyond its parameters are its varargs and kwargs, if it reads them.
 * `caller` is the body of a call block, or NULL. */
static inline jinja_value jinja_call_macro(jinja *j, const jinja_value *macro,
                                           const jinja_arguments *a, const jinja_value *caller)
{
    jinja_scope *s = jinja_new_scope(j, macro->scope);
    jinja_value lists[2] = { jinja_list(j, JINJA_LIST, a->count),
                             jinja_list(j, JINJA_DICT, a->count) };
    char used[JINJA_ARGUMENTS + 1] = { 0 };
    size_t i = 0;
    lists[0].size = lists[1].size = 0;
    lists[0].is_tuple = JINJA_TUPLE;
    for (const jinja_node *p = macro->node->a; p != NULL; p = p->next, i++) {
        const jinja_value name = p->b != NULL ? p->b->value : p->a->value;
        const size_t k = jinja_find_argument(a, i, &name);
        used[k] = 1;
        jinja_assign(j, s, name,
                     k < a->count   ? a->at[k]
                     : p->b != NULL ? jinja_eval(j, p->a, s)
                                    : jinja_undefined(name.text, name.size));
    }
    for (size_t k = 0; k < a->count; k++) {
        jinja_value *list = &lists[k >= a->given];
        if (used[k])
            continue;
        if ((macro->node->op & (k < a->given ? JINJA_VARARGS : JINJA_KWARGS)) == 0)
            jinja_fail(j, "the macro %.*s takes other arguments", JINJA_SHORT(&macro->node->value));
        if (k >= a->given)
            list->items[2 * list->size] = a->names[k];
        list->items[k < a->given ? list->size : 2 * list->size + 1] = a->at[k];
        list->size++;
    }
    jinja_assign(j, s, jinja_c_string("varargs"), lists[0]);
    jinja_assign(j, s, jinja_c_string("kwargs"), lists[1]);
    if (caller != NULL)
        jinja_assign(j, s, jinja_c_string("caller"), *caller);
    return jinja_captured(j, macro->node->b, s);
}

/* Evaluates a call of a method, macro or function. `caller` is the body of a call block, or NULL. */
static inline jinja_value jinja_call(jinja *j, const jinja_node *n, jinja_scope *s,
                                     const jinja_value *caller)
{
    const jinja_value *name = &n->a->value;
    jinja_value of = jinja_make(JINJA_NONE), callee;
    jinja_arguments a;
    if (n->a->kind == JINJA_ATTRIBUTE) {
        of = jinja_eval(j, n->a->a, s);
        callee = jinja_attribute(j, &of, name, 1);
    } else {
        callee = jinja_eval(j, n->a, s);
    }
    jinja_eval_arguments(j, n->b, s, &a);
    j->at = n->a->kind == JINJA_ATTRIBUTE ? n->a->at : n->at;
    if (callee.kind == JINJA_MACRO)
        return jinja_call_macro(j, &callee, &a, caller);
    if (callee.kind == JINJA_FUNCTION)
        return jinja_apply(j, (int)callee.whole, '.', &of, &a);
    if (n->a->kind == JINJA_ATTRIBUTE)
        jinja_fail(j, "unknown method '%.*s' of %s", JINJA_SHORT(name), jinja_kind_name(of.kind));
    jinja_fail(j, "unknown function '%.*s'", JINJA_SHORT(name));
}

static inline jinja_value jinja_eval_list(jinja *j, const jinja_node *n, jinja_scope *s)
{
    const int is_dict = n->kind == JINJA_MAKE_DICT;
    size_t count = 0;
    for (const jinja_node *i = n->a; i != NULL; i = i->next)
        count++;
    jinja_value to = jinja_list(j, is_dict ? JINJA_DICT : JINJA_LIST, is_dict ? count / 2 : count);
    to.is_tuple = n->op;
    to.size = 0;
    for (const jinja_node *i = n->a; i != NULL; i = i->next) {
        const jinja_value item = jinja_eval(j, i, s);
        if (!is_dict) {
            to.items[to.size++] = item;
            continue;
        }
        i = i->next;
        const jinja_value value = jinja_eval(j, i, s), *found = jinja_find(j, &to, &item);
        const size_t at = found != NULL ? (size_t)(found - to.items) : 2 * to.size + 1;
        if (found == NULL)
            to.items[2 * to.size++] = item;
        to.items[at] = value; /* of equal keys the last value counts */
    }
    return to;
}

static inline jinja_value jinja_eval_inner(jinja *j, const jinja_node *n, jinja_scope *s)
{
    jinja_value a, b, c;
    jinja_arguments arguments;
    const jinja_value *found;
    char use;
    switch (n->kind) {
    case JINJA_CONSTANT: return n->value;
    case JINJA_NAME:
        found = jinja_look_up(s, &n->value);
        if (found != NULL)
            return *found;
        a = jinja_make(JINJA_FUNCTION);
        a.whole = jinja_word(&n->value, '(');
        return a.whole >= 0 ? a : jinja_undefined(n->value.text, n->value.size);
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
        b = n->b != NULL ? jinja_eval(j, n->b, s) : jinja_make(JINJA_NONE);
        c = n->c != NULL ? jinja_eval(j, n->c, s) : jinja_make(JINJA_NONE);
        j->at = n->at;
        return jinja_slice(j, &a, &b, &c, n->op);
    case JINJA_FILTER:
    case JINJA_TEST:
        jinja_eval_arguments(j, n->b, s, &arguments);
        j->at = n->at;
        use = n->kind == JINJA_FILTER ? '|' : '?';
        return jinja_apply(j, jinja_need_word(j, n->op, use, &n->value), use, &a, &arguments);
    case JINJA_NOT: return jinja_bool(!jinja_is_true(&a));
    case JINJA_NEGATE:
        b = jinja_whole(0);
        return a.kind == JINJA_FLOAT ? jinja_real(-a.real) : jinja_arithmetic(j, '-', &b, &a);
    default: break; /* JINJA_BINARY */
    }
    if (n->op == JINJA_OP_AND || n->op == JINJA_OP_OR)
        return jinja_is_true(&a) == (n->op == JINJA_OP_OR) ? a : jinja_eval(j, n->b, s);
    b = jinja_eval(j, n->b, s);
    j->at = n->at;
    return jinja_operate(j, n->op, &a, &b);
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

/* Sets the attributes of a loop at item i. */
static inline void jinja_set_loop(jinja *j, jinja_scope *loop, const jinja_value *all, size_t i)
{
    const jinja_value none = jinja_undefined("the item", 8);
    const int64_t at = (int64_t)i, n = (int64_t)all->size;
    const struct {
        const char *name;
        jinja_value value;
    } set[] = { { "index", jinja_whole(at + 1) },
                { "index0", jinja_whole(at) },
                { "revindex", jinja_whole(n - at) },
                { "revindex0", jinja_whole(n - at - 1) },
                { "first", jinja_bool(at == 0) },
                { "last", jinja_bool(at + 1 == n) },
                { "length", jinja_whole(n) },
                { "previtem", at > 0 ? all->items[i - 1] : none },
                { "nextitem", at + 1 < n ? all->items[i + 1] : none } };
    for (size_t k = 0; k < sizeof set / sizeof *set; k++)
        jinja_assign(j, loop, jinja_c_string(set[k].name), set[k].value);
}

static inline void jinja_exec_for(jinja *j, const jinja_node *n, jinja_scope *s)
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
    loop.scope = jinja_new_scope(j, NULL);
    for (size_t i = 0; i < all.size; i++) {
        jinja_scope *inner = jinja_new_scope(j, s);
        jinja_step(j, 1);
        jinja_set_loop(j, loop.scope, &all, i);
        jinja_assign(j, inner, jinja_c_string("loop"), loop);
        jinja_assign_to(j, n->a, inner, &all.items[i]);
        if (jinja_exec(j, n->d, inner) == JINJA_BREAKS)
            break;
    }
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
        case JINJA_FOR: jinja_exec_for(j, n, s); break;
        case JINJA_SET:
            v = jinja_eval(j, n->b, s);
            jinja_assign_to(j, n->a, s, &v);
            break;
        case JINJA_CAPTURE:
            n->c->value = jinja_captured(j, n->d, jinja_new_scope(j, s));
            v = jinja_eval(j, n->b, s);
            if (n->a != NULL)
                jinja_assign_to(j, n->a, s, &v);
            else
                jinja_print(j, j->out, &v);
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
