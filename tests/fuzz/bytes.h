/* bytes.h - shared by the fuzz targets that make decisions from the input's bytes: functions that read the bytes,
 * numbers that may be out of range, the check MUST. Include after gradckpt.h. */
#ifndef FUZZ_BYTES_H
#define FUZZ_BYTES_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The input, read from the front. After its end, every byte read is 0. */
typedef struct {
    const uint8_t *at;
    size_t left;
    int odd; /* if nonzero, numbers may be out of range */
} bytes;

static inline unsigned byte(bytes *b)
{
    if (b->left == 0)
        return 0;
    b->left--;
    return *b->at++;
}
static inline int choose(bytes *b, int n) { return (int)(byte(b) % (unsigned)n); }

/* Returns a number from 0 to n - 1, or sometimes, if odd numbers are allowed, one out of range. */
static inline int64_t number(bytes *b, int n)
{
    static const int64_t odd[] = { -1,
                                   0,
                                   INT32_MAX,
                                   (int64_t)INT32_MAX + 1,
                                   INT32_MIN,
                                   INT64_MAX / 4 - 7,
                                   INT64_MIN / 4,
                                   -2,
                                   INT64_MAX / 8,
                                   1 << 20,
                                   1 << 30,
                                   7919,
                                   64 };
    const unsigned x = byte(b), k = b->odd && x >= 252 ? byte(b) % 16 : 16;
    return k == 16   ? (n > 0 ? (int)x % n : 0)
           : k < 13  ? odd[k]
           : k == 13 ? n
           : k == 14 ? n + 1
                     : -n;
}
static inline int whole(bytes *b, int n)
{
    const int64_t x = number(b, n);
    return x >= INT32_MAX ? INT32_MAX - 1 /* callers add 1 */ : x < INT32_MIN ? INT32_MIN : (int)x;
}
static inline float real(bytes *b)
{
    static const float usual[] = { 0.5f, 1, 0.1f, 0.25f, 2, 0.01f, 1e-5f, 0.9f },
                       odd[] = { -1, -0.0f, NAN, INFINITY, -INFINITY, 1e30f, 1e-40f, 0, 3.4e38f };
    const unsigned x = byte(b);
    return b->odd && x >= 240 ? odd[x % 9] : usual[x % 8];
}
/* Splits off the next n bytes as a separate input. */
static inline bytes part(bytes *b, size_t n)
{
    bytes p = *b;
    p.left = n < b->left ? n : b->left;
    b->at += p.left;
    b->left -= p.left;
    return p;
}

/* Aborts with a message if the condition is false: libFuzzer then keeps the input as a finding. */
#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* If the environment variable FUZZ_SEEDS names a folder, writes `count` files there and exits. Each file has
 * the `head_size` bytes at `head`, followed by `size` pseudo-random bytes. */
static inline void write_seeds(const char *name, int count, size_t size, const uint8_t *head,
                               size_t head_size)
{
    const char *folder = getenv("FUZZ_SEEDS");
    uint64_t state = 1;
    if (!folder)
        return;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.%d", folder, name, i);
        FILE *f = fopen(path, "wb");
        int ok = f != NULL && fwrite(head, 1, head_size, f) == head_size;
        for (size_t k = 0; ok && k < size; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ok = fputc((int)(state >> 56), f) != EOF;
        }
        if (!ok || fclose(f) != 0) {
            perror(path);
            exit(1);
        }
    }
    exit(0);
}
#endif
