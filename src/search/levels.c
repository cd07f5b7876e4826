#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* Emits a body that runs all nodes as late as they are needed, keeps results that `action` does not
 * mark, and recomputes or reloads marked results just before the first backward that needs them. */
static void gckpti_build_cut(gckpti_planner *p, const unsigned char *action)
{
    int *stack = p->queue, next = p->prologue;
    unsigned char *present = p->computed;
    for (int u = 0; u < p->nodes; u++)
        present[u] = !action[u] || p->needed_by[u] > 0;
    for (int r = 0; r < p->body_backwards; r++) {
        const gckpti_node *u = &p->node[p->backward[r]];
        gckpti_emit_late(p, &next, r);
        for (int k = 0; k < u->reads + u->reads_saved; k++) {
            int depth = 1;
            stack[0] = k < u->reads ? p->edges[u->read + k] : p->backward[r];
            while (depth > 0) {
                const gckpti_node *q = &p->node[stack[depth - 1]];
                int missing = -1, is_reload = action[stack[depth - 1]] == GCKPTI_CUT_OFFLOAD;
                for (int i = q->in; i < q->in + q->inputs && missing < 0 && !is_reload; i++)
                    missing = present[p->edges[i]] ? -1 : p->edges[i];
                if (present[stack[depth - 1]]) {
                    depth--;
                } else if (missing >= 0) {
                    stack[depth++] = missing;
                } else {
                    present[stack[--depth]] = 1;
                    gckpti_emit(p, stack[depth] + (is_reload ? p->nodes : 0));
                }
            }
        }
        gckpti_emit(p, ~p->backward[r]);
    }
    gckpti_emit_late(p, &next, INT32_MAX); /* losses of a graph without backwards */
}

/* Makes the schedule of s->action the current one. Returns its peak; out of memory: INT64_MAX. */
GCKPTI_FN int64_t gckpti_try_actions(gckpti_search *s)
{
    gckpti_build_cut(s->p, s->action);
    return gckpti_take_built(s) ? s->now.peak : INT64_MAX;
}

/* ---- the local search for one limit ---- */
/* Reduces the peak of the current schedule to a candidate's limit unless it is far above, removes
 * recomputes, and stores the schedule in the candidate if it is better. */
static void gckpti_improve(gckpti_search *s, gckpti_candidate *candidate)
{
    if (s->now.peak / 5 * 4 > candidate->limit)
        return;
    s->started = s->evaluated + s->examined / 4; /* an attempt: 1/8 of all effort */
    if (gckpti_reduce_peak(s, candidate->limit)) {
        gckpti_remove_recomputes(s, candidate->limit);
        gckpti_candidate_update(s, candidate);
    }
    s->started = -1;
}

/* Improves a candidate by another candidate's schedule, first as it is. */
static void gckpti_improve_from(gckpti_search *s, gckpti_candidate *candidate,
                                const gckpti_candidate *from)
{
    if (!gckpti_candidate_load(s, from))
        return;
    gckpti_candidate_update(s, candidate);
    gckpti_improve(s, candidate);
}

/* Perturbs a candidate's schedule to leave a local optimum: removes one recompute, even beyond the
 * limit, and reduces the peak without dropping that node again. Tries the four largest savings;
 * starts again after a success. */
static void gckpti_perturb(gckpti_search *s, gckpti_candidate *candidate)
{
    for (int i = 0; i < 4 && candidate->length && !gckpti_is_exhausted(s); i++) {
        const uint64_t before = candidate->overhead;
        if (!gckpti_candidate_load(s, candidate))
            return;
        gckpti_find_recomputes(s, INT64_MAX);
        if (i >= s->moves || s->p->failed)
            return;
        s->excluded = s->move[i].node;
        s->move[i].entry = INT32_MAX;
        gckpti_apply_move(s, GCKPTI_MOVE_REPLACE, i);
        const int fits = gckpti_reduce_peak(s, candidate->limit);
        s->excluded = -1;
        if (!fits)
            continue;
        gckpti_remove_recomputes(s, candidate->limit);
        gckpti_candidate_update(s, candidate);
        i = candidate->overhead < before ? -1 : i;
    }
}
/* Solves a level from the two cuts around it on a hull: keeps what the lower cut does and, as far
 * as the bytes between both allow, the last nodes that only the upper cut keeps. */
static void gckpti_solve_cut(gckpti_search *s, gckpti_candidate *level, gckpti_cut_point *point,
                             int which)
{
    const gckpti_planner *p = s->p;
    const gckpti_cut_table *cuts = gckpti_cuts(s->bound, point, which);
    const gckpti_cut_list *hull = &cuts->last;
    const int64_t space = level->limit - point->base;
    const int cut = gckpti_cut_within(hull, space);
    int64_t excess = 1, bytes = cut < 0 ? -1 : space - hull->cut[cut].bytes;
    for (int tried = 0; tried < 2 && excess > 0 && bytes >= 0; tried++, bytes -= excess) {
        if (gckpti_is_proven(s, level) || gckpti_is_exhausted(s))
            return;
        memset(s->upper_cut, 0, (size_t)p->nodes);
        if (cut + 1 < hull->n)
            gckpti_mark_cut(s->bound, cuts, cut + 1, s->upper_cut);
        gckpti_mark_cut(s->bound, cuts, cut, s->action);
        int64_t kept = 0;
        for (int u = p->nodes; u-- > 0;) {
            const int64_t size = p->node[u].out + p->node[u].saved;
            if (!s->action[u] || s->upper_cut[u] || kept + size > bytes)
                continue;
            kept += size;
            s->action[u] = 0;
        }
        excess = gckpti_try_actions(s) - level->limit;
        if (excess <= level->limit / 4) /* else the peak is too far above the limit */
            gckpti_improve(s, level);
    }
}

/* ---- initial schedules: built once without a limit (search/search) ---- */
enum { GCKPTI_REDUCED = 10 }; /* most initials that get a copy with a reduced peak */

/* Orders initials by peak, then cost. */
static int gckpti_initial_before(const void *first, const void *second, const void *context)
{
    const gckpti_candidate *a = (const gckpti_candidate *)first,
                           *b = (const gckpti_candidate *)second;
    (void)context;
    return a->peak != b->peak ? a->peak < b->peak : a->overhead < b->overhead;
}

/* Adds copies of initials with a peak reduced by 1/1000: a level may improve them much further. */
static void gckpti_reduce_initials(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, done = 0, n = s->initials; i < n && done < GCKPTI_REDUCED && !p->failed; i++) {
        const gckpti_candidate *from = &s->initial[i];
        if (from->overhead / 8 * 7 >= least || from->overhead < p->least_cost / 4 ||
            from->overhead / 4 > p->least_cost)
            continue;
        least = from->overhead < least ? from->overhead : least;
        done++;
        int64_t limit = from->peak - (from->peak - p->gradient_between[0]) / 1000 - 1;
        s->evaluated = s->examined = 0;
        if (!gckpti_candidate_load(s, from) || !gckpti_reduce_peak(s, limit))
            continue;
        gckpti_remove_recomputes(s, limit);
        gckpti_reapply_policy(s);
        gckpti_add_initial(s);
    }
}

/* Finds the initials, once: store-all, store-all with late forwards, uniform segments, the user's
 * segments, the chain's, memory-poor. */
GCKPTI_FN void gckpti_find_initials(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->body_count, groups = n + (size_t)p->g->top_segments;
    if (s->initials > 0)
        return;
    s->evaluated = s->examined = 0;
    gckpti_build_store_all(p);
    gckpti_add_built(s);
    int64_t most = s->initial ? s->initial[0].peak - p->gradient_between[0] : 0;
    gckpti_build_late(p, 0);
    gckpti_add_built(s);
    for (size_t i = 0; i <= groups && !p->failed; i++) {
        int group = i < groups ? gckpti_group_size(p, i) : 0;
        if (i < groups && !group)
            continue;
        gckpti_build_segments(p, group);
        gckpti_add_built(s);
    }
    for (int kind = 0, fine = 0; kind < GCKPTI_BORDERS && !p->failed; kind++) {
        if (kind == GCKPTI_AT_NODES && p->nodes > (fine ? GCKPTI_SMALL_N : GCKPTI_MEDIUM_N))
            break;
        fine = gckpti_add_chain_initials(s, kind, most);
    }
    if (p->nodes <= GCKPTI_MEDIUM_N && !p->failed) {
        gckpti_build_late(p, -1);
        gckpti_add_built(s);
    }
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
    gckpti_reduce_initials(s);
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
}

/* ---- levels ---- */
enum { GCKPTI_LEVEL_GROUP = 4 }; /* levels that depend on one another */

/* Builds the level grid: limits from store-all's bytes to the proven minimum, for all budgets. */
GCKPTI_FN void gckpti_build_levels(gckpti_search *s, int64_t most)
{
    const int64_t resident = s->p->gradient_between[0], least = s->bound->min_bytes;
    const int nodes = s->p->nodes, part = nodes <= 64               ? 100
                                          : nodes <= 300            ? 40
                                          : nodes <= GCKPTI_LARGE_N ? 90
                                                                    : 12;
    const int every = (most - least) / s->grain <= 96;
    int decider;
    const uint64_t steep_cost = gckpti_hulls_cost(s->bound, least, &decider) / 8 * 7;
    for (int64_t limit = most; limit >= least;) {
        int64_t step = every ? s->grain : (limit - resident) / part;
        if (!every && gckpti_hulls_cost(s->bound, limit, &decider) > steep_cost)
            step *= nodes <= 300 ? 2 : 3;  /* fewer levels where bounds are weak */
        step = step / s->grain * s->grain; /* live bytes are multiples of it */
        step = step > 0 ? step : s->grain;
        gckpti_candidate *level = gckpti_candidate_new(s, &s->level, &s->levels);
        if (!level)
            return;
        level->limit = limit;
        limit = limit - least > step ? limit - step : limit > least ? least : least - 1;
    }
}

/* Solves level k: tries schedules from cuts. Unless one is proven near-optimal, improves initials
 * within or near the limit, and the schedule of the level above in the group. */
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k)
{
    gckpti_candidate *level = &s->level[k];
    const int grouped = k % GCKPTI_LEVEL_GROUP > 0;
    const int small = s->p->nodes <= GCKPTI_SMALL_N;
    const int tries = !grouped || small ? 4 : s->p->nodes <= 300 ? 2 : 1; /* 1: grids are fine */
    int decider, i = 0, best = -1;
    if (level->solved || s->p->failed)
        return;
    level->solved = 1;
    level->bound = gckpti_bound_cost(s->bound, level->limit, &decider);
    if (level->bound == UINT64_MAX)
        return;
    s->evaluated = s->examined = 0;
    for (int c = 0; c < (s->p->can_offload ? GCKPTI_FULL : 1) && decider < s->bound->points; c++)
        gckpti_solve_cut(s, level, &s->bound->point[decider], c);
    if (gckpti_is_proven(s, level))
        return;
    gckpti_find_initials(s);
    if (grouped)
        gckpti_solve_level(s, k - 1);
    s->evaluated = s->examined = 0;
    for (; i < s->initials && s->initial[i].peak <= level->limit; i++)
        if (best < 0 || s->initial[i].overhead <= s->initial[best].overhead)
            best = i;
    if (best >= 0)
        gckpti_improve_from(s, level, &s->initial[best]);
    if (grouped && s->level[k - 1].length == 0)
        return; /* not even the level above has one */
    uint64_t least = UINT64_MAX;
    for (int tried = 0; i < s->initials && tried < tries; i++) {
        const gckpti_candidate *initial = &s->initial[i];
        if (initial->overhead / 8 * 7 > least || initial->overhead / 4 > s->p->least_cost)
            continue;
        least = initial->overhead < least ? initial->overhead : least;
        gckpti_improve_from(s, level, initial);
        tried++;
    }
    if (grouped)
        gckpti_improve_from(s, level, &s->level[k - 1]);
    if (small)
        gckpti_perturb(s, level);
}
#endif
