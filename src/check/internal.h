#pragma once
#include "check/check.h"
#include "run/run.h"

/* What the files of check share; no other folder uses it. */

/* ---- check/gradients.c ---- */
/* What a step is tried on, again and again, without being taken. */
typedef struct {
    gckpt_exec *exec;
    const gckpt_feed *feeds;
    int count;
    int64_t rows;
} gckpti_batch;

#ifdef GCKPTI_SEPARATE_TU
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* check/gradients.c */
GCKPTI_FN gckpt_result gckpti_batch_begin(const gckpti_batch *batch, gckpti_goal goal);
GCKPTI_FN gckpt_result gckpti_batch_end(const gckpti_batch *batch, const char *who,
                                        gckpt_report *report);
GCKPTI_FN int64_t gckpti_max_elements(const gckpt_plan *p, int measured);
#endif
