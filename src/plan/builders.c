#include "base/base.h"

GCKPTI_COLD_BEGIN /* ends in plan/passes.h */
#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- builders: each writes the body of a schedule, p->entries ---- */
GCKPTI_FN void gckpti_emit(gckpti_planner *p, int entry)
{
    p->failed = p->failed || p->entry_count > INT32_MAX / 4 ||
                !gckpti_grow(p->memory, &p->entries, &p->entry_capacity, p->entry_count,
                             sizeof *p->entries);
    if (!p->failed)
        p->entries[p->entry_count++] = entry;
}

static void gckpti_emit_forwards(gckpti_planner *p, int begin, int end)
{
    for (int u = begin; u < end; u++)
        gckpti_emit(p, u);
}

GCKPTI_FN void gckpti_build_store_all(gckpti_planner *p)
{
    gckpti_emit_forwards(p, p->prologue, p->nodes);
    for (int r = 0; r < p->body_backwards; r++)
        gckpti_emit(p, ~p->backward[r]);
}

GCKPTI_FN void gckpti_emit_late(gckpti_planner *p, int *next, int r)
{
    for (; *next < p->nodes && p->needed_by[p->late[*next]] <= r; ++*next)
        gckpti_emit(p, p->late[*next]);
}

GCKPTI_FN void gckpti_build_late(gckpti_planner *p, int group)
{
    int next = p->prologue, last_group = -1;
    for (int r = 0; r < p->body_backwards; r++) {
        int late = p->late_index[p->backward[r]];
        int this_group = group > 0 ? (late - p->prologue) / group : r;
        int i = group > 0 ? p->prologue + this_group * group : p->prologue;
        int end = group > 0 ? i + group : group < 0 ? late + 1 : 0;
        gckpti_set_min(&end, next);
        for (; i < end && this_group != last_group; i++)
            gckpti_emit(p, p->late[i]);
        gckpti_emit_late(p, &next, r);
        gckpti_emit(p, ~p->backward[r]);
        last_group = this_group;
    }
    gckpti_emit_late(p, &next, INT32_MAX); /* losses of a graph without backwards */
}

GCKPTI_FN int gckpti_child_segment(const gckpti_planner *p, int group, int segment, int u)
{
    const gckpti_segment *all = p->g->segments;
    int child = -1, s;
    while (p->tensors[p->node[u].id]->kind == GCKPTI_PARAM)
        u++;
    for (s = p->tensors[p->node[u].id]->segment; s >= 0 && (group < 0 || s != segment);
         s = all[s].parent)
        child = s;
    if (group == 0)
        return s == segment ? child : GCKPTI_OUTSIDE;
    child = child < 0 ? -1 : all[child].ordinal / -group;
    return segment < 0 ? child : child == segment ? -1 : GCKPTI_OUTSIDE;
}

GCKPTI_FN void gckpti_build_segments(gckpti_planner *p, int group)
{
    int segment = -1, high = p->nodes; /* the last emitted forwards end before `high` */
    if (group > 0) {
        gckpti_build_late(p, group);
        return;
    }
    gckpti_emit_forwards(p, p->prologue, p->nodes);
    for (int last = p->nodes - 1; last >= p->prologue;) {
        int child = gckpti_child_segment(p, group, segment, last), low = last;
        if (child == GCKPTI_OUTSIDE) {
            segment = group < 0 ? -1 : p->g->segments[segment].parent;
        } else if (child < 0) {
            if (p->node[last].backward_index >= 0)
                gckpti_emit(p, ~last);
            last--;
        } else {
            while (low > p->prologue && gckpti_child_segment(p, group, segment, low - 1) == child)
                low--;
            if (last + 1 != high)
                gckpti_emit_forwards(p, low, last + 1);
            high = last + 1;
            segment = child;
        }
    }
}

/* ---- modes: the lowered plans of all modes except a search ---- */
GCKPTI_FN gckpt_result gckpti_place_buffers(gckpti_planner *p, size_t enough)
{
    gckpti_lowered *d = &p->lowered;
    gckpti_scratch_clear(&p->temp);
    d->arena = gckpti_assign_offsets(&p->temp, d->buffers, d->buffer_count, p->alignment, enough);
    if (p->failed || d->arena < SIZE_MAX)
        return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: no layout of %z live bytes can be addressed here; use fewer rows",
                        d->peak);
}

GCKPTI_FN int gckpti_segment_size(const gckpti_planner *p)
{
    int root = 1;
    while ((root + 1) <= (p->nodes - p->prologue) / (root + 1))
        root++;
    return p->desc->schedule.segment_size ? p->desc->schedule.segment_size : root;
}

GCKPTI_FN gckpt_result gckpti_lower_mode(gckpti_planner *p, gckpt_mode mode)
{
    gckpt_result result = GCKPT_OK;
    switch (mode) {
    case GCKPT_MEMORY_POOR: gckpti_build_late(p, -1); break;
    case GCKPT_SEGMENTS: gckpti_build_segments(p, 0); break;
    case GCKPT_SQRT: gckpti_build_segments(p, gckpti_segment_size(p)); break;
    case GCKPT_SCHEDULE: result = gckpti_pass(p, GCKPTI_PASS_BODY, NULL); break;
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

GCKPTI_FN void gckpti_keep_lowered(gckpti_planner *p)
{
    gckpti_lowered swap = p->best;
    p->best = p->lowered;
    p->lowered = swap;
}

GCKPTI_FN gckpt_result gckpti_plan_mode(gckpti_planner *p, gckpt_mode mode)
{
    gckpt_result result = gckpti_lower_mode(p, mode);
    if (result == GCKPT_OK)
        result = gckpti_place_buffers(p, 0);
    if (result == GCKPT_OK)
        gckpti_keep_lowered(p);
    return result;
}
#endif
