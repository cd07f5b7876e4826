#pragma once
#include "ops/ops.h"

#ifndef GCKPT_NO_CACHES
/* ---- cache/ops.c: a cache is a variable (graph/graph.h) ---- */
typedef struct {
    int capacity;
    int window; /* number of latest rows to keep; 0, which is omitted, means all */
} gckpti_cache;
/* Computes a slice of a cache. Returns 0 if the call is another slice. */
GCKPTI_FN int gckpti_latest_rows(const gckpt_call *call);

/* ---- cache/run.c ---- */
typedef struct {
    gckpt_exec *owner;      /* the executor that has the caches: this one, or desc.caches_of */
    unsigned char *values;  /* its caches, in graph order, in memory that the backend can access */
    int64_t capacity;       /* positions of each cache */
    int64_t new_positions;  /* positions that a call adds */
    int64_t position, rows; /* positions in the caches, for this many rows of the batch */
    int64_t max_written;    /* highest position since the caches were empty */
    int64_t begun;          /* position at which the last call began */
} gckpti_cache_state;
#else
#define gckpti_latest_rows(call) 0
#endif
