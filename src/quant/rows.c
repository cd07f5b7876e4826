#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- dequantisation ---- */
GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)u->storage);
    const int64_t each = kind->block > 1 ? kind->block : GCKPTI_KIND_READ;
    const unsigned char *begin = (const unsigned char *)u->quantised;
    float y[GCKPTI_KIND_MOST], tail[GCKPTI_KIND_READ] = { 0 };
    for (int64_t chunk; n > 0; n -= chunk, at += chunk, x += chunk) {
        const int64_t first = at % kind->block;
        const void *from = begin + gckpti_storage_bytes((int)u->storage, at - first);
        chunk = gckpti_min(n, each - first);
        if (u->scales)
            chunk = gckpti_min(chunk, u->row - at % u->row);
        if (chunk < each && kind->block == 1) /* less than what `read` reads may be left */
            from = memcpy(tail, from, (size_t)(chunk * kind->bytes));
        kind->read(from, u->scales ? u->scales[at / u->row] : 1, y);
        memcpy(x, y + first, (size_t)chunk * sizeof *x);
    }
}

GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at)
{
    const int64_t skip = gckpti_storage_bytes((int)u->storage, at);
    gckpt_dequantisation rest = *u;
    rest.quantised = (const unsigned char *)u->quantised + skip;
    rest.scales = u->scales ? u->scales + at / u->row : NULL;
    rest.n -= at;
    return rest;
}

GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q)
{
    const gckpt_parameter *p = &q->p;
    gckpt_dequantisation u = { p->storage,           p->quantised, p->scales,
                               gckpti_row_length(p), p->elements,  NULL };
    return u;
}

GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpt_dequantisation u = gckpti_param_quant(q);
    if (q->p.storage == GCKPT_STORAGE_F32)
        memcpy(x, q->p.values + at, (size_t)n * sizeof *x);
    else
        gckpti_dequantise(&u, at, n, x);
}

/* ---- rows ---- */
/* Returns the scale of a row with this greatest magnitude (as bits: NaN has the greatest). */
static float gckpti_row_scale(uint32_t max_bits) { return gckpti_float(max_bits) / 127; }

/* Returns the maximum of max_bits and of the bits of |x| for n floats. */
static uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = gckpti_bits(x[i]) & 0x7fffffffu;
        max_bits = u > max_bits ? u : max_bits;
    }
    return max_bits;
}

/* Quantises n floats into q's memory from element `at`, with this scale of its row. */
static int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x, float scale)
{
    unsigned char *block = gckpti_values_block(q);
    const size_t scales = gckpti_scale_bytes(&q->p);
    if (scales)
        memcpy(block + at / gckpti_row_length(&q->p) * 4, &scale, sizeof scale);
    block += (int64_t)scales + gckpti_storage_bytes((int)q->p.storage, at);
    if (q->p.storage == GCKPT_STORAGE_F32)
        return memcpy(block, x, (size_t)n * sizeof *x) != NULL;
    return gckpti_kind_of((int)q->p.storage)->write(x, n, scale, block);
}

GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    const float scale = q->p.scales ? gckpti_row_scale(gckpti_max_abs(0, x, n)) : 1;
    return gckpti_quantise_at(q, at, n, x, scale);
}

/* Rounds *n initial values (lowered to end in the row) from `at` on, in x, as q's storage does. */
static void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                  int64_t *n, float *x)
{
    const int64_t row = gckpti_row_length(&q->p), end = at - at % row + row;
    const int scaled = gckpti_kind_of((int)q->p.storage)->scaled;
    float buf[GCKPTI_CHUNK], scale;
    uint32_t quantised[GCKPTI_CHUNK], peak = 0;
    *n = gckpti_min(*n, end - at);
    for (int64_t i = end - row, count; scaled && i < end; i += count) {
        count = gckpti_min(end - i, GCKPTI_CHUNK);
        gckpti_init_values(s, q, i, count, buf);
        peak = gckpti_max_abs(peak, buf, count);
    }
    scale = gckpti_row_scale(peak);
    const gckpt_dequantisation u = {
        q->p.storage, quantised, scaled ? &scale : NULL, *n, *n, NULL
    };
    (void)gckpti_kind_of((int)q->p.storage)->write(x, *n, scale, quantised);
    gckpti_dequantise(&u, 0, *n, x);
}
#endif
