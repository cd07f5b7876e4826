#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- dequantisation ---- */
GCKPTI_FN void gckpti_decompress(const gckpti_compressed *u, int64_t at, int64_t n, float *x)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)u->storage);
    const int64_t each = kind->block > 1 ? kind->block : GCKPTI_KIND_READ;
    float y[GCKPTI_QUANT_BLOCK], tail[GCKPTI_KIND_READ] = { 0 };
    for (int64_t chunk; n > 0; n -= chunk, at += chunk, x += chunk) {
        const int64_t first = at % kind->block;
        const void *from = gckpti_compressed_at(u, at - first);
        chunk = gckpti_min(n, each - first);
        if (chunk < each && kind->block == 1) /* less than what `read` reads may be left */
            from = memcpy(tail, from, (size_t)(chunk * kind->bytes));
        kind->read(from, y);
        memcpy(x, y + first, (size_t)chunk * sizeof *x);
    }
}

GCKPTI_FN gckpti_compressed gckpti_compressed_from(const gckpti_compressed *u, int64_t at)
{
    gckpti_compressed rest = *u;
    rest.quantised = gckpti_compressed_at(u, at);
    rest.n -= at;
    return rest;
}

GCKPTI_FN gckpti_compressed gckpti_compressed_param(const gckpti_param *q)
{
    const gckpti_compressed u = { q->p.storage, gckpti_stored(&q->p), q->p.elements, NULL };
    return u;
}

GCKPTI_FN void gckpti_decompress_at(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpti_compressed u = gckpti_compressed_param(q);
    gckpti_decompress(&u, at, n, x);
}

/* ---- quantisation ---- */
GCKPTI_FN int gckpti_compress_at(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    unsigned char *to = gckpti_values_block(q) + gckpti_storage_bytes((int)q->p.storage, at);
    if (q->p.storage == GCKPT_STORAGE_F32)
        return memcpy(to, x, (size_t)n * sizeof *x) != NULL;
    return gckpti_kind_of((int)q->p.storage)->write(x, n, to);
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

/* Rounds n initial values, whole blocks, in x as q's storage does. */
static void gckpti_compress_initial(const gckpti_param *q, int64_t n, float *x)
{
    uint32_t compressed[GCKPTI_CHUNK];
    const gckpti_compressed u = { q->p.storage, compressed, n, NULL };
    (void)gckpti_kind_of((int)q->p.storage)->write(x, n, compressed);
    gckpti_decompress(&u, 0, n, x);
}

GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    float buf[GCKPTI_CHUNK];
    int fits = 1;
    for (int64_t at = 0, n; at < to->p.elements && fits; at += n) {
        n = gckpti_min(to->p.elements - at, GCKPTI_CHUNK);
        gckpti_host_values(s, from, at, n, buf);
        fits = gckpti_compress_at(to, at, n, buf);
    }
    return fits;
}
#endif
