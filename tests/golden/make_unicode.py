#!/usr/bin/env python3
"""Writes examples/unicode.h: the categories of characters in the regular expressions of tokenizers, Unicode's composed
form (NFC), and what the normalizers and pre-tokenizers of BERT and SentencePiece need.

    python3 tests/golden/make_unicode.py > examples/unicode.h

The script queries the tokenizers package (0.23 was used) for every code point, so the tables are those of the
package: of its regex engine (Unicode 16), its Digits (17) and its NFC (9), none of which is the version of any
Python. Python's unicodedata (14 or later) proposes the pairs and the combining classes; pairs that the package
does not compose are dropped."""
import unicodedata
from tokenizers import Regex, normalizers, pre_tokenizers

digits = pre_tokenizers.Digits(individual_digits=True)
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]

# == categories ====================================================================================
NAMES = ["LU", "LL", "LT", "LM", "LO", "M", "ND", "N", "P", "S", "SPACES"]
EVERY = "".join(map(chr, CODES))


def members(regex):
    """Returns the code points of the characters that match."""
    at, found = 0, []
    for _, (start, end) in pre_tokenizers.Split(Regex(f"(?:{regex})+"), "removed").pre_tokenize_str(EVERY):
        found += CODES[at:start]
        at = end
    return found + CODES[at:]


kinds = {}
for number, name in enumerate(NAMES, 1):
    for code in members(r"\s" if name == "SPACES" else "\\p{" + name.capitalize() + "}"):
        assert code not in kinds or (name == "N" and kinds[code] == NAMES.index("ND") + 1)
        kinds.setdefault(code, number)
numbers = {NAMES.index("ND") + 1, NAMES.index("N") + 1}
late = [code for code in CODES
        if (len(digits.pre_tokenize_str("a" + chr(code))) == 2) != (kinds.get(code) in numbers)]
assert not any(kinds.get(code) in numbers for code in late)

# == the composed form =============================================================================
singles, pairs = [], []  # (code, replacement), (code, first, second, whether the two compose)
for code in CODES:
    if 0xAC00 <= code < 0xD7A4 or nfd(chr(code)) == chr(code):
        continue
    parts = [int(part, 16) for part in unicodedata.decomposition(chr(code)).split()]
    assert nfd(chr(code)) == nfd("".join(map(chr, parts)))
    if len(parts) == 1:
        singles.append((code, parts[0]))
    else:
        pairs.append((code, *parts, nfc("".join(map(chr, parts))) == chr(code)))
classes = {}
for code in CODES:
    value = unicodedata.combining(chr(code))
    if value == 240 or (value and nfd("a\u0345" + chr(code)) != "a\u0345" + chr(code)):
        classes[code] = value
plain = {value: chr(code) for code, value in reversed(classes.items()) if nfd(chr(code)) == chr(code)}
for code, value in classes.items():
    for other, mark in plain.items():
        assert (nfd("a" + mark + chr(code)) != "a" + mark + nfd(chr(code))) == (value < other)
second = {pair[2] for pair in pairs if pair[3]} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
moves = {code for code in CODES
         if code in classes or nfc(chr(code)) != chr(code) or ord(nfd(chr(code))[0]) in second}
assert min(moves) == 0x300


# == BERT ==========================================================================================
def bert(**options):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**off | options).normalize_str


punctuation = pre_tokenizers.BertPreTokenizer()
clean, strip, lower = bert(clean_text=True), bert(strip_accents=True), normalizers.Lowercase().normalize_str
PUNCTUATION, REMOVED, ACCENT = 1, 2, 3
bert_kinds, lowered, runs = {}, {}, []  # runs: [first, last, step, distance to the lower case]
for code in CODES:
    kinds_of = [len(punctuation.pre_tokenize_str("a" + chr(code) + "b")) == 3, clean("a" + chr(code) + "b") == "ab",
                strip(chr(code)) == ""]
    assert sum(kinds_of) < 2
    bert_kinds[code] = kinds_of.index(True) + 1 if any(kinds_of) else 0
    small = lower(chr(code))
    if small == chr(code) or code == 0x130:
        continue
    distance, = (ord(one) - code for one in small)
    gap = code - runs[-1][1] if runs else 0
    if runs and runs[-1][3] == distance and gap in ((1, 2) if runs[-1][0] == runs[-1][1] else (runs[-1][2],)):
        runs[-1][1:3] = code, gap
    else:
        runs.append([code, code, 1, distance])
assert lower("\u0130") == "i\u0307"

# == graphemes =====================================================================================
def precompiled(key):
    """Returns a Precompiled normalizer that replaces the text `key`, and any grapheme that begins with it, by X."""
    key, units = key.encode(), [0] * 256 * 6
    units[0] = 256 << 10  # a unit has the label of its byte and, in the bits from 10, the way to its children
    for i, byte in enumerate(key):
        at, last = 256 * (i + 1) ^ byte, i + 1 == len(key)
        units[at] = byte | last << 8 | (at ^ (256 * (i + 1) if last else 256 * (i + 2))) << 10
        if last:
            units[256 * (i + 1)] = 1 << 31
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return normalizers.Precompiled(len(trie).to_bytes(4, "little") + trie + b"X\0").normalize_str


EXTENDS, BREAKS, PREPENDS = 1, 2, 3
graphemes, joins_a = {0: BREAKS}, precompiled("a")
for code in CODES[1:]:
    if joins_a("a" + chr(code)) == "X":
        graphemes[code] = EXTENDS
    elif not any(low <= code < high for low, high in [(0x3400, 0xA000), (0xAC00, 0xF900), (0x20000, 0x110000)]):
        joins = precompiled(chr(code))
        if joins(chr(code) + "a") == "X":
            graphemes[code] = PREPENDS
        elif code < 0x10000 and joins(chr(code) + "\u0301") != "X":
            graphemes[code] = BREAKS

# == the file ======================================================================================
def ranges(value, factor):
    """Returns numbers code * factor + value(code) for each code at which the value changes."""
    before, numbers = 0, []
    for code in range(0x110000):
        if value(code) != before:
            before = value(code)
            numbers.append(code * factor + before)
    return numbers


def table(comment, head, numbers):
    lines = [comment, head + " = {"] if comment else [head + " = {"]
    line = "   "
    for number in numbers:
        if len(line) + len(str(number)) > 97:
            lines.append(line)
            line = "   "
        line += " " + str(number) + ","
    return "\n".join(lines + [line.rstrip(","), "};"])


spans = [(code, end) for code in late if code - 1 not in late
         for end in [min(x for x in range(code, 0x110001) if x not in late)]]
composing = sorted((pair[1], pair[2], at) for at, pair in enumerate(pairs) if pair[3])
print("""/* unicode.h - Unicode tables for tokenizer.h: the category of a character (Unicode 16), the composed
 * form, NFC (Unicode 9), small letters, the classes of BERT, and graphemes, as in the Python package
 * tokenizers. Written by tests/golden/make_unicode.py. */
#ifndef UNICODE_H
#define UNICODE_H
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };
/* Unicode's general categories, as far as tokenizers distinguish them; others are 0. UNICODE_N has the
 * numbers that are not in UNICODE_ND, and UNICODE_SPACES all white space. */
enum {
    UNICODE_LU = 1,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_M,
    UNICODE_ND,
    UNICODE_N,
    UNICODE_P,
    UNICODE_S,
    UNICODE_SPACES,
    /* sets of categories, a bit for each */
    UNICODE_LETTERS = 62,
    UNICODE_NUMBERS = 3 << UNICODE_ND
};
/* Classes of unicode_bert_class; others are 0. */
enum { UNICODE_PUNCTUATION = 1, UNICODE_CONTROL, UNICODE_ACCENT };
enum { UNICODE_EXTENDS = 1, UNICODE_BREAKS, UNICODE_PREPENDS }; /* classes of unicode_graphemes */

/* clang-format off */""")
print(table("/* Sorted ranges: from code point x / 16 up to the next entry's, the category is x % 16. */", "static const uint32_t unicode_categories[]",
            [0] + ranges(lambda code: kinds.get(code, 0), 16)))
print(table("/* Sorted ranges from code point x / 512: x % 256 is the combining class; bit 256 is set if NFC may\n"
            " * change the character or join it to an earlier one. */", "static const uint32_t unicode_marks[]",
            [0] + ranges(lambda code: (code in moves) * 256 + classes.get(code, 0), 512)))
print(table("/* Canonical decompositions into one character: pairs of character and decomposition. */",
            "static const uint32_t unicode_singles[]", [x for single in singles for x in single]))
print(table("/* Canonical decompositions into two: triples of character, first and second. */",
            "static const uint32_t unicode_pairs[]", [x for pair in pairs for x in pair[:3]]))
print(table("/* The decompositions that NFC composes again: indices into unicode_pairs, sorted by first and second. */",
            "static const uint16_t unicode_composed[]", [at for _, _, at in composing]))
print(table("/* For BERT, sorted ranges from code point x / 4: 1 punctuation, 2 removed as a control character, 3 an\n"
            " * accent (category Mn). */", "static const uint32_t unicode_bert[]",
            [0] + ranges(lambda code: bert_kinds.get(code, 0), 4)))
print(table("/* Graphemes of up to 5 bytes, sorted ranges from code point x / 4: 1 extends one, 2 is one, 3 goes with the\n"
            " * next character. */", "static const uint32_t unicode_graphemes[]",
            [0] + ranges(lambda code: graphemes.get(code, 0), 4)))
print(table("/* Capital letters: first, last, distance between two, and distance to the small letter + 65536. */",
            "static const uint32_t unicode_capitals[]", [x + 65536 * (i == 3) for run in runs for i, x in enumerate(run)]))
print("""/* clang-format on */

/* Returns the index of the last number <= x among numbers[0], numbers[step], numbers[2 step], ..; the
 * table has n numbers, and the first is <= x. */
static inline uint32_t unicode_at(const uint32_t *numbers, uint32_t n, uint32_t step, uint32_t x)
{
    uint32_t low = 0, high = n / step;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (numbers[middle * step] <= x)
            low = middle;
        else
            high = middle;
    }
    return low * step;
}
#define UNICODE_AT(table, step, x)                                                                 \\
    unicode_at(table, (uint32_t)(sizeof(table) / sizeof(table)[0]), step, x)

static inline int unicode_category(uint32_t character)
{
    return (int)(unicode_categories[UNICODE_AT(unicode_categories, 1, character * 16 + 15)] % 16);
}

static inline int unicode_class(uint32_t character)
{
    const int category = unicode_category(character);
    return category == UNICODE_SPACES          ? UNICODE_SPACE
           : (UNICODE_NUMBERS >> category & 1) ? UNICODE_NUMBER
                                               : (UNICODE_LETTERS >> category & 1);
}

/* Returns whether the pre-tokenizer "Digits" takes this for a digit: it also knows Unicode 17's. */
static inline int unicode_is_digit(uint32_t character)
{
    if (@SPANS@)
        return 1;
    return unicode_class(character) == UNICODE_NUMBER;
}

/* Returns the combining class (0 for a starter), plus 256 if NFC may change the character. */
static inline int unicode_mark(uint32_t character)
{
    if (character < 0x300)
        return 0;
    return (int)(unicode_marks[UNICODE_AT(unicode_marks, 1, character * 512 + 511)] % 512);
}

enum { UNICODE_DECOMPOSED = 4 }; /* most characters in a decomposition */

/* Writes the full decomposition of a character. Returns its length. */
static inline size_t unicode_decompose(uint32_t c, uint32_t *to)
{
    uint32_t behind[UNICODE_DECOMPOSED], at;
    size_t n = 0, size = 0;
    if (c - 0xac00 < 11172) { /* Hangul: 19 consonants, 21 vowels, 27 last consonants or none */
        to[size++] = 0x1100 + (c - 0xac00) / 588;
        to[size++] = 0x1161 + (c - 0xac00) % 588 / 28;
        if ((c - 0xac00) % 28 != 0)
            to[size++] = 0x11a7 + (c - 0xac00) % 28;
        return size;
    }
    for (;;) {
        at = UNICODE_AT(unicode_pairs, 3, c);
        if (unicode_pairs[at] == c) {
            behind[n++] = unicode_pairs[at + 2];
            c = unicode_pairs[at + 1];
            continue;
        }
        at = UNICODE_AT(unicode_singles, 2, c);
        if (unicode_singles[at] != c)
            break;
        c = unicode_singles[at + 1];
    }
    for (to[size++] = c; n > 0;)
        to[size++] = behind[--n];
    return size;
}

/* Returns the character that two characters compose to, or 0. */
static inline uint32_t unicode_compose(uint32_t first, uint32_t second)
{
    uint32_t low = 0, high = (uint32_t)(sizeof unicode_composed / sizeof unicode_composed[0]);
    if (first - 0x1100 < 19 && second - 0x1161 < 21)
        return 0xac00 + (first - 0x1100) * 588 + (second - 0x1161) * 28;
    if (first - 0xac00 < 11172 && (first - 0xac00) % 28 == 0 && second - 0x11a8 < 27)
        return first + second - 0x11a7;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const uint32_t *pair = unicode_pairs + 3 * (size_t)unicode_composed[middle];
        if (pair[1] == first && pair[2] == second)
            return pair[0];
        if (pair[1] < first || (pair[1] == first && pair[2] < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Returns the class of a character for BERT: punctuation, a control character (which BERT removes),
 * an accent (category Mn), or other. */
static inline int unicode_bert_class(uint32_t character)
{
    return (int)(unicode_bert[UNICODE_AT(unicode_bert, 1, character * 4 + 3)] % 4);
}

/* Writes the lower case of a character, 1 or 2 characters. Returns their number. */
static inline size_t unicode_lower(uint32_t c, uint32_t *to)
{
    const uint32_t *run = unicode_capitals + UNICODE_AT(unicode_capitals, 4, c);
    to[0] = c;
    to[1] = 0x307;
    if (c == 0x130)
        to[0] = 'i';
    else if (c >= run[0] && c <= run[1] && (c - run[0]) % run[2] == 0)
        to[0] = c + run[3] - 65536;
    return c == 0x130 ? 2 : 1;
}

/* Returns whether a grapheme cluster goes on from the character `before` to c. Exact for clusters of at
 * most 5 bytes; for longer ones, the rules of Hangul, emoji and Indic conjuncts are missing. */
static inline int unicode_joins(uint32_t before, uint32_t c)
{
    const uint32_t first = unicode_graphemes[UNICODE_AT(unicode_graphemes, 1, before * 4 + 3)] % 4;
    const uint32_t second = unicode_graphemes[UNICODE_AT(unicode_graphemes, 1, c * 4 + 3)] % 4;
    if (first == UNICODE_BREAKS || second == UNICODE_BREAKS)
        return before == '\\r' && c == '\\n';
    return second == UNICODE_EXTENDS || first == UNICODE_PREPENDS;
}
#endif""".replace("@SPANS@", " || ".join(f"character - {low:#x} < {high - low}" for low, high in spans)))
assert max(len(nfd(chr(code))) for code in CODES) <= 4
