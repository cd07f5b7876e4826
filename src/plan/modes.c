#include "plan/own.h"
#include "graph/graph.h"

/* ---- modes: the drafts of all but a search, and of SQRT the best of many ---- */
GCKPTI_FN gckpt_result gckpti_draft_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = GCKPT_OK;
    p->made_length = 0;
    switch (mode) {
    case GCKPT_MEMORY_POOR: gckpti_make_late(p, -1); break;
    case GCKPT_SEGMENTS: gckpti_make_segments(p, 0); break;
    case GCKPT_SQRT: gckpti_make_segments(p, group); break;
    case GCKPT_SCHEDULE: result = gckpti_make_user(p); break;
    default: gckpti_make_store_all(p); break;
    }
    if (p->failed)
        return GCKPT_E_MEMORY;
    if (result == GCKPT_OK)
        result = gckpti_make_draft(p, p->made, (int)p->made_length);
    if (mode == GCKPT_STORE_ALL)
        p->most = p->draft.most;
    return result;
}

GCKPTI_FN int gckpti_too_large(const gckpti_planner *p, gckpt_result result)
{
    return result == GCKPT_E_MEMORY && !p->failed;
}

GCKPTI_FN gckpt_result gckpti_place_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = gckpti_draft_mode(p, mode, group);
    return result == GCKPT_OK ? gckpti_place_draft(p) : result;
}

GCKPTI_FN void gckpti_keep_draft(gckpti_planner *p)
{
    gckpti_draft swap = p->best;
    p->best = p->draft;
    p->draft = swap;
}

GCKPTI_FN int gckpti_group(const gckpti_planner *p, size_t i)
{
    return i < (size_t)p->body_count ? (int)i + 1 : p->body_count - (int)i - 1;
}

GCKPTI_FN int gckpti_part_repeats(const gckpti_planner *p, size_t i)
{
    size_t ops = (size_t)p->body_count, of = i < ops ? ops : (size_t)p->g->outermost;
    size_t group = i < ops ? i + 1 : i - ops + 1;
    return of > 512 && group > 1 && (of + group - 1) / group == (of + group - 2) / (group - 1);
}

GCKPTI_FN gckpt_result gckpti_find_sqrt(gckpti_planner *p)
{
    size_t least = SIZE_MAX, ops = (size_t)p->body_count, n = ops + (size_t)p->g->outermost;
    size_t *bound = (size_t *)gckpti_scratch_take(&p->scratch, n + 1, sizeof *bound);
    gckpt_result result = bound ? GCKPT_OK : GCKPT_E_MEMORY;
    for (size_t i = 0; i < n && result == GCKPT_OK; i++) {
        bound[i] = SIZE_MAX;
        if (gckpti_part_repeats(p, i))
            continue;
        result = gckpti_draft_mode(p, GCKPT_SQRT, gckpti_group(p, i));
        result = gckpti_too_large(p, result) ? GCKPT_OK : result; /* its bound is SIZE_MAX */
        bound[i] = p->draft.bound;
    }
    while (result == GCKPT_OK) {
        size_t next = 0;
        for (size_t i = 1; i < n; i++)
            if (bound[i] < bound[next])
                next = i;
        if (n == 0 || bound[next] >= least)
            break;
        bound[next] = SIZE_MAX;
        result = gckpti_place_mode(p, GCKPT_SQRT, gckpti_group(p, next));
        result = gckpti_too_large(p, result) ? GCKPT_OK : result;
        if (result == GCKPT_OK && p->draft.arena < least) {
            least = p->draft.arena;
            gckpti_keep_draft(p);
        }
    }
    if (result != GCKPT_OK || least < SIZE_MAX)
        return result;
    return gckpti_place_mode(p, GCKPT_SQRT, 1); /* none can be addressed: says so */
}
