#include "ask/own.h"
#include "search/search.h"

#ifndef GCKPT_NO_SEARCH
/* Drafts what has least work in most_bytes of the arena, by a search: p->best, placed. Otherwise
 * *least is what the smallest needs. */
GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least)
{
    gckpti_search s;
    *least = 0;
    gckpt_result result = gckpti_search_open(&s, p);
    if (result == GCKPT_OK && most_bytes > 0)
        result = gckpti_choose(&s, most_bytes);
    if (result == GCKPT_OK && s.winner.length > 0) {
        *least = s.winner.arena;
        result = gckpti_lay(&s, &s.winner);
        gckpti_keep_draft(p);
    } else if (result == GCKPT_OK) {
        result = gckpti_find_least(&s, SIZE_MAX, least);
        if (result == GCKPT_OK && *least == SIZE_MAX)
            result = GCKPT_E_MEMORY; /* none that this machine can address: the error is there */
    }
    gckpti_scratch_free(&s.scratch);
    return result;
}

/* The variant whose proven work is least; their bounds are open afterwards. */
GCKPTI_FN gckpti_planner *gckpti_promising(gckpti_planner *first, const gckpti_planner *end,
                                           size_t arena)
{
    gckpti_planner *least = first;
    gckpti_open_bounds(first);
    for (gckpti_planner *p = first; p != end && !p->failed; p = p->next)
        if (gckpti_prove_work(p->bound, arena) < gckpti_prove_work(least->bound, arena))
            least = p;
    return least;
}

/* What is proven about all plans of a request within the bytes of each of n points, and *least, the
 * bytes that none can do without: the least of all its variants. Other modes are planned in little
 * memory, so their hulls will do. */
GCKPTI_FN gckpt_result gckpti_prove(const gckpti_planner *first, gckpt_point *point, size_t n,
                                    size_t *least)
{
    int searched = first->desc->mode == GCKPT_AUTO || first->desc->mode == GCKPT_OPTIMAL;
    size_t resident = gckpti_resident(first, NULL);
    *least = SIZE_MAX;
    for (const gckpti_planner *p = first; p; p = p->next) {
        gckpti_bound *b = p->bound;
        if (p->failed)
            return GCKPT_E_MEMORY;
        for (int k = 0; b && k < b->instants && !searched; k++)
            b->instant[k].tried |= 1u << GCKPTI_ALL;
        for (size_t i = 0; i < n; i++) {
            uint64_t work = gckpti_prove_work(b, point[i].bytes - resident);
            if (p == first || work < point[i].proven_work)
                point[i].proven_work = work;
        }
        size_t bytes = resident + gckpti_prove_bytes(b);
        *least = bytes < *least ? bytes : *least;
    }
    return GCKPT_OK;
}

/* Notes it for a plan and its budget (0: its own bytes). NULL, and the plan is gone: no memory. */
GCKPTI_FN gckpt_plan *gckpti_prove_plan(const gckpti_planner *first, size_t budget,
                                        gckpt_plan *plan)
{
    gckpt_point at = { budget ? budget : gckpt_plan_bytes(plan), 0, 0, 0, 0 };
    size_t least;
    if (plan && gckpti_prove(first, &at, 1, &least) != GCKPT_OK) {
        gckpt_plan_free(plan);
        return NULL;
    }
    if (plan) {
        plan->proven_work = at.proven_work;
        plan->proven_bytes = least;
    }
    return plan;
}
#endif
