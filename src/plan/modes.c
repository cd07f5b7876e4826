#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

GCKPTI_COLD_BEGIN

GCKPTI_FN gckpt_result gckpti_place_buffers(gckpti_planner *p)
{
    gckpti_lowered *d = &p->lowered;
    gckpti_scratch_clear(&p->temp);
    d->arena = gckpti_assign_offsets(&p->temp, d->buffers, d->buffer_count, p->alignment);
    if (p->failed || d->arena < SIZE_MAX)
        return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: no layout of %z live bytes can be addressed here; use fewer rows",
                        d->peak);
}

GCKPTI_FN gckpt_result gckpti_lower_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = GCKPT_OK;
    switch (mode) {
    case GCKPT_MEMORY_POOR: gckpti_build_late(p, -1); break;
    case GCKPT_SEGMENTS: gckpti_build_segments(p, 0); break;
    case GCKPT_SQRT: gckpti_build_segments(p, group); break;
    case GCKPT_SCHEDULE: result = gckpti_build_user(p); break;
    default: gckpti_build_store_all(p); break;
    }
    if (p->failed)
        return GCKPT_E_MEMORY;
    if (result == GCKPT_OK)
        result = gckpti_lower_schedule(p, p->entries, (int)p->entry_count);
    p->entry_count = 0;
    if (mode == GCKPT_STORE_ALL)
        p->store_all_peak = p->lowered.peak_estimate;
    return result;
}

GCKPTI_FN int gckpti_is_too_large(const gckpti_planner *p, gckpt_result result)
{
    return result == GCKPT_E_MEMORY && !p->failed;
}

/* Lowers and places the schedule of a mode. */
static gckpt_result gckpti_place_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = gckpti_lower_mode(p, mode, group);
    return result == GCKPT_OK ? gckpti_place_buffers(p) : result;
}

GCKPTI_FN void gckpti_keep_lowered(gckpti_planner *p)
{
    gckpti_lowered swap = p->best;
    p->best = p->lowered;
    p->lowered = swap;
}

GCKPTI_FN int gckpti_group_size(const gckpti_planner *p, size_t i)
{
    size_t ops = (size_t)p->body_count, count = i < ops ? ops : (size_t)p->g->top_segments;
    size_t group = i < ops ? i + 1 : i - ops + 1;
    if (count > 512 && group > 1 &&
        (count + group - 1) / group == (count + group - 2) / (group - 1))
        return 0;
    return i < ops ? (int)group : -(int)group;
}

/* Sets p->best to the uniform segmentation of the least arena. As no arena is below its peak,
 * places segmentations by increasing peak, until the next peak is no less than the least arena. */
static gckpt_result gckpti_find_sqrt(gckpti_planner *p)
{
    size_t least = SIZE_MAX, ops = (size_t)p->body_count, n = ops + (size_t)p->g->top_segments;
    size_t *peak = (size_t *)gckpti_scratch_alloc(&p->scratch, n + 1, sizeof *peak);
    gckpt_result result = peak ? GCKPT_OK : GCKPT_E_MEMORY;
    for (size_t i = 0; i < n && result == GCKPT_OK; i++) {
        peak[i] = SIZE_MAX;
        if (!gckpti_group_size(p, i))
            continue;
        result = gckpti_lower_mode(p, GCKPT_SQRT, gckpti_group_size(p, i));
        result = gckpti_is_too_large(p, result) ? GCKPT_OK : result; /* its peak is SIZE_MAX */
        peak[i] = p->lowered.peak;
    }
    while (result == GCKPT_OK) {
        size_t next = 0;
        for (size_t i = 1; i < n; i++)
            if (peak[i] < peak[next])
                next = i;
        if (n == 0 || peak[next] >= least)
            break;
        peak[next] = SIZE_MAX;
        result = gckpti_place_mode(p, GCKPT_SQRT, gckpti_group_size(p, next));
        result = gckpti_is_too_large(p, result) ? GCKPT_OK : result;
        if (result == GCKPT_OK && p->lowered.arena < least) {
            least = p->lowered.arena;
            gckpti_keep_lowered(p);
        }
    }
    if (result != GCKPT_OK || least < SIZE_MAX)
        return result;
    return gckpti_place_mode(p, GCKPT_SQRT, 1); /* sets the error: none can be addressed */
}

GCKPTI_FN gckpt_result gckpti_plan_mode(gckpti_planner *p, gckpt_mode mode)
{
    if (mode == GCKPT_SQRT && p->desc->schedule.segment_size == 0)
        return gckpti_find_sqrt(p);
    gckpt_result result = gckpti_place_mode(p, mode, p->desc->schedule.segment_size);
    if (result == GCKPT_OK)
        gckpti_keep_lowered(p);
    return result;
}

GCKPTI_COLD_END
#endif
