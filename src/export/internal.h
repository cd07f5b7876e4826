#pragma once
#include "base/base.h"

#ifdef GCKPTI_SEPARATE_TU
/* export/c.c, with the comments */
GCKPTI_FN void gckpti_c_words(gckpti_sink *out, const void *data, size_t n);
GCKPTI_FN void gckpti_c_shape(gckpti_sink *out, const gckpt_shape *shape);
GCKPTI_FN int gckpti_c_identifier(const char *s);
#endif
