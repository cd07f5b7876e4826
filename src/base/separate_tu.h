/* For builds that compile each file of src/ separately, as the tests do; make header leaves it out.
 * Functions of a layer header (plan/plan.h) or of a folder's internal.h have hidden visibility here
 * and are static in gradckpt.h. The prototypes in internal.h are needed only here, since gradckpt.h
 * defines functions before their use. Assertions are active here (test_hooks.h). */
#pragma once
#include "api.h"

#define GCKPTI_SEPARATE_TU
#define GCKPTI_FN   __attribute__((visibility("hidden")))
#define GCKPTI_DATA __attribute__((visibility("hidden")))

#define GCKPT_ASSERT(x) ((x) ? (void)0 : gckpti_assert_failed(#x, __FILE__, __LINE__))
GCKPTI_FN void gckpti_assert_failed(const char *text, const char *file, int line);

#if (defined(__unix__) || defined(__APPLE__)) && !defined(GCKPTI_TEAMS)
#define GCKPTI_TEAMS 1
#endif
