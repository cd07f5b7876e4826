#pragma once
#include "base/base.h"
#include "plan/plan.h"

/* =================================================================================================
 * >>planner: from a request to a plan; the frontier; the micro-batch; information about plans
 *
 * Public calls. A request (graph, terms, gckpt_plan_desc) is checked (checks) and becomes a
 * gckpti_planner for each variant of the model (planner). Its plan (request) follows from the mode,
 * or is store-all if that fits, or comes from a search. gckpti_prove_plan sets its proven bounds.
 * gckpt_frontier keeps planners and searches for one budget after another, from the largest down;
 * gckpt_fit does all of it for each micro-batch size. getters, print, frontier_print read plans.
 * ============================================================================================== */

static inline const char *gckpti_shard_name(gckpt_shard shard)
{
    static const char *const names[] = { "nothing", "state", "state and gradients",
                                         "state, gradients and values" };
    return names[shard];
}

#ifndef GCKPT_SMALL
/* ---- planner/planner.c ---- */
/* Frees a planner and those of the variants after it. */
GCKPTI_FN void gckpti_planner_free(gckpti_planner *p);

/* Builds the model of a checked request for p->variant, or none if the variant does not apply. */
GCKPTI_FN gckpt_result gckpti_build_model(gckpti_planner *p);

/* Checks a request and initialises a planner, without the model, so that a variant can be set. */
GCKPTI_FN gckpt_result gckpti_planner_start(gckpti_planner *p, gckpti_allocator *memory,
                                            gckpt_graph *graph, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d);

/* ---- tools/fit.c ---- */
#ifndef GCKPT_NO_FIT
/* Runs gckpt_fit, which has the other six parameters, for micro-batches of at least least_rows. */
GCKPTI_FN gckpt_plan *gckpti_fit(gckpt_store *store, gckpt_build_fn build, void *user,
                                 int64_t batch, const gckpt_plan_desc *desc,
                                 gckpt_measure_fn measure, int64_t least_rows);
#endif
#endif

GCKPTI_COLD_BEGIN /* ends in run/run.h */
