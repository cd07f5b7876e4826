#pragma once
#include "store/store.h"

/* Declarations shared by the files of layer store (MANIFEST); some are in folders of features. */

/* ---- quant/kinds.c, quant/rows.c, quant/copy.c ---- */
#ifndef GCKPT_NO_QUANT
GCKPTI_FN void gckpti_read_bf16(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_bf16(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_f16(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_f16(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_int8(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_int8(const float *x, int64_t n, float scale, void *to);
GCKPTI_FN void gckpti_read_int4(const void *from, float scale, float *y);
GCKPTI_FN int gckpti_write_int4(const float *x, int64_t n, float scale, void *to);
#define GCKPTI_MODULE_KINDS                                                                        \
    { "BF16", "BF16", 2, 1, 2, 0, 0, 1e300, "", gckpti_read_bf16, gckpti_write_bf16 },             \
    { "F16", "F16", 2, 1, 2, 0, 0, 65504, "beyond 65504", gckpti_read_f16, gckpti_write_f16 },     \
    { "I8", "I8", 1, 1, 1, 1, 1, 3e38, "not finite", gckpti_read_int8,                  \
      gckpti_write_int8 },                                                                         \
    { "I4", "U8", 1, GCKPTI_INT4_BLOCK, GCKPTI_INT4_BYTES, 1, 0, GCKPTI_INT4_MAX,                  \
      "beyond 524032, or not finite", gckpti_read_int4, gckpti_write_int4 },

/* Quantises the values of `from` (or its initial values, if it has none) into the memory of `to`.
 * Returns 0 if a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);

/* Rounds *n initial values in x as q's storage does, or fewer (*n): blocks, or within a row. */
GCKPTI_FN void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     int64_t *n, float *x);
#else
#define GCKPTI_MODULE_KINDS
static inline void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                         int64_t *n, float *x)
{
    (void)s, (void)q, (void)at, (void)n, (void)x;
}
static inline int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from,
                                     gckpti_param *to)
{
    return (void)s, (void)from, (void)to, 1;
}
#endif

/* ---- devices/mirrors.c ---- */
#ifndef GCKPT_NO_DEVICES
/* Copies the newest values to the host, then frees the mirror. */
GCKPTI_FN void gckpti_free_mirror(const gckpt_store *s, const gckpti_param *q);

/* Makes room for a mirror of each parameter; returns 0 without memory. */
GCKPTI_FN int gckpti_open_mirrors(gckpt_store *s);

/* Frees a backend's mirrors unless another executor uses that backend. */
GCKPTI_FN void gckpti_close_mirrors(gckpt_store *s, const gckpt_backend *b);

/* Returns 1 if only the mirror has a parameter's newest values. */
GCKPTI_FN int gckpti_is_on_device(const gckpt_store *s, const gckpti_param *q);

/* Copies n newest values from element `at` of the shard on to the host. */
GCKPTI_FN void gckpti_read_mirror(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                  int64_t n, float *to);
#else
#define gckpti_free_mirror(s, q)            ((void)(s), (void)(q))
#define gckpti_open_mirrors(s)              1
#define gckpti_close_mirrors(s, b)          ((void)(s))
#define gckpti_is_on_device(s, q)           0
#define gckpti_read_mirror(s, q, at, n, to) ((void)0)
#endif

#ifdef GCKPTI_SEPARATE_TU
/* The comments are at the definitions. */
/* store/names.c */
GCKPTI_FN int gckpti_same_name(const char *a, const char *b);

#ifndef GCKPT_NO_QUANT
/* quant/rows.c */
GCKPTI_FN float gckpti_row_scale(uint32_t max_bits);
GCKPTI_FN uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n);
GCKPTI_FN int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x,
                                 float scale);
#endif

/* store/initial.c */
GCKPTI_FN void gckpti_init_values(const gckpt_store *s, const gckpti_param *q, gckpti_init_span *d,
                                  gckpti_init_fn *init_fn);

/* store/arrays.c */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q);

/* store/params.c */
GCKPTI_FN void gckpti_set_param_shard(const gckpt_store *s, gckpt_parameter *p);

/* store/calls.c */
GCKPTI_FN gckpti_param *gckpti_next_match(gckpt_store *s, const char *pattern,
                                          const gckpti_param *q, gckpt_result *result);
GCKPTI_FN gckpt_result gckpti_add_external(gckpt_store *store, const char *name,
                                           const gckpt_shape *shape,
                                           const gckpt_dequantisation *values, int writable);
#endif
