#pragma once
#include "base/base.h"

/* Functions that the files of export share; each is documented where it is defined. */
#ifdef GCKPTI_SEPARATE_TU
/* export/c.c */
GCKPTI_FN void gckpti_c_words(gckpti_sink *out, const void *data, size_t n);
GCKPTI_FN void gckpti_c_shape(gckpti_sink *out, const gckpt_shape *shape);
GCKPTI_FN int gckpti_c_identifier(const char *s);
#endif
