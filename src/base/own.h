#pragma once
#include "base/base.h"

/* What the files of base share; no other folder uses it. */

/* ---- base/threads.c ---- */
#if GCKPTI_HAS_FAST
#if GCKPTI_TEAMS
/* A job is body(context, 0..n-1). Only thread 0 gives out jobs, one after the other, and it works
 * too. `left` counts the items nobody has claimed, `open` those that are not finished.
 *
 * Why a thread that comes late, or sleeps anywhere in here, does no harm:
 * - An item is claimed by taking one from `left`, and is one's own if something was left. What
 *   this item is, the thread reads only afterwards. So what it saw before plays no part: if a job
 *   ended and another began meanwhile, it has claimed an item of the other.
 * - A claimed item is open until its thread says that it is finished, and thread 0 changes the job
 *   only when no item is open. So body, context and n stay as they are while they are read.
 * - Taking from a `left` of 0 or less claims nothing; the next job overwrites it.
 * - Job to items: `left` is set with release after the fields and taken from with acquire (taking
 *   continues the release sequence). Items to thread 0, and so to the next job: `open`, likewise.
 * Thread 0 waits for items that a thread has claimed, and for nothing else. */
typedef struct gckpti_team {
    void (*body)(void *context, int64_t i);
    void *context;
    int64_t n;
    int busy; /* a job is under way */
    int over; /* no more jobs */
    int gone; /* threads that have seen it */
    char apart[64];
    int64_t left;
    char apart2[64]; /* cache lines of their own */
    int64_t open;
    char apart3[64];
} gckpti_team;

#endif
#endif

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* base/threads.c */
GCKPTI_FN void gckpti_job(const gckpt_call *call, int64_t n, void (*body)(void *context, int64_t i),
                          void *context);
#if GCKPTI_HAS_FAST && GCKPTI_TEAMS
GCKPTI_FN void gckpti_team_work(gckpti_team *t);
GCKPTI_FN void gckpti_team_end(gckpti_team *t, int others);
#endif
#endif
