/* keyword.h - spoken words, made by a formula, since there is no data set here: what a word is, is
 * the way of ten numbers (think of cepstral coefficients) over 25 frames, from one sound to the
 * next. A speaker has an own offset of each number, speaks faster or slower, and no two takes are
 * the same. All of it is whole numbers, so every machine hears the same. */
#ifndef KEYWORD_H
#define KEYWORD_H
#include <stdint.h>

enum { KEYWORD_FRAMES = 25, KEYWORD_NUMBERS = 10, KEYWORD_SOUNDS = 4 };

/* -range..range, always the same one of these. */
static int32_t keyword_random(uint32_t what, uint32_t a, uint32_t b, int32_t range)
{
    uint32_t h = what * 2654435761u ^ a * 2246822519u ^ b * 3266489917u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return (int32_t)((h ^ h >> 16) % (uint32_t)(2 * range + 1)) - range;
}

/* What is heard when a speaker says a word for the take-th time; accent: how far this speaker is
 * from the average, in 64ths. */
static void keyword_synth(uint32_t word, uint32_t speaker, int32_t accent, uint32_t take, float *x)
{
    const uint32_t who = 1000 + speaker, once = (speaker << 16 | word << 8) + 77 * take;
    const int32_t begin = 3 + keyword_random(1, once, 0, 3); /* the frame in which it does */
    const int32_t length = 18 + keyword_random(2, who, 0, 3) + keyword_random(2, once, 0, 1);
    for (int32_t t = 0; t < KEYWORD_FRAMES; t++) {
        int32_t at = 64 * (t - begin) * (KEYWORD_SOUNDS - 1) / length; /* 64 a sound */
        at = at < 0 ? 0 : at > 64 * (KEYWORD_SOUNDS - 1) - 1 ? 64 * (KEYWORD_SOUNDS - 1) - 1 : at;
        for (int32_t k = 0; k < KEYWORD_NUMBERS; k++) {
            const uint32_t sound = 16 * word + (uint32_t)(at / 64), n = (uint32_t)k;
            const int32_t from = keyword_random(3, sound, n, 96);
            const int32_t to = keyword_random(3, sound + 1, n, 96);
            const int32_t clear = from + (to - from) * (at % 64) / 64;
            const int32_t offset = accent * keyword_random(4, who, n, 96) / 64;
            const int32_t noise = keyword_random(5 + (uint32_t)t, once, n, 24);
            x[KEYWORD_NUMBERS * t + k] = (float)(clear + offset + noise) / 64;
        }
    }
}
#endif
