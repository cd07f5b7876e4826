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
GCKPTI_FN gckpt_result gckpti_write(const gckpti_saving *v, gckpt_write_fn write, void *user);

/* files/header.c */
GCKPTI_FN void gckpti_text_name(gckpti_text *t, const char *name, const char *suffix);
GCKPTI_FN int gckpti_load_header(gckpti_loader *l);

/* files/places.c */
GCKPTI_FN int gckpti_saved_by_param(const void *first, const void *second, const void *context);
GCKPTI_FN int gckpti_saved_by_offset(const void *first, const void *second, const void *context);
GCKPTI_FN int gckpti_load_check(gckpti_loader *l);
GCKPTI_FN int gckpti_load_create(gckpti_loader *l);

/* files/data.c */
GCKPTI_FN int gckpti_load_bytes(gckpti_loader *l, void *out, size_t n);
GCKPTI_FN void gckpti_load_rest(gckpti_loader *l);

/* files/read.c */
GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *l, size_t size,
                                   const gckpt_file_desc *desc);
#endif
