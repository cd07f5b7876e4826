#!/usr/bin/env python3
"""Writes examples/unicode.h: which characters GPT-2's pre-split takes for letters, numbers and space.

    python3 tests/golden/make_unicode.py > examples/unicode.h

It asks the tokenizers package (0.23 was used) about every code point, so the table is that of its regex
engine, whose Unicode version (16) is not that of any Python: a character is of the class of the word it
joins."""
from tokenizers import pre_tokenizers

split = pre_tokenizers.ByteLevel(add_prefix_space=False)
LETTER, NUMBER, SPACE = 1, 2, 3
before = 0
words = []
for code in range(0x110000):
    if 0xD800 <= code < 0xE000:
        kind = 0
    else:
        joins = [len(split.pre_tokenize_str(start + chr(code))) == 1 for start in "a1!"]
        kind = LETTER if joins[0] else NUMBER if joins[1] else 0 if joins[2] else SPACE
    if kind != before:
        words.append(str(code * 4 + kind))
        before = kind

print("""/* unicode.h - the class of a character: letter, number, white space or other, as GPT-2's tokenizer
 * needs it (Unicode 16). Written by tests/golden/make_unicode.py. */
#ifndef UNICODE_H
#define UNICODE_H
#include <stdint.h>

enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

/* clang-format off */
/* From code point x / 4 on, the class is x % 4. */
static const uint32_t unicode_classes[] = {""")
line = "    0"
for word in words:
    if len(line) + len(word) > 96:
        print(line + ",")
        line = "    " + word
    else:
        line += ", " + word
print(line + """
};
/* clang-format on */

static inline int unicode_class(uint32_t character)
{
    uint32_t low = 0, high = sizeof unicode_classes / sizeof unicode_classes[0];
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (unicode_classes[middle] / 4 <= character)
            low = middle;
        else
            high = middle;
    }
    return (int)(unicode_classes[low] % 4);
}
#endif""")
