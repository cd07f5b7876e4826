#pragma once
#include "store/store.h"
#include "quant/internal.h"

/* Declarations shared by the files of layer store (MANIFEST); some are in folders of features. */

/* ---- dist/shards.c ---- */
#ifndef GCKPT_NO_RANKS
/* Sets first and count: the elements of a parameter that this rank updates. */
GCKPTI_FN void gckpti_set_param_shard(const gckpt_store *s, gckpt_parameter *p);

/* Sets new values after the end of a shard that is not the largest to 0. */
GCKPTI_FN void gckpti_clear_shard_end(const gckpt_store *s, gckpti_param *q);
#else
#define gckpti_clear_shard_end(s, q) ((void)0)
#define gckpti_set_param_shard(s, p) ((void)((p)->count = (p)->elements))
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

/* store/initial.c */
GCKPTI_FN void gckpti_init_values(const gckpt_store *s, const gckpti_param *q, gckpti_init_span *d,
                                  gckpti_init_fn *init_fn);

/* store/arrays.c */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q);

/* store/calls.c */
GCKPTI_FN gckpti_param *gckpti_next_match(gckpt_store *s, const char *pattern,
                                          const gckpti_param *q, gckpt_result *result);
GCKPTI_FN gckpt_result gckpti_add_external(gckpt_store *store, const char *name,
                                           const gckpt_shape *shape,
                                           const gckpt_dequantisation *values, int writable);
#endif
