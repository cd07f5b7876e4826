#pragma once
#include "plan/plan.h"

typedef struct { /* a fetch of the plan */
    float *to;   /* destination given to gckpt_collect, or NULL */
    size_t size; /* floats at `to` */
    float *copy; /* host copy that gckpt_fetch returns, if the backend has own memory */
} gckpti_exec_fetch;
