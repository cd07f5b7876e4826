#pragma once
#include "ops/ops.h"

#ifndef GCKPT_NO_CACHES
/* ---- cache/ops.c: a cache is a variable (graph/graph.h) ---- */
typedef struct {
    int capacity;
    int window; /* number of latest rows to keep; 0, which is omitted, means all */
} gckpti_cache;
/* Computes a slice of a cache: row j of n is position + T - n + j of a call that adds T rows, and 0
 * before position 0. Returns 0 if the call is another slice. */
static inline int gckpti_latest_rows(const gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    const int64_t n = call->shape.d[1], held = x->shape.d[1], c = call->shape.d[2];
    if (!p->relative || !p->axis)
        return 0;
    for (int64_t i = 0; i < call->shape.d[0] * n; i++) {
        const int64_t at = call->position + p->relative - n + i % n;
        const float *from = x->data + (at < 0 ? 0 : (i / n * held + at % held) * c);
        for (int64_t j = 0; j < c; j++)
            call->out[i * c + j] = at < 0 ? 0.0f : from[j];
    }
    return 1;
}

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
