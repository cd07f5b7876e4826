/* tokenizer_regex.h - the regular expressions with which tokenizers split text, for tokenizer.h. To
 * copy, with json.h and unicode.h. C99 or C++11.
 *
 *     const char *error;
 *     bpe_regex *r = bpe_regex_new("\\p{N}{1,3}|\\s+(?!\\S)", 21, &error); // NULL if it is not supported
 *     const char *end = bpe_regex_match(r, text, text + at, text + size);  // NULL if none begins at `at`
 *     free(r);
 *
 * Matches as Oniguruma does: alternatives from left to right, the first that matches counts. Supported:
 *   characters; \r \n \t; a backslash before a character that is no letter or digit; [..] and [^..] with
 *   ranges; \s and \S; \d; \p{L} \p{Lu} \p{Ll} \p{Lt} \p{Lm} \p{Lo} \p{M} \p{N} \p{Nd} \p{P} \p{S}; \A and
 *   \z; (..), (?:..) and (?i:..), also with a ? after them; (?!x) and (?=x) for one character x; and the
 *   quantifiers ? * + {n} {n,} {n,m} of a character, and ?+ *+ ++, which give back nothing.
 * An expression without repeated groups, as this one, needs no recursion: it is compiled to a list of
 * operations without loops, and the matcher keeps at most one point to return to for each operation. Whether
 * the rest of an expression matches at a place depends only on the rest and the place. So the expression
 * remembers, for each quantifier, the places from which the rest after it did not match, and where the last
 * run of its characters ends: all matches in a text together take time in proportion to the text's length,
 * also with many quantifiers (a*a*b). Only one thread may use an expression at a time. */
#ifndef TOKENIZER_REGEX_H
#define TOKENIZER_REGEX_H
#include "json.h"
#include "unicode.h"

enum {
    BPE_OPS = 256,
    BPE_SETS = 128,
    BPE_RANGES = 128,
    BPE_REGEX_DEPTH = 8, /* groups within groups */
    BPE_REGEX_WAYS = 256
};

typedef enum {
    BPE_OP_MATCH, /* the expression has matched */
    BPE_OP_RUN,   /* `min` to `max` characters of a set, as many as possible */
    BPE_OP_SPLIT, /* continues with the next operation, and if that fails, at `to` unless it is -1 */
    BPE_OP_JUMP,  /* continues at `to` */
    BPE_OP_LOOK, /* succeeds if a character of a set follows (min = 1), or if none does (min = 0) */
    BPE_OP_START, /* succeeds at the start of the text */
    BPE_OP_END    /* succeeds at the end of the text */
} bpe_op_kind;

typedef struct {
    bpe_op_kind kind;
    int set, to, possessive;
    int last; /* nonzero if the expression has matched after this operation */
    size_t min, max;
} bpe_op;

/* A set of characters: those of some Unicode categories, and ranges of characters. */
typedef struct {
    uint32_t categories;      /* bit k: the characters with unicode_category k */
    int first, count;         /* ranges of this set: ranges[first] to ranges[first + count - 1] */
    int negated;              /* if nonzero, the set has all other characters */
    unsigned char ascii[128]; /* whether each ASCII character is in the set */
} bpe_set;

/* What earlier matches in the text found out about an operation BPE_OP_RUN. */
typedef struct {
    /* if the run has no limit: all characters from run to run_end are in its set, and the next one is not */
    const char *run, *run_end;
    /* the rest of the expression after the run matches at no place from low to high; low is NULL if no
     * place is known */
    const char *low, *high;
} bpe_regex_memo;

typedef struct {
    bpe_op ops[BPE_OPS];
    bpe_regex_memo memo[BPE_OPS];
    const char *text_end; /* end of the text that `memo` belongs to */
    size_t steps;         /* operations and characters that all matches tried, for tests */
    bpe_set sets[BPE_SETS];
    uint32_t ranges[BPE_RANGES][2];
    int op_count, set_count, range_count;
    int anchored; /* nonzero if the expression has \A */
} bpe_regex;

/* ---- matching -------------------------------------------------------------------------------- */
static inline int bpe_set_has(const bpe_regex *r, const bpe_set *set, uint32_t c)
{
    int has = set->categories >> unicode_category(c) & 1;
    for (int i = set->first; i < set->first + set->count; i++)
        has |= c >= r->ranges[i][0] && c <= r->ranges[i][1];
    return has != set->negated;
}

/* Returns the length in bytes of the character at s if it is in the set, else 0. */
static inline size_t bpe_set_at(const bpe_regex *r, int set, const char *s, const char *end)
{
    uint32_t c = 0;
    if (s >= end)
        return 0;
    if ((unsigned char)*s < 128)
        return r->sets[set].ascii[(unsigned char)*s];
    const size_t size = (size_t)json_utf8(s, (size_t)(end - s), &c);
    return bpe_set_has(r, &r->sets[set], c) ? size : 0;
}

/* Must be called before the first match in a text, unless its end is at another address than that of the
 * text before. */
static inline void bpe_regex_forget(bpe_regex *r)
{
    memset(r->memo, 0, (size_t)r->op_count * sizeof *r->memo);
}

/* Returns the end of the run of characters at s, and sets *low to the first place where it may end; NULL if
 * the run is too short. */
static inline const char *bpe_run_of(bpe_regex *r, int op, const char *s, const char *end,
                                     const char **low)
{
    const bpe_op *o = &r->ops[op];
    bpe_regex_memo *m = &r->memo[op];
    const char *at = s;
    size_t count = 0, size;
    int known = 0;
    for (; count < o->max && !known; at += size, count++) {
        if (count == o->min)
            *low = at;
        known = count >= o->min && m->run != NULL && at >= m->run && at <= m->run_end;
        size = known ? (size_t)(m->run_end - at) : bpe_set_at(r, o->set, at, end);
        if (size == 0)
            break;
    }
    r->steps += count;
    if (o->max == SIZE_MAX && at > s) {
        m->run = known && m->run < s ? m->run : s;
        m->run_end = at;
    }
    if (count == o->min)
        *low = at;
    return count >= o->min ? at : NULL;
}

/* Returns the last place from low to `at` from which the rest after the run is not known to fail, or NULL. */
static inline const char *bpe_run_last(const bpe_regex_memo *m, const char *low, const char *at)
{
    if (m->low == NULL || at < m->low || at > m->high)
        return at;
    if (m->low <= low)
        return NULL;
    at = m->low;
    while (((unsigned char)*--at & 0xc0) == 0x80)
        ;
    return at;
}

/* Remembers that the rest after the run matches at no place from low to high. */
static inline void bpe_run_failed(bpe_regex_memo *m, const char *low, const char *high)
{
    const int joins = m->low != NULL && low <= m->high && high >= m->low;
    m->low = joins && m->low < low ? m->low : low;
    m->high = joins && m->high > high ? m->high : high;
}

/* A place to return to if the rest of the expression does not match. */
typedef struct {
    int op; /* where to continue */
    /* after a run: it may end from low to high, and the end `at` is being tried; else low is NULL */
    const char *low, *at, *high;
} bpe_regex_point;

/* After a failure, sets *op and *s to the next operation and place to try. Returns 0 if none is left. */
static inline int bpe_regex_back(bpe_regex *r, bpe_regex_point *points, int *depth, int *op,
                                 const char **s)
{
    while (*depth > 0) {
        bpe_regex_point *p = &points[*depth - 1];
        bpe_regex_memo *m = &r->memo[p->op - 1];
        const char *at = p->at;
        *op = p->op;
        *s = at;
        if (p->low == NULL) {
            --*depth;
            return 1;
        }
        if (at > p->low) {
            while (((unsigned char)*--at & 0xc0) == 0x80)
                ;
            *s = p->at = at = bpe_run_last(m, p->low, at);
            if (at != NULL)
                return 1;
        }
        bpe_run_failed(m, p->low, p->high);
        --*depth;
    }
    return 0;
}

/* Returns the end of the match that begins at s, or NULL if the expression does not match there. The
 * text, valid UTF-8, is from `begin` to `end`. */
static inline const char *bpe_regex_match(bpe_regex *r, const char *begin, const char *s,
                                          const char *end)
{
    bpe_regex_point points[BPE_OPS];
    int depth = 0, at_op = 0;
    if (r->text_end != end)
        bpe_regex_forget(r);
    r->text_end = end;
    for (;;) {
        const bpe_op *o = &r->ops[at_op];
        bpe_regex_point *p = &points[depth];
        int holds = 1;
        r->steps++;
        switch (o->kind) {
        case BPE_OP_MATCH: return s;
        case BPE_OP_JUMP: at_op = o->to; continue;
        case BPE_OP_START: holds = s == begin; break;
        case BPE_OP_END: holds = s == end; break;
        case BPE_OP_LOOK: holds = (bpe_set_at(r, o->set, s, end) > 0) == (o->min > 0); break;
        case BPE_OP_SPLIT:
            if (o->to >= 0 && o[1].kind == BPE_OP_RUN && o[1].min > 0 &&
                bpe_set_at(r, o[1].set, s, end) == 0) { /* the next operation would fail */
                at_op = o->to;
                continue;
            }
            p->op = o->to;
            p->low = NULL;
            p->at = s;
            depth += o->to >= 0;
            break;
        case BPE_OP_RUN:
            if (o->last) { /* no shorter run is tried */
                size_t count = 0, size;
                for (; count < o->max && (size = bpe_set_at(r, o->set, s, end)) > 0; s += size)
                    count++;
                r->steps += count;
                holds = count >= o->min;
                break;
            }
            p->op = at_op + 1;
            p->at = p->high = bpe_run_of(r, at_op, s, end, &p->low);
            if (p->high != NULL && o->max > o->min) {
                p->low = o->possessive ? p->high : p->low;
                p->at = bpe_run_last(&r->memo[at_op], p->low, p->high);
                depth += p->at != NULL;
            }
            s = p->at;
            holds = s != NULL;
        }
        if (holds)
            at_op++;
        else if (!bpe_regex_back(r, points, &depth, &at_op, &s))
            return NULL;
    }
}

/* Returns the start of the first match in the text from s on, and sets *match_end; returns `end` if there
 * is no match. Matches of no characters do not count. */
static inline const char *bpe_regex_find(bpe_regex *r, const char *begin, const char *s,
                                         const char *end, const char **match_end)
{
    for (; s < end; s++) {
        if (((unsigned char)*s & 0xc0) == 0x80)
            continue;
        *match_end = bpe_regex_match(r, begin, s, end);
        if (*match_end != NULL && *match_end > s)
            return s;
    }
    return *match_end = end;
}

/* ---- compiling ------------------------------------------------------------------------------- */
typedef struct {
    bpe_regex *r;
    const char *s, *end;
    int fold, depth; /* fold: nonzero within (?i:..) */
    /* of the current sequence: in how many ways its groups may be tried; a limit limits the time of a match */
    double ways;
    const char *error;
} bpe_regex_parser;

static inline int bpe_regex_fail(bpe_regex_parser *p, const char *error)
{
    p->error = p->error == NULL ? error : p->error;
    p->s = p->end;
    return 0;
}

/* Appends an operation. Returns its number. */
static inline int bpe_add_op(bpe_regex_parser *p, bpe_op_kind kind, int set, size_t min, size_t max)
{
    if (p->r->op_count == BPE_OPS)
        return bpe_regex_fail(p, "it is too long");
    bpe_op *o = &p->r->ops[p->r->op_count];
    o->kind = kind;
    o->set = set;
    o->to = -1;
    o->possessive = 0;
    o->min = min;
    o->max = max;
    return p->r->op_count++;
}

/* Adds a range to the newest set and, within (?i:..), the other case of an ASCII letter. */
static inline void bpe_add_range(bpe_regex_parser *p, uint32_t low, uint32_t high)
{
    bpe_regex *r = p->r;
    const int letter = p->fold && (low | 32) - 'a' < 26;
    if (p->fold && (low >= 128 || (high != low && (letter || (high | 32) - 'a' < 26))))
        bpe_regex_fail(p, "(?i: with other than single ASCII characters");
    if (r->range_count + 3 > BPE_RANGES) {
        bpe_regex_fail(p, "it has too many characters");
        return;
    }
    for (int i = 0; i < 1 + 2 * letter; i++) {
        uint32_t c = i == 0 ? low : i == 1 ? low ^ 32 : (low | 32) == 's' ? 0x17f : 0x212a;
        if (i == 2 && (low | 32) != 's' && (low | 32) != 'k')
            continue;
        r->ranges[r->range_count][0] = c;
        r->ranges[r->range_count++][1] = i == 0 ? high : c;
        r->sets[r->set_count - 1].count++;
    }
}

/* Reads the character at p->s, after a backslash if `escaped`. */
static inline uint32_t bpe_regex_character(bpe_regex_parser *p, int escaped)
{
    uint32_t c = 0;
    if (p->s >= p->end)
        return (uint32_t)bpe_regex_fail(p, "it ends too early");
    const int size = json_utf8(p->s, (size_t)(p->end - p->s), &c);
    if (size < 0)
        return (uint32_t)bpe_regex_fail(p, "it is not UTF-8");
    p->s += size;
    if (escaped && c < 128 && ((c | 32) - 'a' < 26 || c - '0' < 10)) {
        if (c != 'r' && c != 'n' && c != 't')
            return (uint32_t)bpe_regex_fail(
                p, "a backslash before a letter or digit other than r n t s S d p A z");
        c = c == 'r' ? '\r' : c == 'n' ? '\n' : '\t';
    }
    return c;
}

/* Reads \s, \d or \p{..} and adds its categories to the newest set. Returns 0 if something else is at
 * p->s. */
static inline int bpe_regex_categories(bpe_regex_parser *p)
{
    static const struct {
        const char *name;
        uint32_t categories;
    } known[] = { { "\\s", 1u << UNICODE_SPACES }, { "\\d", 1u << UNICODE_ND },
                  { "\\p{Lu}", 1u << UNICODE_LU }, { "\\p{Ll}", 1u << UNICODE_LL },
                  { "\\p{Lt}", 1u << UNICODE_LT }, { "\\p{Lm}", 1u << UNICODE_LM },
                  { "\\p{Lo}", 1u << UNICODE_LO }, { "\\p{L}", UNICODE_LETTERS },
                  { "\\p{M}", 1u << UNICODE_M },   { "\\p{Nd}", 1u << UNICODE_ND },
                  { "\\p{N}", UNICODE_NUMBERS },   { "\\p{P}", 1u << UNICODE_P },
                  { "\\p{S}", 1u << UNICODE_S } };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = strlen(known[i].name);
        if ((size_t)(p->end - p->s) >= n && memcmp(p->s, known[i].name, n) == 0) {
            p->r->sets[p->r->set_count - 1].categories |= known[i].categories;
            p->s += n;
            return 1;
        }
    }
    return 0;
}

/* Reads one character or a set of characters. Returns the number of its set. */
static inline int bpe_regex_set(bpe_regex_parser *p)
{
    bpe_regex *r = p->r;
    if (r->set_count == BPE_SETS)
        return bpe_regex_fail(p, "it is too long");
    bpe_set *set = &r->sets[r->set_count++];
    set->first = r->range_count;
    if (*p->s == '[') {
        p->s++;
        set->negated = p->s < p->end && *p->s == '^';
        p->s += set->negated;
        do {
            if (bpe_regex_categories(p))
                continue;
            if (p->s < p->end && *p->s == '[')
                return bpe_regex_fail(p, "[ within [..]");
            int escaped = p->s < p->end && *p->s == '\\';
            p->s += escaped;
            const uint32_t low = bpe_regex_character(p, escaped);
            uint32_t high = low;
            if (p->end - p->s >= 2 && *p->s == '-' && p->s[1] != ']') {
                escaped = p->s[1] == '\\';
                p->s += 1 + escaped;
                high = bpe_regex_character(p, escaped);
            }
            if (high < low)
                return bpe_regex_fail(p, "a range from a larger to a smaller character");
            if (p->error == NULL)
                bpe_add_range(p, low, high);
        } while (p->s < p->end && *p->s != ']');
        if (p->s == p->end)
            return bpe_regex_fail(p, "a [ without ]");
        p->s++;
    } else if (p->end - p->s >= 2 && p->s[0] == '\\' && p->s[1] == 'S') {
        set->negated = 1;
        set->categories = 1u << UNICODE_SPACES;
        p->s += 2;
    } else if (!bpe_regex_categories(p)) {
        const int escaped = *p->s == '\\';
        if (!escaped && strchr(".^$*+?{", *p->s) != NULL)
            return bpe_regex_fail(p, "one of . ^ $ * + ? { in this place");
        p->s += escaped;
        const uint32_t c = bpe_regex_character(p, escaped);
        if (p->error == NULL)
            bpe_add_range(p, c, c);
    }
    for (uint32_t c = 0; c < 128; c++)
        set->ascii[c] = (unsigned char)bpe_set_has(r, set, c);
    return r->set_count - 1;
}

/* Reads a number of at most 4 digits. */
static inline size_t bpe_regex_number(bpe_regex_parser *p, size_t fallback)
{
    size_t n = 0;
    const char *first = p->s;
    while (p->s < p->end && *p->s >= '0' && *p->s <= '9' && p->s - first < 5)
        n = 10 * n + (size_t)(*p->s++ - '0');
    if (p->s - first > 4)
        bpe_regex_fail(p, "a number of more than 4 digits");
    return p->s > first ? n : fallback;
}

/* Reads the quantifier of the operation `op`, if there is one. */
static inline void bpe_regex_quantifier(bpe_regex_parser *p, int op)
{
    bpe_op *o = &p->r->ops[op];
    const char c = p->s < p->end ? *p->s : 0;
    if (c == '?' || c == '*' || c == '+') {
        p->s++;
        o->min = c == '+';
        o->max = c == '?' ? 1 : SIZE_MAX;
        o->possessive = p->s < p->end && *p->s == '+';
        p->s += o->possessive;
    } else if (c == '{') {
        p->s++;
        o->min = bpe_regex_number(p, 0);
        o->max = o->min;
        if (p->s < p->end && *p->s == ',') {
            p->s++;
            o->max = bpe_regex_number(p, SIZE_MAX);
        }
        if (p->s == p->end || *p->s != '}' || o->max < o->min) {
            bpe_regex_fail(p, "a { that does not begin {n}, {n,} or {n,m}");
            return;
        }
        p->s++;
    }
    if (c != 0 && strchr("?*+{", c) != NULL && p->s < p->end && strchr("?*+{", *p->s) != NULL)
        bpe_regex_fail(p, "two quantifiers in a row");
}

static inline void bpe_regex_alternatives(bpe_regex_parser *p);

/* Reads what follows a (. */
static inline void bpe_regex_group(bpe_regex_parser *p)
{
    const int fold = p->fold,
              look = p->end - p->s > 2 && p->s[0] == '?' && (p->s[1] == '!' || p->s[1] == '=');
    const double ways = p->ways;
    const int begin = look ? 0 : bpe_add_op(p, BPE_OP_SPLIT, 0, 0, 0);
    if (look) {
        const size_t must = p->s[1] == '=';
        p->s += 2;
        p->ways = 1;
        bpe_add_op(p, BPE_OP_LOOK, bpe_regex_set(p), must, 0);
    } else {
        if (p->end - p->s >= 2 && memcmp(p->s, "?:", 2) == 0)
            p->s += 2;
        else if (p->end - p->s >= 3 && memcmp(p->s, "?i:", 3) == 0)
            p->fold = (p->s += 3) != NULL;
        else if (p->s < p->end && *p->s == '?')
            bpe_regex_fail(p, "(? of another kind than (?: (?i: (?! (?=");
        if (p->depth++ == BPE_REGEX_DEPTH)
            bpe_regex_fail(p, "groups within too many groups");
        bpe_regex_alternatives(p);
        p->depth--;
        p->fold = fold;
    }

    if (p->s == p->end || *p->s != ')') {
        bpe_regex_fail(p, look ? "(?! or (?= with more than one character" : "a ( without )");
        return;
    }
    p->s++;
    if (!look && p->s < p->end && *p->s == '?') {
        p->s++;
        p->r->ops[begin].to = p->r->op_count;
        p->ways++;
    }
    p->ways *= ways;
    if (p->s < p->end && strchr("?*+{", *p->s) != NULL)
        bpe_regex_fail(p, "a group that is repeated");
}

/* Reads alternatives up to ) or the end. Each begins with a SPLIT to the next one, and all but the last end
 * with a JUMP to the end. */
static inline void bpe_regex_alternatives(bpe_regex_parser *p)
{
    bpe_regex *r = p->r;
    double ways = 0;
    int jump = -1; /* the last of a list of JUMPs, each with the number of the one before in `to` */
    for (;;) {
        const int split = bpe_add_op(p, BPE_OP_SPLIT, 0, 0, 0);
        p->ways = 1;
        while (p->s < p->end && *p->s != '|' && *p->s != ')') {
            if (*p->s == '(') {
                p->s++;
                bpe_regex_group(p);
            } else if (p->end - p->s >= 2 && *p->s == '\\' && (p->s[1] == 'A' || p->s[1] == 'z')) {
                r->anchored |= p->s[1] == 'A';
                bpe_add_op(p, p->s[1] == 'A' ? BPE_OP_START : BPE_OP_END, 0, 0, 0);
                p->s += 2;
            } else {
                bpe_regex_quantifier(p, bpe_add_op(p, BPE_OP_RUN, bpe_regex_set(p), 1, 1));
            }
        }
        if (p->ways > BPE_REGEX_WAYS)
            bpe_regex_fail(p, "a sequence with so many groups that a match could take too long");
        ways += p->ways;
        if (p->s == p->end || *p->s != '|')
            break;
        p->s++;
        const int next = bpe_add_op(p, BPE_OP_JUMP, 0, 0, 0);
        r->ops[next].to = jump;
        jump = next;
        r->ops[split].to = r->op_count;
    }
    p->ways = ways;
    while (jump >= 0) {
        const int before = p->error == NULL ? r->ops[jump].to : -1;
        r->ops[jump].to = r->op_count;
        jump = before;
    }
}

/* Compiles an expression of n bytes. Returns it, to be freed with free(); or NULL, and sets *error to the
 * reason: a part that is not supported, or NULL if out of memory. */
static inline bpe_regex *bpe_regex_new(const char *expression, size_t n, const char **error)
{
    bpe_regex *r = (bpe_regex *)calloc(1, sizeof *r);
    bpe_regex_parser p = { r, expression, expression + n, 0, 0, 1, NULL };
    *error = NULL;
    if (r == NULL)
        return NULL;
    bpe_regex_alternatives(&p);
    if (p.s < p.end)
        bpe_regex_fail(&p, "a ) without (");
    bpe_add_op(&p, BPE_OP_MATCH, 0, 0, 0);
    for (int i = 0, next; i + 1 < r->op_count && p.error == NULL; i++) {
        for (next = i + 1; r->ops[next].kind == BPE_OP_JUMP;)
            next = r->ops[next].to;
        r->ops[i].last = r->ops[next].kind == BPE_OP_MATCH;
    }
    if (p.error == NULL)
        return r;
    *error = p.error;
    free(r);
    return NULL;
}
#endif
