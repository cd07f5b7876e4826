#pragma once
#include "base/base.h"
#include "plan/plan.h"

/* =================================================================================================
 * >>ask: from a request to a plan; the frontier; the micro-batch; what a plan tells
 *
 * What users call. A request (graph, terms, gckpt_plan_desc) is checked (checks), becomes a
 * gckpti_planner for each variant of the model (open), and is decided (request): by the mode asked
 * for, by store-all if it fits, or by search. gckpt_frontier keeps planners and asks for budget
 * after budget; gckpt_fit does all of it for each size of the micro-batch. tells and pictures only
 * read plans.
 * ============================================================================================== */

static inline const char *gckpti_shard_name(gckpt_shard shard)
{
    static const char *const names[] = { "nothing", "state", "state and gradients",
                                         "state, gradients and values" };
    return names[shard];
}

/* ---- planner/planner.c ---- */
/* Frees what a planner has, and those of other variants behind it. */
GCKPTI_FN void gckpti_planner_free(gckpti_planner *p);

/* Makes the model of a request that was checked, for p->variant; none when that is not offered. */
GCKPTI_FN gckpt_result gckpti_build_model(gckpti_planner *p);

/* Checks a request; readies a planner of it, yet without the model: it may get a variant. */
GCKPTI_FN gckpt_result gckpti_planner_start(gckpti_planner *p, gckpti_allocator *memory,
                                            gckpt_graph *graph, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d);

/* ---- planner/fit.c ---- */
#ifndef GCKPT_NO_FIT
/* gckpt_fit, of micro-batches that have so many rows or more. (Of its seven parameters the program
 * gives six.) */
GCKPTI_FN gckpt_plan *gckpti_fit(gckpt_store *store, gckpt_build_fn build, void *user,
                                 int64_t batch, const gckpt_plan_desc *desc,
                                 gckpt_measure_fn measure, int64_t least_rows);
#endif

GCKPTI_COLD_BEGIN /* to run */
