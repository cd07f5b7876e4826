#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * search: the schedule of least cost for every budget
 *
 * The level grid, which depends on the model alone, has byte limits from store-all's down to the
 * proven minimum. A level is solved once, when a budget needs it (gckpti_solve_level):
 *   cuts     The cut of the deciding point says what to keep there; the rest is recomputed just
 *            before its first reader. The two cuts of the hull around the limit are combined. A
 *            schedule within 0.1 % of a step of the bound is proven near-optimal; then the level
 *            is done.
 *   initial  Else schedules built once without a limit: store-all, segments, memory-poor, and those
 *            of a dynamic programme over a chain of stages (search/chain). The best that fits, a
 *            few that do not, and the next larger level's are improved by 1. and 2. Of each
 *            GCKPTI_LEVEL_GROUP levels the first tries more initials, and no level above.
 *   1. gckpti_reduce_peak closes live-range holes until the schedule is within the limit: before
 *      the use after a hole it recomputes the value with its closure (what that reads and is not
 *      live), or reloads it. All holes whose cost per excess byte is within twice the best, and
 *      whose closures share no node, are closed at once; the result is evaluated exactly.
 *   2. gckpti_remove_recomputes removes recomputations, largest saving first, within the limit.
 * gckpti_find_best takes the candidate of least cost: of levels from the budget down until the next
 * is proven to cost no less, and of the level above the budget. It ignores a level's schedule that
 * would also fit the next lower level, because smaller budgets never search this level. Initials
 * count at the level that they fit, unless its schedule is near-optimal and its arena is within the
 * limit. So the candidates do not depend on the budget, and more memory never costs more time.
 *
 * Invariants: 1. gckpti_evaluate computes for each position the live bytes of the lowered plan of
 * the same schedule (sizes rounded up to the alignment). 2. A level's schedule is within its limit
 * and depends neither on the budget nor on earlier calls. 3. Effort limits count entries, never
 * time, and all numbers are integers, so that a plan is the same on every machine.
 * ============================================================================================== */

/* Returns the largest power of two that divides all sizes of a model. */
GCKPTI_FN int64_t gckpti_size_grain(const gckpti_planner *p)
{
    int64_t sizes = 0;
    for (int r = 0; r <= p->backwards; r++)
        sizes |= p->gradient_at[r] | p->gradient_between[r];
    for (int u = 0; u < p->nodes; u++)
        sizes |= p->node[u].out | p->node[u].saved | p->node[u].workspace;
    return sizes & -sizes;
}

/* Effort limit of a level, per node: evaluated entries, plus 1/4 of those examined for moves. */
#define GCKPTI_EFFORT_LIMIT INT64_C(700)

/* Returns whether the effort is used up. `first` and `left`: an attempt's excess, first and now. */
GCKPTI_FN int gckpti_should_stop(gckpti_search *s, int64_t first, int64_t left)
{
    int64_t nodes = s->p->nodes + 200, most = GCKPTI_EFFORT_LIMIT * nodes;
    int64_t used = s->started < 0 ? 0 : s->evaluated + s->examined / 4 - s->started;
    int ends = s->evaluated > most || s->examined > 4 * most || used > most / 8 ||
               (used > most / 32 && left > first / 4 * 3) || (used > most / 16 && left > first / 2);
    s->incomplete = s->incomplete || ends;
    return ends;
}

GCKPTI_FN int gckpti_is_exhausted(gckpti_search *s) { return gckpti_should_stop(s, 0, 0); }

/* Evaluates a schedule: finds its live ranges, and removes entries whose results nobody reads. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule)
{
    s->evaluated += schedule->length;
    if (gckpti_schedule_reserve(&s->scratch, schedule, schedule->length))
        gckpti_find_live_ranges(s->p, schedule);
}

/* Returns a schedule's excess over the limit: live bytes above it, summed over positions. */
GCKPTI_FN int64_t gckpti_excess(const gckpti_schedule *schedule, int64_t limit)
{
    int64_t sum = schedule->peak == INT64_MAX ? INT64_MAX / 2 : 0;
    if (schedule->peak <= limit)
        return 0;
    for (int x = 0; x < schedule->length; x++)
        sum += schedule->live_bytes[x] > limit ? schedule->live_bytes[x] - limit : 0;
    return sum;
}

/* Makes s->next the current schedule. */
GCKPTI_FN void gckpti_accept_next(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
}

/* ---- forward passes (scans) over the current schedule, with definitions in s->state ---- */
/* Advances the scan past the entry at position x. */
GCKPTI_FN void gckpti_scan_entry(gckpti_search *s, int x)
{
    const gckpti_schedule *now = &s->now;
    int i = now->entry[x], count;
    const int *edges = gckpti_entry_reads(s->p, i, &count);
    for (int k = 0; k < count; k++)
        s->state[edges[k]].prev_use = x;
    s->examined += count + 1;
    if (i < 0) {
        s->state[~i].prev_use = s->p->node[~i].reads_saved ? x : s->state[~i].prev_use;
        return;
    }
    gckpti_node_state *v = &s->state[gckpti_entry_node(s->p, i)];
    v->value_end = now->value_end[x];
    v->saved_end = now->saved_end[x];
    v->start = v->prev_use = x;
    v->run_count += !gckpti_is_reload(s->p, i);
}

/* Sums the excess over a limit by position, and begins a scan. Returns 0 if out of memory. */
GCKPTI_FN int gckpti_begin_scan(gckpti_search *s, int64_t limit)
{
    const gckpti_schedule *now = &s->now;
    size_t n = (size_t)now->length + 1;
    if (!gckpti_reserve(&s->scratch, &s->excess_sum, n, sizeof *s->excess_sum) ||
        !gckpti_reserve(&s->scratch, &s->excess_count, n, sizeof(int)) ||
        !gckpti_reserve(&s->scratch, &s->excess, n, sizeof *s->excess))
        return 0;
    s->excess_sum[0] = 0;
    s->excess_count[0] = 0;
    for (int x = 0; x < now->length; x++) {
        const int64_t excess = now->live_bytes[x] > limit ? now->live_bytes[x] - limit : 0;
        s->excess[s->excess_count[x]] = excess;
        s->excess_sum[x + 1] = s->excess_sum[x] + excess;
        s->excess_count[x + 1] = s->excess_count[x] + (excess > 0);
    }
    s->moves = s->members = 0;
    s->first_backward = 0;
    while (s->first_backward < now->length && now->entry[s->first_backward] >= 0)
        s->first_backward++;
    gckpti_reset_states(s->p);
    s->firsts_end = 0;
    for (int x = 0; x < s->first_backward && s->p->recompute_count > 0; x++)
        if (s->state[gckpti_entry_node(s->p, now->entry[x])].run_count++ == 0)
            s->firsts_end = x + 1;
    gckpti_reset_states(s->p);
    return 1;
}

/* Returns whether gckpt_recompute demands a recompute of `node` for a reader at position x: its
 * last definition is from before the backwards, as gckpti_apply_policy sees it. */
GCKPTI_FN int gckpti_must_recompute(const gckpti_search *s, int node, int x)
{
    return s->p->node[node].must_recompute && x >= s->first_backward &&
           s->state[node].start < s->firsts_end;
}

/* ---- the current schedule, s->now, and candidates, which store schedules ---- */
/* Writes the current schedule's body to p->entries, as a builder does. */
static void gckpti_emit_now(gckpti_search *s)
{
    s->p->entry_count = 0;
    for (int x = 0; x < s->now.length; x++)
        gckpti_emit(s->p, s->now.entry[x]);
}

/* Makes a builder's entries the current schedule. Finishes it until that changes nothing: lowering
 * finishes it again, and removed entries may change what gckpt_recompute demands. */
GCKPTI_FN int gckpti_take_built(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    for (int iteration = 0, same = 0; iteration < 4 && !same; iteration++) {
        if (!gckpti_finish_schedule(p, p->entries, (int)p->entry_count, &s->scratch, &s->now))
            return 0;
        same = !p->recompute_count || (size_t)s->now.length == p->entry_count;
        if (!same)
            gckpti_emit_now(s);
    }
    p->entry_count = 0;
    s->evaluated += 2 * (int64_t)s->now.length;
    return 1;
}

/* Applies gckpt_recompute to the current schedule again after moves. */
GCKPTI_FN void gckpti_reapply_policy(gckpti_search *s)
{
    if (s->p->recompute_count) {
        gckpti_emit_now(s);
        gckpti_take_built(s);
    }
}

/* Replaces a candidate's schedule; the new one is not placed yet. */
GCKPTI_FN void gckpti_candidate_store(gckpti_search *s, gckpti_candidate *candidate,
                                      const gckpti_schedule *schedule)
{
    candidate->spans = gckpti_to_spans(schedule->entry, schedule->length, NULL);
    if (!gckpti_reserve(&s->scratch, &candidate->span, (size_t)candidate->spans,
                        sizeof *candidate->span))
        return;
    gckpti_to_spans(schedule->entry, schedule->length, candidate->span);
    candidate->length = schedule->length;
    candidate->peak = schedule->peak;
    candidate->overhead = schedule->overhead;
    candidate->recompute_cost = schedule->recompute_cost;
    candidate->transfer_cost = schedule->transfer_cost;
    candidate->arena = 0;
    candidate->hidden = NULL;
}

/* Makes a candidate's schedule the current one, evaluated. Returns 0 if it has none. */
GCKPTI_FN int gckpti_candidate_load(gckpti_search *s, const gckpti_candidate *candidate)
{
    if (candidate->length == 0 || !gckpti_schedule_reserve(&s->scratch, &s->now, candidate->length))
        return 0;
    gckpti_from_spans(candidate->span, candidate->length, s->now.entry);
    s->now.length = candidate->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Appends an empty candidate to *list, which may move the list. Returns NULL if out of memory. */
GCKPTI_FN gckpti_candidate *gckpti_candidate_new(gckpti_search *s, gckpti_candidate **list,
                                                 int *count)
{
    if (!gckpti_reserve(&s->scratch, list, (size_t)*count + 1, sizeof **list))
        return NULL;
    gckpti_candidate *candidate = &(*list)[(*count)++];
    memset(candidate, 0, sizeof *candidate);
    return candidate;
}

/* Stores the current schedule in a candidate if it is within the candidate's limit and better. */
GCKPTI_FN void gckpti_candidate_update(gckpti_search *s, gckpti_candidate *candidate)
{
    const gckpti_schedule *now = &s->now;
    gckpti_reapply_policy(s);
    int better = candidate->length == 0 || now->overhead < candidate->overhead ||
                 (now->overhead == candidate->overhead && now->peak < candidate->peak);
    if (now->peak <= candidate->limit && better && !s->p->failed)
        gckpti_candidate_store(s, candidate, now);
}

/* Returns whether a candidate is proven near-optimal for its limit. */
GCKPTI_FN int gckpti_is_proven(const gckpti_search *s, const gckpti_candidate *candidate)
{
    return candidate->length > 0 && candidate->overhead - candidate->bound <= s->margin;
}

/* Stores the current schedule as a new initial, unless an initial has the same entries. */
GCKPTI_FN void gckpti_add_initial(gckpti_search *s)
{
    gckpti_candidate *added = gckpti_candidate_new(s, &s->initial, &s->initials);
    if (!added)
        return;
    added->limit = s->now.peak;
    gckpti_candidate_store(s, added, &s->now);
    for (const gckpti_candidate *q = s->initial; q < added && !s->p->failed; q++)
        if (q->length == added->length && q->spans == added->spans &&
            !memcmp(q->span, added->span, (size_t)q->spans * sizeof *q->span)) {
            s->initials--;
            return;
        }
}

/* Makes a builder's entries the current schedule, and stores it as a new initial. */
GCKPTI_FN void gckpti_add_built(gckpti_search *s)
{
    if (gckpti_take_built(s))
        gckpti_add_initial(s);
}
#endif
