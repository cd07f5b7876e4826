#pragma once
#include "store/store.h"

/* =================================================================================================
 * >>export: plans as C constants, stores for them
 * ============================================================================================== */

/* ---- export/params.c ---- */
/* A parameter as examples/weights.h prints it. Another layout needs another GCKPT_PLAN_FORMAT. */
typedef struct {
    const char *name;
    const void *values; /* in their storage */
    gckpt_shape shape;
    uint32_t scale_bits[2]; /* bits of lr_scale, decay_scale */
    unsigned char storage, frozen;
} gckpti_exported;

/* Adds n exported parameters to an empty store, which uses frozen ones in place. */
GCKPTI_FN gckpt_result gckpti_bind_exported(gckpt_store *s, const gckpti_exported *all, size_t n);
