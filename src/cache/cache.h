#pragma once
#include "plan/plan.h"

#ifndef GCKPT_NO_CACHES
typedef struct {
    gckpt_exec *owner;      /* the executor that has the caches: this one, or desc.caches_of */
    int64_t capacity;       /* positions of each cache */
    int64_t new_positions;  /* positions that a call adds */
    int64_t position, rows; /* positions in the caches, for this many rows of the batch */
    int64_t max_written;    /* highest position since the caches were empty */
} gckpti_cache_state;
#endif
