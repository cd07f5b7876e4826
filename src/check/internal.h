#pragma once
#include "check/check.h"
#include "run/run.h"

/* Declarations shared by the files of layer check (MANIFEST); some are in folders of features. */

/* ---- check/gradients.c ---- */
/* The input of steps that run repeatedly and leave the model unchanged. */
typedef struct {
    gckpt_exec *exec;
    const gckpt_feed *feeds;
    int count;
    int64_t rows;
} gckpti_batch;

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes; the definitions have the comments. */

/* check/gradients.c */
GCKPTI_FN gckpt_result gckpti_batch_begin(const gckpti_batch *batch, gckpti_goal goal);
GCKPTI_FN gckpt_result gckpti_batch_end(const gckpti_batch *batch, const char *who,
                                        gckpt_report *report);
GCKPTI_FN int64_t gckpti_max_elements(const gckpt_plan *p, int measured);
#endif
