#pragma once
#include "search/search.h"

#ifndef GCKPT_NO_SEARCH
#ifndef GCKPT_NO_OFFLOAD
GCKPTI_FN uint64_t gckpti_copy_cost(const gckpti_search *s, int node, int64_t bytes);
GCKPTI_FN uint64_t gckpti_restore_cost(const gckpti_search *s, int u, int x);
GCKPTI_FN void gckpti_begin_strategy(gckpti_planner *p, int strategy);
GCKPTI_FN gckpti_candidate *gckpti_overlap_copies(gckpti_search *s, gckpti_candidate *candidate);
#else
/* Without slower memory no copy is possible, and there is one strategy. */
#define gckpti_copy_cost(s, node, bytes) UINT64_MAX
#define gckpti_restore_cost(s, u, x)     0
#define gckpti_begin_strategy(p, n)      ((void)(n))
#define gckpti_overlap_copies(s, c)      NULL
#endif
#endif
