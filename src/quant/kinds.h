#pragma once
#include "store/store.h"

/* The kinds of storage. All but F32 are compressed: their values are read by gckpti_decompress. */

/* I8 and I4: values per block; bytes per block (2 for the scale, with I4 a last one for the zero
 * point); greatest magnitude. */
enum { GCKPTI_QUANT_BLOCK = 32, GCKPTI_INT8_BYTES = 34, GCKPTI_INT4_BYTES = 19 };
enum { GCKPTI_INT4_ZERO = 18 }; /* place of the zero point in a block of I4 */
enum { GCKPTI_INT8_MAX = 127 * 65504, GCKPTI_INT4_MAX = 8 * 65504 };
/* A way to store values, in memory and in files: one for each gckpt_storage of this build. */
typedef struct {
    const char *name, *type; /* for error texts; dtype in files */
    int bytes;               /* bytes of an element of a file's tensor, to which data are aligned */
    int block, block_bytes;  /* values that are stored together: 1, or GCKPTI_QUANT_BLOCK */
    double limit;            /* greatest magnitude that `write` can convert */
    const char *beyond;      /* values that `write` refuses, for error texts */
    /* Converts n values, at most 16 or, of a kind with blocks, one block, to floats. */
    void (*read)(const void *from, int64_t n, float *y);
    /* Converts n floats, as many at most. Returns 0 if one cannot be stored. */
    int (*write)(const float *x, int64_t n, void *to);
} gckpti_storage_kind;

/* Compressed values: their storage, addresses and number. */
typedef gckpt_dequantisation gckpti_compressed;

enum { GCKPTI_HAS_COMPRESSED = GCKPTI_WITH_QUANT };
#define gckpti_is_compressed(storage) (GCKPTI_HAS_COMPRESSED && (storage) != GCKPT_STORAGE_F32)

/* Returns the address of the values in their storage, NULL without values. */
static inline const void *gckpti_stored(const gckpt_parameter *p)
{
    return p->quantised ? p->quantised : p->values;
}
static inline int gckpti_has_values(const gckpti_param *q) { return gckpti_stored(&q->p) != NULL; }

#ifndef GCKPT_NO_QUANT
#define GCKPTI_IF_COMPRESSED(call) call

/* Returns the kind of a gckpt_storage, or NULL if this build has none. */
GCKPTI_FN const gckpti_storage_kind *gckpti_kind_of(int storage);

/* Returns the bytes of n values of rows of `row` values; they end with a block. */
GCKPTI_FN int64_t gckpti_storage_bytes(int storage, int64_t row, int64_t n);

/* Converts a shape to that in a file, whose last axis counts bytes if values are in blocks, and
 * returns its elements; and back: returns 0 if no rows have these bytes. */
GCKPTI_FN int64_t gckpti_pack_shape(int storage, gckpt_shape *shape);
GCKPTI_FN int gckpti_unpack_shape(const gckpti_storage_kind *kind, gckpt_shape *shape);

/* Returns how many of n values to convert at once, from element `at` on: a whole row at most. */
static inline int64_t gckpti_values_chunk(int64_t row, int64_t at, int64_t n)
{
    return gckpti_min(n - at, gckpti_min(GCKPTI_CHUNK, row - at % row));
}

/* Returns the bytes of all values in their storage. */
#define gckpti_values_bytes(p)                                                                     \
    ((size_t)gckpti_storage_bytes((int)(p)->storage, gckpti_last(&(p)->shape), (p)->elements))

/* Sets the address of the values, in q's storage. */
GCKPTI_FN void gckpti_set_stored(gckpti_param *q, const void *values);

/* Returns the memory of the values, which the store owns. */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q);

static inline uint16_t gckpti_half_at(const void *from, int k)
{
    uint16_t half;
    memcpy(&half, (const unsigned char *)from + 2 * k, sizeof half);
    return half;
}

/* Returns the scale of a block; most are normal numbers. */
static inline float gckpti_block_scale(const unsigned char *b)
{
    const uint32_t half = b[0] | (uint32_t)b[1] << 8, size = half & 0x7fffu;
    if (size - 0x400u < 0x7800u)
        return gckpti_float((half & 0x8000u) << 16 | ((size << 13) + 0x38000000u));
    return gckpti_from_f16((uint16_t)half);
}

/* Returns the address of element `at` of u, the start of a block. */
static inline const unsigned char *gckpti_compressed_at(const gckpti_compressed *u, int64_t at)
{
    return (const unsigned char *)u->quantised + gckpti_storage_bytes((int)u->storage, u->row, at);
}

/* Returns u without the elements before `at`, the start of a row. */
static inline gckpti_compressed gckpti_compressed_from(const gckpti_compressed *u, int64_t at)
{
    gckpti_compressed rest = *u;
    rest.quantised = gckpti_compressed_at(u, at);
    rest.n -= at;
    return rest;
}

/* Converts elements at..at+n-1 of u to floats x. The source may be at the end of x: an element is
 * read before it is overwritten. */
GCKPTI_FN void gckpti_decompress(const gckpti_compressed *u, int64_t at, int64_t n, float *x);

/* Returns a description of a parameter's values on the host, without destination. */
GCKPTI_FN gckpti_compressed gckpti_compressed_param(const gckpti_param *q);

GCKPTI_FN void gckpti_decompress_at(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* Compresses n floats of a row into q's memory from element `at` on, the start of a block. Returns
 * 0 if a float is too large. */
GCKPTI_FN int gckpti_compress_at(gckpti_param *q, int64_t at, int64_t n, const float *x);

/* Compresses the host's values of `from` (initial ones, if it has none) into the memory of `to`.
 * Returns 0 if a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);

/* ---- quant/ops.c ---- */
GCKPTI_FN void gckpti_decompress_all(const gckpt_call *call, const gckpti_compressed *all);
#define gckpti_cpu_dequantise gckpti_decompress_all
#else
static inline const gckpti_storage_kind *gckpti_kind_of(int storage)
{
    static const gckpti_storage_kind f32 = { "F32", "F32", 4, 1, 4, 1e300, "", NULL, NULL };
    return storage == GCKPT_STORAGE_F32 ? &f32 : NULL;
}
#define GCKPTI_IF_COMPRESSED(call)            (void)0
#define gckpti_storage_bytes(storage, row, n) ((void)(storage), (int64_t)(n)*4)
#define gckpti_pack_shape(storage, shape)     ((void)(storage), gckpti_elements(shape))
#define gckpti_unpack_shape(kind, shape)      1
#define gckpti_values_chunk(row, at, n)       ((void)(row), gckpti_min((n) - (at), GCKPTI_CHUNK))
#define gckpti_values_bytes(p)                ((size_t)(p)->elements * sizeof(float))
#define gckpti_set_stored(q, from)            ((void)memcpy(&(q)->p.values, &(from), sizeof(from)))
#define gckpti_values_block(q)                ((unsigned char *)(void *)(q)->p.values)
#define gckpti_compressed_at(u, at)           ((void)(u), (void)(at), (const char *)NULL)
#define gckpti_decompress(u, at, n, x)        ((void)(u), (void)(at), (void)(x))
#define gckpti_compressed_from(u, at)         ((void)(at), *(u))
#define gckpti_compress_at(q, at, n, x)       ((void)(q), 0)
#define gckpti_host_values(s, q, at, n, x)    gckpti_init_values(s, q, at, n, x)
#define gckpti_cpu_dequantise                 NULL
#endif
