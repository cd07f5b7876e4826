#pragma once
#include "base/base.h"

/* What the files of tables share; no other folder uses it. */

#ifdef GCKPTI_ROOMS
/* What each does is said where it is defined. */
/* tables/c.c */
GCKPTI_FN void gckpti_c_words(gckpti_sink *k, const void *data, size_t n);
GCKPTI_FN int gckpti_c_letter(char c);
GCKPTI_FN int gckpti_c_identifier(const char *s);
#endif
