#pragma once
#include "planner/planner.h"
#include "search/search.h"
#ifndef GCKPT_SMALL

/* ---- tools/frontier.c ---- */
/* How to make the plan of a point: a schedule and its variant. */
typedef struct {
    gckpt_point point;
    gckpti_planner *p;  /* the variant */
    int *entry, length; /* the schedule's entries */
} gckpti_solution;

struct gckpt_frontier {
    gckpti_object object;
    gckpti_allocator memory;
    gckpti_planner p;           /* the first variant; its `next` are the others; models are kept */
    gckpt_plan_desc desc;       /* with copies of the arrays it points to */
    gckpti_solution *solutions; /* one for each point */
    size_t count, resident;     /* resident: bytes of parameters and optimiser state */
    gckpt_frontier_info info;
};

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for files compiled separately; comments are at the definitions. */

/* planner/checks.c */
GCKPTI_FN gckpt_result gckpti_check_request(gckpt_graph *g, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *d);
GCKPTI_FN gckpt_result gckpti_check_fetches(gckpti_planner *p);

/* planner/planner.c */
GCKPTI_FN void gckpti_planner_reset(gckpti_planner *p);
GCKPTI_FN void gckpti_planner_release(gckpti_planner *p);
GCKPTI_FN void gckpti_planner_free(gckpti_planner *p);
GCKPTI_FN gckpt_result gckpti_planner_open(gckpti_planner *p, gckpti_allocator *memory,
                                           gckpt_graph *graph, const gckpt_term *terms, int count,
                                           const gckpt_plan_desc *d);
GCKPTI_FN gckpt_result gckpti_add_variants(gckpti_planner *p);
GCKPTI_FN void gckpti_planner_report(const gckpti_planner *p, gckpt_result result);
GCKPTI_FN void gckpti_budget_error(const gckpti_planner *p, size_t budget, size_t least);

/* planner/request.c */
GCKPTI_FN gckpti_planner *gckpti_first_variant(gckpti_planner *first, size_t arena);
GCKPTI_FN gckpt_result gckpti_prove(const gckpti_planner *first, size_t bytes, uint64_t *cost,
                                    size_t *least);
GCKPTI_FN void gckpti_prove_plan(const gckpti_planner *first, size_t budget, gckpt_plan *plan);
#endif
#endif /* GCKPT_SMALL */
