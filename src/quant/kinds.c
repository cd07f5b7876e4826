#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- storage kinds: BF16; F16; I8 with a scale per row; I4 with one in each block ---- */
GCKPTI_INLINE uint16_t gckpti_half_at(const void *from, int k)
{
    uint16_t half;
    memcpy(&half, (const unsigned char *)from + 2 * k, sizeof half);
    return half;
}

/* Defines the function that reads values of a kind; `value` is the one at index k. */
#define GCKPTI_READ(kind, value)                                                                   \
    static void gckpti_read_##kind(const void *from, float scale, float *y)                        \
    {                                                                                              \
        (void)scale;                                                                               \
        for (int k = 0; k < GCKPTI_KIND_READ; k++)                                                 \
            y[k] = value;                                                                          \
    }
GCKPTI_READ(f32, ((const float *)from)[k])
GCKPTI_READ(bf16, gckpti_from_bf16(gckpti_half_at(from, k)))
GCKPTI_READ(f16, gckpti_from_f16(gckpti_half_at(from, k)))
GCKPTI_READ(int8, (float)((const int8_t *)from)[k] * scale)
#undef GCKPTI_READ

static int gckpti_write_bf16(const float *x, int64_t n, float scale, void *to)
{
    (void)scale;
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)to)[i] = gckpti_to_bf16(x[i]);
    return 1;
}

static int gckpti_write_f16(const float *x, int64_t n, float scale, void *to)
{
    int large = 0;
    (void)scale;
    for (int64_t i = 0; i < n; i++) {
        large |= x[i] > 65504 || x[i] < -65504;
        ((uint16_t *)to)[i] = gckpti_to_f16(x[i]);
    }
    return !large;
}

/* Returns x / scale, rounded to nearest even and clamped to least..most. */
GCKPTI_INLINE float gckpti_quotient(float x, float scale, float least, float most)
{
    const float q = scale < 0 || scale > 0 ? x / scale : 0;
    return (q < least ? least : q > most ? most : q) + 12582912.0f - 12582912.0f; /* 3 * 2^22 */
}

/* Returns the sum of the squares of a block's errors x - y * scale, added by halves. The squares
 * are exact in double, and so are the products: y are small integers, the scale has 11 bits. */
static double gckpti_quant_error(const float *x, const float *y, float scale)
{
    double e[GCKPTI_INT4_BLOCK];
    for (int i = 0; i < GCKPTI_INT4_BLOCK; i++) {
        const double error = (double)(x[i] - y[i] * scale);
        e[i] = error * error;
    }
    for (int half = GCKPTI_INT4_BLOCK / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            e[i] += e[i + half];
    return e[0];
}

/* Quantises a block to I4 (manual, 5n); returns 0 if no scale is large enough. */
static int gckpti_write_int4_block(const float *x, unsigned char *to)
{
    static const float divisors[] = { -8, -7.625f, -8.25f, -8.5f, -8.75f, -9 };
    float y[GCKPTI_INT4_BLOCK], extreme = 0;
    double best = 0;
    for (int i = 0; i < GCKPTI_INT4_BLOCK; i++) {
        if (!(gckpti_fabs((double)x[i]) <= (double)GCKPTI_INT4_MAX))
            return 0;
        extreme = (x[i] < 0 ? -x[i] : x[i]) > (extreme < 0 ? -extreme : extreme) ? x[i] : extreme;
    }
    for (size_t k = 0; k < sizeof divisors / sizeof *divisors; k++) {
        const float unrounded = extreme / divisors[k];
        if (unrounded < -65504 || unrounded > 65504)
            continue;
        const unsigned half = gckpti_to_f16(unrounded), bits = half & 0x7fff ? half : 0;
        const float scale = gckpti_from_f16((uint16_t)bits);
        for (int i = 0; i < GCKPTI_INT4_BLOCK; i++)
            y[i] = gckpti_quotient(x[i], scale, -8, 7);
        const double error = gckpti_quant_error(x, y, scale);
        if (k > 0 && !(error < best))
            continue;
        best = error;
        to[0] = (unsigned char)(bits & 255), to[1] = (unsigned char)(bits >> 8);
        for (int i = 0; i < GCKPTI_INT4_BLOCK / 2; i++)
            to[2 + i] = (unsigned char)((int)y[i] + 16 * (int)y[i + GCKPTI_INT4_BLOCK / 2] + 136);
    }
    return 1;
}

static int gckpti_write_int4(const float *x, int64_t n, float scale, void *to)
{
    int fits = 1;
    (void)scale;
    for (int64_t i = 0; i < n / GCKPTI_INT4_BLOCK; i++)
        fits &= gckpti_write_int4_block(x + i * GCKPTI_INT4_BLOCK,
                                        (unsigned char *)to + i * GCKPTI_INT4_BYTES);
    return fits;
}

static void gckpti_read_int4(const void *from, float scale, float *y)
{
    const unsigned char *b = (const unsigned char *)from;
    scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8));
    for (int k = 0; k < GCKPTI_INT4_BLOCK / 2; k++) {
        y[k] = (float)((b[2 + k] & 15) - 8) * scale;
        y[GCKPTI_INT4_BLOCK / 2 + k] = (float)((b[2 + k] >> 4) - 8) * scale;
    }
}

static int gckpti_write_int8(const float *x, int64_t n, float scale, void *to)
{
    for (int64_t i = 0; i < n; i++)
        ((int8_t *)to)[i] = (int8_t)gckpti_quotient(x[i], scale, -127, 127);
    return scale * 127 <= FLT_MAX; /* false for NaN */
}

static const gckpti_storage_kind gckpti_kinds[] = {
    { "F32", "F32", 4, 1, 4, 0, 0, 1e300, "", gckpti_read_f32, NULL },
    { "BF16", "BF16", 2, 1, 2, 0, 0, 1e300, "", gckpti_read_bf16, gckpti_write_bf16 },
    { "F16", "F16", 2, 1, 2, 0, 0, 65504, "beyond 65504", gckpti_read_f16, gckpti_write_f16 },
    { "I8", "I8", 1, 1, 1, 1, 1, 3e38, "not finite", gckpti_read_int8, gckpti_write_int8 },
    { "I4", "U8", 1, GCKPTI_INT4_BLOCK, GCKPTI_INT4_BYTES, 1, 0, GCKPTI_INT4_MAX,
      "beyond 524032, or not finite", gckpti_read_int4, gckpti_write_int4 },
};

GCKPTI_FN const gckpti_storage_kind *gckpti_kind_of(int storage)
{
    const int count = (int)(sizeof gckpti_kinds / sizeof *gckpti_kinds);
    return storage >= 0 && storage < count ? &gckpti_kinds[storage] : NULL;
}

GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)storage);
    return kind ? kind->name : "not a gckpt_storage";
}

GCKPTI_FN int64_t gckpti_file_count(int storage, int64_t n)
{
    return gckpti_storage_bytes(storage, n) / gckpti_kinds[storage].bytes;
}

GCKPTI_FN int64_t gckpti_storage_bytes(int storage, int64_t n)
{
    return n / gckpti_kinds[storage].block * gckpti_kinds[storage].block_bytes;
}

GCKPTI_FN int gckpti_unpack_shape(const gckpti_storage_kind *kind, gckpt_shape *shape)
{
    const int unit = kind->block_bytes / kind->bytes;
    int64_t *last = &shape->d[shape->n - (shape->n > 0)];
    if (unit == 1)
        return 1;
    if (shape->n < 2 || *last % unit || *last > INT64_MAX / kind->block)
        return 0;
    *last = *last / unit * kind->block;
    return 1;
}

GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p)
{
    return gckpti_kinds[p->storage].scaled ? p->shape.d[p->shape.n - 1] : p->elements;
}

GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p)
{
    if (!gckpti_kinds[p->storage].scaled)
        return 0;
    return (size_t)(p->elements / gckpti_row_length(p)) * sizeof(float);
}

GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p)
{
    return (size_t)gckpti_storage_bytes((int)p->storage, p->elements) + gckpti_scale_bytes(p);
}

/* ---- the memory of values in any storage ---- */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = q->p.scales ? (const void *)q->p.scales : gckpti_stored(&q->p);
    unsigned char *block;
    memcpy(&block, &first, sizeof block); /* the store owns it; it is const only for users */
    return block;
}

GCKPTI_FN void gckpti_set_stored(gckpti_param *q, const void *values, const float *scales)
{
    const int floats = q->p.storage == GCKPT_STORAGE_F32;
    q->p.values = NULL;
    q->p.quantised = floats ? NULL : values;
    q->p.scales = scales;
    if (floats) /* if not writable, they are never written */
        memcpy(&q->p.values, &values, sizeof values);
}

GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block)
{
    const size_t scales = gckpti_scale_bytes(&q->p);
    gckpti_set_stored(q, block ? block + scales : NULL, scales ? (float *)(void *)block : NULL);
}
#endif
