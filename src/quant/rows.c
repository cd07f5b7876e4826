#include "store/store.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- dequantisation ---- */
enum { GCKPTI_KIND_READ = 16 }; /* values in a `read` of a kind without blocks */
GCKPTI_FN void gckpti_decompress(const gckpti_compressed *u, int64_t at, int64_t n, float *x)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)u->storage);
    const int blocks = kind->block > 1, each = blocks ? kind->block : GCKPTI_KIND_READ;
    const int64_t row = blocks ? u->row : INT64_MAX;
    int64_t i = blocks ? at % row : 0, first = i % kind->block;
    const unsigned char *from = gckpti_compressed_at(u, at - first);
    float y[GCKPTI_QUANT_BLOCK];
    for (int64_t count; n > 0; n -= count, x += count, first = 0) {
        const int64_t size = gckpti_min(each, row - (i - first)); /* of the block */
        count = gckpti_min(n, size - first);
        kind->read(from, first + count, y);
        memcpy(x, y + first, (size_t)count * sizeof *x);
        from += blocks ? kind->block_bytes - kind->block + size : count * kind->bytes;
        i = i + count == row ? 0 : i + count;
    }
}

GCKPTI_FN gckpti_compressed gckpti_compressed_param(const gckpti_param *q)
{
    const gckpti_compressed u = { q->p.storage, gckpti_stored(&q->p), q->p.elements,
                                  gckpti_last(&q->p.shape), NULL };
    return u;
}

GCKPTI_FN void gckpti_decompress_at(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpti_compressed u = gckpti_compressed_param(q);
    gckpti_decompress(&u, at, n, x);
}

/* ---- quantisation ---- */
/* Converts n floats from the start of a block on. Returns 0 if one cannot be stored. */
static int gckpti_compress(const gckpti_storage_kind *kind, const float *x, int64_t n, void *to)
{
    const int each = kind->block > 1 ? kind->block : GCKPTI_KIND_READ;
    unsigned char *b = (unsigned char *)to;
    int fits = 1;
    for (int64_t i = 0; i < n; i += each, b += each / kind->block * kind->block_bytes)
        fits &= kind->write(x + i, gckpti_min(n - i, each), b);
    return fits;
}

GCKPTI_FN int gckpti_compress_at(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    unsigned char *to = gckpti_values_block(q);
    to += gckpti_storage_bytes((int)q->p.storage, gckpti_last(&q->p.shape), at);
    if (q->p.storage == GCKPT_STORAGE_F32)
        return memcpy(to, x, (size_t)n * sizeof *x) != NULL;
    return gckpti_compress(gckpti_kind_of((int)q->p.storage), x, n, to);
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

/* Rounds n initial values of a row in x as q's storage does. */
static void gckpti_compress_initial(const gckpti_param *q, int64_t n, float *x)
{
    uint32_t compressed[GCKPTI_CHUNK];
    const gckpti_compressed u = { q->p.storage, compressed, n, n, NULL };
    (void)gckpti_compress(gckpti_kind_of((int)q->p.storage), x, n, compressed);
    gckpti_decompress(&u, 0, n, x);
}

GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    float buf[GCKPTI_CHUNK];
    int fits = 1;
    for (int64_t at = 0, n; at < to->p.elements && fits; at += n) {
        n = gckpti_values_chunk(gckpti_last(&to->p.shape), at, to->p.elements);
        gckpti_host_values(s, from, at, n, buf);
        fits = gckpti_compress_at(to, at, n, buf);
    }
    return fits;
}
#endif
