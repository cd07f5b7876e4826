#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- dequantisation ---- */
GCKPTI_FN void gckpti_decompress(const gckpti_compressed *u, int64_t at, int64_t n, float *x)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)u->storage);
    const int64_t each = kind->block > 1 ? kind->block : GCKPTI_KIND_READ;
    float y[GCKPTI_KIND_MOST], tail[GCKPTI_KIND_READ] = { 0 };
    for (int64_t chunk; n > 0; n -= chunk, at += chunk, x += chunk) {
        const int64_t first = at % kind->block;
        const void *from = gckpti_compressed_at(u, at - first);
        chunk = gckpti_min(n, each - first);
        if (u->scales)
            chunk = gckpti_min(chunk, u->row - at % u->row);
        if (chunk < each && kind->block == 1) /* less than what `read` reads may be left */
            from = memcpy(tail, from, (size_t)(chunk * kind->bytes));
        kind->read(from, u->scales ? u->scales[at / u->row] : 1, y);
        memcpy(x, y + first, (size_t)chunk * sizeof *x);
    }
}

GCKPTI_FN gckpti_compressed gckpti_compressed_from(const gckpti_compressed *u, int64_t at)
{
    gckpti_compressed rest = *u;
    rest.quantised = gckpti_compressed_at(u, at);
    rest.scales = u->scales ? u->scales + at / u->row : NULL;
    rest.n -= at;
    return rest;
}

GCKPTI_FN gckpti_compressed gckpti_compressed_param(const gckpti_param *q)
{
    const gckpt_parameter *p = &q->p;
    gckpti_compressed u = { p->storage,           gckpti_stored(p), p->scales,
                            gckpti_row_length(p), p->elements,      NULL };
    return u;
}

GCKPTI_FN void gckpti_decompress_at(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpti_compressed u = gckpti_compressed_param(q);
    gckpti_decompress(&u, at, n, x);
}

/* ---- rows ---- */
/* Returns the maximum of max_bits and of the bits of |x| for n floats; NaN has the greatest. */
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

GCKPTI_FN int gckpti_compress_row(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    const float scale = q->p.scales ? gckpti_float(gckpti_max_abs(0, x, n)) / 127 : 1;
    return gckpti_quantise_at(q, at, n, x, scale);
}

/* Converts n values of q on the host from element `at` on; initial ones, if it has none yet. */
static void gckpti_host_values(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t n,
                               float *x)
{
    if (!gckpti_has_values(q) || q->uninitialised)
        gckpti_init_values(s, q, at, n, x);
    else
        gckpti_decompress_at(q, at, n, x);
}

/* Returns the scale of the row of `to` with element `at`, for the values of `from`; 1 if none. */
static float gckpti_scale_of(const gckpt_store *s, const gckpti_param *from, const gckpti_param *to,
                             int64_t at)
{
    const int64_t row = gckpti_row_length(&to->p), end = at - at % row + row;
    float buf[GCKPTI_CHUNK];
    uint32_t peak = 0;
    if (!gckpti_kind_of((int)to->p.storage)->scaled)
        return 1;
    for (int64_t i = end - row, n; i < end; i += n) {
        n = gckpti_min(end - i, GCKPTI_CHUNK);
        gckpti_host_values(s, from, i, n, buf);
        peak = gckpti_max_abs(peak, buf, n);
    }
    return gckpti_float(peak) / 127;
}

/* Rounds *n initial values (lowered to end in the row) from `at` on, in x, as q's storage does. */
static void gckpti_compress_initial(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                    int64_t *n, float *x)
{
    const int64_t row = gckpti_row_length(&q->p);
    const float scale = gckpti_scale_of(s, q, q, at);
    uint32_t compressed[GCKPTI_CHUNK];
    *n = gckpti_min(*n, row - at % row);
    const gckpti_compressed u = { q->p.storage, compressed, &scale, *n, *n, NULL };
    (void)gckpti_kind_of((int)q->p.storage)->write(x, *n, scale, compressed);
    gckpti_decompress(&u, 0, *n, x);
}

GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    const int64_t row = gckpti_row_length(&to->p);
    float buf[GCKPTI_CHUNK], scale = 1;
    int fits = 1;
    for (int64_t at = 0, n; at < to->p.elements && fits; at += n) {
        n = gckpti_min(row - at % row, GCKPTI_CHUNK);
        scale = at % row ? scale : gckpti_scale_of(s, from, to, at);
        gckpti_host_values(s, from, at, n, buf);
        fits = gckpti_quantise_at(to, at, n, buf, scale);
    }
    return fits;
}
#endif
