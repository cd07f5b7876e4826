#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- storage kinds: BF16; F16; I8 and I4 in blocks, each with its scale in f16 ---- */
/* Defines the function that reads n values of a kind; `value` is the one at index k. */
#define GCKPTI_READ(kind, value)                                                                   \
    static void gckpti_read_##kind(const void *from, int64_t n, float *y)                          \
    {                                                                                              \
        for (int k = 0; k < n; k++)                                                                \
            y[k] = value;                                                                          \
    }
GCKPTI_READ(f32, ((const float *)from)[k])
GCKPTI_READ(bf16, gckpti_from_bf16(gckpti_half_at(from, k)))
GCKPTI_READ(f16, gckpti_from_f16(gckpti_half_at(from, k)))
#undef GCKPTI_READ

static void gckpti_read_int8(const void *from, int64_t n, float *y)
{
    const unsigned char *b = (const unsigned char *)from;
    const float scale = gckpti_block_scale(b);
    for (int k = 0; k < n; k++)
        y[k] = (float)(int8_t)b[2 + k] * scale;
}

static void gckpti_read_int4(const void *from, int64_t n, float *y)
{
    const unsigned char *b = (const unsigned char *)from;
    const float scale = gckpti_block_scale(b) / 16; /* exact, as the product is */
    for (int k = 0; k < n; k++)
        y[k] = (float)((b[2 + k % 16] >> k / 16 * 4 & 15) * 16 - b[GCKPTI_INT4_ZERO]) * scale;
}

static int gckpti_write_bf16(const float *x, int64_t n, void *to)
{
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)to)[i] = gckpti_to_bf16(x[i]);
    return 1;
}

static int gckpti_write_f16(const float *x, int64_t n, void *to)
{
    int large = 0;
    for (int64_t i = 0; i < n; i++) {
        large |= x[i] > 65504 || x[i] < -65504;
        ((uint16_t *)to)[i] = gckpti_to_f16(x[i]);
    }
    return !large;
}

/* Returns the first of n elements of greatest size, or NaN if one is beyond `limit`. */
static float gckpti_extreme(const float *x, int64_t n, double limit)
{
    float extreme = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(gckpti_fabs((double)x[i]) <= limit))
            return GCKPTI_NAN;
        extreme = gckpti_fabs((double)x[i]) > gckpti_fabs((double)extreme) ? x[i] : extreme;
    }
    return extreme;
}

/* Writes the scale of a block, rounded to f16, and returns it; 0 is +0. */
static float gckpti_write_scale(float scale, unsigned char *to)
{
    const unsigned half = gckpti_to_f16(scale), bits = half & 0x7fff ? half : 0;
    to[0] = (unsigned char)(bits & 255), to[1] = (unsigned char)(bits >> 8);
    return gckpti_from_f16((uint16_t)bits);
}

/* Returns x / scale + zero, rounded to nearest even and clamped to least..most. */
GCKPTI_INLINE float gckpti_quotient(float x, float scale, float zero, float least, float most)
{
    const float q = scale > 0 ? x / scale + zero : 0;
    return (q < least ? least : q > most ? most : q) + 12582912.0f - 12582912.0f; /* 3 * 2^22 */
}

/* Quantises a block of n values to I8 (manual, 5n); returns 0 if a value is too large. */
static int gckpti_write_int8(const float *x, int64_t n, void *block)
{
    unsigned char *to = (unsigned char *)block;
    const double peak = gckpti_fabs((double)gckpti_extreme(x, n, GCKPTI_INT8_MAX));
    const float scale = gckpti_write_scale((float)peak / 127, to);
    for (int64_t i = 0; i < n; i++)
        to[2 + i] = (unsigned char)(int)gckpti_quotient(x[i], scale, 0, -127, 127);
    return peak <= (double)GCKPTI_INT8_MAX;
}

/* A block of I4: an element is about (q - zero / 16) scale. */
typedef struct {
    float scale, zero, q[GCKPTI_QUANT_BLOCK];
} gckpti_int4;

/* Returns the sum of the squares of a block's errors, added by halves. The squares are exact in
 * double, and so are the products in float: 16 q - zero has 8 bits, the scale has 11. */
static double gckpti_int4_error(const float *x, const gckpti_int4 *b)
{
    double e[GCKPTI_QUANT_BLOCK];
    for (int i = 0; i < GCKPTI_QUANT_BLOCK; i++) {
        const double error = (double)(x[i] - (b->q[i] - b->zero / 16) * b->scale);
        e[i] = error * error;
    }
    for (int half = GCKPTI_QUANT_BLOCK / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            e[i] += e[i + half];
    return e[0];
}

/* Quantises a block from least to `most` to `steps` steps; at most 15 are kept. Returns 0 if the
 * scale is too large, or, if `exact`, when a value differs. */
static int gckpti_fit_int4(const float *x, float least, float most, float steps, int exact,
                           gckpti_int4 *b)
{
    const float range = most - least, scale = range / steps;
    if (!(scale <= 65504))
        return 0;
    b->scale = gckpti_from_f16(gckpti_to_f16(scale));
    const float zero = b->scale > 0 ? -least / range * (16 * (steps < 15 ? steps : 15)) : 0;
    b->zero = zero + 12582912.0f - 12582912.0f;
    for (int i = 0; i < GCKPTI_QUANT_BLOCK; i++) {
        b->q[i] = gckpti_quotient(x[i], b->scale, b->zero / 16, 0, 15);
        const float error = x[i] - (b->q[i] - b->zero / 16) * b->scale;
        if (exact && (error < 0 || error > 0))
            return 0;
    }
    return 1;
}

/* Quantises a block to I4 (manual, 5n); returns 0 if no scale is large enough. */
static int gckpti_write_int4(const float *x, int64_t n, void *block)
{
    unsigned char *to = (unsigned char *)block;
    static const float steps[] = { 15, 15.5f, 16, 16.5f, 17, 18 };
    const float extreme = gckpti_extreme(x, n, GCKPTI_INT4_MAX);
    float least = 0, most = 0;
    gckpti_int4 b, best = { 0, 0, { 0 } };
    double least_error = 0;
    int exact = 0;
    for (int i = 0; i < GCKPTI_QUANT_BLOCK; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    for (int k = 15; k > 0 && !exact; k--)
        exact = gckpti_fit_int4(x, least, most, (float)k, 1, &best);
    for (int k = 0, found = 0; k < (int)(sizeof steps / sizeof *steps) && !exact; k++)
        if (gckpti_fit_int4(x, least, most, steps[k], 0, &b)) {
            const double error = gckpti_int4_error(x, &b);
            if (found++ && !(error < least_error))
                continue;
            least_error = error;
            best = b;
        }
    gckpti_write_scale(best.scale, to);
    for (int i = 0; i < GCKPTI_QUANT_BLOCK / 2; i++)
        to[2 + i] = (unsigned char)((int)best.q[i] + 16 * (int)best.q[i + GCKPTI_QUANT_BLOCK / 2]);
    to[GCKPTI_INT4_ZERO] = (unsigned char)(int)best.zero;
    return extreme <= (float)GCKPTI_INT4_MAX; /* false for NaN */
}

static const gckpti_storage_kind gckpti_kinds[] = {
    { "F32", "F32", 4, 1, 4, 1e300, "", gckpti_read_f32, NULL },
    { "BF16", "BF16", 2, 1, 2, 1e300, "", gckpti_read_bf16, gckpti_write_bf16 },
    { "F16", "F16", 2, 1, 2, 65504, "beyond 65504", gckpti_read_f16, gckpti_write_f16 },
    { "I8", "I8", 1, GCKPTI_QUANT_BLOCK, GCKPTI_INT8_BYTES, GCKPTI_INT8_MAX,
      "beyond 8319008, or not finite", gckpti_read_int8, gckpti_write_int8 },
    { "I4", "U8", 1, GCKPTI_QUANT_BLOCK, GCKPTI_INT4_BYTES, GCKPTI_INT4_MAX,
      "beyond 524032, or not finite", gckpti_read_int4, gckpti_write_int4 },
};

GCKPTI_FN const gckpti_storage_kind *gckpti_kind_of(int storage)
{
    const int count = (int)(sizeof gckpti_kinds / sizeof *gckpti_kinds);
    return storage >= 0 && storage < count ? &gckpti_kinds[storage] : NULL;
}

/* Returns the bytes of n values of one row. */
static int64_t gckpti_blocks_bytes(const gckpti_storage_kind *kind, int64_t n)
{
    const int64_t left = n % kind->block;
    return n / kind->block * kind->block_bytes +
           (left ? kind->block_bytes - kind->block + left : 0);
}

GCKPTI_FN int64_t gckpti_storage_bytes(int storage, int64_t row, int64_t n)
{
    const gckpti_storage_kind *kind = &gckpti_kinds[storage];
    if (kind->block == 1)
        return n * kind->block_bytes;
    return n / row * gckpti_blocks_bytes(kind, row) + gckpti_blocks_bytes(kind, n % row);
}

GCKPTI_FN int64_t gckpti_pack_shape(int storage, gckpt_shape *shape)
{
    const gckpti_storage_kind *kind = &gckpti_kinds[storage];
    if (shape->n > 0)
        shape->d[shape->n - 1] = gckpti_blocks_bytes(kind, gckpti_last(shape)) / kind->bytes;
    return gckpti_elements(shape);
}

GCKPTI_FN int gckpti_unpack_shape(const gckpti_storage_kind *kind, gckpt_shape *shape)
{
    const int64_t last = gckpti_last(shape), unit = kind->block_bytes, left = last % unit;
    const int64_t scale = unit - kind->block; /* bytes that a short block has in addition */
    if (kind->block == 1)
        return 1;
    if (shape->n < 2 || (left && (scale < 0 || left <= scale)))
        return 0;
    shape->d[shape->n - 1] = last / unit * kind->block + (left ? left - scale : 0);
    return 1;
}

/* ---- the memory of values in any storage ---- */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = gckpti_stored(&q->p);
    unsigned char *block;
    memcpy(&block, &first, sizeof block); /* the store owns it; it is const only for users */
    return block;
}

GCKPTI_FN void gckpti_set_stored(gckpti_param *q, const void *values)
{
    const int floats = q->p.storage == GCKPT_STORAGE_F32;
    q->p.values = NULL;
    q->p.quantised = floats ? NULL : values;
    if (floats) /* if not writable, they are never written */
        memcpy(&q->p.values, &values, sizeof values);
}
#endif
