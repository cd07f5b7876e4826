#pragma once
#include "plan/plan.h"

/* Copies of values to slower memory and back. OFFLOAD and RELOAD begin a copy, and copies end in
 * the order they begin. The module waits for a copy
 * 1. before the instruction that first reads a reloaded value, or writes to offloaded bytes (due);
 * 2. at the end of the body, and of a run: no copy is pending between micro-batches.
 * OFFLOAD_DONE waits for nothing: since it is the last use of these bytes, 1 comes after it. */
#ifndef GCKPT_NO_OFFLOAD
typedef struct {
    unsigned char *host; /* offloaded values; NULL means desc.offload stores them */
    int by_backend;      /* the backend copies */
    int async;           /* copies are started first and waited for later */
    int *due;            /* for each pending copy, oldest first: the waiting instruction */
    int pending_count;
} gckpti_offload_state;

#define gckpti_backend_copies(e) (e)->offload.by_backend

/* Waits for the copies due at instruction x or before, and for all that were started earlier.
 * Returns `result` or, if that is OK or MORE and a copy failed, an error. */
GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result);
#else
#define gckpti_backend_copies(e)         0
#define gckpti_wait_copies(e, x, result) (result)
#define gckpti_run_copies                ((gckpti_handler)0)
#endif
