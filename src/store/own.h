#pragma once
#include "store/store.h"

/* What the files of store share; no other folder uses it. */

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* store/params.c */
GCKPTI_FN int64_t gckpti_held(const gckpt_store *s, const gckpti_param *q, int slot);

/* store/create.c */
GCKPTI_FN void gckpti_param_share(const gckpt_store *s, gckpt_parameter *p);

/* store/packed.c */
GCKPTI_FN void gckpti_unpack_piece(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* store/mirror.c */
GCKPTI_FN gckpti_mirror *gckpti_mirror_of(const gckpt_store *s, const gckpti_param *q);
GCKPTI_FN void gckpti_unmirror(const gckpt_store *s, const gckpti_param *q);

/* store/names.c */
GCKPTI_FN int *gckpti_names_like(const gckpt_store *s, const char *name);
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q);

/* store/values.c */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to);
GCKPTI_FN void gckpti_packed_unpack(const gckpt_call *call, const gckpt_unpacking *unpacking);
GCKPTI_FN void gckpti_fp32_stored(const gckpti_factors *t);
#endif
