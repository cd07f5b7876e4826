#include "store/internal.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- quantised values: BF16; F16; I8 with a scale per row, all before the values in an owned
 * block; I4 with a scale in each block of values ---- */

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
static int gckpti_quantise_int4(const float *x, unsigned char *to)
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

/* Quantises n floats (I8: by `scale`). Returns 0 if F16 or I4 cannot hold one. */
static int gckpti_quantise(gckpt_storage storage, float scale, const float *x, int64_t n, void *to)
{
    if (storage == GCKPT_STORAGE_F32)
        return memcpy(to, x, (size_t)n * sizeof *x) != NULL;
    if (storage < GCKPT_STORAGE_I8)
        return gckpti_to_halves(storage, x, n, (uint16_t *)to);
    int fits = 1;
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_I4; i += GCKPTI_INT4_BLOCK)
        fits &=
            gckpti_quantise_int4(x + i, (unsigned char *)to + gckpti_file_count((int)storage, i));
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_I8; i++)
        ((int8_t *)to)[i] = (int8_t)gckpti_quotient(x[i], scale, -127, 127);
    return fits;
}

/* Quantises n floats into q's memory from element `at`. */
GCKPTI_FN int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    unsigned char *to = gckpti_values_block(q) + gckpti_scale_bytes(&q->p);
    const float scale = q->p.scales ? q->p.scales[at / gckpti_row_length(&q->p)] : 1;
    return gckpti_quantise(q->p.storage, scale, x, n,
                           to + gckpti_storage_bytes((int)q->p.storage, at));
}

/* Returns the maximum of max_bits and of the bits of |x| for n floats (NaN has the greatest). */
GCKPTI_FN uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = gckpti_bits(x[i]) & 0x7fffffffu;
        max_bits = u > max_bits ? u : max_bits;
    }
    return max_bits;
}

static float gckpti_row_scale(uint32_t peak) { return gckpti_float(peak) / 127; }

/* I8: sets the scale of the row at element `at` for the peak; returns 0 if no finite scale fits. */
GCKPTI_FN int gckpti_set_scale(gckpti_param *q, int64_t at, uint32_t peak)
{
    void *scales = gckpti_values_block(q);
    const float scale = ((float *)scales)[at / gckpti_row_length(&q->p)] = gckpti_row_scale(peak);
    return scale * 127 <= FLT_MAX; /* false for NaN */
}

GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    return (q->p.storage != GCKPT_STORAGE_I8 || gckpti_set_scale(q, at, gckpti_max_abs(0, x, n))) &&
           gckpti_quantise_at(q, at, n, x);
}

/* Rounds initial values in x as q's storage does (I4: whole blocks; I8: a scale for each call). */
GCKPTI_FN void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     int64_t *n, float *x)
{
    uint32_t quantised[GCKPTI_CHUNK];
    float scale = 1;
    if (q->p.storage == GCKPT_STORAGE_I8) {
        const int64_t row = gckpti_row_length(&q->p), in_row = at % row, end = at - in_row + row;
        float buf[GCKPTI_CHUNK];
        uint32_t peak = 0;
        *n = gckpti_min(*n, row - in_row);
        for (int64_t i = end - row, count; i < end; i += count) {
            count = gckpti_min(end - i, GCKPTI_CHUNK);
            gckpti_init_span d = { { 0, 0, 0 }, q->init, i, count, buf };
            gckpti_init_values(s, q, &d, NULL);
            peak = gckpti_max_abs(peak, buf, count);
        }
        scale = gckpti_row_scale(peak);
    }
    const gckpt_dequantisation u = { q->p.storage, quantised, &scale, *n, *n, NULL };
    (void)gckpti_quantise(q->p.storage, scale, x, *n, quantised);
    gckpti_dequantise(&u, 0, *n, x);
}

static void gckpti_dequantise_item(void *context, int64_t i, int64_t worker)
{
    const gckpt_dequantisation *u = (const gckpt_dequantisation *)context;
    int64_t at = i * GCKPTI_GRAIN_SIZE;
    (void)worker;
    gckpti_dequantise(u, at, gckpti_min(u->n - at, GCKPTI_GRAIN_SIZE), u->to + at);
}

GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant)
{
    gckpt_dequantisation u = *quant;
    gckpt_parallel(call, GCKPTI_GRAINS(u.n), gckpti_dequantise_item, &u);
}

/* Computes a product; dequantises parts of b's rows. The bits do not depend on the parts' size. */
GCKPTI_FN void gckpti_fp32_quant(const gckpti_product *t)
{
    enum { CHUNK = 64 >> GCKPTI_IS_SMALL };
    const gckpt_dequantisation *u = t->b.quant;
    const int along_k = t->b.stride != 1; /* nonzero if k is the contiguous axis of b */
    const int64_t width = along_k ? t->k : t->n;
    float w[CHUNK];
    for (int64_t i = 0; i < t->m * t->n && !t->accumulate; i++)
        t->c[i] = t->initial ? t->initial[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < t->n * t->k; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min((int)CHUNK, width - first);
        gckpti_dequantise(u, at, n, w);
        for (int64_t i = 0; i < t->m; i++) {
            const float *a = t->a.f32 + i * t->a.stride + (along_k ? first : row) * t->a.k_stride;
            float *c = t->c + i * t->n + (along_k ? row : first);
            if (!along_k)
                gckpti_axpy(*a, w, n, c);
            for (int64_t p = 0; along_k && p < n; p++)
                *c = gckpti_fma(a[p * t->a.k_stride], w[p], *c);
        }
    }
}

#endif
