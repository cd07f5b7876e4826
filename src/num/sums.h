#pragma once
#include "num/halves.h"

/* Sums of a row: 32 lanes from +0; lane i adds elements i, i+32, ...; a tree adds the lanes. */
GCKPTI_INLINE float gckpti_lanes_sum(float lane[32])
{
    for (int half = 32; half >>= 1;)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* Returns the number that a softmax subtracts from scores with the maximum `top`: 0 if all are
 * -inf; their sum, 0, is later replaced by 1, so that all probabilities are 0 (manual, 5h). */
GCKPTI_INLINE float gckpti_shift(float top) { return top > -GCKPTI_INFINITY ? top : 0.0f; }

GCKPTI_INLINE void gckpti_softmax_end(float *max, float *sum)
{
    if (*sum == 0.0f)
        *max = 0.0f, *sum = 1.0f;
}

/* FNV-1a, 64 bits, from GCKPTI_FNV_START. Floats are little-endian words; all NaN have one word. */
#define GCKPTI_FNV_START UINT64_C(0xcbf29ce484222325)

GCKPTI_INLINE uint64_t gckpti_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Hashes the lowest `bits` bits of a number, byte by byte, the lowest byte first. */
GCKPTI_INLINE uint64_t gckpti_fnv_bits(uint64_t hash, uint64_t value, int bits)
{
    for (int i = 0; i < bits; i += 8)
        hash = (hash ^ (value >> i & 0xffu)) * UINT64_C(0x100000001b3);
    return hash;
}

/* Hashes a number; most fit in a byte, and the other seven, zeros, are multiplications only. */
GCKPTI_INLINE uint64_t gckpti_fnv_number(uint64_t hash, uint64_t value)
{
    return value < 256 ? (hash ^ value) * UINT64_C(0x1efac7090aef4a21)
                       : gckpti_fnv_bits(hash, value, 64);
}

GCKPTI_INLINE uint64_t gckpti_hash_floats(uint64_t hash, const float *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        hash = gckpti_fnv_bits(hash, x[k] != x[k] ? 0x7fc00000u : gckpti_bits(x[k]), 32);
    return hash;
}

/* Returns 0 if this build keeps the numeric specification; 1 if subnormals are flushed to zero
 * (-ffast-math at link time), 2 if fma is wrong, 3 if sums are reordered, 4 if another result
 * differs. volatile makes the machine compute, not the compiler. */
GCKPTI_INLINE int gckpti_self_test(void)
{
    static const float fma_case[3][3] = { { 0.9474001f, 4.639901e-7f, -0.24325085f },
                                          { -1.9369631e13f, 2.1513551e-7f, -1.7354427e-24f },
                                          { -4.1369128e-25f, 1.69365241e-21f, 9.18382988e-41f } };
    static const uint32_t fma_result[3] = { 0xbe7916a3u, 0xca7e56dfu, 0x00010001u };
    volatile float least = 1e-30f, tiny = 1e-10f, big = 33554432.0f, one = 1.0f;
    volatile float product = least * tiny;
    if (gckpti_bits(product) != 0x000116c2u)
        return 1;
    for (int i = 0; i < 3; i++) {
        volatile float a = fma_case[i][0], b = fma_case[i][1], c = fma_case[i][2];
        if (gckpti_bits(gckpti_fma(a, b, c)) != fma_result[i])
            return 2;
    }
    float sum = big, step = one;
    if ((step + sum) - sum != 0.0f || (step - sum) + sum != 0.0f)
        return 3;
    uint64_t hash = GCKPTI_FNV_START;
    if (!GCKPTI_RUNS_BUILT) /* such a build keeps only functions of its plan */
        return 0;
    for (int i = 0; i < 64; i++) {
        volatile float input = (float)(i - 32) * 0.40625f;
        float x = input, a = x * x + 0.015625f; /* exact */
        float y[] = { gckpti_exp(8.0f * x), gckpti_log(a),         gckpti_tanh(0.25f * x),
#ifndef GCKPT_NO_ACTIVATIONS
                      gckpti_erf(0.5f * x), gckpti_sin(97.0f * x), gckpti_cos(a * a * a),
                      gckpti_pow(a, x),
#endif
                      gckpti_rsqrt(a) };
        hash = gckpti_hash_floats(hash, y, sizeof y / sizeof *y);
    }
    const uint64_t all = UINT64_C(0x2d05651250eb440d), core = UINT64_C(0x5757e315ca9a5d48);
    return hash == (GCKPTI_WITH_ACTIVATIONS ? all : core) ? 0 : 4;
}

/* ---- num/chains.c ---- */
/* Adds the next term of n chains: d[j] = fma(s, x[j], d[j]). */
GCKPTI_INLINE void gckpti_axpy(float s, const float *x, int64_t n, float *d)
{
    for (; n > 0; n--, x++, d++)
        *d = gckpti_fma(s, *x, *d);
}

/* Adds k terms to n chains: d[j] += a[p * a_step] b[p * b_step + j], p = 0..k-1 ascending. Runs
 * four chains interleaved, since one chain alone waits for each fma. (Single variables, as -Os
 * keeps no array in registers; seven parameters: three arrays, two steps, two sizes.) */
GCKPTI_FN void gckpti_axpy_rows(const float *a, int64_t a_step, const float *b, int64_t b_step,
                                int64_t n, int64_t k, float *d);
/* Adds k terms to n chains along rows of b: d[j] += a[p * a_step] b[j * stride + p]. k may be 0. */
GCKPTI_FN void gckpti_chains(const float *a, int64_t a_step, const float *b, int64_t stride,
                             int64_t n, int64_t k, float *d);
