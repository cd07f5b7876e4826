#pragma once
#include "plan/plan.h"

#ifndef GCKPT_NO_DEBUG
typedef struct {
    uint64_t *hashes;  /* GCKPT_DEBUG_RECOMPUTE: two for each node: of value and saved */
    size_t high_water; /* GCKPT_DEBUG_MEASURE: end of the bytes that steps wrote */
    unsigned given;    /* GCKPT_DEBUG_FINITE: kinds of numbers with which the step began */
} gckpti_debug_state;

#define gckpti_debug(e) (e)->desc.debug
#else
#define gckpti_debug(e) 0u
#endif
