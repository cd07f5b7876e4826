/* What the files of src/ need where each is compiled by itself, as the tests have them, and what
 * make header leaves out. What stands in a folder's door (plan/plan.h), or is shared by its files
 * (plan/internal.h), is hidden here and static in gradckpt.h. Assertions hold here: test_hooks.h.
 * Prototypes of the latter are for here alone: in gradckpt.h functions stand in order. */
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
