/* optimisers/adam8bit.h - AdamW whose two moments take a byte each (Dettmers 2022): blocks of 256
 * elements, each with its greatest magnitude as scale, and codes of the dynamic map. Tensors of
 * fewer than 4096 elements keep floats. C99 or C++11; include gradckpt.h first and compile with
 * -ffp-contract=off.
 *
 *     static adam8bit a;
 *     adam8bit_init(&a);
 *     gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .state_bytes = adam8bit_bytes };
 *     gckpt_exec_desc e = { .custom_optimiser = adam8bit_update, .user = &a };
 *
 * The state takes 2 + 8 / 256 bytes per element instead of 8. Results are those of AdamW8bit of
 * bitsandbytes, with the nearest code (its kernels on processors look codes up in a table, which
 * cannot tell small ones apart), up to rounding. Every operation is one that IEEE 754 rounds
 * correctly, so results have the same bits on every machine and for every number of threads. */
#ifndef ADAM8BIT_H
#define ADAM8BIT_H
#include "adamw.h"

enum { ADAM8BIT_BLOCK = 256, ADAM8BIT_LEAST = 4096 };

/* The values of the 256 codes, ascending: of the first moment, and of the second, which has no
 * sign. */
typedef struct {
    float code[2][256];
} adam8bit;

/* Fills in the dynamic maps: for each power of ten from 1e-6 to 1, `count` values at equal distances
 * between a tenth of it and itself, twice as many as for the power before; 0; and 1. */
static inline void adam8bit_init(adam8bit *a)
{
    double power = 1e-6;
    a->code[0][127] = a->code[1][0] = 0;
    a->code[0][255] = a->code[1][255] = 1;
    for (int e = 0, count = 1; e < 7; e++, count *= 2, power *= 10)
        for (int i = 0; i < 2 * count; i++) {
            a->code[1][2 * count - 1 + i] = (float)(power * (0.1 + 0.9 * (i + 0.5) / (2 * count)));
            if (i >= count)
                continue;
            a->code[0][127 + count + i] = (float)(power * (0.1 + 0.9 * (i + 0.5) / count));
            a->code[0][127 - count - i] = -a->code[0][127 + count + i];
        }
}

/* Returns the code whose value is the nearest to x; of two, the lower one. */
static inline unsigned char adam8bit_nearest(const float *code, float x)
{
    int low = 0, high = 255;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (code[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return (unsigned char)(code[high] - x < x - code[low] ? high : low);
}

/* Converts n elements of a block to codes. Returns their greatest magnitude. */
static inline float adam8bit_pack(const float *code, const float *x, unsigned char *to, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
    }
    const float inverse = most > 0 ? 1 / most : 0;
    for (int64_t i = 0; i < n; i++)
        to[i] = adam8bit_nearest(code, x[i] * inverse);
    return most;
}

/* A gckpt_plan_desc.state_bytes: two floats for each block, then two codes for each element. */
static inline size_t adam8bit_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    const size_t n = (size_t)(rows * columns), blocks = (n + ADAM8BIT_BLOCK - 1) / ADAM8BIT_BLOCK;
    (void)user, (void)name;
    return n < ADAM8BIT_LEAST ? 2 * sizeof(float) * n : 2 * (n + blocks * sizeof(float));
}

typedef struct {
    const adam8bit *maps;
    const gckpt_update *u;
    adamw_rates rates;
} adam8bit_pass;

/* Updates block number `block`: an item of gckpt_parallel. */
static inline void adam8bit_block(void *context, int64_t block, int64_t worker)
{
    const adam8bit_pass *pass = (const adam8bit_pass *)context;
    const gckpt_update *u = pass->u;
    const int64_t blocks = (u->elements + ADAM8BIT_BLOCK - 1) / ADAM8BIT_BLOCK;
    const int64_t at = block * ADAM8BIT_BLOCK, left = u->elements - at;
    const int64_t n = left < ADAM8BIT_BLOCK ? left : (int64_t)ADAM8BIT_BLOCK;
    float x[2][ADAM8BIT_BLOCK], *scale = u->state[0] + block;
    unsigned char *codes = (unsigned char *)(u->state[0] + 2 * blocks) + at;
    (void)worker;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i++)
            x[k][i] = pass->maps->code[k][codes[k * u->elements + i]] * scale[k * blocks];
    adamw_moments(&pass->rates, u->gradient + at, x[0], x[1], n);
    adamw_weights(&pass->rates, u->values + at, x[0], x[1], n);
    for (int k = 0; k < 2; k++)
        scale[k * blocks] = adam8bit_pack(pass->maps->code[k], x[k], codes + k * u->elements, n);
}

/* A gckpt_exec_desc.custom_optimiser; user: an adam8bit. */
static inline void adam8bit_update(void *user, const gckpt_update *u)
{
    adam8bit_pass pass = { (const adam8bit *)user, u, adamw_rates_of(u, 1e-8f) };
    if (u->elements < ADAM8BIT_LEAST)
        adamw_update(NULL, u);
    else
        gckpt_parallel(u->call, (u->elements + ADAM8BIT_BLOCK - 1) / ADAM8BIT_BLOCK,
                       64 * ADAM8BIT_BLOCK, adam8bit_block, &pass);
}
#endif
