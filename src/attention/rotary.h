#pragma once
#include "ops/ops.h"

#ifndef GCKPT_NO_ATTENTION
/* ---- attention/rotary.c ---- */
typedef struct {
    int heads;
    float base;
    int position; /* added to positions; omitted if 0 and if the fields below have defaults */
    int columns;  /* rotated columns of a head; 0 means all, and the rest is omitted */
    float scale;
    int has_frequencies; /* if nonzero, columns / 2 floats follow this struct */
} gckpti_rotary;

enum { GCKPTI_ROTARY_MAX = 512 }; /* most frequencies in the attributes */

/* Returns how many of the d columns of a head are rotated. */
GCKPTI_INLINE int64_t gckpti_rotary_columns(const gckpti_rotary *o, int64_t d)
{
    return o->columns ? o->columns : d;
}

static inline const float *gckpti_rotary_frequencies(const gckpti_rotary *o)
{
    return o->columns && o->has_frequencies ? (const float *)(const void *)(o + 1) : NULL;
}

/* Writes cos and sin (-sin in a backward) of positions begin..end-1 of a sample to workspace. */
GCKPTI_FN void gckpti_rotary_table(const gckpt_call *call, int64_t begin, int64_t end);

/* Returns the angle of p / 2^64 turns, accurate to 5e-8: quadrant q = (p + 2^61) >> 62 and, of m =
 * |p - 2^62 q|, with its sign, fma(m >> 38, pi/2 2^-24, mul(next 24 bits of m, pi/2 2^-48)). */
GCKPTI_INLINE gckpti_angle gckpti_rotary_angle(uint64_t p)
{
    gckpti_angle r = { (uint32_t)((p + (UINT64_C(1) << 61)) >> 62), 0.0f, 0.0f };
    p -= (uint64_t)r.quadrant << 62;
    uint64_t size = p >> 63 ? 0 - p : p;
    float low = gckpti_mul((float)(int32_t)(size >> 14 & 0xffffffu), 5.5805896e-15f);
    r.hi = gckpti_fma((float)(int32_t)(size >> 38), 9.36267571e-08f, low);
    r.hi = p >> 63 ? -r.hi : r.hi;
    return r;
}

#define GCKPTI_TICKS_PER_RADIAN 2935890503282001226.0 /* 2^64 / (2 pi) */

/* Returns x >= 0, counted in 2^-64 turns, modulo whole turns and truncated to an integer. */
GCKPTI_INLINE uint64_t gckpti_rotary_wrap(double x)
{
    const double turn = 18446744073709551616.0;
    if (!(x < turn * 4503599627370496.0)) /* then x is a whole number of turns */
        return 0;
    x -= turn * (double)(uint64_t)(x / turn); /* exact */
    uint64_t half = x < 0.5 * turn ? 0 : UINT64_C(1) << 63;
    return half + (uint64_t)(half ? x - 0.5 * turn : x);
}

#include "num/plain_begin.h"
#include "attention/loops.h"
#include "num/plain_end.h"
#endif
