/* pattern.h - small regular expressions for short texts, matched without backtracking. To use it,
 * copy it; C99 or C++11.
 *
 *     int at_end = pattern_match("h.3.attn.c_attn", 1, "h.[0-5].*c_(attn|proj)", 22); // 1
 *
 * The syntax: . [a-z] [^a-z] \d \w, a backslash before other characters, ( ) (?: ) | ^ $, and * + ?
 * after a character, class or group. A set of positions is a word whose bit i stands for the
 * position before character i. An expression maps the positions where a match may begin to those
 * where it may end (Kleene 1956), so no position is tried twice. */
#ifndef PATTERN_H
#define PATTERN_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* PATTERN_MAX_TEXT: longest text that can be matched; PATTERN_MAX_DEPTH: deepest nesting of
 * groups */
enum { PATTERN_MAX_TEXT = 62, PATTERN_MAX_DEPTH = 16 };

typedef struct {
    /* text: the text to match; p, end: current position in the pattern, and the pattern's end */
    const char *text, *p, *end;
    int invalid;                  /* nonzero after a syntax error */
    int depth;                   /* number of groups that p is in */
} pattern_state;

static inline uint64_t pattern_branches(pattern_state *m, uint64_t at);

/* Matches the character, class or group at m->p and moves p to its end. `at` is the set of
 * positions in the text where the match may begin. Returns the set of positions where it may
 * end. */
static inline uint64_t pattern_atom(pattern_state *m, uint64_t at)
{
    const size_t n = strlen(m->text);
    unsigned char set[256] = { 0 };
    uint64_t to = 0;
    int c = (unsigned char)*m->p++, negated = 0;
    if (c == '^' || c == '$')
        return at & (c == '^' ? (uint64_t)1 : (uint64_t)1 << n);
    if (c == '(') {
        if (m->p + 1 < m->end && m->p[0] == '?' && m->p[1] == ':')
            m->p += 2;
        m->invalid |= ++m->depth > PATTERN_MAX_DEPTH; /* invalid ends the recursion */
        to = pattern_branches(m, at);
        m->depth--;
        m->invalid |= m->p == m->end || *m->p != ')';
        m->p += m->p < m->end;
        return to;
    }
    if (c == '.') {
        memset(set, 1, sizeof set);
    } else if (c == '\\' && m->p < m->end) {
        c = (unsigned char)*m->p++;
        if (c == 'd' || c == 'w')
            for (int i = 0; i < 256; i++)
                set[i] = (i >= '0' && i <= '9') ||
                        (c == 'w' && (i == '_' || ((i | 32) >= 'a' && (i | 32) <= 'z')));
        else
            m->invalid |= (c | 32) >= 'a' && (c | 32) <= 'z';
        set[c] |= c != 'd' && c != 'w';
    } else if (c == '[') {
        negated = m->p < m->end && *m->p == '^';
        for (m->p += negated; m->p < m->end && *m->p != ']'; m->p++) {
            const int range = m->end - m->p > 2 && m->p[1] == '-' && m->p[2] != ']';
            m->invalid |= *m->p == '\\';
            for (int i = (unsigned char)m->p[0]; i <= (unsigned char)m->p[2 * range]; i++)
                set[i] = 1;
            m->p += 2 * range;
        }
        m->invalid |= m->p == m->end;
        m->p += m->p < m->end;
    } else {
        m->invalid |= strchr("*+?{})]\\", c) != NULL;
        set[c] = 1;
    }
    for (size_t i = 0; i < n; i++)
        if (at >> i & 1 && set[(unsigned char)m->text[i]] != negated)
            to |= (uint64_t)2 << i;
    return to;
}

/* Matches alternatives separated by |, up to the end of the pattern or a closing parenthesis. `at`
 * is the set of positions where a match may begin. Returns the set of positions where one may
 * end. */
static inline uint64_t pattern_branches(pattern_state *m, uint64_t at)
{
    uint64_t all = 0, now = at;
    while (m->p < m->end && *m->p != ')' && !m->invalid) {
        if (*m->p == '|') {
            all |= now;
            now = at;
            m->p++;
            continue;
        }
        const char *atom = m->p;
        uint64_t once = pattern_atom(m, now), reached = now;
        const char sign = m->p < m->end ? *m->p : 0;
        while ((sign == '*' || sign == '+') && (once & ~reached) != 0) {
            m->p = atom;
            reached |= once;
            once = pattern_atom(m, reached);
        }
        now = sign == '*' ? reached : sign == '?' ? now | once : once;
        m->p += sign == '*' || sign == '+' || sign == '?';
    }
    return all | now;
}

/* Returns 1 if the pattern of n characters matches `text` from a position in `from` up to the
 * text's end, else 0. `from` is a set of positions; 1 contains only the beginning of the text.
 * Returns -1 after a syntax error, if groups are nested too deeply, or if the text is longer than
 * PATTERN_MAX_TEXT. */
static inline int pattern_match(const char *text, uint64_t from, const char *pattern, size_t n)
{
    pattern_state m = { text, pattern, pattern + n, 0, 0 };
    const size_t size = strlen(text);
    const uint64_t to = size <= PATTERN_MAX_TEXT ? pattern_branches(&m, from) : 0;
    return size > PATTERN_MAX_TEXT || m.invalid || m.p != m.end ? -1 : (int)(to >> size & 1);
}
#endif
