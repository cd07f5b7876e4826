#pragma once
#include "store/store.h"

/* The kinds of storage, and functions that read and write quantised values. */

/* I4: values per block; bytes per block (2 for the scale); greatest magnitude: 8 * 65504. */
enum { GCKPTI_INT4_BLOCK = 32, GCKPTI_INT4_BYTES = 18, GCKPTI_INT4_MAX = 524032 };

#ifndef GCKPT_NO_QUANT
/* Returns the kind of a gckpt_storage, or NULL if this build has none. */
GCKPTI_FN const gckpti_storage_kind *gckpti_kind_of(int storage);
GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage);

/* Returns the length of the array that holds n values in a file: int4 blocks are bytes there. */
GCKPTI_FN int64_t gckpti_file_count(int storage, int64_t n);
GCKPTI_FN int64_t gckpti_storage_bytes(int storage, int64_t n);

/* Converts a shape in a file, whose last axis counts bytes if values are in blocks, to that of the
 * values. Returns 0 if it does not consist of whole blocks. */
GCKPTI_FN int gckpti_unpack_shape(const gckpti_storage_kind *kind, gckpt_shape *shape);

/* Returns how many elements share a scale; all elements, if there is no scale. */
GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p);
GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p);

/* Returns the bytes of all values in their storage. */
GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p);

/* Returns the memory of the values. Quantised ones that the store owns begin with their scales. */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q);
GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block);

/* Dequantises elements at..at+n-1 of u to x. The source may be at the end of x: an element is read
 * before it is overwritten. Without scales, all scales are 1. */
GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x);

/* Returns u without the elements before `at`, the start of a row or block. */
GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at);

/* Returns a description of a parameter's values on the host, without destination. */
GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q);

/* Converts n values from element `at` on to floats. */
GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* Quantises n floats into q's memory from element `at` on: if rows are scaled a row, with its
 * scale; else whole blocks. Returns 0 if a float is too large. */
GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x);

/* Quantises the values of `from` (or its initial values, if it has none) into the memory of `to`.
 * Returns 0 if a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);
#else
static inline const gckpti_storage_kind *gckpti_kind_of(int storage)
{
    static const gckpti_storage_kind f32 = { "F32", "F32", 4, 1, 4, 0, 0, 1e300, "", NULL, NULL };
    return storage == GCKPT_STORAGE_F32 ? &f32 : NULL;
}
#define gckpti_storage_name(storage)          ((void)(storage), "F32")
#define gckpti_file_count(storage, n)         ((void)(storage), (int64_t)(n))
#define gckpti_storage_bytes(storage, n)      ((void)(storage), (int64_t)(n)*4)
#define gckpti_unpack_shape(kind, shape)      1
#define gckpti_row_length(p)                  ((p)->elements)
#define gckpti_scale_bytes(p)                 ((void)(p), (size_t)0)
#define gckpti_values_bytes(p)                ((size_t)(p)->elements * sizeof(float))
#define gckpti_values_block(q)                ((unsigned char *)(void *)(q)->p.values)
#define gckpti_set_block(q, block)            ((void)((q)->p.values = (float *)(void *)(block)))
#define gckpti_dequantise(u, at, n, x)        ((void)(u), (void)(at), (void)(x))
#define gckpti_quant_from(u, at)              ((void)(at), *(u))
#define gckpti_dequantise_at(q, at, n, x)     ((void)0)
#define gckpti_quantise_row(q, at, n, x)      ((void)(q), 0)
#define gckpti_init_quantised(s, q, at, n, x) ((void)0)
#define gckpti_values_copy(s, from, to)       ((void)(s), 1)
#endif
