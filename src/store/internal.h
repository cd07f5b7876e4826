#pragma once
#include "store/store.h"

/* Declarations shared by the files of layer store (MANIFEST); some are in folders of features. */

/* ---- quant/rows.c, quant/copy.c ---- */
#ifndef GCKPT_NO_QUANT
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);
GCKPTI_FN void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     int64_t *n, float *x);
#else
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

/* Counts a change of values, so that bf16 copies are refreshed; skips 0, which means "never". */
#ifndef GCKPT_NO_BF16
#define gckpti_count_change(q) ((q)->changes += (q)->changes == UINT32_MAX ? 2 : 1)
#else
#define gckpti_count_change(q) ((void)0)
#endif

#ifdef GCKPTI_SEPARATE_TU
/* The comments are at the definitions. */
/* store/names.c */
GCKPTI_FN int gckpti_same_name(const char *a, const char *b);

/* store/initial.c */
GCKPTI_FN void gckpti_init_values(const gckpt_store *s, const gckpti_param *q, gckpti_init_span *d,
                                  gckpti_init_fn *init_fn);

#ifndef GCKPT_NO_QUANT
/* quant/rows.c */
GCKPTI_FN int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x);
GCKPTI_FN uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n);
GCKPTI_FN int gckpti_set_scale(gckpti_param *q, int64_t at, uint32_t peak);
#endif

/* store/arrays.c */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q);

/* store/values.c */
GCKPTI_FN void gckpti_free_mirror(const gckpt_store *s, const gckpti_param *q);

/* store/params.c */
GCKPTI_FN void gckpti_set_param_shard(const gckpt_store *s, gckpt_parameter *p);

/* store/calls.c */
GCKPTI_FN gckpti_param *gckpti_next_match(gckpt_store *s, const char *pattern,
                                          const gckpti_param *q, gckpt_result *result);
GCKPTI_FN gckpt_result gckpti_add_external(gckpt_store *store, const char *name,
                                           const gckpt_shape *shape, const void *values,
                                           int writable, gckpti_param **q);
#endif
