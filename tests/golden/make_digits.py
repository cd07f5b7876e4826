"""Writes examples/digits.h: scikit-learn's handwritten digits, as a string of characters per image.

    python3 tests/golden/make_digits.py > examples/digits.h
"""
from sklearn.datasets import load_digits

digits = load_digits()
print("""/* digits.h - 1,797 handwritten digits of 13 people, 8 x 8 pixels from 0 to 16: the test part of
 * "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning
 * Repository, doi 10.24432/C50P49, CC BY 4.0. Written by tests/golden/make_digits.py. Each image is 64
 * letters, 'A' for 0 to 'Q' for 16, row by row, followed by the digit. */
#ifndef DIGITS_H
#define DIGITS_H
#include <stdint.h>

enum { DIGITS = 1797 };
static const char digits_rows[DIGITS][66] = {""")
for pixels, digit in zip(digits.data, digits.target):
    print('    "%s%d",' % ("".join(chr(ord("A") + int(p)) for p in pixels), digit))
print("""};

/* Reads all digits; pixels range from 0 to 1. */
static inline void digits_read(float pixels[DIGITS][64], int32_t digit[DIGITS])
{
    for (int i = 0; i < DIGITS; i++) {
        for (int k = 0; k < 64; k++)
            pixels[i][k] = (float)(digits_rows[i][k] - 'A') / 16;
        digit[i] = digits_rows[i][64] - '0';
    }
}
#endif""")
