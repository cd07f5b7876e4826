#pragma once
#include "base/base.h"
#include "plan/plan.h"

/* =================================================================================================
 * >>planner: from a request to a plan; the frontier; the micro-batch; information about plans
 *
 * Public calls. A request (graph, terms, gckpt_plan_desc) is checked (checks.c) and becomes
 * a gckpti_planner for each variant (planner.c). Its plan (request.c) follows from the mode,
 * or is store-all if that fits, or comes from a search. gckpti_prove_plan sets its proven bounds.
 * gckpt_frontier keeps planners and searches for one budget after another, from the largest down.
 * getters.c reads plans.
 * ============================================================================================== */

GCKPTI_COLD_BEGIN /* ends in run/run.h */
