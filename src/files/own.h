#pragma once
#include "files/files.h"

/* What the files of files share; no other folder uses it. */

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* files/write.c */
GCKPTI_FN const char *gckpti_renamed(const gckpt_file_desc *d, const char *name);
GCKPTI_FN gckpt_shape gckpti_scale_shape(const gckpt_shape *values);
GCKPTI_FN int gckpti_little_endian(void);

/* files/header.c */
GCKPTI_FN int gckpti_load_header(gckpti_loader *l);

/* files/places.c */
GCKPTI_FN void gckpti_load_sort(gckpti_loader *l, int by_param);
GCKPTI_FN int gckpti_load_check(gckpti_loader *l);
GCKPTI_FN int gckpti_load_create(gckpti_loader *l);

/* files/read.c */
GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *l, size_t size,
                                   const gckpt_file_desc *desc);
#endif
