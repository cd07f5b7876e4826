#pragma once
#include "ops/ops.h"

#ifndef GCKPT_NO_CACHES
/* ---- cache/ops.c: a cache is a variable (graph/graph.h) ---- */
typedef struct {
    int capacity;
    int window; /* number of latest rows to keep; 0, which is omitted, means all */
} gckpti_cache;

/* ---- cache/run.c ---- */
typedef struct {
    gckpt_exec *owner;      /* the executor that has the caches: this one, or desc.caches_of */
    unsigned char *values;  /* its caches, in graph order, in memory that the backend can access */
    int64_t capacity;       /* positions of each cache */
    int64_t new_positions;  /* positions that a call adds */
    int64_t position, rows; /* positions in the caches, for this many rows of the batch */
    int64_t max_written;    /* highest position since the caches were empty */
} gckpti_cache_state;
#endif
