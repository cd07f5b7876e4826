/* tokenizer_steps.h - the normalizers and pre-tokenizers of tokenizer.h: how a text is changed, and
 * split into pieces, before a model turns each piece into tokens. To copy, with tokenizer_regex.h,
 * json.h and unicode.h. C99 or C++11.
 *
 * A tokenizer is a list of steps: the normalizers in order, then the pre-tokenizers. Normalizers
 * map a text to another one (bpe_normalize). Pre-tokenizers cut a piece of text into smaller ones,
 * from left to right (bpe_piece_start and bpe_piece_end), or add spaces to it (bpe_add_spaces). */
#ifndef TOKENIZER_STEPS_H
#define TOKENIZER_STEPS_H
#include "tokenizer_regex.h"

enum {
    BPE_STEPS = 16, /* most normalizers and pre-tokenizers in a tokenizer, counted together */
    /* longest text, in bytes, that a normalizer or pre-tokenizer searches for or inserts, plus 1 */
    BPE_PATTERN = 32,
    BPE_GROWTH = 256 /* factor by which all normalizers together may lengthen a text */
};

typedef enum {
    /* Normalizers, which change the text between added tokens (`from`, `to`: fields of
     * bpe_step): */
    BPE_NFC,     /* converts characters to their composed form */
    BPE_NFD,     /* converts characters to their decomposed form */
    BPE_PREPEND, /* puts `to` before the text */
    BPE_REPLACE, /* replaces `from` by `to` */
    BPE_CLEAN,   /* removes control characters and makes each white space a space, as BERT does */
    BPE_IDEOGRAPHS,  /* puts spaces around each Chinese character, as BERT does */
    BPE_ACCENTS,     /* removes accents: characters of category Mn */
    BPE_LOWER,       /* converts characters to lower case */
    BPE_PRECOMPILED, /* replaces characters and graphemes by the map of the tokenizer */
    BPE_STRIP_LEFT,  /* removes white space at the start of the text */
    BPE_STRIP_RIGHT, /* removes white space at the end of the text */
    /* Pre-tokenizers, which change a piece of text or split it into smaller ones: */
    BPE_PREFIX, /* puts a space before a piece that does not begin with one */
    /* replaces spaces by `to`, and depending on `when` puts `to` before the piece */
    BPE_METASPACE,
    BPE_MATCHES,      /* splits at matches of a regular expression, and removes other text */
    BPE_WHITESPACE,   /* splits at white space and removes it */
    BPE_REGEX,        /* splits before and after each match of a regular expression */
    BPE_PUNCTUATION,  /* splits before and after each punctuation character */
    BPE_DIGIT,        /* splits before and after each digit */
    BPE_DIGITS,       /* splits before and after each run of digits */
    BPE_ISOLATED,     /* splits before and after each `from` */
    BPE_SPLIT_AFTER,  /* splits after each `from` */
    BPE_SPLIT_BEFORE, /* splits before each `from` */
    BPE_SPACES        /* splits before each run of U+2581, which no merge crosses */
} bpe_kind;

typedef enum { BPE_NEVER, BPE_FIRST, BPE_ALWAYS } bpe_when;

typedef struct {
    bpe_kind kind;
    char from[BPE_PATTERN], to[BPE_PATTERN];
    size_t from_size, to_size;
    bpe_when when; /* for BPE_METASPACE: when to put `to` before a piece */
    /* for BPE_REGEX and BPE_MATCHES; for BPE_REPLACE, searched instead of `from` unless it is NULL */
    bpe_regex *regex;
} bpe_step;

/* The map of SentencePiece's normalizer ("precompiled_charsmap"): keys in a double array trie, and the
 * texts that replace them. */
typedef struct {
    uint32_t *units; /* the trie */
    size_t count;
    char *texts;          /* each text ends with a 0 */
    size_t size, longest; /* bytes of all texts, and of the longest one */
} bpe_charsmap;

/* ---- characters -------------------------------------------------------------------------------- */
/* Returns the class (letter, number, white space, other) of the character at s, and sets *size to
 * its length in bytes. */
static inline int bpe_class(const char *s, const char *end, size_t *size)
{
    uint32_t c = (unsigned char)*s;
    *size = 1;
    if (c < 128) /* fast path for ASCII */
        return (c | 32) - 'a' < 26u        ? UNICODE_LETTER
               : c - '0' < 10u             ? UNICODE_NUMBER
               : c == ' ' || c - '\t' < 5u ? UNICODE_SPACE
                                           : UNICODE_OTHER;
    *size = (size_t)json_utf8(s, (size_t)(end - s), &c);
    return unicode_class(c);
}

/* Returns the end of the run of characters of class `kind` that starts at s. */
static inline const char *bpe_run_end(const char *s, const char *end, int kind)
{
    size_t size;
    while (s < end && bpe_class(s, end, &size) == kind)
        s += size;
    return s;
}

/* Returns the start of the run of white space that ends at `end`; the run does not extend before
 * s. */
static inline const char *bpe_space_start(const char *s, const char *end)
{
    size_t size;
    for (const char *p = end; p > s;) {
        do
            p--;
        while (p > s && ((unsigned char)*p & 0xc0) == 0x80);
        if (bpe_class(p, end, &size) != UNICODE_SPACE)
            break;
        end = p;
    }
    return end;
}

/* ---- normalizers ----------------------------------------------------------------------------- */
/* Returns the first occurrence in s of `what`, a text of `size` bytes, or `end` if there is
 * none. */
static inline const char *bpe_search(const char *s, const char *end, const char *what, size_t size)
{
    while (s < end && (s = (const char *)memchr(s, what[0], (size_t)(end - s))) != NULL) {
        if ((size_t)(end - s) >= size && memcmp(s, what, size) == 0)
            return s;
        s++;
    }
    return end;
}

/* Writes the text s to `to`, with each occurrence of p->from replaced by p->to. If `to` is NULL,
 * writes nothing. `to` may be s if no replacement is longer than p->from. Returns the number of
 * bytes of the result. */
static inline size_t bpe_put_replaced(const bpe_step *p, const char *s, size_t n, char *to)
{
    const char *end = s + n;
    size_t size = 0;
    while (s < end) {
        const char *next = bpe_search(s, end, p->from, p->from_size);
        if (to != NULL)
            memmove(to + size, s, (size_t)(next - s));
        size += (size_t)(next - s);
        if (next == end)
            break;
        if (to != NULL)
            memcpy(to + size, p->to, p->to_size);
        size += p->to_size;
        s = next + p->from_size;
    }
    return size;
}

/* Sorts n characters, each stored as class << 21 | character, by class; characters of equal class
 * keep their order. Takes linear time: a few characters are sorted by insertion, many by counting
 * in the free space after the array. */
static inline void bpe_sort_marks(uint32_t *c, size_t n)
{
    size_t at[257] = { 0 };
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            uint32_t x = c[i];
            size_t k = i;
            for (; k > 0 && c[k - 1] >> 21 > x >> 21; k--)
                c[k] = c[k - 1];
            c[k] = x;
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        at[(c[i] >> 21) + 1]++;
    for (int k = 0; k < 256; k++)
        at[k + 1] += at[k];
    for (size_t i = 0; i < n; i++)
        c[n + at[c[i] >> 21]++] = c[i];
    memcpy(c, c + n, n * sizeof *c);
}

/* Writes the composed form (NFC) or, if `form` is BPE_NFD, the decomposed form of the text s:
 * decomposes its characters, sorts the combining marks, and for NFC composes them again (Unicode
 * Standard Annex 15). c has space for 8 numbers per character. Returns the number of bytes of the
 * result. */
static inline size_t bpe_put_composed(bpe_kind form, const char *s, size_t n, uint32_t *c, char *to)
{
    size_t count = 0, first = 0, kept = 0, starter = SIZE_MAX, size = 0;
    uint32_t before = 0;
    for (size_t i = 0; i < n;) { /* first: index in c of the first mark after a starter */
        uint32_t x = 0, parts[UNICODE_DECOMPOSED];
        i += (size_t)json_utf8(s + i, n - i, &x);
        size_t more = unicode_decompose(x, parts);
        for (size_t k = 0; k < more; k++) {
            uint32_t mark = (uint32_t)unicode_mark(parts[k]) & 255;
            if (mark == 0) {
                bpe_sort_marks(c + first, count - first);
                first = count + 1;
            }
            c[count++] = mark << 21 | parts[k];
        }
    }
    bpe_sort_marks(c + first, count - first);
    for (size_t i = 0; i < count; i++) {
        uint32_t mark = c[i] >> 21, x = c[i] & 0x1fffff, both;
        if (form == BPE_NFC && starter != SIZE_MAX && (kept == starter + 1 || before < mark) &&
            (both = unicode_compose(c[starter], x)) != 0) {
            c[starter] = both;
            continue;
        }
        if (mark == 0)
            starter = kept;
        before = mark;
        c[kept++] = x;
    }
    for (size_t i = 0; i < kept; i++)
        size += (size_t)json_put_utf8(to + size, c[i]);
    return size;
}

/* Returns whether BPE_NFC or BPE_NFD may change a character or join it to an earlier one. */
static inline int bpe_may_change(bpe_kind form, uint32_t c)
{
    uint32_t parts[UNICODE_DECOMPOSED];
    if (c < 0xc0 || form == BPE_NFC)
        return (unicode_mark(c) & 256) != 0;
    return (unicode_mark(c) & 255) != 0 || unicode_decompose(c, parts) > 1 || parts[0] != c;
}

/* Sets *to to the composed form (NFC) or, if `form` is BPE_NFD, to the decomposed form of a text, or
 * to NULL if the text is in that form already. Processes only stretches with characters that may
 * change. Returns 0, or -1 if out of memory. */
static inline int bpe_compose(bpe_kind form, const char *s, size_t n, char **to, size_t *size)
{
    uint32_t *c = NULL;
    size_t capacity = 0, from = 0, done = 0, at = 0, moving = 0;
    *to = NULL;
    for (size_t i = 0, length; i <= n; i += length) {
        uint32_t x = 0;
        length = i < n ? (size_t)json_utf8(s + i, n - i, &x) : 1;
        if (i < n && bpe_may_change(form, x)) {
            moving++;
            continue;
        }
        if (moving > 0) {
            if (moving + 2 > capacity) {
                capacity = 2 * (moving + 2);
                free(c);
                c = capacity < SIZE_MAX / 64 ? (uint32_t *)malloc(8 * capacity * sizeof *c) : NULL;
            }
            if (*to == NULL) /* both forms at most triple the bytes of a character */
                *to = n < SIZE_MAX / 4 ? (char *)malloc(3 * n) : NULL;
            if (c == NULL || *to == NULL) {
                free(c);
                free(*to);
                return -1;
            }
            memcpy(*to + at, s + done, from - done);
            at += from - done;
            at += bpe_put_composed(form, s + from, i - from, c, *to + at);
            done = i;
        }
        moving = 0;
        from = i;
    }
    free(c);
    if (*to != NULL)
        memcpy(*to + at, s + done, n - done);
    *size = at + n - done;
    return 0;
}

/* Returns whether BERT treats a character as Chinese (CJK Unified and Compatibility Ideographs). */
static inline int bpe_is_ideograph(uint32_t c)
{
    static const uint32_t first[] = { 0x3400, 0x4e00, 0xf900, 0x20000, 0x2a700, 0x2b920, 0x2f800 };
    static const uint32_t last[] = { 0x4dbf, 0x9fff, 0xfaff, 0x2a6df, 0x2b81f, 0x2ceaf, 0x2fa1f };
    for (int i = 0; i < 7; i++)
        if (c >= first[i] && c <= last[i])
            return 1;
    return 0;
}

/* Writes the text s to `to`, with each character replaced as step p says (BPE_CLEAN to BPE_LOWER).
 * If `to` is NULL, writes nothing. Returns the number of bytes of the result. */
static inline size_t bpe_put_mapped(const bpe_step *p, const char *s, size_t n, char *to)
{
    size_t size = 0;
    for (size_t i = 0; i < n;) {
        uint32_t out[3] = { 0, 0, 0 }, *c = out;
        size_t count = 1;
        i += (size_t)json_utf8(s + i, n - i, c);
        if (p->kind == BPE_CLEAN) {
            count = unicode_bert_class(*c) != UNICODE_CONTROL;
            *c = unicode_class(*c) == UNICODE_SPACE ? ' ' : *c;
        } else if (p->kind == BPE_ACCENTS) {
            count = unicode_bert_class(*c) != UNICODE_ACCENT;
        } else if (p->kind == BPE_LOWER) {
            count = unicode_lower(*c, out);
        } else if (bpe_is_ideograph(*c)) {
            out[1] = *c;
            out[0] = out[2] = ' ';
            count = 3;
        }
        for (size_t k = 0; k < count; k++) {
            char bytes[4];
            const size_t length = (size_t)json_put_utf8(bytes, out[k]);
            if (to != NULL)
                memcpy(to + size, bytes, length);
            size += length;
        }
    }
    return size;
}

/* Returns the text that replaces the n bytes s: that of the shortest key with which s begins, as in
 * Hugging Face; or NULL if s begins with no key. */
static inline const char *bpe_map_find(const bpe_charsmap *m, const char *s, size_t n)
{
    uint32_t unit = m->count > 0 ? m->units[0] : 0;
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        const uint32_t byte = i < n ? (unsigned char)s[i] : 0;
        at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6);
        if (i > 0 && (unit >> 8 & 1) != 0) { /* a key ends here, and this unit has its text */
            const size_t text = at < m->count ? m->units[at] & 0x7fffffff : SIZE_MAX;
            return text < m->size && ((unsigned char)m->texts[text] & 0xc0) != 0x80
                       ? m->texts + text
                       : NULL;
        }
        at ^= byte;
        if (byte == 0 || at >= m->count || (m->units[at] & 0x800000ff) != byte)
            return NULL;
        unit = m->units[at];
    }
    return NULL;
}

/* Writes the text s to `to` with its graphemes replaced by the map. A grapheme of 6 bytes or more, or
 * one without a replacement, is replaced character by character. If `to` is NULL, writes nothing.
 * Returns the number of bytes of the result. */
static inline size_t bpe_put_precompiled(const bpe_charsmap *m, const char *s, size_t n, char *to)
{
    size_t size = 0, end = 0; /* end: end of the current grapheme */
    for (size_t i = 0, length; i < n; i += length) {
        uint32_t c = 0, next = 0;
        const char *text = NULL;
        length = (size_t)json_utf8(s + i, n - i, &c);
        if (i >= end) {
            for (end = i + length; end < n; c = next) {
                const size_t more = (size_t)json_utf8(s + end, n - end, &next);
                if (!unicode_joins(c, next))
                    break;
                end += more;
            }
            text = end - i < 6 ? bpe_map_find(m, s + i, end - i) : NULL;
        }
        if (text != NULL)
            length = end - i;
        else
            text = bpe_map_find(m, s + i, length);
        const size_t bytes = text != NULL ? strlen(text) : length;
        if (to != NULL)
            memcpy(to + size, text != NULL ? text : s + i, bytes);
        size += bytes;
    }
    return size;
}

/* Writes the text s to `to`, with each match of p->regex replaced by p->to. If `to` is NULL, writes
 * nothing. Returns the number of bytes of the result. */
static inline size_t bpe_put_matched(const bpe_step *p, const char *s, size_t n, char *to)
{
    const char *begin = s, *end = s + n, *match_end;
    size_t size = 0;
    bpe_regex_forget(p->regex);
    while (s < end) {
        const char *match = bpe_regex_find(p->regex, begin, s, end, &match_end);
        const size_t before = (size_t)(match - s), after = match < end ? p->to_size : 0;
        if (to != NULL) {
            memcpy(to + size, s, before);
            memcpy(to + size + before, p->to, after);
        }
        size += before + after;
        s = match_end;
    }
    return size;
}

/* Writes the text s to `to`, changed by step p, any normalizer except BPE_NFC and BPE_NFD. If `to` is
 * NULL, writes nothing. Returns the number of bytes of the result. */
static inline size_t bpe_put_normal(const bpe_step *p, const bpe_charsmap *m, const char *s,
                                    size_t n, char *to)
{
    size_t before = 0;
    if (p->kind == BPE_REPLACE)
        return p->regex != NULL ? bpe_put_matched(p, s, n, to) : bpe_put_replaced(p, s, n, to);
    if (p->kind == BPE_PRECOMPILED)
        return bpe_put_precompiled(m, s, n, to);
    if (p->kind == BPE_STRIP_LEFT) {
        const char *first = bpe_run_end(s, s + n, UNICODE_SPACE);
        n -= (size_t)(first - s);
        s = first;
    } else if (p->kind == BPE_STRIP_RIGHT) {
        n = (size_t)(bpe_space_start(s, s + n) - s);
    } else if (p->kind == BPE_PREPEND) {
        before = p->to_size;
    } else {
        return bpe_put_mapped(p, s, n, to);
    }
    if (to != NULL) {
        memcpy(to, p->to, before);
        memcpy(to + before, s, n);
    }
    return before + n;
}

/* Applies `count` normalizers, with the map m of BPE_PRECOMPILED, to the text *s of *n bytes. If they change it, *owned becomes the new
 * text, which the caller must free. Returns 0, or -1 if out of memory. */
static inline int bpe_normalize(const bpe_step *steps, int count, const bpe_charsmap *m,
                                const char **s, size_t *n, char **owned)
{
    *owned = NULL;
    for (const bpe_step *p = steps; p < steps + count && n[0] != 0; p++) {
        char *to = NULL;
        size_t size = *n;
        int failed = 0;
        if (p->kind == BPE_NFC || p->kind == BPE_NFD) {
            failed = bpe_compose(p->kind, *s, *n, &to, &size) != 0;
        } else if (p->kind != BPE_REPLACE || p->regex != NULL ||
                   bpe_search(*s, *s + *n, p->from, p->from_size) != *s + *n) {
            size = bpe_put_normal(p, m, *s, *n, NULL);
            to = (char *)malloc(size + 1);
            failed = to == NULL;
            if (!failed)
                bpe_put_normal(p, m, *s, *n, to);
        }
        if (to != NULL || failed) {
            free(*owned);
            *owned = failed ? NULL : to;
            *s = *owned;
            *n = size;
        }
        if (failed)
            return -1;
    }
    return 0;
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */
/* Must be called before a text is split by step p. */
static inline void bpe_begin_pieces(const bpe_step *p)
{
    if (p->regex != NULL)
        bpe_regex_forget(p->regex);
}

/* Returns the start of the first piece into which step p splits the text s. It is s, unless the step
 * removes text there; it is `end` if the step removes all. bpe_begin_pieces was called. */
static inline const char *bpe_piece_start(const bpe_step *p, const char *s, const char *end)
{
    const char *match_end;
    return p->kind == BPE_WHITESPACE ? bpe_run_end(s, end, UNICODE_SPACE)
           : p->kind == BPE_MATCHES  ? bpe_regex_find(p->regex, s, s, end, &match_end)
                                     : s;
}

/* Returns the end of the piece that starts at s, when step p splits the text s; bpe_begin_pieces was called. */
static inline const char *bpe_piece_end(const bpe_step *p, const char *s, const char *end)
{
    const char *found = s;
    size_t size = 0;
    uint32_t c = 0;
    int starts = (size_t)(end - s) >= p->from_size && memcmp(s, p->from, p->from_size) == 0;
    switch (p->kind) {
    case BPE_MATCHES:
    case BPE_REGEX: {
        const char *match_end, *match = bpe_regex_find(p->regex, s, s, end, &match_end);
        return match > s ? match : match_end;
    }
    case BPE_WHITESPACE:
        while (found < end && bpe_class(found, end, &size) != UNICODE_SPACE)
            found += size;
        return found;
    case BPE_PUNCTUATION:
        for (; found < end; found += size) {
            size = (size_t)json_utf8(found, (size_t)(end - found), &c);
            if (unicode_bert_class(c) == UNICODE_PUNCTUATION)
                return found > s ? found : s + size;
        }
        return found;
    case BPE_DIGIT:
    case BPE_DIGITS:
        for (int first = -1; found < end; found += size) {
            size = (size_t)json_utf8(found, (size_t)(end - found), &c);
            int digit = unicode_is_digit(c);
            if (first >= 0 && (digit != first || (digit && p->kind == BPE_DIGIT)))
                break;
            first = digit;
        }
        return found;
    case BPE_ISOLATED: return starts ? s + p->from_size : bpe_search(s, end, p->from, p->from_size);
    case BPE_SPLIT_AFTER:
        found = bpe_search(s, end, p->from, p->from_size);
        return found < end ? found + p->from_size : end;
    case BPE_SPACES:
        while ((size_t)(end - found) >= p->from_size && memcmp(found, p->from, p->from_size) == 0)
            found += p->from_size;
        return bpe_search(found, end, p->from, p->from_size);
    default: /* BPE_SPLIT_BEFORE */
        return bpe_search(s + (starts ? p->from_size : 0), end, p->from, p->from_size);
    }
}

typedef struct {
    const char *s, *end;
    int first; /* nonzero if the piece is at the start of the text */
} bpe_piece;

/* Applies BPE_PREFIX or BPE_METASPACE to a piece. If that changes the text, *owned becomes the new
 * text, which the caller must free, else NULL. Returns 0, or -1 if out of memory. */
static inline int bpe_add_spaces(const bpe_step *p, const bpe_piece *piece, char **owned,
                                 size_t *size)
{
    const bpe_step spaces = { BPE_REPLACE, " ", "", 1, p->to_size, BPE_NEVER, NULL };
    size_t n = (size_t)(piece->end - piece->s), before = 0;
    bpe_step replace = spaces;
    memcpy(replace.to, p->to, sizeof replace.to);
    *owned = NULL;
    if (p->kind == BPE_PREFIX) {
        if (*piece->s == ' ')
            return 0;
        replace.to_size = replace.from_size;
        replace.to[0] = ' ';
        before = 1;
    } else {
        int starts = *piece->s == ' ' || (n >= p->to_size && !memcmp(piece->s, p->to, p->to_size));
        if (!starts && (p->when == BPE_ALWAYS || (p->when == BPE_FIRST && piece->first)))
            before = p->to_size;
        if (before == 0 && bpe_search(piece->s, piece->end, " ", 1) == piece->end)
            return 0;
    }
    *size = before + bpe_put_replaced(&replace, piece->s, n, NULL);
    *owned = (char *)malloc(*size);
    if (*owned == NULL)
        return -1;
    memcpy(*owned, replace.to, before);
    bpe_put_replaced(&replace, piece->s, n, *owned + before);
    return 0;
}
#endif
